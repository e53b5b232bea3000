//! Objects of S3: put, get, list, mixed and delete, by size.
//!
//! Owns: the phases, and their figures. Must not know: how phases are done.

use std::str::FromStr;
use std::time::Duration;

use cairn_base::units::format_size;

use super::table::{number, per_second, table};
use super::{Plan, Step, SuiteError, list, parameters};
use crate::plan::{End, ObjectsOperation, ObjectsWork, Phase, Work};
use crate::result::{Figure, PhaseResult};

pub const SUITE: &str = "objects";
pub const JOBS_DEFAULT: u32 = 16;
pub const OBJECTS_DEFAULT: u64 = 100;
/// Objects of so many bytes and more are measured by throughput.
const LARGE_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of the objects, one after the other.
    pub sizes: Vec<u64>,
    /// Of each job.
    pub objects: u64,
    /// On each client, each with one request in flight.
    pub jobs: u32,
    /// How long objects are put, read and mixed; without: once.
    pub runtime: Option<Duration>,
    pub operations: Vec<ObjectsOperation>,
}

const OPERATIONS: [(ObjectsOperation, &str); 6] = [
    (ObjectsOperation::Put, "put"),
    (ObjectsOperation::Get, "get"),
    (ObjectsOperation::List, "list"),
    (ObjectsOperation::Mixed, "mixed"),
    (ObjectsOperation::Delete, "delete"),
    (ObjectsOperation::DeleteMany, "delete-many"),
];

fn word(operation: ObjectsOperation) -> &'static str {
    let found = OPERATIONS.iter().find(|(known, _)| *known == operation);
    found.map_or("", |(_, word)| word)
}

/// One that a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation(pub ObjectsOperation);

impl FromStr for Operation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = OPERATIONS.iter().find(|(_, word)| *word == text);
        let words: Vec<&str> = OPERATIONS.iter().map(|(_, word)| *word).collect();
        match found {
            Some((operation, _)) => Ok(Self(*operation)),
            None => Err(format!(
                "\"{text}\" is not measured; there are {}",
                words.join(", ")
            )),
        }
    }
}

/// The phases for so many clients.
pub fn plan(settings: &Settings, client_count: u32) -> Result<Plan, SuiteError> {
    let mut steps = Vec::new();
    for (index, size) in settings.sizes.iter().enumerate() {
        for operation in &settings.operations {
            let is_timed = matches!(
                operation,
                ObjectsOperation::Put | ObjectsOperation::Get | ObjectsOperation::Mixed
            );
            let end = match settings.runtime {
                Some(runtime) if is_timed => End::After {
                    ramp_ms: 0,
                    runtime_ms: u64::try_from(runtime.as_millis()).unwrap_or(u64::MAX),
                },
                _ => End::Whole,
            };
            let work = ObjectsWork {
                operation: *operation,
                object_bytes: *size,
                objects: settings.objects,
                end,
            };
            steps.push(Step {
                cold: *operation == ObjectsOperation::Get,
                phase: Phase {
                    name: format!("{} {}", word(*operation), format_size(*size)),
                    fileset: format!("objects-{index}"),
                    jobs: settings.jobs,
                    depth: 1,
                    work: Work::Objects(work),
                },
            });
        }
    }
    let words: Vec<&str> = settings.operations.iter().copied().map(word).collect();
    let runtime = settings.runtime;
    let parameters = parameters([
        ("size", list(&settings.sizes)),
        ("objects", settings.objects.to_string()),
        ("concurrency", settings.jobs.to_string()),
        (
            "runtime",
            runtime.map_or("once".to_owned(), |time| format!("{}s", time.as_secs_f64())),
        ),
        ("operations", words.join(",")),
    ]);
    Plan::new(SUITE, client_count, steps, parameters, Vec::new())
}

/// What the result of a phase is measured by.
pub fn unit(work: &ObjectsWork) -> &'static str {
    let has_bytes = matches!(
        work.operation,
        ObjectsOperation::Put | ObjectsOperation::Get | ObjectsOperation::Mixed
    );
    match has_bytes && work.object_bytes >= LARGE_BYTES {
        true => "MB/s",
        false => "ops/s",
    }
}

fn rate(result: &PhaseResult, unit: &str) -> f64 {
    let amount = match unit {
        "MB/s" => result.bytes as f64 / 1e6,
        _ => result.operations as f64,
    };
    per_second(amount, result.foreground_seconds)
}

pub fn summary(phases: &[PhaseResult]) -> Vec<Figure> {
    let figure = |result: &PhaseResult| match &result.phase.as_ref()?.work {
        Work::Objects(work) => Some(Figure {
            title: result.name.clone(),
            value: rate(result, unit(work)),
            unit: unit(work).to_owned(),
            drained: None,
            phase: result.name.clone(),
        }),
        _ => None,
    };
    phases.iter().filter_map(figure).collect()
}

pub(super) fn text(phases: &[PhaseResult]) -> String {
    let mut rows = Vec::new();
    for result in phases {
        let latency = |percent: f64| {
            let latency = result.latency.as_ref();
            let found = latency.and_then(|latency| {
                let points = &latency.percentiles_us;
                let point = points.iter().find(|(at, _)| *at >= percent);
                point.map(|(_, us)| number(*us / 1000.0))
            });
            found.unwrap_or_default()
        };
        rows.push(vec![
            result.name.clone(),
            number(rate(result, "ops/s")),
            number(rate(result, "MB/s")),
            latency(50.0),
            latency(99.0),
        ]);
    }
    let headings = ["Operation", "ops/s", "MB/s", "p50 ms", "p99 ms"];
    table(&headings, &rows)
}
