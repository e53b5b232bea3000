//! How the memory limit is divided.

/// The memory limit when none is set, in bytes.
pub const MEMORY_LIMIT_BYTES_DEFAULT: u64 = 2 << 30;
/// Below this, in bytes, the buffers of a few busy connections alone would not fit.
pub const MEMORY_LIMIT_BYTES_MIN: u64 = 256 << 20;

/// The program itself: its code, stacks of its threads, tables that do not grow; of a small limit at most a part.
const PROGRAM_BYTES: u64 = 48 << 20;
const PROGRAM_PART: u64 = 6;
/// Of what is left, in percent; the rest is for fragments, and for what allocators keep.
const RECORD_CACHE_PERCENT: u64 = 42;
const DIRTY_PERCENT: u64 = 16;
const METADATA_PERCENT: u64 = 12;
const DEDUPE_PERCENT: u64 = 2;
const REQUESTS_PERCENT: u64 = 15;
const TABLES_PERCENT: u64 = 8;
const READ_BUFFERS_PERCENT: u64 = 2;
/// Of the metadata memory.
const METADATA_CACHE_PERCENT: u64 = 60;
const _: () = assert!(
    RECORD_CACHE_PERCENT
        + DIRTY_PERCENT
        + METADATA_PERCENT
        + DEDUPE_PERCENT
        + REQUESTS_PERCENT
        + TABLES_PERCENT
        + READ_BUFFERS_PERCENT
        < 100
);
/// Of the memory for requests, in percent. Each protocol has its own part, so that none takes it from the others.
const NFS_PERCENT: u64 = 30;
const ISCSI_PERCENT: u64 = 45;
const S3_PERCENT: u64 = 25;
const _: () = assert!(NFS_PERCENT + ISCSI_PERCENT + S3_PERCENT == 100);

/// What an open volume has at the least, in bytes: three write buffers of its metadata, inodes, extents, and what works for it.
pub const VOLUME_BYTES_MIN: u64 = 6 << 20;
/// The record cache gives way to open volumes, down to a part of this size.
const RECORD_CACHE_LEAST: u64 = 4;
/// Where the process comes near its limit, caches shrink below that: to these parts of their sizes.
const RECORD_CACHE_SHORT: u64 = 16;
const METADATA_CACHE_SHORT: u64 = 4;
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
    /// Requests under way with their data, and answers that clients have not taken yet, of all protocols.
    pub requests_bytes: u64,
    /// Inodes and extents of open volumes.
    pub tables_bytes: u64,
    /// Buffers that disks read into, kept for their next reads.
    pub read_buffers_bytes: u64,
    /// The rest: for the program itself, for fragments and for memory that allocators keep.
    pub rest_bytes: u64,
}

impl MemoryBudget {
    /// What open volumes have without taking from the record cache.
    fn volumes_bytes(&self) -> u64 {
        self.metadata_bytes / 100 * (100 - METADATA_CACHE_PERCENT) + self.tables_bytes
    }

    /// The part of the metadata memory that is a cache of what is read; the rest is for write buffers.
    pub fn metadata_cache_bytes(&self) -> u64 {
        self.metadata_bytes / 100 * METADATA_CACHE_PERCENT
    }

    /// What the record cache and the metadata cache have at the least, however near the limit is.
    pub fn caches_least_bytes(&self) -> (u64, u64) {
        (
            self.record_cache_bytes / RECORD_CACHE_SHORT,
            self.metadata_cache_bytes() / METADATA_CACHE_SHORT,
        )
    }

    /// Requests over NFS, and what they hold.
    pub fn nfs_bytes(&self) -> u64 {
        self.requests_bytes / 100 * NFS_PERCENT
    }

    /// Commands of initiators, and answers that they have not taken.
    pub fn iscsi_bytes(&self) -> u64 {
        self.requests_bytes / 100 * ISCSI_PERCENT
    }

