//! A task on a thread of its own that may block it, and is not lost when the thread never comes back.
//!
//! Owns: which thread polls the task, handing it to another one.
//! Must not know: what blocks. A disk that hangs keeps a thread in the kernel for as long as it likes.
//!
//! A future that would block the thread says so with [`run_inline`]: the call is made by the thread of the task
//! right after its poll, with no hand-over, which is what such a thread is for. The task itself is not being
//! polled then. If something wakes it and the call takes longer than [`TAKE_OVER_AFTER`], another thread goes
//! on with it, and the first one ends whenever its call does. So each call that never returns costs a thread,
//! and a caller must not make more calls where one hung.
//!
//! A thread that is often woken soon after it came to rest looks for that for a moment before it sleeps: each wake-up of a thread
//! that sleeps takes 20 us and more, and the log's thread is woken for each small change.
//!
//! A thread that waits for a core takes long, too, and no disk is to blame. So a call counts as one that hangs only where its thread
//! is seen to sleep in the kernel for a while: see [`Doing`].

use std::cell::RefCell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::env::BoxFuture;
use crate::looking::{self, Trust};

/// A call that takes longer does not keep the task from being polled any more: so long the log waits for a silent disk,
/// and its last copy is written by such a call.
const TAKE_OVER_AFTER: Duration = Duration::from_millis(500);

/// After that time the thread has to be seen to sleep for this share of it.
const SLEEP_SHARE: u32 = 4;
/// It is looked at so often then.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// A task that rests is looked after for so long before its thread sleeps: a client that waits for each answer comes again 50 to
/// 100 us after it.
const REST_LOOK_TIME_MAX: Duration = Duration::from_micros(150);

type Call = Box<dyn FnOnce() + Send>;
type Enter = Box<dyn Fn(&dyn Fn()) + Send + Sync>;

/// What the thread of a task offers to the poll under way.
enum Offer {
    Free,
    Taken(Call),
}

thread_local! {
    /// `None`: this thread polls no task that may block it.
    static OFFER: RefCell<Option<Offer>> = const { RefCell::new(None) };
}

/// Whether [`run_inline`] would take a call now: inside of a poll by a thread that may be blocked, once per poll.
pub fn is_possible() -> bool {
    OFFER.with_borrow(|offer| matches!(offer, Some(Offer::Free)))
}

/// Has `call` made by this thread after the poll under way. Gives it back if [`is_possible`] says no.
///
/// Once begun the call runs to its end, whether or not the future is kept.
pub fn run_inline<T, F>(call: F) -> Result<InlineCall<T>, F>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    if !is_possible() {
        return Err(call);
    }
    let result: Arc<Mutex<Answer<T>>> = Arc::default();
    let answer = Arc::clone(&result);
    let call: Call = Box::new(move || {
        let value = call();
        let waker = {
            let mut answer = answer.lock();
            answer.value = Some(value);
            answer.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    });
    OFFER.with_borrow_mut(|offer| *offer = Some(Offer::Taken(call)));
    Ok(InlineCall { result })
}

/// Looks, for `most` at most, until something is there, inside of a poll by a thread that may be blocked; says whether it is. `None`
/// on any other thread, which others need.
pub fn look_for(most: Duration, is_there: impl FnMut() -> bool) -> Option<bool> {
    is_possible().then(|| looking::look(most, is_there))
}

struct Answer<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Self {
            value: None,
            waker: None,
        }
    }
}

/// The result of a call by the task's own thread.
pub struct InlineCall<T> {
    result: Arc<Mutex<Answer<T>>>,
}

impl<T> Future for InlineCall<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut answer = self.result.lock();
        match answer.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                answer.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// What a thread does, as the system sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It has a core, or waits for one.
    Runs,
    /// It sleeps. The number is that of its waits so far: it is another one in the next wait.
    Waits(u64),
    /// The system does not say.
    Unknown,
}

