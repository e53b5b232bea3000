//! The memory limit of this server: measures the use, and carries out the decisions of [`Governor`].
//!
//! Owns: the thread that measures, the caches and limits that follow. Must not know: when a cache shrinks
//! (`cairn_memory`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::Backoff;
use cairn_base::env::Env;
use cairn_base::jobs::{Job, Next};
use cairn_config::MemoryBudget;
use cairn_disk::ReadBuffers;
use cairn_fs::DirtyBudget;
use cairn_memory::{
    Governor, MemorySample, Meters, Orders, Share, TICK, allocator, code, divide, resident_bytes,
    with_other,
};
use cairn_meta::MetaCache;
use cairn_pool::health::observed::MemoryUse;
use cairn_qos::Shaper;
use cairn_segment::SegmentStore;
use parking_lot::Mutex;

/// The number of parts that a message about too much memory names.
const TOLD_PARTS: usize = 3;
/// The longest pause after measurements that panicked: nothing else keeps the memory limit.
const RETRY_LONGEST: Duration = Duration::from_secs(5);

/// The parts that can give memory back.
pub struct Givers {
    /// Records, and decoded stripes. Weak: the measuring thread keeps no disk open.
    pub store: Weak<SegmentStore>,
    /// Blocks of metadata.
    pub blocks: MetaCache,
    pub dirty: Arc<DirtyBudget>,
    /// Callers of all protocols ask here before they begin.
    pub shaper: Arc<Shaper>,
    pub read_buffers: ReadBuffers,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounts {
    pub resident_bytes: u64,
    /// The present limit of all caches together.
    pub cache_max_bytes: u64,
    /// The number of pauses of callers.
    pub pauses: u64,
    /// How often allocators gave freed memory back.
    pub given_back: u64,
}

pub struct Memory {
    limit_bytes: u64,
    budget: MemoryBudget,
    /// Requests and replies of each protocol. They end by themselves.
    pub requests: Meters,
    /// All other parts, but for caches and dirty data.
    pub others: Meters,
    givers: Givers,
    /// The limit of records beside the present number of open volumes, while memory is ample.
    records_full_bytes: AtomicU64,
    state: Mutex<State>,
}

struct State {
    governor: Governor,
    orders: Option<Orders>,
    pauses: u64,
    given_back: u64,
}

impl Memory {
    pub fn new(limit_bytes: u64, budget: MemoryBudget, givers: Givers) -> Arc<Self> {
        let kept = usize::try_from(budget.read_buffers_bytes).unwrap_or(usize::MAX);
        givers.read_buffers.set_kept_bytes_max(kept);
        Arc::new(Self {
            limit_bytes,
            budget,
            requests: Meters::default(),
            others: Meters::default(),
            givers,
            records_full_bytes: AtomicU64::new(budget.record_cache_bytes),
            state: Mutex::new(State {
                governor: Governor::new(limit_bytes),
                orders: None,
                pauses: 0,
                given_back: 0,
            }),
        })
    }

    /// Sets the limit of records while memory is ample, which changes with the number of open volumes.
    pub fn set_records_full(&self, bytes: u64) {
        self.records_full_bytes.store(bytes, Ordering::Relaxed);
        let state = self.state.lock();
        let full: u64 = self.shares().iter().map(|share| share.full_bytes).sum();
        let cache_bytes = state.orders.map_or(full, |orders| orders.cache_bytes);
        // Earlier decisions may exceed the present limit.
        self.set_caches(cache_bytes.min(full));
    }

    /// The minimum and the full size of records and of blocks. Write buffers of metadata are subtracted from its blocks.
    fn shares(&self) -> [Share; 2] {
        let (records_least, blocks_least) = self.budget.caches_least_bytes();
        let records_full = self.records_full_bytes.load(Ordering::Relaxed);
        let write_buffers = self.givers.blocks.write_buffer_bytes() as u64;
        let blocks_full = self.budget.metadata_bytes.saturating_sub(write_buffers);
        let blocks_full = blocks_full.min(self.budget.metadata_cache_bytes());
        let share = |least_bytes, full_bytes: u64| Share {
            least_bytes,
            full_bytes: full_bytes.max(least_bytes),
        };
        [
            share(records_least, records_full),
            share(blocks_least, blocks_full),
        ]
    }

    fn set_caches(&self, bytes: u64) {
        let [records, blocks] = divide(bytes, self.shares());
        if let Some(store) = self.givers.store.upgrade() {
            store.set_cache_bytes(records);
        }
        let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
        self.givers.blocks.set_capacity_bytes(blocks);
    }

