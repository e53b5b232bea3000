//! Versions of keys: reading the newest, or those that a snapshot shows.
//!
//! Owns: the version that a reader sees, and the fate of a replaced version. Must not know: the owner of a snapshot,
//! when versions that only it saw are freed.
//!
//! The newest version of a key is stored at the key, so that reading it is a point get, with any number of snapshots.
//! Applying a change moves the replaced version to the history if a snapshot sees it: if it was born in or before the
//! generation of the newest snapshot. A reader of the snapshot of generation `g` takes the newest version if that was
//! born up to `g`. Otherwise it takes the version in the history that was born up to `g` and died after it.

use std::cmp::Ordering;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Branch, Generation, View};
use cairn_formats::metadata::keys::{GENERATION_LEN_BYTES, branch_of, is_versioned};
use cairn_formats::metadata::{Group, Key, KeyKind, versions};

use super::{StateCursor, StateKey, StateStore};
use crate::error::MetaError;

/// The value of a mark in the history.
const MARK: &[u8] = &[1];

/// A version of a key, and the generation of its birth; the first generation for keys without versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub birth: Generation,
    pub value: Bytes,
}

impl Version {
    fn parse(stored: Bytes) -> Result<Self, MetaError> {
        let (birth, at) = versions::split(&stored)?;
        Ok(Self {
            birth,
            value: stored.slice(at..),
        })
    }
}

/// The writes that the changes of a group need in the state, including the history that they make.
pub(crate) fn writes_of(
    state: &dyn StateStore,
    group: &Group,
) -> Result<Vec<(StateKey, Option<Bytes>)>, MetaError> {
    let has_snapshots =
        group.newest_snapshot > Generation(0) || !group.newest_of_branches.is_empty();
    let mut writes = Vec::with_capacity(group.puts.len() + 1);
    for put in &group.puts {
        let bytes = put.key.as_bytes();
        if !put.key.is_versioned() {
            writes.push((StateKey::from_slice(bytes), put.value.clone()));
            continue;
        }
        let birth = put.kept_birth.unwrap_or(group.generation);
        let newest_snapshot = match has_snapshots {
            true => group.newest_that_sees(&put.key),
            false => Generation(0),
        };
        if newest_snapshot > Generation(0)
            && let Some(old) = state.get(bytes)?
        {
            let (old_birth, _) = versions::split(&old)?;
            let is_seen = old_birth <= newest_snapshot && old_birth < birth;
            if is_seen && !planted::is(Bug::HistoryNotKept) {
                let history = Key::history(&put.key, group.generation);
                let dead = Key::dead(&put.key, group.generation, old_birth);
                writes.push((StateKey::from_slice(history.as_bytes()), Some(old)));
                if !planted::is(Bug::DeadEntryLost) {
                    let mark = Some(Bytes::from_static(MARK));
                    writes.push((StateKey::from_slice(dead.as_bytes()), mark));
                }
            }
        }
        let value = put.value.as_ref();
        let stored = value.map(|value| versions::join(birth, value));
        writes.push((StateKey::from_slice(bytes), stored));
    }
    Ok(writes)
}

/// The version of `key` that is seen in `view`.
pub(crate) fn get(
    state: &dyn StateStore,
    key: &Key,
    view: View,
) -> Result<Option<Version>, MetaError> {
    let stored = state.get(key.as_bytes())?;
    if !key.is_versioned() {
        let version = |value| Version {
            birth: Generation::FIRST,
            value,
        };
        return Ok(stored.map(version));
    }
    let newest = stored.map(Version::parse).transpose()?;
    match view {
        View::Live => Ok(newest),
        View::Snapshot(generation) => match newest {
            Some(newest) if newest.birth <= generation => Ok(Some(newest)),
            // Read after the newest: a version replaced meanwhile is in at least one of the two.
            _ => in_history(state, key, generation),
        },
    }
}

fn in_history(
    state: &dyn StateStore,
    key: &Key,
    generation: Generation,
) -> Result<Option<Version>, MetaError> {
    let from = Key::history(key, Generation(generation.0.saturating_add(1)));
    let to = Key::history(key, Generation(u64::MAX));
    let mut cursor = state.cursor(from.as_bytes(), to.as_bytes());
    let Some((_, stored)) = cursor.next()? else {
        return Ok(None);
    };
    let found = Version::parse(Bytes::copy_from_slice(stored))?;
    Ok(Some(found).filter(|found| found.birth <= generation))
}

