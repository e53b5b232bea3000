//! Locks of inodes: one, or a few in the order of their numbers.
//!
//! Owns: the order in which an operation locks several inodes. Must not know: what operations do with them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use cairn_base::Ino;
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::inode::{Inode, State};

/// Inodes that one operation locks, at most: a rename with a kept file has six, its two directories, the moved and the
/// replaced file, the folder of the kept file, and the marker that is made there.
pub(super) const LOCKED_COUNT_MAX: usize = 6;

/// The lock of one inode. Operations never hold it across a wait.
pub(crate) struct Guard<'a> {
    ino: Ino,
    state: MutexGuard<'a, State>,
}

impl<'a> Guard<'a> {
    pub(super) fn new(ino: Ino, state: MutexGuard<'a, State>) -> Self {
        Self { ino, state }
    }

    pub fn ino(&self) -> Ino {
        self.ino
    }
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// The locks of a few inodes, taken in the order of their numbers. Through this they can be read; [`super::Change`]
/// changes them.
#[derive(Default)]
pub(crate) struct Locked<'a> {
    /// The first ones, without a gap. An array, so that locking allocates nothing.
    guards: [Option<Guard<'a>>; LOCKED_COUNT_MAX],
}

impl<'a> Locked<'a> {
    /// Locks some inodes, of which several may be one.
    pub fn all(inodes: &[&'a Arc<Inode>]) -> Self {
        let mut sorted: SmallVec<[&'a Arc<Inode>; LOCKED_COUNT_MAX]> = inodes.into();
        sorted.sort_unstable_by_key(|inode| inode.ino);
        sorted.dedup_by_key(|inode| inode.ino);
        assert!(sorted.len() <= LOCKED_COUNT_MAX);
        let mut locked = Self::default();
        let mut last = None;
        for (slot, inode) in locked.guards.iter_mut().zip(sorted) {
            // Otherwise two operations that lock the same inodes could wait for one another for ever.
            assert!(last.is_none_or(|last| last < inode.ino));
            last = Some(inode.ino);
            *slot = Some(inode.lock());
        }
        locked
    }

    /// The state of one of the locked inodes.
    pub fn of(&self, ino: Ino) -> &State {
        self.at(self.index(ino)).1
    }

    /// As [`Self::of`], to change what memory alone has of the inode, and no reader of its attributes sees.
    pub fn memory(&mut self, ino: Ino) -> &mut State {
        self.at_mut(self.index(ino)).1
    }

    /// The lock of the only locked inode.
    pub fn into_one(self) -> Guard<'a> {
        assert!(self.len() == 1);
        let [first, ..] = self.guards;
        first.expect("there is one")
    }

    pub(super) fn len(&self) -> usize {
        self.guards.iter().flatten().count()
    }

    pub(super) fn index(&self, ino: Ino) -> usize {
        self.find(ino).expect("the inode was locked")
    }

    pub(super) fn find(&self, ino: Ino) -> Option<usize> {
        let mut guards = self.guards.iter().flatten();
        guards.position(|guard| guard.ino == ino)
    }

    pub(super) fn at(&self, index: usize) -> (Ino, &State) {
        let guard = self.guards[index].as_ref().expect("it is locked");
        (guard.ino, &guard.state)
    }

    pub(super) fn at_mut(&mut self, index: usize) -> (Ino, &mut State) {
        let guard = self.guards[index].as_mut().expect("it is locked");
        (guard.ino, &mut guard.state)
    }

    /// Adds the lock of a new inode, which no other task can know: it need not keep the order.
    pub(super) fn add_new(&mut self, inode: &'a Arc<Inode>) {
        assert!(self.find(inode.ino).is_none());
        let len = self.len();
        assert!(len < LOCKED_COUNT_MAX);
        self.guards[len] = Some(inode.lock());
    }
}

impl<'a> From<Guard<'a>> for Locked<'a> {
    fn from(guard: Guard<'a>) -> Self {
        let mut locked = Self::default();
        locked.guards[0] = Some(guard);
        locked
    }
}
