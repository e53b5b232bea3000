//! Whether it pays to poll for the next event for a moment, before a thread sleeps.
//!
//! Owns: how far looking is trusted, how one looks. Must not know: what is looked for, and for how long.
//!
//! To wake a thread that sleeps takes 20 us and more on a virtual machine. A thread that looks instead keeps a processor busy. So it
//! looks as long as it finds something, and now and then to find out when that changes.

use std::time::{Duration, Instant};

/// With this much trust a thread looks each time.
pub const TRUST_MAX: u32 = 16;
/// What a look in vain costs of it; one that found something gives 1.
pub const TRUST_LOST: u32 = 2;
/// Without trust a thread looks once in so many times.
pub const PROBE_INTERVAL: u32 = 32;

/// How far looking is trusted to find something.
///
/// ```text
///          found: +1                in vain: -TRUST_LOST
///   0 <-------------------> 1 <---- ... ----> TRUST_MAX
///   looks once in           looks each time
///   PROBE_INTERVAL times
/// ```
#[derive(Debug)]
pub struct Trust {
    level: u32,
    /// How often it did not look since it did.
    skipped: u32,
}

impl Default for Trust {
    /// All trust there can be: a few looks in vain show soon that it is too much.
    fn default() -> Self {
        Self {
            level: TRUST_MAX,
            skipped: 0,
        }
    }
}

impl Trust {
    /// Whether to look this time.
    pub fn looks(&mut self) -> bool {
        if self.level > 0 {
            return true;
        }
        self.skipped += 1;
        if self.skipped < PROBE_INTERVAL {
            return false;
        }
        self.skipped = 0;
        true
    }

    /// What came of a look.
    pub fn note(&mut self, found: bool) {
        self.level = match found {
            true => (self.level + 1).min(TRUST_MAX),
            false => self.level.saturating_sub(TRUST_LOST),
        };
    }

    pub fn level(&self) -> u32 {
        self.level
    }
}

/// Looks again and again, for `most` at most, until something is there; says whether it is. Between two looks anybody else may have
/// the processor.
pub fn look(most: Duration, mut is_there: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    loop {
        if is_there() {
            return true;
        }
        if since.elapsed() >= most {
            return false;
        }
        std::thread::yield_now();
    }
}

/// Whether this machine has a processor to spare for it.
pub fn is_sensible() -> bool {
    std::thread::available_parallelism().is_ok_and(|count| count.get() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_end_the_looking_and_a_probe_brings_it_back() {
        let mut trust = Trust::default();
        let mut in_vain = 0;
        while trust.level() > 0 {
            assert!(trust.looks());
            trust.note(false);
            in_vain += 1;
        }
        assert_eq!(in_vain, TRUST_MAX / TRUST_LOST);
        let mut asked = 1;
        while !trust.looks() {
            asked += 1;
        }
        assert_eq!(asked, PROBE_INTERVAL);
        // In vain again: the next probe comes as late.
        trust.note(false);
        assert_eq!((1..=PROBE_INTERVAL).filter(|_| trust.looks()).count(), 1);
        trust.note(true);
        assert!(trust.looks(), "it found something");
    }

    #[test]
    fn a_look_ends_when_something_is_there_or_when_its_time_is_over() {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut looks = 0;
        let is_there = || {
            looks += 1;
            looks == 5
        };
        assert!(look(HOUR, is_there));
        assert_eq!(looks, 5);
        assert!(look(Duration::ZERO, || true), "it is looked at once");
        assert!(!look(Duration::from_micros(10), || false));
    }

    #[test]
    fn trust_has_a_limit() {
        let mut trust = Trust::default();
        for _ in 0..1000 {
            trust.note(true);
        }
        assert_eq!(trust.level(), TRUST_MAX);
    }
}
