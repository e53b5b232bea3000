//! The part of a store that its handle, its committer and its background work share.
//!
//! Owns: the queue, the overlay of changes that are not applied, positions of copies, shipping. Must not know: how log
//! files or RocksDB work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use cairn_base::disk::DiskError;
use cairn_base::env::{Clock, Entropy};
use cairn_base::planted::{self, Bug};
use cairn_base::{Generation, LogPosition, SegmentId, View};
use cairn_formats::metadata::log::Term;
use cairn_formats::metadata::{AppliedRecord, Group, Key};
use futures_util::future::select;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::batch::{Batch, Ticket};
use crate::committer::{self, FULL_RETRY_PAUSE, needed_from};
use crate::counters::{Changed, Counters};
use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::journal::JournalIndex;
use crate::journal_encryption::encrypt_journal;
use crate::log::LogStatus;
use crate::progress::{Durable, Progress};
use crate::replay_budget::ReplayHold;
use crate::settings::{CopyPosition, MetaSettings, MetaStats};
use crate::state::remote::RemoteCopies;
use crate::state::{self, Candidate, StateStore};
use crate::tasks::Tasks;

/// Segment numbers reserved at once; half of them are always durably reserved ahead.
pub(crate) const SEGMENT_CHUNK: u64 = 4096;

/// The log uses this part of the room that the next owner finds: the owner's state needs room, too.
const LOG_ROOM_PART: u64 = 2;
/// Below this number of log bytes, lack of room never triggers a copy of the state.
const LOG_ROOM_BYTES_MIN: u64 = 1 << 20;
/// Inode numbers reserved at once. Clients may learn of a number before it is durable, so half of these must exceed the
/// number of concurrent calls.
pub(crate) const INO_CHUNK: u64 = 1 << 20;

/// A submitted batch.
pub(crate) struct Queued {
    pub position: LogPosition,
    pub batch: Batch,
}

/// The data that `submit` changes, under one lock: so all of it has one order.
pub(crate) struct Pending {
    pub position_next: LogPosition,
    pub queue: VecDeque<Queued>,
    /// Counters as of the last batch submitted.
    pub counters: Counters,
    pub ino_next: u64,
    pub segment_next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    No,
    /// After everything is durable, applied and shipped.
    Drained,
    Now,
}

#[derive(Default)]
pub(crate) struct GroupCounts {
    pub count: AtomicU64,
    pub batches: AtomicU64,
    pub bytes: AtomicU64,
    pub copies_bytes: AtomicU64,
    pub ships: AtomicU64,
    pub ship_errors: AtomicU64,
}

/// The newest value of a key that is submitted and not applied.
pub(crate) struct Submitted {
    pub value: Option<Bytes>,
    pub birth: Generation,
    pub position: LogPosition,
}

pub(crate) type Overlay = BTreeMap<Key, Submitted>;

pub(crate) struct StoreCore {
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub tasks: Tasks,
    pub settings: MetaSettings,
    /// Disks of the state and its copies.
    pub disks: DiskSet,
    pub term: Term,
    /// Terms that the log names, including this one.
    pub term_count: usize,
    pub state: Arc<dyn StateStore>,
    /// Copies of the state on other nodes, if the volume is in a cluster: the log is retained for them.
    pub remote: Option<Arc<RemoteCopies>>,
    pub pending: Mutex<Pending>,
    pub overlay: RwLock<Overlay>,
    /// The journal as of the last group that was cut.
    pub journal: Mutex<JournalIndex>,
    pub progress: Arc<Progress>,
    pub work: Notify,
    pub log_status: Mutex<LogStatus>,
    pub groups: GroupCounts,
    pub group_bytes_max: usize,
    /// Length of the last batch refused for its size.
    pub refused_len_bytes: AtomicUsize,
    pub queued_bytes: AtomicUsize,
    pub admission: Notify,
    pub applied: Mutex<AppliedRecord>,
    /// Notified when the state has advanced, and when the store has ended.
    pub applied_more: Notify,
    /// Position from which on each snapshot taken since the start can be read.
    pub taken: Mutex<BTreeMap<Generation, LogPosition>>,
    /// Durable states with disk and position; the primary is first.
    pub states: Mutex<Vec<(usize, LogPosition)>>,
    /// Old states that are needed only until the next shipment.
    pub superseded: Mutex<Vec<Candidate>>,
    pub stop: AtomicU8,
    /// Number of holds, which keep batches from becoming durable; see [`crate::CommitHold`].
    pub held_count: AtomicUsize,
    pub log_start: AtomicU64,
    pub shipping: Arc<tokio::sync::Mutex<()>>,
    pub ship: Mutex<BackgroundShip>,
    pub is_ship_running: AtomicBool,
    /// A shipment was requested since the last one in the background began.
    pub is_ship_wanted: AtomicBool,
    /// Disks that could not take a copy of the state at the last attempt.
    pub refused_states: Mutex<BTreeSet<usize>>,
    /// The state or the log had no space at its last write.
    pub is_full: AtomicBool,
    /// The committer should have the log remove its spare files.
    pub are_spares_unwanted: AtomicBool,
    /// The last batch before the one of [`Self::submit_quiet`], and the position of that one. Locked under `pending`.
    pub quiet: Mutex<Option<(LogPosition, LogPosition)>>,
    /// Reason for refusing changes, if the store was opened read-only. Such a store has no committer.
    pub read_only: Option<String>,
    /// Memory of the log of a read-only store: counted until the store is dropped.
    pub _kept: Option<ReplayHold>,
}

