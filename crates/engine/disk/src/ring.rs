//! The io_uring thread of one disk.
//!
//! Owns: the ring, the requests in flight and with them every buffer that the kernel may touch.
//! Must not know: files by name, what the bytes are.
//!
//! Senders put requests into a queue and write to an eventfd, but only when the thread sleeps. The
//! thread takes all that is queued, gives it to the kernel with one system call and sleeps in that
//! same call until something completes or the eventfd becomes readable.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use parking_lot::Mutex;
use slab::Slab;

use crate::engine::Request;
use crate::op::Step;
use crate::workers::{END_MAX, join};

/// The completion that only says "look at the queue".
const WAKE_KEY: u64 = u64::MAX;

struct RingCore {
    queue: Mutex<VecDeque<Box<Request>>>,
    /// The thread is, or is about to be, in the kernel and will not look at the queue by itself.
    sleeping: AtomicBool,
    stop: AtomicBool,
    wake: OwnedFd,
}

impl RingCore {
    fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes 8 bytes of a live array to an open eventfd. It only fails when the counter
        // is full, and then the thread is being woken already.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

pub(crate) struct Ring {
    shared: Arc<RingCore>,
    thread: Option<JoinHandle<()>>,
}

impl Ring {
    /// `in_flight_max` requests can be with the kernel at once; senders keep to it.
    /// Fails where the kernel has no io_uring or refuses it.
    pub(crate) fn start(in_flight_max: u32) -> io::Result<Self> {
        // SAFETY: a plain system call; the result is checked before it becomes an owned descriptor.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if wake < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and owned by nobody else.
        let wake = unsafe { OwnedFd::from_raw_fd(wake) };
        let shared = Arc::new(RingCore {
            queue: Mutex::default(),
            sleeping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wake,
        });
        let entries = in_flight_max.saturating_add(1).next_power_of_two();
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let for_thread = shared.clone();
        // The ring is built in its thread: a single-issuer ring belongs to the thread that made it.
        let thread = std::thread::Builder::new()
            .name("cairn-ring".into())
            .spawn(move || match build(entries) {
                Ok(ring) => {
                    // The receiver waits below, so this cannot fail.
                    let _ = ready.send(Ok(()));
                    RingThread::new(ring, for_thread).run();
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })?;
        started
            .recv()
            .map_err(|_| io::Error::other("the ring thread ended at its start"))??;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    pub(crate) fn send(&self, request: Box<Request>) {
        self.shared.queue.lock().push_back(request);
        // The queue's lock orders this after the thread's announcement that it sleeps, if the
        // thread has looked at the queue before the push.
        if self.shared.sleeping.swap(false, Ordering::SeqCst) {
            self.shared.wake();
        }
    }
}

impl Ring {
    /// Waits for transfers in flight, so that nothing touches the disk after it was closed. False if that takes
    /// until after `deadline`: then the thread, with the buffers, ends whenever the kernel is done.
    pub(crate) fn end(&mut self, deadline: Instant) -> bool {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake();
        self.thread
            .take()
            .is_none_or(|thread| join(thread, deadline))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.end(Instant::now() + END_MAX);
    }
}

fn build(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(entries)
        // Kernels before 6.1 do not know these flags.
        .or_else(|_| IoUring::new(entries))
        .and_then(|ring| {
            let mut probe = Probe::new();
            // Kernels before 5.6 know neither this nor all operations.
            ring.submitter().register_probe(&mut probe)?;
            require_operations(|code| probe.is_supported(code))?;
            Ok(ring)
        })
}

/// Fails unless the kernel knows all operations that are used.
fn require_operations(is_known: impl Fn(u8) -> bool) -> io::Result<()> {
    const NEEDED: [(u8, &str); 4] = [
        (opcode::Read::CODE, "read"),
        (opcode::Write::CODE, "write"),
        (opcode::Writev::CODE, "writev"),
        (opcode::Fsync::CODE, "fsync"),
    ];
    match NEEDED.iter().find(|(code, _)| !is_known(*code)) {
        None => Ok(()),
        Some((_, name)) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel's io_uring has no {name}"),
        )),
    }
}

struct RingThread {
    ring: IoUring,
    shared: Arc<RingCore>,
    in_flight: Slab<Box<Request>>,
    batch: VecDeque<Box<Request>>,
    /// Keys whose operation has to be given to the kernel.
    runnable: Vec<usize>,
    wake_buf: Box<[u8; 8]>,
    wake_armed: bool,
}

impl RingThread {
    fn new(ring: IoUring, shared: Arc<RingCore>) -> Self {
        Self {
            ring,
            shared,
            in_flight: Slab::new(),
            batch: VecDeque::new(),
            runnable: Vec::new(),
            wake_buf: Box::new([0; 8]),
            wake_armed: false,
        }
    }

