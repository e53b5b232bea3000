//! Forms that browsers send (Amazon S3 API Reference, "POST Object"; "Creating a POST policy").
//!
//! Owns: the signer of a form, the limits of its policy, the response; all of this is checked before the bytes of the
//! file are read. Must not know: how a form is cut into fields ([`cairn_codec_s3::form`]), how objects are kept.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cairn_codec_s3::form::{
    self, AFTER_LEN_BYTES_MAX, Fields, FieldsReader, FileReader, FormError, Read,
};
use cairn_codec_s3::signed::{ALGORITHM, Refused, SERVICE};
use cairn_forward::Mark;
use futures_util::Stream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, HOST, HeaderValue, LOCATION};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Incoming};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::hmac;
use s3s::auth::S3Auth as _;
use s3s::dto::{
    ChecksumAlgorithm, ETag, ObjectCannedACL, ObjectLockLegalHoldStatus, ObjectLockMode,
    PutObjectInput, PutObjectOutput, ServerSideEncryption, StorageClass, StreamingBlob, Timestamp,
    TimestampFormat,
};
use s3s::path::S3Path;
use s3s::post_policy::{PostPolicy, PostPolicyCondition};
use s3s::{Body, HttpResponse, S3, S3Error, S3ErrorCode, S3Request, S3Result, s3_error};
use tokio::time::timeout;

use crate::body::{PUT_LEN_BYTES_MAX, STALL_MAX};
use crate::caller::{Access, Keys};
use crate::needs::Facts;
use crate::operations::{self, At, POST_OBJECT, PUT_OBJECT};
use crate::refused::{self, escaped};
use crate::server::{ServerCore, Transfer, refusal};
use crate::service::Service;
use crate::values::PLAIN;

/// Lifetime of the key that is derived from a secret for a day and a region ("Signing and authenticating requests").
const SIGNED_SECONDS_MAX: i64 = 7 * 24 * 60 * 60;
/// Clocks of clients may be ahead by so much.
const AHEAD_SECONDS_MAX: i64 = 15 * 60;
/// Fields that the policy need not name.
const NOT_IN_POLICY: [&str; 4] = ["policy", "x-amz-signature", "file", "submit"];
const IGNORED: &str = "x-ignore-";
const META: &str = "x-amz-meta-";
/// Prefix of fields that change the request: only the following ones are known.
const ACTING: &str = "x-amz-";
const KNOWN: [&str; 20] = [
    "x-amz-acl",
    "x-amz-algorithm",
    "x-amz-checksum-algorithm",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-grant-full-control",
    "x-amz-grant-read",
    "x-amz-grant-read-acp",
    "x-amz-grant-write-acp",
    "x-amz-object-lock-legal-hold",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-signature",
    "x-amz-storage-class",
    "x-amz-tagging",
];
/// Prefix of fields that request encryption, which the PUT refuses.
const ENCRYPTION: &str = "x-amz-server-side-encryption";
/// Fields of AWS that are not supported: tags as a document; and conditions that `s3s` accepted and AWS does not know.
const NOT_DONE: [&str; 3] = ["tagging", "if-match", "if-none-match"];
/// Fields of Signature Version 2.
const OF_VERSION_2: [&str; 2] = ["awsaccesskeyid", "signature"];

/// Whether a request sends a form.
pub(crate) fn is_form<B>(request: &Request<B>) -> bool {
    let mut kinds = request.headers().get_all(CONTENT_TYPE).iter();
    request.method() == Method::POST && kinds.any(|kind| form::is_form(kind.as_bytes()))
}

/// Processes a form, and returns the response.
pub(crate) async fn answer(shared: &Arc<ServerCore>, request: Request<Incoming>) -> HttpResponse {
    let done = post(shared, request).await;
    done.unwrap_or_else(|error| {
        let told = error.to_http_response();
        told.unwrap_or_else(|error| refusal(&error))
    })
}

