//! Reading from a disk that may never answer.
//!
//! Owns: threads that wait for such disks, and the wait of their callers. Must not know: the data that is read.
//!
//! A reader waits on its own thread, unless it forbade that with [`without_waiting`]. Then the read fails, and a task
//! that waits without a thread can load the entry into memory.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender};
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::env::Clock;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::MetaError;

/// Interval of the check whether a disk is still in use, while work on its folder takes longer.
const ANSWER_POLL: Duration = Duration::from_secs(1);
/// Pause between tries to start a thread, which go on for 5 s.
const THREAD_POLL: Duration = Duration::from_millis(20);
const THREAD_ATTEMPTS_MAX: u32 = 250;
/// Threads kept for the next readers.
const IDLE_MAX: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// The entry that a read needed and could not wait for.
pub(crate) struct RefusedRead {
    readers: Readers,
    disk: Arc<dyn Disk>,
    work: Box<dyn FnOnce() -> bool + Send>,
}

/// Whether reads of this thread may wait.
enum WaitPermission {
    Allowed,
    Forbidden,
    /// The first read that was refused, with the entry that it needed.
    Refused(RefusedRead),
}

thread_local! {
    static WAITING: RefCell<WaitPermission> = const { RefCell::new(WaitPermission::Allowed) };
}

/// Runs `work` without waiting for a disk. A read that would wait fails; the first of them is returned.
pub(crate) fn without_waiting<T>(work: impl FnOnce() -> T) -> (T, Option<RefusedRead>) {
    /// Restores the permission, even if the work panics.
    struct Allow;
    impl Drop for Allow {
        fn drop(&mut self) {
            WAITING.set(WaitPermission::Allowed);
        }
    }
    WAITING.set(WaitPermission::Forbidden);
    let allow = Allow;
    let done = work();
    let wanted = match WAITING.replace(WaitPermission::Forbidden) {
        WaitPermission::Refused(wanted) => Some(wanted),
        WaitPermission::Allowed | WaitPermission::Forbidden => None,
    };
    drop(allow);
    (done, wanted)
}

/// Fails if this thread must not wait for a read. Keeps the work that loads the entry into memory: `bring` makes that
/// work, which returns whether it succeeded.
pub(super) fn unless_forbidden<W: FnOnce() -> bool + Send + 'static>(
    readers: &Readers,
    disk: &Arc<dyn Disk>,
    bring: impl FnOnce() -> W,
) -> Result<(), MetaError> {
    WAITING.with_borrow_mut(|waiting| {
        match waiting {
            WaitPermission::Allowed => return Ok(()),
            WaitPermission::Refused(_) => {}
            WaitPermission::Forbidden => {
                *waiting = WaitPermission::Refused(RefusedRead {
                    readers: readers.clone(),
                    disk: disk.clone(),
                    work: Box::new(bring()),
                });
            }
        }
        Err(MetaError::NotInMemory)
    })
}

impl RefusedRead {
    /// Loads the entry into memory, and returns whether that worked. Gives up when the disk is faulted.
    pub async fn bring(self, clock: &dyn Clock) -> bool {
        let (sender, mut answer) = oneshot::channel();
        let work = self.work;
        // The caller may have gone away.
        let job = move || {
            let _ = sender.send(work());
        };
        self.readers.start(Box::new(job));
        loop {
            match select(answer, clock.sleep(ANSWER_POLL)).await {
                Either::Left((brought, _)) => return brought.unwrap_or(false),
                Either::Right(_) if self.disk.space().is_err() => return false,
                Either::Right((_, rest)) => answer = rest,
            }
        }
    }
}

/// Threads that read, each for one waiting caller. There is no limit, so a thread stuck on a disk delays no other
/// reader.
#[derive(Clone, Default)]
pub(super) struct Readers {
    idle: Arc<Mutex<Vec<Sender<Job>>>>,
}

impl Readers {
    /// Runs work that reads from a disk on another thread. Waits while the disk reports its free space; a faulted disk
    /// does not.
    pub fn read<T: Send + 'static>(
        &self,
        disk: &dyn Disk,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, MetaError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        // The caller may have gone away.
        self.start(Box::new(move || drop(sender.send(work()))));
        answer(disk, &receiver)
    }

    fn start(&self, mut job: Job) {
        while let Some(thread) = { self.idle.lock().pop() } {
            match thread.send(job) {
                Ok(()) => return,
                Err(SendError(back)) => job = back,
            }
        }
        let idle = Arc::downgrade(&self.idle);
        let work = move || {
            let mut next = Some(job);
            while let Some(job) = next {
                job();
                let (sender, receiver) = mpsc::channel();
                // The owner of the list may go away meanwhile, and the senders with it.
                let Some(idle) = idle.upgrade() else { return };
                let mut threads = idle.lock();
                if threads.len() >= IDLE_MAX {
                    return;
                }
                threads.push(sender);
                drop(threads);
                drop(idle);
                next = receiver.recv().ok();
            }
        };
        spawn("meta-read", work);
    }
}

