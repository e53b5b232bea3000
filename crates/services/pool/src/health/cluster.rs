//! Judges what a pool on one server does not have: nodes, etcd, logs on several nodes, owners of volumes.
//!
//! Owns: warnings of a cluster, and how many of its nodes may go next.

use super::observed::{Observed, ObservedCluster};
use crate::warning::Warning;

/// Nodes of a cluster that may go next, whichever they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodesSurvived {
    /// So that no data is lost.
    pub data: usize,
    /// So that the others go on serving all volumes.
    pub service: usize,
}

pub(super) fn survives(observed: &Observed, cluster: &ObservedCluster) -> NodesSurvived {
    let of_data = match observed.single_segments {
        0 => observed.nodes_tolerated,
        _ => 0,
    };
    let lost = cluster.nodes.iter().filter(|node| !node.is_alive).count();
    // A loss that happened already was survived. The copies of a log are those that are there.
    let of_data = of_data.saturating_sub(lost);
    let of_logs = cluster.logs.iter().map(|log| log.copies).min();
    let of_logs = of_logs.map_or(of_data, |copies| copies.saturating_sub(1));
    let data = of_data.min(of_logs);
    let of_keys = cluster
        .openers_least
        .map_or(usize::MAX, |nodes| nodes.saturating_sub(1));
    let is_served = cluster.without_owner.is_empty()
        && observed.volumes_failed.is_empty()
        && observed.keys_away.is_empty();
    let service = match is_served {
        true => data.min(cluster.etcd.survives_nodes()).min(of_keys),
        false => 0,
    };
    NodesSurvived { data, service }
}

pub(super) fn judge_cluster(cluster: &ObservedCluster, warnings: &mut Vec<Warning>) {
    if !cluster.has_lease {
        warnings.push(Warning::NoLease);
    }
    for (volume, tries) in &cluster.without_owner {
        warnings.push(Warning::VolumeWithoutOwner {
            volume: volume.clone(),
            tries: tries.clone(),
        });
    }
    let etcd = &cluster.etcd;
    match &etcd.problem {
        Some(why) => warnings.push(Warning::EtcdUnreachable { why: why.clone() }),
        None if !etcd.has_quorum() => warnings.push(Warning::EtcdNoQuorum {
            healthy: etcd.healthy(),
            members: etcd.members.len(),
        }),
        None => {}
    }
    for member in &etcd.members {
        if let Some(why) = &member.problem {
            warnings.push(Warning::EtcdMemberDown {
                member: member.name.clone(),
                why: why.clone(),
            });
        }
    }
    if !etcd.plain.is_empty() {
        warnings.push(Warning::EtcdPlain {
            addresses: etcd.plain.clone(),
        });
    }
    for node in &cluster.nodes {
        let name = || node.name.clone();
        match (node.maintenance, node.is_alive, node.is_reached) {
            (Some(left), _, _) => warnings.push(Warning::Maintenance { node: name(), left }),
            (None, false, _) => warnings.push(Warning::NodeAway { node: name() }),
            (None, true, false) => warnings.push(Warning::NodeUnreached {
                node: name(),
                why: node.problem.clone(),
            }),
            (None, true, true) => {}
        }
        if node.folder_is_low {
            warnings.push(Warning::FolderLow { node: name() });
        }
        if let Some(most) = node.volumes_max.filter(|most| node.volumes > *most) {
            warnings.push(Warning::VolumesMany {
                node: name(),
                volumes: node.volumes,
                most,
            });
        }
    }
    for log in cluster.logs.iter().filter(|log| log.copies < log.wanted) {
        warnings.push(Warning::LogCopiesFew {
            volume: log.volume.clone(),
            copies: log.copies,
            wanted: log.wanted,
        });
    }
    for (volume, address, why) in &cluster.addresses {
        warnings.push(Warning::AddressNotHere {
            volume: volume.clone(),
            address: address.clone(),
            why: why.clone(),
        });
    }
    for (pool, address, why) in &cluster.pool_addresses {
        warnings.push(Warning::PoolAddressNotHere {
            pool: pool.clone(),
            address: address.clone(),
            why: why.clone(),
        });
    }
    for (node, volume) in &cluster.keys_missing {
        warnings.push(Warning::KeyMissing {
            node: node.clone(),
            volume: volume.clone(),
        });
    }
    for key in &cluster.damaged_keys {
        warnings.push(Warning::MapKeyDamaged { key: key.clone() });
    }
}
