//! Code, disks and room of new segments: decided as plain data.
//!
//! Owns: the rules of section 8 of the design and of Rule 5. Must not know: how disks are asked.

use cairn_base::NodeId;
use cairn_base::domain::{Survives, domains_survived, even_spread};
use cairn_erasure::Code;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Result, SegmentError};
use crate::types::{Protection, SegmentSettings};

/// Most data shards of a segment.
const DATA_SHARDS_MAX: usize = 16;
/// Number of losses that data survives by default.
const DEFAULT_PARITY: usize = 2;
/// Limit of the reserve, as a share of a disk, so that tiny disks are usable at all.
const RESERVE_DIVISOR_MIN: u64 = 16;

/// A code from counts that are in range by construction.
fn code(data: usize, parity: usize) -> Code {
    Code::new(data as u8, parity as u8).expect("1..=16 data and 0..=4 parity shards")
}

/// Number of disks on each node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology(Vec<usize>);

impl FromIterator<NodeId> for Topology {
    /// Takes the node of each disk.
    fn from_iter<T: IntoIterator<Item = NodeId>>(disks: T) -> Self {
        let mut counts: FxHashMap<NodeId, usize> = FxHashMap::default();
        for node in disks {
            *counts.entry(node).or_default() += 1;
        }
        Self(counts.into_values().collect())
    }
}

impl Topology {
    pub fn disk_count(&self) -> usize {
        self.0.iter().sum()
    }

    pub fn node_count(&self) -> usize {
        self.0.len()
    }

    /// Losses that a segment of a code survives if it is spread evenly over all nodes.
    pub fn survives(&self, code: Code) -> Survives {
        let spread = even_spread(&self.0, usize::from(code.total()));
        // With too few disks there are fewer shards.
        let there: usize = spread.iter().sum();
        let spare = there.checked_sub(usize::from(code.data()));
        spare.map_or(Survives::default(), |spare| Survives {
            disks: spare,
            nodes: domains_survived(spread, spare),
        })
    }

    /// Whether segments of a code should have each shard on another node, so that nodes count, and not disks.
    pub fn gives_each_shard_a_node(&self, code: Code) -> bool {
        self.0.len() > 1 && usize::from(code.total()) <= self.0.len()
    }
}

/// The widest code with this number of parity shards, smaller than the number of disks. With several nodes each shard
/// gets a node of its own. If there are too few nodes for that, data survives at least the loss of any node, unless one
/// node has most of the disks.
fn widest_code(parity: usize, topology: &Topology) -> Code {
    let (disks, nodes) = (topology.disk_count(), topology.node_count());
    assert!(parity < disks);
    let most = (disks - parity).min(DATA_SHARDS_MAX);
    let data = match nodes {
        0 | 1 => most,
        nodes if nodes > parity => (nodes - parity).min(DATA_SHARDS_MAX),
        _ => {
            let any_node_may_go = |data: &usize| topology.survives(code(*data, parity)).nodes > 0;
            (1..=most).rev().find(any_node_may_go).unwrap_or(most)
        }
    };
    code(data, parity)
}

/// Default code of a pool with these disks.
pub(crate) fn default_code(topology: &Topology) -> Code {
    match topology.disk_count() {
        0 | 1 => code(1, 0),
        disks => widest_code(DEFAULT_PARITY.min(disks - 1), topology),
    }
}

/// The code of a protection in a pool of these disks.
pub(crate) fn code_for(protection: Protection, topology: &Topology) -> Result<Code> {
    let (what, wide, parity) = match protection {
        Protection::Default => return Ok(default_code(topology)),
        Protection::None => return Ok(code(1, 0)),
        Protection::Plus(losses @ 1..=4) => (format!("+{losses}n"), true, usize::from(losses)),
        Protection::Plus(losses) => {
            let what = format!("+{losses}n");
            return Err(SegmentError::Protection { what });
        }
        Protection::Mirror(copies @ 2..=5) => {
            (format!("{copies}x"), false, usize::from(copies - 1))
        }
        Protection::Mirror(copies) => {
            let what = format!("{copies}x");
            return Err(SegmentError::Protection { what });
        }
    };
    if topology.disk_count() <= parity {
        return Err(SegmentError::TooFewDisks {
            what,
            needed: parity + 1,
            present: topology.disk_count(),
        });
    }
    Ok(match wide {
        true => widest_code(parity, topology),
        false => code(1, parity),
    })
}

