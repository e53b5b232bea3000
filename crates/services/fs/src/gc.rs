//! Garbage collection: segments without live records, and segments with few.
//!
//! Owns: which segments are deleted or rewritten and when, how writers are throttled to that pace. Must not know: how
//! much garbage is too much (`gc_policy`), how records are moved (`rewrite`). Invariant: a segment is deleted only
//! after its removal from the metadata is durable, and never while an append to it is not committed (such a segment
//! is pinned).

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::SegmentId;
use cairn_base::planted::{self, Bug};
use cairn_meta::{Batch, SegmentRecord, SegmentTotals};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::gc_policy::{Budget, CANDIDATES_MAX, Idle, Limits, Quiet, Room, Survey, idle_garbage};
use crate::kernel::{Bare, segment_error};
use crate::tasks::let_others_run;
use crate::tiering::{UNUSED_OBJECT, unused_object};
use crate::types::FsError;
use crate::volume::{Fs, VolumeCore};

/// Minimum time between two rounds, however often writers find no space.
const ROUND_PAUSE: Duration = Duration::from_millis(20);
/// After so many rounds, one round also looks for segments that the metadata does not know.
const UNREFERENCED_ROUNDS: u64 = 4;
/// Segments that the survey visits before it yields to other tasks.
const SURVEY_SEGMENTS_MAX: usize = 1024;
/// Segments without a live record that one pass deletes; the next pass finds more.
const DEAD_MAX: usize = 4096;
/// The next survey starts early when this part of the allowed garbage may have come since the last one.
const LOOK_GARBAGE_PART: u64 = 8;
/// Interval of the log message that there is no space to collect garbage with.
const NO_SPACE_TOLD: Duration = Duration::from_secs(60);
/// Maximum time that a flight waits for the collector.
const TURN_WAIT_MAX: Duration = Duration::from_millis(250);
/// Segments that one batch removes from the metadata.
const REMOVE_SEGMENTS_MAX: usize = 256;
/// Maximum number of segments that are not noted as sealed because some disk lacks a part of them; the oldest ones
/// are kept unnoted, and such segments are not collected. If there are more, the next start checks all segments since
/// the first of them ([`suspects`]).
const LACKING_SEGMENTS_MAX: usize = 64;
/// Approximate maximum size of the sharers' keys in one batch.
const REMOVE_BATCH_LEN_BYTES: usize = 1 << 20;
/// Segments that a round rewrites if its rate is limited, or if the volume is idle. Then the collector checks again
/// whether there is room, and whether the volume is still idle.
const LIMITED_SEGMENTS_MAX: usize = 4;
/// Time before the collector tries again to empty a segment that it could not empty.
const STUCK_PAUSE: Duration = Duration::from_secs(30);

/// Settings of garbage collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcSettings {
    /// Interval of collection; short space starts it earlier.
    pub interval: Duration,
    /// Allowed garbage: room in sealed segments that no live record takes, as a share of the live bytes. The share is
    /// less when the pool fills up,
    pub garbage_percent: u64,
    /// and so many bytes are allowed beside; `None`: a fourth of the pool's reserve.
    pub garbage_bytes: Option<u64>,
    /// The next survey starts early when a part of the allowed garbage was written, and at least so many bytes.
    pub look_bytes_min: u64,
    /// Open segments without an append for so long are sealed.
    pub seal_idle: Duration,
}

impl Default for GcSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            garbage_percent: 25,
            garbage_bytes: None,
            look_bytes_min: 8 << 20,
            seal_idle: Duration::from_secs(60),
        }
    }
}

/// The backlog of garbage collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcBacklog {
    /// Removed files whose extents still exist.
    pub orphans: u64,
    /// Segments without a live record, and their room for data.
    pub dead_segments: u64,
    pub dead_bytes: u64,
    /// Room in sealed segments with live records that these records do not take,
    pub sparse_bytes: u64,
    /// and how much of it is allowed: less when the volume is idle.
    pub sparse_bytes_allowed: u64,
}

