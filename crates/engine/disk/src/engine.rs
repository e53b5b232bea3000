//! The way to the kernel: io_uring where it is allowed, threads elsewhere.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::folder::{DiskSettings, EngineChoice};
use crate::op::{Op, Outcome, Step};
use crate::ring::Ring;
use crate::workers::Workers;

/// Threads for folder operations when io_uring does the rest.
const FOLDER_THREAD_COUNT: usize = 2;
/// Threads for durable writes and syncs, beside the ring.
const SYNC_THREAD_COUNT: usize = 4;

/// One operation on its way, and whom to tell. A receiver that has gone away is no error.
pub(crate) struct Request {
    pub(crate) op: Op,
    done: oneshot::Sender<io::Result<Outcome>>,
    _slot: OwnedSemaphorePermit,
}

impl Request {
    pub(crate) fn finish(self, result: io::Result<Outcome>) {
        let _ = self.done.send(result);
    }
}

pub(crate) struct Engine {
    // Dropped in this order: all finish what they have.
    ring: Option<Ring>,
    syncers: Option<Workers>,
    workers: Workers,
    /// Bounds the transfers that are queued and in flight, and so the memory that they hold.
    slots: Arc<Semaphore>,
    slot_count: usize,
}

impl Engine {
    pub(crate) fn start(settings: &DiskSettings) -> io::Result<Self> {
        let in_flight_max = settings.in_flight_max.clamp(1, 4096);
        let ring = match settings.engine {
            EngineChoice::Threads => None,
            EngineChoice::IoUring => Some(Ring::start(in_flight_max)?),
            EngineChoice::Auto => Ring::start(in_flight_max)
                .inspect_err(|error| tracing::info!(%error, "no io_uring here: using threads"))
                .ok(),
        };
        let threads = if ring.is_some() {
            FOLDER_THREAD_COUNT
        } else {
            settings.thread_count.clamp(1, 256)
        };
        let syncers = match &ring {
            Some(_) => Some(Workers::start(SYNC_THREAD_COUNT)?),
            None => None,
        };
        Ok(Self {
            ring,
            syncers,
            workers: Workers::start(threads)?,
            slots: Arc::new(Semaphore::new(in_flight_max as usize)),
            slot_count: in_flight_max as usize,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        if self.ring.is_some() {
            "io_uring"
        } else {
            "threads"
        }
    }

    /// Whether nothing is queued or in flight, whether or not somebody waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.available_permits() == self.slot_count
    }

    /// Performs `op`. Once started it runs to its end, whether or not the future is kept.
    pub(crate) async fn perform(&self, op: Op) -> io::Result<Outcome> {
        let slot = self.slot().await?;
        let (done, result) = oneshot::channel();
        let request = Box::new(Request {
            op,
            done,
            _slot: slot,
        });
        match (&self.ring, &self.syncers) {
            (Some(ring), _) if !request.op.prefers_thread() => ring.send(request),
            (_, syncers) => syncers
                .as_ref()
                .unwrap_or(&self.workers)
                .send(Box::new(move || perform_blocking(*request))),
        }
        result.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Runs `call` on a thread that may block; once started it runs to its end.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let slot = self.slot().await?;
        let (done, result) = oneshot::channel();
        self.workers.send(Box::new(move || {
            let _ = done.send(call());
            drop(slot);
        }));
        result.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Ends the threads when they have finished what they have; false if some have not by `deadline`.
    pub(crate) fn end(&mut self, deadline: Instant) -> bool {
        let ring = self.ring.as_mut().is_none_or(|ring| ring.end(deadline));
        let syncers = self.syncers.as_mut();
        let syncers = syncers.is_none_or(|workers| workers.end(deadline));
        self.workers.end(deadline) && ring && syncers
    }

    async fn slot(&self) -> io::Result<OwnedSemaphorePermit> {
        let slots = self.slots.clone();
        slots.acquire_owned().await.map_err(|_| stopped())
    }
}

fn perform_blocking(request: Request) {
    let Request { op, done, _slot } = request;
    let _ = done.send(perform_here(op));
}

/// Performs `op` in this thread.
pub(crate) fn perform_here(mut op: Op) -> io::Result<Outcome> {
    loop {
        let result = op.call();
        if let Step::Finished(result) = op.complete(result) {
            return result;
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other("the disk's I/O thread has stopped")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_disk_that_hangs_does_not_keep_others_from_closing_it() {
        for choice in [EngineChoice::Auto, EngineChoice::Threads] {
            let settings = DiskSettings {
                engine: choice,
                ..DiskSettings::default()
            };
            let mut engine = Engine::start(&settings).unwrap();
            let (hang, hangs) = channel::<()>();
            let (begun, has_begun) = channel();
            let call = engine.call(move || {
                begun.send(()).unwrap();
                let _ = hangs.recv();
                Ok(())
            });
            // It runs to its end, whether or not somebody waits for it.
            assert!(call.now_or_never().is_none());
            has_begun.recv().unwrap();
            assert!(
                !engine.is_idle(),
                "nobody waits for it, and it is under way"
            );
            assert!(!engine.end(Instant::now() + Duration::from_millis(20)));
            drop(hang);
            drop(engine);
            let mut idle = Engine::start(&settings).unwrap();
            assert!(idle.is_idle());
            assert!(idle.end(Instant::now() + Duration::from_secs(60)));
        }
    }
}
