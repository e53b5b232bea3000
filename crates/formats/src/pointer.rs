//! Where a record is, and how to know that it is the right one.

use cairn_base::SegmentId;

use crate::encryption::{Encryption, Salt, Tag};

/// Most bytes of a file in one record, before compression.
pub const RECORD_LEN_BYTES_MAX: u32 = 1 << 20;
/// A raw record has one CRC32C per so many bytes, so that a small read fetches and checks little.
pub const CHECKSUM_GRANULE_BYTES: u32 = 32 << 10;
/// Stripes begin, and units are sized, in multiples of this many bytes.
pub const BLOCK_BYTES: u32 = 4096;
/// Largest unit of a stripe, in bytes; a stripe of N+M shards holds N units of data.
pub const UNIT_LEN_BYTES_MAX: u32 = 1 << 20;

const _: () = assert!(RECORD_LEN_BYTES_MAX.is_multiple_of(CHECKSUM_GRANULE_BYTES));

/// How the bytes of a record are stored. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    Raw = 0,
    Lz4 = 1,
    Zstd = 2,
}

/// Where a record's stored bytes are. A stripe is one stripe: it begins at the same offset in each of
/// the segment's shards, takes `unit_blocks` blocks of each, and its N data units, one after the
/// other, are its address space; `offset_bytes` counts in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    pub segment: SegmentId,
    /// Start of the stripe in each shard, in blocks of [`BLOCK_BYTES`].
    pub stripe_block: u32,
    /// Size of one unit of the stripe, in blocks; at least 1.
    pub unit_blocks: u16,
    /// Where the record starts in the stripe's data.
    pub offset_bytes: u32,
    /// Bytes stored.
    pub len_bytes: u32,
}

/// Names a record: its place, its form, its checksums and, if it is encrypted, its tags, which are kept here, apart from it
/// (Rule 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPointer {
    pub location: Location,
    pub codec: Codec,
    /// Bytes of the file in the record (as stored if `Raw`).
    pub file_len_bytes: u32,
    /// CRC32C of the stored bytes: one per [`CHECKSUM_GRANULE_BYTES`] if `Raw`, else one of them all.
    pub checksums: Vec<u32>,
    /// Of an encrypted record: a tag of what each checksum is of.
    pub encryption: Option<Box<Encryption>>,
}

/// Version of the byte encoding of a pointer, in its first byte's high half.
const POINTER_VERSION: u8 = 1;
/// In the first byte's low half, beside the codec: the record is encrypted.
const ENCRYPTED: u8 = 0x08;
/// Most units of data in a row; bounds the offsets that a pointer can hold.
const DATA_UNITS_MAX: u64 = 16;
/// Longest LEB128 encoding of a u64.
const VARINT_LEN_BYTES_MAX: usize = 10;

impl Location {
    /// Size of one unit of the stripe, in bytes.
    pub fn unit_len_bytes(&self) -> u32 {
        u32::from(self.unit_blocks) * BLOCK_BYTES
    }

    /// Start of the stripe in each shard, in bytes.
    pub fn stripe_offset_bytes(&self) -> u64 {
        u64::from(self.stripe_block) * u64::from(BLOCK_BYTES)
    }
}

impl RecordPointer {
    /// Checks what every pointer made by an append fulfils, so that readers need not.
    pub fn check(&self) -> Result<(), PointerError> {
        let Location {
            unit_blocks,
            offset_bytes,
            len_bytes,
            ..
        } = self.location;
        let unit_len_bytes = u64::from(unit_blocks) * u64::from(BLOCK_BYTES);
        let end_bytes = u64::from(offset_bytes) + u64::from(len_bytes);
        let form_fits = match self.codec {
            Codec::Raw => self.file_len_bytes == len_bytes,
            Codec::Lz4 | Codec::Zstd => len_bytes > 0 && self.file_len_bytes > len_bytes,
        };
        let fits = unit_len_bytes > 0
            && unit_len_bytes <= u64::from(UNIT_LEN_BYTES_MAX)
            && end_bytes <= unit_len_bytes * DATA_UNITS_MAX
            && self.file_len_bytes <= RECORD_LEN_BYTES_MAX
            && form_fits
            && self.checksums.len() == checksum_count(self.codec, len_bytes)
            && self
                .encryption
                .as_ref()
                .is_none_or(|encryption| encryption.tags.len() == self.checksums.len());
        if fits {
            Ok(())
        } else {
            Err(PointerError::Impossible)
        }
    }
}

/// How many checksums a record has.
pub fn checksum_count(codec: Codec, len_bytes: u32) -> usize {
    match codec {
        Codec::Raw => len_bytes.div_ceil(CHECKSUM_GRANULE_BYTES) as usize,
        Codec::Lz4 | Codec::Zstd => 1,
    }
}

/// Why bytes are not a record pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    #[error("a record pointer ends early")]
    Truncated,
    #[error(
        "record pointer version {version} is not known; this program knows up to {POINTER_VERSION}"
    )]
    Version { version: u8 },
    #[error("codec {codec} is not known")]
    Codec { codec: u8 },
    #[error("a number in a record pointer is out of range")]
    Number,
    #[error("a record pointer names a place that cannot be")]
    Impossible,
}

