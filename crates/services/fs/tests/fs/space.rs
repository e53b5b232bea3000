//! Space: full pools, the space that deleting gives back, remains of failed or interrupted flushes, files cut into
//! very many extents, attributes that go with their inode.

use std::collections::BTreeMap;
use std::pin::pin;

use bytes::Bytes;
use cairn_base::disk::{Disk, OpenMode};
use cairn_base::{Ino, SegmentId};
use cairn_fs::*;
use cairn_meta::Key;
use cairn_testkit::{Crash, Fault, FaultRule, MemDisk, OpKind, Recorder, Rng};
use futures_util::FutureExt;

use crate::world::*;

const MIB: u64 = 1 << 20;

async fn create(fs: &Fs, name: &str) -> Result<Ino, FsError> {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs
        .create(&ROOT_USER, ROOT_INO, name.as_bytes(), mode)
        .await?;
    Ok(made.attr.ino)
}

async fn write(fs: &Fs, ino: Ino, offset: u64, data: &[u8]) -> Result<Written, FsError> {
    let data = Bytes::copy_from_slice(data);
    fs.write(&ROOT_USER, ino, offset, data, Stability::Unstable)
        .await
}

async fn commit(fs: &Fs, ino: Ino) -> Result<(), FsError> {
    fs.commit(&ROOT_USER, ino, 0, 0).await.map(|_| ())
}

async fn truncate(fs: &Fs, ino: Ino, size_bytes: u64) -> Result<(), FsError> {
    let set = SetAttr {
        size_bytes: Some(size_bytes),
        ..SetAttr::default()
    };
    fs.set_attr(&ROOT_USER, ino, set, None).await.map(|_| ())
}

async fn remove(fs: &Fs, name: &str) -> Result<(), FsError> {
    let removed = fs.remove(&ROOT_USER, ROOT_INO, name.as_bytes()).await;
    removed.map(|_| ())
}

/// The segments that have a shard on a disk.
fn segments_on(disk: &MemDisk) -> Vec<SegmentId> {
    let mut found: Vec<SegmentId> = disk
        .file_names()
        .iter()
        .filter_map(|name| name.strip_prefix("shards/")?.split(['/', '.']).nth(1))
        .map(|digits| SegmentId(u64::from_str_radix(digits, 16).unwrap()))
        .collect();
    found.sort_unstable();
    found
}

/// Checks the space counters against the extents.
fn check_counters(fs: &Fs) {
    let (from, to) = Key::all_extents();
    let mut file_bytes = 0;
    let mut records = BTreeMap::new();
    for (key, value) in fs.meta().live().scan(&from, &to, usize::MAX).unwrap() {
        let Ok(cairn_meta::KeyKind::Extent { end_offset, .. }) = key.kind() else {
            panic!("{key:?} is no extent");
        };
        let extent = cairn_meta::ExtentRecord::decode(&value).unwrap();
        file_bytes += end_offset - extent.start;
        if let cairn_meta::ExtentPlace::Record { record, .. } = &extent.place {
            *records.entry(record.location.segment).or_insert(0) += 1;
        }
    }
    assert_eq!(fs.meta().counters().file_bytes, file_bytes);
    for (id, record) in fs.meta().segments() {
        assert_eq!(record.live_records, records.get(&id).copied().unwrap_or(0));
    }
    assert_eq!(fs.meta().stats().counter_errors, 0);
}

/// Each of them alone would take a block of every shard. They are stable in the journal, and a snapshot or the end of
/// the volume moves all of them at once.
#[test]
fn small_files_that_are_flushed_together_share_stripes() {
    block_on(async {
        const FILES: usize = 300;
        for is_snapshot in [true, false] {
            let world = World::new(1, 3).await;
            let fs = &world.fs;
            let mut names = Vec::new();
            for number in 0..FILES {
                let name = format!("f{number}");
                let ino = create(fs, &name).await.unwrap();
                write(fs, ino, 0, &pattern(1000, number as u8))
                    .await
                    .unwrap();
                commit(fs, ino).await.unwrap();
                names.push((ino, number as u8));
            }
            assert_eq!(world.segments.stats().appended_bytes, 0, "in the journal");
            match is_snapshot {
                true => drop(fs.take_snapshot(b"now", b"").await.unwrap()),
                false => fs.close().await.unwrap(),
            }
            let stats = world.segments.stats();
            assert!(stats.appended_bytes > 0);
            assert!(stats.padding_bytes < stats.appended_bytes / 5, "{stats:?}");
            let world = world.restart(2).await;
            for (ino, byte) in names {
                assert_eq!(read_all(&world.fs, ino).await, pattern(1000, byte));
            }
        }
    });
}

/// A file that is removed during its first flush: the segment that the flush makes never gets into the metadata.
#[test]
fn a_segment_that_nothing_refers_to_is_deleted() {
    block_on(async {
        let world = World::new(1, 1).await;
        let fs = &world.fs;
        let ino = create(fs, "a").await.unwrap();
        // Enough sequential bytes to start a flush at once, which runs when this test waits next.
        for part in 0..8 {
            write(fs, ino, part * MIB, &pattern(MIB as u32, 1))
                .await
                .unwrap();
        }
        remove(fs, "a").await.unwrap();
        world.run_for(2).await;
        assert_eq!(fs.stats().dirty_bytes, 0, "the flush has ended");
        let left = world.segments.segments(VOLUME);
        assert!(!left.is_empty(), "it made a segment");
        assert_eq!(fs.meta().segments(), [], "which the metadata never knew");
        // Open segments are sealed after a minute without use.
        world.run_for(70).await;
        assert_eq!(world.segments.segments(VOLUME), []);
        assert_eq!(fs.stats().gc_segments_removed, left.len() as u64);
        assert_eq!(fs.stats().gc_errors, 0);
        fs.close().await.unwrap();
    });
}

