//! `cairn bench server`: benchmarks that a server runs on a volume of its own.

use std::path::PathBuf;
use std::time::Duration;

use cairn_admin::benchmarks::{BenchmarkFigure, BenchmarkProgress, BenchmarkStart, BenchmarkView};
use cairn_base::units::{format_size, parse_size};
use cairn_bench::suite::parse_duration;
use cairn_config::VolumeName;
use clap::{Args, Subcommand};

use crate::access;
use crate::args::{ServerArgs, ViewArgs};
use crate::audit::time;
use crate::exit::Failure;
use crate::print::{self, Align, Column, note};

#[derive(Debug, Subcommand)]
pub enum ServerBenchCommand {
    /// Run one, on files in a volume that are removed again
    ///
    /// Example: cairn bench server start main --working-set 1GiB
    Start(StartArgs),
    /// Stop the one that runs; what was measured is kept
    Stop(ServerArgs),
    /// List the one that runs and those that were, newest first
    List(ViewArgs),
    /// Print the result of one as `cairn bench` writes it to a file
    ///
    /// Example: cairn bench server result 1800000000000 -o run.json && cairn bench report run.json -o page.html
    Result(ResultArgs),
}

#[derive(Debug, Args)]
pub struct StartArgs {
    /// The volume that files are written to
    pub volume: VolumeName,
    /// Bytes of all files together, 16MiB to 4GiB [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub working_set: Option<u64>,
    /// How long each of the four parts is measured, 1s to 60s [default: 11s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub phase_time: Option<Duration>,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct ResultArgs {
    /// The number of a run, as the list has it
    pub id: u64,
    /// Write it to this file instead
    #[arg(long, short, value_name = "PATH")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub fn bench(command: &ServerBenchCommand) -> Result<(), Failure> {
    match command {
        ServerBenchCommand::Start(args) => start(args),
        ServerBenchCommand::Stop(args) => {
            access::client(args)?.benchmark_stop()?;
            print::text("stopping; finished measurements are kept")
        }
        ServerBenchCommand::List(args) => list(args),
        ServerBenchCommand::Result(args) => result(args),
    }
}

fn start(args: &StartArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    let begun = client.benchmark_start(&BenchmarkStart {
        volume: args.volume.clone(),
        working_set_bytes: args.working_set,
        phase_seconds: args.phase_time.map(|time| time.as_secs()),
    })?;
    if args.view.json {
        return print::json(&begun);
    }
    print::text(&format!(
        "a benchmark runs on volume {}; `cairn bench server list` shows its progress",
        begun.volume
    ))
}

fn list(args: &ViewArgs) -> Result<(), Failure> {
    let list = access::client(&args.server)?.benchmarks()?;
    if args.json {
        return print::json(&list);
    }
    if let Some(problem) = &list.problem {
        note!("cairn: results of runs cannot be written to disk: {problem}");
    }
    if let Some(running) = &list.running {
        print::text(&now(running))?;
    }
    print::text(&table(&list.runs))
}

fn result(args: &ResultArgs) -> Result<(), Failure> {
    let text = access::client(&args.server)?.benchmark_result(args.id)?;
    match &args.out {
        None => print::text(&text),
        Some(path) => std::fs::write(path, text)
            .map_err(|error| Failure::failed(format!("writing {}: {error}", path.display()))),
    }
}

/// The run that goes on, in a line.
fn now(running: &BenchmarkProgress) -> String {
    let state = match (running.is_stopping, running.is_preparing) {
        (true, _) => "stopping".to_owned(),
        (false, true) => "writing files".to_owned(),
        (false, false) => format!("{}%", running.phase_percent),
    };
    let latency = running.latency_microseconds;
    let latency = latency.map_or_else(String::new, |latency| format!(", {latency:.0} us"));
    format!(
        "running on {}: {} of {}, {}, {state}; {}/s, {:.0} requests/s{latency}",
        running.volume,
        running.phase_number,
        running.phase_count,
        running.phase,
        format_size(running.bytes_per_second as u64),
        running.operations_per_second
    )
}

fn table(runs: &[BenchmarkView]) -> String {
    const TITLES: [&str; 4] = [
        "sequential read",
        "random read",
        "sequential write",
        "random write",
    ];
    const COLUMNS: &[Column] = &[
        ("ID", Align::Left),
        ("TIME", Align::Left),
        ("VOLUME", Align::Left),
        ("FILES", Align::Right),
        ("SEQ READ", Align::Right),
        ("RANDOM READ", Align::Right),
        ("SEQ WRITE", Align::Right),
        ("RANDOM WRITE", Align::Right),
        ("STATE", Align::Left),
    ];
    let figure = |one: &BenchmarkFigure| format!("{:.0} {}", one.value, one.unit);
    let rows = runs.iter().map(|run| {
        let mut cells = vec![
            run.id.to_string(),
            time(run.started_seconds),
            run.volume.clone(),
            format_size(run.working_set_bytes),
        ];
        cells.extend(TITLES.iter().map(|title| {
            let mut figures = run.figures.iter();
            let found = figures.find(|one| one.title == *title);
            found.map_or_else(|| "-".to_owned(), figure)
        }));
        cells.push(run.partial.clone().unwrap_or_else(|| "done".to_owned()));
        cells
    });
    print::table(COLUMNS, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_shown() {
        let figure = BenchmarkFigure {
            title: "random read".to_owned(),
            value: 12_345.6,
            unit: "ops/s".to_owned(),
            drained: None,
            latency_p50_microseconds: Some(10.0),
            latency_p99_microseconds: None,
            errors: 0,
        };
        let run = BenchmarkView {
            id: 7,
            started_seconds: 1_800_000_000,
            seconds: 9,
            volume: "main".to_owned(),
            working_set_bytes: 256 << 20,
            partial: Some("it was stopped".to_owned()),
            figures: vec![figure],
        };
        let table = table(&[run]);
        let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        let want = "7 2027-01-15T08:00:00Z main 256 MiB - 12346 ops/s - - it was stopped";
        assert_eq!(row.join(" "), want);
        let mut running = BenchmarkProgress {
            volume: "main".to_owned(),
            started_seconds: 0,
            working_set_bytes: 1,
            phase: "random read".to_owned(),
            phase_number: 2,
            phase_count: 4,
            is_preparing: false,
            phase_percent: 50,
            bytes_per_second: 1048576.0,
            operations_per_second: 256.0,
            latency_microseconds: Some(99.6),
            is_stopping: false,
        };
        assert_eq!(
            now(&running),
            "running on main: 2 of 4, random read, 50%; 1 MiB/s, 256 requests/s, 100 us"
        );
        running.is_stopping = true;
        assert!(now(&running).contains("stopping"));
    }
}
