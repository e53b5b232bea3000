//! Makes a failing scenario smaller.
//!
//! Owns: the parts that it tries to leave out. Must not know: the failure.

use super::{ClusterScenario, run};
use crate::run::Verdict;

/// Leaves out parts that a failure does not need, with at most `runs_max` runs.
pub fn shrink(scenario: &ClusterScenario, runs_max: usize) -> (ClusterScenario, Verdict) {
    let mut best = scenario.clone();
    let mut verdict = run(&best).verdict;
    let mut runs = 1;
    let mut is_smaller = true;
    while is_smaller && runs < runs_max {
        is_smaller = false;
        for candidate in smaller(&best) {
            if runs >= runs_max {
                break;
            }
            runs += 1;
            let found = run(&candidate).verdict;
            if found.is_failed() {
                (best, verdict, is_smaller) = (candidate, found, true);
                break;
            }
        }
    }
    (best, verdict)
}

fn smaller(scenario: &ClusterScenario) -> Vec<ClusterScenario> {
    let mut all = Vec::new();
    let mut push = |change: &dyn Fn(&mut ClusterScenario)| {
        let mut changed = scenario.clone();
        change(&mut changed);
        if changed != *scenario {
            all.push(changed);
        }
    };
    let count = scenario.events.len();
    push(&|it| it.events.truncate(count / 2));
    for index in (0..count).rev() {
        push(&|it| {
            it.events.remove(index);
        });
    }
    for nth in (1..scenario.volumes.len()).rev() {
        push(&|it| {
            it.volumes.remove(nth);
        });
        push(&|it| it.volumes[nth].lives_ms = None);
        push(&|it| it.volumes[nth].made_at_ms = None);
    }
    push(&|it| {
        it.volumes
            .iter_mut()
            .for_each(|it| it.load.client_count = 1)
    });
    push(&|it| it.calls = None);
    push(&|it| {
        if let Some(plan) = &mut it.calls {
            plan.caller_count = 1;
        }
    });
    push(&|it| it.disks_per_node = 1);
    push(&|it| it.rates.fill(1_000_000));
    push(&|it| it.volumes.iter_mut().for_each(|it| it.load.op_count /= 2));
    all
}
