//! The paths of benchmarks.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::plan_routes::download;
use super::{Api, Given, InPath, Shared, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::benchmarks::{
    BENCHMARK_REPORT_RUNS_MAX, BenchmarkControl, BenchmarkList, BenchmarkProgress,
    BenchmarkPublishedList, BenchmarkStart,
};
use crate::control::ControlError;
use crate::query::Query;

fn control(shared: &Shared) -> Result<&dyn BenchmarkControl, ControlError> {
    let absent = || ControlError::new(ErrorKind::NotFound, "this server runs no benchmarks");
    shared.control.benchmarks().ok_or_else(absent)
}

fn id(text: &str) -> Result<u64, ControlError> {
    let absent = |_| {
        let message = format!("there is no run \"{text}\"");
        ControlError::new(ErrorKind::NotFound, message)
            .hint("GET /api/v1/benchmarks lists those that are kept")
    };
    text.parse().map_err(absent)
}

/// The benchmark that runs, and those that are kept, newest first.
#[utoipa::path(get, path = "/api/v1/benchmarks", responses((status = 200, body = BenchmarkList)))]
pub(super) async fn benchmark_list(
    State(shared): Api,
) -> Result<Json<BenchmarkList>, ControlError> {
    control(&shared)?.benchmarks().await.map(Json)
}

/// Runs the four corners for about a minute on a volume of this server, by its own NFS client. One at a time. Its files are in
/// the folder `cairn-bench` of the volume, and are removed at the end. Refused when the volume, or the pool, has too little
/// room.
#[utoipa::path(post, path = "/api/v1/benchmarks", request_body = BenchmarkStart, responses(
    (status = 201, body = BenchmarkProgress), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn benchmark_start(
    State(shared): Api,
    Given(start): Given<BenchmarkStart>,
) -> Result<(StatusCode, Json<BenchmarkProgress>), ControlError> {
    let begun = async move { control(&shared)?.benchmark_start(start).await };
    Ok((StatusCode::CREATED, Json(to_the_end(begun).await?)))
}

/// Stops the benchmark that runs. It ends when its files are removed; what was measured until then is kept.
#[utoipa::path(post, path = "/api/v1/benchmarks/stop", responses((status = 204), (status = 409, body = ErrorBody)))]
pub(super) async fn benchmark_stop(State(shared): Api) -> Result<StatusCode, ControlError> {
    to_the_end(async move { control(&shared)?.benchmark_stop().await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What others published of their systems: other hardware, other clients, other times.
#[utoipa::path(get, path = "/api/v1/benchmarks/published", responses((status = 200, body = BenchmarkPublishedList)))]
pub(super) async fn benchmark_published(
    State(shared): Api,
) -> Result<Json<BenchmarkPublishedList>, ControlError> {
    control(&shared)?.benchmarks_published().await.map(Json)
}

/// The result of a run, to download: a file for `cairn bench show` and `cairn bench report`.
#[utoipa::path(get, path = "/api/v1/benchmarks/{id}", params(("id" = u64, Path)),
    responses((status = 200, body = serde_json::Value, content_type = "application/json"), (status = 404, body = ErrorBody)))]
pub(super) async fn benchmark_result(
    State(shared): Api,
    InPath(text): InPath<String>,
) -> Result<Response, ControlError> {
    let result = control(&shared)?.benchmark_result(id(&text)?).await?;
    Ok(download(result))
}

/// A page with charts of 1 to 8 runs (`run`, given once for each) beside each other and beside published figures, to download.
#[utoipa::path(get, path = "/api/v1/benchmarks/report", params(("run" = Vec<u64>, Query, min_items = 1, max_items = 8)), responses(
    (status = 200, body = String, content_type = "text/html"), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(super) async fn benchmark_report(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Response, ControlError> {
    let query = Query::parse(query.as_deref(), &["run"])?;
    let ids: Result<Vec<u64>, ControlError> = query.values("run").map(id).collect();
    let ids = ids?;
    if ids.is_empty() || ids.len() > BENCHMARK_REPORT_RUNS_MAX {
        let message = format!("name 1 to {BENCHMARK_REPORT_RUNS_MAX} runs: run=ID&run=ID");
        return Err(ControlError::new(ErrorKind::Invalid, message));
    }
    let report = control(&shared)?.benchmark_report(ids).await?;
    Ok(download(report))
}
