//! A volume whose log is on disks of several nodes, which fail and return, and whose owner changes.

use cairn_base::env::BoxFuture;
use cairn_base::{Epoch, NodeId, PoolId};
use cairn_formats::shard::name::{ShardKind, ShardName, shard_path};
use cairn_shard::{ShardDisk, ShardService, ShardSettings};
use cairn_testkit::{OpKind, Pace};
use futures_util::future::{Either, join, select};
use parking_lot::Mutex;
use std::time::Instant;

use super::*;
use crate::{Agreement, AgreementError, Copies, LogDisks, Seat, VolumeList};

mod mistakes;

const POOL: PoolId = PoolId(1);

/// The list that the nodes agree on.
#[derive(Default)]
struct Agreed {
    epoch: Epoch,
    revision: u64,
    list: VolumeList,
}

/// The list as one owner changes it.
struct Seal {
    agreed: Arc<Mutex<Agreed>>,
    epoch: Epoch,
}

impl Agreement for Seal {
    fn change(&self, replaced: u64, list: VolumeList) -> BoxFuture<Result<u64, AgreementError>> {
        let mut agreed = self.agreed.lock();
        if agreed.epoch != self.epoch || agreed.revision != replaced {
            return Box::pin(async {
                // As long as a request to another node takes: background work goes on.
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                Err(AgreementError::Refused)
            });
        }
        agreed.revision += 1;
        agreed.list = list;
        let revision = agreed.revision;
        Box::pin(async move { Ok(revision) })
    }
}

/// Nodes with one or more disks each.
struct Nodes {
    disks_per_node: usize,
    seed: u64,
    disks: Vec<Arc<MemDisk>>,
    shards: Vec<Arc<ShardDisk>>,
    away: BTreeSet<usize>,
    /// Nodes that can be reached and get no new files.
    leaving: BTreeSet<usize>,
    /// The node that is chosen first; another one each time.
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
        let there =
            there.filter(|index| !nodes.away.contains(index) && !nodes.leaving.contains(index));
        let choice = |index: usize| {
            let disk: Arc<dyn ShardService> = nodes.shards[index].clone();
            let node = index / nodes.disks_per_node;
            (NodeId(node as u128 + 1), disk)
        };
        there.map(choice).collect()
    }
}

async fn open_shards(disk: &Arc<MemDisk>) -> Arc<ShardDisk> {
    let opened = ShardDisk::open(disk.clone(), POOL, ShardSettings::default());
    opened.await.expect("opens")
}

/// One volume on disks of several nodes.
pub(super) struct Cluster {
    pub volume: VolumeId,
    world: TestWorld,
    nodes: Arc<Mutex<Nodes>>,
    agreed: Arc<Mutex<Agreed>>,
    /// The disks of the state on each node, for when it owns the volume.
    states: Mutex<Vec<Arc<MemDisk>>>,
    copies: usize,
    /// See [`MetaSettings::ship_bytes`].
    pub ship_bytes: u64,
    /// See [`MetaSettings::log_write_wait`].
    log_write_wait: Duration,
    /// See [`Seat::patience`].
    patience: Duration,
}

impl Cluster {
    pub async fn new(seed: u64, node_count: usize, copies: usize) -> Self {
        let mut nodes = Nodes {
            disks_per_node: 1,
            seed,
            disks: Vec::new(),
            shards: Vec::new(),
            away: BTreeSet::new(),
            leaving: BTreeSet::new(),
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
            volume: VOLUME,
            world: TestWorld::new(seed),
            nodes: Arc::new(Mutex::new(nodes)),
            agreed: Arc::default(),
            states: Mutex::new((0..node_count).map(|_| state_disk()).collect()),
            copies,
            ship_bytes: settings(1).ship_bytes,
            log_write_wait: settings(1).log_write_wait,
            patience: Duration::from_secs(5),
        }
    }

    /// Switches to real time and threads.
    fn run_on(&mut self, runtime: &tokio::runtime::Runtime) {
        self.world.env = cairn_base::real::env(runtime.handle().clone());
        self.log_write_wait = REAL_PATIENCE;
        self.patience = REAL_PATIENCE;
    }

    /// Another volume on the same disks.
    pub fn beside(&self, volume: VolumeId) -> Self {
        let states = self.states.lock().iter().map(|_| state_disk()).collect();
        Self {
            volume,
            world: TestWorld {
                env: self.world.env.clone(),
                clock: self.world.clock.clone(),
            },
            nodes: self.nodes.clone(),
            agreed: Arc::default(),
            states: Mutex::new(states),
            copies: self.copies,
            ship_bytes: self.ship_bytes,
            log_write_wait: self.log_write_wait,
            patience: self.patience,
        }
    }

