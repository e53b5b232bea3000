//! A few threads for calls that block: folder operations, and all I/O where io_uring is refused.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The closing of a disk waits so long for transfers under way.
pub(crate) const END_MAX: Duration = Duration::from_secs(5);
const END_POLL: Duration = Duration::from_millis(1);

pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stop: bool,
}

#[derive(Default)]
struct WorkersCore {
    queue: Mutex<Queue>,
    filled: Condvar,
}

/// Jobs waiting are bounded by the engine's in-flight limit.
pub(crate) struct Workers {
    shared: Arc<WorkersCore>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let mut workers = Self {
            shared: Arc::default(),
            threads: Vec::with_capacity(count),
        };
        for _ in 0..count.max(1) {
            let shared = workers.shared.clone();
            let thread = std::thread::Builder::new()
                .name("cairn-disk".into())
                .spawn(move || work(&shared))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    pub(crate) fn send(&self, job: Job) {
        self.shared.queue.lock().jobs.push_back(job);
        self.shared.filled.notify_one();
    }
}

fn work(shared: &WorkersCore) {
    loop {
        let job = {
            let mut queue = shared.queue.lock();
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.stop {
                    return;
                }
                shared.filled.wait(&mut queue);
            }
        };
        job();
    }
}

impl Workers {
    /// Finishes queued transfers, so that nothing touches the disk after it was closed. False if that takes
    /// until after `deadline`: then the threads end whenever what they wait for does.
    pub(crate) fn end(&mut self, deadline: Instant) -> bool {
        self.shared.queue.lock().stop = true;
        self.shared.filled.notify_all();
        let mut ended = true;
        for thread in self.threads.drain(..) {
            ended &= join(thread, deadline);
        }
        ended
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // The threads that were started before one of them could not be.
        self.end(Instant::now() + END_MAX);
    }
}

/// Waits for the end of a thread, but not for ever: one that waits for a disk that hangs may not end.
pub(crate) fn join(thread: JoinHandle<()>, deadline: Instant) -> bool {
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(END_POLL);
    }
    if thread.join().is_err() {
        tracing::error!("a disk thread panicked");
    }
    true
}
