//! The pool's volumes: made, opened, changed, deleted.
//!
//! Owns: the order in which a volume comes and goes, and how many copies its metadata has.
//! Must not know: where its metadata should move to and when (`metadata`), how it is exported.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_base::disk::{Disk, DiskError};
use cairn_base::domain::{DomainPath, survives};
use cairn_base::{DiskId, VolumeId};
use cairn_formats::encryption::VolumeEncryption;
use cairn_formats::pool_file::{ChangeError, Deletion, PoolDisk, PoolState, PoolVolume, Stage};
use cairn_formats::settings::{
    ClassName, ExportRule, Protection, SizeLimit, VolumeName, VolumeSettings,
};
use cairn_fs::{Fs, FsError, FsSettings, Policy};
use cairn_keys::VolumeKey;
use cairn_meta::{MetaError, MetaErrorKind, MetaStore};
use tokio::sync::MutexGuard;

use crate::assemble::failures_tolerated;
use crate::planner::copies_of_metadata;
use crate::pool::{ChangeFailure, MetaDisks, Pool, VolumeService};
use crate::state_places::{self, Kind, MetadataDisk};
use crate::tiers::tier_policy;

/// Why a volume was not made.
struct MakeError {
    why: String,
    /// Something of it may be on the disks.
    has_files: bool,
    /// A disk had no room for it.
    is_full: bool,
}

/// Why a volume was not opened.
struct OpenError {
    why: String,
    /// The disk with the state that is damaged, if the others have all that it had.
    damaged: Option<DiskId>,
    /// A disk has promised a later epoch than that of the metadata: an earlier start, which did not get far, had it.
    is_fenced: bool,
    /// Disks had no room for its log or its state. It is not open.
    is_full: bool,
}

/// Whether it may be room that a disk lacks. Another opening may have it; what a store has begun to write never fails so. A
/// state that cannot be opened for want of it is left out, and missing then, before anything is written to the log.
fn is_full(error: &MetaError) -> bool {
    error.kind() == MetaErrorKind::NoSpace
        || matches!(
            error,
            MetaError::Disk(DiskError::Full { .. }) | MetaError::StateMissing { .. }
        )
}

/// Terms that are tried until one is later than all that disks have promised. Each start that was cut short between
/// the metadata and the disks costs one.
const TERMS_MAX: usize = 32;

fn damaged_primary(meta: &MetaStore, mut disks: Vec<DiskId>) -> Option<DiskId> {
    let primary = meta.log().primary_disk();
    disks.retain(|id| *id != primary);
    let is_damaged = meta.failure().is_some_and(|failure| failure.is_damage());
    (is_damaged && meta.stats().is_all_on(&disks)).then_some(primary)
}

impl Pool {
    /// Opens all volumes. One that cannot be opened is reported and does not stop the others.
    pub async fn open_volumes(&self) {
        let state = self.state();
        for volume in &state.volumes {
            let count = state.volumes.len();
            let disks = self.all_meta_disks(Some(volume.id));
            let opened = self.open_volume(volume, count, disks, Vec::new());
            let service = match opened.await {
                Ok(fs) => VolumeService::Serving(fs),
                Err(why) => {
                    tracing::error!(volume = %volume.name, %why, "this volume is not served");
                    VolumeService::Failed(why)
                }
            };
            self.set_service(volume.id, Some(service));
        }
        self.publish();
    }

