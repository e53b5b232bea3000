//! How long a cluster is at making anew what a lost node had, as it grows: a model with the rule by which shards find
//! their new disks.
//!
//! `cargo run --release -p cairn-pool --example lost_node -- 4 16 64 100 252`
//!
//! Each node has 24 disks with 2 TB in use, and owns as many volumes as any other. A node is lost. Each other one makes the
//! lost shards of its volumes anew, one after the other: it reads as many others as the code has data shards, and writes
//! to the disk that [`MoveRoom`] chooses from what it knows of all disks, which is half a second old. Nobody gets more
//! than a mover, a disk and a network card can do; what several want of one is shared evenly. `best`: if nothing had to
//! be shared. `busiest disk`: most shards that were written to one at a time. A part of the shards is simulated
//! ([`SIMULATED_SHARDS`]), and the time is that of all.

use std::collections::BTreeMap;

use cairn_base::{DiskId, NodeId};
use cairn_erasure::Code;
use cairn_segment::{DiskRoom, MoveRoom, MovingShard, TargetDisk};
use cairn_testkit::Rng;

const DISKS_PER_NODE: usize = 24;
const DISK_BYTES: f64 = 4e12;
const USED_BYTES: f64 = 2e12;
const SHARD_BYTES: u64 = 64 << 20;
const SIMULATED_SHARDS: usize = 12_000;
/// One shard at a time, in four parts of 1 MiB: what was measured on one server (docs/results/reliability.md).
const MOVER: f64 = 350e6;
const DISK: f64 = 1e9;
/// 25 Gbit/s each way.
const NETWORK: f64 = 3.1e9;
const STEP_SECONDS: f64 = 0.05;
/// Nodes tell one another that often what is free.
const HEARTBEAT_STEPS: u64 = 10;

type Failure = Box<dyn std::error::Error>;

struct Job {
    owner: usize,
    sources: Vec<usize>,
    target: usize,
    left_bytes: f64,
}

struct Cluster {
    node_count: usize,
    code: Code,
    free_bytes: Vec<f64>,
    room: MoveRoom,
    rng: Rng,
}

fn node_of(disk: usize) -> usize {
    disk / DISKS_PER_NODE
}

fn disk_id(disk: usize) -> DiskId {
    DiskId(disk as u128 + 1)
}

fn node_id(node: usize) -> NodeId {
    NodeId(node as u128 + 1)
}

impl Cluster {
    fn new(node_count: usize) -> Result<Self, Failure> {
        // As wide as `+2n` is on so many nodes.
        let code = match node_count {
            ..6 => Code::new(2, 2)?,
            6..10 => Code::new(4, 2)?,
            _ => Code::new(8, 2)?,
        };
        let mut rng = Rng::new(7);
        // Disks are never equally full.
        let free_bytes = (0..node_count * DISKS_PER_NODE)
            .map(|_| (DISK_BYTES - USED_BYTES) * (0.97 + rng.below(60) as f64 / 1000.0));
        let mut cluster = Self {
            node_count,
            code,
            free_bytes: free_bytes.collect(),
            room: MoveRoom::new([]),
            rng,
        };
        cluster.tell();
        Ok(cluster)
    }

    /// What nodes know from now on. The first node is lost.
    fn tell(&mut self) {
        let rooms = self.free_bytes.iter().enumerate().skip(DISKS_PER_NODE);
        let rooms = rooms.map(|(disk, free)| DiskRoom {
            disk: disk_id(disk),
            media: None,
            node: node_id(node_of(disk)),
            free_bytes: *free as u64,
            reserve_bytes: 0,
        });
        let places = (0..self.free_bytes.len()).map(|disk| {
            let place = TargetDisk {
                media: None,
                node: node_id(node_of(disk)),
                is_there: node_of(disk) > 0,
                stays: node_of(disk) > 0,
            };
            (disk_id(disk), place)
        });
        self.room = MoveRoom::new(rooms).among(places);
    }

