//! One run of fio: started, watched, stopped, read.
//!
//! Owns: the process, its output as samples and a last document. Must not know: phases, files.

use std::io::{BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::engine::{Control, EngineError};
use crate::fio::find::{Fio, first_error_line};
use crate::fio::output::{Document, Documents};
use crate::result::Sample;

/// How often the wish to stop is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long fio is waited for.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// A storage that answers nothing for so long is gone.
    stall: Duration,
    /// fio may take so long to end after it was asked to, with its last requests and fsyncs.
    grace: Duration,
    /// A process that was killed and is not gone by then hangs in the kernel; it is left there.
    kill_grace: Duration,
}

const LIMITS: Limits = Limits {
    stall: Duration::from_secs(300),
    grace: Duration::from_secs(60),
    kill_grace: Duration::from_secs(10),
};
/// Samples are made wider when there are more than this, so that a long run keeps its memory.
pub const SAMPLE_COUNT_MAX: usize = 1200;
/// fio writes all jobs at each tick; with so many more a tick is a second longer.
const JOBS_PER_TICK_SECOND: usize = 64;
/// Of what fio prints to its error output.
const STDERR_BYTES_MAX: u64 = 64 * 1024;
/// Documents that wait to be looked at.
const DOCUMENT_QUEUE: usize = 2;

/// What a run of fio came to.
#[derive(Debug)]
pub struct Outcome {
    /// The last document: of the end, or of the last tick if there was no end.
    pub document: Document,
    pub samples: Vec<Sample>,
    /// When the clock started, in seconds since 1970.
    pub started_unix: f64,
    /// It was stopped inside the ramp, so that nothing counts.
    pub in_ramp: bool,
    pub ended: Ended,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Whole,
    /// By the user.
    Stopped,
    /// Why.
    Early(String),
}

/// Runs a job file. `ramp_ms` is what it says. Nothing if it was stopped before it had printed anything.
pub fn run(
    fio: &Fio,
    job_file: &str,
    jobs: usize,
    ramp_ms: u64,
    control: &Control,
) -> Result<Option<Outcome>, EngineError> {
    run_within(fio, job_file, jobs, ramp_ms, control, LIMITS)
}

fn run_within(
    fio: &Fio,
    job_file: &str,
    jobs: usize,
    ramp_ms: u64,
    control: &Control,
    limits: Limits,
) -> Result<Option<Outcome>, EngineError> {
    let tick_seconds = 1 + jobs / JOBS_PER_TICK_SECOND;
    let mut child = fio
        .command()
        .args(["--output-format=json+", "--eta=never"])
        .arg(format!("--status-interval={tick_seconds}"))
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C at a terminal is ours to pass on. If this process dies, fio ends at its next tick,
        // when it finds that nobody reads.
        .process_group(0)
        .spawn()
        .map_err(|error| EngineError::Engine(format!("fio cannot be started: {error}")))?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(EngineError::Engine("fio has no pipes".to_owned()));
    };
    let (sender, documents) = mpsc::sync_channel(DOCUMENT_QUEUE);
    thread::spawn(move || read_documents(BufReader::new(stdout), &sender));
    let (said, stderr_text) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut text = String::new();
        let mut stderr = stderr;
        // What cannot be read is not there; the rest is read so that fio does not wait for us.
        let _ = (&mut stderr)
            .take(STDERR_BYTES_MAX)
            .read_to_string(&mut text);
        let _ = said.send(text);
        let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    });
    let fed = feed(stdin, job_file);
    let mut watch = Watch::new(ramp_ms);
    let ended = watch_child(&mut child, &documents, &mut watch, control, limits);
    let said = stderr_text
        .recv_timeout(limits.kill_grace)
        .unwrap_or_default();
    let why = || first_error_line(&said);
    let Some(document) = watch.last.take() else {
        if ended == Ended::Stopped {
            return Ok(None);
        }
        let why = why().or(fed.err().map(|error| error.to_string()));
        return Err(EngineError::Engine(match (ended, why) {
            (Ended::Early(ended), why) => format!("{ended}{}", reason(why)),
            (_, why) => format!("fio ended without a result{}", reason(why)),
        }));
    };
    let in_ramp = watch.ended_in_ramp(&document);
    let ended = match (ended, document.jobs().find(|job| job.error != 0)) {
        (Ended::Whole, Some(job)) => Ended::Early(
            why().unwrap_or_else(|| std::io::Error::from_raw_os_error(job.error).to_string()),
        ),
        (Ended::Early(ended), _) => Ended::Early(format!("{ended}{}", reason(why()))),
        (ended, _) => ended,
    };
    Ok(Some(Outcome {
        samples: watch.series.finish(totals(&document)),
        started_unix: watch
            .started_unix
            .unwrap_or_else(|| started_unix(&document)),
        document,
        in_ramp,
        ended,
    }))
}

fn reason(why: Option<String>) -> String {
    why.map(|why| format!(": {why}")).unwrap_or_default()
}