#[derive(Default)]
pub(crate) struct BackgroundShip {
    /// Log bytes written since the last shipment began.
    pub bytes: u64,
    /// Number of healthy disks at that time.
    pub healthy_count: usize,
    /// Number of short log files at that time, made where disks lacked room.
    pub short_file_count: u64,
}

impl StoreCore {
    pub fn stop(&self) -> Stop {
        match self.stop.load(Ordering::Acquire) {
            0 => Stop::No,
            1 => Stop::Drained,
            _ => Stop::Now,
        }
    }

    /// Requests a stop. The most urgent request wins.
    pub fn ask_stop(&self, stop: Stop) {
        let urgency = match stop {
            Stop::No => 0,
            Stop::Drained => 1,
            Stop::Now => 2,
        };
        // Under the lock, so that no batch enters the queue after the committer saw it empty.
        let pending = self.pending.lock();
        self.stop.fetch_max(urgency, Ordering::AcqRel);
        drop(pending);
        self.work.notify_one();
    }

    /// Ends the store: all callers get this error from now on.
    pub fn fail(&self, error: MetaError) {
        tracing::error!(
            volume = self.disks.volume.0,
            "metadata store failed: {error}"
        );
        self.progress.stop(MetaError::Failed(Arc::new(error)));
        self.ask_stop(Stop::Now);
        self.admission.notify_waiters();
        self.applied_more.notify_waiters();
    }

    /// Notes that the state or the log has no space.
    pub fn note_full(&self, why: &str) {
        if !self.is_full.swap(true, Ordering::AcqRel) {
            tracing::error!(
                volume = self.disks.volume.0,
                why,
                "no space for metadata: new data is refused until there is some"
            );
        }
    }

    /// Notes that the state applied everything.
    pub fn note_space(self: &Arc<Self>) {
        if self.is_full.load(Ordering::Acquire) && self.is_full.swap(false, Ordering::AcqRel) {
            tracing::info!(
                volume = self.disks.volume.0,
                "there is space for metadata again"
            );
            // The missing shipment holds back the log.
            self.ship_in_background();
        }
    }

    /// Waits for a moment, which may bring space, or until other work arrives.
    pub async fn pause(&self, clock: &dyn Clock) {
        let work = std::pin::pin!(self.work.notified());
        select(clock.sleep(FULL_RETRY_PAUSE), work).await;
    }

    /// Ends the store if its state is corrupt and another copy exists: the pool then opens the volume again from that
    /// copy. Without another copy, readable entries are still served. If the disk was faulted, nothing is readable, and
    /// all callers wait for the disk to come back.
    pub fn note_damage(&self, error: &MetaError) {
        let is_damaged = matches!(error, MetaError::StateDamaged(_));
        if !is_damaged && !matches!(error, MetaError::State(_)) || self.progress.is_stopped() {
            return;
        }
        let primary = self.state.disk();
        let is_gone = || self.disks.get(primary).disk.space().is_err();
        let has_other = || {
            let is_elsewhere = |remote: &Arc<RemoteCopies>| remote.newest().is_some();
            if self.remote.as_ref().is_some_and(is_elsewhere) {
                return true;
            }
            let states = self.states.lock();
            let mut states = states.iter();
            states.any(|(disk, _)| *disk != primary && self.disks.is_healthy(*disk))
        };
        if is_damaged && has_other() || is_gone() {
            self.fail(error.clone());
        }
    }

