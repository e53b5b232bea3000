//! Measures the cost of Rule 1 for readers: no client sees a change before it is durable.
//!
//! `shown_rate [--calls N]`: nanoseconds of one GETATTR of an unchanged file, with and without the wait, while the
//! volume is idle and while another thread commits one change after the other. On a disk in memory, so that nothing
//! else takes long. Prints one JSON object for each; each is the median of five alternating turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use cairn_base::disk::Disk;
use cairn_base::{DiskId, Ino, PoolId, Timestamp, VolumeId};
use cairn_fs::{CreateMode, Credentials, Fs, FsSettings, SetAttr};
use cairn_meta::{MetaCache, MetaSettings, MetaStore};
use cairn_segment::{SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::MemDisk;

const TURNS: usize = 5;
const USER: Credentials = Credentials::ROOT;

async fn volume(env: &cairn_base::env::Env) -> Fs {
    let (pool, id, volume) = (PoolId(7), DiskId(1), VolumeId(1));
    let disk: Arc<dyn Disk> = MemDisk::new("disk", 4 << 30);
    let formatted = ShardDisk::format(disk.clone(), pool, id, Timestamp::new(1, 0)).await;
    formatted.expect("formats");
    let opened = ShardDisk::open(disk.clone(), pool, ShardSettings::default()).await;
    let shards = vec![opened.expect("opens")];
    let segments = SegmentStore::new(env.clone(), SegmentSettings::default(), shards, Vec::new());
    let settings = MetaSettings::new(1, MetaCache::new(1 << 20));
    let meta = MetaStore::create(env.clone(), settings, volume, vec![(id, disk)]).await;
    let meta = meta.expect("creates");
    let settings = FsSettings::new(env.clone(), volume, "main");
    Fs::format(settings, meta, segments).await.expect("formats")
}

async fn with_wait(fs: &Fs, ino: Ino, calls: u64) -> f64 {
    let begun = Instant::now();
    for _ in 0..calls {
        std::hint::black_box(fs.attr(ino).await.expect("is there"));
    }
    begun.elapsed().as_nanos() as f64 / calls as f64
}

fn without_wait(fs: &Fs, ino: Ino, calls: u64) -> f64 {
    let begun = Instant::now();
    for _ in 0..calls {
        std::hint::black_box(fs.attr_under_way(ino).expect("is there"));
    }
    begun.elapsed().as_nanos() as f64 / calls as f64
}

fn median(mut turns: Vec<f64>) -> f64 {
    turns.sort_by(f64::total_cmp);
    turns[turns.len() / 2]
}

async fn measure(fs: &Fs, ino: Ino, calls: u64, what: &str) {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        with.push(with_wait(fs, ino, calls).await);
        without.push(without_wait(fs, ino, calls));
    }
    let (with, without) = (median(with), median(without));
    println!(
        "{{\"volume\": \"{what}\", \"with_ns\": {with:.1}, \"without_ns\": {without:.1}, \"ratio\": {:.3}}}",
        with / without
    );
}

fn main() {
    let mut words = std::env::args()
        .skip_while(|word| word != "--calls")
        .skip(1);
    let calls = words
        .next()
        .map_or(1_000_000, |calls| calls.parse().expect("a count"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(async {
        let fs = volume(&env).await;
        let mode = CreateMode::Guarded(SetAttr::default());
        let made = fs.create(&USER, fs.root(), b"file", mode).await;
        let ino = made.expect("creates").attr.ino;
        measure(&fs, ino, calls, "idle").await;
        let has_ended = Arc::new(AtomicBool::new(false));
        let commits = Arc::new(AtomicU64::new(0));
        let writer = tokio::spawn({
            let (fs, has_ended, commits) = (fs.clone(), has_ended.clone(), commits.clone());
            async move {
                let other = fs.create(&USER, fs.root(), b"other", mode).await;
                let other = other.expect("creates").attr.ino;
                while !has_ended.load(Ordering::Acquire) {
                    let number = commits.fetch_add(1, Ordering::Relaxed);
                    let set = SetAttr {
                        mode: Some(0o600 + (number % 8) as u32),
                        ..SetAttr::default()
                    };
                    fs.set_attr(&USER, other, set, None).await.expect("sets");
                }
            }
        });
        measure(&fs, ino, calls, "busy").await;
        has_ended.store(true, Ordering::Release);
        writer.await.expect("ends");
        println!(
            "{{\"commits_meanwhile\": {}}}",
            commits.load(Ordering::Relaxed)
        );
        fs.close().await.expect("closes");
    });
}
