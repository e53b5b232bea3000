//! Other nodes, as edges reach them.
//!
//! Owns: who owns volumes as far as this node knows, streams to them. Must not know: what goes over these.

use std::io;
use std::sync::Arc;

use cairn_base::env::BoxFuture;
use cairn_base::{NodeId, VolumeId};
use cairn_owner::ClusterMember;
use cairn_trust::{Protocol, TlsStream, Trust};

/// All volumes, and who owns each as far as this node knows.
pub(super) fn owners(member: &ClusterMember) -> Vec<(VolumeId, Option<NodeId>)> {
    let view = member.view();
    let owner = |id| member.owner(id);
    view.volumes.keys().map(|id| (*id, owner(*id))).collect()
}

/// Ready when the node owns the volume no more.
pub(super) fn lost(member: &Arc<ClusterMember>, volume: VolumeId, owner: NodeId) -> BoxFuture<()> {
    let (mut views, member) = (member.views(), Arc::clone(member));
    Box::pin(async move {
        while member.owner(volume) == Some(owner) {
            if views.changed().await.is_err() {
                return;
            }
        }
    })
}

/// A stream to another node.
pub(super) fn connect(
    trust: &Arc<Trust>,
    member: &ClusterMember,
    node: NodeId,
    protocol: Protocol,
) -> impl Future<Output = io::Result<TlsStream>> + Send + 'static + use<> {
    let view = member.view();
    let trust = Arc::clone(trust);
    async move {
        let record = view.nodes.get(&node).ok_or(io::ErrorKind::NotFound)?;
        let address = &record.value.internal_address;
        trust.connect(address, node, protocol).await
    }
}
