//! Every planted bug is found within the stated number of seeds.
#![cfg(feature = "planted-bugs")]

use cairn_base::planted::Bug;
use cairn_sim::bite::{Hints, SEEDS_MAX, bite_all};
use cairn_sim::{Scenario, run};

#[test]
fn every_planted_bug_is_found() {
    // Some bugs end in panics, which are findings, too.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let try_seed = |seed| run(&Scenario::from_seed(seed)).verdict;
    bite_all(Bug::ALL, 1, SEEDS_MAX, &Hints::new(), &try_seed, |bitten| {
        if bitten.failure.is_none() {
            missed.push(bitten.bug);
        }
    });
    assert!(missed.is_empty(), "not found: {missed:?}");
}
