//! The seams to time, randomness and tasks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::jobs::JobList;
use crate::time::Timestamp;

pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time; it may step.
    fn now(&self) -> Timestamp;
    /// Time since some fixed point of this process; it never steps back.
    fn monotonic(&self) -> Duration;
    /// As [`Self::monotonic`], but it also counts the time that the machine was suspended. A lease that others
    /// grant ends by this clock.
    fn boottime(&self) -> Duration {
        self.monotonic()
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<()>;
}

pub trait Entropy: Send + Sync + 'static {
    fn fill(&self, bytes: &mut [u8]);

    fn u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn u128(&self) -> u128 {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        u128::from_le_bytes(bytes)
    }
}

pub trait Spawner: Send + Sync + 'static {
    /// Starts a background task. The name is for messages only.
    fn spawn(&self, name: &'static str, task: BoxFuture<()>);

    /// Starts a background task on a thread of its own, which it may block, where
    /// [`Self::has_threads`]; else as [`Self::spawn`] does.
    fn spawn_thread(&self, name: &'static str, task: BoxFuture<()>) {
        self.spawn(name, task);
    }

    /// Whether a task of [`Self::spawn_thread`] may block. Under test it may, on one thread with all
    /// others: disks in memory do not block.
    fn has_threads(&self) -> bool {
        false
    }

    /// Threads of [`Self::spawn_thread`] that have not ended.
    fn thread_count(&self) -> usize {
        0
    }
}

/// The world as the engine sees it: real in production, simulated under test.
#[derive(Clone)]
pub struct Env {
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub spawner: Arc<dyn Spawner>,
    /// The background jobs of this node.
    pub jobs: Arc<JobList>,
}
