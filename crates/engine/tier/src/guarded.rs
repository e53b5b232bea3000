//! Requests to object stores, and what of their answers may be told.
//!
//! Owns: that no request goes where no address of a user's may lead, that no redirect is followed, and that of an answer
//! which is an error only status and code get any further. Must not know: what is asked for, with which credentials.
//!
//! An administrator gives the address, and reads the errors. What answers there may be any host of the server's network.

use std::error::Error as StdError;

use async_trait::async_trait;
use bytes::BytesMut;
use cairn_outbound::Client;
use futures_util::StreamExt;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, SpawnService,
};
use reqwest::header::HeaderMap;
use tokio::runtime::Handle;
use url::Url;

use crate::{CONNECT_TIMEOUT, READ_TIMEOUT, REQUEST_TIMEOUT};

/// So much of an answer that is an error is looked at for its code, in bytes.
const ERROR_LEN_BYTES_MAX: usize = 16 << 10;
/// An answer to a POST is not longer, in bytes: it is about one upload, or about 1000 deleted objects.
const POST_LEN_BYTES_MAX: usize = 4 << 20;
/// Codes of stores are not longer, in bytes.
const CODE_LEN_BYTES_MAX: usize = 64;

/// Makes clients for object stores.
#[derive(Debug)]
pub(crate) struct Connector {
    /// Whose tasks do the requests.
    pub runtime: Handle,
    /// Whether requests may go without TLS.
    pub allow_http: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let builder = reqwest::Client::builder()
            .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .https_only(!self.allow_http)
            .http1_only()
            // The length of an answer is that of the object.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate();
        let client = Client::new(builder).map_err(|error| object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(error),
        })?;
        let service = SpawnService::new(ToStore(client), self.runtime.clone());
        Ok(HttpClient::new(service))
    }
}

/// Makes clients for what gives the machine's own credentials: metadata services are where it asks.
#[derive(Debug)]
pub(crate) struct MachineConnector {
    pub runtime: Handle,
}

impl HttpConnector for MachineConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let plain = object_store::client::SpawnedReqwestConnector::new(self.runtime.clone());
        Ok(HttpClient::new(ToMachine(plain.connect(options)?)))
    }
}

#[derive(Clone, Debug)]
struct ToStore(Client);

#[async_trait]
impl HttpService for ToStore {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let refused = |error: Box<dyn StdError + Send + Sync>| {
            HttpError::new_boxed(HttpErrorKind::Unknown, error)
        };
        let url = Url::parse(&request.uri().to_string()).map_err(|error| refused(error.into()))?;
        let client = self.0.to(&url).map_err(|error| refused(error.into()))?;
        let is_post = request.method().as_str() == "POST";
        let answer = HttpService::call(client, request).await?;
        condensed(answer, is_post).await
    }
}

#[derive(Debug)]
struct ToMachine(HttpClient);

#[async_trait]
impl HttpService for ToMachine {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        condensed(self.0.execute(request).await?, false).await
    }
}

/// An answer with no more of an error than its code.
///
/// `object_store` takes an answer to a POST for an error, and tells all of it, if there is one of two words in it.
async fn condensed(answer: HttpResponse, is_post: bool) -> Result<HttpResponse, HttpError> {
    let is_success = answer.status().is_success();
    if is_success && !has_plain_headers(answer.headers()) {
        return Err(HttpError::new(HttpErrorKind::Decode, NoStore));
    }
    if is_success && !is_post {
        return Ok(answer);
    }
    let (mut parts, body) = answer.into_parts();
    let mut stream = body.bytes_stream();
    let mut bytes = BytesMut::new();
    let len_bytes_max = match is_success {
        true => POST_LEN_BYTES_MAX,
        false => ERROR_LEN_BYTES_MAX,
    };
    while let Some(part) = stream.next().await {
        match part {
            Ok(part) => bytes.extend_from_slice(&part),
            // The status is known, and tells more than that the rest of the words is missing.
            Err(_) if !is_success => break,
            Err(error) => return Err(error),
        }
        if bytes.len() > len_bytes_max {
            break;
        }
    }
    if bytes.len() > len_bytes_max && is_success {
        return Err(HttpError::new(HttpErrorKind::Decode, TooLong));
    }
    let has = |word: &str| {
        bytes
            .windows(word.len())
            .any(|found| found == word.as_bytes())
    };
    if is_success && !has("InternalError") && !has("SlowDown") {
        let body = HttpResponseBody::from(bytes.freeze());
        return Ok(HttpResponse::from_parts(parts, body));
    }
    parts.headers.remove("content-length");
    let code = code_in(&bytes).unwrap_or_default();
    let body = HttpResponseBody::from(code);
    Ok(HttpResponse::from_parts(parts, body))
}

#[derive(Debug, thiserror::Error)]
#[error("the answer has more than {POST_LEN_BYTES_MAX} bytes")]
struct TooLong;

/// What answers has headers that a store has not: `object_store` would tell what is in them.
#[derive(Debug, thiserror::Error)]
#[error("the address does not lead to such a store: its answer has an unreadable header")]
struct NoStore;

/// Whether those headers of an answer are of the form that they have to be whose text gets into errors.
fn has_plain_headers(headers: &HeaderMap) -> bool {
    let is_number = |text: &str| text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_range = |text: &str| {
        let rest = text.strip_prefix("bytes ").unwrap_or("?");
        let is_of_range = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'/' | b'*');
        rest.len() <= 64 && rest.bytes().all(is_of_range)
    };
    let are = |name: &str, is_plain: &dyn Fn(&str) -> bool| {
        let mut values = headers.get_all(name).iter();
        values.all(|value| value.to_str().is_ok_and(is_plain))
    };
    are("last-modified", &is_date)
        && are("content-length", &is_number)
        && are("content-range", &is_range)
}