    /// The error for a reader that met an error in the state. If the store has ended, the reader gets that error: the
    /// volume is then opened again, and the retry may succeed there.
    pub fn told(&self, error: MetaError) -> MetaError {
        self.note_damage(&error);
        match error {
            MetaError::State(_) | MetaError::StateDamaged(_) => {
                self.progress.stop_reason().unwrap_or(error)
            }
            error => error,
        }
    }

    pub fn check(&self) -> Result<(), MetaError> {
        self.progress.stop_reason().map_or(Ok(()), Err)
    }

    pub fn submit(&self, mut batch: Batch) -> (Ticket, Generation) {
        let len_bytes = batch.len_bytes();
        if len_bytes > self.settings.batch_bytes_max() {
            self.refused_len_bytes.store(len_bytes, Ordering::Relaxed);
            return (Ticket::REFUSED, Generation::FIRST);
        }
        self.encrypt(&mut batch);
        let mut pending = self.pending.lock();
        let generation = pending.counters.record.generation;
        (self.submit_locked(&mut pending, batch), generation)
    }

    /// See [`crate::MetaStore::submit_sharing`].
    pub fn submit_sharing(
        &self,
        mut batch: Batch,
        segments: &[SegmentId],
    ) -> Option<(Ticket, Generation)> {
        let len_bytes = batch.len_bytes();
        if len_bytes > self.settings.batch_bytes_max() {
            self.refused_len_bytes.store(len_bytes, Ordering::Relaxed);
            return Some((Ticket::REFUSED, Generation::FIRST));
        }
        self.encrypt(&mut batch);
        let mut pending = self.pending.lock();
        let known = &pending.counters.segments;
        let is_live = |id| known.get(id).is_some_and(|record| record.live_records > 0);
        let may_share = segments.iter().all(is_live);
        let generation = pending.counters.record.generation;
        may_share.then(|| (self.submit_locked(&mut pending, batch), generation))
    }

    /// Outside the lock: encryption takes longer than the rest of a submission.
    fn encrypt(&self, batch: &mut Batch) {
        if let Some(key) = &self.settings.key {
            encrypt_journal(key, &*self.entropy, batch);
        }
    }

    /// As [`Self::submit`], for a caller that holds the lock of `pending`. The batch is small, and has no journal
    /// entries.
    pub fn submit_locked(&self, pending: &mut Pending, batch: Batch) -> Ticket {
        assert!(
            self.settings.key.is_none()
                || batch.journal.iter().all(|entry| entry.encryption.is_some())
        );
        let len_bytes = batch.len_bytes();
        if self.stop() != Stop::No || self.read_only.is_some() {
            return Ticket::REFUSED;
        }
        let generation = pending.counters.record.generation;
        let position = pending.position_next;
        pending.position_next.0 += 1;
        pending.counters.apply(&batch, &mut Changed::default());
        if !batch.puts.is_empty() {
            let mut overlay = self.overlay.write();
            for put in &batch.puts {
                let submitted = Submitted {
                    value: put.value.clone(),
                    birth: put.kept_birth.unwrap_or(generation),
                    position,
                };
                overlay.insert(put.key.clone(), submitted);
            }
        }
        self.queued_bytes.fetch_add(len_bytes, Ordering::AcqRel);
        pending.queue.push_back(Queued { position, batch });
        self.work.notify_one();
        Ticket(position)
    }

    /// Whether the snapshot exists and the state holds all that it shows.
    pub fn shows(&self, generation: Generation) -> bool {
        let is_there = {
            let pending = self.pending.lock();
            pending.counters.snapshots.seen_at(generation).is_ok()
        };
        let taken = self.taken.lock().get(&generation).copied();
        is_there && taken.is_none_or(|taken| self.applied.lock().position >= taken)
    }

    pub fn no_such_view(&self, view: View) -> MetaError {
        MetaError::NoSuchView {
            volume: self.disks.volume,
            view,
        }
    }

