//! The contents of a simulated disk: the durable part, and the part that a power loss may lose.
//!
//! Owns: the model of durability. A plain value without locks or time: operations in, state out, so that a recording
//! can be replayed to any point. Must not know: handles, faults, capacity limits, recorders.
//!
//! The model is harsher than any file system, and guarantees only what POSIX promises:
//! - A write is durable after a sync of its file that starts later, or at once if it is a durable
//!   write. Before that any of its 512-byte sectors may be on the disk after a crash, or not.
//! - Sectors keep their order: an old write never comes back over a newer one that is durable.
//! - The length given at creation is durable after a sync of the file or a durable write to it.
//! - A creation, removal or rename is durable after a sync of each folder it touches; a rename is atomic. Folders
//!   themselves always exist. Removed files that come back never exceed the room of the disk.
//! - A sync that failed has dropped the dirty bytes, as Linux does: a later sync does not save them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::content::Content;
use crate::rng::Rng;

/// Unit that a disk writes atomically.
pub const SECTOR_BYTES: u64 = 512;
/// Files occupy whole blocks of this size.
pub const BLOCK_BYTES: u64 = 4096;

/// The unsynced operations that a power loss leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// None of them: the slowest disk.
    LoseUnsynced,
    /// All of them: also the result when only the process dies.
    KeepUnsynced,
    /// A seeded random part, torn at sectors.
    Random,
}

impl Crash {
    pub const ALL: [Crash; 3] = [Crash::LoseUnsynced, Crash::KeepUnsynced, Crash::Random];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(u64);

/// One change to a disk. It was checked before: applying it cannot fail.
#[derive(Clone, Debug)]
pub enum Op {
    Create {
        name: String,
        len_bytes: u64,
    },
    Remove {
        name: String,
    },
    Rename {
        from: String,
        to: String,
    },
    SyncFolder {
        folder: String,
    },
    Write {
        file: FileId,
        offset: u64,
        bytes: Bytes,
        durable: bool,
    },
    SetLen {
        file: FileId,
        len_bytes: u64,
    },
    Sync {
        file: FileId,
    },
    SyncFailed {
        file: FileId,
    },
}

#[derive(Clone, Default)]
pub struct State {
    files: BTreeMap<FileId, File>,
    file_id_next: u64,
    names: BTreeMap<String, FileId>,
    names_durable: BTreeMap<String, FileId>,
    names_pending: VecDeque<NameChange>,
    used_bytes: u64,
    /// Files freed since the last sweep.
    freed_count: usize,
}

#[derive(Clone, Default)]
struct File {
    current: Content,
    durable: Content,
    /// The changes from `durable` to `current`, in order; the first is never marked durable.
    pending: VecDeque<Change>,
    named: bool,
    open_count: u32,
}

#[derive(Clone)]
struct Change {
    edit: Edit,
    durable: bool,
    /// Dropped by a failed sync: no later sync makes it durable.
    abandoned: bool,
}

#[derive(Clone)]
enum Edit {
    Write { offset: u64, bytes: Bytes },
    SetLen { len_bytes: u64 },
}

#[derive(Clone)]
struct NameChange {
    edit: NameEdit,
    /// Folders that must still be synced to make this durable.
    unsynced: BTreeSet<String>,
}

#[derive(Clone)]
enum NameEdit {
    Link {
        name: String,
        file: FileId,
    },
    Unlink {
        name: String,
        file: FileId,
    },
    Rename {
        from: String,
        to: String,
        file: FileId,
    },
}

/// The folder part of a name; "" is the top.
pub fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

pub fn allocated_bytes(len_bytes: u64) -> u64 {
    len_bytes
        .checked_next_multiple_of(BLOCK_BYTES)
        .unwrap_or(u64::MAX)
}

impl State {
    pub fn lookup(&self, name: &str) -> Option<FileId> {
        self.names.get(name).copied()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The current bytes of a file; `None` once it is gone.
    pub fn content(&self, file: FileId) -> Option<&Content> {
        self.files.get(&file).map(|file| &file.current)
    }

    pub fn open(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file) {
            file.open_count += 1;
        }
    }

