//! The callers' interface of a store.
//!
//! Owns: submitting, waiting, counters, ids, the life of a store. Must not know: log files, RocksDB.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::{Branch, DiskId, Epoch, Generation, Ino, LogPosition, SegmentId, View, VolumeId};
use cairn_formats::metadata::{
    CLONE_COUNT_MAX, CloneRecord, JournalEntry, Key, QuotaKey, SegmentRecord, SnapshotRecord,
    UsageRecord,
};
use futures_util::future::{Either, select};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::batch::{Batch, Ticket};
use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::held::CommitHold;
use crate::log::CommitLog;
use crate::open;
use crate::progress::Durable;
use crate::segments::{self, SegmentTotals};
use crate::settings::{JournalPressure, MetaStats, VolumeCounters};
use crate::shared::{INO_CHUNK, Pending, SEGMENT_CHUNK, Stop, StoreCore};
use crate::snapshots::{
    NewSnapshot, SNAPSHOT_COUNT_MAX, SnapshotChange, SnapshotError, check_name,
};
use crate::state::versions::{self, DeadVersion, GoneSince};
use crate::state::without_waiting;
use crate::view::MetaView;
use crate::volume_log::VolumeLog;

/// Share of the log's limit, in percent, above which the journal should be folded.
const FOLD_PERCENT: u64 = 50;
/// Loads into memory for one operation, before it blocks its thread.
const BRING_COUNT_MAX: usize = 64;
/// Longest wait for the outcome of a change whose store has ended: closing or abandoning the store, and opening the
/// next.
const OUTCOME_WAIT_MAX: Duration = Duration::from_secs(120);
/// The log of an idle volume may take the room of this many log files.
const QUIET_LOG_FILES: u64 = 2;
/// Limit of the rounds that fetch a copy of the state while newer ones are made.
const FETCH_ROUNDS: usize = 3;

/// Space use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUsage {
    pub id: SegmentId,
    /// Room for data, without parity.
    pub data_bytes: u64,
    /// Bytes on disks, or before the move to a tier, including parity and copies.
    pub protected_bytes: u64,
    pub live_bytes: u64,
    pub live_records: u64,
    /// The segment is noted as sealed: it gets no more records.
    pub sealed: bool,
    /// The segment is in a tier, and takes no room on disks.
    pub is_remote: bool,
    /// The last noted day (since 1970) on which clients used the segment; 0 if there is none yet.
    pub used_day: u32,
}

impl SegmentUsage {
    /// Room on disks, without parity.
    pub fn disk_bytes(&self) -> u64 {
        match self.is_remote {
            true => 0,
            false => self.data_bytes,
        }
    }

    /// Room beside the live records; 0 if there is no live record, or if more may come.
    pub fn sparse_bytes(&self) -> u64 {
        match self.sealed && self.live_records > 0 {
            true => self.data_bytes.saturating_sub(self.live_bytes),
            false => 0,
        }
    }
}

/// Results of opening.
#[derive(Debug)]
pub struct Recovered {
    pub epoch: Epoch,
    /// Changes of keys in the log that the state lacked.
    pub replayed_entries: u64,
    /// Entries that no fold covers, in log order. They stay in the log until they are folded.
    pub journal: Vec<JournalEntry>,
}

/// The metadata of one volume, open for reading and writing. All methods may be called from any thread. If it is
/// dropped without [`MetaStore::close`], it stops as in a crash: nothing durable is lost.
pub struct MetaStore<L: CommitLog = VolumeLog> {
    pub(crate) shared: Arc<StoreCore>,
    pub(crate) log: L,
}

impl<L: CommitLog> Drop for MetaStore<L> {
    fn drop(&mut self) {
        self.shared.ask_stop(Stop::Now);
    }
}

