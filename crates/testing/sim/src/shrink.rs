//! Makes a failing scenario smaller.
//!
//! Owns: the tries and their order. Must not know: the cause of the failure; any failure counts.

use crate::scenario::{End, Scenario};
use crate::{Verdict, run};

/// Tries smaller scenarios as long as one of them fails; at most `tries_max` runs.
pub fn shrink(scenario: &Scenario, tries_max: usize) -> (Scenario, Verdict) {
    let mut best = scenario.clone();
    let mut verdict = run(&best).verdict;
    let mut tries = 0;
    loop {
        let smaller = candidates(&best).into_iter().find_map(|candidate| {
            if tries >= tries_max {
                return None;
            }
            tries += 1;
            let tried = run(&candidate).verdict;
            tried.is_failed().then_some((candidate, tried))
        });
        match smaller {
            Some((candidate, tried)) => (best, verdict) = (candidate, tried),
            None => return (best, verdict),
        }
    }
}

/// Scenarios with one thing less, the boldest first.
fn candidates(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Scenario)| {
        let mut smaller = scenario.clone();
        change(&mut smaller);
        if smaller != *scenario {
            all.push(smaller);
        }
    };
    for index in (0..scenario.lives.len()).rev() {
        add(&|smaller| {
            smaller.lives.remove(index);
        });
    }
    for (index, life) in scenario.lives.iter().enumerate() {
        for fault in (0..life.faults.len()).rev() {
            add(&|smaller| {
                smaller.lives[index].faults.remove(fault);
            });
        }
        add(&|smaller| smaller.lives[index].without.clear());
        add(&|smaller| smaller.lives[index].work = None);
        add(&|smaller| smaller.lives[index].op_count /= 2);
        add(&|smaller| smaller.lives[index].op_count = life.op_count.saturating_sub(1));
        add(&|smaller| smaller.lives[index].idle_seconds = 0);
        add(&|smaller| smaller.lives[index].pause_ms_max = 0);
        if let End::Crash { after_ops, .. } = life.end {
            let earlier = |smaller: &mut Scenario, ops: u32| {
                if let End::Crash { after_ops, .. } = &mut smaller.lives[index].end {
                    *after_ops = ops;
                }
            };
            add(&|smaller| earlier(smaller, after_ops / 2));
            add(&|smaller| earlier(smaller, after_ops.saturating_sub(1)));
        }
    }
    add(&|smaller| smaller.shape.client_count = scenario.shape.client_count.max(2) - 1);
    add(&|smaller| smaller.shape.is_uneven = false);
    add(&|smaller| smaller.shape.is_paced = smaller.shape.is_uneven);
    add(&|smaller| smaller.shape.has_threads = false);
    add(&|smaller| smaller.shape.forgets_starts = false);
    add(&|smaller| smaller.shape.compress = false);
    all
}
