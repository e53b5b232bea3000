//! Clones of volumes. A clone begins with the contents of a snapshot of another volume, and lives in that volume's store.
//!
//! Owns: how a branch gets its own copy of an inode. The kernel knows which branches there are, and where an inode of a
//! branch is read. Must not know: how a clone is named, who may use it.
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

use cairn_base::{Ino, View};
use cairn_meta::{
    Batch, CookieRecord, DirentRecord, InodeKind, InodeRecord, Key, KeyKind, Owner, SpaceDelta,
    Ticket, root_tree, taken_over_tree,
};

use crate::kernel::{Bare, Extent, Inode, TURNS, meta_error, owner_of, usage_of};
use crate::share::Sharers;
use crate::tasks::let_others_run;
use crate::types::FsError;
use crate::volume::VolumeCore;

/// Extents that one batch takes over, and entries of a directory that are read at a time.
const TAKE_COUNT_MAX: usize = 1024;
/// Attempts to read extents again after their records were moved.
const ATTEMPTS_MAX: u32 = 100;

impl VolumeCore {
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
        Ok(self.store()?.is_some())
    }

    /// Stores the gathered batch, all or nothing; `None` if a record was moved.
    fn store(&mut self) -> Result<Option<Ticket>, FsError> {
        let mut batch = std::mem::take(&mut self.batch);
        let sharers = std::mem::take(&mut self.sharers);
        sharers.put(&mut batch);
        let shared = self.shared;
        shared.require_serving()?;
        let segments = sharers.segments();
        let store = || shared.commit_bare_sharing(Bare::Branches, batch, &segments);
        match shared.branches.within(self.ino.branch(), store)? {
            Some(Ticket::REFUSED) => Err(FsError::Fenced),
            ticket => Ok(ticket),
        }
    }

    /// Submits a batch that is not the last one, so that memory stays bounded.
    async fn step(&mut self) -> Result<bool, FsError> {
        let Some(ticket) = self.store()? else {
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
