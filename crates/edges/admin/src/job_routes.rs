//! The path of background jobs.

use axum::Json;
use axum::extract::State;

use super::Api;
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::jobs::JobList;

/// The background jobs of this node, by name: what each of them does now, when its next step is due, and its last error.
#[utoipa::path(get, path = "/api/v1/jobs", responses((status = 200, body = JobList), (status = 404, body = ErrorBody)))]
pub(super) async fn job_list(State(shared): Api) -> Result<Json<JobList>, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server has no background jobs");
    let jobs = shared.control.jobs().ok_or_else(absent)?;
    Ok(Json(jobs.jobs().await?))
}
