//! The whole map as one node follows it.
//!
//! Owns: reading it once, taking in what a watch tells, and putting the values together.
//! Must not know: what follows from a change.
//!
//! A value that cannot be read is left out and told of once: one damaged key must not stop a node. What decides who owns
//! something is compared in a transaction anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{DiskId, NodeId, VolumeId};
use futures_util::future::{Either, select};

use super::values::{
    AliveRecord, ClassesRecord, DiskRecord, NextVolume, NodeRecord, Value, Versioned, decode,
};
use super::{ClusterMap, MapError, VolumeState};
use crate::coordinator::{Change, Entry, Key, Revision, WatchEvent, Watcher};

/// Changes that come within so long of one another make one view.
const GATHER: Duration = Duration::from_millis(10);

/// The map at one revision.
#[derive(Clone, Debug, Default)]
pub struct MapView {
    pub revision: Revision,
    pub nodes: BTreeMap<NodeId, Versioned<NodeRecord>>,
    pub alive: BTreeMap<NodeId, Versioned<AliveRecord>>,
    pub disks: BTreeMap<DiskId, Versioned<DiskRecord>>,
    pub volumes: BTreeMap<VolumeId, VolumeState>,
    pub volume_next: Option<VolumeId>,
    pub classes: Option<Versioned<ClassesRecord>>,
    /// Keys that could not be read.
    pub damaged: Vec<Key>,
    /// Volumes that are there, and of which a value could not be read.
    pub unreadable: BTreeSet<VolumeId>,
}

/// Follows the map.
pub struct Follower {
    map: ClusterMap,
    entries: BTreeMap<Key, Entry>,
    revision: Revision,
    watcher: Box<dyn Watcher>,
    told: BTreeSet<(Key, Revision)>,
}

impl ClusterMap {
    /// Reads the whole map and begins to follow it.
    pub async fn follow(&self) -> Result<Follower, MapError> {
        let reply = self.read(self.keys().all()).await?;
        let from = Revision(reply.revision.0 + 1);
        let keyed = |entry: Entry| (entry.key.clone(), entry);
        Ok(Follower {
            map: self.clone(),
            entries: reply.entries.into_iter().map(keyed).collect(),
            revision: reply.revision,
            watcher: self.watch(self.keys().all(), from),
            told: BTreeSet::new(),
        })
    }
}

impl Follower {
    /// Waits for a change; the map after it is [`Self::view`].
    pub async fn changed(&mut self) {
        let event = self.watcher.next().await;
        self.take(event);
        let clock = Arc::clone(&self.map.shared.env.clock);
        let mut gathered = clock.sleep(GATHER);
        loop {
            // What is cut short here is not lost: a watcher delivers it with the next call.
            let event = match select(self.watcher.next(), gathered).await {
                Either::Left((event, rest)) => {
                    gathered = rest;
                    event
                }
                Either::Right(_) => return,
            };
            self.take(event);
        }
    }

    fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Changes { revision, changes } => {
                self.revision = self.revision.max(revision);
                for change in changes {
                    match change {
                        Change::Put(entry) => {
                            self.entries.insert(entry.key.clone(), entry);
                        }
                        Change::Deleted { key, .. } => {
                            self.entries.remove(&key);
                        }
                    }
                }
            }
            WatchEvent::Reset(reply) => {
                // One that went back is seen by the cluster's record, or by the first change that is made.
                self.revision = reply.revision;
                let keyed = |entry: Entry| (entry.key.clone(), entry);
                self.entries = reply.entries.into_iter().map(keyed).collect();
            }
        }
    }

    /// The map as far as it was followed. An error: the store holds another map now, or an older state of this one, of
    /// which nothing follows.
    pub fn view(&mut self) -> Result<MapView, MapError> {
        let entry = self.entries.get(&self.map.keys().cluster());
        self.map.check_cluster(entry, self.revision)?;
        Ok(self.whole_view())
    }

    fn whole_view(&mut self) -> MapView {
        let mut view = MapView {
            revision: self.revision,
            ..MapView::default()
        };
        let keys = self.map.keys().clone();
        let mut volumes: BTreeMap<VolumeId, Vec<Entry>> = BTreeMap::new();
        let mut damaged = Vec::new();
        for (key, entry) in &self.entries {
            if let Some((volume, _)) = keys.parse_volume(key) {
                volumes.entry(volume).or_default().push(entry.clone());
            } else if keys.nodes().contains(key) {
                keep(entry, &mut damaged, |node: Versioned<NodeRecord>| {
                    view.nodes.insert(node.value.id, node);
                });
            } else if keys.all_alive().contains(key) {
                keep(entry, &mut damaged, |alive: Versioned<AliveRecord>| {
                    view.alive.insert(alive.value.node, alive);
                });
            } else if keys.disks().contains(key) {
                keep(entry, &mut damaged, |disk: Versioned<DiskRecord>| {
                    view.disks.insert(disk.value.id, disk);
                });
            } else if *key == keys.classes() {
                keep(entry, &mut damaged, |classes: Versioned<ClassesRecord>| {
                    view.classes = Some(classes);
                });
            } else if *key == keys.next_volume() {
                keep(entry, &mut damaged, |next: Versioned<NextVolume>| {
                    view.volume_next = Some(next.value.next);
                });
            }
        }
        for (volume, entries) in volumes {
            match self.map.state_of(&entries) {
                Ok(state) => {
                    view.volumes.insert(volume, state);
                }
                // Its keys come and go in one transaction, so that this one is damaged, too.
                Err(error) => {
                    view.unreadable.insert(volume);
                    damaged.push((entries[0].key.clone(), entries[0].modified, error));
                }
            }
        }
        for (key, revision, error) in damaged {
            if self.told.insert((key.clone(), revision)) {
                tracing::error!(%error, "a value of the cluster's map is left out");
            }
            view.damaged.push(key);
        }
        view
    }
}

fn keep<T: Value>(
    entry: &Entry,
    damaged: &mut Vec<(Key, Revision, MapError)>,
    keep: impl FnOnce(Versioned<T>),
) {
    match decode(entry) {
        Ok(value) => keep(value),
        Err(error) => damaged.push((entry.key.clone(), entry.modified, error)),
    }
}
