//! What requests of S3 say they signed.
//!
//! The first line of an input is the query of a request, each of the others is a header.

use cairn_codec_s3::signed::{REGION_DEFAULT, check};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode;

/// Tries one input.
pub fn run(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let query = lines.next().unwrap_or_default();
    let Ok(uri) = Uri::try_from([b"/photos/a?", query].concat().as_slice()) else {
        return;
    };
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(at) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = HeaderName::from_bytes(&line[..at]);
        let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    if check(&uri, &headers, REGION_DEFAULT).is_err() {
        return;
    }
    // What begins with `#` is no part of a request.
    let query = uri.query().unwrap_or_default().as_bytes();
    let names: Vec<Vec<u8>> = query
        .split(|byte| *byte == b'&')
        .map(|part| {
            let name = part.split(|byte| *byte == b'=').next().unwrap_or_default();
            percent_decode(name).collect()
        })
        .collect();
    let has = |wanted: &[u8]| names.iter().any(|name| name == wanted);
    assert!(!has(b"AWSAccessKeyId"), "a signature of version 2");
    let is_presigned = has(b"X-Amz-Signature");
    if !is_presigned && !headers.contains_key(AUTHORIZATION) {
        // Nobody's: what it may do is no matter of signatures.
        return;
    }
    // Whatever was signed, a header that acts cannot be put to it, nor the host be another one's.
    let mut more = headers.clone();
    more.insert("x-amz-fuzzed", HeaderValue::from_static("1"));
    let is_signed = headers.contains_key("x-amz-fuzzed");
    assert_eq!(
        check(&uri, &more, REGION_DEFAULT).is_ok(),
        is_signed,
        "{headers:?}"
    );
    // What was signed cannot be left out.
    let host = headers.remove("host");
    assert!(host.is_some(), "the host is always signed");
    assert!(check(&uri, &headers, REGION_DEFAULT).is_err());
    headers.insert("host", HeaderValue::from_static("localhost"));
    assert!(check(&uri, &headers, "another-region-1").is_err());
    if is_presigned {
        headers.insert(AUTHORIZATION, HeaderValue::from_static("AWS4-HMAC-SHA256"));
        assert!(check(&uri, &headers, REGION_DEFAULT).is_err());
    }
}
