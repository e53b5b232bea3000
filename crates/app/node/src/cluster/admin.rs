//! This node as one that is asked about what other nodes have.
//!
//! Owns: how requests of the admin API reach other nodes. Must not know: what is asked (`cairn_admin`).

use std::io;
use std::sync::Arc;

use cairn_admin::{Nodes, Passed, Stream};
use cairn_base::NodeId;
use cairn_base::env::BoxFuture;
use cairn_owner::ClusterMember;
use cairn_trust::{Handler, PeerIdentity, Protocol, TlsStream, Trust};

use super::{ClusterNode, reach};

struct AdminNodes {
    trust: Arc<Trust>,
    member: Arc<ClusterMember>,
}

impl Nodes for AdminNodes {
    fn owners(&self) -> Vec<NodeId> {
        let own = self.member.node();
        let owners = reach::owners(&self.member);
        let mut others: Vec<NodeId> = owners
            .into_iter()
            .filter_map(|(_, owner)| owner.filter(|owner| *owner != own))
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    fn others(&self) -> Vec<NodeId> {
        let own = self.member.node();
        let view = self.member.view();
        let nodes = view.nodes.keys().copied();
        nodes.filter(|node| *node != own).collect()
    }

    fn own(&self) -> NodeId {
        self.member.node()
    }

    fn without_owner(&self) -> Vec<String> {
        let view = self.member.view();
        let homeless = reach::owners(&self.member).into_iter();
        let homeless = homeless.filter(|(_, owner)| owner.is_none());
        let named = homeless.filter_map(|(volume, _)| view.volumes.get(&volume));
        named
            .map(|volume| volume.record.value.head().to_owned())
            .collect()
    }

    fn is_alive(&self, node: NodeId) -> bool {
        self.member.view().alive.contains_key(&node)
    }

    fn name(&self, node: NodeId) -> String {
        let view = self.member.view();
        let record = view.nodes.get(&node);
        record.map_or_else(|| node.to_string(), |record| record.value.name.clone())
    }

    fn connect(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>> {
        let connecting = reach::connect(&self.trust, &self.member, node, Protocol::Admin);
        Box::pin(async move { Ok(Box::new(connecting.await?) as Box<dyn Stream>) })
    }
}

struct AdminHandler(Passed);

impl Handler for AdminHandler {
    fn serve(self: Arc<Self>, _peer: PeerIdentity, stream: TlsStream) -> BoxFuture<()> {
        let passed = self.0.clone();
        Box::pin(async move { passed.serve(stream).await })
    }
}

impl ClusterNode {
    /// The nodes, for requests that come to this one.
    pub fn admin_nodes(&self) -> Arc<dyn Nodes> {
        Arc::new(AdminNodes {
            trust: Arc::clone(&self.trust),
            member: Arc::clone(&self.member),
        })
    }

    /// Serves what other nodes pass on.
    pub fn serve_admin(&self, passed: Passed) {
        self.listener
            .handle(Protocol::Admin, Arc::new(AdminHandler(passed)));
    }
}
