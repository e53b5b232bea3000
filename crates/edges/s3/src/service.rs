//! The operations of S3 on objects.
//!
//! Owns: who may do what by the access key, the mapping of each operation. Must not know: how objects are kept.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_fs::Credentials;
use cairn_objects::{AccessKey, Bucket, Condition, Listed, Listing, ObjectInfo, Objects};
use cairn_qos::Client;
use futures_util::{StreamExt as _, stream};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::body::{self, Sums};
use crate::errors::told;
use crate::server::Shared;
use crate::values::{self, Given, KEPT_HEADERS, ReadCondition};

/// Objects of one request that are deleted side by side.
const DELETES_AT_ONCE: usize = 32;
const DELETE_COUNT_MAX: usize = 1000;
const LIST_COUNT_MAX: usize = 1000;
const CONTENT_TYPE: &str = "binary/octet-stream";

/// Looks up secrets for signatures.
pub struct Keys(pub Arc<Shared>);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let found = self.0.stores.access_key(access_key);
        let (_, key) = found.ok_or_else(|| self.0.unknown(s3_error!(InvalidAccessKeyId)))?;
        Ok(SecretKey::from(key.secret))
    }
}

pub struct Service(pub Arc<Shared>);

/// Whose request it is.
struct Caller {
    objects: Arc<Objects>,
    key: AccessKey,
    who: Credentials,
    /// Whose rate its transfers count for: the access key.
    client: Client,
}

/// What a request wants to do with a key or prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Read,
    Change,
}

impl Caller {
    fn bucket(&self, name: &str) -> S3Result<Bucket> {
        if !self.key.may_see(name) {
            return Err(s3_error!(
                AccessDenied,
                "the access key is not for this bucket"
            ));
        }
        self.objects.bucket(name).map_err(told)
    }

    /// The bucket, if the access key is for this key or prefix.
    fn at(&self, name: &str, key: &str, to: To) -> S3Result<Bucket> {
        let bucket = self.bucket(name)?;
        if !self.key.may_use(name, key) {
            return Err(s3_error!(
                AccessDenied,
                "the access key is not for this part of the bucket"
            ));
        }
        self.may(to)?;
        Ok(bucket)
    }

    fn may(&self, to: To) -> S3Result<()> {
        match to == To::Change && self.key.read_only {
            true => Err(s3_error!(AccessDenied, "the access key can only read")),
            false => Ok(()),
        }
    }
}

impl Service {
    fn caller<T>(&self, request: &S3Request<T>) -> S3Result<Caller> {
        let denied = || s3_error!(AccessDenied, "a signature is needed");
        let credentials = request.credentials.as_ref().ok_or_else(denied)?;
        let found = self.0.stores.access_key(&credentials.access_key);
        let (objects, key) = found.ok_or_else(|| self.0.unknown(s3_error!(InvalidAccessKeyId)))?;
        Ok(Caller {
            who: key.credentials(),
            client: Client::named(&credentials.access_key),
            objects,
            key,
        })
    }
}

fn sums<T>(request: &S3Request<T>, content_md5: Option<String>, checksum: Checksum) -> Sums {
    let trailer = request.headers.get("x-amz-trailer");
    Sums {
        content_md5,
        checksum,
        trailer: trailer.and_then(|name| Some(name.to_str().ok()?.to_owned())),
        trailing: request.trailing_headers.clone(),
    }
}

