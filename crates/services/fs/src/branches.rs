//! Clones of volumes. A clone begins with the contents of a snapshot of another volume, and lives in that volume's store.
//!
//! Owns: the list of branches, where an inode of a branch is read, and how a branch gets its own copy of an inode.
//! Must not know: how a clone is named, who may use it.
//!
//! The number of an inode contains its branch ([`Ino::branch`]). A branch has no keys of an inode that it inherited:
//! readers find that inode in the snapshot that the branch began from, which stays as long as the branch. Before the
//! first change of such an inode, the branch takes it over: the inode gets a record, names, attributes and extents in
//! the branch, and the extents share the bytes. From then on it is an ordinary inode, so other modules need no
//! knowledge of branches. When a branch removes an inherited inode, a mark remains ([`Key::gone`]).
//!
//! [`VolumeCore::free_branches`] removes a deleted branch like the files in it; this includes the volume that the store
//! was made for. The snapshots that other branches began from stay as long as those branches, and nobody else sees
//! them any more.
//!
//! To take over a large file or directory takes several batches; the last one adds the record. Until then, all
//! readers use the snapshot, and after a crash the branch continues where it stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::{Branch, Generation, Ino, View, VolumeId};
use cairn_meta::{
    Batch, CookieRecord, DirentRecord, InodeKind, InodeRecord, Key, KeyKind, MetaError, MetaStore,
    Owner, SpaceDelta, Ticket, root_tree, taken_over_tree,
};
use parking_lot::RwLock;

use crate::extents::Extent;
use crate::inode::Inode;
use crate::quota::{owner_of, usage_of};
use crate::share::Sharers;
use crate::tasks::let_others_run;
use crate::types::FsError;
use crate::volume::{ROOT, VolumeCore, meta_error};

/// Extents that one batch takes over, and entries of a directory that are read at a time.
const TAKE_COUNT_MAX: usize = 1024;
/// Attempts to read extents again after their records were moved.
const ATTEMPTS_MAX: u32 = 100;
/// Maximum number of inodes that are taken over concurrently.
const TURNS: usize = 64;
/// The value of a [`Key::gone`] mark.
pub(crate) const MARK_VERSION: u8 = 1;

/// A clone in the store of the volume that it began from.
#[derive(Debug)]
pub(crate) struct BranchState {
    pub volume: VolumeId,
    /// The snapshot that the clone began from, and the branch of that snapshot.
    pub base: Generation,
    pub from: Branch,
    ino_mark: u64,
    ending: Ending,
}

impl BranchState {
    pub fn is_deleted(&self) -> bool {
        self.ending.is_deleted()
    }
}

/// The progress of the deletion of a branch.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    is_deleted: AtomicBool,
    /// The branch has nothing left but snapshots that other branches began from.
    is_emptied: AtomicBool,
}

impl Ending {
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    fn is_freeing(&self) -> bool {
        self.is_deleted() && !self.is_emptied.load(Ordering::Acquire)
    }
}

/// The branches of a store.
pub(crate) struct Branches {
    /// All branches but the main one.
    all: RwLock<BTreeMap<Branch, Arc<BranchState>>>,
    /// The deletion of the main branch, the volume that the store was made for.
    main: Ending,
    /// Held by a task that takes over an inode; the inode's number selects the lock.
    turns: Vec<tokio::sync::Mutex<()>>,
    /// Held by a task that makes a clone.
    pub beginning: tokio::sync::Mutex<()>,
    /// Held by a task that frees a branch.
    pub freeing: tokio::sync::Mutex<()>,
    /// Notified when removed inodes are gone.
    pub reaped: tokio::sync::Notify,
}

impl Branches {
    pub fn open(meta: &MetaStore) -> Result<Self, MetaError> {
        let branches = Self {
            all: RwLock::default(),
            main: Ending::default(),
            turns: (0..TURNS).map(|_| Default::default()).collect(),
            beginning: Default::default(),
            freeing: Default::default(),
            reaped: Default::default(),
        };
        branches.load(meta);
        let is_deleted = meta.live().get(&Key::gone(ROOT))?.is_some();
        branches
            .main
            .is_deleted
            .store(is_deleted, Ordering::Release);
        Ok(branches)
    }

    /// Loads the branches that the metadata lists.
    pub fn load(&self, meta: &MetaStore) {
        // Locked first, so no branch ends between the reading and the list.
        let mut all = self.all.write();
        let mut found = BTreeMap::new();
        for (base, record) in meta.snapshots() {
            for clone in &record.clones {
                let known = all.get(&clone.branch);
                let is_emptied = known.is_some_and(|known| {
                    let is_emptied = &known.ending.is_emptied;
                    is_emptied.load(Ordering::Acquire)
                });
                let state = BranchState {
                    volume: clone.volume,
                    base,
                    from: record.branch,
                    ino_mark: clone.ino_mark,
                    ending: Ending {
                        is_deleted: AtomicBool::new(clone.is_deleted),
                        is_emptied: AtomicBool::new(is_emptied),
                    },
                };
                found.insert(clone.branch, Arc::new(state));
            }
        }
        *all = found;
    }

