//! Buckets as websites (S3 User Guide, "Website endpoints").
//!
//! Owns: the response of a browser's request at a path of a website's host. Must not know: who may read an object: it
//! sends anonymous requests.

use cairn_objects::{BucketSettings, Website};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, LOCATION};
use http::{Method, Request, StatusCode, Uri};
use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use s3s::dto::{
    DeleteBucketWebsiteInput, DeleteBucketWebsiteOutput, ErrorDocument, GetBucketWebsiteInput,
    GetBucketWebsiteOutput, IndexDocument, Protocol, PutBucketWebsiteInput, PutBucketWebsiteOutput,
    RedirectAllRequestsTo,
};
use s3s::service::S3Service;
use s3s::{Body, HttpError, HttpResponse, S3Request, S3Response, S3Result, s3_error};

use crate::account::Account;
use crate::buckets::not_set;
use crate::caller::ClientAddress;
use crate::server::ServerCore;
use crate::service::Service;

/// Characters of a key that stay unencoded in a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// Signatures and the host's name are dropped: everybody sees an equal page.
const DROPPED: [&str; 5] = [
    "authorization",
    "host",
    "x-amz-date",
    "x-amz-content-sha256",
    "x-amz-security-token",
];

/// The bucket of a request to the host of a website, and the bucket's website setting; `None`: the host is no website.
fn asked(shared: &ServerCore, request: &Request<Incoming>) -> Option<(String, Option<Website>)> {
    let host = request.headers().get(HOST)?.to_str().ok()?;
    let name = shared.hosts.website(host)?;
    let bucket = shared.stores.bucket(&name);
    let website = bucket.and_then(|bucket| bucket.record.settings.website);
    Some((name, website))
}

/// Answers a request to a website's host; `None`: it is to another host.
pub(crate) async fn answer(
    shared: &ServerCore,
    service: &S3Service,
    request: &Request<Incoming>,
) -> Option<Result<HttpResponse, HttpError>> {
    let (bucket, website) = asked(shared, request)?;
    let Some(website) = website else {
        let text = "there is no website of this name";
        return Some(Ok(page(StatusCode::NOT_FOUND, text)));
    };
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let text = "a website can be read only";
        return Some(Ok(page(StatusCode::METHOD_NOT_ALLOWED, text)));
    }
    Some(show(service, request, &bucket, &website).await)
}

async fn show(
    service: &S3Service,
    request: &Request<Incoming>,
    bucket: &str,
    website: &Website,
) -> Result<HttpResponse, HttpError> {
    let path = request.uri().path();
    if let Some(host) = &website.redirect_host {
        let scheme = website.redirect_protocol.as_deref().unwrap_or("http");
        let rest = request
            .uri()
            .path_and_query()
            .map_or("/", |rest| rest.as_str());
        let to = format!("{scheme}://{host}{rest}");
        return Ok(moved(StatusCode::MOVED_PERMANENTLY, &to));
    }
    let Ok(key) = percent_decode_str(path).decode_utf8() else {
        return Ok(page(StatusCode::BAD_REQUEST, "the path is no text"));
    };
    let key = key.trim_start_matches('/');
    let index = &website.index;
    let document = match key.is_empty() || key.ends_with('/') {
        true => format!("{key}{index}"),
        false => key.to_owned(),
    };
    let found = read(service, request, bucket, &document, request.method()).await?;
    let status = found.status();
    let is_missing = [StatusCode::NOT_FOUND, StatusCode::FORBIDDEN].contains(&status);
    if !is_missing {
        return Ok(found);
    }
    if document == key {
        let below = format!("{key}/{index}");
        let there = read(service, request, bucket, &below, &Method::HEAD).await?;
        if there.status().is_success() {
            let to = format!("/{}/", utf8_percent_encode(key, PLAIN));
            return Ok(moved(StatusCode::FOUND, &to));
        }
    }
    if let Some(error) = &website.error {
        let mut shown = read(service, request, bucket, error, request.method()).await?;
        if shown.status().is_success() {
            *shown.status_mut() = status;
            return Ok(shown);
        }
    }
    Ok(page(status, "there is no such page, or not for everybody"))
}

