//! Watches how disks answer: one that hangs, is far slower than the others, or fails again and again is
//! not used any more.
//!
//! Owns: how long operations take, when that is too long, what is said about it.
//! Must not know: what is read or written; what becomes of the data (`rebuild` sees to that).
//!
//! An operation without an answer is given up with an error, so that its data is read from, or written
//! to, other disks. Nothing is asked of that disk again before the next start, or before it is replaced: a
//! write that was given up may still land at any time.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::DiskId;
use cairn_base::disk::{Disk, DiskError, DiskFile, DiskSpace, IoFuture, OpenMode};
use cairn_base::env::Clock;
use cairn_shard::ShardDisk;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::assemble::failures_tolerated;
use crate::node::Inner;

/// How often disks are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A disk that answers nothing for so long is not waited for where what is on it can be had from others.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// A look that comes so late says that the process was stopped, not that disks hang.
const LOOK_LATE: Duration = Duration::from_secs(5);
/// How often disks are asked to write something, whether or not they are used; at each look after a failure.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// An operation that takes so long has no answer.
pub const HANG_AFTER: Duration = Duration::from_secs(30);
/// A disk is slow if its operations take so many times as long as those of the others, and so long...
const SLOW_FACTOR: u32 = 10;
const SLOW_MIN: Duration = Duration::from_millis(100);
/// ... for so many looks in a row, each over the time since so many looks before, with so many operations: the
/// slower a disk is, the fewer of them there are, on the others, too, that wait for it.
const SLOW_LOOKS: u32 = 30;
const SLOW_WINDOW: usize = 10;
const SLOW_OPS_MIN: u64 = 4;
/// An operation for which there is no file descriptor is tried again after so long...
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);
/// ... and that is said so often.
const DESCRIPTOR_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// So many errors within as many looks are too many, also if operations between them succeed.
const ERRORS_MAX: u64 = 32;
const ERRORS_LOOKS: usize = 60;
/// Seconds that operations under way are told apart by.
const SLOTS: u64 = 64;

const _: () = assert!(SLOTS > HANG_AFTER.as_secs() + LOOK_LATE.as_secs() + 2);

const ORDER: Ordering = Ordering::Relaxed;

/// What is known of a disk's answers.
struct Answers {
    clock: Arc<dyn Clock>,
    label: String,
    /// Operations under way, by the second in which they began.
    under_way: [AtomicU32; SLOTS as usize],
    ops: AtomicU64,
    nanos: AtomicU64,
    given_up: AtomicBool,
    gone: Notify,
    why: Mutex<Option<String>>,
    /// What is wrong although it is still used: it is the last one.
    trouble: Mutex<Option<String>>,
    /// A probe is under way.
    probing: AtomicBool,
    /// The last one failed: the next one comes soon.
    probe_failed: AtomicBool,
    /// When it was last said that there is no file descriptor.
    starved: Mutex<Option<Duration>>,
}

impl Answers {
    fn new(clock: Arc<dyn Clock>, label: String) -> Self {
        Self {
            clock,
            label,
            under_way: [const { AtomicU32::new(0) }; SLOTS as usize],
            ops: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            gone: Notify::new(),
            why: Mutex::new(None),
            trouble: Mutex::new(None),
            probing: AtomicBool::new(false),
            probe_failed: AtomicBool::new(false),
            starved: Mutex::new(None),
        }
    }

    fn slot(&self, at: Duration) -> &AtomicU32 {
        &self.under_way[(at.as_secs() % SLOTS) as usize]
    }

