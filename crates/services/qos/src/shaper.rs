//! The shell around the scheduler: a lock, futures of those who wait, and the task that looks for the next one.
//!
//! Owns: that a volume without limits costs its requests one look at a flag. Must not know: any numbers.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::env::{Clock, Env};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot};

use crate::client::Client;
use crate::goal::{Counts, GoalReport, Window};
use crate::limits::{Kind, Limits, Operation};
use crate::scheduler::{Report, Scheduler, Waiter};

/// Looks are not more often than this; what comes late is made up for.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

struct Begin(oneshot::Sender<()>);

impl Waiter for Begin {
    fn is_gone(&self) -> bool {
        self.0.is_closed()
    }
}

/// Requests with data of all volumes wait, whatever their limits: the process is short of memory.
#[derive(Default)]
struct Pause {
    is_on: AtomicBool,
    /// Changes of the flag have this lock, so that nobody comes to wait for an end that has been.
    waiting: Mutex<Vec<Begin>>,
}

impl Pause {
    /// How to wait for its end, if it is on.
    fn wait(&self) -> Option<Pass> {
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let mut waiting = self.waiting.lock();
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let (begin, began) = oneshot::channel();
        waiting.push(Begin(begin));
        Some(Pass(began))
    }

    fn set(&self, is_on: bool) {
        let mut waiting = self.waiting.lock();
        self.is_on.store(is_on, Ordering::Relaxed);
        if !is_on {
            let begin = std::mem::take(&mut *waiting);
            drop(waiting);
            ShaperCore::tell(begin);
        }
    }
}

struct ShaperCore {
    clock: Arc<dyn Clock>,
    pause: Pause,
    scheduler: Mutex<Scheduler<Begin>>,
    /// Somebody waits, or a limit has changed.
    look: Notify,
}

impl ShaperCore {
    fn tell(granted: Vec<Begin>) {
        for begin in granted {
            // Nobody may be waiting any more: then its turn is lost, as if it had begun.
            let _ = begin.0.send(());
        }
    }

    fn pump(&self) -> Option<Duration> {
        let mut granted = Vec::new();
        let due = self
            .scheduler
            .lock()
            .pump(self.clock.monotonic(), &mut granted);
        Self::tell(granted);
        due
    }

    async fn tend(self: Arc<Self>) {
        loop {
            match self.pump() {
                None => self.look.notified().await,
                Some(due) => {
                    let sleep = self.clock.sleep(due.max(LOOK_INTERVAL));
                    tokio::select! {
                        () = sleep => {}
                        () = self.look.notified() => {
                            // Many come at once: they are looked at together.
                            self.clock.sleep(LOOK_INTERVAL).await;
                        }
                    }
                }
            }
        }
    }
}

/// Where requests of one volume ask whether they may begin. It stays the same while limits come and go.
pub struct Gate {
    shared: Arc<ShaperCore>,
    volume: VolumeId,
    is_limited: AtomicBool,
    answered: Counts,
}

impl Gate {
    pub fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Whether an operation has to wait before it begins, and for what. One that waits for its turn does not wait for memory
    /// as well.
    pub fn admit(&self, client: Client, operation: Operation) -> Option<Pass> {
        let turn = match self.is_limited() {
            true => self.ask(client, operation),
            false => None,
        };
        match operation.kind {
            // What writes data to disks gives memory back, and is among these.
            Kind::Other => turn,
            Kind::Read | Kind::Write => turn.or_else(|| self.shared.pause.wait()),
        }
    }

    fn ask(&self, client: Client, operation: Operation) -> Option<Pass> {
        let now = self.shared.clock.monotonic();
        let mut scheduler = self.shared.scheduler.lock();
        if scheduler.admit(self.volume, client, operation, now) {
            return None;
        }
        let (begin, began) = oneshot::channel();
        let queued = scheduler.queue(self.volume, client, operation, Begin(begin), now);
        // Others may wait for something that does not concern this one.
        let mut granted = Vec::new();
        scheduler.pump_of(self.volume, now, &mut granted);
        drop(scheduler);
        ShaperCore::tell(granted);
        queued.ok()?;
        self.shared.look.notify_one();
        Some(Pass(began))
    }

    /// Begins to time a request that may begin now; `None`: the volume has no latency objective.
    pub fn timed(self: &Arc<Self>) -> Option<Timed> {
        self.answered.goal()?;
        Some(Timed {
            gate: Arc::clone(self),
            began: self.shared.clock.monotonic(),
        })
    }

    pub fn has_goal(&self) -> bool {
        self.answered.goal().is_some()
    }

    /// Waits until an operation may begin.
    pub async fn pass(&self, client: Client, operation: Operation) {
        if let Some(pass) = self.admit(client, operation) {
            pass.await;
        }
    }
}

/// Ready when an operation may begin. Dropped, it gives up its place.
pub struct Pass(oneshot::Receiver<()>);

impl Future for Pass {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Without limits any more there is nobody to tell.
        let _ = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(())
    }
}

/// A request that is being answered. Dropped before it is, it counts for nothing.
pub struct Timed {
    gate: Arc<Gate>,
    began: Duration,
}

