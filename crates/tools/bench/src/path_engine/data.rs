//! Data phases on a path, made by fio.
//!
//! Owns: which worker has which bytes, filling files, the drained clock.
//! Must not know: options of fio, how it is run.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;

use super::{PathEngine, place};
use crate::engine::{ClientRank, Control, EngineError};
use crate::fio::find::{Fio, IoEngine, Mode};
use crate::fio::job::{Job, Part, Sync};
use crate::fio::output::{self, Side};
use crate::fio::run::{self, Ended, Outcome, unix_now};
use crate::plan::{DataPattern, DataWork, Direction, End, Fsync, Layout, Order, Phase};
use crate::result::{PhaseResult, WorkerResult};

/// O_DIRECT takes requests of whole blocks of any disk.
const DIRECT_ALIGN_BYTES: u64 = 4096;
/// Files that are written outside of the clock are written in requests of this, if they fit.
const FILL_REQUEST_BYTES: u64 = 1024 * 1024;
const FILL_DEPTH: u32 = 4;
const SYNC_THREAD_COUNT: usize = 64;

impl PathEngine {
    pub(super) fn run_data(
        &mut self,
        phase: &Phase,
        work: &DataWork,
        pattern: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        let fio = self.fio.clone().map_err(EngineError::Engine)?;
        let parts = parts(phase, work, place, work.reorder)?;
        let own = self::parts(phase, work, place, 0)?;
        let mode = self.mode(&fio, work, phase.depth)?;
        self.make_shared_file(work, &own)?;
        if matches!(work.layout, Layout::Shared { segments, .. } if segments > 1)
            && work.order == Order::Random
        {
            self.note(
                "Requests at random places of one file for all are random inside of each block; the blocks follow \
                 each other in order, because fio has no random order over blocks with gaps."
                    .to_owned(),
            );
        }
        if needs_whole_files(work) {
            let filled = self.fill(&fio, work, &own, mode, pattern, place, control)?;
            if let Some(why) = filled {
                control.begin();
                return Ok(PhaseResult::nothing(
                    phase,
                    format!("while its files were written: {why}"),
                ));
            }
        }
        control.begin();
        if control.is_stopped() {
            return Ok(PhaseResult::nothing(phase, STOPPED.to_owned()));
        }
        if work.direction == Direction::Read {
            self.check_lengths(&parts)?;
        }
        let ends_whole = work.end == End::Whole;
        let job = Job {
            title: &phase.name,
            folder: &self.folder,
            mode,
            direction: work.direction,
            order: work.order,
            request_bytes: work.request_bytes,
            depth: phase.depth,
            parts,
            time: match work.end {
                End::Whole => None,
                End::After {
                    ramp_ms,
                    runtime_ms,
                } => Some((ramp_ms, runtime_ms)),
            },
            sync: match (work.direction, work.fsync) {
                (Direction::Read, _) | (_, Fsync::After) => Sync::None,
                (_, Fsync::InClock) => Sync::AtEnd,
                (_, Fsync::EachRequest) => Sync::EachRequest,
            },
            pattern: *pattern,
            seed: self.seed(pattern, place, 0),
        };
        let job_file = job.text()?;
        let ramp_ms = job.time.map_or(0, |(ramp_ms, _)| ramp_ms);
        let Some(outcome) = run::run(&fio, &job_file, job.parts.len(), ramp_ms, control)? else {
            return Ok(PhaseResult::nothing(phase, STOPPED.to_owned()));
        };
        let drain = work.direction == Direction::Write && work.fsync == Fsync::After;
        let files = self.files_of(&job.parts);
        let whole =
            work.direction == Direction::Write && ends_whole && outcome.ended == Ended::Whole;
        if whole {
            let written = job.parts.iter().map(part_key);
            self.written.extend(written);
        }
        let mut result = phase_result(phase, work.direction, &outcome, place, job_file);
        if drain {
            drain_files(&mut result, &files, outcome.started_unix);
        }
        Ok(result)
    }

