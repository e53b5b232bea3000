//! The operations of the map, against both stores.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, DiskRole, Epoch, LogPosition, NodeId, Timestamp, VolumeId};
use cairn_cluster::map::copy::{CopyError, EPOCHS_SKIPPED, MapCopy};
use cairn_cluster::map::{
    AddressPoolRecord, AddressRecord, CloneRecord, ClusterId, DiskRecord, Ensemble, EnsembleId,
    IscsiPortals, JoinToken, LeftRecord, Machine, MapGeneration, NodeRecord, Opaque, Owned,
    POOL_ADDRESSES_MAX, Process, ProcessNonce, ReservedRecord, RotationNote, RotationPhase,
    RotationRecord, Sign, StateAt, TOKEN_SECONDS_MAX, VersionRange, VolumeLog, VolumeRecord,
    WEIGHT_MAX, WEIGHT_NORMAL,
};
use cairn_cluster::{ClusterMap, Key, KeyRange, MapError, Op, Txn};

use crate::stores::{Kind, MemoryHighWater, World, on_both};

async fn create(world: &World, name: &str) -> ClusterMap {
    let high_water = Arc::new(MemoryHighWater::default());
    let coordinator = Arc::clone(&world.coordinator);
    ClusterMap::create_cluster(
        coordinator,
        world.env.clone(),
        ClusterId(7),
        name,
        high_water,
    )
    .await
    .unwrap()
}

async fn process(world: &World, node: u128, nonce: u128) -> Process {
    let lease = world
        .coordinator
        .grant_lease(Duration::from_secs(600))
        .await
        .unwrap()
        .id;
    Process {
        node: NodeId(node),
        nonce: ProcessNonce(nonce),
        lease,
    }
}

fn node(id: u128, name: &str, address: &str) -> NodeRecord {
    NodeRecord {
        id: NodeId(id),
        name: name.to_owned(),
        internal_address: address.to_owned(),
        external_address: address.to_owned(),
        joined: Timestamp::new(1, 0),
        versions: VersionRange {
            oldest: 1,
            newest: 1,
        },
        draining: false,
        replaced_by: None,
        maintenance_until: None,
        weight: WEIGHT_NORMAL,
    }
}

/// Of the first epoch.
fn state(counter: u32, applied: u64) -> StateAt {
    StateAt {
        id: EnsembleId {
            epoch: Epoch(1),
            counter,
        },
        len_bytes: 100,
        applied: LogPosition(applied),
        disks: vec![DiskId(1), DiskId(2)],
    }
}

/// Seals what is open at `at` and opens another ensemble on three disks.
fn reformed(owned: &mut Owned, at: u64) -> VolumeLog {
    let mut log = owned.log.log.clone();
    if let Some(last) = log.ensembles.last_mut() {
        last.to = Some(LogPosition(at));
    }
    log.ensembles.push(Ensemble {
        id: owned.new_ensemble_id(),
        from: LogPosition(at),
        to: None,
        disks: vec![DiskId(1), DiskId(2), DiskId(3)],
    });
    log
}

#[tokio::test]
async fn the_map_is_the_same_on_both_stores() {
    on_both(|world| async move {
        let world = &*world;
        a_cluster_is_made_once(world).await;
        a_volume_is_taken_over_by_one(world).await;
        a_log_changes_only_in_its_epoch_and_from_its_revision(world).await;
        logs_that_make_no_sense_are_refused(world).await;
        volumes_have_numbers_and_names_of_their_own(world).await;
        clones_are_in_the_record_of_their_store(world).await;
        nodes_have_names_and_addresses_of_their_own(world).await;
        addresses_of_pools_have_one_holder(world).await;
        a_node_with_disks_stays(world).await;
        one_member_of_etcd_starts_again_at_a_time(world).await;
        a_node_leaves_with_all_its_disks(world).await;
        a_token_works_once(world).await;
        an_authority_is_replaced_and_no_node_comes_unseen(world).await;
        a_group_is_whole_or_comes_to_nothing(world).await;
        values_that_cannot_be_read_name_their_key(world).await;
        a_map_that_was_replaced_takes_no_change(world).await;
    })
    .await;
}

async fn a_cluster_is_made_once(world: &World) {
    let map = create(world, "once").await;
    let high_water = || Arc::new(MemoryHighWater::default());
    let again = ClusterMap::create_cluster(
        Arc::clone(&world.coordinator),
        world.env.clone(),
        ClusterId(9),
        "once",
        high_water(),
    )
    .await;
    assert!(
        matches!(again, Err(MapError::Exists { .. })),
        "{}",
        world.name
    );
    let open = |name: &'static str| {
        ClusterMap::open(
            Arc::clone(&world.coordinator),
            world.env.clone(),
            name,
            high_water(),
        )
    };
    assert_eq!(open("once").await.unwrap().cluster(), map.cluster());
    assert!(matches!(
        open("other").await,
        Err(MapError::NotFound { .. })
    ));
    assert!(matches!(open("a/b").await, Err(MapError::Invalid { .. })));
}

async fn a_volume_is_taken_over_by_one(world: &World) {
    let map = create(world, "takeover").await;
    let volume = map
        .create_volume("v", Opaque::default(), Opaque::default())
        .await
        .unwrap();
    let (one, two) = (process(world, 1, 11).await, process(world, 2, 21).await);
    let owned = map.take_over(volume, one, Epoch(0)).await.unwrap();
    assert_eq!(owned.epoch, Epoch(1), "{}", world.name);
    let refused = map.take_over(volume, two, Epoch(0)).await;
    let Err(MapError::Owned { owner, .. }) = refused else {
        panic!("{}: {refused:?}", world.name);
    };
    assert_eq!((owner.node, owner.process), (one.node, one.nonce));

    // That node after a restart, while its earlier lease still lives.
    let restarted = process(world, 1, 12).await;
    let owned_again = map.take_over(volume, restarted, Epoch(0)).await.unwrap();
    assert_eq!(owned_again.epoch, Epoch(2));
    // The earlier process gives up late: that is nothing to the later one.
    map.give_up(owned).await.unwrap();
    assert!(
        map.volume(volume).await.unwrap().owner.is_some(),
        "{}",
        world.name
    );

    map.give_up(owned_again).await.unwrap();
    assert_eq!(
        map.volume(volume).await.unwrap().owner,
        None,
        "{}",
        world.name
    );
    let owned = map.take_over(volume, two, Epoch(0)).await.unwrap();
    assert_eq!(owned.epoch, Epoch(3));
    let reserved = ReservedRecord { bytes: 7 };
    map.set_reserved(volume, two, owned.epoch, &reserved)
        .await
        .unwrap();
    let early = ReservedRecord::default();
    let early = map.set_reserved(volume, two, Epoch(2), &early).await;
    assert!(
        matches!(early, Err(MapError::Changed { .. })),
        "{}: {early:?}",
        world.name
    );

    // Its lease ends, and with it the owner key; disks have promised a higher epoch than the map knows.
    world.coordinator.revoke_lease(two.lease).await.unwrap();
    let owned = map.take_over(volume, restarted, Epoch(40)).await.unwrap();
    assert_eq!(owned.epoch, Epoch(41), "{}", world.name);
    // Reserved space stays so without an owner.
    let told = map.volume(volume).await.unwrap().reserved;
    assert_eq!(told.map(|told| told.value), Some(reserved));
    // A node without a lease can take over nothing.
    map.give_up(owned).await.unwrap();
    let refused = map.take_over(volume, two, Epoch(0)).await;
    assert!(
        matches!(refused, Err(MapError::Coordinator(_))),
        "{}: {refused:?}",
        world.name
    );
    assert!(matches!(
        map.take_over(VolumeId(99), one, Epoch(0)).await,
        Err(MapError::NotFound { .. })
    ));
}

