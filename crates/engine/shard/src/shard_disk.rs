//! The shards of one disk: its identity, which shards it has, and which files wait for new ones.
//!
//! Owns: names and the order in which they become durable, handles, health.
//! Must not know: what the shards hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_base::disk::{Disk, DiskError, DiskFile, DiskSpace, OpenMode};
use cairn_base::planted::{self, Bug};
use cairn_base::{AlignedBuf, DiskId, Epoch, PoolId, Timestamp, VolumeId};
use cairn_formats::FormatError;
use cairn_formats::copies::Picked;
use cairn_formats::shard::footer::{TRAILER_LEN_BYTES, file_len_bytes};
use cairn_formats::shard::identity::DiskIdentity;
use cairn_formats::shard::name::{
    HIDDEN_FOLDER, ShardKind, ShardName, VOLUMES_FOLDER, hidden_path, parse_shard, parse_volume,
    shard_path, shards_folder, volume_path,
};
use cairn_formats::shard::promise::{promise_path, promise_path_new};
use parking_lot::Mutex;
use quick_cache::UnitWeighter;
use quick_cache::sync::Cache;
use rustc_hash::FxBuildHasher;

use crate::error::ShardError;
use crate::fence::{Fences, Keeper, Turn};
use crate::health::{DiskHealth, Health};
use crate::identity_file;
use crate::recycle::{FREE_FOLDER, FreeFile, FreeFiles};
use crate::service::{HiddenId, HiddenShards};
use crate::shard::{Live, Shard};

/// Written now and then to find out whether the disk answers.
pub const PROBE_NAME: &str = "watch";
const PROBE_LEN_BYTES: usize = 4096;
/// So many shards that were published last are remembered, for sweeps that began before. Older lists sweep nothing.
const PUBLISHED_MAX: usize = 4096;

/// Settings of the shards of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSettings {
    /// Most files kept for new shards; 0: none.
    pub recycled_files_max: usize,
    /// Most shards kept open that nobody uses at the moment; at least 1.
    pub open_shards_max: usize,
    /// So many I/O errors in a row make the disk suspect, see [`DiskHealth::suspect`]; at least 1.
    pub errors_in_a_row_max: u32,
}

impl Default for ShardSettings {
    fn default() -> Self {
        Self {
            recycled_files_max: 8,
            open_shards_max: 1024,
            errors_in_a_row_max: 8,
        }
    }
}

/// What the disk and its open shards share.
pub(crate) struct DiskCore {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) health: Health,
    live: Mutex<Live>,
}

impl DiskCore {
    pub(crate) fn label(&self) -> &str {
        self.disk.label()
    }

    pub(crate) fn forget(&self, name: ShardName, tainted: bool) {
        self.live.lock().forget(name, tainted);
    }

    fn error_of(&self, name: ShardName, error: DiskError) -> ShardError {
        let disk = self.label().to_owned();
        match error {
            DiskError::NotFound { .. } => ShardError::NotFound { disk, shard: name },
            DiskError::Exists { .. } => ShardError::Exists { disk, shard: name },
            other => ShardError::Disk(other),
        }
    }
}

/// The shards that were published last, numbered from 1.
#[derive(Default)]
struct Published {
    count: u64,
    last: VecDeque<ShardName>,
}

impl Published {
    fn add(&mut self, name: ShardName) {
        self.count += 1;
        self.last.push_back(name);
        if self.last.len() > PUBLISHED_MAX {
            self.last.pop_front();
        }
    }

    /// Whether a shard was published after the first `mark` ones, or may have been.
    fn has_since(&self, name: ShardName, mark: u64) -> bool {
        let since = usize::try_from(self.count.saturating_sub(mark)).unwrap_or(usize::MAX);
        since > self.last.len() || self.last.iter().rev().take(since).any(|last| *last == name)
    }
}

/// The shards of one disk of a pool.
pub struct ShardDisk {
    identity: DiskIdentity,
    shared: Arc<DiskCore>,
    /// Keeps handles open; those in use elsewhere are also found through `DiskCore::live`.
    open: Cache<ShardName, Arc<Shard>, UnitWeighter, FxBuildHasher>,
    free: FreeFiles,
    /// Volumes whose marker is known to be there.
    volumes: Mutex<BTreeSet<VolumeId>>,
    /// Held for writing while a name changes to another file, for reading while one is looked up,
    /// so that no handle is made of a file that is on its way to the free ones.
    names: tokio::sync::RwLock<()>,
    /// For the file of the next hidden shard.
    hidden_next: AtomicU64,
    /// Those that are being filled for somebody who only knows their names.
    hidden: Mutex<HiddenShards>,
    published: Mutex<Published>,
    fences: Fences,
    /// Of shards that are being made, beside which some space is kept.
    claimed_bytes: AtomicU64,
    /// How often a file of a volume's metadata, or a promise, found no room.
    metadata_fulls: AtomicU64,
    /// Whether the disk told its space when it was asked last; a change is logged, not each question.
    tells_space: AtomicBool,
}

