//! Runs a scenario of a cluster: starts nodes, has things happen to them, and looks at what is there in the end.
//!
//! Owns: machines, what happens when, when a cluster counts as well again.
//! Must not know: what the owner of the volume does, what it may have (`terms`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::env::{BoxFuture, Clock, Env};
use cairn_base::{NodeId, crc32c};
use cairn_cluster::map::Keys;
use cairn_cluster::memory::Fault as StoreFault;
use cairn_cluster::{KeyRange, MemoryCoordinator};
use cairn_formats::pool_file::PoolDisk;
use cairn_pool::Pool as StoragePool;
use cairn_testkit::{
    Crash, Fault as DiskFault, FaultRule, ManualClock, MemDisk, OpKind, Pace, Rng,
};
use parking_lot::Mutex;

use super::clock::NodeClock;
use super::map_rules::MapRules;
use super::net::Net;
use super::node::{NAME, Process, Remembered, Start, node_id};
use super::promises::Promises;
use super::scenario::{ClusterScenario, Ending, Event, What, Who};
use super::terms::{OneTerm, Terms};
use super::tiers;
use crate::exec::{Executor, Group, Groups, Stopped, Trace};
use crate::object_store::{Seen, SimStore};
use crate::run::Verdict;
use crate::scenario::{Shape, TierTrouble};
use crate::work::narrow;
use crate::world::{VOLUME, volume_settings};

/// More is a loop without end.
const STEPS_MAX: u64 = 3_000_000;
const TIME_MAX: Duration = Duration::from_secs(6 * 3600);
/// When all is well again the volume has an owner after so long.
const OWNER_WAIT_MAX: Duration = Duration::from_secs(300);
/// An object store that does wrong now and then may keep the judge from reading all that a new owner has; it stops after
/// so long.
const TIER_WRONG_MAX: Duration = Duration::from_secs(100);
/// And everything its full protection after so long.
const WHOLE_WAIT_MAX: Duration = Duration::from_secs(1800);
/// What one pass leaves, because too much was found at once, the next one finds.
const SCRUBS: usize = 4;
const LOOK: Duration = Duration::from_millis(500);
/// Clients go on for so long after the last thing that happens.
const AFTERWARDS: Duration = Duration::from_secs(4);
/// A takeover is waited for so long, and looked for so often, by what happens to a new owner.
const NEXT_WAIT_MAX: Duration = Duration::from_secs(20);
const NEXT_LOOK: Duration = Duration::from_millis(3);
/// In names of files that hold data, of the volume that there is: those of the log and of the state begin with higher digits.
const DATA_SHARDS: &str = "shards/00000001/0";
/// How often requests to etcd that are late are looked at.
const ETCD_LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub verdict: Verdict,
    /// Hash of every step, and of all that disks did and streams brought.
    pub trace: u64,
    pub counts: Counts,
}

/// What runs saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub steps: u64,
    pub simulated_seconds: u64,
    pub sent_bytes: u64,
    pub openings: u64,
    pub late_openings: u64,
    pub judged: u64,
    pub verified_bytes: u64,
    pub lost_changes: u64,
    pub lost_writes: u64,
    pub ops: u64,
    pub ops_refused: u64,
    pub late_answers: u64,
    pub segments_sent: u64,
    /// Nodes that were lost for good.
    pub nodes_lost: u64,
    /// From the loss of the owner in the end until the next one serves; 0 if that was not how it ended.
    pub takeover_ms: u64,
    /// How often what happened.
    pub events: BTreeMap<&'static str, u64>,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.steps += other.steps;
        self.simulated_seconds += other.simulated_seconds;
        self.sent_bytes += other.sent_bytes;
        self.openings += other.openings;
        self.late_openings += other.late_openings;
        self.judged += other.judged;
        self.verified_bytes += other.verified_bytes;
        self.lost_changes += other.lost_changes;
        self.lost_writes += other.lost_writes;
        self.ops += other.ops;
        self.ops_refused += other.ops_refused;
        self.late_answers += other.late_answers;
        self.segments_sent += other.segments_sent;
        self.nodes_lost += other.nodes_lost;
        self.takeover_ms = self.takeover_ms.max(other.takeover_ms);
        for (name, count) in &other.events {
            *self.events.entry(name).or_default() += count;
        }
    }
}

/// A process that was started.
struct Running {
    group: Group,
    process: Arc<Mutex<Option<Arc<Process>>>>,
}

struct Machine {
    clock: NodeClock,
    disks: Vec<Arc<MemDisk>>,
    paces: Vec<Arc<DiskPace>>,
    high_water: Arc<Remembered>,
    was_started: bool,
    is_lost: bool,
    /// A disk had errors: the process has to be started anew before it uses it again.
    is_stained: bool,
    running: Option<Running>,
    /// Who paused it, and has not let it go on.
    pauses: u32,
}

