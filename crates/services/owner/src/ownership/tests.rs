use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_base::{DiskId, DiskRole, Epoch, LogPosition};
use cairn_cluster::LeaseId;
use cairn_cluster::map::{
    AliveRecord, ChangeNonce, DiskRecord, EnsembleId, EpochRecord, LogAt, NodeRecord, Opaque,
    OwnerRecord, StateAt, VersionRange, Versioned, VolumeLog, VolumeRecord, VolumeState,
    WEIGHT_NORMAL,
};
use cairn_formats::settings::Maintenance;

use super::line::coming;
use super::run::{GIVEN_REST, busiest_first, under_way};
use super::*;
use crate::state::maintenance_record;

const VOLUME: VolumeId = VolumeId(1);
const TODAY: Timestamp = Timestamp::new(100, 0);
const PACE: Pace = Pace {
    settled: Duration::from_secs(180),
    pause: Duration::from_secs(30),
};

fn known<T>(value: T) -> Versioned<T> {
    let revision = Revision::ABSENT;
    Versioned { revision, value }
}

/// Three nodes with a disk each, all alive.
fn view() -> MapView {
    let mut view = MapView::default();
    let now = Timestamp::new(1, 0);
    for number in 1..=3 {
        let (node, disk) = (NodeId(number), DiskId(number));
        let record = NodeRecord {
            id: node,
            name: format!("node{number}"),
            internal_address: String::new(),
            external_address: String::new(),
            joined: now,
            versions: VersionRange {
                oldest: 1,
                newest: 1,
            },
            draining: false,
            replaced_by: None,
            maintenance_until: None,
            weight: WEIGHT_NORMAL,
        };
        let alive = AliveRecord::new(node, ProcessNonce(number), now);
        let record_of_disk = DiskRecord {
            id: disk,
            node,
            label: String::new(),
            role: DiskRole::Data,
            media: None,
            draining: false,
            replaced: false,
            added: now,
        };
        view.nodes.insert(node, known(record));
        view.alive.insert(node, known(alive));
        view.disks.insert(disk, known(record_of_disk));
    }
    view
}

/// A volume without a log, owned by a process.
fn owned(by: Process) -> VolumeState {
    VolumeState {
        record: known(VolumeRecord {
            id: VOLUME,
            name: "v".to_owned(),
            settings: Opaque(Vec::new()),
            exports: Opaque(Vec::new()),
            clones: Vec::new(),
            is_deleted: false,
        }),
        owner: Some(known(OwnerRecord {
            node: by.node,
            process: by.nonce,
            epoch: Epoch(1),
        })),
        epoch: known(EpochRecord {
            epoch: Epoch(1),
            change: ChangeNonce(1),
        }),
        log: LogAt {
            revision: Revision::ABSENT,
            log: VolumeLog {
                ensembles: Vec::new(),
                state: None,
            },
        },
        left: None,
        usage: None,
        reserved: None,
        address: None,
        preferred: None,
    }
}

/// This node's process.
fn me() -> Process {
    Process {
        node: NodeId(1),
        nonce: ProcessNonce(1),
        lease: LeaseId(1),
    }
}

#[test]
fn what_has_no_key_here_is_not_taken_and_no_claim_on_it_is_kept() {
    let mut view = view();
    let me = me();
    let later = STAGGER * 10;
    let step = |view: &MapView, here| {
        let mut ownership = Ownership::default();
        ownership.step((Duration::ZERO, TODAY), view, (VOLUME, None), me, here);
        ownership.step((later, TODAY), view, (VOLUME, None), me, here)
    };
    assert_eq!(step(&view, Here::Closed), Step::Take);
    assert_eq!(step(&view, Here::Locked), Step::Nothing);
    view.volumes.insert(VOLUME, Arc::new(owned(me)));
    assert_eq!(step(&view, Here::Closed), Step::Take);
    assert_eq!(step(&view, Here::Locked), Step::GiveUp);
    assert_eq!(step(&view, Here::Served), Step::Nothing);
}

