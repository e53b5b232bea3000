//! Read cache: the same reads again and again, and what part of them a server's read cache had.
//!
//! Owns: the passes, their figures and text. Must not know: how a server is asked, what is kept in a cache.
//! Source: the parallel file system paper: an SSD read cache of 20% before disks that turn.

use cairn_base::units::format_size;

use super::table::{number, per_second, table};
use super::{Plan, Step, SuiteError, file_of_each, parameters, per_worker};
use crate::plan::{DataWork, Direction, End, Fsync, Order, Phase, Work};
use crate::result::{Figure, PhaseResult, ReadsOf, ReadsOfPhase, RunResult};
use crate::watch::ServerSamples;

pub const SUITE: &str = "read-cache";
/// The first is cold; a cache takes what is read a second time, and the others have it.
pub const PASSES_DEFAULT: u32 = 4;
pub const PASSES_MAX: u32 = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub passes: u32,
    pub order: Order,
    /// On each client.
    pub jobs: u32,
    pub depth: u32,
    /// Bytes of all files of all clients together.
    pub working_set_bytes: u64,
    pub request_bytes: u64,
}

pub fn plan(settings: &Settings, client_count: u32) -> Result<Plan, SuiteError> {
    if !(2..=PASSES_MAX).contains(&settings.passes) {
        return Err(SuiteError::Setting(format!(
            "there can be 2 to {PASSES_MAX} passes: the first finds what no cache has"
        )));
    }
    let workers = u64::from(settings.jobs.max(1)) * u64::from(client_count.max(1));
    let request_bytes = settings.request_bytes.max(1);
    let file_bytes = file_of_each(settings.working_set_bytes, workers, request_bytes)?;
    let step = |pass: u32| Step {
        // Of the client: what it has in its memory, no server is asked for.
        cold: true,
        phase: Phase {
            name: format!("pass {pass}"),
            fileset: SUITE.to_owned(),
            jobs: settings.jobs,
            depth: settings.depth,
            work: Work::Data(DataWork {
                direction: Direction::Read,
                order: settings.order,
                request_bytes,
                layout: per_worker(file_bytes),
                reorder: 0,
                end: End::Whole,
                fsync: Fsync::After,
                direct: true,
            }),
        },
    };
    let parameters = parameters([
        ("passes", settings.passes.to_string()),
        (
            "order",
            match settings.order {
                Order::Sequential => "sequential",
                Order::Random => "random",
            }
            .to_owned(),
        ),
        ("jobs", settings.jobs.to_string()),
        ("depth", settings.depth.to_string()),
        ("working-set", format_size(settings.working_set_bytes)),
        ("file-size", format_size(file_bytes)),
        ("request", format_size(request_bytes)),
    ]);
    let steps = (1..=settings.passes).map(step).collect();
    Plan::new(SUITE, client_count, steps, parameters, Vec::new())
}

/// Adds to a result where its server had the bytes from, and what a reader must know of that.
pub fn add(result: &mut RunResult, mut reads: ReadsOf, seen: &ServerSamples) {
    if let Some(problem) = &seen.problem {
        result.notes.push(format!(
            "The server did not always say where reads came from; the first answer: {problem}"
        ));
    }
    let passes = seen.phases.iter().filter_map(|it| {
        let reads = it.reads?;
        Some(ReadsOfPhase {
            phase: it.name.clone(),
            from_cache_bytes: reads.cache_bytes,
            from_disks_bytes: reads.disk_bytes,
        })
    });
    reads.passes.extend(passes);
    result.notes.extend(remarks(result, &reads));
    result.reads = Some(reads);
}

