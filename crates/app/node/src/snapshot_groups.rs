//! Snapshots of a consistency group: of one instant, of volumes that several nodes own.
//!
//! Owns: which node takes which step when, the time limit of a step, the end of a failed group. Must not know: how a
//! node keeps its snapshots together (`cairn_fs::JointSnapshots`), how nodes reach one another.
//!
//! The coordinating node lets all owners take each step before any owner takes the next one: begin, hold, take, end.
//! It does so with its own volumes, too. Then it records in the map of the cluster that the group is whole, and makes
//! the snapshots visible. This is safe against the loss of any node: a snapshot of a group becomes visible only if
//! the map says that the group is whole, and is deleted if the map does not have the group. Its volume's owner checks
//! that ([`settle`]).

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
use cairn_forward::Forward;
use cairn_fs::{Fs, JointSnapshots, SnapshotError, SnapshotFailure};
use cairn_pool::{ChangeFailure, VolumeService};
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::cluster::ClusterNode;
use crate::control::{Controller, refusal};
use crate::node::NodeCore;
use crate::snapshots::refused;

/// Time limit of one step of one node. The first may wait for other snapshots of its volumes.
const STEP_MAX: Duration = Duration::from_secs(20);
/// A group without any message for so long has failed. From the second step on clients wait for replies.
const BREAK_OFF: Duration = Duration::from_secs(5);

/// Groups that this node takes part in, between two steps.
#[derive(Default)]
pub struct Groups(Arc<Mutex<BTreeMap<u64, Part>>>);

struct Part {
    /// `None`: a step is running.
    joint: Option<JointSnapshots>,
    step_count: u64,
}

impl Groups {
    /// Takes a part out for its next step.
    fn take(&self, group: u64) -> Option<JointSnapshots> {
        self.0.lock().get_mut(&group)?.joint.take()
    }

    /// Keeps a part for its next step, and drops it if no message follows in time.
    fn keep(&self, inner: &NodeCore, group: u64, joint: JointSnapshots) {
        let step_count = {
            let mut parts = self.0.lock();
            let part = parts.entry(group).or_insert(Part {
                joint: None,
                step_count: 0,
            });
            part.step_count += 1;
            part.joint = Some(joint);
            part.step_count
        };
        let parts = Arc::clone(&self.0);
        let clock = Arc::clone(&inner.env.clock);
        let give_up = async move {
            clock.sleep(BREAK_OFF).await;
            let mut parts = parts.lock();
            let part = parts.get(&group);
            let is_idle =
                part.is_some_and(|part| part.step_count == step_count && part.joint.is_some());
            let broken = is_idle.then(|| parts.remove(&group));
            // The part releases its locks outside of this lock.
            drop(parts);
            if broken.is_some() {
                tracing::warn!(
                    group,
                    "a consistency group was not continued: its snapshots are given up"
                );
            }
        };
        inner
            .env
            .spawner
            .spawn("a group of snapshots", Box::pin(give_up));
    }

    fn forget(&self, group: u64) -> Option<Part> {
        self.0.lock().remove(&group)
    }
}

/// The owners of a group's volumes.
pub enum ByOwner {
    /// This node owns all of them.
    Here(Vec<Fs>),
    Of(BTreeMap<NodeId, Vec<VolumeName>>),
}

/// A group that is being taken.
struct Group<'a> {
    controller: &'a Controller,
    cluster: &'a ClusterNode,
    forward: Arc<Forward>,
    number: u64,
    name: String,
    owners: &'a BTreeMap<NodeId, Vec<VolumeName>>,
}