async fn post(shared: &Arc<ServerCore>, request: Request<Incoming>) -> S3Result<HttpResponse> {
    let (head, mut body) = request.into_parts();
    let bucket = bucket_of(shared, &head.headers, head.uri.path())?;
    let query = head.uri.query().unwrap_or_default();
    let row = operations::of_request(&head.method, At::Bucket, query, &head.headers)?;
    if row.operation != POST_OBJECT {
        // A request that two parsers read differently is refused.
        return Err(s3_error!(
            NotImplemented,
            "this could be a form or {}; nothing was done",
            row.operation
        ));
    }
    let kind = head.headers.get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let boundary = form::boundary(kind).map_err(|error| told(&error))?;
    let opened = timeout(STALL_MAX, open(&mut body, &boundary)).await;
    let OpenedForm {
        fields,
        first,
        before_len_bytes,
    } = opened.map_err(|_| s3_error!(RequestTimeout, "the form did not come in time"))??;

    let now_seconds = shared.stores.clock().now().seconds;
    let signer = signer(shared, &fields, now_seconds).await?;
    let caller = Access(Arc::clone(shared)).of_form(signer, &bucket, &head.extensions)?;
    caller.show(head.extensions.get::<Mark>());
    let key = fields.get("key").map(|key| fields.named(key));
    let key = key.filter(|key| !key.is_empty()).ok_or_else(|| {
        s3_error!(
            UserKeyMustBeSpecified,
            "the form has no field key before the file"
        )
    })?;
    let len_bytes = match policy_of(&fields, now_seconds)? {
        Some(policy) => check_policy(&policy, &fields, &bucket, &key)?,
        None => 0..=PUT_LEN_BYTES_MAX,
    };
    let mut input = input_of(&fields, bucket.clone(), key.clone())?;
    caller
        .allow(operations::row(PUT_OBJECT)?, &Facts::of_put(&input))
        .await?;

    // A form that cannot fit is refused before it is read.
    let around = before_len_bytes + boundary.len() + "\r\n--".len() + AFTER_LEN_BYTES_MAX;
    let told_len = head.headers.get(CONTENT_LENGTH);
    let told_len = told_len.and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
    if told_len.is_some_and(|len| len.saturating_sub(around as u64) > *len_bytes.end()) {
        return Err(too_large());
    }
    let file = FileBytes::new(body, &boundary, first, len_bytes).map_err(|error| error.told())?;
    input.body = Some(StreamingBlob::wrap(file));
    let mut extensions = head.extensions;
    extensions.insert(caller);
    let request = S3Request {
        input,
        method: head.method,
        uri: head.uri.clone(),
        headers: HeaderMap::new(),
        extensions,
        // Its signature was checked here.
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    };
    let put = Service(Arc::clone(shared)).put_object(request).await?;
    let place = ObjectUrl {
        scheme: shared
            .settings
            .certificate
            .as_ref()
            .map_or("http", |_| "https"),
        host: head.headers.get(HOST),
        path: head.uri.path(),
        bucket: &bucket,
        key: &key,
    };
    Ok(answered(&fields, &place, &put.output))
}

/// The bucket that a form is sent to, by host or path.
fn bucket_of(shared: &ServerCore, headers: &HeaderMap, path: &str) -> S3Result<String> {
    let path = percent_decode_str(path).decode_utf8();
    let path = path.map_err(|_| s3_error!(InvalidURI, "the path is no text"))?;
    let of_host = shared.hosts.bucket_of_host(headers);
    match s3s::path::parse_virtual_hosted_style(of_host.as_deref(), &path) {
        Ok(S3Path::Bucket { bucket }) => Ok(bucket.into_string()),
        Ok(_) => Err(s3_error!(
            MethodNotAllowed,
            "a form is sent to its bucket: /BUCKET, or / of the bucket's host"
        )),
        Err(_) => Err(s3_error!(InvalidBucketName, "no bucket has this name")),
    }
}

/// A form whose fields were read.
struct OpenedForm {
    fields: Fields,
    /// Bytes of the file that came with them.
    first: Bytes,
    before_len_bytes: usize,
}

/// Reads the fields before the file, and no more bytes than come with their end.
async fn open(body: &mut Incoming, boundary: &str) -> S3Result<OpenedForm> {
    let mut reader = FieldsReader::new(boundary);
    let mut before_len_bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            s3_error!(
                IncompleteBody,
                "the form ended before its length: {}",
                error
            )
        })?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        match reader.push(&piece).map_err(|error| told(&error))? {
            Read::Partly => before_len_bytes += piece.len(),
            Read::Whole { file_offset } => {
                return Ok(OpenedForm {
                    fields: reader.fields(),
                    first: piece.slice(file_offset.min(piece.len())..),
                    before_len_bytes: before_len_bytes + file_offset,
                });
            }
        }
    }
    Err(told(&FormError::NoFile))
}

