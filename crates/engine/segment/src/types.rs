//! The words of the store: what goes in, what comes out, and how much room there is.
//!
//! Owns: plain values. Must not know: disks' files, how stripes are laid out.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::{DiskId, Media, SegmentId};
use cairn_erasure::Code;
use cairn_formats::metadata::RemoteSegment;
use cairn_formats::pointer::Location;

use crate::life::Segment;

/// Most streams of large files that have an open segment of their own, unless configured.
pub const STREAMS_MAX_DEFAULT: usize = 16;
/// Smallest shard made when disks are small or nearly full, unless configured.
pub const SHARD_LEN_BYTES_MIN: u64 = 4 << 20;

/// Numbers people tune.
#[derive(Clone, Debug)]
pub struct SegmentSettings {
    /// Size of one shard file; less on small or nearly full disks.
    pub shard_len_bytes: u64,
    /// What shards shrink to when disks are small or nearly full.
    pub shard_len_bytes_min: u64,
    /// Memory for records that were read or just written. While disks are away, decoded stripes take a quarter of it, 16 MiB at
    /// the least and 48 MiB at the most.
    pub cache_bytes: u64,
    /// Open segments per volume; above it the least recently used one is sealed.
    pub open_segments_max: usize,
    /// Streams per volume with an open segment of their own.
    pub streams_max: usize,
    /// Bytes of appends (data) that may be on their way to disks; above it appends wait.
    pub append_bytes_in_flight_max: u64,
    /// Longer than this no append waits for a disk that answers nothing, if it can do without. One that is busy
    /// is waited for longer.
    pub write_deadline: Duration,
    /// Share of each disk kept for garbage collection and rebuild (Rule 5), in permille.
    pub reserve_permille: u16,
    /// The reserve of a disk is at least this, but never more than a sixteenth of the disk.
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

/// What the metadata keeps about a segment, and what is needed to read it again after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    pub id: SegmentId,
    pub code: Code,
    /// The disk of each shard, by shard index; `code.total()` distinct ones, or none if it is in a tier.
    pub disks: Vec<DiskId>,
    /// What was set aside for data in each shard; after sealing, what it was cut to.
    pub shard_len_bytes: u64,
    /// Whether it takes no more appends, and what it takes on disks changes no more.
    pub sealed: bool,
    /// If it is in a tier. Then it has no disks.
    pub remote: Option<RemoteSegment>,
    /// The kind of disks that it is to be on, if that matters. It may be elsewhere while those have no room.
    pub media: Option<Media>,
    /// The protection that it asks for, if not that of its volume. `code` may be less while there are too few disks.
    pub protection: Option<Protection>,
}

pub use cairn_formats::settings::Protection;

/// What is asked of the place of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placing {
    pub code: Code,
    /// The kind of disks they are to be on, as long as these have room, and protection does not suffer.
    pub media: Option<Media>,
    /// What `code` comes from, if not from the volume's protection.
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

/// Which records lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Whatever comes.
    Mixed,
    /// One large file that is written in order: it gets an open segment of its own, so that it
    /// lies contiguously. The number is the caller's name for the file.
    File(u64),
    /// What garbage collection copies; it may use the reserve.
    Rewrite,
    /// What is to leave for a tier soon: it shares segments with nothing else, for these are old from their first day.
    Cold,
}

/// The result of an append: where each record is, in the order given.
#[derive(Debug)]
pub struct Appended {
    pub locations: Vec<Location>,
    /// The segments the records are in, new ones or not. Their entries must be in the metadata in the
    /// same transaction as the extents.
    pub segments: Vec<SegmentInfo>,
    /// Held until the extents are committed: meanwhile the segments look dead, and are not.
    pub pin: SegmentPin,
}

/// Keeps segments from being taken for dead; see [`crate::SegmentStore::is_pinned`].
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
    /// Part of the free bytes that only garbage collection and rebuild may use.
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

/// Room for file bytes under one code, the reserve taken off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsableSpace {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// What garbage collection may fill, in segments that it has open or makes: a part of the reserve, too.
    pub rewrite_bytes: u64,
}

/// How a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskState {
    Healthy,
    /// It has not answered for a moment, and has not proven since that it does again.
    Unresponsive,
    /// Changes of it failed, and it has not proven since that it takes them again.
    Failing,
    /// It works, and lacks some of what was written while it did not.
    Returning,
    /// Part of the pool, and not there at the start.
    Missing,
    /// Too many errors: no longer written to.
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
    /// Of these, in files that wait for new shards: used space for everybody else.
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
    /// Records, or granules of them, that came with a read for several.
    pub merged_reads: u64,
    /// Reads that needed redundancy.
    pub degraded_reads: u64,
    pub checksum_errors: u64,
    /// Reads that failed for good.
    pub damaged_reads: u64,
    /// Reads that failed because too few disks answered; later ones may be better.
    pub unreachable_reads: u64,
    /// Runs of bytes written anew onto a shard that had them wrong or unreadable.
    pub repairs: u64,
    pub repairs_failed: u64,
    /// Repairs not started because enough are under way; the next read finds the damage again.
    pub repairs_skipped: u64,
    /// Shards whose file was gone, made anew from the others.
    pub rebuilds: u64,
    pub rebuilds_failed: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub cache_bytes: u64,
    /// Reads that the second cache had all of, and those that it had not.
    pub second_hits: u64,
    pub second_hit_bytes: u64,
    pub second_misses: u64,
    pub second_kept_bytes: u64,
    /// Pieces of records that it gave wrong.
    pub second_wrong: u64,
    /// Segments that were copied to tiers.
    pub copied_out: u64,
    /// Reads that went to tiers.
    pub remote_reads: u64,
    pub remote_read_bytes: u64,
    pub open_segments: u64,
    /// Room for data in them; it counts as free.
    pub open_room_bytes: u64,
    pub append_bytes_in_flight: u64,
}

/// What [`crate::SegmentStore::sweep`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Shards of segments nobody knows, removed.
    pub shards_removed: u64,
    /// Shards that could not be removed or disks that could not be listed; the next sweep tries again.
    pub errors: u64,
}