/// Killed at every write: after the next start only segments that the metadata knows take space.
#[test]
fn a_crash_leaves_no_segments_behind() {
    block_on(async {
        let world = World::new(2, 1).await;
        let recorder = Recorder::new(&world.disks);
        let fs = &world.fs;
        for name in ["a", "b"] {
            let ino = create(fs, name).await.unwrap();
            for part in 0..5 {
                write(fs, ino, part * MIB, &pattern(MIB as u32, 1))
                    .await
                    .unwrap();
            }
            commit(fs, ino).await.unwrap();
        }
        let mut swept_count = 0;
        for index in 0..=recorder.op_count() {
            let disks = recorder.crash_at(index, Crash::KeepUnsynced, index as u64);
            let disk = disks[0].clone();
            let world = World::open(3, disks).await;
            let swept = world.segments.sweep(VOLUME).await.unwrap();
            swept_count += swept.shards_removed;
            let mut known: Vec<SegmentId> = world
                .fs
                .meta()
                .segments()
                .into_iter()
                .map(|(id, _)| id)
                .collect();
            known.sort_unstable();
            assert_eq!(segments_on(&disk), known, "{}", index);
        }
        assert!(swept_count > 0, "some crash came between append and commit");
    });
}

/// Small files until nothing fits, then all deleted, three times. Stored files stay readable, and as much fits the
/// last time as before. (The first time the log does not have all its files yet.)
#[test]
fn a_pool_filled_with_small_files_can_be_emptied_and_filled_again() {
    block_on(async {
        let world = World::with_capacity(4, 1, 96 * MIB).await;
        let fs = &world.fs;
        let data = Rng::new(4).bytes(100_000);
        let mut counts = Vec::new();
        for _ in 0..3 {
            let mut names = Vec::new();
            loop {
                let name = format!("file{}", names.len());
                let written = async {
                    let ino = create(fs, &name).await?;
                    write(fs, ino, 0, &data).await?;
                    commit(fs, ino).await?;
                    Ok::<_, FsError>(ino)
                };
                match written.await {
                    Ok(ino) => names.push((name, ino)),
                    Err(error) => {
                        assert_eq!(error, FsError::NoSpace);
                        break;
                    }
                }
                assert!(names.len() < 2000, "the pool never fills");
            }
            // A full volume refuses names as well, and reading goes on.
            let refused = fs
                .make_dir(&ROOT_USER, ROOT_INO, b"dir", SetAttr::default())
                .await;
            let free_bytes = fs.space().await.unwrap().free_bytes;
            if free_bytes < 4096 {
                assert_eq!(refused.unwrap_err(), FsError::NoSpace);
            } else if refused.is_ok() {
                fs.remove_dir(&ROOT_USER, ROOT_INO, b"dir").await.unwrap();
            }
            for (_, ino) in names.iter().step_by(50) {
                assert!(read_all(fs, *ino).await == data);
            }
            counts.push(names.len());
            let last = format!("file{}", names.len());
            match remove(fs, &last).await {
                Ok(()) | Err(FsError::NotFound) => {}
                Err(error) => panic!("{error}"),
            }
            for (name, _) in names {
                remove(fs, &name).await.unwrap();
            }
            world.run_for(70).await;
            assert_eq!(fs.meta().counters().file_bytes, 0);
            assert_eq!(world.segments.segments(VOLUME), []);
            check_counters(fs);
        }
        assert!(counts[0] > 400, "{counts:?}");
        // Log files come and go, each as large as forty of these files.
        assert!(counts[2] + 100 >= counts[1], "{counts:?}");
        fs.close().await.unwrap();
    });
}

async fn take_all_but(disk: &MemDisk, name: &str, left_bytes: u64) {
    let len_bytes = disk.space().unwrap().free_bytes.saturating_sub(left_bytes);
    let ballast = disk.open(name, OpenMode::CreateNew { len_bytes });
    drop(ballast.await.unwrap());
    disk.sync_folder("").await.unwrap();
}