/// The code of a new segment if `wanted` was requested, `healthy` disks work and `roomy` of them have space. None: no
/// space.
///
/// With lost or full disks, segments get narrower and survive as many losses as before. Only if too few disks work are
/// there fewer copies.
pub(crate) fn fit_code(wanted: Code, healthy: usize, roomy: usize) -> Option<Code> {
    let parity = usize::from(wanted.parity());
    if roomy > parity {
        let data = usize::from(wanted.data()).min(roomy - parity);
        return Some(code(data, parity));
    }
    let no_more_healthy = roomy == healthy && roomy > 0;
    no_more_healthy.then(|| code(1, roomy - 1))
}

/// As [`fit_code`], for disks of several nodes: `healthy` and `roomy` are the nodes of the disks. `pool`: all disks
/// that are to stay, present or not.
///
/// If each shard should have a node of its own, lost or full nodes make segments narrower, as disks do. If too few
/// nodes work for that, shards share nodes: a code that survives as many disks, and a node if possible, is better than
/// fewer copies.
pub(crate) fn fit_code_in(
    wanted: Code,
    healthy: &[NodeId],
    roomy: &[NodeId],
    pool: &Topology,
) -> Option<Code> {
    let by_disks = |wanted| fit_code(wanted, healthy.len(), roomy.len());
    if !pool.gives_each_shard_a_node(wanted) {
        return by_disks(wanted);
    }
    let (healthy_nodes, roomy_nodes) = (distinct(healthy), distinct(roomy));
    let parity = usize::from(wanted.parity());
    if roomy_nodes > parity || roomy_nodes < healthy_nodes {
        return fit_code(wanted, healthy_nodes, roomy_nodes);
    }
    let data = match healthy_nodes {
        0 | 1 => usize::from(wanted.data()),
        // Limited so that no node has more than `parity` of the shards.
        nodes => usize::from(wanted.data()).min((nodes - 1) * parity),
    };
    by_disks(code(data, parity))
}

fn distinct(nodes: &[NodeId]) -> usize {
    nodes.iter().collect::<FxHashSet<_>>().len()
}

/// Picks `count` of the disks, given by their free bytes and their nodes: at random, weighted by free bytes, on as many
/// nodes as possible and as evenly on these as their disks allow. Returns indexes, in the order of the shards. `random`
/// gives uniform numbers.
pub(crate) fn choose_disks(
    free_bytes: &[u64],
    nodes: &[NodeId],
    count: usize,
    mut random: impl FnMut() -> u64,
) -> Vec<usize> {
    assert_eq!(free_bytes.len(), nodes.len());
    // Efraimidis and Spirakis (2006): the largest of u^(1/weight) are a weighted sample without
    // replacement; in logarithms, the smallest of -ln(u) / weight.
    let mut keyed: Vec<(f64, usize)> = free_bytes
        .iter()
        .enumerate()
        .map(|(index, free)| {
            let uniform = (random() >> 11) as f64 / (1_u64 << 53) as f64;
            let key = -(uniform.max(f64::MIN_POSITIVE)).ln() / (*free).max(1) as f64;
            (key, index)
        })
        .collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
    // The second disk of a node comes after the first of all others, and so on: each round keeps the order of the
    // sample, and no node is used again while another one has fewer shards and a free disk.
    let mut taken: FxHashMap<NodeId, usize> = FxHashMap::default();
    let mut rounds: Vec<(usize, usize)> = keyed
        .into_iter()
        .map(|(_, index)| {
            let of_node = taken.entry(nodes[index]).or_default();
            *of_node += 1;
            (*of_node, index)
        })
        .collect();
    // With one node each disk is a round of its own, in the order of the sample.
    rounds.sort_by_key(|(round, _)| *round);
    let chosen = rounds.into_iter().take(count);
    chosen.map(|(_, index)| index).collect()
}

