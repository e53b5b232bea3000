//! Has spare shard files written while nobody wants anything.
//!
//! Owns: what idle is. Must not know: how spares are made, or how many fit (`segment`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_segment::SegmentStore;

use crate::pool::Pool;

/// How often it is looked whether something goes on.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// So many looks in a row must see nothing.
const IDLE_LOOKS: u32 = 3;
/// How often it is looked when all spares are there.
const STOCKED_INTERVAL: Duration = Duration::from_secs(5);

/// Starts the task; it ends with the pool. So many bytes of spare files are wanted on each disk.
pub fn tend(pool: &Arc<Pool>, bytes_per_disk: u64) {
    if bytes_per_disk == 0 {
        return;
    }
    let env = pool.env.clone();
    let weak = Arc::downgrade(pool);
    let task = async move {
        let mut idle = Idle::default();
        let mut interval = LOOK_INTERVAL;
        loop {
            env.clock.sleep(interval).await;
            let Some((activity, store)) = look(&weak) else {
                return;
            };
            if !idle.is_idle(activity) {
                interval = LOOK_INTERVAL;
                continue;
            }
            interval = match store.tend_spares(bytes_per_disk).await {
                // One is written at a time: a request that comes meanwhile waits for no more.
                true => Duration::ZERO,
                false => STOCKED_INTERVAL,
            };
        }
    };
    pool.env.spawner.spawn("spares", Box::pin(task));
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
    fn it_is_idle_after_some_looks_that_saw_nothing() {
        let mut idle = Idle::default();
        let looks = [5, 5, 5, 5, 5, 6, 6, 6, 6];
        let idle = looks.map(|activity| idle.is_idle(activity));
        let want = [false, false, false, true, true, false, false, false, true];
        assert_eq!(idle, want);
    }
}
