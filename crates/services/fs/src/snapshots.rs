//! Snapshots of a volume: taking them, the space they hold, and freeing it.
//!
//! Owns: the users' view of a snapshot; deleting a snapshot frees exactly the versions that only it held. Must not
//! know: schedules and other callers, how several snapshots are of one instant (`joint`), how old versions are kept
//! (`meta`).
//!
//! Each step of freeing is one batch. A crash between two of them leaves a deleted snapshot, and the next start
//! continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{Generation, LogPosition, Timestamp, View, VolumeId};
use cairn_meta::{Batch, DeadVersion, KeyKind, SnapshotError, SnapshotRecord, SpaceDelta, Ticket};
use futures_util::future::{Either, select};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::Notify;

use crate::flush::Gathered;
use crate::joint::take_snapshots;
use crate::kernel::{Bare, Extent, meta_error, parse_extent};
use crate::tasks::let_others_run;
use crate::types::{FsError, VolumeCounts};
use crate::volume::{Fs, FsView, VolumeCore};

/// Versions that one batch frees.
const FREE_VERSIONS_MAX: usize = 1024;
/// How often files with bytes in the journal are flushed before a snapshot gives up: no new bytes come meanwhile.
const JOURNAL_FLUSHES_MAX: usize = 8;
/// Pause before freeing is tried again after an error.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How long a reader waits until the state knows the new place of a record.
const MOVES_WAIT_MAX: Duration = Duration::from_secs(10);

/// A visible snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Names its view.
    pub generation: Generation,
    pub name: Bytes,
    pub taken: Timestamp,
    /// A locked snapshot cannot be deleted.
    pub is_locked: bool,
    /// The schedule that took it; empty for one taken by hand.
    pub schedule: Bytes,
    /// The counts of the volume when it was taken.
    pub counts: VolumeCounts,
    /// Volumes that began from it, or from a deleted volume that began from it. The snapshot stays as long as there
    /// are any.
    pub clones: Vec<VolumeId>,
}

impl Snapshot {
    /// `all`: the snapshots of its store.
    pub(crate) fn new(
        generation: Generation,
        record: SnapshotRecord,
        all: &[(Generation, SnapshotRecord)],
    ) -> Self {
        let mut clones = Vec::new();
        add_clones(&record, all, &mut clones);
        Self {
            clones,
            generation,
            name: record.name,
            taken: record.taken,
            is_locked: record.is_locked,
            schedule: record.schedule,
            counts: VolumeCounts {
                inodes: record.inodes,
                file_bytes: record.file_bytes,
            },
        }
    }

    pub fn view(&self) -> View {
        View::Snapshot(self.generation)
    }
}

/// Adds the volumes that keep a snapshot: those that began from it, and for a deleted one of these, those that began
/// from that.
fn add_clones(
    record: &SnapshotRecord,
    all: &[(Generation, SnapshotRecord)],
    clones: &mut Vec<VolumeId>,
) {
    for clone in &record.clones {
        if !clone.is_deleted {
            clones.push(clone.volume);
            continue;
        }
        let own = all.iter().filter(|(_, it)| it.branch == clone.branch);
        // Each began later than this one, so the recursion ends.
        for (_, record) in own {
            add_clones(record, all, clones);
        }
    }
}

/// The space that deleting a snapshot would free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHolds {
    /// Bytes in segments, before parity.
    pub stored_bytes: u64,
    /// Versions of extents, attributes and names.
    pub versions: u64,
}

/// The remains of deleted snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotFreeing {
    /// Snapshots that are deleted and not completely freed.
    pub snapshots: u64,
    /// Since the volume was opened.
    pub freed_versions: u64,
    pub freed_bytes: u64,
}

/// The reason why a snapshot was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFailure {
    #[error(transparent)]
    Refused(#[from] SnapshotError),
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// State of taking and freeing snapshots, which happen one at a time.
pub(crate) struct SnapshotWork {
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// Held by a task that reads the history and rewrites it: the read versions must be the applied ones, and stay so.
    pub history_turn: tokio::sync::Mutex<()>,
    is_journal_open: RwLock<bool>,
    /// The time of the last change of the list of snapshots, or of the opening.
    changed: Mutex<Timestamp>,
    pub(crate) freeing: Notify,
    freed_versions: AtomicU64,
    freed_bytes: AtomicU64,
    has_failed: AtomicBool,
}

impl Default for SnapshotWork {
    fn default() -> Self {
        Self {
            turn: Default::default(),
            history_turn: Default::default(),
            is_journal_open: RwLock::new(true),
            changed: Mutex::default(),
            freeing: Notify::new(),
            freed_versions: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }
}

/// Held by a task that puts bytes into the journal, from the check whether it may until the end of the submission.
pub(crate) struct JournalGate<'a>(RwLockReadGuard<'a, bool>);

impl JournalGate<'_> {
    pub fn is_open(&self) -> bool {
        *self.0
    }
}