impl GcBacklog {
    /// All room that no live record takes.
    pub fn garbage_bytes(&self) -> u64 {
        self.dead_bytes.saturating_add(self.sparse_bytes)
    }

    /// The bytes to give back now.
    pub fn bytes(&self) -> u64 {
        self.dead_bytes + self.sparse_bytes.saturating_sub(self.sparse_bytes_allowed)
    }
}

/// The state of a volume's collector, and its throttle for writers.
pub(crate) struct Collector {
    settings: GcSettings,
    /// The last survey found more garbage than is allowed.
    is_behind: AtomicBool,
    /// Bytes that clients may write until garbage is urgent, if all of them become garbage. Below 0, they wait.
    credit_bytes: AtomicI64,
    turns: Semaphore,
    /// Notified after a survey; the writer that has the turn may wait for it.
    looked: Notify,
    /// Bytes that clients may still write until the next survey is due.
    unseen_bytes_left: AtomicI64,
    /// Segments that could not be emptied, each with the time of the next attempt.
    stuck: Mutex<FxHashMap<SegmentId, Duration>>,
    budget: Mutex<Budget>,
    idle: Mutex<Idle>,
    quiet: Mutex<Quiet>,
}

impl Collector {
    pub fn new(settings: GcSettings) -> Self {
        let look_bytes_min = settings.look_bytes_min;
        Self {
            settings,
            is_behind: AtomicBool::new(false),
            credit_bytes: AtomicI64::new(0),
            turns: Semaphore::new(1),
            looked: Notify::new(),
            unseen_bytes_left: AtomicI64::new(look_bytes_min as i64),
            stuck: Mutex::default(),
            budget: Mutex::default(),
            idle: Mutex::default(),
            quiet: Mutex::default(),
        }
    }

    /// Takes the bytes of a flight from the credit. Returns whether the flight must wait for its turn.
    fn take(&self, len_bytes: u64) -> bool {
        let len_bytes = i64::try_from(len_bytes).unwrap_or(i64::MAX);
        let before = self.credit_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
        self.is_behind.load(Ordering::Relaxed) && before <= 0
    }

    fn must_wait(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed) && self.credit_bytes.load(Ordering::Relaxed) <= 0
    }

    /// Notes so many flushed bytes. Returns whether that makes a survey due.
    pub fn note_flushed(&self, len_bytes: u64) -> bool {
        let len_bytes = len_bytes as i64;
        let before = self
            .unseen_bytes_left
            .fetch_sub(len_bytes, Ordering::Relaxed);
        before > 0 && before <= len_bytes
    }

    pub fn is_look_due(&self) -> bool {
        self.unseen_bytes_left.load(Ordering::Relaxed) <= 0
    }

    /// Notes the end of a survey; the next one is due when a part of the allowed garbage was written since.
    fn note_look(&self, limits: &Limits, garbage_bytes: u64) {
        let left = (limits.allowed_bytes / LOOK_GARBAGE_PART).max(self.settings.look_bytes_min);
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        self.unseen_bytes_left.store(left, Ordering::Relaxed);
        let is_behind = limits.urgency(garbage_bytes) > 0.0;
        let credit = limits.credit_bytes(garbage_bytes);
        let credit = i64::try_from(credit).unwrap_or(i64::MAX);
        self.credit_bytes.store(credit, Ordering::Relaxed);
        self.is_behind.store(is_behind, Ordering::Relaxed);
        self.looked.notify_one();
    }

    /// Lets all writers pass until the next survey.
    fn let_all_go(&self) {
        self.is_behind.store(false, Ordering::Relaxed);
        self.looked.notify_one();
    }
}

/// The collector's decision on a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Keep,
    /// The metadata has the segment, without live records in it.
    Dead,
    /// The metadata does not have the segment: the flush that made it failed, or its file was removed first.
    Unreferenced,
}

