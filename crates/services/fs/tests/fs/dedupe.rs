//! Volumes that do not write bytes which they have already.

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::planted::{Bug, plant};
use cairn_fs::*;
use cairn_meta::{Key, KeyKind};
use cairn_segment::Protection;
use cairn_testkit::{Crash, Rng};

use crate::world::*;

/// Records have this size.
const RECORD_BYTES: usize = 128 << 10;
const LEN_BYTES: usize = 3 << 20;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

async fn write_at(fs: &Fs, ino: Ino, at: u64, bytes: &[u8]) {
    for (part, at) in bytes.chunks(1 << 20).zip((at..).step_by(1 << 20)) {
        let data = Bytes::copy_from_slice(part);
        let written = fs.write(&ROOT_USER, ino, at, data, Stability::Unstable);
        written.await.unwrap();
    }
    fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
}

async fn make(fs: &Fs, name: &[u8], bytes: &[u8]) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, name, mode).await.unwrap();
    write_at(fs, made.attr.ino, 0, bytes).await;
    made.attr.ino
}

async fn remove(fs: &Fs, name: &[u8]) {
    fs.remove(&ROOT_USER, ROOT_INO, name).await.unwrap();
}

fn shared(fs: &Fs) -> usize {
    fs.stats().deduplicated_bytes as usize
}

/// Two files with equal bytes store them once. A collection copies them once, either file may be removed first, and
/// nothing is left of them.
#[test]
fn the_same_bytes_are_there_once() {
    block_on(async {
        for (seed, dedupe) in [
            (2, Dedupe::On),
            (3, Dedupe::On),
            (4, Dedupe::Verify),
            (5, Dedupe::Verify),
        ] {
            let world = World::deduplicating(seed, 3, dedupe).await;
            let fs = &world.fs;
            // The end of the file is no whole record.
            let bytes = noise(seed, LEN_BYTES + 50_000);
            let first = make(fs, b"first", &bytes).await;
            assert_eq!(shared(fs), 0);
            let appended = world.segments.stats().appended_bytes;
            let second = make(fs, b"second", &bytes).await;
            assert_eq!(shared(fs), bytes.len(), "{dedupe:?}");
            assert_eq!(world.segments.stats().appended_bytes, appended);
            assert_eq!(fs.stats().flushed_bytes as usize, bytes.len());
            let counters = fs.meta().counters();
            assert_eq!(counters.file_bytes as usize, 2 * bytes.len());
            recount(fs).await;
            world.rewrite_all().await;
            recount(fs).await;
            assert_eq!(fs.stats().gc_rewritten_bytes as usize, bytes.len());
            assert_eq!(fs.stats().rewrite_passes, 0, "it is known who shares");
            assert!(read_all(fs, second).await == bytes);
            remove(fs, b"first").await;
            world.run_for(30).await;
            world.rewrite_all().await;
            recount(fs).await;
            assert_eq!(fs.stats().rewrite_passes, 0);
            assert_eq!(fs.attr(first).await, Err(FsError::Stale));
            let world = world.crash(seed + 2, Crash::LoseUnsynced).await;
            let fs = &world.fs;
            assert!(read_all(fs, second).await == bytes);
            remove(fs, b"second").await;
            world.run_for(200).await;
            recount(fs).await;
            assert_eq!(fs.meta().counters().stored_bytes, 0);
            let (from, to) = Key::everything();
            let left = fs.meta().live().scan(&from, &to, usize::MAX).unwrap();
            let is_sharer = |key: &Key| matches!(key.kind(), Ok(KeyKind::Sharer { .. }));
            assert!(!left.iter().any(|(key, _)| is_sharer(key)));
        }
    });
}

/// Also within one write, in one file and in several.
#[test]
fn what_comes_again_at_once_is_there_once() {
    block_on(async {
        let world = World::deduplicating(6, 1, Dedupe::Verify).await;
        let fs = &world.fs;
        let record = noise(1, RECORD_BYTES);
        let bytes = record.repeat(12);
        let ino = make(fs, b"file", &bytes).await;
        assert_eq!(shared(fs), 11 * RECORD_BYTES);
        let mut files = Vec::new();
        for number in 0..8u8 {
            let mode = CreateMode::Guarded(SetAttr::default());
            let name = [b'a' + number];
            let made = fs.create(&ROOT_USER, ROOT_INO, &name, mode);
            let file = made.await.unwrap().attr.ino;
            let data = Bytes::from(noise(2, 20_000));
            let written = fs.write(&ROOT_USER, file, 0, data, Stability::Unstable);
            written.await.unwrap();
            files.push(file);
        }
        world.run_for(10).await;
        assert_eq!(shared(fs), 11 * RECORD_BYTES + 7 * 20_000);
        recount(fs).await;
        world.rewrite_all().await;
        recount(fs).await;
        assert_eq!(fs.stats().rewrite_passes, 0);
        let world = world.restart(7).await;
        assert!(read_all(&world.fs, ino).await == bytes);
        for file in files {
            assert!(read_all(&world.fs, file).await == noise(2, 20_000));
        }
    });
}