impl MetaStore {
    /// Frees, in the background, disk space of the log of an idle volume: makes the state durable with its copies, so
    /// that the log can be cut, and removes spare files. On several nodes the disks do that themselves. Call it again
    /// at growing intervals: a disk may have had no room for its copy.
    pub fn give_back_log(&self) {
        let shared = self.shared.clone();
        if !matches!(self.log, VolumeLog::Mirrored(_))
            || shared.stop() != Stop::No
            || shared.read_only.is_some()
        {
            return;
        }
        self.shared.tasks.spawn("meta-quiet", async move {
            let retained_bytes = shared.log_status.lock().retained_bytes;
            if retained_bytes > QUIET_LOG_FILES * shared.settings.log_file_bytes {
                if let Err(error) = shared.ship_now().await {
                    tracing::debug!("the log of a volume that nobody changes is not cut: {error}");
                    return;
                }
                // An error ends the store, which reports it.
                let _ = shared.durable(shared.submit_quiet()).await;
            }
            shared.are_spares_unwanted.store(true, Ordering::Release);
            shared.work.notify_one();
        });
    }
}

impl<L: CommitLog> MetaStore<L> {
    /// The log, for operations of one kind of log.
    pub fn log(&self) -> &L {
        &self.log
    }

    pub fn epoch(&self) -> Epoch {
        self.shared.term.epoch
    }

    /// The generation of current changes.
    pub fn generation(&self) -> Generation {
        self.shared.pending.lock().counters.record.generation
    }

