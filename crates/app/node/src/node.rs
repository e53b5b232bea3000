//! A running node: the pool, and the parts that this program puts around it.
//!
//! Owns: the settings that the pool and its volumes get from the configuration, which volumes are exported, the
//! pool's requests to the host. Must not know: protocols' messages, HTTP; the handling of disks and their contents
//! (`cairn_pool`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use cairn_activity::Activities;
use cairn_admin::audit::AuditEntry;
use cairn_base::disk::Disk;
use cairn_base::env::{BoxFuture, Env};
use cairn_base::jobs::{Job, Outcome};
use cairn_base::{DiskId, PoolId, VolumeId};
use cairn_config::{Config, ExportRule, MemoryBudget, VolumeName, VolumeSettings};
use cairn_exports::{Export, Exports, FailedVolume, Volume};
use cairn_formats::pool_file::{PoolDisk, PoolState, PoolTier, PoolVolume, Stage};
use cairn_fs::{DedupeIndex, DirtyBudget, FsSettings, Policy};
use cairn_iscsi::Targets;
use cairn_keys::MasterKeys;
use cairn_meta::settings::state_files_max;
use cairn_meta::{MetaCache, MetaSettings, ReplayBudget};
use cairn_pool::truth::{PoolFiles, Truth};
use cairn_pool::watch::Counts;
use cairn_pool::{Host, HostTier, Pool, PoolSettings, Seats, VolumeTotals};
use cairn_qos::{Limits, PartRates, Shaper};
use cairn_s3::Stores;
use cairn_segment::SegmentSettings;
use cairn_shard::ShardDisk;
use parking_lot::Mutex;
use prometheus::Registry;

pub use cairn_pool::{ChangeFailure, VolumeService};

use crate::classes::Credits;
use crate::cluster::ClusterNode;
use crate::convert;
use crate::disk_folders::DiskFolders;
use crate::disks::{PoolDisks, descriptors_max, shard_settings, share_file_systems};
use crate::entry_log::EntryLog;
use crate::error::NodeError;
use crate::folder::read_buffers;
use crate::history::History;
use crate::keys::{KeyHolder, encryption_view};
use crate::memory::{Givers, Memory};
use crate::metrics::{Observed, Tolerated, VolumeNumbers};

/// The first volume of a new pool.
const FIRST_VOLUME: &str = "main";
/// Maximum number of write buffers of metadata that a volume has at a time.
const WRITE_BUFFERS_PER_VOLUME: u64 = 3;
/// With [`INODES_MIN`] and [`EXTENTS_MIN`], most of an open volume's minimum memory ([`cairn_config::VOLUME_BYTES_MIN`]).
const WRITE_BUFFER_BYTES_MIN: u64 = 256 << 10;
const WRITE_BUFFER_BYTES_MAX: u64 = 32 << 20;
/// Maximum bytes of a volume that wait for its commit log.
const LOG_QUEUE_BYTES_MIN: u64 = 4 << 20;
const LOG_QUEUE_BYTES_MAX: u64 = 32 << 20;
/// Approximate memory of one inode in the table.
const INODE_BYTES: u64 = 1 << 10;
/// Memory of one extent, with its pointer.
const EXTENT_BYTES: u64 = 256;
const INODES_MIN: usize = 1 << 10;
const EXTENTS_MIN: usize = 8 << 10;
const _: () = assert!(
    WRITE_BUFFERS_PER_VOLUME * WRITE_BUFFER_BYTES_MIN
        + INODES_MIN as u64 * INODE_BYTES
        + EXTENTS_MIN as u64 * (EXTENT_BYTES + TAGS_BYTES)
        <= cairn_config::VOLUME_BYTES_MIN
);
/// Additional memory of an encrypted one: salt and tags of a record of the usual size.
const TAGS_BYTES: u64 = 192;

