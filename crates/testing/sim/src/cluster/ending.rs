//! The end of a run: all faults end, every volume must be served and regain its protection, and then something is lost
//! for good.
//!
//! Owns: when a cluster counts as recovered, the final losses, the judgement of each volume after them. Must not know:
//! the expected contents of a volume (`terms`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::env::Clock;
use cairn_base::{NodeId, VolumeId};
use cairn_testkit::Crash;

use super::node::{Process, node_id};
use super::run::Cluster;
use super::scenario::{Ending, Event, What};
use super::terms::OneTerm;
use super::tiers;
use super::volumes::Volume;
use crate::work::narrow;

/// After recovery a volume has an owner within this time.
const OWNER_WAIT_MAX: Duration = Duration::from_secs(300);
/// A faulty object store may keep the judge from reading everything that a new owner has; its faults end after this
/// time.
const TIER_WRONG_MAX: Duration = Duration::from_secs(100);
/// After recovery everything has its full protection within this time.
const WHOLE_WAIT_MAX: Duration = Duration::from_secs(1800);
/// A pass that finds too much at once leaves some of it for the next one.
const SCRUBS: usize = 4;
const LOOK: Duration = Duration::from_millis(500);

/// A volume, and its owner.
type Owned = (Arc<Volume>, Arc<OneTerm>);

impl Cluster {
    /// Waits until all events have ended, and undoes those that do not end by themselves.
    pub(super) async fn heal(self: &Arc<Self>) -> Result<(), String> {
        self.promises.forget_waiting();
        while self.under_way.load(Ordering::Relaxed) > 0 {
            self.env.clock.sleep(LOOK).await;
        }
        tracing::info!("HEALED");
        self.net.mend_all();
        for index in 0..self.scenario.node_count {
            let is_stained = {
                let machines = self.machines.lock();
                machines[index]
                    .disks
                    .iter()
                    .for_each(|disk| disk.clear_faults());
                machines[index].is_stained
            };
            // A faulted disk is used again after a restart.
            if is_stained {
                self.crash(index, Crash::KeepUnsynced, false, None);
            }
            self.start(index);
            self.started(index).await;
        }
        // A full pool is served, too, except for a new volume.
        for volume in self.volumes.there() {
            if volume.terms.count() > 0 {
                self.settled(&volume).await?;
            }
        }
        (0..self.scenario.node_count).for_each(|index| self.make_room(index));
        Ok(())
    }

    /// The owner of a volume that serves it from here on.
    pub(super) async fn settled(&self, volume: &Volume) -> Result<Arc<OneTerm>, String> {
        let since = self.clock.monotonic();
        loop {
            if let Some(term) = volume.terms.current()
                && term.answers()
                && self.process(term.node).is_some()
            {
                return Ok(term);
            }
            let waited = self.clock.monotonic().saturating_sub(since);
            if waited >= TIER_WRONG_MAX
                && let Some(objects) = &self.objects
            {
                objects.disarm();
            }
            if waited >= OWNER_WAIT_MAX {
                return Err(format!(
                    "all is well, and nobody serves volume {}: {}; {}",
                    volume.name,
                    self.describe(),
                    volume.terms.problem()
                ));
            }
            self.env.clock.sleep(LOOK).await;
        }
    }

    fn describe(&self) -> String {
        let nodes = (0..self.scenario.node_count).map(|index| match self.process(index) {
            None => format!("node {index} does not run"),
            Some(process) => {
                let services = process.pool.services().len();
                let lease = process.member.lease_is_valid();
                format!("node {index} serves {services} with lease {lease}")
            }
        });
        nodes.collect::<Vec<_>>().join(", ")
    }

    /// The owners of all existing volumes.
    async fn all_settled(&self) -> Result<Vec<Owned>, String> {
        let mut owned = Vec::new();
        for volume in self.volumes.there() {
            let term = self.settled(&volume).await?;
            owned.push((volume, term));
        }
        Ok(owned)
    }

    /// Waits until all clients are done.
    async fn idle(&self) -> Result<(), String> {
        for volume in self.volumes.there() {
            volume.terms.end();
        }
        for volume in self.volumes.there() {
            let mut term = self.settled(&volume).await?;
            loop {
                volume.terms.idle(&term).await;
                let now = self.settled(&volume).await?;
                if now.number == term.number {
                    break;
                }
                term = now;
            }
        }
        Ok(())
    }

