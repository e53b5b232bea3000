//! The S3 codes of errors (API Reference, "Error responses").

use cairn_fs::FsError;
use cairn_objects::{ObjectError, PathError};
use s3s::{S3Error, S3ErrorCode};

/// The error for a client. Errors that S3 does not have get their own code and a fitting status.
pub fn told(error: impl Into<ObjectError>) -> S3Error {
    let error = error.into();
    let (code, status) = match &error {
        ObjectError::NoBucket(_) => (S3ErrorCode::NoSuchBucket, None),
        ObjectError::NoObject => (S3ErrorCode::NoSuchKey, None),
        ObjectError::NoVersion => (S3ErrorCode::NoSuchVersion, None),
        ObjectError::Marker => (S3ErrorCode::MethodNotAllowed, None),
        ObjectError::Locked(_) => (S3ErrorCode::AccessDenied, None),
        ObjectError::NoVersioning(_) => (S3ErrorCode::InvalidBucketState, None),
        ObjectError::NoLock => (S3ErrorCode::InvalidRequest, None),
        ObjectError::NoUpload => (S3ErrorCode::NoSuchUpload, None),
        ObjectError::NoAccessKey(_) => (S3ErrorCode::InvalidAccessKeyId, None),
        ObjectError::BucketExists(_) => (S3ErrorCode::BucketAlreadyOwnedByYou, None),
        ObjectError::NotOwner(_) => (S3ErrorCode::AccessDenied, None),
        ObjectError::BucketNotEmpty(_) => (S3ErrorCode::BucketNotEmpty, None),
        ObjectError::Path(PathError::TooLong | PathError::PartTooLong) => {
            (S3ErrorCode::KeyTooLongError, None)
        }
        ObjectError::Path(_) | ObjectError::Invalid(_) => (S3ErrorCode::InvalidArgument, None),
        ObjectError::Policy(_) => (S3ErrorCode::MalformedPolicy, None),
        ObjectError::InTheWay => (custom("KeyConflict"), Some(http::StatusCode::CONFLICT)),
        ObjectError::Precondition => (S3ErrorCode::PreconditionFailed, None),
        // Its client has repeated it, sent newer ones, or no longer listens.
        ObjectError::Late | ObjectError::Unordered => (S3ErrorCode::SlowDown, None),
        ObjectError::WrongPart => (S3ErrorCode::InvalidPart, None),
        ObjectError::Checksum => (S3ErrorCode::BadDigest, None),
        ObjectError::PartOrder => (S3ErrorCode::InvalidPartOrder, None),
        ObjectError::PartTooSmall => (S3ErrorCode::EntityTooSmall, None),
        ObjectError::Fs(error) => of_file_system(error),
        ObjectError::Secret { .. } | ObjectError::RevokedHere { .. } => {
            (S3ErrorCode::ServiceUnavailable, None)
        }
        ObjectError::Damaged(..) => (S3ErrorCode::InternalError, None),
    };
    match code {
        S3ErrorCode::InternalError => tracing::error!(%error, "a request of S3 failed"),
        S3ErrorCode::SlowDown => tracing::warn!(%error, "a client of S3 is told to come later"),
        _ => {}
    }
    let is_marker = matches!(error, ObjectError::Marker);
    let mut told = S3Error::with_message(code, error.to_string());
    if is_marker {
        told.set_headers(marker_headers(None));
    }
    if let Some(status) = status {
        told.set_status_code(status);
    }
    told
}

/// The error for a deleted object where versions are kept.
pub fn deleted(marker: &str) -> S3Error {
    let mut told = S3Error::with_message(S3ErrorCode::NoSuchKey, ObjectError::NoObject.to_string());
    told.set_headers(marker_headers(Some(marker)));
    told
}

fn marker_headers(version_id: Option<&str>) -> http::HeaderMap {
    let mut headers = http::HeaderMap::new();
    headers.insert(
        "x-amz-delete-marker",
        http::HeaderValue::from_static("true"),
    );
    if let Some(id) = version_id.and_then(|id| http::HeaderValue::from_str(id).ok()) {
        headers.insert("x-amz-version-id", id);
    }
    headers
}

fn custom(code: &'static str) -> S3ErrorCode {
    S3ErrorCode::Custom(code.into())
}