impl Group<'_> {
    async fn ask(&self, node: NodeId, step: GroupStep) -> Result<GroupDone, ControlError> {
        let ask = GroupAsk {
            group: self.number,
            name: self.name.clone(),
            volumes: self.owners.get(&node).cloned().unwrap_or_default(),
            step,
        };
        if node == self.forward.own() {
            return self.controller.group_step(ask).await;
        }
        ask_group(&self.forward, node, &ask, STEP_MAX).await
    }

    /// Sends a step to all nodes concurrently; fails if one of them does.
    async fn ask_all(&self, step: &GroupStep) -> Result<(), ControlError> {
        let asked = self.owners.keys().map(|node| self.ask(*node, step.clone()));
        join_all(asked)
            .await
            .into_iter()
            .try_for_each(|done| done.map(drop))
    }

    /// Takes durable, invisible snapshots on all nodes.
    async fn take(&self, taken: Timestamp) -> Result<(), ControlError> {
        // One after the other: two groups with common volumes do not deadlock.
        for node in self.owners.keys() {
            self.ask(*node, GroupStep::Begin).await?;
        }
        self.ask_all(&GroupStep::Hold).await?;
        let take = GroupStep::Take {
            seconds: taken.seconds,
            nanos: taken.nanos,
        };
        self.ask_all(&take).await?;
        self.ask_all(&GroupStep::End).await
    }

    /// Returns the snapshots that are visible now, and the errors of nodes that did not take the step.
    async fn decide(&self, is_whole: bool) -> (Vec<SnapshotView>, Vec<ControlError>) {
        let asked = self.owners.keys();
        let asked = asked.map(|node| self.ask(*node, GroupStep::Decide { is_whole }));
        let mut seen = Vec::new();
        let mut failed = Vec::new();
        for done in join_all(asked).await {
            match done {
                Ok(done) => seen.extend(done.snapshots),
                Err(error) => failed.push(error),
            }
        }
        (seen, failed)
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
        let mut ids: Vec<(VolumeName, VolumeId)> = Vec::new();
        for name in &create.volumes {
            let volume = state.volume(name);
            let volume = volume.map_err(|error| refusal(ChangeFailure::from(error)))?;
            ids.push((name.clone(), volume.id));
        }
        let all = ids.iter().map(|(_, id)| *id).collect();
        let process = cluster.member.process().ok_or_else(|| {
            ControlError::new(
                ErrorKind::Unavailable,
                "this node has no lease now; try again",
            )
        })?;
        let map = cluster.member.map();
        let number = map.begin_group(process, &all).await.map_err(of_map)?;
        let group = Group {
            controller: self,
            cluster,
            forward: Arc::clone(&cluster.forward),
            number,
            name: create.name.clone(),
            owners: &owners,
        };
        let taken = group.take(self.inner.env.clock.now()).await;
        let whole = match taken {
            Ok(()) => map.decide_group(number).await.map_err(of_map),
            Err(error) => Err(error),
        };
        if let Err(error) = whole
            && let Some(error) = group.give_up(error).await
        {
            return Err(error);
        }
        let (mut seen, failed) = group.decide(true).await;
        let noted = ids.iter().filter(|(name, _)| {
            let mut seen = seen.iter();
            seen.any(|snapshot| snapshot.volume == name.as_str())
        });
        let noted = noted.map(|(_, id)| *id).collect();
        if let Err(error) = map.leave_group(number, &noted).await {
            tracing::warn!(group = number, %error, "a complete consistency group remains in the cluster map");
        }
        if let Some(error) = failed.first() {
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
        seen.sort_by_key(place);
        Ok(GroupSnapshotView { snapshots: seen })
    }

    /// Takes a step of a group that this or another node has begun.
    pub(crate) async fn group_step(&self, ask: GroupAsk) -> Result<GroupDone, ControlError> {
        let groups = &self.inner.groups;
        let GroupAsk {
            group,
            name,
            volumes,
            step,
        } = ask;
        let told = |(index, error): (usize, SnapshotFailure)| {
            let volume = volumes.get(index).map_or("?", VolumeName::as_str);
            refused(&format!("{name} of volume {volume}"), error)
        };
        let broken = || {
            ControlError::new(
                ErrorKind::Unavailable,
                format!(
                    "the snapshots of the group took longer than {} s",
                    BREAK_OFF.as_secs()
                ),
            )
            .hint("try again under less load")
        };
        if step == GroupStep::Begin {
            let all: Vec<Fs> = volumes
                .iter()
                .map(|volume| self.fs_of(volume))
                .collect::<Result<_, _>>()?;
            let all: Vec<&Fs> = all.iter().collect();
            let begun = JointSnapshots::begin(&all, name.as_bytes(), b"").await;
            groups.keep(&self.inner, group, begun.map_err(told)?);
            return Ok(GroupDone::default());
        }
        if let GroupStep::Decide { is_whole } = step {
            groups.forget(group);
            return self.decide_here(group, &name, &volumes, is_whole).await;
        }
        let mut joint = groups.take(group).ok_or_else(broken)?;
        match step {
            GroupStep::Begin | GroupStep::Decide { .. } => {}
            GroupStep::Hold => {
                joint.close().await.map_err(told)?;
                joint.hold();
            }
            GroupStep::Take { seconds, nanos } => {
                let taken = Timestamp::new(seconds, nanos);
                joint.take(taken, group).map_err(told)?;
            }
            GroupStep::End => {
                groups.forget(group);
                joint.end().await.map_err(told)?;
                return Ok(GroupDone::default());
            }
        }
        groups.keep(&self.inner, group, joint);
        Ok(GroupDone::default())
    }

    async fn decide_here(
        &self,
        group: u64,
        name: &str,
        volumes: &[VolumeName],
        is_whole: bool,
    ) -> Result<GroupDone, ControlError> {
        let mut done = GroupDone::default();
        for volume in volumes {
            let fs = self.fs_of(volume)?;
            let told = |error| refused(&format!("{name} of volume {volume}"), error);
            fs.decide_group(group, is_whole).await.map_err(told)?;
            if is_whole {
                let found = fs.snapshot(name.as_bytes());
                let found = found.ok_or_else(|| told(SnapshotError::NotFound.into()))?;
                done.snapshots
                    .push(self.snapshot_view(&fs, &found, false).await?);
            }
        }
        Ok(done)
    }
}