/// Space that a shard takes which is being made.
pub(crate) struct Claim<'a> {
    claimed_bytes: &'a AtomicU64,
    len_bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claimed_bytes
            .fetch_sub(self.len_bytes, Ordering::SeqCst);
    }
}

/// Asks a disk whose shards nobody has open to write something durably and to read it back. A full disk is fine.
pub async fn probe_unopened(disk: &dyn Disk) -> Result<(), DiskError> {
    let len_bytes = PROBE_LEN_BYTES as u64;
    let probed = async {
        let file = match disk.open(PROBE_NAME, OpenMode::Existing).await {
            Err(DiskError::NotFound { .. }) => {
                let made = disk.open(PROBE_NAME, OpenMode::CreateNew { len_bytes });
                made.await?
            }
            file => file?,
        };
        let zeros = AlignedBuf::zeroed(PROBE_LEN_BYTES).freeze();
        file.write_durable_at(0, vec![zeros]).await?;
        file.read_at(0, PROBE_LEN_BYTES).await.map(drop)
    };
    match probed.await {
        Err(DiskError::Full { .. }) => Ok(()),
        probed => probed,
    }
}

impl ShardDisk {
    /// Makes a blank disk a disk of `pool`. Durable when it returns; a crash leaves it blank or whole.
    /// Fails with `AlreadyFormatted` if it has an identity.
    pub async fn format(
        disk: Arc<dyn Disk>,
        pool: PoolId,
        id: DiskId,
        now: Timestamp,
    ) -> Result<(), ShardError> {
        if let Some(identity) = Self::identity(&disk).await? {
            return Err(ShardError::AlreadyFormatted {
                disk: disk.label().to_owned(),
                id: identity.disk,
                pool: identity.pool,
            });
        }
        let identity = DiskIdentity {
            pool,
            disk: id,
            created: now,
        };
        identity_file::write(&disk, &identity).await
    }

    /// Which disk this is. `None`: it has no identity, it is blank. One that is there but cannot be
    /// read is an error, never a blank disk. One of its two copies will do.
    pub async fn identity(disk: &Arc<dyn Disk>) -> Result<Option<DiskIdentity>, ShardError> {
        let read = identity_file::read(disk).await?;
        Ok(read.map(|read| read.value))
    }

    /// Reads both copies of the identity, and writes the file again if one of them is not as it was written, or
    /// neither. True if that was so. A file that is gone, or that names another disk, is left alone.
    pub async fn check_identity(&self) -> Result<bool, ShardError> {
        let label = self.label().to_owned();
        let why = match identity_file::read(self.disk()).await {
            Ok(None) => return Err(ShardError::NotFormatted { disk: label }),
            Ok(Some(read)) if read.value != self.identity => {
                let reason = FormatError::Field("disk or pool");
                return Err(ShardError::DamagedIdentity {
                    disk: label,
                    reason,
                });
            }
            Ok(Some(Picked { bad: None, .. })) => return Ok(false),
            Ok(Some(Picked { bad: Some(bad), .. })) => bad.to_string(),
            // What a newer program wrote is not ours to replace.
            Err(
                error @ ShardError::DamagedIdentity {
                    reason: FormatError::Version { .. },
                    ..
                },
            ) => return Err(error),
            Err(error @ ShardError::DamagedIdentity { .. }) => error.to_string(),
            Err(error) => return Err(error),
        };
        self.repair_identity(&why).await?;
        Ok(true)
    }

    async fn repair_identity(&self, why: &str) -> Result<(), ShardError> {
        self.note_checksum_error();
        identity_file::write(self.disk(), &self.identity).await?;
        tracing::warn!(
            disk = self.label(),
            why,
            "the identity file was damaged and is repaired"
        );
        Ok(())
    }

