//! Full disks when a volume changes its owner: it is still served, and accepts changes.

use std::time::Duration;

use super::ensembles::Cluster;
use super::*;

const MIB: u64 = 1 << 20;
/// A short log file, with its overhead on the disk.
const SHORT_FILE_BYTES: u64 = 32 << 10;
/// A log file, with its overhead.
const PART_BYTES: u64 = 72 << 10;
/// More records than one log file holds.
const RECORD_COUNT: u64 = 40;

async fn write<L: CommitLog>(store: &MetaStore<L>, ino: u64) {
    store
        .durable(store.submit(put(ino)))
        .await
        .expect("durable");
}

fn has_all<L: CommitLog>(store: &MetaStore<L>, last: u64) {
    for ino in 1..=last {
        let found = store.live().get(&Key::inode(Ino(ino))).expect("reads");
        assert!(found.is_some(), "inode {ino}");
    }
}

async fn fill_all(cluster: &Cluster, left_bytes: u64) {
    for disk in cluster.disks() {
        limits::fill(&disk, "ballast", left_bytes).await;
    }
}

async fn empty_all(cluster: &Cluster) {
    for disk in cluster.disks() {
        disk.remove("ballast").await.expect("removes");
    }
}

/// The owner is lost while no disk has room for another copy of its log. The retained log stays in place. Only if too
/// few remaining disks have it is it copied, and the copy takes no more room than its records.
#[test]
fn a_volume_is_taken_over_where_no_disk_has_room_for_its_log() {
    let retained_bytes = (RECORD_COUNT + 8) * 4096 + 4 * SHORT_FILE_BYTES;
    // Nodes, copies, and free space of each disk: of those with the log, and of the others.
    let cases = [
        ("two others have it", 4, 3, [SHORT_FILE_BYTES; 2]),
        ("one other has it", 3, 2, [retained_bytes; 2]),
    ];
    for (name, node_count, copies, left_bytes) in cases {
        block_on(async {
            let cluster = Cluster::new(1, node_count, copies).await;
            let work = async {
                let (store, _) = cluster.take_over(0).await.expect("takes over");
                for ino in 1..=RECORD_COUNT {
                    write(&store, ino).await;
                }
                assert!(store.stats().log_start < LogPosition(3), "nothing was cut");
                let having = cluster.open_disks();
                let lost = having[0];
                for (index, disk) in cluster.disks().iter().enumerate() {
                    let left_bytes = left_bytes[usize::from(!having.contains(&index))];
                    limits::fill(disk, "ballast", left_bytes).await;
                }
                cluster.lose(lost);
                store.abort().await;
                let heir = (lost + 1) % node_count;
                let taken = cluster.take_over(heir).await;
                let (store, _) = taken.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(cluster.copies_there() >= 2, "{name}");
                has_all(&store, RECORD_COUNT);
                write(&store, RECORD_COUNT + 1).await;
                empty_all(&cluster).await;
                for ino in RECORD_COUNT + 2..=2 * RECORD_COUNT {
                    write(&store, ino).await;
                }
                store.abort().await;
                let (store, _) = cluster.take_over(heir).await.expect("takes over again");
                has_all(&store, 2 * RECORD_COUNT);
                store.abort().await;
            };
            cluster.while_time_passes(work).await;
        });
    }
}

/// Of two remaining disks, one has room for everything, and the other only for the parts that it lacks. The other has
/// no room for a copy of everything, nor for the leftovers of a try to make one.
#[test]
fn a_volume_is_taken_over_where_one_of_two_disks_has_room_for_what_it_lacks() {
    for seed in 10..20 {
        block_on(async {
            let cluster = Cluster::new(seed, 3, 2).await;
            let work = async {
                let (store, _) = cluster.take_over(0).await.expect("takes over");
                for ino in 1..=RECORD_COUNT {
                    write(&store, ino).await;
                }
                let having = cluster.open_disks();
                let (lost, nearly_full) = (having[0], having[1]);
                let (lacking, all) = cluster.parts_lacking_on(nearly_full);
                assert!(0 < lacking && lacking < all, "{lacking} of {all}");
                let room_bytes = lacking as u64 * PART_BYTES + SHORT_FILE_BYTES;
                limits::fill(&cluster.disks()[nearly_full], "ballast", room_bytes).await;
                cluster.lose(lost);
                store.abort().await;
                let taken = cluster.take_over((lost + 1) % 3).await;
                let (store, _) = taken.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert!(cluster.copies_there() >= 2, "seed {seed}");
                has_all(&store, RECORD_COUNT);
                write(&store, RECORD_COUNT + 1).await;
                store.abort().await;
            };
            cluster.while_time_passes(work).await;
        });
    }
}

