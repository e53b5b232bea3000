//! Groups on a simulated network: each message is lost, late or the last one of its node, alone and in pairs.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::{pending, ready};
use std::sync::Arc;
use std::task::{Context, Waker};

use cairn_base::env::{BoxFuture, Env, Spawner};
use cairn_base::{NodeId, Timestamp, VolumeId};
use cairn_testkit::{ManualClock, SeededEntropy};
use futures_util::FutureExt;
use parking_lot::Mutex;

use super::{
    BREAK_OFF, Coordination, Outcome, Part, Parts, Step, Undecided, Volumes, settle, take_group,
};

const GROUP: u64 = 7;
const NODE_COUNT: usize = 3;
/// Calls of a group without faults: its record, four steps and the decision of each node, whole, leave.
const CALL_COUNT: usize = 3 + 5 * NODE_COUNT;
/// With those of a group that is given up.
const CALL_COUNT_MAX: usize = CALL_COUNT + 1 + NODE_COUNT;

/// The fate of one call of the coordinator: a message to a node, or a change of the record.
#[derive(Clone, Copy, Debug)]
enum Fault {
    RequestLost,
    ReplyLost,
    /// The caller gets no reply; the request arrives after so many other calls.
    Late(usize),
    /// Of a message, the node dies before or after it.
    NodeDies,
    NodeDiesAfter,
    CoordinatorDies,
    CoordinatorDiesAfter,
    /// The network stands still for longer than a group may.
    Stall,
}

const FAULTS: [Fault; 10] = [
    Fault::RequestLost,
    Fault::ReplyLost,
    Fault::Late(1),
    Fault::Late(NODE_COUNT),
    Fault::Late(usize::MAX / 2),
    Fault::NodeDies,
    Fault::NodeDiesAfter,
    Fault::CoordinatorDies,
    Fault::CoordinatorDiesAfter,
    Fault::Stall,
];

struct SimSnapshot {
    is_durable: bool,
    is_shown: bool,
    taken_at: u64,
}

/// A node with one volume.
#[derive(Default)]
struct SimNode {
    is_dead: bool,
    snapshot: Option<SimSnapshot>,
    /// From when to when no change was acknowledged, once the node has ended the group in order.
    held: Option<(u64, u64)>,
}

struct SimRecord {
    is_whole: bool,
    volumes: BTreeSet<VolumeId>,
}

#[derive(Default)]
struct State {
    /// Order of everything that happens.
    now: u64,
    nodes: Vec<SimNode>,
    record: Option<SimRecord>,
    was_whole: bool,
}

impl State {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

#[derive(Default)]
struct Tasks(Mutex<Vec<BoxFuture<()>>>);

impl Spawner for Tasks {
    fn spawn(&self, _: &'static str, task: BoxFuture<()>) {
        self.0.lock().push(task);
    }
}

/// What a node holds of its volume.
struct SimPart {
    state: Arc<Mutex<State>>,
    node: usize,
    held_at: Option<u64>,
}

impl Part for SimPart {
    type Error = String;

    async fn hold(&mut self) -> Result<(), String> {
        self.held_at = Some(self.state.lock().tick());
        Ok(())
    }

    fn take(&mut self, _: Timestamp, group: u64) -> Result<(), String> {
        assert_eq!(group, GROUP);
        assert!(self.held_at.is_some(), "a snapshot before the hold");
        let mut state = self.state.lock();
        let taken_at = state.tick();
        let snapshot = &mut state.nodes[self.node].snapshot;
        if snapshot.is_some() {
            return Err("there is one already".to_owned());
        }
        *snapshot = Some(SimSnapshot {
            is_durable: false,
            is_shown: false,
            taken_at,
        });
        Ok(())
    }

    async fn end(self) -> Result<(), String> {
        let mut state = self.state.lock();
        let now = state.tick();
        let node = &mut state.nodes[self.node];
        let snapshot = node.snapshot.as_mut().ok_or("the snapshot is gone")?;
        snapshot.is_durable = true;
        node.held = Some((self.held_at.expect("a hold before the end"), now));
        Ok(())
    }
}

struct SimVolumes<'a> {
    state: &'a Arc<Mutex<State>>,
    node: usize,
}

