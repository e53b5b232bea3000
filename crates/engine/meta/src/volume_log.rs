//! The log of a volume, of either kind.
//!
//! Owns: the operations that the pool needs of both kinds. Must not know: how either kind works.

use std::sync::Arc;

use cairn_base::DiskId;
use cairn_base::disk::Disk;

use crate::disks::Preference;
use crate::error::MetaError;
use crate::log::CommitLog;
use crate::log::ensemble::EnsembleLog;
use crate::mirrored_log::MirroredLog;

pub enum VolumeLog {
    /// On the disks of one server.
    Mirrored(MirroredLog),
    /// On disks of several nodes.
    Ensembles(EnsembleLog),
}

/// A log on several nodes waits with fewer copies than this, if at least this many are wanted.
const COPIES_LEAST: usize = 2;

impl CommitLog for VolumeLog {
    fn stop(&self) {
        match self {
            Self::Mirrored(log) => log.stop(),
            Self::Ensembles(log) => log.stop(),
        }
    }
}

impl VolumeLog {
    /// The fewest copies with which a log on several nodes goes on, if `wanted` are wanted.
    pub fn copies_least(wanted: usize) -> usize {
        wanted.min(COPIES_LEAST)
    }

    /// [`MirroredLog::set_copies`]. On several nodes the copies are made in the background.
    pub async fn set_copies(&self, copies: usize) -> Result<(), MetaError> {
        match self {
            Self::Mirrored(log) => log.set_copies(copies).await,
            Self::Ensembles(log) => {
                log.set_copies(copies, Self::copies_least(copies));
                Ok(())
            }
        }
    }

    /// The disk of the working state; it cannot be retired while the store is open.
    pub fn primary_disk(&self) -> DiskId {
        match self {
            Self::Mirrored(log) => log.primary_disk(),
            Self::Ensembles(log) => log.primary_disk(),
        }
    }

    /// Whether log and state may use a disk.
    pub fn keeps_on_disk(&self, id: DiskId) -> bool {
        match self {
            Self::Mirrored(log) => log.keeps_on_disk(id),
            // The next file may use it.
            Self::Ensembles(_) => true,
        }
    }

    /// Whether a disk may have something that is needed: until [`Self::retire_disk`] succeeds.
    pub fn uses_disk(&self, id: DiskId) -> bool {
        match self {
            Self::Mirrored(log) => log.uses_disk(id),
            Self::Ensembles(log) => log.uses_disk(id),
        }
    }

    /// [`MirroredLog::add_disk`]. A log on several nodes finds its disks itself.
    pub fn add_disk(&self, id: DiskId, disk: Arc<dyn Disk>, preference: Preference) {
        match self {
            Self::Mirrored(log) => log.add_disk(id, disk, preference),
            Self::Ensembles(_) => {}
        }
    }

    /// Moves everything off a disk: [`MirroredLog::retire_disk`], [`EnsembleLog::retire_disk`].
    pub async fn retire_disk(&self, id: DiskId) -> Result<(), MetaError> {
        match self {
            Self::Mirrored(log) => log.retire_disk(id).await,
            Self::Ensembles(log) => log.retire_disk(id).await,
        }
    }
}