    /// See [`crate::MetaStore::durable`].
    pub fn durable(&self, ticket: Ticket) -> Durable {
        if ticket != Ticket::REFUSED {
            return self.progress.wait(ticket.0);
        }
        let reason = self.progress.stop_reason();
        let reason = reason.unwrap_or_else(|| match (self.stop(), &self.read_only) {
            (Stop::No, Some(why)) => MetaError::Full(why.clone()),
            (Stop::No, None) => MetaError::BatchTooLarge {
                len_bytes: self.refused_len_bytes.load(Ordering::Relaxed),
                len_bytes_max: self.settings.batch_bytes_max(),
            },
            (Stop::Drained | Stop::Now, _) => MetaError::Closed,
        });
        self.progress.refuse(reason)
    }

    /// The position of the last batch, ignoring the one of [`Self::submit_quiet`].
    pub fn last_change(&self) -> LogPosition {
        self.last_change_of(&self.pending.lock())
    }

    fn last_change_of(&self, pending: &Pending) -> LogPosition {
        let last = LogPosition(pending.position_next.0.saturating_sub(1));
        match *self.quiet.lock() {
            Some((change, own)) if own == last => change,
            _ => last,
        }
    }

    /// Submits an empty batch so that the log of an idle volume can be cut: the batch says that nothing before it is
    /// needed.
    pub fn submit_quiet(&self) -> Ticket {
        let mut pending = self.pending.lock();
        let change = self.last_change_of(&pending);
        let ticket = self.submit_locked(&mut pending, Batch::new());
        if ticket != Ticket::REFUSED {
            *self.quiet.lock() = Some((change, ticket.0));
        }
        ticket
    }

    /// Reserves a position for a group without a submitted batch.
    pub fn reserve_position(&self) -> LogPosition {
        let mut pending = self.pending.lock();
        let position = pending.position_next;
        pending.position_next.0 += 1;
        position
    }

    /// Notes that the group is durable.
    pub fn committed(&self, group: &Group) {
        self.progress.advance(group.last);
        self.queued_bytes
            .fetch_sub(group.len_bytes, Ordering::AcqRel);
        self.admission.notify_waiters();
    }

    /// Applies the group to the state. Its changes then leave the overlay.
    pub fn apply(&self, group: &Group, applied: AppliedRecord) -> Result<(), MetaError> {
        committer::apply(&*self.state, group, applied)?;
        *self.applied.lock() = applied;
        self.applied_more.notify_waiters();
        let mut overlay = self.overlay.write();
        for put in &group.puts {
            let submitted = overlay.get(&put.key);
            if submitted.is_some_and(|submitted| submitted.position <= group.last) {
                overlay.remove(&put.key);
            }
        }
        Ok(())
    }

    /// Number of copies of log and state that are possible now.
    fn copies_possible(&self) -> usize {
        self.disks.copies_possible()
    }

    /// Whether there are as many states as possible.
    pub fn states_are_complete(&self) -> bool {
        let states = self.states.lock();
        let healthy = states
            .iter()
            .filter(|(disk, _)| self.disks.is_healthy(*disk));
        healthy.count() >= self.copies_possible()
    }

    /// Position from which on the log must be retained when a group that begins at `first` is durable: the oldest of
    /// the required states goes on from there, and no earlier journal entry is needed. It only grows.
    pub fn log_needed_from(&self, first: LogPosition) -> LogPosition {
        if let Some(oldest) = self.states_through() {
            let journal = self.journal.lock().oldest();
            let journal = journal.filter(|_| !planted::is(Bug::LogCutTooEarly));
            let needed = needed_from(oldest, journal).min(first);
            self.log_start.fetch_max(needed.0, Ordering::AcqRel);
        }
        LogPosition(self.log_start.load(Ordering::Acquire))
    }

    /// Position of the oldest state that counts; `None` if there are too few states to cut the log.
    pub fn states_through(&self) -> Option<LogPosition> {
        if let Some(remote) = &self.remote {
            if planted::is(Bug::LogCutBehindTheCopies) {
                return Some(self.applied.lock().position);
            }
            let is_too_long = self.log_is_too_long();
            let here = self.state_positions(|disk| self.disks.is_healthy(disk));
            let here = here.into_iter().max();
            if let Some(elsewhere) = remote.through(is_too_long) {
                // The copy may be ahead of the durable state here. If the other nodes are lost and this node restarts,
                // it goes on from its own state.
                let is_counted = !planted::is(Bug::LogCutBehindTheOwnState);
                return if is_counted {
                    here.map(|here| here.min(elsewhere))
                } else {
                    Some(elsewhere)
                };
            }
            // Without other nodes, the local state is the only one possible.
            let is_alone = is_too_long && remote.may_be_alone();
            return here.filter(|_| is_alone);
        }
        let wanted = self.copies_possible();
        let mut positions = self.state_positions(|disk| self.disks.is_healthy(disk));
        if positions.len() < wanted {
            // A copy on a draining disk counts while no other disk can replace it.
            positions = self.state_positions(|disk| self.disks.may_be_needed(disk));
        }
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let oldest = wanted.checked_sub(1).and_then(|index| positions.get(index));
        // With too few states, an older copy that the log still continues is worth keeping, but not for ever: another
        // disk may stay full for any time. New copies are made from the applied state, and need no earlier log. Until
        // all disks were tried, the log may have more copies than the state.
        if oldest.is_none() && self.log_is_too_long() && self.were_all_asked_for_states() {
            return positions.last().copied();
        }
        oldest.copied()
    }

