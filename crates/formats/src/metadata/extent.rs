//! A stored extent: its key and its value, which make sense only together.
//!
//! Owns: what must hold between the two.
//! Must not know: how extents of a file are cut and replaced (`fs`), what a record's bytes are.

use cairn_base::Ino;

use super::keys::KeyKind;
use super::records::{ExtentPlace, ExtentRecord, RecordError};

/// Reads an extent: whose it is, where it ends in the file, and the rest.
///
/// `start..end` is not empty and lies within the record: `offset_in_record` and its length together are at
/// most the record's `file_len_bytes`, so that readers may compute with both as `u32`. Bytes that are in the extent are as many.
pub fn decode_extent(key: &[u8], value: &[u8]) -> Result<(Ino, u64, ExtentRecord), RecordError> {
    let KeyKind::Extent { ino, end_offset } = KeyKind::parse(key)? else {
        let (record, field) = ("extent", "key");
        return Err(RecordError::Malformed { record, field });
    };
    let extent = ExtentRecord::decode(value)?;
    let room_len_bytes = extent.place.room_len_bytes();
    let fits = |len_bytes: u64| match &extent.place {
        ExtentPlace::Record { .. } => len_bytes > 0 && len_bytes <= u64::from(room_len_bytes),
        ExtentPlace::Inline(_) => len_bytes == u64::from(room_len_bytes),
    };
    if !end_offset.checked_sub(extent.start).is_some_and(fits) {
        return Err(RecordError::ExtentImpossible {
            ino,
            start: extent.start,
            end: end_offset,
            room_len_bytes,
        });
    }
    Ok((ino, end_offset, extent))
}

#[cfg(test)]
mod tests {
    use cairn_base::SegmentId;

    use super::*;
    use crate::metadata::keys::Key;
    use crate::pointer::{Codec, Location, RecordPointer};

    /// A record of two bytes, seen from `offset_in_record` on.
    fn extent(start: u64, offset_in_record: u32) -> ExtentRecord {
        let record = RecordPointer {
            location: Location {
                segment: SegmentId(9),
                stripe_block: 1,
                unit_blocks: 2,
                offset_bytes: 3,
                len_bytes: 2,
            },
            codec: Codec::Raw,
            file_len_bytes: 2,
            checksums: vec![1],
            encryption: None,
        };
        ExtentRecord {
            start,
            place: ExtentPlace::Record {
                record,
                offset_in_record,
            },
        }
    }

    #[test]
    fn bytes_in_an_extent_are_as_many_as_it_has_of_the_file() {
        let last = u64::MAX;
        let cases = [
            ("all", 5, 8, true),
            ("at the very end of a file", last - 3, last, true),
            ("fewer of the file", 5, 7, false),
            ("more of the file", 5, 9, false),
            ("none of the file", 5, 5, false),
            ("backwards", 8, 5, false),
        ];
        for (name, start, end, is_good) in cases {
            let stored = ExtentRecord {
                start,
                place: ExtentPlace::Inline(vec![1, 2, 3].into()),
            };
            let key = Key::extent(Ino(3), end);
            let found = decode_extent(key.as_bytes(), &stored.encode());
            assert_eq!(found.is_ok(), is_good, "{name}");
        }
    }

    #[test]
    fn an_extent_lies_in_its_record_or_is_refused() {
        let last = u64::MAX;
        // Start, end, offset in a record of two bytes.
        let cases = [
            ("the whole record", 0, 2, 0, true),
            ("its first byte", 5, 6, 0, true),
            ("its last byte", 6, 7, 1, true),
            ("at the very end of a file", last - 2, last, 0, true),
            ("empty", 5, 5, 0, false),
            ("empty, behind the record", 5, 5, 2, false),
            ("backwards", 6, 5, 0, false),
            ("one byte too long", 0, 3, 0, false),
            ("the same with an offset", 5, 7, 1, false),
            ("behind the record", 5, 6, 2, false),
            ("longer than 32 bits", 0, (1 << 32) + 1, 0, false),
            ("as long as can be", 0, last, 0, false),
        ];
        for (name, start, end, offset_in_record, is_good) in cases {
            let key = Key::extent(Ino(3), end);
            let stored = extent(start, offset_in_record);
            let found = decode_extent(key.as_bytes(), &stored.encode());
            match is_good {
                true => assert_eq!(found.expect(name), (Ino(3), end, stored), "{name}"),
                false => {
                    let error = found.expect_err(name);
                    let impossible = matches!(error, RecordError::ExtentImpossible { .. });
                    let malformed = matches!(error, RecordError::Malformed { .. });
                    assert!(impossible || malformed, "{name}: {error}");
                }
            }
        }
        let other = Key::inode(Ino(3));
        let error = decode_extent(other.as_bytes(), &extent(0, 0).encode());
        let want = RecordError::Malformed {
            record: "extent",
            field: "key",
        };
        assert_eq!(error, Err(want));
    }
}
