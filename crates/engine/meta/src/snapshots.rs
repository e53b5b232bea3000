//! The snapshots of a volume, and the changes that are allowed to them.
//!
//! Owns: the rules for names and locks, the neighbours of a snapshot. Must not know: how old versions are kept
//! (`state`), the wait before a snapshot is taken, and the freeing of space that only a snapshot held (`fs`).

use std::collections::BTreeMap;
use std::ops::Deref;

use bytes::Bytes;
use cairn_base::{Branch, Generation, Timestamp};
use cairn_formats::metadata::keys::NAME_LEN_BYTES_MAX;
use cairn_formats::metadata::{CLONE_COUNT_MAX, SnapshotRecord};

/// Limit of the snapshots of one volume, including those that are being freed.
pub const SNAPSHOT_COUNT_MAX: usize = 4096;

/// Reasons for refusing a change of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("there is a snapshot of that name already")]
    Exists,
    #[error("there is no such snapshot")]
    NotFound,
    #[error("the snapshot is locked; unlock it first")]
    Locked,
    /// A restore is in progress: all changes of snapshots wait for its end.
    #[error("the volume is being restored from it")]
    Restoring,
    #[error("volumes began from it as clones; delete those first")]
    HasClones,
    #[error(
        "a snapshot has at most {CLONE_COUNT_MAX} clones, and a volume makes at most {} in its life",
        Branch::LAST
    )]
    TooManyClones,
    #[error(
        "a clone and the volume that it began from have no snapshots of one instant: take one after the other"
    )]
    SameStore,
    #[error("a volume has at most {SNAPSHOT_COUNT_MAX} snapshots; delete some first")]
    TooMany,
    #[error(
        "a snapshot's name has 1 to {NAME_LEN_BYTES_MAX} bytes, no '/', and is neither '.' nor '..'"
    )]
    BadName,
    /// The store accepts no more changes.
    #[error("the volume is being closed")]
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotChange {
    /// Takes a snapshot of all changes so far. The generation ends.
    Take(SnapshotRecord),
    Put(Generation, SnapshotRecord),
    Remove(Generation),
}

/// Properties of a snapshot that is to be taken.
#[derive(Clone, Debug)]
pub struct NewSnapshot {
    pub name: Bytes,
    pub taken: Timestamp,
    /// Name of its schedule; empty for a snapshot taken by hand.
    pub schedule: Bytes,
    /// Group of a snapshot of volumes of several nodes, until all of them have taken theirs; 0: none.
    pub undecided_group: u64,
}

/// Refuses names that a directory cannot have.
pub(crate) fn check_name(name: &[u8]) -> Result<(), SnapshotError> {
    let is_good = (1..=NAME_LEN_BYTES_MAX).contains(&name.len())
        && !name.contains(&b'/')
        && !name.contains(&0)
        && name != b"."
        && name != b"..";
    is_good.then_some(()).ok_or(SnapshotError::BadName)
}

/// All snapshots by generation, including those that are being freed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshots {
    all: BTreeMap<Generation, SnapshotRecord>,
    /// The newest snapshot of each branch that has any.
    newest: BTreeMap<Branch, Generation>,
}

