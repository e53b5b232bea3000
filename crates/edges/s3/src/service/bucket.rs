//! The list of buckets.
//!
//! Owns: how S3 lists, makes and deletes them. Must not know: the settings of a bucket.

use cairn_codec_s3::signed::REGION_DEFAULT;
use cairn_objects::{BucketSettings, ObjectLock, Versioning};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use crate::buckets;
use crate::errors::told;
use crate::values;

/// Maximum length of a page of buckets.
const BUCKET_LIST_COUNT_MAX: usize = 10_000;

impl Service {
    pub(super) async fn buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.unwrap_or_default();
        // All buckets are in the server's region.
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

    pub(super) async fn head_of_bucket(
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

    pub(super) async fn bucket_location(
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

    pub(super) async fn make_bucket(
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

    pub(super) async fn remove_bucket(
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
}