/// Others fill a disk, so that not even the state of the metadata can be written: new data is refused, all else goes
/// on, a restart finds everything, and with space again all is as before.
#[test]
fn a_disk_without_space_for_metadata_stops_only_what_adds() {
    block_on(async {
        let mut world = World::with_capacity(5, 1, 256 * MIB).await;
        for file in 0..40 {
            let ino = create(&world.fs, &format!("file{file}")).await.unwrap();
            write(&world.fs, ino, 0, &pattern(10_000, file))
                .await
                .unwrap();
            commit(&world.fs, ino).await.unwrap();
        }
        world = world.restart(6).await;
        for round in 0..2 {
            let fs = &world.fs;
            // The restart may have given up old log files.
            take_all_but(&world.disks[0], &format!("ballast{round}"), 8192).await;
            remove(fs, &format!("file{}", 10 + round)).await.unwrap();
            assert!(fs.meta().ship().await.is_err());
            remove(fs, &format!("file{}", 20 + round)).await.unwrap();
            world.run_for(3).await;
            assert!(fs.meta().is_full(), "round {round}");
            assert_eq!(create(fs, "new").await.unwrap_err(), FsError::NoSpace);
            remove(fs, &format!("file{}", 1 + round)).await.unwrap();
            let (attr, _) = fs.lookup(&ROOT_USER, ROOT_INO, b"file9").await.unwrap();
            assert!(read_all(fs, attr.ino).await == pattern(10_000, 9));
            let gone = fs.lookup(&ROOT_USER, ROOT_INO, b"file1").await;
            assert_eq!(gone.unwrap_err(), FsError::NotFound);
            // Removed files are deleted a moment later.
            world.run_for(1).await;
            // Access times would take space that deletions need.
            let before = fs.meta().stats().submitted;
            for file in 30..40 {
                let name = format!("file{file}").into_bytes();
                let (attr, _) = fs.lookup(&ROOT_USER, ROOT_INO, &name).await.unwrap();
                assert!(read_all(fs, attr.ino).await == pattern(10_000, file));
            }
            world.run_for(4).await;
            assert_eq!(fs.meta().stats().submitted, before);
            if round == 0 {
                world = world.crash(7, Crash::LoseUnsynced).await;
            }
        }
        for round in 0..2 {
            let name = format!("ballast{round}");
            world.disks[0].remove(&name).await.unwrap();
        }
        world.run_for(3).await;
        let fs = &world.fs;
        assert!(!fs.meta().is_full());
        create(fs, "new").await.unwrap();
        fs.close().await.unwrap();
        world = World::open(8, world.disks).await;
        assert_eq!(world.fs.meta().counters().inodes, 1 + 40 - 6 + 1);
        check_counters(&world.fs);
    });
}

/// Where not even a start finds room, the volume is read-only: it shows stored data, data that is only in the
/// journal, and snapshots. Every change is refused at once and invisible, and nothing is lost.
#[test]
fn a_volume_that_is_opened_to_be_read_refuses_every_change() {
    block_on(async {
        let world = World::with_capacity(15, 3, 256 * MIB).await;
        let mut inos = Vec::new();
        for file in 0..10 {
            let ino = create(&world.fs, &format!("file{file}")).await.unwrap();
            write(&world.fs, ino, 0, &pattern(200_000, file))
                .await
                .unwrap();
            commit(&world.fs, ino).await.unwrap();
            inos.push(ino);
        }
        world.fs.take_snapshot(b"before", b"").await.unwrap();
        world.fs.reserve(inos[3], MIB).await.unwrap();
        let journaled = Bytes::from(pattern(5000, 99));
        let stable = Stability::Stable;
        world
            .fs
            .write(&ROOT_USER, inos[0], 100, journaled.clone(), stable)
            .await
            .unwrap();
        let mut changed = pattern(200_000, 0);
        changed[100..5100].copy_from_slice(&journaled);
        world.fs.abandon();
        // Flushes that were in progress.
        world.run_for(3).await;
        for disk in &world.disks {
            take_all_but(disk, "other", 0).await;
        }
        for _ in 0..2 {
            let fs = world.open_to_read().await;
            assert!(fs.read_only().is_some());
            for _ in 0..2 {
                assert!(read_all(&fs, inos[0]).await == changed);
                for (file, ino) in (0..10).zip(&inos).skip(1) {
                    assert!(read_all(&fs, *ino).await == pattern(200_000, file));
                }
                let snapshot = fs.snapshots().into_iter().next().unwrap();
                let view = cairn_base::View::Snapshot(snapshot.generation);
                let view = fs.in_view(view).unwrap();
                assert!(read_all(&view, inos[0]).await == pattern(200_000, 0));
                let before = fs.lookup(&ROOT_USER, ROOT_INO, b"file1").await.unwrap().0;
                let refused = [
                    create(&fs, "new").await.map(drop),
                    write(&fs, inos[1], 0, b"new").await.map(drop),
                    fs.write(&ROOT_USER, inos[1], 0, Bytes::from_static(b"new"), stable)
                        .await
                        .map(drop),
                    truncate(&fs, inos[1], 1).await,
                    remove(&fs, "file1").await,
                    fs.rename(&ROOT_USER, ROOT_INO, b"file1", ROOT_INO, b"new")
                        .await
                        .map(drop),
                    fs.set_xattr(&ROOT_USER, inos[1], b"user.a", b"x", XattrMode::Any)
                        .await
                        .map(drop),
                    fs.reserve(inos[1], 4096).await,
                    fs.unreserve(inos[3]).await,
                ];
                for (index, refused) in refused.into_iter().enumerate() {
                    assert_eq!(refused, Err(FsError::NoSpace), "{index}");
                }
                assert_eq!(fs.reserved_bytes(inos[3]), MIB);
                assert!(fs.take_snapshot(b"new", b"").await.is_err());
                assert_eq!(fs.snapshots().len(), 1);
                // A client that did not hear of it before asks for stable bytes.
                commit(&fs, inos[0]).await.unwrap();
                let missing = fs.lookup(&ROOT_USER, ROOT_INO, b"new").await;
                assert_eq!(missing.unwrap_err(), FsError::NotFound);
                let after = fs.lookup(&ROOT_USER, ROOT_INO, b"file1").await.unwrap().0;
                assert_eq!(after, before);
                world.run_for(3).await;
            }
            fs.close().await.unwrap();
        }
        for disk in &world.disks {
            disk.remove("other").await.unwrap();
        }
        let fs = world.open_again().await;
        assert!(fs.read_only().is_none());
        assert!(read_all(&fs, inos[0]).await == changed);
        write(&fs, inos[1], 0, b"new").await.unwrap();
        remove(&fs, "file2").await.unwrap();
        fs.close().await.unwrap();
    });
}

