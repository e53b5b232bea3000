//! Which volumes should be owned by other nodes, so that all nodes have their share of the load.
//!
//! Owns: what a volume costs its owner, which moves are worth their pause, to whom volumes without an owner go.
//! Must not know: the map's keys, clocks, how a volume moves.
//!
//! Pure functions of numbers that all nodes see in the same map, so that all come to the same moves. A volume costs its owner one
//! unit for being open, and a share of as many units as there are volumes for its part of the measured work. So half of a busy
//! cluster's cost is counted and half is measured; of idle volumes only their number counts.
//!
//! A move goes from a node with more load to one that has less even with the volume, so that the larger load of the two
//! shrinks: no series of moves ends where it began. It is made if that gain is at least half of what the volume costs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use cairn_base::{NodeId, Timestamp, VolumeId};
use cairn_cluster::map::{MapView, VolumeState, WEIGHT_NORMAL, WorkRecord};
use rustc_hash::FxHasher;

/// What an open volume without work costs.
const UNIT: u64 = 1_000_000;
/// So many bytes are as much work as an operation.
const OPERATION_BYTES: u64 = 64 << 10;
/// Below so much work a second of each volume, on average, work counts less: what a few requests need is nobody's load.
const WORK_LEAST: u64 = 100;

/// A node that may own volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLoad {
    pub node: NodeId,
    /// Its share beside others; above 0.
    pub weight: u32,
    /// Volumes that its memory limit holds, if that is known.
    pub volumes_max: Option<usize>,
}

/// A volume that some node owns, or nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeLoad {
    pub volume: VolumeId,
    pub owner: Option<NodeId>,
    pub work: WorkRecord,
    /// Nodes that cannot open it.
    pub locked_on: BTreeSet<NodeId>,
    /// An operator said where it should be.
    pub is_pinned: bool,
}

/// What a balance is computed of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// Those alone that take volumes: alive, staying, with a disk and a weight.
    pub nodes: Vec<NodeLoad>,
    pub volumes: Vec<VolumeLoad>,
}

/// Why a volume should move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its owner has more open volumes than its memory limit holds.
    Memory,
    /// Its owner has more volumes than the other node would have, by their weights.
    Count,
    /// Its owner does more work.
    Work,
}

/// What a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub volumes: usize,
    /// In percent of what it would have if the load was spread by weights alone.
    pub load_percent: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub volume: VolumeId,
    pub from: NodeId,
    pub to: NodeId,
    pub reason: Reason,
    /// What both nodes have before it, and after it.
    pub from_share: [Share; 2],
    pub to_share: [Share; 2],
}

/// How much a difference has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// Of somebody who asks: as even as it gets.
    None,
    /// By itself: what differs by less than a tenth of the mean load stays, since work comes and goes.
    Tenth,
}

impl Loads {
    /// Of the map.
    pub fn of(view: &MapView, today: Timestamp) -> Self {
        let alive = view.alive.iter();
        let takers = alive.filter(|(node, _)| takes(view, **node, today));
        let nodes = takers.map(|(node, alive)| NodeLoad {
            node: *node,
            weight: view.nodes.get(node).map_or(0, |record| record.value.weight),
            volumes_max: alive.value.volumes_max.map(|most| most as usize),
        });
        let volumes = view.volumes.iter();
        Self {
            nodes: nodes.collect(),
            volumes: volumes
                .map(|(id, state)| VolumeLoad::of(view, *id, state))
                .collect(),
        }
    }

    /// What each volume costs its owner.
    fn costs(&self) -> BTreeMap<VolumeId, u64> {
        let count = self.volumes.len() as u64;
        let work = |volume: &VolumeLoad| units(volume.work);
        let total: u64 = self.volumes.iter().map(work).sum();
        let whole = total.max(count.saturating_mul(WORK_LEAST)).max(1);
        let cost = |volume: &VolumeLoad| {
            let part = u128::from(UNIT * count) * u128::from(work(volume)) / u128::from(whole);
            UNIT + u64::try_from(part).unwrap_or(u64::MAX / 2)
        };
        let volumes = self.volumes.iter();
        volumes
            .map(|volume| (volume.volume, cost(volume)))
            .collect()
    }

    /// The moves after which the load is spread, in the order in which they are made. Each volume moves once at most.
    pub fn moves(&self, tolerance: Tolerance) -> Vec<Move> {
        let mut table = Table::of(self);
        let mut moved = BTreeSet::new();
        let mut moves = Vec::new();
        while let Some(next) = table.best(&moved, tolerance) {
            table.apply(&next);
            moved.insert(next.volume);
            moves.push(next);
        }
        moves
    }

    /// The first of these moves.
    pub fn next_move(&self, tolerance: Tolerance) -> Option<Move> {
        Table::of(self).best(&BTreeSet::new(), tolerance)
    }

