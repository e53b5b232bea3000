//! The operations of S3: the method of `s3s` for each of ours.
//!
//! Owns: the list of all operations, those with a constant response, and shared parts. Must not know: the rights of
//! callers (`caller`), how objects are kept.

mod bucket;
mod fields;
mod list;
mod properties;
mod read;
mod settings;
mod upload;
mod write;

use std::sync::Arc;

use cairn_objects::{Bucket, ObjectInfo};
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::body::Sums;
use crate::buckets::{self, not_set};
use crate::caller::Caller;
use crate::server::ServerCore;
use crate::values::{self, ReadCondition};

const LIST_COUNT_MAX: usize = 1000;

pub struct Service(pub Arc<ServerCore>);

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

/// Refuses a request for encryption, which would leave its client with a wrong belief about the object.
fn refuse_encryption(encrypted: [bool; 3]) -> S3Result<()> {
    match encrypted.contains(&true) {
        true => Err(s3_error!(
            NotImplemented,
            "objects are encrypted with their volume; put them without encryption headers"
        )),
        false => Ok(()),
    }
}

/// Checks the conditions of a copy on its source: if they fail, the source is not copied.
fn check_source(condition: &ReadCondition<'_>, info: &ObjectInfo) -> S3Result<()> {
    // For a copy, "not modified" is a failed precondition, too.
    let checked = condition.check(info);
    checked.map_err(|_| s3_error!(PreconditionFailed))
}

fn expires(expires: Option<&Expires>) -> Option<String> {
    values::http_date(expires?)
}

pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The number of entries of a page.
pub(crate) fn limit(asked: Option<i32>) -> S3Result<usize> {
    match asked {
        None => Ok(LIST_COUNT_MAX),
        Some(asked) => usize::try_from(asked)
            .map(|asked| asked.min(LIST_COUNT_MAX))
            .map_err(|_| s3_error!(InvalidArgument, "the number of entries is below zero")),
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
        let version = version_id.as_deref().filter(|id| !id.is_empty());
        let (bucket, info) = caller.object(bucket, key, version).await?;
        Ok((bucket, key.to_string(), info))
    }
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        self.buckets(request).await
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.head_of_bucket(request).await
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.bucket_location(request).await
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
        self.make_bucket(request).await
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.remove_bucket(request).await
    }

    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        self.put(request).await
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        self.get(request).await
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.head(request).await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.delete(request).await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.delete_several(request).await
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        self.copy(request).await
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        self.list_by_marker(request).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.list_by_token(request).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.begin_upload(request).await
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        self.put_part(request).await
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        self.copy_part(request).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.complete_upload(request).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.abort_upload(request).await
    }

    async fn list_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        self.parts(request).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.uploads(request).await
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        self.object_tags(request).await
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        self.set_object_tags(request).await
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        self.delete_object_tags(request).await
    }

    async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        self.attributes(request).await
    }

    async fn get_object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        self.object_acl(request).await
    }

    async fn put_object_acl(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        self.set_object_acl(request).await
    }

    async fn get_bucket_acl(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        self.bucket_acl(request).await
    }

    async fn put_bucket_acl(
        &self,
        request: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        self.set_bucket_acl(request).await
    }

    async fn get_bucket_policy(
        &self,
        request: S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        self.policy(request).await
    }

    async fn get_bucket_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
        self.policy_status(request).await
    }

    async fn put_bucket_policy(
        &self,
        request: S3Request<PutBucketPolicyInput>,
    ) -> S3Result<S3Response<PutBucketPolicyOutput>> {
        self.set_policy(request).await
    }

    async fn delete_bucket_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
        self.delete_policy(request).await
    }

    async fn get_bucket_cors(
        &self,
        request: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        self.cors(request).await
    }

    async fn put_bucket_cors(
        &self,
        request: S3Request<PutBucketCorsInput>,
    ) -> S3Result<S3Response<PutBucketCorsOutput>> {
        self.set_cors(request).await
    }

    async fn delete_bucket_cors(
        &self,
        request: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        self.delete_cors(request).await
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        self.lifecycle(request).await
    }

    async fn put_bucket_lifecycle_configuration(
        &self,
        request: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<PutBucketLifecycleConfigurationOutput>> {
        self.set_lifecycle(request).await
    }

    async fn delete_bucket_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
        self.delete_lifecycle(request).await
    }

    async fn get_bucket_tagging(
        &self,
        request: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        self.bucket_tags(request).await
    }

    async fn put_bucket_tagging(
        &self,
        request: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<S3Response<PutBucketTaggingOutput>> {
        self.set_bucket_tags(request).await
    }

    async fn delete_bucket_tagging(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        self.delete_bucket_tags(request).await
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