async fn a_log_changes_only_in_its_epoch_and_from_its_revision(world: &World) {
    let map = create(world, "log").await;
    let volume = map
        .create_volume("v", Opaque::default(), Opaque::default())
        .await
        .unwrap();
    let (one, two) = (process(world, 1, 11).await, process(world, 2, 21).await);
    let mut first = map.take_over(volume, one, Epoch(0)).await.unwrap();
    let log = reformed(&mut first, 1);
    map.change_log(&mut first, log.clone()).await.unwrap();
    let state = map.volume(volume).await.unwrap();
    assert_eq!(state.log, first.log, "{}", world.name);
    assert_eq!(state.log.log, log);
    let log = reformed(&mut first, 10);
    map.change_log(&mut first, log).await.unwrap();
    assert_eq!(first.log.log.ensembles.len(), 2);

    world.coordinator.revoke_lease(one.lease).await.unwrap();
    let mut second = map.take_over(volume, two, Epoch(0)).await.unwrap();
    assert_eq!(
        second.log, first.log,
        "{}: the takeover returns the log",
        world.name
    );
    let log = reformed(&mut first, 20);
    let refused = map.change_log(&mut first, log).await;
    let fenced = MapError::Fenced {
        volume,
        epoch: Epoch(1),
        found: Epoch(2),
    };
    assert_eq!(refused, Err(fenced), "{}", world.name);
    let log = reformed(&mut second, 15);
    map.change_log(&mut second, log.clone()).await.unwrap();
    assert_eq!(map.volume(volume).await.unwrap().log.log, log);
}

async fn logs_that_make_no_sense_are_refused(world: &World) {
    let map = create(world, "sense").await;
    let volume = map
        .create_volume("v", Opaque::default(), Opaque::default())
        .await
        .unwrap();
    let one = process(world, 1, 11).await;
    let mut owned = map.take_over(volume, one, Epoch(0)).await.unwrap();
    let log = reformed(&mut owned, 1);
    map.change_log(&mut owned, log).await.unwrap();
    let mut log = reformed(&mut owned, 10);
    log.state = Some(state(5, 3));
    map.change_log(&mut owned, log).await.unwrap();
    let mut good = reformed(&mut owned, 20);
    good.state = Some(state(6, 3));
    type Spoil = fn(&mut VolumeLog);
    let cases: &[(&str, Spoil)] = &[
        ("sealed at the end", |log| {
            log.ensembles[2].to = Some(LogPosition(30))
        }),
        ("nothing open", |log| log.ensembles.clear()),
        ("a hole", |log| log.ensembles[2].from = LogPosition(21)),
        ("a disk twice", |log| log.ensembles[2].disks[1] = DiskId(1)),
        ("no disks", |log| log.ensembles[2].disks.clear()),
        ("an old number", |log| log.ensembles[2].id.counter = 2),
        ("another epoch", |log| log.ensembles[2].id.epoch = Epoch(2)),
        ("sealed elsewhere", |log| {
            log.ensembles[0].to = Some(LogPosition(5));
            log.ensembles[1].from = LogPosition(5);
        }),
        ("ends before it begins", |log| {
            log.ensembles[1].to = Some(LogPosition(9));
            log.ensembles[2].from = LogPosition(9);
        }),
        ("other disks for what is open", |log| {
            log.ensembles.pop();
            log.ensembles[1].to = None;
            log.ensembles[1].disks = vec![DiskId(7)];
        }),
        ("no state any more", |log| log.state = None),
        ("a state with an old number", |log| {
            log.state = Some(state(4, 3))
        }),
        ("the same number for another state", |log| {
            log.state = Some(state(5, 4))
        }),
        ("a state that goes back", |log| {
            log.state = Some(state(6, 2))
        }),
        ("a state of another epoch", |log| {
            let mut other = state(6, 3);
            other.id.epoch = Epoch(2);
            log.state = Some(other);
        }),
        ("a state nowhere", |log| {
            let mut other = state(6, 3);
            other.disks.clear();
            log.state = Some(other);
        }),
        ("a state twice on a disk", |log| {
            let mut other = state(6, 3);
            other.disks = vec![DiskId(1), DiskId(1)];
            log.state = Some(other);
        }),
    ];
    for (name, spoil) in cases {
        let mut log = good.clone();
        spoil(&mut log);
        let refused = map.change_log(&mut owned, log).await;
        assert!(
            matches!(refused, Err(MapError::Invalid { .. })),
            "{name}: {refused:?}"
        );
    }
    // Trimmed, and with other holders of what is sealed.
    let mut trimmed = good;
    trimmed.ensembles.remove(0);
    trimmed.ensembles[0].disks = vec![DiskId(4), DiskId(5), DiskId(6)];
    map.change_log(&mut owned, trimmed).await.unwrap();
}

