//! What encryption costs: the same work on an encrypted volume and on one that is not, by turns; prints JSON.
//!
//! encryption_rate [--path DIR] [--disks N] [--mib N (per round)] [--rounds N]
//!
//! `cargo run --release -p cairn-fs --example encryption_rate -- --disks 6 --mib 512 --rounds 5`
//!
//! Of each kind of work the rates of all rounds are there, and the ratio of their medians, encrypted to plain: 0.9 costs 10%.
//! Bytes do not compress; the record cache is too small for what is read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::{AlignedBuf, DiskId, Ino, PoolId, Timestamp, VolumeId};
use cairn_disk::{DiskSettings, RealDisk};
use cairn_fs::{CreateMode, Credentials, Fs, FsSettings, ROOT, SetAttr, Stability};
use cairn_keys::VolumeKey;
use cairn_meta::{MetaCache, MetaSettings, MetaStore};
use cairn_segment::{SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardSettings};
use futures_util::StreamExt;
use futures_util::stream;

const MIB: u64 = 1 << 20;
const POOL: PoolId = PoolId(1);
static USER: Credentials = Credentials::ROOT;
/// Concurrent requests.
const DEPTH: usize = 8;
const SMALL_BYTES: u64 = 4096;
/// Small writes and reads of a round, per MiB of it.
const SMALL_PER_MIB: u64 = 8;

type Failure = Box<dyn std::error::Error>;

struct Flags {
    path: PathBuf,
    disks: u64,
    mib: u64,
    rounds: u64,
}

