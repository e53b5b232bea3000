//! Which volumes this node owns: a lease, taking what has no owner, leaving what it may not have any more.
//!
//! Owns: the decision when a volume is taken, left and given away, as a state machine without I/O; in files of their own who of
//! several nodes takes a volume first (`line`), the life of the node's lease (`lease`), and what carries decisions out (`run`).
//! Must not know: how a volume is opened (the pool), what the map looks like in etcd.
//!
//! Nodes do not talk about who takes what. All see the same map, and find the same place for each volume that has no owner
//! (`balance`): the node with the least load takes it at once, the others each a while later, if nobody has. Two that try
//! together are told apart by the map's transaction.

mod lease;
mod line;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{Backoff, NodeId, Timestamp, VolumeId};
use cairn_cluster::Revision;
use cairn_cluster::map::{MapView, Process, ProcessNonce};

use crate::balance::{Loads, Reason, Tolerance, takes};
use crate::state::maintenance_of;
use line::{copied_through, line, wanted_at};

/// Each node that stands further behind waits so much longer before it takes a volume that has no owner.
const STAGGER: Duration = Duration::from_millis(1500);
/// A volume that could not be opened here is left to others for so long, at first and at most.
const REST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// A volume that this node gave away for the load's sake and has again, since nobody else could take it, stays for so long.
const GIVEN_IN_VAIN: Duration = Duration::from_secs(600);
/// A node that is to get a volume has so long to get ready for it, before it gets it all the same: clients are served meanwhile.
const PREPARE_MAX: Duration = Duration::from_secs(20);

/// The state of a volume that this node does not serve.
#[derive(Clone, Copy)]
struct UnservedVolume {
    /// Since when nobody owns it.
    free_since: Duration,
}

/// A volume that could not be taken, or was given away.
#[derive(Clone, Copy)]
struct Resting {
    until: Duration,
    pauses: Backoff,
    was_given: bool,
}

/// How patient a node is before it gives volumes away for the load's sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// After nodes or volumes came or went,
    pub settled: Duration,
    /// and after any volume changed its owner.
    pub pause: Duration,
}

/// Which nodes and volumes there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Crew {
    /// Processes, so that one that started again counts as one that came.
    alive: Vec<(NodeId, ProcessNonce)>,
    takers: Vec<NodeId>,
    volumes: Vec<VolumeId>,
}

/// The loop's own memory.
#[derive(Clone, Default)]
pub(crate) struct Ownership {
    waiting: BTreeMap<VolumeId, UnservedVolume>,
    resting: BTreeMap<VolumeId, Resting>,
    /// The crew that was seen last, and since when it is so.
    crew: (Crew, Duration),
    owners: (Vec<Option<NodeId>>, Duration),
    /// Volumes that were given away for the load's sake, and when.
    given: BTreeMap<VolumeId, Duration>,
    /// Volumes of this node that another one is to get at once.
    going: BTreeMap<VolumeId, Going>,
}

/// A volume that another node gets ready for.
#[derive(Clone, Copy, Debug)]
struct Going {
    since: Duration,
    shipped: Shipped,
}

/// Whether other nodes have the metadata of a volume as it was when it began to go: the next owner has little to replay then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shipped {
    No,
    Begun,
    /// It is in the map of this revision.
    At(Revision),
}

/// The next step with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Take,
    /// Somebody else owns it, or nobody does: it was this node's.
    Leave,
    /// This node owns it and cannot open it, for want of its key, which may have been erased while it was taken.
    GiveUp,
}

/// How a volume is on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    Served,
    Closed,
    /// Closed, and this node cannot open it for want of its key.
    Locked,
}

