//! `cairn bench burst` and `read-cache`: suites whose server is asked over REST meanwhile.
//!
//! Owns: whom to ask, which volume, the planner's model of credit. Must not know: phases, charts.

use std::path::PathBuf;
use std::time::Duration;

use cairn_admin::Client;
use cairn_admin::caches::{CACHE_LIST, CacheState};
use cairn_admin::volumes::VOLUME_SHOW;
use cairn_base::units::{format_size, parse_size};
use cairn_bench::plan::{Direction, Order};
use cairn_bench::result::{CreditModel, ReadsOf, RunResult};
use cairn_bench::suite::burst::ModelOf;
use cairn_bench::suite::{Target, burst, parse_duration, read_cache};
use cairn_bench::watch::{Ask, LimitNow, ReadsNow, Server, ServerSamples};
use cairn_config::VolumeName;
use cairn_plan::credit::simulate_from;
use cairn_plan::report::Credit;
use cairn_plan::units::{Bytes, Rate};
use clap::Args;

use crate::access;
use crate::args::ServerArgs;
use crate::bench_args::RunArgs;
use crate::exit::Failure;

/// Who is asked of what goes on inside.
#[derive(Clone, Debug, Args)]
pub struct InsideArgs {
    /// The admin API of the server that serves the target [default: that of the server running on this machine]
    #[arg(long, value_name = "URL", env = "CAIRN_SERVER")]
    pub server: Option<String>,
    /// Take an http:// address of another machine: a host in between can read the token and the answers
    #[arg(long)]
    pub insecure: bool,
    /// File with the admin token (or put the token itself into CAIRN_TOKEN) [default: that of the server running on this machine]
    #[arg(long, value_name = "PATH")]
    pub admin_token_file: Option<PathBuf>,
    /// File with the certificates (PEM) that vouch for a server at https://, or its own [default: that of the server running
    /// on this machine]
    #[arg(long, value_name = "PATH", env = "CAIRN_CA")]
    pub ca: Option<PathBuf>,
}

impl InsideArgs {
    fn client(&self) -> Result<Client, Failure> {
        access::client(&ServerArgs {
            server: self.server.clone(),
            state_dir: None,
            insecure: self.insecure,
            token_file: self.admin_token_file.clone(),
            login: None,
            login_password_file: None,
            ca: self.ca.clone(),
        })
    }
}

#[derive(Clone, Debug, Args)]
pub struct BurstArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub inside: InsideArgs,
    /// The volume whose credit is watched [default: that of nfs://HOST/VOLUME]
    #[arg(long)]
    pub volume: Option<VolumeName>,
    /// How long full speed goes on, in each direction [default: one and a half times what a full credit lasts]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub runtime: Option<Duration>,
    /// Do nothing for so long after that, and see what the credit that was earned gives
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub idle: Option<Duration>,
    /// Only write
    #[arg(long, short = 'w', conflicts_with = "read_only")]
    pub write_only: bool,
    /// Only read (the files are written first, outside of the clock)
    #[arg(long, short = 'r')]
    pub read_only: bool,
    /// Workers on each client, each with a file
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub jobs: u32,
    /// Requests in flight of each worker
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub depth: u32,
    /// All files of all clients together
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    pub working_set: u64,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = parse_size)]
    pub request: u64,
}

#[derive(Clone, Debug, Args)]
pub struct ReadCacheArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub inside: InsideArgs,
    /// How often the same bytes are read: the first time cold, and a cache keeps what is read a second time
    #[arg(long, value_name = "COUNT", default_value_t = read_cache::PASSES_DEFAULT)]
    pub passes: u32,
    /// Send requests to random places
    #[arg(long, short = 'z')]
    pub random: bool,
    /// Workers on each client, each with a file
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub jobs: u32,
    /// Requests in flight of each worker
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub depth: u32,
    /// All files of all clients together: more than the server keeps in its memory, to see its cache
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_size)]
    pub working_set: u64,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_size)]
    pub request: u64,
}