/// Keeps the journal closed until it is dropped.
pub(crate) struct ClosedJournal(Arc<VolumeCore>);

impl ClosedJournal {
    /// From here on nothing goes into the journal.
    pub fn new(shared: &Arc<VolumeCore>) -> Self {
        *shared.snapshots.is_journal_open.write() = false;
        Self(Arc::clone(shared))
    }
}

impl Drop for ClosedJournal {
    fn drop(&mut self) {
        *self.0.snapshots.is_journal_open.write() = true;
    }
}

impl SnapshotWork {
    pub fn journal_gate(&self) -> JournalGate<'_> {
        JournalGate(self.is_journal_open.read())
    }

    /// Notes a change of the list of snapshots; the time of the list only grows.
    pub fn note_change(&self, now: Timestamp) {
        let mut changed = self.changed.lock();
        *changed = now.max(changed.successor());
    }
}

impl FsView {
    /// The visible snapshots, the oldest first.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let all = self.shared.meta.snapshots();
        let own = all
            .iter()
            .filter(|(_, record)| record.branch == self.branch() && record.undecided_group == 0);
        own.map(|(at, record)| Snapshot::new(*at, record.clone(), &all))
            .collect()
    }

    /// The time of the last change of the list of snapshots, so that clients know when their caches are outdated.
    pub fn snapshots_changed(&self) -> Timestamp {
        *self.shared.snapshots.changed.lock()
    }

    pub fn snapshot(&self, name: &[u8]) -> Option<Snapshot> {
        let mut all = self.snapshots().into_iter();
        all.find(|snapshot| snapshot.name == name)
    }
}

impl Fs {
    /// The number of visible snapshots.
    pub fn snapshot_count(&self) -> u64 {
        self.snapshots().len() as u64
    }

    /// Takes a snapshot of all changes that were acknowledged as stable before this call; later changes are in it as
    /// of one instant during the call. `schedule` is empty for a snapshot that is taken by hand.
    ///
    /// Fails with [`FsError::Io`] if the bytes of a file cannot be flushed.
    pub async fn take_snapshot(
        &self,
        name: &[u8],
        schedule: &[u8],
    ) -> Result<Snapshot, SnapshotFailure> {
        let taken = take_snapshots(&[self], name, schedule).await;
        let taken = taken.map_err(|(_, error)| error)?;
        // It was deleted at once.
        taken
            .into_iter()
            .next()
            .ok_or(SnapshotError::NotFound.into())
    }

    /// Deletes a snapshot: it is invisible when this returns, and the versions that only it held are freed in the
    /// background.
    pub async fn delete_snapshot(&self, name: &[u8]) -> Result<(), SnapshotFailure> {
        self.change_snapshot(name, |record| record.is_deleted = true)
            .await?;
        self.shared.snapshots.freeing.notify_one();
        Ok(())
    }

    pub async fn rename_snapshot(&self, name: &[u8], to: &[u8]) -> Result<(), SnapshotFailure> {
        let to = Bytes::copy_from_slice(to);
        self.change_snapshot(name, |record| record.name = to).await
    }

    /// Locks a snapshot against deletion, or unlocks it.
    pub async fn lock_snapshot(&self, name: &[u8], locked: bool) -> Result<(), SnapshotFailure> {
        self.change_snapshot(name, |record| record.is_locked = locked)
            .await
    }

