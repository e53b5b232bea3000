//! Faults of etcd.
//!
//! Owns: late, unanswered and lost requests, leases that end early. Must not know: the requests and their senders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Clock;
use cairn_cluster::KeyRange;
use cairn_cluster::map::Keys;

use super::node::{NAME, node_id};
use super::run::{Cluster, world_spawn};

/// Interval at which late requests are checked.
const ETCD_LOOK: Duration = Duration::from_millis(20);

/// The kind of delay of etcd.
#[derive(Clone, Copy)]
pub(super) enum Late {
    /// Requests, and then their answers, are each late by at most this many milliseconds.
    By(u64),
    /// Answers do not come.
    Mute,
    /// Requests are not done.
    Silent,
}

impl Cluster {
    pub(super) fn delay_etcd(self: &Arc<Self>, clients: Vec<String>, late: Late, ms: u64) {
        for client in &clients {
            self.store.hold(client, true);
            self.late.lock().insert(client.clone(), late);
        }
        self.later(ms, move |cluster| {
            for client in &clients {
                cluster.store.hold(client, false);
                cluster.late.lock().remove(client);
            }
            for held in cluster.store.held() {
                if clients.contains(&held.client) {
                    cluster.store.step(held.id);
                    cluster.store.step(held.id);
                }
            }
        });
    }

    /// Requests without a quorum are lost, or are done once there is a quorum again, whether the sender still waits or
    /// not.
    pub(super) fn lose_quorum(self: &Arc<Self>, keeps_leases: bool, ms: u64) {
        self.store.lose_quorum();
        self.later(ms, move |cluster| {
            cluster.store.regain_quorum(keeps_leases);
            for held in cluster.store.held() {
                if cluster.late.lock().contains_key(&held.client) {
                    continue;
                }
                match cluster.rng.lock().coin() {
                    true => cluster.store.lose(held.id),
                    false => {
                        cluster.store.step(held.id);
                        cluster.store.step(held.id);
                    }
                }
            }
        });
    }

    /// Held requests go on after their delay, in any order; some are lost.
    pub(super) async fn answer_late(self: Arc<Self>) {
        let mut due: BTreeMap<(u64, bool), Duration> = BTreeMap::new();
        loop {
            self.env.clock.sleep(ETCD_LOOK).await;
            if self.late.lock().is_empty() {
                due.clear();
                continue;
            }
            let now = self.clock.monotonic();
            let held = self.store.held();
            let there: BTreeSet<(u64, bool)> =
                held.iter().map(|held| (held.id, held.done)).collect();
            due.retain(|key, _| there.contains(key));
            for held in held {
                let late = self.late.lock().get(&held.client).copied();
                let by_ms = match late {
                    Some(Late::By(by_ms)) => by_ms,
                    Some(Late::Mute) if !held.done => {
                        self.store.step(held.id);
                        continue;
                    }
                    _ => continue,
                };
                let mut rng = self.rng.lock();
                let at = *due
                    .entry((held.id, held.done))
                    .or_insert_with(|| now + Duration::from_millis(rng.below(by_ms)));
                let is_lost = rng.below(400) == 0;
                drop(rng);
                match () {
                    () if is_lost => self.store.lose(held.id),
                    () if at <= now => self.store.step(held.id),
                    () => {}
                }
            }
        }
    }

    pub(super) fn lose_lease(self: &Arc<Self>, index: usize) {
        let (world, store) = (self.store.client("world"), self.store.clone());
        let volumes = self.volumes.clone();
        let task = async move {
            let key = Keys::new(NAME).alive(node_id(index));
            let Ok(reply) = world.range(KeyRange::One(key)).await else {
                return;
            };
            if let Some(lease) = reply.entries.first().and_then(|entry| entry.lease) {
                for volume in volumes.all() {
                    volume.terms.lease_ends_early(index);
                }
                store.lose_lease(lease);
            }
        };
        world_spawn(&self.env, task);
    }
}
