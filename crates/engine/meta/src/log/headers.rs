//! What each disk says of the others: the newest header on it, which alone speaks when the disk is opened
//! without them.
//!
//! Owns: when a header is not true any more, and which file must stay because of its header.
//! Must not know: how files are made, what is in them.
//!
//! A header names members and a number of copies, and a start is refused when as many members are missing.
//! So of what comes later as many members must have a copy, or a disk that the log left takes itself for
//! enough, and what was acknowledged since is gone. Where the log goes on with fewer copies than a header on
//! another disk says, that disk gets a file with nothing but a newer header.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::DiskId;
use cairn_formats::metadata::log::FileHeader;
use parking_lot::Mutex;

/// The disks that a header names, and how many copies it says were wanted.
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

    /// So many missing members refuse a start.
    pub fn copies(&self) -> usize {
        usize::from(self.copies).clamp(1, self.disks.len().max(1))
    }

    /// Whether a start is refused whenever all disks of `set` are missing.
    pub fn refuse_without(&self, set: &[DiskId]) -> bool {
        let named = set.iter().filter(|disk| self.disks.contains(disk));
        named.count() >= self.copies()
    }

    /// Whether these may let disks start that `other` refuses.
    pub fn is_looser_than(&self, other: &Self) -> bool {
        let has = |disk: &DiskId| self.disks.contains(disk);
        self.copies() > other.copies() || !other.disks.iter().all(has)
    }
}

/// The file with the newest header on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewestHeader {
    pub sequence: u64,
    /// That of the header which it repeats, else its own.
    pub speaks_as: u64,
    pub members: Members,
    /// The file is there for its header only.
    pub is_all: bool,
}

impl NewestHeader {
    /// That of a disk that could not be read: it may say anything, so it is never true.
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

/// The newest header on each disk that may have one, by its index.
#[derive(Default)]
pub(crate) struct Headers {
    newest: Mutex<BTreeMap<usize, NewestHeader>>,
    /// Disks that failed before, and have not answered yet to being told.
    telling: Mutex<BTreeSet<usize>>,
}

impl Headers {
    pub fn new(found: impl IntoIterator<Item = (usize, NewestHeader)>) -> Self {
        Self {
            newest: Mutex::new(found.into_iter().collect()),
            telling: Mutex::default(),
        }
    }

    /// Whether nobody is telling the disk anything.
    pub fn begin_telling(&self, disk: usize) -> bool {
        self.telling.lock().insert(disk)
    }

    pub fn end_telling(&self, disk: usize) {
        self.telling.lock().remove(&disk);
    }

    /// A header was written. Returns the file that was there only for the one before.
    pub fn note(&self, disk: usize, newest: NewestHeader) -> Option<u64> {
        let mut all = self.newest.lock();
        let is_older = |before: &NewestHeader| newest.sequence < before.sequence;
        if all.get(&disk).is_some_and(is_older) {
            // The disk was told before that it lacks something.
            return None;
        }
        let before = all.insert(disk, newest)?;
        before.is_all.then_some(before.sequence)
    }

    /// What a disk says of the others.
    pub fn newest(&self, disk: usize) -> Option<NewestHeader> {
        self.newest.lock().get(&disk).cloned()
    }

    /// What the file holds is not needed any more. Whether it must stay all the same.
    pub fn keep(&self, disk: usize, sequence: u64) -> bool {
        let mut newest = self.newest.lock();
        let newest = newest.get_mut(&disk);
        newest
            .filter(|newest| newest.sequence == sequence)
            .map(|newest| newest.is_all = true)
            .is_some()
    }

    /// The disk is out of reach for good.
    pub fn forget(&self, disk: usize) {
        self.newest.lock().remove(&disk);
    }

    /// The disks whose headers are not true any more when the log goes on in `set` only.
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

    /// Members, copies, where the log goes on.
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
        // All headers of up to three disks, all sets of disks that are present.
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
