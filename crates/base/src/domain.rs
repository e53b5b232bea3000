//! Failure domains: what fails together.
//!
//! Owns: where a disk is, and how many losses a set of shards survives.
//! Must not know: how disks are chosen, codes, what a shard is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::DiskId;
use crate::ids::NodeId;
use crate::planted::{self, Bug};

/// Where a disk is, from the outside in. Racks and zones will come before the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DomainPath {
    pub node: NodeId,
    pub disk: DiskId,
}

/// What a disk of a pool is for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum DiskRole {
    /// Data; and metadata, where there are too few log devices.
    #[default]
    Data,
    /// Logs and metadata of volumes, and nothing else.
    Journal,
}

impl DiskRole {
    pub fn is_data(&self) -> bool {
        *self == Self::Data
    }
}

/// What kind of device a disk is, as far as the operator says: data that is to live on one kind is put on those disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Media {
    Hdd,
    Ssd,
    Nvme,
}

impl Media {
    pub const ALL: [Self; 3] = [Self::Hdd, Self::Ssd, Self::Nvme];

    /// The number that stands for it in files.
    pub const fn number(self) -> u8 {
        match self {
            Self::Hdd => 1,
            Self::Ssd => 2,
            Self::Nvme => 3,
        }
    }

    /// That of a number in a file: 0 says nothing. `None` if no medium has it.
    pub fn of_number(number: u8) -> Option<Option<Self>> {
        if number == 0 {
            return Some(None);
        }
        let found = Self::ALL.into_iter().find(|it| it.number() == number);
        found.map(Some)
    }
}

impl std::fmt::Display for Media {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Hdd => "hdd",
            Self::Ssd => "ssd",
            Self::Nvme => "nvme",
        })
    }
}

/// How many losses something survives, whichever they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Survives {
    pub disks: usize,
    /// With one node 0: without it there is nothing.
    pub nodes: usize,
}

impl Survives {
    /// What survives of two things of which both are needed.
    pub fn and(self, other: Self) -> Self {
        Self {
            disks: self.disks.min(other.disks),
            nodes: self.nodes.min(other.nodes),
        }
    }

    /// Whether all of `lost` together is survived: so few disks, or disks of so few nodes.
    pub fn covers(self, lost: Losses) -> bool {
        lost.disks <= self.disks || lost.nodes <= self.nodes
    }
}

/// What a set of shards survives of which `spare` may go. `places` are the domains of those that are there.
pub fn survives(places: &[DomainPath], spare: usize) -> Survives {
    Survives {
        disks: survives_of(places, spare, |place| place.disk),
        nodes: match planted::is(Bug::NodeCountedTwice) {
            true => survives_of(places, spare, |place| (place.node, place.disk)),
            false => survives_of(places, spare, |place| place.node),
        },
    }
}

/// How many domains may go that have so many shards each, of which `spare` may go.
pub fn domains_survived(mut shard_counts: Vec<usize>, spare: usize) -> usize {
    // The worst that can happen is that those with most shards go first.
    shard_counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut lost = 0;
    let survived = shard_counts.iter().filter(|count| **count > 0);
    let survived = survived.take_while(|count| {
        lost += **count;
        lost <= spare
    });
    survived.count()
}

/// Disks that are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub disks: usize,
    /// On how many nodes they are.
    pub nodes: usize,
}

impl FromIterator<DomainPath> for Losses {
    fn from_iter<T: IntoIterator<Item = DomainPath>>(lost: T) -> Self {
        let (disks, nodes): (BTreeSet<DiskId>, BTreeSet<NodeId>) =
            lost.into_iter().map(|it| (it.disk, it.node)).unzip();
        Self {
            disks: disks.len(),
            nodes: nodes.len(),
        }
    }
}

/// How many domains of one kind may go.
fn survives_of<D: Ord>(
    places: &[DomainPath],
    spare: usize,
    domain: impl Fn(&DomainPath) -> D,
) -> usize {
    let mut counts: BTreeMap<D, usize> = BTreeMap::new();
    for place in places {
        *counts.entry(domain(place)).or_default() += 1;
    }
    domains_survived(counts.into_values().collect(), spare)
}

