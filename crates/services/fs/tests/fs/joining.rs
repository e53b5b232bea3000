//! Files in many small extents are rewritten in few, where that costs no space and delays no other work.

use std::ops::ControlFlow;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_fs::*;
use cairn_meta::{Key, decode_extent};
use cairn_testkit::Rng;

use crate::world::*;

const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 2048;
const LEN_BYTES: u64 = (BLOCKS * BLOCK_BYTES) as u64;
const STEP_BYTES: u64 = 4 << 20;

async fn write(fs: &Fs, ino: Ino, at: u64, bytes: &[u8]) {
    for (part, at) in bytes.chunks(1 << 20).zip((at..).step_by(1 << 20)) {
        let data = Bytes::copy_from_slice(part);
        let written = fs.write(&ROOT_USER, ino, at, data, Stability::Unstable);
        written.await.unwrap();
    }
}

async fn commit(fs: &Fs, ino: Ino) {
    fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
}

/// Overwrites each block of a file once; the blocks of one flush are all over it.
async fn overwrite(fs: &Fs, ino: Ino, bytes: &mut [u8], random: &mut Rng) {
    for number in 0..BLOCKS {
        let at = number * 1031 % BLOCKS * BLOCK_BYTES;
        let block = &mut bytes[at..at + BLOCK_BYTES];
        random.fill(block);
        write(fs, ino, at as u64, block).await;
        if number % 512 == 511 {
            commit(fs, ino).await;
        }
    }
}

/// A file of 8 MiB in extents of 4 KiB, and its bytes.
async fn fragmented(fs: &Fs, name: &[u8], seed: u64) -> (Ino, Vec<u8>) {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, name, mode).await;
    let ino = made.unwrap().attr.ino;
    let mut random = Rng::new(seed);
    let mut bytes = random.bytes(LEN_BYTES as usize);
    write(fs, ino, 0, &bytes).await;
    commit(fs, ino).await;
    overwrite(fs, ino, &mut bytes, &mut random).await;
    (ino, bytes)
}