/// Runs work on a disk's folder that bypasses the disk, on a thread of its own, and waits as [`Readers::read`] does.
/// The thread ends when the work does.
pub(super) fn while_it_answers<T: Send + 'static>(
    disk: &dyn Disk,
    work: impl FnOnce() -> Result<T, MetaError> + Send + 'static,
) -> Result<T, MetaError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // The caller may have gone away.
    spawn("meta-state", move || drop(sender.send(work())));
    answer(disk, &receiver)?
}

/// Runs blocking work on a thread of its own, so that no task waits for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MetaError> + Send + 'static,
) -> Result<T, MetaError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // The caller may have gone away; the work is done all the same.
    spawn("meta-state", move || drop(sender.send(work())));
    receiver.await.unwrap_or_else(|_| Err(panicked()))
}

/// Starts a thread. A machine without free threads may have one again in a moment, so this retries for a while. A
/// process that gets none for that long exits: it could only answer its clients with errors, and its successor may do
/// better. The caller waits here, even if it is a task: nothing else would make progress either.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let work = Arc::new(Mutex::new(Some(work)));
    for attempt in 1.. {
        let slot = Arc::clone(&work);
        let run = move || {
            let work = slot.lock().take();
            if let Some(work) = work {
                work();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        match thread.spawn(run) {
            Ok(_) => return,
            Err(_) if attempt < THREAD_ATTEMPTS_MAX => std::thread::sleep(THREAD_POLL),
            Err(error) => {
                tracing::error!(%error, "no thread can be started, and nothing works without: the process ends; look at the limits of threads and of memory");
                std::process::abort();
            }
        }
    }
}

fn answer<T>(disk: &dyn Disk, receiver: &Receiver<T>) -> Result<T, MetaError> {
    loop {
        match receiver.recv_timeout(ANSWER_POLL) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => disk.space().map(drop)?,
            Err(RecvTimeoutError::Disconnected) => return Err(panicked()),
        }
    }
}

fn panicked() -> MetaError {
    MetaError::State("a thread of the state panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use cairn_testkit::{Crash, MemDisk};

    use super::*;

    #[test]
    fn nobody_waits_for_a_disk_that_is_not_used_any_more() {
        let disk = MemDisk::new("disk", 1 << 20);
        let readers = Readers::default();
        let done = while_it_answers(&*disk, || Ok(7));
        assert!(matches!(done, Ok(7)), "{done:?}");
        drop(disk.crash(Crash::Random, 1));
        let (hang, hangs) = mpsc::channel::<()>();
        let result = while_it_answers(&*disk, move || {
            let _ = hangs.recv();
            Ok(())
        });
        assert!(matches!(result, Err(MetaError::Disk(_))), "{result:?}");
        drop(hang);
        let (hang, hangs) = mpsc::channel::<()>();
        let result = readers.read(&*disk, move || hangs.recv().is_ok());
        assert!(matches!(result, Err(MetaError::Disk(_))), "{result:?}");
        // The hanging thread delays nobody.
        assert_eq!(readers.read(&*disk, || 8).expect("reads"), 8);
        drop(hang);
    }

    /// The number of parallel readers is unlimited, and few threads stay.
    #[test]
    fn readers_are_as_many_as_are_needed() {
        const COUNT: usize = 3 * IDLE_MAX;
        let disk = MemDisk::new("disk", 1 << 20);
        let readers = Readers::default();
        let all_are_there = Arc::new(Barrier::new(COUNT));
        std::thread::scope(|scope| {
            for _ in 0..COUNT {
                scope.spawn(|| {
                    let all = all_are_there.clone();
                    readers
                        .read(&*disk, move || all.wait().is_leader())
                        .expect("reads");
                });
            }
        });
        // The last thread may still be on its way to the list.
        for nth in 0..50 {
            assert_eq!(readers.read(&*disk, move || nth).expect("reads"), nth);
            assert!(readers.idle.lock().len() <= IDLE_MAX);
        }
    }
}
