//! The operations of S3 on objects.
//!
//! Owns: the mapping of each operation. Must not know: who may do what (`caller`), how objects are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_codec_s3::Policy;
use cairn_codec_s3::signed::REGION_DEFAULT;
use cairn_objects::{
    Bucket, BucketSettings, Completion, Condition, Facet, KeyPath, KeysWanted, Listed, Listing,
    ObjectError, ObjectInfo, ObjectLock, PART_NUMBER_MAX, Versioning, WantedPart, is_plain,
};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use http::header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE};
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::body::{self, Sums};
use crate::buckets::{self, not_set};
use crate::caller::Caller;
use crate::errors::told;
use crate::ids::Ids;
use crate::locks;
use crate::needs::{Facts, Named};
use crate::operations::{self, DELETE_OBJECT};
use crate::server::Shared;
use crate::values::{self, Given, KEPT_HEADERS, ReadCondition};

/// Objects of one request that are deleted side by side.
const DELETES_AT_ONCE: usize = 1000;
const DELETE_COUNT_MAX: usize = 1000;
const LIST_COUNT_MAX: usize = 1000;
/// A client waits so long in silence for its parts to become an object.
const COMPLETE_MAX: Duration = Duration::from_secs(2);
/// Of a page of buckets.
const BUCKET_LIST_COUNT_MAX: usize = 10_000;
const CONTENT_TYPE: &str = "binary/octet-stream";

pub struct Service(pub Arc<Shared>);

fn sums<T>(request: &S3Request<T>, content_md5: Option<String>, checksum: Checksum) -> Sums {
    let trailer = request.headers.get("x-amz-trailer");
    let length = request.headers.get("x-amz-decoded-content-length");
    Sums {
        content_md5,
        checksum,
        trailer: trailer.and_then(|name| Some(name.to_str().ok()?.to_owned())),
        trailing: request.trailing_headers.clone(),
        len_bytes: length.and_then(|length| length.to_str().ok()?.parse().ok()),
        wanted: None,
    }
}

/// Whether everybody may read a new object.
fn acl_of(acl: Option<&ObjectCannedACL>, caller: &Caller) -> S3Result<bool> {
    match acl.map(ObjectCannedACL::as_str) {
        None | Some("bucket-owner-full-control") => Ok(false),
        acl => buckets::public_read(acl, None, &caller.owner()),
    }
}

/// Refuses what a client believes of an object afterwards and is not so: that it is encrypted by its request.
fn refuse_encryption(encrypted: [bool; 3]) -> S3Result<()> {
    match encrypted.contains(&true) {
        true => Err(s3_error!(
            NotImplemented,
            "objects are encrypted with their volume; put them without encryption headers"
        )),
        false => Ok(()),
    }
}

/// Refuses what a form can have of an object that nobody reads; of other requests their headers are refused.
fn refuse_unread(input: &PutObjectInput) -> S3Result<()> {
    let grants = [
        &input.grant_full_control,
        &input.grant_read,
        &input.grant_read_acp,
        &input.grant_write_acp,
    ];
    let is_other = |class: &StorageClass| class.as_str() != StorageClass::STANDARD;
    if grants.iter().any(|grant| grant.is_some()) {
        return Err(s3_error!(
            NotImplemented,
            "an ACL is private or public-read; bucket policies say more"
        ));
    }
    if input.storage_class.as_ref().is_some_and(is_other) {
        return Err(s3_error!(
            NotImplemented,
            "objects have the storage class STANDARD"
        ));
    }
    if input.website_redirect_location.is_some() || input.write_offset_bytes.is_some() {
        return Err(s3_error!(
            NotImplemented,
            "an object is put as a whole, and redirects nobody"
        ));
    }
    Ok(())
}

fn expires(expires: Option<&Expires>) -> Option<String> {
    values::http_date(expires?)
}

/// The same of an object as it was put.
fn kept_expires(info: &ObjectInfo) -> Option<Expires> {
    let text = kept(info, KEPT_HEADERS[4])?;
    Timestamp::parse(TimestampFormat::HttpDate, &text).ok()
}

/// Headers of the answer are set by requests with a signature only: who makes a link could have a page shown of what is none.
fn require_signed(is_signed: bool, is_overridden: bool) -> S3Result<()> {
    match is_overridden && !is_signed {
        true => Err(s3_error!(
            InvalidRequest,
            "headers of the answer are set by requests with a signature only"
        )),
        false => Ok(()),
    }
}

/// The part that a request asks for, if the object is still the one that it has a part of.
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

pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// How many entries a page has.
pub(crate) fn limit(asked: Option<i32>) -> S3Result<usize> {
    match asked {
        None => Ok(LIST_COUNT_MAX),
        Some(asked) => usize::try_from(asked)
            .map(|asked| asked.min(LIST_COUNT_MAX))
            .map_err(|_| s3_error!(InvalidArgument, "the number of entries is below zero")),
    }
}

/// What of an object is read.
struct Part {
    range: std::ops::Range<u64>,
    content_range: Option<String>,
    parts_count: Option<i32>,
}

