//! The metadata of one volume: an ordered key space with versions, its commit log, its state.
//!
//! Owns: keys and records, the order in which batches become visible and durable, recovery,
//! redundancy of metadata, the volume's counters and id marks.
//! Must not know: what names, links and permissions mean (`fs`), where data shards are
//! (`segment`), any protocol.

pub mod batch;
mod committer;
mod counters;
mod disks;
pub mod error;
mod journal;
pub mod keys;
mod log;
mod open;
mod progress;
pub mod records;
pub mod settings;
mod shared;
mod state;
pub mod store;
mod tasks;

pub use cairn_segment::pointer;

pub use batch::{
    BATCH_BYTES_MAX, Batch, Fold, JOURNAL_DATA_BYTES_MAX, JournalEntry, SpaceDelta, Ticket,
};
pub use error::{MetaError, MetaErrorKind};
pub use keys::{Key, KeyKind};
pub use progress::Durable;
pub use records::{
    CookieRecord, DirentRecord, ExtentRecord, InodeKind, InodeRecord, SegmentRecord,
};
pub use settings::{JournalPressure, MetaCache, MetaSettings, MetaStats, VolumeCounters};
pub use store::{MetaStore, Recovered};

/// Runs every decoder of this crate on bytes that may be anything: the fuzz target's way in.
#[doc(hidden)]
pub fn decode_anything(bytes: &[u8]) {
    let _ = Key::parse(bytes);
    let _ = InodeRecord::decode(bytes);
    let _ = DirentRecord::decode(bytes);
    let _ = CookieRecord::decode(bytes);
    let _ = ExtentRecord::decode(bytes);
    let _ = SegmentRecord::decode(bytes);
    let _ = records::AppliedRecord::decode(bytes);
    let _ = records::CountersRecord::decode(bytes);
    let position = cairn_base::LogPosition(1);
    let payload = bytes::Bytes::copy_from_slice(bytes);
    let _ = log::group::Group::decode(&payload, position, position);
    let _ = log::format::FileHeader::decode(bytes);
    let _ = log::format::find_records(bytes, 0);
    state::decode_anything(bytes);
}

#[cfg(test)]
mod tests;
