//! The summary of a segment: which part of which object each of its records was, and where the footers say it is.
//! Layout: docs/reference/formats/segment.md.
//!
//! Owns: the entries as one record of a summary holds them, and the pointers to these records.
//! Must not know: who writes a summary, compression, what an object is.

use cairn_base::SegmentId;

use crate::pointer::{
    CHECKSUM_GRANULE_BYTES, RECORD_LEN_BYTES_MAX, RecordPointer, decode_pointer, encode_pointer,
};
use crate::shard::footer::SUMMARY_LEN_BYTES_MAX;

/// Most records in one segment: it is full when it has so many. Bounds the memory for its summary, too.
pub const SUMMARY_ENTRIES_MAX: usize = 1 << 16;
/// Bytes of an entry before compression.
pub const ENTRY_LEN_BYTES: usize = 20;
/// Entries in one record of a summary.
pub const RECORD_ENTRIES_MAX: usize = RECORD_LEN_BYTES_MAX as usize / ENTRY_LEN_BYTES;
/// Records of one summary.
pub const SUMMARY_RECORDS_MAX: usize = SUMMARY_ENTRIES_MAX.div_ceil(RECORD_ENTRIES_MAX);
/// First byte of what footers say of a summary.
const SUMMARY_VERSION: u8 = 1;
/// Most bytes of a pointer: head, five varints of which the segment's is the longest, checksums.
const POINTER_LEN_BYTES_MAX: usize =
    1 + 10 + 5 * 5 + 4 * (RECORD_LEN_BYTES_MAX / CHECKSUM_GRANULE_BYTES) as usize;

const _: () = assert!(2 + SUMMARY_RECORDS_MAX * POINTER_LEN_BYTES_MAX <= SUMMARY_LEN_BYTES_MAX);

/// What a record is a part of, in the words of who appends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordOwner {
    pub object: u64,
    /// Where in the object the record's bytes begin.
    pub offset: u64,
}

/// One record of a segment: these bytes of this object were in it when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SummaryEntry {
    pub owner: RecordOwner,
    /// Bytes of the object, before compression.
    pub len_bytes: u32,
}

/// The bytes of one record of a summary, before compression. Panics if there are too many for one.
pub fn encode_entries(entries: &[SummaryEntry]) -> Vec<u8> {
    assert!(entries.len() <= RECORD_ENTRIES_MAX);
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_LEN_BYTES);
    for entry in entries {
        bytes.extend_from_slice(&entry.owner.object.to_le_bytes());
        bytes.extend_from_slice(&entry.owner.offset.to_le_bytes());
        bytes.extend_from_slice(&entry.len_bytes.to_le_bytes());
    }
    bytes
}

/// Takes the entries of one record, in addition to those of others. `None`: these are not entries.
pub fn decode_entries(bytes: &[u8], entries: &mut Vec<SummaryEntry>) -> Option<()> {
    let (all, rest) = bytes.as_chunks::<ENTRY_LEN_BYTES>();
    if !rest.is_empty() || entries.len() + all.len() > SUMMARY_ENTRIES_MAX {
        return None;
    }
    for bytes in all {
        let (object, rest) = bytes.split_first_chunk::<8>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let (len_bytes, _) = rest.split_first_chunk::<4>()?;
        entries.push(SummaryEntry {
            owner: RecordOwner {
                object: u64::from_le_bytes(*object),
                offset: u64::from_le_bytes(*offset),
            },
            len_bytes: u32::from_le_bytes(*len_bytes),
        });
    }
    Some(())
}

/// What footers say of a summary: a version, how many records it has, and their pointers.
pub fn encode_summary_place(pointers: &[RecordPointer]) -> Vec<u8> {
    assert!(pointers.len() <= SUMMARY_RECORDS_MAX);
    let mut bytes = vec![SUMMARY_VERSION, pointers.len() as u8];
    for pointer in pointers {
        encode_pointer(pointer, &mut bytes);
    }
    bytes
}

/// The pointers to the records of the summary of `segment`. `None`: the bytes do not say that.
pub fn decode_summary_place(segment: SegmentId, bytes: &[u8]) -> Option<Vec<RecordPointer>> {
    let (head, mut rest) = bytes.split_first_chunk::<2>()?;
    let [version, count] = *head;
    if version != SUMMARY_VERSION || usize::from(count) > SUMMARY_RECORDS_MAX {
        return None;
    }
    let mut pointers = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (pointer, after) = decode_pointer(rest).ok()?;
        if pointer.location.segment != segment {
            return None;
        }
        pointers.push(pointer);
        rest = after;
    }
    rest.is_empty().then_some(pointers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pointer::{Codec, Location};

    #[test]
    fn places_that_no_seal_wrote_are_refused() {
        let pointer = RecordPointer {
            location: Location {
                segment: SegmentId(5),
                stripe_block: 3,
                unit_blocks: 1,
                offset_bytes: 0,
                len_bytes: 100,
            },
            codec: Codec::Raw,
            file_len_bytes: 100,
            checksums: vec![7],
            encryption: None,
        };
        let good = encode_summary_place(std::slice::from_ref(&pointer));
        assert_eq!(
            decode_summary_place(SegmentId(5), &good),
            Some(vec![pointer])
        );
        let change = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        let longer = [&good[..], &[0]].concat();
        let cases = [
            ("of another segment", 6, good.clone()),
            ("nothing", 5, Vec::new()),
            ("another version", 5, change(0, 2)),
            ("too many records", 5, change(1, 200)),
            ("a record missing", 5, change(1, 2)),
            ("something behind", 5, longer),
            ("cut short", 5, good[..good.len() - 1].to_vec()),
        ];
        for (name, segment, bytes) in cases {
            let got = decode_summary_place(SegmentId(segment), &bytes);
            assert_eq!(got, None, "{name}");
        }
    }

    #[test]
    fn a_summary_of_more_than_a_segment_holds_is_refused() {
        let entry = SummaryEntry {
            owner: RecordOwner {
                object: 1,
                offset: 2,
            },
            len_bytes: 3,
        };
        let bytes = encode_entries(&[entry]);
        let mut entries = vec![entry; SUMMARY_ENTRIES_MAX - 1];
        assert_eq!(decode_entries(&bytes, &mut entries), Some(()));
        assert_eq!(decode_entries(&bytes, &mut entries), None);
        assert_eq!(entries.len(), SUMMARY_ENTRIES_MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), version: bool) {
            let mut bytes = bytes;
            if version && let Some(first) = bytes.first_mut() {
                *first = SUMMARY_VERSION;
            }
            let _ = decode_summary_place(SegmentId(0), &bytes);
            let mut entries = Vec::new();
            let taken = decode_entries(&bytes, &mut entries).is_some();
            prop_assert_eq!(taken, bytes.len().is_multiple_of(ENTRY_LEN_BYTES));
            if taken {
                prop_assert_eq!(encode_entries(&entries), bytes);
            }
        }
    }
}
