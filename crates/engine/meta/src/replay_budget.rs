//! Memory of logs that are replayed.
//!
//! Owns: how much each volume has of it, who waits and who is refused when that is too much. Must not know: what is in a log.
//!
//! There are two kinds. An opening has the whole log in memory until the state has what is in it: another one that comes while
//! these have much waits a while before it reads its own. A volume that is opened to be read alone keeps what the log has beside the
//! state: that is refused when such volumes would have more than the limit together.

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

/// An opening waits so long at most for others with logs in memory: these may wait for disks.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Counts and bounds the memory of replayed logs, of all volumes of a process. Cloning shares it.
#[derive(Clone, Debug)]
pub struct ReplayBudget(Arc<BudgetCore>);

#[derive(Debug)]
struct BudgetCore {
    bytes_max: u64,
    holds: Mutex<Holds>,
    /// An opening has less, or nothing any more.
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
    /// By a volume that is read alone, until it is closed.
    is_kept: bool,
}

impl Holds {
    fn bytes_of(&self, is_counted: impl Fn(&Hold) -> bool) -> u64 {
        let counted = self.all.values().filter(|hold| is_counted(hold));
        counted.map(|hold| hold.bytes).fold(0, u64::saturating_add)
    }
}

impl ReplayBudget {
    /// `bytes_max`: of each of both kinds.
    pub fn new(bytes_max: u64) -> Self {
        Self(Arc::new(BudgetCore {
            bytes_max,
            holds: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    /// Bytes that all volumes have now.
    pub fn used_bytes(&self) -> u64 {
        self.0.holds.lock().bytes_of(|_| true)
    }

    /// Waits while other openings have as much as all may have, up to [`WAIT_MAX`].
    pub(crate) async fn wait(&self, clock: &dyn Clock) {
        let mut patience = None;
        loop {
            let mut freed = pin!(self.0.freed.notified());
            // Before the look: what is freed after it wakes this one.
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

    /// Counts the log of a volume that is opened to be read alone. Fails if it would have more than the limit together with the others
    /// of its kind; what the volume itself keeps still, because its last opening is in use, does not count against it.
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

/// Memory that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct ReplayHold {
    budget: ReplayBudget,
    number: u64,
}

impl ReplayHold {
    /// It has so much from now on.
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
        // One that waits is woken by what is freed.
        let mut waiting = pin!(budget.wait(&*world.env.clock));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(large);
        assert!(waiting.as_mut().now_or_never().is_some());
        // And by time, whatever the others do.
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
        // The same volume once more, while readers of the last opening are there.
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
