//! Errors of the segment store.

use cairn_base::{Epoch, SegmentId, TierId, VolumeId};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    #[error("volume {volume} is not open here")]
    VolumeClosed { volume: VolumeId },
    /// This process writes nothing more. Unacknowledged changes may be lost.
    #[error(
        "volume {volume} has a newer owner: a disk has promised epoch {promised}, and epoch {epoch} is over"
    )]
    Fenced {
        volume: VolumeId,
        epoch: Epoch,
        promised: Epoch,
    },
    /// The segment was removed. The holder of the pointer should look the extent up again.
    #[error("segment {segment} of volume {volume} is gone")]
    Gone {
        volume: VolumeId,
        segment: SegmentId,
    },
    /// No disk of the pool, present or absent, can provide the bytes.
    #[error(
        "volume {volume}, segment {segment}, stripe at block {stripe_block}, offset {offset_bytes}: {len_bytes} bytes are damaged \
         beyond repair: {detail}"
    )]
    Damaged {
        volume: VolumeId,
        segment: SegmentId,
        stripe_block: u32,
        offset_bytes: u32,
        len_bytes: u32,
        detail: String,
    },
    /// Too few disks answer now, and the missing or unresponsive ones may have the bytes: try again later.
    #[error(
        "volume {volume}, segment {segment}, stripe at block {stripe_block}, offset {offset_bytes}: {len_bytes} bytes cannot be \
         read now: {detail}; bring these disks or their nodes back, or remove the disks if they are lost for good"
    )]
    Unreachable {
        volume: VolumeId,
        segment: SegmentId,
        stripe_block: u32,
        offset_bytes: u32,
        len_bytes: u32,
        detail: String,
    },
    /// The segment is in a tier, which does not provide the bytes.
    #[error(
        "segment {segment} of volume {volume} is in tier {tier}, which does not give it: {detail}"
    )]
    Tier {
        volume: VolumeId,
        segment: SegmentId,
        tier: TierId,
        /// True: the tier answered, and does not have the written bytes. False: a retry may succeed.
        is_lost: bool,
        detail: String,
    },
    #[error("no space left: {detail}; delete data or add a disk")]
    NoSpace { detail: String },
    #[error(
        "{what} needs {needed} disks and the pool has {present}; add {} or choose less protection",
        needed.saturating_sub(*present)
    )]
    TooFewDisks {
        what: String,
        needed: usize,
        present: usize,
    },
    #[error("{what} is not possible: +1n to +4n, 2x to 5x")]
    Protection { what: String },
    /// Disks refused a write repeatedly, even after choosing others.
    #[error("writing failed: {detail}")]
    Write {
        detail: String,
        /// True: disks did not answer, or are missing. False: disks answered with errors.
        is_unreachable: bool,
    },
    /// No append ever returned this pointer or range.
    #[error("bad record pointer: {detail}")]
    BadPointer { detail: String },
    #[error("segment {segment} of volume {volume} is being written to and cannot be removed now")]
    InUse {
        volume: VolumeId,
        segment: SegmentId,
    },
    /// The record is encrypted, and the volume has no key.
    #[error("volume {volume} was opened without its key, so nothing in it can be read")]
    NoKey { volume: VolumeId },
    /// A record was encrypted for a volume that is not, or the reverse.
    #[error(
        "volume {volume} is encrypted, and a record for it was not, or the other way round; nothing was written"
    )]
    WrongForm { volume: VolumeId },
    /// The process is stopping.
    #[error("the store is stopping")]
    Stopping,
}

/// The reaction that an error calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Look the pointer up again.
    Gone,
    /// The data cannot be recovered.
    Damaged,
    /// Required disks or a tier do not answer now: try again later. No loss is known.
    Unreachable,
    /// Free some space.
    NoSpace,
    /// Fix the request.
    Refused,
    /// Disks fail.
    Io,
    /// Another node owns the volume: stop.
    Fenced,
}

impl SegmentError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone { .. } => ErrorKind::Gone,
            Self::Fenced { .. } => ErrorKind::Fenced,
            Self::Damaged { .. } | Self::Tier { is_lost: true, .. } => ErrorKind::Damaged,
            Self::Unreachable { .. }
            | Self::Tier { is_lost: false, .. }
            | Self::Write {
                is_unreachable: true,
                ..
            } => ErrorKind::Unreachable,
            Self::NoSpace { .. } => ErrorKind::NoSpace,
            Self::VolumeClosed { .. }
            | Self::TooFewDisks { .. }
            | Self::Protection { .. }
            | Self::BadPointer { .. }
            | Self::NoKey { .. }
            | Self::WrongForm { .. }
            | Self::InUse { .. } => ErrorKind::Refused,
            Self::Write {
                is_unreachable: false,
                ..
            }
            | Self::Stopping => ErrorKind::Io,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, SegmentError>;
