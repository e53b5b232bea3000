use cairn_cluster::LeaseId;
use cairn_cluster::map::{
    AddressHolder, AddressPoolRecord, VersionRange, Versioned, WEIGHT_NORMAL,
};
use proptest::prelude::*;

use super::*;

fn node(number: u128) -> NodeId {
    NodeId(number)
}

fn address(number: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, u8::try_from(number).unwrap()])
}

fn scene(nodes: u128, addresses: usize, standings: &[Option<Standing>]) -> Scene {
    let takers = (1..=nodes).zip(standings).filter_map(|(number, standing)| {
        let taker = Taker {
            standing: (*standing)?,
            unfit: BTreeSet::new(),
        };
        Some((node(number), taker))
    });
    Scene {
        homes: (1..=nodes).map(node).collect(),
        takers: takers.collect(),
        addresses: (0..addresses).map(address).collect(),
        first_home: 0,
        holders: BTreeMap::new(),
    }
}

/// The places when all have followed.
fn settled(scene: &mut Scene) -> BTreeMap<IpAddr, NodeId> {
    let places = scene.places();
    scene.holders.clone_from(&places);
    assert_eq!(
        scene.places(),
        places,
        "nothing moves where all is in its place"
    );
    places
}

fn counts(scene: &Scene, places: &BTreeMap<IpAddr, NodeId>) -> Vec<usize> {
    let (_, takers) = scene.keepers_and_takers();
    let count = |node: &NodeId| places.values().filter(|it| *it == node).count();
    takers.iter().map(count).collect()
}

fn is_even(counts: &[usize]) -> bool {
    let most = counts.iter().max().copied().unwrap_or(0);
    let least = counts.iter().min().copied().unwrap_or(0);
    most - least <= 1
}

const STEADY: Option<Standing> = Some(Standing::Steady);

