//! How fast a disk of another node is: appends of 1 MiB and reads of 4 KiB, several under way, on a disk in memory, as
//! a disk of this process and over TCP on loopback. Both ends are in this process. Prints JSON.
//!
//! wire_rate [--mib N] [--appends N (at a time)] [--kreads N (thousands)] [--reads N (at a time)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_base::jobs::JobList;
use cairn_base::real::{OsEntropy, SystemClock, TokioSpawner};
use cairn_base::{AlignedBuf, DiskId, Epoch, NodeId, PoolId, SegmentId, Timestamp, VolumeId};
use cairn_remote::{
    Connection, Identity, Peer, PeerSettings, ServeSettings, Served, Server, TcpDial,
};
use cairn_shard::{ShardDisk, ShardName, ShardService, ShardSettings, ShardWrite};
use cairn_testkit::MemDisk;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::net::TcpListener;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 64 * MIB;
const EPOCH: Epoch = Epoch(1);
const POOL: PoolId = PoolId(1);
const READ_LEN_BYTES: usize = 4096;
/// What Linux counts processor time in.
const TICKS_PER_SECOND: f64 = 100.0;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

struct Flags {
    mib: u64,
    appends: usize,
    kreads: u64,
    reads: usize,
}

fn flags() -> Result<Flags, AnyError> {
    let mut flags = Flags {
        mib: 2048,
        appends: 8,
        kreads: 200,
        reads: 64,
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or(format!("{flag} needs a value"))?;
        let number: u64 = value.parse().map_err(|_| format!("{flag}: not a number"))?;
        match flag.as_str() {
            "--mib" => flags.mib = number.max(CAPACITY / MIB),
            "--appends" => flags.appends = usize::try_from(number)?.max(1),
            "--kreads" => flags.kreads = number.max(1),
            "--reads" => flags.reads = usize::try_from(number)?.max(1),
            _ => return Err(format!("{flag}: not a flag").into()),
        }
    }
    Ok(flags)
}

/// Processor time of this process so far, in seconds.
fn cpu_seconds() -> Result<f64, AnyError> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || -> Result<f64, AnyError> { Ok(fields.next().ok_or("no time")?.parse()?) };
    Ok((ticks()? + ticks()?) / TICKS_PER_SECOND)
}

async fn measure(
    disk: Arc<dyn ShardService>,
    segment: u64,
    flags: &Flags,
) -> Result<serde_json::Value, AnyError> {
    let name = ShardName {
        volume: VolumeId(1),
        segment: SegmentId(segment),
        index: 0,
    };
    disk.clone().create(EPOCH, name, CAPACITY, 0).await?;
    let mut part = AlignedBuf::zeroed(MIB as usize);
    part.fill(0xa5);
    let part: Bytes = part.freeze();

    let (start, cpu_start) = (Instant::now(), cpu_seconds()?);
    let append = |index: u64| {
        let offset = index * MIB % CAPACITY;
        let parts = vec![part.clone()];
        let writes = vec![ShardWrite { offset, parts }];
        tokio::spawn(disk.clone().append(EPOCH, name, writes))
    };
    let mut appends = stream::iter(0..flags.mib)
        .map(append)
        .buffer_unordered(flags.appends);
    while let Some(appended) = appends.try_next().await? {
        appended?;
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds()? - cpu_start);
    let gigabytes = (flags.mib * MIB) as f64 / 1e9;
    let append_mb_per_second = gigabytes * 1000.0 / seconds;
    let append_cpu_seconds_per_gb = cpu / gigabytes;

    let (start, cpu_start) = (Instant::now(), cpu_seconds()?);
    let block_count = CAPACITY / READ_LEN_BYTES as u64;
    let read = |index: u64| {
        // A prime step visits all blocks in an order that is none of a disk's.
        let offset = index * 7919 % block_count * READ_LEN_BYTES as u64;
        let disk = disk.clone();
        tokio::spawn(async move { disk.read(name, offset, READ_LEN_BYTES).await })
    };
    let read_count = flags.kreads * 1000;
    let mut reads = stream::iter(0..read_count)
        .map(read)
        .buffer_unordered(flags.reads);
    while let Some(read) = reads.try_next().await? {
        if read?.first() != Some(&0xa5) {
            return Err("other bytes came back".into());
        }
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds()? - cpu_start);
    Ok(serde_json::json!({
        "append_mb_per_second": append_mb_per_second.round(),
        "append_cpu_seconds_per_gb": append_cpu_seconds_per_gb,
        "reads_per_second": (read_count as f64 / seconds).round(),
        "read_cpu_us": cpu * 1e6 / read_count as f64,
    }))
}

async fn run(flags: &Flags) -> Result<serde_json::Value, AnyError> {
    let env = Env {
        clock: Arc::new(SystemClock::default()),
        entropy: Arc::new(OsEntropy),
        spawner: Arc::new(TokioSpawner::new(tokio::runtime::Handle::current())),
        jobs: JobList::new(),
    };
    let memory: Arc<dyn Disk> = MemDisk::new("memory", 1 << 30);
    ShardDisk::format(memory.clone(), POOL, DiskId(1), Timestamp::new(0, 0)).await?;
    let local = ShardDisk::open(memory, POOL, ShardSettings::default()).await?;
    let identity = |node| Identity {
        cluster: POOL,
        node: NodeId(node),
    };
    let served: Vec<Arc<dyn ShardService>> = vec![local.clone()];
    let served: Arc<dyn Served> = Arc::new(served);
    let settings = ServeSettings::default();
    let server = Server::new(env.clone(), identity(2), settings, served, Arc::new(()));
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let dial = Arc::new(TcpDial(listener.local_addr()?));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(connection) = Connection::of_tcp(stream) {
                tokio::spawn(server.clone().serve(connection));
            }
        }
    });
    let settings = PeerSettings::default();
    let peer = Peer::start(env, identity(1), NodeId(2), "two", dial, settings);
    if let Some(problem) = peer.tried().await {
        return Err(problem.into());
    }
    let remote = peer.disk(DiskId(1)).ok_or("it does not serve its disk")?;
    Ok(serde_json::json!({
        "local": measure(local, 1, flags).await?,
        "remote": measure(remote, 2, flags).await?,
    }))
}

fn main() -> Result<(), AnyError> {
    let flags = flags()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let results = runtime.block_on(run(&flags))?;
    let report = serde_json::json!({
        "program": "wire_rate",
        "version": env!("CARGO_PKG_VERSION"),
        "cpu_count": std::thread::available_parallelism()?.get(),
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim(),
        "mib": flags.mib,
        "appends_at_a_time": flags.appends,
        "reads": flags.kreads * 1000,
        "reads_at_a_time": flags.reads,
        "results": results,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
