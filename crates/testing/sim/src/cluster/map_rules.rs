//! Rules for the volumes in etcd: entries that no owner may ever write.
//!
//! Owns: the volumes that etcd lists, the check of each change of a volume's owner, epoch and log against the previous
//! entry. Must not know: the writers, whether any of them noticed.
//!
//! Another rule may keep a wrong change from doing harm today. It is still wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_base::{DiskId, Epoch, NodeId, VolumeId};
use cairn_cluster::coordinator::{Change, Entry, WatchEvent};
use cairn_cluster::map::values::decode;
use cairn_cluster::map::{
    DiskRecord, EpochRecord, Keys, LogRecord, OwnerRecord, VolumeLog, VolumeRecord,
};
use cairn_cluster::{MapError, MemoryCoordinator, Revision};
use cairn_formats::settings::VolumeName;
use parking_lot::Mutex;

use super::failure::FirstFailure;
use super::node::NAME;

/// No volume of a run goes on with fewer copies.
const COPIES_LEAST: usize = 2;

/// The contents of etcd, as far as they were checked.
pub struct MapRules {
    failure: Arc<FirstFailure>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    volumes: BTreeMap<VolumeId, SeenVolume>,
    /// Numbers of deleted volumes; they are never reused.
    deleted: BTreeSet<VolumeId>,
    nodes: BTreeMap<DiskId, NodeId>,
}

#[derive(Default)]
struct SeenVolume {
    name: String,
    epoch: Epoch,
    owner: Option<OwnerRecord>,
    log: VolumeLog,
}

impl MapRules {
    pub fn new(failure: Arc<FirstFailure>) -> Arc<Self> {
        Arc::new(Self {
            failure,
            seen: Mutex::default(),
        })
    }

    /// The owner of the volume according to etcd.
    pub fn holder(&self, volume: VolumeId) -> Option<NodeId> {
        let seen = self.seen.lock();
        let owner = seen.volumes.get(&volume)?.owner.as_ref()?;
        Some(owner.node)
    }

    pub fn node_of(&self, disk: DiskId) -> Option<NodeId> {
        self.seen.lock().nodes.get(&disk).copied()
    }

    /// The number of the volume with this name.
    pub fn id_of(&self, name: &VolumeName) -> Option<VolumeId> {
        let (seen, name) = (self.seen.lock(), name.to_string());
        let mut all = seen.volumes.iter();
        all.find(|(_, volume)| volume.name == name)
            .map(|(id, _)| *id)
    }

    /// Checks each change, for ever.
    pub async fn watch(self: Arc<Self>, store: MemoryCoordinator) {
        let keys = Keys::new(NAME);
        let from = Revision(store.revision().0 + 1);
        let mut watcher = store.client("rules").watch(keys.all(), from);
        loop {
            let changes = match watcher.next().await {
                WatchEvent::Changes { changes, .. } => changes,
                WatchEvent::Reset(_) => return self.failure.note("changes of the map are missing"),
            };
            for change in changes {
                if let Err(error) = self.look(&keys, &change) {
                    self.failure
                        .note(format!("what etcd has makes no sense: {error}"));
                }
            }
        }
    }

    fn look(&self, keys: &Keys, change: &Change) -> Result<(), MapError> {
        let mut seen = self.seen.lock();
        let entry = match change {
            Change::Deleted { key, .. } => {
                match keys.parse_volume(key) {
                    Some((id, "record")) => {
                        seen.volumes.remove(&id);
                        seen.deleted.insert(id);
                    }
                    Some((id, "owner")) => {
                        if let Some(volume) = seen.volumes.get_mut(&id) {
                            volume.owner = None;
                        }
                    }
                    _ => {}
                }
                return Ok(());
            }
            Change::Put(entry) => entry,
        };
        if keys.disks().contains(&entry.key) {
            let disk = decode::<DiskRecord>(entry)?.value;
            seen.nodes.insert(disk.id, disk.node);
            return Ok(());
        }
        let Some((id, field)) = keys.parse_volume(&entry.key) else {
            return Ok(());
        };
        let Seen {
            volumes,
            deleted,
            nodes,
        } = &mut *seen;
        let problem = if deleted.contains(&id) {
            Some(format!("{field} is written after the volume was deleted"))
        } else {
            let volume = volumes.entry(id).or_default();
            match field {
                "record" => {
                    volume.name = decode::<VolumeRecord>(entry)?.value.name;
                    None
                }
                "owner" => volume.take_owner(entry)?,
                "epoch" => volume.take_epoch(entry)?,
                "log" => volume.take_log(entry, nodes)?,
                _ => None,
            }
        };
        if let Some(problem) = problem {
            self.failure
                .note(format!("in etcd: volume {id}: {problem}"));
        }
        Ok(())
    }
}

impl SeenVolume {
    fn take_owner(&mut self, entry: &Entry) -> Result<Option<String>, MapError> {
        let owner = decode::<OwnerRecord>(entry)?.value;
        let before = self.owner.replace(owner.clone());
        // The new epoch is in the same revision, and may be checked first.
        let is_known = before.is_some_and(|before| before.epoch >= owner.epoch);
        Ok((is_known || owner.epoch < self.epoch).then(|| {
            let (node, epoch) = (owner.node, owner.epoch);
            format!("node {node} takes the volume in {epoch}, which is no new epoch")
        }))
    }

    fn take_epoch(&mut self, entry: &Entry) -> Result<Option<String>, MapError> {
        let epoch = decode::<EpochRecord>(entry)?.value.epoch;
        let before = std::mem::replace(&mut self.epoch, epoch);
        // A new volume has epoch 0.
        let is_wrong = epoch <= before && before > Epoch(0);
        Ok(is_wrong.then(|| format!("{epoch} follows {before}")))
    }

    fn take_log(
        &mut self,
        entry: &Entry,
        nodes: &BTreeMap<DiskId, NodeId>,
    ) -> Result<Option<String>, MapError> {
        let log = decode::<LogRecord>(entry)?.value.log;
        let before = std::mem::replace(&mut self.log, log.clone());
        if before.ensembles.is_empty() {
            return Ok(None);
        }
        if let Some(problem) = before.problem_with(&log, self.epoch) {
            let epoch = self.epoch;
            return Ok(Some(format!(
                "a change of the log in {epoch} does not follow the one before: {problem}"
            )));
        }
        // Copies on one node are lost together, and a single copy is too few. A sealed part keeps its disks beside
        // their replacements.
        let open = log.open().map(|open| open.id);
        let problem = log.ensembles.iter().find_map(|part| {
            let (number, disks) = (part.id, &part.disks);
            let on: BTreeSet<&NodeId> = disks.iter().filter_map(|id| nodes.get(id)).collect();
            match () {
                () if open == Some(number) && on.len() < disks.len() => Some(format!(
                    "the open part {number} of the log has two of its disks {disks:?} on one node"
                )),
                () if disks.len() < COPIES_LEAST => Some(format!(
                    "part {number} of the log has no more copies than {disks:?}"
                )),
                () => None,
            }
        });
        Ok(problem)
    }
}