/// Clients are served while the next owner gets the metadata.
#[test]
fn a_volume_goes_once_its_next_owner_has_its_metadata() {
    let mut view = view();
    let me = me();
    let mut state = owned(me);
    let copied = |applied| StateAt {
        id: EnsembleId {
            epoch: Epoch(1),
            counter: 1,
        },
        len_bytes: 1,
        applied: LogPosition(applied),
        disks: vec![DiskId(2)],
    };
    state.preferred = Some(NodeId(2));
    state.log.log.state = Some(copied(5));
    view.volumes.insert(VOLUME, Arc::new(state.clone()));
    let come = |view: &MapView, node| coming(view, TODAY, NodeId(node));
    assert_eq!(come(&view, 2), BTreeMap::from([(VOLUME, LogPosition(5))]));
    assert!(come(&view, 1).is_empty() && come(&view, 3).is_empty());
    let gives = |own: &mut Ownership, view: &MapView, seconds| {
        let now = Duration::from_secs(seconds);
        own.next_to_give((now, TODAY), view, NodeId(1), PACE)
    };
    let tell = |view: &mut MapView, through| {
        let to = view.alive.get_mut(&NodeId(2)).unwrap();
        to.value.prepared = BTreeMap::from([(VOLUME, LogPosition(through))]);
    };
    let mut own = Ownership::default();
    assert_eq!(gives(&mut own, &view, 0), None);
    assert_eq!(own.take_shipping(), [VOLUME]);
    assert!(own.take_shipping().is_empty(), "once");
    tell(&mut view, 5);
    assert_eq!(gives(&mut own, &view, 1), None, "a newer copy is made");
    own.note_shipped(VOLUME, Revision(7));
    assert_eq!(gives(&mut own, &view, 1), None, "this view is older");
    view.revision = Revision(7);
    state.log.log.state = Some(copied(9));
    view.volumes.insert(VOLUME, Arc::new(state.clone()));
    assert_eq!(gives(&mut own, &view, 1), None, "it has the older copy");
    // It does not wait for ever.
    assert_eq!(gives(&mut own.clone(), &view, 20), Some(VOLUME));
    tell(&mut view, 9);
    assert_eq!(gives(&mut own, &view, 1), Some(VOLUME));
    // Nor does a volume whose node is in maintenance stay there.
    state.preferred = None;
    view.volumes.insert(VOLUME, Arc::new(state.clone()));
    assert!((1..=3).all(|node| come(&view, node).is_empty()));
    let owner = view.nodes.get_mut(&NodeId(1)).unwrap();
    owner.value.maintenance_until = Some(Timestamp::new(200, 0));
    let to = line(&view, VOLUME, TODAY, None)[0];
    assert_eq!(come(&view, to.0).len(), 1);
    // Without a copy there is nothing to get.
    state.log.log.state = None;
    view.volumes.insert(VOLUME, Arc::new(state));
    assert_eq!(gives(&mut Ownership::default(), &view, 0), Some(VOLUME));
}

/// The lease that it had the volume under is over: others may have changed it since.
#[test]
fn what_an_earlier_process_of_this_node_took_is_left() {
    let mut view = view();
    let process = |nonce| Process {
        node: NodeId(1),
        nonce: ProcessNonce(nonce),
        lease: LeaseId(1),
    };
    view.volumes.insert(VOLUME, Arc::new(owned(process(1))));
    for (me, here, want) in [
        (process(1), Here::Served, Step::Nothing),
        (process(2), Here::Served, Step::Leave),
        (process(2), Here::Closed, Step::Take),
    ] {
        let at = (Duration::ZERO, TODAY);
        let step = Ownership::default().step(at, &view, (VOLUME, None), me, here);
        assert_eq!(step, want, "{here:?}");
    }
}

#[test]
fn a_process_that_is_not_compared_is_noticed() {
    let test: fn() = what_an_earlier_process_of_this_node_took_is_left;
    assert!(planted::is_noticed_by(Bug::OwnerProcessNotCompared, test));
}

/// Else the volume goes round: others take it while this node rests, and give it back at once.
#[test]
fn what_was_given_away_is_taken_again_where_an_operator_wants_it() {
    let mut view = view();
    let me = me();
    let mut state = owned(me);
    (state.owner, state.preferred) = (None, Some(me.node));
    view.volumes.insert(VOLUME, Arc::new(state.clone()));
    let at = |seconds| (Duration::from_secs(seconds), TODAY);
    let mut ownership = Ownership::default();
    ownership.rest(at(0).0, VOLUME, GIVEN_REST);
    let step = ownership.step(at(1), &view, (VOLUME, None), me, Here::Closed);
    assert_eq!(step, Step::Take);
    // It could not be opened.
    ownership.note_failed(at(1).0, VOLUME);
    let step = ownership.step(at(1), &view, (VOLUME, None), me, Here::Closed);
    assert_eq!(step, Step::Nothing);
    // Nobody wants it here.
    state.preferred = None;
    view.volumes.insert(VOLUME, Arc::new(state));
    ownership.rest(at(9).0, VOLUME, GIVEN_REST);
    let step = ownership.step(at(28), &view, (VOLUME, None), me, Here::Closed);
    assert_eq!(step, Step::Nothing);
    let step = ownership.step(at(29), &view, (VOLUME, None), me, Here::Closed);
    assert_eq!(step, Step::Take);
    // Another node had it, and is lost.
    ownership.rest(at(30).0, VOLUME, GIVEN_REST);
    let others = Process {
        node: NodeId(2),
        nonce: ProcessNonce(2),
        lease: LeaseId(2),
    };
    let free = view.volumes.get(&VOLUME).cloned().unwrap();
    view.volumes.insert(VOLUME, Arc::new(owned(others)));
    let step = ownership.step(at(31), &view, (VOLUME, None), me, Here::Closed);
    assert_eq!(step, Step::Nothing);
    view.volumes.insert(VOLUME, free);
    let lost =
        (32..40).map(|second| ownership.step(at(second), &view, (VOLUME, None), me, Here::Closed));
    assert!(lost.into_iter().any(|step| step == Step::Take));
}

