//! The journal's index: which bytes of small synchronous writes are only in the log.
//!
//! Owns: clipping entries by folds, the oldest entry that is still needed.
//! Must not know: what the bytes are, files, waiting.

use std::collections::BTreeMap;

use cairn_base::{Ino, LogPosition};
use rustc_hash::FxHashMap;

use crate::batch::{Fold, JournalEntry};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    position: LogPosition,
    start: u64,
    end: u64,
}

/// What is not folded, by file. Bounded as the log is: every piece is in a retained record.
#[derive(Default)]
pub(crate) struct JournalIndex {
    files: FxHashMap<Ino, Vec<Piece>>,
    /// Pieces at each position.
    positions: BTreeMap<LogPosition, u32>,
    data_bytes: u64,
}

impl JournalIndex {
    pub fn insert(&mut self, entry: &JournalEntry) {
        let piece = Piece {
            position: entry.position,
            start: entry.offset,
            end: entry.offset.saturating_add(entry.data.len() as u64),
        };
        if piece.start < piece.end {
            self.add(piece.position, piece.end - piece.start);
            self.files.entry(entry.ino).or_default().push(piece);
        }
    }

    pub fn fold(&mut self, fold: &Fold) {
        let Some(pieces) = self.files.remove(&fold.ino) else {
            return;
        };
        let mut kept = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if piece.position > fold.through {
                kept.push(piece);
                continue;
            }
            self.subtract(piece.position, piece.end - piece.start);
            for (start, end) in rests((piece.start, piece.end), (fold.start, fold.end)) {
                self.add(piece.position, end - start);
                kept.push(Piece {
                    start,
                    end,
                    ..piece
                });
            }
        }
        if !kept.is_empty() {
            self.files.insert(fold.ino, kept);
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
            .filter(|(_, pieces)| pieces.iter().any(|piece| piece.position <= through))
            .map(|(ino, _)| *ino)
            .collect()
    }

    fn add(&mut self, position: LogPosition, len_bytes: u64) {
        *self.positions.entry(position).or_insert(0) += 1;
        self.data_bytes += len_bytes;
    }

    fn subtract(&mut self, position: LogPosition, len_bytes: u64) {
        self.data_bytes -= len_bytes;
        if let Some(count) = self.positions.get_mut(&position) {
            *count -= 1;
            if *count == 0 {
                self.positions.remove(&position);
            }
        }
    }
}

/// Entries with their data, as a replay of the log gathers them.
#[derive(Default)]
pub(crate) struct JournalReplay {
    files: FxHashMap<Ino, Vec<(u64, JournalEntry)>>,
    sequence: u64,
}

impl JournalReplay {
    pub fn insert(&mut self, entry: JournalEntry) {
        if entry.data.is_empty() {
            return;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        self.files
            .entry(entry.ino)
            .or_default()
            .push((sequence, entry));
    }

    pub fn fold(&mut self, fold: &Fold) {
        let Some(entries) = self.files.remove(&fold.ino) else {
            return;
        };
        let mut kept = Vec::with_capacity(entries.len());
        for (sequence, entry) in entries {
            if entry.position > fold.through {
                kept.push((sequence, entry));
                continue;
            }
            let whole = (entry.offset, entry.offset + entry.data.len() as u64);
            for (start, end) in rests(whole, (fold.start, fold.end)) {
                let from = (start - entry.offset) as usize;
                let to = (end - entry.offset) as usize;
                kept.push((
                    sequence,
                    JournalEntry {
                        offset: start,
                        data: entry.data.slice(from..to),
                        ..entry.clone()
                    },
                ));
            }
        }
        if !kept.is_empty() {
            self.files.insert(fold.ino, kept);
        }
    }

    /// What is not folded, in log order. The data is copied, so that it does not hold whole log
    /// files in memory.
    pub fn finish(self) -> Vec<JournalEntry> {
        let mut all: Vec<_> = self.files.into_values().flatten().collect();
        all.sort_by_key(|(sequence, entry)| (*sequence, entry.offset));
        all.into_iter()
            .map(|(_, entry)| JournalEntry {
                data: bytes::Bytes::copy_from_slice(&entry.data),
                ..entry
            })
            .collect()
    }
}

/// What is left of `whole` without `cut`: nothing, one or two ranges.
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
        /// Byte by byte, against a plain set.
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
