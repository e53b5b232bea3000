//! Volumes that share a store: clones are made, and volumes of a store deleted in any order.
//!
//! Owns: the order in which a clone comes, and a volume goes, in the pool's state and in its store.
//! Must not know: how a clone shares its bytes (`fs`).
//!
//! The pool's state lists a clone before its store has it, and no more before it is deleted there: so a crash between the two
//! leaves one that is listed and cannot be opened, or one that the next opening of its store deletes. Nothing is deleted only
//! because it is not listed: a copy of the state may be an old one. A store whose own volume is deleted is listed as such until
//! the last clone goes; both go with one change of the state.

use cairn_base::VolumeId;
use cairn_formats::pool_file::{ChangeError, PoolClone, PoolState, PoolVolume};
use cairn_formats::settings::{SizeLimit, VolumeName, VolumeSettings};
use cairn_fs::{CloneOfVolume, Fs, SnapshotError, SnapshotFailure};

use crate::pool::{ChangeFailure, Pool, VolumeService};

/// Why a clone was not made.
#[derive(Debug, thiserror::Error)]
pub enum CloneVolumeFailure {
    #[error(transparent)]
    Change(#[from] ChangeFailure),
    /// Its source is not open here.
    #[error("the volume is not open")]
    NotServed,
    #[error(transparent)]
    Snapshot(#[from] SnapshotFailure),
}

impl From<ChangeError> for CloneVolumeFailure {
    fn from(error: ChangeError) -> Self {
        Self::Change(error.into())
    }
}

/// What a clone began from, by the names that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneOrigin {
    pub volume: VolumeName,
    pub snapshot: String,
    /// The volume is deleted; there may be another of its name.
    pub is_deleted: bool,
}

impl Pool {
    /// Makes a clone of a volume as it is now, or as one of its snapshots shows it. It is exported to nobody.
    pub async fn volume_clone(
        &self,
        source: &VolumeName,
        snapshot: Option<&str>,
        name: &VolumeName,
    ) -> Result<(), CloneVolumeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        state.check_new(name)?;
        let source = state.volume(source)?;
        let store = state.store_of(source);
        let Some(VolumeService::Serving(fs)) = self.service(source.id) else {
            return Err(CloneVolumeFailure::NotServed);
        };
        if let Some(snapshot) = snapshot
            && fs.snapshot(snapshot.as_bytes()).is_none()
        {
            return Err(SnapshotFailure::from(SnapshotError::NotFound).into());
        }
        let volume = PoolVolume {
            id: state.volume_next,
            name: name.clone(),
            settings: VolumeSettings {
                size_limit: SizeLimit::None,
                autogrow: SizeLimit::None,
                ..store.settings
            },
            created: self.env.clock.now(),
            exports: Vec::new(),
            class: None,
            limits: Vec::new(),
            encryption: None,
            tiering: None,
            is_deleted: false,
        };
        let store = store.id;
        let id = state.take_volume_id();
        state.clones.push(PoolClone { store, volume });
        self.save(&mut tried, &mut state).await?;
        let made = fs.clone_volume(snapshot.map(str::as_bytes), id).await;
        if let Err(error) = made {
            state.delete_volume(id);
            self.save(&mut tried, &mut state).await?;
            return Err(error.into());
        }
        self.publish();
        tracing::info!(volume = %name, %id, %store, "clone of a volume created");
        Ok(())
    }

    /// Refuses to delete one volume of several in a store if a snapshot of it is locked.
    pub(crate) fn check_not_locked(
        &self,
        state: &PoolState,
        volume: &PoolVolume,
    ) -> Result<(), ChangeFailure> {
        let refuse = |why: String| Err(ChangeFailure::Impossible(why));
        let is_clone = state.clone_of(volume.id).is_some();
        if !is_clone && self.others_in_store(state, volume.id).is_empty() {
            return Ok(());
        }
        let fs = match self.service(volume.id) {
            Some(VolumeService::Serving(fs)) => fs,
            // It was not made to the end, or whatever is wrong with its store is no reason to keep it.
            _ if is_clone => return Ok(()),
            _ => {
                return refuse(format!(
                    "volume \"{}\" has clones and is not served, so nobody knows whether one of its snapshots is locked: delete the clones first, or try again when it is served",
                    volume.name
                ));
            }
        };
        let mut all = fs.snapshots().into_iter();
        match all.find(|snapshot| snapshot.is_locked) {
            None => Ok(()),
            Some(locked) => refuse(format!(
                "snapshot {} of the volume is locked; unlock it first",
                String::from_utf8_lossy(&locked.name)
            )),
        }
    }

