//! What a change of a file's extents adds to a batch: the extents, and what they do to counters.
//!
//! Owns: that live bytes and records of segments, and the space of the volume, follow each change of extents.
//! Must not know: why extents change.

use cairn_base::{Ino, SegmentId};
use cairn_meta::{Batch, ExtentRecord, Key, SegmentRecord, SpaceDelta};
use cairn_segment::SegmentInfo;
use rustc_hash::FxHashMap;

use crate::extents::{Change, Extent};
use crate::inode::State;
use crate::volume::Shared;

impl Shared {
    /// Records segments that the metadata does not know, in the batch that first refers to them.
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
                        live_bytes: 0,
                        live_records: 0,
                    },
                );
            }
        }
    }

    /// Puts a change of extents into `batch`, with what it does to space and segment counters.
    pub(crate) fn change_extents(
        &self,
        ino: Ino,
        state: &mut State,
        change: &Change,
        batch: &mut Batch,
    ) {
        let mut live: FxHashMap<SegmentId, (i64, i64)> = FxHashMap::default();
        let mut space = SpaceDelta::default();
        let mut count = |extent: &Extent, sign: i64| {
            let entry = live.entry(extent.record.location.segment).or_default();
            entry.0 += sign * extent.live_bytes();
            entry.1 += sign;
            space.file_bytes += sign * extent.len_bytes() as i64;
            space.stored_bytes += sign * extent.live_bytes();
        };
        for (end, replaced) in change.keys() {
            if let Some(before) = &replaced.before {
                count(before, -1);
            }
            match &replaced.after {
                Some(after) => {
                    count(after, 1);
                    let record = ExtentRecord {
                        start: after.start,
                        record: (*after.record).clone(),
                        offset_in_record: after.offset_in_record,
                    };
                    batch.put(Key::extent(ino, end), record.encode());
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
        batch.space(space);
        state.record.used_bytes = state
            .record
            .used_bytes
            .saturating_add_signed(space.file_bytes);
    }
}
