//! The paths of address pools.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::{Api, Given, InPath, ServerCore, to_the_end};
use crate::address_pools::{
    AddressPoolChange, AddressPoolControl, AddressPoolCreate, AddressPoolList, AddressPoolView,
};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;

fn control(shared: &ServerCore) -> Result<&dyn AddressPoolControl, ControlError> {
    let absent = || {
        let message =
            "this server is not in a cluster, so it has no nodes that could share addresses";
        ControlError::new(ErrorKind::NotFound, message)
    };
    shared.control.address_pools().ok_or_else(absent)
}

/// Lists address pools: each address with its home and its holder.
#[utoipa::path(get, path = "/api/v1/cluster/address-pools", responses((status = 200, body = AddressPoolList),
    (status = 404, description = "The server is not in a cluster", body = ErrorBody)))]
pub(super) async fn address_pool_list(
    State(shared): Api,
) -> Result<Json<AddressPoolList>, ControlError> {
    let pools = control(&shared)?.address_pools().await?;
    Ok(Json(AddressPoolList { pools }))
}

/// Creates an address pool. The nodes take its addresses within a second.
#[utoipa::path(post, path = "/api/v1/cluster/address-pools", request_body = AddressPoolCreate, responses(
    (status = 201, body = AddressPoolView), (status = 400, body = ErrorBody),
    (status = 409, description = "Something else has the name or an address", body = ErrorBody)))]
pub(super) async fn address_pool_create(
    State(shared): Api,
    Given(create): Given<AddressPoolCreate>,
) -> Result<(StatusCode, Json<AddressPoolView>), ControlError> {
    let creating = async move { control(&shared)?.address_pool_create(create).await };
    Ok((StatusCode::CREATED, Json(to_the_end(creating).await?)))
}

/// Shows one address pool.
#[utoipa::path(get, path = "/api/v1/cluster/address-pools/{pool}", params(("pool" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = AddressPoolView), (status = 404, body = ErrorBody)))]
pub(super) async fn address_pool_show(
    State(shared): Api,
    InPath(name): InPath<String>,
) -> Result<Json<AddressPoolView>, ControlError> {
    control(&shared)?.address_pool(name).await.map(Json)
}

/// Adds and removes addresses of an address pool. The holder of a removed address drops it, which disconnects its clients.
#[utoipa::path(patch, path = "/api/v1/cluster/address-pools/{pool}", params(("pool" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = AddressPoolChange, responses((status = 200, body = AddressPoolView),
    (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn address_pool_change(
    State(shared): Api,
    InPath(name): InPath<String>,
    Given(change): Given<AddressPoolChange>,
) -> Result<Json<AddressPoolView>, ControlError> {
    to_the_end(async move { control(&shared)?.address_pool_change(name, change).await })
        .await
        .map(Json)
}

/// Deletes an address pool; its nodes drop the addresses.
#[utoipa::path(delete, path = "/api/v1/cluster/address-pools/{pool}", params(("pool" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub(super) async fn address_pool_delete(
    State(shared): Api,
    InPath(name): InPath<String>,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { control(&shared)?.address_pool_delete(name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
