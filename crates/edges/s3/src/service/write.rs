//! Putting, copying and deleting objects, each at once.
//!
//! Owns: these operations. Must not know: how bytes are received (`body`), uploads in parts.

use cairn_objects::{Bucket, Condition, Facet, KeyPath};
use futures_util::{StreamExt as _, stream};
use http::header::{IF_MATCH, IF_NONE_MATCH};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::fields::{body_and_sums, given, lock_of, refuse_encryption, set_sums, source_condition};
use super::{Service, acl_of, check_source, number};
use crate::body;
use crate::caller::Caller;
use crate::errors::told;
use crate::needs::{Facts, ObjectName};
use crate::operations::{self, DELETE_OBJECT};
use crate::values;

/// Objects of one request that are deleted concurrently.
const DELETES_AT_ONCE: usize = 1000;
const DELETE_COUNT_MAX: usize = 1000;

impl Service {
    pub(super) async fn put(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let caller = self.caller(&request)?;
        let bucket = caller.bucket(&request.input.bucket)?;
        let (body, mut sums) = body_and_sums!(request);
        let input = request.input;
        // A checksum that the server should compute, and that the client does not send.
        let wanted = input.checksum_algorithm.as_ref();
        sums.wanted = wanted.map(|algorithm| algorithm.as_str().to_ascii_lowercase());
        refuse_unread(&input)?;
        let condition = values::condition(input.if_match.as_ref(), input.if_none_match.as_ref());
        refuse_encryption!(input)?;
        let lock = lock_of!(input);
        // An invalid key is refused before its bytes are sent.
        KeyPath::parse(input.key.as_bytes()).map_err(told)?;
        let mut record = values::record(given!(input))?;
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
        let mut output = PutObjectOutput {
            e_tag: Some(values::etag(&published.etag)),
            size: Some(size),
            version_id: published.version_id,
            ..PutObjectOutput::default()
        };
        set_sums!(output, checksums);
        Ok(S3Response::new(output))
    }

    pub(super) async fn delete(
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

    pub(super) async fn delete_several(
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
                    target: ObjectName {
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
        // Empty directories are removed: each is checked once.
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

    pub(super) async fn copy(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let caller = self.caller(&request)?;
        let if_match = values::condition_header(&request.headers, IF_MATCH)?;
        let if_none_match = values::condition_header(&request.headers, IF_NONE_MATCH)?;
        let condition = values::condition(if_match.as_ref(), if_none_match.as_ref());
        let input = request.input;
        refuse_encryption!(input)?;
        let lock = lock_of!(input);
        let (from, from_key, info) = self.source(&caller, &input.copy_source).await?;
        let to = caller.bucket(&input.bucket)?;
        check_source(&source_condition!(input), &info)?;
        let is = |directive: Option<&str>| directive == Some("REPLACE");
        let replaces = is(input
            .metadata_directive
            .as_ref()
            .map(|directive| directive.as_str()));
        let replaces_tags = is(input
            .tagging_directive
            .as_ref()
            .map(|directive| directive.as_str()));
        let given = values::record(given!(input))?;
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
        // Locks and numbers belong to a version, and not to its bytes.
        (record.retention, record.legal_hold, record.version_id) = (None, false, None);
        record.upload_id = None;
        record.checksums = before.checksums;
        record.is_composite = before.is_composite;
        // Unlike tags, rights are not copied.
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
        // A checksum that the source has need not be computed again.
        let wanted = wanted.filter(|wanted| {
            record.is_composite || !record.checksums.contains_key(wanted.as_str())
        });
        // Equal bytes: they have the identity of the source, and its parts.
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
        let checksum_type = values::type_of(&record);
        caller.require_still()?;
        let published = to.publish(&input.key, staged, record, &condition).await;
        let published = published.map_err(told)?;
        let now = to.object(&caller.who, &input.key).await.map_err(told)?;
        let mut result = CopyObjectResult {
            checksum_type,
            e_tag: Some(values::etag(&published.etag)),
            last_modified: Some(values::time(now.attr.mtime)),
            ..CopyObjectResult::default()
        };
        set_sums!(result, sums);
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            copy_source_version_id: info.version_id,
            version_id: published.version_id,
            ..CopyObjectOutput::default()
        }))
    }
}

/// Refuses fields of a form that no operation reads; for other requests the headers are refused.
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

/// The version that a copy would replace.
async fn source_version_before(bucket: &Bucket, caller: &Caller, key: &str) -> Option<String> {
    let there = bucket.object(&caller.who, key).await.ok();
    there.and_then(|there| there.version_id)
}