    fn begin(&self) -> UnderWay<'_> {
        let begun = self.clock.monotonic();
        self.slot(begun).fetch_add(1, ORDER);
        UnderWay {
            answers: self,
            begun,
        }
    }

    /// Whether an operation of before `now` minus `after`, at most [`HANG_AFTER`], is under way; what began before
    /// `base` counts as begun then.
    fn waits(&self, after: Duration, now: Duration, base: Duration) -> bool {
        let Some(late) = now.checked_sub(after).filter(|late| *late > base) else {
            return false;
        };
        // Slots of the last seconds are of operations that have time left.
        let recent: Vec<u64> = (late.as_secs()..=now.as_secs())
            .map(|at| at % SLOTS)
            .collect();
        (0..SLOTS)
            .filter(|slot| !recent.contains(slot))
            .any(|slot| self.under_way[slot as usize].load(ORDER) > 0)
    }

    fn hangs(&self, now: Duration, base: Duration) -> bool {
        self.waits(HANG_AFTER, now, base)
    }

    /// Whether nothing that began up to `since` is under way. Not asked of a time too far back to be told.
    fn is_quiet(&self, since: Duration, now: Duration) -> bool {
        let later: Vec<u64> = (since.as_secs() + 1..=now.as_secs())
            .map(|at| at % SLOTS)
            .collect();
        (0..SLOTS)
            .filter(|slot| !later.contains(slot))
            .all(|slot| self.under_way[slot as usize].load(ORDER) == 0)
    }

    fn refusal(&self) -> DiskError {
        let why = self.why.lock().clone();
        DiskError::Io {
            disk: self.label.clone(),
            what: "the disk is not used any more".to_owned(),
            detail: why.unwrap_or_default(),
        }
    }

    fn give_up(&self, why: String) {
        if self.let_go(why.clone()) {
            tracing::error!(disk = self.label, why, "this disk is not used any more");
        }
    }

    /// Whether it was not before.
    fn let_go(&self, why: String) -> bool {
        if self.given_up.swap(true, Ordering::AcqRel) {
            return false;
        }
        *self.why.lock() = Some(why);
        self.gone.notify_waiters();
        true
    }

    /// Whether it hangs and is used nevertheless; says so when that changes.
    fn note_trouble(&self, hangs: bool) {
        let mut trouble = self.trouble.lock();
        if hangs == trouble.is_some() {
            return;
        }
        if !hangs {
            *trouble = None;
            tracing::warn!(disk = self.label, "the disk answers again");
            return;
        }
        let why = format!(
            "an operation has had no answer for {} s; it is waited for, because no other disk could answer",
            HANG_AFTER.as_secs()
        );
        tracing::error!(disk = self.label, why, "the last disk hangs");
        *trouble = Some(why);
    }

    fn tell_starved(&self, error: &DiskError) {
        let now = self.clock.monotonic();
        let mut last = self.starved.lock();
        if last.is_none_or(|last| now.saturating_sub(last) >= DESCRIPTOR_LOG_INTERVAL) {
            *last = Some(now);
            tracing::warn!("operations wait: {error}");
        }
    }

    async fn watch<T>(&self, op: IoFuture<'_, T>) -> Result<T, DiskError> {
        // Made before it is asked, so that no word is missed between the two.
        let gone = self.gone.notified();
        if self.given_up.load(Ordering::Acquire) {
            return Err(self.refusal());
        }
        let _under_way = self.begin();
        match select(op, std::pin::pin!(gone)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(self.refusal()),
        }
    }
}

/// Asks until there is a file descriptor for it: none is a matter of the process and of some moments, and
/// clients wait. An error would make a good disk look bad. The pauses do not count as time without an answer.
async fn patiently<'a, T>(
    answers: &Answers,
    ask: impl Fn() -> IoFuture<'a, T>,
) -> Result<T, DiskError> {
    loop {
        match answers.watch(ask()).await {
            Err(error @ DiskError::NoDescriptor { .. }) => {
                answers.tell_starved(&error);
                answers.clock.sleep(DESCRIPTOR_PAUSE).await;
            }
            result => return result,
        }
    }
}

