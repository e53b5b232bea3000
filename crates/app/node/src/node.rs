//! A running node: the pool, its volumes, and the servers in front of them.
//!
//! Owns: the order of start and stop, changes of the pool and their order (one at a time: engine
//! first, then the pool file, then the exports), which volumes are served.
//! Must not know: protocols' messages, HTTP.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::{DiskId, VolumeId};
use cairn_config::{Config, ExportRule, MemoryBudget, VolumeName, VolumeSettings};
use cairn_exports::{Export, Exports, FailedVolume, Volume};
use cairn_formats::pool_file::{PoolState, PoolVolume, Stage};
use cairn_fs::{DirtyBudget, Fs, FsSettings};
use cairn_meta::settings::state_files_max;
use cairn_meta::{MetaCache, MetaError, MetaSettings, MetaStore, Succession};
use cairn_segment::{Clients, Pace, SegmentSettings, SegmentStore};
use cairn_shard::ShardDisk;
use futures_util::future::{Either, select};
use parking_lot::{Mutex, RwLock};
use prometheus::Registry;

use crate::announce::Announced;
use crate::assemble::{Missing, failures_tolerated};
use crate::convert;
use crate::disks::{PoolDisks, descriptors_max};
use crate::error::NodeError;
use crate::members::FolderWork;
use crate::metadata::{CLOSE_MAX, OpenAgain};
use crate::metrics::{Observed, VolumeNumbers};
use crate::pool_store;
use crate::rebuild::Rebuild;
use crate::scrub::Scrub;
use crate::token::OnDisks;
use crate::totals::{PastTotals, VolumeTotals};
use crate::watch::Watch;

/// The volume that a new pool begins with.
const FIRST_VOLUME: &str = "main";
/// A change of the pool that is under way when the node stops may take so long to end.
const CHANGE_END_MAX: Duration = CLOSE_MAX;
/// Part of the metadata memory that is a read cache; the rest is for write buffers.
const METADATA_CACHE_PERCENT: u64 = 60;
/// A volume has up to this many write buffers of metadata at a time.
const WRITE_BUFFERS_PER_VOLUME: u64 = 3;
const WRITE_BUFFER_BYTES_MIN: u64 = 1 << 20;
const WRITE_BUFFER_BYTES_MAX: u64 = 32 << 20;
/// Memory that one inode in the table takes, about.
const INODE_BYTES: u64 = 1 << 10;
/// What an extent in memory takes, its pointer included.
const EXTENT_BYTES: u64 = 256;

/// Disks for a volume's metadata, those to prefer first.
pub type MetaDisks = Vec<(DiskId, Arc<dyn Disk>)>;

/// A volume of the pool, served or not.
#[derive(Clone)]
pub enum VolumeService {
    Serving(Fs),
    Failed(String),
}

/// What all parts of a node share.
pub struct Inner {
    pub env: Env,
    pub config: Config,
    pub budget: MemoryBudget,
    pub started: Instant,
    pub store: Arc<SegmentStore>,
    /// The disks that are there, also draining ones.
    pub disks: RwLock<Vec<Arc<ShardDisk>>>,
    pub missing: RwLock<Vec<Missing>>,
    /// Whether the start found all disks, each with a pool file that could be read.
    pub is_whole: bool,
    /// Where the folders are that the configuration names, as of the start.
    pub named: Vec<PathBuf>,
    /// The admin token, unless the configuration names a file for it.
    pub token: Option<OnDisks>,
    pub announced: Arc<Mutex<Announced>>,
    /// Whom work in the background makes way for.
    pub clients: Arc<Clients>,
    pub scrub: Scrub,
    pub rebuild: Rebuild,
    pub watch: Watch,
    /// Disks on which metadata failed, and how: not used until the next start for that of the volume that is damaged
    /// there, or of any where the disk fails.
    pub avoided: Mutex<BTreeMap<(DiskId, Option<VolumeId>), String>>,
    /// Those who wait for a volume's metadata that failed hear through these from that which takes its place.
    successions: Mutex<BTreeMap<VolumeId, Succession>>,
    /// Volumes that could not be opened.
    pub open_again: Mutex<BTreeMap<VolumeId, OpenAgain>>,
    /// The version of the pool file that each disk is known to have.
    confirmed: Mutex<BTreeMap<DiskId, u64>>,
    /// Held while a folder becomes a disk, which may have to be emptied first.
    pub joining: tokio::sync::Mutex<()>,
    pub folder_work: FolderWork,
    pub stopping: AtomicBool,
    pub exports: Arc<Exports>,
    pub registry: Registry,
    pub meta_cache: MetaCache,
    /// Memory for written data that is not on disk yet, of all volumes together.
    pub dirty: Arc<DirtyBudget>,
    /// The pool as it was saved last.
    pub pool: ArcSwap<PoolState>,
    /// Changed by [`Self::set_service`] only, but for the end.
    pub volumes: RwLock<BTreeMap<VolumeId, VolumeService>>,
    /// What volumes did before they were opened again or deleted. Locked after `volumes`.
    past_totals: Mutex<PastTotals>,
    /// Held over a change of the pool; the number is the version last tried.
    pub changes: tokio::sync::Mutex<u64>,
}

