//! One job with its requests in flight.
//!
//! Owns: the loop that everything is measured in.
//! Must not know: connections, threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::tally::{Tally, Worker};
use super::{Clock, Crew, Done, Ended, Failed, Job};
use crate::engine::Control;

/// How often progress is shown to the watcher.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// What the lanes of one thread share.
pub struct Team {
    clock: Clock,
    control: Control,
    is_quiet: bool,
    ended: Arc<Ended>,
    errors_in_row_max: u64,
    // The tasks of a team share a thread; this lock is never waited for.
    counts: Mutex<Counts>,
}

struct Counts {
    tally: Tally,
    errors_in_row: u64,
    /// Done since it was shown last.
    unseen: Done,
    unseen_ns: u64,
    shown: Instant,
}

impl Team {
    pub fn new<C, P>(
        crew: &Crew<'_, C, P>,
        clock: Clock,
        workers: impl Iterator<Item = usize>,
    ) -> Self {
        let tally = Tally {
            workers: workers.map(Worker::new).collect(),
            ..Tally::default()
        };
        Self {
            clock,
            control: crew.control.clone(),
            is_quiet: crew.course.quiet,
            ended: crew.ended.clone(),
            errors_in_row_max: crew.course.errors_in_row_max,
            counts: Mutex::new(Counts {
                tally,
                errors_in_row: 0,
                unseen: Done::default(),
                unseen_ns: 0,
                shown: Instant::now(),
            }),
        }
    }

    pub fn take_tally(&self) -> Tally {
        std::mem::take(&mut self.counts.lock().tally)
    }

    pub fn show_progress(&self) {
        self.show(&mut self.counts.lock());
    }

    fn show(&self, counts: &mut Counts) {
        let unseen = std::mem::take(&mut counts.unseen);
        let unseen_ns = std::mem::take(&mut counts.unseen_ns);
        if !self.is_quiet {
            self.control.done(unseen.operations, unseen.bytes);
            self.control.took(unseen_ns);
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let is_late = self.clock.deadline.is_some_and(|deadline| now >= deadline);
        is_late || self.ended.is_set() || self.control.is_stopped()
    }

    fn done(&self, worker: usize, begin: Instant, end: Instant, done: Done) {
        let mut counts = self.counts.lock();
        counts.errors_in_row = 0;
        let ns = u64::try_from((end - begin).as_nanos()).unwrap_or(u64::MAX);
        // Requests that are answered in the ramp do not count.
        if let Some(at) = end.checked_duration_since(self.clock.start) {
            counts.tally.done(worker, (end, at), ns, done);
        }
        counts.unseen.operations += done.operations;
        counts.unseen.bytes += done.bytes;
        counts.unseen_ns = counts.unseen_ns.saturating_add(ns);
        if end - counts.shown >= PROGRESS_EVERY {
            counts.shown = end;
            self.show(&mut counts);
        }
    }

    fn failed(&self, failed: &Failed) {
        let mut counts = self.counts.lock();
        counts.errors_in_row += 1;
        if !failed.is_answer() {
            self.ended.set(|| format!("the server was lost: {failed}"));
        } else if counts.errors_in_row >= self.errors_in_row_max {
            let count = counts.errors_in_row;
            self.ended
                .set(|| format!("{count} requests in a row failed: {failed}"));
        }
        counts.tally.failed(failed);
    }

    fn update(&self, worker: usize, change: impl FnOnce(&mut Worker)) {
        if let Some(worker) = self.counts.lock().tally.workers.get_mut(worker) {
            change(worker);
        }
    }
}

pub struct Lane<J> {
    job: Arc<J>,
    /// Place among the workers of the team.
    worker: usize,
    team: Arc<Team>,
}

impl<J: Job> Lane<J> {
    pub fn new(job: Arc<J>, worker: usize, team: Arc<Team>) -> Self {
        Self { job, worker, team }
    }

    /// Runs the job to its last answer.
    pub async fn run(self: Arc<Self>, depth: usize) {
        let mut slots = JoinSet::new();
        for _ in 0..depth {
            slots.spawn(self.clone().slot());
        }
        // The last slot to end has seen the last answer.
        let ends = slots.join_all().await;
        let end = ends.into_iter().max();
        self.team.update(self.worker, |worker| worker.end = end);
    }

    /// One request after the other, as long as there are any; when the last was answered. The end of
    /// one is the begin of the next, which saves asking for the time.
    async fn slot(self: Arc<Self>) -> Instant {
        let mut begin = Instant::now();
        while !self.team.is_over(begin)
            && let Some(turn) = self.job.next()
        {
            let outcome = self.job.request(turn).await;
            let end = Instant::now();
            match outcome {
                Ok(Some(done)) => self.team.done(self.worker, begin, end, done),
                Ok(None) => return begin,
                Err(failed) => self.team.failed(&failed),
            }
            begin = end;
        }
        begin
    }

    /// Makes stable what the job wrote. `in_clock`: that is a part of its work.
    pub async fn settle(&self, in_clock: bool) {
        if let Err(failed) = self.job.settle().await {
            self.team.failed(&failed);
            self.team
                .ended
                .set(|| format!("what was written is not stable: {failed}"));
        }
        let now = Instant::now();
        self.team.update(self.worker, |worker| {
            worker.drained = Some(now);
            if in_clock {
                worker.end = Some(now);
            }
        });
    }
}
