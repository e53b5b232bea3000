//! The world of the tests of the file service: simulated disks, a clock, a volume on them.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::{Branch, DiskId, Generation, Ino, NodeId, PoolId, SegmentId, Timestamp, VolumeId};
use cairn_fs::*;
use cairn_keys::VolumeKey;
use cairn_meta::{
    Batch, ExtentPlace, ExtentRecord, InodeRecord, Key, KeyKind, MetaCache, MetaSettings,
    MetaStore, Owner, Succession, branch_of, decode_extent, taken_over_tree,
};
use cairn_segment::{Member, Pace, Role, SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardService, ShardSettings};
use cairn_testkit::{Crash, ManualClock, MemDisk, TestWorld};

pub const POOL: PoolId = PoolId(7);
pub const VOLUME: VolumeId = VolumeId(1);
pub static ROOT_USER: Credentials = Credentials::ROOT;
pub const ROOT_INO: Ino = Ino(1);

pub struct World {
    pub disks: Vec<Arc<MemDisk>>,
    pub env: cairn_base::env::Env,
    pub clock: ManualClock,
    pub segments: Arc<SegmentStore>,
    pub succession: Succession,
    pub fs: Fs,
}

/// Bytes of each disk, unless a test wants another size.
const DISK_BYTES: u64 = 1 << 30;

/// Label of the first disk of an encrypted volume: it stays over restarts and crashes.
const ENCRYPTED: &str = "encrypted";

/// The deduplication of the volume on these disks, from their labels.
pub fn dedupe_on<'a>(disks: impl IntoIterator<Item = &'a Arc<MemDisk>>) -> Dedupe {
    let label = disks.into_iter().next().map_or("", |disk| disk.label());
    match () {
        () if label.contains("-shared") => Dedupe::On,
        () if label.contains("-compared") => Dedupe::Verify,
        () => Dedupe::Off,
    }
}

/// The key of the volume on these disks, if it is encrypted.
pub fn key_on<'a>(disks: impl IntoIterator<Item = &'a Arc<MemDisk>>) -> Option<Arc<VolumeKey>> {
    let is_encrypted = |disk: &Arc<MemDisk>| disk.label().starts_with(ENCRYPTED);
    let entropy = TestWorld::new(77).env.entropy;
    let mut disks = disks.into_iter();
    (disks.any(is_encrypted)).then(|| Arc::new(VolumeKey::random(VOLUME, &*entropy)))
}

fn meta_settings(
    disk_count: usize,
    succession: &Succession,
    key: &Option<Arc<VolumeKey>>,
) -> MetaSettings {
    let mut settings = MetaSettings::new(disk_count.min(3), MetaCache::new(1 << 20));
    settings.succession = Some(succession.clone());
    settings.log_file_bytes = 4 << 20;
    settings.ship_bytes = 8 << 20;
    settings.log_bytes_max = 32 << 20;
    settings.key = key.clone();
    settings
}

fn segment_settings() -> SegmentSettings {
    SegmentSettings {
        shard_len_bytes: 4 << 20,
        cache_bytes: 1 << 20,
        ..SegmentSettings::default()
    }
}

fn fs_settings(
    env: &cairn_base::env::Env,
    key: Option<Arc<VolumeKey>>,
    dedupe: Dedupe,
) -> FsSettings {
    FsSettings {
        key,
        policy: Policy {
            dedupe,
            ..Policy::default()
        },
        ..FsSettings::new(env.clone(), VOLUME, "main")
    }
}

fn disk_id(index: usize) -> DiskId {
    DiskId(index as u128 + 1)
}

fn members(disks: &[Arc<MemDisk>]) -> Vec<(DiskId, Arc<dyn Disk>)> {
    disks
        .iter()
        .enumerate()
        .map(|(index, disk)| (disk_id(index), disk.clone() as Arc<dyn Disk>))
        .collect()
}

async fn segments_on(
    env: &cairn_base::env::Env,
    disks: &[(DiskId, Arc<dyn Disk>)],
    format: bool,
) -> Arc<SegmentStore> {
    let mut shard_disks = Vec::new();
    for (id, disk) in disks.iter().cloned() {
        if format {
            ShardDisk::format(disk.clone(), POOL, id, Timestamp::new(1, 0))
                .await
                .unwrap();
        }
        shard_disks.push(
            ShardDisk::open(disk, POOL, ShardSettings::default())
                .await
                .unwrap(),
        );
    }
    SegmentStore::new(env.clone(), segment_settings(), shard_disks, Vec::new())
}

