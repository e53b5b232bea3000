//! Tags and ACLs of objects.
//!
//! Owns: these operations. Must not know: how they are kept.

use cairn_objects::Facet;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::Service;
use crate::buckets;
use crate::errors::told;
use crate::values;

impl Service {
    pub(super) async fn object_tags(
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

    pub(super) async fn set_object_tags(
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

    pub(super) async fn delete_object_tags(
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

    pub(super) async fn object_acl(
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

    pub(super) async fn set_object_acl(
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
}
