//! Copies live records out of segments, so that those can be deleted.
//!
//! Owns: finding the extents that point into chosen segments, reading the records, writing copies and pointing to
//! them, and the pace of that. Must not know: which segments are chosen, when they are deleted (`gc`). Invariant: an
//! extent is changed only where it still is the one that was copied.
//!
//! The summary of a segment names, for each of its records, the part of a file that the record held when it was
//! written. Every extent that points to a record lies in that part: truncation and overwriting only make it smaller.
//! So the search visits the extents that end there, and those of files that came to share records of the segment,
//! which have keys that name them (`share`). The cost follows from the rewritten bytes, and not from the size of the
//! volume. One pass over all extents handles segments without a readable summary, and those whose summary does not
//! account for all live records that the metadata counts.
//!
//! The parts that the summaries of a group of segments name are visited in the order of inodes and of offsets. So the
//! bytes that a group has of a file are written together, in the order of the file, whichever of its segments they
//! were in: a sequential reader finds neighbours side by side, and fetches them together.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_base::planted::{self, Bug};
use cairn_base::{Generation, Ino, SegmentId};
use cairn_meta::{Batch, DeadVersion, Key, KeyKind, SpaceDelta, Ticket};
use cairn_segment::{
    ErrorKind, Location, Pace, RecordOwner, RecordPointer, SegmentError, SegmentInfo, Stream,
    WantedPart,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dedupe::{Hash, KnownRecord};
use crate::gc_policy::narrow;
use crate::kernel::{
    Ahead, Bare, Extent, ExtentChange, ExtentMap, Inode, Record, RecordExtent, Shown, UndoWhen,
    Why, meta_error, parse_extent, segment_error,
};
use crate::share::Sharers;
use crate::snapshots::extent_of;
use crate::storing::{Records, StorageRequirement, Stored};
use crate::tasks::let_others_run;
use crate::types::FsError;
use crate::volume::{Fs, Policy, VolumeCore};

/// Interval at which a rewrite checks space and urgency again.
const SURVEY_INTERVAL: Duration = Duration::from_secs(1);
/// Extents, or parts of files, that are visited before other tasks get their turn.
const SCAN_EXTENTS_MAX: usize = 4096;
const SCAN_PARTS_MAX: usize = 256;
/// Versions of the history that are read at once.
const SCAN_HISTORY_MAX: usize = 1024;
/// Entries of summaries that are in memory together; a single summary has fewer.
const GROUP_ENTRIES_MAX: usize = 1 << 18;
/// Copies that are remembered.
const COPIES_MAX: usize = 1 << 18;
/// Extents and bytes rewritten in one step, and concurrent steps when it is urgent.
const STEP_EXTENTS_MAX: usize = 4096;
const STEP_BYTES: u64 = 4 << 20;
const URGENT_STEPS_MAX: usize = 3;
/// Extents of a step that are read together, and the size of their decompressed records.
const READS_MAX: usize = 512;
const READS_UNPACKED_BYTES_MAX: u64 = 32 << 20;
/// Without urgency, each step is followed by a pause of so many times its duration,
const PATIENT_PAUSES: f64 = 3.0;
/// but of at most so long: a step that an unresponsive disk delayed is no reason for a longer pause.
const PATIENT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Segments that one call rewrites.
pub const REWRITE_SEGMENTS_MAX: usize = 64;

/// An extent to move, and its file.
pub(crate) struct Victim {
    ino: Ino,
    extent: RecordExtent,
    /// Its version in the history, if only snapshots see it.
    dead: Option<DeadVersion>,
}

impl Victim {
    fn segment(&self) -> SegmentId {
        self.extent.segment()
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    pub(crate) fn location(&self) -> Location {
        self.extent.record.location
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.extent.live_bytes().max(0) as u64
    }

    /// The part of its record that the extent refers to.
    fn wanted(&self) -> WantedPart {
        self.extent.wanted()
    }
}

/// Extents that are moved together.
#[derive(Default)]
struct Step {
    victims: Vec<Victim>,
    len_bytes: u64,
}

impl Step {
    fn add(&mut self, victim: Victim) {
        self.len_bytes += victim.extent.len_bytes();
        self.victims.push(victim);
    }

    fn is_full(&self) -> bool {
        self.len_bytes >= STEP_BYTES || self.victims.len() >= STEP_EXTENTS_MAX
    }
}

/// The part of a record that an extent refers to, and its file's request for a copy.
type Bytes = (Location, u32, u64, StorageRequirement);

/// The new places of copied bytes: extents that share them go on sharing them, if their files have equal requests.
#[derive(Default)]
struct Copies(FxHashMap<Bytes, Arc<RecordPointer>>);

impl Copies {
    fn of(extent: &RecordExtent, asked: StorageRequirement) -> Bytes {
        let (location, offset) = (extent.record.location, extent.offset_in_record);
        (location, offset, extent.len_bytes(), asked)
    }

    fn add(&mut self, of: Bytes, copy: Arc<RecordPointer>) {
        if self.0.len() >= COPIES_MAX {
            self.0.clear();
        }
        self.0.insert(of, copy);
    }
}

/// The target of copies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// Segments with other copies, which count as used from now on.
    Disks,
    /// Segments of their own, last used on this day (since 1970; 0: unknown), that soon go to a tier.
    Tier { used_day: u32 },
}

impl To {
    fn stream(self) -> Stream {
        match self {
            Self::Disks => Stream::Rewrite,
            Self::Tier { .. } => Stream::Cold,
        }
    }
}

/// The number of extents that stayed in their places, by segment.
type Left = FxHashMap<SegmentId, u64>;

/// Extents whose bytes are in new records, in the order of these. With a hash, the next write of equal bytes finds
/// the copy.
struct Encoded {
    moved: Vec<(Victim, StorageRequirement, Option<Hash>)>,
    records: Records,
}

/// The new places of extents of files.
struct Pointing<'a> {
    /// The segments of the copies.
    segments: &'a [SegmentInfo],
    /// Files that share copies with others, by inode.
    sharers: &'a FxHashMap<Ino, Sharers>,
    /// Hashes of copies of whole records.
    hashes: &'a FxHashMap<Location, Hash>,
    to: To,
}

