//! Names phases on a path, as mdtest makes them: own threads, one call of the system after the other.
//!
//! Owns: the names of files and directories, which of them are there. Must not know: fio, suites.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::{PathEngine, place};
use crate::engine::{ClientRank, Control, EngineError};
use crate::latency;
use crate::plan::{NamesOperation, NamesWork, Phase};
use crate::result::{PhaseResult, WorkerResult};
use crate::samples::Samples;

/// Threads of one phase: workers times their requests in flight.
const THREAD_COUNT_MAX: u32 = 1024;
/// A worker gives up after so many errors.
const ERROR_COUNT_MAX: u64 = 100;
/// Entries of a directory that are counted together.
const ENTRY_BATCH: u64 = 1024;

/// Which names of a file set are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    shape: Shape,
    names: Names,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    jobs: u32,
    files: u64,
    one_directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Created,
    Renamed,
    /// Some phase did not come to its end.
    Unknown,
}

/// The names of one worker.
#[derive(Clone)]
struct Worker {
    directory: PathBuf,
    /// Over all clients.
    index: u64,
    files: u64,
}

impl Worker {
    fn created(&self, file: u64) -> PathBuf {
        self.directory.join(format!("f{:05}-{file:08}", self.index))
    }

    fn renamed(&self, file: u64) -> PathBuf {
        self.directory.join(format!("r{:05}-{file:08}", self.index))
    }
}

/// What one thread did.
struct Tally {
    operations: u64,
    errors: u64,
    first_error: Option<String>,
    gave_up: bool,
    latency: Histogram<u64>,
    samples: Samples,
    end: Duration,
}

impl PathEngine {
    pub(super) fn run_names(
        &mut self,
        phase: &Phase,
        work: &NamesWork,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let threads = phase.jobs.checked_mul(phase.depth);
        if threads.is_none_or(|threads| threads > THREAD_COUNT_MAX) {
            return Err(EngineError::Setting(format!(
                "{} workers with {} requests in flight are more than the {THREAD_COUNT_MAX} threads that \
                 a names phase on a path has",
                phase.jobs, phase.depth
            )));
        }
        let workers = self.workers(phase, work, place);
        let mut directories: Vec<PathBuf> = workers
            .iter()
            .map(|worker| worker.directory.clone())
            .collect();
        directories.dedup();
        for directory in &directories {
            place::make_folder(directory)?;
        }
        let names = self.make_ready(phase, work, &workers, control)?;
        control.begin();
        let (tallies, foreground) =
            run_threads(&workers, phase.depth, work.operation, names, control);
        let start = Instant::now();
        let changes = !matches!(
            work.operation,
            NamesOperation::Stat | NamesOperation::Readdir
        );
        let synced = if changes {
            sync_directories(&directories)
        } else {
            Ok(())
        };
        let drained = if changes {
            foreground + start.elapsed()
        } else {
            foreground
        };
        let result = result(phase, place, tallies, foreground, drained, synced, control);
        self.remember(
            phase,
            work,
            names,
            result.partial.is_none() && result.errors == 0,
        );
        Ok(result)
    }

    fn workers(&self, phase: &Phase, work: &NamesWork, place: ClientRank) -> Vec<Worker> {
        let fileset = self.folder.join(&phase.fileset);
        let first = u64::from(phase.jobs) * u64::from(place.client);
        (first..first + u64::from(phase.jobs))
            .map(|index| Worker {
                directory: match work.one_directory {
                    true => fileset.join("all"),
                    false => fileset.join(format!("d{index:05}")),
                },
                index,
                files: work.files,
            })
            .collect()
    }

