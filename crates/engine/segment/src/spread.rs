//! Balancing: which shards should move to emptier disks, decided as plain data.
//!
//! Owns: when disks are uneven, and which move makes them less so. Must not know: how a shard moves, when balancing is
//! wanted.
//!
//! Disks of different classes are not compared: data stays in its device class. Each proposed move leaves its two disks
//! less uneven than before, and no segment less protected. So balancing ends, even if other owners move shards at the
//! same time.

use std::collections::BTreeMap;

use cairn_base::{DiskId, Media};
use cairn_shard::file_len_bytes;

use crate::move_targets::{MoveRoom, MovingShard};

/// Shares of a disk are in thousandths.
const WHOLE: u64 = 1000;
/// Disks are uneven if their used shares differ by this much.
const UNEVEN_PERMILLE: u64 = 100;
/// Moves then go on until they differ by no more than this.
const EVEN_PERMILLE: u64 = 50;

/// Fill level of a disk that holds shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFill {
    pub disk: DiskId,
    pub media: Option<Media>,
    pub total_bytes: u64,
    pub free_bytes: u64,
}

impl DiskFill {
    fn used_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes)
    }

    /// The used share; a disk without any room counts as full.
    fn used_permille(&self) -> u64 {
        let used = u128::from(self.used_bytes()) * u128::from(WHOLE);
        let share = used.checked_div(u128::from(self.total_bytes));
        share.map_or(WHOLE, |share| u64::try_from(share).unwrap_or(WHOLE))
    }

    fn after(&self, used_bytes: u64) -> Self {
        Self {
            free_bytes: self.total_bytes.saturating_sub(used_bytes),
            ..*self
        }
    }
}

/// Difference between the disks of one class, for the class where it is largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unevenness {
    /// The used share of the emptiest and of the fullest disk, in thousandths.
    pub least_permille: u64,
    pub most_permille: u64,
    /// Bytes above the mean share of their class, over all disks.
    pub excess_bytes: u64,
}

impl Unevenness {
    /// Whether balancing should start.
    pub fn is_great(&self) -> bool {
        self.most_permille - self.least_permille > UNEVEN_PERMILLE
    }

    /// Whether balancing can still improve something.
    pub fn is_small(&self) -> bool {
        self.most_permille - self.least_permille <= EVEN_PERMILLE
    }
}

/// Disks with their used bytes after all moves planned so far.
#[derive(Clone, Debug)]
pub struct Spread {
    fills: BTreeMap<DiskId, DiskFill>,
    room: MoveRoom,
    /// Limit of the bytes that are still moved.
    left_bytes: u64,
}

impl Spread {
    /// `room`: possible targets, among all disks of the pool.
    pub fn new(fills: impl IntoIterator<Item = DiskFill>, room: MoveRoom) -> Self {
        let fills = fills.into_iter().map(|fill| (fill.disk, fill)).collect();
        Self {
            fills,
            room,
            left_bytes: u64::MAX,
        }
    }

    /// The share of one of several owners that balance the disks at the same time: together they move no more than the
    /// excess.
    pub fn for_one_of(self, owners: usize) -> Self {
        let owners = u64::try_from(owners.max(1)).unwrap_or(u64::MAX);
        let left_bytes = self.unevenness().excess_bytes / owners;
        Self { left_bytes, ..self }
    }

    pub fn unevenness(&self) -> Unevenness {
        let mut kinds: BTreeMap<Option<Media>, Vec<&DiskFill>> = BTreeMap::new();
        for fill in self.fills.values().filter(|fill| fill.total_bytes > 0) {
            kinds.entry(fill.media).or_default().push(fill);
        }
        let mut all = Unevenness::default();
        for fills in kinds.values() {
            let total: u128 = fills.iter().map(|fill| u128::from(fill.total_bytes)).sum();
            let used: u128 = fills.iter().map(|fill| u128::from(fill.used_bytes())).sum();
            let excess = fills.iter().map(|fill| {
                let mean = used * u128::from(fill.total_bytes) / total;
                u128::from(fill.used_bytes()).saturating_sub(mean)
            });
            let excess_bytes = u64::try_from(excess.sum::<u128>()).unwrap_or(u64::MAX);
            all.excess_bytes = all.excess_bytes.saturating_add(excess_bytes);
            let shares = fills.iter().map(|fill| fill.used_permille());
            let (least, most) = shares.fold((WHOLE, 0), |(least, most), share| {
                (share.min(least), share.max(most))
            });
            if most - least > all.most_permille - all.least_permille || all.most_permille == 0 {
                (all.least_permille, all.most_permille) = (least, most);
            }
        }
        all
    }

