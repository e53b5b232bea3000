//! Fences: before a volume is served, its disks refuse its earlier owners.
//!
//! Owns: requesting the disks' promises, the disks that have not answered, and the end of a volume when a disk reports
//! a newer owner. Must not know: how a disk keeps a promise, where epochs come from.
//!
//! An unresponsive disk delays nothing. Until it has promised, it counts as missing: it may be read, since reads are
//! verified, but it gets no changes. A disk that joins later is asked at once. If a change arrived there before the
//! answer, the disk would itself make the promise first. A faulted disk is asked when it works again: it may recover by
//! itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cairn_base::disk::DiskError;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, Epoch, VolumeId};
use cairn_shard::{ShardError, ShardService};
use parking_lot::Mutex;

use crate::error::{Result, SegmentError};
use crate::overdue::DiskOp;
use crate::store::SegmentStore;

/// Pause before a disk that refused to promise is asked again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Tries for a volume that is not open yet: its disks are asked before its metadata is read.
const OPENING_TRIES_MAX: u32 = 60;

/// Disks that have not promised yet.
#[derive(Default)]
pub(crate) struct Unfenced {
    /// Length of `waiting`, so that callers need no lock while it is empty.
    count: AtomicUsize,
    waiting: Mutex<BTreeMap<(DiskId, VolumeId), PendingPromise>>,
}

/// A promise that a disk has not made yet.
#[derive(Clone, Copy)]
struct PendingPromise {
    epoch: Epoch,
    /// The disk works, and has no room to store the promise.
    is_full: bool,
}

impl Unfenced {
    fn add(&self, disk: DiskId, volume: VolumeId, asked: PendingPromise) {
        let mut waiting = self.waiting.lock();
        waiting.insert((disk, volume), asked);
        self.count.store(waiting.len(), Ordering::Release);
    }

    /// Removes the entry, unless a later epoch waits for the disk.
    fn remove(&self, disk: DiskId, volume: VolumeId, epoch: Epoch) {
        let mut waiting = self.waiting.lock();
        if waiting
            .get(&(disk, volume))
            .is_some_and(|asked| asked.epoch == epoch)
        {
            waiting.remove(&(disk, volume));
        }
        self.count.store(waiting.len(), Ordering::Release);
    }

    pub fn has(&self, disk: DiskId) -> bool {
        self.any_of(disk, |_| true)
    }

    /// Whether a disk has not promised, for a reason other than lack of space.
    pub fn has_silent(&self, disk: DiskId) -> bool {
        self.any_of(disk, |asked| !asked.is_full)
    }

    fn any_of(&self, disk: DiskId, is_wanted: impl Fn(&PendingPromise) -> bool) -> bool {
        let of_disk = (disk, VolumeId(0))..=(disk, VolumeId(u32::MAX));
        self.count.load(Ordering::Acquire) > 0
            && self
                .waiting
                .lock()
                .range(of_disk)
                .any(|(_, asked)| is_wanted(asked))
    }

    fn is_waiting(&self, disk: DiskId, volume: VolumeId, epoch: Epoch) -> bool {
        let waiting = self.waiting.lock();
        waiting
            .get(&(disk, volume))
            .is_some_and(|asked| asked.epoch == epoch)
    }
}

