//! Tags and ACLs of objects.
//!
//! Owns: these operations. Must not know: how they are kept.

use cairn_objects::{Bucket, Facet, ObjectInfo, ObjectRecord};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::Service;
use crate::buckets;
use crate::caller::Caller;
use crate::errors::told;
use crate::values;

/// The version of an object whose properties are read or changed.
struct Subject<'a> {
    caller: &'a Caller,
    bucket: Bucket,
    key: &'a str,
    version: Option<&'a str>,
}

impl<'a> Subject<'a> {
    fn of(
        caller: &'a Caller,
        bucket: &str,
        key: &'a str,
        version: Option<&'a ObjectVersionId>,
    ) -> S3Result<Self> {
        Ok(Self {
            bucket: caller.bucket(bucket)?,
            version: values::version(version),
            caller,
            key,
        })
    }

    async fn read(&self) -> S3Result<ObjectInfo> {
        let who = &self.caller.who;
        let info = self.bucket.readable(who, self.key, self.version);
        info.await.map_err(told)
    }

    /// Changes the record of an object, in its `facet`. Returns the id of the changed version, if the bucket keeps
    /// versions.
    async fn change(
        &self,
        facet: Facet,
        change: impl FnOnce(&mut ObjectRecord) + Send,
    ) -> S3Result<Option<String>> {
        let (who, key) = (&self.caller.who, self.key);
        let begun = self.caller.begun(&self.bucket, key, facet)?;
        let changed = self
            .bucket
            .change_record(who, key, self.version, &begun, change);
        Ok(changed.await.map_err(told)?.version_id)
    }
}

impl Service {
    pub(super) async fn object_tags(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = input.version_id.as_ref();
        let subject = Subject::of(&caller, &input.bucket, &input.key, version)?;
        let info = subject.read().await?;
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

    pub(super) async fn set_object_tags(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = input.version_id.as_ref();
        let subject = Subject::of(&caller, &input.bucket, &input.key, version)?;
        let tags = values::tags(input.tagging.tag_set)?;
        let changed = subject.change(Facet::Tags, |record| record.tags = tags);
        Ok(S3Response::new(PutObjectTaggingOutput {
            version_id: changed.await?,
        }))
    }

    pub(super) async fn delete_object_tags(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = input.version_id.as_ref();
        let subject = Subject::of(&caller, &input.bucket, &input.key, version)?;
        let changed = subject.change(Facet::Tags, |record| record.tags.clear());
        Ok(S3Response::new(DeleteObjectTaggingOutput {
            version_id: changed.await?,
        }))
    }

    pub(super) async fn object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = input.version_id.as_ref();
        let subject = Subject::of(&caller, &input.bucket, &input.key, version)?;
        let info = subject.read().await?;
        let owner = caller.owner();
        let is_public = info.record.is_some_and(|record| record.public_read);
        Ok(S3Response::new(GetObjectAclOutput {
            grants: Some(buckets::grants(&owner, is_public)),
            owner: Some(owner),
            request_charged: None,
        }))
    }

    pub(super) async fn set_object_acl(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let version = input.version_id.as_ref();
        let subject = Subject::of(&caller, &input.bucket, &input.key, version)?;
        let acl = input.acl.as_ref().map(ObjectCannedACL::as_str);
        buckets::require_one_acl(acl, input.access_control_policy.as_ref())?;
        let is_public = buckets::public_read(acl, input.access_control_policy, &caller.owner())?;
        let changed = subject.change(Facet::Acl, |record| record.public_read = is_public);
        changed.await?;
        Ok(S3Response::new(PutObjectAclOutput::default()))
    }
}
