//! The view of a cluster for people and scripts.
//!
//! Owns: how the map, and the reachability from this node, become a view. Must not know: how either is kept.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use cairn_admin::cluster::{
    AuthorityPhase, AuthorityRotation, AuthorityView, AuthorityWait, ClusterDiskView,
    ClusterEtcdMember, ClusterEtcdView, ClusterNodeView, ClusterSurvives, ClusterView,
    ClusterVolumeView, NodeDrainView, VolumeAddressView,
};
use cairn_base::{DiskId, LogPosition, NodeId, VolumeId};
use cairn_cluster::map::{
    Ensemble, MapView, NodeRecord, OnNodeRecord, RotationPhase, VolumeLog, VolumeState,
    WEIGHT_NORMAL,
};
use cairn_pool::health::Judgement;
use cairn_pool::health::observed::{
    ObservedCluster, ObservedEtcd, ObservedLog, ObservedMember, ObservedNode,
};
use cairn_pool::{Condition, wrapped_keys};
use cairn_trust::EtcdSource;

use crate::cluster::rotation::{AuthorityProgress, RotationProgress};
use crate::cluster::{ClusterNode, EtcdHealth};
use crate::node::NodeCore;

/// The position of a volume's first change.
const FIRST_POSITION: LogPosition = LogPosition(1);

/// The authorities of nodes' certificates, and the progress of a rotation.
pub fn authority(progress: &AuthorityProgress) -> AuthorityView {
    AuthorityView {
        authority: progress.issuing.to_string(),
        rotation: progress.rotation.as_ref().map(rotation),
    }
}

fn rotation(progress: &RotationProgress) -> AuthorityRotation {
    let waits = progress.awaited.iter().map(|awaited| AuthorityWait {
        node: awaited.node.clone(),
        away: awaited.is_away,
        what: awaited.what.to_owned(),
    });
    AuthorityRotation {
        phase: match progress.record.phase {
            RotationPhase::Make => AuthorityPhase::Make,
            RotationPhase::Trust => AuthorityPhase::Trust,
            RotationPhase::Renew => AuthorityPhase::Renew,
            RotationPhase::Drop => AuthorityPhase::Drop,
            RotationPhase::Done => AuthorityPhase::Done,
        },
        begun_seconds: progress.record.begun.seconds,
        ended_seconds: progress.record.ended.map(|ended| ended.seconds),
        old: progress.old.to_string(),
        new: progress.new.map(|new| new.to_string()),
        waits_for: waits.collect(),
        problem: progress.problem.clone(),
    }
}

/// The cluster as this node sees it. `judgement`: of everything known about this server and its cluster.
pub fn of(inner: &NodeCore, cluster: &ClusterNode, judgement: Judgement) -> ClusterView {
    let view = cluster.member.view();
    let membership = cluster.membership.lock().clone();
    let etcd = etcd(
        cluster.etcd_health(),
        matches!(membership.etcd, EtcdSource::Own { .. }),
    );
    let name = |node: NodeId| match view.nodes.get(&node) {
        Some(record) => record.value.name.clone(),
        None => node.to_string(),
    };
    let problems = |id: VolumeId, state: &VolumeState| match state.owner {
        Some(_) => Vec::new(),
        None => failed_tries(&view, id)
            .into_iter()
            .map(|(node, why)| format!("node {node}: {why}"))
            .collect(),
    };
    let volumes: Vec<ClusterVolumeView> = view
        .volumes
        .values()
        .map(|state| ClusterVolumeView {
            id: state.record.value.id.0,
            name: state.record.value.head().to_owned(),
            owner: state.owner.as_ref().map(|owner| name(owner.value.node)),
            epoch: state.epoch.value.epoch.0,
            log_copies: copies_there(inner, &view, state),
            log_copies_wanted: copies_wanted(inner, state.record.value.id),
            state_copies: state
                .log
                .log
                .state
                .as_ref()
                .map_or(0, |copy| copy.disks.len()),
            problems: problems(state.record.value.id, state),
            address: address(inner, state),
        })
        .collect();
    let survives = judgement.survives.unwrap_or_default();
    ClusterView {
        cluster: membership.cluster_name,
        id: membership.cluster.to_string(),
        node: membership.node_name,
        has_lease: cluster.member.lease_is_valid(),
        nodes: nodes(inner, cluster, &view, &etcd),
        warnings: crate::warnings::views(&judgement.warnings),
        volumes,
        survives: ClusterSurvives {
            data_nodes: survives.data,
            service_nodes: survives.service,
        },
        etcd,
    }
}

fn address(inner: &NodeCore, state: &VolumeState) -> Option<VolumeAddressView> {
    let record = &state.address.as_ref()?.value;
    let addresses = inner.addresses.get();
    Some(VolumeAddressView {
        address: format!("{}/{}", record.address, record.prefix_len),
        interface: record.interface.clone(),
        problem: addresses.and_then(|addresses| addresses.problem(state.record.value.id)),
    })
}

