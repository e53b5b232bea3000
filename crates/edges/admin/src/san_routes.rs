//! The paths of LUNs, groups, initiators and sessions.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use cairn_config::VolumeName;

use super::{Api, Given, InPath, ServerCore, force_of, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::san::{
    IgroupList, IgroupSet, IgroupView, InitiatorList, InitiatorSet, InitiatorView, LunAt, LunClone,
    LunCreate, LunList, LunMapSet, LunRestore, LunSet, LunView, SanControl, SessionList,
};

fn san(shared: &ServerCore) -> Result<&dyn SanControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no LUNs");
    shared.control.san().ok_or_else(absent)
}

fn named(volume: &str) -> Result<VolumeName, ControlError> {
    let absent = |_| {
        ControlError::new(
            ErrorKind::NotFound,
            "there is no volume of the name in the path",
        )
    };
    volume.parse().map_err(absent)
}

fn at(volume: &str, name: String) -> Result<LunAt, ControlError> {
    Ok(LunAt {
        volume: named(volume)?,
        name,
    })
}

/// Lists all LUNs of all volumes.
#[utoipa::path(get, path = "/api/v1/luns", responses((status = 200, body = LunList)))]
pub(super) async fn lun_list(State(shared): Api) -> Result<Json<LunList>, ControlError> {
    let luns = san(&shared)?.luns().await?;
    Ok(Json(LunList { luns }))
}

