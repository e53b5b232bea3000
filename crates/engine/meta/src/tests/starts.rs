//! Interrupted starts, again and again, on disks that fail and return.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_base::Ino;
use cairn_testkit::{Crash, Fault, MemDisk, OpKind, Recorder, TestWorld};

use super::{Pool, VOLUME, block_on, create, present, put, settings};
use crate::{Key, MetaError, MetaStore};

/// Opens a volume without some of the disks.
async fn open_without(
    world: &TestWorld,
    disks: &[Arc<MemDisk>],
    copies: usize,
    missing: &[usize],
) -> Result<Arc<MetaStore>, MetaError> {
    let missing = missing.iter().copied().collect();
    let disks = present(disks, &missing);
    let opened = MetaStore::open(world.env.clone(), settings(copies), VOLUME, disks).await;
    opened.map(|(store, _)| store)
}

async fn expect(
    world: &TestWorld,
    disks: &[Arc<MemDisk>],
    copies: usize,
    missing: &[usize],
    numbers: &[u64],
) -> Arc<MetaStore> {
    let opened = open_without(world, disks, copies, missing).await;
    let store = opened.unwrap_or_else(|error| panic!("without {missing:?}: {error}"));
    for number in numbers {
        let found = store.live().get(&Key::inode(Ino(*number))).expect("reads");
        assert!(found.is_some(), "without {missing:?}: {number} is gone");
    }
    store
}

/// All sets of up to `count` missing disks.
fn subsets(disks: usize, count: usize) -> Vec<Vec<usize>> {
    let all = (0u32..1 << disks).filter(|set| set.count_ones() as usize <= count);
    let members = |set: u32| (0..disks).filter(|disk| set >> disk & 1 == 1).collect();
    all.map(members).collect()
}

/// Disks after a crash in the middle of a group: record 1 was acknowledged; record 2 is on one of the log's disks only
/// and was not.
async fn torn_group(world: &TestWorld, disk_count: usize, copies: usize) -> Pool {
    let mut pool = Pool::new(disk_count);
    let store = create(world, copies, pool.present()).await;
    store.durable(store.submit(put(1))).await.expect("durable");
    for disk in &pool.disks[1..copies] {
        disk.fail_nth(OpKind::WriteDurable, 0, Fault::LoseWrite);
    }
    store.durable(store.submit(put(2))).await.expect("durable");
    pool.crash(Crash::LoseUnsynced, 0);
    store.abort().await;
    pool
}

/// The power goes at any operation of a start, and at any operation of the next one. Each time as many disks are
/// missing as allowed, one of them perhaps the only one with the last record. All acknowledged records exist, no start
/// is refused, and the missing disks change nothing when they return.
#[test]
fn starts_that_are_cut_short_promise_nothing() {
    for (disk_count, copies) in [(3, 2), (4, 3)] {
        let away = subsets(disk_count, copies - 1);
        block_on(async {
            let world = TestWorld::new(1);
            let torn = torn_group(&world, disk_count, copies).await;
            let mut begun = vec![torn.disks];
            for round in 0..2 {
                let mut left = Vec::new();
                for (number, disks) in begun.iter().enumerate() {
                    let recorder = Recorder::new(disks);
                    let store = expect(&world, disks, copies, &[], &[1]).await;
                    let count = recorder.op_count();
                    store.abort().await;
                    // Every operation of the first start, and every third one of the later starts.
                    for index in (0..=count).step_by(1 + 2 * round) {
                        let seed = (number * 1000 + index) as u64;
                        let mode = Crash::ALL[seed as usize % Crash::ALL.len()];
                        let cut = || recorder.crash_at(index, mode, seed);
                        for missing in &away {
                            let disks = cut();
                            let store = expect(&world, &disks, copies, missing, &[1]).await;
                            // Number 3 may take the place of a record on a missing disk.
                            store.durable(store.submit(put(3))).await.expect("durable");
                            let mut pool = Pool {
                                disks,
                                missing: BTreeSet::new(),
                            };
                            pool.crash(Crash::LoseUnsynced, seed);
                            store.abort().await;
                            let back = expect(&world, &pool.disks, copies, &[], &[1, 3]).await;
                            back.abort().await;
                        }
                        if round == 0 {
                            left.push(cut());
                        }
                    }
                }
                begun = left;
            }
        });
    }
}

/// A start without one disk copies the records of that disk. If it is cut short, the next start must still refuse when
/// the disks with the only copies are missing.
#[test]
fn a_start_that_is_cut_short_forgets_no_disk() {
    block_on(async {
        let world = TestWorld::new(1);
        let mut pool = Pool::new(4);
        let store = create(&world, 2, pool.present()).await;
        for number in 1..4 {
            let ticket = store.submit(put(number));
            store.durable(ticket).await.expect("durable");
        }
        pool.crash(Crash::LoseUnsynced, 0);
        store.abort().await;
        let recorder = Recorder::new(&pool.disks);
        let store = expect(&world, &pool.disks, 2, &[1], &[1, 2, 3]).await;
        let count = recorder.op_count();
        store.abort().await;
        let mut refused_count = 0;
        for index in 0..=count {
            for mode in Crash::ALL {
                // Both disks of the log: more than may be lost, so the start is refused or finds everything.
                let disks = recorder.crash_at(index, mode, index as u64);
                match open_without(&world, &disks, 2, &[0, 1]).await {
                    Ok(store) => {
                        for number in 1..4 {
                            let found = store.live().get(&Key::inode(Ino(number))).expect("reads");
                            assert!(found.is_some(), "cut at {index}: {number} is gone");
                        }
                        store.abort().await;
                    }
                    Err(_) => refused_count += 1,
                }
            }
        }
        assert!(refused_count > 0);
    });
}
