//! The life of one segment: its stage, and the stages that may follow.
//!
//! Owns: the stages of a segment and the steps between them, all under one lock; reservation of stripes; which of its
//! shards are being rebuilt or moved. Must not know: other segments, disk errors, the bytes of records.
//!
//! ```text
//! Creating -> Open -> Closing -> Sealing -> Sealed        any of them -> Removing -> Removed
//! ```
//!
//! Only the process that made a segment appends to it. A start seals the segments that it finds, whatever their shards
//! hold, because their ends are unknown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, Media, SegmentId, VolumeId};
use cairn_erasure::Code;
use cairn_formats::metadata::RemoteSegment;
use cairn_formats::settings::Protection;
use cairn_formats::summary::{SUMMARY_ENTRIES_MAX, SummaryEntry};
use cairn_shard::ShardService;
use parking_lot::Mutex;

use crate::layout::{RecordShape, StripePlan, plan_stripe};
use crate::summary::summary_blocks;
use crate::types::SegmentInfo;

/// A segment of an open volume.
#[derive(Debug)]
pub(crate) struct Segment {
    pub volume: VolumeId,
    /// Term of the owner that opened it: changes of its shards carry this epoch.
    pub epoch: Epoch,
    pub id: SegmentId,
    pub code: Code,
    /// Disk of each shard, by index. A move of a shard replaces the list. Outside of the state, because every read
    /// needs it.
    disks: ArcSwap<Vec<DiskId>>,
    pub shard_len_bytes: u64,
    /// Set if the bytes are in a tier and on no disk. A move to a tier replaces the `Segment`.
    pub remote: Option<RemoteSegment>,
    /// The wanted device class.
    pub media: Option<Media>,
    /// The wanted protection, if it differs from the volume's.
    pub protection: Option<Protection>,
    /// Whether clients have read it since the last query.
    is_used: AtomicBool,
    /// Held shared by writers to the shards (appends, repairs), and exclusively by sealing and removal: the file of a
    /// removed shard may belong to another segment a moment later.
    pub gate: Arc<tokio::sync::RwLock<()>>,
    /// Held by a repair, and by a scrub of a part. Both write whole blocks, and two writers of records in one block
    /// would undo each other. Taken with the gate held.
    pub repair: tokio::sync::Mutex<()>,
    /// Number of uncommitted appends to it: while there are any, the segment is not dead.
    pins: AtomicU32,
    state: Mutex<State>,
}

/// Stages of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its shards are being created.
    Creating,
    /// It accepts stripes.
    Open,
    /// It accepts no more stripes, and is sealed when the writes in progress are done.
    Closing,
    /// Its shards get their footers, and may be truncated.
    Sealing,
    /// It is immutable and its files stay; `shard_len_bytes` is the length for data in each.
    Sealed { shard_len_bytes: u64 },
    /// It cannot be found any more. Appends that found it before may still write.
    Removing,
    /// Nothing writes to it any more; its shards are deleted.
    Removed,
}

impl Stage {
    /// Whether stage `next` may follow.
    fn may_become(self, next: Stage) -> bool {
        match (self, next) {
            (Stage::Removing, next) => next == Stage::Removed,
            (Stage::Removed, _) => false,
            (_, Stage::Removing)
            | (Stage::Creating, Stage::Open)
            | (Stage::Open, Stage::Closing | Stage::Sealing)
            | (Stage::Closing, Stage::Sealing)
            | (Stage::Sealing, Stage::Sealed { .. }) => true,
            _ => false,
        }
    }
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// Present from [`Stage::Open`] until sealing takes it, or until removal.
    open: Option<OpenSegment>,
    /// Shards being rebuilt, and those whose rebuild failed, with the earliest time of the next try (of the monotonic
    /// clock).
    rebuilding: Vec<(u8, Duration)>,
    /// Shards that are being moved, with their targets: the new files are no orphans. Includes shards whose move has an
    /// unknown outcome.
    moving: Vec<(u8, DiskId)>,
    /// It is being copied to a tier, or the outcome of a copy is unknown. No shard is moved meanwhile.
    is_leaving: bool,
}

