//! The jobs that run, what each of them did, and their common end.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Wake;
use crate::env::Clock;
use crate::time::Timestamp;

/// An error is shown up to this length.
const ERROR_LEN_CHARS_MAX: usize = 1000;

/// All background jobs of one node.
#[derive(Debug, Default)]
pub struct JobList {
    running: Mutex<Running>,
    is_stopping: AtomicBool,
    /// A job left the list.
    left: Notify,
    lets_panics_through: bool,
}

#[derive(Debug, Default)]
struct Running {
    jobs: BTreeMap<u64, Arc<Entry>>,
    number_last: u64,
    /// Of jobs that have left the list, by name.
    past: BTreeMap<&'static str, JobCounts>,
}

/// Counts of a job since its start, or of all jobs of one name since the start of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Steps that ended, also those that failed.
    pub steps: u64,
    /// Steps that failed, also by a panic.
    pub errors: u64,
    pub panics: u64,
    /// The time that these steps took.
    pub busy: Duration,
}

impl JobCounts {
    fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.errors += other.errors;
        self.panics += other.panics;
        self.busy += other.busy;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// A step is being done.
    Busy,
    /// The next step is not due yet.
    Waiting,
    /// As `Waiting`; the last step had a reason to do nothing.
    Held(&'static str),
    /// The last step failed. The next one comes after a growing pause.
    Failed,
}

/// One job as the list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    pub name: &'static str,
    pub subject: Option<String>,
    pub state: JobState,
    pub period: Duration,
    pub counts: JobCounts,
    /// The begin of the last step; `None` before the first one.
    pub last_began: Option<Timestamp>,
    /// How long the last step took that ended.
    pub last_took: Option<Duration>,
    /// How long the step takes so far that is being done.
    pub busy_for: Option<Duration>,
    /// The time until the next step; zero if it is due. `None` while a step is being done.
    pub next_in: Option<Duration>,
    /// Steps that failed since the last one that did not.
    pub failed_in_row: u64,
    /// The last error and its time, also when later steps succeeded.
    pub last_error: Option<(String, Timestamp)>,
}

#[derive(Debug)]
struct Entry {
    name: &'static str,
    subject: Option<String>,
    period: Duration,
    wake: Wake,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    counts: JobCounts,
    last_began: Option<Timestamp>,
    last_took: Option<Duration>,
    failed_in_row: u64,
    last_error: Option<(String, Timestamp)>,
    held: Option<&'static str>,
    phase: Phase,
}

/// Times are those of [`Clock::monotonic`].
#[derive(Clone, Copy, Debug)]
enum Phase {
    BusySince(Duration),
    DueAt(Duration),
}

impl JobList {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A list whose jobs do not catch panics of their steps: a simulation ends with the first one and names it.
    pub fn of_simulation() -> Arc<Self> {
        Arc::new(Self {
            lets_panics_through: true,
            ..Self::default()
        })
    }

    /// All jobs, by name. `clock` is that of the node.
    pub fn view(&self, clock: &dyn Clock) -> Vec<JobView> {
        let now = clock.monotonic();
        let jobs: Vec<Arc<Entry>> = self.running.lock().jobs.values().cloned().collect();
        let mut views: Vec<JobView> = jobs.iter().map(|job| job.view(now)).collect();
        views.sort_by(|one, other| (one.name, &one.subject).cmp(&(other.name, &other.subject)));
        views
    }

    /// Counts since the start of the node, by name of the jobs; jobs that have ended are included.
    pub fn counts(&self) -> BTreeMap<&'static str, JobCounts> {
        let running = self.running.lock();
        let mut counts = running.past.clone();
        for job in running.jobs.values() {
            let of_job = job.seen.lock().counts;
            counts.entry(job.name).or_default().add(of_job);
        }
        counts
    }

    /// Ends each job before its next step, also those that start later.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        let running = self.running.lock();
        for job in running.jobs.values() {
            job.wake.wake();
        }
    }

    /// Waits until all jobs have ended after [`Self::stop`], for at most `patience`. Returns the names of those that have
    /// not.
    pub async fn stopped(&self, clock: &dyn Clock, patience: Duration) -> Vec<&'static str> {
        let mut patience = clock.sleep(patience);
        loop {
            let mut left = pin!(self.left.notified());
            // Before the look: a job that leaves in between is not missed.
            left.as_mut().enable();
            let names = self.names();
            if names.is_empty() {
                return names;
            }
            tokio::select! {
                biased;
                () = left => {}
                () = &mut patience => return self.names(),
            }
        }
    }

    fn names(&self) -> Vec<&'static str> {
        let running = self.running.lock();
        running.jobs.values().map(|job| job.name).collect()
    }
}

