//! Snapshots of a consistency group: of one instant, of volumes that several nodes own.
//!
//! Owns: the messages to other nodes, the record of a group in the map of the cluster, the volumes of this node. Must not
//! know: which step comes when, what becomes of a group (`cairn_snapshots::group`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::api::ErrorKind;
use cairn_admin::groups::{GroupAsk, GroupDone, GroupStep};
use cairn_admin::snapshots::{GroupSnapshotCreate, GroupSnapshotView, SnapshotView};
use cairn_admin::{ControlError, ask_group};
use cairn_base::{NodeId, Timestamp, VolumeId};
use cairn_cluster::MapError;
use cairn_config::VolumeName;
use cairn_fs::{Fs, JointSnapshots, SnapshotError, SnapshotFailure};
use cairn_pool::{ChangeFailure, VolumeService};
use cairn_snapshots::group::{
    BREAK_OFF, Coordination, Outcome, Parts, Step, Undecided, Volumes, settle as settle_group,
    take_group,
};

use crate::cluster::ClusterNode;
use crate::control::{Controller, refusal};
use crate::node::NodeCore;
use crate::snapshots::refused;

/// Time limit of one step of one node. The first may wait for other snapshots of its volumes.
const STEP_MAX: Duration = Duration::from_secs(20);

/// Groups that this node takes part in.
pub type Groups = Parts<JointSnapshots>;

/// The owners of a group's volumes.
pub enum ByOwner {
    /// This node owns all of them.
    Here(Vec<Fs>),
    Of(BTreeMap<NodeId, Vec<VolumeName>>),
}

/// A group that this node coordinates.
struct Coordinator<'a> {
    controller: &'a Controller,
    cluster: &'a ClusterNode,
    name: String,
    owners: BTreeMap<NodeId, Vec<VolumeName>>,
    ids: BTreeMap<VolumeName, VolumeId>,
}

impl Coordination for Coordinator<'_> {
    type Shown = SnapshotView;
    type Error = ControlError;

    async fn begin(&self) -> Result<u64, ControlError> {
        let process = self.cluster.member.process().ok_or_else(|| {
            ControlError::new(
                ErrorKind::Unavailable,
                "this node has no lease now; try again",
            )
        })?;
        let all = self.ids.values().copied().collect();
        let map = self.cluster.member.map();
        map.begin_group(process, &all).await.map_err(of_map)
    }

    async fn ask(
        &self,
        group: u64,
        node: NodeId,
        step: Step,
    ) -> Result<Vec<(VolumeId, SnapshotView)>, ControlError> {
        let ask = GroupAsk {
            group,
            name: self.name.clone(),
            volumes: self.owners.get(&node).cloned().unwrap_or_default(),
            step: told(step),
        };
        let forward = &self.cluster.forward;
        let done = match node == forward.own() {
            true => self.controller.group_step(ask).await?,
            false => ask_group(forward, node, &ask, STEP_MAX).await?,
        };
        let shown = done.snapshots.into_iter().filter_map(|snapshot| {
            let mut ids = self.ids.iter();
            let (_, id) = ids.find(|(name, _)| name.as_str() == snapshot.volume)?;
            Some((*id, snapshot))
        });
        Ok(shown.collect())
    }

    async fn record_whole(&self, group: u64) -> Result<(), ControlError> {
        let map = self.cluster.member.map();
        map.decide_group(group).await.map_err(of_map)
    }

    async fn give_up(&self, group: u64) -> Result<bool, ControlError> {
        let map = self.cluster.member.map();
        map.give_up_group(group).await.map_err(of_map)
    }

    async fn leave(&self, group: u64, volumes: &BTreeSet<VolumeId>) -> Result<(), ControlError> {
        let map = self.cluster.member.map();
        map.leave_group(group, volumes).await.map_err(of_map)
    }
}

/// A step as nodes tell it to one another.
fn told(step: Step) -> GroupStep {
    match step {
        Step::Begin => GroupStep::Begin,
        Step::Hold => GroupStep::Hold,
        Step::Take {
            taken: Timestamp { seconds, nanos },
        } => GroupStep::Take { seconds, nanos },
        Step::End => GroupStep::End,
        Step::Decide { is_whole } => GroupStep::Decide { is_whole },
    }
}

