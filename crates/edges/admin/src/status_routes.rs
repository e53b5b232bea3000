//! The paths of the server as a whole.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;

use super::Api;
use crate::api::Status;
use crate::control::ControlError;

/// Shows the state of the server, its pool, disks and volumes.
#[utoipa::path(get, path = "/api/v1/status", responses(
    (status = 200, body = Status)))]
pub(super) async fn status(State(shared): Api) -> Result<Json<Status>, ControlError> {
    shared.control.status().await.map(Json)
}

/// Returns all metrics in Prometheus's text format.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, body = String, content_type = "text/plain; version=0.0.4")))]
pub(super) async fn metrics(State(shared): Api) -> Result<Response, ControlError> {
    let text = shared.control.metrics().await?;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Returns success while the process answers. Needs no token.
#[utoipa::path(get, path = "/healthz", security(()), responses(
    (status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn alive() -> &'static str {
    "ok\n"
}

/// Returns this document. Needs no token.
#[utoipa::path(get, path = "/api/v1/openapi.json", security(()), responses(
    (status = 200, body = serde_json::Value)))]
pub(super) async fn openapi(State(shared): Api) -> Response {
    let kind = HeaderValue::from_static("application/json");
    let mut response = Response::new(Body::from(shared.document.clone()));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
