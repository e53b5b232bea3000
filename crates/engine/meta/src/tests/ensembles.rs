//! A volume whose log is on disks of several nodes, which are lost, come back, and whose owners change.

use cairn_base::env::BoxFuture;
use cairn_base::{Epoch, NodeId, PoolId};
use cairn_shard::{ShardDisk, ShardService, ShardSettings};
use futures_util::future::{Either, join, select};
use parking_lot::Mutex;
use std::time::Duration;

use super::*;
use crate::{Agreement, AgreementError, Ensemble, EnsembleLog, LogDisks, Seat};

const POOL: PoolId = PoolId(1);

/// What the nodes agree on.
#[derive(Default)]
struct Agreed {
    epoch: Epoch,
    revision: u64,
    ensembles: Vec<Ensemble>,
}

/// As one owner changes it.
struct Seal {
    agreed: Arc<Mutex<Agreed>>,
    epoch: Epoch,
}

impl Agreement for Seal {
    fn change(
        &self,
        replaced: u64,
        ensembles: Vec<Ensemble>,
    ) -> BoxFuture<Result<u64, AgreementError>> {
        let mut agreed = self.agreed.lock();
        if agreed.epoch != self.epoch || agreed.revision != replaced {
            return Box::pin(async { Err(AgreementError::Refused) });
        }
        agreed.revision += 1;
        agreed.ensembles = ensembles;
        let revision = agreed.revision;
        Box::pin(async move { Ok(revision) })
    }
}

/// Nodes with a disk each.
struct Nodes {
    seed: u64,
    disks: Vec<Arc<MemDisk>>,
    shards: Vec<Arc<ShardDisk>>,
    away: BTreeSet<usize>,
    /// The first that is chosen; another one each time.
    preferred: usize,
}

impl LogDisks for Mutex<Nodes> {
    fn disk(&self, id: DiskId) -> Option<Arc<dyn ShardService>> {
        let nodes = self.lock();
        let index = usize::try_from(id.0).expect("small") - 1;
        let disk: Arc<dyn ShardService> = nodes.shards[index].clone();
        (!nodes.away.contains(&index)).then_some(disk)
    }

    fn choices(&self) -> Vec<(NodeId, Arc<dyn ShardService>)> {
        let mut nodes = self.lock();
        nodes.preferred += 1;
        let count = nodes.shards.len();
        let there = (0..count).map(|index| (index + nodes.preferred) % count);
        let there = there.filter(|index| !nodes.away.contains(index));
        let choice = |index: usize| {
            let disk: Arc<dyn ShardService> = nodes.shards[index].clone();
            (NodeId(index as u128 + 1), disk)
        };
        there.map(choice).collect()
    }
}

async fn open_shards(disk: &Arc<MemDisk>) -> Arc<ShardDisk> {
    let opened = ShardDisk::open(disk.clone(), POOL, ShardSettings::default());
    opened.await.expect("opens")
}

struct Cluster {
    world: TestWorld,
    nodes: Arc<Mutex<Nodes>>,
    agreed: Arc<Mutex<Agreed>>,
    copies: usize,
}

impl Cluster {
    async fn new(seed: u64, node_count: usize, copies: usize) -> Self {
        let mut nodes = Nodes {
            seed,
            disks: Vec::new(),
            shards: Vec::new(),
            away: BTreeSet::new(),
            preferred: 0,
        };
        for number in 1..=node_count {
            let disk = MemDisk::new(format!("node{number}"), 1 << 30);
            let id = DiskId(number as u128);
            let formatted = ShardDisk::format(disk.clone(), POOL, id, Timestamp::default());
            formatted.await.expect("formats");
            nodes.shards.push(open_shards(&disk).await);
            nodes.disks.push(disk);
        }
        Self {
            world: TestWorld::new(seed),
            nodes: Arc::new(Mutex::new(nodes)),
            agreed: Arc::default(),
            copies,
        }
    }

    /// Takes the volume: no earlier owner changes the list any more.
    fn seat(&self) -> Seat {
        let mut agreed = self.agreed.lock();
        agreed.epoch = Epoch(agreed.epoch.0 + 1);
        Seat {
            volume: VOLUME,
            epoch: agreed.epoch,
            revision: agreed.revision,
            ensembles: agreed.ensembles.clone(),
            agreement: Arc::new(Seal {
                agreed: self.agreed.clone(),
                epoch: agreed.epoch,
            }),
            disks: self.nodes.clone(),
            copies: self.copies,
            copies_min: 2,
            patience: Duration::from_secs(5),
        }
    }

    async fn take_over(
        &self,
        state: &Arc<MemDisk>,
    ) -> Result<(Arc<MetaStore<EnsembleLog>>, Recovered), MetaError> {
        let disks: Disks = vec![(DiskId(100), state.clone())];
        let env = self.world.env.clone();
        MetaStore::take_over(env, settings(1), self.seat(), disks).await
    }

