//! This node as a portal of the targets of all nodes.
//!
//! Owns: which portals the map shows, the entry of this node's iSCSI addresses. Must not know: requests for targets
//! (`cairn_iscsi`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::jobs::{Job, Next};
use cairn_base::{Backoff, NodeId};
use cairn_cluster::ClusterMap;
use cairn_cluster::map::{IscsiPortals, MapError};
use cairn_iscsi::{Cluster, NodePortals};

use super::ClusterNode;

/// Pause between attempts to write this node's addresses into the map.
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(1);
const ANNOUNCE_PAUSE_LONGEST: Duration = Duration::from_secs(10);

impl ClusterNode {
    /// The nodes as portals, for the targets of this one.
    pub fn iscsi_cluster(&self) -> Arc<Cluster> {
        let member = Arc::clone(&self.member);
        let portals = move || {
            let view = member.view();
            let nodes = view.iscsi.values().map(|it| &it.value);
            let nodes = nodes.filter(|iscsi| view.nodes.contains_key(&iscsi.node));
            let nodes = nodes.map(|iscsi| NodePortals {
                node: iscsi.node,
                group: iscsi.group,
                addresses: iscsi.addresses.clone(),
                is_alive: view.alive.contains_key(&iscsi.node),
            });
            let mut nodes: Vec<_> = nodes.collect();
            nodes.sort_by_key(|node| node.group);
            nodes
        };
        Cluster::new(Arc::clone(&self.forward), portals)
    }

    /// Writes this node's iSCSI addresses into the map, sooner or later. A wildcard address is replaced by the
    /// address that clients know this node by.
    pub fn announce_iscsi(&self, env: &Env, addresses: Vec<SocketAddr>) {
        let external = self.membership.lock().external_address.clone();
        let known = known_ip(&external);
        let addresses = addresses.into_iter().filter_map(|address| {
            match (address.ip().is_unspecified(), known) {
                (false, _) => Some(address),
                (true, Some(ip)) => Some(SocketAddr::new(ip, address.port())),
                (true, None) => {
                    tracing::error!(
                        %address,
                        external,
                        "iSCSI discovery announces no portal of this node, because its address for clients is a name: set its addresses \
                         with --iscsi-portal"
                    );
                    None
                }
            }
        });
        let addresses: Vec<SocketAddr> = addresses.collect();
        let (map, own) = (self.map.clone(), self.member.node());
        let is_stopping = Arc::clone(&self.is_stopping);
        // The announcement is the work of one step; errors have the step done again.
        let owner = move || {
            let is_stopping = is_stopping.load(std::sync::atomic::Ordering::Acquire);
            (!is_stopping).then(|| (map.clone(), addresses.clone()))
        };
        let work = move |(map, addresses): (ClusterMap, Vec<SocketAddr>)| async move {
            match announce(&map, own, &addresses).await {
                Ok(()) => Ok(Next::End),
                Err(error) => Err(format!(
                    "the cluster map does not have this node's iSCSI portals yet: {error}"
                )),
            }
        };
        Job::every("iscsi-portals", ANNOUNCE_PAUSE)
            .from_now()
            .retry(Backoff::new(ANNOUNCE_PAUSE, ANNOUNCE_PAUSE_LONGEST))
            .start_on(env, owner, work);
    }
}

/// The address in `HOST` or `HOST:PORT`, unless it is a name.
fn known_ip(external: &str) -> Option<IpAddr> {
    let whole = external.parse::<IpAddr>().ok();
    whole.or_else(|| Some(external.parse::<SocketAddr>().ok()?.ip()))
}

/// A node keeps its number: initiators know its ports by it.
async fn announce(map: &ClusterMap, own: NodeId, addresses: &[SocketAddr]) -> Result<(), MapError> {
    let before = map.iscsi(own).await?;
    let group = match &before {
        Some(iscsi) if iscsi.value.addresses == addresses => return Ok(()),
        Some(iscsi) => iscsi.value.group,
        None => {
            let all = map.all_iscsi().await?;
            let taken = |group: &u16| all.iter().any(|iscsi| iscsi.value.group == *group);
            // There cannot be as many nodes as numbers. If two choose one number, the map refuses the second.
            (1..=u16::MAX)
                .find(|group| !taken(group))
                .unwrap_or(u16::MAX)
        }
    };
    let portals = IscsiPortals {
        node: own,
        group,
        addresses: addresses.to_vec(),
    };
    map.set_iscsi(before.as_ref(), &portals).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_node_is_known_unless_it_is_a_name() {
        for (external, want) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("10.0.0.1:2049", Some("10.0.0.1")),
            ("fe80::1", Some("fe80::1")),
            ("[fe80::1]:2049", Some("fe80::1")),
            ("node1.example", None),
            ("node1.example:2049", None),
        ] {
            let want = want.map(|ip| ip.parse::<IpAddr>().unwrap());
            assert_eq!(known_ip(external), want, "{external}");
        }
    }
}
