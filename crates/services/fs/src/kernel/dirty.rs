//! The dirty map: bytes of one file that are newer than its extents.
//!
//! Owns: which bytes win where writes overlap, how many bytes are held, and how much memory that takes. Must not
//! know: when to flush, where bytes go, the structure of a journal beyond a position in it.

use std::collections::BTreeMap;
use std::ops::{Add, AddAssign, Neg, Range, Sub};

use bytes::Bytes;
use cairn_base::LogPosition;

/// Bytes that were written together, or the part of them that later writes left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub data: Bytes,
    /// The journal position of the bytes; `None` while they live in memory only.
    pub journal: Option<LogPosition>,
    /// Number of the write within its file, or of the oldest write whose bytes in memory it replaced. A COMMIT waits
    /// for this number.
    pub sequence: u64,
    /// Length of the buffer that `data` is a slice of; the slice keeps the whole buffer in memory.
    pub buffer_len_bytes: u64,
}

/// A slice smaller than this part of its buffer is copied, so that the counted memory is not far below the real amount.
const SHARED_PART_MIN: u64 = 4;

/// Approximate memory that a run takes beside its bytes: its part of a node of the map, which is half full where runs
/// come in order (130 bytes); the two allocations of a small buffer (32 bytes each); and its entry in
/// [`super::State::fresh`], where it lies alone.
const RUN_MEMORY_BYTES: i64 = 224;
const _: () = assert!(size_of::<Run>() + size_of::<u64>() <= 72);

/// Data in memory and its number of runs, or a change of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub data_bytes: i64,
    pub run_count: i64,
}

impl Load {
    pub fn of(data_bytes: u64, run_count: usize) -> Self {
        Self {
            data_bytes: data_bytes as i64,
            run_count: run_count as i64,
        }
    }

    /// The memory that this takes, with the overhead beside the data.
    pub fn memory_bytes(self) -> u64 {
        self.memory().max(0) as u64
    }

    /// Whether the change frees memory.
    pub fn is_less(self) -> bool {
        self.memory() < 0
    }

    fn memory(self) -> i64 {
        self.data_bytes + self.run_count * RUN_MEMORY_BYTES
    }
}

impl Add for Load {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            data_bytes: self.data_bytes + other.data_bytes,
            run_count: self.run_count + other.run_count,
        }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Neg for Load {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            data_bytes: -self.data_bytes,
            run_count: -self.run_count,
        }
    }
}

impl Sub for Load {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

/// Runs by file offset; they never overlap.
#[derive(Debug, Default)]
pub struct DirtyMap {
    runs: BTreeMap<u64, Run>,
    len_bytes: u64,
    unstable_bytes: u64,
}

impl DirtyMap {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Bytes held.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Bytes held that are in no journal.
    pub fn unstable_bytes(&self) -> u64 {
        self.unstable_bytes
    }

    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// The present load.
    pub fn load(&self) -> Load {
        Load::of(self.len_bytes, self.runs.len())
    }

    pub fn runs(&self) -> &BTreeMap<u64, Run> {
        &self.runs
    }

    /// Whether a run that is only in memory comes from a write up to `sequence`.
    pub fn has_unstable_up_to(&self, sequence: u64) -> bool {
        self.unstable_bytes > 0
            && self
                .runs
                .values()
                .any(|run| run.journal.is_none() && run.sequence <= sequence)
    }

    /// Puts `run` at `offset`; it wins over present bytes. Returns the change of the load.
    ///
    /// Where it replaces bytes that are only in memory, it also takes over their number: a COMMIT that waits for
    /// those must not find them gone before the new bytes are stable.
    pub fn insert(&mut self, offset: u64, mut run: Run) -> Load {
        if run.data.is_empty() {
            return Load::default();
        }
        let before = self.load();
        let end = offset + run.data.len() as u64;
        let touched = self.runs.range(..end).rev();
        let touched = touched.take_while(|(start, old)| *start + old.data.len() as u64 > offset);
        let unstable = touched.filter(|(_, old)| old.journal.is_none());
        let oldest = unstable.map(|(_, old)| old.sequence).min();
        run.sequence = oldest.map_or(run.sequence, |oldest| oldest.min(run.sequence));
        self.clear(offset..offset + run.data.len() as u64);
        self.add(offset, run);
        self.load() - before
    }

