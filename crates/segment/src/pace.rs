//! How fast background work may go.
//!
//! Owns: the rate, which can be changed at any time. Must not know: what is done at that rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::env::Clock;
use parking_lot::Mutex;

/// Work that was not done in time is not made up for beyond this.
const CREDIT_MAX: Duration = Duration::from_millis(100);
/// A wait is cut into pieces of this length, so that a new rate is felt soon.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A rate in bytes per second that all who share it keep together.
pub struct Pace {
    clock: Arc<dyn Clock>,
    /// 0: as fast as it goes.
    bytes_per_second: AtomicU64,
    /// When what was taken so far is paid for, by the monotonic clock.
    paid_at: Mutex<Duration>,
}

impl Pace {
    /// `bytes_per_second`: 0 for no limit.
    pub fn new(clock: Arc<dyn Clock>, bytes_per_second: u64) -> Self {
        Self {
            clock,
            bytes_per_second: AtomicU64::new(bytes_per_second),
            paid_at: Mutex::new(Duration::ZERO),
        }
    }

    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second.load(Ordering::Relaxed)
    }

    /// 0 for no limit; what waits now goes on at the new rate.
    pub fn set_bytes_per_second(&self, rate: u64) {
        self.bytes_per_second.store(rate, Ordering::Relaxed);
        let now = self.clock.monotonic();
        let mut paid_at = self.paid_at.lock();
        *paid_at = (*paid_at).min(now);
    }

    /// Waits until `len_bytes` more may be read or written.
    pub async fn spend(&self, len_bytes: u64) {
        let rate = self.bytes_per_second();
        if rate == 0 {
            return;
        }
        let cost = Duration::from_secs_f64(len_bytes as f64 / rate as f64);
        {
            let now = self.clock.monotonic();
            let mut paid_at = self.paid_at.lock();
            *paid_at = (*paid_at).max(now.saturating_sub(CREDIT_MAX)) + cost;
        }
        loop {
            let left = {
                let paid_at = self.paid_at.lock();
                paid_at.saturating_sub(self.clock.monotonic())
            };
            if left.is_zero() || self.bytes_per_second() == 0 {
                return;
            }
            self.clock.sleep(left.min(WAIT_MAX)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use cairn_testkit::TestWorld;

    use super::*;

    fn is_ready(future: &mut std::pin::Pin<Box<dyn Future<Output = ()> + '_>>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        matches!(future.as_mut().poll(&mut context), Poll::Ready(()))
    }

    #[test]
    fn bytes_take_the_time_that_the_rate_says() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(10));
        let pace = Pace::new(world.env.clock.clone(), 1000);
        // 100 ms of credit, then 1000 bytes a second.
        let mut first: std::pin::Pin<Box<dyn Future<Output = ()>>> = Box::pin(pace.spend(100));
        assert!(is_ready(&mut first));
        let mut second: std::pin::Pin<Box<dyn Future<Output = ()>>> = Box::pin(pace.spend(2000));
        assert!(!is_ready(&mut second));
        world.clock.advance(Duration::from_millis(1990));
        assert!(!is_ready(&mut second));
        world.clock.advance(Duration::from_millis(20));
        assert!(is_ready(&mut second));
    }

    #[test]
    fn a_new_rate_is_felt_at_once() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(10));
        let pace = Pace::new(world.env.clock.clone(), 1);
        let mut slow: std::pin::Pin<Box<dyn Future<Output = ()>>> = Box::pin(pace.spend(1 << 20));
        assert!(!is_ready(&mut slow));
        pace.set_bytes_per_second(0);
        world.clock.advance(Duration::from_secs(1));
        assert!(is_ready(&mut slow));
    }
}
