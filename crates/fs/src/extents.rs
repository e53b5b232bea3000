//! The extent map of one file: which bytes are in which record.
//!
//! Owns: how extents are cut when newer ones cover them, which parts of the map are in memory.
//! Must not know: how extents are stored, what a record's bytes are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use cairn_segment::RecordPointer;

/// Extents are loaded into memory for so many bytes of a file at a time.
pub const WINDOW_LEN_BYTES: u64 = 64 << 20;

/// `start..end` of the file is in `record`, from `offset_in_record` on (in the record's file bytes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: u64,
    pub end: u64,
    pub record: Arc<RecordPointer>,
    pub offset_in_record: u32,
}

impl Extent {
    pub fn len_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// What this view of the record counts in its segment's live bytes. A pure function of the
    /// view, so that what is added with an extent is exactly what goes with it.
    pub fn live_bytes(&self) -> i64 {
        let stored = u64::from(self.record.location.len_bytes);
        let whole = u64::from(self.record.file_len_bytes).max(1);
        (stored * self.len_bytes()).div_ceil(whole) as i64
    }

    fn part(&self, start: u64, end: u64) -> Self {
        Self {
            start,
            end,
            record: self.record.clone(),
            offset_in_record: self.offset_in_record + (start - self.start) as u32,
        }
    }
}

/// What a change does to the stored extents: for each key (the end of an extent) what was stored
/// and what shall be. Extents that come and go within one change leave no trace.
#[derive(Debug, Default)]
pub struct Change {
    keys: BTreeMap<u64, Replaced>,
}

#[derive(Debug, Default)]
pub struct Replaced {
    pub before: Option<Extent>,
    pub after: Option<Extent>,
}

impl Change {
    /// Ends of extents with what was and what shall be stored under each.
    pub fn keys(&self) -> impl Iterator<Item = (u64, &Replaced)> {
        self.keys.iter().map(|(end, replaced)| (*end, replaced))
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Records that the change takes the last view away from, as far as it shows: those of which it
    /// leaves no part. (A record that was cut apart earlier has views elsewhere; it is not lost, and
    /// whoever drops it from a cache too early only reads it again.)
    pub fn records_gone(&self) -> impl Iterator<Item = &Arc<RecordPointer>> {
        let kept: BTreeSet<_> = self
            .keys
            .values()
            .filter_map(|replaced| replaced.after.as_ref())
            .map(|extent| extent.record.location)
            .collect();
        self.keys
            .values()
            .filter_map(|replaced| replaced.before.as_ref())
            .filter(move |extent| {
                extent.len_bytes() == u64::from(extent.record.file_len_bytes)
                    && !kept.contains(&extent.record.location)
            })
            .map(|extent| &extent.record)
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

/// The extents of a file, as far as they are loaded.
#[derive(Debug, Default)]
pub struct ExtentMap {
    by_end: BTreeMap<u64, Extent>,
    windows: BTreeSet<u64>,
    complete: bool,
    /// Grows with each change, so that a load that raced with one is noticed.
    version: u64,
}

impl ExtentMap {
    /// The map of a file that has no extents.
    pub fn empty() -> Self {
        Self {
            complete: true,
            ..Self::default()
        }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn len(&self) -> usize {
        self.by_end.len()
    }

    /// The first window that `range` needs and that is not in memory.
    pub fn window_missing(&self, range: &Range<u64>) -> Option<u64> {
        if self.complete || range.is_empty() {
            return None;
        }
        (range.start / WINDOW_LEN_BYTES..=(range.end - 1) / WINDOW_LEN_BYTES)
            .find(|window| !self.windows.contains(window))
    }

    /// Adds the stored extents that touch `window`.
    pub fn load(&mut self, window: u64, extents: Vec<Extent>) {
        for extent in extents {
            self.by_end.insert(extent.end, extent);
        }
        self.windows.insert(window);
    }

    /// Forgets everything in memory; it is loaded again when it is needed.
    pub fn unload(&mut self) {
        if !self.complete || !self.by_end.is_empty() {
            self.by_end.clear();
            self.windows.clear();
            self.complete = false;
        }
    }

    /// Follows a cut of the file at `offset` that was made in the metadata.
    pub fn forget_from(&mut self, offset: u64) {
        if self.complete {
            self.clear(offset..u64::MAX, &mut Change::default());
        } else {
            self.unload();
            self.version += 1;
        }
    }

    /// The extents that touch `range`, in order. The range must be loaded.
    pub fn touching(&self, range: Range<u64>) -> impl Iterator<Item = &Extent> {
        self.by_end
            .range(range.start + 1..)
            .map(|(_, extent)| extent)
            .take_while(move |extent| extent.start < range.end)
    }

    /// Puts `new` into the map; it wins over what is there. Its range must be loaded.
    pub fn insert(&mut self, new: Extent, change: &mut Change) {
        assert!(new.start < new.end);
        self.clear(new.start..new.end, change);
        self.by_end.insert(new.end, new.clone());
        change.added(new);
    }

    /// Removes what the map has in `range`, which must be loaded.
    pub fn clear(&mut self, range: Range<u64>, change: &mut Change) {
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
                self.by_end.insert(left.end, left.clone());
                change.added(left);
            }
            if old.end > range.end {
                let right = old.part(range.end, old.end);
                self.by_end.insert(right.end, right.clone());
                change.added(right);
            }
        }
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
        Extent {
            start,
            end,
            record: Arc::new(RecordPointer {
                location: Location {
                    segment: SegmentId(id),
                    row_block: 0,
                    unit_blocks: 1,
                    offset_bytes: 0,
                    len_bytes,
                },
                codec: Codec::Raw,
                file_len_bytes: len_bytes,
                checksums: Vec::new(),
            }),
            offset_in_record: 0,
        }
    }

    /// Byte -> (record, offset in it).
    fn content<'a>(extents: impl Iterator<Item = &'a Extent>) -> Vec<Option<(u64, u64)>> {
        let mut bytes = vec![None; 400];
        for extent in extents {
            for at in extent.start..extent.end {
                let slot = &mut bytes[at as usize];
                assert!(slot.is_none(), "extents overlap");
                let offset = u64::from(extent.offset_in_record) + at - extent.start;
                *slot = Some((extent.record.location.segment.0, offset));
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn the_newest_extent_wins_and_changes_replay(
            steps in prop::collection::vec((0..200u64, 1..60u64, prop::bool::weighted(0.8)), 1..40),
            group in 1..5usize,
        ) {
            let mut map = ExtentMap::empty();
            let mut stored: BTreeMap<u64, Extent> = BTreeMap::new();
            let mut live = 0i64;
            let mut model = vec![None; 400];
            for (index, steps) in steps.chunks(group).enumerate() {
                let mut change = Change::default();
                for (nth, (start, len, insert)) in steps.iter().enumerate() {
                    let range = *start as usize..(start + len) as usize;
                    if *insert {
                        let id = (index * 10 + nth) as u64;
                        map.insert(extent(id, *start, start + len), &mut change);
                        for at in range.clone() {
                            model[at] = Some((id, at as u64 - start));
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
