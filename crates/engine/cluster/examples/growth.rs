//! What a cluster's map costs as the cluster grows: bytes in etcd, a node's memory, and the time of a change.
//!
//! `cargo run --release -p cairn-cluster --example growth -- 4 16 64 252`
//!
//! Each node has 24 disks and owns 4 volumes, whose logs have a sealed and an open ensemble of three disks. The store is in
//! memory. `keys`, `etcd_kib`: what etcd holds. `follow_ms`: to read all of it. `map_kib`: what a node keeps of it.
//! `change_ms`: from a change of one volume to the view that has it, which each node makes for each change (what comes
//! within 10 ms is one). `takeover`: changes that the loss of one node makes, one for each of its volumes and its lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_base::{DiskId, DiskRole, Epoch, LogPosition, NodeId, Timestamp, VolumeId};
use cairn_cluster::map::{
    ClusterId, DiskRecord, Ensemble, HighWater, HighWaterStore, NodeRecord, OnNodeRecord, Opaque,
    Owned, Process, ProcessNonce, Sign, StateAt, UsageRecord, VersionRange, VolumeLog,
    WEIGHT_NORMAL,
};
use cairn_cluster::{ClusterMap, Coordinator, MemoryCoordinator};

const DISKS_PER_NODE: u128 = 24;
const VOLUMES_PER_NODE: u128 = 4;
const CHANGES: u32 = 20;

type Failure = Box<dyn std::error::Error>;

/// Memory of this process, in KiB.
fn resident_kib() -> Result<usize, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.ok_or("there is no VmRSS")?.trim().parse()?)
}

/// Remembers nothing: this map is never opened again.
struct Forgetful;

impl HighWaterStore for Forgetful {
    fn load(&self) -> Result<Option<HighWater>, String> {
        Ok(None)
    }

    fn store(&self, _: HighWater) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    println!("nodes  disks  volumes   keys  etcd_kib  follow_ms  map_kib  change_ms  takeover");
    for count in std::env::args().skip(1) {
        measure(count.parse()?).await?;
    }
    Ok(())
}

fn node(id: u128) -> NodeRecord {
    NodeRecord {
        id: NodeId(id),
        name: format!("storage-{id:03}"),
        internal_address: format!("10.1.{}.{}:7400", id / 250, id % 250),
        external_address: format!("10.0.{}.{}:2049", id / 250, id % 250),
        joined: Timestamp::new(1_790_000_000, 0),
        versions: VersionRange {
            oldest: 1,
            newest: 1,
        },
        draining: false,
        replaced_by: None,
        maintenance_until: None,
        weight: WEIGHT_NORMAL,
    }
}

fn disk(node: u128, number: u128) -> DiskRecord {
    DiskRecord {
        id: DiskId(node << 64 | number),
        node: NodeId(node),
        label: format!("storage-{node:03}:/srv/cairn/disk{number}"),
        role: DiskRole::Data,
        media: None,
        draining: false,
        replaced: false,
        added: Timestamp::new(1_790_000_000, 0),
    }
}

/// On the owner's disk, and on those of the next two nodes.
fn log(owned: &mut Owned, node: u128, nodes: u128) -> VolumeLog {
    let on = |at: u128| DiskId(((node + at) % nodes + 1) << 64 | (at + 1));
    let ids = [owned.new_ensemble_id(), owned.new_ensemble_id()];
    let positions = [1_u64, 4_000_000];
    let ensembles = ids
        .into_iter()
        .zip(positions)
        .enumerate()
        .map(|(at, (id, from))| Ensemble {
            id,
            from: LogPosition(from),
            to: (at == 0).then_some(LogPosition(positions[1])),
            disks: (0..3).map(on).collect(),
        });
    VolumeLog {
        ensembles: ensembles.collect(),
        state: Some(StateAt {
            id: owned.new_ensemble_id(),
            len_bytes: 9_000,
            applied: LogPosition(3_900_000),
            disks: (1..3).map(on).collect(),
        }),
    }
}

fn usage(nodes: u128, bytes: u64) -> UsageRecord {
    let on = |node| {
        (
            NodeId(node),
            OnNodeRecord {
                shards: 100_000,
                bytes,
            },
        )
    };
    UsageRecord {
        nodes: (1..=nodes).map(on).collect(),
        ..UsageRecord::default()
    }
}

async fn measure(nodes: u128) -> Result<(), Failure> {
    let world = cairn_testkit::TestWorld::new(1);
    let store = MemoryCoordinator::new(world.env.clone());
    let client: Arc<dyn Coordinator> = store.client("growth");
    let id = ClusterId(7);
    let map = ClusterMap::create_cluster(
        client.clone(),
        world.env.clone(),
        id,
        "big",
        Arc::new(Forgetful),
    )
    .await?;
    let mut changed = None;
    for number in 1..=nodes {
        map.add_node(&node(number)).await?;
        for disk_number in 1..=DISKS_PER_NODE {
            map.add_disk(&disk(number, disk_number)).await?;
        }
        let lease = client.grant_lease(Duration::from_secs(3600)).await?.id;
        let process = Process {
            node: NodeId(number),
            nonce: ProcessNonce(number),
            lease,
        };
        map.announce(process, &Sign::default()).await?;
        for volume in 0..VOLUMES_PER_NODE {
            let name = format!("volume-{number:03}-{volume}");
            let settings = Opaque(vec![7; 300]);
            let volume: VolumeId = map
                .create_volume(&name, settings, Opaque(vec![7; 200]))
                .await?;
            let mut owned = map.take_over(volume, process, Epoch(0)).await?;
            let epoch = owned.epoch;
            let log = log(&mut owned, number - 1, nodes);
            map.change_log(&mut owned, log).await?;
            map.set_usage(volume, process, epoch, &usage(nodes, 1 << 40))
                .await?;
            changed = Some((volume, process, epoch));
        }
    }
    let reply = client.range(map.keys().all()).await?;
    let stored: usize = reply
        .entries
        .iter()
        .map(|entry| entry.key.as_str().len() + entry.value.len())
        .sum();
    let keys = reply.entries.len();
    drop(reply);

    let (before, begun) = (resident_kib()?, Instant::now());
    let mut follower = map.follow().await?;
    let view = follower.view()?;
    let follow = begun.elapsed();
    let kept = resident_kib()?.saturating_sub(before);
    drop(view);

    let (volume, process, epoch) = changed.ok_or("there is no node")?;
    let mut took = Duration::ZERO;
    for at in 0..CHANGES {
        map.set_usage(volume, process, epoch, &usage(nodes, u64::from(at)))
            .await?;
        // The clock is moved by hand: what is gathered for 10 ms is not waited for.
        let clock = world.clock.clone();
        let (changed, ()) = tokio::join!(follower.changed(), async move {
            while clock.next_deadline().is_none() {
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_millis(10));
        });
        let () = changed;
        let begun = Instant::now();
        std::hint::black_box(follower.view()?);
        took += begun.elapsed();
    }
    println!(
        "{nodes:5}  {:5}  {:7}  {keys:5}  {:8}  {:9.1}  {:7}  {:9.2}  {:8}",
        nodes * DISKS_PER_NODE,
        nodes * VOLUMES_PER_NODE,
        stored >> 10,
        follow.as_secs_f64() * 1e3,
        kept,
        took.as_secs_f64() * 1e3 / f64::from(CHANGES),
        VOLUMES_PER_NODE + 1,
    );
    Ok(())
}
