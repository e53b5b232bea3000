//! Reading objects.
//!
//! Owns: GetObject, HeadObject and GetObjectAttributes, and the part of an object that is read. Must not know: how
//! bytes are sent (`body`).

use cairn_objects::{Bucket, ObjectInfo};
use http::header::IF_RANGE;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::fields::set_sums;
use super::{LIST_COUNT_MAX, Service, number};
use crate::body;
use crate::caller::Caller;
use crate::errors::told;
use crate::locks;
use crate::values::{self, KEPT_HEADERS, ReadCondition};

const CONTENT_TYPE: &str = "binary/octet-stream";

impl Service {
    pub(super) async fn get(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let reading = Reading::begin(&caller, &request.headers, &input).await?;
        let transfer = self.0.transfer(&caller, &input.bucket).await;
        let (ino, range) = (reading.info.ino, reading.part.range.clone());
        let body = body::send(&self.0, transfer, &reading.bucket, &caller.who, ino, range);
        let body = body.await.map_err(told)?;
        let record = reading.info.record.as_ref();
        let tags = record.map_or(0, |record| record.tags.len());
        Ok(reading.answer(GetObjectOutput {
            body: Some(body),
            tag_count: (tags > 0).then_some(tags as i32),
            ..reading.headers(input)
        }))
    }

    /// The response to GET without the bytes.
    pub(super) async fn head(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let caller = self.caller(&request)?;
        let input = as_get(request.input);
        let reading = Reading::begin(&caller, &request.headers, &input).await?;
        Ok(reading.answer(as_head(reading.headers(input))))
    }

    pub(super) async fn attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = values::version(input.version_id.as_ref());
        let (_, info) = caller.object(&input.bucket, &input.key, version).await?;
        let wants = |name: &str| {
            let mut names = input.object_attributes.iter();
            // One header may name several.
            names.any(|wanted| wanted.as_str().split(',').any(|one| one.trim() == name))
        };
        let numbers = [input.part_number_marker, input.max_parts];
        if numbers.iter().flatten().any(|number| *number < 0) {
            return Err(s3_error!(
                InvalidArgument,
                "x-amz-part-number-marker and x-amz-max-parts are not below zero"
            ));
        }
        let whole = part_of(&info, None, None)?;
        let mode = ChecksumMode::from_static(ChecksumMode::ENABLED);
        let lengths = info.record.as_ref().map(|record| record.parts.clone());
        let lengths = lengths.filter(|lengths| !lengths.is_empty());
        let parts = lengths.filter(|_| wants(ObjectAttributes::OBJECT_PARTS));
        let parts = parts.map(|lengths| attribute_parts(&lengths, &input));
        Ok(S3Response::new(GetObjectAttributesOutput {
            checksum: wants(ObjectAttributes::CHECKSUM)
                .then(|| checksum(&info, Some(&mode), &whole)),
            e_tag: wants(ObjectAttributes::ETAG).then(|| values::etag(&info.etag())),
            last_modified: Some(values::time(info.attr.mtime)),
            version_id: info.version_id.clone(),
            object_parts: parts,
            object_size: wants(ObjectAttributes::OBJECT_SIZE).then(|| number(info.size_bytes())),
            storage_class: wants(ObjectAttributes::STORAGE_CLASS)
                .then(|| StorageClass::from_static(StorageClass::STANDARD)),
            ..GetObjectAttributesOutput::default()
        }))
    }
}

/// An object that a request reads completely or in part.
struct Reading {
    bucket: Bucket,
    info: ObjectInfo,
    part: ReadRange,
}

impl Reading {
    /// Finds the object, checks the conditions of the request, and finds the requested part.
    async fn begin(
        caller: &Caller,
        headers: &http::HeaderMap,
        input: &GetObjectInput,
    ) -> S3Result<Self> {
        let overrides = [
            &input.response_cache_control,
            &input.response_content_disposition,
            &input.response_content_encoding,
            &input.response_content_language,
            &input.response_content_type,
        ];
        let is_overridden = overrides.iter().any(|it| it.is_some());
        let is_overridden = is_overridden || input.response_expires.is_some();
        require_signed(caller.has_key(), is_overridden)?;
        let version = values::version(input.version_id.as_ref());
        let (bucket, info) = caller.object(&input.bucket, &input.key, version).await?;
        ReadCondition {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        }
        .check(&info)?;
        let range = range_of(input.range.as_ref(), input.part_number, headers, &info)?;
        let part = part_of(&info, range, input.part_number)?;
        Ok(Self { bucket, info, part })
    }

