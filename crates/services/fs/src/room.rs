//! Checks whether the pool has room, and how much a write adds to a file.
//!
//! Owns: which writes are refused when disks are full. Must not know: quotas, where data is put.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::kernel::{Ahead, Inode};
use crate::types::FsError;
use crate::volume::VolumeCore;

/// The charge of a new name in checks of space: it takes metadata, which has no reserve except the one that deletions
/// need.
pub(crate) const METADATA_BYTES: u64 = 4096;
/// How long a reading of the pool's free space is valid.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The last reading of the pool's space.
#[derive(Clone, Copy, Default)]
pub(crate) struct PoolSpace {
    at: Option<Duration>,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Free bytes for data of the directories whose protection takes most.
    free_bytes_least: u64,
    /// Reservations for files ([`crate::reserve`]), which are not free for other files; and the free bytes with them.
    pub reserved_bytes: u64,
    pub free_bytes_beside: u64,
}

impl VolumeCore {
    /// Flushes this file at once, and the others as when memory runs high.
    pub(crate) fn flush_soon(self: &Arc<Self>, inode: &Arc<Inode>) {
        self.start_flights(inode, &mut inode.lock(), true);
        self.queue().wake();
    }

    /// The number of bytes of `range` that the file has neither in memory nor in extents.
    pub(crate) fn new_bytes(&self, inode: &Inode, range: &Range<u64>) -> Result<u64, FsError> {
        loop {
            self.load_extents(inode, range, Ahead::None)?;
            let state = inode.lock();
            if !state.extents.is_loaded(range) {
                // Other tasks needed the memory meanwhile.
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
        if self.pool_space().free_bytes_least < pending {
            self.gc_wake.notify_one();
            if self.segments.has_working_disk() {
                return Err(FsError::NoSpace);
            }
            // No disk has space either; but deleting files would not give any.
            let why = "no disk of the pool works".to_owned();
            return Err(match self.segments.has_absent_disk() {
                true => FsError::Unreachable(why),
                false => FsError::Io(why),
            });
        }
        Ok(())
    }

    /// Makes the next check read the pool's space again.
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
            self.tell_reserved(code);
            let usable = self.usable(code);
            let asked = self.policies.protections();
            let of_asked = asked.iter().filter_map(|own| {
                let code = self.code_of(Some(own)).ok()?;
                Some(self.usable(code).free_bytes)
            });
            *space = PoolSpace {
                at: Some(now),
                total_bytes: usable.total_bytes,
                free_bytes: usable.free_bytes,
                free_bytes_least: of_asked.fold(usable.free_bytes, u64::min),
                reserved_bytes: self.reserved_under(code),
                free_bytes_beside: self.segments.usable(code).free_bytes,
            };
        }
        *space
    }
}
