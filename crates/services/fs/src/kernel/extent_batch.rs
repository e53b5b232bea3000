//! The entries that a change of a file's extents adds to a batch: the extents, and the changes of counters.
//!
//! Owns: live bytes and records of segments, and the space of the volume, follow each change of extents. Must not
//! know: why extents change.

use cairn_base::planted::{self, Bug};
use cairn_base::{Generation, Ino, SegmentId};
use cairn_meta::{Batch, InodeRecord, Key, SegmentRecord, SpaceDelta, UsageDelta};
use cairn_segment::SegmentInfo;
use rustc_hash::FxHashMap;

use super::Kernel;
use super::extents::{Extent, ExtentChange};
use super::usage::{of_volume, owner_of};

/// The reason of a change of extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The file has new bytes.
    Changed,
    /// The bytes moved to another place.
    Moved,
}

impl Kernel {
    /// Adds segments that the metadata does not know to the batch that first refers to them.
    pub(crate) fn put_segments(&self, segments: &[SegmentInfo], batch: &mut Batch) {
        for info in segments {
            if self.meta.segment(info.id).is_none() {
                batch.put_segment(
                    info.id,
                    SegmentRecord {
                        data: info.code.data(),
                        parity: info.code.parity(),
                        disks: info.disks.clone(),
                        shard_len_bytes: info.shard_len_bytes,
                        sealed: info.sealed,
                        epoch: self.meta.epoch(),
                        media: info.media,
                        protection: info.protection,
                        ..SegmentRecord::default()
                    },
                );
            }
        }
    }
}

/// Puts a change of a file's extents into `batch`, with the changes of space, charges and segment counters, and counts
/// it in the file's record.
pub(super) fn put_extents(
    why: Why,
    ino: Ino,
    record: &mut InodeRecord,
    change: &ExtentChange,
    batch: &mut Batch,
) {
    let mut released: FxHashMap<(Option<SegmentId>, Generation), (u64, u64)> = FxHashMap::default();
    let mut live: FxHashMap<SegmentId, (i64, i64)> = FxHashMap::default();
    let mut space = SpaceDelta::default();
    let mut count = |extent: &Extent, sign: i64| {
        if let Some(segment) = extent.segment() {
            let entry = live.entry(segment).or_default();
            entry.0 += sign * extent.live_bytes();
            entry.1 += sign;
        }
        space.stored_bytes += sign * extent.live_bytes();
    };
    let (mut file_bytes, mut stored_bytes) = (0, 0);
    for (end, replaced) in change.keys() {
        if let Some(before) = &replaced.before {
            file_bytes -= before.len_bytes() as i64;
            stored_bytes -= before.live_bytes();
            match why {
                // Snapshots see the present extent of it.
                Why::Moved => count(before, -1),
                Why::Changed => {
                    let place = (before.segment(), before.birth);
                    let entry = released.entry(place).or_default();
                    entry.0 += before.live_bytes() as u64;
                    entry.1 += 1;
                }
            }
        }
        match &replaced.after {
            Some(after) => {
                assert!(after.start < after.end && after.end == end);
                file_bytes += after.len_bytes() as i64;
                stored_bytes += after.live_bytes();
                count(after, 1);
                let record = after.to_stored();
                let key = Key::extent(ino, end);
                // A part that is cut from an extent keeps the birth of that extent.
                let is_new = replaced.before.is_none() && planted::is(Bug::CutApartBornNow);
                match why {
                    Why::Moved if !is_new && !planted::is(Bug::MoveMakesHistory) => {
                        batch.put_moved(key, after.birth, record.encode())
                    }
                    Why::Moved | Why::Changed => batch.put(key, record.encode()),
                };
            }
            None if replaced.before.is_some() => {
                batch.delete(Key::extent(ino, end));
            }
            None => {}
        }
    }
    for (segment, (bytes, records)) in live {
        if (bytes, records) != (0, 0) {
            batch.segment_delta(segment, bytes, records);
        }
    }
    for ((segment, birth), (bytes, records)) in released {
        batch.release(ino.branch(), segment, birth, bytes, records);
    }
    // What moves stays as long as it is.
    assert!(why == Why::Changed || file_bytes == 0);
    space.file_bytes = file_bytes;
    batch.space(of_volume(ino, space));
    // Bytes that only a snapshot holds are charged to nobody: the user that removes a file has its space again.
    let charge = UsageDelta {
        inodes: 0,
        file_bytes,
        stored_bytes,
    };
    if file_bytes >= 0 || !planted::is(Bug::CutNotGivenBack) {
        batch.charge(owner_of(record), charge);
    }
    record.used_bytes = record.used_bytes.saturating_add_signed(file_bytes);
    record.stored_bytes = record.stored_bytes.saturating_add_signed(stored_bytes);
}
