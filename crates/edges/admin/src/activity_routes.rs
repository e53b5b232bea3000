//! The paths of what clients do now.

use axum::Json;
use axum::extract::State;
use cairn_config::VolumeName;

use super::{Api, InPath, ServerCore};
use crate::activity::{ActivityControl, ActivityList, ActivityView};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;

fn control(shared: &ServerCore) -> Result<&dyn ActivityControl, ControlError> {
    let absent = || {
        ControlError::new(
            ErrorKind::NotFound,
            "this server does not count what clients do",
        )
    };
    shared.control.activity().ok_or_else(absent)
}

/// Live metrics of each volume; in a cluster, the volumes of all nodes.
#[utoipa::path(get, path = "/api/v1/activity", responses((status = 200, body = ActivityList)))]
pub(super) async fn activity_list(State(shared): Api) -> Result<Json<ActivityList>, ControlError> {
    Ok(Json(control(&shared)?.activities().await?))
}

/// Live metrics of a volume: by operation, and for the busiest clients and files.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/activity", params(("name" = String, Path, min_length = 1, max_length = 63, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")),
    responses((status = 200, body = ActivityView), (status = 404, body = ErrorBody)))]
pub(super) async fn activity_show(
    State(shared): Api,
    InPath(volume): InPath<VolumeName>,
) -> Result<Json<ActivityView>, ControlError> {
    Ok(Json(control(&shared)?.activity(volume).await?))
}