    /// A node takes the volume over: earlier owners cannot change the list any more.
    fn seat(&self, node: usize) -> Seat {
        let mut agreed = self.agreed.lock();
        agreed.epoch = Epoch(agreed.epoch.0 + 1);
        Seat {
            volume: self.volume,
            epoch: agreed.epoch,
            node: NodeId(node as u128 + 1),
            revision: agreed.revision,
            list: agreed.list.clone(),
            agreement: Arc::new(Seal {
                agreed: self.agreed.clone(),
                epoch: agreed.epoch,
            }),
            disks: self.nodes.clone(),
            copies: Copies::new(self.copies, 2),
            patience: self.patience,
        }
    }

    pub async fn take_over(&self, node: usize) -> Result<(Arc<MetaStore>, Recovered), MetaError> {
        let state: Arc<dyn Disk> = self.states.lock()[node].clone();
        self.take_over_on(node, vec![(DiskId(100), state)]).await
    }

    async fn take_over_on(
        &self,
        node: usize,
        disks: Disks,
    ) -> Result<(Arc<MetaStore>, Recovered), MetaError> {
        let env = self.world.env.clone();
        let settings = MetaSettings {
            ship_bytes: self.ship_bytes,
            log_write_wait: self.log_write_wait,
            ..settings(1)
        };
        MetaStore::take_over(env, settings, self.seat(node), disks).await
    }

    /// Leaves the state of a node as a crash does, or, if `may_go`, without the node's disk.
    fn crash_state(&self, node: usize, rng: &mut Rng, may_go: bool) {
        let mut states = self.states.lock();
        states[node] = match rng.below(3) {
            0 if may_go => state_disk(),
            _ => states[node].crash(Crash::ALL[rng.below(3) as usize], rng.below(1 << 40)),
        };
    }

    /// A node that is present.
    fn any_node(&self, rng: &mut Rng) -> usize {
        let nodes = self.nodes.lock();
        let there = (0..nodes.disks.len()).filter(|index| !nodes.away.contains(index));
        let there: Vec<usize> = there.collect();
        there[rng.below(there.len() as u64) as usize]
    }

    /// Number of files of log and state on present disks that the list does not name.
    pub async fn shards_not_named(&self) -> usize {
        let list = self.agreed.lock().list.clone();
        let shards: Vec<Arc<ShardDisk>> = {
            let nodes = self.nodes.lock();
            let there = (0..nodes.shards.len()).filter(|index| !nodes.away.contains(index));
            there.map(|index| nodes.shards[index].clone()).collect()
        };
        let mut count = 0;
        for disk in shards {
            for name in disk.list(self.volume).await.expect("lists") {
                let is_named = match name.kind() {
                    ShardKind::Segment => true,
                    ShardKind::Log(number) => {
                        list.ensembles.iter().any(|part| part.number == number)
                    }
                    // A state in memory is one file of one part, plus its descriptor.
                    ShardKind::State(number) => list.state.as_ref().is_some_and(|copy| {
                        copy.disks.contains(&disk.id())
                            && (number == copy.number || number + 1 == copy.number)
                    }),
                };
                count += usize::from(!is_named);
            }
        }
        count
    }

    /// The seat of a node that does not own the volume.
    fn looks_on(&self, node: usize) -> Seat {
        let agreed = self.agreed.lock();
        Seat {
            volume: self.volume,
            epoch: Epoch(0),
            node: NodeId(node as u128 + 1),
            revision: agreed.revision,
            list: agreed.list.clone(),
            agreement: Arc::new(Seal {
                agreed: self.agreed.clone(),
                epoch: Epoch(0),
            }),
            disks: self.nodes.clone(),
            copies: Copies::new(1, 1),
            patience: self.patience,
        }
    }

    /// Removes the copies of the state from all disks.
    async fn remove_copies(&self) {
        let shards = self.nodes.lock().shards.clone();
        for disk in shards {
            for name in disk.list(self.volume).await.expect("lists") {
                if let ShardKind::State(_) = name.kind() {
                    disk.remove(name).await.expect("removes");
                }
            }
        }
    }

