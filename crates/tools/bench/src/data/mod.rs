//! Phases of data on a target of our own clients: which bytes are needed, which are there already.
//!
//! Owns: what a phase of data means, its limits, the passes over the bytes, what of them was written.
//! Must not know: protocols, suites.

mod job;
pub mod share;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::drive::{self, Connector, Course, DriveError, Failed, Job, Outcome, Settle};
use crate::engine::{ClientRank, Control, EngineError};
use crate::latency;
use crate::pattern::{Data, STAMP_LEN_BYTES};
use crate::plan::{
    DEPTH_MAX, DataPattern, DataWork, Direction, End, FILESET_LEN_BYTES_MAX, Fsync, JOB_COUNT_MAX,
    Layout, Order, Phase, Work,
};
use crate::result::{PhaseResult, WorkerResult};

use job::{DataJob, DataPlan};
pub use job::{Object, Space, Spec};
use share::Share;

/// Requests in flight of all jobs of a client.
pub const IN_FLIGHT_MAX: u64 = 65_536;
/// Buffers of all jobs of a client together.
pub const BUFFER_BYTES_MAX: u64 = 4 << 30;
pub const REQUEST_BYTES_MIN: u64 = STAMP_LEN_BYTES as u64;
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Names of one worker.
pub const FILE_COUNT_MAX: u64 = 99_999_999;
/// Of a phase, its ramp included.
pub const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Calls on the wire of one connection.
pub const CALLS_MAX: usize = 4096;
/// A server that is silent for so long is lost. A COMMIT of much data takes a while.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Failures in a row that end a phase.
const ERRORS_IN_ROW_MAX: u64 = 1000;
/// Buffers for the parts of a large READ that are kept for the next one.
const READ_PIECES_MAX: usize = 64;
/// Requests by which files are written that a phase needs, and how many are in flight.
const FILL_REQUEST_BYTES: u64 = 1 << 20;
const FILL_DEPTH: u64 = 16;
const FILL_BUFFER_BYTES_MAX: u64 = 1 << 30;
/// Why a pass over the files did not begin.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    #[error("{0}")]
    Drive(#[from] DriveError),
    #[error("preparing {name}: {error}")]
    Prepare { name: String, error: Failed },
    #[error("there is no job {0}")]
    Job(usize),
}

impl From<PassError> for EngineError {
    fn from(error: PassError) -> Self {
        match error {
            PassError::Drive(DriveError::Thread(_)) | PassError::Job(_) => {
                Self::Engine(error.to_string())
            }
            _ => Self::Target(error.to_string()),
        }
    }
}

/// The passes of one target so far.
#[derive(Default)]
pub struct Passes {
    count: u64,
    /// Bytes at the front of a share, by the file set and the place of the share.
    written: HashMap<(String, Share), u64>,
}

/// The target of a pass.
pub struct Ground<'a, C, S> {
    pub connector: &'a C,
    pub space: &'a S,
    pub connection_count: usize,
}

