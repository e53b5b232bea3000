//! The pace of background work.
//!
//! Owns: the rate, which can be changed at any time, and the way it yields to clients. Must not know: the work done at
//! that rate, the clients.
//!
//! A limit in bytes per second is either too low for an idle machine or too high for a busy one. So background work
//! runs at its limit while clients are idle. While clients work, it takes turns: one part of all background work at a
//! time, and then a rest of several times the duration of the part. That costs clients at most a fourth of disks and
//! processors, at any speed.
//!
//! Work that restores redundancy rests less, because a slow repair is a risk: the less redundancy is left, the shorter
//! the rest. It stays at one part at a time. With several parts in parallel, clients would lose more than one part
//! takes.
//!
//! While clients wait longer than their latency objective ([`Clients::keep_waiting`]), all background work rests
//! longer, up to sixteen times; work that restores redundancy up to four times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::env::Clock;
use parking_lot::{Mutex, RwLock};

/// Limit of the unused time that work may catch up.
const CREDIT_MAX: Duration = Duration::from_millis(100);
/// Length of the pieces of a wait, so that a new rate takes effect soon.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Interval at which held work checks whether it may go on.
const HELD_INTERVAL: Duration = Duration::from_millis(200);
/// Clients count as idle after this time without a request.
const BUSY_FOR: Duration = Duration::from_millis(100);
/// Limit of a rest beside clients: one part that took very long says little about the next.
const REST_MAX: Duration = Duration::from_secs(1);

/// Limit of the factor by which a rest grows while clients wait longer than their latency objective.
const REST_TIMES_MAX: u32 = 16;

type Requests = Box<dyn Fn() -> u64 + Send + Sync>;

/// The risk while background work is not done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// No risk.
    #[default]
    Calm,
    /// Data has lost some of its redundancy.
    Degraded,
    /// Another loss would lose data.
    Bare,
}

const URGENCIES_COUNT: usize = Urgency::Bare as usize + 1;

impl Urgency {
    /// Length of a rest beside clients, as a multiple of the part before it.
    ///
    /// With 1 for degraded data, clients that create files on two processors kept 0.53 of their speed; with 2 it is 0.7
    /// (`make bench-reliability`).
    fn rest_factor(self) -> u32 {
        match self {
            Self::Calm => 3,
            Self::Degraded => 2,
            Self::Bare => 0,
        }
    }

    /// Limit of the factor by which a rest grows for clients that wait longer than their latency objective.
    fn rest_times_max(self) -> u32 {
        match self {
            Self::Calm => REST_TIMES_MAX,
            Self::Degraded => REST_TIMES_MAX / 4,
            Self::Bare => 1,
        }
    }
}

/// The state of clients as background work knows it; shared by all background work.
pub struct Clients {
    clock: Arc<dyn Clock>,
    /// Request counters of clients, one for each protocol.
    requests: RwLock<Vec<Requests>>,
    seen: Mutex<DiskLoad>,
    /// The holder works; the others wait.
    turn: tokio::sync::Mutex<()>,
    /// By urgency, the holder is the next one: work of equal urgency takes turns.
    next: [tokio::sync::Mutex<()>; URGENCIES_COUNT],
    last: Mutex<LastTurn>,
    /// Factor of the usual rest.
    rest_times: AtomicU32,
}

/// The last turn that ended.
#[derive(Default)]
struct LastTurn {
    /// On the monotonic clock.
    ended: Duration,
    took: Duration,
}

#[derive(Default)]
struct DiskLoad {
    requests: u64,
    busy_until: Duration,
}

