//! Load on any NFS version 3 server, by our own client; prints one line of JSON.
//!
//! nfs_load WORKLOAD nfs://HOST:PORT/EXPORT[?mountport=PORT] [KEY=VALUE ...]
//!
//! WORKLOAD  seqwrite seqread randwrite randread create stat unlink filewrite fileread
//! KEY       conns=4      connections, each with a file (or directory) of its own
//!           depth=16     requests in flight on each
//!           bs=1048576   bytes of each request
//!           size=268435456  bytes of each file
//!           files=2000   files of each connection (create, stat, unlink; filewrite, fileread: of `bs` bytes)
//!           shuffle=0    1: fileread takes the files in an order of chance
//!           secs=10      when the random workloads end
//!           commit=1     writes end with COMMIT, inside the clock
//!           sync=0       1: each write is FILE_SYNC
//!           verify=0     1: seqwrite writes a pattern that seqread verify=1 checks
//!           walk=1       names: look up the path each time, as libnfs does; 0: one call each
//!           engine=0     1: by the engine of `cairn bench` (walk=0, verify=0), to compare the two
//!           warm=0       with engine=1, runs the same before, unmeasured, until it took so many seconds
//!
//! Exit status: 0 when each request succeeded, 1 otherwise, 2 on wrong usage.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cairn_bench::engine::{ClientRank, Control, Engine};
use cairn_bench::load::{self, LoadSettings, Report, Workload};
use cairn_bench::nfs_engine::NfsEngine;
use cairn_bench::plan::{
    DataPattern, DataWork, Direction, End, Fsync, Layout, NamesOperation, NamesWork, Order, Phase,
    Work,
};
use cairn_bench::result::PhaseResult;
use cairn_nfs_client::NfsUrl;
use serde_json::json;

const USAGE: &str = "usage: nfs_load WORKLOAD nfs://HOST:PORT/EXPORT [KEY=VALUE ...]; \
                     workloads: seqwrite seqread randwrite randread create stat unlink filewrite fileread; \
                     keys: conns depth bs size files shuffle secs commit sync verify walk engine warm";