fn extent_count(fs: &Fs, ino: Ino) -> usize {
    let (from, to) = Key::all_extents();
    let mut count = 0;
    let scanned = fs.meta().live().scan_with(&from, &to, |key, value, _| {
        count += usize::from(decode_extent(key, value).unwrap().0 == ino);
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    count
}

/// Joins all of a file; returns how many bytes were rewritten.
async fn join(fs: &Fs, ino: Ino) -> u64 {
    let mut joined = 0;
    for at in (0..LEN_BYTES).step_by(STEP_BYTES as usize) {
        joined += fs.join_extents(ino, at..at + STEP_BYTES).await.unwrap();
    }
    joined
}

#[test]
fn small_extents_become_few() {
    block_on(async {
        for is_encrypted in [false, true] {
            let world = World::encrypted(2, is_encrypted).await;
            let fs = &world.fs;
            let (ino, bytes) = fragmented(fs, b"file", 1).await;
            assert!(extent_count(fs, ino) > BLOCKS / 2);
            let before = stored(fs, ino);
            assert_eq!(join(fs, ino).await, LEN_BYTES);
            assert_eq!(fs.stats().joined_bytes, LEN_BYTES);
            assert!(extent_count(fs, ino) <= 16, "{}", extent_count(fs, ino));
            assert!(read_all(fs, ino).await == bytes);
            // The file is unchanged.
            let after = stored(fs, ino);
            assert_eq!(after.used_bytes, before.used_bytes);
            assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
            recount(fs).await;
            assert_eq!(join(fs, ino).await, 0, "nothing is left to join");
            let world = world.restart(3).await;
            assert!(read_all(&world.fs, ino).await == bytes);
            world.rewrite_all().await;
            assert!(read_all(&world.fs, ino).await == bytes);
            recount(&world.fs).await;
        }
    });
}

/// Holes stay holes, also beside joined extents.
#[test]
fn holes_stay() {
    block_on(async {
        let world = World::new(4, 1).await;
        let fs = &world.fs;
        let mode = CreateMode::Guarded(SetAttr::default());
        let made = fs.create(&ROOT_USER, ROOT_INO, b"file", mode).await;
        let ino = made.unwrap().attr.ino;
        let mut want = vec![0; LEN_BYTES as usize];
        let mut random = Rng::new(4);
        // Runs of eight blocks, with holes of equal size between them; every other block of all runs at first.
        for number in (0..512).step_by(2).chain((1..512).step_by(2)) {
            let at = (number / 8 * 16 + number % 8) * BLOCK_BYTES;
            let block = random.bytes(BLOCK_BYTES);
            want[at..at + BLOCK_BYTES].copy_from_slice(&block);
            write(fs, ino, at as u64, &block).await;
            if number == 510 {
                commit(fs, ino).await;
            }
        }
        commit(fs, ino).await;
        let set = SetAttr {
            size_bytes: Some(LEN_BYTES),
            ..SetAttr::default()
        };
        fs.set_attr(&ROOT_USER, ino, set, None).await.unwrap();
        let used = stored(fs, ino).used_bytes;
        assert_eq!(join(fs, ino).await, 512 * BLOCK_BYTES as u64);
        assert_eq!(extent_count(fs, ino), 64);
        assert_eq!(stored(fs, ino).used_bytes, used);
        assert!(read_all(fs, ino).await == want);
        recount(fs).await;
    });
}

#[test]
fn what_a_snapshot_sees_stays_where_it_is() {
    block_on(async {
        let world = World::new(5, 1).await;
        let fs = &world.fs;
        let (ino, mut bytes) = fragmented(fs, b"file", 5).await;
        fs.take_snapshot(b"one", b"").await.unwrap();
        let old = bytes.clone();
        assert_eq!(join(fs, ino).await, 0);
        assert_eq!(fs.meta().counters().history_bytes, 0);
        // Later extents belong to the file alone.
        let mut random = Rng::new(6);
        overwrite(fs, ino, &mut bytes, &mut random).await;
        let history_bytes = fs.meta().counters().history_bytes;
        assert_eq!(join(fs, ino).await, LEN_BYTES);
        assert_eq!(fs.meta().counters().history_bytes, history_bytes);
        assert!(read_all(fs, ino).await == bytes);
        let shown = fs.in_view(fs.snapshot(b"one").unwrap().view()).unwrap();
        assert!(read_all(&shown, ino).await == old);
        recount(fs).await;
        fs.delete_snapshot(b"one").await.unwrap();
        fs.free_snapshots().await.unwrap();
        assert!(read_all(fs, ino).await == bytes);
        assert_eq!(fs.meta().counters().history_bytes, 0);
        recount(fs).await;
    });
}

#[test]
fn what_is_read_at_random_stays_as_it_is() {
    block_on(async {
        let world = World::new(7, 1).await;
        let fs = &world.fs;
        let (ino, bytes) = fragmented(fs, b"file", 7).await;
        fs.set_policy(Policy {
            access_pattern: AccessPattern::Random,
            ..fs.policy()
        })
        .unwrap();
        assert_eq!(join(fs, ino).await, 0);
        fs.set_policy(Policy {
            dedupe: Dedupe::On,
            access_pattern: AccessPattern::Concurrent,
            ..fs.policy()
        })
        .unwrap();
        assert_eq!(join(fs, ino).await, 0);
        assert!(read_all(fs, ino).await == bytes);
    });
}

/// A sequential reader causes the joining, once it has ended.
#[test]
fn a_reader_in_order_has_it_done() {
    block_on(async {
        let world = World::new(8, 1).await;
        let (ino, bytes) = fragmented(&world.fs, b"file", 8).await;
        let world = world.restart(9).await;
        let fs = &world.fs;
        world.run_for(70).await;
        assert_eq!(fs.stats().joined_bytes, 0, "nobody reads it");
        let mut read = Vec::new();
        while (read.len() as u64) < LEN_BYTES {
            let part = fs.read(&ROOT_USER, ino, read.len() as u64, 64 << 10);
            for part in part.await.unwrap().parts {
                read.extend_from_slice(&part);
            }
            // Background tasks get their turn.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
        assert!(read == bytes);
        assert_eq!(fs.stats().joined_bytes, 0, "it waits for readers to end");
        let before = extent_count(fs, ino);
        world.run_for(60).await;
        // Garbage collection may have moved some extents just then.
        assert!(fs.stats().joined_bytes >= 1 << 20, "{:?}", fs.stats());
        assert!(extent_count(fs, ino) < before - 100);
        assert!(read_all(fs, ino).await == bytes);
        recount(fs).await;
    });
}

/// Writes and cuts of clients during the joining have their full effect.
#[test]
fn nothing_that_is_written_meanwhile_is_lost() {
    block_on(async {
        let world = World::new(10, 1).await;
        let fs = &world.fs;
        let (ino, mut bytes) = fragmented(fs, b"file", 10).await;
        // Reads and writes take time, so that more happens in between.
        for disk in &world.disks {
            disk.yield_at_random(5, 40);
        }
        let mut random = Rng::new(11);
        for round in 0..8 {
            let joining = async { join(fs, ino).await };
            let writing = async {
                for _ in 0..6 {
                    // More than goes to the journal, so that it becomes extents at once.
                    let at = random.below(LEN_BYTES - 300_000);
                    let len_bytes = 70_000 + random.below(200_000);
                    let part = random.bytes(len_bytes as usize);
                    bytes[at as usize..at as usize + part.len()].copy_from_slice(&part);
                    write(fs, ino, at, &part).await;
                    commit(fs, ino).await;
                }
                if round % 4 == 3 {
                    // Cut, and made as long as before.
                    let cut = LEN_BYTES / 2 + random.below(LEN_BYTES / 2);
                    for size_bytes in [cut, LEN_BYTES] {
                        let set = SetAttr {
                            size_bytes: Some(size_bytes),
                            ..SetAttr::default()
                        };
                        fs.set_attr(&ROOT_USER, ino, set, None).await.unwrap();
                    }
                    bytes[cut as usize..].fill(0);
                }
            };
            futures_util::join!(joining, writing);
            assert!(read_all(fs, ino).await == bytes, "round {round}");
            overwrite(fs, ino, &mut bytes, &mut random).await;
        }
        recount(fs).await;
    });
}
