//! Why something about a shard or its disk failed.

use cairn_base::disk::DiskError;
use cairn_base::{DiskId, Epoch, PoolId, VolumeId};
use cairn_formats::FormatError;
use cairn_formats::shard::ShardName;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    #[error("{disk}: no shard {shard}")]
    NotFound { disk: String, shard: ShardName },
    #[error("{disk}: shard {shard} already exists")]
    Exists { disk: String, shard: ShardName },
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(
        "{disk} belongs to pool {found}, not to pool {wanted}; give the disk of this pool, or an empty folder"
    )]
    WrongPool {
        disk: String,
        found: PoolId,
        wanted: PoolId,
    },
    #[error("{disk} has no identity file; add it to the pool first")]
    NotFormatted { disk: String },
    #[error("{disk} already has an identity: disk {id} of pool {pool}")]
    AlreadyFormatted {
        disk: String,
        id: DiskId,
        pool: PoolId,
    },
    #[error("{disk}: the identity file is damaged: {reason}")]
    DamagedIdentity { disk: String, reason: FormatError },
    #[error("{disk}: the footer of shard {shard} is damaged: {reason}")]
    DamagedFooter {
        disk: String,
        shard: ShardName,
        reason: FormatError,
    },
    #[error("{disk}: shard {shard}: {what} at byte {offset}, {len_bytes} bytes long")]
    BadRange {
        disk: String,
        shard: ShardName,
        what: &'static str,
        offset: u64,
        len_bytes: u64,
    },
    #[error("{disk}: {what}: {reason}")]
    BadRequest {
        disk: String,
        what: String,
        reason: FormatError,
    },
    /// Somebody else owns the volume now: this owner has ended. It says nothing about the disk.
    #[error(
        "{disk}: volume {volume} has a newer owner: epoch {epoch} is over, epoch {promised} was promised"
    )]
    Fenced {
        disk: String,
        volume: VolumeId,
        epoch: Epoch,
        promised: Epoch,
    },
    #[error(
        "{disk}: the promised epoch of volume {volume} cannot be read: {reason}; opening the volume again rewrites it"
    )]
    DamagedPromise {
        disk: String,
        volume: VolumeId,
        reason: FormatError,
    },
    /// Nobody waits for it any more; it may still happen.
    #[error("{disk}: {what} did not end in time")]
    Late { disk: String, what: String },
    /// The node of the disk does not answer. The request may have taken effect, or may still do so.
    #[error("{disk}: {what}: {reason}")]
    Unreachable {
        disk: String,
        what: String,
        reason: String,
    },
    /// A failed sync drops what was dirty, and a later one would not notice: the handle gives up.
    #[error("{disk}: a sync of shard {shard} failed before; its last writes may be lost")]
    SyncLost { disk: String, shard: ShardName },
}

/// What a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardErrorKind {
    /// Nothing has this name.
    NotFound,
    /// Use another disk, or free space on this one.
    Full,
    /// The disk failed: use another, and redundancy.
    Io,
    /// The bytes are not what was written: repair from redundancy.
    Damaged,
    /// The disk is not one that may be used here: an operator has to decide.
    Refused,
    /// Another owner has the volume: stop.
    Fenced,
    /// The caller asked for what cannot be.
    Bug,
}

impl ShardError {
    pub fn kind(&self) -> ShardErrorKind {
        match self {
            Self::NotFound { .. } => ShardErrorKind::NotFound,
            Self::Disk(DiskError::NotFound { .. }) => ShardErrorKind::NotFound,
            Self::Disk(DiskError::Full { .. }) => ShardErrorKind::Full,
            Self::Disk(DiskError::Io { .. } | DiskError::NoDescriptor { .. })
            | Self::SyncLost { .. }
            | Self::Late { .. }
            | Self::Unreachable { .. } => ShardErrorKind::Io,
            Self::Disk(DiskError::Short { .. })
            | Self::DamagedIdentity { .. }
            | Self::DamagedFooter { .. } => ShardErrorKind::Damaged,
            Self::Fenced { .. } => ShardErrorKind::Fenced,
            Self::Disk(DiskError::InUse { .. })
            | Self::WrongPool { .. }
            | Self::NotFormatted { .. }
            | Self::DamagedPromise { .. }
            | Self::AlreadyFormatted { .. } => ShardErrorKind::Refused,
            Self::Disk(DiskError::Exists { .. })
            | Self::Exists { .. }
            | Self::BadRange { .. }
            | Self::BadRequest { .. } => ShardErrorKind::Bug,
        }
    }
}