    /// Opens a disk of `pool`. Fails with `NotFormatted` if it is blank, with `WrongPool` if it is
    /// another pool's.
    pub async fn open(
        disk: Arc<dyn Disk>,
        pool: PoolId,
        settings: ShardSettings,
    ) -> Result<Arc<Self>, ShardError> {
        let label = disk.label().to_owned();
        let read = identity_file::read(&disk).await?;
        let Picked {
            value: identity,
            bad,
        } = read.ok_or_else(|| ShardError::NotFormatted {
            disk: label.clone(),
        })?;
        if identity.pool != pool {
            return Err(ShardError::WrongPool {
                disk: label,
                found: identity.pool,
                wanted: pool,
            });
        }
        let markers = disk.list(VOLUMES_FOLDER).await?;
        let volumes = markers
            .iter()
            .filter_map(|name| parse_volume(name))
            .collect();
        let free_names = disk.list(FREE_FOLDER).await?;
        let (free, mut surplus) = FreeFiles::adopt(settings.recycled_files_max, free_names);
        for file in free.all() {
            // A crash may have kept the name of a file and lost its length: what it does not have is no
            // space that it could give back.
            let opened = disk.open(&file.path(), OpenMode::Existing).await;
            if opened.map_or(0, |opened| opened.len_bytes()) != file.file_len_bytes() {
                free.forget(&file);
                surplus.push(file.path());
            }
        }
        for path in surplus {
            // What cannot be removed now is tried again at the next start.
            let _ = disk.remove(&path).await;
        }
        for file_name in disk.list(HIDDEN_FOLDER).await? {
            // A rebuild that a crash broke off; who finds the shard missing begins anew.
            let _ = disk.remove(&format!("{HIDDEN_FOLDER}/{file_name}")).await;
        }
        let opened = Arc::new(Self {
            identity,
            shared: Arc::new(DiskCore {
                disk,
                health: Health::new(settings.errors_in_a_row_max.max(1)),
                live: Mutex::default(),
            }),
            open: Cache::with(
                settings.open_shards_max.max(1),
                settings.open_shards_max.max(1) as u64,
                UnitWeighter,
                FxBuildHasher,
                Default::default(),
            ),
            free,
            volumes: Mutex::new(volumes),
            names: tokio::sync::RwLock::default(),
            hidden_next: AtomicU64::new(0),
            hidden: Mutex::default(),
            published: Mutex::default(),
            fences: Fences::default(),
            claimed_bytes: AtomicU64::new(0),
            metadata_fulls: AtomicU64::new(0),
            tells_space: AtomicBool::new(true),
        });
        if let Some(bad) = bad
            && let Err(error) = opened.repair_identity(&bad.to_string()).await
        {
            // One copy is enough to serve; a scrub tries again.
            tracing::error!(disk = opened.label(), %error, "the identity file is not repaired");
        }
        Ok(opened)
    }

    /// Goes on with the numbers of the same disk as it was open before in this process. Other nodes keep the numbers that they were
    /// given for as long as their connection lasts: none of them may mean something else now. A list from before sweeps nothing.
    pub fn continue_from(&self, before: &Self) {
        let hidden_next = before.hidden_next.load(Ordering::Relaxed);
        self.hidden_next.fetch_max(hidden_next, Ordering::Relaxed);
        let published_count = before.published.lock().count;
        let mut published = self.published.lock();
        published.count += published_count + PUBLISHED_MAX as u64 + 1;
    }

    /// Keeps fewer shards open from now on, or more.
    pub fn set_open_shards_max(&self, open_shards_max: usize) {
        self.open.set_capacity(open_shards_max.max(1) as u64);
    }

    pub fn id(&self) -> DiskId {
        self.identity.disk
    }

    pub fn pool(&self) -> PoolId {
        self.identity.pool
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.shared.disk
    }

    pub fn label(&self) -> &str {
        self.shared.label()
    }

    /// Space of the disk; files kept for new shards count as free, because they can be released.
    pub fn space(&self) -> Result<DiskSpace, ShardError> {
        let space = self.shared.disk.space();
        let told_before = self.tells_space.swap(space.is_ok(), Ordering::Relaxed);
        match &space {
            Err(error) if told_before => tracing::warn!(%error, "a disk does not tell its space"),
            Ok(_) if !told_before => {
                tracing::info!(disk = self.label(), "a disk tells its space again")
            }
            _ => {}
        }
        let space = space?;
        let free_bytes = space.free_bytes.saturating_add(self.free.len_bytes());
        Ok(DiskSpace {
            total_bytes: space.total_bytes,
            free_bytes: free_bytes.min(space.total_bytes),
        })
    }

    /// How often a file of a volume's log or state, of whichever node, or a promise found no room here; only differences
    /// mean something. Data that finds none is refused, and these are waited for.
    pub fn metadata_fulls(&self) -> u64 {
        self.metadata_fulls.load(Ordering::Relaxed)
    }

    /// Bytes in files kept for new shards.
    pub fn recycled_bytes(&self) -> u64 {
        self.free.len_bytes()
    }

    pub fn health(&self) -> DiskHealth {
        self.shared.health.get()
    }

    /// The health of the disk, known without asking it.
    pub fn state(&self) -> &Health {
        &self.shared.health
    }

    /// Counts it as failed: nothing is written to it any more, and it is read only as a last resort.
    pub fn mark_failed(&self) {
        self.shared.health.fail();
    }

    /// Whether nothing is written to it, and it is read only as a last resort: it failed, or it is suspected to.
    pub fn is_avoided(&self) -> bool {
        self.shared.health.is_avoided()
    }

    /// The errors in a row were not this disk's fault, or are over: it is used again. Takes no verdict back.
    pub fn clear_suspicion(&self) {
        self.shared.health.clear_suspicion();
    }

    /// Somebody who watches it has found that it answers nothing at the moment, or that it does again. Who can do
    /// without what is on it does not wait for it.
    pub fn set_silent(&self, silent: bool) {
        self.shared.health.set_silent(silent);
    }

