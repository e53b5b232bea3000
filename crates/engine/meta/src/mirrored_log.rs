//! The log on the disks of one server, as its callers see it.
//!
//! Owns: which disks log and state are kept on, and on how many of them. Must not know: what is in the log, who
//! decides over the disks.

use std::sync::Arc;

use cairn_base::DiskId;
use cairn_base::disk::Disk;
use cairn_formats::metadata::log::SET_COUNT_MAX;

use crate::batch::Batch;
use crate::disks::Preference;
use crate::error::MetaError;
use crate::log::CommitLog;
use crate::shared::StoreCore;

/// A log that is mirrored on disks of one server, where the copies of the state are as well.
pub struct MirroredLog {
    shared: Arc<StoreCore>,
}

impl CommitLog for MirroredLog {
    fn stop(&self) {
        self.shared.disks.give_all_up();
    }
}

impl MirroredLog {
    pub(crate) fn new(shared: Arc<StoreCore>) -> Self {
        Self { shared }
    }

    /// Changes how many copies of log and state are kept. When it returns, everything submitted before
    /// has as many as there are disks for; [`MetaError::CopiesMissing`] if there is no space for some.
    /// Asked for what is set already, it makes copies that could not be made before.
    pub async fn set_copies(&self, copies: usize) -> Result<(), MetaError> {
        let copies = copies.clamp(1, SET_COUNT_MAX);
        let is_short = self.shared.log_status.lock().is_short;
        let before = self.shared.disks.want_copies(copies);
        // Of the state, too: as long as one is missing, the log is kept for it.
        let lacks_states =
            !self.shared.refused_states.lock().is_empty() && !self.shared.states_are_complete();
        if copies > before || is_short || lacks_states {
            // First: what is in the checkpoint does not have to be copied with the log.
            self.shared.ship_now().await?;
        }
        if is_short {
            self.shared.disks.ask_for_copies();
        }
        if copies != before || is_short {
            // The next group begins another log file.
            self.begin_file().await?;
        }
        self.check_copies()
    }

    fn check_copies(&self) -> Result<(), MetaError> {
        let volume = self.shared.disks.volume;
        match self.shared.log_status.lock().is_short {
            true => Err(MetaError::CopiesMissing { volume }),
            false => Ok(()),
        }
    }

    fn check_states(&self) -> Result<(), MetaError> {
        let volume = self.shared.disks.volume;
        match self.shared.states_are_complete() {
            false => Err(MetaError::CopiesMissing { volume }),
            true => Ok(()),
        }
    }

    /// The disk that the state is worked with on; it cannot be retired while the store is open.
    pub fn primary_disk(&self) -> DiskId {
        self.shared.disks.get(self.shared.state.disk()).id
    }

    /// Whether log and state may be kept on a disk.
    pub fn keeps_on_disk(&self, id: DiskId) -> bool {
        let disks = &self.shared.disks;
        let index = disks.index_of(id);
        index.is_some_and(|index| !disks.is_retired(index))
    }

    /// Whether a disk may have something that is needed: as long as [`Self::retire_disk`] has not succeeded.
    pub fn uses_disk(&self, id: DiskId) -> bool {
        let disks = &self.shared.disks;
        let index = disks.index_of(id);
        index.is_some_and(|index| !disks.is_released(index))
    }

    /// Adds a disk to those that log and state can be kept on; one that was retired or had failed may
    /// come back. Copies that are missing are made in the background.
    pub fn add_disk(&self, id: DiskId, disk: Arc<dyn Disk>, preference: Preference) {
        let primary = self.shared.state.disk();
        self.shared.disks.add(id, disk, preference);
        if let Some(index) = self
            .shared
            .disks
            .index_of(id)
            .filter(|index| *index != primary)
        {
            // What it had may have been removed meanwhile.
            self.shared.states.lock().retain(|(at, _)| *at != index);
            self.shared.refused_states.lock().remove(&index);
        }
        self.shared.ship_in_background();
        // The next group begins another log file, which names the disk.
        self.shared.submit(Batch::new());
    }

    /// Keeps nothing on a disk any more. When it returns, everything submitted before has its copies on
    /// the others, as far as there are enough, and so has the state. Fails for the disk of the state itself, and as
    /// long as there is no space for the copies: the disk may hold the only one of something then. To be called again after that;
    /// nothing new is put on the disk meanwhile.
    pub async fn retire_disk(&self, id: DiskId) -> Result<(), MetaError> {
        let Some(index) = self.shared.disks.index_of(id) else {
            return Ok(());
        };
        if self.shared.disks.is_released(index) {
            return Ok(());
        }
        if index == self.shared.state.disk() {
            return Err(MetaError::State(format!(
                "the state is on disk {id}; open the volume on other disks"
            )));
        }
        if !self.shared.disks.retire(index) {
            // It was tried before. Each try that begins a file for the copies leaves one more where they find no
            // space: only when the state has its copies, so that the log can be cut.
            self.shared.ship_now().await?;
            self.check_states()?;
            if self.shared.log_status.lock().is_short {
                self.shared.disks.ask_for_copies();
            }
        }
        // The next group begins another log file, which does not name the disk; what older ones hold is in
        // the checkpoints then.
        self.begin_file().await?;
        self.check_copies()?;
        self.shared.ship_now().await?;
        // No copy is on its way there when it is let go.
        let _shipping = self.shared.shipping.lock().await;
        // The disk may have the only other one.
        self.check_states()?;
        // An old one there is of no use to anybody, and would keep the disk from being closed.
        self.shared.leave_superseded(|disk| disk == index);
        self.shared.disks.release(index);
        Ok(())
    }

    /// Waits until the next group is durable, which begins another log file after a change of disks.
    async fn begin_file(&self) -> Result<(), MetaError> {
        self.shared
            .durable(self.shared.submit(Batch::new()).0)
            .await
    }
}
