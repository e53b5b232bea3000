//! An open volume: its parts, its settings, how it starts and stops.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::env::Env;
use cairn_base::planted::{self, Bug};
use cairn_base::{Branch, Ino, Media, View, VolumeId};
use cairn_erasure::Code;
use cairn_keys::{NoSecrets, Secrets, VolumeKey};
pub use cairn_meta::volume_settings::AccessPattern;
use cairn_meta::volume_settings::VolumeSettings;
use cairn_meta::{
    Batch, InodeKind, InodeRecord, JournalEntry, Key, MetaStore, SpaceDelta, UsageDelta,
};
use cairn_segment::{Compression, Pace, Protection, SegmentInfo, SegmentStore};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore};

use crate::data::ReadLimits;
use crate::dedupe::{Dedupe, DedupeIndex, Deduping, INDEX_BYTES_DEFAULT};
use crate::flight::FLIGHTS_MAX;
use crate::gc::{self, Collector, GcSettings};
use crate::joining::Joins;
use crate::keep::Keeping;
pub use crate::kernel::ROOT;
use crate::kernel::{
    Bare, DirtyBudget, Kernel, MemoryLimits, Metadata, Run, meta_error, owner_of, segment_error,
};
use crate::orphans::OrphanWork;
use crate::policy::{Policies, compression_of};
use crate::quota::Quotas;
use crate::reserve::Reservations;
use crate::revert;
use crate::room::PoolSpace;
use crate::snapshots::SnapshotWork;
use crate::storing::StorageRequirement;
use crate::tiering::{TierWork, TieringSettings};
use crate::types::{FsError, RequestId, VolumeCounts, VolumeSpace};
use crate::xattr::XattrValues;

/// Inodes that a clone takes over for one operation, at most: those that it names, and then those that it meets.
const TAKE_OVER_MAX: usize = 1 << 10;
/// Inode numbers that statfs reports: there is no fixed table, so the limit is a formality.
const INODES_MAX: u64 = 1 << 40;
/// Maximum number of bytes in one record of so many contiguous ones. From 1 MiB on, sequentially written files get records of
/// that size.
pub(crate) fn record_bytes(pattern: AccessPattern, contiguous_bytes: u64) -> u64 {
    match pattern {
        AccessPattern::Concurrent if contiguous_bytes >= 1 << 20 => 1 << 20,
        AccessPattern::Concurrent => 128 << 10,
        AccessPattern::Streaming => 1 << 20,
        AccessPattern::Random => 16 << 10,
    }
}

/// Settings that can be changed while the volume is open; new data follows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The protection of the volume.
    pub protection: Protection,
    /// The protection of a directory, which overrides it.
    pub own_protection: Option<Protection>,
    pub access_pattern: AccessPattern,
    pub compression: Compression,
    pub dedupe: Dedupe,
    /// The device class for the data.
    pub media: Option<Media>,
    /// Maximum number of bytes of files in the volume.
    pub size_limit_bytes: Option<u64>,
    /// Update access times (relatime: once a day, or after a change), or never.
    pub relatime: bool,
}

impl Policy {
    pub(crate) fn asked(&self) -> StorageRequirement {
        StorageRequirement {
            media: self.media,
            protection: self.own_protection,
        }
    }

    /// Maximum number of bytes in one record of so many contiguous ones. Shared records have one size: so equal bytes
    /// are found again, however many were written with them, and a record is shared as a whole, so that a collection
    /// copies it once.
    pub(crate) fn record_bytes(&self, contiguous_bytes: u64) -> u64 {
        let contiguous_bytes = match self.dedupe {
            Dedupe::Off => contiguous_bytes,
            Dedupe::On | Dedupe::Verify => 0,
        };
        record_bytes(self.access_pattern, contiguous_bytes)
    }
}

/// What the settings of a volume ask of it.
impl From<&VolumeSettings> for Policy {
    fn from(settings: &VolumeSettings) -> Self {
        Self {
            protection: settings.protection,
            own_protection: None,
            access_pattern: settings.access_pattern,
            compression: compression_of(settings.compression),
            dedupe: settings.dedupe,
            media: settings.media.kind(),
            size_limit_bytes: settings.size_limit.bytes(),
            relatime: true,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            protection: Protection::Default,
            own_protection: None,
            access_pattern: AccessPattern::Concurrent,
            compression: Compression::Lz4,
            dedupe: Dedupe::Off,
            media: None,
            size_limit_bytes: None,
            relatime: true,
        }
    }
}

