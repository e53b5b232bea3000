//! The guarantees of the simulated disk, and its losses.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::disk::{Disk, DiskError, DiskFile, OpenMode};
use cairn_base::env::Clock;
use proptest::prelude::*;

use crate::*;

const MIB: u64 = 1 << 20;
const SECTOR: usize = 512;

/// Runs a future that needs no runtime: without yields ours are ready at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("ready at once"),
    }
}

fn create(disk: &MemDisk, name: &str, len_bytes: u64) -> Arc<dyn DiskFile> {
    now(disk.open(name, OpenMode::CreateNew { len_bytes })).unwrap()
}

fn write(file: &Arc<dyn DiskFile>, offset: u64, bytes: &[u8]) {
    now(file.write_at(offset, vec![Bytes::copy_from_slice(bytes)])).unwrap();
}

fn write_durable(file: &Arc<dyn DiskFile>, offset: u64, bytes: &[u8]) {
    now(file.write_durable_at(offset, vec![Bytes::copy_from_slice(bytes)])).unwrap();
}

fn kind(error: DiskError) -> &'static str {
    match error {
        DiskError::NotFound { .. } => "not found",
        DiskError::Exists { .. } => "exists",
        DiskError::Full { .. } => "full",
        DiskError::Io { .. } => "io",
        DiskError::Short { .. } => "short",
        DiskError::InUse { .. } => "in use",
        DiskError::NoDescriptor { .. } => "no descriptor",
    }
}

#[test]
fn files_hold_what_was_written() {
    let disk = MemDisk::new("d0", MIB);
    let file = create(&disk, "a/b", 10);
    assert_eq!(file.len_bytes(), 10);
    let parts = vec![Bytes::from_static(b"ab"), Bytes::from_static(b"cd")];
    now(file.write_at(8, parts)).unwrap();
    assert_eq!(file.len_bytes(), 12);
    assert_eq!(&now(file.read_at(6, 6)).unwrap()[..], b"\0\0abcd");
    assert_eq!(now(file.read_at(6, 7)).map_err(kind), Err("short"));
    assert_eq!(now(file.read_at(u64::MAX, 7)).map_err(kind), Err("short"));
    now(file.set_len(9)).unwrap();
    now(file.set_len(12)).unwrap();
    assert_eq!(&now(file.read_at(6, 6)).unwrap()[..], b"\0\0a\0\0\0");
    let end = vec![Bytes::from_static(b"x")];
    assert_eq!(
        now(file.write_at(u64::MAX, end.clone())).map_err(kind),
        Err("io")
    );
    assert_eq!(
        now(file.write_at(u64::MAX - 1, end)).map_err(kind),
        Err("io")
    );

    assert_eq!(now(disk.list("a")).unwrap(), ["b"]);
    assert_eq!(now(disk.list("")).unwrap(), [""; 0]);
    assert_eq!(
        now(disk.open("a/c", OpenMode::Existing))
            .map(drop)
            .map_err(kind),
        Err("not found")
    );
    let again = now(disk.open("a/b", OpenMode::CreateZeroed { len_bytes: 1 }));
    assert_eq!(again.map(drop).map_err(kind), Err("exists"));
    for name in ["", "/a", "a//b", "../a", "A", "a b"] {
        let made = now(disk.open(name, OpenMode::CreateNew { len_bytes: 1 }));
        assert_eq!(made.map(drop).map_err(kind), Err("io"), "{name:?}");
    }
    now(disk.rename("a/b", "c")).unwrap();
    assert_eq!(&now(file.read_at(6, 3)).unwrap()[..], b"\0\0a");
    now(disk.remove("c")).unwrap();
    assert_eq!(
        &now(file.read_at(6, 3)).unwrap()[..],
        b"\0\0a",
        "open files stay"
    );
    assert_eq!(now(disk.remove("c")).map_err(kind), Err("not found"));
}