/// What the program that this becomes a part of uses as well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let (url, settings, engine) = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("nfs_load: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let Some(warm) = engine {
        return match run_engine(&url, &settings, warm) {
            Ok(result) => {
                println!("{}", result_to_json(&settings, &result));
                ExitCode::from(u8::from(result.errors > 0 || result.partial.is_some()))
            }
            Err(error) => {
                eprintln!("nfs_load: {error}");
                ExitCode::FAILURE
            }
        };
    }
    match load::run(&url, &settings) {
        Ok(report) => {
            println!("{}", to_json(&settings, &report));
            if let Some(error) = &report.first_error {
                eprintln!("nfs_load: {}: {error}", settings.workload);
            }
            ExitCode::from(u8::from(report.error_count > 0))
        }
        Err(error) => {
            eprintln!("nfs_load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// With the engine of `cairn bench`: for how long it runs the same before.
type WithEngine = Option<Duration>;

fn arguments() -> Result<(NfsUrl, LoadSettings, WithEngine), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let workload = arguments.next().ok_or("there is no workload")?.parse()?;
    let url = arguments.next().ok_or("there is no URL")?.parse()?;
    let mut settings = LoadSettings::new(workload);
    let (mut by_engine, mut warm) = (false, Duration::ZERO);
    for argument in arguments {
        let Some((key, value)) = argument.split_once('=') else {
            return Err(format!("`{argument}` is not KEY=VALUE").into());
        };
        let Ok(number) = value.parse::<u64>() else {
            return Err(format!("{key}: `{value}` is not a number").into());
        };
        match key {
            "conns" => settings.connection_count = usize::try_from(number)?,
            "depth" => settings.depth = usize::try_from(number)?,
            "bs" => settings.block_len_bytes = number,
            "size" => settings.file_len_bytes = number,
            "files" => settings.file_count = number,
            "shuffle" => settings.shuffle = number != 0,
            "secs" => settings.time = Duration::from_secs(number),
            "commit" => settings.commit = number != 0,
            "sync" => settings.sync = number != 0,
            "verify" => settings.verify = number != 0,
            "walk" => settings.walk = number != 0,
            "engine" => by_engine = number != 0,
            "warm" => warm = Duration::from_secs(number),
            _ => return Err(format!("there is no key `{key}`").into()),
        }
    }
    Ok((url, settings, by_engine.then_some(warm)))
}

/// Runs the work as a phase. What it needs is written first, and everything removed afterwards.
fn run_engine(
    url: &NfsUrl,
    settings: &LoadSettings,
    warm: Duration,
) -> Result<PhaseResult, Box<dyn std::error::Error>> {
    let workload = settings.workload;
    let names = |operation| {
        Work::Names(NamesWork {
            operation,
            files: settings.file_count,
            one_directory: false,
        })
    };
    let data = |direction, order, end| {
        Work::Data(DataWork {
            direction,
            order,
            request_bytes: settings.block_len_bytes,
            layout: Layout::PerWorker {
                bytes: settings.file_len_bytes,
            },
            reorder: 0,
            end,
            fsync: match (settings.sync, settings.commit) {
                (true, _) => Fsync::EachRequest,
                (false, true) => Fsync::InClock,
                (false, false) => Fsync::After,
            },
            direct: false,
        })
    };
    let random_end = End::After {
        ramp_ms: 0,
        runtime_ms: settings.time.as_millis() as u64,
    };
    let phase = Phase {
        name: workload.to_string(),
        fileset: "nfs-load".to_owned(),
        jobs: u32::try_from(settings.connection_count)?,
        depth: u32::try_from(settings.depth)?,
        work: match workload {
            Workload::SeqWrite => data(Direction::Write, Order::Sequential, End::Whole),
            Workload::SeqRead => data(Direction::Read, Order::Sequential, End::Whole),
            Workload::RandRead => data(Direction::Read, Order::Random, random_end),
            Workload::RandWrite => data(Direction::Write, Order::Random, random_end),
            Workload::Create => names(NamesOperation::Create),
            Workload::Stat => names(NamesOperation::Stat),
            Workload::Unlink => names(NamesOperation::Unlink),
            Workload::FileWrite | Workload::FileRead => {
                return Err(format!("{workload} does not run with engine=1").into());
            }
        },
    };
    let place = ClientRank {
        client: 0,
        client_count: 1,
    };
    let pattern = DataPattern {
        compressible_percent: 0,
        dedupe_percent: 0,
        seed: 1,
    };
    let mut engine = NfsEngine::new(url)?;
    engine.prepare(0, true)?;
    let start = Instant::now();
    while start.elapsed() < warm {
        engine.run(&phase, &pattern, place, &Control::default())?;
    }
    let result = engine.run(&phase, &pattern, place, &Control::default());
    engine.clean_up()?;
    Ok(result?)
}

fn result_to_json(settings: &LoadSettings, result: &PhaseResult) -> serde_json::Value {
    let rounded = |value: f64| (value * 10.0).round() / 10.0;
    let seconds = result.foreground_seconds;
    let at = |percent: f64| {
        let latency = result.latency.as_ref()?;
        let mut pairs = latency.percentiles_us.iter();
        Some(rounded(pairs.find(|(at, _)| *at == percent)?.1))
    };
    json!({
        "workload": settings.workload.name(),
        "conns": settings.connection_count,
        "depth": settings.depth,
        "bs": settings.block_len_bytes,
        "secs": seconds,
        "ops": result.operations,
        "ops_per_s": rounded(result.operations as f64 / seconds),
        "mb_per_s": rounded(result.bytes as f64 / seconds / 1e6),
        "p50_us": at(50.0),
        "p99_us": at(99.0),
        "p999_us": at(99.9),
        "max_us": at(100.0),
        "errors": result.errors,
        "drained_secs": result.drained_seconds,
        "cpu_secs": result.load_cpu_seconds,
        "partial": result.partial,
    })
}

/// The keys of nfsload, and more percentiles.
fn to_json(settings: &LoadSettings, report: &Report) -> serde_json::Value {
    let rounded = |value: f64| (value * 10.0).round() / 10.0;
    json!({
        "workload": settings.workload.name(),
        "conns": settings.connection_count,
        "depth": settings.depth,
        "bs": settings.block_len_bytes,
        "secs": report.elapsed.as_secs_f64(),
        "ops": report.operation_count,
        "ops_per_s": rounded(report.operations_per_second()),
        "mb_per_s": rounded(report.megabytes_per_second()),
        "p50_us": rounded(report.latency_us(50.0)),
        "p99_us": rounded(report.latency_us(99.0)),
        "p999_us": rounded(report.latency_us(99.9)),
        "max_us": rounded(report.latency_us(100.0)),
        "errors": report.error_count,
    })
}