impl Clients {
    /// Clients count as idle until [`Self::watch`] is called.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            requests: RwLock::default(),
            seen: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            next: Default::default(),
            last: Mutex::default(),
            rest_times: AtomicU32::new(1),
        })
    }

    /// `requests`: number of requests so far, of one protocol; only differences matter.
    pub fn watch(&self, requests: impl Fn() -> u64 + Send + Sync + 'static) {
        self.requests.write().push(Box::new(requests));
    }

    /// Called repeatedly with whether clients wait longer than their latency objective. While they do, each call
    /// doubles the rests; then each call halves them, back to their usual length.
    pub fn keep_waiting(&self, too_long: bool) {
        let next = |times: u32| match too_long {
            true => (times * 2).min(REST_TIMES_MAX),
            false => (times / 2).max(1),
        };
        let times = self.rest_times();
        self.rest_times.store(next(times), Ordering::Relaxed);
    }

    /// Present factor of the rest beside clients.
    pub fn rest_times(&self) -> u32 {
        self.rest_times.load(Ordering::Relaxed)
    }

    fn are_busy(&self) -> bool {
        let requests = self.requests.read();
        if requests.is_empty() {
            return false;
        }
        let requests = requests.iter();
        let requests = requests.fold(0, |sum: u64, so_far| sum.wrapping_add(so_far()));
        let now = self.clock.monotonic();
        let mut seen = self.seen.lock();
        if requests != seen.requests {
            *seen = DiskLoad {
                requests,
                busy_until: now + BUSY_FOR,
            };
        }
        now < seen.busy_until
    }

    /// Remaining rest for work of this urgency.
    fn rest_left(&self, urgency: Urgency) -> Duration {
        let last = self.last.lock();
        let times = self.rest_times().min(urgency.rest_times_max());
        let rest = last.took.saturating_mul(urgency.rest_factor());
        let rest_until = last.ended + rest.min(REST_MAX) * times;
        rest_until.saturating_sub(self.clock.monotonic())
    }

    /// Waits for a turn; `None` if there are no turns, because clients are idle.
    async fn turn(&self, urgency: impl Fn() -> Urgency) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if !self.are_busy() {
            return None;
        }
        let _next = self.next[urgency() as usize].lock().await;
        while self.are_busy() {
            let left = self.rest_left(urgency());
            if !left.is_zero() {
                self.clock.sleep(left.min(BUSY_FOR)).await;
                continue;
            }
            // Not during the rest: more urgent work then goes first.
            let turn = self.turn.lock().await;
            if self.rest_left(urgency()).is_zero() {
                return self.are_busy().then_some(turn);
            }
        }
        None
    }
}

/// A part of background work in progress. It ends when this is dropped.
#[must_use = "the part of the work that was waited for is over when this is dropped"]
pub struct Turn<'a> {
    clients: Option<(&'a Clients, tokio::sync::MutexGuard<'a, ()>)>,
    began: Duration,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some((clients, _)) = &self.clients {
            let now = clients.clock.monotonic();
            *clients.last.lock() = LastTurn {
                ended: now,
                took: now.saturating_sub(self.began),
            };
        }
    }
}

/// A rate in bytes per second that all its users share.
pub struct Rate {
    clock: Arc<dyn Clock>,
    /// 0: unlimited.
    bytes_per_second: AtomicU64,
    /// Time at which the bytes taken so far are paid for, on the monotonic clock.
    paid_at: Mutex<Duration>,
    /// All bytes let through.
    spent_bytes: AtomicU64,
}

impl Rate {
    /// `bytes_per_second`: 0 for no limit.
    pub fn new(clock: Arc<dyn Clock>, bytes_per_second: u64) -> Self {
        Self {
            clock,
            bytes_per_second: AtomicU64::new(bytes_per_second),
            paid_at: Mutex::new(Duration::ZERO),
            spent_bytes: AtomicU64::new(0),
        }
    }

    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second.load(Ordering::Relaxed)
    }

    /// 0 for no limit; present waiters go on at the new rate.
    pub fn set_bytes_per_second(&self, rate: u64) {
        if self.bytes_per_second.swap(rate, Ordering::Relaxed) == rate {
            return;
        }
        let now = self.clock.monotonic();
        let mut paid_at = self.paid_at.lock();
        *paid_at = (*paid_at).min(now);
    }

    /// Bytes let through so far.
    pub fn spent_bytes(&self) -> u64 {
        self.spent_bytes.load(Ordering::Relaxed)
    }

    fn note(&self, len_bytes: u64) {
        self.spent_bytes.fetch_add(len_bytes, Ordering::Relaxed);
    }

    /// False if the work is not wanted any more.
    async fn wait(&self, len_bytes: u64, wanted: &mut impl FnMut() -> bool) -> bool {
        let rate = self.bytes_per_second();
        if rate == 0 {
            return true;
        }
        let cost = Duration::from_secs_f64(len_bytes as f64 / rate as f64);
        {
            let now = self.clock.monotonic();
            let mut paid_at = self.paid_at.lock();
            *paid_at = (*paid_at).max(now.saturating_sub(CREDIT_MAX)) + cost;
        }
        loop {
            let left = {
                let paid_at = self.paid_at.lock();
                paid_at.saturating_sub(self.clock.monotonic())
            };
            if left.is_zero() || self.bytes_per_second() == 0 {
                return true;
            }
            if !wanted() {
                return false;
            }
            self.clock.sleep(left.min(WAIT_MAX)).await;
        }
    }
}

