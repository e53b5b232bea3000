//! The journal's index: which bytes of small synchronous writes are in the log alone.
//!
//! Owns: clipping entries by folds, the oldest entry that is still needed. Must not know: the meaning of the bytes,
//! files, waiting.

use std::collections::BTreeMap;

use cairn_base::{Ino, LogPosition};
use cairn_formats::metadata::{Fold, JournalEntry};
use rustc_hash::FxHashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    position: LogPosition,
    start: u64,
    end: u64,
}

/// Something that covers a range of a file.
trait Covers {
    fn range(&self) -> (u64, u64);
}

impl Covers for Piece {
    fn range(&self) -> (u64, u64) {
        (self.start, self.end)
    }
}

impl Covers for JournalEntry {
    fn range(&self) -> (u64, u64) {
        (
            self.offset,
            self.offset.saturating_add(self.data.len() as u64),
        )
    }
}

/// Ranges of one file, which may overlap. Looking up those that touch a given range does not visit all of them: a file
/// with random writes has ten thousand ranges, and as many folds.
struct Ranges<T> {
    /// Keyed by start and a growing number that distinguishes ranges with one start.
    by_start: BTreeMap<(u64, u64), T>,
    /// Upper bound of the length of a range: a range that reaches `at` starts at most this far before it.
    len_bytes_max: u64,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self {
            by_start: BTreeMap::new(),
            len_bytes_max: 0,
        }
    }
}

impl<T: Covers> Ranges<T> {
    fn insert(&mut self, number: u64, item: T) {
        let (start, end) = item.range();
        self.len_bytes_max = self.len_bytes_max.max(end - start);
        self.by_start.insert((start, number), item);
    }

    /// Removes the ranges that overlap `start..end` and are `wanted`, and returns each with its number.
    fn take_touching(
        &mut self,
        start: u64,
        end: u64,
        wanted: impl Fn(&T) -> bool,
    ) -> Vec<(u64, T)> {
        if start >= end {
            return Vec::new();
        }
        let first = start.saturating_sub(self.len_bytes_max);
        let keys: Vec<_> = self
            .by_start
            .range((first, 0)..(end, 0))
            .filter(|(_, item)| item.range().1 > start && wanted(item))
            .map(|(key, _)| *key)
            .collect();
        keys.into_iter()
            .filter_map(|key| Some((key.1, self.by_start.remove(&key)?)))
            .collect()
    }
}

/// The ranges that are not folded, by file. The log bounds them: every piece is in a retained record.
#[derive(Default)]
pub(crate) struct JournalIndex {
    files: FxHashMap<Ino, Ranges<Piece>>,
    /// Number of pieces at each position.
    positions: BTreeMap<LogPosition, u32>,
    data_bytes: u64,
    number: u64,
}

impl JournalIndex {
    pub fn insert(&mut self, entry: &JournalEntry) {
        let (start, end) = entry.range();
        if start < end {
            self.add(
                entry.ino,
                Piece {
                    position: entry.position,
                    start,
                    end,
                },
            );
        }
    }

    pub fn fold(&mut self, fold: &Fold) {
        let Some(ranges) = self.files.get_mut(&fold.ino) else {
            return;
        };
        let folded =
            ranges.take_touching(fold.start, fold.end, |piece| piece.position <= fold.through);
        for (_, piece) in folded {
            self.subtract(piece);
            for (start, end) in rests(piece.range(), (fold.start, fold.end)) {
                let rest = Piece {
                    start,
                    end,
                    ..piece
                };
                self.add(fold.ino, rest);
            }
        }
        if self
            .files
            .get(&fold.ino)
            .is_some_and(|ranges| ranges.by_start.is_empty())
        {
            self.files.remove(&fold.ino);
        }
    }

    /// The oldest position with bytes that are not folded.
    pub fn oldest(&self) -> Option<LogPosition> {
        self.positions.keys().next().copied()
    }

    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Files with bytes at or before `through` that are not folded, in no order.
    pub fn inodes_through(&self, through: LogPosition) -> Vec<Ino> {
        self.files
            .iter()
            .filter(|(_, ranges)| {
                let mut pieces = ranges.by_start.values();
                pieces.any(|piece| piece.position <= through)
            })
            .map(|(ino, _)| *ino)
            .collect()
    }

    fn add(&mut self, ino: Ino, piece: Piece) {
        *self.positions.entry(piece.position).or_insert(0) += 1;
        self.data_bytes += piece.end - piece.start;
        self.number += 1;
        let ranges = self.files.entry(ino).or_default();
        ranges.insert(self.number, piece);
    }

    fn subtract(&mut self, piece: Piece) {
        self.data_bytes -= piece.end - piece.start;
        if let Some(count) = self.positions.get_mut(&piece.position) {
            *count -= 1;
            if *count == 0 {
                self.positions.remove(&piece.position);
            }
        }
    }
}

/// Entries with their data, as a replay of the log gathers them.
#[derive(Default)]
pub(crate) struct JournalReplay {
    /// The number of an entry is its place in the log. Pieces that a fold leaves keep the number.
    files: FxHashMap<Ino, Ranges<JournalEntry>>,
    number: u64,
}