async fn volumes_have_numbers_and_names_of_their_own(world: &World) {
    let map = create(world, "volumes").await;
    let settings = Opaque(b"settings".to_vec());
    let make = |name: &'static str| map.create_volume(name, settings.clone(), Opaque::default());
    assert_eq!(make("a").await, Ok(VolumeId(1)), "{}", world.name);
    assert_eq!(make("b").await, Ok(VolumeId(2)));
    assert!(
        matches!(make("a").await, Err(MapError::Exists { .. })),
        "{}",
        world.name
    );
    assert!(matches!(make("a/b").await, Err(MapError::Invalid { .. })));
    let (volumes, revision) = map.volumes().await.unwrap();
    let names: Vec<_> = volumes
        .iter()
        .map(|v| v.record.value.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(volumes[0].record.value.settings, settings);
    assert!(revision >= volumes[1].record.revision);

    let before = &volumes[0].record;
    let mut record = before.value.clone();
    record.exports = Opaque(vec![0, 255]);
    map.change_volume(before, &record).await.unwrap();
    assert_eq!(map.volume(VolumeId(1)).await.unwrap().record.value, record);
    let refused = map.change_volume(before, &volumes[0].record.value).await;
    assert!(
        matches!(refused, Err(MapError::Changed { .. })),
        "{}",
        world.name
    );
}

async fn clones_are_in_the_record_of_their_store(world: &World) {
    let map = create(world, "clones").await;
    let make = |name: &'static str| map.create_volume(name, Opaque::default(), Opaque::default());
    let (store, other) = (make("a").await.unwrap(), make("b").await.unwrap());
    let clone = |id: u32, name: &str| CloneRecord {
        id: VolumeId(id),
        name: name.to_owned(),
        settings: Opaque::default(),
        exports: Opaque::default(),
    };
    let change = async |change: &dyn Fn(&mut VolumeRecord)| {
        let before = map.volume(store).await.unwrap().record;
        let mut record = before.value.clone();
        change(&mut record);
        map.change_volume(&before, &record).await
    };
    let exists = |result| matches!(result, Err(MapError::Exists { .. }));
    let changed = |result| matches!(result, Err(MapError::Changed { .. }));
    let add = |id: u32, name: &'static str| {
        move |record: &mut VolumeRecord| record.clones.push(clone(id, name))
    };
    // Names are those of nobody else, numbers nobody ever had.
    assert!(exists(change(&add(3, "b")).await), "{}", world.name);
    assert!(changed(change(&add(2, "c")).await), "{}", world.name);
    let bad = change(&add(3, "c/d")).await;
    assert!(matches!(bad, Err(MapError::Invalid { .. })));
    assert_eq!(change(&add(3, "c")).await, Ok(()));
    assert!(exists(change(&add(4, "c")).await), "{}", world.name);
    assert_eq!(change(&add(6, "d")).await, Ok(()));
    assert_eq!(map.next_volume().await, Ok(VolumeId(7)));
    assert!(exists(make("c").await.map(drop)), "{}", world.name);
    let view = map.follow().await.unwrap().view().unwrap();
    let store_of = |id: u32| view.store_of(VolumeId(id)).map(|it| it.record.value.id);
    assert_eq!([1, 3, 6].map(store_of), [Some(store); 3]);
    assert_eq!([2, 5].map(store_of), [Some(other), None]);

    // The volume that it was made for goes: its name is free, and the store is still there.
    assert_eq!(change(&|record| record.is_deleted = true).await, Ok(()));
    assert_eq!(make("a").await, Ok(VolumeId(7)), "{}", world.name);
    let all = [1, 3, 5, 6, 9].map(VolumeId);
    let deleted = map.deleted_in_store(store, &all).await.unwrap();
    assert_eq!(deleted, [VolumeId(1), VolumeId(5)], "{}", world.name);
    let head = async || {
        let record = map.volume(store).await.unwrap().record.value;
        record.head().to_owned()
    };
    assert_eq!(head().await, "c");
    let gone = change(&|record| record.clones.retain(|clone| clone.id != VolumeId(3)));
    assert_eq!(gone.await, Ok(()));
    assert_eq!(head().await, "d");
    assert_eq!(make("c").await, Ok(VolumeId(8)), "{}", world.name);
    map.delete_volume(store).await.unwrap();
    assert_eq!(make("d").await, Ok(VolumeId(9)), "{}", world.name);
    assert_eq!(map.is_deleted(store).await, Ok(true));

    // A map that is made of what a server had.
    let map = create(world, "imported").await;
    let record = |id: u32, name: &str, clones: Vec<CloneRecord>| VolumeRecord {
        id: VolumeId(id),
        name: name.to_owned(),
        settings: Opaque::default(),
        exports: Opaque::default(),
        clones,
        is_deleted: id == 1,
    };
    for record in [
        record(1, "a", vec![clone(3, "x"), clone(5, "a")]),
        record(2, "b", Vec::new()),
    ] {
        map.import_volume(&record).await.unwrap();
    }
    assert_eq!(map.next_volume().await, Ok(VolumeId(6)), "{}", world.name);
}

async fn addresses_of_pools_have_one_holder(world: &World) {
    let map = create(world, "pools").await;
    let record = |name: &str, last: &[u8]| AddressPoolRecord {
        name: name.to_owned(),
        addresses: last
            .iter()
            .map(|it| IpAddr::from([10, 0, 0, *it]))
            .collect(),
        prefix_len: 24,
        interface: None,
        dns_name: None,
    };
    let seen = async || map.follow().await.unwrap().view().unwrap();
    let pool = async |name: &str| seen().await.address_pools[name].clone();
    let address = |last: u8| IpAddr::from([10, 0, 0, last]);
    map.set_address_pool(None, &record("a", &[1, 2]))
        .await
        .unwrap();
    for (what, other) in [
        ("name", record("a", &[3])),
        ("address", record("b", &[3, 2])),
    ] {
        let refused = map.set_address_pool(None, &other).await;
        assert!(
            matches!(refused, Err(MapError::Exists { .. })),
            "{}: {what}",
            world.name
        );
    }
    for bad in [record("a/b", &[3]), record("b", &[]), record("b", &[3, 3])] {
        let refused = map.set_address_pool(None, &bad).await;
        assert!(matches!(refused, Err(MapError::Invalid { .. })), "{bad:?}");
    }
    // An address of a volume is of no pool, and the other way round.
    let volume = map
        .create_volume("v", Opaque::default(), Opaque::default())
        .await
        .unwrap();
    let of_volume = |last| AddressRecord {
        address: address(last),
        prefix_len: 24,
        interface: None,
    };
    let refused = map.set_address(volume, Some(&of_volume(2))).await;
    assert!(
        matches!(refused, Err(MapError::Exists { .. })),
        "{}",
        world.name
    );
    map.set_address(volume, Some(&of_volume(9))).await.unwrap();
    let refused = map.set_address_pool(None, &record("b", &[9])).await;
    assert!(
        matches!(refused, Err(MapError::Exists { .. })),
        "{}",
        world.name
    );

    let (one, two) = (process(world, 1, 11).await, process(world, 2, 21).await);
    let first = pool("a").await;
    map.take_address(one, &first, address(1)).await.unwrap();
    let refused = map.take_address(two, &first, address(1)).await;
    assert!(
        matches!(refused, Err(MapError::Changed { .. })),
        "{}: {refused:?}",
        world.name
    );
    // Who has it has it: a reply may have been lost.
    map.take_address(one, &first, address(1)).await.unwrap();
    // Who does not hold it changes nothing.
    map.leave_address(two, address(1)).await.unwrap();
    assert_eq!(
        seen().await.address_holders[&address(1)].value.process,
        one.nonce
    );
    map.leave_address(one, address(1)).await.unwrap();
    map.take_address(two, &first, address(1)).await.unwrap();

    // A pool that was changed meanwhile gives nothing to who saw it before.
    map.set_address_pool(Some(&first), &record("a", &[2, 3]))
        .await
        .unwrap();
    let late = map.set_address_pool(Some(&first), &record("a", &[4])).await;
    assert!(
        matches!(late, Err(MapError::Changed { .. })),
        "{}",
        world.name
    );
    let late = map.take_address(one, &first, address(2)).await;
    assert!(
        matches!(late, Err(MapError::Changed { .. })),
        "{}",
        world.name
    );
    // What went is free, what came is not.
    map.set_address_pool(None, &record("b", &[1]))
        .await
        .unwrap();
    let refused = map.set_address_pool(None, &record("c", &[3])).await;
    assert!(
        matches!(refused, Err(MapError::Exists { .. })),
        "{}",
        world.name
    );
    map.remove_address_pool(&pool("a").await).await.unwrap();
    map.set_address_pool(None, &record("c", &[2, 3]))
        .await
        .unwrap();

    // All addresses at once are too many for one transaction.
    let many = |first: u8| -> Vec<u8> { (first..).take(POOL_ADDRESSES_MAX).collect() };
    map.set_address_pool(None, &record("d", &many(100)))
        .await
        .unwrap();
    let full = pool("d").await;
    map.set_address_pool(Some(&full), &record("d", &many(10)))
        .await
        .unwrap();
    assert_eq!(pool("d").await.value, record("d", &many(10)));
    let other = record("d", &many(180));
    let late = map.set_address_pool(Some(&full), &other);
    assert!(
        matches!(late.await, Err(MapError::Changed { .. })),
        "{}",
        world.name
    );
    map.set_address_pool(None, &record("e", &many(100)))
        .await
        .unwrap();

    // What went out of a pool is of no volume while a node has it.
    assert!(seen().await.address_holders.contains_key(&address(1)));
    map.remove_address_pool(&pool("b").await).await.unwrap();
    let refused = map.set_address(volume, Some(&of_volume(1))).await;
    assert!(
        matches!(refused, Err(MapError::Exists { .. })),
        "{}: {refused:?}",
        world.name
    );
    // The lease takes along what its process holds.
    world.coordinator.revoke_lease(two.lease).await.unwrap();
    assert!(seen().await.address_holders.is_empty(), "{}", world.name);
    map.set_address(volume, Some(&of_volume(1))).await.unwrap();
}