    /// Brings the names into the state that the phase starts from, outside of the clock.
    fn make_ready(
        &mut self,
        phase: &Phase,
        work: &NamesWork,
        workers: &[Worker],
        control: &Control,
    ) -> Result<Names, EngineError> {
        let shape = shape(phase, work);
        let there = self.names.get(&phase.fileset).copied();
        let ready = |done: Result<(), String>| done.map_err(EngineError::Target);
        match (work.operation, there) {
            (NamesOperation::Create, None) => Ok(Names::Created),
            (NamesOperation::Create, Some(_)) => {
                ready(quietly(workers, control, |worker, file| {
                    absent_is_fine(fs::remove_file(worker.created(file)))?;
                    absent_is_fine(fs::remove_file(worker.renamed(file)))
                }))?;
                Ok(Names::Created)
            }
            (_, Some(state)) if state.shape == shape && state.names != Names::Unknown => {
                Ok(state.names)
            }
            _ => {
                ready(quietly(workers, control, |worker, file| {
                    absent_is_fine(fs::remove_file(worker.renamed(file)))?;
                    create(&worker.created(file)).or_else(|error| match error.kind() {
                        io::ErrorKind::AlreadyExists => Ok(()),
                        _ => Err(error),
                    })
                }))?;
                Ok(Names::Created)
            }
        }
    }

    fn remember(&mut self, phase: &Phase, work: &NamesWork, before: Names, whole: bool) {
        let names = match (work.operation, before) {
            (NamesOperation::Stat | NamesOperation::Readdir, before) => before,
            _ if !whole => Names::Unknown,
            (NamesOperation::Create, _) => Names::Created,
            (NamesOperation::Rename, Names::Renamed) => Names::Created,
            (NamesOperation::Rename, _) => Names::Renamed,
            (NamesOperation::Unlink, _) => {
                self.names.remove(&phase.fileset);
                return;
            }
        };
        let shape = shape(phase, work);
        self.names
            .insert(phase.fileset.clone(), State { shape, names });
    }
}

fn shape(phase: &Phase, work: &NamesWork) -> Shape {
    Shape {
        jobs: phase.jobs,
        files: work.files,
        one_directory: work.one_directory,
    }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map(drop)
}