fn part_of(info: &ObjectInfo, range: Option<&Range>, number: Option<i32>) -> S3Result<Part> {
    let size = info.size_bytes();
    let told = |range: &std::ops::Range<u64>| {
        let last = range.end.saturating_sub(1);
        Some(format!("bytes {}-{last}/{size}", range.start))
    };
    if let Some(range) = range {
        let range = range.check(size).map_err(|_| s3_error!(InvalidRange))?;
        return Ok(Part {
            content_range: told(&range),
            range,
            parts_count: None,
        });
    }
    let Some(wanted) = number else {
        return Ok(Part {
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
    Ok(Part {
        content_range: told(&range),
        range,
        parts_count: i32::try_from(lengths.len()).ok(),
    })
}

/// Parts of an object, as its attributes tell them.
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

/// Checksums that were put with an object, if they are asked for and the whole object is.
fn checksum(info: &ObjectInfo, mode: Option<&ChecksumMode>, part: &Part) -> Checksum {
    let mut checksum = Checksum::default();
    if mode.is_none() || part.content_range.is_some() {
        return checksum;
    }
    if let Some(record) = &info.record {
        let get = |algorithm: &str| record.checksums.get(algorithm).cloned();
        checksum.checksum_crc32 = get("crc32");
        checksum.checksum_crc32c = get("crc32c");
        checksum.checksum_crc64nvme = get("crc64nvme");
        checksum.checksum_sha1 = get("sha1");
        checksum.checksum_sha256 = get("sha256");
        checksum.checksum_type = values::type_of(record);
    }
    checksum
}

/// Objects and prefixes of a page.
fn entries(
    listing: &Listing,
    encoding: Option<&EncodingType>,
    owner: Option<&Owner>,
) -> (ObjectList, CommonPrefixList) {
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for entry in &listing.entries {
        match entry {
            Listed::Object(object) => objects.push(Object {
                key: Some(values::listed(object.key.clone(), encoding)),
                e_tag: Some(values::etag(&object.etag)),
                last_modified: Some(values::time(object.mtime)),
                size: Some(number(object.size_bytes)),
                storage_class: Some(ObjectStorageClass::from_static(
                    ObjectStorageClass::STANDARD,
                )),
                owner: owner.cloned(),
                ..Object::default()
            }),
            Listed::Prefix(prefix) => {
                let prefix = String::from_utf8_lossy(prefix).into_owned();
                prefixes.push(CommonPrefix {
                    prefix: Some(values::listed(prefix, encoding)),
                });
            }
        }
    }
    (objects, prefixes)
}

/// What a client says of the object that parts make.
struct Said {
    size_bytes: Option<i64>,
    kind: Option<ChecksumType>,
}

impl Said {
    /// Refuses parts that make another object, and checksums that nothing could be compared with.
    async fn check(
        &self,
        bucket: &Bucket,
        caller: &Caller,
        (key, id): (&str, &str),
        wanted: &[WantedPart],
        whole: &BTreeMap<String, String>,
    ) -> S3Result<()> {
        if self.size_bytes.is_none() && self.kind.is_none() && whole.is_empty() {
            return Ok(());
        }
        let limit = PART_NUMBER_MAX as usize;
        let (parts, _, checksum) = match bucket.parts(&caller.who, key, id, 0, limit).await {
            // Whoever completes it says so.
            Err(ObjectError::NoUpload) => return Ok(()),
            parts => parts.map_err(told)?,
        };
        let numbers: BTreeSet<u32> = wanted.iter().map(|part| part.number).collect();
        let parts = parts.iter().filter(|part| numbers.contains(&part.number));
        let size_bytes: u64 = parts.map(|part| part.size_bytes).sum();
        if self
            .size_bytes
            .is_some_and(|said| said != number(size_bytes))
        {
            return Err(s3_error!(
                InvalidRequest,
                "the parts have {} bytes, which is not what x-amz-mp-object-size says",
                size_bytes
            ));
        }
        let kind = checksum.as_ref().map(values::checksum_type);
        if self.kind.is_some() && self.kind != kind {
            return Err(s3_error!(
                InvalidRequest,
                "the upload was not begun with a checksum of the type that is told"
            ));
        }
        let is_other = |algorithm: &&String| {
            let own = checksum.as_ref().map(|own| &own.algorithm);
            own != Some(*algorithm)
        };
        match whole.keys().find(is_other) {
            None => Ok(()),
            Some(algorithm) => Err(s3_error!(
                InvalidRequest,
                "the upload was not begun with {}, so there is no such checksum of the object to compare",
                algorithm
            )),
        }
    }
}

/// The version that a copy would replace.
async fn source_version_before(bucket: &Bucket, caller: &Caller, key: &str) -> Option<String> {
    let there = bucket.object(&caller.who, key).await.ok();
    there.and_then(|there| there.version_id)
}

impl Service {
    async fn source(
        &self,
        caller: &Caller,
        source: &CopySource,
    ) -> S3Result<(Bucket, String, ObjectInfo)> {
        let CopySource::Bucket {
            bucket,
            key,
            version_id,
        } = source
        else {
            return Err(s3_error!(
                NotImplemented,
                "the source can be a bucket and a key only"
            ));
        };
        let version = version_id.as_deref().filter(|id| !id.is_empty());
        let (bucket, info) = caller.object(bucket, key, version).await?;
        Ok((bucket, key.to_string(), info))
    }

    async fn list(
        &self,
        caller: &Caller,
        bucket: &str,
        wanted: KeysWanted<'_>,
    ) -> S3Result<Listing> {
        let bucket = caller.bucket(bucket)?;
        if wanted.prefix.contains('\0') || wanted.after.contains(&0) {
            return Err(s3_error!(InvalidArgument, "no key holds a NUL"));
        }
        let page = bucket.list_keys(&caller.who, wanted);
        page.await.map_err(told)
    }
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.unwrap_or_default();
        // All buckets are in the server's.
        let region = input.bucket_region.as_deref();
        let is_here = region.is_none_or(|region| region == self.0.settings.region);
        let limit = match input.max_buckets.map(usize::try_from) {
            None => BUCKET_LIST_COUNT_MAX,
            Some(Ok(asked)) if (1..=BUCKET_LIST_COUNT_MAX).contains(&asked) => asked,
            Some(_) => {
                return Err(s3_error!(InvalidArgument, "max-buckets is 1 to 10000"));
            }
        };
        let mut seen: Vec<_> = caller
            .objects
            .buckets()
            .into_iter()
            .filter(|(name, _)| is_here && name.starts_with(&prefix) && *name > after)
            .filter(|(name, _)| caller.key().is_ok_and(|key| key.may_see(name)))
            .collect();
        let is_more = seen.len() > limit;
        seen.truncate(limit);
        let last = seen.last().map(|(name, _)| name.clone());
        let buckets = seen.into_iter().map(|(name, record)| s3s::dto::Bucket {
            name: Some(name),
            creation_date: Some(values::seconds(record.created_seconds)),
            ..Default::default()
        });
        Ok(S3Response::new(ListBucketsOutput {
            buckets: Some(buckets.collect()),
            owner: Some(caller.owner()),
            continuation_token: last.filter(|_| is_more),
            prefix: input.prefix,
        }))
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        let caller = self.caller(&request)?;
        caller.bucket(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput {
            bucket_region: Some(self.0.settings.region.clone()),
            ..HeadBucketOutput::default()
        }))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        let caller = self.caller(&request)?;
        caller.bucket(&request.input.bucket)?;
        let region = self.0.settings.region.as_str();
        let told = (region != REGION_DEFAULT).then(|| region.to_owned());
        Ok(S3Response::new(GetBucketLocationOutput {
            location_constraint: told.map(BucketLocationConstraint::from),
        }))
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        self.versioning(request).await
    }

    async fn put_bucket_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> S3Result<S3Response<PutBucketVersioningOutput>> {
        self.set_versioning(request).await
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let caller = self.caller(&request)?;
        let name = request.input.bucket;
        let wanted = request.input.create_bucket_configuration;
        let wanted = wanted.and_then(|wanted| wanted.location_constraint);
        let region = self.0.settings.region.as_str();
        if let Some(wanted) = wanted.as_ref().map(BucketLocationConstraint::as_str)
            && !wanted.is_empty()
            && wanted != region
        {
            return Err(s3_error!(
                IllegalLocationConstraintException,
                "buckets of this server are in the region {}, not in {}",
                region,
                wanted
            ));
        }
        let elsewhere = self.0.stores.all().into_iter().any(|objects| {
            objects.fs().volume() != caller.objects.fs().volume() && objects.bucket(&name).is_ok()
        });
        if elsewhere {
            return Err(s3_error!(BucketAlreadyExists));
        }
        let acl = request.input.acl.as_ref().map(BucketCannedACL::as_str);
        let is_public = match acl {
            None => false,
            acl => buckets::public_read(acl, None, &caller.owner())?,
        };
        let has_lock = request.input.object_lock_enabled_for_bucket == Some(true);
        let settings = |now_seconds: i64| {
            let mut settings = BucketSettings {
                public_read: is_public,
                ..BucketSettings::default()
            };
            if has_lock {
                settings.keep_versions(Versioning::Enabled, now_seconds);
                settings.lock = Some(ObjectLock::default());
            }
            settings
        };
        let begun = caller.begun_of_bucket()?;
        let objects = &caller.objects;
        let made = objects.create_own_bucket(&caller.who, &name, settings, begun);
        made.await.map_err(told)?;
        Ok(S3Response::new(CreateBucketOutput {
            location: Some(format!("/{name}")),
        }))
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        let caller = self.caller(&request)?;
        let name = request.input.bucket;
        let begun = caller.begun_of_bucket()?;
        let objects = &caller.objects;
        let deleted = objects.delete_bucket(&caller.who, &name, false, begun);
        deleted.await.map_err(told)?;
        Ok(S3Response::new(DeleteBucketOutput::default()))
    }

    async fn put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let caller = self.caller(&request)?;
        let bucket = caller.bucket(&request.input.bucket)?;
        let body = request.input.body.take();
        let checksum = Checksum {
            checksum_crc32: request.input.checksum_crc32.take(),
            checksum_crc32c: request.input.checksum_crc32c.take(),
            checksum_crc64nvme: request.input.checksum_crc64nvme.take(),
            checksum_sha1: request.input.checksum_sha1.take(),
            checksum_sha256: request.input.checksum_sha256.take(),
            ..Checksum::default()
        };
        let content_md5 = request.input.content_md5.take();
        let mut sums = sums(&request, content_md5, checksum);
        let input = request.input;
        // A checksum that the client wants to be made, without sending it.
        let wanted = input.checksum_algorithm.as_ref();
        sums.wanted = wanted.map(|algorithm| algorithm.as_str().to_ascii_lowercase());
        refuse_unread(&input)?;
        let condition = values::condition(input.if_match.as_ref(), input.if_none_match.as_ref());
        refuse_encryption([
            input.server_side_encryption.is_some(),
            input.sse_customer_algorithm.is_some(),
            input.ssekms_key_id.is_some(),
        ])?;
        let lock = locks::Asked {
            mode: input.object_lock_mode.as_ref(),
            until: input.object_lock_retain_until_date.as_ref(),
            hold: input.object_lock_legal_hold_status.as_ref(),
        };
        // A key that cannot be is refused before its bytes are sent.
        KeyPath::parse(input.key.as_bytes()).map_err(told)?;
        let mut record = values::record(Given {
            content_type: input.content_type,
            headers: [
                input.cache_control,
                input.content_disposition,
                input.content_encoding,
                input.content_language,
                expires(input.expires.as_ref()),
            ],
            meta: input.metadata,
            tags: input.tagging,
        })?;
        record.public_read = acl_of(input.acl.as_ref(), &caller)?;
        lock.note(&bucket, &input.key, &mut record)?;
        let arrival = caller.begun(&bucket, &input.key, Facet::Whole)?;
        let mut transfer = self.0.transfer(&caller, &input.bucket).await;
        let mut staged = bucket.stage(&caller.who, arrival).await.map_err(told)?;
        record.checksums = body::receive(&self.0, &mut transfer, &mut staged, body, sums).await?;
        let checksums = record.checksums.clone();
        let size = number(staged.len_bytes());
        caller.require_still()?;
        let published = bucket.publish(&input.key, staged, record, &condition).await;
        let published = published.map_err(told)?;
        let get = |algorithm: &str| checksums.get(algorithm).cloned();
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(values::etag(&published.etag)),
            checksum_crc32: get("crc32"),
            checksum_crc32c: get("crc32c"),
            checksum_crc64nvme: get("crc64nvme"),
            checksum_sha1: get("sha1"),
            checksum_sha256: get("sha256"),
            size: Some(size),
            version_id: published.version_id,
            ..PutObjectOutput::default()
        }))
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let caller = self.caller(&request)?;
        let overrides = [
            &request.input.response_cache_control,
            &request.input.response_content_disposition,
            &request.input.response_content_encoding,
            &request.input.response_content_language,
            &request.input.response_content_type,
        ];
        let is_overridden = overrides.iter().any(|it| it.is_some());
        let is_overridden = is_overridden || request.input.response_expires.is_some();
        require_signed(caller.has_key(), is_overridden)?;
        let input = request.input;
        let version = values::version(input.version_id.as_ref());
        let (bucket, info) = caller.object(&input.bucket, &input.key, version).await?;
        ReadCondition {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        }
        .check(&info)?;
        let range = range_of(
            input.range.as_ref(),
            input.part_number,
            &request.headers,
            &info,
        )?;
        let part = part_of(&info, range, input.part_number)?;
        let sums = checksum(&info, input.checksum_mode.as_ref(), &part);
        let length = number(part.range.end - part.range.start);
        let transfer = self.0.transfer(&caller, &input.bucket).await;
        let range = part.range.clone();
        let body = body::send(&self.0, transfer, &bucket, &caller.who, info.ino, range);
        let body = body.await.map_err(told)?;
        let is_part = part.content_range.is_some();
        let tags = info.record.as_ref().map_or(0, |record| record.tags.len());
        let locked = locks::Told::of(&info);
        let mut response = S3Response::new(GetObjectOutput {
            body: Some(body),
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(length),
            content_range: part.content_range,
            content_type: input.response_content_type.or_else(|| content_type(&info)),
            cache_control: input
                .response_cache_control
                .or_else(|| kept(&info, KEPT_HEADERS[0])),
            content_disposition: input
                .response_content_disposition
                .or_else(|| kept(&info, KEPT_HEADERS[1])),
            content_encoding: input
                .response_content_encoding
                .or_else(|| kept(&info, KEPT_HEADERS[2])),
            content_language: input
                .response_content_language
                .or_else(|| kept(&info, KEPT_HEADERS[3])),
            expires: input.response_expires.or_else(|| kept_expires(&info)),
            e_tag: Some(values::etag(&info.etag())),
            last_modified: Some(values::time(info.attr.mtime)),
            metadata: metadata(&info),
            parts_count: part.parts_count,
            tag_count: (tags > 0).then_some(tags as i32),
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
        });
        if is_part {
            response.status = Some(http::StatusCode::PARTIAL_CONTENT);
        }
        Ok(response)
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let caller = self.caller(&request)?;
        let overrides = [
            &request.input.response_cache_control,
            &request.input.response_content_disposition,
            &request.input.response_content_encoding,
            &request.input.response_content_language,
            &request.input.response_content_type,
        ];
        let is_overridden = overrides.iter().any(|it| it.is_some());
        let is_overridden = is_overridden || request.input.response_expires.is_some();
        require_signed(caller.has_key(), is_overridden)?;
        let input = request.input;
        let version = values::version(input.version_id.as_ref());
        let (_, info) = caller.object(&input.bucket, &input.key, version).await?;
        ReadCondition {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        }
        .check(&info)?;
        let range = range_of(
            input.range.as_ref(),
            input.part_number,
            &request.headers,
            &info,
        )?;
        let part = part_of(&info, range, input.part_number)?;
        let sums = checksum(&info, input.checksum_mode.as_ref(), &part);
        let is_part = part.content_range.is_some();
        let locked = locks::Told::of(&info);
        let mut response = S3Response::new(HeadObjectOutput {
            version_id: info.version_id.clone(),
            object_lock_mode: locked.mode,
            object_lock_retain_until_date: locked.until,
            object_lock_legal_hold_status: locked.hold,
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(number(part.range.end - part.range.start)),
            content_range: part.content_range,
            content_type: input.response_content_type.or_else(|| content_type(&info)),
            cache_control: input
                .response_cache_control
                .or_else(|| kept(&info, KEPT_HEADERS[0])),
            content_disposition: input
                .response_content_disposition
                .or_else(|| kept(&info, KEPT_HEADERS[1])),
            content_encoding: input
                .response_content_encoding
                .or_else(|| kept(&info, KEPT_HEADERS[2])),
            content_language: input
                .response_content_language
                .or_else(|| kept(&info, KEPT_HEADERS[3])),
            expires: input.response_expires.or_else(|| kept_expires(&info)),
            e_tag: Some(values::etag(&info.etag())),
            last_modified: Some(values::time(info.attr.mtime)),
            metadata: metadata(&info),
            parts_count: part.parts_count,
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            ..HeadObjectOutput::default()
        });
        if is_part {
            response.status = Some(http::StatusCode::PARTIAL_CONTENT);
        }
        Ok(response)
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let deleted = match values::version(input.version_id.as_ref()) {
            Some(_) if input.if_match.is_some() => {
                return Err(s3_error!(
                    InvalidRequest,
                    "If-Match is about the latest version; a version that is named is that one"
                ));
            }
            Some(version) => {
                let bucket = caller.bucket(&input.bucket)?;
                let bypass = input.bypass_governance_retention == Some(true);
                let begun = caller.begun(&bucket, &input.key, Facet::Whole)?;
                bucket
                    .delete_version(&caller.who, &input.key, version, bypass, &begun)
                    .await
            }
            None => {
                let bucket = caller.bucket(&input.bucket)?;
                let condition = values::condition(input.if_match.as_ref(), None);
                let begun = caller.begun(&bucket, &input.key, Facet::Whole)?;
                let deleted = bucket.delete(&caller.who, &input.key, &condition, &begun);
                deleted.await
            }
        };
        let deleted = deleted.map_err(told)?;
        Ok(S3Response::new(DeleteObjectOutput {
            delete_marker: deleted.is_marker.then_some(true),
            version_id: deleted.version_id,
            ..DeleteObjectOutput::default()
        }))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let caller = self.caller(&request)?;
        let bucket = caller.bucket(&request.input.bucket)?;
        caller.require_change()?;
        let Delete { objects, quiet } = request.input.delete;
        let bypass = request.input.bypass_governance_retention == Some(true);
        let row = operations::row(DELETE_OBJECT)?;
        if objects.len() > DELETE_COUNT_MAX || objects.is_empty() {
            return Err(s3_error!(
                MalformedXML,
                "1 to 1000 keys are deleted at a time"
            ));
        }
        let name = &request.input.bucket;
        let (caller, bucket) = (&caller, &bucket);
        let one = |object: ObjectIdentifier| async move {
            let deleted = async {
                let version = values::version(object.version_id.as_ref());
                if version.is_some() && object.e_tag.is_some() {
                    return Err(s3_error!(
                        InvalidRequest,
                        "an ETag is about the latest version; a version that is named is that one"
                    ));
                }
                let facts = Facts {
                    target: Named {
                        bucket: name.clone(),
                        key: object.key.clone(),
                        is_version: version.is_some(),
                    },
                    bypasses: bypass,
                    ..Facts::default()
                };
                caller.require_still()?;
                caller.allow(row, &facts).await?;
                let begun = caller.begun_as_named(bucket, &object.key);
                let (who, key) = (&caller.who, &object.key);
                if let Some(version) = version {
                    let deleted = bucket.delete_version(who, key, version, bypass, &begun);
                    return deleted.await.map_err(told);
                }
                let condition = Condition {
                    if_match: object
                        .e_tag
                        .iter()
                        .map(|etag| etag.value().to_owned())
                        .collect(),
                    ..Condition::default()
                };
                let deleted = bucket.remove(who, key, &condition, &begun).await;
                deleted.map_err(told)
            };
            let deleted = deleted.await;
            ((object.key, object.version_id), deleted)
        };
        let done: Vec<_> = stream::iter(objects)
            .map(one)
            .buffered(DELETES_AT_ONCE)
            .collect()
            .await;
        // Directories go once they are empty: each is looked at once.
        let gone = done.iter().filter(|(_, outcome)| outcome.is_ok());
        let above = gone.filter_map(|((key, _), _)| {
            let dir = key.trim_end_matches('/').rsplit_once('/')?.0;
            Some((dir, key))
        });
        let above: std::collections::BTreeMap<&str, &String> = above.collect();
        for key in above.values() {
            bucket.prune(&caller.who, key).await;
        }
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for ((key, version_id), outcome) in done {
            match outcome {
                Ok(removed) => deleted.push(DeletedObject {
                    key: Some(key),
                    delete_marker: removed.is_marker.then_some(true),
                    delete_marker_version_id: removed.version_id.filter(|_| removed.is_marker),
                    version_id: version_id.filter(|id| !id.is_empty()),
                }),
                Err(error) => errors.push(Error {
                    key: Some(key),
                    code: Some(error.code().as_str().to_owned()),
                    message: error.message().map(str::to_owned),
                    version_id,
                }),
            }
        }
        if quiet == Some(true) {
            deleted.clear();
        }
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        }))
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let caller = self.caller(&request)?;
        let if_match = values::condition_header(&request.headers, IF_MATCH)?;
        let if_none_match = values::condition_header(&request.headers, IF_NONE_MATCH)?;
        let condition = values::condition(if_match.as_ref(), if_none_match.as_ref());
        let input = request.input;
        refuse_encryption([
            input.server_side_encryption.is_some(),
            input.sse_customer_algorithm.is_some(),
            input.ssekms_key_id.is_some(),
        ])?;
        let lock = locks::Asked {
            mode: input.object_lock_mode.as_ref(),
            until: input.object_lock_retain_until_date.as_ref(),
            hold: input.object_lock_legal_hold_status.as_ref(),
        };
        let (from, from_key, info) = self.source(&caller, &input.copy_source).await?;
        let to = caller.bucket(&input.bucket)?;
        ReadCondition {
            if_match: input.copy_source_if_match.as_ref(),
            if_none_match: input.copy_source_if_none_match.as_ref(),
            if_modified_since: input.copy_source_if_modified_since.as_ref(),
            if_unmodified_since: input.copy_source_if_unmodified_since.as_ref(),
        }
        .check(&info)
        // Also what is not modified is a precondition of a copy.
        .map_err(|_| s3_error!(PreconditionFailed))?;
        let is = |directive: Option<&str>| directive == Some("REPLACE");
        let replaces = is(input
            .metadata_directive
            .as_ref()
            .map(|directive| directive.as_str()));
        let replaces_tags = is(input
            .tagging_directive
            .as_ref()
            .map(|directive| directive.as_str()));
        let given = values::record(Given {
            content_type: input.content_type,
            headers: [
                input.cache_control,
                input.content_disposition,
                input.content_encoding,
                input.content_language,
                expires(input.expires.as_ref()),
            ],
            meta: input.metadata,
            tags: input.tagging,
        })?;
        let before = info.record.clone().unwrap_or_default();
        let mut record = match replaces {
            true => given.clone(),
            false => before.clone(),
        };
        record.tags = if replaces_tags {
            given.tags
        } else {
            before.tags
        };
        // Locks and numbers are those of a version, not of its bytes.
        (record.retention, record.legal_hold, record.version_id) = (None, false, None);
        record.upload_id = None;
        record.checksums = before.checksums;
        record.is_composite = before.is_composite;
        // As with tags, rights are not copied.
        record.public_read = acl_of(input.acl.as_ref(), &caller)?;
        lock.note(&to, &input.key, &mut record)?;
        let is_itself = from.record.directory == to.record.directory
            && from_key == input.key
            && info.version_id == source_version_before(&to, &caller, &input.key).await;
        if is_itself && !replaces && !replaces_tags {
            return Err(s3_error!(
                InvalidRequest,
                "an object is copied to itself only with other metadata or tags"
            ));
        }
        let wanted = input.checksum_algorithm.as_ref();
        let wanted = wanted.map(|algorithm| algorithm.as_str().to_ascii_lowercase());
        // What the source has of it need not be read again.
        let wanted = wanted.filter(|wanted| {
            record.is_composite || !record.checksums.contains_key(wanted.as_str())
        });
        // The same bytes: they are identified as in the source, and are in its parts.
        record.parts = before.parts;
        record.etag = info.etag();
        let arrival = caller.begun(&to, &input.key, Facet::Whole)?;
        let mut transfer = self.0.transfer(&caller, &input.bucket).await;
        let mut staged = to.stage(&caller.who, arrival).await.map_err(told)?;
        let from = (&info, 0..info.size_bytes());
        let wanted = wanted.as_deref();
        let taken = body::take(&mut transfer, &to, &caller.who, &mut staged, from, wanted);
        let made = taken.await.map_err(told)?;
        if wanted.is_some() {
            (record.checksums, record.is_composite) = (made, false);
        }
        let sums = record.checksums.clone();
        let sum = |algorithm: &str| sums.get(algorithm).cloned();
        let checksum_type = values::type_of(&record);
        caller.require_still()?;
        let published = to.publish(&input.key, staged, record, &condition).await;
        let published = published.map_err(told)?;
        let now = to.object(&caller.who, &input.key).await.map_err(told)?;
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(CopyObjectResult {
                checksum_crc32: sum("crc32"),
                checksum_crc32c: sum("crc32c"),
                checksum_crc64nvme: sum("crc64nvme"),
                checksum_sha1: sum("sha1"),
                checksum_sha256: sum("sha256"),
                checksum_type,
                e_tag: Some(values::etag(&published.etag)),
                last_modified: Some(values::time(now.attr.mtime)),
            }),
            copy_source_version_id: info.version_id,
            version_id: published.version_id,
            ..CopyObjectOutput::default()
        }))
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let encoding = input.encoding_type.as_ref();
        values::encoding(encoding)?;
        let limit = limit(input.max_keys)?;
        let (prefix, delimiter, marker) = (
            input.prefix.clone().unwrap_or_default(),
            input.delimiter.clone().unwrap_or_default(),
            input.marker.clone().unwrap_or_default(),
        );
        let after = values::raw(&request.uri, "marker").unwrap_or_default();
        let wanted = KeysWanted {
            prefix: &prefix,
            delimiter: &delimiter,
            after: &after,
            limit,
            is_plain: encoding.is_none(),
        };
        let page = self.list(&caller, &input.bucket, wanted).await?;
        let (contents, prefixes) = entries(&page, encoding, Some(&caller.owner()));
        let listed = |text: String| values::listed(text, encoding);
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(listed(prefix)),
            marker: Some(listed(marker)),
            delimiter: input.delimiter.map(listed),
            max_keys: Some(limit as i32),
            is_truncated: Some(page.next.is_some()),
            next_marker: page.next.map(listed),
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            encoding_type: input.encoding_type.clone(),
            ..ListObjectsOutput::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let encoding = input.encoding_type.as_ref();
        values::encoding(encoding)?;
        let limit = limit(input.max_keys)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let after = match &input.continuation_token {
            Some(token) => {
                let bytes = URL_SAFE_NO_PAD.decode(token);
                bytes.map_err(|_| {
                    s3_error!(InvalidArgument, "the continuation token is none of ours")
                })?
            }
            None => values::raw(&request.uri, "start-after").unwrap_or_default(),
        };
        let wanted = KeysWanted {
            prefix: &prefix,
            delimiter: &delimiter,
            after: &after,
            limit,
            is_plain: encoding.is_none(),
        };
        let page = self.list(&caller, &input.bucket, wanted).await?;
        let own = caller.owner();
        let own = (input.fetch_owner == Some(true)).then_some(&own);
        let (contents, prefixes) = entries(&page, encoding, own);
        let listed = |text: String| values::listed(text, encoding);
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(listed(prefix)),
            delimiter: input.delimiter.map(listed),
            max_keys: Some(limit as i32),
            key_count: Some((contents.len() + prefixes.len()) as i32),
            is_truncated: Some(page.next.is_some()),
            continuation_token: input.continuation_token,
            next_continuation_token: page.next.map(|next| URL_SAFE_NO_PAD.encode(next)),
            start_after: input.start_after.map(listed),
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            encoding_type: input.encoding_type.clone(),
            ..ListObjectsV2Output::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        refuse_encryption([
            input.server_side_encryption.is_some(),
            input.sse_customer_algorithm.is_some(),
            input.ssekms_key_id.is_some(),
        ])?;
        let lock = locks::Asked {
            mode: input.object_lock_mode.as_ref(),
            until: input.object_lock_retain_until_date.as_ref(),
            hold: input.object_lock_legal_hold_status.as_ref(),
        };
        let bucket = caller.bucket(&input.bucket)?;
        let mut record = values::record(Given {
            content_type: input.content_type,
            headers: [
                input.cache_control,
                input.content_disposition,
                input.content_encoding,
                input.content_language,
                expires(input.expires.as_ref()),
            ],
            meta: input.metadata,
            tags: input.tagging,
        })?;
        record.public_read = acl_of(input.acl.as_ref(), &caller)?;
        lock.note(&bucket, &input.key, &mut record)?;
        let checksum = values::upload_checksum(
            input.checksum_algorithm.as_ref(),
            input.checksum_type.as_ref(),
        )?;
        let shown = checksum.clone();
        let begun = bucket
            .begin_upload(&caller.who, &input.key, record, checksum)
            .await;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            checksum_algorithm: shown.as_ref().map(values::algorithm),
            checksum_type: shown.as_ref().map(values::checksum_type),
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(begun.map_err(told)?),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(
        &self,
        mut request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let caller = self.caller(&request)?;
        let bucket = caller.bucket(&request.input.bucket)?;
        let body = request.input.body.take();
        let checksum = Checksum {
            checksum_crc32: request.input.checksum_crc32.take(),
            checksum_crc32c: request.input.checksum_crc32c.take(),
            checksum_crc64nvme: request.input.checksum_crc64nvme.take(),
            checksum_sha1: request.input.checksum_sha1.take(),
            checksum_sha256: request.input.checksum_sha256.take(),
            ..Checksum::default()
        };
        let content_md5 = request.input.content_md5.take();
        let mut sums = sums(&request, content_md5, checksum);
        let input = request.input;
        let number = u32::try_from(input.part_number).unwrap_or(0);
        let begun = caller.objects.arrive_part(&input.upload_id, number);
        let staged = bucket.stage_part(&caller.who, &input.key, &input.upload_id, number, begun);
        let mut transfer = self.0.transfer(&caller, &input.bucket).await;
        let mut part = staged.await.map_err(told)?;
        sums.wanted = part.algorithm.clone();
        let checksums = body::receive(&self.0, &mut transfer, &mut part.staged, body, sums).await?;
        part.checksums = checksums.clone();
        caller.require_still()?;
        let part = bucket.publish_part(part).await.map_err(told)?;
        let get = |algorithm: &str| checksums.get(algorithm).cloned();
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(values::etag(&part.etag)),
            checksum_crc32: get("crc32"),
            checksum_crc32c: get("crc32c"),
            checksum_crc64nvme: get("crc64nvme"),
            checksum_sha1: get("sha1"),
            checksum_sha256: get("sha256"),
            ..UploadPartOutput::default()
        }))
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let number = u32::try_from(input.part_number).unwrap_or(0);
        let begun = caller.objects.arrive_part(&input.upload_id, number);
        let (_, _, info) = self.source(&caller, &input.copy_source).await?;
        let to = caller.bucket(&input.bucket)?;
        ReadCondition {
            if_match: input.copy_source_if_match.as_ref(),
            if_none_match: input.copy_source_if_none_match.as_ref(),
            if_modified_since: input.copy_source_if_modified_since.as_ref(),
            if_unmodified_since: input.copy_source_if_unmodified_since.as_ref(),
        }
        .check(&info)
        // Also what is not modified is a precondition of a copy.
        .map_err(|_| s3_error!(PreconditionFailed))?;
        let range = match &input.copy_source_range {
            Some(text) => {
                let range = Range::parse(text).map_err(|_| s3_error!(InvalidArgument))?;
                range
                    .check(info.size_bytes())
                    .map_err(|_| s3_error!(InvalidRange))?
            }
            None => 0..info.size_bytes(),
        };
        if range.end - range.start > body::PUT_LEN_BYTES_MAX {
            return Err(s3_error!(EntityTooLarge));
        }
        let staged = to.stage_part(&caller.who, &input.key, &input.upload_id, number, begun);
        let mut transfer = self.0.transfer(&caller, &input.bucket).await;
        let mut part = staged.await.map_err(told)?;
        part.etag = Some(info.etag_of_part(&range));
        let wanted = part.algorithm.clone();
        let from = (&info, range);
        let taken = body::take(
            &mut transfer,
            &to,
            &caller.who,
            &mut part.staged,
            from,
            wanted.as_deref(),
        );
        part.checksums = taken.await.map_err(told)?;
        caller.require_still()?;
        let part = to.publish_part(part).await.map_err(told)?;
        let get = |algorithm: &str| part.checksums.get(algorithm).cloned();
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(CopyPartResult {
                checksum_crc32: get("crc32"),
                checksum_crc32c: get("crc32c"),
                checksum_crc64nvme: get("crc64nvme"),
                checksum_sha1: get("sha1"),
                checksum_sha256: get("sha256"),
                e_tag: Some(values::etag(&part.etag)),
                last_modified: Some(values::time(part.mtime)),
            }),
            ..UploadPartCopyOutput::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let caller = self.caller(&request)?;
        let request_id = request.extensions.get::<Ids>();
        let request_id = request_id.map(|ids| ids.request.clone());
        let input = request.input;
        let bucket = caller.bucket(&input.bucket)?;
        let said = Said {
            size_bytes: input.mpu_object_size,
            kind: input.checksum_type,
        };
        let parts = input
            .multipart_upload
            .and_then(|upload| upload.parts)
            .unwrap_or_default();
        let mut wanted = Vec::new();
        for part in parts {
            let number = part
                .part_number
                .and_then(|number| u32::try_from(number).ok());
            let etag = part.e_tag.map(|etag| etag.value().to_owned());
            let checksums = values::checksums([
                part.checksum_crc32,
                part.checksum_crc32c,
                part.checksum_crc64nvme,
                part.checksum_sha1,
                part.checksum_sha256,
            ]);
            match (number, etag) {
                (Some(number), Some(etag)) => wanted.push(WantedPart {
                    number,
                    etag,
                    checksums,
                }),
                _ => return Err(s3_error!(MalformedXML, "a part without number or ETag")),
            }
        }
        let whole = values::checksums([
            input.checksum_crc32,
            input.checksum_crc32c,
            input.checksum_crc64nvme,
            input.checksum_sha1,
            input.checksum_sha256,
        ]);
        if wanted.is_empty() {
            return Err(s3_error!(MalformedXML, "no part is named"));
        }
        let upload = (input.key.as_str(), input.upload_id.as_str());
        said.check(&bucket, &caller, upload, &wanted, &whole)
            .await?;
        let condition = values::condition(input.if_match.as_ref(), input.if_none_match.as_ref());
        let shared = Arc::clone(&self.0);
        let (name, key, id) = (input.bucket, input.key, input.upload_id);
        let begun = caller.begun(&bucket, &key, Facet::Whole)?;
        let complete = async move {
            let _place = shared.place(caller.holder()).await;
            caller.require_still()?;
            let who = &caller.who;
            let completion = Completion {
                wanted: &wanted,
                whole: &whole,
                condition: &condition,
            };
            let done = bucket.complete_upload(who, &key, &id, completion, begun);
            let (published, checksum) = done.await.map_err(|error| {
                let mut error = told(error);
                // It may be told when the answer has begun.
                if let Some(request_id) = request_id {
                    error.set_request_id(request_id);
                }
                error
            })?;
            let get = |algorithm: &str| checksum.checksums.get(algorithm).cloned();
            Ok(CompleteMultipartUploadOutput {
                checksum_crc32: get("crc32"),
                checksum_crc32c: get("crc32c"),
                checksum_crc64nvme: get("crc64nvme"),
                checksum_sha1: get("sha1"),
                checksum_sha256: get("sha256"),
                checksum_type: values::type_of(&checksum),
                location: Some(format!("/{name}/{key}")),
                bucket: Some(name),
                key: Some(key),
                e_tag: Some(values::etag(&published.etag)),
                version_id: published.version_id,
                ..CompleteMultipartUploadOutput::default()
            })
        };
        // What is found wrong soon has its own status. What takes long answers as AWS does: spaces, so that the client waits,
        // and then how it ended.
        let mut complete: BoxFuture<'static, S3Result<CompleteMultipartUploadOutput>> =
            Box::pin(complete);
        match tokio::time::timeout(COMPLETE_MAX, &mut complete).await {
            Ok(done) => done.map(S3Response::new),
            Err(_) => Ok(S3Response::new(CompleteMultipartUploadOutput {
                future: Some(complete),
                ..CompleteMultipartUploadOutput::default()
            })),
        }
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.bucket(&input.bucket)?;
        let aborted = bucket
            .abort_upload(&caller.who, &input.key, &input.upload_id)
            .await;
        aborted.map_err(told)?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.bucket(&input.bucket)?;
        let limit = limit(input.max_parts)?;
        let after = u32::try_from(input.part_number_marker.unwrap_or(0));
        let after = after.map_err(|_| s3_error!(InvalidArgument))?;
        let parts = bucket.parts(&caller.who, &input.key, &input.upload_id, after, limit);
        let (parts, is_more, checksum) = parts.await.map_err(told)?;
        let last = parts
            .last()
            .and_then(|part| i32::try_from(part.number).ok());
        let parts = parts.into_iter().map(|part| s3s::dto::Part {
            checksum_crc32: part.checksums.get("crc32").cloned(),
            checksum_crc32c: part.checksums.get("crc32c").cloned(),
            checksum_crc64nvme: part.checksums.get("crc64nvme").cloned(),
            checksum_sha1: part.checksums.get("sha1").cloned(),
            checksum_sha256: part.checksums.get("sha256").cloned(),
            part_number: i32::try_from(part.number).ok(),
            size: Some(number(part.size_bytes)),
            e_tag: Some(values::etag(&part.etag)),
            last_modified: Some(values::time(part.mtime)),
        });
        Ok(S3Response::new(ListPartsOutput {
            checksum_algorithm: checksum.as_ref().map(values::algorithm),
            checksum_type: checksum.as_ref().map(values::checksum_type),
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            max_parts: Some(limit as i32),
            part_number_marker: input.part_number_marker,
            // A page of nothing goes on nowhere.
            is_truncated: Some(is_more && limit > 0),
            next_part_number_marker: last,
            owner: Some(caller.owner()),
            parts: Some(parts.collect()),
            ..ListPartsOutput::default()
        }))
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let bucket = caller.bucket(&input.bucket)?;
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let encoding = input.encoding_type.as_ref();
        values::encoding(encoding)?;
        let limit = limit(input.max_uploads)?;
        let key_marker = input.key_marker.clone().unwrap_or_default();
        let id_marker = input.upload_id_marker.clone().unwrap_or_default();
        let mut found = bucket.uploads(&caller.who, &prefix).await.map_err(told)?;
        // What XML cannot hold is told to who asks for it encoded.
        found.retain(|(_, info)| encoding.is_some() || is_plain(info.key.as_bytes()));
        if limit == 0 {
            // Nothing is wanted: a page that never goes on would be asked for again and again.
            found.clear();
        }
        found.retain(|(id, info)| match info.key == key_marker {
            true => !id_marker.is_empty() && *id > id_marker,
            false => info.key > key_marker,
        });
        // Of keys with a common prefix only that is told, once; all that begins so is over then.
        let common = |key: &str| {
            let rest = key.strip_prefix(prefix.as_str())?;
            let at = rest.find(&delimiter).filter(|_| !delimiter.is_empty())?;
            Some(key[..prefix.len() + at + delimiter.len()].to_owned())
        };
        let (mut uploads, mut prefixes) = (Vec::new(), Vec::<String>::new());
        let (mut last, mut is_more) = ((None, None), false);
        for (id, info) in found {
            let common = common(&info.key);
            if common
                .as_ref()
                .is_some_and(|common| *common == key_marker || prefixes.last() == Some(common))
            {
                continue;
            }
            if uploads.len() + prefixes.len() == limit {
                is_more = true;
                break;
            }
            match common {
                Some(common) => {
                    last = (Some(common.clone()), None);
                    prefixes.push(common);
                }
                None => {
                    last = (Some(info.key.clone()), Some(id.clone()));
                    uploads.push((id, info));
                }
            }
        }
        let (next_key, next_id) = match is_more {
            true => last,
            false => (None, None),
        };
        let listed = |text: String| values::listed(text, encoding);
        let prefixes = prefixes.into_iter().map(|prefix| CommonPrefix {
            prefix: Some(values::listed(prefix, encoding)),
        });
        let uploads = uploads.into_iter().map(|(id, info)| MultipartUpload {
            key: Some(values::listed(info.key, encoding)),
            upload_id: Some(id),
            initiated: Some(values::seconds(info.created_seconds)),
            owner: Some(caller.owner()),
            ..MultipartUpload::default()
        });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket.clone()),
            prefix: input.prefix.map(listed),
            key_marker: input.key_marker.map(listed),
            upload_id_marker: input.upload_id_marker.clone(),
            max_uploads: Some(limit as i32),
            is_truncated: Some(is_more),
            next_key_marker: next_key.map(listed),
            next_upload_id_marker: next_id,
            uploads: Some(uploads.collect()),
            common_prefixes: Some(prefixes.collect()),
            delimiter: input.delimiter.map(listed),
            encoding_type: input.encoding_type.clone(),
            ..ListMultipartUploadsOutput::default()
        }))
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = values::version(input.version_id.as_ref());
        let bucket = caller.bucket(&input.bucket)?;
        let info = bucket.readable(&caller.who, &input.key, version);
        let info = info.await.map_err(told)?;
        let tags = info.record.map(|record| record.tags).unwrap_or_default();
        let tag_set = tags.into_iter().map(|(key, value)| Tag {
            key: Some(key),
            value: Some(value),
        });
        Ok(S3Response::new(GetObjectTaggingOutput {
            tag_set: tag_set.collect(),
            version_id: info.version_id,
        }))
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = values::version(input.version_id.as_ref());
        let bucket = caller.bucket(&input.bucket)?;
        let tags = values::tags(input.tagging.tag_set)?;
        let set = |record: &mut cairn_objects::ObjectRecord| record.tags = tags;
        let begun = caller.begun(&bucket, &input.key, Facet::Tags)?;
        let changed = bucket.change_record(&caller.who, &input.key, version, &begun, set);
        Ok(S3Response::new(PutObjectTaggingOutput {
            version_id: changed.await.map_err(told)?.version_id,
        }))
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = values::version(input.version_id.as_ref());
        let bucket = caller.bucket(&input.bucket)?;
        let clear = |record: &mut cairn_objects::ObjectRecord| record.tags.clear();
        let begun = caller.begun(&bucket, &input.key, Facet::Tags)?;
        let changed = bucket.change_record(&caller.who, &input.key, version, &begun, clear);
        Ok(S3Response::new(DeleteObjectTaggingOutput {
            version_id: changed.await.map_err(told)?.version_id,
        }))
    }

    async fn get_object_attributes(
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

    async fn get_object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = values::version(input.version_id.as_ref());
        let bucket = caller.bucket(&input.bucket)?;
        let info = bucket.readable(&caller.who, &input.key, version);
        let info = info.await.map_err(told)?;
        let owner = caller.owner();
        let is_public = info.record.is_some_and(|record| record.public_read);
        Ok(S3Response::new(GetObjectAclOutput {
            grants: Some(buckets::grants(&owner, is_public)),
            owner: Some(owner),
            request_charged: None,
        }))
    }

    async fn put_object_acl(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = values::version(input.version_id.as_ref());
        let bucket = caller.bucket(&input.bucket)?;
        let acl = input.acl.as_ref().map(ObjectCannedACL::as_str);
        buckets::require_one_acl(acl, input.access_control_policy.as_ref())?;
        let is_public = buckets::public_read(acl, input.access_control_policy, &caller.owner())?;
        let change = |record: &mut cairn_objects::ObjectRecord| record.public_read = is_public;
        let begun = caller.begun(&bucket, &input.key, Facet::Acl)?;
        let changed = bucket.change_record(&caller.who, &input.key, version, &begun, change);
        let changed = changed.await;
        changed.map_err(told)?;
        Ok(S3Response::new(PutObjectAclOutput::default()))
    }

    async fn get_bucket_acl(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        let caller = self.caller(&request)?;
        let settings = caller.bucket(&request.input.bucket)?.record.settings;
        let owner = caller.owner();
        Ok(S3Response::new(GetBucketAclOutput {
            grants: Some(buckets::grants(&owner, settings.public_read)),
            owner: Some(owner),
        }))
    }

    async fn put_bucket_acl(
        &self,
        request: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let acl = input.acl.as_ref().map(BucketCannedACL::as_str);
        buckets::require_one_acl(acl, input.access_control_policy.as_ref())?;
        let is_public = buckets::public_read(acl, input.access_control_policy, &caller.owner())?;
        let set = |settings: &mut BucketSettings| settings.public_read = is_public;
        caller.set(&input.bucket, set).await?;
        Ok(S3Response::new(PutBucketAclOutput::default()))
    }

    async fn get_bucket_policy(
        &self,
        request: S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        let caller = self.caller(&request)?;
        let settings = caller.bucket(&request.input.bucket)?.record.settings;
        let absent = || s3_error!(NoSuchBucketPolicy, "the bucket has no policy");
        Ok(S3Response::new(GetBucketPolicyOutput {
            policy: Some(settings.policy.ok_or_else(absent)?),
        }))
    }

    async fn get_bucket_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
        let caller = self.caller(&request)?;
        let name = &request.input.bucket;
        let settings = caller.bucket(name)?.record.settings;
        let policy = settings.policy(name).map_err(told)?;
        let absent = || s3_error!(NoSuchBucketPolicy, "the bucket has no policy");
        let policy = policy.ok_or_else(absent)?;
        Ok(S3Response::new(GetBucketPolicyStatusOutput {
            policy_status: Some(PolicyStatus {
                is_public: Some(policy.is_public()),
            }),
        }))
    }

    async fn put_bucket_policy(
        &self,
        request: S3Request<PutBucketPolicyInput>,
    ) -> S3Result<S3Response<PutBucketPolicyOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let policy = Policy::parse(&input.policy, &input.bucket).map_err(told)?;
        let is_key = |id: &str| caller.objects.access_key(id).is_some();
        let check_pattern = |pattern: &str| {
            let checked = KeyPath::check_pattern(pattern);
            checked.map_err(|why| why.to_string())
        };
        policy.check(is_key, check_pattern).map_err(told)?;
        let set = |settings: &mut BucketSettings| settings.policy = Some(input.policy);
        caller.set(&input.bucket, set).await?;
        Ok(S3Response::new(PutBucketPolicyOutput::default()))
    }

    async fn delete_bucket_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
        let caller = self.caller(&request)?;
        let set = |settings: &mut BucketSettings| settings.policy = None;
        caller.set(&request.input.bucket, set).await?;
        Ok(S3Response::new(DeleteBucketPolicyOutput::default()))
    }

    async fn get_bucket_cors(
        &self,
        request: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        let caller = self.caller(&request)?;
        let settings = caller.bucket(&request.input.bucket)?.record.settings;
        if settings.cors.is_empty() {
            return Err(not_set(
                "NoSuchCORSConfiguration",
                "the bucket has no rules for pages of other servers",
            ));
        }
        Ok(S3Response::new(GetBucketCorsOutput {
            cors_rules: Some(buckets::cors(settings.cors)),
        }))
    }

    async fn put_bucket_cors(
        &self,
        request: S3Request<PutBucketCorsInput>,
    ) -> S3Result<S3Response<PutBucketCorsOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let rules = buckets::cors_of(input.cors_configuration)?;
        let set = |settings: &mut BucketSettings| settings.cors = rules;
        caller.set(&input.bucket, set).await?;
        Ok(S3Response::new(PutBucketCorsOutput::default()))
    }

    async fn delete_bucket_cors(
        &self,
        request: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        let caller = self.caller(&request)?;
        let set = |settings: &mut BucketSettings| settings.cors.clear();
        caller.set(&request.input.bucket, set).await?;
        Ok(S3Response::new(DeleteBucketCorsOutput::default()))
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        let caller = self.caller(&request)?;
        let settings = caller.bucket(&request.input.bucket)?.record.settings;
        if settings.lifecycle.is_empty() {
            return Err(s3_error!(
                NoSuchLifecycleConfiguration,
                "the bucket has no lifecycle rules"
            ));
        }
        Ok(S3Response::new(GetBucketLifecycleConfigurationOutput {
            rules: Some(buckets::lifecycle(settings.lifecycle)),
            transition_default_minimum_object_size: None,
        }))
    }

    async fn put_bucket_lifecycle_configuration(
        &self,
        request: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<PutBucketLifecycleConfigurationOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let rules = input.lifecycle_configuration.map(|it| it.rules);
        let rules = buckets::lifecycle_of(rules.unwrap_or_default())?;
        let set = |settings: &mut BucketSettings| settings.lifecycle = rules;
        caller.set(&input.bucket, set).await?;
        Ok(S3Response::new(
            PutBucketLifecycleConfigurationOutput::default(),
        ))
    }

    async fn delete_bucket_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
        let caller = self.caller(&request)?;
        let set = |settings: &mut BucketSettings| settings.lifecycle.clear();
        caller.set(&request.input.bucket, set).await?;
        Ok(S3Response::new(DeleteBucketLifecycleOutput::default()))
    }

    async fn get_bucket_tagging(
        &self,
        request: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        let caller = self.caller(&request)?;
        let settings = caller.bucket(&request.input.bucket)?.record.settings;
        if settings.tags.is_empty() {
            return Err(s3_error!(NoSuchTagSet, "the bucket has no tags"));
        }
        Ok(S3Response::new(GetBucketTaggingOutput {
            tag_set: buckets::tag_set(settings.tags),
        }))
    }

    async fn put_bucket_tagging(
        &self,
        request: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<S3Response<PutBucketTaggingOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let tags = values::bucket_tags(input.tagging.tag_set)?;
        let set = |settings: &mut BucketSettings| settings.tags = tags;
        caller.set(&input.bucket, set).await?;
        Ok(S3Response::new(PutBucketTaggingOutput::default()))
    }

    async fn delete_bucket_tagging(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        let caller = self.caller(&request)?;
        let set = |settings: &mut BucketSettings| settings.tags.clear();
        caller.set(&request.input.bucket, set).await?;
        Ok(S3Response::new(DeleteBucketTaggingOutput::default()))
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        self.versions(request).await
    }

    async fn get_bucket_encryption(
        &self,
        request: S3Request<GetBucketEncryptionInput>,
    ) -> S3Result<S3Response<GetBucketEncryptionOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Err(not_set(
            "ServerSideEncryptionConfigurationNotFoundError",
            "objects of the bucket are not encrypted",
        ))
    }

    async fn get_bucket_website(
        &self,
        request: S3Request<GetBucketWebsiteInput>,
    ) -> S3Result<S3Response<GetBucketWebsiteOutput>> {
        self.website(request).await
    }

    async fn put_bucket_website(
        &self,
        request: S3Request<PutBucketWebsiteInput>,
    ) -> S3Result<S3Response<PutBucketWebsiteOutput>> {
        self.set_website(request).await
    }

    async fn delete_bucket_website(
        &self,
        request: S3Request<DeleteBucketWebsiteInput>,
    ) -> S3Result<S3Response<DeleteBucketWebsiteOutput>> {
        self.delete_website(request).await
    }

    async fn get_bucket_replication(
        &self,
        request: S3Request<GetBucketReplicationInput>,
    ) -> S3Result<S3Response<GetBucketReplicationOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Err(not_set(
            "ReplicationConfigurationNotFoundError",
            "the bucket is not replicated over S3",
        ))
    }

    async fn get_object_lock_configuration(
        &self,
        request: S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        self.object_lock(request).await
    }

    async fn put_object_lock_configuration(
        &self,
        request: S3Request<PutObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<PutObjectLockConfigurationOutput>> {
        self.set_object_lock(request).await
    }

    async fn get_object_retention(
        &self,
        request: S3Request<GetObjectRetentionInput>,
    ) -> S3Result<S3Response<GetObjectRetentionOutput>> {
        self.retention(request).await
    }

    async fn put_object_retention(
        &self,
        request: S3Request<PutObjectRetentionInput>,
    ) -> S3Result<S3Response<PutObjectRetentionOutput>> {
        self.set_retention(request).await
    }

    async fn get_object_legal_hold(
        &self,
        request: S3Request<GetObjectLegalHoldInput>,
    ) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
        self.legal_hold(request).await
    }

    async fn put_object_legal_hold(
        &self,
        request: S3Request<PutObjectLegalHoldInput>,
    ) -> S3Result<S3Response<PutObjectLegalHoldOutput>> {
        self.set_legal_hold(request).await
    }

    async fn get_public_access_block(
        &self,
        request: S3Request<GetPublicAccessBlockInput>,
    ) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Err(not_set(
            "NoSuchPublicAccessBlockConfiguration",
            "the bucket blocks no public access beyond its ACL and policy",
        ))
    }

    async fn get_bucket_ownership_controls(
        &self,
        request: S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Err(not_set(
            "OwnershipControlsNotFoundError",
            "the bucket has no ownership controls",
        ))
    }

    async fn get_bucket_logging(
        &self,
        request: S3Request<GetBucketLoggingInput>,
    ) -> S3Result<S3Response<GetBucketLoggingOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Ok(S3Response::new(GetBucketLoggingOutput::default()))
    }

    async fn get_bucket_notification_configuration(
        &self,
        request: S3Request<GetBucketNotificationConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketNotificationConfigurationOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Ok(S3Response::new(
            GetBucketNotificationConfigurationOutput::default(),
        ))
    }

    async fn get_bucket_accelerate_configuration(
        &self,
        request: S3Request<GetBucketAccelerateConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketAccelerateConfigurationOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Ok(S3Response::new(
            GetBucketAccelerateConfigurationOutput::default(),
        ))
    }

    async fn get_bucket_request_payment(
        &self,
        request: S3Request<GetBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Ok(S3Response::new(GetBucketRequestPaymentOutput {
            payer: Some(Payer::from_static(Payer::BUCKET_OWNER)),
        }))
    }
}