    pub fn close(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file) {
            file.open_count -= 1;
        }
        self.free_if_unused(file);
        self.sweep();
    }

    /// Applies a change. Operations on missing files do nothing: they occur only in a recording that is cut before the
    /// file was made.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { name, len_bytes } => self.create(name, *len_bytes),
            Op::Remove { name } => self.remove(name),
            Op::Rename { from, to } => self.rename(from, to),
            Op::SyncFolder { folder } => self.sync_folder(folder),
            Op::Write {
                file,
                offset,
                bytes,
                durable,
            } => {
                let edit = Edit::Write {
                    offset: *offset,
                    bytes: bytes.clone(),
                };
                self.edit(*file, edit, *durable);
            }
            Op::SetLen { file, len_bytes } => {
                let edit = Edit::SetLen {
                    len_bytes: *len_bytes,
                };
                self.edit(*file, edit, false);
            }
            Op::Sync { file } => {
                if let Some(file) = self.files.get_mut(file) {
                    file.sync();
                }
            }
            Op::SyncFailed { file } => {
                if let Some(file) = self.files.get_mut(file) {
                    file.pending
                        .iter_mut()
                        .for_each(|change| change.abandoned = true);
                }
            }
        }
    }

    /// As [`State::apply`], for an operation that the power loss cut off before it was answered.
    pub fn apply_unfinished(&mut self, op: &Op) {
        match op {
            Op::Write {
                file,
                offset,
                bytes,
                durable: true,
            } => self.apply(&Op::Write {
                file: *file,
                offset: *offset,
                bytes: bytes.clone(),
                durable: false,
            }),
            Op::Sync { .. } | Op::SyncFailed { .. } | Op::SyncFolder { .. } => {}
            Op::Create { .. }
            | Op::Remove { .. }
            | Op::Rename { .. }
            | Op::SetLen { .. }
            | Op::Write { durable: false, .. } => self.apply(op),
        }
    }

    /// The state that the next start finds after a power loss now, on a disk of `capacity_bytes`.
    pub fn crash(mut self, mode: Crash, capacity_bytes: u64, rng: &mut Rng) -> State {
        let mut names = self.names_durable;
        for change in &self.names_pending {
            if change.unsynced.is_empty() || mode.keeps(rng) {
                change.edit.apply(&mut names);
                // If an earlier rename of this file was lost, its old name must go too.
                if let NameEdit::Rename { to, file, .. } = &change.edit {
                    names.retain(|name, id| id != file || name == to);
                }
            }
        }
        let mut files = BTreeMap::new();
        let mut used_bytes = 0;
        for id in names.values() {
            let Some(file) = self.files.remove(id) else {
                continue;
            };
            let content = file.crash(mode, rng);
            used_bytes += allocated_bytes(content.len_bytes());
            let file = File {
                current: content.clone(),
                durable: content,
                pending: VecDeque::new(),
                named: true,
                open_count: 0,
            };
            files.insert(*id, file);
        }
        // Space that was given to other files is not used twice: then the removal that freed it is durable, too.
        let named: BTreeSet<FileId> = self.names.values().copied().collect();
        let changed = self.names_pending.iter().map(|change| change.edit.file());
        let all: Vec<FileId> = changed.chain(files.keys().copied()).collect();
        for id in all.into_iter().filter(|id| !named.contains(id)) {
            if used_bytes <= capacity_bytes {
                break;
            }
            if let Some(file) = files.remove(&id) {
                used_bytes -= allocated_bytes(file.current.len_bytes());
                names.retain(|_, named| *named != id);
            }
        }
        State {
            files,
            file_id_next: self.file_id_next,
            names_durable: names.clone(),
            names,
            names_pending: VecDeque::new(),
            used_bytes,
            freed_count: 0,
        }
    }

    /// Changes bytes silently, as a failing disk does. False if they do not exist.
    pub fn corrupt(&mut self, name: &str, offset: u64, change: impl Fn(&mut u8)) -> bool {
        let Some(file) = self.names.get(name).and_then(|id| self.files.get_mut(id)) else {
            return false;
        };
        if offset >= file.current.len_bytes() {
            return false;
        }
        for content in [&mut file.current, &mut file.durable] {
            if offset < content.len_bytes() {
                let mut byte = [0];
                content.read(offset, &mut byte);
                change(&mut byte[0]);
                content.write(offset, &byte);
            }
        }
        true
    }

    fn create(&mut self, name: &str, len_bytes: u64) {
        let id = FileId(self.file_id_next);
        self.file_id_next += 1;
        self.files.insert(
            id,
            File {
                named: true,
                ..File::default()
            },
        );
        self.edit(id, Edit::SetLen { len_bytes }, false);
        self.change_names(NameEdit::Link {
            name: name.to_owned(),
            file: id,
        });
    }

    fn remove(&mut self, name: &str) {
        let Some(file) = self.lookup(name) else {
            return;
        };
        self.change_names(NameEdit::Unlink {
            name: name.to_owned(),
            file,
        });
        self.unname(file);
    }

    fn rename(&mut self, from: &str, to: &str) {
        let Some(file) = self.lookup(from) else {
            return;
        };
        let replaced = self.lookup(to).filter(|replaced| *replaced != file);
        self.change_names(NameEdit::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
            file,
        });
        if let Some(replaced) = replaced {
            self.unname(replaced);
        }
    }

    fn sync_folder(&mut self, folder: &str) {
        for change in &mut self.names_pending {
            change.unsynced.remove(folder);
        }
        while let Some(change) = self.names_pending.pop_front() {
            if !change.unsynced.is_empty() {
                self.names_pending.push_front(change);
                break;
            }
            change.edit.apply(&mut self.names_durable);
        }
    }

    fn edit(&mut self, file: FileId, edit: Edit, durable: bool) {
        let Some(file) = self.files.get_mut(&file) else {
            return;
        };
        let before = allocated_bytes(file.current.len_bytes());
        file.edit(edit, durable);
        let after = allocated_bytes(file.current.len_bytes());
        if file.is_used() {
            self.used_bytes = self.used_bytes.saturating_sub(before).saturating_add(after);
        }
    }

    fn change_names(&mut self, edit: NameEdit) {
        edit.apply(&mut self.names);
        let unsynced = edit.folders().map(str::to_owned).collect();
        self.names_pending.push_back(NameChange { edit, unsynced });
    }

    fn unname(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.named = false;
        }
        self.free_if_unused(id);
    }

    fn free_if_unused(&mut self, id: FileId) {
        if let Some(file) = self.files.get(&id)
            && !file.is_used()
        {
            let bytes = allocated_bytes(file.current.len_bytes());
            self.used_bytes = self.used_bytes.saturating_sub(bytes);
            self.freed_count += 1;
        }
    }

    /// Forgets files that no crash can bring back. Only a live disk calls this (through `close`): a replay does not
    /// know which handles are open.
    fn sweep(&mut self) {
        const FREED_COUNT_MAX: usize = 256;
        if self.freed_count < FREED_COUNT_MAX {
            return;
        }
        self.freed_count = 0;
        let mut reachable: BTreeSet<FileId> = self.names_durable.values().copied().collect();
        reachable.extend(self.names_pending.iter().map(|change| change.edit.file()));
        self.files
            .retain(|id, file| file.is_used() || reachable.contains(id));
    }
}