/// The shared state of all parts of a node.
pub struct NodeCore {
    pub env: Env,
    pub config: Config,
    pub budget: MemoryBudget,
    pub memory: Arc<Memory>,
    pub started: Instant,
    pub pool: Arc<Pool>,
    /// The real paths of the folders that the configuration names, as of the start.
    pub named: Vec<PathBuf>,
    /// The file with the admin token.
    pub token_path: PathBuf,
    /// Files with the server's addresses; removed at its end.
    pub announced: Mutex<Vec<PathBuf>>,
    pub folders: DiskFolders,
    pub exports: Arc<Exports>,
    /// Volumes as iSCSI targets.
    pub targets: Arc<Targets>,
    /// Volumes as places of buckets.
    pub stores: Arc<Stores>,
    /// The rates of volumes.
    pub shaper: Arc<Shaper>,
    /// The activity of clients on volumes that are served here.
    pub activities: Arc<Activities>,
    pub credits: Credits,
    pub registry: Registry,
    pub meta_cache: MetaCache,
    /// Data of all volumes in memory that is not on disks yet, and the reservations on disks.
    pub dirty: Arc<DirtyBudget>,
    /// Present if the node is in a cluster.
    pub cluster: Option<Arc<ClusterNode>>,
    /// Addresses of volumes, once NFS serves in a cluster.
    pub addresses: OnceLock<Arc<crate::addresses::Addresses>>,
    /// Numbers over time.
    pub history: History,
    /// The audit log.
    pub audit: EntryLog<AuditEntry>,
    /// The events.
    pub events: crate::events::Events,
    pub snapshots: crate::snapshots::SnapshotWork,
    pub read_caches: crate::read_cache::ReadCaches,
    pub(crate) keys: Arc<KeyHolder>,
    /// Asks NFS for the mounts of clients; empty until it serves.
    pub mounts: OnceLock<Mounts>,
}

/// Returns addresses and paths.
pub type Mounts = Box<dyn Fn() -> Vec<(String, Box<[u8]>)> + Send + Sync>;

/// The parts that the pool gets from this program.
struct NodeHost {
    env: Env,
    config: Config,
    budget: MemoryBudget,
    named: Vec<PathBuf>,
    exports: Arc<Exports>,
    targets: Arc<Targets>,
    stores: Arc<Stores>,
    shaper: Arc<Shaper>,
    activities: Arc<Activities>,
    /// Volumes that are served here: only their credit use is known here.
    served: Mutex<BTreeSet<VolumeId>>,
    meta_cache: MetaCache,
    /// Memory of logs that are being replayed, of all volumes together.
    replay: ReplayBudget,
    /// Memory for written data that is not on disk yet, of all volumes together.
    dirty: Arc<DirtyBudget>,
    /// The index of records, of all volumes that deduplicate.
    dedupe: Arc<DedupeIndex>,
    cluster: Option<Arc<ClusterNode>>,
    keys: Arc<KeyHolder>,
    node: OnceLock<Weak<NodeCore>>,
}

impl NodeHost {
    fn exported(
        &self,
        volume: &PoolVolume,
        is_clone: bool,
        service: Option<&VolumeService>,
    ) -> Volume {
        let failed = || FailedVolume {
            volume: volume.id,
            name: volume.name.to_string(),
            root: (!is_clone).then_some(cairn_fs::ROOT),
        };
        match (service, &self.cluster) {
            (Some(VolumeService::Serving(fs)), _) => Volume::Serving(fs.clone()),
            (_, None) => Volume::Failed(failed()),
            (_, Some(cluster)) => {
                let own = cluster.member.node();
                let owner = cluster.member.owner(volume.id);
                // No client can ask for a volume that belongs to this node and is not open yet.
                Volume::Elsewhere(failed(), owner.filter(|owner| *owner != own))
            }
        }
    }

    fn node(&self) -> Option<Arc<NodeCore>> {
        self.node.get()?.upgrade()
    }

    /// The numbers of inodes and extents that one of `count` volumes keeps in memory.
    fn kept_max(&self, volume: &PoolVolume, count: usize) -> (usize, usize) {
        let extent_bytes = match volume.encryption {
            None => EXTENT_BYTES,
            Some(_) => EXTENT_BYTES + TAGS_BYTES,
        };
        let share = self.budget.tables_bytes / count.max(1) as u64;
        let most = |bytes: u64, each: u64| usize::try_from(bytes / each).unwrap_or(usize::MAX);
        (
            most(share / 2, INODE_BYTES).clamp(INODES_MIN, 128 << 10),
            most(share / 2, extent_bytes).clamp(EXTENTS_MIN, 4 << 20),
        )
    }