    /// Opens one of `count` volumes, with its metadata on `disks`, of which the first are preferred, and not on those
    /// that it left. Where what it begins with is damaged, and whole on others, it is opened on these.
    pub(crate) async fn open_volume(
        &self,
        volume: &PoolVolume,
        count: usize,
        mut disks: MetaDisks,
        left: MetaDisks,
    ) -> Result<Fs, String> {
        // Before anything of it is taken from others.
        let key = self.key_of(volume)?;
        // On a full disk, too, a start writes a file of the log and opens a state that writes some of its own. An opening that
        // fails for want of them may have used up one of the terms that the log can name.
        self.make_room_to_open().await;
        let mut terms = 0;
        loop {
            let opened = self.open_on(volume, count, key.clone(), disks.clone(), left.clone());
            let error = match opened.await {
                Ok(fs) => return Ok(fs),
                Err(error) => error,
            };
            // Each opening has a later term.
            if error.is_fenced && terms < TERMS_MAX {
                terms += 1;
                continue;
            }
            // Each time less is left to give up, so this ends.
            if error.is_full && self.make_more_room_to_open().await {
                tracing::warn!(volume = %volume.name, why = error.why, "opening the volume again, with ballast of full disks");
                continue;
            }
            let OpenError {
                why,
                damaged,
                is_full,
                ..
            } = error;
            let Some(damaged) = damaged else {
                // In a cluster another node may find room.
                return match is_full && self.seats.is_none() {
                    true => {
                        self.open_to_read(volume, count, key, disks, left, why)
                            .await
                    }
                    false => Err(why),
                };
            };
            tracing::error!(volume = %volume.name, disk = %damaged, why, "metadata is damaged; opening the volume on other disks");
            disks.retain(|(id, _)| *id != damaged);
            self.change_table(|table| table.avoid(damaged, Some(volume.id), why));
        }
    }

    async fn open_on(
        &self,
        volume: &PoolVolume,
        count: usize,
        key: Option<Arc<VolumeKey>>,
        disks: MetaDisks,
        left: MetaDisks,
    ) -> Result<Fs, OpenError> {
        let begun = self.env.clock.monotonic();
        let took_ms = || {
            let took = self.env.clock.monotonic().saturating_sub(begun);
            took.as_millis()
        };
        let table = self.table();
        let wanted = self.metadata_copies(&volume.settings);
        let on_leaving = disks.iter().filter(|(id, _)| table.is_draining(*id));
        let copies = copies_of_metadata(wanted, on_leaving.count());
        let mut settings = self.host.meta_settings(volume, copies, count);
        settings.succession = Some(self.succession(volume.id));
        settings.key = key.clone();
        let ids: Vec<DiskId> = disks.iter().map(|(id, _)| *id).collect();
        let not_open = |why: String, is_full| OpenError {
            why,
            damaged: None,
            is_fenced: false,
            is_full,
        };
        let opened = match &self.seats {
            Some(seats) => {
                let taken = seats.take(volume, settings, disks).await;
                // Its owner tries again by itself.
                taken.map_err(|why| not_open(why, false))
            }
            None => MetaStore::open_without(self.env.clone(), settings, volume.id, disks, left)
                .await
                .map_err(|error| not_open(error.to_string(), is_full(&error))),
        };
        let (meta, recovered) = opened?;
        tracing::info!(
            volume = %volume.name,
            epoch = recovered.epoch.0,
            replayed = recovered.replayed_entries,
            journaled = recovered.journal.len(),
            took_ms = took_ms(),
            "metadata recovered"
        );
        if let Err(error) = self.store.fence(volume.id, meta.epoch()).await {
            // Nobody used it yet; it is in the way of the next one while it is open.
            let closed = meta.close().await;
            tracing::warn!(volume = %volume.name, %error, ?closed, "disks have promised a later epoch");
            return Err(OpenError {
                why: error.to_string(),
                damaged: None,
                is_fenced: error.kind() == cairn_segment::ErrorKind::Fenced,
                is_full: false,
            });
        }
        let settings = self.fs_settings(volume, count, key);
        let store = Arc::clone(&self.store);
        // In a cluster who makes a volume only names it: its first owner fills it.
        let is_new = self.seats.is_some() && Fs::is_unmade(&meta);
        let opened = match is_new {
            true => Fs::format(settings, Arc::clone(&meta), store).await,
            false => Fs::open(settings, Arc::clone(&meta), recovered.journal, store).await,
        };
        let fs = opened.map_err(|error| OpenError {
            why: error.to_string(),
            damaged: damaged_primary(&meta, ids),
            is_fenced: false,
            is_full: false,
        })?;
        tracing::info!(volume = %volume.name, took_ms = took_ms(), "volume opened");
        self.delete_leftovers(&fs).await;
        self.sweep(volume.id);
        Ok(fs)
    }

