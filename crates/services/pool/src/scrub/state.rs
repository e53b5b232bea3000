//! Where a scrub stands, as plain data: what comes next, and what is remembered of what it found.
//!
//! Must not know: how anything is scrubbed, and how this is written down.

use std::collections::BTreeMap;

use cairn_base::{Ino, SegmentId, VolumeId};
use cairn_formats::scrub_file::{
    Cursor, DAMAGES_MAX, Damage, REWRITES_MAX, ScrubStage, ScrubState,
};
use cairn_fs::{DamagedExtent, ExtentAt};
use cairn_segment::SegmentScrub;

/// Longest text kept of what was wrong at one place.
const DETAIL_CHARS_MAX: usize = 200;

/// Where a damaged place is, as the file service names it.
pub(super) fn extent_of(damage: &Damage) -> DamagedExtent {
    DamagedExtent {
        at: ExtentAt {
            ino: Ino(damage.inode),
            end: damage.end,
        },
        start: damage.start,
        segment: SegmentId(damage.segment),
        detail: damage.detail.clone(),
    }
}

/// How the state of a scrub changes.
pub(super) trait Progress {
    /// Starts a run. The rate of an earlier run is dropped: without one of its own the run has that of the config.
    fn begin(&mut self, rate_bytes_per_second: Option<u64>, now_seconds: i64);

    /// Where it continues, of the volumes that there are, each with whether it is served just now; those that are not
    /// come last. `None`: nothing is left.
    fn go_on(&mut self, volumes: &BTreeMap<VolumeId, bool>) -> Option<Cursor>;

    fn add_segment(&mut self, scrub: SegmentScrub);

    /// Forgets what earlier runs found damaged from `after` on up to `to`, which has been looked at once more.
    fn forget_damages(&mut self, volume: VolumeId, after: (u64, u64), to: Option<(u64, u64)>);

    /// Remembers a segment that has to be rewritten.
    fn add_rewrite(&mut self, segment: SegmentId);

    fn add_damage(&mut self, volume: VolumeId, found: DamagedExtent);
}

impl Progress for ScrubState {
    fn begin(&mut self, rate_bytes_per_second: Option<u64>, now_seconds: i64) {
        *self = Self {
            pool: self.pool,
            version: self.version,
            rate_bytes_per_second,
            stage: ScrubStage::Running,
            started_seconds: now_seconds,
            // They are damaged until this run comes to them.
            damages: std::mem::take(&mut self.damages),
            ..Self::default()
        };
    }

    fn go_on(&mut self, volumes: &BTreeMap<VolumeId, bool>) -> Option<Cursor> {
        if let Some(cursor) = self.cursor {
            if volumes.contains_key(&cursor.volume) {
                return Some(cursor);
            }
            // Deleted meanwhile.
            self.cursor = None;
            self.rewrites.clear();
            self.volumes_done.push(cursor.volume);
        }
        let open = volumes
            .iter()
            .filter(|(id, _)| !self.volumes_done.contains(id));
        let (volume, _) = open.min_by_key(|(_, is_served)| !**is_served)?;
        // Kept from the start: who leaves the volume out has to know which it is.
        self.cursor = Some(Cursor {
            volume: *volume,
            ..Cursor::default()
        });
        self.cursor
    }

    fn add_segment(&mut self, scrub: SegmentScrub) {
        self.shards += scrub.shards;
        self.wrong_bytes += scrub.wrong_bytes;
        self.repaired_bytes += scrub.repaired_bytes;
        self.shards_rebuilt += scrub.shards_rebuilt;
        self.shards_sealed += scrub.shards_sealed;
        self.shards_away += scrub.shards_away;
    }

    fn forget_damages(&mut self, volume: VolumeId, after: (u64, u64), to: Option<(u64, u64)>) {
        self.damages.retain(|damage| {
            let at = (damage.inode, damage.end);
            let is_passed = at > after && to.is_none_or(|to| at <= to);
            damage.volume != volume || !is_passed
        });
    }

    fn add_rewrite(&mut self, segment: SegmentId) {
        if self.rewrites.len() < REWRITES_MAX {
            self.rewrites.insert(segment.0);
        } else {
            self.errors += 1;
        }
    }

