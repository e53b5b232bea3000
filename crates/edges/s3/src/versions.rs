//! Versions of objects: settings and listings.
//!
//! Owns: their form in S3. Must not know: how they are kept.

use cairn_objects::{BucketSettings, Listed, Versioning, VersionsWanted};
use s3s::dto::{
    BucketVersioningStatus, CommonPrefix, DeleteMarkerEntry, GetBucketVersioningInput,
    GetBucketVersioningOutput, ListObjectVersionsInput, ListObjectVersionsOutput, ObjectVersion,
    ObjectVersionStorageClass, PutBucketVersioningInput, PutBucketVersioningOutput,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use crate::errors::told;
use crate::service::{Service, limit, number};
use crate::values;

impl Service {
    pub(crate) async fn versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let bucket = self.caller(&request)?.bucket(&request.input.bucket)?;
        let status = bucket.versioning().map(|versioning| match versioning {
            Versioning::Enabled => BucketVersioningStatus::ENABLED,
            Versioning::Suspended => BucketVersioningStatus::SUSPENDED,
        });
        Ok(S3Response::new(GetBucketVersioningOutput {
            mfa_delete: None,
            status: status.map(BucketVersioningStatus::from_static),
        }))
    }

    pub(crate) async fn set_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> S3Result<S3Response<PutBucketVersioningOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let bucket = caller.bucket(&input.bucket)?;
        let wanted = input.versioning_configuration;
        let asks_mfa = wanted
            .mfa_delete
            .is_some_and(|it| it.as_str() != "Disabled");
        if asks_mfa {
            return Err(s3_error!(
                NotImplemented,
                "there is no second factor to delete with"
            ));
        }
        let status = wanted.status.as_ref().map(BucketVersioningStatus::as_str);
        let versioning = match status {
            Some(BucketVersioningStatus::ENABLED) => Versioning::Enabled,
            Some(BucketVersioningStatus::SUSPENDED) => Versioning::Suspended,
            _ => {
                return Err(s3_error!(
                    IllegalVersioningConfigurationException,
                    "versioning is Enabled or Suspended"
                ));
            }
        };
        if versioning == Versioning::Suspended && bucket.record.settings.lock.is_some() {
            return Err(s3_error!(
                InvalidBucketState,
                "a bucket with object lock keeps versions, always"
            ));
        }
        let now = bucket.now_seconds();
        let set = |settings: &mut BucketSettings| settings.keep_versions(versioning, now);
        caller.set(&input.bucket, set).await?;
        Ok(S3Response::new(PutBucketVersioningOutput::default()))
    }

    pub(crate) async fn versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        let caller = self.caller(&request)?;
        let request_uri = request.uri;
        let input = request.input;
        let encoding = input.encoding_type.as_ref();
        values::encoding(encoding)?;
        let limit = limit(input.max_keys)?;
        let prefix = input.prefix.as_deref().unwrap_or_default();
        let after = input.key_marker.as_deref().unwrap_or_default();
        let after_version = values::version(input.version_id_marker.as_ref());
        if after_version.is_some() && after.is_empty() {
            return Err(s3_error!(
                InvalidArgument,
                "a version-id-marker comes with a key-marker"
            ));
        }
        let bucket = caller.bucket(&input.bucket)?;
        if prefix.contains('\0') || after.contains('\0') {
            return Err(s3_error!(InvalidArgument, "no key holds a NUL"));
        }
        let is_text = values::raw(&request_uri, "key-marker")
            .is_none_or(|marker| std::str::from_utf8(&marker).is_ok());
        if !is_text {
            return Err(s3_error!(
                InvalidArgument,
                "a key-marker is UTF-8, as keys are"
            ));
        }
        let wanted = VersionsWanted {
            is_plain: encoding.is_none(),
            prefix,
            delimiter: input.delimiter.as_deref().unwrap_or_default(),
            after,
            after_version,
            limit,
        };
        let page = bucket.list_versions(&caller.who, wanted);
        let page = page.await.map_err(told)?;
        let owner = caller.owner();
        let (mut versions, mut markers, mut prefixes) = (Vec::new(), Vec::new(), Vec::new());
        for entry in page.entries {
            match entry {
                Listed::Prefix(prefix) => {
                    let prefix = String::from_utf8_lossy(&prefix).into_owned();
                    prefixes.push(CommonPrefix {
                        prefix: Some(values::listed(prefix, encoding)),
                    });
                }
                Listed::Object(version) if version.is_marker => markers.push(DeleteMarkerEntry {
                    is_latest: Some(version.is_latest),
                    key: Some(values::listed(version.key, encoding)),
                    last_modified: Some(values::time(version.mtime)),
                    owner: Some(owner.clone()),
                    version_id: Some(version.version_id),
                }),
                Listed::Object(version) => versions.push(ObjectVersion {
                    e_tag: Some(values::etag(&version.etag)),
                    is_latest: Some(version.is_latest),
                    key: Some(values::listed(version.key, encoding)),
                    last_modified: Some(values::time(version.mtime)),
                    owner: Some(owner.clone()),
                    size: Some(number(version.size_bytes)),
                    storage_class: Some(ObjectVersionStorageClass::from_static(
                        ObjectVersionStorageClass::STANDARD,
                    )),
                    version_id: Some(version.version_id),
                    ..ObjectVersion::default()
                }),
            }
        }
        let listed = |text: String| values::listed(text, encoding);
        let (next_key, next_version) = match page.next {
            Some((key, version)) => (Some(listed(key)), version),
            None => (None, None),
        };
        Ok(S3Response::new(ListObjectVersionsOutput {
            name: Some(input.bucket.clone()),
            prefix: Some(listed(prefix.to_owned())),
            key_marker: Some(listed(after.to_owned())),
            version_id_marker: input.version_id_marker.clone(),
            delimiter: input.delimiter.clone().map(listed),
            max_keys: Some(limit as i32),
            is_truncated: Some(next_key.is_some()),
            next_version_id_marker: next_version,
            next_key_marker: next_key,
            versions: Some(versions),
            delete_markers: Some(markers),
            common_prefixes: Some(prefixes),
            encoding_type: input.encoding_type.clone(),
            ..ListObjectVersionsOutput::default()
        }))
    }
}