    /// Divides the memory again when the number of open volumes or of all volumes changed.
    fn share_memory(&self, state: &PoolState, volumes: &BTreeMap<VolumeId, VolumeService>) {
        let mut open = 0;
        for volume in &state.volumes {
            if let Some(VolumeService::Serving(fs)) = volumes.get(&volume.id) {
                let (inodes_max, extents_max) = self.kept_max(volume, state.volumes.len());
                fs.set_memory_max(inodes_max, extents_max);
                open += 1;
            }
        }
        if let Some(node) = self.node() {
            let cache_bytes = self.budget.record_cache_beside(open);
            node.memory.set_records_full(cache_bytes);
        }
    }
}

/// Estimates the memory of inodes and extents of open volumes.
fn tables(pool: &Arc<Pool>) -> impl Fn() -> u64 + Send + Sync + 'static + use<> {
    let pool = Arc::downgrade(pool);
    move || {
        let serving = pool.upgrade().map(|pool| pool.serving_all());
        let serving = serving.unwrap_or_default();
        let stats = serving.iter().map(|fs| fs.stats());
        let each =
            stats.map(|it| it.inodes_in_memory * INODE_BYTES + it.extents_in_memory * EXTENT_BYTES);
        each.sum()
    }
}

impl Host for NodeHost {
    fn meta_settings(&self, _volume: &PoolVolume, copies: usize, count: usize) -> MetaSettings {
        let mut meta = MetaSettings::new(copies, self.meta_cache.clone());
        meta.replay = self.replay.clone();
        let buffers = self.budget.metadata_bytes - self.budget.metadata_cache_bytes();
        let buffer = buffers / (WRITE_BUFFERS_PER_VOLUME * count.max(1) as u64);
        let buffer = buffer.clamp(WRITE_BUFFER_BYTES_MIN, WRITE_BUFFER_BYTES_MAX);
        meta.write_buffer_bytes = usize::try_from(buffer).unwrap_or(usize::MAX);
        let queue = (self.budget.dirty_bytes / 8).clamp(LOG_QUEUE_BYTES_MIN, LOG_QUEUE_BYTES_MAX);
        meta.queue_bytes_max = usize::try_from(queue).unwrap_or(usize::MAX);
        meta.open_files_max = state_files_max(descriptors_max(), count);
        meta.log_write_wait = self.config.write_deadline;
        meta
    }

    fn fs_settings(&self, volume: &PoolVolume, count: usize) -> FsSettings {
        let mut settings = FsSettings::new(self.env.clone(), volume.id, volume.name.as_str());
        settings.policy = Policy::from(&volume.settings);
        settings.dirty = Arc::clone(&self.dirty);
        settings.dedupe = Arc::clone(&self.dedupe);
        settings.gc.seal_idle = self.config.idle_after;
        settings.tiering.interval = self.config.tier_interval;
        settings.tiering.trouble_pause = self.config.tier_interval.saturating_mul(2);
        (settings.inodes_max, settings.extents_max) = self.kept_max(volume, count);
        settings
    }