/// The node that has an address permanently.
pub fn node_at(view: &MapView, address: IpAddr) -> Option<String> {
    let is_it = |text: &str| {
        let host = text.parse::<SocketAddr>().map(|at| at.ip());
        host.or_else(|_| text.parse::<IpAddr>()) == Ok(address)
    };
    let mut nodes = view.nodes.values().map(|node| &node.value);
    let found = nodes.find(|node| is_it(&node.internal_address) || is_it(&node.external_address));
    found.map(|node| node.name.clone())
}

/// The number of copies of all acknowledged changes that a new owner needs: of each part of the log that the copies
/// of the state lack, and of the state where the log begins later than the volume. `is_there`: whether a disk is
/// there.
fn log_copies(log: &VolumeLog, is_there: impl Fn(DiskId) -> bool) -> usize {
    let there = |disks: &[DiskId]| disks.iter().filter(|disk| is_there(**disk)).count();
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
    let of_state = 1 + log.state.as_ref().map_or(0, |state| there(&state.disks));
    let of_log = needed.map(|part| there(&part.disks)).min().unwrap_or(0);
    match begins_late {
        true => of_log.min(of_state),
        false => of_log,
    }
}

/// The bytes of all volumes on a node, by their owners' last reports.
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

/// The progress of a leaving node.
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
    // A removal checks this, too.
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
    // Each owner moves the data of its volumes; all owners do so concurrently.
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
        // If one owner does not report, the time is unknown.
        .collect::<Option<Vec<u64>>>();
    shown.seconds_left = seconds.and_then(|seconds| seconds.into_iter().max());
    shown.done =
        shown.volumes_owned.is_empty() && shown.volumes_left.is_empty() && !shown.etcd_member;
    Some(shown)
}

fn allows_clear(view: &MapView, node: NodeId) -> bool {
    let alive = view.alive.get(&node);
    alive.is_some_and(|alive| alive.value.allows_clear)
}

