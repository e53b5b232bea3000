//! Which unstable writes a server still has to account for.
//!
//! Owns: the rule of RFC 1813, sections 3.3.7 and 3.3.21: data is safe when COMMIT answers with the
//! verifier that the WRITE answered with, and must be sent again otherwise.
//! Must not know: where the data is, or how it is sent.

use std::ops::Range;

use cairn_codec_nfs::v3::{StableHow, WriteVerifier};

use crate::client::Written;
use crate::error::Error;

/// Rounds of writing the same data before it is an error. A server that restarts now and then
/// needs two; one that changes its verifier all the time is broken.
pub const ROUND_COUNT_MAX: u32 = 8;

/// The unstable writes of one file since its last COMMIT.
#[derive(Debug, Default)]
pub struct Uncommitted {
    /// Sorted by nothing; at most one per write.
    writes: Vec<(Range<u64>, WriteVerifier)>,
    rounds: u32,
}

/// What to do after a COMMIT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    Safe,
    /// These ranges were lost: write them again, then COMMIT again.
    Resend(Vec<Range<u64>>),
}

impl Uncommitted {
    /// Notes what a WRITE at `offset` answered.
    pub fn wrote(&mut self, offset: u64, written: &Written) {
        if written.committed == StableHow::Unstable {
            let end = offset.saturating_add(u64::from(written.count_bytes));
            self.writes.push((offset..end, written.verifier));
        }
    }

    /// Adds the writes that another account of the same file noted.
    pub fn merge(&mut self, other: Self) {
        self.writes.extend(other.writes);
    }

    /// Whether nothing needs a COMMIT.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Settles the account with what a COMMIT of all of it answered.
    pub fn committed(&mut self, verifier: WriteVerifier) -> Result<Round, Error> {
        let mut lost: Vec<Range<u64>> = self
            .writes
            .drain(..)
            .filter(|(_, written)| *written != verifier)
            .map(|(range, _)| range)
            .collect();
        if lost.is_empty() {
            self.rounds = 0;
            return Ok(Round::Safe);
        }
        self.rounds += 1;
        if self.rounds >= ROUND_COUNT_MAX {
            return Err(Error::NeverStable {
                rounds: self.rounds,
            });
        }
        lost.sort_unstable_by_key(|range| range.start);
        Ok(Round::Resend(lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(count_bytes: u32, committed: StableHow, verifier: u8) -> Written {
        Written {
            count_bytes,
            committed,
            verifier: [verifier; 8],
        }
    }

    #[test]
    fn data_is_safe_when_the_verifier_stayed() {
        use StableHow::*;
        type Case<'a> = (&'a str, &'a [(u64, StableHow, u8)], u8, Round);
        let cases: &[Case<'_>] = &[
            ("nothing", &[], 1, Round::Safe),
            (
                "same",
                &[(0, Unstable, 1), (10, Unstable, 1)],
                1,
                Round::Safe,
            ),
            (
                "restart between the writes",
                &[(10, Unstable, 1), (0, Unstable, 1), (20, Unstable, 2)],
                2,
                Round::Resend(vec![0..10, 10..20]),
            ),
            (
                "restart before the commit",
                &[(0, Unstable, 1)],
                2,
                Round::Resend(std::iter::once(0..10).collect()),
            ),
            (
                "stable anyway",
                &[(0, FileSync, 1), (10, DataSync, 1)],
                2,
                Round::Safe,
            ),
        ];
        for (name, writes, commit, want) in cases {
            let mut uncommitted = Uncommitted::default();
            for (offset, committed, verifier) in *writes {
                uncommitted.wrote(*offset, &written(10, *committed, *verifier));
            }
            let got = uncommitted.committed([*commit; 8]).expect(name);
            assert_eq!(got, *want, "{name}");
            assert!(uncommitted.is_empty());
        }
    }

    #[test]
    fn a_server_that_never_keeps_data_is_an_error() {
        let mut uncommitted = Uncommitted::default();
        for round in 1..=ROUND_COUNT_MAX {
            uncommitted.wrote(0, &written(1, StableHow::Unstable, 1));
            let got = uncommitted.committed([2; 8]);
            assert_eq!(got.is_err(), round == ROUND_COUNT_MAX, "{round}");
        }
    }
}