impl Volumes for SimVolumes<'_> {
    type Part = SimPart;
    type Shown = (VolumeId, usize);
    type Error = String;

    async fn begin(&self) -> Result<SimPart, String> {
        Ok(SimPart {
            state: Arc::clone(self.state),
            node: self.node,
            held_at: None,
        })
    }

    async fn decide(&self, group: u64, is_whole: bool) -> Result<Vec<(VolumeId, usize)>, String> {
        assert_eq!(group, GROUP);
        let mut state = self.state.lock();
        let was_whole = state.was_whole;
        let snapshot = &mut state.nodes[self.node].snapshot;
        if !is_whole {
            assert!(!was_whole, "a snapshot of a whole group is deleted");
            *snapshot = None;
            return Ok(Vec::new());
        }
        assert!(was_whole, "a snapshot is shown, and its group is not whole");
        let shown = snapshot.as_mut().ok_or("there is none")?;
        assert!(shown.is_durable, "a snapshot is shown that a crash undoes");
        shown.is_shown = true;
        Ok(vec![(volume(self.node), self.node)])
    }

    fn refused(&self, error: String) -> String {
        error
    }

    fn broken(&self) -> String {
        "given up".to_owned()
    }
}

fn volume(node: usize) -> VolumeId {
    VolumeId(node as u32 + 1)
}

fn node_id(node: usize) -> NodeId {
    NodeId(node as u128 + 1)
}

fn index(node: NodeId) -> usize {
    usize::try_from(node.0).unwrap() - 1
}

#[derive(Default)]
struct Calls {
    count: usize,
    /// Requests that are still on their way.
    late: Vec<Late>,
}

/// A request that arrives before the call of this number.
struct Late {
    call: usize,
    node: usize,
    step: Step,
}

struct World {
    env: Env,
    clock: ManualClock,
    tasks: Arc<Tasks>,
    state: Arc<Mutex<State>>,
    parts: Vec<Parts<SimPart>>,
    faults: BTreeMap<usize, Fault>,
    calls: Mutex<Calls>,
}

impl World {
    fn new(faults: &[(usize, Fault)]) -> Self {
        let (clock, tasks) = (ManualClock::default(), Arc::new(Tasks::default()));
        let env = Env {
            clock: Arc::new(clock.clone()),
            entropy: Arc::new(SeededEntropy::new(1)),
            spawner: Arc::clone(&tasks) as Arc<dyn Spawner>,
            jobs: cairn_base::jobs::JobList::of_simulation(),
        };
        let state = State {
            nodes: (0..NODE_COUNT).map(|_| SimNode::default()).collect(),
            ..State::default()
        };
        Self {
            env,
            clock,
            tasks,
            state: Arc::new(Mutex::new(state)),
            parts: (0..NODE_COUNT).map(|_| Parts::default()).collect(),
            faults: faults.iter().copied().collect(),
            calls: Mutex::default(),
        }
    }

    fn run_tasks(&self) {
        let tasks = std::mem::take(&mut *self.tasks.0.lock());
        let mut left: Vec<BoxFuture<()>> = Vec::new();
        for mut task in tasks {
            let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if polled.is_pending() {
                left.push(task);
            }
        }
        self.tasks.0.lock().extend(left);
    }

    /// Time for all that waits to be given up.
    fn pass_time(&self) {
        self.run_tasks();
        self.clock.advance(BREAK_OFF);
        self.run_tasks();
    }

    fn die(&self, node: usize) {
        self.parts[node].crash();
        let mut state = self.state.lock();
        let node = &mut state.nodes[node];
        node.is_dead = true;
        // A power cut undoes what is not durable.
        node.snapshot.take_if(|snapshot| !snapshot.is_durable);
    }

    fn deliver(&self, node: usize, step: Step) -> Result<Vec<(VolumeId, usize)>, String> {
        if self.state.lock().nodes[node].is_dead {
            return Err("the node is dead".to_owned());
        }
        let state = &self.state;
        let volumes = SimVolumes { state, node };
        let taken = self.parts[node].step(&self.env, GROUP, step, &volumes);
        taken.now_or_never().expect("nothing waits in this world")
    }

    /// The next call of the coordinator; late requests that are due arrive before it.
    fn next_call(&self) -> (usize, Option<Fault>) {
        let (number, due) = {
            let mut calls = self.calls.lock();
            let number = calls.count;
            calls.count += 1;
            let late = std::mem::take(&mut calls.late).into_iter();
            let (due, later): (Vec<_>, Vec<_>) = late.partition(|late| late.call <= number);
            calls.late = later;
            (number, due)
        };
        self.deliver_late(due);
        let fault = self.faults.get(&number).copied();
        if let Some(Fault::Stall) = fault {
            self.pass_time();
        }
        (number, fault)
    }

    fn deliver_late(&self, due: Vec<Late>) {
        for Late { node, step, .. } in due {
            // Nobody waits for its reply.
            let _ = self.deliver(node, step);
        }
    }

