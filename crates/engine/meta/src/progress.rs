//! Progress of the log, and the tasks that wait for a position.
//!
//! Owns: waking. Must not know: the contents of the log. All waiters share one list: a group wakes many.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use cairn_base::LogPosition;
use parking_lot::Mutex;

use crate::error::MetaError;

#[derive(Default)]
pub(crate) struct Progress {
    durable: AtomicU64,
    is_stopped: AtomicBool,
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    /// Waiters are not told of anything that becomes durable from now on.
    is_fenced: bool,
    /// Reason why nothing becomes durable any more.
    stopped: Option<MetaError>,
    outcome: Outcome,
    waiting: Vec<(LogPosition, Waker)>,
}

/// Outcome of changes that were not known to be durable when the store ended.
#[derive(Clone, Copy, Default)]
enum Outcome {
    /// No successor will report it.
    #[default]
    Unknown,
    /// The store's successor will report it.
    Expected,
    /// Changes below this position took effect, later ones did not.
    TookEffectBelow(LogPosition),
}

impl Waiters {
    /// Result for a waiter: `None` while it has to wait.
    fn verdict(
        &self,
        durable: LogPosition,
        position: LogPosition,
        until_outcome: bool,
    ) -> Option<Result<(), MetaError>> {
        if durable >= position && !self.is_fenced {
            return Some(Ok(()));
        }
        let reason = self.stopped.as_ref()?;
        match self.outcome {
            Outcome::TookEffectBelow(start) if position < start => Some(Ok(())),
            Outcome::Expected if until_outcome => None,
            _ => Some(Err(reason.clone())),
        }
    }
}

impl Progress {
    pub fn durable(&self) -> LogPosition {
        LogPosition(self.durable.load(Ordering::Acquire))
    }

    /// Whether everything up to `position` is durable and the store has not ended.
    pub fn is_durable(&self, position: LogPosition) -> bool {
        self.durable() >= position && !self.is_stopped()
    }

    /// Notes that everything up to `position` is durable, and wakes the waiters for it.
    pub fn advance(&self, position: LogPosition) {
        let woken: Vec<Waker> = {
            let mut waiters = self.waiters.lock();
            if waiters.is_fenced {
                return;
            }
            self.durable.fetch_max(position.0, Ordering::AcqRel);
            let all = std::mem::take(&mut waiters.waiting);
            let mut woken = Vec::with_capacity(all.len());
            for (wanted, waker) in all {
                if wanted <= position {
                    woken.push(waker);
                } else {
                    waiters.waiting.push((wanted, waker));
                }
            }
            woken
        };
        // Outside the lock: a woken task may ask at once.
        for waker in woken {
            waker.wake();
        }
    }

    /// Ends progress: nothing becomes durable from now on. The first reason is kept.
    pub fn stop(&self, reason: MetaError) {
        let woken = {
            let mut waiters = self.waiters.lock();
            waiters.stopped.get_or_insert(reason);
            self.is_stopped.store(true, Ordering::Release);
            std::mem::take(&mut waiters.waiting)
        };
        for (_, waker) in woken {
            waker.wake();
        }
    }

    /// As `stop`, for a store with a successor. Writes that become durable here may not be part of the successor's
    /// history, so no waiter is told of them, nor of anything durable before.
    pub fn fence(&self, reason: MetaError) {
        self.waiters.lock().is_fenced = true;
        self.stop(reason);
    }

    /// Announces that a successor will report the outcome of changes if this store ends.
    pub fn expect_outcome(&self) {
        self.waiters.lock().outcome = Outcome::Expected;
    }

    pub fn expect_no_outcome(&self) {
        let woken = {
            let mut waiters = self.waiters.lock();
            if !matches!(waiters.outcome, Outcome::Expected) {
                return;
            }
            waiters.outcome = Outcome::Unknown;
            // They stay in the list: a store that has not ended may still report to them.
            let wakers = waiters.waiting.iter().map(|(_, waker)| waker.clone());
            wakers.collect::<Vec<Waker>>()
        };
        for waker in woken {
            waker.wake();
        }
    }

    /// Reports the outcome of changes after the successor recovered the log: changes below `start` took effect, later
    /// ones did not. `None` if the successor does not know.
    pub fn settle(&self, start: Option<LogPosition>) {
        let outcome = start.map_or(Outcome::Unknown, Outcome::TookEffectBelow);
        self.waiters.lock().outcome = outcome;
        self.fence(MetaError::Closed);
    }

    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    pub fn stop_reason(&self) -> Option<MetaError> {
        if !self.is_stopped() {
            return None;
        }
        self.waiters.lock().stopped.clone()
    }

    pub fn wait(self: &Arc<Self>, position: LogPosition) -> Durable {
        Durable {
            progress: self.clone(),
            position,
            until_outcome: false,
            refusal: None,
            registered: None,
        }
    }

