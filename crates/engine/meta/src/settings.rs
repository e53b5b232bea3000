//! Settings of a metadata store, and its statistics.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{DiskId, LogPosition};
use cairn_formats::metadata::log::TERM_COUNT_MAX;
use cairn_keys::VolumeKey;

use crate::batch::BATCH_BYTES_MAX;
use crate::replay_budget::ReplayBudget;
use crate::succession::Succession;

/// Smallest useful log file, in bytes.
pub const LOG_FILE_BYTES_MIN: u64 = 64 << 10;
/// Largest log file, in bytes: opening reads each file as a whole.
pub const LOG_FILE_BYTES_MAX: u64 = 128 << 20;

/// Approximate size of a file of the state; only the newest are smaller.
pub const STATE_FILE_BYTES: u64 = 64 << 20;

/// Minimum of open files for a volume's state, however few file descriptors there are: 4 GiB of metadata.
const STATE_FILES_MIN: u32 = 64;
/// Maximum of open files for a volume's state: 1 TiB of metadata. Each takes some 10 KiB of memory.
const STATE_FILES_MAX: u32 = 16 << 10;
const _: () = assert!(STATE_FILES_MIN as u64 * STATE_FILE_BYTES == 4 << 30);
const _: () = assert!(STATE_FILES_MAX as u64 * STATE_FILE_BYTES == 1 << 40);

/// Open files for the state of each of `volume_count` volumes: together an eighth of the process's file descriptors.
pub fn state_files_max(descriptors_max: u64, volume_count: usize) -> u32 {
    let each = descriptors_max / 8 / volume_count.max(1) as u64;
    let each = u32::try_from(each).unwrap_or(u32::MAX);
    each.clamp(STATE_FILES_MIN, STATE_FILES_MAX)
}

/// Exceeds the size of all write buffers: the cache counts them, and their own sizes limit them.
const WRITE_BUFFERS_UNBOUNDED: usize = 1 << 48;

/// The block cache of the state, shared by all volumes of a process, and the count of their write buffers. Clones share
/// both.
#[derive(Clone)]
pub struct MetaCache {
    pub(crate) blocks: rocksdb::Cache,
    pub(crate) write_buffers: rocksdb::WriteBufferManager,
}

impl MetaCache {
    pub fn new(capacity_bytes: usize) -> Self {
        let unbounded = WRITE_BUFFERS_UNBOUNDED;
        Self {
            blocks: rocksdb::Cache::new_lru_cache(capacity_bytes),
            write_buffers: rocksdb::WriteBufferManager::new_write_buffer_manager(unbounded, false),
        }
    }

    /// Changes the memory limit of the cache. Excess blocks are dropped at once, except those being read.
    pub fn set_capacity_bytes(&self, capacity_bytes: usize) {
        self.blocks.clone().set_capacity(capacity_bytes);
    }

    /// Bytes in use by blocks.
    pub fn used_bytes(&self) -> usize {
        self.blocks.get_usage()
    }

    /// Bytes in use by the write buffers of all open states, including those being written to files.
    pub fn write_buffer_bytes(&self) -> usize {
        self.write_buffers.get_usage()
    }
}

impl std::fmt::Debug for MetaCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaCache").finish_non_exhaustive()
    }
}

/// Limits and sizes of one volume's metadata store.
#[derive(Clone, Debug)]
pub struct MetaSettings {
    /// Copies of log and state: parity count + 1 (M+1). With fewer disks there are fewer copies.
    /// [`crate::MetaStore::set_copies`] changes it later.
    pub copies: usize,
    /// Size of one log file; at least [`LOG_FILE_BYTES_MIN`].
    pub log_file_bytes: u64,
    /// Log bytes since the last checkpoint above which another one is shipped.
    pub ship_bytes: u64,
    /// Retained bytes above which `journal_pressure` asks for folding.
    pub log_bytes_max: u64,
    /// Bytes submitted and not yet durable above which `admit` waits.
    pub queue_bytes_max: usize,
    /// Shared by all volumes.
    pub cache: MetaCache,
    /// Memory of logs that are replayed; shared by all volumes.
    pub replay: ReplayBudget,
    /// Size of one write buffer of the state; there are up to three.
    pub write_buffer_bytes: usize,
    /// Open files of the state. If the state has more, random reads open a file each, which takes several more reads.
    /// So there should be one for each [`STATE_FILE_BYTES`] of metadata.
    pub open_files_max: u32,
    /// Wait for the other disks once a log write is durable on one, counted from the beginning of the write. Then the
    /// log goes on without disks that do not answer, as without failed ones.
    pub log_write_wait: Duration,
    /// Number of starts named in the log above which a start has the log forget earlier ones before it returns. At most
    /// half of the starts that the log can name.
    pub starts_named_max: usize,
    /// Shared by all stores of the volume in this process. With it, a caller that waits on a store that ends gets the
    /// outcome of its change from the successor. Without it, the caller gets an error.
    pub succession: Option<Succession>,
    /// Key of an encrypted volume: the log holds file bytes encrypted with it.
    pub key: Option<Arc<VolumeKey>>,
}