    fn see(&self) -> MemorySample {
        let store = self.givers.store.upgrade();
        let records = store.map_or(0, |store| store.cache_bytes());
        let shares = self.shares();
        MemorySample {
            resident_bytes: resident_bytes(),
            cache_bytes: records + self.givers.blocks.used_bytes() as u64,
            cache_full_bytes: shares.iter().map(|share| share.full_bytes).sum(),
            cache_least_bytes: shares.iter().map(|share| share.least_bytes).sum(),
            on_its_way_bytes: self
                .givers
                .dirty
                .memory_bytes()
                .saturating_add(self.requests.sum()),
        }
    }

    /// Measures, decides and carries out the decision, but for the slow part: returns whether to give freed memory
    /// back now.
    fn look(&self) -> bool {
        let seen = self.see();
        let mut state = self.state.lock();
        let orders = state.governor.look(seen);
        let before = state.orders.replace(orders);
        let waited = before.is_some_and(|before| before.callers_wait);
        state.pauses += u64::from(orders.callers_wait && !waited);
        state.given_back += u64::from(orders.give_back);
        self.set_caches(orders.cache_bytes);
        let dirty = u128::from(self.budget.dirty_bytes) * u128::from(orders.dirty_permille) / 1000;
        let dirty = u64::try_from(dirty).unwrap_or(u64::MAX);
        self.givers.dirty.set_bytes_max(dirty);
        if orders.callers_wait != waited {
            self.givers.shaper.pause(orders.callers_wait);
        }
        if orders.give_back {
            self.givers.read_buffers.give_back();
        }
        orders.give_back
    }

    pub fn counts(&self) -> MemoryCounts {
        let state = self.state.lock();
        let full = || -> u64 { self.shares().iter().map(|share| share.full_bytes).sum() };
        MemoryCounts {
            resident_bytes: resident_bytes(),
            cache_max_bytes: state.orders.map_or_else(full, |orders| orders.cache_bytes),
            pauses: state.pauses,
            given_back: state.given_back,
        }
    }

    /// The present memory of each part, of all that the process has.
    pub fn parts(&self, resident_bytes: u64) -> Vec<(&'static str, u64)> {
        let store = self.givers.store.upgrade();
        let (records, appends) = store.map_or((0, 0), |store| {
            (store.cache_bytes(), store.append_bytes_in_flight())
        });
        let blocks = &self.givers.blocks;
        let dirty = self.givers.dirty.memory_bytes();
        let mut parts = vec![
            ("record_cache", records),
            ("metadata_cache", blocks.used_bytes() as u64),
            ("metadata_buffers", blocks.write_buffer_bytes() as u64),
            ("dirty", dirty),
            // Appended data is dirty as well, except for the server's own moves.
            ("appends", appends.saturating_sub(dirty)),
            ("read_buffers", self.givers.read_buffers.kept_bytes() as u64),
        ];
        parts.extend(self.requests.read());
        parts.extend(self.others.read());
        with_other(parts, resident_bytes)
    }

    /// For the verdict: the memory of the process, without peaks that end by themselves, and its largest parts.
    pub fn used(&self) -> MemoryUse {
        let steady = self.state.lock().governor.steady_bytes();
        let resident_bytes = steady.unwrap_or_else(resident_bytes);
        let mut parts = self.parts(resident_bytes);
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        parts.truncate(TOLD_PARTS);
        MemoryUse {
            resident_bytes,
            limit_bytes: self.limit_bytes,
            largest: parts,
        }
    }
}

/// Dropped with the measuring thread: otherwise no other task would end a pause of callers.
struct GoesOn(Arc<Shaper>);

impl Drop for GoesOn {
    fn drop(&mut self) {
        self.0.pause(false);
    }
}

/// Ends a pause of callers when a measurement panics: the next one comes later than callers should wait.
struct Measuring<'a>(&'a Shaper);

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.pause(false);
        }
    }
}

