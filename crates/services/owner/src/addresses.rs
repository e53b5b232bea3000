//! Which node should have which address of the cluster's pools, and what this node has to do for that.
//!
//! Owns: where addresses belong, when they move, the order of the steps by which one comes and goes.
//! Must not know: how an address is put on an interface, transactions.
//!
//! An address has a home among the nodes, and is there while that node lives and stays. Else it is at another node, so that all have
//! equally many. Nodes do not talk about that: each finds the same places in the same map, and who holds an address is told by one
//! key, which is there once ([`cairn_cluster::map::ClusterMap::take_address`]).
//!
//! ```text
//!            it belongs here, and nobody has it           it belongs elsewhere, or to no pool
//!   absent ------------------- Take -------------> held ------------> going ------ Drop, once it has gone ------> leaving
//!      ^                                             |                  |                                           |
//!      |                                             | another one has it, or the lease is over                     |
//!      +------------------- Drop --------------------+------------------+                                           |
//!      +------------------------------------ Leave, once it is certain ---------------------------------------------+
//! ```
//!
//! While an address is going nobody else may hold it: it is still on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{NodeId, Timestamp};
use cairn_cluster::Revision;
use cairn_cluster::map::{AliveRecord, MapView, NodeRecord, Process, ProcessNonce};
use rustc_hash::FxHasher;

/// A node that came gets addresses when it has lived for so long: one that comes and goes must not carry them to and fro.
pub const STEADY_AFTER: Duration = Duration::from_secs(30);

/// What a node is to addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has lived for a while, and stays.
    Steady,
    /// It came only now: it keeps what it has, and gets something if there is no other node.
    New,
    /// It drains or is in maintenance: it has something if there is no other node.
    Leaving,
}

/// A node that is there.
#[derive(Clone, Debug)]
struct Taker {
    standing: Standing,
    /// Addresses that it could not put on an interface.
    unfit: BTreeSet<IpAddr>,
}

/// What decides where the addresses of one pool belong.
#[derive(Clone, Debug, Default)]
struct Scene {
    /// Nodes that addresses have their homes at, in order.
    homes: Vec<NodeId>,
    takers: BTreeMap<NodeId, Taker>,
    /// In the pool's order.
    addresses: Vec<IpAddr>,
    /// The node that the first address has its home at.
    first_home: usize,
    holders: BTreeMap<IpAddr, NodeId>,
}

impl Scene {
    fn home(&self, index: usize) -> Option<NodeId> {
        let at = (self.first_home + index).checked_rem(self.homes.len())?;
        self.homes.get(at).copied()
    }

