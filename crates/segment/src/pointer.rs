//! Where a record is, and how to know that it is the right one.

use cairn_base::SegmentId;

/// Most bytes of a file in one record, before compression.
pub const RECORD_LEN_BYTES_MAX: u32 = 1 << 20;
/// A raw record has one CRC32C per so many bytes, so that a small read fetches and checks little.
pub const CHECKSUM_GRANULE_BYTES: u32 = 32 << 10;
/// Rows begin, and units are sized, in multiples of this many bytes.
pub const BLOCK_BYTES: u32 = 4096;
/// Largest unit of a row, in bytes; a row of N+M shards holds N units of data.
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

/// Where a record's stored bytes are. A row is one stripe: it begins at the same offset in each of
/// the segment's shards, takes `unit_blocks` blocks of each, and its N data units, one after the
/// other, are its address space; `offset_bytes` counts in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    pub segment: SegmentId,
    /// Start of the row in each shard, in blocks of [`BLOCK_BYTES`].
    pub row_block: u32,
    /// Size of one unit of the row, in blocks; at least 1.
    pub unit_blocks: u16,
    /// Where the record starts in the row's data.
    pub offset_bytes: u32,
    /// Bytes stored.
    pub len_bytes: u32,
}

/// Names a record: its place, its form and its checksums, which are kept here, apart from it (Rule 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPointer {
    pub location: Location,
    pub codec: Codec,
    /// Bytes of the file in the record (as stored if `Raw`).
    pub file_len_bytes: u32,
    /// CRC32C of the stored bytes: one per [`CHECKSUM_GRANULE_BYTES`] if `Raw`, else one of them all.
    pub checksums: Vec<u32>,
}
