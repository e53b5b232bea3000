//! The store as callers see it.
//!
//! Owns: submitting, waiting, counters, ids, the life of a store. Must not know: log files, RocksDB.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::env::Env;
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
use crate::log::ensemble::Seat;
use crate::open;
use crate::progress::Durable;
use crate::segments::{self, SegmentTotals};
use crate::settings::{JournalPressure, MetaSettings, MetaStats, VolumeCounters};
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
/// What one operation has brought into memory, one thing after the other, before it blocks its thread.
const BRING_COUNT_MAX: usize = 64;
/// How long a change whose store has ended is waited for: closing the store, or leaving it behind, and opening the next.
const OUTCOME_WAIT_MAX: Duration = Duration::from_secs(120);
/// The log of a volume that nobody changes may take the room of so many of its files.
const QUIET_LOG_FILES: u64 = 2;
/// A copy of the state is fetched so often at most while newer ones are made meanwhile.
const FETCH_ROUNDS: usize = 3;

/// What of a segment is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUsage {
    pub id: SegmentId,
    /// Room for data, parity apart.
    pub data_bytes: u64,
    /// What it takes on disks, or took before it went to a tier, parity and copies included.
    pub protected_bytes: u64,
    pub live_bytes: u64,
    pub live_records: u64,
    /// It was noted that nothing is added any more.
    pub sealed: bool,
    /// It is in a tier, and takes no room on disks.
    pub is_remote: bool,
    /// The day (since 1970) on which clients used it last, as far as that was noted; 0: it was not yet.
    pub used_day: u32,
}

impl SegmentUsage {
    /// Room that it takes on disks, parity apart.
    pub fn disk_bytes(&self) -> u64 {
        match self.is_remote {
            true => 0,
            false => self.data_bytes,
        }
    }

    /// Room that live records do not take; none where nothing is live, or where more may come.
    pub fn sparse_bytes(&self) -> u64 {
        match self.sealed && self.live_records > 0 {
            true => self.data_bytes.saturating_sub(self.live_bytes),
            false => 0,
        }
    }
}

/// What opening found.
#[derive(Debug)]
pub struct Recovered {
    pub epoch: Epoch,
    /// Changes of keys that the log had and the state had not.
    pub replayed_entries: u64,
    /// In log order; what no fold covers. They stay in the log until they are folded.
    pub journal: Vec<JournalEntry>,
}

