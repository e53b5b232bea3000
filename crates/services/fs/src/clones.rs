//! Clones of a volume: made and opened; volumes of a store: deleted and freed.
//!
//! Owns: how a clone begins, which conditions keep a volume from being deleted, and freeing the data that only a
//! deleted volume had. Must not know: how inodes of a clone are read (`branches`), how it is named.
//!
//! A clone begins with one commit, whatever the size of the volume. Volumes of a store can be deleted in any order,
//! including the one that the store was made for. Deletion first notes that the volume is deleted. Then it deletes
//! the volume's snapshots, but for those that other volumes began from, and removes the inodes one by one. A crash
//! between two steps leaves a deleted volume, and the next start continues. No user sees the snapshots that are kept
//! for other volumes; each is deleted with the last volume that needs it.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{Branch, Generation, LogPosition, View, VolumeId};
use cairn_meta::{
    Batch, DeadVersion, Fold, InodeRecord, Key, KeyKind, MetaError, Owner, SnapshotError, Ticket,
    UsageDelta, taken_over_tree,
};

use crate::kernel::{Bare, Edit, Inode, MARK_VERSION, fold_journal, meta_error};
use crate::snapshots::{Snapshot, SnapshotFailure, extent_of};
use crate::tasks::let_others_run;
use crate::types::FsError;
use crate::volume::{CloneName, Fs, FsView, ROOT, VolumeCore};

/// Stored in place of the schedule in a snapshot that was taken for a clone. Such a snapshot is deleted with the last
/// clone that began from it.
const BEGINNING: &[u8] = b".volume-clone";
/// Keys that one step of freeing reads.
const FREE_KEYS_MAX: usize = 1024;
/// Interval between two checks whether the removed inodes are gone.
const REAPED_PAUSE: Duration = Duration::from_millis(100);

/// A clone in the store of the volume that it began from, or that began from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneOfVolume {
    pub branch: Branch,
    pub volume: VolumeId,
    /// The volume that it began from, which may be deleted; `None`: the volume that the store was made for.
    pub from: Option<VolumeId>,
    /// The snapshot of `from` that it began from.
    pub snapshot: Snapshot,
}

