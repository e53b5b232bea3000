//! Rewrites parts of files with many small extents in few large ones, for sequential readers.
//!
//! Owns: which parts of files sequential readers found in small extents, when and how these are rewritten. Must not
//! know: the readers, how segments with garbage are emptied (`rewrite`).
//!
//! To rewrite a part of a file is to overwrite it with the bytes that it has: new records, then one batch that points
//! the file to them, under the lock of the file. So snapshots, counters and quotas follow as with any write. Invariant:
//! as in garbage collection, bytes are replaced only where the file still refers to the very place that they were read
//! from.
//!
//! ```text
//!             a sequential reader             readers are done, there is room
//!  (unknown) ---------------------> noted ------------------------------------> rewritten, or left
//!                                     |     clients wait, space is short: stays noted
//! ```
//!
//! Notes are only in memory: after a restart, the next reader makes them again.

use std::collections::BTreeSet;
use std::future::pending;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Branch, Generation, Ino, SegmentId};
use cairn_meta::Ticket;
use cairn_segment::{
    ErrorKind, RecordOwner, RecordPointer, SegmentError, SegmentInfo, Stream, WantedPart,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::dedupe::Dedupe;
use crate::gc_policy::Budget;
use crate::kernel::{
    Ahead, Commit, Extent, ExtentChange, ExtentContent, ExtentMap, Inode, RecordExtent, UndoWhen,
    Why, segment_error,
};
use crate::storing::{Records, Stored};
use crate::types::FsError;
use crate::volume::{AccessPattern, Fs, VolumeCore};

/// Parts of files are noted and rewritten in windows of so many bytes, at multiples of it.
const WINDOW_BYTES: u64 = 4 << 20;
/// Windows that are noted concurrently, at most: 256 GiB of data.
const WINDOWS_MAX: usize = 64 << 10;
/// Extents that one step takes, at most.
const WINDOW_EXTENTS_MAX: usize = 4096;
/// Neighbouring extents are joined if they are at least so many,
const RUN_EXTENTS_MIN: usize = 4;
/// and have at most so many bytes each on average: larger ones cost a reader little.
const EXTENT_BYTES_MAX: u64 = 64 << 10;
/// Joining begins when no reader found small extents for so long, since it would read and write beside the readers,
const QUIET: Duration = Duration::from_secs(5);
/// or when windows have been noted for so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of the check whether joining may begin, or go on.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of this check while nothing is noted; a reader wakes the task.
const IDLE_INTERVAL: Duration = Duration::from_secs(3600);
/// After a step the task rests as long as the step took, but at most so long.
const REST_MAX: Duration = Duration::from_secs(1);
/// Nothing is rewritten while less of the pool is free, in percent.
const FREE_PERCENT_MIN: u64 = 10;

/// Windows in which readers found small extents.
#[derive(Default)]
struct Noted {
    windows: BTreeSet<(Ino, u64)>,
    /// The times of the first and the last note since the list was empty, on the monotonic clock.
    first: Duration,
    last: Duration,
}

/// Parts of files to rewrite.
#[derive(Default)]
pub(crate) struct Joins {
    noted: Mutex<Noted>,
    wake: Notify,
    budget: Mutex<Budget>,
}

impl Joins {
    fn note(&self, ino: Ino, range: &Range<u64>, now: Duration) {
        let mut noted = self.noted.lock();
        if noted.windows.is_empty() {
            noted.first = now;
            self.wake.notify_one();
        }
        noted.last = now;
        for window in range.start / WINDOW_BYTES..range.end.div_ceil(WINDOW_BYTES) {
            if noted.windows.len() >= WINDOWS_MAX {
                break;
            }
            noted.windows.insert((ino, window));
        }
    }

    fn is_empty(&self) -> bool {
        self.noted.lock().windows.is_empty()
    }

    /// Whether windows are noted, and readers are done with them.
    fn is_due(&self, now: Duration) -> bool {
        let noted = self.noted.lock();
        let since = |at: Duration| now.saturating_sub(at);
        !noted.windows.is_empty() && (since(noted.last) >= QUIET || since(noted.first) >= PATIENCE)
    }

    /// The next window, in the order of inodes and offsets.
    fn take(&self) -> Option<(Ino, Range<u64>)> {
        let (ino, window) = self.noted.lock().windows.pop_first()?;
        let start = window.saturating_mul(WINDOW_BYTES);
        Some((ino, start..start.saturating_add(WINDOW_BYTES)))
    }

    fn forget_all(&self) {
        self.noted.lock().windows.clear();
    }
}

/// Neighbouring extents, and the record that has their bytes now.
struct Joined {
    /// In order, without gaps, not empty.
    extents: Vec<RecordExtent>,
    record: Arc<RecordPointer>,
}

impl Joined {
    fn range(&self) -> Range<u64> {
        let start = self.extents.first().map_or(0, |extent| extent.start);
        let end = self.extents.last().map_or(0, |extent| extent.end);
        start..end
    }
}

/// Whether so many extents with so many bytes together are worth joining.
fn is_fragmented(extent_count: usize, len_bytes: u64) -> bool {
    extent_count >= RUN_EXTENTS_MIN && len_bytes / extent_count as u64 <= EXTENT_BYTES_MAX
}

/// Runs of neighbours that are worth joining; each lies within a record of `record_bytes` at a multiple of that size.
fn runs(extents: Vec<RecordExtent>, record_bytes: u64) -> Vec<Vec<RecordExtent>> {
    let mut runs: Vec<Vec<RecordExtent>> = Vec::new();
    for extent in extents {
        let of_record = extent.start / record_bytes;
        if of_record != extent.end.saturating_sub(1) / record_bytes {
            continue;
        }
        let is_next = |last: &RecordExtent| {
            last.end == extent.start && last.start / record_bytes == of_record
        };
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(is_next) => run.push(extent),
            _ => runs.push(vec![extent]),
        }
    }
    runs.retain(|run| {
        let len_bytes = run.iter().map(RecordExtent::len_bytes).sum();
        is_fragmented(run.len(), len_bytes)
    });
    runs
}

