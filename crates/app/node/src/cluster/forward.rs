//! Forwarding: this node sends requests of its clients to owners of volumes, and serves those of other nodes as an owner.
//!
//! Owns: how other nodes are reached for that, which terms the map shows, which server gets each service. Must not
//! know: the requests, when one is too late (`cairn_forward`).

use std::io;
use std::sync::Arc;

use cairn_base::env::{BoxFuture, Env};
use cairn_base::{NodeId, VolumeId};
use cairn_cluster::map::MapView;
use cairn_forward::{Forward, Incoming, MapTerms, Nodes, Serve, Service, Stream, Term};
use cairn_owner::ClusterMember;
use cairn_rpc_server::ForwardedCalls;
use cairn_trust::{Handler, NodeStream, PeerIdentity, Protocol, Trust};

use super::ClusterNode;
use crate::error::NodeError;

struct MapNodes {
    trust: Arc<Trust>,
    member: Arc<ClusterMember>,
}

impl Nodes for MapNodes {
    fn own(&self) -> NodeId {
        self.member.node()
    }

    fn others(&self) -> Vec<NodeId> {
        let own = self.member.node();
        let view = self.member.view();
        let nodes = view.nodes.keys().copied();
        nodes.filter(|node| *node != own).collect()
    }

    fn name(&self, node: NodeId) -> String {
        let view = self.member.view();
        let record = view.nodes.get(&node);
        record.map_or_else(|| node.to_string(), |record| record.value.name.clone())
    }

    fn is_alive(&self, node: NodeId) -> bool {
        self.member.view().alive.contains_key(&node)
    }

    fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)> {
        let view = self.member.view();
        let owner = |id| self.member.owner(id);
        view.volumes.keys().map(|id| (*id, owner(*id))).collect()
    }

    fn volume_name(&self, volume: VolumeId) -> String {
        let view = self.member.view();
        let state = view.volumes.get(&volume);
        state.map_or_else(
            || volume.to_string(),
            |state| state.record.value.head().to_owned(),
        )
    }

    fn lost(&self, volume: VolumeId, owner: NodeId) -> BoxFuture<()> {
        let (mut views, member) = (self.member.views(), Arc::clone(&self.member));
        Box::pin(async move {
            while member.owner(volume) == Some(owner) {
                if views.changed().await.is_err() {
                    return;
                }
            }
        })
    }

    fn dial(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>> {
        let view = self.member.view();
        let trust = Arc::clone(&self.trust);
        Box::pin(async move {
            let record = view.nodes.get(&node).ok_or(io::ErrorKind::NotFound)?;
            let address = &record.value.internal_address;
            let stream = trust.connect(address, node, Protocol::Forward).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

/// Requests that this node forwards for its clients, and those that other nodes forward to it.
pub(super) fn new(
    env: &Env,
    trust: &Arc<Trust>,
    member: &Arc<ClusterMember>,
) -> Result<Arc<Forward>, NodeError> {
    let nodes = MapNodes {
        trust: Arc::clone(trust),
        member: Arc::clone(member),
    };
    let own = Arc::clone(member);
    let own_term = move || {
        let process = own.process().filter(|_| own.lease_is_valid())?;
        Some(Term(process.nonce.0))
    };
    Ok(Forward::new(env.clone(), Arc::new(nodes), own_term)?)
}

fn terms_of(view: &MapView) -> MapTerms {
    let alive = view.alive.iter();
    MapTerms {
        revision: view.revision.0,
        alive: alive
            .map(|(node, record)| (*node, Term(record.value.process.0)))
            .collect(),
    }
}

struct ForwardHandler(Arc<Forward>);

impl Handler for ForwardHandler {
    fn serve(self: Arc<Self>, peer: PeerIdentity, stream: NodeStream) -> BoxFuture<()> {
        Box::pin(async move {
            // Only a joining node has no certificate, and it does not come here.
            if let Some(node) = peer.node {
                self.0.serve(node, Box::new(stream)).await;
            }
        })
    }
}

/// A service that distributes its streams to a server of its own.
struct Dealt<T>(T, fn(T, Incoming) -> BoxFuture<()>);

impl<T: Clone + Send + Sync + 'static> Serve for Dealt<T> {
    fn serve(self: Arc<Self>, incoming: Incoming) -> BoxFuture<()> {
        (self.1)(self.0.clone(), incoming)
    }
}

impl ClusterNode {
    /// Follows the map for the terms of nodes, and serves the requests that other nodes forward.
    pub(super) fn start_forward(&self, env: &Env) {
        let handler = Arc::new(ForwardHandler(Arc::clone(&self.forward)));
        self.listener.handle(Protocol::Forward, handler);
        let forward = Arc::downgrade(&self.forward);
        let learning = Forward::follow(forward, self.member.views(), |view| terms_of(view));
        env.spawner.spawn("terms of nodes", Box::pin(learning));
    }

    /// Serves calls that other nodes forward, with this node's server.
    pub fn serve_rpc(&self, calls: ForwardedCalls) {
        let serve = Dealt(calls, |calls: ForwardedCalls, incoming| {
            calls.serve(incoming);
            Box::pin(std::future::ready(()))
        });
        self.forward.handle(Service::Rpc, Arc::new(serve));
    }

    pub fn serve_s3(&self, passed: cairn_s3::PeerServer) {
        let serve = Dealt(passed, |passed: cairn_s3::PeerServer, incoming| {
            Box::pin(async move { passed.serve(incoming).await })
        });
        self.forward.handle(Service::S3, Arc::new(serve));
    }

    pub fn serve_iscsi(&self, passed: cairn_iscsi::PeerServer) {
        let serve = Dealt(passed, |passed: cairn_iscsi::PeerServer, incoming| {
            Box::pin(async move { passed.serve(incoming).await })
        });
        self.forward.handle(Service::Iscsi, Arc::new(serve));
    }

    pub fn serve_admin(&self, passed: cairn_admin::PeerServer) {
        let passed = Arc::new(passed);
        let serve = Arc::clone(&passed) as Arc<dyn Serve>;
        self.forward.handle(Service::Admin, serve);
        self.forward.handle_reads(passed);
    }
}
