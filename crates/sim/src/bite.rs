//! Proof that the simulator bites: after how many seeds it finds each planted bug.
//!
//! Owns: within how many seeds they have to be found. Needs the feature `planted-bugs`.

use cairn_base::planted::Bug;

/// Seeds, from the first on, within which every planted bug is found.
pub const SEEDS_MAX: u64 = 1000;

/// One planted bug, and how it was found.
#[derive(Clone, Debug)]
pub struct Bitten {
    pub bug: Bug,
    /// Seeds run, the one that found it included.
    pub seeds: u64,
    /// What failed; `None`: nothing did.
    pub failure: Option<String>,
}

/// Runs seeds from `from` on with the bug planted until one fails.
#[cfg(feature = "planted-bugs")]
pub fn bite(bug: Bug, from: u64, seeds_max: u64) -> Bitten {
    use crate::{Scenario, Verdict, run};
    cairn_base::planted::plant(Some(bug));
    let found = (0..seeds_max).find_map(|nth| {
        let report = run(&Scenario::from_seed(from + nth));
        match report.verdict {
            Verdict::Failed(failure) => Some((nth + 1, failure)),
            Verdict::Passed => None,
        }
    });
    cairn_base::planted::plant(None);
    match found {
        Some((seeds, failure)) => Bitten {
            bug,
            seeds,
            failure: Some(failure),
        },
        None => Bitten {
            bug,
            seeds: seeds_max,
            failure: None,
        },
    }
}
