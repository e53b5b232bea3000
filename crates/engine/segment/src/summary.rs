//! The summary of a segment: the owner of each of its records.
//!
//! Owns: the contents of a summary, its room, writing it when a segment is sealed, reading it back. Must not know: its
//! bytes (`cairn_formats::summary`), what an object is, which records are still in use.
//!
//! Emptying a segment requires the references to its records. An index from records back to their owners would cost
//! every write. A search through everything that might refer to them grows with the volume. A summary costs some 20
//! bytes for each record and one small stripe when the segment is sealed. It names the owner of a record at the time of
//! its write: the reader checks each entry against the present metadata.
//!
//! It is the last stripe of the segment, so that it has the protection of the data, and is scrubbed, moved and rebuilt
//! with it. The footers hold its place and its checksums. Layout: `docs/reference/formats/segment.md`.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{SegmentId, VolumeId};
use cairn_formats::pointer::{BLOCK_BYTES, RecordPointer};
use cairn_formats::summary::{
    ENTRY_LEN_BYTES, RECORD_ENTRIES_MAX, SummaryEntry, decode_entries, decode_summary_place,
    encode_entries, encode_summary_place,
};

use crate::append::{build_stripes, locate, shard_writes};
use crate::error::{ErrorKind, Result};
use crate::layout::RecordShape;
use crate::life::{OpenSegment, Segment};
use crate::record::{Compression, EncodedRecord, encode_record};
use crate::store::SegmentStore;

/// Limit of the blocks of each data shard that the summary of this many records takes.
pub(crate) fn summary_blocks(data_shards: u8, entries: usize) -> u32 {
    let whole = entries / RECORD_ENTRIES_MAX;
    let rest_bytes = entries % RECORD_ENTRIES_MAX * ENTRY_LEN_BYTES;
    let block_bytes = BLOCK_BYTES as usize;
    let of_whole = (RECORD_ENTRIES_MAX * ENTRY_LEN_BYTES).div_ceil(block_bytes);
    let blocks = whole * of_whole + rest_bytes.div_ceil(block_bytes);
    blocks.div_ceil(usize::from(data_shards)) as u32
}

/// Bytes of a shard for the summary beside its data, for records of usual size. Without them the last of the large
/// records that a segment was sized for would find no room.
pub(crate) fn summary_slack_bytes(shard_len_bytes: u64) -> u64 {
    let usual_record_bytes = 64 << 10;
    let summary_bytes = shard_len_bytes.div_ceil(usual_record_bytes) * ENTRY_LEN_BYTES as u64;
    summary_bytes.next_multiple_of(u64::from(BLOCK_BYTES))
}

/// The records that hold a summary. Sorted, so that a reader finds neighbours in an object together.
fn encode_records(mut entries: Vec<SummaryEntry>) -> Vec<EncodedRecord> {
    entries.sort_unstable();
    if planted::is(Bug::SummaryEntryLost) {
        entries.pop();
    }
    let records = entries.chunks(RECORD_ENTRIES_MAX);
    let records = records.map(|entries| {
        let bytes = encode_entries(entries);
        encode_record(vec![bytes.into()], Compression::Lz4)
    });
    records.collect()
}

impl SegmentStore {
    /// Writes the summary of a segment that is being sealed behind its data, durably. Returns its place for the
    /// footers: empty if it has none. The caller holds the gate exclusively.
    pub(crate) async fn write_summary(
        self: &Arc<Self>,
        segment: &Segment,
        open: &mut OpenSegment,
    ) -> Vec<u8> {
        let Some(entries) = open.take_summary() else {
            return Vec::new();
        };
        let records = encode_records(entries);
        let shapes: Vec<RecordShape> = records.iter().map(RecordShape::from).collect();
        // There is room: each reservation of stripes left it.
        let Some(stripes) = open.reserve_summary(segment.code, &shapes) else {
            tracing::error!(volume = %segment.volume, segment = %segment.id, records = records.len(), "a segment has no room for its summary");
            return Vec::new();
        };
        let locations = locate(segment, &stripes, &shapes);
        let (buffers, written) = build_stripes(segment.code, &stripes, &records);
        open.stripes.extend(written);
        let mut writes = shard_writes(&stripes, buffers).into_iter();
        // Like all other data, it is durable before any footer vouches for it.
        self.on_good_shards(segment, open, |index, disk| {
            let writes = writes.next().unwrap_or_default();
            disk.append(segment.epoch, segment.shard_name(index as u8), writes)
        })
        .await;
        let pointers = records.iter().zip(locations);
        let pointers: Vec<RecordPointer> = pointers
            .map(|(record, location)| record.pointer(location))
            .collect();
        encode_summary_place(&pointers)
    }