/// Does something for every file, one thread per worker, without counting.
fn quietly(
    workers: &[Worker],
    control: &Control,
    of_file: impl Fn(&Worker, u64) -> io::Result<()> + std::marker::Sync,
) -> Result<(), String> {
    thread::scope(|scope| {
        let of_file = &of_file;
        let threads: Vec<_> = workers
            .iter()
            .map(|worker| {
                scope.spawn(move || {
                    for file in 0..worker.files {
                        if control.is_stopped() {
                            break;
                        }
                        of_file(worker, file)
                            .map_err(|error| format!("{}: {error}", worker.directory.display()))?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })
}

/// Runs all threads from one start; what each worker's did, and when the last ended.
fn run_threads(
    workers: &[Worker],
    depth: u32,
    operation: NamesOperation,
    names: Names,
    control: &Control,
) -> (Vec<Vec<Tally>>, Duration) {
    // A listing is one request, whatever the depth.
    let depth = if operation == NamesOperation::Readdir {
        1
    } else {
        u64::from(depth.max(1))
    };
    let barrier = Barrier::new(workers.len() * depth as usize);
    let tallies: Vec<Vec<Tally>> = thread::scope(|scope| {
        let barrier = &barrier;
        let threads: Vec<Vec<_>> = workers
            .iter()
            .map(|worker| {
                let share = |index: u64| {
                    let each = worker.files.div_ceil(depth);
                    (index * each).min(worker.files)..((index + 1) * each).min(worker.files)
                };
                let start = |index| {
                    let files = share(index);
                    scope.spawn(move || {
                        barrier.wait();
                        let mut tally = Tally::new();
                        let start = Instant::now();
                        match operation {
                            NamesOperation::Readdir => tally.list(worker, start, control),
                            _ => tally.each(worker, files, operation, names, start, control),
                        }
                        tally.end = start.elapsed();
                        tally
                    })
                };
                (0..depth).map(start).collect()
            })
            .collect();
        let joined = |threads: Vec<thread::ScopedJoinHandle<'_, Tally>>| {
            threads
                .into_iter()
                .filter_map(|thread| thread.join().ok())
                .collect()
        };
        threads.into_iter().map(joined).collect()
    });
    let end = tallies.iter().flatten().map(|tally| tally.end).max();
    (tallies, end.unwrap_or_default())
}

impl Tally {
    fn new() -> Self {
        Self {
            operations: 0,
            errors: 0,
            first_error: None,
            gave_up: false,
            latency: latency::histogram(),
            samples: Samples::default(),
            end: Duration::ZERO,
        }
    }

    fn each(
        &mut self,
        worker: &Worker,
        files: Range<u64>,
        operation: NamesOperation,
        names: Names,
        start: Instant,
        control: &Control,
    ) {
        for file in files {
            if control.is_stopped() || self.gave_up {
                return;
            }
            let (from, to) = match names {
                Names::Renamed => (worker.renamed(file), worker.created(file)),
                _ => (worker.created(file), worker.renamed(file)),
            };
            let begin = Instant::now();
            let done = match operation {
                NamesOperation::Create => create(&from),
                NamesOperation::Stat => fs::symlink_metadata(&from).map(drop),
                NamesOperation::Rename => fs::rename(&from, &to),
                NamesOperation::Unlink => fs::remove_file(&from),
                NamesOperation::Readdir => Ok(()),
            };
            let end = Instant::now();
            match done {
                Ok(()) => self.count(1, end.duration_since(start), control),
                Err(error) => self.fail(&from, &error),
            }
            self.time(end.duration_since(begin));
        }
    }

    /// Lists the directory of a worker; an operation is an entry, a latency that of the whole listing.
    fn list(&mut self, worker: &Worker, start: Instant, control: &Control) {
        let entries = match fs::read_dir(&worker.directory) {
            Ok(entries) => entries,
            Err(error) => return self.fail(&worker.directory, &error),
        };
        let mut batch = 0;
        for entry in entries {
            match entry {
                Ok(_) => batch += 1,
                Err(error) => {
                    self.fail(&worker.directory, &error);
                    break;
                }
            }
            if batch == ENTRY_BATCH {
                self.count(batch, start.elapsed(), control);
                batch = 0;
                if control.is_stopped() {
                    return;
                }
            }
        }
        self.count(batch, start.elapsed(), control);
        self.time(start.elapsed());
    }

    fn count(&mut self, operations: u64, at: Duration, control: &Control) {
        if operations > 0 {
            self.operations += operations;
            self.samples.add(at, operations, 0);
            control.done(operations, 0);
        }
    }

    fn time(&mut self, took: Duration) {
        self.latency
            .saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    fn fail(&mut self, path: &Path, error: &io::Error) {
        self.errors += 1;
        self.first_error
            .get_or_insert_with(|| format!("{}: {error}", path.display()));
        self.gave_up = self.errors >= ERROR_COUNT_MAX;
    }
}

/// Changes of names are stable when their directories are.
fn sync_directories(directories: &[PathBuf]) -> io::Result<()> {
    directories
        .iter()
        .try_for_each(|directory| File::open(directory)?.sync_all())
}

fn result(
    phase: &Phase,
    place: ClientRank,
    tallies: Vec<Vec<Tally>>,
    foreground: Duration,
    drained: Duration,
    synced: io::Result<()>,
    control: &Control,
) -> PhaseResult {
    let mut result = PhaseResult::nothing(phase, String::new());
    result.partial = None;
    let mut sum = latency::histogram();
    let mut samples = Samples::default();
    for of_worker in tallies {
        let operations = of_worker.iter().map(|tally| tally.operations).sum();
        let end = of_worker
            .iter()
            .map(|tally| tally.end)
            .max()
            .unwrap_or_default();
        result.workers.push(WorkerResult {
            client: place.client as usize,
            operations,
            bytes: 0,
            seconds: end.as_secs_f64(),
        });
        result.operations += operations;
        for tally in of_worker {
            result.errors += tally.errors;
            result.first_error = result.first_error.or(tally.first_error);
            if tally.gave_up {
                result.partial = Some(format!("a worker gave up after {ERROR_COUNT_MAX} errors"));
            }
            samples.merge(tally.samples);
            latency::add(&mut sum, &tally.latency);
        }
    }
    if let Err(error) = synced {
        result.errors += 1;
        result
            .first_error
            .get_or_insert(format!("fsync of a directory: {error}"));
    }
    if control.is_stopped() {
        result.partial = Some(super::data::STOPPED.to_owned());
    }
    result.foreground_seconds = foreground.as_secs_f64();
    result.drained_seconds = drained.as_secs_f64();
    result.samples = samples.to_list(foreground);
    result.latency = latency::latency(&sum);
    result
}