/// Walks over keys, each with the version that a view sees.
pub(crate) struct VersionCursor<'a> {
    newest: Box<dyn StateCursor + 'a>,
    of_snapshot: Option<OfSnapshot<'a>>,
}

/// The additional inputs of a snapshot's cursor.
struct OfSnapshot<'a> {
    generation: Generation,
    history: Box<dyn StateCursor + 'a>,
    /// Keys below this one are skipped: their versions may lie past it in the state.
    from: Vec<u8>,
    /// The next entry of each cursor, while there is one.
    newest_head: Head,
    history_head: Head,
}

/// The next entry of a cursor.
#[derive(Default)]
struct Head {
    entry: Entry,
    is_there: bool,
    is_read: bool,
}

impl<'a> VersionCursor<'a> {
    /// Keys with `from <= key < to`.
    pub fn new(state: &'a dyn StateStore, from: &[u8], to: &[u8], view: View) -> Self {
        match view {
            View::Live => Self::live(state.cursor(from, to)),
            View::Snapshot(generation) => {
                // In this order: a version replaced meanwhile is in both, and never in neither.
                let newest = state.cursor(from, to);
                let history_from = Key::history_of(from);
                let history = state.cursor(history_from.as_bytes(), &history_end(to));
                Self {
                    newest,
                    of_snapshot: Some(OfSnapshot {
                        generation,
                        history,
                        from: from.to_vec(),
                        newest_head: Head::default(),
                        history_head: Head::default(),
                    }),
                }
            }
        }
    }

    /// As `new`, for a pass over so many entries that they must not evict the cached entries of other readers. A
    /// snapshot needs both of its parts as of one moment, so its pass is an ordinary cursor.
    pub fn passing(state: &'a dyn StateStore, from: &[u8], to: &[u8], view: View) -> Self {
        match view {
            View::Live => Self::live(state.passing_cursor(from, to)),
            View::Snapshot(_) => Self::new(state, from, to, view),
        }
    }

    fn live(newest: Box<dyn StateCursor + 'a>) -> Self {
        Self {
            newest,
            of_snapshot: None,
        }
    }

    pub fn next(&mut self, out: &mut Entry) -> Result<bool, MetaError> {
        match &mut self.of_snapshot {
            None => out.take_from(&mut *self.newest),
            Some(snapshot) => snapshot.next(&mut *self.newest, out),
        }
    }
}