/// Bytes of a disk that only garbage collection and rebuild may use.
pub(crate) fn reserve_bytes(settings: &SegmentSettings, total_bytes: u64) -> u64 {
    let share = (u128::from(total_bytes) * u128::from(settings.reserve_permille) / 1000) as u64;
    share
        .max(settings.reserve_bytes_min)
        .min(total_bytes / RESERVE_DIVISOR_MIN)
}

/// Most bytes of data that fit onto disks with this much room each, in segments of `code` on distinct disks. All of
/// them work: a disk without room is full, which does not reduce protection.
pub(crate) fn usable_bytes(room_bytes: &[u64], code: Code) -> u64 {
    let roomy = room_bytes.iter().filter(|room| **room > 0).count();
    let Some(code) = fit_code(code, room_bytes.len(), roomy) else {
        return 0;
    };
    let total: u128 = room_bytes.iter().map(|room| u128::from(*room)).sum();
    let width = u128::from(code.total());
    // With x bytes in each shard position, a disk takes at most x: find the largest x for which the disks take width *
    // x in all. It is the level at which the largest disks are cut off.
    let mut sorted = room_bytes.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let mut rest = total;
    let mut each = total / width;
    for (index, room) in sorted
        .iter()
        .enumerate()
        .take(usize::from(code.total()) - 1)
    {
        if u128::from(*room) <= each {
            break;
        }
        rest -= u128::from(*room);
        each = rest / (width - index as u128 - 1);
    }
    u64::try_from(each * u128::from(code.data())).unwrap_or(u64::MAX)
}

/// Room on a disk of a node, in bytes.
pub(crate) type NodeRoom = (NodeId, u64);

