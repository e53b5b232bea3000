//! What disks did not take while they did not answer or failed, until they have it.
//!
//! Owns: of which segments a disk lacks some of its shard, as far as this process wrote them, and making that good.
//! Must not know: when a disk is well again, what is said of it meanwhile.
//!
//! A shard that missed a write has no footer. A start does not know which those are: the next scrub finds them by that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::{DiskId, SegmentId, VolumeId};
use parking_lot::Mutex;

use crate::life::{OpenSegment, Segment};
use crate::pace::Pace;
use crate::store::SegmentStore;

/// What could not be made good, because too few of the others are there, is let alone for so long.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// By disk: the segments of whose shard it lacks some, and when they are tried again, on the monotonic clock.
type Lacks = BTreeMap<DiskId, BTreeMap<(VolumeId, SegmentId), Duration>>;

/// Which disks lack what.
#[derive(Default)]
pub(crate) struct Missed(Mutex<Lacks>);

impl Missed {
    fn note(&self, disk: DiskId, segment: &Segment) {
        let place = (segment.volume, segment.id);
        let mut lacks = self.0.lock();
        lacks.entry(disk).or_default().insert(place, Duration::ZERO);
    }

    fn of(&self, disk: DiskId) -> Vec<(VolumeId, SegmentId, Duration)> {
        let lacks = self.0.lock();
        let of_disk = lacks.get(&disk).into_iter().flatten();
        of_disk
            .map(|((volume, segment), again)| (*volume, *segment, *again))
            .collect()
    }

    fn set(&self, disk: DiskId, place: (VolumeId, SegmentId), again: Option<Duration>) {
        let mut lacks = self.0.lock();
        let Some(of_disk) = lacks.get_mut(&disk) else {
            return;
        };
        match again {
            Some(again) => {
                of_disk.insert(place, again);
            }
            None => {
                of_disk.remove(&place);
            }
        }
        if of_disk.is_empty() {
            lacks.remove(&disk);
        }
    }

    pub fn forget_volume(&self, volume: VolumeId) {
        let mut lacks = self.0.lock();
        for of_disk in lacks.values_mut() {
            of_disk.retain(|(of, _), _| *of != volume);
        }
        lacks.retain(|_, of_disk| !of_disk.is_empty());
    }
}

impl SegmentStore {
    /// Notes of a segment that is sealed which disks lack some of it.
    pub(crate) fn note_missed(&self, segment: &Segment, open: &OpenSegment) {
        let disks = segment.disks();
        let each = disks.iter().zip(&open.shard_failed);
        for (disk, _) in each.filter(|(_, has_failed)| **has_failed) {
            self.missed.note(*disk, segment);
        }
    }

    /// Whether a disk lacks some of what open volumes wrote while it did not answer or failed: as far as protection goes it is
    /// not there.
    pub fn lacks_some(&self, disk: DiskId) -> bool {
        let missed = self.missed.of(disk);
        let mut volumes = missed.iter().map(|(volume, ..)| *volume);
        volumes.any(|volume| self.volume(volume).is_ok())
    }

    /// Gives a disk that is well again what it missed, from the other disks. Returns how many segments are left, which are tried
    /// again later; those that are gone or have moved lack nothing.
    pub async fn make_good(self: &Arc<Self>, disk: DiskId, pace: &Pace) -> usize {
        let mut left = 0;
        for (volume, segment, again) in self.missed.of(disk) {
            let now = self.env.clock.monotonic();
            if again > now {
                left += 1;
                continue;
            }
            match self.make_segment_good(disk, volume, segment, pace).await {
                true => self.missed.set(disk, (volume, segment), None),
                false => {
                    left += 1;
                    let again = Some(now.saturating_add(AGAIN_AFTER));
                    self.missed.set(disk, (volume, segment), again);
                }
            }
        }
        left
    }

    async fn make_segment_good(
        self: &Arc<Self>,
        disk: DiskId,
        volume: VolumeId,
        id: SegmentId,
        pace: &Pace,
    ) -> bool {
        let Ok(opened) = self.volume(volume) else {
            return false;
        };
        // What it missed is made good when the volume takes changes again.
        if opened.is_read_only {
            return false;
        }
        let Ok(segment) = opened.segment(id) else {
            return true;
        };
        let mut shards = 0..segment.code.total();
        let shard = shards.find(|shard| segment.disk_of(*shard) == Some(disk));
        let Some(shard) = shard.filter(|_| !segment.is_removed()) else {
            return true;
        };
        if let Err(error) = self.scrub_segment(volume, id, pace).await {
            tracing::warn!(%volume, segment = %id, %error, "what a disk missed is not made good yet");
            return false;
        }
        let Some(there) = self.healthy_disk(disk) else {
            return false;
        };
        let (asked, name) = (Arc::clone(&there), segment.shard_name(shard));
        let stat = Box::pin(async move { asked.stat(name).await });
        let stat = self.unless_silent(&there, stat).await;
        matches!(stat, Some(Ok(stat)) if matches!(stat.footer, Ok(Some(_))))
    }
}