struct Cluster {
    scenario: ClusterScenario,
    env: Env,
    clock: ManualClock,
    groups: Groups,
    net: Net,
    store: MemoryCoordinator,
    terms: Arc<Terms>,
    promises: Arc<Promises>,
    rules: Arc<MapRules>,
    trace: Trace,
    /// The object store for cold data, as the world sees it.
    objects: Option<Arc<Seen>>,
    machines: Mutex<Vec<Machine>>,
    rng: Mutex<Rng>,
    /// What happens and has not ended.
    under_way: AtomicUsize,
    nodes_lost: AtomicU64,
    takeover_ms: AtomicU64,
    events: Mutex<BTreeMap<&'static str, u64>>,
    is_done: AtomicBool,
    /// Clients of etcd whose requests are late.
    late: Mutex<BTreeMap<String, Late>>,
}

/// How late etcd is.
#[derive(Clone, Copy)]
enum Late {
    /// Requests, and then their answers, each by so many milliseconds at most.
    By(u64),
    /// Answers do not come.
    Mute,
    /// Nothing is done.
    Silent,
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
            director.terms.fail(error);
        }
        director.is_done.store(true, Ordering::Relaxed);
    };
    exec.env.spawner.spawn("director", Box::pin(directing));
    let terms = cluster.terms.clone();
    let stopped = exec.run(STEPS_MAX, TIME_MAX, |steps| {
        cluster.is_done.load(Ordering::Relaxed) || (steps % 64 == 0 && terms.failure().is_some())
    });
    terms.note_ops();
    let verdict = match (terms.failure(), stopped) {
        (_, Stopped::Panicked(text)) => Verdict::Failed(format!("a panic in {text}")),
        (Some(failure), _) => Verdict::Failed(failure),
        (None, Stopped::Done) => Verdict::Passed,
        (None, Stopped::Stuck) => Verdict::Failed("nothing goes on".to_owned()),
        (None, Stopped::StepLimit) => Verdict::Failed("steps without end".to_owned()),
    };
    let counts = cluster.counts(&exec);
    // First the power, then the tasks: nothing that runs when they are dropped reaches a disk.
    for machine in cluster.machines.lock().iter_mut() {
        for disk in &machine.disks {
            disk.crash(Crash::LoseUnsynced, 0);
        }
        machine.running = None;
    }
    drop(exec);
    cluster.terms.forget();
    Report {
        verdict,
        trace: trace.hash(),
        counts,
    }
}

impl Cluster {
    fn new(scenario: ClusterScenario, exec: &Executor, trace: Trace) -> Arc<Self> {
        let mut rng = Rng::new(scenario.seed ^ 0x51ab_77e0);
        let (env, clock) = (exec.env.clone(), exec.clock.clone());
        let machines = (0..scenario.node_count).map(|index| Machine {
            clock: NodeClock::new(clock.clone(), scenario.rates[index]),
            disks: (0..scenario.disks_per_node)
                .map(|nth| MemDisk::new(label(index, nth), scenario.shape.disk_mib << 20))
                .collect(),
            paces: Vec::new(),
            high_water: Arc::default(),
            was_started: false,
            is_lost: false,
            is_stained: false,
            running: None,
            pauses: 0,
        });
        let machines = machines.collect();
        let net = Net::new(clock.clone(), trace.clone(), rng.u64());
        let terms_seed = rng.u64();
        let trouble = scenario.shape.tiers.trouble;
        let objects = (trouble != TierTrouble::None).then(|| {
            let store = SimStore::new(trouble);
            store.seen(&env, env.clock.clone(), &trace, scenario.seed ^ 0x0b1e_c750)
        });
        let terms = Terms::new(
            scenario.shape.clone(),
            scenario.load,
            objects.clone(),
            terms_seed,
        );
        Arc::new(Self {
            net,
            store: MemoryCoordinator::new(env.clone()),
            promises: Promises::new(terms.clone()),
            rules: MapRules::new(terms.clone()),
            terms,
            groups: exec.groups(),
            env,
            clock,
            trace,
            objects,
            machines: Mutex::new(machines),
            rng: Mutex::new(rng),
            under_way: AtomicUsize::new(0),
            nodes_lost: AtomicU64::new(0),
            takeover_ms: AtomicU64::new(0),
            events: Mutex::default(),
            is_done: AtomicBool::new(false),
            late: Mutex::default(),
            scenario,
        })
    }

    fn shape(&self) -> &Shape {
        &self.scenario.shape
    }

