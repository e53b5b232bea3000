//! On folders, with RocksDB: kills, lost disks, a disk without space.

use super::*;

/// On folders, with RocksDB: a kill leaves everything written, but disks may be lost.
#[test]
fn a_volume_on_folders_lives_through_kills_and_lost_disks() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime(2);
    let env = cairn_base::real::env(runtime.handle().clone());
    let mut disks = real_disks(folder.path(), &[]);
    let mut model = Model::new(11);
    let mut rng = Rng::new(11);
    runtime.block_on(async {
        let created = MetaStore::create(env.clone(), real_settings(3), VOLUME, disks.clone());
        let mut store = created.await.expect("creates");
        for round in 0..12 {
            for step in 0..25 {
                for _ in 0..rng.below(5) {
                    assert!(model.submit(&store));
                }
                model.compare(&store);
                assert!(model.wait(&store).await);
                match (step, rng.below(12)) {
                    (_, 0) => store.flush().await.expect("flushes"),
                    (_, 1) | (24, _) => store.ship().await.expect("ships"),
                    _ => {}
                }
            }
            for _ in 0..rng.below(5) {
                assert!(model.submit(&store));
            }
            if round % 4 == 3 {
                store.close().await.expect("closes");
                assert!(!store.stats().copies_missing, "{:?}", store.stats());
            } else {
                store.abort().await;
            }
            drop(store);
            // Two disks are replaced by empty ones, or are missing and return stale.
            let lost = [rng.below(4) as usize, rng.below(4) as usize];
            let mut kept = disks.clone();
            kept.retain(|(id, _)| !lost.iter().any(|index| disks[*index].0 == *id));
            if round % 2 == 0 {
                for index in lost {
                    let path = disks[index].1.folder().expect("a folder").to_owned();
                    std::fs::remove_dir_all(path.join("volumes")).ok();
                }
                kept = disks.clone();
            }
            let opened = MetaStore::open(env.clone(), real_settings(3), VOLUME, kept).await;
            let (opened, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
            model.recovered(&opened, &recovered);
            assert!(model.submit(&opened));
            model.compare(&opened);
            opened.ship().await.expect("ships");
            opened.abort().await;
            drop(opened);
            model.durable = model.durable.min(model.history.len() - 1);
            disks.rotate_left(1);
            let opened =
                MetaStore::open(env.clone(), real_settings(3), VOLUME, disks.clone()).await;
            let (opened, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
            model.recovered(&opened, &recovered);
            store = opened;
        }
        store.abort().await;
    });
}

const KILLED_FOLDER: &str = "CAIRN_META_TEST_FOLDER";
const KILLED_STEP_COUNT: usize = 400;

pub(super) fn real_disks(
    folder: &std::path::Path,
    missing: &[u64],
) -> Vec<(DiskId, Arc<dyn Disk>)> {
    let disk = |index: u64| -> (DiskId, Arc<dyn Disk>) {
        let path = folder.join(format!("disk{index}"));
        let disk = cairn_disk::RealDisk::open(path, Default::default()).expect("a disk");
        (DiskId(u128::from(index) + 1), disk)
    };
    let present = (0..4).filter(|index| !missing.contains(index));
    present.map(disk).collect()
}

/// Small write buffers, so that RocksDB flushes by itself in between.
fn settings_on_folders() -> MetaSettings {
    MetaSettings {
        write_buffer_bytes: 64 << 10,
        ..real_settings(3)
    }
}

/// The test below starts this in a process of its own, which works until it is killed.
#[test]
fn the_process_that_is_killed() {
    let Ok(folder) = std::env::var(KILLED_FOLDER) else {
        return;
    };
    let runtime = runtime(2);
    let env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(async {
        let disks = real_disks(folder.as_ref(), &[]);
        let created = MetaStore::create(env, settings_on_folders(), VOLUME, disks);
        let store = created.await.expect("creates");
        let mut model = Model::new(5);
        println!("\ndurable 0 0");
        for step in 0..KILLED_STEP_COUNT {
            assert!(model.submit(&store));
            assert!(model.submit(&store));
            assert!(model.wait(&store).await);
            println!("\ndurable {} {}", step + 1, model.durable);
        }
    });
    std::process::abort();
}

#[test]
fn a_killed_process_loses_nothing_that_was_acknowledged() {
    let program = std::env::current_exe().expect("a program");
    let runtime = runtime(2);
    for kill_after in [1, 7, 60, 200, KILLED_STEP_COUNT] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = std::process::Command::new(&program)
            .args([
                "--exact",
                "tests::folders::the_process_that_is_killed",
                "--nocapture",
            ])
            .env(KILLED_FOLDER, folder.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("starts");
        let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        let mut acknowledged = (0, 0);
        while acknowledged.0 < kill_after {
            line.clear();
            let count = std::io::BufRead::read_line(&mut output, &mut line).expect("reads");
            assert!(count > 0, "it died by itself after {acknowledged:?}");
            let mut words = line.split_whitespace();
            if words.next() == Some("durable") {
                let mut number = || words.next()?.parse::<usize>().ok();
                acknowledged = (number().expect("a step"), number().expect("a number"));
            }
        }
        child.kill().expect("kills");
        child.wait().expect("ends");
        // Repeats the random choices: the submissions of the killed process, and more.
        let mut model = Model::new(5);
        for _ in 0..KILLED_STEP_COUNT {
            for _ in 0..2 {
                // The store's own first group took position 1.
                let position = LogPosition(model.history.len() as u64 + 1);
                assert!(model.submit_to(|_| Ticket(position)));
            }
            model.durable = model.pick();
        }
        model.durable = acknowledged.1;
        let missing = [kill_after as u64 % 4, kill_after as u64 % 3];
        let env = cairn_base::real::env(runtime.handle().clone());
        runtime.block_on(async {
            let disks = real_disks(folder.path(), &missing);
            let opened = MetaStore::open(env.clone(), settings_on_folders(), VOLUME, disks).await;
            let (store, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
            model.recovered(&store, &recovered);
            store.abort().await;
        });
    }
}

/// RocksDB itself on a full disk: its next files are `/dev/full`. It checks by itself, every five seconds, whether it
/// can go on.
#[test]
fn rocksdb_goes_on_after_a_full_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime(1);
    let env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(async {
        let disks = real_disks(folder.path(), &[1, 2, 3]);
        let settings = MetaSettings {
            log_file_bytes: 1 << 20,
            ..settings_on_folders()
        };
        let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks);
        let store = created.await.expect("creates");
        let mut model = Model::new(1);
        assert!(model.submit(&store));
        store.flush().await.expect("flushes");
        let state = folder.path().join("disk0/volumes/00000007/state");
        let traps: Vec<_> = (0..2000)
            .map(|number| state.join(format!("{number:06}.sst")))
            .filter(|path| std::os::unix::fs::symlink("/dev/full", path).is_ok())
            .collect();
        while !store.is_full() {
            assert!(model.submit(&store));
            let last = store.last_ticket();
            store.durable(last).await.expect("the log has room");
            model.durable = model.history.len() - 1;
        }
        model.compare(&store);
        assert!(model.submit(&store));
        assert!(model.wait(&store).await, "deletions would go on");
        assert!(store.ship().await.is_err());
        for trap in traps {
            // RocksDB removed those that it tried.
            let _ = std::fs::remove_file(trap);
        }
        while store.is_full() {
            env.clock.sleep(std::time::Duration::from_millis(20)).await;
        }
        model.compare(&store);
        store.close().await.expect("closes");
        drop(store);
        model.durable = model.history.len() - 1;
        let disks = real_disks(folder.path(), &[1, 2, 3]);
        let opened = MetaStore::open(env, settings, VOLUME, disks).await;
        let (store, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(recovered.replayed_entries, 0);
        model.recovered(&store, &recovered);
        store.abort().await;
    });
}

/// A state keeps as many files open as the settings allow, of the size that the setting assumes.
#[test]
fn the_state_keeps_as_many_files_open_as_the_settings_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime(1);
    let env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(async {
        let settings = MetaSettings {
            open_files_max: crate::settings::state_files_max(524_288, 1),
            ..settings_on_folders()
        };
        let disks = real_disks(folder.path(), &[1, 2, 3]);
        let created = MetaStore::create(env, settings, VOLUME, disks).await;
        let store = created.expect("creates");
        let state = folder.path().join("disk0/volumes/00000007/state");
        let files = std::fs::read_dir(state).expect("lists");
        let options = files
            .map(|entry| entry.expect("lists").path())
            .filter(|path| path.to_string_lossy().contains("/OPTIONS-"))
            .max()
            .expect("RocksDB writes down its options");
        let options = std::fs::read_to_string(options).expect("reads");
        for option in [
            "max_open_files=16384",
            "target_file_size_base=67108864",
            "target_file_size_multiplier=1",
        ] {
            let is_set = options.lines().any(|line| line.trim() == option);
            assert!(is_set, "{option}");
        }
        store.abort().await;
    });
}