/// Decides on a segment. Checks first whether appends may still add to it, then how many live records the metadata
/// counts in it (`None` if the metadata has no such segment).
///
/// The order matters: an append may commit its records and release the segment between the two checks. An idle
/// segment stays idle, and from then on no record in it becomes live.
fn fate(is_idle: impl FnOnce() -> bool, live_records: impl FnOnce() -> Option<u64>) -> Fate {
    if !is_idle() {
        return Fate::Keep;
    }
    match live_records() {
        Some(0) => Fate::Dead,
        Some(_) => Fate::Keep,
        None => Fate::Unreferenced,
    }
}

impl Fs {
    /// How much garbage there is to collect.
    pub fn gc_backlog(&self) -> GcBacklog {
        let mut backlog = GcBacklog {
            orphans: self.shared.orphans.count(),
            ..GcBacklog::default()
        };
        let totals = self.shared.meta.segment_totals();
        backlog.dead_segments = totals.dead_segments;
        backlog.dead_bytes = totals.dead_bytes;
        backlog.sparse_bytes = totals.sparse_bytes;
        let is_volume_idle = self.shared.is_volume_idle(totals.sparse_bytes);
        let (limits, _) = self.shared.limits_when(totals.live_bytes, is_volume_idle);
        backlog.sparse_bytes_allowed = limits.allowed_bytes;
        backlog
    }
}

impl VolumeCore {
    pub(crate) async fn run_gc(self: Arc<Self>) {
        let interval = self.collector.settings.interval;
        let mut rounds = 0;
        let mut told_at: Option<Duration> = None;
        while self.tasks.pause(interval, self.gc_wake.notified()).await {
            let collected = self.collect_garbage(rounds).await;
            if collected.is_err() {
                self.collector.let_all_go();
            }
            match collected {
                Ok(()) => {}
                Err(_) if self.tasks.is_stopping() => return,
                // Everything is full, the collector's own reserve included; deletions go on.
                Err(FsError::NoSpace) => {
                    let now = self.env.clock.monotonic();
                    if told_at.is_none_or(|at| now.saturating_sub(at) >= NO_SPACE_TOLD) {
                        told_at = Some(now);
                        tracing::warn!(volume = %self.volume, "no space to collect garbage with");
                    }
                }
                Err(error) => {
                    self.counters.gc_errors.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(volume = %self.volume, %error, "garbage collection failed; it is tried again");
                }
            }
            rounds += 1;
            if !self.tasks.pause(ROUND_PAUSE, pending()).await {
                return;
            }
        }
    }

