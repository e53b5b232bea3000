//! The pool that is served: its table of disks, its volumes, and changes of both, one at a time.
//!
//! Owns: the order of a change (the state is saved, then the engine is told), which volumes are served.
//! Must not know: why something changes.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use cairn_base::disk::Disk;
use cairn_base::env::{BoxFuture, Env};
use cairn_base::jobs::{Job, Outcome};
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Media, PoolId, VolumeId};
use cairn_formats::settings::VolumeName;
use cairn_fs::{Fs, FsSettings};
use cairn_keys::MasterKeys;
use cairn_meta::{MetaSettings, Succession};
use cairn_segment::{Clients, Pace, Rate, SegmentSettings, SegmentStore};
use cairn_shard::ShardDisk;
use futures_util::future::{Either, join_all, select};
use parking_lot::{Mutex, RwLock};
use tokio::sync::MutexGuard;

use crate::ballast::RoomSeen;
use crate::encryption::PoolSecrets;
use crate::executor::Rebuild;
use crate::metadata::{CLOSE_MAX, OpenAgain};
use crate::open::OpenedPool;
use crate::planner::Planner;
use crate::scrub::Scrub;
use crate::seats::Seats;
use crate::spread::Spreading;
use crate::table::Table;
use crate::tiers::{HostTier, Tiers, no_tiers};
use crate::totals::{PastTotals, VolumeTotals};
use crate::truth::{Holder, SaveError, Truth, Unanswered};
use crate::watch::Watch;
use cairn_formats::pool_file::{ChangeError, PoolDisk, PoolState, PoolTier, PoolVolume};

/// A change of the pool that is under way when it ends may take so long.
const CHANGE_END_MAX: Duration = CLOSE_MAX;
/// The beginning of an id must be so long to stand for it.
const ID_DIGITS_MIN: usize = 4;

/// Disks for a volume's metadata, those to prefer first.
pub type MetaDisks = Vec<(DiskId, Arc<dyn Disk>)>;

/// What the pool asks of the program that it runs in.
pub trait Host: Send + Sync + 'static {
    /// Settings for a volume's metadata with so many copies, as one of `count` volumes.
    fn meta_settings(&self, volume: &PoolVolume, copies: usize, count: usize) -> MetaSettings;

    fn fs_settings(&self, volume: &PoolVolume, count: usize) -> FsSettings;

    /// What the keys of encrypted volumes are wrapped with, as far as it is known now.
    fn master_keys(&self) -> MasterKeys {
        MasterKeys::default()
    }

    /// Why secrets are not wrapped, of a pool that has no key for that: it is to have master keys. `None`: it is not, so that
    /// secrets are kept readable.
    fn why_unwrapped(&self) -> Option<String> {
        None
    }

    /// Which volumes are served, and to whom, has changed.
    fn publish(&self, _state: &PoolState, _volumes: &BTreeMap<VolumeId, VolumeService>) {}

    /// Classes of service, or which volumes are in them, have changed.
    fn classes(&self, _state: &PoolState) {}

    /// Whether the pool would be found without a disk at the next start; `others` are the members that work beside it.
    fn may_forget(&self, _disk: &PoolDisk, _others: &[&PoolDisk]) -> Result<(), String> {
        Ok(())
    }

    /// A replaced disk left the pool by itself.
    fn disk_left(&self, _disk: Option<Arc<ShardDisk>>) {}

    /// Disks came or left: how many there are now.
    fn disks_changed(&self, _disks: &[Arc<ShardDisk>], _members: usize) {}

    /// Deletes what is left of a volume's metadata on these disks.
    fn remove_metadata(
        &self,
        _disks: Vec<Arc<dyn Disk>>,
        _volume: VolumeId,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    /// Volumes whose metadata has files on a disk, also of volumes that are no more; `None` if the disk does not answer.
    fn volumes_with_metadata<'a>(
        &'a self,
        _disk: &'a Arc<dyn Disk>,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<VolumeId>>> + Send + 'a>> {
        Box::pin(std::future::ready(Some(Vec::new())))
    }

    /// Makes ready to use a tier.
    fn open_tier(
        &self,
        pool: PoolId,
        tier: &PoolTier,
    ) -> BoxFuture<Result<Arc<dyn HostTier>, String>> {
        no_tiers(pool, tier)
    }

    /// A step of a move of a shard was made.
    fn move_step(&self) {}

    /// How volumes come to this node, if several nodes share the pool.
    fn seats(&self) -> Option<Arc<dyn Seats>> {
        None
    }
}