impl State {
    fn new(stage: Stage) -> Mutex<Self> {
        Mutex::new(Self {
            stage,
            open: None,
            rebuilding: Vec::new(),
            moving: Vec::new(),
            is_leaving: false,
        })
    }

    /// The only way from stage to stage. A forbidden step is a bug, and would lose data sooner or later.
    fn step(&mut self, next: Stage) {
        let before = self.stage;
        assert!(before.may_become(next), "{before:?} became {next:?}");
        self.stage = next;
    }

    /// The open part, if appends are allowed.
    fn takes_stripes(&mut self) -> Option<&mut OpenSegment> {
        let open = self.open.as_mut();
        open.filter(|_| self.stage == Stage::Open)
    }
}

/// The part of a segment that exists while it is open.
pub(crate) struct OpenSegment {
    /// Handles of its shards, by index.
    pub shards: Vec<Arc<dyn ShardService>>,
    next_block: u32,
    end_block: u32,
    last_used: Duration,
    /// Stripes that were written, in no order.
    pub stripes: Vec<WrittenStripe>,
    /// At least one append to it was acknowledged.
    pub appended: bool,
    /// Shards with a failed write: their contents are unknown, so they get no footer.
    pub shard_failed: Vec<bool>,
    /// Records in reserved stripes, written or not: the summary will need room for them.
    record_count: usize,
    /// Owners of the records in written stripes; `None` once a record has no owner.
    summary: Option<Vec<SummaryEntry>>,
}

impl std::fmt::Debug for OpenSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenSegment")
            .field("next_block", &self.next_block)
            .field("end_block", &self.end_block)
            .finish_non_exhaustive()
    }
}

/// A stripe on disk, for the footers.
#[derive(Clone, Debug)]
pub(crate) struct WrittenStripe {
    pub stripe_block: u32,
    pub unit_blocks: u16,
    /// Per shard: CRC32C of the stripe's bytes, cut at the footer's chunks.
    pub checksums: Vec<Vec<u32>>,
}

/// A stripe with a reserved place.
#[derive(Clone, Debug)]
pub(crate) struct ReservedStripe {
    pub stripe_block: u32,
    pub plan: StripePlan,
}

impl Segment {
    /// A segment that takes no appends.
    pub fn known(volume: VolumeId, epoch: Epoch, info: SegmentInfo) -> Self {
        let shard_len_bytes = info.shard_len_bytes;
        Self::at(volume, epoch, info, Stage::Sealed { shard_len_bytes })
    }

    /// A segment that is being created; appends start with [`Self::open_with`].
    pub fn created(volume: VolumeId, epoch: Epoch, info: SegmentInfo) -> Self {
        Self::at(volume, epoch, info, Stage::Creating)
    }

    fn at(volume: VolumeId, epoch: Epoch, info: SegmentInfo, stage: Stage) -> Self {
        Self {
            volume,
            epoch,
            id: info.id,
            code: info.code,
            disks: ArcSwap::from_pointee(info.disks),
            shard_len_bytes: info.shard_len_bytes,
            remote: info.remote,
            media: info.media,
            protection: info.protection,
            is_used: AtomicBool::new(false),
            gate: Arc::default(),
            repair: tokio::sync::Mutex::default(),
            pins: AtomicU32::new(0),
            state: State::new(stage),
        }
    }

    /// Opens the segment for stripes: its shards exist and have room for `data_blocks` blocks of data each. No effect
    /// if the segment was removed meanwhile with its volume.
    pub fn open_with(&self, shards: Vec<Arc<dyn ShardService>>, data_blocks: u32, now: Duration) {
        let mut state = self.state.lock();
        if state.stage != Stage::Creating {
            return;
        }
        state.step(Stage::Open);
        state.open = Some(OpenSegment {
            shard_failed: vec![false; shards.len()],
            shards,
            next_block: 0,
            end_block: data_blocks,
            last_used: now,
            stripes: Vec::new(),
            appended: false,
            record_count: 0,
            summary: Some(Vec::new()),
        });
    }

