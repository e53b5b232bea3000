//! Runs a plan: phase after phase, with what there is at the end.
//!
//! Owns: the order of checks, phases and cleaning up; what makes a result partial.
//! Must not know: whether one engine or many agents do the work.

use std::collections::BTreeSet;
use std::time::SystemTime;

use cairn_base::time::rfc3339_utc;

use super::machine::{host_name, machine};
use super::{Plan, Step, four_corners, ior, iozone, metadata, objects, read_cache};
use crate::engine::{ClientRank, Control, Engine, EngineError};
use crate::plan::{DataPattern, Phase};
use crate::result::{ClientInfo, Figure, PhaseResult, RunResult, SCHEMA, TargetInfo};

/// Notes of one result; what comes after them is left out.
const NOTE_COUNT_MAX: usize = 100;

/// What does the phases: one engine here, or agents elsewhere.
pub trait Driver {
    /// As [`Engine::prepare`], on all clients; `bytes_needed` is over all of them.
    fn prepare(
        &mut self,
        bytes_needed: u64,
        allow_files: bool,
        control: &Control,
    ) -> Result<(), EngineError>;
    /// Runs one phase on all clients that are left. Fails when none is.
    fn run(
        &mut self,
        phase: &Phase,
        pattern: &DataPattern,
        control: &Control,
    ) -> Result<PhaseResult, EngineError>;
    /// As [`Engine::drop_caches`].
    fn drop_caches(&mut self, control: &Control) -> String;
    /// As [`Engine::clean_up`].
    fn clean_up(&mut self) -> Result<(), EngineError>;
    /// All clients, also those that failed.
    fn clients(&self) -> Vec<ClientInfo>;
    /// As [`Engine::mount`].
    fn mount(&self) -> Option<String>;
    /// As [`Engine::notes`].
    fn notes(&mut self) -> Vec<String>;
}

/// Is told how a run goes on.
pub trait Observer {
    fn phase_begins(&mut self, index: usize, plan: &Plan, control: &Control);
    fn phase_ends(&mut self, result: &PhaseResult);
    /// Something that the user must know now.
    fn warn(&mut self, message: &str);
}

/// What a run is besides its plan.
#[derive(Clone, Debug)]
pub struct Job {
    pub label: String,
    pub target: TargetInfo,
    pub pattern: DataPattern,
    /// The target may hold files of others.
    pub allow_files: bool,
    /// The files of the run stay.
    pub keep: bool,
    /// Caches are never dropped.
    pub keep_caches: bool,
}

/// One engine in this process.
pub struct Local {
    engine: Box<dyn Engine>,
}

impl Local {
    pub fn new(engine: Box<dyn Engine>) -> Self {
        Self { engine }
    }
}

impl Driver for Local {
    fn prepare(
        &mut self,
        bytes_needed: u64,
        allow_files: bool,
        _: &Control,
    ) -> Result<(), EngineError> {
        self.engine.prepare(bytes_needed, allow_files)
    }

    fn run(
        &mut self,
        phase: &Phase,
        pattern: &DataPattern,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        control.arm(false);
        let place = ClientRank {
            client: 0,
            client_count: 1,
        };
        self.engine.run(phase, pattern, place, control)
    }

    fn drop_caches(&mut self, _: &Control) -> String {
        self.engine.drop_caches()
    }

    fn clean_up(&mut self) -> Result<(), EngineError> {
        self.engine.clean_up()
    }

    fn clients(&self) -> Vec<ClientInfo> {
        vec![ClientInfo {
            name: host_name(),
            machine: machine(),
            engine: self.engine.version(),
            failed: None,
        }]
    }

    fn mount(&self) -> Option<String> {
        self.engine.mount()
    }

    fn notes(&mut self) -> Vec<String> {
        self.engine.notes()
    }
}

