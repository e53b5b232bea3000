//! Limits on the memory, the thread time, the log and the space for deletions that one client, or one corrupt file,
//! may take.

use std::task::Poll;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::*;
use cairn_testkit::Crash;
use futures_util::poll;

use crate::world::*;

async fn make_file(fs: &Fs, name: &str) -> Ino {
    let made = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, name.as_bytes(), made);
    made.await.unwrap().attr.ino
}

async fn write(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8], how: Stability) {
    let data = Bytes::copy_from_slice(bytes);
    fs.write(&ROOT_USER, ino, offset, data, how).await.unwrap();
}

/// Each of these writes left one byte of the record before it. One read of some of those bytes had all the records in
/// memory at once: such a file could crash every server that reads it.
#[test]
fn a_read_of_a_byte_of_each_of_many_records_is_short() {
    const COUNT: u64 = 100;
    const LEN: usize = 1 << 20;
    block_on(async {
        let world = World::new(40, 1).await;
        let fs = &world.fs;
        let ino = make_file(fs, "file").await;
        let mut model = vec![0; LEN + COUNT as usize - 1];
        for at in 0..COUNT {
            let bytes = vec![at as u8 + 1; LEN];
            write(fs, ino, at, &bytes, Stability::Stable).await;
            model[at as usize..][..LEN].copy_from_slice(&bytes);
        }
        let world = world.restart(41).await;
        let read = world.fs.read(&ROOT_USER, ino, 0, COUNT as u32).await;
        let read = read.unwrap();
        assert!((1..=16).contains(&read.count_bytes), "{}", read.count_bytes);
        assert!(!read.eof);
        // Data that waits for its client does not keep the records in memory.
        let lens: Vec<usize> = read.parts.iter().map(Bytes::len).collect();
        assert_eq!(lens, [read.count_bytes as usize]);
        assert!(read_all(&world.fs, ino).await == model);
        world.fs.close().await.unwrap();
    });
}

/// Each read of a stream that begins in the middle of a record was joined, 1 MiB at a time.
#[test]
fn a_read_across_two_whole_records_is_not_copied() {
    const LEN: usize = 1 << 20;
    block_on(async {
        let world = World::new(44, 1).await;
        let ino = make_file(&world.fs, "file").await;
        for at in 0..2 {
            let bytes = vec![at as u8 + 1; LEN];
            write(&world.fs, ino, at * LEN as u64, &bytes, Stability::Stable).await;
        }
        let world = world.restart(45).await;
        let half = LEN as u64 / 2;
        let read = world.fs.read(&ROOT_USER, ino, half, LEN as u32).await;
        let lens = |parts: &[Bytes]| -> Vec<usize> { parts.iter().map(Bytes::len).collect() };
        assert_eq!(lens(&read.unwrap().parts), [LEN / 2, LEN / 2]);
        world.fs.close().await.unwrap();
    });
}

/// Cutting a file of very many extents kept its thread, and all clients served on it, waiting until it was done.
#[test]
fn cutting_a_file_of_very_many_extents_lets_others_run() {
    const COUNT: u64 = 40_000;
    block_on(async {
        let world = World::new(42, 1).await;
        let fs = &world.fs;
        let ino = make_file(fs, "file").await;
        for at in (0..2 * COUNT).step_by(2) {
            write(fs, ino, at, &[1], Stability::Unstable).await;
        }
        fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let submitted = || fs.meta().stats().submitted.0;
        let set = SetAttr {
            size_bytes: Some(0),
            ..SetAttr::default()
        };
        let mut cutting = Box::pin(fs.set_attr(&ROOT_USER, ino, set, None));
        let mut turns = 0;
        loop {
            let before = submitted();
            let polled = poll!(&mut cutting);
            assert!(submitted() - before <= 2, "{turns}");
            if let Poll::Ready(done) = polled {
                done.unwrap();
                break;
            }
            turns += 1;
            tokio::task::yield_now().await;
        }
        assert!(turns > 10, "{turns}");
        assert_eq!(fs.meta().counters().file_bytes, 0);
    });
}

/// The bytes before a corrupt extent of a file could no longer be read, or written.
#[test]
fn what_is_before_a_damaged_extent_is_there() {
    const LEN: u64 = 100_000;
    block_on(async {
        let world = World::new(43, 1).await;
        let ino = make_file(&world.fs, "file").await;
        for number in 0..10 {
            let bytes = pattern(LEN as u32, number);
            write(
                &world.fs,
                ino,
                u64::from(number) * LEN,
                &bytes,
                Stability::Stable,
            )
            .await;
        }
        put_extent(&world, ino, 6 * LEN, Bytes::from_static(&[99]));
        let world = world.restart(44).await;
        let fs = &world.fs;
        for number in [4, 0, 9, 6] {
            let read = fs.read(&ROOT_USER, ino, number * LEN, LEN as u32).await;
            let read = read.unwrap_or_else(|error| panic!("{number}: {error}"));
            assert!(
                read.parts.concat() == pattern(LEN as u32, number as u8),
                "{number}"
            );
        }
        let damaged = fs.read(&ROOT_USER, ino, 5 * LEN, LEN as u32).await;
        assert!(matches!(damaged, Err(FsError::Io(_))), "{damaged:?}");
        let world = world.restart(45).await;
        let new = pattern(LEN as u32, 77);
        write(&world.fs, ino, 4 * LEN, &new, Stability::Unstable).await;
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let world = world.crash(46, Crash::LoseUnsynced).await;
        let read = world.fs.read(&ROOT_USER, ino, 4 * LEN, LEN as u32).await;
        assert!(read.unwrap().parts.concat() == new);
    });
}