    fn fs_settings(
        &self,
        volume: &PoolVolume,
        count: usize,
        key: Option<Arc<VolumeKey>>,
    ) -> FsSettings {
        let mut settings = self.host.fs_settings(volume, count);
        settings.pace = Some(Arc::clone(&self.apply_pace));
        settings.collection_pace = Some(Arc::clone(&self.collection_pace));
        settings.tiering = self.tiering_settings(volume, &settings.tiering);
        settings.key = key;
        settings.secrets = Arc::clone(&self.secrets) as _;
        settings
    }

    /// Opens a volume so that it can be read, where disks have no room for what another opening writes. `why` is what that said.
    async fn open_to_read(
        &self,
        volume: &PoolVolume,
        count: usize,
        key: Option<Arc<VolumeKey>>,
        disks: MetaDisks,
        left: MetaDisks,
        why: String,
    ) -> Result<Fs, String> {
        let copies = self.metadata_copies(&volume.settings);
        let mut settings = self.host.meta_settings(volume, copies, count);
        settings.key = key.clone();
        let env = self.env.clone();
        let opened = MetaStore::open_to_read(env, settings, volume.id, disks, left, why.clone());
        let not_read =
            |error: &dyn std::fmt::Display| format!("{why}; it cannot be read either: {error}");
        let (meta, recovered) = opened.await.map_err(|error| not_read(&error))?;
        let settings = self.fs_settings(volume, count, key);
        let store = Arc::clone(&self.store);
        let opened = Fs::open(settings, meta, recovered.journal, store).await;
        let fs = opened.map_err(|error| not_read(&error))?;
        tracing::error!(volume = %volume.name, why, "this volume is read-only until its disks have room");
        Ok(fs)
    }

