//! One node of the simulated cluster: a machine with disks and a clock, and the process that runs on it.
//!
//! Owns: the start of a process, which follows `cairn-node`, without sockets, certificates and a configuration. Must
//! not know: when it dies, its clients.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cairn_base::env::{BoxFuture, Env};
use cairn_base::{DiskRole, NodeId, PoolId, VolumeId};
use cairn_cluster::map::{
    ClusterId, DiskRecord, HighWater, HighWaterStore, MapErrorKind, NodeRecord, VersionRange,
    WEIGHT_NORMAL,
};
use cairn_cluster::{ClusterMap, Coordinator, MapError};
use cairn_formats::pool_file::{ClusterMark, PoolState, PoolTier, PoolVolume};
use cairn_forward::Forward;
use cairn_fs::{Fs, FsSettings};
use cairn_meta::MetaSettings;
use cairn_owner::{ClusterMember, MapTruth, MemberSettings};
use cairn_pool::{Host, HostTier, Pool, PoolSettings, Seats, VolumeService};
use cairn_remote::{Connection, Identity, ServeSettings, Served, Server};
use cairn_segment::SegmentSettings;
use cairn_shard::ShardService;
use cairn_testkit::{MemDisk, Rng};
use parking_lot::Mutex;

use super::calls::Calls;
use super::edge::{self, Edge, Owned};
use super::net::{Net, Port};
use super::promises::Promises;
use super::tiers;
use super::volumes::Volumes;
use crate::object_store::LifeStore;
use crate::pool::Disks;
use crate::scenario::Shape;
use crate::world::{form_pool, fs_settings, meta_settings, open_pool};

/// Volumes move for load balancing sooner than on real nodes, so that it happens within the simulated time.
const SETTLED: Duration = Duration::from_secs(20);
const MOVES_PAUSE: Duration = Duration::from_secs(5);

pub const CLUSTER: PoolId = PoolId(0xc1a5_7e12);
pub const NAME: &str = "sim";
const RETRY_PAUSE: Duration = Duration::from_millis(500);

pub fn node_id(index: usize) -> NodeId {
    NodeId(index as u128 + 1)
}

/// The newest map that a node saw, kept across crashes.
#[derive(Default)]
pub struct Remembered(Mutex<Option<HighWater>>);

impl HighWaterStore for Remembered {
    fn load(&self) -> Result<Option<HighWater>, String> {
        Ok(*self.0.lock())
    }

    fn store(&self, seen: HighWater) -> Result<(), String> {
        *self.0.lock() = Some(seen);
        Ok(())
    }
}

/// Inputs for the start of a process.
pub struct Start {
    pub index: usize,
    pub env: Env,
    pub shape: Shape,
    pub disks: Vec<Arc<MemDisk>>,
    /// It was never started before.
    pub is_new: bool,
    pub coordinator: Arc<dyn Coordinator>,
    pub high_water: Arc<Remembered>,
    pub net: Net,
    pub volumes: Arc<Volumes>,
    pub promises: Arc<Promises>,
    pub objects: Option<Arc<LifeStore>>,
    /// The clients that talk to any node, if there are any.
    pub calls: Option<Arc<Calls>>,
}

/// A process that has joined the cluster.
pub struct Process {
    /// Tasks spawned in it stop and end with it.
    pub env: Env,
    pub pool: Arc<Pool>,
    pub member: Arc<ClusterMember>,
    host: Arc<ClusterHost>,
}

/// The large parts of a process, to see that none outlives the process's tasks.
pub struct Remains {
    pool: Weak<Pool>,
    member: Weak<ClusterMember>,
    host: Weak<ClusterHost>,
}

impl Remains {
    /// The parts that still exist, with the number of their holders.
    pub fn held(&self) -> Vec<String> {
        let parts = [
            ("pool", self.pool.strong_count()),
            ("membership", self.member.strong_count()),
            ("host", self.host.strong_count()),
        ];
        let held = parts.iter().filter(|(_, holders)| *holders > 0);
        held.map(|(part, holders)| format!("{part} ({holders} holders)"))
            .collect()
    }
}

impl Process {
    pub fn remains(&self) -> Remains {
        Remains {
            pool: Arc::downgrade(&self.pool),
            member: Arc::downgrade(&self.member),
            host: Arc::downgrade(&self.host),
        }
    }

    /// Ends forwarding after the clients have stopped calling.
    pub fn end_forwarding(&self) {
        let forward = self.host.forward.lock().take();
        drop(forward);
    }
}

