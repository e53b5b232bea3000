//! Whether there is room: in a volume that has a limit, and in the pool.
//!
//! Owns: what counts as used, who is refused, who waits until that is known.
//! Must not know: where data is put.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::extents::Ahead;
use crate::inode::Inode;
use crate::types::FsError;
use crate::volume::Shared;

/// What a new name is charged when space is checked: it takes metadata, which has no room set aside
/// beside the reserve that deleting lives on.
pub(crate) const METADATA_BYTES: u64 = 4096;
/// How long a look at the pool's free space is good for.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The last look at the pool's space.
#[derive(Clone, Copy, Default)]
pub(crate) struct PoolSpace {
    at: Option<Duration>,
    pub total_bytes: u64,
    pub free_bytes: u64,
}

impl Shared {
    /// Refuses a new name when the volume or the pool is full.
    pub fn require_name_space(&self) -> Result<(), FsError> {
        // It holds no bytes of a file, and those that are dirty were let in by themselves.
        self.require_limit(0)?;
        self.require_pool_space(METADATA_BYTES)
    }

    /// Refuses `len_bytes` more where the volume's limit may be passed: what is dirty counts as if none of it
    /// replaced anything.
    fn require_quota(&self, len_bytes: u64) -> Result<(), FsError> {
        let pending = self.dirty.bytes().saturating_add(len_bytes);
        self.require_limit(pending)
    }

    /// Refuses `more_bytes` beyond what files of the volume hold.
    fn require_limit(&self, more_bytes: u64) -> Result<(), FsError> {
        let Some(limit) = self.policy.read().size_limit_bytes else {
            return Ok(());
        };
        let used = self.meta.counters().file_bytes;
        if used.saturating_add(more_bytes) > limit {
            return Err(FsError::QuotaExceeded);
        }
        Ok(())
    }

    /// Refuses a write of `range` that would make the volume larger than its limit. One that replaces bytes makes
    /// nothing larger. Near the limit it waits until is known what the dirty bytes come to, and who comes later waits
    /// for it: those who only replace bytes would keep that from ever being known.
    pub async fn require_room(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        range: &Range<u64>,
    ) -> Result<(), FsError> {
        let nobody_waits = self.near_limit.available_permits() > 0;
        if nobody_waits && self.require_quota(range.end - range.start).is_ok() {
            return Ok(());
        }
        // It is never closed.
        let _turn = self.near_limit.acquire().await;
        let flushes = || {
            let counters = &self.counters;
            let flushed = counters.flushed_bytes.load(Ordering::Relaxed);
            (flushed, counters.flush_errors.load(Ordering::Relaxed))
        };
        let all_flushed = || {
            // What lands between the two counts twice, not never.
            let dirty_bytes = self.dirty.bytes();
            flushes().0.saturating_add(dirty_bytes)
        };
        let (_, errors) = flushes();
        let mut enough = all_flushed();
        let mut is_last = false;
        loop {
            let change = self.dirty.less();
            let new_bytes = self.new_bytes(inode, range)?;
            if new_bytes == 0 || self.require_quota(new_bytes).is_ok() {
                return Ok(());
            }
            self.require_limit(new_bytes)?;
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
            let (flushed, errors_now) = flushes();
            let is_known = flushed >= enough;
            if (is_known && is_last) || errors_now != errors {
                return Err(FsError::QuotaExceeded);
            }
            if is_known {
                // Those who had been let in before have added theirs by now.
                is_last = true;
                enough = all_flushed();
            }
            self.flush_soon(inode);
            change.await;
        }
    }

    /// This file at once, the others as where memory runs high.
    fn flush_soon(self: &Arc<Self>, inode: &Arc<Inode>) {
        self.start_flights(inode, &mut inode.lock(), true);
        self.queue.wake();
    }

    /// How much of `range` the file does not hold, neither in memory nor in extents.
    fn new_bytes(&self, inode: &Inode, range: &Range<u64>) -> Result<u64, FsError> {
        loop {
            self.load_extents(inode, range, Ahead::None)?;
            let state = inode.lock();
            if !state.extents.is_loaded(range) {
                // Others needed the memory meanwhile.
                continue;
            }
            let (mut pieces, mut gaps) = (Vec::new(), Vec::new());
            state.read_dirty(range.clone(), &mut pieces, &mut gaps);
            let missing = |gap: &Range<u64>| {
                let held = state.extents.touching(gap.clone());
                let held = held.map(|extent| extent.end.min(gap.end) - extent.start.max(gap.start));
                gap.end - gap.start - held.sum::<u64>()
            };
            return Ok(gaps.iter().map(missing).sum());
        }
    }

    pub fn require_pool_space(&self, len_bytes: u64) -> Result<(), FsError> {
        if self.meta.is_full() {
            return Err(FsError::NoSpace);
        }
        // All volumes write to the same disks.
        let pending = self.dirty.budget().bytes().saturating_add(len_bytes);
        if self.pool_space().free_bytes < pending {
            self.gc_wake.notify_one();
            return Err(match self.segments.has_working_disk() {
                true => FsError::NoSpace,
                // There is no space on any either; but who deletes files for it gets none.
                false => FsError::Io("no disk of the pool works".to_owned()),
            });
        }
        Ok(())
    }

    /// The next question looks at the pool's space anew.
    pub fn forget_space(&self) {
        self.space.lock().at = None;
    }

    pub fn pool_space(&self) -> PoolSpace {
        let now = self.env.clock.monotonic();
        let mut space = self.space.lock();
        let fresh = space
            .at
            .is_some_and(|at| now.saturating_sub(at) < SPACE_CHECK_INTERVAL);
        if !fresh {
            let code = self.code().unwrap_or_else(|_| self.segments.default_code());
            let usable = self.segments.usable(code);
            *space = PoolSpace {
                at: Some(now),
                total_bytes: usable.total_bytes,
                free_bytes: usable.free_bytes,
            };
        }
        *space
    }
}
