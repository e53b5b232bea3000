//! The whole map as one node follows it.
//!
//! Owns: reading it once, taking in what a watch tells, and putting the values together.
//! Must not know: what follows from a change.
//!
//! A value that cannot be read is left out and told of once: one damaged key must not stop a node. What decides who owns
//! something is compared in a transaction anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{DiskId, NodeId, VolumeId};
use futures_util::future::{Either, select};

use super::rotation::{RotationNote, RotationRecord};
use super::values::{
    AddressHolder, AddressPoolRecord, AliveRecord, ClassesRecord, DiskRecord, IscsiPortals,
    LogoutsRecord, MaintenanceRecord, NextVolume, NodeRecord, RemovedRecord, SecretsKeyRecord,
    TiersRecord, UsersRecord, Value, Versioned, decode,
};
use super::{ClusterMap, Keys, MapError, VolumeState};
use crate::coordinator::{Change, Entry, Key, Revision, WatchEvent, Watcher};

/// Changes that come within so long of one another make one view.
const GATHER: Duration = Duration::from_millis(10);

/// The map at one revision.
#[derive(Clone, Debug, Default)]
pub struct MapView {
    pub revision: Revision,
    pub nodes: BTreeMap<NodeId, Versioned<NodeRecord>>,
    /// Nodes that were removed, as long as certificates of them may be valid.
    pub removed: BTreeMap<NodeId, Versioned<RemovedRecord>>,
    pub alive: BTreeMap<NodeId, Versioned<AliveRecord>>,
    pub disks: BTreeMap<DiskId, Versioned<DiskRecord>>,
    pub volumes: BTreeMap<VolumeId, Arc<VolumeState>>,
    pub volume_next: Option<VolumeId>,
    pub classes: Option<Versioned<ClassesRecord>>,
    pub users: Option<Versioned<UsersRecord>>,
    pub logouts: Option<Versioned<LogoutsRecord>>,
    pub tiers: Option<Versioned<TiersRecord>>,
    pub maintenance: Option<Versioned<MaintenanceRecord>>,
    /// What secrets are wrapped with, itself wrapped with a master key.
    pub secrets_key: Option<Versioned<SecretsKeyRecord>>,
    /// How far one CA has taken the place of another, if it ever did.
    pub rotation: Option<Versioned<RotationRecord>>,
    /// What nodes that may not write that have done of it.
    pub rotation_notes: BTreeMap<NodeId, Versioned<RotationNote>>,
    /// Where nodes serve iSCSI.
    pub iscsi: BTreeMap<NodeId, Versioned<IscsiPortals>>,
    /// Addresses that nodes share, by the pool's name.
    pub address_pools: BTreeMap<String, Versioned<AddressPoolRecord>>,
    /// Who has an address of a pool now.
    pub address_holders: BTreeMap<IpAddr, Versioned<AddressHolder>>,
    /// Keys that could not be read.
    pub damaged: Vec<Key>,
    /// Volumes that are there, and of which a value could not be read.
    pub unreadable: BTreeSet<VolumeId>,
}

impl MapView {
    /// The volume in whose store one is: itself, but for a clone.
    pub fn store_of(&self, volume: VolumeId) -> Option<&Arc<VolumeState>> {
        let has = |state: &&Arc<VolumeState>| {
            let mut clones = state.record.value.clones.iter();
            clones.any(|clone| clone.id == volume)
        };
        let own = self.volumes.get(&volume);
        own.or_else(|| self.volumes.values().find(has))
    }

    /// Whether something could not be read that nodes with a member of etcd alone write: as much as a node may be missing here, or
    /// that one was removed. What any node can write must not keep another one from being locked out.
    pub fn is_unsure_of_nodes(&self, keys: &Keys) -> bool {
        self.damaged.iter().any(|key| keys.is_guarded(key))
    }

