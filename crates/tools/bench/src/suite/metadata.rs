//! Names: create, stat, readdir, rename and unlink, as mdtest measures them.
//!
//! Owns: the phases, and a report like mdtest's.
//! Must not know: how phases are done.

use super::table::{Spread, number, per_second, table};
use super::{Plan, Step, SuiteError, parameters};
use crate::plan::{NamesOperation, NamesWork, Phase, Work};
use crate::result::{Figure, PhaseResult};

pub const SUITE: &str = "metadata";
pub const ITERATIONS_MAX: u32 = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of each job.
    pub files: u64,
    /// On each client.
    pub jobs: u32,
    /// All jobs in one directory, or one each.
    pub one_directory: bool,
    pub iterations: u32,
    /// Calls in flight of each job; mdtest has one.
    pub depth: u32,
}

/// In the order in which they are done.
const OPERATIONS: [(NamesOperation, &str, &str); 5] = [
    (NamesOperation::Create, "create", "File creation"),
    (NamesOperation::Stat, "stat", "File stat"),
    (NamesOperation::Readdir, "readdir", "Directory entries read"),
    (NamesOperation::Rename, "rename", "File rename"),
    (NamesOperation::Unlink, "unlink", "File removal"),
];

/// The phases for so many clients.
pub fn plan(settings: &Settings, client_count: u32) -> Result<Plan, SuiteError> {
    if !(1..=ITERATIONS_MAX).contains(&settings.iterations) {
        return Err(SuiteError::Setting(format!(
            "there can be 1 to {ITERATIONS_MAX} iterations"
        )));
    }
    let mut steps = Vec::new();
    for iteration in 1..=settings.iterations {
        for (operation, word, _) in OPERATIONS {
            let names = NamesWork {
                operation,
                files: settings.files,
                one_directory: settings.one_directory,
            };
            steps.push(Step {
                cold: matches!(operation, NamesOperation::Stat | NamesOperation::Readdir),
                phase: Phase {
                    name: match settings.iterations {
                        1 => word.to_owned(),
                        _ => format!("{word} iteration {iteration}"),
                    },
                    fileset: format!("names-{iteration}"),
                    jobs: settings.jobs,
                    depth: settings.depth,
                    work: Work::Names(names),
                },
            });
        }
    }
    let parameters = parameters([
        ("files", settings.files.to_string()),
        ("jobs", settings.jobs.to_string()),
        ("one-directory", settings.one_directory.to_string()),
        ("iterations", settings.iterations.to_string()),
        ("depth", settings.depth.to_string()),
    ]);
    Plan::new(SUITE, client_count, steps, parameters, Vec::new())
}

/// Rates of one operation over the iterations.
fn rates(phases: &[PhaseResult], operation: NamesOperation) -> Vec<(f64, &PhaseResult)> {
    phases
        .iter()
        .filter(|result| {
            matches!(&result.phase, Some(Phase { work: Work::Names(names), .. })
                if names.operation == operation)
        })
        .map(|result| {
            let rate = per_second(result.operations as f64, result.foreground_seconds);
            (rate, result)
        })
        .collect()
}

/// The highest of the iterations.
pub fn summary(phases: &[PhaseResult]) -> Vec<Figure> {
    let figure = |(operation, word, _): &(NamesOperation, &str, &str)| {
        let (rate, result) = rates(phases, *operation)
            .into_iter()
            .max_by(|(a, _), (b, _)| a.total_cmp(b))?;
        Some(Figure {
            title: (*word).to_owned(),
            value: rate,
            unit: "ops/s".to_owned(),
            drained: None,
            phase: result.name.clone(),
        })
    };
    OPERATIONS.iter().filter_map(figure).collect()
}

pub(super) fn text(phases: &[PhaseResult]) -> String {
    let mut rows = Vec::new();
    let mut iterations = 0;
    for (operation, _, title) in OPERATIONS {
        let rates: Vec<f64> = rates(phases, operation)
            .into_iter()
            .map(|(rate, _)| rate)
            .collect();
        let Some(spread) = Spread::of(&rates) else {
            continue;
        };
        iterations = iterations.max(rates.len());
        rows.push(vec![
            title.to_owned(),
            number(spread.max),
            number(spread.min),
            number(spread.mean),
            number(spread.deviation),
        ]);
    }
    let headings = ["Operation", "Max", "Min", "Mean", "Std Dev"];
    format!(
        "SUMMARY rate (in ops/sec): (of {iterations} iterations)\n{}",
        table(&headings, &rows)
    )
}
