//! Byte ranges, and what becomes of an owner's ranges when it locks or unlocks one.
//!
//! Owns: the arithmetic of ranges: split, merge, upgrade, downgrade. Pure functions from lists to lists.
//! Must not know: other owners, files, clients, what is durable.
//! Invariant: the list of an owner is ordered by its first bytes. In the style `Replace` its ranges do not overlap, and
//! adjacent ones differ in mode, so that equal sets of locked bytes are equal lists.

use cairn_base::Timestamp;
use cairn_formats::metadata::{LockMode, RangeStyle};

/// Bytes `first..=last` of a file. `last` is `u64::MAX` for "to the end", however long the file gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    first: u64,
    last: u64,
}

impl ByteRange {
    /// The whole file: what `flock` maps to.
    pub const ALL: Self = Self {
        first: 0,
        last: u64::MAX,
    };

    /// `None` if the last byte comes before the first.
    pub const fn new(first: u64, last: u64) -> Option<Self> {
        if first <= last {
            Some(Self { first, last })
        } else {
            None
        }
    }

    /// `length` bytes from `offset` on; `u64::MAX` of them are all to the end (RFC 8881, section 18.10.3).
    ///
    /// `None` for no bytes, and for a range that passes 2^64 - 1. A length of 0, which is "to the end" in NLM and a point in
    /// SMB, is translated by the edge.
    pub const fn of_length(offset: u64, length: u64) -> Option<Self> {
        match length {
            0 => None,
            u64::MAX => Self::new(offset, u64::MAX),
            _ => match offset.checked_add(length - 1) {
                Some(last) => Self::new(offset, last),
                None => None,
            },
        }
    }

    pub const fn first(self) -> u64 {
        self.first
    }