#[derive(Clone, Debug)]
pub struct PoolSettings {
    pub segments: SegmentSettings,
    /// A lost disk is waited for so long before its data is rebuilt.
    pub rebuild_delay: Duration,
    /// Most bytes per second that are moved or rebuilt; 0 for no limit.
    pub rebuild_bytes_per_second: u64,
    /// Most bytes per second that a scrub reads unless it is told otherwise; 0 for no limit.
    pub scrub_bytes_per_second: u64,
}

/// A volume of the pool, served or not.
#[derive(Clone)]
pub enum VolumeService {
    Serving(Fs),
    Failed(String),
}

pub struct Pool {
    pub env: Env,
    pub store: Arc<SegmentStore>,
    pub watch: Watch,
    /// What secrets are wrapped with that lie in volumes.
    pub(crate) secrets: Arc<PoolSecrets>,
    /// Whom work in the background makes way for.
    pub clients: Arc<Clients>,
    /// Whether the start found all disks, each with a pool file that could be read.
    pub is_whole: bool,
    pub rebuild: Rebuild,
    pub scrub: Scrub,
    pub(crate) spreading: Spreading,
    /// What all work in the background keeps to together: the class that is for it.
    pub(crate) internal: Arc<Rate>,
    /// Of rewriting segments with garbage.
    pub(crate) collection_pace: Arc<Pace>,
    /// At which files of deleted volumes go.
    pub(crate) deletion_pace: Arc<Pace>,
    /// Of data that is converted to what policies say.
    pub(crate) apply_pace: Arc<Pace>,
    /// Of segments on their way to tiers and back.
    pub(crate) tier_pace: Arc<Pace>,
    pub(crate) tiers: Tiers,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) seats: Option<Arc<dyn Seats>>,
    truth: Arc<dyn Truth>,
    table: ArcSwap<Table>,
    /// Held while another table is made.
    table_change: Mutex<()>,
    /// Changed by [`Self::set_service`] only, but for the end.
    volumes: RwLock<BTreeMap<VolumeId, VolumeService>>,
    /// What volumes did before they were opened again or deleted. Locked after `volumes`.
    past_totals: Mutex<PastTotals>,
    /// Volumes that could not be opened.
    pub(crate) open_again: Mutex<BTreeMap<VolumeId, OpenAgain>>,
    /// Of the disks of this server, as of the last look.
    pub(crate) room: Mutex<RoomSeen>,
    /// Volumes whose state could not be had on another disk, each with when that was.
    pub(crate) state_stayed: Mutex<BTreeMap<VolumeId, Duration>>,
    /// Volumes that are closed and opened again to be restored.
    pub(crate) restoring: Mutex<BTreeSet<VolumeId>>,
    /// Those who wait for a volume's metadata that failed hear through these from that which takes its place.
    successions: Mutex<BTreeMap<VolumeId, Succession>>,
    /// The version of the state that each disk is known to have.
    confirmed: Mutex<BTreeMap<DiskId, u64>>,
    unanswered: Unanswered,
    /// Disks of other nodes that counted as failed when they were looked at, until they are used again and were swept.
    pub(crate) failed_elsewhere: Mutex<BTreeSet<DiskId>>,
    /// Held over a change of the pool; the number is the version last tried.
    changes: tokio::sync::Mutex<u64>,
    is_stopping: AtomicBool,
}

