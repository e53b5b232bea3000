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

/// Lists the disks of the pool.
#[utoipa::path(get, path = "/api/v1/disks", responses(
    (status = 200, body = DiskList)))]
pub(super) async fn disk_list(State(shared): Api) -> Result<Json<DiskList>, ControlError> {
    let disks = shared.control.disks().await?;
    Ok(Json(DiskList { disks }))
}

/// Shows the device of a folder on the server, for a check before the folder becomes a disk. Creates nothing.
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

/// Adds an empty folder on the server to the pool, as a new disk.
#[utoipa::path(post, path = "/api/v1/disks", request_body = DiskAdd, responses(
    (status = 201, body = DiskView), (status = 409, body = ErrorBody)))]
pub(super) async fn disk_add(
    State(shared): Api,
    Given(add): Given<DiskAdd>,
) -> Result<(StatusCode, Json<DiskView>), ControlError> {
    let disk = to_the_end(async move { shared.control.disk_add(add).await }).await?;
    Ok((StatusCode::CREATED, Json(disk)))
}

/// Starts or cancels the drain of a disk, or sets its device class. `disk` is its id, or the beginning of its id.
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
        view.ok_or_else(|| ControlError::new(ErrorKind::Invalid, "the request changes nothing"))
    })
    .await
    .map(Json)
}

/// Removes a disk from the pool. A disk with data is removed only with `force=true`, and only if that data can be rebuilt from
/// the other disks.
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

/// Replaces a present or lost disk by a new one; the old disk leaves the pool once all its data is on other disks.
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

/// Takes a failed disk back without a restart, if reads and writes work again. The disk gets the writes that it missed, and counts
/// once it has them. In a cluster any node takes the request; the disk's node must be up.
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

/// Lists the read caches of the answering server.
#[utoipa::path(get, path = "/api/v1/caches", responses(
    (status = 200, body = CacheList)))]
pub(super) async fn cache_list(State(shared): Api) -> Result<Json<CacheList>, ControlError> {
    shared.control.caches().await.map(Json)
}

/// Creates a read cache in a folder on the server, and starts to use it.
#[utoipa::path(post, path = "/api/v1/caches", request_body = CacheAdd, responses(
    (status = 201, body = CacheView), (status = 409, body = ErrorBody)))]
pub(super) async fn cache_add(
    State(shared): Api,
    Given(add): Given<CacheAdd>,
) -> Result<(StatusCode, Json<CacheView>), ControlError> {
    let cache = to_the_end(async move { shared.control.cache_add(add).await }).await?;
    Ok((StatusCode::CREATED, Json(cache)))
}

/// Removes a read cache, and empties its folder. `cache` is its id.
#[utoipa::path(delete, path = "/api/v1/caches/{cache}", params(("cache" = String, Path, min_length = 1, max_length = 64)), responses(
    (status = 204), (status = 404, body = ErrorBody)))]
pub(super) async fn cache_remove(
    State(shared): Api,
    DiskNamed(cache): DiskNamed,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { shared.control.cache_remove(cache).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
