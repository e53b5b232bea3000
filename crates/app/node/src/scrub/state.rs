//! Where a scrub stands, as plain data: what comes next, and what is remembered of what it found.
//!
//! Must not know: how anything is scrubbed, and how this is written down (`scrub_file`).

use std::collections::BTreeMap;

use cairn_admin::api::ScrubStage;
use cairn_base::{Ino, SegmentId, VolumeId};
use cairn_fs::{DamagedExtent, ExtentAt};
use cairn_segment::SegmentScrub;

use crate::scrub_file::{Cursor, DAMAGES_MAX, Damage, REWRITES_MAX, ScrubState};

/// Longest text kept of what was wrong at one place.
const DETAIL_CHARS_MAX: usize = 200;

impl Damage {
    pub(super) fn extent(&self) -> DamagedExtent {
        DamagedExtent {
            at: ExtentAt {
                ino: Ino(self.inode),
                end: self.end,
            },
            start: self.start,
            segment: SegmentId(self.segment),
            detail: self.detail.clone(),
        }
    }
}

impl ScrubState {
    /// Of the rate that an earlier run was given nothing stays: without one of its own it has that of the config.
    pub(super) fn begin(&mut self, rate_bytes_per_second: Option<u64>, now_seconds: i64) {
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

    /// Where it goes on, of the volumes that there are, each with whether it is served just now; those that are not
    /// come last. `None`: nothing is left.
    pub(super) fn go_on(&mut self, volumes: &BTreeMap<VolumeId, bool>) -> Option<Cursor> {
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

    pub(super) fn add_segment(&mut self, scrub: SegmentScrub) {
        self.shards += scrub.shards;
        self.wrong_bytes += scrub.wrong_bytes;
        self.repaired_bytes += scrub.repaired_bytes;
        self.shards_rebuilt += scrub.shards_rebuilt;
        self.shards_sealed += scrub.shards_sealed;
        self.shards_away += scrub.shards_away;
    }

    /// Forgets what earlier runs found damaged from `after` on up to `to`, which has been looked at once more.
    pub(super) fn forget_damages(
        &mut self,
        volume: VolumeId,
        after: (u64, u64),
        to: Option<(u64, u64)>,
    ) {
        self.damages.retain(|damage| {
            let at = (damage.inode, damage.end);
            let is_passed = at > after && to.is_none_or(|to| at <= to);
            damage.volume != volume || !is_passed
        });
    }

    /// Remembers a segment that has to be written anew.
    pub(super) fn add_rewrite(&mut self, segment: SegmentId) {
        if self.rewrites.len() < REWRITES_MAX {
            self.rewrites.insert(segment.0);
        } else {
            self.errors += 1;
        }
    }

    pub(super) fn add_damage(&mut self, volume: VolumeId, found: DamagedExtent) {
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
    use crate::scrub_file::{FILE_LEN_BYTES_MAX, decode, encode};
    use cairn_pool::state::{PoolFileError, encode_file};

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
        let bytes = encode(&state);
        assert_eq!(decode(&bytes), Ok(state.clone()));
        for offset in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[offset] ^= 1;
            assert!(decode(&bad).is_err(), "byte {offset}");
        }
        let pool_file = encode_file("cairn-pool", 1, "{}");
        assert_eq!(decode(&pool_file), Err(PoolFileError::Magic));
    }

    /// Counting on from there would end the server.
    #[test]
    fn counts_that_cannot_be_are_refused() {
        let refused = |change: fn(&mut ScrubState)| {
            let mut state = example();
            change(&mut state);
            matches!(decode(&encode(&state)), Err(PoolFileError::Content(_)))
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
        let one = state.damages[0].extent();
        assert_eq!(one.detail.len(), DETAIL_CHARS_MAX);
        for _ in 0..DAMAGES_MAX + 5 {
            state.add_damage(VolumeId(1), one.clone());
        }
        assert_eq!((state.damages.len(), state.damages_more), (DAMAGES_MAX, 6));
        assert!(encode(&state).len() as u64 <= FILE_LEN_BYTES_MAX);
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

    /// What was damaged is so until its place was looked at again.
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
        assert_eq!(decode(&encode(&state)), Ok(state.clone()));
        for _ in 0..DAMAGES_MAX {
            let one = state.damages[0].extent();
            state.add_damage(VolumeId(1), one);
        }
        assert!(encode(&state).len() as u64 <= FILE_LEN_BYTES_MAX);
    }

    /// As programs wrote it before.
    #[test]
    fn a_file_of_version_1_is_read() {
        let json = r#"{"pool":"5","version":4,"stage":"running","rate_bytes_per_second":7,"started_seconds":100,"finished_seconds":0,"done_bytes":0,"volumes_done":[],"cursor":{"volume":1,"segment":3,"records":[4,5]},"shards":0,"records":0,"wrong_bytes":0,"repaired_bytes":0,"shards_rebuilt":0,"shards_sealed":0,"shards_away":0,"errors":0,"damages":[],"damages_more":0}"#;
        let state = decode(&encode_file("cairn-scrub", 1, json)).unwrap();
        let cursor = state.cursor.unwrap();
        assert_eq!((cursor.segment, cursor.segment_last), (3, None));
        assert!(state.rewrites.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }
    }
}