/// Reads an object as an anonymous client.
async fn read(
    service: &S3Service,
    request: &Request<Incoming>,
    bucket: &str,
    key: &str,
    method: &Method,
) -> Result<HttpResponse, HttpError> {
    let path = format!("/{bucket}/{}", utf8_percent_encode(key, PLAIN));
    let Ok(uri) = path.parse::<Uri>() else {
        return Ok(page(StatusCode::NOT_FOUND, "no page can have this name"));
    };
    let mut asked = Request::new(Body::empty());
    *asked.method_mut() = method.clone();
    *asked.uri_mut() = uri;
    for (name, value) in request.headers() {
        if !DROPPED.contains(&name.as_str()) && *name != CONTENT_LENGTH {
            asked.headers_mut().append(name, value.clone());
        }
    }
    if let Some(account) = request.extensions().get::<Account>() {
        asked.extensions_mut().insert(account.clone());
    }
    if let Some(address) = request.extensions().get::<ClientAddress>() {
        asked.extensions_mut().insert(*address);
    }
    service.call(asked).await
}

fn moved(status: StatusCode, to: &str) -> HttpResponse {
    let mut response = page(status, "the page is elsewhere");
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(LOCATION, to);
    }
    response
}

/// A page without any input of the client.
fn page(status: StatusCode, text: &str) -> HttpResponse {
    let text = format!("<!doctype html><title>{status}</title><h1>{status}</h1><p>{text}</p>\n");
    let mut response = HttpResponse::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HTML);
    response
}

impl Service {
    pub(crate) async fn website(
        &self,
        request: S3Request<GetBucketWebsiteInput>,
    ) -> S3Result<S3Response<GetBucketWebsiteOutput>> {
        let bucket = self.caller(&request)?.bucket(&request.input.bucket)?;
        let Some(website) = bucket.record.settings.website else {
            return Err(not_set(
                "NoSuchWebsiteConfiguration",
                "the bucket is no website",
            ));
        };
        let redirects = website.redirect_host.is_some();
        Ok(S3Response::new(GetBucketWebsiteOutput {
            error_document: website.error.map(|key| ErrorDocument { key }),
            index_document: (!redirects).then_some(IndexDocument {
                suffix: website.index,
            }),
            redirect_all_requests_to: website.redirect_host.map(|host_name| {
                RedirectAllRequestsTo {
                    host_name,
                    protocol: website.redirect_protocol.map(Protocol::from),
                }
            }),
            routing_rules: None,
        }))
    }

    pub(crate) async fn set_website(
        &self,
        request: S3Request<PutBucketWebsiteInput>,
    ) -> S3Result<S3Response<PutBucketWebsiteOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let wanted = input.website_configuration;
        if wanted.routing_rules.is_some_and(|rules| !rules.is_empty()) {
            return Err(s3_error!(
                NotImplemented,
                "a website has an index, an error page or one redirection, and no routing rules"
            ));
        }
        let website = match (wanted.redirect_all_requests_to, wanted.index_document) {
            (Some(_), None) if wanted.error_document.is_some() => {
                return Err(s3_error!(
                    MalformedXML,
                    "a website that redirects all requests has no error page"
                ));
            }
            (Some(redirect), None) => {
                let protocol = redirect.protocol.map(|it| it.as_str().to_ascii_lowercase());
                let is_known = protocol
                    .as_ref()
                    .is_none_or(|it| it == "http" || it == "https");
                let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
                if !is_known || !redirect.host_name.bytes().all(is_host) {
                    return Err(s3_error!(
                        InvalidRequest,
                        "a redirection has the name of a host, and http or https"
                    ));
                }
                Website {
                    redirect_host: Some(redirect.host_name),
                    redirect_protocol: protocol,
                    ..Website::default()
                }
            }
            (None, Some(index)) => {
                if index.suffix.is_empty() || index.suffix.contains('/') {
                    return Err(s3_error!(
                        InvalidArgument,
                        "the index document is a name without a slash"
                    ));
                }
                Website {
                    index: index.suffix,
                    error: wanted.error_document.map(|error| error.key),
                    ..Website::default()
                }
            }
            _ => {
                return Err(s3_error!(
                    MalformedXML,
                    "a website has an index document, or redirects all requests"
                ));
            }
        };
        let set = |settings: &mut BucketSettings| settings.website = Some(website);
        caller.set(&input.bucket, set).await?;
        Ok(S3Response::new(PutBucketWebsiteOutput::default()))
    }

    pub(crate) async fn delete_website(
        &self,
        request: S3Request<DeleteBucketWebsiteInput>,
    ) -> S3Result<S3Response<DeleteBucketWebsiteOutput>> {
        let caller = self.caller(&request)?;
        let set = |settings: &mut BucketSettings| settings.website = None;
        caller.set(&request.input.bucket, set).await?;
        Ok(S3Response::new(DeleteBucketWebsiteOutput::default()))
    }
}
