//! Runs seeds in parallel until there are enough of them, or one fails.
//!
//! Owns: which thread runs which seed, and when the threads stop. Must not know: the work of a seed.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

/// How seeds are run.
pub struct Sweep {
    /// The first seed.
    pub from: u64,
    pub threads: usize,
    /// Go on after a failure.
    pub keep_going: bool,
}

/// Results of the seeds up to now.
pub struct Swept<T, S> {
    pub total: T,
    pub seeds: u64,
    /// Scenarios that failed.
    pub failed: Vec<S>,
}

/// As many threads as requested, or as the machine has processors.
pub fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

impl Sweep {
    /// Runs seeds on all threads until `is_over` returns true for the number of seeds begun before.
    ///
    /// `run` runs a seed; `None`: the seed is left out. `note` adds the result of a seed to the total, and returns the
    /// scenario if it failed.
    pub fn run<R, T: Default + Send, S: Send>(
        &self,
        is_over: impl Fn(u64) -> bool + Sync,
        run: impl Fn(u64) -> Option<R> + Sync,
        note: impl Fn(&mut Swept<T, S>, u64, R) -> Option<S> + Sync,
    ) -> Swept<T, S> {
        let next = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let swept = Mutex::new(Swept {
            total: T::default(),
            seeds: 0,
            failed: Vec::new(),
        });
        println!("seeds from {} on, {} threads", self.from, self.threads);
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if is_over(nth) {
                    return;
                }
                let seed = self.from + nth;
                let Some(report) = run(seed) else { continue };
                let mut swept = swept.lock();
                swept.seeds += 1;
                if let Some(scenario) = note(&mut swept, seed, report) {
                    swept.failed.push(scenario);
                    if !self.keep_going {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(work);
            }
        });
        swept.into_inner()
    }
}
