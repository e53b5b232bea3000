//! The expected contents of the volume, and the allowed contents after a crash.
//!
//! Owns: the order of all changes and writes as the engine took them, which of them are known to be durable, and the
//! judgement of the contents after a restart. Must not know: how clients choose operations, how the engine stores
//! anything.
//!
//! Changes of names and attributes, and writes, get numbers in the order in which they take effect. The surviving
//! changes are a prefix that contains all acknowledged ones. The surviving writes are any set with all those that were
//! acknowledged as stable or committed, and with none after the prefix. Each write survives as a whole, unless a later
//! write or cut overlaps it.
//!
//! A file is words of 8 bytes. Each word names its write (its tag) and its place, so that one word alone shows a wrong
//! byte, an outdated one, and one from elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cairn_fs::FsError;

use crate::tree::{self, Change, FoundKind, FoundTree, Kind, NodeId, ROOT, Tree};

pub const WORD_BYTES: u64 = 8;
/// Files stay below this size, in bytes.
pub const FILE_LEN_BYTES_MAX: u64 = 1 << 20;
const ROOT_INO: u64 = 1;
/// Few, so that files share contents.
const REPEATABLE_MAX: usize = 4;

/// The place of an event in the order of all events.
pub type Seq = u64;
/// Names a write; 0 is a hole.
pub type Tag = u32;

/// The bytes of word `index` written by `tag`.
pub fn word(tag: Tag, index: u64) -> [u8; 8] {
    if tag == 0 {
        return [0; 8];
    }
    (u64::from(tag) << 32 | (index & 0xffff_ffff)).to_le_bytes()
}

/// The bytes that write `tag` puts at word `first`.
pub fn content(tag: Tag, first: u64, count: u64) -> Vec<u8> {
    (first..first + count)
        .flat_map(|index| word(tag, index))
        .collect()
}

/// The write that the bytes at word `index` come from.
fn tag_of(bytes: &[u8], index: u64) -> Result<Tag, String> {
    let word: [u8; 8] = bytes
        .try_into()
        .map_err(|_| "a part of a word".to_owned())?;
    let value = u64::from_le_bytes(word);
    if value == 0 {
        return Ok(0);
    }
    let tag = (value >> 32) as Tag;
    if tag == 0 || value & 0xffff_ffff != index & 0xffff_ffff {
        return Err(format!(
            "word {index} holds {value:#018x}, which nobody wrote there"
        ));
    }
    Ok(tag)
}

/// The tags of a file's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words {
    tags: Vec<Tag>,
}

impl Words {
    fn size_bytes(&self) -> u64 {
        self.tags.len() as u64 * WORD_BYTES
    }

    fn get(&self, index: u64) -> Tag {
        self.tags.get(index as usize).copied().unwrap_or(0)
    }

    /// The tags as runs, each with its length in words.
    fn describe(&self) -> String {
        let mut text = String::new();
        for run in self.tags.chunk_by(|a, b| a == b) {
            text.push_str(&format!("{}x{} ", run.len(), run[0]));
        }
        text
    }