#[test]
fn crashes_keep_what_was_synced() {
    // The steps after an empty file "f" became durable, and its contents after each crash.
    type Step = fn(&Arc<dyn DiskFile>);
    let cases: &[(&str, Step, &[u8], &[u8])] = &[
        ("nothing", |_| {}, b"", b""),
        ("a write", |f| write(f, 0, b"ab"), b"", b"ab"),
        (
            "a synced write",
            |f| {
                write(f, 0, b"ab");
                now(f.sync()).unwrap();
                write(f, 1, b"x");
            },
            b"ab",
            b"ax",
        ),
        (
            "a durable write over a plain one",
            |f| {
                write(f, 0, b"abc");
                write_durable(f, 1, b"x");
            },
            b"\0x",
            b"axc",
        ),
        (
            "a resize",
            |f| {
                write_durable(f, 0, b"abc");
                now(f.set_len(1)).unwrap();
            },
            b"abc",
            b"a",
        ),
        (
            "a durable write makes the length durable",
            |f| {
                now(f.set_len(4)).unwrap();
                write_durable(f, 0, b"abc");
            },
            b"abc\0",
            b"abc\0",
        ),
    ];
    for (name, step, lost, kept) in cases {
        let disk = MemDisk::new("d0", MIB);
        let file = create(&disk, "f", 0);
        now(file.sync()).unwrap();
        now(disk.sync_folder("")).unwrap();
        step(&file);
        let copy = MemDisk::from_snapshot(&disk.snapshot());
        assert_eq!(
            copy.file_bytes("f").as_deref(),
            Some(*kept),
            "{name}, snapshot"
        );
        let recorder = Recorder::new(std::slice::from_ref(&disk));
        for (mode, want) in [(Crash::LoseUnsynced, lost), (Crash::KeepUnsynced, kept)] {
            let after = recorder.crash_at(0, mode, 1).remove(0);
            assert_eq!(
                after.file_bytes("f").as_deref(),
                Some(*want),
                "{name}, {mode:?}"
            );
        }
        let after = disk.crash(Crash::LoseUnsynced, 1);
        assert_eq!(after.file_bytes("f").as_deref(), Some(*lost), "{name}");
        assert_eq!(
            now(file.read_at(0, 0)).map_err(kind),
            Err("io"),
            "the old handle is dead"
        );
        assert_eq!(now(disk.list("")).map_err(kind), Err("io"));
    }
}

#[test]
fn a_crash_brings_back_no_more_than_there_is_room_for() {
    // Blocks of `q/c`, which takes the room of `p/b` on a disk of four blocks; the files after a crash.
    let cases: &[(u64, &[&str])] = &[(1, &["p/a", "p/b", "q/c"]), (2, &["p/a", "q/c"])];
    for (blocks, want) in cases {
        let disk = MemDisk::new("small", 4 * 4096);
        for (name, blocks) in [("p/a", 2), ("p/b", 1)] {
            now(create(&disk, name, blocks * 4096).sync()).unwrap();
        }
        now(disk.sync_folder("p")).unwrap();
        now(disk.remove("p/b")).unwrap();
        now(create(&disk, "q/c", blocks * 4096).sync()).unwrap();
        now(disk.sync_folder("q")).unwrap();
        let after = disk.crash(Crash::LoseUnsynced, 1);
        assert_eq!(after.file_names(), *want, "{blocks}");
    }
}