/// Appends the bytes of `pointer` to `out`. Layout: `docs/reference/formats/segment.md`, "Record pointer".
pub fn encode_pointer(pointer: &RecordPointer, out: &mut Vec<u8>) {
    let location = &pointer.location;
    let encrypted = pointer.encryption.as_ref().map_or(0, |_| ENCRYPTED);
    out.push(POINTER_VERSION << 4 | encrypted | pointer.codec as u8);
    put_varint(location.segment.0, out);
    put_varint(u64::from(location.stripe_block), out);
    put_varint(u64::from(location.unit_blocks), out);
    put_varint(u64::from(location.offset_bytes), out);
    put_varint(u64::from(location.len_bytes), out);
    if pointer.codec != Codec::Raw {
        put_varint(u64::from(pointer.file_len_bytes), out);
    }
    for checksum in &pointer.checksums {
        out.extend_from_slice(&checksum.to_le_bytes());
    }
    if let Some(encryption) = &pointer.encryption {
        out.extend_from_slice(&encryption.salt);
        out.extend_from_slice(encryption.tags.as_flattened());
    }
}

/// Takes one record pointer; returns it and the rest of `input`. Never allocates more than a record
/// of [`RECORD_LEN_BYTES_MAX`] has checksums.
pub fn decode_pointer(input: &[u8]) -> Result<(RecordPointer, &[u8]), PointerError> {
    let (&head, rest) = input.split_first().ok_or(PointerError::Truncated)?;
    let version = head >> 4;
    if version != POINTER_VERSION {
        return Err(PointerError::Version { version });
    }
    let codec = match head & 0x0f & !ENCRYPTED {
        0 => Codec::Raw,
        1 => Codec::Lz4,
        2 => Codec::Zstd,
        codec => return Err(PointerError::Codec { codec }),
    };
    let (segment, rest) = take_varint(rest)?;
    let (stripe_block, rest) = take_u32(rest)?;
    let (unit_blocks, rest) = take_u32(rest)?;
    let (offset_bytes, rest) = take_u32(rest)?;
    let (len_bytes, rest) = take_u32(rest)?;
    let (file_len_bytes, rest) = match codec {
        Codec::Raw => (len_bytes, rest),
        Codec::Lz4 | Codec::Zstd => take_u32(rest)?,
    };
    // Checked before the checksums are taken, so that a hostile length allocates nothing.
    if len_bytes > RECORD_LEN_BYTES_MAX {
        return Err(PointerError::Impossible);
    }
    let count = checksum_count(codec, len_bytes);
    let (bytes, rest) = rest
        .split_at_checked(count * 4)
        .ok_or(PointerError::Truncated)?;
    let checksums = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|chunk| u32::from_le_bytes(*chunk))
        .collect();
    let (encryption, rest) = match head & ENCRYPTED {
        0 => (None, rest),
        _ => {
            let (encryption, rest) = take_encryption(rest, count)?;
            (Some(Box::new(encryption)), rest)
        }
    };
    let pointer = RecordPointer {
        location: Location {
            segment: SegmentId(segment),
            stripe_block,
            unit_blocks: u16::try_from(unit_blocks).map_err(|_| PointerError::Number)?,
            offset_bytes,
            len_bytes,
        },
        codec,
        file_len_bytes,
        checksums,
        encryption,
    };
    pointer.check()?;
    Ok((pointer, rest))
}

fn take_encryption(input: &[u8], count: usize) -> Result<(Encryption, &[u8]), PointerError> {
    let (salt, rest) = input
        .split_first_chunk::<{ size_of::<Salt>() }>()
        .ok_or(PointerError::Truncated)?;
    let (tags, rest) = rest
        .split_at_checked(count * size_of::<Tag>())
        .ok_or(PointerError::Truncated)?;
    let encryption = Encryption {
        salt: *salt,
        tags: tags.as_chunks().0.to_vec(),
    };
    Ok((encryption, rest))
}

/// LEB128, least significant seven bits first.
fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(input: &[u8]) -> Result<(u64, &[u8]), PointerError> {
    let mut value = 0_u64;
    for (index, &byte) in input.iter().take(VARINT_LEN_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shift = 7 * index as u32;
        // The tenth byte has room for one bit only; and one value has one encoding.
        if (bits << shift) >> shift != bits || (byte == 0 && index > 0) {
            return Err(PointerError::Number);
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            let rest = input.get(index + 1..).ok_or(PointerError::Truncated)?;
            return Ok((value, rest));
        }
    }
    if input.len() < VARINT_LEN_BYTES_MAX {
        Err(PointerError::Truncated)
    } else {
        Err(PointerError::Number)
    }
}

