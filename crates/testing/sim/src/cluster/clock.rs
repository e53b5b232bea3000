//! The clock of one node: it runs at a rate of its own, stops while the machine is suspended, and its wall time jumps.
//!
//! Owns: the node's view of the world's time. Must not know: how the node uses it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cairn_base::Timestamp;
use cairn_base::env::{BoxFuture, Clock};
use cairn_testkit::ManualClock;
use parking_lot::Mutex;

const MILLION: u128 = 1_000_000;

#[derive(Clone)]
pub struct NodeClock {
    world: ManualClock,
    /// Seconds of this clock per million seconds of the world.
    rate: u32,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Total time of suspension, by its own clock, and start of the present one.
    suspended: Duration,
    suspended_since: Option<Duration>,
    wall_skew_seconds: i64,
}

impl NodeClock {
    /// `rate`: seconds per million of the world's.
    pub fn new(world: ManualClock, rate: u32) -> Self {
        Self {
            world,
            rate,
            state: Arc::default(),
        }
    }

    /// Steps the wall clock alone.
    pub fn step_wall(&self, seconds: i64) {
        self.state.lock().wall_skew_seconds += seconds;
    }

    /// Stops monotonic time from now on.
    pub fn suspend(&self) {
        let now = self.boottime();
        self.state.lock().suspended_since.get_or_insert(now);
    }

    pub fn resume(&self) {
        let now = self.boottime();
        let mut state = self.state.lock();
        if let Some(since) = state.suspended_since.take() {
            state.suspended += now.saturating_sub(since);
        }
    }
}

fn scaled(time: Duration, by: u128, of: u128) -> Duration {
    let nanos = time.as_nanos() * by / of;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        let skew = self.state.lock().wall_skew_seconds;
        let now = self.world.now();
        Timestamp::new(now.seconds + skew, now.nanos)
    }

    fn monotonic(&self) -> Duration {
        let now = self.boottime();
        let state = self.state.lock();
        state
            .suspended_since
            .unwrap_or(now)
            .saturating_sub(state.suspended)
    }

    fn boottime(&self) -> Duration {
        scaled(self.world.monotonic(), u128::from(self.rate), MILLION)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        Box::pin(Sleep {
            deadline: self.monotonic().saturating_add(duration),
            clock: self.clone(),
            inner: None,
        })
    }
}

struct Sleep {
    clock: NodeClock,
    deadline: Duration,
    inner: Option<BoxFuture<()>>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let now = self.clock.monotonic();
            if now >= self.deadline {
                return Poll::Ready(());
            }
            let rest = self.deadline - now;
            let (world, rate) = (self.clock.world.clone(), u128::from(self.clock.rate));
            let inner = self.inner.get_or_insert_with(|| {
                // Rounded up, because a sleep that ends early would be repeated.
                world.sleep(scaled(rest, MILLION, rate) + Duration::from_nanos(1))
            });
            match inner.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => self.inner = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_runs_at_its_own_rate_and_stands_still_while_suspended() {
        let world = ManualClock::default();
        let clock = NodeClock::new(world.clone(), 900_000);
        let secs = Duration::from_secs;
        world.advance(secs(10));
        assert_eq!((clock.monotonic(), clock.boottime()), (secs(9), secs(9)));
        clock.suspend();
        world.advance(secs(10));
        assert_eq!((clock.monotonic(), clock.boottime()), (secs(9), secs(18)));
        clock.resume();
        world.advance(secs(10));
        assert_eq!((clock.monotonic(), clock.boottime()), (secs(18), secs(27)));
        let mut sleep = clock.sleep(secs(9));
        let mut context = Context::from_waker(std::task::Waker::noop());
        world.advance(Duration::from_millis(9999));
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        world.advance(Duration::from_millis(2));
        assert!(sleep.as_mut().poll(&mut context).is_ready());
    }
}
