//! What people and scripts see of a cluster.
//!
//! Owns: how the map, and what this node reaches, become a view. Must not know: how either is kept.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use cairn_admin::api::{
    ClusterDiskView, ClusterEtcdMember, ClusterEtcdView, ClusterNodeView, ClusterSurvives,
    ClusterView, ClusterVolumeView, NodeDrainView, VolumeAddressView,
};
use cairn_base::{LogPosition, NodeId, VolumeId};
use cairn_cluster::map::{Ensemble, MapView, NodeRecord, OnNodeRecord, VolumeLog, VolumeState};
use cairn_pool::{Condition, wrapped_keys};
use cairn_trust::EtcdSource;

use crate::cluster::ClusterNode;
use crate::node::Inner;

/// Of a volume's first change.
const FIRST_POSITION: LogPosition = LogPosition(1);

pub async fn of(inner: &Inner, cluster: &ClusterNode) -> ClusterView {
    let view = cluster.member.view();
    let membership = cluster.membership.lock().clone();
    let etcd = etcd(cluster, matches!(membership.etcd, EtcdSource::Own { .. })).await;
    let name = |node: NodeId| match view.nodes.get(&node) {
        Some(record) => record.value.name.clone(),
        None => node.to_string(),
    };
    let volumes: Vec<ClusterVolumeView> = view
        .volumes
        .values()
        .map(|state| ClusterVolumeView {
            id: state.record.value.id.0,
            name: state.record.value.head().to_owned(),
            owner: state.owner.as_ref().map(|owner| name(owner.value.node)),
            epoch: state.epoch.value.epoch.0,
            log_copies: log_copies(&state.log.log),
            state_copies: state
                .log
                .log
                .state
                .as_ref()
                .map_or(0, |copy| copy.disks.len()),
            address: address(inner, state),
        })
        .collect();
    let survives = survives(inner, &view, &etcd);
    ClusterView {
        cluster: membership.cluster_name,
        id: membership.cluster.to_string(),
        node: membership.node_name,
        has_lease: cluster.member.lease_is_valid(),
        nodes: nodes(inner, cluster, &view, &etcd),
        warnings: warnings(inner, &view, &volumes),
        volumes,
        survives,
        etcd,
    }
}

fn address(inner: &Inner, state: &VolumeState) -> Option<VolumeAddressView> {
    let record = &state.address.as_ref()?.value;
    let addresses = inner.addresses.get();
    Some(VolumeAddressView {
        address: format!("{}/{}", record.address, record.prefix_len),
        interface: record.interface.clone(),
        problem: addresses.and_then(|addresses| addresses.problem(state.record.value.id)),
    })
}

/// The node that has an address for good.
pub fn node_at(view: &MapView, address: IpAddr) -> Option<String> {
    let is_it = |text: &str| {
        let host = text.parse::<SocketAddr>().map(|at| at.ip());
        host.or_else(|_| text.parse::<IpAddr>()) == Ok(address)
    };
    let mut nodes = view.nodes.values().map(|node| &node.value);
    let found = nodes.find(|node| is_it(&node.internal_address) || is_it(&node.external_address));
    found.map(|node| node.name.clone())
}

/// So many copies there are of all that was acknowledged and that a new owner needs: of each part of the log that the copies
/// of the state do not have, and of the state where the log begins later than the volume.
fn log_copies(log: &VolumeLog) -> usize {
    let applied = log.state.as_ref().map(|state| state.applied);
    // `to` is the first position behind a part.
    let is_needed = |part: &&Ensemble| match (part.to, applied) {
        (Some(to), Some(applied)) => to.0 > applied.0 + 1,
        _ => true,
    };
    let mut needed = log.ensembles.iter().filter(is_needed).peekable();
    let begins_late = needed
        .peek()
        .is_some_and(|first| first.from > FIRST_POSITION);
    // Beside the owner's own.
    let of_state = 1 + log.state.as_ref().map_or(0, |state| state.disks.len());
    let of_log = needed.map(|part| part.disks.len()).min().unwrap_or(0);
    match begins_late {
        true => of_log.min(of_state),
        false => of_log,
    }
}

/// What all volumes have on a node, as their owners told last.
pub fn bytes_on(view: &MapView, node: NodeId) -> u64 {
    on_node(view, node).map(|(_, on_it)| on_it.bytes).sum()
}

fn on_node(
    view: &MapView,
    node: NodeId,
) -> impl Iterator<Item = (&VolumeState, OnNodeRecord)> + '_ {
    view.volumes.values().filter_map(move |state| {
        let usage = &state.usage.as_ref()?.value;
        Some((&**state, *usage.nodes.get(&node)?))
    })
}