impl Doing {
    fn of(place: Option<&Path>) -> Self {
        let status = place.map(|place| std::fs::read_to_string(place.join("status")));
        match status {
            Some(Ok(status)) => Self::in_status(&status).unwrap_or(Self::Unknown),
            Some(Err(_)) | None => Self::Unknown,
        }
    }

    /// From the file `status` of a thread. Source: proc_pid_status(5), `State` and `voluntary_ctxt_switches`.
    fn in_status(status: &str) -> Option<Self> {
        let value = |wanted: &str| {
            let mut lines = status.lines();
            lines.find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name == wanted).then_some(value.trim())
            })
        };
        if value("State")?.starts_with('R') {
            return Some(Self::Runs);
        }
        let waits = value("voluntary_ctxt_switches")?.parse().ok()?;
        Some(Self::Waits(waits))
    }
}

/// For how long a thread was seen to sleep in a call.
#[derive(Default)]
struct Slept {
    /// The call, by when it began.
    call: Option<Instant>,
    /// When it was seen to sleep last, and in which wait.
    last: Option<(Instant, u64)>,
    time: Duration,
}

impl Slept {
    /// When to look again, if the thread has not been seen to sleep for `most` yet in the call that began at `call`; zero: it has.
    fn left(&mut self, call: Instant, doing: Doing, now: Instant, most: Duration) -> Duration {
        if self.call != Some(call) {
            *self = Self {
                call: Some(call),
                ..Self::default()
            };
        }
        match doing {
            Doing::Unknown => Duration::ZERO,
            Doing::Runs => {
                self.last = None;
                LOOK_PAUSE
            }
            Doing::Waits(wait) => {
                if let Some((at, before)) = self.last {
                    let time = now.saturating_duration_since(at);
                    // The observer may be late, and in another wait it may have waited for a core in between.
                    self.time += match before == wait {
                        true => time,
                        false => time.min(LOOK_PAUSE),
                    };
                }
                self.last = Some((now, wait));
                most.saturating_sub(self.time).min(LOOK_PAUSE)
            }
        }
    }
}

/// A task with its thread.
struct OwnThread {
    name: String,
    future: Mutex<Option<BoxFuture<()>>>,
    state: Mutex<State>,
    take_over_after: Duration,
    /// Whether a thread looks before it sleeps.
    looks: bool,
    /// What a thread of the task does around its life: it enters the runtime whose timers the task uses.
    enter: Enter,
}

#[derive(Default)]
struct State {
    /// Grows with every thread; only the last one polls.
    generation: u64,
    thread: Option<Thread>,
    /// What the system says of that thread: its folder in `/proc`. `None`: it says nothing.
    place: Option<PathBuf>,
    is_woken: bool,
    /// Since when the thread makes a call.
    blocked_since: Option<Instant>,
    /// A thread waits for the end of a call during which the task was woken, to take over if it does not come.
    has_successor: bool,
}

impl Wake for OwnThread {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock();
        state.is_woken = true;
        if state.blocked_since.is_none() {
            if let Some(thread) = &state.thread {
                thread.unpark();
            }
            return;
        }
        // It looks again after its call, the end of which is what its own thread wakes it for.
        let own = state.thread.as_ref().map(Thread::id);
        if own != Some(std::thread::current().id()) {
            self.want_successor(&mut state);
        }
    }
}

/// Runs `task` on a thread of its own. `enter` is called by each of its threads with what the thread does.
/// Gives the task back where there is no thread.
pub fn spawn(
    name: &str,
    task: BoxFuture<()>,
    enter: impl Fn(&dyn Fn()) + Send + Sync + 'static,
) -> Result<(), BoxFuture<()>> {
    spawn_with(name, task, enter, TAKE_OVER_AFTER)
}