impl Passes {
    /// Whatever was written is not there any more, or not for certain.
    pub fn forget(&mut self) {
        self.written.clear();
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Runs a phase of data, which [`check`] has seen.
    pub fn run<C: Connector, S: Space<Client = C::Client>>(
        &mut self,
        ground: &Ground<'_, C, S>,
        phase: &Phase,
        work: &DataWork,
        pattern: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let workers = Workers::new(phase, place);
        let shares = shares(work, &workers)?;
        let (ramp, runtime) = match work.end {
            End::Whole => (Duration::ZERO, None),
            End::After {
                ramp_ms,
                runtime_ms,
            } => {
                let runtime = Duration::from_millis(runtime_ms);
                (Duration::from_millis(ramp_ms), Some(runtime))
            }
        };
        let is_write = work.direction == Direction::Write;
        let needs_files = !is_write || (work.order == Order::Random && runtime.is_some());
        if needs_files {
            let filled = self.fill(ground, phase, &shares, &workers, pattern, control)?;
            if let Some(reason) = filled {
                return Ok(PhaseResult::nothing(phase, reason));
            }
        }
        let pass = self.next();
        let specs = workers.own().zip(&shares).map(|(worker, share)| {
            if is_write {
                return Ok(self.spec_to_write(phase, worker, share, 0));
            }
            let other = worker.wrapping_add(u64::from(work.reorder)) % workers.count;
            Ok(Spec {
                worker,
                share: share_of(work, &workers, other)?,
                skip_bytes: 0,
                truncate: false,
                is_foreign: !workers.own().contains(&other),
            })
        });
        let plan = DataPlan {
            space: ground.space,
            direction: work.direction,
            order: work.order,
            request_bytes: work.request_bytes,
            with_rest: false,
            once: runtime.is_none(),
            depth: phase.depth as usize,
            data: Data::new(pattern, pass),
            seed: pattern.seed.wrapping_add(pass << 32),
            specs: specs.collect::<Result<_, EngineError>>()?,
        };
        let course = Course {
            ramp,
            runtime,
            settle: match (is_write, work.fsync) {
                (false, _) | (true, Fsync::EachRequest) => Settle::Never,
                (true, Fsync::InClock) => Settle::InClock,
                (true, Fsync::After) => Settle::After,
            },
            ..course(phase, ground.connection_count)
        };
        let outcome =
            drive::drive(ground.connector, &plan, &course, control).map_err(EngineError::from)?;
        if is_write {
            self.note_written(phase, &shares, &outcome);
        }
        Ok(result(phase, place, outcome))
    }

    /// What a worker needs to write its share from `skip_bytes` on.
    fn spec_to_write(&self, phase: &Phase, worker: u64, share: &Share, skip_bytes: u64) -> Spec {
        let is_known = self.written.contains_key(&key(phase, share));
        Spec {
            worker,
            share: share.clone(),
            skip_bytes,
            // Somebody else may be writing to a shared file already.
            truncate: !is_known && matches!(share.file, share::File::OfWorker(_)),
            is_foreign: false,
        }
    }

    /// Writes what is missing of the files that a phase needs; why it must not begin, if it must not.
    fn fill<C: Connector, S: Space<Client = C::Client>>(
        &mut self,
        ground: &Ground<'_, C, S>,
        phase: &Phase,
        shares: &[Share],
        workers: &Workers,
        pattern: &DataPattern,
        control: &Control,
    ) -> Result<Option<String>, EngineError> {
        let there = |share: &Share| {
            let bytes = self.written.get(&key(phase, share)).copied();
            bytes.unwrap_or_default().min(share.len_bytes())
        };
        if shares.iter().all(|share| there(share) == share.len_bytes()) {
            return Ok(None);
        }
        let specs = workers.own().zip(shares);
        let specs =
            specs.map(|(worker, share)| self.spec_to_write(phase, worker, share, there(share)));
        let specs: Vec<Spec> = specs.collect();
        let run_bytes = shares.iter().map(Share::len_bytes).max().unwrap_or(1);
        let request_bytes = FILL_REQUEST_BYTES.min(run_bytes.max(1));
        let depth = FILL_BUFFER_BYTES_MAX / (request_bytes * u64::from(phase.jobs));
        let depth = depth.clamp(1, FILL_DEPTH) as usize;
        let pass = self.next();
        let plan = DataPlan {
            space: ground.space,
            direction: Direction::Write,
            order: Order::Sequential,
            request_bytes,
            with_rest: true,
            once: true,
            depth,
            data: Data::new(pattern, pass),
            seed: pattern.seed,
            specs,
        };
        let course = Course {
            depth,
            settle: Settle::InClock,
            quiet: true,
            ..course(phase, ground.connection_count)
        };
        let outcome =
            drive::drive(ground.connector, &plan, &course, control).map_err(EngineError::from)?;
        self.note_written(phase, shares, &outcome);
        why_not_prepared(&outcome, "the files of this phase")
    }

    fn note_written<O: Object>(
        &mut self,
        phase: &Phase,
        shares: &[Share],
        outcome: &Outcome<DataJob<O>>,
    ) {
        let is_sure = outcome.tally.error_count == 0;
        for ((_, job), share) in outcome.jobs.iter().zip(shares) {
            let bytes = self.written.entry(key(phase, share)).or_default();
            if is_sure && outcome.partial.is_none() {
                *bytes = job.bytes_written().max(*bytes);
            }
        }
    }
}

/// The course of a phase before what it is about says more.
pub fn course(phase: &Phase, connection_count: usize) -> Course {
    Course {
        job_count: phase.jobs as usize,
        connection_count,
        depth: phase.depth as usize,
        in_flight_max: CALLS_MAX,
        reply_timeout: REPLY_TIMEOUT,
        ramp: Duration::ZERO,
        runtime: None,
        settle: Settle::Never,
        errors_in_row_max: ERRORS_IN_ROW_MAX,
        quiet: false,
    }
}

/// The workers of this client among those of all.
pub struct Workers {
    first: u64,
    end: u64,
    count: u64,
}

impl Workers {
    pub fn new(phase: &Phase, place: ClientRank) -> Self {
        let jobs = u64::from(phase.jobs);
        let first = u64::from(place.client) * jobs;
        Self {
            first,
            end: first + jobs,
            count: u64::from(place.client_count) * jobs,
        }
    }

    /// Those of all clients.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn own(&self) -> std::ops::Range<u64> {
        self.first..self.end
    }
}

fn key(phase: &Phase, share: &Share) -> (String, Share) {
    (phase.fileset.clone(), share.place())
}

fn share_of(work: &DataWork, workers: &Workers, worker: u64) -> Result<Share, EngineError> {
    let share = Share::new(&work.layout, worker, workers.count);
    share.ok_or_else(|| refused("the files of all workers are larger than 8 EiB".to_owned()))
}