    /// Disks that are fuller than the emptiest of their class, fullest first.
    pub fn fuller(&self) -> Vec<DiskId> {
        let least_of = |media: Option<Media>| {
            let same = self.fills.values().filter(|fill| fill.media == media);
            same.map(|fill| fill.used_permille()).min().unwrap_or(WHOLE)
        };
        let mut fuller: Vec<&DiskFill> = self
            .fills
            .values()
            .filter(|fill| fill.used_permille() > least_of(fill.media) + EVEN_PERMILLE)
            .collect();
        fuller.sort_by_key(|fill| std::cmp::Reverse(fill.used_permille()));
        fuller.into_iter().map(|fill| fill.disk).collect()
    }

    /// Whether the limit of moved bytes is reached.
    pub fn is_done(&self) -> bool {
        self.left_bytes == 0
    }

    /// Plans a move of a shard to an emptier disk, and returns that disk: the emptiest one that lets the segment
    /// survive as much as now, and stays no fuller than the disk that the shard leaves. `None`: the shard stays.
    pub fn place(&mut self, shard: MovingShard<'_>) -> Option<DiskId> {
        if self.is_done() {
            return None;
        }
        let own = *self.fills.get(shard.held.get(usize::from(shard.index))?)?;
        let len_bytes = file_len_bytes(shard.len_bytes)?;
        let own_then = own.after(own.used_bytes().saturating_sub(len_bytes));
        let then = |to: &DiskFill| to.after(to.used_bytes().saturating_add(len_bytes));
        let is_better = |to: &&DiskFill| {
            to.media == own.media
                && own.used_permille() > to.used_permille() + EVEN_PERMILLE
                && own_then.used_permille() >= then(to).used_permille()
                && self.room.may_go(shard, to.disk)
        };
        let better = self.fills.values().filter(is_better);
        let to = *better.min_by_key(|to| (to.used_permille(), to.disk))?;
        self.fills.insert(own.disk, own_then);
        self.fills.insert(to.disk, then(&to));
        self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
        Some(to.disk)
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::NodeId;
    use cairn_erasure::Code;
    use proptest::prelude::*;

    use super::*;
    use crate::move_targets::{DiskRoom, TargetDisk};

    const MIB: u64 = 1 << 20;
    const SHARD: u64 = 8 * MIB;
    const DISK: u64 = 1000 * MIB;

    /// Disks 1, 2, ... of equal size: the node, and the number of shards on each.
    fn spread(disks: &[(u128, u64)], reserve_bytes: u64) -> Spread {
        let each = || (1..).map(DiskId).zip(disks);
        let used = |shards: u64| shards * file_len_bytes(SHARD).unwrap();
        let fills = each().map(|(disk, (_, shards))| DiskFill {
            disk,
            media: None,
            total_bytes: DISK,
            free_bytes: DISK - used(*shards),
        });
        let rooms = each().map(|(disk, (node, shards))| DiskRoom {
            disk,
            node: NodeId(*node),
            media: None,
            free_bytes: DISK - used(*shards),
            reserve_bytes,
        });
        let places = each().map(|(disk, (node, _))| {
            let place = TargetDisk {
                node: NodeId(*node),
                is_there: true,
                stays: true,
                media: None,
            };
            (disk, place)
        });
        Spread::new(fills, MoveRoom::new(rooms).among(places))
    }

    fn place(spread: &mut Spread, held: &[u128], parity: u8, index: u8) -> Option<u128> {
        let held: Vec<DiskId> = held.iter().copied().map(DiskId).collect();
        let data = held.len() as u8 - parity;
        let shard = MovingShard {
            held: &held,
            code: Code::new(data, parity).unwrap(),
            index,
            len_bytes: SHARD,
            media: None,
        };
        spread.place(shard).map(|disk| disk.0)
    }

    #[test]
    fn a_shard_goes_to_an_emptier_disk_where_its_segment_survives_as_much() {
        // The node of each disk and its fill level; the segment's disks, parity, and the shard; the target.
        type Case<'a> = (&'a str, &'a [(u128, u64)], &'a [u128], u8, u8, Option<u128>);
        let cases: &[Case] = &[
            (
                "a node was added",
                &[(1, 60), (2, 60), (3, 60), (4, 0)],
                &[1, 2, 3],
                2,
                1,
                Some(4),
            ),
            (
                "a disk was added to one server",
                &[(1, 60), (1, 60), (1, 60), (1, 0)],
                &[1, 2, 3],
                2,
                0,
                Some(4),
            ),
            (
                "the new node has a shard of it already",
                &[(1, 60), (2, 60), (3, 60), (3, 0)],
                &[1, 2, 3],
                2,
                0,
                None,
            ),
            (
                "the shard of that node may go",
                &[(1, 60), (2, 60), (3, 60), (3, 0)],
                &[1, 2, 3],
                2,
                2,
                Some(4),
            ),
            (
                "about as full",
                &[(1, 10), (2, 10), (3, 10), (4, 5)],
                &[1, 2, 3],
                2,
                0,
                None,
            ),
            (
                "the emptiest of several",
                &[(1, 60), (2, 60), (3, 60), (4, 9), (5, 3)],
                &[1, 2, 3],
                2,
                0,
                Some(5),
            ),
            (
                "it holds one already",
                &[(1, 60), (2, 60), (3, 0)],
                &[1, 3],
                1,
                0,
                None,
            ),
        ];
        for (name, disks, held, parity, index, want) in cases {
            let got = place(&mut spread(disks, 0), held, *parity, *index);
            assert_eq!(got, *want, "{name}");
        }
        let full = &mut spread(&[(1, 110), (1, 100), (1, 20)], 880 * MIB);
        assert_eq!(place(full, &[1], 0, 0), None, "the reserve is not for this");
    }

