//! Where a shard that moves goes, and how much of what is to move finds room: decided as plain data.
//!
//! Owns: the rule by which a move chooses its disk, for the move itself and for who wants to know beforehand.
//! Must not know: how disks are asked, why shards move.

use cairn_base::DiskId;
use cairn_base::planted::{self, Bug};
use cairn_erasure::Code;
use cairn_shard::file_len_bytes;

use crate::placement;

/// What a disk that new shards may be put on has free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    pub disk: DiskId,
    pub free_bytes: u64,
    /// Of these, what new data leaves alone.
    pub reserve_bytes: u64,
}

impl DiskRoom {
    fn beside_reserve_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.reserve_bytes)
    }
}

/// Disks with what they have free once all moves that were reckoned so far are done.
#[derive(Clone, Debug)]
pub struct MoveRoom {
    /// Most free bytes first, so that a disk is found after a few looks also where there is very much to move.
    disks: Vec<DiskRoom>,
    leaves_reserve: bool,
}

impl MoveRoom {
    pub fn new(disks: impl IntoIterator<Item = DiskRoom>) -> Self {
        let mut room = Self {
            disks: disks.into_iter().collect(),
            leaves_reserve: false,
        };
        room.disks.sort_unstable_by_key(Self::key);
        room
    }

    /// The same, with nothing put into the reserve: for what nobody has to do.
    pub fn beside_reserve(self) -> Self {
        Self {
            leaves_reserve: true,
            ..self
        }
    }

    /// The same with some of the disks only.
    pub fn with_only(mut self, wanted: impl Fn(DiskId) -> bool) -> Self {
        self.disks.retain(|disk| wanted(disk.disk));
        self
    }

    /// The same with one more disk.
    pub fn with(self, disk: DiskRoom) -> Self {
        let leaves_reserve = self.leaves_reserve;
        Self {
            leaves_reserve,
            ..Self::new(self.disks.into_iter().chain([disk]))
        }
    }

    fn key(disk: &DiskRoom) -> std::cmp::Reverse<(u64, DiskId)> {
        std::cmp::Reverse((disk.free_bytes, disk.disk))
    }

    /// The disk with most room of those that hold none of a segment's shards.
    pub fn target(&self, held: &[DiskId], shard_len_bytes: u64) -> Option<DiskId> {
        let index = self.target_index(held, shard_len_bytes)?;
        Some(self.disks[index].disk)
    }

    fn target_index(&self, held: &[DiskId], shard_len_bytes: u64) -> Option<usize> {
        let needed_bytes = file_len_bytes(shard_len_bytes)?;
        // The reserve is for this, too; but not its last bytes, which the metadata may need.
        let least_bytes = needed_bytes.saturating_mul(2);
        let has_room = |disk: &DiskRoom| {
            !self.leaves_reserve
                || disk.free_bytes >= needed_bytes.saturating_add(disk.reserve_bytes)
        };
        let is_held =
            |disk: &DiskRoom| held.contains(&disk.disk) && !planted::is(Bug::DomainCountedTwice);
        self.disks
            .iter()
            .take_while(|disk| disk.free_bytes >= least_bytes)
            .position(|disk| has_room(disk) && !is_held(disk))
    }

    /// Reckons with a shard on the disk that it would go to; whether there is one.
    pub fn place(&mut self, held: &mut [DiskId], index: u8, shard_len_bytes: u64) -> bool {
        let Some(at) = self.target_index(held, shard_len_bytes) else {
            return false;
        };
        let mut target = self.disks.remove(at);
        target.free_bytes -= file_len_bytes(shard_len_bytes).unwrap_or(0);
        let place = self
            .disks
            .partition_point(|disk| Self::key(disk) < Self::key(&target));
        self.disks.insert(place, target);
        if let Some(held) = held.get_mut(usize::from(index)) {
            *held = target.disk;
        }
        true
    }

    /// Whether there is a disk, full or not, that holds none of a segment's shards.
    pub fn has_other_than(&self, held: &[DiskId]) -> bool {
        self.disks.iter().any(|disk| !held.contains(&disk.disk))
    }

