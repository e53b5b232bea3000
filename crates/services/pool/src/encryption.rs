//! Keys of encrypted volumes: how they are made, found, wrapped anew and erased.
//!
//! Owns: the order of steps, what is said where a key is missing. Must not know: where master keys come from, how
//! anything is encrypted.
//!
//! The key of a volume is in the pool's state, wrapped with a master key, and nowhere else. So it is wrapped anew without a
//! look at the data, and gone when the state does not have it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use cairn_base::env::Entropy;
use cairn_base::{PoolId, VolumeId};
use cairn_formats::encryption::{KeptSecret, MasterKeyId, VolumeEncryption, WrappedKey};
use cairn_formats::pool_file::{ChangeError, HandleKey, PoolState, PoolVolume};
use cairn_formats::settings::VolumeName;
use cairn_keys::{KeyError, MasterKeys, Secrets, SecretsKey, VolumeKey};

use crate::metadata::OpenAgain;
use crate::pool::{ChangeFailure, Pool, VolumeService};

/// What became of the keys of volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Volumes whose keys are wrapped with the current master key now, and were not before.
    pub wrapped: Vec<VolumeName>,
    /// Volumes whose keys could not be unwrapped, and why.
    pub failed: Vec<(VolumeName, String)>,
    /// The key of the pool's secrets is wrapped with the current master key now, and was not before.
    pub secrets: bool,
}

/// Where the key of file handles lies in the pool file.
const HANDLE_KEY_PLACE: &str = "handle key";

/// Tells volumes the key of the pool's secrets.
pub(crate) struct PoolSecrets(Weak<Pool>);

impl PoolSecrets {
    pub fn of(pool: Weak<Pool>) -> Self {
        Self(pool)
    }
}

impl Secrets for PoolSecrets {
    fn key(&self) -> Result<Option<Arc<SecretsKey>>, KeyError> {
        // A volume that outlives the pool serves nobody any more.
        let pool = self.0.upgrade().ok_or(KeyError::NoSecretsKey)?;
        let key = secrets_key_of(&pool.state(), &pool.host.master_keys())?;
        if key.is_none()
            && let Some(why) = pool.host.why_unwrapped()
        {
            // None is kept readable where the configuration wants them wrapped.
            return Err(KeyError::Unwrapped { why });
        }
        Ok(key)
    }
}

/// What the key of a pool's secrets is wrapped for: the cluster that the pool is part of, else the pool.
fn owner_of_secrets(state: &PoolState) -> PoolId {
    state.cluster.map_or(state.pool, |mark| mark.cluster)
}

/// The key of a pool's secrets; `None`: there never was a master key.
pub fn secrets_key_of(
    state: &PoolState,
    keys: &MasterKeys,
) -> Result<Option<Arc<SecretsKey>>, KeyError> {
    let Some(wrapped) = &state.secrets_key else {
        return Ok(None);
    };
    let key = keys.unwrap_secrets_key(owner_of_secrets(state), wrapped)?;
    Ok(Some(Arc::new(key)))
}

/// Tells one key.
struct Only(Option<Arc<SecretsKey>>);

impl Secrets for Only {
    fn key(&self) -> Result<Option<Arc<SecretsKey>>, KeyError> {
        Ok(self.0.clone())
    }
}

/// The key of file handles that a pool's state has; `None`: it has none, for the pool is part of a cluster.
pub fn handle_key_of(state: &PoolState, keys: &MasterKeys) -> Result<Option<HandleKey>, KeyError> {
    let Some(kept) = &state.handle_key else {
        return Ok(None);
    };
    let key = match kept {
        KeptSecret::Readable(_) => None,
        KeptSecret::Wrapped(_) => secrets_key_of(state, keys)?,
    };
    let text = cairn_keys::reveal(&Only(key), HANDLE_KEY_PLACE, kept)?;
    // The text of a readable one was looked at when the pool file was read.
    let key = HandleKey::from_text(&text).ok_or(KeyError::SecretNotAuthentic)?;
    Ok(Some(key))
}

/// Has a pool that becomes the first node of a cluster keep its secrets: their key is wrapped for the cluster from now on.
/// `state` says already that it is part of the cluster.
pub fn give_secrets_to_cluster(
    state: &mut PoolState,
    keys: &MasterKeys,
    entropy: &dyn Entropy,
) -> Result<(), KeyError> {
    let Some(wrapped) = &state.secrets_key else {
        return Ok(());
    };
    let cluster = owner_of_secrets(state);
    let moved = keys.move_secrets_key(state.pool, cluster, wrapped, entropy)?;
    state.secrets_key = Some(moved);
    Ok(())
}

