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

/// The cluster that the node is in.
#[utoipa::path(get, path = "/api/v1/cluster", responses(
    (status = 200, body = ClusterView), (status = 404, description = "The server is in no cluster")))]
pub(super) async fn cluster(State(shared): Api) -> Result<Json<ClusterView>, ControlError> {
    shared.control.cluster().await.map(Json)
}

/// Copies the cluster's map, without any data of clients, and has the node keep the copy, too: `cairn cluster recover` makes a map
/// of one.
#[utoipa::path(post, path = "/api/v1/cluster/backups", responses(
    (status = 200, body = ClusterBackup), (status = 404, description = "The server is in no cluster")))]
pub(super) async fn cluster_backup(
    State(shared): Api,
) -> Result<Json<ClusterBackup>, ControlError> {
    let copy = to_the_end(async move { shared.control.cluster_backup().await }).await?;
    Ok(Json(ClusterBackup { copy }))
}

/// Which authority certificates of nodes are of, and how far another one has taken its place.
#[utoipa::path(get, path = "/api/v1/cluster/authority", responses(
    (status = 200, body = AuthorityView), (status = 404, description = "The server is in no cluster")))]
pub(super) async fn cluster_authority(
    State(shared): Api,
) -> Result<Json<AuthorityView>, ControlError> {
    shared.control.cluster_authority().await.map(Json)
}

/// Has another authority take the place of the one that certificates of nodes are of. The nodes do it by themselves, one step after
/// the other, while clients work. If that runs already, it is shown.
#[utoipa::path(post, path = "/api/v1/cluster/authority/rotation", responses(
    (status = 200, body = AuthorityView), (status = 404, description = "The server is in no cluster"),
    (status = 409, description = "Somebody else runs etcd with certificates of the authority")))]
pub(super) async fn cluster_authority_rotate(
    State(shared): Api,
) -> Result<Json<AuthorityView>, ControlError> {
    to_the_end(async move { shared.control.cluster_authority_rotate().await })
        .await
        .map(Json)
}

/// Makes a ticket with which one node can join the cluster.
#[utoipa::path(post, path = "/api/v1/cluster/tickets", request_body = TicketCreate, responses(
    (status = 200, body = TicketView), (status = 400, description = "It would be valid for too long"), (status = 404, description = "The server is in no cluster")))]
pub(super) async fn cluster_ticket(
    State(shared): Api,
    Given(create): Given<TicketCreate>,
) -> Result<Json<TicketView>, ControlError> {
    to_the_end(async move { shared.control.cluster_ticket(create).await })
        .await
        .map(Json)
}

/// Moves all that a node has to other nodes, or stops that. `node` is its name. How far it is, says `drain` of the node.
#[utoipa::path(patch, path = "/api/v1/cluster/nodes/{node}", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeChange, responses((status = 200, body = ClusterView),
    (status = 409, description = "Too little redundancy or space would be left")))]
pub(super) async fn node_set(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(change): Given<NodeChange>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_drain(node, change.draining).await })
        .await
        .map(Json)
}

/// Says that a node is meant to be away for a while: its volumes move to other nodes at once, it takes none, and nothing on its
/// disks is rebuilt. It stays in the cluster with all that it has, unlike one that drains.
#[utoipa::path(put, path = "/api/v1/cluster/nodes/{node}/maintenance", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeMaintenance, responses((status = 200, body = ClusterView),
    (status = 409, description = "The node is to leave, or the time is too long")))]
pub(super) async fn node_maintenance(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(set): Given<NodeMaintenance>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_maintenance(node, set.seconds).await })
        .await
        .map(Json)
}

/// Says which part of the load a node has beside others. Volumes follow one at a time, after a while; with 0 all of them leave at
/// once.
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

/// Who owns how much of the cluster's load, and which volumes should move so that it is spread. It changes nothing.
#[utoipa::path(get, path = "/api/v1/cluster/balance", responses(
    (status = 200, body = BalanceView), (status = 404, description = "The server is in no cluster")))]
pub(super) async fn balance(State(shared): Api) -> Result<Json<BalanceView>, ControlError> {
    shared.control.balance().await.map(Json)
}

/// Moves the first of the volumes that should move, waits until its new owner serves it, and says what should move then. Clients of
/// that volume feel a short pause.
#[utoipa::path(post, path = "/api/v1/cluster/balance", responses(
    (status = 200, body = BalanceView), (status = 404, description = "The server is in no cluster"),
    (status = 503, description = "The volume did not move")))]
pub(super) async fn balance_step(State(shared): Api) -> Result<Json<BalanceView>, ControlError> {
    to_the_end(async move { shared.control.balance_step().await })
        .await
        .map(Json)
}

/// Has another node take the place of one: all that it has moves to others, at once also if it is lost, and then it is
/// removed from the cluster.
#[utoipa::path(post, path = "/api/v1/cluster/nodes/{node}/replace", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = NodeReplace, responses((status = 200, body = ClusterView),
    (status = 409, description = "Too little redundancy or space would be left")))]
pub(super) async fn node_replace(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
    Given(replace): Given<NodeReplace>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.node_replace(node, replace.by).await })
        .await
        .map(Json)
}

/// Takes a drained node out of the cluster: other nodes refuse it from then on, and its server ends.
#[utoipa::path(delete, path = "/api/v1/cluster/nodes/{node}", params(("node" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204), (status = 409, description = "Something is on it still")))]
pub(super) async fn node_remove(
    State(shared): Api,
    NodeNamed(node): NodeNamed,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { shared.control.node_remove(node).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
