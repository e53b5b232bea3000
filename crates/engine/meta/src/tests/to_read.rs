//! A volume that is opened read-only: everything durable is visible, nothing is written, every change is refused.

use std::path::{Path, PathBuf};

use super::folders::real_disks;
use super::*;
use crate::ReplayBudget;
use crate::snapshots::NewSnapshot;
use cairn_base::View;

/// Each file below a folder with its bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("reads") {
            let path = entry.expect("reads").path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let bytes = std::fs::read(&path).expect("reads");
                    found.insert(path, bytes);
                }
            }
        }
    }
    found
}

async fn refuses(store: &MetaStore, why: &str) {
    let before = store.last_ticket();
    assert!(store.is_durable(before), "readers wait for nothing");
    assert_eq!(store.submit(put(1)), Ticket::REFUSED);
    assert_eq!(store.last_ticket(), before);
    let error = store.durable(Ticket::REFUSED).await.expect_err("refused");
    assert!(
        matches!(&error, MetaError::Full(told) if told == why),
        "{error}"
    );
    assert!(store.is_full());
    assert_eq!(store.read_only(), Some(why));
    assert!(store.ship().await.is_err());
}

/// On folders, with RocksDB: with any part of the log in the state, and with any copy of the state.
#[test]
fn a_volume_on_folders_is_read_and_no_file_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime(2);
    let env = cairn_base::real::env(runtime.handle().clone());
    let disks = real_disks(folder.path(), &[]);
    let mut model = Model::new(5);
    runtime.block_on(async {
        let created = MetaStore::create(env.clone(), real_settings(3), VOLUME, disks.clone());
        let mut store = created.await.expect("creates");
        for round in 0..4 {
            for _ in 0..30 {
                assert!(model.submit(&store));
            }
            let snapshot = store
                .take_snapshot(NewSnapshot {
                    name: Bytes::from(format!("round {round}")),
                    taken: Timestamp::default(),
                    schedule: Bytes::new(),
                    undecided_group: 0,
                })
                .expect("a snapshot");
            let seen = visible(&store, &Key::everything().0, &Key::everything().1);
            for _ in 0..30 {
                assert!(model.submit(&store));
            }
            store.durable(store.last_ticket()).await.expect("durable");
            model.durable = model.history.len() - 1;
            match round {
                1 => store.flush().await.expect("flushes"),
                2 => store.ship().await.expect("ships"),
                _ => {}
            }
            store.abort().await;
            drop(store);
            if round == 2 {
                // The copies of the state on other disks are left.
                let primary = disks[0].1.folder().expect("a folder");
                let state = primary.join("volumes/00000007/state");
                std::fs::remove_dir_all(state).expect("removes");
            }
            let before = files(folder.path());
            for _ in 0..2 {
                let why = format!("round {round}");
                let opened = MetaStore::open_to_read(
                    env.clone(),
                    real_settings(3),
                    VOLUME,
                    disks.clone(),
                    Vec::new(),
                    why.clone(),
                );
                let (store, recovered) = opened.await.unwrap_or_else(|error| panic!("{error}"));
                model.recovered(&store, &recovered);
                let view = store.view(View::Snapshot(snapshot.0)).expect("a view");
                for (key, value) in seen.iter().filter(|(key, _)| key.is_versioned()) {
                    assert_eq!(view.get(key).expect("reads").as_ref(), Some(value));
                }
                refuses(&store, &why).await;
                store.abort().await;
            }
            assert!(files(folder.path()) == before, "a file has changed");
            let opened =
                MetaStore::open(env.clone(), real_settings(3), VOLUME, disks.clone()).await;
            let (opened, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
            model.recovered(&opened, &recovered);
            store = opened;
        }
        store.abort().await;
    });
}

/// On disks in memory that are full to the last byte.
#[test]
fn a_volume_on_full_disks_is_read() {
    for seed in 0..20 {
        block_on(async {
            let world = TestWorld::new(seed);
            let mut pool = Pool::new(3);
            let mut model = Model::new(seed);
            let store = create(&world, 2, pool.present()).await;
            for _ in 0..100 {
                assert!(model.submit(&store));
                if model.below(30) == 0 {
                    store.ship().await.expect("ships");
                }
            }
            store.durable(store.last_ticket()).await.expect("durable");
            model.durable = model.history.len() - 1;
            store.abort().await;
            drop(store);
            pool.crash(Crash::Random, seed);
            for disk in &pool.disks {
                limits::fill(disk, "other", 0).await;
            }
            let opened = MetaStore::open_to_read(
                world.env.clone(),
                settings(2),
                VOLUME,
                pool.present(),
                Vec::new(),
                "full".to_owned(),
            );
            let (store, recovered) = opened.await.unwrap_or_else(|error| panic!("{error}"));
            model.recovered(&store, &recovered);
            refuses(&store, "full").await;
            store.abort().await;
            drop(store);
            for disk in &pool.disks {
                disk.remove("other").await.expect("removes");
            }
            let store = reopen(&world, &pool, &mut model, 2).await;
            assert!(model.submit(&store));
            store.durable(store.last_ticket()).await.expect("durable");
            store.abort().await;
        });
    }
}

/// Records beyond the state are counted while they are read, and refused if there are too many. An opening for writing
/// counts while it replays, and is never refused.
#[test]
fn a_log_in_memory_is_counted_until_the_volume_is_closed() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        let store = create(&world, 2, pool.present()).await;
        for number in 1..=50 {
            assert_ne!(store.submit(put(number)), Ticket::REFUSED);
        }
        store.durable(store.last_ticket()).await.expect("durable");
        store.abort().await;
        drop(store);
        let with = |replay: &ReplayBudget| MetaSettings {
            replay: replay.clone(),
            ..settings(2)
        };
        let to_read = |replay: &ReplayBudget| {
            let (env, settings) = (world.env.clone(), with(replay));
            let why = "full".to_owned();
            MetaStore::open_to_read(env, settings, VOLUME, pool.present(), Vec::new(), why)
        };
        let small = ReplayBudget::new(1);
        match to_read(&small).await {
            Err(MetaError::ReplayTooLarge {
                volume,
                needed_bytes,
                kept_bytes,
                bytes_max,
            }) => {
                assert_eq!((volume, kept_bytes, bytes_max), (VOLUME, 0, 1));
                assert!(needed_bytes > 50, "{needed_bytes}");
            }
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it has more than a byte"),
        }
        assert_eq!(small.used_bytes(), 0);
        let large = ReplayBudget::new(1 << 30);
        let (store, _) = to_read(&large)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(large.used_bytes() > 50, "{}", large.used_bytes());
        assert_eq!(large.used_bytes(), store.shared.state.memory_bytes());
        store.abort().await;
        drop(store);
        assert_eq!(large.used_bytes(), 0, "nobody reads it any more");
        let opened = MetaStore::open(world.env.clone(), with(&small), VOLUME, pool.present()).await;
        let (store, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
        assert!(recovered.replayed_entries > 0);
        assert_eq!(small.used_bytes(), 0, "the state has it");
        store.abort().await;
    });
}
