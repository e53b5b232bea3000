//! Translates between the values of objects and those of S3.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use cairn_objects::{
    Condition, META_LEN_BYTES_MAX, ObjectInfo, ObjectRecord, TAG_COUNT_MAX, UploadChecksum,
};
use http::header::{CACHE_CONTROL, ETAG, EXPIRES, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use s3s::dto::{
    ChecksumAlgorithm, ChecksumType, ETag, ETagCondition, EncodingType, Tag, Timestamp,
    TimestampFormat,
};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

/// Headers of an object that are returned as they were put.
pub const KEPT_HEADERS: [&str; 5] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
];
/// A content encoding of requests, which no object has.
const CHUNKED: &str = "aws-chunked";
const ALGORITHMS: [&str; 5] = ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"];
const BUCKET_TAG_COUNT_MAX: usize = 50;
const TAG_KEY_LEN_MAX: usize = 128;
const TAG_VALUE_LEN_MAX: usize = 256;
/// Characters that stay unencoded in listings with `encoding-type=url`.
pub const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'*');

pub fn time(time: cairn_base::Timestamp) -> Timestamp {
    let since = Duration::new(u64::try_from(time.seconds).unwrap_or(0), time.nanos);
    Timestamp::from(SystemTime::UNIX_EPOCH + since)
}

pub fn seconds(seconds: i64) -> Timestamp {
    time(cairn_base::Timestamp::new(seconds, 0))
}

pub fn etag(etag: &str) -> ETag {
    ETag::Strong(etag.to_owned())
}

/// A key or prefix in a listing.
pub fn listed(text: String, encoding: Option<&EncodingType>) -> String {
    match encoding {
        Some(_) => utf8_percent_encode(&text, PLAIN).to_string(),
        None => text,
    }
}

/// A parameter of a query as bytes: a position in a listing need not be text.
pub fn raw(uri: &Uri, wanted: &str) -> Option<Vec<u8>> {
    let decoded = |text: &str| -> Vec<u8> {
        let text = text.replace('+', " ");
        percent_decode_str(&text).collect()
    };
    let mut parts = uri.query()?.split('&').filter_map(|part| {
        let (name, value) = part.split_once('=')?;
        (decoded(name) == wanted.as_bytes()).then(|| decoded(value))
    });
    parts.next()
}

/// The requested version.
pub fn version(asked: Option<&String>) -> Option<&str> {
    asked.map(String::as_str).filter(|id| !id.is_empty())
}

/// Checks the value of `encoding-type`.
pub fn encoding(asked: Option<&EncodingType>) -> S3Result<()> {
    match asked {
        Some(asked) if asked.as_str() != EncodingType::URL => {
            Err(s3_error!(InvalidArgument, "encoding-type can be url only"))
        }
        _ => Ok(()),
    }
}

/// The conditions of a change.
pub fn condition(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> Condition {
    let wanted = |condition: Option<&ETagCondition>| match condition {
        Some(ETagCondition::Any) => vec!["*".to_owned()],
        Some(ETagCondition::ETag(etag)) => vec![etag.value().to_owned()],
        _ => Vec::new(),
    };
    match if_none_match {
        Some(ETagCondition::Any) => Condition {
            absent: true,
            if_match: wanted(if_match),
            ..Condition::default()
        },
        _ => Condition {
            if_match: wanted(if_match),
            if_none_match: wanted(if_none_match),
            ..Condition::default()
        },
    }
}

/// The conditions of a client on an object that it reads (RFC 9110, section 13.2.2).
pub struct ReadCondition<'a> {
    pub if_match: Option<&'a ETagCondition>,
    pub if_none_match: Option<&'a ETagCondition>,
    pub if_modified_since: Option<&'a Timestamp>,
    pub if_unmodified_since: Option<&'a Timestamp>,
}

impl ReadCondition<'_> {
    pub fn check(&self, info: &ObjectInfo) -> S3Result<()> {
        let is = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(wanted) => wanted.value() == info.etag(),
        };
        // Headers have whole seconds.
        let changed = seconds(info.attr.mtime.seconds);
        let fails = match (self.if_match, self.if_unmodified_since) {
            (Some(condition), _) => !is(condition),
            (None, Some(since)) => changed > *since,
            (None, None) => false,
        };
        if fails {
            return Err(s3_error!(PreconditionFailed));
        }
        let is_known = match (self.if_none_match, self.if_modified_since) {
            (Some(condition), _) => is(condition),
            (None, Some(since)) => changed <= *since,
            (None, None) => false,
        };
        match is_known {
            true => Err(not_modified(info)),
            false => Ok(()),
        }
    }
}

/// The response for a client that has the object already, with the headers that it may need for its cached response
/// (RFC 9110, section 15.4.5).
fn not_modified(info: &ObjectInfo) -> S3Error {
    let mut headers = HeaderMap::new();
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(ETAG, &format!("\"{}\"", info.etag()));
    if let Some(changed) = http_date(&seconds(info.attr.mtime.seconds)) {
        put(LAST_MODIFIED, &changed);
    }
    if let Some(version) = &info.version_id {
        put(HeaderName::from_static("x-amz-version-id"), version);
    }
    let kept = info.record.as_ref().map(|record| &record.headers);
    for name in [CACHE_CONTROL, EXPIRES] {
        if let Some(value) = kept.and_then(|kept| kept.get(name.as_str())) {
            put(name, value);
        }
    }
    let mut error = s3_error!(NotModified);
    error.set_headers(headers);
    error
}

