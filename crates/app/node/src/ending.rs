//! The end of a node: one step after the other, each with a name for the log.
//!
//! Owns: when a slow step is logged, and when it is no longer waited for. Must not know: the steps.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Clock;
use futures_util::future::{Either, select};

/// Maximum time of all steps of a node without a lease, or without another node to hand over to. Its acknowledged
/// changes are in the logs of its volumes; closing may wait for ever for other nodes' disks.
pub(crate) const CUT_OFF_MAX: Duration = Duration::from_secs(7);
/// A slow step is logged after so long, and again each time as much has passed.
const TELL_AFTER: Duration = Duration::from_secs(2);
/// Interval of the check whether a step is still waited for.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) struct Ending<IsCutOff> {
    clock: Arc<dyn Clock>,
    begun: Duration,
    is_cut_off: IsCutOff,
}

impl<IsCutOff: Fn() -> bool> Ending<IsCutOff> {
    pub fn new(clock: Arc<dyn Clock>, is_cut_off: IsCutOff) -> Self {
        Self {
            begun: clock.monotonic(),
            clock,
            is_cut_off,
        }
    }

    /// Whether the node is cut off, and its time is over.
    pub fn is_over(&self) -> bool {
        self.clock.monotonic().saturating_sub(self.begun) >= CUT_OFF_MAX && (self.is_cut_off)()
    }

    /// Runs one step, which the log names as "waits for `what`". `None`: the step is not done, because the node's
    /// time is over.
    pub async fn step<T>(&self, what: &str, work: impl Future<Output = T>) -> Option<T> {
        let begun = self.clock.monotonic();
        let mut told = Duration::ZERO;
        let mut work = pin!(work);
        loop {
            work = match select(work, self.clock.sleep(LOOK)).await {
                Either::Left((done, _)) => return Some(done),
                Either::Right((_, work)) => work,
            };
            let waited = self.clock.monotonic().saturating_sub(begun);
            if self.is_over() {
                tracing::warn!(
                    waited_ms = waited.as_millis(),
                    "stopping: this node has no lease, or no other node is up, so it stops waiting for {what}; what \
                     was acknowledged is in the logs of its volumes"
                );
                return None;
            }
            if waited.saturating_sub(told) >= TELL_AFTER {
                told = waited;
                tracing::info!(
                    waited_ms = waited.as_millis(),
                    "stopping: this node waits for {what}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use cairn_testkit::TestWorld;

    use super::*;

    /// Lets time pass until the step is over, or for a minute.
    async fn within_a_minute<T>(
        clock: &cairn_testkit::ManualClock,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        for _ in 0..600 {
            let polled =
                std::future::poll_fn(|context| std::task::Poll::Ready(work.as_mut().poll(context)));
            if let std::task::Poll::Ready(done) = polled.await {
                return Some(done);
            }
            clock.advance(LOOK);
        }
        None
    }

    #[tokio::test]
    async fn who_is_cut_off_does_not_wait_for_ever() {
        for is_cut_off in [true, false] {
            let TestWorld { env, clock } = TestWorld::new(1);
            let ending = Ending::new(Arc::clone(&env.clock), || is_cut_off);
            let begun = env.clock.monotonic();
            assert_eq!(ending.step("nothing", ready(1)).await, Some(1));
            let endless = ending.step("what never ends", pending::<()>());
            let ended = within_a_minute(&clock, endless).await;
            assert_eq!(ended, is_cut_off.then_some(None));
            if is_cut_off {
                let took = env.clock.monotonic() - begun;
                assert!(
                    took >= CUT_OFF_MAX && took <= CUT_OFF_MAX + LOOK,
                    "{took:?}"
                );
                // Work that needs no waiting is still done.
                assert_eq!(ending.step("something", ready(2)).await, Some(2));
            }
        }
    }
}
