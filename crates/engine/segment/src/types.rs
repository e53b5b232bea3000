//! The types of the store's interface: inputs, results, and space.
//!
//! Owns: plain values. Must not know: files of disks, the layout of stripes.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{DiskId, Media, SegmentId};
use cairn_erasure::Code;
use cairn_formats::metadata::RemoteSegment;
use cairn_formats::pointer::Location;

use crate::life::Segment;

/// Default of [`SegmentSettings::streams_max`].
pub const STREAMS_MAX_DEFAULT: usize = 16;
/// Default of [`SegmentSettings::shard_len_bytes_min`].
pub const SHARD_LEN_BYTES_MIN: u64 = 4 << 20;

/// Settings of the store.
#[derive(Clone, Debug)]
pub struct SegmentSettings {
    /// Size of one shard file; smaller on small or nearly full disks.
    pub shard_len_bytes: u64,
    /// Smallest size of a shard when disks are small or nearly full.
    pub shard_len_bytes_min: u64,
    /// Memory for records that were read or just written. While disks are away, decoded stripes take a quarter of it,
    /// between 16 MiB and 48 MiB.
    pub cache_bytes: u64,
    /// Open segments per volume; above it the least recently used one is sealed.
    pub open_segments_max: usize,
    /// Streams per volume with an open segment of their own.
    pub streams_max: usize,
    /// Bytes of appends (data) that may be in flight to disks; above it appends wait.
    pub append_bytes_in_flight_max: u64,
    /// Longest wait of an append for an unresponsive disk that it can do without. A busy disk is waited for longer.
    pub write_deadline: Duration,
    /// Share of each disk kept for garbage collection and rebuild (Rule 5), in permille.
    pub reserve_permille: u16,
    /// Minimum of a disk's reserve, limited to a sixteenth of the disk.
    pub reserve_bytes_min: u64,
}

impl Default for SegmentSettings {
    fn default() -> Self {
        Self {
            shard_len_bytes: 64 << 20,
            shard_len_bytes_min: SHARD_LEN_BYTES_MIN,
            cache_bytes: 256 << 20,
            open_segments_max: 32,
            streams_max: STREAMS_MAX_DEFAULT,
            append_bytes_in_flight_max: 256 << 20,
            write_deadline: Duration::from_millis(500),
            reserve_permille: 20,
            reserve_bytes_min: 64 << 20,
        }
    }
}

/// The metadata's record of a segment: everything needed to read it after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    pub id: SegmentId,
    pub code: Code,
    /// The disk of each shard, by shard index; `code.total()` distinct ones, or none if the segment is in a tier.
    pub disks: Vec<DiskId>,
    /// Length reserved for data in each shard; after sealing, the length that it was cut to.
    pub shard_len_bytes: u64,
    /// Whether it accepts no more appends and its size on disks is final.
    pub sealed: bool,
    /// Set if it is in a tier. Then it has no disks.
    pub remote: Option<RemoteSegment>,
    /// The wanted device class, if any. The segment may be elsewhere while those disks have no room.
    pub media: Option<Media>,
    /// The wanted protection, if it differs from the volume's. `code` may be less while there are too few disks.
    pub protection: Option<Protection>,
}

pub use cairn_formats::settings::Protection;

/// Requirements for the place of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placing {
    pub code: Code,
    /// The device class to use while its disks have room and protection does not suffer.
    pub media: Option<Media>,
    /// Source of `code`, if that is not the volume's protection.
    pub protection: Option<Protection>,
}

impl From<Code> for Placing {
    fn from(code: Code) -> Self {
        Self {
            code,
            media: None,
            protection: None,
        }
    }
}

/// Groups records that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// All other records.
    Mixed,
    /// One large file that is written in order: it gets an open segment of its own, so that it is contiguous. The
    /// number is the caller's name for the file.
    File(u64),
    /// Copies made by garbage collection; they may use the reserve.
    Rewrite,
    /// Records that will soon go to a tier. They share segments with no others, because these segments count as old
    /// from their first day.
    Cold,
}

