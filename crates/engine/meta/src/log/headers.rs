//! The newest header on each disk: it alone decides when the disk is opened without the others.
//!
//! Owns: when a header stops being true, and which file must stay because of its header. Must not know: how files are
//! made, their contents.
//!
//! A header names members and a number of copies, and a start is refused when as many members are missing. So as many
//! members must have a copy of every later record. Otherwise a disk that the log left could start alone, without the
//! records acknowledged since. When the log goes on with fewer copies than a header on another disk names, that disk
//! gets a header-only file with a newer header.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::DiskId;
use cairn_formats::metadata::log::FileHeader;
use parking_lot::Mutex;

/// The disks that a header names, and the number of copies it says were wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Members {
    pub disks: Vec<DiskId>,
    pub copies: u8,
}

impl Members {
    pub fn of(header: &FileHeader) -> Self {
        Self {
            disks: header.members.clone(),
            copies: header.copies,
        }
    }

    /// Number of missing members that refuses a start.
    pub fn copies(&self) -> usize {
        usize::from(self.copies).clamp(1, self.disks.len().max(1))
    }

    /// Whether a start is refused whenever all disks of `set` are missing.
    pub fn refuse_without(&self, set: &[DiskId]) -> bool {
        let named = set.iter().filter(|disk| self.disks.contains(disk));
        named.count() >= self.copies()
    }

    /// Whether these members may allow a start that `other` refuses.
    pub fn is_looser_than(&self, other: &Self) -> bool {
        let has = |disk: &DiskId| self.disks.contains(disk);
        self.copies() > other.copies() || !other.disks.iter().all(has)
    }
}

/// The file with the newest header on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewestHeader {
    pub sequence: u64,
    /// Sequence of the header that it repeats, or its own.
    pub speaks_as: u64,
    pub members: Members,
    /// The file is kept for its header alone.
    pub is_all: bool,
}

impl NewestHeader {
    /// Header of an unreadable disk: its contents are unknown, so it is never true.
    pub fn unknown() -> Self {
        Self {
            sequence: 0,
            speaks_as: 0,
            members: Members {
                disks: Vec::new(),
                copies: 1,
            },
            is_all: false,
        }
    }
}

/// The newest header on each disk that may have one, by the disk's index.
#[derive(Default)]
pub(crate) struct Headers {
    newest: Mutex<BTreeMap<usize, NewestHeader>>,
    /// Failed disks that have not answered yet to a header.
    telling: Mutex<BTreeSet<usize>>,
}

impl Headers {
    pub fn new(found: impl IntoIterator<Item = (usize, NewestHeader)>) -> Self {
        Self {
            newest: Mutex::new(found.into_iter().collect()),
            telling: Mutex::default(),
        }
    }

    /// Marks a disk as getting a header. False if it is marked already.
    pub fn begin_telling(&self, disk: usize) -> bool {
        self.telling.lock().insert(disk)
    }

    pub fn end_telling(&self, disk: usize) {
        self.telling.lock().remove(&disk);
    }

    /// Notes a written header. Returns the file that was kept for the previous header alone.
    pub fn note(&self, disk: usize, newest: NewestHeader) -> Option<u64> {
        let mut all = self.newest.lock();
        let is_older = |before: &NewestHeader| newest.sequence < before.sequence;
        if all.get(&disk).is_some_and(is_older) {
            // The disk already has a newer header, which says that it lacks something.
            return None;
        }
        let before = all.insert(disk, newest)?;
        before.is_all.then_some(before.sequence)
    }

    /// The newest header on a disk.
    pub fn newest(&self, disk: usize) -> Option<NewestHeader> {
        self.newest.lock().get(&disk).cloned()
    }

    /// Notes that the records of a file are unneeded. Returns whether the file must stay for its header.
    pub fn keep(&self, disk: usize, sequence: u64) -> bool {
        let mut newest = self.newest.lock();
        let newest = newest.get_mut(&disk);
        newest
            .filter(|newest| newest.sequence == sequence)
            .map(|newest| newest.is_all = true)
            .is_some()
    }

    /// Forgets a disk that is out of reach for good.
    pub fn forget(&self, disk: usize) {
        self.newest.lock().remove(&disk);
    }

    /// The disks whose headers stop being true when the log goes on in `set` alone.
    pub fn untrue(&self, set: &[DiskId]) -> Vec<usize> {
        let newest = self.newest.lock();
        let untrue = newest
            .iter()
            .filter(|(_, newest)| !newest.members.refuse_without(set));
        untrue.map(|(disk, _)| *disk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(disks: &[u128], copies: u8) -> Members {
        let disks = disks.iter().map(|disk| DiskId(*disk)).collect();
        Members { disks, copies }
    }

    /// Members, copies, the set that the log goes on in.
    type Case<'a> = (&'a [u128], u8, &'a [u128]);

    #[test]
    fn a_header_is_true_as_long_as_enough_members_have_the_log() {
        let cases: &[(&str, Case<'_>, bool)] = &[
            ("as it was", (&[1, 2, 3], 2, &[1, 2]), true),
            ("on others of them", (&[1, 2, 3], 2, &[2, 3]), true),
            ("fewer copies", (&[1, 2, 3], 2, &[1]), false),
            ("one of them is new", (&[1, 2], 2, &[1, 3]), false),
            ("all but one are new", (&[1, 2], 1, &[2, 3]), true),
            ("all are new", (&[1], 1, &[2]), false),
            ("more copies than members", (&[1], 2, &[1]), true),
            ("none at all", (&[], 0, &[1]), false),
        ];
        for (name, (disks, copies, set), is_true) in cases {
            let set: Vec<DiskId> = set.iter().map(|disk| DiskId(*disk)).collect();
            let refuses = members(disks, *copies).refuse_without(&set);
            assert_eq!(refuses, *is_true, "{name}");
        }
    }

    #[test]
    fn an_older_header_is_looser_if_it_lets_anything_start_that_the_newer_refuses() {
        // All headers of up to three disks, against all sets of present disks.
        let named = |set: u128| (0..3).filter(move |disk| set >> disk & 1 == 1);
        let all = || (0..8u128).flat_map(|set| (1..4).map(move |copies| (set, copies)));
        let accepts = |(set, copies): (u128, u8), present: u128| {
            let disks: Vec<u128> = named(set).collect();
            let missing = named(set & !present).count();
            missing < members(&disks, copies).copies()
        };
        for older in all() {
            for newer in all() {
                let lets_more =
                    (0..8).any(|present| accepts(older, present) && !accepts(newer, present));
                let of = |(set, copies)| members(&named(set).collect::<Vec<_>>(), copies);
                if lets_more {
                    assert!(of(older).is_looser_than(&of(newer)), "{older:?} {newer:?}");
                }
            }
        }
    }
}