struct UnderWay<'a> {
    answers: &'a Answers,
    begun: Duration,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let answers = self.answers;
        answers.slot(self.begun).fetch_sub(1, ORDER);
        let took = answers.clock.monotonic().saturating_sub(self.begun);
        answers.ops.fetch_add(1, ORDER);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        answers.nanos.fetch_add(nanos, ORDER);
    }
}

/// A disk whose answers are watched.
struct WatchedDisk {
    inner: Arc<dyn Disk>,
    answers: Arc<Answers>,
}

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    answers: Arc<Answers>,
}

impl WatchedDisk {
    fn watch<'a, T: Send + 'a>(
        &'a self,
        ask: impl Fn() -> IoFuture<'a, T> + Send + 'a,
    ) -> IoFuture<'a, T> {
        Box::pin(patiently(&self.answers, ask))
    }
}

impl Disk for WatchedDisk {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn open<'a>(&'a self, name: &'a str, mode: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>> {
        Box::pin(async move {
            let inner = patiently(&self.answers, || self.inner.open(name, mode)).await?;
            let answers = Arc::clone(&self.answers);
            Ok(Arc::new(WatchedFile { inner, answers }) as Arc<dyn DiskFile>)
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.remove(name))
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.rename(from, to))
    }

    fn list<'a>(&'a self, folder: &'a str) -> IoFuture<'a, Vec<String>> {
        self.watch(move || self.inner.list(folder))
    }

    fn sync_folder<'a>(&'a self, folder: &'a str) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.sync_folder(folder))
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        if self.answers.given_up.load(Ordering::Acquire) {
            return Err(self.answers.refusal());
        }
        self.inner.space()
    }

    fn recount<'a>(&'a self) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.recount())
    }

    fn folder(&self) -> Option<&Path> {
        self.inner.folder()
    }
}

impl WatchedFile {
    fn watch<'a, T: Send + 'a>(
        &'a self,
        ask: impl Fn() -> IoFuture<'a, T> + Send + 'a,
    ) -> IoFuture<'a, T> {
        Box::pin(patiently(&self.answers, ask))
    }
}

impl DiskFile for WatchedFile {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn write_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.write_at(offset, parts.clone()))
    }

    fn write_durable_at<'a>(&'a self, offset: u64, parts: Vec<Bytes>) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.write_durable_at(offset, parts.clone()))
    }

    fn write_durable_here<'a>(&'a self, offset: u64, part: Bytes) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.write_durable_here(offset, part.clone()))
    }

    fn read_at<'a>(&'a self, offset: u64, len_bytes: usize) -> IoFuture<'a, Bytes> {
        self.watch(move || self.inner.read_at(offset, len_bytes))
    }

    fn sync<'a>(&'a self) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.sync())
    }

    fn set_len<'a>(&'a self, len_bytes: u64) -> IoFuture<'a, ()> {
        self.watch(move || self.inner.set_len(len_bytes))
    }
}

/// How a disk did since the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    hangs: bool,
    ops: u64,
    nanos: u64,
    errors: u64,
    /// It is out already.
    out: bool,
}

/// Puts `value` behind the last ones, of which `count_max` are kept.
fn push<T>(values: &mut VecDeque<T>, value: T, count_max: usize) {
    values.push_back(value);
    if values.len() > count_max {
        values.pop_front();
    }
}

/// What was seen of one disk before.
#[derive(Clone, Debug, Default)]
struct History {
    slow_looks: u32,
    /// Operations, and what they took, of the last looks.
    ops: VecDeque<(u64, u64)>,
    /// Of the last looks.
    errors: VecDeque<u64>,
}

impl History {
    /// How long operations took of late, if there were enough of them.
    fn mean(&self) -> Option<Duration> {
        let ops: u64 = self.ops.iter().map(|(ops, _)| ops).sum();
        let nanos = self.ops.iter().map(|(_, nanos)| nanos);
        let nanos = nanos.fold(0, |sum: u64, nanos| sum.saturating_add(*nanos));
        let mean = nanos.checked_div(ops)?;
        (ops >= SLOW_OPS_MIN).then(|| Duration::from_nanos(mean))
    }
}

