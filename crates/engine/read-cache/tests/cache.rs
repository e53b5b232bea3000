//! The cache on a real folder: it is warm after a restart, and corrupt records are not given.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_base::{PoolId, SegmentId, VolumeId};
use cairn_read_cache::{DiskCache, OpenError, SIZE_BYTES_MIN};
use cairn_segment::{CachePlace, ReadCache};

const POOL: PoolId = PoolId(7);
const COUNT: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(60);

fn place(number: u32) -> CachePlace {
    CachePlace {
        volume: VolumeId(1),
        segment: SegmentId(9),
        stripe_block: number,
        offset_bytes: 4096,
    }
}

fn bytes(number: u32) -> Bytes {
    vec![number as u8; 64 << 10].into()
}

async fn open(folder: &Path) -> DiskCache {
    DiskCache::open(folder, POOL, SIZE_BYTES_MIN).await.unwrap()
}

async fn filled(folder: &Path) {
    let cache = open(folder).await;
    for number in 0..COUNT {
        cache.put(place(number), bytes(number));
    }
    cache.close().await;
}

async fn found(cache: &DiskCache) -> usize {
    let mut count = 0;
    for number in 0..COUNT {
        if let Some(found) = cache.get(place(number)).await {
            assert!(found == bytes(number), "{number}");
            count += 1;
        }
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_warm_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let cache = open(folder.path()).await;
    // A read that takes too long finds nothing: on a busy machine all are found the next time.
    let begun = Instant::now();
    loop {
        let count = found(&cache).await;
        if count == COUNT as usize {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{count} of {COUNT}");
    }
    assert_eq!(cache.get(place(COUNT)).await, None);
    cache.forget(place(3));
    assert_eq!(cache.get(place(3)).await, None);
    cache.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_pool_finds_nothing_and_other_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes"), "mine").unwrap();
    filled(folder.path()).await;
    let other = DiskCache::open(folder.path(), PoolId(8), SIZE_BYTES_MIN);
    let other = other.await.unwrap();
    assert_eq!(found(&other).await, 0);
    other.close().await;
    assert_eq!(fs::read(folder.path().join("notes")).unwrap(), b"mine");
    // It went to the other pool.
    let cache = open(folder.path()).await;
    assert_eq!(found(&cache).await, 0);
    cache.close().await;
}

/// Its own checksums, before those of records.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_is_not_given() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let own = fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    for file in fs::read_dir(own).unwrap() {
        let path = file.unwrap().path();
        let mut all = fs::read(&path).unwrap();
        all.iter_mut()
            .skip(5000)
            .step_by(3000)
            .for_each(|byte| *byte ^= 1);
        fs::write(&path, all).unwrap();
    }
    let cache = open(folder.path()).await;
    assert!(found(&cache).await < COUNT as usize);
    cache.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let small = DiskCache::open(folder.path(), POOL, SIZE_BYTES_MIN - 1).await;
    assert!(matches!(small.map(drop), Err(OpenError::TooSmall { .. })));
    let large = DiskCache::open(folder.path(), POOL, 1 << 60).await;
    assert!(matches!(large.map(drop), Err(OpenError::NoRoom { .. })));
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let on_file = DiskCache::open(&file, POOL, SIZE_BYTES_MIN).await;
    assert!(matches!(on_file.map(drop), Err(OpenError::Io { .. })));
}
