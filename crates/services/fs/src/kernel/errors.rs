//! Errors and kinds of the engine in the types of the file service.

use cairn_meta::{InodeKind, MetaError, MetaErrorKind};
use cairn_segment::SegmentError;

use crate::types::{FileKind, FsError};

pub(crate) fn meta_error(error: MetaError) -> FsError {
    if matches!(error, MetaError::NoSuchView { .. }) {
        return FsError::Stale;
    }
    match error.kind() {
        // A failed one is reopened on other disks, and by the next start at the latest: callers wait.
        MetaErrorKind::Stopped => FsError::Fenced,
        MetaErrorKind::NoSpace => FsError::NoSpace,
        MetaErrorKind::NotFound
        | MetaErrorKind::Invalid
        | MetaErrorKind::Damaged
        | MetaErrorKind::Io => FsError::Io(error.to_string()),
        MetaErrorKind::Missing => FsError::Unreachable(error.to_string()),
    }
}

pub(crate) fn segment_error(error: SegmentError) -> FsError {
    if matches!(error, SegmentError::VolumeClosed { .. }) {
        return FsError::Fenced;
    }
    match error.kind() {
        cairn_segment::ErrorKind::NoSpace => FsError::NoSpace,
        cairn_segment::ErrorKind::Unreachable => FsError::Unreachable(error.to_string()),
        cairn_segment::ErrorKind::Gone
        | cairn_segment::ErrorKind::Damaged
        | cairn_segment::ErrorKind::Refused
        | cairn_segment::ErrorKind::Io => FsError::Io(error.to_string()),
        // The present owner of the volume answers.
        cairn_segment::ErrorKind::Fenced => FsError::Fenced,
    }
}

pub(crate) fn stored_kind(kind: FileKind) -> InodeKind {
    match kind {
        FileKind::Regular => InodeKind::Regular,
        FileKind::Directory => InodeKind::Directory,
        FileKind::Symlink => InodeKind::Symlink,
        FileKind::Fifo => InodeKind::Fifo,
        FileKind::Socket => InodeKind::Socket,
        FileKind::BlockDevice => InodeKind::BlockDevice,
        FileKind::CharDevice => InodeKind::CharDevice,
    }
}