impl Fs {
    /// Makes a clone of the volume as it is now, or as one of its snapshots shows it: a volume with its own id that
    /// shares all bytes. Takes one or two commits, whatever the size. `volume` is the new id, which no volume may
    /// have had before.
    pub async fn clone_volume(
        &self,
        snapshot: Option<&[u8]>,
        volume: VolumeId,
    ) -> Result<CloneOfVolume, SnapshotFailure> {
        let shared = &self.shared;
        shared.require_serving()?;
        let _turn = shared.branches.beginning.lock().await;
        let base = match snapshot {
            Some(name) => self.snapshot(name).ok_or(SnapshotError::NotFound)?,
            None => {
                let name = format!("clone.{volume}");
                self.take_snapshot(name.as_bytes(), BEGINNING).await?
            }
        };
        let nameless = shared.count_nameless(self.branch(), base.generation);
        let begun = nameless
            .await
            .map_err(SnapshotFailure::from)
            .and_then(|nameless| {
                let begin = || shared.meta.begin_branch(base.generation, volume, nameless);
                Ok(shared.branches.within(self.branch(), begin)??)
            });
        let (branch, ticket) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                if snapshot.is_none() {
                    self.delete_snapshot(&base.name).await?;
                }
                return Err(error);
            }
        };
        shared.branches.load(&shared.meta);
        shared.snapshots.note_change(shared.now());
        shared.outcome(ticket).await?;
        let mut all = self.clones().into_iter();
        let made = all.find(|clone| clone.branch == branch);
        made.ok_or(SnapshotError::NotFound.into())
    }

    /// All clones in the store that are not deleted, whichever volume they began from.
    pub fn clones(&self) -> Vec<CloneOfVolume> {
        let shared = &self.shared;
        let all = shared.branches.all();
        let snapshots = shared.meta.snapshots();
        let volume_of = |branch| {
            let found = all.iter().find(|(of, _)| *of == branch);
            found.map(|(_, state)| state.volume)
        };
        let there = all.iter().filter(|(_, state)| !state.is_deleted());
        there
            .filter_map(|(branch, state)| {
                let base = snapshots.iter().find(|(at, _)| *at == state.base);
                let (at, record) = base?;
                Some(CloneOfVolume {
                    branch: *branch,
                    volume: state.volume,
                    from: volume_of(state.from),
                    snapshot: Snapshot::new(*at, record.clone(), &snapshots),
                })
            })
            .collect()
    }

    /// Opens a clone in this store as a volume; [`FsError::Stale`] if there is no such clone.
    pub fn open_clone(&self, volume: VolumeId, name: &str) -> Result<Self, FsError> {
        let all = self.clones();
        let found = all.iter().find(|clone| clone.volume == volume);
        let branch = found.ok_or(FsError::Stale)?.branch;
        let clone = CloneName {
            branch,
            volume,
            name: name.to_owned(),
        };
        let live = FsView {
            shared: self.shared.clone(),
            view: View::Live,
            clone: Some(Arc::new(clone)),
        };
        Ok(Self::of_view(live))
    }

    /// Deletes a clone. When this returns, nobody can use it; the data that only it had is freed in the background.
    ///
    /// [`SnapshotError::Locked`] if one of its snapshots is locked, [`SnapshotError::NotFound`] if there is no such
    /// clone.
    pub async fn delete_clone(&self, volume: VolumeId) -> Result<(), SnapshotFailure> {
        let shared = &self.shared;
        shared.require_serving()?;
        let all = self.clones();
        let found = all.iter().find(|clone| clone.volume == volume);
        let branch = found.ok_or(SnapshotError::NotFound)?.branch;
        let end = || shared.meta.end_branch(branch, false);
        self.ended(shared.branches.end(branch, end)?).await
    }

    /// Deletes the volume that the store was made for, whichever of the store's volumes `self` is. The store remains
    /// for its clones; the caller that deletes the last clone deletes the store.
    pub async fn delete_own_volume(&self) -> Result<(), SnapshotFailure> {
        let shared = &self.shared;
        shared.require_serving()?;
        let end = || {
            let snapshots = shared.meta.snapshots().into_iter();
            let mut own = snapshots.filter(|(_, record)| record.branch.is_main());
            if own.any(|(_, record)| record.is_locked) {
                return Err(SnapshotError::Locked);
            }
            let mut batch = Batch::new();
            batch.put(Key::gone(ROOT), vec![MARK_VERSION]);
            match shared.commit_bare(Bare::Branches, batch) {
                Ticket::REFUSED => Err(SnapshotError::Closed),
                ticket => Ok(ticket),
            }
        };
        self.ended(shared.branches.end(Branch::MAIN, end)?).await
    }

    async fn ended(&self, ticket: Ticket) -> Result<(), SnapshotFailure> {
        let shared = &self.shared;
        shared.snapshots.note_change(shared.now());
        shared.outcome(ticket).await?;
        shared.snapshots.freeing.notify_one();
        Ok(())
    }

    /// Whether the volume that the store was made for is deleted.
    pub fn is_own_volume_deleted(&self) -> bool {
        !self.shared.branches.is_there(Branch::MAIN)
    }

    /// Whether the store has clones, with those that are being freed.
    pub fn has_clones(&self) -> bool {
        !self.shared.branches.all().is_empty()
    }

    /// The number of volumes of the store that are deleted and not completely freed.
    pub fn volumes_freeing(&self) -> u64 {
        self.shared.branches.freeing_count()
    }
}

impl VolumeCore {
    /// Counts the inodes of a branch that have no name in a snapshot, and their bytes: their files were removed just
    /// before the snapshot. Takes time in proportion to their number.
    async fn count_nameless(
        &self,
        branch: Branch,
        generation: Generation,
    ) -> Result<(u64, u64), FsError> {
        let (mut from, to) = Key::orphans_of(branch);
        let mut nameless = (0, 0);
        loop {
            let read = || {
                let view = self.meta.view(View::Snapshot(generation))?;
                let page = view.scan(&from, &to, FREE_KEYS_MAX)?;
                let mut bytes = 0;
                for (key, _) in &page {
                    let KeyKind::Orphan(ino) = key.kind()? else {
                        continue;
                    };
                    let stored = view.get(&Key::inode(ino))?;
                    let record = stored
                        .map(|stored| InodeRecord::decode(&stored))
                        .transpose()?;
                    bytes += record.map_or(0, |record| record.used_bytes);
                }
                Ok::<_, MetaError>((page, bytes))
            };
            let (page, bytes) = self.meta.reading(read).await.map_err(meta_error)?;
            nameless.0 += page.len() as u64;
            nameless.1 += bytes;
            let Some((last, _)) = page.last().filter(|_| page.len() == FREE_KEYS_MAX) else {
                return Ok(nameless);
            };
            from = last.successor();
            let_others_run().await;
        }
    }