impl ReadCacheArgs {
    pub fn settings(&self) -> read_cache::Settings {
        read_cache::Settings {
            passes: self.passes,
            order: match self.random {
                true => Order::Random,
                false => Order::Sequential,
            },
            jobs: self.jobs,
            depth: self.depth,
            working_set_bytes: self.working_set,
            request_bytes: self.request,
        }
    }
}

/// Questions to the server during a run, and their answers.
pub struct Watch {
    client: Client,
    volume: Option<VolumeName>,
    pub ask: Ask,
    add: Add,
}

enum Add {
    Burst { class: String },
    ReadCache(ReadsOf),
}

impl Watch {
    /// What asks; one for each run.
    pub fn server(&self) -> Box<dyn Server + '_> {
        Box::new(Rest {
            client: &self.client,
            volume: self.volume.as_ref(),
        })
    }

    pub fn add(&self, result: &mut RunResult, seen: ServerSamples) {
        match &self.add {
            Add::Burst { class } => burst::add(result, class, seen, &model),
            Add::ReadCache(reads) => read_cache::add(result, reads.clone(), &seen),
        }
    }
}

/// The settings of a burst and what watches it. Refused where there is no burst to see.
pub fn burst(args: &BurstArgs) -> Result<(burst::Settings, Watch), Failure> {
    let name = volume_of(args)?;
    let client = args.inside.client()?;
    let volume = client.ask(VOLUME_SHOW, &name)?;
    let no_burst = |what: String| {
        Failure::usage(format!("{what}, so it has no burst credit")).hint(format!(
            "put it into a class with a burst: `cairn class create demo --throughput 20MB/s --burst 5x --burst-credit 20s`, \
             then `cairn volume set {name} --class demo`"
        ))
    };
    let limits = Rest {
        client: &client,
        volume: Some(&name),
    }
    .limits()
    .map_err(Failure::failed)?;
    let class = volume.settings.class.to_string();
    let wanted = burst::runtime(&limits).ok_or_else(|| {
        no_burst(format!(
            "volume {name} is in class {class}, which has no throughput burst"
        ))
    })?;
    let runtime = match args.runtime {
        Some(runtime) => runtime,
        None if wanted > burst::RUNTIME_MAX_UNASKED => {
            return Err(Failure::usage(format!(
                "a full credit of class {class} lasts so long that a run would take {} min in each direction",
                wanted.as_secs().div_ceil(60)
            ))
            .hint(
                "set --runtime, or measure a class with the same proportions and less credit (--burst-credit)",
            ));
        }
        None => wanted,
    };
    let directions = match (args.write_only, args.read_only) {
        (true, _) => vec![Direction::Write],
        (_, true) => vec![Direction::Read],
        _ => vec![Direction::Write, Direction::Read],
    };
    let settings = burst::Settings {
        directions,
        runtime,
        idle: args.idle,
        jobs: args.jobs,
        depth: args.depth,
        working_set_bytes: args.working_set,
        request_bytes: args.request,
    };
    let watch = Watch {
        client,
        volume: Some(name),
        ask: burst::ask(&settings),
        add: Add::Burst { class },
    };
    Ok((settings, watch))
}

/// What watches passes over a working set.
pub fn read_cache(args: &ReadCacheArgs) -> Result<Watch, Failure> {
    let client = args.inside.client()?;
    let caches = client.ask(CACHE_LIST, &())?.caches;
    let used = caches.iter().filter(|it| it.state == CacheState::Ok);
    let reads = ReadsOf {
        cache_count: used.clone().count() as u64,
        cache_bytes: used.map(|it| it.size_bytes).sum(),
        memory_bytes: client.status()?.memory.record_cache_limit_bytes,
        passes: Vec::new(),
    };
    if reads.cache_count == 0 {
        let others = match caches.len() {
            0 => String::new(),
            count => format!(" that is in use, of {count}: `cairn disk list` says why"),
        };
        crate::print::note!(
            "cairn: the server has no read cache{others}; reads come from its memory ({}) and its disks",
            format_size(reads.memory_bytes)
        );
    }
    Ok(Watch {
        client,
        volume: None,
        ask: Ask::Reads,
        add: Add::ReadCache(reads),
    })
}