    fn add_damage(&mut self, volume: VolumeId, found: DamagedExtent) {
        if self.damages.len() >= DAMAGES_MAX {
            self.damages_more += 1;
            return;
        }
        self.damages.push(Damage {
            volume,
            inode: found.at.ino.0,
            start: found.start,
            end: found.at.end,
            segment: found.segment.0,
            detail: found.detail.chars().take(DETAIL_CHARS_MAX).collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::PoolId;
    use proptest::prelude::*;

    use super::*;
    use cairn_formats::TextFileError;
    use cairn_formats::pool_file::encode_pool;
    use cairn_formats::scrub_file::{SCRUB_FILE_LEN_BYTES_MAX, decode_scrub, encode_scrub};
    use cairn_formats::testing::example_pool;

    /// The state as it is read back after it was written.
    fn stored(state: &ScrubState) -> Result<ScrubState, TextFileError> {
        decode_scrub(&encode_scrub(state)).map(|picked| {
            assert_eq!(picked.bad, None);
            picked.value
        })
    }

    fn example() -> ScrubState {
        let mut state = ScrubState {
            pool: PoolId(5),
            rate_bytes_per_second: Some(7),
            ..ScrubState::default()
        };
        state.begin(None, 100);
        state.cursor = Some(Cursor {
            volume: VolumeId(1),
            segment: 3,
            records: Some((4, 5)),
            ..Cursor::default()
        });
        state.add_damage(
            VolumeId(1),
            DamagedExtent {
                at: ExtentAt {
                    ino: Ino(9),
                    end: 4096,
                },
                start: 0,
                segment: SegmentId(2),
                detail: "x".repeat(1000),
            },
        );
        state
    }

    #[test]
    fn what_is_written_down_is_read() {
        let state = example();
        assert_eq!(stored(&state), Ok(state.clone()));
        let file = encode_scrub(&state);
        for byte in 0..file.len() {
            let mut bad = file.clone();
            bad[byte] ^= 1;
            let picked = decode_scrub(&bad).unwrap();
            let number = if byte < file.len() / 2 { 1 } else { 2 };
            assert_eq!(picked.value, state, "byte {byte}");
            assert_eq!(
                picked.bad.map(|bad| bad.number),
                Some(number),
                "byte {byte}"
            );
        }
        let pool_file = encode_pool(&example_pool(1));
        assert_eq!(decode_scrub(&pool_file), Err(TextFileError::Magic));
    }

    /// Counting on from there would end the server.
    #[test]
    fn counts_that_cannot_be_are_refused() {
        let refused = |change: fn(&mut ScrubState)| {
            let mut state = example();
            change(&mut state);
            matches!(stored(&state), Err(TextFileError::Content(_)))
        };
        assert!(refused(|state| state.version = u64::MAX));
        assert!(refused(|state| state.done_bytes = u64::MAX));
        assert!(refused(|state| state.damages_more = u64::MAX));
        assert!(refused(|state| state.damages[0].start = 4097));
        assert!(!refused(|state| state.shards = 1 << 62));
    }

    #[test]
    fn damage_is_bounded() {
        let mut state = example();
        let one = extent_of(&state.damages[0]);
        assert_eq!(one.detail.len(), DETAIL_CHARS_MAX);
        for _ in 0..DAMAGES_MAX + 5 {
            state.add_damage(VolumeId(1), one.clone());
        }
        assert_eq!((state.damages.len(), state.damages_more), (DAMAGES_MAX, 6));
        assert!(encode_scrub(&state).len() as u64 <= SCRUB_FILE_LEN_BYTES_MAX);
    }

    #[test]
    fn a_volume_that_is_not_served_is_waited_for() {
        let mut state = ScrubState::default();
        let mut volumes = BTreeMap::from([(VolumeId(1), false), (VolumeId(2), true)]);
        let place = |volumes: &_, state: &mut ScrubState| {
            let cursor = state.go_on(volumes)?;
            Some(cursor.volume)
        };
        assert_eq!(place(&volumes, &mut state), Some(VolumeId(2)));
        // It is opened again on other disks: what was begun is not done.
        volumes.insert(VolumeId(2), false);
        assert_eq!(place(&volumes, &mut state), Some(VolumeId(2)));
        state.cursor = None;
        state.volumes_done.push(VolumeId(2));
        assert_eq!(
            place(&volumes, &mut state),
            Some(VolumeId(1)),
            "nobody looked at it"
        );
        volumes.remove(&VolumeId(1));
        assert_eq!(place(&volumes, &mut state), None, "deleted");
    }

    #[test]
    fn a_new_run_keeps_what_is_damaged_and_not_the_rate() {
        let mut state = example();
        state.version = 4;
        state.begin(None, 200);
        let fresh = ScrubState {
            pool: PoolId(5),
            version: 4,
            stage: ScrubStage::Running,
            started_seconds: 200,
            damages: example().damages,
            ..ScrubState::default()
        };
        assert_eq!(state, fresh);
    }

    /// A corrupt place counts as such until it was checked again.
    #[test]
    fn damage_is_forgotten_when_its_place_is_passed() {
        let mut state = ScrubState::default();
        for (volume, inode) in [(1, 5), (1, 9), (2, 9)] {
            let at = ExtentAt {
                ino: Ino(inode),
                end: 4096,
            };
            let found = DamagedExtent {
                at,
                start: 0,
                segment: SegmentId(2),
                detail: String::new(),
            };
            state.add_damage(VolumeId(volume), found);
        }
        let places = |state: &ScrubState| -> Vec<(u64, u64)> {
            let damages = state.damages.iter();
            damages
                .map(|damage| (u64::from(damage.volume.0), damage.inode))
                .collect()
        };
        state.forget_damages(VolumeId(1), (0, 0), Some((5, 4095)));
        assert_eq!(places(&state), [(1, 5), (1, 9), (2, 9)]);
        state.forget_damages(VolumeId(1), (5, 4095), Some((9, 4095)));
        assert_eq!(places(&state), [(1, 9), (2, 9)]);
        state.forget_damages(VolumeId(1), (9, 4096), None);
        assert_eq!(places(&state), [(1, 9), (2, 9)]);
        state.forget_damages(VolumeId(1), (9, 4095), None);
        assert_eq!(places(&state), [(2, 9)]);
    }

    #[test]
    fn segments_to_be_written_anew_are_bounded_and_kept() {
        let mut state = example();
        for segment in 0..REWRITES_MAX as u64 + 3 {
            state.add_rewrite(SegmentId(segment));
        }
        assert_eq!((state.rewrites.len(), state.errors), (REWRITES_MAX, 3));
        assert_eq!(stored(&state), Ok(state.clone()));
        for _ in 0..DAMAGES_MAX {
            let one = extent_of(&state.damages[0]);
            state.add_damage(VolumeId(1), one);
        }
        assert!(encode_scrub(&state).len() as u64 <= SCRUB_FILE_LEN_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_scrub(&bytes);
        }
    }
}
