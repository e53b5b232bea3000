//! Rules of a log on several nodes, each with the planted bug that breaks it.

use cairn_base::planted::{Bug, is_noticed_by};

use super::*;

/// More records than one log file holds.
const RECORD_COUNT: u64 = 40;
/// Space that an owner leaves free on each disk of a [`Cluster`].
const LAST_ROOM_BYTES: u64 = (1 << 30) / 256 / 4;

async fn write(store: &MetaStore, ino: u64) {
    let ticket = store.submit(put(ino));
    store.durable(ticket).await.expect("durable");
}

fn has_all(store: &MetaStore, last: u64) {
    for ino in 1..=last {
        let found = store.live().get(&Key::inode(Ino(ino))).expect("reads");
        assert!(found.is_some(), "inode {ino}");
    }
}

/// Fails where a takeover of an incomplete log would wait for ever.
async fn takes_over(cluster: &Cluster, node: usize) -> Arc<MetaStore> {
    let late = cluster.clock().sleep(Duration::from_secs(120));
    match select(Box::pin(cluster.take_over(node)), late).await {
        Either::Left((taken, _)) => taken.expect("takes over").0,
        Either::Right(_) => panic!("node {node} waits for what is gone"),
    }
}

/// Another owner takes the volume before a takeover is agreed on: the takeover fails, and the log is unchanged.
fn what_is_not_agreed_changes_nothing() {
    block_on(async {
        let cluster = Cluster::new(21, 3, 2).await;
        let work = async {
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            for ino in 1..=RECORD_COUNT {
                write(&store, ino).await;
            }
            store.abort().await;
            let late = cluster.seat(1);
            drop(cluster.seat(2));
            let state: Arc<dyn Disk> = cluster.states.lock()[1].clone();
            let disks = vec![(DiskId(100), state)];
            let env = cluster.world.env.clone();
            let taken = MetaStore::take_over(env, settings(1), late, disks).await;
            assert!(taken.is_err(), "somebody else owns it");
            // Its background work is done by then.
            cluster.clock().sleep(Duration::from_secs(1)).await;
            let store = takes_over(&cluster, 2).await;
            has_all(&store, RECORD_COUNT);
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}

#[test]
fn a_takeover_that_is_not_agreed_serves_nothing_and_removes_nothing() {
    what_is_not_agreed_changes_nothing();
    for bug in [
        Bug::ServedBeforeTakeoverIsAgreed,
        Bug::LogFileRemovedBeforeItIsAgreed,
    ] {
        let test: fn() = what_is_not_agreed_changes_nothing;
        assert!(is_noticed_by(bug, test), "{bug:?}");
    }
}

/// Two nodes with two disks each, and three copies are wanted: a second disk of a node improves no protection.
fn copies_are_on_distinct_nodes() {
    block_on(async {
        let mut cluster = Cluster::new(22, 4, 3).await;
        cluster.ship_bytes = 1 << 30;
        cluster.nodes.lock().disks_per_node = 2;
        let work = async {
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            for ino in 1..=RECORD_COUNT {
                write(&store, ino).await;
            }
            let list = || cluster.agreed.lock().list.clone();
            assert!(list().ensembles.len() > 1, "some of it is sealed");
            // Long enough for several checks whether there could be more copies.
            for _ in 0..20 {
                cluster.clock().sleep(Duration::from_secs(1)).await;
                for part in list().ensembles {
                    let nodes = part.disks.iter().map(|disk| (disk.0 - 1) / 2);
                    let nodes: BTreeSet<u128> = nodes.collect();
                    assert_eq!(nodes.len(), part.disks.len(), "{part:?}");
                }
            }
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}

#[test]
fn a_sealed_part_gets_no_second_copy_on_a_node() {
    copies_are_on_distinct_nodes();
    let test: fn() = copies_are_on_distinct_nodes;
    assert!(is_noticed_by(Bug::WidenedOnOneNode, test));
}

/// Nodes come back, and their disks fail once while they get the ranges sealed meanwhile. The list names them when they
/// have these, and the other nodes may be lost then.
#[test]
fn copies_are_named_when_they_are_there() {
    for seed in 23..26 {
        block_on(async {
            let cluster = Cluster::new(seed, 4, 3).await;
            let work = async {
                let (store, _) = cluster.take_over(0).await.expect("takes over");
                write(&store, 1).await;
                let lost = [2, 3];
                lost.iter().for_each(|index| cluster.lose(*index));
                for ino in 2..=6 {
                    write(&store, ino).await;
                }
                for index in lost {
                    cluster.bring_back(index, Crash::LoseUnsynced).await;
                }
                let list = || cluster.agreed.lock().list.clone();
                for part in list().ensembles {
                    let path = shard_path(ShardName::of_log(VOLUME, part.number));
                    let name = path.rsplit('/').next().unwrap_or_default();
                    for index in lost {
                        cluster.nodes.lock().disks[index].inject(FaultRule {
                            kind: Some(OpKind::Write),
                            name_part: name.to_owned(),
                            skip: 0,
                            times: 1,
                            fault: Fault::Io,
                        });
                    }
                }
                let copies = || {
                    let list = list();
                    let counts = list.ensembles.iter().map(|part| part.disks.len());
                    counts.min().unwrap_or(0)
                };
                let mut looks = 0;
                while copies() < 3 || store.stats().is_degraded() {
                    looks += 1;
                    assert!(looks < 1000, "{:?}", list());
                    cluster.clock().sleep(Duration::from_millis(100)).await;
                }
                store.abort().await;
                [0, 1].iter().for_each(|index| cluster.lose(*index));
                let store = takes_over(&cluster, 2).await;
                has_all(&store, 6);
                store.abort().await;
            };
            cluster.while_time_passes(work).await;
        });
    }
}

/// Disks have little more than the last room, which the next owner needs for its log: no copy of the state takes it.
fn a_copy_of_the_state_leaves_the_last_room() {
    block_on(async {
        let mut cluster = Cluster::new(27, 3, 2).await;
        cluster.ship_bytes = 1 << 30;
        let work = async {
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            let mut rng = Rng::new(27);
            for ino in 1..=300 {
                let mut batch = Batch::new();
                batch.put(Key::inode(Ino(ino)), rng.bytes(1000));
                let ticket = store.submit(batch);
                store.durable(ticket).await.expect("durable");
            }
            let left_bytes = LAST_ROOM_BYTES + (64 << 10);
            for disk in cluster.disks() {
                limits::fill(&disk, "ballast", left_bytes).await;
            }
            // It finds no room, at once or after a while.
            let clock = cluster.clock();
            let late = clock.sleep(Duration::from_secs(60));
            let _ = select(Box::pin(store.ship()), late).await;
            for disk in cluster.disks() {
                let free_bytes = disk.space().expect("tells").free_bytes;
                assert!(free_bytes >= LAST_ROOM_BYTES, "{free_bytes} bytes are left");
            }
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}

#[test]
fn a_copy_of_the_state_does_not_take_the_last_room() {
    a_copy_of_the_state_leaves_the_last_room();
    let test: fn() = a_copy_of_the_state_leaves_the_last_room;
    assert!(is_noticed_by(Bug::StateCopyTakesTheLastRoom, test));
}