/// The settings with which a volume is opened.
#[derive(Clone)]
pub struct FsSettings {
    pub env: Env,
    pub volume: VolumeId,
    pub name: String,
    pub policy: Policy,
    /// Memory for data that is not in segments yet; writers wait above its limit (Rule 6). Volumes of one process
    /// share one.
    pub dirty: Arc<DirtyBudget>,
    /// Unused inodes that are kept in memory.
    pub inodes_max: usize,
    /// Extents of files that are kept in memory, of some 256 bytes each.
    pub extents_max: usize,
    pub gc: GcSettings,
    /// The index of records, for volumes that deduplicate; those of one process share one.
    pub dedupe: Arc<DedupeIndex>,
    /// The key that encrypts bytes of files, if there is one; the metadata store must have the same.
    pub key: Option<Arc<VolumeKey>>,
    /// The key that wraps secrets which services keep in the volume, encrypted or not.
    pub secrets: Arc<dyn Secrets>,
    /// The pace of conversions to policies, if not as fast as possible.
    pub pace: Option<Arc<Pace>>,
    /// The pace of rewriting segments with garbage while there is room, if not as fast as possible.
    pub collection_pace: Option<Arc<Pace>>,
    pub tiering: TieringSettings,
}

impl FsSettings {
    pub fn new(env: Env, volume: VolumeId, name: impl Into<String>) -> Self {
        Self {
            env,
            volume,
            name: name.into(),
            policy: Policy::default(),
            dirty: DirtyBudget::new(256 << 20),
            inodes_max: 128 << 10,
            extents_max: 1 << 20,
            gc: GcSettings::default(),
            dedupe: DedupeIndex::new(INDEX_BYTES_DEFAULT),
            key: None,
            secrets: Arc::new(NoSecrets),
            pace: None,
            collection_pace: None,
            tiering: TieringSettings::default(),
        }
    }
}

/// Gauges and counters of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStats {
    pub inodes_in_memory: u64,
    pub inodes_evicted: u64,
    pub extents_in_memory: u64,
    /// Bytes of data that is not in segments yet.
    pub dirty_bytes: u64,
    /// The memory that this data takes.
    pub dirty_memory_bytes: u64,
    /// The limit of that memory, for all volumes that share it.
    pub dirty_bytes_max: u64,
    /// Bytes that clients wrote.
    pub written_bytes: u64,
    /// Bytes that were written into records.
    pub flushed_bytes: u64,
    /// Bytes that existing records had, and that were not written again.
    pub deduplicated_bytes: u64,
    pub flush_errors: u64,
    pub journaled_writes: u64,
    pub gc_segments_removed: u64,
    pub gc_rewritten_bytes: u64,
    /// Bytes of files in many small extents that were rewritten in few.
    pub joined_bytes: u64,
    /// Passes over all extents, for segments without a usable summary.
    pub rewrite_passes: u64,
    /// Surveys of all segments, for those worth rewriting.
    pub gc_surveys: u64,
    pub gc_errors: u64,
    pub orphans_reaped: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub written_bytes: AtomicU64,
    pub flushed_bytes: AtomicU64,
    pub deduplicated_bytes: AtomicU64,
    pub flush_errors: AtomicU64,
    pub journaled_writes: AtomicU64,
    pub gc_segments_removed: AtomicU64,
    pub gc_rewritten_bytes: AtomicU64,
    pub joined_bytes: AtomicU64,
    pub rewrite_passes: AtomicU64,
    pub gc_surveys: AtomicU64,
    pub gc_errors: AtomicU64,
    pub orphans_reaped: AtomicU64,
}

/// The file system of one volume in one view: all operations that only read. Clones of this value are the same view.
#[derive(Clone)]
pub struct FsView {
    pub(crate) shared: Arc<VolumeCore>,
    pub(crate) view: View,
    /// Present for a clone in the store of another volume.
    pub(crate) clone: Option<Arc<CloneName>>,
}

/// The names of a clone.
#[derive(Debug)]
pub(crate) struct CloneName {
    pub branch: Branch,
    pub volume: VolumeId,
    pub name: String,
}

impl FsView {
    pub fn view(&self) -> View {
        self.view
    }