impl OfSnapshot<'_> {
    fn next(
        &mut self,
        newest: &mut (dyn StateCursor + '_),
        out: &mut Entry,
    ) -> Result<bool, MetaError> {
        if !self.newest_head.is_read {
            self.newest_head.is_read = true;
            self.read_newest(newest)?;
        }
        if !self.history_head.is_read {
            self.history_head.is_read = true;
            self.read_history()?;
        }
        let order = match (self.newest_head.is_there, self.history_head.is_there) {
            (false, false) => return Ok(false),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (true, true) => {
                let (newest, history) = (&self.newest_head.entry, &self.history_head.entry);
                newest.key.cmp(&history.key)
            }
        };
        if order.is_le() {
            std::mem::swap(out, &mut self.newest_head.entry);
            self.newest_head.is_read = false;
        }
        if order.is_ge() {
            // If both have a key, the newest version is right: it was just replaced.
            if order.is_gt() {
                std::mem::swap(out, &mut self.history_head.entry);
            } else {
                self.history_head.entry.key.clone_from(&out.key);
            }
            self.history_head.is_read = false;
        }
        Ok(true)
    }

    fn read_newest(&mut self, newest: &mut (dyn StateCursor + '_)) -> Result<(), MetaError> {
        loop {
            let head = &mut self.newest_head;
            head.is_there = head.entry.take_from(newest)?;
            if !head.is_there || head.entry.birth <= self.generation {
                return Ok(());
            }
        }
    }

    /// Reads the first version of the next key that died after the snapshot, if it was born before the snapshot's end.
    fn read_history(&mut self) -> Result<(), MetaError> {
        // The key that was decided last: its versions that died later were also born later.
        let mut decided = std::mem::take(&mut self.history_head.entry.key);
        loop {
            let head = &mut self.history_head;
            let Some((bytes, stored)) = self.history.next()? else {
                head.is_there = false;
                return Ok(());
            };
            let KeyKind::History { key, death } = KeyKind::parse(bytes)? else {
                continue;
            };
            if death <= self.generation || key == decided || key < self.from.as_slice() {
                continue;
            }
            decided.clear();
            decided.extend_from_slice(key);
            let (birth, at) = versions::split(stored)?;
            if birth <= self.generation {
                head.entry.set(key, birth, &stored[at..]);
                head.is_there = true;
                return Ok(());
            }
        }
    }
}

/// End of the history of keys below `to` in the state. For a key's successor (the key and a NUL) that is past all
/// versions of the key, which begin with the key and any eight bytes.
fn history_end(to: &[u8]) -> Vec<u8> {
    match to.split_last() {
        Some((0, key)) if Key::parse(key).is_ok() => {
            let mut end = Key::history_of(key).as_bytes().to_vec();
            end.extend_from_slice(&[0xff; GENERATION_LEN_BYTES]);
            end.push(0);
            end
        }
        _ => Key::history_of(to).as_bytes().to_vec(),
    }
}

/// A key, its value, and the generation of the value's birth, in reused buffers.
#[derive(Default)]
pub(crate) struct Entry {
    pub key: Vec<u8>,
    pub birth: Generation,
    pub value: Vec<u8>,
}

impl Entry {
    fn set(&mut self, key: &[u8], birth: Generation, value: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.birth = birth;
        self.value.clear();
        self.value.extend_from_slice(value);
    }

    fn take_from(&mut self, cursor: &mut (dyn StateCursor + '_)) -> Result<bool, MetaError> {
        let Some((key, stored)) = cursor.next()? else {
            return Ok(false);
        };
        let (birth, at) = match is_versioned(key) {
            true => versions::split(stored)?,
            false => (Generation::FIRST, 0),
        };
        self.set(key, birth, &stored[at..]);
        Ok(true)
    }
}

/// A version that only snapshots saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadVersion {
    pub key: Key,
    pub birth: Generation,
    pub death: Generation,
    /// `None` if only the mark exists.
    pub value: Option<Bytes>,
}

impl DeadVersion {
    /// The key that finds this version when its snapshots are deleted.
    pub fn mark(&self) -> Key {
        Key::dead(&self.key, self.death, self.birth)
    }
}

/// Up to `max` versions of a branch that were born after its snapshot `after` and died up to its snapshot `up_to`: if
/// the branch has none between the two, no snapshot sees them. Starts at `from`, or at the first version with `None`.
pub(crate) fn dead_between(
    state: &dyn StateStore,
    branch: Branch,
    (after, up_to): (Generation, Generation),
    from: Option<&Key>,
    max: usize,
) -> Result<Vec<DeadVersion>, MetaError> {
    let born_first = Generation(after.0.saturating_add(1));
    let (_, to) = Key::dead_between(born_first, up_to);
    let first = Key::dead_from(born_first, born_first);
    let mut at = from.cloned().unwrap_or(first);
    let mut found = Vec::new();
    'seek: while found.len() < max {
        let mut cursor = state.cursor(at.as_bytes(), to.as_bytes());
        while let Some((bytes, _)) = cursor.next()? {
            let KeyKind::Dead { death, birth, key } = KeyKind::parse(bytes)? else {
                continue;
            };
            if birth < born_first {
                // Skips the versions that died then and were born early enough.
                at = Key::dead_from(death, born_first);
                continue 'seek;
            }
            if branch_of(key) != branch {
                continue;
            }
            let key = Key::parse(key)?;
            let stored = state.get(Key::history(&key, death).as_bytes())?;
            let version = stored.map(Version::parse).transpose()?;
            found.push(DeadVersion {
                key,
                birth,
                death,
                value: version.map(|version| version.value),
            });
            if found.len() == max {
                break 'seek;
            }
        }
        break;
    }
    Ok(found)
}

