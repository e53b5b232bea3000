//! The seam between suites and what makes the load.
//!
//! Owns: what a suite asks of an engine. Must not know: how an engine does it.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::plan::{DataPattern, Phase};
use crate::result::PhaseResult;

/// The folder in the target that all files of a run are in. All clients of a run share it, so that
/// each can read what another wrote; preparing where another client has made it already is no error,
/// nor is cleaning up where it is gone.
pub const RUN_FOLDER: &str = "cairn-bench";

/// Which of the machines that work together this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRank {
    pub client: u32,
    pub client_count: u32,
}

/// The progress of a run, and the wish to stop it: the display reads it, and the caller that ends the run sets it.
#[derive(Clone, Default)]
pub struct Control(Arc<ControlInner>);

#[derive(Default)]
struct ControlInner {
    stop: AtomicBool,
    operations: AtomicU64,
    bytes: AtomicU64,
    latency_ns: AtomicU64,
    gate: Mutex<Gate>,
    gate_changed: Condvar,
}

/// Where a phase is on its way to the start of its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// [`Control::begin`] returns at once.
    #[default]
    Open,
    /// [`Control::begin`] will wait.
    Held,
    /// The engine waits in [`Control::begin`].
    Ready,
    /// The clock runs.
    Begun,
}

impl Control {
    /// Asks the engine to end the phase with what there is.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        // Under the lock, so that an engine that is about to wait sees it.
        let _gate = self.0.gate.lock();
        self.0.gate_changed.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.0.stop.load(Ordering::Acquire)
    }

    /// Called by the engine right before the clock of a phase starts, when all files that it needs are
    /// there: waits until all clients are so far. It blocks, so not inside of a task.
    pub fn begin(&self) {
        let mut gate = self.0.gate.lock();
        if *gate == Gate::Held {
            *gate = Gate::Ready;
            while *gate == Gate::Ready && !self.is_stopped() {
                self.0.gate_changed.wait(&mut gate);
            }
        }
        *gate = Gate::Begun;
    }

    /// Before a phase: whether [`Self::begin`] will wait for [`Self::go`].
    pub fn arm(&self, held: bool) {
        *self.0.gate.lock() = if held { Gate::Held } else { Gate::Open };
    }

    /// Lets the engine begin.
    pub fn go(&self) {
        let mut gate = self.0.gate.lock();
        if matches!(*gate, Gate::Held | Gate::Ready) {
            *gate = Gate::Open;
        }
        self.0.gate_changed.notify_all();
    }

    pub fn gate(&self) -> Gate {
        *self.0.gate.lock()
    }

    /// Counts what was done, for progress.
    pub fn done(&self, operations: u64, bytes: u64) {
        self.0.operations.fetch_add(operations, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts how long requests took together, for progress.
    pub fn took(&self, ns: u64) {
        self.0.latency_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// What requests took together so far, over all phases, where the engine says so: with [`Self::so_far`] their mean.
    pub fn took_so_far_ns(&self) -> u64 {
        self.0.latency_ns.load(Ordering::Relaxed)
    }

    /// Operations and bytes so far, over all phases.
    pub fn so_far(&self) -> (u64, u64) {
        (
            self.0.operations.load(Ordering::Relaxed),
            self.0.bytes.load(Ordering::Relaxed),
        )
    }
}

/// Why a phase has no result at all. Requests that fail are counted in the result instead; a server
/// that vanishes ends the phase with `PhaseResult::partial`.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("{0}")]
    Target(String),
    #[error("{0}")]
    Setting(String),
    #[error("{0}")]
    Engine(String),
}

/// Does something with a target outside of phases, on this thread. Errors begin with how the target is called.
pub(crate) fn at_target<T, E: Display>(
    target: &impl Display,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, EngineError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| EngineError::Engine(format!("starting a runtime: {error}")))?;
    let done = runtime.block_on(work);
    done.map_err(|error| EngineError::Target(format!("{target}: {error}")))
}

/// What makes the load on one target. Calls block; they are made one after the other.
pub trait Engine: Send {
    /// `cairn-nfs 0.1.0`, `fio-3.33`.
    fn version(&self) -> String;
    /// Checks the target before anything is written: it is there, a directory, empty unless
    /// `allow_files`, writable, with at least `bytes_needed` free. Makes the folder that all files of
    /// this run are in.
    fn prepare(&mut self, bytes_needed: u64, allow_files: bool) -> Result<(), EngineError>;
    /// Runs one phase. Files that it needs and no phase before wrote are written first, outside of
    /// the clock.
    fn run(
        &mut self,
        phase: &Phase,
        pattern: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError>;
    /// Makes what was written cold where that is possible; says what it did, in words.
    fn drop_caches(&mut self) -> String;
    /// Removes all files of this run.
    fn clean_up(&mut self) -> Result<(), EngineError>;
    /// Type, source and options of the mount that the target is on, where it is a path.
    fn mount(&self) -> Option<String> {
        None
    }
    /// What a reader must know to judge the phases since the last call, each a sentence.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}
