//! Range headers that are not one range of bytes: the response is the whole object (RFC 9110, section 14.2).
//!
//! Owns: the recognition of such headers, which count for the signature and for nothing else. Must not know: how
//! objects are read.
//!
//! `s3s` refuses headers that it cannot parse. The header may be signed, so it is dropped after the check of the
//! signature: the request is processed a second time, without the header and as the access key that signed it.

use http::header::{AUTHORIZATION, RANGE};
use http::{Extensions, HeaderMap, HeaderName, Method, Request, Uri};
use s3s::dto::Range;
use s3s::route::S3Route;
use s3s::service::S3Service;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};

use crate::caller::Signed;
use crate::operations;

/// Headers of a signature, without any other meaning.
const SIGNING: [HeaderName; 4] = [
    AUTHORIZATION,
    HeaderName::from_static("x-amz-date"),
    HeaderName::from_static("x-amz-content-sha256"),
    HeaderName::from_static("x-amz-security-token"),
];

/// Whether the header exists and is not one range of bytes.
fn is_ignored(headers: &HeaderMap) -> bool {
    let mut ranges = headers.get_all(RANGE).iter();
    let one = |value: &http::HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        Range::parse(text).is_ok()
    };
    match (ranges.next(), ranges.next()) {
        (None, _) => false,
        (Some(value), None) => !value.is_empty() && !one(value),
        (Some(_), Some(_)) => true,
    }
}

/// A query without its signature, and without parameters that have become headers.
fn unsigned(uri: &Uri) -> Option<Uri> {
    let is_kept = |part: &&str| {
        let name = part.split('=').next().unwrap_or_default();
        !operations::is_acting(name)
    };
    let query: Vec<&str> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(is_kept)
        .collect();
    let query = query.join("&");
    let path = uri.path();
    let text = match query.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{query}"),
    };
    text.parse().ok()
}

/// The second processing.
pub(crate) struct Whole(pub S3Service);

#[async_trait::async_trait]
impl S3Route for Whole {
    fn is_match(&self, method: &Method, _: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        [Method::GET, Method::HEAD].contains(method) && is_ignored(headers)
    }

    /// The operation checks access.
    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let uri = unsigned(&request.uri);
        let uri = uri.ok_or_else(|| s3_error!(InvalidURI, "the address cannot be read"))?;
        let mut again = Request::new(Body::empty());
        *again.method_mut() = request.method;
        *again.uri_mut() = uri;
        *again.headers_mut() = request.headers;
        *again.extensions_mut() = request.extensions;
        for name in SIGNING.into_iter().chain([RANGE]) {
            again.headers_mut().remove(name);
        }
        if let Some(credentials) = request.credentials {
            let signed = Signed {
                key: credentials.access_key,
            };
            again.extensions_mut().insert(signed);
        }
        let answer = self.0.call(again).await;
        let answer = answer.map_err(|_| s3_error!(InternalError, "the request broke off"))?;
        let (head, body) = answer.into_parts();
        Ok(S3Response {
            output: body,
            status: Some(head.status),
            headers: head.headers,
            extensions: head.extensions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_of_bytes_counts_and_nothing_else() {
        for (ranges, want) in [
            (&[][..], false),
            (&[""][..], false),
            (&["bytes=0-1"][..], false),
            (&["bytes=5-"][..], false),
            (&["bytes=-5"][..], false),
            (&["bytes=0-1,4-5"][..], true),
            (&["bytes=0-1", "bytes=4-5"][..], true),
            (&["seconds=0-1"][..], true),
            (&["bytes=5-1"][..], true),
            (&["bytes=a-b"][..], true),
            (&["bytes"][..], true),
        ] {
            let mut headers = HeaderMap::new();
            for range in ranges {
                headers.append(RANGE, range.parse().unwrap());
            }
            assert_eq!(is_ignored(&headers), want, "{ranges:?}");
        }
    }

    #[test]
    fn a_query_loses_its_signature_alone() {
        for (query, want) in [
            ("/a/b", "/a/b"),
            ("/a/b%20c?versionId=1", "/a/b%20c?versionId=1"),
            ("/a?X-Amz-Signature=1&X-Amz-Date=2", "/a"),
            ("/a?X-Amz-Signature=1&x-amz-checksum-mode=ENABLED", "/a"),
            (
                "/a?X-Amz-Signature=1&versionId=%2B&X-Amz-Date=2",
                "/a?versionId=%2B",
            ),
        ] {
            let uri = unsigned(&query.parse().unwrap()).unwrap();
            assert_eq!(uri.to_string(), want);
        }
    }
}
