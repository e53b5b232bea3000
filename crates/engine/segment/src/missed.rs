//! Writes that disks missed while they were unresponsive or failing, until the disks have them.
//!
//! Owns: which segments have an incomplete shard on a disk, finding these again after a start, and completing them.
//! Must not know: when a disk is well again, how its state is reported meanwhile, how suspects are stored.
//!
//! A shard that missed a write has no footer. The metadata notes a segment as sealed only when all its shards are
//! complete ([`SegmentStore::may_lack`]), so the next owner of the volume has few suspects to check. A segment without
//! any footer after a crash does not show which shard missed a write. That case, and other corruption, is left to a
//! scrub.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_base::{DiskId, SegmentId, VolumeId};
use cairn_formats::pointer::BLOCK_BYTES;
use cairn_shard::ShardErrorKind;
use parking_lot::Mutex;

use crate::life::{OpenSegment, Segment};
use crate::pace::Pace;
use crate::store::SegmentStore;

/// Pause before another try to complete a shard after too few of the others were available.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Segments with the time of their next try, on the monotonic clock.
type Places = BTreeMap<(VolumeId, SegmentId), Duration>;

/// Incomplete shards, by disk.
#[derive(Default)]
pub(crate) struct Missed {
    state: Mutex<State>,
    /// A task looks for incomplete shards and completes them.
    is_tended: AtomicBool,
}

#[derive(Default)]
struct State {
    /// By disk: segments whose shard there is incomplete.
    lacks: BTreeMap<DiskId, Places>,
    /// Segments that may have an incomplete shard.
    suspects: Places,
}

fn listed(places: &Places) -> Vec<(VolumeId, SegmentId, Duration)> {
    let each = places.iter();
    each.map(|((volume, segment), again)| (*volume, *segment, *again))
        .collect()
}

impl Missed {
    fn note(&self, disk: DiskId, place: (VolumeId, SegmentId)) {
        let mut state = self.state.lock();
        let of_disk = state.lacks.entry(disk).or_default();
        of_disk.entry(place).or_insert(Duration::ZERO);
    }

    /// The incomplete shards of a disk, the newest segments of each volume first. The next owner of a volume finds the
    /// oldest ones in the metadata, and while these are many it looks at newer ones by itself.
    fn of(&self, disk: DiskId) -> Vec<(VolumeId, SegmentId, Duration)> {
        let state = self.state.lock();
        let mut lacks = state.lacks.get(&disk).map_or_else(Vec::new, listed);
        lacks.reverse();
        lacks
    }

    fn suspects(&self) -> Vec<(VolumeId, SegmentId, Duration)> {
        listed(&self.state.lock().suspects)
    }

    fn suspect(&self, place: (VolumeId, SegmentId), again: Option<Duration>) {
        let mut state = self.state.lock();
        match again {
            Some(again) => {
                state.suspects.insert(place, again);
            }
            None => {
                state.suspects.remove(&place);
            }
        }
    }

    fn set(&self, disk: DiskId, place: (VolumeId, SegmentId), again: Option<Duration>) {
        let mut state = self.state.lock();
        let Some(of_disk) = state.lacks.get_mut(&disk) else {
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
            state.lacks.remove(&disk);
        }
    }

    pub fn forget_volume(&self, volume: VolumeId) {
        let mut state = self.state.lock();
        let State { lacks, suspects } = &mut *state;
        for of_disk in lacks.values_mut() {
            of_disk.retain(|(of, _), _| *of != volume);
        }
        lacks.retain(|_, of_disk| !of_disk.is_empty());
        suspects.retain(|(of, _), _| *of != volume);
    }
}

impl SegmentStore {
    /// Notes which disks have incomplete shards of a sealed segment.
    pub(crate) fn note_missed(&self, segment: &Segment, open: &OpenSegment) {
        let disks = segment.disks();
        let each = disks.iter().zip(&open.shard_failed);
        for (disk, _) in each.filter(|(_, has_failed)| **has_failed) {
            self.missed.note(*disk, (segment.volume, segment.id));
        }
    }

    /// Whether a disk has an incomplete shard of an open volume: for protection, the disk counts as missing.
    pub fn lacks_some(&self, disk: DiskId) -> bool {
        let missed = self.missed.of(disk);
        let mut volumes = missed.iter().map(|(volume, ..)| *volume);
        volumes.any(|volume| self.volume(volume).is_ok())
    }