    /// A shard of the lost node, with the others of its segment on other nodes.
    fn job(&mut self, owner: usize) -> Result<Job, Failure> {
        let total = usize::from(self.code.total());
        let mut nodes = vec![0];
        while nodes.len() < total {
            let node = self.rng.below(self.node_count as u64) as usize;
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        let disks = nodes.iter().map(|node| {
            let nth = self.rng.below(DISKS_PER_NODE as u64) as usize;
            node * DISKS_PER_NODE + nth
        });
        let held: Vec<DiskId> = disks.map(disk_id).collect();
        let target = self.room.target(MovingShard {
            held: &held,
            media: None,
            code: self.code,
            index: 0,
            len_bytes: SHARD_BYTES,
        });
        let target = target.ok_or("no disk has room")?.0 as usize - 1;
        self.free_bytes[target] -= SHARD_BYTES as f64;
        Ok(Job {
            owner,
            sources: nodes[1..=usize::from(self.code.data())].to_vec(),
            target,
            left_bytes: SHARD_BYTES as f64,
        })
    }
}

/// What each wants of something that has only so much for all.
#[derive(Default)]
struct Demand(BTreeMap<usize, f64>);

impl Demand {
    fn add(&mut self, of: usize, rate: f64) {
        *self.0.entry(of).or_default() += rate;
    }

    /// The part of it that can be had.
    fn share(&self, of: usize, most: f64) -> f64 {
        self.0.get(&of).map_or(1.0, |all| (most / all).min(1.0))
    }
}

/// Moves all jobs on by a step; the bytes that were written.
fn step(jobs: &mut [Job]) -> f64 {
    let (mut written, mut sent, mut received) =
        (Demand::default(), Demand::default(), Demand::default());
    for job in jobs.iter() {
        written.add(job.target, MOVER);
        sent.add(job.owner, MOVER);
        received.add(node_of(job.target), MOVER);
        received.add(job.owner, MOVER * job.sources.len() as f64);
        for source in &job.sources {
            sent.add(*source, MOVER);
        }
    }
    let mut bytes = 0.0;
    for job in jobs {
        let mut share = written.share(job.target, DISK);
        for node in job.sources.iter().chain([&job.owner]) {
            share = share.min(sent.share(*node, NETWORK));
        }
        for node in [job.owner, node_of(job.target)] {
            share = share.min(received.share(node, NETWORK));
        }
        let done = (MOVER * share * STEP_SECONDS).min(job.left_bytes);
        job.left_bytes -= done;
        bytes += done;
    }
    bytes
}

fn measure(node_count: usize) -> Result<(), Failure> {
    let mut cluster = Cluster::new(node_count)?;
    let owners = node_count - 1;
    let mut to_begin = vec![SIMULATED_SHARDS / owners; node_count];
    let simulated_bytes = (SIMULATED_SHARDS / owners * owners) as f64 * SHARD_BYTES as f64;
    let mut jobs: Vec<Job> = Vec::new();
    let (mut steps, mut done_bytes, mut busiest) = (0_u64, 0.0, 0);
    loop {
        if steps.is_multiple_of(HEARTBEAT_STEPS) {
            cluster.tell();
        }
        jobs.retain(|job| job.left_bytes > 0.0);
        for (owner, to_begin) in to_begin.iter_mut().enumerate().skip(1) {
            if *to_begin > 0 && !jobs.iter().any(|job| job.owner == owner) {
                *to_begin -= 1;
                jobs.push(cluster.job(owner)?);
            }
        }
        if jobs.is_empty() {
            break;
        }
        let mut per_disk: BTreeMap<usize, usize> = BTreeMap::new();
        for job in &jobs {
            *per_disk.entry(job.target).or_default() += 1;
        }
        busiest = busiest.max(per_disk.into_values().max().unwrap_or(0));
        done_bytes += step(&mut jobs);
        steps += 1;
    }
    let rate = done_bytes / (steps as f64 * STEP_SECONDS);
    let best = MOVER * owners as f64;
    let all_bytes = DISKS_PER_NODE as f64 * USED_BYTES;
    println!(
        "{node_count:>5}  {:>7.0}  {:>5}  {:>9.1}  {:>9.1}  {:>4.2}  {:>7.2}  {:>12}",
        node_count as f64 * all_bytes / 1e12,
        cluster.code.to_string(),
        best / 1e9,
        rate / 1e9,
        rate / best,
        all_bytes / rate / 3600.0,
        busiest,
    );
    debug_assert!((done_bytes - simulated_bytes).abs() < 1.0);
    Ok(())
}

fn main() -> Result<(), Failure> {
    println!("nodes  used_TB   code  best_GB/s  rate_GB/s  part    hours  busiest_disk");
    for count in std::env::args().skip(1) {
        measure(count.parse()?)?;
    }
    Ok(())
}
