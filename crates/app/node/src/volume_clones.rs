//! Answers the admin API about clones of whole volumes.

use cairn_admin::ControlError;
use cairn_admin::api::{ErrorKind, VolumeCloneCreate};
use cairn_config::VolumeName;
use cairn_fs::Fs;
use cairn_pool::CloneVolumeFailure;

use crate::control::{Controller, refusal};
use crate::snapshots::{check_name, refused};

impl Controller {
    pub(crate) async fn clone_volume(
        &self,
        source: &VolumeName,
        clone: &VolumeCloneCreate,
    ) -> Result<(), ControlError> {
        let snapshot = clone.snapshot.as_deref();
        if let Some(snapshot) = snapshot {
            check_name(snapshot)?;
        }
        let pool = &self.inner.pool;
        let made = pool.volume_clone(source, snapshot, &clone.name).await;
        made.map_err(|failure| {
            let message = failure.to_string();
            match failure {
                CloneVolumeFailure::Change(error) => refusal(error),
                CloneVolumeFailure::Snapshot(error) => {
                    refused(snapshot.unwrap_or("of a clone"), error)
                }
                CloneVolumeFailure::NotServed => ControlError::new(
                    ErrorKind::Unavailable,
                    format!("volume {source}: {message}"),
                )
                .hint("`cairn volume show` says why; try again when it is"),
                CloneVolumeFailure::InCluster => ControlError::new(ErrorKind::Conflict, message)
                    .hint("`cairn clone` makes clones of files and directories there"),
            }
        })
    }

    /// Refuses what there is for volumes with a store of their own alone; `why` is a sentence.
    pub(crate) fn require_own_store(&self, fs: &Fs, why: &str) -> Result<(), ControlError> {
        match fs.branch().is_main() {
            true => Ok(()),
            false => Err(ControlError::new(
                ErrorKind::Conflict,
                format!("volume {} is a clone: {why}", fs.name()),
            )),
        }
    }
}