    async fn change_snapshot(
        &self,
        name: &[u8],
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> Result<(), SnapshotFailure> {
        self.shared.require_serving()?;
        let found = self.snapshot(name).ok_or(SnapshotError::NotFound)?;
        self.change_snapshot_at(found.generation, change).await
    }

    pub(crate) async fn change_snapshot_at(
        &self,
        generation: Generation,
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> Result<(), SnapshotFailure> {
        let shared = &self.shared;
        let submit = || shared.meta.change_snapshot(generation, change);
        let ticket = shared.branches.within(self.branch(), submit)??;
        shared.snapshots.note_change(shared.now());
        shared.outcome(ticket).await?;
        Ok(())
    }

    /// The space that would be freed if this snapshot alone were deleted. Takes time in proportion to that, up to
    /// `versions_max` versions: the rest is left out.
    pub async fn snapshot_holds(
        &self,
        generation: Generation,
        versions_max: u64,
    ) -> Result<SnapshotHolds, FsError> {
        let shared = &self.shared;
        let mut holds = SnapshotHolds::default();
        let mut from = None;
        loop {
            let read = || {
                let found = shared
                    .meta
                    .versions_of(generation, from.as_ref(), FREE_VERSIONS_MAX);
                found.map_err(meta_error)
            };
            let found = shared.reading(read).await?;
            for version in &found {
                holds.versions += 1;
                if let Some(extent) = extent_of(version)? {
                    holds.stored_bytes += extent.live_bytes() as u64;
                }
            }
            let Some(last) = found.last() else {
                return Ok(holds);
            };
            if found.len() < FREE_VERSIONS_MAX || holds.versions >= versions_max {
                return Ok(holds);
            }
            from = Some(last.mark().successor());
            let_others_run().await;
        }
    }

    pub fn snapshot_freeing(&self) -> SnapshotFreeing {
        let work = &self.shared.snapshots;
        SnapshotFreeing {
            snapshots: self.shared.meta.deleted_snapshots().len() as u64,
            freed_versions: work.freed_versions.load(Ordering::Relaxed),
            freed_bytes: work.freed_bytes.load(Ordering::Relaxed),
        }
    }

    /// Frees all remains of deleted snapshots now.
    pub async fn free_snapshots(&self) -> Result<(), FsError> {
        self.shared.free_deleted().await?;
        self.shared.free_branches().await
    }
}

/// The extent in a version, if it is one.
pub(crate) fn extent_of(version: &DeadVersion) -> Result<Option<Extent>, FsError> {
    let (Ok(KeyKind::Extent { .. }), Some(value)) = (version.key.kind(), &version.value) else {
        return Ok(None);
    };
    let parsed = parse_extent(version.key.as_bytes(), value, version.birth);
    parsed.map(|(_, extent)| Some(extent)).map_err(meta_error)
}

impl VolumeCore {
    /// Waits until a snapshot that was begun is durable and visible.
    pub(crate) async fn await_snapshot(
        self: &Arc<Self>,
        generation: Generation,
        ticket: Ticket,
    ) -> Result<Snapshot, SnapshotFailure> {
        self.outcome(ticket).await?;
        // It is invisible before; if the state has no space, it exists all the same.
        let applied = std::pin::pin!(self.meta.applied(ticket));
        let too_long = self.env.clock.sleep(MOVES_WAIT_MAX);
        select(applied, too_long).await;
        self.snapshots.note_change(self.now());
        let all = self.meta.snapshots();
        let found = all.iter().find(|(at, _)| *at == generation);
        let found = found.map(|(at, record)| Snapshot::new(*at, record.clone(), &all));
        // It was deleted at once.
        found.ok_or(SnapshotError::NotFound.into())
    }

    /// Flushes the files with bytes that are only in the journal.
    pub(crate) async fn flush_journal(self: &Arc<Self>) -> Result<(), FsError> {
        self.durable(self.meta.last_ticket()).await?;
        let mut inodes = Vec::new();
        for ino in self.meta.journal_inodes(LogPosition(u64::MAX)) {
            match self.reading(|| self.own_inode(ino)).await {
                Ok(inode) => inodes.push(inode),
                // The file was removed, and its bytes are not needed.
                Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        // From here on, all flights start before any wait: a flight that was taken and never starts never ends.
        let mut flying = Vec::new();
        let mut gathered = Gathered::default();
        for inode in inodes {
            let mut state = inode.lock();
            self.start_gathered(&mut gathered, &inode, &mut state);
            flying.extend(state.flights.iter().map(|flight| flight.done.clone()));
        }
        self.send_gathered(gathered);
        for mut done in flying {
            match done.wait_for(Option::is_some).await {
                Ok(ended) => ended.clone().unwrap_or(Ok(()))?,
                Err(_) => return Err(FsError::Fenced),
            }
        }
        Ok(())
    }

    /// After this nothing is only in the journal, as long as nothing more is put there.
    pub(crate) async fn fold_all_of_journal(self: &Arc<Self>) -> Result<(), FsError> {
        for _ in 0..JOURNAL_FLUSHES_MAX {
            self.flush_journal().await?;
            self.durable(self.meta.last_ticket()).await?;
            let mut left = self.meta.journal_inodes(LogPosition(u64::MAX));
            // The remains of removed files are not needed.
            left.retain(|ino| {
                self.own_inode(*ino)
                    .is_ok_and(|inode| !inode.lock().removed)
            });
            if left.is_empty() {
                return Ok(());
            }
            let_others_run().await;
        }
        let why = "bytes of a file cannot be moved out of the journal; see the log for its errors";
        Err(FsError::Io(why.to_owned()))
    }

    /// Waits, for a limited time, until the state has all submissions so far, with the new places of moved records.
    pub(crate) async fn await_moves(&self) {
        let applied = std::pin::pin!(self.meta.applied(self.meta.last_ticket()));
        select(applied, self.env.clock.sleep(MOVES_WAIT_MAX)).await;
    }

    /// Waits until the state has all submissions so far; fails when the volume is to be closed.
    pub(crate) async fn require_applied(&self) -> Result<(), FsError> {
        let applied = std::pin::pin!(self.meta.applied(self.meta.last_ticket()));
        let stopped = std::pin::pin!(self.tasks.stopped());
        match select(applied, stopped).await {
            Either::Left((applied, _)) => applied.map_err(meta_error),
            Either::Right(_) => Err(FsError::Fenced),
        }
    }

    /// The background task: frees the versions that only deleted snapshots held.
    pub(crate) async fn run_freeing(self: Arc<Self>) {
        loop {
            let freed = match self.free_deleted().await {
                Ok(()) => self.free_branches().await,
                failed => failed,
            };
            if self.tasks.is_stopping() {
                return;
            }
            let work = &self.snapshots;
            let goes_on = match freed {
                Ok(()) => {
                    work.has_failed.store(false, Ordering::Relaxed);
                    let stopped = std::pin::pin!(self.tasks.stopped());
                    let wanted = std::pin::pin!(work.freeing.notified());
                    select(stopped, wanted).await;
                    !self.tasks.is_stopping()
                }
                Err(error) => {
                    if !work.has_failed.swap(true, Ordering::Relaxed) {
                        tracing::error!(volume = %self.volume, %error, "freeing what deleted snapshots held failed; it is tried again");
                    }
                    let wanted = work.freeing.notified();
                    self.tasks.pause(RETRY_PAUSE, wanted).await
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    pub(crate) async fn free_deleted(&self) -> Result<(), FsError> {
        let mut has_freed = false;
        while let Some((generation, record)) = self.meta.deleted_snapshots().into_iter().next() {
            let versions = self.free(generation).await?;
            tracing::info!(volume = %self.volume, snapshot = %record.name.escape_ascii(), versions, "what only a deleted snapshot held is freed");
            has_freed = true;
        }
        if has_freed {
            self.gc_wake.notify_one();
        }
        Ok(())
    }

    /// Frees the versions that only this deleted snapshot, and other deleted ones, held. Returns their number.
    async fn free(&self, generation: Generation) -> Result<u64, FsError> {
        let mut count = 0;
        loop {
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
            let _turn = self.snapshots.history_turn.lock().await;
            self.require_applied().await?;
            let read = || {
                let found = self.meta.versions_of(generation, None, FREE_VERSIONS_MAX);
                found.map_err(meta_error)
            };
            let found = self.reading(read).await?;
            if found.is_empty() {
                let ticket = match self.meta.remove_snapshot(generation) {
                    Ok(ticket) => ticket,
                    Err(SnapshotError::Closed) => return Err(FsError::Fenced),
                    // Another task did.
                    Err(_) => return Ok(count),
                };
                self.durable(ticket).await?;
                return Ok(count);
            }
            let (freed, ticket) = self.free_some(&found)?;
            count += freed;
            self.durable(ticket).await?;
            let_others_run().await;
        }
    }

    /// Frees the first of these versions, as many as one batch has room for; returns their number.
    fn free_some(&self, found: &[DeadVersion]) -> Result<(u64, Ticket), FsError> {
        let mut batch = Batch::new();
        let mut space = SpaceDelta::default();
        // The counters of segments are added later.
        let full_bytes = self.meta.batch_bytes_max() / 2;
        let mut versions = 0;
        for version in found {
            if batch.len_bytes() >= full_bytes {
                break;
            }
            versions += 1;
            batch.forget(version);
            if let Some(extent) = extent_of(version)? {
                let bytes = extent.live_bytes();
                if let Some(segment) = extent.segment() {
                    batch.segment_delta(segment, -bytes, -1);
                }
                space.stored_bytes -= bytes;
                space.history_bytes -= bytes;
            }
        }
        batch.space(space);
        let work = &self.snapshots;
        work.freed_versions.fetch_add(versions, Ordering::Relaxed);
        let bytes = space.stored_bytes.unsigned_abs();
        work.freed_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok((versions, self.commit_bare(Bare::History, batch)))
    }
}