    fn counts(&self, exec: &Executor) -> Counts {
        let of = &self.terms.counts;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            steps: exec.steps,
            simulated_seconds: self.clock.monotonic().as_secs(),
            sent_bytes: self.net.sent_bytes(),
            openings: get(&of.openings),
            late_openings: get(&of.late_openings),
            judged: get(&of.judged),
            verified_bytes: get(&of.verified_bytes),
            lost_changes: get(&of.lost_changes),
            lost_writes: get(&of.lost_writes),
            ops: get(&of.ops),
            ops_refused: get(&of.ops_refused),
            late_answers: get(&of.late_answers),
            segments_sent: get(&of.segments_sent),
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
        let first = self.process(0).ok_or("the first node is gone")?;
        let name = "main".parse().map_err(|_| "a name that is none")?;
        let made = first.pool.volume_create(
            &name,
            volume_settings(self.shape()),
            Vec::new(),
            None,
            false,
        );
        made.await.map_err(|error| error.to_string())?;
        self.settled().await?;
        if let Some(objects) = &self.objects {
            tiers::begin(&first.pool).await?;
            objects.arm();
            let (env, seed) = (self.env.clone(), self.scenario.seed ^ 0x7065_1100);
            let cluster = Arc::downgrade(self);
            let pool = move |pick: u64| cluster.upgrade()?.some_pool(pick);
            world_spawn(&self.env, tiers::change(env, seed, pool));
        }
        drop(first);

        let began = self.clock.monotonic();
        for event in &self.scenario.events {
            let at = began + Duration::from_millis(event.at_ms);
            let wait = at.saturating_sub(self.clock.monotonic());
            self.env.clock.sleep(wait).await;
            self.happen(&event.what);
        }
        self.env.clock.sleep(AFTERWARDS).await;
        self.heal().await;
        let term = self.settled().await?;
        self.end(term).await
    }

    // Processes

    fn start(self: &Arc<Self>, index: usize) {
        let mut machines = self.machines.lock();
        let machine = &mut machines[index];
        if machine.running.is_some() || machine.is_lost {
            return;
        }
        let (seed, pace_seed) = {
            let mut rng = self.rng.lock();
            (rng.u64(), rng.u64())
        };
        machine.paces = (0..)
            .zip(&machine.disks)
            .map(|(nth, disk)| {
                let pace = Arc::new(DiskPace {
                    index: (index * 16 + nth) as u64,
                    is_uneven: self.shape().is_uneven,
                    clock: self.clock.clone(),
                    trace: self.trace.clone(),
                    state: Mutex::new((Rng::new(pace_seed ^ nth as u64), (0, 0))),
                });
                disk.pace_with(pace.clone());
                pace
            })
            .collect();
        let (group, env) = self.groups.add(Arc::new(machine.clock.clone()), seed);
        self.net.power_on(node_id(index));
        let start = Start {
            index,
            env: env.clone(),
            shape: self.shape().clone(),
            disks: machine.disks.clone(),
            is_new: !machine.was_started,
            coordinator: self.store.client(client_name(index)),
            high_water: machine.high_water.clone(),
            net: self.net.clone(),
            terms: self.terms.clone(),
            promises: self.promises.clone(),
            objects: self.objects.as_ref().map(|world| {
                let clock = self.env.clock.clone();
                world
                    .store
                    .seen(&env, clock, &self.trace, seed ^ 0x0b1e_c751)
            }),
        };
        machine.was_started = true;
        machine.is_stained = false;
        let process: Arc<Mutex<Option<Arc<Process>>>> = Arc::default();
        machine.running = Some(Running {
            group,
            process: process.clone(),
        });
        let (cluster, world) = (Arc::downgrade(self), self.env.clone());
        let starting = async move {
            match start.run().await {
                Ok(started) => *process.lock() = Some(Arc::new(started)),
                Err(error) => {
                    tracing::warn!(index, error, "a node does not start");
                    // As a supervisor does it: from outside, for this process is about to end.
                    let wait = world.clock.sleep(Duration::from_secs(1));
                    let again = async move {
                        wait.await;
                        if let Some(cluster) = cluster.upgrade()
                            && cluster.crash(index, Crash::KeepUnsynced, false, Some(group))
                        {
                            cluster.start(index);
                        }
                    };
                    world_spawn(&world, again);
                }
            }
        };
        env.spawner.spawn("start", Box::pin(starting));
    }

    /// False if it was down already, or another process runs than `only`.
    fn crash(&self, index: usize, mode: Crash, with_power: bool, only: Option<Group>) -> bool {
        let mut machines = self.machines.lock();
        let machine = &mut machines[index];
        let is_meant = |running: &Running| only.is_none_or(|group| running.group == group);
        if !machine.running.as_ref().is_some_and(is_meant) {
            return false;
        }
        let Some(running) = machine.running.take() else {
            return false;
        };
        machine.pauses = 0;
        machine.clock.resume();
        // First the power, then the tasks: nothing that runs when they are dropped reaches a disk.
        let mut rng = self.rng.lock();
        machine.disks = machine
            .disks
            .iter()
            .map(|disk| disk.crash(mode, rng.u64()))
            .collect();
        drop(rng);
        self.net.down(node_id(index), with_power);
        self.groups.end(running.group);
        if let Some(objects) = &self.objects {
            objects.machine_is_gone();
        }
        true
    }

    fn process(&self, index: usize) -> Option<Arc<Process>> {
        let machines = self.machines.lock();
        let running = machines[index].running.as_ref()?;
        running.process.lock().clone()
    }

    /// The pool as some node has it, if that runs; `None` when nothing is to be changed any more.
    fn some_pool(&self, pick: u64) -> Option<Option<Arc<StoragePool>>> {
        let index = pick as usize % self.scenario.node_count;
        let is_over = self.terms.is_over() || self.terms.failure().is_some();
        (!is_over).then(|| Some(self.process(index)?.pool.clone()))
    }

    async fn started(&self, index: usize) {
        while self.process(index).is_none() {
            self.env.clock.sleep(LOOK).await;
        }
    }