impl Crash {
    fn keeps(self, rng: &mut Rng) -> bool {
        match self {
            Crash::LoseUnsynced => false,
            Crash::KeepUnsynced => true,
            Crash::Random => rng.coin(),
        }
    }
}

impl File {
    fn is_used(&self) -> bool {
        self.named || self.open_count > 0
    }

    fn edit(&mut self, edit: Edit, durable: bool) {
        edit.apply(&mut self.current);
        if durable {
            // A durable write also makes the length that it needs durable.
            for change in &mut self.pending {
                if matches!(change.edit, Edit::SetLen { .. }) && !change.abandoned {
                    change.durable = true;
                }
            }
            self.settle();
            // It need not wait for earlier writes elsewhere in the file.
            if !self.pending.iter().any(|change| change.edit.touches(&edit)) {
                self.make_durable(&edit);
                return;
            }
        }
        self.pending.push_back(Change {
            edit,
            durable,
            abandoned: false,
        });
    }

    fn sync(&mut self) {
        for change in &mut self.pending {
            change.durable |= !change.abandoned;
        }
        self.settle();
    }

    /// Moves changes into `durable` that are durable and have no undecided change before them.
    fn settle(&mut self) {
        while let Some(change) = self.pending.pop_front() {
            if !change.durable {
                self.pending.push_front(change);
                break;
            }
            self.make_durable(&change.edit);
        }
    }

