//! Makes a node's cluster folder before it serves: as the first node, or with a ticket.
//!
//! Owns: the contents of a first node's folder. Must not know: the command line.

use std::path::Path;

use cairn_base::env::Env;
use cairn_base::{NodeId, PoolId};
use cairn_trust::{
    Authority, ClusterFolder, EtcdMemberEntry, EtcdSource, HandleKey, JoinRequest, JoinSettings,
    Membership, Stage, Ticket, VersionRange, host_of, join,
};

use super::admit::TAKES_OVER;
use super::{PROTOCOL_NEWEST, PROTOCOL_OLDEST};
use crate::error::NodeError;

/// The name and addresses of a new node.
#[derive(Clone, Debug)]
pub struct NodeAddresses {
    pub node_name: String,
    pub internal_address: String,
    pub external_address: String,
    pub etcd_client_port: u16,
    pub etcd_peer_port: u16,
}

fn failed(error: impl std::fmt::Display) -> NodeError {
    NodeError::Cluster(error.to_string())
}

/// An etcd that others run.
#[derive(Clone, Debug)]
pub struct GivenEtcd {
    pub endpoints: Vec<String>,
    /// Whether addresses without TLS are accepted that are not of this machine.
    pub insecure: bool,
}

/// The runtime of a command without a server: this thread.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, NodeError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(NodeError::Runtime)
}

/// Makes the folder of a cluster's first node. Without `etcd`, nodes of the cluster run their own.
pub fn init(
    folder: &Path,
    cluster_name: &str,
    place: &NodeAddresses,
    etcd: Option<GivenEtcd>,
) -> Result<Membership, NodeError> {
    let runtime = runtime()?;
    let env: Env = cairn_base::real::env(runtime.handle().clone());
    let host = host_of(&place.internal_address).map_err(failed)?;
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    let membership = Membership {
        format: 0,
        cluster: PoolId(env.entropy.u128()),
        cluster_name: cluster_name.to_owned(),
        node: NodeId(env.entropy.u128()),
        node_name: place.node_name.clone(),
        internal_address: place.internal_address.clone(),
        external_address: place.external_address.clone(),
        handle_key: HandleKey(env.entropy.u128()),
        etcd: match etcd {
            Some(given) => EtcdSource::Given {
                endpoints: given.endpoints,
                insecure: given.insecure,
            },
            None => EtcdSource::Own {
                client_port: place.etcd_client_port,
                peer_port: place.etcd_peer_port,
                members: vec![EtcdMemberEntry {
                    node_name: place.node_name.clone(),
                    client_url: format!("https://{host}:{}", place.etcd_client_port),
                    peer_url: format!("https://{host}:{}", place.etcd_peer_port),
                }],
                runs_member: true,
                joins: false,
                made_anew: None,
            },
        },
        stage: Stage::Init,
    };
    membership.check().map_err(failed)?;
    let authority = Authority::create(membership.cluster, env.clock.now()).map_err(failed)?;
    let made = ClusterFolder::create(folder).map_err(failed)?;
    made.establish(&membership, &authority).map_err(failed)?;
    Ok(membership)
}

/// Asks a cluster to admit this node, and makes its folder. `takes_over`: as the node that `place` names, which is
/// away, and whose disks this machine has.
pub fn join_with(
    folder: &Path,
    ticket: &Ticket,
    place: &NodeAddresses,
    takes_over: bool,
) -> Result<Membership, NodeError> {
    let runtime = runtime()?;
    let env: Env = cairn_base::real::env(runtime.handle().clone());
    let request = JoinRequest {
        node_name: place.node_name.clone(),
        internal_address: place.internal_address.clone(),
        external_address: place.external_address.clone(),
        versions: VersionRange {
            oldest: PROTOCOL_OLDEST,
            newest: PROTOCOL_NEWEST,
        },
        program: env!("CARGO_PKG_VERSION").to_owned(),
        extra: serde_json::json!({
            "etcd_client_port": place.etcd_client_port,
            "etcd_peer_port": place.etcd_peer_port,
            (TAKES_OVER): takes_over.then_some(&place.node_name),
        }),
    };
    // Before the ticket is used up: a folder that cannot be written must not cost one.
    let made = ClusterFolder::create(folder).map_err(failed)?;
    let settings = JoinSettings::default();
    let joined = join(&env, ticket, &request, &settings);
    let admission = runtime.block_on(joined).map_err(failed)?;
    admission.establish(&made, &request).map_err(failed)
}