/// A part of a file.
type Part = (Ino, Range<u64>);

/// A range of extents that is still to be visited: first the present ones, then its history.
struct Look {
    /// The beginning of the range.
    begin: Key,
    to: Key,
    at: At,
}

/// The place where a visit continues.
enum At {
    Now(Key),
    /// After this version of the history.
    History(Option<(Key, Generation)>),
}

impl Look {
    fn new(from: Key, to: Key) -> Self {
        Self {
            begin: from.clone(),
            to,
            at: At::Now(from),
        }
    }
}

/// The places that are still to be searched.
enum Search {
    /// These parts of files, one after the other, after the rest of one.
    Parts(VecDeque<Part>, Option<Look>),
    /// All extents.
    Pass(Option<Look>),
}

impl Search {
    fn everywhere() -> Self {
        let (from, to) = Key::all_extents();
        Self::Pass(Some(Look::new(from, to)))
    }

    /// Searches the parts that summaries name; adjacent parts are visited together.
    fn of(mut parts: Vec<Part>) -> Self {
        parts.sort_unstable_by_key(|(ino, range)| (*ino, range.start));
        let mut joined: VecDeque<Part> = VecDeque::new();
        for (ino, range) in parts {
            match joined.back_mut() {
                Some((last, before)) if *last == ino && range.start <= before.end => {
                    before.end = before.end.max(range.end);
                }
                _ => joined.push_back((ino, range)),
            }
        }
        Self::Parts(joined, None)
    }

    /// The next range of keys, or the rest of one.
    fn take(&mut self) -> Option<Look> {
        match self {
            Self::Pass(rest) => rest.take(),
            Self::Parts(parts, rest) => rest.take().or_else(|| {
                let (ino, part) = parts.pop_front()?;
                let (from, _) = Key::extents_past(ino, part.start);
                Some(Look::new(from, Key::extent(ino, part.end).successor()))
            }),
        }
    }

    /// Puts back the rest of the range that was taken last.
    fn put_back(&mut self, look: Look) {
        match self {
            Self::Pass(rest) | Self::Parts(_, rest) => *rest = Some(look),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Pass(rest) => rest.is_none(),
            Self::Parts(parts, rest) => parts.is_empty() && rest.is_none(),
        }
    }
}

impl Fs {
    /// Rewrites the live records of some segments into new ones, which are laid out for the disks that stay, and
    /// deletes the old segments. A segment stays if some of its records are corrupt, or if appends still add to it;
    /// at most [`REWRITE_SEGMENTS_MAX`] at a time.
    pub async fn rewrite_segments(
        &self,
        segments: &[SegmentId],
        pace: &Pace,
    ) -> Result<(), FsError> {
        let segments = segments.get(..REWRITE_SEGMENTS_MAX).unwrap_or(segments);
        self.shared.rewrite_segments(segments, pace).await
    }
}

impl VolumeCore {
    /// Copies the live records out of segments, whatever the share of garbage, and deletes the segments that are
    /// empty then. New segments have the erasure code that the disks allow now.
    pub(crate) async fn rewrite_segments(
        self: &Arc<Self>,
        chosen: &[SegmentId],
        pace: &Pace,
    ) -> Result<(), FsError> {
        // A segment that is being sealed has its summary in a moment.
        let is_sealed = |id| {
            let len_bytes = self.segments.settled_len_bytes(self.volume, id);
            len_bytes.is_some()
        };
        let chosen: FxHashSet<SegmentId> = chosen
            .iter()
            .copied()
            .filter(|id| self.is_idle(*id) && is_sealed(*id))
            .collect();
        let chosen = self.rewrite(chosen, Some(pace)).await?;
        let dead: Vec<SegmentId> = chosen.into_iter().collect();
        if planted::is(Bug::RewritingDeletesEarly) {
            self.delete_segments(&dead).await?;
        }
        self.remove_dead(&dead).await
    }