/// Decides which disks are not used any more, and why. `spare`: disks that may be put out although they
/// answer; one without an answer is out anyway, unless there is no other: then it is waited for, because
/// nobody else could answer.
fn judge(looks: &[Look], histories: &mut [History], mut spare: usize) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let mut left = looks.iter().filter(|look| !look.out).count();
    for (look, history) in looks.iter().zip(&mut *histories) {
        push(&mut history.ops, (look.ops, look.nanos), SLOW_WINDOW);
        push(&mut history.errors, look.errors, ERRORS_LOOKS);
    }
    let all_means: Vec<Option<Duration>> = histories.iter().map(History::mean).collect();
    for (index, (look, history)) in looks.iter().zip(&mut *histories).enumerate() {
        let others = all_means.iter().enumerate();
        let others = others.filter(|(other, _)| *other != index);
        let mut means: Vec<Duration> = others.filter_map(|(_, mean)| *mean).collect();
        means.sort_unstable();
        let median = means.get(means.len() / 2).copied();
        let mean = history.mean();
        let is_slow = match (mean, median) {
            (Some(mean), Some(median)) => mean > SLOW_MIN && mean > median * SLOW_FACTOR,
            // Nothing to compare, or nothing done: neither better nor worse.
            _ => history.slow_looks > 0 && look.ops == 0,
        };
        history.slow_looks = if is_slow { history.slow_looks + 1 } else { 0 };
        let errors: u64 = history.errors.iter().sum();
        let why = if look.out && !look.hangs {
            continue;
        } else if look.out {
            // What waits for it although it failed before, such as the pool file, must not do so for ever.
            out.push((index, "it failed, and has no answer now".to_owned()));
            continue;
        } else if left <= 1 {
            continue;
        } else if look.hangs {
            format!(
                "an operation had no answer after {} s",
                HANG_AFTER.as_secs()
            )
        } else if spare == 0 {
            continue;
        } else if history.slow_looks >= SLOW_LOOKS {
            let took = mean.unwrap_or_default().as_millis();
            format!(
                "its operations take {took} ms, more than {SLOW_FACTOR} times those of the others"
            )
        } else if errors >= ERRORS_MAX {
            format!("{errors} operations failed within {ERRORS_LOOKS} s")
        } else {
            continue;
        };
        spare = spare.saturating_sub(1);
        left -= 1;
        out.push((index, why));
    }
    out
}

/// All disks of a node that are watched.
pub struct Watch {
    clock: Arc<dyn Clock>,
    /// By the disk itself: the drive in the place of a failed one has its label.
    disks: Mutex<Vec<(Weak<WatchedDisk>, Arc<Answers>)>>,
}

impl Watch {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            disks: Mutex::default(),
        }
    }

    /// The disk, watched from now on.
    pub fn over(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        let label = disk.label().to_owned();
        let answers = Arc::new(Answers::new(Arc::clone(&self.clock), label));
        let watched = Arc::new(WatchedDisk {
            inner: disk,
            answers: Arc::clone(&answers),
        });
        let mut disks = self.disks.lock();
        disks.retain(|(disk, _)| disk.strong_count() > 0);
        disks.push((Arc::downgrade(&watched), answers));
        watched
    }

    /// What is wrong with a disk: why it is not used any more, or what it is waited for.
    pub fn problem(&self, disk: &Arc<dyn Disk>) -> Option<String> {
        let answers = self.answers(disk)?;
        let why = answers.why.lock().clone();
        why.or_else(|| answers.trouble.lock().clone())
    }

    /// Whether all that was asked of a disk up to `since`, not longer ago than a disk may hang, has an answer.
    pub fn is_quiet(&self, disk: &Arc<dyn Disk>, since: Duration) -> bool {
        let now = self.clock.monotonic();
        self.answers(disk)
            .is_none_or(|answers| answers.is_quiet(since, now))
    }

    /// Asks nothing of a disk any more that is no disk of the pool now.
    pub fn let_go(&self, disk: &Arc<dyn Disk>) {
        if let Some(answers) = self.answers(disk) {
            answers.let_go("it was removed".to_owned());
        }
    }

    fn answers(&self, disk: &Arc<dyn Disk>) -> Option<Arc<Answers>> {
        let disks = self.disks.lock();
        let is_it =
            |watched: &Weak<WatchedDisk>| std::ptr::addr_eq(watched.as_ptr(), Arc::as_ptr(disk));
        let found = disks.iter().find(|(watched, _)| is_it(watched));
        found.map(|(_, answers)| Arc::clone(answers))
    }
}