async fn nodes_have_names_and_addresses_of_their_own(world: &World) {
    let map = create(world, "nodes").await;
    let first = node(1, "a", "10.0.0.1:7000");
    map.add_node(&first).await.unwrap();
    for (what, other) in [
        ("id", node(1, "b", "10.0.0.2:7000")),
        ("name", node(2, "a", "10.0.0.2:7000")),
        ("address", node(2, "b", "10.0.0.1:7000")),
    ] {
        let refused = map.add_node(&other).await;
        assert!(
            matches!(refused, Err(MapError::Exists { .. })),
            "{}: {what}",
            world.name
        );
    }
    for bad in [
        node(2, "", "10.0.0.2:7000"),
        node(2, "b", "a/b"),
        node(2, "b", ""),
    ] {
        let refused = map.add_node(&bad).await;
        assert!(matches!(refused, Err(MapError::Invalid { .. })), "{bad:?}");
    }
    map.add_node(&node(2, "b", "10.0.0.2:7000")).await.unwrap();
    let before = map.node_named("a").await.unwrap();
    assert_eq!(before.value, first);
    let taken = map
        .change_node(&before, &node(1, "b", "10.0.0.1:7000"))
        .await;
    assert!(
        matches!(taken, Err(MapError::Exists { .. })),
        "{}: {taken:?}",
        world.name
    );
    map.change_node(&before, &node(1, "c", "10.0.0.3:7000"))
        .await
        .unwrap();
    assert!(matches!(
        map.node_named("a").await,
        Err(MapError::NotFound { .. })
    ));
    // What it had is free again.
    map.add_node(&node(3, "a", "10.0.0.1:7000")).await.unwrap();

    let alive = process(world, 1, 11).await;
    let none = Sign::default();
    map.announce(alive, &none).await.unwrap();
    let later = process(world, 1, 12).await;
    map.announce(later, &none).await.unwrap();
    world.coordinator.revoke_lease(alive.lease).await.unwrap();
    let (there, _) = map.alive().await.unwrap();
    assert_eq!(
        there.len(),
        1,
        "{}: the earlier process takes nothing with it",
        world.name
    );
    let before = &there[0].value;
    assert_eq!(before.process, ProcessNonce(12));
    // What it cannot open it says again, as the same process.
    let (locked, unreached) = (BTreeSet::from([VolumeId(3)]), BTreeSet::from([NodeId(2)]));
    let sign = Sign {
        locked: locked.clone(),
        unreached: unreached.clone(),
        failed: BTreeMap::from([(VolumeId(4), "two disks are away".to_owned())]),
        ..Sign::default()
    };
    map.announce(later, &sign).await.unwrap();
    let (there, _) = map.alive().await.unwrap();
    let now = &there[0].value;
    assert_eq!((&now.locked, now.since), (&locked, before.since));
    assert_eq!(now.failed, sign.failed);

    // A node writes its own sign of life; what it says of another one there is nothing.
    let from = format!("{}alive/{}", map.keys().prefix(), NodeId(1));
    let to = format!("{}alive/{}", map.keys().prefix(), NodeId(2));
    let entry = world.coordinator.range(KeyRange::One(Key::new(from))).await;
    let copied = Op::put(Key::new(to), entry.unwrap().one().unwrap().value);
    let txn = Txn {
        then: vec![copied],
        ..Txn::default()
    };
    world.done(txn).await;
    let view = map.follow().await.unwrap().view().unwrap();
    assert_eq!(view.alive[&NodeId(1)].value.process, ProcessNonce(12));
    assert!(!view.alive.contains_key(&NodeId(2)), "{}", world.name);
    assert_eq!(view.damaged.len(), 1, "{:?}", view.damaged);
    assert!(!view.is_unsure_of_nodes(map.keys()));

    // Where nodes serve iSCSI: no two have the same number, and it goes with the node.
    let portals = |node: u128, group: u16| IscsiPortals {
        node: NodeId(node),
        group,
        addresses: Vec::new(),
    };
    map.set_iscsi(None, &portals(1, 1)).await.unwrap();
    let taken = map.set_iscsi(None, &portals(2, 1)).await;
    assert!(matches!(taken, Err(MapError::Changed { .. })), "{taken:?}");
    map.set_iscsi(None, &portals(2, 2)).await.unwrap();
    let before = map.iscsi(NodeId(2)).await.unwrap();
    map.set_iscsi(before.as_ref(), &portals(2, 3))
        .await
        .unwrap();
    map.remove_node(NodeId(1)).await.unwrap();
    map.set_iscsi(None, &portals(3, 1)).await.unwrap();
    map.remove_node(NodeId(3)).await.unwrap();
    let left = map.all_iscsi().await.unwrap();
    let left: Vec<u16> = left.iter().map(|iscsi| iscsi.value.group).collect();
    assert_eq!(left, [3]);
}

