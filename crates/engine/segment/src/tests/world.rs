//! A pool of in-memory disks with a store on it, and the records written there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::{AlignedBuf, DiskId, Epoch, PoolId, SegmentId, Timestamp, VolumeId};
use cairn_erasure::Code;
use cairn_keys::VolumeKey;
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::{ManualClock, MemDisk, Rng, TestWorld};

use crate::*;

pub const VOLUME: VolumeId = VolumeId(7);
pub const EPOCH: Epoch = Epoch(3);
pub const POOL: PoolId = PoolId(99);

pub struct World {
    pub store: Arc<SegmentStore>,
    pub disks: Vec<Arc<MemDisk>>,
    pub settings: SegmentSettings,
    pub clock: ManualClock,
    next_segment: Arc<AtomicU64>,
    /// Number of records so far: each has an owner of its own.
    appended: AtomicU64,
    seed: u64,
}

/// A record as the metadata would know it, with its expected bytes.
#[derive(Clone)]
pub struct Written {
    pub pointer: RecordPointer,
    pub data: Bytes,
}

/// Label of the disks of an encrypted volume: it is kept across restarts.
const ENCRYPTED: &str = "encrypted";

/// The key of the volume on these disks, if it is encrypted.
pub fn key_on(disks: &[Arc<MemDisk>]) -> Option<Arc<VolumeKey>> {
    let is_encrypted = |disk: &Arc<MemDisk>| disk.label().starts_with(ENCRYPTED);
    let entropy = TestWorld::new(77).env.entropy;
    let key = || Arc::new(VolumeKey::random(VOLUME, &*entropy));
    disks.iter().any(is_encrypted).then(key)
}

pub fn code(data: u8, parity: u8) -> Code {
    Code::new(data, parity).expect("code")
}

pub fn small_settings() -> SegmentSettings {
    SegmentSettings {
        cache_bytes: 64 << 20,
        ..SegmentSettings::default()
    }
}

impl World {
    pub async fn new(disk_count: usize, seed: u64) -> Self {
        Self::with_capacity(disk_count, 1 << 30, seed).await
    }

    pub async fn with_capacity(disk_count: usize, capacity_bytes: u64, seed: u64) -> Self {
        let mut disks = Vec::new();
        for index in 0..disk_count {
            // Everything must hold for an encrypted volume, too.
            let label = if seed.is_multiple_of(2) {
                "disk"
            } else {
                ENCRYPTED
            };
            let disk = MemDisk::new(format!("{label}{index}"), capacity_bytes);
            let id = DiskId(index as u128 + 1);
            ShardDisk::format(disk.clone(), POOL, id, Timestamp::default())
                .await
                .expect("formatted");
            disks.push(disk);
        }
        Self::start(disks, &[], small_settings(), Vec::new(), 1, seed).await
    }

    /// A store on `disks` without those at the `away` indexes.
    async fn start(
        disks: Vec<Arc<MemDisk>>,
        away: &[usize],
        settings: SegmentSettings,
        known: Vec<SegmentInfo>,
        next_segment: u64,
        seed: u64,
    ) -> Self {
        let simulated = TestWorld::new(seed);
        let mut opened = Vec::new();
        for (index, disk) in disks.iter().enumerate() {
            if !away.contains(&index) {
                let disk: Arc<dyn Disk> = disk.clone();
                let settings = ShardSettings {
                    errors_in_a_row_max: 1000,
                    ..ShardSettings::default()
                };
                opened.push(ShardDisk::open(disk, POOL, settings).await.expect("opened"));
            }
        }
        let missing = away
            .iter()
            .map(|index| DiskId(*index as u128 + 1))
            .collect();
        let store = SegmentStore::new(simulated.env, settings.clone(), opened, missing);
        let world = Self {
            store,
            disks,
            settings,
            clock: simulated.clock,
            next_segment: Arc::new(AtomicU64::new(next_segment)),
            appended: AtomicU64::new(0),
            seed,
        };
        world.open_again(known).await;
        world
    }

    /// Opens the volume, with the segments that the metadata knows.
    pub async fn open_again(&self, known: Vec<SegmentInfo>) {
        let next = self.next_segment.clone();
        let allocate = move || SegmentId(next.fetch_add(1, Ordering::Relaxed));
        let key = key_on(&self.disks);
        self.store
            .open_volume_with(VOLUME, EPOCH, key, Arc::new(allocate), known)
            .await
            .expect("opened");
    }