/// The pace of one kind of background work.
pub struct Pace {
    clock: Arc<dyn Clock>,
    rate: Rate,
    /// A rate that it shares with all other background work.
    total: Option<Arc<Rate>>,
    is_held: AtomicBool,
    urgency: Mutex<Urgency>,
    /// The clients that it yields to.
    clients: Option<Arc<Clients>>,
}

impl Pace {
    /// `bytes_per_second`: 0 for no limit.
    pub fn new(clock: Arc<dyn Clock>, bytes_per_second: u64) -> Self {
        Self {
            rate: Rate::new(Arc::clone(&clock), bytes_per_second),
            clock,
            total: None,
            is_held: AtomicBool::new(false),
            urgency: Mutex::default(),
            clients: None,
        }
    }

    /// A pace that yields to clients.
    pub fn beside(self, clients: &Arc<Clients>) -> Self {
        Self {
            clients: Some(Arc::clone(clients)),
            ..self
        }
    }

    /// A pace within a rate that other work shares.
    pub fn within(self, total: &Arc<Rate>) -> Self {
        Self {
            total: Some(Arc::clone(total)),
            ..self
        }
    }

    pub fn bytes_per_second(&self) -> u64 {
        self.rate.bytes_per_second()
    }

    /// Whether it is limited, alone or together with other work.
    pub fn is_limited(&self) -> bool {
        let total = self
            .total
            .as_ref()
            .map_or(0, |total| total.bytes_per_second());
        self.bytes_per_second() > 0 || total > 0
    }

    /// 0 for no limit; present waiters go on at the new rate.
    pub fn set_bytes_per_second(&self, rate: u64) {
        self.rate.set_bytes_per_second(rate);
    }

    /// Stops (`held`) or resumes the work. Parts that were let through are finished.
    pub fn hold(&self, held: bool) {
        self.is_held.store(held, Ordering::Release);
    }

    /// Sets how much it yields to clients from now on.
    pub fn set_urgency(&self, urgency: Urgency) {
        *self.urgency.lock() = urgency;
    }

    /// Whether clients wait longer than their latency objective: optional work is skipped meanwhile.
    pub fn are_clients_waiting(&self) -> bool {
        let clients = self.clients.as_ref();
        clients.is_some_and(|clients| clients.rest_times() > 1)
    }

    /// Bytes let through so far: the progress of long work.
    pub fn spent_bytes(&self) -> u64 {
        self.rate.spent_bytes()
    }