    /// Whether every disk has a copy of the state, or could not take one.
    fn were_all_asked_for_states(&self) -> bool {
        let states = self.states.lock();
        let refused = self.refused_states.lock();
        let has_state = |disk: &usize| states.iter().any(|(at, _)| at == disk);
        let mut disks = self.disks.healthy().into_iter();
        disks.all(|disk| has_state(&disk) || refused.contains(&disk))
    }

    fn state_positions(&self, counts: impl Fn(usize) -> bool) -> Vec<LogPosition> {
        let states = self.states.lock();
        let counted = states.iter().filter(|(disk, _)| counts(*disk));
        counted.map(|(_, position)| *position).collect()
    }

    /// Whether the log is cut although some states are missing. The next start reads the whole log, and the number of
    /// terms that it can name is limited.
    fn log_is_too_long(&self) -> bool {
        let log_bytes = self.log_status.lock().retained_bytes;
        log_bytes > self.settings.log_bytes_max || self.names_too_many_starts()
    }

    /// Log bytes that the next owner has room to copy. To stay below that, the state is copied and the journal folded
    /// early.
    pub fn log_room_bytes(&self) -> u64 {
        let room_bytes = self.log_status.lock().room_bytes;
        room_bytes.map_or(u64::MAX, |room| {
            (room / LOG_ROOM_PART).max(LOG_ROOM_BYTES_MIN)
        })
    }

    /// Whether the log names so many starts that it must forget earlier ones now.
    pub fn names_too_many_starts(&self) -> bool {
        self.term_count > self.settings.starts_named_max
    }

    /// Counts log bytes. Starts a shipment if there are enough of them, if a disk failed, or if the log found no room
    /// for another file: older log files need not keep what is shipped.
    pub fn logged(self: &Arc<Self>, bytes: u64) {
        let healthy_count = self.disks.healthy().len();
        let short_file_count = self.log_status.lock().short_file_count;
        let ship_bytes = self.settings.ship_bytes.min(self.log_room_bytes());
        let is_due = {
            let mut ship = self.ship.lock();
            ship.bytes += bytes;
            ship.bytes > ship_bytes
                || ship.healthy_count != healthy_count
                || ship.short_file_count != short_file_count
        };
        let wants_disks = || {
            self.remote
                .as_ref()
                .is_some_and(|remote| remote.wants_disks())
        };
        if is_due || wants_disks() {
            self.ship_in_background();
        }
    }

    /// Makes another copy of the state if that would improve its protection.
    pub fn look_at_copies(self: &Arc<Self>) {
        if self
            .remote
            .as_ref()
            .is_some_and(|remote| remote.wants_disks())
        {
            self.ship_in_background();
        }
    }

