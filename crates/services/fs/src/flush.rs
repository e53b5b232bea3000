//! When data in memory is flushed.
//!
//! Owns: the background task, what is flushed together, the conditions that a complete flush
//! waits for. Must not know: how a flight gets into segments (`flight`), protocols.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_meta::{Fold, JOURNAL_DATA_BYTES_MAX, JOURNAL_ENTRY_BYTES};
use cairn_segment::Stream;
use futures_util::FutureExt;
use futures_util::future::select;

use crate::flight::{FLIGHT_BYTES_MAX, FLIGHT_RUNS_MAX, Job, STREAM_FLUSH_BYTES};
use crate::kernel::{Guard, Inode, State};
use crate::types::FsError;
use crate::volume::VolumeCore;

/// Interval at which the flusher checks the queue.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);
/// Dirty data and attributes older than this are flushed.
const DIRTY_AGE_MAX: Duration = Duration::from_secs(3);
/// Flights that go together into one append.
const FLUSH_FILES_MAX: usize = 256;
/// Bytes that a batch has with one fold, and to spare.
const FOLD_BYTES: usize = 256;

/// Flights of several files that go together: small data of each shares stripes with the others. Alone, a file of a
/// kilobyte takes a block of every shard.
#[derive(Default)]
pub(crate) struct Gathered {
    jobs: Vec<Job>,
    len_bytes: u64,
}

impl VolumeCore {
    /// Adds a flight, and starts all gathered flights if they are enough.
    fn gather(self: &Arc<Self>, gathered: &mut Gathered, mut job: Job) {
        job.stream = Stream::Mixed;
        gathered.len_bytes += job.len_bytes;
        gathered.jobs.push(job);
        if gathered.len_bytes >= FLIGHT_BYTES_MAX || gathered.jobs.len() >= FLUSH_FILES_MAX {
            self.send_gathered(std::mem::take(gathered));
        }
    }

    pub(crate) fn send_gathered(self: &Arc<Self>, gathered: Gathered) {
        if gathered.jobs.is_empty() {
            return;
        }
        let shared = self.clone();
        self.tasks.spawn_flush(async move {
            shared.fly(gathered.jobs).await;
        });
    }

    /// Starts flights for all dirty data of a file: large ones at once, the rest together with that of other files.
    pub(crate) fn start_gathered(
        self: &Arc<Self>,
        gathered: &mut Gathered,
        inode: &Arc<Inode>,
        state: &mut State,
    ) {
        while let Some(job) = self.take_flight(inode, state, true) {
            if job.len_bytes > FLIGHT_BYTES_MAX / 2 {
                self.send(vec![job]);
            } else {
                self.gather(gathered, job);
            }
        }
    }

    /// After a write: starts full flights of a stream at once, and leaves the rest to gather.
    pub fn after_write(self: &Arc<Self>, inode: &Arc<Inode>, state: &mut State) {
        self.enqueue(inode, state);
        if state.write_run_bytes >= STREAM_FLUSH_BYTES
            && state.dirty.len_bytes() >= STREAM_FLUSH_BYTES
            && state.dirty.run_count() <= FLIGHT_RUNS_MAX
        {
            self.start_flights(inode, state, false);
        }
        if self.dirty.is_high() {
            self.queue().wake();
        }
    }

    /// Starts flights for dirty data of a file: for all of it, or only full flights.
    pub fn start_flights(self: &Arc<Self>, inode: &Arc<Inode>, state: &mut State, all: bool) {
        while let Some(job) = self.take_flight(inode, state, all) {
            self.send(vec![job]);
        }
    }

    /// The background task: flushes old data, data that exceeds the budget, and data that keeps the log from being cut.
    pub async fn run_flusher(self: Arc<Self>) {
        loop {
            let woken = pin!(self.queue().woken());
            let pressed = pin!(self.dirty.pressed());
            let wake = select(woken, pressed).map(|_| ());
            if !self.tasks.pause(FLUSH_INTERVAL, wake).await {
                return;
            }
            self.fold_journal();
            self.flush_due();
        }
    }

    /// Starts flights for the files that wait longest: those that are due, or, when dirty memory runs high, enough of
    /// them.
    fn flush_due(self: &Arc<Self>) {
        let now = self.env.clock.monotonic();
        let pressed = self.dirty.is_high() || self.quotas.is_near_limit();
        let mut gathered = Gathered::default();
        let mut started_bytes = 0;
        for _ in 0..self.queue().len() {
            let Some(inode) = self.queue().take() else {
                break;
            };
            let mut state = inode.lock();
            let age = now.saturating_sub(state.dirty_since);
            let busy = self.flight_permits.available_permits() == 0;
            let due = now >= state.dirty_since
                && (age >= DIRTY_AGE_MAX
                    || (pressed && started_bytes < self.dirty.budget().bytes_max() / 4));
            if !due || busy {
                drop(state);
                self.queue().put(inode);
                continue;
            }
            state.note_unqueued();
            if state.dirty.is_empty() {
                drop(self.put_attr(state));
                continue;
            }
            state.dirty_since = now;
            let is_large = state.dirty.len_bytes() > FLIGHT_BYTES_MAX / 2;
            if is_large || state.dirty.run_count() > FLIGHT_RUNS_MAX {
                started_bytes += state.dirty.load().memory_bytes();
                self.start_flights(&inode, &mut state, true);
            } else if let Some(job) = self.take_flight(&inode, &mut state, true) {
                started_bytes += job.load().memory_bytes();
                self.gather(&mut gathered, job);
            }
            // Data that overlaps a flight had to stay.
            if !state.dirty.is_empty() {
                self.enqueue(&inode, &mut state);
            }
        }
        self.send_gathered(gathered);
    }