/// The ranges of a run whose bytes are still at the places that they were read from.
fn unchanged(extents: &ExtentMap, run: &Joined) -> Vec<Range<u64>> {
    if planted::is(Bug::JoinIgnoresOverwrites) {
        return vec![run.range()];
    }
    let mut stretches: Vec<Range<u64>> = Vec::new();
    for old in &run.extents {
        let now = extents
            .touching(old.start..old.end)
            .filter_map(|extent| extent.in_record());
        for now in now {
            let offset = u64::from(now.offset_in_record);
            let is_left = old.start <= now.start
                && now.end <= old.end
                && now.record == old.record
                && offset.checked_sub(u64::from(old.offset_in_record))
                    == Some(now.start - old.start);
            if !is_left {
                continue;
            }
            match stretches.last_mut() {
                Some(last) if last.end == now.start => last.end = now.end,
                _ => stretches.push(now.start..now.end),
            }
        }
    }
    stretches
}

/// Points extents to the record of a run wherever its bytes are still at the places that they were read from. The
/// range of the run must be loaded. Returns the number of those bytes.
fn point_to_joined(extents: &mut ExtentMap, run: &Joined, change: &mut ExtentChange) -> u64 {
    let start = run.range().start;
    let mut len_bytes = 0;
    for stretch in unchanged(extents, run) {
        len_bytes += stretch.end - stretch.start;
        let from = match planted::is(Bug::JoinedFromItsBegin) {
            true => 0,
            false => (stretch.start - start) as u32,
        };
        let new = Extent {
            start: stretch.start,
            end: stretch.end,
            place: ExtentContent::Record(run.record.clone(), from),
            // Set when the change is submitted.
            birth: Generation::FIRST,
        };
        extents.insert(new, change);
    }
    len_bytes
}