    /// What each node has now that takes volumes.
    pub fn shares(&self) -> BTreeMap<NodeId, Share> {
        let table = Table::of(self);
        let nodes = table.held.keys().copied();
        nodes.map(|node| (node, table.share(node))).collect()
    }

    /// To which node each volume should go that nobody owns: the costliest first, each to the one with the least load.
    pub fn places(&self) -> BTreeMap<VolumeId, NodeId> {
        let mut table = Table::of(self);
        let volumes = self.volumes.iter();
        let mut free: Vec<&VolumeLoad> = volumes.filter(|it| it.owner.is_none()).collect();
        free.sort_by_key(|volume| (Reverse(table.cost(volume)), volume.volume));
        let mut places = BTreeMap::new();
        for volume in free {
            let cost = table.cost(volume);
            let takers = table.held.iter();
            let takers = takers.filter(|(node, _)| !volume.locked_on.contains(*node));
            let first = takers.min_by_key(|(node, held)| {
                let rank = Reverse(rank(volume.volume, **node));
                (held.is_full(), held.with(cost), rank, **node)
            });
            let Some(node) = first.map(|(node, _)| *node) else {
                continue;
            };
            if let Some(held) = table.held.get_mut(&node) {
                held.add(cost);
            }
            places.insert(volume.volume, node);
        }
        places
    }
}

impl VolumeLoad {
    fn of(view: &MapView, id: VolumeId, state: &VolumeState) -> Self {
        let alive = view.alive.iter();
        let without = alive.filter(|(_, alive)| alive.value.locked.contains(&id));
        Self {
            volume: id,
            owner: state.owner.as_ref().map(|owner| owner.value.node),
            work: work_of(state),
            locked_on: without.map(|(node, _)| *node).collect(),
            is_pinned: state.preferred.is_some(),
        }
    }
}

/// The work of a volume as its owner told last.
pub(crate) fn work_of(state: &VolumeState) -> WorkRecord {
    let usage = state.usage.as_ref();
    usage.and_then(|usage| usage.value.work).unwrap_or_default()
}

/// As one number.
pub(crate) fn units(work: WorkRecord) -> u64 {
    work.operations_per_second
        .saturating_add(work.bytes_per_second / OPERATION_BYTES)
}

/// Whether a node with a sign of life may own volumes: it stays, is not in maintenance, has a disk that stays, and a weight.
pub(crate) fn takes(view: &MapView, node: NodeId, today: Timestamp) -> bool {
    let record = view.nodes.get(&node).map(|record| &record.value);
    let stays = record.is_some_and(|record| {
        !record.draining && record.maintenance_left(today).is_none() && record.weight > 0
    });
    let mut disks = view.disks.values().map(|disk| &disk.value);
    stays && disks.any(|disk| disk.node == node && !disk.draining)
}

/// A rank of a node for a volume, computed alike on every node: the node with the higher rank takes a volume first when
/// nothing else tells two nodes apart.
///
/// All bits are mixed at the end: the hasher alone adds and multiplies, so that of all volumes the nodes would stand in a circle in
/// the same order, and each would be first for as many as its distance from the next is long (seen: three nodes with 22, 9 and 0).
pub(crate) fn rank(volume: VolumeId, node: NodeId) -> u64 {
    let mut hasher = FxHasher::default();
    (volume.0, node.0).hash(&mut hasher);
    let number = hasher.finish();
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// What a node has while moves are looked for.
#[derive(Clone, Copy, Debug)]
struct Holding {
    count: usize,
    cost: u64,
    weight: u32,
    volumes_max: Option<usize>,
}

impl Holding {
    /// Its load, as one of the usual weight would feel it.
    fn relative(&self, cost: u64) -> u64 {
        let felt = u128::from(cost) * u128::from(WEIGHT_NORMAL) / u128::from(self.weight.max(1));
        u64::try_from(felt).unwrap_or(u64::MAX)
    }

    fn load(&self) -> u64 {
        self.relative(self.cost)
    }

    fn with(&self, cost: u64) -> u64 {
        self.relative(self.cost.saturating_add(cost))
    }

    fn without(&self, cost: u64) -> u64 {
        self.relative(self.cost.saturating_sub(cost))
    }

    /// It has as many volumes as its memory holds.
    fn is_full(&self) -> bool {
        self.volumes_max.is_some_and(|most| self.count >= most)
    }

    fn is_beyond(&self) -> bool {
        self.volumes_max.is_some_and(|most| self.count > most)
    }

    fn add(&mut self, cost: u64) {
        self.count += 1;
        self.cost = self.cost.saturating_add(cost);
    }

    fn remove(&mut self, cost: u64) {
        self.count = self.count.saturating_sub(1);
        self.cost = self.cost.saturating_sub(cost);
    }
}

/// Who has what, as moves change it.
#[derive(Clone)]
struct Table<'a> {
    loads: &'a Loads,
    costs: BTreeMap<VolumeId, u64>,
    held: BTreeMap<NodeId, Holding>,
    /// What a node of the usual weight would have.
    mean: u64,
}

