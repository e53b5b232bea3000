//! Drives jobs: so many requests in flight of each, on so many connections, with one thread for each
//! processor.
//!
//! Owns: connections, threads, the start and the end of the clock, counting, stopping, giving up.
//! Must not know: what a request does, how results are shown.
//!
//! Nothing is shared between threads while the clock runs. A thread has a runtime of its own with its
//! share of the connections; a job stays on one connection.

mod lane;
mod tally;
mod unstable;

use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cairn_nfs_client::{Client, ClientSettings, ConnectionSettings, Error, NfsUrl};
use futures_util::future;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use crate::engine::Control;

pub use tally::{Tally, Worker};
pub use unstable::{Unstable, write_all};

use lane::{Lane, Team};

/// How often threads look whether they are to stop.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// Requests without an answer so long after somebody said stop are given up.
const STOP_GRACE: Duration = match cfg!(test) {
    false => Duration::from_secs(10),
    // Tests wait for it.
    true => Duration::from_millis(300),
};

/// What to do how often.
#[derive(Clone, Debug)]
pub struct Course {
    pub job_count: usize,
    pub connection_count: usize,
    /// Requests in flight of each job.
    pub depth: usize,
    /// Calls on the wire of one connection; more wait.
    pub in_flight_max: usize,
    /// A server that is silent for so long has failed.
    pub reply_timeout: Duration,
    /// Requests that are answered in this time after the start do not count.
    pub ramp: Duration,
    /// No request begins later than so long after the ramp; absent: jobs end by themselves.
    pub runtime: Option<Duration>,
    pub settle: Settle,
    /// After so many failures in a row nothing good will come.
    pub errors_in_row_max: u64,
    /// Does not show as progress, and does not wait for other clients.
    pub quiet: bool,
}

/// When jobs make stable what they wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    Never,
    /// Each after its last request.
    InClock,
    /// When all have had their last request.
    After,
}

/// A request to make.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Counts the requests of a job.
    pub index: u64,
    /// Which block of its file it is for, or which of its names.
    pub block: u64,
}

/// What a request did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub operations: u64,
    pub bytes: u64,
}

impl Done {
    /// One operation that moved so many bytes.
    pub fn one(bytes: u64) -> Self {
        Self {
            operations: 1,
            bytes,
        }
    }
}

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("{0}")]
    Request(#[from] Error),
    #[error("{0}")]
    Command(#[from] cairn_iscsi_client::Error),
    #[error("{0}")]
    Object(#[from] crate::s3_engine::S3Failed),
    #[error("wrong data at {0}")]
    WrongData(u64),
    #[error("the file ends at {0}; write it first, with the same size")]
    Short(u64),
    #[error("the server was restarted and lost data that was written to it")]
    Lost,
}

impl Failed {
    /// Whether the server did answer. Without a status it has not; it would not the next time.
    fn is_answer(&self) -> bool {
        match self {
            Self::Request(error) => error.status().is_some(),
            Self::Command(error) => error.is_answer(),
            Self::Object(error) => error.is_answer(),
            Self::WrongData(_) | Self::Short(_) | Self::Lost => true,
        }
    }
}

/// What one worker does.
pub trait Job: Send + Sync + 'static {
    /// The next request; `None` when there are no more.
    fn next(&self) -> Option<Turn>;
    /// `None`: there was nothing left to do, and nothing was asked of the server.
    fn request(&self, turn: Turn) -> impl Future<Output = Result<Option<Done>, Failed>> + Send;
    /// Makes stable what was written.
    fn settle(&self) -> impl Future<Output = Result<(), Failed>> + Send {
        async { Ok(()) }
    }
}

/// Makes connections to a target.
pub trait Connector: Sync {
    type Client;

    fn connect(&self, course: &Course) -> impl Future<Output = Result<Self::Client, DriveError>>;
}

impl Connector for NfsUrl {
    type Client = Client;

    async fn connect(&self, course: &Course) -> Result<Client, DriveError> {
        let settings = client_settings(course.in_flight_max, course.reply_timeout);
        let url = NfsUrl {
            nconnect: None,
            ..self.clone()
        };
        let client = Client::connect(&url, settings).await;
        client.map_err(|error| DriveError::Connect {
            url: self.to_string(),
            error: error.into(),
        })
    }
}

/// Makes the jobs.
pub trait Plan: Sync {
    type Client;
    type Job: Job;
    type Error: From<DriveError> + Send;

    /// The job number `index`, on this connection, ready to begin.
    fn prepare(
        &self,
        index: usize,
        client: &Self::Client,
    ) -> impl Future<Output = Result<Self::Job, Self::Error>>;
}

/// Why nothing was begun.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    #[error("connecting to {url}: {error}")]
    Connect {
        url: String,
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("starting a thread for the load: {0}")]
    Thread(io::Error),
}