/// Without any room a takeover fails, names the full disks, and changes nothing: the next one finds everything.
#[test]
fn a_takeover_without_any_room_ends_and_says_so() {
    block_on(async {
        let cluster = Cluster::new(2, 3, 2).await;
        let work = async {
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            write(&store, 1).await;
            store.abort().await;
            fill_all(&cluster, 0).await;
            let begun = cluster.now();
            let error = cluster.take_over(1).await.err().expect("no room");
            assert!(matches!(error, MetaError::LogFull { .. }), "{error}");
            assert!(error.to_string().contains("node2"), "{error}");
            let took = cluster.now().saturating_sub(begun);
            assert!(took < Duration::from_secs(30), "{took:?}");
            empty_all(&cluster).await;
            let (store, _) = cluster.take_over(1).await.expect("takes over");
            has_all(&store, 1);
            write(&store, 2).await;
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}

/// An owner whose log finds no room for another file reports that it is full, waits, and then completes the waiting
/// changes.
#[test]
fn a_log_that_finds_no_room_waits_and_goes_on() {
    block_on(async {
        let cluster = Cluster::new(3, 3, 2).await;
        let work = async {
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            fill_all(&cluster, 0).await;
            let last = 3 * RECORD_COUNT;
            let tickets: Vec<Ticket> = (1..=last).map(|ino| store.submit(put(ino))).collect();
            let mut numbers = (1..).map(|number| last + number);
            while !store.is_full() {
                // The first file has some room left.
                let ticket = store.submit(put(numbers.next().expect("endless")));
                let clock = cluster.clock();
                futures_util::future::select(
                    Box::pin(store.durable(ticket)),
                    clock.sleep(Duration::from_secs(5)),
                )
                .await;
            }
            empty_all(&cluster).await;
            for ticket in tickets {
                store.durable(ticket).await.expect("durable");
            }
            has_all(&store, last);
            store.abort().await;
            let (store, _) = cluster.take_over(1).await.expect("takes over");
            has_all(&store, last);
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}

/// The next owner may have to copy the retained log: with little room, the state is copied before the log grows too
/// large for that.
#[test]
fn a_log_retains_no_more_than_there_is_room_for() {
    block_on(async {
        let mut cluster = Cluster::new(5, 3, 2).await;
        cluster.ship_bytes = 1 << 30;
        let room_bytes = 8 * MIB;
        let work = async {
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            fill_all(&cluster, room_bytes).await;
            let last = 2 * room_bytes / 4096;
            for ino in 1..=last {
                write(&store, ino).await;
            }
            let stats = store.stats();
            assert!(stats.log_bytes < room_bytes, "{stats:?}");
            cluster.lose(cluster.open_disks()[0]);
            store.abort().await;
            let heir = cluster.open_disks()[1];
            let (store, _) = cluster.take_over(heir).await.expect("takes over");
            has_all(&store, last);
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}

/// A log that goes on leaves the last room of a disk: the next owner needs a file, too.
#[test]
fn a_log_that_goes_on_leaves_room_for_a_takeover() {
    block_on(async {
        let cluster = Cluster::new(4, 3, 2).await;
        let work = async {
            let (store, _) = cluster.take_over(0).await.expect("takes over");
            fill_all(&cluster, 2 * MIB).await;
            let mut last = 0;
            let is_refused = |last: u64| {
                let (store, clock) = (store.clone(), cluster.clock());
                async move {
                    let written = store.durable(store.submit(put(last)));
                    let late = clock.sleep(Duration::from_secs(30));
                    let either = futures_util::future::select(Box::pin(written), late).await;
                    matches!(either, futures_util::future::Either::Right(_))
                }
            };
            while last < 20 * RECORD_COUNT && !is_refused(last + 1).await {
                last += 1;
            }
            assert!(last > RECORD_COUNT);
            for disk in cluster.disks() {
                let free_bytes = disk.space().expect("tells").free_bytes;
                // The 256th part of a disk stays free for logs, a fourth of that for the next owner's.
                let least_bytes = (1 << 30) / 256 / 4;
                assert!(free_bytes >= least_bytes, "{free_bytes} bytes are left");
            }
            store.abort().await;
            let (store, _) = cluster.take_over(1).await.expect("takes over");
            has_all(&store, last);
            write(&store, last + 1).await;
            store.abort().await;
        };
        cluster.while_time_passes(work).await;
    });
}
