//! Parallel work on several disks, one of which may not answer.
//!
//! Owns: the wait for the other disks once one has answered. Must not know: the work, the fate of late disks.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use cairn_base::disk::DiskError;
use cairn_base::env::{BoxFuture, Clock};
use futures_util::future::{Either, select};

/// Minimum extra time after the first answer: if the host was slow, all disks were.
const GRACE: Duration = Duration::from_millis(100);

pub(super) type Work<T, E = DiskError> = BoxFuture<Result<T, E>>;

/// Outcome of the work on one disk.
pub(super) enum Done<T, E = DiskError> {
    Answered(Result<T, E>),
    /// Another disk finished long ago. The work goes on while its owner polls it.
    Late(Work<T, E>),
}

enum Step<T, E> {
    Running(Work<T, E>),
    Over(Result<T, E>),
}

/// Runs all of `work` in parallel. Work that takes longer than `wait` is late if other work succeeded. So nothing is
/// late with one disk, or before the first success. Keeps the order.
pub(super) async fn all_or_late<T, E>(
    clock: &dyn Clock,
    wait: Duration,
    work: Vec<Work<T, E>>,
) -> Vec<Done<T, E>> {
    let begun = clock.monotonic();
    let mut steps: Vec<Step<T, E>> = work.into_iter().map(Step::Running).collect();
    let mut timer: Option<BoxFuture<()>> = None;
    poll_fn(|context| {
        let (mut is_over, mut has_succeeded) = (true, false);
        for step in &mut steps {
            if let Step::Running(work) = step
                && let Poll::Ready(result) = work.as_mut().poll(context)
            {
                *step = Step::Over(result);
            }
            match step {
                Step::Running(_) => is_over = false,
                Step::Over(result) => has_succeeded |= result.is_ok(),
            }
        }
        if is_over {
            return Poll::Ready(());
        }
        if !has_succeeded {
            return Poll::Pending;
        }
        let timer = timer.get_or_insert_with(|| {
            let taken = clock.monotonic().saturating_sub(begun);
            clock.sleep(wait.saturating_sub(taken).max(GRACE.min(wait)))
        });
        timer.as_mut().poll(context)
    })
    .await;
    let done = |step| match step {
        Step::Running(work) => Done::Late(work),
        Step::Over(result) => Done::Answered(result),
    };
    steps.into_iter().map(done).collect()
}

/// Runs `work` on one disk; it is late after `wait`. Without `wait` it is never late.
pub(super) async fn in_time<T>(
    clock: &dyn Clock,
    wait: Option<Duration>,
    work: Work<T>,
) -> Done<T> {
    let Some(wait) = wait else {
        return Done::Answered(work.await);
    };
    match select(work, clock.sleep(wait)).await {
        Either::Left((result, _)) => Done::Answered(result),
        Either::Right((_, work)) => Done::Late(work),
    }
}

#[cfg(test)]
mod tests {
    use cairn_testkit::TestWorld;
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    const WAIT: Duration = Duration::from_millis(500);

    fn full() -> DiskError {
        let disk = "disk".to_owned();
        DiskError::Full {
            disk,
            what: "a test".to_owned(),
        }
    }

    /// Answer time of each disk in milliseconds and its success; expected end; expected late disks.
    type Case<'a> = (&'a str, &'a [(u64, bool)], u64, &'a [usize]);

    #[test]
    fn only_who_is_later_than_others_is_late() {
        const NEVER: u64 = u64::MAX;
        let cases: &[Case<'_>] = &[
            ("all at once", &[(1, true), (1, true)], 1, &[]),
            ("one is silent", &[(1, true), (NEVER, true)], 500, &[1]),
            ("it is slow", &[(400, true), (1, true)], 400, &[]),
            ("alone", &[(30_000, true)], 30_000, &[]),
            ("all are slow", &[(3000, true), (3050, true)], 3050, &[]),
            (
                "one more than others",
                &[(3000, true), (9000, true)],
                3100,
                &[1],
            ),
            (
                "an error is no reason",
                &[(1, false), (9000, true)],
                9000,
                &[],
            ),
            (
                "two of three",
                &[(NEVER, true), (1, true), (NEVER, true)],
                500,
                &[0, 2],
            ),
        ];
        for (name, answers, end, late) in cases {
            let world = TestWorld::new(1);
            let mut senders = Vec::new();
            let mut work: Vec<Work<()>> = Vec::new();
            for _ in *answers {
                let (sender, receiver) = oneshot::channel();
                senders.push(Some(sender));
                work.push(Box::pin(async move { receiver.await.expect("it answers") }));
            }
            let mut all = Box::pin(all_or_late(&*world.env.clock, WAIT, work));
            let mut now = 0;
            let done = loop {
                for (sender, (at, is_good)) in senders.iter_mut().zip(*answers) {
                    if now >= *at
                        && let Some(sender) = sender.take()
                    {
                        let answer = if *is_good { Ok(()) } else { Err(full()) };
                        sender.send(answer).expect("somebody waits");
                    }
                }
                if let Some(done) = all.as_mut().now_or_never() {
                    break done;
                }
                world.clock.advance(Duration::from_millis(1));
                now += 1;
            };
            let is_late = |index: &usize| matches!(done.get(*index), Some(Done::Late(_)));
            let found: Vec<usize> = (0..done.len()).filter(is_late).collect();
            assert_eq!((now, found.as_slice()), (*end, *late), "{name}");
        }
    }
}