/// The error for an invalid form.
fn told(error: &FormError) -> S3Error {
    let code = match error {
        FormError::FieldsTooLong => S3ErrorCode::MaxPostPreDataLengthExceededError,
        FormError::NoFile => S3ErrorCode::IncorrectNumberOfFilesInPostRequest,
        FormError::Twice(_) => S3ErrorCode::InvalidArgument,
        FormError::AfterTooLong => S3ErrorCode::InvalidRequest,
        FormError::Incomplete => S3ErrorCode::IncompleteBody,
        FormError::Boundary | FormError::Malformed(_) => S3ErrorCode::MalformedPOSTRequest,
    };
    S3Error::with_message(code, error.to_string())
}

fn too_large() -> S3Error {
    s3_error!(
        EntityTooLarge,
        "the file is longer than the form's policy or the server allows"
    )
}

/// The time of `YYYYMMDDTHHMMSSZ`, in seconds since 1970.
fn seconds_of(date: &str) -> Option<i64> {
    let (day, time_of_day) = date.strip_suffix('Z')?.split_once('T')?;
    let is_number = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !is_number(day, 8) || !is_number(time_of_day, 6) {
        return None;
    }
    let year = day.get(..4)?.parse::<i32>().ok()?;
    let month = time::Month::try_from(day.get(4..6)?.parse::<u8>().ok()?).ok()?;
    let part = |text: &str, from: usize| text.get(from..from + 2)?.parse::<u8>().ok();
    let day = time::Date::from_calendar_date(year, month, part(day, 6)?).ok()?;
    let (hour, minute, second) = (
        part(time_of_day, 0)?,
        part(time_of_day, 2)?,
        part(time_of_day, 4)?,
    );
    let at = day.with_hms(hour, minute, second).ok()?;
    Some(at.assume_utc().unix_timestamp())
}

/// The bytes of a SHA-256 in hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let is_plain = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_plain {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    let bytes = pairs.map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
    bytes.collect()
}

/// The access key that signed the policy; `None`: the form is anonymous ("Calculating a signature", "POST").
async fn signer(
    shared: &Arc<ServerCore>,
    fields: &Fields,
    now_seconds: i64,
) -> S3Result<Option<String>> {
    let region = &shared.settings.region;
    let refuse = |why: Refused| refused::error(&why, region);
    if OF_VERSION_2.iter().any(|name| fields.get(name).is_some()) {
        return Err(refuse(Refused::Mechanism));
    }
    let Some(signature) = fields.get("x-amz-signature") else {
        return Ok(None);
    };
    let field = |name: &str| {
        fields.get(name).ok_or_else(|| {
            s3_error!(
                InvalidArgument,
                "a form that is signed has the fields policy, x-amz-algorithm, x-amz-credential and x-amz-date before the file; {} is missing",
                name
            )
        })
    };
    let policy = field("policy")?;
    if field("x-amz-algorithm")? != ALGORITHM {
        return Err(refuse(Refused::Mechanism));
    }
    let date = field("x-amz-date")?;
    let parts: Vec<&str> = field("x-amz-credential")?.split('/').collect();
    let [id, day, of_region, service, "aws4_request"] = parts[..] else {
        let why = "the credential is KEY/YYYYMMDD/REGION/s3/aws4_request";
        return Err(refuse(Refused::Header(why)));
    };
    if service != SERVICE {
        return Err(refuse(Refused::Service));
    }
    if of_region != region.as_str() {
        return Err(refuse(Refused::Region));
    }
    let at = seconds_of(date).filter(|_| date.starts_with(day) && day.len() == 8);
    let at = at.ok_or_else(|| {
        s3_error!(
            InvalidArgument,
            "x-amz-date is YYYYMMDDTHHMMSSZ, of the day of the credential"
        )
    })?;
    let age_seconds = now_seconds.saturating_sub(at);
    if !(-AHEAD_SECONDS_MAX..=SIGNED_SECONDS_MAX).contains(&age_seconds) {
        return Err(s3_error!(
            RequestTimeTooSkewed,
            "a form is signed at most a week before it is sent, and not in the future"
        ));
    }
    let secret = Keys(Arc::clone(shared)).get_secret_key(id).await?;
    let secret = format!("AWS4{}", secret.expose());
    let mut key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    for part in [day, of_region, service, "aws4_request"] {
        let next = hmac::sign(&key, part.as_bytes());
        key = hmac::Key::new(hmac::HMAC_SHA256, next.as_ref());
    }
    let is_right =
        unhex(signature).is_some_and(|bytes| hmac::verify(&key, policy.as_bytes(), &bytes).is_ok());
    match is_right {
        true => Ok(Some(id.to_owned())),
        false => Err(s3_error!(
            SignatureDoesNotMatch,
            "the signature of the form is not that of its policy by this access key"
        )),
    }
}

