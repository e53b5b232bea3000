//! The engine on simulated disks: how it is started, and how all of it is read.
//!
//! Owns: the wiring, which is that of a server without its edges.
//! Must not know: what should be there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::{DiskId, Ino, PoolId, Timestamp, VolumeId};
use cairn_fs::{
    AccessPattern, Attr, Credentials, DirtyBudget, FileKind, Fs, FsError, FsSettings, GcSettings,
    Policy,
};
use cairn_meta::{MetaCache, MetaSettings, MetaStore};
use cairn_segment::{Compression, SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardError, ShardSettings};
use cairn_testkit::MemDisk;

use crate::pool::Disks;
use crate::scenario::{Protection, Shape};
use crate::tree::{Found, FoundKind, FoundNode};

const POOL: PoolId = PoolId(7);
pub const VOLUME: VolumeId = VolumeId(1);
pub static WHO: Credentials = Credentials::ROOT;
pub const ROOT_INO: Ino = Ino(1);
/// More than any scenario has, so that what is kept open does not depend on hashes of the host.
const OPEN_SHARDS_MAX: usize = 1 << 16;
/// Entries asked for at a time; small, so that directories come in pages.
const PAGE_ENTRIES: usize = 7;

/// A volume that is served.
#[derive(Clone)]
pub struct World {
    pub fs: Fs,
    pub segments: Arc<SegmentStore>,
    /// The disks that were there at the start.
    pub shard_disks: Vec<Arc<ShardDisk>>,
}

pub fn disk_id(index: usize) -> DiskId {
    DiskId(index as u128 + 1)
}

