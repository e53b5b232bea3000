//! The counters of a volume, and of all volumes.
//!
//! Owns: which thread counts where, when counters are emptied and given back. Must not know: the form of the counts.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::VolumeId;
use cairn_base::env::{Clock, Env};
use cairn_base::jobs::Job;
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::counts::{Counts, Done, Work};
use crate::report::{Report, Sum};
use crate::turns::{TURN, Turns};

/// Parts of a volume's counters. More threads than this share parts.
pub const SHARD_COUNT: usize = 8;
/// Counters that were not used for so many stretches of time give their memory back.
const IDLE_TURNS_MAX: u64 = 12;

static THREAD_NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A number of this thread, in the order in which threads first count.
#[inline]
fn thread() -> usize {
    THREAD.with(|cell| match cell.get() {
        Some(number) => number,
        None => {
            let number = THREAD_NEXT.fetch_add(1, Ordering::Relaxed);
            cell.set(Some(number));
            number
        }
    })
}

/// What some threads counted: in a stretch of time, and in the one before it.
#[derive(Default)]
struct Shard {
    turn: u64,
    current: Option<Box<Counts>>,
    previous: Option<Box<Counts>>,
}

impl Shard {
    /// Goes on to a later stretch of time.
    #[inline]
    fn turn(&mut self, turn: u64) {
        let ended = turn.saturating_sub(self.turn);
        if ended > 0 {
            self.go_on(turn, ended);
        }
    }

    #[cold]
    fn go_on(&mut self, turn: u64, ended: u64) {
        std::mem::swap(&mut self.current, &mut self.previous);
        let emptied = match ended {
            1 => [self.current.as_mut(), None],
            _ => [self.current.as_mut(), self.previous.as_mut()],
        };
        emptied.into_iter().flatten().for_each(|it| it.clear());
        self.turn = turn;
    }

    #[inline]
    fn note(&mut self, turn: u64, done: &Done<'_>) {
        self.turn(turn);
        self.current.get_or_insert_default().note(done);
    }
}

/// On cache lines of its own: neighbours are of other threads.
#[derive(Default)]
#[repr(align(128))]
struct Aligned(Mutex<Shard>);

/// What clients do with one volume. It stays the same while the volume is there.
pub struct Activity {
    shards: [Aligned; SHARD_COUNT],
    shared: Arc<ActivityCore>,
}

struct ActivityCore {
    clock: Arc<dyn Clock>,
    turns: Turns,
}

impl Activity {
    fn new(shared: Arc<ActivityCore>) -> Self {
        Self {
            shards: Default::default(),
            shared,
        }
    }

    /// Counts a request that was answered.
    pub fn note(&self, done: &Done<'_>) {
        let turn = self.shared.turns.number();
        self.shard().note(turn, done);
    }

    /// The part of this thread, or another one that is free. Only when all are in use it waits, for as long as another thread
    /// takes to count.
    fn shard(&self) -> MutexGuard<'_, Shard> {
        let own = thread();
        let shard = |at: usize| &self.shards[(own + at) % SHARD_COUNT].0;
        if let Some(free) = shard(0).try_lock() {
            return free;
        }
        let free = (1..SHARD_COUNT).find_map(|at| shard(at).try_lock());
        free.unwrap_or_else(|| shard(0).lock())
    }

    /// What clients did in the last seconds.
    pub fn report(&self) -> Report {
        let now = self.shared.clock.monotonic();
        self.shared.turns.look(now);
        let (turn, span) = self.shared.turns.span(now);
        let mut sum = Sum::default();
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            shard.turn(turn);
            let counted = [&shard.previous, &shard.current];
            counted.into_iter().flatten().for_each(|it| sum.add(it));
        }
        sum.report(span)
    }

    /// All that clients did in the last seconds, and how long these are. For many volumes: it looks at no clients and files.
    pub fn total(&self) -> (Work, Duration) {
        let now = self.shared.clock.monotonic();
        self.shared.turns.look(now);
        let (turn, span) = self.shared.turns.span(now);
        let mut total = Work::default();
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            shard.turn(turn);
            let counted = [&shard.previous, &shard.current].into_iter().flatten();
            let operations = counted.flat_map(|counts| &counts.operations);
            operations.for_each(|operation| total.add(operation.work));
        }
        (total, span)
    }

    /// Gives back the memory of counters that were not used for long.
    fn tidy(&self, turn: u64) {
        for shard in &self.shards {
            if let Some(mut shard) = shard.0.try_lock()
                && turn.saturating_sub(shard.turn) > IDLE_TURNS_MAX
            {
                *shard = Shard::default();
            }
        }
    }
}

/// That of all volumes.
pub struct Activities {
    shared: Arc<ActivityCore>,
    volumes: RwLock<BTreeMap<VolumeId, Arc<Activity>>>,
}

impl Activities {
    pub fn new(env: &Env) -> Arc<Self> {
        let clock = Arc::clone(&env.clock);
        let turns = Turns::new(clock.monotonic());
        Arc::new(Self {
            shared: Arc::new(ActivityCore { clock, turns }),
            volumes: RwLock::default(),
        })
    }

    /// Starts the job that ends stretches of time.
    pub fn tend(self: &Arc<Self>, env: &Env) {
        let all = Arc::clone(self);
        Job::every("activity", TURN).start(env, move || {
            all.look();
            std::future::ready(())
        });
    }

    /// Ends a stretch of time that has been long enough.
    pub fn look(&self) {
        if self.shared.turns.look(self.shared.clock.monotonic()) {
            let turn = self.shared.turns.number();
            let volumes = self.volumes.read();
            volumes.values().for_each(|activity| activity.tidy(turn));
        }
    }

    /// The counters of a volume.
    pub fn of(&self, volume: VolumeId) -> Arc<Activity> {
        if let Some(activity) = self.volumes.read().get(&volume) {
            return Arc::clone(activity);
        }
        let mut volumes = self.volumes.write();
        let make = || Arc::new(Activity::new(Arc::clone(&self.shared)));
        Arc::clone(volumes.entry(volume).or_insert_with(make))
    }

    /// Forgets volumes that are not here any more.
    pub fn retain(&self, is_here: impl Fn(VolumeId) -> bool) {
        self.volumes.write().retain(|volume, _| is_here(*volume));
    }
}
