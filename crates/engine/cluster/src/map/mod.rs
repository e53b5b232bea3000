//! The cluster's map: who is there, which disks there are, who owns a volume, and which disks have its log.
//!
//! Owns: what is in the store, and the one transaction that each change is.
//! Must not know: how the store is reached, what a log holds, the pool, files.
//!
//! Every change compares the cluster's record, so that none is made in a map that was replaced meanwhile.

mod address_pools;
mod cluster;
pub mod copy;
mod follow;
mod groups;
mod high_water;
pub mod keys;
mod nodes;
mod rotation;
mod tokens;
pub mod values;
mod volumes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::{Epoch, VolumeId};
use parking_lot::Mutex;

use crate::coordinator::{
    Compare, Coordinator, CoordinatorError, Entry, ErrorKind, Key, KeyRange, LeaseId, Op, Outcome,
    RangeReply, Revision, Txn, TxnReply, Watcher,
};
use crate::settle::{Mark, Settled, Unsettled, transact_settled};
pub use follow::{Follower, MapView};
pub use high_water::{HighWater, HighWaterStore};
pub use keys::{Keys, NameKind};
pub use nodes::{MEMBER_RESTART_MAX, Machine};
pub use rotation::{RotationNote, RotationOwn, RotationPhase, RotationRecord, RotationStep};
pub use tokens::JoinToken;
pub use values::*;
pub use volumes::{LogAt, Owned, Process, VolumeState};

/// How long a change is sent again while its outcome is not known.
const PATIENCE: Duration = Duration::from_secs(20);
const DELETE_RETRY_WAIT: Duration = Duration::from_millis(200);

/// The map of one cluster, as one node uses it; cheap to clone.
#[derive(Clone)]
pub struct ClusterMap {
    shared: Arc<MapCore>,
}

