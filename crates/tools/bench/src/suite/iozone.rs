//! IOzone's throughput mode: write and rewrite, read and reread, random read and write.
//!
//! Owns: the phases, and the lines of IOzone's report.
//! Must not know: how phases are done.
//! Source: the 2016 NFS paper: `iozone -w -e -s 120G -i 0 -r 1M -t 8 -+m HOSTS`, then `-i 1`; IOzone's
//! documentation. Unlike IOzone without `-x` each child goes through its whole file, also when another
//! has ended before.

use std::fmt::Write as _;

use cairn_base::units::format_size;

use super::table::{Spread, per_second};
use super::{Plan, Step, SuiteError, list, parameters, per_worker};
use crate::plan::{DataWork, Direction, End, Fsync, Order, Phase, Work};
use crate::result::{Figure, PhaseResult};

pub const SUITE: &str = "iozone";

/// IOzone's numbers of tests.
pub const TESTS_DEFAULT: [u8; 3] = [0, 1, 2];
pub const RECORD_BYTES_DEFAULT: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `-i`: 0 write and rewrite, 1 read and reread, 2 random read and write.
    pub tests: Vec<u8>,
    /// `-r`
    pub record_bytes: u64,
    /// `-s`, of each thread's file.
    pub file_bytes: u64,
    /// `-t`, on each client.
    pub threads: u32,
    /// `-e`: fsync inside the timing of writes.
    pub fsync: bool,
    /// `-I`
    pub direct: bool,
    /// Requests in flight of each thread; IOzone has one.
    pub depth: u32,
}

struct Test {
    number: u8,
    /// Name of the phase.
    name: &'static str,
    /// As IOzone calls those who do it.
    children: &'static str,
    direction: Direction,
    order: Order,
}

const TESTS: [Test; 6] = [
    Test {
        number: 0,
        name: "write",
        children: "initial writers",
        direction: Direction::Write,
        order: Order::Sequential,
    },
    Test {
        number: 0,
        name: "rewrite",
        children: "rewriters",
        direction: Direction::Write,
        order: Order::Sequential,
    },
    Test {
        number: 1,
        name: "read",
        children: "readers",
        direction: Direction::Read,
        order: Order::Sequential,
    },
    Test {
        number: 1,
        name: "reread",
        children: "re-readers",
        direction: Direction::Read,
        order: Order::Sequential,
    },
    Test {
        number: 2,
        name: "random read",
        children: "random readers",
        direction: Direction::Read,
        order: Order::Random,
    },
    Test {
        number: 2,
        name: "random write",
        children: "random writers",
        direction: Direction::Write,
        order: Order::Random,
    },
];

/// The phases for so many clients.
pub fn plan(settings: &Settings, client_count: u32) -> Result<Plan, SuiteError> {
    if let Some(unknown) = settings.tests.iter().find(|number| **number > 2) {
        return Err(SuiteError::Setting(format!(
            "there is no test {unknown}; there are 0 (write, rewrite), 1 (read, reread) and 2 (random \
             read, random write)"
        )));
    }
    let mut steps = Vec::new();
    for test in TESTS
        .iter()
        .filter(|test| settings.tests.contains(&test.number))
    {
        let data = DataWork {
            direction: test.direction,
            order: test.order,
            request_bytes: settings.record_bytes,
            layout: per_worker(settings.file_bytes),
            reorder: 0,
            end: End::Whole,
            fsync: if settings.fsync {
                Fsync::InClock
            } else {
                Fsync::After
            },
            direct: settings.direct,
        };
        steps.push(Step {
            // A reread is there to show the cache.
            cold: matches!(test.name, "read" | "random read"),
            phase: Phase {
                name: test.name.to_owned(),
                fileset: SUITE.to_owned(),
                jobs: settings.threads,
                depth: settings.depth,
                work: Work::Data(data),
            },
        });
    }
    let parameters = parameters([
        ("test", list(&settings.tests)),
        ("record", format_size(settings.record_bytes)),
        ("size", format_size(settings.file_bytes)),
        ("threads", settings.threads.to_string()),
        ("fsync", settings.fsync.to_string()),
        ("direct", settings.direct.to_string()),
        ("depth", settings.depth.to_string()),
    ]);
    Plan::new(SUITE, client_count, steps, parameters, Vec::new())
}

/// Bytes in a second of each child.
fn rates(result: &PhaseResult) -> Vec<f64> {
    let workers = result.workers.iter();
    workers
        .map(|worker| per_second(worker.bytes as f64, worker.seconds))
        .collect()
}

/// How far the sum of what the children saw may be above what moved while any of them ran.
const CHILDREN_ABOVE_PARENT_MAX: f64 = 1.1;

/// What all together moved while any of them ran, in MB/s. The sum of what the children saw is more
/// where they did not all run at the same time: two that take turns on a cache see its rate twice.
pub fn summary(phases: &[PhaseResult]) -> Vec<Figure> {
    let figure = |result: &PhaseResult| {
        let is_write = matches!(&result.phase, Some(Phase { work: Work::Data(data), .. })
            if data.direction == Direction::Write);
        Figure {
            title: result.name.clone(),
            value: per_second(result.bytes as f64 / 1e6, result.foreground_seconds),
            unit: "MB/s".to_owned(),
            drained: is_write
                .then(|| per_second(result.bytes as f64 / 1e6, result.drained_seconds)),
            phase: result.name.clone(),
        }
    };
    phases.iter().map(figure).collect()
}

/// IOzone's lines; its kB has 1024 bytes.
pub(super) fn text(phases: &[PhaseResult]) -> String {
    let mut text = String::new();
    for result in phases {
        let children = TESTS
            .iter()
            .find(|test| test.name == result.name)
            .map_or(result.name.as_str(), |test| test.children);
        let rates: Vec<f64> = rates(result).iter().map(|rate| rate / 1024.0).collect();
        let Some(spread) = Spread::of(&rates) else {
            continue;
        };
        let count = rates.len();
        let kib = |bytes: u64| bytes as f64 / 1024.0;
        let parent = per_second(kib(result.bytes), result.foreground_seconds);
        let drained = per_second(kib(result.bytes), result.drained_seconds);
        let min_xfer = result.workers.iter().map(|worker| worker.bytes).min();
        let mut line = |name: String, value: f64, unit: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "\t{name:<50} = {value:>14.2} {unit}");
        };
        let sees = format!("throughput for {count:>2} {children}");
        let seen: f64 = rates.iter().sum();
        line(format!("Children see {sees}"), seen, "kB/sec");
        line(format!("Parent sees {sees}"), parent, "kB/sec");
        if result.drained_seconds > result.foreground_seconds {
            line(format!("Drained {sees}"), drained, "kB/sec");
        }
        line(
            "Min throughput per process".to_owned(),
            spread.min,
            "kB/sec",
        );
        line(
            "Max throughput per process".to_owned(),
            spread.max,
            "kB/sec",
        );
        line(
            "Avg throughput per process".to_owned(),
            spread.mean,
            "kB/sec",
        );
        line(
            "Min xfer".to_owned(),
            kib(min_xfer.unwrap_or_default()),
            "kB",
        );
        if seen > parent * CHILDREN_ABOVE_PARENT_MAX {
            text.push_str(
                "\tThe children did not all run at the same time: what the parent sees is the rate. \
                 A larger --size makes the two agree.\n",
            );
        }
        text.push('\n');
    }
    text.push_str("\tkB is 1024 bytes, as IOzone has it\n");
    text
}