#[test]
fn names_need_their_folders_synced() {
    type Step = fn(&MemDisk);
    let cases: &[(&str, Step, &[&str], &[&str])] = &[
        ("nothing", |_| {}, &["a/x", "b/y"], &["a/x", "b/y"]),
        (
            "a removal",
            |d| now(d.remove("a/x")).unwrap(),
            &["a/x", "b/y"],
            &["b/y"],
        ),
        (
            "a rename",
            |d| now(d.rename("a/x", "b/y")).unwrap(),
            &["a/x", "b/y"],
            &["b/y"],
        ),
        (
            "half a synced rename",
            |d| {
                now(d.rename("a/x", "b/y")).unwrap();
                now(d.sync_folder("b")).unwrap();
            },
            &["a/x", "b/y"],
            &["b/y"],
        ),
        (
            "a synced rename",
            |d| {
                now(d.rename("a/x", "b/y")).unwrap();
                now(d.sync_folder("b")).unwrap();
                now(d.sync_folder("a")).unwrap();
            },
            &["b/y"],
            &["b/y"],
        ),
        (
            "content synced, name not",
            |d| {
                let file = create(d, "c", 1);
                now(file.sync()).unwrap();
            },
            &["a/x", "b/y"],
            &["a/x", "b/y", "c"],
        ),
        (
            "a later change overtakes an earlier one",
            |d| {
                now(d.remove("a/x")).unwrap();
                create(d, "c", 1);
                now(d.sync_folder("")).unwrap();
            },
            &["a/x", "b/y", "c"],
            &["b/y", "c"],
        ),
    ];
    for (name, step, lost, kept) in cases {
        let disk = MemDisk::new("d0", MIB);
        for name in ["a/x", "b/y"] {
            let file = create(&disk, name, 0);
            write_durable(&file, 0, name.as_bytes());
        }
        now(disk.sync_folder("a")).unwrap();
        now(disk.sync_folder("b")).unwrap();
        let recorder = Recorder::new(std::slice::from_ref(&disk));
        step(&disk);
        let end = recorder.op_count();
        let crash = |mode, seed| recorder.crash_at(end, mode, seed).remove(0).file_names();
        assert_eq!(crash(Crash::LoseUnsynced, 1), *lost, "{name}");
        assert_eq!(crash(Crash::KeepUnsynced, 1), *kept, "{name}");
        for seed in 0..20 {
            let names = crash(Crash::Random, seed);
            assert!(names.contains(&"b/y".to_owned()), "{name}: {names:?}");
        }
    }
}

/// A sector of the model: its possible contents after a power loss now, the newest last.
type Sector = Vec<u8>;

#[derive(Clone, Debug)]
enum Step {
    Write {
        first: usize,
        count: usize,
        durable: bool,
    },
    Sync,
    SyncThatFails,
}

const SECTOR_COUNT: usize = 24;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..SECTOR_COUNT, 1..8usize, prop::bool::weighted(0.3))
            .prop_map(|(first, count, durable)| Step::Write { first, count, durable }),
        1 => Just(Step::Sync),
        1 => Just(Step::SyncThatFails),
    ]
}

proptest! {
    #[test]
    fn random_crashes_keep_sectors_in_order(
        steps in prop::collection::vec(step(), 0..30),
        seed: u64,
    ) {
        let disk = MemDisk::new("d0", MIB);
        let file = create(&disk, "f", (SECTOR_COUNT * SECTOR) as u64);
        now(file.sync()).unwrap();
        now(disk.sync_folder("")).unwrap();
        let recorder = Recorder::new(std::slice::from_ref(&disk));
        let mut model: Vec<Sector> = vec![vec![0]; SECTOR_COUNT];
        // Sectors whose last write was dropped by a failed sync: no later sync makes them durable.
        let mut abandoned = [false; SECTOR_COUNT];
        for (value, step) in (1u8..).zip(&steps) {
            match step {
                Step::Write { first, count, durable } => {
                    let range = *first..(first + count).min(SECTOR_COUNT);
                    let bytes = vec![value; range.len() * SECTOR];
                    let offset = (first * SECTOR) as u64;
                    if *durable {
                        write_durable(&file, offset, &bytes);
                    } else {
                        write(&file, offset, &bytes);
                    }
                    for sector in range {
                        abandoned[sector] = false;
                        if *durable {
                            model[sector].clear();
                        }
                        model[sector].push(value);
                    }
                }
                Step::Sync => {
                    now(file.sync()).unwrap();
                    for (sector, abandoned) in model.iter_mut().zip(abandoned) {
                        if !abandoned {
                            sector.drain(..sector.len() - 1);
                        }
                    }
                }
                Step::SyncThatFails => {
                    disk.fail_nth(OpKind::Sync, 0, Fault::Io);
                    now(file.sync()).unwrap_err();
                    for (sector, abandoned) in model.iter().zip(&mut abandoned) {
                        *abandoned |= sector.len() > 1;
                    }
                }
            }
        }
        let newest = disk.file_bytes("f").unwrap();
        let end = recorder.op_count();
        for (mode, seed) in [(Crash::KeepUnsynced, 0), (Crash::LoseUnsynced, 0)]
            .into_iter()
            .chain((0..8).map(|more| (Crash::Random, seed ^ more)))
        {
            let bytes = recorder.crash_at(end, mode, seed).remove(0).file_bytes("f").unwrap();
            prop_assert!(mode != Crash::KeepUnsynced || bytes == newest);
            prop_assert_eq!(bytes.len(), SECTOR_COUNT * SECTOR);
            for (index, (sector, allowed)) in bytes.chunks(SECTOR).zip(&model).enumerate() {
                prop_assert!(sector.iter().all(|byte| *byte == sector[0]), "torn within a sector");
                prop_assert!(allowed.contains(&sector[0]), "{:?} {}: {} of {:?}", mode, index, sector[0], allowed);
            }
        }
    }
}