/// A time in the form of headers (RFC 9110, section 5.6.7).
pub fn http_date(time: &Timestamp) -> Option<String> {
    let mut text = Vec::new();
    time.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

/// A condition in a header that `s3s` does not read for the operation.
pub fn condition_header(
    headers: &http::HeaderMap,
    name: http::HeaderName,
) -> S3Result<Option<ETagCondition>> {
    let mut values = headers.get_all(&name).iter();
    let read = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => ETagCondition::parse_http_header(value.as_bytes()).ok(),
        (Some(_), Some(_)) => None,
    };
    match read {
        Some(condition) => Ok(Some(condition)),
        None => Err(s3_error!(
            InvalidArgument,
            "{} is one ETag in quotes, or *",
            name
        )),
    }
}

/// Whether a range applies: the object is still the one that the client has a part of (RFC 9110, section 13.1.5).
pub fn is_still(if_range: Option<&http::HeaderValue>, info: &ObjectInfo) -> bool {
    let Some(validator) = if_range else {
        return true;
    };
    let Ok(text) = validator.to_str() else {
        return false;
    };
    match Timestamp::parse(TimestampFormat::HttpDate, text) {
        Ok(date) => date == seconds(info.attr.mtime.seconds),
        // A weak validator never matches.
        Err(_) => text == format!("\"{}\"", info.etag()),
    }
}

/// The properties of an object that is put.
#[derive(Default)]
pub struct Given {
    pub content_type: Option<String>,
    pub headers: [Option<String>; 5],
    pub meta: Option<std::collections::HashMap<String, String>>,
    pub tags: Option<String>,
}

/// The encoding of an object's bytes, without that of the transfer: `aws-chunked` means that a body came in chunks
/// with signatures or a trailer, which are gone ("Signature calculations: transferring payload in multiple chunks").
fn kept_encoding(given: &str) -> Option<String> {
    let is_kept = |one: &&str| !one.is_empty() && !one.eq_ignore_ascii_case(CHUNKED);
    let kept: Vec<&str> = given.split(',').map(str::trim).filter(is_kept).collect();
    (!kept.is_empty()).then(|| kept.join(", "))
}

pub fn record(mut given: Given) -> S3Result<ObjectRecord> {
    let [_, _, encoding, ..] = &mut given.headers;
    *encoding = encoding.take().and_then(|it| kept_encoding(&it));
    let meta: BTreeMap<String, String> = given.meta.unwrap_or_default().into_iter().collect();
    let len: usize = meta
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if len > META_LEN_BYTES_MAX {
        return Err(s3_error!(MetadataTooLarge));
    }
    let headers = KEPT_HEADERS.iter().zip(given.headers);
    let headers = headers.filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
    Ok(ObjectRecord {
        content_type: given.content_type,
        headers: headers.collect(),
        meta,
        tags: tags_of_header(given.tags.as_deref().unwrap_or_default())?,
        ..ObjectRecord::default()
    })
}

fn bad_tag(why: &str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidTag, why.to_owned())
}

/// Tags in the form of the header `x-amz-tagging`: a query.
fn tags_of_header(text: &str) -> S3Result<BTreeMap<String, String>> {
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        let decoded = percent_decode_str(&text).decode_utf8();
        decoded
            .map(|text| text.into_owned())
            .map_err(|_| bad_tag("a tag that is no text"))
    };
    let mut tags = Vec::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        tags.push((decode(key)?, decode(value)?));
    }
    checked(tags, TAG_COUNT_MAX)
}

/// The given checksums, by algorithm.
pub fn checksums(given: [Option<String>; 5]) -> BTreeMap<String, String> {
    let pairs = ALGORITHMS.iter().zip(given);
    let pairs = pairs.filter_map(|(algorithm, sum)| Some(((*algorithm).to_owned(), sum?)));
    pairs.collect()
}

/// The checksum that an upload should have, if one is requested.
pub fn upload_checksum(
    algorithm: Option<&ChecksumAlgorithm>,
    kind: Option<&ChecksumType>,
) -> S3Result<Option<UploadChecksum>> {
    let Some(algorithm) = algorithm else {
        return match kind {
            None => Ok(None),
            Some(_) => Err(s3_error!(
                InvalidRequest,
                "a type of checksum is asked for, and no algorithm"
            )),
        };
    };
    let name = algorithm.as_str().to_ascii_lowercase();
    let name = ALGORITHMS.iter().find(|known| **known == name);
    let name = name.ok_or_else(|| s3_error!(InvalidRequest, "there is no such checksum"))?;
    let is_crc = name.starts_with("crc");
    let is_composite = match kind.map(ChecksumType::as_str) {
        Some(ChecksumType::COMPOSITE) => true,
        Some(_) => false,
        // The default of AWS for each.
        None => *name != "crc64nvme",
    };
    if !is_composite && !is_crc || is_composite && *name == "crc64nvme" {
        return Err(s3_error!(
            InvalidRequest,
            "{} has no checksum of this type",
            algorithm.as_str()
        ));
    }
    Ok(Some(UploadChecksum {
        algorithm: (*name).to_owned(),
        is_composite,
    }))
}