impl Inner {
    pub fn watched(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        self.watch.over(disk)
    }
}

/// Starts the thread that looks; it ends with the node. A thread of its own: those of the runtime may all be
/// in RocksDB, waiting for the disk that hangs.
pub fn tend(inner: &Arc<Inner>) -> std::io::Result<()> {
    let node = Arc::downgrade(inner);
    let mut state = Looking {
        last: inner.env.clock.monotonic(),
        ..Looking::default()
    };
    let looking = move || {
        while look(&node, &mut state) {
            std::thread::sleep(LOOK_INTERVAL);
        }
    };
    let thread = std::thread::Builder::new().name("watch".to_owned());
    thread.spawn(looking).map(drop)
}

#[derive(Default)]
struct Looking {
    last: Duration,
    /// Operations that began before count as begun then.
    base: Duration,
    /// What was counted at the last look, and the history.
    before: BTreeMap<DiskId, ((u64, u64, u64), History)>,
    /// When disks were asked last.
    probed: Duration,
}

/// Asks disks to write something: what works with a disk's folder past us (the metadata's state) would notice
/// that it fails or hangs, and could not tell.
fn probe(inner: &Arc<Inner>, disks: &[Arc<ShardDisk>], is_due: bool) {
    for disk in disks {
        let Some(answers) = inner.watch.answers(disk.disk()) else {
            continue;
        };
        let is_wanted = is_due || answers.probe_failed.load(Ordering::Acquire);
        let is_out = disk.health().failed;
        if is_out || !is_wanted || answers.probing.swap(true, Ordering::AcqRel) {
            continue;
        }
        let disk = Arc::clone(disk);
        let task = async move {
            let probed = disk.probe().await;
            if let Err(error) = &probed {
                tracing::warn!(%error, "a disk was asked to write and to read something");
            }
            answers
                .probe_failed
                .store(probed.is_err(), Ordering::Release);
            if let Err(error) = disk.disk().recount().await {
                tracing::warn!(%error, "the files of the metadata's state cannot be counted");
            }
            answers.probing.store(false, Ordering::Release);
        };
        inner.env.spawner.spawn("disk probe", Box::pin(task));
    }
}