fn spawn_with(
    name: &str,
    task: BoxFuture<()>,
    enter: impl Fn(&dyn Fn()) + Send + Sync + 'static,
    take_over_after: Duration,
) -> Result<(), BoxFuture<()>> {
    let task = Arc::new(OwnThread {
        name: name.to_owned(),
        future: Mutex::new(Some(task)),
        state: Mutex::default(),
        take_over_after,
        looks: looking::is_sensible(),
        enter: Box::new(enter),
    });
    let first = Arc::clone(&task);
    match start(&task, move || first.run(0)) {
        Ok(()) => Ok(()),
        // Nobody polls it, so it is still there.
        Err(_) => Err(task
            .future
            .lock()
            .take()
            .unwrap_or_else(|| Box::pin(async {}))),
    }
}

fn start(task: &Arc<OwnThread>, work: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let task = Arc::clone(task);
    std::thread::Builder::new()
        .name(task.name.clone())
        .spawn(move || (task.enter)(&work))
        .map(drop)
}

impl OwnThread {
    /// The task was woken in a call, and nobody may do so a second time: should the call not end, another thread
    /// has to see to it.
    fn want_successor(self: &Arc<Self>, state: &mut State) {
        if state.has_successor {
            return;
        }
        let successor = Arc::clone(self);
        match start(self, move || successor.take_over()) {
            Ok(()) => state.has_successor = true,
            Err(error) => {
                tracing::error!(task = self.name, %error, "no thread could take over, should the disk not answer");
            }
        }
    }

    /// Waits until the call under way has ended, or polls the task from now on if it takes too long.
    fn take_over(self: &Arc<Self>) {
        let mut slept = Slept::default();
        loop {
            let (since, place) = {
                let mut state = self.state.lock();
                match state.blocked_since {
                    // Woken in a call that is over; nothing woke the work since.
                    Some(since) if state.is_woken => (since, state.place.clone()),
                    _ => {
                        state.has_successor = false;
                        return;
                    }
                }
            };
            let mut left = self.take_over_after.saturating_sub(since.elapsed());
            if left.is_zero() {
                let most = self.take_over_after / SLEEP_SHARE;
                left = slept.left(since, Doing::of(place.as_deref()), Instant::now(), most);
            }
            if left.is_zero() {
                let mut state = self.state.lock();
                // It may have ended while it was looked at, and another one begun.
                if state.blocked_since != Some(since) || !state.is_woken {
                    continue;
                }
                state.has_successor = false;
                state.blocked_since = None;
                state.generation += 1;
                let generation = state.generation;
                drop(state);
                tracing::error!(
                    task = self.name,
                    "a thread does not come back from a disk; another one goes on"
                );
                return self.run(generation);
            }
            std::thread::sleep(left);
        }
    }

    fn run(self: &Arc<Self>, generation: u64) {
        let waker = Waker::from(Arc::clone(self));
        // PID/task/TID.
        let place = std::fs::read_link("/proc/thread-self").ok();
        let mut place = Some(place.map(|thread| Path::new("/proc").join(thread)));
        let mut trust = Trust::default();
        loop {
            {
                let mut state = self.state.lock();
                if state.generation != generation {
                    return;
                }
                if let Some(place) = place.take() {
                    state.place = place;
                }
                state.thread = Some(std::thread::current());
                state.is_woken = false;
            }
            let Some(call) = self.poll(&waker) else {
                return;
            };
            let Some(call) = call else {
                self.rest(&mut trust);
                continue;
            };
            {
                let mut state = self.state.lock();
                state.blocked_since = Some(Instant::now());
                if state.is_woken {
                    // Between the poll and now.
                    self.want_successor(&mut state);
                }
            }
            call();
            let mut state = self.state.lock();
            if state.generation != generation {
                return;
            }
            state.blocked_since = None;
        }
    }

    /// Until the task is woken.
    fn rest(&self, trust: &mut Trust) {
        let is_woken = || self.state.lock().is_woken;
        if is_woken() {
            return;
        }
        if self.looks && trust.looks() {
            let found = looking::look(REST_LOOK_TIME_MAX, is_woken);
            trust.note(found);
            if found {
                return;
            }
        }
        while !is_woken() {
            std::thread::park();
        }
    }