impl Pool {
    /// The engine on the disks of a pool. No volume is open yet.
    pub fn new(
        env: Env,
        settings: PoolSettings,
        host: Arc<dyn Host>,
        truth: Arc<dyn Truth>,
        opened: OpenedPool,
    ) -> Arc<Self> {
        let OpenedPool {
            state,
            disks,
            missing,
            is_whole,
            watch,
            ..
        } = opened;
        let version = state.version;
        let seats = host.seats();
        let table = Table::new(Arc::new(state), disks.clone(), &missing);
        let away = missing.iter().map(|entry| entry.disk.id).collect();
        let store = SegmentStore::new(env.clone(), settings.segments.clone(), disks, away);
        store.set_members(&table.roles());
        let clients = Clients::new(env.clock.clone());
        let internal = Arc::new(Rate::new(env.clock.clone(), table.state.internal_rate()));
        let within = |rate| Pace::new(env.clock.clone(), rate).within(&internal);
        let pace = within(settings.rebuild_bytes_per_second).beside(&clients);
        let scrub = Scrub::new(within(settings.scrub_bytes_per_second).beside(&clients));
        // Files are only deleted: no bytes are read or written.
        let deletion_pace = Pace::new(env.clock.clone(), 0).beside(&clients);
        let apply_pace = within(0).beside(&clients);
        let tier_pace = within(0).beside(&clients);
        // Writers wait for it where they must, so it makes no way for them.
        let collection_pace = within(0);
        let rebuild = Rebuild::new(pace, Planner::new(settings.rebuild_delay));
        Arc::new_cyclic(|pool| Self {
            secrets: Arc::new(PoolSecrets::of(pool.clone())),
            env,
            store,
            watch,
            clients,
            is_whole,
            rebuild,
            scrub,
            spreading: Spreading::default(),
            internal,
            collection_pace: Arc::new(collection_pace),
            deletion_pace: Arc::new(deletion_pace),
            apply_pace: Arc::new(apply_pace),
            tier_pace: Arc::new(tier_pace),
            tiers: Tiers::default(),
            host,
            seats,
            truth,
            table: ArcSwap::from_pointee(table),
            table_change: Mutex::default(),
            volumes: RwLock::default(),
            past_totals: Mutex::default(),
            open_again: Mutex::default(),
            room: Mutex::default(),
            state_stayed: Mutex::default(),
            restoring: Mutex::default(),
            successions: Mutex::default(),
            confirmed: Mutex::default(),
            unanswered: Unanswered::default(),
            failed_elsewhere: Mutex::default(),
            changes: tokio::sync::Mutex::new(version),
            is_stopping: AtomicBool::new(false),
        })
    }

    pub fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// The pool as it was saved last.
    pub fn state(&self) -> Arc<PoolState> {
        Arc::clone(&self.table.load().state)
    }

    /// Bytes that work in the background has read or written so far.
    pub fn internal_bytes(&self) -> u64 {
        self.internal.spent_bytes()
    }

    /// The disks that are there, also draining ones and ones that failed.
    pub fn disks(&self) -> Vec<Arc<ShardDisk>> {
        self.table.load().disks()
    }