/// One look; false when the node is gone.
fn look(node: &Weak<Inner>, state: &mut Looking) -> bool {
    let Some(inner) = node.upgrade() else {
        return false;
    };
    let now = inner.env.clock.monotonic();
    if now.saturating_sub(state.last) > LOOK_LATE {
        state.base = now;
    }
    state.last = now;
    let disks = inner.disks();
    let mut looks = Vec::with_capacity(disks.len());
    let mut histories = Vec::with_capacity(disks.len());
    let mut watched = Vec::with_capacity(disks.len());
    for disk in &disks {
        let Some(answers) = inner.watch.answers(disk.disk()) else {
            continue;
        };
        let health = disk.health();
        let counts = (
            answers.ops.load(ORDER),
            answers.nanos.load(ORDER),
            health.read_errors + health.write_errors,
        );
        let (before, history) = state.before.remove(&disk.id()).unwrap_or_default();
        let ops = counts.0.saturating_sub(before.0);
        // One that is only slow or has much to do answers some.
        disk.set_silent(ops == 0 && answers.waits(SILENT_AFTER, now, state.base));
        looks.push(Look {
            hangs: answers.hangs(now, state.base),
            ops,
            nanos: counts.1.saturating_sub(before.1),
            errors: counts.2.saturating_sub(before.2),
            out: health.failed,
        });
        histories.push(history);
        watched.push((disk, answers, counts));
    }
    let members = inner.pool.load().disks.len();
    let lost = members.saturating_sub(looks.iter().filter(|look| !look.out).count());
    let spare = failures_tolerated(members).saturating_sub(lost);
    for (index, why) in judge(&looks, &mut histories, spare) {
        if let Some((disk, answers, _)) = watched.get(index) {
            answers.give_up(why);
            disk.mark_failed();
        }
    }
    for (look, (_, answers, _)) in looks.iter().zip(&watched) {
        answers.note_trouble(look.hangs && !answers.given_up.load(Ordering::Acquire));
    }
    let counted = watched.into_iter().zip(histories);
    state.before = counted
        .map(|((disk, _, counts), history)| (disk.id(), (counts, history)))
        .collect();
    let is_due = now.saturating_sub(state.probed) >= PROBE_INTERVAL;
    if is_due {
        state.probed = now;
    }
    probe(&inner, &disks, is_due);
    // Also of a node that stops: its end waits for disks.
    true
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use cairn_testkit::{MemDisk, TestWorld};

    use super::*;

    const QUICK: Look = Look {
        hangs: false,
        ops: 100,
        nanos: 100 * 1_000_000,
        errors: 0,
        out: false,
    };

    #[test]
    fn what_hangs_is_slow_or_fails_is_put_out() {
        let slow = Look {
            nanos: 100 * 200_000_000,
            ..QUICK
        };
        // Those who write to both wait for the one.
        let few = |millis: u64| Look {
            ops: 1,
            nanos: millis * 1_000_000,
            ..QUICK
        };
        let slow_as_all = slow;
        let failing = Look { errors: 1, ..QUICK };
        let hangs = Look {
            hangs: true,
            ops: 0,
            nanos: 0,
            ..QUICK
        };
        let idle = Look {
            ops: 0,
            nanos: 0,
            ..QUICK
        };
        // Looks at the disks, how often, disks to spare; which are out then.
        type Case<'a> = (&'a str, Vec<Look>, u32, usize, &'a [usize]);
        let cases: Vec<Case> = vec![
            ("all well", vec![QUICK; 6], 100, 2, &[]),
            ("one hangs", vec![QUICK, hangs, QUICK], 1, 2, &[1]),
            ("one hangs, none to spare", vec![QUICK, hangs], 1, 0, &[1]),
            (
                "slow for a moment",
                vec![slow, QUICK, QUICK],
                SLOW_LOOKS - 1,
                2,
                &[],
            ),
            (
                "slow for long",
                vec![slow, QUICK, QUICK],
                SLOW_LOOKS,
                2,
                &[0],
            ),
            (
                "slow, none to spare",
                vec![slow, QUICK, QUICK],
                SLOW_LOOKS,
                0,
                &[],
            ),
            (
                "so slow that little is done",
                vec![few(600), few(5), few(5)],
                SLOW_LOOKS + SLOW_OPS_MIN as u32 - 1,
                2,
                &[0],
            ),
            ("all slow", vec![slow_as_all; 4], 100, 2, &[]),
            ("alone", vec![slow], 100, 2, &[]),
            ("alone and hangs", vec![hangs], 1, 0, &[]),
            (
                "the last one hangs",
                vec![Look { out: true, ..QUICK }, hangs],
                1,
                0,
                &[],
            ),
            ("all hang", vec![hangs; 3], 1, 2, &[0, 1]),
            ("idle", vec![idle; 3], 100, 2, &[]),
            ("some errors", vec![failing, QUICK], 31, 2, &[]),
            ("many errors", vec![failing, QUICK], 32, 2, &[0]),
            (
                "out already",
                vec![Look { out: true, ..QUICK }, QUICK],
                1,
                2,
                &[],
            ),
            (
                "out, and hangs now",
                vec![Look { out: true, ..hangs }, QUICK],
                1,
                0,
                &[0],
            ),
            (
                "two to put out, one to spare",
                vec![slow, slow, QUICK, QUICK, QUICK],
                SLOW_LOOKS,
                1,
                &[0],
            ),
        ];
        for (name, looks, times, spare, want) in cases {
            let mut histories = vec![History::default(); looks.len()];
            let mut out = Vec::new();
            for _ in 0..times {
                out = judge(&looks, &mut histories, spare);
            }
            let got: Vec<usize> = out.iter().map(|(index, _)| *index).collect();
            assert_eq!(got, want, "{name}: {out:?}");
        }
    }

    #[test]
    fn operations_without_an_answer_are_told_by_age() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(100));
        let clock = world.env.clock.clone();
        let answers = Answers::new(clock.clone(), "disk".to_owned());
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
        assert!(!answers.is_quiet(begun, at(5)));
        assert!(!answers.is_quiet(at(2), at(5)));
        let later = begun - Duration::from_secs(1);
        assert!(answers.is_quiet(later, at(5)), "it began after that");
        drop(under_way);
        assert!(answers.is_quiet(begun, at(5)));
        assert!(!answers.hangs(at(63), base));
    }

    #[test]
    fn what_finds_no_descriptor_waits_for_one() {
        let world = TestWorld::new(1);
        let answers = Answers::new(world.env.clock.clone(), "disk".to_owned());
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

    #[test]
    fn the_descriptors_of_a_node_suffice() {
        // Shards with two each, all connections, and RocksDB.
        for (limit, disks) in [(1024, 1), (1024, 6), (4096, 6), (65_536, 64), (1 << 30, 6)] {
            let shards = crate::disks::open_shards_max(limit, disks);
            assert!((8..=1024).contains(&shards), "{limit} {disks}: {shards}");
            assert!((shards * disks * 2) as u64 <= limit * 3 / 8);
        }
    }

    #[test]
    fn a_disk_that_is_given_up_answers_at_once() {
        let world = TestWorld::new(1);
        let watch = Watch::new(world.env.clock.clone());
        let disk = watch.over(MemDisk::new("disk", 1 << 20));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mode = OpenMode::CreateNew { len_bytes: 4096 };
            let file = disk.open("file", mode).await.unwrap();
            assert_eq!(file.read_at(0, 10).await.unwrap().len(), 10);
            let answers = watch.answers(&disk).unwrap();
            assert_eq!(answers.ops.load(ORDER), 2);
            // One that never ends is given up with the disk.
            let mut hanging = Box::pin(answers.watch::<()>(Box::pin(std::future::pending())));
            let mut context = Context::from_waker(Waker::noop());
            assert!(hanging.as_mut().poll(&mut context).is_pending());
            answers.give_up("for a test".to_owned());
            let ended = hanging.as_mut().poll(&mut context);
            assert!(matches!(ended, Poll::Ready(Err(DiskError::Io { .. }))));
            assert!(file.read_at(0, 10).await.is_err());
            assert!(disk.list("").await.is_err());
            assert!(disk.space().is_err());
            assert_eq!(watch.problem(&disk).as_deref(), Some("for a test"));
            // Another drive in its place is another disk.
            let other = watch.over(MemDisk::new("disk", 1 << 20));
            assert_eq!(watch.problem(&other), None);
            assert_eq!(watch.problem(&disk).as_deref(), Some("for a test"));
            assert!(other.list("").await.is_ok());
        });
    }
}
