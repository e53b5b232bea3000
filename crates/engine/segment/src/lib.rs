//! Packs records into protected, immutable segments on the pool's disks, and reads them back despite failures.
//!
//! Owns: the layout of stripes, record encoding (compression, encryption and checksums), placement of segments on
//! disks, open segments, degraded reads, read repair, the record cache, the space reserve. Must not know: files, names,
//! protocols; which records are live (the metadata counts that). Invariant: bytes written under a [`Location`] never
//! change; acknowledged appends are on stable storage with the segment's full protection.
//!
//! The byte layout is described in `docs/reference/formats/segment.md`.

#![forbid(unsafe_code)]

mod append;
mod cache;
mod disk_table;
mod encoder;
mod error;
mod fence;
mod layout;
mod life;
mod missed;
mod move_targets;
mod moves;
mod overdue;
mod pace;
mod placement;
mod read;
mod rebuild;
mod record;
mod repair;
mod scrub;
mod segment_map;
mod spares;
mod spread;
mod store;
mod stripe;
mod stripe_cache;
mod summary;
mod tier;
mod types;
mod underway;
mod volume;

pub use cairn_formats::pointer::{
    BLOCK_BYTES, CHECKSUM_GRANULE_BYTES, Codec, Location, PointerError, RECORD_LEN_BYTES_MAX,
    RecordPointer, decode_pointer, encode_pointer,
};
pub use cairn_formats::summary::{RecordOwner, SummaryEntry};
pub use cairn_formats::tier_object::ObjectId;
pub use disk_table::{Member, Role};
pub use encoder::Encoder;
pub use error::{ErrorKind, SegmentError};
pub use move_targets::{DiskRoom, MoveRoom, MovingShard, TargetDisk};
pub use moves::{MoveError, Moved, ShardAt};
pub use pace::{Clients, Pace, Rate, Turn, Urgency};
pub use read::{CACHE_PLACE_LEN_BYTES, CachePlace, ReadCache, WantedPart};
pub use record::{
    Compression, EncodedRecord, RecordError, decode_record, decrypt_granules,
    encode_encrypted_record, encode_record,
};
pub use scrub::SegmentScrub;
pub use spread::{DiskFill, Spread, Unevenness};
pub use store::SegmentStore;
#[cfg(any(test, feature = "testing"))]
pub use tier::testing;
pub use tier::{
    CopiedOut, CopyOutError, PART_LEN_BYTES, TierError, TierStats, TierStore, TierUpload,
};
pub use types::*;

#[cfg(test)]
mod tests;
