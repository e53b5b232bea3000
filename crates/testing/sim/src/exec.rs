//! The executor: one thread, one seed, one order of all steps.
//!
//! Owns: tasks, the choice of the next ready one, the passing of time, the trace. Must not know: the work of the tasks.
//!
//! Time stands still while any task is ready, and jumps to the next timer when none is.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use cairn_base::env::{BoxFuture, Clock, Env, Spawner};
use cairn_base::jobs::JobList;
use cairn_testkit::{ManualClock, Rng, SeededEntropy};
use parking_lot::Mutex;

/// How the next ready task is picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Picking {
    /// Each with equal chance.
    Uniform,
    /// By a random priority of each task; sometimes one priority changes. Finds orders in which one task starves for
    /// long (Burckhardt et al., 2010).
    Priority,
}

/// Why the executor stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The condition holds.
    Done,
    /// The limit of steps is reached.
    StepLimit,
    /// No task is ready and no timer is set, or the time allowed has passed.
    Stuck,
    /// A task panicked; the text is the message.
    Panicked(String),
}

/// A hash of everything that happened, in order.
#[derive(Clone, Default)]
pub struct Trace {
    hash: Arc<Mutex<u64>>,
}

impl Trace {
    pub fn note(&self, words: &[u64]) {
        let mut hash = self.hash.lock();
        for word in words {
            *hash = (*hash ^ word)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
    }

    pub fn note_text(&self, text: &str) {
        tracing::trace!(text, hash = self.hash());
        let mut words = [0, text.len() as u64];
        for byte in text.bytes() {
            words[0] = words[0].wrapping_mul(131).wrapping_add(u64::from(byte));
        }
        self.note(&words);
    }

    pub fn hash(&self) -> u64 {
        *self.hash.lock()
    }
}

/// Tasks that stop, resume and end together, as those of one process do. Tasks without a process have group 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group(u32);

struct Spawned {
    id: u64,
    group: Group,
    name: &'static str,
    future: BoxFuture<()>,
}

#[derive(Default)]
struct Queue {
    ready: BTreeSet<u64>,
    spawned: Vec<Spawned>,
    next: u64,
    group_last: u32,
    paused: BTreeSet<Group>,
    /// Groups that pause after a number of their steps.
    pausing: BTreeMap<Group, u64>,
    /// Groups that ended. Tasks that they spawn are dropped.
    ended: BTreeSet<Group>,
    /// Ended groups whose tasks still exist.
    to_drop: Vec<Group>,
}

/// Makes groups, and decides whether their tasks run. The tasks of a group that ends are dropped before the next step.
#[derive(Clone)]
pub struct Groups {
    queue: Arc<Mutex<Queue>>,
    has_threads: bool,
}

impl Groups {
    /// A new group, and the environment of its tasks: a clock and randomness of their own.
    pub fn add(&self, clock: Arc<dyn Clock>, seed: u64) -> (Group, Env) {
        let group = {
            let mut queue = self.queue.lock();
            queue.group_last += 1;
            Group(queue.group_last)
        };
        let env = Env {
            clock,
            entropy: Arc::new(SeededEntropy::new(seed)),
            spawner: Arc::new(SimSpawner {
                queue: self.queue.clone(),
                group,
                has_threads: self.has_threads,
            }),
            jobs: JobList::of_simulation(),
        };
        (group, env)
    }

    /// Pauses a group after `steps` more steps of all its tasks together.
    pub fn pause_after(&self, group: Group, steps: u64) {
        let mut queue = self.queue.lock();
        if steps == 0 {
            queue.paused.insert(group);
        } else if !queue.paused.contains(&group) {
            let left = queue.pausing.entry(group).or_insert(steps);
            *left = steps.min(*left);
        }
    }

    pub fn resume(&self, group: Group) {
        let mut queue = self.queue.lock();
        queue.paused.remove(&group);
        queue.pausing.remove(&group);
    }

    pub fn end(&self, group: Group) {
        let mut queue = self.queue.lock();
        queue.paused.remove(&group);
        queue.pausing.remove(&group);
        if queue.ended.insert(group) {
            queue.to_drop.push(group);
        }
    }
}

struct Task {
    name: &'static str,
    group: Group,
    future: BoxFuture<()>,
    waker: Waker,
    priority: u64,
}

struct TaskWaker {
    id: u64,
    queue: Arc<Mutex<Queue>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.queue.lock().ready.insert(self.id);
    }
}

