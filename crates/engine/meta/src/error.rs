//! Errors of metadata operations, and the reactions that they call for.

use std::sync::Arc;

use cairn_base::disk::DiskError;
use cairn_base::{Epoch, LogPosition, View, VolumeId};
use cairn_formats::metadata::{KeyError, RecordError};
use cairn_keys::NotAuthentic;

/// The reaction that an error calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaErrorKind {
    /// The volume does not exist.
    NotFound,
    /// The request is invalid.
    Invalid,
    /// Bytes are corrupt, and redundancy cannot repair them.
    Damaged,
    /// Required disks are missing: bring them back.
    Missing,
    /// The store is closed or has failed: open it again.
    Stopped,
    /// The state has no space: free some. Nothing is lost meanwhile.
    NoSpace,
    /// A disk or the state failed.
    Io,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum MetaError {
    #[error("volume {volume}: its metadata is on none of the {disk_count} disks that are present")]
    NotFound { volume: VolumeId, disk_count: usize },
    #[error("volume {volume}: there is no {view}")]
    NoSuchView { volume: VolumeId, view: View },
    #[error("volume {volume}: there is metadata of it on {disk} already")]
    Exists { volume: VolumeId, disk: String },
    #[error(
        "volume {volume}: no healthy disk to write its metadata to; bring disks back and start again"
    )]
    NoDisk { volume: VolumeId },
    #[error("a batch of {len_bytes} bytes is above the limit of {len_bytes_max}; split it")]
    BatchTooLarge {
        len_bytes: usize,
        len_bytes_max: usize,
    },
    #[error(
        "volume {volume}: {missing} of the {members} disks it was last open with are missing, and {copies} of them may hold newer changes; bring disks back"
    )]
    TooManyMissing {
        volume: VolumeId,
        missing: usize,
        members: usize,
        copies: usize,
    },
    #[error(
        "volume {volume}: disks were used apart from each other and both sides hold acknowledged changes (epochs {first} and {second}); take away the disks of the side to give up"
    )]
    SplitHistory {
        volume: VolumeId,
        first: u64,
        second: u64,
    },
    #[error(
        "volume {volume}: no readable copy of log position {position}, with later ones there; refusing to lose acknowledged changes; bring missing disks back"
    )]
    LogDamaged {
        volume: VolumeId,
        position: LogPosition,
    },
    /// The unreadable part may hold, or have held, records that no other disk has.
    #[error(
        "volume {volume}: some of {name} on {disk} that may hold acknowledged changes cannot be read, and no other disk has it; refusing to lose them; bring missing disks back, or try again: {error}"
    )]
    LogUnreadable {
        volume: VolumeId,
        disk: String,
        name: String,
        error: Box<DiskError>,
    },
    #[error(
        "volume {volume}: no copy of its state reaches the start of the log at position {position}; bring missing disks back"
    )]
    StateMissing {
        volume: VolumeId,
        position: LogPosition,
    },
    #[error(
        "volume {volume}: it was opened {count} times without its journal being folded; the log cannot name more terms"
    )]
    TooManyTerms { volume: VolumeId, count: usize },
    /// A retry may succeed: the disks may come back.
    #[error(
        "volume {volume}: its log from position {position} on is on disks that do not give it: {disks}; refusing to lose acknowledged changes; bring them back"
    )]
    LogUnreachable {
        volume: VolumeId,
        position: LogPosition,
        disks: String,
    },
    #[error(
        "volume {volume}: another node owns it: epoch {epoch} is over, epoch {promised} was promised"
    )]
    Fenced {
        volume: VolumeId,
        epoch: Epoch,
        promised: Epoch,
    },
    /// A retry may succeed: space may become free, or another node may have some.
    #[error(
        "volume {volume}: there is no room for its log, so this node cannot serve it, not even for reads; nothing is lost. Free space or add a disk: {needed_bytes} bytes have to be copied, or a short file made at least, on disks of several nodes: {disks}"
    )]
    LogFull {
        volume: VolumeId,
        needed_bytes: u64,
        disks: String,
    },
    /// For a volume that is opened read-only.
    #[error(
        "volume {volume}: what its log has beside its state does not fit in memory: {needed_bytes} bytes, and {kept_bytes} of {bytes_max} are taken by other volumes that are only read; free space on its disks, or set a larger `memory_limit`"
    )]
    ReplayTooLarge {
        volume: VolumeId,
        needed_bytes: u64,
        kept_bytes: u64,
        bytes_max: u64,
    },
    /// A retry may succeed: the disks may come back.
    #[error(
        "volume {volume}: the copy of its metadata's state is on disks that do not give it: {disks}; bring one of them back"
    )]
    StateUnreachable { volume: VolumeId, disks: String },
    #[error(
        "volume {volume}: epoch {epoch} has no numbers for new files any more; restart the owner, which begins another epoch"
    )]
    NoNumber { volume: VolumeId, epoch: Epoch },
    #[error("volume {volume}: another node owns it")]
    NotOwner { volume: VolumeId },
    #[error("volume {volume}: whether its log could go on elsewhere is not known: {why}")]
    Agreement { volume: VolumeId, why: String },
    #[error("volume {volume}: its journal is encrypted, and it was opened without its key")]
    NoKey { volume: VolumeId },
    #[error(
        "volume {volume}: bytes of files in its log at position {position} cannot be decrypted: {error}; refusing to lose acknowledged changes"
    )]
    NotAuthentic {
        volume: VolumeId,
        position: LogPosition,
        error: NotAuthentic,
    },
    #[error("damaged key: {0}")]
    Key(#[from] KeyError),
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("{0}")]
    Disk(#[from] DiskError),
    /// The text names the state and the failure.
    #[error("{0}; a restart recovers from the other copies")]
    State(String),
    /// The text names the state. Its disk returned other bytes than were written, or none.
    #[error("{0}; a whole copy on another disk takes its place, if there is one")]
    StateDamaged(String),
    /// Internal to [`crate::MetaStore::reading`], which loads the missing entry.
    #[error("the metadata is not in memory")]
    NotInMemory,
    /// The requested copies failed for lack of space or of disks.
    #[error(
        "volume {volume}: not all of its log is on as many disks as it should be; free space or add a disk, then try again"
    )]
    CopiesMissing { volume: VolumeId },
    /// The text names the state and the failure.
    #[error("no space for metadata: {0}; free space on that disk")]
    Full(String),
    /// The store failed earlier, and refuses every operation since.
    #[error("the metadata store stopped after an error: {0}")]
    Failed(Arc<MetaError>),
    #[error("the metadata store is closed")]
    Closed,
}