impl World {
    /// Seals all segments and copies the live records out of them.
    pub async fn rewrite_all(&self) {
        let segments = self.fs.meta().segments().into_iter();
        let ids: Vec<SegmentId> = segments.map(|(id, _)| id).collect();
        self.segments.seal_all(VOLUME).await;
        let pace = Pace::new(self.env.clock.clone(), 0);
        self.fs.rewrite_segments(&ids, &pace).await.unwrap();
    }

    /// An encrypted or plain volume on so many disks.
    pub async fn encrypted(disk_count: usize, is_encrypted: bool) -> Self {
        Self::with_capacity(100 + u64::from(is_encrypted), disk_count, DISK_BYTES).await
    }

    pub async fn new(seed: u64, disk_count: usize) -> Self {
        Self::with_capacity(seed, disk_count, DISK_BYTES).await
    }

    pub async fn with_capacity(seed: u64, disk_count: usize, disk_bytes: u64) -> Self {
        Self::format(seed, disk_count, disk_bytes, |_, _| {}).await
    }

    /// A volume that deduplicates, also when it is opened again.
    pub async fn deduplicating(seed: u64, disk_count: usize, dedupe: Dedupe) -> Self {
        Self::format_with(seed, disk_count, DISK_BYTES, dedupe, |_, _| {}).await
    }

    /// A log whose batches take less than a COMMIT puts there at once.
    pub async fn with_small_log(seed: u64, disk_count: usize) -> Self {
        let set =
            |_: &mut FsSettings, settings: &mut MetaSettings| settings.log_file_bytes = 64 << 10;
        Self::format(seed, disk_count, DISK_BYTES, set).await
    }

    /// One disk, and a volume that may have few extents in memory.
    pub async fn with_extents_max(seed: u64, extents_max: usize) -> Self {
        let set =
            |settings: &mut FsSettings, _: &mut MetaSettings| settings.extents_max = extents_max;
        Self::format(seed, 1, DISK_BYTES, set).await
    }

    /// One disk, and a volume that keeps as few inodes in memory as possible.
    pub async fn with_few_inodes(seed: u64) -> Self {
        let set = |settings: &mut FsSettings, _: &mut MetaSettings| settings.inodes_max = 1;
        Self::format(seed, 1, DISK_BYTES, set).await
    }

    /// Garbage is collected with these settings.
    pub async fn with_gc(seed: u64, disk_count: usize, disk_bytes: u64, gc: GcSettings) -> Self {
        let set = |settings: &mut FsSettings, _: &mut MetaSettings| settings.gc = gc;
        Self::format(seed, disk_count, disk_bytes, set).await
    }

    /// One disk, and a volume that shares memory for dirty data with others.
    pub async fn with_dirty(seed: u64, dirty: Arc<DirtyBudget>) -> Self {
        let set = |settings: &mut FsSettings, _: &mut MetaSettings| settings.dirty = dirty;
        Self::format(seed, 1, DISK_BYTES, set).await
    }

    async fn format(
        seed: u64,
        disk_count: usize,
        disk_bytes: u64,
        set: impl FnOnce(&mut FsSettings, &mut MetaSettings),
    ) -> Self {
        Self::format_with(seed, disk_count, disk_bytes, Dedupe::Off, set).await
    }

    async fn format_with(
        seed: u64,
        disk_count: usize,
        disk_bytes: u64,
        dedupe: Dedupe,
        set: impl FnOnce(&mut FsSettings, &mut MetaSettings),
    ) -> Self {
        let TestWorld { env, clock } = TestWorld::new(seed);
        // Everything holds on an encrypted volume, too.
        let label = match seed % 2 {
            0 => "disk",
            _ => ENCRYPTED,
        };
        let shared = match dedupe {
            Dedupe::Off => "",
            Dedupe::On => "-shared",
            Dedupe::Verify => "-compared",
        };
        let disks: Vec<_> = (0..disk_count)
            .map(|index| MemDisk::new(format!("{label}{shared}{index}"), disk_bytes))
            .collect();
        let key = key_on(&disks);
        let segments = segments_on(&env, &members(&disks), true).await;
        let succession = Succession::default();
        let mut of_meta = meta_settings(disk_count, &succession, &key);
        let mut settings = fs_settings(&env, key, dedupe);
        set(&mut settings, &mut of_meta);
        let meta = MetaStore::create(env.clone(), of_meta, VOLUME, members(&disks));
        let meta = meta.await.unwrap();
        let fs = Fs::format(settings, meta, segments.clone()).await.unwrap();
        Self {
            disks,
            env,
            clock,
            segments,
            succession,
            fs,
        }
    }

