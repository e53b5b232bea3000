//! The segments of a volume in memory, and an index by disk.
//!
//! Owns: the map by number, and the sets by disk and by losses survived that follow each change. Must not know: the
//! state of a disk or a segment.
//!
//! The disk watch asks every second. A pool of 10 PB has a million segments, and a query for one disk must not walk
//! over all of them.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use cairn_base::{DiskId, SegmentId};
use cairn_formats::settings::{Protection, Protections};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::life::Segment;

/// Placement of a segment.
pub(crate) struct Looked {
    pub id: SegmentId,
    /// It survives the loss of fewer nodes than it could.
    pub is_crowded: bool,
    /// It has shards on disks of another class than it asks for.
    pub is_misplaced: bool,
}

#[derive(Default)]
pub(crate) struct SegmentMap {
    all: FxHashMap<SegmentId, Arc<Segment>>,
    by_disk: FxHashMap<DiskId, FxHashSet<SegmentId>>,
    /// Segments by wanted protection and by the number of losses that they survive.
    by_parity: BTreeMap<(Option<Protection>, u8), FxHashSet<SegmentId>>,
    /// Segments that survive the loss of fewer nodes than they could.
    crowded: FxHashSet<SegmentId>,
    /// Segments with shards on disks of another class than they ask for.
    misplaced: FxHashSet<SegmentId>,
    /// Segments whose placement was not examined yet.
    unlooked: FxHashSet<SegmentId>,
    /// The pool's layout when the others were examined.
    layout: u64,
}

impl Deref for SegmentMap {
    type Target = FxHashMap<SegmentId, Arc<Segment>>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl FromIterator<Segment> for SegmentMap {
    fn from_iter<T: IntoIterator<Item = Segment>>(segments: T) -> Self {
        let mut map = Self::default();
        for segment in segments {
            map.insert(Arc::new(segment));
        }
        map
    }
}

impl SegmentMap {
    pub fn insert(&mut self, segment: Arc<Segment>) {
        let id = segment.id;
        self.remove(&id);
        for disk in segment.disks().iter() {
            self.by_disk.entry(*disk).or_default().insert(id);
        }
        // A segment in a tier survives the loss of any disk, and needs no work.
        if segment.remote.is_none() {
            let parity = (segment.protection, segment.code.parity());
            self.by_parity.entry(parity).or_default().insert(id);
            self.unlooked.insert(id);
        }
        self.all.insert(id, segment);
    }

