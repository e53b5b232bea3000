//! Watches how disks answer, and has those put out that the judge finds unfit.
//!
//! Owns: the evidence of how each disk answers, the looks at it, what is said about it.
//! Must not know: what is read or written; when a disk is unfit ([`crate::judge`]); what becomes of the data (`rebuild`
//! sees to that).
//!
//! An operation without an answer is given up with an error, so that its data is read from, or written
//! to, other disks. Nothing is asked of that disk again before the next start, or before it is replaced or taken back: a
//! write that was given up may still land at any time. It is taken back when nothing is under way any more
//! (`disk_changes`): by an operator, or by itself when it has proven that it answers again (`comeback`).

mod ages;
mod answers;
mod comeback;
mod doubt;
mod watched;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::DiskId;
use cairn_base::disk::Disk;
use cairn_base::env::Clock;
use cairn_shard::{ShardDisk, probe_unopened};
use futures_util::future::{Either, select};
use parking_lot::Mutex;

pub use self::ages::AGE_MAX as HANG_AFTER_MAX;
use self::answers::Answers;
pub use self::answers::Counts;
use self::comeback::Comeback;
use self::doubt::{Doubt, ProbeResult};
use self::watched::WatchedDisk;
use crate::assemble::failures_tolerated;
use crate::judge::{Evidence, History, Verdict, judge};
use crate::pool::Pool;
use crate::table::Condition;

/// How often disks are looked at.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is seen whether they answer.
pub const GLANCE_INTERVAL: Duration = Duration::from_millis(250);
/// A disk that answers nothing, or no change, for so long is unresponsive: it is not waited for where what is on it can be had
/// from others.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// A glance that comes so late says that the process was stopped, not that disks hang.
const GLANCE_LATE: Duration = SILENT_AFTER;
/// A look that comes so late says that the process was stopped, not that disks hang.
const LOOK_LATE: Duration = Duration::from_secs(5);
/// How often what others keep in their folders is counted, which is a walk over all files.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// The text for something that did not answer.
pub fn no_answer(hang_after: Duration) -> String {
    format!("it did not answer within {} s", hang_after.as_secs())
}

/// All disks of a pool that are watched.
pub struct Watch {
    clock: Arc<dyn Clock>,
    /// An operation that takes so long has no answer.
    hang_after: Duration,
    /// By the disk itself: the drive in the place of a failed one has its label.
    disks: Mutex<Vec<(Weak<WatchedDisk>, Arc<Answers>)>>,
    /// Disks that were given up because they did not answer, and come back by themselves.
    comebacks: Arc<Mutex<BTreeMap<DiskId, Comeback>>>,
}

impl Watch {
    pub fn new(clock: Arc<dyn Clock>, hang_after: Duration) -> Self {
        assert!(hang_after <= HANG_AFTER_MAX);
        Self {
            clock,
            hang_after,
            disks: Mutex::default(),
            comebacks: Arc::default(),
        }
    }

    /// An operation that takes so long has no answer.
    pub fn hang_after(&self) -> Duration {
        self.hang_after
    }

    /// The disk, watched from now on.
    pub fn over(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        self.begin(disk).0
    }

    fn begin(&self, disk: Arc<dyn Disk>) -> (Arc<dyn Disk>, Arc<Answers>) {
        let label = disk.label().to_owned();
        let answers = Arc::new(Answers::new(
            Arc::clone(&self.clock),
            label,
            self.hang_after,
        ));
        let watched = Arc::new(WatchedDisk {
            inner: disk,
            answers: Arc::clone(&answers),
        });
        let mut disks = self.disks.lock();
        disks.retain(|(disk, _)| disk.strong_count() > 0);
        disks.push((Arc::downgrade(&watched), Arc::clone(&answers)));
        let disk: Arc<dyn Disk> = watched;
        (disk, answers)
    }

    /// Disks that have proven since they were given up that they answer again. They are to be taken back.
    pub fn proven(&self) -> Vec<DiskId> {
        let comebacks = self.comebacks.lock();
        let proven = comebacks.iter().filter(|(_, it)| it.is_proven());
        proven.map(|(id, _)| *id).collect()
    }