    /// Puts back the parts of `run` that no newer bytes cover, after a flush failed. Newer bytes that are only in
    /// memory take over its number, as in [`Self::insert`].
    pub fn insert_under(&mut self, offset: u64, run: Run) -> Load {
        let before = self.load();
        let mut gaps = Vec::new();
        let end = offset + run.data.len() as u64;
        if run.journal.is_none() {
            for (start, newer) in self.runs.range_mut(..end).rev() {
                if *start + newer.data.len() as u64 <= offset {
                    break;
                }
                if newer.journal.is_none() {
                    newer.sequence = newer.sequence.min(run.sequence);
                }
            }
        }
        gaps_of(&self.runs, offset..end, &mut gaps);
        for gap in gaps {
            let part = Run {
                data: run
                    .data
                    .slice((gap.start - offset) as usize..(gap.end - offset) as usize),
                ..run.clone()
            };
            self.add(gap.start, part);
        }
        self.load() - before
    }

    /// Drops all bytes in `range`. Returns the change of the load.
    pub fn clear(&mut self, range: Range<u64>) -> Load {
        let before = self.load();
        let first = self
            .runs
            .range(..range.start)
            .next_back()
            .filter(|(start, run)| *start + run.data.len() as u64 > range.start)
            .map(|(start, _)| *start);
        let mut next = first;
        loop {
            let start = match next.take() {
                Some(start) => start,
                None => match self.runs.range(range.clone()).next() {
                    Some((start, _)) => *start,
                    None => break,
                },
            };
            let run = self.remove(start);
            let end = start + run.data.len() as u64;
            if start < range.start {
                let left = run.data.slice(..(range.start - start) as usize);
                self.add(
                    start,
                    Run {
                        data: left,
                        ..run.clone()
                    },
                );
            }
            if end > range.end {
                let right = run.data.slice((range.end - start) as usize..);
                self.add(range.end, Run { data: right, ..run });
                break;
            }
        }
        self.load() - before
    }

    /// Takes runs from the lowest offset on, until `bytes_max` or `runs_max` is reached. Runs that touch a `blocked`
    /// range stay, and are skipped without a visit: there may be very many.
    pub fn take(
        &mut self,
        bytes_max: u64,
        runs_max: usize,
        blocked: &[Range<u64>],
    ) -> BTreeMap<u64, Run> {
        let mut taken_bytes = 0;
        let mut starts = Vec::new();
        'taking: for free in between(blocked) {
            for (start, run) in self.runs.range(free.clone()) {
                if taken_bytes >= bytes_max || starts.len() >= runs_max {
                    break 'taking;
                }
                let len_bytes = run.data.len() as u64;
                if start + len_bytes > free.end {
                    break;
                }
                taken_bytes += len_bytes;
                starts.push(*start);
            }
        }
        if starts.len() == self.runs.len() {
            self.len_bytes = 0;
            self.unstable_bytes = 0;
            return std::mem::take(&mut self.runs);
        }
        starts
            .into_iter()
            .map(|start| (start, self.remove(start)))
            .collect()
    }

    /// Marks every run that is only in memory as journaled at `position`.
    pub fn mark_journaled(&mut self, position: LogPosition) {
        for run in self.runs.values_mut() {
            run.journal.get_or_insert(position);
        }
        self.unstable_bytes = 0;
    }

    fn add(&mut self, offset: u64, mut run: Run) {
        let len_bytes = run.data.len() as u64;
        if len_bytes < run.buffer_len_bytes / SHARED_PART_MIN {
            run.data = Bytes::copy_from_slice(&run.data);
            run.buffer_len_bytes = len_bytes;
        }
        self.len_bytes += run.data.len() as u64;
        if run.journal.is_none() {
            self.unstable_bytes += run.data.len() as u64;
        }
        let old = self.runs.insert(offset, run);
        assert!(old.is_none());
    }

    fn remove(&mut self, offset: u64) -> Run {
        let run = self.runs.remove(&offset).expect("a run starts here");
        self.len_bytes -= run.data.len() as u64;
        if run.journal.is_none() {
            self.unstable_bytes -= run.data.len() as u64;
        }
        run
    }
}

/// Whether any run has bytes of a range.
pub fn has_bytes_in(runs: &BTreeMap<u64, Run>, range: &Range<u64>) -> bool {
    // Runs do not overlap: the last that begins before the end reaches furthest.
    let last = runs.range(..range.end).next_back();
    last.is_some_and(|(start, run)| start + run.data.len() as u64 > range.start)
}

/// The last journal position of bytes in `range`.
pub fn last_journaled(runs: &BTreeMap<u64, Run>, range: &Range<u64>) -> Option<LogPosition> {
    // Runs do not overlap, so the first that ends before the range ends the search.
    let before_end = runs.range(..range.end).rev();
    let touching =
        before_end.take_while(|(start, run)| **start + run.data.len() as u64 > range.start);
    touching.filter_map(|(_, run)| run.journal).max()
}