    /// One round: deletes dead segments, and rewrites some segments if there is too much garbage.
    async fn collect_garbage(self: &Arc<Self>, round: u64) -> Result<(), FsError> {
        let totals = self.tend().await?;
        if self.tasks.is_stopping() {
            // Another node may have opened the volume by now, with segments that this node's metadata does not know.
            return Ok(());
        }
        let (usual, room) = self.limits(totals.live_bytes);
        // Garbage above the usual limit is collected at the usual pace, also in an idle volume.
        let is_volume_idle =
            totals.sparse_bytes <= usual.allowed_bytes && self.is_volume_idle(totals.sparse_bytes);
        let limits = match is_volume_idle {
            true => self.limits_when(totals.live_bytes, true).0,
            false => usual,
        };
        if limits.is_pressed || round.is_multiple_of(UNREFERENCED_ROUNDS) {
            self.remove_unreferenced().await?;
        }
        let has_too_much = totals.sparse_bytes > limits.allowed_bytes;
        let survey = match has_too_much {
            true => self.survey().await?,
            false => Survey::default(),
        };
        // Room comes before any rate: without it clients cannot write, and no other data can be moved.
        let pace = self.collection_pace.as_deref();
        let pace = pace.filter(|pace| pace.is_limited() && !limits.is_pressed);
        let segments_max = match is_volume_idle || pace.is_some() {
            true => LIMITED_SEGMENTS_MAX,
            false => usize::MAX,
        };
        let chosen: FxHashSet<SegmentId> = {
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let flushed_bytes = of(&self.counters.flushed_bytes);
            let moved_bytes = of(&self.counters.gc_rewritten_bytes);
            let mut budget = self.collector.budget.lock();
            let budget_bytes = budget.update(totals.live_bytes, flushed_bytes, moved_bytes);
            let now = self.env.clock.monotonic();
            let mut stuck = self.collector.stuck.lock();
            stuck.retain(|_, until| *until > now);
            let is_free = |id| !stuck.contains_key(&id) && self.is_idle(id);
            let chosen = survey.choose(&limits, room, budget_bytes, is_free);
            chosen.into_iter().take(segments_max).collect()
        };
        if chosen.is_empty() {
            // There is nothing that a writer could wait for.
            self.collector.let_all_go();
            if is_volume_idle && has_too_much {
                let now = self.env.clock.monotonic();
                let stuck = (!self.collector.stuck.lock().is_empty()).then_some(STUCK_PAUSE);
                let mut idle = self.collector.idle.lock();
                idle.rest(totals.sparse_bytes, stuck, now);
            }
            return Ok(());
        }
        let rewritten = self.rewrite(chosen, pace).await;
        self.note_sealed();
        self.remove_dead(&self.meta.dead_segments(DEAD_MAX)).await?;
        self.note_stuck(&rewritten?);
        // There may be more garbage, which the next round takes. In an idle volume it waits for the next survey: a
        // few segments for each survey leave the disks alone most of the time.
        if !is_volume_idle {
            self.gc_wake.notify_one();
        }
        Ok(())
    }

