//! Segments of one volume as the process knows them, open ones with their shards.
//!
//! Owns: the state of a segment (open, pinned, removed), reservation of stripes, which stream writes
//! where. Must not know: disks' errors, records' bytes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, SegmentId, VolumeId};
use cairn_erasure::Code;
use cairn_shard::Shard;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::error::{Result, SegmentError};
use crate::layout::{RecordShape, StripePlan, plan_stripe};
use crate::summary::{SUMMARY_ENTRIES_MAX, SummaryEntry, summary_blocks};
use crate::types::{SegmentInfo, Stream};

/// A segment of an open volume.
#[derive(Debug)]
pub(crate) struct Segment {
    pub volume: VolumeId,
    pub id: SegmentId,
    pub code: Code,
    /// By shard index; a move of a shard puts another list in its place.
    disks: ArcSwap<Vec<DiskId>>,
    pub shard_len_bytes: u64,
    /// Held shared by whoever writes to the shards (appends, repairs), alone by sealing and removal:
    /// a removed shard's file may be another segment's a moment later.
    pub gate: Arc<tokio::sync::RwLock<()>>,
    /// Held by a repair, and by a scrub of a part: they write whole blocks, and two of records that share one would
    /// undo each other. Taken with the gate held.
    pub repair: tokio::sync::Mutex<()>,
    /// Some record in it was acknowledged.
    pub appended: AtomicBool,
    removed: AtomicBool,
    /// Its shards are there, or never will be: until then it counts as open.
    made: AtomicBool,
    pins: AtomicU32,
    /// What sealing has left of the room for data in each shard; 0: not sealed yet.
    settled_len_bytes: AtomicU64,
    open: Mutex<Option<OpenSegment>>,
    /// Shards being rebuilt, and those whose rebuild failed, with the time (of the monotonic clock)
    /// before which it is not tried again.
    rebuilding: Mutex<Vec<(u8, Duration)>>,
    /// Shards that are being moved, and where to: their new files are no orphans. Also those of which it is not
    /// known whether they have moved.
    moving: Mutex<Vec<(u8, DiskId)>>,
}

/// What a segment has while it may be appended to.
pub(crate) struct OpenSegment {
    pub shards: Vec<Arc<Shard>>,
    /// Takes no more stripes, and is sealed when those under way are done.
    closing: bool,
    next_block: u32,
    end_block: u32,
    last_used: Duration,
    /// Stripes that were written, in no order.
    pub stripes: Vec<WrittenStripe>,
    /// Shards with a failed write: their content is not known, so they get no footer.
    pub shard_failed: Vec<bool>,
    /// Records in stripes that were reserved, written or not: the summary will need room for them.
    record_count: usize,
    /// What the records in stripes that were written are parts of; `None` when some record does not say so.
    summary: Option<Vec<SummaryEntry>>,
}

impl std::fmt::Debug for OpenSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenSegment")
            .field("closing", &self.closing)
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

/// A stripe that was given its place.
#[derive(Clone, Debug)]
pub(crate) struct ReservedStripe {
    pub stripe_block: u32,
    pub plan: StripePlan,
}

impl Segment {
    /// A segment that takes no appends.
    pub fn known(volume: VolumeId, info: SegmentInfo) -> Self {
        Self {
            volume,
            id: info.id,
            code: info.code,
            disks: ArcSwap::from_pointee(info.disks),
            moving: Mutex::default(),
            shard_len_bytes: info.shard_len_bytes,
            gate: Arc::default(),
            repair: tokio::sync::Mutex::default(),
            appended: AtomicBool::new(true),
            removed: AtomicBool::new(false),
            made: AtomicBool::new(true),
            pins: AtomicU32::new(0),
            settled_len_bytes: AtomicU64::new(info.shard_len_bytes),
            open: Mutex::new(None),
            rebuilding: Mutex::default(),
        }
    }

    /// A segment that is being made; appends start with [`Self::open_with`].
    pub fn created(volume: VolumeId, info: SegmentInfo) -> Self {
        Self {
            appended: AtomicBool::new(false),
            made: AtomicBool::new(false),
            settled_len_bytes: AtomicU64::new(0),
            ..Self::known(volume, info)
        }
    }