    /// Copies the live records out of the `chosen` segments, at `pace`, or as fast as needed. Needs memory for some
    /// summaries and a few steps, whatever the number of segments. Returns the segments that it has searched
    /// completely.
    pub(crate) async fn rewrite(
        self: &Arc<Self>,
        chosen: FxHashSet<SegmentId>,
        pace: Option<&Pace>,
    ) -> Result<FxHashSet<SegmentId>, FsError> {
        // Before the search for the files that refer to them.
        let _emptying = self.dedupe.emptying(&chosen);
        let mut waiting: Vec<SegmentId> = chosen.iter().copied().collect();
        waiting.sort_unstable();
        let mut waiting = VecDeque::from(waiting);
        let mut rewriting = Rewriting {
            shared: self,
            pace,
            chosen,
            step: Step::default(),
            steps: FuturesUnordered::new(),
            left: Left::default(),
            copies: Arc::default(),
            urgency: 0.0,
            looked_at: None,
        };
        let mut without_summary = FxHashSet::default();
        while !waiting.is_empty() {
            let (group, parts) = self
                .read_summaries(&mut waiting, &mut without_summary)
                .await?;
            rewriting.run(&group, Search::of(parts)).await?;
            if planted::is(Bug::SummaryEntryLost) {
                self.remove_segments(&group.into_iter().collect::<Vec<_>>())
                    .await?;
                continue;
            }
            let missed = group.into_iter().filter(|id| rewriting.is_missed(*id));
            without_summary.extend(missed);
        }
        without_summary.retain(|id| rewriting.chosen.contains(id));
        if !without_summary.is_empty() {
            let passes = &self.counters.rewrite_passes;
            passes.fetch_add(1, Ordering::Relaxed);
            tracing::info!(volume = %self.volume, segments = without_summary.len(), "looking for records in segments without a summary");
            rewriting
                .run(&without_summary, Search::everywhere())
                .await?;
        }
        Ok(rewriting.chosen)
    }

    /// Copies the bytes of these parts of files that are in the `wanted` segments into new ones. Unreadable bytes stay.
    pub(crate) async fn rewrite_parts(
        self: &Arc<Self>,
        parts: Vec<(Ino, Range<u64>)>,
        wanted: &FxHashSet<SegmentId>,
    ) -> Result<(), FsError> {
        // Before the search for the files that refer to them.
        let _emptying = self.dedupe.emptying(wanted);
        let copies = Mutex::default();
        let mut search = Search::of(parts);
        while !search.is_over() {
            let mut step = Step::default();
            self.find_victims(&mut search, wanted, &mut step)?;
            if !step.victims.is_empty() {
                self.rewrite_records(step.victims, &copies, To::Disks)
                    .await?;
            }
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
        }
        Ok(())
    }

    /// All extents in a segment, with those that only snapshots see. `None` if it has no summary. An empty list if it
    /// counts more records than its summary leads to, for example while another file begins to share its records.
    pub(crate) async fn all_in(
        self: &Arc<Self>,
        id: SegmentId,
    ) -> Result<Option<Vec<Victim>>, FsError> {
        let (wanted, parts) = self
            .read_summaries(&mut VecDeque::from([id]), &mut FxHashSet::default())
            .await?;
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut search = Search::of(parts);
        let mut found = Vec::new();
        while !search.is_over() {
            let mut step = Step::default();
            self.find_victims(&mut search, &wanted, &mut step)?;
            found.append(&mut step.victims);
            let_others_run().await;
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
        }
        let live_records = self.meta.segment(id).map(|record| record.live_records);
        if live_records.is_none_or(|live| live > found.len() as u64) {
            found.clear();
        }
        Ok(Some(found))
    }

    /// The extents in a segment that files have, with those of clones; leaves out those that only snapshots have.
    /// `None` if they have more than so many bytes of it, or if that is unknown.
    pub(crate) async fn of_files(
        self: &Arc<Self>,
        id: SegmentId,
        bytes_max: u64,
    ) -> Result<Option<Vec<Victim>>, FsError> {
        let (wanted, parts) = self
            .read_summaries(&mut VecDeque::from([id]), &mut FxHashSet::default())
            .await?;
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut search = Search::of(parts);
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(look) = search.take() {
            let mut from = Some(look.begin);
            while let Some(begin) = from.take() {
                let (mut step, mut seen) = (Step::default(), 0);
                let range = (&begin, &look.to);
                from = self.find_victims_between(false, range, &wanted, &mut step, &mut seen)?;
                let live_bytes = step.victims.iter().map(|it| it.extent.live_bytes());
                bytes += live_bytes.sum::<i64>().max(0) as u64;
                if bytes > bytes_max {
                    return Ok(None);
                }
                found.append(&mut step.victims);
                let_others_run().await;
                if self.tasks.is_stopping() {
                    return Err(FsError::Fenced);
                }
            }
        }
        Ok(Some(found))
    }

    /// Rewrites these extents of a segment, and no others. Unreadable bytes stay.
    pub(crate) async fn move_victims(
        self: &Arc<Self>,
        id: SegmentId,
        victims: Vec<Victim>,
        to: To,
    ) -> Result<(), FsError> {
        // Before the search for the files that refer to them.
        let _emptying = self.dedupe.emptying(&FxHashSet::from_iter([id]));
        let copies = Mutex::default();
        let mut step = Step::default();
        let mut victims = victims.into_iter().peekable();
        while let Some(victim) = victims.next() {
            step.add(victim);
            if step.is_full() || victims.peek().is_none() {
                let step = std::mem::take(&mut step);
                self.rewrite_records(step.victims, &copies, to).await?;
            }
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
        }
        Ok(())
    }

