//! Pauses between tries that grow, so that an operation that cannot succeed now costs little.
//!
//! Owns: how long the next pause is. Must not know: what is tried, how time passes.

use std::time::Duration;

/// Each pause is twice as long as the one before, up to a longest one.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// How long to wait before the next try.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// A try succeeded: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_begin_anew() {
        let ms = Duration::from_millis;
        let cases: &[(&str, Duration, Duration, [u64; 4])] = &[
            ("doubles", ms(10), ms(1000), [10, 20, 40, 80]),
            ("stops at the longest", ms(10), ms(25), [10, 20, 25, 25]),
            (
                "the first is no longer than the longest",
                ms(30),
                ms(25),
                [25, 25, 25, 25],
            ),
        ];
        for (name, first, longest, pauses) in cases {
            let mut backoff = Backoff::new(*first, *longest);
            for _ in 0..2 {
                let got = [(); 4].map(|()| backoff.pause());
                assert_eq!(got, pauses.map(ms), "{name}");
                backoff.reset();
            }
        }
    }
}
