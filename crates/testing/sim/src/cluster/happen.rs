//! Events at nodes, disks, network paths and etcd.
//!
//! Owns: the execution of each drawn event. Must not know: why it was drawn.
//!
//! An event drawn for a volume strikes the present owner of that volume, or its log, at the moment of the event.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::env::Clock;
use cairn_base::{NodeId, VolumeId};
use cairn_cluster::memory::Fault as StoreFault;
use cairn_formats::pool_file::PoolDisk;
use cairn_testkit::{Crash, Fault as DiskFault, FaultRule, OpKind};

use super::etcd::Late;
use super::net::Port;
use super::node::node_id;
use super::run::{Cluster, client_name, world_spawn};
use super::scenario::{What, Who};
use super::volumes::Volume;

/// Events at a new owner wait this long for a takeover, with checks at this interval.
const NEXT_WAIT_MAX: Duration = Duration::from_secs(20);
const NEXT_LOOK: Duration = Duration::from_millis(3);

/// Targets of an event.
#[derive(Clone)]
pub(super) struct Struck {
    /// The volume whose owner and log devices are struck.
    pub volume: Arc<Volume>,
    /// The node whose disk is just beginning an operation.
    pub at_work: Option<usize>,
}

impl Cluster {
    fn index_of(&self, struck: &Struck, who: Who) -> usize {
        let volume = &struck.volume;
        let owner = volume.terms.newest_node().unwrap_or(0);
        match who {
            Who::Owner => owner,
            Who::Behind(by) => (owner + by) % self.scenario.node_count,
            Who::Holder => {
                let holder = volume.id().and_then(|id| self.rules.holder(id));
                holder
                    .and_then(|node| self.index_of_node(node))
                    .unwrap_or(owner)
            }
            Who::AtWork => struck.at_work.unwrap_or(owner),
        }
    }

    fn index_of_node(&self, node: NodeId) -> Option<usize> {
        (0..self.scenario.node_count).find(|index| node_id(*index) == node)
    }

    /// Runs a task that ends by itself; the cluster counts as recovered only after all such tasks have ended.
    pub(super) fn spawn_under_way(&self, task: impl Future<Output = ()> + Send + 'static) {
        let count = self.under_way.clone();
        count.fetch_add(1, Ordering::Relaxed);
        let counted = async move {
            task.await;
            count.fetch_sub(1, Ordering::Relaxed);
        };
        world_spawn(&self.env, counted);
    }

    /// Runs a step after a delay.
    pub(super) fn later(self: &Arc<Self>, ms: u64, what: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let cluster = Arc::clone(self);
        self.spawn_under_way(async move {
            cluster.env.clock.sleep(Duration::from_millis(ms)).await;
            what(&cluster);
        });
    }