    /// As [`Self::wait`]; if the store ends, it waits for its successor to report the outcome.
    pub fn wait_for_outcome(self: &Arc<Self>, position: LogPosition) -> Durable {
        Durable {
            until_outcome: true,
            ..self.wait(position)
        }
    }

    /// A wait that ends at once with an error.
    pub fn refuse(self: &Arc<Self>, refusal: MetaError) -> Durable {
        Durable {
            refusal: Some(refusal),
            ..self.wait(LogPosition(0))
        }
    }
}

/// Resolves when a log position is durable, or can never be.
pub struct Durable {
    progress: Arc<Progress>,
    position: LogPosition,
    until_outcome: bool,
    refusal: Option<MetaError>,
    registered: Option<Waker>,
}

impl Future for Durable {
    type Output = Result<(), MetaError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(refusal) = self.refusal.take() {
            return Poll::Ready(Err(refusal));
        }
        let progress = self.progress.clone();
        if progress.is_durable(self.position) {
            return Poll::Ready(Ok(()));
        }
        let mut waiters = progress.waiters.lock();
        // Under the lock: a concurrent `advance` would miss this waiter.
        let verdict = waiters.verdict(progress.durable(), self.position, self.until_outcome);
        if let Some(result) = verdict {
            return Poll::Ready(result);
        }
        let waker = context.waker();
        let is_known = (self.registered.as_ref()).is_some_and(|known| known.will_wake(waker));
        // A store that ends clears its list; waiters for the outcome register again.
        if !is_known || waiters.stopped.is_some() {
            waiters.waiting.push((self.position, waker.clone()));
            drop(waiters);
            self.registered = Some(waker.clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use futures_util::FutureExt;

    use super::*;

    fn progress(durable: u64) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        progress.advance(LogPosition(durable));
        progress
    }

    fn verdict(wait: Durable) -> Option<bool> {
        wait.now_or_never().map(|result| result.is_ok())
    }

    #[test]
    fn nobody_hears_of_what_was_durable_in_a_store_that_was_left_behind() {
        let progress = progress(5);
        assert_eq!(verdict(progress.wait(LogPosition(5))), Some(true));
        assert!(progress.is_durable(LogPosition(5)));
        progress.fence(MetaError::Closed);
        assert_eq!(verdict(progress.wait(LogPosition(5))), Some(false));
        assert!(!progress.is_durable(LogPosition(5)));
        // A write in progress completes.
        progress.advance(LogPosition(9));
        assert_eq!(progress.durable(), LogPosition(5));
    }

    #[test]
    fn who_waits_is_told_also_when_no_successor_is_expected_any_more() {
        let progress = progress(5);
        progress.expect_outcome();
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut wait = Box::pin(progress.wait(LogPosition(6)));
        assert!(wait.as_mut().poll(&mut context).is_pending());
        progress.expect_no_outcome();
        assert!(wait.as_mut().poll(&mut context).is_pending());
        let before = woken.0.load(Ordering::Acquire);
        progress.advance(LogPosition(6));
        assert!(woken.0.load(Ordering::Acquire) > before);
        assert!(wait.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn what_was_durable_before_a_store_stopped_stays_so() {
        let progress = progress(5);
        progress.stop(MetaError::Closed);
        assert_eq!(verdict(progress.wait(LogPosition(5))), Some(true));
        assert_eq!(verdict(progress.wait(LogPosition(6))), Some(false));
        // The store ended, so only waiters for the outcome are told.
        assert!(!progress.is_durable(LogPosition(5)));
    }

    #[test]
    fn the_successor_has_the_last_word() {
        let progress = progress(5);
        progress.expect_outcome();
        progress.stop(MetaError::Closed);
        assert_eq!(verdict(progress.wait_for_outcome(LogPosition(6))), None);
        assert_eq!(verdict(progress.wait(LogPosition(6))), Some(false));
        progress.settle(Some(LogPosition(8)));
        // A write of the old store completes late: the successor's log goes on without it.
        progress.advance(LogPosition(9));
        let outcome = |at| verdict(progress.wait_for_outcome(LogPosition(at)));
        assert_eq!([outcome(7), outcome(8)], [Some(true), Some(false)]);
        assert_eq!(verdict(progress.wait(LogPosition(9))), Some(false));
    }

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_for_the_outcome_is_woken_when_it_is_known() {
        let progress = progress(5);
        progress.expect_outcome();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let mut wait = progress.wait_for_outcome(LogPosition(6));
        assert!(wait.poll_unpin(&mut context).is_pending());
        progress.stop(MetaError::Closed);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(wait.poll_unpin(&mut context).is_pending());
        progress.settle(Some(LogPosition(8)));
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert!(wait.poll_unpin(&mut context).is_ready());
    }
}
