//! The volume's records as etcd has them: what no owner may ever write there.
//!
//! Owns: the check of each change of a volume's owner, epoch and log against the one before.
//! Must not know: who writes them and how, whether anybody noticed.
//!
//! A wrong change may do no harm today, since something else stands in front of it. It is wrong all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_base::{DiskId, Epoch, NodeId};
use cairn_cluster::coordinator::{Change, Entry, WatchEvent};
use cairn_cluster::map::values::decode;
use cairn_cluster::map::{DiskRecord, EpochRecord, Keys, LogRecord, OwnerRecord, VolumeLog};
use cairn_cluster::{MapError, MemoryCoordinator, Revision};
use parking_lot::Mutex;

use super::node::NAME;
use super::terms::Terms;
use crate::world::VOLUME;

/// What etcd has of the volume, as far as it was looked at.
pub struct MapRules {
    terms: Arc<Terms>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    epoch: Epoch,
    owner: Option<OwnerRecord>,
    log: VolumeLog,
    nodes: BTreeMap<DiskId, NodeId>,
}

impl MapRules {
    pub fn new(terms: Arc<Terms>) -> Arc<Self> {
        Arc::new(Self {
            terms,
            seen: Mutex::default(),
        })
    }

    /// The node that etcd says owns the volume.
    pub fn holder(&self) -> Option<NodeId> {
        self.seen.lock().owner.as_ref().map(|owner| owner.node)
    }

    /// Looks at each change, for ever.
    pub async fn watch(self: Arc<Self>, store: MemoryCoordinator) {
        let keys = Keys::new(NAME);
        let from = Revision(store.revision().0 + 1);
        let mut watcher = store.client("rules").watch(keys.all(), from);
        loop {
            let changes = match watcher.next().await {
                WatchEvent::Changes { changes, .. } => changes,
                WatchEvent::Reset(_) => return self.terms.fail("changes of the map are missing"),
            };
            for change in changes {
                if let Err(error) = self.look(&keys, &change) {
                    self.terms
                        .fail(format!("what etcd has makes no sense: {error}"));
                }
            }
        }
    }

    fn look(&self, keys: &Keys, change: &Change) -> Result<(), MapError> {
        let mut seen = self.seen.lock();
        let (owner, epoch, log) = (keys.owner(VOLUME), keys.epoch(VOLUME), keys.log(VOLUME));
        let entry = match change {
            Change::Deleted { key, .. } => {
                if *key == owner {
                    seen.owner = None;
                }
                return Ok(());
            }
            Change::Put(entry) => entry,
        };
        let problem = match &entry.key {
            key if *key == owner => seen.take_owner(entry)?,
            key if *key == epoch => seen.take_epoch(entry)?,
            key if *key == log => seen.take_log(entry)?,
            key if keys.disks().contains(key) => {
                let disk = decode::<DiskRecord>(entry)?.value;
                seen.nodes.insert(disk.id, disk.node);
                None
            }
            _ => None,
        };
        if let Some(problem) = problem {
            self.terms.fail(format!("in etcd: {problem}"));
        }
        Ok(())
    }
}

impl Seen {
    fn take_owner(&mut self, entry: &Entry) -> Result<Option<String>, MapError> {
        let owner = decode::<OwnerRecord>(entry)?.value;
        let before = self.owner.replace(owner.clone());
        // The new epoch is in the same revision, and may be looked at first.
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

    fn take_log(&mut self, entry: &Entry) -> Result<Option<String>, MapError> {
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
        // Copies of what is written now: two on one node are lost together.
        let open = log.open().map_or(&[][..], |open| &open.disks);
        let nodes: BTreeSet<&NodeId> = open.iter().filter_map(|id| self.nodes.get(id)).collect();
        Ok((nodes.len() < open.len())
            .then(|| format!("the open part of the log has two of its disks {open:?} on one node")))
    }
}