    /// Takes as many of the waiting segments as have summaries that fit in memory together. Returns the parts of
    /// files that are, or were, in them.
    async fn read_summaries(
        self: &Arc<Self>,
        waiting: &mut VecDeque<SegmentId>,
        without_summary: &mut FxHashSet<SegmentId>,
    ) -> Result<(FxHashSet<SegmentId>, Vec<Part>), FsError> {
        let mut group = FxHashSet::default();
        let mut parts = Vec::new();
        while parts.len() < GROUP_ENTRIES_MAX
            && let Some(id) = waiting.pop_front()
        {
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
            match self.segments.summary(self.volume, id).await {
                Ok(Some(entries)) => {
                    group.insert(id);
                    parts.extend(self.sharers_of(id).await?);
                    parts.extend(entries.iter().map(|entry| {
                        let RecordOwner { object, offset } = entry.owner;
                        let end = offset.saturating_add(u64::from(entry.len_bytes));
                        (Ino(object), offset..end)
                    }));
                }
                Ok(None) => {
                    without_summary.insert(id);
                }
                // The segment was deleted meanwhile.
                Err(error) if error.kind() == ErrorKind::Gone => {}
                // Its records cannot be read either. It is emptied when its disks are back, and delays no other segment.
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    tracing::debug!(volume = %self.volume, segment = %id, %error, "a segment is not emptied now");
                }
                Err(error) => return Err(segment_error(error)),
            }
        }
        Ok((group, parts))
    }

    /// The parts of files that share, or shared, records of a segment which others wrote.
    async fn sharers_of(&self, segment: SegmentId) -> Result<Vec<Part>, FsError> {
        let keys = self.reading(|| self.sharer_keys(segment)).await?;
        let parts = keys.iter().filter_map(|key| match key.kind() {
            Ok(KeyKind::Sharer {
                ino, start, end, ..
            }) => Some((ino, start..end)),
            _ => None,
        });
        Ok(parts.collect())
    }

    /// Adds extents in `wanted` segments to a step until the step is full or very many extents were visited.
    fn find_victims(
        &self,
        search: &mut Search,
        wanted: &FxHashSet<SegmentId>,
        step: &mut Step,
    ) -> Result<(), FsError> {
        let mut seen = 0;
        let has_history = self.meta.counters().history_bytes > 0;
        for _ in 0..SCAN_PARTS_MAX {
            if seen >= SCAN_EXTENTS_MAX || step.is_full() {
                return Ok(());
            }
            let Some(look) = search.take() else {
                return Ok(());
            };
            let is_pass = matches!(search, Search::Pass(_));
            let next = match &look.at {
                At::Now(from) => {
                    let range = (from, &look.to);
                    let next =
                        self.find_victims_between(is_pass, range, wanted, step, &mut seen)?;
                    let is_forgotten = planted::is(Bug::HistoryNotMoved)
                        || planted::is(Bug::TierBackWithoutSnapshots);
                    let then = (has_history && !is_forgotten).then_some(At::History(None));
                    next.map(At::Now).or(then)
                }
                At::History(after) => {
                    let next = self.find_victims_in_history(
                        &look,
                        after.as_ref(),
                        wanted,
                        step,
                        &mut seen,
                    )?;
                    next.map(|last| At::History(Some(last)))
                }
            };
            if let Some(at) = next {
                search.put_back(Look { at, ..look });
            }
        }
        Ok(())
    }

    /// As [`Self::find_victims`], for versions that only snapshots see in a range of keys. Returns the version after
    /// which to continue.
    fn find_victims_in_history(
        &self,
        look: &Look,
        after: Option<&(Key, Generation)>,
        wanted: &FxHashSet<SegmentId>,
        step: &mut Step,
        seen: &mut usize,
    ) -> Result<Option<(Key, Generation)>, FsError> {
        let after = after.map(|(key, death)| (key, *death));
        let found = self
            .meta
            .history(&look.begin, &look.to, after, SCAN_HISTORY_MAX)
            .map_err(meta_error)?;
        *seen += found.len();
        let last = found.last().filter(|_| found.len() == SCAN_HISTORY_MAX);
        let last = last.map(|last| (last.key.clone(), last.death));
        for version in found {
            let (Ok(KeyKind::Extent { ino, .. }), Some(extent)) =
                (version.key.kind(), extent_of(&version)?)
            else {
                continue;
            };
            if let Some(extent) = wanted_of(&extent, wanted) {
                step.add(Victim {
                    ino,
                    extent,
                    dead: Some(version),
                });
            }
        }
        Ok(last)
    }

    /// Finds victims in one range of keys; returns the key at which to continue.
    fn find_victims_between(
        &self,
        is_pass: bool,
        (from, to): (&Key, &Key),
        wanted: &FxHashSet<SegmentId>,
        step: &mut Step,
        seen: &mut usize,
    ) -> Result<Option<Key>, FsError> {
        let mut failed = None;
        let mut last = None;
        let visit = |key: &[u8], value: &[u8], birth: Generation| {
            *seen += 1;
            match parse_extent(key, value, birth) {
                Ok((ino, extent)) => {
                    if let Some(extent) = wanted_of(&extent, wanted) {
                        step.add(Victim {
                            ino,
                            extent,
                            dead: None,
                        });
                    }
                }
                // Its record stays; this does not prevent the collection of the rest.
                Err(error) => {
                    tracing::error!(volume = %self.volume, %error, "an extent makes no sense");
                }
            }
            if *seen < SCAN_EXTENTS_MAX && !step.is_full() {
                return ControlFlow::Continue(());
            }
            match Key::parse(key) {
                Ok(key) => last = Some(key),
                Err(error) => failed = Some(error),
            }
            ControlFlow::Break(())
        };
        // A pass would push out of memory the blocks that clients use; parts are near recently read blocks.
        let visited = match is_pass {
            true => self.meta.live().pass_over(from, to, visit),
            false => self.meta.live().scan_with(from, to, visit),
        };
        visited.map_err(meta_error)?;
        match failed {
            Some(error) => Err(meta_error(error.into())),
            None => Ok(last.map(|key| key.successor())),
        }
    }

    /// In the middle of a rewrite: deletes segments that are dead by now, drops segments that there is no more room
    /// for, and returns the urgency.
    async fn look_around(
        self: &Arc<Self>,
        chosen: &mut FxHashSet<SegmentId>,
    ) -> Result<f64, FsError> {
        let totals = self.tend().await?;
        let (limits, room) = self.limits(totals.live_bytes);
        let urgency = limits.urgency(totals.sparse_bytes);
        // A shared record counts several times, and is copied once.
        let live_bytes = |id| {
            self.meta.segment(id).map_or(0, |record| {
                let data_bytes = record
                    .shard_len_bytes
                    .saturating_mul(u64::from(record.data));
                record.live_bytes.min(data_bytes)
            })
        };
        let left = chosen.iter().map(|id| (*id, live_bytes(*id))).collect();
        for id in narrow(left, room.rewrite_bytes) {
            chosen.remove(&id);
        }
        Ok(urgency)
    }

    /// Copies the bytes of some extents into new records, and points to those wherever the extents, or the parts that
    /// overwrites left of them, still exist. Returns how many could not be moved, for now or for good.
    async fn rewrite_records(
        self: &Arc<Self>,
        victims: Vec<Victim>,
        copies: &Mutex<Copies>,
        to: To,
    ) -> Result<Left, FsError> {
        let mut left = Left::default();
        // Extents whose bytes were copied for another file before, or are by now.
        let mut copied = Vec::new();
        let mut others = Vec::new();
        let mut firsts = FxHashSet::default();
        let mut policies: FxHashMap<Ino, Option<Policy>> = FxHashMap::default();
        for victim in &victims {
            if let Entry::Vacant(place) = policies.entry(victim.ino) {
                place.insert(self.policy_of_ino(victim.ino).await);
            }
        }
        let asked_by = |victim: &Victim| match policies.get(&victim.ino).and_then(Option::as_ref) {
            Some(policy) => policy.asked(),
            None => self.asked_of(victim.segment()),
        };
        let mut unique = Vec::with_capacity(victims.len());
        {
            let copies = copies.lock();
            for victim in victims {
                let asked = asked_by(&victim);
                let bytes = Copies::of(&victim.extent, asked);
                match copies.0.get(&bytes) {
                    Some(copy) => copied.push((victim, copy.clone())),
                    None if firsts.insert(bytes) => unique.push((victim, asked)),
                    None => others.push((victim, asked)),
                }
            }
        }
        let Encoded { moved, records } = self.encode_copies(unique, &policies, &mut left).await?;
        let Stored {
            locations,
            segments,
            pins,
        } = self.store_records(to.stream(), &records).await?;
        let mut pointed: Vec<(Victim, Arc<RecordPointer>)> = Vec::new();
        let mut sharing: Vec<(Victim, Arc<RecordPointer>)> = copied;
        // Of whole records: the next write of equal bytes finds the copies.
        let mut hashes: FxHashMap<Location, Hash> = FxHashMap::default();
        for (((victim, asked, hash), record), location) in
            moved.into_iter().zip(&records.all).zip(&locations)
        {
            if let Some(hash) = hash {
                hashes.insert(*location, hash);
            }
            self.counters
                .gc_rewritten_bytes
                .fetch_add(victim.extent.len_bytes(), Ordering::Relaxed);
            let copy = Arc::new(record.pointer(*location));
            let bytes = Copies::of(&victim.extent, asked);
            copies.lock().add(bytes, copy.clone());
            pointed.push((victim, copy));
        }
        for (victim, asked) in others {
            let bytes = Copies::of(&victim.extent, asked);
            let copy = copies.lock().0.get(&bytes).cloned();
            match copy {
                Some(copy) => sharing.push((victim, copy)),
                // It could not be read.
                None => *left.entry(victim.segment()).or_default() += 1,
            }
        }
        let mut by_ino: FxHashMap<Ino, Vec<(RecordExtent, Arc<RecordPointer>)>> =
            FxHashMap::default();
        let mut sharers: FxHashMap<Ino, Sharers> = FxHashMap::default();
        for (victim, copy) in &sharing {
            let extent = pointing_to(copy, &victim.extent);
            sharers
                .entry(victim.ino)
                .or_default()
                .add(victim.ino, &extent.into());
        }
        pointed.extend(sharing);
        let mut dead = Vec::new();
        for (victim, copy) in pointed {
            match victim.dead {
                Some(version) => dead.push((victim.ino, version, victim.extent, copy)),
                None => by_ino
                    .entry(victim.ino)
                    .or_default()
                    .push((victim.extent, copy)),
            }
        }
        let mut ticket = self.meta.last_ticket();
        if !dead.is_empty() {
            ticket = self
                .point_history_to_copies(&dead, &segments, &sharers, to, &mut left)
                .await?;
        }
        let pointing = Pointing {
            segments: &segments,
            sharers: &sharers,
            hashes: &hashes,
            to,
        };
        for (ino, extents) in by_ino {
            let inode = match self.own_inode(ino) {
                // A clone began to take the file over, and has only some of the extents that were moved here.
                Err(FsError::Stale) if !ino.branch().is_main() => {
                    match self.reading(|| self.inode(ino)).await {
                        Err(FsError::Stale) => continue,
                        found => found?,
                    }
                }
                Ok(inode) => inode,
                Err(FsError::Stale) => continue,
                Err(error) => return Err(error),
            };
            let pointed = self.point_file_to_copies(ino, &inode, &extents, &pointing, &mut left)?;
            ticket = pointed.unwrap_or(ticket);
        }
        drop(pins);
        if planted::is(Bug::RewritingDeletesEarly) {
            return Ok(left);
        }
        self.durable(ticket).await.map(|()| left)
    }

    /// Reads extents, and encodes their bytes as new records. Counts unreadable ones in `left`.
    async fn encode_copies(
        &self,
        victims: Vec<(Victim, StorageRequirement)>,
        policies: &FxHashMap<Ino, Option<Policy>>,
        left: &mut Left,
    ) -> Result<Encoded, FsError> {
        let encoder = self.segments.encoder(self.volume).map_err(segment_error)?;
        let of_volume = self.policy.read().clone();
        let mut moved = Vec::new();
        let mut records = Records::default();
        let mut victims = victims.into_iter().peekable();
        while victims.peek().is_some() {
            let mut some: Vec<(Victim, StorageRequirement)> = Vec::new();
            let mut unpacked_bytes = 0;
            while some.len() < READS_MAX
                && unpacked_bytes < READS_UNPACKED_BYTES_MAX
                && let Some((victim, asked)) = victims.next()
            {
                let last = some.last().map(|(last, _)| last.location());
                if last != Some(victim.location()) {
                    unpacked_bytes += u64::from(victim.extent.record.file_len_bytes);
                }
                some.push((victim, asked));
            }
            let wanted: Vec<WantedPart> = some.iter().map(|(it, _)| it.wanted()).collect();
            let reads = self
                .segments
                .read_many_internally(self.volume, &wanted)
                .await;
            for ((victim, asked), read) in some.into_iter().zip(reads) {
                match read {
                    Ok(parts) => {
                        let policy = policies.get(&victim.ino).and_then(Option::as_ref);
                        let policy = policy.unwrap_or(&of_volume);
                        let owner = RecordOwner {
                            object: victim.ino.0,
                            offset: victim.extent.start,
                        };
                        let is_whole = victim.dead.is_none()
                            && victim.extent.offset_in_record == 0
                            && victim.extent.len_bytes()
                                == u64::from(victim.extent.record.file_len_bytes);
                        let hash = match is_whole {
                            true => self.hash_of(victim.extent.start, &parts, policy),
                            false => None,
                        };
                        let record = encoder.encode(parts, policy.compression);
                        records.add(record.owned_by(owner), asked);
                        moved.push((victim, asked, hash));
                    }
                    Err(error @ SegmentError::VolumeClosed { .. }) => {
                        return Err(segment_error(error));
                    }
                    // The extent was overwritten.
                    Err(error) if error.kind() == ErrorKind::Gone => {}
                    // The record stays, and its readers get the error. The move of the others continues.
                    Err(error) => {
                        let ino = victim.ino;
                        *left.entry(victim.segment()).or_default() += 1;
                        match error.kind() {
                            // The next round finds it again, once its disks are back.
                            ErrorKind::Unreachable => {
                                tracing::debug!(volume = %self.volume, %ino, %error, "a record is not moved now");
                            }
                            _ => {
                                tracing::warn!(volume = %self.volume, %ino, %error, "a record cannot be moved");
                            }
                        }
                    }
                }
            }
        }
        Ok(Encoded { moved, records })
    }

    /// Points the extents of a file to their copies, where they still are the ones that were copied. Returns the
    /// ticket of the change; `None`: nothing was changed.
    fn point_file_to_copies(
        &self,
        ino: Ino,
        inode: &Inode,
        extents: &[(RecordExtent, Arc<RecordPointer>)],
        pointing: &Pointing<'_>,
        left: &mut Left,
    ) -> Result<Option<Ticket>, FsError> {
        let start = extents.first().map_or(0, |(extent, _)| extent.start);
        for (extent, _) in extents {
            let range = extent.start..extent.end;
            let needed = start..extent.end;
            self.load_extents_too(inode, &range, &needed, Ahead::None)?;
        }
        let mut state = inode.lock();
        if state.removed {
            // They are deleted with the file.
            for (old, _) in extents {
                *left.entry(old.segment()).or_default() += 1;
            }
            return Ok(None);
        }
        let mut change = ExtentChange::default();
        for (old, pointer) in extents {
            if !point_to_copy(&mut state.extents, old, pointer, &mut change) {
                *left.entry(old.segment()).or_default() += 1;
            }
        }
        if change.is_empty() {
            return Ok(None);
        }
        let moved = change;
        let mut change = self.begin_change(state);
        let batch = change
            .touch(ino, Shown::Quietly, Record::IfUsageChanged)
            .batch;
        self.put_copies(pointing.segments, pointing.to, batch);
        if let Some(sharers) = pointing.sharers.get(&ino) {
            sharers.put(batch);
        }
        change.put_extents(Why::Moved, ino, moved);
        let shared = shared_segments(extents.iter().map(|(_, copy)| copy), pointing.segments);
        let committed = change.commit_sharing(&shared, UndoWhen::Gone);
        let Some(ticket) = committed.ticket() else {
            // A copy that was made for other extents is gone: the next round makes another.
            for (old, _) in extents {
                *left.entry(old.segment()).or_default() += 1;
            }
            return Ok(None);
        };
        drop(committed);
        for (old, copy) in extents {
            // A new record must not count as cold from its first day.
            if let Some(hash) = pointing.hashes.get(&copy.location)
                && pointing.to == To::Disks
            {
                let known = KnownRecord {
                    location: copy.location,
                    ino,
                    start: old.start,
                    len_bytes: copy.file_len_bytes,
                };
                self.dedupe.put(hash, known, copy);
            }
        }
        Ok(Some(ticket))
    }

    /// As [`Self::point_file_to_copies`], for extents that only snapshots see, in one batch.
    async fn point_history_to_copies(
        &self,
        moved: &[(Ino, DeadVersion, RecordExtent, Arc<RecordPointer>)],
        segments: &[SegmentInfo],
        sharers: &FxHashMap<Ino, Sharers>,
        to: To,
        left: &mut Left,
    ) -> Result<Ticket, FsError> {
        let _turn = self.snapshots.history_turn.lock().await;
        self.require_applied().await?;
        let mut batch = Batch::new();
        self.put_copies(segments, to, &mut batch);
        let mut live: FxHashMap<SegmentId, (i64, i64)> = FxHashMap::default();
        let mut space = SpaceDelta::default();
        let mut inos = FxHashSet::default();
        for (ino, version, old, copy) in moved {
            let read = || self.meta.dead_version(version).map_err(meta_error);
            let now = self.reading(read).await?;
            if now.as_ref() != Some(version) {
                // The version was freed with its snapshots, or another task moved it.
                if now.is_some() {
                    *left.entry(old.segment()).or_default() += 1;
                }
                continue;
            }
            if inos.insert(*ino)
                && let Some(sharers) = sharers.get(ino)
            {
                sharers.put(&mut batch);
            }
            let new = pointing_to(copy, old);
            for (extent, sign) in [(old, -1), (&new, 1)] {
                let entry = live.entry(extent.segment()).or_default();
                entry.0 += sign * extent.live_bytes();
                entry.1 += sign;
                space.stored_bytes += sign * extent.live_bytes();
                space.history_bytes += sign * extent.live_bytes();
            }
            let stored = Extent::from(new).to_stored();
            batch.put_moved_dead(version, &stored.encode());
        }
        for (segment, (bytes, records)) in live {
            batch.segment_delta(segment, bytes, records);
        }
        batch.space(space);
        let shared = shared_segments(moved.iter().map(|(_, _, _, copy)| copy), segments);
        let Some(ticket) = self.commit_bare_sharing(Bare::History, batch, &shared) else {
            for (_, _, old, _) in moved {
                *left.entry(old.segment()).or_default() += 1;
            }
            return Ok(self.meta.last_ticket());
        };
        // The next read of the history must see this change.
        self.durable(ticket).await?;
        self.require_applied().await?;
        Ok(ticket)
    }

    /// Puts the segments of copies into a batch. A segment of cold copies gets the age of its newest source.
    fn put_copies(&self, segments: &[SegmentInfo], to: To, batch: &mut Batch) {
        self.put_segments(segments, batch);
        let To::Tier { used_day } = to else {
            return;
        };
        for info in segments {
            let known = self.meta.segment(info.id);
            if known.is_none_or(|record| record.used_day < used_day) {
                batch.segment_used(info.id, used_day);
            }
        }
    }
}

