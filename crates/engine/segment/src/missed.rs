//! What disks did not take while they did not answer or failed, until they have it.
//!
//! Owns: of which segments a disk lacks some of its shard, finding them again after a start, and making that good.
//! Must not know: when a disk is well again, what is said of it meanwhile, how it is kept which segments are suspects.
//!
//! A shard that missed a write has no footer. The metadata does not note a segment as sealed before all its shards have all
//! of it ([`SegmentStore::may_lack`]), so whoever opens the volume next has few suspects to look at. A segment that a crash left without any
//! footer says nothing of who missed what: that, and what is damaged otherwise, is for a scrub.

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

/// What could not be made good, because too few of the others are there, is let alone for so long.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Segments, and when they are tried again, on the monotonic clock.
type Places = BTreeMap<(VolumeId, SegmentId), Duration>;

/// Which disks lack what.
#[derive(Default)]
pub(crate) struct Missed {
    state: Mutex<State>,
    /// Somebody looks for what disks lack, and has it made good.
    is_tended: AtomicBool,
}

#[derive(Default)]
struct State {
    /// By disk: the segments of whose shard it lacks some.
    lacks: BTreeMap<DiskId, Places>,
    /// Segments of which some disk may lack something.
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

    /// What a disk lacks, the newest segments of each volume first: the next owner of a volume finds the oldest ones in the
    /// metadata, and as long as these are many it looks at newer ones by itself.
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
    /// Notes of a segment that is sealed which disks lack some of it.
    pub(crate) fn note_missed(&self, segment: &Segment, open: &OpenSegment) {
        let disks = segment.disks();
        let each = disks.iter().zip(&open.shard_failed);
        for (disk, _) in each.filter(|(_, has_failed)| **has_failed) {
            self.missed.note(*disk, (segment.volume, segment.id));
        }
    }

    /// Whether a disk lacks some of what open volumes wrote while it did not answer or failed: as far as protection goes it is
    /// not there.
    pub fn lacks_some(&self, disk: DiskId) -> bool {
        let missed = self.missed.of(disk);
        let mut volumes = missed.iter().map(|(volume, ..)| *volume);
        volumes.any(|volume| self.volume(volume).is_ok())
    }

    /// After a volume was opened: segments of which its metadata does not know that all their shards have all of them.
    pub fn suspect(&self, volume: VolumeId, segments: impl IntoIterator<Item = SegmentId>) {
        for segment in segments {
            self.missed.suspect((volume, segment), Some(Duration::ZERO));
        }
    }

    /// Whether a disk may lack some of a segment that takes no more appends, and that is to be made good.
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

    /// Looks which disks lack some of the suspects. Those of which a disk does not say so are looked at again later.
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

    /// Whether all its disks say whether they have all of it.
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
                // It never came to be there.
                Some(Err(error)) if error.kind() == ShardErrorKind::NotFound => {
                    lacking.push(there.id());
                }
                Some(Err(_)) | None => is_known = false,
            }
        }
        // Where the segment was never sealed, none has a footer. Where more lack it than may be lost, an owner ended in the middle of
        // sealing: the others cannot give it to them, and what lives in the segment is written anew.
        let may_be_given = lacking.len() <= usize::from(segment.code.parity());
        if has_footer && may_be_given && !lacking.is_empty() {
            tracing::info!(%volume, segment = %id, disks = lacking.len(), "disks lack some of a segment since before this start");
            for disk in lacking {
                self.missed.note(disk, (volume, id));
            }
        }
        is_known
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An owner that ends in between has made good what the metadata does not name.
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