    pub fn volume(&self) -> VolumeId {
        let clone = self.clone.as_ref();
        clone.map_or(self.shared.volume, |clone| clone.volume)
    }

    /// The volume whose store this one is in: itself, but for a clone.
    pub fn store(&self) -> VolumeId {
        self.shared.volume
    }

    pub fn name(&self) -> &str {
        let clone = self.clone.as_ref();
        clone.map_or(&self.shared.name, |clone| &clone.name)
    }

    pub fn root(&self) -> Ino {
        ROOT.in_branch(self.branch())
    }

    /// Whether it is deleted. Its store may still exist, for volumes that began from it.
    pub fn is_deleted(&self) -> bool {
        !self.shared.branches.is_there(self.branch())
    }

    /// Its branch of its store.
    pub fn branch(&self) -> Branch {
        let clone = self.clone.as_ref();
        clone.map_or(Branch::MAIN, |clone| clone.branch)
    }
}

/// The file system of one volume: its live view, with changes and the administration of the volume. Clones of this
/// value are the same volume.
#[derive(Clone)]
pub struct Fs {
    live: FsView,
    /// Whether its changes keep the replaced content, where a directory asks for that.
    keeps: bool,
}

impl Deref for Fs {
    type Target = FsView;

    fn deref(&self) -> &FsView {
        &self.live
    }
}

/// An open volume: its kernel, and the state of each feature.
pub(crate) struct VolumeCore {
    kernel: Kernel,
    pub name: String,
    pub verifier: [u8; 8],
    pub policy: RwLock<Policy>,
    pub snapshots: SnapshotWork,
    pub reservations: Reservations,
    pub flight_permits: Semaphore,
    pub reads: ReadLimits,
    pub quotas: Quotas,
    pub policies: Policies,
    pub tiering: TierWork,
    pub pace: Option<Arc<Pace>>,
    pub collection_pace: Option<Arc<Pace>>,
    /// Held while a directory moves to another parent, so that no two moves make a cycle.
    pub directory_moves: Mutex<()>,
    pub gc_wake: Notify,
    pub collector: Collector,
    pub joins: Joins,
    pub dedupe: Deduping,
    pub keeping: Keeping,
    pub xattr_values: XattrValues,
    pub secrets: Arc<dyn Secrets>,
    pub orphans: OrphanWork,
    pub counters: Counters,
    pub space: Mutex<PoolSpace>,
}

/// Features call the kernel of their volume as if it were part of it.
impl Deref for VolumeCore {
    type Target = Kernel;

    fn deref(&self) -> &Kernel {
        &self.kernel
    }
}

impl Fs {
    /// Makes the root directory of a new volume, and opens the volume.
    pub async fn format(
        settings: FsSettings,
        meta: Arc<MetaStore>,
        segments: Arc<SegmentStore>,
    ) -> Result<Self, FsError> {
        let now = settings.env.clock.now();
        let mut root = InodeRecord::new(InodeKind::Directory);
        root.mode = 0o755;
        root.nlink = 2;
        root.parent = ROOT;
        root.cookie_next = crate::namespace::COOKIE_FIRST;
        (root.atime, root.mtime, root.ctime) = (now, now, now);
        let mut batch = Batch::new();
        batch.put(Key::inode(ROOT), root.encode());
        batch.charge(owner_of(&root), UsageDelta::ONE_INODE);
        batch.space(SpaceDelta {
            inodes: 1,
            ..SpaceDelta::default()
        });
        let ticket = Metadata::new(Arc::clone(&meta)).commit_unopened(batch);
        meta.durable(ticket).await.map_err(meta_error)?;
        Self::open(settings, meta, Vec::new(), segments).await
    }

    /// Whether a store never had a volume: it is to be formatted.
    pub fn is_unmade(meta: &MetaStore) -> bool {
        // A snapshot stays as long as a volume that began from it.
        meta.counters().inodes == 0 && meta.snapshots().is_empty()
    }

