//! The extent map of one file: for each byte, its record, or the extent that contains the byte itself.
//!
//! Owns: how extents are cut when newer ones cover them, which parts of the map are in memory. Must not know: how
//! extents are stored, the contents of records.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Generation, SegmentId};
use cairn_meta::{ExtentPlace, ExtentRecord};
use cairn_segment::{RecordPointer, WantedPart};

/// One load brings in the extents of at most so many bytes of a file,
pub const LOAD_LEN_BYTES_MAX: u64 = 64 << 20;
/// and about so many extents: the cost of a miss.
pub const LOAD_EXTENTS_MAX: usize = 128;

/// The place of `start..end` of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: u64,
    pub end: u64,
    pub place: ExtentContent,
    /// The generation in which it was stored; [`ExtentMap::settle`] sets it for an extent that is being stored.
    pub birth: Generation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtentContent {
    /// In a record, from this offset on (in the record's file bytes).
    Record(Arc<RecordPointer>, u32),
    /// In the extent itself: the metadata has all the bytes.
    Inline(Bytes),
}

impl ExtentContent {
    /// The place of `len_bytes` bytes from `from` on.
    pub fn part(&self, from: u32, len_bytes: u32) -> Self {
        match self {
            Self::Record(record, offset) => Self::Record(record.clone(), offset + from),
            Self::Inline(bytes) => {
                let from = match planted::is(Bug::InlineCutAtItsBegin) {
                    true => 0,
                    false => from as usize,
                };
                Self::Inline(bytes.slice(from..from + len_bytes as usize))
            }
        }
    }
}

/// The bytes that so many bytes of a file take of their record.
fn live_bytes(record: &RecordPointer, len_bytes: u64) -> i64 {
    let stored = u64::from(record.location.len_bytes);
    let whole = u64::from(record.file_len_bytes).max(1);
    (stored * len_bytes).div_ceil(whole) as i64
}

/// An extent whose bytes are in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordExtent {
    pub start: u64,
    pub end: u64,
    pub record: Arc<RecordPointer>,
    pub offset_in_record: u32,
    pub birth: Generation,
}

impl RecordExtent {
    pub fn len_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// As [`Extent::live_bytes`].
    pub fn live_bytes(&self) -> i64 {
        live_bytes(&self.record, self.len_bytes())
    }

    pub fn segment(&self) -> SegmentId {
        self.record.location.segment
    }

    /// The part of the record that the extent refers to.
    pub fn wanted(&self) -> WantedPart {
        let from = self.offset_in_record;
        let len_bytes = u32::try_from(self.len_bytes()).unwrap_or(u32::MAX);
        (self.record.clone(), from..from.saturating_add(len_bytes))
    }
}

impl From<RecordExtent> for Extent {
    fn from(extent: RecordExtent) -> Self {
        Self {
            start: extent.start,
            end: extent.end,
            place: ExtentContent::Record(extent.record, extent.offset_in_record),
            birth: extent.birth,
        }
    }
}

impl Extent {
    pub fn of_stored(stored: ExtentRecord, end: u64, birth: Generation) -> Self {
        Self {
            start: stored.start,
            end,
            place: match stored.place {
                ExtentPlace::Record {
                    record,
                    offset_in_record,
                } => ExtentContent::Record(Arc::new(record), offset_in_record),
                ExtentPlace::Inline(bytes) => ExtentContent::Inline(bytes),
            },
            birth,
        }
    }

    /// The value that is stored under its key.
    pub fn to_stored(&self) -> ExtentRecord {
        let place = match &self.place {
            ExtentContent::Record(record, offset_in_record) => ExtentPlace::Record {
                record: (**record).clone(),
                offset_in_record: *offset_in_record,
            },
            ExtentContent::Inline(bytes) => ExtentPlace::Inline(bytes.clone()),
        };
        ExtentRecord {
            start: self.start,
            place,
        }
    }

    pub fn len_bytes(&self) -> u64 {
        self.end - self.start
    }