    /// Nodes that may have addresses, and of these the ones that may get more.
    fn keepers_and_takers(&self) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let of = |standings: &[Standing]| -> BTreeSet<NodeId> {
            let takers = self.takers.iter();
            let found = takers.filter(|(_, taker)| standings.contains(&taker.standing));
            found.map(|(node, _)| *node).collect()
        };
        let tiers: [(&[Standing], &[Standing]); 3] = [
            (&[Standing::Steady, Standing::New], &[Standing::Steady]),
            (&[Standing::New], &[Standing::New]),
            (&[Standing::Leaving], &[Standing::Leaving]),
        ];
        let tiers = tiers.map(|(keep, take)| (of(keep), of(take)));
        let found = tiers.into_iter().find(|(_, take)| !take.is_empty());
        found.unwrap_or_default()
    }

    fn is_fit(&self, node: NodeId, address: IpAddr) -> bool {
        let taker = self.takers.get(&node);
        let may = |taker: &Taker| {
            !taker.unfit.contains(&address) || planted::is(Bug::UnfitNodeGetsAddress)
        };
        taker.is_some_and(may)
    }

    /// Where each address belongs: at home if it can; else where it is, unless another node has two fewer; else at the node that
    /// has the fewest, of several that with the lowest id. Of no node left, nowhere.
    fn places(&self) -> BTreeMap<IpAddr, NodeId> {
        let (keepers, takers) = self.keepers_and_takers();
        let mut counts: BTreeMap<NodeId, usize> = keepers.iter().map(|node| (*node, 0)).collect();
        let mut places = BTreeMap::new();
        let mut place = |counts: &mut BTreeMap<NodeId, usize>, address, node| {
            if let Some(node) = places.insert(address, node) {
                counts.entry(node).and_modify(|count| *count -= 1);
            }
            *counts.entry(node).or_default() += 1;
        };
        let mut guests = Vec::new();
        for (index, address) in self.addresses.iter().enumerate() {
            let is_held_by = |node: NodeId| self.holders.get(address) == Some(&node);
            let at_home = self.home(index).filter(|home| {
                let may = takers.contains(home) || keepers.contains(home) && is_held_by(*home);
                may && self.is_fit(*home, *address)
            });
            match at_home {
                Some(home) => place(&mut counts, *address, home),
                None => guests.push(*address),
            }
        }
        let (held, free): (Vec<IpAddr>, Vec<IpAddr>) =
            guests.iter().copied().partition(|address| {
                let holder = self.holders.get(address);
                holder.is_some_and(|it| keepers.contains(it) && self.is_fit(*it, *address))
            });
        for address in &held {
            place(&mut counts, *address, self.holders[address]);
        }
        let fewest = |counts: &BTreeMap<NodeId, usize>, may: &dyn Fn(NodeId) -> bool| {
            let able = counts.iter().filter(|(node, _)| may(**node));
            let fewest = able.min_by_key(|(node, count)| (**count, **node));
            fewest.map(|(node, count)| (*node, *count))
        };
        for address in &free {
            let is_fit = |node: NodeId| takers.contains(&node) && self.is_fit(node, *address);
            // Where no node could have it all of them go on trying.
            let at = fewest(&counts, &is_fit)
                .or_else(|| fewest(&counts, &|node: NodeId| takers.contains(&node)));
            if let Some((node, _)) = at {
                place(&mut counts, *address, node);
            }
        }
        // Each step makes the sum of squares smaller.
        loop {
            let step = guests.iter().find_map(|address| {
                let from = *places.get(address)?;
                let may = |node: NodeId| takers.contains(&node) && self.is_fit(node, *address);
                let (to, count) = fewest(&counts, &may)?;
                (counts.get(&from)? > &(count + 1)).then_some((*address, from, to))
            });
            let Some((address, from, to)) = step else {
                break;
            };
            counts.entry(from).and_modify(|count| *count -= 1);
            *counts.entry(to).or_default() += 1;
            places.insert(address, to);
        }
        places
    }
}

/// The node that the first address of a pool has its home at: pools of few addresses should not all begin at the same one.
fn first_home(pool: &str) -> usize {
    let mut hasher = FxHasher::default();
    pool.hash(&mut hasher);
    // Upper bits are mixed best.
    usize::try_from(hasher.finish() >> 40).unwrap_or(0)
}

/// Nodes that addresses have their homes at: a node that joins comes last, so that few homes change.
fn homes(view: &MapView) -> Vec<NodeId> {
    let nodes = view.nodes.values().map(|node| &node.value);
    let mut staying: Vec<&NodeRecord> = nodes.filter(|node| !node.draining).collect();
    staying.sort_by_key(|node| (node.joined, node.id));
    staying.into_iter().map(|node| node.id).collect()
}

/// The nodes at which the addresses of a pool have their homes, by address; empty for a pool that is not there.
pub fn address_homes(view: &MapView, pool: &str) -> BTreeMap<IpAddr, NodeId> {
    let Some(record) = view.address_pools.get(pool) else {
        return BTreeMap::new();
    };
    let scene = Scene {
        homes: homes(view),
        first_home: first_home(pool),
        ..Scene::default()
    };
    let addresses = record.value.addresses.iter().enumerate();
    let homes = addresses.filter_map(|(index, address)| Some((*address, scene.home(index)?)));
    homes.collect()
}

/// The process of a node that has an address now and lives.
pub fn address_holder(view: &MapView, address: IpAddr) -> Option<NodeId> {
    let holder = &view.address_holders.get(&address)?.value;
    let alive = &view.alive.get(&holder.node)?.value;
    (alive.process == holder.process).then_some(holder.node)
}

