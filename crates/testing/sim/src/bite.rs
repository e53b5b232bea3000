//! Proof that the simulator bites: the number of seeds until it finds each planted bug.
//!
//! Owns: the number of seeds within which it must find them.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_base::planted::Bug;

/// Seeds, from the first on, within which every planted bug is found.
pub const SEEDS_MAX: u64 = 1000;

/// One planted bug, and the search for it.
#[derive(Clone, Debug)]
pub struct Bitten {
    pub bug: Bug,
    /// Seeds run, including the one that found it.
    pub seeds: u64,
    /// The seed that found it, or the last one.
    pub seed: u64,
    /// The failure; `None`: no seed failed.
    pub failure: Option<String>,
    pub took: Duration,
}

/// Seeds that found bugs before, by the bug's name: the search tries them first. Any change of the engine may make them
/// useless, and then the whole search decides.
pub type Hints = BTreeMap<String, u64>;

/// Runs a seed.
pub type TrySeed = dyn Fn(u64) -> crate::Verdict + Sync;

/// As [`bite`], for many bugs on all processors; `done` is called for each, in order.
pub fn bite_all(
    bugs: &[Bug],
    from: u64,
    seeds_max: u64,
    hints: &Hints,
    try_seed: &TrySeed,
    mut done: impl FnMut(Bitten),
) {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let (sender, bitten) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(bug) = bugs.get(index) else {
                        return;
                    };
                    let hint = hints.get(&format!("{bug:?}"));
                    let hinted = hint.map(|seed| bite(*bug, *seed, 1, try_seed));
                    let bitten = match hinted {
                        Some(hinted) if hinted.failure.is_some() => hinted,
                        _ => bite(*bug, from, seeds_max, try_seed),
                    };
                    if sender.send((index, bitten)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut waiting = BTreeMap::new();
        let mut due = 0;
        for (index, bitten) in bitten {
            waiting.insert(index, bitten);
            while let Some(bitten) = waiting.remove(&due) {
                due += 1;
                done(bitten);
            }
        }
    });
}

/// Number of seeds out of `seeds` that find a bug, on all processors: the result of [`bite`] for one bug depends on
/// luck.
pub fn rate(bug: Bug, from: u64, seeds: u64, try_seed: &TrySeed) -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, found) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                cairn_base::planted::plant(Some(bug));
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= seeds {
                        return;
                    }
                    let verdict = try_seed(from + nth);
                    found.fetch_add(u64::from(verdict.is_failed()), Ordering::Relaxed);
                }
            });
        }
    });
    found.into_inner()
}

/// Runs seeds from `from` on with the bug planted until one fails.
pub fn bite(bug: Bug, from: u64, seeds_max: u64, try_seed: &TrySeed) -> Bitten {
    use crate::Verdict;
    let begun = std::time::Instant::now();
    cairn_base::planted::plant(Some(bug));
    let found = (0..seeds_max).find_map(|nth| match try_seed(from + nth) {
        Verdict::Failed(failure) => Some((nth + 1, failure)),
        Verdict::Passed => None,
    });
    cairn_base::planted::plant(None);
    let (seeds, failure) = match found {
        Some((seeds, failure)) => (seeds, Some(failure)),
        None => (seeds_max, None),
    };
    Bitten {
        bug,
        seeds,
        seed: from + seeds - 1,
        failure,
        took: begun.elapsed(),
    }
}