/// Collects the bytes that `runs` holds of `range` into `pieces`, and the missing ranges into `gaps`. Bytes at or
/// past `limit` do not count: the file was cut there after they were written.
pub fn fill(
    runs: &BTreeMap<u64, Run>,
    limit: u64,
    range: Range<u64>,
    pieces: &mut Vec<(u64, Bytes)>,
    gaps: &mut Vec<Range<u64>>,
) {
    let mut at = range.start;
    for (start, data) in overlapping(runs, range.clone()) {
        let end = (start + data.len() as u64).min(range.end).min(limit);
        let from = start.max(at);
        if from >= end {
            continue;
        }
        if from > at {
            gaps.push(at..from);
        }
        pieces.push((
            from,
            data.slice((from - start) as usize..(end - start) as usize),
        ));
        at = end;
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
}

/// The ranges of a file that are in none of `blocked`, in order.
fn between(blocked: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut blocked = blocked.to_vec();
    blocked.sort_unstable_by_key(|range| range.start);
    let mut free = Vec::with_capacity(blocked.len() + 1);
    let mut at = 0;
    for range in blocked {
        if at < range.start {
            free.push(at..range.start);
        }
        at = at.max(range.end);
    }
    free.push(at..u64::MAX);
    free
}

fn gaps_of(runs: &BTreeMap<u64, Run>, range: Range<u64>, gaps: &mut Vec<Range<u64>>) {
    let mut at = range.start;
    for (start, data) in overlapping(runs, range.clone()) {
        if start > at {
            gaps.push(at..start);
        }
        at = at.max(start + data.len() as u64);
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
}

fn overlapping(
    runs: &BTreeMap<u64, Run>,
    range: Range<u64>,
) -> impl Iterator<Item = (u64, &Bytes)> {
    let first = runs
        .range(..range.start)
        .next_back()
        .filter(|(start, run)| *start + run.data.len() as u64 > range.start)
        .map_or(range.start, |(start, _)| *start);
    runs.range(first..range.end)
        .map(|(start, run)| (*start, &run.data))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(byte: u8, len: usize, sequence: u64) -> Run {
        Run {
            data: Bytes::from(vec![byte; len]),
            journal: sequence.is_multiple_of(2).then_some(LogPosition(sequence)),
            sequence,
            buffer_len_bytes: len as u64,
        }
    }

    fn content(map: &DirtyMap, len: usize) -> Vec<Option<u8>> {
        let mut bytes = vec![None; len];
        for (start, run) in map.runs() {
            for (index, byte) in run.data.iter().enumerate() {
                let slot = &mut bytes[*start as usize + index];
                assert!(slot.is_none(), "runs overlap at {start}");
                *slot = Some(*byte);
            }
        }
        bytes
    }

    /// A failed flush gives bytes back. A COMMIT that waits for them must not find them gone before the newer bytes
    /// that replaced them are stable.
    #[test]
    fn what_replaced_bytes_that_come_back_is_waited_for_as_they_are() {
        let unstable = |offset, len, sequence| {
            let run = Run {
                journal: None,
                ..run(7, len, sequence)
            };
            (offset, run)
        };
        for (newer_at, newer_len, waited) in [(0, 100, true), (90, 50, true), (100, 50, false)] {
            let mut map = DirtyMap::default();
            let (offset, newer) = unstable(newer_at, newer_len, 9);
            map.insert(offset, newer);
            let (offset, back) = unstable(0, 100, 2);
            map.insert_under(offset, back.clone());
            map.clear(0..newer_at);
            assert_eq!(map.has_unstable_up_to(2), waited, "{newer_at}");
            // Bytes in the journal are stable already.
            let journaled = Run {
                journal: Some(LogPosition(1)),
                ..back
            };
            let mut map = DirtyMap::default();
            let (offset, newer) = unstable(newer_at, newer_len, 9);
            map.insert(offset, newer);
            map.insert_under(0, journaled);
            assert!(!map.has_unstable_up_to(2));
        }
    }

    /// The rests of large writes that others overwrote keep about as much memory as is counted.
    #[test]
    fn small_rests_of_large_writes_do_not_keep_their_buffers() {
        const LEN: usize = 1 << 20;
        let mut map = DirtyMap::default();
        let alive = std::sync::Arc::new(());
        struct Buffer(Vec<u8>, #[expect(dead_code)] std::sync::Arc<()>);
        impl AsRef<[u8]> for Buffer {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        for step in 0..200u64 {
            let data = Bytes::from_owner(Buffer(vec![1; LEN], alive.clone()));
            let written = Run {
                data,
                ..run(1, LEN, step)
            };
            map.insert(step * 4096, written);
        }
        let held = std::sync::Arc::strong_count(&alive) - 1;
        let counted = map.len_bytes() as usize / LEN;
        assert!(
            held <= 2 * SHARED_PART_MIN as usize * (counted + 1),
            "{held} {counted}"
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, usize, u8),
        InsertUnder(u64, usize, u8),
        Clear(u64, u64),
        Take(u64, usize, Vec<Range<u64>>),
    }

    /// Some overlap, as the spans of flights may.
    fn blocked() -> impl Strategy<Value = Vec<Range<u64>>> {
        let range = (0..250u64, 1..40u64).prop_map(|(start, len)| start..start + len);
        prop::collection::vec(range, 0..4)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..200u64, 1..60usize, any::<u8>()).prop_map(|(o, l, b)| Step::Insert(o, l, b)),
            (0..200u64, 1..60usize, any::<u8>()).prop_map(|(o, l, b)| Step::InsertUnder(o, l, b)),
            (0..200u64, 0..100u64).prop_map(|(o, l)| Step::Clear(o, l)),
            (0..80u64, 0..4usize, blocked()).prop_map(|(b, r, blocked)| Step::Take(b, r, blocked)),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_an_array_of_optional_bytes(steps in prop::collection::vec(step(), 1..60)) {
            let mut map = DirtyMap::default();
            let mut model = vec![None; 300];
            for (index, step) in steps.into_iter().enumerate() {
                let before = map.load();
                let mut delta = None;
                match step {
                    Step::Insert(offset, len, byte) => {
                        delta = Some(map.insert(offset, run(byte, len, index as u64)));
                        model[offset as usize..offset as usize + len].fill(Some(byte));
                    }
                    Step::InsertUnder(offset, len, byte) => {
                        delta = Some(map.insert_under(offset, run(byte, len, index as u64)));
                        for slot in &mut model[offset as usize..offset as usize + len] {
                            slot.get_or_insert(byte);
                        }
                    }
                    Step::Clear(offset, len) => {
                        delta = Some(map.clear(offset..offset + len));
                        model[offset as usize..(offset + len) as usize].fill(None);
                    }
                    Step::Take(bytes, runs, blocked) => {
                        let is_free = |(start, run): &(&u64, &Run)| {
                            let end = *start + run.data.len() as u64;
                            !blocked.iter().any(|other| **start < other.end && other.start < end)
                        };
                        let free: Vec<u64> = map.runs().iter().filter(is_free).map(|(start, _)| *start).collect();
                        let taken = map.take(bytes, runs, &blocked);
                        let starts: Vec<u64> = taken.keys().copied().collect();
                        prop_assert_eq!(&free[..starts.len()], &starts[..]);
                        let lens = taken.values().map(|run| run.data.len() as u64);
                        let is_full = starts.len() >= runs || lens.sum::<u64>() >= bytes;
                        prop_assert!(is_full || starts.len() == free.len());
                        for (start, run) in taken {
                            model[start as usize..start as usize + run.data.len()].fill(None);
                        }
                    }
                }
                prop_assert_eq!(&content(&map, 300), &model);
                prop_assert_eq!(map.len_bytes(), model.iter().flatten().count() as u64);
                let unstable: usize = map.runs().values().filter(|r| r.journal.is_none()).map(|r| r.data.len()).sum();
                prop_assert_eq!(map.unstable_bytes(), unstable as u64);
                if let Some(delta) = delta {
                    prop_assert_eq!(before + delta, map.load());
                }
            }
        }

        #[test]
        fn fill_splits_a_range_into_pieces_and_gaps(
            inserts in prop::collection::vec((0..200u64, 1..40usize, any::<u8>()), 0..12),
            start in 0..250u64, len in 0..60u64, limit in 0..300u64,
        ) {
            let mut map = DirtyMap::default();
            for (index, (offset, len, byte)) in inserts.into_iter().enumerate() {
                map.insert(offset, run(byte, len, index as u64));
            }
            let mut want = content(&map, 400);
            want[limit as usize..].fill(None);
            let (mut pieces, mut gaps) = (Vec::new(), Vec::new());
            fill(map.runs(), limit, start..start + len, &mut pieces, &mut gaps);
            let mut got = vec![None; 400];
            let mut covered = 0;
            for (offset, data) in &pieces {
                covered += data.len() as u64;
                for (index, byte) in data.iter().enumerate() {
                    got[*offset as usize + index] = Some(*byte);
                }
            }
            covered += gaps.iter().map(|gap| gap.end - gap.start).sum::<u64>();
            prop_assert_eq!(covered, len);
            let range = start as usize..(start + len) as usize;
            prop_assert_eq!(&got[range.clone()], &want[range]);
        }
    }
}
