//! The client of the API: small and blocking, for the command line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cairn_config::UserName;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::Method;
use zeroize::Zeroizing;

use crate::api::{ErrorBody, ErrorDetail, ErrorKind, Status};
use crate::benchmarks::{BenchmarkList, BenchmarkProgress, BenchmarkStart};
use crate::endpoint::{Argument, Endpoint, Verb};
use crate::list_query::ENTRIES_OF_A_PAGE_MAX;
use crate::token::Token;
use crate::users::{Password, PasswordChange, UserView};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Deleting a large volume takes a while.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// What the server says is to be sent again is, for so long: as long as it holds requests that only look.
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// Longest answer that is read, in bytes.
const ANSWER_LEN_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no answer from the server at {url}: {why}")]
    Unreachable { url: String, why: String },
    /// The given certificates to trust are none.
    #[error("the certificates to trust cannot be used: {0}")]
    Certificates(String),
    /// The server said no; the text is its own.
    #[error("{}", .0.message)]
    Refused(ErrorDetail),
    #[error("{url} answered something that is not Cairn's admin API: {why}")]
    NotUnderstood { url: String, why: String },
}

/// TLS that trusts these certificates (PEM), and no others. Without any it trusts nobody.
///
/// Each agent of `ureq` needs it that may be asked for something at `https://`: its own default would end the process, for
/// it has neither certificates nor a provider of ciphers here.
pub fn tls_trusting(trusted: Option<&str>) -> Result<ureq::tls::TlsConfig, ClientError> {
    let wrong = |why: &dyn std::fmt::Display| ClientError::Certificates(why.to_string());
    let mut roots = Vec::new();
    for item in ureq::tls::parse_pem(trusted.unwrap_or_default().as_bytes()) {
        if let ureq::tls::PemItem::Certificate(root) = item.map_err(|error| wrong(&error))? {
            roots.push(root);
        }
    }
    if trusted.is_some() && roots.is_empty() {
        return Err(wrong(&"there is no certificate in it"));
    }
    Ok(ureq::tls::TlsConfig::builder()
        .provider(ureq::tls::TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(ureq::tls::RootCerts::new_with_certs(&roots))
        .build())
}

/// Who a client is.
#[derive(Clone, Debug)]
pub enum Identity {
    Token(Token),
    User { name: UserName, password: Password },
}

impl Identity {
    fn authorization(&self) -> Zeroizing<String> {
        Zeroizing::new(match self {
            Self::Token(token) => format!("Bearer {}", token.as_str()),
            Self::User { name, password } => {
                let both = Zeroizing::new(format!("{name}:{}", password.as_str()));
                format!("Basic {}", BASE64_STANDARD.encode(both.as_bytes()))
            }
        })
    }
}

/// What came of a request that was answered.
enum Sent {
    Answered(Result<String, ClientError>),
    /// Nothing was done, and it is to be sent again after so long.
    NotNow {
        again: Duration,
        answer: Result<String, ClientError>,
    },
}

fn is_before(after: Duration, until: Instant) -> bool {
    let then = Instant::now().checked_add(after);
    then.is_some_and(|then| then < until)
}

/// One server.
pub struct Client {
    agent: ureq::Agent,
    url: String,
    authorization: Option<Zeroizing<String>>,
}

impl Client {
    /// `url` is `http://ADDRESS:PORT`, or `https://...`: then `trusted` has the certificates, as PEM, of which one has to
    /// vouch for the server, or be its own.
    pub fn new(
        url: &str,
        identity: Option<&Identity>,
        trusted: Option<&str>,
    ) -> Result<Self, ClientError> {
        let tls = tls_trusting(trusted)?;
        let agent = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(ANSWER_TIMEOUT))
            .max_redirects(0)
            .proxy(None)
            .build()
            .new_agent();
        Ok(Self {
            agent,
            url: url.trim_end_matches('/').to_owned(),
            authorization: identity.map(Identity::authorization),
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Asks a route that takes no body.
    pub fn ask<A: Argument, V>(
        &self,
        endpoint: Endpoint<A, (), V>,
        arguments: &A,
    ) -> Result<V, ClientError> {
        let url = self.url_of(&endpoint, arguments)?;
        let answer = self.send(|agent| match endpoint.route.verb {
            Verb::Get => self.authorized(agent.get(url.as_str())).call(),
            Verb::Delete => self.authorized(agent.delete(url.as_str())).call(),
            Verb::Post => self.authorized(agent.post(url.as_str())).send_empty(),
            Verb::Put => self.authorized(agent.put(url.as_str())).send_empty(),
            Verb::Patch => self.authorized(agent.patch(url.as_str())).send_empty(),
        })?;
        self.understood((endpoint.parse)(&answer))
    }

    /// Asks a route that takes a body.
    pub fn tell<A: Argument, B: Serialize, V>(
        &self,
        endpoint: Endpoint<A, B, V>,
        arguments: &A,
        body: &B,
    ) -> Result<V, ClientError> {
        let url = self.url_of(&endpoint, arguments)?;
        let answer = self.send(|agent| {
            let request = match endpoint.route.verb {
                Verb::Put => agent.put(url.as_str()),
                Verb::Patch => agent.patch(url.as_str()),
                Verb::Get | Verb::Post | Verb::Delete => agent.post(url.as_str()),
            };
            self.authorized(request).send_json(body)
        })?;
        self.understood((endpoint.parse)(&answer))
    }

    /// All entries of a list that may be long, page after page: no answer is longer than one.
    pub fn all<A: Argument, V>(
        &self,
        endpoint: Endpoint<A, (), V>,
        arguments: &A,
    ) -> Result<V, ClientError> {
        let url = self.url_of(&endpoint, arguments)?;
        let entries = endpoint.route.list.map_or("", |list| list.entries);
        let mut whole: Option<Value> = None;
        let mut after: Option<String> = None;
        let sign = if url.contains('?') { '&' } else { '?' };
        loop {
            let from = after.as_deref().map_or_else(String::new, |after| {
                format!("&after={}", utf8_percent_encode(after, NON_ALPHANUMERIC))
            });
            let page = format!("{url}{sign}limit={ENTRIES_OF_A_PAGE_MAX}{from}");
            let page = self.send(|agent| self.authorized(agent.get(page.as_str())).call())?;
            let page: Value = self.parse(&page)?;
            let next = page
                .get("next_after")
                .and_then(Value::as_str)
                .map(str::to_owned);
            whole = Some(match whole {
                None => page,
                Some(mut whole) => {
                    let more = page.get(entries).and_then(Value::as_array);
                    let all = whole.get_mut(entries).and_then(Value::as_array_mut);
                    if let (Some(all), Some(more)) = (all, more) {
                        all.extend_from_slice(more);
                    }
                    whole
                }
            });
            // One that says the same again would go on for ever.
            if next.is_none() || next == after {
                let mut whole = whole.unwrap_or_default();
                if let Some(whole) = whole.as_object_mut() {
                    // Of the first page.
                    whole.remove("next_after");
                }
                return self.understood((endpoint.parse)(&whole.to_string()));
            }
            after = next;
        }
    }

    pub fn status(&self) -> Result<Status, ClientError> {
        self.get("/api/v1/status")
    }

    /// Changes the password of the user that this client is.
    pub fn password_change(&self, change: &PasswordChange) -> Result<UserView, ClientError> {
        self.call(self.agent.put(self.at("/api/v1/session/password")), change)
    }

    pub fn benchmarks(&self) -> Result<BenchmarkList, ClientError> {
        self.get("/api/v1/benchmarks")
    }

    pub fn benchmark_start(
        &self,
        start: &BenchmarkStart,
    ) -> Result<BenchmarkProgress, ClientError> {
        self.call(self.agent.post(self.at("/api/v1/benchmarks")), start)
    }

    pub fn benchmark_stop(&self) -> Result<(), ClientError> {
        self.post_nothing("/api/v1/benchmarks/stop").map(drop)
    }

    /// A file of `cairn bench`.
    pub fn benchmark_result(&self, id: u64) -> Result<String, ClientError> {
        let path = self.at(&format!("/api/v1/benchmarks/{id}"));
        self.send(|agent| self.authorized(agent.get(path.as_str())).call())
    }

    fn url_of<A: Argument, B, V>(
        &self,
        endpoint: &Endpoint<A, B, V>,
        arguments: &A,
    ) -> Result<String, ClientError> {
        let path = endpoint.url(arguments).map_err(ClientError::Refused)?;
        Ok(self.at(&path))
    }

    fn understood<V>(&self, read: Result<V, serde_json::Error>) -> Result<V, ClientError> {
        read.map_err(|error| ClientError::NotUnderstood {
            url: self.url.clone(),
            why: error.to_string(),
        })
    }

    fn post_nothing(&self, path: &str) -> Result<String, ClientError> {
        self.send(|agent| self.authorized(agent.post(self.at(path))).send_empty())
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match self.authorization.as_deref() {
            Some(value) => request.header("Authorization", value),
            None => request,
        }
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.send(|agent| self.authorized(agent.get(self.at(path))).call())?;
        self.parse(&answer)
    }

    fn call<T: DeserializeOwned>(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        // It may have to be sent again.
        let method = request.method_ref().cloned();
        let uri = request.uri_ref().map(ToString::to_string);
        let uri = uri.unwrap_or_default();
        let answer = self.send(|agent| {
            let request = match &method {
                Some(method) if *method == Method::PUT => agent.put(uri.as_str()),
                Some(method) if *method == Method::PATCH => agent.patch(uri.as_str()),
                _ => agent.post(uri.as_str()),
            };
            self.authorized(request).send_json(body)
        })?;
        self.parse(&answer)
    }

    /// Sends a request and returns the body of its success. A change that the server did not make, because a volume moves or is
    /// being opened, is sent again for a while: the server does not do so itself, for it cannot know whether it is still wanted.
    fn send(
        &self,
        request: impl Fn(&ureq::Agent) -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<String, ClientError> {
        let until = Instant::now() + AGAIN_MAX;
        loop {
            match self.send_once(&request) {
                Ok(Sent::Answered(answer)) => return answer,
                Ok(Sent::NotNow { again, .. }) if is_before(again, until) => {
                    std::thread::sleep(again);
                }
                Ok(Sent::NotNow { answer, .. }) => return answer,
                Err(error) => return Err(error),
            }
        }
    }

    fn send_once(
        &self,
        request: impl Fn(&ureq::Agent) -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Sent, ClientError> {
        let unreachable = |error: ureq::Error| ClientError::Unreachable {
            url: self.url.clone(),
            why: match error {
                ureq::Error::Io(error) => error.to_string(),
                error => error.to_string(),
            },
        };
        let mut response = request(&self.agent).map_err(unreachable)?;
        let status = response.status();
        let again = response.headers().get(ureq::http::header::RETRY_AFTER);
        let again = again.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let again = again.map(Duration::from_secs);
        let is_not_now = status == ureq::http::StatusCode::SERVICE_UNAVAILABLE;
        let body = response
            .body_mut()
            .with_config()
            .limit(ANSWER_LEN_BYTES_MAX)
            .read_to_string()
            .map_err(unreachable)?;
        if status.is_success() {
            return Ok(Sent::Answered(Ok(body)));
        }
        let answer = match serde_json::from_str::<ErrorBody>(&body) {
            Ok(refusal) => Err(ClientError::Refused(refusal.error)),
            Err(_) => Err(ClientError::NotUnderstood {
                url: self.url.clone(),
                why: format!("status {status}"),
            }),
        };
        Ok(match again.filter(|_| is_not_now) {
            Some(again) => Sent::NotNow { again, answer },
            None => Sent::Answered(answer),
        })
    }

    fn parse<T: DeserializeOwned>(&self, body: &str) -> Result<T, ClientError> {
        self.understood(serde_json::from_str(body))
    }
}

impl ClientError {
    /// The server's kind, when it was the server that said no.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Refused(detail) => Some(detail.kind),
            Self::Unreachable { .. } | Self::Certificates(_) | Self::NotUnderstood { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::spread::{SPREAD_SET, SpreadSet, SpreadView};

    /// Reads one request to its end, and returns its first line and its body.
    fn request(stream: &mut TcpStream) -> (String, String) {
        let mut text = String::new();
        loop {
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let mut lines = head.lines();
                let first = lines.next().unwrap_or_default().to_owned();
                let length = lines.find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    let is_it = name.eq_ignore_ascii_case("content-length");
                    is_it.then(|| value.trim().parse::<usize>().unwrap())
                });
                if body.len() >= length.unwrap_or(0) {
                    return (first, body.to_owned());
                }
            }
            let mut part = [0; 1024];
            let len = stream.read(&mut part).unwrap();
            assert!(len > 0, "{text}");
            text.push_str(std::str::from_utf8(&part[..len]).unwrap());
        }
    }

    fn answer(stream: &mut TcpStream, status: &str, headers: &str, body: &str) {
        let len = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n");
        let text = format!("{head}{headers}\r\n{body}");
        stream.write_all(text.as_bytes()).unwrap();
    }

    /// A change is sent again, as it was, when the server says that it did not make it and when to come again; nothing else is.
    #[test]
    fn what_the_server_could_not_do_yet_is_sent_again() {
        let refusal = r#"{"error": {"kind": "unavailable", "message": "it moves"}}"#;
        let shown = serde_json::to_string(&SpreadView::default()).unwrap();
        for (headers, times) in [
            ("retry-after: 0\r\n", 3),
            ("", 1),
            ("retry-after: 99999999999999999999\r\n", 1),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let shown = shown.clone();
            let serving = std::thread::spawn(move || {
                let mut asked = Vec::new();
                for nth in 1..=times {
                    let (mut stream, _) = listener.accept().unwrap();
                    asked.push(request(&mut stream));
                    match nth == 3 {
                        true => answer(&mut stream, "200 OK", "", &shown),
                        false => answer(&mut stream, "503 Service Unavailable", headers, refusal),
                    }
                }
                asked
            });
            let client = Client::new(&url, None, None).unwrap();
            let answered = client.tell(SPREAD_SET, &(), &SpreadSet { paused: true });
            assert_eq!(answered.is_ok(), times == 3, "{answered:?}");
            let asked = serving.join().unwrap();
            assert_eq!(asked.len(), times);
            for (first, body) in asked {
                assert!(first.starts_with("PUT /api/v1/spread "), "{first}");
                assert!(serde_json::from_str::<SpreadSet>(&body).unwrap().paused);
            }
        }
    }
}
