//! Bit rot in RocksDB's files, and copies that replace states.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cairn_base::disk::{Disk, DiskError, DiskFile, DiskSpace, IoFuture, OpenMode};
use cairn_base::env::Env;
use cairn_base::{DiskId, Epoch, Ino, SegmentId};
use cairn_testkit::Rng;
use parking_lot::Mutex;

use super::folders::real_disks;
use super::{Disks, VOLUME, real_settings as settings, runtime};
use crate::{Batch, Key, MetaError, MetaSettings, MetaStore, SegmentRecord};

const COUNT: u64 = 300;

fn with_env<F: Future<Output = ()>>(test: impl FnOnce(Env, PathBuf) -> F) {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = runtime(1);
    let env = cairn_base::real::env(runtime.handle().clone());
    runtime.block_on(test(env, folder.path().to_owned()));
}

fn volume_folder(folder: &Path, disk: u64) -> PathBuf {
    folder.join(format!("disk{disk}/volumes/{:08x}", VOLUME.0))
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("makes");
    for entry in fs::read_dir(from).expect("reads") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copies");
    }
}

/// Flips a bit in the middle of the largest table, where inodes are; the file stays the one that hard links name.
fn rot(folder: &Path) {
    let entries = fs::read_dir(folder).expect("reads");
    let tables = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sst"));
    let largest = tables.max_by_key(|path| fs::metadata(path).map_or(0, |found| found.len()));
    let table = largest.expect("a table");
    let mut bytes = fs::read(&table).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(table, bytes).expect("writes");
}

fn replica_in(folder: &Path) -> PathBuf {
    let mut replicas = fs::read_dir(folder)
        .expect("reads")
        .map(|entry| entry.expect("an entry").path());
    let is_replica = |path: &PathBuf| path.to_string_lossy().contains("replica.");
    replicas.find(is_replica).expect("a copy of the state")
}

/// A copy without room is not begun: until it failed, it would take all room from others.
#[test]
fn a_copy_that_finds_no_room_is_not_begun() {
    with_env(|env, folder| async move {
        let disk = |index: u64, size_limit_bytes: Option<u64>| -> (DiskId, Arc<dyn Disk>) {
            let settings = cairn_disk::DiskSettings {
                size_limit_bytes,
                ..Default::default()
            };
            let path = folder.join(format!("disk{index}"));
            let disk = cairn_disk::RealDisk::open(path, settings).expect("a disk");
            (DiskId(u128::from(index) + 1), disk)
        };
        // Besides the log's file.
        let small = 5 << 20;
        let disks = vec![disk(0, None), disk(1, Some(small))];
        let settings = MetaSettings {
            log_file_bytes: 1 << 20,
            ..settings(2)
        };
        let created = MetaStore::create(env.clone(), settings, VOLUME, disks).await;
        let store = created.expect("creates");
        let before = store.stats();
        write(&store, 0..8 * COUNT).await;
        store.ship().await.expect("ships");
        let stats = store.stats();
        assert!(stats.ship_errors > before.ship_errors, "{stats:?}");
        assert!(stats.copies_missing && stats.failed_disks.is_empty());
        let numbers = || {
            let entries = fs::read_dir(volume_folder(&folder, 1)).expect("reads");
            let names = entries.map(|entry| entry.expect("an entry").file_name());
            let mut names: Vec<_> = names.collect();
            names.retain(|name| name.to_string_lossy().contains("replica."));
            names
        };
        let was = numbers();
        store.ship().await.expect("ships");
        assert_eq!(numbers(), was, "nothing is made or removed");
        store.abort().await;
    });
}

/// A disk that, once asked for its free space, answers when it is released.
struct Undecided {
    inner: Arc<cairn_disk::RealDisk>,
    asked: Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>,
}

impl Disk for Undecided {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn folder(&self) -> Option<&Path> {
        self.inner.folder()
    }

    fn open<'a>(&'a self, name: &'a str, mode: OpenMode) -> IoFuture<'a, Arc<dyn DiskFile>> {
        self.inner.open(name, mode)
    }

    fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()> {
        self.inner.remove(name)
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> IoFuture<'a, ()> {
        self.inner.rename(from, to)
    }

    fn list<'a>(&'a self, folder: &'a str) -> IoFuture<'a, Vec<String>> {
        self.inner.list(folder)
    }

    fn sync_folder<'a>(&'a self, folder: &'a str) -> IoFuture<'a, ()> {
        self.inner.sync_folder(folder)
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        if let Some((asked, go)) = self.asked.lock().take() {
            asked.send(()).expect("somebody waits for it");
            let _ = go.recv();
        }
        self.inner.space()
    }
}

