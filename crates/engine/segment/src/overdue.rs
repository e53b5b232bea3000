//! Operations that a disk does not finish in time.
//!
//! Owns: the wait for an operation, and the disks that still have overdue operations. Must not know: the operations,
//! the reaction to a late one.
//!
//! An overdue operation is abandoned, not cancelled: its end shows that the disk answers again. Until then nothing new
//! is placed on that disk if other disks are enough. So abandoned operations use no more memory than the appends that
//! were in progress at one time, plus names and footers. A late write does no harm: stripes are never given to another
//! append, a file with a write in progress never becomes another shard, and a shard with an unfinished write has no
//! footer. So its bytes are compared with the other shards before they count.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use cairn_base::DiskId;
use cairn_base::env::BoxFuture;
use cairn_shard::ShardService;
use futures_util::StreamExt;
use futures_util::future::{Either, poll_fn, select};
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;

use crate::store::SegmentStore;

/// Checks per deadline of the disks that are waited for. A disk is unresponsive if it has answered nothing since the
/// last check. Earlier answers, even to the first part of this operation, do not count.
const LOOKS: u32 = 2;
/// A disk that answers other writes meanwhile is busy, and is waited for this number of checks.
const BUSY_LOOKS_MAX: u32 = 10 * LOOKS;

/// Disks with abandoned operations, and the number of these.
#[derive(Default)]
pub(crate) struct LateDisks {
    counts: Mutex<BTreeMap<DiskId, usize>>,
}

impl LateDisks {
    pub fn all(&self) -> Vec<DiskId> {
        self.counts.lock().keys().copied().collect()
    }

    fn begin(&self, disk: DiskId) {
        *self.counts.lock().entry(disk).or_default() += 1;
    }

    fn end(&self, disk: DiskId) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&disk) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&disk);
            }
        }
    }
}

/// An operation on one disk.
pub(crate) struct DiskOp<T> {
    pub disk: DiskId,
    pub run: BoxFuture<T>,
}

/// Operations in progress.
struct Waited<T> {
    ops: FuturesUnordered<BoxFuture<(usize, T)>>,
    /// By index, with the number of writes that the disk had answered at the last check.
    disks: BTreeMap<usize, (DiskId, u64)>,
    looks: u32,
}

impl<T> Waited<T> {
    /// Whether all operations in progress are on some of these disks, and on few of them.
    fn is_only_on(&self, disks: &[DiskId], count_max: usize) -> bool {
        let mut waited = self.disks.values();
        self.disks.len() <= count_max && waited.all(|(disk, _)| disks.contains(disk))
    }
}