    /// How many writes and syncs have ended so far, well or not: who waits for one finds out whether others end.
    pub fn writes_answered(&self) -> u64 {
        self.shared.health.writes_answered()
    }

    pub fn is_silent(&self) -> bool {
        self.shared.health.is_silent()
    }

    /// Resolves when it answers nothing, see [`Self::set_silent`].
    pub async fn silence(&self) {
        self.shared.health.silence().await;
    }

    /// Asks the disk to write something durably and to read it back; the errors count like any others. For
    /// those who work with its folder past us, and would not notice that it fails or hangs. A full disk is fine.
    pub async fn probe(&self) -> Result<(), ShardError> {
        match self.probe_now().await {
            Err(ShardError::Disk(DiskError::Full { .. })) => Ok(()),
            probed => probed,
        }
    }

    async fn probe_now(&self) -> Result<(), ShardError> {
        let disk = &self.shared.disk;
        let health = &self.shared.health;
        let file = match health.note_read(disk.open(PROBE_NAME, OpenMode::Existing).await) {
            Err(DiskError::NotFound { .. }) => {
                let len_bytes = PROBE_LEN_BYTES as u64;
                let made = disk.open(PROBE_NAME, OpenMode::CreateNew { len_bytes });
                health.note_write(made.await)?
            }
            file => file?,
        };
        let zeros = AlignedBuf::zeroed(PROBE_LEN_BYTES).freeze();
        health.note_durable(file.write_durable_at(0, vec![zeros]).await)?;
        health.note_read(file.read_at(0, PROBE_LEN_BYTES).await)?;
        Ok(())
    }

    /// Counts wrong bytes read from this disk; only the reader, who has the checksums, can tell.
    pub fn note_checksum_error(&self) {
        self.shared.health.note_checksum_error();
    }

    /// Makes a shard for `capacity_bytes` of data (a multiple of 4096, at most
    /// [`crate::SHARD_CAPACITY_BYTES_MAX`]), allocated at once. Its name is durable after its first
    /// sync. Its content is undefined until written. A full disk first gives up its files kept for
    /// new shards.
    ///
    /// Fails with `Exists`, with the disk's `Full`, or with the disk's errors.
    pub async fn create(
        &self,
        name: ShardName,
        capacity_bytes: u64,
    ) -> Result<Arc<Shard>, ShardError> {
        let len_bytes = self.file_len_bytes(name, capacity_bytes)?;
        self.free.note_capacity(capacity_bytes);
        while let Some(free) = self.free.take(capacity_bytes) {
            match self.create_recycled(name, &free).await {
                Ok(shard) => return Ok(shard),
                Err(error @ ShardError::Exists { .. }) => {
                    self.drop_free(free).await;
                    return Err(error);
                }
                // A free file that does not work is no reason to fail: a new one is made.
                Err(_) => self.drop_free(free).await,
            }
        }
        let _names = self.names.read().await;
        self.note_volume(name.volume).await?;
        let file = self.create_file(name, &shard_path(name), len_bytes).await?;
        let folders = vec![shards_folder(name.volume)];
        Ok(self.adopt(name, file, Some(capacity_bytes), folders))
    }

