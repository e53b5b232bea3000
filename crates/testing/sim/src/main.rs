//! The program `cairn-sim`: runs seeds, replays one, makes a failing one smaller.

#![forbid(unsafe_code)]

mod cluster_command;
mod sweep;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cairn_sim::faults::FaultKind;
use cairn_sim::run::Counts;
use cairn_sim::shrink::shrink;
use cairn_sim::{Report, Scenario, Verdict, run};
use clap::{Args, Parser, Subcommand};

use crate::cluster_command::ClusterWhat;
use crate::sweep::{Sweep, Swept, threads};

/// Number of seeds from which on each kind of fault must strike.
const FAULTS_SEEDS_MIN: u64 = 1000;

/// Simulates the engine with crashes and failing disks, by seed.
#[derive(Parser)]
#[command(name = "cairn-sim", version)]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Run seeds; the exit status is 1 if one fails, and its scenario is printed.
    Run(Run),
    /// Print the scenario of a seed, as `--scenario` takes it.
    Show { seed: u64 },
    /// Run, show and bite with a whole cluster.
    Cluster {
        #[command(subcommand)]
        what: ClusterWhat,
    },
    /// Show that planted bugs are found, and after how many seeds.
    Bite(Bite),
}

#[derive(Args)]
struct Run {
    /// Run this seed only.
    #[arg(long, conflicts_with_all = ["seeds", "hours", "scenario"])]
    seed: Option<u64>,
    /// Run this many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed; by default the present time.
    #[arg(long)]
    from: Option<u64>,
    /// Run seeds for this many hours instead.
    #[arg(long)]
    hours: Option<f64>,
    /// Run the scenario in this file (JSON).
    #[arg(long)]
    scenario: Option<PathBuf>,
    /// Make a failing scenario smaller before it is printed.
    #[arg(long)]
    shrink: bool,
    /// Threads; each runs seeds of its own.
    #[arg(long)]
    threads: Option<usize>,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Print a line for each seed.
    #[arg(long)]
    verbose: bool,
    /// Print what the engine logs.
    #[arg(long)]
    log: bool,
}

#[derive(Args)]
struct Bite {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Seeds that each may take.
    #[arg(long, default_value_t = cairn_sim::bite::SEEDS_MAX)]
    seeds: u64,
    /// Only bugs whose name contains this.
    #[arg(long, default_value = "")]
    bug: String,
    /// Run all the seeds, and say how many of them find each bug.
    #[arg(long)]
    rate: bool,
    /// Try the seeds of this file (JSON) first. If they find nothing any more, write the seeds that found the bugs
    /// there.
    #[arg(long)]
    hints: Option<std::path::PathBuf>,
}

fn main() -> anyhow::Result<()> {
    match Command::parse().what {
        What::Run(args) => run_seeds(&args),
        What::Show { seed } => {
            println!(
                "{}",
                serde_json::to_string_pretty(&Scenario::from_seed(seed))?
            );
            Ok(())
        }
        What::Cluster { what } => cluster_command::cluster(&what),
        What::Bite(args) => bite(&args, cairn_sim::bugs::ONE_SERVER, &|seed| {
            run(&Scenario::from_seed(seed)).verdict
        }),
    }
}

/// An arbitrary seed: the time.
fn fresh_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64 & 0xffff_ffff_ffff)
}

/// Prints the engine's log, or only failures.
fn log_or_be_quiet(is_logged: bool) {
    if is_logged {
        tracing_subscriber::fmt()
            .with_max_level(match std::env::var_os("SIM_TRACE") {
                // Each step and each operation of a disk: shows where two runs of one seed diverge.
                Some(_) => tracing::Level::TRACE,
                None => tracing::Level::DEBUG,
            })
            .with_writer(std::io::stderr)
            .without_time()
            .init();
    } else {
        // Panics are reported with their seed.
        std::panic::set_hook(Box::new(|_| {}));
    }
}

fn run_seeds(args: &Run) -> anyhow::Result<()> {
    log_or_be_quiet(args.log);
    if let Some(path) = &args.scenario {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the scenario {}", path.display()))?;
        let scenario: Scenario = serde_json::from_str(&text)
            .with_context(|| format!("the scenario {} makes no sense", path.display()))?;
        return one(&scenario, args);
    }
    if let Some(seed) = args.seed {
        return one(&Scenario::from_seed(seed), args);
    }
    many(args)
}

fn one(scenario: &Scenario, args: &Run) -> anyhow::Result<()> {
    let report = run(scenario);
    println!("{}", line(scenario.seed, &report));
    println!("{:#?}", report.counts);
    if report.verdict.is_failed() {
        explain(scenario, &report, args)?;
        bail!("the scenario of seed {} failed", scenario.seed);
    }
    Ok(())
}

/// Prints everything needed to reproduce a failure.
fn explain(scenario: &Scenario, report: &Report, args: &Run) -> anyhow::Result<()> {
    let (mut scenario, mut verdict) = (scenario.clone(), report.verdict.clone());
    if args.shrink {
        (scenario, verdict) = shrink(&scenario, 400);
        println!("made smaller: {verdict:?}");
    }
    println!("{}", serde_json::to_string(&scenario)?);
    if let Verdict::Failed(text) = &verdict {
        println!("FAILED seed {}: {text}", scenario.seed);
    }
    println!("again: cairn-sim run --seed {} --shrink", scenario.seed);
    Ok(())
}

