//! How much of the work at hand finds room, reckoned before any of it is done.
//!
//! Owns: the sentence that says how much is missing. Must not know: how a disk is chosen (`segment`).

use std::collections::BTreeMap;

use cairn_base::units::format_size;
use cairn_erasure::Code;
use cairn_segment::MoveRoom;

use super::work::Work;

/// What rewriting a segment takes: its live bytes, and data and parity shards of the new segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewriting {
    pub live_bytes: u64,
    pub code: Code,
}

/// What finds room of some work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reckoning {
    /// Bytes of shards that have to get to another disk, and for which there is one, full or not.
    pub moves_bytes: u64,
    /// Of these, what finds room on such disks.
    pub placed_bytes: u64,
    /// Of these, what has to wait for room.
    pub waiting_bytes: u64,
    /// Live bytes of segments that are rewritten instead, because a shard finds no such disk.
    pub rewrites_bytes: u64,
    /// Of these, what finds room then.
    pub rewritable_bytes: u64,
}

/// Reckons with the moves of some work, in its order, and with what is rewritten after them.
///
/// Segments with less protection than they should have count only if they can be moved: they are rewritten if there is
/// room, and what finds none stays where it is and is reported then. Shards that wait for a disk, because all disks
/// hold one of their segment, do not count either.
pub fn reckon(
    room: &mut MoveRoom,
    work: &[Work],
    rewriting: impl Fn(&Work) -> Rewriting,
) -> Reckoning {
    let mut found = Reckoning::default();
    let mut rewrites: BTreeMap<(u8, u8), Rewriting> = BTreeMap::new();
    for work in work
        .iter()
        .filter(|work| !work.is_narrow || work.may_rewrite)
    {
        let len_bytes = work.shard_len_bytes;
        let mut held = work.disks.clone();
        let mut is_rewritten = false;
        for index in &work.shards {
            if let Some(to) = room.place(work.moving(&held, *index)) {
                found.placed_bytes += len_bytes;
                found.moves_bytes += len_bytes;
                if let Some(held) = held.get_mut(usize::from(*index)) {
                    *held = to;
                }
                continue;
            }
            is_rewritten |= work.may_rewrite;
            if room.has_place_for(work.moving(&held, *index)) {
                found.moves_bytes += len_bytes;
                if !work.may_rewrite {
                    found.waiting_bytes += len_bytes;
                }
            }
        }
        if is_rewritten {
            let one = rewriting(work);
            let of_code = rewrites
                .entry((one.code.data(), one.code.parity()))
                .or_insert(Rewriting {
                    live_bytes: 0,
                    ..one
                });
            of_code.live_bytes += one.live_bytes;
        }
    }
    // Of each code a part: together they must not take more than all of the room.
    let mut taken = 0.0;
    for of_code in rewrites.values().filter(|of_code| of_code.live_bytes > 0) {
        found.rewrites_bytes += of_code.live_bytes;
        taken += of_code.live_bytes as f64 / room.usable_bytes(of_code.code) as f64;
    }
    found.rewritable_bytes = match taken > 1.0 {
        true => (found.rewrites_bytes as f64 / taken) as u64,
        false => found.rewrites_bytes,
    };
    found
}

impl Reckoning {
    /// How much finds no room: of shards that wait, and of data that is to be rewritten.
    pub fn missing_bytes(&self) -> u64 {
        self.waiting_bytes + (self.rewrites_bytes - self.rewritable_bytes)
    }