/// A small stable write to a place with a corrupt extent stays in the log as long as the extent does: it kept the
/// whole log since then.
#[test]
fn a_file_that_cannot_be_flushed_does_not_keep_the_log() {
    block_on(async {
        let world = World::new(47, 1).await;
        let ino = make_file(&world.fs, "file").await;
        let old = pattern(100_000, 1);
        write(&world.fs, ino, 0, &old, Stability::Stable).await;
        let stored = put_extent(&world, ino, 100_000, Bytes::from_static(&[99]));
        let world = world.restart(48).await;
        let fs = &world.fs;
        write(fs, ino, 500, b"stable", Stability::Stable).await;
        // This may be only in memory, and replaces stable bytes.
        write(fs, ino, 503, b"BLE", Stability::Unstable).await;
        let other = make_file(fs, "other").await;
        for round in 0..4000u64 {
            let bytes = pattern(60_000, round as u8);
            write(fs, other, round % 50 * 60_000, &bytes, Stability::Stable).await;
            if round % 20 == 0 {
                world.run_for(1).await;
            }
            let stats = fs.meta().stats();
            assert!(stats.log_bytes < 64 << 20, "{round}: {stats:?}");
        }
        let world = world.crash(49, Crash::LoseUnsynced).await;
        world.run_for(5).await;
        put_extent(&world, ino, 100_000, stored);
        world.run_for(5).await;
        let read = world.fs.read(&ROOT_USER, ino, 0, 200_000).await.unwrap();
        let mut model = old;
        model[500..506].copy_from_slice(b"staBLE");
        assert!(read.parts.concat() == model);
        world.fs.close().await.unwrap();
    });
}

/// One pass over all names held its thread until it was over.
#[test]
fn looking_for_names_lets_others_have_their_turn() {
    const COUNT: usize = 5000;
    block_on(async {
        let world = World::new(45, 1).await;
        let fs = &world.fs;
        let mut inos = Vec::new();
        for at in 0..COUNT {
            inos.push(make_file(fs, &format!("file{at}")).await);
        }
        let wanted = inos[COUNT - 1];
        for at in 0..NAMES_MAX + 5 {
            let name = format!("other name {at}");
            fs.link(&ROOT_USER, wanted, ROOT_INO, name.as_bytes())
                .await
                .unwrap();
        }
        let some = [inos[0], wanted];
        let mut finding = std::pin::pin!(fs.paths_of(&some));
        let mut turns = 0;
        let paths = loop {
            match poll!(&mut finding) {
                Poll::Ready(paths) => break paths.unwrap(),
                Poll::Pending => turns += 1,
            }
        };
        assert!(turns >= COUNT / 1024, "{turns}");
        assert_eq!(paths[&inos[0]], [b"/file0".to_vec()]);
        assert_eq!(paths[&wanted].len(), NAMES_MAX);
        // The limit applies to any number of requested paths.
        let paths = fs.paths_of(&inos).await.unwrap();
        assert_eq!(paths.values().map(Vec::len).sum::<usize>(), PATHS_MAX);
        world.fs.close().await.unwrap();
    });
}

/// Every survey of the garbage walked all segments, every two seconds.
#[test]
fn segments_are_looked_at_one_by_one_only_when_there_is_too_much_garbage() {
    block_on(async {
        let gc = GcSettings {
            garbage_bytes: Some(1 << 30),
            ..GcSettings::default()
        };
        let world = World::with_gc(46, 1, 1 << 30, gc).await;
        for at in 0..20 {
            let ino = make_file(&world.fs, &format!("file{at}")).await;
            write(&world.fs, ino, 0, &vec![at; 300_000], Stability::Unstable).await;
            write(&world.fs, ino, 0, &vec![at; 100_000], Stability::Stable).await;
        }
        world.run_for(100).await;
        for at in 0..10 {
            let name = format!("file{at}");
            let removed = world.fs.remove(&ROOT_USER, ROOT_INO, name.as_bytes());
            removed.await.unwrap();
        }
        world.run_for(100).await;
        let backlog = world.fs.gc_backlog();
        assert!(backlog.sparse_bytes > 0, "{backlog:?}");
        assert_eq!(world.fs.stats().gc_surveys, 0);
        world.fs.close().await.unwrap();
    });
}
