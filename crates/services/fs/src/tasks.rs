//! Background tasks of a volume, and how they end.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use cairn_base::env::Env;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Starts tasks, tells them to stop, and waits until they have.
pub(crate) struct Tasks {
    env: Env,
    stop: watch::Sender<bool>,
    /// One receiver lives in each running task.
    running: watch::Sender<()>,
    /// One receiver lives in each running flush.
    flushing: watch::Sender<()>,
    /// The number of tasks of each name.
    names: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

/// A wait for the end of tasks is logged after so long, repeatedly.
const ENDED_LATE: Duration = Duration::from_secs(10);

impl Tasks {
    pub fn new(env: Env) -> Self {
        Self {
            env,
            stop: watch::channel(false).0,
            running: watch::channel(()).0,
            flushing: watch::channel(()).0,
            names: Arc::default(),
        }
    }

    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let alive = self.running.subscribe();
        *self.names.lock().entry(name).or_default() += 1;
        let names = Arc::clone(&self.names);
        self.env.spawner.spawn(
            name,
            Box::pin(async move {
                task.await;
                if let Some(count) = names.lock().get_mut(name) {
                    *count = count.saturating_sub(1);
                }
                drop(alive);
            }),
        );
    }

    /// Starts a task that brings data of clients to the disks.
    pub fn spawn_flush(&self, task: impl Future<Output = ()> + Send + 'static) {
        let alive = self.flushing.subscribe();
        self.spawn("flush", async move {
            task.await;
            drop(alive);
        });
    }

    /// Waits until no flush is running.
    pub async fn flushes_ended(&self) {
        self.flushing.closed().await;
    }

    pub fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Resolves when it is time to stop.
    pub async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        // Never an error: the sender is here.
        let _ = stop.wait_for(|stop| *stop).await;
    }

    /// Waits for `duration`, or for the wake-up, or for the stop; false when it is time to stop.
    pub async fn pause(&self, duration: Duration, wake: impl Future<Output = ()>) -> bool {
        let stopped = std::pin::pin!(self.stopped());
        let wake = std::pin::pin!(wake);
        let waiting = std::pin::pin!(select(self.env.clock.sleep(duration), wake));
        matches!(select(stopped, waiting).await, Either::Right(_))
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until every task has ended, and logs the slow ones.
    pub async fn ended(self: &Arc<Self>) {
        let mut ended = std::pin::pin!(self.running.closed());
        while let Either::Right(_) = select(ended.as_mut(), self.env.clock.sleep(ENDED_LATE)).await
        {
            let names = self.names.lock();
            let left: Vec<_> = names.iter().filter(|(_, count)| **count > 0).collect();
            tracing::warn!(
                ?left,
                "the volume closes, and these of its tasks have not ended"
            );
        }
    }
}

/// Yields once to all other ready tasks.
pub(crate) async fn let_others_run() {
    let mut was_here = false;
    poll_fn(|context| {
        if std::mem::replace(&mut was_here, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