fn heard(step: GroupStep) -> Step {
    match step {
        GroupStep::Begin => Step::Begin,
        GroupStep::Hold => Step::Hold,
        GroupStep::Take { seconds, nanos } => Step::Take {
            taken: Timestamp::new(seconds, nanos),
        },
        GroupStep::End => Step::End,
        GroupStep::Decide { is_whole } => Step::Decide { is_whole },
    }
}

/// Volumes of this node in a group.
struct OwnVolumes<'a> {
    controller: &'a Controller,
    name: String,
    volumes: Vec<VolumeName>,
}

impl Volumes for OwnVolumes<'_> {
    type Part = JointSnapshots;
    type Shown = SnapshotView;
    type Error = ControlError;

    async fn begin(&self) -> Result<JointSnapshots, ControlError> {
        let all = self.volumes.iter();
        let all: Vec<Fs> = all
            .map(|volume| self.controller.fs_of(volume))
            .collect::<Result<_, _>>()?;
        let all: Vec<&Fs> = all.iter().collect();
        let begun = JointSnapshots::begin(&all, self.name.as_bytes(), b"").await;
        begun.map_err(|error| self.refused(error))
    }

    async fn decide(&self, group: u64, is_whole: bool) -> Result<Vec<SnapshotView>, ControlError> {
        let (controller, name) = (self.controller, &self.name);
        let mut shown = Vec::new();
        for volume in &self.volumes {
            let fs = controller.fs_of(volume)?;
            let told = |error| refused(&format!("{name} of volume {volume}"), error);
            fs.decide_group(group, is_whole).await.map_err(told)?;
            if is_whole {
                let found = fs.snapshot(name.as_bytes());
                let found = found.ok_or_else(|| told(SnapshotError::NotFound.into()))?;
                shown.push(controller.snapshot_view(&fs, &found, false).await?);
            }
        }
        Ok(shown)
    }

    fn refused(&self, (index, error): (usize, SnapshotFailure)) -> ControlError {
        let volume = self.volumes.get(index).map_or("?", VolumeName::as_str);
        refused(&format!("{} of volume {volume}", self.name), error)
    }

    fn broken(&self) -> ControlError {
        ControlError::new(
            ErrorKind::Unavailable,
            format!(
                "the snapshots of the group took longer than {} s",
                BREAK_OFF.as_secs()
            ),
        )
        .hint("try again under less load")
    }
}

impl Controller {
    /// The owners of volumes. Fails if no node serves one of them, and as [`ControlError::at`] if one other node has
    /// all of them.
    pub(crate) fn by_owner(&self, volumes: &[VolumeName]) -> Result<ByOwner, ControlError> {
        let mut here = Vec::new();
        let mut owners: BTreeMap<NodeId, Vec<VolumeName>> = BTreeMap::new();
        let mut elsewhere = None;
        for volume in volumes {
            match (self.fs_of(volume), self.own_node()) {
                (Ok(fs), own) => {
                    here.push(fs);
                    if let Some(own) = own {
                        owners.entry(own).or_default().push(volume.clone());
                    }
                }
                (Err(error), _) => {
                    let Some(node) = error.at else {
                        return Err(error);
                    };
                    owners.entry(node).or_default().push(volume.clone());
                    elsewhere = Some(error);
                }
            }
        }
        match elsewhere {
            None => Ok(ByOwner::Here(here)),
            // That node takes them as its own.
            Some(error) if owners.len() == 1 => Err(error),
            Some(_) => Ok(ByOwner::Of(owners)),
        }
    }

    fn own_node(&self) -> Option<NodeId> {
        let cluster = self.inner.cluster.as_ref()?;
        Some(cluster.member.node())
    }