/// Creates a LUN. No host sees it until it is mapped.
#[utoipa::path(post, path = "/api/v1/luns", request_body = LunCreate, responses(
    (status = 201, body = LunView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn lun_create(
    State(shared): Api,
    Given(create): Given<LunCreate>,
) -> Result<(StatusCode, Json<LunView>), ControlError> {
    let made = to_the_end(async move { san(&shared)?.lun_create(create).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Shows one LUN.
#[utoipa::path(get, path = "/api/v1/luns/{volume}/{lun}", params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("lun" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = LunView), (status = 404, body = ErrorBody)))]
pub(super) async fn lun_show(
    State(shared): Api,
    InPath((volume, lun)): InPath<(String, String)>,
) -> Result<Json<LunView>, ControlError> {
    san(&shared)?.lun(at(&volume, lun)?).await.map(Json)
}

/// Changes a LUN: size, online, read-only, writeback.
#[utoipa::path(patch, path = "/api/v1/luns/{volume}/{lun}", params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("lun" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = LunSet, responses((status = 200, body = LunView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn lun_set(
    State(shared): Api,
    InPath((volume, lun)): InPath<(String, String)>,
    Given(set): Given<LunSet>,
) -> Result<Json<LunView>, ControlError> {
    let at = at(&volume, lun)?;
    to_the_end(async move { san(&shared)?.lun_set(at, set).await })
        .await
        .map(Json)
}

/// Clones a LUN at once, without copying its blocks. No host sees the clone until it is mapped.
#[utoipa::path(post, path = "/api/v1/luns/{volume}/{lun}/clone", params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("lun" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = LunClone, responses((status = 201, body = LunView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn lun_clone(
    State(shared): Api,
    InPath((volume, lun)): InPath<(String, String)>,
    Given(clone): Given<LunClone>,
) -> Result<(StatusCode, Json<LunView>), ControlError> {
    let at = at(&volume, lun)?;
    let made = to_the_end(async move { san(&shared)?.lun_clone(at, clone).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Rolls an offline LUN back to a snapshot of its volume at once, with its size, without copying blocks.
#[utoipa::path(post, path = "/api/v1/luns/{volume}/{lun}/restore", params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("lun" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = LunRestore, responses((status = 200, body = LunView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn lun_restore(
    State(shared): Api,
    InPath((volume, lun)): InPath<(String, String)>,
    Given(restore): Given<LunRestore>,
) -> Result<Json<LunView>, ControlError> {
    let at = at(&volume, lun)?;
    to_the_end(async move { san(&shared)?.lun_restore(at, restore).await })
        .await
        .map(Json)
}

/// Deletes a LUN and all its data. A mapped LUN is deleted only with `force=true`.
#[utoipa::path(delete, path = "/api/v1/luns/{volume}/{lun}",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("lun" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("force" = Option<bool>, Query)), responses(
    (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn lun_delete(
    State(shared): Api,
    InPath((volume, lun)): InPath<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ControlError> {
    let force = force_of(query.as_deref())?;
    let at = at(&volume, lun)?;
    to_the_end(async move { san(&shared)?.lun_delete(at, force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Maps a LUN to an initiator group.
#[utoipa::path(put, path = "/api/v1/luns/{volume}/{lun}/maps/{igroup}",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("lun" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("igroup" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = LunMapSet,
    responses((status = 200, body = LunView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn lun_map(
    State(shared): Api,
    InPath((volume, lun, igroup)): InPath<(String, String, String)>,
    Given(map): Given<LunMapSet>,
) -> Result<Json<LunView>, ControlError> {
    let at = at(&volume, lun)?;
    to_the_end(async move { san(&shared)?.lun_map(at, igroup, map).await })
        .await
        .map(Json)
}

/// Unmaps a LUN from an initiator group.
#[utoipa::path(delete, path = "/api/v1/luns/{volume}/{lun}/maps/{igroup}",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("lun" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("igroup" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = LunView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn lun_unmap(
    State(shared): Api,
    InPath((volume, lun, igroup)): InPath<(String, String, String)>,
) -> Result<Json<LunView>, ControlError> {
    let at = at(&volume, lun)?;
    to_the_end(async move { san(&shared)?.lun_unmap(at, igroup).await })
        .await
        .map(Json)
}

/// Lists all initiator groups.
#[utoipa::path(get, path = "/api/v1/igroups", responses((status = 200, body = IgroupList)))]
pub(super) async fn igroup_list(State(shared): Api) -> Result<Json<IgroupList>, ControlError> {
    let igroups = san(&shared)?.igroups().await?;
    Ok(Json(IgroupList { igroups }))
}

/// Creates a group, or replaces its initiators.
#[utoipa::path(put, path = "/api/v1/igroups/{volume}/{igroup}",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("igroup" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = IgroupSet,
    responses((status = 200, body = IgroupView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn igroup_set(
    State(shared): Api,
    InPath((volume, igroup)): InPath<(String, String)>,
    Given(set): Given<IgroupSet>,
) -> Result<Json<IgroupView>, ControlError> {
    let volume = named(&volume)?;
    to_the_end(async move { san(&shared)?.igroup_set(volume, igroup, set).await })
        .await
        .map(Json)
}

/// Removes a group without mapped LUNs.
#[utoipa::path(delete, path = "/api/v1/igroups/{volume}/{igroup}",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("igroup" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn igroup_remove(
    State(shared): Api,
    InPath((volume, igroup)): InPath<(String, String)>,
) -> Result<StatusCode, ControlError> {
    let volume = named(&volume)?;
    to_the_end(async move { san(&shared)?.igroup_remove(volume, igroup).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the initiators with a CHAP secret.
#[utoipa::path(get, path = "/api/v1/initiators", responses((status = 200, body = InitiatorList)))]
pub(super) async fn initiator_list(
    State(shared): Api,
) -> Result<Json<InitiatorList>, ControlError> {
    let initiators = san(&shared)?.initiators().await?;
    Ok(Json(InitiatorList { initiators }))
}

/// Sets the CHAP user and secret of an initiator, and those of the target for mutual CHAP.
#[utoipa::path(put, path = "/api/v1/initiators/{volume}/{initiator}",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("initiator" = String, Path, min_length = 5, max_length = 223, pattern = r"^(iqn|eui|naa)\.[a-z0-9.:-]+$")), request_body = InitiatorSet,
    responses((status = 200, body = InitiatorView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn initiator_set(
    State(shared): Api,
    InPath((volume, initiator)): InPath<(String, String)>,
    Given(set): Given<InitiatorSet>,
) -> Result<Json<InitiatorView>, ControlError> {
    let volume = named(&volume)?;
    to_the_end(async move { san(&shared)?.initiator_set(volume, initiator, set).await })
        .await
        .map(Json)
}

/// Removes the CHAP user and secret of an initiator: its name alone then admits it.
#[utoipa::path(delete, path = "/api/v1/initiators/{volume}/{initiator}",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("initiator" = String, Path, min_length = 5, max_length = 223, pattern = r"^(iqn|eui|naa)\.[a-z0-9.:-]+$")),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub(super) async fn initiator_remove(
    State(shared): Api,
    InPath((volume, initiator)): InPath<(String, String)>,
) -> Result<StatusCode, ControlError> {
    let volume = named(&volume)?;
    to_the_end(async move { san(&shared)?.initiator_remove(volume, initiator).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the connected initiators.
#[utoipa::path(get, path = "/api/v1/iscsi/sessions", responses((status = 200, body = SessionList)))]
pub(super) async fn session_list(State(shared): Api) -> Result<Json<SessionList>, ControlError> {
    let sessions = san(&shared)?.sessions().await?;
    Ok(Json(SessionList { sessions }))
}