/// Both would make their checkpoint in one folder.
#[test]
fn a_copy_that_nobody_waits_for_any_more_keeps_its_turn() {
    with_env(|env, folder| async move {
        let disk = |index: u64| {
            let path = folder.join(format!("disk{index}"));
            cairn_disk::RealDisk::open(path, Default::default()).expect("a disk")
        };
        let undecided = Arc::new(Undecided {
            inner: disk(1),
            asked: Mutex::default(),
        });
        let disks: Disks = vec![(DiskId(1), disk(0)), (DiskId(2), undecided.clone())];
        let created = MetaStore::create(env.clone(), settings(2), VOLUME, disks).await;
        let store = created.expect("creates");
        write(&store, 0..COUNT).await;
        let ((asked, is_asked), (go, goes)) = (mpsc::channel(), mpsc::channel());
        *undecided.asked.lock() = Some((asked, goes));
        let shipping = tokio::spawn({
            let store = store.clone();
            async move { store.ship().await }
        });
        while is_asked.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        shipping.abort();
        let _ = shipping.await;
        assert!(store.shared.shipping.try_lock().is_err(), "it goes on");
        drop(go);
        store.ship().await.expect("ships");
        let stats = store.stats();
        assert!(
            stats.states.len() == 2 && stats.failed_disks.is_empty(),
            "{stats:?}"
        );
        store.abort().await;
    });
}

/// Incompressible values, so that a table has many blocks.
async fn write(store: &MetaStore, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut rng = Rng::new(number);
        let value: Vec<u8> = (0..200).map(|_| rng.below(256) as u8).collect();
        let mut batch = Batch::new();
        batch.put(Key::inode(Ino(number)), value);
        store.submit(batch);
    }
    let last = store.last_ticket();
    store.durable(last).await.expect("durable");
}

/// Durable changes are shipped once they are applied, a little later.
async fn ship_until_it_fails(store: &MetaStore) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.failure().is_none() {
        assert!(Instant::now() < deadline, "it goes on with a damaged state");
        // The task that flushes the state may find the corruption first, if RocksDB met it while it merged tables.
        if let Err(error) = store.ship().await {
            assert!(matches!(error, MetaError::StateDamaged(_)), "{error:?}");
            assert!(store.failure().is_some());
        }
        tokio::task::yield_now().await;
    }
}

fn read_all(store: &MetaStore, count: u64) -> Result<(), MetaError> {
    for number in 1..count {
        let found = store.live().get(&Key::inode(Ino(number)))?;
        assert!(found.is_some(), "{number} is gone");
    }
    Ok(())
}

async fn open(env: &Env, settings: &MetaSettings, disks: Disks) -> Arc<MetaStore> {
    let opened = MetaStore::open(env.clone(), settings.clone(), VOLUME, disks).await;
    opened.unwrap_or_else(|error| panic!("{error}")).0
}

/// A disk has an old working state and a newer copy of another disk's: the crash came after the copy was made and
/// before the old state was removed. Then the other disk is lost.
#[test]
fn a_copy_takes_the_place_of_an_older_state_on_its_disk() {
    for is_cut in [false, true] {
        with_env(|env, folder| async move {
            let settings = settings(2);
            let disks = |missing: &[u64]| {
                let missing: Vec<u64> = missing.iter().copied().chain([2, 3]).collect();
                real_disks(&folder, &missing)
            };
            let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks(&[]));
            let store = created.await.expect("creates");
            write(&store, 1..COUNT).await;
            store.ship().await.expect("ships");
            store.abort().await;
            drop(store);
            let state = volume_folder(&folder, 0).join("state");
            let store = open(&env, &settings, disks(&[0])).await;
            write(&store, COUNT..2 * COUNT).await;
            store.flush().await.expect("flushes");
            store.abort().await;
            drop(store);
            let kept = folder.join("kept");
            copy_folder(&state, &kept);
            let store = open(&env, &settings, disks(&[])).await;
            assert_eq!(store.log().primary_disk(), DiskId(2));
            store.ship().await.expect("ships");
            if is_cut {
                // The log does not continue the old state any more.
                write(&store, 1..2).await;
            }
            store.abort().await;
            drop(store);
            assert!(!state.exists(), "it is not needed any more");
            copy_folder(&kept, &state);

            for _ in 0..3 {
                let store = open(&env, &settings, disks(&[1])).await;
                read_all(&store, 2 * COUNT).expect("reads");
                write(&store, 1..COUNT).await;
                store.ship().await.expect("ships");
                store.close().await.expect("closes");
            }
        });
    }
}