    // What happens

    fn index_of(&self, who: Who) -> usize {
        let owner = self.terms.newest_node().unwrap_or(0);
        match who {
            Who::Owner => owner,
            Who::Behind(by) => (owner + by) % self.scenario.node_count,
            Who::Holder => {
                let holder = self.rules.holder();
                let index =
                    (0..self.scenario.node_count).find(|index| Some(node_id(*index)) == holder);
                index.unwrap_or(owner)
            }
        }
    }

    /// Does something after a time; all such things end before the cluster counts as well.
    fn later(self: &Arc<Self>, ms: u64, what: impl FnOnce(&Arc<Self>) + Send + 'static) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let cluster = Arc::clone(self);
        let task = async move {
            cluster.env.clock.sleep(Duration::from_millis(ms)).await;
            what(&cluster);
            cluster.under_way.fetch_sub(1, Ordering::Relaxed);
        };
        world_spawn(&self.env, task);
    }

    fn happen(self: &Arc<Self>, what: &What) {
        tracing::info!(?what, owner = ?self.terms.newest_node(), at_ms = self.clock.monotonic().as_millis(), "HAPPENS");
        *self.events.lock().entry(what.name()).or_default() += 1;
        match what.clone() {
            What::Crash {
                who,
                keep,
                with_power,
                down_ms,
            } => {
                let index = self.index_of(who);
                if self.crash(index, keep.mode(), with_power, None) {
                    self.later(down_ms, move |cluster| cluster.start(index));
                }
            }
            What::Pause { who, machine, ms } => self.pause(self.index_of(who), machine, ms),
            What::PauseNext { after_ms, ms } => {
                let cluster = Arc::clone(self);
                self.under_way.fetch_add(1, Ordering::Relaxed);
                let task = async move {
                    cluster.pause_next(after_ms, ms).await;
                    cluster.under_way.fetch_sub(1, Ordering::Relaxed);
                };
                world_spawn(&self.env, task);
            }
            What::Cut {
                who,
                from,
                both,
                ms,
            } => {
                let one = self.index_of(who);
                let other = (one + from) % self.scenario.node_count;
                let mut ways = vec![(one, other)];
                ways.extend(both.then_some((other, one)));
                self.cut(ways, ms);
            }
            What::CutOff {
                who,
                hears,
                is_heard,
                ms,
            } => {
                let one = self.index_of(who);
                let others = (0..self.scenario.node_count).filter(|other| *other != one);
                let ways = others.flat_map(|other| {
                    let out = (!is_heard).then_some((one, other));
                    let into = (!hears).then_some((other, one));
                    out.into_iter().chain(into)
                });
                self.cut(ways.collect(), ms);
            }
            What::Break { who, other } => {
                let one = self.index_of(who);
                let other = (one + other) % self.scenario.node_count;
                self.net.break_all(node_id(one), node_id(other));
            }
            What::Slow { who, by_ms, ms } => {
                let node = node_id(self.index_of(who));
                self.net.slow(node, Some(Duration::from_millis(by_ms)));
                self.later(ms, move |cluster| cluster.net.slow(node, None));
            }
            What::EtcdAway { who, ms } => {
                let client = client_name(self.index_of(who));
                self.store.set_reachable(&client, false);
                self.later(ms, move |cluster| {
                    cluster.store.set_reachable(&client, true);
                });
            }
            What::EtcdLate { who, by_ms, ms } => {
                let late = Late::By(by_ms);
                self.delay_etcd(vec![client_name(self.index_of(who))], late, ms);
            }
            What::EtcdMute { who, ms } => {
                self.delay_etcd(vec![client_name(self.index_of(who))], Late::Mute, ms);
            }
            What::EtcdStops { ms } => {
                let all = (0..self.scenario.node_count).map(client_name);
                self.delay_etcd(all.collect(), Late::Silent, ms);
            }
            What::EtcdUnknown { who, done, count } => {
                let client = client_name(self.index_of(who));
                for _ in 0..count {
                    self.store.plant(&client, lost(done));
                }
            }
            What::EtcdForgets {
                who,
                done,
                skip,
                count,
            } => {
                let client = client_name(self.index_of(who));
                for _ in 0..skip {
                    self.store.plant_for_transaction(&client, StoreFault::Spare);
                }
                for _ in 0..count {
                    self.store.plant_for_transaction(&client, lost(done));
                }
            }
            What::CutFromAllBut { who, but, ms } => {
                let one = self.index_of(who);
                let spared = (one + but) % self.scenario.node_count;
                let others =
                    (0..self.scenario.node_count).filter(|other| *other != one && *other != spared);
                let ways = others.flat_map(|other| [(one, other), (other, one)]);
                self.cut(ways.collect(), ms);
            }
            What::Row { steps } => {
                let cluster = Arc::clone(self);
                self.under_way.fetch_add(1, Ordering::Relaxed);
                let task = async move {
                    for (wait_ms, what) in steps {
                        let wait = Duration::from_millis(wait_ms);
                        cluster.env.clock.sleep(wait).await;
                        cluster.happen(&what);
                    }
                    cluster.under_way.fetch_sub(1, Ordering::Relaxed);
                };
                world_spawn(&self.env, task);
            }
            What::LoseLease { who } => self.lose_lease(self.index_of(who)),
            What::ClockJump { who, seconds } => {
                let index = self.index_of(who);
                self.machines.lock()[index].clock.step_wall(seconds);
            }
            What::DiskDead { who, pick, ms } => {
                let disk = self.disk(self.index_of(who), pick);
                disk.fail_all();
                self.later(ms, move |_| disk.clear_faults());
            }
            What::DiskErrors { who, pick, times } => {
                let kinds = [
                    OpKind::Read,
                    OpKind::Write,
                    OpKind::WriteDurable,
                    OpKind::Sync,
                ];
                self.disk(self.index_of(who), pick).inject(FaultRule {
                    kind: Some(kinds[(pick >> 8) as usize % kinds.len()]),
                    name_part: String::new(),
                    skip: (pick >> 16) % 40,
                    times,
                    fault: DiskFault::Io,
                });
            }
            What::DiskFlips { who, pick, times } => {
                let machines = self.machines.lock();
                let disks = &machines[self.index_of(who)].disks;
                disks[pick as usize % disks.len()].inject(FaultRule {
                    kind: Some(OpKind::Read),
                    name_part: DATA_SHARDS.to_owned(),
                    skip: 0,
                    times,
                    fault: DiskFault::FlipRead { bit: pick >> 8 },
                });
            }
            What::DiskSlow {
                who,
                pick,
                by_ms,
                times,
            } => {
                let index = self.index_of(who);
                let machines = self.machines.lock();
                let paces = &machines[index].paces;
                if let Some(pace) = paces.get(pick as usize % paces.len().max(1)) {
                    pace.state.lock().1 = (by_ms, times);
                }
            }
            What::Give => {
                let owner = self.terms.newest_node().unwrap_or(0);
                if let Some(process) = self.process(owner) {
                    process.member.ask_to_give(VOLUME);
                }
            }
            What::CrashMembers {
                but,
                keep,
                with_power,
                down_ms,
            } => {
                let members = self.members();
                let spared = but.map(|nth| members[nth % members.len()]);
                let owner = self.index_of(Who::Owner);
                let struck = members.into_iter().chain([owner]);
                let struck: BTreeSet<usize> =
                    struck.filter(|index| Some(*index) != spared).collect();
                for index in struck {
                    if self.crash(index, keep.mode(), with_power, None) {
                        self.later(down_ms, move |cluster| cluster.start(index));
                    }
                }
            }
            What::CutMember { nth, ms } => {
                let members = self.members();
                let way = (self.index_of(Who::Owner), members[nth % members.len()]);
                self.cut(vec![way], ms);
            }
            What::BreakMember { nth } => {
                let members = self.members();
                let owner = node_id(self.index_of(Who::Owner));
                let other = node_id(members[nth % members.len()]);
                self.net.break_all(owner, other);
            }
            What::SlowMembers { by_ms, times } => {
                let members = self.members();
                let machines = self.machines.lock();
                let disks = members.iter().flat_map(|index| &machines[*index].paces);
                disks.for_each(|pace| pace.state.lock().1 = (by_ms, times));
            }
            What::CrashNext { after_ms, down_ms } => {
                let cluster = Arc::clone(self);
                self.under_way.fetch_add(1, Ordering::Relaxed);
                let task = async move {
                    if cluster.next_serves(after_ms).await {
                        let index = cluster.index_of(Who::Owner);
                        cluster.crash(index, Crash::LoseUnsynced, true, None);
                        cluster.later(down_ms, move |cluster| cluster.start(index));
                    }
                    cluster.under_way.fetch_sub(1, Ordering::Relaxed);
                };
                world_spawn(&self.env, task);
            }
            What::When { verb, skip, then } => {
                let cluster = Arc::downgrade(self);
                self.promises.when(verb, skip, move |disk| {
                    tracing::info!(?verb, %disk, "NOW");
                    if let Some(cluster) = cluster.upgrade() {
                        cluster.happen(&then);
                    }
                });
            }
        }
    }

