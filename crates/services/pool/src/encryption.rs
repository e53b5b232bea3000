//! Keys of encrypted volumes: how they are made, found, wrapped anew and erased.
//!
//! Owns: the order of steps, what is said where a key is missing. Must not know: where master keys come from, how
//! anything is encrypted.
//!
//! The key of a volume is in the pool's state, wrapped with a master key, and nowhere else. So it is wrapped anew without a
//! look at the data, and gone when the state does not have it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_base::VolumeId;
use cairn_formats::encryption::{VolumeEncryption, WrappedKey};
use cairn_formats::pool_file::{ChangeError, PoolState, PoolVolume};
use cairn_formats::settings::VolumeName;
use cairn_keys::{KeyError, VolumeKey};

use crate::metadata::OpenAgain;
use crate::pool::{ChangeFailure, Pool, VolumeService};

/// What became of the keys of volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Volumes whose keys are wrapped with the current master key now, and were not before.
    pub wrapped: Vec<VolumeName>,
    /// Volumes whose keys could not be unwrapped, and why.
    pub failed: Vec<(VolumeName, String)>,
}

impl Pool {
    /// What a volume's bytes are encrypted with; an error says why it cannot be had, and what to do.
    pub(crate) fn key_of(&self, volume: &PoolVolume) -> Result<Option<Arc<VolumeKey>>, String> {
        let wrapped = match &volume.encryption {
            None => return Ok(None),
            Some(VolumeEncryption::Key(wrapped)) => wrapped,
            Some(VolumeEncryption::Erased(_)) => {
                return Err(format!(
                    "its key was erased, so that nobody can read it any more: delete it with `cairn volume delete {}`",
                    self.state().head_of(volume).name
                ));
            }
        };
        let key = self.host.master_keys().unwrap(volume.id, wrapped);
        key.map(|key| Some(Arc::new(key))).map_err(|error| match error {
            KeyError::Missing { id } => format!(
                "it is encrypted, and its key is wrapped with master key {id}, which this server was not given: put that into \
                 the file of --master-key-file, or have the command of --master-key-command print it; it is looked for every \
                 few seconds"
            ),
            error => error.to_string(),
        })
    }

    /// Why a volume cannot be read here, for want of its key; `None` if that is not so.
    pub fn key_trouble(&self, volume: &PoolVolume) -> Option<String> {
        self.key_of(volume).err()
    }

    /// Volumes that this node cannot open, for want of their keys.
    pub fn locked_volumes(&self) -> BTreeSet<VolumeId> {
        let state = self.state();
        let locked = state.volumes.iter();
        let locked = locked.filter(|volume| self.key_trouble(volume).is_some());
        locked.map(|volume| volume.id).collect()
    }

    pub(crate) fn make_key(&self, volume: VolumeId) -> Result<VolumeEncryption, ChangeFailure> {
        let keys = self.host.master_keys();
        let made = keys.make(volume, &*self.env.entropy);
        made.map(VolumeEncryption::Key).map_err(|_| {
            ChangeFailure::Impossible(
                "there is no master key to wrap the key of an encrypted volume with: make one with `cairn key generate`, and \
                 start the server with --master-key-file or --master-key-command"
                    .to_owned(),
            )
        })
    }

    /// Wraps the keys of all volumes with the current master key. No data is read or written.
    pub async fn rotate_keys(&self) -> Result<Rotation, ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let keys = self.host.master_keys();
        let Some(current) = keys.current() else {
            let why = "there is no master key: start the server with --master-key-file or --master-key-command";
            return Err(ChangeFailure::Impossible(why.to_owned()));
        };
        let mut state = PoolState::clone(&self.state());
        let mut rotation = Rotation::default();
        let heads: BTreeMap<VolumeId, VolumeName> = state
            .volumes
            .iter()
            .map(|store| (store.id, state.head_of(store).name.clone()))
            .collect();
        for volume in &mut state.volumes {
            let name = heads.get(&volume.id).unwrap_or(&volume.name);
            let wrapped = volume.encryption.as_ref().and_then(VolumeEncryption::key);
            let Some(wrapped) = wrapped.filter(|key| key.master_key != current) else {
                continue;
            };
            match keys.wrap_anew(volume.id, wrapped, &*self.env.entropy) {
                Ok(again) => {
                    volume.encryption = Some(VolumeEncryption::Key(again));
                    rotation.wrapped.push(name.clone());
                }
                Err(error) => rotation.failed.push((name.clone(), error.to_string())),
            }
        }
        if !rotation.wrapped.is_empty() {
            self.save(&mut tried, &mut state).await?;
            tracing::info!(master_key = %current, volumes = rotation.wrapped.len(), "keys of volumes are wrapped anew");
        }
        Ok(rotation)
    }

    /// Erases the key of a volume: from when this returns without an error on, nobody can read it any more.
    pub async fn erase_key(&self, name: &VolumeName) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        let now = self.env.clock.now();
        let volume = state.volume(name)?;
        let store = state.store_of(volume).id;
        let others = self.others_in_store(&state, volume.id);
        let encryption = &state.store_of(volume).encryption;
        if encryption.is_some() && !others.is_empty() {
            return Err(ChangeFailure::Refused(ChangeError::SharesKey {
                volume: name.clone(),
                others,
            }));
        }
        let Some(volume) = state.store_mut(store) else {
            return Err(ChangeFailure::Impossible(format!(
                "the store of volume \"{name}\" is not listed"
            )));
        };
        match volume.encryption {
            None => {
                return Err(ChangeFailure::Impossible(format!(
                    "the volume \"{name}\" is not encrypted, so it has no key"
                )));
            }
            Some(VolumeEncryption::Erased(_)) => return Ok(()),
            Some(VolumeEncryption::Key(_)) => {}
        }
        volume.encryption = Some(VolumeEncryption::Erased(now));
        let volume = volume.clone();
        self.save(&mut tried, &mut state).await?;
        tracing::warn!(volume = %name, "the key of this volume was erased");
        self.leave_erased(&volume).await;
        Ok(())
    }

    /// Stops serving a volume whose key was erased.
    pub(crate) async fn leave_erased(&self, volume: &PoolVolume) {
        let why = self.key_trouble(volume).unwrap_or_default();
        let service = match (&self.seats, self.service(volume.id)) {
            (None, _) => self.set_service(volume.id, Some(VolumeService::Failed(why))),
            (Some(_), Some(_)) => self.set_service(volume.id, None),
            (Some(_), None) => None,
        };
        self.publish();
        if let Some(VolumeService::Serving(fs)) = service {
            // What it still has to write nobody could read.
            fs.abandon();
        }
        self.end_succession(volume.id);
    }

    /// Opens volumes whose keys were missing: there are more master keys now.
    pub async fn keys_came(&self) {
        let now = self.env.clock.monotonic();
        let state = self.state();
        let is_failed = |volume: &&PoolVolume| {
            let service = self.service(volume.id);
            volume.encryption.is_some() && matches!(service, Some(VolumeService::Failed(_)))
        };
        let waiting = state.volumes.iter().filter(is_failed);
        let waiting = waiting.filter(|volume| self.key_trouble(volume).is_none());
        for volume in waiting {
            let due = OpenAgain::due(now);
            self.open_again.lock().insert(volume.id, due);
        }
        self.open_failed().await;
    }
}

/// The wrapped keys that there are, with their volumes.
pub fn wrapped_keys(state: &PoolState) -> impl Iterator<Item = (&PoolVolume, &WrappedKey)> {
    let volumes = state.volumes.iter();
    volumes.filter_map(|volume| Some((volume, volume.encryption.as_ref()?.key()?)))
}