    /// One of [`Self::proven`] could not be taken back: it has to prove itself again, later.
    pub fn note_refused(&self, disk: DiskId) {
        if let Some(comeback) = self.comebacks.lock().get_mut(&disk) {
            comeback.note_refused(self.clock.monotonic());
        }
    }

    /// A disk was taken back.
    pub(crate) fn note_taken(&self, disk: DiskId) {
        if let Some(comeback) = self.comebacks.lock().get_mut(&disk) {
            comeback.note_taken(self.clock.monotonic());
        }
    }

    /// A disk is given up; `comes_back`: by itself, when it has proven that it answers again.
    fn note_given_up(&self, disk: DiskId, comes_back: bool) {
        let mut comebacks = self.comebacks.lock();
        let before = comebacks.remove(&disk);
        if comes_back {
            let now = self.clock.monotonic();
            comebacks.insert(disk, Comeback::of_given_up(now, before.as_ref()));
        }
    }

    /// What a disk answered since it was opened.
    pub fn counts(&self, disk: &Arc<dyn Disk>) -> Option<Counts> {
        Some(self.answers(disk)?.counts())
    }

    /// How the last change of a disk, or the last probe, that failed did.
    pub fn change_error(&self, disk: &Arc<dyn Disk>) -> Option<String> {
        self.answers(disk)?.change_error()
    }

    /// The problem of a disk: why it is not used any more, or what it is waited for.
    pub fn problem(&self, disk: &Arc<dyn Disk>) -> Option<String> {
        self.answers(disk)?.problem()
    }

    /// Whether all that was asked of a disk up to `since`, not longer ago than a disk may hang, has an answer.
    pub fn is_idle(&self, disk: &Arc<dyn Disk>, since: Duration) -> bool {
        self.answers(disk)
            .is_none_or(|answers| answers.is_idle(since))
    }

    /// Asks nothing of a disk any more that is no disk of the pool now, and why.
    pub fn let_go(&self, disk: &Arc<dyn Disk>, why: &str) {
        if let Some(answers) = self.answers(disk) {
            answers.let_go(why.to_owned());
        }
    }

    /// The disk once more, with a fresh record: holders of the other one find nothing there once that was let go. It has to prove
    /// itself before it is counted on.
    pub fn anew(&self, disk: &Arc<dyn Disk>) -> Option<Arc<dyn Disk>> {
        let found = {
            let disks = self.disks.lock();
            let is_it = |watched: &Weak<WatchedDisk>| {
                std::ptr::addr_eq(watched.as_ptr(), Arc::as_ptr(disk))
            };
            let mut watched = disks.iter().map(|(watched, _)| watched);
            watched
                .find(|&watched| is_it(watched))
                .and_then(Weak::upgrade)
        };
        found.map(|watched| {
            let (anew, answers) = self.begin(Arc::clone(&watched.inner));
            answers.set_untried();
            anew
        })
    }

    fn answers(&self, disk: &Arc<dyn Disk>) -> Option<Arc<Answers>> {
        let disks = self.disks.lock();
        let is_it =
            |watched: &Weak<WatchedDisk>| std::ptr::addr_eq(watched.as_ptr(), Arc::as_ptr(disk));
        let found = disks.iter().find(|(watched, _)| is_it(watched));
        found.map(|(_, answers)| Arc::clone(answers))
    }
}

/// What a series of looks remembers.
#[derive(Default)]
pub struct Looking {
    last: Duration,
    /// Operations that began before count as begun then.
    base: Duration,
    /// The counts at the last look, and the history.
    before: BTreeMap<DiskId, (Counts, History)>,
    /// When files of others were counted last.
    counted: Duration,
    glances: Glances,
}

/// What a series of glances remembers.
#[derive(Default)]
struct Glances {
    last: Duration,
    /// Operations that began before count as begun then.
    base: Duration,
    doubts: BTreeMap<DiskId, Doubt>,
}

impl Looking {
    pub fn new(now: Duration) -> Self {
        let glances = Glances {
            last: now,
            ..Glances::default()
        };
        Self {
            last: now,
            glances,
            ..Self::default()
        }
    }
}

