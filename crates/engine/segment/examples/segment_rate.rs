//! Measures the write and read rates of segments on real folders; prints JSON.
//!
//! segment_rate [--path DIR] [--disks N] [--mib N] [--records N (per append)] [--appends N (at a time)]
//!              [--lost N (disks gone for the degraded read)] [--recycle 0|1]
//!
//! With `--disks 1` the code is 1+0, with 6 it is 4+2: the ratio of the two is the cost of parity.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::{AlignedBuf, DiskId, Epoch, PoolId, SegmentId, Timestamp, VolumeId};
use cairn_disk::{DiskSettings, RealDisk};
use cairn_segment::{
    Compression, RecordPointer, SegmentSettings, SegmentStore, Stream, encode_record,
};
use cairn_shard::{ShardDisk, ShardSettings};
use futures_util::StreamExt;
use futures_util::stream;

const MIB: u64 = 1 << 20;
const VOLUME: VolumeId = VolumeId(1);
const POOL: PoolId = PoolId(1);
/// Concurrent reads.
const READ_DEPTH: usize = 8;

type AnyError = Box<dyn std::error::Error>;

struct Flags {
    path: PathBuf,
    disks: u64,
    mib: u64,
    records: u64,
    appends: u64,
    lost: u64,
    recycle: u64,
}

fn flags() -> Result<Flags, String> {
    let mut flags = Flags {
        path: "target/tmp/segment_rate".into(),
        disks: 6,
        mib: 1024,
        records: 8,
        appends: 4,
        lost: 2,
        recycle: 0,
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or(format!("{flag} needs a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{flag}: not a number"))
        };
        match flag.as_str() {
            "--path" => flags.path = value.into(),
            "--disks" => flags.disks = number()?.max(1),
            "--mib" => flags.mib = number()?.max(1),
            "--records" => flags.records = number()?.max(1),
            "--appends" => flags.appends = number()?.max(1),
            "--lost" => flags.lost = number()?,
            "--recycle" => flags.recycle = number()?,
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    Ok(flags)
}

async fn open(flags: &Flags, away: u64) -> Result<Arc<SegmentStore>, AnyError> {
    let mut disks = Vec::new();
    for index in away..flags.disks {
        let folder = flags.path.join(format!("disk{index}"));
        let disk: Arc<dyn Disk> = RealDisk::open(&folder, DiskSettings::default())?;
        if ShardDisk::identity(&disk).await?.is_none() {
            let id = DiskId(u128::from(index) + 1);
            ShardDisk::format(disk.clone(), POOL, id, Timestamp::default()).await?;
        }
        let settings = ShardSettings {
            recycled_files_max: 64,
            ..ShardSettings::default()
        };
        disks.push(ShardDisk::open(disk, POOL, settings).await?);
    }
    let settings = SegmentSettings {
        cache_bytes: 16 * MIB,
        ..SegmentSettings::default()
    };
    let missing = (0..away)
        .map(|index| DiskId(u128::from(index) + 1))
        .collect();
    let env = cairn_base::real::env(tokio::runtime::Handle::current());
    Ok(SegmentStore::new(env, settings, disks, missing))
}

async fn write(store: &Arc<SegmentStore>, flags: &Flags) -> Result<Vec<RecordPointer>, AnyError> {
    let code = store.default_code();
    let mut buf = AlignedBuf::zeroed(MIB as usize);
    for (index, word) in buf.chunks_mut(8).enumerate() {
        let noise = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&noise.to_le_bytes()[..word.len()]);
    }
    let data: Bytes = buf.freeze();
    let append = |index: u64| {
        let (store, data) = (store.clone(), data.clone());
        let records = flags.records;
        async move {
            let records: Vec<_> = (0..records)
                .map(|_| encode_record(vec![data.clone()], Compression::None))
                .collect();
            let stream = Stream::File(index % 4);
            let appended = store.append(VOLUME, code, stream, records.clone()).await?;
            let pointers = records.iter().zip(&appended.locations);
            Ok(pointers
                .map(|(record, location)| record.pointer(*location))
                .collect::<Vec<_>>())
        }
    };
    let appends = flags.mib.div_ceil(flags.records);
    let written: Vec<Result<Vec<RecordPointer>, cairn_segment::SegmentError>> =
        stream::iter((0..appends).map(append))
            .buffer_unordered(flags.appends as usize)
            .collect()
            .await;
    let mut pointers = Vec::new();
    for each in written {
        pointers.extend(each?);
    }
    Ok(pointers)
}