/// The folders in a volume's folder, without the numbers of copies.
fn states_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("reads");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let names = paths
        .filter(|path| path.is_dir())
        .filter_map(|path| path.file_stem()?.to_str().map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A crash leaves incomplete copies; a copy that became the state keeps its replica's folder for long.
#[test]
fn what_is_left_of_copies_is_removed() {
    with_env(|env, folder| async move {
        let settings = settings(2);
        let disks = |missing: &[u64]| {
            let missing: Vec<u64> = missing.iter().copied().chain([2, 3]).collect();
            real_disks(&folder, &missing)
        };
        let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks(&[]));
        let store = created.await.expect("creates");
        write(&store, 1..COUNT).await;
        store.ship().await.expect("ships");
        store.abort().await;
        drop(store);
        let folders = [0, 1].map(|disk| volume_folder(&folder, disk));
        let half = [
            "ship.new",
            "ship.new.tmp",
            "state.new",
            "replica.0000000000000099",
        ];
        for (folder, name) in folders.iter().flat_map(|at| half.map(|name| (at, name))) {
            fs::create_dir(folder.join(name)).expect("makes");
            fs::write(folder.join(name).join("000007.sst"), "half").expect("writes");
        }
        let store = open(&env, &settings, disks(&[0])).await;
        write(&store, COUNT..2 * COUNT).await;
        store.abort().await;
        drop(store);
        let store = open(&env, &settings, disks(&[])).await;
        assert_eq!(store.log().primary_disk(), DiskId(2));
        store.ship().await.expect("ships");
        store.close().await.expect("closes");
        drop(store);
        assert_eq!(folders.map(|at| states_in(&at)), [["replica"], ["state"]]);
        let store = open(&env, &settings, disks(&[])).await;
        read_all(&store, 2 * COUNT).expect("reads");
        store.close().await.expect("closes");
    });
}

/// Bit rot in the state is found before it gets into a copy, even after a restart, and the store gives way to the
/// intact copies.
#[test]
fn a_rotten_state_is_not_shipped() {
    for restarts in [false, true] {
        with_env(|env, folder| async move {
            let settings = settings(3);
            let disks = |missing: &[u64]| real_disks(&folder, missing);
            let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks(&[3]));
            let mut store = created.await.expect("creates");
            write(&store, 1..COUNT).await;
            store.ship().await.expect("ships");
            if restarts {
                store.abort().await;
                drop(store);
            } else {
                // Like a disk that comes without a copy.
                fs::remove_dir_all(replica_in(&volume_folder(&folder, 1))).expect("removes");
                rot(&volume_folder(&folder, 0).join("state"));
                write(&store, COUNT..COUNT + 1).await;
                ship_until_it_fails(&store).await;
                store.abort().await;
                drop(store);
            }
            if restarts {
                rot(&volume_folder(&folder, 0).join("state"));
                store = open(&env, &settings, disks(&[3])).await;
                write(&store, COUNT..COUNT + 1).await;
                ship_until_it_fails(&store).await;
                store.abort().await;
                drop(store);
            }
            let store = open(&env, &settings, disks(&[0, 3])).await;
            read_all(&store, COUNT + 1).expect("reads");
            store.close().await.expect("closes");
        });
    }
}

/// A read that meets corruption ends the store if another copy exists; an only copy goes on with its readable entries.
#[test]
fn a_rotten_state_is_left_for_a_copy() {
    for copies in [1, 2] {
        with_env(|env, folder| async move {
            let settings = settings(copies);
            let disks = |missing: &[u64]| real_disks(&folder, missing);
            let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks(&[2, 3]));
            let store = created.await.expect("creates");
            write(&store, 1..COUNT).await;
            store.close().await.expect("closes");
            drop(store);
            rot(&volume_folder(&folder, 0).join("state"));
            let store = open(&env, &settings, disks(&[2, 3])).await;
            let error = read_all(&store, COUNT).expect_err("it is damaged");
            // Background work of the store may find it first.
            let cause = match &error {
                MetaError::Failed(cause) => cause,
                error => error,
            };
            assert!(matches!(cause, MetaError::StateDamaged(_)), "{error:?}");
            assert_eq!(store.failure().is_some(), copies == 2);
            store.abort().await;
            drop(store);
            if copies == 2 {
                let store = open(&env, &settings, disks(&[0, 2, 3])).await;
                read_all(&store, COUNT).expect("reads");
            }
        });
    }
}