/// `copies` of log and state are kept.
fn meta_settings(shape: &Shape, copies: usize) -> MetaSettings {
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
        protection: match shape.protection {
            Protection::Default => cairn_segment::Protection::Default,
            Protection::None => cairn_segment::Protection::None,
            Protection::Plus(losses) => cairn_segment::Protection::Plus(losses),
            Protection::Mirror(copies) => cairn_segment::Protection::Mirror(copies),
        },
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

/// Makes each disk one of the pool's.
pub async fn format_disks(disks: &[Arc<MemDisk>]) -> Result<(), String> {
    for (index, disk) in disks.iter().enumerate() {
        format_disk(index, disk)
            .await
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

pub async fn format_disk(index: usize, disk: &Arc<MemDisk>) -> Result<(), ShardError> {
    let disk: Arc<dyn Disk> = disk.clone();
    ShardDisk::format(disk, POOL, disk_id(index), Timestamp::new(1, 0)).await
}

pub async fn open_disk(shape: &Shape, disk: &Arc<MemDisk>) -> Result<Arc<ShardDisk>, ShardError> {
    let settings = ShardSettings {
        open_shards_max: OPEN_SHARDS_MAX,
        recycled_files_max: shape.space.recycled_files_max,
        ..ShardSettings::default()
    };
    ShardDisk::open(disk.clone(), POOL, settings).await
}

/// Disks with metadata, those that are preferred first.
type MetaDisks = Vec<(DiskId, Arc<dyn Disk>)>;

impl World {
    /// Starts on the disks of a pool that are there; one that cannot be opened counts as missing.
    pub async fn start(
        env: &Env,
        shape: &Shape,
        disks: &Disks,
        is_new: bool,
    ) -> Result<Self, String> {
        let mut shard_disks = Vec::new();
        let (mut members, mut draining): (MetaDisks, MetaDisks) = Default::default();
        for (member, disk) in &disks.there {
            match open_disk(shape, disk).await {
                Ok(opened) => {
                    shard_disks.push(opened);
                    let side = match member.is_draining {
                        true => &mut draining,
                        false => &mut members,
                    };
                    side.push((member.id(), disk.clone()));
                }
                Err(error) => tracing::debug!(%error, "a disk is missing"),
            }
        }
        let missing = disks
            .file
            .members
            .iter()
            .map(|member| member.id())
            .filter(|id| !shard_disks.iter().any(|disk| disk.id() == *id))
            .collect();
        // As many on disks that stay, whichever of draining ones have some.
        let copies = shape.metadata_copies(disks.file.staying_count()) + draining.len();
        // Until the metadata was moved off them, draining ones may be the only ones that know what was changed last.
        members.extend(draining);
        let segment_settings = SegmentSettings {
            shard_len_bytes: shape.space.shard_kib << 10,
            shard_len_bytes_min: shape.space.shard_kib << 10,
            cache_bytes: shape.cache_kib << 10,
            ..SegmentSettings::default()
        };
        let segments =
            SegmentStore::new(env.clone(), segment_settings, shard_disks.clone(), missing);
        for member in disks.file.members.iter().filter(|it| it.is_draining) {
            segments.disk_draining(member.id(), true);
        }
        let fs = if is_new {
            let settings = meta_settings(shape, copies);
            let meta = MetaStore::create(env.clone(), settings, VOLUME, members)
                .await
                .map_err(|error| format!("making the metadata: {error}"))?;
            let fs = Fs::format(fs_settings(env, shape), meta, segments.clone()).await;
            fs.map_err(|error| format!("opening the volume: {error}"))?
        } else {
            open_volume(env, shape, &segments, copies, members, Vec::new()).await?
        };
        Ok(Self {
            fs,
            segments,
            shard_disks,
        })
    }

    /// Opens the volume again with its state on another disk, if the one it is on leaves: as a server does it, which
    /// is what has to be done before that disk can go.
    pub async fn move_state(
        &mut self,
        env: &Env,
        shape: &Shape,
        disks: &Disks,
    ) -> Result<(), String> {
        let meta = self.fs.meta();
        let primary = meta.primary_disk();
        let leaves = |id: DiskId| disks.file.is_draining(id);
        if !leaves(primary) || disks.there.iter().all(|(member, _)| member.is_draining) {
            return Ok(());
        }
        for (other, _) in &disks.there {
            if other.is_draining
                && other.id() != primary
                && meta.retire_disk(other.id()).await.is_err()
            {
                return Ok(());
            }
        }
        let copies = shape.metadata_copies(disks.file.staying_count());
        // The disk still has one of the copies, and the others have all that is wanted without it: also of what is
        // changed from here on until the volume is closed.
        let copied = async {
            meta.set_copies(copies + 1).await?;
            meta.ship().await
        };
        if copied.await.is_err() {
            return Ok(());
        }
        let stats = meta.stats();
        let (mut members, mut left): (MetaDisks, MetaDisks) = Default::default();
        for (member, disk) in &disks.there {
            let id = member.id();
            if id == primary {
                left.push((id, disk.clone()));
            } else if !leaves(id) && !stats.failed_disks.contains(&id) {
                members.push((id, disk.clone()));
            }
        }
        let ids: Vec<DiskId> = members.iter().map(|(id, _)| *id).collect();
        if !stats.is_all_on(&ids) {
            return Ok(());
        }
        let closed = self.fs.close().await;
        tracing::debug!(?closed, "opening the volume on other disks");
        self.fs = open_volume(env, shape, &self.segments, copies, members, left).await?;
        Ok(())
    }

    /// The code that new data gets.
    pub fn code(&self) -> cairn_erasure::Code {
        let protection = self.fs.policy().protection;
        let code = self.segments.code_for(protection);
        code.unwrap_or_else(|_| self.segments.default_code())
    }

    /// Deletes what nothing refers to, as a server does after its start.
    pub fn sweep(&self, env: &Env) {
        let segments = self.segments.clone();
        let task = async move {
            if let Err(error) = segments.sweep(VOLUME).await {
                tracing::debug!(%error, "the sweep failed");
            }
        };
        env.spawner.spawn("sweep", Box::pin(task));
    }
}

fn fs_settings(env: &Env, shape: &Shape) -> FsSettings {
    FsSettings {
        policy: policy(shape),
        dirty: DirtyBudget::new(shape.dirty_kib << 10),
        gc: gc_settings(shape),
        ..FsSettings::new(env.clone(), VOLUME, "main")
    }
}

/// Opens the volume with `copies` of its metadata on `members`, and none on those that it `left`.
async fn open_volume(
    env: &Env,
    shape: &Shape,
    segments: &Arc<SegmentStore>,
    copies: usize,
    members: MetaDisks,
    left: MetaDisks,
) -> Result<Fs, String> {
    let settings = meta_settings(shape, copies);
    let (meta, recovered) = MetaStore::open_without(env.clone(), settings, VOLUME, members, left)
        .await
        .map_err(|error| format!("opening the metadata: {error}"))?;
    let settings = fs_settings(env, shape);
    let fs = Fs::open(settings, meta, recovered.journal, segments.clone()).await;
    fs.map_err(|error| format!("opening the volume: {error}"))
}

/// Reads everything that has a name. `is_unreadable_allowed`: bytes that give an I/O error are left out.
pub async fn read_everything(fs: &Fs, is_unreadable_allowed: bool) -> Result<Found, String> {
    let mut found = Found::default();
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
                Err(FsError::Io(_)) if is_unreadable_allowed => FoundKind::File {
                    size_bytes: attr.size_bytes,
                    bytes: None,
                },
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

async fn list(fs: &Fs, dir: Ino) -> Result<BTreeMap<Vec<u8>, u64>, String> {
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

async fn read_file(fs: &Fs, ino: Ino, attr: &Attr) -> Result<Vec<u8>, FsError> {
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

async fn xattrs(fs: &Fs, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, FsError> {
    let mut found = BTreeMap::new();
    for name in fs.xattr_list(&WHO, ino).await? {
        let value = fs.xattr(&WHO, ino, &name).await?;
        found.insert(name.to_vec(), value.to_vec());
    }
    Ok(found)
}
