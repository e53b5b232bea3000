//! How long what is under way has been so.
//!
//! Owns: counts by the tick in which something began. Must not know: what it is, or when it takes too long.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Ticks whose counts are kept apart; what is under way longer is counted together.
const SLOTS: usize = 256;
/// How exactly it is told when something began.
const TICK: Duration = Duration::from_millis(250);

/// Ages up to this are told apart.
pub const AGE_MAX: Duration = Duration::from_secs(60);
const _: () = assert!(AGE_MAX.as_millis() / TICK.as_millis() < SLOTS as u128);

/// A tick, in the upper half, and how much of what began in it is under way. Both change in one step.
#[derive(Clone, Copy)]
struct Slot(u64);

impl Slot {
    fn new(tick: u32, count: u32) -> Self {
        Self(u64::from(tick) << 32 | u64::from(count))
    }

    fn tick(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn count(self) -> u32 {
        self.0 as u32
    }
}

/// Operations under way, by age.
///
/// A tick takes the slot of the one before it that had this slot; what is still under way of that one goes to `old`.
pub struct Ages {
    slots: [AtomicU64; SLOTS],
    /// Below zero for a moment at most.
    old: AtomicI64,
}

impl Ages {
    pub fn new() -> Self {
        Self {
            slots: [const { AtomicU64::new(0) }; SLOTS],
            old: AtomicI64::new(0),
        }
    }

    /// Counts what begins at `at`, a time of the monotonic clock. [`Self::end`] takes the same.
    pub fn begin(&self, at: Duration) {
        let tick = tick_of(at);
        let slot = self.slot(tick);
        let mut seen = Slot(slot.load(Ordering::Acquire));
        loop {
            if seen.tick() > tick {
                // This thread was stopped for so long that a later tick has the slot.
                self.old.fetch_add(1, Ordering::AcqRel);
                return;
            }
            let (left, count) = match seen.tick() == tick {
                true => (0, seen.count()),
                false => (i64::from(seen.count()), 0),
            };
            // Before it leaves the slot, so that nobody misses it in between.
            if left > 0 {
                self.old.fetch_add(left, Ordering::AcqRel);
            }
            let next = Slot::new(tick, count.saturating_add(1));
            let (done, fail) = (Ordering::AcqRel, Ordering::Acquire);
            match slot.compare_exchange(seen.0, next.0, done, fail) {
                Ok(_) => return,
                Err(other) => seen = Slot(other),
            }
            if left > 0 {
                self.old.fetch_sub(left, Ordering::AcqRel);
            }
        }
    }

    /// What began at `at` is over.
    pub fn end(&self, at: Duration) {
        let tick = tick_of(at);
        let ended = |seen: u64| {
            let seen = Slot(seen);
            let is_there = seen.tick() == tick;
            is_there.then(|| Slot::new(tick, seen.count().saturating_sub(1)).0)
        };
        let slot = self.slot(tick);
        if slot
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, ended)
            .is_err()
        {
            self.old.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether something is under way that began in a tick before that of `at`, which is at most `SLOTS` ticks ago.
    pub fn any_before(&self, at: Duration) -> bool {
        let tick = tick_of(at);
        let mut slots = self.slots.iter();
        let is_before = |slot: &AtomicU64| {
            let slot = Slot(slot.load(Ordering::Acquire));
            slot.count() > 0 && slot.tick() < tick
        };
        slots.any(is_before) || self.old.load(Ordering::Acquire) > 0
    }

    fn slot(&self, tick: u32) -> &AtomicU64 {
        &self.slots[tick as usize % SLOTS]
    }
}

/// Of the monotonic clock, which begins at the start of the machine: it lasts for 34 years.
fn tick_of(at: Duration) -> u32 {
    (at.as_millis() / TICK.as_millis()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_under_way_is_known_however_old() {
        for later in [1, 63, 64, 65, 128, 4096, 100_000] {
            let ages = Ages::new();
            ages.begin(at(100));
            assert!(!ages.any_before(at(100)));
            // Others come and go meanwhile, one of them in the same slot.
            for second in 100..100 + later {
                ages.begin(at(second));
                ages.end(at(second));
            }
            ages.begin(at(100 + later));
            assert!(ages.any_before(at(101)), "{later}");
            ages.end(at(100));
            assert!(!ages.any_before(at(100 + later)), "{later}");
            assert!(ages.any_before(at(101 + later)), "{later}");
            ages.end(at(100 + later));
            assert!(!ages.any_before(at(200_000)), "{later}");
        }
    }

    /// Between the look at the clock and the count another thread may have had a later tick.
    #[test]
    fn a_begin_that_comes_late_counts_as_old() {
        let ages = Ages::new();
        ages.begin(at(164));
        ages.begin(at(100));
        assert!(ages.any_before(at(101)));
        ages.end(at(100));
        assert!(!ages.any_before(at(164)));
        ages.end(at(164));
        assert!(!ages.any_before(at(165)));
    }

    #[test]
    fn threads_lose_no_count() {
        let ages = Ages::new();
        std::thread::scope(|scope| {
            for first in 0..4 {
                let ages = &ages;
                scope.spawn(move || {
                    // Two ticks of one slot in turn: each takes it from the other.
                    for round in 0..20_000 {
                        let begun = at(first + round);
                        ages.begin(begun);
                        ages.begin(begun + at(64));
                        ages.end(begun);
                        ages.end(begun + at(64));
                    }
                });
            }
        });
        assert!(!ages.any_before(at(1_000_000)));
        assert_eq!(ages.old.into_inner(), 0);
    }
}