    /// The headers of the response to GET: as the object was put, or as the request sets them.
    fn headers(&self, input: GetObjectInput) -> GetObjectOutput {
        let info = &self.info;
        let sums = checksum(info, input.checksum_mode.as_ref(), &self.part);
        let locked = locks::LockHeaders::of(info);
        GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(number(self.part.range.end - self.part.range.start)),
            content_range: self.part.content_range.clone(),
            content_type: input.response_content_type.or_else(|| content_type(info)),
            cache_control: input
                .response_cache_control
                .or_else(|| kept(info, KEPT_HEADERS[0])),
            content_disposition: input
                .response_content_disposition
                .or_else(|| kept(info, KEPT_HEADERS[1])),
            content_encoding: input
                .response_content_encoding
                .or_else(|| kept(info, KEPT_HEADERS[2])),
            content_language: input
                .response_content_language
                .or_else(|| kept(info, KEPT_HEADERS[3])),
            expires: input.response_expires.or_else(|| kept_expires(info)),
            e_tag: Some(values::etag(&info.etag())),
            last_modified: Some(values::time(info.attr.mtime)),
            metadata: metadata(info),
            parts_count: self.part.parts_count,
            version_id: info.version_id.clone(),
            object_lock_mode: locked.mode,
            object_lock_retain_until_date: locked.until,
            object_lock_legal_hold_status: locked.hold,
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            ..GetObjectOutput::default()
        }
    }

    /// A response with the status of a whole object or of a part.
    fn answer<T>(&self, output: T) -> S3Response<T> {
        let mut response = S3Response::new(output);
        if self.part.content_range.is_some() {
            response.status = Some(http::StatusCode::PARTIAL_CONTENT);
        }
        response
    }
}

/// The GET that a HEAD answers without bytes.
fn as_get(input: HeadObjectInput) -> GetObjectInput {
    GetObjectInput {
        bucket: input.bucket,
        checksum_mode: input.checksum_mode,
        expected_bucket_owner: input.expected_bucket_owner,
        if_match: input.if_match,
        if_modified_since: input.if_modified_since,
        if_none_match: input.if_none_match,
        if_unmodified_since: input.if_unmodified_since,
        key: input.key,
        part_number: input.part_number,
        range: input.range,
        request_payer: input.request_payer,
        response_cache_control: input.response_cache_control,
        response_content_disposition: input.response_content_disposition,
        response_content_encoding: input.response_content_encoding,
        response_content_language: input.response_content_language,
        response_content_type: input.response_content_type,
        response_expires: input.response_expires,
        sse_customer_algorithm: input.sse_customer_algorithm,
        sse_customer_key: input.sse_customer_key,
        sse_customer_key_md5: input.sse_customer_key_md5,
        version_id: input.version_id,
    }
}

/// The response to a HEAD from the headers of the response to its GET.
fn as_head(output: GetObjectOutput) -> HeadObjectOutput {
    HeadObjectOutput {
        accept_ranges: output.accept_ranges,
        content_length: output.content_length,
        content_range: output.content_range,
        content_type: output.content_type,
        cache_control: output.cache_control,
        content_disposition: output.content_disposition,
        content_encoding: output.content_encoding,
        content_language: output.content_language,
        expires: output.expires,
        e_tag: output.e_tag,
        last_modified: output.last_modified,
        metadata: output.metadata,
        parts_count: output.parts_count,
        version_id: output.version_id,
        object_lock_mode: output.object_lock_mode,
        object_lock_retain_until_date: output.object_lock_retain_until_date,
        object_lock_legal_hold_status: output.object_lock_legal_hold_status,
        checksum_crc32: output.checksum_crc32,
        checksum_crc32c: output.checksum_crc32c,
        checksum_crc64nvme: output.checksum_crc64nvme,
        checksum_sha1: output.checksum_sha1,
        checksum_sha256: output.checksum_sha256,
        checksum_type: output.checksum_type,
        ..HeadObjectOutput::default()
    }
}

/// The `Expires` header that an object was put with.
fn kept_expires(info: &ObjectInfo) -> Option<Expires> {
    let text = kept(info, KEPT_HEADERS[4])?;
    Timestamp::parse(TimestampFormat::HttpDate, &text).ok()
}

