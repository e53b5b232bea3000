//! Which volumes this node owns: a lease, taking what has no owner, leaving what it may not have any more.
//!
//! Owns: the life of the node's lease, who of several nodes takes a volume first, when a volume is left.
//! Must not know: how a volume is opened (the pool), what the map looks like in etcd.
//!
//! Nodes do not talk about who takes what. All see the same map, and find the same place for each volume that has no owner
//! (`balance`): the node with the least load takes it at once, the others each a while later, if nobody has. Two that try
//! together are told apart by the map's transaction.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{Backoff, LogPosition, NodeId, Timestamp, VolumeId};
use cairn_cluster::map::{MapView, Process, ProcessNonce, VolumeState};
use cairn_cluster::{OwnedLease, Revision};
use cairn_pool::{Leave, Pool, VolumeService};
use futures_util::FutureExt;
use futures_util::future::{Either, join, join_all, select};

use crate::balance::{Loads, Reason, Tolerance, rank, takes, units, work_of};
use crate::member::{ClusterMember, Held};
use crate::reach::{Lack, Needs, Outdone, Reach, better, cuts};
use crate::state::maintenance_of;

/// Each node that stands further behind waits so much longer before it takes a volume that has no owner.
const STAGGER: Duration = Duration::from_millis(1500);
/// A volume that could not be opened here is left to others for so long, at first and at most.
const REST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// How often it is looked what there is to do when nothing changes.
const LOOK: Duration = Duration::from_millis(250);
/// A lease that is not granted is asked for again after so long, at first and at most.
const LEASE_RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(2));
/// A volume goes to a node that can serve it better when that has been so for this long: until then all have told whom
/// they do not reach.
const OUTDONE_FOR: Duration = Duration::from_secs(1);
/// It is closed for so long at most: what is missing here may be what closing needs.
const YIELD_CLOSE_MAX: Duration = Duration::from_secs(2);
/// How often it is looked for such nodes, while some do not reach one another.
const OUTDONE_LOOK: Duration = Duration::from_millis(500);
/// The store is told for so long that this node is gone; else it finds out when the lease ends.
const REVOKE_MAX: Duration = Duration::from_secs(1);
/// A node that gave a volume away leaves it to others for so long.
const GIVEN_REST: Duration = Duration::from_secs(20);

/// A volume that this node gave away for the load's sake and has again, since nobody else could take it, stays for so long.
const GIVEN_IN_VAIN: Duration = Duration::from_secs(600);
/// A node that is to get a volume has so long to get ready for it, before it gets it all the same: clients are served meanwhile.
const PREPARE_MAX: Duration = Duration::from_secs(20);
/// A takeover that takes longer than this waits for something, and keeps no other from beginning.
const TAKEOVER_SLOW: Duration = Duration::from_secs(5);

