//! How one disk answers.
//!
//! Owns: the operations under way and what they took, giving up those without an answer. Must not know: when a
//! disk is bad ([`crate::judge`]).
//!
//! Single operations are timed. Work that is made of many takes as long as it takes: each of its parts has an
//! answer in time where the disk works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::disk::{DiskError, IoFuture};
use cairn_base::env::Clock;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ages::Ages;

/// An operation for which there is no file descriptor is tried again after so long...
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);
/// ... and that is said so often.
const DESCRIPTOR_LOG_INTERVAL: Duration = Duration::from_secs(60);

const ORDER: Ordering = Ordering::Relaxed;

/// What a disk answered since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub ops: u64,
    pub nanos: u64,
    pub errors: u64,
}

/// What a disk answered to changes: writes, new files, other names and lengths. Syncs are none: a file system that is frozen,
/// or that nothing was written to, answers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub good: u64,
    pub errors: u64,
}

/// The record of a disk's answers.
pub struct Answers {
    clock: Arc<dyn Clock>,
    label: String,
    /// An operation that takes so long has no answer.
    hang_after: Duration,
    /// Operations under way.
    under_way: Ages,
    /// Of these, changes.
    changing: Ages,
    /// Changes that were made, and those that failed.
    changes: AtomicU64,
    change_errors: AtomicU64,
    /// When the last operation, and the last change, had an answer, in nanoseconds of the monotonic clock.
    answered_at: AtomicU64,
    changed_at: AtomicU64,
    /// Work made of many operations that write: not timed, and not over before the last of them.
    work: Ages,
    ops: AtomicU64,
    nanos: AtomicU64,
    /// Of the operations, those that failed, for any caller.
    errors: AtomicU64,
    given_up: AtomicBool,
    gone: Notify,
    why: Mutex<Option<String>>,
    /// Its trouble, although it is not faulted.
    trouble: Mutex<Option<String>>,
    /// How the last change that failed did.
    change_error: Mutex<Option<String>>,
    /// A probe is under way.
    probing: AtomicBool,
    /// What others keep in its folder is being counted.
    counting: AtomicBool,
    /// The last one failed.
    probe_failed: AtomicBool,
    /// It was reopened after a fault, and has not been looked at since.
    untried: AtomicBool,
    /// When it was last said that there is no file descriptor.
    starved: Mutex<Option<Duration>>,
}

impl Answers {
    pub fn new(clock: Arc<dyn Clock>, label: String, hang_after: Duration) -> Self {
        Self {
            clock,
            label,
            hang_after,
            under_way: Ages::new(),
            changing: Ages::new(),
            changes: AtomicU64::new(0),
            change_errors: AtomicU64::new(0),
            answered_at: AtomicU64::new(0),
            changed_at: AtomicU64::new(0),
            work: Ages::new(),
            ops: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            gone: Notify::new(),
            why: Mutex::new(None),
            trouble: Mutex::new(None),
            change_error: Mutex::new(None),
            probing: AtomicBool::new(false),
            counting: AtomicBool::new(false),
            probe_failed: AtomicBool::new(false),
            untried: AtomicBool::new(false),
            starved: Mutex::new(None),
        }
    }

