//! A log device hangs for a while: the log goes on without it, and returns to it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_testkit::Pace;
use tokio::sync::Semaphore;

use super::*;

/// The next durable writes to log files, up to a number, wait for permission.
struct Silent {
    count: AtomicU32,
    gate: Arc<Semaphore>,
}

impl Silent {
    fn next(disk: &MemDisk, count: u32) -> Arc<Self> {
        let silent = Arc::new(Self {
            count: AtomicU32::new(count),
            gate: Arc::new(Semaphore::new(0)),
        });
        disk.pace_with(silent.clone());
        silent
    }

    fn let_go(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.gate.add_permits(1000);
    }
}

impl Pace for Silent {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        if kind != OpKind::WriteDurable || !name.contains("log.") {
            return None;
        }
        let take = |count: u32| count.checked_sub(1);
        let taken = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let gate = self.gate.clone();
        taken.is_ok().then(|| {
            let pass = async move { drop(gate.acquire().await) };
            Box::pin(pass) as BoxFuture<()>
        })
    }
}

async fn run() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}

/// Submits a change, and returns the time until it is durable, in steps of 100 ms.
async fn commit(world: &TestWorld, store: &Arc<MetaStore>, number: u64) -> u32 {
    let ticket = store.submit(put(number));
    for waited in 0..100 {
        run().await;
        if store.is_durable(ticket) {
            return waited;
        }
        world.clock.advance(Duration::from_millis(100));
    }
    panic!("{number} does not become durable");
}

fn log_disks(store: &MetaStore) -> Vec<u128> {
    store.stats().log_disks.iter().map(|id| id.0).collect()
}

async fn expect(world: &TestWorld, copies: usize, disks: Disks, numbers: std::ops::Range<u64>) {
    let (store, _) = open(world, copies, disks).await;
    for number in numbers {
        let found = store.live().get(&Key::inode(Ino(number))).expect("reads");
        assert!(found.is_some(), "{number} was acknowledged");
    }
    store.abort().await;
}

/// Each change used to wait up to 30 s, until the disk was known to hang.
#[test]
fn a_silent_disk_holds_up_one_group_for_half_a_second() {
    block_on(async {
        // With and without a prepared next file, on that disk, too.
        for (disk_count, before) in [(2, 1), (2, 8), (3, 1), (3, 8), (5, 1), (5, 8)] {
            let (world, pool) = (TestWorld::new(1), Pool::new(disk_count));
            let store = create(&world, 3, pool.present()).await;
            for number in 0..before {
                assert_eq!(commit(&world, &store, 10 - number).await, 0);
            }
            let silent = Silent::next(&pool.disks[1], u32::MAX);
            // Another half second for writing the header to the disk, if there are not as many copies without it.
            let waited = commit(&world, &store, 11).await;
            assert!((5..=11).contains(&waited), "{disk_count}: {waited}");
            for number in 12..30 {
                assert_eq!(commit(&world, &store, number).await, 0, "{disk_count}");
            }
            assert!(!log_disks(&store).contains(&2));
            assert_eq!(log_disks(&store).len(), 3.min(disk_count - 1));
            assert_eq!(store.stats().failed_disks, []);
            silent.let_go();
            store.close().await.expect("closes");
            expect(&world, 3, pool.present(), 10..30).await;
        }
    });
}

#[test]
fn a_disk_that_answers_again_gets_the_log_again_after_a_rest() {
    block_on(async {
        let (world, mut pool) = (TestWorld::new(1), Pool::new(2));
        let store = create(&world, 2, pool.present()).await;
        let mut number = 10;
        for (time, rest_seconds) in [5, 10, 20].into_iter().enumerate() {
            let silent = Silent::next(&pool.disks[1], u32::MAX);
            commit(&world, &store, number).await;
            assert_eq!(log_disks(&store), [1], "{time}");
            assert!(store.stats().is_degraded());
            silent.let_go();
            run().await;
            for _ in 0..rest_seconds {
                number += 1;
                commit(&world, &store, number).await;
                assert_eq!(log_disks(&store), [1], "{time}");
                world.clock.advance(Duration::from_secs(1));
            }
            // This also happens if nobody writes.
            run().await;
            assert_eq!(log_disks(&store), [1, 2], "{time}");
            assert!(!store.stats().is_degraded());
            number += 1;
        }
        // The disk has everything that was written without it.
        pool.crash(Crash::LoseUnsynced, 7);
        pool.missing.insert(0);
        expect(&world, 2, pool.present(), 10..number).await;
    });
}