    /// Opens a volume. `journal` has the small stable writes that recovery found. A volume whose metadata was opened
    /// read-only ([`MetaStore::open_to_read`]) does no background work, and refuses every change with
    /// [`FsError::NoSpace`].
    pub async fn open(
        settings: FsSettings,
        meta: Arc<MetaStore>,
        mut journal: Vec<JournalEntry>,
        segments: Arc<SegmentStore>,
    ) -> Result<Self, FsError> {
        let meta = Metadata::new(meta);
        let is_read_only = meta.read_only().is_some();
        if is_read_only && meta.restoring().is_some() {
            // No client may see the volume before that is done.
            return Err(FsError::NoSpace);
        }
        revert::carry_out(&meta, settings.env.clock.now(), &mut journal).await?;
        let FsSettings {
            env,
            volume,
            name,
            policy,
            dirty,
            inodes_max,
            extents_max,
            gc,
            dedupe,
            key,
            secrets,
            pace,
            collection_pace,
            tiering,
        } = settings;
        let records = meta.segments();
        let suspects = gc::suspects(&records);
        let known = records
            .into_iter()
            .map(|(id, record)| {
                let code = Code::new(record.data, record.parity).map_err(|error| {
                    FsError::Io(format!("segment {id} of volume {volume}: {error}"))
                })?;
                Ok(SegmentInfo {
                    id,
                    code,
                    disks: record.disks,
                    shard_len_bytes: record.shard_len_bytes,
                    sealed: true,
                    remote: record.remote,
                    media: record.media,
                    protection: record.protection,
                })
            })
            .collect::<Result<Vec<_>, FsError>>()?;
        let xattr_values = XattrValues::new(key.clone(), Arc::clone(&env.entropy));
        let allocator = meta.clone();
        let allocate = Arc::new(move || allocator.allocate_segment());
        let epoch = meta.epoch();
        if is_read_only {
            segments.open_volume_to_read(volume, epoch, key, allocate, known);
        } else {
            let opened = segments.open_volume_with(volume, epoch, key, allocate, known);
            opened.await.map_err(segment_error)?;
            segments.suspect(volume, suspects);
        }
        let keeping = Keeping::open(&meta, &xattr_values)?;
        let mut verifier = [0; 8];
        if !planted::is(Bug::VerifierKept) {
            env.entropy.fill(&mut verifier);
        }
        let quotas = Quotas::open(&meta, policy.size_limit_bytes).map_err(meta_error)?;
        let policies = Policies::open(&meta).map_err(meta_error)?;
        let tiering = TierWork::new(tiering, &env);
        let dedupe = Deduping::new(dedupe, &env, volume);
        // From here on inodes come into memory.
        let limits = MemoryLimits {
            inodes_max,
            extents_max,
        };
        let kernel = Kernel::open(env, volume, meta, segments, dirty, limits)?;
        let shared = Arc::new(VolumeCore {
            kernel,
            quotas,
            policies,
            tiering,
            pace,
            collection_pace,
            dedupe,
            name,
            verifier,
            policy: RwLock::new(policy),
            snapshots: SnapshotWork::default(),
            reservations: Reservations::default(),
            flight_permits: Semaphore::new(FLIGHTS_MAX),
            reads: ReadLimits::default(),
            directory_moves: Mutex::new(()),
            gc_wake: Notify::new(),
            collector: Collector::new(gc),
            joins: Joins::default(),
            keeping,
            xattr_values,
            secrets,
            orphans: OrphanWork::default(),
            counters: Counters::default(),
            space: Mutex::default(),
        });
        shared.snapshots.note_change(shared.now());
        let fs = Self {
            live: FsView {
                shared,
                view: View::Live,
                clone: None,
            },
            keeps: true,
        };
        let read = match fs.shared.branches.is_there(Branch::MAIN) {
            true => fs.shared.inode(ROOT).map(drop),
            // This volume is deleted, and others are in its store.
            false => Ok(()),
        };
        let read = read.and_then(|()| fs.shared.replay(journal));
        if let Err(error) = read.and_then(|()| fs.shared.load_reservations()) {
            // This value keeps the metadata open, which could not be reopened then.
            fs.shared.segments.close_volume(volume);
            return Err(error);
        }
        if is_read_only {
            fs.shared.dirty.leave_data_out();
            return Ok(fs);
        }
        for (name, task) in [
            (
                "flusher",
                Box::pin(VolumeCore::run_flusher(fs.shared.clone()))
                    as cairn_base::env::BoxFuture<()>,
            ),
            (
                "reaper",
                Box::pin(VolumeCore::run_reaper(fs.shared.clone())),
            ),
            ("gc", Box::pin(VolumeCore::run_gc(fs.shared.clone()))),
            (
                "joining of extents",
                Box::pin(VolumeCore::run_joining(fs.shared.clone())),
            ),
            (
                "quotas",
                Box::pin(VolumeCore::run_quotas(fs.shared.clone())),
            ),
            (
                "trees of quotas",
                Box::pin(VolumeCore::run_trees(fs.shared.clone())),
            ),
            (
                "conversion of data",
                Box::pin(VolumeCore::run_apply(fs.shared.clone())),
            ),
            (
                "snapshots",
                Box::pin(VolumeCore::run_freeing(fs.shared.clone())),
            ),
            (
                "tiering",
                Box::pin(VolumeCore::run_tiering(fs.shared.clone())),
            ),
        ] {
            fs.shared.tasks.spawn(name, task);
        }
        Ok(fs)
    }