    /// Puts another table in the place of this one. The only way in which `segment` hears of disks.
    pub(crate) fn change_table<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let _alone = self.table_change.lock();
        let mut table = Table::clone(&self.table.load());
        let result = change(&mut table);
        let roles = table.roles();
        self.internal
            .set_bytes_per_second(table.state.internal_rate());
        self.table.store(Arc::new(table));
        self.store.set_members(&roles);
        result
    }

    /// Does without a disk from now on, until the next start. The only way in which a disk is faulted.
    pub(crate) fn put_out(&self, id: DiskId, why: String) {
        self.change_table(|table| table.put_out(id, why));
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Begins a change of the pool, which goes on alone until what this returns is dropped. None begins any more when
    /// the pool ends: its volumes are closed then.
    pub async fn begin_change(&self) -> Result<MutexGuard<'_, u64>, ChangeFailure> {
        let tried = self.changes.lock().await;
        self.require_running()?;
        Ok(tried)
    }

    /// As [`Self::begin_change`], also when the pool ends.
    pub(crate) async fn changes(&self) -> MutexGuard<'_, u64> {
        self.changes.lock().await
    }

    pub(crate) fn require_running(&self) -> Result<(), ChangeFailure> {
        match self.is_stopping() {
            false => Ok(()),
            true => Err(ChangeFailure::Impossible(
                "the server is stopping: try again once it is back".to_owned(),
            )),
        }
    }

    /// The disk that the beginning of an id means.
    pub fn find_disk(&self, words: &str) -> Result<PoolDisk, ChangeFailure> {
        let state = self.state();
        let is_meant = |disk: &&PoolDisk| disk.id.to_string().starts_with(words);
        let mut found = state.disks.iter().filter(is_meant);
        match (found.next(), found.next()) {
            (Some(disk), None) if words.len() >= ID_DIGITS_MIN => Ok(disk.clone()),
            _ => Err(ChangeFailure::NoDisk(words.to_owned())),
        }
    }

    /// Saves a state as the pool's, and remembers which disks have it.
    pub async fn save(&self, tried: &mut u64, state: &mut PoolState) -> Result<(), ChangeFailure> {
        state.check_len()?;
        let saved = self.save_once(tried, state).await;
        if saved.is_err() {
            // Some disks may have what was refused, and nobody may take that for the pool at the next start.
            let mut before = PoolState::clone(&self.state());
            if let Err(error) = self.save_once(tried, &mut before).await {
                tracing::error!(%error, "a change of the pool was refused, but may be on some disks");
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
        let holder =
            |disk: &Arc<ShardDisk>| Holder::watched(disk, &self.env.spawner, &self.unanswered);
        let disks: Vec<Holder> = disks.iter().map(holder).collect();
        let before = self.state();
        let mut saved = self.truth.save(&disks, state, &before).await;
        // Deleting a volume is such a change, too.
        if saved.is_err() && self.make_room_to_save().await {
            saved = self.truth.save(&disks, state, &before).await;
        }
        let saved = saved?;
        {
            let mut confirmed = self.confirmed.lock();
            let have_it = disks.iter().zip(saved).filter(|(_, saved)| *saved);
            confirmed.extend(have_it.map(|(holder, _)| (holder.id, state.version)));
        }
        let state = Arc::new(state.clone());
        self.change_table(|table| table.state = state);
        Ok(())
    }

    /// Saves the state once more, so that a disk which comes back with an older one is known for a copy.
    pub async fn renew(&self) {
        let mut tried = self.changes.lock().await;
        let mut state = PoolState::clone(&self.state());
        if let Err(error) = self.save(&mut tried, &mut state).await {
            tracing::warn!(%error, "the pool file could not be renewed");
        }
    }

    /// Forgets of disks that came back that they hold nothing: before anything is put on them, so that they are missed
    /// when they are gone again.
    pub async fn note_returned(&self) -> Result<(), ChangeFailure> {
        let table = self.table();
        let is_back = |disk: &PoolDisk| {
            let is_told = !planted::is(Bug::ReturnedDiskStillNotedEmpty);
            disk.holds_nothing && table.disk(disk.id).is_some() && is_told
        };
        if !table.state.disks.iter().any(is_back) {
            return Ok(());
        }
        let mut tried = self.changes.lock().await;
        let mut state = PoolState::clone(&self.state());
        for disk in state.disks.iter_mut().filter(|disk| is_back(disk)) {
            disk.holds_nothing = false;
        }
        self.save(&mut tried, &mut state).await
    }

    /// A volume, or a store, also one whose own volume is deleted.
    pub fn service(&self, id: VolumeId) -> Option<VolumeService> {
        let found = self.volumes.read().get(&id).cloned();
        found.or_else(|| self.clone_service(id))
    }

    pub fn services(&self) -> BTreeMap<VolumeId, VolumeService> {
        self.volumes.read().clone()
    }

    /// Those of all volumes: also clones, which are in the stores of others, and no store whose own volume is deleted.
    pub fn services_with_clones(&self) -> BTreeMap<VolumeId, VolumeService> {
        let mut services = self.services();
        let state = self.state();
        for store in state.volumes.iter().filter(|store| store.is_deleted) {
            services.remove(&store.id);
        }
        for clone in &state.clones {
            let id = clone.volume.id;
            services.extend(self.clone_service(id).map(|service| (id, service)));
        }
        services
    }

    /// What a volume did before it was opened the last time.
    pub fn past_totals_of(&self, id: VolumeId) -> VolumeTotals {
        self.past_totals.lock().of(id)
    }

    /// As of one moment: [`Self::set_service`] changes both at once.
    pub fn services_and_totals(&self) -> (BTreeMap<VolumeId, VolumeService>, PastTotals) {
        let volumes = self.volumes.read();
        (volumes.clone(), self.past_totals.lock().clone())
    }

    pub fn serving_all(&self) -> Vec<Fs> {
        let services = self.volumes.read();
        let serving = services.values().filter_map(|service| match service {
            VolumeService::Serving(fs) => Some(fs.clone()),
            VolumeService::Failed(_) => None,
        });
        serving.collect()
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
            self.state_stayed.lock().remove(&id);
        }
        before
    }

    pub(crate) fn succession(&self, id: VolumeId) -> Succession {
        self.successions.lock().entry(id).or_default().clone()
    }

    /// Nothing takes the place of a volume's metadata any more.
    pub(crate) fn end_succession(&self, id: VolumeId) {
        let succession = self.successions.lock().remove(&id);
        if let Some(succession) = succession {
            succession.end();
        }
    }

    /// Tells the host which volumes are served.
    pub fn publish(&self) {
        self.host
            .publish(&self.state(), &self.services_with_clones());
    }

    /// Closes all volumes: flushes, seals, makes the metadata whole. The pool ends with that. `before`: what ends with
    /// the last change.
    pub async fn close_volumes(&self, before: impl FnOnce()) {
        // First: a change that saw volumes go without knowing why would take their disks for empty.
        self.stop();
        // One that is under way ends, most likely because it finds that the pool ends. One that hangs is not waited
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
        before();
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
        for (id, result) in join_all(closing).await {
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

    /// Starts a background job that ends with the pool, which `work` must not keep for longer than a step needs it.
    pub fn start_job<Stepping>(
        self: &Arc<Self>,
        job: Job,
        work: impl FnMut(Arc<Self>) -> Stepping + Send + 'static,
    ) where
        Stepping: Future<Output: Outcome> + Send + 'static,
    {
        let pool = Arc::downgrade(self);
        let owner = move || pool.upgrade().filter(|pool| !pool.is_stopping());
        job.start_on(&self.env, owner, work);
    }

    /// Starts a job with a step in each `interval`, as [`Self::start_job`] does.
    pub fn every<Stepping>(
        self: &Arc<Self>,
        name: &'static str,
        interval: Duration,
        work: impl FnMut(Arc<Self>) -> Stepping + Send + 'static,
    ) where
        Stepping: Future<Output: Outcome> + Send + 'static,
    {
        self.start_job(Job::every(name, interval), work);
    }
}

/// Why a change of the pool was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeFailure {
    #[error(transparent)]
    Refused(#[from] ChangeError),
    #[error("there is no disk \"{0}\" in the pool")]
    NoDisk(String),
    #[error("no disk of the pool for data has device class {0}")]
    NoMedia(Media),
    #[error("volume \"{0}\" is exported")]
    Exported(VolumeName),
    /// The disks do not allow it.
    #[error("{0}")]
    Impossible(String),
    #[error(transparent)]
    Save(#[from] SaveError),
    /// A disk had no room for it. The text says which one.
    #[error("{0}")]
    NoRoom(String),
    #[error("{0}")]
    Engine(String),
}