    pub fn record(&self) -> Option<&Arc<RecordPointer>> {
        match &self.place {
            ExtentContent::Record(record, _) => Some(record),
            ExtentContent::Inline(_) => None,
        }
    }

    /// The segment that counts the extent.
    pub fn segment(&self) -> Option<SegmentId> {
        self.record().map(|record| record.location.segment)
    }

    /// The extent with its record, if its bytes are in one.
    pub fn in_record(&self) -> Option<RecordExtent> {
        match &self.place {
            ExtentContent::Record(record, offset) => Some(RecordExtent {
                start: self.start,
                end: self.end,
                record: record.clone(),
                offset_in_record: *offset,
                birth: self.birth,
            }),
            ExtentContent::Inline(_) => None,
        }
    }

    /// The live bytes that this view of the record adds to its segment, or the size of its inline bytes. A pure
    /// function of the view, so a removal subtracts exactly the amount that the insertion added.
    pub fn live_bytes(&self) -> i64 {
        match &self.place {
            ExtentContent::Record(record, _) => live_bytes(record, self.len_bytes()),
            ExtentContent::Inline(bytes) => bytes.len() as i64,
        }
    }

    /// The part of the extent between two offsets in the file.
    pub fn part(&self, start: u64, end: u64) -> Self {
        let from = (start - self.start) as u32;
        Self {
            start,
            end,
            place: self.place.part(from, (end - start) as u32),
            birth: self.birth,
        }
    }
}

/// A change of the stored extents: for each key (the end of an extent) the value before and after. Extents that come
/// and go within one change leave no trace.
#[derive(Debug, Default)]
pub struct ExtentChange {
    keys: BTreeMap<u64, Replaced>,
}

#[derive(Debug, Default)]
pub struct Replaced {
    pub before: Option<Extent>,
    pub after: Option<Extent>,
}