/// Sees which disks answer and take changes, and tells those who use them, each [`GLANCE_INTERVAL`]. Costs next to nothing.
pub fn glance(pool: &Pool, state: &mut Looking) {
    let now = pool.env.clock.monotonic();
    let Glances { last, base, doubts } = &mut state.glances;
    if now.saturating_sub(*last) > GLANCE_LATE {
        *base = now;
    }
    *last = now;
    let mut before = std::mem::take(doubts);
    for disk in pool.disks() {
        let Some(answers) = pool.watch.answers(disk.disk()) else {
            continue;
        };
        let mut doubt = before.remove(&disk.id()).unwrap_or_default();
        let had_any = doubt.is_any();
        doubt.glance(
            now,
            &ProbeResult {
                is_silent: answers.take_untried() || answers.is_silent(SILENT_AFTER, now, *base),
                probe_failed: answers.probe_failed(),
                changes: answers.changes(),
                errors: answers.counts().errors,
            },
        );
        // One that is out is told of as such, and nobody waits for it.
        let is_out = disk.health().failed;
        if doubt.is_any() != had_any && !is_out {
            match doubt.is_any() {
                true => tracing::error!(
                    disk = disk.label(),
                    is_silent = doubt.is_silent,
                    is_failing = doubt.is_failing,
                    "this disk does not answer, or fails; what is written goes to others"
                ),
                false => tracing::info!(disk = disk.label(), "this disk works again"),
            }
        }
        disk.set_silent(doubt.is_silent && !is_out);
        disk.state().set_failing(doubt.is_failing);
        doubts.insert(disk.id(), doubt);
    }
}

/// Asks disks to write something: what works with a disk's folder past us (the metadata's state) would notice
/// that it fails or hangs, and could not tell.
///
/// It is due at each look: an idle disk that hangs is to be known before somebody needs it.
fn probe(pool: &Pool, disks: &[Arc<ShardDisk>], is_count_due: bool) {
    for disk in disks {
        let Some(answers) = pool.watch.answers(disk.disk()) else {
            continue;
        };
        let health = disk.health();
        if health.failed || !answers.begin_probe() {
            continue;
        }
        let disk = Arc::clone(disk);
        let task = async move {
            let probed = disk.probe().await;
            if let Err(error) = &probed {
                tracing::warn!(%error, "a disk was asked to write and to read something");
            }
            answers.note_probe(probed.err().map(|error| error.to_string()));
            answers.end_probe();
            // Afterwards: the next probe, which is what tells that the disk hangs, does not wait for all its folders.
            if is_count_due && answers.begin_count() {
                if let Err(error) = disk.disk().recount().await {
                    tracing::warn!(%error, "the files of the metadata's state cannot be counted");
                }
                answers.end_count();
            }
        };
        pool.env.spawner.spawn("disk probe", Box::pin(task));
    }
}

/// Whether a disk that is given up comes back by itself: all that is held against it is that it did not answer. One that was given
/// up because it was slow, that failed before, that gave wrong bytes or did not take a change, an operator has to look at first.
fn comes_back(seen: &Evidence, checksum_errors: u64, change_errors: u64) -> bool {
    seen.hangs && !seen.is_out && checksum_errors == 0 && change_errors == 0
}

/// Asks disks again that were given up, if they come back by themselves. Of one that still has to answer to what it was asked before,
/// nothing more is asked.
fn ask_given_up(pool: &Pool, disks: &[Arc<ShardDisk>]) {
    let now = pool.env.clock.monotonic();
    let table = pool.table();
    let mut comebacks = pool.watch.comebacks.lock();
    comebacks.retain(|id, _| disks.iter().any(|disk| disk.id() == *id));
    for disk in disks {
        let id = disk.id();
        // Data of one that is being replaced goes elsewhere.
        let is_wanted = table.member(id).is_some_and(|member| !member.replaced);
        if table.condition(id) != Condition::Failed || !is_wanted {
            continue;
        }
        if let Some(comeback) = comebacks.get_mut(&id)
            && comeback.begin(now, disk.disk().is_idle())
        {
            ask_again(pool, disk);
        }
    }
}