    pub fn remove(&mut self, id: &SegmentId) -> Option<Arc<Segment>> {
        let removed = self.all.remove(id)?;
        for disk in removed.disks().iter() {
            self.forget(*disk, *id);
        }
        let parity = (removed.protection, removed.code.parity());
        if let Some(ids) = self.by_parity.get_mut(&parity) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_parity.remove(&parity);
            }
        }
        self.crowded.remove(id);
        self.misplaced.remove(id);
        self.unlooked.remove(id);
        Some(removed)
    }

    /// Records the new disk of a shard of a segment, which may have left the map meanwhile.
    pub fn place(&mut self, segment: &Segment, shard: u8, to: DiskId) {
        let from = segment.disk_of(shard);
        segment.end_move(shard, to, true);
        let is_here = |known: &Arc<Segment>| std::ptr::eq(Arc::as_ptr(known), segment);
        if !self.all.get(&segment.id).is_some_and(is_here) {
            return;
        }
        if let Some(from) = from {
            self.forget(from, segment.id);
        }
        self.by_disk.entry(to).or_default().insert(segment.id);
        self.unlooked.insert(segment.id);
    }

    /// Up to `count_max` segments to examine: those that changed, and all if the pool's layout changed.
    pub fn take_unlooked(&mut self, layout: u64, count_max: usize) -> Vec<Arc<Segment>> {
        if self.layout != layout {
            self.layout = layout;
            let on_disks = self.all.iter().filter(|(_, it)| it.remote.is_none());
            self.unlooked.extend(on_disks.map(|(id, _)| *id));
        }
        let ids: Vec<SegmentId> = self.unlooked.iter().take(count_max).copied().collect();
        for id in &ids {
            self.unlooked.remove(id);
        }
        let found = ids.iter().filter_map(|id| self.all.get(id).cloned());
        found.collect()
    }

    /// Records the placement of segments.
    pub fn note_looked(&mut self, looked: impl IntoIterator<Item = Looked>) {
        fn note(set: &mut FxHashSet<SegmentId>, id: SegmentId, is_in: bool) {
            match is_in {
                true => set.insert(id),
                false => set.remove(&id),
            };
        }
        for looked in looked {
            let is_known = self.all.contains_key(&looked.id);
            note(&mut self.crowded, looked.id, looked.is_crowded && is_known);
            note(
                &mut self.misplaced,
                looked.id,
                looked.is_misplaced && is_known,
            );
        }
    }

    /// Segments that survive the loss of fewer nodes than they could, as far as examined.
    pub fn crowded(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.crowded.iter().filter_map(|id| self.all.get(id))
    }

    fn forget(&mut self, disk: DiskId, id: SegmentId) {
        if let Some(ids) = self.by_disk.get_mut(&disk) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_disk.remove(&disk);
            }
        }
    }

    /// Up to `count_max` segments with a shard on a disk, starting elsewhere for each `turn`.
    pub fn some_on(&self, disk: DiskId, count_max: usize, turn: usize) -> Vec<Arc<Segment>> {
        let Some(ids) = self.by_disk.get(&disk) else {
            return Vec::new();
        };
        // Each turn has as many as are examined; then it restarts from the beginning.
        let turns = ids.len().div_ceil(count_max.max(1)).max(1);
        let from = (turn % turns) * count_max;
        let ids = ids.iter().skip(from).take(count_max);
        ids.filter_map(|id| self.all.get(id).cloned()).collect()
    }

    /// Number of segments with a shard on each disk.
    pub fn shard_counts(&self) -> impl Iterator<Item = (DiskId, u64)> {
        let each = self.by_disk.iter();
        each.map(|(disk, ids)| (*disk, ids.len() as u64))
    }

    /// Number of segments that survive fewer losses than their wanted protection requires.
    pub fn narrow_count(&self, parity_of: impl Fn(Option<Protection>) -> u8) -> u64 {
        let narrow = self.narrow(parity_of);
        narrow.map(|ids| ids.len() as u64).sum()
    }

    fn narrow(
        &self,
        parity_of: impl Fn(Option<Protection>) -> u8,
    ) -> impl Iterator<Item = &FxHashSet<SegmentId>> {
        let narrow = self.by_parity.iter();
        let narrow = narrow.filter(move |((asked, parity), _)| *parity < parity_of(*asked));
        narrow.map(|(_, ids)| ids)
    }

    /// Protections that segments ask for instead of the volume's.
    pub fn protections(&self) -> Protections {
        let asked = self.by_parity.keys();
        asked.filter_map(|(protection, _)| *protection).collect()
    }

    /// Segments that need work, each once: those with a shard on a disk that is not sound, those that survive fewer
    /// losses than `parity_of` their protection, those that survive the loss of fewer nodes than they could, and those
    /// on disks of another class than they ask for.
    pub fn at_stake(
        &self,
        is_sound: impl Fn(DiskId) -> bool,
        parity_of: impl Fn(Option<Protection>) -> u8,
    ) -> impl Iterator<Item = &Arc<Segment>> {
        let unsound = self.by_disk.iter().filter(|(disk, _)| !is_sound(**disk));
        let on_them = unsound.map(|(_, ids)| ids);
        let mut sets: Vec<&FxHashSet<SegmentId>> = on_them.collect();
        sets.extend(self.narrow(parity_of));
        sets.extend((!self.crowded.is_empty()).then_some(&self.crowded));
        sets.extend((!self.misplaced.is_empty()).then_some(&self.misplaced));
        let ids: Vec<SegmentId> = match &sets[..] {
            [] => Vec::new(),
            [one] => one.iter().copied().collect(),
            some => {
                let all: FxHashSet<SegmentId> = some.iter().copied().flatten().copied().collect();
                all.into_iter().collect()
            }
        };
        ids.into_iter().filter_map(move |id| self.all.get(&id))
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{Epoch, VolumeId};
    use cairn_erasure::Code;

    use super::*;
    use crate::types::SegmentInfo;

    fn segment(id: u64, disks: &[u128], parity: u8) -> Arc<Segment> {
        let info = SegmentInfo {
            id: SegmentId(id),
            code: Code::new(disks.len() as u8 - parity, parity).expect("a code"),
            disks: disks.iter().copied().map(DiskId).collect(),
            shard_len_bytes: 4096,
            sealed: true,
            remote: None,
            media: None,
            protection: None,
        };
        Arc::new(Segment::known(VolumeId(1), Epoch(1), info))
    }

    fn at_stake(map: &SegmentMap, unsound: &[u128], parity: u8) -> Vec<u64> {
        let is_sound = |disk: DiskId| !unsound.contains(&disk.0);
        let mut ids: Vec<u64> = map
            .at_stake(is_sound, |_| parity)
            .map(|it| it.id.0)
            .collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn all_on_a_disk_are_found_in_turns() {
        let mut map = SegmentMap::default();
        for id in 1..=10 {
            map.insert(segment(id, &[1, 2 + u128::from(id % 2)], 1));
        }
        let turn = |turn| {
            let some = map.some_on(DiskId(1), 4, turn);
            some.iter().map(|it| it.id.0).collect::<Vec<_>>()
        };
        let turns: Vec<Vec<u64>> = (0..4).map(turn).collect();
        assert_eq!(turns.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2, 4]);
        let mut all: Vec<u64> = turns[..3].iter().flatten().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (1..=10).collect::<Vec<_>>());
        assert_eq!(map.some_on(DiskId(3), 9, 0).len(), 5);
        assert!(map.some_on(DiskId(4), 9, 0).is_empty());
    }

    /// A segment with its own protection is narrow by that, and others by the volume's.
    #[test]
    fn what_is_narrow_goes_by_what_it_asks_for() {
        let mut map = SegmentMap::default();
        let asking = |id, parity, protection| {
            let info = SegmentInfo {
                protection,
                ..segment(id, &[1, 2, 3, 4], parity).info()
            };
            Arc::new(Segment::known(VolumeId(1), Epoch(1), info))
        };
        map.insert(asking(1, 2, None));
        map.insert(asking(2, 2, Some(Protection::Mirror(4))));
        map.insert(asking(3, 3, Some(Protection::Mirror(4))));
        map.insert(asking(4, 1, Some(Protection::Plus(1))));
        let parity_of = |own| match own {
            Some(Protection::Mirror(copies)) => copies - 1,
            Some(Protection::Plus(parity)) => parity,
            _ => 2,
        };
        let narrow: Vec<u64> = map
            .at_stake(|_| true, parity_of)
            .map(|it| it.id.0)
            .collect();
        assert_eq!(narrow, [2]);
        assert_eq!(map.narrow_count(parity_of), 1);
        let asked: Vec<Protection> = map.protections().iter().collect();
        assert_eq!(asked, [Protection::Plus(1), Protection::Mirror(4)]);
        map.remove(&SegmentId(4));
        let asked: Vec<Protection> = map.protections().iter().collect();
        assert_eq!(asked, [Protection::Mirror(4)]);
    }

    /// Disk 3 is on the node of disk 1.
    #[test]
    fn crowded_segments_are_found_when_they_or_the_disks_change() {
        let look = |map: &mut SegmentMap, layout: u64| -> usize {
            let found = map.take_unlooked(layout, 10);
            let is_crowded = |segment: &Arc<Segment>| {
                let disks = segment.disks();
                disks.contains(&DiskId(1)) && disks.contains(&DiskId(3))
            };
            let looked = found.iter().map(|segment| Looked {
                id: segment.id,
                is_crowded: is_crowded(segment),
                is_misplaced: segment.disks().contains(&DiskId(9)),
            });
            map.note_looked(looked);
            found.len()
        };
        let mut map = SegmentMap::default();
        let first = segment(1, &[1, 2, 3, 4], 2);
        map.insert(Arc::clone(&first));
        map.insert(segment(2, &[2, 3, 4, 5], 2));
        assert_eq!(at_stake(&map, &[], 0), [0; 0], "nobody has looked");
        assert_eq!(look(&mut map, 0), 2);
        assert_eq!(at_stake(&map, &[], 0), [1]);
        assert_eq!(at_stake(&map, &[4], 0), [1, 2], "each once");
        assert_eq!(look(&mut map, 0), 0, "nothing has changed");
        assert_eq!(look(&mut map, 7), 2, "disks have");
        assert!(first.begin_move(2, DiskId(8)));
        map.place(&first, 2, DiskId(8));
        assert_eq!(look(&mut map, 7), 1);
        assert_eq!(map.crowded().count(), 0);
        map.insert(segment(3, &[1, 3, 5, 6], 2));
        look(&mut map, 7);
        assert_eq!(at_stake(&map, &[], 0), [3]);
        let removed = map.remove(&SegmentId(3)).expect("it was there");
        map.note_looked([Looked {
            id: removed.id,
            is_crowded: true,
            is_misplaced: true,
        }]);
        assert_eq!(at_stake(&map, &[], 0), [0; 0]);
        let other = segment(4, &[2, 9], 1);
        map.insert(Arc::clone(&other));
        look(&mut map, 7);
        assert_eq!(at_stake(&map, &[], 0), [4], "it is on disk 9");
        assert!(other.begin_move(1, DiskId(8)));
        map.place(&other, 1, DiskId(8));
        look(&mut map, 7);
        assert_eq!(at_stake(&map, &[], 0), [0; 0]);
    }

    #[test]
    fn what_is_on_a_disk_is_known_whatever_happened_before() {
        let mut map = SegmentMap::default();
        let first = segment(1, &[1, 2, 3, 4], 2);
        map.insert(Arc::clone(&first));
        map.insert(segment(2, &[2, 3, 4, 5], 2));
        map.insert(segment(3, &[5, 6, 7], 1));
        assert_eq!(at_stake(&map, &[], 2), [3]);
        assert_eq!(at_stake(&map, &[2], 0), [1, 2]);
        assert_eq!(at_stake(&map, &[1, 2], 2), [1, 2, 3], "each once");
        assert_eq!((map.narrow_count(|_| 2), map.narrow_count(|_| 3)), (1, 3));
        // After a move it is found at its new place only.
        assert!(first.begin_move(1, DiskId(8)));
        map.place(&first, 1, DiskId(8));
        assert_eq!(at_stake(&map, &[2], 0), [2]);
        assert_eq!(at_stake(&map, &[8], 0), [1]);
        // Inserted again, removed, and moved after its removal.
        map.insert(segment(2, &[1, 2, 3, 4], 2));
        assert_eq!(at_stake(&map, &[5], 0), [3]);
        map.remove(&SegmentId(1));
        assert!(first.begin_move(0, DiskId(9)));
        map.place(&first, 0, DiskId(9));
        assert_eq!(at_stake(&map, &[8, 9], 0), [0; 0]);
        map.remove(&SegmentId(3));
        let mut counts: Vec<(u128, u64)> = map.shard_counts().map(|(id, n)| (id.0, n)).collect();
        counts.sort_unstable();
        assert_eq!(counts, [(1, 1), (2, 1), (3, 1), (4, 1)]);
    }
}
