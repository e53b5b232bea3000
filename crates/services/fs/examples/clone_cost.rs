//! Measures the cost of a clone of a volume: of making it, and of the first change in it.
//!
//! `clone_cost [FILES]`: milliseconds to clone a volume with a tenth of FILES (a million), and with all of them; and
//! in that clone for the first change of a directory of FILES / 10 names, and for the second. On a disk in memory.
//! Prints one JSON object for each.

use std::sync::Arc;
use std::time::Instant;

use cairn_base::disk::Disk;
use cairn_base::{DiskId, Ino, PoolId, Timestamp, VolumeId};
use cairn_fs::{CreateMode, Credentials, Fs, FsSettings, SetAttr};
use cairn_meta::{MetaCache, MetaSettings, MetaStore};
use cairn_segment::{SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::MemDisk;
use futures_util::StreamExt as _;

static USER: Credentials = Credentials::ROOT;
const AT_ONCE: usize = 256;

async fn volume(env: &cairn_base::env::Env) -> Fs {
    let (pool, id, volume) = (PoolId(7), DiskId(1), VolumeId(1));
    let disk: Arc<dyn Disk> = MemDisk::new("disk", 8 << 30);
    let formatted = ShardDisk::format(disk.clone(), pool, id, Timestamp::new(1, 0)).await;
    formatted.expect("formats");
    let opened = ShardDisk::open(disk.clone(), pool, ShardSettings::default()).await;
    let shards = vec![opened.expect("opens")];
    let segments = SegmentStore::new(env.clone(), SegmentSettings::default(), shards, Vec::new());
    let settings = MetaSettings::new(1, MetaCache::new(64 << 20));
    let meta = MetaStore::create(env.clone(), settings, volume, vec![(id, disk)]).await;
    let meta = meta.expect("creates");
    let settings = FsSettings::new(env.clone(), volume, "main");
    Fs::format(settings, meta, segments).await.expect("formats")
}

/// Makes a directory of so many empty files.
async fn fill(fs: &Fs, name: &str, count: usize) -> Ino {
    let made = fs.make_dir(&USER, fs.root(), name.as_bytes(), SetAttr::default());
    let dir = made.await.expect("makes").attr.ino;
    let make = |number: usize| async move {
        let mode = CreateMode::Guarded(SetAttr::default());
        let name = format!("file-{number}");
        let made = fs.create(&USER, dir, name.as_bytes(), mode).await;
        made.expect("makes");
    };
    let all = futures_util::stream::iter(0..count).map(make);
    all.buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    dir
}

async fn took_ms<T>(what: impl Future<Output = T>) -> (T, f64) {
    let begun = Instant::now();
    let done = what.await;
    (done, begun.elapsed().as_secs_f64() * 1000.0)
}

fn main() {
    let files = std::env::args().nth(1);
    let files: usize = files.map_or(1_000_000, |files| files.parse().expect("a count"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(async {
        let fs = volume(&env).await;
        let part = files / 10;
        let dir = fill(&fs, "dir-0", part).await;
        for (count, id) in [(part, VolumeId(2)), (files, VolumeId(3))] {
            for number in 1..10 * usize::from(count == files) {
                fill(&fs, &format!("dir-{number}"), part).await;
            }
            let (made, ms) = took_ms(fs.clone_volume(None, id)).await;
            made.expect("clones");
            println!("{{\"files\": {count}, \"clone_ms\": {ms:.1}}}");
        }
        let clone = fs.open_clone(VolumeId(3), "clone").expect("opens");
        let dir = dir.in_branch(clone.branch());
        for what in ["first", "second"] {
            let mode = CreateMode::Guarded(SetAttr::default());
            let (made, ms) = took_ms(clone.create(&USER, dir, what.as_bytes(), mode)).await;
            made.expect("makes");
            println!("{{\"names\": {part}, \"change\": \"{what}\", \"ms\": {ms:.1}}}");
        }
        fs.close().await.expect("closes");
    });
}
