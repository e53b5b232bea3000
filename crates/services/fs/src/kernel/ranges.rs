//! A set of bytes of a file, as ranges.
//!
//! Owns: its ranges neither overlap nor touch, and the number of their bytes is known. Must not know: the meaning of
//! the bytes.

use std::collections::BTreeMap;
use std::ops::Range;

/// The end of each range, by its start.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    ranges: BTreeMap<u64, u64>,
    len_bytes: u64,
}

impl RangeSet {
    /// The number of bytes in the set.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Adds the bytes of `range` that are not in the set.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Ranges that overlap it or touch it are merged into it.
        while let Some((other_start, other_end)) = self.last_from(..=end) {
            if other_end < start {
                break;
            }
            self.take(other_start, other_end);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.put(start, end);
    }

    /// Removes all bytes of `range` from the set.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((start, end)) = self.last_from(..range.end) {
            if end <= range.start {
                break;
            }
            self.take(start, end);
            if end > range.end {
                self.put(range.end, end);
            }
            if start < range.start {
                self.put(start, range.start);
                break;
            }
        }
    }

    /// The last of the ranges that begin in `starts`.
    fn last_from(&self, starts: impl std::ops::RangeBounds<u64>) -> Option<(u64, u64)> {
        let last = self.ranges.range(starts).next_back();
        last.map(|(start, end)| (*start, *end))
    }

    fn put(&mut self, start: u64, end: u64) {
        let old = self.ranges.insert(start, end);
        assert!(old.is_none() && start < end);
        self.len_bytes += end - start;
    }

    fn take(&mut self, start: u64, end: u64) {
        self.ranges.remove(&start);
        self.len_bytes -= end - start;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_an_array_of_flags(steps in prop::collection::vec((any::<bool>(), 0..200u64, 0..60u64), 1..80)) {
            let mut set = RangeSet::default();
            let mut model = vec![false; 300];
            for (is_added, start, len) in steps {
                let range = start..start + len;
                model[start as usize..(start + len) as usize].fill(is_added);
                match is_added {
                    true => set.add(range),
                    false => set.remove(range),
                }
                let mut got = vec![false; 300];
                let mut last_end = None;
                for (start, end) in &set.ranges {
                    prop_assert!(start < end && last_end.is_none_or(|last| last < *start));
                    got[*start as usize..*end as usize].fill(true);
                    last_end = Some(*end);
                }
                prop_assert_eq!(&got, &model);
                prop_assert_eq!(set.len_bytes(), model.iter().filter(|is_in| **is_in).count() as u64);
            }
        }
    }
}