    /// The inode that a request made, changed or removed before the volume was opened here, if it did; known for some
    /// minutes.
    pub fn made_before(&self, request: &RequestId) -> Option<Ino> {
        self.shared.made_before(request)
    }

    /// A volume in its live view.
    pub(crate) fn of_view(live: FsView) -> Self {
        Self { live, keeps: false }
    }

    /// For the volume's own work: its changes keep no previous contents.
    pub(crate) fn of(shared: &Arc<VolumeCore>) -> Self {
        Self {
            live: FsView {
                shared: shared.clone(),
                view: View::Live,
                clone: None,
            },
            keeps: false,
        }
    }

    /// The volume for a caller that keeps previous contents itself: changes through it keep none.
    pub fn without_keeping(&self) -> Self {
        Self {
            live: self.live.clone(),
            keeps: false,
        }
    }

    /// Whether changes through this value may have to keep the content of files.
    pub(crate) fn is_keeping(&self) -> bool {
        self.keeps && self.shared.keeping.is_active()
    }

    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Abandons the volume without waiting for anything, because some tasks wait for a disk that may never answer;
    /// see [`MetaStore::abandon`]. Writes that are not durable are lost, as in a crash.
    pub fn abandon(&self) {
        self.shared.stop();
        self.shared.meta.abandon();
        self.shared.segments.close_volume(self.shared.volume);
        self.shared.dirty.close();
    }

    /// Stops background work, and makes all writes of clients durable, with those that are being written to the
    /// disks: after that [`Fs::abandon`] loses nothing.
    ///
    /// It waits for nothing else, so that a takeover need not wait for a disk that hangs under background work. The
    /// caller has stopped sending operations, and calls [`Fs::close`] or [`Fs::abandon`] next.
    pub async fn end_writing(&self) -> Result<(), FsError> {
        self.shared.stop();
        if self.read_only().is_some() {
            // The data in memory came from the journal, and is in the log.
            return Ok(());
        }
        self.shared.flush_written().await
    }

    /// Stops background work, flushes everything, seals segments and closes the metadata.
    ///
    /// The caller has stopped sending operations. After an error the volume is closed all the same; data that was
    /// acknowledged as stable is safe, unstable writes may be lost.
    pub async fn close(&self) -> Result<(), FsError> {
        self.shared.stop();
        self.shared.tasks.ended().await;
        if self.read_only().is_some() {
            // The data in memory came from the journal, and is in the log.
            self.shared.segments.close_volume(self.shared.volume);
            self.shared.meta.abort().await;
            self.shared.dirty.close();
            return Ok(());
        }
        let flushed = self.shared.flush_everything().await;
        self.shared.segments.seal_all(self.shared.volume).await;
        // So the next start knows the space that sealing gave back.
        self.shared.note_sealed();
        self.shared.segments.close_volume(self.shared.volume);
        self.shared.meta.close().await.map_err(meta_error)?;
        flushed
    }

    /// The volume in another view; [`FsError::Stale`] if there is no such view.
    pub fn in_view(&self, view: View) -> Result<FsView, FsError> {
        let shared = self.shared.clone();
        shared.meta.view(view).map_err(meta_error)?;
        if let View::Snapshot(generation) = view {
            let mut own = self.snapshots().into_iter();
            own.find(|snapshot| snapshot.generation == generation)
                .ok_or(FsError::Stale)?;
        }
        let clone = self.clone.clone();
        Ok(FsView {
            shared,
            view,
            clone,
        })
    }

