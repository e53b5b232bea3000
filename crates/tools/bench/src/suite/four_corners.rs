//! Four corners: sequential and random, read and write, over queue depths; the highest counts.
//!
//! Owns: the phases, which of them is highest, the report.
//! Must not know: how phases are done.
//! Source: the cloud-volumes paper: 64 KiB sequential, 4 KiB random, depths {200, 100, 64, 32, 8, 4, 2, 1},
//! four jobs on each client, the highest result kept.

use std::time::Duration;

use cairn_base::units::format_size;

use super::table::{number, per_second, table};
use super::{Plan, Step, SuiteError, list, parameters, per_worker};
use crate::plan::{DataWork, Direction, End, Fsync, Order, Phase, Work};
use crate::result::{Figure, PhaseResult};

pub const SUITE: &str = "four-corners";
pub const DEPTHS_DEFAULT: [u32; 8] = [200, 100, 64, 32, 8, 4, 2, 1];
pub const JOBS_DEFAULT: u32 = 4;
pub const SEQUENTIAL_BYTES_DEFAULT: u64 = 64 << 10;
pub const RANDOM_BYTES_DEFAULT: u64 = 4 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// On each client.
    pub jobs: u32,
    /// Bytes of all files of all clients together.
    pub working_set_bytes: u64,
    pub runtime: Duration,
    pub ramp: Duration,
    pub depths: Vec<u32>,
    pub sequential_bytes: u64,
    pub random_bytes: u64,
    /// O_DIRECT on a path.
    pub direct: bool,
    /// Each write is stable when it is answered.
    pub sync: bool,
}

/// A corner: what is done, and its unit.
struct Corner {
    title: &'static str,
    direction: Direction,
    order: Order,
}

/// Reads first: they begin with whole files, which is also where the writes start from.
const CORNERS: [Corner; 4] = [
    Corner {
        title: "sequential read",
        direction: Direction::Read,
        order: Order::Sequential,
    },
    Corner {
        title: "random read",
        direction: Direction::Read,
        order: Order::Random,
    },
    Corner {
        title: "sequential write",
        direction: Direction::Write,
        order: Order::Sequential,
    },
    Corner {
        title: "random write",
        direction: Direction::Write,
        order: Order::Random,
    },
];

impl Corner {
    fn holds(&self, result: &PhaseResult) -> bool {
        matches!(&result.phase, Some(Phase { work: Work::Data(data), .. })
            if data.direction == self.direction && data.order == self.order)
    }

    fn unit(&self) -> &'static str {
        match self.order {
            Order::Sequential => "MB/s",
            Order::Random => "ops/s",
        }
    }

    /// What counts of a phase, over so many seconds.
    fn value(&self, result: &PhaseResult, seconds: f64) -> f64 {
        match self.order {
            Order::Sequential => per_second(result.bytes as f64 / 1e6, seconds),
            Order::Random => per_second(result.operations as f64, seconds),
        }
    }
}

