//! What errors are called in S3 (API Reference, "Error responses").

use cairn_fs::FsError;
use cairn_objects::{ObjectError, PathError};
use s3s::{S3Error, S3ErrorCode};

/// The error that a client is told. Those that S3 does not know have a code of their own and a fitting status.
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
        // Its client has sent it again, and newer ones, or does not listen any more.
        ObjectError::Late => (S3ErrorCode::SlowDown, None),
        ObjectError::WrongPart => (S3ErrorCode::InvalidPart, None),
        ObjectError::Checksum => (S3ErrorCode::BadDigest, None),
        ObjectError::PartOrder => (S3ErrorCode::InvalidPartOrder, None),
        ObjectError::PartTooSmall => (S3ErrorCode::EntityTooSmall, None),
        ObjectError::Fs(error) => of_file_system(error),
        ObjectError::Secret { .. } => (S3ErrorCode::ServiceUnavailable, None),
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

/// The error for an object that was deleted, where versions are kept.
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
        // Not a fault of the server, which clients would try again.
        FsError::QuotaExceeded => (custom("QuotaExceeded"), Some(http::StatusCode::FORBIDDEN)),
        FsError::TryLater | FsError::NotOwn(_) | FsError::Fenced => {
            (S3ErrorCode::ServiceUnavailable, None)
        }
        FsError::Unreachable(_) => (S3ErrorCode::SlowDown, None),
        FsError::NameTooLong => (S3ErrorCode::KeyTooLongError, None),
        FsError::FileTooLarge => (S3ErrorCode::EntityTooLarge, None),
        FsError::AttributeTooLarge => (S3ErrorCode::MetadataTooLarge, None),
        FsError::NotDirectory
        | FsError::IsDirectory
        | FsError::Exists
        | FsError::NotEmpty
        | FsError::CrossTree => (custom("KeyConflict"), Some(http::StatusCode::CONFLICT)),
        FsError::Invalid => (S3ErrorCode::InvalidArgument, None),
        FsError::TooManyLinks
        | FsError::BadCookie
        | FsError::NotSync
        | FsError::NotSupported
        | FsError::NoAttribute
        | FsError::Io(_) => (S3ErrorCode::InternalError, None),
    }
}