    fn open_tier(
        &self,
        pool: PoolId,
        tier: &PoolTier,
    ) -> BoxFuture<Result<Arc<dyn HostTier>, String>> {
        let (env, tier, config) = (self.env.clone(), tier.clone(), self.config.clone());
        // This reads a directory, which may hang.
        let opening =
            tokio::task::spawn_blocking(move || crate::tiers::open(&env, pool, &tier, &config));
        Box::pin(async move {
            match opening.await {
                Ok(opened) => opened,
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn master_keys(&self) -> MasterKeys {
        self.keys.known()
    }

    fn why_unwrapped(&self) -> Option<String> {
        self.keys.why_unwrapped()
    }

    fn publish(&self, state: &PoolState, volumes: &BTreeMap<VolumeId, VolumeService>) {
        let is_served = |service: &&VolumeService| matches!(service, VolumeService::Serving(_));
        let served = volumes.iter().filter(|(_, service)| is_served(service));
        *self.served.lock() = served.map(|(id, _)| *id).collect();
        self.share_memory(state, volumes);
        self.activities
            .retain(|id| state.all_volumes().any(|volume| volume.id == id));
        self.classes(state);
        let exports = state
            .all_volumes()
            .filter(|volume| !volume.exports.is_empty())
            .map(|volume| Export {
                volume: self.exported(
                    volume,
                    state.clone_of(volume.id).is_some(),
                    volumes.get(&volume.id),
                ),
                rules: volume.exports.iter().map(convert::client_rule).collect(),
                gate: Some(self.shaper.gate(volume.id)),
                activity: Some(self.activities.of(volume.id)),
            })
            .collect();
        self.exports.replace(exports);
        if let Some(cluster) = &self.cluster {
            // After the exports: a client that hears of a volume gets an answer.
            let served = volumes.iter().filter(|(_, service)| is_served(service));
            let served: BTreeSet<VolumeId> = served.map(|(id, _)| *id).collect();
            let clones = state.clones.iter();
            let clones = clones.filter(|clone| served.contains(&clone.store));
            let clones: Vec<VolumeId> = clones.map(|clone| clone.volume.id).collect();
            cluster
                .forward
                .serve_volumes(served.into_iter().chain(clones));
        }
        let serving = volumes.values().filter_map(|service| match service {
            VolumeService::Serving(fs) => Some(fs.clone()),
            VolumeService::Failed(_) => None,
        });
        // LUNs and buckets have names of their own, which a clone would have twice.
        let serving: Vec<_> = serving.filter(|fs| fs.branch().is_main()).collect();
        self.targets.replace(serving.clone());
        self.stores.replace(serving);
    }

    fn classes(&self, state: &PoolState) {
        let served = self.served.lock();
        let volumes = state.all_volumes();
        let volumes = volumes.filter(|volume| served.contains(&volume.id));
        let limits = volumes.filter_map(|volume| {
            let size_bytes = volume.settings.size_limit.bytes();
            let mut limits = match (&volume.class, state.class_of(volume)) {
                (Some(class), Some(spec)) => Limits::of(class, spec, size_bytes),
                _ if volume.limits.is_empty() => return None,
                _ => Limits::default(),
            };
            limits.parts = volume.limits.iter().map(PartRates::from).collect();
            Some((volume.id, limits))
        });
        self.shaper.set(limits.collect());
    }

    /// Checks that the next start would find the pool on a configured folder.
    fn may_forget(&self, disk: &PoolDisk, others: &[&PoolDisk]) -> Result<(), String> {
        let is_named = |disk: &PoolDisk| {
            let label = Path::new(&disk.label);
            self.named.iter().any(|place| place == label)
        };
        if !is_named(disk) || others.iter().any(|disk| is_named(disk)) {
            return Ok(());
        }
        let labels: Vec<&str> = others.iter().map(|disk| disk.label.as_str()).collect();
        Err(format!(
            "it is the last working disk among those that `data` in the configuration or --data names, and the next \
             start would not find the pool: name {} instead, and start the server again",
            labels.join(", ")
        ))
    }

    fn seats(&self) -> Option<Arc<dyn Seats>> {
        let cluster = self.cluster.as_ref()?;
        Some(Arc::clone(&cluster.member) as _)
    }

    fn disk_left(&self, disk: Option<Arc<ShardDisk>>) {
        let Some(node) = self.node() else { return };
        // A replaced disk may take long for that, or never end it.
        let task = async move { node.let_go_of(disk).await };
        self.env.spawner.spawn("empty disk", Box::pin(task));
    }

    /// Keeps the limits of all disks together after one came, or left: the open files, and the space of a shared file
    /// system.
    fn disks_changed(&self, disks: &[Arc<ShardDisk>], members: usize) {
        share_file_systems(disks);
        for disk in disks {
            disk.set_open_shards_max(shard_settings(&self.config, members).open_shards_max);
        }
    }

    fn volumes_with_metadata<'a>(
        &'a self,
        disk: &'a Arc<dyn Disk>,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<VolumeId>>> + Send + 'a>> {
        let (disk, time_max) = (Arc::clone(disk), self.config.hang_after);
        Box::pin(crate::metadata_folders::volumes_on(
            &self.env, disk, time_max,
        ))
    }

    fn remove_metadata(
        &self,
        disks: Vec<Arc<dyn Disk>>,
        volume: VolumeId,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let time_max = self.config.hang_after;
        Box::pin(crate::metadata_folders::remove_metadata(
            self.env.clone(),
            disks,
            volume,
            time_max,
        ))
    }
}

impl NodeCore {
    /// Makes the engine on the disks of a pool. No volume is open yet.
    pub fn new(
        env: Env,
        config: Config,
        disks: PoolDisks,
        token_path: PathBuf,
        cluster: Option<Arc<ClusterNode>>,
        keys: Arc<KeyHolder>,
    ) -> Arc<Self> {
        let budget = MemoryBudget::of(config.memory_limit_bytes);
        let mut segments = SegmentSettings {
            cache_bytes: budget.record_cache_bytes,
            write_deadline: config.write_deadline,
            ..SegmentSettings::default()
        };
        // Parity and compressed copies come on top of data that waits for its flush.
        let in_flight = segments
            .append_bytes_in_flight_max
            .min(budget.dirty_bytes / 2);
        segments.append_bytes_in_flight_max = in_flight;
        let settings = PoolSettings {
            segments,
            rebuild_delay: Duration::from_secs(config.rebuild_delay_seconds),
            rebuild_bytes_per_second: config.rebuild_bytes_per_second,
            scrub_bytes_per_second: config.scrub_bytes_per_second,
        };
        let cache_bytes = budget.metadata_cache_bytes();
        let meta_cache = MetaCache::new(usize::try_from(cache_bytes).unwrap_or(usize::MAX));
        let exports = Arc::new(Exports::new(Vec::new()));
        let shaper = Shaper::new(&env);
        shaper.tend(&env);
        let portals = cluster.as_ref().map(|cluster| cluster.iscsi_cluster());
        let activities = Activities::new(&env);
        activities.tend(&env);
        let targets = Targets::new(
            env.clone(),
            Arc::clone(&shaper),
            Arc::clone(&activities),
            portals,
        );
        let stores = Stores::new(env.clone(), Arc::clone(&shaper), Arc::clone(&activities));
        let replay = ReplayBudget::new(budget.replay_bytes());
        let dirty = DirtyBudget::new(budget.dirty_bytes);
        let PoolDisks { opened, named } = disks;
        let host = Arc::new(NodeHost {
            env: env.clone(),
            config: config.clone(),
            budget,
            named: named.clone(),
            exports: Arc::clone(&exports),
            targets: Arc::clone(&targets),
            stores: Arc::clone(&stores),
            shaper: Arc::clone(&shaper),
            activities: Arc::clone(&activities),
            served: Mutex::default(),
            meta_cache: meta_cache.clone(),
            replay: replay.clone(),
            dirty: Arc::clone(&dirty),
            dedupe: DedupeIndex::new(budget.dedupe_bytes),
            cluster: cluster.clone(),
            keys: Arc::clone(&keys),
            node: OnceLock::new(),
        });
        let asked = Arc::clone(&host) as Arc<dyn Host>;
        let truth: Arc<dyn Truth> = match &cluster {
            Some(cluster) => cluster.truth(),
            None => Arc::new(PoolFiles),
        };
        share_file_systems(&opened.disks);
        let pool = Pool::new(env.clone(), settings, asked, truth, opened);
        let givers = Givers {
            store: Arc::downgrade(&pool.store),
            blocks: meta_cache.clone(),
            dirty: Arc::clone(&dirty),
            shaper: Arc::clone(&shaper),
            read_buffers: read_buffers(),
        };
        let memory = Memory::new(config.memory_limit_bytes, budget, givers);
        memory.others.add("tables", tables(&pool));
        let replayed = move || replay.used_bytes();
        memory.others.add("replayed_logs", replayed);
        let inner = Arc::new(Self {
            env,
            config,
            budget,
            memory,
            started: Instant::now(),
            pool,
            named,
            token_path,
            announced: Mutex::default(),
            folders: DiskFolders::default(),
            exports,
            targets,
            stores,
            shaper,
            activities,
            credits: Credits::default(),
            registry: Registry::new(),
            meta_cache,
            dirty,
            cluster,
            history: History::default(),
            audit: EntryLog::new(&crate::audit::AUDIT),
            events: Default::default(),
            snapshots: Default::default(),
            read_caches: Default::default(),
            keys,
            mounts: OnceLock::new(),
            addresses: OnceLock::new(),
        });
        // Set only here.
        let _ = host.node.set(Arc::downgrade(&inner));
        inner
    }

    /// Opens all volumes, and deletes the remains of deleted ones. In a cluster this node begins to take over those
    /// that it owns.
    pub async fn open_volumes(self: &Arc<Self>) -> Result<(), ChangeFailure> {
        match &self.cluster {
            Some(cluster) => {
                self.pool.publish();
                let activities = Arc::clone(&self.activities);
                let meter = crate::balance::Measured(activities);
                cluster.member.on_measuring(Arc::new(meter));
                crate::reserved::tend(self, &cluster.member);
                cluster.start(&self.env, &self.pool);
            }
            None => {
                self.pool.note_returned().await?;
                self.pool.open_tiers().await;
                self.pool.open_volumes().await;
            }
        }
        self.pool.remove_deleted_volumes_later();
        Ok(())
    }

    /// The name of the node that owns a volume, or the reason why none does; `None` if this server is in no cluster.
    pub fn owner_name(&self, volume: VolumeId) -> Option<Result<String, String>> {
        let cluster = self.cluster.as_ref()?;
        let view = cluster.member.view();
        Some(match cluster.member.owner(volume) {
            Some(node) => Ok(match view.nodes.get(&node) {
                Some(record) => record.value.name.clone(),
                None => node.to_string(),
            }),
            None => Err("no node owns it: it is being taken over".to_owned()),
        })
    }

    pub async fn close_volumes(&self) {
        self.pool
            .close_volumes(|| {
                self.exports.replace(Vec::new());
                self.targets.replace(Vec::new());
                self.stores.replace(Vec::new());
            })
            .await;
    }

    /// Starts a background job that stops with the node, which `work` must not hold for longer than a step needs it.
    pub fn start_job<Stepping>(
        self: &Arc<Self>,
        job: Job,
        work: impl FnMut(Arc<Self>) -> Stepping + Send + 'static,
    ) where
        Stepping: Future<Output: Outcome> + Send + 'static,
    {
        let node = Arc::downgrade(self);
        let owner = move || node.upgrade().filter(|node| !node.pool.is_stopping());
        job.start_on(&self.env, owner, work);
    }

    /// Starts a job with this interval after the end of each step, as [`Self::start_job`] does.
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

    /// Makes the first volume of a new pool. Also completes a first start that broke off.
    pub async fn ensure_first_volume(&self) -> Result<(), NodeError> {
        let state = self.pool.state();
        // The stage tells a new pool from one whose first volume was deleted, which does not come back.
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
        self.pool
            .volume_create(
                &name,
                VolumeSettings::default(),
                ExportRule::this_machine(),
                None,
                false,
            )
            .await
            .map_err(|error| first_volume(error.to_string()))
    }

    /// All numbers of the metrics.
    pub fn observe(&self) -> Observed {
        let state = self.pool.state();
        let (services, past) = self.pool.services_and_totals();
        let mut totals_of_all = past.all();
        let mut volumes = Vec::new();
        let mut rates = Vec::new();
        let mut goals = Vec::new();
        let mut troubled_count = 0;
        for (id, service) in &services {
            let VolumeService::Serving(fs) = service else {
                continue;
            };
            let (stats, meta) = (fs.stats(), fs.meta().stats());
            let since_open = VolumeTotals::new(&stats, &meta);
            totals_of_all += since_open;
            // A volume that is being deleted is no longer listed.
            let Some(volume) = state.volumes.iter().find(|volume| volume.id == *id) else {
                continue;
            };
            let name = state.head_of(volume).name.to_string();
            let mut totals = past.of(*id);
            totals += since_open;
            troubled_count += usize::from(fs.meta().failure().is_some());
            let counters = fs.meta().counters();
            if let Some(report) = self.shaper.report(*id) {
                rates.push((name.clone(), report));
            }
            if let Some(report) = self.shaper.goal(*id) {
                goals.push((name.clone(), report));
            }
            volumes.push((
                name,
                VolumeNumbers {
                    fs: stats,
                    backlog: fs.gc_backlog(),
                    meta,
                    totals,
                    inodes: counters.inodes,
                    file_bytes: counters.file_bytes,
                    stored_bytes: counters.stored_bytes,
                    segments: counters.segments,
                    snapshots: fs.snapshot_count(),
                    snapshots_freeing: fs.snapshot_freeing().snapshots,
                    snapshot_bytes: counters.history_bytes,
                    quotas: fs.quota_counts(),
                    policies: fs.dir_policy_count() as u64,
                    apply: fs
                        .applied_policies()
                        .map_or_else(Default::default, |view| view.record),
                },
            ));
        }
        let tolerated = state.volumes.iter().map(|volume| Tolerated {
            volume: state.head_of(volume).name.to_string(),
            disks: usize::from(self.pool.tolerated(&volume.settings)),
            nodes: self.pool.nodes_tolerated(volume),
        });
        let keys = self.keys.known();
        let name = |volume: &PoolVolume| state.head_of(volume).name.to_string();
        let encryption = state.volumes.iter().filter_map(|volume| {
            let word = encryption_view(volume, &keys).state.word()?;
            Some((name(volume), word))
        });
        let view = self.cluster.as_ref().map(|cluster| cluster.member.view());
        let address_pools = view.map(|view| crate::address_pools::counts(&view));
        let addresses = self.addresses.get();
        let memory_counts = self.memory.counts();
        Observed {
            memory_parts: self.memory.parts(memory_counts.resident_bytes),
            memory_counts,
            address_pools: address_pools.unwrap_or_default(),
            pool_addresses_here: addresses.map_or(0, |it| it.of_pools_count()),
            encryption: encryption.collect(),
            tolerated: tolerated.collect(),
            rates,
            goals,
            rest_times: self.pool.clients.rest_times(),
            tiers: self.pool.tier_statuses(),
            uptime_seconds: self.uptime().as_secs(),
            memory: self.budget,
            memory_limit_bytes: self.config.memory_limit_bytes,
            metadata_cache_bytes: self.meta_cache.used_bytes() as u64,
            segments: self.pool.store.stats(),
            internal_bytes: self.pool.internal_bytes(),
            disks: self.pool.store.disk_status(),
            answers: self.disk_answers(),
            scrub: convert::scrub(self.pool.scrub_progress()),
            rebuild: convert::rebuild(self.pool.rebuild_status()),
            spread: convert::spread(self.pool.spread_status()),
            volumes_failed: (state.volumes.len() - volumes.len() + troubled_count) as u64,
            volumes,
            totals_of_all,
        }
    }

    /// The response of this server's disks, by their ids.
    fn disk_answers(&self) -> HashMap<DiskId, Counts> {
        let disks = self.pool.disks();
        let counts =
            |disk: &Arc<ShardDisk>| Some((disk.id(), self.pool.watch.counts(disk.disk())?));
        disks.iter().filter_map(counts).collect()
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::disks::DiskHints;
    use crate::lock_wait::open_pool_in_time;

    /// Three disks in a folder.
    pub fn disk_paths(root: &Path) -> Vec<PathBuf> {
        let names = ["disk0", "disk1", "disk2"].into_iter();
        names.map(|name| root.join(name)).collect()
    }

    /// A node on these disks, without servers.
    pub async fn start(root: &Path, env: Env) -> Arc<NodeCore> {
        let settings = cairn_config::Settings {
            data: disk_paths(root),
            create: Some(true),
            disk_root: vec![root.to_owned()],
            ..cairn_config::Settings::default()
        };
        let config = settings.resolve(1).unwrap();
        // An earlier node of this process may need a moment to end its background work.
        let pool = open_pool_in_time(&env, &config, DiskHints::default())
            .await
            .unwrap();
        let keys = KeyHolder::new(None);
        let inner = NodeCore::new(env, config, pool, root.join("token"), None, keys);
        inner.open_volumes().await.unwrap();
        inner.ensure_first_volume().await.unwrap();
        inner
    }
}