/// How far a node that is to leave is on its way.
fn drain(view: &MapView, etcd: &ClusterEtcdView, node: &NodeRecord) -> Option<NodeDrainView> {
    if !node.draining {
        return None;
    }
    let name = |state: &VolumeState| state.record.value.head().to_owned();
    let volumes = || view.volumes.values().map(|state| &**state);
    let owned = volumes().filter(|state| {
        let owner = state.owner.as_ref();
        owner.is_some_and(|owner| owner.value.node == node.id)
    });
    let disks = || {
        let disks = view.disks.values();
        disks.filter(|disk| disk.value.node == node.id)
    };
    // What a removal asks, too.
    let has_left = |state: &VolumeState| {
        disks().all(|disk| {
            let left = state.left.as_ref();
            let noted = left.and_then(|left| left.value.disks.get(&disk.value.id));
            noted == Some(&disk.revision.0)
        })
    };
    let mut shown = NodeDrainView {
        replaced_by: node.replaced_by.map(|by| match view.nodes.get(&by) {
            Some(record) => record.value.name.clone(),
            None => by.to_string(),
        }),
        volumes_owned: owned.map(name).collect(),
        volumes_left: volumes()
            .filter(|state| !has_left(state))
            .map(name)
            .collect(),
        etcd_member: etcd.own && etcd.members.iter().any(|member| member.name == node.name),
        ..NodeDrainView::default()
    };
    // Each owner moves what its volumes have; all do so at the same time.
    let mut of_owners: BTreeMap<Option<NodeId>, (u64, u64)> = BTreeMap::new();
    for (state, on_it) in on_node(view, node.id).filter(|(state, _)| !has_left(state)) {
        shown.segments_left += on_it.shards;
        shown.bytes_left += on_it.bytes;
        let owner = state.owner.as_ref().map(|owner| owner.value.node);
        let usage = state.usage.as_ref().map(|usage| &usage.value);
        let (bytes, speed) = of_owners.entry(owner).or_default();
        *bytes += on_it.bytes;
        *speed = usage.map_or(0, |usage| usage.bytes_per_second);
        for problem in usage.into_iter().flat_map(|usage| &usage.problems) {
            if !shown.problems.contains(problem) {
                shown.problems.push(problem.clone());
            }
        }
    }
    let seconds = of_owners
        .into_values()
        .filter(|(bytes, _)| *bytes > 0)
        .map(|(bytes, speed)| bytes.checked_div(speed))
        // Of one that does not tell nobody knows.
        .collect::<Option<Vec<u64>>>();
    shown.seconds_left = seconds.and_then(|seconds| seconds.into_iter().max());
    shown.done =
        shown.volumes_owned.is_empty() && shown.volumes_left.is_empty() && !shown.etcd_member;
    Some(shown)
}

fn nodes(
    inner: &Inner,
    cluster: &ClusterNode,
    view: &MapView,
    etcd: &ClusterEtcdView,
) -> Vec<ClusterNodeView> {
    let peers: BTreeMap<_, _> = cluster
        .member
        .peer_status()
        .into_iter()
        .map(|status| (status.node, status))
        .collect();
    let table = inner.pool.table();
    let own = cluster.member.node();
    let mut nodes: Vec<ClusterNodeView> = view
        .nodes
        .values()
        .map(|record| {
            let record = &record.value;
            let peer = peers.get(&record.id);
            let disks = view.disks.values().map(|disk| &disk.value);
            let disks = disks.filter(|disk| disk.node == record.id);
            ClusterNodeView {
                id: record.id.to_string(),
                name: record.name.clone(),
                internal: record.internal_address.clone(),
                external: record.external_address.clone(),
                alive: view.alive.contains_key(&record.id),
                connected: record.id == own || peer.is_some_and(|peer| peer.is_connected),
                problem: peer.and_then(|peer| peer.problem.clone()),
                drain: drain(view, etcd, record),
                disks: disks
                    .map(|disk| ClusterDiskView {
                        id: disk.id.to_string(),
                        label: disk.label.clone(),
                        state: match table.condition(disk.id) {
                            Condition::Works if disk.draining => "draining",
                            Condition::Works => "ok",
                            Condition::Suspect | Condition::Failed => "failed",
                            Condition::Missing | Condition::Unknown => "missing",
                        }
                        .to_owned(),
                    })
                    .collect(),
            }
        })
        .collect();
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    nodes
}

fn survives(inner: &Inner, view: &MapView, etcd: &ClusterEtcdView) -> ClusterSurvives {
    let of_data = match inner.pool.single_segments() {
        0 => inner.pool.nodes_tolerated_by_all().unwrap_or(0),
        _ => 0,
    };
    let volumes = view.volumes.values();
    let of_logs = volumes.map(|state| log_copies(&state.log.log)).min();
    let of_logs = of_logs.map_or(of_data, |copies| copies.saturating_sub(1));
    let lost = view
        .nodes
        .keys()
        .filter(|node| !view.alive.contains_key(node));
    // What is lost already was survived.
    let data_nodes = of_data.min(of_logs).saturating_sub(lost.count());
    let of_etcd = match etcd.own {
        true => etcd.members.len().saturating_sub(1) / 2,
        false => usize::MAX,
    };
    // Whoever has no key cannot take over.
    let with_key = |volume: &VolumeId| {
        let alive = view.alive.values();
        alive
            .filter(|node| !node.value.locked.contains(volume))
            .count()
    };
    let encrypted = with_keys(inner);
    let of_keys = encrypted.iter().map(|(volume, _)| with_key(volume)).min();
    let of_keys = of_keys.map_or(usize::MAX, |nodes| nodes.saturating_sub(1));
    ClusterSurvives {
        data_nodes,
        service_nodes: data_nodes.min(of_etcd).min(of_keys),
    }
}