impl Fs {
    /// Rewrites many small extents in a part of a file as few large ones. A part of more than 4 MiB is cut to 4 MiB.
    /// Returns the number of rewritten bytes; durable on return.
    ///
    /// Skips extents that a snapshot sees, or that are in segments with shared records, since they would take space
    /// twice; bytes in a tier; files with writes in progress; files with the access pattern `random`, and
    /// deduplicated files; unreadable bytes.
    pub async fn join_extents(&self, ino: Ino, range: Range<u64>) -> Result<u64, FsError> {
        let end = range.end.min(range.start.saturating_add(WINDOW_BYTES));
        self.shared.join_extents(ino, range.start..end).await
    }
}

impl VolumeCore {
    /// A sequential reader is about to read `range` from disks; its extents are in memory.
    pub(crate) fn note_small_extents(&self, inode: &Inode, range: &Range<u64>) {
        // Most files of a clone are in snapshots.
        if !inode.view.is_live() || !inode.ino.branch().is_main() {
            return;
        }
        let (mut extent_count, mut len_bytes) = (0, 0);
        for extent in inode.lock().extents.touching(range.clone()) {
            if extent.record().is_some() {
                extent_count += 1;
                len_bytes += extent.len_bytes();
            }
        }
        if is_fragmented(extent_count, len_bytes) {
            let now = self.env.clock.monotonic();
            self.joins.note(inode.ino, range, now);
        }
    }

    pub(crate) async fn run_joining(self: Arc<Self>) {
        loop {
            let interval = match self.joins.is_empty() {
                true => IDLE_INTERVAL,
                false => LOOK_INTERVAL,
            };
            let wake = self.joins.wake.notified();
            if !self.tasks.pause(interval, wake).await {
                return;
            }
            match self.join_noted().await {
                Ok(()) => {}
                Err(_) if self.tasks.is_stopping() => return,
                // The next reader notes it again.
                Err(error) => {
                    self.joins.forget_all();
                    tracing::debug!(volume = %self.volume, %error, "files in small extents stay as they are");
                }
            }
        }
    }

    async fn join_noted(self: &Arc<Self>) -> Result<(), FsError> {
        while self.joins.is_due(self.env.clock.monotonic())
            && self.may_join()
            && let Some((ino, range)) = self.joins.take()
        {
            let begun = self.env.clock.monotonic();
            {
                let is_wanted = || !self.tasks.is_stopping();
                let _turn = match &self.pace {
                    Some(pace) => match pace.spend_if(WINDOW_BYTES, is_wanted).await {
                        Some(turn) => Some(turn),
                        None => return Err(FsError::Fenced),
                    },
                    None => None,
                };
                self.join_extents(ino, range).await?;
            }
            let took = self.env.clock.monotonic().saturating_sub(begun);
            if !self.tasks.pause(took.min(REST_MAX), pending()).await {
                return Err(FsError::Fenced);
            }
        }
        Ok(())
    }

    /// Whether there is room and time for this optional work.
    fn may_join(&self) -> bool {
        let totals = self.meta.segment_totals();
        let (limits, room) = self.limits(totals.live_bytes);
        let has_room = room.free_bytes >= room.total_bytes / 100 * FREE_PERCENT_MIN
            && !limits.is_pressed
            && limits.urgency(totals.sparse_bytes) < 1.0
            && !self.meta.is_full();
        let are_waiting = self
            .pace
            .as_ref()
            .is_some_and(|pace| pace.are_clients_waiting());
        if !has_room || are_waiting {
            return false;
        }
        let flushed_bytes = self.counters.flushed_bytes.load(Ordering::Relaxed);
        let joined_bytes = self.counters.joined_bytes.load(Ordering::Relaxed);
        let mut budget = self.joins.budget.lock();
        budget.update(totals.live_bytes, flushed_bytes, joined_bytes) >= WINDOW_BYTES
    }