/// A log that asked for an empty group at each check, as fast as it could, while the hold kept all of them back.
#[test]
fn a_disk_that_has_rested_is_taken_back_when_nobody_holds_the_store() {
    block_on(async {
        for waiting_count in [0, 1] {
            let (world, pool) = (TestWorld::new(1), Pool::new(2));
            let store = create(&world, 2, pool.present()).await;
            let silent = Silent::next(&pool.disks[1], u32::MAX);
            commit(&world, &store, 10).await;
            silent.let_go();
            run().await;
            let held = store.hold();
            let before = store.last_ticket();
            for number in 0..waiting_count {
                store.submit(put(11 + number));
            }
            for _ in 0..10 {
                world.clock.advance(Duration::from_secs(1));
                run().await;
            }
            assert_eq!(log_disks(&store), [1]);
            assert_eq!(store.last_ticket().0.0 - before.0.0, 1);
            drop(held);
            run().await;
            assert_eq!(log_disks(&store), [1, 2]);
            store.close().await.expect("closes");
            expect(&world, 2, pool.present(), 10..11 + waiting_count).await;
        }
    });
}

/// The late write completes later, or never: the disk does not start alone, and its record does no harm.
#[test]
fn a_disk_that_the_log_left_because_it_was_silent_is_not_enough() {
    for lands in [false, true] {
        block_on(async {
            let (world, mut pool) = (TestWorld::new(1), Pool::new(2));
            let store = create(&world, 2, pool.present()).await;
            commit(&world, &store, 10).await;
            // Only this write: the header after it arrives.
            let silent = Silent::next(&pool.disks[1], 1);
            for number in 11..20 {
                commit(&world, &store, number).await;
            }
            assert_eq!(log_disks(&store), [1]);
            if lands {
                silent.let_go();
                run().await;
            }
            pool.crash(Crash::LoseUnsynced, 7);
            drop(store);
            let alone = |disk: usize| {
                let missing = BTreeSet::from([1 - disk]);
                present(&pool.disks, &missing)
            };
            let opened = MetaStore::open(world.env.clone(), settings(2), VOLUME, alone(1)).await;
            let refused = opened.map(|_| ()).expect_err("it lacks what came after");
            assert!(
                matches!(refused, MetaError::TooManyMissing { .. }),
                "{refused}"
            );
            expect(&world, 2, alone(0), 10..20).await;
            expect(&world, 2, pool.present(), 10..20).await;
        });
    }
}

/// No other disk could replace it, so the log waits.
#[test]
fn the_only_disk_is_waited_for() {
    block_on(async {
        let (world, pool) = (TestWorld::new(1), Pool::new(1));
        let store = create(&world, 2, pool.present()).await;
        let silent = Silent::next(&pool.disks[0], u32::MAX);
        let ticket = store.submit(put(10));
        for _ in 0..100 {
            run().await;
            world.clock.advance(Duration::from_millis(100));
        }
        assert!(!store.is_durable(ticket));
        silent.let_go();
        store.durable(ticket).await.expect("durable");
        assert_eq!(log_disks(&store), [1]);
        store.close().await.expect("closes");
    });
}

/// The header of a late file says that the disk has everything, and is written after all.
#[test]
fn a_disk_that_was_late_when_the_log_came_back_to_it_is_not_enough() {
    for lands in [false, true] {
        block_on(async {
            let (world, mut pool) = (TestWorld::new(1), Pool::new(2));
            let store = create(&world, 2, pool.present()).await;
            commit(&world, &store, 10).await;
            let silent = Silent::next(&pool.disks[1], u32::MAX);
            commit(&world, &store, 11).await;
            silent.let_go();
            run().await;
            let silent = Silent::next(&pool.disks[1], 1);
            world.clock.advance(Duration::from_secs(5));
            for number in 12..20 {
                commit(&world, &store, number).await;
            }
            assert_eq!(log_disks(&store), [1]);
            if lands {
                silent.let_go();
                run().await;
            }
            pool.crash(Crash::LoseUnsynced, 7);
            drop(store);
            let alone = |disk: usize| {
                let missing = BTreeSet::from([1 - disk]);
                present(&pool.disks, &missing)
            };
            let opened = MetaStore::open(world.env.clone(), settings(2), VOLUME, alone(1)).await;
            let refused = opened.map(|_| ()).expect_err("it lacks what came after");
            assert!(
                matches!(refused, MetaError::TooManyMissing { .. }),
                "{refused}"
            );
            expect(&world, 2, alone(0), 10..20).await;
            expect(&world, 2, pool.present(), 10..20).await;
        });
    }
}