/// The policy of a form, if it has one that has not expired.
fn policy_of(fields: &Fields, now_seconds: i64) -> S3Result<Option<PostPolicy>> {
    let Some(text) = fields.get("policy") else {
        return Ok(None);
    };
    let policy = PostPolicy::from_base64(text);
    let policy = policy
        .map_err(|error| s3_error!(InvalidPolicyDocument, "the policy of the form: {}", error))?;
    let ends = time::OffsetDateTime::from(policy.expiration.clone()).unix_timestamp();
    match now_seconds >= ends {
        true => Err(s3_error!(
            AccessDenied,
            "the policy of the form has expired"
        )),
        false => Ok(Some(policy)),
    }
}

/// Refuses a form that its policy does not allow. Returns the allowed length of its file, in bytes. The placeholder
/// for the file's name is already replaced in the key ("Creating a POST policy", "Condition matching").
fn check_policy(
    policy: &PostPolicy,
    fields: &Fields,
    bucket: &str,
    key: &str,
) -> S3Result<RangeInclusive<u64>> {
    let failed = |what: &str| {
        s3_error!(
            AccessDenied,
            "Invalid according to Policy: Policy Condition failed: {}",
            what
        )
    };
    if fields.get("bucket").is_some_and(|named| named != bucket) {
        return Err(failed("the field bucket is not the bucket of the address"));
    }
    let value_of = |field: &str| match field {
        "bucket" => Some(bucket),
        "key" => Some(key),
        field => fields.get(field),
    };
    let (mut least, mut most) = (0_u64, PUT_LEN_BYTES_MAX);
    for condition in &policy.conditions {
        match condition {
            PostPolicyCondition::Eq { field, value } => {
                if value_of(field) != Some(value.as_str()) {
                    return Err(failed(&format!("eq, ${field}")));
                }
            }
            PostPolicyCondition::StartsWith { field, prefix } => {
                let value = value_of(field).unwrap_or_default();
                let begins = |value: &str| value.starts_with(prefix.as_str());
                let holds = match field.as_str() {
                    // A list: the condition applies to each of its values.
                    "content-type" => value.split(',').all(begins),
                    _ => begins(value),
                };
                if !holds {
                    return Err(failed(&format!("starts-with, ${field}")));
                }
            }
            PostPolicyCondition::ContentLengthRange { min, max } => {
                (least, most) = (least.max(*min), most.min(*max));
            }
        }
    }
    let is_named = |name: &str| {
        policy.conditions.iter().any(|condition| match condition {
            PostPolicyCondition::Eq { field, .. }
            | PostPolicyCondition::StartsWith { field, .. } => field == name,
            PostPolicyCondition::ContentLengthRange { .. } => false,
        })
    };
    let names = fields.fields.iter().map(|(name, _)| name.as_str());
    let mut more = names.filter(|name| {
        !NOT_IN_POLICY.contains(name) && !name.starts_with(IGNORED) && !is_named(name)
    });
    match more.next() {
        Some(name) => Err(s3_error!(
            AccessDenied,
            "Invalid according to Policy: Extra input fields: {}",
            name
        )),
        None => Ok(least..=most),
    }
}

