//! Disks that lack a part of the log, or of the state: they record that, and do not start alone.

use cairn_base::env::BoxFuture;
use cairn_testkit::Pace;
use tokio::sync::Semaphore;

use super::*;

async fn expect_refused(world: &TestWorld, disks: &[Arc<MemDisk>], missing: &[usize]) {
    let disks = present(disks, &missing.iter().copied().collect());
    let opened = MetaStore::open(world.env.clone(), settings(1), VOLUME, disks).await;
    match opened {
        Err(error) => assert!(
            matches!(error, MetaError::TooManyMissing { .. }),
            "without {missing:?}: {error}"
        ),
        Ok((store, _)) => {
            let found = [1, 2, 3].map(|number| store.live().get(&Key::inode(Ino(number))));
            panic!("opened without {missing:?}, and found {found:?}");
        }
    }
}

pub(super) async fn expect_all(store: &MetaStore, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        let found = store.live().get(&Key::inode(Ino(number))).expect("reads");
        assert!(found.is_some(), "{number} is gone");
    }
}

/// Two copies become one. The disk without a copy records that it is incomplete, even after starts have reused its
/// files.
#[test]
fn a_disk_that_the_log_left_for_fewer_copies_is_not_enough() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        store.durable(store.submit(put(1))).await.expect("durable");
        store.log().set_copies(1).await.expect("one copy");
        assert_eq!(store.stats().log_disks, [DiskId(1)]);
        store.durable(store.submit(put(2))).await.expect("durable");
        store.close().await.expect("closes");
        expect_refused(&world, &pool.disks, &[0]).await;
        for _ in 0..6 {
            let (store, _) = open(&world, 1, pool.present()).await;
            expect_all(&store, 1..=2).await;
            store.durable(store.submit(put(3))).await.expect("durable");
            store.close().await.expect("closes");
            expect_refused(&world, &pool.disks, &[0]).await;
        }
        // After reuse it counts like any other disk.
        let (store, _) = open(&world, 2, pool.present()).await;
        store.close().await.expect("closes");
        let (store, _) = open(&world, 2, present(&pool.disks, &BTreeSet::from([0]))).await;
        expect_all(&store, 1..=3).await;
        store.abort().await;
    });
}

/// As above, when a start lowers the number of copies.
#[test]
fn a_disk_that_a_start_leaves_for_fewer_copies_is_not_enough() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        store.durable(store.submit(put(1))).await.expect("durable");
        store.close().await.expect("closes");
        let (store, _) = open(&world, 1, pool.present()).await;
        store.durable(store.submit(put(2))).await.expect("durable");
        store.abort().await;
        expect_refused(&world, &pool.disks, &[0]).await;
        let (store, _) = open(&world, 1, pool.present()).await;
        expect_all(&store, 1..=2).await;
        store.abort().await;
    });
}

/// A disk that drained without a replacement is incomplete, too. The remaining disks do not need it.
#[test]
fn a_disk_that_was_retired_is_not_enough_and_not_missed() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        store.durable(store.submit(put(1))).await.expect("durable");
        store.log().retire_disk(DiskId(2)).await.expect("retires");
        store.durable(store.submit(put(2))).await.expect("durable");
        store.abort().await;
        expect_refused(&world, &pool.disks, &[0]).await;
        for copies in [2, 1] {
            let left = present(&pool.disks, &BTreeSet::from([1]));
            let (store, _) = open(&world, copies, left).await;
            expect_all(&store, 1..=2).await;
            store.abort().await;
        }
    });
}

