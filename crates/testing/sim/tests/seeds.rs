//! A fixed set of seeds passes, one seed always gives one run, and scenarios are data.

use cairn_sim::faults::{Fault, FaultKind};
use cairn_sim::{Scenario, Verdict, run};

/// Seeds that found bugs: a COMMIT that did not wait for bytes that replaced its own, a record left on a disk that
/// failed while a term of the log began, starts that were cut short, space of files that a crash had truncated, a disk
/// that failed while a start copied for it.
const SEEDS_OF_BUGS: &[u64] = &[
    14191550792963,
    14191550791718,
    14720395563953,
    32932251298085,
    33373211663524,
    340,
];

#[test]
fn fixed_seeds_pass() {
    let mut deduplicated_bytes = 0;
    for seed in (1..=40).chain(SEEDS_OF_BUGS.iter().copied()) {
        let report = run(&Scenario::from_seed(seed));
        assert_eq!(report.verdict, Verdict::Passed, "seed {seed}");
        deduplicated_bytes += report.counts.deduplicated_bytes;
    }
    assert!(deduplicated_bytes > 0, "no bytes were ever there already");
}

/// The one disk with trouble dies at any moment while the volume is made, or soon after: the volume is made with the
/// other disks, or leaves nothing that a start would take for it.
#[test]
fn a_disk_may_die_while_a_volume_is_made() {
    const AFTER_MAX: u64 = 100;
    let mut scenario = Scenario::from_seed(500545);
    scenario.lives.truncate(1);
    let life = &mut scenario.lives[0];
    life.faults.retain(|fault| fault.kind == FaultKind::Dead);
    assert_eq!(life.faults.len(), 1);
    for after in 0..AFTER_MAX {
        scenario.lives[0].faults[0].after = after;
        let verdict = run(&scenario).verdict;
        assert_eq!(verdict, Verdict::Passed, "after {after}");
    }

    // With all of them the volume is refused.
    let fault = scenario.lives[0].faults[0].clone();
    let all = 0..scenario.shape.disk_count;
    let dead = all.map(|disk| Fault {
        disk,
        after: 0,
        ..fault.clone()
    });
    scenario.lives[0].faults = dead.collect();
    let report = run(&scenario);
    assert_eq!(report.counts.refused_starts, 1);
    assert_eq!(report.verdict, Verdict::Passed);
}

#[test]
fn a_seed_is_one_exact_run() {
    for seed in 1..=30 {
        let scenario = Scenario::from_seed(seed);
        let (first, second) = (run(&scenario), run(&scenario));
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.trace, 0);
    }
}

#[test]
fn a_scenario_is_read_back_as_it_was_written() {
    for seed in 1..=100 {
        let scenario = Scenario::from_seed(seed);
        let text = serde_json::to_string(&scenario).unwrap();
        assert_eq!(serde_json::from_str::<Scenario>(&text).unwrap(), scenario);
    }
}
