//! When a disk that was given up because it did not answer is asked again, and when it is taken back.
//!
//! Owns: how long such a disk is let alone, and what it must do to be used again.
//! Must not know: how it is asked, how it is taken back (`disk_changes`), who decides that a disk is given up ([`crate::judge`]).
//!
//! ```text
//!            given up                  its pause is over, and nothing of before is under way
//!  (in use) ---------> Waits(good 0) --------------------------------------------------------> Asked
//!                        ^  ^  an answer in time: Waits(good + 1), 1 s                           |  |
//!                        |  +--------------------------------------------------------------------+  |
//!                        |     an error, or no answer in time: Waits(good 0), a longer pause     |  |
//!                        +-----------------------------------------------------------------------+  |
//!                        |  it cannot be taken back              the last answer that was needed    |
//!                        +------------------------------ Proven <-----------------------------------+
//!                                                          | it is taken back
//!                                                          v
//!                                                         Back, until it is given up again
//! ```
//!
//! The pauses double with each failure, and with each time that the disk is given up soon after it was taken back: a disk that
//! hangs by turns would else have its data rebuilt, and the pool's verdict change, again and again.

use std::time::Duration;

/// A disk that is given up is let alone for so long at first,
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// and for no longer than this, however often it failed.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Between answers of a disk that is proving itself.
const PROOF_PAUSE: Duration = Duration::from_secs(1);
/// So many answers in a row, each in time, prove that it works.
const PROOFS: u32 = 5;
/// Who was in use for so long since is given up as if for the first time.
const CALM_AFTER: Duration = Duration::from_secs(3600);

/// Where a disk is on its way back. Times are of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is not asked before `at`; so many answers in a row were good.
    Waits { at: Duration, good: u32 },
    /// It is asked, and has not answered yet.
    Asked { good: u32 },
    /// It has proven itself, and is not taken back yet.
    Proven,
    /// It is in use since.
    Back { since: Duration },
}

/// The state of a disk that was given up because it did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comeback {
    stage: Stage,
    /// How often it was given up soon after it had been taken back.
    falls: u32,
    /// How often it failed to prove itself since it was given up.
    failures: u32,
}

impl Comeback {
    /// Of a disk that is given up now; `before`: what is known of the last time.
    pub fn of_given_up(now: Duration, before: Option<&Self>) -> Self {
        let falls = match before {
            None => 0,
            Some(before) => match before.stage {
                Stage::Back { since } if now.saturating_sub(since) >= CALM_AFTER => 0,
                _ => before.falls.saturating_add(1),
            },
        };
        let mut comeback = Self {
            stage: Stage::Proven,
            falls,
            failures: 0,
        };
        comeback.rest(now);
        comeback
    }

    /// Whether the disk is to be asked now; then it is. `is_idle`: nothing that it was asked before is under way, which may land at
    /// any time.
    pub fn begin(&mut self, now: Duration, is_idle: bool) -> bool {
        match self.stage {
            Stage::Waits { at, good } if now >= at && is_idle => {
                self.stage = Stage::Asked { good };
                true
            }
            _ => false,
        }
    }

    /// How it answered; an answer that came too late is not good.
    pub fn note_answer(&mut self, now: Duration, is_good: bool) {
        let Stage::Asked { good } = self.stage else {
            return;
        };
        match (is_good, good.saturating_add(1)) {
            (true, good) if good >= PROOFS => self.stage = Stage::Proven,
            (true, good) => {
                let at = now.saturating_add(PROOF_PAUSE);
                self.stage = Stage::Waits { at, good };
            }
            (false, _) => self.fail(now),
        }
    }

    /// Whether it is to be taken back.
    pub fn is_proven(&self) -> bool {
        self.stage == Stage::Proven
    }

    /// It could not be taken back although it had proven itself.
    pub fn note_refused(&mut self, now: Duration) {
        if self.is_proven() {
            self.fail(now);
        }
    }

    /// It was taken back, by itself or by an operator.
    pub fn note_taken(&mut self, now: Duration) {
        self.stage = Stage::Back { since: now };
    }

    fn fail(&mut self, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.rest(now);
    }

