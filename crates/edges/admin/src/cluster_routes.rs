//! The paths of the cluster and its nodes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::requests::NodeNamed;
use super::{Api, Given, to_the_end};
use crate::api::{
    AuthorityView, BalanceView, ClusterBackup, ClusterView, NodeChange, NodeMaintenance,
    NodeReplace, NodeWeight, TicketCreate, TicketView,
};
use crate::control::ControlError;

/// Shows the cluster of the node.
#[utoipa::path(get, path = "/api/v1/cluster", responses(
    (status = 200, body = ClusterView), (status = 404, description = "The server is not in a cluster")))]
pub(super) async fn cluster(State(shared): Api) -> Result<Json<ClusterView>, ControlError> {
    shared.control.cluster().await.map(Json)
}

/// Copies the cluster map, without client data; the node keeps the copy as well. `cairn cluster recover` restores the map from a
/// copy.
#[utoipa::path(post, path = "/api/v1/cluster/backups", responses(
    (status = 200, body = ClusterBackup), (status = 404, description = "The server is not in a cluster")))]
pub(super) async fn cluster_backup(
    State(shared): Api,
) -> Result<Json<ClusterBackup>, ControlError> {
    let copy = to_the_end(async move { shared.control.cluster_backup().await }).await?;
    Ok(Json(ClusterBackup { copy }))
}

/// Shows the CA of the nodes' certificates, and the progress of its rotation.
#[utoipa::path(get, path = "/api/v1/cluster/authority", responses(
    (status = 200, body = AuthorityView), (status = 404, description = "The server is not in a cluster")))]
pub(super) async fn cluster_authority(
    State(shared): Api,
) -> Result<Json<AuthorityView>, ControlError> {
    shared.control.cluster_authority().await.map(Json)
}

/// Starts a rotation of the cluster's CA. The nodes do its steps by themselves while clients work. If a rotation is running, the
/// answer shows it.
#[utoipa::path(post, path = "/api/v1/cluster/authority/rotation", responses(
    (status = 200, body = AuthorityView), (status = 404, description = "The server is not in a cluster"),
    (status = 409, description = "Your own etcd uses certificates of the cluster's CA")))]
pub(super) async fn cluster_authority_rotate(
    State(shared): Api,
) -> Result<Json<AuthorityView>, ControlError> {
    to_the_end(async move { shared.control.cluster_authority_rotate().await })
        .await
        .map(Json)
}

/// Creates a ticket with which one node can join the cluster.
#[utoipa::path(post, path = "/api/v1/cluster/tickets", request_body = TicketCreate, responses(
    (status = 200, body = TicketView), (status = 400, description = "The validity is too long"), (status = 404, description = "The server is not in a cluster")))]
pub(super) async fn cluster_ticket(
    State(shared): Api,
    Given(create): Given<TicketCreate>,
) -> Result<Json<TicketView>, ControlError> {
    to_the_end(async move { shared.control.cluster_ticket(create).await })
        .await
        .map(Json)
}

/// Starts or cancels the drain of a node, which moves everything from it to other nodes. `node` is its name. The node's `drain`
/// shows the progress.
#[utoipa::path(patch, path = "/api/v1/cluster/nodes/{node}", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeChange, responses((status = 200, body = ClusterView),
    (status = 409, description = "Too little redundancy or space would remain")))]
pub(super) async fn node_set(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(change): Given<NodeChange>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_drain(node, change.draining).await })
        .await
        .map(Json)
}

/// Puts a node into maintenance, or ends it. The node's volumes move to other nodes at once, it takes none, and its disks are not
/// rebuilt. Unlike with a drain, its data stays on it.
#[utoipa::path(put, path = "/api/v1/cluster/nodes/{node}/maintenance", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeMaintenance, responses((status = 200, body = ClusterView),
    (status = 409, description = "The node is being drained, or the time is too long")))]
pub(super) async fn node_maintenance(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(set): Given<NodeMaintenance>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_maintenance(node, set.seconds).await })
        .await
        .map(Json)
}

/// Sets a node's share of the load. Volumes move one by one, after some minutes; with 0 all volumes leave at once.
#[utoipa::path(put, path = "/api/v1/cluster/nodes/{node}/weight", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeWeight, responses((status = 200, body = ClusterView),
    (status = 400, description = "The weight is too large")))]
pub(super) async fn node_weight(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(set): Given<NodeWeight>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_weight(node, set.weight).await })
        .await
        .map(Json)
}

/// Shows the load of each node, and the moves of volumes that would balance it. Changes nothing.
#[utoipa::path(get, path = "/api/v1/cluster/balance", responses(
    (status = 200, body = BalanceView), (status = 404, description = "The server is not in a cluster")))]
pub(super) async fn balance(State(shared): Api) -> Result<Json<BalanceView>, ControlError> {
    shared.control.balance().await.map(Json)
}

/// Makes the first of these moves, waits until the new owner serves the volume, and shows the next moves. Clients of that volume
/// see a short pause.
#[utoipa::path(post, path = "/api/v1/cluster/balance", responses(
    (status = 200, body = BalanceView), (status = 404, description = "The server is not in a cluster"),
    (status = 503, description = "The volume did not move")))]
pub(super) async fn balance_step(State(shared): Api) -> Result<Json<BalanceView>, ControlError> {
    to_the_end(async move { shared.control.balance_step().await })
        .await
        .map(Json)
}

/// Replaces a node: its data moves, or is rebuilt, to other nodes at once, even if the node is lost; then the cluster removes
/// the node.
#[utoipa::path(post, path = "/api/v1/cluster/nodes/{node}/replace", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeReplace, responses((status = 200, body = ClusterView),
    (status = 409, description = "Too little redundancy or space would remain")))]
pub(super) async fn node_replace(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(replace): Given<NodeReplace>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_replace(node, replace.by).await })
        .await
        .map(Json)
}

/// Removes a drained node from the cluster: other nodes refuse it from then on, and its server stops.
#[utoipa::path(delete, path = "/api/v1/cluster/nodes/{node}", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204), (status = 409, description = "The node is not empty yet")))]
pub(super) async fn node_remove(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { shared.control.node_remove(node).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
