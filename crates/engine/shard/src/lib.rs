//! The shards of one disk.
//!
//! A shard is the part of a segment on one disk: one preallocated file there, written at aligned
//! offsets, synced in groups, and ended by a footer once nothing more is written to it.
//!
//! Owns: the names of files on a disk, the disk's identity, the pool of recycled files, footers,
//! who shares a sync, the health of the disk as its shards see it, which owner of a volume may change its shards.
//! Must not know: what is in a record, erasure coding, which other disks hold the segment.
//! Invariant: two live handles of one shard are the same handle, so a removed shard's file is given
//! to another shard only when nobody can write to it any more.

#![forbid(unsafe_code)]

mod error;
mod fence;
mod health;
mod identity_file;
mod recycle;
mod service;
mod shard;
mod shard_disk;

pub use cairn_formats::FormatError;
pub use cairn_formats::shard::footer::{
    CHECKSUM_UNIT_BYTES, FOOTER_VERSION, FooterStripe, SHARD_CAPACITY_BYTES_MAX,
    SUMMARY_LEN_BYTES_MAX, ShardFooter, TRAILER_LEN_BYTES, Trailer, decode_footer, decode_trailer,
    encode_footer, file_len_bytes,
};
pub use cairn_formats::shard::identity::{
    DiskIdentity, IDENTITY_NAME, decode_identity, encode_identity,
};
pub use cairn_formats::shard::name::{ShardKind, ShardName};
pub use error::{ShardError, ShardErrorKind};
pub use health::{DiskHealth, Health};
pub use service::{
    CheckedRead, Copied, HiddenId, ShardFuture, ShardList, ShardService, ShardStat, ShardWrite,
    SweptShards,
};
pub use shard::Shard;
pub use shard_disk::{HiddenShard, PROBE_NAME, ShardDisk, ShardSettings, probe_unopened};
