//! Whether a disk is counted on, from one glance at it to the next.
//!
//! Owns: when a disk is doubted, and what it must do to be counted on again.
//! Must not know: how its answers are counted; whether it is faulted ([`crate::judge`]); what follows from a doubt.
//!
//! A doubt costs nothing but other places for new data, so it comes at once. It stays until the disk has proven itself: one that
//! answers now and then would else count as lost and as well by turns, and take part of everything in between.

use std::time::Duration;

use super::answers::Changes;

/// A disk is counted on again when it has answered all for so long,
const PROOF_AFTER: Duration = Duration::from_secs(3);
/// and so many changes, of which probes make one each second and read it back.
const PROOF_CHANGES: u64 = 3;
/// A disk that is doubted again within so long since has to prove itself for twice as long as the last time,
const CALM_AFTER: Duration = Duration::from_secs(120);
/// up to so many times. Else one that hangs by turns would count as lost and as well by turns.
const DOUBLINGS_MAX: u32 = 4;

/// What one glance finds of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeResult {
    /// It has had no answer for something for too long.
    pub is_silent: bool,
    /// The last probe failed.
    pub probe_failed: bool,
    /// Since it was opened.
    pub changes: Changes,
    /// Of all operations since it was opened, those that failed.
    pub errors: u64,
}

/// The doubts about one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    pub is_silent: bool,
    pub is_failing: bool,
    /// As counted at the last glance.
    change_errors: u64,
    errors: u64,
    /// When there was reason for doubt last, and how many changes had gone well by then.
    since: Duration,
    good: u64,
    /// When it was counted on again last; `None`: it was not doubted before.
    well_since: Option<Duration>,
    /// So often the time in which it has to prove itself is doubled.
    doublings: u32,
}

impl Doubt {
    /// Whether it is not counted on.
    pub fn is_any(&self) -> bool {
        self.is_silent || self.is_failing
    }

    /// For how long it has to answer everything before it is counted on again.
    fn proof_after(&self) -> Duration {
        PROOF_AFTER.saturating_mul(2_u32.saturating_pow(self.doublings))
    }