    /// A change of the record.
    async fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, String> {
        let lost = || Err("no answer".to_owned());
        let (_, fault) = self.next_call();
        let change = || change(&mut self.state.lock());
        match fault {
            None | Some(Fault::Stall | Fault::NodeDies | Fault::NodeDiesAfter) => Ok(change()),
            // The store takes no late change: it has the revision that it is based on.
            Some(Fault::RequestLost | Fault::Late(_)) => lost(),
            Some(Fault::ReplyLost) => {
                change();
                lost()
            }
            Some(Fault::CoordinatorDies) => pending().await,
            Some(Fault::CoordinatorDiesAfter) => {
                change();
                pending().await
            }
        }
    }

    /// Each volume with an undecided snapshot asks the record.
    fn settle_all(&self) {
        for node in 0..NODE_COUNT {
            let has_undecided = {
                let state = self.state.lock();
                let snapshot = state.nodes[node].snapshot.as_ref();
                snapshot.is_some_and(|snapshot| !snapshot.is_shown)
            };
            if has_undecided {
                let settled = settle(&Left { world: self, node }).now_or_never();
                settled.expect("nothing waits in this world").unwrap();
            }
        }
    }
}

impl Coordination for World {
    type Shown = usize;
    type Error = String;

    async fn begin(&self) -> Result<u64, String> {
        let begin = |state: &mut State| {
            state.record = Some(SimRecord {
                is_whole: false,
                volumes: (0..NODE_COUNT).map(volume).collect(),
            });
            GROUP
        };
        self.change(begin).await
    }

    async fn ask(
        &self,
        group: u64,
        node: NodeId,
        step: Step,
    ) -> Result<Vec<(VolumeId, usize)>, String> {
        assert_eq!(group, GROUP);
        let node = index(node);
        let lost = Err("no answer".to_owned());
        let (number, fault) = self.next_call();
        match fault {
            None | Some(Fault::Stall) => self.deliver(node, step),
            Some(Fault::RequestLost) => lost,
            Some(Fault::ReplyLost) => {
                let _ = self.deliver(node, step);
                lost
            }
            Some(Fault::Late(by)) => {
                let call = number + by;
                self.calls.lock().late.push(Late { call, node, step });
                lost
            }
            Some(Fault::NodeDies) => {
                self.die(node);
                lost
            }
            Some(Fault::NodeDiesAfter) => {
                let done = self.deliver(node, step);
                self.die(node);
                done
            }
            Some(Fault::CoordinatorDies) => pending().await,
            Some(Fault::CoordinatorDiesAfter) => {
                let _ = self.deliver(node, step);
                pending().await
            }
        }
    }

    async fn record_whole(&self, _: u64) -> Result<(), String> {
        let whole = |state: &mut State| {
            let Some(record) = &mut state.record else {
                return Err("it is gone".to_owned());
            };
            record.is_whole = true;
            state.was_whole = true;
            // One instant: while the snapshots were taken, no node acknowledged a change.
            let taken = state.nodes.iter().map(|node| {
                let snapshot = node.snapshot.as_ref();
                snapshot.expect("all snapshots of a whole group").taken_at
            });
            let taken: Vec<u64> = taken.collect();
            for node in &state.nodes {
                let (from, to) = node.held.expect("a node that ended in order");
                assert!(taken.iter().all(|at| (from..=to).contains(at)));
            }
            Ok(())
        };
        self.change(whole).await?
    }

    async fn give_up(&self, _: u64) -> Result<bool, String> {
        let give_up = |state: &mut State| {
            state.record.take_if(|record| !record.is_whole);
            state.record.is_none()
        };
        self.change(give_up).await
    }

    async fn leave(&self, _: u64, volumes: &BTreeSet<VolumeId>) -> Result<(), String> {
        self.change(|state| state.leave(volumes)).await
    }
}

impl State {
    fn leave(&mut self, volumes: &BTreeSet<VolumeId>) {
        if let Some(record) = &mut self.record {
            assert!(record.is_whole);
            record.volumes.retain(|volume| !volumes.contains(volume));
        }
        self.record.take_if(|record| record.volumes.is_empty());
    }
}

struct Left<'a> {
    world: &'a World,
    node: usize,
}