    /// Adds suspects after a volume was opened: segments that its metadata does not know to be complete.
    pub fn suspect(&self, volume: VolumeId, segments: impl IntoIterator<Item = SegmentId>) {
        for segment in segments {
            self.missed.suspect((volume, segment), Some(Duration::ZERO));
        }
    }

    /// Whether a shard of a closed segment may be incomplete and is to be completed.
    pub fn may_lack(&self, volume: VolumeId, id: SegmentId) -> bool {
        if !self.missed.is_tended.load(Ordering::Relaxed) {
            return false;
        }
        let Some(segment) = self.find(volume, id) else {
            return false;
        };
        let (place, disks) = ((volume, id), segment.disks());
        let state = self.missed.state.lock();
        let lacks = |disk: &DiskId| {
            let of_disk = state.lacks.get(disk);
            of_disk.is_some_and(|of_disk| of_disk.contains_key(&place))
        };
        state.suspects.contains_key(&place) || disks.iter().any(lacks)
    }

    /// Checks which suspects have incomplete shards. Suspects with a disk that does not answer are checked again later.
    pub async fn look_for_missed(&self, pace: &Pace) {
        self.missed.is_tended.store(true, Ordering::Relaxed);
        for (volume, segment, again) in self.missed.suspects() {
            let now = self.env.clock.monotonic();
            if again > now {
                continue;
            }
            let turn = pace.spend(u64::from(BLOCK_BYTES)).await;
            let is_known = self.look_at_suspect(volume, segment).await;
            drop(turn);
            let again = (!is_known).then_some(now.saturating_add(AGAIN_AFTER));
            self.missed.suspect((volume, segment), again);
        }
    }

    /// Returns whether all disks of the segment answered.
    async fn look_at_suspect(&self, volume: VolumeId, id: SegmentId) -> bool {
        let Ok(opened) = self.volume(volume) else {
            return false;
        };
        let Ok(segment) = opened.segment(id) else {
            return true;
        };
        if segment.is_removed() || segment.remote.is_some() {
            return true;
        }
        let (mut lacking, mut has_footer, mut is_known) = (Vec::new(), false, true);
        for shard in 0..segment.code.total() {
            let Some(there) = segment.disk_of(shard).and_then(|disk| self.disk(disk)) else {
                is_known = false;
                continue;
            };
            let (asked, name) = (Arc::clone(&there), segment.shard_name(shard));
            let stat = Box::pin(async move { asked.stat(name).await });
            match self.unless_silent(&there, stat).await {
                Some(Ok(stat)) if stat.is_unsealed => lacking.push(there.id()),
                Some(Ok(_)) => has_footer = true,
                // The shard was never created.
                Some(Err(error)) if error.kind() == ShardErrorKind::NotFound => {
                    lacking.push(there.id());
                }
                Some(Err(_)) | None => is_known = false,
            }
        }
        // If the segment was never sealed, no shard has a footer. If more shards lack it than may be lost, an owner
        // ended during sealing: the other shards cannot restore them, and the live records are rewritten.
        let may_be_given = lacking.len() <= usize::from(segment.code.parity());
        if has_footer && may_be_given && !lacking.is_empty() {
            tracing::info!(%volume, segment = %id, disks = lacking.len(), "disks lack some of a segment since before this start");
            for disk in lacking {
                self.missed.note(disk, (volume, id));
            }
        }
        is_known
    }

    /// Completes the shards of a disk that is well again, from the other disks. Returns the number of segments left,
    /// which are tried again later. Segments that were removed or moved count as complete.
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
        // Its shards are completed when the volume accepts changes again.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An owner that ends in between has completed segments that the metadata does not name.
    #[test]
    fn the_newest_segments_are_given_first() {
        let missed = Missed::default();
        for id in [5, 3, 9] {
            missed.note(DiskId(1), (VolumeId(1), SegmentId(id)));
        }
        let ids = |missed: &Missed| -> Vec<u64> {
            let lacks = missed.of(DiskId(1)).into_iter();
            lacks.map(|(_, segment, _)| segment.0).collect()
        };
        assert_eq!(ids(&missed), [9, 5, 3]);
        missed.set(DiskId(1), (VolumeId(1), SegmentId(9)), None);
        assert_eq!(ids(&missed), [5, 3]);
        assert!(missed.of(DiskId(2)).is_empty());
    }
}