/// From the snapshot of generation `seen` to a later one, `up_to`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub seen: Generation,
    pub up_to: Generation,
}

/// Versions that an earlier snapshot shows and a later one hides.
#[derive(Clone, Debug, Default)]
pub struct GoneSince {
    pub versions: Vec<DeadVersion>,
    /// Number of marks that were read for these.
    pub looked_at: u64,
}

/// Up to `max` versions of keys with `from <= key < to` that were born up to the beginning of a span and died in it,
/// starting at the mark `at`. Other versions that died in it are skipped: that costs a seek for each existing pair of
/// birth and death, and there are no more pairs than dead versions.
pub(crate) fn gone_since(
    state: &dyn StateStore,
    Span { seen, up_to }: Span,
    (from, to): (&Key, &Key),
    at: Option<&Key>,
    max: usize,
) -> Result<GoneSince, MetaError> {
    let next = |generation: Generation| Generation(generation.0.saturating_add(1));
    let (_, end) = Key::dead_between(next(seen), up_to);
    let first = || Key::dead(from, next(seen), Generation(0));
    let mut at = at.cloned().unwrap_or_else(first);
    let mut found = GoneSince::default();
    'seek: while found.versions.len() < max && at < end {
        let mut cursor = state.cursor(at.as_bytes(), end.as_bytes());
        while let Some((bytes, _)) = cursor.next()? {
            found.looked_at += 1;
            let KeyKind::Dead { death, birth, key } = KeyKind::parse(bytes)? else {
                continue;
            };
            let past = match () {
                () if birth > seen => Key::dead(from, next(death), Generation(0)),
                () if key < from.as_bytes() => Key::dead(from, death, birth),
                () if key >= to.as_bytes() => Key::dead(from, death, next(birth)),
                () => {
                    let key = Key::parse(key)?;
                    let stored = state.get(Key::history(&key, death).as_bytes())?;
                    let version = stored.map(Version::parse).transpose()?;
                    found.versions.push(DeadVersion {
                        key,
                        birth,
                        death,
                        value: version.map(|version| version.value),
                    });
                    if found.versions.len() == max {
                        break 'seek;
                    }
                    continue;
                }
            };
            at = past;
            continue 'seek;
        }
        break;
    }
    Ok(found)
}

/// Up to `max` versions in the history of keys with `from <= key < to`.
pub(crate) fn history(
    state: &dyn StateStore,
    from: &Key,
    to: &Key,
    after: Option<(&Key, Generation)>,
    max: usize,
) -> Result<Vec<DeadVersion>, MetaError> {
    let first = match after {
        Some((key, death)) => Key::history(key, death).successor(),
        None => Key::history_of(from.as_bytes()),
    };
    let mut cursor = state.cursor(first.as_bytes(), &history_end(to.as_bytes()));
    let mut found = Vec::new();
    while found.len() < max
        && let Some((bytes, stored)) = cursor.next()?
    {
        if let KeyKind::History { key, death } = KeyKind::parse(bytes)?
            && key >= from.as_bytes()
        {
            found.push(parse_dead(key, death, stored)?);
        }
    }
    Ok(found)
}

/// A version in the history, as it is now.
pub(crate) fn dead_version(
    state: &dyn StateStore,
    version: &DeadVersion,
) -> Result<Option<DeadVersion>, MetaError> {
    let key = Key::history(&version.key, version.death);
    let stored = state.get(key.as_bytes())?;
    let parse = |stored: Bytes| parse_dead(version.key.as_bytes(), version.death, &stored);
    stored.map(parse).transpose()
}

