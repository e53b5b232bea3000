//! Every planted bug is found within the stated number of seeds.
#![cfg(feature = "planted-bugs")]

use cairn_base::planted::Bug;
use cairn_sim::bite::{SEEDS_MAX, bite};

#[test]
fn every_planted_bug_is_found() {
    // Some bugs end in panics, which are findings, too.
    std::panic::set_hook(Box::new(|_| {}));
    let missed: Vec<_> = Bug::ALL
        .iter()
        .map(|bug| bite(*bug, 1, SEEDS_MAX))
        .filter(|bitten| bitten.failure.is_none())
        .map(|bitten| bitten.bug)
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