    /// Objects on their way.
    pub fn s3_bytes(&self) -> u64 {
        self.requests_bytes / 100 * S3_PERCENT
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

    /// Logs that are being replayed, and beside these those of volumes that are only read, each. The record cache gives way to them.
    pub fn replay_bytes(&self) -> u64 {
        self.record_cache_bytes - self.record_cache_bytes / RECORD_CACHE_LEAST
    }

    /// Volumes of a cluster that a node takes over at a time.
    pub fn takeovers_max(&self) -> usize {
        // Clients of these volumes wait meanwhile.
        let count = (self.rest_bytes + self.requests_bytes / 4) / TAKEOVER_BYTES;
        count.clamp(TAKEOVERS_MIN, TAKEOVERS_MAX) as usize
    }

    pub fn of(limit_bytes: u64) -> Self {
        let program_bytes = PROGRAM_BYTES.min(limit_bytes / PROGRAM_PART);
        let percent = |share: u64| (limit_bytes - program_bytes) / 100 * share;
        let mut budget = Self {
            record_cache_bytes: percent(RECORD_CACHE_PERCENT),
            dirty_bytes: percent(DIRTY_PERCENT),
            metadata_bytes: percent(METADATA_PERCENT),
            dedupe_bytes: percent(DEDUPE_PERCENT),
            requests_bytes: percent(REQUESTS_PERCENT),
            tables_bytes: percent(TABLES_PERCENT),
            read_buffers_bytes: percent(READ_BUFFERS_PERCENT),
            rest_bytes: 0,
        };
        budget.rest_bytes = limit_bytes - budget.handed_out_bytes();
        budget
    }

    /// All parts but the rest.
    fn handed_out_bytes(&self) -> u64 {
        self.record_cache_bytes
            + self.dirty_bytes
            + self.metadata_bytes
            + self.dedupe_bytes
            + self.requests_bytes
            + self.tables_bytes
            + self.read_buffers_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_cache_gives_way_to_open_volumes() {
        let budget = MemoryBudget::of(512 << 20);
        let most = budget.volumes_max();
        // As docs/guide/cluster.md says.
        let of = |mebibytes: u64| MemoryBudget::of(mebibytes << 20).volumes_max();
        assert_eq!((most, of(2048)), (34, 147));
        assert_eq!(budget.record_cache_beside(1), budget.record_cache_bytes);
        let beside = budget.record_cache_beside(30);
        assert!(beside < budget.record_cache_bytes);
        // The part taken from the cache and the part for volumes are enough for them.
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
    fn logs_in_memory_get_what_the_record_cache_gives_way() {
        for limit in [MEMORY_LIMIT_BYTES_MIN, MEMORY_LIMIT_BYTES_DEFAULT] {
            let budget = MemoryBudget::of(limit);
            let (least, _) = budget.caches_least_bytes();
            let rest = budget.record_cache_bytes - budget.replay_bytes();
            assert!(rest >= least, "{limit}: {rest} of {least}");
            assert!(budget.replay_bytes() > limit / 5, "{limit}");
        }
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
            assert_eq!(budget.handed_out_bytes() + budget.rest_bytes, limit);
            let requests = budget.nfs_bytes() + budget.iscsi_bytes() + budget.s3_bytes();
            assert!(requests <= budget.requests_bytes);
            let (records, metadata) = budget.caches_least_bytes();
            assert!(records + metadata <= budget.record_cache_bytes + budget.metadata_bytes);
        }
        // Without the program's part.
        let budget = MemoryBudget::of(148 << 20);
        let part = |percent: u64| ((148 << 20) - (148 << 20) / 6) / 100 * percent;
        assert_eq!(budget.record_cache_bytes, part(42));
        assert_eq!(budget.dirty_bytes, part(16));
        let budget = MemoryBudget::of(1072 << 20);
        assert_eq!(budget.record_cache_bytes, (1024 << 20) / 100 * 42);
        assert_eq!(budget.tables_bytes, (1024 << 20) / 100 * 8);
    }

    /// At the least limit nothing that could not do its work.
    #[test]
    fn the_least_limit_is_enough_for_each_part() {
        const MIB: u64 = 1 << 20;
        let budget = MemoryBudget::of(MEMORY_LIMIT_BYTES_MIN);
        assert!(budget.dirty_bytes >= 32 * MIB);
        // Calls of a mebibyte. The largest command has 8, beside the eighth that is for answers.
        assert!(budget.nfs_bytes() >= 8 * MIB && budget.iscsi_bytes() >= 12 * MIB);
        // A mebibyte of each class of buffers is a quarter of all.
        assert!(budget.read_buffers_bytes >= 4 * MIB);
        assert!(budget.rest_bytes >= 48 * MIB);
    }
}