/// The state of a volume that this node does not serve.
#[derive(Clone, Copy)]
struct Waiting {
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
    waiting: BTreeMap<VolumeId, Waiting>,
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

/// How nodes stand in line for a volume: the first takes it. Those that all reach come before those that some do not.
/// Only those that are alive, take volumes, and have the volume's key, if it has one. `place`: where it should go for the
/// load's sake.
fn line(view: &MapView, volume: VolumeId, today: Timestamp, place: Option<NodeId>) -> Vec<NodeId> {
    let alive = view.alive.iter();
    let can_open = alive.filter(|(_, record)| !record.value.locked.contains(&volume));
    let there = can_open.map(|(node, _)| *node);
    let mut nodes: Vec<NodeId> = there.filter(|node| takes(view, *node, today)).collect();
    let state = view.volumes.get(&volume);
    // Of a node that is replaced, the one that takes its place.
    let heir = state.and_then(|state| {
        let owner = state.owner.as_ref()?.value.node;
        view.nodes.get(&owner)?.value.replaced_by
    });
    let preferred = state.and_then(|state| state.preferred);
    let preferred = preferred.filter(|node| nodes.contains(node)).or(heir);
    nodes.sort_by_cached_key(|node| {
        let is_preferred = preferred == Some(*node);
        let is_place = place == Some(*node);
        let rank = Reverse(rank(volume, *node));
        (cuts(view, *node), !is_preferred, !is_place, rank, *node)
    });
    nodes
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
                    .or_insert(Waiting { free_since: now });
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

/// How far the copy of a volume's state goes that counts; `None`: there is none.
fn copied_through(view: &MapView, id: VolumeId) -> Option<LogPosition> {
    let state = view.volumes.get(&id)?;
    Some(state.log.log.state.as_ref()?.applied)
}

/// The node that is to get a volume from its owner at once: where an operator wants it to be, or since all of the owner's disks
/// leave, for example.
fn wanted_at(view: &MapView, id: VolumeId, today: Timestamp, owner: NodeId) -> Option<NodeId> {
    let line = line(view, id, today, None);
    let first = line.first().copied()?;
    let preferred = view.volumes.get(&id).and_then(|state| state.preferred);
    let is_preferred = first != owner && preferred == Some(first);
    (is_preferred || !line.contains(&owner)).then_some(first)
}

/// Volumes that `me` is about to get, each with how far the copy of the state goes that it should have before.
fn coming(view: &MapView, today: Timestamp, me: NodeId) -> BTreeMap<VolumeId, LogPosition> {
    // Most stay: who stands in line for them all is not asked.
    let staying = view.alive.keys().filter(|node| takes(view, **node, today));
    let staying: BTreeSet<NodeId> = staying.copied().collect();
    let of_others = view.volumes.iter().filter_map(|(id, state)| {
        let owner = state.owner.as_ref()?.value.node;
        let alive = view.alive.get(&owner);
        let stays = alive.is_some_and(|alive| !alive.value.locked.contains(id));
        let stays = stays && staying.contains(&owner) && state.preferred != Some(me);
        (owner != me && !stays).then_some((*id, owner))
    });
    let coming = of_others.filter(|(id, owner)| wanted_at(view, *id, today, *owner) == Some(me));
    let through = coming.filter_map(|(id, _)| Some((id, copied_through(view, id)?)));
    through.collect()
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

/// How many takeovers are under way that do not wait for something.
fn under_way(taking: &BTreeMap<VolumeId, Duration>, now: Duration) -> usize {
    let begun = taking.values();
    let quick = begun.filter(|begun| now.saturating_sub(**begun) < TAKEOVER_SLOW);
    quick.count()
}

/// Volumes with those first that clients use most, as their owners told last.
fn busiest_first(view: &MapView) -> Vec<VolumeId> {
    let mut volumes: Vec<VolumeId> = view.volumes.keys().copied().collect();
    let work = |id: &VolumeId| {
        view.volumes
            .get(id)
            .map_or(0, |state| units(work_of(state)))
    };
    volumes.sort_by_cached_key(|id| (Reverse(work(id)), *id));
    volumes
}

impl ClusterMember {
    /// Runs until the node stops: one lease after the other.
    pub(crate) async fn own_volumes(self: Arc<Self>, pool: Arc<Pool>) {
        let mut pauses = LEASE_RETRY;
        while !self.is_stopping() {
            let Some(lease) = self.new_lease(&mut pauses).await else {
                continue;
            };
            pauses.reset();
            self.on_lease(&pool, &lease).await;
            if !self.is_stopping() {
                tracing::warn!(lease = %lease.id(), "this node's lease has expired: it owns nothing until it has another lease; does etcd answer?");
            }
            self.end_lease(&pool, lease).await;
        }
    }

    /// `None`: there is none, or the node stops. Without most of etcd asking for one takes seconds.
    async fn new_lease(&self, pauses: &mut Backoff) -> Option<Arc<OwnedLease>> {
        let stopped = self.told_to_stop();
        if self.is_stopping() {
            return None;
        }
        tokio::select! {
            biased;
            () = stopped => None,
            lease = self.try_new_lease(pauses) => lease,
        }
    }

    async fn try_new_lease(&self, pauses: &mut Backoff) -> Option<Arc<OwnedLease>> {
        let granted = OwnedLease::grant(
            self.env.clone(),
            Arc::clone(&self.coordinator),
            self.settings.lease,
        );
        let lease = match granted.await {
            Ok(lease) => lease,
            Err(error) => {
                tracing::warn!(%error, "this node cannot get a lease, so it owns nothing");
                self.env.clock.sleep(pauses.pause()).await;
                return None;
            }
        };
        let process = Process {
            node: self.own.node,
            nonce: ProcessNonce(self.env.entropy.u128()),
            lease: lease.id(),
        };
        let sign = self.sign(&self.view(), BTreeSet::new(), BTreeSet::new());
        if let Err(error) = self.map.announce(process, &sign).await {
            tracing::warn!(%error, "this node could not write its sign of life");
            self.env.clock.sleep(pauses.pause()).await;
            return None;
        }
        let lease = Arc::new(lease);
        self.note_lease(lease.view());
        self.hold(Some(Held {
            process,
            lease: Arc::clone(&lease),
        }));
        tracing::info!(lease = %lease.id(), "this node has a lease");
        Some(lease)
    }

    async fn on_lease(self: &Arc<Self>, pool: &Arc<Pool>, lease: &OwnedLease) {
        let mut states = lease.subscribe();
        let mut views = self.views();
        let mut ownership = Ownership::default();
        let (done, mut opened) = tokio::sync::mpsc::unbounded_channel();
        // Each since when.
        let mut taking: BTreeMap<VolumeId, Duration> = BTreeMap::new();
        let (shipping, mut shipped) = tokio::sync::mpsc::unbounded_channel();
        let mut preparing: BTreeSet<VolumeId> = BTreeSet::new();
        let (ready, mut prepared) = tokio::sync::mpsc::unbounded_channel();
        let mut told = self.sign(&self.view(), BTreeSet::new(), BTreeSet::new());
        let mut reach = Reach::default();
        let (mut outdone, mut outdone_at) = (Outdone::default(), Duration::ZERO);
        let pace = Pace {
            settled: self.settings.settled,
            pause: self.settings.moves_pause,
        };
        loop {
            if self.is_stopping() || !lease.is_valid() {
                break;
            }
            let now = self.env.clock.monotonic();
            let today = self.env.clock.now();
            while let Ok((id, result)) = opened.try_recv() {
                taking.remove(&id);
                let result: Result<(), String> = result;
                match result {
                    Ok(()) => {
                        ownership.note_taken(id);
                        self.note_taken(id);
                    }
                    Err(why) => {
                        tracing::warn!(volume = %id, why, "this volume could not be taken over");
                        ownership.note_failed(now, id);
                        self.note_failed(id, why);
                    }
                }
            }
            while let Ok((id, at)) = shipped.try_recv() {
                ownership.note_shipped(id, at);
            }
            while let Ok(id) = prepared.try_recv() {
                preparing.remove(&id);
            }
            let Some(process) = self.process() else { break };
            let due = reach.due(now, self.peers.unreached(&self.view()));
            let unreached = due.unwrap_or_else(|| told.unreached.clone());
            let sign = self.sign(&self.view(), pool.locked_volumes(), unreached);
            if sign != told {
                let announced = tokio::select! {
                    biased;
                    // Nothing may keep this node from leaving what it does not own any more.
                    _ = states.changed() => continue,
                    () = self.stopped() => continue,
                    announced = self.map.announce(process, &sign) => announced,
                };
                match announced {
                    Ok(()) => {
                        reach.note_told(sign.unreached.clone());
                        told = sign;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "other nodes do not have this node's latest report yet")
                    }
                }
            }
            let view = views.borrow_and_update().clone();
            let served = served(pool);
            let is_free = |state: &Arc<VolumeState>| state.owner.is_none();
            let places = match view.volumes.values().any(is_free) {
                true => Loads::of(&view, today).places(),
                false => BTreeMap::new(),
            };
            for id in busiest_first(&view) {
                if taking.contains_key(&id) {
                    continue;
                }
                let here = match (served.contains(&id), told.locked.contains(&id)) {
                    (true, _) => Here::Served,
                    (false, false) => Here::Closed,
                    (false, true) => Here::Locked,
                };
                let at = (id, places.get(&id).copied());
                match ownership.step((now, today), &view, at, process, here) {
                    Step::Nothing => {}
                    Step::GiveUp => {
                        let given = pin!(self.give_up(id));
                        select(given, pin!(lease.over())).await;
                    }
                    Step::Leave => {
                        tracing::warn!(volume = %id, "this node no longer owns the volume");
                        join(self.say_farewell(id), pool.disown(id, Leave::Abandon)).await;
                    }
                    // The next idle node in line takes a volume that is left for later.
                    Step::Take if under_way(&taking, now) >= self.settings.takeovers_max => {}
                    Step::Take => {
                        taking.insert(id, now);
                        self.take_later(pool, id, done.clone());
                    }
                }
            }
            let coming = coming(&view, today, self.own.node);
            self.keep_prepared(&coming.keys().copied().collect());
            let known = self.prepared();
            for (id, through) in coming {
                let is_known = known.get(&id).is_some_and(|known| *known >= through);
                let is_busy = preparing.len() >= self.settings.takeovers_max;
                if !is_known && !is_busy && !taking.contains_key(&id) && preparing.insert(id) {
                    self.prepare_later(pool, id, through, ready.clone());
                }
            }
            for id in self.asked_to_give() {
                ownership.rest(now, id, GIVEN_REST);
                self.give(pool, id, lease).await;
            }
            if now.saturating_sub(outdone_at) >= OUTDONE_LOOK {
                outdone_at = now;
                for id in served.iter().copied() {
                    let found = self.better_node(pool, &view, id);
                    if !outdone.note(now, id, found.is_some(), OUTDONE_FOR) {
                        continue;
                    }
                    let Some((node, lack)) = found else { continue };
                    tracing::warn!(
                        volume = %id, to = %node, ?lack,
                        "this node cannot reach the volume's disks, or cannot be reached; another node that can serve the volume better gets it"
                    );
                    ownership.rest(now, id, GIVEN_REST);
                    self.yield_to_others(pool, id, lack, lease).await;
                }
            }
            if taking.is_empty()
                && let Some(id) = ownership.next_to_give((now, today), &view, self.own.node, pace)
                && served.contains(&id)
            {
                tracing::info!(volume = %id, "another node gets this volume");
                ownership.rest(now, id, GIVEN_REST);
                self.give(pool, id, lease).await;
            }
            for id in ownership.take_shipping() {
                self.ship_later(pool, id, shipping.clone());
            }
            let wait = self.env.clock.sleep(LOOK);
            tokio::select! {
                // In this order, so that a simulated cluster does the same each time.
                biased;
                _ = states.changed() => {}
                _ = views.changed() => {}
                () = self.stopped() => {}
                () = self.asked() => {}
                () = wait => {}
            }
        }
        // A volume that is being opened finds that there is no lease, or is left below.
        self.hold(None);
        while !taking.is_empty() {
            let next = pin!(opened.recv());
            let next = match self.is_stopping() {
                false => next.await,
                // One that waits for etcd is opened for nobody: the pool abandons what opens while it stops.
                true => match select(next, pin!(lease.over())).await {
                    Either::Left((next, _)) => next,
                    Either::Right(_) => {
                        tracing::warn!(volumes = ?taking.keys(), "this node is stopping before it has taken these volumes over");
                        break;
                    }
                },
            };
            let Some((id, _)) = next else {
                break;
            };
            taking.remove(&id);
        }
    }

    /// What could not be got ready is got when the volume comes, as without this.
    fn prepare_later(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        id: VolumeId,
        through: LogPosition,
        done: tokio::sync::mpsc::UnboundedSender<VolumeId>,
    ) {
        let (member, pool) = (Arc::clone(self), Arc::clone(pool));
        let task = async move {
            let begun = member.env.clock.monotonic();
            let result = pool.prepare(id).await;
            let took = member.env.clock.monotonic().saturating_sub(begun);
            tracing::debug!(volume = %id, took_ms = took.as_millis(), ?result, "this node prepared for a volume");
            // The loop may have ended.
            let _ = done.send(id);
            member.note_prepared(id, through);
        };
        self.env.spawner.spawn("prepare volume", Box::pin(task));
    }

    fn ship_later(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        id: VolumeId,
        done: tokio::sync::mpsc::UnboundedSender<(VolumeId, Revision)>,
    ) {
        let (member, pool) = (Arc::clone(self), Arc::clone(pool));
        let task = async move {
            if let Err(why) = pool.ship(id).await {
                tracing::warn!(volume = %id, why, "the next owner has more to read of this volume's log");
            }
            // The loop may have ended.
            let _ = done.send((id, member.map.written()));
            member.wake();
        };
        self.env.spawner.spawn("ship volume", Box::pin(task));
    }

    fn take_later(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        id: VolumeId,
        done: tokio::sync::mpsc::UnboundedSender<(VolumeId, Result<(), String>)>,
    ) {
        let (member, pool) = (Arc::clone(self), Arc::clone(pool));
        let task = async move {
            let begun = member.env.clock.monotonic();
            let result = pool.own(id).await;
            if result.is_ok() {
                let took = member.env.clock.monotonic().saturating_sub(begun);
                tracing::info!(volume = %id, took_ms = took.as_millis(), "this node owns the volume");
            }
            // The loop may have ended.
            let _ = done.send((id, result));
        };
        self.env.spawner.spawn("take volume", Box::pin(task));
    }

    /// Closes a volume and lets another node have it. When the lease is over others may have it anyway.
    async fn give(&self, pool: &Arc<Pool>, id: VolumeId, lease: &OwnedLease) {
        self.say_farewell(id).await;
        if planted::is(Bug::GivenUpBeforeItIsClosed) {
            self.give_up(id).await;
            self.env.clock.sleep(GIVEN_REST).await;
        }
        pool.disown_before(id, Leave::Close, lease.over()).await;
        let given = pin!(self.give_up(id));
        select(given, pin!(lease.over())).await;
    }

    /// The node that can serve a volume better than this one, which owns it, and what this one lacks.
    fn better_node(
        &self,
        pool: &Arc<Pool>,
        view: &MapView,
        id: VolumeId,
    ) -> Option<(NodeId, Lack)> {
        let is_own = view.volumes.get(&id).is_some_and(|volume| {
            let owner = volume.owner.as_ref();
            owner.is_some_and(|owner| owner.value.node == self.own.node)
        });
        if !is_own {
            return None;
        }
        let needs = Needs {
            log_copies: self.log_copies_least(id),
            unreadable: |reached: &BTreeSet<NodeId>| {
                let is_reached = |node| reached.contains(&node);
                pool.store.unreadable_count(id, is_reached).unwrap_or(0)
            },
        };
        let today = self.env.clock.now();
        better(view, self.own.node, &line(view, id, today, None), &needs)
    }

    /// Leaves a volume to a node that can serve it better. Acknowledged changes are in its log.
    async fn yield_to_others(
        &self,
        pool: &Arc<Pool>,
        id: VolumeId,
        lack: Lack,
        lease: &OwnedLease,
    ) {
        let how = match lack.log_copies {
            0 => Leave::Close,
            // Pending writes find no log.
            _ => Leave::Abandon,
        };
        let over = select(lease.over().boxed(), self.env.clock.sleep(YIELD_CLOSE_MAX));
        let left = pool.disown_before(id, how, over.map(drop));
        join(self.say_farewell(id), left).await;
        let given = pin!(self.give_up(id));
        select(given, pin!(lease.over())).await;
    }

    /// After a lease: nothing is served that rested on it. A node that stops has closed its volumes, and says at once that
    /// it is gone.
    async fn end_lease(&self, pool: &Arc<Pool>, lease: Arc<OwnedLease>) {
        self.hold(None);
        let how = match lease.is_valid() {
            true => Leave::Close,
            false => {
                tracing::error!(
                    "this node's lease has expired: it serves no volume until it has another lease"
                );
                Leave::Abandon
            }
        };
        let leaving = served(pool);
        let over = || lease.over();
        let over = &over;
        let left = leaving.iter().map(|id| async move {
            if how == Leave::Close {
                let farewell = pin!(self.say_farewell(*id));
                select(farewell, pin!(over())).await;
                pool.disown_before(*id, how, over()).await;
            } else {
                join(self.say_farewell(*id), pool.disown(*id, how)).await;
            }
        });
        join_all(left).await;
        if !self.is_stopping() {
            return;
        }
        let is_valid = lease.is_valid();
        let Ok(lease) = Arc::try_unwrap(lease) else {
            return;
        };
        if is_valid {
            let told = pin!(lease.revoke());
            match select(told, self.env.clock.sleep(REVOKE_MAX)).await {
                Either::Left((Ok(()), _)) => self.note_gone(),
                Either::Left((Err(error), _)) => {
                    tracing::debug!(%error, "the lease ends by itself");
                }
                Either::Right(_) => tracing::debug!("the lease ends by itself"),
            }
        }
    }
}

fn served(pool: &Pool) -> BTreeSet<VolumeId> {
    let services = pool.services().into_iter();
    let serving = services.filter(|(_, service)| matches!(service, VolumeService::Serving(_)));
    serving.map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use cairn_base::{DiskId, DiskRole, Epoch};
    use cairn_cluster::LeaseId;
    use cairn_cluster::map::{
        AliveRecord, ChangeNonce, DiskRecord, EnsembleId, EpochRecord, LogAt, NodeRecord, Opaque,
        OwnerRecord, StateAt, VersionRange, Versioned, VolumeLog, VolumeRecord, WEIGHT_NORMAL,
    };
    use cairn_formats::settings::Maintenance;

    use super::*;
    use crate::state::maintenance_record;

    const VOLUME: VolumeId = VolumeId(1);
    const TODAY: Timestamp = Timestamp::new(100, 0);
    const PACE: Pace = Pace {
        settled: Duration::from_secs(180),
        pause: Duration::from_secs(30),
    };

    fn known<T>(value: T) -> Versioned<T> {
        let revision = Revision::ABSENT;
        Versioned { revision, value }
    }

    /// Three nodes with a disk each, all alive.
    fn view() -> MapView {
        let mut view = MapView::default();
        let now = Timestamp::new(1, 0);
        for number in 1..=3 {
            let (node, disk) = (NodeId(number), DiskId(number));
            let record = NodeRecord {
                id: node,
                name: format!("node{number}"),
                internal_address: String::new(),
                external_address: String::new(),
                joined: now,
                versions: VersionRange {
                    oldest: 1,
                    newest: 1,
                },
                draining: false,
                replaced_by: None,
                maintenance_until: None,
                weight: WEIGHT_NORMAL,
            };
            let alive = AliveRecord::new(node, ProcessNonce(number), now);
            let record_of_disk = DiskRecord {
                id: disk,
                node,
                label: String::new(),
                role: DiskRole::Data,
                media: None,
                draining: false,
                replaced: false,
                added: now,
            };
            view.nodes.insert(node, known(record));
            view.alive.insert(node, known(alive));
            view.disks.insert(disk, known(record_of_disk));
        }
        view
    }

    /// A volume without a log, owned by a process.
    fn owned(by: Process) -> VolumeState {
        VolumeState {
            record: known(VolumeRecord {
                id: VOLUME,
                name: "v".to_owned(),
                settings: Opaque(Vec::new()),
                exports: Opaque(Vec::new()),
                clones: Vec::new(),
                is_deleted: false,
            }),
            owner: Some(known(OwnerRecord {
                node: by.node,
                process: by.nonce,
                epoch: Epoch(1),
            })),
            epoch: known(EpochRecord {
                epoch: Epoch(1),
                change: ChangeNonce(1),
            }),
            log: LogAt {
                revision: Revision::ABSENT,
                log: VolumeLog {
                    ensembles: Vec::new(),
                    state: None,
                },
            },
            left: None,
            usage: None,
            reserved: None,
            address: None,
            preferred: None,
        }
    }

    /// This node's process.
    fn me() -> Process {
        Process {
            node: NodeId(1),
            nonce: ProcessNonce(1),
            lease: LeaseId(1),
        }
    }

    #[test]
    fn what_has_no_key_here_is_not_taken_and_no_claim_on_it_is_kept() {
        let mut view = view();
        let me = me();
        let later = STAGGER * 10;
        let step = |view: &MapView, here| {
            let mut ownership = Ownership::default();
            ownership.step((Duration::ZERO, TODAY), view, (VOLUME, None), me, here);
            ownership.step((later, TODAY), view, (VOLUME, None), me, here)
        };
        assert_eq!(step(&view, Here::Closed), Step::Take);
        assert_eq!(step(&view, Here::Locked), Step::Nothing);
        view.volumes.insert(VOLUME, Arc::new(owned(me)));
        assert_eq!(step(&view, Here::Closed), Step::Take);
        assert_eq!(step(&view, Here::Locked), Step::GiveUp);
        assert_eq!(step(&view, Here::Served), Step::Nothing);
    }

    /// Clients are served while the next owner gets the metadata.
    #[test]
    fn a_volume_goes_once_its_next_owner_has_its_metadata() {
        let mut view = view();
        let me = me();
        let mut state = owned(me);
        let copied = |applied| StateAt {
            id: EnsembleId {
                epoch: Epoch(1),
                counter: 1,
            },
            len_bytes: 1,
            applied: LogPosition(applied),
            disks: vec![DiskId(2)],
        };
        state.preferred = Some(NodeId(2));
        state.log.log.state = Some(copied(5));
        view.volumes.insert(VOLUME, Arc::new(state.clone()));
        let come = |view: &MapView, node| coming(view, TODAY, NodeId(node));
        assert_eq!(come(&view, 2), BTreeMap::from([(VOLUME, LogPosition(5))]));
        assert!(come(&view, 1).is_empty() && come(&view, 3).is_empty());
        let gives = |own: &mut Ownership, view: &MapView, seconds| {
            let now = Duration::from_secs(seconds);
            own.next_to_give((now, TODAY), view, NodeId(1), PACE)
        };
        let tell = |view: &mut MapView, through| {
            let to = view.alive.get_mut(&NodeId(2)).unwrap();
            to.value.prepared = BTreeMap::from([(VOLUME, LogPosition(through))]);
        };
        let mut own = Ownership::default();
        assert_eq!(gives(&mut own, &view, 0), None);
        assert_eq!(own.take_shipping(), [VOLUME]);
        assert!(own.take_shipping().is_empty(), "once");
        tell(&mut view, 5);
        assert_eq!(gives(&mut own, &view, 1), None, "a newer copy is made");
        own.note_shipped(VOLUME, Revision(7));
        assert_eq!(gives(&mut own, &view, 1), None, "this view is older");
        view.revision = Revision(7);
        state.log.log.state = Some(copied(9));
        view.volumes.insert(VOLUME, Arc::new(state.clone()));
        assert_eq!(gives(&mut own, &view, 1), None, "it has the older copy");
        // It does not wait for ever.
        assert_eq!(gives(&mut own.clone(), &view, 20), Some(VOLUME));
        tell(&mut view, 9);
        assert_eq!(gives(&mut own, &view, 1), Some(VOLUME));
        // Nor does a volume whose node is in maintenance stay there.
        state.preferred = None;
        view.volumes.insert(VOLUME, Arc::new(state.clone()));
        assert!((1..=3).all(|node| come(&view, node).is_empty()));
        let owner = view.nodes.get_mut(&NodeId(1)).unwrap();
        owner.value.maintenance_until = Some(Timestamp::new(200, 0));
        let to = line(&view, VOLUME, TODAY, None)[0];
        assert_eq!(come(&view, to.0).len(), 1);
        // Without a copy there is nothing to get.
        state.log.log.state = None;
        view.volumes.insert(VOLUME, Arc::new(state));
        assert_eq!(gives(&mut Ownership::default(), &view, 0), Some(VOLUME));
    }

    /// The lease that it had the volume under is over: others may have changed it since.
    #[test]
    fn what_an_earlier_process_of_this_node_took_is_left() {
        let mut view = view();
        let process = |nonce| Process {
            node: NodeId(1),
            nonce: ProcessNonce(nonce),
            lease: LeaseId(1),
        };
        view.volumes.insert(VOLUME, Arc::new(owned(process(1))));
        for (me, here, want) in [
            (process(1), Here::Served, Step::Nothing),
            (process(2), Here::Served, Step::Leave),
            (process(2), Here::Closed, Step::Take),
        ] {
            let at = (Duration::ZERO, TODAY);
            let step = Ownership::default().step(at, &view, (VOLUME, None), me, here);
            assert_eq!(step, want, "{here:?}");
        }
    }

    #[test]
    fn a_process_that_is_not_compared_is_noticed() {
        let test: fn() = what_an_earlier_process_of_this_node_took_is_left;
        assert!(planted::is_noticed_by(Bug::OwnerProcessNotCompared, test));
    }

    /// Else the volume goes round: others take it while this node rests, and give it back at once.
    #[test]
    fn what_was_given_away_is_taken_again_where_an_operator_wants_it() {
        let mut view = view();
        let me = me();
        let mut state = owned(me);
        (state.owner, state.preferred) = (None, Some(me.node));
        view.volumes.insert(VOLUME, Arc::new(state.clone()));
        let at = |seconds| (Duration::from_secs(seconds), TODAY);
        let mut ownership = Ownership::default();
        ownership.rest(at(0).0, VOLUME, GIVEN_REST);
        let step = ownership.step(at(1), &view, (VOLUME, None), me, Here::Closed);
        assert_eq!(step, Step::Take);
        // It could not be opened.
        ownership.note_failed(at(1).0, VOLUME);
        let step = ownership.step(at(1), &view, (VOLUME, None), me, Here::Closed);
        assert_eq!(step, Step::Nothing);
        // Nobody wants it here.
        state.preferred = None;
        view.volumes.insert(VOLUME, Arc::new(state));
        ownership.rest(at(9).0, VOLUME, GIVEN_REST);
        let step = ownership.step(at(28), &view, (VOLUME, None), me, Here::Closed);
        assert_eq!(step, Step::Nothing);
        let step = ownership.step(at(29), &view, (VOLUME, None), me, Here::Closed);
        assert_eq!(step, Step::Take);
        // Another node had it, and is lost.
        ownership.rest(at(30).0, VOLUME, GIVEN_REST);
        let others = Process {
            node: NodeId(2),
            nonce: ProcessNonce(2),
            lease: LeaseId(2),
        };
        let free = view.volumes.get(&VOLUME).cloned().unwrap();
        view.volumes.insert(VOLUME, Arc::new(owned(others)));
        let step = ownership.step(at(31), &view, (VOLUME, None), me, Here::Closed);
        assert_eq!(step, Step::Nothing);
        view.volumes.insert(VOLUME, free);
        let lost = (32..40)
            .map(|second| ownership.step(at(second), &view, (VOLUME, None), me, Here::Closed));
        assert!(lost.into_iter().any(|step| step == Step::Take));
    }

    #[test]
    fn who_has_no_key_is_not_in_line() {
        let mut view = view();
        let all = line(&view, VOLUME, TODAY, None);
        assert_eq!(all.len(), 3);
        let first = view.alive.get_mut(&all[0]).unwrap();
        first.value.locked = BTreeSet::from([VOLUME]);
        assert_eq!(line(&view, VOLUME, TODAY, None), all[1..]);
        // Of another volume it has the key.
        assert_eq!(line(&view, VolumeId(2), TODAY, None).len(), 3);
    }

    #[test]
    fn a_node_in_maintenance_gives_its_volumes_away_and_takes_none() {
        let mut view = view();
        let all = line(&view, VOLUME, TODAY, None);
        let first = view.nodes.get_mut(&all[0]).unwrap();
        first.value.maintenance_until = Some(Timestamp::new(200, 0));
        assert_eq!(line(&view, VOLUME, TODAY, None), all[1..]);
        let me = Process {
            node: all[0],
            nonce: ProcessNonce(1),
            lease: LeaseId(1),
        };
        view.volumes.insert(VOLUME, Arc::new(owned(me)));
        let gives = |today| {
            let mut ownership = Ownership::default();
            ownership.next_to_give((Duration::ZERO, today), &view, all[0], PACE)
        };
        assert_eq!(gives(TODAY), Some(VOLUME));
        // The time is over, by itself.
        assert_eq!(gives(Timestamp::new(200, 0)), None);
        assert_eq!(line(&view, VOLUME, Timestamp::new(200, 0), None), all);
        let second = view.nodes.get_mut(&all[0]).unwrap();
        second.value.maintenance_until = None;
        assert_eq!(line(&view, VOLUME, TODAY, None), all);
    }

    /// Nodes 1, 2, ... that own so many volumes.
    fn owned_by(counts: &[u32]) -> MapView {
        let mut view = view();
        let owners = (1..).zip(counts);
        let owners = owners.flat_map(|(node, count)| (0..*count).map(move |_| node));
        for (id, node) in (1..).zip(owners) {
            let by = Process {
                node: NodeId(node),
                nonce: ProcessNonce(node),
                lease: LeaseId(1),
            };
            let mut state = owned(by);
            state.record.value.id = VolumeId(id);
            view.volumes.insert(VolumeId(id), Arc::new(state));
        }
        view
    }

    fn move_to(view: &mut MapView, id: VolumeId, node: Option<NodeId>) {
        let state = Arc::make_mut(view.volumes.get_mut(&id).unwrap());
        state.owner = node.map(|node| {
            known(OwnerRecord {
                node,
                process: ProcessNonce(node.0),
                epoch: Epoch(2),
            })
        });
    }

    #[test]
    fn uneven_volumes_move_one_after_the_other_until_they_are_shared() {
        let mut view = owned_by(&[22, 9, 0]);
        let mut nodes = [1, 2, 3].map(|node| (NodeId(node), Ownership::default()));
        let mut moved = Vec::new();
        for second in 0..3600 {
            let now = Duration::from_secs(second);
            let given: Vec<VolumeId> = nodes
                .iter_mut()
                .filter_map(|(node, own)| own.next_to_give((now, TODAY), &view, *node, PACE))
                .collect();
            assert!(given.len() <= 1, "{given:?} at once");
            for id in given {
                move_to(&mut view, id, None);
                // It goes where all nodes say that it should.
                let place = Loads::of(&view, TODAY).places()[&id];
                assert_eq!(line(&view, id, TODAY, Some(place)).first(), Some(&place));
                move_to(&mut view, id, Some(place));
                moved.push(second);
            }
        }
        let count = |node: u128| {
            let owned = view.volumes.values();
            let owners = owned.filter_map(|state| state.owner.as_ref());
            owners
                .filter(|owner| owner.value.node == NodeId(node))
                .count()
        };
        assert_eq!([1, 2, 3].map(count), [11, 10, 10]);
        assert_eq!(moved.len(), 11);
        assert!(moved[0] >= PACE.settled.as_secs(), "{moved:?}");
        let pauses = moved.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(pauses.min() >= Some(PACE.pause.as_secs()), "{moved:?}");
    }

    #[test]
    fn nothing_moves_for_the_loads_sake_outside_of_the_window() {
        // 1970-01-01 was a Thursday.
        let (closed, open) = (TODAY, Timestamp::new(22 * 3600, 0));
        let mut view = owned_by(&[9, 0]);
        let maintenance = Maintenance {
            window: Some("thu:22:00-23:00".parse().unwrap()),
            ..Maintenance::default()
        };
        view.maintenance = Some(known(maintenance_record(&maintenance).unwrap()));
        let mut own = Ownership::default();
        let mut gives = |view: &MapView, today| {
            own.next_to_give((Duration::ZERO, today), view, NodeId(1), PACE);
            own.next_to_give((Duration::from_secs(3600), today), view, NodeId(1), PACE)
        };
        assert_eq!(gives(&view, closed), None);
        // Memory that is lacking waits for no window.
        let mut lacking = view.clone();
        let alive = lacking.alive.get_mut(&NodeId(1)).unwrap();
        alive.value.volumes_max = Some(3);
        assert!(gives(&lacking, closed).is_some());
        assert!(gives(&view, open).is_some());
    }

    #[test]
    fn nothing_moves_for_the_loads_sake_while_a_node_is_away() {
        let before = owned_by(&[6, 0, 0]);
        let gives = |view: &MapView| {
            let mut ownership = Ownership::default();
            let later = PACE.settled * 2;
            let mut give = |now| ownership.next_to_give((now, TODAY), view, NodeId(1), PACE);
            give(Duration::ZERO).or_else(|| give(later))
        };
        assert!(gives(&before).is_some());
        let mut view = before.clone();
        view.alive.remove(&NodeId(3));
        assert_eq!(gives(&view), None, "node 3 is away");
        view.nodes.get_mut(&NodeId(3)).unwrap().value.draining = true;
        assert!(gives(&view).is_some(), "it does not come back");
        let mut view = before.clone();
        let until = Some(Timestamp::new(200, 0));
        view.nodes
            .get_mut(&NodeId(3))
            .unwrap()
            .value
            .maintenance_until = until;
        assert_eq!(gives(&view), None, "node 3 is in maintenance");
        let mut view = before.clone();
        move_to(&mut view, VolumeId(6), None);
        assert_eq!(gives(&view), None, "a volume has no owner");
        // A node that started again.
        let mut ownership = Ownership::default();
        let mut give = |seconds, view: &MapView| {
            let now = Duration::from_secs(seconds);
            ownership.next_to_give((now, TODAY), view, NodeId(1), PACE)
        };
        assert_eq!(give(0, &before), None);
        let mut view = before.clone();
        view.alive.get_mut(&NodeId(2)).unwrap().value.process = ProcessNonce(9);
        assert_eq!(give(179, &view), None);
        assert_eq!(give(181, &view), None);
        assert!(give(179 + 180, &view).is_some());
    }

    #[test]
    fn a_node_without_weight_gives_all_away_and_stands_in_no_line() {
        let mut view = owned_by(&[3, 0, 0]);
        view.nodes.get_mut(&NodeId(1)).unwrap().value.weight = 0;
        let mut ownership = Ownership::default();
        let given = ownership.next_to_give((Duration::ZERO, TODAY), &view, NodeId(1), PACE);
        assert!(given.is_some(), "at once");
        assert!(!line(&view, VOLUME, TODAY, None).contains(&NodeId(1)));
    }

    #[test]
    fn what_came_back_is_not_given_again_and_again() {
        let view = owned_by(&[3, 0, 0]);
        let mut ownership = Ownership::default();
        let mut give = |seconds| {
            let now = Duration::from_secs(seconds);
            ownership.next_to_give((now, TODAY), &view, NodeId(1), PACE)
        };
        assert_eq!(give(0), None);
        // Nobody takes any of them.
        let given: Vec<VolumeId> = (180..700).filter_map(&mut give).collect();
        assert_eq!(given.len(), 3, "{given:?}");
        assert!(give(180 + 600).is_some());
    }

    #[test]
    fn takeovers_that_wait_keep_no_other_from_beginning() {
        let taking = BTreeMap::from([(VolumeId(1), Duration::ZERO), (VolumeId(2), REVOKE_MAX)]);
        for (now, want) in [(1, 2), (5, 1), (6, 0)] {
            assert_eq!(under_way(&taking, Duration::from_secs(now)), want);
        }
    }

    #[test]
    fn the_busiest_volumes_come_first() {
        let mut view = owned_by(&[3, 0, 0]);
        let busy = cairn_cluster::map::UsageRecord {
            work: Some(cairn_cluster::map::WorkRecord {
                operations_per_second: 512,
                bytes_per_second: 0,
            }),
            ..Default::default()
        };
        let state = Arc::make_mut(view.volumes.get_mut(&VolumeId(2)).unwrap());
        state.usage = Some(known(busy));
        assert_eq!(busiest_first(&view), [2, 1, 3].map(VolumeId));
    }
}