#[test]
fn who_has_no_key_is_not_in_line() {
    let mut view = view();
    let all = line(&view, VOLUME, TODAY, None);
    assert_eq!(all.len(), 3);
    let first = view.alive.get_mut(&all[0]).unwrap();
    first.value.locked = BTreeSet::from([VOLUME]);
    assert_eq!(line(&view, VOLUME, TODAY, None), all[1..]);
    // Of another volume it has the key.
    assert_eq!(line(&view, VolumeId(2), TODAY, None).len(), 3);
}

#[test]
fn a_node_in_maintenance_gives_its_volumes_away_and_takes_none() {
    let mut view = view();
    let all = line(&view, VOLUME, TODAY, None);
    let first = view.nodes.get_mut(&all[0]).unwrap();
    first.value.maintenance_until = Some(Timestamp::new(200, 0));
    assert_eq!(line(&view, VOLUME, TODAY, None), all[1..]);
    let me = Process {
        node: all[0],
        nonce: ProcessNonce(1),
        lease: LeaseId(1),
    };
    view.volumes.insert(VOLUME, Arc::new(owned(me)));
    let gives = |today| {
        let mut ownership = Ownership::default();
        ownership.next_to_give((Duration::ZERO, today), &view, all[0], PACE)
    };
    assert_eq!(gives(TODAY), Some(VOLUME));
    // The time is over, by itself.
    assert_eq!(gives(Timestamp::new(200, 0)), None);
    assert_eq!(line(&view, VOLUME, Timestamp::new(200, 0), None), all);
    let second = view.nodes.get_mut(&all[0]).unwrap();
    second.value.maintenance_until = None;
    assert_eq!(line(&view, VOLUME, TODAY, None), all);
}

/// Nodes 1, 2, ... that own so many volumes.
fn owned_by(counts: &[u32]) -> MapView {
    let mut view = view();
    let owners = (1..).zip(counts);
    let owners = owners.flat_map(|(node, count)| (0..*count).map(move |_| node));
    for (id, node) in (1..).zip(owners) {
        let by = Process {
            node: NodeId(node),
            nonce: ProcessNonce(node),
            lease: LeaseId(1),
        };
        let mut state = owned(by);
        state.record.value.id = VolumeId(id);
        view.volumes.insert(VolumeId(id), Arc::new(state));
    }
    view
}

fn move_to(view: &mut MapView, id: VolumeId, node: Option<NodeId>) {
    let state = Arc::make_mut(view.volumes.get_mut(&id).unwrap());
    state.owner = node.map(|node| {
        known(OwnerRecord {
            node,
            process: ProcessNonce(node.0),
            epoch: Epoch(2),
        })
    });
}

#[test]
fn uneven_volumes_move_one_after_the_other_until_they_are_shared() {
    let mut view = owned_by(&[22, 9, 0]);
    let mut nodes = [1, 2, 3].map(|node| (NodeId(node), Ownership::default()));
    let mut moved = Vec::new();
    for second in 0..3600 {
        let now = Duration::from_secs(second);
        let given: Vec<VolumeId> = nodes
            .iter_mut()
            .filter_map(|(node, own)| own.next_to_give((now, TODAY), &view, *node, PACE))
            .collect();
        assert!(given.len() <= 1, "{given:?} at once");
        for id in given {
            move_to(&mut view, id, None);
            // It goes where all nodes say that it should.
            let place = Loads::of(&view, TODAY).places()[&id];
            assert_eq!(line(&view, id, TODAY, Some(place)).first(), Some(&place));
            move_to(&mut view, id, Some(place));
            moved.push(second);
        }
    }
    let count = |node: u128| {
        let owned = view.volumes.values();
        let owners = owned.filter_map(|state| state.owner.as_ref());
        owners
            .filter(|owner| owner.value.node == NodeId(node))
            .count()
    };
    assert_eq!([1, 2, 3].map(count), [11, 10, 10]);
    assert_eq!(moved.len(), 11);
    assert!(moved[0] >= PACE.settled.as_secs(), "{moved:?}");
    let pauses = moved.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(pauses.min() >= Some(PACE.pause.as_secs()), "{moved:?}");
}