/// A store whose state is several times the cache, opened with an empty cache.
async fn cold(env: &cairn_base::env::Env, disks: &Disks, keys: u64) -> Arc<MetaStore> {
    let mut rng = Rng::new(5);
    let settings = |cache| MetaSettings {
        cache,
        ..settings_on_folders()
    };
    let filling = settings(MetaCache::new(1 << 20));
    let created = MetaStore::create(env.clone(), filling, VOLUME, disks.clone()).await;
    let store = created.expect("creates");
    for number in 0..keys {
        let mut batch = Batch::new();
        // Incompressible values.
        batch.put(Key::inode(Ino(number)), Bytes::from(rng.bytes(400)));
        store.submit(batch);
        store.admit().await;
    }
    store.close().await.expect("closes");
    drop(store);
    let settings = settings(MetaCache::new(1 << 20));
    let opened = MetaStore::open(env.clone(), settings, VOLUME, disks.clone()).await;
    opened.expect("opens").0
}

#[test]
fn a_pass_leaves_the_cache_as_it_is() {
    const KEYS: u64 = 6000;
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime(2);
    let env = cairn_base::real::env(runtime.handle().clone());
    let disks = real_disks(folder.path(), &[1, 2, 3]);
    runtime.block_on(async {
        let store = cold(&env, &disks, KEYS).await;
        for number in 0..50 {
            store.live().get(&Key::inode(Ino(number))).expect("reads");
        }
        let used_bytes = || store.shared.settings.cache.used_bytes();
        let before = used_bytes();
        let mut count = 0;
        let (from, to) = Key::everything();
        let passed = store.live().pass_over(&from, &to, |_, _, _| {
            count += 1;
            ControlFlow::Continue(())
        });
        passed.expect("reads");
        assert!(count >= KEYS);
        assert!(used_bytes() <= before + (64 << 10), "{before}");
        // A scan, in contrast to a pass.
        let scanned = store
            .live()
            .scan_with(&from, &to, |_, _, _| ControlFlow::Continue(()));
        scanned.expect("reads");
        assert!(used_bytes() > before + (64 << 10), "{before}");
        store.abort().await;
    });
}

#[test]
fn what_is_not_in_memory_is_brought_there_by_another_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime(2);
    let env = cairn_base::real::env(runtime.handle().clone());
    let disks = real_disks(folder.path(), &[1, 2, 3]);
    runtime.block_on(async {
        let store = cold(&env, &disks, 6000).await;
        let mut refused = 0;
        let found = store.reading(|| {
            let found = store.live().get(&Key::inode(Ino(3000)));
            refused += usize::from(matches!(found, Err(MetaError::NotInMemory)));
            found
        });
        assert!(found.await.expect("reads").is_some());
        assert!(refused > 0, "this thread read from disk");
        store.abort().await;
    });
}