    pub fn info(&self) -> SegmentInfo {
        let settled = self.settled_len_bytes();
        SegmentInfo {
            id: self.id,
            code: self.code,
            disks: self.disks().to_vec(),
            shard_len_bytes: settled.unwrap_or(self.shard_len_bytes),
            sealed: settled.is_some(),
            remote: self.remote,
            media: self.media,
            protection: self.protection,
        }
    }

    /// Notes a read by a client.
    pub fn note_used(&self) {
        // A read before the write: all readers share this cache line.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether clients have read the segment since the last call.
    pub fn take_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed) && self.is_used.swap(false, Ordering::Relaxed)
    }

    /// Starts a copy to a tier. True for one caller, if the segment is sealed, on disks, and none of its shards is
    /// being moved.
    pub fn begin_leaving(&self) -> bool {
        let mut state = self.state.lock();
        let is_sealed = matches!(state.stage, Stage::Sealed { .. });
        let free =
            is_sealed && self.remote.is_none() && state.moving.is_empty() && !state.is_leaving;
        state.is_leaving |= free;
        free
    }

    /// Ends a copy: the segment stays on disks.
    pub fn end_leaving(&self) {
        self.state.lock().is_leaving = false;
    }

    /// Length for data in each shard, once sealing is over and the length is final.
    pub fn settled_len_bytes(&self) -> Option<u64> {
        match self.state.lock().stage {
            Stage::Sealed { shard_len_bytes } => Some(shard_len_bytes),
            _ => None,
        }
    }

    /// Ends sealing. No effect if the segment was removed meanwhile.
    pub fn settle(&self, shard_len_bytes: u64) {
        let mut state = self.state.lock();
        if state.stage == Stage::Sealing {
            state.step(Stage::Sealed { shard_len_bytes });
        }
    }

    /// Whether stripes may be added or are being written. Once false it stays false.
    pub fn is_open(&self) -> bool {
        let state = self.state.lock();
        state.stage == Stage::Creating || state.open.is_some()
    }

    /// Whether a stripe can still be reserved.
    pub fn takes_stripes(&self) -> bool {
        self.state.lock().stage == Stage::Open
    }

    /// Bytes of data that still fit.
    pub fn room_bytes(&self) -> u64 {
        let mut state = self.state.lock();
        let open = state.takes_stripes();
        let blocks = open.map_or(0, |open| open.room_blocks(self.code, 0));
        u64::from(blocks) * u64::from(crate::BLOCK_BYTES) * u64::from(self.code.data())
    }

    /// Whether the record would fit into the empty segment. Also true for a closed segment.
    pub fn could_hold(&self, record: &RecordShape) -> bool {
        let mut state = self.state.lock();
        let Some(open) = state.takes_stripes() else {
            return true;
        };
        let data = self.code.data();
        let for_summary = match &open.summary {
            Some(_) => summary_blocks(data, 1),
            None => 0,
        };
        let room = open.end_block.saturating_sub(for_summary);
        plan_stripe(data, room, std::slice::from_ref(record)).is_some()
    }

    pub fn last_used(&self) -> Duration {
        let state = self.state.lock();
        let open = state.open.as_ref();
        open.map_or(Duration::ZERO, |open| open.last_used)
    }

    /// Reserves stripes for as many of `records` as fit, in order; empty if the segment is full or closed.
    pub fn reserve(&self, records: &[RecordShape], now: Duration) -> Vec<ReservedStripe> {
        let mut stripes = Vec::new();
        let mut state = self.state.lock();
        let Some(open) = state.takes_stripes() else {
            return stripes;
        };
        open.last_used = now;
        if records.iter().any(|record| !record.has_owner) {
            open.summary = None;
        }
        let mut rest = records;
        while !rest.is_empty() {
            let Some(plan) = open.plan(self.code, rest) else {
                break;
            };
            rest = &rest[plan.offsets.len()..];
            open.record_count += plan.offsets.len();
            let stripe_block = open.next_block;
            open.next_block += u32::from(plan.unit_blocks);
            if planted::is(Bug::StripesOverlap) && plan.unit_blocks > 1 {
                open.next_block -= 1;
            }
            stripes.push(ReservedStripe { stripe_block, plan });
        }
        stripes
    }

    /// Takes reserved stripes back that will not be written; false if there are later reservations behind them.
    pub fn release(&self, stripes: &[ReservedStripe]) -> bool {
        let mut state = self.state.lock();
        let (Some(open), Some(first), Some(last)) =
            (state.open.as_mut(), stripes.first(), stripes.last())
        else {
            return false;
        };
        let is_last = last.stripe_block + u32::from(last.plan.unit_blocks) == open.next_block;
        if is_last {
            open.next_block = first.stripe_block;
            let records = stripes.iter().map(|stripe| stripe.plan.offsets.len());
            open.record_count -= records.sum::<usize>();
        }
        is_last
    }

    /// Notes the outcome of reserved stripes.
    pub fn note_written(
        &self,
        stripes: Vec<WrittenStripe>,
        entries: Vec<SummaryEntry>,
        failed_shards: &[u8],
    ) {
        if let Some(open) = &mut self.state.lock().open {
            open.appended |= failed_shards.is_empty();
            open.stripes.extend(stripes);
            if let Some(summary) = &mut open.summary {
                summary.extend(entries);
            }
            for shard in failed_shards {
                open.shard_failed[usize::from(*shard)] = true;
            }
        }
    }

    /// Refuses more stripes. True for the one caller that has to seal the segment.
    pub fn close(&self) -> bool {
        let mut state = self.state.lock();
        let is_first = state.stage == Stage::Open;
        if is_first {
            state.step(Stage::Closing);
        }
        is_first
    }

    /// Takes the open part for sealing, once. The caller holds the gate exclusively.
    pub fn begin_sealing(&self) -> Option<OpenSegment> {
        let mut state = self.state.lock();
        match state.stage {
            Stage::Open | Stage::Closing => {
                state.step(Stage::Sealing);
                state.open.take()
            }
            _ => None,
        }
    }

    /// Whether a write to a shard of the open segment failed.
    pub fn has_failed(&self, shard: u8) -> bool {
        let state = self.state.lock();
        let open = state.open.as_ref();
        let failed = open.and_then(|open| open.shard_failed.get(usize::from(shard)).copied());
        failed.unwrap_or(false)
    }

    /// The shards of the open segment.
    pub fn open_shards(&self) -> Vec<Arc<dyn ShardService>> {
        let state = self.state.lock();
        let open = state.open.as_ref();
        open.map(|open| open.shards.clone()).unwrap_or_default()
    }

    pub fn pin(&self) {
        self.pins.fetch_add(1, Ordering::AcqRel);
    }

    pub fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::AcqRel);
    }

    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Starts a rebuild of a shard. True for one caller.
    pub fn begin_rebuild(&self, shard: u8, now: Duration) -> bool {
        let rebuilding = &mut self.state.lock().rebuilding;
        let is_early = |entry: &(u8, Duration)| entry.0 == shard && now < entry.1;
        if rebuilding.iter().any(is_early) {
            return false;
        }
        rebuilding.retain(|entry| entry.0 != shard);
        rebuilding.push((shard, Duration::MAX));
        true
    }

    /// `retry_at`: earliest time of another try; `None` after success.
    pub fn end_rebuild(&self, shard: u8, retry_at: Option<Duration>) {
        let rebuilding = &mut self.state.lock().rebuilding;
        rebuilding.retain(|entry| entry.0 != shard);
        rebuilding.extend(retry_at.map(|at| (shard, at)));
    }

    /// The disk of each shard, by index, as of now.
    pub fn disks(&self) -> Arc<Vec<DiskId>> {
        self.disks.load_full()
    }

    pub fn disk_of(&self, shard: u8) -> Option<DiskId> {
        self.disks.load().get(usize::from(shard)).copied()
    }

    /// Whether a file of shard `shard` on `disk` is, or is about to be, part of this segment.
    pub fn has_shard_on(&self, shard: u8, disk: DiskId) -> bool {
        let state = self.state.lock();
        state.moving.contains(&(shard, disk)) || self.disk_of(shard) == Some(disk)
    }

    /// Starts a move of a shard. True for one caller: a segment has one move at a time, and only while its files do not
    /// change.
    pub fn begin_move(&self, shard: u8, to: DiskId) -> bool {
        let mut state = self.state.lock();
        let is_sealed = matches!(state.stage, Stage::Sealed { .. });
        let is_here = self.remote.is_none() && !state.is_leaving;
        let free =
            is_sealed && is_here && state.moving.is_empty() && !self.disks.load().contains(&to);
        if free {
            state.moving.push((shard, to));
        }
        free
    }

    /// Ends a move. With `done` the shard is on its new disk from now on.
    pub fn end_move(&self, shard: u8, to: DiskId, done: bool) {
        let mut state = self.state.lock();
        if done {
            let mut disks = self.disks().to_vec();
            if let Some(place) = disks.get_mut(usize::from(shard)) {
                *place = to;
            }
            self.disks.store(Arc::new(disks));
        }
        state.moving.retain(|entry| *entry != (shard, to));
    }

    /// Starts the removal: the segment cannot be found any more. Its writers hold the gate.
    pub fn begin_removal(&self) {
        let mut state = self.state.lock();
        if !matches!(state.stage, Stage::Removing | Stage::Removed) {
            state.step(Stage::Removing);
        }
    }

    /// Ends the removal: nothing writes any more, and the caller holds the gate exclusively.
    pub fn end_removal(&self) {
        let mut state = self.state.lock();
        if state.stage == Stage::Removing {
            state.step(Stage::Removed);
        }
        state.open = None;
    }

    pub fn is_removed(&self) -> bool {
        let stage = self.state.lock().stage;
        matches!(stage, Stage::Removing | Stage::Removed)
    }
}

