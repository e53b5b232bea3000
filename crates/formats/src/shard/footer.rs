//! The footer of a sealed shard. Pure: bytes in, values out. Layout: docs/reference/formats/shard.md.
//!
//! A footer is a body (stripe table, checksums, where the segment's summary is) of whole blocks, then a
//! trailer, which is the last block of the file. All that the trailer says is in its first 68 bytes,
//! within one sector, so a crash leaves the old trailer or the new one, never a mixture.

use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::{AlignedBuf, Epoch, SegmentId, VolumeId, crc32c};

use super::name::ShardName;
use crate::FormatError;
use crate::fields::Fields;

/// Stripes begin and end at multiples of this many bytes.
const BLOCK_BYTES: u64 = IO_ALIGN_BYTES as u64;
/// A footer has one CRC32C per so many bytes of the shard's data.
pub const CHECKSUM_UNIT_BYTES: u64 = 64 << 10;
/// Most bytes of data in one shard.
pub const SHARD_CAPACITY_BYTES_MAX: u64 = 1 << 30;
pub const TRAILER_LEN_BYTES: usize = 4096;
pub const FOOTER_VERSION: u32 = 1;
/// Most bytes of [`ShardFooter::summary`].
pub const SUMMARY_LEN_BYTES_MAX: usize = 1024;

const MAGIC: [u8; 8] = *b"CAIRNSHD";
const STRIPE_LEN_BYTES: u64 = 8;
const CHECKSUM_LEN_BYTES: u64 = 4;
/// The checksum of the trailer follows its other fields.
const TRAILER_CRC_OFFSET: usize = 64;
const FOOTER_LEN_BYTES_MAX: u64 = footer_len_bytes_max(SHARD_CAPACITY_BYTES_MAX);

const _: () = assert!(FOOTER_LEN_BYTES_MAX < u32::MAX as u64);

/// The place of one stripe in the shard, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterStripe {
    pub start_block: u32,
    /// At least 1.
    pub unit_blocks: u16,
}

/// What a sealed shard says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFooter {
    pub name: ShardName,
    pub data_shards: u8,
    pub parity_shards: u8,
    pub epoch: Epoch,
    /// Bytes from the start of the shard that hold data.
    pub data_len_bytes: u64,
    /// In the order of their places, without overlaps, within the data.
    pub stripes: Vec<FooterStripe>,
    /// CRC32C of each [`CHECKSUM_UNIT_BYTES`] of the data; the last may be of fewer bytes.
    pub checksums: Vec<u32>,
    /// Where in the segment its summary is, in the segment's own words; empty if it has none. At most
    /// [`SUMMARY_LEN_BYTES_MAX`].
    pub summary: Vec<u8>,
}

/// The last block of a sealed shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub name: ShardName,
    /// Of the whole footer, this block included.
    pub footer_len_bytes: u32,
    data_shards: u8,
    parity_shards: u8,
    epoch: Epoch,
    data_len_bytes: u64,
    stripe_count: u32,
    checksum_count: u32,
    body_crc: u32,
    summary_len_bytes: u32,
}

/// Most bytes that the footer of a shard of `capacity_bytes` can take.
const fn footer_len_bytes_max(capacity_bytes: u64) -> u64 {
    let stripes = capacity_bytes / BLOCK_BYTES * STRIPE_LEN_BYTES;
    let checksums = capacity_bytes.div_ceil(CHECKSUM_UNIT_BYTES) * CHECKSUM_LEN_BYTES;
    let body = stripes + checksums + SUMMARY_LEN_BYTES_MAX as u64;
    body.next_multiple_of(BLOCK_BYTES) + TRAILER_LEN_BYTES as u64
}

/// Length of the file of a shard for `capacity_bytes` of data: the footer's room follows the data.
/// `None` when no shard can have this capacity: zero, not whole blocks, or too much.
pub fn file_len_bytes(capacity_bytes: u64) -> Option<u64> {
    let good = capacity_bytes > 0
        && capacity_bytes <= SHARD_CAPACITY_BYTES_MAX
        && capacity_bytes.is_multiple_of(BLOCK_BYTES);
    good.then(|| capacity_bytes + footer_len_bytes_max(capacity_bytes))
}

