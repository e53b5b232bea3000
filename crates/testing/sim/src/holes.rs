//! A start on disks that all lack one record of the log.
//!
//! Owns: the place of the hole, the allowed results of a start. Must not know: the layout of records.
//!
//! Some disks are away, and on all others the same block of an old log file is corrupt. If the record in it is still
//! needed, the start must refuse: a disk that is away may have it. A start that succeeds would lose an acknowledged
//! change and show later ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_testkit::{Crash, MemDisk, Rng};
use parking_lot::Mutex;

use crate::exec::Executor;
use crate::pool::Disks;
use crate::run::{LIFE_TIME_MAX, Pool, STEPS_MAX};
use crate::scenario::Trouble;
use crate::snapshots::Read;
use crate::tree::FoundTree;
use crate::world::{SimHost, World};

/// One in this many lives begins with such a check.
const ONE_IN: u64 = 3;
const BLOCK_BYTES: u64 = 4096;
/// The records of a life are at the beginning of a file; older ones may follow.
const BLOCKS_MAX: u64 = 24;

/// Result of a start on copies of the disks.
enum Started {
    Refused,
    /// The readable contents.
    Served(Result<(FoundTree, Read), String>),
}

impl Pool {
    /// Starts on copies of the disks with a hole in the log.
    pub(crate) fn check_hole(&mut self, seed: u64) -> Result<(), String> {
        let mut rng = Rng::new(seed ^ 0x686f_6c65);
        if rng.below(ONE_IN) != 0 || self.shape.trouble == Trouble::Beyond {
            return Ok(());
        }
        let Some(gone) = self.gone_set(&[], rng.u64()) else {
            return Ok(());
        };
        let away = gone.union(&self.lost).copied().collect();
        let mut disks = Disks::new(&self.disks, &away);
        for disk in &mut disks.there {
            *disk = MemDisk::from_snapshot(&disk.snapshot());
        }
        // After this there is a newer term, so a record of an older one cannot be the end of the log. There a hole
        // would look like a write that was never acknowledged.
        let Started::Served(_) = self.start_on(&disks, rng.u64(), false) else {
            return Ok(());
        };
        for disk in &mut disks.there {
            *disk = disk.crash(Crash::KeepUnsynced, rng.u64());
        }
        let copies: Vec<Arc<MemDisk>> = disks.there.clone();
        if !make_hole(&copies, &mut rng) {
            return Ok(());
        }
        self.counts.checks_with_holes += 1;
        match self.start_on(&disks, rng.u64(), true) {
            Started::Refused => {
                self.counts.holes_refused += 1;
                Ok(())
            }
            Started::Served(found) => {
                let at = |error| format!("with a hole in the log, without disks {gone:?}: {error}");
                let judged =
                    found.and_then(|(found, of_snapshots)| self.judge(&found, &of_snapshots));
                judged.map_err(at)
            }
        }
    }

    fn start_on(&mut self, disks: &Disks, seed: u64, reads: bool) -> Started {
        let (picking, has_threads) = (self.shape.picking, self.shape.has_threads);
        let mut exec = Executor::new(seed, picking, has_threads, self.trace.clone());
        let result = Arc::new(Mutex::new(None));
        let (env, shape) = (exec.env.clone(), self.shape.clone());
        let store = self.store_of_another(&exec, seed);
        let (slot, disks) = (result.clone(), disks.clone());
        let task = async move {
            let host = Arc::new(SimHost {
                env: env.clone(),
                shape,
                move_steps: Arc::default(),
                store,
            });
            let started = match World::start(host, &disks, false).await {
                Err(_) => Started::Refused,
                Ok(_) if !reads => Started::Served(Ok(Default::default())),
                Ok(world) => Started::Served(world.read_and_count(&env).await),
            };
            *slot.lock() = Some(started);
        };
        exec.env.spawner.spawn("hole", Box::pin(task));
        let stopped = exec.run(STEPS_MAX, LIFE_TIME_MAX, |_| result.lock().is_some());
        self.counts.steps += exec.steps;
        drop(exec);
        let started = result.lock().take();
        started.unwrap_or_else(|| Started::Served(Err(format!("{stopped:?}"))))
    }
}

/// Flips a bit in one block of an old log file, on all disks that have it; false if there is none.
fn make_hole(disks: &[Arc<MemDisk>], rng: &mut Rng) -> bool {
    let is_log = |name: &String| name.contains("/log.");
    let names = disks.iter().flat_map(|disk| disk.file_names());
    let names: BTreeSet<String> = names.filter(is_log).collect();
    // The numbers in the names have leading zeros. The newest file belongs to the last term.
    let Some(older) = names.len().checked_sub(1).filter(|count| *count > 0) else {
        return false;
    };
    let back = rng.below(3.min(older as u64)) as usize;
    let Some(name) = names.iter().nth(older - 1 - back) else {
        return false;
    };
    let offset = BLOCK_BYTES * (1 + rng.below(BLOCKS_MAX));
    let is_there = |disk: &&Arc<MemDisk>| {
        let bytes = disk.file_bytes(name).unwrap_or_default();
        let block = bytes.get(offset as usize..(offset + BLOCK_BYTES) as usize);
        block.is_some_and(|block| block.iter().any(|byte| *byte != 0))
    };
    let mut has_hole = false;
    for disk in disks.iter().filter(is_there) {
        disk.flip_bit(name, offset, 0);
        has_hole = true;
    }
    has_hole
}
