//! The inodes in memory, and when one may be forgotten.
//!
//! Owns: that there is one state of each inode. Must not know: what is in it.
//!
//! Invariant: an inode that differs from the metadata is referenced from elsewhere (the flush queue), so the table
//! never drops it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cairn_base::Ino;
use cairn_meta::MetaError;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::inode::{Inode, State};

const SHARD_COUNT: usize = 64;
/// Entries that a full shard checks to find an inode to forget.
const EVICT_LOOK_COUNT: usize = 32;

/// The inodes in memory; at most about `inodes_max` of them are unused.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<TableShard>>,
    /// The limit of one shard; it may change while the table is in use.
    shard_count_max: AtomicUsize,
    evicted: AtomicU64,
}

fn shard_count_max(inodes_max: usize) -> usize {
    inodes_max.div_ceil(SHARD_COUNT).max(16)
}

#[derive(Default)]
struct TableShard {
    inodes: FxHashMap<Ino, Arc<Inode>>,
    weight: usize,
    /// The order in which inodes are checked for eviction.
    clock: VecDeque<Ino>,
    /// Grows with each evicted inode: a record that was read before may be old.
    evictions: u64,
}

impl InodeTable {
    pub fn new(inodes_max: usize) -> Self {
        Self {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            shard_count_max: AtomicUsize::new(shard_count_max(inodes_max)),
            evicted: AtomicU64::new(0),
        }
    }

    /// Sets the limit. Later insertions evict the excess.
    pub fn set_inodes_max(&self, inodes_max: usize) {
        let most = shard_count_max(inodes_max);
        self.shard_count_max.store(most, Ordering::Relaxed);
    }

    fn shard_count_max(&self) -> usize {
        self.shard_count_max.load(Ordering::Relaxed)
    }

    pub fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().inodes.len())
            .sum()
    }

    /// Whether an inode is in memory.
    pub fn has(&self, ino: Ino) -> bool {
        self.shard(ino).lock().inodes.contains_key(&ino)
    }

    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Calls `visit` with each inode in memory, without a lock of the table.
    pub fn visit(&self, mut visit: impl FnMut(&Arc<Inode>)) {
        for shard in &self.shards {
            let inodes: Vec<Arc<Inode>> = shard.lock().inodes.values().cloned().collect();
            for inode in inodes {
                visit(&inode);
            }
        }
    }

    /// Finds an inode, or makes it from the result of `load`. `load` runs without a lock, and again if an inode was
    /// evicted meanwhile, since its result may then be old.
    pub fn find_or_load(
        &self,
        ino: Ino,
        load: impl Fn() -> Result<Option<State>, MetaError>,
    ) -> Result<Option<Arc<Inode>>, MetaError> {
        loop {
            let evictions = {
                let shard = self.shard(ino).lock();
                if let Some(inode) = shard.inodes.get(&ino) {
                    return Ok(Some(inode.clone()));
                }
                shard.evictions
            };
            let Some(state) = load()? else {
                return Ok(None);
            };
            let mut shard = self.shard(ino).lock();
            if let Some(inode) = shard.inodes.get(&ino) {
                return Ok(Some(inode.clone()));
            }
            if shard.evictions != evictions {
                continue;
            }
            let inode = Inode::new(ino, state);
            self.add(&mut shard, inode.clone());
            return Ok(Some(inode));
        }
    }

    /// Adds a newly created inode.
    pub fn insert(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        self.add(&mut shard, inode);
    }

    fn add(&self, shard: &mut TableShard, inode: Arc<Inode>) {
        if shard.weight >= self.shard_count_max() {
            self.evict(shard);
        }
        shard.clock.push_back(inode.ino);
        shard.weight += inode.weight;
        let old = shard.inodes.insert(inode.ino, inode);
        // Two states of one inode would both be changed.
        assert!(old.is_none());
        assert!(shard.weight >= shard.inodes.len());
    }

    /// Evicts the first inodes in clock order that only the table refers to. While the shard is locked, no task can
    /// take a new reference, and an inode that differs from the metadata is in the flush queue.
    fn evict(&self, shard: &mut TableShard) {
        for _ in 0..EVICT_LOOK_COUNT.min(shard.clock.len()) {
            if shard.weight < self.shard_count_max() {
                break;
            }
            let Some(ino) = shard.clock.pop_front() else {
                break;
            };
            match shard.inodes.get(&ino) {
                Some(inode) if Arc::strong_count(inode) > 1 => shard.clock.push_back(ino),
                Some(inode) => {
                    shard.weight -= inode.weight;
                    shard.inodes.remove(&ino);
                    shard.evictions += 1;
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                None => {}
            }
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<TableShard> {
        &self.shards[(ino.0 % SHARD_COUNT as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use cairn_meta::{InodeKind, InodeRecord};

    use super::*;
    use crate::kernel::ExtentMap;

    /// Without weights, the table held as many of these as of others, in four times the memory.
    #[test]
    fn long_symlinks_count_for_what_they_are() {
        const COUNT: u64 = 64 * SHARD_COUNT as u64;
        let in_memory = |target_len: usize| {
            let table = InodeTable::new(32 * SHARD_COUNT);
            for ino in 1..=COUNT {
                let mut record = InodeRecord::new(InodeKind::Symlink);
                record.symlink_target = vec![b'x'; target_len].into();
                let state = State::new(record, ExtentMap::default());
                table.insert(Inode::new(Ino(ino), state));
            }
            table.len()
        };
        assert_eq!(in_memory(10), 4 * in_memory(4095));
    }
}