    /// Deletes a volume in a store that stays, of which the state says by now that it is deleted.
    pub(crate) async fn delete_in_store(&self, store: VolumeId, volume: VolumeId) {
        if let Some(VolumeService::Serving(fs)) = self.service(store)
            && let Err(error) = delete_in(&fs, volume).await
        {
            tracing::warn!(%volume, %store, %error, "the deleted volume is freed when its store is next opened");
        }
    }

    /// Has a store delete the volumes in it that were deleted when it could not, or by another node.
    pub(crate) async fn delete_leftovers(&self, fs: &Fs) {
        let state = self.state();
        let store = fs.store();
        let mut stores = state.volumes.iter();
        let is_own_deleted = stores.any(|listed| listed.id == store && listed.is_deleted);
        let own = (is_own_deleted && !fs.is_own_volume_deleted()).then_some(store);
        let clones = fs.clones().into_iter().rev().map(|clone| clone.volume);
        let unlisted = clones.filter(|id| state.clone_of(*id).is_none());
        let unlisted: Vec<VolumeId> = unlisted.chain(own).collect();
        if unlisted.is_empty() {
            return;
        }
        let deleted = match &self.seats {
            // The state known here may be of a while ago.
            Some(seats) => seats.deleted_in_store(store, unlisted).await,
            None => {
                let is_noted = |id: &VolumeId| {
                    let mut deleted = state.deleted.iter();
                    Some(*id) == own || deleted.any(|gone| gone.id == *id)
                };
                unlisted.into_iter().filter(is_noted).collect()
            }
        };
        for volume in deleted {
            if let Err(error) = delete_in(fs, volume).await {
                tracing::warn!(%volume, %error, "a deleted volume is not freed yet");
            }
        }
    }

    /// The other volumes in the store of one, by name.
    pub fn others_in_store(&self, state: &PoolState, id: VolumeId) -> Vec<VolumeName> {
        let store = state.clone_of(id).map_or(id, |clone| clone.store);
        let others = state.volumes_in_store(store).filter(|it| it.id != id);
        let mut names: Vec<VolumeName> = others.map(|volume| volume.name.clone()).collect();
        names.sort();
        names
    }

    /// Volumes that began from a snapshot, by name.
    pub fn clones_of_snapshot(&self, volumes: &[VolumeId]) -> Vec<String> {
        let state = self.state();
        let names = volumes.iter().map(|id| name_of(&state, *id).to_string());
        names.collect()
    }

    /// What a clone began from; `None` if the volume is no clone, or its store is not open.
    pub fn origin_of(&self, volume: &PoolVolume) -> Option<CloneOrigin> {
        let state = self.state();
        let clone = state.clone_of(volume.id)?;
        let VolumeService::Serving(fs) = self.service(clone.store)? else {
            return None;
        };
        let mut all = fs.clones().into_iter();
        let CloneOfVolume { from, snapshot, .. } = all.find(|it| it.volume == volume.id)?;
        let from = from.unwrap_or(clone.store);
        Some(CloneOrigin {
            volume: name_of(&state, from),
            is_deleted: !state.all_volumes().any(|volume| volume.id == from),
            snapshot: String::from_utf8_lossy(&snapshot.name).into_owned(),
        })
    }

    /// A clone as a volume of its own, as its store is.
    pub(crate) fn clone_service(&self, id: VolumeId) -> Option<VolumeService> {
        let state = self.state();
        let clone = state.clone_of(id)?;
        Some(match self.service(clone.store)? {
            VolumeService::Failed(why) => VolumeService::Failed(why),
            VolumeService::Serving(fs) => match fs.open_clone(id, clone.volume.name.as_str()) {
                Ok(fs) => VolumeService::Serving(fs),
                Err(_) => VolumeService::Failed(
                    "its cloning was interrupted; delete it and clone the volume again".to_owned(),
                ),
            },
        })
    }
}

async fn delete_in(store: &Fs, volume: VolumeId) -> Result<(), SnapshotFailure> {
    if volume == store.store() {
        return store.delete_own_volume().await;
    }
    match store.delete_clone(volume).await {
        // It was not made to the end.
        Err(SnapshotFailure::Refused(SnapshotError::NotFound)) => Ok(()),
        done => done,
    }
}

fn name_of(state: &PoolState, id: VolumeId) -> VolumeName {
    let unknown = || format!("volume-{id}").parse::<VolumeName>();
    state.name_of(id).map_or_else(
        || unknown().expect("letters and digits are a name"),
        VolumeName::clone,
    )
}