    /// Whether a draining disk can be removed: the owners of all volumes say that they have nothing on it.
    pub fn is_left(&self, disk: DiskId) -> bool {
        let Some(disk) = self.disks.get(&disk) else {
            return false;
        };
        let mut volumes = self.volumes.values();
        let is_left = volumes.all(|volume| volume.left_of(disk).is_some());
        disk.value.draining && self.unreadable.is_empty() && is_left
    }
}

/// Follows the map.
pub struct Follower {
    map: ClusterMap,
    entries: BTreeMap<Key, Entry>,
    revision: Revision,
    watcher: Box<dyn Watcher>,
    told: BTreeSet<(Key, Revision)>,
    known: DecodedRecords,
}

/// Values as they were decoded. There is a view for each change, and a large map has many values.
#[derive(Default)]
struct DecodedRecords {
    nodes: BTreeMap<Key, Versioned<NodeRecord>>,
    alive: BTreeMap<Key, Versioned<AliveRecord>>,
    disks: BTreeMap<Key, Versioned<DiskRecord>>,
    /// Each with how many keys it had, and the last change of one: any change of a volume changes one of these.
    volumes: BTreeMap<VolumeId, ((usize, Revision), Arc<VolumeState>)>,
}

/// The value of an entry, decoded once.
fn known_as<T: Value + Clone>(
    known: &mut BTreeMap<Key, Versioned<T>>,
    entry: &Entry,
) -> Result<Versioned<T>, MapError> {
    match known.get(&entry.key) {
        Some(value) if value.revision == entry.modified => Ok(value.clone()),
        _ => {
            let value: Versioned<T> = decode(entry)?;
            known.insert(entry.key.clone(), value.clone());
            Ok(value)
        }
    }
}