    /// The nodes of the open part of the log, those of others than the owner, from behind it on; any other, if there
    /// is none.
    fn members(&self) -> Vec<usize> {
        let (owner, count) = (self.index_of(Who::Owner), self.scenario.node_count);
        let disks = self.terms.log_disks();
        let nodes = self.process(owner).map_or_else(Vec::new, |process| {
            let state = process.pool.state();
            let is_member = |disk: &&PoolDisk| disks.contains(&disk.id);
            let members = state.disks.iter().filter(is_member);
            members.map(|disk| disk.node).collect()
        });
        let behind = (1..count).map(|by| (owner + by) % count);
        let members: Vec<usize> = behind
            .filter(|index| nodes.contains(&node_id(*index)))
            .collect();
        match members.is_empty() {
            true => vec![(owner + 1) % count],
            false => members,
        }
    }

    fn disk(&self, index: usize, pick: u64) -> Arc<MemDisk> {
        let mut machines = self.machines.lock();
        let machine = &mut machines[index];
        machine.is_stained = true;
        machine.disks[pick as usize % machine.disks.len()].clone()
    }

    fn pause(self: &Arc<Self>, index: usize, with_machine: bool, ms: u64) {
        let group = {
            let mut machines = self.machines.lock();
            let machine = &mut machines[index];
            let Some(running) = &machine.running else {
                return;
            };
            machine.pauses += 1;
            if with_machine {
                machine.clock.suspend();
            }
            self.groups.pause(running.group);
            running.group
        };
        self.later(ms, move |cluster| {
            let mut machines = cluster.machines.lock();
            let machine = &mut machines[index];
            let is_same = |running: &Running| running.group == group;
            if !machine.running.as_ref().is_some_and(is_same) {
                return;
            }
            machine.pauses -= 1;
            if machine.pauses == 0 {
                machine.clock.resume();
                cluster.groups.resume(group);
            }
        });
    }

