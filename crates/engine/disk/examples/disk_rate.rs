//! How fast a disk is through `RealDisk`; prints JSON.
//!
//! disk_rate [--path DIR] [--engine auto|io_uring|threads] [--buffered] [--file-mib N] [--ops N] [--seed N]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::disk::{Disk, DiskError, DiskFile, OpenMode};
use cairn_disk::{DiskSettings, EngineChoice, RealDisk};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

const MIB: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;

struct Flags {
    path: String,
    settings: DiskSettings,
    file_mib: u64,
    op_count: u64,
    seed: u64,
}

fn flags() -> Result<Flags, String> {
    let mut flags = Flags {
        path: "target/tmp/disk_rate".into(),
        settings: DiskSettings::default(),
        file_mib: 512,
        op_count: 20_000,
        seed: 1,
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        if flag == "--buffered" {
            flags.settings.direct = false;
            continue;
        }
        let value = args.next().ok_or(format!("{flag} needs a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{flag}: not a number"))
        };
        match flag.as_str() {
            "--path" => flags.path = value,
            "--file-mib" => flags.file_mib = number()?.max(1),
            "--ops" => flags.op_count = number()?.max(1),
            "--seed" => flags.seed = number()?,
            "--engine" => {
                flags.settings.engine = match value.as_str() {
                    "auto" => EngineChoice::Auto,
                    "io_uring" => EngineChoice::IoUring,
                    "threads" => EngineChoice::Threads,
                    _ => return Err("--engine: auto, io_uring or threads".into()),
                }
            }
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    Ok(flags)
}

/// Runs `count` operations, `depth` at once; returns the time and each operation's latency.
async fn run<F, Fut>(
    count: u64,
    depth: usize,
    mut op: F,
) -> Result<(Duration, Vec<Duration>), DiskError>
where
    F: FnMut(u64) -> Fut,
    Fut: Future<Output = Result<(), DiskError>>,
{
    let timed = |future: Fut| async move {
        let start = Instant::now();
        future.await.map(|()| start.elapsed())
    };
    let start = Instant::now();
    let mut latencies = Vec::with_capacity(count as usize);
    let mut under_way = FuturesUnordered::new();
    for index in 0..count {
        if under_way.len() >= depth
            && let Some(latency) = under_way.next().await
        {
            latencies.push(latency?);
        }
        under_way.push(timed(op(index)));
    }
    while let Some(latency) = under_way.next().await {
        latencies.push(latency?);
    }
    latencies.sort_unstable();
    Ok((start.elapsed(), latencies))
}

fn rate(name: &str, bytes: u64, result: (Duration, Vec<Duration>)) -> serde_json::Value {
    let (took, latencies) = result;
    let micros = |part: f64| {
        let index = ((latencies.len() as f64 - 1.0) * part) as usize;
        latencies
            .get(index)
            .map_or(0, |latency| latency.as_micros() as u64)
    };
    let seconds = took.as_secs_f64();
    serde_json::json!({
        "test": name,
        "mb_per_second": (bytes as f64 / seconds / 1e6).round(),
        "ops_per_second": (latencies.len() as f64 / seconds).round(),
        "latency_us_p50": micros(0.5),
        "latency_us_p99": micros(0.99),
    })
}

async fn measure(flags: &Flags, disk: &Arc<RealDisk>) -> Result<Vec<serde_json::Value>, DiskError> {
    for name in ["data", "log"] {
        match disk.remove(name).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let mut pattern = AlignedBuf::zeroed(MIB as usize);
    let mut word = flags.seed.wrapping_mul(2).wrapping_add(1);
    for chunk in pattern.chunks_exact_mut(8) {
        word = word
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    let pattern = pattern.freeze();
    let len_bytes = flags.file_mib * MIB;
    let mut results = Vec::new();
    let data = disk.open("data", OpenMode::CreateNew { len_bytes }).await?;
    for name in [
        "write 1 MiB, first time, depth 4",
        "write 1 MiB, overwrite, depth 4",
    ] {
        let start = Instant::now();
        let (_, latencies) = run(flags.file_mib, 4, |index| {
            data.write_at(index * MIB, vec![pattern.clone()])
        })
        .await?;
        data.sync().await?;
        results.push(rate(name, len_bytes, (start.elapsed(), latencies)));
    }
    for depth in [1, 4] {
        let result = run(flags.file_mib, depth, |index| {
            let read = data.read_at(index * MIB, MIB as usize);
            async { read.await.map(|_: Bytes| ()) }
        });
        results.push(rate(
            &format!("read 1 MiB, depth {depth}"),
            len_bytes,
            result.await?,
        ));
    }
    for depth in [1, 16, 64] {
        let count = if depth == 1 {
            flags.op_count / 4
        } else {
            flags.op_count
        };
        let result = run(count, depth, |_| {
            word = word
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let block = (word >> 33) % (len_bytes / BLOCK_BYTES);
            let read = data.read_at(block * BLOCK_BYTES, BLOCK_BYTES as usize);
            async { read.await.map(|_: Bytes| ()) }
        });
        let name = format!("read 4 KiB at random, depth {depth}");
        results.push(rate(&name, count * BLOCK_BYTES, result.await?));
    }
    let log_len_bytes = 16 * MIB;
    let log = disk
        .open(
            "log",
            OpenMode::CreateZeroed {
                len_bytes: log_len_bytes,
            },
        )
        .await?;
    let block = pattern.slice(..BLOCK_BYTES as usize);
    let count = flags.op_count / 4;
    let result = run(count, 1, |index| {
        log.write_durable_at(index * BLOCK_BYTES % log_len_bytes, vec![block.clone()])
    });
    results.push(rate(
        "append 4 KiB durably, depth 1",
        count * BLOCK_BYTES,
        result.await?,
    ));
    let at = |index: u64| index * BLOCK_BYTES % log_len_bytes;
    let result = run(count, 1, |index| {
        let (log, block): (&dyn DiskFile, Bytes) = (&*log, block.clone());
        async move {
            log.write_at(at(index), vec![block]).await?;
            log.sync().await
        }
    });
    results.push(rate(
        "append 4 KiB, then sync, depth 1",
        count * BLOCK_BYTES,
        result.await?,
    ));
    disk.remove("data").await?;
    disk.remove("log").await?;
    Ok(results)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let flags = flags()?;
    let disk = RealDisk::open(&flags.path, flags.settings.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let results = runtime.block_on(measure(&flags, &disk))?;
    let report = serde_json::json!({
        "program": "disk_rate",
        "version": env!("CARGO_PKG_VERSION"),
        "cpu_count": std::thread::available_parallelism()?.get(),
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim(),
        "engine": disk.engine_name(),
        "direct": disk.is_direct(),
        "file_mib": flags.file_mib,
        "op_count": flags.op_count,
        "seed": flags.seed,
        "results": results,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