    fn write(&mut self, first: u64, count: u64, tag: Tag) {
        let end = (first + count) as usize;
        if self.tags.len() < end {
            self.tags.resize(end, 0);
        }
        self.tags[first as usize..end].fill(tag);
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Write { first: u64, count: u64, tag: Tag },
    Cut { words: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Event {
    seq: Seq,
    what: What,
    /// Of a write: it is known to be durable, and was acknowledged before the event of this number.
    answered: Option<Seq>,
}

impl What {
    fn covers(&self, index: u64) -> bool {
        match *self {
            What::Write { first, count, .. } => (first..first + count).contains(&index),
            What::Cut { words } => index >= words,
        }
    }
}

/// The numbers of words that a read of `len_max` words from word `first` may return, if the file had `len` words when
/// it began and was changed by `newer` since.
fn read_lens(first: u64, len_max: u64, len: u64, newer: &[What]) -> Vec<u64> {
    let within = |end: u64| end.saturating_sub(first).min(len_max);
    let grown = newer.iter().scan(len, |len, what| {
        *len = match *what {
            What::Write { first, count, .. } => within(first + count).max(*len),
            What::Cut { words } => within(words),
        };
        Some(*len)
    });
    std::iter::once(len).chain(grown).collect()
}

#[derive(Clone, Debug, Default)]
struct History {
    /// Contents at the start of this life, all durable.
    base: Words,
    events: Vec<Event>,
    live: Words,
    /// It was unreadable after a crash (where that is allowed): which events survived is unknown, and `live` is a
    /// guess.
    is_unsure: bool,
}

impl History {
    /// This history, with events acknowledged after `before` counted as not acknowledged.
    fn as_answered(&self, before: Seq) -> Self {
        let mut history = self.clone();
        for event in &mut history.events {
            event.answered = event.answered.filter(|answered| *answered <= before);
        }
        history
    }
}

#[derive(Clone, Debug)]
struct Logged {
    seq: Seq,
    change: Change,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub tree: Tree,
    base_tree: Tree,
    log: Vec<Logged>,
    files: BTreeMap<NodeId, History>,
    inos: BTreeMap<NodeId, u64>,
    inos_used: BTreeSet<u64>,
    seq_next: Seq,
    node_next: u32,
    tag_next: Tag,
    /// Tags of writes that may be repeated, the newest last, each with its files.
    repeatable: Vec<(Tag, BTreeSet<NodeId>)>,
    /// All changes below are durable.
    floor: Seq,
    /// Changes that were answered with "come again later" after they had taken effect: they must not survive.
    refused: Vec<Seq>,
    /// First event of this life: unreadable files keep earlier events.
    life_first: Seq,
    /// Set if the judgement concerns the contents at one moment after this event, and not those after a crash.
    moment_since: Option<Seq>,
}

/// A moment, and the changes known to be durable by then.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    floor: Seq,
    at: Seq,
}

/// Results of the judgement; see [`Model::rebase`].
pub struct Judged {
    tree: Tree,
    inos: BTreeMap<NodeId, u64>,
    words: BTreeMap<NodeId, Words>,
    /// Exactly the changes below survived.
    bound: Seq,
    pub lost_changes: usize,
    pub lost_writes: usize,
}

impl Model {
    pub fn new() -> Self {
        Self {
            node_next: 1,
            tag_next: 1,
            seq_next: 1,
            inos: BTreeMap::from([(ROOT, ROOT_INO)]),
            inos_used: BTreeSet::from([ROOT_INO]),
            ..Self::default()
        }
    }

    /// A model whose words differ from those of other models.
    pub fn with_tags_from(first: Tag) -> Self {
        Self {
            tag_next: first,
            ..Self::new()
        }
    }

    pub fn new_node(&mut self) -> NodeId {
        let node = NodeId(self.node_next);
        self.node_next += 1;
        node
    }

    pub fn new_tag(&mut self) -> Tag {
        let tag = self.tag_next;
        self.tag_next += 1;
        tag
    }

    /// A tag that other files were written with, and this one was not, so that equal words hold equal bytes there;
    /// `pick` chooses. Otherwise a new one, which may be repeated. One file never has a tag twice: the words would not
    /// show which write was later.
    pub fn repeated_tag(&mut self, node: NodeId, pick: u64) -> Tag {
        let fresh = |(_, nodes): &&mut (Tag, BTreeSet<NodeId>)| !nodes.contains(&node);
        let count = self.repeatable.iter_mut().filter(fresh).count() as u64;
        if count > 0 && !pick.is_multiple_of(4) {
            let nth = (pick / 4 % count) as usize;
            if let Some((tag, nodes)) = self.repeatable.iter_mut().filter(fresh).nth(nth) {
                nodes.insert(node);
                return *tag;
            }
        }
        let tag = self.new_tag();
        if self.repeatable.len() == REPEATABLE_MAX {
            self.repeatable.remove(0);
        }
        self.repeatable.push((tag, BTreeSet::from([node])));
        tag
    }

    pub fn ino(&self, node: NodeId) -> Option<u64> {
        self.inos.get(&node).copied()
    }

    /// Nodes of one kind whose inode number is known.
    pub fn known(&self, wanted: impl Fn(&Kind) -> bool) -> Vec<NodeId> {
        let nodes = self.tree.nodes.iter();
        nodes
            .filter(|(id, node)| wanted(&node.kind) && self.inos.contains_key(id))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Notes the inode number of a node that the engine made.
    pub fn learn_ino(&mut self, node: NodeId, ino: u64) -> Result<(), String> {
        if self.inos.get(&node) == Some(&ino) {
            return Ok(());
        }
        if !self.inos_used.insert(ino) {
            return Err(format!("inode number {ino} was used before"));
        }
        self.inos.insert(node, ino);
        Ok(())
    }

    pub fn size_bytes(&self, node: NodeId) -> u64 {
        self.files
            .get(&node)
            .map_or(0, |file| file.live.size_bytes())
    }

    /// Whether the present contents of the file are known.
    pub fn is_sure(&self, node: NodeId) -> bool {
        self.files.get(&node).is_none_or(|file| !file.is_unsure)
    }

    fn next_seq(&mut self) -> Seq {
        let seq = self.seq_next;
        self.seq_next += 1;
        seq
    }

    pub fn seq(&self) -> Seq {
        self.seq_next
    }

    /// Applies a change now. An error: the engine should have refused it.
    pub fn apply(&mut self, change: &Change) -> Result<Seq, FsError> {
        self.tree.apply(change)?;
        let seq = self.next_seq();
        match change {
            Change::Create { node, .. } => {
                self.files.insert(*node, History::default());
            }
            // Its bytes come with its name: they exist if the change does.
            Change::Put {
                node, words, tag, ..
            } => {
                let words = Words {
                    tags: vec![*tag; *words as usize],
                };
                let file = History {
                    live: words.clone(),
                    base: words,
                    ..History::default()
                };
                self.files.insert(*node, file);
            }
            Change::Cut { node, size_bytes } => {
                let words = size_bytes / WORD_BYTES;
                let file = self.files.entry(*node).or_default();
                file.live.tags.resize(words as usize, 0);
                file.events.push(Event {
                    seq,
                    what: What::Cut { words },
                    answered: None,
                });
            }
            _ => {}
        }
        self.log.push(Logged {
            seq,
            change: change.clone(),
        });
        Ok(seq)
    }

    /// Applies a write now.
    pub fn write(&mut self, node: NodeId, first: u64, count: u64, tag: Tag) -> Seq {
        let seq = self.next_seq();
        let file = self.files.entry(node).or_default();
        file.live.write(first, count, tag);
        file.events.push(Event {
            seq,
            what: What::Write { first, count, tag },
            answered: None,
        });
        seq
    }

    /// Punches a hole now, in the existing part of these words, like a write of zeros. No effect where the file has
    /// none.
    pub fn punch(&mut self, node: NodeId, first: u64, count: u64) -> Option<Seq> {
        let words = self.size_bytes(node) / WORD_BYTES;
        let count = words.checked_sub(first)?.min(count);
        (count > 0).then(|| self.write(node, first, count, 0))
    }

    /// Notes that the change was acknowledged.
    pub fn change_is_durable(&mut self, seq: Seq) {
        self.floor = self.floor.max(seq + 1);
    }

    /// Notes that the change was answered with "come again later".
    pub fn change_is_refused(&mut self, seq: Seq) {
        self.refused.push(seq);
    }

    /// Notes that the write was acknowledged as stable.
    pub fn write_is_durable(&mut self, node: NodeId, seq: Seq) {
        let Some(file) = self.files.get_mut(&node) else {
            return;
        };
        for event in file.events.iter_mut().filter(|event| event.seq == seq) {
            event.answered.get_or_insert(self.seq_next);
        }
        // Earlier submissions precede it in the log.
        self.floor = self.floor.max(seq);
    }

    /// Notes that a commit that began at `begun` was acknowledged.
    pub fn committed(&mut self, node: NodeId, begun: Seq) {
        let Some(file) = self.files.get_mut(&node) else {
            return;
        };
        let of_life = self.life_first..begun;
        for event in file
            .events
            .iter_mut()
            .filter(|event| of_life.contains(&event.seq))
        {
            if matches!(event.what, What::Write { .. }) {
                event.answered.get_or_insert(self.seq_next);
                self.floor = self.floor.max(event.seq);
            }
        }
    }

    /// The volume was closed without an error: everything that took effect is durable.
    pub fn everything_is_durable(&mut self) {
        self.floor = self.seq_next;
        for event in self.files.values_mut().flat_map(|file| &mut file.events) {
            if event.seq >= self.life_first {
                event.answered.get_or_insert(self.seq_next);
            }
        }
    }

    /// Checks the result of a read of `len` bytes: the bytes as of `begun`, or newer ones from later writes, and a
    /// length that the file had at some moment since.
    pub fn check_read(
        &self,
        node: NodeId,
        (offset, len): (u64, u64),
        bytes: &[u8],
        expected: &[Tag],
        begun: Seq,
    ) -> Result<(), String> {
        if !self.is_sure(node) {
            return Ok(());
        }
        let first = offset / WORD_BYTES;
        let events = self
            .files
            .get(&node)
            .map(|file| &file.events[..])
            .unwrap_or_default();
        let newer: Vec<What> = events
            .iter()
            .filter(|event| event.seq >= begun)
            .map(|event| event.what)
            .collect();
        let lens = read_lens(first, len / WORD_BYTES, expected.len() as u64, &newer);
        if !lens
            .iter()
            .any(|words| words * WORD_BYTES == bytes.len() as u64)
        {
            return Err(format!(
                "a read of node {} at {offset} gave {} bytes, want {}",
                node.0,
                bytes.len(),
                expected.len() as u64 * WORD_BYTES
            ));
        }
        // The part by which the file grew meanwhile is a hole, unless it was written.
        let expected = expected.iter().copied().chain(std::iter::repeat(0));
        for ((index, got), want) in (first..).zip(bytes.chunks(8)).zip(expected) {
            let tag = tag_of(got, index)
                .map_err(|error| format!("a read of node {} at {offset}: {error}", node.0))?;
            let is_newer = || {
                newer.iter().any(|what| match what {
                    What::Write { tag: other, .. } => *other == tag && what.covers(index),
                    What::Cut { .. } => tag == 0 && what.covers(index),
                })
            };
            if tag != want && !is_newer() {
                return Err(format!(
                    "a read of node {} at {offset}: word {index} is of write {tag}, want {want}",
                    node.0
                ));
            }
        }
        Ok(())
    }

    /// Whether a write or a cut overlaps one of these words since then.
    pub fn has_changed(&self, node: NodeId, words: Range<u64>, since: Seq) -> bool {
        let events = self
            .files
            .get(&node)
            .into_iter()
            .flat_map(|file| &file.events);
        let mut newer = events.filter(|event| event.seq >= since);
        newer.any(|event| words.clone().any(|index| event.what.covers(index)))
    }

    /// The tags that a read should return now.
    pub fn expected_read(&self, node: NodeId, offset: u64, len: u64) -> Vec<Tag> {
        let Some(file) = self.files.get(&node) else {
            return Vec::new();
        };
        let words = file.live.tags.len() as u64;
        let first = (offset / WORD_BYTES).min(words);
        let end = ((offset + len) / WORD_BYTES).min(words);
        file.live.tags[first as usize..end as usize].to_vec()
    }

    /// This moment, and the changes known to be durable by now.
    pub fn mark(&mut self) -> Mark {
        Mark {
            floor: self.floor,
            at: self.next_seq(),
        }
    }

    /// These changes and writes, to be judged as the contents at one moment since the mark: they include everything
    /// acknowledged before the mark, and everything acknowledged before an included change.
    pub fn since(&self, mark: Mark) -> Self {
        Self {
            floor: mark.floor,
            moment_since: Some(mark.at),
            ..self.clone()
        }
    }

    /// Whether a restart may find `found`; the error says why not.
    pub fn judge(&self, found: &FoundTree) -> Result<Judged, String> {
        let mut tree = self.base_tree.clone();
        let mut rest = self.log.iter().peekable();
        let mut reasons = Vec::new();
        loop {
            // Everything known to be durable, then one more change each time.
            while let Some(logged) = rest.next_if(|logged| logged.seq < self.floor) {
                tree.apply(&logged.change)
                    .map_err(|error| format!("the model refuses its own change: {error}"))?;
            }
            let bound = rest.peek().map_or(Seq::MAX, |next| next.seq);
            match self.judge_prefix(&tree, bound, found) {
                Ok(mut judged) => {
                    judged.lost_changes = rest.count();
                    return Ok(judged);
                }
                Err(reason) => reasons.push(reason),
            }
            let Some(logged) = rest.next() else {
                break;
            };
            tree.apply(&logged.change)
                .map_err(|error| format!("the model refuses its own change: {error}"))?;
        }
        reasons.dedup();
        Err(reasons.join("; or else "))
    }

    /// As [`Self::judge`], if exactly the changes below `bound` survived.
    fn judge_prefix(&self, tree: &Tree, bound: Seq, found: &FoundTree) -> Result<Judged, String> {
        if let Some(refused) = self.refused.iter().find(|seq| **seq < bound) {
            return Err(format!("change {refused} was refused, and is there"));
        }
        let is_used = |ino| self.inos_used.contains(&ino);
        let inos = tree::match_tree(tree, found, ROOT_INO, &self.inos, is_used)?;
        let last_change = self
            .log
            .iter()
            .take_while(|logged| logged.seq < bound)
            .last();
        let answered_before = self.moment_since.map_or(Seq::MAX, |since| {
            last_change.map_or(since, |change| change.seq.max(since))
        });
        let mut words = BTreeMap::new();
        let mut lost_writes = 0;
        for (node, ino) in &inos {
            let Some(FoundKind::File { size_bytes, bytes }) =
                found.nodes.get(ino).map(|node| &node.kind)
            else {
                continue;
            };
            let none = History::default();
            let history = self.files.get(node).unwrap_or(&none);
            let history = &history.as_answered(answered_before);
            let Some(bytes) = bytes else {
                // It was unreadable, and that was allowed: its contents are unknown.
                continue;
            };
            let at = |error| format!("inode {ino} (node {}): {error}", node.0);
            if *size_bytes != bytes.len() as u64 {
                return Err(at(format!(
                    "{size_bytes} bytes long, {} were read",
                    bytes.len()
                )));
            }
            let read = read_words(bytes).map_err(at)?;
            let judged = judge_file(history, bound, &read);
            if judged.is_err() {
                tracing::debug!(ino, bound, found = %read.describe(), ?history.events, "a file is wrong");
            }
            lost_writes += judged.map_err(at)?;
            words.insert(*node, read);
        }
        Ok(Judged {
            tree: tree.clone(),
            inos,
            words,
            bound,
            lost_changes: 0,
            lost_writes,
        })
    }

    /// Begins a life with the contents that were found.
    pub fn rebase(&mut self, judged: Judged) {
        let mut files = BTreeMap::new();
        for (node, words) in judged.words {
            files.insert(
                node,
                History {
                    live: words.clone(),
                    base: words,
                    ..History::default()
                },
            );
        }
        // Unreadable files keep their history.
        for (node, mut history) in std::mem::take(&mut self.files) {
            if judged.tree.nodes.contains_key(&node) {
                history.events.retain(|event| event.seq < judged.bound);
                history.is_unsure = true;
                files.entry(node).or_insert(history);
            }
        }
        self.files = files;
        self.inos_used.extend(judged.inos.values());
        self.inos = judged.inos;
        self.base_tree = judged.tree.clone();
        self.tree = judged.tree;
        self.log.clear();
        self.refused.clear();
        self.floor = self.seq_next;
        self.life_first = self.seq_next;
    }
}

fn read_words(bytes: &[u8]) -> Result<Words, String> {
    if !(bytes.len() as u64).is_multiple_of(WORD_BYTES) {
        return Err(format!(
            "a length of {} bytes, which nobody made",
            bytes.len()
        ));
    }
    let tags: Result<Vec<Tag>, String> = (0..)
        .zip(bytes.chunks(8))
        .map(|(index, word)| tag_of(word, index))
        .collect();
    Ok(Words { tags: tags? })
}

/// Whether a file may hold `read` if exactly the changes below `bound` survived. Returns the number of lost writes.
fn judge_file(history: &History, bound: Seq, read: &Words) -> Result<usize, String> {
    // In order; everything after the first lost change is lost, too.
    let events: Vec<&Event> = history
        .events
        .iter()
        .take_while(|event| event.seq < bound)
        .collect();
    if let Some(lost) = history.events[events.len()..]
        .iter()
        .find(|event| event.answered.is_some())
    {
        return Err(format!(
            "write {lost:?} was answered, and a change before it is lost"
        ));
    }
    let is_definite =
        |event: &Event| event.answered.is_some() || matches!(event.what, What::Cut { .. });
    check_size(history, &events, read, is_definite)?;
    for index in 0..read.tags.len() as u64 {
        let tag = read.get(index);
        // Possible origins of the word: the last of these.
        let from = events.iter().rposition(|event| match event.what {
            What::Write { tag: other, .. } => other == tag && event.what.covers(index),
            What::Cut { .. } => tag == 0 && event.what.covers(index),
        });
        let since = match from {
            Some(at) => at + 1,
            None if history.base.get(index) == tag => 0,
            None => {
                return Err(format!(
                    "word {index} is of write {tag}, which is not there"
                ));
            }
        };
        let newer = events[since..]
            .iter()
            .find(|event| is_definite(event) && event.what.covers(index));
        if let Some(newer) = newer {
            return Err(format!(
                "word {index} is of write {tag}, older than {:?}",
                newer.what
            ));
        }
    }
    let mut lost_writes = history.events.len() - events.len();
    for (at, event) in events.iter().enumerate() {
        let What::Write { first, count, tag } = event.what else {
            continue;
        };
        let own: Vec<u64> = (first..first + count)
            .filter(|index| {
                !events[at + 1..]
                    .iter()
                    .any(|later| later.what.covers(*index))
            })
            .collect();
        let there = own.iter().filter(|index| read.get(**index) == tag).count();
        if event.answered.is_some() && there < own.len() {
            return Err(format!("write {tag} was answered and is not there"));
        }
        // A write that a later one cut apart may be flushed in parts. Earlier holes look like this one.
        let is_whole = own.len() as u64 == count && tag != 0;
        if is_whole && there != 0 && there != own.len() {
            return Err(format!(
                "write {tag} (words {first}..{}) is there in part: {there} of {} words",
                first + count,
                own.len()
            ));
        }
        lost_writes += usize::from(there == 0 && !own.is_empty());
    }
    Ok(lost_writes)
}

fn check_size(
    history: &History,
    events: &[&Event],
    read: &Words,
    is_definite: impl Fn(&Event) -> bool,
) -> Result<(), String> {
    let last_cut = events
        .iter()
        .rposition(|event| matches!(event.what, What::Cut { .. }));
    let (cut_words, since) = match last_cut.map(|at| (at, events[at].what)) {
        Some((at, What::Cut { words })) => (words, at + 1),
        _ => (history.base.tags.len() as u64, 0),
    };
    let size = read.tags.len() as u64;
    let mut is_explained = size == cut_words;
    let mut least = cut_words;
    for (at, event) in events.iter().enumerate().skip(since) {
        let What::Write { first, count, .. } = event.what else {
            continue;
        };
        let end = first + count;
        if is_definite(event) {
            least = least.max(end);
        }
        // The file ends where the surviving part of the write does: at its end, or where a later write cut it apart.
        // The last word must exist, or a later one.
        let is_cut_at = |later: &&Event| match later.what {
            What::Write { first, .. } => first == size,
            What::Cut { .. } => false,
        };
        let ends_here =
            end == size || (first < size && size < end && events[at + 1..].iter().any(is_cut_at));
        let covers_last = |later: &&Event| match later.what {
            What::Write { tag, .. } => tag == read.get(size - 1) && later.what.covers(size - 1),
            What::Cut { .. } => false,
        };
        is_explained |= ends_here && events[at..].iter().any(covers_last);
    }
    if size < least {
        return Err(format!("{size} words long, at least {least} were answered"));
    }
    if !is_explained {
        return Err(format!(
            "{size} words long, which no write and no cut that survived made it"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: Seq, what: What, stable: bool) -> Event {
        let answered = stable.then_some(seq);
        Event {
            seq,
            what,
            answered,
        }
    }

    fn write(seq: Seq, first: u64, count: u64, tag: Tag, stable: bool) -> Event {
        event(seq, What::Write { first, count, tag }, stable)
    }

    #[test]
    fn a_read_gives_as_much_as_there_was_at_some_moment() {
        let cut = |words| What::Cut { words };
        let written = |first, count| What::Write {
            first,
            count,
            tag: 7,
        };
        // Words 4 to 12 of a file that had 10 words when the read began.
        let cases: &[(&str, &[What], &[u64])] = &[
            ("nothing happened", &[], &[6]),
            ("cut before it", &[cut(2)], &[6, 0]),
            ("cut within", &[cut(5)], &[6, 1]),
            (
                "cut away and written again",
                &[cut(0), written(0, 7)],
                &[6, 0, 3],
            ),
            ("written over", &[written(0, 7)], &[6, 6]),
            ("grown beyond", &[written(10, 50), cut(90)], &[6, 8, 8]),
        ];
        for (name, newer, want) in cases {
            assert_eq!(read_lens(4, 8, 6, newer), *want, "{name}");
        }
    }

    /// Base `aabb` in words, then the events; is `read` allowed when all below `bound` survived?
    #[test]
    fn what_may_survive_is_told_from_what_may_not() {
        let base = vec![1, 1, 2, 2];
        type Case<'a> = (&'a str, &'a [Event], Seq, &'a [Tag], bool);
        let cases: &[Case] = &[
            ("nothing happened", &[], 99, &[1, 1, 2, 2], true),
            ("a wrong tag", &[], 99, &[1, 1, 2, 3], false),
            ("too short", &[], 99, &[1, 1, 2], false),
            (
                "unstable, there",
                &[write(1, 0, 2, 7, false)],
                99,
                &[7, 7, 2, 2],
                true,
            ),
            (
                "unstable, absent",
                &[write(1, 0, 2, 7, false)],
                99,
                &[1, 1, 2, 2],
                true,
            ),
            (
                "unstable, half",
                &[write(1, 0, 2, 7, false)],
                99,
                &[7, 1, 2, 2],
                false,
            ),
            (
                "stable, absent",
                &[write(1, 0, 2, 7, true)],
                99,
                &[1, 1, 2, 2],
                false,
            ),
            (
                "behind the prefix",
                &[write(5, 0, 2, 7, false)],
                5,
                &[7, 7, 2, 2],
                false,
            ),
            (
                "extends",
                &[write(1, 4, 1, 7, false)],
                99,
                &[1, 1, 2, 2, 7],
                true,
            ),
            (
                "size without data",
                &[write(1, 4, 1, 7, false)],
                99,
                &[1, 1, 2, 2, 0],
                false,
            ),
            (
                "a hole",
                &[write(1, 5, 1, 7, true)],
                99,
                &[1, 1, 2, 2, 0, 7],
                true,
            ),
            (
                "older over newer",
                &[write(1, 0, 2, 7, false), write(2, 0, 2, 8, true)],
                99,
                &[7, 7, 2, 2],
                false,
            ),
            (
                "newer lost",
                &[write(1, 0, 2, 7, true), write(2, 1, 2, 8, false)],
                99,
                &[7, 7, 2, 2],
                true,
            ),
            (
                "cut",
                &[event(1, What::Cut { words: 2 }, false)],
                99,
                &[1, 1],
                true,
            ),
            (
                "cut not done",
                &[event(1, What::Cut { words: 2 }, false)],
                99,
                &[1, 1, 2, 2],
                false,
            ),
            (
                "cut behind the prefix",
                &[event(5, What::Cut { words: 2 }, false)],
                5,
                &[1, 1, 2, 2],
                true,
            ),
            (
                "cut and grown",
                &[
                    event(1, What::Cut { words: 2 }, false),
                    write(2, 3, 1, 7, true),
                ],
                99,
                &[1, 1, 0, 7],
                true,
            ),
            (
                "old bytes come back",
                &[
                    event(1, What::Cut { words: 2 }, false),
                    write(2, 3, 1, 7, true),
                ],
                99,
                &[1, 1, 2, 7],
                false,
            ),
        ];
        for (name, events, bound, read, want) in cases {
            let history = History {
                base: Words { tags: base.clone() },
                events: events.to_vec(),
                ..History::default()
            };
            let read = Words {
                tags: read.to_vec(),
            };
            let got = judge_file(&history, *bound, &read);
            assert_eq!(got.is_ok(), *want, "{name}: {got:?}");
        }
    }
}