    pub async fn open(seed: u64, disks: Vec<Arc<MemDisk>>) -> Self {
        Self::open_degraded(seed, disks.into_iter().enumerate().collect()).await
    }

    /// Opens with some of the disks, each with its number.
    pub async fn open_degraded(seed: u64, disks: Vec<(usize, Arc<MemDisk>)>) -> Self {
        let TestWorld { env, clock } = TestWorld::new(seed);
        let count = disks.len();
        let members: Vec<_> = disks
            .iter()
            .map(|(index, disk)| (disk_id(*index), disk.clone() as Arc<dyn Disk>))
            .collect();
        let disks: Vec<_> = disks.into_iter().map(|(_, disk)| disk).collect();
        let segments = segments_on(&env, &members, false).await;
        let succession = Succession::default();
        let key = key_on(&disks);
        let settings = meta_settings(count, &succession, &key);
        let opened = MetaStore::open(env.clone(), settings, VOLUME, members).await;
        let (meta, recovered) = opened.unwrap();
        let settings = fs_settings(&env, key, dedupe_on(&disks));
        let fs = Fs::open(settings, meta, recovered.journal, segments.clone())
            .await
            .unwrap();
        Self {
            disks,
            env,
            clock,
            segments,
            succession,
            fs,
        }
    }

    /// Reopens the volume on the same disks, as a node does after it abandoned the other one.
    pub async fn open_again(&self) -> Fs {
        let key = key_on(&self.disks);
        let settings = meta_settings(self.disks.len(), &self.succession, &key);
        let members = members(&self.disks);
        let opened = MetaStore::open(self.env.clone(), settings, VOLUME, members).await;
        let (meta, recovered) = opened.unwrap();
        let settings = fs_settings(&self.env, key, dedupe_on(&self.disks));
        let opened = Fs::open(settings, meta, recovered.journal, self.segments.clone());
        opened.await.unwrap()
    }

    /// As [`Self::open_again`], read-only.
    pub async fn open_to_read(&self) -> Fs {
        let key = key_on(&self.disks);
        let settings = meta_settings(self.disks.len(), &self.succession, &key);
        let (members, why) = (members(&self.disks), "the disks are full".to_owned());
        let opened =
            MetaStore::open_to_read(self.env.clone(), settings, VOLUME, members, Vec::new(), why);
        let (meta, recovered) = opened.await.unwrap();
        let settings = fs_settings(&self.env, key, dedupe_on(&self.disks));
        let opened = Fs::open(settings, meta, recovered.journal, self.segments.clone());
        opened.await.unwrap()
    }

    pub async fn restart(self, seed: u64) -> Self {
        self.fs.close().await.unwrap();
        Self::open(seed, self.disks).await
    }

    pub async fn crash(self, seed: u64, mode: Crash) -> Self {
        let disks = crashed(&self.disks, seed, mode);
        drop(self.env);
        Self::open(seed, disks).await
    }