#[test]
fn addresses_are_at_home_or_at_others() {
    use Standing::{Leaving, New, Steady};
    /// Nodes, what each holds before, and what each has in the end.
    type Case<'a> = (
        &'a str,
        [Option<Standing>; 3],
        [&'a [usize]; 3],
        [&'a [usize]; 3],
    );
    let cases: [Case<'_>; 9] = [
        (
            "all live",
            [STEADY; 3],
            [&[], &[], &[]],
            [&[0, 3], &[1, 4], &[2, 5]],
        ),
        (
            "all came now",
            [Some(New); 3],
            [&[], &[], &[]],
            [&[0, 3], &[1, 4], &[2, 5]],
        ),
        (
            "one is lost",
            [STEADY, None, STEADY],
            [&[0, 3], &[], &[2, 5]],
            [&[0, 1, 3], &[], &[2, 4, 5]],
        ),
        (
            "it came back only now",
            [STEADY, Some(New), STEADY],
            [&[0, 1, 3], &[], &[2, 4, 5]],
            [&[0, 1, 3], &[], &[2, 4, 5]],
        ),
        (
            "it has been there for a while",
            [STEADY; 3],
            [&[0, 1, 3], &[], &[2, 4, 5]],
            [&[0, 3], &[1, 4], &[2, 5]],
        ),
        (
            "one that came keeps what it has",
            [Some(Steady), Some(New), Some(New)],
            [&[0, 3], &[1], &[]],
            [&[0, 2, 3, 4, 5], &[1], &[]],
        ),
        (
            "one is in maintenance",
            [STEADY, Some(Leaving), STEADY],
            [&[0, 3], &[1, 4], &[2, 5]],
            [&[0, 1, 3], &[], &[2, 4, 5]],
        ),
        (
            "no other is left",
            [None, Some(Leaving), None],
            [&[], &[1, 4], &[]],
            [&[], &[0, 1, 2, 3, 4, 5], &[]],
        ),
        (
            "nobody is left",
            [None; 3],
            [&[], &[], &[]],
            [&[], &[], &[]],
        ),
    ];
    for (name, standings, before, after) in cases {
        let mut scene = scene(3, 6, &standings);
        let held = |at: [&[usize]; 3]| -> BTreeMap<IpAddr, NodeId> {
            let nodes = (1..).zip(at);
            nodes
                .flat_map(|(number, at)| at.iter().map(move |it| (address(*it), node(number))))
                .collect()
        };
        scene.holders = held(before);
        assert_eq!(settled(&mut scene), held(after), "{name}");
    }
}

#[test]
fn what_a_node_cannot_have_another_one_gets() {
    let mut scene = scene(3, 3, &[STEADY; 3]);
    let unfit = |scene: &mut Scene, number| {
        let taker = scene.takers.get_mut(&node(number)).unwrap();
        taker.unfit.insert(address(1));
    };
    unfit(&mut scene, 2);
    assert_eq!(settled(&mut scene)[&address(1)], node(1));
    unfit(&mut scene, 1);
    assert_eq!(settled(&mut scene)[&address(1)], node(3));
    // They go on trying.
    unfit(&mut scene, 3);
    assert!(settled(&mut scene).contains_key(&address(1)));
}

proptest! {
    /// Nodes come and go in any order: all addresses are somewhere, evenly, and a step back makes all as it was.
    #[test]
    fn addresses_are_even_whoever_comes_and_goes(
        nodes in 1_u128..8, addresses in 1_usize..40, first_home in 0_usize..8,
        changes in prop::collection::vec((0_usize..8, any::<bool>()), 0..30),
    ) {
        let mut scene = scene(nodes, addresses, &[STEADY; 8]);
        scene.first_home = first_home;
        let home = settled(&mut scene);
        for (which, is_there) in changes {
            let changed = node(1 + which as u128 % nodes);
            let before = scene.holders.clone();
            let was_there = scene.takers.remove(&changed).is_some();
            if is_there {
                let taker = Taker { standing: Standing::Steady, unfit: BTreeSet::new() };
                scene.takers.insert(changed, taker);
            }
            let places = settled(&mut scene);
            if scene.takers.is_empty() {
                prop_assert!(places.is_empty());
                continue;
            }
            prop_assert_eq!(places.len(), addresses);
            prop_assert!(is_even(&counts(&scene, &places)), "{:?}", places);
            if was_there && !is_there {
                let stayed = before.iter().filter(|(_, at)| **at != changed);
                for (address, at) in stayed {
                    prop_assert_eq!(&places[address], at, "only what the lost node had moves");
                }
            }
        }
        for number in 1..=nodes {
            let taker = Taker { standing: Standing::Steady, unfit: BTreeSet::new() };
            scene.takers.insert(node(number), taker);
        }
        prop_assert_eq!(settled(&mut scene), home);
    }
}

const OLD: Timestamp = Timestamp::new(1, 0);
const TODAY: Timestamp = Timestamp::new(1000, 0);
const NOW: Duration = Duration::from_secs(100);

fn known<T>(value: T, revision: u64) -> Versioned<T> {
    Versioned {
        revision: Revision(revision),
        value,
    }
}

fn process(number: u128) -> Process {
    Process {
        node: node(number),
        nonce: ProcessNonce(number),
        lease: LeaseId(1),
    }
}

fn alive(number: u128) -> Versioned<AliveRecord> {
    let record = AliveRecord::new(node(number), ProcessNonce(number), OLD);
    known(record, 1)
}

/// Two nodes and a pool with as many addresses.
fn view() -> MapView {
    let mut view = MapView {
        revision: Revision(10),
        ..MapView::default()
    };
    for number in 1..=2 {
        let record = NodeRecord {
            id: node(number),
            name: format!("node{number}"),
            internal_address: String::new(),
            external_address: String::new(),
            joined: OLD,
            versions: VersionRange {
                oldest: 1,
                newest: 1,
            },
            draining: false,
            replaced_by: None,
            maintenance_until: None,
            weight: WEIGHT_NORMAL,
        };
        view.nodes.insert(node(number), known(record, 1));
        view.alive.insert(node(number), alive(number));
    }
    let pool = AddressPoolRecord {
        name: "lan".to_owned(),
        addresses: vec![address(1), address(2)],
        prefix_len: 24,
        interface: None,
        dns_name: None,
    };
    view.address_pools.insert("lan".to_owned(), known(pool, 1));
    view
}

fn hold(view: &mut MapView, address: IpAddr, by: Process) {
    let holder = AddressHolder {
        address,
        node: by.node,
        process: by.nonce,
    };
    view.address_holders.insert(address, known(holder, 2));
}

#[test]
fn an_address_is_taken_kept_and_left_in_order() {
    use AddressStep::{Drop, Keep, Leave, Take};
    let mut view = view();
    let homes = address_homes(&view, "lan");
    let mine = *homes.iter().find(|(_, at)| **at == node(1)).unwrap().0;
    let other = *homes.iter().find(|(_, at)| **at == node(2)).unwrap().0;
    let mut desk = AddressDesk::default();
    let me = Some(process(1));
    let steps = |desk: &mut AddressDesk, view: &MapView, own| desk.steps((NOW, TODAY), view, own);

    assert!(
        steps(&mut desk, &view, None).is_empty(),
        "without a lease nothing is taken"
    );
    assert_eq!(steps(&mut desk, &view, me), [Take(mine)]);
    desk.note_taken(mine, Revision(11));
    assert_eq!(
        steps(&mut desk, &view, me),
        [Keep(mine)],
        "this view is older"
    );
    view.revision = Revision(11);
    hold(&mut view, mine, process(1));
    assert_eq!(steps(&mut desk, &view, me), [Keep(mine)]);

    // The other node is lost, and nobody holds its address.
    view.alive.remove(&node(2));
    assert_eq!(steps(&mut desk, &view, me), [Keep(mine), Take(other)]);
    desk.note_taken(other, Revision(12));
    view.revision = Revision(12);
    hold(&mut view, other, process(1));
    // It is there again: its address leaves, and is not put here again before that is certain.
    view.alive.insert(node(2), alive(2));
    let leaving = steps(&mut desk, &view, me);
    assert!(
        leaving.contains(&Drop(other)) && leaving.contains(&Leave(other)),
        "{leaving:?}"
    );
    desk.note_gone(other);
    view.alive.remove(&node(2));
    let again = steps(&mut desk, &view, me);
    assert!(
        again.contains(&Leave(other)) && !again.contains(&Keep(other)),
        "{again:?}"
    );
    desk.note_left(other);

    // Somebody took what this node had, or its key is gone.
    view.revision = Revision(13);
    view.address_holders.clear();
    let lost = steps(&mut desk, &view, me);
    assert_eq!(lost[0], Drop(mine));
    // A lease that is over takes all with it.
    desk.note_taken(mine, Revision(13));
    assert_eq!(steps(&mut desk, &view, None), [Drop(mine)]);
    assert!(desk.held().is_empty());
}

/// Else the next node would have it beside this one.
#[test]
fn what_does_not_go_is_dropped_again_and_kept_until_it_has_gone() {
    use AddressStep::{Drop, Keep, Leave};
    let mut view = view();
    let homes = address_homes(&view, "lan");
    let mine = *homes.iter().find(|(_, at)| **at == node(1)).unwrap().0;
    let mut desk = AddressDesk::default();
    let steps =
        |desk: &mut AddressDesk, view: &MapView| desk.steps((NOW, TODAY), view, Some(process(1)));
    steps(&mut desk, &view);
    desk.note_taken(mine, Revision(1));
    hold(&mut view, mine, process(1));
    let pools = std::mem::take(&mut view.address_pools);
    for _ in 0..3 {
        assert_eq!(steps(&mut desk, &view), [Drop(mine), Leave(mine)]);
        assert_eq!(desk.held(), [mine]);
    }
    assert_eq!(desk.leave_all(), [Drop(mine), Leave(mine)]);
    // It is wanted here again, and has never been away.
    view.address_pools = pools;
    assert_eq!(steps(&mut desk, &view), [Keep(mine)]);
    view.address_pools.clear();
    steps(&mut desk, &view);
    desk.note_gone(mine);
    assert_eq!(steps(&mut desk, &view), [Leave(mine)]);
    assert!(desk.held().is_empty());
    // That of another process goes, under any holder.
    desk.note_taken(mine, Revision(1));
    steps(&mut desk, &view);
    let other = desk.steps((NOW, TODAY), &view, Some(process(2)));
    assert_eq!(other[0], Drop(mine));
}

#[test]
fn what_is_held_without_knowing_it_is_left() {
    let mut view = view();
    for it in [address(1), address(2)] {
        hold(&mut view, it, process(1));
    }
    let mut desk = AddressDesk::default();
    let steps = desk.steps((NOW, TODAY), &view, Some(process(1)));
    let want = [address(1), address(2)].map(AddressStep::Leave);
    assert_eq!(steps, want);
}

#[test]
fn nobody_takes_from_who_lives_and_a_removed_pool_is_left() {
    let mut view = view();
    let mut desk = AddressDesk::default();
    let homes = address_homes(&view, "lan");
    let mine = *homes.iter().find(|(_, at)| **at == node(1)).unwrap().0;
    hold(&mut view, mine, process(2));
    let steps = desk.steps((NOW, TODAY), &view, Some(process(1)));
    assert!(steps.is_empty(), "the other node leaves it first");
    let left = AddressDesk::default().steps((NOW, TODAY), &view, Some(process(2)));
    assert!(left.contains(&AddressStep::Leave(mine)), "{left:?}");

    view.address_holders.clear();
    desk.note_taken(mine, Revision(1));
    hold(&mut view, mine, process(1));
    view.address_pools.clear();
    let steps = desk.steps((NOW, TODAY), &view, Some(process(1)));
    assert_eq!(steps, [AddressStep::Drop(mine), AddressStep::Leave(mine)]);
}

#[test]
fn a_node_that_came_back_waits_for_its_addresses() {
    let mut view = view();
    let homes = address_homes(&view, "lan");
    let other = *homes.iter().find(|(_, at)| **at == node(2)).unwrap().0;
    hold(&mut view, other, process(1));
    let back = view.alive.get_mut(&node(2)).unwrap();
    back.value.since = TODAY;
    let mut desk = AddressDesk::default();
    desk.steps((NOW, TODAY), &view, Some(process(1)));
    desk.note_taken(other, Revision(2));
    let is_kept = |desk: &mut AddressDesk, now| {
        let steps = desk.steps((now, TODAY), &view, Some(process(1)));
        steps.contains(&AddressStep::Keep(other))
    };
    assert!(is_kept(&mut desk, NOW + STEADY_AFTER / 2));
    assert!(!is_kept(&mut desk, NOW + STEADY_AFTER));
}

#[test]
fn planted_mistakes_are_noticed() {
    let mistakes: [(Bug, fn()); 5] = [
        (
            Bug::AddressTakenFromOther,
            nobody_takes_from_who_lives_and_a_removed_pool_is_left,
        ),
        (
            Bug::AddressLeftBeforeItIsDropped,
            nobody_takes_from_who_lives_and_a_removed_pool_is_left,
        ),
        (
            Bug::AddressKeptOverLease,
            an_address_is_taken_kept_and_left_in_order,
        ),
        (
            Bug::NewNodeGetsAddresses,
            a_node_that_came_back_waits_for_its_addresses,
        ),
        (
            Bug::UnfitNodeGetsAddress,
            what_a_node_cannot_have_another_one_gets,
        ),
    ];
    for (bug, test) in mistakes {
        assert!(planted::is_noticed_by(bug, test), "{bug:?}");
    }
}