fn ask_again(pool: &Pool, disk: &ShardDisk) {
    let id = disk.id();
    let clock = Arc::clone(&pool.env.clock);
    let comebacks = Arc::clone(&pool.watch.comebacks);
    // Past what was given up, which answers for the disk at once.
    let anew = pool.watch.anew(disk.disk());
    let task = async move {
        let is_good = match &anew {
            None => false,
            Some(disk) => {
                let asked = Box::pin(probe_unopened(&**disk));
                match select(asked, clock.sleep(SILENT_AFTER)).await {
                    Either::Left((Ok(()), _)) => true,
                    Either::Left((Err(error), _)) => {
                        tracing::debug!(%error, "a disk that was given up fails");
                        false
                    }
                    Either::Right(_) => false,
                }
            }
        };
        if let Some(comeback) = comebacks.lock().get_mut(&id) {
            comeback.note_answer(clock.monotonic(), is_good);
        }
    };
    pool.env.spawner.spawn("disk given up", Box::pin(task));
}

/// One look at all disks, each [`LOOK_INTERVAL`].
pub fn look(pool: &Pool, state: &mut Looking) {
    let now = pool.env.clock.monotonic();
    if now.saturating_sub(state.last) > LOOK_LATE {
        state.base = now;
    }
    state.last = now;
    let disks = pool.disks();
    let mut evidence = Vec::with_capacity(disks.len());
    let mut histories = Vec::with_capacity(disks.len());
    let mut watched = Vec::with_capacity(disks.len());
    for disk in &disks {
        let Some(answers) = pool.watch.answers(disk.disk()) else {
            continue;
        };
        let health = disk.health();
        let counts = answers.counts();
        // One that was taken back is counted anew, and is not judged by what it did before.
        let known = state.before.remove(&disk.id());
        let known = known.filter(|(before, _)| before.ops <= counts.ops);
        let (before, history) = known.unwrap_or_default();
        let ops = counts.ops.saturating_sub(before.ops);
        evidence.push(Evidence {
            hangs: answers.hangs(now, state.base),
            ops,
            nanos: counts.nanos.saturating_sub(before.nanos),
            errors: counts.errors.saturating_sub(before.errors),
            is_suspect: health.suspect,
            is_out: health.failed,
        });
        histories.push(history);
        watched.push((disk, answers, counts));
    }
    let spare = spare(pool, &evidence);
    let verdicts = judge(&evidence, &mut histories, spare, pool.watch.hang_after());
    for (((disk, answers, _), seen), verdict) in watched.iter().zip(&evidence).zip(verdicts) {
        match verdict {
            Verdict::Stays => answers.note_trouble(None),
            Verdict::Spared(why) => answers.note_trouble(Some(why)),
            Verdict::Cleared => {
                disk.clear_suspicion();
                answers.note_trouble(None);
            }
            Verdict::Out(why) => {
                tracing::error!(disk = disk.label(), why, "this disk is not used any more");
                pool.put_out(disk.id(), why);
                answers.drop_trouble();
            }
            Verdict::GivenUp(_) if answers.is_given_up() => {}
            Verdict::GivenUp(why) => {
                let change_errors = answers.changes().errors;
                let comes_back = comes_back(seen, disk.health().checksum_errors, change_errors);
                let how = match comes_back {
                    true => "it is taken back when it has proven that it answers again",
                    false => "`cairn disk retry` takes it back when it works again",
                };
                let why = format!("{why}; {how}");
                // First: who is told that it does not answer must not take what is on it for lost.
                pool.put_out(disk.id(), why.clone());
                answers.give_up(why);
                pool.watch.note_given_up(disk.id(), comes_back);
            }
        }
    }
    let counted = watched.into_iter().zip(histories);
    state.before = counted
        .map(|((disk, _, counts), history)| (disk.id(), (counts, history)))
        .collect();
    let is_count_due = now.saturating_sub(state.counted) >= COUNT_INTERVAL;
    if is_count_due {
        state.counted = now;
    }
    probe(pool, &disks, is_count_due);
    ask_given_up(pool, &disks);
}

