//! Owners that race for a volume, with paused processes, lost and late messages and leases that end, by seed.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, LogPosition, NodeId, VolumeId};
use cairn_cluster::map::{
    ClusterId, Ensemble, EnsembleId, EpochRecord, LogRecord, MapErrorKind, Opaque, Owned, Process,
    ProcessNonce, VolumeLog, decode,
};
use cairn_cluster::{
    Change, ClusterMap, Coordinator, LeaseId, MapError, MemoryCoordinator, Revision, WatchEvent,
    Watcher,
};
use cairn_testkit::{ManualClock, Rng, TestWorld};

use crate::stores::MemoryHighWater;

const SEEDS: u64 = 400;
const STEPS: usize = 400;
const OWNERS: u64 = 3;
const LEASE: Duration = Duration::from_secs(5);

#[test]
fn owners_that_race_never_both_change_the_log() {
    let mut totals = Totals::default();
    for seed in 0..SEEDS {
        match run(seed) {
            Ok(totals_of_run) => totals.add(&totals_of_run),
            Err(problem) => panic!("seed {seed}: {problem}"),
        }
    }
    // Otherwise the test would pass by doing nothing.
    assert!(totals.takeovers > SEEDS, "{totals:?}");
    assert!(totals.log_changes > SEEDS, "{totals:?}");
    assert!(totals.fenced > SEEDS / 10, "{totals:?}");
}

#[test]
fn planted_mistakes_are_found() {
    for bug in [
        Bug::LogChangeComparesEpochOnly,
        Bug::EpochNotComparedInLogChange,
        Bug::EpochKeptAtOwnTakeover,
        Bug::UnknownTakenAsDone,
        Bug::UnknownTakenAsRefused,
    ] {
        planted::plant(Some(bug));
        let found = (0..SEEDS).find(|seed| run(*seed).is_err());
        planted::plant(None);
        assert!(found.is_some(), "{bug:?} was not found in {SEEDS} seeds");
    }
}

#[derive(Debug, Default)]
struct Totals {
    takeovers: u64,
    log_changes: u64,
    fenced: u64,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.takeovers += other.takeovers;
        self.log_changes += other.log_changes;
        self.fenced += other.fenced;
    }
}

enum Ended {
    TakenOver(Result<Owned, MapError>),
    Changed(Owned, EnsembleId, Revision, Result<(), MapError>),
    GivenUp,
}

type Task = Pin<Box<dyn Future<Output = Ended>>>;

struct Owner {
    client: String,
    map: ClusterMap,
    process: Process,
    owned: Option<Owned>,
    task: Option<Task>,
    paused: bool,
}

struct Race {
    rng: Rng,
    clock: ManualClock,
    env: Env,
    memory: MemoryCoordinator,
    admin: Arc<dyn Coordinator>,
    volume: VolumeId,
    owners: Vec<Owner>,
    next_nonce: u128,
    watcher: Box<dyn Watcher>,
    seen: Seen,
    totals: Totals,
}

/// What the store did, and what owners were told.
#[derive(Default)]
struct Seen {
    epoch: Epoch,
    opened: BTreeSet<EnsembleId>,
    newest: Option<EnsembleId>,
    told_done: BTreeMap<(Epoch, Revision), EnsembleId>,
    told_refused: BTreeSet<EnsembleId>,
}

fn run(seed: u64) -> Result<Totals, String> {
    let mut race = Race::new(seed);
    for _ in 0..STEPS {
        race.step()?;
        race.look()?;
    }
    // Transactions under way arrive after all.
    race.memory.step_all();
    race.look()?;
    Ok(race.totals)
}

/// The result of a future that has nothing to wait for.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