/// Only signed requests may set headers of the response: otherwise the author of a link could make a browser show an
/// object as a page.
fn require_signed(is_signed: bool, is_overridden: bool) -> S3Result<()> {
    match is_overridden && !is_signed {
        true => Err(s3_error!(
            InvalidRequest,
            "headers of the answer are set by requests with a signature only"
        )),
        false => Ok(()),
    }
}

/// The requested range, if the object is still the one that the client has a part of.
fn range_of<'a>(
    range: Option<&'a Range>,
    number: Option<i32>,
    headers: &http::HeaderMap,
    info: &ObjectInfo,
) -> S3Result<Option<&'a Range>> {
    if range.is_some() && number.is_some() {
        return Err(s3_error!(
            InvalidRequest,
            "a range or the number of a part is asked for, not both"
        ));
    }
    Ok(range.filter(|_| values::is_still(headers.get(IF_RANGE), info)))
}

/// The part of an object that is read.
struct ReadRange {
    range: std::ops::Range<u64>,
    content_range: Option<String>,
    parts_count: Option<i32>,
}

fn part_of(info: &ObjectInfo, range: Option<&Range>, number: Option<i32>) -> S3Result<ReadRange> {
    let size = info.size_bytes();
    let told = |range: &std::ops::Range<u64>| {
        let last = range.end.saturating_sub(1);
        Some(format!("bytes {}-{last}/{size}", range.start))
    };
    if let Some(range) = range {
        let range = range.check(size).map_err(|_| s3_error!(InvalidRange))?;
        return Ok(ReadRange {
            content_range: told(&range),
            range,
            parts_count: None,
        });
    }
    let Some(wanted) = number else {
        return Ok(ReadRange {
            range: 0..size,
            content_range: None,
            parts_count: None,
        });
    };
    let lengths = match &info.record {
        Some(record) if !record.parts.is_empty() => record.parts.clone(),
        _ => vec![size],
    };
    let index = usize::try_from(wanted)
        .ok()
        .and_then(|wanted| wanted.checked_sub(1));
    let index = index.filter(|index| *index < lengths.len());
    let index =
        index.ok_or_else(|| s3_error!(InvalidArgument, "the object has no part of that number"))?;
    let start: u64 = lengths[..index].iter().sum();
    let range = start..start + lengths[index];
    Ok(ReadRange {
        content_range: told(&range),
        range,
        parts_count: i32::try_from(lengths.len()).ok(),
    })
}

/// Parts of an object, in the form of its attributes.
fn attribute_parts(lengths: &[u64], input: &GetObjectAttributesInput) -> GetObjectAttributesParts {
    let after = input
        .part_number_marker
        .and_then(|after| usize::try_from(after).ok())
        .unwrap_or(0);
    let asked = input
        .max_parts
        .and_then(|count| usize::try_from(count).ok());
    let count = asked.unwrap_or(LIST_COUNT_MAX).min(LIST_COUNT_MAX);
    let all = (1..).zip(lengths).skip(after);
    let parts: Vec<ObjectPart> = all
        .take(count)
        .map(|(index, length)| ObjectPart {
            part_number: Some(index),
            size: Some(number(*length)),
            ..ObjectPart::default()
        })
        .collect();
    let last = parts.last().and_then(|part| part.part_number);
    GetObjectAttributesParts {
        is_truncated: Some(after + parts.len() < lengths.len()),
        max_parts: Some(count as i32),
        next_part_number_marker: last,
        part_number_marker: input.part_number_marker,
        parts: Some(parts),
        total_parts_count: Some(lengths.len() as i32),
    }
}

/// Headers of an object as they were put.
fn kept(info: &ObjectInfo, name: &str) -> Option<String> {
    info.record.as_ref()?.headers.get(name).cloned()
}

fn content_type(info: &ObjectInfo) -> Option<ContentType> {
    let given = info
        .record
        .as_ref()
        .and_then(|record| record.content_type.clone());
    Some(given.unwrap_or_else(|| CONTENT_TYPE.to_owned()))
}

fn metadata(info: &ObjectInfo) -> Option<Metadata> {
    let record = info.record.as_ref()?;
    Some(record.meta.clone().into_iter().collect())
}

/// Checksums that were put with an object, if the request asks for them and for the whole object.
fn checksum(info: &ObjectInfo, mode: Option<&ChecksumMode>, part: &ReadRange) -> Checksum {
    let mut checksum = Checksum::default();
    if mode.is_none() || part.content_range.is_some() {
        return checksum;
    }
    if let Some(record) = &info.record {
        set_sums!(checksum, record.checksums);
        checksum.checksum_type = values::type_of(record);
    }
    checksum
}