    /// Waits until `len_bytes` more may be read or written, which should be done before the turn is dropped.
    pub async fn spend(&self, len_bytes: u64) -> Turn<'_> {
        loop {
            // It is never given up.
            if let Some(turn) = self.spend_if(len_bytes, || true).await {
                return turn;
            }
        }
    }

    /// As [`Self::spend`]; returns `None` when the work is not `wanted` any more. A wait may take weeks. It asks
    /// `wanted` about once a second, which can also release references to things that are gone.
    pub async fn spend_if(
        &self,
        len_bytes: u64,
        mut wanted: impl FnMut() -> bool,
    ) -> Option<Turn<'_>> {
        if !self.rate.wait(len_bytes, &mut wanted).await {
            return None;
        }
        if let Some(total) = &self.total
            && !total.wait(len_bytes, &mut wanted).await
        {
            return None;
        }
        while self.is_held.load(Ordering::Acquire) {
            if !wanted() {
                return None;
            }
            self.clock.sleep(HELD_INTERVAL).await;
        }
        let clients = match &self.clients {
            Some(clients) => {
                let turn = clients.turn(|| *self.urgency.lock()).await;
                turn.map(|turn| (&**clients, turn))
            }
            None => None,
        };
        self.rate.note(len_bytes);
        if let Some(total) = &self.total {
            total.note(len_bytes);
        }
        Some(Turn {
            clients,
            began: self.clock.monotonic(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use cairn_testkit::TestWorld;

    use super::*;

    fn is_ready<T>(future: &mut std::pin::Pin<Box<dyn Future<Output = T> + '_>>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        matches!(future.as_mut().poll(&mut context), Poll::Ready(_))
    }

    #[test]
    fn paces_keep_a_rate_together() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(10));
        let total = Arc::new(Rate::new(world.env.clock.clone(), 1000));
        let fast = Pace::new(world.env.clock.clone(), 0).within(&total);
        let slow = Pace::new(world.env.clock.clone(), 100).within(&total);
        assert!(fast.is_limited());
        type Spending<'a> = std::pin::Pin<Box<dyn Future<Output = Turn<'a>> + 'a>>;
        let mut first: Spending<'_> = Box::pin(fast.spend(1100));
        assert!(!is_ready(&mut first));
        world.clock.advance(Duration::from_secs(1));
        assert!(is_ready(&mut first));
        // Bytes taken by one delay the other, and each has its own rate besides.
        let mut second: Spending<'_> = Box::pin(slow.spend(10));
        assert!(!is_ready(&mut second), "the other is not paid for");
        world.clock.advance(Duration::from_millis(20));
        assert!(is_ready(&mut second));
        let mut third: Spending<'_> = Box::pin(slow.spend(100));
        assert!(!is_ready(&mut third));
        world.clock.advance(Duration::from_millis(500));
        assert!(!is_ready(&mut third), "its own rate");
        world.clock.advance(Duration::from_millis(700));
        // Only now does it take from the shared rate, which has enough.
        assert!(is_ready(&mut third));
        assert_eq!((total.spent_bytes(), slow.spent_bytes()), (1210, 110));
        total.set_bytes_per_second(0);
        assert!(!fast.is_limited() && slow.is_limited());
    }

    #[test]
    fn bytes_take_the_time_that_the_rate_says() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(10));
        let pace = Pace::new(world.env.clock.clone(), 1000);
        // 100 ms of credit, then 1000 bytes a second.
        let mut first: std::pin::Pin<Box<dyn Future<Output = Turn<'_>>>> =
            Box::pin(pace.spend(100));
        assert!(is_ready(&mut first));
        let mut second: std::pin::Pin<Box<dyn Future<Output = Turn<'_>>>> =
            Box::pin(pace.spend(2000));
        assert!(!is_ready(&mut second));
        world.clock.advance(Duration::from_millis(1990));
        assert!(!is_ready(&mut second));
        world.clock.advance(Duration::from_millis(20));
        assert!(is_ready(&mut second));
    }

    #[test]
    fn a_new_rate_is_felt_at_once() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(10));
        let pace = Pace::new(world.env.clock.clone(), 1);
        let mut slow: std::pin::Pin<Box<dyn Future<Output = Turn<'_>>>> =
            Box::pin(pace.spend(1 << 20));
        assert!(!is_ready(&mut slow));
        pace.set_bytes_per_second(0);
        world.clock.advance(Duration::from_secs(1));
        assert!(is_ready(&mut slow));
    }

    #[test]
    fn what_is_held_goes_on_where_it_was() {
        let world = TestWorld::new(1);
        let pace = Pace::new(world.env.clock.clone(), 0);
        drop(now_or_never(pace.spend(100)).expect("no limit"));
        pace.hold(true);
        let mut held: std::pin::Pin<Box<dyn Future<Output = Turn<'_>>>> = Box::pin(pace.spend(10));
        assert!(!is_ready(&mut held));
        world.clock.advance(Duration::from_secs(100));
        assert!(!is_ready(&mut held));
        assert_eq!(pace.spent_bytes(), 100);
        pace.hold(false);
        world.clock.advance(HELD_INTERVAL);
        assert!(is_ready(&mut held));
        assert_eq!(pace.spent_bytes(), 110);
    }

    /// A paused scrub used to hold a disk that was removed meanwhile.
    #[test]
    fn what_waits_is_given_up_when_it_is_not_wanted_any_more() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(10));
        for (rate, held) in [(0, true), (1, false)] {
            let pace = Pace::new(world.env.clock.clone(), rate);
            pace.hold(held);
            let is_wanted = AtomicBool::new(true);
            let wanted = || is_wanted.load(Ordering::Relaxed);
            let mut waits: std::pin::Pin<Box<dyn Future<Output = Option<Turn<'_>>>>> =
                Box::pin(pace.spend_if(1000, wanted));
            assert!(!is_ready(&mut waits), "{rate}");
            world.clock.advance(WAIT_MAX);
            assert!(!is_ready(&mut waits), "{rate}");
            is_wanted.store(false, Ordering::Relaxed);
            world.clock.advance(WAIT_MAX);
            assert!(is_ready(&mut waits), "{rate}");
            assert_eq!(pace.spent_bytes(), 0);
        }
    }

    fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = Context::from_waker(Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn it_makes_way_for_clients() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(10));
        let clients = Clients::new(world.env.clock.clone());
        let requests = Arc::new(AtomicU64::new(0));
        let pace = |rate| Pace::new(world.env.clock.clone(), rate).beside(&clients);
        let (scrub, rebuild) = (pace(0), pace(0));
        let work = |turn: Option<Turn<'_>>, millis| {
            world.clock.advance(Duration::from_millis(millis));
            drop(turn);
        };
        // Clients are idle: any number of parts at a time.
        let (first, second) = (now_or_never(scrub.spend(1)), now_or_never(rebuild.spend(1)));
        assert!(first.is_some() && second.is_some());
        drop((first, second));
        let counted = requests.clone();
        clients.watch(move || counted.load(Ordering::Relaxed));
        let turn = now_or_never(scrub.spend(1));
        assert!(turn.is_some(), "clients want nothing");
        work(turn, 10);
        // One at a time, and then a rest of three times as long.
        requests.store(1, Ordering::Relaxed);
        let turn = now_or_never(scrub.spend(1));
        assert!(turn.is_some());
        assert!(now_or_never(rebuild.spend(1)).is_none());
        work(turn, 10);
        for millis in [0, 15, 14] {
            world.clock.advance(Duration::from_millis(millis));
            assert!(now_or_never(rebuild.spend(1)).is_none());
        }
        world.clock.advance(Duration::from_millis(1));
        let turn = now_or_never(rebuild.spend(1));
        assert!(turn.is_some());
        // The rest after a very long part is shorter than the part.
        requests.store(2, Ordering::Relaxed);
        assert!(now_or_never(scrub.spend(1)).is_none());
        work(turn, 60_000);
        requests.store(3, Ordering::Relaxed);
        assert!(now_or_never(scrub.spend(1)).is_none());
        // The rest ends when clients are idle.
        world.clock.advance(BUSY_FOR);
        let (first, second) = (now_or_never(scrub.spend(1)), now_or_never(rebuild.spend(1)));
        assert!(first.is_some() && second.is_some());
    }

    /// Milliseconds from the end of a part of 10 ms to the start of the next one, beside clients that waited too long
    /// this often.
    fn rest_millis(urgency: Urgency, kept_waiting_count: u32) -> u64 {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(10));
        let clients = Clients::new(world.env.clock.clone());
        // More requests each time: the clients never stop.
        let requests = AtomicU64::new(1);
        clients.watch(move || requests.fetch_add(1, Ordering::Relaxed));
        (0..kept_waiting_count).for_each(|_| clients.keep_waiting(true));
        let pace = |_| Pace::new(world.env.clock.clone(), 0).beside(&clients);
        let (calm, urgent) = (pace(()), pace(()));
        urgent.set_urgency(urgency);
        let turn = now_or_never(calm.spend(1));
        assert!(turn.is_some());
        assert!(now_or_never(urgent.spend(1)).is_none(), "one at a time");
        world.clock.advance(Duration::from_millis(10));
        drop(turn);
        // It waits from the beginning, and does not delay more urgent work.
        let mut first: std::pin::Pin<Box<dyn Future<Output = Turn<'_>>>> = Box::pin(calm.spend(1));
        if urgency > Urgency::Calm {
            assert!(!is_ready(&mut first));
        }
        for millis in 0..1000 {
            if now_or_never(urgent.spend(1)).is_some() {
                return millis;
            }
            world.clock.advance(Duration::from_millis(1));
        }
        panic!("it never goes on")
    }

    #[test]
    fn the_less_redundancy_is_left_the_less_it_rests() {
        let cases = [
            (Urgency::Calm, 30),
            (Urgency::Degraded, 20),
            (Urgency::Bare, 0),
        ];
        for (urgency, want_millis) in cases {
            assert_eq!(rest_millis(urgency, 0), want_millis, "{urgency:?}");
        }
        assert!(Urgency::Bare > Urgency::Degraded && Urgency::Degraded > Urgency::Calm);
    }

    #[test]
    fn work_rests_longer_while_clients_wait_too_long() {
        let cases = [
            (Urgency::Calm, [60, 120, 480]),
            (Urgency::Degraded, [40, 80, 80]),
            (Urgency::Bare, [0, 0, 0]),
        ];
        for (urgency, wants) in cases {
            for (kept_waiting_count, want_millis) in [1, 2, 9].into_iter().zip(wants) {
                let got = rest_millis(urgency, kept_waiting_count);
                assert_eq!(got, want_millis, "{urgency:?}, {kept_waiting_count}");
            }
        }
        let clients = Clients::new(TestWorld::new(1).env.clock.clone());
        let mut seen = [true, true, false, false, false].map(|too_long| {
            clients.keep_waiting(too_long);
            clients.rest_times()
        });
        assert_eq!(seen, [2, 4, 2, 1, 1]);
        seen = [true; 5].map(|too_long| {
            clients.keep_waiting(too_long);
            clients.rest_times()
        });
        assert_eq!(seen, [2, 4, 8, 16, 16]);
    }

    /// A scrub makes progress beside a drain that always wants the next part at once.
    #[test]
    fn what_is_as_urgent_takes_turns() {
        let world = TestWorld::new(1);
        world.clock.advance(Duration::from_secs(10));
        let clients = Clients::new(world.env.clock.clone());
        // More requests each time: the clients never stop.
        let requests = AtomicU64::new(1);
        clients.watch(move || requests.fetch_add(1, Ordering::Relaxed));
        let pace = |_| Pace::new(world.env.clock.clone(), 0).beside(&clients);
        let (scrub, drain) = (pace(()), pace(()));
        let turn = now_or_never(drain.spend(1));
        let mut scrub_waits: std::pin::Pin<Box<dyn Future<Output = Turn<'_>>>> =
            Box::pin(scrub.spend(1));
        assert!(!is_ready(&mut scrub_waits));
        world.clock.advance(Duration::from_millis(10));
        drop(turn);
        let mut drain_waits: std::pin::Pin<Box<dyn Future<Output = Turn<'_>>>> =
            Box::pin(drain.spend(1));
        assert!(!is_ready(&mut drain_waits));
        assert!(!is_ready(&mut scrub_waits));
        world.clock.advance(Duration::from_millis(30));
        assert!(!is_ready(&mut drain_waits));
        assert!(is_ready(&mut scrub_waits));
    }
}
