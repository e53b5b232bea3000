//! Load on any NFS version 3 server, by our own client; prints one line of JSON.
//!
//! nfs_load WORKLOAD nfs://HOST:PORT/EXPORT[?mountport=PORT] [KEY=VALUE ...]
//!
//! WORKLOAD  seqwrite seqread randwrite randread create stat unlink
//! KEY       conns=4      connections, each with a file (or directory) of its own
//!           depth=16     requests in flight on each
//!           bs=1048576   bytes of each request
//!           size=268435456  bytes of each file
//!           files=2000   files of each connection (create, stat, unlink)
//!           secs=10      when the random workloads end
//!           commit=1     writes end with COMMIT, inside the clock
//!           sync=0       1: each write is FILE_SYNC
//!           verify=0     1: seqwrite writes a pattern that seqread verify=1 checks
//!           walk=1       names: look up the path each time, as libnfs does; 0: one call each
//!
//! Exit status: 0 when each request succeeded, 1 otherwise, 2 on wrong usage.

use std::process::ExitCode;
use std::time::Duration;

use cairn_bench::load::{self, LoadSettings, Report};
use cairn_nfs_client::NfsUrl;
use serde_json::json;

const USAGE: &str = "usage: nfs_load WORKLOAD nfs://HOST:PORT/EXPORT [KEY=VALUE ...]; \
                     workloads: seqwrite seqread randwrite randread create stat unlink; \
                     keys: conns depth bs size files secs commit sync verify walk";

/// What the program that this becomes a part of uses as well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let (url, settings) = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("nfs_load: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
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

fn arguments() -> Result<(NfsUrl, LoadSettings), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let workload = arguments.next().ok_or("there is no workload")?.parse()?;
    let url = arguments.next().ok_or("there is no URL")?.parse()?;
    let mut settings = LoadSettings::new(workload);
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
            "secs" => settings.time = Duration::from_secs(number),
            "commit" => settings.commit = number != 0,
            "sync" => settings.sync = number != 0,
            "verify" => settings.verify = number != 0,
            "walk" => settings.walk = number != 0,
            _ => return Err(format!("there is no key `{key}`").into()),
        }
    }
    Ok((url, settings))
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
