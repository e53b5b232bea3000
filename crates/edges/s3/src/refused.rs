//! The response to a request whose signature is invalid.
//!
//! Owns: the error of S3. Must not know: the rules of signatures ([`cairn_codec_s3::signed`]).

use std::fmt::Write as _;

use cairn_codec_s3::signed::Refused;
use s3s::{Body, HttpResponse, S3Error, S3ErrorCode};

/// As an error of an operation. `region` is the one of this server.
pub fn error(refused: &Refused, region: &str) -> S3Error {
    let (code, status) = refused.code();
    let message = refused.message(region);
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(status);
    error
}

/// As the response to a request.
pub fn answer(refused: &Refused, region: &str) -> HttpResponse {
    let (code, status) = refused.code();
    let message = escaped(&refused.message(region));
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>{message}</Message>"
    );
    // Writing to a string does not fail.
    let _ = match refused {
        Refused::NotSigned(names) => {
            let names = escaped(&names.join(", "));
            write!(text, "<HeadersNotSigned>{names}</HeadersNotSigned>")
        }
        Refused::Region => write!(text, "<Region>{}</Region>", escaped(region)),
        _ => Ok(()),
    };
    text.push_str("</Error>");
    let mut response = HttpResponse::new(Body::from(text));
    *response.status_mut() = status;
    response
}

/// As text of XML.
pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}