/// Segments that are being emptied.
struct Rewriting<'a> {
    shared: &'a Arc<VolumeCore>,
    pace: Option<&'a Pace>,
    /// Those with room for their copies.
    chosen: FxHashSet<SegmentId>,
    /// The extents for the next step, and the running steps.
    step: Step,
    steps: FuturesUnordered<BoxFuture<Result<Left, FsError>>>,
    /// Extents that were found and not moved.
    left: Left,
    copies: Arc<Mutex<Copies>>,
    urgency: f64,
    looked_at: Option<Duration>,
}

impl Rewriting<'_> {
    /// Moves the extents that a search finds in the `wanted` segments, as far as these are still chosen.
    async fn run(
        &mut self,
        wanted: &FxHashSet<SegmentId>,
        mut search: Search,
    ) -> Result<(), FsError> {
        let mut wanted = wanted.clone();
        wanted.retain(|id| self.chosen.contains(id));
        loop {
            if self.look_if_due().await? {
                wanted.retain(|id| self.chosen.contains(id));
            }
            self.shared
                .find_victims(&mut search, &wanted, &mut self.step)?;
            if self.step.is_full() || search.is_over() {
                self.take_step().await?;
            }
            if search.is_over() {
                break;
            }
            let_others_run().await;
            if self.shared.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
        }
        self.finish_steps(0).await
    }

    /// Whether more extents point into a segment than were found and stayed: its summary does not name all of them.
    fn is_missed(&self, id: SegmentId) -> bool {
        let live_records = self.shared.meta.segment(id);
        let live_records = live_records.map_or(0, |record| record.live_records);
        let is_missed = live_records > self.left.get(&id).copied().unwrap_or(0);
        if is_missed && self.chosen.contains(&id) {
            let volume = self.shared.volume;
            tracing::warn!(%volume, segment = %id, live_records, "a summary does not account for all live records");
        }
        is_missed
    }

    /// Checks space and urgency at intervals, unless a fixed pace applies. Returns whether it did.
    async fn look_if_due(&mut self) -> Result<bool, FsError> {
        let shared = self.shared;
        let now = shared.env.clock.monotonic();
        let is_old = |at: Duration| now.saturating_sub(at) >= SURVEY_INTERVAL;
        let is_due = self.looked_at.is_none_or(is_old) || shared.collector.is_look_due();
        if self.pace.is_some() || !is_due {
            return Ok(false);
        }
        // Finishes all steps meanwhile: a client may wait for the bytes that a step is reading.
        self.finish_steps(0).await?;
        self.urgency = shared.look_around(&mut self.chosen).await?;
        self.looked_at = Some(shared.env.clock.monotonic());
        Ok(true)
    }

    /// Starts a step with the gathered extents, at the present pace.
    async fn take_step(&mut self) -> Result<(), FsError> {
        let shared = self.shared;
        let begun = shared.env.clock.monotonic();
        let step = std::mem::take(&mut self.step);
        // Held until the step is done: a fixed pace allows one step at a time.
        let is_wanted = || !shared.tasks.is_stopping();
        let turn = match self.pace {
            Some(pace) => match pace.spend_if(step.len_bytes, is_wanted).await {
                Some(turn) => Some(turn),
                None => return Err(FsError::Fenced),
            },
            None => None,
        };
        // But not during a wait for a tier: other work yields to clients through the same turns.
        let is_remote = |victim: &Victim| {
            let segment = victim.segment();
            shared.segments.is_remote(shared.volume, segment)
        };
        let _turn = turn.filter(|_| !step.victims.iter().any(is_remote));
        let (steps, copies) = (shared.clone(), self.copies.clone());
        self.steps.push(Box::pin(async move {
            steps
                .rewrite_records(step.victims, &copies, To::Disks)
                .await
        }));
        let steps_max = if self.urgency < 1.0 {
            1
        } else {
            URGENT_STEPS_MAX
        };
        self.finish_steps(steps_max - 1).await?;
        let took = shared.env.clock.monotonic().saturating_sub(begun);
        let pause = took.mul_f64(PATIENT_PAUSES * (1.0 - self.urgency));
        let pause = pause.min(PATIENT_PAUSE_MAX);
        let wake = shared.gc_wake.notified();
        if self.pace.is_none() && !pause.is_zero() && !shared.tasks.pause(pause, wake).await {
            return Err(FsError::Fenced);
        }
        Ok(())
    }

    /// Waits until at most so many steps are running.
    async fn finish_steps(&mut self, count: usize) -> Result<(), FsError> {
        while self.steps.len() > count {
            let done = self
                .steps
                .next()
                .await
                .unwrap_or_else(|| Ok(Left::default()));
            for (id, count) in done? {
                *self.left.entry(id).or_default() += count;
            }
        }
        Ok(())
    }
}

