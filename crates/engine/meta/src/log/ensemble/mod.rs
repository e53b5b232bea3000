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

/// A disk is to leave the log after so many groups and copies of the state, with so long between them.
const RETIRE_ROUNDS: usize = 20;
const RETIRE_PAUSE: Duration = Duration::from_millis(500);
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

/// How many copies of log and state there should be; all clones change together, for nodes come and go.
#[derive(Clone, Debug)]
pub struct Copies(Arc<(AtomicUsize, AtomicUsize)>);

impl Copies {
    /// `wanted`: M+1. With fewer than `least` the log waits.
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

    /// Counts from the next group, or the next copy of the state, on.
    pub fn set(&self, wanted: usize, least: usize) {
        let wanted = wanted.clamp(1, SET_COUNT_MAX);
        self.0.0.store(wanted, Ordering::Release);
        self.0.1.store(least.clamp(1, wanted), Ordering::Release);
    }
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
    /// Of log and state.
    pub copies: Copies,
    /// How long a disk is waited for that nobody else can stand in for.
    pub patience: Duration,
}

impl Seat {
    fn name(&self, ensemble: u64) -> ShardName {
        ShardName::of_log(self.volume, ensemble)
    }

    /// A number for a new file; an error when there is none any more in this epoch.
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

    /// Whether a file was made in the term of an earlier owner.
    pub(crate) fn is_of_earlier_owner(&self, number: u64) -> bool {
        number >> COUNTER_BITS < self.epoch.0
    }
}

/// How callers reach the log of an open store.
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

    /// The disk of this node that the state is worked with on.
    pub fn primary_disk(&self) -> DiskId {
        self.shared.disks.get(self.shared.state.disk()).id
    }

    /// Whether a disk may have something that is needed.
    pub fn uses_disk(&self, id: DiskId) -> bool {
        let list = self.list.get();
        let in_log = list.ensembles.iter().any(|part| part.disks.contains(&id));
        let has_state = list.state.is_some_and(|copy| copy.disks.contains(&id));
        in_log || has_state || id == self.primary_disk()
    }

    /// As many copies of log and state as there should be from now on. They are made in the background.
    pub fn set_copies(&self, wanted: usize, least: usize) {
        if (self.copies.wanted(), self.copies.least()) == (wanted, least) {
            return;
        }
        self.copies.set(wanted, least);
        self.shared.ship_in_background();
        // The next group begins another file where that helps.
        self.shared.submit(Batch::new());
    }

    /// Keeps nothing on a disk any more that is no choice of [`LogDisks::choices`] now. When it returns, everything
    /// submitted before is elsewhere. Fails for the disk of the state itself, and while no other disk takes its place.
    pub async fn retire_disk(&self, id: DiskId) -> Result<(), MetaError> {
        if id == self.primary_disk() {
            return Err(MetaError::State(format!(
                "the state is on disk {id}; open the volume on other disks"
            )));
        }
        if !self.uses_disk(id) {
            return Ok(());
        }
        // The first group goes to another file; with the copy of the state the old one is not needed any more; the next
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
