//! Staying awake for a moment after an answer, because the next request may be near.
//!
//! Owns: when a thread that has nothing to do looks again before it sleeps, and when that pays.
//! Must not know: connections, requests.
//!
//! A client that sends one request after the other waits, for each, until a sleeping processor is
//! woken: 20 us and more on a virtual machine, twice (measured: 4 KiB reads one at a time took 62 us,
//! and 22 us with client and server on one processor, where nothing sleeps). A thread whose last
//! requests came within [`LOOK_TIME_MAX`] of its last answer therefore keeps looking for that long. If
//! they come later, it looks only now and then, to find out when that changes. Each look first gives the
//! processor to anybody who wants it. Requests that come several at once are from a client that
//! does not wait for each. It needs the processors more than we do: looking cost it up to a quarter of
//! its rate when it ran on the same two.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long a thread keeps looking after its last answer.
const LOOK_TIME_MAX: Duration = Duration::from_micros(50);
/// With this much trust a thread looks after each answer.
const TRUST_MAX: u32 = 16;
/// What a look in vain costs of it; one that found something gives 1.
const TRUST_LOST: u32 = 2;
/// Without trust a thread looks once after so many answers.
const PROBE_INTERVAL: u64 = 32;

/// One per thread that serves; all that touches it runs on that thread.
pub struct BusyPoll {
    enabled: bool,
    /// Requests begun.
    begun: AtomicU64,
    /// Of those, not yet answered.
    running: AtomicUsize,
    sleeps: AtomicBool,
    trusts: AtomicBool,
    wake: Notify,
}

impl BusyPoll {
    /// Without `enabled` it never looks.
    pub fn new(enabled: bool) -> Self {
        Self {
            enabled,
            begun: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            sleeps: AtomicBool::new(false),
            trusts: AtomicBool::new(true),
            wake: Notify::new(),
        }
    }

    /// A connection has done what it could: it began `begun` requests, and `running` of all it began are not
    /// answered yet, of which there were `running_before` the last time.
    pub fn settled(&self, begun: u64, running_before: usize, running: usize) {
        if running > running_before {
            self.running
                .fetch_add(running - running_before, Ordering::Relaxed);
        } else {
            self.running
                .fetch_sub(running_before - running, Ordering::Relaxed);
        }
        let total = self.begun.fetch_add(begun, Ordering::Relaxed) + begun;
        let moved = begun > 0 || running < running_before;
        if !moved || begun > 1 || !self.sleeps.load(Ordering::Relaxed) || self.is_busy() {
            return;
        }
        if self.trusts.load(Ordering::Relaxed) || total % PROBE_INTERVAL < begun.max(1) {
            self.sleeps.store(false, Ordering::Relaxed);
            self.wake.notify_one();
        }
    }

    fn is_busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// Looks whenever it makes sense; never returns.
    pub async fn keep(&self) {
        if !self.enabled {
            return std::future::pending().await;
        }
        let mut trust = TRUST_MAX;
        loop {
            self.sleeps.store(true, Ordering::Relaxed);
            self.wake.notified().await;
            self.sleeps.store(false, Ordering::Relaxed);
            loop {
                let found = self.look().await;
                trust = match found {
                    1 => (trust + 1).min(TRUST_MAX),
                    _ => trust.saturating_sub(TRUST_LOST),
                };
                self.trusts.store(trust > 0, Ordering::Relaxed);
                // With something running, that wakes the thread, and its answer this task.
                if found != 1 || trust == 0 || self.is_busy() {
                    break;
                }
            }
        }
    }

    /// The requests that came, 0 if none did before the time was over.
    async fn look(&self) -> u64 {
        let seen = self.begun.load(Ordering::Relaxed);
        let start = Instant::now();
        loop {
            std::thread::yield_now();
            // Other tasks of this thread run meanwhile, and sockets are looked at.
            tokio::task::yield_now().await;
            let found = self.begun.load(Ordering::Relaxed) - seen;
            if found > 0 || self.is_busy() || start.elapsed() >= LOOK_TIME_MAX {
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn on_one_thread(test: impl AsyncFnOnce(Arc<BusyPoll>)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let busy_poll = Arc::new(BusyPoll::new(true));
            let keeper = busy_poll.clone();
            let task = tokio::spawn(async move { keeper.keep().await });
            tokio::task::yield_now().await;
            test(busy_poll).await;
            task.abort();
        });
    }

    /// Lets the keeper run until it sleeps again.
    async fn until_asleep(busy_poll: &BusyPoll) {
        while !busy_poll.sleeps.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn requests_that_come_late_end_the_looking_and_near_ones_bring_it_back() {
        on_one_thread(async |busy_poll| {
            assert!(busy_poll.sleeps.load(Ordering::Relaxed));
            for _ in 0..TRUST_MAX {
                busy_poll.settled(1, 0, 0);
                until_asleep(&busy_poll).await;
            }
            assert!(!busy_poll.trusts.load(Ordering::Relaxed));
            // Not trusted: it sleeps on, until it is time for a probe.
            let mut asked = 0;
            while busy_poll.sleeps.load(Ordering::Relaxed) {
                busy_poll.settled(1, 0, 0);
                asked += 1;
            }
            assert!(asked <= PROBE_INTERVAL && asked > 1, "{asked}");
            // It looks now. What comes at once restores the trust.
            tokio::task::yield_now().await;
            busy_poll.settled(1, 0, 0);
            until_asleep(&busy_poll).await;
            let looked_well = busy_poll.begun.load(Ordering::Relaxed);
            assert!(looked_well > 0);
        });
    }

    #[test]
    fn nobody_looks_while_something_runs() {
        on_one_thread(async |busy_poll| {
            busy_poll.settled(1, 0, 1);
            assert!(busy_poll.sleeps.load(Ordering::Relaxed));
            busy_poll.settled(0, 1, 0);
            assert!(!busy_poll.sleeps.load(Ordering::Relaxed));
            until_asleep(&busy_poll).await;
            assert_eq!(busy_poll.running.load(Ordering::Relaxed), 0);
        });
    }
}
