//! What a balance must hold, whatever it is given.

use proptest::prelude::*;

use super::*;

fn node(id: u128) -> NodeLoad {
    NodeLoad {
        node: NodeId(id),
        weight: WEIGHT_NORMAL,
        volumes_max: None,
    }
}

fn volume(id: u32, owner: Option<u128>) -> VolumeLoad {
    VolumeLoad {
        volume: VolumeId(id),
        owner: owner.map(NodeId),
        work: WorkRecord::default(),
        locked_on: BTreeSet::new(),
        is_pinned: false,
    }
}

/// Nodes 1, 2, ... that own so many volumes without work.
fn owned(counts: &[usize]) -> Loads {
    let owners = (1..).zip(counts);
    let owners = owners.flat_map(|(owner, count)| std::iter::repeat_n(owner, *count));
    Loads {
        nodes: (1..=counts.len() as u128).map(node).collect(),
        volumes: (1..)
            .zip(owners)
            .map(|(id, owner)| volume(id, Some(owner)))
            .collect(),
    }
}

fn operations(operations_per_second: u64) -> WorkRecord {
    WorkRecord {
        operations_per_second,
        bytes_per_second: 0,
    }
}

/// The loads after these moves.
fn after(loads: &Loads, moves: &[Move]) -> Loads {
    let mut loads = loads.clone();
    for made in moves {
        let mut volumes = loads.volumes.iter_mut();
        let moved = volumes.find(|it| it.volume == made.volume).unwrap();
        assert_eq!(moved.owner, Some(made.from));
        moved.owner = Some(made.to);
    }
    loads
}

fn counts(loads: &Loads) -> Vec<usize> {
    let of = |node: &NodeLoad| {
        let volumes = loads.volumes.iter();
        volumes.filter(|it| it.owner == Some(node.node)).count()
    };
    loads.nodes.iter().map(of).collect()
}

#[test]
fn volumes_of_which_a_node_had_none_are_shared() {
    let before = owned(&[22, 9, 0]);
    let moves = before.moves(Tolerance::None);
    assert_eq!(counts(&after(&before, &moves)), [11, 10, 10]);
    assert_eq!(moves.len(), 11, "none that another undoes");
    let first = &moves[0];
    assert_eq!((first.from, first.to), (NodeId(1), NodeId(3)));
    assert_eq!(first.reason, Reason::Count);
    assert_eq!(first.from_share.map(|share| share.volumes), [22, 21]);
    assert_eq!(first.to_share.map(|share| share.load_percent), [0, 9]);
    let by_itself = before.moves(Tolerance::Tenth);
    assert_eq!(counts(&after(&before, &by_itself)), [11, 10, 10]);
}

#[test]
fn a_hash_gives_each_node_its_part() {
    // Numbers of volumes are one after the other, those of nodes are drawn.
    for seed in 1..200u128 {
        let draw = |number: u128| {
            NodeId(
                seed.wrapping_mul(number * 2 + 1)
                    .wrapping_mul(u128::MAX / 7),
            )
        };
        let nodes = [1, 2, 3].map(draw);
        let mut firsts = [0; 3];
        for id in 1..=3000 {
            let first = (0..3)
                .max_by_key(|at| rank(VolumeId(id), nodes[*at]))
                .unwrap();
            firsts[first] += 1;
        }
        let are_even = firsts.iter().all(|count| (850..1150).contains(count));
        assert!(are_even, "{firsts:?} of nodes {nodes:?}");
    }
}