async fn a_node_leaves_with_all_its_disks(world: &World) {
    let map = create(world, "leaves").await;
    map.add_node(&node(1, "a", "a:1")).await.unwrap();
    map.add_node(&node(2, "b", "b:1")).await.unwrap();
    let disk = |id: u128, of: u128| DiskRecord {
        id: DiskId(id),
        node: NodeId(of),
        label: "disk".to_owned(),
        role: DiskRole::Data,
        media: None,
        draining: false,
        replaced: false,
        added: Timestamp::new(1, 0),
    };
    for record in [disk(7, 1), disk(8, 1), disk(9, 2)] {
        map.add_disk(&record).await.unwrap();
    }
    let none = || Opaque(Vec::new());
    let volume = map.create_volume("v", none(), none()).await.unwrap();
    let owner = process(world, 2, 5).await;
    map.announce(process(world, 1, 4).await, &Sign::default())
        .await
        .unwrap();
    let owned = map.take_over(volume, owner, Epoch(0)).await.unwrap();

    let is_invalid = |result: Result<(), MapError>, why: &str| match result {
        Err(MapError::Invalid { problem, .. }) => assert!(problem.contains(why), "{problem}"),
        other => panic!("{}: {why}: {other:?}", world.name),
    };
    is_invalid(map.remove_drained_node(NodeId(1)).await, "it is in use");
    map.set_node_draining(NodeId(1), true, Some(NodeId(2)))
        .await
        .unwrap();
    let draining = async |id: u128| map.disk(DiskId(id)).await.unwrap().value.draining;
    assert_eq!(
        [draining(7).await, draining(8).await, draining(9).await],
        [true, true, false]
    );
    is_invalid(map.add_disk(&disk(10, 1)).await, "takes no new disks");
    // Nor does one that leaves take the place of another.
    let taken = map.set_node_draining(NodeId(2), true, Some(NodeId(1)));
    is_invalid(taken.await, "is being drained as well");
    is_invalid(
        map.remove_drained_node(NodeId(1)).await,
        "still has data or metadata",
    );

    // Stays after all, and leaves again: what was noted of the first time does not count.
    let note = async || {
        let mut left = LeftRecord::default();
        for id in [7, 8] {
            let revision = map.disk(DiskId(id)).await.unwrap().revision;
            left.disks.insert(DiskId(id), revision.0);
        }
        left
    };
    let early = note().await;
    map.set_node_draining(NodeId(1), false, None).await.unwrap();
    assert!(!draining(7).await);
    map.set_node_draining(NodeId(1), true, None).await.unwrap();
    map.set_left(volume, owner, owned.epoch, &early)
        .await
        .unwrap();
    let is_left = async || {
        let view = map.follow().await.unwrap().view().unwrap();
        (7..=9)
            .map(|disk| view.is_left(DiskId(disk)))
            .collect::<Vec<_>>()
    };
    assert!(!is_left().await.contains(&true), "that was before");
    is_invalid(
        map.remove_drained_node(NodeId(1)).await,
        "still has data or metadata",
    );
    map.set_preferred(volume, Some(NodeId(1))).await.unwrap();
    let late = note().await;
    map.set_left(volume, owner, owned.epoch, &late)
        .await
        .unwrap();
    let is_there = is_left().await;
    assert!(is_there[0] && is_there.contains(&false), "{is_there:?}");
    map.remove_drained_node(NodeId(1)).await.unwrap();
    let (nodes, _) = map.nodes().await.unwrap();
    assert_eq!(nodes.len(), 1);
    assert!(map.alive().await.unwrap().0.is_empty());
    assert_eq!(map.volume(volume).await.unwrap().preferred, None);
    assert_eq!(map.disks().await.unwrap().0.len(), 1);
    // Name and address are free again.
    map.add_node(&node(3, "a", "a:1")).await.unwrap();
    // The owner of a volume does not go.
    map.set_node_draining(NodeId(2), true, None).await.unwrap();
    is_invalid(map.remove_drained_node(NodeId(2)).await, "it still owns");
}

async fn one_member_of_etcd_starts_again_at_a_time(world: &World) {
    let map = create(world, "restarts").await;
    let lease = map.begin_member_restart(NodeId(1)).await.unwrap();
    let lease = lease.expect("no other one starts again");
    assert_eq!(map.begin_member_restart(NodeId(2)).await.unwrap(), None);
    map.end_member_restart(lease).await.unwrap();
    let next = map.begin_member_restart(NodeId(2)).await.unwrap();
    assert!(next.is_some(), "{}", world.name);
}

async fn a_node_with_disks_stays(world: &World) {
    let map = create(world, "disks").await;
    map.add_node(&node(1, "a", "a:1")).await.unwrap();
    let record = DiskRecord {
        id: DiskId(7),
        node: NodeId(1),
        label: "left".to_owned(),
        role: DiskRole::Data,
        media: None,
        draining: false,
        replaced: false,
        added: Timestamp::new(1, 0),
    };
    let elsewhere = DiskRecord {
        node: NodeId(2),
        ..record.clone()
    };
    assert!(matches!(
        map.add_disk(&elsewhere).await,
        Err(MapError::NotFound { .. })
    ));
    map.add_disk(&record).await.unwrap();
    // The very same again is what a call looks like whose reply was lost.
    map.add_disk(&record).await.unwrap();
    let other = DiskRecord {
        label: "right".to_owned(),
        ..record.clone()
    };
    assert!(matches!(
        map.add_disk(&other).await,
        Err(MapError::Exists { .. })
    ));
    assert!(matches!(
        map.remove_node(NodeId(1)).await,
        Err(MapError::Invalid { .. })
    ));
    let before = map.disk(DiskId(7)).await.unwrap();
    let draining = DiskRecord {
        draining: true,
        ..record
    };
    map.change_disk(&before, &draining).await.unwrap();
    assert!(matches!(
        map.remove_disk(&before).await,
        Err(MapError::Changed { .. })
    ));
    let now = map.disk(DiskId(7)).await.unwrap();
    assert!(now.value.draining);
    map.remove_disk(&now).await.unwrap();
    assert!(map.removed_nodes().await.unwrap().is_empty());
    map.remove_node(NodeId(1)).await.unwrap();
    assert!(map.nodes().await.unwrap().0.is_empty(), "{}", world.name);
    // Its certificates outlive it.
    let removed = map.removed_nodes().await.unwrap();
    let [removed] = &removed[..] else {
        panic!("{}: {removed:?}", world.name);
    };
    assert_eq!((removed.value.node, &*removed.value.name), (NodeId(1), "a"));
    let view = map.follow().await.unwrap().view().unwrap();
    assert_eq!(view.removed.get(&NodeId(1)), Some(removed));
    map.forget_removed(removed).await.unwrap();
    assert!(map.removed_nodes().await.unwrap().is_empty());
}

