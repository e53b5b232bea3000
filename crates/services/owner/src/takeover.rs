//! The takeover of a volume: in the map first, then log and state.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::{DiskId, Epoch, VolumeId};
use cairn_cluster::map::Process;
use cairn_cluster::{ClusterMap, MapError};
use cairn_meta::{Copies, LogDisks, MetaError, MetaSettings, MetaStore, Recovered, Seat};

use crate::agreement::{MapAgreement, from_map};

/// How well log and state of a volume are kept.
#[derive(Clone, Debug)]
pub struct Protection {
    pub copies: Copies,
    /// How long a disk is waited for that no other can stand in for.
    pub patience: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// [`MapError::Owned`]: another node has the volume, as long as its lease lives.
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(
        "volume {volume}: its log in the cluster map cannot be used: {problem}; restore the map with `cairn cluster recover`"
    )]
    MapList { volume: VolumeId, problem: String },
    /// [`MetaError::LogUnreachable`] and [`MetaError::StateUnreachable`] may pass: try again when disks are back.
    #[error("{error}")]
    Metadata { epoch: Epoch, error: MetaError },
}

/// What a node takes volumes over with.
pub struct Node {
    pub env: Env,
    pub map: ClusterMap,
    /// Its lease is that of the volumes that are taken.
    pub process: Process,
    /// Disks of all nodes.
    pub log_disks: Arc<dyn LogDisks>,
    /// This node's own, for its copy of the state.
    pub disks: Vec<(DiskId, Arc<dyn Disk>)>,
}

impl Node {
    /// Takes a volume over: no earlier owner changes anything of it from here on, and what was acknowledged is there when
    /// this returns. A new volume is made. `above` is an epoch that disks have promised already, if the map was restored.
    pub async fn take_over(
        &self,
        volume: VolumeId,
        above: Epoch,
        protection: Protection,
        settings: MetaSettings,
    ) -> Result<(Arc<MetaStore>, Recovered), TakeoverError> {
        let (env, map) = (&self.env, &self.map);
        let owned = map.take_over(volume, self.process, above).await?;
        let epoch = owned.epoch;
        let list = from_map(&owned.log.log);
        let list = list.map_err(|problem| TakeoverError::MapList { volume, problem })?;
        let seat = Seat {
            volume,
            epoch,
            node: self.process.node,
            revision: owned.log.revision.0,
            list,
            disks: self.log_disks.clone(),
            copies: protection.copies,
            patience: protection.patience,
            agreement: Arc::new(MapAgreement::new(map.clone(), env.clock.clone(), owned)),
        };
        let taken = MetaStore::take_over(env.clone(), settings, seat, self.disks.clone());
        let taken = taken.await;
        taken.map_err(|error| TakeoverError::Metadata { epoch, error })
    }
}
