//! The audit log of requests: a line of the log for each request, if configured.
//!
//! Owns: the contents of a line, and that it has no secret. Must not know: the operation of a request.

use std::net::SocketAddr;

use http::header::AUTHORIZATION;
use http::{Request, StatusCode};
use hyper::body::Incoming;

/// Maximum length of a path in a line; keys are 1,024 bytes at most, three times that with percent signs.
const PATH_LEN_MAX: usize = 4096;
/// The parameters of a query that choose the operation; the rest may be a signature.
const OPERATIONS: [&str; 17] = [
    "acl",
    "attributes",
    "cors",
    "delete",
    "legal-hold",
    "lifecycle",
    "list-type",
    "object-lock",
    "partNumber",
    "policy",
    "retention",
    "tagging",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
];

/// A running request.
pub struct Line {
    peer: Option<SocketAddr>,
    request_id: String,
    key: String,
    method: String,
    path: String,
    operation: String,
}

/// The access key that a request names, whether or not the request is signed with it.
pub(crate) fn key_of(authorization: Option<&str>, query: &str) -> String {
    let in_query = query.split('&').find_map(|part| {
        let (name, value) = part.split_once('=')?;
        matches!(name, "X-Amz-Credential" | "AWSAccessKeyId").then_some(value)
    });
    let in_header = authorization.and_then(|text| match text.split_once("Credential=") {
        Some((_, rest)) => Some(rest),
        // Signature Version 2.
        None => text.strip_prefix("AWS ")?.split(':').next(),
    });
    let named = in_header.or(in_query).unwrap_or_default();
    let is_plain = |char: &char| char.is_ascii_alphanumeric();
    named.chars().take_while(is_plain).take(128).collect()
}

fn operation_of(query: &str) -> String {
    let names = query.split('&').filter_map(|part| part.split('=').next());
    let known: Vec<&str> = names.filter(|name| OPERATIONS.contains(name)).collect();
    known.join("&")
}

impl Line {
    pub fn new(peer: Option<SocketAddr>, request_id: &str, request: &Request<Incoming>) -> Self {
        let authorization = request.headers().get(AUTHORIZATION);
        let query = request.uri().query().unwrap_or_default();
        Self {
            peer,
            request_id: request_id.to_owned(),
            key: key_of(authorization.and_then(|value| value.to_str().ok()), query),
            method: request.method().to_string(),
            path: request.uri().path().chars().take(PATH_LEN_MAX).collect(),
            operation: operation_of(query),
        }
    }

    /// Writes the line, after the response.
    pub fn end(self, status: StatusCode) {
        let Self {
            peer,
            request_id,
            key,
            method,
            path,
            operation,
        } = self;
        let peer = peer.map(|peer| peer.to_string());
        let status = status.as_u16();
        tracing::info!(target: "audit", protocol = "s3", peer, request_id, key, method, path, operation, status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_operations_are_told_and_no_signatures() {
        for (authorization, query, want) in [
            (
                Some("AWS4-HMAC-SHA256 Credential=AKID/2026/x, Signature=ab"),
                "",
                "AKID",
            ),
            (Some("AWS AKID:signature"), "", "AKID"),
            (
                None,
                "X-Amz-Credential=AKID%2F2026&X-Amz-Signature=ab",
                "AKID",
            ),
            (None, "AWSAccessKeyId=AKID&Signature=ab", "AKID"),
            (Some("AWS4-HMAC-SHA256 Credential=\u{1b}[31m"), "", ""),
            (Some("Basic eDp5"), "", ""),
            (None, "", ""),
        ] {
            assert_eq!(
                key_of(authorization, query),
                want,
                "{authorization:?} {query}"
            );
        }
        assert_eq!(
            operation_of("uploadId=secret&partNumber=1&X-Amz-Signature=ab"),
            "uploadId&partNumber"
        );
        assert_eq!(operation_of("delete"), "delete");
    }
}
