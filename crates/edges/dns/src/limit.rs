//! How often one network is answered at length.
//!
//! Owns: the counts. Must not know: messages, sockets.
//!
//! The source of a datagram may be forged, and then its answer goes to somebody who did not ask. Of so many answers a second to one
//! network the further ones are no longer than their questions: nobody gains from having this server send them.

use std::net::IpAddr;
use std::time::Duration;

/// Answers at length to one network within a second. A resolver asks once in the time that it keeps an answer, for each name.
pub const ANSWERS_PER_SECOND_MAX: u16 = 50;
/// Networks share a count where their hashes are alike; so the table never grows.
const COUNTS: usize = 4096;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    second: u64,
    answers: u16,
}

#[derive(Debug)]
pub struct Limit {
    counts: Box<[Count]>,
    /// Drawn at the start, so that nobody can choose networks that share a count with another one.
    seed: u64,
}

/// A client's network: what one host can usually send from. /24 and /56.
fn network(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(v4) => u64::from(v4.to_bits() >> 8),
        IpAddr::V6(v6) => u64::try_from(v6.to_bits() >> 72).unwrap_or(0) | 1 << 63,
    }
}

impl Limit {
    pub fn new(seed: u64) -> Self {
        Self {
            counts: vec![Count::default(); COUNTS].into_boxed_slice(),
            seed,
        }
    }

    /// Counts a question of an address, and says whether its answer may be no longer than the question. `now` counts from any
    /// moment.
    pub fn is_over(&mut self, from: IpAddr, now: Duration) -> bool {
        let mixed = (network(from) ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x94d0_49bb_1331_11eb);
        let index = usize::try_from(mixed >> 40).unwrap_or(0) % COUNTS;
        let Some(count) = self.counts.get_mut(index) else {
            return true;
        };
        if count.second != now.as_secs() {
            *count = Count {
                second: now.as_secs(),
                answers: 0,
            };
        }
        count.answers = count.answers.saturating_add(1);
        count.answers > ANSWERS_PER_SECOND_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_is_limited_and_others_are_not() {
        let mut limit = Limit::new(7);
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let now = Duration::from_millis(1500);
        for _ in 0..ANSWERS_PER_SECOND_MAX {
            assert!(!limit.is_over(at("192.0.2.1"), now));
        }
        assert!(limit.is_over(at("192.0.2.99"), now), "the same network");
        assert!(
            limit.is_over(at("::ffff:192.0.2.5"), now),
            "written as IPv6"
        );
        assert!(!limit.is_over(at("198.51.100.1"), now));
        assert!(!limit.is_over(at("2001:db8::1"), now));
        assert!(
            !limit.is_over(at("192.0.2.1"), now + Duration::from_secs(1)),
            "the next second"
        );
    }
}
