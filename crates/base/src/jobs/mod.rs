//! Background jobs: work that repeats until its owner ends, all of it in one list that status and metrics show.
//!
//! Owns: when the next step of a job is due, the growing pause after a failed step, a step that panics, the list of the
//! jobs that run, and their end.
//! Must not know: what a step does, who reads the list.
//!
//! ```text
//!                 start
//!                   v
//!   +---------> waiting --- owner gone, stop ------> no longer in the list
//!   |   period, wake | step begins                     ^
//!   |                v                                 |
//!   +-------------- busy ---- Next::End, stop ---------+
//!   |                | error, panic                    |
//!   |                v                                 |
//!   +-------------- failed -- stop --------------------+
//!     growing pause, wake
//! ```
//!
//! A step that runs is never interrupted: [`JobList::stop`] ends a job before its next step, and [`JobList::stopped`]
//! waits for the last steps with a bound.
//!
//! Not jobs, and not in the list:
//! - state machines of the data path, which live as long as a volume, a log or a connection and wait for events: flush
//!   and garbage collection of a volume, committers of logs, leases, the ownership of volumes, rates of requests, servers
//!   that accept connections;
//! - followers of the cluster map, which act on each new version and on nothing else;
//! - work that is done once, for example to open a volume or to delete the remains of one.

mod list;
mod run;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub use list::{JobCounts, JobList, JobState, JobView};

use crate::backoff::Backoff;
use crate::env::Env;

/// The first pause after a failed step: the job's period, within these limits.
const RETRY_FIRST_MIN: Duration = Duration::from_secs(1);
const RETRY_FIRST_MAX: Duration = Duration::from_secs(60);
/// The longest pause after failed steps, unless the job's period is longer.
const RETRY_LONGEST: Duration = Duration::from_secs(300);

/// When the next step of a job is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After the job's period, or at a wake.
    Period,
    /// After this time, or at a wake.
    After(Duration),
    /// At once: there is more to do.
    AtOnce,
    /// After the job's period, or at a wake. Nothing was done, for the reason that the list shows.
    Held(&'static str),
    /// Never. The job leaves the list.
    End,
}

/// The result of a step. An error is logged, counted and shown; the next step comes after a growing pause.
pub type StepResult = Result<Next, String>;

/// The results that a step may have. A step that handles its errors itself returns `()`.
pub trait Outcome: Send {
    fn into_result(self) -> StepResult;
}

impl Outcome for () {
    fn into_result(self) -> StepResult {
        Ok(Next::Period)
    }
}

impl Outcome for Next {
    fn into_result(self) -> StepResult {
        Ok(self)
    }
}

impl Outcome for Result<(), String> {
    fn into_result(self) -> StepResult {
        self.map(|()| Next::Period)
    }
}

impl Outcome for StepResult {
    fn into_result(self) -> StepResult {
        self
    }
}

/// The work of a job. A closure that returns a future is one, too.
pub trait Step: Send + 'static {
    fn step(&mut self) -> impl Future<Output = StepResult> + Send;

    /// Ends when the next step is due before its time. Dropped and called again at will.
    fn woken(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

impl<Work, Stepping> Step for Work
where
    Work: FnMut() -> Stepping + Send + 'static,
    Stepping: Future<Output: Outcome> + Send,
{
    fn step(&mut self) -> impl Future<Output = StepResult> + Send {
        let stepping = self();
        async move { stepping.await.into_result() }
    }
}

/// Makes the next step of a job due now. A wake during a step has another step follow it.
#[derive(Clone, Debug, Default)]
pub struct Wake(Arc<Notify>);

impl Wake {
    pub fn wake(&self) {
        self.0.notify_one();
    }

    async fn woken(&self) {
        self.0.notified().await;
    }
}

/// A job before its start: its name, and when its steps are due.
#[derive(Debug)]
pub struct Job {
    name: &'static str,
    subject: Option<String>,
    period: Duration,
    /// The wait before the first step; `None` if that comes at once.
    first: Option<Duration>,
    retry: Backoff,
    wake: Wake,
}

impl Job {
    /// A job whose next step comes `period` after the end of each step, and whose first one comes after `period`. Jobs of
    /// the same name are told apart by [`Self::of`].
    pub fn every(name: &'static str, period: Duration) -> Self {
        let first = period.clamp(RETRY_FIRST_MIN, RETRY_FIRST_MAX);
        Self {
            name,
            subject: None,
            period,
            first: Some(period),
            retry: Backoff::new(first, period.max(RETRY_LONGEST)),
            wake: Wake::default(),
        }
    }

    /// Says what the job is for, where several jobs have one name: a volume, a service.
    pub fn of(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// The first step comes at once.
    pub fn from_now(mut self) -> Self {
        self.first = None;
        self
    }

    /// The first step comes after `wait`.
    pub fn first_after(mut self, wait: Duration) -> Self {
        self.first = Some(wait);
        self
    }

    /// The pauses after failed steps, in place of those that follow from the period.
    pub fn retry(mut self, pauses: Backoff) -> Self {
        self.retry = pauses;
        self
    }

    /// Steps are also due when `wake` says so.
    pub fn woken_by(mut self, wake: &Wake) -> Self {
        self.wake = wake.clone();
        self
    }

    /// Puts the job into the list of `env` and starts it there.
    pub fn start(self, env: &Env, work: impl Step) {
        let name = self.name;
        let job = run::Run::new(self, env);
        env.spawner.spawn(name, Box::pin(job.steps(work)));
    }

    /// As [`Self::start`], for work on something that the job must not keep: `owner` gets it for each step, and `None` ends
    /// the job.
    pub fn start_on<Owner, Stepping>(
        self,
        env: &Env,
        owner: impl Fn() -> Option<Owner> + Send + 'static,
        mut work: impl FnMut(Owner) -> Stepping + Send + 'static,
    ) where
        Owner: Send + 'static,
        Stepping: Future<Output: Outcome> + Send + 'static,
    {
        self.start(env, move || {
            let stepping = owner().map(&mut work);
            async move {
                match stepping {
                    Some(stepping) => stepping.await.into_result(),
                    None => Ok(Next::End),
                }
            }
        });
    }

    /// As [`Self::start`], on a thread of its own, for work that must go on while the runtime's threads are all busy.
    ///
    /// The thread waits in real time, whatever clock `env` has. [`Self::woken_by`] has no effect. Fails if the system
    /// gives no thread.
    pub fn start_thread<Done: Outcome>(
        self,
        env: &Env,
        work: impl FnMut() -> Done + Send + 'static,
    ) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(self.name.to_owned());
        let job = run::Run::new(self, env);
        thread.spawn(move || job.steps_on_thread(work)).map(drop)
    }
}