/// The power goes at any operation while the number of copies is lowered. All disks together have everything, and the
/// incomplete ones record it. As many disks may be lost as before or after, so one of three.
#[test]
fn copies_are_lowered_in_one_step() {
    for (before, after) in [(2, 1), (3, 2)] {
        for mode in Crash::ALL {
            block_on(async {
                let world = TestWorld::new(1);
                let pool = Pool::new(3);
                let store = create(&world, before, pool.present()).await;
                store.durable(store.submit(put(1))).await.expect("durable");
                let recorder = Recorder::new(&pool.disks);
                store.log().set_copies(after).await.expect("fewer copies");
                let lowered = recorder.op_count();
                store.durable(store.submit(put(2))).await.expect("durable");
                let count = recorder.op_count();
                store.abort().await;
                for index in 0..=count {
                    let numbers = if index < count { 1..=1 } else { 1..=2 };
                    let mut sets = vec![BTreeSet::new()];
                    if after == 2 {
                        sets.extend((0..3).map(|disk| BTreeSet::from([disk])));
                    }
                    for missing in sets {
                        let disks = recorder.crash_at(index, mode, index as u64);
                        let (store, _) = open(&world, after, present(&disks, &missing)).await;
                        expect_all(&store, numbers.clone()).await;
                        store.abort().await;
                    }
                    if index >= lowered {
                        let disks = recorder.crash_at(index, mode, index as u64);
                        let missing: Vec<usize> = (0..after).collect();
                        expect_refused(&world, &disks, &missing).await;
                    }
                }
            });
        }
    }
}

/// A disk that fails while it gets its header stops nothing.
#[test]
fn a_disk_that_fails_when_the_log_leaves_it_does_not_stop_it() {
    for kind in [OpKind::Create, OpKind::WriteDurable, OpKind::SyncFolder] {
        block_on(async {
            let world = TestWorld::new(1);
            let pool = Pool::new(2);
            let store = create(&world, 2, pool.present()).await;
            store.durable(store.submit(put(1))).await.expect("durable");
            pool.disks[1].fail_nth(kind, 0, Fault::Io);
            store.log().set_copies(1).await.expect("one copy");
            store.durable(store.submit(put(2))).await.expect("durable");
            store.abort().await;
            let (store, _) = open(&world, 1, pool.present()).await;
            expect_all(&store, 1..=2).await;
            store.abort().await;
        });
    }
}

/// A disk that failed once, and got no writes since, records that it is incomplete, for a later start that finds it
/// alone.
#[test]
fn a_disk_that_the_log_left_for_an_error_is_not_enough() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        store.durable(store.submit(put(1))).await.expect("durable");
        pool.disks[1].fail_nth(OpKind::WriteDurable, 0, Fault::Io);
        store.durable(store.submit(put(2))).await.expect("durable");
        assert_eq!(store.stats().failed_disks, [DiskId(2)]);
        store.abort().await;
        expect_refused(&world, &pool.disks, &[0]).await;
        let (store, _) = open(&world, 2, present(&pool.disks, &BTreeSet::from([1]))).await;
        expect_all(&store, 1..=2).await;
        store.abort().await;
    });
}

/// As above, when a start cannot read the disk.
#[test]
fn a_disk_that_a_start_could_not_read_is_not_enough() {
    // Listing files, opening the first file, reading its header.
    for kind in [OpKind::List, OpKind::Open, OpKind::Read] {
        block_on(async {
            let world = TestWorld::new(1);
            let pool = Pool::new(2);
            let store = create(&world, 2, pool.present()).await;
            store.durable(store.submit(put(1))).await.expect("durable");
            store.abort().await;
            pool.disks[1].fail_nth(kind, 0, Fault::Io);
            let (store, _) = open(&world, 2, pool.present()).await;
            assert_eq!(store.stats().failed_disks, [DiskId(2)]);
            store.durable(store.submit(put(2))).await.expect("durable");
            store.abort().await;
            expect_refused(&world, &pool.disks, &[0]).await;
            let (store, _) = open(&world, 2, pool.present()).await;
            expect_all(&store, 1..=2).await;
            store.abort().await;
        });
    }
}

/// Holds all operations while it has no permits.
struct Gate(Arc<Semaphore>);

impl Pace for Gate {
    fn pause(&self, _: OpKind, _: &str) -> Option<BoxFuture<()>> {
        let gate = self.0.clone();
        Some(Box::pin(async move { drop(gate.acquire().await) }))
    }
}

