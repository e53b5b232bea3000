//! Random lives of a volume, with power cuts at any moment.

use super::*;

/// One life of a volume: work, crashes, restarts, disks that fail and return.
async fn live(seed: u64, disk_count: usize, copies: usize) {
    let world = TestWorld::new(seed);
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut pool = Pool::new(disk_count);
    for (index, disk) in pool.disks.iter().enumerate() {
        disk.yield_at_random(seed + index as u64, 3);
    }
    let mut model = Model::new(seed);
    let mut store = MetaStore::create(world.env.clone(), settings(copies), VOLUME, pool.present())
        .await
        .expect("creates");
    let mut ids = BTreeSet::new();
    for _ in 0..60 {
        match rng.below(20) {
            0..=11 => {
                // Sometimes more than one group takes.
                let count = if rng.below(6) == 0 { 60 } else { rng.below(6) };
                for _ in 0..count {
                    model.submit(&store);
                }
                assert!(ids.insert((0, store.allocate_ino().0)));
                assert!(ids.insert((1, store.allocate_segment().0)));
                for _ in 0..rng.below(10) {
                    tokio::task::yield_now().await;
                }
                model.compare(&store);
            }
            12..=14 => assert!(model.wait(&store).await),
            15 => store.flush().await.expect("flushes"),
            16 => store.ship().await.expect("ships"),
            17 => {
                store.close().await.expect("closes");
                assert_eq!(store.submit(Batch::new()), Ticket::REFUSED);
                assert!(matches!(
                    store.durable(Ticket::REFUSED).await,
                    Err(MetaError::Closed)
                ));
                model.durable = model.history.len() - 1;
                let (opened, recovered) =
                    MetaStore::open(world.env.clone(), settings(copies), VOLUME, pool.present())
                        .await
                        .expect("opens");
                assert_eq!(recovered.replayed_entries, 0);
                store = opened;
                model.recovered(&store, &recovered);
            }
            _ => {
                let mode = Crash::ALL[rng.below(3) as usize];
                pool.crash(mode, rng.below(1 << 40));
                store.abort().await;
                if !pool.missing.is_empty() {
                    // All disks are back, some of them stale; redundancy is restored before more are lost.
                    pool.missing.clear();
                    store = reopen(&world, &pool, &mut model, copies).await;
                    store.ship().await.expect("ships");
                    assert!(!store.stats().copies_missing, "{:?}", store.stats());
                    pool.crash(mode, rng.below(1 << 40));
                    store.abort().await;
                }
                for _ in 0..rng.below(copies as u64) {
                    pool.missing.insert(rng.below(disk_count as u64) as usize);
                }
                store = reopen(&world, &pool, &mut model, copies).await;
            }
        }
    }
    store.abort().await;
}

#[test]
fn a_volume_lives_through_crashes_and_lost_disks() {
    let first = std::env::var("CAIRN_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds = first.map_or(0..40, |seed: u64| seed..seed + 1);
    for seed in seeds {
        for (disks, copies) in [(1, 1), (2, 2), (4, 3), (5, 3), (6, 2)] {
            println!("seed {seed}, {disks} disks, {copies} copies");
            block_on(live(seed, disks, copies));
        }
    }
}

/// A workload is recorded once; then the power goes at any operation, and any two disks are lost.
#[test]
fn any_two_of_four_disks_may_go_at_any_moment() {
    let pool = Pool::new(4);
    let recorder = Recorder::new(&pool.disks);
    for (index, disk) in pool.disks.iter().enumerate() {
        disk.yield_at_random(index as u64, 3);
    }
    let mut acknowledged = Vec::new();
    let model = block_on(async {
        let world = TestWorld::new(3);
        let mut model = Model::new(3);
        let store = MetaStore::create(world.env.clone(), settings(3), VOLUME, pool.present())
            .await
            .expect("creates");
        acknowledged.push((recorder.op_count(), 0));
        for round in 0..60 {
            for _ in 0..3 {
                assert!(model.submit(&store));
            }
            assert!(model.wait(&store).await);
            acknowledged.push((recorder.op_count(), model.durable));
            if round % 17 == 9 {
                store.ship().await.expect("ships");
            }
        }
        store.close().await.expect("closes");
        let last = model.history.len() - 1;
        acknowledged.push((recorder.op_count(), last));
        model
    });
    let created = acknowledged[0].0;
    let step = ((recorder.op_count() - created) / 150).max(1);
    for index in (created..=recorder.op_count()).step_by(step) {
        let known = acknowledged.iter().rev().find(|(at, _)| *at <= index);
        let durable = known.map_or(0, |(_, number)| *number);
        for (first, second) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            let disks = recorder.crash_at(index, Crash::Random, index as u64);
            let missing = BTreeSet::from([first, second]);
            block_on(async {
                let world = TestWorld::new(index as u64);
                let opened = MetaStore::open(
                    world.env.clone(),
                    settings(3),
                    VOLUME,
                    present(&disks, &missing),
                );
                let (store, recovered) = opened
                    .await
                    .unwrap_or_else(|error| panic!("at {index} without {missing:?}: {error}"));
                let mut check = Model {
                    rng: Rng::new(1),
                    history: model.history.clone(),
                    tickets: model.tickets.clone(),
                    durable,
                };
                check.recovered(&store, &recovered);
                store.abort().await;
            });
        }
    }
}

/// As many files as there can be concurrent calls are made while the log hangs, and clients may know all of them. The
/// power goes, and no number is reused for another file.
#[test]
fn a_number_that_may_be_known_is_not_given_again() {
    const CALLS_MAX: u64 = 1024 * 256;
    block_on(async {
        let world = TestWorld::new(5);
        let pool = Pool::new(1);
        let store = create(&world, 1, pool.present()).await;
        let mut last = store.allocate_ino();
        for _ in 0..CALLS_MAX {
            last = store.allocate_ino();
        }
        store.abort().await;
        let (store, _) = open(&world, 1, pool.present()).await;
        assert!(store.allocate_ino() > last);
    });
}
