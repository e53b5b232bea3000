//! Limits the memory of replayed logs.
//!
//! Owns: the memory of each volume, and the decision to wait or to refuse. Must not know: the contents of a log.
//!
//! There are two kinds of use. An opening holds the whole log in memory until the state covers it: while openings hold
//! much, another one waits a while before it reads its log. A volume opened read-only keeps the records beyond its
//! state in memory: it is refused if all such volumes together would exceed the limit.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::env::Clock;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::MetaError;

/// Longest wait of an opening for others with logs in memory: these may wait for disks.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Counts and limits the memory of replayed logs of all volumes of a process. Clones share the count.
#[derive(Clone, Debug)]
pub struct ReplayBudget(Arc<BudgetCore>);

#[derive(Debug)]
struct BudgetCore {
    bytes_max: u64,
    holds: Mutex<Holds>,
    /// Notified when an opening releases memory.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Holds {
    next: u64,
    all: BTreeMap<u64, Hold>,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    volume: VolumeId,
    bytes: u64,
    /// Held by a read-only volume, until it is closed.
    is_kept: bool,
}

impl Holds {
    fn bytes_of(&self, is_counted: impl Fn(&Hold) -> bool) -> u64 {
        let counted = self.all.values().filter(|hold| is_counted(hold));
        counted.map(|hold| hold.bytes).fold(0, u64::saturating_add)
    }
}

impl ReplayBudget {
    /// `bytes_max`: limit of each of the two kinds.
    pub fn new(bytes_max: u64) -> Self {
        Self(Arc::new(BudgetCore {
            bytes_max,
            holds: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    /// Bytes in use by all volumes.
    pub fn used_bytes(&self) -> u64 {
        self.0.holds.lock().bytes_of(|_| true)
    }

    /// Waits while other openings use the whole limit, up to [`WAIT_MAX`].
    pub(crate) async fn wait(&self, clock: &dyn Clock) {
        let mut patience = None;
        loop {
            let mut freed = pin!(self.0.freed.notified());
            // Before the check: memory that is freed after it wakes this task.
            freed.as_mut().enable();
            let opening_bytes = self.0.holds.lock().bytes_of(|hold| !hold.is_kept);
            if opening_bytes == 0 || opening_bytes < self.0.bytes_max {
                return;
            }
            let rest = patience.take().unwrap_or_else(|| clock.sleep(WAIT_MAX));
            match select(freed, rest).await {
                Either::Left(((), rest)) => patience = Some(rest),
                Either::Right(((), _)) => {
                    tracing::warn!(
                        opening_bytes,
                        "other volumes that are being opened have much of their logs in memory; going on all the same"
                    );
                    return;
                }
            }
        }
    }

    /// Counts the log of a volume that is being opened.
    pub(crate) fn hold(&self, volume: VolumeId, bytes: u64) -> ReplayHold {
        self.add(&mut self.0.holds.lock(), volume, bytes, false)
    }

    /// Counts the log of a volume that is opened read-only. Fails if all volumes of this kind would exceed the limit.
    /// Memory that the volume itself keeps, because its last opening is still in use, does not count against it.
    pub(crate) fn keep(&self, volume: VolumeId, bytes: u64) -> Result<ReplayHold, MetaError> {
        let mut holds = self.0.holds.lock();
        let kept_bytes = holds.bytes_of(|hold| hold.is_kept && hold.volume != volume);
        if kept_bytes.saturating_add(bytes) > self.0.bytes_max {
            return Err(MetaError::ReplayTooLarge {
                volume,
                needed_bytes: bytes,
                kept_bytes,
                bytes_max: self.0.bytes_max,
            });
        }
        Ok(self.add(&mut holds, volume, bytes, true))
    }

    fn add(&self, holds: &mut Holds, volume: VolumeId, bytes: u64, is_kept: bool) -> ReplayHold {
        let number = holds.next;
        holds.next += 1;
        let hold = Hold {
            volume,
            bytes,
            is_kept,
        };
        holds.all.insert(number, hold);
        ReplayHold {
            budget: self.clone(),
            number,
        }
    }
}

/// Counts memory until it is dropped.
#[derive(Debug)]
pub(crate) struct ReplayHold {
    budget: ReplayBudget,
    number: u64,
}

impl ReplayHold {
    /// Sets the number of bytes counted.
    pub fn set(&self, bytes: u64) {
        let mut holds = self.budget.0.holds.lock();
        if let Some(hold) = holds.all.get_mut(&self.number) {
            hold.bytes = bytes;
        }
        drop(holds);
        self.budget.0.freed.notify_waiters();
    }
}

impl Drop for ReplayHold {
    fn drop(&mut self) {
        self.budget.0.holds.lock().all.remove(&self.number);
        self.budget.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use cairn_testkit::TestWorld;
    use futures_util::FutureExt;

    use super::*;

    const MAX: u64 = 100;
    const ONE: VolumeId = VolumeId(1);
    const OTHER: VolumeId = VolumeId(2);

    /// Whether an opening may read its log now.
    fn goes_on(budget: &ReplayBudget, world: &TestWorld) -> bool {
        budget.wait(&*world.env.clock).now_or_never().is_some()
    }

    #[test]
    fn an_opening_waits_while_others_have_much_and_not_for_ever() {
        let world = TestWorld::new(1);
        let budget = ReplayBudget::new(MAX);
        let small = budget.hold(ONE, MAX - 1);
        assert!(goes_on(&budget, &world), "they have less than the limit");
        let large = budget.hold(OTHER, 3 * MAX);
        assert_eq!(budget.used_bytes(), 4 * MAX - 1);
        assert!(!goes_on(&budget, &world));
        // Freed memory wakes the waiter.
        let mut waiting = pin!(budget.wait(&*world.env.clock));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(large);
        assert!(waiting.as_mut().now_or_never().is_some());
        // Time wakes it, too, whatever the other volumes do.
        small.set(MAX);
        let mut waiting = pin!(budget.wait(&*world.env.clock));
        assert!(waiting.as_mut().now_or_never().is_none());
        world.clock.advance(WAIT_MAX);
        assert!(waiting.as_mut().now_or_never().is_some());
        small.set(0);
        assert!(goes_on(&budget, &world));
        drop(small);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn what_is_kept_is_refused_beyond_the_limit_and_holds_up_no_opening() {
        let world = TestWorld::new(1);
        let budget = ReplayBudget::new(MAX);
        let refused = |volume, bytes, others: u64| match budget.keep(volume, bytes) {
            Err(MetaError::ReplayTooLarge {
                needed_bytes,
                kept_bytes,
                bytes_max,
                ..
            }) => (needed_bytes, kept_bytes, bytes_max) == (bytes, others, MAX),
            _ => false,
        };
        assert!(refused(ONE, MAX + 1, 0));
        assert_eq!(budget.used_bytes(), 0, "what is refused is not counted");
        let kept = budget.keep(ONE, MAX).expect("at the limit");
        assert!(goes_on(&budget, &world), "it is no opening");
        assert!(refused(OTHER, 1, MAX));
        // The volume is opened again while readers of the last opening exist.
        let again = budget.keep(ONE, MAX).expect("its own does not count");
        assert_eq!(budget.used_bytes(), 2 * MAX);
        drop(kept);
        again.set(60);
        assert!(refused(OTHER, 41, 60));
        let other = budget.keep(OTHER, 40).expect("both fit");
        assert_eq!(budget.used_bytes(), MAX);
        drop((again, other));
        assert_eq!(budget.used_bytes(), 0);
    }
}