    /// Changes whenever unstable writes may have been lost (RFC 1813, section 3.3.7).
    pub fn write_verifier(&self) -> [u8; 8] {
        self.shared.verifier
    }

    pub fn policy(&self) -> Policy {
        self.shared.policy.read().clone()
    }

    /// Sets the policy for data that is written from now on.
    pub fn set_policy(&self, policy: Policy) -> Result<(), FsError> {
        self.shared
            .segments
            .code_for(policy.protection)
            .map_err(segment_error)?;
        let size_limit_bytes = policy.size_limit_bytes;
        *self.shared.policy.write() = policy;
        self.shared.set_size_limit(size_limit_bytes);
        self.shared.forget_space();
        Ok(())
    }

    pub fn meta(&self) -> &Arc<MetaStore> {
        self.shared.meta.for_other_crates()
    }

    /// The reason why the volume is read-only, if it is.
    pub fn read_only(&self) -> Option<&str> {
        self.shared.meta.read_only()
    }

    /// Limits the inodes and extents in memory from now on, as in [`FsSettings`]: volumes that are opened later share
    /// the memory. The next round of garbage collection, and later insertions, evict the excess.
    pub fn set_memory_max(&self, inodes_max: usize, extents_max: usize) {
        self.shared.set_memory_limits(MemoryLimits {
            inodes_max,
            extents_max,
        });
    }

    pub fn stats(&self) -> FsStats {
        let shared = &self.shared;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (inodes_in_memory, inodes_evicted) = shared.inode_counts();
        FsStats {
            inodes_in_memory,
            inodes_evicted,
            extents_in_memory: shared.extents_in_memory() as u64,
            dirty_bytes: shared.dirty.bytes(),
            dirty_memory_bytes: shared.dirty.memory_bytes(),
            dirty_bytes_max: shared.dirty.budget().bytes_max(),
            written_bytes: of(&shared.counters.written_bytes),
            flushed_bytes: of(&shared.counters.flushed_bytes),
            deduplicated_bytes: of(&shared.counters.deduplicated_bytes),
            flush_errors: of(&shared.counters.flush_errors),
            journaled_writes: of(&shared.counters.journaled_writes),
            gc_segments_removed: of(&shared.counters.gc_segments_removed),
            gc_rewritten_bytes: of(&shared.counters.gc_rewritten_bytes),
            joined_bytes: of(&shared.counters.joined_bytes),
            rewrite_passes: of(&shared.counters.rewrite_passes),
            gc_surveys: of(&shared.counters.gc_surveys),
            gc_errors: of(&shared.counters.gc_errors),
            orphans_reaped: of(&shared.counters.orphans_reaped),
        }
    }

    /// Bytes that files of the volume have, with those that are still in memory: the amount that its size limit is
    /// compared with.
    pub fn used_bytes(&self) -> u64 {
        let fresh = self.shared.fresh_bytes();
        self.counts().file_bytes.saturating_add(fresh)
    }

    /// Room in the pool under the volume's protection, without the volume's own limits: total, and free.
    pub fn pool_room(&self) -> (u64, u64) {
        let shared = &self.shared;
        shared.forget_space();
        let space = shared.pool_space();
        let pending = shared.dirty.budget().bytes();
        (space.total_bytes, space.free_bytes.saturating_sub(pending))
    }

    /// Room in the volume: the room in the pool under the volume's protection, or the rest of its size limit,
    /// whichever is less.
    pub async fn space(&self) -> Result<VolumeSpace, FsError> {
        let shared = &self.shared;
        let counts = self.counts();
        // The caller wants the present state. In the pool every write takes space until garbage is collected, also
        // where it replaces bytes; of the size limit only new bytes take space.
        shared.forget_space();
        let view = shared.pool_space();
        let fresh = shared.fresh_bytes();
        let pending = shared.dirty.budget().bytes();
        let mut total_bytes = view.total_bytes;
        let mut free_bytes = view.free_bytes.saturating_sub(pending);
        let limit = shared.policy.read().size_limit_bytes;
        // The limit of the store's own volume.
        if let Some(limit) = limit.filter(|_| self.branch().is_main()) {
            total_bytes = total_bytes.min(limit);
            let used = counts.file_bytes.saturating_add(fresh);
            free_bytes = free_bytes.min(limit.saturating_sub(used));
        }
        Ok(VolumeSpace {
            total_bytes,
            free_bytes,
            total_inodes: INODES_MAX,
            free_inodes: INODES_MAX.saturating_sub(counts.inodes),
        })
    }
}

