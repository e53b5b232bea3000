//! The log of a volume in a cluster: groups on M+1 disks of distinct nodes, of which the nodes agree which they are.
//!
//! Owns: what the log needs of the disks and of who keeps the agreement, which files there are, their names.
//! Must not know: how the agreement is kept, how a disk of another node is reached, who owns the volume and why.
//!
//! The log is a sequence of ensembles. Each is one file, the same on all its disks, with a range of positions; the last
//! is open. The list of ensembles is kept outside, and each change of it is one transaction, which compares the epoch
//! and the revision that it replaces. So there is never a question which disks count: those in the list.
//!
//! The protocol and its reasons: docs/design/cluster.md.

pub(crate) mod list;
mod recover;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_base::{DiskId, Epoch, LogPosition, NodeId, VolumeId};
use cairn_formats::shard::name::{FILE_NUMBER_END, ShardName};
use cairn_shard::ShardService;

use crate::error::MetaError;

pub(crate) use recover::FoundEnsembles;

/// A number is the epoch with so many bits for a counter behind it: it is never used twice.
const COUNTER_BITS: u32 = 32;

/// A part of a volume's log: one file on each of its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    /// Names the file; never used twice.
    pub number: u64,
    /// The first position that counts.
    pub from: LogPosition,
    /// The last one; `None` for the one that is open. What lies beyond never counts.
    pub to: Option<LogPosition>,
    /// Disks that have all that was acknowledged in it.
    pub disks: Vec<DiskId>,
}

/// A copy of the volume's state on disks of several nodes, in shards that are the same on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// Names the shard that says which others there are.
    pub number: u64,
    /// Of what is in that shard.
    pub len_bytes: u32,
    /// The state holds everything up to here.
    pub applied: LogPosition,
    /// Disks that have all of it.
    pub disks: Vec<DiskId>,
}

/// What the nodes agree on for a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeList {
    /// Oldest first; empty for a new volume. The last is open.
    pub ensembles: Vec<Ensemble>,
    pub state: Option<StateCopy>,
}

/// Why the list was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgreementError {
    /// It has another owner, or was changed by somebody else.
    #[error("the volume has another owner")]
    Refused,
    /// Whether it was changed is not known, and cannot be found out.
    #[error("{0}")]
    Unknown(String),
}

/// Where the list of a volume is kept, for one term of its owner.
pub trait Agreement: Send + Sync + 'static {
    /// Replaces the list of revision `replaced` if the epoch is still this owner's; the new revision. It returns when
    /// the outcome is known.
    fn change(&self, replaced: u64, list: VolumeList) -> BoxFuture<Result<u64, AgreementError>>;
}

/// The disks that a log can be on.
pub trait LogDisks: Send + Sync + 'static {
    /// One that can be asked now.
    fn disk(&self, id: DiskId) -> Option<Arc<dyn ShardService>>;
    /// Those that an ensemble can be put on now, with their nodes, best first.
    fn choices(&self) -> Vec<(NodeId, Arc<dyn ShardService>)>;
}

/// The place of an owner: what was agreed on when it took the volume.
#[derive(Clone)]
pub struct Seat {
    pub volume: VolumeId,
    /// Of this owner: higher than that of any before.
    pub epoch: Epoch,
    /// The owner's: a copy of the state elsewhere is worth more.
    pub node: NodeId,
    /// Of `list`.
    pub revision: u64,
    pub list: VolumeList,
    pub agreement: Arc<dyn Agreement>,
    pub disks: Arc<dyn LogDisks>,
    /// Copies wanted of log and state: M+1.
    pub copies: usize,
    /// With fewer the log waits.
    pub copies_min: usize,
    /// How long a disk is waited for that nobody else can stand in for.
    pub patience: Duration,
}

impl Seat {
    fn name(&self, ensemble: u64) -> ShardName {
        ShardName::of_log(self.volume, ensemble)
    }

    /// A number for a new file; an error when there is none any more in this epoch.
    pub(crate) fn number(&self, counter: u64) -> Result<u64, MetaError> {
        let first = self.epoch.0.checked_mul(1 << COUNTER_BITS);
        let is_known = counter < 1 << COUNTER_BITS;
        let number = first.and_then(|first| first.checked_add(counter).filter(|_| is_known));
        let number = number.filter(|number| *number < FILE_NUMBER_END);
        number.ok_or(MetaError::NoNumber {
            volume: self.volume,
            epoch: self.epoch,
        })
    }

    /// Whether a file was made in the term of an earlier owner.
    pub(crate) fn is_of_earlier_owner(&self, number: u64) -> bool {
        number >> COUNTER_BITS < self.epoch.0
    }
}

/// How callers reach the log of an open store.
pub struct EnsembleLog {
    stopped: writer::Stopped,
}

impl EnsembleLog {
    pub(crate) fn new(found: &FoundEnsembles) -> Self {
        Self {
            stopped: found.stopped(),
        }
    }
}

impl super::CommitLog for EnsembleLog {
    fn stop(&self) {
        self.stopped.stop();
    }
}
