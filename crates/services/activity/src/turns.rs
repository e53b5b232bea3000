//! The stretches of time that are counted by.
//!
//! Owns: which stretch it is, and when it and the one before began. Must not know: the counts.
//!
//! A report covers the stretch that is over and the one that is not: the last 5 to 10 seconds. So a count is exact and whole,
//! and it is gone 10 seconds later; an average that decays is neither.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// How long a stretch is.
pub const TURN: Duration = Duration::from_secs(5);

struct Began {
    current: Duration,
    previous: Duration,
}

pub(crate) struct Turns {
    number: AtomicU64,
    began: Mutex<Began>,
}

impl Turns {
    pub fn new(now: Duration) -> Self {
        Self {
            number: AtomicU64::new(1),
            began: Mutex::new(Began {
                current: now,
                previous: now,
            }),
        }
    }

    /// Which stretch it is now.
    #[inline]
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Ends a stretch that has been long enough; says whether it did.
    pub fn look(&self, now: Duration) -> bool {
        let mut began = self.began.lock();
        if now.saturating_sub(began.current) < TURN {
            return false;
        }
        // One that was longer, because nobody came to look, is told as long as it was.
        began.previous = began.current;
        began.current = now;
        self.number.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Which stretch it is, and for how long its counts and those of the one before go back.
    pub fn span(&self, now: Duration) -> (u64, Duration) {
        let began = self.began.lock();
        (self.number(), now.saturating_sub(began.previous))
    }
}