fn remarks(result: &RunResult, reads: &ReadsOf) -> Vec<String> {
    let mut notes = Vec::new();
    if reads.cache_count == 0 {
        notes.push(
            "The server has no read cache: all passes are of its memory and its disks. `cairn disk add PATH --role cache \
             --size SIZE` makes one, on a disk that is faster than the pool's."
                .to_owned(),
        );
    }
    let working_set = result.phases.iter().map(|phase| phase.bytes).max();
    let working_set = working_set.unwrap_or_default();
    if working_set > 0 && working_set <= reads.memory_bytes {
        notes.push(format!(
            "The {} that are read fit into the {} of data that the server keeps in its memory, so little is asked of disks or a \
             read cache; a larger working set shows more.",
            format_size(working_set),
            format_size(reads.memory_bytes)
        ));
    }
    if reads.cache_count > 0 && working_set > reads.cache_bytes {
        notes.push(format!(
            "The {} that are read do not fit into a read cache of {}: it has a part of them.",
            format_size(working_set),
            format_size(reads.cache_bytes)
        ));
    }
    notes
}

/// What part of a pass came from where, in percent: the read cache, the disks, and the server's memory.
pub(crate) fn shares(phase: &PhaseResult, reads: &ReadsOfPhase) -> Option<[f64; 3]> {
    let all = phase.bytes as f64;
    let percent = |bytes: u64| (100.0 * bytes as f64 / all).min(100.0);
    let (cache, disks) = (
        percent(reads.from_cache_bytes),
        percent(reads.from_disks_bytes),
    );
    (all > 0.0).then(|| [cache, disks, (100.0 - cache - disks).max(0.0)])
}

pub(super) fn summary(phases: &[PhaseResult]) -> Vec<Figure> {
    let figure = |phase: &PhaseResult| Figure {
        title: phase.name.clone(),
        value: per_second(phase.bytes as f64 / 1e6, phase.foreground_seconds),
        unit: "MB/s".to_owned(),
        drained: None,
        phase: phase.name.clone(),
    };
    phases.iter().map(figure).collect()
}

pub(super) fn text(result: &RunResult) -> String {
    let rate = |phase: &PhaseResult| per_second(phase.bytes as f64 / 1e6, phase.foreground_seconds);
    let first = result.phases.first().map(rate).filter(|rate| *rate > 0.0);
    let rows: Vec<Vec<String>> = result
        .phases
        .iter()
        .map(|phase| {
            let passes = result.reads.iter().flat_map(|reads| &reads.passes);
            let reads = passes.clone().find(|it| it.phase == phase.name);
            let shares = reads.and_then(|reads| shares(phase, reads));
            let share = |at: usize| {
                shares
                    .and_then(|it| it.get(at).copied())
                    .map_or("-".to_owned(), number)
            };
            vec![
                phase.name.clone(),
                number(rate(phase)),
                first.map_or("-".to_owned(), |first| number(rate(phase) / first)),
                share(0),
                share(1),
                share(2),
            ]
        })
        .collect();
    let headings = ["READS", "MB/s", "x", "CACHE %", "DISKS %", "MEMORY %"];
    table(&headings, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_was_read() {
        let phase = |bytes| PhaseResult {
            bytes,
            ..PhaseResult::nothing(
                &plan(
                    &Settings {
                        passes: 2,
                        order: Order::Sequential,
                        jobs: 1,
                        depth: 1,
                        working_set_bytes: 1 << 20,
                        request_bytes: 1 << 20,
                    },
                    1,
                )
                .unwrap()
                .steps[0]
                    .phase,
                String::new(),
            )
        };
        let reads = |from_cache_bytes, from_disks_bytes| ReadsOfPhase {
            phase: "pass 1".to_owned(),
            from_cache_bytes,
            from_disks_bytes,
        };
        let cases = [
            (100, (50, 30), Some([50.0, 30.0, 20.0])),
            (100, (0, 0), Some([0.0, 0.0, 100.0])),
            // Whole records are read where a part is asked for.
            (100, (10, 250), Some([10.0, 100.0, 0.0])),
            (0, (0, 10), None),
        ];
        for (bytes, (cache, disks), want) in cases {
            assert_eq!(shares(&phase(bytes), &reads(cache, disks)), want);
        }
    }
}