/// Starts the job that measures; it ends with the memory's owner. A thread of its own: those of the runtime may all be
/// busy, and giving memory back takes some milliseconds.
pub fn tend(env: &Env, memory: &Arc<Memory>) -> std::io::Result<()> {
    let watched = Arc::downgrade(memory);
    let goes_on = GoesOn(Arc::clone(&memory.givers.shaper));
    let work = move || {
        let goes_on = &goes_on;
        let _measuring = Measuring(&goes_on.0);
        let Some(memory) = watched.upgrade() else {
            return Next::End;
        };
        let give_back = memory.look();
        drop(memory);
        if give_back {
            allocator::give_back();
            code::let_go();
        }
        Next::Period
    };
    Job::every("memory", TICK)
        .from_now()
        .retry(Backoff::new(TICK, RETRY_LONGEST))
        .start_thread(env, work)
}

#[cfg(test)]
mod tests {
    use cairn_base::VolumeId;
    use cairn_qos::{Client, Operation};
    use cairn_testkit::TestWorld;

    use super::*;

    const LIMIT_BYTES: u64 = 256 << 20;

    fn memory(limit_bytes: u64) -> (Arc<Memory>, MemoryBudget) {
        let world = TestWorld::new(1);
        let budget = MemoryBudget::of(LIMIT_BYTES);
        let cache = usize::try_from(budget.metadata_cache_bytes()).unwrap();
        let givers = Givers {
            store: Weak::new(),
            blocks: MetaCache::new(cache),
            dirty: DirtyBudget::new(budget.dirty_bytes),
            shaper: Shaper::new(&world.env),
            read_buffers: ReadBuffers::default(),
        };
        (Memory::new(limit_bytes, budget, givers), budget)
    }

    /// A limit that this process exceeds by far.
    #[test]
    fn what_can_give_way_does_beyond_the_limit() {
        let (memory, budget) = memory(1 << 20);
        memory.requests.add("nfs_requests", || 1 << 20);
        for _ in 0..100 {
            memory.look();
        }
        let (records, blocks) = budget.caches_least_bytes();
        let counts = memory.counts();
        assert_eq!(counts.cache_max_bytes, records + blocks);
        assert!(counts.given_back > 1 && counts.pauses > 1, "{counts:?}");
        let dirty = memory.givers.dirty.bytes_max();
        assert!((1..budget.dirty_bytes / 2).contains(&dirty), "{dirty}");
        let used = memory.used();
        assert!(used.resident_bytes > used.limit_bytes);
        assert_eq!(used.largest.len(), TOLD_PARTS);
        assert!(used.largest.is_sorted_by(|one, other| one.1 >= other.1));
    }

    #[test]
    fn nothing_gives_way_far_below_the_limit() {
        let (memory, budget) = memory(1 << 40);
        memory.requests.add("nfs_requests", || 1 << 20);
        for _ in 0..100 {
            assert!(!memory.look());
        }
        let full = budget.record_cache_bytes + budget.metadata_cache_bytes();
        let counts = memory.counts();
        assert_eq!(counts.cache_max_bytes, full);
        assert_eq!((counts.pauses, counts.given_back), (0, 0));
        assert_eq!(memory.givers.dirty.bytes_max(), budget.dirty_bytes);
        // More open volumes than it has room for elsewhere.
        memory.set_records_full(budget.record_cache_bytes / 4);
        memory.look();
        let full = budget.record_cache_bytes / 4 + budget.metadata_cache_bytes();
        assert_eq!(memory.counts().cache_max_bytes, full);
    }

    /// A measurement that begins a pause is followed by one that ends it. Without that, the end of the thread has to
    /// end the pause.
    #[test]
    fn callers_go_on_when_nobody_looks_any_more() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        for panics in [false, true] {
            let (memory, _) = memory(LIMIT_BYTES);
            let shaper = Arc::clone(&memory.givers.shaper);
            shaper.pause(true);
            let gate = shaper.gate(VolumeId(1));
            let pass = gate.admit(Client::named("x"), Operation::write(1));
            let pass = pass.expect("a pause");
            if panics {
                memory.requests.add("broken", || panic!("wanted by a test"));
            }
            tend(&cairn_testkit::test_env(), &memory).unwrap();
            let kept = panics.then_some(memory);
            runtime.as_ref().unwrap().block_on(pass);
            drop(kept);
        }
    }

    #[test]
    fn all_that_the_process_has_is_in_some_part() {
        let (memory, _) = memory(LIMIT_BYTES);
        memory.others.add("tables", || 5);
        let resident = 1 << 40;
        let parts = memory.parts(resident);
        assert_eq!(parts.iter().map(|(_, bytes)| bytes).sum::<u64>(), resident);
        let mut names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
        assert!(names.contains(&"tables") && names.contains(&"other"));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), parts.len(), "each once");
    }
}
