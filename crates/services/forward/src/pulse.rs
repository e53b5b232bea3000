//! Whether this process ran all the time.
//!
//! Owns: noticing that it stood still, by a clock that counts suspended time. Must not know: what follows from that.
//!
//! Bytes that arrived while a process stood still wait in its sockets. Their clients may have sent the same call through
//! another node meanwhile, and newer ones after it. So each reader of a client's bytes asks [`Pulse::generation`] between the
//! reading and the execution. The first to ask after a standstill notices it, whichever thread that is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::env::Clock;
use cairn_base::planted::{self, Bug};
use tokio::sync::watch;

use crate::FRESH_MAX;

pub struct Pulse {
    clock: Arc<dyn Clock>,
    /// When somebody last asked, in microseconds of the clock that counts suspended time.
    last_us: AtomicU64,
    /// How often the process stood still.
    generation: watch::Sender<u64>,
}

impl Pulse {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let last_us = AtomicU64::new(now_us(&*clock));
        Self {
            clock,
            last_us,
            generation: watch::Sender::new(0),
        }
    }

    /// A number that changes with each standstill. A reader with an earlier one drops the bytes that it has read.
    pub fn generation(&self) -> u64 {
        let now_us = now_us(&*self.clock);
        let last_us = self.last_us.fetch_max(now_us, Ordering::AcqRel);
        if now_us.saturating_sub(last_us) > FRESH_MAX.as_micros() as u64 {
            self.generation.send_modify(|generation| *generation += 1);
            let stood_still_ms = (now_us - last_us) / 1000;
            tracing::warn!(
                stood_still_ms,
                "this process stood still: closing client connections, because calls in them may be old"
            );
        }
        *self.generation.borrow()
    }

    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}

fn now_us(clock: &dyn Clock) -> u64 {
    let now = match planted::is(Bug::SuspensionIsNoStandstill) {
        true => clock.monotonic(),
        false => clock.boottime(),
    };
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_standstill_is_noticed_by_the_first_who_asks_and_counted_once() {
        let clock = cairn_testkit::ManualClock::default();
        let pulse = Pulse::new(Arc::new(clock.clone()));
        for (passes, want) in [
            (FRESH_MAX, 0),
            (FRESH_MAX, 0),
            (FRESH_MAX + Duration::from_millis(1), 1),
            (Duration::ZERO, 1),
            (FRESH_MAX, 1),
            (Duration::from_secs(3600), 2),
        ] {
            clock.advance(passes);
            assert_eq!(pulse.generation(), want);
        }
    }
}