    /// Starts a shipment in the background: now, or after the one in progress, which may not know of a disk that was
    /// added meanwhile.
    pub fn ship_in_background(self: &Arc<Self>) {
        self.is_ship_wanted.store(true, Ordering::SeqCst);
        if self.stop() != Stop::No || self.is_ship_running.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = self.clone();
        let task = async move {
            loop {
                while shared.stop() == Stop::No
                    && shared.is_ship_wanted.swap(false, Ordering::SeqCst)
                {
                    shared.ship_and_note().await;
                }
                shared.is_ship_running.store(false, Ordering::SeqCst);
                let is_wanted =
                    shared.stop() == Stop::No && shared.is_ship_wanted.load(Ordering::SeqCst);
                if !is_wanted || shared.is_ship_running.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        };
        self.tasks.spawn("meta-ship", task);
    }

    async fn ship_and_note(&self) {
        match self.ship_now().await {
            // The state is full: the committer notices, and goes on when there is space.
            Err(MetaError::Full(why)) => self.note_full(&why),
            // This includes an unreadable primary. If the store can do without it, it has ended by now. If the primary
            // also refuses writes, the committer notices.
            Err(error) => tracing::warn!("shipping a checkpoint: {error}"),
            Ok(()) => {}
        }
    }

    /// Makes the applied state durable here.
    pub async fn flush_now(&self) -> Result<AppliedRecord, MetaError> {
        let applied = *self.applied.lock();
        let disk = self.state.disk();
        let is_flushed = {
            let states = self.states.lock();
            states.contains(&(disk, applied.position))
        };
        if !is_flushed {
            let flushed = self.state.flush().await;
            flushed.inspect_err(|error| self.note_damage(error))?;
            self.set_state(disk, applied.position);
        }
        Ok(applied)
    }

    fn set_state(&self, disk: usize, position: LogPosition) {
        let mut states = self.states.lock();
        match states.iter_mut().find(|(at, _)| *at == disk) {
            Some(state) => state.1 = state.1.max(position),
            None => states.push((disk, position)),
        }
    }

    /// Makes the applied state durable here, and on as many other disks as copies are wanted. Fails only if the primary
    /// does; the statistics show missing copies.
    pub async fn ship_now(&self) -> Result<(), MetaError> {
        let turn = Arc::new(Arc::clone(&self.shipping).lock_owned().await);
        if self.stop() == Stop::Now {
            return Err(MetaError::Closed);
        }
        {
            let mut ship = self.ship.lock();
            ship.bytes = 0;
            ship.healthy_count = self.disks.healthy().len();
            ship.short_file_count = self.log_status.lock().short_file_count;
        }
        let applied = self.flush_now().await?;
        if let Some(remote) = &self.remote {
            self.put_elsewhere(remote, applied, &turn).await?;
        }
        let mut wanted = self.disks.copies_wanted().saturating_sub(1);
        let mut candidates = self.ship_candidates();
        while wanted > 0 && !candidates.is_empty() {
            let rest = candidates.split_off(wanted.min(candidates.len()));
            let targets = std::mem::replace(&mut candidates, rest);
            let (fresh, stale): (Vec<usize>, Vec<usize>) = {
                let states = self.states.lock();
                targets
                    .into_iter()
                    .partition(|disk| states.contains(&(*disk, applied.position)))
            };
            wanted -= fresh.len();
            if stale.is_empty() {
                continue;
            }
            let shipped = self.state.ship(stale, applied, Arc::clone(&turn)).await;
            let shipped = shipped.inspect_err(|error| self.note_damage(error))?;
            for (disk, result) in shipped {
                match result {
                    Ok(()) => {
                        self.set_state(disk, applied.position);
                        self.refused_states.lock().remove(&disk);
                        self.groups.ships.fetch_add(1, Ordering::Relaxed);
                        wanted -= 1;
                    }
                    Err(error) => {
                        self.groups.ship_errors.fetch_add(1, Ordering::Relaxed);
                        tracing::warn!(
                            disk = self.disks.get(disk).disk.label(),
                            "shipping a checkpoint: {error}"
                        );
                        // Lack of space or of file descriptors is no fault of the disk. After any other error the disk
                        // is faulted.
                        let is_bad = match &error {
                            MetaError::Disk(
                                DiskError::Full { .. } | DiskError::NoDescriptor { .. },
                            ) => false,
                            error => matches!(error, MetaError::Disk(_)),
                        };
                        if is_bad {
                            self.disks.mark_failed(disk, &error);
                        }
                        self.note_damage(&error);
                        // The old copy there may be half replaced.
                        self.states.lock().retain(|(at, _)| *at != disk);
                        self.refused_states.lock().insert(disk);
                    }
                }
            }
        }
        if self.states_are_complete() {
            while let Some(candidate) = self.next_superseded() {
                state::discard(candidate, &self.disks).await;
            }
        }
        Ok(())
    }

    /// Copies the state to other nodes. Fails only if the state itself does: without a copy the log is retained.
    async fn put_elsewhere(
        &self,
        remote: &RemoteCopies,
        applied: AppliedRecord,
        turn: &state::Turn,
    ) -> Result<(), MetaError> {
        if !remote.is_current(applied.position) {
            let exported = self.state.export(applied, turn.clone()).await;
            let exported = exported.inspect_err(|error| self.note_damage(error))?;
            let put = remote.put(&exported).await;
            exported.end().await?;
            let count = match &put {
                Ok(()) => &self.groups.ships,
                Err(_) => &self.groups.ship_errors,
            };
            count.fetch_add(1, Ordering::Relaxed);
            match put {
                Err(error @ MetaError::StateDamaged(_)) => {
                    self.note_damage(&error);
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!("copying the metadata's state to other nodes: {error}")
                }
                Ok(()) => {}
            }
        }
        remote.sweep().await;
        Ok(())
    }

    /// An old state that can be removed now. States on faulted disks may have to wait for ever.
    fn next_superseded(&self) -> Option<Candidate> {
        let mut superseded = self.superseded.lock();
        if self.stop() == Stop::Now {
            return None;
        }
        let is_healthy = |candidate: &Candidate| self.disks.is_healthy(candidate.disk);
        let index = superseded.iter().position(is_healthy)?;
        Some(superseded.swap_remove(index))
    }

    /// Leaves the old states on some disks in place.
    pub fn leave_superseded(&self, on: impl Fn(usize) -> bool) {
        let mut superseded = self.superseded.lock();
        let all = std::mem::take(&mut *superseded).into_iter();
        let (left, kept) = all.partition(|candidate| on(candidate.disk));
        *superseded = kept;
        drop(superseded);
        state::leave(left);
    }

    /// Healthy disks without the primary's. Disks that have a copy come first, after preferred ones. Draining disks
    /// with a copy come last: their copy is kept current while there are too few other disks, because it may be the
    /// only other one.
    fn ship_candidates(&self) -> Vec<usize> {
        let primary = self.state.disk();
        let states = self.states.lock();
        let has_copy = |disk: usize| states.iter().any(|(at, _)| *at == disk);
        let mut disks = self.disks.healthy();
        disks.retain(|disk| *disk != primary);
        disks.sort_by_key(|disk| (!self.disks.is_first(*disk), !has_copy(*disk)));
        let draining = states
            .iter()
            .map(|(at, _)| *at)
            .filter(|disk| !self.disks.is_healthy(*disk) && self.disks.may_be_needed(*disk));
        disks.extend(draining);
        disks
    }

    pub fn stats(&self) -> MetaStats {
        let log = self.log_status.lock().clone();
        let submitted = LogPosition(self.pending.lock().position_next.0.saturating_sub(1));
        let counter_errors = self.pending.lock().counters.errors;
        let copy = |(disk, position): &(usize, LogPosition)| CopyPosition {
            disk: self.disks.get(*disk).id,
            position: *position,
        };
        let mut states: Vec<CopyPosition> = {
            let states = self.states.lock();
            let healthy = states
                .iter()
                .filter(|(disk, _)| self.disks.is_healthy(*disk));
            healthy.map(copy).collect()
        };
        let mut copies = self.disks.copies_wanted();
        if let Some(remote) = &self.remote {
            copies = remote.copies_wanted();
            let newest = remote.newest().into_iter();
            states.extend(newest.flat_map(|copy| {
                let position = copy.applied;
                let disks = copy.disks.into_iter();
                disks.map(move |disk| CopyPosition { disk, position })
            }));
        }
        MetaStats {
            log_bytes: log.retained_bytes,
            groups: self.groups.count.load(Ordering::Relaxed),
            batches: self.groups.batches.load(Ordering::Relaxed),
            group_bytes: self.groups.bytes.load(Ordering::Relaxed),
            group_copies_bytes: self.groups.copies_bytes.load(Ordering::Relaxed),
            syncs: log.syncs,
            queue_bytes: self.queued_bytes.load(Ordering::Relaxed) as u64,
            submitted,
            durable: self.progress.durable(),
            applied: self.applied.lock().position,
            log_start: log.start,
            copies_wanted: copies,
            full: self.is_full.load(Ordering::Acquire),
            copies_missing: log.disks.len() < copies || log.is_short || states.len() < copies,
            log_is_short: log.is_short,
            log_disks: log.disks,
            states,
            failed_disks: self.disks.failed_ids(),
            ships: self.groups.ships.load(Ordering::Relaxed),
            ship_errors: self.groups.ship_errors.load(Ordering::Relaxed),
            counter_errors,
        }
    }
}
