//! IOR: blocks in segments, a file for each task or one for all, written and then read.
//!
//! Owns: the phases, and a report like IOR's.
//! Must not know: how phases are done.
//! Source: IOR's user guide; the parallel file system paper: `-t 1m -b 1m -s 16384 -F -w`, O_DIRECT, five
//! clients with four tasks each.

use std::fmt::Write as _;

use cairn_base::units::format_size;

use super::table::{Spread, number, per_second, table};
use super::{Plan, Step, SuiteError, parameters, per_worker};
use crate::plan::{DataWork, Direction, End, Fsync, Layout, Order, Phase, Work};
use crate::result::{Figure, PhaseResult};

pub const SUITE: &str = "ior";
pub const ITERATIONS_MAX: u32 = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `-t`
    pub transfer_bytes: u64,
    /// `-b`
    pub block_bytes: u64,
    /// `-s`
    pub segments: u64,
    /// Tasks on each client.
    pub tasks: u32,
    /// `-F`
    pub file_per_process: bool,
    /// `-w`
    pub write: bool,
    /// `-r`
    pub read: bool,
    /// `-z`
    pub random: bool,
    /// `-C`: a task reads what a task of the next client wrote; of one client, what the next task wrote.
    pub reorder: bool,
    /// `-e`: fsync inside the clock.
    pub fsync: bool,
    /// `-i`
    pub iterations: u32,
    /// `--posix.odirect`
    pub direct: bool,
    /// Requests in flight of each task; IOR has one.
    pub depth: u32,
}

/// The phases for so many clients.
pub fn plan(settings: &Settings, client_count: u32) -> Result<Plan, SuiteError> {
    if !(1..=ITERATIONS_MAX).contains(&settings.iterations) {
        return Err(SuiteError::Setting(format!(
            "there can be 1 to {ITERATIONS_MAX} iterations"
        )));
    }
    if !settings.write && !settings.read {
        return Err(SuiteError::Setting(
            "neither write nor read is left to do".to_owned(),
        ));
    }
    let layout = if settings.file_per_process {
        let bytes = settings.block_bytes.checked_mul(settings.segments);
        per_worker(bytes.ok_or_else(|| {
            SuiteError::Setting("a file would have more than 2^64 bytes".to_owned())
        })?)
    } else {
        Layout::Shared {
            block_bytes: settings.block_bytes,
            segments: settings.segments,
        }
    };
    let reorder = match (settings.reorder, client_count) {
        (false, _) => 0,
        (true, 1) => u32::from(settings.tasks > 1),
        (true, _) => settings.tasks,
    };
    let mut steps = Vec::new();
    for iteration in 1..=settings.iterations {
        for (direction, word, wanted) in [
            (Direction::Write, "write", settings.write),
            (Direction::Read, "read", settings.read),
        ] {
            if !wanted {
                continue;
            }
            let data = DataWork {
                direction,
                order: if settings.random {
                    Order::Random
                } else {
                    Order::Sequential
                },
                request_bytes: settings.transfer_bytes,
                layout: layout.clone(),
                reorder: if direction == Direction::Read {
                    reorder
                } else {
                    0
                },
                end: End::Whole,
                fsync: if settings.fsync {
                    Fsync::InClock
                } else {
                    Fsync::After
                },
                direct: settings.direct,
            };
            steps.push(Step {
                cold: direction == Direction::Read,
                phase: Phase {
                    name: format!("{word} iteration {iteration}"),
                    // IOR removes its files between iterations: a second write is no rewrite.
                    fileset: format!("ior-{iteration}"),
                    jobs: settings.tasks,
                    depth: settings.depth,
                    work: Work::Data(data),
                },
            });
        }
    }
    let notes = path_notes(settings, client_count);
    let parameters = parameters([
        ("transfer", format_size(settings.transfer_bytes)),
        ("block", format_size(settings.block_bytes)),
        ("segments", settings.segments.to_string()),
        ("tasks", settings.tasks.to_string()),
        ("file-per-process", settings.file_per_process.to_string()),
        ("random", settings.random.to_string()),
        ("reorder", settings.reorder.to_string()),
        ("fsync", settings.fsync.to_string()),
        ("iterations", settings.iterations.to_string()),
        ("direct", settings.direct.to_string()),
        ("depth", settings.depth.to_string()),
    ]);
    Plan::new(SUITE, client_count, steps, parameters, notes)
}

fn path_notes(settings: &Settings, client_count: u32) -> Vec<String> {
    let mut notes = Vec::new();
    if settings.write && settings.read && !settings.direct && client_count == 1 {
        notes.push(
            "One client wrote and read without O_DIRECT: reads may come from its cache.".to_owned(),
        );
    }
    notes
}

