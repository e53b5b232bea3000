//! Has spare shard files written while nobody wants anything, and those given back that nobody uses.
//!
//! Owns: what idle is. Must not know: how spares are made, or how many fit (`segment`).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::DiskId;
use cairn_base::jobs::{Job, Next, Step, StepResult};
use cairn_segment::SegmentStore;
use parking_lot::Mutex;

use crate::pool::Pool;

/// How often it is looked whether something goes on.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// So many looks in a row must see nothing.
const IDLE_LOOKS: u32 = 3;
/// How often it is looked when all spares are there.
const STOCKED_INTERVAL: Duration = Duration::from_secs(5);

/// How often it is looked for such files; on each disk one of them goes.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the jobs; they end with the pool. So many bytes of spare files are wanted on each disk.
///
/// `unused_after`: files of deleted shards wait so long for a new one. Who writes again and again overwrites them, which is about
/// twice as fast as a first write. For everybody else they are used space.
pub fn tend(pool: &Arc<Pool>, bytes_per_disk: u64, unused_after: Duration) {
    let unused = Arc::new(Mutex::new(Unused::new(unused_after)));
    pool.every("spares-returned", GIVE_BACK_INTERVAL, move |pool| {
        let unused = Arc::clone(&unused);
        async move { pool.give_back_unused(&unused, bytes_per_disk).await }
    });
    if bytes_per_disk == 0 {
        return;
    }
    let spares = Spares {
        pool: Arc::downgrade(pool),
        bytes_per_disk,
        idle: Idle::default(),
    };
    Job::every("spares", LOOK_INTERVAL).start(&pool.env, spares);
}

struct Spares {
    pool: Weak<Pool>,
    bytes_per_disk: u64,
    idle: Idle,
}

impl Step for Spares {
    async fn step(&mut self) -> StepResult {
        let Some((activity, store)) = look(&self.pool) else {
            return Ok(Next::End);
        };
        if !self.idle.is_idle(activity) {
            return Ok(Next::Held("the disks are in use"));
        }
        Ok(match store.tend_spares(self.bytes_per_disk).await {
            // One is written at a time: a request that comes meanwhile waits for no more.
            true => Next::After(Duration::ZERO),
            false => Next::After(STOCKED_INTERVAL),
        })
    }
}

/// How much was done so far; only differences mean something.
fn look(pool: &Weak<Pool>) -> Option<(u64, Arc<SegmentStore>)> {
    let pool = pool.upgrade()?;
    let stats = pool.store.stats();
    let mut activity = stats.appends + stats.disk_reads + stats.cache_hits + stats.cache_misses;
    for fs in pool.serving_all() {
        activity += fs.meta().stats().batches;
    }
    Some((activity, Arc::clone(&pool.store)))
}

impl Pool {
    /// On each disk of this server whose spare files nobody used for a while, gives one of them back that is not wanted.
    async fn give_back_unused(&self, unused: &Mutex<Unused>, bytes_per_disk: u64) {
        let now = self.env.clock.monotonic();
        let table = self.table();
        for disk in table.disks() {
            let is_unused = unused.lock().look(disk.id(), disk.recycled_uses(), now);
            if !is_unused || !table.works(disk.id()) || disk.is_silent() {
                continue;
            }
            if let Err(error) = disk.release_recycled_above(bytes_per_disk).await {
                tracing::warn!(%error, "a spare file could not be given back");
            }
        }
    }
}

/// Since when the spare files of disks have not been used.
struct Unused {
    /// How often they were used by then, and when that was.
    seen: BTreeMap<DiskId, (u64, Duration)>,
    /// They are unused when they were not used for so long.
    after: Duration,
}

impl Unused {
    fn new(after: Duration) -> Self {
        Self {
            seen: BTreeMap::new(),
            after,
        }
    }

    /// Whether those of a disk, which were used so often so far, were not for a while.
    fn look(&mut self, disk: DiskId, uses: u64, now: Duration) -> bool {
        let seen = self.seen.entry(disk).or_insert((uses, now));
        if seen.0 != uses {
            *seen = (uses, now);
        }
        now.saturating_sub(seen.1) >= self.after
    }
}

#[derive(Default)]
struct Idle {
    last: u64,
    idle: u32,
}

impl Idle {
    /// Whether nothing was done for a while.
    fn is_idle(&mut self, activity: u64) -> bool {
        if activity == self.last {
            self.idle = self.idle.saturating_add(1);
        } else {
            self.idle = 0;
        }
        self.last = activity;
        self.idle >= IDLE_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_files_are_unused_when_none_came_or_went_for_a_while() {
        let mut unused = Unused::new(Duration::from_secs(60));
        // The disk, how often its files were used, when, and whether they are unused.
        let looks = [
            (1, 5, 0, false),
            (2, 5, 30, false),
            (1, 5, 59, false),
            (1, 5, 60, true),
            (1, 6, 61, false),
            (2, 5, 90, true),
            (1, 6, 120, false),
            (1, 6, 121, true),
        ];
        for (disk, uses, seconds, want) in looks {
            let now = Duration::from_secs(seconds);
            let got = unused.look(DiskId(disk), uses, now);
            assert_eq!(got, want, "disk {disk} after {seconds} s");
        }
    }

    #[test]
    fn it_is_idle_after_some_looks_that_saw_nothing() {
        let mut idle = Idle::default();
        let looks = [5, 5, 5, 5, 5, 6, 6, 6, 6];
        let idle = looks.map(|activity| idle.is_idle(activity));
        let want = [false, false, false, true, true, false, false, false, true];
        assert_eq!(idle, want);
    }
}