impl Undecided for Left<'_> {
    type Error = String;

    fn is_whole(&self) -> impl Future<Output = Result<Option<bool>, String>> + Send {
        let state = self.world.state.lock();
        ready(Ok(state.record.as_ref().map(|record| record.is_whole)))
    }

    async fn decide(&self, is_whole: bool) -> Result<(), String> {
        let (state, node) = (&self.world.state, self.node);
        SimVolumes { state, node }.decide(GROUP, is_whole).await?;
        Ok(())
    }

    async fn leave(&self) -> Result<(), String> {
        let volumes = BTreeSet::from([volume(self.node)]);
        self.world.state.lock().leave(&volumes);
        Ok(())
    }
}

/// The outcome; `None`: the coordinator died.
fn run(faults: &[(usize, Fault)]) -> Option<Outcome<usize, String>> {
    let world = World::new(faults);
    let nodes = (0..NODE_COUNT).map(node_id).collect();
    let outcome = take_group(&world, &nodes, Timestamp::new(1, 0)).now_or_never();
    // While the coordinator may still be at work, nobody decides without it.
    world.settle_all();
    let late = std::mem::take(&mut world.calls.lock().late);
    world.deliver_late(late);
    world.pass_time();
    for parts in &world.parts {
        assert!(parts.is_empty(), "{faults:?}: clients wait for replies");
    }
    {
        let mut state = world.state.lock();
        let state = &mut *state;
        // The lease of the coordinator ends, and lost nodes have successors.
        let is_over = !matches!(outcome, Some(Outcome::Whole { .. }));
        state.record.take_if(|record| is_over && !record.is_whole);
        for node in &mut state.nodes {
            node.is_dead = false;
        }
    }
    world.settle_all();
    let state = world.state.lock();
    let shown = state.nodes.iter().filter(|node| {
        let snapshot = node.snapshot.as_ref();
        snapshot.is_some_and(|snapshot| snapshot.is_shown)
    });
    let (shown, there) = (
        shown.count(),
        state
            .nodes
            .iter()
            .filter(|node| node.snapshot.is_some())
            .count(),
    );
    assert_eq!(shown, there, "{faults:?}: a snapshot is left undecided");
    let is_whole = state.was_whole;
    assert_eq!(shown, if is_whole { NODE_COUNT } else { 0 }, "{faults:?}");
    match &outcome {
        Some(Outcome::Whole { shown, late }) => {
            assert!(is_whole, "{faults:?}");
            assert_eq!(shown.len() + late.len(), NODE_COUNT, "{faults:?}");
        }
        Some(Outcome::Nothing(_)) => assert!(!is_whole, "{faults:?}"),
        Some(Outcome::Unknown(_)) | None => {}
    }
    if faults.is_empty() {
        assert!(
            state.record.is_none(),
            "the record goes with the last volume"
        );
        assert_eq!(world.calls.lock().count, CALL_COUNT);
    }
    drop(state);
    outcome
}

#[test]
fn a_group_without_faults_is_whole() {
    let outcome = run(&[]);
    let shown = (0..NODE_COUNT).collect();
    let late = Vec::new();
    assert_eq!(outcome, Some(Outcome::Whole { shown, late }));
}

#[test]
fn all_or_none_of_a_group_is_shown_under_each_fault() {
    let counts = Cell::new([0_u32; 4]);
    let count = |outcome: Option<Outcome<usize, String>>| {
        let mut all = counts.get();
        all[match outcome {
            Some(Outcome::Whole { .. }) => 0,
            Some(Outcome::Nothing(_)) => 1,
            Some(Outcome::Unknown(_)) => 2,
            None => 3,
        }] += 1;
        counts.set(all);
    };
    for first in 0..CALL_COUNT_MAX {
        for fault in FAULTS {
            count(run(&[(first, fault)]));
            for second in first + 1..CALL_COUNT_MAX {
                for other in FAULTS {
                    count(run(&[(first, fault), (second, other)]));
                }
            }
        }
    }
    // Faults that change nothing would prove nothing.
    let [whole, nothing, unknown, died] = counts.get();
    assert!(
        whole > 0 && nothing > 0 && unknown > 0 && died > 0,
        "{:?}",
        counts.get()
    );
}

#[test]
fn steps_out_of_order_are_refused() {
    let world = World::new(&[]);
    let take = Step::Take {
        taken: Timestamp::new(1, 0),
    };
    let cases = [
        (Step::Hold, false),
        (Step::Begin, true),
        (Step::Begin, false),
        (take, false),
        (Step::End, false),
        (Step::Hold, true),
        (Step::Hold, false),
        (take, true),
        (take, false),
        (Step::End, true),
        (Step::End, false),
    ];
    for (number, (step, want)) in cases.into_iter().enumerate() {
        let got = world.deliver(0, step);
        assert_eq!(got.is_ok(), want, "{number}: {step:?}: {got:?}");
    }
}