#[test]
fn volumes_without_an_owner_go_where_least_is_and_the_busiest_first() {
    let mut loads = owned(&[3, 0, 1]);
    for id in 10..15 {
        loads.volumes.push(volume(id, None));
    }
    let places = loads.places();
    let on = |node| places.values().filter(|at| **at == NodeId(node)).count();
    assert_eq!((on(1), on(2), on(3)), (0, 3, 2));
    // One does half of all work: its node gets fewer of the others.
    loads.volumes.iter_mut().for_each(|it| it.owner = None);
    loads.volumes[7].work = operations(100_000);
    let places = loads.places();
    let busy = places[&loads.volumes[7].volume];
    assert_eq!(places.values().filter(|at| **at == busy).count(), 1);
    // Where it cannot be opened it does not go, and where there is no room only if there is none anywhere.
    loads.volumes[7].locked_on = BTreeSet::from([busy]);
    assert_ne!(loads.places()[&loads.volumes[7].volume], busy);
    for node in &mut loads.nodes {
        node.volumes_max = Some(if node.node == busy { 2 } else { 5 });
    }
    let places = loads.places();
    assert_eq!(places.len(), 9);
    assert!(places.values().filter(|at| **at == busy).count() <= 2);
    loads
        .nodes
        .iter_mut()
        .for_each(|it| it.volumes_max = Some(1));
    assert_eq!(loads.places().len(), 9, "served slowly is better than not");
}

#[test]
fn work_counts_as_much_as_the_number() {
    // As many volumes each, but one node does all the work.
    let mut loads = owned(&[4, 4]);
    loads.volumes[0].work = operations(4000);
    loads.volumes[1].work = operations(4000);
    let moves = loads.moves(Tolerance::None);
    let busy = [VolumeId(1), VolumeId(2)];
    assert!(busy.contains(&moves[0].volume), "{moves:?}");
    assert_eq!(moves[0].reason, Reason::Work);
    // What a few requests need is no reason.
    loads.volumes[0].work = operations(40);
    loads.volumes[1].work = operations(40);
    assert_eq!(loads.moves(Tolerance::None), []);
    // Bytes are work, too.
    for at in [0, 1] {
        loads.volumes[at].work = WorkRecord {
            operations_per_second: 10,
            bytes_per_second: 500 << 20,
        };
    }
    assert_eq!(loads.moves(Tolerance::None)[0].reason, Reason::Work);
}

#[test]
fn a_node_gets_its_weight_and_with_none_nothing() {
    let mut loads = owned(&[12, 0, 0]);
    loads.nodes[1].weight = 200;
    loads.nodes[2].weight = 0;
    let moves = loads.moves(Tolerance::None);
    assert_eq!(counts(&after(&loads, &moves)), [4, 8, 0]);
}

#[test]
fn a_node_beyond_its_memory_gives_some_away_and_a_full_one_takes_none() {
    let mut loads = owned(&[6, 6, 6]);
    loads.nodes[0].volumes_max = Some(4);
    loads.nodes[1].volumes_max = Some(6);
    let moves = loads.moves(Tolerance::Tenth);
    assert!(moves.iter().all(|it| it.reason == Reason::Memory));
    assert_eq!(counts(&after(&loads, &moves)), [4, 6, 8]);
    assert_eq!(after(&loads, &moves).moves(Tolerance::Tenth), []);
}

#[test]
fn what_an_operator_placed_stays() {
    let mut loads = owned(&[4, 0]);
    loads.volumes.iter_mut().for_each(|it| it.is_pinned = true);
    assert_eq!(loads.moves(Tolerance::None), []);
}

fn loads() -> impl Strategy<Value = Loads> {
    let node = (0..4u32, prop::option::of(1..12usize));
    let nodes = prop::collection::vec(node, 1..6);
    let work = prop_oneof![
        Just(WorkRecord::default()),
        (0..20_000u64, 0..1u64 << 31).prop_map(|(operations_per_second, bytes_per_second)| {
            WorkRecord {
                operations_per_second,
                bytes_per_second,
            }
        })
    ];
    // Owners beyond the nodes that there are: those that take nothing.
    let given = (prop::option::of(1..8u128), work, 0..64u32, 0..8u32);
    let volumes = prop::collection::vec(given, 0..40);
    (nodes, volumes).prop_map(|(nodes, volumes)| Loads {
        nodes: (1..)
            .zip(nodes)
            .map(|(id, (weight, volumes_max))| NodeLoad {
                node: NodeId(id),
                weight: weight * 50,
                volumes_max,
            })
            .collect(),
        volumes: (1..)
            .zip(volumes)
            .map(|(id, (owner, work, locked, pinned))| VolumeLoad {
                work,
                locked_on: (1..8)
                    .filter(|at| locked & 1 << at != 0)
                    .map(NodeId)
                    .collect(),
                is_pinned: pinned == 0,
                ..volume(id, owner)
            })
            .collect(),
    })
}

