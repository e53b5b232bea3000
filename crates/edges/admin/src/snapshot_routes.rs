//! The paths of snapshots.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use cairn_config::VolumeName;

use super::{Api, Given, InPath, Shared, switch_of, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::groups::{self, GroupAsk, GroupDone};
use crate::snapshots::{
    CloneCreate, GroupSnapshotCreate, GroupSnapshotView, RestoredView, SchedulesSet, SchedulesView,
    SnapshotControl, SnapshotCreate, SnapshotDiffAsk, SnapshotDiffPage, SnapshotList,
    SnapshotRestore, SnapshotSet, SnapshotView, VolumeRestore, VolumeRestoredView,
};

fn control(shared: &Shared) -> Result<&dyn SnapshotControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no snapshots");
    shared.control.snapshots().ok_or_else(absent)
}

/// The snapshots of a volume, oldest first; with `space=true`, with what deleting each alone would free.
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

/// Takes a snapshot of a volume. It is there, and durable, when this answers.
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

/// Takes snapshots of several volumes at one instant: all of them or none. They are there, and durable, when this answers.
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

/// What nodes alone ask of one another. No client gets there, whatever token it has.
pub(super) fn for_nodes() -> Router<Arc<Shared>> {
    Router::new().route(groups::PATH, post(snapshot_group_step))
}

/// A step of snapshots of one instant.
async fn snapshot_group_step(
    State(shared): Api,
    Given(ask): Given<GroupAsk>,
) -> Result<Json<GroupDone>, ControlError> {
    let done = async move { control(&shared)?.snapshot_group_step(ask).await };
    Ok(Json(to_the_end(done).await?))
}

/// A snapshot, with what deleting it alone would free.
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

/// Deletes a snapshot. Nobody sees it any more when this answers; its space is freed in the background.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/snapshots/{snapshot}", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("snapshot" = String, Path, min_length = 1, max_length = 100, pattern = r"^[A-Za-z0-9_:+@-][A-Za-z0-9._:+@-]*$")),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn snapshot_delete(
    State(shared): Api,
    InPath((volume, name)): InPath<(VolumeName, String)>,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { control(&shared)?.snapshot_delete(volume, name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// When snapshots of a volume are taken by themselves.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/schedules", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = SchedulesView), (status = 404, body = ErrorBody)))]
pub(super) async fn schedules(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
) -> Result<Json<SchedulesView>, ControlError> {
    Ok(Json(control(&shared)?.schedules(volume).await?))
}

/// Sets all schedules of a volume. Snapshots that earlier ones took stay.
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

/// Makes a file or directory anew as a snapshot has it. A file is there, whole and durable, when this answers; a directory is
/// made entry by entry.
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

/// Makes a whole volume what a snapshot of it shows. Clients are told to try again later meanwhile: as long as it takes to put
/// back what changed since. What the volume was is kept as another snapshot, unless that is not wanted.
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

/// What changed from a snapshot to a later one, or to now: names that came, went or moved, and files that were modified. It
/// costs as much as changed. Each page says what to ask with for the next one.
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

/// Makes a file or directory that begins as another of the volume is at one instant; they share their bytes. A file is there,
/// whole and durable, when this answers; a directory is made entry by entry.
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
