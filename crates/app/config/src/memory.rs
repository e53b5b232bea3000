//! How the memory limit is divided.

/// The memory limit when none is set, in bytes.
pub const MEMORY_LIMIT_BYTES_DEFAULT: u64 = 2 << 30;
/// Below this, in bytes, the buffers of a few busy connections alone would not fit.
pub const MEMORY_LIMIT_BYTES_MIN: u64 = 256 << 20;

const RECORD_CACHE_PERCENT: u64 = 55;
const DIRTY_PERCENT: u64 = 18;
const METADATA_PERCENT: u64 = 12;
const DEDUPE_PERCENT: u64 = 2;
const _: () =
    assert!(RECORD_CACHE_PERCENT + DIRTY_PERCENT + METADATA_PERCENT + DEDUPE_PERCENT < 100);

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