fn of_file_system(error: &FsError) -> (S3ErrorCode, Option<http::StatusCode>) {
    match error {
        FsError::NotFound | FsError::Stale => (S3ErrorCode::NoSuchKey, None),
        FsError::AccessDenied | FsError::NotOwner | FsError::ReadOnly => {
            (S3ErrorCode::AccessDenied, None)
        }
        FsError::NoSpace => (
            custom("InsufficientStorage"),
            Some(http::StatusCode::INSUFFICIENT_STORAGE),
        ),
        // Not a 5xx status, after which clients would try again.
        FsError::QuotaExceeded => (custom("QuotaExceeded"), Some(http::StatusCode::FORBIDDEN)),
        FsError::TryLater | FsError::NotOwn(_) | FsError::Fenced => {
            (S3ErrorCode::ServiceUnavailable, None)
        }
        FsError::Unreachable(_) => (S3ErrorCode::SlowDown, None),
        FsError::NameTooLong => (S3ErrorCode::KeyTooLongError, None),
        FsError::FileTooLarge => (S3ErrorCode::EntityTooLarge, None),
        FsError::AttributeTooLarge => (S3ErrorCode::MetadataTooLarge, None),
        // The last is a name of a device or a symbolic link of an NFS client.
        FsError::NotDirectory
        | FsError::IsDirectory
        | FsError::Exists
        | FsError::NotEmpty
        | FsError::CrossTree
        | FsError::NotSupported => (custom("KeyConflict"), Some(http::StatusCode::CONFLICT)),
        // As for a quota: repeating the request does not help.
        FsError::TooManyLinks => (custom("LimitExceeded"), Some(http::StatusCode::FORBIDDEN)),
        // Another client changed the file meanwhile.
        FsError::NotSync => (S3ErrorCode::OperationAborted, None),
        FsError::Invalid => (S3ErrorCode::InvalidArgument, None),
        // Corruption, a failed disk, or a bug: no limit of files is among these.
        FsError::BadCookie | FsError::NoAttribute | FsError::Io(_) => {
            (S3ErrorCode::InternalError, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::Ino;
    use http::StatusCode;

    use super::*;

    /// A client repeats a request after a 500 again and again, which helps against none of the limits.
    #[test]
    fn errors_of_files_have_codes_of_s3() {
        let text = || "disk 3".to_owned();
        let cases: &[(FsError, &str, u16)] = &[
            (FsError::NotFound, "NoSuchKey", 404),
            (FsError::Stale, "NoSuchKey", 404),
            (FsError::Exists, "KeyConflict", 409),
            (FsError::NotDirectory, "KeyConflict", 409),
            (FsError::IsDirectory, "KeyConflict", 409),
            (FsError::NotEmpty, "KeyConflict", 409),
            (FsError::CrossTree, "KeyConflict", 409),
            (FsError::NotSupported, "KeyConflict", 409),
            (FsError::NotOwner, "AccessDenied", 403),
            (FsError::AccessDenied, "AccessDenied", 403),
            (FsError::ReadOnly, "AccessDenied", 403),
            (FsError::NameTooLong, "KeyTooLongError", 400),
            (FsError::Invalid, "InvalidArgument", 400),
            (FsError::NoSpace, "InsufficientStorage", 507),
            (FsError::QuotaExceeded, "QuotaExceeded", 403),
            (FsError::TooManyLinks, "LimitExceeded", 403),
            (FsError::FileTooLarge, "EntityTooLarge", 400),
            (FsError::AttributeTooLarge, "MetadataTooLarge", 400),
            (FsError::NotSync, "OperationAborted", 409),
            (FsError::TryLater, "ServiceUnavailable", 503),
            (FsError::Fenced, "ServiceUnavailable", 503),
            (FsError::NotOwn(Ino(7)), "ServiceUnavailable", 503),
            (FsError::Unreachable(text()), "SlowDown", 503),
            (FsError::BadCookie, "InternalError", 500),
            (FsError::NoAttribute, "InternalError", 500),
            (FsError::Io(text()), "InternalError", 500),
        ];
        for (error, code, status) in cases {
            let told = told(ObjectError::Fs(error.clone()));
            assert_eq!(told.code().as_str(), *code, "{error:?}");
            let want = StatusCode::from_u16(*status).expect("a status");
            assert_eq!(told.status_code(), Some(want), "{error:?}");
        }
    }

    /// Paths of keys have their own limits, which are checked before the file system.
    #[test]
    fn limits_of_keys_have_codes_of_s3() {
        for error in [PathError::TooLong, PathError::PartTooLong] {
            let told = told(ObjectError::Path(error));
            assert_eq!(told.code().as_str(), "KeyTooLongError");
        }
    }
}
