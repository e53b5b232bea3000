//! The store: the pool's disks, the open volumes, and queries about them.
//!
//! Owns: opening and closing of volumes, sealing and removal of segments, space and status. The write path is in
//! `append`, the read path in `read`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use cairn_base::disk::DiskSpace;
use cairn_base::domain::{DomainPath, Losses, Survives, survives};
use cairn_base::env::Env;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, Media, NodeId, SegmentId, TierId, VolumeId};
use cairn_erasure::Code;
use cairn_formats::pointer::{BLOCK_BYTES, RecordPointer};
use cairn_formats::settings::Protections;
use cairn_keys::VolumeKey;
use cairn_shard::{
    CHECKSUM_UNIT_BYTES, FooterStripe, SHARD_CAPACITY_BYTES_MAX, ShardError, ShardFooter,
    ShardFuture, ShardKind, ShardName, ShardService, file_len_bytes,
};
use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::Semaphore;

use crate::cache::{Key, RecordCache};
use crate::disk_table::Members;
use crate::error::{Result, SegmentError};
use crate::fence::Unfenced;
use crate::life::{OpenSegment, Segment};
use crate::missed::Missed;
use crate::overdue::{DiskOp, LateDisks};
use crate::pace::Pace;
use crate::placement::{self, NodeRoom};
use crate::read::{DamagedPlaces, Second};
use crate::rebuild::REBUILDS_MAX;
use crate::repair::REPAIRS_MAX;
use crate::segment_map::Looked;
use crate::stripe_cache::StripeCache;
use crate::summary::summary_slack_bytes;
use crate::tier::{COPIES_MAX, Tier};
use crate::types::{
    DiskSpaceStatus, DiskState, DiskStatus, PoolSpace, Protection, SegmentInfo, SegmentSettings,
    SegmentStats, Stream, Swept, UsableSpace,
};
use crate::underway::Underway;
use crate::volume::{Allocate, Volume};

/// A shard takes at most 1/this of a disk, so that small disks hold many segments.
const SHARDS_PER_DISK_MIN: u64 = 64;
/// Shards that one step of a sweep removes before it yields to other work.
const SWEEP_BATCH: usize = 16;
/// Segments whose placement is examined at a time.
const LOOKED_AT_A_TIME_MAX: usize = 50_000;
/// Records up to this length are copied into the cache if they are slices of much larger buffers.
const COPIED_LEN_BYTES_MAX: usize = 128 << 10;
/// An uncopied record may keep buffers in memory that are larger by at most 1/this.
const KEPT_BEYOND_PART: usize = 4;
/// An uncopied record has at most this many parts.
const KEPT_PARTS_MAX: usize = 8;

/// All segments of all volumes of the pool.
pub struct SegmentStore {
    pub(crate) env: Env,
    pub(crate) settings: SegmentSettings,
    members: ArcSwap<Members>,
    volumes: RwLock<FxHashMap<VolumeId, Arc<Volume>>>,
    pub(crate) cache: RecordCache,
    pub(crate) second: ArcSwapOption<Second>,
    pub(crate) stripes: StripeCache,
    pub(crate) counters: Counters,
    pub(crate) damaged_places: DamagedPlaces,
    /// In blocks of data.
    pub(crate) appends_in_flight: Semaphore,
    pub(crate) appends_in_flight_max: u32,
    pub(crate) repairs: Arc<Underway>,
    pub(crate) rebuilds: Arc<Underway>,
    pub(crate) late: LateDisks,
    pub(crate) missed: Missed,
    pub(crate) unfenced: Unfenced,
    pub(crate) tiers: RwLock<FxHashMap<TierId, Arc<Tier>>>,
    pub(crate) tier_copies: Semaphore,
}