/// Single bytes with holes between them: more extents than one batch may replace or remove.
#[test]
fn files_of_very_many_extents_are_overwritten_and_cut_in_steps() {
    // More bytes in all than the journal takes, so that every commit goes to segments.
    const COUNT: u64 = 40_000;
    block_on(async {
        let mut world = World::new(9, 1).await;
        let mut model = vec![0; 2 * COUNT as usize];
        let ino = create(&world.fs, "a").await.unwrap();
        for round in 0..3u8 {
            let fs = &world.fs;
            for at in (0..2 * COUNT).step_by(2) {
                write(fs, ino, at, &[round + 1]).await.unwrap();
                model[at as usize] = round + 1;
            }
            truncate(fs, ino, 2 * COUNT).await.unwrap();
            commit(fs, ino).await.unwrap();
            assert!(read_all(fs, ino).await == model);
            let (from, to) = Key::extents_past(ino, 0);
            let extents = fs.meta().live().scan(&from, &to, usize::MAX).unwrap().len() as u64;
            match round {
                0 => assert_eq!(extents, COUNT),
                _ => assert!(extents > COUNT / 2),
            }
            match round {
                // All but the first and the last byte.
                0 => {
                    let data = pattern(2 * COUNT as u32 - 2, 77);
                    model[1..2 * COUNT as usize - 1].copy_from_slice(&data);
                    write(fs, ino, 1, &data).await.unwrap();
                    commit(fs, ino).await.unwrap();
                }
                1 => {
                    truncate(fs, ino, 11).await.unwrap();
                    truncate(fs, ino, 2 * COUNT).await.unwrap();
                    model[11..].fill(0);
                }
                _ => {}
            }
            assert!(read_all(fs, ino).await == model, "round {round}");
            check_counters(fs);
            world = world.crash(10, Crash::LoseUnsynced).await;
            assert!(
                read_all(&world.fs, ino).await == model,
                "round {round}, restarted"
            );
            check_counters(&world.fs);
        }
        remove(&world.fs, "a").await.unwrap();
        world.run_for(1).await;
        assert_eq!(world.fs.meta().counters().file_bytes, 0);
        check_counters(&world.fs);
    });
}

/// Extended attributes, beyond the property test: limits, permissions, and their end.
#[test]
fn extended_attributes_have_limits_and_go_with_their_inode() {
    block_on(async {
        let world = World::new(11, 1).await;
        let fs = &world.fs;
        let ino = create(fs, "a").await.unwrap();
        let xattr_count = |ino| {
            let (from, to) = Key::xattrs(ino);
            fs.meta().live().scan(&from, &to, usize::MAX).unwrap().len()
        };
        let set = |number: u32| {
            let name = format!("user.{number:0>250}").into_bytes();
            async move {
                let set = fs.set_xattr(&ROOT_USER, ino, &name, b"x", XattrMode::Any);
                set.await.map(|_| ())
            }
        };
        for number in 0..256 {
            set(number).await.unwrap();
        }
        assert_eq!(set(256).await, Err(FsError::NoSpace), "the list is full");
        set(255).await.unwrap();
        assert_eq!(xattr_count(ino), 256);

        let stranger = Credentials {
            uid: 7,
            gid: 7,
            groups: Vec::new(),
            request: None,
        };
        let name = format!("user.{:0>250}", 0).into_bytes();
        fs.xattr(&stranger, ino, &name).await.unwrap();
        let refused = fs.set_xattr(&stranger, ino, b"user.b", b"x", XattrMode::Any);
        assert_eq!(refused.await.unwrap_err(), FsError::AccessDenied);
        let chmod = |mode| SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        let shut = fs.set_attr(&ROOT_USER, ino, chmod(0), None);
        shut.await.unwrap();
        let refused = fs.xattr(&stranger, ino, &name).await;
        assert_eq!(refused.unwrap_err(), FsError::AccessDenied);
        assert_eq!(fs.xattr_list(&stranger, ino).await.unwrap().len(), 256);
        let sticky = fs
            .make_dir(&ROOT_USER, ROOT_INO, b"tmp", chmod(0o1777))
            .await
            .unwrap();
        let refused = fs.set_xattr(&stranger, sticky.attr.ino, b"user.b", b"x", XattrMode::Any);
        assert_eq!(refused.await.unwrap_err(), FsError::NotOwner);

        // Without data it is deleted at once, with data by the reaper.
        let full = create(fs, "b").await.unwrap();
        let before = fs.attr(full).await.unwrap();
        let set = fs.set_xattr(&ROOT_USER, full, b"user.b", b"x", XattrMode::Create);
        let after = set.await.unwrap();
        assert!(after.ctime > before.ctime);
        assert_eq!(after.mtime, before.mtime);
        write(fs, full, 0, &pattern(200_000, 1)).await.unwrap();
        commit(fs, full).await.unwrap();
        fs.link(&ROOT_USER, full, ROOT_INO, b"c").await.unwrap();
        remove(fs, "b").await.unwrap();
        assert_eq!(xattr_count(full), 1, "a name is left");
        remove(fs, "c").await.unwrap();
        remove(fs, "a").await.unwrap();
        world.run_for(1).await;
        assert_eq!((xattr_count(ino), xattr_count(full)), (0, 0));
        let gone = fs.xattr_list(&ROOT_USER, full).await;
        assert_eq!(gone.unwrap_err(), FsError::Stale);
        fs.close().await.unwrap();
    });
}

