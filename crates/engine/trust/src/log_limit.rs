//! Limits the log lines that an unauthorized client can cause.
//!
//! Owns: how many lines of a kind are logged in an interval.
//! Must not know: what the kinds are.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Clock;
use parking_lot::Mutex;

/// Lines of one kind are counted for so long.
const INTERVAL: Duration = Duration::from_secs(5);

/// Admits lines of one kind to the log, one in each interval.
pub(crate) struct LogLimit {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Duration>,
    silent_count: u64,
}

impl LogLimit {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    /// Logs that something of a peer was refused, unless another one was just logged.
    pub(crate) fn refused(&self, peer: SocketAddr, what: &str, reason: &dyn Display) {
        if let Some(more) = self.admitted() {
            tracing::warn!(%peer, more, "{what} refused: {reason}");
        }
    }

    /// How many were left out since the last one, if a line may be logged now.
    pub(crate) fn admitted(&self) -> Option<u64> {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        if state
            .last
            .is_some_and(|last| now.saturating_sub(last) < INTERVAL)
        {
            state.silent_count += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.silent_count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_testkit::TestWorld;

    #[test]
    fn a_flood_is_one_line_an_interval() {
        let world = TestWorld::new(1);
        let limit = LogLimit::new(Arc::clone(&world.env.clock));
        assert_eq!(limit.admitted(), Some(0));
        world.clock.advance(INTERVAL / 2);
        for _ in 0..1000 {
            assert_eq!(limit.admitted(), None);
        }
        world.clock.advance(INTERVAL / 2);
        assert_eq!(limit.admitted(), Some(1000));
    }
}