/// Retries an operation on the map until it works or makes no sense.
async fn insist<T, F>(env: &Env, mut call: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, MapError>>,
{
    loop {
        let error = match call().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        match error.kind() {
            MapErrorKind::Retry | MapErrorKind::Changed | MapErrorKind::Unknown => {}
            _ => return Err(error.to_string()),
        }
        env.clock.sleep(RETRY_PAUSE).await;
    }
}

impl Start {
    pub async fn run(self) -> Result<Process, String> {
        let (env, own) = (self.env.clone(), node_id(self.index));
        let disks = Disks {
            there: self.disks.clone(),
        };
        let mut opened = match self.is_new {
            true => form_pool(&env, &self.shape, &disks).await?,
            false => open_pool(&env, &self.shape, &disks).await?,
        };
        let map = self.map().await?;
        opened.state.cluster = Some(ClusterMark {
            cluster: CLUSTER,
            node: own,
        });
        opened.state.handle_key = None;
        for disk in &mut opened.state.disks {
            disk.node = own;
        }
        if self.is_new {
            self.add_to(&map, &opened.state).await?;
        }
        let identity = Identity {
            cluster: CLUSTER,
            node: own,
        };
        let member = ClusterMember::new(
            env.clone(),
            map.clone(),
            self.coordinator.clone(),
            identity,
            MemberSettings {
                settled: SETTLED,
                moves_pause: MOVES_PAUSE,
                ..MemberSettings::default()
            },
            self.net.dials(own),
        );
        let state = insist(&env, || member.first_state(&opened.state)).await?;
        opened.keep_members(state, own, "it was not found");
        let calls = self.calls.clone().filter(|calls| !calls.are_over());
        let forward = match &calls {
            Some(_) => Some(edge::forward(&env, &self.net, &member)?),
            None => None,
        };
        let host = Arc::new(ClusterHost {
            start: self,
            member: member.clone(),
            pool: OnceLock::new(),
            openings: Mutex::default(),
            forward: Mutex::new(forward.clone()),
        });
        let settings = PoolSettings {
            segments: segment_settings(&host.start.shape),
            rebuild_delay: Duration::from_millis(host.start.shape.rebuild_delay_ms),
            rebuild_bytes_per_second: 0,
            scrub_bytes_per_second: 0,
        };
        let truth = Arc::new(MapTruth::new(map, own));
        let pool = Pool::new(env.clone(), settings, host.clone(), truth, opened);
        // The only place that sets it.
        let _ = host.pool.set(Arc::downgrade(&pool));
        pool.publish();
        let server = Server::new(
            env.clone(),
            identity,
            ServeSettings::default(),
            Arc::new(OwnDisks {
                pool: Arc::downgrade(&pool),
                promises: host.start.promises.clone(),
            }),
            member.peers.clone(),
        );
        let spawner = env.spawner.clone();
        let listener = Arc::new(move |_, stream| {
            let server = server.clone();
            let serving = async move {
                let ended = server.serve(Connection::new(stream)).await;
                tracing::debug!(?ended, "a connection ended");
            };
            spawner.spawn("serving", Box::pin(serving));
        });
        host.start.net.listen(own, Port::Disks, listener);
        if let (Some(forward), Some(calls)) = (&forward, calls) {
            let start = &host.start;
            let owned = Owned {
                index: start.index,
                env: env.clone(),
                member: member.clone(),
                pool: Arc::downgrade(&pool),
                volumes: start.volumes.clone(),
                calls,
                rng: Arc::new(Mutex::new(Rng::new(env.entropy.u64()))),
            };
            Edge::start(start.index, &env, &start.net, forward, &member, owned);
        }
        member.start(&pool);
        pool.remove_deleted_volumes_later();
        // Twice: the second one says that the first is there.
        pool.renew().await;
        pool.renew().await;
        cairn_pool::executor::tend(&pool);
        if host.start.objects.is_some() {
            tiers::tend(&pool, &env);
        }
        Ok(Process {
            env,
            pool,
            member,
            host,
        })
    }

    async fn map(&self) -> Result<ClusterMap, String> {
        let (env, seen) = (&self.env, &self.high_water);
        let coordinator = || self.coordinator.clone();
        if self.is_new && self.index == 0 {
            let id = ClusterId(CLUSTER.0);
            return insist(env, || {
                ClusterMap::create_cluster(coordinator(), env.clone(), id, NAME, seen.clone())
            })
            .await;
        }
        insist(env, || {
            ClusterMap::open(coordinator(), env.clone(), NAME, seen.clone())
        })
        .await
    }

    async fn add_to(&self, map: &ClusterMap, state: &PoolState) -> Result<(), String> {
        let own = node_id(self.index);
        let record = NodeRecord {
            id: own,
            name: format!("n{}", self.index),
            internal_address: format!("node{}:7400", self.index),
            external_address: format!("node{}", self.index),
            versions: VersionRange {
                oldest: 1,
                newest: 1,
            },
            joined: self.env.clock.now(),
            draining: false,
            replaced_by: None,
            maintenance_until: None,
            weight: WEIGHT_NORMAL,
        };
        insist(&self.env, || map.add_node(&record)).await?;
        for disk in &state.disks {
            let record = DiskRecord {
                id: disk.id,
                node: own,
                label: disk.label.clone(),
                role: DiskRole::Data,
                media: None,
                draining: false,
                replaced: false,
                added: disk.added,
            };
            insist(&self.env, || map.add_disk(&record)).await?;
        }
        Ok(())
    }
}

fn segment_settings(shape: &Shape) -> SegmentSettings {
    SegmentSettings {
        shard_len_bytes: shape.space.shard_kib << 10,
        shard_len_bytes_min: shape.space.shard_kib << 10,
        cache_bytes: shape.cache_kib << 10,
        ..SegmentSettings::default()
    }
}

struct OwnDisks {
    pool: Weak<Pool>,
    promises: Arc<Promises>,
}

impl Served for OwnDisks {
    fn disks(&self) -> Vec<Arc<dyn ShardService>> {
        let pool = self.pool.upgrade();
        let disks = pool.map_or_else(Vec::new, |pool| pool.disks());
        let watched = disks.into_iter().map(|disk| self.promises.watched(disk));
        watched.collect()
    }
}

/// The pool's host, which reports each opening of a volume.
struct ClusterHost {
    start: Start,
    member: Arc<ClusterMember>,
    pool: OnceLock<Weak<Pool>>,
    /// The openings that were reported last.
    openings: Mutex<BTreeMap<VolumeId, [u8; 8]>>,
    forward: Mutex<Option<Arc<Forward>>>,
}

impl Host for ClusterHost {
    fn meta_settings(&self, _volume: &PoolVolume, copies: usize, _count: usize) -> MetaSettings {
        meta_settings(&self.start.shape, copies)
    }

    fn fs_settings(&self, volume: &PoolVolume, _count: usize) -> FsSettings {
        FsSettings {
            volume: volume.id,
            name: volume.name.to_string(),
            ..fs_settings(&self.start.env, &self.start.shape)
        }
    }

    fn publish(&self, state: &PoolState, volumes: &BTreeMap<VolumeId, VolumeService>) {
        for listed in &state.volumes {
            if let Some(VolumeService::Serving(fs)) = volumes.get(&listed.id) {
                self.tell(listed, fs);
            }
        }
        let forward = self.forward.lock().clone();
        if let Some(forward) = forward {
            let is_served = |service: &&VolumeService| matches!(service, VolumeService::Serving(_));
            let served = volumes.iter().filter(|(_, service)| is_served(service));
            forward.serve_volumes(served.map(|(id, _)| *id));
        }
    }

    fn open_tier(
        &self,
        _pool: PoolId,
        tier: &PoolTier,
    ) -> BoxFuture<Result<Arc<dyn HostTier>, String>> {
        let none = || Err(format!("there is no object store {}", tier.url));
        let opened = self
            .start
            .objects
            .as_ref()
            .map_or_else(none, LifeStore::open);
        Box::pin(std::future::ready(opened))
    }

    fn seats(&self) -> Option<Arc<dyn Seats>> {
        Some(self.member.clone())
    }
}

impl ClusterHost {
    fn tell(&self, listed: &PoolVolume, fs: &Fs) {
        let (id, opening) = (listed.id, fs.write_verifier());
        if self.openings.lock().insert(id, opening) == Some(opening) {
            return;
        }
        let start = &self.start;
        let Some(volume) = start.volumes.named(&listed.name) else {
            return;
        };
        let (member, pool) = (self.member.clone(), self.pool.get().cloned());
        // Like the edges, when an answer is ready.
        let may_answer = move || member.lease_is_valid() && is_served(pool.as_ref(), id, opening);
        volume
            .terms
            .opened(start.index, &start.env, fs.clone(), Box::new(may_answer));
    }
}

/// Whether the pool serves this opening of the volume.
fn is_served(pool: Option<&Weak<Pool>>, volume: VolumeId, opening: [u8; 8]) -> bool {
    let pool = pool.and_then(Weak::upgrade);
    let served = pool.and_then(|pool| pool.service(volume));
    matches!(served, Some(VolumeService::Serving(now)) if now.write_verifier() == opening)
}
