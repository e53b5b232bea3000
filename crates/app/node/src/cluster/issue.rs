//! The nodes that have the key of the cluster's CA, by the map.
//!
//! Owns: which nodes those are, which of them a node without it asks. Must not know: the requests (`cairn_trust`).

use std::sync::Weak;

use cairn_base::NodeId;
use cairn_owner::ClusterMember;
use cairn_trust::{Grants, Issuers, host_of};

use super::etcd::EtcdSide;

/// This node's view of the map for the issuers of certificates and for the nodes that request them. Weak references,
/// as the two that it reads hold this value.
pub struct MapOfIssuers {
    pub member: Weak<ClusterMember>,
    pub etcd: Weak<EtcdSide>,
}

impl Grants for MapOfIssuers {
    fn hosts(&self, node: NodeId) -> Option<Vec<String>> {
        let view = self.member.upgrade()?.view();
        let record = &view.nodes.get(&node)?.value;
        let host = host_of(&record.internal_address).ok()?;
        Some(vec![host.to_owned()])
    }

    fn may_have_key(&self, node: NodeId) -> bool {
        match (self.etcd.upgrade(), self.member.upgrade()) {
            (Some(etcd), Some(member)) => etcd.holders(&member.view()).contains(&node),
            _ => false,
        }
    }
}

impl Issuers for MapOfIssuers {
    fn issuers(&self) -> Vec<(NodeId, String)> {
        let (Some(etcd), Some(member)) = (self.etcd.upgrade(), self.member.upgrade()) else {
            return Vec::new();
        };
        let view = member.view();
        let holders = etcd.holders(&view);
        let nodes = view.nodes.values().map(|node| &node.value);
        let mut nodes: Vec<_> = nodes.filter(|node| node.id != member.node()).collect();
        // The others are asked last: a node that should have had the key a moment ago still has it.
        nodes.sort_by_key(|node| {
            let is_away = !view.alive.contains_key(&node.id);
            (!holders.contains(&node.id), is_away, node.joined, node.id)
        });
        let addresses = nodes
            .iter()
            .map(|node| (node.id, node.internal_address.clone()));
        addresses.collect()
    }
}