impl Timed {
    /// Counts it for the goal of its volume.
    pub fn answered(self) {
        let now = self.gate.shared.clock.monotonic();
        self.gate.answered.add(now.saturating_sub(self.began));
    }
}

/// The gates of all volumes.
pub struct Shaper {
    shared: Arc<ShaperCore>,
    gates: RwLock<BTreeMap<VolumeId, Arc<Gate>>>,
    /// Of volumes that have a latency objective.
    windows: Mutex<BTreeMap<VolumeId, Window>>,
}

impl Shaper {
    pub fn new(env: &Env) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::new(ShaperCore {
                clock: Arc::clone(&env.clock),
                pause: Pause::default(),
                scheduler: Mutex::default(),
                look: Notify::new(),
            }),
            gates: RwLock::default(),
            windows: Mutex::default(),
        })
    }

    /// Has all requests with data wait from now on, of volumes without limits, too, or lets them go on.
    pub fn pause(&self, is_on: bool) {
        self.shared.pause.set(is_on);
    }

    /// Starts the task that lets those begin who wait.
    pub fn tend(&self, env: &Env) {
        let shared = Arc::clone(&self.shared);
        env.spawner.spawn("classes", Box::pin(shared.tend()));
    }

    pub fn gate(&self, volume: VolumeId) -> Arc<Gate> {
        if let Some(gate) = self.gates.read().get(&volume) {
            return Arc::clone(gate);
        }
        let mut gates = self.gates.write();
        let make = || {
            Arc::new(Gate {
                shared: Arc::clone(&self.shared),
                volume,
                is_limited: AtomicBool::new(false),
                answered: Counts::default(),
            })
        };
        Arc::clone(gates.entry(volume).or_insert_with(make))
    }

    /// The limits of all volumes that have some, from now on.
    pub fn set(&self, limits: BTreeMap<VolumeId, Limits>) {
        let limited: Vec<VolumeId> = limits.keys().copied().collect();
        let gates: Vec<Arc<Gate>> = limited.iter().map(|volume| self.gate(*volume)).collect();
        let mut granted = Vec::new();
        let now = self.shared.clock.monotonic();
        self.set_goals(&limits, now);
        self.shared.scheduler.lock().set(limits, now, &mut granted);
        for gate in gates {
            gate.is_limited.store(true, Ordering::Relaxed);
        }
        for (volume, gate) in self.gates.read().iter() {
            if !limited.contains(volume) {
                gate.is_limited.store(false, Ordering::Relaxed);
            }
        }
        ShaperCore::tell(granted);
        self.shared.look.notify_one();
    }

    fn set_goals(&self, limits: &BTreeMap<VolumeId, Limits>, now: Duration) {
        let goal_of = |volume: &VolumeId| limits.get(volume)?.latency_goal;
        let mut windows = self.windows.lock();
        windows.retain(|volume, window| goal_of(volume) == Some(window.goal()));
        for (volume, gate) in self.gates.read().iter() {
            let goal = goal_of(volume);
            gate.answered.set_goal(goal);
            if let Some(goal) = goal {
                let answered = gate.answered.answered();
                let window = || Window::new(goal, answered, now);
                windows.entry(*volume).or_insert_with(window);
            }
        }
    }

    /// Looks whether goals are met, to be called every second or so. `Some` when that became known of some volumes anew, or no
    /// volume has a goal: whether one of them misses it.
    pub fn look_at_goals(&self) -> Option<bool> {
        let now = self.shared.clock.monotonic();
        let mut windows = self.windows.lock();
        if windows.is_empty() {
            // That of one that is gone, or is served elsewhere, was perhaps missed.
            return Some(false);
        }
        let gates = self.gates.read();
        let looks = windows.iter_mut().filter_map(|(volume, window)| {
            window.look(gates.get(volume)?.answered.answered(), now)
        });
        looks.fold(None, |missed, is_met| {
            Some(missed.unwrap_or(false) || !is_met)
        })
    }

    /// A volume's state against its latency objective, if it has one.
    pub fn goal(&self, volume: VolumeId) -> Option<GoalReport> {
        let windows = self.windows.lock();
        let window = windows.get(&volume)?;
        let answered = self.gates.read().get(&volume)?.answered.answered();
        Some(window.report(answered))
    }

    pub fn report(&self, volume: VolumeId) -> Option<Report> {
        let now = self.shared.clock.monotonic();
        self.shared.scheduler.lock().report(volume, now)
    }

    /// See [`Scheduler::without_credit`].
    pub fn without_credit(&self) -> Vec<VolumeId> {
        self.shared.scheduler.lock().without_credit()
    }

    /// See [`Scheduler::credit`].
    pub fn credit(&self, volume: VolumeId) -> Option<BTreeMap<&'static str, f64>> {
        let now = self.shared.clock.monotonic();
        self.shared.scheduler.lock().credit(volume, now)
    }

    /// See [`Scheduler::restore`].
    pub fn restore(&self, volume: VolumeId, saved: &BTreeMap<String, f64>, ago: Duration) {
        self.shared.scheduler.lock().restore(volume, saved, ago);
    }
}
