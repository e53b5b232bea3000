//! Decides whether the next group of the log waits a moment for clients that were just answered.
//!
//! Owns: the number of batches to wait for, and whether the wait pays. Must not know: time, the way to wait.
//!
//! Clients that send one change after the other submit again 50 to 100 us after an answer. Without a wait, two sets of
//! clients alternate: the changes that arrived during one write go into the next group, without the clients that were
//! just answered. Four such clients made groups of 1.6 batches. A single client never waits.

use cairn_base::looking::Trust;

/// With so many waiting batches, groups are large without a wait.
const GATHERED_COUNT_MAX: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// Number of batches in the last group, plus those that waited when it became durable.
    expected_count: usize,
    trust: Trust,
}

impl Gathering {
    /// Notes that a group of `count` batches is durable, and that `waiting_count` batches arrived meanwhile.
    pub fn note_group(&mut self, count: usize, waiting_count: usize) {
        self.expected_count = count + waiting_count;
    }

    /// The number of batches worth waiting for, while `waiting_count` are here; `None` if a wait does not pay.
    pub fn wanted(&mut self, waiting_count: usize) -> Option<usize> {
        let is_few = (2..=GATHERED_COUNT_MAX).contains(&self.expected_count);
        let misses_some = (1..self.expected_count).contains(&waiting_count);
        (is_few && misses_some && self.trust.looks()).then_some(self.expected_count)
    }

    /// Notes whether all expected batches came in time.
    pub fn note(&mut self, is_complete: bool) {
        self.trust.note(is_complete);
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::looking::{TRUST_LOST, TRUST_MAX};

    use super::*;

    #[test]
    fn those_of_the_last_group_are_waited_for() {
        // Batches of the last group, batches that arrived meanwhile, batches here now, and the number to wait for.
        let cases = [
            ("one alone", 1, 0, 1, None),
            ("two in turn", 1, 1, 1, Some(2)),
            ("two, both there", 1, 1, 2, None),
            ("four", 2, 2, 3, Some(4)),
            ("nobody has come yet", 4, 0, 0, None),
            ("the most", 4, 4, 7, Some(8)),
            ("one more", 5, 4, 7, None),
            ("more than before", 2, 0, 5, None),
        ];
        for (name, count, waiting, now, want) in cases {
            let mut gathering = Gathering::default();
            gathering.note_group(count, waiting);
            assert_eq!(gathering.wanted(now), want, "{name}");
        }
        assert_eq!(Gathering::default().wanted(1), None, "the first group");
    }

    #[test]
    fn who_does_not_come_is_waited_for_no_more() {
        let mut gathering = Gathering::default();
        let mut waits = 0;
        for _ in 0..TRUST_MAX / TRUST_LOST + 10 {
            gathering.note_group(1, 1);
            if gathering.wanted(1).is_some() {
                gathering.note(false);
                waits += 1;
            }
        }
        assert_eq!(waits, TRUST_MAX / TRUST_LOST);
    }
}
