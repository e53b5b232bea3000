//! The ids of a request: in its response, in errors and in the log (Amazon S3 API Reference, "Common response headers").
//!
//! Owns: the two ids and where they are shown. Must not know: the operation of a request.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cairn_base::env::Entropy;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use s3s::{Body, HttpResponse};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const ID_2: HeaderName = HeaderName::from_static("x-amz-id-2");
/// The end of an error document.
const ERROR_END: &[u8] = b"</Error>";
const REQUEST_ID_LEN_BYTES: usize = 8;
const ID_2_LEN_BYTES: usize = 24;

/// The ids of a request; travel with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    /// 16 hexadecimal digits.
    pub request: String,
    id_2: String,
}

impl Ids {
    pub fn new(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; REQUEST_ID_LEN_BYTES + ID_2_LEN_BYTES];
        entropy.fill(&mut bytes);
        let (request, id_2) = bytes.split_at(REQUEST_ID_LEN_BYTES);
        Self {
            request: request.iter().map(|byte| format!("{byte:02X}")).collect(),
            id_2: STANDARD.encode(id_2),
        }
    }

    /// Adds the ids to the response, unless another node that answered has done so.
    pub fn tell(&self, response: &mut HttpResponse) {
        if response.headers().contains_key(REQUEST_ID) {
            return;
        }
        let is_error = response.status().is_client_error() || response.status().is_server_error();
        if is_error
            && let Some(bytes) = response.body().bytes()
            && let Some(text) = bytes.strip_suffix(ERROR_END)
            && let Ok(text) = std::str::from_utf8(text)
        {
            let mut text = text.to_owned();
            if !text.contains("<RequestId>") {
                // Writing to a string does not fail.
                let _ = write!(text, "<RequestId>{}</RequestId>", self.request);
            }
            let _ = write!(text, "<HostId>{}</HostId></Error>", self.id_2);
            *response.body_mut() = Body::from(text);
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        let told = [(REQUEST_ID, &self.request), (ID_2, &self.id_2)];
        for (name, value) in told {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn told(status: StatusCode, text: &str) -> (HttpResponse, Ids) {
        let ids = Ids::new(&*cairn_testkit::test_env().entropy);
        let mut response = HttpResponse::new(Body::from(text.to_owned()));
        *response.status_mut() = status;
        ids.tell(&mut response);
        (response, ids)
    }

    #[test]
    fn every_answer_says_what_its_request_is_called() {
        let error = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code></Error>";
        for (status, text, is_error) in [
            (StatusCode::OK, "any", false),
            (StatusCode::OK, error, false),
            (StatusCode::NOT_FOUND, "<h1>", false),
            (StatusCode::NOT_FOUND, error, true),
        ] {
            let (response, ids) = told(status, text);
            assert_eq!(response.headers()[REQUEST_ID], ids.request.as_str());
            assert_eq!(response.headers()[ID_2], ids.id_2.as_str());
            let body = response.body().bytes().unwrap();
            let body = std::str::from_utf8(&body).unwrap();
            let more = format!(
                "<RequestId>{}</RequestId><HostId>{}</HostId></Error>",
                ids.request, ids.id_2
            );
            assert_eq!(body.ends_with(&more), is_error, "{body}");
            assert_eq!(body == text, !is_error, "{body}");
        }
    }

    /// The id is in the log of the node that answered.
    #[test]
    fn what_another_node_called_it_stays() {
        let (mut response, first) = told(StatusCode::OK, "");
        let other = Ids {
            request: "0".repeat(16),
            ..first.clone()
        };
        other.tell(&mut response);
        assert_eq!(response.headers()[REQUEST_ID], first.request.as_str());
    }
}