    async fn join_extents(self: &Arc<Self>, ino: Ino, range: Range<u64>) -> Result<u64, FsError> {
        if !ino.branch().is_main() {
            return Ok(0);
        }
        let inode = match self.reading(|| self.own_inode(ino)).await {
            Err(FsError::Stale) => return Ok(0),
            found => found?,
        };
        let policy = self.policy_of(&inode).await;
        if policy.access_pattern == AccessPattern::Random || policy.dedupe != Dedupe::Off {
            return Ok(0);
        }
        let load = || self.load_extents(&inode, &range, Ahead::None);
        self.reading(load).await?;
        let Some(extents) = self.joinable(&inode, &range).await? else {
            return Ok(0);
        };
        let mut records = Records::default();
        let mut read = Vec::new();
        let encoder = self.segments.encoder(self.volume).map_err(segment_error)?;
        for (run, parts) in self
            .read_runs(runs(extents, policy.record_bytes(u64::MAX)))
            .await?
        {
            let owner = RecordOwner {
                object: ino.0,
                offset: run.first().map_or(0, |extent| extent.start),
            };
            let record = encoder.encode(parts, policy.compression);
            records.add(record.owned_by(owner), policy.asked());
            read.push(run);
        }
        if read.is_empty() {
            return Ok(0);
        }
        let Stored {
            locations,
            segments,
            pins,
        } = self.store_records(Stream::Rewrite, &records).await?;
        let joined: Vec<Joined> = read
            .into_iter()
            .zip(records.all.iter().zip(&locations))
            .map(|(extents, (record, location))| Joined {
                extents,
                record: Arc::new(record.pointer(*location)),
            })
            .collect();
        self.reading(load).await?;
        let pointed = self.point_file_to_joined(&inode, &range, &joined, &segments)?;
        drop(pins);
        let Some((ticket, len_bytes)) = pointed else {
            return Ok(0);
        };
        self.counters
            .joined_bytes
            .fetch_add(len_bytes, Ordering::Relaxed);
        self.durable(ticket).await.map(|()| len_bytes)
    }

    /// The extents of a part of a file whose rewriting takes no space twice; `None` if the file is busy, or gone.
    async fn joinable(
        &self,
        inode: &Inode,
        range: &Range<u64>,
    ) -> Result<Option<Vec<RecordExtent>>, FsError> {
        let newest = self.newest_snapshot(inode.ino.branch());
        let mut extents: Vec<RecordExtent> = {
            let state = inode.lock();
            let is_busy = !state.dirty.is_empty() || !state.flights.is_empty();
            if state.removed || is_busy || !state.extents.is_loaded(range) {
                return Ok(None);
            }
            let all = state.extents.touching(range.clone());
            let unseen = all.filter(|extent| extent.birth > newest);
            let in_records = unseen.filter_map(|extent| extent.in_record());
            let within =
                |extent: &RecordExtent| range.start <= extent.start && extent.end <= range.end;
            in_records.filter(within).take(WINDOW_EXTENTS_MAX).collect()
        };
        let mut own: FxHashMap<SegmentId, bool> = FxHashMap::default();
        for id in extents.iter().map(RecordExtent::segment) {
            if own.contains_key(&id) {
                continue;
            }
            let is_remote = self.segments.is_remote(self.volume, id);
            let is_own = !is_remote && self.reading(|| self.sharer_keys(id)).await?.is_empty();
            own.insert(id, is_own);
        }
        extents.retain(|extent| own.get(&extent.segment()).copied().unwrap_or(false));
        Ok(Some(extents))
    }

    /// The newest snapshot of a branch: this snapshot, or an earlier one, sees all extents that were born up to then.
    fn newest_snapshot(&self, branch: Branch) -> Generation {
        let all = self.meta.snapshots().into_iter();
        let own = all.filter(|(_, record)| record.branch == branch);
        own.map(|(at, _)| at).max().unwrap_or_default()
    }