    /// Frees the data that only deleted volumes of the store had.
    pub(crate) async fn free_branches(self: &Arc<Self>) -> Result<(), FsError> {
        let _turn = self.branches.freeing.lock().await;
        // A clone of a clone has the higher number, and holds a snapshot of the other.
        for (branch, state) in self.branches.all().into_iter().rev() {
            if state.is_deleted() && self.free_branch(branch, state.volume).await? {
                let ended = self.meta.end_branch(branch, true);
                match ended {
                    Ok(ticket) => self.durable(ticket).await?,
                    Err(SnapshotError::Closed) => return Err(FsError::Fenced),
                    Err(error) => {
                        let why = format!("{error} (snapshot {})", state.base);
                        return Err(FsError::Io(why));
                    }
                }
                self.branches.load(&self.meta);
            }
        }
        if !self.branches.is_there(Branch::MAIN) {
            self.free_branch(Branch::MAIN, self.volume).await?;
        }
        self.forget_beginnings().await
    }

    /// Deletes snapshots that were taken for clones and whose clones are all gone.
    async fn forget_beginnings(&self) -> Result<(), FsError> {
        // A clone that is being made has a snapshot that no clone began from yet.
        let Ok(_turn) = self.branches.beginning.try_lock() else {
            return Ok(());
        };
        let mut has_any = false;
        for (generation, record) in self.meta.snapshots() {
            if record.schedule != BEGINNING || !record.clones.is_empty() {
                continue;
            }
            match self
                .meta
                .change_snapshot(generation, |record| record.is_deleted = true)
            {
                Ok(ticket) => self.durable(ticket).await?,
                Err(SnapshotError::Closed) => return Err(FsError::Fenced),
                // A user locked the snapshot, or another clone began from it.
                Err(_) => continue,
            }
            has_any = true;
        }
        match has_any {
            true => self.free_deleted().await,
            false => Ok(()),
        }
    }

    /// Frees the data of a deleted branch, but for the snapshots that other branches began from. Returns whether no
    /// such snapshot remains.
    async fn free_branch(
        self: &Arc<Self>,
        branch: Branch,
        volume: VolumeId,
    ) -> Result<bool, FsError> {
        // The snapshots first: otherwise the removed files would become history for them.
        let is_needed = !self.delete_snapshots_of(branch).await?;
        self.free_deleted().await?;
        if self.branches.is_freeing(branch) {
            while self.free_inodes(branch).await? > 0 {
                // The reaper is at work. A concurrent call that began earlier may have removed more inodes.
                let reaped = self.branches.reaped.notified();
                self.hurry_reaper();
                if !self.tasks.pause(REAPED_PAUSE, reaped).await {
                    return Err(FsError::Fenced);
                }
            }
            self.free_rest(branch).await?;
            self.branches.note_emptied(branch);
            self.gc_wake.notify_one();
            tracing::info!(store = %self.volume, %volume, "what only a deleted volume had is freed");
        }
        Ok(!is_needed)
    }

    /// Deletes the snapshots of a deleted branch that no clone began from. Returns whether those were all.
    async fn delete_snapshots_of(&self, branch: Branch) -> Result<bool, FsError> {
        let mut are_all = true;
        for (generation, record) in self.meta.snapshots() {
            if record.branch != branch {
                continue;
            }
            let deleted = self
                .meta
                .change_snapshot(generation, |record| record.is_deleted = true);
            match deleted {
                Ok(ticket) => self.durable(ticket).await?,
                Err(SnapshotError::HasClones) => are_all = false,
                Err(SnapshotError::Closed) => return Err(FsError::Fenced),
                Err(SnapshotError::NotFound) => {}
                Err(error) => return Err(FsError::Io(error.to_string())),
            }
        }
        Ok(are_all)
    }

    /// Removes all inodes that a branch owns; returns the number of remaining ones.
    async fn free_inodes(self: &Arc<Self>, branch: Branch) -> Result<u64, FsError> {
        let mut count = 0;
        for (from, to) in Key::inodes_of(branch) {
            count += self.free_inodes_between(from, &to).await?;
        }
        Ok(count)
    }

