//! The minimum speed of a client that sends or takes bytes.
//!
//! Owns: the bytes that must move while the server waits. Must not know: the contents.

use std::time::Duration;

use crate::body::STALL_MAX;

/// So many bytes must move in [`STALL_MAX`] of waiting, or the connection ends: a client that sends a byte now and
/// then would occupy a place for ever. NFS has an equal limit.
pub const PACE_LEN_BYTES_MIN: u64 = 32 << 10;

/// The bytes that moved while the server waited. Time in which the server itself is busy, or applies a limit of its
/// own, does not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    waited: Duration,
    moved_bytes: u64,
    /// Since the last byte.
    silent: Duration,
}

impl Pace {
    /// The time to wait before the next check.
    pub fn left(&self) -> Duration {
        STALL_MAX.saturating_sub(self.waited.max(self.silent))
    }

    /// Counts a wait, and the bytes that came or went in it. `false`: the client is too slow.
    #[must_use]
    pub fn note(&mut self, waited: Duration, len_bytes: u64) -> bool {
        self.waited += waited;
        self.moved_bytes = self.moved_bytes.saturating_add(len_bytes);
        self.silent = match len_bytes {
            0 => self.silent + waited,
            _ => Duration::ZERO,
        };
        if self.silent >= STALL_MAX {
            return false;
        }
        if self.waited < STALL_MAX {
            return true;
        }
        let keeps_up = self.moved_bytes >= PACE_LEN_BYTES_MIN;
        (self.waited, self.moved_bytes) = (Duration::ZERO, 0);
        keeps_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_too_slowly_is_given_up() {
        let second = Duration::from_secs(1);
        let part = PACE_LEN_BYTES_MIN / 60;
        for (name, waited, len_bytes, want) in [
            ("nothing", STALL_MAX, 0, false),
            ("all but nothing", STALL_MAX, PACE_LEN_BYTES_MIN - 1, false),
            ("just enough", STALL_MAX, PACE_LEN_BYTES_MIN, true),
            ("not waited for", Duration::ZERO, 1, true),
            ("a while", STALL_MAX - second, 0, true),
        ] {
            assert_eq!(Pace::default().note(waited, len_bytes), want, "{name}");
        }
        // A byte now and then is too slow, a steady trickle is not; and each minute counts by itself.
        let mut slow = Pace::default();
        assert!((0..5).all(|_| slow.note(10 * second, 1)) && !slow.note(10 * second, 1));
        let mut steady = Pace::default();
        assert!((0..600).all(|_| steady.note(second, part + 1)));
        let mut quick = Pace::default();
        assert!(quick.note(Duration::ZERO, u64::MAX) && quick.note(STALL_MAX, 1));
        assert_eq!(quick.left(), STALL_MAX);
        assert!(!quick.note(STALL_MAX, 1));
        // Earlier bytes are no credit for silence.
        let mut silent = Pace::default();
        assert!(silent.note(30 * second, u64::MAX) && silent.note(40 * second, 0));
        assert_eq!(silent.left(), 20 * second);
        assert!(!silent.note(20 * second, 0));
    }
}