    fn run(mut self) {
        loop {
            self.take_queued();
            self.submit_runnable();
            let stop = self.shared.stop.load(Ordering::SeqCst);
            if stop && self.in_flight.is_empty() && !self.wake_armed {
                return;
            }
            if !stop && !self.wake_armed {
                self.arm_wake();
            }
            self.enter();
            self.reap();
        }
    }

    fn take_queued(&mut self) {
        std::mem::swap(&mut *self.shared.queue.lock(), &mut self.batch);
        while let Some(request) = self.batch.pop_front() {
            let key = self.in_flight.insert(request);
            self.runnable.push(key);
        }
    }

    fn submit_runnable(&mut self) {
        while let Some(key) = self.runnable.pop() {
            if let Some(request) = self.in_flight.get_mut(key) {
                let entry = request.op.entry().user_data(key as u64);
                self.push(&entry);
            }
        }
    }

    fn arm_wake(&mut self) {
        let fd: RawFd = self.shared.wake.as_raw_fd();
        let entry = opcode::Read::new(types::Fd(fd), self.wake_buf.as_mut_ptr(), 8)
            .build()
            .user_data(WAKE_KEY);
        self.push(&entry);
        self.wake_armed = true;
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the entry points into a boxed request in `in_flight` (or `wake_buf`), which
            // stays there until its completion was reaped.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // Full: hand over the entries that are there. The kernel copies entries at once.
            if let Err(error) = self.ring.submit() {
                pause_on_error(&error);
            }
        }
    }

    fn enter(&mut self) {
        self.shared.sleeping.store(true, Ordering::SeqCst);
        let idle = self.shared.queue.lock().is_empty();
        let result = self.ring.submit_and_wait(usize::from(idle));
        self.shared.sleeping.store(false, Ordering::SeqCst);
        if let Err(error) = result {
            pause_on_error(&error);
        }
    }

    fn reap(&mut self) {
        let mut woken = false;
        for completion in self.ring.completion() {
            if completion.user_data() == WAKE_KEY {
                woken = true;
                continue;
            }
            let key = completion.user_data() as usize;
            let Some(request) = self.in_flight.get_mut(key) else {
                continue;
            };
            match request.op.complete(completion.result()) {
                Step::Again => self.runnable.push(key),
                Step::Finished(result) => self.in_flight.remove(key).finish(result),
            }
        }
        if woken {
            self.wake_armed = false;
        }
    }
}

fn pause_on_error(error: &io::Error) {
    if !matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    ) {
        // Nothing sensible can be done but trying again; the pause keeps the log and the core usable.
        tracing::error!(%error, "io_uring_enter failed; trying again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 5.1 to 5.5 has io_uring with vectors of buffers only.
    #[test]
    fn a_ring_without_plain_reads_is_refused() {
        require_operations(|_| true).expect("all are known");
        let refused = require_operations(|code| code < opcode::Read::CODE);
        let refused = refused.expect_err("read is newer than writev");
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        assert!(refused.to_string().contains("read"), "{refused}");
    }
}
