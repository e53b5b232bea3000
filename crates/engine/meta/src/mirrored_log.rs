//! The callers' handle of the log on the disks of one server.
//!
//! Owns: which disks keep log and state, and the number of copies. Must not know: the contents of the log, the caller
//! that chooses the disks.

use std::sync::Arc;

use cairn_base::DiskId;
use cairn_base::disk::Disk;
use cairn_formats::metadata::log::SET_COUNT_MAX;

use crate::batch::Batch;
use crate::disks::Preference;
use crate::error::MetaError;
use crate::log::CommitLog;
use crate::shared::StoreCore;

/// A log that is mirrored on disks of one server, which also keep the copies of the state.
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

    /// Changes the number of copies of log and state. When it returns, everything submitted before has that many
    /// copies, as far as there are disks; [`MetaError::CopiesMissing`] if some disk has no space. A call with the
    /// present number retries the missing copies.
    pub async fn set_copies(&self, copies: usize) -> Result<(), MetaError> {
        let copies = copies.clamp(1, SET_COUNT_MAX);
        let is_short = self.shared.log_status.lock().is_short;
        let before = self.shared.disks.want_copies(copies);
        // Missing copies of the state count, too: the log is retained for them.
        let lacks_states =
            !self.shared.refused_states.lock().is_empty() && !self.shared.states_are_complete();
        if copies > before || is_short || lacks_states {
            // First: the log need not copy records that the checkpoint covers.
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

    /// The disk of the working state; it cannot be retired while the store is open.
    pub fn primary_disk(&self) -> DiskId {
        self.shared.disks.get(self.shared.state.disk()).id
    }

    /// Whether log and state may use a disk.
    pub fn keeps_on_disk(&self, id: DiskId) -> bool {
        let disks = &self.shared.disks;
        let index = disks.index_of(id);
        index.is_some_and(|index| !disks.is_retired(index))
    }

    /// Whether a disk may have something that is needed: until [`Self::retire_disk`] succeeds.
    pub fn uses_disk(&self, id: DiskId) -> bool {
        let disks = &self.shared.disks;
        let index = disks.index_of(id);
        index.is_some_and(|index| !disks.is_released(index))
    }

    /// Adds a disk for log and state. A disk that was retired or had failed may come back. Missing copies are made in
    /// the background.
    pub fn add_disk(&self, id: DiskId, disk: Arc<dyn Disk>, preference: Preference) {
        let primary = self.shared.state.disk();
        self.shared.disks.add(id, disk, preference);
        if let Some(index) = self
            .shared
            .disks
            .index_of(id)
            .filter(|index| *index != primary)
        {
            // The copy on the disk may have been removed meanwhile.
            self.shared.states.lock().retain(|(at, _)| *at != index);
            self.shared.refused_states.lock().remove(&index);
        }
        self.shared.ship_in_background();
        // The next group begins another log file, which names the disk.
        self.shared.submit(Batch::new());
    }

    /// Moves everything off a disk. When it returns, everything submitted before, and the state, has its copies on
    /// other disks, as far as there are enough. Fails for the disk of the working state, and while other disks have no
    /// space for the copies: the disk may then hold the only copy of something. Call it again in that case; the disk
    /// gets nothing new meanwhile.
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
            // An earlier call failed. Each call that begins a file for the copies leaves one more file if they find no
            // space. So the next file waits until the state has its copies and the log can be cut.
            self.shared.ship_now().await?;
            self.check_states()?;
            if self.shared.log_status.lock().is_short {
                self.shared.disks.ask_for_copies();
            }
        }
        // The next group begins another log file, which does not name the disk. The checkpoints then cover the older
        // files.
        self.begin_file().await?;
        self.check_copies()?;
        self.shared.ship_now().await?;
        // No copy may be on its way to the disk when it is released.
        let _shipping = self.shared.shipping.lock().await;
        // The disk may have the only other copy.
        self.check_states()?;
        // An old copy there is of no use, and would keep the disk from being closed.
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
