//! The cluster, its nodes and its authority: JSON, routes, and what they ask of a node.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{
    Endpoint, act, delete, endpoints, get, patch, plain_name, post, put, texts_in_path,
};
use crate::server::Table;
use crate::warnings::WarningView;

/// A cluster, as seen by one of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterView {
    pub cluster: String,
    pub id: String,
    /// The node that answers.
    pub node: String,
    /// Whether the answering node has a lease. Without a lease it owns no volume.
    pub has_lease: bool,
    pub nodes: Vec<ClusterNodeView>,
    pub volumes: Vec<ClusterVolumeView>,
    pub survives: ClusterSurvives,
    pub etcd: ClusterEtcdView,
    /// Problems that need attention, as in the answering node's status, the worst first. Empty: nothing needs to be done.
    pub warnings: Vec<WarningView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNodeView {
    pub id: String,
    pub name: String,
    /// Address for other nodes.
    pub internal: String,
    /// Address for clients.
    pub external: String,
    /// Whether the node has a lease.
    pub alive: bool,
    /// Whether the answering node reaches it.
    pub connected: bool,
    /// Whether the node requires encryption between nodes. Traffic between two nodes without this setting is not encrypted.
    pub internal_encryption: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub disks: Vec<ClusterDiskView>,
    /// Progress of the node's drain, if it is being drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<NodeDrainView>,
    /// Remaining seconds of the node's maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance_seconds: Option<u64>,
    /// The node's share of the load; left out: 100, the default. A node with 0 owns no volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// What a draining node still has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeDrainView {
    /// The node is empty, and can be removed.
    pub done: bool,
    /// The name of the replacement. The cluster then removes the drained node by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// Segments with data on its disks, by the last reports of the volumes' owners.
    pub segments_left: u64,
    /// Bytes of these segments on its disks.
    pub bytes_left: u64,
    /// Left out while there is no estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Volumes that it still owns.
    pub volumes_owned: Vec<String>,
    /// Volumes with data, metadata or log files on its disks.
    pub volumes_left: Vec<String>,
    /// Whether it still runs an etcd member.
    pub etcd_member: bool,
    /// Why there is no progress.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterDiskView {
    pub id: String,
    pub label: String,
    /// ok, draining, unresponsive, failing, failed or missing.
    pub state: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterVolumeView {
    pub id: u32,
    pub name: String,
    /// The name of the owner; left out while the volume is being taken over.
    pub owner: Option<String>,
    pub epoch: u64,
    /// Copies of the log and metadata that a new owner needs, on nodes that are up. The volume survives the loss of one node less
    /// than this number.
    pub log_copies: usize,
    /// Copies that the log should have.
    #[serde(default)]
    pub log_copies_wanted: usize,
    /// While the volume has no owner: why nodes that tried could not take it over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Copies of the metadata state on nodes other than the owner.
    pub state_copies: usize,
    /// The address that follows the owner, if the volume has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<VolumeAddressView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAddressView {
    /// Address with prefix length: 10.0.0.9/24.
    pub address: String,
    /// The network interface; left out: the one in the address's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Why the owner does not hold the address; only the owner reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Further losses that the cluster survives, whichever nodes they hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterSurvives {
    /// How many nodes can be lost without loss of data.
    pub data_nodes: usize,
    /// How many nodes can be lost while the others still serve all volumes.
    pub service_nodes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEtcdView {
    /// Whether nodes of the cluster run etcd.
    pub own: bool,
    pub members: Vec<ClusterEtcdMember>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEtcdMember {
    pub name: String,
    pub url: String,
    /// Why the member is not healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// Whether the node is drained.
    pub draining: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeMaintenance {
    /// Seconds of maintenance from now on. 0: maintenance ends.
    #[schema(maximum = 604800)]
    pub seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeWeight {
    /// The node's share of the load: 0 to 1000, by default 100. A node with 0 owns no volume.
    #[schema(maximum = 1000)]
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeReplace {
    /// The name of the replacement, a node that has joined.
    #[schema(min_length = 1, max_length = 255)]
    pub by: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketCreate {
    /// Validity in seconds: 1 to 86,400.
    pub valid_seconds: u64,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterBackup {
    /// The content of the copy, for a file. It contains hashes of passwords and tokens: keep it private.
    pub copy: String,
}

/// Hides the content.
impl std::fmt::Debug for ClusterBackup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterBackup(..)")
    }
}

/// The CA of the nodes' certificates, and the progress of its rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityView {
    /// The CA of the answering node's certificate: SHA-256 of the CA certificate, in hexadecimal digits.
    pub authority: String,
    /// The current rotation or the last one; left out if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<AuthorityRotation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityRotation {
    pub phase: AuthorityPhase,
    pub begun_seconds: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_seconds: Option<i64>,
    /// Fingerprint of the old CA.
    pub old: String,
    /// Fingerprint of the new CA, once it is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// The nodes that this phase waits for.
    pub waits_for: Vec<AuthorityWait>,
    /// Why the answering node cannot do its next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The phases of a rotation, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthorityPhase {
    /// A node creates the new CA.
    Make,
    /// All nodes begin to trust both CAs.
    Trust,
    /// All nodes get certificates from the new CA.
    Renew,
    /// All nodes drop the old CA.
    Drop,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuthorityWait {
    /// The node's name.
    pub node: String,
    /// The node is away. The rotation waits until it is back or removed.
    pub away: bool,
    /// The step that the node has to do.
    pub what: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TicketView {
    /// The ticket, a secret with which one node can join.
    pub ticket: String,
}

/// Hides the ticket.
impl std::fmt::Debug for TicketView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TicketView(..)")
    }
}

endpoints! {
    /// Shows the cluster of the node.
    CLUSTER: Endpoint<(), (), ClusterView> = get("/api/v1/cluster").list("nodes", &["name"]);

    /// Copies the cluster map, without client data; the node keeps the copy as well. `cairn cluster recover` restores the map from a
    /// copy.
    CLUSTER_BACKUP: Endpoint<(), (), ClusterBackup> = act("/api/v1/cluster/backups");

    /// Shows the CA of the nodes' certificates, and the progress of its rotation.
    CLUSTER_AUTHORITY: Endpoint<(), (), AuthorityView> = get("/api/v1/cluster/authority");

    /// Starts a rotation of the cluster's CA. The nodes do its steps by themselves while clients work. If a rotation is running, the
    /// answer shows it.
    CLUSTER_AUTHORITY_ROTATE: Endpoint<(), (), AuthorityView> = act("/api/v1/cluster/authority/rotation");

    /// Creates a ticket with which one node can join the cluster.
    CLUSTER_TICKET: Endpoint<(), TicketCreate, TicketView> = post("/api/v1/cluster/tickets");

    /// Starts or cancels the drain of a node, which moves everything from it to other nodes. `node` is its name. The node's `drain`
    /// shows the progress.
    NODE_SET: Endpoint<NodeName, NodeChange, ClusterView> = patch("/api/v1/cluster/nodes/{node}");

    /// Puts a node into maintenance, or ends it. The node's volumes move to other nodes at once, it takes none, and its disks are not
    /// rebuilt. Unlike with a drain, its data stays on it.
    NODE_MAINTENANCE: Endpoint<NodeName, NodeMaintenance, ClusterView> = put("/api/v1/cluster/nodes/{node}/maintenance");

    /// Sets a node's share of the load. Volumes move one by one, after some minutes; with 0 all volumes leave at once.
    NODE_WEIGHT: Endpoint<NodeName, NodeWeight, ClusterView> = put("/api/v1/cluster/nodes/{node}/weight");

    /// Replaces a node: its data moves, or is rebuilt, to other nodes at once, even if the node is lost; then the cluster removes
    /// the node.
    NODE_REPLACE: Endpoint<NodeName, NodeReplace, ClusterView> = post("/api/v1/cluster/nodes/{node}/replace");

    /// Removes a drained node from the cluster: other nodes refuse it from then on, and its server stops.
    NODE_REMOVE: Endpoint<NodeName, (), ()> = delete("/api/v1/cluster/nodes/{node}");

}

texts_in_path! {
    /// A node, by its name.
    NodeName, plain_name(), "there is no node with that name";
}

/// What a node does with the cluster that it is in, and with other nodes. Changes are durable when they are answered.
pub trait ClusterControl: Send + Sync {
    fn cluster(&self) -> Answer<'_, ClusterView>;
    /// A copy of the cluster's map.
    fn cluster_backup(&self) -> Answer<'_, ClusterBackup>;
    /// Which authority certificates of nodes are of, and how far another one has taken its place.
    fn cluster_authority(&self) -> Answer<'_, AuthorityView>;
    /// Has another authority take the place of the present one; shows the rotation that runs, if one does.
    fn cluster_authority_rotate(&self) -> Answer<'_, AuthorityView>;
    /// A ticket for one more node.
    fn cluster_ticket(&self, create: TicketCreate) -> Answer<'_, TicketView>;
    /// Moves all that a node has to other nodes, or stops that.
    fn node_set(&self, node: NodeName, draining: bool) -> Answer<'_, ClusterView>;
    /// Says for how long a node is meant to be away: its volumes move first, and nothing on it is rebuilt. 0: it is back.
    fn node_maintenance(&self, node: NodeName, seconds: u64) -> Answer<'_, ClusterView>;
    /// Says which part of the load a node has beside others.
    fn node_weight(&self, node: NodeName, weight: u32) -> Answer<'_, ClusterView>;
    /// Has another node take the place of one, which is lost or drains.
    fn node_replace(&self, node: NodeName, by: String) -> Answer<'_, ClusterView>;
    /// Takes a drained node out of the cluster.
    fn node_remove(&self, node: NodeName) -> Answer<'_, ()>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn ClusterControl>(|node| Ok(node.cluster()))
        .on(CLUSTER, |node, (), ()| node.cluster())
        .on(CLUSTER_BACKUP, |node, (), ()| node.cluster_backup())
        .on(CLUSTER_AUTHORITY, |node, (), ()| node.cluster_authority())
        .on(CLUSTER_AUTHORITY_ROTATE, |node, (), ()| {
            node.cluster_authority_rotate()
        })
        .on(CLUSTER_TICKET, |node, (), create| {
            node.cluster_ticket(create)
        })
        .on(NODE_SET, |node, name, change| {
            node.node_set(name, change.draining)
        })
        .on(NODE_MAINTENANCE, |node, name, set| {
            node.node_maintenance(name, set.seconds)
        })
        .on(NODE_WEIGHT, |node, name, set| {
            node.node_weight(name, set.weight)
        })
        .on(NODE_REPLACE, |node, name, replace| {
            node.node_replace(name, replace.by)
        })
        .on(NODE_REMOVE, |node, name, ()| node.node_remove(name));
}