/// The PUT of a form, without the bytes.
fn input_of(fields: &Fields, bucket: String, key: String) -> S3Result<PutObjectInput> {
    for (name, _) in &fields.fields {
        let is_known = !name.starts_with(ACTING)
            || KNOWN.contains(&name.as_str())
            || name.starts_with(META)
            || name.starts_with(ENCRYPTION);
        if !is_known || NOT_DONE.contains(&name.as_str()) {
            return Err(s3_error!(
                NotImplemented,
                "the field {} of a form is not understood",
                name
            ));
        }
    }
    let text = |name: &str| fields.get(name).map(str::to_owned);
    let time = |name: &str, format: TimestampFormat| {
        let value = fields.get(name);
        let time = value.map(|value| Timestamp::parse(format, value));
        time.transpose()
            .map_err(|_| s3_error!(InvalidArgument, "the field {} is no time", name))
    };
    let meta: HashMap<String, String> = fields
        .fields
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(META)?, value)))
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
    let acl = match (text("acl"), text("x-amz-acl")) {
        (Some(_), Some(_)) => return Err(s3_error!(InvalidArgument, "a form has one ACL")),
        (acl, other) => acl.or(other),
    };
    let encrypts = fields
        .fields
        .iter()
        .any(|(name, _)| name.starts_with(ENCRYPTION));
    Ok(PutObjectInput {
        bucket,
        key,
        acl: acl.map(ObjectCannedACL::from),
        cache_control: text("cache-control"),
        checksum_algorithm: text("x-amz-checksum-algorithm").map(ChecksumAlgorithm::from),
        checksum_crc32: text("x-amz-checksum-crc32"),
        checksum_crc32c: text("x-amz-checksum-crc32c"),
        checksum_crc64nvme: text("x-amz-checksum-crc64nvme"),
        checksum_sha1: text("x-amz-checksum-sha1"),
        checksum_sha256: text("x-amz-checksum-sha256"),
        content_disposition: text("content-disposition"),
        content_encoding: text("content-encoding"),
        content_language: text("content-language"),
        content_md5: text("content-md5"),
        content_type: text("content-type"),
        expires: time("expires", TimestampFormat::HttpDate)?,
        grant_full_control: text("x-amz-grant-full-control"),
        grant_read: text("x-amz-grant-read"),
        grant_read_acp: text("x-amz-grant-read-acp"),
        grant_write_acp: text("x-amz-grant-write-acp"),
        metadata: (!meta.is_empty()).then_some(meta),
        object_lock_legal_hold_status: text("x-amz-object-lock-legal-hold")
            .map(ObjectLockLegalHoldStatus::from),
        object_lock_mode: text("x-amz-object-lock-mode").map(ObjectLockMode::from),
        object_lock_retain_until_date: time(
            "x-amz-object-lock-retain-until-date",
            TimestampFormat::DateTime,
        )?,
        server_side_encryption: encrypts.then(|| ServerSideEncryption::from("AES256".to_owned())),
        storage_class: text("x-amz-storage-class").map(StorageClass::from),
        tagging: text("x-amz-tagging"),
        ..PutObjectInput::default()
    })
}

/// The URL of the object.
struct ObjectUrl<'a> {
    scheme: &'static str,
    host: Option<&'a HeaderValue>,
    /// The path of the form's request.
    path: &'a str,
    bucket: &'a str,
    key: &'a str,
}

impl ObjectUrl<'_> {
    fn url(&self) -> String {
        let host = self.host.and_then(|host| host.to_str().ok());
        let key = utf8_percent_encode(self.key, PLAIN);
        let path = self.path.trim_end_matches('/');
        format!("{}://{}{path}/{key}", self.scheme, host.unwrap_or_default())
    }
}

/// The response for a client whose file has become an object ("POST Object", "Response").
fn answered(fields: &Fields, place: &ObjectUrl<'_>, put: &PutObjectOutput) -> HttpResponse {
    let etag = put.e_tag.as_ref().map(ETag::value).unwrap_or_default();
    let etag = format!("\"{etag}\"");
    let redirect = fields.get("success_action_redirect");
    let redirect = redirect.or_else(|| fields.get("redirect"));
    let redirect = redirect.and_then(|to| redirected(to, place.bucket, place.key, &etag));
    let url = place.url();
    let mut response = HttpResponse::new(Body::empty());
    let (status, location) = match (redirect, fields.get("success_action_status")) {
        (Some(to), _) => (StatusCode::SEE_OTHER, Some(to)),
        (None, Some("201")) => {
            let text = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><PostResponse><Location>{}</Location><Bucket>{}</Bucket>\
                 <Key>{}</Key><ETag>{}</ETag></PostResponse>",
                escaped(&url),
                escaped(place.bucket),
                escaped(place.key),
                escaped(&etag)
            );
            *response.body_mut() = Body::from(text);
            let kind = HeaderValue::from_static("application/xml");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            (StatusCode::CREATED, HeaderValue::from_str(&url).ok())
        }
        (None, Some("200")) => (StatusCode::OK, HeaderValue::from_str(&url).ok()),
        // Also for an invalid status.
        (None, _) => (StatusCode::NO_CONTENT, HeaderValue::from_str(&url).ok()),
    };
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if let Some(location) = location {
        headers.insert(LOCATION, location);
    }
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, etag);
    }
    let version = put.version_id.as_deref();
    if let Some(version) = version.and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert("x-amz-version-id", version);
    }
    response
}