async fn an_authority_is_replaced_and_no_node_comes_unseen(world: &World) {
    let map = create(world, "authority").await;
    let minute = Duration::from_secs(60);
    let (one, two) = (NodeId(1), NodeId(2));
    map.add_node(&node(1, "a", "a:1")).await.unwrap();
    assert_eq!(map.rotation().await.unwrap(), None, "{}", world.name);
    let now = Timestamp::new(5, 0);
    let begun = RotationRecord::begin("old".to_owned(), now);
    map.set_rotation(None, &begun).await.unwrap();
    let changed = |result: Result<(), MapError>| {
        assert!(
            matches!(result, Err(MapError::Changed { .. })),
            "{}: {result:?}",
            world.name
        );
    };
    // One at a time.
    let other = RotationRecord::begin("another".to_owned(), now);
    changed(map.set_rotation(None, &other).await);
    let first = map.rotation().await.unwrap().unwrap();
    assert_eq!(first.value, begun);
    let made = begun.made("new".to_owned(), one).noted(one, true);
    map.set_rotation(Some(&first), &made).await.unwrap();
    let seen = map.rotation().await.unwrap().unwrap();
    let view = map.follow().await.unwrap().view().unwrap();
    assert_eq!(view.rotation.as_ref(), Some(&seen));

    // All nodes that were seen have done their part; one joins before that is written.
    let alone = BTreeSet::from([one]);
    let renew = seen.value.advanced(&alone, &alone, now).unwrap();
    let token = map.create_token(minute, NodeId(1)).await.unwrap();
    map.join(&token, &node(2, "b", "b:1")).await.unwrap();
    changed(map.set_rotation(Some(&seen), &renew).await);
    let seen = map.rotation().await.unwrap().unwrap();
    assert_eq!(seen.value, made);
    let both = BTreeSet::from([one, two]);
    assert_eq!(seen.value.awaited(&both, &alone), BTreeSet::from([two]));
    let noted = seen.value.noted(two, false);
    map.set_rotation(Some(&seen), &noted).await.unwrap();

    // Another machine that becomes a node has nothing of what that one had.
    let token = map.create_token(minute, NodeId(1)).await.unwrap();
    let machine = Machine {
        internal_address: "c:1".to_owned(),
        external_address: "c:1".to_owned(),
        versions: VersionRange {
            oldest: 1,
            newest: 1,
        },
    };
    // Neither what that noted, which goes with its lease in any case.
    let noted = RotationNote::of(&seen.value, two, false);
    let earlier = process(world, 2, 1).await;
    map.note_rotation(earlier, &noted).await.unwrap();
    map.note_rotation(earlier, &noted).await.unwrap();
    assert_eq!(
        map.rotation_notes().await.unwrap(),
        std::slice::from_ref(&noted)
    );
    let view = map.follow().await.unwrap().view().unwrap();
    assert_eq!(view.rotation_notes[&two].value, noted);
    map.rejoin(&token, "b", &machine).await.unwrap();
    assert!(map.rotation_notes().await.unwrap().is_empty());
    let seen = map.rotation().await.unwrap().unwrap();
    assert_eq!(seen.value.awaited(&both, &alone), BTreeSet::from([two]));

    // Tickets name the old one: their tokens go with it.
    let early = map.create_token(minute, NodeId(1)).await.unwrap();
    let renew = seen.value.noted(two, false);
    let renew = renew.advanced(&both, &alone, now).unwrap();
    assert_eq!(renew.phase, RotationPhase::Renew);
    map.set_rotation(Some(&seen), &renew).await.unwrap();
    assert!(map.tokens().await.unwrap().is_empty(), "{}", world.name);
    let refused = map.join(&early, &node(3, "d", "d:1")).await;
    assert!(matches!(refused, Err(MapError::Token(_))), "{refused:?}");
    let late = map.create_token(minute, NodeId(1)).await.unwrap();
    let seen = map.rotation().await.unwrap().unwrap();
    let noted = seen.value.noted(one, true);
    map.set_rotation(Some(&seen), &noted).await.unwrap();
    map.join(&late, &node(3, "d", "d:1")).await.unwrap();
}

/// Whether a token lets two nodes in, one after the other.
async fn lets_two_in(map: &ClusterMap, ids: [u128; 2]) -> bool {
    let token = map
        .create_token(Duration::from_secs(60), NodeId(1))
        .await
        .unwrap();
    let [first, second] = ids.map(|id| node(id, &format!("n{id}"), &format!("n{id}:1")));
    map.join(&token, &first).await.unwrap();
    map.join(&token, &second).await.is_ok()
}

async fn a_token_works_once(world: &World) {
    let map = create(world, "tokens").await;
    assert!(!lets_two_in(&map, [1, 2]).await, "{}", world.name);
    planted::plant(Some(Bug::TokenWorksTwice));
    let found = lets_two_in(&map, [3, 4]).await;
    planted::plant(None);
    assert!(found, "{}", world.name);

    let token = map
        .create_token(Duration::from_secs(60), NodeId(1))
        .await
        .unwrap();
    // A node that cannot join uses nothing up.
    assert!(
        map.join(&token, &node(1, "again", "again:1"))
            .await
            .is_err()
    );
    let text = token.to_string();
    let parsed: JoinToken = text.parse().unwrap();
    map.join(&parsed, &node(5, "n5", "n5:1")).await.unwrap();
    // (what, text)
    let other = map
        .create_token(Duration::from_secs(60), NodeId(1))
        .await
        .unwrap()
        .to_string();
    let mixed = format!("{}{}", &other[..22], &text[22..]);
    for bad in ["", "cairn", "cairn-1-2", &text[..text.len() - 1], &mixed] {
        let refused = match bad.parse::<JoinToken>() {
            Ok(token) => map.join(&token, &node(6, "n6", "n6:1")).await,
            Err(error) => Err(error),
        };
        assert!(
            matches!(refused, Err(MapError::Token(_))),
            "{}: {bad}",
            world.name
        );
    }
    let short = map.create_token(Duration::ZERO, NodeId(1)).await.unwrap();
    let refused = map.join(&short, &node(6, "n6", "n6:1")).await;
    assert!(
        matches!(refused, Err(MapError::Token(_))),
        "{}: expired",
        world.name
    );
    let day = Duration::from_secs(TOKEN_SECONDS_MAX);
    let too_long = map.create_token(day + Duration::from_secs(1), NodeId(1));
    let too_long = too_long.await;
    assert!(
        matches!(too_long, Err(MapError::Invalid { .. })),
        "{}: {too_long:?}",
        world.name
    );
    // With the node that made it.
    let of_two = [day, day].map(|day| map.create_token(day, NodeId(3)));
    let [kept, gone] = of_two;
    let (kept, gone) = (kept.await.unwrap(), gone.await.unwrap());
    let other = map.create_token(day, NodeId(1)).await.unwrap();
    map.join(&kept, &node(7, "n7", "n7:1")).await.unwrap();
    map.remove_node(NodeId(3)).await.unwrap();
    let refused = map.join(&gone, &node(8, "n8", "n8:1")).await;
    assert!(
        matches!(refused, Err(MapError::Token(_))),
        "{}: {refused:?}",
        world.name
    );
    // Also one that it puts there in the same moment, or that a copy of before brings back.
    let late = map.create_token(day, NodeId(3)).await.unwrap();
    let refused = map.join(&late, &node(8, "n8", "n8:1")).await;
    assert_eq!(
        refused,
        Err(MapError::Token(
            "the node that made it was removed; make another one"
        )),
        "{}",
        world.name
    );
    map.join(&other, &node(8, "n8", "n8:1")).await.unwrap();
    // The store has no secret.
    let tokens = map.tokens().await.unwrap();
    assert!(
        tokens
            .iter()
            .all(|token| !text.contains(&token.value.sha256))
    );
    assert!(!format!("{token:?}").contains(&text[23..]));
}

async fn a_group_is_whole_or_comes_to_nothing(world: &World) {
    let map = create(world, "groups").await;
    let taking = process(world, 1, 1).await;
    let volumes = BTreeSet::from([VolumeId(1), VolumeId(2)]);
    let begin = || map.begin_group(taking, &volumes);

    // Decided, it outlives the process that took it, until the last has left.
    let whole = begin().await.unwrap();
    assert!(!map.group(whole).await.unwrap().unwrap().value.is_whole);
    map.decide_group(whole).await.unwrap();
    // Who was not told that it is decided does not undo it.
    assert!(!map.give_up_group(whole).await.unwrap());
    let given_up = begin().await.unwrap();
    let lost = begin().await.unwrap();
    assert!(map.give_up_group(given_up).await.unwrap());
    let late = map.decide_group(given_up).await;
    assert!(
        matches!(late, Err(MapError::Changed { .. })),
        "{}: {late:?}",
        world.name
    );
    world.coordinator.revoke_lease(taking.lease).await.unwrap();
    assert_eq!(map.group(lost).await.unwrap(), None, "{}", world.name);
    assert!(map.decide_group(lost).await.is_err());
    for volume in [VolumeId(2), VolumeId(1)] {
        let found = map.group(whole).await.unwrap().unwrap();
        assert!(found.value.is_whole && found.value.volumes.contains(&volume));
        for _ in 0..2 {
            map.leave_group(whole, &BTreeSet::from([volume]))
                .await
                .unwrap();
        }
    }
    assert_eq!(map.group(whole).await.unwrap(), None, "{}", world.name);
}

