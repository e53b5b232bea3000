//! Fields that the inputs or outputs of several operations have.
//!
//! Owns: how each group of such fields is read or set. They are macros: `s3s` has a type for each input and output,
//! and these types share no trait. Must not know: the meaning of the fields (`values`, `locks`, `body`).

/// Takes the body of a request, and the checksums that the body must have, out of its input.
macro_rules! body_and_sums {
    ($request:ident) => {{
        let body = $request.input.body.take();
        let checksum = s3s::dto::Checksum {
            checksum_crc32: $request.input.checksum_crc32.take(),
            checksum_crc32c: $request.input.checksum_crc32c.take(),
            checksum_crc64nvme: $request.input.checksum_crc64nvme.take(),
            checksum_sha1: $request.input.checksum_sha1.take(),
            checksum_sha256: $request.input.checksum_sha256.take(),
            ..s3s::dto::Checksum::default()
        };
        let content_md5 = $request.input.content_md5.take();
        let sums = $crate::service::sums(&$request, content_md5, checksum);
        (body, sums)
    }};
}
pub(super) use body_and_sums;

/// Moves the client's checksums of an object or part out of `$given`: a map by algorithm.
macro_rules! sums_of {
    ($given:ident) => {
        $crate::values::checksums([
            $given.checksum_crc32,
            $given.checksum_crc32c,
            $given.checksum_crc64nvme,
            $given.checksum_sha1,
            $given.checksum_sha256,
        ])
    };
}
pub(super) use sums_of;

/// Sets the checksums of a response from a map by algorithm.
macro_rules! set_sums {
    ($answer:ident, $sums:expr) => {{
        let sums = &$sums;
        $answer.checksum_crc32 = sums.get("crc32").cloned();
        $answer.checksum_crc32c = sums.get("crc32c").cloned();
        $answer.checksum_crc64nvme = sums.get("crc64nvme").cloned();
        $answer.checksum_sha1 = sums.get("sha1").cloned();
        $answer.checksum_sha256 = sums.get("sha256").cloned();
    }};
}
pub(super) use set_sums;

/// Refuses a request that wants its object encrypted.
macro_rules! refuse_encryption {
    ($input:ident) => {
        $crate::service::refuse_encryption([
            $input.server_side_encryption.is_some(),
            $input.sse_customer_algorithm.is_some(),
            $input.ssekms_key_id.is_some(),
        ])
    };
}
pub(super) use refuse_encryption;

/// The requested lock of a new object.
macro_rules! lock_of {
    ($input:ident) => {
        $crate::locks::LockRequest {
            mode: $input.object_lock_mode.as_ref(),
            until: $input.object_lock_retain_until_date.as_ref(),
            hold: $input.object_lock_legal_hold_status.as_ref(),
        }
    };
}
pub(super) use lock_of;

/// Moves the properties of a new object out of the input of a request.
macro_rules! given {
    ($input:ident) => {
        $crate::values::Given {
            content_type: $input.content_type,
            headers: [
                $input.cache_control,
                $input.content_disposition,
                $input.content_encoding,
                $input.content_language,
                $crate::service::expires($input.expires.as_ref()),
            ],
            meta: $input.metadata,
            tags: $input.tagging,
        }
    };
}
pub(super) use given;

/// The conditions of a copy on its source.
macro_rules! source_condition {
    ($input:ident) => {
        $crate::values::ReadCondition {
            if_match: $input.copy_source_if_match.as_ref(),
            if_none_match: $input.copy_source_if_none_match.as_ref(),
            if_modified_since: $input.copy_source_if_modified_since.as_ref(),
            if_unmodified_since: $input.copy_source_if_unmodified_since.as_ref(),
        }
    };
}
pub(super) use source_condition;