/// The sum of squares of what nodes have, by their weights: less is more even.
fn unevenness(loads: &Loads) -> f64 {
    let table = Table::of(loads);
    let of = |held: &Holding| {
        let cost = held.cost as f64 / UNIT as f64;
        cost * cost / f64::from(held.weight)
    };
    table.held.values().map(of).sum()
}

proptest! {
    #[test]
    fn moves_are_allowed_and_each_is_worth_it(loads in loads(), by_itself: bool) {
        let tolerance = if by_itself { Tolerance::Tenth } else { Tolerance::None };
        let moves = loads.moves(tolerance);
        let mut now = loads.clone();
        for made in &moves {
            let volume = now.volumes.iter().find(|it| it.volume == made.volume).unwrap();
            prop_assert!(!volume.is_pinned);
            prop_assert!(!volume.locked_on.contains(&made.to));
            let taker = now.nodes.iter().find(|it| it.node == made.to).unwrap();
            prop_assert!(taker.weight > 0);
            let next = after(&now, std::slice::from_ref(made));
            if let Some(most) = taker.volumes_max {
                let has = next.volumes.iter().filter(|it| it.owner == Some(made.to)).count();
                prop_assert!(has <= most);
            }
            if made.reason != Reason::Memory {
                prop_assert!(unevenness(&next) < unevenness(&now), "{made:?}");
            }
            now = next;
        }
        let distinct: BTreeSet<_> = moves.iter().map(|it| it.volume).collect();
        prop_assert_eq!(distinct.len(), moves.len());
    }

    #[test]
    fn one_move_after_the_other_comes_to_an_end(loads in loads()) {
        // As owners do it: each looks again after a move.
        let mut now = loads.clone();
        let mut count = 0;
        while let Some(made) = now.next_move(Tolerance::Tenth) {
            let next = after(&now, std::slice::from_ref(&made));
            let back = next.next_move(Tolerance::Tenth);
            let is_back = back.is_some_and(|back| back.volume == made.volume && back.to == made.from);
            prop_assert!(!is_back);
            now = next;
            count += 1;
            prop_assert!(count <= 10 * loads.volumes.len(), "it does not end");
        }
    }

    #[test]
    fn volumes_of_one_kind_end_within_one_of_each_other(counts_before in prop::collection::vec(0..30usize, 1..7)) {
        let before = owned(&counts_before);
        let moves = before.moves(Tolerance::None);
        let counts = counts(&after(&before, &moves));
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{counts:?}");
        // No more than there have to be.
        let above: usize = counts_before.iter().zip(&counts).map(|(before, after)| before.saturating_sub(*after)).sum();
        prop_assert_eq!(moves.len(), above);
    }

    #[test]
    fn each_free_volume_has_a_place_where_it_can_be_opened(loads in loads()) {
        let places = loads.places();
        for volume in &loads.volumes {
            let takers = loads.nodes.iter().filter(|it| it.weight > 0 && !volume.locked_on.contains(&it.node));
            let takers: BTreeSet<_> = takers.map(|it| it.node).collect();
            match places.get(&volume.volume) {
                Some(node) => prop_assert!(volume.owner.is_none() && takers.contains(node)),
                None => prop_assert!(volume.owner.is_some() || takers.is_empty()),
            }
        }
    }
}