/// Data that is not whole records, or too little, is written without a lookup; one other byte makes another record.
#[test]
fn only_whole_records_are_shared() {
    block_on(async {
        let world = World::deduplicating(8, 1, Dedupe::On).await;
        let fs = &world.fs;
        let bytes = noise(3, 4 * RECORD_BYTES);
        make(fs, b"file", &bytes).await;
        let mut changed = bytes.clone();
        changed[2 * RECORD_BYTES + 77] ^= 1;
        let other = make(fs, b"other", &changed).await;
        assert_eq!(shared(fs), 3 * RECORD_BYTES);
        // Shifted by a block.
        let shifted = [&[7; 4096], &bytes[..]].concat();
        let shifted_ino = make(fs, b"shifted", &shifted).await;
        assert_eq!(shared(fs), 3 * RECORD_BYTES);
        make(fs, b"small", &bytes[..4095]).await;
        make(fs, b"small too", &bytes[..4095]).await;
        make(fs, b"short", &bytes[..9000]).await;
        // Such short data waits in the journal for a while.
        world.run_for(10).await;
        assert_eq!(shared(fs), 3 * RECORD_BYTES);
        make(fs, b"short too", &bytes[..9000]).await;
        world.run_for(10).await;
        assert_eq!(shared(fs), 3 * RECORD_BYTES + 9000);
        assert!(read_all(fs, other).await == changed);
        assert!(read_all(fs, shifted_ino).await == shifted);
        recount(fs).await;
    });
}

/// Bytes that no file has any more are written again, wherever they went; the index may say otherwise.
#[test]
fn what_is_gone_is_written_again() {
    block_on(async {
        for what in [
            "overwritten",
            "cut",
            "removed",
            "in a snapshot",
            "restarted",
        ] {
            let mut world = World::deduplicating(10, 1, Dedupe::On).await;
            let bytes = noise(4, LEN_BYTES);
            let ino = make(&world.fs, b"file", &bytes).await;
            let fs = world.fs.clone();
            match what {
                "overwritten" => write_at(&fs, ino, 0, &noise(5, LEN_BYTES)).await,
                "cut" => {
                    let cut = SetAttr {
                        size_bytes: Some(0),
                        ..SetAttr::default()
                    };
                    fs.set_attr(&ROOT_USER, ino, cut, None).await.unwrap();
                }
                "removed" => {
                    remove(&fs, b"file").await;
                    world.run_for(30).await;
                }
                "in a snapshot" => {
                    fs.take_snapshot(b"one", b"").await.unwrap();
                    write_at(&fs, ino, 0, &noise(5, LEN_BYTES)).await;
                }
                _ => {
                    drop(fs);
                    world = world.restart(11).await;
                }
            }
            let fs = &world.fs;
            let again = make(fs, b"again", &bytes).await;
            assert_eq!(shared(fs), 0, "{what}");
            recount(fs).await;
            world.rewrite_all().await;
            recount(fs).await;
            assert!(read_all(fs, again).await == bytes, "{what}");
        }
    });
}

/// A record that a collection moved is found at its new place.
#[test]
fn what_moved_is_found_again() {
    block_on(async {
        for seed in [22, 23] {
            let world = World::deduplicating(seed, 1, Dedupe::Verify).await;
            let fs = &world.fs;
            let bytes = noise(11, LEN_BYTES);
            make(fs, b"first", &bytes).await;
            // A part of this one was overwritten.
            let other = noise(12, LEN_BYTES);
            let ino = make(fs, b"other", &other).await;
            write_at(fs, ino, 100_000, b"other bytes").await;
            world.run_for(10).await;
            assert_eq!(shared(fs), 0);
            for _ in 0..2 {
                world.rewrite_all().await;
                recount(fs).await;
            }
            make(fs, b"second", &bytes).await;
            assert_eq!(shared(fs), LEN_BYTES);
            let again = make(fs, b"other again", &other).await;
            assert_eq!(shared(fs), 2 * LEN_BYTES - RECORD_BYTES);
            recount(fs).await;
            let world = world.restart(seed + 10).await;
            assert!(read_all(&world.fs, again).await == other);
        }
    });
}