/// The next step with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressStep {
    /// It has to go from this machine, if it is here: [`AddressDesk::note_gone`].
    Drop(IpAddr),
    /// Others may hold it. After a [`Self::Drop`], once that is done: else not now.
    Leave(IpAddr),
    /// It is to be this node's.
    Take(IpAddr),
    /// This node holds it: it has to be on this machine.
    Keep(IpAddr),
}

impl AddressStep {
    pub fn address(self) -> IpAddr {
        match self {
            Self::Drop(it) | Self::Leave(it) | Self::Take(it) | Self::Keep(it) => it,
        }
    }
}

/// How an address is at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// Since this revision of the map: an older view does not know of it.
    Held(Revision),
    /// It was held since this revision, and has to go from this machine.
    Going(Revision),
    /// It has gone from this machine, and others may not know yet that they can have it.
    Leaving,
}

/// What this node has of the cluster's addresses. Does no I/O; the caller takes the steps, in their order.
#[derive(Debug, Default)]
pub struct AddressDesk {
    process: Option<ProcessNonce>,
    holds: BTreeMap<IpAddr, Hold>,
    /// Since when each process of another node was seen.
    seen: BTreeMap<NodeId, (ProcessNonce, Duration)>,
}

impl AddressDesk {
    /// An address of a pool was taken, by a change that is in the map at this revision or before.
    pub fn note_taken(&mut self, address: IpAddr, at: Revision) {
        self.holds.insert(address, Hold::Held(at));
    }

    /// An address that had to go is not on this machine any more, for certain.
    pub fn note_gone(&mut self, address: IpAddr) {
        if let Some(hold) = self.holds.get_mut(&address)
            && matches!(hold, Hold::Going(_))
        {
            *hold = Hold::Leaving;
        }
    }

    /// Others can hold an address, for certain.
    pub fn note_left(&mut self, address: IpAddr) {
        self.holds.remove(&address);
    }

    /// Addresses that this node holds, and that are on this machine.
    pub fn held(&self) -> Vec<IpAddr> {
        let holds = self.holds.iter();
        let held = holds.filter(|(_, hold)| matches!(hold, Hold::Held(_) | Hold::Going(_)));
        held.map(|(address, _)| *address).collect()
    }

    /// The steps of a node that stops: all that it holds goes, and it takes nothing more.
    pub fn leave_all(&mut self) -> Vec<AddressStep> {
        let mut steps = Vec::new();
        for (address, hold) in &mut self.holds {
            if let Hold::Held(since) | Hold::Going(since) = *hold {
                *hold = Hold::Going(since);
                steps.push(AddressStep::Drop(*address));
            }
            steps.push(AddressStep::Leave(*address));
        }
        steps
    }

