//! The paths of classes of service.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use cairn_config::{ClassName, PartLimit, VolumePart, WordError};

use super::{Api, Given, InPath, ServerCore, VolumeInPath, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::classes::{ClassControl, ClassCreate, ClassList, ClassSet, ClassView, PartList};
use crate::control::ControlError;
use crate::query::Query;

fn control(shared: &ServerCore) -> Result<&dyn ClassControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no classes");
    shared.control.classes().ok_or_else(absent)
}

/// A text that cannot be a name is one that no class has.
fn named(text: &str) -> Result<ClassName, ControlError> {
    let absent = |_| {
        let message = "there is no class of the name in the path";
        ControlError::new(ErrorKind::NotFound, message).hint("`cairn class list` shows all classes")
    };
    text.parse().map_err(absent)
}

/// Lists all classes, including built-in ones, with their volumes.
#[utoipa::path(get, path = "/api/v1/classes", responses((status = 200, body = ClassList)))]
pub(super) async fn class_list(State(shared): Api) -> Result<Json<ClassList>, ControlError> {
    let classes = control(&shared)?.classes().await?;
    Ok(Json(ClassList { classes }))
}

/// Creates a class. `PATCH /api/v1/volumes/{name}` puts volumes into it.
#[utoipa::path(post, path = "/api/v1/classes", request_body = ClassCreate, responses(
    (status = 201, body = ClassView), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn class_create(
    State(shared): Api,
    Given(create): Given<ClassCreate>,
) -> Result<(StatusCode, Json<ClassView>), ControlError> {
    let made = to_the_end(async move { control(&shared)?.class_create(create).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Shows one class.
#[utoipa::path(get, path = "/api/v1/classes/{class}", params(("class" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = ClassView), (status = 404, body = ErrorBody)))]
pub(super) async fn class_show(
    State(shared): Api,
    InPath(name): InPath<String>,
) -> Result<Json<ClassView>, ControlError> {
    Ok(Json(control(&shared)?.class(named(&name)?).await?))
}

/// Replaces the limits of a class. They apply to its volumes at once.
#[utoipa::path(put, path = "/api/v1/classes/{class}", params(("class" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), request_body = ClassSet,
    responses((status = 200, body = ClassView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(super) async fn class_set(
    State(shared): Api,
    InPath(name): InPath<String>,
    Given(set): Given<ClassSet>,
) -> Result<Json<ClassView>, ControlError> {
    let name = named(&name)?;
    let set = async move { control(&shared)?.class_set(name, set).await };
    Ok(Json(to_the_end(set).await?))
}

/// Deletes a class without volumes.
#[utoipa::path(delete, path = "/api/v1/classes/{class}", params(("class" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn class_delete(
    State(shared): Api,
    InPath(name): InPath<String>,
) -> Result<StatusCode, ControlError> {
    let name = named(&name)?;
    to_the_end(async move { control(&shared)?.class_delete(name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the parts of a volume that have limits, with their use.
#[utoipa::path(get, path = "/api/v1/volumes/{volume}/limits", params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = PartList), (status = 404, body = ErrorBody)))]
pub(super) async fn limit_list(
    State(shared): Api,
    VolumeInPath(volume): VolumeInPath,
) -> Result<Json<PartList>, ControlError> {
    control(&shared)?.limits(volume).await.map(Json)
}

/// Replaces the limits of a part of a volume.
#[utoipa::path(put, path = "/api/v1/volumes/{volume}/limits", params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    request_body = PartLimit, responses((status = 200, body = PartList), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(super) async fn limit_set(
    State(shared): Api,
    VolumeInPath(volume): VolumeInPath,
    Given(limit): Given<PartLimit>,
) -> Result<Json<PartList>, ControlError> {
    let set = async move { control(&shared)?.limit_set(volume, limit).await };
    to_the_end(set).await.map(Json)
}

/// Removes the limits of the part that `part` names.
#[utoipa::path(delete, path = "/api/v1/volumes/{volume}/limits",
    params(("volume" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), ("part" = String, Query, min_length = 5, max_length = 135, pattern = "^(lun|bucket|clients)/.+$")), responses(
    (status = 200, body = PartList), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn limit_clear(
    State(shared): Api,
    VolumeInPath(volume): VolumeInPath,
    RawQuery(query): RawQuery,
) -> Result<Json<PartList>, ControlError> {
    let query = Query::parse(query.as_deref(), &["part"])?;
    let invalid = |text: String| ControlError::new(ErrorKind::Invalid, text);
    let part = query.values("part").next();
    let part = part.ok_or_else(|| invalid("say which: ?part=lun/NAME".to_owned()))?;
    let part: VolumePart = part
        .parse()
        .map_err(|error: WordError| invalid(error.to_string()))?;
    let clear = async move { control(&shared)?.limit_clear(volume, part).await };
    to_the_end(clear).await.map(Json)
}