    fn begin(&self) -> PendingOperation<'_> {
        PendingOperation {
            answers: self,
            counted: AgeGuard::begin(&self.under_way, self.clock.monotonic()),
        }
    }

    /// Work that is made of operations, each watched by itself; it is over when what this returns is dropped.
    pub fn begin_work(&self) -> AgeGuard<'_> {
        AgeGuard::begin(&self.work, self.clock.monotonic())
    }

    /// Whether an operation of before `now` minus `after`, at most [`super::HANG_AFTER_MAX`], is under way; what began before
    /// `base` counts as begun then.
    pub fn waits(&self, after: Duration, now: Duration, base: Duration) -> bool {
        is_any_late(&self.under_way, after, now, base)
    }

    /// Whether, for `after`, there was no answer although something was asked, or no answer to a change although one was asked
    /// for. A disk that is slow or has much to do answers some.
    pub fn is_silent(&self, after: Duration, now: Duration, base: Duration) -> bool {
        let is_quiet = |at: &AtomicU64| {
            let at = Duration::from_nanos(at.load(ORDER));
            now.saturating_sub(at) >= after
        };
        is_quiet(&self.answered_at) && self.waits(after, now, base)
            || is_quiet(&self.changed_at) && is_any_late(&self.changing, after, now, base)
    }

    pub fn hangs(&self, now: Duration, base: Duration) -> bool {
        self.waits(self.hang_after, now, base)
    }

    /// Whether nothing that began up to `since`, at most a minute ago, is under way.
    pub fn is_idle(&self, since: Duration) -> bool {
        let later = since.saturating_add(Duration::from_secs(1));
        !self.under_way.any_before(later) && !self.work.any_before(later)
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Why it is not used any more, or what it is waited for.
    pub fn problem(&self) -> Option<String> {
        let why = self.why.lock().clone();
        why.or_else(|| self.trouble.lock().clone())
    }

    /// Operations that had an answer, nanoseconds that they took together, and how many of them failed.
    pub fn counts(&self) -> Counts {
        Counts {
            ops: self.ops.load(ORDER),
            nanos: self.nanos.load(ORDER),
            errors: self.errors.load(ORDER),
        }
    }

    /// How changes ended.
    pub fn changes(&self) -> Changes {
        Changes {
            good: self.changes.load(ORDER),
            errors: self.change_errors.load(ORDER),
        }
    }

    /// How the last change that failed did.
    pub fn change_error(&self) -> Option<String> {
        self.change_error.lock().clone()
    }

    /// It has to prove itself before it is counted on.
    pub fn set_untried(&self) {
        self.untried.store(true, Ordering::Release);
    }

    /// Whether it was reopened and not looked at since; it is now.
    pub fn take_untried(&self) -> bool {
        self.untried.swap(false, Ordering::AcqRel)
    }

    /// Whether it is to be asked now whether it works: not while it is asked.
    pub fn begin_probe(&self) -> bool {
        !self.probing.swap(true, Ordering::AcqRel)
    }

    /// How a probe ended; `error`: why it failed.
    pub fn note_probe(&self, error: Option<String>) {
        self.probe_failed.store(error.is_some(), Ordering::Release);
        if error.is_some() {
            *self.change_error.lock() = error;
        }
    }

    /// Whether the last one failed.
    pub fn probe_failed(&self) -> bool {
        self.probe_failed.load(Ordering::Acquire)
    }

    pub fn end_probe(&self) {
        self.probing.store(false, Ordering::Release);
    }

    /// Whether what others keep in its folder is to be counted now: not while that is under way.
    pub fn begin_count(&self) -> bool {
        !self.counting.swap(true, Ordering::AcqRel)
    }

    pub fn end_count(&self) {
        self.counting.store(false, Ordering::Release);
    }

    pub fn refusal(&self) -> DiskError {
        let why = self.why.lock().clone();
        DiskError::Io {
            disk: self.label.clone(),
            what: "the disk is not used any more".to_owned(),
            detail: why.unwrap_or_default(),
        }
    }

    pub fn give_up(&self, why: String) {
        if self.let_go(why.clone()) {
            tracing::error!(disk = self.label, why, "this disk is not used any more");
        }
    }

    /// Whether it was not before.
    pub fn let_go(&self, why: String) -> bool {
        if self.given_up.swap(true, Ordering::AcqRel) {
            return false;
        }
        *self.why.lock() = Some(why);
        self.gone.notify_waiters();
        true
    }

    /// Notes what is wrong with it although it is not put out, or that nothing is; says so when that changes.
    pub fn note_trouble(&self, why: Option<String>) {
        let mut trouble = self.trouble.lock();
        match &why {
            Some(why) if trouble.is_none() => {
                tracing::error!(disk = self.label, why, "something is wrong with this disk");
            }
            None if trouble.is_some() => {
                tracing::warn!(disk = self.label, "the disk answers again");
            }
            _ => {}
        }
        *trouble = why;
    }

    /// It is faulted: its trouble is the verdict's reason now.
    pub fn drop_trouble(&self) {
        *self.trouble.lock() = None;
    }

    fn tell_starved(&self, error: &DiskError) {
        let now = self.clock.monotonic();
        let mut last = self.starved.lock();
        if last.is_none_or(|last| now.saturating_sub(last) >= DESCRIPTOR_LOG_INTERVAL) {
            *last = Some(now);
            tracing::warn!("operations wait: {error}");
        }
    }

    pub async fn watch<T>(&self, op: IoFuture<'_, T>) -> Result<T, DiskError> {
        let timed = async {
            let under_way = self.begin();
            let result = op.await;
            under_way.note_answer(matches!(result, Err(DiskError::Io { .. })));
            result
        };
        self.until_given_up(timed).await
    }

    /// As [`Self::watch`], for a change.
    pub async fn watch_change<T>(&self, op: IoFuture<'_, T>) -> Result<T, DiskError> {
        let _changing = AgeGuard::begin(&self.changing, self.clock.monotonic());
        let result = self.watch(op).await;
        // A refused operation says nothing of the disk.
        let is_answer = !self.is_given_up()
            && match &result {
                Ok(_) => {
                    self.changes.fetch_add(1, ORDER);
                    true
                }
                Err(error @ DiskError::Io { .. }) => {
                    *self.change_error.lock() = Some(error.to_string());
                    self.change_errors.fetch_add(1, ORDER);
                    true
                }
                Err(_) => false,
            };
        if is_answer {
            self.changed_at
                .store(nanos_of(self.clock.monotonic()), ORDER);
        }
        result
    }

    /// Without a look at the time: work made of many operations says nothing of how the disk answers.
    pub async fn until_given_up<T>(
        &self,
        work: impl Future<Output = Result<T, DiskError>>,
    ) -> Result<T, DiskError> {
        // Made before it is asked, so that no word is missed between the two.
        let gone = self.gone.notified();
        if self.is_given_up() {
            return Err(self.refusal());
        }
        match select(std::pin::pin!(work), std::pin::pin!(gone)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(self.refusal()),
        }
    }
}