/// A log of two copies: each record is durable on both disks before it is acknowledged.
#[tokio::test]
async fn recordings_replay_every_moment() {
    for seed in 0..5 {
        let disks = [MemDisk::new("d0", MIB), MemDisk::new("d1", MIB)];
        let recorder = Recorder::new(&disks);
        let mut files = Vec::new();
        for (index, disk) in (0..).zip(&disks) {
            disk.yield_at_random(seed * 2 + index, 3);
            let mode = OpenMode::CreateZeroed { len_bytes: 8192 };
            files.push(disk.open("log", mode).await.unwrap());
            files[index as usize].sync().await.unwrap();
            disk.sync_folder("").await.unwrap();
        }
        let start = recorder.op_count();
        let mut acknowledged_at = Vec::new();
        for record in 0..8u8 {
            let bytes = || vec![Bytes::from(vec![record + 1; 1024])];
            let offset = u64::from(record) * 1024;
            let (a, b) = tokio::join!(
                files[0].write_durable_at(offset, bytes()),
                files[1].write_durable_at(offset, bytes()),
            );
            a.and(b).unwrap();
            acknowledged_at.push(recorder.op_count());
        }
        let mut alone = [0, 0];
        for index in start..=recorder.op_count() {
            assert!(!recorder.describe(index).is_empty());
            for (mode, seed) in [
                (Crash::LoseUnsynced, 0),
                (Crash::Random, 1),
                (Crash::Random, 2),
            ] {
                let after = recorder.crash_at(index, mode, seed);
                let logs: Vec<_> = after
                    .iter()
                    .map(|disk| disk.file_bytes("log").unwrap())
                    .collect();
                for (record, at) in acknowledged_at.iter().enumerate() {
                    let want = vec![record as u8 + 1; 1024];
                    let has = |log: &Vec<u8>| log[record * 1024..][..1024] == want;
                    assert!(
                        *at > index || logs.iter().all(has),
                        "{}",
                        recorder.describe(index)
                    );
                    alone[0] += usize::from(has(&logs[0]) && !has(&logs[1]));
                    alone[1] += usize::from(has(&logs[1]) && !has(&logs[0]));
                }
            }
        }
        assert!(
            alone[0] > 0 && alone[1] > 0,
            "either disk can be the first: {alone:?}"
        );
        // Going back gives the result of going there directly.
        let names = |disks: Vec<Arc<MemDisk>>| disks[1].file_names();
        assert_eq!(names(recorder.crash_at(0, Crash::KeepUnsynced, 0)), [""; 0]);
    }
}