fn parse_dead(key: &[u8], death: Generation, stored: &[u8]) -> Result<DeadVersion, MetaError> {
    let Version { birth, value } = Version::parse(Bytes::copy_from_slice(stored))?;
    Ok(DeadVersion {
        key: Key::parse(key)?,
        birth,
        death,
        value: Some(value),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::state::memory;
    use cairn_base::{Ino, LogPosition};
    use cairn_formats::metadata::Put;
    use proptest::prelude::*;

    type Model = BTreeMap<Key, Bytes>;

    fn scan(state: &dyn StateStore, from: &Key, to: &Key, view: View) -> Model {
        let mut cursor = VersionCursor::new(state, from.as_bytes(), to.as_bytes(), view);
        let mut entry = Entry::default();
        let mut all = Model::new();
        while cursor.next(&mut entry).expect("reads") {
            let key = Key::parse(&entry.key).expect("a key");
            let old = all.insert(key, Bytes::copy_from_slice(&entry.value));
            assert!(old.is_none(), "each key once");
        }
        all
    }

    fn key(number: u64) -> Key {
        let ino = Ino(number).in_branch(Branch((number / 4) as u16));
        // Some keys end with a NUL, as bounds of ranges do.
        match number % 2 {
            0 => Key::extent(ino, number << 8),
            _ => Key::dirent(ino, b"a"),
        }
    }

    fn is_of(branch: Branch) -> impl Fn(&(&Key, &Bytes)) -> bool {
        move |(key, _)| branch_of(key.as_bytes()) == branch
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put(u64, u8),
        Delete(u64),
        Move(u64),
        Take(u16),
        DeleteSnapshot(usize),
    }

    fn ops() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u64..8, any::<u8>()).prop_map(|(key, value)| Op::Put(key, value)),
            2 => (0u64..8).prop_map(Op::Delete),
            1 => (0u64..8).prop_map(Op::Move),
            1 => (0u16..2).prop_map(Op::Take),
            1 => (0usize..4).prop_map(Op::DeleteSnapshot),
        ]
    }

    proptest! {
        /// Compares several snapshots with copies of all keys from the time of each. Deleting a snapshot removes
        /// exactly the versions that no other one sees. A snapshot of one branch sees nothing of the other.
        #[test]
        fn snapshots_show_what_was_there(ops in proptest::collection::vec(ops(), 1..80)) {
            let state = memory::empty();
            let mut generation = Generation::FIRST;
            let mut model = Model::new();
            let mut births: BTreeMap<Key, Generation> = BTreeMap::new();
            let mut snapshots: BTreeMap<Generation, (Branch, Model)> = BTreeMap::new();
            for op in ops {
                let newest = |branch| {
                    let mut all = snapshots.iter().rev();
                    let found = all.find(|(_, (of, _))| *of == Branch(branch));
                    found.map_or(Generation(0), |(at, _)| *at)
                };
                let mut group = Group::new(generation, LogPosition(1), LogPosition(1));
                group.newest_snapshot = newest(0);
                group.newest_of_branches = vec![(Branch(1), newest(1))];
                match op {
                    Op::Put(number, value) => {
                        let value = Bytes::from(vec![1, value]);
                        model.insert(key(number), value.clone());
                        births.insert(key(number), generation);
                        group.put(Put::new(key(number), Some(value)));
                    }
                    Op::Delete(number) => {
                        model.remove(&key(number));
                        group.put(Put::new(key(number), None));
                    }
                    Op::Move(number) => {
                        let key = key(number);
                        let Some(value) = model.get(&key) else { continue };
                        // Snapshots that see the version see its new value.
                        let moved = Bytes::from([&value[..], b"moved"].concat());
                        let birth = births[&key];
                        let branch = branch_of(key.as_bytes());
                        let seen = snapshots.range_mut(birth..).filter(|(_, (of, _))| *of == branch);
                        for (_, (_, shown)) in seen {
                            shown.insert(key.clone(), moved.clone());
                        }
                        model.insert(key.clone(), moved.clone());
                        group.put(Put {
                            kept_birth: Some(birth),
                            ..Put::new(key, Some(moved))
                        });
                    }
                    Op::Take(branch) => {
                        let branch = Branch(branch);
                        let shown = model.iter().filter(is_of(branch));
                        let shown = shown.map(|(key, value)| (key.clone(), value.clone())).collect();
                        snapshots.insert(generation, (branch, shown));
                        generation.0 += 1;
                    }
                    Op::DeleteSnapshot(index) => {
                        let Some(gone) = snapshots.keys().nth(index).copied() else { continue };
                        let Some((branch, _)) = snapshots.remove(&gone) else { continue };
                        let is_of_it = |(_, (of, _)): &(&Generation, &(Branch, Model))| *of == branch;
                        let after = snapshots.range(..gone).rev().find(is_of_it).map_or(Generation(0), |(at, _)| *at);
                        let up_to = snapshots.range(gone..).find(is_of_it).map_or(generation, |(at, _)| *at);
                        let dead = dead_between(&state, branch, (after, up_to), None, usize::MAX).expect("reads");
                        for version in dead {
                            prop_assert!(version.value.is_some());
                            let gone = [Key::history(&version.key, version.death), Key::dead(&version.key, version.death, version.birth)];
                            let mut gone = gone.iter().map(|key| (StateKey::from_slice(key.as_bytes()), None));
                            state.apply(&mut gone).expect("applies");
                        }
                        // Each remaining version is seen by at least one snapshot.
                        let (from, to) = Key::all_history();
                        let mut cursor = state.cursor(from.as_bytes(), to.as_bytes());
                        while let Some((bytes, stored)) = cursor.next().expect("reads") {
                            let Ok(KeyKind::History { death, key }) = KeyKind::parse(bytes) else { panic!() };
                            let (birth, _) = versions::split(stored).expect("a version");
                            let branch = branch_of(key);
                            prop_assert!(snapshots.range(birth..death).any(|(_, (of, _))| *of == branch));
                        }
                    }
                }
                let writes = writes_of(&state, &group).expect("reads");
                state.apply(&mut writes.into_iter()).expect("applies");
            }
            // A version that one snapshot shows and a later one hides is found by its mark, with any versions between
            // them.
            let spans = snapshots.iter().filter(|(_, (of, _))| of.is_main()).flat_map(|(seen, (_, shown))| {
                let later = snapshots.range(Generation(seen.0 + 1)..).filter(|(_, (of, _))| of.is_main());
                let later = later.map(|(at, (_, later))| (*at, later));
                later.chain([(generation, &model)]).map(move |(up_to, later)| (Span { seen: *seen, up_to }, shown, later))
            });
            for (span, shown, later) in spans {
                let main = |(from, _): (Key, Key)| (from, Key::extent(Ino(0).in_branch(Branch(1)), 0));
                for (from, to) in [main(Key::all_extents()), Key::dirents(Ino(1)), Key::dirents(Ino(3))] {
                    let mut gone = Model::new();
                    let mut at = None;
                    // One at a time: each call continues after the last one.
                    while let Some(version) = gone_since(&state, span, (&from, &to), at.as_ref(), 1).expect("reads").versions.pop() {
                        at = Some(version.mark().successor());
                        prop_assert!(gone.insert(version.key, version.value.expect("is there")).is_none(), "each key once");
                    }
                    for (key, value) in &gone {
                        prop_assert_eq!(shown.get(key), Some(value));
                    }
                    for (key, value) in shown.range(from.clone()..to.clone()) {
                        prop_assert!(later.get(key) == Some(value) || gone.contains_key(key), "{:?}", key);
                    }
                }
            }
            let views = snapshots.iter().map(|(at, (branch, shown))| (View::Snapshot(*at), Some(*branch), shown));
            let bounds: Vec<Key> = (0..8).flat_map(|number| [key(number), key(number).successor()])
                .chain([Key::everything().0, Key::all_segments().0]).collect();
            for (view, branch, shown) in views.chain([(View::Live, None, &model)]) {
                let is_shown = |key: &Key| branch.is_none_or(|branch| branch_of(key.as_bytes()) == branch);
                for number in (0..8).filter(|number| is_shown(&key(*number))) {
                    let found = get(&state, &key(number), view).expect("reads");
                    prop_assert_eq!(found.map(|found| found.value), shown.get(&key(number)).cloned());
                }
                for from in &bounds {
                    for to in bounds.iter().filter(|to| *to > from) {
                        let want: Model = shown.range(from.clone()..to.clone()).map(|(key, value)| (key.clone(), value.clone())).collect();
                        let mut found = scan(&state, from, to, view);
                        found.retain(|key, _| is_shown(key));
                        prop_assert_eq!(found, want);
                    }
                }
            }
        }
    }
}