/// See [`SegmentStats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub appends: AtomicU64,
    pub appended_bytes: AtomicU64,
    pub parity_bytes: AtomicU64,
    pub padding_bytes: AtomicU64,
    pub append_retries: AtomicU64,
    pub segments_created: AtomicU64,
    pub segments_removed: AtomicU64,
    pub disk_reads: AtomicU64,
    pub disk_read_bytes: AtomicU64,
    pub merged_reads: AtomicU64,
    pub degraded_reads: AtomicU64,
    pub checksum_errors: AtomicU64,
    pub damaged_reads: AtomicU64,
    pub unreachable_reads: AtomicU64,
    pub repairs: AtomicU64,
    pub repairs_failed: AtomicU64,
    pub repairs_skipped: AtomicU64,
    pub rebuilds: AtomicU64,
    pub rebuilds_failed: AtomicU64,
    pub cache_hits: AtomicU64,
    pub cache_misses: AtomicU64,
    pub second_hits: AtomicU64,
    pub second_hit_bytes: AtomicU64,
    pub second_misses: AtomicU64,
    pub second_kept_bytes: AtomicU64,
    pub second_wrong: AtomicU64,
    pub copied_out: AtomicU64,
    pub remote_reads: AtomicU64,
    pub remote_read_bytes: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl SegmentStore {
    /// A store on the `disks` of a pool; `missing` are the pool's absent disks.
    pub fn new<D: ShardService>(
        env: Env,
        mut settings: SegmentSettings,
        disks: Vec<Arc<D>>,
        missing: Vec<DiskId>,
    ) -> Arc<Self> {
        let disks: Vec<Arc<dyn ShardService>> =
            disks.into_iter().map(|disk| disk as Arc<_>).collect();
        let sizes = disks.iter().map(|disk| disk_space(&**disk).total_bytes);
        let smallest = sizes.min();
        if let Some(smallest) = smallest {
            let largest_shard = smallest / SHARDS_PER_DISK_MIN;
            settings.shard_len_bytes = settings.shard_len_bytes.min(largest_shard);
        }
        for len_bytes in [
            &mut settings.shard_len_bytes,
            &mut settings.shard_len_bytes_min,
        ] {
            *len_bytes = len_bytes.saturating_add(summary_slack_bytes(*len_bytes));
        }
        settings.shard_len_bytes = shard_len(&settings, settings.shard_len_bytes);
        let in_flight = settings.append_bytes_in_flight_max / u64::from(BLOCK_BYTES);
        let in_flight =
            in_flight.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize) as u64) as u32;
        Arc::new(Self {
            members: ArcSwap::from_pointee(Members::new(disks, missing)),
            volumes: RwLock::default(),
            cache: RecordCache::new(settings.cache_bytes),
            second: ArcSwapOption::empty(),
            stripes: StripeCache::new(settings.cache_bytes),
            counters: Counters::default(),
            damaged_places: DamagedPlaces::default(),
            appends_in_flight: Semaphore::new(in_flight as usize),
            appends_in_flight_max: in_flight,
            repairs: Underway::new(REPAIRS_MAX),
            rebuilds: Underway::new(REBUILDS_MAX),
            late: LateDisks::default(),
            missed: Missed::default(),
            unfenced: Unfenced::default(),
            tiers: RwLock::default(),
            tier_copies: Semaphore::new(COPIES_MAX),
            env,
            settings,
        })
    }

    /// Opens a volume with its existing segments. None of them accepts appends: a restart never appends to a segment
    /// whose end it does not know. `allocate` returns new segment ids, each once. Writes from now on carry ownership
    /// term `epoch`, and all disks refuse earlier owners.
    ///
    /// Fails with `Fenced`, and opens nothing, if a disk has promised a later epoch.
    pub async fn open_volume(
        self: &Arc<Self>,
        volume: VolumeId,
        epoch: Epoch,
        allocate: Allocate,
        segments: Vec<SegmentInfo>,
    ) -> Result<()> {
        self.open_volume_with(volume, epoch, None, allocate, segments)
            .await
    }

    /// As [`Self::open_volume`], for a volume that is encrypted if there is a `key`.
    pub async fn open_volume_with(
        self: &Arc<Self>,
        volume: VolumeId,
        epoch: Epoch,
        key: Option<Arc<VolumeKey>>,
        allocate: Allocate,
        segments: Vec<SegmentInfo>,
    ) -> Result<()> {
        self.fence(volume, epoch).await?;
        let opened = Arc::new(Volume::new(volume, epoch, key, allocate, segments));
        self.volumes.write().insert(volume, opened);
        Ok(())
    }

    /// As [`Self::open_volume_with`], read-only: no disk is asked for a promise, because that would be a write. Nothing
    /// may be appended, moved or swept. Reads work around corruption and leave it: its disks have no room for another
    /// shard.
    pub fn open_volume_to_read(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        key: Option<Arc<VolumeKey>>,
        allocate: Allocate,
        segments: Vec<SegmentInfo>,
    ) {
        let opened = Volume::new(volume, epoch, key, allocate, segments).read_only();
        self.volumes.write().insert(volume, Arc::new(opened));
    }

    /// Whether a volume is open read-only.
    pub(crate) fn is_read_only(&self, volume: VolumeId) -> bool {
        self.volume(volume).is_ok_and(|open| open.is_read_only)
    }

    /// Number of open volumes.
    pub fn volume_count(&self) -> usize {
        self.volumes.read().len()
    }

    /// The open volumes, with their epochs.
    pub(crate) fn epochs(&self) -> Vec<(VolumeId, Epoch)> {
        let volumes = self.volumes.read();
        volumes.iter().map(|(id, open)| (*id, open.epoch)).collect()
    }

    /// Forgets a volume; its open segments should have been sealed by [`Self::seal_all`] before.
    pub fn close_volume(&self, volume: VolumeId) {
        self.volumes.write().remove(&volume);
    }

    /// Deletes shards of unknown segments, and shards that another disk has now. A crash between an append and its
    /// commit leaves such shards, and so does a removal while their disk is away. Shards on a faulted disk are left to
    /// the sweep of the next start, and counted as an error. So are shards on an unresponsive disk, whose sweep
    /// continues when it answers. Call after [`Self::open_volume`].
    pub async fn sweep(self: &Arc<Self>, volume: VolumeId) -> Result<Swept> {
        let opened = self.volume(volume)?;
        opened.require_owned()?;
        let epoch = opened.epoch;
        let store = Arc::downgrade(self);
        let known = move |name: ShardName, disk: DiskId| {
            // Files of log and state are left to the owner of the metadata.
            if name.kind() != ShardKind::Segment {
                return true;
            }
            // If the volume was reopened meanwhile, this sweep does not know its new segments.
            let now = store.upgrade().map(|store| store.volume(volume));
            let is_current = now.is_some_and(|now| now.is_ok_and(|now| Arc::ptr_eq(&now, &opened)));
            if !is_current {
                return true;
            }
            let segments = opened.segments.read();
            let segment = segments.get(&name.segment);
            segment.is_some_and(|segment| segment.has_shard_on(name.index, disk))
        };
        self.sweep_unless(volume, Some(epoch), Arc::new(known), None)
            .await
    }

    /// Waits for the segments that are being created and whose disks are undecided. After a disk was declared draining,
    /// [`Self::segments`] then lists everything on it.
    pub async fn placements_done(&self) {
        let volumes: Vec<Arc<Volume>> = self.volumes.read().values().cloned().collect();
        for volume in volumes {
            drop(volume.creating.lock().await);
        }
    }

    /// Deletes a volume with all its segments, one part at a time at this pace.
    pub async fn remove_volume(self: &Arc<Self>, volume: VolumeId, pace: &Arc<Pace>) -> Swept {
        let opened = self.volumes.write().remove(&volume);
        self.missed.forget_volume(volume);
        // If it is not open, it is deleted in the name of its last owner.
        let epoch = opened.as_ref().map(|open| open.epoch);
        let segments: Vec<_> = opened
            .map(|opened| opened.segments.read().values().cloned().collect())
            .unwrap_or_default();
        for segment in segments {
            let _turn = pace.spend(0).await;
            self.remove_segment(&segment).await;
        }
        let known = Arc::new(|_, _| false);
        let swept = self.sweep_unless(volume, epoch, known, Some(pace)).await;
        swept.unwrap_or_else(|error| {
            tracing::warn!(%volume, %error, "the shards of a deleted volume stay");
            Swept {
                errors: 1,
                ..Swept::default()
            }
        })
    }

    async fn sweep_unless(
        &self,
        volume: VolumeId,
        epoch: Option<Epoch>,
        known: Arc<KnownShards>,
        pace: Option<&Arc<Pace>>,
    ) -> Result<Swept> {
        let mut swept = Swept::default();
        for disk in self.members().all() {
            if !self.is_usable_disk(&**disk) {
                swept.errors += 1;
                continue;
            }
            let known = Arc::clone(&known);
            let sweeping = sweep_disk(Arc::clone(disk), volume, epoch, known, pace.cloned());
            match self.unless_silent(disk, Box::pin(sweeping)).await {
                Some(Ok(one)) => {
                    swept.shards_removed += one.shards_removed;
                    swept.errors += one.errors;
                }
                Some(Err(error)) => {
                    if let Some(fenced) = self.note_fenced(&error) {
                        return Err(fenced);
                    }
                    swept.errors += 1;
                }
                None => swept.errors += 1,
            }
        }
        Ok(swept)
    }

    /// Default code of a volume, by the nodes and disks of the pool.
    pub fn default_code(&self) -> Code {
        placement::default_code(&self.members().staying(&[]))
    }

    /// The code of a protection in this pool; fails if the pool has too few disks.
    pub fn code_for(&self, protection: Protection) -> Result<Code> {
        self.code_for_without(protection, &[])
    }

    /// As [`Self::code_for`], without some of the disks.
    pub fn code_for_without(&self, protection: Protection, without: &[DiskId]) -> Result<Code> {
        placement::code_for(protection, &self.members().staying(without))
    }

    /// The code of data with its `own` protection, or else its volume's. Lack of disks for the first never delays data:
    /// it gets the second until there are enough.
    pub fn code_wanted(&self, volume: Protection, own: Option<Protection>) -> Result<Code> {
        self.code_wanted_without(volume, own, &[])
    }

    /// As [`Self::code_wanted`], without some of the disks.
    pub fn code_wanted_without(
        &self,
        volume: Protection,
        own: Option<Protection>,
        without: &[DiskId],
    ) -> Result<Code> {
        match own.map(|own| self.code_for_without(own, without)) {
            Some(Ok(code)) => Ok(code),
            Some(Err(_)) | None => self.code_for_without(volume, without),
        }
    }

    /// Losses that new data of a protection survives when all disks that are to stay work, without some of them.
    pub fn survives_without(&self, protection: Protection, without: &[DiskId]) -> Result<Survives> {
        let staying = self.members().staying(without);
        let code = placement::code_for(protection, &staying)?;
        Ok(staying.survives(code))
    }

    /// Losses that new segments of a code survive when all disks that are to stay work.
    pub fn code_survives(&self, code: Code) -> Survives {
        self.members().staying(&[]).survives(code)
    }

    /// Number of nodes with disks of the pool, present or not.
    pub fn node_count(&self) -> usize {
        let members = self.members();
        members.domains().collect::<Losses>().nodes
    }

    /// Bytes `range` of a record if the cache has all of them; never waits.
    pub fn read_cached(
        &self,
        volume: VolumeId,
        pointer: &RecordPointer,
        range: std::ops::Range<u32>,
    ) -> Option<Vec<Bytes>> {
        if range.start >= range.end || range.end > pointer.file_len_bytes {
            return None;
        }
        let found = self.cache.lookup(volume, pointer, &range)?;
        count(&self.counters.cache_hits, 1);
        Some(found)
    }

    /// Caches the file bytes of a whole record, for reads right after its write.
    pub fn cache_insert(&self, volume: VolumeId, pointer: &RecordPointer, data: Bytes) {
        let held_bytes = data.len() as u64;
        self.cache_insert_parts(volume, pointer, vec![data], held_bytes);
    }

    /// As [`Self::cache_insert`], for data in parts, which keep `held_bytes` of buffers in memory.
    ///
    /// The cache takes the buffers without a copy. Small records are copied if they are slices of the larger buffer of
    /// a client's write: they would keep all of it in memory, and the cache would exceed its limit several times.
    pub fn cache_insert_parts(
        &self,
        volume: VolumeId,
        pointer: &RecordPointer,
        data: Vec<Bytes>,
        held_bytes: u64,
    ) {
        let len: usize = data.iter().map(Bytes::len).sum();
        assert_eq!(len, pointer.file_len_bytes as usize);
        if len == 0 {
            return;
        }
        let parts = match is_copied(len, data.len(), held_bytes) {
            true => [data.concat().into()].into(),
            false => data.into(),
        };
        self.cache
            .insert_written(Key::whole(volume, pointer), parts, || {
                self.env.clock.monotonic()
            });
    }

    /// Makes room for other records: this one will not be read again.
    pub fn cache_forget(&self, volume: VolumeId, pointer: &RecordPointer) {
        self.cache.forget(volume, pointer);
    }

    /// Deletes a segment with its shards; no effect if it is gone already. Shards on missing disks, and on faulted
    /// ones, which stay so until the next start, are deleted by a later [`Self::sweep`].
    ///
    /// Refuses open or pinned segments: their records may be about to be committed.
    pub async fn remove(self: &Arc<Self>, volume: VolumeId, segment: SegmentId) -> Result<()> {
        let opened = self.volume(volume)?;
        opened.require_owned()?;
        let is_pinned =
            |found: &Segment| found.is_pinned() && !planted::is(Bug::CollectorIgnoresPins);
        let removed = {
            let mut segments = opened.segments.write();
            match segments.get(&segment) {
                None => return Ok(()),
                Some(found) if is_pinned(found) || found.is_open() => {
                    return Err(SegmentError::InUse { volume, segment });
                }
                Some(_) => segments.remove(&segment),
            }
        };
        if let Some(removed) = removed {
            self.remove_segment(&removed).await;
        }
        Ok(())
    }

    /// Deletes the shards of a segment that cannot be found any more.
    pub(crate) async fn remove_segment(self: &Arc<Self>, segment: &Segment) {
        segment.begin_removal();
        // The files of deleted shards may be reused, so all writers must be done.
        let _alone = segment.gate.write().await;
        segment.end_removal();
        let disks = segment.disks();
        let removals = disks.iter().zip(0..).filter_map(|(disk, index)| {
            // A faulted disk is slow to fail each request, and garbage collection would wait for it.
            let removing = self.healthy_disk(*disk)?;
            let name = segment.shard_name(index);
            let (store, epoch) = (self.clone(), segment.epoch);
            let run = async move {
                if let Err(error) = removing.remove(epoch, name).await {
                    store.note_fenced(&error);
                    tracing::warn!(shard = %name, %error, "a shard was not removed; a sweep will");
                }
            };
            Some(DiskOp {
                disk: *disk,
                run: Box::pin(run),
            })
        });
        let removals: Vec<DiskOp<()>> = removals.collect();
        let late_max = removals.len();
        self.run_or_leave_at_once(removals, late_max).await;
        count(&self.counters.segments_removed, 1);
    }

    /// Seals the open segments of a volume without an append for `idle`; unused space is freed.
    pub async fn seal_idle(self: &Arc<Self>, volume: VolumeId, idle: Duration) {
        let Ok(opened) = self.volume(volume) else {
            return;
        };
        let Some(since) = self.env.clock.monotonic().checked_sub(idle) else {
            return;
        };
        let unused = opened.streams.lock().take_unused_since(since);
        self.seal_each(&opened, unused).await;
    }

    /// Seals all open segments of a volume, at its end, so that scrub can check them.
    pub async fn seal_all(self: &Arc<Self>, volume: VolumeId) {
        let Ok(opened) = self.volume(volume) else {
            return;
        };
        // Also waits for segments without a stream whose seal is in progress.
        let all = opened.streams.lock().take_unused_since(Duration::MAX);
        self.seal_each(&opened, all).await;
        let open: Vec<_> = opened
            .segments
            .read()
            .values()
            .filter(|segment| segment.is_open())
            .cloned()
            .collect();
        self.seal_each(&opened, open).await;
    }

    async fn seal_each(self: &Arc<Self>, volume: &Volume, segments: Vec<Arc<Segment>>) {
        for segment in segments {
            segment.close();
            self.seal(volume, &segment).await;
        }
    }

    /// Finishes a closed segment: writes its footers, or removes it if nothing in it was acknowledged.
    pub(crate) async fn seal(self: &Arc<Self>, volume: &Volume, segment: &Arc<Segment>) {
        let alone = segment.gate.write().await;
        let Some(mut open) = segment.begin_sealing() else {
            return;
        };
        if !open.appended {
            volume.segments.write().remove(&segment.id);
            drop((open, alone));
            self.remove_segment(segment).await;
            return;
        }
        if !open.stripes_in_order() {
            self.note_missed(segment, &open);
            segment.settle(segment.shard_len_bytes);
            return;
        }
        let summary = self.write_summary(segment, &mut open).await;
        let mut footers = footers(segment, &open, &summary).into_iter();
        let full_len_bytes = file_len_bytes(segment.shard_len_bytes).unwrap_or(0);
        let sealed = self
            .on_good_shards(segment, &mut open, |_, disk| match footers.next() {
                Some(footer) => disk.seal(segment.epoch, footer),
                None => Box::pin(std::future::ready(Ok(full_len_bytes))),
            })
            .await;
        let is_cut = |len: &Option<u64>| len.is_some_and(|len| len < full_len_bytes);
        let len_bytes = match sealed.iter().all(is_cut) {
            true => u64::from(open.data_blocks()) * u64::from(BLOCK_BYTES),
            false => segment.shard_len_bytes,
        };
        self.note_missed(segment, &open);
        segment.settle(len_bytes);
    }

    /// Runs an operation on the shards of a segment that is being sealed, and returns the results by index. Shards that
    /// fail, or are on a late disk, count as failed from then on, and get no footer: reads need none, and scrub repairs
    /// it.
    pub(crate) async fn on_good_shards<T: Send + 'static>(
        self: &Arc<Self>,
        segment: &Segment,
        open: &mut OpenSegment,
        mut run: impl FnMut(usize, Arc<dyn ShardService>) -> ShardFuture<'static, T>,
    ) -> Vec<Option<T>> {
        let disks = segment.disks();
        let mut indexes = Vec::new();
        let mut ops = Vec::new();
        for (index, (shard, disk)) in open.shards.iter().zip(disks.iter()).enumerate() {
            let op = run(index, shard.clone());
            if !open.shard_failed[index] {
                indexes.push(index);
                ops.push(DiskOp {
                    disk: *disk,
                    run: op,
                });
            }
        }
        // A single copy is waited for: while it may be truncated, it must not be moved.
        let late_max = usize::from(segment.code.parity());
        let results = self.run_or_leave_at_once(ops, late_max).await;
        let mut done: Vec<Option<T>> = open.shards.iter().map(|_| None).collect();
        for (index, result) in indexes.into_iter().zip(results) {
            let detail = match result {
                Some(Ok(result)) => {
                    done[index] = Some(result);
                    continue;
                }
                Some(Err(error)) => {
                    self.note_fenced(&error);
                    error.to_string()
                }
                None => "its disk does not answer".to_owned(),
            };
            tracing::warn!(volume = %segment.volume, segment = %segment.id, shard = index, detail, "a shard was not sealed");
            open.shard_failed[index] = true;
        }
        done
    }

    /// Whether the segment may hold records of an uncommitted append.
    pub fn is_pinned(&self, volume: VolumeId, segment: SegmentId) -> bool {
        self.find(volume, segment)
            .is_some_and(|found| found.is_pinned())
    }

    /// Whether the segment may accept more appends.
    pub fn is_open(&self, volume: VolumeId, segment: SegmentId) -> bool {
        self.find(volume, segment)
            .is_some_and(|found| found.is_open())
    }

    /// Length for data in each shard of a sealed segment; `None` before sealing.
    pub fn settled_len_bytes(&self, volume: VolumeId, segment: SegmentId) -> Option<u64> {
        self.find(volume, segment)?.settled_len_bytes()
    }

    /// Whether a segment is in a tier.
    pub fn is_remote(&self, volume: VolumeId, segment: SegmentId) -> bool {
        self.find(volume, segment)
            .is_some_and(|found| found.remote.is_some())
    }

    /// Whether clients have read the segment since the last call.
    pub fn take_used(&self, volume: VolumeId, segment: SegmentId) -> bool {
        self.find(volume, segment)
            .is_some_and(|found| found.take_used())
    }

    /// Description of a segment.
    pub fn segment(&self, volume: VolumeId, segment: SegmentId) -> Option<SegmentInfo> {
        self.find(volume, segment).map(|found| found.info())
    }

    /// The ids of all segments of a volume, in no order.
    pub fn segment_ids(&self, volume: VolumeId) -> Result<Vec<SegmentId>> {
        let opened = self.volume(volume)?;
        let segments = opened.segments.read();
        Ok(segments.keys().copied().collect())
    }

    /// All segments of a volume, including those without a committed append.
    pub fn segments(&self, volume: VolumeId) -> Vec<SegmentInfo> {
        let Ok(opened) = self.volume(volume) else {
            return Vec::new();
        };
        let segments = opened.segments.read();
        segments.values().map(|segment| segment.info()).collect()
    }

    /// Segments of a volume that have a shard on a disk that is not sound, survive fewer losses than `parity`, or
    /// survive the loss of fewer nodes than they could. The cost grows with these and with the number of changes, not
    /// with all segments. `None` if the volume is not open.
    pub fn segments_at_stake(
        &self,
        volume: VolumeId,
        is_sound: impl Fn(DiskId) -> bool,
        parity_of: impl Fn(Option<Protection>) -> u8,
    ) -> Option<Vec<SegmentInfo>> {
        let opened = self.volume(volume).ok()?;
        self.look_at_places(&opened);
        let segments = opened.segments.read();
        let at_stake = segments.at_stake(is_sound, parity_of);
        Some(at_stake.map(|segment| segment.info()).collect())
    }

    /// Finds segments with several shards on a node although there are enough nodes: they were made or rebuilt while
    /// nodes were away, or before nodes joined. Also finds those with shards on disks of another class than they ask
    /// for.
    fn look_at_places(&self, opened: &Volume) {
        let members = self.members();
        let staying = members.staying(&[]);
        if staying.node_count() < 2 && !members.has_media() {
            return;
        }
        let layout = members.layout();
        // A concurrent pass could record a placement from before a move after this one recorded the present one.
        let _alone = opened.looks.lock();
        let batch = opened
            .segments
            .write()
            .take_unlooked(layout, LOOKED_AT_A_TIME_MAX);
        let mut possible: FxHashMap<(u8, u8), usize> = FxHashMap::default();
        let looked: Vec<Looked> = batch
            .iter()
            .map(|segment| {
                let code = segment.code;
                let best = possible
                    .entry((code.data(), code.parity()))
                    .or_insert_with(|| staying.survives(code).nodes);
                let is_right = |disk: &DiskId| members.is_of(*disk, segment.media);
                Looked {
                    id: segment.id,
                    is_crowded: nodes_survived(&members, segment) < *best,
                    is_misplaced: !segment.disks().iter().all(is_right),
                }
            })
            .collect();
        if !looked.is_empty() {
            opened.segments.write().note_looked(looked);
        }
    }

    /// The smallest number of lost nodes that a crowded segment of a volume survives; a crowded one survives fewer than
    /// it could. `None` if there is none, or the volume is not open.
    pub fn crowded_nodes_survived(&self, volume: VolumeId) -> Option<usize> {
        let opened = self.volume(volume).ok()?;
        self.look_at_places(&opened);
        let members = self.members();
        let segments = opened.segments.read();
        let all = segments.crowded();
        all.map(|segment| nodes_survived(&members, segment)).min()
    }

    /// Bytes on disks of the segments of a volume that ask for a device class, by wanted and actual class. `None` if
    /// the volume is not open.
    pub fn media_bytes(&self, volume: VolumeId) -> Option<BTreeMap<(Media, Option<Media>), u64>> {
        let opened = self.volume(volume).ok()?;
        let members = self.members();
        let mut bytes = BTreeMap::new();
        for segment in opened.segments.read().values() {
            let Some(wanted) = segment.media else {
                continue;
            };
            let settled = segment.settled_len_bytes();
            let shard_len_bytes = settled.unwrap_or(segment.shard_len_bytes);
            for disk in segment.disks().iter() {
                *bytes.entry((wanted, members.media(*disk))).or_default() += shard_len_bytes;
            }
        }
        Some(bytes)
    }

    /// Whether the pool has disks of this class that may get new shards.
    pub fn has_media(&self, media: Media) -> bool {
        let members = self.members();
        let mut ids = members.domains().map(|at| at.disk);
        ids.any(|id| members.takes_shards(id) && members.media(id) == Some(media))
    }

    /// Number of segments of a volume with a shard on each disk. `None` if the volume is not open.
    pub fn shard_counts(&self, volume: VolumeId) -> Option<Vec<(DiskId, u64)>> {
        let opened = self.volume(volume).ok()?;
        let segments = opened.segments.read();
        Some(segments.shard_counts().collect())
    }

    /// Number of segments of a volume that are unreadable from the disks of the reachable nodes: they have fewer than N
    /// shards there. `None` if the volume is not open.
    pub fn unreadable_count(
        &self,
        volume: VolumeId,
        is_reached: impl Fn(NodeId) -> bool,
    ) -> Option<u64> {
        let opened = self.volume(volume).ok()?;
        let members = self.members();
        let there: FxHashSet<DiskId> = members
            .domains()
            .filter(|at| is_reached(at.node))
            .map(|at| at.disk)
            .collect();
        let segments = opened.segments.read();
        let local = segments.values().filter(|segment| segment.remote.is_none());
        let unreadable = local.filter(|segment| {
            let disks = segment.disks();
            let count = disks.iter().filter(|disk| there.contains(disk)).count();
            count < usize::from(segment.code.data())
        });
        Some(unreadable.count() as u64)
    }

    /// Number of segments of a volume that survive fewer losses than `parity_of` their protection.
    pub fn narrow_count(
        &self,
        volume: VolumeId,
        parity_of: impl Fn(Option<Protection>) -> u8,
    ) -> u64 {
        let opened = self.volume(volume);
        opened.map_or(0, |opened| opened.segments.read().narrow_count(parity_of))
    }

    /// Protections that segments of a volume ask for instead of the volume's. `None` if the volume is not open.
    pub fn protections(&self, volume: VolumeId) -> Option<Protections> {
        let opened = self.volume(volume).ok()?;
        let asked = opened.segments.read().protections();
        Some(asked)
    }

    /// Segments that the metadata does not have, by `is_known`, out of those created since the volume was opened or
    /// named by [`Self::note_uncommitted`]. Segments that it has are not checked again.
    pub fn uncommitted(
        &self,
        volume: VolumeId,
        is_known: impl Fn(SegmentId) -> bool,
    ) -> Vec<SegmentId> {
        let Ok(opened) = self.volume(volume) else {
            return Vec::new();
        };
        let mut uncommitted = opened.uncommitted.lock();
        uncommitted.retain(|id| opened.segments.read().contains_key(id) && !is_known(*id));
        uncommitted.iter().copied().collect()
    }

    /// Notes that the metadata does not have these segments any more.
    pub fn note_uncommitted(&self, volume: VolumeId, segments: &[SegmentId]) {
        if let Ok(opened) = self.volume(volume) {
            opened.uncommitted.lock().extend(segments);
        }
    }

    pub(crate) fn find(&self, volume: VolumeId, segment: SegmentId) -> Option<Arc<Segment>> {
        self.volume(volume).ok()?.segment(segment).ok()
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> Result<Arc<Volume>> {
        let found = self.volumes.read().get(&volume).cloned();
        found.ok_or(SegmentError::VolumeClosed { volume })
    }

    /// A present disk of the pool; it may be failing.
    pub(crate) fn disk(&self, disk: DiskId) -> Option<Arc<dyn ShardService>> {
        self.members.load().disk(disk).cloned()
    }

    pub(crate) fn members(&self) -> Arc<Members> {
        self.members.load_full()
    }

    pub(crate) fn change_members(&self, change: impl Fn(&mut Members)) {
        self.members.rcu(|members| {
            let mut members = Members::clone(members);
            change(&mut members);
            members
        });
    }

    /// Whether the disk may be written: it works, and refuses earlier owners of the volumes.
    fn is_usable_disk(&self, disk: &dyn ShardService) -> bool {
        !disk.is_avoided() && !self.unfenced.has(disk.id())
    }

    /// Whether a disk may be written: it works, and refuses earlier owners of the volumes.
    pub fn can_be_written(&self, disk: DiskId) -> bool {
        self.healthy_disk(disk).is_some()
    }

    /// A disk, if it may be written.
    pub(crate) fn healthy_disk(&self, disk: DiskId) -> Option<Arc<dyn ShardService>> {
        self.disk(disk).filter(|disk| self.is_usable_disk(&**disk))
    }

    pub(crate) fn healthy_disks(&self) -> Vec<Arc<dyn ShardService>> {
        let members = self.members.load();
        let healthy = members.all().filter(|disk| self.is_usable_disk(&***disk));
        healthy.cloned().collect()
    }

    /// Healthy disks that may get new shards.
    pub(crate) fn roomy_disks(&self) -> Vec<Arc<dyn ShardService>> {
        let members = self.members.load();
        let staying = members
            .all()
            .filter(|disk| self.is_usable_disk(&***disk) && members.takes_shards(disk.id()));
        staying.cloned().collect()
    }

    /// Number of disks that may get new shards.
    pub(crate) fn takes_shards_count(&self) -> usize {
        let members = self.members.load();
        let takes = |disk: &&Arc<dyn ShardService>| {
            self.is_usable_disk(&***disk) && members.takes_shards(disk.id())
        };
        members.all().filter(takes).count()
    }

    /// Whether a disk may get new shards: it works, stays in the pool, and refuses earlier owners of the volumes.
    pub fn takes_shards(&self, disk: DiskId) -> bool {
        let members = self.members.load();
        let there = members.disk(disk);
        there.is_some_and(|there| self.is_usable_disk(&**there)) && members.takes_shards(disk)
    }

    /// Whether any disk works; a disk too full to store a promise counts.
    pub fn has_working_disk(&self) -> bool {
        let members = self.members.load();
        let mut all = members.all();
        all.any(|disk| !disk.is_avoided() && !self.unfenced.has_silent(disk.id()))
    }

    /// Whether a disk of the pool is missing or unresponsive now: it may come back.
    pub fn has_absent_disk(&self) -> bool {
        let members = self.members.load();
        !members.missing().is_empty() || members.all().any(|disk| disk.is_silent())
    }

    /// Room for shards on the pool's disks.
    pub fn space(&self) -> PoolSpace {
        let mut pool = PoolSpace::default();
        let members = self.members();
        for disk in members.all().filter(|disk| !members.is_journal(disk.id())) {
            let space = disk_space(&**disk);
            let reserve_bytes = self.reserve_bytes(space.total_bytes);
            pool.total_bytes += space.total_bytes;
            pool.free_bytes += space.free_bytes;
            pool.reserve_bytes += reserve_bytes.min(space.free_bytes);
            pool.disks.push(DiskSpaceStatus {
                disk: disk.id(),
                total_bytes: space.total_bytes,
                free_bytes: space.free_bytes,
                reserve_bytes,
            });
        }
        pool.disks.sort_unstable_by_key(|disk| disk.disk);
        pool
    }

    /// Room for file bytes under `code`, without the reserve; room in open segments counts as free.
    pub fn usable(&self, code: Code) -> UsableSpace {
        let (mut total, mut free, mut rewrite) = (Vec::new(), Vec::new(), Vec::new());
        // With less than that a disk takes no shard.
        let least_bytes = file_len_bytes(self.settings.shard_len_bytes_min).unwrap_or(0);
        let in_shards = |room_bytes: u64| match room_bytes < least_bytes {
            true => 0,
            false => room_bytes,
        };
        let members = self.members();
        let pool = members.staying(&[]);
        for disk in self.roomy_disks() {
            let node = members.domain(disk.id()).node;
            let space = disk_space(&*disk);
            let reserve_bytes = self.reserve_bytes(space.total_bytes);
            let free_bytes = space.free_bytes.saturating_sub(reserve_bytes);
            let rewrite_bytes = self.room_bytes(&*disk, Stream::Rewrite);
            total.push((node, space.total_bytes.saturating_sub(reserve_bytes)));
            free.push((node, in_shards(free_bytes)));
            rewrite.push((node, in_shards(rewrite_bytes)));
        }
        let may_borrow = self.is_reserve_whole();
        let (mut open, mut open_rewrite) = (0, 0);
        for volume in self.volumes.read().values() {
            let streams = volume.streams.lock();
            open += streams.room_bytes(code, may_borrow);
            open_rewrite += streams.rewrite_room_bytes(code);
        }
        let usable = |room: &[NodeRoom]| placement::usable_bytes_in(room, code, &pool);
        let total_bytes = usable(&total);
        let free_bytes = usable(&free).saturating_add(open);
        UsableSpace {
            total_bytes,
            free_bytes: free_bytes.min(total_bytes),
            rewrite_bytes: usable(&rewrite).saturating_add(open_rewrite),
        }
    }

    /// Whether garbage collection has used nothing of the reserve. While it has, the rest of its open segments is the
    /// reserve, and no other stream may use it.
    pub(crate) fn is_reserve_whole(&self) -> bool {
        self.roomy_disks().iter().all(|disk| {
            let space = disk_space(&**disk);
            space.free_bytes >= self.reserve_bytes(space.total_bytes)
        })
    }

    pub(crate) fn reserve_bytes(&self, total_bytes: u64) -> u64 {
        placement::reserve_bytes(&self.settings, total_bytes)
    }

    fn open_room_bytes(&self) -> u64 {
        let may_borrow = self.is_reserve_whole();
        let volumes = self.volumes.read();
        let room = volumes
            .values()
            .map(|volume| volume.streams.lock().all_room_bytes(may_borrow));
        room.sum()
    }

    /// Every disk of the pool, present or not.
    pub fn disk_status(&self) -> Vec<DiskStatus> {
        let members = self.members();
        let there = members.all().map(|disk| {
            let (space, health) = (disk_space(&**disk), disk.health());
            DiskStatus {
                id: disk.id(),
                label: disk.label().to_owned(),
                state: match (health.failed, disk.is_silent()) {
                    (true, _) => DiskState::Failed,
                    (false, true) => DiskState::Unresponsive,
                    (false, false) if health.suspect || disk.state().is_failing() => {
                        DiskState::Failing
                    }
                    (false, false) if self.lacks_some(disk.id()) => DiskState::Returning,
                    (false, false) => DiskState::Healthy,
                },
                total_bytes: space.total_bytes,
                free_bytes: space.free_bytes,
                waiting_bytes: disk.recycled_bytes(),
                read_errors: health.read_errors,
                write_errors: health.write_errors,
                full_errors: health.full_errors,
                checksum_errors: health.checksum_errors,
            }
        });
        let missing = members.missing().iter().map(|id| DiskStatus {
            id: *id,
            label: String::new(),
            state: DiskState::Missing,
            total_bytes: 0,
            free_bytes: 0,
            waiting_bytes: 0,
            read_errors: 0,
            write_errors: 0,
            full_errors: 0,
            checksum_errors: 0,
        });
        let mut all: Vec<_> = there.chain(missing).collect();
        all.sort_unstable_by_key(|disk| disk.id);
        all
    }

    /// Sets the memory limit of cached records and decoded stripes; excess records are dropped at once.
    pub fn set_cache_bytes(&self, cache_bytes: u64) {
        self.stripes.resize(cache_bytes);
        let stripes = self.stripes.weight_bytes().min(cache_bytes / 2);
        self.cache.set_full(cache_bytes - stripes);
    }

    /// Memory of cached records and decoded stripes.
    pub fn cache_bytes(&self) -> u64 {
        self.cache.weight_bytes() + self.stripes.weight_bytes()
    }

    /// Bytes of appends that are being written to disks.
    pub fn append_bytes_in_flight(&self) -> u64 {
        let blocks =
            self.appends_in_flight_max as usize - self.appends_in_flight.available_permits();
        blocks as u64 * u64::from(BLOCK_BYTES)
    }

    pub fn stats(&self) -> SegmentStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        SegmentStats {
            appends: get(&counters.appends),
            appended_bytes: get(&counters.appended_bytes),
            parity_bytes: get(&counters.parity_bytes),
            padding_bytes: get(&counters.padding_bytes),
            append_retries: get(&counters.append_retries),
            segments_created: get(&counters.segments_created),
            segments_removed: get(&counters.segments_removed),
            disk_reads: get(&counters.disk_reads),
            disk_read_bytes: get(&counters.disk_read_bytes),
            merged_reads: get(&counters.merged_reads),
            degraded_reads: get(&counters.degraded_reads),
            checksum_errors: get(&counters.checksum_errors),
            damaged_reads: get(&counters.damaged_reads),
            unreachable_reads: get(&counters.unreachable_reads),
            repairs: get(&counters.repairs),
            repairs_failed: get(&counters.repairs_failed),
            repairs_skipped: get(&counters.repairs_skipped),
            rebuilds: get(&counters.rebuilds),
            rebuilds_failed: get(&counters.rebuilds_failed),
            cache_hits: get(&counters.cache_hits),
            cache_misses: get(&counters.cache_misses),
            second_hits: get(&counters.second_hits),
            second_hit_bytes: get(&counters.second_hit_bytes),
            second_misses: get(&counters.second_misses),
            second_kept_bytes: get(&counters.second_kept_bytes),
            second_wrong: get(&counters.second_wrong),
            copied_out: get(&counters.copied_out),
            remote_reads: get(&counters.remote_reads),
            remote_read_bytes: get(&counters.remote_read_bytes),
            cache_bytes: self.cache_bytes(),
            open_segments: self.open_segment_count(),
            open_room_bytes: self.open_room_bytes(),
            append_bytes_in_flight: self.append_bytes_in_flight(),
        }
    }

    fn open_segment_count(&self) -> u64 {
        let volumes = self.volumes.read();
        let count = volumes.values().map(|volume| volume.streams.lock().count());
        count.sum::<usize>() as u64
    }
}

