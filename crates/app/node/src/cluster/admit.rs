//! Admits nodes to the cluster.
//!
//! Owns: the check of a token, and the reply to an admitted node. Must not know: how the request came.

use std::sync::Arc;

use cairn_base::NodeId;
use cairn_base::env::{BoxFuture, Env};
use cairn_cluster::ClusterMap;
use cairn_cluster::map::{JoinToken, Machine, MapError, NodeRecord, VersionRange, WEIGHT_NORMAL};
use cairn_trust::{Admit, Admitted, EtcdSource, JoinRequest, Membership};
use parking_lot::Mutex;

use super::etcd::EtcdSide;

/// A field of the request: the name of the node that the new one replaces, whose disks it has.
pub const TAKES_OVER: &str = "takes_over";

pub struct Admission {
    pub env: Env,
    pub map: ClusterMap,
    pub membership: Arc<Mutex<Membership>>,
    pub etcd: Arc<EtcdSide>,
}

impl Admit for Admission {
    fn admit(&self, token: String, request: JoinRequest) -> BoxFuture<Result<Admitted, String>> {
        let (env, map) = (self.env.clone(), self.map.clone());
        let membership = self.membership.lock().clone();
        let side = Arc::clone(&self.etcd);
        Box::pin(async move {
            // One message for every fault: an unauthorized client learns nothing more.
            let bad = |_| {
                "the token is wrong, expired, or already used; create another with `cairn cluster token`".to_owned()
            };
            let token: JoinToken = token.parse().map_err(bad)?;
            let versions = VersionRange {
                oldest: request.versions.oldest,
                newest: request.versions.newest,
            };
            let takes_over = request.extra.get(TAKES_OVER);
            let takes_over = takes_over.and_then(serde_json::Value::as_str);
            let record = NodeRecord {
                id: NodeId(env.entropy.u128()),
                name: request.node_name,
                internal_address: request.internal_address,
                external_address: request.external_address,
                versions,
                joined: env.clock.now(),
                draining: false,
                replaced_by: None,
                maintenance_until: None,
                weight: WEIGHT_NORMAL,
            };
            let joined = match takes_over {
                Some(name) => {
                    let machine = Machine {
                        internal_address: record.internal_address.clone(),
                        external_address: record.external_address.clone(),
                        versions,
                    };
                    let taken = map.rejoin(&token, name, &machine).await;
                    taken.map(|record| record.id)
                }
                None => map.join(&token, &record).await.map(|()| record.id),
            };
            let node = match joined {
                Ok(node) => node,
                Err(MapError::Token(why)) => {
                    tracing::warn!(token = token.id(), why, "refused a join token");
                    return Err(bad(MapError::Token(why)));
                }
                // The token is valid, so the node may know the reason.
                Err(error) => return Err(error.to_string()),
            };
            // Before the node needs that. If it fails, the node is in the map, and becomes a user by that in a moment.
            if let Err(error) = side.admit(node).await {
                tracing::warn!(%node, %error, "a joining node is not yet a user of etcd");
            }
            let etcd = match membership.etcd {
                EtcdSource::Own { members, .. } => {
                    let port = |name: &str| {
                        let port = request.extra.get(name).and_then(serde_json::Value::as_u64);
                        port.and_then(|port| u16::try_from(port).ok())
                    };
                    EtcdSource::Own {
                        client_port: port("etcd_client_port").unwrap_or(super::ETCD_CLIENT_PORT),
                        peer_port: port("etcd_peer_port").unwrap_or(super::ETCD_PEER_PORT),
                        members,
                        runs_member: false,
                        joins: false,
                        made_anew: None,
                    }
                }
                given @ EtcdSource::Given { .. } => given,
            };
            Ok(Admitted {
                node,
                cluster_name: membership.cluster_name,
                handle_key: membership.handle_key,
                etcd,
                extra: serde_json::Value::Null,
            })
        })
    }
}