/// How many of so many shards are on the nodes that have most of them, when they are spread as evenly as `disk_counts`,
/// the disks of each node, allow: by node, most first. Fewer than `shards` if there are fewer disks.
pub fn even_spread(disk_counts: &[usize], shards: usize) -> Vec<usize> {
    let mut spread = vec![0_usize; disk_counts.len()];
    for _ in 0..shards {
        let roomy = (0..spread.len()).filter(|node| spread[*node] < disk_counts[*node]);
        let Some(least) = roomy.min_by_key(|node| spread[*node]) else {
            break;
        };
        spread[least] += 1;
    }
    spread.sort_unstable_by(|a, b| b.cmp(a));
    spread
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(nodes: &[u128]) -> Vec<DomainPath> {
        let disks = nodes.iter().zip(1..);
        let place = |(node, disk): (&u128, u128)| DomainPath {
            node: NodeId(*node),
            disk: DiskId(disk),
        };
        disks.map(place).collect()
    }

    #[test]
    fn one_node_is_never_survived() {
        let six = places(&[0; 6]);
        let want = Survives { disks: 2, nodes: 0 };
        assert_eq!(survives(&six, 2), want);
        assert_eq!(survives(&[], 2), Survives::default());
    }

    #[test]
    fn nodes_with_more_shards_count_for_more() {
        let cases: &[(&[u128], usize, Survives)] = &[
            (&[1, 2, 3, 4, 5, 6], 2, Survives { disks: 2, nodes: 2 }),
            (&[1, 1, 2, 2, 3, 3], 2, Survives { disks: 2, nodes: 1 }),
            (&[1, 1, 1, 2, 2, 3], 2, Survives { disks: 2, nodes: 0 }),
            (&[1, 2, 3, 4, 4], 2, Survives { disks: 2, nodes: 1 }),
            (&[1, 2, 3], 0, Survives { disks: 0, nodes: 0 }),
        ];
        for (nodes, spare, want) in cases {
            assert_eq!(survives(&places(nodes), *spare), *want, "{nodes:?}");
        }
    }

    /// Every topology of up to seven shards on up to four nodes, and every set of domains that may go.
    #[test]
    fn what_is_reported_is_what_every_set_of_losses_leaves() {
        fn lost(places: &[DomainPath], set: u32, domain: impl Fn(&DomainPath) -> u128) -> usize {
            let is_lost = |place: &&DomainPath| set & (1 << domain(place)) != 0;
            places.iter().filter(is_lost).count()
        }
        for shards in 1..=7_u32 {
            for topology in 0..4_u32.pow(shards) {
                let nodes: Vec<u128> = (0..shards)
                    .map(|shard| u128::from(topology / 4_u32.pow(shard) % 4))
                    .collect();
                let all = places(&nodes);
                for spare in 0..=4.min(shards as usize - 1) {
                    let told = survives(&all, spare);
                    let worst = |count: usize, bits: u32, of: fn(&DomainPath) -> u128| {
                        let sets =
                            (0..1_u32 << bits).filter(|set| set.count_ones() as usize == count);
                        sets.map(|set| lost(&all, set, of)).max().unwrap_or(0)
                    };
                    let of_node: fn(&DomainPath) -> u128 = |place| place.node.0;
                    let of_disk: fn(&DomainPath) -> u128 = |place| place.disk.0 - 1;
                    assert!(worst(told.nodes, 4, of_node) <= spare, "{nodes:?} {spare}");
                    assert!(
                        worst(told.nodes + 1, 4, of_node) > spare,
                        "{nodes:?} {spare}: more"
                    );
                    assert!(
                        worst(told.disks, shards, of_disk) <= spare,
                        "{nodes:?} {spare}"
                    );
                    assert!(
                        worst(told.disks + 1, shards, of_disk) > spare,
                        "{nodes:?} {spare}: more"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_lost_on_one_node_is_lost_with_the_node() {
        let two = Survives { disks: 2, nodes: 1 };
        let cases: &[(&[u128], bool)] = &[
            (&[], true),
            (&[1, 2], true),
            (&[1, 1, 1, 1], true),
            (&[1, 1, 2], false),
        ];
        for (nodes, want) in cases {
            let lost: Losses = places(nodes).into_iter().collect();
            assert_eq!(two.covers(lost), *want, "{nodes:?}");
        }
        let one_node = Survives { disks: 2, nodes: 0 };
        assert!(!one_node.covers(places(&[0; 3]).into_iter().collect()));
        let other = Survives { disks: 1, nodes: 3 };
        assert_eq!(two.and(other), Survives { disks: 1, nodes: 1 });
    }

    /// See [`planted`]: two shards on one node are counted as two nodes.
    #[cfg(feature = "planted-bugs")]
    #[test]
    fn a_node_that_is_counted_twice_is_found() {
        planted::plant(Some(Bug::NodeCountedTwice));
        let found = std::panic::catch_unwind(nodes_with_more_shards_count_for_more).is_err()
            && std::panic::catch_unwind(what_is_reported_is_what_every_set_of_losses_leaves)
                .is_err();
        planted::plant(None);
        assert!(found);
    }

    #[test]
    fn shards_are_spread_evenly() {
        let cases: &[(&[usize], usize, &[usize])] = &[
            (&[4, 4, 4], 6, &[2, 2, 2]),
            (&[1, 4, 4], 6, &[3, 2, 1]),
            (&[8, 1, 1], 6, &[4, 1, 1]),
            (&[1, 1, 1, 1], 3, &[1, 1, 1, 0]),
            (&[1, 1], 3, &[1, 1]),
            (&[], 3, &[]),
        ];
        for (disks, shards, want) in cases {
            assert_eq!(even_spread(disks, *shards), *want, "{disks:?} {shards}");
        }
    }
}