async fn read(store: &Arc<SegmentStore>, pointers: &[RecordPointer]) -> Result<(), AnyError> {
    let reads = pointers
        .iter()
        .map(|pointer| store.read(VOLUME, pointer, 0..pointer.file_len_bytes));
    let mut reads = stream::iter(reads).buffered(READ_DEPTH);
    while let Some(read) = reads.next().await {
        read?;
    }
    Ok(())
}

async fn run(flags: &Flags) -> Result<serde_json::Value, AnyError> {
    let rate = |started: Instant, bytes: u64| bytes as f64 / 1e6 / started.elapsed().as_secs_f64();
    let store = open(flags, 0).await?;
    let next = AtomicU64::new(1);
    let allocate = Arc::new(move || SegmentId(next.fetch_add(1, Ordering::Relaxed)));
    store
        .open_volume(VOLUME, Epoch(1), allocate.clone(), Vec::new())
        .await?;
    if flags.recycle > 0 {
        // As in a pool in use: removed segments have left their files.
        write(&store, flags).await?;
        store.seal_all(VOLUME).await;
        for info in store.segments(VOLUME) {
            store.remove(VOLUME, info.id).await?;
        }
    }
    let started = Instant::now();
    let mut pointers = write(&store, flags).await?;
    let bytes = pointers.len() as u64 * MIB;
    let append_mb_per_s = rate(started, bytes);
    let started = Instant::now();
    store.seal_all(VOLUME).await;
    let seal_ms = started.elapsed().as_millis() as u64;
    pointers.sort_unstable_by_key(|pointer| pointer.location);
    let started = Instant::now();
    read(&store, &pointers).await?;
    let read_mb_per_s = rate(started, bytes);
    let code = store.default_code().to_string();
    let segments = store.segments(VOLUME);
    drop(store);
    let lost = flags.lost.min(u64::from(
        segments.first().map_or(0, |info| info.code.parity()),
    ));
    let degraded = if lost == 0 {
        None
    } else {
        let store = open_again(flags, lost).await?;
        store
            .open_volume(VOLUME, Epoch(1), allocate, segments)
            .await?;
        let started = Instant::now();
        read(&store, &pointers).await?;
        let amplification = store.stats().disk_read_bytes as f64 / bytes as f64;
        Some((rate(started, bytes), amplification))
    };
    Ok(serde_json::json!({
        "disks": flags.disks, "code": code, "mib": flags.mib, "records_per_append": flags.records,
        "appends_at_a_time": flags.appends, "recycled": flags.recycle > 0,
        "append_mb_per_s": append_mb_per_s, "seal_ms": seal_ms, "read_mb_per_s": read_mb_per_s,
        "lost_disks": lost, "degraded_read_mb_per_s": degraded.map(|each| each.0),
        "degraded_bytes_read_per_byte": degraded.map(|each| each.1),
    }))
}

/// Background tasks of the first store may hold its disks and their locks a moment longer.
async fn open_again(flags: &Flags, away: u64) -> Result<Arc<SegmentStore>, AnyError> {
    let mut tries = 0;
    loop {
        match open(flags, away).await {
            Err(_) if tries < 1000 => {
                tries += 1;
                tokio::task::yield_now().await;
            }
            other => return other,
        }
    }
}

fn main() -> Result<(), AnyError> {
    let flags = flags()?;
    let _ = std::fs::remove_dir_all(&flags.path);
    std::fs::create_dir_all(&flags.path)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()?;
    let result = runtime.block_on(run(&flags));
    std::fs::remove_dir_all(&flags.path)?;
    println!("{}", serde_json::to_string_pretty(&result?)?);
    Ok(())
}