    /// Rolls the volume back to a snapshot. Before that is done the process ends: each time after so many steps, in
    /// the given mode.
    pub async fn restore(
        self,
        seed: u64,
        generation: Generation,
        keep: Option<&str>,
        cuts: &[(usize, Crash)],
    ) -> Self {
        let closed = self
            .fs
            .close_to_restore(generation, keep.map(str::as_bytes));
        closed.await.unwrap();
        let mut disks = self.disks.clone();
        drop(self);
        for (index, (steps, mode)) in cuts.iter().enumerate() {
            let seed = seed + 10 * index as u64;
            let mut opening = Box::pin(Self::open(seed, disks.clone()));
            for _ in 0..*steps {
                let polled =
                    poll_fn(|context| Poll::Ready(opening.as_mut().poll(context).is_ready()));
                if polled.await {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(opening);
            disks = crashed(&disks, seed, *mode);
        }
        Self::open(seed + 1000, disks).await
    }

    /// Makes these disks missing, and expected back; the others are there.
    pub async fn set_away(&self, away: &[usize]) {
        let mut all = Vec::new();
        for (index, disk) in self.disks.iter().enumerate() {
            let disk: Option<Arc<dyn ShardService>> = match away.contains(&index) {
                true => None,
                false => {
                    let opened = ShardDisk::open(disk.clone(), POOL, ShardSettings::default());
                    Some(opened.await.unwrap())
                }
            };
            all.push(Member {
                id: disk_id(index),
                node: NodeId::ONLY,
                role: Role::Staying,
                media: None,
                disk,
            });
        }
        self.segments.set_members(&all);
    }

    /// Lets background tasks run for some time: steps of the clock, each with room to work.
    pub async fn run_for(&self, seconds: u64) {
        for _ in 0..seconds * 2 {
            self.clock.advance(std::time::Duration::from_millis(500));
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        }
    }
}

fn crashed(disks: &[Arc<MemDisk>], seed: u64, mode: Crash) -> Vec<Arc<MemDisk>> {
    let disks = disks.iter().enumerate();
    disks
        .map(|(index, disk)| disk.crash(mode, seed + index as u64))
        .collect()
}

/// Counts the space again, from nothing: extents of the volume and of its history, by segment and in total.
pub async fn recount(fs: &Fs) {
    let meta = fs.meta();
    // Nothing else is in progress: the history is read as it was applied.
    loop {
        let last = meta.last_ticket();
        meta.applied(last).await.unwrap();
        if meta.last_ticket() == last {
            break;
        }
    }
    let mut live: BTreeMap<SegmentId, (u64, u64)> = BTreeMap::new();
    let mut of_inodes: BTreeMap<Ino, (u64, u64)> = BTreeMap::new();
    let (mut stored_bytes, mut history_bytes) = (0, 0);
    let mut count = |value: &[u8], len: u64| {
        let extent = ExtentRecord::decode(value).unwrap();
        let bytes = extent.place.stored_len_bytes(len);
        if let ExtentPlace::Record { record, .. } = &extent.place {
            let entry = live.entry(record.location.segment).or_default();
            entry.0 += bytes;
            entry.1 += 1;
        }
        stored_bytes += bytes;
        bytes
    };
    let (from, to) = Key::all_extents();
    let scanned = meta.live().scan_with(&from, &to, |key, value, _| {
        let (ino, end, extent) = decode_extent(key, value).unwrap();
        let stored = count(value, end - extent.start);
        let of_inode = of_inodes.entry(ino).or_default();
        of_inode.0 += end - extent.start;
        of_inode.1 += stored;
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    recount_usages(fs, &of_inodes);
    let (from, to) = Key::everything();
    let snapshots = meta.snapshots();
    for version in meta.history(&from, &to, None, usize::MAX).unwrap() {
        let branch = branch_of(version.key.as_bytes());
        let seen = snapshots.iter().any(|(at, record)| {
            record.branch == branch && version.birth <= *at && *at < version.death
        });
        assert!(seen || !meta.deleted_snapshots().is_empty(), "{version:?}");
        let value = version.value.unwrap();
        if let Ok(KeyKind::Extent { .. }) = version.key.kind() {
            let (_, end, extent) = decode_extent(version.key.as_bytes(), &value).unwrap();
            history_bytes += count(&value, end - extent.start);
        }
    }
    let counters = meta.counters();
    assert_eq!(counters.stored_bytes, stored_bytes, "stored");
    assert_eq!(counters.history_bytes, history_bytes, "history");
    assert_eq!(meta.stats().counter_errors, 0);
    for (id, record) in meta.segments() {
        let want = live.remove(&id).unwrap_or((0, 0));
        assert_eq!(
            (record.live_bytes, record.live_records),
            want,
            "segment {id}"
        );
    }
    assert_eq!(
        live,
        BTreeMap::new(),
        "extents in segments that are not there"
    );
}

/// Checks that no key is left of clones, if all are deleted and freed; nor of the volume that the store was made for,
/// if that is deleted, too.
pub fn check_nothing_is_left(fs: &Fs) {
    let meta = fs.meta();
    let is_empty = fs.is_own_volume_deleted();
    let mark = Key::gone(ROOT_INO);
    let may_be_there = |key: &[u8]| {
        let mut of_main = Key::of_branch(Branch::MAIN);
        let is_of_main = of_main.any(|(from, to)| (from.as_bytes()..to.as_bytes()).contains(&key));
        branch_of(key).is_main() && (!is_empty || !is_of_main || key == mark.as_bytes())
    };
    let (from, to) = Key::everything();
    let scanned = meta.live().scan_with(&from, &to, |key, _, _| {
        assert!(may_be_there(key), "{key:?}");
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    let usages = meta.own_usages().into_iter();
    let left: Vec<_> = usages
        .filter(|(key, _)| is_empty || !key.tree.branch().is_main())
        .collect();
    assert_eq!(left, []);
    assert!(
        meta.snapshots()
            .iter()
            .all(|(_, snapshot)| !is_empty && snapshot.branch.is_main())
    );
    if is_empty {
        let counters = meta.counters();
        assert_eq!((counters.inodes, counters.file_bytes), (0, 0));
        assert_eq!((counters.stored_bytes, counters.history_bytes), (0, 0));
    }
}

/// Checks the counts of quotas against inodes and their bytes.
fn recount_usages(fs: &Fs, of_inodes: &BTreeMap<Ino, (u64, u64)>) {
    let meta = fs.meta();
    let mut want: BTreeMap<QuotaKey, UsageRecord> = BTreeMap::new();
    let (from, to) = Key::inodes();
    for (key, value) in meta.live().scan(&from, &to, usize::MAX).unwrap() {
        let Ok(KeyKind::Inode(ino)) = key.kind() else {
            panic!("{key:?}");
        };
        let record = InodeRecord::decode(&value).unwrap();
        let (used, stored) = of_inodes.get(&ino).copied().unwrap_or_default();
        if record.nlink > 0 {
            let noted = (record.used_bytes, record.stored_bytes);
            assert_eq!(noted, (used, stored), "inode {ino}");
        }
        let owner = Owner {
            tree: record.tree,
            uid: record.uid,
            gid: record.gid,
        };
        for key in owner.keys() {
            let sum = want.entry(key).or_default();
            sum.inodes += 1;
            sum.file_bytes += used;
            sum.stored_bytes += stored;
        }
    }
    // Inodes that clones took over are checked with the clones.
    let taken_over = |key: &QuotaKey| {
        let branch = key.tree.branch();
        !branch.is_main() && key.tree == taken_over_tree(branch)
    };
    let counted = meta.own_usages().into_iter();
    let counted: BTreeMap<QuotaKey, UsageRecord> =
        counted.filter(|(key, _)| !taken_over(key)).collect();
    assert_eq!(counted, want, "usage");
    let volume = fs.quota(ROOT_INO, QuotaKind::Tree, 0).expect("a volume");
    let counters = meta.counters();
    let all = (counters.inodes, counters.file_bytes);
    assert_eq!((volume.used.inodes, volume.used.file_bytes), all, "volume");
}

/// The record of an inode as the metadata has it.
pub fn stored(fs: &Fs, ino: Ino) -> InodeRecord {
    let value = fs.meta().live().get(&Key::inode(ino)).unwrap();
    InodeRecord::decode(&value.expect("an inode")).unwrap()
}

pub async fn read_all(fs: &FsView, ino: Ino) -> Vec<u8> {
    let mut data = Vec::new();
    loop {
        let part = fs
            .read(&ROOT_USER, ino, data.len() as u64, 1 << 20)
            .await
            .unwrap();
        for bytes in &part.parts {
            data.extend_from_slice(bytes);
        }
        if part.eof {
            return data;
        }
    }
}

pub fn pattern(len: u32, byte: u8) -> Vec<u8> {
    (0..len)
        .map(|at| byte.wrapping_add((at / 7) as u8))
        .collect()
}

/// Replaces the stored value of a file's extent that ends at `end`; returns the former value.
pub fn put_extent(world: &World, ino: Ino, end: u64, value: Bytes) -> Bytes {
    let key = Key::extent(ino, end);
    let meta = world.fs.meta();
    let stored = meta.live().get(&key).unwrap().expect("an extent");
    let mut batch = Batch::new();
    batch.put(key, value);
    meta.submit(batch);
    stored
}

pub fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future);
}
