//! Clones of volumes: made and deleted, and what depends on what.
//!
//! Owns: the order in which a clone comes and goes in the pool's state and in the store of its source.
//! Must not know: how a clone shares its bytes (`fs`).
//!
//! The pool's state lists a clone before its store has it, and no more before it is deleted there: so a crash between the two
//! leaves one that is listed and cannot be opened, or one that the next opening of its store deletes. Nothing is deleted only
//! because it is not listed: a copy of the state may be an old one.

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
    #[error("volumes of a cluster cannot be cloned as a whole yet")]
    InCluster,
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
}

impl Pool {
    /// Makes a clone of a volume as it is now, or as one of its snapshots shows it. It is exported to nobody.
    pub async fn volume_clone(
        &self,
        source: &VolumeName,
        snapshot: Option<&str>,
        name: &VolumeName,
    ) -> Result<(), CloneVolumeFailure> {
        if self.seats.is_some() {
            return Err(CloneVolumeFailure::InCluster);
        }
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
                ..store.settings
            },
            created: self.env.clock.now(),
            exports: Vec::new(),
            class: None,
            limits: Vec::new(),
            encryption: None,
            tiering: None,
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
        tracing::info!(volume = %name, %id, %store, "clone of a volume made");
        Ok(())
    }

    /// The clone's part of deleting a volume. False: it is none.
    pub(crate) async fn delete_if_clone(
        &self,
        state: &mut PoolState,
        volume: &PoolVolume,
        tried: &mut u64,
    ) -> Result<bool, ChangeFailure> {
        let dependents = self.dependents(state, volume.id);
        if !dependents.is_empty() {
            return Err(ChangeFailure::Refused(ChangeError::HasClones {
                volume: volume.name.clone(),
                clones: dependents,
            }));
        }
        let Some(clone) = state.clone_of(volume.id).cloned() else {
            return Ok(false);
        };
        let service = self.service(volume.id);
        if let Some(VolumeService::Serving(fs)) = &service {
            let locked = fs
                .snapshots()
                .into_iter()
                .find(|snapshot| snapshot.is_locked);
            if let Some(locked) = locked {
                return Err(ChangeFailure::Impossible(format!(
                    "snapshot {} of the volume is locked; unlock it first",
                    String::from_utf8_lossy(&locked.name)
                )));
            }
        }
        state.delete_volume(volume.id);
        // Once the pool file says that it is gone it is: what a crash leaves, the next opening of its store deletes.
        self.save(tried, state).await?;
        self.publish();
        if let Some(VolumeService::Serving(fs)) = self.service(clone.store)
            && let Err(error) = delete_in(&fs, volume.id).await
        {
            tracing::warn!(volume = %volume.name, %error, "the deleted clone is freed when its store is opened next");
        }
        tracing::info!(volume = %volume.name, id = %volume.id, "clone of a volume deleted");
        Ok(true)
    }

    /// Has a store that was just opened delete the clones that were deleted when it could not.
    pub(crate) async fn delete_leftover_clones(&self, fs: &Fs) {
        let state = self.state();
        for clone in fs.clones().into_iter().rev() {
            let is_deleted = state.deleted.iter().any(|gone| gone.id == clone.volume);
            if is_deleted
                && state.clone_of(clone.volume).is_none()
                && let Err(error) = delete_in(fs, clone.volume).await
            {
                tracing::warn!(clone = %clone.volume, %error, "a deleted clone is not freed yet");
            }
        }
    }

    /// Volumes that began from one, or from one of its snapshots, by name; all that are in its store if it is no clone.
    pub fn dependents(&self, state: &PoolState, id: VolumeId) -> Vec<VolumeName> {
        let in_store = state.clones.iter().filter(|clone| clone.store == id);
        let mut names: Vec<VolumeName> = in_store.map(|clone| clone.volume.name.clone()).collect();
        if let Some(VolumeService::Serving(fs)) = self.service(id)
            && !fs.branch().is_main()
        {
            let of_it = fs.clones().into_iter();
            let of_it = of_it.filter(|clone| clone.from == Some(id));
            names.extend(of_it.map(|clone| name_of(state, clone.volume)));
        }
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
        Some(CloneOrigin {
            volume: name_of(&state, from.unwrap_or(clone.store)),
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
                    "it was not made to the end; delete it and clone the volume again".to_owned(),
                ),
            },
        })
    }
}

async fn delete_in(store: &Fs, volume: VolumeId) -> Result<(), SnapshotFailure> {
    match store.delete_clone(volume).await {
        // It was not made to the end.
        Err(SnapshotFailure::Refused(SnapshotError::NotFound)) => Ok(()),
        done => done,
    }
}

fn name_of(state: &PoolState, id: VolumeId) -> VolumeName {
    let mut all = state.all_volumes();
    let found = all.find(|volume| volume.id == id);
    let unknown = || format!("volume-{id}").parse::<VolumeName>();
    found.map_or_else(
        || unknown().expect("letters and digits are a name"),
        |volume| volume.name.clone(),
    )
}