    /// Executes an event drawn for a volume: its owner and the disks of its log are determined now.
    pub(super) fn happen(self: &Arc<Self>, what: &What, struck: &Struck) {
        let volume = &struck.volume;
        let (name, owner) = (&volume.name, volume.terms.newest_node());
        tracing::info!(%name, ?what, ?owner, at_ms = self.clock.monotonic().as_millis(), "HAPPENS");
        *self.events.lock().entry(what.name()).or_default() += 1;
        match what.clone() {
            What::Crash {
                who,
                keep,
                with_power,
                down_ms,
            } => {
                let index = self.index_of(struck, who);
                if self.crash(index, keep.mode(), with_power, None) {
                    self.later(down_ms, move |cluster| cluster.start(index));
                }
            }
            What::Pause {
                who,
                machine,
                steps,
                ms,
            } => self.pause(self.index_of(struck, who), machine, steps, ms),
            What::PauseNext { after_ms, ms } => {
                let (cluster, struck) = (Arc::clone(self), struck.clone());
                self.spawn_under_way(async move {
                    if cluster.next_serves(&struck.volume, after_ms).await {
                        cluster.pause(cluster.index_of(&struck, Who::Owner), false, 0, ms);
                    }
                });
            }
            What::Cut {
                who,
                from,
                both,
                ms,
            } => {
                let one = self.index_of(struck, who);
                let other = (one + from) % self.scenario.node_count;
                let mut ways = vec![(one, other)];
                ways.extend(both.then_some((other, one)));
                self.cut(ways, ms);
            }
            What::CutOff {
                who,
                hears,
                is_heard,
                ms,
            } => {
                let one = self.index_of(struck, who);
                let others = (0..self.scenario.node_count).filter(|other| *other != one);
                let ways = others.flat_map(|other| {
                    let out = (!is_heard).then_some((one, other));
                    let into = (!hears).then_some((other, one));
                    out.into_iter().chain(into)
                });
                self.cut(ways.collect(), ms);
            }
            What::Break { who, other } => {
                let one = self.index_of(struck, who);
                let other = (one + other) % self.scenario.node_count;
                self.net.break_all(node_id(one), node_id(other));
            }
            What::Slow { who, by_ms, ms } => {
                let node = node_id(self.index_of(struck, who));
                self.net.slow(node, Some(Duration::from_millis(by_ms)));
                self.later(ms, move |cluster| cluster.net.slow(node, None));
            }
            What::StallCalls { who, ms } => {
                let node = node_id(self.index_of(struck, who));
                let until = self.clock.monotonic() + Duration::from_millis(ms);
                self.net.stall(node, Port::Forward, until);
            }
            What::EtcdAway { who, ms } => {
                let client = client_name(self.index_of(struck, who));
                self.store.set_reachable(&client, false);
                self.later(ms, move |cluster| {
                    cluster.store.set_reachable(&client, true);
                });
            }
            What::EtcdLate { who, by_ms, ms } => {
                let late = Late::By(by_ms);
                self.delay_etcd(vec![client_name(self.index_of(struck, who))], late, ms);
            }
            What::EtcdMute { who, ms } => {
                self.delay_etcd(
                    vec![client_name(self.index_of(struck, who))],
                    Late::Mute,
                    ms,
                );
            }
            What::EtcdStops { ms } => {
                let all = (0..self.scenario.node_count).map(client_name);
                self.delay_etcd(all.collect(), Late::Silent, ms);
            }
            What::EtcdNoQuorum { keeps_leases, ms } => self.lose_quorum(keeps_leases, ms),
            What::EtcdUnknown { who, done, count } => {
                let client = client_name(self.index_of(struck, who));
                for _ in 0..count {
                    self.store.plant(&client, lost(done));
                }
            }
            What::EtcdForgets {
                who,
                done,
                skip,
                count,
            } => {
                let client = client_name(self.index_of(struck, who));
                for _ in 0..skip {
                    self.store.plant_for_transaction(&client, StoreFault::Spare);
                }
                for _ in 0..count {
                    self.store.plant_for_transaction(&client, lost(done));
                }
            }
            What::CutFromAllBut { who, but, ms } => {
                let one = self.index_of(struck, who);
                let spared = (one + but) % self.scenario.node_count;
                let others =
                    (0..self.scenario.node_count).filter(|other| *other != one && *other != spared);
                let ways = others.flat_map(|other| [(one, other), (other, one)]);
                self.cut(ways.collect(), ms);
            }
            What::Row { steps } => {
                let (cluster, struck) = (Arc::clone(self), struck.clone());
                self.spawn_under_way(async move {
                    for (wait_ms, what) in steps {
                        let wait = Duration::from_millis(wait_ms);
                        cluster.env.clock.sleep(wait).await;
                        cluster.happen(&what, &struck);
                    }
                });
            }
            What::LoseLease { who } => self.lose_lease(self.index_of(struck, who)),
            What::ClockJump { who, seconds } => {
                let index = self.index_of(struck, who);
                self.machines.lock()[index].clock.step_wall(seconds);
            }
            What::DiskDead { who, pick, ms } => {
                let disk = self.disk(self.index_of(struck, who), pick);
                disk.fail_all();
                self.later(ms, move |_| disk.clear_faults());
            }
            What::DiskErrors { who, pick, times } => {
                let kinds = [
                    OpKind::Read,
                    OpKind::Write,
                    OpKind::WriteDurable,
                    OpKind::Sync,
                ];
                self.disk(self.index_of(struck, who), pick)
                    .inject(FaultRule {
                        kind: Some(kinds[(pick >> 8) as usize % kinds.len()]),
                        name_part: String::new(),
                        skip: (pick >> 16) % 40,
                        times,
                        fault: DiskFault::Io,
                    });
            }
            What::DiskFlips { who, pick, times } => {
                let Some(id) = volume.id() else { return };
                let machines = self.machines.lock();
                let disks = &machines[self.index_of(struck, who)].disks;
                disks[pick as usize % disks.len()].inject(FaultRule {
                    kind: Some(OpKind::Read),
                    name_part: data_shards(id),
                    skip: 0,
                    times,
                    fault: DiskFault::FlipRead { bit: pick >> 8 },
                });
            }
            What::DiskSlow {
                who,
                pick,
                by_ms,
                times,
            } => {
                let index = self.index_of(struck, who);
                let machines = self.machines.lock();
                let paces = &machines[index].paces;
                if let Some(pace) = paces.get(pick as usize % paces.len().max(1)) {
                    pace.slow_down(Duration::from_millis(by_ms), times);
                }
            }
            What::Fill { who, room_kib, ms } => {
                let nodes = match who {
                    Some(who) => vec![self.index_of(struck, who)],
                    None => (0..self.scenario.node_count).collect(),
                };
                for index in &nodes {
                    self.fill(*index, room_kib << 10);
                }
                if let Some(ms) = ms {
                    self.later(ms, move |cluster| {
                        nodes.iter().for_each(|index| cluster.make_room(*index));
                    });
                }
            }
            What::Give => {
                let owner = self.index_of(struck, Who::Owner);
                if let (Some(process), Some(id)) = (self.process(owner), volume.id()) {
                    process.member.ask_to_give(id);
                }
            }
            What::CrashMembers {
                but,
                keep,
                with_power,
                down_ms,
            } => {
                let members = self.members(struck);
                let spared = but.map(|nth| members[nth % members.len()]);
                let owner = self.index_of(struck, Who::Owner);
                let struck = members.into_iter().chain([owner]);
                let struck: BTreeSet<usize> =
                    struck.filter(|index| Some(*index) != spared).collect();
                for index in struck {
                    if self.crash(index, keep.mode(), with_power, None) {
                        self.later(down_ms, move |cluster| cluster.start(index));
                    }
                }
            }
            What::CutMember { nth, ms } => {
                let members = self.members(struck);
                let way = (
                    self.index_of(struck, Who::Owner),
                    members[nth % members.len()],
                );
                self.cut(vec![way], ms);
            }
            What::BreakMember { nth } => {
                let members = self.members(struck);
                let owner = node_id(self.index_of(struck, Who::Owner));
                let other = node_id(members[nth % members.len()]);
                self.net.break_all(owner, other);
            }
            What::SlowMembers { by_ms, times } => {
                let members = self.members(struck);
                let machines = self.machines.lock();
                let disks = members.iter().flat_map(|index| &machines[*index].paces);
                let by = Duration::from_millis(by_ms);
                disks.for_each(|pace| pace.slow_down(by, times));
            }
            What::CrashNext { after_ms, down_ms } => {
                let (cluster, struck) = (Arc::clone(self), struck.clone());
                self.spawn_under_way(async move {
                    if cluster.next_serves(&struck.volume, after_ms).await {
                        let index = cluster.index_of(&struck, Who::Owner);
                        cluster.crash(index, Crash::LoseUnsynced, true, None);
                        cluster.later(down_ms, move |cluster| cluster.start(index));
                    }
                });
            }
            What::WhenCall { moment, skip, then } => {
                let Some(calls) = &self.calls else { return };
                let (cluster, volume) = (Arc::downgrade(self), volume.clone());
                calls.when(moment, volume.id(), skip, move |node| {
                    tracing::info!(?moment, node, "NOW");
                    if let Some(cluster) = cluster.upgrade() {
                        let at_work = Some(node);
                        cluster.happen(&then, &Struck { volume, at_work });
                    }
                });
            }
            What::When { verb, skip, then } => {
                let (cluster, volume) = (Arc::downgrade(self), volume.clone());
                self.promises.when(verb, volume.id(), skip, move |disk| {
                    tracing::info!(?verb, %disk, "NOW");
                    if let Some(cluster) = cluster.upgrade() {
                        let node = cluster.rules.node_of(disk);
                        let at_work = node.and_then(|node| cluster.index_of_node(node));
                        cluster.happen(&then, &Struck { volume, at_work });
                    }
                });
            }
        }
    }