    /// The steps that follow from the map. `own`: this process, while its lease is valid. `now` counts suspended time; `today` is the
    /// clock of the wall.
    pub fn steps(
        &mut self,
        (now, today): (Duration, Timestamp),
        view: &MapView,
        own: Option<Process>,
    ) -> Vec<AddressStep> {
        let mut steps = Vec::new();
        let nonce = own.map(|own| own.nonce);
        if self.process != nonce && !planted::is(Bug::AddressKeptOverLease) {
            // What another process of this node held, or this one under an earlier lease, is not this one's.
            steps.extend(self.held().into_iter().map(AddressStep::Drop));
            self.holds.clear();
            self.process = nonce;
        }
        self.note_seen(now, view);
        let Some(own) = own else { return steps };
        let belongs_here = self.belongs_to(own.node, (now, today), view);
        let holder = |address: &IpAddr| view.address_holders.get(address).map(|it| it.value);
        let is_own = |address: &IpAddr| {
            holder(address).is_some_and(|it| it.node == own.node && it.process == own.nonce)
        };
        let is_lost = |address: &IpAddr, hold: &Hold| match hold {
            Hold::Held(since) | Hold::Going(since) => view.revision >= *since && !is_own(address),
            Hold::Leaving => false,
        };
        let lost: Vec<IpAddr> = self
            .holds
            .iter()
            .filter(|(address, hold)| is_lost(address, hold))
            .map(|(address, _)| *address)
            .collect();
        for address in lost {
            self.holds.remove(&address);
            steps.push(AddressStep::Drop(address));
        }
        for (address, hold) in &mut self.holds {
            match *hold {
                // One that is still here need not come again.
                Hold::Held(since) | Hold::Going(since) if belongs_here.contains(address) => {
                    *hold = Hold::Held(since);
                    steps.push(AddressStep::Keep(*address));
                }
                Hold::Held(since) | Hold::Going(since) => {
                    *hold = Hold::Going(since);
                    steps.push(AddressStep::Drop(*address));
                    steps.push(AddressStep::Leave(*address));
                    if planted::is(Bug::AddressLeftBeforeItIsDropped) {
                        let last = steps.len() - 1;
                        steps.swap(last - 1, last);
                    }
                }
                Hold::Leaving => steps.push(AddressStep::Leave(*address)),
            }
        }
        // Of a change that was taken for not made.
        let stray = view.address_holders.keys().copied();
        let stray: Vec<IpAddr> = stray
            .filter(|it| is_own(it) && !self.holds.contains_key(it))
            .collect();
        for address in stray {
            self.holds.insert(address, Hold::Leaving);
            steps.push(AddressStep::Leave(address));
        }
        let is_free = |it: &IpAddr| holder(it).is_none() || planted::is(Bug::AddressTakenFromOther);
        let free = belongs_here
            .iter()
            .filter(|it| is_free(it) && !self.holds.contains_key(*it));
        steps.extend(free.map(|address| AddressStep::Take(*address)));
        steps
    }

    fn note_seen(&mut self, now: Duration, view: &MapView) {
        self.seen.retain(|node, _| view.alive.contains_key(node));
        for (node, alive) in &view.alive {
            let process = alive.value.process;
            let seen = self.seen.entry(*node).or_insert((process, now));
            if seen.0 != process {
                *seen = (process, now);
            }
        }
    }

    /// Whether a node has lived for a while, by the clock of the wall or by this node's own eyes: the one is wrong when clocks
    /// differ, the other begins anew with this process.
    fn is_steady(&self, (now, today): (Duration, Timestamp), alive: &AliveRecord) -> bool {
        let since = alive.since;
        let lived = today.seconds.saturating_sub(since.seconds);
        let seen = self.seen.get(&alive.node).map_or(now, |(_, seen)| *seen);
        u64::try_from(lived).is_ok_and(|lived| lived >= STEADY_AFTER.as_secs())
            || now.saturating_sub(seen) >= STEADY_AFTER
            || planted::is(Bug::NewNodeGetsAddresses)
    }

    fn belongs_to(
        &self,
        own: NodeId,
        at: (Duration, Timestamp),
        view: &MapView,
    ) -> BTreeSet<IpAddr> {
        let alive = view.alive.values().map(|alive| &alive.value);
        let takers = alive
            .filter(|alive| !alive.leaves_addresses)
            .filter_map(|alive| {
                let record = &view.nodes.get(&alive.node)?.value;
                let is_leaving = record.draining || record.maintenance_left(at.1).is_some();
                let standing = match (is_leaving, self.is_steady(at, alive)) {
                    (true, _) => Standing::Leaving,
                    (false, true) => Standing::Steady,
                    (false, false) => Standing::New,
                };
                let unfit = alive.unfit_addresses.keys().copied().collect();
                Some((alive.node, Taker { standing, unfit }))
            });
        let mut scene = Scene {
            homes: homes(view),
            takers: takers.collect(),
            ..Scene::default()
        };
        let mut found = BTreeSet::new();
        for (name, pool) in &view.address_pools {
            scene.addresses.clone_from(&pool.value.addresses);
            scene.first_home = first_home(name);
            let holders = scene.addresses.iter();
            let holders = holders.filter_map(|it| Some((*it, address_holder(view, *it)?)));
            scene.holders = holders.collect();
            let places = scene.places().into_iter();
            found.extend(places.filter(|(_, node)| *node == own).map(|(it, _)| it));
        }
        found
    }
}

#[cfg(test)]
mod tests;
