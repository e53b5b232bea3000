//! The commands that simulate clusters.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cairn_sim::cluster::{ClusterScenario, Counts, Report, What, has_late_calls, run, shrink};
use cairn_sim::{Verdict, bugs};
use clap::{Args, Subcommand};

use crate::sweep::{Sweep, Swept, threads};

/// Number of seeds from which on each kind of event must occur.
const KINDS_SEEDS_MIN: u64 = 500;

#[derive(Subcommand)]
pub enum ClusterWhat {
    /// Run seeds; the exit status is 1 if one fails, and its scenario is printed.
    Run(ClusterRun),
    /// Print the scenario of a seed, as `--scenario` takes it.
    Show { seed: u64 },
    /// How long a takeover takes after the loss of the owner, in simulated time, by the number of nodes.
    Takeover(Takeover),
    /// Show that bugs planted in the cluster code are found, and after how many seeds.
    Bite(crate::Bite),
}

#[derive(Args)]
pub struct ClusterRun {
    /// Run this seed only, twice: the trace must be the same.
    #[arg(long, conflicts_with_all = ["seeds", "scenario"])]
    seed: Option<u64>,
    /// Run this many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Begin no seed after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// The first seed; by default the present time.
    #[arg(long)]
    from: Option<u64>,
    /// Run the scenario in this file (JSON).
    #[arg(long)]
    scenario: Option<PathBuf>,
    /// Make a failing scenario smaller before it is printed.
    #[arg(long)]
    shrink: bool,
    /// Threads; each runs seeds of its own.
    #[arg(long)]
    threads: Option<usize>,
    /// Leave out runs that aim at late calls, about one of five.
    #[arg(long)]
    no_late_calls: bool,
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
pub struct Takeover {
    /// Numbers of nodes of the clusters, with one disk each.
    #[arg(long, value_delimiter = ',', default_value = "3,6,12")]
    nodes: Vec<usize>,
    /// Runs of each.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
}

pub fn cluster(what: &ClusterWhat) -> anyhow::Result<()> {
    match what {
        ClusterWhat::Run(args) => run_seeds(args),
        ClusterWhat::Show { seed } => {
            let scenario = ClusterScenario::from_seed(*seed);
            println!("{}", serde_json::to_string_pretty(&scenario)?);
            Ok(())
        }
        ClusterWhat::Takeover(args) => takeover(args),
        ClusterWhat::Bite(args) => {
            let mut bugs = bugs::CLUSTER.to_vec();
            if args.hints.is_none() {
                bugs.extend(bugs::CLUSTER_NOT_FOUND);
                bugs.extend(bugs::CLUSTER_SHADOWED);
            }
            crate::bite(args, &bugs, &|seed| {
                run(&ClusterScenario::from_seed(seed)).verdict
            })
        }
    }
}

fn takeover(args: &Takeover) -> anyhow::Result<()> {
    crate::log_or_be_quiet(false);
    println!("nodes  takeover_ms (least to most)  steps");
    for node_count in &args.nodes {
        let mut all_ms = Vec::new();
        let mut steps = 0;
        for seed in 1..=args.seeds {
            let report = run(&ClusterScenario::of_takeover(seed, *node_count));
            if let Verdict::Failed(text) = report.verdict {
                bail!("a cluster of {node_count} nodes, seed {seed}: {text}");
            }
            all_ms.push(report.counts.takeover_ms);
            steps += report.counts.steps;
        }
        all_ms.sort_unstable();
        let (Some(least), Some(most)) = (all_ms.first(), all_ms.last()) else {
            bail!("there are no seeds");
        };
        let middle = all_ms[all_ms.len() / 2];
        println!("{node_count:>5}  {middle} ({least} to {most})  {steps}");
    }
    Ok(())
}

fn run_seeds(args: &ClusterRun) -> anyhow::Result<()> {
    crate::log_or_be_quiet(args.log);
    if let Some(path) = &args.scenario {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the scenario {}", path.display()))?;
        let scenario: ClusterScenario = serde_json::from_str(&text)
            .with_context(|| format!("the scenario {} makes no sense", path.display()))?;
        return one(&scenario, args);
    }
    match args.seed {
        Some(seed) => one(&ClusterScenario::from_seed(seed), args),
        None => many(args),
    }
}

fn one(scenario: &ClusterScenario, args: &ClusterRun) -> anyhow::Result<()> {
    let report = run(scenario);
    println!("{}", line(scenario.seed, &report));
    println!("{:#?}", report.counts);
    if report.verdict.is_failed() {
        explain(scenario, &report, args)?;
        bail!("the scenario of seed {} failed", scenario.seed);
    }
    let again = run(scenario).trace;
    if again != report.trace {
        bail!(
            "the same seed gave another trace: {again:016x}, not {:016x}",
            report.trace
        );
    }
    Ok(())
}

/// Prints everything needed to reproduce a failure.
fn explain(scenario: &ClusterScenario, report: &Report, args: &ClusterRun) -> anyhow::Result<()> {
    let (mut scenario, mut verdict) = (scenario.clone(), report.verdict.clone());
    if args.shrink {
        (scenario, verdict) = shrink(&scenario, 60);
        println!("made smaller: {verdict:?}");
    }
    println!("{}", serde_json::to_string(&scenario)?);
    if let Verdict::Failed(text) = &verdict {
        println!("FAILED seed {}: {text}", scenario.seed);
    }
    println!(
        "again: cairn-sim cluster run --seed {} --shrink",
        scenario.seed
    );
    Ok(())
}

fn line(seed: u64, report: &Report) -> String {
    let verdict = match &report.verdict {
        Verdict::Passed => "passed".to_owned(),
        Verdict::Failed(text) => format!("FAILED: {text}"),
    };
    let counts = &report.counts;
    format!(
        "seed {seed} trace {:016x} steps {} owners {} ops {}: {verdict}",
        report.trace, counts.steps, counts.judged, counts.ops
    )
}

fn many(args: &ClusterRun) -> anyhow::Result<()> {
    let from = args.from.unwrap_or_else(crate::fresh_seed);
    let begun = Instant::now();
    let until = args
        .seconds
        .map(|seconds| begun + Duration::from_secs(seconds));
    let sweep = Sweep {
        from,
        threads: threads(args.threads),
        keep_going: args.keep_going,
    };
    let is_over = |nth| nth >= args.seeds || until.is_some_and(|until| Instant::now() >= until);
    let one = |seed| {
        if args.no_late_calls && has_late_calls(seed) {
            return None;
        }
        let scenario = ClusterScenario::from_seed(seed);
        let report = run(&scenario);
        Some((scenario, report))
    };
    let note =
        |swept: &mut Swept<Counts, ClusterScenario>, seed, (scenario, report): (_, Report)| {
            swept.total.add(&report.counts);
            let is_failed = report.verdict.is_failed();
            if args.verbose || is_failed {
                println!("{}", line(seed, &report));
            }
            is_failed.then_some(scenario)
        };
    let swept = sweep.run(is_over, one, note);
    let (counts, seeds, failed) = (swept.total, swept.seeds, swept.failed);
    let seconds = begun.elapsed().as_secs_f64();
    println!("{counts:#?}");
    println!(
        "{seeds} clusters from {from} in {seconds:.1} s ({:.1}/s), {} failed",
        seeds as f64 / seconds,
        failed.len()
    );
    if let Some(scenario) = failed.first() {
        explain(scenario, &run(scenario), args)?;
        bail!("{} seeds failed", failed.len());
    }
    let missed: Vec<&str> = What::NAMES
        .into_iter()
        .filter(|name| !counts.events.contains_key(name))
        .collect();
    if !missed.is_empty() && seeds >= KINDS_SEEDS_MIN {
        bail!("{seeds} seeds, and none of these ever happened: {missed:?}");
    }
    Ok(())
}