fn expires(expires: Option<&Expires>) -> Option<String> {
    let mut text = Vec::new();
    expires?.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// How many entries a page has.
fn limit(asked: Option<i32>) -> S3Result<usize> {
    match asked {
        None => Ok(LIST_COUNT_MAX),
        Some(asked) => usize::try_from(asked)
            .map(|asked| asked.min(LIST_COUNT_MAX))
            .map_err(|_| s3_error!(InvalidArgument, "the number of entries is below zero")),
    }
}

fn version(asked: Option<&ObjectVersionId>) -> S3Result<()> {
    match asked.map(String::as_str) {
        None | Some("null" | "") => Ok(()),
        Some(_) => Err(s3_error!(NoSuchVersion, "the bucket keeps no versions")),
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

fn owner(key: &AccessKey) -> Owner {
    let id = key.uid.to_string();
    Owner {
        display_name: Some(id.clone()),
        id: Some(id),
    }
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
        version(version_id.as_deref().map(str::to_owned).as_ref())?;
        let bucket = caller.at(bucket, key, To::Read)?;
        let info = bucket.object(&caller.who, key).await.map_err(told)?;
        Ok((bucket, key.to_string(), info))
    }

    async fn list(
        &self,
        caller: &Caller,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
        after: &str,
        limit: usize,
    ) -> S3Result<Listing> {
        let bucket = caller.at(bucket, prefix, To::Read)?;
        if prefix.contains('\0') || after.contains('\0') {
            return Err(s3_error!(InvalidArgument, "no key holds a NUL"));
        }
        let page = bucket.list(&caller.who, prefix, delimiter, after, limit);
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
        let limit = match input.max_buckets {
            Some(asked) => usize::try_from(asked).unwrap_or(0).clamp(1, 10_000),
            None => 10_000,
        };
        let mut seen: Vec<_> = caller
            .objects
            .buckets()
            .into_iter()
            .filter(|(name, _)| name.starts_with(&prefix) && *name > after)
            .filter(|(name, _)| caller.key.may_see(name))
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
            owner: Some(owner(&caller.key)),
            continuation_token: last.filter(|_| is_more),
            prefix: input.prefix,
        }))
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        self.caller(&request)?.bucket(&request.input.bucket)?;
        // Never enabled.
        Ok(S3Response::new(GetBucketVersioningOutput::default()))
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let caller = self.caller(&request)?;
        caller.may(To::Change)?;
        let name = request.input.bucket;
        if !caller.key.only.is_empty() {
            return Err(s3_error!(
                AccessDenied,
                "the access key is for certain buckets only"
            ));
        }
        let elsewhere = self.0.stores.all().into_iter().any(|objects| {
            objects.fs().volume() != caller.objects.fs().volume() && objects.bucket(&name).is_ok()
        });
        if elsewhere {
            return Err(s3_error!(BucketAlreadyExists));
        }
        let made = caller.objects.create_bucket(&caller.who, &name, None).await;
        made.map_err(told)?;
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
        caller.bucket(&name)?;
        caller.may(To::Change)?;
        if !caller.key.only.is_empty() {
            return Err(s3_error!(
                AccessDenied,
                "the access key is for certain buckets only"
            ));
        }
        let deleted = caller
            .objects
            .delete_bucket(&caller.who, &name, false)
            .await;
        deleted.map_err(told)?;
        Ok(S3Response::new(DeleteBucketOutput::default()))
    }

    async fn put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let caller = self.caller(&request)?;
        let bucket = caller.at(&request.input.bucket, &request.input.key, To::Change)?;
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
        let sums = sums(&request, content_md5, checksum);
        let input = request.input;
        let condition = values::condition(input.if_match.as_ref(), input.if_none_match.as_ref());
        // A key that cannot be is refused before its bytes are sent.
        cairn_objects::KeyPath::parse(input.key.as_bytes()).map_err(|error| told(error.into()))?;
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
        let mut transfer = self.0.transfer(&caller.objects, caller.client).await;
        let mut staged = bucket.stage(&caller.who).await.map_err(told)?;
        record.checksums = body::receive(&self.0, &mut transfer, &mut staged, body, sums).await?;
        let checksums = record.checksums.clone();
        let size = number(staged.len_bytes());
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
            ..PutObjectOutput::default()
        }))
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        version(input.version_id.as_ref())?;
        let bucket = caller.at(&input.bucket, &input.key, To::Read)?;
        let info = bucket.object(&caller.who, &input.key).await.map_err(told)?;
        ReadCondition {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        }
        .check(&info)?;
        let part = part_of(&info, input.range.as_ref(), input.part_number)?;
        let sums = checksum(&info, input.checksum_mode.as_ref(), &part);
        let length = number(part.range.end - part.range.start);
        let transfer = self.0.transfer(&caller.objects, caller.client).await;
        let range = part.range.clone();
        let body = body::send(&self.0, transfer, &bucket, &caller.who, info.ino, range);
        let body = body.await.map_err(told)?;
        let is_part = part.content_range.is_some();
        let tags = info.record.as_ref().map_or(0, |record| record.tags.len());
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
            e_tag: Some(values::etag(&info.etag())),
            last_modified: Some(values::time(info.attr.mtime)),
            metadata: metadata(&info),
            parts_count: part.parts_count,
            tag_count: (tags > 0).then_some(tags as i32),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
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
        let input = request.input;
        version(input.version_id.as_ref())?;
        let bucket = caller.at(&input.bucket, &input.key, To::Read)?;
        let info = bucket.object(&caller.who, &input.key).await.map_err(told)?;
        ReadCondition {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        }
        .check(&info)?;
        let part = part_of(&info, input.range.as_ref(), input.part_number)?;
        let sums = checksum(&info, input.checksum_mode.as_ref(), &part);
        let is_part = part.content_range.is_some();
        let mut response = S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(number(part.range.end - part.range.start)),
            content_range: part.content_range,
            content_type: content_type(&info),
            cache_control: kept(&info, KEPT_HEADERS[0]),
            content_disposition: kept(&info, KEPT_HEADERS[1]),
            content_encoding: kept(&info, KEPT_HEADERS[2]),
            content_language: kept(&info, KEPT_HEADERS[3]),
            e_tag: Some(values::etag(&info.etag())),
            last_modified: Some(values::time(info.attr.mtime)),
            metadata: metadata(&info),
            parts_count: part.parts_count,
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
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
        version(input.version_id.as_ref())?;
        let bucket = caller.at(&input.bucket, &input.key, To::Change)?;
        let condition = values::condition(input.if_match.as_ref(), None);
        let deleted = bucket.delete(&caller.who, &input.key, &condition).await;
        deleted.map_err(told)?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let caller = self.caller(&request)?;
        caller.bucket(&request.input.bucket)?;
        caller.may(To::Change)?;
        let Delete { objects, quiet } = request.input.delete;
        if objects.len() > DELETE_COUNT_MAX || objects.is_empty() {
            return Err(s3_error!(
                MalformedXML,
                "1 to 1000 keys are deleted at a time"
            ));
        }
        let name = &request.input.bucket;
        let caller = &caller;
        let one = |object: ObjectIdentifier| async move {
            let deleted = async {
                version(object.version_id.as_ref())?;
                let bucket = caller.at(name, &object.key, To::Change)?;
                let condition = Condition {
                    if_match: object
                        .e_tag
                        .iter()
                        .map(|etag| etag.value().to_owned())
                        .collect(),
                    ..Condition::default()
                };
                let deleted = bucket.delete(&caller.who, &object.key, &condition).await;
                deleted.map_err(told)
            };
            let deleted = deleted.await;
            (object.key, deleted)
        };
        let done: Vec<_> = stream::iter(objects)
            .map(one)
            .buffered(DELETES_AT_ONCE)
            .collect()
            .await;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (key, outcome) in done {
            match outcome {
                Ok(()) => deleted.push(DeletedObject {
                    key: Some(key),
                    ..DeletedObject::default()
                }),
                Err(error) => errors.push(Error {
                    key: Some(key),
                    code: Some(error.code().as_str().to_owned()),
                    message: error.message().map(str::to_owned),
                    version_id: None,
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
        let input = request.input;
        let (from, from_key, info) = self.source(&caller, &input.copy_source).await?;
        let to = caller.at(&input.bucket, &input.key, To::Change)?;
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
        record.checksums = before.checksums;
        let is_itself = from.record.directory == to.record.directory && from_key == input.key;
        if is_itself && !replaces && !replaces_tags {
            return Err(s3_error!(
                InvalidRequest,
                "an object is copied to itself only with other metadata or tags"
            ));
        }
        // Copied bytes are one part, whatever the source was.
        record.parts = Vec::new();
        record.etag = String::new();
        let mut transfer = self.0.transfer(&caller.objects, caller.client).await;
        let mut staged = to.stage(&caller.who).await.map_err(told)?;
        let range = 0..info.size_bytes();
        let copied = body::copy(
            &mut transfer,
            &to,
            &caller.who,
            &mut staged,
            info.ino,
            range,
        );
        copied.await.map_err(told)?;
        let always = Condition::default();
        let published = to.publish(&input.key, staged, record, &always).await;
        let published = published.map_err(told)?;
        let now = to.object(&caller.who, &input.key).await.map_err(told)?;
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(CopyObjectResult {
                e_tag: Some(values::etag(&published.etag)),
                last_modified: Some(values::time(now.attr.mtime)),
                ..CopyObjectResult::default()
            }),
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
        let page = self.list(&caller, &input.bucket, &prefix, &delimiter, &marker, limit);
        let page = page.await?;
        let (contents, prefixes) = entries(&page, encoding, Some(&owner(&caller.key)));
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
                let bytes = URL_SAFE_NO_PAD.decode(token).ok();
                let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
                text.ok_or_else(|| {
                    s3_error!(InvalidArgument, "the continuation token is none of ours")
                })?
            }
            None => input.start_after.clone().unwrap_or_default(),
        };
        let page = self.list(&caller, &input.bucket, &prefix, &delimiter, &after, limit);
        let page = page.await?;
        let own = owner(&caller.key);
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
        let bucket = caller.at(&input.bucket, &input.key, To::Change)?;
        let record = values::record(Given {
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
        let begun = bucket.begin_upload(&caller.who, &input.key, record).await;
        Ok(S3Response::new(CreateMultipartUploadOutput {
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
        let bucket = caller.at(&request.input.bucket, &request.input.key, To::Change)?;
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
        let sums = sums(&request, content_md5, checksum);
        let input = request.input;
        let number = u32::try_from(input.part_number).unwrap_or(0);
        let staged = bucket.stage_part(&caller.who, &input.key, &input.upload_id, number);
        let mut transfer = self.0.transfer(&caller.objects, caller.client).await;
        let mut staged = staged.await.map_err(told)?;
        let checksums = body::receive(&self.0, &mut transfer, &mut staged, body, sums).await?;
        let part = bucket.publish_part(number, staged).await.map_err(told)?;
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
        let (_, _, info) = self.source(&caller, &input.copy_source).await?;
        let to = caller.at(&input.bucket, &input.key, To::Change)?;
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
        let number = u32::try_from(input.part_number).unwrap_or(0);
        let staged = to.stage_part(&caller.who, &input.key, &input.upload_id, number);
        let mut transfer = self.0.transfer(&caller.objects, caller.client).await;
        let mut staged = staged.await.map_err(told)?;
        let copied = body::copy(
            &mut transfer,
            &to,
            &caller.who,
            &mut staged,
            info.ino,
            range,
        );
        copied.await.map_err(told)?;
        let part = to.publish_part(number, staged).await.map_err(told)?;
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(CopyPartResult {
                e_tag: Some(values::etag(&part.etag)),
                last_modified: Some(values::time(part.mtime)),
                ..CopyPartResult::default()
            }),
            ..UploadPartCopyOutput::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.at(&input.bucket, &input.key, To::Change)?;
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
            match (number, etag) {
                (Some(number), Some(etag)) => wanted.push((number, etag)),
                _ => return Err(s3_error!(MalformedXML, "a part without number or ETag")),
            }
        }
        if wanted.is_empty() {
            return Err(s3_error!(MalformedXML, "no part is named"));
        }
        let condition = values::condition(input.if_match.as_ref(), input.if_none_match.as_ref());
        let (key, id) = (&input.key, &input.upload_id);
        let done = bucket.complete_upload(&caller.who, key, id, &wanted, &condition);
        let published = done.await.map_err(told)?;
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(values::etag(&published.etag)),
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.at(&input.bucket, &input.key, To::Change)?;
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
        let bucket = caller.at(&input.bucket, &input.key, To::Read)?;
        let limit = limit(input.max_parts)?;
        let after = u32::try_from(input.part_number_marker.unwrap_or(0));
        let after = after.map_err(|_| s3_error!(InvalidArgument))?;
        let parts = bucket.parts(&caller.who, &input.key, &input.upload_id, after, limit);
        let (parts, is_more) = parts.await.map_err(told)?;
        let last = parts
            .last()
            .and_then(|part| i32::try_from(part.number).ok());
        let parts = parts.into_iter().map(|part| s3s::dto::Part {
            part_number: i32::try_from(part.number).ok(),
            size: Some(number(part.size_bytes)),
            e_tag: Some(values::etag(&part.etag)),
            last_modified: Some(values::time(part.mtime)),
            ..Default::default()
        });
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            max_parts: Some(limit as i32),
            part_number_marker: input.part_number_marker,
            is_truncated: Some(is_more),
            next_part_number_marker: last,
            owner: Some(owner(&caller.key)),
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
        let bucket = caller.at(&input.bucket, &prefix, To::Read)?;
        if input
            .delimiter
            .as_deref()
            .is_some_and(|delimiter| !delimiter.is_empty())
        {
            return Err(s3_error!(
                NotImplemented,
                "uploads are listed without a delimiter only"
            ));
        }
        let encoding = input.encoding_type.as_ref();
        values::encoding(encoding)?;
        let limit = limit(input.max_uploads)?;
        let key_marker = input.key_marker.clone().unwrap_or_default();
        let id_marker = input.upload_id_marker.clone().unwrap_or_default();
        let mut found = bucket.uploads(&caller.who, &prefix).await.map_err(told)?;
        found.retain(|(id, info)| match info.key == key_marker {
            true => !id_marker.is_empty() && *id > id_marker,
            false => info.key > key_marker,
        });
        let is_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| is_more);
        let (next_key, next_id) = match last {
            Some((id, info)) => (Some(info.key.clone()), Some(id.clone())),
            None => (None, None),
        };
        let uploads = found.into_iter().map(|(id, info)| MultipartUpload {
            key: Some(values::listed(info.key, encoding)),
            upload_id: Some(id),
            initiated: Some(values::seconds(info.created_seconds)),
            owner: Some(owner(&caller.key)),
            ..MultipartUpload::default()
        });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket.clone()),
            prefix: input.prefix.clone(),
            key_marker: input.key_marker.clone(),
            upload_id_marker: input.upload_id_marker.clone(),
            max_uploads: Some(limit as i32),
            is_truncated: Some(is_more),
            next_key_marker: next_key.map(|key| values::listed(key, encoding)),
            next_upload_id_marker: next_id,
            uploads: Some(uploads.collect()),
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
        version(input.version_id.as_ref())?;
        let bucket = caller.at(&input.bucket, &input.key, To::Read)?;
        let info = bucket.object(&caller.who, &input.key).await.map_err(told)?;
        let tags = info.record.map(|record| record.tags).unwrap_or_default();
        let tag_set = tags.into_iter().map(|(key, value)| Tag {
            key: Some(key),
            value: Some(value),
        });
        Ok(S3Response::new(GetObjectTaggingOutput {
            tag_set: tag_set.collect(),
            version_id: None,
        }))
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        version(input.version_id.as_ref())?;
        let bucket = caller.at(&input.bucket, &input.key, To::Change)?;
        let tags = values::tags(input.tagging.tag_set)?;
        let changed = bucket.change_record(&caller.who, &input.key, |record| record.tags = tags);
        changed.await.map_err(told)?;
        Ok(S3Response::new(PutObjectTaggingOutput::default()))
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        version(input.version_id.as_ref())?;
        let bucket = caller.at(&input.bucket, &input.key, To::Change)?;
        let changed = bucket.change_record(&caller.who, &input.key, |record| record.tags.clear());
        changed.await.map_err(told)?;
        Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
    }
}
