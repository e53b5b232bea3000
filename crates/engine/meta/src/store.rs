//! The store as callers see it.
//!
//! Owns: reading through the overlay, ids, the life of a store. Must not know: log files, RocksDB.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::{DiskId, Epoch, Generation, Ino, LogPosition, SegmentId, VolumeId};
use cairn_formats::metadata::log::SET_COUNT_MAX;
use cairn_formats::metadata::{JournalEntry, Key, SegmentRecord};
use futures_util::future::{Either, select};

use crate::batch::{Batch, Ticket};
use crate::error::MetaError;
use crate::open;
use crate::progress::Durable;
use crate::segments::{self, SegmentTotals};
use crate::settings::{JournalPressure, MetaSettings, MetaStats, VolumeCounters};
use crate::shared::{INO_CHUNK, SEGMENT_CHUNK, Shared, Stop};
use crate::state::versions::{self, Entry, VersionCursor};
use crate::state::{StateStore, without_waiting};

/// Entries of the overlay that a scan takes at once; between two takes batches may come in between.
const SCAN_OVERLAY_COUNT_MAX: usize = 512;
/// Share of the log's limit, in percent, above which the journal should be folded.
const FOLD_PERCENT: u64 = 50;
/// What one operation has brought into memory, one thing after the other, before it blocks its thread.
const BRING_COUNT_MAX: usize = 64;
/// How long a change whose store has ended is waited for: closing the store, or leaving it behind, and opening the next.
const OUTCOME_WAIT_MAX: Duration = Duration::from_secs(120);

/// Entries of the overlay, in order; `None` is a deletion.
type OverlayPart = Vec<(Key, Option<Bytes>)>;

/// How a cursor over a range of the state is made.
type MakeCursor<'a> = fn(&'a dyn StateStore, &[u8], &[u8], Generation) -> VersionCursor<'a>;

/// What of a segment is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUsage {
    pub id: SegmentId,
    /// Room for data, parity apart.
    pub data_bytes: u64,
    pub live_bytes: u64,
    pub live_records: u64,
    /// It was noted that nothing is added any more.
    pub sealed: bool,
}

impl SegmentUsage {
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
pub struct MetaStore {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for MetaStore {
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
    /// takes itself for enough. They are let go with [`MetaStore::retire_disk`].
    pub async fn open_without(
        env: Env,
        settings: MetaSettings,
        volume: VolumeId,
        disks: Vec<(DiskId, Arc<dyn Disk>)>,
        draining: Vec<(DiskId, Arc<dyn Disk>)>,
    ) -> Result<(Arc<Self>, Recovered), MetaError> {
        open::open(env, settings, volume, disks, draining).await
    }

    pub fn epoch(&self) -> Epoch {
        self.shared.term.epoch
    }

    pub fn generation(&self) -> Generation {
        self.shared.generation()
    }

    /// The newest version visible now, including submitted batches that are not durable yet. May
    /// read from disk. Segments and counters have methods of their own.
    pub fn get(&self, key: &Key) -> Result<Option<Bytes>, MetaError> {
        self.get_with_ticket(key).map(|(value, _)| value)
    }

