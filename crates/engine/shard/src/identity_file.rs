//! The identity file on a disk: written as a whole, read from either of its copies.
//!
//! Owns: the order of writes that leaves the old file or the new one after a crash.
//! Must not know: which identity is the right one.

use std::sync::Arc;

use cairn_base::disk::{Disk, DiskError, DiskFile, OpenMode};
use cairn_formats::FormatError;
use cairn_formats::copies::{self, Picked};
use cairn_formats::shard::identity::{
    DiskIdentity, IDENTITY_FILE_LEN_BYTES, IDENTITY_NAME, IDENTITY_NAME_NEW, decode_identity_copy,
    encode_identity, pick_identity,
};

use crate::error::ShardError;

/// Why one copy is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CopyError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Disk(DiskError),
}

pub(crate) type Read = Picked<DiskIdentity, CopyError>;

/// `None`: there is no such file.
pub(crate) async fn read(disk: &Arc<dyn Disk>) -> Result<Option<Read>, ShardError> {
    let file = match disk.open(IDENTITY_NAME, OpenMode::Existing).await {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let damaged = |reason| ShardError::DamagedIdentity {
        disk: disk.label().to_owned(),
        reason,
    };
    let places = copies::places(file.len_bytes());
    let [first, second] = places
        .filter(|[first, _]| first.end == IDENTITY_FILE_LEN_BYTES as u64 / 2)
        .ok_or_else(|| damaged(FormatError::Truncated))?;
    let copies = [
        read_copy(&file, first).await,
        read_copy(&file, second).await,
    ];
    let is_version =
        |why: &CopyError| matches!(why, CopyError::Format(FormatError::Version { .. }));
    match pick_identity(copies, is_version) {
        Ok(read) => Ok(Some(read)),
        Err(CopyError::Format(reason)) => Err(damaged(reason)),
        Err(CopyError::Disk(error)) => Err(error.into()),
    }
}

/// Each copy by itself: a block that cannot be read must not cost both.
async fn read_copy(
    file: &Arc<dyn DiskFile>,
    place: std::ops::Range<u64>,
) -> Result<DiskIdentity, CopyError> {
    let len_bytes = (place.end - place.start) as usize;
    let bytes = file.read_at(place.start, len_bytes).await;
    Ok(decode_identity_copy(&bytes.map_err(CopyError::Disk)?)?)
}

/// Durable when it returns.
pub(crate) async fn write(disk: &Arc<dyn Disk>, identity: &DiskIdentity) -> Result<(), ShardError> {
    // A crash may have left one.
    match disk.remove(IDENTITY_NAME_NEW).await {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let mode = OpenMode::CreateNew {
        len_bytes: IDENTITY_FILE_LEN_BYTES as u64,
    };
    let file = disk.open(IDENTITY_NAME_NEW, mode).await?;
    file.write_at(0, vec![encode_identity(identity).freeze()])
        .await?;
    file.sync().await?;
    disk.rename(IDENTITY_NAME_NEW, IDENTITY_NAME).await?;
    disk.sync_folder("").await?;
    Ok(())
}
