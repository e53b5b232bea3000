//! Use of a bucket by pages of other origins in browsers (Fetch Standard, "CORS protocol").
//!
//! Owns: preflight requests of browsers, and the CORS headers of responses. Must not know: the rules of buckets.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderName, HeaderValue, ORIGIN,
    VARY,
};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use s3s::{Body, HttpResponse};

use cairn_objects::CorsRule;

use crate::server::ServerCore;

const VARIES: HeaderValue = HeaderValue::from_static(
    "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
);
const DENIED: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AccessForbidden</Code><Message>CORSResponse: \
                      no rule of the bucket allows this</Message></Error>";

/// A request by a page of another origin.
pub struct CorsRequest {
    origin: String,
    is_preflight: bool,
    /// The headers that the page wants to send.
    headers: Vec<String>,
    /// The rule that allows it.
    rule: Option<CorsRule>,
}

/// The browser's headers about the page of a request; `None` for other clients.
pub fn asked(shared: &ServerCore, request: &Request<Incoming>) -> Option<CorsRequest> {
    let headers = request.headers();
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::to_owned);
    let origin = text(ORIGIN)?;
    let wanted = text(ACCESS_CONTROL_REQUEST_METHOD);
    let is_preflight = request.method() == Method::OPTIONS;
    let method = match (is_preflight, wanted) {
        (true, Some(wanted)) => wanted,
        (true, None) => return None,
        (false, _) => request.method().as_str().to_owned(),
    };
    let asked = text(ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
    let names = asked.split(',').map(|name| name.trim().to_owned());
    let names: Vec<String> = match is_preflight {
        true => names.filter(|name| !name.is_empty()).collect(),
        false => Vec::new(),
    };
    let bucket = shared.hosts.bucket_of(headers, request.uri().path());
    let bucket = bucket.and_then(|name| shared.stores.bucket(&name));
    let rules = bucket.map(|bucket| bucket.record.settings.cors);
    let rule = rules.and_then(|rules| {
        let mut fit = rules
            .into_iter()
            .filter(|rule| rule.allows(&origin, &method, &names));
        fit.next()
    });
    Some(CorsRequest {
        origin,
        is_preflight,
        headers: names,
        rule,
    })
}

impl CorsRequest {
    /// The response, if this is a preflight request.
    pub fn preflight(&self) -> Option<HttpResponse> {
        if !self.is_preflight {
            return None;
        }
        let mut answer = HttpResponse::new(Body::empty());
        if self.rule.is_none() {
            answer = HttpResponse::new(Body::from(DENIED.to_owned()));
            *answer.status_mut() = StatusCode::FORBIDDEN;
        }
        Some(answer)
    }

    /// Tells the browser that the page may read the response.
    pub fn allow(&self, response: &mut HttpResponse) {
        let headers = response.headers_mut();
        headers.append(VARY, VARIES);
        let Some(rule) = &self.rule else { return };
        let mut put = |name: HeaderName, value: String| {
            if let (Ok(value), false) = (HeaderValue::from_str(&value), value.is_empty()) {
                headers.insert(name, value);
            }
        };
        let is_any = rule.origins.iter().any(|origin| origin == "*");
        match is_any {
            true => put(ACCESS_CONTROL_ALLOW_ORIGIN, "*".to_owned()),
            false => {
                put(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.clone());
                put(ACCESS_CONTROL_ALLOW_CREDENTIALS, "true".to_owned());
            }
        }
        put(ACCESS_CONTROL_ALLOW_METHODS, rule.methods.join(", "));
        put(ACCESS_CONTROL_EXPOSE_HEADERS, rule.exposed.join(", "));
        if self.is_preflight {
            put(
                ACCESS_CONTROL_ALLOW_HEADERS,
                self.headers.join(", ").to_ascii_lowercase(),
            );
            if let Some(seconds) = rule.max_age_seconds {
                put(ACCESS_CONTROL_MAX_AGE, seconds.to_string());
            }
        }
    }
}