    /// A restart: cold caches, and the known segments in `segments`.
    pub async fn restart(
        &self,
        disks: Vec<Arc<MemDisk>>,
        away: &[usize],
        segments: Vec<SegmentInfo>,
    ) -> Self {
        let next = self.next_segment.load(Ordering::Relaxed);
        Self::start(
            disks,
            away,
            self.settings.clone(),
            segments,
            next,
            self.seed + 1,
        )
        .await
    }

    /// A restart on these disks with all known segments.
    pub async fn cold(&self, away: &[usize]) -> Self {
        let segments = self.store.segments(VOLUME);
        self.restart(self.disks.clone(), away, segments).await
    }

    /// A record as the volume stores it.
    pub fn encode(&self, data: Vec<Bytes>, compression: Compression) -> EncodedRecord {
        let encoder = self.store.encoder(VOLUME).expect("it is open");
        encoder.encode(data, compression)
    }

    pub async fn append(
        &self,
        code: Code,
        stream: Stream,
        records: Vec<(Bytes, Compression)>,
    ) -> Result<Vec<Written>, SegmentError> {
        let encoder = self.store.encoder(VOLUME)?;
        let encoded: Vec<EncodedRecord> = records
            .iter()
            .map(|(data, compression)| {
                let owner = RecordOwner {
                    object: 1,
                    offset: self.appended.fetch_add(1, Ordering::Relaxed),
                };
                let record = encoder.encode(vec![data.clone()], *compression);
                record.owned_by(owner)
            })
            .collect();
        let appended = self
            .store
            .append(VOLUME, code, stream, encoded.clone())
            .await?;
        assert_eq!(appended.locations.len(), records.len());
        for info in &appended.segments {
            let mut disks = info.disks.clone();
            disks.sort_unstable();
            disks.dedup();
            assert_eq!(
                disks.len(),
                usize::from(info.code.total()),
                "shards on distinct disks"
            );
            assert!(self.store.is_pinned(VOLUME, info.id));
        }
        let pointers = encoded
            .iter()
            .zip(&appended.locations)
            .map(|(record, location)| {
                assert!(
                    appended
                        .segments
                        .iter()
                        .any(|info| info.id == location.segment)
                );
                record.pointer(*location)
            });
        Ok(pointers
            .zip(records)
            .map(|(pointer, (data, _))| Written { pointer, data })
            .collect())
    }

    pub async fn append_ok(&self, code: Code, records: Vec<Bytes>) -> Vec<Written> {
        let records = records
            .into_iter()
            .map(|data| (data, Compression::None))
            .collect();
        self.append(code, Stream::Mixed, records)
            .await
            .expect("appended")
    }

    pub async fn read(
        &self,
        written: &Written,
        range: std::ops::Range<u32>,
    ) -> Result<Vec<u8>, SegmentError> {
        let parts = self.store.read(VOLUME, &written.pointer, range).await?;
        Ok(parts.concat())
    }

    pub async fn read_all(&self, written: &Written) -> Result<Vec<u8>, SegmentError> {
        self.read(written, 0..written.data.len() as u32).await
    }

    pub async fn check(&self, written: &[Written]) {
        for (index, each) in written.iter().enumerate() {
            match self.read_all(each).await {
                Ok(bytes) => assert!(bytes == each.data, "record {index} differs"),
                Err(error) => panic!("record {index}: {error}"),
            }
        }
    }

    /// The disk index and file of a shard.
    pub fn shard_file(&self, segment: SegmentId, shard: u8) -> (usize, String) {
        let info = self.store.segment(VOLUME, segment).expect("known");
        let disk = info.disks[usize::from(shard)].0 as usize - 1;
        let name = format!("shards/{:08x}/{:016x}.{:02}", VOLUME.0, segment.0, shard);
        (disk, name)
    }
}

/// Bytes that differ from record to record; `text` compresses well.
pub fn data(rng: &mut Rng, len: usize, text: bool, aligned: bool) -> Bytes {
    let mut buf = AlignedBuf::zeroed(len + 1);
    if text {
        let word = rng.u64().to_le_bytes();
        for (index, byte) in buf.iter_mut().enumerate() {
            *byte = word[index % 8] ^ (index / 100) as u8;
        }
    } else {
        rng.fill(&mut buf);
    }
    let bytes = buf.freeze();
    if aligned {
        bytes.slice(..len)
    } else {
        bytes.slice(1..)
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("runtime")
        .block_on(future)
}