/// Runs `plan` to its end, or until `control` says stop or nothing works any more. The measurements
/// until then are the result, marked as partial. Fails only when nothing was measured at all.
pub fn run(
    plan: &Plan,
    job: &Job,
    driver: &mut dyn Driver,
    control: &Control,
    observer: &mut dyn Observer,
) -> Result<RunResult, EngineError> {
    let started = SystemTime::now();
    driver.prepare(plan.bytes_needed, job.allow_files, control)?;
    let mut state = State::default();
    if job.target.kind == "path" {
        state.notes.clone_from(&plan.path_notes);
    }
    for (index, step) in plan.steps.iter().enumerate() {
        if control.is_stopped() {
            let left = plan.steps.len() - index;
            state.partial(format!("it was stopped; {left} phases were not run"));
            break;
        }
        // The clock of the phase before has stopped: who watches must not take it for that of this one.
        control.arm(false);
        observer.phase_begins(index, plan, control);
        if let Err(error) = state.step(step, job, driver, control, observer) {
            let left = plan.steps.len() - index - 1;
            let name = &step.phase.name;
            state.partial(format!(
                "phase \"{name}\": {error}; {left} phases after it were not run"
            ));
            if state.phases.is_empty() {
                let _ = clean_up(job, driver, observer);
                return Err(error);
            }
            break;
        }
        if state.is_over {
            let left = plan.steps.len() - index - 1;
            if left > 0 {
                state.partial(format!("{left} phases after it were not run"));
            }
            break;
        }
    }
    if let Err(message) = clean_up(job, driver, observer) {
        state.notes.push(message);
    }
    let clients = driver.clients();
    for client in &clients {
        let is_named = state.partial.iter().any(|why| why.contains(&client.name));
        if let (Some(why), false) = (&client.failed, is_named) {
            state.partial(format!("without the client {}: {why}", client.name));
        }
    }
    Ok(RunResult {
        schema: SCHEMA.to_owned(),
        suite: plan.suite.to_owned(),
        label: job.label.clone(),
        started: rfc3339_utc(started),
        cairn_version: env!("CARGO_PKG_VERSION").to_owned(),
        partial: (!state.partial.is_empty()).then(|| state.partial.join("; ")),
        target: TargetInfo {
            mount: driver.mount(),
            ..job.target.clone()
        },
        clients,
        data: Some(job.pattern),
        cache: if state.caches.is_empty() {
            "nothing was done about caches".to_owned()
        } else {
            Vec::from_iter(state.caches).join("; ")
        },
        parameters: plan.parameters.clone(),
        summary: summary(plan.suite, &state.phases),
        phases: state.phases,
        notes: state.notes,
        credits: Vec::new(),
        reads: None,
    })
}

#[derive(Default)]
struct State {
    phases: Vec<PhaseResult>,
    /// How caches were treated: each way once.
    caches: BTreeSet<String>,
    notes: Vec<String>,
    partial: Vec<String>,
    is_over: bool,
}

impl State {
    fn partial(&mut self, why: String) {
        if !self.partial.contains(&why) && self.partial.len() < NOTE_COUNT_MAX {
            self.partial.push(why);
        }
    }

    fn step(
        &mut self,
        step: &Step,
        job: &Job,
        driver: &mut dyn Driver,
        control: &Control,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        if step.cold && !job.keep_caches {
            self.caches.insert(driver.drop_caches(control));
        }
        let failed_before = failed(driver);
        let result = driver.run(&step.phase, &job.pattern, control);
        for note in driver.notes() {
            if !self.notes.contains(&note) && self.notes.len() < NOTE_COUNT_MAX {
                self.notes.push(note);
            }
        }
        let result = result?;
        observer.phase_ends(&result);
        if failed(driver) > failed_before {
            observer.warn(&format!(
                "a client failed in phase \"{}\"; the run goes on with the others",
                result.name
            ));
        }
        if result.errors > 0 {
            self.partial(format!(
                "{} requests of phase \"{}\" failed",
                result.errors, result.name
            ));
        }
        if let Some(why) = &result.partial {
            self.partial(format!("phase \"{}\": {why}", result.name));
            // With clients left, the phase lacks those that failed; with none, all that follows fails too.
            self.is_over = failed(driver) == failed_before;
        }
        self.phases.push(result);
        Ok(())
    }
}

fn failed(driver: &dyn Driver) -> usize {
    let clients = driver.clients();
    clients
        .iter()
        .filter(|client| client.failed.is_some())
        .count()
}

/// Removes the files of the run, unless they are to stay; says what was not removed.
fn clean_up(job: &Job, driver: &mut dyn Driver, observer: &mut dyn Observer) -> Result<(), String> {
    if job.keep {
        return Ok(());
    }
    driver.clean_up().map_err(|error| {
        let message = format!("the files of the run were not all removed: {error}");
        observer.warn(&message);
        message
    })
}

/// The figures of a suite.
fn summary(suite: &str, phases: &[PhaseResult]) -> Vec<Figure> {
    match suite {
        four_corners::SUITE => four_corners::summary(phases),
        iozone::SUITE => iozone::summary(phases),
        ior::SUITE => ior::summary(phases),
        metadata::SUITE => metadata::summary(phases),
        objects::SUITE => objects::summary(phases),
        read_cache::SUITE => read_cache::summary(phases),
        _ => Vec::new(),
    }
}