    /// Deletes, in the background, shards that a crash left without a reference.
    pub(crate) fn sweep(&self, volume: VolumeId) {
        let store = Arc::clone(&self.store);
        let task = async move {
            match store.sweep(volume).await {
                Ok(swept) if swept.shards_removed > 0 => {
                    tracing::info!(%volume, shards = swept.shards_removed, "unreferenced shards deleted");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%volume, %error, "the search for unreferenced shards failed")
                }
            }
        };
        self.env.spawner.spawn("sweep", Box::pin(task));
    }

    /// Makes a volume and serves it. `exports` are its first rules. Whether it is encrypted can never be changed.
    pub async fn volume_create(
        &self,
        name: &VolumeName,
        settings: VolumeSettings,
        exports: Vec<ExportRule>,
        class: Option<ClassName>,
        encrypt: bool,
    ) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        state.check_new(name)?;
        self.require_code(&settings)?;
        if let Some(problem) = settings.problem_of_autogrow() {
            return Err(ChangeFailure::Impossible(problem));
        }
        let id = state.take_volume_id();
        let volume = PoolVolume {
            id,
            name: name.clone(),
            settings,
            created: self.env.clock.now(),
            exports,
            class,
            limits: Vec::new(),
            encryption: match encrypt {
                true => Some(self.make_key(id)?),
                false => None,
            },
            tiering: None,
            is_deleted: false,
        };
        state.check_class_of(&volume)?;
        if self.seats.is_some() {
            // Its first owner fills it.
            state.volumes.push(volume);
            state.stage = Stage::InUse;
            self.save(&mut tried, &mut state).await?;
            self.publish();
            tracing::info!(volume = %name, %id, "volume made");
            return Ok(());
        }
        // Saved before it is used: a crash must not let the next volume find this one's files.
        self.save(&mut tried, &mut state).await?;

        let fs = match self.make_volume(&volume, state.volumes.len() + 1).await {
            Ok(fs) => fs,
            Err(MakeError {
                why,
                has_files,
                is_full,
            }) => {
                drop(tried);
                if has_files {
                    // Each try would leave some more on a disk that is full.
                    self.remove_files(id).await;
                }
                let why = format!("making volume {name}: {why}");
                return Err(match is_full {
                    true => ChangeFailure::NoRoom(why),
                    false => ChangeFailure::Engine(why),
                });
            }
        };
        state.volumes.push(volume);
        state.stage = Stage::InUse;
        if let Err(error) = self.save(&mut tried, &mut state).await {
            let _ = fs.close().await;
            drop(tried);
            self.remove_files(id).await;
            return Err(error);
        }
        self.set_service(id, Some(VolumeService::Serving(fs)));
        self.publish();
        tracing::info!(volume = %name, %id, "volume made");
        Ok(())
    }

    /// `count`: volumes that there will be.
    async fn make_volume(&self, volume: &PoolVolume, count: usize) -> Result<Fs, MakeError> {
        let copies = self.metadata_copies(&volume.settings);
        let key = self.key_of(volume).map_err(|why| MakeError {
            why,
            has_files: false,
            is_full: false,
        })?;
        let mut settings = self.host.meta_settings(volume, copies, count);
        settings.succession = Some(self.succession(volume.id));
        settings.key = key.clone();
        let disks = self.meta_disks(None);
        let meta = MetaStore::create(self.env.clone(), settings, volume.id, disks).await;
        let meta = meta.map_err(|error| MakeError {
            // Those of somebody else are none of this one's.
            has_files: !matches!(error, MetaError::Exists { .. }),
            is_full: is_full(&error),
            why: error.to_string(),
        })?;
        let settings = self.fs_settings(volume, count, key);
        let fs = Fs::format(settings, meta, Arc::clone(&self.store)).await;
        fs.map_err(|error| MakeError {
            has_files: true,
            is_full: matches!(error, FsError::NoSpace),
            why: error.to_string(),
        })
    }

    pub async fn volume_set(
        &self,
        name: &VolumeName,
        change: impl FnOnce(&mut PoolVolume),
    ) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        let volume = state.volume(name)?;
        let (id, class) = (volume.id, volume.class.clone());
        // Settings are those of a store, and said by the volume that speaks for it.
        let store = state.headed_by(id).cloned();
        let in_store = state.store_of(volume).settings;
        let mut asked = PoolVolume {
            name: name.clone(),
            class,
            ..store.as_ref().unwrap_or(volume).clone()
        };
        if store.is_none() {
            asked.settings = VolumeSettings {
                size_limit: SizeLimit::None,
                autogrow: SizeLimit::None,
                ..in_store
            };
        }
        let (before, tiering_before) = (asked.settings, asked.tiering.clone());
        change(&mut asked);
        let (settings, tiering) = (asked.settings, asked.tiering.clone());
        let is_clone = state.clone_of(id).is_some();
        if store.is_none() && (settings, &tiering) != (before, &tiering_before) {
            let head = state.head_of(state.store_of(state.volume(name)?));
            return Err(ChangeFailure::Impossible(format!(
                "clone \"{name}\" shares the settings of volume \"{}\", in whose store it is; only its class can be changed",
                head.name
            )));
        }
        if let Some(problem) = settings.problem_of_autogrow() {
            return Err(ChangeFailure::Impossible(problem));
        }
        if is_clone && settings.size_limit != before.size_limit {
            return Err(ChangeFailure::Impossible(format!(
                "volume \"{name}\" is a clone, and cannot have a size limit"
            )));
        }
        self.check_tiering(&state, tiering_before.as_ref(), &asked)
            .await?;
        self.require_code(&settings)?;
        state.volume_mut(name)?.class = asked.class;
        if let Some(kept) = store.and_then(|store| state.store_mut(store.id)) {
            (kept.settings, kept.tiering) = (settings, tiering.clone());
        }
        state.check_class_of(state.volume(name)?)?;
        self.save(&mut tried, &mut state).await?;
        self.host.classes(&self.state());
        let store = self.state().headed_by(id).map(|store| store.id);
        if let Some(store) = store
            && let Some(VolumeService::Serving(fs)) = self.service(store)
        {
            // First: data must not be safer than the metadata that it is found by.
            self.set_copies(&fs, &settings).await;
            fs.set_policy(Policy::from(&settings))
                .map_err(|error| ChangeFailure::Impossible(error.to_string()))?;
            fs.set_tiering(tier_policy(tiering.as_ref()));
        }
        Ok(())
    }

    /// Makes, changes or deletes classes of service.
    pub async fn classes_change(
        &self,
        change: impl FnOnce(&mut PoolState) -> Result<(), ChangeError>,
    ) -> Result<(), ChangeFailure> {
        let _turn = self.change_state(change).await?;
        self.host.classes(&self.state());
        Ok(())
    }

    /// Makes, changes or deletes users of the admin API.
    pub async fn users_change(
        &self,
        change: impl FnOnce(&mut PoolState) -> Result<(), ChangeError>,
    ) -> Result<(), ChangeFailure> {
        self.change_state(change).await.map(drop)
    }

    /// Changes the state and saves it. No other change begins while the caller holds what is returned: nobody is told of changes in
    /// another order than theirs.
    async fn change_state(
        &self,
        change: impl FnOnce(&mut PoolState) -> Result<(), ChangeError>,
    ) -> Result<MutexGuard<'_, u64>, ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        change(&mut state)?;
        self.save(&mut tried, &mut state).await?;
        Ok(tried)
    }

    /// Has a volume that is served here follow what is listed of it, if that is not what it was opened with, or followed until
    /// now: `before`. Another node may have changed it, also while it was being opened.
    pub(crate) async fn follow_listed(&self, before: &PoolVolume) {
        let mut followed = before.clone();
        // The list may change before it is followed, and another caller may follow the new one already:
        // the last caller to act follows the list of that time.
        loop {
            let state = self.state();
            let mut listed = state.volumes.iter();
            let Some(volume) = listed.find(|volume| volume.id == before.id) else {
                return;
            };
            let Some(VolumeService::Serving(fs)) = self.service(volume.id) else {
                return;
            };
            let is_followed = (followed.settings, followed.is_deleted)
                == (volume.settings, volume.is_deleted)
                && followed.tiering == volume.tiering
                && followed.encryption == volume.encryption;
            if is_followed {
                return;
            }
            if followed.settings != volume.settings {
                self.set_copies(&fs, &volume.settings).await;
                if let Err(error) = fs.set_policy(Policy::from(&volume.settings)) {
                    tracing::warn!(volume = %volume.name, %error, "the volume's new settings are not applied yet");
                }
            }
            if followed.tiering != volume.tiering {
                fs.set_tiering(tier_policy(volume.tiering.as_ref()));
            }
            if followed.is_deleted != volume.is_deleted {
                self.delete_leftovers(&fs).await;
            }
            if let Some(VolumeEncryption::Erased(_)) = volume.encryption
                && followed.encryption != volume.encryption
            {
                self.leave_erased(volume).await;
                return;
            }
            followed = volume.clone();
        }
    }

    /// Whether the pool has disks enough for a volume's protection, and those of its directories.
    pub(crate) fn require_code(&self, settings: &VolumeSettings) -> Result<(), ChangeFailure> {
        for wanted in settings.protections() {
            let code = self.store.code_for(wanted);
            code.map_err(|error| ChangeFailure::Impossible(error.to_string()))?;
        }
        Ok(())
    }

    /// Deletes a volume with its data. An exported one is refused without `force`. What volumes that began from it need stays,
    /// and is seen by nobody else; its store goes with the last volume in it.
    pub async fn volume_delete(&self, name: &VolumeName, force: bool) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.state());
        let volume = state.volume(name)?.clone();
        if !volume.exports.is_empty() && !force {
            return Err(ChangeFailure::Exported(name.clone()));
        }
        self.check_not_locked(&state, &volume)?;
        let deletion = state.delete_volume(volume.id);
        // Once the pool file says that it is gone it is: what a crash leaves, the next start removes.
        self.save(&mut tried, &mut state).await?;
        match deletion {
            Deletion::Clone { store } | Deletion::OwnVolume { store } => {
                self.publish();
                self.delete_in_store(store, volume.id).await;
            }
            Deletion::Store(store) => {
                self.close_deleted(store, name).await;
                // That takes as long as it takes, and a caller that changes something else, or opens a volume again, need not wait
                // for it: nobody gets this id any more.
                drop(tried);
                self.remove_files(store).await;
            }
        }
        tracing::info!(volume = %name, id = %volume.id, ?deletion, "volume deleted");
        Ok(())
    }

    async fn close_deleted(&self, store: VolumeId, name: &VolumeName) {
        // What closing still puts into its log is little, and counted nowhere.
        let service = self.set_service(store, None);
        self.publish();
        if let Some(VolumeService::Serving(fs)) = service {
            match self.while_it_works(&fs, fs.close()).await {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::warn!(volume = %name, %error, "the deleted volume did not close cleanly");
                }
                None => fs.abandon(),
            }
        }
        self.end_succession(store);
    }

    pub async fn exports_change(
        &self,
        change: impl FnOnce(&mut PoolState) -> Result<(), ChangeError>,
    ) -> Result<(), ChangeFailure> {
        let _turn = self.change_state(change).await?;
        self.publish();
        Ok(())
    }

    /// Disks that a volume of these settings can lose, but for data that directories ask another protection for; 0 if its
    /// protection is not possible now.
    pub fn tolerated(&self, settings: &VolumeSettings) -> u8 {
        let code = self.store.code_for(settings.protection);
        code.map_or(0, |code| code.parity())
    }

    /// How many disks the volume's best protected data can lose.
    fn tolerated_by_metadata(&self, settings: &VolumeSettings) -> u8 {
        let codes = settings.protections().map(|it| self.store.code_for(it));
        let parities = codes.map(|code| code.map_or(0, |code| code.parity()));
        parities.max().unwrap_or(0)
    }

    /// Nodes that a volume can lose with what its data and its metadata are on. Of data that no directory asks another
    /// protection for: as it is laid out when all disks work, and as it is where that is worse. `None` if the pool is on one
    /// node.
    pub fn nodes_tolerated(&self, volume: &PoolVolume) -> Option<usize> {
        let code = self.store.code_for(volume.settings.protection);
        let of_new = code.map_or(0, |code| self.store.code_survives(code).nodes);
        let of_old = self.store.crowded_nodes_survived(volume.id);
        let of_data = of_new.min(of_old.unwrap_or(usize::MAX));
        let of_metadata = || match self.service(volume.id) {
            Some(VolumeService::Serving(fs)) => self.metadata_survives(&fs),
            _ => usize::MAX,
        };
        (self.store.node_count() > 1).then(|| of_data.min(of_metadata()))
    }

    /// Nodes that can be lost so that a copy of a volume's metadata is left.
    fn metadata_survives(&self, fs: &Fs) -> usize {
        let table = self.table();
        let members = table.state.disks.iter();
        let copies: Vec<DomainPath> = members
            .filter(|disk| table.works(disk.id) && fs.meta().log().uses_disk(disk.id))
            .map(PoolDisk::domain)
            .collect();
        survives(&copies, copies.len().saturating_sub(1)).nodes
    }

    /// As [`Self::nodes_tolerated`], of all volumes with the default protection, and of a new one.
    pub fn nodes_tolerated_by_all(&self) -> Option<usize> {
        let state = self.state();
        // A caller that asks for another protection gets that.
        let is_default = |volume: &&PoolVolume| volume.settings.protection == Protection::Default;
        let volumes = state.volumes.iter().filter(is_default);
        let of_volumes = volumes.filter_map(|volume| self.nodes_tolerated(volume));
        let of_new = self.store.code_survives(self.store.default_code()).nodes;
        let least = of_volumes.fold(of_new, usize::min);
        (self.store.node_count() > 1).then_some(least)
    }

    /// Metadata survives what the pool survives, and what the safest of the volume's data survives if that is more. So many copies
    /// are wanted on disks that stay.
    pub fn metadata_copies(&self, settings: &VolumeSettings) -> usize {
        let table = self.table();
        let wanted = |places: usize| {
            1 + failures_tolerated(places).max(usize::from(self.tolerated_by_metadata(settings)))
        };
        match self.seats {
            None => wanted(table.staying_count()),
            // One on each node.
            Some(_) => {
                let nodes = table.staying_node_count();
                wanted(nodes).min(nodes.max(1))
            }
        }
    }

    /// The disks to put metadata of a volume on, or that of a new one: not draining ones or that failed. The faster kinds come
    /// first.
    pub(crate) fn meta_disks(&self, volume: Option<VolumeId>) -> MetaDisks {
        self.split_meta_disks(volume).0
    }

    /// The disks to look for metadata on: also draining ones, at the end. Until it was moved off them, they may
    /// be the only ones that know what was changed last.
    pub(crate) fn all_meta_disks(&self, volume: Option<VolumeId>) -> MetaDisks {
        let (mut disks, draining) = self.split_meta_disks(volume);
        disks.extend(draining);
        disks
    }

    /// Those that stay, and draining ones.
    fn split_meta_disks(&self, volume: Option<VolumeId>) -> (MetaDisks, MetaDisks) {
        let table = self.table();
        let disks = table.disks().into_iter();
        let disks = disks
            .filter(|disk| table.takes_metadata(disk.id(), volume))
            .map(|disk| (disk.id(), Arc::clone(disk.disk()) as Arc<dyn Disk>));
        let (staying, draining): (MetaDisks, MetaDisks) =
            disks.partition(|(id, _)| !table.is_draining(*id));
        let node = |id: DiskId| table.member(id).map(|member| member.node);
        let mut staying = taking_turns(staying, |(id, _)| node(*id));
        // Within each kind the order stays.
        staying.sort_by_cached_key(|(id, _)| {
            let kind = table.member(*id).map_or(Kind::Other, Kind::of);
            kind.with_room(|| table.space(*id))
        });
        (staying, taking_turns(draining, |(id, _)| node(*id)))
    }

    /// Disks of this node that are better for the state of a volume than the one that it is on, the best first.
    pub(crate) fn better_for_state(&self, fs: &Fs) -> Vec<DiskId> {
        let table = self.table();
        let kind = |id| table.member(id).map_or(Kind::Other, Kind::of);
        let at = kind(fs.meta().log().primary_disk());
        let failed = fs.meta().stats().failed_disks;
        let disks = self.meta_disks(Some(fs.volume())).into_iter();
        let places = disks.filter(|(id, _)| kind(*id) < at && !failed.contains(id));
        let places: Vec<MetadataDisk> = places
            .map(|(disk, _)| MetadataDisk {
                disk,
                kind: kind(disk),
                space: table.space(disk),
            })
            .collect();
        state_places::better(&places, at)
    }
}

/// The first of each node, then the second of each, and so on: the first few, which copies of the metadata are put on,
/// are on as many nodes as there are.
fn taking_turns<T, N: Ord>(disks: Vec<T>, node: impl Fn(&T) -> N) -> Vec<T> {
    let mut turns: BTreeMap<N, usize> = BTreeMap::new();
    let mut numbered: Vec<(usize, T)> = disks
        .into_iter()
        .map(|disk| {
            let turn = turns.entry(node(&disk)).or_default();
            *turn += 1;
            (*turn, disk)
        })
        .collect();
    numbered.sort_by_key(|(turn, _)| *turn);
    numbered.into_iter().map(|(_, disk)| disk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_take_turns() {
        let node = |disk: &u32| disk / 10;
        assert_eq!(taking_turns(vec![3, 1, 2], node), [3, 1, 2], "one node");
        let three = vec![10, 11, 12, 20, 21, 30];
        assert_eq!(taking_turns(three, node), [10, 20, 30, 11, 21, 12]);
    }
}