    /// Most bytes of new data that find room beside the reserve, in segments of `code` or narrower ones.
    pub fn usable_bytes(&self, code: Code) -> u64 {
        let mut room: Vec<u64> = self
            .disks
            .iter()
            .map(DiskRoom::beside_reserve_bytes)
            .collect();
        room.sort_unstable();
        // What is laid out for all disks ends where the smallest is full; without it more may find room.
        let mut most_bytes = placement::usable_bytes(&room, code);
        for full in 0..room.len() {
            room[full] = 0;
            most_bytes = most_bytes.max(placement::usable_bytes(&room, code));
        }
        most_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: u64 = 16 << 20;

    fn disk(id: u128, shards: u64, reserve_bytes: u64) -> DiskRoom {
        DiskRoom {
            disk: DiskId(id),
            free_bytes: shards * file_len_bytes(SHARD).unwrap(),
            reserve_bytes,
        }
    }

    fn ids(ids: &[u128]) -> Vec<DiskId> {
        ids.iter().copied().map(DiskId).collect()
    }

    /// One shard after the other of segments on these disks: where each goes, as long as there is a place.
    fn targets(mut room: MoveRoom, held: &[u128]) -> Vec<u128> {
        let mut found = Vec::new();
        loop {
            let mut held = ids(held);
            if !room.place(&mut held, 0, SHARD) {
                return found;
            }
            found.push(held[0].0);
        }
    }

    #[test]
    fn a_shard_goes_where_most_is_free_and_none_of_its_segment_is() {
        let three = || MoveRoom::new([disk(1, 9, 0), disk(2, 5, 0), disk(3, 4, 0)]);
        let cases: &[(&str, MoveRoom, &[u128], &[u128])] = &[
            (
                "the largest has one already",
                three(),
                &[1, 7],
                &[2, 3, 2, 3, 2, 3, 2],
            ),
            ("all of them have", three(), &[1, 2, 3], &[]),
            ("there is none", MoveRoom::new([]), &[7], &[]),
            (
                "the last bytes are the metadata's",
                MoveRoom::new([disk(1, 1, 0)]),
                &[7],
                &[],
            ),
            (
                "it may go into the reserve",
                MoveRoom::new([disk(1, 3, 2 * SHARD)]),
                &[7],
                &[1, 1],
            ),
            (
                "it may not",
                MoveRoom::new([disk(1, 3, 2 * SHARD)]).beside_reserve(),
                &[7],
                &[1],
            ),
            (
                "one comes, one goes",
                three().with(disk(4, 2, 0)).with_only(|id| id.0 >= 3),
                &[7],
                &[3, 3, 4, 3],
            ),
        ];
        for (name, room, held, want) in cases {
            assert_eq!(targets(room.clone(), held), *want, "{name}");
            let first = room.target(&ids(held), SHARD);
            assert_eq!(first, want.first().copied().map(DiskId), "{name}");
        }
        let mut two = ids(&[7, 8]);
        let mut room = three();
        assert!(room.place(&mut two, 0, SHARD) && room.place(&mut two, 1, SHARD));
        assert_eq!(two, ids(&[1, 2]), "two shards of one segment");
    }

    #[test]
    fn what_is_written_anew_needs_distinct_disks() {
        let code = |data, parity| Code::new(data, parity).unwrap();
        let file_len_bytes = file_len_bytes(SHARD).unwrap();
        let room = |shards: &[u64]| {
            let disks = (1..).zip(shards);
            MoveRoom::new(disks.map(|(id, shards)| disk(id, *shards, file_len_bytes)))
        };
        // One shard of each is the reserve.
        assert_eq!(
            room(&[3, 3, 3]).usable_bytes(code(1, 2)),
            2 * file_len_bytes
        );
        assert_eq!(
            room(&[3, 1]).usable_bytes(code(1, 1)),
            0,
            "one of two is full"
        );
        assert_eq!(
            room(&[3, 3, 1]).usable_bytes(code(1, 1)),
            2 * file_len_bytes
        );
        let five_and_one = room(&[10, 10, 10, 10, 10, 2]);
        assert_eq!(
            five_and_one.usable_bytes(code(4, 2)),
            27 * file_len_bytes,
            "3+2 on five"
        );
    }
}
