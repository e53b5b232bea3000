//! The engine on simulated disks: starting it, and reading all of it.
//!
//! Owns: the wiring, which is that of a server without its edges: an ordinary pool, opened in the ordinary way. Must
//! not know: the expected contents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::env::{BoxFuture, Env};
use cairn_base::{DiskId, Ino, PoolId, VolumeId};
use cairn_formats::pool_file::{PoolTier, PoolVolume};
use cairn_formats::settings::VolumeSettings;
use cairn_fs::{
    AccessPattern, Attr, Credentials, Dedupe, DedupeIndex, DirtyBudget, FileKind, Fs, FsError,
    FsSettings, FsView, GcSettings, Policy, TieringSettings,
};
use cairn_keys::{MasterKey, MasterKeys};
use cairn_meta::{MetaCache, MetaSettings};
use cairn_pool::assemble::{Content, FoundFolder, Plan, newest, plan};
use cairn_pool::open::{Member, OpenSettings, OpenedPool, form, new_state, open_members};
use cairn_pool::truth::{PoolFiles, look};
use cairn_pool::{Host, HostTier, Pool, PoolSettings, PoolState, VolumeService};
use cairn_segment::{Compression, SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::MemDisk;

use crate::check;
use crate::object_store::LifeStore;
use crate::pool::{Disks, PoolFile};
use crate::read_cache::FlakyCache;
use crate::scenario::{Dedupes, Shape, TierTrouble};
use crate::snapshots::{Read, read_all};
use crate::tree::{FoundKind, FoundNode, FoundTree};

/// The first volume that a pool makes.
pub const VOLUME: VolumeId = VolumeId(1);
/// The master key of encrypted volumes.
const MASTER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
pub static WHO: Credentials = Credentials::ROOT;
pub const ROOT_INO: Ino = Ino(1);
/// As few places as an index can have.
const INDEX_BYTES: u64 = 0;
/// More than any scenario has, so that the set of open files does not depend on hashes of the host.
const OPEN_SHARDS_MAX: usize = 1 << 16;
/// Entries requested at a time; small, so that directories come in pages.
const PAGE_ENTRIES: usize = 7;
/// A disk that does not open within this time is missing.
const HANG_AFTER: Duration = Duration::from_secs(30);

/// A pool that is served.
#[derive(Clone)]
pub struct World {
    pub pool: Arc<Pool>,
    /// Its volume.
    pub fs: Fs,
    pub segments: Arc<SegmentStore>,
}

/// `copies`: number of copies of log and state.
pub(crate) fn meta_settings(shape: &Shape, copies: usize) -> MetaSettings {
    let mut settings = MetaSettings::new(copies, MetaCache::new(1 << 20));
    settings.log_file_bytes = shape.log_file_kib << 10;
    settings.log_bytes_max = shape.log_kib_max << 10;
    settings.ship_bytes = (shape.log_kib_max << 10) / 2;
    if shape.forgets_starts {
        settings.starts_named_max = 1;
    }
    settings
}

fn policy(shape: &Shape) -> Policy {
    Policy {
        protection: shape.protection,
        access_pattern: if shape.small_records {
            AccessPattern::Random
        } else {
            AccessPattern::Concurrent
        },
        compression: if shape.compress {
            Compression::Lz4
        } else {
            Compression::None
        },
        dedupe: match shape.dedupes {
            Dedupes::Off => Dedupe::Off,
            Dedupes::On => Dedupe::On,
            Dedupes::Verify => Dedupe::Verify,
        },
        ..Policy::default()
    }
}

fn gc_settings(shape: &Shape) -> GcSettings {
    let space = &shape.space;
    GcSettings {
        interval: Duration::from_millis(space.gc_interval_ms),
        garbage_percent: space.gc_garbage_percent,
        garbage_bytes: (!space.gc_is_lazy).then_some(0),
        look_bytes_min: if space.gc_is_lazy { 8 << 20 } else { 16 << 10 },
        seal_idle: Duration::from_millis(space.gc_seal_idle_ms),
    }
}

pub(crate) fn volume_settings(shape: &Shape) -> VolumeSettings {
    use cairn_formats::settings;
    let mut of_files = VolumeSettings::default();
    // Some scenarios change the volume's settings; its files follow these from then on.
    if shape.tiers.trouble != TierTrouble::None {
        if shape.small_records {
            of_files.access_pattern = settings::AccessPattern::Random;
        }
        if !shape.compress {
            of_files.compression = settings::Compression::None;
        }
        of_files.dedupe = match shape.dedupes {
            Dedupes::Off => settings::Dedupe::Off,
            Dedupes::On => settings::Dedupe::On,
            Dedupes::Verify => settings::Dedupe::Verify,
        };
    }
    VolumeSettings {
        protection: shape.protection,
        ..of_files
    }
}

pub fn shard_settings(shape: &Shape) -> ShardSettings {
    ShardSettings {
        open_shards_max: OPEN_SHARDS_MAX,
        recycled_files_max: shape.space.recycled_files_max,
        ..ShardSettings::default()
    }
}

/// Opens a disk by itself, without the pool.
pub async fn open_alone(
    shape: &Shape,
    disk: &Arc<MemDisk>,
    state: &PoolState,
) -> Option<Arc<ShardDisk>> {
    let opened = ShardDisk::open(disk.clone(), state.pool, shard_settings(shape));
    opened.await.ok()
}

pub(crate) fn fs_settings(env: &Env, shape: &Shape) -> FsSettings {
    FsSettings {
        policy: policy(shape),
        dirty: DirtyBudget::new(shape.dirty_kib << 10),
        gc: gc_settings(shape),
        dedupe: DedupeIndex::new(INDEX_BYTES),
        tiering: TieringSettings {
            interval: match shape.tiers.interval_ms {
                0 => TieringSettings::default().interval,
                interval_ms => Duration::from_millis(interval_ms),
            },
            ..TieringSettings::default()
        },
        ..FsSettings::new(env.clone(), VOLUME, "main")
    }
}

/// The host of a simulated pool.
pub struct SimHost {
    pub env: Env,
    pub shape: Shape,
    /// Steps of moves of shards so far.
    pub move_steps: Arc<AtomicU64>,
    pub(crate) store: Option<Arc<LifeStore>>,
}

impl Host for SimHost {
    fn meta_settings(&self, _volume: &PoolVolume, copies: usize, _count: usize) -> MetaSettings {
        meta_settings(&self.shape, copies)
    }

    fn fs_settings(&self, _volume: &PoolVolume, _count: usize) -> FsSettings {
        fs_settings(&self.env, &self.shape)
    }

    fn master_keys(&self) -> MasterKeys {
        let keys = MasterKey::parse_all(MASTER_KEY).unwrap_or_default();
        MasterKeys::default().with(keys)
    }

    fn open_tier(
        &self,
        _pool: PoolId,
        tier: &PoolTier,
    ) -> BoxFuture<Result<Arc<dyn HostTier>, String>> {
        let none = || Err(format!("there is no object store {}", tier.url));
        let opened = self.store.as_ref().map_or_else(none, LifeStore::open);
        Box::pin(std::future::ready(opened))
    }

    fn move_step(&self) {
        self.move_steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Examines the disks that a knowledgeable operator names: all that the pool ever had.
async fn look_at(disks: &Disks) -> (Vec<FoundFolder>, Vec<Arc<dyn Disk>>) {
    let mut found = Vec::new();
    for disk in &disks.there {
        let disk: Arc<dyn Disk> = disk.clone();
        let content = look(&disk).await.unwrap_or_else(Content::Unusable);
        let label = disk.label().to_owned();
        found.push(FoundFolder { label, content });
    }
    let disks = disks.there.iter().map(|disk| disk.clone() as Arc<dyn Disk>);
    let Some(newest) = newest(&found).cloned() else {
        return (found, disks.collect());
    };
    // A disk that was about to join, and that no pool file names, is not named either.
    let is_named = |(folder, _): &(FoundFolder, Arc<dyn Disk>)| {
        let id = match &folder.content {
            Content::Disk { identity, .. } => identity.as_ref().map(|identity| identity.disk),
            _ => None,
        };
        let mut known = newest.disks.iter().chain(&newest.left);
        known.any(|disk| disk.label == folder.label || Some(disk.id) == id)
    };
    found.into_iter().zip(disks).filter(is_named).unzip()
}

fn open_settings(shape: &Shape) -> OpenSettings {
    OpenSettings {
        shards: shard_settings(shape),
        hang_after: HANG_AFTER,
    }
}

/// Opens the pool on these disks, as a server does.
pub(crate) async fn open_pool(
    env: &Env,
    shape: &Shape,
    disks: &Disks,
) -> Result<OpenedPool, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let (found, disks) = look_at(disks).await;
    let (state, present, missing) = match plan(&found).map_err(|error| text(&error))? {
        Plan::Create => return Err("the disks of a pool are taken for new ones".to_owned()),
        Plan::Open {
            state,
            present,
            unformatted,
            missing,
            brought_back,
        } => {
            if !unformatted.is_empty() || !brought_back.is_empty() {
                return Err(format!(
                    "made halfway: {unformatted:?}, back: {brought_back:?}"
                ));
            }
            (state, present, missing)
        }
    };
    let members = present.iter();
    let members = members.map(|(index, id)| (disks[*index].clone(), *id));
    let settings = open_settings(shape);
    let opened = open_members(env, settings, state, members.collect(), missing).await;
    opened.map_err(|error| text(&error))
}

/// Makes a pool of all disks.
pub(crate) async fn form_pool(
    env: &Env,
    shape: &Shape,
    disks: &Disks,
) -> Result<OpenedPool, String> {
    let disks = disks.there.iter().map(|disk| disk.clone() as Arc<dyn Disk>);
    let disks: Vec<Arc<dyn Disk>> = disks.collect();
    let state = new_state(env, &disks);
    let ids = state.disks.iter().map(|disk| disk.id);
    let members: Vec<Member> = disks.into_iter().zip(ids).collect();
    let formed = form(env, open_settings(shape), state, members.clone(), &members).await;
    formed.map_err(|error| error.to_string())
}

impl World {
    /// All data, with the contents of each snapshot; recounts all numbers.
    pub(crate) async fn read_and_count(&self, env: &Env) -> Result<(FoundTree, Read), String> {
        let found = read_everything(&self.fs, false).await?;
        let of_snapshots = read_all(&self.fs, false).await?;
        check::recount(env, self.fs.meta()).await?;
        Ok((found, of_snapshots))
    }

    /// Starts on the present disks of a pool; one that cannot be opened counts as missing.
    pub async fn start(host: Arc<SimHost>, disks: &Disks, is_new: bool) -> Result<Self, String> {
        let (env, shape) = (host.env.clone(), host.shape.clone());
        let opened = match is_new {
            true => form_pool(&env, &shape, disks).await?,
            false => open_pool(&env, &shape, disks).await?,
        };
        let settings = PoolSettings {
            segments: SegmentSettings {
                shard_len_bytes: shape.space.shard_kib << 10,
                shard_len_bytes_min: shape.space.shard_kib << 10,
                cache_bytes: shape.cache_kib << 10,
                ..SegmentSettings::default()
            },
            rebuild_delay: Duration::from_millis(shape.rebuild_delay_ms),
            rebuild_bytes_per_second: 0,
            scrub_bytes_per_second: 0,
        };
        let cache_seed = shape.has_read_cache.then(|| env.entropy.u64());
        let pool = Pool::new(env, settings, host, Arc::new(PoolFiles), opened);
        if let Some(seed) = cache_seed {
            pool.store.use_read_cache(Arc::new(FlakyCache::new(seed)));
        }
        if is_new {
            let name = "main".parse().map_err(|_| "a name that is none")?;
            let settings = volume_settings(&shape);
            let made = pool.volume_create(&name, settings, Vec::new(), None, shape.is_encrypted);
            made.await.map_err(|error| error.to_string())?;
        } else {
            let noted = pool.note_returned().await;
            noted.map_err(|error| error.to_string())?;
            pool.open_tiers().await;
            pool.open_volumes().await;
        }
        // Twice: the second one says that the first is there.
        pool.renew().await;
        pool.renew().await;
        Self::of(pool)
    }

    fn of(pool: Arc<Pool>) -> Result<Self, String> {
        match pool.service(VOLUME) {
            Some(VolumeService::Serving(fs)) => Ok(Self {
                fs,
                segments: pool.store.clone(),
                pool,
            }),
            Some(VolumeService::Failed(why)) => Err(format!("opening the volume: {why}")),
            None => Err("there is no volume".to_owned()),
        }
    }

    /// This pool with the volume as it is served now; the error says why it is not.
    pub fn again(&self) -> Result<Self, String> {
        Self::of(self.pool.clone())
    }

    /// The members as the pool has saved them.
    pub fn file(&self) -> PoolFile {
        PoolFile::of(&self.pool.state())
    }

    /// The code of new data.
    pub fn code(&self) -> cairn_erasure::Code {
        let protection = self.fs.policy().protection;
        let code = self.segments.code_for(protection);
        code.unwrap_or_else(|_| self.segments.default_code())
    }

    /// Disks with a shard of each segment of the volume, according to the store and to the metadata.
    pub fn disks_in_use(&self) -> BTreeMap<u64, Vec<DiskId>> {
        let known = self.fs.meta().segments().into_iter();
        let mut all: BTreeMap<u64, Vec<DiskId>> =
            known.map(|(id, record)| (id.0, record.disks)).collect();
        let of_store = self.segments.segments(VOLUME).into_iter();
        all.extend(of_store.map(|info| (info.id.0, info.disks)));
        all
    }
}

/// Reads everything that has a name. `is_unreadable_allowed`: skips bytes with an I/O error.
pub async fn read_everything(
    fs: &FsView,
    is_unreadable_allowed: bool,
) -> Result<FoundTree, String> {
    let mut found = FoundTree::default();
    let mut todo = vec![ROOT_INO];
    while let Some(ino) = todo.pop() {
        if found.nodes.contains_key(&ino.0) {
            continue;
        }
        let attr = fs
            .attr(ino)
            .await
            .map_err(|error| format!("attributes of {ino}: {error}"))?;
        let kind = match attr.kind {
            FileKind::Directory => {
                let entries = list(fs, ino)
                    .await
                    .map_err(|error| format!("listing {ino}: {error}"))?;
                todo.extend(entries.values().map(|ino| Ino(*ino)));
                FoundKind::Dir(entries)
            }
            FileKind::Symlink => {
                let read = fs.read_link(&WHO, ino).await;
                let (target, _) = read.map_err(|error| format!("reading link {ino}: {error}"))?;
                FoundKind::Symlink(target.to_vec())
            }
            _ => match read_file(fs, ino, &attr).await {
                Ok(bytes) => FoundKind::File {
                    size_bytes: attr.size_bytes,
                    bytes: Some(bytes),
                },
                Err(FsError::Io(_) | FsError::Unreachable(_)) if is_unreadable_allowed => {
                    FoundKind::File {
                        size_bytes: attr.size_bytes,
                        bytes: None,
                    }
                }
                Err(error) => return Err(format!("reading {ino}: {error}")),
            },
        };
        let node = FoundNode {
            kind,
            nlink: attr.nlink,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            xattrs: xattrs(fs, ino)
                .await
                .map_err(|error| format!("extended attributes of {ino}: {error}"))?,
        };
        found.nodes.insert(ino.0, node);
    }
    Ok(found)
}

async fn list(fs: &FsView, dir: Ino) -> Result<BTreeMap<Vec<u8>, u64>, String> {
    let mut entries = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let page = fs
            .read_dir(&WHO, dir, cookie, PAGE_ENTRIES, true)
            .await
            .map_err(|error| error.to_string())?;
        for entry in &page.entries {
            if entry.cookie <= cookie {
                return Err(format!("cookie {} after {cookie}", entry.cookie));
            }
            cookie = entry.cookie;
            if entry.name.as_ref() == b"." || entry.name.as_ref() == b".." {
                continue;
            }
            if entries.insert(entry.name.to_vec(), entry.ino.0).is_some() {
                return Err(format!("{:?} is listed twice", entry.name));
            }
        }
        if page.eof {
            return Ok(entries);
        }
    }
}

async fn read_file(fs: &FsView, ino: Ino, attr: &Attr) -> Result<Vec<u8>, FsError> {
    let mut bytes = Vec::with_capacity(attr.size_bytes as usize);
    loop {
        let part = fs.read(&WHO, ino, bytes.len() as u64, 1 << 20).await?;
        for piece in &part.parts {
            bytes.extend_from_slice(piece);
        }
        if part.eof {
            return Ok(bytes);
        }
    }
}

async fn xattrs(fs: &FsView, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, FsError> {
    let mut found = BTreeMap::new();
    for name in fs.xattr_list(&WHO, ino).await? {
        let value = fs.xattr(&WHO, ino, &name).await?;
        found.insert(name.to_vec(), value.to_vec());
    }
    Ok(found)
}
