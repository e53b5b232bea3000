//! The paths of buckets and access keys.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;

use super::{Api, Given, InPath, ServerCore, switch_of, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::s3::{
    AccessKeyCreate, AccessKeyList, AccessKeyView, BucketCreate, BucketList, BucketSet, BucketView,
    S3Control,
};

fn s3(shared: &ServerCore) -> Result<&dyn S3Control, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no buckets");
    shared.control.s3().ok_or_else(absent)
}

/// Lists all buckets of all volumes.
#[utoipa::path(get, path = "/api/v1/buckets", responses((status = 200, body = BucketList)))]
pub(super) async fn bucket_list(State(shared): Api) -> Result<Json<BucketList>, ControlError> {
    let buckets = s3(&shared)?.buckets().await?;
    Ok(Json(BucketList { buckets }))
}

/// Creates a bucket on a new or existing directory.
#[utoipa::path(post, path = "/api/v1/buckets", request_body = BucketCreate, responses(
    (status = 201, body = BucketView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn bucket_create(
    State(shared): Api,
    Given(create): Given<BucketCreate>,
) -> Result<(StatusCode, Json<BucketView>), ControlError> {
    let made = to_the_end(async move { s3(&shared)?.bucket_create(create).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Changes a bucket, except settings that belong to S3 clients.
#[utoipa::path(patch, path = "/api/v1/buckets/{bucket}", params(("bucket" = String, Path, min_length = 3, max_length = 63, pattern = r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$")), request_body = BucketSet,
    responses((status = 200, body = BucketView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub(super) async fn bucket_set(
    State(shared): Api,
    InPath(name): InPath<String>,
    Given(set): Given<BucketSet>,
) -> Result<Json<BucketView>, ControlError> {
    let bucket = to_the_end(async move { s3(&shared)?.bucket_set(name, set).await }).await?;
    Ok(Json(bucket))
}

/// Deletes an empty bucket and its directory; with `keep=true` deletes only the bucket and keeps the directory.
#[utoipa::path(delete, path = "/api/v1/buckets/{bucket}", params(("bucket" = String, Path, min_length = 3, max_length = 63, pattern = r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$"), ("keep" = Option<bool>, Query)),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn bucket_delete(
    State(shared): Api,
    InPath(name): InPath<String>,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ControlError> {
    let keep = switch_of(query.as_deref(), "keep")?;
    to_the_end(async move { s3(&shared)?.bucket_delete(name, keep).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists all access keys of all volumes, without their secrets.
#[utoipa::path(get, path = "/api/v1/s3/keys", responses((status = 200, body = AccessKeyList)))]
pub(super) async fn key_list(State(shared): Api) -> Result<Json<AccessKeyList>, ControlError> {
    let keys = s3(&shared)?.access_keys().await?;
    Ok(Json(AccessKeyList { keys }))
}

/// Creates an access key. Only this answer has its secret.
#[utoipa::path(post, path = "/api/v1/s3/keys", request_body = AccessKeyCreate, responses(
    (status = 201, body = AccessKeyView), (status = 404, body = ErrorBody)))]
pub(super) async fn key_create(
    State(shared): Api,
    Given(create): Given<AccessKeyCreate>,
) -> Result<(StatusCode, Json<AccessKeyView>), ControlError> {
    let made = to_the_end(async move { s3(&shared)?.access_key_create(create).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Revokes an access key, at once. 409 with the kind `conflict`: the volume has no room to store that. The key is refused until the server
/// restarts or another node takes over the volume; repeat the request once the volume has room.
#[utoipa::path(delete, path = "/api/v1/s3/keys/{id}", params(("id" = String, Path, min_length = 1, max_length = 128)),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn key_revoke(
    State(shared): Api,
    InPath(id): InPath<String>,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { s3(&shared)?.access_key_revoke(id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
