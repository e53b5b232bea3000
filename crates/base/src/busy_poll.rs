//! Staying awake for a moment after an answer, and while a request is under way, because what comes next may be near.
//!
//! Owns: when a thread that has nothing to do looks again before it sleeps, and when that pays.
//! Must not know: connections, requests.
//!
//! A client that sends one request after the other waits, for each, until a sleeping processor is
//! woken: 20 us and more on a virtual machine, twice (measured: 4 KiB reads one at a time took 62 us,
//! and 22 us with client and server on one processor, where nothing sleeps). A thread whose last
//! requests came within [`REQUEST_TIME_MAX`] of its last answer therefore keeps looking for that long. If
//! they come later, it looks only now and then, to find out when that changes ([`Trust`]). Each look first gives the
//! processor to anybody who wants it. Requests that come several at once are from a client that
//! does not wait for each. It needs the processors more than we do: looking cost it up to a quarter of
//! its rate when it ran on the same two.
//!
//! A request that waits for a disk is answered by this thread, which another one wakes: the log's, or that of the disk. While no
//! more than [`RUNNING_MAX`] are under way the thread looks for that, too, for [`ANSWER_TIME_MAX`], with trust of its own: disks
//! differ, and clients are not to pay for a slow one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::looking::Trust;

/// How long a thread keeps looking for a request after its last answer.
const REQUEST_TIME_MAX: Duration = Duration::from_micros(50);
/// How long it polls for the end of an operation under way: a small durable write takes 80 to 250 us.
const ANSWER_TIME_MAX: Duration = Duration::from_micros(250);
/// With more requests under way than so many it sleeps: their clients do not wait for each.
const RUNNING_MAX: usize = 2;

/// What a thread looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sought {
    /// The next request: nothing is under way.
    Request,
    /// The end of one that is under way.
    Answer,
}

impl Sought {
    fn time_max(self) -> Duration {
        match self {
            Self::Request => REQUEST_TIME_MAX,
            Self::Answer => ANSWER_TIME_MAX,
        }
    }
}

/// One per thread that serves; all that touches it runs on that thread.
pub struct BusyPoll {
    enabled: bool,
    /// Requests begun, and requests that were answered later than they began.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Of those begun, not yet answered.
    running: AtomicUsize,
    sleeps: AtomicBool,
    requests: Mutex<Trust>,
    answers: Mutex<Trust>,
    wake: Notify,
}