/// The metadata of one volume, open for reading and writing. All methods may be called from any
/// thread. Dropped without [`MetaStore::close`], it stops as in a crash: nothing durable is lost.
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
    /// Makes an empty volume on `disks`, the first of which are preferred: the log on as many as
    /// copies are wanted, the state on the first. Refused where there is log of this volume.
    pub async fn create(
        env: Env,
        settings: MetaSettings,
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<Arc<Self>, MetaError> {
        open::create(env, settings, volume, disks).await
    }

    /// Opens a volume from the disks that are present: the newest state on any of them, then the
    /// log. A new epoch begins, on as many disks as copies are wanted, before this returns; what
    /// was on fewer disks is copied first.
    ///
    /// Refuses when acknowledged changes may be on missing disks only.
    pub async fn open(
        env: Env,
        settings: MetaSettings,
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<(Arc<Self>, Recovered), MetaError> {
        open::open(env, settings, volume, disks, Vec::new()).await
    }

    /// As [`MetaStore::open`], with draining disks: their log counts, and nothing is kept on them any more, their
    /// state included. They know from then on that the log goes on without them, so that none of them, opened alone,
    /// takes itself for enough. They are let go with [`VolumeLog::retire_disk`].
    pub async fn open_without(
        env: Env,
        settings: MetaSettings,
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
        draining: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<(Arc<Self>, Recovered), MetaError> {
        open::open(env, settings, volume, disks, draining).await
    }

    /// As [`Self::open_without`], where no disk has room for what an opening writes, with nothing written: the volume can be read, in
    /// all its views, and each batch is refused with [`MetaError::Full`] and `why`. What the log has beside the state is in memory.
    /// To be closed with [`Self::abort`] before it is opened for writing.
    pub async fn open_to_read(
        env: Env,
        settings: MetaSettings,
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
        draining: Vec<(DiskId, Arc<dyn Disk>)>,
        why: String,
    ) -> Result<(Arc<Self>, Recovered), MetaError> {
        open::open_to_read(env, settings, volume, disks, draining, why).await
    }

    /// The last epoch of a volume whose log is on the disks of this server alone, if there is one. The first owner of the
    /// volume in a cluster needs a later one; [`Self::take_over`] goes on with that log.
    pub async fn mirrored_epoch(
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<Option<Epoch>, MetaError> {
        open::mirrored_epoch(volume, disks).await
    }

    /// Opens a volume of a cluster that this node has taken over, or makes it if it is new. Waits for nobody: fails with
    /// [`MetaError::LogUnreachable`] as long as disks are missing that may hold what was acknowledged.
    pub async fn take_over(
        env: Env,
        settings: MetaSettings,
        seat: Seat,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<(Arc<Self>, Recovered), MetaError> {
        open::take_over(env, settings, seat, disks).await
    }

    /// Gives back, in the background, what the log of a volume takes on disks that nobody has changed for a while: the state is made
    /// durable with its copies, so that the log can be cut, and files that wait to be used again go. On several nodes the disks
    /// see to that. To be called again, later and later: a disk may have had no room for its copy.
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
                // An error ends the store, and is told then.
                let _ = shared.durable(shared.submit_quiet()).await;
            }
            shared.are_spares_unwanted.store(true, Ordering::Release);
            shared.work.notify_one();
        });
    }

    /// Gets ready to take a volume over that another node owns and is about to give away: the copy of the state that `seat`'s list
    /// names becomes the state on the first of `disks`, so that the takeover only opens it. Changes nothing elsewhere. The volume
    /// is open nowhere in this process, and is not opened before this ends.
    pub async fn prepare(
        env: Env,
        settings: MetaSettings,
        seat: Seat,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<(), MetaError> {
        open::prepare(env, settings, seat, disks).await
    }
}

impl<L: CommitLog> MetaStore<L> {
    /// The log, for what only one of its kind has.
    pub fn log(&self) -> &L {
        &self.log
    }

    pub fn epoch(&self) -> Epoch {
        self.shared.term.epoch
    }

    /// That changes are made in now.
    pub fn generation(&self) -> Generation {
        self.shared.pending.lock().counters.record.generation
    }

    /// The volume as it is now, with what was submitted and is not durable yet.
    pub fn live(&self) -> MetaView<'_> {
        MetaView::new(&self.shared, View::Live)
    }

    /// The volume in a view; [`MetaError::NoSuchView`] if there is none such.
    pub fn view(&self, view: View) -> Result<MetaView<'_>, MetaError> {
        match view {
            View::Live => Ok(self.live()),
            View::Snapshot(generation) if self.shared.shows(generation) => {
                Ok(MetaView::new(&self.shared, view))
            }
            View::Snapshot(_) => Err(self.shared.no_such_view(view)),
        }
    }

    /// The snapshots that can be seen, the oldest first.
    pub fn snapshots(&self) -> Vec<(Generation, SnapshotRecord)> {
        let pending = self.shared.pending.lock();
        let seen = pending.counters.snapshots.seen();
        seen.map(|(at, record)| (at, record.clone())).collect()
    }

    /// How many that is.
    pub fn snapshot_count(&self) -> u64 {
        self.shared.pending.lock().counters.snapshots.seen().count() as u64
    }

    /// The snapshot that the volume is to be restored from before anybody sees it, if there is one.
    pub fn restoring(&self) -> Option<(Generation, SnapshotRecord)> {
        let pending = self.shared.pending.lock();
        let found = pending.counters.snapshots.restoring();
        found.map(|(at, record)| (at, record.clone()))
    }

    /// Those that were deleted, and hold what is still to be freed.
    pub fn deleted_snapshots(&self) -> Vec<(Generation, SnapshotRecord)> {
        let pending = self.shared.pending.lock();
        let all = pending.counters.snapshots.iter();
        let deleted = all.filter(|(_, record)| record.is_deleted);
        deleted.map(|(at, record)| (*at, record.clone())).collect()
    }

    /// Ends the generation, and keeps what was submitted up to now: it can be seen when the ticket is applied. What is in
    /// the journal alone is not in it; callers see to that.
    pub fn take_snapshot(&self, new: NewSnapshot) -> Result<(Generation, Ticket), SnapshotError> {
        self.take_snapshot_of(Branch::MAIN, new)
    }

    /// Does that to a branch.
    pub fn take_snapshot_of(
        &self,
        branch: Branch,
        new: NewSnapshot,
    ) -> Result<(Generation, Ticket), SnapshotError> {
        let taken = Self::take_snapshots(&[(self, branch)], &new).map_err(|(_, error)| error)?;
        taken.into_iter().next().ok_or(SnapshotError::Closed)
    }

    /// Does that to several stores at one instant: nothing is submitted to any of them between the first and the last. So
    /// what was submitted to one of them after a change of another was durable is in no snapshot without that change.
    ///
    /// Fails with the index of the store that refuses; then no snapshot was begun, unless a store is closed meanwhile
    /// ([`SnapshotError::Closed`]). A store that is named twice has the name the second time ([`SnapshotError::Exists`]).
    pub fn take_snapshots(
        stores: &[(&Self, Branch)],
        new: &NewSnapshot,
    ) -> Result<Vec<(Generation, Ticket)>, (usize, SnapshotError)> {
        check_name(&new.name).map_err(|error| (0, error))?;
        // In one order, whoever asks: two calls about the same stores wait for one another, and not for ever.
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
            // Before it is there: it must not be seen as one that was always there.
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

    /// Keeps back what is submitted from now on, until the answer is dropped: readers see it, and it does not become durable.
    pub fn hold(&self) -> CommitHold {
        CommitHold::begin(&self.shared)
    }

    /// Changes what is noted about a snapshot that can be seen: its name, whether it is locked, whether it is deleted.
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
        // Those come and go elsewhere.
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

    /// Begins a branch from a snapshot: a number that no branch of the store ever had. `nameless`: inodes without a name that
    /// the snapshot counts, and their bytes.
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

    /// Notes that a branch is deleted, or, when all that only it had is freed and nothing began from it, that it is no more.
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

    /// Inodes and bytes of files that a branch has.
    pub fn counts_of(&self, branch: Branch) -> (u64, u64) {
        self.shared.pending.lock().counters.counts_of(branch)
    }

    /// Forgets a snapshot that was deleted, when all that only it held is freed.
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

    /// Up to `max` versions that no snapshot sees any more once `generation` is gone, seen or deleted; on from `from`.
    /// Reads what is applied: wait with [`Self::applied`] for what was submitted before.
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

    /// Up to `max` versions that the snapshot of generation `seen` shows and a later one (`up_to`) does not, of keys with
    /// `from <= key < to`; in the order of their marks, on from the mark `at`. The snapshot is there, and `up_to` is one that
    /// is there or the generation that goes on. Costs as much as changed between the two, not as much as there is. Reads what
    /// is applied.
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

    /// Up to `max` versions in the history of keys with `from <= key < to`, whoever sees them; from the first on that died
    /// after what `after` names. Reads what is applied.
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

    /// A version in the history as it is now, if it is there still.
    pub fn dead_version(&self, version: &DeadVersion) -> Result<Option<DeadVersion>, MetaError> {
        let found = versions::dead_version(&*self.shared.state, version);
        found.map_err(|error| self.shared.told(error))
    }

    /// Resolves when the state holds all up to the ticket. Where the state finds no space that may take until there is some.
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

    /// Does something that reads, without blocking this thread for what is not in memory: that is brought there, and `op`
    /// is called again. So it must not have changed anything when a read fails. As a last resort it is called in a way
    /// that blocks: when the disk gives an error, or others drive out what was brought.
    pub async fn reading<T, E>(&self, mut op: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        for _ in 0..BRING_COUNT_MAX {
            let wanted = match without_waiting(&mut op) {
                (Err(_), Some(wanted)) => wanted,
                (done, _) => return done,
            };
            // In a box, for few wait: else each operation would carry the room for it along.
            if !Box::pin(wanted.bring(&*self.shared.clock)).await {
                break;
            }
        }
        op()
    }

    /// Makes the batch visible at once and queues it for the log; the order of calls is the order
    /// in the log. Never waits for I/O. A batch that is too large, or comes after the end of the
    /// store, changes nothing and gets [`Ticket::REFUSED`].
    pub fn submit(&self, batch: Batch) -> Ticket {
        self.submit_in(batch).0
    }

    /// As [`Self::submit`]; says in which generation that is, which is that of the births of all that is put.
    pub fn submit_in(&self, batch: Batch) -> (Ticket, Generation) {
        self.shared.submit(batch)
    }

    /// As [`Self::submit`], for a batch that refers to records that somebody else wrote: only if each of these segments has a
    /// live record at this moment, so that nobody has taken it for dead. Else `None`, and nothing is changed.
    pub fn submit_sharing(&self, batch: Batch, segments: &[SegmentId]) -> Option<Ticket> {
        self.submit_sharing_in(batch, segments)
            .map(|(ticket, _)| ticket)
    }

    /// As [`Self::submit_sharing`]; says in which generation that is, as [`Self::submit_in`] does.
    pub fn submit_sharing_in(
        &self,
        batch: Batch,
        segments: &[SegmentId],
    ) -> Option<(Ticket, Generation)> {
        self.shared.submit_sharing(batch, segments)
    }

    /// The ticket of the last batch submitted by anyone.
    pub fn last_ticket(&self) -> Ticket {
        Ticket(LogPosition(
            self.shared.pending.lock().position_next.0.saturating_sub(1),
        ))
    }

    /// As [`Self::last_ticket`], without the batch that [`Self::give_back_log`] submits.
    pub fn last_change(&self) -> Ticket {
        Ticket(self.shared.last_change())
    }

    /// Resolves when everything up to the ticket is durable on all copies of the log. An error is
    /// final: the store refuses everything afterwards.
    pub fn durable(&self, ticket: Ticket) -> Durable {
        self.shared.durable(ticket)
    }

    /// As [`Self::durable`], for who tells others of the change. If the store ends before that is known, and the settings
    /// name a succession, this waits for the volume to be opened again, though not for ever: a change that is found
    /// in the log then took effect. An error means that it did not, or that nobody knows.
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

    /// Whether that is known to be so without waiting. Of a store that ended only [`Self::durable`] tells.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        self.shared.progress.is_durable(ticket.0)
    }

    /// Whether the volume's journal is encrypted. All else that is put here is stored as it is.
    pub fn is_encrypted(&self) -> bool {
        self.shared.settings.key.is_some()
    }

    /// Whether there is no space for metadata. What was submitted is safe in the log, reads and
    /// deletions go on; nothing should be added meanwhile, for deletions may have to wait then, too.
    pub fn is_full(&self) -> bool {
        self.shared.is_full.load(Ordering::Acquire)
    }

    /// Why nothing can be changed, if the store was opened to be read alone ([`Self::open_to_read`]).
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

    /// The volume's counters, submitted batches included.
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

    /// What is used in trees, and by users and groups there, the trees in them included; in the order of the keys.
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

    /// Whether anything counts in a tree, and not in one that lies in it.
    pub fn is_tree_used(&self, tree: Ino) -> bool {
        let pending = self.shared.pending.lock();
        let mut all = pending.counters.usages.all_own();
        all.any(|(key, _)| key.tree == tree)
    }

    /// What is used of one, without the trees in it.
    pub fn own_usage(&self, key: &QuotaKey) -> UsageRecord {
        self.shared.pending.lock().counters.usages.own(key)
    }

    /// What is used of each tree, without the trees in it: as it is stored.
    pub fn own_usages(&self) -> Vec<(QuotaKey, UsageRecord)> {
        let pending = self.shared.pending.lock();
        let all = pending.counters.usages.all_own();
        all.map(|(key, usage)| (*key, *usage)).collect()
    }

    /// Says which tree lies in which other; those that are not named lie in the volume. It is not stored.
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

    /// How full segments are: up to `max` of them, in order, from number `from` on. A look at all of
    /// them in such parts copies little and never holds others up for long.
    pub fn segment_usage(&self, from: SegmentId, max: usize) -> Vec<SegmentUsage> {
        let pending = self.shared.pending.lock();
        let some = pending.counters.segments.range(from..).take(max);
        some.map(|(id, record)| segments::usage(*id, record))
            .collect()
    }

    /// Sums over all segments; costs the same however many there are.
    pub fn segment_totals(&self) -> SegmentTotals {
        self.shared.pending.lock().counters.segments.totals()
    }

    /// Up to `max` of the segments without a live record.
    pub fn dead_segments(&self, max: usize) -> Vec<SegmentId> {
        let pending = self.shared.pending.lock();
        let dead = pending.counters.segments.dead().iter();
        dead.take(max).copied().collect()
    }

    /// Up to `max` of the segments that are in tiers, from number `from` on.
    pub fn remote_segments(&self, from: SegmentId, max: usize) -> Vec<(SegmentId, SegmentRecord)> {
        let pending = self.shared.pending.lock();
        let segments = &pending.counters.segments;
        let some = segments.remote().range(from..).take(max);
        some.filter_map(|id| Some((*id, segments.get(id)?.clone())))
            .collect()
    }

    /// Up to `max` of the segments that are not noted as sealed, from number `from` on.
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

    /// Segments with a shard on a disk. Looks at all of them.
    pub fn segments_on(&self, disk: DiskId) -> Vec<(SegmentId, SegmentRecord)> {
        let pending = self.shared.pending.lock();
        let all = pending.counters.segments.iter();
        let on_it = all.filter(|(_, record)| record.disks.contains(&disk));
        on_it.map(|(id, record)| (*id, record.clone())).collect()
    }

    /// A number that no inode of this volume ever had, also if the process dies. Starts at 2: 1 is
    /// the root's.
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

    /// The last number of an inode that was given.
    pub fn ino_last(&self) -> Ino {
        Ino(self.shared.pending.lock().ino_next.saturating_sub(1))
    }

    /// A number that no segment of this volume ever had, also if the process dies. Starts at 1.
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

    /// How much the journal holds back; `fs` folds when it says so.
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

    /// Most bytes of one batch, by [`Batch::len_bytes`]; a larger one is refused.
    pub fn batch_bytes_max(&self) -> usize {
        self.shared.settings.batch_bytes_max()
    }

    /// Files with journal entries at or before `through` that are not folded, in no order.
    pub fn journal_inodes(&self, through: LogPosition) -> Vec<Ino> {
        self.shared.journal.lock().inodes_through(through)
    }

    /// Makes everything submitted before durable, and the state as far as it is applied.
    pub async fn flush(&self) -> Result<(), MetaError> {
        self.durable(self.last_ticket()).await?;
        let _one_at_a_time = self.shared.shipping.lock().await;
        self.shared.flush_now().await.map(|_| ())
    }

    /// Makes the state durable and puts a checkpoint of it on as many other disks as copies are wanted.
    pub async fn ship(&self) -> Result<(), MetaError> {
        self.durable(self.last_ticket()).await?;
        self.shared.ship_now().await
    }

    /// Gets the copy of the state that counts to the first of `disks` that takes it, none of which this store works on: who
    /// opens the volume there next need not fetch it while clients wait. Only in a cluster.
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
            // Of one that is replaced meanwhile files may be gone. A newer one takes most of its files from the one that is there now.
            if remote.newest() == counts || rounds >= FETCH_ROUNDS {
                return fetched;
            }
        }
    }

    /// Whether copies of the state are made now, or will be without anything that happens.
    #[cfg(test)]
    pub fn makes_copies(&self) -> bool {
        let is_making = [&self.shared.is_ship_running, &self.shared.is_ship_wanted];
        let is_making = is_making.iter().any(|it| it.load(Ordering::SeqCst));
        let remote = self.shared.remote.as_ref();
        is_making || remote.is_some_and(|remote| remote.could_be_better())
    }

    /// Why the store takes nothing any more, if it has failed; open it again on other disks.
    pub fn failure(&self) -> Option<MetaError> {
        let reason = self.shared.progress.stop_reason();
        reason.filter(|reason| !matches!(reason, MetaError::Closed))
    }

    /// Stops taking batches, makes everything durable and ships it, so that the next start replays
    /// nothing. The state stays open until the last handle of this store is dropped.
    pub async fn close(&self) -> Result<(), MetaError> {
        self.end(Stop::Drained).await;
        match self.shared.progress.stop_reason() {
            Some(MetaError::Closed) | None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Stops at once, as a crash would, and waits until nothing of the store runs any more.
    pub async fn abort(&self) {
        self.end(Stop::Now).await;
    }

    /// Leaves the store behind without waiting for anything, because some of it waits for a disk that may
    /// never answer. Whatever it may still do, nobody hears of it, and it begins no writing of log or copies any
    /// more, so that the volume can be opened again on other disks when what is on its way there has landed.
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
        // Copies that somebody asked for are still being made, perhaps without anybody waiting: none of them may land
        // on what is opened in the place of this store.
        self.shared.disks.end();
        drop(self.shared.shipping.lock().await);
    }

    pub fn stats(&self) -> MetaStats {
        self.shared.stats()
    }
}
