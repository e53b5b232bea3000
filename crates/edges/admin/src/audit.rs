//! Who changed what: a line of the log for each request that changes something, if that is wanted.
//!
//! Owns: what is in a line, and that no secret is. Must not know: what a request does.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::Response;

/// Of a path.
const PATH_LEN_MAX: usize = 1024;

/// By what a request shows who it is from; what it shows may be wrong.
fn shown(request: &Request) -> &'static str {
    let headers = request.headers();
    match (
        headers.contains_key(header::AUTHORIZATION),
        headers.contains_key(header::COOKIE),
    ) {
        (true, _) => "token",
        (false, true) => "session",
        (false, false) => "nothing",
    }
}

/// Notes a request, and how it was answered. Bodies and queries are left out: there may be secrets in them.
pub(crate) async fn note(peer: SocketAddr, request: Request, next: Next) -> Response {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS];
    if reads.contains(request.method()) {
        return next.run(request).await;
    }
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(PATH_LEN_MAX).collect();
    let by = shown(&request);
    let response = next.run(request).await;
    let status = response.status().as_u16();
    tracing::info!(target: "audit", protocol = "admin", %peer, by, %method, path, status);
    response
}