/// Asks until there is a file descriptor for it: none is a matter of the process and of some moments, and
/// clients wait. An error would make a good disk look bad. The pauses do not count as time without an answer.
pub async fn patiently<'a, T>(
    answers: &Answers,
    ask: impl Fn() -> IoFuture<'a, T>,
) -> Result<T, DiskError> {
    until_a_descriptor(answers, move || answers.watch(ask())).await
}

/// As [`patiently`], for a change.
pub async fn patiently_changing<'a, T>(
    answers: &Answers,
    ask: impl Fn() -> IoFuture<'a, T>,
) -> Result<T, DiskError> {
    until_a_descriptor(answers, move || answers.watch_change(ask())).await
}

/// As [`patiently`], for work that is made of many operations and is not timed.
pub async fn patiently_untimed<'a, T>(
    answers: &Answers,
    ask: impl Fn() -> IoFuture<'a, T>,
) -> Result<T, DiskError> {
    until_a_descriptor(answers, move || answers.until_given_up(ask())).await
}

async fn until_a_descriptor<T, F: Future<Output = Result<T, DiskError>>>(
    answers: &Answers,
    ask: impl Fn() -> F,
) -> Result<T, DiskError> {
    loop {
        match ask().await {
            Err(error @ DiskError::NoDescriptor { .. }) => {
                answers.tell_starved(&error);
                answers.clock.sleep(DESCRIPTOR_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Whether something of before `now` minus `after` is under way; what began before `base` counts as begun then.
fn is_any_late(ages: &Ages, after: Duration, now: Duration, base: Duration) -> bool {
    let late = now.checked_sub(after).filter(|late| *late > base);
    late.is_some_and(|late| ages.any_before(late))
}

fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Something under way, until it is dropped.
pub struct AgeGuard<'a> {
    ages: &'a Ages,
    begun: Duration,
}

impl<'a> AgeGuard<'a> {
    fn begin(ages: &'a Ages, begun: Duration) -> Self {
        ages.begin(begun);
        Self { ages, begun }
    }
}

impl Drop for AgeGuard<'_> {
    fn drop(&mut self) {
        self.ages.end(self.begun);
    }
}

struct PendingOperation<'a> {
    answers: &'a Answers,
    counted: AgeGuard<'a>,
}

impl PendingOperation<'_> {
    /// An operation that is dropped without one, because its disk is silent or is given up, says nothing of how the disk answers.
    fn note_answer(&self, is_error: bool) {
        let answers = self.answers;
        let now = answers.clock.monotonic();
        let took = now.saturating_sub(self.counted.begun);
        answers.ops.fetch_add(1, ORDER);
        answers.errors.fetch_add(u64::from(is_error), ORDER);
        answers.nanos.fetch_add(nanos_of(took), ORDER);
        answers.answered_at.store(nanos_of(now), ORDER);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::{Context, Poll, Waker};

    use cairn_testkit::TestWorld;

    use super::super::SILENT_AFTER;
    use super::*;

    #[test]
    fn operations_without_an_answer_are_told_by_age() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(100));
        let clock = world.env.clock.clone();
        let answers = Answers::new(clock.clone(), "disk".to_owned(), Duration::from_secs(30));
        let begun = clock.monotonic();
        let under_way = answers.begin();
        let base = Duration::ZERO;
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(!answers.hangs(at(0), base));
        assert!(!answers.hangs(at(29), base));
        assert!(answers.hangs(at(32), base));
        assert!(!answers.waits(SILENT_AFTER, at(1), base));
        assert!(answers.waits(SILENT_AFTER, at(4), base));
        // The process was stopped for a while: that is not the disk's fault.
        assert!(!answers.hangs(at(32), at(31)));
        assert!(answers.hangs(at(63), at(31)));
        assert!(!answers.is_idle(begun));
        assert!(!answers.is_idle(at(2)));
        let later = begun - Duration::from_secs(1);
        assert!(answers.is_idle(later), "it began after that");
        // However long it is under way, and whatever else comes and goes meanwhile.
        for seconds in 32..300 {
            world.clock.advance(at(seconds) - clock.monotonic());
            drop(answers.begin());
            assert!(answers.hangs(at(seconds), base), "{seconds}");
            assert!(!answers.is_idle(at(seconds - 1)), "{seconds}");
        }
        drop(under_way);
        assert!(answers.is_idle(begun));
        assert!(!answers.hangs(at(300), base));
    }

    /// A file system that is frozen can be read, and answers syncs.
    #[test]
    fn a_disk_that_answers_no_change_is_silent_although_it_is_read() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(100));
        let clock = world.env.clock.clone();
        let answers = Answers::new(clock.clone(), "disk".to_owned(), Duration::from_secs(30));
        let mut context = Context::from_waker(Waker::noop());
        let is_silent = || answers.is_silent(SILENT_AFTER, clock.monotonic(), Duration::ZERO);
        let read = || {
            let mut context = Context::from_waker(Waker::noop());
            let mut read = Box::pin(answers.watch(Box::pin(async { Ok(()) })));
            assert!(read.as_mut().poll(&mut context).is_ready());
        };
        // A slow one that changes something now and then is busy.
        let mut slow = Box::pin(answers.watch_change::<()>(Box::pin(std::future::pending())));
        assert!(slow.as_mut().poll(&mut context).is_pending());
        for _ in 0..10 {
            let mut done = Box::pin(answers.watch_change(Box::pin(async { Ok(()) })));
            assert!(done.as_mut().poll(&mut context).is_ready());
            world.clock.advance(Duration::from_millis(500));
            assert!(!is_silent());
        }
        for _ in 0..10 {
            read();
            world.clock.advance(Duration::from_millis(250));
        }
        assert!(is_silent(), "it was read all the time");
        assert_eq!(
            answers.changes(),
            Changes {
                good: 10,
                errors: 0
            }
        );
        drop(slow);
        assert!(!is_silent());
        // What fails is an answer, and counted apart.
        let error = DiskError::Io {
            disk: "disk".to_owned(),
            what: "writing".to_owned(),
            detail: "read-only".to_owned(),
        };
        let failed = Box::pin(async { Err::<(), _>(error) });
        let mut failed = Box::pin(answers.watch_change(failed));
        assert!(failed.as_mut().poll(&mut context).is_ready());
        assert_eq!(
            answers.changes(),
            Changes {
                good: 10,
                errors: 1
            }
        );
        assert!(
            answers
                .change_error()
                .is_some_and(|why| why.contains("read-only"))
        );
    }

    /// A read that is not waited for any longer, because its disk is silent, is no sign of life.
    #[test]
    fn what_is_dropped_before_its_answer_counts_as_none() {
        let world = TestWorld::new(1);
        let answers = Answers::new(
            world.env.clock.clone(),
            "disk".to_owned(),
            Duration::from_secs(30),
        );
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = Box::pin(answers.watch::<()>(Box::pin(std::future::pending())));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        world.clock.advance(SILENT_AFTER);
        drop(waiting);
        assert_eq!(answers.counts(), Counts::default());
        assert!(answers.is_idle(world.env.clock.monotonic()));
        let mut answered = Box::pin(answers.watch(Box::pin(async { Ok(()) })));
        assert!(answered.as_mut().poll(&mut context).is_ready());
        assert_eq!(answers.counts().ops, 1);
    }

    #[test]
    fn what_finds_no_descriptor_waits_for_one() {
        let world = TestWorld::new(1);
        let answers = Answers::new(
            world.env.clock.clone(),
            "disk".to_owned(),
            Duration::from_secs(30),
        );
        let asked = AtomicU32::new(0);
        let mut waiting = Box::pin(patiently(&answers, || {
            let none = DiskError::NoDescriptor {
                disk: "disk".to_owned(),
                what: "opening a file".to_owned(),
            };
            let tries = asked.fetch_add(1, ORDER) + 1;
            Box::pin(async move { if tries < 1000 { Err(none) } else { Ok(tries) } })
        }));
        let mut context = Context::from_waker(Waker::noop());
        // Longer than a disk may take for an answer.
        let tries = loop {
            match waiting.as_mut().poll(&mut context) {
                Poll::Ready(result) => break result,
                Poll::Pending => world.clock.advance(DESCRIPTOR_PAUSE),
            }
            assert!(!answers.hangs(world.env.clock.monotonic(), Duration::ZERO));
        };
        assert_eq!(tries, Ok(1000));
        // A disk that is given up meanwhile is not waited for.
        let mut waiting = Box::pin(patiently::<()>(&answers, || {
            let (disk, what) = (String::new(), String::new());
            Box::pin(async { Err(DiskError::NoDescriptor { disk, what }) })
        }));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        answers.give_up("for a test".to_owned());
        world.clock.advance(DESCRIPTOR_PAUSE);
        let ended = waiting.as_mut().poll(&mut context);
        assert!(matches!(ended, Poll::Ready(Err(DiskError::Io { .. }))));
    }
}
