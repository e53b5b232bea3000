//! The paths of benchmarks.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::plan_routes::download;
use super::{Api, Given, InPath, ServerCore, to_the_end};
use crate::api::{ErrorBody, ErrorKind};
use crate::benchmarks::{
    BENCHMARK_REPORT_RUNS_MAX, BenchmarkControl, BenchmarkList, BenchmarkProgress,
    BenchmarkPublishedList, BenchmarkStart,
};
use crate::control::ControlError;
use crate::query::Query;

fn control(shared: &ServerCore) -> Result<&dyn BenchmarkControl, ControlError> {
    let absent = || {
        let message = "this server was built without benchmarks";
        ControlError::new(ErrorKind::NotSupported, message)
            .hint("`cairn bench` of a complete build measures this server from any machine")
    };
    shared.control.benchmarks().ok_or_else(absent)
}

fn id(text: &str) -> Result<u64, ControlError> {
    let absent = |_| {
        let message = format!("run \"{text}\" does not exist");
        ControlError::new(ErrorKind::NotFound, message)
            .hint("GET /api/v1/benchmarks lists the runs that are kept")
    };
    text.parse().map_err(absent)
}

/// Shows the running benchmark and the stored runs, newest first.
#[utoipa::path(get, path = "/api/v1/benchmarks", responses((status = 200, body = BenchmarkList), (status = 501, body = ErrorBody)))]
pub(super) async fn benchmark_list(
    State(shared): Api,
) -> Result<Json<BenchmarkList>, ControlError> {
    control(&shared)?.benchmarks().await.map(Json)
}

/// Runs the four corners for about a minute on a volume of this server, with the server's own NFS client. One run at a time. The
/// files are in the folder `cairn-bench` of the volume, and are removed at the end. The run is refused if the volume or the pool
/// has too little space.
#[utoipa::path(post, path = "/api/v1/benchmarks", request_body = BenchmarkStart, responses(
    (status = 201, body = BenchmarkProgress), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
    (status = 501, body = ErrorBody)))]
pub(super) async fn benchmark_start(
    State(shared): Api,
    Given(start): Given<BenchmarkStart>,
) -> Result<(StatusCode, Json<BenchmarkProgress>), ControlError> {
    let begun = async move { control(&shared)?.benchmark_start(start).await };
    Ok((StatusCode::CREATED, Json(to_the_end(begun).await?)))
}

/// Stops the running benchmark. The run ends once its files are removed; finished measurements are kept.
#[utoipa::path(post, path = "/api/v1/benchmarks/stop", responses((status = 204), (status = 409, body = ErrorBody), (status = 501, body = ErrorBody)))]
pub(super) async fn benchmark_stop(State(shared): Api) -> Result<StatusCode, ControlError> {
    to_the_end(async move { control(&shared)?.benchmark_stop().await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists published figures of other systems, with other hardware, clients and dates.
#[utoipa::path(get, path = "/api/v1/benchmarks/published", responses((status = 200, body = BenchmarkPublishedList), (status = 501, body = ErrorBody)))]
pub(super) async fn benchmark_published(
    State(shared): Api,
) -> Result<Json<BenchmarkPublishedList>, ControlError> {
    control(&shared)?.benchmarks_published().await.map(Json)
}

/// Downloads the result of a run, for `cairn bench show` and `cairn bench report`.
#[utoipa::path(get, path = "/api/v1/benchmarks/{id}", params(("id" = u64, Path)),
    responses((status = 200, body = serde_json::Value, content_type = "application/json"), (status = 404, body = ErrorBody), (status = 501, body = ErrorBody)))]
pub(super) async fn benchmark_result(
    State(shared): Api,
    InPath(text): InPath<String>,
) -> Result<Response, ControlError> {
    let result = control(&shared)?.benchmark_result(id(&text)?).await?;
    Ok(download(result))
}

/// Downloads a page that compares 1 to 8 runs (one `run` parameter each) with each other and with published figures.
#[utoipa::path(get, path = "/api/v1/benchmarks/report", params(("run" = Vec<u64>, Query, min_items = 1, max_items = 8)), responses(
    (status = 200, body = String, content_type = "text/html"), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 501, body = ErrorBody)))]
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