/// Result of an append: the place of each record, in the order given.
#[derive(Debug)]
pub struct Appended {
    pub locations: Vec<Location>,
    /// The segments of the records, new or not. Their entries must be committed to the metadata in one transaction with
    /// the extents.
    pub segments: Vec<SegmentInfo>,
    /// Held until the extents are committed: meanwhile the segments look dead, but are not.
    pub pin: SegmentPin,
}

/// Keeps segments from counting as dead; see [`crate::SegmentStore::is_pinned`].
#[derive(Debug, Default)]
pub struct SegmentPin {
    pub(crate) segments: Vec<Arc<Segment>>,
}

impl SegmentPin {
    pub(crate) fn add(&mut self, segment: &Arc<Segment>) {
        if !self.segments.iter().any(|held| Arc::ptr_eq(held, segment)) {
            segment.pin();
            self.segments.push(segment.clone());
        }
    }
}

impl Drop for SegmentPin {
    fn drop(&mut self) {
        for segment in &self.segments {
            segment.unpin();
        }
    }
}

/// Room in the pool, in bytes on disks (before protection).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSpace {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// The part of the free bytes that only garbage collection and rebuild may use.
    pub reserve_bytes: u64,
    pub disks: Vec<DiskSpaceStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpaceStatus {
    pub disk: DiskId,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub reserve_bytes: u64,
}

/// Room for file bytes under one code, without the reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsableSpace {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Room for garbage collection, in its open segments and new ones: includes a part of the reserve.
    pub rewrite_bytes: u64,
}

/// State of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskState {
    Healthy,
    /// It did not answer recently, and has not proven since that it does.
    Unresponsive,
    /// Its writes failed, and it has not proven since that they work.
    Failing,
    /// It works, and lacks some of the writes from the time when it did not.
    Returning,
    /// A member of the pool that was not found at the start.
    Missing,
    /// Too many errors: it gets no more writes.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStatus {
    pub id: DiskId,
    /// The disk's folder or name; empty if it is missing.
    pub label: String,
    pub state: DiskState,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// The part of these in spare files: used space for everything else.
    pub waiting_bytes: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub full_errors: u64,
    pub checksum_errors: u64,
}

/// Counters since the start, and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentStats {
    pub appends: u64,
    /// Bytes of records as stored.
    pub appended_bytes: u64,
    /// Bytes of parity and copies written beside them.
    pub parity_bytes: u64,
    /// Bytes of stripes that hold no record.
    pub padding_bytes: u64,
    pub append_retries: u64,
    pub segments_created: u64,
    pub segments_removed: u64,
    /// Reads that went to disks.
    pub disk_reads: u64,
    pub disk_read_bytes: u64,
    /// Records, or granules, that came with a read for several.
    pub merged_reads: u64,
    /// Reads that needed redundancy.
    pub degraded_reads: u64,
    pub checksum_errors: u64,
    /// Reads that failed for good.
    pub damaged_reads: u64,
    /// Reads that failed because too few disks answered; a retry may succeed.
    pub unreachable_reads: u64,
    /// Runs of bytes rewritten on a shard where they were wrong or unreadable.
    pub repairs: u64,
    pub repairs_failed: u64,
    /// Repairs not started because enough are in progress; the next read finds the corruption again.
    pub repairs_skipped: u64,
    /// Shards whose file was missing, rebuilt from the others.
    pub rebuilds: u64,
    pub rebuilds_failed: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub cache_bytes: u64,
    /// Reads that the second cache served completely, and reads that it did not.
    pub second_hits: u64,
    pub second_hit_bytes: u64,
    pub second_misses: u64,
    pub second_kept_bytes: u64,
    /// Wrong pieces of records from the second cache.
    pub second_wrong: u64,
    /// Segments that were copied to tiers.
    pub copied_out: u64,
    /// Reads that went to tiers.
    pub remote_reads: u64,
    pub remote_read_bytes: u64,
    pub open_segments: u64,
    /// Room for data in open segments; it counts as free.
    pub open_room_bytes: u64,
    pub append_bytes_in_flight: u64,
}

/// Results of [`crate::SegmentStore::sweep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Shards of unknown segments that were removed.
    pub shards_removed: u64,
    /// Shards that could not be removed, and disks that could not be listed; the next sweep tries again.
    pub errors: u64,
}