    async fn pause_next(self: &Arc<Self>, after_ms: u64, ms: u64) {
        if self.next_serves(after_ms).await {
            self.pause(self.index_of(Who::Owner), false, ms);
        }
    }

    /// Waits until another opening of the volume has served for so long; false if there is none for long.
    async fn next_serves(&self, for_ms: u64) -> bool {
        let count = self.terms.count();
        let until = self.clock.monotonic() + NEXT_WAIT_MAX;
        while self.terms.count() == count {
            if self.clock.monotonic() >= until {
                return false;
            }
            self.env.clock.sleep(NEXT_LOOK).await;
        }
        let wait = Duration::from_millis(for_ms);
        self.env.clock.sleep(wait).await;
        true
    }

    fn cut(self: &Arc<Self>, ways: Vec<(usize, usize)>, ms: u64) {
        for (from, to) in &ways {
            self.net.cut(node_id(*from), node_id(*to));
        }
        self.later(ms, move |cluster| {
            for (from, to) in ways {
                cluster.net.mend(node_id(from), node_id(to));
            }
        });
    }

    fn delay_etcd(self: &Arc<Self>, clients: Vec<String>, late: Late, ms: u64) {
        for client in &clients {
            self.store.hold(client, true);
            self.late.lock().insert(client.clone(), late);
        }
        self.later(ms, move |cluster| {
            for client in &clients {
                cluster.store.hold(client, false);
                cluster.late.lock().remove(client);
            }
            for held in cluster.store.held() {
                if clients.contains(&held.client) {
                    cluster.store.step(held.id);
                    cluster.store.step(held.id);
                }
            }
        });
    }

    /// Requests that are held go on when their time has come, in any order; some are lost on their way.
    async fn answer_late(self: Arc<Self>) {
        let mut due: BTreeMap<(u64, bool), Duration> = BTreeMap::new();
        loop {
            self.env.clock.sleep(ETCD_LOOK).await;
            if self.late.lock().is_empty() {
                due.clear();
                continue;
            }
            let now = self.clock.monotonic();
            let held = self.store.held();
            let there: BTreeSet<(u64, bool)> =
                held.iter().map(|held| (held.id, held.done)).collect();
            due.retain(|key, _| there.contains(key));
            for held in held {
                let late = self.late.lock().get(&held.client).copied();
                let by_ms = match late {
                    Some(Late::By(by_ms)) => by_ms,
                    Some(Late::Mute) if !held.done => {
                        self.store.step(held.id);
                        continue;
                    }
                    _ => continue,
                };
                let mut rng = self.rng.lock();
                let at = *due
                    .entry((held.id, held.done))
                    .or_insert_with(|| now + Duration::from_millis(rng.below(by_ms)));
                let is_lost = rng.below(400) == 0;
                drop(rng);
                match () {
                    () if is_lost => self.store.lose(held.id),
                    () if at <= now => self.store.step(held.id),
                    () => {}
                }
            }
        }
    }

    fn lose_lease(self: &Arc<Self>, index: usize) {
        let (world, store) = (self.store.client("world"), self.store.clone());
        let terms = self.terms.clone();
        let task = async move {
            let key = Keys::new(NAME).alive(node_id(index));
            let Ok(reply) = world.range(KeyRange::One(key)).await else {
                return;
            };
            if let Some(lease) = reply.entries.first().and_then(|entry| entry.lease) {
                terms.lease_ends_early(index);
                store.lose_lease(lease);
            }
        };
        world_spawn(&self.env, task);
    }

    // The end

    /// Waits until all that happened has ended, and undoes what does not end by itself.
    async fn heal(self: &Arc<Self>) {
        self.promises.forget_waiting();
        while self.under_way.load(Ordering::Relaxed) > 0 {
            self.env.clock.sleep(LOOK).await;
        }
        tracing::info!("HEALED");
        self.net.mend_all();
        for index in 0..self.scenario.node_count {
            let is_stained = {
                let machines = self.machines.lock();
                machines[index]
                    .disks
                    .iter()
                    .for_each(|disk| disk.clear_faults());
                machines[index].is_stained
            };
            // A disk that failed is used again after a start.
            if is_stained {
                self.crash(index, Crash::KeepUnsynced, false, None);
            }
            self.start(index);
            self.started(index).await;
        }
    }