    /// Says what finds no room, if anything does not.
    pub fn lack(&self) -> Option<String> {
        if self.missing_bytes() == 0 {
            return None;
        }
        let mut parts = Vec::new();
        if self.moves_bytes > self.placed_bytes {
            parts.push(format!(
                "the disks that hold none of these segments have room for {} of {}",
                format_size(self.placed_bytes),
                format_size(self.moves_bytes)
            ));
        }
        if self.rewrites_bytes > self.rewritable_bytes {
            parts.push(format!(
                "{} of data can only be rewritten for fewer disks, and {} are free there beside the reserve",
                format_size(self.rewrites_bytes),
                format_size(self.rewritable_bytes)
            ));
        }
        Some(format!(
            "there is no room for {}: {}",
            format_size(self.missing_bytes()),
            parts.join("; ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{DiskId, NodeId, SegmentId, VolumeId};
    use cairn_segment::{DiskRoom, TargetDisk};

    use super::*;

    const MIB: u64 = 1 << 20;
    const SHARD: u64 = 8 * MIB;

    /// Disks 1, 2, ... with so much free each, in MiB, and no reserve.
    fn room(free_mib: &[u64]) -> MoveRoom {
        let disks = (1..).zip(free_mib);
        MoveRoom::new(disks.map(|(id, free)| DiskRoom {
            disk: DiskId(id),
            media: None,
            node: NodeId::ONLY,
            free_bytes: free * MIB,
            reserve_bytes: 0,
        }))
    }

    /// As many segments on these disks, with their first shard to be moved.
    fn segments(count: u64, disks: &[u128], may_rewrite: bool) -> Vec<Work> {
        let one = |id| Work {
            volume: VolumeId(1),
            segment: SegmentId(id),
            disks: disks.iter().copied().map(DiskId).collect(),
            shards: vec![0],
            shard_len_bytes: SHARD,
            code: Code::new(disks.len() as u8 - 2, 2).unwrap(),
            spare: 1,
            nodes_spare: 0,
            is_short: true,
            may_rewrite,
            has_away: false,
            is_narrow: false,
            is_crowded: false,
            is_misplaced: false,
            to: None,
            media: None,
            protection: None,
        };
        (0..count).map(one).collect()
    }

    /// In MiB: moved or waiting, of that with room, rewritten, of that with room, without room.
    fn reckoned(mut room: MoveRoom, work: &[Work]) -> [u64; 5] {
        let found = reckon(&mut room, work, |work| Rewriting {
            live_bytes: 4 * work.shard_len_bytes,
            code: Code::new(4, 2).unwrap(),
        });
        assert_eq!(found.lack().is_some(), found.missing_bytes() > 0);
        [
            found.moves_bytes,
            found.placed_bytes,
            found.rewrites_bytes,
            found.rewritable_bytes,
            found.missing_bytes(),
        ]
        .map(|bytes| bytes / MIB)
    }

    #[test]
    fn only_room_where_a_shard_may_go_counts() {
        // Disk 9 is lost; disks 1 to 5 hold the other shards, and 6 is new.
        let six: &[u128] = &[9, 1, 2, 3, 4, 5];
        let seven: &[u128] = &[9, 1, 2, 3, 4, 7];
        type Case<'a> = (&'a str, &'a [u64], Vec<Work>, [u64; 5]);
        let cases: Vec<Case> = vec![
            (
                "the new one is large enough",
                &[0, 0, 0, 0, 0, 100],
                segments(10, six, false),
                [80, 80, 0, 0, 0],
            ),
            (
                "the room of the others is no room for these",
                &[900, 900, 900, 900, 900, 50],
                segments(10, six, false),
                [80, 40, 0, 0, 40],
            ),
            (
                "what may be written anew takes the room of the others",
                &[900, 900, 900, 900, 900, 50],
                segments(10, six, true),
                [80, 40, 160, 160, 0],
            ),
            (
                "which is not enough",
                &[30, 30, 30, 30, 30, 50],
                segments(10, six, true),
                [80, 40, 160, 90, 70],
            ),
            (
                "each where it may go",
                &[0, 0, 0, 0, 50, 50],
                [segments(4, six, false), segments(4, seven, false)].concat(),
                [64, 64, 0, 0, 0],
            ),
            (
                "without another disk they wait for one, which is told elsewhere",
                &[900, 900, 900, 900, 900],
                segments(10, six, false),
                [0, 0, 0, 0, 0],
            ),
            (
                "a draining disk: written anew for five",
                &[60, 60, 60, 60, 60],
                segments(10, six, true),
                [0, 0, 320, 180, 140],
            ),
        ];
        for (name, free_mib, work, want) in cases {
            assert_eq!(reckoned(room(free_mib), &work), want, "{name}");
        }
        let mut narrow = segments(3, six, true);
        let moved = reckoned(room(&[60; 6]), &narrow);
        narrow.iter_mut().for_each(|work| work.is_narrow = true);
        assert_eq!(reckoned(room(&[60; 6]), &narrow), moved, "it can be moved");
        narrow.iter_mut().for_each(|work| work.may_rewrite = false);
        assert_eq!(reckoned(room(&[0; 6]), &narrow), [0; 5]);
    }

    /// Each shard is on a node of its own, and disk 6 is on the node of disk 1.
    #[test]
    fn room_on_a_node_that_has_a_shard_is_no_room() {
        let work = |may_rewrite| segments(4, &[5, 1, 2, 3, 4], may_rewrite);
        let place = |disk: u128, node: u128| {
            let place = TargetDisk {
                media: None,
                node: NodeId(node),
                is_there: true,
                stays: true,
            };
            (DiskId(disk), place)
        };
        let room_on = |node_of_6: u128| {
            let nodes = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, node_of_6)];
            let places = nodes.map(|(disk, node)| place(disk, node));
            let node_of = |disk: DiskId| NodeId(if disk.0 == 6 { node_of_6 } else { disk.0 });
            let disks = (1..=6).map(DiskId).map(|disk| DiskRoom {
                disk,
                media: None,
                node: node_of(disk),
                free_bytes: 100 * MIB,
                reserve_bytes: 0,
            });
            MoveRoom::new(disks)
                .with_only(|disk| disk.0 != 5)
                .among(places)
        };
        assert_eq!(reckoned(room_on(5), &work(true)), [32, 32, 0, 0, 0]);
        // Disk 5 works and leaves: with two shards on node 1 its segments would survive one node less.
        assert_eq!(reckoned(room_on(1), &work(true)), [0, 0, 128, 128, 0]);
    }

    #[test]
    fn it_is_said_how_much_is_missing_and_where() {
        let six: &[u128] = &[9, 1, 2, 3, 4, 5];
        let none = |_: &Work| Rewriting {
            live_bytes: 0,
            code: Code::new(4, 2).unwrap(),
        };
        let found = reckon(
            &mut room(&[900, 900, 900, 900, 900, 50]),
            &segments(10, six, false),
            none,
        );
        assert_eq!(
            found.lack().unwrap(),
            "there is no room for 40 MiB: the disks that hold none of these segments have room for 40 MiB of 80 MiB"
        );
        assert_eq!(reckon(&mut room(&[]), &[], none).lack(), None);
    }
}