    /// All files of data that this run has written, for dropping them from caches.
    pub(super) fn data_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self
            .written
            .iter()
            .map(|(file, ..)| self.folder.join(file))
            .collect();
        files.sort();
        files.dedup();
        files
    }

    fn files_of(&self, parts: &[Part]) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = parts
            .iter()
            .map(|part| self.folder.join(&part.file))
            .collect();
        files.sort();
        files.dedup();
        files
    }

    /// How fio makes requests here; notes what is not as it was asked for.
    fn mode(&mut self, fio: &Fio, work: &DataWork, depth: u32) -> Result<Mode, EngineError> {
        let aligned = work.request_bytes.is_multiple_of(DIRECT_ALIGN_BYTES);
        let direct = work.direct && aligned;
        let mode = match self.modes.get(&direct) {
            Some(mode) => *mode,
            None => {
                let mode = fio.probe(&self.folder, direct)?;
                self.modes.insert(direct, mode);
                mode
            }
        };
        if work.direct && !aligned {
            self.note(format!(
                "Requests of {} bytes are not made with O_DIRECT, which takes multiples of {DIRECT_ALIGN_BYTES}; \
                 they go through the page cache.",
                work.request_bytes
            ));
        } else if work.direct && !mode.direct {
            self.note(
                "The file system does not take O_DIRECT; requests go through the page cache."
                    .to_owned(),
            );
        }
        if mode.engine == IoEngine::Psync && depth > 1 {
            self.note(
                "fio has neither io_uring nor libaio here: each worker has one request in flight, whatever \
                 the depth says."
                    .to_owned(),
            );
        }
        Ok(mode)
    }

    /// A shared file has its length from the start, so that no fio of any client makes it anew.
    fn make_shared_file(&self, work: &DataWork, own: &[Part]) -> Result<(), EngineError> {
        let (Layout::Shared { .. }, Some(part)) = (&work.layout, own.first()) else {
            return Ok(());
        };
        let path = self.folder.join(&part.file);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let made = file.and_then(|file| match file.metadata()?.len() < part.file_bytes {
            true => file.set_len(part.file_bytes),
            false => Ok(()),
        });
        made.map_err(|error| EngineError::Target(format!("making {}: {error}", path.display())))
    }

    /// Writes what is not known to be whole; says why if it was not done.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call; a struct would only rename them"
    )]
    fn fill(
        &mut self,
        fio: &Fio,
        work: &DataWork,
        own: &[Part],
        mode: Mode,
        pattern: &DataPattern,
        place: ClientRank,
        control: &Control,
    ) -> Result<Option<String>, EngineError> {
        let missing = |part: &&Part| !self.written.contains(&part_key(part));
        let parts: Vec<Part> = own.iter().filter(missing).cloned().collect();
        if parts.is_empty() {
            return Ok(None);
        }
        let large = parts
            .iter()
            .all(|part| part.block_bytes.is_multiple_of(FILL_REQUEST_BYTES));
        let job = Job {
            title: "files for what follows",
            folder: &self.folder,
            mode,
            direction: Direction::Write,
            order: Order::Sequential,
            request_bytes: if large {
                FILL_REQUEST_BYTES
            } else {
                work.request_bytes
            },
            depth: FILL_DEPTH,
            parts,
            time: None,
            sync: Sync::AtEnd,
            pattern: *pattern,
            seed: self.seed(pattern, place, 1),
        };
        let outcome = run::run(fio, &job.text()?, job.parts.len(), 0, control)?;
        match outcome.map_or(Ended::Stopped, |outcome| outcome.ended) {
            Ended::Whole => {
                let written = job.parts.iter().map(part_key);
                self.written.extend(written);
                if work.direction == Direction::Read {
                    // Else reads would get the bytes that this wrote a moment ago.
                    place::drop_caches(&self.files_of(&job.parts), false);
                }
                Ok(None)
            }
            Ended::Stopped => Ok(Some(STOPPED.to_owned())),
            Ended::Early(why) => Ok(Some(why)),
        }
    }

    /// What another client was to write must be there: fio would make up what is missing.
    fn check_lengths(&self, parts: &[Part]) -> Result<(), EngineError> {
        for part in parts {
            let path = self.folder.join(&part.file);
            let found = std::fs::metadata(&path).map_or(0, |found| found.len());
            let wanted = part.offset.saturating_add(part.block_bytes);
            if found < wanted {
                return Err(EngineError::Setting(format!(
                    "{} has {found} bytes of the {wanted} that are to be read; all clients need the same mount",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Another seed for each phase, client and purpose, so that no data is written twice by chance.
    fn seed(&self, pattern: &DataPattern, place: ClientRank, purpose: u64) -> u64 {
        let mut seed = pattern.seed;
        for value in [self.phase_count, u64::from(place.client), purpose] {
            // The finalizer of SplitMix64, which spreads each bit over all.
            seed = (seed ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
            seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            seed ^= seed >> 31;
        }
        // fio takes no more than a signed number.
        seed >> 1
    }
}

pub(super) const STOPPED: &str = "stopped by the user";

/// Reads read what is there; random writes that go on for a time are to change a whole file.
fn needs_whole_files(work: &DataWork) -> bool {
    let for_a_time = matches!(work.end, End::After { .. });
    work.direction == Direction::Read || (work.order == Order::Random && for_a_time)
}

fn part_key(part: &Part) -> (String, u64, u64) {
    (part.file.clone(), part.offset, part.bytes())
}

/// The parts of this client's workers, each what the worker `reorder` places after it wrote.
pub(super) fn parts(
    phase: &Phase,
    work: &DataWork,
    place: ClientRank,
    reorder: u32,
) -> Result<Vec<Part>, EngineError> {
    let too_long = || EngineError::Setting(format!("the files of {:?} are too long", phase.name));
    let refuse = |why: String| EngineError::Setting(format!("the phase {:?} {why}", phase.name));
    let worker_count = u64::from(phase.jobs) * u64::from(place.client_count);
    let reorder = match work.direction {
        Direction::Read => u64::from(reorder),
        Direction::Write => 0,
    };
    let (block_bytes, blocks) = match work.layout {
        Layout::PerWorker { bytes } => (bytes, 1),
        Layout::Shared {
            block_bytes,
            segments,
        } => (block_bytes, segments),
    };
    if work.request_bytes == 0 || work.request_bytes > block_bytes || blocks == 0 {
        return Err(refuse(format!(
            "has requests of {} bytes for {blocks} blocks of {block_bytes}; a block holds at least one request",
            work.request_bytes
        )));
    }
    if matches!(work.layout, Layout::Shared { .. })
        && !block_bytes.is_multiple_of(work.request_bytes)
    {
        return Err(refuse(format!(
            "has blocks of {block_bytes} bytes, which are no multiple of its requests of {}",
            work.request_bytes
        )));
    }
    let shared_stride = block_bytes.checked_mul(worker_count).ok_or_else(too_long)?;
    let shared_bytes = shared_stride.checked_mul(blocks).ok_or_else(too_long)?;
    if shared_bytes > i64::MAX as u64 {
        return Err(too_long());
    }
    let first = u64::from(phase.jobs) * u64::from(place.client);
    let part = |worker: u64| {
        let owner = (worker + reorder) % worker_count;
        match work.layout {
            Layout::PerWorker { bytes } => Part {
                name: format!("w{worker:05}"),
                file: format!("{}/w{owner:05}", phase.fileset),
                file_bytes: bytes,
                offset: 0,
                block_bytes: bytes,
                stride_bytes: bytes,
                blocks: 1,
            },
            Layout::Shared { .. } => Part {
                name: format!("w{worker:05}"),
                file: format!("{}/shared", phase.fileset),
                file_bytes: shared_bytes,
                offset: owner * block_bytes,
                block_bytes,
                stride_bytes: shared_stride,
                blocks,
            },
        }
    };
    Ok((first..first + u64::from(phase.jobs)).map(part).collect())
}

fn phase_result(
    phase: &Phase,
    direction: Direction,
    outcome: &Outcome,
    place: ClientRank,
    job_file: String,
) -> PhaseResult {
    let mut result = PhaseResult::nothing(phase, String::new());
    result.job_file = Some(job_file);
    result.partial = match &outcome.ended {
        Ended::Whole => None,
        Ended::Stopped if outcome.in_ramp => Some(format!("{STOPPED} during the ramp")),
        Ended::Stopped => Some(STOPPED.to_owned()),
        Ended::Early(why) => Some(why.clone()),
    };
    if let Ended::Early(why) = &outcome.ended {
        let failed = outcome.document.jobs().filter(|job| job.error != 0).count();
        result.errors = failed.max(1) as u64;
        result.first_error = Some(why.clone());
    }
    if outcome.in_ramp {
        return result;
    }
    let sides: Vec<&Side> = outcome
        .document
        .jobs()
        .map(|job| match direction {
            Direction::Read => &job.read,
            Direction::Write => &job.write,
        })
        .collect();
    result.workers = sides
        .iter()
        .map(|side| WorkerResult {
            client: place.client as usize,
            operations: side.operations(),
            bytes: side.io_bytes,
            seconds: side.runtime as f64 / 1e3,
        })
        .collect();
    result.operations = result.workers.iter().map(|worker| worker.operations).sum();
    result.bytes = result.workers.iter().map(|worker| worker.bytes).sum();
    result.foreground_seconds = result
        .workers
        .iter()
        .map(|worker| worker.seconds)
        .fold(0.0, f64::max);
    result.drained_seconds = result.foreground_seconds;
    result.load_cpu_seconds = Some(outcome.document.jobs().map(|job| job.cpu_seconds()).sum());
    result.samples = outcome.samples.clone();
    result.latency = output::latency(&sides);
    result
}

/// Makes everything stable and stops the drained clock after it. fio's own clock has stopped before,
/// and its closing the files, which writes out on NFS, is in between.
fn drain_files(result: &mut PhaseResult, files: &[PathBuf], started_unix: f64) {
    let start = Instant::now();
    let failed = sync_files(files);
    let took = start.elapsed().as_secs_f64();
    let since_start = unix_now() - started_unix;
    // The wall clock may be set meanwhile; then only what was seen here counts.
    let at_least = result.foreground_seconds + took;
    let at_most = at_least + DRAIN_GAP_SECONDS_MAX;
    result.drained_seconds = match since_start {
        seconds if seconds > at_least && seconds < at_most => seconds,
        _ => at_least,
    };
    if let Some(error) = failed {
        result.errors += 1;
        result.partial.get_or_insert_with(|| error.clone());
        result.first_error.get_or_insert(error);
    }
}

/// fio needs no longer to close its files and end, else a clock was set.
const DRAIN_GAP_SECONDS_MAX: f64 = 600.0;

/// fsync of all, in parallel; the first error.
fn sync_files(files: &[PathBuf]) -> Option<String> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..files.len().min(SYNC_THREAD_COUNT) {
            scope.spawn(|| {
                while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = File::open(path).and_then(|file| file.sync_all()) {
                        failed
                            .lock()
                            .get_or_insert(format!("fsync of {}: {error}", path.display()));
                    }
                }
            });
        }
    });
    failed.into_inner()
}
