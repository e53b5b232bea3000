//! What the tests share.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::{AlignedBuf, DiskId, Epoch, PoolId, SegmentId, Timestamp, VolumeId, crc32c};
use cairn_disk::{DiskSettings, RealDisk};
use cairn_shard::{
    CHECKSUM_UNIT_BYTES, FooterStripe, ShardDisk, ShardError, ShardErrorKind, ShardFooter,
    ShardName, ShardSettings,
};
use cairn_testkit::{Crash, MemDisk};

pub const POOL: PoolId = PoolId(0xabc);
pub const DISK: DiskId = DiskId(0xd15c);
pub const NOW: Timestamp = Timestamp::new(1_700_000_000, 5);
/// Large enough that a file with little data is cut by its seal.
pub const CAPACITY: u64 = 256 << 10;
pub const SEEDS: std::ops::Range<u64> = 0..4;

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

pub fn name(volume: u32, segment: u64, index: u8) -> ShardName {
    ShardName {
        volume: VolumeId(volume),
        segment: SegmentId(segment),
        index,
    }
}

pub fn path_of(name: ShardName) -> String {
    format!(
        "shards/{:08x}/{:016x}.{:02}",
        name.volume.0, name.segment.0, name.index
    )
}

pub fn fill(len_bytes: u64, byte: u8) -> Bytes {
    let mut buf = AlignedBuf::zeroed(len_bytes as usize);
    buf.fill(byte);
    buf.freeze()
}

pub fn mem_disk() -> Arc<MemDisk> {
    MemDisk::new("mem", 64 << 20)
}

/// Formats a disk if it is blank, and opens it.
pub async fn open_with(disk: Arc<dyn Disk>, settings: ShardSettings) -> Arc<ShardDisk> {
    if ShardDisk::identity(&disk).await.unwrap().is_none() {
        ShardDisk::format(disk.clone(), POOL, DISK, NOW)
            .await
            .unwrap();
    }
    ShardDisk::open(disk, POOL, settings).await.unwrap()
}

pub async fn open(disk: Arc<dyn Disk>) -> Arc<ShardDisk> {
    open_with(disk, ShardSettings::default()).await
}

/// Runs `check` on a simulated disk, and on a real one.
pub fn each<F: Future<Output = ()>>(check: impl Fn(Arc<dyn Disk>) -> F) {
    block_on(check(mem_disk()));
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    block_on(check(
        RealDisk::open(dir.path(), DiskSettings::default()).unwrap(),
    ));
}

/// A true footer for a shard that begins with `data`, one stripe per 8 KiB.
pub fn footer_of(name: ShardName, data: &[u8]) -> ShardFooter {
    ShardFooter {
        name,
        data_shards: 4,
        parity_shards: 2,
        epoch: Epoch(3),
        data_len_bytes: data.len() as u64,
        stripes: (0..data.len() as u32 / 8192)
            .map(|stripe| FooterStripe {
                start_block: stripe * 2,
                unit_blocks: 2,
            })
            .collect(),
        checksums: data
            .chunks(CHECKSUM_UNIT_BYTES as usize)
            .map(crc32c)
            .collect(),
        summary: b"a summary".to_vec(),
    }
}

pub fn kind<T>(result: Result<T, ShardError>) -> Option<ShardErrorKind> {
    result.err().map(|error| error.kind())
}

pub fn crashes() -> Vec<(Crash, u64)> {
    let with_seeds = |mode| SEEDS.map(move |seed| (mode, seed));
    Crash::ALL.into_iter().flat_map(with_seeds).collect()
}
