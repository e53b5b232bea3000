//! The paths of policies of directories.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use cairn_config::VolumeName;

use super::{Api, Given, InPath, ServerCore, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::policies::{ApplyStart, ApplyView, PolicyControl, PolicyList, PolicySet, PolicyView};
use crate::query::Query;

fn control(shared: &ServerCore) -> Result<&dyn PolicyControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no policies");
    shared.control.policies().ok_or_else(absent)
}

/// Reads the directory of a request.
fn path_of(query: Option<&str>) -> Result<String, ControlError> {
    let query = Query::parse(query, &["path"])?;
    let path = query.values("path").last().map(str::to_owned);
    Ok(path.unwrap_or_else(|| "/".to_owned()))
}

/// Lists the directories of a volume that have a policy.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/policies", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = PolicyList), (status = 404, body = ErrorBody)))]
pub(super) async fn policy_list(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
) -> Result<Json<PolicyList>, ControlError> {
    Ok(Json(control(&shared)?.policies(volume).await?))
}

/// Sets or replaces the policy of a directory. It applies to data written from then on.
#[utoipa::path(put, path = "/api/v1/volumes/{name}/policies", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = PolicySet,
    responses((status = 200, body = PolicyView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn policy_set(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    Given(set): Given<PolicySet>,
) -> Result<Json<PolicyView>, ControlError> {
    let set = async move { control(&shared)?.policy_set(volume, set).await };
    Ok(Json(to_the_end(set).await?))
}

/// Shows a directory's own settings and the effective ones.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/policy", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("path" = Option<String>, Query, max_length = 4096, pattern = r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$")),
    responses((status = 200, body = PolicyView), (status = 404, body = ErrorBody)))]
pub(super) async fn policy_show(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    RawQuery(query): RawQuery,
) -> Result<Json<PolicyView>, ControlError> {
    let path = path_of(query.as_deref())?;
    Ok(Json(control(&shared)?.policy(volume, path).await?))
}

/// Removes the policy of a directory. Existing data stays as it is stored.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/policy", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    ("path" = Option<String>, Query, max_length = 4096, pattern = r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$")),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub(super) async fn policy_clear(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ControlError> {
    let path = path_of(query.as_deref())?;
    to_the_end(async move { control(&shared)?.policy_clear(volume, path).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows the progress of the conversion of existing data, or the result of the last one.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/policy/apply", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = ApplyView), (status = 404, body = ErrorBody)))]
pub(super) async fn apply_show(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
) -> Result<Json<ApplyView>, ControlError> {
    Ok(Json(control(&shared)?.apply(volume).await?))
}

/// Starts to convert existing data to its policies, in the background. The conversion continues after a restart.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/policy/apply", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = ApplyStart,
    responses((status = 200, body = ApplyView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn apply_start(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    Given(start): Given<ApplyStart>,
) -> Result<Json<ApplyView>, ControlError> {
    let start = async move { control(&shared)?.apply_start(volume, start).await };
    Ok(Json(to_the_end(start).await?))
}

/// Cancels the running conversion. Converted data stays converted.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/policy/apply", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn apply_cancel(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
) -> Result<StatusCode, ControlError> {
    to_the_end(async move { control(&shared)?.apply_cancel(volume).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