/// Whether a shard on a disk belongs to a known segment.
type KnownShards = dyn Fn(ShardName, DiskId) -> bool + Send + Sync;

/// Number of nodes that a segment may lose when all its shards are present.
fn nodes_survived(members: &Members, segment: &Segment) -> usize {
    let places: Vec<DomainPath> = segment
        .disks()
        .iter()
        .map(|disk| members.domain(*disk))
        .collect();
    survives(&places, usize::from(segment.code.parity())).nodes
}

/// Fails with `Fenced` only.
async fn sweep_disk(
    disk: Arc<dyn ShardService>,
    volume: VolumeId,
    epoch: Option<Epoch>,
    known: Arc<KnownShards>,
    pace: Option<Arc<Pace>>,
) -> std::result::Result<Swept, ShardError> {
    let mut swept = Swept::default();
    let list = match disk.list(volume).await {
        Ok(list) => list,
        Err(error) => {
            tracing::warn!(%volume, %error, "listing shards failed; the next sweep tries again");
            swept.errors += 1;
            return Ok(swept);
        }
    };
    let epoch = epoch.unwrap_or(list.promised);
    let unknown = list.names.into_iter();
    let unknown = unknown.filter(|name| !known(*name, disk.id()));
    let unknown: Vec<ShardName> = unknown.collect();
    for batch in unknown.chunks(SWEEP_BATCH) {
        let _turn = match &pace {
            Some(pace) => Some(pace.spend(0).await),
            None => None,
        };
        // The disk skips shards that a move has brought since.
        match disk.sweep(epoch, volume, batch.to_vec(), list.mark).await {
            Ok(done) => {
                swept.shards_removed += done.removed;
                swept.errors += done.errors;
            }
            Err(error @ ShardError::Fenced { .. }) => return Err(error),
            Err(_) => swept.errors += batch.len() as u64,
        }
    }
    Ok(swept)
}