fn is(result: &PhaseResult, direction: Direction) -> bool {
    matches!(&result.phase, Some(Phase { work: Work::Data(data), .. }) if data.direction == direction)
}

const DIRECTIONS: [(Direction, &str); 2] = [(Direction::Write, "write"), (Direction::Read, "read")];

/// The highest of the iterations, as IOR's "Max Write" and "Max Read".
pub fn summary(phases: &[PhaseResult]) -> Vec<Figure> {
    let rate =
        |result: &PhaseResult| per_second(result.bytes as f64 / 1e6, result.foreground_seconds);
    let figure = |(direction, word): &(Direction, &str)| {
        let highest = phases
            .iter()
            .filter(|result| is(result, *direction))
            .max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
        Some(Figure {
            title: format!("max {word}"),
            value: rate(highest),
            unit: "MB/s".to_owned(),
            drained: (*direction == Direction::Write)
                .then(|| per_second(highest.bytes as f64 / 1e6, highest.drained_seconds)),
            phase: highest.name.clone(),
        })
    };
    DIRECTIONS.iter().filter_map(figure).collect()
}

pub(super) fn text(phases: &[PhaseResult]) -> String {
    const MIB: f64 = (1u64 << 20) as f64;
    let mut rows = Vec::new();
    for result in phases {
        let word = DIRECTIONS
            .iter()
            .find(|(direction, _)| is(result, *direction));
        let (block, transfer) = sizes(result);
        let iteration = result.name.rsplit(' ').next().unwrap_or("");
        rows.push(vec![
            word.map_or(result.name.as_str(), |(_, word)| word)
                .to_owned(),
            number(per_second(
                result.bytes as f64 / MIB,
                result.foreground_seconds,
            )),
            number(per_second(
                result.bytes as f64 / MIB,
                result.drained_seconds,
            )),
            number(per_second(
                result.operations as f64,
                result.foreground_seconds,
            )),
            number(block as f64 / 1024.0),
            number(transfer as f64 / 1024.0),
            format!("{:.3}", result.foreground_seconds),
            iteration.to_owned(),
        ]);
    }
    let headings = [
        "access",
        "bw(MiB/s)",
        "drained(MiB/s)",
        "IOPS",
        "block(KiB)",
        "xfer(KiB)",
        "total(s)",
        "iter",
    ];
    let mut text = table(&headings, &rows);
    text.push_str("\nSummary of all tests:\n");
    let mut rows = Vec::new();
    let mut highest = String::new();
    for (direction, word) in &DIRECTIONS {
        let of: Vec<&PhaseResult> = phases
            .iter()
            .filter(|result| is(result, *direction))
            .collect();
        let bandwidths: Vec<f64> = of
            .iter()
            .map(|result| per_second(result.bytes as f64 / MIB, result.foreground_seconds))
            .collect();
        let operations: Vec<f64> = of
            .iter()
            .map(|result| per_second(result.operations as f64, result.foreground_seconds))
            .collect();
        let (Some(bandwidth), Some(operations)) =
            (Spread::of(&bandwidths), Spread::of(&operations))
        else {
            continue;
        };
        rows.push(vec![
            (*word).to_owned(),
            number(bandwidth.max),
            number(bandwidth.min),
            number(bandwidth.mean),
            number(bandwidth.deviation),
            number(operations.max),
            number(operations.min),
            number(operations.mean),
            number(operations.deviation),
        ]);
        let title = if *word == "write" { "Write" } else { "Read " };
        // Writing to a string cannot fail.
        let _ = writeln!(
            highest,
            "Max {title}: {:.2} MiB/sec ({:.2} MB/sec)",
            bandwidth.max,
            bandwidth.max * MIB / 1e6
        );
    }
    let headings = [
        "Operation",
        "Max(MiB)",
        "Min(MiB)",
        "Mean(MiB)",
        "StdDev",
        "Max(OPs)",
        "Min(OPs)",
        "Mean(OPs)",
        "StdDev",
    ];
    text.push_str(&table(&headings, &rows));
    text.push('\n');
    text.push_str(&highest);
    text
}

/// Bytes of a block and of a transfer.
fn sizes(result: &PhaseResult) -> (u64, u64) {
    match &result.phase {
        Some(Phase {
            work: Work::Data(data),
            ..
        }) => {
            let block = match data.layout {
                Layout::PerWorker { bytes } => bytes,
                Layout::Shared { block_bytes, .. } => block_bytes,
            };
            (block, data.request_bytes)
        }
        _ => (0, 0),
    }
}