    /// Polls once; `None` when the task has ended, else the call that it wants to be made.
    fn poll(&self, waker: &Waker) -> Option<Option<Call>> {
        let mut held = self.future.lock();
        let future = held.as_mut()?;
        OFFER.set(Some(Offer::Free));
        let mut context = Context::from_waker(waker);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            future.as_mut().poll(&mut context)
        }));
        let offer = OFFER.take();
        match polled {
            Ok(Poll::Pending) => Some(match offer {
                Some(Offer::Taken(call)) => Some(call),
                _ => None,
            }),
            Ok(Poll::Ready(())) => {
                *held = None;
                None
            }
            Err(panic) => {
                // What the task holds is let go, so that those who wait for it are told.
                *held = None;
                drop(held);
                std::panic::resume_unwind(panic)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    fn nothing(run: &dyn Fn()) {
        run();
    }

    /// Ready when the flag is set.
    #[derive(Clone, Default)]
    struct Flag(Arc<Mutex<(bool, Option<Waker>)>>);

    impl Flag {
        fn set(&self) {
            let mut flag = self.0.lock();
            flag.0 = true;
            if let Some(waker) = flag.1.take() {
                waker.wake();
            }
        }
    }

    impl Future for Flag {
        type Output = ();

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            let mut flag = self.0.lock();
            if flag.0 {
                return Poll::Ready(());
            }
            flag.1 = Some(context.waker().clone());
            Poll::Pending
        }
    }

    async fn first(flag: Flag, mut call: InlineCall<u32>) -> Option<u32> {
        let mut flag = flag;
        std::future::poll_fn(move |context| {
            if Pin::new(&mut flag).poll(context).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut call).poll(context).map(Some)
        })
        .await
    }

    #[test]
    fn a_call_is_made_by_the_tasks_thread() {
        let (told, answers) = channel();
        let task = async move {
            for number in 0..100 {
                let thread = std::thread::current().id();
                let call = run_inline(move || (number, std::thread::current().id()));
                let (got, by) = call.unwrap_or_else(|_| panic!("it is possible")).await;
                told.send((got == number, by == thread)).unwrap();
            }
        };
        assert!(spawn("test", Box::pin(task), nothing).is_ok());
        let answers: Vec<_> = answers.iter().collect();
        assert_eq!(answers, vec![(true, true); 100]);
        assert!(!is_possible(), "not on other threads");
        assert!(run_inline(|| ()).is_err());
    }

    #[test]
    fn no_wake_up_is_lost_whether_it_comes_before_the_thread_sleeps_or_later() {
        let (told, answers) = channel();
        let flags: Vec<Flag> = (0..200).map(|_| Flag::default()).collect();
        let awaited = flags.clone();
        let task = async move {
            for flag in awaited {
                flag.await;
                told.send(()).unwrap();
            }
        };
        assert!(spawn("test", Box::pin(task), nothing).is_ok());
        for (index, flag) in flags.iter().enumerate() {
            // From at once to long after the last look.
            let since = Instant::now();
            while since.elapsed() < REST_LOOK_TIME_MAX / 50 * (index as u32 % 100) {
                std::hint::spin_loop();
            }
            flag.set();
            answers.recv().unwrap();
        }
    }

    #[test]
    fn only_the_thread_of_a_task_looks() {
        let (told, answers) = channel();
        let flag = Arc::new(Mutex::new(false));
        let is_set = Arc::clone(&flag);
        let task = async move {
            told.send(look_for(Duration::ZERO, || false)).unwrap();
            let long = Duration::from_secs(3600);
            told.send(look_for(long, || *is_set.lock())).unwrap();
        };
        assert!(spawn("test", Box::pin(task), nothing).is_ok());
        assert_eq!(answers.recv(), Ok(Some(false)));
        *flag.lock() = true;
        assert_eq!(answers.recv(), Ok(Some(true)));
        assert_eq!(look_for(Duration::ZERO, || true), None);
    }

    #[test]
    fn one_call_in_a_poll() {
        let (told, answers) = channel();
        let task = async move {
            let one = run_inline(|| 1_u32);
            let other = run_inline(|| 2_u32);
            told.send((one.is_ok(), other.is_err())).unwrap();
            if let Ok(one) = one {
                assert_eq!(one.await, 1);
            }
            told.send((is_possible(), true)).unwrap();
        };
        assert!(spawn("test", Box::pin(task), nothing).is_ok());
        assert_eq!(answers.iter().collect::<Vec<_>>(), [(true, true); 2]);
    }

    /// A call that hangs is given up as soon as it has begun; another follows. What the task got of each.
    fn calls_with_one_that_hangs(patience: Duration) -> Vec<Option<u32>> {
        let (hang, hangs): (Sender<()>, Receiver<()>) = channel();
        let (begun, has_begun) = channel();
        let (told, answers) = channel();
        let flag = Flag::default();
        let given_up = flag.clone();
        let task = async move {
            let call = run_inline(move || {
                begun.send(()).unwrap();
                let _ = hangs.recv();
                7_u32
            });
            let call = call.unwrap_or_else(|_| panic!("it is possible"));
            told.send(first(given_up, call).await).unwrap();
            // It can block the new thread as well.
            let call = run_inline(|| 8_u32).unwrap_or_else(|_| panic!("it is possible"));
            told.send(Some(call.await)).unwrap();
        };
        assert!(spawn_with("test", Box::pin(task), nothing, patience).is_ok());
        has_begun.recv().unwrap();
        flag.set();
        let answers = answers.iter().collect();
        // The first one ends when its call does, and disturbs nobody.
        drop(hang);
        answers
    }

    #[test]
    fn another_thread_goes_on_when_a_call_hangs() {
        assert_eq!(calls_with_one_that_hangs(Duration::ZERO), [None, Some(8)]);
    }

    /// What wakes the task may come early in a call, and not again.
    #[test]
    fn a_wake_up_at_the_begin_of_a_call_that_hangs_is_not_lost() {
        let soon = Duration::from_millis(50);
        assert_eq!(calls_with_one_that_hangs(soon), [None, Some(8)]);
    }

    #[test]
    fn a_wake_up_in_between_takes_nothing_over() {
        let (go, goes): (Sender<()>, Receiver<()>) = channel();
        let (begun, has_begun) = channel();
        let (told, answers) = channel();
        let flag = Flag::default();
        let given_up = flag.clone();
        let task = async move {
            let thread = std::thread::current().id();
            let call = run_inline(move || {
                begun.send(()).unwrap();
                goes.recv().unwrap();
                7_u32
            });
            let call = call.unwrap_or_else(|_| panic!("it is possible"));
            let got = first(given_up, call).await;
            told.send((got, std::thread::current().id() == thread))
                .unwrap();
        };
        let long = Duration::from_secs(3600);
        assert!(spawn_with("test", Box::pin(task), nothing, long).is_ok());
        has_begun.recv().unwrap();
        flag.set();
        go.send(()).unwrap();
        assert_eq!(answers.iter().collect::<Vec<_>>(), [(None, true)]);
    }

    /// Under load a thread waits for a core for longer than any disk takes.
    #[test]
    fn a_call_that_runs_or_waits_for_a_core_is_not_taken_over() {
        let (begun, has_begun) = channel();
        let (told, answers) = channel();
        let flag = Flag::default();
        let given_up = flag.clone();
        let task = async move {
            let thread = std::thread::current().id();
            let call = run_inline(move || {
                let since = Instant::now();
                begun.send(()).unwrap();
                while since.elapsed() < Duration::from_millis(100) {
                    std::hint::spin_loop();
                }
                7_u32
            });
            let call = call.unwrap_or_else(|_| panic!("it is possible"));
            let got = first(given_up, call).await;
            told.send((got, std::thread::current().id() == thread))
                .unwrap();
        };
        assert!(spawn_with("test", Box::pin(task), nothing, Duration::ZERO).is_ok());
        has_begun.recv().unwrap();
        flag.set();
        assert_eq!(answers.iter().collect::<Vec<_>>(), [(None, true)]);
    }

    #[test]
    fn what_a_thread_does_is_read_from_its_status() {
        let status = |state: &str| {
            format!(
                "Name:\tcairn: State: R\nUmask:\t0077\nState:\t{state}\nTgid:\t7\nvoluntary_ctxt_switches:\t150\n\
                 nonvoluntary_ctxt_switches:\t545\n"
            )
        };
        let cases = [
            (status("R (running)"), Some(Doing::Runs)),
            (status("D (disk sleep)"), Some(Doing::Waits(150))),
            (status("S (sleeping)"), Some(Doing::Waits(150))),
            ("State:\tD (disk sleep)\n".to_owned(), None),
            ("voluntary_ctxt_switches:\t1\n".to_owned(), None),
            (String::new(), None),
        ];
        for (status, want) in cases {
            assert_eq!(Doing::in_status(&status), want, "{status}");
        }
        // The thread that asks runs.
        let own = std::fs::read_link("/proc/thread-self").unwrap();
        let own = Path::new("/proc").join(own);
        assert_eq!(Doing::of(Some(&own)), Doing::Runs);
        assert_eq!(Doing::of(None), Doing::Unknown);
        assert_eq!(Doing::of(Some(Path::new("/nonexistent"))), Doing::Unknown);
    }

    #[test]
    fn sleep_counts_and_waiting_for_a_core_does_not() {
        use Doing::{Runs, Unknown, Waits};
        let at = |ms: u64| Duration::from_millis(ms);
        // Since the begin of the first call: which call, what its thread does, and when it is looked at again.
        let cases = [
            // One wait, which somebody who is late himself looks at.
            (0, 500, Waits(7), at(10)),
            (0, 510, Waits(7), at(10)),
            (0, 600, Waits(7), at(10)),
            (0, 620, Waits(7), at(5)),
            (0, 625, Waits(7), at(0)),
            // Waits that follow one another are the disk's time as well; of a long time between looks little counts.
            (900, 1400, Waits(8), at(10)),
            (900, 1410, Waits(9), at(10)),
            (900, 1500, Waits(30), at(10)),
            (900, 1600, Waits(30), at(5)),
            (900, 1605, Waits(31), at(0)),
            // A core is waited for in between.
            (2000, 2500, Waits(40), at(10)),
            (2000, 2620, Waits(40), at(5)),
            (2000, 3000, Runs, LOOK_PAUSE),
            (2000, 4000, Waits(41), at(5)),
            (2000, 4005, Waits(41), at(0)),
            (5000, 5500, Runs, LOOK_PAUSE),
            (5000, 9500, Runs, LOOK_PAUSE),
            (5000, 9501, Unknown, at(0)),
        ];
        let begin = Instant::now();
        let mut slept = Slept::default();
        for (call, now, doing, want) in cases {
            let (call, now) = (begin + at(call), begin + at(now));
            let left = slept.left(call, doing, now, at(500) / SLEEP_SHARE);
            assert_eq!(left, want, "{doing:?} at {:?}", now - begin);
        }
    }

    #[test]
    fn a_panic_lets_go_of_what_the_task_holds() {
        let (held, is_held): (Sender<()>, Receiver<()>) = channel();
        let task = async move {
            let _held = held;
            panic!("for a test");
        };
        assert!(spawn("test", Box::pin(task), nothing).is_ok());
        assert!(is_held.recv().is_err(), "it is dropped");
    }
}