    fn rest(&mut self, now: Duration) {
        let doublings = self.falls.saturating_add(self.failures);
        let factor = 2_u32.saturating_pow(doublings);
        let pause = PAUSE_MIN.saturating_mul(factor).min(PAUSE_MAX);
        let at = now.saturating_add(pause);
        self.stage = Stage::Waits { at, good: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next step with the disk.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// So many seconds pass in which it is not asked, although it could be.
        Quiet(u64),
        /// So many pass in which something is under way there: it is not asked.
        Busy(u64),
        /// It is asked in the next second, and answers well, or not.
        Asked(bool),
        /// It has proven itself, or has not.
        Proven(bool),
        Taken,
        Refused,
        /// It is given up again.
        GivenUp,
    }

    use Step::{Asked, Busy, GivenUp, Proven, Quiet, Refused, Taken};

    /// Plays the steps on a disk that was given up just now, one glance each second.
    fn play(name: &str, steps: &[Step]) {
        let mut now = Duration::from_secs(100);
        let mut disk = Comeback::of_given_up(now, None);
        for (index, step) in steps.iter().enumerate() {
            let at = format!("{name}, step {index}: {step:?} with {disk:?}");
            match *step {
                Quiet(seconds) => {
                    for _ in 0..seconds {
                        now += Duration::from_secs(1);
                        assert!(!disk.begin(now, true), "{at}");
                    }
                }
                Busy(seconds) => {
                    for _ in 0..seconds {
                        now += Duration::from_secs(1);
                        assert!(!disk.begin(now, false), "{at}");
                    }
                }
                Asked(is_good) => {
                    now += Duration::from_secs(1);
                    assert!(disk.begin(now, true), "{at}");
                    assert!(!disk.begin(now, true), "{at}: one at a time");
                    disk.note_answer(now, is_good);
                }
                Proven(is_proven) => assert_eq!(disk.is_proven(), is_proven, "{at}"),
                Taken => disk.note_taken(now),
                Refused => disk.note_refused(now),
                GivenUp => disk = Comeback::of_given_up(now, Some(&disk)),
            }
        }
    }

    /// As many good answers as prove a disk.
    const PROOF: [Step; 5] = [Asked(true); 5];

    fn steps(parts: &[&[Step]]) -> Vec<Step> {
        parts.concat()
    }

    #[test]
    fn a_disk_comes_back_when_it_has_proven_itself() {
        let cases: [(&str, Vec<Step>); 7] = [
            (
                "it works again at once",
                steps(&[
                    &[Quiet(4)],
                    &PROOF[1..],
                    &[Proven(false), Asked(true), Proven(true)],
                ]),
            ),
            (
                "what it was asked before is waited for, however long",
                steps(&[&[Busy(1000)], &PROOF, &[Proven(true)]]),
            ),
            (
                "one answer that is not good, and it begins anew, later",
                steps(&[
                    &[Quiet(4)],
                    &PROOF[1..],
                    &[Asked(false), Quiet(9)],
                    &PROOF,
                    &[Proven(true)],
                ]),
            ),
            (
                "the pauses double, up to a limit",
                steps(&[
                    &[
                        Quiet(4),
                        Asked(false),
                        Quiet(9),
                        Asked(false),
                        Quiet(19),
                        Asked(false),
                    ],
                    &[
                        Quiet(39),
                        Asked(false),
                        Quiet(79),
                        Asked(false),
                        Quiet(159),
                        Asked(false),
                    ],
                    &[
                        Quiet(319),
                        Asked(false),
                        Quiet(599),
                        Asked(false),
                        Quiet(599),
                        Asked(false),
                    ],
                ]),
            ),
            (
                "it cannot be taken back, and is asked again later",
                steps(&[
                    &[Quiet(4)],
                    &PROOF,
                    &[Proven(true), Refused, Proven(false), Quiet(9)],
                    &PROOF,
                ]),
            ),
            (
                "it hangs by turns, and is let alone for longer each time",
                steps(&[
                    &[Quiet(4)],
                    &PROOF,
                    &[Taken, Proven(false), Quiet(60), GivenUp, Quiet(9)],
                    &PROOF,
                    &[Taken, Quiet(60), GivenUp, Quiet(19)],
                    &PROOF,
                    &[Proven(true)],
                ]),
            ),
            (
                "it was well for long, and begins anew",
                steps(&[
                    &[Quiet(4)],
                    &PROOF,
                    &[Taken, Quiet(60), GivenUp, Quiet(9)],
                    &PROOF,
                    &[Taken, Quiet(3600), GivenUp, Quiet(4)],
                    &PROOF,
                    &[Proven(true)],
                ]),
            ),
        ];
        for (name, steps) in cases {
            play(name, &steps);
        }
    }

    #[test]
    fn an_answer_that_nobody_asked_for_changes_nothing() {
        let now = Duration::from_secs(100);
        let mut disk = Comeback::of_given_up(now, None);
        let before = disk;
        disk.note_answer(now, true);
        disk.note_refused(now);
        assert_eq!(disk, before);
        // An operator took it back while it was asked.
        assert!(disk.begin(now + PAUSE_MIN, true));
        disk.note_taken(now + PAUSE_MIN);
        let taken = disk;
        disk.note_answer(now + PAUSE_MIN, true);
        disk.note_answer(now + PAUSE_MIN, false);
        assert_eq!(disk, taken);
        assert!(!disk.begin(now + PAUSE_MAX, true));
    }
}
