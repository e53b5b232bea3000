//! The paths of quotas.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use cairn_config::VolumeName;

use super::{Api, Given, InPath, ServerCore, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::query::Query;
use crate::quotas::{QuotaAt, QuotaControl, QuotaList, QuotaOf, QuotaSet, QuotaView};

fn control(shared: &ServerCore) -> Result<&dyn QuotaControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no quotas");
    shared.control.quotas().ok_or_else(absent)
}

/// Reads the quota of a request.
fn quota_at(query: Option<&str>) -> Result<QuotaAt, ControlError> {
    let invalid = |message: String| ControlError::new(ErrorKind::Invalid, message);
    let query = Query::parse(query, &["path", "of", "id"])?;
    let one = |key: &str| query.values(key).last().map(str::to_owned);
    let of = one("of").unwrap_or_else(|| "all".to_owned());
    let of = QuotaOf::from_name(&of).ok_or_else(|| {
        invalid(format!(
            "{of:?} is not one of all, user, group, default-user or default-group"
        ))
    })?;
    let id = one("id")
        .map(|id| id.parse::<u32>())
        .transpose()
        .map_err(|_| invalid("the id of a user or group is a number".to_owned()))?;
    Ok(QuotaAt {
        path: one("path").unwrap_or_else(|| "/".to_owned()),
        of,
        id,
    })
}

/// Lists all quotas of a volume.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/quotas", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = QuotaList), (status = 404, body = ErrorBody)))]
pub(super) async fn quota_list(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
) -> Result<Json<QuotaList>, ControlError> {
    Ok(Json(control(&shared)?.quotas(volume).await?))
}

/// Sets or replaces a quota. The quota applies once this answers. The existing usage of a directory is counted in the background,
/// and the quota says so meanwhile.
#[utoipa::path(put, path = "/api/v1/volumes/{name}/quotas", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = QuotaSet,
    responses((status = 200, body = QuotaView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn quota_set(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    Given(set): Given<QuotaSet>,
) -> Result<Json<QuotaView>, ControlError> {
    let set = async move { control(&shared)?.quota_set(volume, set).await };
    Ok(Json(to_the_end(set).await?))
}

/// Shows one quota, or the usage if there is no quota.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/quota", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("path" = Option<String>, Query, max_length = 4096, pattern = r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$"),
    ("of" = Option<String>, Query, pattern = "^(all|user|group|default-user|default-group)$"), ("id" = Option<u32>, Query)),
    responses((status = 200, body = QuotaView), (status = 404, body = ErrorBody)))]
pub(super) async fn quota_show(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    RawQuery(query): RawQuery,
) -> Result<Json<QuotaView>, ControlError> {
    let at = quota_at(query.as_deref())?;
    Ok(Json(control(&shared)?.quota(volume, at).await?))
}

/// Removes a quota.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/quota", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("path" = Option<String>, Query, max_length = 4096, pattern = r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$"),
    ("of" = Option<String>, Query, pattern = "^(all|user|group|default-user|default-group)$"), ("id" = Option<u32>, Query)),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn quota_remove(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ControlError> {
    let at = quota_at(query.as_deref())?;
    to_the_end(async move { control(&shared)?.quota_remove(volume, at).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the usage of each user, or group (`of=group`), in a directory with a quota, or in the volume.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/quota/usages", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    ("path" = Option<String>, Query, max_length = 4096, pattern = r"^/*(([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)(/+([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+))*)?/*$"), ("of" = String, Query, pattern = "^(user|group)$")),
    responses((status = 200, body = QuotaList), (status = 404, body = ErrorBody)))]
pub(super) async fn quota_usages(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
    RawQuery(query): RawQuery,
) -> Result<Json<QuotaList>, ControlError> {
    let at = quota_at(query.as_deref())?;
    Ok(Json(control(&shared)?.quota_usages(volume, at).await?))
}