/// Those of this client's workers.
fn shares(work: &DataWork, workers: &Workers) -> Result<Vec<Share>, EngineError> {
    let own = workers.own();
    own.map(|worker| share_of(work, workers, worker)).collect()
}

pub fn refused(reason: String) -> EngineError {
    EngineError::Setting(reason)
}

/// Whether a phase makes sense here.
pub fn check(phase: &Phase, place: ClientRank) -> Result<(), EngineError> {
    let within = |what: &str, value: u64, min: u64, max: u64| match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(refused(format!(
            "{what} must be from {min} to {max}, not {value}"
        ))),
    };
    if !is_fileset(phase.fileset.as_bytes()) {
        let name = &phase.fileset;
        return Err(refused(format!(
            "`{name}` is no name of a file set: up to 32 of a-z, 0-9 and -"
        )));
    }
    if place.client >= place.client_count {
        let ClientRank {
            client,
            client_count,
        } = place;
        return Err(refused(format!(
            "there is no client {client} among {client_count}"
        )));
    }
    let (jobs, depth) = (u64::from(phase.jobs), u64::from(phase.depth));
    within("the number of jobs", jobs, 1, JOB_COUNT_MAX.into())?;
    within("the depth", depth, 1, DEPTH_MAX.into())?;
    within(
        "the number of jobs times the depth",
        jobs * depth,
        1,
        IN_FLIGHT_MAX,
    )?;
    let work = match &phase.work {
        Work::Data(work) => work,
        Work::Names(work) => {
            return within("the number of files", work.files, 1, FILE_COUNT_MAX);
        }
        Work::Objects(work) => {
            within("the number of objects", work.objects, 1, FILE_COUNT_MAX)?;
            let bytes_max = REQUEST_BYTES_MAX.min(BUFFER_BYTES_MAX / (jobs * depth));
            let bytes = work.object_bytes;
            return within(
                "the bytes of an object",
                bytes,
                REQUEST_BYTES_MIN,
                bytes_max,
            );
        }
    };
    let request_bytes_max = REQUEST_BYTES_MAX.min(BUFFER_BYTES_MAX / (jobs * depth));
    let request_bytes = work.request_bytes;
    within(
        "the bytes of a request",
        request_bytes,
        REQUEST_BYTES_MIN,
        request_bytes_max,
    )?;
    match work.layout {
        Layout::PerWorker { bytes } => {
            within("the bytes of a file", bytes, request_bytes, 1 << 62)?;
        }
        Layout::Shared {
            block_bytes,
            segments,
        } => {
            within("the bytes of a block", block_bytes, request_bytes, 1 << 62)?;
            within("the number of segments", segments, 1, 1 << 32)?;
            if !block_bytes.is_multiple_of(request_bytes) {
                return Err(refused(format!(
                    "a block of {block_bytes} bytes is not a multiple of a request of {request_bytes}"
                )));
            }
        }
    }
    if let End::After {
        ramp_ms,
        runtime_ms,
    } = work.end
    {
        let max = TIME_MAX.as_millis() as u64;
        within("the milliseconds of the ramp", ramp_ms, 0, max)?;
        within("the milliseconds of the run", runtime_ms, 1, max)?;
    }
    shares(work, &Workers::new(phase, place))?;
    Ok(())
}

/// Why a phase must not begin after this was to prepare it; an error if that is not for the user to say.
pub fn why_not_prepared<J: Job>(
    outcome: &Outcome<J>,
    what: &str,
) -> Result<Option<String>, EngineError> {
    match (&outcome.tally.first_error, &outcome.partial) {
        (Some(error), _) => Err(EngineError::Target(format!("writing {what}: {error}"))),
        (None, reason) => Ok(reason.clone()),
    }
}

pub fn result<J>(phase: &Phase, place: ClientRank, outcome: Outcome<J>) -> PhaseResult {
    let (tally, start) = (outcome.tally, outcome.start);
    let until = |end: Option<Instant>| {
        let time = end.map(|end| end.saturating_duration_since(start));
        time.unwrap_or_default().as_secs_f64()
    };
    let workers = tally.workers.iter().map(|worker| WorkerResult {
        client: place.client as usize,
        operations: worker.operation_count,
        bytes: worker.bytes,
        seconds: until(worker.end),
    });
    PhaseResult {
        operations: tally.operation_count,
        bytes: tally.bytes,
        errors: tally.error_count,
        foreground_seconds: outcome.foreground.as_secs_f64(),
        drained_seconds: outcome.drained.as_secs_f64(),
        load_cpu_seconds: Some(tally.cpu.as_secs_f64()),
        workers: workers.collect(),
        samples: tally.samples.to_list(outcome.foreground),
        latency: latency::latency(&tally.latency_ns),
        first_error: tally.first_error,
        partial: outcome.partial,
        ..PhaseResult::nothing(phase, String::new())
    }
}

pub fn is_fileset(name: &[u8]) -> bool {
    let is_good = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=FILESET_LEN_BYTES_MAX).contains(&name.len()) && name.iter().all(is_good)
}
