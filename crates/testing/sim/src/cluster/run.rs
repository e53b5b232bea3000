//! Runs a scenario of a cluster: starts nodes, makes volumes, executes events, and checks everything in the end.
//!
//! Owns: the order of a run, the state that its parts share. Must not know: the work of a volume's owner, the expected
//! contents (`terms`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::env::{Clock, Env};
use cairn_cluster::MemoryCoordinator;
use cairn_pool::Pool as StoragePool;
use cairn_testkit::{Crash, ManualClock, MemDisk, Rng};
use parking_lot::Mutex;

use super::calls::Calls;
use super::clock::NodeClock;
use super::etcd::Late;
use super::failure::FirstFailure;
use super::happen::Struck;
use super::machines::{AllRemains, Machine};
use super::map_rules::MapRules;
use super::net::Net;
use super::promises::Promises;
use super::report::{Counts, Report};
use super::scenario::ClusterScenario;
use super::terms::TermCounts;
use super::tiers;
use super::volumes::Volumes;
use crate::exec::{Executor, Groups, Stopped, Trace};
use crate::object_store::{LifeStore, SimStore};
use crate::run::Verdict;
use crate::scenario::{Shape, TierTrouble};

/// Limit of the steps of a run: more is an endless loop.
const STEPS_MAX: u64 = 3_000_000;
/// Additional steps for each further volume.
const STEPS_OF_VOLUME: u64 = 2_000_000;
const TIME_MAX: Duration = Duration::from_secs(6 * 3600);
/// Clients go on for this time after the last event.
const AFTERWARDS: Duration = Duration::from_secs(4);

/// State that all parts of a run share.
pub(super) struct Cluster {
    pub scenario: ClusterScenario,
    pub env: Env,
    pub clock: ManualClock,
    pub groups: Groups,
    pub net: Net,
    pub store: MemoryCoordinator,
    pub volumes: Arc<Volumes>,
    pub failure: Arc<FirstFailure>,
    pub promises: Arc<Promises>,
    /// The clients that talk to any node.
    pub calls: Option<Arc<Calls>>,
    pub rules: Arc<MapRules>,
    pub trace: Trace,
    /// The object store for cold data, as the world sees it.
    pub objects: Option<Arc<LifeStore>>,
    pub machines: Mutex<Vec<Machine>>,
    pub remains: AllRemains,
    pub rng: Mutex<Rng>,
    /// Number of events that have not ended.
    pub under_way: Arc<AtomicUsize>,
    pub nodes_lost: AtomicU64,
    pub volumes_made_late: AtomicU64,
    pub volumes_deleted: AtomicU64,
    pub takeover_ms: AtomicU64,
    /// Number of events of each kind.
    pub events: Mutex<BTreeMap<&'static str, u64>>,
    is_done: AtomicBool,
    /// Clients of etcd with late requests.
    pub late: Mutex<BTreeMap<String, Late>>,
}

/// Runs a scenario to its end or to the first failure.
pub fn run(scenario: &ClusterScenario) -> Report {
    let trace = Trace::default();
    let mut exec = Executor::new(
        scenario.seed,
        scenario.shape.picking,
        scenario.shape.has_threads,
        trace.clone(),
    );
    let cluster = Cluster::new(scenario.clone(), &exec, trace.clone());
    let director = Arc::clone(&cluster);
    let directing = async move {
        if let Err(error) = director.direct().await {
            director.failure.note(error);
        }
        director.is_done.store(true, Ordering::Relaxed);
    };
    exec.env.spawner.spawn("director", Box::pin(directing));
    let more = cluster.volumes.all().len().saturating_sub(1) as u64;
    let steps_max = STEPS_MAX + STEPS_OF_VOLUME * more;
    let stopped = exec.run(steps_max, TIME_MAX, |steps| {
        cluster.is_done.load(Ordering::Relaxed) || (steps % 64 == 0 && cluster.failed().is_some())
    });
    let mut verdict = match (cluster.failed(), stopped) {
        (_, Stopped::Panicked(text)) => Verdict::Failed(format!("a panic in {text}")),
        (Some(failure), _) => Verdict::Failed(failure),
        (None, Stopped::Done) => Verdict::Passed,
        (None, Stopped::Stuck) => Verdict::Failed("nothing goes on".to_owned()),
        (None, Stopped::StepLimit) => Verdict::Failed("steps without end".to_owned()),
    };
    let counts = cluster.counts(&exec);
    // The power first, then the tasks: code that runs when they are dropped must not reach a disk.
    for machine in cluster.machines.lock().iter_mut() {
        for disk in &machine.disks {
            disk.crash(Crash::LoseUnsynced, 0);
        }
        machine.running = None;
    }
    drop(exec);
    for volume in cluster.volumes.all() {
        volume.terms.forget();
    }
    let trace_hash = trace.hash();
    let held = held_after(cluster);
    if matches!(verdict, Verdict::Passed) && !held.is_empty() {
        verdict = Verdict::Failed(format!("memory is held after the end: {}", held.join("; ")));
    }
    Report {
        verdict,
        trace: trace_hash,
        counts,
    }
}