    /// The bytes of runs; leaves out runs that cannot be read.
    async fn read_runs(
        self: &Arc<Self>,
        runs: Vec<Vec<RecordExtent>>,
    ) -> Result<Vec<(Vec<RecordExtent>, Vec<Bytes>)>, FsError> {
        let wanted: Vec<WantedPart> = runs.iter().flatten().map(RecordExtent::wanted).collect();
        let reads = self
            .segments
            .read_many_internally(self.volume, &wanted)
            .await;
        let mut reads = reads.into_iter();
        let mut all = Vec::with_capacity(runs.len());
        for run in runs {
            // Takes all reads of a run, also those behind a failed one.
            let of_run: Vec<Result<Vec<Bytes>, SegmentError>> =
                reads.by_ref().take(run.len()).collect();
            let of_run: Result<Vec<Vec<Bytes>>, SegmentError> = of_run.into_iter().collect();
            match of_run {
                Ok(parts) => all.push((run, parts.into_iter().flatten().collect())),
                Err(error @ SegmentError::VolumeClosed { .. }) => return Err(segment_error(error)),
                // The record was overwritten, or a collection moved it.
                Err(error) if error.kind() == ErrorKind::Gone => {}
                Err(error) => {
                    tracing::debug!(volume = %self.volume, %error, "small extents are not joined");
                }
            }
        }
        Ok(all)
    }