impl Race {
    fn new(seed: u64) -> Self {
        let TestWorld { env, clock } = TestWorld::new(seed);
        let memory = MemoryCoordinator::new(env.clone());
        let admin = memory.client("admin");
        let high_water = || Arc::new(MemoryHighWater::default());
        let map = at_once(ClusterMap::create_cluster(
            Arc::clone(&admin),
            env.clone(),
            ClusterId(7),
            "home",
            high_water(),
        ))
        .unwrap();
        let volume = at_once(map.create_volume("v", Opaque::default(), Opaque::default())).unwrap();
        let watcher = map.watch(map.keys().volumes(), memory.revision().next());
        let mut race = Self {
            rng: Rng::new(seed),
            clock,
            memory,
            admin,
            volume,
            owners: Vec::new(),
            next_nonce: 1,
            watcher,
            seen: Seen::default(),
            totals: Totals::default(),
            env,
        };
        for i in 0..OWNERS {
            let client = format!("owner {i}");
            let coordinator = race.memory.client(client.clone());
            let open = ClusterMap::open(coordinator, race.env.clone(), "home", high_water());
            let map = at_once(open).unwrap();
            race.memory.hold(&client, true);
            let process = race.new_process(NodeId(u128::from(i) + 1));
            race.owners.push(Owner {
                client,
                map,
                process,
                owned: None,
                task: None,
                paused: false,
            });
        }
        race
    }

    fn new_process(&mut self, node: NodeId) -> Process {
        let nonce = ProcessNonce(self.next_nonce);
        self.next_nonce += 1;
        Process {
            node,
            nonce,
            lease: self.new_lease(),
        }
    }

    fn new_lease(&self) -> LeaseId {
        at_once(self.admin.grant_lease(LEASE)).unwrap().id
    }

    fn step(&mut self) -> Result<(), String> {
        let index = self.rng.below(OWNERS) as usize;
        match self.rng.below(100) {
            0..20 => self.begin(index),
            20..75 => self.move_a_request(),
            75..80 => self.lose_a_request(),
            80..88 => {
                let by = Duration::from_millis(self.rng.below(1500));
                self.clock.advance(by);
            }
            88..93 => {
                let lease = self.owners[index].process.lease;
                if !self.owners[index].paused {
                    let _ = at_once(self.admin.keep_alive(lease));
                }
            }
            93..96 => self.owners[index].paused ^= true,
            96..98 => self.memory.lose_lease(self.owners[index].process.lease),
            _ => self.restart(index),
        }
        for index in 0..self.owners.len() {
            self.poll(index)?;
        }
        Ok(())
    }

    fn move_a_request(&mut self) {
        let held = self.memory.held();
        if !held.is_empty() {
            let which = self.rng.below(held.len() as u64) as usize;
            self.memory.step(held[which].id);
        }
    }

    fn lose_a_request(&mut self) {
        let held = self.memory.held();
        if !held.is_empty() {
            let which = self.rng.below(held.len() as u64) as usize;
            // Half of those that were not done are only late: the client gives up on them, and they arrive later.
            if held[which].done || self.rng.coin() {
                self.memory.lose(held[which].id);
            } else {
                self.clock.advance(Duration::from_secs(5));
            }
        }
    }

    /// The process dies with all that it knows; what it sent is still under way.
    fn restart(&mut self, index: usize) {
        let node = self.owners[index].process.node;
        let process = self.new_process(node);
        let owner = &mut self.owners[index];
        owner.task = None;
        owner.owned = None;
        owner.paused = false;
        owner.process = process;
    }

    fn begin(&mut self, index: usize) {
        if self.owners[index].task.is_some() || self.owners[index].paused {
            return;
        }
        let gives_up = self.rng.below(10) == 0;
        let volume = self.volume;
        let owner = &mut self.owners[index];
        let map = owner.map.clone();
        let task: Task = match owner.owned.take() {
            None => {
                let process = owner.process;
                Box::pin(
                    async move { Ended::TakenOver(map.take_over(volume, process, Epoch(0)).await) },
                )
            }
            Some(owned) if gives_up => Box::pin(async move {
                let _ = map.give_up(owned).await;
                Ended::GivenUp
            }),
            Some(mut owned) => {
                let (id, log) = next_log(&mut owned);
                Box::pin(async move {
                    let replaced = owned.log.revision;
                    let mut result = map.change_log(&mut owned, log.clone()).await;
                    while matches!(result, Err(MapError::Unknown(_))) {
                        result = map.change_log(&mut owned, log.clone()).await;
                    }
                    Ended::Changed(owned, id, replaced, result)
                })
            }
        };
        owner.task = Some(task);
    }

