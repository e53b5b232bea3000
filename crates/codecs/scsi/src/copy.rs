//! EXTENDED COPY, as hosts use it to clone and move: segments from block to block between logical units that are named by their
//! designators (SPC-4, sections 6.4 and 6.21; LID1).

use crate::sense::{Sense, code};
use crate::{u16_at, u32_at, u64_at};

pub const COPY_TARGET_COUNT_MAX: usize = 16;
pub const COPY_SEGMENT_COUNT_MAX: usize = 64;
/// There is no segment that would use any.
pub const COPY_INLINE_LEN_BYTES_MAX: u32 = 0;
const TARGET_LEN_BYTES: usize = 32;
const HEADER_LEN_BYTES: usize = 16;
const SEGMENT_LEN_BYTES: usize = 28;
const DESCRIPTORS_LEN_BYTES_MAX: usize =
    COPY_TARGET_COUNT_MAX * TARGET_LEN_BYTES + COPY_SEGMENT_COUNT_MAX * SEGMENT_LEN_BYTES;
const IDENTIFICATION: u8 = 0xe4;
const BLOCK_TO_BLOCK: u8 = 0x02;

pub(crate) const fn descriptors_len_bytes_max() -> u32 {
    DESCRIPTORS_LEN_BYTES_MAX as u32
}

/// A part of a copy; `source` and `destination` count the list's targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySegment {
    pub source: usize,
    pub destination: usize,
    pub block_count: u16,
    pub source_lba: u64,
    pub destination_lba: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyList {
    pub list: u8,
    /// The designators of the logical units, as page 83 has them.
    pub targets: Vec<Vec<u8>>,
    pub segments: Vec<CopySegment>,
}

/// Takes EXTENDED COPY's list.
pub fn parse_copy_list(list: &[u8]) -> Result<CopyList, Sense> {
    let too_short = || Sense::illegal(code::PARAMETER_LIST_LENGTH);
    let copy_failed = |code| Sense::illegal(code);
    let header = list.get(..HEADER_LEN_BYTES).ok_or_else(too_short)?;
    let targets_len = usize::from(u16_at(header, 2).unwrap_or(0));
    let segments_len = u32_at(header, 8).unwrap_or(0) as usize;
    let inline_len = u32_at(header, 12).unwrap_or(0);
    if inline_len > COPY_INLINE_LEN_BYTES_MAX {
        return Err(copy_failed(code::INLINE_DATA_EXCEEDED));
    }
    if targets_len % TARGET_LEN_BYTES != 0 {
        return Err(Sense::list_field(2));
    }
    if targets_len.saturating_add(segments_len) > DESCRIPTORS_LEN_BYTES_MAX {
        return Err(too_short());
    }
    if targets_len / TARGET_LEN_BYTES > COPY_TARGET_COUNT_MAX {
        return Err(copy_failed(code::TOO_MANY_TARGETS));
    }
    let rest = list.get(HEADER_LEN_BYTES..).unwrap_or_default();
    let targets_bytes = rest.get(..targets_len).ok_or_else(too_short)?;
    let rest = rest.get(targets_len..).unwrap_or_default();
    let mut segments_bytes = rest.get(..segments_len).ok_or_else(too_short)?;
    let mut targets = Vec::new();
    for target in targets_bytes.chunks_exact(TARGET_LEN_BYTES) {
        if target.first() != Some(&IDENTIFICATION) {
            return Err(copy_failed(code::UNSUPPORTED_TARGET_TYPE));
        }
        // Code set, type, reserved, length, then up to 20 bytes.
        let len = usize::from(*target.get(7).unwrap_or(&0));
        let name = target.get(8..8 + len.min(20)).unwrap_or_default();
        targets.push(name.to_vec());
    }
    let mut segments = Vec::new();
    while !segments_bytes.is_empty() {
        if segments.len() == COPY_SEGMENT_COUNT_MAX {
            return Err(copy_failed(code::TOO_MANY_SEGMENTS));
        }
        if segments_bytes.first() != Some(&BLOCK_TO_BLOCK) {
            return Err(copy_failed(code::UNSUPPORTED_SEGMENT_TYPE));
        }
        let bytes = segments_bytes
            .get(..SEGMENT_LEN_BYTES)
            .ok_or_else(too_short)?;
        let at = (list.len() - rest.len() + segments.len() * SEGMENT_LEN_BYTES) as u16;
        if u16_at(bytes, 2) != Some(0x18) {
            return Err(Sense::list_field(at + 2));
        }
        let segment = CopySegment {
            source: u16_at(bytes, 4).unwrap_or(0).into(),
            destination: u16_at(bytes, 6).unwrap_or(0).into(),
            block_count: u16_at(bytes, 10).unwrap_or(0),
            source_lba: u64_at(bytes, 12).unwrap_or(0),
            destination_lba: u64_at(bytes, 20).unwrap_or(0),
        };
        if segment.source >= targets.len() || segment.destination >= targets.len() {
            return Err(copy_failed(code::COPY_TARGET_UNREACHABLE).with_key_copy_aborted());
        }
        segments.push(segment);
        segments_bytes = segments_bytes.get(SEGMENT_LEN_BYTES..).unwrap_or_default();
    }
    Ok(CopyList {
        list: *header.first().unwrap_or(&0),
        targets,
        segments,
    })
}

impl Sense {
    fn with_key_copy_aborted(mut self) -> Self {
        self.key = crate::sense::Key::CopyAborted;
        self
    }
}

/// RECEIVE COPY RESULTS, operating parameters. `segment_len_bytes`: most that one segment copies.
pub fn copy_operating_parameters(segment_len_bytes: u32) -> Vec<u8> {
    let mut bytes = vec![0; 44];
    // SNLID: a list without an identifier is taken, too.
    bytes[4] = 0x01;
    bytes[8..10].copy_from_slice(&(COPY_TARGET_COUNT_MAX as u16).to_be_bytes());
    bytes[10..12].copy_from_slice(&(COPY_SEGMENT_COUNT_MAX as u16).to_be_bytes());
    bytes[12..16].copy_from_slice(&descriptors_len_bytes_max().to_be_bytes());
    bytes[16..20].copy_from_slice(&segment_len_bytes.to_be_bytes());
    // One at a time, in each nexus; copies are by blocks of 512 bytes.
    bytes[34..36].copy_from_slice(&1_u16.to_be_bytes());
    bytes[36] = 1;
    bytes[37] = 9;
    bytes[43] = 2;
    bytes.extend([BLOCK_TO_BLOCK, IDENTIFICATION]);
    let len_bytes = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// RECEIVE COPY RESULTS, copy status: of a copy that is over.
pub fn copy_status(is_good: bool, segments: u16, moved_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes[3] = 8;
    bytes[4] = if is_good { 1 } else { 2 };
    bytes[5..7].copy_from_slice(&segments.to_be_bytes());
    let (units, count) = match u32::try_from(moved_bytes) {
        Ok(count) => (0, count),
        Err(_) => (1, u32::try_from(moved_bytes >> 10).unwrap_or(u32::MAX)),
    };
    bytes[7] = units;
    bytes[8..12].copy_from_slice(&count.to_be_bytes());
    bytes
}
