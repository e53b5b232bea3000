//! Listings of objects.
//!
//! Owns: the request for a page in S3, in both versions, and its response. Must not know: the order of keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_objects::{KeysWanted, Listed, Listing};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::{Service, limit, number};
use crate::caller::Caller;
use crate::errors::told;
use crate::values;

impl Service {
    pub(super) async fn list_by_marker(
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

    pub(super) async fn list_by_token(
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