    /// The volume as it is now, including submitted changes that are not durable yet.
    pub fn live(&self) -> MetaView<'_> {
        MetaView::new(&self.shared, View::Live)
    }

    /// The volume in a view; [`MetaError::NoSuchView`] if the view does not exist.
    pub fn view(&self, view: View) -> Result<MetaView<'_>, MetaError> {
        match view {
            View::Live => Ok(self.live()),
            View::Snapshot(generation) if self.shared.shows(generation) => {
                Ok(MetaView::new(&self.shared, view))
            }
            View::Snapshot(_) => Err(self.shared.no_such_view(view)),
        }
    }

    /// The visible snapshots, oldest first.
    pub fn snapshots(&self) -> Vec<(Generation, SnapshotRecord)> {
        let pending = self.shared.pending.lock();
        let seen = pending.counters.snapshots.seen();
        seen.map(|(at, record)| (at, record.clone())).collect()
    }

    /// Number of visible snapshots.
    pub fn snapshot_count(&self) -> u64 {
        self.shared.pending.lock().counters.snapshots.seen().count() as u64
    }

    /// The snapshot that the volume is to be restored from before clients see it, if there is one.
    pub fn restoring(&self) -> Option<(Generation, SnapshotRecord)> {
        let pending = self.shared.pending.lock();
        let found = pending.counters.snapshots.restoring();
        found.map(|(at, record)| (at, record.clone()))
    }

    /// The deleted snapshots that still hold space to be freed.
    pub fn deleted_snapshots(&self) -> Vec<(Generation, SnapshotRecord)> {
        let pending = self.shared.pending.lock();
        let all = pending.counters.snapshots.iter();
        let deleted = all.filter(|(_, record)| record.is_deleted);
        deleted.map(|(at, record)| (*at, record.clone())).collect()
    }

    /// Takes a snapshot of all changes submitted so far, and ends the generation. The snapshot is visible when the
    /// ticket is applied. It excludes changes that are in the journal alone; callers fold those first.
    pub fn take_snapshot(&self, new: NewSnapshot) -> Result<(Generation, Ticket), SnapshotError> {
        self.take_snapshot_of(Branch::MAIN, new)
    }

    /// Takes a snapshot of a branch.
    pub fn take_snapshot_of(
        &self,
        branch: Branch,
        new: NewSnapshot,
    ) -> Result<(Generation, Ticket), SnapshotError> {
        let taken = Self::take_snapshots(&[(self, branch)], &new).map_err(|(_, error)| error)?;
        taken.into_iter().next().ok_or(SnapshotError::Closed)
    }

    /// Takes snapshots of several stores at one instant: no store gets a batch between the first snapshot and the last.
    /// So if a change of one store was durable before a change of another was submitted, no group of snapshots has the
    /// second without the first.
    ///
    /// Fails with the index of the store that refuses. Then no snapshot was begun, unless a store is closed meanwhile
    /// ([`SnapshotError::Closed`]). A store that is given twice fails the second time with [`SnapshotError::Exists`].
    pub fn take_snapshots(
        stores: &[(&Self, Branch)],
        new: &NewSnapshot,
    ) -> Result<Vec<(Generation, Ticket)>, (usize, SnapshotError)> {
        check_name(&new.name).map_err(|error| (0, error))?;
        // In one order for all callers: two calls with the same stores wait for one another without a deadlock.
        let place = |index: &usize| {
            stores
                .get(*index)
                .map(|(store, _)| Arc::as_ptr(&store.shared))
        };
        let mut order: Vec<usize> = (0..stores.len()).collect();
        order.sort_by_key(place);
        if let Some(pair) = order
            .windows(2)
            .find(|pair| place(&pair[0]) == place(&pair[1]))
        {
            return Err((pair[1], SnapshotError::Exists));
        }
        let mut held: Vec<_> = order
            .iter()
            .filter_map(|index| Some((*index, stores.get(*index)?)))
            .map(|(index, (store, branch))| (index, *branch, &store.shared))
            .map(|(index, branch, shared)| (index, branch, shared, shared.pending.lock()))
            .collect();
        for (index, branch, _, pending) in &held {
            let snapshots = &pending.counters.snapshots;
            if snapshots.named(*branch, &new.name).is_some() {
                return Err((*index, SnapshotError::Exists));
            }
            if snapshots.len() >= SNAPSHOT_COUNT_MAX {
                return Err((*index, SnapshotError::TooMany));
            }
        }
        let mut all = Vec::with_capacity(held.len());
        for (index, branch, shared, pending) in &mut held {
            let (inodes, file_bytes) = pending.counters.counts_of(*branch);
            let generation = pending.counters.record.generation;
            let record = SnapshotRecord {
                name: new.name.clone(),
                taken: new.taken,
                is_locked: false,
                is_deleted: false,
                is_restoring: false,
                schedule: new.schedule.clone(),
                inodes,
                file_bytes,
                undecided_group: new.undecided_group,
                branch: *branch,
                clones: Vec::new(),
            };
            let change = SnapshotChange::Take(record);
            // Before the snapshot exists: it must not look like one that has always existed.
            let mut taken = shared.taken.lock();
            let ticket = shared.submit_locked(pending, Batch::of_snapshot(change));
            if ticket == Ticket::REFUSED {
                return Err((*index, SnapshotError::Closed));
            }
            taken.insert(generation, ticket.0);
            all.push((*index, (generation, ticket)));
        }
        all.sort_by_key(|(index, _)| *index);
        Ok(all.into_iter().map(|(_, taken)| taken).collect())
    }

    /// Holds back batches submitted from now on, until the result is dropped: readers see them, but they do not become
    /// durable.
    pub fn hold(&self) -> CommitHold {
        CommitHold::begin(&self.shared)
    }

    /// Changes the record of a visible snapshot: name, lock, deletion.
    pub fn change_snapshot(
        &self,
        generation: Generation,
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> Result<Ticket, SnapshotError> {
        let mut pending = self.shared.pending.lock();
        let snapshots = &pending.counters.snapshots;
        let old = snapshots.seen_at(generation)?;
        let mut record = old.clone();
        change(&mut record);
        if record.is_deleted && old.is_locked {
            return Err(SnapshotError::Locked);
        }
        if record.is_deleted && !old.clones.is_empty() {
            return Err(SnapshotError::HasClones);
        }
        // Branches come and go elsewhere.
        record.branch = old.branch;
        record.clones.clone_from(&old.clones);
        let others = snapshots.restoring().filter(|(at, _)| *at != generation);
        if record.is_deleted && old.is_restoring || record.is_restoring && others.is_some() {
            return Err(SnapshotError::Restoring);
        }
        if record.name != old.name {
            check_name(&record.name)?;
            if snapshots.named(record.branch, &record.name).is_some() {
                return Err(SnapshotError::Exists);
            }
        }
        let change = SnapshotChange::Put(generation, record);
        self.submit_snapshot(&mut pending, change)
    }

    /// Begins a branch from a snapshot, with a number that no branch of the store ever had. `nameless`: inodes without
    /// a name that the snapshot counts, and their bytes.
    pub fn begin_branch(
        &self,
        generation: Generation,
        volume: VolumeId,
        nameless: (u64, u64),
    ) -> Result<(Branch, Ticket), SnapshotError> {
        let mut pending = self.shared.pending.lock();
        let counters = &pending.counters;
        let mut record = counters.snapshots.seen_at(generation)?.clone();
        let branch = Branch(counters.record.branch_next);
        if branch > Branch::LAST || record.clones.len() >= CLONE_COUNT_MAX {
            return Err(SnapshotError::TooManyClones);
        }
        if record.is_restoring {
            return Err(SnapshotError::Restoring);
        }
        record.clones.push(CloneRecord {
            branch,
            volume,
            is_deleted: false,
            ino_mark: pending.ino_next,
            nameless_inodes: nameless.0,
            nameless_bytes: nameless.1,
        });
        let ticket = self.submit_snapshot(&mut pending, SnapshotChange::Put(generation, record))?;
        Ok((branch, ticket))
    }

    /// Notes that a branch is deleted, or that it no longer exists: its own space is freed and no branch began from it.
    pub fn end_branch(&self, branch: Branch, is_freed: bool) -> Result<Ticket, SnapshotError> {
        let mut pending = self.shared.pending.lock();
        let snapshots = &pending.counters.snapshots;
        let (generation, record) = snapshots.base_of(branch).ok_or(SnapshotError::NotFound)?;
        let own = snapshots
            .values()
            .filter(|snapshot| snapshot.branch == branch);
        for snapshot in own {
            if is_freed {
                return Err(SnapshotError::HasClones);
            }
            if snapshot.is_locked {
                return Err(SnapshotError::Locked);
            }
        }
        let mut record = record.clone();
        match is_freed {
            true => record.clones.retain(|clone| clone.branch != branch),
            false => {
                let mut clones = record.clones.iter_mut();
                if let Some(clone) = clones.find(|clone| clone.branch == branch) {
                    clone.is_deleted = true;
                }
            }
        }
        self.submit_snapshot(&mut pending, SnapshotChange::Put(generation, record))
    }

    /// Number of inodes, and bytes of files, of a branch.
    pub fn counts_of(&self, branch: Branch) -> (u64, u64) {
        self.shared.pending.lock().counters.counts_of(branch)
    }

    /// Forgets a deleted snapshot after all space that only it held was freed.
    pub fn remove_snapshot(&self, generation: Generation) -> Result<Ticket, SnapshotError> {
        let mut pending = self.shared.pending.lock();
        match pending.counters.snapshots.get(&generation) {
            Some(record) if record.is_deleted => {}
            _ => return Err(SnapshotError::NotFound),
        }
        self.submit_snapshot(&mut pending, SnapshotChange::Remove(generation))
    }

    fn submit_snapshot(
        &self,
        pending: &mut Pending,
        change: SnapshotChange,
    ) -> Result<Ticket, SnapshotError> {
        let batch = Batch::of_snapshot(change);
        match self.shared.submit_locked(pending, batch) {
            Ticket::REFUSED => Err(SnapshotError::Closed),
            ticket => Ok(ticket),
        }
    }

    /// Up to `max` versions that no snapshot sees once `generation` is gone, visible or deleted; continues at `from`.
    /// Reads the applied state: wait with [`Self::applied`] for batches submitted before.
    pub fn versions_of(
        &self,
        generation: Generation,
        from: Option<&Key>,
        max: usize,
    ) -> Result<Vec<DeadVersion>, MetaError> {
        self.shared.check()?;
        let (branch, span) = {
            let pending = self.shared.pending.lock();
            let counters = &pending.counters;
            let snapshots = &counters.snapshots;
            let branch = snapshots
                .get(&generation)
                .map_or(Branch::MAIN, |record| record.branch);
            let (after, up_to) = snapshots.neighbours(branch, generation);
            let up_to = up_to.unwrap_or(counters.record.generation);
            (branch, (after, up_to))
        };
        let found = versions::dead_between(&*self.shared.state, branch, span, from, max);
        found.map_err(|error| self.shared.told(error))
    }

    /// Up to `max` versions of keys with `from <= key < to` that the snapshot of generation `seen` shows and a later
    /// one (`up_to`) hides, in the order of their marks, starting at the mark `at`. The snapshot exists, and `up_to` is
    /// a snapshot or the current generation. The cost grows with the changes between the two, and not with the size of
    /// the volume. Reads the applied state.
    pub fn gone_since(
        &self,
        seen: Generation,
        up_to: Generation,
        (from, to): (&Key, &Key),
        at: Option<&Key>,
        max: usize,
    ) -> Result<GoneSince, MetaError> {
        self.shared.check()?;
        let span = versions::Span { seen, up_to };
        let found = versions::gone_since(&*self.shared.state, span, (from, to), at, max);
        found.map_err(|error| self.shared.told(error))
    }

    /// Up to `max` versions in the history of keys with `from <= key < to`, seen by any snapshot, that died after the
    /// version that `after` names. Reads the applied state.
    pub fn history(
        &self,
        from: &Key,
        to: &Key,
        after: Option<(&Key, Generation)>,
        max: usize,
    ) -> Result<Vec<DeadVersion>, MetaError> {
        self.shared.check()?;
        let found = versions::history(&*self.shared.state, from, to, after, max);
        found.map_err(|error| self.shared.told(error))
    }

    /// A version in the history as it is now, if it still exists.
    pub fn dead_version(&self, version: &DeadVersion) -> Result<Option<DeadVersion>, MetaError> {
        let found = versions::dead_version(&*self.shared.state, version);
        found.map_err(|error| self.shared.told(error))
    }

    /// Resolves when the state holds everything up to the ticket. On a full disk that waits for space.
    pub async fn applied(&self, ticket: Ticket) -> Result<(), MetaError> {
        self.durable(ticket).await?;
        loop {
            let more = self.shared.applied_more.notified();
            if self.shared.applied.lock().position >= ticket.0 {
                return Ok(());
            }
            self.shared.check()?;
            more.await;
        }
    }

    /// Runs `op`, which reads, without blocking this thread for uncached entries: these are loaded into memory, and
    /// `op` is called again. So `op` must not have changed anything when a read fails. As a last resort `op` may block:
    /// when the disk returns an error, or other readers evict the loaded entries.
    pub async fn reading<T, E>(&self, mut op: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        for _ in 0..BRING_COUNT_MAX {
            let wanted = match without_waiting(&mut op) {
                (Err(_), Some(wanted)) => wanted,
                (done, _) => return done,
            };
            // Boxed, because few operations wait: otherwise each future would include its size.
            if !Box::pin(wanted.bring(&*self.shared.clock)).await {
                break;
            }
        }
        op()
    }

    /// Makes the batch visible at once and queues it for the log, in the order of calls. Never waits for I/O. A batch
    /// that is too large, or comes after the end of the store, changes nothing and gets [`Ticket::REFUSED`].
    pub fn submit(&self, batch: Batch) -> Ticket {
        self.submit_in(batch).0
    }

    /// As [`Self::submit`]; also returns the generation, in which all put values are born.
    pub fn submit_in(&self, batch: Batch) -> (Ticket, Generation) {
        self.shared.submit(batch)
    }

    /// As [`Self::submit`], for a batch that refers to records of another writer. Requires that each of these segments
    /// has a live record at this moment, so that no task has taken it for dead. Otherwise it returns `None` and changes
    /// nothing.
    pub fn submit_sharing(&self, batch: Batch, segments: &[SegmentId]) -> Option<Ticket> {
        self.submit_sharing_in(batch, segments)
            .map(|(ticket, _)| ticket)
    }

    /// As [`Self::submit_sharing`]; also returns the generation, as [`Self::submit_in`] does.
    pub fn submit_sharing_in(
        &self,
        batch: Batch,
        segments: &[SegmentId],
    ) -> Option<(Ticket, Generation)> {
        self.shared.submit_sharing(batch, segments)
    }

    /// The ticket of the last batch, of any caller.
    pub fn last_ticket(&self) -> Ticket {
        Ticket(LogPosition(
            self.shared.pending.lock().position_next.0.saturating_sub(1),
        ))
    }

    /// As [`Self::last_ticket`], ignoring the batch of [`Self::give_back_log`].
    pub fn last_change(&self) -> Ticket {
        Ticket(self.shared.last_change())
    }

    /// Resolves when everything up to the ticket is durable on all copies of the log. An error is final: the store
    /// refuses all later batches.
    pub fn durable(&self, ticket: Ticket) -> Durable {
        self.shared.durable(ticket)
    }

    /// As [`Self::durable`], for callers that acknowledge the change to clients. If the store ends before the outcome
    /// is known, and the settings name a succession, this waits a limited time for the volume to be opened again: a
    /// change found in the log took effect. An error means that the change did not, or that its outcome is unknown.
    pub async fn outcome(&self, ticket: Ticket) -> Result<(), MetaError> {
        let error = match self.durable(ticket).await {
            Err(error) if ticket != Ticket::REFUSED => error,
            known => return known,
        };
        let outcome = self.shared.progress.wait_for_outcome(ticket.0);
        let too_long = self.shared.clock.sleep(OUTCOME_WAIT_MAX);
        match select(outcome, too_long).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => Err(error),
        }
    }

    /// Whether the ticket is known to be durable, without waiting. After the end of a store only [`Self::durable`] can
    /// tell.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        self.shared.progress.is_durable(ticket.0)
    }

    /// Whether the volume's journal is encrypted. All other data in this store is unencrypted.
    pub fn is_encrypted(&self) -> bool {
        self.shared.settings.key.is_some()
    }

    /// Whether metadata has no space. Submitted batches are safe in the log; reads and deletions go on. Callers should
    /// add nothing meanwhile, because then deletions may have to wait, too.
    pub fn is_full(&self) -> bool {
        self.shared.is_full.load(Ordering::Acquire)
    }

    /// The reason for refusing changes, if the store was opened read-only ([`Self::open_to_read`]).
    pub fn read_only(&self) -> Option<&str> {
        self.shared.read_only.as_deref()
    }

    /// Waits while more bytes are submitted and not durable than the settings allow (Rule 6).
    pub async fn admit(&self) {
        let shared = &self.shared;
        loop {
            let woken = shared.admission.notified();
            let queued = shared.queued_bytes.load(Ordering::Acquire);
            if queued <= shared.settings.queue_bytes_max || shared.stop() != Stop::No {
                return;
            }
            woken.await;
        }
    }

    /// The volume's counters, including submitted batches.
    pub fn counters(&self) -> VolumeCounters {
        let pending = self.shared.pending.lock();
        let record = &pending.counters.record;
        VolumeCounters {
            inodes: record.inodes,
            file_bytes: record.file_bytes,
            stored_bytes: record.stored_bytes,
            history_bytes: record.history_bytes,
            segments: pending.counters.segments.len() as u64,
        }
    }

    /// Usage of trees, and of users and groups in them, including nested trees; in the order of the keys.
    pub fn usages(&self, keys: impl Iterator<Item = QuotaKey>) -> SmallVec<[UsageRecord; 4]> {
        let pending = self.shared.pending.lock();
        keys.map(|key| pending.counters.usages.total(&key))
            .collect()
    }

    /// Up to `max` sums for which `wanted` is true, in no order.
    pub fn find_usages(
        &self,
        max: usize,
        wanted: impl Fn(&QuotaKey) -> bool,
    ) -> Vec<(QuotaKey, UsageRecord)> {
        let pending = self.shared.pending.lock();
        pending.counters.usages.totals(max, wanted)
    }

    /// Whether any usage counts in a tree itself, without nested trees.
    pub fn is_tree_used(&self, tree: Ino) -> bool {
        let pending = self.shared.pending.lock();
        let mut all = pending.counters.usages.all_own();
        all.any(|(key, _)| key.tree == tree)
    }

    /// Usage of one key, without nested trees.
    pub fn own_usage(&self, key: &QuotaKey) -> UsageRecord {
        self.shared.pending.lock().counters.usages.own(key)
    }

    /// Usage of each tree, without nested trees, as stored.
    pub fn own_usages(&self) -> Vec<(QuotaKey, UsageRecord)> {
        let pending = self.shared.pending.lock();
        let all = pending.counters.usages.all_own();
        all.map(|(key, usage)| (*key, *usage)).collect()
    }

    /// Sets the parent of each tree; the parent of unnamed trees is the volume. Not stored.
    pub fn set_tree_parents(&self, parents: FxHashMap<Ino, Ino>) {
        let mut pending = self.shared.pending.lock();
        pending.counters.usages.set_parents(parents);
    }

    pub fn segment(&self, id: SegmentId) -> Option<SegmentRecord> {
        self.shared
            .pending
            .lock()
            .counters
            .segments
            .get(&id)
            .cloned()
    }

    /// Space use of up to `max` segments, in order, from number `from` on. A walk in such parts copies little and never
    /// holds a lock for long.
    pub fn segment_usage(&self, from: SegmentId, max: usize) -> Vec<SegmentUsage> {
        let pending = self.shared.pending.lock();
        let some = pending.counters.segments.range(from..).take(max);
        some.map(|(id, record)| segments::usage(*id, record))
            .collect()
    }

    /// Sums over all segments, at a constant cost.
    pub fn segment_totals(&self) -> SegmentTotals {
        self.shared.pending.lock().counters.segments.totals()
    }

    /// Up to `max` segments without a live record.
    pub fn dead_segments(&self, max: usize) -> Vec<SegmentId> {
        let pending = self.shared.pending.lock();
        let dead = pending.counters.segments.dead().iter();
        dead.take(max).copied().collect()
    }

    /// Up to `max` segments in tiers, from number `from` on.
    pub fn remote_segments(&self, from: SegmentId, max: usize) -> Vec<(SegmentId, SegmentRecord)> {
        let pending = self.shared.pending.lock();
        let segments = &pending.counters.segments;
        let some = segments.remote().range(from..).take(max);
        some.filter_map(|id| Some((*id, segments.get(id)?.clone())))
            .collect()
    }

    /// Up to `max` segments that are not noted as sealed, from number `from` on.
    pub fn unsealed_segments(&self, from: SegmentId, max: usize) -> Vec<SegmentId> {
        let pending = self.shared.pending.lock();
        let unsealed = pending.counters.segments.unsealed().range(from..);
        unsealed.take(max).copied().collect()
    }

    pub fn segments(&self) -> Vec<(SegmentId, SegmentRecord)> {
        let pending = self.shared.pending.lock();
        let all = pending.counters.segments.iter();
        all.map(|(id, record)| (*id, record.clone())).collect()
    }

    /// Segments with a shard on a disk. Walks over all segments.
    pub fn segments_on(&self, disk: DiskId) -> Vec<(SegmentId, SegmentRecord)> {
        let pending = self.shared.pending.lock();
        let all = pending.counters.segments.iter();
        let on_it = all.filter(|(_, record)| record.disks.contains(&disk));
        on_it.map(|(id, record)| (*id, record.clone())).collect()
    }

    /// A number that no inode of this volume ever had, even across crashes. Starts at 2: 1 is the root.
    pub fn allocate_ino(&self) -> Ino {
        let mut pending = self.shared.pending.lock();
        let ino = pending.ino_next;
        pending.ino_next += 1;
        let reserved = &mut pending.counters.record.ino_reserved;
        if *reserved - ino < INO_CHUNK / 2 {
            *reserved += INO_CHUNK;
        }
        Ino(ino)
    }

    /// The inode number allocated last.
    pub fn ino_last(&self) -> Ino {
        Ino(self.shared.pending.lock().ino_next.saturating_sub(1))
    }

    /// A number that no segment of this volume ever had, even across crashes. Starts at 1.
    pub fn allocate_segment(&self) -> SegmentId {
        let mut pending = self.shared.pending.lock();
        let id = pending.segment_next;
        pending.segment_next += 1;
        let reserved = &mut pending.counters.record.segment_reserved;
        if *reserved - id < SEGMENT_CHUNK / 2 {
            *reserved += SEGMENT_CHUNK;
        }
        SegmentId(id)
    }

    /// The part of the log that the journal retains; `fs` folds when this asks for it.
    pub fn journal_pressure(&self) -> JournalPressure {
        let log_bytes = self.shared.log_status.lock().retained_bytes;
        let log_bytes_max = self.shared.settings.log_bytes_max;
        let log_bytes_max = log_bytes_max.min(self.shared.log_room_bytes());
        let (oldest, data_bytes) = {
            let journal = self.shared.journal.lock();
            (journal.oldest(), journal.data_bytes())
        };
        let is_high = log_bytes > log_bytes_max / 100 * FOLD_PERCENT;
        let states = self.shared.states_through();
        JournalPressure {
            data_bytes,
            log_bytes,
            log_bytes_max,
            oldest,
            fold_through: oldest
                .filter(|_| is_high)
                .map(|_| self.shared.progress.durable()),
            holds_log: oldest.is_some_and(|oldest| states.is_some_and(|states| oldest <= states)),
        }
    }

    /// Limit of one batch, by [`Batch::len_bytes`]; the store refuses a larger one.
    pub fn batch_bytes_max(&self) -> usize {
        self.shared.settings.batch_bytes_max()
    }

    /// Files with unfolded journal entries at or before `through`, in no order.
    pub fn journal_inodes(&self, through: LogPosition) -> Vec<Ino> {
        self.shared.journal.lock().inodes_through(through)
    }

    /// Makes everything submitted before durable, and flushes the applied state.
    pub async fn flush(&self) -> Result<(), MetaError> {
        self.durable(self.last_ticket()).await?;
        let _one_at_a_time = self.shared.shipping.lock().await;
        self.shared.flush_now().await.map(|_| ())
    }

    /// Flushes the state and ships a checkpoint to as many other disks as copies are wanted.
    pub async fn ship(&self) -> Result<(), MetaError> {
        self.durable(self.last_ticket()).await?;
        self.shared.ship_now().await
    }

    /// Fetches the current copy of the state to the first of `disks` that accepts it. This store must not work on any
    /// of them. The next owner that opens the volume there need not fetch the copy while clients wait. Only in a
    /// cluster.
    pub async fn fetch_copy(&self, disks: Vec<(DiskId, Arc<dyn Disk>)>) -> Result<(), MetaError> {
        let Some(remote) = &self.shared.remote else {
            return Ok(());
        };
        let disks = DiskSet::new(self.shared.disks.volume, disks, 1);
        let mut rounds = 0;
        loop {
            let counts = remote.newest();
            let fetched = open::fetch(remote, &disks).await.map(drop);
            rounds += 1;
            // Files of a copy that is replaced meanwhile may be gone. A newer copy reuses most files of the present
            // one.
            if remote.newest() == counts || rounds >= FETCH_ROUNDS {
                return fetched;
            }
        }
    }

    /// Whether copies of the state are made now, or will be without a further event.
    #[cfg(test)]
    pub fn makes_copies(&self) -> bool {
        let is_making = [&self.shared.is_ship_running, &self.shared.is_ship_wanted];
        let is_making = is_making.iter().any(|it| it.load(Ordering::SeqCst));
        let remote = self.shared.remote.as_ref();
        is_making || remote.is_some_and(|remote| remote.could_be_better())
    }

    /// The reason why the store failed, if it did; open the volume again on other disks.
    pub fn failure(&self) -> Option<MetaError> {
        let reason = self.shared.progress.stop_reason();
        reason.filter(|reason| !matches!(reason, MetaError::Closed))
    }

    /// Stops accepting batches, makes everything durable and ships it, so that the next start replays nothing. The
    /// state stays open until the last handle of this store is dropped.
    pub async fn close(&self) -> Result<(), MetaError> {
        self.end(Stop::Drained).await;
        match self.shared.progress.stop_reason() {
            Some(MetaError::Closed) | None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Stops at once, as a crash would, and waits until all tasks of the store have ended.
    pub async fn abort(&self) {
        self.end(Stop::Now).await;
    }

    /// Abandons the store without waiting, because some task waits for a disk that may never answer. Later results of
    /// such tasks are reported to no caller, and the store begins no writes of log or copies any more. So the volume
    /// can be opened again on other disks when the writes in progress there have completed.
    pub fn abandon(&self) {
        let shared = &self.shared;
        shared.progress.fence(MetaError::Closed);
        self.log.stop();
        shared.disks.give_all_up();
        shared.state.leave();
        shared.ask_stop(Stop::Now);
        shared.leave_superseded(|_| true);
        shared.admission.notify_waiters();
        shared.applied_more.notify_waiters();
    }

    async fn end(&self, stop: Stop) {
        self.shared.ask_stop(stop);
        self.shared.tasks.idle().await;
        self.shared.progress.stop(MetaError::Closed);
        self.shared.admission.notify_waiters();
        self.shared.applied_more.notify_waiters();
        // Copies that a caller requested may still be in progress without a waiting caller: none of them may overwrite
        // a store opened in the place of this one.
        self.shared.disks.end();
        drop(self.shared.shipping.lock().await);
    }

    pub fn stats(&self) -> MetaStats {
        self.shared.stats()
    }
}