    /// Lets stripes in: the shards are there and have room for `data_blocks` blocks of data each.
    pub fn open_with(&self, shards: Vec<Arc<Shard>>, data_blocks: u32, now: Duration) {
        *self.open.lock() = Some(OpenSegment {
            shard_failed: vec![false; shards.len()],
            shards,
            closing: false,
            next_block: 0,
            end_block: data_blocks,
            last_used: now,
            stripes: Vec::new(),
            record_count: 0,
            summary: Some(Vec::new()),
        });
        self.made.store(true, Ordering::Release);
    }

    pub fn info(&self) -> SegmentInfo {
        SegmentInfo {
            id: self.id,
            code: self.code,
            disks: self.disks().to_vec(),
            shard_len_bytes: self.settled_len_bytes().unwrap_or(self.shard_len_bytes),
            sealed: self.settled_len_bytes().is_some(),
        }
    }

    /// What is set aside for data in each shard, once sealing is over and it changes no more.
    pub fn settled_len_bytes(&self) -> Option<u64> {
        let len_bytes = self.settled_len_bytes.load(Ordering::Acquire);
        (len_bytes > 0).then_some(len_bytes)
    }

    pub fn settle(&self, len_bytes: u64) {
        self.settled_len_bytes.store(len_bytes, Ordering::Release);
    }

    /// Whether stripes may be added or are being written. Once false it stays so.
    pub fn is_open(&self) -> bool {
        !self.made.load(Ordering::Acquire) || self.open.lock().is_some()
    }

    /// Whether a stripe may still be reserved.
    pub fn takes_stripes(&self) -> bool {
        self.open.lock().as_ref().is_some_and(|open| !open.closing)
    }

    /// Bytes of data that still fit.
    pub fn room_bytes(&self) -> u64 {
        let open = self.open.lock();
        let blocks = open
            .as_ref()
            .filter(|open| !open.closing)
            .map_or(0, |open| open.room_blocks(self.code, 0));
        u64::from(blocks) * u64::from(crate::BLOCK_BYTES) * u64::from(self.code.data())
    }

    pub fn last_used(&self) -> Duration {
        let open = self.open.lock();
        open.as_ref().map_or(Duration::ZERO, |open| open.last_used)
    }