struct SimSpawner {
    queue: Arc<Mutex<Queue>>,
    group: Group,
    has_threads: bool,
}

impl Spawner for SimSpawner {
    fn spawn(&self, name: &'static str, task: BoxFuture<()>) {
        let mut queue = self.queue.lock();
        let id = queue.next;
        queue.next += 1;
        queue.spawned.push(Spawned {
            id,
            group: self.group,
            name,
            future: task,
        });
        queue.ready.insert(id);
    }

    fn has_threads(&self) -> bool {
        self.has_threads
    }
}

/// Runs the tasks of one life.
pub struct Executor {
    queue: Arc<Mutex<Queue>>,
    tasks: BTreeMap<u64, Task>,
    rng: Rng,
    picking: Picking,
    has_threads: bool,
    pub clock: ManualClock,
    pub env: Env,
    pub trace: Trace,
    pub steps: u64,
}

impl Executor {
    /// `has_threads`: whether tasks are told that they may block, which uses other code paths of the engine; disks in
    /// memory do not block.
    pub fn new(seed: u64, picking: Picking, has_threads: bool, trace: Trace) -> Self {
        let queue = Arc::new(Mutex::new(Queue::default()));
        let mut rng = Rng::new(seed);
        let clock = ManualClock::default();
        let env = Env {
            clock: Arc::new(clock.clone()),
            entropy: Arc::new(SeededEntropy::new(rng.u64())),
            spawner: Arc::new(SimSpawner {
                queue: queue.clone(),
                group: Group::default(),
                has_threads,
            }),
            jobs: JobList::of_simulation(),
        };
        Self {
            has_threads,
            queue,
            tasks: BTreeMap::new(),
            rng,
            picking,
            clock,
            env,
            trace,
            steps: 0,
        }
    }

    pub fn groups(&self) -> Groups {
        Groups {
            queue: self.queue.clone(),
            has_threads: self.has_threads,
        }
    }

    /// Runs until `done` (asked before each step, with their number so far), or until `steps_max` steps were made since
    /// the start, or until the clock shows `time_max`.
    pub fn run(
        &mut self,
        steps_max: u64,
        time_max: Duration,
        mut done: impl FnMut(u64) -> bool,
    ) -> Stopped {
        loop {
            if done(self.steps) {
                return Stopped::Done;
            }
            if self.steps >= steps_max {
                return Stopped::StepLimit;
            }
            self.drop_ended();
            self.admit_spawned();
            let Some(id) = self.pick() else {
                let Some(deadline) = self.clock.next_deadline() else {
                    return Stopped::Stuck;
                };
                let now = self.clock.monotonic();
                if deadline > time_max {
                    return Stopped::Stuck;
                }
                self.clock.advance(deadline.saturating_sub(now));
                continue;
            };
            self.steps += 1;
            if let Err(message) = self.poll(id) {
                return Stopped::Panicked(message);
            }
        }
    }

    fn drop_ended(&mut self) {
        loop {
            let ended = std::mem::take(&mut self.queue.lock().to_drop);
            if ended.is_empty() {
                return;
            }
            let of_ended = |task: &Task| ended.contains(&task.group);
            let ids = self.tasks.iter().filter(|(_, task)| of_ended(task));
            let ids: Vec<u64> = ids.map(|(id, _)| *id).collect();
            for id in ids {
                self.tasks.remove(&id);
            }
        }
    }

    fn admit_spawned(&mut self) {
        let (spawned, refused): (Vec<_>, Vec<_>) = {
            let mut queue = self.queue.lock();
            let spawned = std::mem::take(&mut queue.spawned);
            let is_alive = |task: &Spawned| !queue.ended.contains(&task.group);
            spawned.into_iter().partition(is_alive)
        };
        // Outside of the lock: dropped tasks may spawn.
        drop(refused);
        for spawned in spawned {
            let Spawned {
                id,
                group,
                name,
                future,
            } = spawned;
            let waker = Waker::from(Arc::new(TaskWaker {
                id,
                queue: self.queue.clone(),
            }));
            let priority = self.rng.u64();
            self.tasks.insert(
                id,
                Task {
                    name,
                    group,
                    future,
                    waker,
                    priority,
                },
            );
        }
    }

