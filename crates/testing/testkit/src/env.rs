//! A world under the test's control: a clock that the test moves, randomness from a seed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cairn_base::Timestamp;
use cairn_base::env::{BoxFuture, Clock, Entropy, Env, Spawner};
use cairn_base::jobs::JobList;
use parking_lot::Mutex;

use crate::rng::Rng;

/// 2026-01-01 00:00:00 UTC, when every simulated world begins.
const START_SECONDS: i64 = 1_767_225_600;

/// A clock that only [`ManualClock::advance`] moves.
#[derive(Clone, Default)]
pub struct ManualClock {
    shared: Arc<Mutex<ClockState>>,
}

#[derive(Default)]
struct ClockState {
    elapsed: Duration,
    /// How long the machine was suspended; `elapsed` does not count that.
    suspended: Duration,
    /// Error of the wall clock, in seconds.
    wall_skew_seconds: i64,
    sleepers: Vec<(Duration, Waker)>,
}

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        let due = {
            let mut state = self.shared.lock();
            state.elapsed += by;
            let elapsed = state.elapsed;
            let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut state.sleepers)
                .into_iter()
                .partition(|(deadline, _)| *deadline <= elapsed);
            state.sleepers = later;
            due
        };
        for (_, waker) in due {
            waker.wake();
        }
    }

    /// Steps the wall clock alone, as an operator or NTP may; monotonic time goes on as before.
    pub fn step_wall(&self, seconds: i64) {
        self.shared.lock().wall_skew_seconds += seconds;
    }

    /// Suspends the machine: deadlines of sleepers come no nearer, but the time that counts for leases passes.
    pub fn suspend(&self, by: Duration) {
        self.shared.lock().suspended += by;
    }

    /// Deadline of the next sleeper, for tests that jump from timer to timer.
    pub fn next_deadline(&self) -> Option<Duration> {
        let state = self.shared.lock();
        state.sleepers.iter().map(|(deadline, _)| *deadline).min()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let state = self.shared.lock();
        let passed = state.elapsed + state.suspended;
        Timestamp::new(
            START_SECONDS + state.wall_skew_seconds + passed.as_secs() as i64,
            passed.subsec_nanos(),
        )
    }

    fn monotonic(&self) -> Duration {
        self.shared.lock().elapsed
    }

    fn boottime(&self) -> Duration {
        let state = self.shared.lock();
        state.elapsed + state.suspended
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        let deadline = self.shared.lock().elapsed.saturating_add(duration);
        Box::pin(Sleep {
            shared: Arc::clone(&self.shared),
            deadline,
        })
    }
}

struct Sleep {
    shared: Arc<Mutex<ClockState>>,
    deadline: Duration,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        if state.elapsed >= self.deadline {
            return Poll::Ready(());
        }
        let waker = context.waker();
        let known = state
            .sleepers
            .iter()
            .any(|(deadline, other)| *deadline == self.deadline && other.will_wake(waker));
        if !known {
            state.sleepers.push((self.deadline, waker.clone()));
        }
        Poll::Pending
    }
}

/// Randomness that repeats with its seed.
pub struct SeededEntropy {
    rng: Mutex<Rng>,
}

impl SeededEntropy {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Mutex::new(Rng::new(seed)),
        }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.rng.lock().fill(bytes);
    }
}

/// Starts tasks on the runtime that the caller runs on.
struct AmbientSpawner;

impl Spawner for AmbientSpawner {
    fn spawn(&self, _name: &'static str, task: BoxFuture<()>) {
        tokio::spawn(task);
    }

    // The disks of tests never block, so the code paths for threads are tested, too.
    fn has_threads(&self) -> bool {
        true
    }
}

/// An [`Env`] together with the handle that moves its clock.
pub struct TestWorld {
    pub env: Env,
    pub clock: ManualClock,
}

impl TestWorld {
    pub fn new(seed: u64) -> Self {
        let clock = ManualClock::default();
        let env = Env {
            clock: Arc::new(clock.clone()),
            entropy: Arc::new(SeededEntropy::new(seed)),
            spawner: Arc::new(AmbientSpawner),
            jobs: JobList::new(),
        };
        Self { env, clock }
    }
}

/// A world whose clock stands still, seeded with 1. Spawning needs a tokio runtime around it.
pub fn test_env() -> Env {
    TestWorld::new(1).env
}
