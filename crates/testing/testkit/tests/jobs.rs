//! Background jobs (`cairn_base::jobs`) by a clock that the tests move. They are here because that clock is.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::Backoff;
use cairn_base::env::Env;
use cairn_base::jobs::{Job, JobList, JobState, JobView, Next, StepResult, Wake};
use cairn_testkit::TestWorld;
use tokio::sync::{Semaphore, oneshot};

const PERIOD: Duration = Duration::from_secs(10);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Lets all tasks run that can. They are on the thread of the test.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn only(env: &Env) -> JobView {
    let mut views = env.jobs.view(&*env.clock);
    assert_eq!(views.len(), 1, "{views:?}");
    views.remove(0)
}

fn no_room() -> StepResult {
    Err("no room".to_owned())
}

/// Steps that end as `results` say, and then for ever as the last one does.
fn steps_of(results: Vec<StepResult>) -> impl FnMut() -> Ready<StepResult> + Send + 'static {
    let mut index = 0;
    move || {
        let result = results[index.min(results.len() - 1)].clone();
        index += 1;
        ready(result)
    }
}

#[tokio::test]
async fn the_end_of_a_step_says_when_the_next_one_is_due() {
    let cases: &[(&str, StepResult, JobState, Duration)] = &[
        ("done", Ok(Next::Period), JobState::Waiting, PERIOD),
        (
            "a time of its own",
            Ok(Next::After(seconds(3))),
            JobState::Waiting,
            seconds(3),
        ),
        (
            "nothing to do",
            Ok(Next::Held("empty")),
            JobState::Held("empty"),
            PERIOD,
        ),
        ("an error", no_room(), JobState::Failed, PERIOD),
    ];
    for (name, result, state, wait) in cases {
        let TestWorld { env, clock } = TestWorld::new(1);
        Job::every("job", PERIOD).start(&env, steps_of(vec![result.clone()]));
        settle().await;
        let before = only(&env);
        assert_eq!(before.state, JobState::Waiting, "{name}");
        assert_eq!(before.next_in, Some(PERIOD), "{name}: the first step");
        assert_eq!(before.counts.steps, 0, "{name}");
        clock.advance(PERIOD);
        settle().await;
        let after = only(&env);
        assert_eq!(after.state, *state, "{name}");
        assert_eq!(after.next_in, Some(*wait), "{name}");
        assert_eq!(after.counts.steps, 1, "{name}");
        assert_eq!(after.counts.errors, u64::from(result.is_err()), "{name}");
        clock.advance(*wait - Duration::from_nanos(1));
        settle().await;
        assert_eq!(only(&env).counts.steps, 1, "{name}: not before its time");
        clock.advance(Duration::from_nanos(1));
        settle().await;
        assert_eq!(only(&env).counts.steps, 2, "{name}");
    }
}

#[tokio::test]
async fn pauses_after_errors_grow_and_a_success_ends_them() {
    let TestWorld { env, clock } = TestWorld::new(1);
    let mut results = vec![no_room(); 6];
    results[3] = Ok(Next::Period);
    Job::every("job", PERIOD)
        .from_now()
        .retry(Backoff::new(seconds(1), seconds(3)))
        .start(&env, steps_of(results));
    let pauses = [1, 2, 3, PERIOD.as_secs(), 1, 2, 3, 3];
    for (index, pause) in pauses.into_iter().enumerate() {
        settle().await;
        let view = only(&env);
        assert_eq!(view.next_in, Some(seconds(pause)), "after step {index}");
        assert_eq!(view.counts.steps, index as u64 + 1);
        if index == 3 {
            assert_eq!((view.failed_in_row, view.counts.errors), (0, 3));
            let (last_error, _) = view.last_error.expect("it stays");
            assert_eq!(last_error, "no room");
        }
        clock.advance(seconds(pause));
    }
}

/// Whatever the period, a job that fails does not spin, and comes back within a bound.
#[tokio::test]
async fn pauses_without_settings_follow_from_the_period() {
    let cases = [
        (Duration::from_millis(10), seconds(1), seconds(300)),
        (seconds(5), seconds(5), seconds(300)),
        (seconds(3600), seconds(60), seconds(3600)),
    ];
    for (period, first, longest) in cases {
        let TestWorld { env, clock } = TestWorld::new(1);
        let fails = steps_of(vec![no_room()]);
        Job::every("job", period).from_now().start(&env, fails);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            settle().await;
            let pause = only(&env).next_in.expect("it waits");
            pauses.push(pause);
            clock.advance(pause);
        }
        assert_eq!(pauses.first(), Some(&first), "{period:?}");
        assert_eq!(pauses.last(), Some(&longest), "{period:?}");
        assert!(pauses.is_sorted(), "{pauses:?}");
    }
}

#[tokio::test]
async fn a_panic_is_counted_and_the_job_goes_on() {
    let TestWorld { env, clock } = TestWorld::new(1);
    let mut count = 0;
    Job::every("job", PERIOD).from_now().start(&env, move || {
        count += 1;
        let now = count;
        assert!(now != 1, "wanted by a test: 1");
        async move {
            // After an await as well as before.
            tokio::task::yield_now().await;
            assert!(now != 2, "wanted by a test: 2");
        }
    });
    for failed in 1..=2 {
        settle().await;
        let view = only(&env);
        assert_eq!(view.state, JobState::Failed);
        assert_eq!((view.counts.panics, view.failed_in_row), (failed, failed));
        let (error, _) = view.last_error.expect("an error");
        assert_eq!(error, format!("it panicked: wanted by a test: {failed}"));
        clock.advance(view.next_in.expect("it waits"));
    }
    settle().await;
    let view = only(&env);
    assert_eq!(view.state, JobState::Waiting);
    assert_eq!((view.counts.steps, view.counts.panics), (3, 2));
}