impl Ownership {
    /// What to do with a volume that the map has.
    ///
    /// `now` counts; `today` is the clock of the wall, by which operators say how long a node is away. `place` is where the
    /// volume should go if nobody owns it.
    fn step(
        &mut self,
        (now, today): (Duration, Timestamp),
        view: &MapView,
        (id, place): (VolumeId, Option<NodeId>),
        me: Process,
        here: Here,
    ) -> Step {
        let is_served = here == Here::Served;
        let owner = view
            .volumes
            .get(&id)
            .and_then(|volume| volume.owner.as_ref());
        match owner.map(|owner| &owner.value) {
            Some(owner) if owner.node == me.node => {
                self.waiting.remove(&id);
                let is_own = owner.process == me.nonce || planted::is(Bug::OwnerProcessNotCompared);
                match is_served && is_own {
                    true => Step::Nothing,
                    // Of an earlier process of this node, or taken and not opened.
                    false if is_served => Step::Leave,
                    false if here == Here::Locked => Step::GiveUp,
                    false => self.unless_resting(now, id),
                }
            }
            Some(_) => {
                self.waiting.remove(&id);
                // Others have it: if they lose it, this node is as good as any.
                if self.is_left_to_others(id) {
                    self.resting.remove(&id);
                }
                match is_served {
                    true => Step::Leave,
                    false => Step::Nothing,
                }
            }
            None if is_served => Step::Leave,
            // It was removed.
            None if !view.nodes.contains_key(&me.node) => Step::Nothing,
            None if here == Here::Locked => Step::Nothing,
            None => {
                let waiting = self
                    .waiting
                    .entry(id)
                    .or_insert(UnservedVolume { free_since: now });
                let free_for = now.saturating_sub(waiting.free_since);
                let line = line(view, id, today, place);
                let place = line.iter().position(|node| *node == me.node);
                // A node whose own sign of life is not in the map yet, or all of whose disks leave, comes last.
                let place = place.unwrap_or(line.len() + 1);
                let is_due = free_for >= STAGGER * u32::try_from(place).unwrap_or(u32::MAX);
                let preferred = view.volumes.get(&id).and_then(|state| state.preferred);
                // The others give it back to this node as soon as they have it.
                let is_wanted_here = place == 0 && preferred == Some(me.node);
                match is_due {
                    true if is_wanted_here && self.is_left_to_others(id) => Step::Take,
                    true => self.unless_resting(now, id),
                    false => Step::Nothing,
                }
            }
        }
    }

    /// Whether this node gave the volume away lately, and could open it.
    fn is_left_to_others(&self, id: VolumeId) -> bool {
        self.resting
            .get(&id)
            .is_some_and(|resting| resting.was_given)
    }

    fn unless_resting(&self, now: Duration, id: VolumeId) -> Step {
        match self
            .resting
            .get(&id)
            .is_some_and(|resting| resting.until > now)
        {
            true => Step::Nothing,
            false => Step::Take,
        }
    }

    pub(crate) fn note_failed(&mut self, now: Duration, id: VolumeId) {
        let before = self.resting.get(&id).map(|resting| resting.pauses);
        let mut pauses = before.unwrap_or(REST);
        let until = now.saturating_add(pauses.pause());
        let failed = Resting {
            until,
            pauses,
            was_given: false,
        };
        self.resting.insert(id, failed);
    }

    pub(crate) fn note_taken(&mut self, id: VolumeId) {
        self.resting.remove(&id);
        self.waiting.remove(&id);
    }

    /// Leaves a volume to others for a while.
    pub(crate) fn rest(&mut self, now: Duration, id: VolumeId, pause: Duration) {
        let given = Resting {
            until: now.saturating_add(pause),
            pauses: REST,
            was_given: true,
        };
        self.resting.insert(id, given);
    }