    /// Reserves stripes for as many of `records` as fit, in order; empty when the segment is full or closed.
    pub fn reserve(&self, records: &[RecordShape], now: Duration) -> Vec<ReservedStripe> {
        let mut stripes = Vec::new();
        let mut open = self.open.lock();
        let Some(open) = open.as_mut().filter(|open| !open.closing) else {
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

    /// Takes stripes back that will not be written; false if others were reserved behind them.
    pub fn release(&self, stripes: &[ReservedStripe]) -> bool {
        let mut open = self.open.lock();
        let (Some(open), Some(first), Some(last)) =
            (open.as_mut(), stripes.first(), stripes.last())
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

    /// Notes what became of reserved stripes.
    pub fn note_written(
        &self,
        stripes: Vec<WrittenStripe>,
        entries: Vec<SummaryEntry>,
        failed_shards: &[u8],
    ) {
        if let Some(open) = self.open.lock().as_mut() {
            open.stripes.extend(stripes);
            if let Some(summary) = &mut open.summary {
                summary.extend(entries);
            }
            for shard in failed_shards {
                open.shard_failed[usize::from(*shard)] = true;
            }
        }
    }

    /// No more stripes; true for the one caller that has to seal it.
    pub fn close(&self) -> bool {
        match self.open.lock().as_mut() {
            Some(open) if !open.closing => {
                open.closing = true;
                true
            }
            _ => false,
        }
    }

    /// Takes the open state, for sealing; the caller holds the gate alone.
    pub fn take_open(&self) -> Option<OpenSegment> {
        self.open.lock().take()
    }

    /// The handle of a shard of a segment that is open.
    pub fn open_shard(&self, index: u8) -> Option<Arc<Shard>> {
        let open = self.open.lock();
        open.as_ref()?.shards.get(usize::from(index)).cloned()
    }

    pub fn open_shards(&self) -> Vec<Arc<Shard>> {
        let open = self.open.lock();
        open.as_ref()
            .map(|open| open.shards.clone())
            .unwrap_or_default()
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

    /// Whether the caller is the one to rebuild this shard now.
    pub fn begin_rebuild(&self, shard: u8, now: Duration) -> bool {
        let mut rebuilding = self.rebuilding.lock();
        let is_early = |entry: &(u8, Duration)| entry.0 == shard && now < entry.1;
        if rebuilding.iter().any(is_early) {
            return false;
        }
        rebuilding.retain(|entry| entry.0 != shard);
        rebuilding.push((shard, Duration::MAX));
        true
    }

    /// `retry_at`: before then no reader starts another one; `None` after success.
    pub fn end_rebuild(&self, shard: u8, retry_at: Option<Duration>) {
        let mut rebuilding = self.rebuilding.lock();
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
        // In this order: a move ends by changing the disks first, and then it is no longer moving.
        let moving = self.moving.lock().contains(&(shard, disk));
        moving || self.disk_of(shard) == Some(disk)
    }

    /// Whether the caller is the one to move this shard; one move of a segment at a time.
    pub fn begin_move(&self, shard: u8, to: DiskId) -> bool {
        let mut moving = self.moving.lock();
        let free = moving.is_empty() && !self.disks.load().contains(&to);
        if free {
            moving.push((shard, to));
        }
        free
    }

    /// Ends a move: with `done` the shard is on its new disk from now on.
    pub fn end_move(&self, shard: u8, to: DiskId, done: bool) {
        if done {
            let mut disks = self.disks().to_vec();
            if let Some(place) = disks.get_mut(usize::from(shard)) {
                *place = to;
            }
            self.disks.store(Arc::new(disks));
        }
        self.moving.lock().retain(|entry| *entry != (shard, to));
    }

    pub fn mark_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }
}

impl OpenSegment {
    /// Blocks that stripes with so many more records may take of each shard: the rest is for the summary.
    fn room_blocks(&self, code: Code, more_records: usize) -> u32 {
        let record_count = self.record_count + more_records;
        let for_summary = match &self.summary {
            Some(_) if record_count > SUMMARY_ENTRIES_MAX => u32::MAX,
            Some(_) => summary_blocks(code.data(), record_count),
            None => 0,
        };
        (self.end_block - self.next_block).saturating_sub(for_summary)
    }

    /// The next stripe: as many of `records` as fit, beside what the summary will say of them.
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

    /// The entries of the summary, once all stripes are written; `None` if there is to be none.
    pub fn take_summary(&mut self) -> Option<Vec<SummaryEntry>> {
        self.summary.take()
    }

    /// Places for the records of the summary, behind all data. `None` if there is no room for all of them.
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

    /// The stripes in order and whether they cover the data without a gap: a gap is a write of which
    /// nothing is known.
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

/// Makes a new segment id; the metadata sees to it that none is given twice.
pub(crate) type Allocate = Arc<dyn Fn() -> SegmentId + Send + Sync>;

/// A volume that is served here.
pub(crate) struct Volume {
    pub id: VolumeId,
    /// The ownership term in which it was opened.
    pub epoch: Epoch,
    pub allocate: Allocate,
    pub segments: RwLock<FxHashMap<SegmentId, Arc<Segment>>>,
    /// Those of them of which nobody has said yet that the metadata knows them.
    pub uncommitted: Mutex<BTreeSet<SegmentId>>,
    pub streams: Mutex<Streams>,
    /// Held while a segment is created, so that streams that wait do not each make one.
    pub creating: tokio::sync::Mutex<()>,
}

impl Volume {
    pub fn new(id: VolumeId, epoch: Epoch, allocate: Allocate, segments: Vec<SegmentInfo>) -> Self {
        let known = segments
            .into_iter()
            .map(|info| (info.id, Arc::new(Segment::known(id, info))))
            .collect();
        Self {
            id,
            epoch,
            allocate,
            segments: RwLock::new(known),
            uncommitted: Mutex::default(),
            streams: Mutex::default(),
            creating: tokio::sync::Mutex::new(()),
        }
    }

    pub fn segment(&self, id: SegmentId) -> Result<Arc<Segment>> {
        let found = self.segments.read().get(&id).cloned();
        found.ok_or(SegmentError::Gone {
            volume: self.id,
            segment: id,
        })
    }
}

/// Which open segment each stream appends to.
#[derive(Default)]
pub(crate) struct Streams {
    current: FxHashMap<(Code, Stream), Arc<Segment>>,
    /// Segments with room that no stream has now; the next stream takes one before a new one is made.
    idle: Vec<(Code, Arc<Segment>)>,
}

impl Streams {
    pub fn get(&self, code: Code, stream: Stream) -> Option<&Arc<Segment>> {
        self.current.get(&(code, stream))
    }

    /// Gives a stream its segment; a segment it had before becomes idle.
    pub fn set(&mut self, code: Code, stream: Stream, segment: Arc<Segment>) {
        if let Some(before) = self.current.insert((code, stream), segment) {
            self.idle.push((code, before));
        }
    }

    /// An idle segment that was made for `code` and is `wanted`.
    pub fn take_idle(
        &mut self,
        code: Code,
        wanted: impl Fn(&Segment) -> bool,
    ) -> Option<Arc<Segment>> {
        self.idle.retain(|(_, segment)| segment.takes_stripes());
        let index = self
            .idle
            .iter()
            .position(|(made_for, segment)| *made_for == code && wanted(segment))?;
        Some(self.idle.swap_remove(index).1)
    }

    /// Any open segment that was made for `code`: when there is no space for a new one. Garbage
    /// collection's only if it `may_rewrite`.
    pub fn borrow_any(
        &self,
        code: Code,
        may_rewrite: bool,
        wanted: impl Fn(&Segment) -> bool,
    ) -> Option<Arc<Segment>> {
        self.made_for(code, may_rewrite)
            .find(|segment| segment.takes_stripes() && wanted(segment))
            .cloned()
    }

    /// The open segments that were made for `code`, with or without those of garbage collection.
    fn made_for(&self, code: Code, with_rewritten: bool) -> impl Iterator<Item = &Arc<Segment>> {
        let is_wanted = move |stream: &Stream| with_rewritten || *stream != Stream::Rewrite;
        let current = self
            .current
            .iter()
            .filter(move |((made_for, stream), _)| *made_for == code && is_wanted(stream))
            .map(|(_, segment)| segment);
        let idle = self
            .idle
            .iter()
            .filter(move |(made_for, _)| *made_for == code)
            .map(|(_, segment)| segment);
        current.chain(idle)
    }

    pub fn forget(&mut self, segment: &Arc<Segment>) {
        self.current.retain(|_, held| !Arc::ptr_eq(held, segment));
        self.idle.retain(|(_, held)| !Arc::ptr_eq(held, segment));
    }

    /// Takes file streams above `streams_max` their segments away (least recently used first; they
    /// become idle), and returns the open segments above `open_max`, to be sealed.
    pub fn trim(&mut self, streams_max: usize, open_max: usize) -> Vec<Arc<Segment>> {
        let mut files: Vec<((Code, Stream), Duration)> = self
            .current
            .iter()
            .filter(|((_, stream), _)| matches!(stream, Stream::File(_)))
            .map(|(key, segment)| (*key, segment.last_used()))
            .collect();
        files.sort_unstable_by_key(|(_, last_used)| *last_used);
        let surplus = files.len().saturating_sub(streams_max);
        for (key, _) in &files[..surplus] {
            if let Some(segment) = self.current.remove(key) {
                self.idle.push((key.0, segment));
            }
        }
        self.idle.sort_by_key(|(_, segment)| segment.last_used());
        let surplus = (self.current.len() + self.idle.len()).saturating_sub(open_max);
        let surplus = surplus.min(self.idle.len());
        self.idle
            .drain(..surplus)
            .map(|(_, segment)| segment)
            .collect()
    }

    /// All open segments unused since `since`, forgotten here.
    pub fn take_unused_since(&mut self, since: Duration) -> Vec<Arc<Segment>> {
        let mut taken = Vec::new();
        self.current.retain(|_, segment| {
            let keep = segment.last_used() > since;
            if !keep {
                taken.push(segment.clone());
            }
            keep
        });
        self.idle.retain(|(_, segment)| {
            let keep = segment.last_used() > since;
            if !keep {
                taken.push(segment.clone());
            }
            keep
        });
        taken
    }

    pub fn count(&self) -> usize {
        self.current.len() + self.idle.len()
    }

    /// Room in all open segments, in bytes of data; `with_rewritten` as in [`Self::room_bytes`].
    pub fn all_room_bytes(&self, with_rewritten: bool) -> u64 {
        let is_wanted = |stream: &Stream| with_rewritten || *stream != Stream::Rewrite;
        let current = self.current.iter();
        let current = current.filter(|((_, stream), _)| is_wanted(stream));
        let idle = self.idle.iter().map(|(_, segment)| segment);
        let all = current.map(|(_, segment)| segment).chain(idle);
        all.map(|segment| segment.room_bytes()).sum()
    }

    /// Room in open segments made for `code`, in bytes of data; `with_rewritten`: in those that garbage
    /// collection fills, too.
    pub fn room_bytes(&self, code: Code, with_rewritten: bool) -> u64 {
        let rooms = self
            .made_for(code, with_rewritten)
            .map(|segment| segment.room_bytes());
        rooms.sum()
    }
}
