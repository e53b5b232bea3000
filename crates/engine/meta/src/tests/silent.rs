//! A disk of the log answers nothing for a while: the log goes on without it, and goes back to it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_testkit::Pace;
use tokio::sync::Semaphore;

use super::*;

/// So many durable writes to log files, from now on, wait until they are let go.
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

/// Submits a change; how long it takes until it is durable, in steps of 100 ms.
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
        let found = store.get(&Key::inode(Ino(number))).expect("reads");
        assert!(found.is_some(), "{number} was acknowledged");
    }
    store.abort().await;
}

/// Each change waited for it until it was known to hang, for 30 s.
#[test]
fn a_silent_disk_holds_up_one_group_for_half_a_second() {
    block_on(async {
        for disk_count in [2, 3, 5] {
            let (world, pool) = (TestWorld::new(1), Pool::new(disk_count));
            let store = create(&world, 3, pool.present()).await;
            assert_eq!(commit(&world, &store, 10).await, 0);
            let silent = Silent::next(&pool.disks[1], u32::MAX);
            // Another half for telling the disk, if as many copies cannot be had without it.
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
            // Also if nobody writes.
            run().await;
            assert_eq!(log_disks(&store), [1, 2], "{time}");
            assert!(!store.stats().is_degraded());
            number += 1;
        }
        // It has all that was written without it.
        pool.crash(Crash::LoseUnsynced, 7);
        pool.missing.insert(0);
        expect(&world, 2, pool.present(), 10..number).await;
    });
}

/// The write that was not waited for lands later, or never: the disk does not take itself for enough, and what it has
/// harms nothing.
#[test]
fn a_disk_that_the_log_left_because_it_was_silent_is_not_enough() {
    for lands in [false, true] {
        block_on(async {
            let (world, mut pool) = (TestWorld::new(1), Pool::new(2));
            let store = create(&world, 2, pool.present()).await;
            commit(&world, &store, 10).await;
            // This one only: what it is told next arrives.
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

/// Nobody else could take its place, so there is nothing to gain.
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
