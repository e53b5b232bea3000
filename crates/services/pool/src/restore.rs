//! A whole volume that becomes what a snapshot of it shows.
//!
//! Owns: that it is closed for that, and opened again whatever comes of it. Must not know: what is done to it (`fs`).

use cairn_base::VolumeId;
use cairn_fs::{SnapshotError, SnapshotFailure};

use crate::pool::{ChangeFailure, Pool, VolumeService};

/// Why a volume is not restored, or not served since.
#[derive(Debug, thiserror::Error)]
pub enum RestoreVolumeFailure {
    #[error(transparent)]
    Change(#[from] ChangeFailure),
    #[error("the volume is not served here just now")]
    NotServed,
    /// It is as it was.
    #[error(transparent)]
    Snapshot(#[from] SnapshotFailure),
    #[error(
        "the volume does not close, because a disk does not answer or there is no space for its log; look at what it has when it is served again"
    )]
    DoesNotClose,
    /// It is restored when it can be opened.
    #[error("{0}; it is restored as soon as it can be opened")]
    NotOpened(String),
}

impl Pool {
    /// Closes a volume and opens it again as a snapshot shows it; what it was is kept as a snapshot named `keep`, if that is
    /// given. Clients wait meanwhile: they are told to try again later.
    pub async fn restore_volume(
        &self,
        id: VolumeId,
        snapshot: &[u8],
        keep: Option<&[u8]>,
    ) -> Result<(), RestoreVolumeFailure> {
        let _changes = self.begin_change().await?;
        let Some(VolumeService::Serving(fs)) = self.service(id) else {
            return Err(RestoreVolumeFailure::NotServed);
        };
        // What can be refused is before anybody has to wait.
        let found = fs.snapshot(snapshot).ok_or(SnapshotError::NotFound);
        let generation = found.map_err(SnapshotFailure::from)?.generation;
        if keep.is_some_and(|name| fs.snapshot(name).is_some()) {
            return Err(SnapshotFailure::from(SnapshotError::Exists).into());
        }
        let name = fs.name().to_owned();
        tracing::info!(volume = name, snapshot = %snapshot.escape_ascii(), "closing the volume to restore it");
        let closed = self.while_it_works(&fs, fs.close_to_restore(generation, keep));
        let decided = match closed.await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                tracing::warn!(volume = name, %error, "the volume is not restored");
                Err(error.into())
            }
            None => {
                fs.abandon();
                self.wait_until_idle().await;
                Err(RestoreVolumeFailure::DoesNotClose)
            }
        };
        let disks = self.all_meta_disks(Some(id));
        let opened = self.open_closed(&fs, disks, Vec::new()).await;
        decided?;
        opened.map_err(RestoreVolumeFailure::NotOpened)
    }
}