impl Group<'_> {
    /// Gives a failed group up completely. Returns the error to report; `None`: the group is whole, and only the
    /// reply was lost.
    async fn give_up(&self, error: ControlError) -> Option<ControlError> {
        match self.cluster.member.map().give_up_group(self.number).await {
            Ok(true) => {}
            Ok(false) => return None,
            // The decision is unknown. The owners find it in the map.
            Err(error) => {
                tracing::warn!(group = self.number, %error, "it is not known yet whether a consistency group is complete");
                return Some(of_map(error));
            }
        }
        let (_, failed) = self.decide(false).await;
        for error in failed {
            tracing::warn!(group = self.number, %error, "snapshots of an interrupted consistency group are deleted later");
        }
        Some(error)
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
    for (id, service) in inner.pool.services_with_clones() {
        let VolumeService::Serving(fs) = service else {
            continue;
        };
        for group in fs.undecided_groups() {
            if let Err(error) = settle_one(cluster, &fs, id, group).await {
                tracing::warn!(volume = fs.name(), group, %error, "it is not known yet whether a snapshot's consistency group is complete; the server retries");
            }
        }
    }
}

async fn settle_one(
    cluster: &ClusterNode,
    fs: &Fs,
    volume: VolumeId,
    group: u64,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let map = cluster.member.map();
    let is_whole = match map.group(group).await? {
        // Its node is still working on it.
        Some(found) if !found.value.is_whole => return Ok(()),
        found => found.is_some(),
    };
    fs.decide_group(group, is_whole).await?;
    if is_whole {
        map.leave_group(group, &BTreeSet::from([volume])).await?;
    }
    tracing::info!(
        volume = fs.name(),
        group,
        is_whole,
        "a snapshot of an interrupted consistency group is resolved"
    );
    Ok(())
}