    /// The volume to give to another node: at once what an operator wants elsewhere or what this node should not have, and
    /// for the load's sake when all has been as it is for a while. One volume at a time in the whole cluster: all nodes find
    /// the same move.
    fn next_to_give(
        &mut self,
        (now, today): (Duration, Timestamp),
        view: &MapView,
        me: NodeId,
        pace: Pace,
    ) -> Option<VolumeId> {
        let owner = |id: &VolumeId| {
            let state = view.volumes.get(id)?;
            state.owner.as_ref().map(|owner| owner.value.node)
        };
        let mine = view.volumes.keys().filter(|id| owner(id) == Some(me));
        let wanted = mine.filter_map(|id| Some((*id, wanted_at(view, *id, today, me)?)));
        let wanted: BTreeMap<VolumeId, NodeId> = wanted.collect();
        self.going.retain(|id, _| wanted.contains_key(id));
        for (id, to) in &wanted {
            let going = self.going.entry(*id).or_insert(Going {
                since: now,
                shipped: Shipped::No,
            });
            let is_over = now.saturating_sub(going.since) >= PREPARE_MAX;
            if is_over || going.is_prepared(view, *id, *to) {
                return Some(*id);
            }
        }
        if !wanted.is_empty() {
            return None;
        }
        let crew = Crew::of(view, today);
        if self.crew.0 != crew {
            self.crew = (crew, now);
        }
        let owners: Vec<_> = view.volumes.keys().map(owner).collect();
        if self.owners.0 != owners {
            self.owners = (owners, now);
        }
        let is_over = |since: Duration, wait: Duration| now.saturating_sub(since) >= wait;
        if !is_over(self.crew.1, pace.settled) || !is_over(self.owners.1, pace.pause) {
            return None;
        }
        let are_owned = self.owners.0.iter().all(Option::is_some);
        if !are_owned || is_missed(view, today) {
            return None;
        }
        self.given
            .retain(|_, at| now.saturating_sub(*at) < GIVEN_IN_VAIN);
        let mut loads = Loads::of(view, today);
        for volume in &mut loads.volumes {
            volume.is_pinned |= self.given.contains_key(&volume.volume);
        }
        let next = loads.next_move(Tolerance::Tenth)?;
        if next.from != me {
            return None;
        }
        // A node that lacks memory does not wait for a window.
        if next.reason != Reason::Memory && !is_window_open(view, today) {
            return None;
        }
        tracing::info!(?next, "a volume moves to balance the load");
        self.given.insert(next.volume, now);
        Some(next.volume)
    }

    /// Volumes whose metadata other nodes are to have before one of them gets it. Each once.
    fn take_shipping(&mut self) -> Vec<VolumeId> {
        let going = self.going.iter_mut();
        let new = going.filter(|(_, going)| going.shipped == Shipped::No);
        let begun = new.map(|(id, going)| {
            going.shipped = Shipped::Begun;
            *id
        });
        begun.collect()
    }

    fn note_shipped(&mut self, id: VolumeId, at: Revision) {
        if let Some(going) = self.going.get_mut(&id) {
            going.shipped = Shipped::At(at);
        }
    }
}

impl Going {
    /// Whether the next owner has what of the metadata it can have, as far as the map says.
    fn is_prepared(&self, view: &MapView, id: VolumeId, to: NodeId) -> bool {
        let Some(through) = copied_through(view, id) else {
            return true;
        };
        let prepared = view
            .alive
            .get(&to)
            .and_then(|to| to.value.prepared.get(&id));
        let is_shipped = matches!(self.shipped, Shipped::At(at) if view.revision >= at);
        is_shipped && prepared.is_some_and(|prepared| *prepared >= through)
    }
}

impl Crew {
    fn of(view: &MapView, today: Timestamp) -> Self {
        let alive = view.alive.iter();
        Self {
            alive: alive
                .map(|(node, alive)| (*node, alive.value.process))
                .collect(),
            takers: view
                .alive
                .keys()
                .copied()
                .filter(|node| takes(view, *node, today))
                .collect(),
            volumes: view.volumes.keys().copied().collect(),
        }
    }
}

/// Whether what can wait may be done now. A window that cannot be read holds nothing up.
fn is_window_open(view: &MapView, today: Timestamp) -> bool {
    let maintenance = view.maintenance.as_ref();
    let maintenance = maintenance.and_then(|record| maintenance_of(&record.value).ok());
    maintenance.is_none_or(|maintenance| maintenance.is_open(today))
}

/// Whether a node is away that should be back: what it had would move twice. One that leaves for good is not missed.
fn is_missed(view: &MapView, today: Timestamp) -> bool {
    view.nodes.values().any(|record| {
        let record = &record.value;
        let is_away = !view.alive.contains_key(&record.id) && !record.draining;
        is_away || record.maintenance_left(today).is_some()
    })
}