/// Whether a text has the form of a date (RFC 9110, section 5.6.7; RFC 5322, section 3.3, with a zone in digits).
fn is_date(text: &str) -> bool {
    const DAYS: [&str; 7] = ["Mon,", "Tue,", "Wed,", "Thu,", "Fri,", "Sat,", "Sun,"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let is_of = |text: &str, len_max: usize, more: &[u8]| {
        let is_good = |byte: u8| byte.is_ascii_digit() || more.contains(&byte);
        (1..=len_max).contains(&text.len()) && text.bytes().all(is_good)
    };
    match text.split(' ').collect::<Vec<_>>().as_slice() {
        [day, number, month, year, time, zone] => {
            DAYS.contains(day)
                && is_of(number, 2, b"")
                && MONTHS.contains(month)
                && is_of(year, 4, b"")
                && is_of(time, 8, b":")
                && (matches!(*zone, "GMT" | "UTC") || is_of(zone, 5, b"+-"))
        }
        _ => false,
    }
}

/// The code of an error: `<Code>NoSuchKey</Code>` (S3, Azure, Google's XML), or `"error": "invalid_grant"` (RFC 6749,
/// section 5.2).
fn code_in(body: &[u8]) -> Option<String> {
    let body = String::from_utf8_lossy(body);
    let between = |begin: &str, end: char| {
        let (_, rest) = body.split_once(begin)?;
        let (found, _) = rest.split_once(end)?;
        is_code(found).then(|| found.to_owned())
    };
    between("<Code>", '<').or_else(|| {
        let (_, rest) = body.split_once("\"error\"")?;
        let rest = rest.trim_start().strip_prefix(':')?.trim_start();
        let (found, _) = rest.strip_prefix('"')?.split_once('"')?;
        is_code(found).then(|| found.to_owned())
    })
}

fn is_code(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=CODE_LEN_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Whether an error has words of an answer in it: what reads XML or JSON tells what it found there.
fn has_words_of_an_answer(error: &(dyn StdError + 'static)) -> bool {
    error.is::<quick_xml::DeError>() || error.is::<serde_json::Error>()
}

/// An error with what caused it, which the store's own text often leaves out, and without words of an answer.
pub(crate) fn told(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = Some(error);
    while let Some(found) = cause {
        if has_words_of_an_answer(found) {
            return "the address does not lead to such a store: its answer cannot be read"
                .to_owned();
        }
        let why = found.to_string();
        if !text.contains(&why) {
            text.push_str(": ");
            text.push_str(&why);
        }
        cause = found.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_error_the_code_is_told() {
        let s3 = "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>secret</Message></Error>";
        let cases: &[(&str, Option<&str>)] = &[
            (s3, Some("AccessDenied")),
            ("{\"error\": \"invalid_grant\"}", Some("invalid_grant")),
            ("{\"error\":{\"message\":\"secret\"}}", None),
            ("<Code>with spaces</Code>", None),
            ("<Code></Code>", None),
            ("<Code>unending", None),
            ("<html>secret</html>", None),
            ("", None),
        ];
        for (body, want) in cases {
            assert_eq!(code_in(body.as_bytes()).as_deref(), *want, "{body}");
        }
    }

    #[test]
    fn headers_that_errors_would_tell_are_of_their_form() {
        let cases = [
            ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("last-modified", "Sun, 6 Nov 1994 08:49:37 +0000", true),
            ("last-modified", "SECRET", false),
            ("last-modified", "Sun, 06 Nov 1994 08:49:37 SECRET", false),
            ("last-modified", "", false),
            ("content-length", "12", true),
            ("content-length", "SECRET", false),
            ("content-range", "bytes 0-5/10", true),
            ("content-range", "bytes */10", true),
            ("content-range", "SECRET 0-5/10", false),
            ("content-range", "bytes SECRET", false),
            ("x-other", "SECRET", true),
        ];
        for (name, value, want) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(has_plain_headers(&headers), want, "{name}: {value}");
        }
    }

    #[test]
    fn words_of_an_answer_are_not_told() {
        #[derive(Debug, serde::Deserialize)]
        struct Wanted {
            #[serde(rename = "Count")]
            _count: u32,
        }
        let xml = quick_xml::de::from_str::<Wanted>("<a><Count>secret</Count></a>").unwrap_err();
        let json = serde_json::from_str::<Wanted>("{\"Count\": \"secret\"}").unwrap_err();
        let other = serde_json::from_str::<Wanted>("{\"Count\": \"secret\"}").unwrap_err();
        let below = HttpError::new(HttpErrorKind::Decode, other);
        let sources: [Box<dyn StdError + Send + Sync>; 3] = [xml.into(), json.into(), below.into()];
        for source in sources {
            let error = object_store::Error::Generic {
                store: "S3",
                source,
            };
            assert!(!told(&error).contains("secret"), "{error:?}");
        }
        let source = std::io::Error::other("connection refused");
        let source = HttpError::new(HttpErrorKind::Connect, source);
        let error = object_store::Error::Generic {
            store: "S3",
            source: Box::new(source),
        };
        assert!(told(&error).contains("connection refused"));
    }
}