/// A failed disk that cannot get its header is retried with later files. A disk that does not answer holds nothing up.
#[test]
fn a_disk_that_failed_is_told_later_and_holds_nobody_up() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        store.durable(store.submit(put(1))).await.expect("durable");
        pool.disks[1].fail_all();
        store.durable(store.submit(put(2))).await.expect("durable");
        pool.disks[1].clear_faults();
        let gate = Arc::new(Semaphore::new(0));
        pool.disks[1].pace_with(Arc::new(Gate(gate.clone())));
        for number in 3..50 {
            let ticket = store.submit(put(number));
            limits::settle(&world).await;
            assert!(store.is_durable(ticket), "{number}");
        }
        gate.add_permits(1);
        limits::settle(&world).await;
        store.abort().await;
        expect_refused(&world, &pool.disks, &[0]).await;
        let (store, _) = open(&world, 2, present(&pool.disks, &BTreeSet::from([1]))).await;
        expect_all(&store, 1..=49).await;
        store.abort().await;
    });
}

/// A disk without space for another log file has space for a header that says that the log goes on without it. The
/// other disk, which has everything, does not need it.
#[test]
fn a_disk_that_the_log_left_for_want_of_space_is_not_enough() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        let number = leave_for_want_of_space(&world, &pool, &store).await;
        assert_eq!(store.stats().failed_disks, []);
        assert!(store.stats().copies_missing);
        store.abort().await;
        pool.disks[1].remove("ballast").await.expect("removes");
        expect_refused(&world, &pool.disks, &[0]).await;
        let (store, _) = open(&world, 2, present(&pool.disks, &BTreeSet::from([1]))).await;
        expect_all(&store, 1..=number).await;
        store.abort().await;
    });
}

/// As above, with space again while the log goes on without the disk: the next file begins there only after the disk
/// has all earlier records.
#[test]
fn a_disk_with_space_again_is_not_enough() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(2);
        let store = create(&world, 2, pool.present()).await;
        let number = leave_for_want_of_space(&world, &pool, &store).await;
        pool.disks[1].remove("ballast").await.expect("removes");
        let last = number + 8;
        for number in number + 1..=last {
            store
                .durable(store.submit(put(number)))
                .await
                .expect("durable");
            limits::settle(&world).await;
        }
        assert_eq!(store.stats().log_disks, [DiskId(1)]);
        store.abort().await;
        expect_refused(&world, &pool.disks, &[0]).await;
        let (store, _) = open(&world, 2, present(&pool.disks, &BTreeSet::from([1]))).await;
        expect_all(&store, 1..=last).await;
        store.abort().await;
    });
}

/// The log goes on without the second disk, which is full. Returns the number of the last put.
async fn leave_for_want_of_space(world: &TestWorld, pool: &Pool, store: &MetaStore) -> u64 {
    limits::fill(&pool.disks[1], "ballast", 16 << 10).await;
    let mut number = 0;
    while store.stats().log_disks.len() == 2 {
        number += 1;
        assert!(number < 200, "it needs another file by now");
        store
            .durable(store.submit(put(number)))
            .await
            .expect("durable");
    }
    limits::settle(world).await;
    number
}