impl SegmentStore {
    /// As [`Self::run_on_disks`], for operations whose end is not needed: a late disk does them later, or never.
    pub(crate) async fn run_or_leave<T: Send + 'static>(
        self: &Arc<Self>,
        ops: Vec<DiskOp<T>>,
        late_max: usize,
    ) -> Vec<Option<T>> {
        let nothing = |_, _| Box::pin(std::future::ready(())) as BoxFuture<()>;
        self.run_on_disks(ops, late_max, |_| true, nothing).await
    }

    /// As [`Self::run_or_leave`], without any wait for disks that are late already: garbage collection does this with
    /// one segment after the other, and writers wait for it.
    pub(crate) async fn run_or_leave_at_once<T: Send + 'static>(
        self: &Arc<Self>,
        ops: Vec<DiskOp<T>>,
        late_max: usize,
    ) -> Vec<Option<T>> {
        let nothing = |_, _| Box::pin(std::future::ready(())) as BoxFuture<()>;
        let known = self.late.all();
        self.run(ops, late_max, &known, |_| true, nothing).await
    }

    /// Disks that get nothing new if other disks are enough: they have an overdue operation, or were found unresponsive
    /// or failing, and have not proven since that they work.
    pub(crate) fn doubtful_disks(&self) -> Vec<DiskId> {
        let mut doubtful = self.late.all();
        for disk in self.members().all() {
            let state = disk.state();
            if (state.is_silent() || state.is_failing()) && !doubtful.contains(&disk.id()) {
                doubtful.push(disk.id());
            }
        }
        doubtful
    }

    /// Runs operations of distinct disks and returns their results in order. Operations beyond the deadline are
    /// abandoned, with `None` as their result, if they are at most `late_max`, all others are done, and
    /// `can_do_without` allows it for their disks. Their later results go to `clean_up`.
    pub(crate) async fn run_on_disks<T: Send + 'static>(
        self: &Arc<Self>,
        ops: Vec<DiskOp<T>>,
        late_max: usize,
        can_do_without: impl Fn(&[DiskId]) -> bool,
        clean_up: impl Fn(usize, T) -> BoxFuture<()> + Send + 'static,
    ) -> Vec<Option<T>> {
        self.run(ops, late_max, &[], can_do_without, clean_up).await
    }

    /// As [`Self::run_on_disks`]. `known`: disks that are late already. They are abandoned as soon as all others are
    /// done; all of them are dispensable.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        ops: Vec<DiskOp<T>>,
        late_max: usize,
        known: &[DiskId],
        can_do_without: impl Fn(&[DiskId]) -> bool,
        clean_up: impl Fn(usize, T) -> BoxFuture<()> + Send + 'static,
    ) -> Vec<Option<T>> {
        let mut results: Vec<Option<T>> = ops.iter().map(|_| None).collect();
        let mut waited = Waited {
            ops: FuturesUnordered::new(),
            disks: BTreeMap::new(),
            looks: 0,
        };
        for (index, DiskOp { disk, run }) in ops.into_iter().enumerate() {
            waited
                .disks
                .insert(index, (disk, self.writes_answered(disk)));
            waited.ops.push(Box::pin(async move { (index, run.await) }));
        }
        let begun = self.env.clock.monotonic();
        let mut next_look = self.sleep_until_look(begun, 1);
        let mut is_over = false;
        while !waited.ops.is_empty() {
            let next = poll_fn(|context| match waited.ops.poll_next_unpin(context) {
                Poll::Ready(done) => Poll::Ready(done),
                // All operations have begun.
                Poll::Pending if waited.is_only_on(known, late_max) => Poll::Ready(None),
                Poll::Pending => next_look.as_mut().poll(context).map(|()| None),
            });
            match next.await {
                Some((index, result)) => {
                    waited.disks.remove(&index);
                    if let Some(place) = results.get_mut(index) {
                        *place = Some(result);
                    }
                }
                None if waited.is_only_on(known, late_max) => is_over = true,
                None => {
                    is_over |= self.are_silent(&mut waited);
                    next_look = self.sleep_until_look(begun, waited.looks + 1);
                }
            }
            let late: Vec<DiskId> = waited.disks.values().map(|(disk, _)| *disk).collect();
            if is_over && !late.is_empty() && late.len() <= late_max && can_do_without(&late) {
                self.leave_alone(waited, clean_up);
                break;
            }
        }
        results
    }

    /// Runs an operation on one disk. If the disk is unresponsive, this returns `None`, and the operation goes on by
    /// itself when the disk answers again.
    pub(crate) async fn unless_silent<T: Send + 'static>(
        &self,
        disk: &Arc<dyn ShardService>,
        work: BoxFuture<T>,
    ) -> Option<T> {
        match select(work, pin!(disk.state().silence())).await {
            Either::Left((done, _)) => Some(done),
            Either::Right((_, work)) => {
                tracing::warn!(
                    disk = disk.label(),
                    "a disk does not answer; what is done there goes on when it does"
                );
                let rest = async move { drop(work.await) };
                self.env.spawner.spawn("silent disk", Box::pin(rest));
                None
            }
        }
    }

    fn sleep_until_look(&self, begun: Duration, look: u32) -> BoxFuture<()> {
        let due = begun + self.settings.write_deadline * look / LOOKS;
        let left = due.saturating_sub(self.env.clock.monotonic());
        self.env.clock.sleep(left)
    }

    /// Whether the disks that are waited for are unresponsive, or the operation has taken too long.
    fn are_silent<T>(&self, waited: &mut Waited<T>) -> bool {
        waited.looks += 1;
        let mut is_busy = false;
        for (disk, seen) in waited.disks.values_mut() {
            let answered = self.writes_answered(*disk);
            // A disk that was found to answer no change is not busy, even if it answers other requests.
            is_busy |= answered != *seen && !self.is_silent(*disk);
            *seen = answered;
        }
        waited.looks >= BUSY_LOOKS_MAX || waited.looks >= LOOKS && !is_busy
    }

    fn is_silent(&self, disk: DiskId) -> bool {
        self.disk(disk).is_some_and(|disk| disk.is_silent())
    }

    fn writes_answered(&self, disk: DiskId) -> u64 {
        self.disk(disk).map_or(0, |disk| disk.writes_answered())
    }

    fn leave_alone<T: Send + 'static>(
        self: &Arc<Self>,
        waited: Waited<T>,
        clean_up: impl Fn(usize, T) -> BoxFuture<()> + Send + 'static,
    ) {
        let Waited { mut ops, disks, .. } = waited;
        for (disk, _) in disks.values() {
            tracing::warn!(%disk, "a disk does not answer; going on without it");
            self.late.begin(*disk);
        }
        let store = self.clone();
        let task = async move {
            while let Some((index, result)) = ops.next().await {
                if let Some((disk, _)) = disks.get(&index) {
                    tracing::info!(%disk, "a disk has answered late");
                    store.late.end(*disk);
                }
                clean_up(index, result).await;
            }
        };
        self.env.spawner.spawn("late disk", Box::pin(task));
    }
}