async fn values_that_cannot_be_read_name_their_key(world: &World) {
    let map = create(world, "damaged").await;
    let key = map.keys().node(NodeId(1));
    let good = r#"{"format":1,"id":"1","name":"a","internal_address":"a:1","external_address":"a:1",
        "versions":{"oldest":1,"newest":1},"joined":{"seconds":1,"nanos":0},"of_a_newer_cairn":7}"#;
    world.put(key.as_str(), good).await;
    map.node(NodeId(1)).await.unwrap();
    for (value, too_new) in [
        ("", false),
        ("x", false),
        ("{}", false),
        (r#"{"format":1}"#, false),
        (&good.replace(r#""oldest":1"#, r#""oldest":2"#), false),
        (&good.replace(r#""format":1"#, r#""format":2"#), true),
    ] {
        world.put(key.as_str(), value).await;
        let error = map.node(NodeId(1)).await.unwrap_err();
        assert!(error.to_string().contains(key.as_str()), "{error}");
        match error {
            MapError::TooNew { format: 2, .. } => assert!(too_new, "{value}"),
            MapError::Damaged { .. } => assert!(!too_new, "{value}"),
            other => panic!("{value}: {other}"),
        }
    }
}

async fn a_map_that_was_replaced_takes_no_change(world: &World) {
    let map = create(world, "replaced").await;
    let volume = map
        .create_volume("v", Opaque::default(), Opaque::default())
        .await
        .unwrap();
    let one = process(world, 1, 11).await;
    let generation = ClusterMap::accept_restored(
        Arc::clone(&world.coordinator),
        world.env.clone(),
        "replaced",
        MapGeneration(6),
    )
    .await
    .unwrap();
    assert_eq!(generation, MapGeneration(7));
    let refused = map.take_over(volume, one, Epoch(0)).await;
    assert!(
        matches!(refused, Err(MapError::Replaced { .. })),
        "{}: {refused:?}",
        world.name
    );
    let refused = map
        .create_volume("w", Opaque::default(), Opaque::default())
        .await;
    assert!(
        matches!(refused, Err(MapError::Replaced { .. })),
        "{}: {refused:?}",
        world.name
    );
}

/// What a node says to a store that was restored from an old backup: while it uses it, and when it opens it.
async fn restored() -> (Result<(), MapError>, Result<(), MapError>) {
    let world = World::memory();
    let Kind::Memory(memory, _) = &world.kind else {
        unreachable!("it is in memory")
    };
    let high_water = Arc::new(MemoryHighWater::default());
    let open = || {
        let coordinator = Arc::clone(&world.coordinator);
        ClusterMap::open(coordinator, world.env.clone(), "home", high_water.clone())
    };
    create(&world, "home").await;
    let backup = memory.backup();
    let map = open().await.unwrap();
    map.create_volume("v", Opaque::default(), Opaque::default())
        .await
        .unwrap();
    map.remember().unwrap();
    memory.restore(&backup);
    let used = map.volumes().await.map(|_| ());
    let opened = open().await.map(|_| ());
    // An operator accepts it.
    let accept = ClusterMap::accept_restored(
        Arc::clone(&world.coordinator),
        world.env.clone(),
        "home",
        map.cluster().generation,
    );
    accept.await.unwrap();
    open().await.expect("it is accepted");
    (used, opened)
}

#[tokio::test]
async fn a_restored_old_backup_is_refused_until_an_operator_accepts_it() {
    let (used, opened) = restored().await;
    assert!(matches!(used, Err(MapError::WentBack { .. })), "{used:?}");
    assert!(
        matches!(opened, Err(MapError::WentBack { .. })),
        "{opened:?}"
    );
    planted::plant(Some(Bug::OldBackupAccepted));
    let (used, opened) = restored().await;
    planted::plant(None);
    assert_eq!((used, opened), (Ok(()), Ok(())));
}

/// A node that wrote nothing itself has acted upon what it followed.
#[tokio::test]
async fn who_only_followed_a_map_refuses_an_older_one() {
    let world = World::memory();
    let Kind::Memory(memory, clock) = &world.kind else {
        unreachable!("it is in memory")
    };
    let writer = create(&world, "home").await;
    let high_water = Arc::new(MemoryHighWater::default());
    let open = || {
        let coordinator = Arc::clone(&world.coordinator);
        ClusterMap::open(coordinator, world.env.clone(), "home", high_water.clone())
    };
    let map = open().await.unwrap();
    let mut follower = map.follow().await.unwrap();
    let backup = memory.backup();
    let made = writer.create_volume("v", Opaque::default(), Opaque::default());
    let volume = made.await.unwrap();
    let view = loop {
        let passing = async {
            for _ in 0..20 {
                tokio::task::yield_now().await;
                clock.advance(Duration::from_millis(10));
            }
        };
        tokio::join!(follower.changed(), passing);
        let view = follower.view().unwrap();
        if view.volumes.contains_key(&volume) {
            break view;
        }
    };
    map.remember_followed(view.revision).unwrap();
    memory.restore(&backup);
    let opened = open().await.map(|_| ());
    assert!(
        matches!(opened, Err(MapError::WentBack { .. })),
        "{opened:?}"
    );
}

#[tokio::test]
async fn another_machine_takes_the_place_of_a_node_that_is_away() {
    let world = World::memory();
    let map = create(&world, "home").await;
    map.add_node(&node(1, "a", "a:1")).await.unwrap();
    map.add_node(&node(2, "b", "b:1")).await.unwrap();
    let token = || map.create_token(Duration::from_secs(60), NodeId(1));
    let machine = |address: &str| Machine {
        internal_address: address.to_owned(),
        external_address: address.to_owned(),
        versions: VersionRange {
            oldest: 1,
            newest: 1,
        },
    };
    let first = token().await.unwrap();
    let alive = process(&world, 1, 5).await;
    map.announce(alive, &Sign::default()).await.unwrap();
    let refused = map.rejoin(&first, "a", &machine("c:1")).await;
    assert!(
        matches!(refused, Err(MapError::Invalid { .. })),
        "{refused:?}"
    );
    world.coordinator.revoke_lease(alive.lease).await.unwrap();
    let refused = map.rejoin(&first, "a", &machine("b:1")).await;
    assert!(
        matches!(refused, Err(MapError::Exists { .. })),
        "{refused:?}"
    );
    let taken = map.rejoin(&first, "a", &machine("c:1")).await.unwrap();
    assert_eq!((taken.id, taken.name.as_str()), (NodeId(1), "a"));
    let found = map.node_named("a").await.unwrap().value;
    assert_eq!(found.internal_address, "c:1");
    // What it had is free again, and the token is used up.
    map.add_node(&node(3, "d", "a:1")).await.unwrap();
    let refused = map.rejoin(&first, "a", &machine("e:1")).await;
    assert!(matches!(refused, Err(MapError::Token(_))), "{refused:?}");
    let second = token().await.unwrap();
    map.set_node_draining(NodeId(2), true, None).await.unwrap();
    let refused = map.rejoin(&second, "b", &machine("f:1")).await;
    assert!(
        matches!(refused, Err(MapError::Invalid { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn maintenance_is_said_and_ends_by_itself() {
    let world = World::memory();
    let map = create(&world, "home").await;
    map.add_node(&node(1, "a", "a:1")).await.unwrap();
    let until = Timestamp::new(200, 0);
    map.set_node_maintenance(NodeId(1), Some(until))
        .await
        .unwrap();
    let found = map.node(NodeId(1)).await.unwrap().value;
    let left = |seconds| found.maintenance_left(Timestamp::new(seconds, 0));
    assert_eq!(left(150), Some(Duration::from_secs(50)));
    assert_eq!((left(200), left(201)), (None, None));
    map.set_node_maintenance(NodeId(1), None).await.unwrap();
    let found = map.node(NodeId(1)).await.unwrap().value;
    assert_eq!(found.maintenance_left(Timestamp::new(150, 0)), None);
}

#[tokio::test]
async fn a_weight_is_kept_beside_what_else_is_said_of_a_node() {
    let world = World::memory();
    let map = create(&world, "home").await;
    map.add_node(&node(1, "a", "a:1")).await.unwrap();
    map.set_node_weight(NodeId(1), 0).await.unwrap();
    let until = Timestamp::new(200, 0);
    map.set_node_maintenance(NodeId(1), Some(until))
        .await
        .unwrap();
    let found = map.node(NodeId(1)).await.unwrap().value;
    assert_eq!((found.weight, found.maintenance_until), (0, Some(until)));
    let refused = map.set_node_weight(NodeId(1), WEIGHT_MAX + 1).await;
    assert!(
        matches!(refused, Err(MapError::Invalid { .. })),
        "{refused:?}"
    );
    map.set_node_weight(NodeId(1), WEIGHT_NORMAL).await.unwrap();
    let found = map.node(NodeId(1)).await.unwrap().value;
    assert_eq!(found.weight, WEIGHT_NORMAL);
}

/// The map after a copy of it was put into an empty store.
#[tokio::test]
async fn a_copy_makes_the_map_again() {
    let world = World::memory();
    let map = create(&world, "home").await;
    map.add_node(&node(1, "a", "a:1")).await.unwrap();
    let volume = map
        .create_volume("v", Opaque::default(), Opaque::default())
        .await
        .unwrap();
    let owner = process(&world, 1, 5).await;
    map.announce(owner, &Sign::default()).await.unwrap();
    map.take_over(volume, owner, Epoch(0)).await.unwrap();
    let copy = map.copy("1.0").await.unwrap();
    let bytes = copy.encode();
    assert_eq!(MapCopy::decode(&bytes).as_ref(), Ok(&copy));

    let empty = World::memory();
    let promised = |_| Epoch(9);
    let above = MapGeneration(4);
    let made = copy
        .write_to(&empty.coordinator, &empty.env, above, promised)
        .await
        .unwrap();
    assert_eq!(made, MapGeneration(5));
    // A node that saw all that was there takes it, whatever its revision is.
    let high_water = Arc::new(MemoryHighWater::default());
    ClusterMap::open(
        Arc::clone(&world.coordinator),
        world.env.clone(),
        "home",
        high_water.clone(),
    )
    .await
    .unwrap()
    .remember()
    .unwrap();
    let open = || {
        let coordinator = Arc::clone(&empty.coordinator);
        ClusterMap::open(coordinator, empty.env.clone(), "home", high_water.clone())
    };
    let restored = open().await.unwrap();
    assert_eq!(restored.node_named("a").await.unwrap().value.id, NodeId(1));
    let (alive, _) = restored.alive().await.unwrap();
    assert!(alive.is_empty(), "who was alive says so again");
    let found = restored.volume(volume).await.unwrap();
    assert!(found.owner.is_none());
    let recovered = restored.recovered().await.unwrap();
    assert!(
        recovered.is_some_and(|recovered| recovered.logs.is_empty()),
        "it had no log yet"
    );
    assert_eq!(map.recovered().await.unwrap(), None);
    let later = process(&empty, 1, 6).await;
    let owned = restored.take_over(volume, later, Epoch(0)).await.unwrap();
    // Above all that disks promised.
    assert_eq!(owned.epoch, Epoch(9 + EPOCHS_SKIPPED + 1));
    // Again, over what is there.
    copy.write_to(&empty.coordinator, &empty.env, made, promised)
        .await
        .unwrap();
    let again = open().await.unwrap();
    assert_eq!(again.cluster().generation, MapGeneration(6));
    assert_eq!(again.volume(volume).await.unwrap().record.value.name, "v");
}

#[tokio::test]
async fn a_copy_that_is_damaged_is_refused() {
    let world = World::memory();
    let map = create(&world, "home").await;
    map.add_node(&node(1, "alpha", "a:1")).await.unwrap();
    let text = String::from_utf8(map.copy("1.0").await.unwrap().encode()).unwrap();
    let cases = [
        (text.clone(), None),
        (text.replace("alpha", "alphb"), Some(CopyError::Damaged)),
        (
            text.replace("\"version\": \"1.0\"", "\"version\": \"1.1\""),
            Some(CopyError::Damaged),
        ),
        (
            text.replacen("\"format\": 1", "\"format\": 2", 1),
            Some(CopyError::Format { found: 2 }),
        ),
    ];
    for (text, want) in cases {
        assert_eq!(MapCopy::decode(text.as_bytes()).err(), want);
    }
    for end in [0, 1, text.len() / 2, text.len() - 3] {
        let cut = MapCopy::decode(&text.as_bytes()[..end]);
        assert!(matches!(cut, Err(CopyError::NoCopy(_))), "{end}: {cut:?}");
    }
}

#[tokio::test]
async fn another_clusters_map_is_refused() {
    let world = World::memory();
    let high_water = Arc::new(MemoryHighWater::default());
    for (name, want) in [("a", true), ("b", false)] {
        let coordinator = Arc::clone(&world.coordinator);
        let created = ClusterMap::create_cluster(
            coordinator,
            world.env.clone(),
            ClusterId(if want { 7 } else { 8 }),
            name,
            high_water.clone(),
        );
        match created.await {
            Ok(_) => assert!(want),
            Err(MapError::OtherCluster { .. }) => assert!(!want),
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_volume_with_a_missing_part_names_it() {
    let world = World::memory();
    let map = create(&world, "home").await;
    let volume = map
        .create_volume("v", Opaque::default(), Opaque::default())
        .await
        .unwrap();
    let key: Key = map.keys().epoch(volume);
    let txn = Txn {
        then: vec![Op::delete(key)],
        ..Txn::default()
    };
    world.done(txn).await;
    let error = map.volume(volume).await.unwrap_err();
    assert!(error.to_string().contains("epoch"), "{error}");
}
