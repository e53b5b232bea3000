//! Limits the log lines that a client can cause.
//!
//! Owns: how many lines of a kind are logged in an interval.
//! Must not know: what the kinds are.
//!
//! The interval is by the clock of the process, and not by that of `Env`: which lines a log has is nothing that is simulated,
//! and a limit can be a `static`.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lines of one kind are counted for so long.
const INTERVAL: Duration = Duration::from_secs(5);

/// Admits lines of one kind to the log, the first few of each interval.
pub struct LogLimit {
    line_count_max: u32,
    /// When the interval began, and the lines since.
    interval: Mutex<Option<(Instant, u32)>>,
    silent_count: AtomicU64,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new(1)
    }
}

impl LogLimit {
    /// Admits at most so many lines in an interval.
    #[must_use]
    pub const fn new(line_count_max: u32) -> Self {
        Self {
            line_count_max,
            interval: Mutex::new(None),
            silent_count: AtomicU64::new(0),
        }
    }

    /// How many were left out since the last one, if a line may be logged now.
    pub fn admitted(&self) -> Option<u64> {
        self.admit(Instant::now())
    }

    /// Logs that `what` of this client was refused, unless another one was just logged.
    pub fn refused(&self, peer: SocketAddr, what: &str, reason: &dyn Display) {
        if let Some(more) = self.admitted() {
            tracing::warn!(%peer, more, "{what} refused: {reason}");
        }
    }

    fn admit(&self, now: Instant) -> Option<u64> {
        let mut interval = self.interval.lock();
        let (began, lines) = match *interval {
            Some((began, lines)) if now.duration_since(began) < INTERVAL => (began, lines),
            _ => (now, 0),
        };
        if lines >= self.line_count_max {
            self.silent_count.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *interval = Some((began, lines + 1));
        Some(self.silent_count.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_an_interval() {
        let quiet = LogLimit::default();
        let start = Instant::now();
        assert_eq!(quiet.admit(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(quiet.admit(start + INTERVAL / 2), None);
        }
        assert_eq!(quiet.admit(start + INTERVAL), Some(1000));
    }

    #[test]
    fn the_first_few_lines_of_an_interval_are_admitted() {
        let quiet = LogLimit::new(3);
        let start = Instant::now();
        for round in 0..3 {
            let now = start + INTERVAL * round;
            let admitted: Vec<_> = (0..10).filter_map(|_| quiet.admit(now)).collect();
            assert_eq!(admitted, [if round == 0 { 0 } else { 7 }, 0, 0]);
        }
    }
}
