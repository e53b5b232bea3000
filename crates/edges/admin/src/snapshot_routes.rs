//! The paths of snapshots.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use cairn_config::VolumeName;

use super::{Api, Given, InPath, ServerCore, switch_of, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::groups::{self, GroupAsk, GroupDone};
use crate::snapshots::{
    CloneCreate, GroupSnapshotCreate, GroupSnapshotView, RestoredView, SchedulesSet, SchedulesView,
    SnapshotControl, SnapshotCreate, SnapshotDiffAsk, SnapshotDiffPage, SnapshotList,
    SnapshotRestore, SnapshotSet, SnapshotView, VolumeRestore, VolumeRestoredView,
};

fn control(shared: &ServerCore) -> Result<&dyn SnapshotControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no snapshots");
    shared.control.snapshots().ok_or_else(absent)
}

/// Lists the snapshots of a volume, oldest first; with `space=true`, with the space that deleting each one alone would free.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/snapshots", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("space" = Option<bool>, Query)),
    responses((status = 200, body = SnapshotList), (status = 404, body = ErrorBody)))]
pub(super) async fn snapshot_list(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    RawQuery(query): RawQuery,
) -> Result<Json<SnapshotList>, ControlError> {
    let with_space = switch_of(query.as_deref(), "space")?;
    let list = control(&shared)?.snapshots(volume, with_space).await?;
    Ok(Json(list))
}