    /// Runs `work` while simulated time passes.
    pub async fn while_time_passes<T>(&self, work: impl Future<Output = T>) -> T {
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

    /// The disks of present nodes.
    pub fn disks(&self) -> Vec<Arc<MemDisk>> {
        let nodes = self.nodes.lock();
        let there = (0..nodes.disks.len()).filter(|index| !nodes.away.contains(index));
        there.map(|index| nodes.disks[index].clone()).collect()
    }

    /// The nodes that have the open ensemble.
    pub fn open_disks(&self) -> Vec<usize> {
        let agreed = self.agreed.lock();
        let open = agreed.list.ensembles.last().expect("there is a log");
        let index = |disk: &DiskId| usize::try_from(disk.0).expect("small") - 1;
        open.disks.iter().map(index).collect()
    }

    /// The smallest number of present nodes that any part of the log is on.
    pub fn copies_there(&self) -> usize {
        let away = self.nodes.lock().away.clone();
        let agreed = self.agreed.lock();
        let is_there = |disk: &&DiskId| {
            let index = usize::try_from(disk.0).expect("small") - 1;
            !away.contains(&index)
        };
        let parts = agreed.list.ensembles.iter();
        let counts = parts.map(|part| part.disks.iter().filter(is_there).count());
        counts.min().unwrap_or(0)
    }

    /// How many parts of the log a node lacks, and how many there are.
    pub fn parts_lacking_on(&self, node: usize) -> (usize, usize) {
        let parts = self.agreed.lock().list.ensembles.clone();
        let id = DiskId(node as u128 + 1);
        let lacking = parts.iter().filter(|part| !part.disks.contains(&id));
        (lacking.count(), parts.len())
    }

    pub fn clock(&self) -> Arc<dyn cairn_base::env::Clock> {
        self.world.env.clock.clone()
    }

    pub fn now(&self) -> Duration {
        self.world.env.clock.monotonic()
    }

    /// Takes the disk of a node away.
    pub fn lose(&self, index: usize) {
        let mut nodes = self.nodes.lock();
        nodes.disks[index].fail_all();
        nodes.away.insert(index);
    }

    /// A lost node comes back with its durable data, and some of the rest.
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

/// Nodes fail and return one after the other, at most as many at once as the copies allow. The volume changes its
/// owner; with `go_on` earlier owners act as if they still were owners.
async fn live(seed: u64, node_count: usize, copies: usize, go_on: bool) -> Lived {
    let cluster = Cluster::new(seed, node_count, copies).await;
    cluster
        .while_time_passes(live_on(&cluster, seed, go_on))
        .await
}

/// Events of a life, for tests that require some.
#[derive(Clone, Copy, Debug, Default)]
struct Lived {
    /// Takeovers that fetched the state.
    fetched: usize,
    /// Unneeded shards that still exist at the end.
    left: usize,
}

async fn live_on(cluster: &Cluster, seed: u64, go_on: bool) -> Lived {
    let (node_count, copies) = (cluster.nodes.lock().disks.len(), cluster.copies);
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut model = Model::new(seed);
    let mut lived = Lived::default();
    let mut owner = 0;
    let (mut store, _) = cluster
        .take_over(owner)
        .await
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let mut earlier: Vec<Arc<MetaStore>> = Vec::new();
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
                // The owner's state is one of the copies.
                let may_go = cluster.nodes.lock().away.len() + 1 < copies;
                cluster.crash_state(owner, &mut rng, may_go);
                if may_go {
                    owner = cluster.any_node(&mut rng);
                }
                let was_trimmed = store.stats().log_start > LogPosition(1);
                let is_blank = cluster.states.lock()[owner].file_names().is_empty();
                lived.fetched += usize::from(was_trimmed && is_blank);
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
                // Acknowledgements of the earlier owner meanwhile count, too.
                let last_words = async {
                    let mut acknowledged = 0;
                    for number in begun..model.tickets.len() {
                        if store.durable(model.tickets[number]).await.is_ok() {
                            acknowledged = number;
                        }
                    }
                    acknowledged
                };
                let both = join(cluster.take_over(owner), last_words);
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
    // Only shards that the list names are left.
    store.ship().await.expect("ships");
    for _ in 0..1_000 {
        lived.left = cluster.shards_not_named().await;
        if lived.left == 0 {
            break;
        }
        // The log removes its files in the background.
        tokio::task::yield_now().await;
    }
    for old in &earlier {
        old.abort().await;
    }
    store.abort().await;
    lived
}

/// A corrupt bit in a copy on one node: the bytes come from another node. With all copies corrupt, no wrong bytes are
/// ever used, and the error names the disks.
#[test]
fn a_damaged_copy_of_the_state_is_got_from_another_node() {
    block_on(async {
        let cluster = Cluster::new(9, 4, 3).await;
        let work = async {
            let mut model = Model::new(9);
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            for _ in 0..40 {
                assert!(model.submit(&store));
            }
            assert!(model.wait(&store).await);
            store.close().await.expect("closes");
            let copy = cluster.agreed.lock().list.state.clone().expect("a copy");
            assert_eq!(copy.disks.len(), 2, "{copy:?}");
            let part = shard_path(ShardName::of_state(VOLUME, copy.number - 1));
            for (nth, disk) in copy.disks.iter().enumerate() {
                let index = usize::try_from(disk.0).expect("small") - 1;
                cluster.nodes.lock().disks[index].flip_bit(&part, 20, 3);
                let taken = cluster.take_over(3).await;
                if nth == 0 {
                    let (store, recovered) = taken.expect("takes over");
                    model.recovered(&store, &recovered);
                    store.abort().await;
                    // The state of the node is gone again.
                    cluster.states.lock()[3] = state_disk();
                } else {
                    let error = taken.err().expect("no copy is whole");
                    let text = error.to_string();
                    assert!(
                        matches!(error, MetaError::StateUnreachable { .. }),
                        "{text}"
                    );
                    for disk in &copy.disks {
                        assert!(text.contains(&disk.to_string()), "{text}");
                    }
                }
            }
        };
        cluster.while_time_passes(work).await;
    });
}

/// Reads of some files never end, as on a node that is cut off.
struct Unanswered(Vec<String>);

impl Pace for Unanswered {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let hangs = kind == OpKind::Read && self.0.iter().any(|path| path == name);
        hangs.then(|| Box::pin(std::future::pending()) as BoxFuture<()>)
    }
}

/// One of the nodes with a copy of the state does not answer: the takeover waits for it once, and not again for each file.
#[test]
fn a_node_that_does_not_answer_is_waited_for_once() {
    block_on(async {
        let cluster = Cluster::new(9, 4, 3).await;
        let work = async {
            let mut model = Model::new(9);
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            for _ in 0..40 {
                assert!(model.submit(&store));
            }
            assert!(model.wait(&store).await);
            store.close().await.expect("closes");
            let copy = cluster.agreed.lock().list.state.clone().expect("a copy");
            assert_eq!(copy.disks.len(), 2, "{copy:?}");
            let path = |number| shard_path(ShardName::of_state(VOLUME, number));
            let paths = vec![path(copy.number), path(copy.number - 1)];
            let first = usize::try_from(copy.disks[0].0).expect("small") - 1;
            cluster.nodes.lock().disks[first].pace_with(Arc::new(Unanswered(paths)));
            let began = cluster.now();
            let (store, recovered) = cluster.take_over(3).await.expect("takes over");
            let took = cluster.now().saturating_sub(began);
            model.recovered(&store, &recovered);
            assert!(took >= cluster.patience, "it was asked: {took:?}");
            assert!(took < cluster.patience * 3 / 2, "{took:?}");
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}

/// With RocksDB: each time another node owns the volume, and fetches the parts of the state that it lacks. Sometimes an
/// empty node replaces one.
#[test]
fn states_on_folders_move_between_nodes() {
    let folders: Vec<tempfile::TempDir> = (0..3)
        .map(|_| tempfile::tempdir().expect("a folder"))
        .collect();
    let runtime = runtime(2);
    runtime.block_on(async {
        let mut cluster = Cluster::new(3, 3, 2).await;
        cluster.run_on(&runtime);
        let mut rng = Rng::new(3);
        let mut model = Model::new(3);
        for round in 0..12 {
            let node = round % 3;
            let path = folders[node].path();
            if rng.below(3) == 0 {
                std::fs::remove_dir_all(path.join("disk0").join("volumes")).ok();
            }
            let disks = super::folders::real_disks(path, &[1, 2, 3]);
            let taken = cluster.take_over_on(node, disks).await;
            let (store, recovered) = taken.unwrap_or_else(|error| panic!("round {round}: {error}"));
            if round > 0 {
                model.recovered(&store, &recovered);
                // It began with a copy of the state, and not with the whole log.
                assert!(store.stats().log_start > LogPosition(1), "round {round}");
            }
            for _ in 0..30 {
                for _ in 0..rng.below(4) {
                    assert!(model.submit(&store));
                }
                assert!(model.wait(&store).await);
                if rng.below(10) == 0 {
                    store.ship().await.expect("ships");
                }
            }
            model.compare(&store);
            store.ship().await.expect("ships");
            let stats = store.stats();
            assert!(!stats.copies_missing, "round {round}: {stats:?}");
            assert_eq!(stats.ship_errors, 0, "round {round}");
            // One more change, so that the log names the position from which it is needed.
            assert!(model.submit(&store) && model.wait_for_all(&store).await);
            match round % 2 {
                0 => store.abort().await,
                _ => store.close().await.expect("closes"),
            }
        }
    });
}

/// Waits in real time until no copy is made in the background: the first change of a term starts one. Until then
/// [`MetaStore::makes_copies`] holds, even before the task that makes it has begun.
async fn until_copies_stay(store: &MetaStore, model: &mut Model) {
    assert!(model.submit(store) && model.wait_for_all(store).await);
    let until = Instant::now() + REAL_PATIENCE;
    while store.makes_copies() {
        assert!(Instant::now() < until, "copies are made without end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Durable changes after a copy of the state: with them the log says that its beginning is unneeded.
async fn change_after_a_copy(store: &MetaStore, model: &mut Model) {
    assert_eq!(store.stats().ship_errors, 0, "a copy was made");
    for _ in 0..5 {
        assert!(model.submit(store) && model.wait_for_all(store).await);
    }
    let stats = store.stats();
    assert!(stats.log_start > LogPosition(1), "{stats:?}");
}

/// A copy fetched while the volume is served: the store that opens there fetches nothing.
#[test]
fn a_copy_that_was_fetched_before_is_what_the_next_store_begins_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime(2);
    runtime.block_on(async {
        let mut cluster = Cluster::new(5, 3, 2).await;
        cluster.ship_bytes = 1 << 30;
        cluster.run_on(&runtime);
        let mut model = Model::new(5);
        let disks = super::folders::real_disks(folder.path(), &[2, 3]);
        let (before, after) = (vec![disks[0].clone()], vec![disks[1].clone()]);
        let (store, _) = cluster.take_over_on(0, before).await.expect("takes over");
        until_copies_stay(&store, &mut model).await;
        for _ in 0..40 {
            assert!(model.submit(&store));
        }
        store.ship().await.expect("ships");
        store.fetch_copy(after.clone()).await.expect("fetches");
        // Later changes come from the log, whose beginning is gone.
        change_after_a_copy(&store, &mut model).await;
        store.abort().await;
        drop(store);
        cluster.remove_copies().await;
        let (store, recovered) = cluster
            .take_over_on(0, after)
            .await
            .expect("no copy is asked for");
        model.recovered(&store, &recovered);
        store.abort().await;
    });
}

/// The next owner has the state before the takeover, and fetches nothing then.
#[test]
fn who_is_about_to_own_a_volume_has_its_state_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime(2);
    runtime.block_on(async {
        let mut cluster = Cluster::new(6, 3, 2).await;
        cluster.ship_bytes = 1 << 30;
        cluster.run_on(&runtime);
        let mut model = Model::new(6);
        let disks = super::folders::real_disks(folder.path(), &[2, 3]);
        let (before, after) = (vec![disks[0].clone()], vec![disks[1].clone()]);
        let (mut store, _) = cluster
            .take_over_on(0, before.clone())
            .await
            .expect("takes over");
        for has_copies in [true, false] {
            until_copies_stay(&store, &mut model).await;
            for _ in 0..40 {
                assert!(model.submit(&store));
            }
            store.ship().await.expect("ships");
            // The second time it has an older state.
            let (env, disks) = (cluster.world.env.clone(), after.clone());
            let prepared = MetaStore::prepare(env, real_settings(1), cluster.looks_on(1), disks);
            prepared.await.expect("prepares");
            change_after_a_copy(&store, &mut model).await;
            store.abort().await;
            drop(store);
            if !has_copies {
                cluster.remove_copies().await;
            }
            let taken = cluster.take_over_on(1, after.clone()).await;
            let (new, recovered) = taken.expect("no copy is asked for");
            model.recovered(&new, &recovered);
            if has_copies {
                new.ship().await.expect("ships");
                new.abort().await;
                drop(new);
                let taken = cluster.take_over_on(0, before.clone()).await;
                let (again, recovered) = taken.expect("takes over");
                model.recovered(&again, &recovered);
                store = again;
            } else {
                new.abort().await;
                return;
            }
        }
    });
}

#[test]
fn what_was_acknowledged_survives_lost_nodes() {
    let mut fetched = 0;
    for seed in 0..100 {
        for (node_count, copies) in [(4, 2), (5, 3)] {
            let lived = block_on(live(seed, node_count, copies, false));
            fetched += lived.fetched;
            assert_eq!(lived.left, 0, "seed {seed}");
        }
    }
    assert!(fetched > 50, "{fetched} states came from other nodes");
}

#[test]
fn what_was_acknowledged_survives_owners_who_do_not_know_that_they_are_over() {
    for seed in 0..100 {
        block_on(live(seed, 4, 2, true));
        block_on(live(seed, 5, 3, true));
    }
}

/// Few changes precede the drain of a disk, and none follow it.
#[test]
fn a_disk_that_leaves_is_left_also_when_nothing_is_written() {
    block_on(async {
        let cluster = Cluster::new(3, 5, 3).await;
        let work = async {
            let (store, _) = cluster.take_over(0).await.expect("takes");
            for number in 1..=5 {
                let ticket = store.submit(put(number));
                store.durable(ticket).await.expect("durable");
            }
            store.ship().await.expect("ships");
            let first = cluster.agreed.lock().list.ensembles[0].disks[0];
            let index = usize::try_from(first.0).expect("small") - 1;
            cluster.nodes.lock().leaving.insert(index);
            store.log().retire_disk(first).await.expect("retires");
            assert!(!store.log().uses_disk(first));
            let list = cluster.agreed.lock().list.clone();
            assert!(
                list.ensembles
                    .iter()
                    .all(|part| !part.disks.contains(&first))
            );
            assert!(list.state.is_some_and(|copy| !copy.disks.contains(&first)));
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}

/// A range sealed while nodes were away is on too few disks. When the nodes return, it gets its missing copies although
/// nobody writes: both nodes that have it may be lost next.
#[test]
fn what_is_sealed_has_all_its_copies_again_though_nobody_writes() {
    block_on(async {
        let cluster = Cluster::new(11, 4, 3).await;
        let work = async {
            let mut model = Model::new(11);
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            assert!(model.submit(&store) && model.wait(&store).await);
            let lost = [2, 3];
            lost.iter().for_each(|index| cluster.lose(*index));
            for _ in 0..5 {
                assert!(model.submit(&store) && model.wait(&store).await);
            }
            for index in lost {
                cluster.bring_back(index, Crash::LoseUnsynced).await;
            }
            let copies = || {
                let list = cluster.agreed.lock().list.clone();
                let counts = list.ensembles.iter().map(|part| part.disks.len());
                counts.min().unwrap_or(0)
            };
            let mut looks = 0;
            while copies() < 3 || store.stats().is_degraded() {
                looks += 1;
                assert!(looks < 1000, "{:?}", cluster.agreed.lock().list);
                let clock = cluster.world.env.clock.clone();
                clock.sleep(Duration::from_millis(100)).await;
            }
            store.abort().await;
            [0, 1].iter().for_each(|index| cluster.lose(*index));
            let (store, recovered) = cluster.take_over(2).await.expect("takes over");
            model.recovered(&store, &recovered);
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}

/// Disks with less free space than a log file: the takeover still succeeds, and the volume accepts changes.
#[test]
fn a_volume_is_taken_over_where_no_disk_has_room_for_a_whole_file() {
    block_on(async {
        let cluster = Cluster::new(1, 3, 2).await;
        let working = async {
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            store.durable(store.submit(put(1))).await.expect("durable");
            drop(store);
            let disks = cluster.nodes.lock().disks.clone();
            for disk in &disks {
                limits::fill(disk, "ballast", LOG_FILE_BYTES_MIN - 4096).await;
            }
            let (store, _) = cluster.take_over(1).await.expect("takes over");
            store.durable(store.submit(put(2))).await.expect("durable");
            for disk in &disks {
                disk.remove("ballast").await.expect("removes");
            }
            let last = 4 * LOG_FILE_BYTES_MIN / 4096;
            for number in 3..=last {
                let ticket = store.submit(put(number));
                store.durable(ticket).await.expect("durable");
            }
            drop(store);
            let (store, _) = cluster.take_over(2).await.expect("takes over");
            for number in 1..=last {
                let found = store.live().get(&Key::inode(Ino(number)));
                assert!(found.expect("reads").is_some(), "{number}");
            }
        };
        cluster.while_time_passes(working).await;
    });
}