impl MetaError {
    /// Whether a copy of the state is corrupt. Its disk may be healthy.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::StateDamaged(_) => true,
            Self::Failed(cause) => cause.is_damage(),
            _ => false,
        }
    }

    pub fn kind(&self) -> MetaErrorKind {
        match self {
            Self::NotFound { .. } | Self::NoSuchView { .. } => MetaErrorKind::NotFound,
            Self::Exists { .. } | Self::BatchTooLarge { .. } | Self::NoKey { .. } => {
                MetaErrorKind::Invalid
            }
            Self::TooManyMissing { .. }
            | Self::StateMissing { .. }
            | Self::CopiesMissing { .. }
            | Self::LogUnreachable { .. }
            | Self::StateUnreachable { .. }
            | Self::NoDisk { .. } => MetaErrorKind::Missing,
            Self::SplitHistory { .. }
            | Self::TooManyTerms { .. }
            | Self::LogDamaged { .. }
            | Self::LogUnreadable { .. }
            | Self::NotAuthentic { .. }
            | Self::StateDamaged(_)
            | Self::Key(_)
            | Self::Record(_) => MetaErrorKind::Damaged,
            Self::Full(_) | Self::LogFull { .. } | Self::ReplayTooLarge { .. } => {
                MetaErrorKind::NoSpace
            }
            Self::Disk(_) | Self::State(_) | Self::NotInMemory => MetaErrorKind::Io,
            Self::Failed(_)
            | Self::Closed
            | Self::Fenced { .. }
            | Self::NotOwner { .. }
            | Self::NoNumber { .. }
            | Self::Agreement { .. } => MetaErrorKind::Stopped,
        }
    }
}