/// Takes a snapshot of a volume. The snapshot is visible and durable once this answers.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/snapshots", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = SnapshotCreate,
    responses((status = 201, body = SnapshotView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn snapshot_create(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    Given(create): Given<SnapshotCreate>,
) -> Result<(StatusCode, Json<SnapshotView>), ControlError> {
    let made =
        to_the_end(async move { control(&shared)?.snapshot_create(volume, create).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Takes snapshots of a consistency group of volumes at one instant: all or none. They are visible and durable once this answers.
#[utoipa::path(post, path = "/api/v1/snapshots", request_body = GroupSnapshotCreate,
    responses((status = 201, body = GroupSnapshotView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn snapshot_create_group(
    State(shared): Api,
    Given(create): Given<GroupSnapshotCreate>,
) -> Result<(StatusCode, Json<GroupSnapshotView>), ControlError> {
    let made =
        to_the_end(async move { control(&shared)?.snapshot_create_group(create).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Routes between nodes. Clients cannot reach them, whatever their token.
pub(super) fn for_nodes() -> Router<Arc<ServerCore>> {
    Router::new().route(groups::PATH, post(snapshot_group_step))
}

/// A step of the snapshots of a consistency group.
async fn snapshot_group_step(
    State(shared): Api,
    Given(ask): Given<GroupAsk>,
) -> Result<Json<GroupDone>, ControlError> {
    let done = async move { control(&shared)?.snapshot_group_step(ask).await };
    Ok(Json(to_the_end(done).await?))
}

/// Shows a snapshot, with the space that deleting only it would free.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/snapshots/{snapshot}", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("snapshot" = String, Path, min_length = 1, max_length = 100, pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$")),
    responses((status = 200, body = SnapshotView), (status = 404, body = ErrorBody)))]
pub(super) async fn snapshot_show(
    State(shared): Api,
    InPath((volume, name)): InPath<(VolumeName, String)>,
) -> Result<Json<SnapshotView>, ControlError> {
    Ok(Json(control(&shared)?.snapshot(volume, name).await?))
}

/// Renames a snapshot, locks it, or unlocks it.
#[utoipa::path(patch, path = "/api/v1/volumes/{name}/snapshots/{snapshot}", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("snapshot" = String, Path, min_length = 1, max_length = 100, pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$")),
    request_body = SnapshotSet, responses((status = 200, body = SnapshotView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn snapshot_set(
    State(shared): Api,
    InPath((volume, name)): InPath<(VolumeName, String)>,
    Given(set): Given<SnapshotSet>,
) -> Result<Json<SnapshotView>, ControlError> {
    let set = async move { control(&shared)?.snapshot_set(volume, name, set).await };
    Ok(Json(to_the_end(set).await?))
}

/// Deletes a snapshot. It is invisible once this answers; its space is freed in the background.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/snapshots/{snapshot}", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("snapshot" = String, Path, min_length = 1, max_length = 100, pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$")),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn snapshot_delete(
    State(shared): Api,
    InPath((volume, name)): InPath<(VolumeName, String)>,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { control(&shared)?.snapshot_delete(volume, name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows the snapshot schedules of a volume.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/schedules", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = SchedulesView), (status = 404, body = ErrorBody)))]
pub(super) async fn schedules(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
) -> Result<Json<SchedulesView>, ControlError> {
    Ok(Json(control(&shared)?.schedules(volume).await?))
}

/// Sets all snapshot schedules of a volume. Snapshots of earlier schedules stay.
#[utoipa::path(put, path = "/api/v1/volumes/{name}/schedules", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = SchedulesSet,
    responses((status = 200, body = SchedulesView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn schedules_set(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    Given(set): Given<SchedulesSet>,
) -> Result<Json<SchedulesView>, ControlError> {
    let set = async move { control(&shared)?.schedules_set(volume, set).await };
    Ok(Json(to_the_end(set).await?))
}

/// Restores a file or directory from a snapshot. A file is complete and durable once this answers; a directory is restored entry
/// by entry.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/snapshots/{snapshot}/restore", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("snapshot" = String, Path, min_length = 1, max_length = 100, pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$")),
    request_body = SnapshotRestore, responses((status = 200, body = RestoredView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn snapshot_restore(
    State(shared): Api,
    InPath((volume, name)): InPath<(VolumeName, String)>,
    Given(restore): Given<SnapshotRestore>,
) -> Result<Json<RestoredView>, ControlError> {
    let restored = async move {
        let control = control(&shared)?;
        control.snapshot_restore(volume, name, restore).await
    };
    Ok(Json(to_the_end(restored).await?))
}

/// Rolls a whole volume back to a snapshot. Clients wait until all later changes are undone. Another snapshot keeps the earlier
/// content of the volume, unless `discard` is set.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/snapshots/{snapshot}/restore-volume",
    params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("snapshot" = String, Path, min_length = 1, max_length = 100, pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$")), request_body = VolumeRestore,
    responses((status = 200, body = VolumeRestoredView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn volume_restore(
    State(shared): Api,
    InPath((volume, name)): InPath<(VolumeName, String)>,
    Given(restore): Given<VolumeRestore>,
) -> Result<Json<VolumeRestoredView>, ControlError> {
    let restored = async move {
        let control = control(&shared)?;
        control.volume_restore(volume, name, restore).await
    };
    Ok(Json(to_the_end(restored).await?))
}

/// Lists changes from a snapshot to a later one, or to now: created, deleted and renamed names, and modified files. The cost grows
/// with the number of changes. Each page has the parameter for the next page.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/snapshots/{snapshot}/diff",
    params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("snapshot" = String, Path, min_length = 1, max_length = 100, pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$")), request_body = SnapshotDiffAsk,
    responses((status = 200, body = SnapshotDiffPage), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn snapshot_diff(
    State(shared): Api,
    InPath((volume, name)): InPath<(VolumeName, String)>,
    Given(ask): Given<SnapshotDiffAsk>,
) -> Result<Json<SnapshotDiffPage>, ControlError> {
    // To its end also if nobody waits for it any more: the page is asked for again then.
    let page = async move { control(&shared)?.snapshot_diff(volume, name, ask).await };
    Ok(Json(to_the_end(page).await?))
}

/// Clones a file or directory at one instant; source and clone share their data. A file is complete and durable once this answers;
/// a directory is cloned entry by entry.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/clones", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = CloneCreate,
    responses((status = 201, body = RestoredView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn clone_create(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    Given(create): Given<CloneCreate>,
) -> Result<(StatusCode, Json<RestoredView>), ControlError> {
    let made = async move { control(&shared)?.clone_path(volume, create).await };
    Ok((StatusCode::CREATED, Json(to_the_end(made).await?)))
}