pub struct Outcome<J> {
    pub tally: Tally,
    /// By their index.
    pub jobs: Vec<(usize, Arc<J>)>,
    /// When the clock began, after the ramp.
    pub start: Instant,
    /// Until the last request that counts.
    pub foreground: Duration,
    /// Until all data was stable.
    pub drained: Duration,
    /// Why it ended early.
    pub partial: Option<String>,
}

/// The time in which answers count.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    deadline: Option<Instant>,
}

/// Set by the first job that cannot go on.
#[derive(Default)]
struct Ended {
    is_set: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Ended {
    fn set(&self, reason: impl FnOnce() -> String) {
        self.reason.lock().get_or_insert_with(reason);
        self.is_set.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }
}

/// What a thread waits for.
enum Step {
    Begin(Clock),
    Drain,
}

/// Settings of a client that a benchmark uses. It must see what the server does: nothing is sent twice.
pub fn client_settings(in_flight_max: usize, reply_timeout: Duration) -> ClientSettings {
    ClientSettings {
        connection: ConnectionSettings {
            in_flight_max,
            reply_timeout,
            transmissions_max: 1,
            reconnect_for: Duration::ZERO,
            ..ConnectionSettings::default()
        },
        nconnect: 1,
        ..ClientSettings::default()
    }
}

/// Connects, prepares all jobs, drives them to their end.
///
/// Blocks; must not be called from a task of an asynchronous runtime.
pub fn drive<C: Connector, P: Plan<Client = C::Client>>(
    connector: &C,
    plan: &P,
    course: &Course,
    control: &Control,
) -> Result<Outcome<P::Job>, P::Error> {
    let processor_count = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let thread_count = course.connection_count.clamp(1, processor_count);
    let crew = Crew {
        connector,
        plan,
        course,
        control,
        thread_count,
        ended: Arc::default(),
    };
    thread::scope(|scope| {
        let (ready_to, ready) = mpsc::channel();
        let (done_to, done) = mpsc::channel();
        // Dropped on an early return, which ends the threads that wait for them.
        let mut steps = Vec::with_capacity(thread_count);
        let mut threads = Vec::with_capacity(thread_count);
        for first in 0..thread_count {
            let (step_to, step) = mpsc::channel();
            let (ready_to, done_to, crew) = (ready_to.clone(), done_to.clone(), &crew);
            let work = move || crew.work(first, ready_to, SaidAtEnd(done_to), &step);
            let named = thread::Builder::new().name(format!("load-{first}"));
            let spawned = named.spawn_scoped(scope, work);
            threads.push(spawned.map_err(DriveError::Thread)?);
            steps.push(step_to);
        }
        drop((ready_to, done_to));
        // A thread that is gone has panicked; joining it passes that on.
        let all = |step: &dyn Fn() -> Step| {
            for to in &steps {
                let _ = to.send(step());
            }
        };
        for prepared in ready.iter().take(thread_count) {
            prepared?;
        }
        if !course.quiet {
            control.begin();
        }
        let start = Instant::now() + course.ramp;
        let clock = Clock {
            start,
            deadline: course.runtime.map(|runtime| start + runtime),
        };
        all(&|| Step::Begin(clock));
        let _ = done.iter().take(thread_count).count();
        all(&|| Step::Drain);
        let (mut tally, mut jobs) = (Tally::default(), Vec::new());
        for thread in threads {
            match thread.join() {
                Ok(Some(part)) => {
                    tally.merge(part.tally);
                    jobs.extend(part.jobs);
                }
                Ok(None) => {}
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        tally.workers.sort_by_key(|worker| worker.index);
        jobs.sort_by_key(|(index, _)| *index);
        let latest = |of: fn(&Worker) -> Option<Instant>| {
            let last = tally.workers.iter().filter_map(of).max();
            last.map_or(Duration::ZERO, |end| end.saturating_duration_since(start))
        };
        let foreground = latest(|worker| worker.end);
        let drained = latest(|worker| worker.drained).max(foreground);
        Ok(Outcome {
            tally,
            jobs,
            start,
            foreground,
            drained,
            partial: crew.why_partial(),
        })
    })
}

/// What all threads see.
struct Crew<'a, C, P> {
    connector: &'a C,
    plan: &'a P,
    course: &'a Course,
    control: &'a Control,
    thread_count: usize,
    ended: Arc<Ended>,
}

/// What a thread brings back.
struct ThreadResult<J> {
    tally: Tally,
    jobs: Vec<(usize, Arc<J>)>,
}

/// Sends when it is dropped, so also when its thread panics.
struct SaidAtEnd(mpsc::Sender<()>);

impl Drop for SaidAtEnd {
    fn drop(&mut self) {
        // Nobody listens when another thread could not prepare.
        let _ = self.0.send(());
    }
}

impl<C: Connector, P: Plan<Client = C::Client>> Crew<'_, C, P> {
    /// One thread: prepares, says so, waits for the start, runs, says so, waits, drains.
    fn work(
        &self,
        first: usize,
        ready_to: mpsc::Sender<Result<(), P::Error>>,
        done_to: SaidAtEnd,
        steps: &mpsc::Receiver<Step>,
    ) -> Option<ThreadResult<P::Job>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let prepared = runtime
            .map_err(|error| DriveError::Thread(error).into())
            .and_then(|runtime| {
                let jobs = runtime.block_on(self.prepare(first))?;
                Ok((runtime, jobs))
            });
        let (runtime, jobs) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let _ = ready_to.send(Err(error));
                return None;
            }
        };
        ready_to.send(Ok(())).ok()?;
        drop(ready_to);
        let Ok(Step::Begin(clock)) = steps.recv() else {
            return None;
        };
        let cpu_before = cpu_of_thread();
        let team = Arc::new(Team::new(self, clock, jobs.iter().map(|(index, _)| *index)));
        let lanes: Vec<Arc<Lane<P::Job>>> = jobs
            .iter()
            .enumerate()
            .map(|(place, (_, job))| Arc::new(Lane::new(job.clone(), place, team.clone())))
            .collect();
        let depth = self.course.depth;
        let settle = self.course.settle;
        runtime.block_on(self.watched(lanes.iter().map(|lane| {
            let lane = lane.clone();
            async move {
                lane.clone().run(depth).await;
                if settle == Settle::InClock {
                    lane.settle(true).await;
                }
            }
        })));
        team.show_progress();
        drop(done_to);
        if let (Settle::After, Ok(Step::Drain)) = (settle, steps.recv()) {
            let settling = lanes.iter().map(|lane| {
                let lane = lane.clone();
                async move { lane.settle(false).await }
            });
            runtime.block_on(self.watched(settling));
        }
        drop(lanes);
        let mut tally = team.take_tally();
        tally.cpu = cpu_of_thread().saturating_sub(cpu_before);
        Some(ThreadResult { tally, jobs })
    }

    /// The thread's share of the connections with their jobs.
    async fn prepare(&self, first: usize) -> Result<Vec<(usize, Arc<P::Job>)>, P::Error> {
        let connection_count = self.course.connection_count;
        let connections = (first..connection_count).step_by(self.thread_count);
        let on_each = connections.map(|connection| async move {
            let client = self.connector.connect(self.course).await?;
            let indices = (connection..self.course.job_count).step_by(connection_count);
            let client = &client;
            future::try_join_all(indices.map(|index| async move {
                let job = self.plan.prepare(index, client).await?;
                Ok::<_, P::Error>((index, Arc::new(job)))
            }))
            .await
        });
        Ok(future::try_join_all(on_each).await?.concat())
    }

    /// Runs tasks to their end, or until they have had their time after being told to stop.
    ///
    /// Each job, and each of its requests in flight, has a task: the runtime looks at its sockets each
    /// time a future that it did not spawn is woken, which would be twice for each request.
    async fn watched(
        &self,
        tasks: impl Iterator<Item = impl Future<Output = ()> + Send + 'static>,
    ) {
        let mut running = JoinSet::new();
        tasks.for_each(|task| {
            running.spawn(task);
        });
        let mut watch = tokio::time::interval(WATCH_EVERY);
        watch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut stopped: Option<Instant> = None;
        loop {
            tokio::select! {
                joined = running.join_next() => match joined {
                    Some(Err(error)) if error.is_panic() => {
                        std::panic::resume_unwind(error.into_panic());
                    }
                    Some(_) => {}
                    None => return,
                },
                now = watch.tick() => {
                    let now = now.into_std();
                    if !(self.ended.is_set() || self.control.is_stopped()) {
                        continue;
                    }
                    if now.saturating_duration_since(*stopped.get_or_insert(now)) > STOP_GRACE {
                        running.abort_all();
                    }
                }
            }
        }
    }

    fn why_partial(&self) -> Option<String> {
        let reason = self.ended.reason.lock().take();
        reason.or_else(|| self.control.is_stopped().then(|| STOPPED.to_owned()))
    }
}

/// Why a phase that somebody stopped is partial.
pub const STOPPED: &str = "it was stopped";

fn cpu_of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}