    fn make_durable(&mut self, edit: &Edit) {
        edit.apply(&mut self.durable);
        if let Edit::Write { offset, bytes } = edit {
            let range = *offset..offset + bytes.len() as u64;
            self.durable.share_pages(&self.current, range);
        }
    }

    fn crash(self, mode: Crash, rng: &mut Rng) -> Content {
        let mut content = self.durable;
        for change in &self.pending {
            if change.durable {
                change.edit.apply(&mut content);
                continue;
            }
            match (&change.edit, mode) {
                (_, Crash::LoseUnsynced) => {}
                (edit, Crash::KeepUnsynced) => edit.apply(&mut content),
                (Edit::Write { offset, bytes }, Crash::Random) => {
                    apply_torn(&mut content, *offset, bytes, rng);
                }
                (edit @ Edit::SetLen { .. }, Crash::Random) => {
                    if rng.coin() {
                        edit.apply(&mut content);
                    }
                }
            }
        }
        content
    }
}

/// Applies some of the sectors of a write: none, all, a first part, or a random selection.
fn apply_torn(content: &mut Content, offset: u64, bytes: &[u8], rng: &mut Rng) {
    let end = offset + bytes.len() as u64;
    let sectors = offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES);
    let sector_count = sectors.end - sectors.start;
    let style = rng.below(4);
    let cut = sectors.start + rng.below(sector_count + 1);
    for sector in sectors {
        let keep = match style {
            0 => false,
            1 => true,
            2 => sector < cut,
            _ => rng.coin(),
        };
        if keep {
            let from = (sector * SECTOR_BYTES).max(offset);
            let to = ((sector + 1) * SECTOR_BYTES).min(end);
            let part = &bytes[(from - offset) as usize..(to - offset) as usize];
            content.write(from, part);
        }
    }
}

impl Edit {
    fn apply(&self, content: &mut Content) {
        match self {
            Edit::Write { offset, bytes } => content.write(*offset, bytes),
            Edit::SetLen { len_bytes } => content.set_len(*len_bytes),
        }
    }

    /// Whether the order of the two matters, at the granularity of sectors.
    fn touches(&self, other: &Edit) -> bool {
        let sectors = |edit: &Edit| match edit {
            Edit::Write { offset, bytes } => {
                let end = offset + bytes.len() as u64;
                offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)
            }
            Edit::SetLen { .. } => 0..u64::MAX,
        };
        let (ours, theirs) = (sectors(self), sectors(other));
        ours.start < theirs.end && theirs.start < ours.end
    }
}

impl NameEdit {
    fn apply(&self, names: &mut BTreeMap<String, FileId>) {
        match self {
            NameEdit::Link { name, file } => {
                names.insert(name.clone(), *file);
            }
            NameEdit::Unlink { name, file } => {
                if names.get(name) == Some(file) {
                    names.remove(name);
                }
            }
            NameEdit::Rename { from, to, file } => {
                if names.get(from) == Some(file) {
                    names.remove(from);
                }
                names.insert(to.clone(), *file);
            }
        }
    }

    fn folders(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            NameEdit::Link { name, .. } | NameEdit::Unlink { name, .. } => (name, name),
            NameEdit::Rename { from, to, .. } => (from, to),
        };
        [first, second].into_iter().map(|name| folder_of(name))
    }

    fn file(&self) -> FileId {
        match self {
            NameEdit::Link { file, .. }
            | NameEdit::Unlink { file, .. }
            | NameEdit::Rename { file, .. } => *file,
        }
    }
}