    pub const fn last(self) -> u64 {
        self.last
    }

    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    const fn contains(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// A range that an owner holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub range: ByteRange,
    pub mode: LockMode,
    /// Names it in the volume. 0 only within this module, for one that has no number yet.
    pub number: u64,
    /// When it was first locked, even if its ends or its mode changed since.
    pub since: Timestamp,
}

/// The list after `range` is locked with `mode`. Numbers of new ranges are taken from `number_next`.
pub(crate) fn locked(
    held: &[Held],
    style: RangeStyle,
    range: ByteRange,
    mode: LockMode,
    since: Timestamp,
    number_next: &mut u64,
) -> Vec<Held> {
    let new = Held {
        range,
        mode,
        number: 0,
        since,
    };
    let mut after = match style {
        RangeStyle::Replace => cut(held, range),
        RangeStyle::Exact => held.to_vec(),
    };
    let at = after.partition_point(|other| other.range.first <= range.first);
    after.insert(at, new);
    if style == RangeStyle::Replace {
        after = merged(after);
    }
    numbered(after, number_next)
}

/// The list after `range` is unlocked, or `None` if there is no such range: only in the style `Exact`.
pub(crate) fn unlocked(
    held: &[Held],
    style: RangeStyle,
    range: ByteRange,
    number_next: &mut u64,
) -> Option<Vec<Held>> {
    match style {
        RangeStyle::Replace => Some(numbered(cut(held, range), number_next)),
        RangeStyle::Exact => {
            let at = held.iter().position(|other| other.range == range)?;
            let mut after = held.to_vec();
            after.remove(at);
            Some(after)
        }
    }
}

/// Whether each byte of `range` is held with `mode` or a stronger one, so that locking it claims nothing.
pub(crate) fn covers(held: &[Held], range: ByteRange, mode: LockMode) -> bool {
    let mut next = range.first;
    for one in held {
        if one.range.last < next {
            continue;
        }
        if one.range.first > next || one.mode < mode {
            return false;
        }
        match one.range.last.checked_add(1) {
            Some(after) if one.range.last < range.last => next = after,
            _ => return true,
        }
    }
    false
}

/// The first range of an ordered list of the style `Replace` or `Exact` that overlaps `range` and for which `conflicts` says so.
pub(crate) fn find_overlap(
    held: &[Held],
    style: RangeStyle,
    range: ByteRange,
    conflicts: impl Fn(&Held) -> bool,
) -> Option<&Held> {
    // Ranges that do not overlap are ordered by their ends as well.
    let from = match style {
        RangeStyle::Replace => held.partition_point(|one| one.range.last < range.first),
        RangeStyle::Exact => 0,
    };
    held[from..]
        .iter()
        .take_while(|one| one.range.first <= range.last)
        .find(|one| one.range.overlaps(range) && conflicts(one))
}

/// The list without the bytes of `range`. The right part of a split range has no number.
fn cut(held: &[Held], range: ByteRange) -> Vec<Held> {
    let mut after = Vec::with_capacity(held.len() + 2);
    for one in held {
        if !one.range.overlaps(range) {
            after.push(*one);
            continue;
        }
        if range.contains(one.range) {
            continue;
        }
        let mut number = one.number;
        if one.range.first < range.first {
            let left = ByteRange {
                last: range.first - 1,
                ..one.range
            };
            after.push(Held {
                range: left,
                ..*one
            });
            number = 0;
        }
        if one.range.last > range.last {
            let right = ByteRange {
                first: range.last + 1,
                ..one.range
            };
            after.push(Held {
                range: right,
                number,
                ..*one
            });
        }
    }
    after
}

fn merged(held: Vec<Held>) -> Vec<Held> {
    let mut after: Vec<Held> = Vec::with_capacity(held.len());
    for one in held {
        match after.last_mut() {
            Some(left) if left.mode == one.mode && is_next(left.range, one.range) => {
                left.range.last = one.range.last;
                // A part that is new takes number and age of the one that it extends.
                if left.number == 0 {
                    (left.number, left.since) = (one.number, one.since);
                }
            }
            _ => after.push(one),
        }
    }
    after
}

fn is_next(left: ByteRange, right: ByteRange) -> bool {
    left.last.checked_add(1) == Some(right.first)
}

fn numbered(mut held: Vec<Held>, number_next: &mut u64) -> Vec<Held> {
    for one in &mut held {
        if one.number == 0 {
            one.number = *number_next;
            *number_next += 1;
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockMode::{Exclusive, Shared};

    const SINCE: Timestamp = Timestamp::new(5, 0);

    fn range(first: u64, last: u64) -> ByteRange {
        ByteRange::new(first, last).expect("it is one")
    }

    fn show(held: &[Held]) -> Vec<(u64, u64, LockMode, u64)> {
        let show = |one: &Held| (one.range.first, one.range.last, one.mode, one.number);
        held.iter().map(show).collect()
    }

    #[test]
    fn lengths_become_ranges_or_are_refused() {
        let cases = [
            (0, 1, Some((0, 0))),
            (0, u64::MAX, Some((0, u64::MAX))),
            (9, u64::MAX, Some((9, u64::MAX))),
            (u64::MAX, 1, Some((u64::MAX, u64::MAX))),
            (u64::MAX, 2, None),
            (1, u64::MAX - 1, Some((1, u64::MAX - 1))),
            (2, u64::MAX - 1, Some((2, u64::MAX))),
            (3, u64::MAX - 1, None),
            (5, 0, None),
        ];
        for (offset, length, want) in cases {
            let found = ByteRange::of_length(offset, length);
            assert_eq!(
                found.map(|found| (found.first, found.last)),
                want,
                "{offset} {length}"
            );
        }
    }

    #[test]
    fn ranges_are_split_and_merged() {
        let mut next = 1;
        let mut held = Vec::new();
        let steps = [
            ((10, 19), Some(Shared), vec![(10, 19, Shared, 1)]),
            // Adjacent, with the same mode: one range, with the old number.
            ((20, 29), Some(Shared), vec![(10, 29, Shared, 1)]),
            // An upgrade within it splits it.
            (
                (15, 19),
                Some(Exclusive),
                vec![
                    (10, 14, Shared, 1),
                    (15, 19, Exclusive, 2),
                    (20, 29, Shared, 3),
                ],
            ),
            // The downgrade merges all again, and takes no number.
            ((15, 19), Some(Shared), vec![(10, 29, Shared, 1)]),
            (
                (0, 9),
                Some(Exclusive),
                vec![(0, 9, Exclusive, 4), (10, 29, Shared, 1)],
            ),
            (
                (5, 12),
                None,
                vec![(0, 4, Exclusive, 4), (13, 29, Shared, 1)],
            ),
            ((0, u64::MAX), Some(Shared), vec![(0, u64::MAX, Shared, 5)]),
            (
                (u64::MAX, u64::MAX),
                None,
                vec![(0, u64::MAX - 1, Shared, 5)],
            ),
            ((0, u64::MAX), None, vec![]),
        ];
        for ((first, last), mode, want) in steps {
            let range = range(first, last);
            held = match mode {
                Some(mode) => locked(&held, RangeStyle::Replace, range, mode, SINCE, &mut next),
                None => unlocked(&held, RangeStyle::Replace, range, &mut next).expect("always"),
            };
            assert_eq!(show(&held), want, "after {first}..={last} {mode:?}");
        }
    }

    #[test]
    fn exact_ranges_stand_by_themselves() {
        let mut next = 1;
        let exact = RangeStyle::Exact;
        let held = locked(&[], exact, range(0, 9), Shared, SINCE, &mut next);
        let held = locked(&held, exact, range(5, 14), Shared, SINCE, &mut next);
        assert_eq!(show(&held), [(0, 9, Shared, 1), (5, 14, Shared, 2)]);
        assert_eq!(unlocked(&held, exact, range(0, 14), &mut next), None);
        let held = unlocked(&held, exact, range(0, 9), &mut next).expect("it is there");
        assert_eq!(show(&held), [(5, 14, Shared, 2)]);
    }

    #[test]
    fn a_range_is_covered_without_gaps_in_no_weaker_mode() {
        let mut next = 1;
        let style = RangeStyle::Replace;
        let held = locked(&[], style, range(0, 9), Exclusive, SINCE, &mut next);
        let held = locked(&held, style, range(10, 19), Shared, SINCE, &mut next);
        let held = locked(&held, style, range(30, u64::MAX), Shared, SINCE, &mut next);
        let cases = [
            ((0, 19), Shared, true),
            ((0, 9), Exclusive, true),
            ((0, 10), Exclusive, false),
            ((5, 20), Shared, false),
            ((20, 20), Shared, false),
            ((29, 31), Shared, false),
            ((30, u64::MAX), Shared, true),
            ((u64::MAX, u64::MAX), Shared, true),
        ];
        for ((first, last), mode, want) in cases {
            let found = covers(&held, range(first, last), mode);
            assert_eq!(found, want, "{first}..={last} {mode:?}");
        }
    }
}