    async fn free_inodes_between(
        self: &Arc<Self>,
        mut from: Key,
        to: &Key,
    ) -> Result<u64, FsError> {
        let mut count = 0;
        loop {
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
            let read = || self.meta.live().scan(&from, to, FREE_KEYS_MAX);
            let page = self.meta.reading(read).await.map_err(meta_error)?;
            for (key, _) in &page {
                let Ok(KeyKind::Inode(ino)) = key.kind() else {
                    continue;
                };
                let inode = match self.reading(|| self.own_inode(ino)).await {
                    Ok(inode) => inode,
                    Err(FsError::Stale) => continue,
                    Err(error) => return Err(error),
                };
                count += 1;
                self.meta.admit().await;
                self.remove_of_branch(&inode);
            }
            let Some((key, _)) = page.last().filter(|_| page.len() == FREE_KEYS_MAX) else {
                return Ok(count);
            };
            from = key.successor();
            let_others_run().await;
        }
    }

    /// Marks an inode of a deleted branch as removed.
    fn remove_of_branch(self: &Arc<Self>, inode: &Arc<Inode>) {
        let ino = inode.ino;
        let state = inode.lock();
        if state.removed {
            return;
        }
        let mut change = self.begin_change(state);
        let mut edit = change.edit(ino);
        edit.record().nlink = 0;
        let Edit { state, batch, .. } = edit;
        state.removed = true;
        self.discard_dirty(state, 0);
        fold_journal(ino, state, &(0..u64::MAX), batch);
        batch.put(Key::orphan(ino), vec![1]);
        drop(change.commit());
        self.add_orphan(ino);
    }

    /// Deletes the other keys of a branch: names, marks, and inodes that it had begun to take over.
    async fn free_rest(self: &Arc<Self>, branch: Branch) -> Result<(), FsError> {
        for (mut from, to) in Key::of_branch(branch) {
            // The mark that the volume is deleted stays.
            let own = Key::gone(ROOT);
            if branch.is_main() && from <= own && own < to {
                from = own.successor();
            }
            loop {
                if self.tasks.is_stopping() {
                    return Err(FsError::Fenced);
                }
                let ticket = self.free_some_keys(branch, &from, &to)?;
                let Some(ticket) = ticket else { break };
                self.durable(ticket).await?;
                self.meta.admit().await;
                let_others_run().await;
            }
        }
        let mut batch = Batch::new();
        let taken_over = Owner {
            tree: taken_over_tree(branch),
            uid: 0,
            gid: 0,
        };
        let used = self.meta.own_usage(&taken_over.keys()[0]);
        let of = |value: u64| -i64::try_from(value).unwrap_or(i64::MAX);
        let back = UsageDelta {
            inodes: of(used.inodes),
            file_bytes: of(used.file_bytes),
            stored_bytes: of(used.stored_bytes),
        };
        batch.charge(taken_over, back);
        for ino in self.meta.journal_inodes(LogPosition(u64::MAX)) {
            if ino.branch() == branch {
                batch.fold(Fold {
                    ino,
                    start: 0,
                    end: u64::MAX,
                    through: self.meta.last_ticket().0,
                });
            }
        }
        self.durable(self.commit_bare(Bare::Branches, batch)).await
    }

    fn free_some_keys(
        &self,
        branch: Branch,
        from: &Key,
        to: &Key,
    ) -> Result<Option<Ticket>, FsError> {
        let mut batch = Batch::new();
        let mut found = Vec::new();
        let visit = |key: &[u8], value: &[u8], birth: Generation| {
            found.push((Key::parse(key), bytes::Bytes::copy_from_slice(value), birth));
            match found.len() < FREE_KEYS_MAX {
                true => std::ops::ControlFlow::Continue(()),
                false => std::ops::ControlFlow::Break(()),
            }
        };
        let scanned = self.meta.live().scan_with(from, to, visit);
        scanned.map_err(meta_error)?;
        if found.is_empty() {
            return Ok(None);
        }
        for (key, value, birth) in found {
            let key = key.map_err(|error| meta_error(error.into()))?;
            let version = DeadVersion {
                key,
                birth,
                death: birth,
                value: Some(value),
            };
            if let Some(extent) = extent_of(&version)? {
                let bytes = extent.live_bytes() as u64;
                batch.release(branch, extent.segment(), birth, bytes, 1);
            }
            batch.delete(version.key);
        }
        Ok(Some(self.commit_bare(Bare::Branches, batch)))
    }
}