impl Pool {
    /// What a volume's bytes are encrypted with; an error says why it cannot be had, and what to do.
    pub(crate) fn key_of(&self, volume: &PoolVolume) -> Result<Option<Arc<VolumeKey>>, String> {
        let wrapped = match &volume.encryption {
            None => return Ok(None),
            Some(VolumeEncryption::Key(wrapped)) => wrapped,
            Some(VolumeEncryption::Erased(_)) => {
                return Err(format!(
                    "its key was erased, so it is unreadable for ever: delete it with `cairn volume delete {}`",
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

    /// Sees to it that secrets are wrapped from now on, if there is a master key: makes the key that they are wrapped with, and
    /// wraps the key of file handles. Secrets that lie in volumes are wrapped when those are opened.
    ///
    /// `is_new`: the pool was made by this start, so that no client has a handle. Its key is another one then: the one that was
    /// written readable may stand in freed blocks.
    pub async fn wrap_secrets(&self, is_new: bool) -> Result<(), ChangeFailure> {
        let keys = self.host.master_keys();
        let is_done = |state: &PoolState| {
            let handle_key = state.handle_key.as_ref();
            state.secrets_key.is_some() && handle_key.is_none_or(KeptSecret::is_wrapped)
        };
        if keys.current().is_none() || is_done(&self.state()) {
            return Ok(());
        }
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        if state.secrets_key.is_none() {
            let made = keys.make_secrets_key(owner_of_secrets(&state), &*self.env.entropy);
            state.secrets_key = Some(made.map_err(impossible)?);
        }
        let key = secrets_key_of(&state, &keys).map_err(impossible)?;
        let wrapped = match (&state.handle_key, &key) {
            (Some(KeptSecret::Readable(text)), Some(key)) => {
                let another = HandleKey(self.env.entropy.u128()).to_text();
                let text = if is_new { &another } else { text };
                Some(key.wrap(HANDLE_KEY_PLACE, text, &*self.env.entropy))
            }
            _ => None,
        };
        if let Some(wrapped) = wrapped {
            state.handle_key = Some(KeptSecret::Wrapped(wrapped));
        }
        if is_done(&self.state()) {
            // Another node was first.
            return Ok(());
        }
        self.save(&mut tried, &mut state).await?;
        tracing::info!("secrets on the disks are wrapped from now on");
        Ok(())
    }

    /// The key of file handles that the pool file has; `None` in a cluster.
    pub fn handle_key(&self) -> Result<Option<HandleKey>, KeyError> {
        handle_key_of(&self.state(), &self.host.master_keys())
    }

    /// Why no secret is set or made now, though the configuration has master keys; `None`: they are, or it has none.
    pub fn secrets_trouble(&self) -> Option<String> {
        let is_wrapped = self.state().secrets_key.is_some();
        let why = self.host.why_unwrapped();
        why.filter(|_| !is_wrapped)
    }

    /// Which master key secrets need, if they are wrapped.
    pub fn secrets_master_key(&self) -> Option<MasterKeyId> {
        self.state().secrets_key.map(|wrapped| wrapped.master_key)
    }

    /// Wraps the keys of all volumes, and that of the pool's secrets, with the current master key. No data is read or written.
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
        let owner = owner_of_secrets(&state);
        let wrapped = state.secrets_key.as_ref();
        if let Some(wrapped) = wrapped.filter(|key| key.master_key != current) {
            // All or nothing: an operator who throws the earlier master key away relies on this answer.
            let again = keys.wrap_secrets_key_anew(owner, wrapped, &*self.env.entropy);
            state.secrets_key = Some(again.map_err(impossible)?);
            rotation.secrets = true;
        }
        if !rotation.wrapped.is_empty() || rotation.secrets {
            self.save(&mut tried, &mut state).await?;
            tracing::info!(
                master_key = %current,
                volumes = rotation.wrapped.len(),
                secrets = rotation.secrets,
                "keys rewrapped"
            );
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
                "the pool file does not list the store of volume \"{name}\""
            )));
        };
        match volume.encryption {
            None => {
                return Err(ChangeFailure::Impossible(format!(
                    "volume \"{name}\" is not encrypted, so it has no key"
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

fn impossible(error: KeyError) -> ChangeFailure {
    ChangeFailure::Impossible(format!("the key of the pool's secrets: {error}"))
}

/// The wrapped keys that there are, with their volumes.
pub fn wrapped_keys(state: &PoolState) -> impl Iterator<Item = (&PoolVolume, &WrappedKey)> {
    let volumes = state.volumes.iter();
    volumes.filter_map(|volume| Some((volume, volume.encryption.as_ref()?.key()?)))
}

#[cfg(test)]
mod tests {
    use cairn_formats::pool_file::ClusterMark;
    use cairn_formats::testing::example_pool;
    use cairn_keys::MasterKey;
    use cairn_testkit::test_env;

    use super::*;

    const FIRST: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const SECOND: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn keys(text: &str) -> MasterKeys {
        MasterKeys::default().with(MasterKey::parse_all(text).unwrap())
    }

    #[test]
    fn the_handle_key_is_had_where_its_master_key_is() {
        let env = test_env();
        let mut state = example_pool(2);
        let none = MasterKeys::default();
        let key = handle_key_of(&state, &none).unwrap().unwrap();
        assert_eq!(state.handle_key, Some(key.readable()));
        assert!(secrets_key_of(&state, &keys(FIRST)).unwrap().is_none());
        let made = keys(FIRST).make_secrets_key(state.pool, &*env.entropy);
        state.secrets_key = Some(made.unwrap());
        let of_secrets = secrets_key_of(&state, &keys(FIRST)).unwrap().unwrap();
        let wrapped = of_secrets.wrap(HANDLE_KEY_PLACE, &key.to_text(), &*env.entropy);
        state.handle_key = Some(KeptSecret::Wrapped(wrapped));
        assert_eq!(handle_key_of(&state, &keys(FIRST)), Ok(Some(key)));
        for missing in [&none, &keys(SECOND)] {
            let why = handle_key_of(&state, missing);
            assert!(matches!(why, Err(KeyError::Missing { .. })), "{why:?}");
        }
        // A secret from another place is none.
        let other = of_secrets.wrap("volume 1 access key a", &key.to_text(), &*env.entropy);
        let moved = PoolState {
            handle_key: Some(KeptSecret::Wrapped(other)),
            ..state.clone()
        };
        let why = handle_key_of(&moved, &keys(FIRST));
        assert_eq!(why, Err(KeyError::SecretNotAuthentic));
        // Wrapped anew it is the same.
        let both = keys(FIRST).with(MasterKey::parse_all(SECOND).unwrap());
        let wrapped = state.secrets_key.unwrap();
        let again = both.wrap_secrets_key_anew(state.pool, &wrapped, &*env.entropy);
        state.secrets_key = Some(again.unwrap());
        assert_eq!(handle_key_of(&state, &keys(SECOND)), Ok(Some(key)));
        let why = handle_key_of(&state, &keys(FIRST));
        assert!(matches!(why, Err(KeyError::Missing { .. })), "{why:?}");
        state.handle_key = None;
        assert_eq!(handle_key_of(&state, &none), Ok(None));
    }

    #[test]
    fn a_cluster_takes_the_secrets_of_its_first_node() {
        let env = test_env();
        let mut state = example_pool(2);
        let made = keys(FIRST).make_secrets_key(state.pool, &*env.entropy);
        state.secrets_key = Some(made.unwrap());
        let alone = secrets_key_of(&state, &keys(FIRST)).unwrap().unwrap();
        let wrapped = alone.wrap("place", "hidden", &*env.entropy);
        state.cluster = Some(ClusterMark {
            cluster: PoolId(78),
            node: cairn_base::NodeId(1),
        });
        // That of a pool is none of a cluster's.
        assert!(secrets_key_of(&state, &keys(FIRST)).is_err());
        let refused = give_secrets_to_cluster(&mut state, &keys(SECOND), &*env.entropy);
        assert!(matches!(refused, Err(KeyError::Missing { .. })));
        give_secrets_to_cluster(&mut state, &keys(FIRST), &*env.entropy).unwrap();
        let given = secrets_key_of(&state, &keys(FIRST)).unwrap().unwrap();
        let secret = given.unwrap("place", &wrapped).unwrap();
        assert_eq!(secret.as_str(), "hidden");
        state.secrets_key = None;
        assert_eq!(
            give_secrets_to_cluster(&mut state, &MasterKeys::default(), &*env.entropy),
            Ok(())
        );
    }
}