/// Encrypted volumes whose keys were not erased, with their names.
fn with_keys(inner: &Inner) -> Vec<(VolumeId, String)> {
    let state = inner.pool.state();
    wrapped_keys(&state)
        .map(|(volume, _)| (volume.id, state.head_of(volume).name.to_string()))
        .collect()
}

fn warnings(inner: &Inner, view: &MapView, volumes: &[ClusterVolumeView]) -> Vec<String> {
    let mut warnings = Vec::new();
    for volume in volumes {
        if volume.owner.is_none() {
            warnings.push(format!(
                "no node owns volume {}: it is not served",
                volume.name
            ));
        }
        if let Some(cairn_pool::VolumeService::Failed(why)) = view
            .volumes
            .keys()
            .find(|id| id.0 == volume.id)
            .and_then(|id| inner.pool.service(*id))
        {
            warnings.push(format!("volume {}: {why}", volume.name));
        }
        if let Some(address) = &volume.address
            && let Some(problem) = &address.problem
        {
            warnings.push(format!(
                "the address of volume {} is not here: {problem}",
                volume.name
            ));
        }
        if volume.log_copies == 1 && view.nodes.len() > 1 {
            warnings.push(format!(
                "the log of volume {} has one copy: the loss of its node loses what was acknowledged",
                volume.name
            ));
        }
    }
    for (id, volume) in with_keys(inner) {
        let alive = view.alive.values();
        for there in alive.filter(|node| node.value.locked.contains(&id)) {
            let node = view.nodes.get(&there.value.node);
            let node =
                node.map_or_else(|| there.value.node.to_string(), |it| it.value.name.clone());
            warnings.push(format!(
                "node {node} has no master key for volume {volume} and cannot take it over: give it the keys of the others \
                 (`cairn key list`)"
            ));
        }
    }
    let single = inner.pool.single_segments();
    if single > 0 {
        warnings.push(format!(
            "{single} segments of volumes that this node owns have one copy and no parity, since one disk alone could be \
             written to: the loss of its node loses what was acknowledged"
        ));
    }
    for key in &view.damaged {
        warnings.push(format!(
            "{key} in etcd cannot be read: restore etcd from a backup"
        ));
    }
    warnings
}

async fn etcd(cluster: &ClusterNode, own: bool) -> ClusterEtcdView {
    match cluster.etcd_members().await {
        Ok(members) => ClusterEtcdView {
            own,
            members: members
                .into_iter()
                .map(|(name, url)| ClusterEtcdMember { name, url })
                .collect(),
            problem: None,
        },
        Err(problem) => ClusterEtcdView {
            own,
            members: Vec::new(),
            problem: Some(problem),
        },
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{DiskId, Epoch};
    use cairn_cluster::map::{EnsembleId, StateAt};

    use super::*;

    fn id(counter: u32) -> EnsembleId {
        EnsembleId {
            epoch: Epoch(1),
            counter,
        }
    }

    fn disks(count: usize) -> Vec<DiskId> {
        (0..count as u128).map(DiskId).collect()
    }

    /// Parts of a log, each with its first position, the one behind it, and how many disks have it; a copy of the state up to
    /// a position, and how many disks have that.
    fn copies(parts: &[(u64, Option<u64>, usize)], state: Option<(u64, usize)>) -> usize {
        let ensembles = (1..)
            .zip(parts)
            .map(|(counter, (from, to, count))| Ensemble {
                id: id(counter),
                from: LogPosition(*from),
                to: to.map(LogPosition),
                disks: disks(*count),
            });
        let state = state.map(|(applied, count)| StateAt {
            id: id(100),
            len_bytes: 1,
            applied: LogPosition(applied),
            disks: disks(count),
        });
        log_copies(&VolumeLog {
            ensembles: ensembles.collect(),
            state,
        })
    }

    #[test]
    fn a_log_has_as_many_copies_as_the_part_with_the_fewest() {
        for (parts, state, want) in [
            (&[][..], None, 0),
            (&[(1, None, 3)][..], None, 3),
            // What was written before others joined is on the first node alone.
            (&[(1, Some(50), 1), (50, None, 2)], None, 1),
            // It still is: the state has less.
            (&[(1, Some(50), 1), (50, None, 2)], Some((48, 1)), 1),
            // The state has all of it, on another node, too.
            (&[(1, Some(50), 1), (50, None, 2)], Some((49, 1)), 2),
            // A server that became the first node: nobody else has its state.
            (&[(1000, None, 2)], None, 1),
            (&[(1000, None, 2)], Some((1200, 2)), 2),
            (&[(1000, None, 3)], Some((1200, 1)), 2),
        ] {
            assert_eq!(copies(parts, state), want, "{parts:?} {state:?}");
        }
    }
}
