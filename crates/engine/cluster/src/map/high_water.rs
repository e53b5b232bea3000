//! Noticing that the store went back.
//!
//! Owns: the highest state of the map that this node saw, and the refusal of a lower one.
//! Must not know: where it is kept; a node keeps it on its disks.

use std::fmt;
use std::sync::Arc;

use cairn_base::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use super::values::{ClusterId, ClusterRecord, MapGeneration, Versioned, decode};
use super::{ClusterMap, MapError};
use crate::coordinator::{Entry, Revision};

/// A state of a cluster's map. A higher generation is later, whatever the revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HighWater {
    pub cluster: ClusterId,
    pub generation: MapGeneration,
    pub revision: u64,
}

impl fmt::Display for HighWater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "generation {}, revision {}",
            self.generation, self.revision
        )
    }
}

impl HighWater {
    fn order(&self) -> (MapGeneration, u64) {
        (self.generation, self.revision)
    }
}

/// Where a node keeps the highest state that it saw: it must be there after a crash.
pub trait HighWaterStore: Send + Sync + 'static {
    fn load(&self) -> Result<Option<HighWater>, String>;
    fn store(&self, seen: HighWater) -> Result<(), String>;
}

pub(super) struct HighWaterState {
    highest: HighWater,
    stored: HighWater,
    store: Arc<dyn HighWaterStore>,
}

impl HighWaterState {
    /// Compares what the store has with what this node saw before.
    pub fn begin(
        store: Arc<dyn HighWaterStore>,
        record: &ClusterRecord,
        revision: Revision,
    ) -> Result<Self, MapError> {
        let found = HighWater {
            cluster: record.id,
            generation: record.generation,
            revision: revision.0,
        };
        let seen = store.load().map_err(MapError::HighWater)?;
        if let Some(seen) = seen {
            if seen.cluster != found.cluster {
                return Err(MapError::OtherCluster {
                    ours: seen.cluster,
                    theirs: found.cluster,
                });
            }
            if found.order() < seen.order() && !planted::is(Bug::OldBackupAccepted) {
                return Err(MapError::WentBack { found, seen });
            }
        }
        if seen != Some(found) {
            store.store(found).map_err(MapError::HighWater)?;
        }
        Ok(Self {
            highest: found,
            stored: found,
            store,
        })
    }
}

impl ClusterMap {
    /// The revision below which no reply may be to a request that is sent now.
    pub(super) fn floor(&self) -> Revision {
        Revision(self.shared.seen.lock().highest.revision)
    }

    /// Takes note of a reply to a request that was sent when `floor` was the highest revision known.
    pub(super) fn saw(&self, floor: Revision, revision: Revision) -> Result<(), MapError> {
        let mut seen = self.shared.seen.lock();
        if revision < floor && !planted::is(Bug::OldBackupAccepted) {
            return Err(MapError::WentBack {
                found: HighWater {
                    revision: revision.0,
                    ..seen.highest
                },
                seen: seen.highest,
            });
        }
        seen.highest.revision = seen.highest.revision.max(revision.0);
        Ok(())
    }

    /// Takes note of what was followed up to a revision, and keeps the highest state that was seen. To be called before anything
    /// is done that follows from a change.
    pub fn remember_followed(&self, revision: Revision) -> Result<(), MapError> {
        {
            let mut seen = self.shared.seen.lock();
            seen.highest.revision = seen.highest.revision.max(revision.0);
        }
        self.remember()
    }

    /// Keeps the highest state that was seen. The map does so itself where it matters most: when a volume is taken over
    /// and when its log changes. A node that watches calls [`Self::remember_followed`].
    pub fn remember(&self) -> Result<(), MapError> {
        let mut seen = self.shared.seen.lock();
        if seen.highest != seen.stored {
            seen.store
                .store(seen.highest)
                .map_err(MapError::HighWater)?;
            seen.stored = seen.highest;
        }
        Ok(())
    }

    /// Whether the cluster's record is still the one that this map was opened with.
    pub(super) fn check_cluster(
        &self,
        entry: Option<&Entry>,
        revision: Revision,
    ) -> Result<(), MapError> {
        let ours = &self.shared.cluster;
        let found: Option<Versioned<ClusterRecord>> = entry.map(decode).transpose()?;
        match found {
            Some(found) if found.revision == ours.revision => Ok(()),
            Some(found) => Err(MapError::Replaced {
                found: HighWater {
                    cluster: found.value.id,
                    generation: found.value.generation,
                    revision: revision.0,
                },
            }),
            None => Err(MapError::NotFound {
                key: self.keys().cluster(),
                what: "the cluster's record",
            }),
        }
    }
}
