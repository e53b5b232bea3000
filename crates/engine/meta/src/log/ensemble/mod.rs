//! The log of a volume in a cluster: groups on M+1 disks of distinct nodes. The nodes agree on the list of these disks.
//!
//! Owns: the interface to the disks and to the agreement, the files of the log and their names. Must not know: how the
//! agreement is kept, how a disk of another node is reached, which node owns the volume and why.
//!
//! The log is a sequence of ensembles. Each ensemble is one file with a range of positions, identical on all its disks;
//! the last ensemble is open. The list of ensembles is kept outside. Each change of the list is one transaction, which
//! compares the epoch and the revision that it replaces. So it is always certain which disks count: those in the list.
//!
//! The protocol and its reasons: docs/design/cluster.md.

mod in_place;
pub(crate) mod list;
mod recover;
mod widen;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, LogPosition, NodeId, VolumeId};
use cairn_formats::metadata::log::SET_COUNT_MAX;
use cairn_formats::shard::name::{FILE_NUMBER_END, ShardName};
use cairn_shard::ShardService;

use crate::batch::Batch;
use crate::error::MetaError;
use crate::shared::StoreCore;

pub(crate) use recover::FoundEnsembles;
pub(crate) use writer::last_room_bytes;

/// Limit of the rounds in which a disk leaves the log; each round is one group and one copy of the state.
const RETIRE_ROUNDS: usize = 20;
const RETIRE_PAUSE: Duration = Duration::from_millis(500);
/// The low bits of a file number, which count; the epoch is above them. So no number is used twice.
const COUNTER_BITS: u32 = 32;

/// A part of a volume's log: one file on each of its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    /// Names the file; numbers are never reused.
    pub number: u64,
    /// The first position that counts.
    pub from: LogPosition,
    /// The last position that counts; `None` for the open ensemble. Later positions in the file never count.
    pub to: Option<LogPosition>,
    /// Disks that have all acknowledged records of the ensemble.
    pub disks: Vec<DiskId>,
}

/// A copy of the volume's state on disks of several nodes, in shards that are identical on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// Names the shard that lists the other shards.
    pub number: u64,
    /// Length of that shard.
    pub len_bytes: u32,
    /// The copy holds all changes up to this position.
    pub applied: LogPosition,
    /// Disks that have the whole copy.
    pub disks: Vec<DiskId>,
}

/// The list that the nodes agree on for a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeList {
    /// Oldest first; empty for a new volume. The last is open.
    pub ensembles: Vec<Ensemble>,
    pub state: Option<StateCopy>,
}

/// Reasons for an unchanged list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgreementError {
    /// The volume has another owner, or somebody else changed the list.
    #[error("the volume has another owner")]
    Refused,
    /// The outcome of the change is unknown and cannot be found out.
    #[error("{0}")]
    Unknown(String),
}

/// Keeper of a volume's list, for one term of its owner.
pub trait Agreement: Send + Sync + 'static {
    /// Replaces the list of revision `replaced` if the epoch is still this owner's, and returns the new revision.
    /// Resolves when the outcome is known.
    fn change(&self, replaced: u64, list: VolumeList) -> BoxFuture<Result<u64, AgreementError>>;
}

/// The disks that may hold the log.
pub trait LogDisks: Send + Sync + 'static {
    /// A disk, if it is reachable now.
    fn disk(&self, id: DiskId) -> Option<Arc<dyn ShardService>>;
    /// Disks that a new ensemble can use now, with their nodes, best first.
    fn choices(&self) -> Vec<(NodeId, Arc<dyn ShardService>)>;
}

/// Number of copies of log and state. All clones change together, because nodes join and leave.
#[derive(Clone, Debug)]
pub struct Copies(Arc<(AtomicUsize, AtomicUsize)>);

impl Copies {
    /// `wanted`: M+1. With fewer copies than `least` the log waits.
    pub fn new(wanted: usize, least: usize) -> Self {
        let copies = Self(Arc::default());
        copies.set(wanted, least);
        copies
    }

    pub fn wanted(&self) -> usize {
        self.0.0.load(Ordering::Acquire)
    }

    pub fn least(&self) -> usize {
        self.0.1.load(Ordering::Acquire)
    }

    /// Takes effect with the next group, or the next copy of the state.
    pub fn set(&self, wanted: usize, least: usize) {
        let wanted = wanted.clamp(1, SET_COUNT_MAX);
        self.0.0.store(wanted, Ordering::Release);
        self.0.1.store(least.clamp(1, wanted), Ordering::Release);
    }
}