    /// Who waits for a moment in time gets there.
    async fn while_time_passes<T>(&self, work: impl Future<Output = T>) -> T {
        let passing = async {
            loop {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                self.world.clock.advance(Duration::from_millis(20));
            }
        };
        match select(std::pin::pin!(work), std::pin::pin!(passing)).await {
            Either::Left((done, _)) => done,
            Either::Right((never, _)) => never,
        }
    }

    /// From now on the disk of a node does nothing any more.
    fn lose(&self, index: usize) {
        let mut nodes = self.nodes.lock();
        nodes.disks[index].fail_all();
        nodes.away.insert(index);
    }

    /// A lost node comes back with what was durable there, and some of the rest.
    async fn bring_back(&self, index: usize, crash: Crash) {
        let (disk, seed) = {
            let mut nodes = self.nodes.lock();
            nodes.seed += 1;
            (nodes.disks[index].clone(), nodes.seed)
        };
        let disk = disk.crash(crash, seed);
        let shards = open_shards(&disk).await;
        let mut nodes = self.nodes.lock();
        nodes.disks[index] = disk;
        nodes.shards[index] = shards;
        nodes.away.remove(&index);
    }
}

fn state_disk() -> Arc<MemDisk> {
    MemDisk::new("state", 1 << 30)
}

/// One node after the other is lost and comes back, at most as many at once as may be. The volume changes its owner; with
/// `go_on` earlier ones do as if they still were.
async fn live(seed: u64, node_count: usize, copies: usize, go_on: bool) {
    let cluster = Cluster::new(seed, node_count, copies).await;
    cluster
        .while_time_passes(live_on(&cluster, seed, go_on))
        .await;
}

async fn live_on(cluster: &Cluster, seed: u64, go_on: bool) {
    let (node_count, copies) = (cluster.nodes.lock().disks.len(), cluster.copies);
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut model = Model::new(seed);
    let mut state = state_disk();
    let (mut store, _) = cluster
        .take_over(&state)
        .await
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let mut earlier: Vec<Arc<MetaStore<EnsembleLog>>> = Vec::new();
    for _ in 0..80 {
        match rng.below(20) {
            0..=8 => {
                for _ in 0..rng.below(6) {
                    model.submit(&store);
                }
                for _ in 0..rng.below(10) {
                    tokio::task::yield_now().await;
                }
                model.compare(&store);
            }
            9..=12 => assert!(model.wait(&store).await, "seed {seed}"),
            13 => store.ship().await.expect("ships"),
            14 => {
                let may_go = cluster.nodes.lock().away.len() + 1 < copies;
                let index = rng.below(node_count as u64) as usize;
                if may_go {
                    cluster.lose(index);
                }
            }
            15..=16 => {
                let away: Vec<usize> = cluster.nodes.lock().away.iter().copied().collect();
                if !away.is_empty() {
                    let index = away[rng.below(away.len() as u64) as usize];
                    let crash = Crash::ALL[rng.below(3) as usize];
                    cluster.bring_back(index, crash).await;
                }
            }
            17 => {
                for old in &earlier {
                    let ticket = old.submit(put(9_000_000 + rng.below(10)));
                    if ticket != Ticket::REFUSED {
                        let durable = old.durable(ticket).await;
                        assert!(durable.is_err(), "seed {seed}: it is over");
                    }
                }
            }
            _ => {
                // As a copy of it, which is not newer.
                state = state.crash(Crash::ALL[rng.below(3) as usize], rng.below(1 << 40));
                let begun = model.tickets.len();
                if go_on {
                    for disk in &cluster.nodes.lock().disks {
                        disk.yield_at_random(rng.below(1 << 40), 4);
                    }
                    for _ in 0..rng.below(4) {
                        model.submit(&store);
                    }
                } else {
                    store.abort().await;
                }
                // What the earlier owner acknowledges meanwhile counts, too.
                let last_words = async {
                    let mut acknowledged = 0;
                    for number in begun..model.tickets.len() {
                        if store.durable(model.tickets[number]).await.is_ok() {
                            acknowledged = number;
                        }
                    }
                    acknowledged
                };
                let both = join(cluster.take_over(&state), last_words);
                let (taken, acknowledged) = both.await;
                let (next, recovered) =
                    taken.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                model.durable = model.durable.max(acknowledged);
                model.recovered(&next, &recovered);
                if go_on {
                    earlier.push(store);
                }
                store = next;
            }
        }
    }
    assert!(store.stats().durable > LogPosition(0));
    for old in &earlier {
        old.abort().await;
    }
    store.abort().await;
}

#[test]
fn what_was_acknowledged_survives_lost_nodes() {
    for seed in 0..100 {
        block_on(live(seed, 4, 2, false));
        block_on(live(seed, 5, 3, false));
    }
}

#[test]
fn what_was_acknowledged_survives_owners_who_do_not_know_that_they_are_over() {
    for seed in 0..100 {
        block_on(live(seed, 4, 2, true));
        block_on(live(seed, 5, 3, true));
    }
}
