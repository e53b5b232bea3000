//! What people and scripts see of a cluster.
//!
//! Owns: how the map, and what this node reaches, become a view. Must not know: how either is kept.

use std::collections::BTreeMap;

use cairn_admin::api::{
    ClusterDiskView, ClusterEtcdMember, ClusterEtcdView, ClusterNodeView, ClusterSurvives,
    ClusterView, ClusterVolumeView,
};
use cairn_base::NodeId;
use cairn_cluster::map::{MapView, VolumeState};
use cairn_pool::Condition;
use cairn_trust::EtcdSource;

use crate::cluster::ClusterNode;
use crate::node::Inner;

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
            name: state.record.value.name.clone(),
            owner: state.owner.as_ref().map(|owner| name(owner.value.node)),
            epoch: state.epoch.value.epoch.0,
            log_copies: log_copies(state),
            state_copies: state
                .log
                .log
                .state
                .as_ref()
                .map_or(0, |copy| copy.disks.len()),
        })
        .collect();
    let survives = survives(inner, &view, &etcd);
    ClusterView {
        cluster: membership.cluster_name,
        id: membership.cluster.to_string(),
        node: membership.node_name,
        has_lease: cluster.member.lease_is_valid(),
        nodes: nodes(inner, cluster, &view),
        warnings: warnings(inner, &view, &volumes),
        volumes,
        survives,
        etcd,
    }
}

fn log_copies(state: &VolumeState) -> usize {
    state.log.log.open().map_or(0, |open| open.disks.len())
}

fn nodes(inner: &Inner, cluster: &ClusterNode, view: &MapView) -> Vec<ClusterNodeView> {
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
    let of_data = inner.pool.nodes_tolerated_by_all().unwrap_or(0);
    let of_logs = view.volumes.values().map(log_copies).min();
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
    ClusterSurvives {
        data_nodes,
        service_nodes: data_nodes.min(of_etcd),
    }
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
        if volume.log_copies == 1 && view.nodes.len() > 1 {
            warnings.push(format!(
                "the log of volume {} has one copy: the loss of its node loses what was acknowledged",
                volume.name
            ));
        }
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
