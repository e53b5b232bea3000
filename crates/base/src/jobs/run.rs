//! One job from its start to its end.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::list::{Ended, Listed};
use super::{Job, Next, Outcome, Step, StepResult, Wake};
use crate::backoff::Backoff;
use crate::env::{Clock, Env};

/// A thread that waits looks so often whether it should stop.
const THREAD_LOOK: Duration = Duration::from_millis(100);

/// What comes after a step.
enum Follows {
    Wait(Duration),
    Step,
    End,
}

pub(super) struct Run {
    listed: Listed,
    clock: Arc<dyn Clock>,
    wake: Wake,
    period: Duration,
    retry: Backoff,
    first: Follows,
    /// The error that the log names already.
    told: Option<String>,
}

impl Run {
    pub(super) fn new(job: Job, env: &Env) -> Self {
        let wait = job.first.unwrap_or_default();
        let first = job.first.map_or(Follows::Step, Follows::Wait);
        let due = env.clock.monotonic().saturating_add(wait);
        let listed = Listed::new(&env.jobs, job.name, job.subject, job.period, &job.wake, due);
        Self {
            listed,
            clock: Arc::clone(&env.clock),
            wake: job.wake,
            period: job.period,
            retry: job.retry,
            first,
            told: None,
        }
    }

    pub(super) async fn steps(mut self, mut work: impl Step) {
        let mut follows = std::mem::replace(&mut self.first, Follows::End);
        loop {
            match follows {
                Follows::Wait(wait) => {
                    let sleep = self.clock.sleep(wait);
                    tokio::select! {
                        // In this order, so that a simulation does the same each time.
                        biased;
                        () = self.wake.woken() => {}
                        () = work.woken() => {}
                        () = sleep => {}
                    }
                }
                Follows::Step => {}
                Follows::End => return,
            }
            if self.listed.is_stopping() {
                return;
            }
            self.listed.begins(&*self.clock);
            let done = match self.listed.catches_panics() {
                true => caught(async { work.step().await }).await,
                false => Ok(work.step().await),
            };
            follows = self.follows(done);
        }
    }

    pub(super) fn steps_on_thread<Done: Outcome>(mut self, mut work: impl FnMut() -> Done) {
        let mut follows = std::mem::replace(&mut self.first, Follows::End);
        loop {
            match follows {
                Follows::Wait(wait) => self.wait_on_thread(wait),
                Follows::Step => {}
                Follows::End => return,
            }
            if self.listed.is_stopping() {
                return;
            }
            self.listed.begins(&*self.clock);
            let done = match self.listed.catches_panics() {
                true => catch_unwind(AssertUnwindSafe(|| work().into_result()))
                    .map_err(|panic| text_of(&*panic)),
                false => Ok(work().into_result()),
            };
            follows = self.follows(done);
        }
    }

    fn wait_on_thread(&self, wait: Duration) {
        let mut left = wait;
        while !left.is_zero() && !self.listed.is_stopping() {
            let part = left.min(THREAD_LOOK);
            std::thread::sleep(part);
            left = left.saturating_sub(part);
        }
    }

    /// Notes how a step ended, and says what comes next. `Err` has the message of a panic.
    fn follows(&mut self, done: Result<StepResult, String>) -> Follows {
        let (error, is_panic) = match done {
            Ok(Ok(next)) => return self.succeeded(next),
            Ok(Err(error)) => (error, false),
            Err(panic) => (format!("it panicked: {panic}"), true),
        };
        let wait = self.retry.pause();
        self.tell(&error, is_panic, wait);
        let ended = Ended::Failed { error, is_panic };
        self.listed.ends(&*self.clock, ended, wait);
        Follows::Wait(wait)
    }

    fn succeeded(&mut self, next: Next) -> Follows {
        self.retry.reset();
        if self.told.take().is_some() {
            let (job, of) = (self.listed.name(), self.listed.subject());
            tracing::info!(job, of, "the background job works again");
        }
        let (follows, wait, held) = match next {
            Next::Period => (Follows::Wait(self.period), self.period, None),
            Next::After(wait) => (Follows::Wait(wait), wait, None),
            Next::AtOnce => (Follows::Step, Duration::ZERO, None),
            Next::Held(why) => (Follows::Wait(self.period), self.period, Some(why)),
            Next::End => (Follows::End, Duration::ZERO, None),
        };
        self.listed.ends(&*self.clock, Ended::Done { held }, wait);
        follows
    }

    /// Logs each panic, and an error that is not the last one.
    fn tell(&mut self, error: &str, is_panic: bool, wait: Duration) {
        let (job, of) = (self.listed.name(), self.listed.subject());
        let retry_ms = wait.as_millis();
        if is_panic {
            tracing::error!(
                job,
                of,
                error,
                retry_ms,
                "a step of a background job broke off; the server retries, and this is a bug"
            );
        } else if self.told.as_deref() != Some(error) {
            tracing::warn!(
                job,
                of,
                error,
                retry_ms,
                "a background job failed; the server retries"
            );
        }
        self.told = Some(error.to_owned());
    }
}

/// Runs `work` to its end, or to its panic, whose message is returned.
async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    poll_fn(|context| {
        // After a panic it is not polled again.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(text_of(&*panic))),
        }
    })
    .await
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".to_owned())
}