impl ExtentChange {
    /// The ends of extents, with the stored value before and after the change.
    pub fn keys(&self) -> impl Iterator<Item = (u64, &Replaced)> {
        self.keys.iter().map(|(end, replaced)| (*end, replaced))
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Records that lose their last view by this change, as far as it shows: those of which it leaves no part. (A
    /// record that was cut apart earlier has views elsewhere. It is not lost: a cache that drops it too early only
    /// reads it again.)
    pub fn records_gone(&self) -> impl Iterator<Item = &Arc<RecordPointer>> {
        let kept: BTreeSet<_> = self
            .keys
            .values()
            .filter_map(|replaced| replaced.after.as_ref())
            .filter_map(|extent| extent.record())
            .map(|record| record.location)
            .collect();
        self.keys
            .values()
            .filter_map(|replaced| replaced.before.as_ref())
            .filter_map(|extent| extent.record().map(|record| (extent, record)))
            .filter(move |(extent, record)| {
                extent.len_bytes() == u64::from(record.file_len_bytes)
                    && !kept.contains(&record.location)
            })
            .map(|(_, record)| record)
    }

    /// Whether the new extents lie one after the other, each with its end as its key.
    pub fn is_in_order(&self) -> bool {
        let mut last = 0;
        self.keys().all(|(end, replaced)| {
            let Some(after) = &replaced.after else {
                return true;
            };
            let is_next = last <= after.start && after.start < after.end && after.end == end;
            last = end;
            is_next
        })
    }

    fn removed(&mut self, extent: Extent) {
        self.keys
            .entry(extent.end)
            .or_insert_with(|| Replaced {
                before: Some(extent),
                after: None,
            })
            .after = None;
    }

    fn added(&mut self, extent: Extent) {
        let key = extent.end;
        self.keys.entry(key).or_default().after = Some(extent);
    }
}

/// Whether to load more than the caller asked for, in the hope that it is needed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    Some,
    None,
}

/// The number of extents that the files of a volume have in memory together.
#[derive(Clone, Debug, Default)]
pub struct ExtentCount(Arc<AtomicUsize>);

impl ExtentCount {
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A range of a file whose extents are all in memory.
#[derive(Debug)]
struct Piece {
    end: u64,
    /// Used since the last pass of the clock hand.
    used: Cell<bool>,
}

/// The extents of a file, as far as they are loaded.
///
/// They are loaded and forgotten in pieces: a file in use by a database has millions of extents, and a read of a few
/// KiB must not load many.
#[derive(Debug, Default)]
pub struct ExtentMap {
    by_end: BTreeMap<u64, Extent>,
    /// Pieces by their starts; they do not overlap.
    pieces: BTreeMap<u64, Piece>,
    /// All extents are in memory; then there are no pieces.
    complete: bool,
    /// Grows with each change, so that a concurrent load notices the change.
    version: u64,
    /// The start of the next piece that may be forgotten.
    hand: u64,
    share: Share,
}

/// The share of one map in the count of all.
#[derive(Debug, Default)]
struct Share {
    all: ExtentCount,
    len: usize,
}

impl Share {
    fn set(&mut self, len: usize) {
        if len >= self.len {
            self.all.0.fetch_add(len - self.len, Ordering::Relaxed);
        } else {
            self.all.0.fetch_sub(self.len - len, Ordering::Relaxed);
        }
        self.len = len;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl ExtentMap {
    /// The map of a file of which nothing is loaded.
    pub fn new(count: &ExtentCount) -> Self {
        Self {
            share: Share {
                all: count.clone(),
                len: 0,
            },
            ..Self::default()
        }
    }

    /// The map of a file that has no extents.
    pub fn empty(count: &ExtentCount) -> Self {
        Self {
            complete: true,
            ..Self::new(count)
        }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// The amount that counts against the memory limit.
    pub fn len(&self) -> usize {
        self.by_end.len() + self.pieces.len()
    }

    /// The first part of `range` that is not loaded, extended to the beginning of the next piece, by at most
    /// [`LOAD_LEN_BYTES_MAX`].
    pub fn missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if self.complete {
            return None;
        }
        let mut at = range.start;
        while at < range.end {
            let before = self.pieces.range(..=at).next_back();
            match before.filter(|(_, piece)| piece.end > at) {
                Some((_, piece)) => {
                    piece.used.set(true);
                    at = piece.end;
                }
                None => {
                    let next = self.pieces.range(at..).next();
                    let end = at.saturating_add(LOAD_LEN_BYTES_MAX);
                    return Some(at..next.map_or(end, |(start, _)| end.min(*start)));
                }
            }
        }
        None
    }

    pub fn is_loaded(&self, range: &Range<u64>) -> bool {
        self.missing(range).is_none()
    }

    /// Adds the stored extents that touch `range`, which was missing.
    pub fn load(&mut self, range: Range<u64>, extents: Vec<Extent>) {
        for extent in extents {
            self.by_end.insert(extent.end, extent);
        }
        let piece = Piece {
            end: range.end,
            used: Cell::new(true),
        };
        self.pieces.insert(range.start, piece);
        self.recount();
    }

    /// Forgets everything in memory; it is loaded again at the next use.
    pub fn unload(&mut self) {
        if !self.complete || !self.by_end.is_empty() {
            self.by_end.clear();
            self.pieces.clear();
            self.complete = false;
            self.recount();
        }
    }

    /// Forgets pieces that were not used for long, until at most `keep` count; keeps those in `needed`.
    pub fn trim(&mut self, keep: usize, needed: &Range<u64>) {
        if self.len() <= keep {
            return;
        }
        if self.complete {
            self.cut_into_pieces();
        }
        // Two rounds: the first one clears the marks.
        let mut turns = 2 * self.pieces.len();
        while self.len() > keep && turns > 0 {
            turns -= 1;
            let next = self.pieces.range(self.hand..).next();
            let Some((start, piece)) = next.or_else(|| self.pieces.iter().next()) else {
                break;
            };
            let start = *start;
            self.hand = piece.end;
            let is_needed = start < needed.end && piece.end > needed.start;
            if !is_needed && !piece.used.replace(false) {
                self.forget_piece(start);
            }
        }
        self.recount();
    }

    fn cut_into_pieces(&mut self) {
        self.complete = false;
        let mut start = 0;
        let ends = self.by_end.keys().copied();
        let cuts: Vec<u64> = ends
            .skip(LOAD_EXTENTS_MAX)
            .step_by(LOAD_EXTENTS_MAX)
            .collect();
        for end in cuts.into_iter().chain([u64::MAX]) {
            let used = Cell::new(false);
            self.pieces.insert(start, Piece { end, used });
            start = end;
        }
    }

    /// Forgets the piece that begins at `start`, and its extents but those that other pieces share.
    fn forget_piece(&mut self, start: u64) {
        let Some(Piece { end, .. }) = self.pieces.remove(&start) else {
            return;
        };
        let ends: Vec<u64> = self
            .touching(start..end)
            .filter(|extent| !self.touches_a_piece(extent))
            .map(|extent| extent.end)
            .collect();
        for end in ends {
            self.by_end.remove(&end);
        }
    }

    fn touches_a_piece(&self, extent: &Extent) -> bool {
        let last = self.pieces.range(..extent.end).next_back();
        last.is_some_and(|(_, piece)| piece.end > extent.start)
    }

    /// Keeps the rest of an extent after a change, if it is in a loaded part of the file.
    fn hold(&mut self, part: &Extent) {
        if self.complete || self.touches_a_piece(part) {
            self.by_end.insert(part.end, part.clone());
        }
    }

    /// Follows a cut of the file at `offset` that the metadata already has.
    pub fn forget_from(&mut self, offset: u64) {
        if self.complete {
            self.clear(offset..u64::MAX, &mut ExtentChange::default());
        } else {
            self.unload();
            self.version += 1;
        }
    }

    /// Follows a hole over `range` that the metadata already has.
    pub fn forget(&mut self, range: &Range<u64>) {
        if self.is_loaded(range) {
            self.clear(range.clone(), &mut ExtentChange::default());
        } else {
            self.unload();
            self.version += 1;
        }
    }

    /// Follows additions of extents that the metadata already has.
    pub fn forget_all(&mut self) {
        self.by_end.clear();
        self.pieces.clear();
        self.complete = false;
        self.version += 1;
        self.recount();
    }

    /// The extents that touch `range`, in order. The range must be loaded.
    pub fn touching(&self, range: Range<u64>) -> impl Iterator<Item = &Extent> {
        self.by_end
            .range(range.start + 1..)
            .map(|(_, extent)| extent)
            .take_while(move |extent| extent.start < range.end)
    }

    /// Puts `new` into the map; it wins over present extents. Its range must be loaded.
    pub fn insert(&mut self, new: Extent, change: &mut ExtentChange) {
        assert!(new.start < new.end);
        self.clear(new.start..new.end, change);
        self.by_end.insert(new.end, new.clone());
        self.recount();
        change.added(new);
    }

    /// Removes all extents in `range`, which must be loaded.
    pub fn clear(&mut self, range: Range<u64>, change: &mut ExtentChange) {
        self.version += 1;
        let touched: Vec<u64> = self
            .touching(range.clone())
            .map(|extent| extent.end)
            .collect();
        for end in touched {
            let old = self.by_end.remove(&end).expect("the extent was just seen");
            change.removed(old.clone());
            if old.start < range.start {
                let left = old.part(old.start, range.start);
                self.hold(&left);
                change.added(left);
            }
            if old.end > range.end {
                let right = old.part(range.end, old.end);
                self.hold(&right);
                change.added(right);
            }
        }
        self.recount();
    }

    /// Sets the generation in which the extents of a change were stored, as soon as it is known, and before any
    /// reader sees them.
    pub fn settle(&mut self, change: &ExtentChange, generation: Generation) {
        for (end, replaced) in change.keys() {
            if let Some(after) = &replaced.after
                && let Some(extent) = self.by_end.get_mut(&end)
                && extent.start == after.start
            {
                extent.birth = generation;
            }
        }
    }

    fn recount(&mut self) {
        self.share.set(self.len());
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::SegmentId;
    use cairn_segment::{Codec, Location};
    use proptest::prelude::*;

    use super::*;

    fn extent(id: u64, start: u64, end: u64) -> Extent {
        let len_bytes = (end - start) as u32;
        let record = RecordPointer {
            location: Location {
                segment: SegmentId(id),
                stripe_block: 0,
                unit_blocks: 1,
                offset_bytes: 0,
                len_bytes,
            },
            codec: Codec::Raw,
            file_len_bytes: len_bytes,
            checksums: Vec::new(),
            encryption: None,
        };
        Extent {
            start,
            end,
            place: match id % 2 {
                0 => ExtentContent::Inline(
                    (0..len_bytes).map(|at| byte(id, u64::from(at))).collect(),
                ),
                _ => ExtentContent::Record(Arc::new(record), 0),
            },
            birth: Generation::FIRST,
        }
    }

    #[test]
    fn a_change_is_in_order_or_not() {
        type Case = (&'static str, &'static [(u64, u64)], bool);
        let cases: &[Case] = &[
            ("nothing", &[], true),
            ("one behind the other", &[(0, 4), (4, 8)], true),
            ("with a hole", &[(0, 4), (6, 8)], true),
            ("overlapping", &[(0, 4), (3, 8)], false),
            ("one in the other", &[(0, 8), (2, 4)], false),
        ];
        for (name, extents, want) in cases {
            let mut change = ExtentChange::default();
            for (start, end) in *extents {
                change.added(extent(1, *start, *end));
            }
            assert_eq!(change.is_in_order(), *want, "{name}");
        }
        let mut change = ExtentChange::default();
        change.added(extent(1, 0, 4));
        change.added(extent(1, 2, 8));
        change.removed(extent(1, 2, 8));
        assert!(change.is_in_order(), "what is removed counts no more");
    }

    /// A byte of an inline extent; its value tells its offset in the extent.
    fn byte(id: u64, offset: u64) -> u8 {
        (id * 61 + offset) as u8
    }

    /// The mark that `content` finds at this offset of an extent.
    fn mark(id: u64, offset: u64) -> (u64, u64) {
        match id % 2 {
            0 => (u64::MAX, u64::from(byte(id, offset))),
            _ => (id, offset),
        }
    }

    /// Byte -> (record, offset in it), or the byte itself.
    fn content<'a>(extents: impl Iterator<Item = &'a Extent>) -> Vec<Option<(u64, u64)>> {
        let mut bytes = vec![None; 400];
        for extent in extents {
            for at in extent.start..extent.end {
                let slot = &mut bytes[at as usize];
                assert!(slot.is_none(), "extents overlap");
                let offset = at - extent.start;
                *slot = Some(match &extent.place {
                    ExtentContent::Record(record, from) => {
                        (record.location.segment.0, u64::from(*from) + offset)
                    }
                    ExtentContent::Inline(bytes) => {
                        assert_eq!(bytes.len() as u64, extent.len_bytes());
                        (u64::MAX, u64::from(bytes[offset as usize]))
                    }
                });
            }
        }
        bytes
    }

    proptest! {
        /// A map that is loaded piece by piece, and forgets pieces, equals a complete one.
        #[test]
        fn pieces_come_and_go(
            steps in prop::collection::vec((0..300u64, 1..60u64, 0..4u8, 0..40usize), 1..60),
        ) {
            let count = ExtentCount::default();
            let mut all = ExtentMap::empty(&count);
            let mut map = ExtentMap::new(&count);
            for (index, (start, len, what, keep)) in steps.into_iter().enumerate() {
                let range = start..start + len;
                while let Some(missing) = map.missing(&range) {
                    // A few at a time, as from the metadata.
                    let found: Vec<Extent> = all.touching(missing.clone()).take(3).cloned().collect();
                    let end = match found.last() {
                        Some(last) if found.len() == 3 => last.end.min(missing.end),
                        _ => missing.end,
                    };
                    map.trim(keep, &range);
                    map.load(missing.start..end, found);
                }
                let mut changes = [ExtentChange::default(), ExtentChange::default()];
                match what {
                    0 => {
                        map.clear(range.clone(), &mut changes[0]);
                        all.clear(range.clone(), &mut changes[1]);
                    }
                    1 | 2 => {
                        let new = extent(index as u64, range.start, range.end);
                        map.insert(new.clone(), &mut changes[0]);
                        all.insert(new, &mut changes[1]);
                    }
                    _ => {
                        map.forget_from(start);
                        all.forget_from(start);
                        continue;
                    }
                }
                let [of_map, of_all] = changes.map(|change| format!("{change:?}"));
                prop_assert_eq!(of_map, of_all);
                let seen: Vec<&Extent> = map.touching(range.clone()).collect();
                let want: Vec<&Extent> = all.touching(range).collect();
                prop_assert_eq!(seen, want);
                prop_assert_eq!(count.get(), map.len() + all.len());
                map.trim(keep, &(0..0));
                prop_assert!(map.len() <= keep);
            }
            drop((map, all));
            prop_assert_eq!(count.get(), 0);
        }

        #[test]
        fn a_whole_map_is_forgotten_in_pieces(starts in prop::collection::btree_set(0..5000u64, 400..600)) {
            let count = ExtentCount::default();
            let mut map = ExtentMap::empty(&count);
            for start in &starts {
                map.insert(extent(*start, start * 4, start * 4 + 3), &mut ExtentChange::default());
            }
            let stored: Vec<Extent> = map.touching(0..u64::MAX - 1).cloned().collect();
            map.trim(300, &(0..0));
            prop_assert!(map.len() <= 300);
            for extent in &stored {
                let range = extent.start..extent.end;
                let is_there = map.touching(range.clone()).next() == Some(extent);
                prop_assert_eq!(map.is_loaded(&range), is_there);
            }
        }
    }

    proptest! {
        #[test]
        fn the_newest_extent_wins_and_changes_replay(
            steps in prop::collection::vec((0..200u64, 1..60u64, prop::bool::weighted(0.8)), 1..40),
            group in 1..5usize,
        ) {
            let count = ExtentCount::default();
            let mut map = ExtentMap::empty(&count);
            let mut stored: BTreeMap<u64, Extent> = BTreeMap::new();
            let mut live = 0i64;
            let mut model = vec![None; 400];
            for (index, steps) in steps.chunks(group).enumerate() {
                let mut change = ExtentChange::default();
                for (nth, (start, len, insert)) in steps.iter().enumerate() {
                    let range = *start as usize..(start + len) as usize;
                    if *insert {
                        let id = (index * 10 + nth) as u64;
                        map.insert(extent(id, *start, start + len), &mut change);
                        for at in range.clone() {
                            model[at] = Some(mark(id, at as u64 - start));
                        }
                    } else {
                        map.clear(*start..start + len, &mut change);
                        model[range].fill(None);
                    }
                }
                for (end, replaced) in change.keys() {
                    let old = match &replaced.after {
                        Some(after) => stored.insert(end, after.clone()),
                        None => stored.remove(&end),
                    };
                    prop_assert_eq!(&old, &replaced.before);
                    live += replaced.after.as_ref().map_or(0, Extent::live_bytes);
                    live -= replaced.before.as_ref().map_or(0, Extent::live_bytes);
                }
                prop_assert_eq!(content(map.touching(0..400)), model.clone());
                prop_assert_eq!(content(stored.values()), model.clone());
                prop_assert_eq!(live, stored.values().map(Extent::live_bytes).sum::<i64>());
            }
        }
    }
}