/// Segments of copies that were made before those in `appended`, which are pinned.
fn shared_segments<'a>(
    copies: impl Iterator<Item = &'a Arc<RecordPointer>>,
    appended: &[SegmentInfo],
) -> Vec<SegmentId> {
    let segments = copies.map(|copy| copy.location.segment);
    let is_older = |id: &SegmentId| !appended.iter().any(|info| info.id == *id);
    let older: FxHashSet<SegmentId> = segments.filter(is_older).collect();
    older.into_iter().collect()
}

/// The extent, if it is in a wanted segment.
fn wanted_of(extent: &Extent, wanted: &FxHashSet<SegmentId>) -> Option<RecordExtent> {
    let segment = extent.segment()?;
    wanted
        .contains(&segment)
        .then(|| extent.in_record())
        .flatten()
}

/// The whole of an extent, in a copy of its part of a record.
fn pointing_to(copy: &Arc<RecordPointer>, old: &RecordExtent) -> RecordExtent {
    RecordExtent {
        record: copy.clone(),
        offset_in_record: 0,
        ..old.clone()
    }
}

/// Points the remaining parts of extent `old` to `copy`, which holds its bytes. False if they are not in memory,
/// because other tasks needed it.
fn point_to_copy(
    extents: &mut ExtentMap,
    old: &RecordExtent,
    copy: &Arc<RecordPointer>,
    change: &mut ExtentChange,
) -> bool {
    let range = old.start..old.end;
    if !extents.is_loaded(&range) {
        return false;
    }
    let is_left = |extent: &RecordExtent| {
        old.start <= extent.start
            && extent.end <= old.end
            && extent.record == old.record
            && u64::from(
                extent.offset_in_record - old.offset_in_record.min(extent.offset_in_record),
            ) == extent.start - old.start
    };
    let in_records = extents
        .touching(range)
        .filter_map(|extent| extent.in_record());
    let mut left: Vec<RecordExtent> = in_records.filter(is_left).collect();
    if planted::is(Bug::RewriteIgnoresOverwrites) {
        left = vec![old.clone()];
    }
    for extent in left {
        let new = RecordExtent {
            record: copy.clone(),
            offset_in_record: (extent.start - old.start) as u32,
            ..extent
        };
        extents.insert(new.into(), change);
    }
    true
}
