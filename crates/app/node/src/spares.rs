//! Has spare shard files written while nobody wants anything.
//!
//! Owns: what idle is. Must not know: how spares are made, or how many fit (`segment`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::node::{Inner, VolumeService};

/// How often it is looked whether something goes on.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// So many looks in a row must see nothing.
const IDLE_LOOKS: u32 = 3;
/// How often it is looked when all spares are there.
const STOCKED_INTERVAL: Duration = Duration::from_secs(5);

/// Starts the task; it ends with the node.
pub fn tend(inner: &Arc<Inner>) {
    if inner.config.disk_spare_bytes == 0 {
        return;
    }
    let env = inner.env.clone();
    let node = Arc::downgrade(inner);
    let task = async move {
        let mut watch = Watch::default();
        let mut interval = LOOK_INTERVAL;
        loop {
            env.clock.sleep(interval).await;
            let Some((activity, wanted, store)) = look(&node) else {
                return;
            };
            if !watch.is_idle(activity) {
                interval = LOOK_INTERVAL;
                continue;
            }
            interval = match store.tend_spares(wanted).await {
                // One is written at a time: a request that comes meanwhile waits for no more.
                true => Duration::ZERO,
                false => STOCKED_INTERVAL,
            };
        }
    };
    inner.env.spawner.spawn("spares", Box::pin(task));
}

/// How much was done so far; only differences mean something.
fn look(node: &Weak<Inner>) -> Option<(u64, u64, Arc<cairn_segment::SegmentStore>)> {
    let inner = node.upgrade()?;
    let stats = inner.pool.store.stats();
    let mut activity = stats.appends + stats.disk_reads + stats.cache_hits + stats.cache_misses;
    for service in inner.pool.services().values() {
        if let VolumeService::Serving(fs) = service {
            activity += fs.meta().stats().batches;
        }
    }
    let wanted = inner.config.disk_spare_bytes;
    Some((activity, wanted, Arc::clone(&inner.pool.store)))
}

#[derive(Default)]
struct Watch {
    last: u64,
    idle: u32,
}

impl Watch {
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
        let mut watch = Watch::default();
        let looks = [5, 5, 5, 5, 5, 6, 6, 6, 6];
        let idle = looks.map(|activity| watch.is_idle(activity));
        let want = [false, false, false, true, true, false, false, false, true];
        assert_eq!(idle, want);
    }
}
