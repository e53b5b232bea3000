//! How the memory limit is divided.

/// The memory limit when none is set, in bytes.
pub const MEMORY_LIMIT_BYTES_DEFAULT: u64 = 2 << 30;
/// Below this, in bytes, the buffers of a few busy connections alone would not fit.
pub const MEMORY_LIMIT_BYTES_MIN: u64 = 256 << 20;

const RECORD_CACHE_PERCENT: u64 = 55;
const DIRTY_PERCENT: u64 = 18;
const METADATA_PERCENT: u64 = 12;
const DEDUPE_PERCENT: u64 = 2;
/// Of the metadata memory.
const METADATA_CACHE_PERCENT: u64 = 60;
const _: () =
    assert!(RECORD_CACHE_PERCENT + DIRTY_PERCENT + METADATA_PERCENT + DEDUPE_PERCENT < 100);

/// What an open volume has at the least, in bytes: three write buffers of its metadata, inodes, extents, and what works for it.
pub const VOLUME_BYTES_MIN: u64 = 6 << 20;
/// The record cache gives way to open volumes, down to a part of this size.
const RECORD_CACHE_LEAST: u64 = 4;
/// Memory that the takeover of a volume needs beside: pieces of its log, of several disks at a time.
const TAKEOVER_BYTES: u64 = 16 << 20;
const TAKEOVERS_MIN: u64 = 2;
const TAKEOVERS_MAX: u64 = 8;

/// The parts of the memory limit, all in bytes; together they are the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Records read or written lately.
    pub record_cache_bytes: u64,
    /// Data written by clients that is not on disk yet.
    pub dirty_bytes: u64,
    /// Caches and write buffers of the metadata stores.
    pub metadata_bytes: u64,
    /// Where records are, for volumes that deduplicate; nothing is taken while none does.
    pub dedupe_bytes: u64,
    /// What is left for connections, requests in flight, indexes and the program itself.
    pub rest_bytes: u64,
}

impl MemoryBudget {
    /// What open volumes have without taking from the record cache.
    fn volumes_bytes(&self) -> u64 {
        self.metadata_bytes / 100 * (100 - METADATA_CACHE_PERCENT) + self.rest_bytes / 2
    }

    /// The part of the metadata memory that is a cache of what is read; the rest is for write buffers.
    pub fn metadata_cache_bytes(&self) -> u64 {
        self.metadata_bytes / 100 * METADATA_CACHE_PERCENT
    }

    /// Open volumes that the limit holds, with the record cache as small as it gets.
    pub fn volumes_max(&self) -> u32 {
        let cache = self.record_cache_bytes - self.record_cache_bytes / RECORD_CACHE_LEAST;
        let count = (self.volumes_bytes() + cache) / VOLUME_BYTES_MIN;
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The record cache beside so many open volumes: what they need at the least and do not have elsewhere is taken from it.
    pub fn record_cache_beside(&self, volumes: usize) -> u64 {
        let needed = (volumes as u64).saturating_mul(VOLUME_BYTES_MIN);
        let taken = needed.saturating_sub(self.volumes_bytes());
        let least = self.record_cache_bytes / RECORD_CACHE_LEAST;
        self.record_cache_bytes.saturating_sub(taken).max(least)
    }

    /// Volumes of a cluster that a node takes over at a time.
    pub fn takeovers_max(&self) -> usize {
        let count = self.rest_bytes / TAKEOVER_BYTES;
        count.clamp(TAKEOVERS_MIN, TAKEOVERS_MAX) as usize
    }

    pub fn of(limit_bytes: u64) -> Self {
        let percent = |share: u64| limit_bytes / 100 * share;
        let record_cache_bytes = percent(RECORD_CACHE_PERCENT);
        let dirty_bytes = percent(DIRTY_PERCENT);
        let metadata_bytes = percent(METADATA_PERCENT);
        let dedupe_bytes = percent(DEDUPE_PERCENT);
        Self {
            record_cache_bytes,
            dirty_bytes,
            metadata_bytes,
            dedupe_bytes,
            rest_bytes: limit_bytes
                - record_cache_bytes
                - dirty_bytes
                - metadata_bytes
                - dedupe_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_cache_gives_way_to_open_volumes() {
        let budget = MemoryBudget::of(512 << 20);
        let most = budget.volumes_max();
        assert!((35..60).contains(&most), "{most}");
        assert_eq!(budget.record_cache_beside(1), budget.record_cache_bytes);
        let beside = budget.record_cache_beside(30);
        assert!(beside < budget.record_cache_bytes);
        // What is taken from the cache and what is there for volumes is enough for them.
        let had = budget.record_cache_bytes - beside + budget.volumes_bytes();
        assert!(had >= 30 * VOLUME_BYTES_MIN);
        let least = budget.record_cache_bytes / RECORD_CACHE_LEAST;
        assert_eq!(budget.record_cache_beside(usize::MAX), least);
        let at_most = budget.record_cache_beside(most as usize);
        assert!(at_most - least < VOLUME_BYTES_MIN, "{at_most} {least}");
        assert_eq!(
            (
                budget.takeovers_max(),
                MemoryBudget::of(8 << 30).takeovers_max()
            ),
            (4, 8)
        );
    }

    #[test]
    fn parts_add_up_to_the_limit() {
        for limit in [
            0,
            1,
            99,
            MEMORY_LIMIT_BYTES_MIN,
            MEMORY_LIMIT_BYTES_DEFAULT,
            u64::MAX,
        ] {
            let budget = MemoryBudget::of(limit);
            let sum = budget.record_cache_bytes
                + budget.dirty_bytes
                + budget.metadata_bytes
                + budget.dedupe_bytes
                + budget.rest_bytes;
            assert_eq!(sum, limit);
        }
        let budget = MemoryBudget::of(100 << 20);
        assert_eq!(budget.record_cache_bytes, 55 << 20);
        assert_eq!(budget.dirty_bytes, 18 << 20);
        assert_eq!(budget.metadata_bytes, 12 << 20);
        assert_eq!(budget.dedupe_bytes, 2 << 20);
    }
}