impl SegmentStore {
    /// Has all disks refuse owners of a volume before `epoch`. Disks that do not answer in time are asked again in the
    /// background, and count as missing until they have promised. Fails with `Fenced` if a disk has promised a higher
    /// epoch.
    pub async fn fence(self: &Arc<Self>, volume: VolumeId, epoch: Epoch) -> Result<()> {
        if planted::is(Bug::DisksOfDataNotFenced) {
            return Ok(());
        }
        let members = self.members();
        let (failed, working): (Vec<_>, Vec<_>) = members
            .all()
            .filter(|disk| !self.unfenced.is_waiting(disk.id(), volume, epoch))
            .cloned()
            .partition(|disk| disk.health().failed);
        let ops = working.iter().map(|disk| DiskOp {
            disk: disk.id(),
            run: disk.clone().fence(volume, epoch),
        });
        let results = self.run_or_leave(ops.collect(), working.len()).await;
        let mut newest = None;
        for (disk, result) in working.into_iter().zip(results) {
            let mut is_full = false;
            match result {
                Some(Ok(())) => continue,
                Some(Err(ShardError::Fenced { promised, .. })) => {
                    newest = newest.max(Some(promised));
                    continue;
                }
                Some(Err(error)) => {
                    is_full = matches!(error, ShardError::Disk(DiskError::Full { .. }));
                    tracing::warn!(%volume, %error, "a disk does not refuse earlier owners yet; it counts as away");
                }
                None => {
                    tracing::warn!(%volume, disk = disk.label(), "a disk does not say whether it refuses earlier owners; it counts as away");
                }
            }
            self.unfenced
                .add(disk.id(), volume, PendingPromise { epoch, is_full });
            self.fence_later(disk, volume, epoch);
        }
        for disk in failed {
            let is_full = false;
            self.unfenced
                .add(disk.id(), volume, PendingPromise { epoch, is_full });
            self.fence_later(disk, volume, epoch);
        }
        match newest {
            Some(promised) => Err(SegmentError::Fenced {
                volume,
                epoch,
                promised,
            }),
            None => Ok(()),
        }
    }

    /// Asks a disk that joined for its promise to all open volumes.
    pub(crate) fn fence_joined(self: &Arc<Self>, disk: &Arc<dyn ShardService>) {
        for (volume, epoch) in self.epochs() {
            self.fence_later(disk.clone(), volume, epoch);
        }
    }

    /// Asks a disk until it has promised, as long as that is needed. A faulted disk is not asked meanwhile.
    fn fence_later(self: &Arc<Self>, disk: Arc<dyn ShardService>, volume: VolumeId, epoch: Epoch) {
        let store = self.clone();
        let task = async move {
            let (mut was_open, mut tries) = (false, 0);
            loop {
                if !disk.health().failed {
                    match disk.clone().fence(volume, epoch).await {
                        Ok(()) => break,
                        Err(error @ ShardError::Fenced { .. }) => {
                            store.note_fenced(&error);
                            break;
                        }
                        Err(error) => {
                            tracing::debug!(%volume, %error, "a disk has not promised yet");
                        }
                    }
                }
                store.env.clock.sleep(RETRY_AFTER).await;
                tries += 1;
                let is_needed = match store.volume(volume).map(|open| open.epoch) {
                    Ok(open) if open >= epoch => {
                        was_open = open == epoch;
                        was_open
                    }
                    _ => !was_open && tries < OPENING_TRIES_MAX,
                };
                let now = store.disk(disk.id());
                let is_member = now.is_some_and(|now| Arc::ptr_eq(&now, &disk));
                if !is_needed || !is_member {
                    break;
                }
            }
            store.unfenced.remove(disk.id(), volume, epoch);
        };
        self.env.spawner.spawn("fence", Box::pin(task));
    }

    /// If a disk refused because of a newer owner, the volume ends here: nothing more is acknowledged. That is no fault
    /// of the disk.
    pub(crate) fn note_fenced(&self, error: &ShardError) -> Option<SegmentError> {
        let ShardError::Fenced {
            volume,
            epoch,
            promised,
            ..
        } = error
        else {
            return None;
        };
        let fenced = SegmentError::Fenced {
            volume: *volume,
            epoch: *epoch,
            promised: *promised,
        };
        // A volume that was reopened has another owner.
        if let Ok(open) = self.volume(*volume)
            && open.epoch == *epoch
            && open.fenced.set(*promised).is_ok()
        {
            tracing::error!(%fenced, "this volume has another owner; it is not changed here any more");
        }
        Some(fenced)
    }
}
