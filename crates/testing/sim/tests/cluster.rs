//! Clusters of a fixed set of seeds lose nothing, one seed always gives one run, and scenarios are data.

use cairn_sim::Verdict;
use cairn_sim::cluster::{ClusterScenario, run};

#[test]
fn fixed_seeds_pass() {
    for seed in 1..=25 {
        let verdict = run(&ClusterScenario::from_seed(seed)).verdict;
        assert_eq!(verdict, Verdict::Passed, "seed {seed}");
    }
}

#[test]
fn a_seed_is_one_exact_run() {
    for seed in 1..=8 {
        let scenario = ClusterScenario::from_seed(seed);
        let (first, second) = (run(&scenario), run(&scenario));
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.trace, 0);
    }
}

#[test]
fn a_scenario_is_read_back_as_it_was_written() {
    for seed in 1..=100 {
        let scenario = ClusterScenario::from_seed(seed);
        let text = serde_json::to_string(&scenario).unwrap();
        let read: ClusterScenario = serde_json::from_str(&text).unwrap();
        assert_eq!(read, scenario);
    }
}
