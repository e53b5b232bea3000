//! Watches how disks answer: one that hangs, is far slower than the others, or fails again and again is
//! not used any more.
//!
//! Owns: how long operations take, when that is too long, what is said about it.
//! Must not know: what is read or written; what becomes of the data (`rebuild` sees to that).
//!
//! An operation without an answer is given up with an error, so that its data is read from, or written
//! to, other disks. Nothing is asked of that disk again before the next start, or before it is replaced: a
//! write that was given up may still land at any time.

mod ages;
mod answers;
mod judge;
mod watched;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::DiskId;
use cairn_base::disk::Disk;
use cairn_base::env::Clock;
use cairn_shard::ShardDisk;
use parking_lot::Mutex;

use self::answers::Answers;
use self::judge::{History, Look, judge};
use self::watched::WatchedDisk;
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
        self.answers(disk)?.problem()
    }

    /// Whether all that was asked of a disk up to `since`, not longer ago than a disk may hang, has an answer.
    pub fn is_idle(&self, disk: &Arc<dyn Disk>, since: Duration) -> bool {
        self.answers(disk)
            .is_none_or(|answers| answers.is_idle(since))
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
        if disk.health().failed || !answers.begin_probe(is_due) {
            continue;
        }
        let disk = Arc::clone(disk);
        let task = async move {
            let probed = disk.probe().await;
            if let Err(error) = &probed {
                tracing::warn!(%error, "a disk was asked to write and to read something");
            }
            answers.note_probe(probed.is_err());
            answers.end_probe();
            // Afterwards: the next probe, which is what tells that the disk hangs, does not wait for all its folders.
            if answers.begin_count() {
                if let Err(error) = disk.disk().recount().await {
                    tracing::warn!(%error, "the files of the metadata's state cannot be counted");
                }
                answers.end_count();
            }
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
        let (ops, nanos) = answers.counts();
        let counts = (ops, nanos, health.read_errors + health.write_errors);
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
    let members: Vec<DiskId> = {
        let pool = inner.pool.load();
        pool.disks.iter().map(|disk| disk.id).collect()
    };
    let works = |id: &DiskId| {
        let mut disks = disks.iter();
        disks.any(|disk| disk.id() == *id && !disk.health().failed)
    };
    let lost: Vec<DiskId> = members.iter().copied().filter(|id| !works(id)).collect();
    // What was on them may have been rebuilt, which is looked at only when it matters.
    let lost = match looks.iter().any(|look| look.hangs && !look.out) {
        true => inner.needed_count(&lost),
        false => lost.len(),
    };
    // As many as the best protected volume can lose.
    let tolerated = {
        let pool = inner.pool.load();
        let volumes = pool.volumes.iter();
        let each = volumes.map(|volume| usize::from(inner.tolerated(&volume.settings)));
        each.fold(failures_tolerated(members.len()), usize::max)
    };
    let spare = tolerated.saturating_sub(lost);
    for (index, why) in judge(&looks, &mut histories, spare) {
        if let Some((disk, answers, _)) = watched.get(index) {
            // First: who is told that it does not answer must not take what is on it for lost.
            disk.mark_failed();
            answers.give_up(why);
        }
    }
    for (look, (_, answers, _)) in looks.iter().zip(&watched) {
        answers.note_trouble(look.hangs && !answers.is_given_up());
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

    use cairn_base::disk::{DiskError, OpenMode};
    use cairn_testkit::{MemDisk, TestWorld};

    use super::*;

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
            assert_eq!(answers.counts().0, 2);
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