/// Two volumes share the memory for dirty data: the data of one is flushed when the other needs room.
#[test]
fn volumes_share_the_memory_for_dirty_data() {
    block_on(async {
        let dirty = DirtyBudget::new(8 * MIB);
        let first = World::with_dirty(12, dirty.clone()).await;
        let second = World::with_dirty(13, dirty.clone()).await;
        let ino = create(&first.fs, "a").await.unwrap();
        for part in 0..5 {
            // Far from each other: no stream, so nothing is flushed by itself.
            write(&first.fs, ino, part * 64 * MIB, &pattern(MIB as u32, 1))
                .await
                .unwrap();
        }
        assert_eq!(dirty.bytes(), 5 * MIB);
        let ino = create(&second.fs, "a").await.unwrap();
        for part in 0..4 {
            write(&second.fs, ino, part * 64 * MIB, &pattern(MIB as u32, 1))
                .await
                .unwrap();
        }
        assert!(first.fs.stats().flushed_bytes > 0, "it made room");
        assert!(dirty.memory_bytes() <= dirty.bytes_max());
        let held = first.fs.stats().dirty_bytes + second.fs.stats().dirty_bytes;
        assert_eq!(dirty.bytes(), held);
        first.fs.close().await.unwrap();
        second.fs.close().await.unwrap();
        assert_eq!(dirty.bytes(), 0);
    });
}

/// A flush all over a file of more extents than may be in memory lands, and so do concurrent reads and garbage
/// collections. (It once loaded and forgot extents in turns, for ever.)
#[test]
fn a_flush_all_over_a_file_of_very_many_extents_lands() {
    const EXTENTS: u64 = 150_000;
    const STRIDE: u64 = 6 << 10;
    const PASSES: u8 = 2;
    block_on(async {
        let world = World::with_extents_max(14, 1000).await;
        let fs = &world.fs;
        let ino = create(fs, "database").await.unwrap();
        for pass in 1..=PASSES {
            for index in 0..EXTENTS {
                write(fs, ino, index * STRIDE, &[pass; 16]).await.unwrap();
            }
            commit(fs, ino).await.unwrap();
        }
        // One write here and there, which one flush takes.
        for index in (0..EXTENTS).step_by(5000) {
            write(fs, ino, index * STRIDE, &[PASSES + 1; 16])
                .await
                .unwrap();
        }
        commit(fs, ino).await.unwrap();
        assert!(
            fs.stats().extents_in_memory < EXTENTS / 2,
            "the limit holds"
        );
        for index in (0..EXTENTS).step_by(1250) {
            let found = fs.read(&ROOT_USER, ino, index * STRIDE, 32).await.unwrap();
            let mut bytes = found.parts.concat();
            bytes.resize(32, 0);
            let want = if index % 5000 == 0 {
                PASSES + 1
            } else {
                PASSES
            };
            assert_eq!(bytes[..16], [want; 16], "{index}");
            assert_eq!(bytes[16..], [0; 16], "{index}");
        }
        fs.close().await.unwrap();
    });
}

/// Bytes of data that segments take on the disks: without files that wait to be used again, and without the free room
/// of open segments.
fn used_bytes(world: &World, data: u64, total: u64) -> u64 {
    let sizes = world.disks.iter().flat_map(|disk| disk.file_sizes());
    let shards = sizes.filter(|(name, _)| name.starts_with("shards/"));
    let raw_bytes: u64 = shards.map(|(_, len_bytes)| len_bytes).sum();
    raw_bytes / total * data - world.segments.stats().open_room_bytes
}

/// A file is overwritten at random with ten times its size: the used space stays in proportion.
#[test]
fn random_overwrites_do_not_grow_without_end() {
    const FILE_BYTES: u64 = 24 * MIB;
    const WRITE_BYTES: u64 = 24 << 10;
    block_on(async {
        let gc = GcSettings {
            garbage_bytes: Some(0),
            ..GcSettings::default()
        };
        let world = World::with_gc(15, 3, 256 * MIB, gc).await;
        let fs = &world.fs;
        let mut rng = Rng::new(15);
        let mut model = rng.bytes(FILE_BYTES as usize);
        let ino = create(fs, "database").await.unwrap();
        for (index, data) in model.chunks(MIB as usize).enumerate() {
            write(fs, ino, index as u64 * MIB, data).await.unwrap();
        }
        commit(fs, ino).await.unwrap();
        let mut used_max = 0;
        for nth in 0..10 * FILE_BYTES / WRITE_BYTES {
            let at = rng.below(FILE_BYTES - WRITE_BYTES);
            let data = rng.bytes(WRITE_BYTES as usize);
            model[at as usize..(at + WRITE_BYTES) as usize].copy_from_slice(&data);
            write(fs, ino, at, &data).await.unwrap();
            if nth % 40 == 0 {
                commit(fs, ino).await.unwrap();
                world.run_for(3).await;
                used_max = used_max.max(used_bytes(&world, 1, 3));
            }
        }
        commit(fs, ino).await.unwrap();
        assert!(read_all(fs, ino).await == model);
        // Beside the garbage: one segment of 4 MiB that was just filled, and data that came since the last survey.
        let bound = FILE_BYTES * 3 / 2 + 4 * MIB;
        assert!(used_max < bound, "{used_max} of {bound}");
        let stats = fs.stats();
        assert!(
            stats.gc_rewritten_bytes < 3 * stats.written_bytes,
            "{stats:?}"
        );
        assert_eq!(stats.gc_errors, 0);
        check_counters(fs);
        fs.close().await.unwrap();
    });
}