impl BusyPoll {
    /// Without `enabled` it never looks.
    pub fn new(enabled: bool) -> Self {
        Self {
            enabled,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            sleeps: AtomicBool::new(false),
            requests: Mutex::default(),
            answers: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// A connection has done what it could: it began `begun` requests, and `running` of all it began are not
    /// answered yet, of which there were `running_before` the last time.
    fn settled(&self, begun: u64, running_before: usize, running: usize) {
        if running > running_before {
            self.running
                .fetch_add(running - running_before, Ordering::Relaxed);
        } else {
            self.running
                .fetch_sub(running_before - running, Ordering::Relaxed);
        }
        let ended = running_before.saturating_sub(running) as u64;
        self.begun.fetch_add(begun, Ordering::Relaxed);
        self.ended.fetch_add(ended, Ordering::Relaxed);
        let moved = begun > 0 || ended > 0;
        if !moved || begun > 1 || !self.enabled || !self.sleeps.load(Ordering::Relaxed) {
            return;
        }
        if self.next_sought().is_some() {
            self.sleeps.store(false, Ordering::Relaxed);
            self.wake.notify_one();
        }
    }

    /// What it makes sense to look for now.
    fn sought(&self) -> Option<Sought> {
        match self.running.load(Ordering::Relaxed) {
            0 => Some(Sought::Request),
            1..=RUNNING_MAX => Some(Sought::Answer),
            _ => None,
        }
    }

    fn trust(&self, sought: Sought) -> &Mutex<Trust> {
        match sought {
            Sought::Request => &self.requests,
            Sought::Answer => &self.answers,
        }
    }

    /// What to look for next, if that is trusted to find something.
    fn next_sought(&self) -> Option<Sought> {
        let sought = self.sought()?;
        self.trust(sought).lock().looks().then_some(sought)
    }

    /// Looks whenever it makes sense; never returns.
    pub async fn keep(&self) {
        if !self.enabled {
            return std::future::pending().await;
        }
        loop {
            self.sleeps.store(true, Ordering::Relaxed);
            self.wake.notified().await;
            self.sleeps.store(false, Ordering::Relaxed);
            // Who woke this task asked whether it is trusted.
            let mut next = self.sought();
            while let Some(sought) = next {
                let found = self.look(sought).await;
                self.trust(sought).lock().note(found);
                next = match found {
                    true => self.next_sought(),
                    false => None,
                };
            }
        }
    }

    /// Whether the event came before the time was over, and not several requests at once.
    async fn look(&self, sought: Sought) -> bool {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (begun_before, ended_before) = (count(&self.begun), count(&self.ended));
        let start = Instant::now();
        loop {
            std::thread::yield_now();
            // Other tasks of this thread run meanwhile, and sockets are looked at.
            tokio::task::yield_now().await;
            let begun = count(&self.begun) - begun_before;
            let ended = count(&self.ended) - ended_before;
            if begun > 0 || ended > 0 {
                return begun <= 1;
            }
            if start.elapsed() >= sought.time_max() {
                return false;
            }
        }
    }
}

/// What one connection tells its thread of its requests. Dropped, it takes back those that are not answered.
pub struct ConnectionRequests {
    busy_poll: Arc<BusyPoll>,
    running: usize,
}

impl ConnectionRequests {
    pub fn new(busy_poll: Arc<BusyPoll>) -> Self {
        Self {
            busy_poll,
            running: 0,
        }
    }

    /// The connection has done what it could: since the last time it began `begun` requests, and `running` of all it
    /// began are not answered yet.
    pub fn settled(&mut self, begun: u64, running: usize) {
        self.busy_poll.settled(begun, self.running, running);
        self.running = running;
    }
}

impl Drop for ConnectionRequests {
    fn drop(&mut self) {
        self.busy_poll.settled(0, self.running, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::looking::{PROBE_INTERVAL, TRUST_LOST, TRUST_MAX};

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

    fn is_asleep(busy_poll: &BusyPoll) -> bool {
        busy_poll.sleeps.load(Ordering::Relaxed)
    }

    /// Lets the keeper run until it sleeps again.
    async fn until_asleep(busy_poll: &BusyPoll) {
        while !is_asleep(busy_poll) {
            tokio::task::yield_now().await;
        }
    }

    fn level(busy_poll: &BusyPoll, sought: Sought) -> u32 {
        busy_poll.trust(sought).lock().level()
    }

    #[test]
    fn requests_that_come_late_end_the_looking_and_near_ones_bring_it_back() {
        on_one_thread(async |busy_poll| {
            assert!(is_asleep(&busy_poll));
            while level(&busy_poll, Sought::Request) > 0 {
                busy_poll.settled(1, 0, 0);
                assert!(!is_asleep(&busy_poll));
                until_asleep(&busy_poll).await;
            }
            // Not trusted: it sleeps on, until it is time for a probe.
            let mut asked = 0;
            while is_asleep(&busy_poll) {
                busy_poll.settled(1, 0, 0);
                asked += 1;
            }
            assert_eq!(asked, PROBE_INTERVAL);
            // It looks now. What comes at once restores the trust.
            while level(&busy_poll, Sought::Request) == 0 {
                tokio::task::yield_now().await;
                busy_poll.settled(1, 0, 0);
            }
        });
    }

    #[test]
    fn an_answer_is_looked_for_while_few_requests_are_under_way() {
        on_one_thread(async |busy_poll| {
            busy_poll.settled(1, 0, 1);
            assert!(!is_asleep(&busy_poll));
            // It looks now.
            tokio::task::yield_now().await;
            busy_poll.settled(0, 1, 0);
            until_asleep(&busy_poll).await;
            assert_eq!(level(&busy_poll, Sought::Answer), TRUST_MAX);
            // One that does not come is its own affair.
            let requests = level(&busy_poll, Sought::Request);
            busy_poll.settled(1, 0, 1);
            until_asleep(&busy_poll).await;
            assert_eq!(level(&busy_poll, Sought::Answer), TRUST_MAX - TRUST_LOST);
            assert_eq!(level(&busy_poll, Sought::Request), requests);
            busy_poll.settled(0, 1, 0);
            until_asleep(&busy_poll).await;
            assert_eq!(busy_poll.running.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn nobody_looks_for_clients_that_do_not_wait_for_each_answer() {
        on_one_thread(async |busy_poll| {
            busy_poll.settled(2, 0, 2);
            assert!(is_asleep(&busy_poll), "two at once");
            busy_poll.settled(1, 2, 3);
            assert!(is_asleep(&busy_poll), "three are under way");
            busy_poll.settled(0, 3, 2);
            assert!(!is_asleep(&busy_poll));
            // Two come while it looks for the end of others.
            tokio::task::yield_now().await;
            busy_poll.settled(2, 2, 4);
            until_asleep(&busy_poll).await;
            assert_eq!(level(&busy_poll, Sought::Answer), TRUST_MAX - TRUST_LOST);
        });
    }

    #[test]
    fn a_connection_that_ends_has_nothing_under_way() {
        on_one_thread(async |busy_poll| {
            let mut told = ConnectionRequests::new(busy_poll.clone());
            told.settled(3, 3);
            told.settled(0, 1);
            assert_eq!(busy_poll.running.load(Ordering::Relaxed), 1);
            drop(told);
            assert_eq!(busy_poll.running.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn without_processors_to_spare_nobody_looks() {
        let busy_poll = BusyPoll::new(false);
        busy_poll.settled(1, 0, 0);
        assert_eq!(busy_poll.requests.lock().level(), TRUST_MAX);
        assert!(!busy_poll.sleeps.load(Ordering::Relaxed));
    }
}