impl Deref for Snapshots {
    type Target = BTreeMap<Generation, SnapshotRecord>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Snapshots {
    pub fn insert(&mut self, generation: Generation, record: SnapshotRecord) {
        self.all.insert(generation, record);
        self.find_newest();
    }

    pub fn remove(&mut self, generation: Generation) -> bool {
        let was_there = self.all.remove(&generation).is_some();
        self.find_newest();
        was_there
    }

    /// The newest visible snapshot of a branch, or 0. A changed value that was born up to then becomes history.
    pub fn newest(&self, branch: Branch) -> Generation {
        self.newest.get(&branch).copied().unwrap_or_default()
    }

    /// The newest visible snapshot of each branch with any, without the main branch.
    pub fn newest_of_branches(&self) -> Vec<(Branch, Generation)> {
        let newest = self
            .newest
            .iter()
            .map(|(branch, newest)| (*branch, *newest));
        newest.filter(|(branch, _)| !branch.is_main()).collect()
    }

    /// The snapshot that a branch began from.
    pub fn base_of(&self, branch: Branch) -> Option<(Generation, &SnapshotRecord)> {
        let is_base = |record: &SnapshotRecord| {
            let mut clones = record.clones.iter();
            clones.any(|clone| clone.branch == branch)
        };
        let mut all = self.all.iter();
        let found = all.find(|(_, record)| is_base(record));
        found.map(|(generation, record)| (*generation, record))
    }

    pub fn seen(&self) -> impl DoubleEndedIterator<Item = (Generation, &SnapshotRecord)> {
        let seen = self.all.iter().filter(|(_, record)| !record.is_deleted);
        seen.map(|(generation, record)| (*generation, record))
    }

    /// A visible snapshot.
    pub fn seen_at(&self, generation: Generation) -> Result<&SnapshotRecord, SnapshotError> {
        let found = self.all.get(&generation);
        let found = found.filter(|record| !record.is_deleted);
        found.ok_or(SnapshotError::NotFound)
    }

    pub fn named(&self, branch: Branch, name: &[u8]) -> Option<Generation> {
        let mut seen = self.seen();
        seen.find(|(_, record)| record.branch == branch && record.name == name)
            .map(|(generation, _)| generation)
    }

    /// The snapshot that the volume is to be restored from, if there is one.
    pub fn restoring(&self) -> Option<(Generation, &SnapshotRecord)> {
        let mut seen = self.seen();
        seen.find(|(_, record)| record.is_restoring)
    }

    /// The nearest visible snapshots of the branch before and after `generation`; 0 and none if there are none.
    pub fn neighbours(
        &self,
        branch: Branch,
        generation: Generation,
    ) -> (Generation, Option<Generation>) {
        let is_seen = |(at, record): &(&Generation, &SnapshotRecord)| {
            **at != generation && record.branch == branch && !record.is_deleted
        };
        let before = self.all.range(..generation).rev().find(is_seen);
        let after = self.all.range(generation..).find(is_seen);
        (
            before.map_or(Generation(0), |(at, _)| *at),
            after.map(|(at, _)| *at),
        )
    }

    fn find_newest(&mut self) {
        // Later snapshots come last.
        let newest = self
            .seen()
            .map(|(at, record)| (record.branch, at))
            .collect();
        self.newest = newest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &'static str) -> SnapshotRecord {
        SnapshotRecord {
            name: Bytes::from(name),
            taken: Timestamp::default(),
            is_locked: false,
            is_deleted: false,
            is_restoring: false,
            schedule: Bytes::new(),
            inodes: 0,
            file_bytes: 0,
            undecided_group: 0,
            branch: Branch::MAIN,
            clones: Vec::new(),
        }
    }

    #[test]
    fn neighbours_are_those_that_can_be_seen() {
        let mut snapshots = Snapshots::default();
        for (at, name) in [(2, "a"), (3, "b"), (5, "c"), (7, "d")] {
            snapshots.insert(Generation(at), record(name));
        }
        let deleted = |name| SnapshotRecord {
            is_deleted: true,
            ..record(name)
        };
        snapshots.insert(Generation(3), deleted("b"));
        snapshots.insert(Generation(7), deleted("d"));
        assert_eq!(snapshots.newest(Branch::MAIN), Generation(5));
        let neighbours = |at| {
            let (before, after) = snapshots.neighbours(Branch::MAIN, Generation(at));
            (before.0, after.map(|after| after.0))
        };
        assert_eq!(neighbours(2), (0, Some(5)));
        assert_eq!(neighbours(3), (2, Some(5)));
        assert_eq!(neighbours(5), (2, None));
        assert_eq!(neighbours(7), (5, None));
        assert_eq!(snapshots.named(Branch::MAIN, b"b"), None);
        assert_eq!(snapshots.named(Branch::MAIN, b"c"), Some(Generation(5)));
    }

    #[test]
    fn names_are_those_of_directories() {
        let long = vec![b'a'; NAME_LEN_BYTES_MAX + 1];
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &long] {
            assert_eq!(check_name(name), Err(SnapshotError::BadName), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b"hourly.2026-01-01_0000"] {
            assert_eq!(check_name(name), Ok(()), "{name:?}");
        }
    }
}