/// Drops the world, and returns what still exists then: the code under test, or the simulator, holds it in a cycle.
fn held_after(cluster: Arc<Cluster>) -> Vec<String> {
    let remains = cluster.remains.clone();
    let disks: Vec<_> = cluster
        .machines
        .lock()
        .iter()
        .flat_map(|machine| machine.disks.iter().map(Arc::downgrade))
        .collect();
    let world = Arc::downgrade(&cluster);
    let volumes = Arc::downgrade(&cluster.volumes);
    drop(cluster);
    let processes = remains
        .lock()
        .iter()
        .filter_map(|(index, of)| {
            let held = of.held();
            (!held.is_empty()).then(|| format!("process of machine {index}: {}", held.join(", ")))
        })
        .collect::<Vec<_>>();
    let counts = [
        ("world", world.strong_count()),
        ("volumes", volumes.strong_count()),
        (
            "disks",
            disks.iter().filter(|disk| disk.strong_count() > 0).count(),
        ),
    ];
    let counted = counts.into_iter().filter(|(_, count)| *count > 0);
    processes
        .into_iter()
        .chain(counted.map(|(what, count)| format!("{what}: {count}")))
        .collect()
}

impl Cluster {
    fn new(scenario: ClusterScenario, exec: &Executor, trace: Trace) -> Arc<Self> {
        let mut rng = Rng::new(scenario.seed ^ 0x51ab_77e0);
        let (env, clock) = (exec.env.clone(), exec.clock.clone());
        let machines = (0..scenario.node_count).map(|index| {
            let disks = 0..scenario.disks_per_node;
            let disks = disks
                .map(|nth| MemDisk::new(label(index, nth), scenario.shape.disk_mib << 20))
                .collect();
            Machine::new(NodeClock::new(clock.clone(), scenario.rates[index]), disks)
        });
        let machines = machines.collect();
        let net = Net::new(clock.clone(), trace.clone(), rng.u64());
        let trouble = scenario.shape.tiers.trouble;
        let objects = (trouble != TierTrouble::None).then(|| {
            let store = SimStore::new(trouble);
            store.seen(&env, env.clock.clone(), &trace, scenario.seed ^ 0x0b1e_c750)
        });
        let failure = Arc::new(FirstFailure::default());
        let calls = scenario
            .calls
            .map(|plan| Calls::new(plan, clock.clone(), trace.clone(), failure.clone()));
        let seed = || rng.u64();
        let volumes = Volumes::new(&scenario, objects.as_ref(), &failure, seed);
        Arc::new(Self {
            net,
            store: MemoryCoordinator::new(env.clone()),
            promises: Promises::new(failure.clone()),
            calls,
            rules: MapRules::new(failure.clone()),
            volumes: Arc::new(volumes),
            failure,
            groups: exec.groups(),
            env,
            clock,
            trace,
            objects,
            machines: Mutex::new(machines),
            remains: AllRemains::default(),
            rng: Mutex::new(rng),
            under_way: Arc::default(),
            nodes_lost: AtomicU64::new(0),
            volumes_made_late: AtomicU64::new(0),
            volumes_deleted: AtomicU64::new(0),
            takeover_ms: AtomicU64::new(0),
            events: Mutex::default(),
            is_done: AtomicBool::new(false),
            late: Mutex::default(),
            scenario,
        })
    }

    pub fn shape(&self) -> &Shape {
        &self.scenario.shape
    }

