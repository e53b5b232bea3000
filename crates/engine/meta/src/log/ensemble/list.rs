//! The list that the nodes agree on, as its owner changes it: which disks have the log, and which a copy of the state.
//!
//! Owns: the last revision that is known, one change at a time, the end after one that failed.
//! Must not know: why anybody changes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use cairn_base::{DiskId, VolumeId};
use cairn_shard::ShardService;
use parking_lot::Mutex;

use super::{Agreement, AgreementError, Seat, VolumeList};
use crate::error::MetaError;

/// Shared by who writes the log and who makes copies of the state: each changes its own part.
pub(crate) struct AgreedList {
    volume: VolumeId,
    agreement: Arc<dyn Agreement>,
    state: tokio::sync::Mutex<State>,
    /// As of the last change.
    seen: Mutex<VolumeList>,
    /// Disks that were looked through for files of this volume that nobody needs any more.
    swept: Mutex<BTreeMap<DiskId, Weak<dyn ShardService>>>,
}

struct State {
    revision: u64,
    /// Whoever could not make a change knows no list any more that a further change could begin from.
    failed: Option<MetaError>,
}

impl AgreedList {
    pub fn new(seat: &Seat) -> Self {
        Self {
            volume: seat.volume,
            agreement: seat.agreement.clone(),
            state: tokio::sync::Mutex::new(State {
                revision: seat.revision,
                failed: None,
            }),
            seen: Mutex::new(seat.list.clone()),
            swept: Mutex::default(),
        }
    }

    pub fn get(&self) -> VolumeList {
        self.seen.lock().clone()
    }

    /// Changes the list. After an error it changes no more.
    pub async fn change(&self, alter: impl FnOnce(&mut VolumeList)) -> Result<(), MetaError> {
        let mut state = self.state.lock().await;
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let mut list = self.get();
        alter(&mut list);
        let volume = self.volume;
        match self.agreement.change(state.revision, list.clone()).await {
            Ok(revision) => {
                state.revision = revision;
                *self.seen.lock() = list;
                Ok(())
            }
            Err(error) => {
                let error = match error {
                    AgreementError::Refused => MetaError::NotOwner { volume },
                    AgreementError::Unknown(why) => MetaError::Agreement { volume, why },
                };
                state.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Whether a disk is to be looked through now: once in a term, and again after it failed or was opened again, because
    /// a crash can bring back what was removed.
    pub fn wants_sweep(&self, disk: &Arc<dyn ShardService>) -> bool {
        let swept = self.swept.lock();
        let seen = swept.get(&disk.id()).and_then(Weak::upgrade);
        !seen.is_some_and(|seen| Arc::ptr_eq(&seen, disk))
    }

    pub fn note_swept(&self, disk: &Arc<dyn ShardService>) {
        self.swept.lock().insert(disk.id(), Arc::downgrade(disk));
    }

    /// Files may have stayed on a disk that did not answer.
    pub fn note_unswept(&self, disk: DiskId) {
        self.swept.lock().remove(&disk);
    }
}