/// The power goes at any operation while copies are made on a disk without any, and then the other disk is away: an
/// incomplete disk does not start.
#[test]
fn copies_are_raised_in_one_step() {
    for is_first in [true, false] {
        for mode in Crash::ALL {
            block_on(async {
                let world = TestWorld::new(1);
                let pool = Pool::new(2);
                // The second disk is new, or it was full for a while.
                let (disks, before) = match is_first {
                    true => (present(&pool.disks, &BTreeSet::from([1])), 1),
                    false => (pool.present(), 2),
                };
                let store = create(&world, before, disks).await;
                let mut number = 1;
                if is_first {
                    store.durable(store.submit(put(1))).await.expect("durable");
                } else {
                    number = leave_for_want_of_space(&world, &pool, &store).await;
                    pool.disks[1].remove("ballast").await.expect("removes");
                    pool.disks[1].sync_folder("").await.expect("syncs");
                }
                let recorder = Recorder::new(&pool.disks);
                if is_first {
                    store
                        .log()
                        .add_disk(DiskId(2), pool.disks[1].clone(), crate::Preference::Last);
                }
                store.log().set_copies(2).await.expect("two copies");
                let raised = recorder.op_count();
                store.abort().await;
                let check = async |disks: &[Arc<MemDisk>], is_raised: bool, what: &str| {
                    let alone = present(disks, &BTreeSet::from([0]));
                    let env = world.env.clone();
                    match MetaStore::open(env, settings(2), VOLUME, alone).await {
                        Ok((store, _)) => {
                            expect_all(&store, 1..=number).await;
                            store.abort().await;
                        }
                        Err(error) => assert!(!is_raised, "{what}: {error}"),
                    }
                    let first = present(disks, &BTreeSet::from([1]));
                    let env = world.env.clone();
                    match MetaStore::open(env, settings(2), VOLUME, first).await {
                        Ok((store, _)) => {
                            expect_all(&store, 1..=number).await;
                            store.abort().await;
                        }
                        // The one copy may be on either of the two disks.
                        Err(error) => assert!(is_first && !is_raised, "{what}: {error}"),
                    }
                };
                for index in 0..=raised {
                    let what = format!("{mode:?}, before {}", recorder.describe(index));
                    let crash = || recorder.crash_at(index, mode, index as u64);
                    check(&crash(), index == raised, &what).await;
                    // A start with both makes the copies, too, and may be cut short in that way.
                    if mode == Crash::Random && index % 3 == 0 {
                        let disks = crash();
                        let recorder = Recorder::new(&disks);
                        let both = present(&disks, &BTreeSet::new());
                        let (store, _) = open(&world, 2, both).await;
                        let opened = recorder.op_count();
                        store.abort().await;
                        for index in 0..=opened {
                            let disks = recorder.crash_at(index, Crash::Random, index as u64);
                            check(&disks, index == opened, "a start").await;
                            // Then the start after that one: a complete disk starts alone as before.
                            if !is_first && index % 3 == 0 {
                                let disks = recorder.crash_at(index, Crash::Random, index as u64);
                                let recorder = Recorder::new(&disks);
                                let both = present(&disks, &BTreeSet::new());
                                let (store, _) = open(&world, 2, both).await;
                                let opened = recorder.op_count();
                                store.abort().await;
                                for index in 0..=opened {
                                    let disks =
                                        recorder.crash_at(index, Crash::Random, index as u64);
                                    check(&disks, index == opened, "a second start").await;
                                }
                            }
                        }
                    }
                }
            });
        }
    }
}

/// The disk of the working state drains. The store is opened on others, and that disk records it, whether it is found
/// alone or with older ones.
#[test]
fn a_disk_that_the_state_left_is_not_enough() {
    block_on(async {
        for (all, copies) in [(2, 1), (3, 2), (3, 1)] {
            let world = TestWorld::new(1);
            let pool = Pool::new(all);
            let recorder = Recorder::new(&pool.disks);
            // Like a caller that wants one more copy before it closes the store.
            let store = create(&world, copies + 1, pool.present()).await;
            store.durable(store.submit(put(1))).await.expect("durable");
            assert_eq!(store.log().primary_disk(), DiskId(1));
            store.close().await.expect("closes");
            drop(store);
            let draining = present(&pool.disks, &(1..all).collect());
            let staying = present(&pool.disks, &BTreeSet::from([0]));
            let (env, settings) = (world.env.clone(), settings(copies));
            let opened = MetaStore::open_without(env, settings, VOLUME, staying, draining).await;
            let (store, _) = opened.expect("opens");
            assert_ne!(store.log().primary_disk(), DiskId(1));
            assert!(store.log().uses_disk(DiskId(1)) && !store.log().keeps_on_disk(DiskId(1)));
            store.durable(store.submit(put(2))).await.expect("durable");
            let early = recorder.crash_at(recorder.op_count(), Crash::LoseUnsynced, 1);
            store.log().retire_disk(DiskId(1)).await.expect("retires");
            assert!(!store.log().uses_disk(DiskId(1)));
            let stats = store.stats();
            assert!(!stats.log_disks.contains(&DiskId(1)) && !stats.copies_missing);
            store.durable(store.submit(put(3))).await.expect("durable");
            store.abort().await;
            drop(store);
            let missing: Vec<usize> = (1..all).collect();
            for (disks, last) in [(&early, 2), (&pool.disks, 3)] {
                expect_refused(&world, disks, &missing).await;
                let staying = present(disks, &BTreeSet::from([0]));
                let (store, _) = open(&world, copies, staying).await;
                expect_all(&store, 1..=last).await;
                store.abort().await;
            }
        }
    });
}