    /// The owner of each record of a sealed segment, sorted. `None` without a summary: a crash came before the footers,
    /// the summary is corrupt or was left unfinished by a fenced owner, or some record has no owner.
    ///
    /// Fails with `Gone` if the segment is removed.
    pub async fn summary(
        self: &Arc<Self>,
        volume: VolumeId,
        segment: SegmentId,
    ) -> Result<Option<Vec<SummaryEntry>>> {
        let found = self.volume(volume)?.segment(segment)?;
        if found.is_open() {
            return Ok(None);
        }
        let place = match &found.remote {
            Some(remote) => match self.remote_summary_place(&found, remote).await {
                Ok(place) => place,
                // A lost or corrupt object must not block other segments.
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    tracing::warn!(%volume, %segment, %error, "the summary of a segment cannot be read");
                    None
                }
                Err(error) => return Err(error),
            },
            None => self.summary_place(&found).await,
        };
        let Some(place) = place else {
            return Ok(None);
        };
        let mut entries = Vec::new();
        for pointer in place {
            let read = self.read_summary_record(volume, &pointer).await;
            let decoded = match read {
                Ok(bytes) => decode_entries(&bytes, &mut entries),
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    tracing::warn!(%volume, %segment, %error, "the summary of a segment cannot be read");
                    None
                }
                Err(error) => return Err(error),
            };
            if decoded.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(entries))
    }

    async fn read_summary_record(
        self: &Arc<Self>,
        volume: VolumeId,
        pointer: &RecordPointer,
    ) -> Result<Bytes> {
        let parts = self.read_summary(volume, pointer).await?;
        // It will not be read again soon.
        self.cache_forget(volume, pointer);
        Ok(parts.concat().into())
    }

    /// Place of the summary, from the first readable footer; unresponsive disks are asked last.
    async fn summary_place(&self, segment: &Segment) -> Option<Vec<RecordPointer>> {
        let is_silent = |index: &u8| {
            let disk = segment.disk_of(*index).and_then(|disk| self.disk(disk));
            disk.is_none_or(|disk| disk.is_silent())
        };
        let (silent, mut indexes): (Vec<u8>, Vec<u8>) =
            (0..segment.code.total()).partition(is_silent);
        indexes.extend(silent);
        for index in indexes {
            if let Ok(Some(source)) = self.rebuild_source(segment, index).await
                && let Some(footer) = source.footer()
            {
                return decode_summary_place(segment.id, &footer.summary);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use cairn_erasure::Code;
    use cairn_formats::summary::{RecordOwner, SUMMARY_ENTRIES_MAX};
    use proptest::prelude::*;

    use super::*;
    use crate::layout::plan_stripe;

    fn entry(object: u64, offset: u64, len_bytes: u32) -> SummaryEntry {
        SummaryEntry {
            owner: RecordOwner { object, offset },
            len_bytes,
        }
    }

    fn decoded(records: &[EncodedRecord]) -> Vec<SummaryEntry> {
        let mut entries = Vec::new();
        for record in records {
            let stored = record.parts().concat();
            let bytes =
                crate::decode_record(record.codec(), &stored, record.file_len_bytes()).unwrap();
            decode_entries(&bytes, &mut entries).unwrap();
        }
        entries
    }

    #[test]
    fn the_fullest_summary_fits_where_room_was_left_for_it() {
        for data_shards in 1..=16 {
            for count in [0, 1, 204, 205, RECORD_ENTRIES_MAX, SUMMARY_ENTRIES_MAX] {
                let shapes: Vec<RecordShape> = (0..count)
                    .step_by(RECORD_ENTRIES_MAX)
                    .map(|first| RecordShape {
                        len_bytes: ((count - first).min(RECORD_ENTRIES_MAX) * ENTRY_LEN_BYTES)
                            as u32,
                        block_aligned: true,
                        has_owner: false,
                    })
                    .collect();
                let mut room = summary_blocks(data_shards, count);
                let mut rest = &shapes[..];
                while !rest.is_empty() {
                    let plan = plan_stripe(data_shards, room, rest);
                    let plan = plan.unwrap_or_else(|| panic!("{count} in {data_shards}"));
                    room -= u32::from(plan.unit_blocks);
                    rest = &rest[plan.offsets.len()..];
                }
                assert_eq!(room, 0, "{count} entries in {data_shards} shards");
            }
        }
    }

    proptest! {
        #[test]
        fn entries_come_back_sorted(mut entries in prop::collection::vec((any::<u64>(), any::<u64>(), 1u32..=1 << 20), 0..500)) {
            let given = entries.iter().map(|(object, offset, len)| entry(*object, *offset, *len)).collect();
            let records = encode_records(given);
            entries.sort_unstable();
            let want: Vec<SummaryEntry> = entries.iter().map(|(object, offset, len)| entry(*object, *offset, *len)).collect();
            prop_assert_eq!(decoded(&records), want);
            let code = Code::new(3, 1).expect("code");
            let stored: u32 = records.iter().map(EncodedRecord::stored_len_bytes).sum();
            prop_assert!(stored <= summary_blocks(code.data(), entries.len()) * BLOCK_BYTES * 3);
        }
    }
}