/// fio reads all of its job file before it starts.
fn feed(mut stdin: ChildStdin, job_file: &str) -> std::io::Result<()> {
    stdin.write_all(job_file.as_bytes())
}

fn read_documents(stdout: impl std::io::BufRead, sender: &SyncSender<Document>) {
    let mut documents = Documents::new(stdout);
    while let Ok(Some(found)) = documents.next_text() {
        // One that makes no sense is followed by another a tick later.
        let Ok(document) = serde_json::from_str::<Document>(&found.text) else {
            continue;
        };
        if sender.send(document).is_err() {
            return;
        }
    }
}

/// Follows fio until it has ended or was given up.
fn watch_child(
    child: &mut Child,
    documents: &Receiver<Document>,
    watch: &mut Watch,
    control: &Control,
    limits: Limits,
) -> Ended {
    let pid = Pid::from_child(child);
    let mut ended = Ended::Whole;
    let mut progress = Instant::now();
    // When it was asked to end, and whether it was killed.
    let mut asked: Option<(Instant, bool)> = None;
    loop {
        match documents.recv_timeout(LOOK) {
            Ok(document) => {
                if watch.take(document, control) {
                    progress = Instant::now();
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let now = Instant::now();
        match asked {
            None if control.is_stopped() => {
                ended = Ended::Stopped;
                let _ = kill_process(pid, Signal::INT);
                asked = Some((now, false));
            }
            None if now.duration_since(progress) > limits.stall => {
                ended = Ended::Early(format!("no request was answered for {:?}", limits.stall));
                let _ = kill_process(pid, Signal::INT);
                asked = Some((now, false));
            }
            Some((since, false)) if now.duration_since(since) > limits.grace => {
                let _ = kill_process(pid, Signal::KILL);
                asked = Some((now, true));
            }
            Some((since, true)) if now.duration_since(since) > limits.kill_grace => {
                return Ended::Early("fio hangs in the kernel and was left there".to_owned());
            }
            _ => {}
        }
    }
    // Its output has ended, so it has, or will at once.
    let status = child.wait();
    match (ended, status) {
        (Ended::Whole, Ok(status)) if !status.success() => Ended::Early(match status.code() {
            Some(_) => "fio ended with an error".to_owned(),
            None => format!("fio was ended by another: {status}"),
        }),
        (ended, _) => ended,
    }
}

/// What the documents so far say.
struct Watch {
    ramp_ms: u64,
    last: Option<Document>,
    /// Of the clock that runs now.
    started_unix: Option<f64>,
    /// Of the first clock, which a ramp ends.
    first_started_unix: Option<f64>,
    spawned_unix: f64,
    series: Series,
    reported: Totals,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    operations: u64,
    bytes: u64,
    seconds: f64,
}

impl Watch {
    fn new(ramp_ms: u64) -> Self {
        Self {
            ramp_ms,
            last: None,
            started_unix: None,
            first_started_unix: None,
            spawned_unix: unix_now(),
            series: Series::default(),
            reported: Totals::default(),
        }
    }

    /// Takes a tick or the end; says whether there was progress since the last.
    fn take(&mut self, document: Document, control: &Control) -> bool {
        let now = totals(&document);
        let started = started_unix(&document);
        let moved = self.started_unix.is_some_and(|before| {
            // The clock starts again at the end of the ramp; by less it moves only in printing.
            self.ramp_ms > 0 && started - before > self.ramp_ms as f64 / 2e3
        });
        let restarted = moved || now.operations < self.reported.operations;
        if restarted {
            self.series = Series::default();
            self.reported = Totals::default();
        }
        if self.started_unix.is_none() || restarted {
            self.started_unix = Some(started);
        }
        self.first_started_unix.get_or_insert(started);
        let operations = now.operations.saturating_sub(self.reported.operations);
        let bytes = now.bytes.saturating_sub(self.reported.bytes);
        control.done(operations, bytes);
        self.series.push(now);
        self.reported = now;
        self.last = Some(document);
        operations > 0 || bytes > 0 || restarted
    }

    fn ended_in_ramp(&self, document: &Document) -> bool {
        let first = self
            .first_started_unix
            .unwrap_or(self.spawned_unix)
            .min(started_unix(document));
        let clock_moved = started_unix(document) - first > self.ramp_ms as f64 / 2e3;
        let printed = document.timestamp_ms as f64 / 1e3;
        self.ramp_ms > 0 && !clock_moved && printed - first < self.ramp_ms as f64 / 1e3
    }
}

/// Both directions of all jobs.
fn totals(document: &Document) -> Totals {
    let mut sum = Totals::default();
    for side in document.jobs().flat_map(|job| [&job.read, &job.write]) {
        sum.operations = sum.operations.saturating_add(side.operations());
        sum.bytes = sum.bytes.saturating_add(side.io_bytes);
        sum.seconds = sum.seconds.max(side.runtime as f64 / 1e3);
    }
    sum
}

fn started_unix(document: &Document) -> f64 {
    document.timestamp_ms as f64 / 1e3 - totals(document).seconds
}

pub fn unix_now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Counts between ticks, in bounded memory.
#[derive(Default)]
struct Series {
    samples: Vec<Sample>,
    /// Ticks that make one sample, and those in the last one.
    ticks_each: usize,
    ticks_last: usize,
    before: Totals,
}

impl Series {
    fn push(&mut self, now: Totals) {
        let sample = Sample {
            at_seconds: self.before.seconds,
            seconds: (now.seconds - self.before.seconds).max(0.0),
            operations: now.operations.saturating_sub(self.before.operations),
            bytes: now.bytes.saturating_sub(self.before.bytes),
        };
        self.before = now;
        match self.samples.last_mut() {
            Some(last) if self.ticks_last < self.ticks_each => {
                *last = joined(*last, sample);
                self.ticks_last += 1;
            }
            _ => {
                self.samples.push(sample);
                self.ticks_last = 1;
            }
        }
        if self.samples.len() > SAMPLE_COUNT_MAX {
            let widened = self.samples.chunks(2);
            let widened = widened.filter_map(|pair| pair.iter().copied().reduce(joined));
            self.samples = widened.collect();
            self.ticks_each = self.ticks_each.max(1) * 2;
            self.ticks_last = self.ticks_each;
        }
    }

    /// The samples, which add up to the totals.
    fn finish(self, totals: Totals) -> Vec<Sample> {
        let sum =
            |of: fn(&Sample) -> u64| self.samples.iter().map(of).fold(0u64, u64::saturating_add);
        let same = sum(|sample| sample.operations) == totals.operations
            && sum(|sample| sample.bytes) == totals.bytes;
        match same {
            true => self
                .samples
                .into_iter()
                .filter(|sample| sample.seconds > 0.0 || sample.operations > 0)
                .collect(),
            // A clock that went back would do it; then only the whole is true.
            false => vec![Sample {
                at_seconds: 0.0,
                seconds: totals.seconds,
                operations: totals.operations,
                bytes: totals.bytes,
            }],
        }
    }
}

fn joined(one: Sample, other: Sample) -> Sample {
    Sample {
        at_seconds: one.at_seconds,
        seconds: one.seconds + other.seconds,
        operations: one.operations.saturating_add(other.operations),
        bytes: one.bytes.saturating_add(other.bytes),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn samples_add_up_in_bounded_memory(steps in prop::collection::vec((0u64..1000, 0u64..5000), 1..5000)) {
            let mut series = Series::default();
            let mut now = Totals::default();
            for (operations, bytes) in steps {
                now.operations += operations;
                now.bytes += bytes;
                now.seconds += 1.0;
                series.push(now);
                prop_assert!(series.samples.len() <= SAMPLE_COUNT_MAX);
            }
            let samples = series.finish(now);
            prop_assert_eq!(samples.iter().map(|sample| sample.operations).sum::<u64>(), now.operations);
            prop_assert_eq!(samples.iter().map(|sample| sample.bytes).sum::<u64>(), now.bytes);
            let seconds: f64 = samples.iter().map(|sample| sample.seconds).sum();
            prop_assert!((seconds - now.seconds).abs() < 1e-6);
            let joined = samples.windows(2).all(|pair| (pair[0].at_seconds + pair[0].seconds - pair[1].at_seconds).abs() < 1e-6);
            prop_assert!(joined);
        }
    }

    #[test]
    fn a_storage_that_has_gone_ends_the_run() {
        let package = std::env::var("CARGO_MANIFEST_DIR").unwrap();
        let hangs = format!("{package}/testdata/fio-hangs");
        let fio = Fio::stand_in(std::path::Path::new(&hangs));
        // On a busy machine the only tick may come late.
        let stalls = [300, 5000, 60_000].map(Duration::from_millis);
        let run = |stall| {
            let limits = Limits {
                stall,
                grace: Duration::from_millis(100),
                kill_grace: Duration::from_secs(60),
            };
            let outcome = run_within(&fio, "", 1, 0, &Control::default(), limits);
            outcome.ok().map(|outcome| (stall, outcome))
        };
        let (stall, outcome) = stalls.into_iter().find_map(run).expect("there was a tick");
        let outcome = outcome.expect("nobody stopped it");
        let Ended::Early(why) = &outcome.ended else {
            panic!("it did not end early: {outcome:?}");
        };
        let want = format!("no request was answered for {stall:?}");
        assert!(why.starts_with(&want), "{why}");
        let done: Vec<u64> = outcome.samples.iter().map(|it| it.operations).collect();
        assert_eq!((done, outcome.started_unix), (vec![10], 1000.0));
    }

    #[test]
    fn totals_that_samples_miss_make_one_sample() {
        let mut series = Series::default();
        series.push(Totals {
            operations: 10,
            bytes: 100,
            seconds: 2.0,
        });
        let totals = Totals {
            operations: 9,
            bytes: 100,
            seconds: 3.0,
        };
        let whole = Sample {
            at_seconds: 0.0,
            seconds: 3.0,
            operations: 9,
            bytes: 100,
        };
        assert_eq!(series.finish(totals), vec![whole]);
    }
}
