//! The background tasks of one store, counted, so that its end can wait for all of them.
//!
//! Owns: the count. Must not know: the work of the tasks.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_base::env::{BoxFuture, Spawner};
use tokio::sync::Notify;

#[derive(Clone)]
pub(crate) struct Tasks {
    spawner: Arc<dyn Spawner>,
    running: Arc<Running>,
}

#[derive(Default)]
struct Running {
    count: AtomicUsize,
    ended: Notify,
}

/// Counts a task for as long as it exists, however it ends.
struct TaskGuard(Arc<Running>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_waiters();
    }
}

impl Tasks {
    pub fn new(spawner: Arc<dyn Spawner>) -> Self {
        Self {
            spawner,
            running: Arc::default(),
        }
    }

    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawner.spawn(name, self.counted(task));
    }

    /// As `spawn`, on a thread that the task may block if [`Self::has_threads`].
    pub fn spawn_thread(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawner.spawn_thread(name, self.counted(task));
    }

    pub fn has_threads(&self) -> bool {
        self.spawner.has_threads()
    }

    fn counted(&self, task: impl Future<Output = ()> + Send + 'static) -> BoxFuture<()> {
        self.running.count.fetch_add(1, Ordering::AcqRel);
        let counted = TaskGuard(self.running.clone());
        Box::pin(async move {
            // Declared first, so dropped last: the values of the task are dropped before it is uncounted.
            let _counted = counted;
            task.await;
        })
    }

    /// Waits until no task is running.
    pub async fn idle(&self) {
        loop {
            let ended = self.running.ended.notified();
            if self.running.count.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}