fn take_u32(input: &[u8]) -> Result<(u32, &[u8]), PointerError> {
    let (value, rest) = take_varint(input)?;
    let value = u32::try_from(value).map_err(|_| PointerError::Number)?;
    Ok((value, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pointer(codec: Codec, len_bytes: u32, file_len_bytes: u32) -> RecordPointer {
        RecordPointer {
            location: Location {
                segment: SegmentId(300),
                stripe_block: 7,
                unit_blocks: 256,
                offset_bytes: 4096,
                len_bytes,
            },
            codec,
            file_len_bytes,
            checksums: (0..checksum_count(codec, len_bytes) as u32).collect(),
            encryption: None,
        }
    }

    fn encrypted(pointer: RecordPointer) -> RecordPointer {
        let tags = (0..pointer.checksums.len()).map(|at| [at as u8; 16]);
        RecordPointer {
            encryption: Some(Box::new(Encryption {
                salt: [0xee; 16],
                tags: tags.collect(),
            })),
            ..pointer
        }
    }

    #[test]
    fn pointers_survive_their_bytes() {
        let cases = [
            ("empty", pointer(Codec::Raw, 0, 0)),
            ("one granule", pointer(Codec::Raw, 32 << 10, 32 << 10)),
            (
                "one more byte",
                pointer(Codec::Raw, (32 << 10) + 1, (32 << 10) + 1),
            ),
            ("largest", pointer(Codec::Raw, 1 << 20, 1 << 20)),
            ("lz4", pointer(Codec::Lz4, 500, 4096)),
            ("zstd", pointer(Codec::Zstd, 1, 1 << 20)),
            ("empty, encrypted", encrypted(pointer(Codec::Raw, 0, 0))),
            (
                "largest, encrypted",
                encrypted(pointer(Codec::Raw, 1 << 20, 1 << 20)),
            ),
            ("lz4, encrypted", encrypted(pointer(Codec::Lz4, 500, 4096))),
        ];
        for (name, want) in cases {
            let mut bytes = Vec::new();
            encode_pointer(&want, &mut bytes);
            bytes.push(0xaa);
            assert_eq!(
                decode_pointer(&bytes),
                Ok((want.clone(), &[0xaa][..])),
                "{name}"
            );
            bytes.pop();
            for cut in 0..bytes.len() {
                assert_eq!(
                    decode_pointer(&bytes[..cut]),
                    Err(PointerError::Truncated),
                    "{name} {cut}"
                );
            }
        }
    }

    #[test]
    fn an_encrypted_record_has_a_tag_for_each_checksum() {
        let good = encrypted(pointer(Codec::Raw, 70_000, 70_000));
        assert_eq!(good.check(), Ok(()));
        for count in [0, 2, 4] {
            let mut bad = good.clone();
            let encryption = bad.encryption.as_mut().expect("it is encrypted");
            encryption.tags.resize(count, [0; 16]);
            assert_eq!(bad.check(), Err(PointerError::Impossible), "{count}");
        }
    }

    #[test]
    fn bytes_that_no_append_made_are_refused() {
        let cases: &[(&str, &[u8], PointerError)] = &[
            (
                "other version",
                &[0x20, 1, 0, 1, 0, 0],
                PointerError::Version { version: 2 },
            ),
            (
                "other codec",
                &[0x13, 1, 0, 1, 0, 0],
                PointerError::Codec { codec: 3 },
            ),
            (
                "other codec, encrypted",
                &[0x1b, 1, 0, 1, 0, 0],
                PointerError::Codec { codec: 3 },
            ),
            ("no unit", &[0x10, 1, 0, 0, 0, 0], PointerError::Impossible),
            (
                "unit of 257 blocks",
                &[0x10, 1, 0, 0x81, 2, 0, 0],
                PointerError::Impossible,
            ),
            (
                "longer than a record",
                &[0x10, 1, 0, 1, 0, 0x81, 0x80, 0x40],
                PointerError::Impossible,
            ),
            (
                "past the stripe",
                &[0x10, 1, 0, 1, 0x80, 0x80, 4, 1, 1, 2, 3, 4],
                PointerError::Impossible,
            ),
            (
                "packed and not smaller",
                &[0x11, 1, 0, 1, 0, 5, 5, 1, 2, 3, 4],
                PointerError::Impossible,
            ),
            (
                "33-bit number",
                &[0x10, 1, 0x80, 0x80, 0x80, 0x80, 0x10, 1, 0, 0],
                PointerError::Number,
            ),
            (
                "two encodings",
                &[0x10, 0x81, 0, 0, 1, 0, 0],
                PointerError::Number,
            ),
            (
                "endless number",
                &[
                    0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                ],
                PointerError::Number,
            ),
        ];
        for (name, bytes, want) in cases {
            assert_eq!(decode_pointer(bytes), Err(*want), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_what_encodes_back(bytes in proptest::collection::vec(any::<u8>(), 0..64), codec in 0_u8..3, is_encrypted in any::<bool>()) {
            let encrypted = if is_encrypted { ENCRYPTED } else { 0 };
            let mut input = vec![POINTER_VERSION << 4 | encrypted | codec];
            input.extend(bytes);
            if let Ok((pointer, rest)) = decode_pointer(&input) {
                let mut again = Vec::new();
                encode_pointer(&pointer, &mut again);
                prop_assert_eq!(&again[..], &input[..input.len() - rest.len()]);
            }
        }
    }
}
