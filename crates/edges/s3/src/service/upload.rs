//! Uploads in parts.
//!
//! Owns: their operations, and the client's claims about the object that parts make. Must not know: how parts are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_objects::{
    Bucket, Completion, Facet, ObjectError, PART_NUMBER_MAX, WantedPart, is_plain,
};
use futures_util::future::BoxFuture;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::fields::{
    body_and_sums, given, lock_of, refuse_encryption, set_sums, source_condition, sums_of,
};
use super::{Service, acl_of, check_source, limit, number};
use crate::body;
use crate::caller::Caller;
use crate::errors::told;
use crate::ids::Ids;
use crate::values;

/// Maximum time without any byte of a response while parts become an object.
const COMPLETE_MAX: Duration = Duration::from_secs(2);

impl Service {
    pub(super) async fn begin_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        refuse_encryption!(input)?;
        let lock = lock_of!(input);
        let bucket = caller.bucket(&input.bucket)?;
        let mut record = values::record(given!(input))?;
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

    pub(super) async fn put_part(
        &self,
        mut request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let caller = self.caller(&request)?;
        let bucket = caller.bucket(&request.input.bucket)?;
        let (body, mut sums) = body_and_sums!(request);
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
        let mut output = UploadPartOutput {
            e_tag: Some(values::etag(&part.etag)),
            ..UploadPartOutput::default()
        };
        set_sums!(output, checksums);
        Ok(S3Response::new(output))
    }

    pub(super) async fn copy_part(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let number = u32::try_from(input.part_number).unwrap_or(0);
        let begun = caller.objects.arrive_part(&input.upload_id, number);
        let (_, _, info) = self.source(&caller, &input.copy_source).await?;
        let to = caller.bucket(&input.bucket)?;
        check_source(&source_condition!(input), &info)?;
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
        let mut result = CopyPartResult {
            e_tag: Some(values::etag(&part.etag)),
            last_modified: Some(values::time(part.mtime)),
            ..CopyPartResult::default()
        };
        set_sums!(result, part.checksums);
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(result),
            ..UploadPartCopyOutput::default()
        }))
    }

    pub(super) async fn complete_upload(
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
            let checksums = sums_of!(part);
            match (number, etag) {
                (Some(number), Some(etag)) => wanted.push(WantedPart {
                    number,
                    etag,
                    checksums,
                }),
                _ => return Err(s3_error!(MalformedXML, "a part without number or ETag")),
            }
        }
        let whole = sums_of!(input);
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
                // The error may come after the response has begun.
                if let Some(request_id) = request_id {
                    error.set_request_id(request_id);
                }
                error
            })?;
            let mut output = CompleteMultipartUploadOutput {
                checksum_type: values::type_of(&checksum),
                location: Some(format!("/{name}/{key}")),
                bucket: Some(name),
                key: Some(key),
                e_tag: Some(values::etag(&published.etag)),
                version_id: published.version_id,
                ..CompleteMultipartUploadOutput::default()
            };
            set_sums!(output, checksum.checksums);
            Ok(output)
        };
        // An early error has its own status. A slow request gets a response as from AWS: spaces, so that the client
        // waits, and then the result.
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

    pub(super) async fn abort_upload(
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

    pub(super) async fn parts(
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
        let parts = parts.into_iter().map(|part| {
            let mut listed = s3s::dto::Part {
                part_number: i32::try_from(part.number).ok(),
                size: Some(number(part.size_bytes)),
                e_tag: Some(values::etag(&part.etag)),
                last_modified: Some(values::time(part.mtime)),
                ..s3s::dto::Part::default()
            };
            set_sums!(listed, part.checksums);
            listed
        });
        Ok(S3Response::new(ListPartsOutput {
            checksum_algorithm: checksum.as_ref().map(values::algorithm),
            checksum_type: checksum.as_ref().map(values::checksum_type),
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            max_parts: Some(limit as i32),
            part_number_marker: input.part_number_marker,
            // An empty page has no continuation.
            is_truncated: Some(is_more && limit > 0),
            next_part_number_marker: last,
            owner: Some(caller.owner()),
            parts: Some(parts.collect()),
            ..ListPartsOutput::default()
        }))
    }

    pub(super) async fn uploads(
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
        // Keys that XML cannot hold are shown only if the client asks for encoded keys.
        found.retain(|(_, info)| encoding.is_some() || is_plain(info.key.as_bytes()));
        if limit == 0 {
            // The client wants no entries: a page that never ends would be requested again and again.
            found.clear();
        }
        found.retain(|(id, info)| match info.key == key_marker {
            true => !id_marker.is_empty() && *id > id_marker,
            false => info.key > key_marker,
        });
        // Of keys with a common prefix only the prefix is shown, once; the listing continues behind all of them.
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
}

/// The client's claims about the object that parts make.
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
            // The completion reports that.
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