/// The other way round: the capacity of an unsealed file of this length.
pub fn capacity_of_file(len_bytes: u64) -> Option<u64> {
    let (mut low, mut high) = (1, SHARD_CAPACITY_BYTES_MAX / BLOCK_BYTES);
    while low <= high {
        let middle = low + (high - low) / 2;
        let capacity_bytes = middle * BLOCK_BYTES;
        match file_len_bytes(capacity_bytes)?.cmp(&len_bytes) {
            std::cmp::Ordering::Equal => return Some(capacity_bytes),
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle - 1,
        }
    }
    None
}

impl ShardFooter {
    fn check(&self) -> Result<(), FormatError> {
        let shard_count = u16::from(self.data_shards) + u16::from(self.parity_shards);
        if self.data_shards == 0 || u16::from(self.name.index) >= shard_count {
            return Err(FormatError::Field("code"));
        }
        if self.data_len_bytes > SHARD_CAPACITY_BYTES_MAX {
            return Err(FormatError::Field("data length"));
        }
        let checksum_count = self.data_len_bytes.div_ceil(CHECKSUM_UNIT_BYTES);
        if self.checksums.len() as u64 != checksum_count {
            return Err(FormatError::Field("checksum count"));
        }
        if self.summary.len() > SUMMARY_LEN_BYTES_MAX {
            return Err(FormatError::Field("summary length"));
        }
        let mut free_block = 0u64;
        for stripe in &self.stripes {
            let start_block = u64::from(stripe.start_block);
            if stripe.unit_blocks == 0 || start_block < free_block {
                return Err(FormatError::Field("stripe table"));
            }
            free_block = start_block + u64::from(stripe.unit_blocks);
        }
        if free_block > self.data_len_bytes.div_ceil(BLOCK_BYTES) {
            return Err(FormatError::Field("stripe table"));
        }
        Ok(())
    }
}

/// The bytes of a footer: whole blocks, the last of them the trailer.
/// Fails with `Field` when the footer contradicts itself.
pub fn encode_footer(footer: &ShardFooter) -> Result<AlignedBuf, FormatError> {
    footer.check()?;
    let mut body = Vec::with_capacity(footer.stripes.len() * 8 + footer.checksums.len() * 4);
    for stripe in &footer.stripes {
        body.extend_from_slice(&stripe.start_block.to_le_bytes());
        body.extend_from_slice(&stripe.unit_blocks.to_le_bytes());
        body.extend_from_slice(&[0; 2]);
    }
    for checksum in &footer.checksums {
        body.extend_from_slice(&checksum.to_le_bytes());
    }
    body.extend_from_slice(&footer.summary);
    let body_crc = crc32c(&body);
    let body_len_bytes = body.len().next_multiple_of(IO_ALIGN_BYTES);
    let footer_len_bytes = body_len_bytes + TRAILER_LEN_BYTES;

    // The counts fit: `check` bounds them by the largest capacity.
    let mut trailer = Vec::with_capacity(TRAILER_LEN_BYTES);
    trailer.extend_from_slice(&MAGIC);
    trailer.extend_from_slice(&FOOTER_VERSION.to_le_bytes());
    trailer.extend_from_slice(&(footer_len_bytes as u32).to_le_bytes());
    trailer.extend_from_slice(&footer.name.volume.0.to_le_bytes());
    trailer.extend_from_slice(&[
        footer.name.index,
        footer.data_shards,
        footer.parity_shards,
        0,
    ]);
    trailer.extend_from_slice(&footer.name.segment.0.to_le_bytes());
    trailer.extend_from_slice(&footer.epoch.0.to_le_bytes());
    trailer.extend_from_slice(&footer.data_len_bytes.to_le_bytes());
    trailer.extend_from_slice(&(footer.stripes.len() as u32).to_le_bytes());
    trailer.extend_from_slice(&(footer.checksums.len() as u32).to_le_bytes());
    trailer.extend_from_slice(&body_crc.to_le_bytes());
    trailer.extend_from_slice(&(footer.summary.len() as u32).to_le_bytes());
    assert!(trailer.len() == TRAILER_CRC_OFFSET);
    let trailer_crc = crc32c(&trailer);
    trailer.extend_from_slice(&trailer_crc.to_le_bytes());

    body.resize(body_len_bytes, 0);
    body.extend_from_slice(&trailer);
    body.resize(footer_len_bytes, 0);
    Ok(AlignedBuf::copy_of(&body))
}

