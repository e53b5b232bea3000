//! The real world behind the seams of [`crate::env`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::env::{BoxFuture, Clock, Entropy, Env, Spawner};
use crate::jobs::JobList;
use crate::time::Timestamp;

pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn boottime(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // Neither part is negative: the clock counts from the start of the machine.
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// The operating system's random numbers.
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system gives random numbers");
    }
}

/// Starts tasks on one tokio runtime.
pub struct TokioSpawner {
    handle: tokio::runtime::Handle,
    thread_count: Arc<AtomicUsize>,
}

impl TokioSpawner {
    pub fn new(handle: tokio::runtime::Handle) -> Self {
        Self {
            handle,
            thread_count: Arc::default(),
        }
    }
}

impl Spawner for TokioSpawner {
    fn spawn(&self, _name: &'static str, task: BoxFuture<()>) {
        self.handle.spawn(task);
    }

    fn spawn_thread(&self, name: &'static str, task: BoxFuture<()>) {
        let (handle, count) = (self.handle.clone(), Arc::clone(&self.thread_count));
        let enter = move |run: &dyn Fn()| {
            let _inside = handle.enter();
            count.fetch_add(1, Ordering::AcqRel);
            run();
            count.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(task) = crate::inline_call::spawn(name, task, enter) {
            // It works on a shared thread too, only slower.
            self.handle.spawn(task);
        }
    }

    fn has_threads(&self) -> bool {
        true
    }

    fn thread_count(&self) -> usize {
        self.thread_count.load(Ordering::Acquire)
    }
}

/// The real clock and randomness, with tasks on the runtime of `handle`.
pub fn env(handle: tokio::runtime::Handle) -> Env {
    Env {
        clock: Arc::new(SystemClock::default()),
        entropy: Arc::new(OsEntropy),
        spawner: Arc::new(TokioSpawner::new(handle)),
        jobs: JobList::new(),
    }
}
