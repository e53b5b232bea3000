//! Carries out what is decided of volumes while this node has a lease: they are taken, left, given away, prepared.
//!
//! Owns: the loop, and the tasks that it begins. Must not know: why a volume is taken or given (`Ownership`, `line`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{LogPosition, NodeId, VolumeId};
use cairn_cluster::map::{MapView, VolumeState};
use cairn_cluster::{OwnedLease, Revision};
use cairn_pool::{Leave, Pool, VolumeService};
use futures_util::FutureExt;
use futures_util::future::{Either, join, select};

use super::line::{coming, line};
use super::{Here, Ownership, Pace, Step};
use crate::balance::{Loads, units, work_of};
use crate::member::ClusterMember;
use crate::reach::{Lack, Needs, Outdone, Reach, better};

/// How often it is looked what there is to do when nothing changes.
const LOOK: Duration = Duration::from_millis(250);
/// A volume goes to a node that can serve it better when that has been so for this long: until then all have told whom
/// they do not reach.
const OUTDONE_FOR: Duration = Duration::from_secs(1);
/// It is closed for so long at most: what is missing here may be what closing needs.
const YIELD_CLOSE_MAX: Duration = Duration::from_secs(2);
/// How often it is looked for such nodes, while some do not reach one another.
const OUTDONE_LOOK: Duration = Duration::from_millis(500);
/// A node that gave a volume away leaves it to others for so long.
pub(super) const GIVEN_REST: Duration = Duration::from_secs(20);
/// A takeover that takes longer than this waits for something, and keeps no other from beginning.
const TAKEOVER_SLOW: Duration = Duration::from_secs(5);

impl ClusterMember {
    /// Takes and leaves volumes until the lease is over or the node stops.
    pub(super) async fn on_lease(self: &Arc<Self>, pool: &Arc<Pool>, lease: &OwnedLease) {
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
}

/// Volumes that this node serves now.
pub(super) fn served(pool: &Pool) -> BTreeSet<VolumeId> {
    let services = pool.services().into_iter();
    let serving = services.filter(|(_, service)| matches!(service, VolumeService::Serving(_)));
    serving.map(|(id, _)| id).collect()
}

/// How many takeovers are under way that do not wait for something.
pub(super) fn under_way(taking: &BTreeMap<VolumeId, Duration>, now: Duration) -> usize {
    let begun = taking.values();
    let quick = begun.filter(|begun| now.saturating_sub(**begun) < TAKEOVER_SLOW);
    quick.count()
}

/// Volumes with those first that clients use most, as their owners told last.
pub(super) fn busiest_first(view: &MapView) -> Vec<VolumeId> {
    let mut volumes: Vec<VolumeId> = view.volumes.keys().copied().collect();
    let work = |id: &VolumeId| {
        view.volumes
            .get(id)
            .map_or(0, |state| units(work_of(state)))
    };
    volumes.sort_by_cached_key(|id| (Reverse(work(id)), *id));
    volumes
}