#[test]
fn nothing_moves_for_the_loads_sake_outside_of_the_window() {
    // 1970-01-01 was a Thursday.
    let (closed, open) = (TODAY, Timestamp::new(22 * 3600, 0));
    let mut view = owned_by(&[9, 0]);
    let maintenance = Maintenance {
        window: Some("thu:22:00-23:00".parse().unwrap()),
        ..Maintenance::default()
    };
    view.maintenance = Some(known(maintenance_record(&maintenance).unwrap()));
    let mut own = Ownership::default();
    let mut gives = |view: &MapView, today| {
        own.next_to_give((Duration::ZERO, today), view, NodeId(1), PACE);
        own.next_to_give((Duration::from_secs(3600), today), view, NodeId(1), PACE)
    };
    assert_eq!(gives(&view, closed), None);
    // Memory that is lacking waits for no window.
    let mut lacking = view.clone();
    let alive = lacking.alive.get_mut(&NodeId(1)).unwrap();
    alive.value.volumes_max = Some(3);
    assert!(gives(&lacking, closed).is_some());
    assert!(gives(&view, open).is_some());
}

#[test]
fn nothing_moves_for_the_loads_sake_while_a_node_is_away() {
    let before = owned_by(&[6, 0, 0]);
    let gives = |view: &MapView| {
        let mut ownership = Ownership::default();
        let later = PACE.settled * 2;
        let mut give = |now| ownership.next_to_give((now, TODAY), view, NodeId(1), PACE);
        give(Duration::ZERO).or_else(|| give(later))
    };
    assert!(gives(&before).is_some());
    let mut view = before.clone();
    view.alive.remove(&NodeId(3));
    assert_eq!(gives(&view), None, "node 3 is away");
    view.nodes.get_mut(&NodeId(3)).unwrap().value.draining = true;
    assert!(gives(&view).is_some(), "it does not come back");
    let mut view = before.clone();
    let until = Some(Timestamp::new(200, 0));
    view.nodes
        .get_mut(&NodeId(3))
        .unwrap()
        .value
        .maintenance_until = until;
    assert_eq!(gives(&view), None, "node 3 is in maintenance");
    let mut view = before.clone();
    move_to(&mut view, VolumeId(6), None);
    assert_eq!(gives(&view), None, "a volume has no owner");
    // A node that started again.
    let mut ownership = Ownership::default();
    let mut give = |seconds, view: &MapView| {
        let now = Duration::from_secs(seconds);
        ownership.next_to_give((now, TODAY), view, NodeId(1), PACE)
    };
    assert_eq!(give(0, &before), None);
    let mut view = before.clone();
    view.alive.get_mut(&NodeId(2)).unwrap().value.process = ProcessNonce(9);
    assert_eq!(give(179, &view), None);
    assert_eq!(give(181, &view), None);
    assert!(give(179 + 180, &view).is_some());
}

#[test]
fn a_node_without_weight_gives_all_away_and_stands_in_no_line() {
    let mut view = owned_by(&[3, 0, 0]);
    view.nodes.get_mut(&NodeId(1)).unwrap().value.weight = 0;
    let mut ownership = Ownership::default();
    let given = ownership.next_to_give((Duration::ZERO, TODAY), &view, NodeId(1), PACE);
    assert!(given.is_some(), "at once");
    assert!(!line(&view, VOLUME, TODAY, None).contains(&NodeId(1)));
}

#[test]
fn what_came_back_is_not_given_again_and_again() {
    let view = owned_by(&[3, 0, 0]);
    let mut ownership = Ownership::default();
    let mut give = |seconds| {
        let now = Duration::from_secs(seconds);
        ownership.next_to_give((now, TODAY), &view, NodeId(1), PACE)
    };
    assert_eq!(give(0), None);
    // Nobody takes any of them.
    let given: Vec<VolumeId> = (180..700).filter_map(&mut give).collect();
    assert_eq!(given.len(), 3, "{given:?}");
    assert!(give(180 + 600).is_some());
}

#[test]
fn takeovers_that_wait_keep_no_other_from_beginning() {
    let taking = BTreeMap::from([
        (VolumeId(1), Duration::ZERO),
        (VolumeId(2), Duration::from_secs(1)),
    ]);
    for (now, want) in [(1, 2), (5, 1), (6, 0)] {
        assert_eq!(under_way(&taking, Duration::from_secs(now)), want);
    }
}

#[test]
fn the_busiest_volumes_come_first() {
    let mut view = owned_by(&[3, 0, 0]);
    let busy = cairn_cluster::map::UsageRecord {
        work: Some(cairn_cluster::map::WorkRecord {
            operations_per_second: 512,
            bytes_per_second: 0,
        }),
        ..Default::default()
    };
    let state = Arc::make_mut(view.volumes.get_mut(&VolumeId(2)).unwrap());
    state.usage = Some(known(busy));
    assert_eq!(busiest_first(&view), [2, 1, 3].map(VolumeId));
}