    /// Takes the space of a shard that is about to be made, until that is there; fails with `Full` if less than `kept_bytes`
    /// would be left beside it and all others that are being made.
    pub(crate) fn claim(
        &self,
        name: ShardName,
        capacity_bytes: u64,
        kept_bytes: u64,
    ) -> Result<Option<Claim<'_>>, ShardError> {
        if kept_bytes == 0 || planted::is(Bug::SpaceClaimedTogether) {
            return Ok(None);
        }
        let len_bytes = self.file_len_bytes(name, capacity_bytes)?;
        // Before the disk is looked at: what somebody else makes meanwhile is counted once at least, by one of both.
        let others_bytes = self.claimed_bytes.fetch_add(len_bytes, Ordering::SeqCst);
        let claim = Claim {
            claimed_bytes: &self.claimed_bytes,
            len_bytes,
        };
        let free_bytes = self.space()?.free_bytes.saturating_sub(others_bytes);
        if free_bytes < len_bytes.saturating_add(kept_bytes) {
            return Err(DiskError::Full {
                disk: self.label().to_owned(),
                what: format!(
                    "making shard {name}, beside which {kept_bytes} bytes are kept: {free_bytes} are free"
                ),
            }
            .into());
        }
        Ok(Some(claim))
    }

    /// As [`Self::create`], for a shard that nobody finds before [`Self::publish`]: one that is filled
    /// with what others already look for. A crash before that leaves no shard.
    pub async fn create_hidden(
        &self,
        name: ShardName,
        capacity_bytes: u64,
    ) -> Result<HiddenShard, ShardError> {
        let len_bytes = self.file_len_bytes(name, capacity_bytes)?;
        let number = self.hidden_next.fetch_add(1, Ordering::Relaxed);
        let path = hidden_path(name, number);
        let file = self.create_file(name, &path, len_bytes).await?;
        let capacity_bytes = Some(capacity_bytes);
        let shard = Shard::new(name, self.shared.clone(), file, capacity_bytes, Vec::new());
        Ok(HiddenShard {
            shard: Arc::new(shard),
            path,
            number,
        })
    }

    /// Deletes a hidden shard, which gives its space back. What cannot be deleted is at the next start.
    pub async fn discard(&self, hidden: HiddenShard) {
        let HiddenShard { shard, path, .. } = hidden;
        drop(shard);
        let removed = self.shared.disk.remove(&path).await;
        match self.shared.health.note_write(removed) {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => tracing::warn!(%error, "half a shard stays until the next start"),
        }
    }

    /// Makes a hidden shard one that is found, with all that was written to it; durable when this
    /// returns. Fails with `Exists` if there is one of its name meanwhile. After an error the hidden shard
    /// is gone.
    pub async fn publish(&self, hidden: HiddenShard) -> Result<Arc<Shard>, ShardError> {
        match self.publish_now(&hidden).await {
            Ok(()) => Ok(hidden.shard),
            Err(error) => {
                self.discard(hidden).await;
                Err(error)
            }
        }
    }

    async fn publish_now(&self, hidden: &HiddenShard) -> Result<(), ShardError> {
        let HiddenShard { shard, path, .. } = hidden;
        let name = shard.name();
        if !planted::is(Bug::MovedShardNotSynced) {
            shard.sync().await?;
        }
        let _names = self.names.write().await;
        self.require_absent(name).await?;
        self.note_volume(name.volume).await?;
        // Before anybody finds it: a sweep that listed another one of its name must not take it.
        self.published.lock().add(name);
        let disk = &self.shared.disk;
        let health = &self.shared.health;
        let folder = shards_folder(name.volume);
        health.note_write(disk.rename(path, &shard_path(name)).await)?;
        health.note_write(disk.sync_folder(HIDDEN_FOLDER).await)?;
        if !planted::is(Bug::MovedShardNotSynced) {
            health.note_write(disk.sync_folder(&folder).await)?;
        }
        self.shared.live.lock().insert(shard);
        self.open.insert(name, shard.clone());
        Ok(())
    }

    fn file_len_bytes(&self, name: ShardName, capacity_bytes: u64) -> Result<u64, ShardError> {
        file_len_bytes(capacity_bytes).ok_or_else(|| ShardError::BadRange {
            disk: self.label().to_owned(),
            shard: name,
            what: "a capacity that no shard can have",
            offset: 0,
            len_bytes: capacity_bytes,
        })
    }

    /// Makes the file of a shard at `path`.
    async fn create_file(
        &self,
        name: ShardName,
        path: &str,
        len_bytes: u64,
    ) -> Result<Arc<dyn DiskFile>, ShardError> {
        let disk = &self.shared.disk;
        let mode = OpenMode::CreateNew { len_bytes };
        let mut result = disk.open(path, mode).await;
        // Files that wait for shards of another size are space, too.
        if matches!(result, Err(DiskError::Full { .. })) && self.free.len_bytes() > 0 {
            self.release_recycled().await?;
            result = disk.open(path, mode).await;
        }
        let result = self.shared.health.note_write(result);
        if matches!(result, Err(DiskError::Full { .. })) && name.kind() != ShardKind::Segment {
            self.metadata_fulls.fetch_add(1, Ordering::Relaxed);
        }
        result.map_err(|error| self.shared.error_of(name, error))
    }

    /// Fails with `Exists` if a shard of this name is there: a rename would replace its file.
    async fn require_absent(&self, name: ShardName) -> Result<(), ShardError> {
        let disk = &self.shared.disk;
        match disk.open(&shard_path(name), OpenMode::Existing).await {
            Err(DiskError::NotFound { .. }) => Ok(()),
            Ok(_) => Err(ShardError::Exists {
                disk: self.label().to_owned(),
                shard: name,
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Turns a free file into the shard `name`.
    async fn create_recycled(
        &self,
        name: ShardName,
        free: &FreeFile,
    ) -> Result<Arc<Shard>, ShardError> {
        let disk = &self.shared.disk;
        let health = &self.shared.health;
        if let Some(folder) = &free.unsynced_folder {
            health.note_write(disk.sync_folder(folder).await)?;
            health.note_write(disk.sync_folder(FREE_FOLDER).await)?;
        }
        let path = free.path();
        let file = health.note_read(disk.open(&path, OpenMode::Existing).await)?;
        if file.len_bytes() != free.file_len_bytes() {
            return Err(DiskError::Short {
                disk: self.label().to_owned(),
                name: path,
                len_bytes: file.len_bytes(),
                wanted_bytes: free.file_len_bytes(),
            }
            .into());
        }
        // An old trailer names another shard, or this one in an earlier life (a rebuild): it must
        // be gone for good before the file has the new name.
        let trailer_start = file.len_bytes().saturating_sub(TRAILER_LEN_BYTES as u64);
        let block = health.note_read(file.read_at(trailer_start, TRAILER_LEN_BYTES).await)?;
        if block.iter().any(|byte| *byte != 0) {
            let zeros = AlignedBuf::zeroed(TRAILER_LEN_BYTES).freeze();
            health.note_durable(file.write_durable_at(trailer_start, vec![zeros]).await)?;
        }
        let _names = self.names.write().await;
        self.require_absent(name).await?;
        self.note_volume(name.volume).await?;
        health.note_write(disk.rename(&path, &shard_path(name)).await)?;
        // The free name goes first: a crash in between loses the empty file, never doubles it.
        let mut folders = vec![FREE_FOLDER.to_owned(), shards_folder(name.volume)];
        if planted::is(Bug::RecycledNameHalfSynced) {
            folders.remove(0);
        }
        Ok(self.adopt(name, file, Some(free.capacity_bytes), folders))
    }

    async fn drop_free(&self, free: FreeFile) {
        // It is off the list; if it stays on the disk, the next start finds it.
        let _ = self.shared.disk.remove(&free.path()).await;
    }

    /// Opens a shard that is there. Fails with `NotFound` if it is not. After a sync that failed it is reopened
    /// once nobody holds it.
    pub async fn open_shard(&self, name: ShardName) -> Result<Arc<Shard>, ShardError> {
        if let Some(shard) = self.open.get(&name) {
            if !shard.is_sync_lost() {
                return Ok(shard);
            }
            // Nothing is durable through it any more. Who holds it is told; who repairs the shard later must not be.
            // Bytes that never reached the disk may still be read from the page cache, and that is all that they
            // are good for: a sync of the new handle vouches for what is written through it, and what is read from
            // the disk is checked against the footer, and against the records' checksums, with any writer.
            self.open.remove(&name);
        }
        let _names = self.names.read().await;
        if let Some(shard) = self.live(name) {
            self.open.insert(name, shard.clone());
            return Ok(shard);
        }
        let result = self
            .shared
            .disk
            .open(&shard_path(name), OpenMode::Existing)
            .await;
        let file = self
            .shared
            .health
            .note_read(result)
            .map_err(|error| self.shared.error_of(name, error))?;
        // An earlier handle may have been dropped before its first sync.
        let folders = vec![FREE_FOLDER.to_owned(), shards_folder(name.volume)];
        Ok(self.adopt(name, file, None, folders))
    }

    fn live(&self, name: ShardName) -> Option<Arc<Shard>> {
        self.shared.live.lock().get(name)
    }

    /// The handle of `name`: the one that is there already, or a new one for `file`.
    fn adopt(
        &self,
        name: ShardName,
        file: Arc<dyn DiskFile>,
        capacity_bytes: Option<u64>,
        unsynced_folders: Vec<String>,
    ) -> Arc<Shard> {
        // Made before the lock is taken: if it is not needed, its drop takes the lock.
        let shared = self.shared.clone();
        let new = Arc::new(Shard::new(
            name,
            shared,
            file,
            capacity_bytes,
            unsynced_folders,
        ));
        let shard = {
            let mut live = self.shared.live.lock();
            live.get(name).unwrap_or_else(|| {
                live.insert(&new);
                new.clone()
            })
        };
        self.open.insert(name, shard.clone());
        shard
    }

    /// Removes a shard; one that is not there is no error. Handles to it give `NotFound` from now on.
    /// The removal becomes durable some time later: a crash can bring the shard back, which garbage
    /// collection has to expect.
    pub async fn remove(&self, name: ShardName) -> Result<(), ShardError> {
        self.remove_unless(name, || false).await.map(drop)
    }

    /// As [`Self::remove`], unless `is_wanted` says otherwise when nobody can make, publish or remove a shard
    /// here any more before it is gone. Whether it was removed.
    pub async fn remove_unless(
        &self,
        name: ShardName,
        is_wanted: impl FnOnce() -> bool,
    ) -> Result<bool, ShardError> {
        let _names = self.names.write().await;
        if is_wanted() {
            return Ok(false);
        }
        self.remove_named(name).await.map(|()| true)
    }

    /// The caller holds the names.
    async fn remove_named(&self, name: ShardName) -> Result<(), ShardError> {
        self.open.remove(&name);
        let (live, tainted) = {
            let mut live = self.shared.live.lock();
            (live.get(name), live.take_taint(name))
        };
        // A file with a write under way must not become another shard's.
        let (quiet, capacity_bytes) = match &live {
            Some(shard) => (shard.retire() && !tainted, shard.capacity_bytes()),
            None if tainted => (false, None),
            None => match self
                .shared
                .disk
                .open(&shard_path(name), OpenMode::Existing)
                .await
            {
                Ok(file) => (
                    true,
                    cairn_formats::shard::footer::capacity_of_file(file.len_bytes()),
                ),
                Err(DiskError::NotFound { .. }) => return Ok(()),
                // It may still be possible to remove it.
                Err(_) => (false, None),
            },
        };
        let result = self
            .remove_file(name, capacity_bytes.filter(|_| quiet))
            .await;
        match (&result, &live) {
            (Ok(()), _) => self.shared.live.lock().remove(name),
            (Err(_), Some(shard)) => shard.unretire(),
            (Err(_), None) => {}
        }
        if result.is_err() && tainted {
            self.shared.forget(name, true);
        }
        result
    }

    /// `capacity_bytes`: of a file that may be used again.
    async fn remove_file(
        &self,
        name: ShardName,
        capacity_bytes: Option<u64>,
    ) -> Result<(), ShardError> {
        let disk = &self.shared.disk;
        let path = shard_path(name);
        let folder = shards_folder(name.volume);
        if let Some(free) =
            capacity_bytes.and_then(|capacity| self.free.reserve(capacity, Some(folder)))
        {
            match self
                .shared
                .health
                .note_write(disk.rename(&path, &free.path()).await)
            {
                Ok(()) => {
                    self.free.add(free);
                    return Ok(());
                }
                Err(DiskError::NotFound { .. }) => {
                    self.free.give_up();
                    return Ok(());
                }
                // Deleting needs less than renaming.
                Err(_) => self.free.give_up(),
            }
        }
        match self.shared.health.note_write(disk.remove(&path).await) {
            Ok(()) | Err(DiskError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The shards of a volume on this disk, in order, open or not.
    pub async fn list(&self, volume: VolumeId) -> Result<Vec<ShardName>, ShardError> {
        let names = self.shared.disk.list(&shards_folder(volume)).await;
        let names = self.shared.health.note_read(names)?;
        let mut shards: Vec<ShardName> = names
            .iter()
            .filter_map(|name| parse_shard(volume, name))
            .collect();
        shards.sort_unstable();
        Ok(shards)
    }

    /// The volumes that have, or had, shards on this disk, in order.
    pub async fn volumes(&self) -> Result<Vec<VolumeId>, ShardError> {
        let markers = self.shared.disk.list(VOLUMES_FOLDER).await;
        let markers = self.shared.health.note_read(markers)?;
        let mut volumes: Vec<VolumeId> = markers
            .iter()
            .filter_map(|name| parse_volume(name))
            .collect();
        volumes.sort_unstable();
        Ok(volumes)
    }

    /// Forgets a deleted volume that has no shards here any more.
    pub async fn forget_volume(&self, volume: VolumeId) -> Result<(), ShardError> {
        let _names = self.names.write().await;
        if !self.list(volume).await?.is_empty() {
            return Ok(());
        }
        self.volumes.lock().remove(&volume);
        // The marker last: with it the next start looks here again.
        let paths = [
            promise_path(volume),
            promise_path_new(volume),
            volume_path(volume),
        ];
        for path in paths {
            match self.shared.disk.remove(&path).await {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.fences.forget(volume);
        Ok(())
    }

    fn keeper(&self) -> Keeper<'_> {
        Keeper {
            disk: &self.shared.disk,
            health: &self.shared.health,
        }
    }

    /// Begins a change of an owner of a volume. What this returns is held until it is over.
    pub(crate) async fn enter(
        &self,
        volume: VolumeId,
        epoch: Epoch,
    ) -> Result<Turn<'_>, ShardError> {
        loop {
            if let Some(turn) = self.fences.enter(&self.keeper(), volume, epoch).await? {
                return Ok(turn);
            }
            self.promise(volume, epoch).await?;
        }
    }

    pub(crate) async fn promised(&self, volume: VolumeId) -> Result<Epoch, ShardError> {
        self.fences.promised(&self.keeper(), volume).await
    }

    pub(crate) fn enter_unasked(&self, volume: VolumeId, epoch: Epoch) -> Turn<'_> {
        self.fences.enter_unasked(volume, epoch)
    }

    /// Refuses lower epochs of a volume from now on, durably, and deletes what their owners had not published.
    pub(crate) async fn promise(&self, volume: VolumeId, epoch: Epoch) -> Result<(), ShardError> {
        {
            let _names = self.names.read().await;
            self.note_volume(volume).await?;
        }
        let mut promised = self.fences.fence(&self.keeper(), volume, epoch).await;
        let is_full = matches!(promised, Err(ShardError::Disk(DiskError::Full { .. })));
        if is_full && self.free.len_bytes() > 0 {
            self.release_recycled().await?;
            promised = self.fences.fence(&self.keeper(), volume, epoch).await;
        }
        if matches!(promised, Err(ShardError::Disk(DiskError::Full { .. }))) {
            self.metadata_fulls.fetch_add(1, Ordering::Relaxed);
        }
        promised?;
        let left: Vec<HiddenShard> = {
            let mut hidden = self.hidden.lock();
            let is_left = |id: &HiddenId, of: Epoch| id.name.volume == volume && of < epoch;
            let left = hidden.extract_if(.., |id, (of, _)| is_left(id, *of));
            left.map(|(_, (_, hidden))| hidden).collect()
        };
        for hidden in left {
            self.discard(hidden).await;
        }
        Ok(())
    }

    pub(crate) fn hidden_shards(&self) -> &Mutex<HiddenShards> {
        &self.hidden
    }

    pub(crate) fn keep_hidden(&self, hidden: HiddenShard, epoch: Epoch) -> HiddenId {
        let id = HiddenId {
            name: hidden.shard.name(),
            number: hidden.number,
        };
        self.hidden.lock().insert(id, (epoch, hidden));
        id
    }

    /// How many shards were published since the disk was opened.
    pub(crate) fn published_mark(&self) -> u64 {
        self.published.lock().count
    }

    /// Whether a shard was published after `mark`, or may have been.
    pub(crate) fn is_published_since(&self, name: ShardName, mark: u64) -> bool {
        self.published.lock().has_since(name, mark)
    }

    /// Makes the marker of a volume, durably, before its first shard: `volumes` must name all. The caller holds the
    /// names, so that it is not forgotten before its shard is there.
    async fn note_volume(&self, volume: VolumeId) -> Result<(), ShardError> {
        if self.volumes.lock().contains(&volume) {
            return Ok(());
        }
        let disk = &self.shared.disk;
        let health = &self.shared.health;
        let mode = OpenMode::CreateNew { len_bytes: 0 };
        match health.note_write(disk.open(&volume_path(volume), mode).await) {
            Ok(_) | Err(DiskError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        health.note_write(disk.sync_folder(VOLUMES_FOLDER).await)?;
        self.volumes.lock().insert(volume);
        Ok(())
    }

    /// How many files wait for shards of this capacity.
    pub fn recycled_count(&self, capacity_bytes: u64) -> usize {
        self.free.count(capacity_bytes)
    }

    /// How many files wait for new shards, by capacity.
    pub fn recycled(&self) -> BTreeMap<u64, usize> {
        self.free.counts()
    }

    /// Makes zero-written files until `count` (at most the setting) wait for shards of this
    /// capacity; files of other capacities make place for them. Slow: it writes them. Stops at the
    /// first error.
    pub async fn prepare_recycled(
        &self,
        count: usize,
        capacity_bytes: u64,
    ) -> Result<(), ShardError> {
        self.free.note_capacity(capacity_bytes);
        while self.free.count(capacity_bytes) < count {
            let Some(free) = self.free.reserve(capacity_bytes, None) else {
                let Some(other) = self.free.take_other(capacity_bytes) else {
                    break;
                };
                self.drop_free(other).await;
                continue;
            };
            let reserved = Reserved {
                free: &self.free,
                kept: false,
            };
            let len_bytes = free.file_len_bytes();
            let mode = OpenMode::CreateZeroed { len_bytes };
            let opened = self.shared.disk.open(&free.path(), mode).await;
            self.shared.health.note_write(opened)?;
            reserved.keep(free);
        }
        Ok(())
    }

    /// How often a file began to wait for a new shard, or a new shard looked for one; only differences mean something.
    pub fn recycled_uses(&self) -> u64 {
        self.free.uses()
    }

    /// Gives the space of one waiting file back to the file system, if all of them take more than `len_bytes_max`. Whether
    /// it did. A file that cannot be removed is no spare any more; the next start finds it.
    pub async fn release_recycled_above(&self, len_bytes_max: u64) -> Result<bool, ShardError> {
        let Some(free) = self.free.take_above(len_bytes_max) else {
            return Ok(false);
        };
        let removed = self.shared.disk.remove(&free.path()).await;
        match self.shared.health.note_write(removed) {
            Ok(()) | Err(DiskError::NotFound { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the space of all waiting files back to the file system.
    pub async fn release_recycled(&self) -> Result<(), ShardError> {
        while let Some(free) = self.free.take_any() {
            match self
                .shared
                .health
                .note_write(self.shared.disk.remove(&free.path()).await)
            {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// A shard that is being filled; see [`ShardDisk::create_hidden`].
pub struct HiddenShard {
    shard: Arc<Shard>,
    path: String,
    number: u64,
}

impl HiddenShard {
    pub fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }
}

/// Gives a reserved place back unless it was filled, also when the future is dropped.
struct Reserved<'a> {
    free: &'a FreeFiles,
    kept: bool,
}

impl Reserved<'_> {
    fn keep(mut self, file: FreeFile) {
        self.kept = true;
        self.free.add(file);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.free.give_up();
        }
    }
}