/// The state of the agreement when this owner took the volume.
#[derive(Clone)]
pub struct Seat {
    pub volume: VolumeId,
    /// Epoch of this owner, higher than that of any earlier owner.
    pub epoch: Epoch,
    /// Node of the owner. A copy of the state on another node is worth more than one here.
    pub node: NodeId,
    /// Revision of `list`.
    pub revision: u64,
    pub list: VolumeList,
    pub agreement: Arc<dyn Agreement>,
    pub disks: Arc<dyn LogDisks>,
    /// Copies of log and state.
    pub copies: Copies,
    /// Longest wait for a disk that no other disk can replace.
    pub patience: Duration,
}

impl Seat {
    fn name(&self, ensemble: u64) -> ShardName {
        ShardName::of_log(self.volume, ensemble)
    }

    /// The number of a new file. Fails when the numbers of this epoch are used up.
    pub(crate) fn number(&self, counter: u64) -> Result<u64, MetaError> {
        let epoch = match planted::is(Bug::LogFileNumberUsedAgain) {
            true => 1,
            false => self.epoch.0,
        };
        let first = epoch.checked_mul(1 << COUNTER_BITS);
        let is_known = counter < 1 << COUNTER_BITS;
        let number = first.and_then(|first| first.checked_add(counter).filter(|_| is_known));
        let number = number.filter(|number| *number < FILE_NUMBER_END);
        number.ok_or(MetaError::NoNumber {
            volume: self.volume,
            epoch: self.epoch,
        })
    }

    /// Whether an earlier owner made a file.
    pub(crate) fn is_of_earlier_owner(&self, number: u64) -> bool {
        number >> COUNTER_BITS < self.epoch.0
    }
}

/// The callers' handle of the log of an open store.
pub struct EnsembleLog {
    shared: Arc<StoreCore>,
    stopped: writer::Stopped,
    list: Arc<list::AgreedList>,
    copies: Copies,
}

impl EnsembleLog {
    pub(crate) fn of(found: &FoundEnsembles) -> impl FnOnce(Arc<StoreCore>) -> Self + use<> {
        let (stopped, list) = (found.stopped(), found.list.clone());
        let copies = found.seat.copies.clone();
        move |shared| Self {
            shared,
            stopped,
            list,
            copies,
        }
    }

    /// The disk of this node that holds the working state.
    pub fn primary_disk(&self) -> DiskId {
        self.shared.disks.get(self.shared.state.disk()).id
    }

    /// Whether a disk may hold something that is needed.
    pub fn uses_disk(&self, id: DiskId) -> bool {
        let list = self.list.get();
        let in_log = list.ensembles.iter().any(|part| part.disks.contains(&id));
        let has_state = list.state.is_some_and(|copy| copy.disks.contains(&id));
        in_log || has_state || id == self.primary_disk()
    }

    /// Sets the number of copies of log and state. They are made in the background.
    pub fn set_copies(&self, wanted: usize, least: usize) {
        if (self.copies.wanted(), self.copies.least()) == (wanted, least) {
            return;
        }
        self.copies.set(wanted, least);
        self.shared.ship_in_background();
        // The next group begins another file, where that adds copies.
        self.shared.submit(Batch::new());
    }

    /// Moves everything off a disk that [`LogDisks::choices`] does not offer now. When it returns, everything submitted
    /// before is on other disks. Fails for the disk of the working state, and while no other disk can replace the disk.
    pub async fn retire_disk(&self, id: DiskId) -> Result<(), MetaError> {
        if id == self.primary_disk() {
            return Err(MetaError::State(format!(
                "the state is on disk {id}; open the volume on other disks"
            )));
        }
        if !self.uses_disk(id) {
            return Ok(());
        }
        // The first group goes to another file, the copy of the state makes the old file unnecessary, and the next
        // change of the list drops it.
        for _ in 0..RETIRE_ROUNDS {
            self.shared
                .durable(self.shared.submit(Batch::new()).0)
                .await?;
            self.shared.ship_now().await?;
            if !self.uses_disk(id) {
                return Ok(());
            }
            self.shared.clock.sleep(RETIRE_PAUSE).await;
        }
        Err(MetaError::CopiesMissing {
            volume: self.shared.disks.volume,
        })
    }
}

impl super::CommitLog for EnsembleLog {
    fn stop(&self) {
        self.stopped.stop();
    }
}
