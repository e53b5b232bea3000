//! Suites: what is measured, in which order, and how its report reads.
//!
//! Owns: the suites' settings and the phases made from them, running them one after the other,
//! their figures and their text.
//! Must not know: how a phase is done (engines), where a result is kept, how progress is drawn.

pub mod burst;
pub mod four_corners;
pub mod ior;
pub mod iozone;
mod machine;
pub mod metadata;
pub mod objects;
pub mod read_cache;
mod run;
mod table;
mod target;
mod text;
mod words;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use cairn_base::units::format_size;

use crate::plan::{Layout, Phase, PhaseError, Work};

pub use machine::machine;
pub use run::{Driver, Job, Local, Observer, run};
pub use target::{Target, TargetError};
pub use text::{phase_line, text};
pub use words::{DurationError, parse_duration};

/// Machines that work together in one run.
pub const CLIENT_COUNT_MAX: u32 = 64;
/// Phases of one plan.
pub const PHASE_COUNT_MAX: usize = 1000;

/// Why settings make no plan, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuiteError {
    #[error("{0}")]
    Setting(String),
    #[error(transparent)]
    Phase(#[from] PhaseError),
}

/// What a run does, as plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// As in [`crate::result::RunResult::suite`].
    pub suite: &'static str,
    pub steps: Vec<Step>,
    /// On the target, over all clients.
    pub bytes_needed: u64,
    /// What the user asked for, as flags and values.
    pub parameters: BTreeMap<String, String>,
    /// What a reader must know to judge the figures when the target is a path, whose client has a cache.
    pub path_notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub phase: Phase,
    /// Caches are dropped before it.
    pub cold: bool,
}

impl Plan {
    /// Checks all phases and adds up the space that their file sets need.
    fn new(
        suite: &'static str,
        client_count: u32,
        steps: Vec<Step>,
        parameters: BTreeMap<String, String>,
        path_notes: Vec<String>,
    ) -> Result<Self, SuiteError> {
        let setting = |message: String| SuiteError::Setting(message);
        if !(1..=CLIENT_COUNT_MAX).contains(&client_count) {
            return Err(setting(format!(
                "there can be 1 to {CLIENT_COUNT_MAX} clients"
            )));
        }
        if !(1..=PHASE_COUNT_MAX).contains(&steps.len()) {
            return Err(setting(format!(
                "this makes {} phases; 1 to {PHASE_COUNT_MAX} can be run",
                steps.len()
            )));
        }
        let mut filesets: BTreeMap<&str, u64> = BTreeMap::new();
        for Step { phase, .. } in &steps {
            phase.check()?;
            let bytes = phase
                .bytes_per_worker()
                .and_then(|bytes| bytes.checked_mul(u64::from(phase.jobs)))
                .and_then(|bytes| bytes.checked_mul(u64::from(client_count)))
                .ok_or_else(|| setting("the files would have more than 2^64 bytes".to_owned()))?;
            let known = filesets.entry(&phase.fileset).or_default();
            *known = bytes.max(*known);
        }
        let bytes_needed = filesets
            .values()
            .try_fold(0u64, |sum, bytes| sum.checked_add(*bytes))
            .ok_or_else(|| setting("the files would have more than 2^64 bytes".to_owned()))?;
        Ok(Self {
            suite,
            bytes_needed,
            parameters,
            path_notes,
            steps,
        })
    }

    /// How long the phases that end after a time take together, in ms; the others take what they take.
    pub fn timed_ms(&self) -> u64 {
        let timed = self.steps.iter().map(|step| phase_ms(&step.phase));
        timed.fold(0, u64::saturating_add)
    }
}

/// Ramp and runtime of a phase that ends after a time; else 0.
pub fn phase_ms(phase: &Phase) -> u64 {
    match &phase.work {
        Work::Data(crate::plan::DataWork {
            end:
                crate::plan::End::After {
                    ramp_ms,
                    runtime_ms,
                },
            ..
        }) => ramp_ms.saturating_add(*runtime_ms),
        Work::Objects(crate::plan::ObjectsWork {
            end:
                crate::plan::End::After {
                    ramp_ms,
                    runtime_ms,
                },
            ..
        }) => ramp_ms.saturating_add(*runtime_ms),
        Work::Data(_) | Work::Names(_) | Work::Objects(_) => 0,
    }
}

/// Operations that a phase does on each client, when its length is known beforehand.
pub fn phase_operations(phase: &Phase) -> Option<u64> {
    let per_worker = match &phase.work {
        Work::Names(names) => names.files,
        Work::Data(_) | Work::Objects(_) if phase_ms(phase) > 0 => return None,
        Work::Objects(work) => work.objects,
        Work::Data(data) => phase.bytes_per_worker()? / data.request_bytes.max(1),
    };
    per_worker.checked_mul(u64::from(phase.jobs))
}

/// A map of parameters from pairs.
fn parameters<const N: usize>(pairs: [(&str, String); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Texts with commas between them.
fn list<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    items.join(",")
}

/// Bytes of the file of each worker: whole requests, of a working set that all of them share.
fn file_of_each(
    working_set_bytes: u64,
    workers: u64,
    request_bytes: u64,
) -> Result<u64, SuiteError> {
    match working_set_bytes / workers / request_bytes * request_bytes {
        0 => Err(SuiteError::Setting(format!(
            "a working set of {} is less than one request of {} for each of {workers} workers; choose a larger one",
            format_size(working_set_bytes),
            format_size(request_bytes),
        ))),
        file_bytes => Ok(file_bytes),
    }
}

/// A layout with a file for each worker.
fn per_worker(bytes: u64) -> Layout {
    Layout::PerWorker { bytes }
}