/// Why a volume was not made.
struct MakeError {
    why: String,
    /// Something of it may be on the disks.
    has_files: bool,
}

/// Why a volume was not opened.
struct OpenError {
    why: String,
    /// The disk with the state that is damaged, if the others have all that it had.
    damaged: Option<DiskId>,
}

fn damaged_primary(meta: &MetaStore, mut disks: Vec<DiskId>) -> Option<DiskId> {
    let primary = meta.primary_disk();
    disks.retain(|id| *id != primary);
    let is_damaged = meta.failure().is_some_and(|failure| failure.is_damage());
    (is_damaged && meta.stats().is_all_on(&disks)).then_some(primary)
}

impl Inner {
    /// Makes the engine on the disks of a pool. No volume is open yet.
    pub fn new(env: Env, config: Config, pool: PoolDisks, token: Option<OnDisks>) -> Arc<Self> {
        let budget = MemoryBudget::of(config.memory_limit_bytes);
        let mut settings = SegmentSettings {
            cache_bytes: budget.record_cache_bytes,
            ..SegmentSettings::default()
        };
        let in_flight = settings.append_bytes_in_flight_max.min(budget.dirty_bytes);
        settings.append_bytes_in_flight_max = in_flight;
        let missing = pool.missing.iter().map(|entry| entry.disk.id).collect();
        let store = SegmentStore::new(env.clone(), settings, pool.disks.clone(), missing);
        for disk in pool.state.disks.iter().filter(|disk| disk.draining) {
            store.disk_draining(disk.id, true);
        }
        let cache_bytes = budget.metadata_bytes / 100 * METADATA_CACHE_PERCENT;
        let clients = Clients::new(env.clock.clone());
        let pace = |rate| Pace::new(env.clock.clone(), rate).beside(&clients);
        let scrub = Scrub::new(pace(config.scrub_bytes_per_second));
        let rebuild = Rebuild::new(pace(config.rebuild_bytes_per_second));
        Arc::new(Self {
            env,
            config,
            budget,
            started: Instant::now(),
            store,
            clients,
            scrub,
            rebuild,
            watch: pool.watch,
            avoided: Mutex::default(),
            successions: Mutex::default(),
            open_again: Mutex::default(),
            confirmed: Mutex::default(),
            joining: tokio::sync::Mutex::default(),
            folder_work: FolderWork::default(),
            stopping: AtomicBool::new(false),
            disks: RwLock::new(pool.disks),
            missing: RwLock::new(pool.missing),
            is_whole: pool.is_whole,
            named: pool.named,
            token,
            announced: Arc::default(),
            exports: Arc::new(Exports::new(Vec::new())),
            registry: Registry::new(),
            dirty: DirtyBudget::new(budget.dirty_bytes),
            meta_cache: MetaCache::new(usize::try_from(cache_bytes).unwrap_or(usize::MAX)),
            changes: tokio::sync::Mutex::new(pool.state.version),
            pool: ArcSwap::from_pointee(pool.state),
            volumes: RwLock::default(),
            past_totals: Mutex::default(),
        })
    }

    /// Opens all volumes. One that cannot be opened is reported and does not stop the others.
    pub async fn open_volumes(self: &Arc<Self>) {
        let state = self.pool.load_full();
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
        self.apply_exports(&state);
        self.remove_deleted_volumes_later(state);
    }

