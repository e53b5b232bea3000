//! Load on an NFS server by our own client: no mount, no root, no kernel.
//!
//! Owns: what a phase means on an NFS server, which files it needs, what is there already.
//! Must not know: suites, other engines, how the requests in flight are kept.

mod data;
mod files;
mod names;
mod share;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cairn_base::units::format_size;
use cairn_nfs_client::v3::FileHandle;
use cairn_nfs_client::{Client, Error, NfsUrl, Node};

use crate::drive::{self, Course, DriveError, Job, Outcome, Settle};
use crate::engine::{Control, Engine, EngineError, Place, RUN_FOLDER};
use crate::latency;
use crate::pattern::{Data, STAMP_LEN_BYTES};
use crate::plan::{
    DEPTH_MAX, DataPattern, DataWork, Direction, End, Fsync, JOB_COUNT_MAX, Layout, NamesOperation,
    NamesWork, Order, Phase, Work,
};
use crate::result::{PhaseResult, WorkerResult};

use data::{DataPlan, Spec};
use names::{NamesPlan, NamesSpec};
use share::Share;

/// Connections of one client, unless the URL says how many; more jobs share them.
pub const CONNECTION_COUNT_MAX: usize = 64;
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
const CALLS_MAX: usize = 4096;
/// A server that is silent for so long is lost. A COMMIT of much data takes a while.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Failures in a row that end a phase.
const ERRORS_IN_ROW_MAX: u64 = 1000;
/// Buffers for the parts of a large READ that are kept for the next one.
const READ_PIECES_MAX: usize = 64;
/// Requests by which files are written that a phase needs, and how many are in flight.
const FILL_REQUEST_BYTES: u64 = 1 << 20;
const FILL_DEPTH: u64 = 16;
const FILL_BUFFER_BYTES_MAX: u64 = 1 << 30;
/// Names that an empty directory may have.
const IGNORED_NAMES: [&[u8]; 2] = [b"lost+found", b".snapshot"];

/// One target, and what was written to it.
pub struct NfsEngine {
    url: NfsUrl,
    is_prepared: bool,
    pass_count: u64,
    /// Bytes at the front of a share, by the file set and the place of the share.
    written: HashMap<(String, Share), u64>,
    /// By the file set, whether all are in one directory, and the worker.
    names: HashMap<(String, bool, u64), NamesThere>,
}

/// The names of one worker.
#[derive(Clone, Copy, Default)]
struct NamesThere {
    created: u64,
    /// How often all of them were renamed.
    generation: u64,
    /// Only a part was removed or renamed, or something failed.
    is_unclear: bool,
}