impl MetaSettings {
    pub fn new(copies: usize, cache: MetaCache) -> Self {
        Self {
            copies,
            log_file_bytes: 32 << 20,
            ship_bytes: 128 << 20,
            log_bytes_max: 512 << 20,
            queue_bytes_max: 32 << 20,
            cache,
            replay: ReplayBudget::new(u64::MAX),
            write_buffer_bytes: 32 << 20,
            open_files_max: 256,
            log_write_wait: Duration::from_millis(500),
            starts_named_max: TERM_COUNT_MAX / 2,
            succession: None,
            key: None,
        }
    }

    /// Limit of one batch with these settings: several batches fit into a log file.
    pub fn batch_bytes_max(&self) -> usize {
        let part = usize::try_from(self.log_file_bytes / 4).unwrap_or(usize::MAX);
        part.min(BATCH_BYTES_MAX)
    }
}

/// The volume's counters now, including submitted batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounters {
    pub inodes: u64,
    pub file_bytes: u64,
    pub stored_bytes: u64,
    /// The part of `stored_bytes` that only snapshots see.
    pub history_bytes: u64,
    /// Segments with a record.
    pub segments: u64,
}

/// The part of the log that the journal retains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalPressure {
    /// Data of entries that are not folded.
    pub data_bytes: u64,
    /// Bytes of retained log files, on one disk.
    pub log_bytes: u64,
    pub log_bytes_max: u64,
    /// The oldest entry that is not folded.
    pub oldest: Option<LogPosition>,
    /// If set, entries up to this position should be folded now, so that the log can be cut.
    pub fold_through: Option<LogPosition>,
    /// Whether only the oldest entry keeps the log from being cut now.
    pub holds_log: bool,
}

/// Place of one copy of the log or the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPosition {
    pub disk: DiskId,
    pub position: LogPosition,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaStats {
    /// Bytes of retained log files, on one disk.
    pub log_bytes: u64,
    /// Log records written, batches in them, their bytes on one disk.
    pub groups: u64,
    pub batches: u64,
    pub group_bytes: u64,
    /// Bytes of these records on all disks.
    pub group_copies_bytes: u64,
    /// Durable writes requested from disks.
    pub syncs: u64,
    /// Bytes submitted and not yet durable.
    pub queue_bytes: u64,
    /// Newest positions submitted, durable, and applied to the state.
    pub submitted: LogPosition,
    pub durable: LogPosition,
    pub applied: LogPosition,
    /// The log is retained from here on.
    pub log_start: LogPosition,
    /// Copies wanted of log and state.
    pub copies_wanted: usize,
    /// Disks that the log is written to now.
    pub log_disks: Vec<DiskId>,
    /// Older log records could not be copied when more copies were asked for.
    pub log_is_short: bool,
    /// Durable states: the primary first, then the shipped copies.
    pub states: Vec<CopyPosition>,
    /// Disks that failed since the store was opened; they get no more writes.
    pub failed_disks: Vec<DiskId>,
    /// Whether log or state has fewer copies than wanted. True for a new volume until its state is first shipped.
    pub copies_missing: bool,
    /// The state or the log had no space at its last write; see [`crate::MetaStore::is_full`].
    pub full: bool,
    pub ships: u64,
    pub ship_errors: u64,
    /// Counter changes that would have gone below zero, or named no segment: bugs of the caller.
    pub counter_errors: u64,
}

impl MetaStats {
    /// Whether the loss of another disk could lose metadata that should survive it.
    ///
    /// Too few copies of the state are harmless while the fully copied log still begins at its first entry: a new
    /// volume is not degraded.
    pub fn is_degraded(&self) -> bool {
        let log_is_whole = self.log_start <= LogPosition(1);
        self.log_disks.len() < self.copies_wanted
            || self.log_is_short
            || (self.states.len() < self.copies_wanted && !log_is_whole)
    }

