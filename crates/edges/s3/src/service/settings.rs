//! Settings of buckets: ACL, policy, CORS, lifecycle, tags.
//!
//! Owns: these operations. Must not know: how their documents are read and written (`buckets`).

use cairn_codec_s3::Policy;
use cairn_objects::{BucketSettings, KeyPath};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use crate::buckets::{self, not_set};
use crate::errors::told;
use crate::values;

impl Service {
    pub(super) async fn bucket_acl(
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

    pub(super) async fn set_bucket_acl(
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

    pub(super) async fn policy(
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

    pub(super) async fn policy_status(
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

    pub(super) async fn set_policy(
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

    pub(super) async fn delete_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
        let caller = self.caller(&request)?;
        let set = |settings: &mut BucketSettings| settings.policy = None;
        caller.set(&request.input.bucket, set).await?;
        Ok(S3Response::new(DeleteBucketPolicyOutput::default()))
    }

    pub(super) async fn cors(
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

    pub(super) async fn set_cors(
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

    pub(super) async fn delete_cors(
        &self,
        request: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        let caller = self.caller(&request)?;
        let set = |settings: &mut BucketSettings| settings.cors.clear();
        caller.set(&request.input.bucket, set).await?;
        Ok(S3Response::new(DeleteBucketCorsOutput::default()))
    }

    pub(super) async fn lifecycle(
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

    pub(super) async fn set_lifecycle(
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

    pub(super) async fn delete_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
        let caller = self.caller(&request)?;
        let set = |settings: &mut BucketSettings| settings.lifecycle.clear();
        caller.set(&request.input.bucket, set).await?;
        Ok(S3Response::new(DeleteBucketLifecycleOutput::default()))
    }

    pub(super) async fn bucket_tags(
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

    pub(super) async fn set_bucket_tags(
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

    pub(super) async fn delete_bucket_tags(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        let caller = self.caller(&request)?;
        let set = |settings: &mut BucketSettings| settings.tags.clear();
        caller.set(&request.input.bucket, set).await?;
        Ok(S3Response::new(DeleteBucketTaggingOutput::default()))
    }
}