/// Why a pass over the files did not begin.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("{0}")]
    Drive(#[from] DriveError),
    #[error("preparing {name}: {error}")]
    Prepare { name: String, error: Error },
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

impl NfsEngine {
    /// Nothing is connected before [`Engine::prepare`].
    pub fn new(url: &NfsUrl) -> Result<Self, EngineError> {
        Ok(Self {
            url: url.clone(),
            is_prepared: false,
            pass_count: 0,
            written: HashMap::new(),
            names: HashMap::new(),
        })
    }

    /// Connects, and does something in the directory that the URL names.
    fn in_target<T>(
        &self,
        action: impl AsyncFnOnce(&Client, Node) -> Result<T, Error>,
    ) -> Result<T, EngineError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| EngineError::Engine(format!("starting a runtime: {error}")))?;
        let done = runtime.block_on(async {
            let settings = drive::client_settings(CALLS_MAX, REPLY_TIMEOUT);
            let client = Client::connect(&self.url, settings).await?;
            let target = client.resolve_url(true).await?;
            action(&client, target).await
        });
        done.map_err(|error: Error| EngineError::Target(format!("{}: {error}", self.url)))
    }

    /// The folder of a file set, made if it is not there.
    fn folder(&self, fileset: &str) -> Result<FileHandle, EngineError> {
        self.in_target(async |client, target| {
            let run = files::directory(client, target.handle, RUN_FOLDER).await?;
            files::directory(client, run, fileset).await
        })
    }

    fn connection_count(&self, jobs: u32) -> usize {
        let most = self.url.nconnect.map_or(CONNECTION_COUNT_MAX, usize::from);
        (jobs as usize).clamp(1, most.max(1))
    }

    fn course(&self, phase: &Phase) -> Course {
        Course {
            job_count: phase.jobs as usize,
            connection_count: self.connection_count(phase.jobs),
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

    fn next_pass(&mut self) -> u64 {
        self.pass_count += 1;
        self.pass_count
    }

    fn run_data(
        &mut self,
        phase: &Phase,
        work: &DataWork,
        pattern: &DataPattern,
        place: Place,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let workers = Workers::new(phase, place);
        let shares = shares(work, &workers)?;
        let folder = self.folder(&phase.fileset)?;
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
            let filled = self.fill(phase, folder, &shares, &workers, pattern, control)?;
            if let Some(reason) = filled {
                return Ok(PhaseResult::nothing(phase, reason));
            }
        }
        let pass = self.next_pass();
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
            folder,
            direction: work.direction,
            order: work.order,
            request_bytes: work.request_bytes,
            with_rest: false,
            once: runtime.is_none(),
            is_stable: work.fsync == Fsync::EachRequest,
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
            ..self.course(phase)
        };
        let outcome =
            drive::drive(&self.url, &plan, &course, control).map_err(EngineError::from)?;
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
    fn fill(
        &mut self,
        phase: &Phase,
        folder: FileHandle,
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
        let pass = self.next_pass();
        let plan = DataPlan {
            folder,
            direction: Direction::Write,
            order: Order::Sequential,
            request_bytes,
            with_rest: true,
            once: true,
            is_stable: false,
            depth,
            data: Data::new(pattern, pass),
            seed: pattern.seed,
            specs,
        };
        let course = Course {
            depth,
            settle: Settle::InClock,
            quiet: true,
            ..self.course(phase)
        };
        let outcome =
            drive::drive(&self.url, &plan, &course, control).map_err(EngineError::from)?;
        self.note_written(phase, shares, &outcome);
        why_not_prepared(&outcome, "the files of this phase")
    }

    fn note_written(&mut self, phase: &Phase, shares: &[Share], outcome: &Outcome<data::DataJob>) {
        let is_sure = outcome.tally.error_count == 0;
        for ((_, job), share) in outcome.jobs.iter().zip(shares) {
            let bytes = self.written.entry(key(phase, share)).or_default();
            if is_sure && outcome.partial.is_none() {
                *bytes = job.bytes_written().max(*bytes);
            }
        }
    }

    fn run_names(
        &mut self,
        phase: &Phase,
        work: &NamesWork,
        place: Place,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let workers = Workers::new(phase, place);
        let folder = self.folder(&phase.fileset)?;
        let there: Vec<NamesThere> = workers
            .own()
            .map(|worker| self.names.get(&names_key(phase, work, worker)))
            .map(|there| there.copied().unwrap_or_default())
            .collect();
        let is_create = work.operation == NamesOperation::Create;
        let is_ready = |it: &NamesThere| match is_create {
            true => it.created == 0 && !it.is_unclear,
            false => it.created >= work.files && !it.is_unclear,
        };
        if !there.iter().all(is_ready) {
            self.remove_names(phase, work, folder, &workers)?;
            if !is_create {
                let create = NamesWork {
                    operation: NamesOperation::Create,
                    ..work.clone()
                };
                let quiet = Course {
                    quiet: true,
                    ..self.course(phase)
                };
                let outcome = self.names_pass(phase, &create, folder, &workers, &quiet, control)?;
                if let Some(reason) = why_not_prepared(&outcome, "the names of this phase")? {
                    return Ok(PhaseResult::nothing(phase, reason));
                }
            }
        }
        let mut course = self.course(phase);
        if work.operation == NamesOperation::Readdir {
            // Each page says where the next one begins.
            course.depth = 1;
        }
        let outcome = self.names_pass(phase, work, folder, &workers, &course, control)?;
        Ok(result(phase, place, outcome))
    }

    fn names_pass(
        &mut self,
        phase: &Phase,
        work: &NamesWork,
        folder: FileHandle,
        workers: &Workers,
        course: &Course,
        control: &Control,
    ) -> Result<Outcome<names::NamesJob>, EngineError> {
        let specs = workers.own().map(|worker| {
            let there = self.names.get(&names_key(phase, work, worker)).copied();
            let there = there.unwrap_or_default();
            NamesSpec {
                worker,
                files: work.files,
                generation: there.generation,
            }
        });
        let plan = NamesPlan {
            folder,
            operation: work.operation,
            one_directory: work.one_directory,
            specs: specs.collect(),
        };
        let outcome = drive::drive(&self.url, &plan, course, control).map_err(EngineError::from)?;
        let is_sure = outcome.tally.error_count == 0 && outcome.partial.is_none();
        for ((_, job), worker) in outcome.jobs.iter().zip(workers.own()) {
            let there = self
                .names
                .entry(names_key(phase, work, worker))
                .or_default();
            there.changed(work.operation, job.begun(), is_sure);
        }
        Ok(outcome)
    }

    /// Removes all names of this client's workers in a file set.
    fn remove_names(
        &mut self,
        phase: &Phase,
        work: &NamesWork,
        folder: FileHandle,
        workers: &Workers,
    ) -> Result<(), EngineError> {
        let own = workers.own();
        self.in_target(async |client, _| {
            let dirs = match work.one_directory {
                true => vec![files::names_dir(None)],
                false => own.clone().map(|it| files::names_dir(Some(it))).collect(),
            };
            for dir in dirs {
                let Some(dir) = client.child_if_there(folder, dir.as_bytes()).await? else {
                    continue;
                };
                let is_own = |name: &[u8]| {
                    files::worker_of(name).is_some_and(|worker| own.contains(&worker))
                };
                files::remove_names(client, dir.handle, is_own).await?;
            }
            Ok(())
        })?;
        for worker in workers.own() {
            self.names.remove(&names_key(phase, work, worker));
        }
        Ok(())
    }
}

