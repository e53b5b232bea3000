//! The paths of the planner. They read only: what is asked for is in the query, so that an answer has an address.

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;

use super::{Api, ServerCore};
use crate::api::{ErrorBody, ErrorKind};
use crate::control::ControlError;
use crate::plans::{PlanControl, PlanFile, PlanGoals, PlanTemplateAsk, PlanView};
use crate::query::Query;

const FORMAT_DEFAULT: &str = "cloudformation";

fn control(shared: &ServerCore) -> Result<&dyn PlanControl, ControlError> {
    let absent = || {
        let message = "this server was built without the planner";
        ControlError::new(ErrorKind::NotSupported, message)
            .hint("`cairn plan` of a complete build does the same without a server")
    };
    shared.control.plans().ok_or_else(absent)
}

/// A download: a browser never runs its content as a page of this server.
pub(super) fn download(file: PlanFile) -> Response {
    let mut response = Response::new(Body::from(file.content));
    let named = format!("attachment; filename=\"{}\"", file.name);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    if let Ok(named) = HeaderValue::from_str(&named) {
        headers.insert(header::CONTENT_DISPOSITION, named);
    }
    response
}

/// Ranks designs by goals. The goals and units are those of `cairn plan`: `capacity=200TiB`, `read=6GB/s`. The answer does not
/// depend on this server, and nothing is changed.
#[utoipa::path(get, path = "/api/v1/plan", params(("capacity" = String, Query, min_length = 1, max_length = 4096, example = "200TiB"),
    ("read" = Option<String>, Query, example = "6GB/s"), ("write" = Option<String>, Query), ("iops" = Option<u64>, Query),
    ("write-iops" = Option<u64>, Query), ("latency" = Option<String>, Query, example = "1ms"),
    ("clients" = Option<u32>, Query), ("protocols" = Option<String>, Query, example = "nfs,s3"),
    ("survive" = Option<u32>, Query), ("namespaces" = Option<u32>, Query), ("availability" = Option<String>, Query),
    ("host" = Option<String>, Query), ("region" = Option<String>, Query),
    ("budget" = Option<String>, Query, example = "5000USD/month"), ("hot" = Option<String>, Query, example = "20%"),
    ("growth" = Option<String>, Query, example = "30%/year"), ("years" = Option<u32>, Query, example = 3),
    ("workload" = Option<String>, Query), ("include-planned" = Option<bool>, Query)),
    responses((status = 200, body = PlanView), (status = 400, body = ErrorBody), (status = 501, body = ErrorBody)))]
pub(super) async fn plan_show(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Json<PlanView>, ControlError> {
    let goals = PlanGoals::of(&Query::parse(query.as_deref(), PlanGoals::KEYS)?);
    control(&shared)?.plan(goals).await.map(Json)
}

/// Downloads the ranking as a page with charts. Takes the queries of `/api/v1/plan`.
#[utoipa::path(get, path = "/api/v1/plan/report", params(("capacity" = String, Query, min_length = 1, max_length = 4096, example = "200TiB")),
    responses((status = 200, body = String, content_type = "text/html"), (status = 400, body = ErrorBody), (status = 501, body = ErrorBody)))]
pub(super) async fn plan_report(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Response, ControlError> {
    let goals = PlanGoals::of(&Query::parse(query.as_deref(), PlanGoals::KEYS)?);
    Ok(download(control(&shared)?.plan_report(goals).await?))
}

/// Downloads the template that deploys one of the designs. Takes the queries of `/api/v1/plan`, `rank` (by default 1), and
/// `format`: cloudformation, cloudformation-json or terraform.
#[utoipa::path(get, path = "/api/v1/plan/template", params(("capacity" = String, Query, min_length = 1, max_length = 4096, example = "200TiB"), ("rank" = Option<u32>, Query, minimum = 1),
    ("format" = Option<String>, Query, pattern = "^(cloudformation|cloudformation-json|terraform)$")),
    responses((status = 200, body = String, content_type = "text/plain"), (status = 400, body = ErrorBody), (status = 501, body = ErrorBody)))]
pub(super) async fn plan_template(
    State(shared): Api,
    RawQuery(query): RawQuery,
) -> Result<Response, ControlError> {
    let known: Vec<&'static str> = [PlanGoals::KEYS, &["rank", "format"]].concat();
    let query = Query::parse(query.as_deref(), &known)?;
    let rank = query.values("rank").next().unwrap_or("1");
    let rank = rank.parse().map_err(|_| {
        let message = format!("\"{rank}\" is not a rank: 1 is the best");
        ControlError::new(ErrorKind::Invalid, message)
    })?;
    let format = query.values("format").next().unwrap_or(FORMAT_DEFAULT);
    let ask = PlanTemplateAsk {
        goals: PlanGoals::of(&query),
        rank,
        format: format.to_owned(),
    };
    Ok(download(control(&shared)?.plan_template(ask).await?))
}