    fn pick(&mut self) -> Option<u64> {
        let mut queue = self.queue.lock();
        // Wake-ups of tasks that have ended.
        queue.ready.retain(|id| self.tasks.contains_key(id));
        let (tasks, paused) = (&self.tasks, &queue.paused);
        let runs = |id: &&u64| paused.is_empty() || !paused.contains(&tasks[*id].group);
        let count = match paused.is_empty() {
            true => queue.ready.len() as u64,
            false => queue.ready.iter().filter(runs).count() as u64,
        };
        if count == 0 {
            return None;
        }
        let nth = self.rng.below(count) as usize;
        let mut id = *queue.ready.iter().filter(runs).nth(nth)?;
        if self.picking == Picking::Priority {
            if self.rng.below(32) == 0
                && let Some(task) = self.tasks.get_mut(&id)
            {
                task.priority = self.rng.u64();
            }
            // A task that yields again and again must not starve all others.
            if self.rng.below(8) != 0 {
                let (tasks, paused) = (&self.tasks, &queue.paused);
                let runs = |id: &&u64| paused.is_empty() || !paused.contains(&tasks[*id].group);
                let ready = queue.ready.iter().filter(runs);
                id = *ready.max_by_key(|id| tasks[*id].priority)?;
            }
        }
        queue.ready.remove(&id);
        Some(id)
    }

    fn poll(&mut self, id: u64) -> Result<(), String> {
        let Some(task) = self.tasks.get_mut(&id) else {
            return Ok(());
        };
        self.trace.note_text(task.name);
        self.trace.note(&[id, self.steps]);
        let (group, name) = (task.group, task.name);
        let mut context = Context::from_waker(&task.waker);
        let future = &mut task.future;
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        self.count_step(group);
        match polled {
            Ok(Poll::Ready(())) => {
                self.tasks.remove(&id);
                Ok(())
            }
            Ok(Poll::Pending) => Ok(()),
            Err(payload) => Err(format!("{name}: {}", panic_text(&*payload))),
        }
    }
}

impl Executor {
    fn count_step(&self, group: Group) {
        let mut queue = self.queue.lock();
        let Some(left) = queue.pausing.get_mut(&group) else {
            return;
        };
        *left = left.saturating_sub(1);
        if *left == 0 {
            queue.pausing.remove(&group);
            queue.paused.insert(group);
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // Dropped tasks may spawn; the new ones do not run any more.
        self.tasks.clear();
        loop {
            let spawned = std::mem::take(&mut self.queue.lock().spawned);
            if spawned.is_empty() {
                return;
            }
            drop(spawned);
        }
    }
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_group_stops_after_so_many_steps_of_its_tasks_and_goes_on_where_it_stopped() {
        let mut exec = Executor::new(1, Picking::Uniform, false, Trace::default());
        let groups = exec.groups();
        let (group, env) = groups.add(Arc::new(exec.clock.clone()), 1);
        let made = Arc::new(AtomicU64::new(0));
        for _ in 0..2 {
            let made = made.clone();
            let task = poll_fn(move |context| {
                made.fetch_add(1, Ordering::Relaxed);
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            });
            env.spawner.spawn("task", Box::pin(task));
        }
        let steps = || made.load(Ordering::Relaxed);
        let second = Duration::from_secs(1);
        groups.pause_after(group, 5);
        assert_eq!(exec.run(100, second, |_| false), Stopped::Stuck);
        assert_eq!(steps(), 5);
        groups.resume(group);
        groups.pause_after(group, 9);
        // The earlier stop counts.
        groups.pause_after(group, 3);
        assert_eq!(exec.run(100, second, |_| false), Stopped::Stuck);
        assert_eq!(steps(), 8);
        groups.resume(group);
        groups.pause_after(group, 2);
        groups.resume(group);
        assert_eq!(exec.run(100, second, |_| false), Stopped::StepLimit);
        assert_eq!(steps(), 100);
        groups.pause_after(group, 0);
        assert_eq!(exec.run(200, second, |_| false), Stopped::Stuck);
        assert_eq!(steps(), 100);
    }
}