    /// Opens one of `count` volumes, with its metadata on `disks`, of which the first are preferred, and not on those
    /// that it left. Where what it begins with is damaged, and whole on others, it is opened on these.
    pub async fn open_volume(
        &self,
        volume: &PoolVolume,
        count: usize,
        mut disks: MetaDisks,
        left: MetaDisks,
    ) -> Result<Fs, String> {
        loop {
            let opened = self.open_on(volume, count, disks.clone(), left.clone());
            let (why, damaged) = match opened.await {
                Ok(fs) => return Ok(fs),
                Err(OpenError { why, damaged }) => (why, damaged),
            };
            let Some(damaged) = damaged else {
                return Err(why);
            };
            tracing::error!(volume = %volume.name, disk = %damaged, why, "metadata is damaged; opening the volume on other disks");
            disks.retain(|(id, _)| *id != damaged);
            let mut avoided = self.avoided.lock();
            avoided.insert((damaged, Some(volume.id)), why);
        }
    }

    async fn open_on(
        &self,
        volume: &PoolVolume,
        count: usize,
        disks: MetaDisks,
        left: MetaDisks,
    ) -> Result<Fs, OpenError> {
        let begun = Instant::now();
        let mut settings = self.meta_settings(volume.id, &volume.settings, count);
        // As many on disks that stay, whichever of draining ones have some.
        let pool = self.pool.load();
        let leaves = |id: DiskId| pool.disks.iter().any(|disk| disk.id == id && disk.draining);
        settings.copies += disks.iter().filter(|(id, _)| leaves(*id)).count();
        drop(pool);
        let ids: Vec<DiskId> = disks.iter().map(|(id, _)| *id).collect();
        let opened =
            MetaStore::open_without(self.env.clone(), settings, volume.id, disks, left).await;
        let (meta, recovered) = opened.map_err(|error| OpenError {
            why: error.to_string(),
            damaged: None,
        })?;
        tracing::info!(
            volume = %volume.name,
            epoch = recovered.epoch.0,
            replayed = recovered.replayed_entries,
            journaled = recovered.journal.len(),
            took_ms = begun.elapsed().as_millis(),
            "metadata recovered"
        );
        let settings = self.fs_settings(volume, count);
        let store = Arc::clone(&self.store);
        let opened = Fs::open(settings, Arc::clone(&meta), recovered.journal, store).await;
        let fs = opened.map_err(|error| OpenError {
            why: error.to_string(),
            damaged: damaged_primary(&meta, ids),
        })?;
        tracing::info!(
            volume = %volume.name,
            took_ms = begun.elapsed().as_millis(),
            "volume opened"
        );
        self.sweep(volume.id);
        Ok(fs)
    }

