//! Owners of a volume that follow one another, through the cluster's map.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::{DiskId, Epoch, Ino, LogPosition, NodeId, PoolId, Timestamp, VolumeId};
use cairn_cluster::map::{ClusterId, HighWater, HighWaterStore, Opaque, Process, ProcessNonce};
use cairn_cluster::{ClusterMap, Coordinator, MapError, MemoryCoordinator};
use cairn_meta::{
    Batch, Copies, Key, LogDisks, MetaCache, MetaError, MetaSettings, MetaStore, Ticket,
};
use cairn_owner::{Node, Protection, TakeoverError};
use cairn_shard::{ShardDisk, ShardService, ShardSettings};
use cairn_testkit::{MemDisk, TestWorld};
use futures_util::future::{Either, select};
use parking_lot::Mutex;

const POOL: PoolId = PoolId(1);
const LEASE: Duration = Duration::from_secs(10);
fn protection() -> Protection {
    Protection {
        copies: Copies::new(2, 2),
        patience: Duration::from_secs(2),
    }
}

#[derive(Default)]
struct Remembered(Mutex<Option<HighWater>>);

impl HighWaterStore for Remembered {
    fn load(&self) -> Result<Option<HighWater>, String> {
        Ok(*self.0.lock())
    }

    fn store(&self, seen: HighWater) -> Result<(), String> {
        *self.0.lock() = Some(seen);
        Ok(())
    }
}

/// The disks of all nodes, one each.
struct Disks {
    shards: Vec<Arc<ShardDisk>>,
    away: Mutex<BTreeSet<usize>>,
}

impl LogDisks for Disks {
    fn disk(&self, id: DiskId) -> Option<Arc<dyn ShardService>> {
        let index = self.shards.iter().position(|disk| disk.id() == id)?;
        let disk: Arc<dyn ShardService> = self.shards[index].clone();
        (!self.away.lock().contains(&index)).then_some(disk)
    }

    fn choices(&self) -> Vec<(NodeId, Arc<dyn ShardService>)> {
        let all = self.shards.iter().enumerate();
        let there = all.filter(|(index, _)| !self.away.lock().contains(index));
        let choice = |(index, disk): (usize, &Arc<ShardDisk>)| {
            let disk: Arc<dyn ShardService> = disk.clone();
            (NodeId(index as u128 + 1), disk)
        };
        there.map(choice).collect()
    }
}

struct World {
    world: TestWorld,
    store: MemoryCoordinator,
    disks: Arc<Disks>,
    mem: Vec<Arc<MemDisk>>,
    states: Vec<Arc<MemDisk>>,
}

impl World {
    async fn new(node_count: usize) -> Self {
        let world = TestWorld::new(5);
        let (mut mem, mut shards) = (Vec::new(), Vec::new());
        for number in 1..=node_count {
            let disk = MemDisk::new(format!("node{number}"), 1 << 30);
            let id = DiskId(number as u128);
            let formatted = ShardDisk::format(disk.clone(), POOL, id, Timestamp::default());
            formatted.await.expect("formats");
            let opened = ShardDisk::open(disk.clone(), POOL, ShardSettings::default());
            shards.push(opened.await.expect("opens"));
            mem.push(disk);
        }
        Self {
            store: MemoryCoordinator::new(world.env.clone()),
            world,
            disks: Arc::new(Disks {
                shards,
                away: Mutex::default(),
            }),
            mem,
            states: (0..node_count)
                .map(|_| MemDisk::new("state", 1 << 30))
                .collect(),
        }
    }

    fn client(&self, node: usize) -> Arc<dyn Coordinator> {
        self.store.client(format!("node{node}"))
    }

    async fn create_cluster(&self) -> ClusterMap {
        let (env, memory) = (self.world.env.clone(), Arc::new(Remembered::default()));
        let made = ClusterMap::create_cluster(self.client(0), env, ClusterId(1), "test", memory);
        made.await.expect("a cluster")
    }

    /// A process of a node, with a lease that nobody renews.
    async fn node(&self, node: usize) -> Node {
        let (env, client) = (self.world.env.clone(), self.client(node));
        let memory = Arc::new(Remembered::default());
        let map = ClusterMap::open(client.clone(), env.clone(), "test", memory);
        let disk: Arc<dyn Disk> = self.states[node].clone();
        Node {
            map: map.await.expect("a map"),
            process: Process {
                node: NodeId(node as u128 + 1),
                nonce: ProcessNonce(env.entropy.u128()),
                lease: client.grant_lease(LEASE).await.expect("a lease").id,
            },
            env,
            log_disks: self.disks.clone(),
            disks: vec![(DiskId(100 + node as u128), disk)],
        }
    }

    /// Runs `work`; time passes whenever it waits for that.
    async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let passing = async {
            loop {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                self.world.clock.advance(Duration::from_millis(5));
            }
        };
        match select(pin!(work), pin!(passing)).await {
            Either::Left((done, _)) => done,
            Either::Right((never, _)) => never,
        }
    }
}

fn settings() -> MetaSettings {
    MetaSettings::new(1, MetaCache::new(1 << 20))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .event_interval(1)
        .build()
        .expect("a runtime")
        .block_on(work)
}

fn put(store: &MetaStore, number: u64) -> Ticket {
    let mut batch = Batch::new();
    batch.put(
        Key::inode(Ino(number)),
        Bytes::from(number.to_string().into_bytes()),
    );
    store.submit(batch)
}

