//! The read cache: records of the pool's disks, on a disk that is faster.
//!
//! Owns: where it keeps them, that it is of one pool, what becomes of a disk that fails. Must not know: what is worth to be
//! kept, whether bytes are right (`cairn_segment` does both).
//!
//! `foyer` keeps the bytes: blocks of a file each, written one after the other and dropped the oldest first, found again at
//! the next start. Nothing waits for a write: records that come faster than the disk takes them are not kept.

#![forbid(unsafe_code)]

mod set;

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_base::PoolId;
use cairn_base::env::BoxFuture;
use cairn_segment::{CACHE_PLACE_LEN_BYTES, CachePlace, ReadCache};
use foyer::{
    BlockEngineConfig, Code, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, RecoverMode,
};
use parking_lot::Mutex;
use tokio::time::timeout;

pub use set::CacheSet;

/// The smallest cache that is of use.
pub const SIZE_BYTES_MIN: u64 = 256 << 20;
/// Bytes that are dropped at a time.
const BLOCK_BYTES: usize = 16 << 20;
/// Beside the cache in memory that records have: only so that two readers of one piece read it once.
const MEMORY_BYTES: usize = 16 << 20;
/// On their way to the disk.
const BUFFER_BYTES: usize = 32 << 20;
/// So many errors one after the other, and the disk is let alone,
const ERRORS_MAX: u64 = 16;
/// for so long.
const LET_ALONE: Duration = Duration::from_secs(60);
/// A read waits for so long, then it goes to the pool's disks.
const GET_MAX: Duration = Duration::from_millis(500);
/// A disk that has answered nothing for so long, though it was asked, is let alone, too.
const SILENT_MAX: Duration = Duration::from_secs(5);
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// Left free on its file system.
const SPARE_BYTES: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the read cache at {folder} is given {size_bytes} bytes; it needs at least {SIZE_BYTES_MIN}"
    )]
    TooSmall { folder: PathBuf, size_bytes: u64 },
    #[error(
        "the read cache at {folder} is given {size_bytes} bytes, and there is room for {room_bytes}; give it less"
    )]
    NoRoom {
        folder: PathBuf,
        size_bytes: u64,
        room_bytes: u64,
    },
    #[error("the read cache at {folder}: {source}")]
    Io { folder: PathBuf, source: io::Error },
    #[error(
        "the read cache at {folder} cannot be opened: {detail}; empty the folder to start again"
    )]
    Cache { folder: PathBuf, detail: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key([u8; CACHE_PLACE_LEN_BYTES]);

impl Code for Key {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        writer.write_all(&self.0).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
        let mut bytes = [0; CACHE_PLACE_LEN_BYTES];
        reader
            .read_exact(&mut bytes)
            .map_err(foyer::Error::io_error)?;
        Ok(Self(bytes))
    }

    fn estimated_size(&self) -> usize {
        CACHE_PLACE_LEN_BYTES
    }
}

/// What the cache does, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCacheStats {
    pub capacity_bytes: u64,
    /// Pieces that could not be read.
    pub errors: u64,
    /// Whether its disk is let alone because it failed.
    pub is_let_alone: bool,
}

/// A cache in a folder.
pub struct DiskCache {
    cache: HybridCache<Key, Bytes>,
    folder: PathBuf,
    capacity_bytes: u64,
    health: Arc<Health>,
}

#[derive(Default)]
struct Health {
    errors: AtomicU64,
    in_a_row: AtomicU64,
    alone_until: Mutex<Option<Instant>>,
    /// The first read since the last answer was given up then.
    silent_since: Mutex<Option<Instant>>,
}

impl Health {
    fn is_let_alone(&self) -> bool {
        let mut until = self.alone_until.lock();
        match *until {
            Some(end) if Instant::now() < end => true,
            Some(_) => {
                *until = None;
                false
            }
            None => false,
        }
    }

    fn good(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
        *self.silent_since.lock() = None;
    }

    fn bad(&self, folder: &Path, error: &foyer::Error) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        *self.silent_since.lock() = None;
        if self.in_a_row.fetch_add(1, Ordering::Relaxed) + 1 < ERRORS_MAX {
            tracing::debug!(folder = %folder.display(), %error, "the read cache");
            return;
        }
        self.let_alone(folder, error);
    }

    /// A read was given up. A busy disk is late now and then; one that hangs is late each time.
    fn late(&self, folder: &Path) {
        let now = Instant::now();
        let since = *self.silent_since.lock().get_or_insert(now);
        if now.duration_since(since) >= SILENT_MAX {
            self.errors.fetch_add(1, Ordering::Relaxed);
            self.let_alone(folder, &"it does not answer");
        }
    }

    fn let_alone(&self, folder: &Path, why: &dyn std::fmt::Display) {
        self.in_a_row.store(0, Ordering::Relaxed);
        *self.silent_since.lock() = None;
        *self.alone_until.lock() = Some(Instant::now() + LET_ALONE);
        tracing::warn!(folder = %folder.display(), %why, "the read cache fails; reads go to the pool's disks, and it is tried again in a minute");
    }
}

fn io_error(folder: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let folder = folder.to_owned();
    move |source| OpenError::Io { folder, source }
}