    pub fn glance(&mut self, now: Duration, seen: &ProbeResult) {
        let was_doubted = self.is_any();
        let failed = seen.changes.errors > self.change_errors || seen.probe_failed;
        // Reads that fail are a matter of single places, and keep a disk that is doubted from being taken for well.
        let has_reason = seen.is_silent || failed || seen.errors > self.errors;
        self.change_errors = seen.changes.errors;
        self.errors = seen.errors;
        self.is_silent |= seen.is_silent;
        self.is_failing |= failed;
        if self.is_any() && !was_doubted {
            let is_soon = |since: Duration| now.saturating_sub(since) < CALM_AFTER;
            self.doublings = match self.well_since.is_some_and(is_soon) {
                true => self.doublings.saturating_add(1).min(DOUBLINGS_MAX),
                false => 0,
            };
        }
        if has_reason {
            self.since = now;
            self.good = seen.changes.good;
            return;
        }
        // One that was taken back is counted anew, and has to prove itself all the same.
        self.good = self.good.min(seen.changes.good);
        let good = seen.changes.good.saturating_sub(self.good);
        let is_proven =
            now.saturating_sub(self.since) >= self.proof_after() && good >= PROOF_CHANGES;
        if is_proven && was_doubted {
            self.is_silent = false;
            self.is_failing = false;
            self.well_since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLANCE: Duration = Duration::from_millis(250);

    /// The evidence at each glance, for so many glances: silent, changes that went well and that failed, reads that failed.
    type Row = (u32, bool, u64, u64, u64);

    /// The evidence, and the doubts after each row: silent, failing.
    type Case<'a> = (&'a str, &'a [Row], &'a [(bool, bool)]);

    /// The doubts about the disk after each row: silent, failing.
    fn thought(rows: &[Row]) -> Vec<(bool, bool)> {
        let mut doubt = Doubt::default();
        let mut now = Duration::from_secs(100);
        let mut seen = ProbeResult::default();
        let mut thought = Vec::new();
        for (glances, is_silent, good, failed, reads_failed) in rows {
            for _ in 0..*glances {
                now += GLANCE;
                seen.is_silent = *is_silent;
                seen.changes.good += good;
                seen.changes.errors += failed;
                seen.errors += failed + reads_failed;
                doubt.glance(now, &seen);
            }
            thought.push((doubt.is_silent, doubt.is_failing));
        }
        thought
    }

    #[test]
    fn a_doubt_comes_at_once_and_stays_until_the_disk_has_proven_itself() {
        let (fine, silent, failing) = ((false, false), (true, false), (false, true));
        let cases: [Case<'_>; 10] = [
            ("well", &[(100, false, 1, 0, 0)], &[fine]),
            ("idle", &[(100, false, 0, 0, 0)], &[fine]),
            (
                "it hangs, answers again, and proves itself",
                &[
                    (1, true, 0, 0, 0),
                    (11, false, 1, 0, 0),
                    (1, false, 1, 0, 0),
                ],
                &[silent, silent, fine],
            ),
            (
                "it answers again, and nothing was written since",
                &[
                    (1, true, 0, 0, 0),
                    (100, false, 0, 0, 0),
                    (3, false, 1, 0, 0),
                ],
                &[silent, silent, fine],
            ),
            (
                "it hangs by turns",
                &[
                    (1, true, 0, 0, 0),
                    (11, false, 9, 0, 0),
                    (1, true, 0, 0, 0),
                    (11, false, 9, 0, 0),
                ],
                &[silent; 4],
            ),
            (
                "one write fails, and then it takes all",
                &[
                    (1, false, 5, 1, 0),
                    (11, false, 5, 0, 0),
                    (1, false, 5, 0, 0),
                ],
                &[failing, failing, fine],
            ),
            (
                "it hangs again soon, and has to prove itself for twice as long",
                &[
                    (1, true, 0, 0, 0),
                    (12, false, 1, 0, 0),
                    (1, true, 0, 0, 0),
                    (23, false, 1, 0, 0),
                    (1, false, 1, 0, 0),
                ],
                &[silent, fine, silent, silent, fine],
            ),
            (
                "it hangs again after it was well for long",
                &[
                    (1, true, 0, 0, 0),
                    (12, false, 1, 0, 0),
                    (480, false, 1, 0, 0),
                    (1, true, 0, 0, 0),
                    (12, false, 1, 0, 0),
                ],
                &[silent, fine, fine, silent, fine],
            ),
            ("only reads fail", &[(100, false, 1, 0, 1)], &[fine]),
            (
                "a disk that is doubted must read, too",
                &[
                    (1, false, 0, 1, 0),
                    (100, false, 1, 0, 1),
                    (12, false, 1, 0, 0),
                ],
                &[failing, failing, fine],
            ),
        ];
        for (name, rows, want) in cases {
            assert_eq!(thought(rows), want, "{name}");
        }
    }

    #[test]
    fn a_disk_that_is_counted_anew_has_to_prove_itself() {
        let mut doubt = Doubt::default();
        let mut seen = ProbeResult {
            is_silent: true,
            errors: 50,
            ..ProbeResult::default()
        };
        seen.changes.good = 1000;
        seen.changes.errors = 50;
        doubt.glance(GLANCE, &seen);
        let mut seen = ProbeResult::default();
        let mut now = GLANCE;
        for glances in 0..100 {
            now += GLANCE;
            doubt.glance(now, &seen);
            assert!(doubt.is_silent && doubt.is_failing, "{glances}");
        }
        seen.changes.good = PROOF_CHANGES;
        doubt.glance(now, &seen);
        assert!(!doubt.is_any());
    }

    #[test]
    fn a_probe_that_fails_is_reason_enough() {
        let mut doubt = Doubt::default();
        let mut seen = ProbeResult {
            probe_failed: true,
            ..ProbeResult::default()
        };
        doubt.glance(GLANCE, &seen);
        assert!(doubt.is_failing && doubt.is_any());
        seen.probe_failed = false;
        seen.changes.good = PROOF_CHANGES;
        doubt.glance(GLANCE + PROOF_AFTER, &seen);
        assert_eq!((doubt.is_silent, doubt.is_failing), (false, false));
    }
}
