//! The paths of disks and read caches.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;

use super::requests::DiskNamed;
use super::{Api, Given, force_of, to_the_end};
use crate::api::{
    CacheAdd, CacheList, CacheView, DiskAdd, DiskChange, DiskList, DiskPlace, DiskReplace,
    DiskView, ErrorBody, ErrorKind,
};
use crate::control::ControlError;
use crate::query::Query;

/// The disks of the pool.
#[utoipa::path(get, path = "/api/v1/disks", responses(
    (status = 200, body = DiskList)))]
pub(super) async fn disk_list(State(shared): Api) -> Result<Json<DiskList>, ControlError> {
    let disks = shared.control.disks().await?;
    Ok(Json(DiskList { disks }))
}

/// What a folder of the server's machine is on, or would be: to be looked at before it becomes a disk. Nothing is made.
#[utoipa::path(get, path = "/api/v1/disk-place", params(("path" = String, Query, min_length = 1, max_length = 4096, pattern = r"^/")), responses(
    (status = 200, body = DiskPlace), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn disk_place(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Json<DiskPlace>, ControlError> {
    let query = Query::parse(query.as_deref(), &["path"])?;
    let path = query.values("path").last().map(str::to_owned);
    let path = path.ok_or_else(|| ControlError::new(ErrorKind::Invalid, "path is missing"))?;
    shared.control.disk_place(path).await.map(Json)
}

/// Takes an empty folder of the server's machine into the pool.
#[utoipa::path(post, path = "/api/v1/disks", request_body = DiskAdd, responses(
    (status = 201, body = DiskView), (status = 409, body = ErrorBody)))]
pub(super) async fn disk_add(
    State(shared): Api,
    Given(add): Given<DiskAdd>,
) -> Result<(StatusCode, Json<DiskView>), ControlError> {
    let disk = to_the_end(async move { shared.control.disk_add(add).await }).await?;
    Ok((StatusCode::CREATED, Json(disk)))
}

/// Moves the data of a disk to the others, or stops that; says what kind of device it is. `disk` is its id, or the beginning of it.
#[utoipa::path(patch, path = "/api/v1/disks/{disk}", params(("disk" = String, Path, min_length = 1, max_length = 64)),
    request_body = DiskChange, responses(
    (status = 200, body = DiskView), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn disk_set(
    State(shared): Api,
    DiskNamed(disk): DiskNamed,
    Given(change): Given<DiskChange>,
) -> Result<Json<DiskView>, ControlError> {
    to_the_end(async move {
        let mut view = None;
        if let Some(media) = change.media {
            view = Some(shared.control.disk_media(disk.clone(), media).await?);
        }
        if let Some(draining) = change.draining {
            view = Some(shared.control.disk_drain(disk, draining).await?);
        }
        view.ok_or_else(|| ControlError::new(ErrorKind::Invalid, "nothing is to be changed"))
    })
    .await
    .map(Json)
}

/// Takes a disk out of the pool. One with data on it only with `force=true`, and only if that data can
/// be rebuilt from the others.
#[utoipa::path(delete, path = "/api/v1/disks/{disk}",
    params(("disk" = String, Path, min_length = 1, max_length = 64), ("force" = Option<bool>, Query)), responses(
    (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn disk_remove(
    State(shared): Api,
    DiskNamed(disk): DiskNamed,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ControlError> {
    let force = force_of(query.as_deref())?;
    to_the_end(async move { shared.control.disk_remove(disk, force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Puts a new disk into the place of one that is there or lost; the old one leaves the pool when
/// everything that it held is on others.
#[utoipa::path(post, path = "/api/v1/disks/{disk}/replace", params(("disk" = String, Path, min_length = 1, max_length = 64)),
    request_body = DiskReplace, responses(
    (status = 201, body = DiskView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn disk_replace(
    State(shared): Api,
    DiskNamed(disk): DiskNamed,
    Given(by): Given<DiskReplace>,
) -> Result<(StatusCode, Json<DiskView>), ControlError> {
    let disk = to_the_end(async move { shared.control.disk_replace(disk, by).await }).await?;
    Ok((StatusCode::CREATED, Json(disk)))
}

/// Takes a disk back that is not used any more, without a restart, if it answers and takes what it is asked to. It is given what it
/// missed before it counts. In a cluster any node takes the request; the node of the disk has to run.
#[utoipa::path(post, path = "/api/v1/disks/{disk}/retry",
    params(("disk" = String, Path, min_length = 1, max_length = 64)), responses(
    (status = 200, body = DiskView), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn disk_retry(
    State(shared): Api,
    DiskNamed(disk): DiskNamed,
) -> Result<Json<DiskView>, ControlError> {
    to_the_end(async move { shared.control.disk_retry(disk).await })
        .await
        .map(Json)
}

/// The read caches of the server that answers.
#[utoipa::path(get, path = "/api/v1/caches", responses(
    (status = 200, body = CacheList)))]
pub(super) async fn cache_list(State(shared): Api) -> Result<Json<CacheList>, ControlError> {
    shared.control.caches().await.map(Json)
}

/// Makes a read cache in a folder of the server's machine, and uses it from then on.
#[utoipa::path(post, path = "/api/v1/caches", request_body = CacheAdd, responses(
    (status = 201, body = CacheView), (status = 409, body = ErrorBody)))]
pub(super) async fn cache_add(
    State(shared): Api,
    Given(add): Given<CacheAdd>,
) -> Result<(StatusCode, Json<CacheView>), ControlError> {
    let cache = to_the_end(async move { shared.control.cache_add(add).await }).await?;
    Ok((StatusCode::CREATED, Json(cache)))
}

/// Uses a read cache no more, and empties its folder. `cache` is its id.
#[utoipa::path(delete, path = "/api/v1/caches/{cache}", params(("cache" = String, Path, min_length = 1, max_length = 64)), responses(
    (status = 204), (status = 404, body = ErrorBody)))]
pub(super) async fn cache_remove(
    State(shared): Api,
    DiskNamed(cache): DiskNamed,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { shared.control.cache_remove(cache).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