    /// Points a file to joined records, wherever its bytes are still at the places that they were read from. `None`:
    /// nothing was changed.
    fn point_file_to_joined(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        joined: &[Joined],
        segments: &[SegmentInfo],
    ) -> Result<Option<(Ticket, u64)>, FsError> {
        let mut state = inode.lock();
        if state.removed || !state.extents.is_loaded(range) {
            return Ok(None);
        }
        self.require_serving()?;
        let mut change = ExtentChange::default();
        let mut len_bytes = 0;
        for run in joined {
            len_bytes += point_to_joined(&mut state.extents, run, &mut change);
        }
        if change.is_empty() {
            return Ok(None);
        }
        let extents = change;
        let mut change = self.begin_change(state);
        self.put_segments(segments, change.edit_quietly(inode.ino).batch);
        change.put_extents(Why::Changed, inode.ino, extents);
        let Commit::Done(done) = change.commit_sharing(&[], UndoWhen::Refused) else {
            return Ok(None);
        };
        for record in done.extents.records_gone() {
            self.segments.cache_forget(self.volume, record);
        }
        Ok(Some((done.ticket, len_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::planted::plant;
    use cairn_segment::{Codec, Location};

    use super::*;
    use crate::kernel::ExtentCount;

    const KIB: u64 = 1 << 10;

    fn extent(segment: u64, start: u64, end: u64) -> RecordExtent {
        let len_bytes = (end - start) as u32;
        let record = RecordPointer {
            location: Location {
                segment: SegmentId(segment),
                stripe_block: 0,
                unit_blocks: 256,
                offset_bytes: 0,
                len_bytes,
            },
            codec: Codec::Raw,
            file_len_bytes: len_bytes,
            checksums: Vec::new(),
            encryption: None,
        };
        RecordExtent {
            start,
            end,
            record: Arc::new(record),
            offset_in_record: 0,
            birth: Generation::FIRST,
        }
    }

    #[test]
    fn neighbours_in_one_record_are_joined() {
        let block = |number: u64| (number * 4 * KIB, (number + 1) * 4 * KIB);
        let blocks = |numbers: Range<u64>| numbers.map(block).collect::<Vec<_>>();
        type Case<'a> = (&'a str, Vec<(u64, u64)>, &'a [(u64, u64)]);
        let cases: Vec<Case<'_>> = vec![
            ("nothing", vec![], &[]),
            ("too few", blocks(0..3), &[]),
            ("enough", blocks(0..4), &[(0, 16 * KIB)]),
            (
                "a hole between",
                [blocks(0..4), blocks(5..9)].concat(),
                &[(0, 16 * KIB), (20 * KIB, 36 * KIB)],
            ),
            (
                "where a record ends",
                blocks(250..260),
                &[(1000 * KIB, 1024 * KIB), (1024 * KIB, 1040 * KIB)],
            ),
            (
                "one across the end of a record",
                [
                    blocks(250..255),
                    vec![(1020 * KIB, 1028 * KIB)],
                    blocks(257..261),
                ]
                .concat(),
                &[(1000 * KIB, 1020 * KIB), (1028 * KIB, 1044 * KIB)],
            ),
            (
                "large ones",
                (0..4)
                    .map(|at| (at * 128 * KIB, (at + 1) * 128 * KIB))
                    .collect(),
                &[],
            ),
            (
                "small ones in a large one",
                [vec![(0, 512 * KIB)], blocks(128..138)].concat(),
                &[(0, 552 * KIB)],
            ),
        ];
        for (name, extents, want) in cases {
            let extents = extents.into_iter();
            let extents = extents.map(|(start, end)| extent(1, start, end));
            let got: Vec<(u64, u64)> = runs(extents.collect(), 1 << 20)
                .into_iter()
                .map(|run| (run[0].start, run[run.len() - 1].end))
                .collect();
            assert_eq!(got, want, "{name}");
        }
    }

    /// Eight blocks are joined. Meanwhile the fourth is overwritten, the sixth is cut in its middle, and a collection
    /// moves the last. Returns the segment of each half of a block, and the offset in its record.
    fn join_beside_changes() -> Vec<(u64, u64)> {
        const BLOCK: u64 = 4096;
        let mut map = ExtentMap::empty(&ExtentCount::default());
        let mut change = ExtentChange::default();
        let extents: Vec<RecordExtent> = (0..8)
            .map(|at| extent(at + 1, at * BLOCK, (at + 1) * BLOCK))
            .collect();
        for extent in &extents {
            map.insert(extent.clone().into(), &mut change);
        }
        let run = Joined {
            record: extent(100, 0, 8 * BLOCK).record,
            extents,
        };
        map.insert(extent(50, 3 * BLOCK, 4 * BLOCK).into(), &mut change);
        map.insert(
            extent(51, 5 * BLOCK + BLOCK / 2, 6 * BLOCK).into(),
            &mut change,
        );
        map.insert(extent(52, 7 * BLOCK, 8 * BLOCK).into(), &mut change);
        point_to_joined(&mut map, &run, &mut ExtentChange::default());
        (0..16)
            .map(|half| {
                let at = half * BLOCK / 2;
                let found = map.touching(at..at + 1).next().expect("there is no hole");
                let found = found.in_record().expect("it is in a record");
                let offset = u64::from(found.offset_in_record) + at - found.start;
                (found.segment().0, offset)
            })
            .collect()
    }

    #[test]
    fn what_changed_meanwhile_stays() {
        let want: Vec<(u64, u64)> = (0..16)
            .map(|half| match half {
                6 | 7 => (50, (half - 6) * 2048),
                11 => (51, 0),
                14 | 15 => (52, (half - 14) * 2048),
                _ => (100, half * 2048),
            })
            .collect();
        assert_eq!(join_beside_changes(), want);
        for bug in [Bug::JoinIgnoresOverwrites, Bug::JoinedFromItsBegin] {
            plant(Some(bug));
            let got = join_beside_changes();
            plant(None);
            assert_ne!(got, want, "{bug:?}");
        }
    }

    #[test]
    fn it_waits_for_readers_but_not_for_ever() {
        let joins = Joins::default();
        let second = Duration::from_secs;
        let ino = Ino(7);
        assert!(!joins.is_due(second(100)));
        joins.note(ino, &(3 << 20..9 << 20), second(100));
        assert!(!joins.is_due(second(104)));
        assert!(joins.is_due(second(105)));
        // A reader that goes on.
        for at in 104..160 {
            joins.note(ino, &(3 << 20..9 << 20), second(at));
            assert!(!joins.is_due(second(at)), "{at}");
        }
        assert!(joins.is_due(second(160)));
        let windows: Vec<_> = std::iter::from_fn(|| joins.take()).collect();
        let want = [0_u64, 4 << 20, 8 << 20].map(|start| (ino, start..start + (4 << 20)));
        assert_eq!(windows, want);
        assert!(joins.is_empty() && !joins.is_due(second(1000)));
    }
}
