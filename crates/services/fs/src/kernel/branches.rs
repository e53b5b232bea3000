//! The branches of a store: which there are, which end, and where they began.
//!
//! Owns: that nothing is submitted in a branch that has ended. Must not know: how a branch takes over inodes, how it is
//! freed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::{Branch, Generation, Ino, VolumeId};
use cairn_meta::{Key, MetaError};
use parking_lot::RwLock;

use super::ROOT;
use super::metadata::Metadata;
use crate::types::FsError;

/// Maximum number of inodes that are taken over concurrently.
pub(crate) const TURNS: usize = 64;
/// The value of a [`Key::gone`] mark.
pub(crate) const MARK_VERSION: u8 = 1;

/// A clone in the store of the volume that it began from.
#[derive(Debug)]
pub(crate) struct BranchState {
    pub volume: VolumeId,
    /// The snapshot that the clone began from, and the branch of that snapshot.
    pub base: Generation,
    pub from: Branch,
    /// Numbers of inodes from here on were given out after the branch began.
    ino_mark: u64,
    ending: Ending,
}

impl BranchState {
    pub fn is_deleted(&self) -> bool {
        self.ending.is_deleted()
    }
}

/// The progress of the deletion of a branch.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    is_deleted: AtomicBool,
    /// The branch has nothing left but snapshots that other branches began from.
    is_emptied: AtomicBool,
}

impl Ending {
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    fn is_freeing(&self) -> bool {
        self.is_deleted() && !self.is_emptied.load(Ordering::Acquire)
    }
}

/// The branches of a store.
pub(crate) struct Branches {
    /// All branches but the main one.
    all: RwLock<BTreeMap<Branch, Arc<BranchState>>>,
    /// The deletion of the main branch, the volume that the store was made for.
    main: Ending,
    /// Held by a task that takes over an inode; the inode's number selects the lock.
    pub turns: Vec<tokio::sync::Mutex<()>>,
    /// Held by a task that makes a clone.
    pub beginning: tokio::sync::Mutex<()>,
    /// Held by a task that frees a branch.
    pub freeing: tokio::sync::Mutex<()>,
    /// Notified when removed inodes are gone.
    pub reaped: tokio::sync::Notify,
}

impl Branches {
    pub fn open(meta: &Metadata) -> Result<Self, MetaError> {
        let branches = Self {
            all: RwLock::default(),
            main: Ending::default(),
            turns: (0..TURNS).map(|_| Default::default()).collect(),
            beginning: Default::default(),
            freeing: Default::default(),
            reaped: Default::default(),
        };
        branches.load(meta);
        let is_deleted = meta.live().get(&Key::gone(ROOT))?.is_some();
        branches
            .main
            .is_deleted
            .store(is_deleted, Ordering::Release);
        Ok(branches)
    }

    /// Loads the branches that the metadata lists.
    pub fn load(&self, meta: &Metadata) {
        // Locked first, so no branch ends between the reading and the list.
        let mut all = self.all.write();
        let mut found = BTreeMap::new();
        for (base, record) in meta.snapshots() {
            for clone in &record.clones {
                let known = all.get(&clone.branch);
                let is_emptied = known.is_some_and(|known| {
                    let is_emptied = &known.ending.is_emptied;
                    is_emptied.load(Ordering::Acquire)
                });
                let state = BranchState {
                    volume: clone.volume,
                    base,
                    from: record.branch,
                    ino_mark: clone.ino_mark,
                    ending: Ending {
                        is_deleted: AtomicBool::new(clone.is_deleted),
                        is_emptied: AtomicBool::new(is_emptied),
                    },
                };
                found.insert(clone.branch, Arc::new(state));
            }
        }
        *all = found;
    }

    pub fn get(&self, branch: Branch) -> Option<Arc<BranchState>> {
        self.all.read().get(&branch).cloned()
    }

    pub fn all(&self) -> Vec<(Branch, Arc<BranchState>)> {
        let all = self.all.read();
        all.iter()
            .map(|(branch, state)| (*branch, Arc::clone(state)))
            .collect()
    }

    /// Whether a branch exists and is not deleted.
    pub fn is_there(&self, branch: Branch) -> bool {
        match branch.is_main() {
            true => !self.main.is_deleted(),
            false => {
                let all = self.all.read();
                all.get(&branch).is_some_and(|state| !state.is_deleted())
            }
        }
    }

    /// The number of branches that are deleted and not yet freed.
    pub fn freeing_count(&self) -> u64 {
        let all = self.all.read();
        let endings = all.values().map(|state| &state.ending);
        let freeing = endings.chain([&self.main]).filter(|it| it.is_freeing());
        freeing.count() as u64
    }

    /// Whether a deleted branch still has something to free.
    pub fn is_freeing(&self, branch: Branch) -> bool {
        match branch.is_main() {
            true => self.main.is_freeing(),
            false => self
                .get(branch)
                .is_some_and(|state| state.ending.is_freeing()),
        }
    }

    /// Notes that a deleted branch is freed, but for the snapshots that other branches began from.
    pub fn note_emptied(&self, branch: Branch) {
        match branch.is_main() {
            true => self.main.is_emptied.store(true, Ordering::Release),
            false => {
                if let Some(state) = self.get(branch) {
                    state.ending.is_emptied.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Ends a branch if `submit` succeeds. From then on, only the task that frees the branch changes anything in it.
    pub fn end<T, E>(&self, branch: Branch, submit: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        // All callers that checked the branch before have submitted when this lock is granted.
        let all = self.all.write();
        let submitted = submit()?;
        match branch.is_main() {
            true => self.main.is_deleted.store(true, Ordering::Release),
            false => {
                if let Some(state) = all.get(&branch) {
                    state.ending.is_deleted.store(true, Ordering::Release);
                }
            }
        }
        Ok(submitted)
    }

    /// Runs `submit` if the branch exists, and keeps the branch from ending meanwhile.
    pub fn within<T>(&self, branch: Branch, submit: impl FnOnce() -> T) -> Result<T, FsError> {
        let all = self.all.read();
        let is_there = match branch.is_main() {
            true => !self.main.is_deleted(),
            false => all.get(&branch).is_some_and(|state| !state.is_deleted()),
        };
        match is_there {
            true => Ok(submit()),
            false => Err(FsError::Stale),
        }
    }

    /// The mark that an inode leaves when it is removed, if its branch inherited it.
    pub fn mark_of_gone(&self, ino: Ino) -> Option<Vec<u8>> {
        let branch = self.get(ino.branch())?;
        let number = ino.in_branch(Branch::MAIN).0;
        let began_with_it =
            !branch.is_deleted() && (number < branch.ino_mark || number > u64::MAX / 2);
        began_with_it.then(|| vec![MARK_VERSION])
    }

    /// Fails if the branch does not exist; the branch may end at any time after that.
    pub fn require(&self, branch: Branch) -> Result<(), FsError> {
        match self.is_there(branch) {
            true => Ok(()),
            false => Err(FsError::Stale),
        }
    }
}