/// A file that shared a record keeps it when the file that wrote it is gone.
#[test]
fn who_shares_passes_it_on() {
    block_on(async {
        let world = World::deduplicating(12, 1, Dedupe::On).await;
        let fs = &world.fs;
        let bytes = noise(6, LEN_BYTES);
        let mut names: Vec<Vec<u8>> = (0..5).map(|number| vec![b'a' + number]).collect();
        make(fs, &names[0], &bytes).await;
        for pair in names.windows(2) {
            make(fs, &pair[1], &bytes).await;
            remove(fs, &pair[0]).await;
            world.run_for(10).await;
        }
        assert_eq!(shared(fs), 4 * LEN_BYTES);
        let last = names.pop().unwrap();
        let (attr, _) = fs.lookup(&ROOT_USER, ROOT_INO, &last).await.unwrap();
        assert!(read_all(fs, attr.ino).await == bytes);
        recount(fs).await;
    });
}

/// Files are written, removed and moved concurrently: in every order, the bytes are there.
#[test]
fn what_is_found_may_go_meanwhile() {
    block_on(async {
        for dedupe in [Dedupe::On, Dedupe::Verify] {
            let world = World::deduplicating(14, 1, dedupe).await;
            let fs = &world.fs;
            let bytes = noise(7, LEN_BYTES / 2);
            for number in 0..60u64 {
                make(fs, b"first", &bytes).await;
                let goes = async {
                    for _ in 0..number % 11 * 3 {
                        tokio::task::yield_now().await;
                    }
                    remove(fs, b"first").await;
                    for _ in 0..number % 5 {
                        tokio::task::yield_now().await;
                    }
                    world.rewrite_all().await;
                };
                let (ino, ()) = tokio::join!(make(fs, b"second", &bytes), goes);
                world.rewrite_all().await;
                assert!(read_all(fs, ino).await == bytes, "{number}");
                recount(fs).await;
                remove(fs, b"second").await;
                world.run_for(1).await;
            }
            assert!(shared(fs) > 0);
        }
    });
}

/// Equal hashes are not enough where bytes are compared.
#[test]
fn verify_compares_bytes() {
    block_on(async {
        // One byte is left of each hash.
        plant(Some(Bug::DedupeHashPrefix));
        for (dedupe, is_right) in [(Dedupe::On, false), (Dedupe::Verify, true)] {
            let world = World::deduplicating(16, 1, dedupe).await;
            let fs = &world.fs;
            let bytes = noise(8, 600 * 4096);
            let mut are_right = true;
            let mut files = Vec::new();
            for (number, part) in bytes.chunks(4096).enumerate() {
                files.push((make(fs, number.to_string().as_bytes(), part).await, part));
            }
            let world = world.restart(17).await;
            for (ino, part) in files {
                are_right &= read_all(&world.fs, ino).await == part;
            }
            assert_eq!(are_right, is_right, "{dedupe:?}");
        }
        plant(None);
    });
}

/// A file that wants more protection gets it, even if others had the bytes with less.
#[test]
fn what_is_protected_less_is_not_shared() {
    block_on(async {
        let world = World::deduplicating(18, 3, Dedupe::On).await;
        let fs = &world.fs;
        let bytes = noise(9, LEN_BYTES);
        let set = |protection| {
            let policy = Policy {
                protection,
                ..fs.policy()
            };
            fs.set_policy(policy).unwrap();
        };
        set(Protection::Mirror(2));
        make(fs, b"two copies", &bytes).await;
        set(Protection::Mirror(3));
        make(fs, b"three copies", &bytes).await;
        assert_eq!(shared(fs), 0);
        set(Protection::Mirror(2));
        make(fs, b"two again", &bytes).await;
        assert_eq!(shared(fs), LEN_BYTES, "more is no harm");
        recount(fs).await;
    });
}

/// An acknowledged COMMIT means that shared bytes are there after a crash, even if the file that wrote them is not.
#[test]
fn what_is_shared_survives_crashes() {
    block_on(async {
        for mode in Crash::ALL {
            let world = World::deduplicating(20, 3, Dedupe::On).await;
            let bytes = noise(10, LEN_BYTES);
            make(&world.fs, b"first", &bytes).await;
            let ino = make(&world.fs, b"second", &bytes).await;
            remove(&world.fs, b"first").await;
            assert_eq!(shared(&world.fs), LEN_BYTES);
            let world = world.crash(21, mode).await;
            world.run_for(30).await;
            world.rewrite_all().await;
            assert!(read_all(&world.fs, ino).await == bytes);
            recount(&world.fs).await;
        }
    });
}