impl OpenSegment {
    /// Blocks of each shard that stripes with `more_records` more records may use: the rest is for the summary.
    fn room_blocks(&self, code: Code, more_records: usize) -> u32 {
        let record_count = self.record_count + more_records;
        let for_summary = match &self.summary {
            Some(_) if record_count > SUMMARY_ENTRIES_MAX => u32::MAX,
            Some(_) => summary_blocks(code.data(), record_count),
            None => 0,
        };
        (self.end_block - self.next_block).saturating_sub(for_summary)
    }

    /// The next stripe: as many of `records` as fit beside their summary entries.
    fn plan(&self, code: Code, records: &[RecordShape]) -> Option<StripePlan> {
        let mut records = records;
        loop {
            let room = self.room_blocks(code, records.len());
            let plan = plan_stripe(code.data(), room, records);
            if plan.is_some() || records.len() <= 1 {
                return plan;
            }
            records = records.get(..records.len() / 2)?;
        }
    }

    /// The summary entries, once all stripes are written; `None` if there is no summary.
    pub fn take_summary(&mut self) -> Option<Vec<SummaryEntry>> {
        self.summary.take()
    }

    /// Reserves the place of the summary's records, behind all data. `None` if there is no room for all of them.
    pub fn reserve_summary(
        &mut self,
        code: Code,
        records: &[RecordShape],
    ) -> Option<Vec<ReservedStripe>> {
        let mut stripes = Vec::new();
        let (mut next_block, mut rest) = (self.next_block, records);
        while !rest.is_empty() {
            let plan = plan_stripe(code.data(), self.end_block - next_block, rest)?;
            rest = rest.get(plan.offsets.len()..)?;
            let stripe_block = next_block;
            next_block += u32::from(plan.unit_blocks);
            stripes.push(ReservedStripe { stripe_block, plan });
        }
        self.next_block = next_block;
        Some(stripes)
    }