impl FsView {
    /// The number of inodes and of bytes of files.
    pub fn counts(&self) -> VolumeCounts {
        let (inodes, file_bytes) = self.shared.meta.counts_of(self.branch());
        VolumeCounts { inodes, file_bytes }
    }
}

impl VolumeCore {
    /// Ends all work, and stores all writes in the metadata.
    pub(crate) async fn end_work(self: &Arc<Self>) -> Result<(), FsError> {
        self.stop();
        self.tasks.ended().await;
        self.flush_everything().await?;
        self.fold_all_of_journal().await
    }

    /// Stops background work; waiting writers give up.
    fn stop(&self) {
        self.tasks.stop();
        self.dirty.end();
    }

    /// Runs `op`, which reads metadata, without blocking the thread for data that is not in memory. `op` may run
    /// again from its beginning after a failed read, so it must not have changed anything by then: that is true of
    /// every function that changes nothing when a disk returns an error.
    ///
    /// If `op` is about to change an inherited inode of a clone, the clone takes the inode over first.
    pub async fn reading<T>(
        &self,
        mut op: impl FnMut() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        for _ in 0..TAKE_OVER_MAX {
            match self.meta.reading(&mut op).await {
                // Boxed, as few operations wait: otherwise the future of each would have the room for it.
                Err(FsError::NotOwn(ino)) => Box::pin(self.take_over(ino)).await?,
                done => return done,
            }
        }
        Err(FsError::TryLater)
    }

    /// The erasure code of new data.
    pub fn code(&self) -> Result<Code, FsError> {
        self.code_of(None)
    }

    /// The erasure code of new data with its own protection.
    pub fn code_of(&self, own: Option<Protection>) -> Result<Code, FsError> {
        let of_volume = self.policy.read().protection;
        let code = self.segments.code_wanted(of_volume, own);
        code.map_err(segment_error)
    }

    /// Puts journaled bytes back into dirty maps.
    fn replay(self: &Arc<Self>, journal: Vec<JournalEntry>) -> Result<(), FsError> {
        for entry in journal {
            let inode = match self.own_inode(entry.ino) {
                Ok(inode) => inode,
                Err(FsError::Stale) => continue,
                Err(error) => return Err(error),
            };
            let mut state = inode.lock();
            if state.removed {
                continue;
            }
            state.sequence += 1;
            let run = Run {
                buffer_len_bytes: entry.data.len() as u64,
                data: entry.data.clone(),
                journal: Some(entry.position),
                sequence: state.sequence,
            };
            let added_bytes = run.data.len();
            let range = entry.offset..entry.offset.saturating_add(added_bytes as u64);
            let size_before = state.record.size_bytes;
            state.note_fresh(range, size_before);
            let added = state.dirty.insert(entry.offset, run);
            self.dirty.add(added);
            self.sync_pending(&mut state);
            if planted::is(Bug::UsageCountedAgainAtReplay) {
                let again = UsageDelta {
                    file_bytes: added_bytes as i64,
                    ..UsageDelta::default()
                };
                let mut batch = Batch::new();
                batch.charge(owner_of(&state.record), again);
                self.commit_bare(Bare::Planted, batch);
            }
            state.note_replayed(&entry);
            self.enqueue(&inode, &mut state);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::*;

    fn require_send<T: Send>(_: T) {}

    /// Edges run operations on any thread: no future may hold a lock across a wait.
    #[allow(dead_code, reason = "compiling it is the test")]
    fn futures_are_send(fs: &Fs, who: &Credentials) {
        let mode = CreateMode::Exclusive([0; 8]);
        require_send(fs.create(who, ROOT, b"a", mode));
        require_send(fs.read(who, ROOT, 0, 1));
        require_send(fs.write(who, ROOT, 0, bytes::Bytes::new(), Stability::Stable));
        require_send(fs.commit(who, ROOT, 0, 0));
        require_send(fs.set_attr(who, ROOT, SetAttr::default(), None));
        require_send(fs.rename(who, ROOT, b"a", ROOT, b"b"));
        require_send(fs.read_dir(who, ROOT, 0, 1, true));
        require_send(fs.close());
    }
}