/// Removes what other pools have left in the folder. A folder that is not named like a cache is left alone.
fn remove_others(folder: &Path, own: &str) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_cache = name
            .strip_prefix(FOLDER_PREFIX)
            .is_some_and(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_cache && name != own {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

const FOLDER_PREFIX: &str = "cairn-read-cache-";

fn used_bytes(folder: &Path) -> io::Result<u64> {
    let mut used = 0;
    for entry in fs::read_dir(folder)? {
        let metadata = entry?.metadata()?;
        // Of 512 bytes each, whatever the block size: its files have holes until they are full.
        used += std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
    }
    Ok(used)
}

impl DiskCache {
    /// Opens the cache of a pool in a folder, with what it had at the end of the last process if its size is the same. To be
    /// called in a Tokio runtime, which does its work.
    pub async fn open(folder: &Path, pool: PoolId, size_bytes: u64) -> Result<Self, OpenError> {
        if size_bytes < SIZE_BYTES_MIN {
            return Err(OpenError::TooSmall {
                folder: folder.to_owned(),
                size_bytes,
            });
        }
        let name = format!("{FOLDER_PREFIX}{pool}");
        let own = folder.join(&name);
        // Not what it is in: where its drive is not mounted, that would be made on another one.
        match fs::create_dir(&own) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io_error(folder)(error));
            }
            _ => {}
        }
        remove_others(folder, &name).map_err(io_error(folder))?;
        let space = rustix::fs::statvfs(&own).map_err(|error| io_error(folder)(error.into()))?;
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        let used = used_bytes(&own).map_err(io_error(folder))?;
        let room_bytes = (free_bytes + used).saturating_sub(SPARE_BYTES);
        if size_bytes > room_bytes {
            return Err(OpenError::NoRoom {
                folder: folder.to_owned(),
                size_bytes,
                room_bytes,
            });
        }
        let bad = |error: foyer::Error| OpenError::Cache {
            folder: folder.to_owned(),
            detail: error.to_string(),
        };
        let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        let device = FsDeviceBuilder::new(&own).with_capacity(size);
        let device = device
            .with_direct(takes_direct(&own))
            .build()
            .map_err(bad)?;
        let engine = BlockEngineConfig::new(device)
            .with_block_size(BLOCK_BYTES)
            .with_buffer_pool_size(BUFFER_BYTES);
        let cache = HybridCacheBuilder::new()
            .with_name("cairn")
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .memory(MEMORY_BYTES)
            .with_weighter(|_: &Key, bytes: &Bytes| bytes.len())
            .storage()
            .with_engine_config(engine)
            .with_recover_mode(RecoverMode::Quiet)
            .build()
            .await
            .map_err(bad)?;
        Ok(Self {
            cache,
            folder: folder.to_owned(),
            capacity_bytes: size_bytes,
            health: Arc::default(),
        })
    }

    /// Writes queued records, so that the next process finds them.
    pub async fn close(&self) {
        match timeout(CLOSE_MAX, self.cache.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(folder = %self.folder.display(), %error, "closing the read cache");
            }
            Err(_) => {
                tracing::warn!(folder = %self.folder.display(), "the read cache does not answer; it keeps what it had written");
            }
        }
    }

    /// Removes what a cache of a pool has in a folder, and the folder if nothing else is in it. The cache is closed.
    pub fn remove(folder: &Path, pool: PoolId) -> io::Result<()> {
        match fs::remove_dir_all(folder.join(format!("{FOLDER_PREFIX}{pool}"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        // Where others have something in it, or it is a mount point, it stays.
        let _ = fs::remove_dir(folder);
        Ok(())
    }

    pub fn stats(&self) -> ReadCacheStats {
        ReadCacheStats {
            capacity_bytes: self.capacity_bytes,
            errors: self.health.errors.load(Ordering::Relaxed),
            is_let_alone: self.health.is_let_alone(),
        }
    }
}

/// Whether files of the folder can be read and written past the page cache, which would keep everything twice.
fn takes_direct(folder: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let path = folder.join("direct");
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let opened = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .custom_flags(flags)
        .open(&path);
    let _ = fs::remove_file(&path);
    opened.is_ok()
}

impl ReadCache for DiskCache {
    fn get(&self, place: CachePlace) -> BoxFuture<Option<Bytes>> {
        if self.health.is_let_alone() {
            return Box::pin(async { None });
        }
        let getting = self.cache.get(&Key(place.encode()));
        let (health, folder) = (Arc::clone(&self.health), self.folder.clone());
        Box::pin(async move {
            match timeout(GET_MAX, getting).await {
                Ok(Ok(found)) => {
                    health.good();
                    found.map(|entry| entry.value().clone())
                }
                Ok(Err(error)) => {
                    health.bad(&folder, &error);
                    None
                }
                Err(_) => {
                    health.late(&folder);
                    None
                }
            }
        })
    }

    fn put(&self, place: CachePlace, stored: Bytes) {
        if !self.health.is_let_alone() {
            self.cache
                .storage_writer(Key(place.encode()))
                .insert(stored);
        }
    }

    fn forget(&self, place: CachePlace) {
        self.cache.remove(&Key(place.encode()));
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_let_alone_when_it_answers_nothing_and_not_when_it_is_late() {
        let (health, folder) = (Health::default(), Path::new("/fast"));
        let long_ago = Instant::now().checked_sub(SILENT_MAX);
        for answers in [true, false] {
            health.late(folder);
            *health.silent_since.lock() = long_ago;
            if answers {
                health.good();
            }
            health.late(folder);
            assert_eq!(health.is_let_alone(), !answers);
        }
        *health.alone_until.lock() = Some(Instant::now());
        assert!(!health.is_let_alone(), "it is tried again");
        health.late(folder);
        assert!(!health.is_let_alone());
    }
}