/// The target of a redirect; `None`: the given one is no URL, and is ignored.
fn redirected(to: &str, bucket: &str, key: &str, etag: &str) -> Option<HeaderValue> {
    let begins = |scheme: &str| {
        let start = to.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    if !begins("http://") && !begins("https://") || !to.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return None;
    }
    let (address, fragment) = to.split_once('#').unwrap_or((to, ""));
    let between = if address.contains('?') { '&' } else { '?' };
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let hash = if fragment.is_empty() { "" } else { "#" };
    let url = format!(
        "{address}{between}bucket={}&key={}&etag={}{hash}{fragment}",
        encoded(bucket),
        encoded(key),
        encoded(etag)
    );
    HeaderValue::from_str(&url).ok()
}

/// The reason why the bytes of a form's file end early.
#[derive(Debug)]
pub(crate) enum FileError {
    Form(FormError),
    BrokenOff(String),
    TooLong,
    TooShort,
}

impl Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(error) => error.fmt(f),
            Self::BrokenOff(why) => f.write_str(why),
            Self::TooLong => f.write_str("the file is too long"),
            Self::TooShort => f.write_str("the file is too short"),
        }
    }
}

impl std::error::Error for FileError {}

impl FileError {
    /// The error for the sender.
    pub fn told(&self) -> S3Error {
        match self {
            Self::Form(error) => told(error),
            Self::BrokenOff(why) => {
                s3_error!(IncompleteBody, "the form ended before its length: {}", why)
            }
            Self::TooLong => too_large(),
            Self::TooShort => s3_error!(
                EntityTooSmall,
                "the file is shorter than the policy of the form allows"
            ),
        }
    }

    /// The error for the client of a request that another node may have forwarded.
    pub fn told_on(&self, transfer: &Transfer) -> S3Error {
        match self {
            Self::BrokenOff(why) => transfer.broken_off(why),
            error => error.told(),
        }
    }
}

/// The bytes of a form's file, as they come.
struct FileBytes<B> {
    body: B,
    reader: FileReader,
    ready: VecDeque<Bytes>,
    /// The allowed number of bytes.
    allowed: RangeInclusive<u64>,
    len_bytes: u64,
    is_over: bool,
}

impl<B> FileBytes<B> {
    fn new(
        body: B,
        boundary: &str,
        first: Bytes,
        allowed: RangeInclusive<u64>,
    ) -> Result<Self, FileError> {
        let mut file = Self {
            body,
            reader: FileReader::new(boundary),
            ready: VecDeque::new(),
            allowed,
            len_bytes: 0,
            is_over: false,
        };
        file.take(&first)?;
        Ok(file)
    }

    fn take(&mut self, piece: &Bytes) -> Result<(), FileError> {
        let taken = self.reader.push(piece).map_err(FileError::Form)?;
        let held = self.reader.delimiter().get(..taken.held_len_bytes);
        let held = Bytes::copy_from_slice(held.unwrap_or_default());
        let own = piece.slice(..taken.piece_len_bytes.min(piece.len()));
        for part in [held, own] {
            self.len_bytes = self.len_bytes.saturating_add(part.len() as u64);
            if !part.is_empty() {
                self.ready.push_back(part);
            }
        }
        match self.len_bytes > *self.allowed.end() {
            true => Err(FileError::TooLong),
            false => Ok(()),
        }
    }

    /// The body has ended.
    fn end(&self) -> Result<(), FileError> {
        self.reader.end().map_err(FileError::Form)?;
        match self.len_bytes < *self.allowed.start() {
            true => Err(FileError::TooShort),
            false => Ok(()),
        }
    }
}