    pub fn get(&self, branch: Branch) -> Option<Arc<BranchState>> {
        self.all.read().get(&branch).cloned()
    }

    pub fn all(&self) -> Vec<(Branch, Arc<BranchState>)> {
        let all = self.all.read();
        all.iter()
            .map(|(branch, state)| (*branch, Arc::clone(state)))
            .collect()
    }

    /// Whether a branch exists and is not deleted.
    pub fn is_there(&self, branch: Branch) -> bool {
        match branch.is_main() {
            true => !self.main.is_deleted(),
            false => {
                let all = self.all.read();
                all.get(&branch).is_some_and(|state| !state.is_deleted())
            }
        }
    }

    /// The number of branches that are deleted and not yet freed.
    pub fn freeing_count(&self) -> u64 {
        let all = self.all.read();
        let endings = all.values().map(|state| &state.ending);
        let freeing = endings.chain([&self.main]).filter(|it| it.is_freeing());
        freeing.count() as u64
    }

    /// Whether a deleted branch still has something to free.
    pub fn is_freeing(&self, branch: Branch) -> bool {
        match branch.is_main() {
            true => self.main.is_freeing(),
            false => self
                .get(branch)
                .is_some_and(|state| state.ending.is_freeing()),
        }
    }

    /// Notes that a deleted branch is freed, but for the snapshots that other branches began from.
    pub fn note_emptied(&self, branch: Branch) {
        match branch.is_main() {
            true => self.main.is_emptied.store(true, Ordering::Release),
            false => {
                if let Some(state) = self.get(branch) {
                    state.ending.is_emptied.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Ends a branch if `submit` succeeds. From then on, only the task that frees the branch changes anything in it.
    pub fn end<T, E>(&self, branch: Branch, submit: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        // All callers that checked the branch before have submitted when this lock is granted.
        let all = self.all.write();
        let submitted = submit()?;
        match branch.is_main() {
            true => self.main.is_deleted.store(true, Ordering::Release),
            false => {
                if let Some(state) = all.get(&branch) {
                    state.ending.is_deleted.store(true, Ordering::Release);
                }
            }
        }
        Ok(submitted)
    }

    /// Runs `submit` if the branch exists, and keeps the branch from ending meanwhile.
    pub fn within<T>(&self, branch: Branch, submit: impl FnOnce() -> T) -> Result<T, FsError> {
        let all = self.all.read();
        let is_there = match branch.is_main() {
            true => !self.main.is_deleted(),
            false => all.get(&branch).is_some_and(|state| !state.is_deleted()),
        };
        match is_there {
            true => Ok(submit()),
            false => Err(FsError::Stale),
        }
    }

    /// Fails if the branch does not exist; the branch may end at any time after that.
    pub fn require(&self, branch: Branch) -> Result<(), FsError> {
        match self.is_there(branch) {
            true => Ok(()),
            false => Err(FsError::Stale),
        }
    }
}

/// Inodes and bytes of files count in the main volume alone: each branch has its own sums.
pub(crate) fn of_volume(ino: Ino, delta: SpaceDelta) -> SpaceDelta {
    match ino.branch().is_main() {
        true => delta,
        false => SpaceDelta {
            inodes: 0,
            file_bytes: 0,
            ..delta
        },
    }
}

impl VolumeCore {
    /// Finds where to read an inode that `view` names: in the view itself, or in the snapshot that its branch began
    /// from. Does not check that the inode exists.
    pub(crate) fn stored_at(&self, view: View, ino: Ino) -> Result<(View, Ino), FsError> {
        let (mut view, mut ino) = (view, ino);
        while !ino.branch().is_main() {
            if view.is_live() && self.inodes.has(ino) {
                break;
            }
            let meta = self.meta.view(view).map_err(meta_error)?;
            let is_there = |key: &Key| meta.get(key).map(|found| found.is_some());
            if is_there(&Key::inode(ino)).map_err(meta_error)? {
                break;
            }
            // Checked after the record: an inode that is removed meanwhile has either its record or this mark.
            if is_there(&Key::gone(ino)).map_err(meta_error)? {
                return Err(FsError::Stale);
            }
            let branch = self.branches.get(ino.branch()).ok_or(FsError::Stale)?;
            view = View::Snapshot(branch.base);
            ino = ino.in_branch(branch.from);
        }
        Ok((view, ino))
    }

    /// The inherited inode, if the branch has not taken it over.
    pub(crate) fn base_inode(&self, ino: Ino) -> Result<Option<Arc<Inode>>, FsError> {
        let (View::Snapshot(generation), base) = self.stored_at(View::Live, ino)? else {
            return Ok(None);
        };
        let inode = self.inode_of_snapshot(generation, base)?;
        // The inode had lost its last name.
        match inode.lock().removed {
            true => Err(FsError::Stale),
            false => Ok(Some(Arc::clone(&inode))),
        }
    }

    /// A number for a new inode of a branch.
    pub(crate) fn allocate_ino(&self, branch: Branch) -> Ino {
        self.meta.allocate_ino().in_branch(branch)
    }

    /// Deletes the record of an inode. Leaves a mark if the branch inherited the inode.
    pub(crate) fn delete_inode(&self, ino: Ino, batch: &mut Batch) {
        batch.delete(Key::inode(ino));
        let branch = self.branches.get(ino.branch());
        let began_with_it = |branch: &Arc<BranchState>| {
            let number = ino.in_branch(Branch::MAIN).0;
            !branch.is_deleted() && (number < branch.ino_mark || number > u64::MAX / 2)
        };
        if branch.as_ref().is_some_and(began_with_it) {
            batch.put(Key::gone(ino), vec![MARK_VERSION]);
        }
    }

    /// The directory that the inode names as its parent.
    pub(crate) fn parent_of(&self, ino: Ino) -> Result<Ino, FsError> {
        let inode = self.inode_in(View::Live, ino)?;
        let parent = inode.lock().record.parent;
        Ok(parent.in_branch(ino.branch()))
    }

    /// Takes over an inherited inode into its branch, unless the branch has done so. No reader sees a difference.
    pub(crate) async fn take_over(&self, ino: Ino) -> Result<(), FsError> {
        let turn = &self.branches.turns[(ino.0 % TURNS as u64) as usize];
        let _turn = turn.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            // Also admitted when the disks are full: the caller may want to remove the inode.
            self.meta.admit().await;
            let Some(base) = self.meta.reading(|| self.base_inode(ino)).await? else {
                return Ok(());
            };
            let mut taking = Taking {
                shared: self,
                ino,
                base: &base,
                batch: Batch::new(),
                sharers: Sharers::default(),
                used_bytes: 0,
                stored_bytes: 0,
            };
            if taking.all().await? {
                return Ok(());
            }
            // The snapshot shows the new places of moved records as soon as the state has them.
            self.await_moves().await;
        }
        Err(FsError::TryLater)
    }
}

/// An inode that a branch is taking over.
struct Taking<'a> {
    shared: &'a VolumeCore,
    ino: Ino,
    base: &'a Inode,
    batch: Batch,
    sharers: Sharers,
    /// Bytes of the extents that the branch's inode has by now, with those in the batch.
    used_bytes: u64,
    stored_bytes: u64,
}

impl Taking<'_> {
    /// Returns false, with the inode incomplete, if a record was moved meanwhile.
    async fn all(&mut self) -> Result<bool, FsError> {
        let mut record = self.base.lock().record.clone();
        if record.kind == InodeKind::Directory {
            self.entries().await?;
        }
        if record.xattr_names_len_bytes > 0 {
            self.xattrs().await?;
        }
        if record.used_bytes > 0 && !self.extents().await? {
            return Ok(false);
        }
        let branch = self.ino.branch();
        record.parent = record.parent.in_branch(branch);
        record.tree = root_tree(branch);
        record.used_bytes = self.used_bytes;
        record.stored_bytes = self.stored_bytes;
        self.finish(&record)
    }

    fn finish(&mut self, record: &InodeRecord) -> Result<bool, FsError> {
        let mut usage = usage_of(record);
        self.batch.put(Key::inode(self.ino), record.encode());
        self.batch.charge(owner_of(record), usage);
        let taken_over = Owner {
            tree: taken_over_tree(self.ino.branch()),
            uid: 0,
            gid: 0,
        };
        usage.stored_bytes = 0;
        self.batch.charge(taken_over, usage);
        Ok(self.submit()?.is_some())
    }

    /// Submits the gathered batch, all or nothing; `None` if a record was moved.
    fn submit(&mut self) -> Result<Option<Ticket>, FsError> {
        let mut batch = std::mem::take(&mut self.batch);
        let sharers = std::mem::take(&mut self.sharers);
        sharers.put(&mut batch);
        let shared = self.shared;
        shared.require_serving()?;
        let segments = sharers.segments();
        let submit = || shared.meta.submit_sharing(batch, &segments);
        match shared.branches.within(self.ino.branch(), submit)? {
            Some(Ticket::REFUSED) => Err(FsError::Fenced),
            ticket => Ok(ticket),
        }
    }

    /// Submits a batch that is not the last one, so that memory stays bounded.
    async fn step(&mut self) -> Result<bool, FsError> {
        let Some(ticket) = self.submit()? else {
            return Ok(false);
        };
        self.shared.durable(ticket).await?;
        self.shared.meta.admit().await;
        let_others_run().await;
        Ok(true)
    }

    fn is_full(&self) -> bool {
        self.batch.len_bytes() >= self.shared.meta.batch_bytes_max() / 2
    }

    async fn entries(&mut self) -> Result<(), FsError> {
        let branch = self.ino.branch();
        let (mut from, to) = Key::cookies_after(self.base.ino, 0);
        loop {
            let page = self.page(&from, &to).await?;
            for (key, value) in &page {
                let entry =
                    CookieRecord::decode(value).map_err(|error| meta_error(error.into()))?;
                let KeyKind::Cookie { seq, .. } =
                    key.kind().map_err(|error| meta_error(error.into()))?
                else {
                    continue;
                };
                let ino = entry.ino.in_branch(branch);
                let dirent = DirentRecord {
                    kind: entry.kind,
                    ino,
                    cookie: seq,
                };
                let name = Key::dirent(self.ino, &entry.name);
                self.batch.put(name, dirent.encode());
                let entry = CookieRecord { ino, ..entry };
                self.batch.put(Key::cookie(self.ino, seq), entry.encode());
            }
            let Some((last, _)) = page.last().filter(|_| page.len() == TAKE_COUNT_MAX) else {
                return Ok(());
            };
            from = last.successor();
            if self.is_full() {
                self.step().await?;
            }
        }
    }

    async fn xattrs(&mut self) -> Result<(), FsError> {
        let (mut from, to) = Key::xattrs(self.base.ino);
        loop {
            let page = self.page(&from, &to).await?;
            for (key, value) in &page {
                let KeyKind::Xattr { name, .. } =
                    key.kind().map_err(|error| meta_error(error.into()))?
                else {
                    continue;
                };
                // The value is encrypted for its inode.
                let values = &self.shared.xattr_values;
                let value = values.read(self.base.ino, name, value)?;
                let stored = values.stored(self.ino, name, &value);
                self.batch.put(Key::xattr(self.ino, name), stored);
                if self.is_full() {
                    self.step().await?;
                }
            }
            let Some((last, _)) = page.last().filter(|_| page.len() == TAKE_COUNT_MAX) else {
                return Ok(());
            };
            from = last.successor();
        }
    }

    /// A page of the inherited keys.
    async fn page(&self, from: &Key, to: &Key) -> Result<Vec<(Key, bytes::Bytes)>, FsError> {
        let read = || {
            let view = self.shared.meta.view(self.base.view);
            let page = view.and_then(|view| view.scan(from, to, TAKE_COUNT_MAX));
            page.map_err(meta_error)
        };
        self.shared.meta.reading(read).await
    }

    /// Returns false if a record was moved.
    async fn extents(&mut self) -> Result<bool, FsError> {
        // Extents that exist already were taken over before a crash, or before a record was moved.
        let mut at = 0;
        loop {
            let own = self.some_extents(View::Live, self.ino, at).await?;
            for extent in &own {
                self.count(extent);
                at = extent.end;
            }
            if own.len() < TAKE_COUNT_MAX {
                break;
            }
        }
        loop {
            let extents = self.some_extents(self.base.view, self.base.ino, at).await?;
            let mut space = SpaceDelta::default();
            let mut live: BTreeMap<cairn_base::SegmentId, (i64, i64)> = BTreeMap::new();
            for extent in &extents {
                self.count(extent);
                at = extent.end;
                if let Some(segment) = extent.segment() {
                    let (bytes, records) = live.entry(segment).or_default();
                    *bytes += extent.live_bytes();
                    *records += 1;
                }
                space.stored_bytes += extent.live_bytes();
                let key = Key::extent(self.ino, extent.end);
                self.batch.put(key, extent.to_stored().encode());
                self.sharers.add(self.ino, extent);
            }
            for (segment, (bytes, records)) in live {
                self.batch.segment_delta(segment, bytes, records);
            }
            self.batch.space(space);
            if extents.len() < TAKE_COUNT_MAX {
                return Ok(true);
            }
            if !self.step().await? {
                return Ok(false);
            }
        }
    }

    async fn some_extents(&self, view: View, ino: Ino, at: u64) -> Result<Vec<Extent>, FsError> {
        let (from, to) = Key::extents_past(ino, at);
        let read = || {
            let mut extents = Vec::new();
            self.shared.scan_extents(view, &from, &to, |extent| {
                extents.push(extent);
                extents.len() < TAKE_COUNT_MAX
            })?;
            Ok::<_, FsError>(extents)
        };
        self.shared.meta.reading(read).await
    }

    fn count(&mut self, extent: &Extent) {
        self.used_bytes += extent.len_bytes();
        self.stored_bytes += extent.live_bytes() as u64;
    }
}
