//! The list that the nodes agree on, as its owner changes it: which disks have the log, and which have a copy of the
//! state.
//!
//! Owns: the last known revision, one change at a time, the end after a failed change. Must not know: the reason for a
//! change.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use cairn_base::{DiskId, VolumeId};
use cairn_shard::ShardService;
use parking_lot::Mutex;

use super::{Agreement, AgreementError, Seat, VolumeList};
use crate::error::MetaError;

/// Shared by the log writer and the task that copies the state: each changes its own part.
pub(crate) struct AgreedList {
    volume: VolumeId,
    agreement: Arc<dyn Agreement>,
    state: tokio::sync::Mutex<State>,
    /// The list as of the last change.
    seen: Mutex<VolumeList>,
    /// Disks that were swept for unneeded files of this volume.
    swept: Mutex<BTreeMap<DiskId, Weak<dyn ShardService>>>,
}

struct State {
    revision: u64,
    /// Set by the first failed change: after it the owner knows no revision that another change could begin from.
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

    /// Changes the list. After an error all further changes fail.
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

    /// Whether a disk needs a sweep now: once in a term, and again after the disk failed or was reopened, because a
    /// crash can bring removed files back.
    pub fn wants_sweep(&self, disk: &Arc<dyn ShardService>) -> bool {
        let swept = self.swept.lock();
        let seen = swept.get(&disk.id()).and_then(Weak::upgrade);
        !seen.is_some_and(|seen| Arc::ptr_eq(&seen, disk))
    }

    pub fn note_swept(&self, disk: &Arc<dyn ShardService>) {
        self.swept.lock().insert(disk.id(), Arc::downgrade(disk));
    }

    /// Notes that files may remain on a disk that did not answer.
    pub fn note_unswept(&self, disk: DiskId) {
        self.swept.lock().remove(&disk);
    }
}
