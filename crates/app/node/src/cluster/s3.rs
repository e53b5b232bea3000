//! This node as one that answers for the objects of all nodes.
//!
//! Owns: how requests reach other nodes. Must not know: what is asked about objects (`cairn_s3`).

use std::io;
use std::sync::Arc;

use cairn_base::env::BoxFuture;
use cairn_base::{NodeId, VolumeId};
use cairn_owner::ClusterMember;
use cairn_s3::{Nodes, Passed, Stream};
use cairn_trust::{Handler, PeerIdentity, Protocol, TlsStream, Trust};

use super::{ClusterNode, reach};

struct S3Nodes {
    trust: Arc<Trust>,
    member: Arc<ClusterMember>,
}

impl Nodes for S3Nodes {
    fn own(&self) -> NodeId {
        self.member.node()
    }

    fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)> {
        reach::owners(&self.member)
    }

    fn lost(&self, volume: VolumeId, owner: NodeId) -> BoxFuture<()> {
        reach::lost(&self.member, volume, owner)
    }

    fn connect(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>> {
        let connecting = reach::connect(&self.trust, &self.member, node, Protocol::S3);
        Box::pin(async move { Ok(Box::new(connecting.await?) as Box<dyn Stream>) })
    }
}

struct S3Handler(Passed);

impl Handler for S3Handler {
    fn serve(self: Arc<Self>, _peer: PeerIdentity, stream: TlsStream) -> BoxFuture<()> {
        let passed = self.0.clone();
        Box::pin(async move { passed.serve(stream).await })
    }
}

impl ClusterNode {
    /// The nodes, for requests that come to this one.
    pub fn s3_nodes(&self) -> Arc<dyn Nodes> {
        Arc::new(S3Nodes {
            trust: Arc::clone(&self.trust),
            member: Arc::clone(&self.member),
        })
    }

    /// Serves what other nodes pass on.
    pub fn serve_s3(&self, passed: Passed) {
        self.listener
            .handle(Protocol::S3, Arc::new(S3Handler(passed)));
    }
}