    fn poll(&mut self, index: usize) -> Result<(), String> {
        let owner = &mut self.owners[index];
        if owner.paused {
            return Ok(());
        }
        let Some(task) = &mut owner.task else {
            return Ok(());
        };
        let Poll::Ready(ended) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            return Ok(());
        };
        owner.task = None;
        // What the store did before it answered is looked at before the answer.
        self.look()?;
        self.end(index, ended)
    }

    fn end(&mut self, index: usize, ended: Ended) -> Result<(), String> {
        match ended {
            Ended::GivenUp => {}
            Ended::TakenOver(Ok(owned)) => {
                self.totals.takeovers += 1;
                if owned.epoch > self.seen.epoch {
                    return Err(format!("epoch {} was given, but never made", owned.epoch));
                }
                self.owners[index].owned = Some(owned);
            }
            Ended::TakenOver(Err(error)) => match error.kind() {
                MapErrorKind::Fenced => self.owners[index].process.lease = self.new_lease(),
                MapErrorKind::Changed | MapErrorKind::Retry | MapErrorKind::Unknown => {}
                kind => return Err(format!("{}: {kind:?}: {error}", self.owners[index].client)),
            },
            Ended::Changed(owned, id, replaced, Ok(())) => {
                self.totals.log_changes += 1;
                if !self.seen.opened.contains(&id) {
                    return Err(format!("{id} was told to be in the log, and never was"));
                }
                let before = self.seen.told_done.insert((owned.epoch, replaced), id);
                if let Some(before) = before {
                    return Err(format!(
                        "{before} and {id} both replaced the log of {replaced}"
                    ));
                }
                self.owners[index].owned = Some(owned);
            }
            Ended::Changed(_, id, _, Err(MapError::Fenced { .. })) => {
                self.totals.fenced += 1;
                if self.seen.newest == Some(id) {
                    return Err(format!("{id} was told to be refused, and is in force"));
                }
                self.seen.told_refused.insert(id);
            }
            Ended::Changed(owned, _, _, Err(error)) => match error.kind() {
                MapErrorKind::Retry => self.owners[index].owned = Some(owned),
                kind => return Err(format!("{}: {kind:?}: {error}", self.owners[index].client)),
            },
        }
        Ok(())
    }

    /// Looks at what the store did since the last time.
    fn look(&mut self) -> Result<(), String> {
        loop {
            let event = {
                let mut next = self.watcher.next();
                next.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            };
            let Poll::Ready(event) = event else {
                return Ok(());
            };
            let WatchEvent::Changes { changes, .. } = event else {
                return Err("nothing was compacted".to_owned());
            };
            for change in changes {
                self.see(&change)?;
            }
        }
    }

    fn see(&mut self, change: &Change) -> Result<(), String> {
        let Change::Put(entry) = change else {
            return Ok(());
        };
        let keys = self.owners[0].map.keys();
        match keys.parse_volume(&entry.key) {
            Some((_, "epoch")) => {
                let epoch = decode::<EpochRecord>(entry).unwrap().value.epoch;
                if epoch <= self.seen.epoch {
                    return Err(format!("epoch {epoch} was given after {}", self.seen.epoch));
                }
                self.seen.epoch = epoch;
            }
            Some((_, "log")) => {
                let log = decode::<LogRecord>(entry).unwrap().value.log;
                let open = log.open().ok_or("the log has no open ensemble")?.id;
                if open.epoch != self.seen.epoch {
                    return Err(format!(
                        "{open} was opened when the epoch was {}",
                        self.seen.epoch
                    ));
                }
                if !self.seen.opened.insert(open) || self.seen.newest > Some(open) {
                    return Err(format!("{open} was opened after {:?}", self.seen.newest));
                }
                if self.seen.told_refused.contains(&open) {
                    return Err(format!("{open} was told to be refused, and was done later"));
                }
                self.seen.newest = Some(open);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Seals what is open and opens another ensemble; the oldest are trimmed.
fn next_log(owned: &mut Owned) -> (EnsembleId, VolumeLog) {
    let id = owned.new_ensemble_id();
    let mut log = owned.log.log.clone();
    let mut from = LogPosition(1);
    if let Some(last) = log.ensembles.last_mut() {
        from = LogPosition(last.from.0 + 10);
        last.to = Some(from);
    }
    if log.ensembles.len() > 3 {
        log.ensembles.remove(0);
    }
    log.ensembles.push(Ensemble {
        id,
        from,
        to: None,
        disks: vec![DiskId(1), DiskId(2), DiskId(3)],
    });
    (id, log)
}
