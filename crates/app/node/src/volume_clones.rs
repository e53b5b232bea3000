//! Answers the admin API about clones of whole volumes.

use cairn_admin::ControlError;
use cairn_admin::api::ErrorKind;
use cairn_admin::volumes::VolumeCloneCreate;
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
                CloneVolumeFailure::NotServed => {
                    let state = pool.state();
                    match state.volume(source) {
                        // Another node may have it, and gets the request.
                        Ok(volume) if self.inner.cluster.is_some() => {
                            self.not_here(volume.id, source)
                        }
                        _ => ControlError::new(
                            ErrorKind::Unavailable,
                            format!("volume {source}: {message}"),
                        )
                        .hint("`cairn volume show` shows why; try again once it is served"),
                    }
                }
            }
        })
    }

    /// Refuses an operation on a volume of a shared store that is not served here, for now or in favour of another node.
    pub(crate) fn require_store_here(&self, name: &VolumeName) -> Result<(), ControlError> {
        let pool = &self.inner.pool;
        let state = pool.state();
        let volume = state.volume(name).map_err(|error| refusal(error.into()))?;
        let store = state.store_of(volume).id;
        let is_alone = store == volume.id && pool.others_in_store(&state, volume.id).is_empty();
        match self.inner.cluster.is_some() && !is_alone && pool.service(store).is_none() {
            true => Err(self.not_here(volume.id, name)),
            false => Ok(()),
        }
    }

    /// Refuses an operation that only volumes with a store of their own have; `why` is a sentence.
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