    /// The first failure, if there is one.
    pub fn failed(&self) -> Option<String> {
        let of_clients = || {
            let mut all = self.volumes.all().iter();
            all.find_map(|volume| volume.terms.failure_of_clients())
        };
        self.failure.get().or_else(of_clients)
    }

    fn counts(&self, exec: &Executor) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = self.volumes.all();
        all.iter().for_each(|volume| volume.terms.note_ops());
        let sum = |counter: fn(&TermCounts) -> &AtomicU64| -> u64 {
            let counters = all.iter().map(|volume| counter(&volume.terms.counts));
            counters.map(get).sum()
        };
        Counts {
            steps: exec.steps,
            simulated_seconds: self.clock.monotonic().as_secs(),
            sent_bytes: self.net.sent_bytes(),
            volumes: all.iter().filter(|volume| volume.id().is_some()).count() as u64,
            volumes_made_late: get(&self.volumes_made_late),
            volumes_deleted: get(&self.volumes_deleted),
            openings: sum(|of| &of.openings),
            late_openings: sum(|of| &of.late_openings),
            judged: sum(|of| &of.judged),
            verified_bytes: sum(|of| &of.verified_bytes),
            lost_changes: sum(|of| &of.lost_changes),
            lost_writes: sum(|of| &of.lost_writes),
            ops: sum(|of| &of.ops),
            ops_refused: sum(|of| &of.ops_refused),
            late_answers: sum(|of| &of.late_answers),
            segments_sent: sum(|of| &of.segments_sent),
            calls: self
                .calls
                .as_ref()
                .map_or_else(Default::default, |calls| calls.counted()),
            nodes_lost: get(&self.nodes_lost),
            takeover_ms: get(&self.takeover_ms),
            events: self.events.lock().clone(),
        }
    }

    async fn direct(self: &Arc<Self>) -> Result<(), String> {
        self.env
            .spawner
            .spawn("etcd", Box::pin(Arc::clone(self).answer_late()));
        let rules = self.rules.clone().watch(self.store.clone());
        self.env.spawner.spawn("rules", Box::pin(rules));
        for index in 0..self.scenario.node_count {
            self.start(index);
            self.started(index).await;
        }
        for volume in self.volumes.all() {
            if volume.plan.made_at_ms.is_none() {
                self.make(volume).await?;
                self.settled(volume).await?;
            }
        }
        if let Some(objects) = &self.objects {
            let first = self.process(0).ok_or("the first node is gone")?;
            tiers::begin(&first.pool).await?;
            objects.arm();
            let (env, seed) = (self.env.clone(), self.scenario.seed ^ 0x7065_1100);
            let cluster = Arc::downgrade(self);
            let pool = move |pick: u64| cluster.upgrade()?.some_pool(pick);
            world_spawn(&self.env, tiers::change(env, seed, pool));
        }

        let began = self.clock.monotonic();
        self.plan_volumes();
        self.start_callers();
        for event in &self.scenario.events {
            let at = began + Duration::from_millis(event.at_ms);
            let wait = at.saturating_sub(self.clock.monotonic());
            self.env.clock.sleep(wait).await;
            if let Some(volume) = self.volumes.struck(event.volume) {
                let at_work = None;
                self.happen(&event.what, &Struck { volume, at_work });
            }
        }
        self.env.clock.sleep(AFTERWARDS).await;
        self.heal().await?;
        self.end_callers().await?;
        self.end().await
    }

    /// The pool as some node has it, if that node runs; `None` if nothing should be changed any more.
    fn some_pool(&self, pick: u64) -> Option<Option<Arc<StoragePool>>> {
        let index = pick as usize % self.scenario.node_count;
        let first = self.volumes.all().first();
        let is_over = first.is_none_or(|first| first.terms.is_over()) || self.failed().is_some();
        (!is_over).then(|| Some(self.process(index)?.pool.clone()))
    }
}

pub(super) fn world_spawn(env: &Env, task: impl Future<Output = ()> + Send + 'static) {
    env.spawner.spawn("world", Box::pin(task));
}

fn label(index: usize, nth: usize) -> String {
    format!("n{index}d{nth}")
}

pub(super) fn client_name(index: usize) -> String {
    format!("node{index}")
}
