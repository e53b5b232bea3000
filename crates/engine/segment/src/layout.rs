//! Stripes: the place of records in them, and the matching bytes of shards. Pure.
//!
//! Owns: the arithmetic of stripes, units and blocks. Must not know: disks, buffers, the mathematics of codes.

use std::ops::Range;

use crate::record::EncodedRecord;
use cairn_formats::pointer::{BLOCK_BYTES, Location, UNIT_LEN_BYTES_MAX};

/// Records packed into a stripe begin at multiples of this.
const PACKED_ALIGN_BYTES: u32 = 8;
/// Largest unit of a stripe, in blocks.
pub(crate) const UNIT_BLOCKS_MAX: u32 = UNIT_LEN_BYTES_MAX / BLOCK_BYTES;

/// The properties of a record that the layout needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordShape {
    pub len_bytes: u32,
    /// The record begins at a block, so that aligned buffers go to the disk without a copy.
    pub block_aligned: bool,
    /// The record has an owner.
    pub has_owner: bool,
}

impl From<&EncodedRecord> for RecordShape {
    fn from(record: &EncodedRecord) -> Self {
        let len_bytes = record.stored_len_bytes();
        Self {
            len_bytes,
            block_aligned: record.codec() == crate::Codec::Raw && len_bytes >= BLOCK_BYTES,
            has_owner: record.owner().is_some(),
        }
    }
}

/// One stripe to be written: the first `offsets.len()` records that were offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StripePlan {
    /// 1..=[`UNIT_BLOCKS_MAX`].
    pub unit_blocks: u16,
    /// Start of each record in the stripe.
    pub offsets: Vec<u32>,
}

/// Fits as many of the `records` as possible, in order, into one stripe of `data_units` units of at
/// most `unit_blocks_max` blocks. None if not even the first fits.
pub(crate) fn plan_stripe(
    data_units: u8,
    unit_blocks_max: u32,
    records: &[RecordShape],
) -> Option<StripePlan> {
    let unit_blocks_max = unit_blocks_max.min(UNIT_BLOCKS_MAX);
    let units = u32::from(data_units);
    let room_bytes = units * unit_blocks_max * BLOCK_BYTES;
    let mut offsets = Vec::new();
    let mut end_bytes = 0;
    for record in records {
        let align = if record.block_aligned {
            BLOCK_BYTES
        } else {
            PACKED_ALIGN_BYTES
        };
        let start = u32::next_multiple_of(end_bytes, align);
        // Stripe and record are at most 16 MiB and 1 MiB: no overflow.
        if start + record.len_bytes > room_bytes {
            break;
        }
        end_bytes = start + record.len_bytes;
        offsets.push(start);
    }
    if offsets.is_empty() || unit_blocks_max == 0 {
        return None;
    }
    let unit_blocks = end_bytes.div_ceil(units * BLOCK_BYTES).max(1);
    Some(StripePlan {
        unit_blocks: unit_blocks as u16,
        offsets,
    })
}

/// A run of bytes of one record that lies in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index of the (data) shard.
    pub shard: u8,
    /// Offset in the unit.
    pub unit_offset: u32,
    pub len_bytes: u32,
}

impl Piece {
    pub fn columns(&self) -> Range<u32> {
        self.unit_offset..self.unit_offset + self.len_bytes
    }
}

/// The pieces, in order, that hold the bytes `stored` (offsets within the record) of a record.
pub(crate) fn pieces(location: &Location, stored: Range<u32>) -> Vec<Piece> {
    let unit = location.unit_len_bytes();
    let mut at = location.offset_bytes + stored.start;
    let end = location.offset_bytes + stored.end;
    let mut pieces = Vec::with_capacity(2);
    while at < end {
        let unit_offset = at % unit;
        let len_bytes = (unit - unit_offset).min(end - at);
        pieces.push(Piece {
            shard: (at / unit) as u8,
            unit_offset,
            len_bytes,
        });
        at += len_bytes;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use cairn_base::SegmentId;
    use proptest::prelude::*;

    use super::*;

    fn shape(len_bytes: u32, block_aligned: bool) -> RecordShape {
        RecordShape {
            len_bytes,
            block_aligned,
            has_owner: false,
        }
    }

    #[test]
    fn records_are_placed_or_left_for_the_next_stripe() {
        const MIB: u32 = 1 << 20;
        let raw = |len| shape(len, true);
        let packed = |len| shape(len, false);
        type Case<'a> = (&'a str, u8, u32, Vec<RecordShape>, Option<(u16, Vec<u32>)>);
        let cases: &[Case] = &[
            ("one byte", 4, 256, vec![packed(1)], Some((1, vec![0]))),
            ("nothing in it", 1, 256, vec![packed(0)], Some((1, vec![0]))),
            (
                "packed by eights",
                1,
                256,
                vec![packed(1), packed(9), packed(1)],
                Some((1, vec![0, 8, 24])),
            ),
            (
                "blocks after packed",
                1,
                256,
                vec![packed(1), raw(4096)],
                Some((2, vec![0, 4096])),
            ),
            (
                "unit is the share of one disk",
                4,
                256,
                vec![raw(MIB)],
                Some((64, vec![0])),
            ),
            (
                "rounded up to blocks",
                4,
                256,
                vec![raw(4096), packed(1)],
                Some((1, vec![0, 4096])),
            ),
            (
                "largest stripe",
                4,
                256,
                vec![raw(MIB); 5],
                Some((256, vec![0, MIB, 2 * MIB, 3 * MIB])),
            ),
            ("just fits", 1, 256, vec![raw(MIB)], Some((256, vec![0]))),
            ("segment nearly full", 1, 255, vec![raw(MIB)], None),
            (
                "segment nearly full, fits",
                2,
                128,
                vec![raw(MIB), packed(1)],
                Some((128, vec![0])),
            ),
            ("segment full", 2, 0, vec![packed(0)], None),
            ("no records", 2, 8, vec![], None),
        ];
        for (name, units, blocks, records, want) in cases {
            let got = plan_stripe(*units, *blocks, records)
                .map(|stripe| (stripe.unit_blocks, stripe.offsets));
            assert_eq!(got, *want, "{name}");
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_the_range_in_order(unit_blocks in 1_u16..=8, offset in 0_u32..100_000, len in 0_u32..70_000, cut in 0_u32..70_000) {
            let location = Location { segment: SegmentId(1), stripe_block: 0, unit_blocks, offset_bytes: offset, len_bytes: len };
            let range = cut.min(len)..len;
            let unit = location.unit_len_bytes();
            let mut at = offset + range.start;
            for piece in pieces(&location, range.clone()) {
                prop_assert_eq!(u32::from(piece.shard) * unit + piece.unit_offset, at);
                prop_assert!(piece.len_bytes > 0 && piece.columns().end <= unit);
                at += piece.len_bytes;
            }
            prop_assert_eq!(at, offset + range.end);
        }
    }
}