    /// Sorts the stripes, and returns whether they cover the data without a gap: a gap is a write with an unknown
    /// outcome.
    pub fn stripes_in_order(&mut self) -> bool {
        self.stripes
            .sort_unstable_by_key(|stripe| stripe.stripe_block);
        let mut next = 0;
        for stripe in &self.stripes {
            if stripe.stripe_block != next {
                return false;
            }
            next += u32::from(stripe.unit_blocks);
        }
        next == self.next_block
    }

    pub fn data_blocks(&self) -> u32 {
        self.next_block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_these_steps_are_made() {
        use Stage::*;
        let sealed = Sealed { shard_len_bytes: 1 };
        let all = [Creating, Open, Closing, Sealing, sealed, Removing, Removed];
        let steps = [
            (Creating, Open),
            (Open, Closing),
            (Open, Sealing),
            (Closing, Sealing),
            (Sealing, sealed),
            (Creating, Removing),
            (Open, Removing),
            (Closing, Removing),
            (Sealing, Removing),
            (sealed, Removing),
            (Removing, Removed),
        ];
        for from in all {
            for to in all {
                let want = steps.contains(&(from, to));
                assert_eq!(from.may_become(to), want, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn a_segment_that_is_removed_stays_so() {
        let info = SegmentInfo {
            id: SegmentId(1),
            code: Code::new(1, 1).expect("code"),
            disks: vec![DiskId(1), DiskId(2)],
            shard_len_bytes: 1 << 20,
            sealed: false,
            remote: None,
            media: None,
            protection: None,
        };
        let now = Duration::ZERO;
        let removed_at: [fn(&Segment); 4] = [
            |_| {},
            |segment| segment.open_with(Vec::new(), 16, Duration::ZERO),
            |segment| assert!(segment.close()),
            |segment| assert!(segment.begin_sealing().is_some()),
        ];
        for steps in 0..=removed_at.len() {
            let segment = Segment::created(VolumeId(1), Epoch(1), info.clone());
            removed_at[..steps].iter().for_each(|step| step(&segment));
            segment.begin_removal();
            segment.open_with(Vec::new(), 16, now);
            segment.settle(4096);
            assert!(!segment.close() && segment.begin_sealing().is_none());
            assert!(!segment.begin_move(0, DiskId(3)) && !segment.takes_stripes());
            segment.end_removal();
            segment.begin_removal();
            assert!(segment.is_removed() && !segment.is_open());
            assert_eq!(segment.settled_len_bytes(), None);
        }
    }

    #[test]
    fn only_sealed_segments_are_moved() {
        let info = SegmentInfo {
            id: SegmentId(1),
            code: Code::new(1, 0).expect("code"),
            disks: vec![DiskId(1)],
            shard_len_bytes: 1 << 20,
            sealed: false,
            remote: None,
            media: None,
            protection: None,
        };
        let segment = Segment::created(VolumeId(1), Epoch(1), info);
        let begin = || segment.begin_move(0, DiskId(2));
        assert!(!begin());
        segment.open_with(Vec::new(), 16, Duration::ZERO);
        assert!(!begin());
        assert!(segment.begin_sealing().is_some());
        assert!(!begin());
        segment.settle(4096);
        assert!(begin() && !begin(), "one at a time");
        assert!(segment.has_shard_on(0, DiskId(2)) && segment.has_shard_on(0, DiskId(1)));
        segment.end_move(0, DiskId(2), true);
        assert!(!segment.has_shard_on(0, DiskId(1)));
        // A segment that goes to a tier is not moved, and a moving one does not go there.
        assert!(segment.begin_leaving() && !segment.begin_leaving());
        let back = || segment.begin_move(0, DiskId(1));
        assert!(!back());
        segment.end_leaving();
        assert!(back() && !segment.begin_leaving());
        segment.end_move(0, DiskId(1), false);
        assert!(segment.begin_leaving());
    }
}
