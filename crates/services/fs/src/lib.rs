//! The file service of one volume: names, files, links, permissions, caching, flushing.
//!
//! Owns: POSIX semantics, the inodes in memory, dirty data and when it is flushed, garbage collection of segments (it
//! knows all references to them). Must not know: any protocol, where shards should lie, how metadata is logged.
//!
//! Two layers: `kernel` has the inodes in memory and the one way to change what is stored of them (`kernel::Change`);
//! all other modules are features on it, which cannot submit a batch otherwise.
//!
//! Durability (Rule 1): every operation that changes names or attributes commits one change under the locks of the
//! inodes it touches, releases the locks, and replies when the change is durable. Later operations see the change at
//! once; their batches come after it in the log, so the durable state is always a prefix. Unstable data lives in
//! dirty maps until a flush has put it into segments and its extents into the metadata; small stable writes go to the
//! log itself (journal).

#![forbid(unsafe_code)]

mod attr;
mod branches;
mod clones;
mod compare;
mod data;
mod dedupe;
mod diff;
mod flight;
mod flush;
mod gc;
mod gc_policy;
mod hidden;
mod joining;
mod joint;
mod keep;
mod kernel;
mod names;
mod namespace;
mod orphans;
mod paths;
pub mod perm;
mod place;
mod policy;
mod punch;
mod quota;
mod rename;
mod reserve;
mod revert;
mod rewrite;
mod room;
mod scrub;
mod secrets;
mod share;
mod snapshots;
mod storing;
mod tasks;
mod tiering;
pub mod types;
mod unnamed;
mod volume;
mod xattr;

pub use cairn_meta::SnapshotError;
pub use cairn_meta::volume_settings::TierFilter;
pub use cairn_meta::{ApplyRecord, ApplyState, PolicyRecord};
pub use cairn_meta::{GraceRecord, QuotaKey, QuotaKind, QuotaLimit, UsageRecord};
pub use clones::CloneOfVolume;
pub use compare::Compared;
pub use dedupe::{Dedupe, DedupeIndex};
pub use diff::{ChangeKind, FileChange, SnapshotDiff};
pub use gc::{GcBacklog, GcSettings};
pub use joint::{JointSnapshots, take_snapshots};
pub use keep::{Keeper, KeptPlace, Marker};
pub use kernel::{Claims, DirtyBudget, REQUESTS_KEPT};
pub use names::{NamedEntry, NamesPage};
pub use namespace::Unchanged;
pub use place::{MovedShard, PlacedShard};
pub use policy::{ApplyFailure, ApplyView, POLICY_COUNT_MAX, PolicyFailure, PolicyView};
pub use punch::Allocation;
pub use quota::{QUOTA_COUNT_MAX, QUOTA_DEPTH_MAX, QuotaCounts, QuotaLimits, QuotaView};
pub use reserve::RESERVED_FILES_MAX;
pub use rewrite::REWRITE_SEGMENTS_MAX;
pub use scrub::{DamagedExtent, ExtentAt, NAMES_MAX, PATHS_MAX, RecordScrub, WrittenAnew};
pub use secrets::{KeptSecret, SecretError};
pub use snapshots::{Snapshot, SnapshotFailure, SnapshotFreeing, SnapshotHolds};
pub use tiering::{TierChoice, TierPolicy, TieringSettings, TieringStatus};
pub use types::*;
pub use unnamed::{Expected, Keeping, Placing, Unnamed};
pub use volume::{AccessPattern, Fs, FsSettings, FsStats, FsView, Policy, ROOT};