/// Corruption in the entries that every start reads is found by the start, which goes on with another copy.
#[test]
fn a_state_that_cannot_be_started_with_is_left_for_a_copy() {
    for copies in [1, 2] {
        with_env(|env, folder| async move {
            let settings = settings(copies);
            let disks = |missing: &[u64]| real_disks(&folder, missing);
            let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks(&[2, 3]));
            let store = created.await.expect("creates");
            for id in 1..20 * COUNT {
                let mut rng = Rng::new(id);
                let record = SegmentRecord {
                    data: 2,
                    parity: 1,
                    disks: (0..3).map(|_| DiskId(u128::from(rng.u64()))).collect(),
                    shard_len_bytes: id,
                    sealed: true,
                    epoch: Epoch(1),
                    ..SegmentRecord::default()
                };
                let mut batch = Batch::new();
                batch.put_segment(SegmentId(id), record);
                store.submit(batch);
            }
            let segments = store.segments();
            store.durable(store.last_ticket()).await.expect("durable");
            store.close().await.expect("closes");
            drop(store);
            rot(&volume_folder(&folder, 0).join("state"));
            if copies == 1 {
                let opened = MetaStore::open(env.clone(), settings, VOLUME, disks(&[2, 3]));
                let refused = opened.await.err();
                assert!(
                    matches!(refused, Some(MetaError::StateDamaged(_))),
                    "{refused:?}"
                );
                return;
            }
            let store = open(&env, &settings, disks(&[2, 3])).await;
            assert_eq!(store.log().primary_disk(), DiskId(2));
            assert_eq!(store.segments(), segments);
            store.close().await.expect("closes");
        });
    }
}

/// An only state that cannot be copied still allows reads and writes.
#[test]
fn an_only_state_that_cannot_be_copied_goes_on() {
    with_env(|env, folder| async move {
        let disks = real_disks(&folder, &[1, 2, 3]);
        let created = MetaStore::create(env.clone(), settings(1), VOLUME, disks);
        let store = created.await.expect("creates");
        write(&store, 1..COUNT).await;
        store.close().await.expect("closes");
        drop(store);
        let store = open(&env, &settings(2), real_disks(&folder, &[1, 2, 3])).await;
        // A file in the place of the copy's folder.
        fs::write(volume_folder(&folder, 0).join("ship.new"), "a file").expect("writes");
        let mut others = real_disks(&folder, &[0, 2, 3]);
        let (id, disk) = others.pop().expect("a disk");
        store.log().add_disk(id, disk, crate::Preference::Last);
        while store.shared.is_ship_running.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        assert!(store.ship().await.is_err());
        assert!(store.failure().is_none(), "{:?}", store.failure());
        write(&store, COUNT..COUNT + 1).await;
        read_all(&store, COUNT).expect("reads");
        store.abort().await;
    });
}

/// Readers of a lost disk without another copy wait until it is back, as writers do; an error would reach the programs
/// of users.
#[test]
fn a_state_on_a_disk_that_is_gone_ends_the_store() {
    with_env(|env, folder| async move {
        let settings = settings(1);
        let disks = real_disks(&folder, &[1, 2, 3]);
        let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks);
        let store = created.await.expect("creates");
        write(&store, 1..COUNT).await;
        store.close().await.expect("closes");
        drop(store);
        let store = open(&env, &settings, real_disks(&folder, &[1, 2, 3])).await;
        rot(&volume_folder(&folder, 0).join("state"));
        let error = read_all(&store, COUNT).expect_err("it is damaged");
        assert!(matches!(error, MetaError::StateDamaged(_)), "{error:?}");
        assert!(store.failure().is_none());
        fs::rename(folder.join("disk0"), folder.join("away")).expect("renames");
        let error = read_all(&store, COUNT).expect_err("it is gone");
        assert!(matches!(error, MetaError::Failed(_)), "{error:?}");
        store.abort().await;
    });
}

/// Bit rot in a table of a copy would spread to every later copy.
#[test]
fn a_rotten_copy_is_made_whole_in_time() {
    with_env(|env, folder| async move {
        let settings = settings(2);
        let disks = |missing: &[u64]| real_disks(&folder, missing);
        let created = MetaStore::create(env.clone(), settings.clone(), VOLUME, disks(&[2, 3]));
        let store = created.await.expect("creates");
        write(&store, 1..COUNT).await;
        store.ship().await.expect("ships");
        rot(&replica_in(&volume_folder(&folder, 1)));
        for number in 0..3 {
            write(&store, COUNT + number..COUNT + number + 1).await;
            store.ship().await.expect("ships");
        }
        store.abort().await;
        drop(store);
        let store = open(&env, &settings, disks(&[0, 2, 3])).await;
        read_all(&store, COUNT + 3).expect("reads");
    });
}
