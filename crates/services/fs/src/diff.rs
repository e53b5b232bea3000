//! The differences between two snapshots of a volume: names that were added, removed or moved, and files that changed.
//!
//! Owns: the cost is in proportion to the changes, and independent of the size of the volume. Must not know: who uses
//! the result, how it is shown.
//!
//! A change leaves a trace where the earlier snapshot sees the previous value: the version that died, with its mark.
//! So removed names are found by the cookies that died, and changed files by the inodes that died. New entries leave
//! no such trace, but their directory changed: its new names have sequence numbers that it gave since, and a new
//! directory is walked. An inode names its directory and its entry there, so its path costs a few reads of keys.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Generation, Ino, View};
use cairn_meta::{
    CookieRecord, DeadVersion, DirentRecord, InodeKind, InodeRecord, Key, KeyKind, MetaError,
    branch_of,
};
use rustc_hash::FxHashMap;

use crate::hidden::HIDDEN;
use crate::kernel::{kind_of, meta_error};
use crate::namespace::COOKIE_FIRST;
use crate::tasks::let_others_run;
use crate::types::{FileKind, FsError};
use crate::volume::{Fs, ROOT, VolumeCore};

/// Marks, or names, that are read at a time.
const READ_MAX: usize = 256;
/// Removed names whose files still exist; kept in memory until the files' new names are found. Names beyond this
/// number are reported as deleted, and as created at their new places.
const MOVED_NAMES_MAX: usize = 1 << 20;
/// Directories whose paths are cached, for each snapshot.
const PATHS_MAX: usize = 16 << 10;
/// Maximum depth of a directory whose path is resolved.
const DEPTH_MAX: usize = 4096;
/// Old versions of a file's extents that are compared to find a changed one: a file with more counts as changed.
const VERSIONS_MAX: u64 = 1024;

/// The change of a file, or of one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A new name; the file may have had other names before.
    Created,
    /// A removed name.
    Deleted,
    /// The file had this path before.
    Renamed { from: Vec<u8> },
    Modified {
        /// Its bytes changed.
        data: bool,
        /// Its mode, owner, times or extended attributes changed.
        attributes: bool,
        /// Another file has its name.
        replaced: bool,
    },
}

/// One of the differences between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    pub change: ChangeKind,
    /// The path in the later snapshot; in the earlier one if the file was deleted. `None` if none of its names is
    /// known: it had several, and its newest name is gone.
    pub path: Option<Vec<u8>>,
    pub ino: Ino,
    pub kind: FileKind,
    /// The size in that snapshot.
    pub size_bytes: u64,
    /// Of a modified file: its size in the earlier snapshot.
    pub size_before_bytes: Option<u64>,
}

/// Finds the differences from one snapshot to a later one, page by page.
pub struct SnapshotDiff {
    shared: Arc<VolumeCore>,
    earlier: Generation,
    later: Generation,
    stage: Stage,
    /// The mark at which the stage continues.
    at: Option<Key>,
    /// Removed names of files that still exist.
    moved: FxHashMap<Ino, Vec<(Ino, Bytes)>>,
    moved_count: usize,
    paths: [FxHashMap<Ino, DirLocation>; 2],
    /// Directories whose new names are still to be read, each from one sequence number to another.
    dirs: Vec<NewNames>,
    found: VecDeque<FileChange>,
    looked_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Finds removed names.
    Gone,
    /// Finds names that now belong to other files.
    Replaced,
    /// Finds changed files, and new names in directories.
    Changed,
    /// Removed names of files that have other names.
    Left,
    Done,
}

struct NewNames {
    dir: Ino,
    next: u64,
    end: u64,
}

/// The place of a directory.
#[derive(Clone, Debug)]
enum DirLocation {
    /// The path without its last slash: empty for the root.
    At(Arc<[u8]>),
    /// In the hidden folder, which no user sees.
    Hidden,
    Unknown,
}