/// Reads the last block of a file. `None`: no trailer is there, the shard was not sealed.
pub fn decode_trailer(block: &[u8]) -> Result<Option<Trailer>, FormatError> {
    let mut fields = Fields(block);
    if fields.take::<8>()? != MAGIC {
        return Ok(None);
    }
    let covered = block
        .get(..TRAILER_CRC_OFFSET)
        .ok_or(FormatError::Truncated)?;
    let mut crc = Fields(block.get(TRAILER_CRC_OFFSET..).unwrap_or_default());
    if crc.u32()? != crc32c(covered) {
        return Err(FormatError::Checksum);
    }
    let version = fields.u32()?;
    if version != FOOTER_VERSION {
        return Err(FormatError::Version {
            found: version,
            newest: FOOTER_VERSION,
        });
    }
    let footer_len_bytes = fields.u32()?;
    let volume = VolumeId(fields.u32()?);
    let [index, data_shards, parity_shards, _] = fields.take::<4>()?;
    let trailer = Trailer {
        footer_len_bytes,
        name: ShardName {
            volume,
            segment: SegmentId(fields.u64()?),
            index,
        },
        data_shards,
        parity_shards,
        epoch: Epoch(fields.u64()?),
        data_len_bytes: fields.u64()?,
        stripe_count: fields.u32()?,
        checksum_count: fields.u32()?,
        body_crc: fields.u32()?,
        summary_len_bytes: fields.u32()?,
    };
    let in_bounds = (TRAILER_LEN_BYTES as u64..=FOOTER_LEN_BYTES_MAX)
        .contains(&u64::from(footer_len_bytes))
        && u64::from(footer_len_bytes).is_multiple_of(BLOCK_BYTES);
    if !in_bounds || trailer.body_len_bytes() > u64::from(footer_len_bytes) {
        return Err(FormatError::Field("footer length"));
    }
    Ok(Some(trailer))
}

impl Trailer {
    /// Without the padding.
    fn body_len_bytes(&self) -> u64 {
        u64::from(self.stripe_count) * STRIPE_LEN_BYTES
            + u64::from(self.checksum_count) * CHECKSUM_LEN_BYTES
            + u64::from(self.summary_len_bytes)
    }
}