/// The disks report room, and take no new files: a write that waits for memory is refused, once a repeated flush has
/// found no space either.
#[test]
fn a_write_that_waits_for_flushes_that_find_no_space_is_refused() {
    block_on(async {
        let world = World::with_dirty(17, DirtyBudget::new(8 * MIB)).await;
        let fs = &world.fs;
        let ino = create(fs, "file").await.unwrap();
        world.disks[0].inject(FaultRule {
            kind: Some(OpKind::Create),
            name_part: "shards/".to_owned(),
            skip: 0,
            times: u64::MAX,
            fault: Fault::Full,
        });
        let data = pattern(MIB as u32, 1);
        for index in 0..7 {
            write(fs, ino, index * MIB, &data).await.unwrap();
        }
        let mut refused = None;
        for index in 7..9 {
            let mut writing = pin!(write(fs, ino, index * MIB, &data));
            for _ in 0..10 {
                if let Some(ended) = writing.as_mut().now_or_never() {
                    refused = ended.err();
                    break;
                }
                world.run_for(1).await;
            }
        }
        assert_eq!(refused, Some(FsError::NoSpace));
        assert!(fs.space().await.unwrap().free_bytes > 64 * MIB);
        // There is space again: acknowledged data is written, and more is accepted.
        world.disks[0].clear_faults();
        world.run_for(10).await;
        write(fs, ino, 9 * MIB, &data).await.unwrap();
        commit(fs, ino).await.unwrap();
        fs.close().await.unwrap();
    });
}

/// A pool full of small files, every other of which is deleted: half of the space comes back within a minute,
/// although no segment is empty, and only the reserve has room for the copies.
#[test]
fn half_of_a_full_pool_comes_back() {
    block_on(async {
        let mut world = World::with_capacity(16, 3, 256 * MIB).await;
        let data = Rng::new(16).bytes(200_000);
        for round in 0..2 {
            let fs = &world.fs;
            let mut names = Vec::new();
            loop {
                let name = format!("{round}-{}", names.len());
                let written = async {
                    let ino = create(fs, &name).await?;
                    write(fs, ino, 0, &data).await?;
                    commit(fs, ino).await
                };
                if let Err(error) = written.await {
                    assert_eq!(error, FsError::NoSpace);
                    // Changes without a reply may be there, and be written when there is space.
                    let _ = remove(fs, &name).await;
                    break;
                }
                names.push(name);
            }
            assert!(names.len() > 300, "{}", names.len());
            let full = fs.space().await.unwrap();
            for name in names.iter().step_by(2) {
                remove(fs, name).await.unwrap();
            }
            world.run_for(60).await;
            let space = fs.space().await.unwrap();
            let back = space.free_bytes.saturating_sub(full.free_bytes);
            let deleted = (names.len() as u64).div_ceil(2) * 200_000;
            assert!(back > deleted / 10 * 8, "{back} of {deleted}: {space:?}");
            for name in names.iter().skip(1).step_by(2) {
                let (attr, _) = fs
                    .lookup(&ROOT_USER, ROOT_INO, name.as_bytes())
                    .await
                    .unwrap();
                assert!(read_all(fs, attr.ino).await == data);
                remove(fs, name).await.unwrap();
            }
            world.run_for(70).await;
            assert_eq!(fs.stats().gc_errors, 0);
            check_counters(fs);
            world = world.restart(17).await;
        }
        // The last segment of garbage collection was still open.
        world.run_for(10).await;
        assert_eq!(world.segments.segments(VOLUME), []);
    });
}

/// The space that sealing gave back is no garbage, also after a restart: a volume without writes is left alone.
#[test]
fn short_segments_are_not_rewritten() {
    block_on(async {
        let gc = GcSettings {
            garbage_bytes: Some(0),
            ..GcSettings::default()
        };
        // Each segment has a block for its summary, which holds no live record.
        let spared = |world: &World| 20_000 + 4096 * world.fs.meta().segments().len() as u64;
        let mut world = World::with_gc(18, 3, 256 * MIB, gc).await;
        for round in 0..3 {
            let name = format!("file{round}");
            let ino = create(&world.fs, &name).await.unwrap();
            write(&world.fs, ino, 0, &Rng::new(round).bytes(500_000))
                .await
                .unwrap();
            commit(&world.fs, ino).await.unwrap();
            world.run_for(130).await;
            assert_eq!(world.fs.stats().gc_rewritten_bytes, 0, "round {round}");
            let backlog = world.fs.gc_backlog();
            assert!(backlog.sparse_bytes < spared(&world), "{backlog:?}");
            world = world.restart(19 + round).await;
            let backlog = world.fs.gc_backlog();
            assert!(backlog.sparse_bytes < spared(&world), "{backlog:?}");
        }
    });
}