    /// Deletes, in the background, shards that a crash left without a reference.
    fn sweep(&self, volume: VolumeId) {
        let store = Arc::clone(&self.store);
        let task = async move {
            match store.sweep(volume).await {
                Ok(swept) if swept.shards_removed > 0 => {
                    tracing::info!(%volume, shards = swept.shards_removed, "unreferenced shards deleted");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%volume, %error, "looking for unreferenced shards failed")
                }
            }
        };
        self.env.spawner.spawn("sweep", Box::pin(task));
    }

    /// Makes a volume and serves it. `exports` are its first rules.
    pub async fn volume_create(
        &self,
        name: &VolumeName,
        settings: VolumeSettings,
        exports: Vec<ExportRule>,
    ) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.pool.load());
        state.check_new(name)?;
        self.store
            .code_for(convert::protection(settings.protection))
            .map_err(|error| ChangeFailure::Impossible(error.to_string()))?;
        // Saved before it is used: a crash must not let the next volume find this one's files.
        let id = state.take_volume_id();
        self.save(&mut tried, &mut state).await?;

        let volume = PoolVolume {
            id,
            name: name.clone(),
            settings,
            created: self.env.clock.now(),
            exports,
        };
        let fs = match self.make_volume(&volume, state.volumes.len() + 1).await {
            Ok(fs) => fs,
            Err(MakeError { why, has_files }) => {
                drop(tried);
                if has_files {
                    // Each try would leave some more on a disk that is full.
                    self.remove_files(id).await;
                }
                return Err(ChangeFailure::Engine(why));
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
        self.apply_exports(&state);
        tracing::info!(volume = %name, %id, "volume made");
        Ok(())
    }

    /// `count`: volumes that there will be.
    async fn make_volume(&self, volume: &PoolVolume, count: usize) -> Result<Fs, MakeError> {
        let settings = self.meta_settings(volume.id, &volume.settings, count);
        let disks = self.meta_disks(None);
        let meta = MetaStore::create(self.env.clone(), settings, volume.id, disks).await;
        let meta = meta.map_err(|error| MakeError {
            // Those of somebody else are none of this one's.
            has_files: !matches!(error, MetaError::Exists { .. }),
            why: error.to_string(),
        })?;
        let settings = self.fs_settings(volume, count);
        let fs = Fs::format(settings, meta, Arc::clone(&self.store)).await;
        fs.map_err(|error| MakeError {
            has_files: true,
            why: error.to_string(),
        })
    }

    pub async fn volume_set(
        &self,
        name: &VolumeName,
        change: impl FnOnce(&mut VolumeSettings),
    ) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.pool.load());
        let volume = state.volume_mut(name)?;
        change(&mut volume.settings);
        let (id, settings) = (volume.id, volume.settings);
        let policy = convert::policy(&settings);
        self.store
            .code_for(policy.protection)
            .map_err(|error| ChangeFailure::Impossible(error.to_string()))?;
        self.save(&mut tried, &mut state).await?;
        if let Some(VolumeService::Serving(fs)) = self.service(id) {
            // First: data must not be safer than the metadata that it is found by.
            self.set_copies(&fs, &settings).await;
            fs.set_policy(policy)
                .map_err(|error| ChangeFailure::Impossible(error.to_string()))?;
        }
        Ok(())
    }

    /// Deletes a volume with its data. An exported one is refused without `force`.
    pub async fn volume_delete(&self, name: &VolumeName, force: bool) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.pool.load());
        let volume = state.volume(name)?;
        if !volume.exports.is_empty() && !force {
            return Err(ChangeFailure::Exported(name.clone()));
        }
        let id = volume.id;
        state.delete_volume(id);
        // Once the pool file says that it is gone it is: what a crash leaves, the next start removes.
        self.save(&mut tried, &mut state).await?;
        // What closing still puts into its log is little, and counted nowhere.
        let service = self.set_service(id, None);
        self.apply_exports(&state);
        if let Some(VolumeService::Serving(fs)) = service {
            match self.while_it_works(&fs, fs.close()).await {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::warn!(volume = %name, %error, "the deleted volume did not close cleanly");
                }
                None => fs.abandon(),
            }
        }
        if let Some(succession) = { self.successions.lock().remove(&id) } {
            succession.end();
        }
        // That takes as long as it takes, and whoever changes something else, or opens a volume again, need not wait
        // for it: nobody gets this id any more.
        drop(tried);
        self.remove_files(id).await;
        tracing::info!(volume = %name, %id, "volume deleted");
        Ok(())
    }

    pub async fn exports_change(
        &self,
        change: impl FnOnce(&mut PoolState) -> Result<(), cairn_formats::pool_file::ChangeError>,
    ) -> Result<(), ChangeFailure> {
        let mut tried = self.begin_change().await?;
        let mut state = PoolState::clone(&self.pool.load());
        change(&mut state)?;
        self.save(&mut tried, &mut state).await?;
        self.apply_exports(&state);
        Ok(())
    }

    /// Makes the first volume of a new pool. A first start that broke off before is finished.
    pub async fn ensure_first_volume(&self) -> Result<(), NodeError> {
        let state = self.pool.load_full();
        // Who deletes the first volume does not get it back: the stage tells.
        match state.stage {
            Stage::Forming | Stage::Empty => {}
            Stage::InUse => return Ok(()),
        }
        let first_volume = |why: String| NodeError::FirstVolume {
            name: FIRST_VOLUME.to_owned(),
            why,
        };
        let name: VolumeName = FIRST_VOLUME
            .parse()
            .map_err(|error: cairn_config::WordError| first_volume(error.to_string()))?;
        self.volume_create(&name, VolumeSettings::default(), ExportRule::this_machine())
            .await
            .map_err(|error| first_volume(error.to_string()))
    }

    /// Closes all volumes: flushes, seals, makes the metadata whole. The node stops with that.
    pub async fn close_volumes(&self) {
        // First: a change that saw volumes go without knowing why would take their disks for empty.
        self.stopping.store(true, Ordering::Release);
        // One that is under way ends, most likely because it finds that the node stops. One that hangs is not waited
        // for: it will find that, too.
        let changes = pin!(self.changes.lock());
        let _changes = match select(changes, self.env.clock.sleep(CHANGE_END_MAX)).await {
            Either::Left((changes, _)) => Some(changes),
            Either::Right(_) => None,
        };
        // No volume is opened again from here on.
        for succession in self.successions.lock().values() {
            succession.end();
        }
        self.exports.replace(Vec::new());
        let volumes = std::mem::take(&mut *self.volumes.write());
        let closing = volumes
            .into_iter()
            .filter_map(|(id, service)| match service {
                VolumeService::Serving(fs) => Some(async move {
                    let closed = self.while_it_works(&fs, fs.close()).await;
                    (id, closed)
                }),
                VolumeService::Failed(_) => None,
            });
        for (id, result) in futures_util::future::join_all(closing).await {
            match result {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::error!(%id, %error, "the volume did not close cleanly; the next start recovers it");
                }
                None => {
                    tracing::error!(%id, "the volume does not close, because a disk does not answer or the log finds no space; the next start recovers it");
                }
            }
        }
    }

    pub fn service(&self, id: VolumeId) -> Option<VolumeService> {
        self.volumes.read().get(&id).cloned()
    }

    /// Does the same again and again, so long after it was done last; ends with the node, which `work` must not keep
    /// for longer than it needs it.
    pub fn every<Work>(
        self: &Arc<Self>,
        name: &'static str,
        interval: Duration,
        work: impl Fn(Arc<Self>) -> Work + Send + 'static,
    ) where
        Work: Future<Output = ()> + Send + 'static,
    {
        let clock = Arc::clone(&self.env.clock);
        let node = Arc::downgrade(self);
        let task = async move {
            loop {
                clock.sleep(interval).await;
                let Some(inner) = node.upgrade() else { return };
                if inner.is_stopping() {
                    return;
                }
                work(inner).await;
            }
        };
        self.env.spawner.spawn(name, Box::pin(task));
    }

    /// Serves a volume, or says why not, in the place of what was there until now, which is returned; `None` for a
    /// volume that is deleted. What the one before did is kept, so that counters go on from there.
    pub fn set_service(
        &self,
        id: VolumeId,
        service: Option<VolumeService>,
    ) -> Option<VolumeService> {
        let is_deleted = service.is_none();
        let mut volumes = self.volumes.write();
        let before = match service {
            Some(service) => volumes.insert(id, service),
            None => volumes.remove(&id),
        };
        // Under the lock, so that nobody counts it twice or not at all.
        let mut past = self.past_totals.lock();
        if let Some(VolumeService::Serving(fs)) = &before {
            past.note_closed(id, VolumeTotals::new(&fs.stats(), &fs.meta().stats()));
        }
        if is_deleted {
            past.note_deleted(id);
        }
        before
    }

    /// Disks that a volume of these settings can lose; 0 if its protection is not possible now.
    pub fn tolerated(&self, settings: &VolumeSettings) -> u8 {
        self.store
            .code_for(convert::protection(settings.protection))
            .map_or(0, |code| code.parity())
    }

    /// Writes the state down as the pool's, and remembers which disks have it.
    pub async fn save(&self, tried: &mut u64, state: &mut PoolState) -> Result<(), ChangeFailure> {
        state.check_len()?;
        let saved = self.save_once(tried, state).await;
        if saved.is_err() {
            // Some disks may have what was refused, and nobody may take that for the pool at the next start.
            let mut before = PoolState::clone(&self.pool.load());
            if let Err(error) = self.save_once(tried, &mut before).await {
                tracing::error!(%error, "a change of the pool was refused and may be on some disks");
            }
        }
        saved
    }

    async fn save_once(&self, tried: &mut u64, state: &mut PoolState) -> Result<(), ChangeFailure> {
        // Above what was tried, not only what was saved: a failed save may be on some disks.
        *tried = tried.saturating_add(1);
        state.version = *tried;
        for disk in &mut state.disks {
            let confirmed = self.confirmed.lock().get(&disk.id).copied();
            disk.seen = disk.seen.max(confirmed.unwrap_or(0));
        }
        let disks = self.disks();
        let disks = disks
            .iter()
            .map(|disk| (disk.id(), Arc::clone(disk.disk())));
        let disks: Vec<(DiskId, Arc<dyn Disk>)> = disks.collect();
        let saved = pool_store::save(&disks, state, &self.pool.load()).await?;
        {
            let mut confirmed = self.confirmed.lock();
            let have_it = disks.iter().zip(saved).filter(|(_, saved)| *saved);
            confirmed.extend(have_it.map(|((id, _), _)| (*id, state.version)));
        }
        self.pool.store(Arc::new(state.clone()));
        Ok(())
    }

    /// Writes the pool file anew, so that a disk which comes back with an older one is known for a copy.
    pub async fn renew(&self) {
        let mut tried = self.changes.lock().await;
        let mut state = PoolState::clone(&self.pool.load());
        if let Err(error) = self.save(&mut tried, &mut state).await {
            tracing::warn!(%error, "the pool file was not renewed");
        }
    }

    pub fn apply_exports(&self, state: &PoolState) {
        let exports = state
            .volumes
            .iter()
            .filter(|volume| !volume.exports.is_empty())
            .map(|volume| Export {
                volume: match self.service(volume.id) {
                    Some(VolumeService::Serving(fs)) => Volume::Serving(fs),
                    Some(VolumeService::Failed(_)) | None => Volume::Failed(FailedVolume {
                        volume: volume.id,
                        name: volume.name.to_string(),
                    }),
                },
                rules: volume.exports.iter().map(convert::client_rule).collect(),
            })
            .collect();
        self.exports.replace(exports);
    }

    /// The disks to put metadata of a volume on, or that of a new one: not draining ones or that failed.
    pub fn meta_disks(&self, volume: Option<VolumeId>) -> MetaDisks {
        self.split_meta_disks(volume).0
    }

    /// The disks to look for metadata on: also draining ones, at the end. Until it was moved off them, they may
    /// be the only ones that know what was changed last.
    pub fn all_meta_disks(&self, volume: Option<VolumeId>) -> MetaDisks {
        let (mut disks, draining) = self.split_meta_disks(volume);
        disks.extend(draining);
        disks
    }

    /// Those that stay, and draining ones.
    fn split_meta_disks(&self, volume: Option<VolumeId>) -> (MetaDisks, MetaDisks) {
        let pool = self.pool.load();
        let avoided = self.avoided.lock();
        let is_draining = |id| pool.disks.iter().any(|disk| disk.id == id && disk.draining);
        let is_avoided =
            |id| avoided.contains_key(&(id, None)) || avoided.contains_key(&(id, volume));
        let disks = self.disks();
        let disks = disks
            .iter()
            .filter(|disk| !is_avoided(disk.id()) && !disk.health().failed)
            .map(|disk| (disk.id(), Arc::clone(disk.disk())));
        disks.partition(|(id, _)| !is_draining(*id))
    }

    /// Metadata survives what the pool survives, and what the volume's data survives if that is more. So many copies
    /// are wanted on disks that stay.
    pub fn metadata_copies(&self, settings: &VolumeSettings) -> usize {
        let pool = self.pool.load();
        let members = pool.disks.iter().filter(|disk| !disk.draining).count();
        1 + failures_tolerated(members).max(usize::from(self.tolerated(settings)))
    }

    fn meta_settings(
        &self,
        volume: VolumeId,
        settings: &VolumeSettings,
        count: usize,
    ) -> MetaSettings {
        let copies = self.metadata_copies(settings);
        let mut meta = MetaSettings::new(copies, self.meta_cache.clone());
        let buffers = self.budget.metadata_bytes / 100 * (100 - METADATA_CACHE_PERCENT);
        let buffer = buffers / (WRITE_BUFFERS_PER_VOLUME * count.max(1) as u64);
        let buffer = buffer.clamp(WRITE_BUFFER_BYTES_MIN, WRITE_BUFFER_BYTES_MAX);
        meta.write_buffer_bytes = usize::try_from(buffer).unwrap_or(usize::MAX);
        meta.open_files_max = state_files_max(descriptors_max(), count);
        let mut successions = self.successions.lock();
        meta.succession = Some(successions.entry(volume).or_default().clone());
        meta
    }

    fn fs_settings(&self, volume: &PoolVolume, count: usize) -> FsSettings {
        let mut settings = FsSettings::new(self.env.clone(), volume.id, volume.name.as_str());
        settings.policy = convert::policy(&volume.settings);
        settings.dirty = Arc::clone(&self.dirty);
        let share = self.budget.rest_bytes / count.max(1) as u64;
        let most = |bytes: u64, each: u64| usize::try_from(bytes / each).unwrap_or(usize::MAX);
        settings.inodes_max = most(share / 2, INODE_BYTES).clamp(4096, 128 << 10);
        settings.extents_max = most(share / 2, EXTENT_BYTES).clamp(64 << 10, 4 << 20);
        settings
    }

    /// Everything that metrics show.
    pub fn observe(&self) -> Observed {
        let state = self.pool.load_full();
        // As of one moment: `set_service` changes both at once.
        let (services, past) = {
            let volumes = self.volumes.read();
            (volumes.clone(), self.past_totals.lock().clone())
        };
        let mut totals_of_all = past.all();
        let mut volumes = Vec::new();
        let mut troubled_count = 0;
        for (id, service) in &services {
            let VolumeService::Serving(fs) = service else {
                continue;
            };
            let (stats, meta) = (fs.stats(), fs.meta().stats());
            let since_open = VolumeTotals::new(&stats, &meta);
            totals_of_all += since_open;
            // One that is being deleted is not listed any more.
            let Some(volume) = state.volumes.iter().find(|volume| volume.id == *id) else {
                continue;
            };
            let mut totals = past.of(*id);
            totals += since_open;
            troubled_count += usize::from(fs.meta().failure().is_some());
            let counters = fs.meta().counters();
            volumes.push((
                volume.name.to_string(),
                VolumeNumbers {
                    fs: stats,
                    backlog: fs.gc_backlog(),
                    meta,
                    totals,
                    inodes: counters.inodes,
                    file_bytes: counters.file_bytes,
                    stored_bytes: counters.stored_bytes,
                    segments: counters.segments,
                },
            ));
        }
        Observed {
            uptime_seconds: self.uptime().as_secs(),
            memory: self.budget,
            memory_limit_bytes: self.config.memory_limit_bytes,
            metadata_cache_bytes: self.meta_cache.used_bytes() as u64,
            segments: self.store.stats(),
            disks: self.store.disk_status(),
            scrub: self.scrub_view(),
            rebuild: self.rebuild_view(),
            volumes_failed: (state.volumes.len() - volumes.len() + troubled_count) as u64,
            volumes,
            totals_of_all,
        }
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Why a change of the pool was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeFailure {
    #[error(transparent)]
    Refused(#[from] cairn_formats::pool_file::ChangeError),
    #[error("there is no disk \"{0}\" in the pool")]
    NoDisk(String),
    #[error("the volume \"{0}\" is exported")]
    Exported(VolumeName),
    /// The disks do not allow it.
    #[error("{0}")]
    Impossible(String),
    #[error(transparent)]
    Save(#[from] NodeError),
    #[error("{0}")]
    Engine(String),
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::lock_wait::open_pool_in_time;

    /// Three disks in a folder.
    pub fn disk_paths(root: &Path) -> Vec<PathBuf> {
        let names = ["disk0", "disk1", "disk2"].into_iter();
        names.map(|name| root.join(name)).collect()
    }

    /// A node on these disks, without servers.
    pub async fn start(root: &Path, env: Env) -> Arc<Inner> {
        let settings = cairn_config::Settings {
            data: disk_paths(root),
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        // What an earlier one of this process leaves in the background may take a moment to end.
        let pool = open_pool_in_time(&env, &config).await.unwrap();
        let inner = Inner::new(env, config, pool, None);
        inner.open_volumes().await;
        inner.ensure_first_volume().await.unwrap();
        inner
    }
}
