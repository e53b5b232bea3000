//! The metadata of one volume: an ordered key space with versions, its commit log, its state.
//!
//! Owns: keys and records, the order in which batches become visible and durable, recovery, redundancy of metadata, the
//! volume's counters and id marks. Must not know: the meaning of names, links and permissions (`fs`), the place of data
//! shards (`segment`), any protocol.

#![forbid(unsafe_code)]

pub mod batch;
mod committer;
mod counters;
mod disks;
pub mod error;
mod gathering;
mod held;
mod journal;
mod journal_encryption;
mod journal_rewrite;
mod log;
mod mirrored_log;
mod open;
mod progress;
mod replay_budget;
mod segments;
pub mod settings;
mod shared;
mod snapshots;
mod state;
pub mod store;
mod succession;
mod tasks;
mod usage;
mod view;
mod volume_log;

pub use batch::{BATCH_BYTES_MAX, Batch, JOURNAL_ENTRY_BYTES, SpaceDelta, Ticket};
pub use cairn_formats::metadata::keys::branch_of;
pub use cairn_formats::metadata::{
    ApplyRecord, ApplyState, CloneRecord, CookieRecord, DirentRecord, ExtentPlace, ExtentRecord,
    Fold, GraceRecord, INLINE_LEN_BYTES_MAX, InodeKind, InodeRecord, JOURNAL_DATA_BYTES_MAX,
    JournalEntry, Key, KeyKind, PolicyRecord, QUOTA_PATH_LEN_BYTES_MAX, QuotaKey, QuotaKind,
    QuotaLimit, QuotaRecord, RemoteSegment, RequestRecord, SegmentRecord, SnapshotRecord,
    TreeState, UsageRecord, decode_extent,
};
pub use cairn_formats::settings as volume_settings;
pub use disks::Preference;
pub use error::{MetaError, MetaErrorKind};
pub use held::CommitHold;
pub use log::ensemble::{
    Agreement, AgreementError, Copies, Ensemble, EnsembleLog, LogDisks, Seat, StateCopy, VolumeList,
};
pub use mirrored_log::MirroredLog;
pub use progress::Durable;
pub use replay_budget::ReplayBudget;
pub use segments::SegmentTotals;
pub use settings::{JournalPressure, MetaCache, MetaSettings, MetaStats, VolumeCounters};
pub use snapshots::{NewSnapshot, SNAPSHOT_COUNT_MAX, SnapshotError};
pub use state::versions::{DeadVersion, GoneSince};
pub use store::{MetaStore, Recovered, SegmentUsage};
pub use succession::Succession;
pub use usage::{Owner, UsageDelta, root_tree, taken_over_tree};
pub use view::MetaView;
pub use volume_log::VolumeLog;

#[cfg(test)]
mod tests;
