//! Connections to the other nodes, and the disks that they serve.
//!
//! Owns: one connection for each node of the map, and for how long a disk counts as there when its node is silent.
//! Must not know: how a connection is made and secured ([`Dials`]), what is done with the disks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::{DiskId, NodeId};
use cairn_cluster::map::{MapView, NodeRecord};
use cairn_remote::{Dial, Identity, Peer, PeerSettings};
use cairn_shard::ShardService;
use parking_lot::Mutex;

/// A node that breaks off its connection is given so long to make another one before others do without its disks.
const GRACE: Duration = Duration::from_secs(1);

/// How other nodes are reached.
pub trait Dials: Send + Sync + 'static {
    fn to(&self, node: &NodeRecord) -> Arc<dyn Dial>;
}

struct Entry {
    peer: Peer,
    address: String,
    /// When it was last seen connected.
    seen: Option<Duration>,
}

/// The other nodes.
pub struct PeerTable {
    env: Env,
    own: Identity,
    settings: PeerSettings,
    dials: Arc<dyn Dials>,
    entries: Mutex<BTreeMap<NodeId, Entry>>,
}

/// How a node is, as this one sees it.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    pub node: NodeId,
    pub is_connected: bool,
    pub problem: Option<String>,
}

impl PeerTable {
    pub fn new(
        env: Env,
        own: Identity,
        settings: PeerSettings,
        dials: Arc<dyn Dials>,
    ) -> Arc<Self> {
        Arc::new(Self {
            env,
            own,
            settings,
            dials,
            entries: Mutex::default(),
        })
    }

    /// Connects to the nodes that the map has, and to no others.
    pub fn follow(&self, view: &MapView) {
        let mut entries = self.entries.lock();
        entries.retain(|node, entry| {
            let record = view.nodes.get(node);
            record.is_some_and(|record| record.value.internal_address == entry.address)
        });
        for (node, record) in &view.nodes {
            if *node == self.own.node || entries.contains_key(node) {
                continue;
            }
            let record = &record.value;
            let peer = Peer::start(
                self.env.clone(),
                self.own,
                *node,
                record.name.clone(),
                self.dials.to(record),
                self.settings.clone(),
            );
            let entry = Entry {
                peer,
                address: record.internal_address.clone(),
                seen: None,
            };
            entries.insert(*node, entry);
        }
    }

    /// The disks of the map that are on nodes which can be reached, or could a moment ago.
    pub fn disks(&self, view: &MapView) -> BTreeMap<DiskId, Arc<dyn ShardService>> {
        let now = self.env.clock.monotonic();
        let mut there = BTreeMap::new();
        for entry in self.entries.lock().values_mut() {
            if entry.peer.is_connected() {
                entry.seen = Some(now);
            }
            let is_there = entry
                .seen
                .is_some_and(|seen| now.saturating_sub(seen) < GRACE);
            if !is_there {
                continue;
            }
            for disk in entry.peer.disks() {
                let is_member = view
                    .disks
                    .get(&disk.id())
                    .is_some_and(|record| record.value.node == entry.peer.node());
                if is_member {
                    there.insert(disk.id(), disk as Arc<dyn ShardService>);
                }
            }
        }
        there
    }

    /// The nodes with a sign of life in the map of which nothing is heard.
    pub fn unreached(&self, view: &MapView) -> BTreeSet<NodeId> {
        let entries = self.entries.lock();
        let is_heard = |node: &NodeId| {
            let entry = entries.get(node);
            entry.is_some_and(|entry| entry.peer.is_heard())
        };
        let others = view.alive.keys().filter(|node| **node != self.own.node);
        others.filter(|node| !is_heard(node)).copied().collect()
    }

    pub fn status(&self) -> Vec<PeerStatus> {
        let entries = self.entries.lock();
        let status = entries.values().map(|entry| PeerStatus {
            node: entry.peer.node(),
            is_connected: entry.peer.is_connected(),
            problem: entry.peer.problem(),
        });
        status.collect()
    }

    /// Ends all connections.
    pub fn stop(&self) {
        self.entries.lock().clear();
    }
}

impl cairn_remote::Peers for PeerTable {
    fn disk(&self, node: NodeId, disk: DiskId) -> Option<Arc<dyn ShardService>> {
        let entries = self.entries.lock();
        let disk = entries.get(&node)?.peer.disk(disk)?;
        Some(disk as Arc<dyn ShardService>)
    }
}
