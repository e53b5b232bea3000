//! Memory for data that is not in segments yet: one budget for all volumes of a process (Rule 6).
//!
//! Owns: how much each volume holds, which writers wait for room, and how much disk space each node reserves for
//! files. Must not know: when and how data is flushed, which other nodes fill the disks.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::env::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::dirty::Load;
use crate::types::FsError;

/// When flushes have found no space for so long, the disks count as full.
pub(crate) const NO_SPACE_PATIENCE: Duration = Duration::from_secs(1);
/// A flush that found no space says nothing about the space so much later.
const NO_SPACE_MEMORY: Duration = Duration::from_secs(10);

/// A row of flushes that all found no space: the times of the first and the last.
#[derive(Clone, Copy, Debug)]
struct NoSpace {
    first: Duration,
    last: Duration,
}

/// The other nodes that fill these disks.
pub trait Claims: Send + Sync + 'static {
    /// Makes all of them leave so many bytes on disks free for files of a volume, until the next call for it. Returns
    /// when all have confirmed.
    ///
    /// [`FsError::Unreachable`]: a node cannot be reached now.
    fn claim(&self, volume: VolumeId, bytes: u64) -> BoxFuture<Result<(), FsError>>;
}

impl fmt::Debug for dyn Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claims")
    }
}

/// A [`Load`] that several threads change.
#[derive(Debug, Default)]
struct LoadCounters {
    data_bytes: AtomicI64,
    run_count: AtomicI64,
}

impl LoadCounters {
    fn add(&self, delta: Load) {
        self.data_bytes
            .fetch_add(delta.data_bytes, Ordering::Relaxed);
        self.run_count.fetch_add(delta.run_count, Ordering::Relaxed);
    }

    fn load(&self) -> Load {
        Load {
            data_bytes: self.data_bytes.load(Ordering::Relaxed),
            run_count: self.run_count.load(Ordering::Relaxed),
        }
    }

    fn bytes(&self) -> u64 {
        self.data_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    fn memory_bytes(&self) -> u64 {
        self.load().memory_bytes()
    }
}

/// The memory that all volumes which share the budget may hold together.
#[derive(Debug)]
pub struct DirtyBudget {
    held: LoadCounters,
    /// Reserved for files of the volumes, in bytes on disks.
    reserved_bytes: AtomicU64,
    /// Reserved for files of volumes that other nodes serve on these disks. Those nodes change it.
    elsewhere_bytes: AtomicU64,
    /// Bytes of files that other nodes may have acknowledged and not written yet, while any node has a reservation.
    unflushed_bytes: AtomicU64,
    /// Set once, before volumes are served: the other nodes.
    claims: OnceLock<Arc<dyn Claims>>,
    /// The limit; it may change while volumes use the budget.
    bytes_max: AtomicU64,
    /// The first limit. A volume that holds nothing may still use it after the limit has shrunk.
    bytes_full: u64,
    account_count: AtomicUsize,
    less: Notify,
    /// Wakes every flusher: the volume that holds most is often not the volume that waits.
    press: Notify,
}

impl DirtyBudget {
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            held: LoadCounters::default(),
            reserved_bytes: AtomicU64::new(0),
            elsewhere_bytes: AtomicU64::new(0),
            unflushed_bytes: AtomicU64::new(0),
            claims: OnceLock::new(),
            bytes_max: AtomicU64::new(bytes_max),
            bytes_full: bytes_max,
            account_count: AtomicUsize::new(0),
            less: Notify::new(),
            press: Notify::new(),
        })
    }

    /// Bytes on disks that are reserved for files, of these volumes and of those that other nodes serve.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let here = self.reserved_bytes.load(Ordering::Relaxed);
        here.saturating_add(self.elsewhere_bytes.load(Ordering::Relaxed))
    }

    /// Bytes of files that other nodes have acknowledged and may still write; doubled, as this node sees their writes
    /// late.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        let once = self.unflushed_bytes.load(Ordering::Relaxed);
        once.saturating_mul(2)
    }

    pub(crate) fn claims(&self) -> Option<&Arc<dyn Claims>> {
        self.claims.get()
    }

    /// Sets the other nodes that fill these disks; only the first call has an effect.
    pub fn set_claims(&self, claims: Arc<dyn Claims>) {
        // One process has one cluster.
        let _ = self.claims.set(claims);
    }

    /// Sets how much the other nodes have reserved, in bytes on disks, and how much they may have acknowledged and
    /// not written yet, in bytes of files. The values count from the next check of the free space on, at most a tenth
    /// of a second later.
    pub fn set_elsewhere(&self, reserved_bytes: u64, unflushed_bytes: u64) {
        self.elsewhere_bytes
            .store(reserved_bytes, Ordering::Relaxed);
        self.unflushed_bytes
            .store(unflushed_bytes, Ordering::Relaxed);
    }

    /// Bytes of data held now.
    pub fn bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// The memory that the data takes, which is the limited amount: very small writes take far more than their data.
    pub fn memory_bytes(&self) -> u64 {
        self.held.memory_bytes()
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Limits the memory of all volumes together. Flushes remove the excess. Until then writers wait, with one
    /// exception: a volume that holds nothing may have one write at a time, within the first limit. The excess of
    /// other volumes may find no space and stay.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        let before = self.bytes_max.swap(bytes_max, Ordering::Relaxed);
        match before < bytes_max {
            // There may be room for waiting writers.
            true => self.less.notify_waiters(),
            false if before > bytes_max => self.press.notify_waiters(),
            false => {}
        }
    }

    /// The limit of one volume: where there are several, one that cannot flush must not stop the others.
    fn bytes_max_of_one(&self) -> u64 {
        let bytes_max = self.bytes_max();
        match self.account_count.load(Ordering::Relaxed) {
            0 | 1 => bytes_max,
            _ => bytes_max - bytes_max / 4,
        }
    }
}