/// Refuses what a node says of another one: it writes its own key, whatever is in that.
fn its_own<T: Value>(
    found: Versioned<T>,
    entry: &Entry,
    own: impl Fn(&T) -> Key,
) -> Result<Versioned<T>, MapError> {
    match own(&found.value) == entry.key {
        true => Ok(found),
        false => Err(MapError::Damaged {
            key: entry.key.clone(),
            what: T::WHAT,
            problem: "it names another node".to_owned(),
        }),
    }
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
            known: DecodedRecords::default(),
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
            // An event that is cut short here is not lost: a watcher delivers it with the next call.
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
                            self.known.nodes.remove(&key);
                            self.known.alive.remove(&key);
                            self.known.disks.remove(&key);
                        }
                    }
                }
            }
            WatchEvent::Reset(reply) => {
                // One that went back is seen by the cluster's record, or by the first change that is made.
                self.revision = reply.revision;
                self.known = DecodedRecords::default();
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
        let (nodes, all_alive, disks) = (keys.nodes(), keys.all_alive(), keys.disks());
        let (classes, users, tiers) = (keys.classes(), keys.users(), keys.tiers());
        let logouts = keys.logouts();
        let (maintenance, next_volume) = (keys.maintenance(), keys.next_volume());
        let (secrets_key, rotation) = (keys.secrets_key(), keys.rotation());
        let (address_pools, holders) = (keys.address_pools(), keys.address_holders());
        let all_removed = keys.all_removed();
        let (all_iscsi, notes) = (keys.all_iscsi(), keys.rotation_notes());
        let mut volumes: BTreeMap<VolumeId, Vec<&Entry>> = BTreeMap::new();
        let mut damaged = Vec::new();
        let known = &mut self.known;
        for (key, entry) in &self.entries {
            let bad = |error: MapError| (key.clone(), entry.modified, error);
            if let Some((volume, _)) = keys.parse_volume(key) {
                volumes.entry(volume).or_default().push(entry);
            } else if nodes.contains(key) {
                match known_as::<NodeRecord>(&mut known.nodes, entry) {
                    Ok(node) => drop(view.nodes.insert(node.value.id, node)),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if all_alive.contains(key) {
                let alive = known_as::<AliveRecord>(&mut known.alive, entry);
                match alive.and_then(|it| its_own(it, entry, |it| keys.alive(it.node))) {
                    Ok(alive) => drop(view.alive.insert(alive.value.node, alive)),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if disks.contains(key) {
                match known_as::<DiskRecord>(&mut known.disks, entry) {
                    Ok(disk) => drop(view.disks.insert(disk.value.id, disk)),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if all_iscsi.contains(key) {
                let iscsi = decode::<IscsiPortals>(entry);
                match iscsi.and_then(|it| its_own(it, entry, |it| keys.iscsi(it.node))) {
                    Ok(iscsi) => drop(view.iscsi.insert(iscsi.value.node, iscsi)),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if notes.contains(key) {
                let note = decode::<RotationNote>(entry);
                match note.and_then(|it| its_own(it, entry, |it| keys.rotation_note(it.node))) {
                    Ok(note) => drop(view.rotation_notes.insert(note.value.node, note)),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if all_removed.contains(key) {
                match decode::<RemovedRecord>(entry) {
                    Ok(removed) => drop(view.removed.insert(removed.value.node, removed)),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if address_pools.contains(key) {
                match decode::<AddressPoolRecord>(entry) {
                    Ok(pool) => drop(view.address_pools.insert(pool.value.name.clone(), pool)),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if holders.contains(key) {
                match decode::<AddressHolder>(entry) {
                    Ok(holder) => drop(view.address_holders.insert(holder.value.address, holder)),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if *key == classes {
                match decode::<ClassesRecord>(entry) {
                    Ok(classes) => view.classes = Some(classes),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if *key == users {
                match decode::<UsersRecord>(entry) {
                    Ok(users) => view.users = Some(users),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if *key == logouts {
                match decode::<LogoutsRecord>(entry) {
                    Ok(logouts) => view.logouts = Some(logouts),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if *key == tiers {
                match decode::<TiersRecord>(entry) {
                    Ok(tiers) => view.tiers = Some(tiers),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if *key == maintenance {
                match decode::<MaintenanceRecord>(entry) {
                    Ok(maintenance) => view.maintenance = Some(maintenance),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if *key == secrets_key {
                match decode::<SecretsKeyRecord>(entry) {
                    Ok(key) => view.secrets_key = Some(key),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if *key == rotation {
                match decode::<RotationRecord>(entry) {
                    Ok(rotation) => view.rotation = Some(rotation),
                    Err(error) => damaged.push(bad(error)),
                }
            } else if *key == next_volume {
                match decode::<NextVolume>(entry) {
                    Ok(next) => view.volume_next = Some(next.value.next),
                    Err(error) => damaged.push(bad(error)),
                }
            }
        }
        known
            .volumes
            .retain(|volume, _| volumes.contains_key(volume));
        for (volume, entries) in volumes {
            let last = entries.iter().map(|entry| entry.modified).max();
            let state = (entries.len(), last.unwrap_or_default());
            if let Some((known, volume_state)) = known.volumes.get(&volume)
                && *known == state
            {
                view.volumes.insert(volume, Arc::clone(volume_state));
                continue;
            }
            let entries: Vec<Entry> = entries.into_iter().cloned().collect();
            match self.map.state_of(&entries) {
                Ok(found) => {
                    let found = Arc::new(found);
                    known.volumes.insert(volume, (state, Arc::clone(&found)));
                    view.volumes.insert(volume, found);
                }
                // Its keys come and go in one transaction, so that this one is damaged, too.
                Err(error) => {
                    known.volumes.remove(&volume);
                    view.unreadable.insert(volume);
                    damaged.push((entries[0].key.clone(), entries[0].modified, error));
                }
            }
        }
        for (key, revision, error) in damaged {
            if self.told.insert((key.clone(), revision)) {
                tracing::error!(%error, "ignoring a value of the cluster map");
            }
            view.damaged.push(key);
        }
        view
    }
}