    /// The owner that goes on from here.
    async fn settled(&self) -> Result<Arc<OneTerm>, String> {
        let since = self.clock.monotonic();
        loop {
            if let Some(term) = self.terms.current()
                && term.answers()
                && self.process(term.node).is_some()
            {
                return Ok(term);
            }
            let waited = self.clock.monotonic().saturating_sub(since);
            if waited >= TIER_WRONG_MAX
                && let Some(objects) = &self.objects
            {
                objects.disarm();
            }
            if waited >= OWNER_WAIT_MAX {
                return Err(format!(
                    "all is well, and nobody serves the volume: {}; {}",
                    self.describe(),
                    self.terms.problem()
                ));
            }
            self.env.clock.sleep(LOOK).await;
        }
    }

    fn describe(&self) -> String {
        let nodes = (0..self.scenario.node_count).map(|index| match self.process(index) {
            None => format!("node {index} does not run"),
            Some(process) => {
                let services = process.pool.services().len();
                let lease = process.member.lease_is_valid();
                format!("node {index} serves {services} with lease {lease}")
            }
        });
        nodes.collect::<Vec<_>>().join(", ")
    }

    async fn end(self: &Arc<Self>, mut term: Arc<OneTerm>) -> Result<(), String> {
        self.terms.end();
        loop {
            self.terms.idle(&term).await;
            let now = self.settled().await?;
            if now.number == term.number {
                break;
            }
            term = now;
        }
        self.check_objects().await?;
        let all: Vec<usize> = (0..self.scenario.node_count).collect();
        match self.scenario.end {
            Ending::Give => {
                let process = self.process(term.node).ok_or("the owner is gone")?;
                process.member.ask_to_give(VOLUME);
            }
            Ending::CrashOwner => {
                let index = term.node;
                self.crash(index, Crash::LoseUnsynced, true, None);
                // What was written while too few disks worked may be on this node alone.
                self.later(8000, move |cluster| cluster.start(index));
                let since = self.clock.monotonic();
                if self.next_serves(0).await {
                    let took = self.clock.monotonic().saturating_sub(since);
                    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                    self.takeover_ms.store(took_ms, Ordering::Relaxed);
                }
            }
            Ending::CrashAll => {
                for index in &all {
                    self.crash(*index, Crash::LoseUnsynced, true, None);
                }
                all.iter().for_each(|index| self.start(*index));
            }
            Ending::Lose { .. } | Ending::LoseCopies { .. } => {
                let (count, owner, is_aimed) = match self.scenario.end {
                    Ending::Lose { count, owner } => (count, owner, false),
                    Ending::LoseCopies { count } => (count, true, true),
                    _ => return Ok(()),
                };
                term = self.whole(term, count).await?;
                self.scrubbed(&term).await?;
                let mut others: Vec<usize> = all
                    .into_iter()
                    .filter(|index| *index != term.node)
                    .collect();
                let mut lost: Vec<usize> = owner.then_some(term.node).into_iter().collect();
                let mut first = match is_aimed {
                    true => self.nodes_with_state(term.node),
                    false => Vec::new(),
                };
                while lost.len() < count {
                    let drawn = self.rng.lock().below(others.len() as u64) as usize;
                    let aimed = first.pop();
                    let aimed = aimed.and_then(|index| others.iter().position(|it| *it == index));
                    lost.push(others.remove(aimed.unwrap_or(drawn)));
                }
                tracing::info!(?lost, "LOST");
                for index in lost {
                    self.crash(index, Crash::LoseUnsynced, true, None);
                    self.machines.lock()[index].is_lost = true;
                    self.nodes_lost.fetch_add(1, Ordering::Relaxed);
                }
                if !owner {
                    // The next one starts from what is left.
                    self.crash(term.node, Crash::LoseUnsynced, true, None);
                    self.start(term.node);
                }
            }
        }
        self.judged_after(term.number).await?;
        Ok(())
    }

    /// The object store does nothing wrong from now on, and has what it should.
    async fn check_objects(&self) -> Result<(), String> {
        let Some(objects) = &self.objects else {
            return Ok(());
        };
        objects.disarm();
        let newest = || {
            let term = self.terms.current().filter(|term| term.answers())?;
            Some((self.process(term.node)?.pool.clone(), term.fs.clone()))
        };
        let comes_back = self.scenario.seed.is_multiple_of(2);
        tiers::check(&self.env, &objects.store, comes_back, newest).await
    }

    /// Where reads were damaged, a repair may have taken what lay beside for right: nobody but a scrub sees it.
    async fn scrubbed(&self, term: &OneTerm) -> Result<(), String> {
        let flips = |event: &Event| matches!(event.what, What::DiskFlips { .. });
        if !self.scenario.events.iter().any(flips) {
            return Ok(());
        }
        let pace = cairn_segment::Pace::new(Arc::new(self.clock.clone()), 0);
        for _ in 0..SCRUBS {
            let mut after = None;
            loop {
                let step = term.fs.scrub_records(after, &pace).await;
                let step = step.map_err(|error| format!("the scrub failed: {error}"))?;
                if let Some(damaged) = step.damaged.first() {
                    return Err(format!("a scrub finds damage: {damaged:?}"));
                }
                after = step.next;
                if after.is_none() {
                    break;
                }
            }
            if let Some(process) = self.process(term.node) {
                process.pool.store.repairs_done().await;
            }
        }
        Ok(())
    }

