//! Record pointers, the stored bytes that they name, and the summaries of segments.
//!
//! The input is read as a pointer with stored bytes after it; as a codec, a length and stored
//! bytes; as file bytes to make a record of; and as entries of a summary, or as what footers say of one.

use bytes::Bytes;
use cairn_base::{SegmentId, crc32c};
use cairn_formats::summary::{
    SUMMARY_RECORDS_MAX, decode_entries, decode_summary_place, encode_entries, encode_summary_place,
};
use cairn_segment::{
    CHECKSUM_GRANULE_BYTES, Codec, Compression, Location, RECORD_LEN_BYTES_MAX, RecordPointer,
    decode_pointer, decode_record, encode_pointer, encode_record,
};

/// The largest unit of a stripe, in blocks: room for any record.
const UNIT_BLOCKS_MAX: u16 = 256;

/// Tries one input.
pub fn run(input: &[u8]) {
    if let Ok((pointer, stored)) = decode_pointer(input) {
        let read = &input[..input.len() - stored.len()];
        assert_eq!(bytes_of(&pointer), read);
        pointer.check().expect("what is decoded is checked");
        assert!(pointer.file_len_bytes <= RECORD_LEN_BYTES_MAX);
        record(pointer.codec, stored, pointer.file_len_bytes);
    }
    summary(input);
    let Some((codec, rest)) = input.split_first() else {
        return;
    };
    if let Some((len, stored)) = rest.split_first_chunk::<4>() {
        let codec = match codec % 4 {
            0 => Codec::Raw,
            1 => Codec::Lz4,
            _ => Codec::Zstd,
        };
        record(codec, stored, u32::from_le_bytes(*len));
    }
    there_and_back(*codec, rest);
}

fn summary(input: &[u8]) {
    let mut entries = Vec::new();
    if decode_entries(input, &mut entries).is_some() {
        assert!(entries.len() * 20 == input.len());
        let again: Vec<u8> = entries.chunks(1024).flat_map(encode_entries).collect();
        assert_eq!(again, input);
    }
    // The segment is in the pointers; the footer of which segment it is comes from elsewhere.
    let segments = [SegmentId(0), SegmentId(300)];
    for segment in segments {
        if let Some(place) = decode_summary_place(segment, input) {
            assert!(place.len() <= SUMMARY_RECORDS_MAX);
            assert!(
                place
                    .iter()
                    .all(|pointer| pointer.location.segment == segment)
            );
            assert_eq!(encode_summary_place(&place), input);
        }
    }
}

/// Whatever the stored bytes say, the record has the length that its pointer says, or is refused.
fn record(codec: Codec, stored: &[u8], file_len_bytes: u32) {
    let Ok(data) = decode_record(codec, stored, file_len_bytes) else {
        return;
    };
    match codec {
        Codec::Raw => assert_eq!(data, stored),
        Codec::Lz4 | Codec::Zstd => {
            assert_eq!(data.len(), file_len_bytes as usize);
            assert!(file_len_bytes <= RECORD_LEN_BYTES_MAX);
            // Whoever asks for more than there is gets an error, never zeros for the rest.
            assert!(decode_record(codec, stored, file_len_bytes + 1).is_err());
        }
    }
}

/// What is made of file bytes names them, and gives them back.
fn there_and_back(choice: u8, data: &[u8]) {
    let compression = match choice % 3 {
        0 => Compression::None,
        1 => Compression::Lz4,
        _ => Compression::Zstd(1),
    };
    // Repeated, because records of a few bytes never are compressed.
    let data = data.repeat(usize::from(choice / 3 % 16) + 1);
    let part_len = usize::from(choice) * 16 + 1;
    let parts = data.chunks(part_len).map(Bytes::copy_from_slice).collect();
    let record = encode_record(parts, compression);
    let stored = record.parts().concat();
    assert_eq!(stored.len(), record.stored_len_bytes() as usize);
    let pointer = record.pointer(Location {
        segment: SegmentId(u64::from(choice)),
        stripe_block: u32::MAX,
        unit_blocks: UNIT_BLOCKS_MAX,
        offset_bytes: 0,
        len_bytes: record.stored_len_bytes(),
    });
    assert_eq!(pointer.check(), Ok(()));
    let bytes = bytes_of(&pointer);
    assert_eq!(decode_pointer(&bytes), Ok((pointer.clone(), &[][..])));
    let want: Vec<u32> = match pointer.codec {
        Codec::Raw => stored
            .chunks(CHECKSUM_GRANULE_BYTES as usize)
            .map(crc32c)
            .collect(),
        Codec::Lz4 | Codec::Zstd => vec![crc32c(&stored)],
    };
    assert_eq!(pointer.checksums, want);
    let back = decode_record(pointer.codec, &stored, pointer.file_len_bytes);
    assert!(back.is_ok_and(|back| back == data));
}

fn bytes_of(pointer: &RecordPointer) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_pointer(pointer, &mut bytes);
    bytes
}