    /// Whether some disks together have everything that is durable, so that the volume can be opened on them alone. A
    /// failed disk is out of date, and nothing on the disk says so.
    pub fn is_all_on(&self, disks: &[DiskId]) -> bool {
        let counts = |disk: &DiskId| disks.contains(disk) && !self.failed_disks.contains(disk);
        // The copies of the state hold the changes that the log has dropped.
        let log_is_whole = self.log_start <= LogPosition(1);
        let is_fresh = |state: &CopyPosition| state.position.0 + 1 >= self.log_start.0;
        let mut states = self.states.iter().filter(|state| is_fresh(state));
        let has_log = self.log_disks.iter().any(counts);
        has_log && (log_is_whole || states.any(|state| counts(&state.disk)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_changes_its_size_and_write_buffers_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = MetaCache::new(8 << 20);
        let mut table = rocksdb::BlockBasedOptions::default();
        table.set_block_cache(&cache.blocks);
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(rocksdb::DBCompressionType::None);
        options.set_write_buffer_manager(&cache.write_buffers);
        let db = rocksdb::DB::open(&options, folder.path()).expect("opens");
        for number in 0..4096_u32 {
            db.put(number.to_be_bytes(), [1_u8; 1024]).expect("writes");
        }
        let buffered = cache.write_buffer_bytes();
        assert!(buffered > 4 << 20, "{buffered}");
        db.flush().expect("flushes");
        let read_all = || {
            for number in 0..4096_u32 {
                assert!(db.get(number.to_be_bytes()).expect("reads").is_some());
            }
            cache.used_bytes()
        };
        let used = read_all();
        assert!(used > 3 << 20, "{used}");
        cache.set_capacity_bytes(1 << 20);
        assert!(cache.used_bytes() < 2 << 20);
        assert!(read_all() < 2 << 20);
        cache.set_capacity_bytes(8 << 20);
        assert!(read_all() > 3 << 20);
        drop(db);
        assert!(cache.write_buffer_bytes() < buffered / 2);
    }

    #[test]
    fn there_is_an_open_file_for_what_metadata_there_may_be() {
        const GIB: u64 = 1 << 30;
        // File descriptors, volumes, and metadata of each volume that is read without opening a file each time.
        let cases: &[(u64, usize, u64)] = &[
            // Usual limits: of a shell, of a service, of a container.
            (4096, 1, 32 * GIB),
            (524_288, 1, 1024 * GIB),
            (1 << 20, 1, 1024 * GIB),
            (524_288, 100, 40 * GIB),
            // The minimum and the maximum apply.
            (1024, 100, 4 * GIB),
            (u64::MAX, 1, 1024 * GIB),
        ];
        for (descriptors, volumes, want) in cases {
            let files = state_files_max(*descriptors, *volumes);
            let metadata = u64::from(files) * STATE_FILE_BYTES;
            let is_enough = metadata >= *want && metadata < want + GIB;
            assert!(is_enough, "{descriptors} {volumes}: {}", metadata / GIB);
        }
    }

    #[test]
    fn a_volume_can_be_opened_where_log_and_state_are() {
        let disk = |index: u128| DiskId(index);
        let copy = |index, position| CopyPosition {
            disk: disk(index),
            position: LogPosition(position),
        };
        let stats = |log_start| MetaStats {
            log_disks: vec![disk(1), disk(2)],
            states: vec![copy(1, 100), copy(3, 99), copy(4, 50)],
            failed_disks: vec![disk(5)],
            log_start: LogPosition(log_start),
            ..MetaStats::default()
        };
        // Start of the log, the disks, whether they are enough.
        let cases: &[(u64, &[u128], bool)] = &[
            (100, &[1], true),
            (100, &[2], false),
            (100, &[2, 3], true),
            (101, &[2, 3], false),
            (100, &[2, 4], false),
            (100, &[3], false),
            (100, &[6], false),
            (1, &[2], true),
            (1, &[3], false),
            (1, &[], false),
        ];
        for (log_start, disks, want) in cases {
            let disks: Vec<DiskId> = disks.iter().map(|index| disk(*index)).collect();
            let got = stats(*log_start).is_all_on(&disks);
            assert_eq!(got, *want, "{log_start} {disks:?}");
        }
        let mut failed = stats(1);
        failed.failed_disks.push(disk(2));
        assert!(!failed.is_all_on(&[disk(2)]));
    }

    #[test]
    fn too_few_states_degrade_a_volume_only_once_the_log_is_cut() {
        // Disks with the log and disks with the state, of two wanted; start of the log; whether it is short.
        let cases: &[(&str, usize, usize, u64, bool, bool)] = &[
            ("new", 2, 1, 1, false, false),
            ("shipped", 2, 2, 100, false, false),
            ("cut without a state", 2, 1, 2, false, true),
            ("a disk without the log", 1, 2, 1, false, true),
            ("older parts of the log not copied", 2, 2, 1, true, true),
        ];
        for (name, log_count, state_count, log_start, log_is_short, want) in cases {
            let copy = CopyPosition {
                disk: DiskId(1),
                position: LogPosition(1),
            };
            let stats = MetaStats {
                copies_wanted: 2,
                log_disks: vec![DiskId(1); *log_count],
                states: vec![copy; *state_count],
                log_start: LogPosition(*log_start),
                log_is_short: *log_is_short,
                ..MetaStats::default()
            };
            assert_eq!(stats.is_degraded(), *want, "{name}");
        }
    }
}
