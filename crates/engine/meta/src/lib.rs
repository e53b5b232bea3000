//! The metadata of one volume: an ordered key space with versions, its commit log, its state.
//!
//! Owns: keys and records, the order in which batches become visible and durable, recovery,
//! redundancy of metadata, the volume's counters and id marks.
//! Must not know: what names, links and permissions mean (`fs`), where data shards are
//! (`segment`), any protocol.

#![forbid(unsafe_code)]

pub mod batch;
mod committer;
mod counters;
mod disks;
pub mod error;
pub mod extent;
mod journal;
mod journal_rewrite;
pub mod keys;
mod log;
mod open;
mod progress;
pub mod records;
mod segments;
pub mod settings;
mod shared;
mod state;
pub mod store;
mod tasks;

pub use cairn_segment::pointer;

pub use batch::{
    BATCH_BYTES_MAX, Batch, Fold, JOURNAL_DATA_BYTES_MAX, JOURNAL_ENTRY_BYTES, JournalEntry,
    SpaceDelta, Ticket,
};
pub use error::{MetaError, MetaErrorKind};
pub use extent::decode_extent;
pub use keys::{Key, KeyKind};
pub use progress::Durable;
pub use records::{
    CookieRecord, DirentRecord, ExtentRecord, InodeKind, InodeRecord, SegmentRecord,
};
pub use segments::SegmentTotals;
pub use settings::{JournalPressure, MetaCache, MetaSettings, MetaStats, VolumeCounters};
pub use store::{MetaStore, Recovered, SegmentUsage};

#[cfg(test)]
mod tests;