impl<B> Stream for FileBytes<B>
where
    B: HttpBody<Data = Bytes, Error: Display> + Unpin,
{
    type Item = Result<Bytes, FileError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(piece) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(piece)));
            }
            if this.is_over {
                return Poll::Ready(None);
            }
            let taken = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) => this.take(&piece),
                    // Trailers have no meaning here.
                    Err(_) => Ok(()),
                },
                Some(Err(error)) => Err(FileError::BrokenOff(error.to_string())),
                None => {
                    this.is_over = true;
                    this.end()
                }
            };
            if let Err(error) = taken {
                // Drops the prepared bytes: the object is not made.
                this.is_over = true;
                this.ready.clear();
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    fn fields(given: &[(&str, &str)]) -> Fields {
        let given = given.iter();
        Fields {
            fields: given
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            file_name: Some("C:\\dir\\b.bin".to_owned()),
        }
    }

    fn policy(conditions: &str) -> PostPolicy {
        let text =
            format!(r#"{{"expiration": "2027-01-01T00:00:00Z", "conditions": [{conditions}]}}"#);
        PostPolicy::from_json(&text).unwrap()
    }

    #[test]
    fn a_form_does_what_its_policy_allows() {
        let bucket = r#"{"bucket": "photos"}"#;
        for (conditions, more, want) in [
            (
                r#"["starts-with", "$key", "a/"]"#,
                &[][..],
                Some(0..=PUT_LEN_BYTES_MAX),
            ),
            (
                r#"["eq", "$key", "a/b.bin"]"#,
                &[],
                Some(0..=PUT_LEN_BYTES_MAX),
            ),
            (r#"["eq", "$key", "a/${filename}"]"#, &[], None),
            (r#"["starts-with", "$key", "b/"]"#, &[], None),
            (r#"{"other": "1"}"#, &[("other", "1")], None),
            (
                r#"["starts-with", "$key", ""], ["content-length-range", 5, 10]"#,
                &[],
                Some(5..=10),
            ),
            // Both conditions apply.
            (
                r#"["starts-with", "$key", ""], ["content-length-range", 5, 10], ["content-length-range", 0, 7]"#,
                &[],
                Some(5..=7),
            ),
            (
                r#"["starts-with", "$key", ""]"#,
                &[("acl", "private")],
                None,
            ),
            (
                r#"["starts-with", "$key", ""]"#,
                &[("x-ignore-a", "1")],
                Some(0..=PUT_LEN_BYTES_MAX),
            ),
            (
                r#"["starts-with", "$key", ""]"#,
                &[("bucket", "other")],
                None,
            ),
            (
                r#"["starts-with", "$key", ""], ["starts-with", "$Content-Type", "image/"]"#,
                &[("content-type", "image/png,image/gif")],
                Some(0..=PUT_LEN_BYTES_MAX),
            ),
            (
                r#"["starts-with", "$key", ""], ["starts-with", "$Content-Type", "image/"]"#,
                &[("content-type", "image/png,text/html")],
                None,
            ),
        ] {
            let fields = fields(&[&[("key", "a/${filename}"), ("policy", "x")][..], more].concat());
            let key = fields.named(fields.get("key").unwrap());
            let policy = policy(&format!("{bucket}, {conditions}"));
            let got = check_policy(&policy, &fields, "photos", &key);
            assert_eq!(got.ok(), want, "{conditions} {more:?}");
            let elsewhere = check_policy(&policy, &fields, "other", &key);
            assert!(elsewhere.is_err(), "{conditions}");
        }
    }

    #[test]
    fn fields_that_are_not_understood_are_refused() {
        let input = |name: &str, value: &str| {
            input_of(
                &fields(&[(name, value)]),
                "photos".to_owned(),
                "a".to_owned(),
            )
        };
        for (name, value, is_taken) in [
            ("content-type", "image/png", true),
            ("x-amz-meta-who", "me", true),
            ("success_action_status", "201", true),
            ("expires", "Wed, 21 Oct 2026 07:28:00 GMT", true),
            ("expires", "soon", false),
            ("x-amz-website-redirect-location", "/", false),
            ("tagging", "<Tagging/>", false),
            ("if-match", "a", false),
        ] {
            assert_eq!(input(name, value).is_ok(), is_taken, "{name}");
        }
        let encrypted = input("x-amz-server-side-encryption-customer-key", "a").unwrap();
        assert!(encrypted.server_side_encryption.is_some());
        let both = fields(&[("acl", "private"), ("x-amz-acl", "public-read")]);
        assert!(input_of(&both, "photos".to_owned(), "a".to_owned()).is_err());
    }

    #[test]
    fn browsers_are_sent_where_the_form_says() {
        let to = |to: &str| redirected(to, "photos", "a b", "\"12\"");
        let told = "bucket=photos&key=a%20b&etag=%2212%22";
        for (given, want) in [
            (
                "https://example.org/done",
                Some(format!("https://example.org/done?{told}")),
            ),
            (
                "HTTP://example.org/?a=1#top",
                Some(format!("HTTP://example.org/?a=1&{told}#top")),
            ),
            ("javascript:alert(1)", None),
            ("/done", None),
            ("https://example.org/\r\nset-cookie: a", None),
        ] {
            let got = to(given).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(got, want, "{given:?}");
        }
    }

    #[test]
    fn answers_are_those_of_aws() {
        let put = PutObjectOutput {
            e_tag: Some(ETag::Strong("12".to_owned())),
            ..PutObjectOutput::default()
        };
        let host = HeaderValue::from_static("localhost:9000");
        let place = ObjectUrl {
            scheme: "http",
            host: Some(&host),
            path: "/photos/",
            bucket: "photos",
            key: "a&b",
        };
        for (given, status, is_told) in [
            (&[][..], 204, false),
            (&[("success_action_status", "204")], 204, false),
            (&[("success_action_status", "200")], 200, false),
            (&[("success_action_status", "201")], 201, true),
            (&[("success_action_status", "404")], 204, false),
            (
                &[("redirect", "nowhere"), ("success_action_status", "200")],
                200,
                false,
            ),
            (
                &[("redirect", "http://a/"), ("success_action_status", "200")],
                303,
                false,
            ),
        ] {
            let answer = answered(&fields(given), &place, &put);
            assert_eq!(answer.status().as_u16(), status, "{given:?}");
            assert_eq!(answer.headers()[ETAG], "\"12\"");
            let body = answer.body().bytes().unwrap();
            let text = std::str::from_utf8(&body).unwrap();
            assert_eq!(text.contains("<Key>a&amp;b</Key>"), is_told, "{text}");
            if status != 303 {
                assert_eq!(
                    answer.headers()[LOCATION],
                    "http://localhost:9000/photos/a%26b"
                );
            }
        }
    }

    #[test]
    fn dates_are_read_or_refused() {
        for (text, want) in [
            ("19700101T000001Z", Some(1)),
            ("20261130T095000Z", Some(1_796_032_200)),
            ("20261330T095000Z", None),
            ("20261130T096000Z", None),
            ("20261130T09500Z", None),
            ("20261130T095000", None),
            ("2026113\u{e9}T095000Z", None),
            ("+0261130T095000Z", None),
        ] {
            assert_eq!(seconds_of(text), want, "{text}");
        }
    }

    /// The bytes of a file whose first two came with the fields.
    async fn read(
        pieces: &[&'static str],
        allowed: RangeInclusive<u64>,
    ) -> Result<String, FileError> {
        let frames = pieces.iter().map(|piece| {
            let bytes = Bytes::from_static(piece.as_bytes());
            Ok::<_, Infallible>(Frame::data(bytes))
        });
        let frames: Vec<_> = frames.collect();
        let body = StreamBody::new(stream::iter(frames));
        let mut file = FileBytes::new(body, "cut", Bytes::from_static(b"1\r"), allowed)?;
        let mut bytes = Vec::new();
        while let Some(piece) = file.next().await {
            bytes.extend_from_slice(&piece?);
        }
        Ok(String::from_utf8(bytes).unwrap())
    }

    /// A piece that ended within a possible boundary ended the whole file.
    #[tokio::test]
    async fn a_file_is_whole_when_its_form_is() {
        let any = 0..=PUT_LEN_BYTES_MAX;
        let got = read(
            &["2\r\n--", "cu", "3\r", "\r\n--cut", "-", "-\r\n"],
            any.clone(),
        )
        .await;
        assert_eq!(got.unwrap(), "1\r2\r\n--cu3\r");
        let cut = read(&["2\r\n--cut"], any.clone()).await;
        assert!(matches!(cut, Err(FileError::Form(FormError::Incomplete))));
        let goes_on = read(&["2\r\n--cuts\r\n--cut--"], any).await;
        assert!(matches!(
            goes_on,
            Err(FileError::Form(FormError::Malformed(_)))
        ));
        for (allowed, is_taken) in [(3..=3, true), (4..=9, false), (0..=2, false)] {
            let got = read(&["2\r\n--cut--"], allowed.clone()).await;
            assert_eq!(got.is_ok(), is_taken, "{allowed:?}");
        }
    }
}