impl<'a> Table<'a> {
    fn of(loads: &'a Loads) -> Self {
        let costs = loads.costs();
        let nodes = loads.nodes.iter().filter(|node| node.weight > 0);
        let mut held: BTreeMap<NodeId, Holding> = nodes
            .map(|node| {
                let holding = Holding {
                    count: 0,
                    cost: 0,
                    weight: node.weight,
                    volumes_max: node.volumes_max,
                };
                (node.node, holding)
            })
            .collect();
        for volume in &loads.volumes {
            let holding = volume.owner.and_then(|owner| held.get_mut(&owner));
            if let Some(holding) = holding {
                holding.add(costs.get(&volume.volume).copied().unwrap_or(UNIT));
            }
        }
        let whole: u64 = held.values().map(|held| held.cost).sum();
        let weights: u64 = held.values().map(|held| u64::from(held.weight)).sum();
        let mean = whole.saturating_mul(u64::from(WEIGHT_NORMAL)) / weights.max(1);
        Self {
            loads,
            costs,
            held,
            mean,
        }
    }

    fn cost(&self, volume: &VolumeLoad) -> u64 {
        self.costs.get(&volume.volume).copied().unwrap_or(UNIT)
    }

    fn share(&self, node: NodeId) -> Share {
        self.held
            .get(&node)
            .map_or_else(Share::default, |held| Share {
                volumes: held.count,
                load_percent: held.load().saturating_mul(100) / self.mean.max(1),
            })
    }

    /// The move that gains most; of several, from the node with most load to the one with least.
    fn best(&self, moved: &BTreeSet<VolumeId>, tolerance: Tolerance) -> Option<Move> {
        let movable = |volume: &&VolumeLoad| !volume.is_pinned && !moved.contains(&volume.volume);
        let mut best = None;
        for volume in self.loads.volumes.iter().filter(movable) {
            let owner = volume
                .owner
                .and_then(|node| Some((node, self.held.get(&node)?)));
            let Some((from, holder)) = owner else {
                continue;
            };
            let takers = self.held.iter();
            let takers = takers.filter(|(node, taker)| {
                **node != from && !taker.is_full() && !volume.locked_on.contains(*node)
            });
            for (to, taker) in takers {
                let Some((reason, gain)) = self.gain(volume, holder, taker, tolerance) else {
                    continue;
                };
                let is_forced = reason == Reason::Memory;
                let key = (
                    is_forced,
                    gain,
                    holder.load(),
                    Reverse(taker.load()),
                    Reverse((volume.volume, *to)),
                );
                if best.as_ref().is_none_or(|(best, _)| key > *best) {
                    best = Some((key, (volume.volume, from, *to, reason)));
                }
            }
        }
        let (_, (volume, from, to, reason)) = best?;
        let before = (self.share(from), self.share(to));
        let mut after = self.clone();
        let mut found = Move {
            volume,
            from,
            to,
            reason,
            from_share: [before.0; 2],
            to_share: [before.1; 2],
        };
        after.apply(&found);
        found.from_share[1] = after.share(from);
        found.to_share[1] = after.share(to);
        Some(found)
    }

    /// By how much the larger load of two nodes shrinks when a volume moves, and why it is worth it.
    fn gain(
        &self,
        volume: &VolumeLoad,
        from: &Holding,
        to: &Holding,
        tolerance: Tolerance,
    ) -> Option<(Reason, i128)> {
        let cost = self.cost(volume);
        let after = from.without(cost).max(to.with(cost));
        let gain = i128::from(from.load()) - i128::from(after);
        if from.is_beyond() {
            return Some((Reason::Memory, gain));
        }
        let least = i128::from(from.relative(cost)).div_euclid(2).max(1);
        let difference = from.load().saturating_sub(to.load());
        let is_much = match tolerance {
            Tolerance::None => true,
            Tolerance::Tenth => difference > self.mean / 10,
        };
        if gain < least || !is_much {
            return None;
        }
        let is_fewer = from.count as u64 * u64::from(to.weight)
            > (to.count as u64 + 1) * u64::from(from.weight);
        let reason = if is_fewer {
            Reason::Count
        } else {
            Reason::Work
        };
        Some((reason, gain))
    }

    fn apply(&mut self, made: &Move) {
        let cost = self.costs.get(&made.volume).copied().unwrap_or(UNIT);
        if let Some(held) = self.held.get_mut(&made.from) {
            held.remove(cost);
        }
        if let Some(held) = self.held.get_mut(&made.to) {
            held.add(cost);
        }
    }
}

#[cfg(test)]
mod tests;
