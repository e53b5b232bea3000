//! Snapshots of a volume: taking them, what they hold, and freeing that.
//!
//! Owns: what a snapshot is to its users, and that deleting one frees exactly what only it held.
//! Must not know: who wants snapshots and when, how several are of one instant (`joint`), how old versions are kept (`meta`).
//!
//! Each step of freeing is one batch. A crash between two of them leaves a deleted snapshot, and the next start goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{Generation, LogPosition, Timestamp, View, VolumeId};
use cairn_meta::{Batch, DeadVersion, KeyKind, SnapshotError, SnapshotRecord, SpaceDelta, Ticket};
use futures_util::future::{Either, select};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::Notify;

use crate::extents::Extent;
use crate::flush::Gathered;
use crate::joint::take_snapshots;
use crate::tasks::let_others_run;
use crate::types::{FsError, VolumeCounts};
use crate::volume::{Fs, FsView, VolumeCore, meta_error, parse_extent};

/// Versions that one batch frees.
const FREE_VERSIONS_MAX: usize = 1024;
/// How often files with bytes in the journal are flushed before a snapshot gives up: new bytes do not come meanwhile.
const JOURNAL_FLUSHES_MAX: usize = 8;
/// After an error, freeing is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// A reader waits so long for the state to know where a record was moved to.
const MOVES_WAIT_MAX: Duration = Duration::from_secs(10);

/// A snapshot that can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Names its view.
    pub generation: Generation,
    pub name: Bytes,
    pub taken: Timestamp,
    /// It cannot be deleted.
    pub is_locked: bool,
    /// The schedule that took it; empty for one taken by hand.
    pub schedule: Bytes,
    /// Of the volume when it was taken.
    pub counts: VolumeCounts,
    /// Volumes that began from it, or from one that is deleted and did. It stays as long as there are any.
    pub clones: Vec<VolumeId>,
}

impl Snapshot {
    /// `all`: those of its store.
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

/// Adds the volumes that keep a snapshot: those that began from it, and for one of these that is deleted those that began from
/// that.
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
        // Each began later than this one, so this ends.
        for (_, record) in own {
            add_clones(record, all, clones);
        }
    }
}

/// What would be freed with a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHolds {
    /// Bytes in segments, before parity.
    pub stored_bytes: u64,
    /// Versions of anything: extents, attributes, names.
    pub versions: u64,
}

/// What is left of deleted snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotFreeing {
    /// Deleted, and not freed to the end.
    pub snapshots: u64,
    /// Since the volume was opened.
    pub freed_versions: u64,
    pub freed_bytes: u64,
}

/// Why nothing was done with a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFailure {
    #[error(transparent)]
    Refused(#[from] SnapshotError),
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// Taking and freeing: one at a time.
pub(crate) struct SnapshotWork {
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// Held by who reads the history and writes it anew: what is read must be what is applied, and stay so.
    pub history_turn: tokio::sync::Mutex<()>,
    is_journal_open: RwLock<bool>,
    /// When the list of snapshots changed last, or was opened.
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

/// Held by who puts bytes into the journal, from the question whether that may be to the end of the submission.
pub(crate) struct JournalGate<'a>(RwLockReadGuard<'a, bool>);

impl JournalGate<'_> {
    pub fn is_open(&self) -> bool {
        *self.0
    }
}

/// Open again at the end.
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

    /// The list of snapshots is another one; the time of that only grows.
    pub fn note_change(&self, now: Timestamp) {
        let mut changed = self.changed.lock();
        *changed = now.max(changed.successor());
    }
}

impl FsView {
    /// The snapshots that can be seen, the oldest first.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let all = self.shared.meta.snapshots();
        let own = all
            .iter()
            .filter(|(_, record)| record.branch == self.branch() && record.undecided_group == 0);
        own.map(|(at, record)| Snapshot::new(*at, record.clone(), &all))
            .collect()
    }

    /// Changes whenever the list of snapshots does, so that clients know what they have cached of it for old.
    pub fn snapshots_changed(&self) -> Timestamp {
        *self.shared.snapshots.changed.lock()
    }

    pub fn snapshot(&self, name: &[u8]) -> Option<Snapshot> {
        let mut all = self.snapshots().into_iter();
        all.find(|snapshot| snapshot.name == name)
    }
}