impl JournalReplay {
    pub fn insert(&mut self, entry: JournalEntry) {
        if entry.data.is_empty() {
            return;
        }
        self.number += 1;
        let ranges = self.files.entry(entry.ino).or_default();
        ranges.insert(self.number, entry);
    }

    pub fn fold(&mut self, fold: &Fold) {
        let Some(ranges) = self.files.get_mut(&fold.ino) else {
            return;
        };
        let folded =
            ranges.take_touching(fold.start, fold.end, |entry| entry.position <= fold.through);
        for (number, entry) in folded {
            for (start, end) in rests(entry.range(), (fold.start, fold.end)) {
                let from = (start - entry.offset) as usize;
                let to = (end - entry.offset) as usize;
                let rest = JournalEntry {
                    offset: start,
                    data: entry.data.slice(from..to),
                    ..entry.clone()
                };
                ranges.insert(number, rest);
            }
        }
    }

    /// The entries that are not folded, in log order. Their data is copied, so that it does not keep whole log files in
    /// memory.
    pub fn finish(self) -> Vec<JournalEntry> {
        let mut all: Vec<_> = self
            .files
            .into_values()
            .flat_map(|ranges| ranges.by_start)
            .map(|((start, number), entry)| (number, start, entry))
            .collect();
        all.sort_by_key(|(number, start, _)| (*number, *start));
        all.into_iter()
            .map(|(_, _, entry)| JournalEntry {
                data: bytes::Bytes::copy_from_slice(&entry.data),
                ..entry
            })
            .collect()
    }
}

/// The parts of `whole` outside of `cut`: zero, one or two ranges.
fn rests(whole: (u64, u64), cut: (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    let before = (whole.0, whole.1.min(cut.0));
    let after = (whole.0.max(cut.1), whole.1);
    // An empty cut leaves the whole, once.
    let (before, after) = if cut.0 >= cut.1 {
        (whole, (0, 0))
    } else {
        (before, after)
    };
    [before, after]
        .into_iter()
        .filter(|(start, end)| start < end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use cairn_base::Timestamp;
    use proptest::prelude::*;

    fn entry(position: u64, ino: u64, offset: u64, data: Vec<u8>) -> JournalEntry {
        JournalEntry {
            position: LogPosition(position),
            ino: Ino(ino),
            offset,
            data: Bytes::from(data),
            encryption: None,
            size_bytes: 0,
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            mode: 0,
        }
    }

    #[test]
    fn ranges_are_cut() {
        type Case = ((u64, u64), (u64, u64), &'static [(u64, u64)]);
        let cases: &[Case] = &[
            ((0, 10), (0, 10), &[]),
            ((0, 10), (0, u64::MAX), &[]),
            ((0, 10), (3, 5), &[(0, 3), (5, 10)]),
            ((0, 10), (0, 5), &[(5, 10)]),
            ((0, 10), (5, 20), &[(0, 5)]),
            ((5, 10), (0, 5), &[(5, 10)]),
            ((5, 10), (10, 12), &[(5, 10)]),
            ((5, 10), (7, 7), &[(5, 10)]),
        ];
        for (whole, cut, want) in cases {
            assert_eq!(rests(*whole, *cut).collect::<Vec<_>>(), *want);
        }
    }

    proptest! {
        /// Compares index and replay with a plain set, byte by byte.
        #[test]
        fn index_and_replay_keep_exactly_what_is_not_folded(
            ops in proptest::collection::vec((any::<bool>(), 0u64..3, 0u64..20, 0u64..10, 0u64..20), 1..60)
        ) {
            let mut model = std::collections::BTreeSet::new();
            let mut index = JournalIndex::default();
            let mut replay = JournalReplay::default();
            for (position, (is_fold, ino, start, len, through)) in ops.into_iter().enumerate() {
                let position = position as u64 + 1;
                if is_fold {
                    let fold = Fold { ino: Ino(ino), start, end: start + len, through: LogPosition(through) };
                    index.fold(&fold);
                    replay.fold(&fold);
                    model.retain(|(at, file, byte)| {
                        !(*file == ino && *at <= through && (start..start + len).contains(byte))
                    });
                } else {
                    let data = (start..start + len).map(|byte| byte as u8).collect();
                    let entry = entry(position, ino, start, data);
                    index.insert(&entry);
                    replay.insert(entry);
                    model.extend((start..start + len).map(|byte| (position, ino, byte)));
                }
            }
            prop_assert_eq!(index.data_bytes(), model.len() as u64);
            prop_assert_eq!(index.oldest(), model.first().map(|(at, _, _)| LogPosition(*at)));
            let entries = replay.finish();
            prop_assert!(entries.is_sorted_by_key(|entry| entry.position));
            let mut replayed = std::collections::BTreeSet::new();
            for entry in &entries {
                for (at, byte) in entry.data.iter().enumerate() {
                    let offset = entry.offset + at as u64;
                    prop_assert_eq!(offset as u8, *byte);
                    replayed.insert((entry.position.0, entry.ino.0, offset));
                }
            }
            prop_assert_eq!(replayed, model);
        }
    }
}