pub fn algorithm(checksum: &UploadChecksum) -> ChecksumAlgorithm {
    ChecksumAlgorithm::from(checksum.algorithm.to_ascii_uppercase())
}

pub fn checksum_type(checksum: &UploadChecksum) -> ChecksumType {
    ChecksumType::from_static(match checksum.is_composite {
        true => ChecksumType::COMPOSITE,
        false => ChecksumType::FULL_OBJECT,
    })
}

/// The type of an object's checksum, if it has one.
pub fn type_of(record: &ObjectRecord) -> Option<ChecksumType> {
    let name = match record.is_composite {
        true => ChecksumType::COMPOSITE,
        false => ChecksumType::FULL_OBJECT,
    };
    (!record.checksums.is_empty()).then(|| ChecksumType::from_static(name))
}

/// Tags of a bucket.
pub fn bucket_tags(set: Vec<Tag>) -> S3Result<BTreeMap<String, String>> {
    let pair = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
    checked(set.into_iter().map(pair).collect(), BUCKET_TAG_COUNT_MAX)
}

/// Tags of a body.
pub fn tags(set: Vec<Tag>) -> S3Result<BTreeMap<String, String>> {
    let pair = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
    checked(set.into_iter().map(pair).collect(), TAG_COUNT_MAX)
}

fn checked(tags: Vec<(String, String)>, count_max: usize) -> S3Result<BTreeMap<String, String>> {
    if tags.len() > count_max {
        return Err(bad_tag(
            "an object has at most 10 tags, a bucket at most 50",
        ));
    }
    let mut checked = BTreeMap::new();
    for (key, value) in tags {
        if key.is_empty() || key.chars().count() > TAG_KEY_LEN_MAX {
            return Err(bad_tag("the key of a tag has 1 to 128 characters"));
        }
        if value.chars().count() > TAG_VALUE_LEN_MAX {
            return Err(bad_tag("the value of a tag has at most 256 characters"));
        }
        if checked.insert(key, value).is_some() {
            return Err(bad_tag("a tag is given twice"));
        }
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_taken_or_refused() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let want = BTreeMap::from([pair("a b", "c&d"), pair("e", "")]);
        assert_eq!(tags_of_header("a+b=c%26d&e").unwrap(), want);
        assert!(tags_of_header("a=1&a=2").is_err());
        assert!(tags_of_header("=1").is_err());
        assert!(tags_of_header("a=%ff").is_err());
        assert!(tags_of_header(&"a".repeat(129)).is_err());
        let many: Vec<String> = (0..11).map(|index| format!("k{index}=v")).collect();
        assert!(tags_of_header(&many.join("&")).is_err());
    }

    /// Browsers do not know this encoding, and show nothing of an object that has it.
    #[test]
    fn how_a_body_was_sent_is_not_how_an_object_is_encoded() {
        for (given, want) in [
            ("aws-chunked", None),
            ("AWS-Chunked", None),
            ("gzip", Some("gzip")),
            ("aws-chunked,gzip", Some("gzip")),
            ("gzip, aws-chunked", Some("gzip")),
            ("br, aws-chunked , gzip", Some("br, gzip")),
            ("", None),
            (" , ", None),
        ] {
            let given = Given {
                headers: [
                    Some("no-cache".to_owned()),
                    None,
                    Some(given.to_owned()),
                    Some("de".to_owned()),
                    None,
                ],
                ..Given::default()
            };
            let headers = record(given).unwrap().headers;
            assert_eq!(headers.get("content-encoding").map(String::as_str), want);
            assert_eq!(headers.len(), 2 + usize::from(want.is_some()));
        }
    }

    #[test]
    fn places_in_listings_are_bytes() {
        let uri: Uri = "/photos?list-type=2&start-%61fter=a+b%2F%ff&marker=&prefix"
            .parse()
            .unwrap();
        assert_eq!(raw(&uri, "start-after"), Some(b"a b/\xff".to_vec()));
        assert_eq!(raw(&uri, "marker"), Some(Vec::new()));
        assert_eq!(raw(&uri, "prefix"), None);
        assert_eq!(raw(&Uri::from_static("/photos"), "marker"), None);
    }

    #[test]
    fn keys_are_encoded_where_that_is_asked_for() {
        let url = EncodingType::from_static(EncodingType::URL);
        assert_eq!(
            listed("a b/ü+\u{1}".to_owned(), Some(&url)),
            "a%20b/%C3%BC%2B%01"
        );
        assert_eq!(listed("a b".to_owned(), None), "a b");
        assert!(encoding(Some(&EncodingType::from_static("other"))).is_err());
    }
}