    pub(super) async fn end(self: &Arc<Self>) -> Result<(), String> {
        self.idle().await?;
        self.check_objects().await?;
        let owned = match self.scenario.end {
            Ending::Give => {
                let owned = self.all_settled().await?;
                for (volume, term) in &owned {
                    let process = self.process(term.node).ok_or("an owner is gone")?;
                    if let Some(id) = volume.id() {
                        process.member.ask_to_give(id);
                    }
                }
                owned
            }
            Ending::CrashOwner => self.crash_owner().await?,
            Ending::CrashAll => {
                let owned = self.all_settled().await?;
                let all = 0..self.scenario.node_count;
                for index in all.clone() {
                    self.crash(index, Crash::LoseUnsynced, true, None);
                }
                all.for_each(|index| self.start(index));
                owned
            }
            Ending::Lose { count, owner } => self.lose(count, owner, false).await?,
            Ending::LoseCopies { count } => self.lose(count, true, true).await?,
        };
        for (volume, term) in &owned {
            self.judged_after(volume, term.number).await?;
        }
        self.all_settled().await.map(drop)
    }

    /// The volume whose owner is lost in the end.
    fn struck<'a>(&self, owned: &'a [Owned]) -> Result<&'a Owned, String> {
        let drawn = self.rng.lock().below(owned.len().max(1) as u64);
        owned.get(drawn as usize).ok_or("no volume is left".into())
    }

    /// An owner loses its power. Returns its volumes, which must be judged again.
    async fn crash_owner(self: &Arc<Self>) -> Result<Vec<Owned>, String> {
        let mut owned = self.all_settled().await?;
        let (volume, term) = self.struck(&owned)?;
        let index = term.node;
        self.crash(index, Crash::LoseUnsynced, true, None);
        // Data written while too few disks worked may be on this node alone.
        self.later(8000, move |cluster| cluster.start(index));
        let since = self.clock.monotonic();
        if self.next_serves(volume, 0).await {
            let took = self.clock.monotonic().saturating_sub(since);
            let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            self.takeover_ms.store(took_ms, Ordering::Relaxed);
        }
        owned.retain(|(_, term)| term.node == index);
        Ok(owned)
    }

    /// Nodes are lost for good, with or without the owner of some volume. `is_aimed`: nodes with copies of its state
    /// come first. The remaining nodes must have the whole of each volume: to check that, an owner that is not lost
    /// restarts.
    async fn lose(
        self: &Arc<Self>,
        count: usize,
        owner: bool,
        is_aimed: bool,
    ) -> Result<Vec<Owned>, String> {
        let owned = self.whole(count).await?;
        for (_, term) in &owned {
            self.scrubbed(term).await?;
        }
        let (volume, term) = self.struck(&owned)?;
        let all = 0..self.scenario.node_count;
        let mut others: Vec<usize> = all.filter(|index| *index != term.node).collect();
        let mut lost: Vec<usize> = owner.then_some(term.node).into_iter().collect();
        let mut first = match is_aimed {
            true => self.nodes_with_state(volume, term.node),
            false => Vec::new(),
        };
        while lost.len() < count {
            let drawn = self.rng.lock().below(others.len() as u64) as usize;
            let aimed = first.pop();
            let aimed = aimed.and_then(|index| others.iter().position(|it| *it == index));
            lost.push(others.remove(aimed.unwrap_or(drawn)));
        }
        tracing::info!(?lost, "LOST");
        for index in &lost {
            self.crash(*index, Crash::LoseUnsynced, true, None);
            self.machines.lock()[*index].is_lost = true;
            self.nodes_lost.fetch_add(1, Ordering::Relaxed);
        }
        let left: BTreeSet<usize> = owned.iter().map(|(_, term)| term.node).collect();
        for index in left {
            if self.crash(index, Crash::LoseUnsynced, true, None) {
                self.start(index);
            }
        }
        Ok(owned)
    }

    /// The object store has no faults from now on, and has the expected objects.
    async fn check_objects(&self) -> Result<(), String> {
        let Some(objects) = &self.objects else {
            return Ok(());
        };
        objects.disarm();
        let newest = || {
            let first = self.volumes.all().first()?;
            let term = first.terms.current().filter(|term| term.answers())?;
            Some((self.process(term.node)?.pool.clone(), term.fs.clone()))
        };
        let comes_back = self.scenario.seed.is_multiple_of(2);
        tiers::check(&self.env, &objects.store, comes_back, newest).await
    }

    /// If reads were corrupted, a repair may have kept wrong neighbouring bytes: only a scrub finds them.
    async fn scrubbed(&self, term: &OneTerm) -> Result<(), String> {
        let flips = |event: &Event| matches!(event.what, What::DiskFlips { .. });
        if !self.scenario.events.iter().any(flips) {
            return Ok(());
        }
        let pace = cairn_segment::Pace::new(Arc::new(self.clock.clone()), 0);
        for _ in 0..SCRUBS {
            let mut after = None;
            loop {
                let step = term.fs.scrub_records(after, &pace).await;
                let step = step.map_err(|error| format!("the scrub failed: {error}"))?;
                if let Some(damaged) = step.damaged.first() {
                    return Err(format!("a scrub finds damage: {damaged:?}"));
                }
                after = step.next;
                if after.is_none() {
                    break;
                }
            }
            if let Some(process) = self.process(term.node) {
                process.pool.store.repairs_done().await;
            }
        }
        Ok(())
    }

    /// Nodes with copies of the state, as the owner knows them.
    fn nodes_with_state(&self, volume: &Volume, owner: usize) -> Vec<usize> {
        let Some(process) = self.process(owner) else {
            return Vec::new();
        };
        let (view, state) = (process.member.view(), process.pool.state());
        let known = volume.id().and_then(|id| view.volumes.get(&id));
        let copy = known.and_then(|known| known.log.log.state.clone());
        let disks = copy.map_or_else(Vec::new, |copy| copy.disks);
        let nodes = state.disks.iter().filter(|disk| disks.contains(&disk.id));
        let nodes: BTreeSet<NodeId> = nodes.map(|disk| disk.node).collect();
        (0..self.scenario.node_count)
            .filter(|index| *index != owner && nodes.contains(&node_id(*index)))
            .collect()
    }

    async fn judged_after(&self, volume: &Volume, number: usize) -> Result<(), String> {
        let since = self.clock.monotonic();
        loop {
            let current = volume.terms.current();
            if current.is_some_and(|term| term.number > number) {
                return Ok(());
            }
            if self.clock.monotonic().saturating_sub(since) >= OWNER_WAIT_MAX {
                return Err(format!(
                    "at the end nobody can take volume {} over: {}; {}",
                    volume.name,
                    self.describe(),
                    volume.terms.problem()
                ));
            }
            self.env.clock.sleep(LOOK).await;
        }
    }

    /// Waits until `count` nodes may be lost, according to the owners of all volumes at one moment.
    async fn whole(&self, count: usize) -> Result<Vec<Owned>, String> {
        let since = self.clock.monotonic();
        loop {
            let owned = self.all_settled().await?;
            let lacks = owned.iter().find_map(|(volume, term)| {
                let why = match (self.process(term.node), volume.id()) {
                    (Some(process), Some(id)) if term.answers() => lack(&process, id, term, count)?,
                    _ => "the owner is gone".to_owned(),
                };
                Some(format!("of volume {}: {why}", volume.name))
            });
            let Some(why) = lacks else {
                return Ok(owned);
            };
            if self.clock.monotonic().saturating_sub(since) >= WHOLE_WAIT_MAX {
                return Err(format!("all is well, and the protection is not: {why}"));
            }
            self.env.clock.sleep(LOOK).await;
        }
    }
}

/// Reason why fewer nodes than `count` may be lost.
fn lack(process: &Process, id: VolumeId, term: &OneTerm, count: usize) -> Option<String> {
    let state = process.pool.state();
    let Some(volume) = state.volumes.iter().find(|volume| volume.id == id) else {
        return Some("there is no volume".to_owned());
    };
    let tolerated = process.pool.nodes_tolerated(volume);
    if tolerated.is_none_or(|tolerated| tolerated < count) {
        return Some(format!("{tolerated:?} nodes may be lost, want {count}"));
    }
    let stats = term.fs.meta().stats();
    if stats.is_degraded() {
        return Some(format!("metadata is degraded: {:?}", stats.log_disks));
    }
    let narrow = narrow(&process.pool.store, id, count, false);
    if !narrow.is_empty() {
        return Some(format!("segments with less protection: {narrow:?}"));
    }
    let rebuild = process.pool.rebuild_status();
    if rebuild.shards_left > 0 {
        return Some(format!("{} shards are still to move", rebuild.shards_left));
    }
    None
}