/// Without space for another file, the rest of the file that a disk was dropped from gets no records: that disk has no
/// header yet that says so.
#[test]
fn a_group_waits_until_a_disk_that_failed_can_be_told() {
    block_on(async {
        let (world, mut pool) = (TestWorld::new(1), Pool::new(2));
        let store = create(&world, 2, pool.present()).await;
        commit(&world, &store, 10).await;
        pool.disks[0].inject(FaultRule {
            kind: Some(OpKind::Create),
            name_part: "log.".to_owned(),
            skip: 0,
            // Nor for a shorter one.
            times: 2,
            fault: Fault::Full,
        });
        pool.disks[1].fail_nth(OpKind::WriteDurable, 0, Fault::Io);
        let ticket = store.submit(put(11));
        run().await;
        assert!(!store.is_durable(ticket), "there is no space for a file");
        for _ in 0..50 {
            world.clock.advance(Duration::from_millis(100));
            run().await;
        }
        assert!(store.is_durable(ticket));
        assert_eq!(log_disks(&store), [1]);
        pool.crash(Crash::LoseUnsynced, 7);
        drop(store);
        pool.missing.insert(0);
        let opened = MetaStore::open(world.env.clone(), settings(2), VOLUME, pool.present()).await;
        let refused = opened.map(|_| ()).expect_err("it lacks what came after");
        assert!(
            matches!(refused, MetaError::TooManyMissing { .. }),
            "{refused}"
        );
    });
}

#[test]
fn a_disk_that_rests_is_used_when_no_other_is_left() {
    block_on(async {
        let (world, pool) = (TestWorld::new(1), Pool::new(2));
        let store = create(&world, 2, pool.present()).await;
        let silent = Silent::next(&pool.disks[1], u32::MAX);
        commit(&world, &store, 10).await;
        assert_eq!(log_disks(&store), [1]);
        silent.let_go();
        run().await;
        pool.disks[0].inject(FaultRule {
            kind: Some(OpKind::WriteDurable),
            name_part: "log.".to_owned(),
            skip: 0,
            times: u64::MAX,
            fault: Fault::Io,
        });
        commit(&world, &store, 11).await;
        assert_eq!(log_disks(&store), [2]);
        store.abort().await;
    });
}

/// A store opened in its place meets no late write.
#[test]
fn a_store_that_is_closed_waits_for_a_silent_disk() {
    block_on(async {
        let (world, pool) = (TestWorld::new(1), Pool::new(2));
        let store = create(&world, 2, pool.present()).await;
        let silent = Silent::next(&pool.disks[1], 1);
        commit(&world, &store, 10).await;
        let closing = tokio::spawn({
            let store = store.clone();
            async move { store.close().await }
        });
        for _ in 0..100 {
            world.clock.advance(Duration::from_millis(100));
            run().await;
        }
        assert!(!closing.is_finished(), "a write is on its way to the disk");
        silent.let_go();
        closing.await.expect("ends").expect("closes");
    });
}

#[test]
fn a_disk_whose_late_answer_is_an_error_has_failed() {
    block_on(async {
        let (world, pool) = (TestWorld::new(1), Pool::new(2));
        let store = create(&world, 2, pool.present()).await;
        let silent = Silent::next(&pool.disks[1], u32::MAX);
        commit(&world, &store, 10).await;
        assert_eq!(store.stats().failed_disks, []);
        pool.disks[1].fail_all();
        silent.let_go();
        run().await;
        assert_eq!(store.stats().failed_disks, [DiskId(2)]);
        store.abort().await;
    });
}
