//! The initiator's side: commands into bytes, sense and capacity out of them (SPC-4, SBC-3).

use crate::cdb::{Blocks, CDB_LEN_BYTES};
use crate::sense::Code;
use crate::{u16_at, u32_at, u64_at};

type Cdb = [u8; CDB_LEN_BYTES];

fn blocks_16(opcode: u8, blocks: Blocks, fua: bool) -> Cdb {
    let mut cdb = [0; CDB_LEN_BYTES];
    cdb[0] = opcode;
    cdb[1] = if fua { 0x08 } else { 0 };
    cdb[2..10].copy_from_slice(&blocks.lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&(blocks.count as u32).to_be_bytes());
    cdb
}

pub fn test_unit_ready() -> Cdb {
    [0; CDB_LEN_BYTES]
}

/// Blocks as many as fit into 32 bits.
pub fn read_16(blocks: Blocks) -> Cdb {
    blocks_16(0x88, blocks, false)
}

/// Blocks as many as fit into 32 bits. `fua`: past any volatile cache.
pub fn write_16(blocks: Blocks, fua: bool) -> Cdb {
    blocks_16(0x8a, blocks, fua)
}

/// Of the whole logical unit.
pub fn synchronize_cache_16() -> Cdb {
    blocks_16(0x91, Blocks { lba: 0, count: 0 }, false)
}

/// READ CAPACITY (16), as much of its data as there is room for.
pub fn ask_capacity_16(allocation: u32) -> Cdb {
    let mut cdb = [0; CDB_LEN_BYTES];
    cdb[..2].copy_from_slice(&[0x9e, 0x10]);
    cdb[10..14].copy_from_slice(&allocation.to_be_bytes());
    cdb
}

/// INQUIRY of a page of vital product data.
pub fn inquiry_of(page: u8, allocation: u16) -> Cdb {
    let mut cdb = [0; CDB_LEN_BYTES];
    cdb[..3].copy_from_slice(&[0x12, 0x01, page]);
    cdb[3..5].copy_from_slice(&allocation.to_be_bytes());
    cdb
}

/// UNMAP of one run of blocks: the command, and the list that goes with it.
pub fn unmap(lba: u64, count: u32) -> (Cdb, Vec<u8>) {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(lba.to_be_bytes());
    list.extend(count.to_be_bytes());
    list.extend([0; 4]);
    let mut cdb = [0; CDB_LEN_BYTES];
    cdb[0] = 0x42;
    cdb[7..9].copy_from_slice(&(list.len() as u16).to_be_bytes());
    (cdb, list)
}

/// What a command that failed said: the sense key and the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseSeen {
    pub key: u8,
    pub code: Code,
}

/// Takes sense data of either format (SPC-4, section 4.5).
pub fn parse_sense(bytes: &[u8]) -> Option<SenseSeen> {
    let byte = |at: usize| bytes.get(at).copied();
    let (key, code) = match byte(0)? & 0x7f {
        0x70 | 0x71 => (byte(2)?, Code(byte(12)?, byte(13)?)),
        0x72 | 0x73 => (byte(1)?, Code(byte(2)?, byte(3)?)),
        _ => return None,
    };
    Some(SenseSeen {
        key: key & 0x0f,
        code,
    })
}

/// How large a logical unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub block_count: u64,
    pub block_len_bytes: u32,
    /// Blocks can be given back (UNMAP).
    pub is_thin: bool,
}

/// Takes the data of READ CAPACITY (16) (SBC-3, section 5.16.2).
pub fn parse_capacity_16(data: &[u8]) -> Option<Capacity> {
    Some(Capacity {
        block_count: u64_at(data, 0)?.checked_add(1)?,
        block_len_bytes: u32_at(data, 8)?,
        is_thin: data.get(14)? & 0x80 != 0,
    })
}

/// What one command takes at most, in blocks; 0: the target does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsSeen {
    pub transfer_blocks: u32,
    pub unmap_blocks: u32,
}

/// Takes the page of block limits (SBC-3, section 6.6.4); pages of old targets end before UNMAP's.
pub fn parse_block_limits(page: &[u8]) -> Option<LimitsSeen> {
    if page.get(1) != Some(&0xb0) || u16_at(page, 2)? < 0x0c {
        return None;
    }
    Some(LimitsSeen {
        transfer_blocks: u32_at(page, 8)?,
        unmap_blocks: u32_at(page, 20).unwrap_or(0),
    })
}