impl DirLocation {
    fn child(&self, name: &[u8]) -> Self {
        match self {
            Self::At(dir) => Self::At([dir, &b"/"[..], name].concat().into()),
            other => other.clone(),
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Earlier,
    Later,
}

impl Fs {
    /// The differences from one snapshot to a later one; [`FsError::Invalid`] if it is not later. Leaves out the
    /// hidden folder. [`FsError::NotSupported`] for a clone.
    ///
    /// A page fails with [`FsError::Stale`] if one of the two snapshots is deleted meanwhile.
    pub fn diff(&self, earlier: Generation, later: Generation) -> Result<SnapshotDiff, FsError> {
        // The history of a clone does not separate inodes that it took over from changed ones.
        if !self.branch().is_main() {
            return Err(FsError::NotSupported);
        }
        if earlier >= later {
            return Err(FsError::Invalid);
        }
        for generation in [earlier, later] {
            self.in_view(View::Snapshot(generation))?;
        }
        Ok(SnapshotDiff {
            shared: self.shared.clone(),
            earlier,
            later,
            stage: Stage::Gone,
            at: None,
            moved: FxHashMap::default(),
            moved_count: 0,
            paths: Default::default(),
            dirs: Vec::new(),
            found: VecDeque::new(),
            looked_at: 0,
        })
    }
}

impl SnapshotDiff {
    /// The number of metadata keys that were read so far.
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// The next changes, at most `max`, in no particular order; none at the end.
    pub async fn page(&mut self, max: usize) -> Result<Vec<FileChange>, FsError> {
        while self.found.len() < max && self.stage != Stage::Done {
            self.step().await?;
            let_others_run().await;
        }
        // Pages that were read from a deleted snapshot may be incomplete.
        for generation in [self.earlier, self.later] {
            let view = View::Snapshot(generation);
            self.shared.meta.view(view).map_err(meta_error)?;
        }
        let count = max.min(self.found.len());
        Ok(self.found.drain(..count).collect())
    }

    async fn step(&mut self) -> Result<(), FsError> {
        if let Some(names) = self.dirs.pop() {
            return self.new_names(names).await;
        }
        let (range, next) = match self.stage {
            Stage::Gone => (Key::all_cookies(), Stage::Replaced),
            Stage::Replaced => (Key::all_cookies(), Stage::Changed),
            Stage::Changed => (Key::inodes(), Stage::Left),
            Stage::Left => return self.left().await,
            Stage::Done => return Ok(()),
        };
        let (shared, at) = (self.shared.clone(), self.at.clone());
        let (earlier, later) = (self.earlier, self.later);
        let read = || {
            let span = (&range.0, &range.1);
            let meta = &shared.meta;
            let found = meta.gone_since(earlier, later, span, at.as_ref(), READ_MAX);
            found.map_err(meta_error)
        };
        let page = self.shared.reading(read).await?;
        self.looked_at += page.looked_at;
        // Changes of clones are not part of the result.
        let is_own = |version: &&DeadVersion| branch_of(version.key.as_bytes()).is_main();
        for version in page.versions.iter().filter(is_own) {
            match self.stage {
                Stage::Gone => self.name_went(version).await?,
                Stage::Replaced => self.name_is_anothers(version).await?,
                _ => self.inode_changed(version).await?,
            }
        }
        match page.versions.last() {
            Some(last) if page.versions.len() == READ_MAX => {
                self.at = Some(last.mark().successor())
            }
            _ => (self.stage, self.at) = (next, None),
        }
        Ok(())
    }

    /// The entry that a directory had at one sequence number died: the name is gone, moved to another number, or
    /// belongs to another file.
    async fn name_went(&mut self, version: &DeadVersion) -> Result<(), FsError> {
        let Some((dir, entry)) = cookie_of(version)? else {
            return Ok(());
        };
        let now = self.dirent(Side::Later, dir, &entry.name).await?;
        if now.is_some_and(|now| now.ino == entry.ino) {
            return Ok(());
        }
        if self.linked(Side::Later, entry.ino).await?.is_some() {
            if self.moved_count < MOVED_NAMES_MAX {
                self.moved_count += 1;
                let names = self.moved.entry(entry.ino).or_default();
                names.push((dir, entry.name));
                return Ok(());
            }
        } else if let Some(now) = now
            && self.linked(Side::Earlier, now.ino).await?.is_none()
        {
            // The new file is reported.
            return Ok(());
        }
        self.deleted(dir, &entry.name, entry.ino).await
    }

    /// The sequence number of a removed name now has another name, or one of another file.
    async fn name_is_anothers(&mut self, version: &DeadVersion) -> Result<(), FsError> {
        let Some((dir, _)) = cookie_of(version)? else {
            return Ok(());
        };
        match self.get(Side::Later, &version.key).await? {
            Some(value) => {
                let entry = CookieRecord::decode(&value);
                let entry = entry.map_err(|error| meta_error(error.into()))?;
                self.name_came(dir, entry).await
            }
            None => Ok(()),
        }
    }

    async fn new_names(&mut self, names: NewNames) -> Result<(), FsError> {
        let NewNames { dir, next, end } = names;
        let (from, to) = (Key::cookie(dir, next), Key::cookie(dir, end));
        let (shared, view) = (self.shared.clone(), View::Snapshot(self.later));
        let read = || {
            let meta = shared.meta.view(view);
            let page = meta.and_then(|meta| meta.scan(&from, &to, READ_MAX));
            page.map_err(meta_error)
        };
        let page = self.shared.reading(read).await?;
        self.looked_at += page.len() as u64 + 1;
        if page.len() == READ_MAX
            && let Some((last, _)) = page.last()
            && let Ok(KeyKind::Cookie { seq, .. }) = last.kind()
        {
            let next = seq.saturating_add(1);
            self.dirs.push(NewNames { dir, next, end });
        }
        for (_, value) in page {
            let entry = CookieRecord::decode(&value);
            let entry = entry.map_err(|error| meta_error(error.into()))?;
            self.name_came(dir, entry).await?;
        }
        Ok(())
    }

    /// The later snapshot has a name that the earlier one does not have at its place.
    async fn name_came(&mut self, dir: Ino, entry: CookieRecord) -> Result<(), FsError> {
        let before = self.dirent(Side::Earlier, dir, &entry.name).await?;
        if before.is_some_and(|before| before.ino == entry.ino) {
            return Ok(());
        }
        // The inode has a name, so its record exists.
        let Some(record) = self.linked(Side::Later, entry.ino).await? else {
            return Ok(());
        };
        let mut size_before_bytes = None;
        let change = match self.linked(Side::Earlier, entry.ino).await? {
            Some(_) => match self.moved_from(entry.ino).await? {
                Some(from) => ChangeKind::Renamed { from },
                None => ChangeKind::Created,
            },
            None => {
                if record.kind == InodeKind::Directory {
                    self.dirs.push(NewNames {
                        dir: entry.ino,
                        next: COOKIE_FIRST,
                        end: record.cookie_next,
                    });
                }
                let mut change = ChangeKind::Created;
                if let Some(before) = before
                    && self.linked(Side::Later, before.ino).await?.is_none()
                    && let Some(before) = self.linked(Side::Earlier, before.ino).await?
                {
                    size_before_bytes = Some(before.size_bytes);
                    change = ChangeKind::Modified {
                        data: true,
                        attributes: true,
                        replaced: true,
                    };
                }
                change
            }
        };
        let place = self.place(Side::Later, dir).await?.child(&entry.name);
        self.tell(change, place, entry.ino, &record, size_before_bytes);
        Ok(())
    }

    /// One of the former names of a file, as a path.
    async fn moved_from(&mut self, ino: Ino) -> Result<Option<Vec<u8>>, FsError> {
        let Some(names) = self.moved.get_mut(&ino) else {
            return Ok(None);
        };
        let name = names.pop();
        if names.is_empty() {
            self.moved.remove(&ino);
        }
        let Some((dir, name)) = name else {
            return Ok(None);
        };
        self.moved_count = self.moved_count.saturating_sub(1);
        match self.place(Side::Earlier, dir).await?.child(&name) {
            DirLocation::At(path) => Ok(Some(path.to_vec())),
            DirLocation::Hidden | DirLocation::Unknown => Ok(None),
        }
    }

    async fn inode_changed(&mut self, version: &DeadVersion) -> Result<(), FsError> {
        let (Ok(KeyKind::Inode(ino)), Some(value)) = (version.key.kind(), &version.value) else {
            return Ok(());
        };
        let before = decode_inode(value)?;
        if ino == HIDDEN || before.nlink == 0 {
            return Ok(());
        }
        let Some(after) = self.linked(Side::Later, ino).await? else {
            return Ok(());
        };
        if after.kind == InodeKind::Directory && !planted::is(Bug::DiffMissesNewNames) {
            self.dirs.push(NewNames {
                dir: ino,
                next: before.cookie_next,
                end: after.cookie_next,
            });
        }
        let data = after.kind == InodeKind::Regular
            && ((before.size_bytes, before.used_bytes) != (after.size_bytes, after.used_bytes)
                || self.has_died(&Key::extents_past(ino, 0)).await?);
        let of = |record: &InodeRecord| {
            // A new name changes the time of its directory.
            let is_dir = record.kind == InodeKind::Directory;
            let mtime = (!is_dir).then_some(record.mtime);
            let names = record.xattr_names_len_bytes;
            (record.mode, record.uid, record.gid, names, mtime)
        };
        let attributes = of(&before) != of(&after) || self.has_died(&Key::xattrs(ino)).await?;
        if !data && !attributes {
            return Ok(());
        }
        let change = ChangeKind::Modified {
            data,
            attributes,
            replaced: false,
        };
        let place = self.place(Side::Later, ino).await?;
        self.tell(change, place, ino, &after, Some(before.size_bytes));
        Ok(())
    }

    /// Whether a version of a key in the range died that the earlier snapshot sees, and the later snapshot sees
    /// another value. With very many old versions, the answer is yes.
    async fn has_died(&mut self, (from, to): &(Key, Key)) -> Result<bool, FsError> {
        let mut after: Option<(Key, Generation)> = None;
        let mut count = 0;
        loop {
            let shared = self.shared.clone();
            let read = || {
                let after = after.as_ref().map(|(key, death)| (key, *death));
                let found = shared.meta.history(from, to, after, READ_MAX);
                found.map_err(meta_error)
            };
            let page = self.shared.reading(read).await?;
            count += page.len() as u64;
            self.looked_at += page.len() as u64 + 1;
            let (earlier, later) = (self.earlier, self.later);
            let has_died = |version: &DeadVersion| {
                version.birth <= earlier && earlier < version.death && version.death <= later
            };
            if count >= VERSIONS_MAX {
                return Ok(true);
            }
            for version in page.iter().filter(|version| has_died(version)) {
                // A rollback of the volume may put back a value that had died.
                if self.get(Side::Later, &version.key).await? != version.value {
                    return Ok(true);
                }
            }
            match page.last() {
                Some(last) if page.len() == READ_MAX => {
                    after = Some((last.key.clone(), last.death));
                }
                _ => return Ok(false),
            }
        }
    }

    async fn left(&mut self) -> Result<(), FsError> {
        let Some(ino) = self.moved.keys().next().copied() else {
            self.stage = Stage::Done;
            return Ok(());
        };
        for (dir, name) in self.moved.remove(&ino).unwrap_or_default() {
            self.deleted(dir, &name, ino).await?;
        }
        Ok(())
    }

    async fn deleted(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Result<(), FsError> {
        let Some(record) = self.linked(Side::Earlier, ino).await? else {
            return Ok(());
        };
        let place = self.place(Side::Earlier, dir).await?.child(name);
        self.tell(ChangeKind::Deleted, place, ino, &record, None);
        Ok(())
    }

    fn tell(
        &mut self,
        change: ChangeKind,
        place: DirLocation,
        ino: Ino,
        record: &InodeRecord,
        size_before_bytes: Option<u64>,
    ) {
        let path = match place {
            DirLocation::At(path) if path.is_empty() => Some(b"/".to_vec()),
            DirLocation::At(path) => Some(path.to_vec()),
            DirLocation::Hidden => return,
            DirLocation::Unknown => None,
        };
        self.found.push_back(FileChange {
            change,
            path,
            ino,
            kind: kind_of(record.kind),
            size_bytes: record.size_bytes,
            size_before_bytes,
        });
    }

    /// The place of an inode in one of the snapshots.
    async fn place(&mut self, side: Side, ino: Ino) -> Result<DirLocation, FsError> {
        let mut below: Vec<(Ino, Bytes)> = Vec::new();
        let mut at = ino;
        let mut place = loop {
            match at {
                ROOT => break DirLocation::At(Arc::default()),
                HIDDEN => break DirLocation::Hidden,
                _ => {}
            }
            if let Some(known) = self.paths[side as usize].get(&at) {
                break known.clone();
            }
            if below.len() == DEPTH_MAX {
                break DirLocation::Unknown;
            }
            let Some(record) = self.linked(side, at).await? else {
                break DirLocation::Unknown;
            };
            let entry = Key::cookie(record.parent, record.cookie);
            let Some(entry) = self.get(side, &entry).await? else {
                break DirLocation::Unknown;
            };
            let entry = CookieRecord::decode(&entry);
            let entry = entry.map_err(|error| meta_error(error.into()))?;
            if entry.ino != at {
                break DirLocation::Unknown;
            }
            below.push((at, entry.name));
            at = record.parent;
        };
        for (child, name) in below.into_iter().rev() {
            place = place.child(&name);
            // Paths of files are seldom needed twice.
            if child != ino {
                self.remember(side, child, &place);
            }
        }
        Ok(place)
    }

    fn remember(&mut self, side: Side, dir: Ino, place: &DirLocation) {
        let paths = &mut self.paths[side as usize];
        if paths.len() >= PATHS_MAX {
            paths.clear();
        }
        paths.insert(dir, place.clone());
    }

    /// Reads an inode that has a name in one of the snapshots.
    async fn linked(&mut self, side: Side, ino: Ino) -> Result<Option<InodeRecord>, FsError> {
        let stored = self.get(side, &Key::inode(ino)).await?;
        let record = stored.map(|stored| decode_inode(&stored)).transpose()?;
        Ok(record.filter(|record| record.nlink > 0))
    }

    async fn dirent(
        &mut self,
        side: Side,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<DirentRecord>, FsError> {
        let stored = self.get(side, &Key::dirent(dir, name)).await?;
        let decode = |stored: Bytes| {
            let entry = DirentRecord::decode(&stored);
            entry.map_err(|error| meta_error(error.into()))
        };
        stored.map(decode).transpose()
    }

    async fn get(&mut self, side: Side, key: &Key) -> Result<Option<Bytes>, FsError> {
        self.looked_at += 1;
        let shared = self.shared.clone();
        let view = View::Snapshot(match side {
            Side::Earlier => self.earlier,
            Side::Later => self.later,
        });
        let read = || {
            let found = shared.meta.view(view).and_then(|meta| meta.get(key));
            found.map_err(meta_error)
        };
        self.shared.reading(read).await
    }
}

fn decode_inode(stored: &[u8]) -> Result<InodeRecord, FsError> {
    InodeRecord::decode(stored).map_err(|error| meta_error(MetaError::from(error)))
}

/// The directory and name in a version of a cookie.
fn cookie_of(version: &DeadVersion) -> Result<Option<(Ino, CookieRecord)>, FsError> {
    let (Ok(KeyKind::Cookie { dir, .. }), Some(value)) = (version.key.kind(), &version.value)
    else {
        return Ok(None);
    };
    let entry = CookieRecord::decode(value);
    let entry = entry.map_err(|error| meta_error(error.into()))?;
    Ok(Some((dir, entry)))
}