impl Entry {
    fn view(&self, now: Duration) -> JobView {
        let seen = self.seen.lock();
        let state = match (seen.phase, seen.failed_in_row, seen.held) {
            (Phase::BusySince(_), _, _) => JobState::Busy,
            (Phase::DueAt(_), 1.., _) => JobState::Failed,
            (Phase::DueAt(_), 0, Some(why)) => JobState::Held(why),
            (Phase::DueAt(_), 0, None) => JobState::Waiting,
        };
        let (busy_for, next_in) = match seen.phase {
            Phase::BusySince(since) => (Some(now.saturating_sub(since)), None),
            Phase::DueAt(due) => (None, Some(due.saturating_sub(now))),
        };
        JobView {
            name: self.name,
            subject: self.subject.clone(),
            state,
            period: self.period,
            counts: seen.counts,
            last_began: seen.last_began,
            last_took: seen.last_took,
            busy_for,
            next_in,
            failed_in_row: seen.failed_in_row,
            last_error: seen.last_error.clone(),
        }
    }
}

/// How a step ended.
pub(super) enum Ended {
    /// `held`: why it did nothing.
    Done {
        held: Option<&'static str>,
    },
    Failed {
        error: String,
        is_panic: bool,
    },
}

/// The place of a job in the list, which it leaves when this is dropped.
pub(super) struct Listed {
    list: Arc<JobList>,
    number: u64,
    entry: Arc<Entry>,
}

impl Listed {
    /// `due`: when the first step is due, by the monotonic clock.
    pub(super) fn new(
        list: &Arc<JobList>,
        name: &'static str,
        subject: Option<String>,
        period: Duration,
        wake: &Wake,
        due: Duration,
    ) -> Self {
        let entry = Arc::new(Entry {
            name,
            subject,
            period,
            wake: wake.clone(),
            seen: Mutex::new(Seen {
                counts: JobCounts::default(),
                last_began: None,
                last_took: None,
                failed_in_row: 0,
                last_error: None,
                held: None,
                phase: Phase::DueAt(due),
            }),
        });
        let mut running = list.running.lock();
        running.number_last += 1;
        let number = running.number_last;
        running.jobs.insert(number, Arc::clone(&entry));
        drop(running);
        let listed = Self {
            list: Arc::clone(list),
            number,
            entry,
        };
        if listed.is_stopping() {
            // It came after the wakes of `stop`.
            wake.wake();
        }
        listed
    }

    pub(super) fn name(&self) -> &'static str {
        self.entry.name
    }

    pub(super) fn subject(&self) -> Option<&str> {
        self.entry.subject.as_deref()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.list.is_stopping.load(Ordering::Acquire)
    }

    pub(super) fn catches_panics(&self) -> bool {
        !self.list.lets_panics_through
    }

    /// A step begins now.
    pub(super) fn begins(&self, clock: &dyn Clock) {
        let (now, at) = (clock.monotonic(), clock.now());
        let mut seen = self.entry.seen.lock();
        seen.last_began = Some(at);
        seen.phase = Phase::BusySince(now);
    }

    /// The step ended now, and the next one is due after `wait`.
    pub(super) fn ends(&self, clock: &dyn Clock, ended: Ended, wait: Duration) {
        let (now, at) = (clock.monotonic(), clock.now());
        let mut seen = self.entry.seen.lock();
        let Phase::BusySince(since) = seen.phase else {
            unreachable!("a step ends that did not begin");
        };
        let took = now.saturating_sub(since);
        seen.phase = Phase::DueAt(now.saturating_add(wait));
        seen.last_took = Some(took);
        seen.counts.steps += 1;
        seen.counts.busy += took;
        match ended {
            Ended::Done { held } => {
                seen.failed_in_row = 0;
                seen.held = held;
            }
            Ended::Failed { error, is_panic } => {
                seen.failed_in_row += 1;
                seen.counts.errors += 1;
                seen.counts.panics += u64::from(is_panic);
                let shown = error.chars().take(ERROR_LEN_CHARS_MAX).collect();
                seen.last_error = Some((shown, at));
            }
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut running = self.list.running.lock();
        running.jobs.remove(&self.number);
        let counts = self.entry.seen.lock().counts;
        running.past.entry(self.entry.name).or_default().add(counts);
        drop(running);
        self.list.left.notify_waiters();
    }
}