async fn put_durably(store: &MetaStore, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let ticket = put(store, number);
        store.durable(ticket).await.expect("durable");
    }
}

fn require_all(store: &MetaStore, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let found = store.live().get(&Key::inode(Ino(number))).expect("reads");
        assert_eq!(found.as_deref(), Some(number.to_string().as_bytes()));
    }
}

async fn volume(map: &ClusterMap) -> VolumeId {
    let opaque = || Opaque(Vec::new());
    let made = map.create_volume("main", opaque(), opaque());
    made.await.expect("a volume")
}

/// The owner is lost with its disk, and does not know it. Another node goes on, once the lease is over, with a state that
/// it gets from a third. What the earlier owner acknowledged is there, and it acknowledges nothing any more.
#[test]
fn another_node_goes_on_when_the_owner_is_lost() {
    block_on(async {
        let world = World::new(4).await;
        let work = async {
            let map = world.create_cluster().await;
            let volume = volume(&map).await;
            let first = world.node(0).await;
            let taken = first.take_over(volume, Epoch(0), protection(), settings());
            let (old, _) = taken.await.expect("takes over");
            put_durably(&old, 10..40).await;
            old.ship().await.expect("ships");
            put_durably(&old, 40..60).await;
            assert!(old.stats().log_start > LogPosition(1));

            world.disks.away.lock().insert(0);
            let second = world.node(1).await;
            let early = second.take_over(volume, Epoch(0), protection(), settings());
            let early = early.await.err().expect("it has an owner");
            assert!(
                matches!(early, TakeoverError::Map(MapError::Owned { .. })),
                "{early}"
            );
            world.world.clock.advance(LEASE);
            let second = world.node(1).await;
            let taken = second.take_over(volume, Epoch(0), protection(), settings());
            let (new, _) = taken.await.expect("takes over");
            require_all(&new, 10..60);
            put_durably(&new, 60..70).await;

            // The other side of the cut: its own disk works, the others have promised.
            world.disks.away.lock().clear();
            let ticket = put(&old, 99);
            let refused = old.durable(ticket).await;
            assert!(refused.is_err(), "it owns nothing any more");
            old.abort().await;
            require_all(&new, 10..70);
            let lost = new.live().get(&Key::inode(Ino(99))).expect("reads");
            assert_eq!(lost, None);
            new.close().await.expect("closes");
        };
        world.run(work).await;
    });
}

/// While nobody reaches etcd the owner goes on, unless its log has to go on elsewhere: then it waits, and acknowledges what
/// waited when etcd is back.
#[test]
fn without_etcd_only_a_change_of_the_log_waits() {
    block_on(async {
        let world = World::new(4).await;
        let work = async {
            let map = world.create_cluster().await;
            let volume = volume(&map).await;
            let node = world.node(0).await;
            let taken = node.take_over(volume, Epoch(0), protection(), settings());
            let (store, _) = taken.await.expect("takes over");
            put_durably(&store, 10..20).await;

            world.store.set_reachable("node0", false);
            put_durably(&store, 20..30).await;
            let used = store.stats().log_disks[0];
            let index = world.disks.shards.iter().position(|disk| disk.id() == used);
            let index = index.expect("one of them");
            world.mem[index].fail_all();
            let ticket = put(&store, 30);
            let mut waiting = pin!(store.durable(ticket));
            let soon = world.world.env.clock.sleep(Duration::from_secs(30));
            match select(&mut waiting, soon).await {
                Either::Left((done, _)) => panic!("{done:?} without etcd"),
                Either::Right(_) => {}
            }
            world.store.set_reachable("node0", true);
            waiting.await.expect("durable");
            put_durably(&store, 31..40).await;
            assert!(!store.stats().log_disks.contains(&used));
            require_all(&store, 10..40);
            store.abort().await;
        };
        world.run(work).await;
    });
}

/// All that may hold what was acknowledged is away: the takeover names the disks, and is made when one is back.
#[test]
fn a_takeover_waits_for_what_only_missing_disks_have() {
    block_on(async {
        let world = World::new(4).await;
        let work = async {
            let map = world.create_cluster().await;
            let volume = volume(&map).await;
            let node = world.node(0).await;
            let taken = node.take_over(volume, Epoch(0), protection(), settings());
            let (store, _) = taken.await.expect("takes over");
            put_durably(&store, 10..20).await;
            let used: Vec<usize> = {
                let used = store.stats().log_disks;
                let all = world.disks.shards.iter().enumerate();
                let used = all.filter(|(_, disk)| used.contains(&disk.id()));
                used.map(|(index, _)| index).collect()
            };
            store.abort().await;
            world.disks.away.lock().extend(used.iter().copied());
            world.world.clock.advance(LEASE);
            let node = world.node(3).await;
            let taken = node.take_over(volume, Epoch(0), protection(), settings());
            let error = taken.await.err().expect("nobody has the log");
            assert!(
                matches!(
                    error,
                    TakeoverError::Metadata {
                        error: MetaError::LogUnreachable { .. },
                        ..
                    }
                ),
                "{error}"
            );
            world.disks.away.lock().remove(&used[1]);
            let taken = node.take_over(volume, Epoch(0), protection(), settings());
            let (store, _) = taken.await.expect("takes over");
            require_all(&store, 10..20);
            store.abort().await;
        };
        world.run(work).await;
    });
}