/// The space of a disk; none if it cannot report it, so that it gets nothing new.
pub(crate) fn disk_space(disk: &dyn ShardService) -> DiskSpace {
    // The disk logs changes of that.
    disk.space().unwrap_or_default()
}

/// Whether the cache copies a record with this length and number of parts, which keep `held_bytes` of buffers in
/// memory.
fn is_copied(len_bytes: usize, part_count: usize, held_bytes: u64) -> bool {
    let kept_max = len_bytes + len_bytes / KEPT_BEYOND_PART;
    len_bytes <= COPIED_LEN_BYTES_MAX
        && (part_count > KEPT_PARTS_MAX || held_bytes > kept_max as u64)
}

/// A shard size within the limits, in whole blocks.
pub(crate) fn shard_len(settings: &SegmentSettings, len_bytes: u64) -> u64 {
    let least = settings
        .shard_len_bytes_min
        .clamp(u64::from(BLOCK_BYTES), SHARD_CAPACITY_BYTES_MAX);
    let len_bytes = len_bytes.clamp(least, SHARD_CAPACITY_BYTES_MAX);
    len_bytes - len_bytes % u64::from(BLOCK_BYTES)
}

impl Segment {
    pub(crate) fn shard_name(&self, index: u8) -> ShardName {
        ShardName {
            volume: self.volume,
            segment: self.id,
            index,
        }
    }
}