struct MapCore {
    coordinator: Arc<dyn Coordinator>,
    env: Env,
    keys: Keys,
    cluster: Versioned<ClusterRecord>,
    patience: Duration,
    /// The revision of the last change that was made through this map.
    written: AtomicU64,
    /// The highest state of the map that was seen, and where it is remembered.
    seen: Mutex<high_water::HighWaterState>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error(transparent)]
    Coordinator(CoordinatorError),
    /// Nothing that rests on the change may be acknowledged.
    #[error(
        "it is unknown whether a change of the cluster map was made ({0}); this is settled once etcd can be reached again"
    )]
    Unknown(CoordinatorError),
    #[error(
        "{what} at {key} in etcd is damaged: {problem}; restore the map with `cairn cluster recover`"
    )]
    Damaged {
        key: Key,
        what: &'static str,
        problem: String,
    },
    #[error(
        "{what} at {key} in etcd has format {format}, which a newer Cairn wrote; upgrade this node"
    )]
    TooNew {
        key: Key,
        what: &'static str,
        format: u32,
    },
    #[error("{what} at {key} would be invalid: {problem}")]
    Invalid {
        key: Key,
        what: &'static str,
        problem: String,
    },
    #[error("{what} is not in the cluster map ({key})")]
    NotFound { key: Key, what: &'static str },
    #[error("{what} is already in the cluster map ({key}); choose another one")]
    Exists { key: Key, what: &'static str },
    /// Somebody else changed it meanwhile: read it again and decide anew.
    #[error("somebody else changed {what} at {key} meanwhile; try again")]
    Changed { key: Key, what: &'static str },
    /// Stop: somebody else owns the volume, or has a later state of its log.
    #[error("this node no longer owns volume {volume} in epoch {epoch}: the map has epoch {found}")]
    Fenced {
        volume: VolumeId,
        epoch: Epoch,
        found: Epoch,
    },
    #[error("volume {volume} has an owner that is alive: node {}", owner.node)]
    Owned {
        volume: VolumeId,
        owner: OwnerRecord,
    },
    #[error(
        "etcd has an older state of the cluster map than this node has seen (etcd {found}, this node {seen}): \
         it was restored from an old backup. Restore a newer one, or accept this one with `cairn cluster accept-restored`"
    )]
    WentBack { found: HighWater, seen: HighWater },
    #[error(
        "the cluster map was replaced while this node used it (it is of {found} now); restart this node"
    )]
    Replaced { found: HighWater },
    #[error(
        "this node belongs to cluster {ours}, but the map in etcd is of cluster {theirs}; check the addresses of etcd and the cluster's name"
    )]
    OtherCluster { ours: ClusterId, theirs: ClusterId },
    #[error("the highest state of the map that this node saw could not be kept: {0}")]
    HighWater(String),
    #[error("the token is not valid: {0}")]
    Token(&'static str),
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapErrorKind {
    Retry,
    /// Read again, decide again.
    Changed,
    /// Stop acting as the owner.
    Fenced,
    /// Settle it before anything is acknowledged.
    Unknown,
    NotFound,
    BadRequest,
    NeedsOperator,
}

impl MapError {
    pub fn kind(&self) -> MapErrorKind {
        match self {
            Self::Coordinator(error) => match error.kind() {
                ErrorKind::Retry => MapErrorKind::Retry,
                ErrorKind::NeedsOperator => MapErrorKind::NeedsOperator,
                // The lease that a change needs has ended.
                ErrorKind::NotFound => MapErrorKind::Fenced,
                ErrorKind::BadRequest => MapErrorKind::BadRequest,
            },
            Self::Unknown(_) => MapErrorKind::Unknown,
            Self::Damaged { .. }
            | Self::TooNew { .. }
            | Self::WentBack { .. }
            | Self::Replaced { .. }
            | Self::OtherCluster { .. }
            | Self::HighWater(_) => MapErrorKind::NeedsOperator,
            Self::Invalid { .. } | Self::Exists { .. } | Self::Token(_) => MapErrorKind::BadRequest,
            Self::NotFound { .. } => MapErrorKind::NotFound,
            Self::Changed { .. } | Self::Owned { .. } => MapErrorKind::Changed,
            Self::Fenced { .. } => MapErrorKind::Fenced,
        }
    }
}

impl From<CoordinatorError> for MapError {
    fn from(error: CoordinatorError) -> Self {
        Self::Coordinator(error)
    }
}

impl ClusterMap {
    pub fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    pub fn cluster(&self) -> &ClusterRecord {
        &self.shared.cluster.value
    }

    /// Watches keys of the map; what was read at a revision goes on with the next one.
    pub fn watch(&self, range: KeyRange, from: Revision) -> Box<dyn Watcher> {
        self.shared.coordinator.watch(range, from)
    }

    /// The revision of the last change that was made through this map: who follows it sees that, too, sooner or later.
    pub fn written(&self) -> Revision {
        Revision(self.shared.written.load(Ordering::Acquire))
    }

    fn wrote(&self, revision: Revision) {
        self.shared.written.fetch_max(revision.0, Ordering::AcqRel);
    }

    async fn read(&self, range: KeyRange) -> Result<RangeReply, MapError> {
        let floor = self.floor();
        let reply = self.shared.coordinator.range(range).await?;
        self.saw(floor, reply.revision)?;
        Ok(reply)
    }

    async fn read_one<T: Value>(&self, key: Key) -> Result<Option<Versioned<T>>, MapError> {
        let entry = self.read(KeyRange::One(key)).await?.one();
        entry.as_ref().map(decode).transpose()
    }

    /// Reads all values of one kind, and the revision that a watch goes on from.
    async fn read_all<T: Value>(
        &self,
        range: KeyRange,
    ) -> Result<(Vec<Versioned<T>>, Revision), MapError> {
        let reply = self.read(range).await?;
        let values = reply.entries.iter().map(decode).collect::<Result<_, _>>()?;
        Ok((values, reply.revision))
    }

    /// Makes a change, for certain: see [`transact_settled`]. The reads of a refusal are those of `txn.otherwise` and then
    /// the mark's key.
    async fn change(&self, mut txn: Txn, mark: &Mark) -> Result<Settled, MapError> {
        let MapCore {
            coordinator,
            env,
            cluster,
            patience,
            ..
        } = &*self.shared;
        let cluster_key = self.keys().cluster();
        txn.when
            .push(Compare::Modified(cluster_key.clone(), cluster.revision));
        txn.otherwise.insert(0, KeyRange::One(cluster_key));
        let floor = self.floor();
        let settled = transact_settled(&**coordinator, env, txn, mark, *patience).await;
        match settled {
            Ok(Settled::Done(reply)) => {
                self.wrote(reply.revision);
                self.saw(floor, reply.revision)?;
                Ok(Settled::Done(reply))
            }
            Ok(Settled::DoneUnseen(entry)) => {
                self.wrote(entry.modified);
                self.saw(floor, entry.modified)?;
                Ok(Settled::DoneUnseen(entry))
            }
            Ok(Settled::Refused(mut reply)) => {
                self.saw(floor, reply.revision)?;
                if !reply.reads.is_empty() {
                    let found = reply.reads.remove(0);
                    self.check_cluster(found.first(), reply.revision)?;
                }
                Ok(Settled::Refused(reply))
            }
            Err(Unsettled::NotDone(error)) => Err(MapError::Coordinator(error)),
            Err(Unsettled::Unknown(error)) => Err(MapError::Unknown(error)),
        }
    }

    /// Writes a value in place of the one of a revision, [`Revision::ABSENT`] for none, together with other steps; refused
    /// if it was changed since. The reads of a refusal are those of `txn.otherwise` and then the key's.
    async fn write<T: Value>(
        &self,
        key: Key,
        replaced: Revision,
        value: &T,
        txn: Txn,
    ) -> Result<Written, MapError> {
        self.write_leased(key, replaced, value, None, txn).await
    }

    async fn write_leased<T: Value>(
        &self,
        key: Key,
        replaced: Revision,
        value: &T,
        lease: Option<LeaseId>,
        mut txn: Txn,
    ) -> Result<Written, MapError> {
        let bytes = encode(&key, value)?;
        let mark = Mark {
            key: key.clone(),
            value: bytes.clone(),
        };
        txn.when.push(Compare::Modified(key.clone(), replaced));
        txn.then.push(Op::Put {
            key,
            value: bytes,
            lease,
        });
        Ok(match self.change(txn, &mark).await? {
            Settled::Done(_) | Settled::DoneUnseen(_) => Written::Done,
            Settled::Refused(reply) => Written::Refused(reply),
        })
    }

    /// Deletes keys whose revisions `txn` compares. To delete them again does nothing, so that a transaction of unknown
    /// outcome is simply sent again; `key` is one of them.
    async fn delete(&self, mut txn: Txn, key: Key, what: &'static str) -> Result<(), MapError> {
        let cluster = &self.shared.cluster;
        let cluster_key = self.keys().cluster();
        txn.when
            .push(Compare::Modified(cluster_key.clone(), cluster.revision));
        txn.otherwise = vec![KeyRange::One(cluster_key), KeyRange::One(key.clone())];
        let clock = &self.shared.env.clock;
        let deadline = clock.boottime().saturating_add(self.shared.patience);
        let mut maybe_done = false;
        loop {
            let floor = self.floor();
            let error = match self.shared.coordinator.transact(txn.clone()).await {
                Outcome::Done(reply) => {
                    self.wrote(reply.revision);
                    return self.saw(floor, reply.revision);
                }
                Outcome::Refused(reply) => {
                    self.saw(floor, reply.revision)?;
                    self.check_cluster(reply.read_one(0), reply.revision)?;
                    return match reply.read_one(1) {
                        None if maybe_done => Ok(()),
                        _ => Err(MapError::Changed { key, what }),
                    };
                }
                Outcome::Failed(error) if !maybe_done => return Err(error.into()),
                Outcome::Failed(error) => error,
                Outcome::Unknown(error) => {
                    maybe_done = true;
                    error
                }
            };
            if clock.boottime() >= deadline {
                return Err(MapError::Unknown(error));
            }
            clock.sleep(DELETE_RETRY_WAIT).await;
        }
    }

    /// Deletes a value if it is still the one that was read.
    async fn delete_one(
        &self,
        key: Key,
        revision: Revision,
        what: &'static str,
    ) -> Result<(), MapError> {
        let txn = Txn {
            when: vec![Compare::Modified(key.clone(), revision)],
            then: vec![Op::delete(key.clone())],
            otherwise: Vec::new(),
        };
        self.delete(txn, key, what).await
    }

    fn nonce(&self) -> ChangeNonce {
        ChangeNonce(self.shared.env.entropy.u128())
    }
}

/// How a write ended.
enum Written {
    Done,
    Refused(TxnReply),
}

impl Written {
    /// Of a write that only another one's could have been in the way of.
    fn or_changed(self, key: Key, what: &'static str) -> Result<(), MapError> {
        match self {
            Self::Done => Ok(()),
            Self::Refused(_) => Err(MapError::Changed { key, what }),
        }
    }
}

/// The entry of a reading that must have found it.
fn found<'e>(
    entry: Option<&'e Entry>,
    key: &Key,
    what: &'static str,
) -> Result<&'e Entry, MapError> {
    entry.ok_or_else(|| MapError::NotFound {
        key: key.clone(),
        what,
    })
}