    /// The nodes of the open part of the log other than the owner, starting after the owner; any other node, if there
    /// is none.
    fn members(&self, struck: &Struck) -> Vec<usize> {
        let (owner, count) = (self.index_of(struck, Who::Owner), self.scenario.node_count);
        let disks = struck.volume.terms.log_disks();
        let nodes = self.process(owner).map_or_else(Vec::new, |process| {
            let state = process.pool.state();
            let is_member = |disk: &&PoolDisk| disks.contains(&disk.id);
            let members = state.disks.iter().filter(is_member);
            members.map(|disk| disk.node).collect()
        });
        let behind = (1..count).map(|by| (owner + by) % count);
        let members: Vec<usize> = behind
            .filter(|index| nodes.contains(&node_id(*index)))
            .collect();
        match members.is_empty() {
            true => vec![(owner + 1) % count],
            false => members,
        }
    }

    /// Waits until another opening of the volume has served for `for_ms`; false if none does for long.
    pub(super) async fn next_serves(&self, volume: &Volume, for_ms: u64) -> bool {
        let count = volume.terms.count();
        let until = self.clock.monotonic() + NEXT_WAIT_MAX;
        while volume.terms.count() == count {
            if self.clock.monotonic() >= until {
                return false;
            }
            self.env.clock.sleep(NEXT_LOOK).await;
        }
        let wait = Duration::from_millis(for_ms);
        self.env.clock.sleep(wait).await;
        true
    }

    fn cut(self: &Arc<Self>, ways: Vec<(usize, usize)>, ms: u64) {
        for (from, to) in &ways {
            self.net.cut(node_id(*from), node_id(*to));
        }
        self.later(ms, move |cluster| {
            for (from, to) in ways {
                cluster.net.mend(node_id(from), node_id(to));
            }
        });
    }
}

fn lost(done: bool) -> StoreFault {
    match done {
        true => StoreFault::LoseReply,
        false => StoreFault::LoseRequest,
    }
}

/// Prefix of file names with data of a volume: names of the log and of the state begin with higher digits.
fn data_shards(volume: VolumeId) -> String {
    format!("shards/{:08x}/0", volume.0)
}