fn nodes(
    inner: &NodeCore,
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
                internal_encryption: !allows_clear(view, record.id),
                connected: record.id == own || peer.is_some_and(|peer| peer.is_connected),
                problem: peer.and_then(|peer| peer.problem.clone()),
                drain: drain(view, etcd, record),
                maintenance_seconds: record
                    .maintenance_left(inner.env.clock.now())
                    .map(|left| left.as_secs()),
                weight: Some(record.weight).filter(|weight| *weight != WEIGHT_NORMAL),
                disks: disks
                    .map(|disk| ClusterDiskView {
                        id: disk.id.to_string(),
                        label: disk.label.clone(),
                        state: match table.condition(disk.id) {
                            Condition::Works if table.is_silent(disk.id) => "unresponsive",
                            Condition::Works if table.is_failing(disk.id) => "failing",
                            Condition::Works if disk.draining => "draining",
                            Condition::Works => "ok",
                            Condition::Suspect => "failing",
                            Condition::Failed => "failed",
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

/// Encrypted volumes whose keys were not erased, with their names.
fn with_keys(inner: &NodeCore) -> Vec<(VolumeId, String)> {
    let state = inner.pool.state();
    wrapped_keys(&state)
        .map(|(volume, _)| (volume.id, state.head_of(volume).name.to_string()))
        .collect()
}

/// The facts about the cluster for the verdict, as this node sees them now.
pub fn observed(inner: &NodeCore, cluster: &ClusterNode) -> ObservedCluster {
    let view = cluster.member.view();
    let name = |node: NodeId| match view.nodes.get(&node) {
        Some(record) => record.value.name.clone(),
        None => node.to_string(),
    };
    let peers = cluster.member.peer_status();
    let own = cluster.member.node();
    let now = inner.env.clock.now();
    let owned = |node: NodeId| {
        let owners = view.volumes.values();
        let owners = owners.filter_map(|state| state.owner.as_ref());
        owners.filter(|owner| owner.value.node == node).count()
    };
    let nodes = view.nodes.values().map(|record| {
        let record = &record.value;
        let peer = peers.iter().find(|peer| peer.node == record.id);
        let alive = view.alive.get(&record.id);
        ObservedNode {
            name: record.name.clone(),
            is_alive: alive.is_some(),
            is_reached: record.id == own || peer.is_some_and(|peer| peer.is_connected),
            problem: peer.and_then(|peer| peer.problem.clone()),
            maintenance: record.maintenance_left(now),
            folder_is_low: alive.is_some_and(|alive| alive.value.folder_is_low),
            volumes: owned(record.id),
            volumes_max: alive
                .and_then(|alive| alive.value.volumes_max)
                .map(|most| most as usize),
        }
    });
    let encrypted = with_keys(inner);
    let alive = || view.alive.values().map(|alive| &alive.value);
    let openers = |volume: &VolumeId| alive().filter(|node| !node.locked.contains(volume)).count();
    let keys_missing = encrypted.iter().flat_map(|(id, volume)| {
        let without = alive().filter(|node| node.locked.contains(id));
        without.map(|node| (name(node.node), volume.clone()))
    });
    let addresses = view.volumes.values().filter_map(|state| {
        let address = address(inner, state)?;
        let volume = state.record.value.head().to_owned();
        Some((volume, address.address, address.problem?))
    });
    let free = view.volumes.iter();
    let free = free.filter(|(_, state)| state.owner.is_none());
    let health = cluster.etcd_health();
    let (is_own, plain) = {
        let etcd = &cluster.membership.lock().etcd;
        let plain = etcd.without_tls().map(str::to_owned).collect();
        (matches!(etcd, EtcdSource::Own { .. }), plain)
    };
    let members = health.members.into_iter().map(|member| ObservedMember {
        name: member.name,
        problem: member.problem,
    });
    let logs = view.volumes.values().map(|state| ObservedLog {
        volume: state.record.value.head().to_owned(),
        copies: copies_there(inner, &view, state),
        wanted: copies_wanted(inner, state.record.value.id),
    });
    ObservedCluster {
        has_lease: cluster.member.lease_is_valid(),
        nodes: nodes.collect(),
        etcd: ObservedEtcd {
            is_own,
            members: members.collect(),
            problem: health.problem,
            plain,
        },
        logs: logs.collect(),
        without_owner: free
            .map(|(id, state)| {
                let volume = state.record.value.head().to_owned();
                (volume, failed_tries(&view, *id))
            })
            .collect(),
        addresses: addresses.collect(),
        pool_addresses: crate::address_pools::troubles(inner, &view),
        keys_missing: keys_missing.collect(),
        openers_least: encrypted.iter().map(|(volume, _)| openers(volume)).min(),
        damaged_keys: view.damaged.iter().map(ToString::to_string).collect(),
    }
}

/// Nodes that tried to take a volume over and failed, with the reasons.
fn failed_tries(view: &MapView, volume: VolumeId) -> Vec<(String, String)> {
    let tried = view.alive.values().filter_map(|alive| {
        let why = alive.value.failed.get(&volume)?;
        let node = view.nodes.get(&alive.value.node)?;
        Some((node.value.name.clone(), why.clone()))
    });
    tried.collect()
}

/// Copies of a volume's log on disks that are there: their node has a lease, and they work as far as this node sees.
fn copies_there(inner: &NodeCore, view: &MapView, state: &VolumeState) -> usize {
    let table = inner.pool.table();
    log_copies(&state.log.log, |disk| {
        let record = view.disks.get(&disk);
        let is_alive = record.is_some_and(|record| view.alive.contains_key(&record.value.node));
        is_alive && table.condition(disk) != Condition::Failed
    })
}

/// The number of copies that a volume's log should have.
fn copies_wanted(inner: &NodeCore, volume: VolumeId) -> usize {
    let state = inner.pool.state();
    let volume = state.volumes.iter().find(|known| known.id == volume);
    volume.map_or(0, |volume| inner.pool.metadata_copies(&volume.settings))
}

fn etcd(health: EtcdHealth, own: bool) -> ClusterEtcdView {
    let members = health.members.into_iter();
    ClusterEtcdView {
        own,
        members: members
            .map(|member| ClusterEtcdMember {
                name: member.name,
                url: member.url,
                problem: member.problem,
            })
            .collect(),
        problem: health.problem,
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::Epoch;
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

    /// Parts of a log, each with its first position, the one behind it, and its number of disks; a copy of the state
    /// up to a position, and its number of disks.
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
        let log = VolumeLog {
            ensembles: ensembles.collect(),
            state,
        };
        log_copies(&log, |_| true)
    }

    #[test]
    fn copies_on_disks_that_are_away_do_not_count() {
        let part = Ensemble {
            id: id(1),
            from: LogPosition(1),
            to: None,
            disks: disks(3),
        };
        let log = VolumeLog {
            ensembles: vec![part],
            state: None,
        };
        for (away, want) in [(0, 3), (1, 2), (3, 0)] {
            assert_eq!(log_copies(&log, |disk| disk.0 >= away), want, "{away}");
        }
    }

    #[test]
    fn a_log_has_as_many_copies_as_the_part_with_the_fewest() {
        for (parts, state, want) in [
            (&[][..], None, 0),
            (&[(1, None, 3)][..], None, 3),
            // The changes from before others joined are on the first node alone.
            (&[(1, Some(50), 1), (50, None, 2)], None, 1),
            // They still are: the state has fewer changes.
            (&[(1, Some(50), 1), (50, None, 2)], Some((48, 1)), 1),
            // The state has all of them, on another node, too.
            (&[(1, Some(50), 1), (50, None, 2)], Some((49, 1)), 2),
            // A server that became the first node: no other node has its state.
            (&[(1000, None, 2)], None, 1),
            (&[(1000, None, 2)], Some((1200, 2)), 2),
            (&[(1000, None, 3)], Some((1200, 1)), 2),
        ] {
            assert_eq!(copies(parts, state), want, "{parts:?} {state:?}");
        }
    }
}