/// The parts of a volume's account that count in the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BudgetShare {
    All,
    /// The reservation, without the data, which nothing flushes: no writer is to wait for it.
    SetAside,
    Nothing,
}

/// The share of one volume in a budget; given back on drop.
pub(crate) struct DirtyAccount {
    held: LoadCounters,
    budget: Arc<DirtyBudget>,
    /// The budget's reservation for files of this volume.
    reserved_bytes: AtomicU64,
    /// Locked during each change: an amount that was given back is not counted again.
    counted: Mutex<BudgetShare>,
    /// Nothing flushes any more, so waiting has no use.
    has_ended: AtomicBool,
    no_space: Mutex<Option<NoSpace>>,
}

impl Drop for DirtyAccount {
    fn drop(&mut self) {
        self.close();
    }
}

impl DirtyAccount {
    pub fn new(budget: Arc<DirtyBudget>) -> Self {
        budget.account_count.fetch_add(1, Ordering::Relaxed);
        Self {
            held: LoadCounters::default(),
            budget,
            reserved_bytes: AtomicU64::new(0),
            counted: Mutex::new(BudgetShare::All),
            has_ended: AtomicBool::new(false),
            no_space: Mutex::new(None),
        }
    }

    /// The volume ends: wakes all writers that wait for room, and later ones do not wait.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.budget.less.notify_waiters();
    }

    /// Gives back the volume's share and counts nothing of it any more: the volume was abandoned, and tasks that
    /// still hold it may never end.
    pub fn close(&self) {
        let mut counted = self.counted.lock();
        let before = std::mem::replace(&mut *counted, BudgetShare::Nothing);
        if before == BudgetShare::All {
            self.budget.held.add(-self.held.load());
        }
        if before != BudgetShare::Nothing {
            self.replace_reserved(0);
            self.budget.account_count.fetch_sub(1, Ordering::Relaxed);
            self.budget.less.notify_waiters();
        }
    }

    /// Stops counting the data of a volume that is read-only: data from its journal stays in memory until the volume
    /// is closed.
    pub fn leave_data_out(&self) {
        let mut counted = self.counted.lock();
        if *counted == BudgetShare::All {
            *counted = BudgetShare::SetAside;
            self.budget.held.add(-self.held.load());
            self.budget.less.notify_waiters();
        }
    }

    /// Bytes of data that this volume holds.
    pub fn bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// The memory that this data takes.
    pub fn memory_bytes(&self) -> u64 {
        self.held.memory_bytes()
    }

    pub fn budget(&self) -> &DirtyBudget {
        &self.budget
    }

    /// Bytes on disks that are reserved for files of this volume.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Sets how much disk space is reserved for files of this volume.
    pub fn set_reserved(&self, bytes: u64) {
        if self.reserved_bytes.load(Ordering::Relaxed) == bytes {
            return;
        }
        let counted = self.counted.lock();
        if *counted != BudgetShare::Nothing {
            self.replace_reserved(bytes);
        }
    }

    /// The caller holds the lock.
    fn replace_reserved(&self, bytes: u64) {
        let all = &self.budget.reserved_bytes;
        all.fetch_add(bytes, Ordering::Relaxed);
        let before = self.reserved_bytes.swap(bytes, Ordering::Relaxed);
        all.fetch_sub(before, Ordering::Relaxed);
    }

    pub fn add(&self, delta: Load) {
        let counted = self.counted.lock();
        self.held.add(delta);
        if *counted == BudgetShare::All {
            self.budget.held.add(delta);
        }
        drop(counted);
        if delta.is_less() {
            self.budget.less.notify_waiters();
        }
    }

    /// Whether to flush without waiting for age.
    pub fn is_high(&self) -> bool {
        self.budget.memory_bytes() > self.budget.bytes_max() / 2
    }

    /// Whether there is room for so much more. If not, waits until there may be: until something was flushed, the
    /// volume ended, or a flush failed, after which the caller checks the free space. A load above the limit gets in
    /// when nothing else is held.
    pub async fn admit(&self, more: Load) -> bool {
        if self.has_room(more) {
            return true;
        }
        let less = self.budget.less.notified();
        self.budget.press.notify_waiters();
        if self.has_room(more) {
            return true;
        }
        // After this check, the end of the volume wakes this waiter.
        if self.has_ended.load(Ordering::Acquire) {
            return false;
        }
        less.await;
        false
    }

    /// Resolves when less is held than now, a flush failed, or the volume ended. Asks for flushes.
    pub fn less(&self) -> impl Future<Output = ()> {
        let less = self.budget.less.notified();
        self.budget.press.notify_waiters();
        less
    }

    /// A flush failed: wakes the writers that wait for it.
    pub fn note_failure(&self) {
        self.budget.less.notify_waiters();
    }

    /// A flush found no space at `now`, which counts as a failure as well.
    pub fn note_no_space(&self, now: Duration) {
        let mut no_space = self.no_space.lock();
        let first = no_space
            .filter(|known| now.saturating_sub(known.last) < NO_SPACE_MEMORY)
            .map_or(now, |known| known.first);
        *no_space = Some(NoSpace { first, last: now });
    }

    /// A flush found space.
    pub fn note_space(&self) {
        *self.no_space.lock() = None;
    }

    /// Whether there is no room for so much more and waiting has no use, whatever the pool says about its space: a
    /// flush found no space, and so did its repetition.
    pub fn is_stuck(&self, more: Load, now: Duration) -> bool {
        let no_space = *self.no_space.lock();
        let is_believed = no_space.is_some_and(|known| {
            known.last.saturating_sub(known.first) >= NO_SPACE_PATIENCE
                && now.saturating_sub(known.last) < NO_SPACE_MEMORY
        });
        is_believed && !self.has_room(more)
    }

    fn has_room(&self, more: Load) -> bool {
        let more = more.memory_bytes();
        let fits = |held: u64, max: u64| held == 0 || held.saturating_add(more) <= max;
        let (here, of_all) = (self.memory_bytes(), self.budget.memory_bytes());
        let max = match here {
            0 => self.budget.bytes_max().max(self.budget.bytes_full),
            _ => self.budget.bytes_max(),
        };
        fits(of_all, max) && fits(here, self.budget.bytes_max_of_one())
    }

    /// Resolves when a writer waits for room.
    pub async fn pressed(&self) {
        self.budget.press.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn data(data_bytes: i64) -> Load {
        Load {
            data_bytes,
            run_count: 0,
        }
    }

    #[test]
    fn volumes_share_one_budget() {
        let budget = DirtyBudget::new(100);
        let (first, second) = (
            DirtyAccount::new(budget.clone()),
            DirtyAccount::new(budget.clone()),
        );
        first.add(data(60));
        let admits = |account: &DirtyAccount, len| account.admit(data(len)).now_or_never();
        assert_eq!(admits(&first, 15), Some(true), "up to its part");
        assert_eq!(admits(&first, 16), None, "the rest is for others");
        assert_eq!(admits(&second, 40), Some(true));
        let mut waits = Box::pin(second.admit(data(41)));
        assert_eq!(waits.as_mut().now_or_never(), None, "both together");
        first.add(data(-1));
        assert_eq!(waits.now_or_never(), Some(false), "woken, to look again");
        assert_eq!(admits(&second, 41), Some(true));
        let mut waits = Box::pin(second.admit(data(50)));
        assert_eq!(waits.as_mut().now_or_never(), None);
        first.note_failure();
        assert_eq!(waits.now_or_never(), Some(false));
        second.add(data(30));
        assert_eq!(
            (first.bytes(), second.bytes(), budget.bytes()),
            (59, 30, 89)
        );
        first.close();
        assert_eq!(budget.bytes(), 30, "what a volume held goes with it");
        first.add(data(7));
        first.add(data(-60));
        drop(first);
        assert_eq!(budget.bytes(), 30, "once");
        assert_eq!(admits(&second, 70), Some(true), "alone it may have all");
        second.add(data(-30));
        assert_eq!(admits(&second, 1000), Some(true));
    }

    #[test]
    fn a_budget_that_changes_is_kept_at_once() {
        let budget = DirtyBudget::new(100);
        let account = DirtyAccount::new(budget.clone());
        account.add(data(40));
        let admits = |len| account.admit(data(len)).now_or_never();
        assert_eq!(admits(60), Some(true));
        assert!(!account.is_high());
        let mut pressed = Box::pin(account.pressed());
        assert_eq!(pressed.as_mut().now_or_never(), None);
        budget.set_bytes_max(50);
        assert!(pressed.now_or_never().is_some(), "flushes have to begin");
        assert!(account.is_high());
        assert_eq!(admits(10), Some(true));
        let mut waits = Box::pin(account.admit(data(11)));
        assert_eq!(waits.as_mut().now_or_never(), None);
        budget.set_bytes_max(51);
        assert_eq!(waits.now_or_never(), Some(false), "woken, to look again");
        assert_eq!(admits(11), Some(true));
        // This is less than is held: writers wait, and none gets in.
        budget.set_bytes_max(20);
        assert_eq!(admits(1), None);
        account.add(data(-40));
        assert_eq!(admits(1000), Some(true), "nothing else is there");
    }

    /// A volume whose flushes find no space holds more than the new limit, and keeps it.
    #[test]
    fn a_smaller_budget_lets_a_volume_go_on_beside_one_that_cannot_flush() {
        let budget = DirtyBudget::new(100);
        let (stuck, other) = (
            DirtyAccount::new(budget.clone()),
            DirtyAccount::new(budget.clone()),
        );
        stuck.add(data(75));
        budget.set_bytes_max(25);
        let admits = |account: &DirtyAccount, len| account.admit(data(len)).now_or_never();
        assert_eq!(admits(&stuck, 1), None);
        for _ in 0..3 {
            assert_eq!(admits(&other, 26), None, "more than there was at first");
            assert_eq!(admits(&other, 25), Some(true));
            other.add(data(10));
            assert_eq!(admits(&other, 1), None, "one at a time");
            other.add(data(-10));
        }
    }

    /// Data of a read-only volume keeps no writer waiting, and the reservation for its files stays.
    #[test]
    fn data_that_nothing_flushes_is_left_out() {
        let budget = DirtyBudget::new(100);
        let read = DirtyAccount::new(budget.clone());
        let other = DirtyAccount::new(budget.clone());
        read.add(data(100));
        read.set_reserved(7);
        let mut waits = Box::pin(other.admit(data(50)));
        assert_eq!(waits.as_mut().now_or_never(), None);
        read.leave_data_out();
        assert_eq!(waits.now_or_never(), Some(false), "woken, to look again");
        assert_eq!(other.admit(data(50)).now_or_never(), Some(true));
        read.add(data(10));
        assert_eq!((budget.bytes(), read.bytes()), (0, 110));
        assert_eq!(budget.reserved_bytes(), 7);
        read.set_reserved(8);
        assert_eq!(budget.reserved_bytes(), 8);
        for _ in 0..2 {
            read.close();
            assert_eq!((budget.bytes(), budget.reserved_bytes()), (0, 0));
        }
        drop(read);
        other.add(data(5));
        assert_eq!(budget.bytes(), 5);
    }

    #[test]
    fn no_space_is_believed_when_it_is_found_again() {
        let account = DirtyAccount::new(DirtyBudget::new(100));
        account.add(data(90));
        let at = Duration::from_millis;
        let is_stuck = |ms| account.is_stuck(data(20), at(ms));
        assert!(!is_stuck(0));
        account.note_no_space(at(0));
        account.note_no_space(at(900));
        assert!(!is_stuck(5000), "not tried again");
        account.note_no_space(at(1100));
        assert!(is_stuck(1200));
        assert!(!account.is_stuck(data(10), at(1200)), "there is room");
        assert!(!is_stuck(12_000), "long ago");
        account.note_no_space(at(12_000));
        assert!(!is_stuck(12_000), "for the first time since");
        account.note_no_space(at(14_000));
        assert!(is_stuck(14_000));
        account.note_space();
        assert!(!is_stuck(14_000));
    }

    #[test]
    fn runs_take_memory_and_are_no_data() {
        let budget = DirtyBudget::new(1160);
        let account = DirtyAccount::new(budget.clone());
        account.add(Load::of(4, 4));
        assert_eq!((account.bytes(), account.memory_bytes()), (4, 4 * 225));
        let admits = |load| account.admit(load).now_or_never();
        assert_eq!(admits(Load::of(36, 1)), Some(true));
        assert_eq!(admits(Load::of(37, 1)), None);
        // Writes that merge into one run: the same data in less memory.
        let mut waits = Box::pin(account.admit(Load::of(37, 1)));
        assert_eq!(waits.as_mut().now_or_never(), None);
        account.add(Load::of(4, 1) - Load::of(4, 4));
        assert_eq!(waits.now_or_never(), Some(false));
        account.close();
        assert_eq!((budget.bytes(), budget.memory_bytes()), (0, 0));
    }
}