/// The phases for so many clients.
pub fn plan(settings: &Settings, client_count: u32) -> Result<Plan, SuiteError> {
    let (long, short) = (
        settings.sequential_bytes.max(settings.random_bytes),
        settings.sequential_bytes.min(settings.random_bytes),
    );
    if short == 0 || long % short != 0 {
        return Err(SuiteError::Setting(format!(
            "the longer of the requests ({}) must be a multiple of the shorter ({})",
            format_size(long),
            format_size(short)
        )));
    }
    let file_count = u64::from(settings.jobs.max(1)) * u64::from(client_count.max(1));
    let file_bytes = settings.working_set_bytes / file_count / long * long;
    if file_bytes == 0 {
        return Err(SuiteError::Setting(format!(
            "a working set of {} is too small for {file_count} files with requests of {}",
            format_size(settings.working_set_bytes),
            format_size(long)
        )));
    }
    let mut steps = Vec::new();
    for corner in &CORNERS {
        for (index, depth) in settings.depths.iter().enumerate() {
            let data = DataWork {
                direction: corner.direction,
                order: corner.order,
                request_bytes: match corner.order {
                    Order::Sequential => settings.sequential_bytes,
                    Order::Random => settings.random_bytes,
                },
                layout: per_worker(file_bytes),
                reorder: 0,
                end: End::After {
                    ramp_ms: millis(settings.ramp),
                    runtime_ms: millis(settings.runtime),
                },
                fsync: match settings.sync {
                    true => Fsync::EachRequest,
                    false => Fsync::After,
                },
                direct: settings.direct,
            };
            steps.push(Step {
                // The first phase writes the files that it reads: there is nothing to drop before it.
                cold: corner.direction == Direction::Read && index == 0 && !steps.is_empty(),
                phase: Phase {
                    name: format!("{} depth {depth}", corner.title),
                    fileset: SUITE.to_owned(),
                    jobs: settings.jobs,
                    depth: *depth,
                    work: Work::Data(data),
                },
            });
        }
    }
    let parameters = parameters([
        ("jobs", settings.jobs.to_string()),
        ("working-set", format_size(settings.working_set_bytes)),
        ("file-size", format_size(file_bytes)),
        ("runtime", format!("{}s", settings.runtime.as_secs_f64())),
        ("ramp", format!("{}s", settings.ramp.as_secs_f64())),
        ("depths", list(&settings.depths)),
        ("sequential-request", format_size(settings.sequential_bytes)),
        ("random-request", format_size(settings.random_bytes)),
        ("direct", settings.direct.to_string()),
        ("sync", settings.sync.to_string()),
    ]);
    let notes = if settings.direct {
        Vec::new()
    } else {
        vec!["Reads may come from the cache of the client, which wrote the files.".to_owned()]
    };
    Plan::new(SUITE, client_count, steps, parameters, notes)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The phases of a corner, and the place of the highest among them.
fn sweep<'a>(corner: &Corner, phases: &'a [PhaseResult]) -> (Vec<&'a PhaseResult>, Option<usize>) {
    let sweep: Vec<_> = phases.iter().filter(|phase| corner.holds(phase)).collect();
    let value = |phase: &PhaseResult| corner.value(phase, phase.foreground_seconds);
    let highest = (0..sweep.len()).max_by(|a, b| value(sweep[*a]).total_cmp(&value(sweep[*b])));
    (sweep, highest)
}

/// The highest of each corner.
pub fn summary(phases: &[PhaseResult]) -> Vec<Figure> {
    let figure = |corner: &Corner| {
        let (sweep, highest) = sweep(corner, phases);
        let highest = *sweep.get(highest?)?;
        Some(Figure {
            title: corner.title.to_owned(),
            value: corner.value(highest, highest.foreground_seconds),
            unit: corner.unit().to_owned(),
            drained: (corner.direction == Direction::Write)
                .then(|| corner.value(highest, highest.drained_seconds)),
            phase: highest.name.clone(),
        })
    };
    CORNERS.iter().filter_map(figure).collect()
}

/// All depths of all corners; the highest with a star.
pub(super) fn text(phases: &[PhaseResult]) -> String {
    let mut rows = Vec::new();
    for corner in &CORNERS {
        let (sweep, highest) = sweep(corner, phases);
        for (index, result) in sweep.iter().enumerate() {
            let is_highest = highest == Some(index);
            let latency = |micros: fn(&crate::result::Latency) -> f64| {
                let latency = result.latency.as_ref();
                latency.map_or("-".to_owned(), |latency| number(micros(latency) / 1000.0))
            };
            rows.push(vec![
                format!("{}{}", corner.title, if is_highest { " *" } else { "" }),
                result
                    .phase
                    .as_ref()
                    .map_or(0, |phase| phase.depth)
                    .to_string(),
                number(per_second(
                    result.bytes as f64 / 1e6,
                    result.foreground_seconds,
                )),
                number(per_second(
                    result.operations as f64,
                    result.foreground_seconds,
                )),
                number(per_second(
                    result.bytes as f64 / 1e6,
                    result.drained_seconds,
                )),
                latency(|latency| latency.mean_us),
                latency(|latency| super::text::percentile(latency, 50.0)),
                latency(|latency| super::text::percentile(latency, 99.0)),
                latency(|latency| latency.max_us),
            ]);
        }
    }
    let headings = [
        "FOUR CORNERS",
        "DEPTH",
        "MB/s",
        "OPS/s",
        "DRAINED MB/s",
        "MEAN ms",
        "P50 ms",
        "P99 ms",
        "MAX ms",
    ];
    format!("{}\n* the highest of its corner\n", table(&headings, &rows))
}
