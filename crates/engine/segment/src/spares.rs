//! Spare shard files, written in idle moments, so that new segments overwrite instead of allocating.
//!
//! Owns: the room of spares, and when they are given back. Must not know: when the pool is idle; the caller decides
//! when to call.

use std::sync::Arc;

use cairn_shard::{ShardService, file_len_bytes};

use crate::store::SegmentStore;

/// A spare must leave this part of its disk free.
const FREE_PART_MIN: u64 = 8;

impl SegmentStore {
    /// Makes one spare file where there are fewer than `bytes_per_disk` of them and room is ample; gives spares back
    /// where room became short. Returns whether there may be more to do.
    ///
    /// Takes as long as writing one shard; a caller with other work waits before the next call.
    pub async fn tend_spares(&self, bytes_per_disk: u64) -> bool {
        let capacity_bytes = self.settings.shard_len_bytes;
        let Some(len_bytes) = file_len_bytes(capacity_bytes) else {
            return false;
        };
        let wanted = usize::try_from(bytes_per_disk / len_bytes).unwrap_or(usize::MAX);
        // Evenly: a segment needs one on each disk.
        let mut disks: Vec<(usize, Arc<dyn ShardService>)> = self
            .roomy_disks()
            .into_iter()
            .map(|disk| (disk.recycled_count(capacity_bytes), disk))
            .collect();
        disks.sort_by_key(|(count, disk)| (*count, disk.id()));
        for (count, disk) in disks {
            let Some(room) = Room::of(&*disk) else {
                continue;
            };
            if self.give_back_spares(&disk, room).await {
                continue;
            }
            if count >= wanted || !room.is_ample(len_bytes) {
                continue;
            }
            if let Err(error) = disk.prepare_recycled(count + 1, capacity_bytes).await {
                tracing::debug!(%error, "no spare file was made");
                return false;
            }
            // Unchanged if the disk keeps fewer files than wanted.
            if disk.recycled_count(capacity_bytes) > count {
                return true;
            }
        }
        false
    }
}

impl SegmentStore {
    /// Gives spare files back to file systems that are short of space, for the metadata, which cannot use these files.
    pub async fn relieve(&self) {
        for disk in self.healthy_disks() {
            if let Some(room) = Room::of(&*disk) {
                self.give_back_spares(&disk, room).await;
            }
        }
    }

    /// Returns whether the disk is short of space, so that it keeps no spares.
    async fn give_back_spares(&self, disk: &Arc<dyn ShardService>, room: Room) -> bool {
        let is_short = room.is_short(self.reserve_bytes(room.total_bytes));
        if is_short {
            let giving = Arc::clone(disk);
            let work = async move {
                if let Err(error) = giving.release_recycled().await {
                    tracing::warn!(%error, "spare files were not given back");
                }
            };
            self.unless_silent(disk, Box::pin(work)).await;
        }
        is_short
    }
}

/// The space of a disk as the file system sees it, where spares are used space.
#[derive(Clone, Copy, Debug)]
struct Room {
    total_bytes: u64,
    free_bytes: u64,
    spare_bytes: u64,
}

impl Room {
    fn of(disk: &dyn ShardService) -> Option<Self> {
        let space = disk.space().ok()?;
        let spare_bytes = disk.recycled_bytes();
        Some(Self {
            total_bytes: space.total_bytes,
            free_bytes: space.free_bytes.saturating_sub(spare_bytes),
            spare_bytes,
        })
    }

    /// The metadata, which cannot use spares, must not find the disk full because of them.
    fn is_short(self, reserve_bytes: u64) -> bool {
        self.spare_bytes > 0 && self.free_bytes < reserve_bytes
    }

    fn is_ample(self, len_bytes: u64) -> bool {
        self.free_bytes.saturating_sub(len_bytes) >= self.total_bytes / FREE_PART_MIN
    }
}