/// The usual garbage of a volume with writers is given back when it is idle: others can use the space.
#[test]
fn a_volume_that_nobody_writes_to_gives_more_back() {
    block_on(async {
        let gc = GcSettings {
            garbage_percent: 100,
            garbage_bytes: Some(0),
            ..GcSettings::default()
        };
        let world = World::with_gc(47, 1, 256 * MIB, gc).await;
        let fs = &world.fs;
        let data = Rng::new(47).bytes(300_000);
        let mut kept = Vec::new();
        for nth in 0..20 {
            let ino = create(fs, &format!("file{nth}")).await.unwrap();
            write(fs, ino, 0, &data).await.unwrap();
            commit(fs, ino).await.unwrap();
            if nth % 5 > 1 {
                kept.push(ino);
            }
        }
        let busy = create(fs, "busy").await.unwrap();
        world.run_for(65).await;
        for nth in (0..20).filter(|nth| nth % 5 <= 1) {
            remove(fs, &format!("file{nth}")).await.unwrap();
        }
        for _ in 0..5 {
            write(fs, busy, 0, &data[..100_000]).await.unwrap();
            commit(fs, busy).await.unwrap();
            world.run_for(20).await;
        }
        let backlog = fs.gc_backlog();
        let live_bytes = fs.meta().segment_totals().live_bytes;
        assert!(backlog.sparse_bytes > live_bytes / 4, "{backlog:?}");
        assert_eq!(backlog.bytes(), 0, "{backlog:?}");
        assert_eq!(fs.stats().gc_rewritten_bytes, 0);
        world.run_for(60).await;
        world.run_for(300).await;
        let backlog = fs.gc_backlog();
        assert!(backlog.sparse_bytes <= live_bytes / 5, "{backlog:?}");
        assert!(fs.stats().gc_rewritten_bytes > 0);
        for ino in kept {
            assert!(read_all(fs, ino).await == data);
        }
        check_counters(fs);
    });
}

/// Files that wait for new shards took all space that the metadata could have used. It found the disk full, so
/// nothing more was written, which alone would have used those files.
#[test]
fn files_that_wait_for_shards_make_room_for_the_metadata() {
    block_on(async {
        let world = World::with_capacity(20, 1, 256 * MIB).await;
        let fs = &world.fs;
        let ino = create(fs, "large").await.unwrap();
        for part in 0..24 {
            write(fs, ino, part * MIB, &Rng::new(part).bytes(MIB as usize))
                .await
                .unwrap();
        }
        commit(fs, ino).await.unwrap();
        remove(fs, "large").await.unwrap();
        world.run_for(70).await;
        let waiting = |(name, len): (String, u64)| name.starts_with("free/").then_some(len);
        let waiting_bytes: u64 = world.disks[0]
            .file_sizes()
            .into_iter()
            .filter_map(waiting)
            .sum();
        assert!(waiting_bytes > 8 * MIB, "{waiting_bytes}");
        take_all_but(&world.disks[0], "ballast", 0).await;
        assert!(fs.meta().ship().await.is_err());
        world.run_for(10).await;
        assert!(!fs.meta().is_full());
        create(fs, "new").await.unwrap();
        fs.close().await.unwrap();
    });
}

/// One flush of a few bytes here and of a range of very many extents there: loading one place evicted the other, in
/// turns, for ever.
#[test]
fn a_flush_of_two_places_needs_both_in_memory() {
    const DENSE_AT: u64 = 16 * MIB;
    const COUNT: u64 = 40_000;
    block_on(async {
        let world = World::with_extents_max(21, 1000).await;
        let fs = &world.fs;
        let ino = create(fs, "a").await.unwrap();
        for at in (0..COUNT).map(|nth| DENSE_AT + 2 * nth) {
            write(fs, ino, at, &[1]).await.unwrap();
        }
        // More than is loaded at once lies between the two places.
        for at in 0..400 {
            write(fs, ino, at * 8192, &[1; 100]).await.unwrap();
        }
        commit(fs, ino).await.unwrap();
        write(fs, ino, 10, &[2; 20]).await.unwrap();
        write(fs, ino, DENSE_AT, &vec![2; 2 * COUNT as usize])
            .await
            .unwrap();
        commit(fs, ino).await.unwrap();
        let found = fs.read(&ROOT_USER, ino, 0, 40).await.unwrap();
        let want = [[1; 10].as_slice(), &[2; 20], &[1; 10]].concat();
        assert_eq!(found.parts.concat(), want);
        let found = fs.read(&ROOT_USER, ino, DENSE_AT, 100_000).await.unwrap();
        assert!(found.parts.concat() == vec![2; 2 * COUNT as usize]);
        check_counters(fs);
        fs.close().await.unwrap();
    });
}