/// As [`usable_bytes`], for disks of several nodes, of a pool that [`fit_code_in`] describes.
pub(crate) fn usable_bytes_in(room: &[NodeRoom], code: Code, pool: &Topology) -> u64 {
    let of_disks = || room.iter().map(|(_, bytes)| *bytes).collect::<Vec<u64>>();
    if !pool.gives_each_shard_a_node(code) {
        return usable_bytes(&of_disks(), code);
    }
    let mut of_nodes: FxHashMap<NodeId, u64> = FxHashMap::default();
    for (node, bytes) in room {
        let of_node = of_nodes.entry(*node).or_default();
        *of_node = of_node.saturating_add(*bytes);
    }
    let of_nodes: Vec<u64> = of_nodes.into_values().collect();
    let healthy: Vec<NodeId> = room.iter().map(|(node, _)| *node).collect();
    let is_roomy = |(_, bytes): &&NodeRoom| *bytes > 0;
    let roomy: Vec<NodeId> = room
        .iter()
        .filter(is_roomy)
        .map(|(node, _)| *node)
        .collect();
    match fit_code_in(code, &healthy, &roomy, pool) {
        None => 0,
        Some(fit) if usize::from(fit.total()) <= of_nodes.len() => usable_bytes(&of_nodes, fit),
        Some(fit) => usable_bytes(&of_disks(), fit),
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::DiskId;
    use cairn_base::domain::{DomainPath, even_spread, survives};
    use proptest::prelude::*;

    use super::*;

    fn text(code: Code) -> String {
        format!("{}+{}", code.data(), code.parity())
    }

    #[test]
    fn codes_follow_the_disks() {
        use Protection::*;
        let cases: &[(Protection, usize, Option<&str>)] = &[
            (Default, 1, Some("1+0")),
            (Default, 2, Some("1+1")),
            (Default, 3, Some("1+2")),
            (Default, 4, Some("2+2")),
            (Default, 5, Some("3+2")),
            (Default, 6, Some("4+2")),
            (Default, 18, Some("16+2")),
            (Default, 40, Some("16+2")),
            (None, 6, Some("1+0")),
            (Plus(1), 2, Some("1+1")),
            (Plus(1), 1, Option::None),
            (Plus(4), 6, Some("2+4")),
            (Plus(4), 4, Option::None),
            (Plus(0), 6, Option::None),
            (Plus(5), 60, Option::None),
            (Mirror(2), 6, Some("1+1")),
            (Mirror(5), 5, Some("1+4")),
            (Mirror(5), 4, Option::None),
            (Mirror(1), 4, Option::None),
        ];
        for (protection, disks, want) in cases {
            let one_node = topology(&[*disks]);
            let got = code_for(*protection, &one_node).ok().map(text);
            assert_eq!(got.as_deref(), *want, "{protection:?} on {disks}");
            // Disks on nodes of their own give the result of disks on one node.
            let own_nodes = topology(&vec![1; *disks]);
            let got = code_for(*protection, &own_nodes).ok().map(text);
            assert_eq!(got.as_deref(), *want, "{protection:?} on {disks} nodes");
        }
    }

    /// Numbers of disks on each node.
    fn topology(disks: &[usize]) -> Topology {
        let nodes = (0..).zip(disks);
        let node = |(node, disks): (u128, &usize)| vec![NodeId(node); *disks];
        nodes.flat_map(node).collect()
    }

    #[test]
    fn codes_follow_the_nodes() {
        use Protection::*;
        type Case<'a> = (Protection, &'a [usize], &'a str, (usize, usize));
        let cases: &[Case] = &[
            (Default, &[4; 4], "2+2", (2, 2)),
            (Default, &[4; 5], "3+2", (2, 2)),
            (Default, &[1, 2, 3, 4, 5, 6], "4+2", (2, 2)),
            (Default, &[1; 18], "16+2", (2, 2)),
            (Default, &[2; 30], "16+2", (2, 2)),
            (Default, &[6; 3], "1+2", (2, 2)),
            (Default, &[6, 6], "2+2", (2, 1)),
            (Default, &[2, 1], "1+2", (2, 1)),
            (Default, &[9, 1], "1+2", (2, 1)),
            (Default, &[1, 1], "1+1", (1, 1)),
            (Plus(2), &[6; 3], "1+2", (2, 2)),
            (Plus(1), &[6; 3], "2+1", (1, 1)),
            (Plus(4), &[6; 3], "8+4", (4, 1)),
            (Plus(4), &[6, 1], "1+4", (4, 1)),
            (Mirror(2), &[6, 6], "1+1", (1, 1)),
            (Mirror(4), &[6, 6], "1+3", (3, 1)),
            (None, &[6, 6], "1+0", (0, 0)),
        ];
        for (protection, disks, want, (disks_survived, nodes_survived)) in cases {
            let topology = topology(disks);
            let got = code_for(*protection, &topology).expect("a code");
            assert_eq!(text(got), *want, "{protection:?} on {disks:?}");
            let survives = Survives {
                disks: *disks_survived,
                nodes: *nodes_survived,
            };
            assert_eq!(
                topology.survives(got),
                survives,
                "{protection:?} on {disks:?}"
            );
        }
        // Never fewer losses than the pool's metadata survives, for 3 to 11 disks.
        for disks in 3..12 {
            let got = default_code(&topology(&[disks - 1, 1]));
            assert_eq!(got.parity(), 2);
        }
    }

    #[test]
    fn codes_narrow_when_nodes_are_lost_or_full() {
        // The nodes of the working disks, and of those with room, in a pool with two disks on each of six nodes.
        type Case<'a> = (&'a str, (u8, u8), &'a [u128], &'a [u128], Option<&'a str>);
        let all: &[u128] = &[1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6];
        let cases: &[Case] = &[
            ("all there", (4, 2), all, all, Some("4+2")),
            ("a node lost", (4, 2), &all[2..], &all[2..], Some("3+2")),
            ("a node full", (4, 2), all, &all[2..], Some("3+2")),
            ("a disk lost", (4, 2), &all[1..], &all[1..], Some("4+2")),
            ("three left", (4, 2), &all[6..], &all[6..], Some("1+2")),
            ("two left", (4, 2), &all[8..], &all[8..], Some("2+2")),
            ("one left", (4, 2), &all[10..], &all[10..], Some("1+1")),
            (
                "full is not a reason to protect less",
                (4, 2),
                all,
                &all[8..],
                None,
            ),
            ("none left", (4, 2), &[], &[], None),
            (
                "wider than the nodes",
                (8, 2),
                &all[2..],
                &all[2..],
                Some("8+2"),
            ),
        ];
        let nodes = |ids: &[u128]| ids.iter().copied().map(NodeId).collect::<Vec<_>>();
        let pool: Topology = nodes(all).into_iter().collect();
        for (name, (data, parity), healthy, roomy, want) in cases {
            let wanted = Code::new(*data, *parity).expect("code");
            let got = fit_code_in(wanted, &nodes(healthy), &nodes(roomy), &pool);
            assert_eq!(got.map(text).as_deref(), *want, "{name}");
        }
    }

    #[test]
    fn room_counts_distinct_nodes() {
        type Case<'a> = (&'a str, (u8, u8), &'a [(u128, u64)], u64);
        let cases: &[Case] = &[
            (
                "equal nodes",
                (1, 2),
                &[(1, 30), (1, 30), (2, 60), (3, 60)],
                60,
            ),
            (
                "one is smaller",
                (1, 2),
                &[(1, 30), (1, 0), (2, 60), (3, 60)],
                30,
            ),
            (
                "one is full",
                (1, 2),
                &[(1, 0), (1, 0), (2, 60), (3, 60)],
                0,
            ),
            ("one is lost", (1, 2), &[(2, 30), (2, 30), (3, 60)], 30),
            (
                "more shards than nodes",
                (2, 2),
                &[(1, 60), (1, 60), (2, 60), (3, 60)],
                120,
            ),
            (
                "two disks of one node are no two copies",
                (1, 2),
                &[(1, 90), (1, 90), (2, 30), (3, 30)],
                30,
            ),
            (
                "one is full, and others have more disks than shards",
                (1, 2),
                &[(1, 0), (1, 0), (2, 60), (2, 60), (3, 60)],
                0,
            ),
        ];
        let pool = topology(&[2, 2, 2]);
        for (name, (data, parity), room, want) in cases {
            let code = Code::new(*data, *parity).expect("code");
            let room: Vec<NodeRoom> = room.iter().map(|(node, it)| (NodeId(*node), *it)).collect();
            assert_eq!(usable_bytes_in(&room, code, &pool), *want, "{name}");
        }
    }

    #[test]
    fn codes_narrow_when_disks_are_lost_or_full() {
        type Case<'a> = (&'a str, (u8, u8), usize, usize, Option<&'a str>);
        let cases: &[Case] = &[
            ("all there", (4, 2), 6, 6, Some("4+2")),
            ("more than needed", (2, 2), 6, 5, Some("2+2")),
            ("two lost", (4, 2), 4, 4, Some("2+2")),
            ("two full", (4, 2), 6, 4, Some("2+2")),
            ("three left", (4, 2), 3, 3, Some("1+2")),
            ("two left: copies", (4, 2), 2, 2, Some("1+1")),
            ("one left", (4, 2), 1, 1, Some("1+0")),
            ("none left", (4, 2), 0, 0, None),
            ("full is not a reason to protect less", (4, 2), 6, 2, None),
            ("one disk, full", (1, 0), 1, 0, None),
        ];
        for (name, (data, parity), healthy, roomy, want) in cases {
            let wanted = Code::new(*data, *parity).expect("code");
            let got = fit_code(wanted, *healthy, *roomy).map(text);
            assert_eq!(got.as_deref(), *want, "{name}");
        }
    }

    #[test]
    fn room_counts_distinct_disks() {
        type Case<'a> = (&'a str, (u8, u8), &'a [u64], u64);
        let cases: &[Case] = &[
            ("one disk", (1, 0), &[100], 100),
            ("six equal", (4, 2), &[60; 6], 240),
            ("seven equal", (4, 2), &[60; 7], 280),
            ("one large of two", (1, 1), &[1000, 10], 10),
            ("one large of three", (1, 1), &[1000, 10, 10], 20),
            ("a disk lost", (4, 2), &[60; 5], 180),
            ("nothing", (4, 2), &[0; 6], 0),
            ("no disks", (4, 2), &[], 0),
            ("one full of two", (1, 1), &[0, 1000], 0),
            ("one full of three", (1, 1), &[0, 1000, 1000], 1000),
            ("too few with room", (4, 2), &[0, 0, 0, 0, 60, 60], 0),
            ("huge", (16, 2), &[u64::MAX; 18], u64::MAX),
        ];
        for (name, (data, parity), room, want) in cases {
            let code = Code::new(*data, *parity).expect("code");
            assert_eq!(usable_bytes(room, code), *want, "{name}");
        }
    }

    #[test]
    fn disks_are_distinct_and_weighted() {
        let free = [1_000_000, 1_000_000, 0, 3_000_000];
        let mut firsts = [0; 4];
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..5000 {
            let mut chosen = choose_disks(&free, &[NodeId::ONLY; 4], 3, &mut random);
            firsts[chosen[0]] += 1;
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(chosen.len(), 3);
        }
        assert!((800..1200).contains(&firsts[0]), "{firsts:?}");
        assert_eq!(firsts[2], 0, "a full disk comes last");
        assert!((2800..3200).contains(&firsts[3]), "{firsts:?}");
    }

    #[test]
    fn the_reserve_fits_the_disk() {
        let settings = SegmentSettings::default();
        let cases: &[(u64, u64)] = &[
            (0, 0),
            (160 << 20, 10 << 20),
            (2 << 30, 64 << 20),
            (10_000_000_000_000, 200_000_000_000),
        ];
        for (total, want) in cases {
            assert_eq!(reserve_bytes(&settings, *total), *want, "{total}");
        }
    }

    /// Number of chosen disks on each node, most first.
    fn spread(nodes: &[NodeId], chosen: &[usize]) -> Vec<usize> {
        let mut counts: std::collections::BTreeMap<NodeId, usize> =
            nodes.iter().map(|node| (*node, 0)).collect();
        for index in chosen {
            *counts.entry(nodes[*index]).or_default() += 1;
        }
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    fn paths(nodes: &[NodeId], chosen: &[usize]) -> Vec<DomainPath> {
        let path = |index: &usize| DomainPath {
            node: nodes[*index],
            disk: DiskId(*index as u128),
        };
        chosen.iter().map(path).collect()
    }

    proptest! {
        #[test]
        fn shards_are_on_as_many_nodes_as_there_are_and_spread_evenly(
            disks in prop::collection::vec((0_u128..5, 0_u64..1000), 1..14),
            shards in 1_usize..8,
            parity in 0_usize..5,
            seed: u64,
        ) {
            let nodes: Vec<NodeId> = disks.iter().map(|(node, _)| NodeId(*node)).collect();
            let free: Vec<u64> = disks.iter().map(|(_, free)| *free).collect();
            let count = shards.min(nodes.len());
            let mut state = seed | 1;
            let mut random = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            let chosen = choose_disks(&free, &nodes, count, &mut random);
            let mut distinct = chosen.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), count);
            let all: Vec<usize> = (0..nodes.len()).collect();
            prop_assert_eq!(spread(&nodes, &chosen), even_spread(&spread(&nodes, &all), count));
            // No exchange of one disk for another survives more losses.
            let told = survives(&paths(&nodes, &chosen), parity);
            for at in 0..count {
                for other in all.iter().filter(|other| !chosen.contains(other)) {
                    let mut exchanged = chosen.clone();
                    exchanged[at] = *other;
                    let other = survives(&paths(&nodes, &exchanged), parity);
                    prop_assert!(other.nodes <= told.nodes && other.disks <= told.disks);
                }
            }
        }
    }
}