/// How many more disks may be put out, and data be had without them.
fn spare(pool: &Pool, evidence: &[Evidence]) -> usize {
    let table = pool.table();
    let members = table.state.disks.iter().map(|disk| disk.id);
    // Those that are only suspected may be there again in a moment, and are about to be judged.
    let is_lost = |id: &DiskId| {
        matches!(
            table.condition(*id),
            Condition::Failed | Condition::Missing | Condition::Unknown
        )
    };
    let lost: Vec<DiskId> = members.filter(is_lost).collect();
    // Their data may have been rebuilt, which is looked at only when it matters.
    let is_at_stake = |seen: &Evidence| !seen.is_out && (seen.hangs || seen.is_suspect);
    let lost = match evidence.iter().any(is_at_stake) {
        true => pool.needed_count(&lost),
        false => lost.len(),
    };
    // As many as the best protected volume can lose.
    let volumes = table.state.volumes.iter();
    let each = volumes.map(|volume| usize::from(pool.tolerated(&volume.settings)));
    let tolerated = each.fold(failures_tolerated(table.state.disks.len()), usize::max);
    tolerated.saturating_sub(lost)
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
        let watch = Watch::new(world.env.clock.clone(), Duration::from_secs(30));
        let disk = watch.over(MemDisk::new("disk", 1 << 20));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mode = OpenMode::CreateNew { len_bytes: 4096 };
            let file = disk.open("file", mode).await.unwrap();
            assert_eq!(file.read_at(0, 10).await.unwrap().len(), 10);
            let answers = watch.answers(&disk).unwrap();
            assert_eq!(answers.counts().ops, 2);
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

    /// Who has a disk from before it was taken back finds nothing there: what it would write nobody expects any more.
    #[test]
    fn a_disk_that_is_watched_anew_is_let_go_by_who_had_it() {
        let world = TestWorld::new(1);
        let watch = Watch::new(world.env.clock.clone(), Duration::from_secs(30));
        let old = watch.over(MemDisk::new("disk", 1 << 20));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mode = OpenMode::CreateNew { len_bytes: 4096 };
            let held = old.open("file", mode).await.unwrap();
            let anew = watch.anew(&old).expect("it is watched");
            assert!(held.read_at(0, 10).await.is_ok());
            watch.let_go(&old, "for a test");
            assert!(held.read_at(0, 10).await.is_err());
            assert!(old.list("").await.is_err());
            let file = anew.open("file", OpenMode::Existing).await.unwrap();
            assert_eq!(file.read_at(0, 10).await.unwrap().len(), 10);
            assert_eq!(watch.problem(&anew), None);
            let answers = watch.answers(&anew).expect("it is watched");
            assert!(answers.take_untried(), "it has to prove itself");
            assert!(!answers.take_untried());
            let other: Arc<dyn Disk> = MemDisk::new("other", 1 << 20);
            assert!(watch.anew(&other).is_none());
        });
    }

    #[test]
    fn only_a_disk_that_did_nothing_but_not_answer_comes_back_by_itself() {
        let hangs = Evidence {
            hangs: true,
            ..Evidence::default()
        };
        let out = Evidence {
            is_out: true,
            ..hangs
        };
        let cases = [
            ("it did not answer", hangs, 0, 0, true),
            ("it was slow", Evidence::default(), 0, 0, false),
            ("it failed before", out, 0, 0, false),
            ("it gave wrong bytes", hangs, 1, 0, false),
            ("it did not take a write", hangs, 0, 1, false),
        ];
        for (name, seen, checksum_errors, change_errors, want) in cases {
            let got = comes_back(&seen, checksum_errors, change_errors);
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn a_disk_is_on_its_way_back_until_it_is_taken() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(100));
        let watch = Watch::new(world.env.clock.clone(), Duration::from_secs(30));
        let (one, other) = (DiskId(1), DiskId(2));
        watch.note_given_up(one, true);
        watch.note_given_up(other, false);
        assert!(watch.proven().is_empty());
        let prove = || {
            for _ in 0..100 {
                world.clock.advance(Duration::from_secs(1));
                let now = world.clock.monotonic();
                for comeback in watch.comebacks.lock().values_mut() {
                    if comeback.begin(now, true) {
                        comeback.note_answer(now, true);
                    }
                }
            }
        };
        prove();
        assert_eq!(watch.proven(), [one], "the other one waits for an operator");
        watch.note_refused(one);
        assert!(watch.proven().is_empty());
        prove();
        assert_eq!(watch.proven(), [one]);
        watch.note_taken(one);
        prove();
        assert!(watch.proven().is_empty());
        // Later it fails otherwise.
        watch.note_given_up(one, false);
        prove();
        assert!(watch.proven().is_empty());
    }
}