    fn send(self: &Arc<Self>, jobs: Vec<Job>) {
        let shared = self.clone();
        self.tasks
            .spawn_flush(async move { shared.fly(jobs).await });
    }

    /// Stores attributes that no flush of data stores.
    fn put_attr<'a>(&'a self, state: Guard<'a>) -> Guard<'a> {
        if !state.attr_dirty || state.removed {
            return state;
        }
        let ino = state.ino();
        let mut change = self.begin_change(state);
        change.edit_quietly(ino);
        change.commit().into_one()
    }

    /// Flushes files whose journal entries keep the log from being cut.
    fn fold_journal(self: &Arc<Self>) {
        let pressure = self.meta.journal_pressure();
        let Some(through) = pressure.fold_through else {
            return;
        };
        let now = self.env.clock.monotonic();
        let mut gathered = Gathered::default();
        for ino in self.meta.journal_inodes(through) {
            if let Ok(inode) = self.own_inode(ino) {
                let mut state = inode.lock();
                // After a failed flush the file waits as all others do.
                if now < state.dirty_since {
                    continue;
                }
                if pressure.holds_log && state.landing_error.is_some() && self.may_carry(&state) {
                    self.carry_journal(state);
                    continue;
                }
                self.start_gathered(&mut gathered, &inode, &mut state);
            }
        }
        self.send_gathered(gathered);
    }

    /// Writes the journaled data of a file that cannot be flushed again at the end of the log, with all other data of
    /// the file in memory: at its old place it would keep the whole log since then.
    fn carry_journal(&self, state: Guard<'_>) {
        let fold = Fold {
            ino: state.ino(),
            start: 0,
            end: u64::MAX,
            through: state.journal_last(),
        };
        self.journal_runs(state, Some(fold), |_| true);
    }

    /// Whether one batch has room for that. After a crash, anything less could bring back overwritten bytes.
    fn may_carry(&self, state: &State) -> bool {
        let runs = state.dirty.runs().values().map(|run| run.data.len());
        let fits = runs.clone().all(|len| len <= JOURNAL_DATA_BYTES_MAX)
            && runs.map(|len| len + JOURNAL_ENTRY_BYTES).sum::<usize>()
                <= self.meta.batch_bytes_max().saturating_sub(FOLD_BYTES);
        fits && state.flights.is_empty()
    }

    /// Flushes everything and waits for background tasks, which end: the data that they wrote is durable as well.
    pub async fn flush_everything(self: &Arc<Self>) -> Result<(), FsError> {
        let result = self.flush_written().await;
        self.tasks.ended().await;
        self.durable(self.meta.last_ticket()).await?;
        result
    }

    /// Makes all writes of clients durable. Of the background work it waits for flushes alone: other tasks may hang
    /// on a disk.
    pub async fn flush_written(self: &Arc<Self>) -> Result<(), FsError> {
        let mut result = Ok(());
        loop {
            let inodes = self.queue().take_all();
            if inodes.is_empty() {
                // A file is in no queue while all its dirty data is in flights. If a flight fails, the file is in the
                // queue again.
                self.tasks.flushes_ended().await;
                if self.queue().len() == 0 {
                    break;
                }
                continue;
            }
            let mut flying = Vec::new();
            let mut gathered = Gathered::default();
            for inode in &inodes {
                let mut state = inode.lock();
                state.note_unqueued();
                self.start_gathered(&mut gathered, inode, &mut state);
                flying.extend(state.flights.iter().map(|flight| flight.done.clone()));
                state = self.put_attr(state);
                // Data that overlaps a flight had to stay.
                if !state.dirty.is_empty() {
                    self.enqueue(inode, &mut state);
                }
            }
            self.send_gathered(gathered);
            for mut done in flying {
                let ended = match done.wait_for(Option::is_some).await {
                    Ok(ended) => ended.clone().unwrap_or(Ok(())),
                    Err(_) => Err(FsError::Fenced),
                };
                if result.is_ok() {
                    result = ended;
                }
            }
            if result.is_err() {
                break;
            }
        }
        self.durable(self.meta.last_ticket()).await?;
        result
    }
}
