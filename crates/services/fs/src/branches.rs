//! Clones of volumes: volumes that began as what a snapshot shows of another, in the store of that one.
//!
//! Owns: which branches there are, where an inode of one is read, and how a branch gets an inode of its own.
//! Must not know: how a clone is called, who may use it.
//!
//! The number of an inode says which branch it is of ([`Ino::branch`]). An inode that a branch began with has no keys in it:
//! it is read where the branch began, in a snapshot that stays for as long. Before it is changed for the first time, the
//! branch takes it over: it gets a record, names, attributes and extents of its own, which share the bytes. From then on it is
//! an inode as any other, so that nothing else has to know of branches. What a branch removes leaves a mark ([`Key::gone`]).
//!
//! A branch that is deleted goes as its files would ([`VolumeCore::free_branches`]), the one that the store was made for, too. What
//! others began with stays for as long as they do: the snapshots that they began from, which nobody else sees any more.
//!
//! Taking over a large file or directory takes several batches; the record comes with the last. Until then everybody reads
//! where the branch began, and what a crash leaves is gone on with.

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
/// How often extents are read again that were moved just then.
const ATTEMPTS_MAX: u32 = 100;
/// Inodes that are taken over at the same time, at most.
const TURNS: usize = 64;
/// The value of a mark.
pub(crate) const MARK_VERSION: u8 = 1;

/// A clone in the store of the volume that it began from.
#[derive(Debug)]
pub(crate) struct BranchState {
    pub volume: VolumeId,
    /// The snapshot that it began from, and whose that is.
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

/// How far the end of a branch has come.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    is_deleted: AtomicBool,
    /// There is nothing of it any more but snapshots that others began from.
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
    /// All but the volume that the store was made for.
    all: RwLock<BTreeMap<Branch, Arc<BranchState>>>,
    /// Of that volume.
    main: Ending,
    /// Held by who takes an inode over, by its number.
    turns: Vec<tokio::sync::Mutex<()>>,
    /// Held by who begins a clone.
    pub beginning: tokio::sync::Mutex<()>,
    /// Held by who frees one.
    pub freeing: tokio::sync::Mutex<()>,
    /// Removed inodes are gone.
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

    /// Follows what the metadata knows.
    pub fn load(&self, meta: &MetaStore) {
        // Locked first: nobody ends one between the look and the list.
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

    /// Whether a branch is there, and not deleted.
    pub fn is_there(&self, branch: Branch) -> bool {
        match branch.is_main() {
            true => !self.main.is_deleted(),
            false => {
                let all = self.all.read();
                all.get(&branch).is_some_and(|state| !state.is_deleted())
            }
        }
    }

    /// How many are deleted and not freed yet.
    pub fn freeing_count(&self) -> u64 {
        let all = self.all.read();
        let endings = all.values().map(|state| &state.ending);
        let freeing = endings.chain([&self.main]).filter(|it| it.is_freeing());
        freeing.count() as u64
    }

    /// Whether there is something of a deleted branch to be freed.
    pub fn is_freeing(&self, branch: Branch) -> bool {
        match branch.is_main() {
            true => self.main.is_freeing(),
            false => self
                .get(branch)
                .is_some_and(|state| state.ending.is_freeing()),
        }
    }

    /// All that a deleted branch had is freed, but for what others began with.
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

    /// Ends a branch if `submit` succeeds: from then on nobody changes anything of it but who frees it.
    pub fn end<T, E>(&self, branch: Branch, submit: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        // Whoever looked before has submitted when this can be locked.
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

    /// Runs `submit` if the branch is there, and not while it ends.
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

    /// Fails if the branch is not there; it may end at any time.
    pub fn require(&self, branch: Branch) -> Result<(), FsError> {
        match self.is_there(branch) {
            true => Ok(()),
            false => Err(FsError::Stale),
        }
    }
}

/// Inodes and bytes of files count in the volume alone: a branch has sums of its own.
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
    /// Where an inode is read that is named in `view`: there, or where its branch began. Whether it is there is not known.
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
            // Looked at after that: what is removed meanwhile has one of them.
            if is_there(&Key::gone(ino)).map_err(meta_error)? {
                return Err(FsError::Stale);
            }
            let branch = self.branches.get(ino.branch()).ok_or(FsError::Stale)?;
            view = View::Snapshot(branch.base);
            ino = ino.in_branch(branch.from);
        }
        Ok((view, ino))
    }

    /// The inode that a branch began with, if it is read there.
    pub(crate) fn base_inode(&self, ino: Ino) -> Result<Option<Arc<Inode>>, FsError> {
        let (View::Snapshot(generation), base) = self.stored_at(View::Live, ino)? else {
            return Ok(None);
        };
        let inode = self.inode_of_snapshot(generation, base)?;
        // It had no name any more.
        match inode.lock().removed {
            true => Err(FsError::Stale),
            false => Ok(Some(Arc::clone(&inode))),
        }
    }

    /// A number for a new inode of a branch.
    pub(crate) fn allocate_ino(&self, branch: Branch) -> Ino {
        self.meta.allocate_ino().in_branch(branch)
    }

    /// Deletes the record of an inode. If a branch began with it, it leaves a mark.
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

    /// The directory that an inode says it is in.
    pub(crate) fn parent_of(&self, ino: Ino) -> Result<Ino, FsError> {
        let inode = self.inode_in(View::Live, ino)?;
        let parent = inode.lock().record.parent;
        Ok(parent.in_branch(ino.branch()))
    }

    /// Gives a branch an inode of its own that it began with, if it has it not yet. Nothing that anybody sees changes.
    pub(crate) async fn take_over(&self, ino: Ino) -> Result<(), FsError> {
        let turn = &self.branches.turns[(ino.0 % TURNS as u64) as usize];
        let _turn = turn.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            // Also on disks that are full: it may be there to be removed.
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
            // The snapshot shows where records are that were moved as soon as the state has that.
            self.await_moves().await;
        }
        Err(FsError::TryLater)
    }
}

/// An inode that a branch takes over.
struct Taking<'a> {
    shared: &'a VolumeCore,
    ino: Ino,
    base: &'a Inode,
    batch: Batch,
    sharers: Sharers,
    /// Of the extents that are its own by now, those in the batch included.
    used_bytes: u64,
    stored_bytes: u64,
}

impl Taking<'_> {
    /// False, and not all of it: a record was moved elsewhere meanwhile.
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

    /// Submits what there is, all or nothing; `None` if a record is elsewhere by now.
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

    /// Submits a batch that is not the last; more and more of them must not wait in memory.
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
                // Encrypted for the inode that it is of.
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

    /// A page of what the branch began with.
    async fn page(&self, from: &Key, to: &Key) -> Result<Vec<(Key, bytes::Bytes)>, FsError> {
        let read = || {
            let view = self.shared.meta.view(self.base.view);
            let page = view.and_then(|view| view.scan(from, to, TAKE_COUNT_MAX));
            page.map_err(meta_error)
        };
        self.shared.meta.reading(read).await
    }

    /// False if a record is elsewhere by now.
    async fn extents(&mut self) -> Result<bool, FsError> {
        // What is there was taken over before a crash, or before a record was moved.
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
