//! The paths of what goes on by itself: rebuild, spread, scrub.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::{Api, Given, to_the_end};
use crate::api::{
    ErrorBody, ErrorKind, RebuildRate, RebuildView, ScrubReport, ScrubSchedule, ScrubScheduleSet,
    ScrubStart, ScrubView, SpreadSet, SpreadView,
};
use crate::control::ControlError;

/// Shows the progress of moves and rebuilds of shards.
#[utoipa::path(get, path = "/api/v1/rebuild", responses((status = 200, body = RebuildView)))]
pub(super) async fn rebuild(State(shared): Api) -> Result<Json<RebuildView>, ControlError> {
    shared.control.rebuild().await.map(Json)
}

/// Changes the rate limit of moves and rebuilds, until the next start.
#[utoipa::path(patch, path = "/api/v1/rebuild", request_body = RebuildRate, responses(
    (status = 200, body = RebuildView)))]
pub(super) async fn rebuild_set(
    State(shared): Api,
    Given(set): Given<RebuildRate>,
) -> Result<Json<RebuildView>, ControlError> {
    let answer = shared.control.rebuild_rate(set.rate_bytes_per_second);
    answer.await.map(Json)
}

/// Shows the progress of the spread of data to emptier disks.
#[utoipa::path(get, path = "/api/v1/spread", responses((status = 200, body = SpreadView)))]
pub(super) async fn spread(State(shared): Api) -> Result<Json<SpreadView>, ControlError> {
    shared.control.spread().await.map(Json)
}

/// Pauses or resumes the spread of data to emptier disks, on all nodes of a cluster.
#[utoipa::path(put, path = "/api/v1/spread", request_body = SpreadSet, responses(
    (status = 200, body = SpreadView), (status = 409, body = ErrorBody)))]
pub(super) async fn spread_set(
    State(shared): Api,
    Given(set): Given<SpreadSet>,
) -> Result<Json<SpreadView>, ControlError> {
    to_the_end(async move { shared.control.spread_set(set).await })
        .await
        .map(Json)
}

/// Shows the progress of the scrub.
#[utoipa::path(get, path = "/api/v1/scrub", responses((status = 200, body = ScrubView)))]
pub(super) async fn scrub(State(shared): Api) -> Result<Json<ScrubView>, ControlError> {
    shared.control.scrub().await.map(Json)
}

/// Starts a scrub, resumes a paused one, or changes its rate.
#[utoipa::path(post, path = "/api/v1/scrub/start", request_body = ScrubStart, responses(
    (status = 200, body = ScrubView)))]
pub(super) async fn scrub_start(
    State(shared): Api,
    Given(start): Given<ScrubStart>,
) -> Result<Json<ScrubView>, ControlError> {
    to_the_end(async move { shared.control.scrub_start(start).await })
        .await
        .map(Json)
}

/// Pauses the scrub; it stays paused across restarts.
#[utoipa::path(post, path = "/api/v1/scrub/pause", responses(
    (status = 200, body = ScrubView), (status = 409, body = ErrorBody)))]
pub(super) async fn scrub_pause(State(shared): Api) -> Result<Json<ScrubView>, ControlError> {
    to_the_end(async move { shared.control.scrub_pause().await })
        .await
        .map(Json)
}

/// Lists damage that the last scrub could not repair, as bytes of files.
#[utoipa::path(get, path = "/api/v1/scrub/report", responses((status = 200, body = ScrubReport)))]
pub(super) async fn scrub_report(State(shared): Api) -> Result<Json<ScrubReport>, ControlError> {
    shared.control.scrub_report().await.map(Json)
}

/// Shows the scrub schedule and the maintenance window.
#[utoipa::path(get, path = "/api/v1/scrub/schedule", responses((status = 200, body = ScrubSchedule)))]
pub(super) async fn scrub_schedule(
    State(shared): Api,
) -> Result<Json<ScrubSchedule>, ControlError> {
    shared.control.scrub_schedule().await.map(Json)
}

/// Sets the scrub schedule and the maintenance window; a field that is left out is cleared.
#[utoipa::path(put, path = "/api/v1/scrub/schedule", request_body = ScrubScheduleSet, responses(
    (status = 200, body = ScrubSchedule), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn scrub_schedule_set(
    State(shared): Api,
    Given(set): Given<ScrubScheduleSet>,
) -> Result<Json<ScrubSchedule>, ControlError> {
    if set == ScrubScheduleSet::default() {
        let message = "neither `every` nor `window` is given";
        return Err(ControlError::new(ErrorKind::Invalid, message)
            .hint("DELETE takes the schedule and the window away"));
    }
    to_the_end(async move { shared.control.scrub_schedule_set(set).await })
        .await
        .map(Json)
}

/// Clears the scrub schedule and the maintenance window. A scrub that waits for the window continues.
#[utoipa::path(delete, path = "/api/v1/scrub/schedule", responses((status = 204), (status = 409, body = ErrorBody)))]
pub(super) async fn scrub_schedule_clear(State(shared): Api) -> Result<StatusCode, ControlError> {
    let none = ScrubScheduleSet::default();
    to_the_end(async move { shared.control.scrub_schedule_set(none).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