    /// Those with copies of the state, as the owner knows.
    fn nodes_with_state(&self, owner: usize) -> Vec<usize> {
        let Some(process) = self.process(owner) else {
            return Vec::new();
        };
        let (view, state) = (process.member.view(), process.pool.state());
        let volume = view.volumes.get(&VOLUME);
        let copy = volume.and_then(|volume| volume.log.log.state.clone());
        let disks = copy.map_or_else(Vec::new, |copy| copy.disks);
        let nodes = state.disks.iter().filter(|disk| disks.contains(&disk.id));
        let nodes: BTreeSet<NodeId> = nodes.map(|disk| disk.node).collect();
        (0..self.scenario.node_count)
            .filter(|index| *index != owner && nodes.contains(&node_id(*index)))
            .collect()
    }

    async fn judged_after(&self, number: usize) -> Result<(), String> {
        let since = self.clock.monotonic();
        loop {
            if self
                .terms
                .current()
                .is_some_and(|term| term.number > number)
            {
                return Ok(());
            }
            if self.clock.monotonic().saturating_sub(since) >= OWNER_WAIT_MAX {
                let why = self.terms.problem();
                return Err(format!(
                    "at the end nobody can take the volume over: {}; {why}",
                    self.describe()
                ));
            }
            self.env.clock.sleep(LOOK).await;
        }
    }

    /// Waits until so many nodes can be lost, as the owner says.
    async fn whole(&self, mut term: Arc<OneTerm>, count: usize) -> Result<Arc<OneTerm>, String> {
        let since = self.clock.monotonic();
        loop {
            term = if term.answers() {
                term
            } else {
                self.settled().await?
            };
            let why = match self.process(term.node) {
                None => "the owner is gone".to_owned(),
                Some(process) => match lack(&process, &term, count) {
                    None => return Ok(term),
                    Some(why) => why,
                },
            };
            if self.clock.monotonic().saturating_sub(since) >= WHOLE_WAIT_MAX {
                return Err(format!("all is well, and the protection is not: {why}"));
            }
            self.env.clock.sleep(LOOK).await;
        }
    }
}

/// Why fewer nodes than `count` can be lost.
fn lack(process: &Process, term: &OneTerm, count: usize) -> Option<String> {
    let state = process.pool.state();
    let Some(volume) = state.volumes.iter().find(|volume| volume.id == VOLUME) else {
        return Some("there is no volume".to_owned());
    };
    let tolerated = process.pool.nodes_tolerated(volume);
    if tolerated.is_none_or(|tolerated| tolerated < count) {
        return Some(format!("{tolerated:?} nodes may be lost, want {count}"));
    }
    let stats = term.fs.meta().stats();
    if stats.is_degraded() {
        return Some(format!("metadata is degraded: {:?}", stats.log_disks));
    }
    let narrow = narrow(&process.pool.store, count, false);
    if !narrow.is_empty() {
        return Some(format!("segments with less protection: {narrow:?}"));
    }
    let rebuild = process.pool.rebuild_status();
    if rebuild.shards_left > 0 {
        return Some(format!("{} shards are still to move", rebuild.shards_left));
    }
    None
}

fn world_spawn(env: &Env, task: impl Future<Output = ()> + Send + 'static) {
    env.spawner.spawn("world", Box::pin(task));
}

fn lost(done: bool) -> StoreFault {
    match done {
        true => StoreFault::LoseReply,
        false => StoreFault::LoseRequest,
    }
}

fn label(index: usize, nth: usize) -> String {
    format!("n{index}d{nth}")
}

fn client_name(index: usize) -> String {
    format!("node{index}")
}

/// How long operations of a disk take.
struct DiskPace {
    index: u64,
    is_uneven: bool,
    clock: ManualClock,
    trace: Trace,
    /// With how many of the next operations take so many milliseconds.
    state: Mutex<(Rng, (u64, u64))>,
}

impl Pace for DiskPace {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        self.trace.note_text(name);
        self.trace.note(&[self.index, kind as u64]);
        let delay = {
            let (rng, (ms, times)) = &mut *self.state.lock();
            if *times > 0 {
                *times -= 1;
                Duration::from_millis(*ms)
            } else if self.is_uneven && rng.below(48) == 0 {
                Duration::from_micros(1000 + rng.below(40_000))
            } else {
                match rng.below(4) {
                    0 => Duration::from_micros(10 + rng.below(400)),
                    1 => Duration::from_micros(1 + rng.below(20)),
                    _ => return None,
                }
            }
        };
        Some(self.clock.sleep(delay))
    }

    fn touch(&self, offset: u64, len_bytes: u64, written: &[u8]) {
        self.trace
            .note(&[offset, len_bytes, u64::from(crc32c(written))]);
    }
}