fn volume_of(args: &BurstArgs) -> Result<VolumeName, Failure> {
    if let Some(name) = &args.volume {
        return Ok(name.clone());
    }
    let first = match &args.run.target {
        Target::Nfs(url) => {
            let mut parts = url
                .path
                .split(|byte| *byte == b'/')
                .filter(|it| !it.is_empty());
            parts
                .next()
                .map(|it| String::from_utf8_lossy(it).into_owned())
        }
        Target::Iscsi(_) | Target::S3(_) | Target::Path(_) => None,
    };
    first.and_then(|name| name.parse().ok()).ok_or_else(|| {
        Failure::usage(format!("{} does not name its volume", args.run.target))
            .hint("name the volume with --volume")
    })
}

struct Rest<'a> {
    client: &'a Client,
    volume: Option<&'a VolumeName>,
}

impl Server for Rest<'_> {
    fn limits(&mut self) -> Result<Vec<LimitNow>, String> {
        let Some(name) = self.volume else {
            return Ok(Vec::new());
        };
        let volume = self
            .client
            .ask(VOLUME_SHOW, name)
            .map_err(|error| error.to_string())?;
        let limits = volume.rates.map_or_else(Vec::new, |rates| rates.limits);
        let of_bytes = limits
            .into_iter()
            .filter(|it| it.of.ends_with("throughput"));
        let now = of_bytes.map(|it| LimitNow {
            of: it.of,
            baseline: it.baseline,
            burst: it.burst,
            credit: it.credit,
            credit_max: it.credit_max,
        });
        Ok(now.collect())
    }

    fn reads(&mut self) -> Result<ReadsNow, String> {
        let reads = self
            .client
            .ask(CACHE_LIST, &())
            .map_err(|error| error.to_string())?
            .reads;
        Ok(ReadsNow {
            cache_bytes: reads.cache_bytes,
            disk_bytes: reads.disk_bytes,
        })
    }
}

/// The planner's bucket of credit, with what is used of it.
fn model(of: &ModelOf<'_>) -> Vec<CreditModel> {
    let limit = of.limit;
    let rate = |bytes: u64| Rate::from_bytes_s(bytes as f64);
    let capacity = limit.credit_max as f64;
    let above = limit.burst.saturating_sub(limit.baseline).max(1) as f64;
    let credit = Credit {
        name: limit.of.clone(),
        baseline_mb_s: rate(limit.baseline),
        burst_mb_s: rate(limit.burst),
        bucket_bytes: Bytes::new(capacity),
        burst_s: capacity / above,
        rules: Vec::new(),
    };
    let is_used = |at: f64| {
        let mut stretches = of.stretches.iter();
        stretches.any(|it| it.at_seconds <= at && at < it.at_seconds + it.seconds)
    };
    let demand = |at: f64| rate(if is_used(at) { limit.burst } else { 0 });
    simulate_from(&credit, of.part, demand, of.step_seconds, of.steps)
        .into_iter()
        .map(|it| CreditModel {
            at_seconds: it.time_s,
            bytes_per_second: it.rate.bytes_s(),
            credit_bytes: it.left * capacity,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use cairn_bench::result::Stretch;

    use super::*;

    #[test]
    fn the_model_is_that_of_the_planner_with_pauses() {
        let limit = LimitNow {
            of: "read-throughput".to_owned(),
            baseline: 24_000_000,
            burst: 228_000_000,
            credit: 1_020_000_000,
            credit_max: 2_040_000_000,
        };
        let stretch = |at_seconds| Stretch {
            phase: "read".to_owned(),
            at_seconds,
            seconds: 10.0,
        };
        let points = model(&ModelOf {
            limit: &limit,
            part: 0.5,
            stretches: &[stretch(0.0), stretch(20.0)],
            step_seconds: 0.1,
            steps: 300,
        });
        let at = |second: usize| (points[second * 10].bytes_per_second / 1e6).round();
        // Half of a credit of 10 s; then the baseline, the pause, and 10 s of the baseline, which last about one.
        assert_eq!(
            [at(0), at(4), at(6), at(15), at(20), at(25)],
            [228.0, 228.0, 24.0, 0.0, 228.0, 24.0]
        );
        let left = points[199].credit_bytes / 1e6;
        assert!((left - 240.0).abs() < 5.0, "{left}");
    }
}