impl Fs {
    /// How many there are that can be seen.
    pub fn snapshot_count(&self) -> u64 {
        self.snapshots().len() as u64
    }

    /// Takes a snapshot: of all that was acknowledged as stable before this call, and of what else is there at one instant
    /// within it. `schedule` is empty for one that is taken by hand.
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

    /// Deletes a snapshot: nobody sees it any more when this returns, and what only it held is freed in the background.
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

    /// Keeps a snapshot from being deleted, or lets it go.
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

    /// What would be freed if this snapshot alone were deleted. Costs as much as there is of that, up to `versions_max`
    /// versions: what is beyond is left out.
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

    /// Frees what is left of deleted snapshots now, to the end.
    pub async fn free_snapshots(&self) -> Result<(), FsError> {
        self.shared.free_deleted().await?;
        self.shared.free_branches().await
    }
}

/// The extent that a version is, if it is one.
pub(crate) fn extent_of(version: &DeadVersion) -> Result<Option<Extent>, FsError> {
    let (Ok(KeyKind::Extent { .. }), Some(value)) = (version.key.kind(), &version.value) else {
        return Ok(None);
    };
    let parsed = parse_extent(version.key.as_bytes(), value, version.birth);
    parsed.map(|(_, extent)| Some(extent)).map_err(meta_error)
}

impl VolumeCore {
    /// Waits until a snapshot that was begun is durable and can be seen.
    pub(crate) async fn await_snapshot(
        self: &Arc<Self>,
        generation: Generation,
        ticket: Ticket,
    ) -> Result<Snapshot, SnapshotFailure> {
        self.outcome(ticket).await?;
        // Nobody sees it before; where the state has no space it is there all the same.
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

    /// Flushes the files that have bytes in the journal alone.
    pub(crate) async fn flush_journal(self: &Arc<Self>) -> Result<(), FsError> {
        self.durable(self.meta.last_ticket()).await?;
        let mut inodes = Vec::new();
        for ino in self.meta.journal_inodes(LogPosition(u64::MAX)) {
            match self.reading(|| self.own_inode(ino)).await {
                Ok(inode) => inodes.push(inode),
                // Removed: its bytes are nobody's.
                Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        // From here on nothing is waited for before all is sent: a flight that was taken and is not sent never ends.
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

    /// Nothing is in the journal alone after this, as long as nothing more is put there.
    pub(crate) async fn fold_all_of_journal(self: &Arc<Self>) -> Result<(), FsError> {
        for _ in 0..JOURNAL_FLUSHES_MAX {
            self.flush_journal().await?;
            self.durable(self.meta.last_ticket()).await?;
            let mut left = self.meta.journal_inodes(LogPosition(u64::MAX));
            // What is left of removed files is nobody's.
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

    /// Waits, not for ever, until the state has what was submitted so far: where records are that were moved.
    pub(crate) async fn await_moves(&self) {
        let applied = std::pin::pin!(self.meta.applied(self.meta.last_ticket()));
        select(applied, self.env.clock.sleep(MOVES_WAIT_MAX)).await;
    }

    /// Waits until the state has what was submitted so far; fails when the volume is to be closed.
    pub(crate) async fn require_applied(&self) -> Result<(), FsError> {
        let applied = std::pin::pin!(self.meta.applied(self.meta.last_ticket()));
        let stopped = std::pin::pin!(self.tasks.stopped());
        match select(applied, stopped).await {
            Either::Left((applied, _)) => applied.map_err(meta_error),
            Either::Right(_) => Err(FsError::Fenced),
        }
    }

    /// The background task: frees what only deleted snapshots held.
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

    /// Frees what only this deleted snapshot, and others that are deleted, held. Returns how many versions.
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
                    // Somebody else did.
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

    /// Frees the first of these versions, as many as one batch has room for; returns how many.
    fn free_some(&self, found: &[DeadVersion]) -> Result<(u64, Ticket), FsError> {
        let mut batch = Batch::new();
        let mut space = SpaceDelta::default();
        // The counters of segments come to it yet.
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
        Ok((versions, self.meta.submit(batch)))
    }
}