    #[test]
    fn only_disks_of_one_kind_are_compared() {
        let mut spread = spread(&[(1, 60), (1, 0), (1, 30)], 0);
        let kinds = [Media::Hdd, Media::Nvme, Media::Hdd];
        for (fill, kind) in spread.fills.values_mut().zip(kinds) {
            fill.media = Some(kind);
        }
        assert_eq!(place(&mut spread, &[1], 0, 0), Some(3));
        let hdds_used = 90 * file_len_bytes(SHARD).unwrap();
        let uneven = spread.unevenness();
        assert!(uneven.excess_bytes < hdds_used / 2, "{uneven:?}");
        assert!(uneven.least_permille > 200, "{uneven:?}");
    }

    #[test]
    fn several_owners_together_move_no_more_than_is_too_much() {
        let disks = [(1, 80), (2, 80), (3, 80), (4, 0)];
        let excess = spread(&disks, 0).unevenness().excess_bytes;
        assert_eq!(excess, 60 * file_len_bytes(SHARD).unwrap());
        let mut moved = 0;
        for _ in 0..4 {
            let mut own = spread(&disks, 0).for_one_of(4);
            while place(&mut own, &[1, 2, 3], 2, (moved % 3) as u8).is_some() {
                moved += 1;
            }
        }
        assert_eq!(moved, 60);
    }

    proptest! {
        /// For any disks, moves end, the disks are less uneven after each, and no owner finds more to do.
        #[test]
        fn moves_end_and_each_makes_disks_less_uneven(
            disks in prop::collection::vec((0_u128..4, 0_u64..110), 2..8),
            shards in prop::collection::vec(prop::collection::vec(0_usize..8, 1..4), 0..60),
            parity in 0_u8..3,
        ) {
            let mut spread = spread(&disks, 0);
            let mut segments: Vec<Vec<u128>> = shards
                .iter()
                .map(|held| {
                    let mut held: Vec<u128> = held.iter().map(|at| (at % disks.len()) as u128 + 1).collect();
                    held.sort_unstable();
                    held.dedup();
                    held
                })
                .collect();
            let squares = |spread: &Spread| -> u128 {
                spread.fills.values().map(|fill| u128::from(fill.used_bytes()).pow(2)).sum()
            };
            let mut moved = 0;
            loop {
                let before = moved;
                for held in &mut segments {
                    let parity = parity.min(held.len() as u8 - 1);
                    for index in 0..held.len() {
                        let was = squares(&spread);
                        if let Some(to) = place(&mut spread, held, parity, index as u8) {
                            prop_assert!(!held.contains(&to));
                            prop_assert!(squares(&spread) < was);
                            held[index] = to;
                            moved += 1;
                        }
                    }
                }
                if moved == before {
                    break;
                }
            }
        }
    }
}
