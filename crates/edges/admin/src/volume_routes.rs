//! The paths of volumes and their exports.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use cairn_config::ClientNet;

use super::{Api, Given, VolumeInPath, force_of, to_the_end};
use crate::api::{
    ClusterView, ErrorBody, ErrorKind, ExportList, ExportSet, ExportView, VolumeAddressSet,
    VolumeChange, VolumeCloneCreate, VolumeCreate, VolumeList, VolumeMove, VolumeView,
};
use crate::control::ControlError;
use crate::list_query::ListQuery;
use crate::query::Query;

/// Moves a volume to another node, which owns it whenever it can.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/move", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = VolumeMove, responses((status = 200, body = VolumeView)))]
pub(super) async fn volume_move(
    State(shared): Api,
    VolumeInPath(name): VolumeInPath,
    Given(to): Given<VolumeMove>,
) -> Result<Json<VolumeView>, ControlError> {
    to_the_end(async move { shared.control.volume_move(name, to.to).await })
        .await
        .map(Json)
}

/// Gives a volume an address that its owner always holds.
#[utoipa::path(put, path = "/api/v1/volumes/{name}/address", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = VolumeAddressSet, responses((status = 200, body = ClusterView)))]
pub(super) async fn volume_address_set(
    State(shared): Api,
    VolumeInPath(name): VolumeInPath,
    Given(address): Given<VolumeAddressSet>,
) -> Result<Json<ClusterView>, ControlError> {
    to_the_end(async move { shared.control.volume_address(name, Some(address)).await })
        .await
        .map(Json)
}

/// Removes the address of a volume.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/address", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204)))]
pub(super) async fn volume_address_remove(
    State(shared): Api,
    VolumeInPath(name): VolumeInPath,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { shared.control.volume_address(name, None).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists volumes by name: all, or a page of at most `limit`, 1 to 1000. `next_after` is the `after` of the next page. `name` is a
/// part of the name; case is ignored.
#[utoipa::path(get, path = "/api/v1/volumes", params(("name" = Option<String>, Query), ("after" = Option<String>, Query),
    ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000)), responses((status = 200, body = VolumeList), (status = 400, body = ErrorBody)))]
pub(super) async fn volume_list(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Json<VolumeList>, ControlError> {
    let query = Query::parse(query.as_deref(), ListQuery::KEYS)?;
    let query = ListQuery::of(&query);
    let query = query.map_err(|problem| ControlError::new(ErrorKind::Invalid, problem))?;
    shared.control.volumes(query).await.map(Json)
}

/// Creates a volume. No client can mount it until an export is set.
#[utoipa::path(post, path = "/api/v1/volumes", request_body = VolumeCreate, responses(
    (status = 201, body = VolumeView), (status = 409, body = ErrorBody)))]
pub(super) async fn volume_create(
    State(shared): Api,
    Given(create): Given<VolumeCreate>,
) -> Result<(StatusCode, Json<VolumeView>), ControlError> {
    let made = to_the_end(async move { shared.control.volume_create(create).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Clones a volume or one of its snapshots. A clone of any size is ready at once and shares its data with the source. No client
/// can mount it until an export is set.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/volume-clones", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = VolumeCloneCreate, responses(
    (status = 201, body = VolumeView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn volume_clone(
    State(shared): Api,
    VolumeInPath(name): VolumeInPath,
    Given(clone): Given<VolumeCloneCreate>,
) -> Result<(StatusCode, Json<VolumeView>), ControlError> {
    let made = to_the_end(async move { shared.control.volume_clone(name, clone).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Shows one volume.
#[utoipa::path(get, path = "/api/v1/volumes/{name}", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), responses(
    (status = 200, body = VolumeView), (status = 404, body = ErrorBody)))]
pub(super) async fn volume_show(
    State(shared): Api,
    VolumeInPath(name): VolumeInPath,
) -> Result<Json<VolumeView>, ControlError> {
    shared.control.volume(name).await.map(Json)
}

/// Changes settings of a volume.
#[utoipa::path(patch, path = "/api/v1/volumes/{name}", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = VolumeChange, responses(
    (status = 200, body = VolumeView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn volume_set(
    State(shared): Api,
    VolumeInPath(name): VolumeInPath,
    Given(change): Given<VolumeChange>,
) -> Result<Json<VolumeView>, ControlError> {
    to_the_end(async move { shared.control.volume_set(name, change).await })
        .await
        .map(Json)
}

/// Deletes a volume and all its data. An exported volume is deleted only with `force=true`.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}",
    params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("force" = Option<bool>, Query)), responses(
    (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn volume_delete(
    State(shared): Api,
    VolumeInPath(name): VolumeInPath,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ControlError> {
    let force = force_of(query.as_deref())?;
    to_the_end(async move { shared.control.volume_delete(name, force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the exports: which clients may mount which volume.
#[utoipa::path(get, path = "/api/v1/exports", responses(
    (status = 200, body = ExportList)))]
pub(super) async fn export_list(State(shared): Api) -> Result<Json<ExportList>, ControlError> {
    let exports = shared.control.exports().await?;
    Ok(Json(ExportList { exports }))
}

/// Adds rules to the export of a volume, or replaces those for the same clients.
#[utoipa::path(put, path = "/api/v1/exports/{volume}", params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = ExportSet, responses(
    (status = 200, body = ExportView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn export_set(
    State(shared): Api,
    VolumeInPath(volume): VolumeInPath,
    Given(set): Given<ExportSet>,
) -> Result<Json<ExportView>, ControlError> {
    to_the_end(async move { shared.control.export_set(volume, set.rules).await })
        .await
        .map(Json)
}

/// Removes the rules of the clients in `client`, which may be given more than once; without `client`, removes all rules. Other
/// query keys are errors.
#[utoipa::path(delete, path = "/api/v1/exports/{volume}",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("client" = Option<String>, Query, min_length = 2, max_length = 49, pattern = r"^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}(/(3[0-2]|[12]?[0-9]))?|(([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,7}:|([0-9A-Fa-f]{1,4}:){1,6}(:[0-9A-Fa-f]{1,4}){1,1}|([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}|([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}|([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}|([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}|([0-9A-Fa-f]{1,4}:){1,1}(:[0-9A-Fa-f]{1,4}){1,6}|:(:[0-9A-Fa-f]{1,4}){1,7}|::)(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)$")), responses(
    (status = 200, body = ExportView), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(super) async fn export_remove(
    State(shared): Api,
    VolumeInPath(volume): VolumeInPath,
    RawQuery(query): RawQuery,
) -> Result<Json<ExportView>, ControlError> {
    let clients = Query::parse(query.as_deref(), &["client"])?
        .values("client")
        .map(|text| {
            text.parse::<ClientNet>()
                .map_err(|error| ControlError::new(ErrorKind::Invalid, error.to_string()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    to_the_end(async move { shared.control.export_remove(volume, clients).await })
        .await
        .map(Json)
}