/// A file with an invalid extent and one with an invalid pointer cannot be deleted or moved as a whole: neither keeps
/// space from others.
#[test]
fn what_makes_no_sense_keeps_no_space_of_others() {
    const LEN_BYTES: u64 = 200_000;
    block_on(async {
        let gc = GcSettings {
            garbage_bytes: Some(0),
            ..GcSettings::default()
        };
        let world = World::with_gc(23, 1, 256 * MIB, gc).await;
        let fs = &world.fs;
        let data = Rng::new(23).bytes(LEN_BYTES as usize);
        let mut inos = Vec::new();
        for nth in 0..100 {
            let ino = create(fs, &format!("file{nth}")).await.unwrap();
            write(fs, ino, 0, &data).await.unwrap();
            commit(fs, ino).await.unwrap();
            inos.push(ino);
        }
        let (bad, good) = (inos[0], inos[2]);
        let (from, to) = Key::extents_past(bad, 0);
        let stored = fs.meta().live().scan(&from, &to, 1).unwrap();
        let mut nowhere = cairn_meta::ExtentRecord::decode(&stored[0].1).unwrap();
        nowhere.start = 1 << 40;
        let cairn_meta::ExtentPlace::Record { record, .. } = &mut nowhere.place else {
            panic!("{nowhere:?} is in no record");
        };
        record.location.stripe_block = 1 << 20;
        let mut batch = cairn_meta::Batch::new();
        batch.put(Key::extent(bad, (1 << 40) + 4096), nowhere.encode());
        batch.put(Key::extent(bad, 1 << 41), vec![0xff]);
        let ticket = fs.meta().submit(batch);
        fs.meta().durable(ticket).await.unwrap();
        // The bad one last: it is the first to be tried.
        let both = futures_util::future::join(remove(fs, "file2"), remove(fs, "file0")).await;
        assert_eq!(both, (Ok(()), Ok(())));
        for nth in (4..100).step_by(2) {
            remove(fs, &format!("file{nth}")).await.unwrap();
        }
        world.run_for(130).await;
        assert_eq!(fs.gc_backlog().orphans, 1);
        assert!(fs.meta().live().get(&Key::inode(bad)).unwrap().is_some());
        assert!(fs.meta().live().get(&Key::inode(good)).unwrap().is_none());
        assert!(fs.stats().gc_rewritten_bytes > 10 * LEN_BYTES);
        assert_eq!(fs.stats().gc_errors, 0);
        // The live data, a quarter of that, and the segment of the bad one.
        let used_bytes = used_bytes(&world, 1, 1);
        assert!(
            used_bytes < 52 * LEN_BYTES * 5 / 4 + 4 * MIB,
            "{used_bytes}"
        );
        for nth in (1..100).step_by(2) {
            assert!(read_all(fs, inos[nth]).await == data);
        }
        fs.close().await.unwrap();
    });
}

/// Writes single bytes with holes between them, from offset `from` on, until one has to wait or there are
/// `count_max`; returns how many there are.
fn write_tiny(fs: &Fs, ino: Ino, from: u64, count_max: u64) -> u64 {
    let is_done = |at: &u64| match write(fs, ino, *at, &[1]).now_or_never() {
        Some(written) => written.is_ok(),
        None => false,
    };
    let places = (from..).step_by(2).take(count_max as usize);
    places.take_while(is_done).count() as u64
}

/// A file with little data in very many pieces was flushed by 1024 pieces in three seconds.
#[test]
fn very_many_tiny_writes_are_flushed_when_they_are_due() {
    block_on(async {
        let world = World::new(24, 1).await;
        let fs = &world.fs;
        let ino = create(fs, "a").await.unwrap();
        assert_eq!(write_tiny(fs, ino, 0, 20_000), 20_000);
        world.run_for(10).await;
        assert_eq!(fs.stats().dirty_bytes, 0);
        check_counters(fs);
        fs.close().await.unwrap();
    });
}

/// A single byte in memory takes far more than a byte: the counted amount was so small that the limit had no effect.
#[test]
fn tiny_writes_are_charged_for_what_they_take() {
    block_on(async {
        let dirty = DirtyBudget::new(MIB);
        let world = World::with_dirty(25, dirty.clone()).await;
        let fs = &world.fs;
        let ino = create(fs, "a").await.unwrap();
        let count = write_tiny(fs, ino, 0, 20_000);
        assert!(count < 10_000, "{count}");
        assert_eq!(fs.attr(ino).await.unwrap().used_bytes, count);
        assert_eq!(dirty.bytes(), count);
        world.run_for(10).await;
        assert_eq!((dirty.bytes(), dirty.memory_bytes()), (0, 0));
        // There is room for as many again.
        assert!(write_tiny(fs, ino, MIB, 20_000) >= count);
        fs.close().await.unwrap();
        assert_eq!((dirty.bytes(), dirty.memory_bytes()), (0, 0));
    });
}

/// In every case, the whole charge of tiny writes is given back.
#[test]
fn what_tiny_writes_are_charged_is_given_back() {
    block_on(async {
        let dirty = DirtyBudget::new(64 * MIB);
        let world = World::with_dirty(26, dirty.clone()).await;
        let fs = &world.fs;
        for name in ["cut", "removed", "failing"] {
            let ino = create(fs, name).await.unwrap();
            write_tiny(fs, ino, 0, 5000);
            if name == "failing" {
                world.disks[0].inject(FaultRule {
                    kind: Some(OpKind::Write),
                    name_part: "shards/".into(),
                    skip: 0,
                    times: 100,
                    fault: Fault::Io,
                });
            }
            // In flights, and then replaced and split in memory.
            let mut flushing = pin!(commit(fs, ino));
            assert!((&mut flushing).now_or_never().is_none());
            write(fs, ino, 1001, &pattern(1000, 1)).await.unwrap();
            write_tiny(fs, ino, 1200, 100);
            match name {
                "cut" => truncate(fs, ino, 1501).await.unwrap(),
                "removed" => remove(fs, name).await.unwrap(),
                _ => assert!(flushing.await.is_err()),
            }
        }
        world.disks[0].clear_faults();
        assert!(fs.stats().flush_errors > 0);
        world.run_for(20).await;
        assert_eq!((dirty.bytes(), dirty.memory_bytes()), (0, 0));
        fs.close().await.unwrap();
    });
}