fn flags() -> Result<Flags, String> {
    let mut flags = Flags {
        path: "target/tmp/encryption_rate".into(),
        disks: 6,
        mib: 512,
        rounds: 5,
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or(format!("{flag} needs a value"))?;
        let number = || {
            let number = value.parse::<u64>();
            number.map_err(|_| format!("{flag}: not a number"))
        };
        match flag.as_str() {
            "--path" => flags.path = value.into(),
            "--disks" => flags.disks = number()?.max(1),
            "--mib" => flags.mib = number()?.max(1),
            "--rounds" => flags.rounds = number()?.max(1),
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    Ok(flags)
}

async fn volumes(flags: &Flags, env: &Env) -> Result<[Fs; 2], Failure> {
    let mut disks = Vec::new();
    let mut shards = Vec::new();
    for index in 0..flags.disks {
        let folder = flags.path.join(format!("disk{index}"));
        let disk: Arc<dyn Disk> = RealDisk::open(&folder, DiskSettings::default())?;
        let id = DiskId(u128::from(index) + 1);
        ShardDisk::format(disk.clone(), POOL, id, Timestamp::default()).await?;
        let settings = ShardSettings::default();
        shards.push(ShardDisk::open(disk.clone(), POOL, settings).await?);
        disks.push((id, disk));
    }
    let settings = SegmentSettings {
        cache_bytes: 16 * MIB,
        ..SegmentSettings::default()
    };
    let segments = SegmentStore::new(env.clone(), settings, shards, Vec::new());
    let mut made = Vec::new();
    for (number, is_encrypted) in [(1, false), (2, true)] {
        let volume = VolumeId(number);
        let key = is_encrypted.then(|| Arc::new(VolumeKey::random(volume, &*env.entropy)));
        let mut meta = MetaSettings::new(disks.len().min(3), MetaCache::new(64 << 20));
        meta.key = key.clone();
        let meta = MetaStore::create(env.clone(), meta, volume, disks.clone()).await?;
        let mut settings = FsSettings::new(env.clone(), volume, format!("volume{number}"));
        settings.key = key;
        made.push(Fs::format(settings, meta, segments.clone()).await?);
    }
    <[Fs; 2]>::try_from(made).map_err(|_| "two volumes are made".into())
}

async fn create(fs: &Fs, name: &str) -> Result<Ino, Failure> {
    let how = CreateMode::Guarded(SetAttr::default());
    Ok(fs.create(&USER, ROOT, name.as_bytes(), how).await?.attr.ino)
}

fn noise() -> Bytes {
    let mut buf = AlignedBuf::zeroed(MIB as usize);
    for (index, word) in buf.chunks_mut(8).enumerate() {
        let noise = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&noise.to_le_bytes()[..word.len()]);
    }
    buf.freeze()
}

/// Runs `count` pieces of work, some concurrently; returns how many ran in a second.
async fn rate<Work: Future<Output = Result<(), cairn_fs::FsError>>>(
    count: u64,
    work: impl Fn(u64) -> Work,
    end: impl Future<Output = Result<(), cairn_fs::FsError>>,
) -> Result<f64, Failure> {
    let begun = Instant::now();
    let mut running = stream::iter((0..count).map(work)).buffered(DEPTH);
    while let Some(done) = running.next().await {
        done?;
    }
    end.await?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// MiB written, MiB read, small stable writes and small reads at random, each per second.
async fn round(fs: &Fs, flags: &Flags, number: u64, data: &Bytes) -> Result<[f64; 4], Failure> {
    let ino = create(fs, &format!("large{number}")).await?;
    let written = rate(
        flags.mib,
        |at| async move {
            let data = data.clone();
            let written = fs.write(&USER, ino, at * MIB, data, Stability::Unstable);
            written.await.map(drop)
        },
        async { fs.commit(&USER, ino, 0, 0).await.map(drop) },
    );
    let written = written.await?;
    let nothing = || std::future::ready(Ok(()));
    let read = rate(
        flags.mib,
        |at| async move {
            let read = fs.read(&USER, ino, at * MIB, MIB as u32).await?;
            assert_eq!(u64::from(read.count_bytes), MIB);
            Ok(())
        },
        nothing(),
    );
    let read = read.await?;
    let small = flags.mib * SMALL_PER_MIB;
    let place = |at: u64| {
        let places = flags.mib * MIB / SMALL_BYTES;
        at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places * SMALL_BYTES
    };
    let small_read = rate(
        small,
        |at| async move {
            let read = fs.read(&USER, ino, place(at), SMALL_BYTES as u32).await;
            read.map(drop)
        },
        nothing(),
    );
    let small_read = small_read.await?;
    let other = create(fs, &format!("small{number}")).await?;
    let small_written = rate(
        small,
        |at| async move {
            let data = data.slice(..SMALL_BYTES as usize);
            let written = fs.write(&USER, other, at * SMALL_BYTES, data, Stability::Stable);
            written.await.map(drop)
        },
        nothing(),
    );
    let small_written = small_written.await?;
    for name in [format!("large{number}"), format!("small{number}")] {
        fs.remove(&USER, ROOT, name.as_bytes()).await?;
    }
    Ok([written, read, small_written, small_read])
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn run(flags: &Flags) -> Result<(), Failure> {
    let env = cairn_base::real::env(tokio::runtime::Handle::current());
    let volumes = volumes(flags, &env).await?;
    let data = noise();
    let mut rates: [Vec<[f64; 4]>; 2] = Default::default();
    // The first round warms up files and memory.
    for number in 0..=flags.rounds {
        // By turns; each comes first equally often.
        let order = [number % 2, 1 - number % 2];
        for which in order.map(|which| which as usize) {
            let rate = round(&volumes[which], flags, number, &data).await?;
            if number > 0 {
                rates[which].push(rate);
            }
        }
    }
    let names = [
        "write_mib_per_s",
        "read_mib_per_s",
        "stable_4k_writes_per_s",
        "random_4k_reads_per_s",
    ];
    println!("{{");
    println!(
        "  \"disks\": {}, \"mib\": {}, \"rounds\": {},",
        flags.disks, flags.mib, flags.rounds
    );
    for (at, name) in names.into_iter().enumerate() {
        let of = |which: usize| {
            rates[which]
                .iter()
                .map(|rate| rate[at])
                .collect::<Vec<f64>>()
        };
        let [plain, encrypted] = [median(of(0)), median(of(1))];
        println!(
            "  \"{name}\": {{\"plain\": {plain:.0}, \"encrypted\": {encrypted:.0}, \"ratio\": {:.3}}}{}",
            encrypted / plain,
            if at + 1 < names.len() { "," } else { "" }
        );
    }
    println!("}}");
    for fs in volumes {
        fs.close().await?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let flags = flags()?;
    let _ = std::fs::remove_dir_all(&flags.path);
    std::fs::create_dir_all(&flags.path)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(run(&flags));
    std::fs::remove_dir_all(&flags.path)?;
    result
}