/// The footer of each shard. A segment is sealed in the term that made it: no later term appends to it.
fn footers(segment: &Segment, open: &OpenSegment, summary: &[u8]) -> Vec<ShardFooter> {
    let stripes: Vec<FooterStripe> = open
        .stripes
        .iter()
        .map(|stripe| FooterStripe {
            start_block: stripe.stripe_block,
            unit_blocks: stripe.unit_blocks,
        })
        .collect();
    (0..segment.code.total())
        .map(|index| ShardFooter {
            name: segment.shard_name(index),
            data_shards: segment.code.data(),
            parity_shards: segment.code.parity(),
            epoch: segment.epoch,
            data_len_bytes: u64::from(open.data_blocks()) * u64::from(BLOCK_BYTES),
            stripes: stripes.clone(),
            checksums: chunk_checksums(open, usize::from(index)),
            summary: summary.to_vec(),
        })
        .collect()
}

/// Joins the checksums of stripes, which begin and end within chunks, into those of whole chunks.
fn chunk_checksums(open: &OpenSegment, shard: usize) -> Vec<u32> {
    let chunk = CHECKSUM_UNIT_BYTES;
    let mut checksums = Vec::new();
    let (mut crc, mut filled) = (0, 0);
    for stripe in &open.stripes {
        let mut left = u64::from(stripe.unit_blocks) * u64::from(BLOCK_BYTES);
        for part in &stripe.checksums[shard] {
            let len = left.min(chunk - filled);
            // Joining is expensive, and stripes mostly cover whole chunks.
            crc = if filled == 0 {
                *part
            } else {
                cairn_base::crc32c_combine(crc, *part, len)
            };
            filled += len;
            left -= len;
            if filled == chunk {
                checksums.push(crc);
                (crc, filled) = (0, 0);
            }
        }
    }
    if filled > 0 {
        checksums.push(crc);
    }
    checksums
}