impl NamesThere {
    /// After an operation on the first `count` names.
    fn changed(&mut self, operation: NamesOperation, count: u64, is_sure: bool) {
        match operation {
            NamesOperation::Stat | NamesOperation::Readdir => return,
            NamesOperation::Create => self.created = count,
            NamesOperation::Rename if count == self.created => self.generation += 1,
            NamesOperation::Unlink if count == self.created => *self = Self::default(),
            NamesOperation::Rename | NamesOperation::Unlink => self.is_unclear = true,
        }
        self.is_unclear |= !is_sure;
    }
}

impl Engine for NfsEngine {
    fn version(&self) -> String {
        concat!("cairn-nfs ", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn prepare(&mut self, bytes_needed: u64, allow_files: bool) -> Result<(), EngineError> {
        enum Problem {
            NotDirectory,
            NotEmpty(String),
            OldFiles(String),
            NoSpace(u64),
        }
        let problem = self.in_target(async |client, target| {
            if !target.is_directory() {
                return Ok(Some(Problem::NotDirectory));
            }
            if !allow_files {
                let is_ignored =
                    |name: &[u8]| name == RUN_FOLDER.as_bytes() || IGNORED_NAMES.contains(&name);
                if let Some(name) = files::first_name(client, target.handle, is_ignored).await? {
                    return Ok(Some(Problem::NotEmpty(name)));
                }
                let run = client
                    .child_if_there(target.handle, RUN_FOLDER.as_bytes())
                    .await?;
                if let Some(run) = run
                    && let Some(name) = files::first_name(client, run.handle, |_| false).await?
                {
                    return Ok(Some(Problem::OldFiles(name)));
                }
            }
            let available_bytes = client.fs_stat(target.handle).await?.available_bytes;
            if available_bytes < bytes_needed {
                return Ok(Some(Problem::NoSpace(available_bytes)));
            }
            files::directory(client, target.handle, RUN_FOLDER).await?;
            Ok(None)
        })?;
        let url = &self.url;
        let problem = problem.map(|problem| match problem {
            Problem::NotDirectory => format!("{url} is not a directory; name one to write into"),
            Problem::NotEmpty(name) => format!(
                "{url} is not empty, it has `{name}`: choose an empty directory, or allow files"
            ),
            Problem::OldFiles(name) => format!(
                "{url} has files of another run in {RUN_FOLDER}/{name}: remove them, or allow files"
            ),
            Problem::NoSpace(available_bytes) => format!(
                "{url} has {} free, and this needs {}: make it smaller, or make room",
                format_size(available_bytes),
                format_size(bytes_needed)
            ),
        });
        match problem {
            Some(problem) => Err(EngineError::Target(problem)),
            None => {
                self.is_prepared = true;
                Ok(())
            }
        }
    }

    fn run(
        &mut self,
        phase: &Phase,
        pattern: &DataPattern,
        place: Place,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        check(phase, place)?;
        match &phase.work {
            Work::Data(work) => self.run_data(phase, work, pattern, place, control),
            Work::Names(work) => self.run_names(phase, work, place, control),
        }
    }

    fn drop_caches(&mut self) -> String {
        "Our own NFS client keeps no cache; what the server keeps in its memory stays there."
            .to_owned()
    }

    fn clean_up(&mut self) -> Result<(), EngineError> {
        if !self.is_prepared {
            return Ok(());
        }
        self.written.clear();
        self.names.clear();
        let removed = self.in_target(async |client, target| {
            files::remove_run(client, target.handle, RUN_FOLDER).await
        });
        removed.map_err(|error| {
            EngineError::Target(format!(
                "the files in {RUN_FOLDER} are still there: {error}"
            ))
        })
    }
}

/// The workers of this client among those of all.
struct Workers {
    first: u64,
    end: u64,
    count: u64,
}

impl Workers {
    fn new(phase: &Phase, place: Place) -> Self {
        let jobs = u64::from(phase.jobs);
        let first = u64::from(place.client) * jobs;
        Self {
            first,
            end: first + jobs,
            count: u64::from(place.client_count) * jobs,
        }
    }

    fn own(&self) -> std::ops::Range<u64> {
        self.first..self.end
    }
}

fn key(phase: &Phase, share: &Share) -> (String, Share) {
    (phase.fileset.clone(), share.place())
}

fn names_key(phase: &Phase, work: &NamesWork, worker: u64) -> (String, bool, u64) {
    (phase.fileset.clone(), work.one_directory, worker)
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

fn refused(reason: String) -> EngineError {
    EngineError::Setting(reason)
}

/// Whether a phase makes sense here.
fn check(phase: &Phase, place: Place) -> Result<(), EngineError> {
    let within = |what: &str, value: u64, min: u64, max: u64| match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(refused(format!(
            "{what} must be from {min} to {max}, not {value}"
        ))),
    };
    if !files::is_fileset(phase.fileset.as_bytes()) {
        let name = &phase.fileset;
        return Err(refused(format!(
            "`{name}` is no name of a file set: up to 32 of a-z, 0-9 and -"
        )));
    }
    if place.client >= place.client_count {
        let Place {
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
    Ok(())
}

/// Why a phase must not begin after this was to prepare it; an error if that is not for the user to say.
fn why_not_prepared<J: Job>(
    outcome: &Outcome<J>,
    what: &str,
) -> Result<Option<String>, EngineError> {
    match (&outcome.tally.first_error, &outcome.partial) {
        (Some(error), _) => Err(EngineError::Target(format!("writing {what}: {error}"))),
        (None, reason) => Ok(reason.clone()),
    }
}

fn result<J>(phase: &Phase, place: Place, outcome: Outcome<J>) -> PhaseResult {
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
