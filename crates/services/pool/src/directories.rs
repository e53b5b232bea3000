//! The protections that directories of volumes ask for: the pool knows them beside the volume's own, so that no disk leaves and no
//! copy of metadata is saved that one of them needs.
//!
//! Owns: when such a protection is written down, and when it is forgotten. Must not know: which directories ask for it (`fs`).
//!
//! A protection is in the pool's state before a directory can ask for it, and until neither a directory nor data that was
//! written below one does.

use cairn_formats::pool_file::{PoolState, PoolVolume};
use cairn_formats::settings::{Protection, Protections, VolumeName};
use cairn_fs::Fs;

use crate::pool::{ChangeFailure, Pool, VolumeService};

impl Pool {
    /// Has the pool keep what it takes that directories of a volume can have a protection: disks enough, and as many copies of
    /// the volume's metadata. Refused if there are too few disks.
    pub async fn allow_directory_protection(
        &self,
        name: &VolumeName,
        protection: Protection,
    ) -> Result<(), ChangeFailure> {
        let store = {
            let state = self.state();
            state.store_of(state.volume(name)?).clone()
        };
        if store.settings.directory_protections.contains(protection) {
            return Ok(());
        }
        self.change_directory_protections(&store, |known| {
            let mut all = known;
            all.insert(protection);
            all
        })
        .await
    }

    /// Forgets those that nobody asks for any more, in volumes that are served here.
    pub(crate) async fn forget_directory_protections(&self) {
        let state = self.state();
        for volume in &state.volumes {
            let known = volume.settings.directory_protections;
            let Some(VolumeService::Serving(fs)) = self.service(volume.id) else {
                continue;
            };
            let asked = |fs: &Fs| fs.directory_protections().unwrap_or(known);
            if asked(&fs) == known {
                continue;
            }
            // What a directory asks for is known, but for the moment between that it is allowed and that it is said.
            let forgotten = self.change_directory_protections(volume, |_| asked(&fs));
            if let Err(error) = forgotten.await {
                tracing::warn!(volume = %volume.name, %error, "the protections of the volume's directories are not stored yet");
            }
        }
    }

    async fn change_directory_protections(
        &self,
        store: &PoolVolume,
        change: impl FnOnce(Protections) -> Protections,
    ) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        let Some(kept) = state.store_mut(store.id) else {
            return Ok(());
        };
        let before = kept.settings;
        kept.settings.directory_protections = change(before.directory_protections);
        let settings = kept.settings;
        if settings == before {
            return Ok(());
        }
        let added = |it: &Protection| !before.directory_protections.contains(*it);
        if settings.directory_protections.iter().any(|it| added(&it)) {
            self.require_code(&settings)?;
        }
        self.save(&mut tried, &mut state).await?;
        if let Some(VolumeService::Serving(fs)) = self.service(store.id) {
            // First: data must not be safer than the metadata that it is found by.
            self.set_copies(&fs, &settings).await;
        }
        Ok(())
    }
}