fn line(seed: u64, report: &Report) -> String {
    let verdict = match &report.verdict {
        Verdict::Passed => "passed".to_owned(),
        Verdict::Failed(text) => format!("FAILED: {text}"),
    };
    format!(
        "seed {seed} trace {:016x} steps {} ops {}: {verdict}",
        report.trace, report.counts.steps, report.counts.ops
    )
}

fn many(args: &Run) -> anyhow::Result<()> {
    let from = args.from.unwrap_or_else(fresh_seed);
    let until = args
        .hours
        .map(|hours| Instant::now() + Duration::from_secs_f64(hours * 3600.0));
    let begun = Instant::now();
    let sweep = Sweep {
        from,
        threads: threads(args.threads),
        keep_going: args.keep_going,
    };
    let is_over = |nth| match until {
        Some(until) => Instant::now() >= until,
        None => nth >= args.seeds,
    };
    let one = |seed| {
        let scenario = Scenario::from_seed(seed);
        let report = run(&scenario);
        Some((scenario, report))
    };
    let note = |swept: &mut Swept<Counts, Scenario>, seed, (scenario, report): (_, Report)| {
        swept.total.add(&report.counts);
        let is_failed = report.verdict.is_failed();
        if args.verbose || is_failed {
            println!("{}", line(seed, &report));
        }
        if swept.seeds.is_multiple_of(1000) {
            println!("{} seeds, {} failed", swept.seeds, swept.failed.len());
        }
        is_failed.then_some(scenario)
    };
    let swept = sweep.run(is_over, one, note);
    let (counts, seeds, failed) = (swept.total, swept.seeds, swept.failed);
    let seconds = begun.elapsed().as_secs_f64();
    println!("{counts:#?}");
    println!(
        "{seeds} seeds from {from} in {seconds:.1} s ({:.1}/s), {} failed",
        seeds as f64 / seconds,
        failed.len()
    );
    let misses = |name: &&str| {
        counts
            .faults_fired
            .get(name)
            .is_none_or(|count| *count == 0)
    };
    let missed: Vec<&str> = FaultKind::NAMES
        .iter()
        .chain(&cairn_sim::object_store::FAULTS)
        .copied()
        .filter(|name| misses(name))
        .collect();
    if !missed.is_empty() && failed.is_empty() && seeds >= FAULTS_SEEDS_MIN {
        bail!("{seeds} seeds, and no fault of these kinds ever struck: {missed:?}");
    }
    if let Some(scenario) = failed.first() {
        explain(scenario, &run(scenario), args)?;
        bail!("{} seeds failed", failed.len());
    }
    Ok(())
}

fn bite(
    args: &Bite,
    bugs: &[cairn_base::planted::Bug],
    try_seed: &cairn_sim::bite::TrySeed,
) -> anyhow::Result<()> {
    use cairn_base::planted::Bug;
    std::panic::set_hook(Box::new(|_| {}));
    let is_wanted = |bug: &Bug| format!("{bug:?}").contains(&args.bug);
    let bugs: Vec<Bug> = bugs.iter().copied().filter(is_wanted).collect();
    let begun = Instant::now();
    if args.rate {
        for bug in bugs {
            let found = cairn_sim::bite::rate(bug, args.from, args.seeds, try_seed);
            let mean = args.seeds as f64 / found.max(1) as f64;
            println!("{bug:?}: {found} of {} seeds, one in {mean:.0}", args.seeds);
        }
        return Ok(());
    }
    let mut missed = Vec::new();
    let hints: cairn_sim::bite::Hints = match &args.hints {
        Some(file) if file.exists() => serde_json::from_str(&std::fs::read_to_string(file)?)?,
        _ => Default::default(),
    };
    let mut found = hints.clone();
    cairn_sim::bite::bite_all(&bugs, args.from, args.seeds, &hints, try_seed, |bitten| {
        let name = format!("{:?}", bitten.bug);
        if bitten.failure.is_some() {
            found.insert(name.clone(), bitten.seed);
        }
        let (seeds, seconds) = (bitten.seeds, bitten.took.as_secs_f64());
        match bitten.failure {
            Some(failure) => {
                let short: String = failure.chars().take(110).collect();
                println!("{name:<30} {seeds:>4} seeds {seconds:>6.1} s  {short}");
            }
            None => {
                println!("{name:<30} NOT FOUND in {seeds} seeds {seconds:.1} s");
                missed.push(bitten.bug);
            }
        }
    });
    let (count, seconds) = (bugs.len(), begun.elapsed().as_secs_f64());
    println!(
        "{} of {count} bugs found in {seconds:.1} s",
        count - missed.len()
    );
    if let Some(file) = args.hints.as_ref().filter(|_| found != hints) {
        std::fs::write(file, serde_json::to_string_pretty(&found)? + "\n")?;
        println!("{} has the seeds that find them now", file.display());
    }
    if !missed.is_empty() {
        bail!("not found: {missed:?}");
    }
    Ok(())
}