#[test]
fn space_is_limited_and_comes_back() {
    let disk = MemDisk::new("d0", 3 * 4096);
    let free = || disk.space().unwrap().free_bytes;
    let file = create(&disk, "a", 4097);
    assert_eq!(free(), 4096);
    let more = now(disk.open("b", OpenMode::CreateNew { len_bytes: 4097 }));
    assert_eq!(more.map(drop).map_err(kind), Err("full"));
    let part = || vec![Bytes::from_static(b"x")];
    assert_eq!(
        now(file.write_at(3 * 4096, part())).map_err(kind),
        Err("full")
    );
    assert_eq!(
        now(file.write_at(3 * 4096 - 1, part())).map_err(kind),
        Ok(())
    );
    assert_eq!(free(), 0);
    now(disk.remove("a")).unwrap();
    assert_eq!(free(), 0, "open files keep their space");
    drop(file);
    assert_eq!(free(), 3 * 4096);
    let (first, second) = (create(&disk, "a", 4096), create(&disk, "b", 4096));
    drop((first, second));
    now(disk.rename("a", "b")).unwrap();
    assert_eq!(free(), 2 * 4096);
    // Files that were made and removed do not pile up, with or without syncs.
    for _ in 0..2000 {
        drop(create(&disk, "t", 4096));
        now(disk.remove("t")).unwrap();
        now(disk.sync_folder("")).unwrap();
    }
    assert_eq!(free(), 2 * 4096);
    let after = disk.crash(Crash::LoseUnsynced, 0);
    assert_eq!(
        after.space().unwrap().free_bytes,
        3 * 4096,
        "b's length was never synced"
    );
    assert_eq!(disk.space().map_err(kind), Err("io"));
}

#[test]
fn faults_hit_what_they_are_meant_for() {
    let disk = MemDisk::new("d0", MIB);
    let file = create(&disk, "a", 0);
    let write = || now(file.write_at(0, vec![Bytes::from_static(b"x")])).map_err(kind);
    disk.fail_nth(OpKind::Write, 1, Fault::Full);
    assert_eq!([write(), write(), write()], [Ok(()), Err("full"), Ok(())]);
    disk.inject(FaultRule {
        kind: None,
        name_part: "b".to_owned(),
        skip: 0,
        times: 1,
        fault: Fault::Io,
    });
    assert_eq!(write(), Ok(()));
    let made = now(disk.open("b", OpenMode::CreateNew { len_bytes: 1 }));
    assert_eq!(made.map(drop).map_err(kind), Err("io"));
    disk.fail_all();
    assert_eq!(write(), Err("io"));
    assert_eq!(now(disk.list("")).map_err(kind), Err("io"));
    disk.clear_faults();
    assert_eq!(write(), Ok(()));
    disk.flip_bit("a", 0, 1);
    assert_eq!(disk.file_bytes("a").unwrap(), [b'x' ^ 2]);
    assert_eq!(disk.stats().writes, 4);
}

#[tokio::test]
async fn sleepers_wake_when_the_clock_is_moved() {
    let world = TestWorld::new(1);
    let clock = world.clock.clone();
    let before = clock.now();
    let sleeper = tokio::spawn(clock.sleep(Duration::from_secs(5)));
    while clock.next_deadline().is_none() {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(4));
    tokio::task::yield_now().await;
    assert!(!sleeper.is_finished());
    clock.advance(Duration::from_secs(1));
    sleeper.await.unwrap();
    assert_eq!(clock.now().seconds, before.seconds + 5);
    clock.step_wall(-100);
    assert_eq!(clock.now().seconds, before.seconds - 95);
    assert_eq!(clock.monotonic(), Duration::from_secs(5));
    assert_eq!(
        world.env.entropy.u64(),
        test_env().entropy.u64(),
        "one seed, one sequence"
    );
}

#[test]
fn what_others_have_on_a_disk_is_no_room_for_its_files_also_after_a_power_cut() {
    let disk = MemDisk::new("d", MIB);
    drop(create(&disk, "a", MIB / 4));
    disk.fill(MIB / 2);
    let free = |disk: &MemDisk| disk.space().unwrap().free_bytes;
    assert_eq!((disk.used_bytes(), free(&disk)), (MIB / 4, MIB / 4));
    let more = |disk: &MemDisk, len_bytes| {
        let made = now(disk.open("b", OpenMode::CreateNew { len_bytes }));
        made.map(drop).map_err(kind)
    };
    assert_eq!(more(&disk, MIB / 2), Err("full"));
    let disk = disk.crash(Crash::KeepUnsynced, 1);
    assert_eq!(more(&disk, MIB / 2), Err("full"));
    disk.fill(0);
    assert_eq!(more(&disk, MIB / 2), Ok(()));
}