/// Reads a footer from the last bytes of a file; more than the footer may be given.
///
/// Fails with `Magic` when the last block is no trailer, with `Truncated` when `bytes` begin after
/// the footer does.
pub fn decode_footer(bytes: &[u8]) -> Result<ShardFooter, FormatError> {
    let (before, block) = bytes
        .split_last_chunk::<TRAILER_LEN_BYTES>()
        .ok_or(FormatError::Truncated)?;
    let trailer = decode_trailer(block)?.ok_or(FormatError::Magic)?;
    let body_area_len_bytes = (trailer.footer_len_bytes as usize).saturating_sub(TRAILER_LEN_BYTES);
    let body_start = before
        .len()
        .checked_sub(body_area_len_bytes)
        .ok_or(FormatError::Truncated)?;
    let body = before
        .get(body_start..)
        .and_then(|area| area.get(..trailer.body_len_bytes() as usize))
        .ok_or(FormatError::Field("footer length"))?;
    if crc32c(body) != trailer.body_crc {
        return Err(FormatError::Checksum);
    }
    let mut fields = Fields(body);
    // The counts are bounded by the body that is there.
    let mut stripes = Vec::with_capacity(trailer.stripe_count as usize);
    for _ in 0..trailer.stripe_count {
        stripes.push(FooterStripe {
            start_block: fields.u32()?,
            unit_blocks: fields.u16()?,
        });
        fields.u16()?;
    }
    let mut checksums = Vec::with_capacity(trailer.checksum_count as usize);
    for _ in 0..trailer.checksum_count {
        checksums.push(fields.u32()?);
    }
    let summary = fields.0.to_vec();
    let footer = ShardFooter {
        name: trailer.name,
        data_shards: trailer.data_shards,
        parity_shards: trailer.parity_shards,
        epoch: trailer.epoch,
        data_len_bytes: trailer.data_len_bytes,
        stripes,
        checksums,
        summary,
    };
    footer.check()?;
    Ok(footer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> ShardFooter {
        ShardFooter {
            name: ShardName {
                volume: VolumeId(3),
                segment: SegmentId(0x1122_3344_5566_7788),
                index: 5,
            },
            data_shards: 4,
            parity_shards: 2,
            epoch: Epoch(9),
            data_len_bytes: 3 * CHECKSUM_UNIT_BYTES + 4096,
            stripes: vec![
                FooterStripe {
                    start_block: 0,
                    unit_blocks: 16,
                },
                FooterStripe {
                    start_block: 20,
                    unit_blocks: 29,
                },
            ],
            checksums: vec![1, 2, 3, 4],
            summary: b"where".to_vec(),
        }
    }

    /// What stays in the file's padding may change; all else must be noticed.
    #[test]
    fn damage_is_never_taken_for_another_footer() {
        let footer = sample();
        let good = encode_footer(&footer).unwrap();
        assert_eq!(decode_footer(&good), Ok(footer.clone()));
        for offset in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[offset] ^= 1 << bit;
                if let Ok(decoded) = decode_footer(&bad) {
                    assert_eq!(decoded, footer, "byte {offset}");
                    let in_body = offset < 37;
                    let in_trailer = (4096..4096 + 68).contains(&offset);
                    assert!(!in_body && !in_trailer, "byte {offset}");
                }
            }
        }
    }

    /// If this fails, the format has changed: its page must say so, and after the first release its version must grow.
    #[test]
    fn bytes_of_version_1_do_not_change() {
        let bytes = encode_footer(&sample()).unwrap();
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        assert_eq!(
            hex(&bytes[..37]),
            "0000000010000000140000001d000000010000000200000003000000040000007768657265"
        );
        assert_eq!(
            hex(&bytes[4096..4096 + 68]),
            "434149524e534844010000000020000003000000050402008877665544332211090000000000000000100300000000000200000004000000316b1d2c05000000156281c7"
        );
    }

    #[test]
    fn nonsense_is_refused() {
        type Change = fn(&mut ShardFooter);
        let cases: &[(&str, Change, &'static str)] = &[
            ("no data shards", |f| f.data_shards = 0, "code"),
            ("index beyond the code", |f| f.name.index = 6, "code"),
            (
                "too long",
                |f| f.data_len_bytes = SHARD_CAPACITY_BYTES_MAX + 1,
                "data length",
            ),
            (
                "a checksum missing",
                |f| f.checksums.truncate(3),
                "checksum count",
            ),
            (
                "too long a summary",
                |f| f.summary = vec![0; SUMMARY_LEN_BYTES_MAX + 1],
                "summary length",
            ),
            (
                "an empty stripe",
                |f| f.stripes[0].unit_blocks = 0,
                "stripe table",
            ),
            (
                "stripes overlap",
                |f| f.stripes[1].start_block = 15,
                "stripe table",
            ),
            (
                "a stripe past the data",
                |f| f.stripes[1].unit_blocks = 30,
                "stripe table",
            ),
        ];
        for (name, change, want) in cases {
            let mut footer = sample();
            change(&mut footer);
            assert_eq!(
                encode_footer(&footer).err(),
                Some(FormatError::Field(want)),
                "{name}"
            );
        }
    }

    #[test]
    fn file_lengths_are_found_back() {
        for capacity in [
            4096,
            8192,
            65536,
            65536 + 4096,
            64 << 20,
            SHARD_CAPACITY_BYTES_MAX,
        ] {
            let len = file_len_bytes(capacity).unwrap();
            assert_eq!(capacity_of_file(len), Some(capacity));
        }
        for capacity in [0, 1, 4097, SHARD_CAPACITY_BYTES_MAX + 4096] {
            assert_eq!(file_len_bytes(capacity), None);
        }
        for len in [0, 4096, u64::MAX, file_len_bytes(64 << 20).unwrap() + 1] {
            assert_eq!(capacity_of_file(len), None, "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..9000), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= TRAILER_LEN_BYTES {
                let at = bytes.len() - TRAILER_LEN_BYTES;
                bytes[at..at + 8].copy_from_slice(&MAGIC);
                let crc = crc32c(&bytes[at..at + TRAILER_CRC_OFFSET]);
                bytes[at + TRAILER_CRC_OFFSET..at + TRAILER_CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
            }
            let _ = decode_footer(&bytes);
            let _ = decode_trailer(&bytes);
        }

        #[test]
        fn fields_of_any_value_are_decoded_or_refused(words in prop::collection::vec(any::<u32>(), 14), small: bool, blocks in 0usize..4) {
            // A well-formed trailer with arbitrary fields, over a body of `blocks` zero blocks.
            let mut trailer = MAGIC.to_vec();
            trailer.extend_from_slice(&FOOTER_VERSION.to_le_bytes());
            for word in &words[..13] {
                let word = if small { word % 5000 } else { *word };
                trailer.extend_from_slice(&word.to_le_bytes());
            }
            trailer.truncate(TRAILER_CRC_OFFSET);
            let crc = crc32c(&trailer);
            trailer.extend_from_slice(&crc.to_le_bytes());
            let mut bytes = vec![0; blocks * 4096];
            bytes.extend_from_slice(&trailer);
            bytes.resize((blocks + 1) * 4096, 0);
            let _ = decode_footer(&bytes);
        }

        #[test]
        fn footers_come_back(
            units in prop::collection::vec((0u16..100, 1u16..=256), 0..200),
            tail_bytes in 0u64..70000,
            index in 0u8..20,
            summary in prop::collection::vec(any::<u8>(), 0..SUMMARY_LEN_BYTES_MAX),
            fill: u32,
        ) {
            let mut stripes = Vec::new();
            let mut block = 0u32;
            for (gap, unit_blocks) in units {
                block += u32::from(gap);
                stripes.push(FooterStripe { start_block: block, unit_blocks });
                block += u32::from(unit_blocks);
            }
            let data_len_bytes = u64::from(block) * BLOCK_BYTES + tail_bytes;
            let checksum_count = data_len_bytes.div_ceil(CHECKSUM_UNIT_BYTES) as usize;
            let footer = ShardFooter {
                name: ShardName { volume: VolumeId(fill), segment: SegmentId(u64::from(fill) << 9), index },
                data_shards: 16,
                parity_shards: 4,
                epoch: Epoch(u64::from(fill)),
                data_len_bytes,
                stripes,
                checksums: (0..checksum_count as u32).map(|index| index ^ fill).collect(),
                summary,
            };
            let bytes = encode_footer(&footer).unwrap();
            prop_assert!(bytes.len() as u64 <= footer_len_bytes_max(data_len_bytes.next_multiple_of(BLOCK_BYTES)));
            let mut with_data = vec![7u8; 5000];
            with_data.extend_from_slice(&bytes);
            prop_assert_eq!(decode_footer(&with_data), Ok(footer));
        }
    }
}