    /// As [`MetaStore::get`], with the ticket of the change, or deletion, that this rests on; [`Ticket::NONE`] if that
    /// is durable for sure.
    pub fn get_with_ticket(&self, key: &Key) -> Result<(Option<Bytes>, Ticket), MetaError> {
        self.shared.check()?;
        if let Some((value, position)) = self.shared.overlay.read().get(key) {
            return Ok((value.clone(), Ticket(*position)));
        }
        // Only what is durable is applied.
        let found = versions::get(&*self.shared.state, key, self.generation());
        let found = found.map_err(|error| self.shared.told(error))?;
        Ok((found, Ticket::NONE))
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

    /// Entries with `from <= key < to` in order, at most `limit`, as [`MetaStore::get`] sees them.
    pub fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>, MetaError> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let mut error = None;
        self.scan_with(from, to, |key, value| {
            match Key::parse(key) {
                Ok(key) => found.push((key, Bytes::copy_from_slice(value))),
                Err(damage) => error = Some(damage),
            }
            if found.len() >= limit || error.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        match error {
            Some(damage) => Err(damage.into()),
            None => Ok(found),
        }
    }

    /// Calls `visit` with each key (its bytes, see [`crate::KeyKind::parse`]) and value that
    /// [`MetaStore::scan`] would return, without collecting them. No lock is held meanwhile.
    ///
    /// A key that does not change during a long scan is seen exactly once; changes may or may not be.
    pub fn scan_with(
        &self,
        from: &Key,
        to: &Key,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), MetaError> {
        self.scan_by(VersionCursor::new, from, to, visit)
    }

    /// As [`MetaStore::scan_with`], for a pass over much of the volume: what it reads from disk does not take the place
    /// of what clients use in memory.
    pub fn pass_over(
        &self,
        from: &Key,
        to: &Key,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), MetaError> {
        self.scan_by(VersionCursor::passing, from, to, visit)
    }

    fn scan_by<'a>(
        &'a self,
        cursor: MakeCursor<'a>,
        from: &Key,
        to: &Key,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), MetaError> {
        self.shared.check()?;
        let mut from = from.clone();
        while from < *to {
            let (overlay, cursor, end) = self.view(cursor, &from, to);
            let flow = merge(&overlay, cursor, &mut visit);
            let flow = flow.map_err(|error| self.shared.told(error))?;
            match end {
                Some(next) if flow.is_continue() => from = next,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// A consistent view of the next part of a range: some of the overlay, a cursor over the state
    /// that ends where that does, and where to go on if that is not the end of the range.
    fn view<'a>(
        &'a self,
        cursor: MakeCursor<'a>,
        from: &Key,
        to: &Key,
    ) -> (OverlayPart, VersionCursor<'a>, Option<Key>) {
        // The cursor is made under the lock: what leaves the overlay later is in both, never in none.
        let overlay = self.shared.overlay.read();
        let taken: OverlayPart = overlay
            .range(from..to)
            .take(SCAN_OVERLAY_COUNT_MAX)
            .map(|(key, (value, _))| (key.clone(), value.clone()))
            .collect();
        let next = match taken.last() {
            Some((last, _)) if taken.len() == SCAN_OVERLAY_COUNT_MAX => Some(last.successor()),
            _ => None,
        };
        let cursor = cursor(
            &*self.shared.state,
            from.as_bytes(),
            next.as_ref().unwrap_or(to).as_bytes(),
            self.generation(),
        );
        (taken, cursor, next)
    }

    /// Makes the batch visible at once and queues it for the log; the order of calls is the order
    /// in the log. Never waits for I/O. A batch that is too large, or comes after the end of the
    /// store, changes nothing and gets [`Ticket::REFUSED`].
    pub fn submit(&self, batch: Batch) -> Ticket {
        self.shared.submit(batch)
    }

    /// The ticket of the last batch submitted by anyone.
    pub fn last_ticket(&self) -> Ticket {
        Ticket(LogPosition(
            self.shared.pending.lock().position_next.0.saturating_sub(1),
        ))
    }

    /// Resolves when everything up to the ticket is durable on all copies of the log. An error is
    /// final: the store refuses everything afterwards.
    pub fn durable(&self, ticket: Ticket) -> Durable {
        if ticket != Ticket::REFUSED {
            return self.shared.progress.wait(ticket.0);
        }
        let reason = self.shared.progress.stop_reason();
        let reason = reason.unwrap_or_else(|| match self.shared.stop() {
            Stop::No => MetaError::BatchTooLarge {
                len_bytes: self.shared.refused_len_bytes.load(Ordering::Relaxed),
                len_bytes_max: self.shared.settings.batch_bytes_max(),
            },
            Stop::Drained | Stop::Now => MetaError::Closed,
        });
        self.shared.progress.refuse(reason)
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

    /// Whether there is no space for metadata. What was submitted is safe in the log, reads and
    /// deletions go on; nothing should be added meanwhile, for deletions may have to wait then, too.
    pub fn is_full(&self) -> bool {
        self.shared.is_full.load(Ordering::Acquire)
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
            segments: pending.counters.segments.len() as u64,
        }
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

    /// Changes how many copies of log and state are kept. When it returns, everything submitted before
    /// has as many as there are disks for; [`MetaError::CopiesMissing`] if there is no space for some.
    /// Asked for what is set already, it makes copies that could not be made before.
    pub async fn set_copies(&self, copies: usize) -> Result<(), MetaError> {
        let copies = copies.clamp(1, SET_COUNT_MAX);
        let is_short = self.shared.log_status.lock().is_short;
        let before = self.shared.disks.want_copies(copies);
        if copies > before || is_short {
            // First: what is in the checkpoint does not have to be copied with the log.
            self.shared.ship_now().await?;
        }
        if is_short {
            self.shared.disks.ask_for_copies();
        }
        if copies != before || is_short {
            // The next group begins another log file.
            self.durable(self.submit(Batch::new())).await?;
        }
        self.check_copies()
    }

    fn check_copies(&self) -> Result<(), MetaError> {
        let volume = self.shared.disks.volume;
        match self.shared.log_status.lock().is_short {
            true => Err(MetaError::CopiesMissing { volume }),
            false => Ok(()),
        }
    }

    fn check_states(&self) -> Result<(), MetaError> {
        let volume = self.shared.disks.volume;
        match self.shared.states_are_complete() {
            false => Err(MetaError::CopiesMissing { volume }),
            true => Ok(()),
        }
    }

    /// The disk that the state is worked with on; it cannot be retired while the store is open.
    pub fn primary_disk(&self) -> DiskId {
        self.shared.disks.get(self.shared.state.disk()).id
    }

    /// Whether log and state may be kept on a disk.
    pub fn keeps_on_disk(&self, id: DiskId) -> bool {
        let disks = &self.shared.disks;
        let index = disks.index_of(id);
        index.is_some_and(|index| !disks.is_retired(index))
    }

    /// Whether a disk may have something that is needed: as long as [`MetaStore::retire_disk`] has not succeeded.
    pub fn uses_disk(&self, id: DiskId) -> bool {
        let disks = &self.shared.disks;
        let index = disks.index_of(id);
        index.is_some_and(|index| !disks.is_released(index))
    }

    /// Why the store takes nothing any more, if it has failed; open it again on other disks.
    pub fn failure(&self) -> Option<MetaError> {
        let reason = self.shared.progress.stop_reason();
        reason.filter(|reason| !matches!(reason, MetaError::Closed))
    }

    /// Adds a disk to those that log and state can be kept on; one that was retired or had failed may
    /// come back. Copies that are missing are made in the background.
    pub fn add_disk(&self, id: DiskId, disk: Arc<dyn Disk>) {
        let primary = self.shared.state.disk();
        self.shared.disks.add(id, disk);
        if let Some(index) = self
            .shared
            .disks
            .index_of(id)
            .filter(|index| *index != primary)
        {
            // What it had may have been removed meanwhile.
            self.shared.states.lock().retain(|(at, _)| *at != index);
            self.shared.refused_states.lock().remove(&index);
        }
        self.shared.ship_in_background();
        // The next group begins another log file, which names the disk.
        self.submit(Batch::new());
    }

    /// Keeps nothing on a disk any more. When it returns, everything submitted before has its copies on
    /// the others, as far as there are enough, and so has the state. Fails for the disk of the state itself, and as
    /// long as there is no space for the copies: the disk may hold the only one of something then. To be called again after that;
    /// nothing new is put on the disk meanwhile.
    pub async fn retire_disk(&self, id: DiskId) -> Result<(), MetaError> {
        let Some(index) = self.shared.disks.index_of(id) else {
            return Ok(());
        };
        if self.shared.disks.is_released(index) {
            return Ok(());
        }
        if index == self.shared.state.disk() {
            return Err(MetaError::State(format!(
                "the state is on disk {id}; open the volume on other disks"
            )));
        }
        if !self.shared.disks.retire(index) {
            // It was tried before. Each try that begins a file for the copies leaves one more where they find no
            // space: only when the state has its copies, so that the log can be cut.
            self.shared.ship_now().await?;
            self.check_states()?;
            if self.shared.log_status.lock().is_short {
                self.shared.disks.ask_for_copies();
            }
        }
        // The next group begins another log file, which does not name the disk; what older ones hold is in
        // the checkpoints then.
        self.durable(self.submit(Batch::new())).await?;
        self.check_copies()?;
        self.shared.ship_now().await?;
        // No copy is on its way there when it is let go.
        let _shipping = self.shared.shipping.lock().await;
        // The disk may have the only other one.
        self.check_states()?;
        // An old one there is of no use to anybody, and would keep the disk from being closed.
        self.shared.leave_superseded(|disk| disk == index);
        self.shared.disks.release(index);
        Ok(())
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
        shared.disks.give_all_up();
        shared.state.leave();
        shared.ask_stop(Stop::Now);
        shared.leave_superseded(|_| true);
        shared.admission.notify_waiters();
    }

    async fn end(&self, stop: Stop) {
        self.shared.ask_stop(stop);
        self.shared.tasks.idle().await;
        self.shared.progress.stop(MetaError::Closed);
        self.shared.admission.notify_waiters();
        // Copies that somebody asked for are still being made, perhaps without anybody waiting: none of them may land
        // on what is opened in the place of this store.
        self.shared.disks.end();
        drop(self.shared.shipping.lock().await);
    }

    pub fn stats(&self) -> MetaStats {
        self.shared.stats()
    }
}

/// Merges two ordered sequences; the overlay's entry for a key is the newer.
fn merge(
    overlay: &[(Key, Option<Bytes>)],
    mut cursor: VersionCursor<'_>,
    visit: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, MetaError> {
    let mut overlay = overlay.iter().peekable();
    let mut entry = Entry::default();
    let mut has_entry = cursor.next(&mut entry)?;
    loop {
        let newer = overlay.peek().map(|(key, value)| (key.as_bytes(), value));
        let flow = match newer {
            None if !has_entry => return Ok(ControlFlow::Continue(())),
            Some((key, value)) if !has_entry || key <= entry.key.as_slice() => {
                let replaces = has_entry && key == entry.key;
                let flow = match value {
                    Some(value) => visit(key, value),
                    None => ControlFlow::Continue(()),
                };
                overlay.next();
                if replaces {
                    has_entry = cursor.next(&mut entry)?;
                }
                flow
            }
            _ => {
                let flow = visit(&entry.key, &entry.value);
                has_entry = cursor.next(&mut entry)?;
                flow
            }
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
}