#[tokio::test]
async fn a_simulation_gets_the_panics_of_its_jobs() {
    let mut env = TestWorld::new(1).env;
    env.jobs = JobList::of_simulation();
    let job = Job::every("job", PERIOD).from_now();
    job.start(&env, || -> Ready<()> { panic!("wanted by a test") });
    settle().await;
    // The task ended with the panic, and the job with its task.
    assert_eq!(env.jobs.view(&*env.clock), Vec::new());
}

#[tokio::test]
async fn a_wake_has_the_next_step_done_now_and_is_not_lost_during_a_step() {
    let TestWorld { env, .. } = TestWorld::new(1);
    let wake = Wake::default();
    let gate = Arc::new(Semaphore::new(0));
    let gated = Arc::clone(&gate);
    let job = Job::every("job", PERIOD).woken_by(&wake);
    job.start(&env, move || {
        let gate = Arc::clone(&gated);
        async move {
            let permit = gate.acquire().await;
            permit.expect("an open gate").forget();
        }
    });
    settle().await;
    assert_eq!(only(&env).state, JobState::Waiting);
    for round in 1..=3 {
        wake.wake();
        settle().await;
        let view = only(&env);
        assert_eq!(view.state, JobState::Busy);
        assert_eq!((view.next_in, view.busy_for), (None, Some(Duration::ZERO)));
        // The clock stands still: only this wake can begin the step after this one.
        wake.wake();
        gate.add_permits(2);
        settle().await;
        let view = only(&env);
        assert_eq!(view.counts.steps, 2 * round);
        assert_eq!(view.state, JobState::Waiting);
    }
}

#[tokio::test]
async fn a_job_whose_owner_is_gone_leaves_the_list_and_its_counts_stay() {
    let TestWorld { env, clock } = TestWorld::new(1);
    let owner = Arc::new(AtomicUsize::new(0));
    for subject in ["one", "other"] {
        let weak = Arc::downgrade(&owner);
        let job = Job::every("job", PERIOD).of(subject).from_now();
        let count = |owner: Arc<AtomicUsize>| {
            owner.fetch_add(1, Ordering::Relaxed);
            ready(())
        };
        job.start_on(&env, move || weak.upgrade(), count);
    }
    settle().await;
    let views = env.jobs.view(&*env.clock);
    let subjects: Vec<_> = views.iter().map(|job| job.subject.as_deref()).collect();
    assert_eq!(subjects, [Some("one"), Some("other")]);
    assert_eq!(owner.load(Ordering::Relaxed), 2);
    assert_eq!(Arc::strong_count(&owner), 1, "a job that waits keeps none");
    drop(owner);
    clock.advance(PERIOD);
    settle().await;
    assert_eq!(env.jobs.view(&*env.clock), Vec::new());
    let counts = env.jobs.counts()["job"];
    assert_eq!(counts.steps, 4, "two of each, with the last");
}

#[tokio::test]
async fn a_stop_ends_jobs_that_wait_and_waits_for_steps_with_a_bound() {
    let TestWorld { env, clock } = TestWorld::new(1);
    let (end, ended) = oneshot::channel::<()>();
    let mut ended = Some(ended);
    Job::every("busy", PERIOD).from_now().start(&env, move || {
        let ended = ended.take();
        async move { ended.expect("one step").await.expect("the end") }
    });
    let never = || -> Ready<()> { panic!("a step after the stop") };
    Job::every("waits", seconds(3600)).start(&env, never);
    settle().await;
    env.jobs.stop();
    let late = Job::every("late", PERIOD).from_now();
    late.start(&env, never);
    let (list, of_env) = (Arc::clone(&env.jobs), Arc::clone(&env.clock));
    let stopped = tokio::spawn(async move { list.stopped(&*of_env, seconds(2)).await });
    settle().await;
    assert!(!stopped.is_finished());
    clock.advance(seconds(2));
    assert_eq!(stopped.await.expect("no panic"), ["busy"]);
    end.send(()).expect("it waits");
    let left = env.jobs.stopped(&*env.clock, seconds(2)).await;
    assert_eq!(left, Vec::<&str>::new());
    let counts = env.jobs.counts();
    assert_eq!((counts["waits"].steps, counts["late"].steps), (0, 0));
    assert!(counts.values().all(|it| it.panics == 0), "{counts:?}");
}

#[tokio::test]
async fn a_job_on_a_thread_goes_on_after_a_panic_until_its_end() {
    let TestWorld { env, .. } = TestWorld::new(1);
    let ms = Duration::from_millis;
    let mut count = 0;
    let work = move || {
        count += 1;
        assert!(count != 2, "wanted by a test");
        match count {
            4 => Next::End,
            _ => Next::Period,
        }
    };
    let job = Job::every("thread", ms(1)).from_now();
    let job = job.retry(Backoff::new(ms(1), ms(1)));
    job.start_thread(&env, work).expect("a thread");
    let left = env.jobs.stopped(&*env.clock, seconds(1)).await;
    assert_eq!(left, Vec::<&str>::new());
    let counts = env.jobs.counts()["thread"];
    assert_eq!((counts.steps, counts.errors, counts.panics), (4, 1, 1));
}