    /// Waits for a writer's turn. A turn comes at once, unless writers outrun the collector: then each comes after a
    /// survey that finds less garbage. The wait is bounded, so writers go on when the collector cannot.
    pub(crate) async fn writer_turn(&self, len_bytes: u64) -> Option<SemaphorePermit<'_>> {
        let collector = &self.collector;
        if !collector.take(len_bytes) {
            return None;
        }
        let turn = collector.turns.acquire().await.ok()?;
        let begun = self.env.clock.monotonic();
        while collector.must_wait() {
            let waited = self.env.clock.monotonic().saturating_sub(begun);
            let left = TURN_WAIT_MAX.saturating_sub(waited);
            self.gc_wake.notify_one();
            if left.is_zero() || !self.tasks.pause(left, collector.looked.notified()).await {
                break;
            }
        }
        Some(turn)
    }

    /// The work that needs no copying: seals open segments that no append uses, gives back unused memory and files,
    /// deletes dead segments. Returns the totals before the deletion. The cost does not depend on the number of
    /// segments.
    pub(crate) async fn tend(self: &Arc<Self>) -> Result<SegmentTotals, FsError> {
        let idle = self.collector.settings.seal_idle;
        self.segments.seal_idle(self.volume, idle).await;
        self.trim_idle_extents();
        self.segments.relieve().await;
        self.note_sealed();
        let totals = self.meta.segment_totals();
        let (limits, _) = self.limits(totals.live_bytes);
        self.collector.note_look(&limits, totals.sparse_bytes);
        self.remove_dead(&self.meta.dead_segments(DEAD_MAX)).await?;
        let (change, now) = (self.meta.last_change().0.0, self.env.clock.monotonic());
        if self.collector.quiet.lock().is_due(change, now) {
            self.meta.give_back_log();
        }
        Ok(totals)
    }

    /// Notes the rewritten segments that still have live records.
    fn note_stuck(&self, chosen: &FxHashSet<SegmentId>) {
        let until = self.env.clock.monotonic() + STUCK_PAUSE;
        for id in chosen {
            let live_records = self
                .meta
                .segment(*id)
                .map_or(0, |record| record.live_records);
            if live_records > 0 {
                tracing::debug!(volume = %self.volume, segment = %id, live_records, "a segment was not emptied");
                let mut stuck = self.collector.stuck.lock();
                if stuck.len() < CANDIDATES_MAX {
                    stuck.insert(*id, until);
                }
            }
        }
    }

    /// The limits on garbage, and the room that they depend on.
    pub(crate) fn limits(&self, live_bytes: u64) -> (Limits, Room) {
        self.limits_when(live_bytes, false)
    }

    /// Whether the volume has been idle for a while and more garbage can be given back.
    fn is_volume_idle(&self, garbage_bytes: u64) -> bool {
        let flushed_bytes = self.counters.flushed_bytes.load(Ordering::Relaxed);
        let now = self.env.clock.monotonic();
        let mut idle = self.collector.idle.lock();
        idle.look(flushed_bytes, garbage_bytes, now)
    }

    fn limits_when(&self, live_bytes: u64, is_volume_idle: bool) -> (Limits, Room) {
        let code = self.code().unwrap_or_else(|_| self.segments.default_code());
        // Space that is reserved for files is no room for garbage.
        let usable = self.usable(code);
        let room = Room {
            total_bytes: usable.total_bytes,
            free_bytes: usable.free_bytes,
            rewrite_bytes: usable.rewrite_bytes,
        };
        let settings = &self.collector.settings;
        let garbage_bytes = settings.garbage_bytes.unwrap_or_else(|| {
            let reserve_bytes = self.segments.space().reserve_bytes;
            reserve_bytes / u64::from(code.total()) * u64::from(code.data()) / 4
        });
        let (garbage_percent, garbage_bytes) = match is_volume_idle {
            true => {
                let volume_count = self.segments.volume_count();
                idle_garbage(settings.garbage_percent, garbage_bytes, volume_count)
            }
            false => (settings.garbage_percent, garbage_bytes),
        };
        let limits = Limits::of(live_bytes, room, garbage_percent, garbage_bytes);
        (limits, room)
    }

    /// Surveys all segments for those worth rewriting, when there is too much garbage; in parts, so that no task
    /// waits for it.
    async fn survey(&self) -> Result<Survey, FsError> {
        let newest = self.meta.segment_totals().newest;
        let surveys = &self.counters.gc_surveys;
        surveys.fetch_add(1, Ordering::Relaxed);
        let mut survey = Survey::default();
        let mut from = SegmentId(0);
        loop {
            let some = self.meta.segment_usage(from, SURVEY_SEGMENTS_MAX);
            some.iter().for_each(|usage| survey.add(usage, newest));
            match some.last() {
                Some(last) if some.len() == SURVEY_SEGMENTS_MAX => from = SegmentId(last.id.0 + 1),
                _ => return Ok(survey),
            }
            let_others_run().await;
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
        }
    }

    /// Notes in the metadata which segments were sealed since the last call, with their remaining room. A segment of
    /// which a disk lacks a part is noted only after the repair: by the missing note, the next start finds it.
    pub(crate) fn note_sealed(&self) {
        let mut from = SegmentId(0);
        let mut lacking = 0;
        loop {
            let some = self.meta.unsealed_segments(from, REMOVE_SEGMENTS_MAX);
            let mut batch = Batch::new();
            let settled = some.iter().filter_map(|id| {
                let len_bytes = self.segments.settled_len_bytes(self.volume, *id)?;
                if lacking < LACKING_SEGMENTS_MAX && self.segments.may_lack(self.volume, *id) {
                    lacking += 1;
                    return None;
                }
                Some((*id, len_bytes))
            });
            for (id, len_bytes) in settled {
                batch.seal_segment(id, len_bytes);
            }
            if !batch.is_empty() {
                // No caller waits: after a crash, the next call notes them again.
                self.commit_bare(Bare::Segments, batch);
            }
            match some.last() {
                Some(last) if some.len() == REMOVE_SEGMENTS_MAX => from = SegmentId(last.0 + 1),
                _ => return,
            }
        }
    }

    /// Deletes those of some segments that have no live records.
    pub(crate) async fn remove_dead(
        self: &Arc<Self>,
        candidates: &[SegmentId],
    ) -> Result<(), FsError> {
        let dead: Vec<SegmentId> = candidates
            .iter()
            .copied()
            .filter(|id| self.fate(*id) == Fate::Dead)
            .collect();
        for dead in dead.chunks(REMOVE_SEGMENTS_MAX) {
            self.remove_segments(dead).await?;
        }
        Ok(())
    }

    /// Deletes segments that have no live records, or whose records no snapshot or file needs.
    pub(crate) async fn remove_segments(&self, ids: &[SegmentId]) -> Result<(), FsError> {
        // The changes that made the segments dead are durable before they are deleted, and so is their removal. No
        // new sharer refers to dead records.
        let mut batch = Batch::new();
        let full_bytes = REMOVE_BATCH_LEN_BYTES.min(self.meta.batch_bytes_max() / 2);
        for id in ids {
            for key in self.reading(|| self.sharer_keys(*id)).await? {
                batch.delete(key);
                if batch.len_bytes() >= full_bytes {
                    self.commit_bare(Bare::Segments, std::mem::take(&mut batch));
                    self.meta.admit().await;
                }
            }
        }
        for id in ids {
            // Segments without live records are no longer offloaded to a tier, so this place is final.
            if let Some(remote) = self.meta.segment(*id).and_then(|record| record.remote)
                && !planted::is(Bug::TierDeadObjectNotNoted)
            {
                batch.put(unused_object(*id, &remote), UNUSED_OBJECT);
                self.tiering.wake.notify_one();
            }
            batch.remove_segment(*id);
        }
        let ticket = self.commit_bare(Bare::Segments, batch);
        self.durable(ticket).await?;
        self.delete_segments(ids).await
    }

    /// Deletes segments that the metadata does not know. The start swept those that a crash left; this call finds
    /// those of flushes that failed, or whose file was removed before they landed.
    async fn remove_unreferenced(self: &Arc<Self>) -> Result<(), FsError> {
        // This drops known segments from the list: from then on the collector asks only whether they are dead.
        let is_known = |id: SegmentId| self.meta.segment(id).is_some();
        let found: Vec<SegmentId> = self
            .segments
            .uncommitted(self.volume, is_known)
            .into_iter()
            .filter(|id| self.fate(*id) == Fate::Unreferenced)
            .collect();
        if found.is_empty() {
            return Ok(());
        }
        // A segment whose removal is submitted and not durable would come back in a crash.
        self.durable(self.meta.last_ticket()).await?;
        tracing::info!(volume = %self.volume, segments = found.len(), "deleting segments that nothing refers to");
        self.delete_segments(&found).await
    }

    pub(crate) async fn delete_segments(&self, ids: &[SegmentId]) -> Result<(), FsError> {
        // Segments that stay after an error are found again.
        self.segments.note_uncommitted(self.volume, ids);
        for id in ids {
            self.segments
                .remove(self.volume, *id)
                .await
                .map_err(segment_error)?;
            self.counters
                .gc_segments_removed
                .fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn fate(&self, id: SegmentId) -> Fate {
        let live_records = || self.meta.segment(id).map(|record| record.live_records);
        fate(|| self.is_idle(id), live_records)
    }

    /// Whether appends can no longer add to a segment. The order matters here, too: stripes are added only while the
    /// segment is open, and until they are committed it is pinned.
    pub(crate) fn is_idle(&self, id: SegmentId) -> bool {
        let is_pinned =
            || self.segments.is_pinned(self.volume, id) && !planted::is(Bug::CollectorIgnoresPins);
        !self.segments.is_open(self.volume, id) && !is_pinned()
    }
}

/// Segments of which a disk may lack a part, as far as the metadata of a just opened volume tells. If it names the
/// maximum number, disks may also lack parts of newer segments that are noted as sealed.
pub(crate) fn suspects(records: &[(SegmentId, SegmentRecord)]) -> Vec<SegmentId> {
    let on_disks = records.iter().filter(|(_, record)| record.remote.is_none());
    let unsealed = on_disks.clone().filter(|(_, record)| !record.sealed);
    let unsealed: Vec<SegmentId> = unsealed.map(|(id, _)| *id).collect();
    let oldest = unsealed.iter().min().copied();
    match oldest.filter(|_| unsealed.len() >= LACKING_SEGMENTS_MAX) {
        Some(oldest) => on_disks
            .map(|(id, _)| *id)
            .filter(|id| *id >= oldest)
            .collect(),
        None => unsealed,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use cairn_base::TierId;
    use cairn_meta::RemoteSegment;

    use super::*;

    /// A start checks of which segments disks lack a part. It finds them also where they are more than the metadata
    /// names.
    #[test]
    fn where_the_metadata_names_as_many_as_it_may_newer_segments_are_suspects() {
        let max = LACKING_SEGMENTS_MAX as u64;
        let record = |id: u64, sealed| {
            let record = SegmentRecord {
                sealed,
                ..SegmentRecord::default()
            };
            (SegmentId(id), record)
        };
        // No disk lacks a part of the ten old segments. Of the `lacking` segments after them disks do, and the ten
        // newest are noted as sealed all the same.
        let records = |lacking: u64| -> Vec<(SegmentId, SegmentRecord)> {
            let newest = 10 + lacking + 10;
            let is_noted = |id: u64| id <= 10 || id > 10 + lacking;
            (1..=newest).map(|id| record(id, is_noted(id))).collect()
        };
        for (lacking, want) in [
            (0, Vec::new()),
            (1, vec![11]),
            (max - 1, (11..10 + max).collect()),
            (max, (11..=10 + max + 10).collect::<Vec<u64>>()),
        ] {
            let found: Vec<u64> = suspects(&records(lacking)).iter().map(|id| id.0).collect();
            assert_eq!(found, want, "{lacking} segments");
        }
        // Segments in a tier have no disks.
        let mut tiered = records(max);
        for (_, record) in &mut tiered {
            record.remote = Some(RemoteSegment {
                tier: TierId(1),
                nonce: 1,
                object_len_bytes: 1,
                sent_live_bytes: 1,
            });
        }
        assert!(suspects(&tiered).is_empty());
    }

    /// An append ends (commits a live record, then releases the segment) at every point between the checks.
    #[test]
    fn a_segment_is_not_taken_for_dead_while_an_append_ends() {
        for known in [true, false] {
            for ends_after_looks in 0..3 {
                let looks = Cell::new(0);
                let has_ended = || {
                    let ended = looks.get() >= ends_after_looks;
                    looks.set(looks.get() + 1);
                    ended
                };
                let before = known.then_some(0);
                let got = fate(has_ended, || if has_ended() { Some(1) } else { before });
                assert_eq!(
                    got,
                    Fate::Keep,
                    "known: {known}, after {ends_after_looks} looks"
                );
            }
        }
    }

    #[test]
    fn only_idle_segments_without_live_records_go() {
        let cases = [
            (true, Some(0), Fate::Dead),
            (true, None, Fate::Unreferenced),
            (true, Some(1), Fate::Keep),
            (false, Some(0), Fate::Keep),
            (false, None, Fate::Keep),
        ];
        for (is_idle, live_records, want) in cases {
            assert_eq!(
                fate(|| is_idle, || live_records),
                want,
                "{is_idle} {live_records:?}"
            );
        }
    }
}