    /// Takes snapshots of one instant of volumes that several nodes own: all of them or none.
    pub(crate) async fn take_group(
        &self,
        create: GroupSnapshotCreate,
        owners: BTreeMap<NodeId, Vec<VolumeName>>,
    ) -> Result<GroupSnapshotView, ControlError> {
        let Some(cluster) = &self.inner.cluster else {
            return Err(ControlError::new(
                ErrorKind::Internal,
                "volumes of other nodes need a cluster",
            ));
        };
        let state = self.inner.pool.state();
        let mut ids = BTreeMap::new();
        for name in &create.volumes {
            let volume = state.volume(name);
            let volume = volume.map_err(|error| refusal(ChangeFailure::from(error)))?;
            ids.insert(name.clone(), volume.id);
        }
        let nodes = owners.keys().copied().collect();
        let coordinator = Coordinator {
            controller: self,
            cluster,
            name: create.name.clone(),
            owners,
            ids,
        };
        let taken = self.inner.env.clock.now();
        let (mut shown, late) = match take_group(&coordinator, &nodes, taken).await {
            Outcome::Whole { shown, late } => (shown, late),
            Outcome::Nothing(error) | Outcome::Unknown(error) => return Err(error),
        };
        if let Some(error) = late.first() {
            return Err(ControlError::new(
                ErrorKind::Unavailable,
                format!(
                    "all volumes have snapshot {}, but some do not show it yet: {error}",
                    create.name
                ),
            )
            .hint("the snapshot appears once that node, or the next owner of its volumes, answers; do not take it again"));
        }
        let place = |snapshot: &SnapshotView| {
            let mut names = create.volumes.iter();
            names.position(|name| name.as_str() == snapshot.volume)
        };
        shown.sort_by_key(place);
        Ok(GroupSnapshotView { snapshots: shown })
    }

    /// Takes a step of a group that this or another node has begun.
    pub(crate) async fn group_step(&self, ask: GroupAsk) -> Result<GroupDone, ControlError> {
        let GroupAsk {
            group,
            name,
            volumes,
            step,
        } = ask;
        let own = OwnVolumes {
            controller: self,
            name,
            volumes,
        };
        let groups = &self.inner.snapshots.groups;
        let taken = groups.step(&self.inner.env, group, heard(step), &own).await;
        Ok(GroupDone { snapshots: taken? })
    }
}

fn of_map(error: MapError) -> ControlError {
    ControlError::new(
        ErrorKind::Unavailable,
        format!("the consistency group could not be recorded: {error}"),
    )
    .hint("check whether the snapshots exist before you take them again; `cairn cluster status` shows the state of the cluster")
}

/// Decides on the snapshots that are left here of unfinished groups.
pub async fn settle(inner: &NodeCore) {
    let Some(cluster) = &inner.cluster else {
        return;
    };
    for (volume, service) in inner.pool.services_with_clones() {
        let VolumeService::Serving(fs) = service else {
            continue;
        };
        for group in fs.undecided_groups() {
            let left = Left {
                cluster,
                fs: &fs,
                volume,
                group,
            };
            match settle_group(&left).await {
                Ok(None) => {}
                Ok(Some(is_whole)) => {
                    tracing::info!(
                        volume = fs.name(),
                        group,
                        is_whole,
                        "a snapshot of an interrupted consistency group is resolved"
                    );
                }
                Err(error) => {
                    tracing::warn!(volume = fs.name(), group, %error, "it is not known yet whether a snapshot's consistency group is complete; the server retries");
                }
            }
        }
    }
}

/// A snapshot that is left of an unfinished group.
struct Left<'a> {
    cluster: &'a Arc<ClusterNode>,
    fs: &'a Fs,
    volume: VolumeId,
    group: u64,
}

impl Undecided for Left<'_> {
    type Error = Box<dyn std::error::Error + Send + Sync>;

    async fn is_whole(&self) -> Result<Option<bool>, Self::Error> {
        let found = self.cluster.member.map().group(self.group).await?;
        Ok(found.map(|found| found.value.is_whole))
    }

    async fn decide(&self, is_whole: bool) -> Result<(), Self::Error> {
        self.fs.decide_group(self.group, is_whole).await?;
        Ok(())
    }

    async fn leave(&self) -> Result<(), Self::Error> {
        let volumes = BTreeSet::from([self.volume]);
        let map = self.cluster.member.map();
        map.leave_group(self.group, &volumes).await?;
        Ok(())
    }
}
