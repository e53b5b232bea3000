//! How long it takes to empty 64 segments, by the number of extents in the volume.
//!
//! `cargo run --release -p cairn-fs --example rewrite_cost -- 10000 100000 1000000`
//!
//! One disk in memory, so that what is measured is finding the records. A record is 8 KiB of a file that packs to
//! some 100 bytes; a segment has about 150 of them.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::{DiskId, Ino, PoolId, SegmentId, Timestamp, VolumeId};
use cairn_fs::{
    AccessPattern, CreateMode, Credentials, Fs, FsSettings, Policy, REWRITE_SEGMENTS_MAX, ROOT,
    SetAttr, Stability,
};
use cairn_meta::{MetaCache, MetaSettings, MetaStore};
use cairn_segment::{Compression, Pace, SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::{MemDisk, TestWorld};

const POOL: PoolId = PoolId(7);
const VOLUME: VolumeId = VolumeId(1);
const DISK: DiskId = DiskId(1);
const USER: Credentials = Credentials::ROOT;
const RECORD_BYTES: u64 = 8 << 10;
const FILE_EXTENTS: u64 = 10_000;

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    println!("extents  segments  moved_bytes  passes  seconds");
    for count in std::env::args().skip(1) {
        measure(count.parse()?).await?;
    }
    Ok(())
}

async fn measure(extents: u64) -> Result<(), Failure> {
    let disk = MemDisk::new("disk", 16 << 30);
    let disk: Arc<dyn Disk> = disk;
    ShardDisk::format(disk.clone(), POOL, DISK, Timestamp::default()).await?;
    let fs = open(&disk, true).await?;
    fill(&fs, extents).await?;
    fs.close().await?;
    // All segments are sealed, and nothing is in memory.
    let fs = open(&disk, false).await?;
    let mut ids: Vec<SegmentId> = fs.meta().segments().into_iter().map(|(id, _)| id).collect();
    let segments = ids.len();
    ids.truncate(REWRITE_SEGMENTS_MAX);
    let pace = Pace::new(TestWorld::new(1).env.clock, 0);
    let begun = Instant::now();
    fs.rewrite_segments(&ids, &pace).await?;
    let took = begun.elapsed().as_secs_f64();
    let left = |id: &&SegmentId| fs.meta().segment(**id).is_some();
    assert_eq!(ids.iter().filter(left).count(), 0);
    let stats = fs.stats();
    let (moved, passes) = (stats.gc_rewritten_bytes, stats.rewrite_passes);
    println!("{extents}  {segments}  {moved}  {passes}  {took:.3}");
    fs.close().await?;
    Ok(())
}

async fn open(disk: &Arc<dyn Disk>, is_new: bool) -> Result<Fs, Failure> {
    let env = TestWorld::new(1).env;
    let shards = ShardDisk::open(disk.clone(), POOL, ShardSettings::default()).await?;
    let settings = SegmentSettings {
        shard_len_bytes: 16 << 10,
        shard_len_bytes_min: 16 << 10,
        ..SegmentSettings::default()
    };
    let segments = SegmentStore::new(env.clone(), settings, vec![shards], Vec::new());
    let disks = vec![(DISK, disk.clone())];
    let meta = MetaSettings::new(1, MetaCache::new(256 << 20));
    let mut settings = FsSettings::new(env.clone(), VOLUME, "main");
    settings.policy = Policy {
        access_pattern: AccessPattern::Random,
        compression: Compression::Lz4,
        ..Policy::default()
    };
    // Collection should not begin by itself.
    settings.gc.garbage_bytes = Some(1 << 40);
    if is_new {
        let meta = MetaStore::create(env, meta, VOLUME, disks).await?;
        return Ok(Fs::format(settings, meta, segments).await?);
    }
    let (meta, recovered) = MetaStore::open(env, meta, VOLUME, disks).await?;
    Ok(Fs::open(settings, meta, recovered.journal, segments).await?)
}

async fn fill(fs: &Fs, extents: u64) -> Result<(), Failure> {
    let data = Bytes::from(vec![7; RECORD_BYTES as usize]);
    let mut ino = Ino(0);
    for extent in 0..extents {
        let nth = extent % FILE_EXTENTS;
        if nth == 0 {
            let mode = CreateMode::Guarded(SetAttr::default());
            let name = format!("file{extent}");
            ino = fs
                .create(&USER, ROOT, name.as_bytes(), mode)
                .await?
                .attr
                .ino;
        }
        // Apart from each other, so that each becomes a record.
        let offset = nth * 2 * RECORD_BYTES;
        fs.write(&USER, ino, offset, data.clone(), Stability::Unstable)
            .await?;
        if nth % 500 == 499 {
            fs.commit(&USER, ino, 0, 0).await?;
        }
    }
    Ok(())
}
