//! Files that share records.

use bytes::Bytes;
use cairn_base::{Ino, SegmentId};
use cairn_fs::*;
use cairn_meta::{Batch, Key, KeyKind};
use cairn_testkit::Crash;

use crate::world::*;

const LEN_BYTES: u32 = 3 << 20;
const CLONES: u64 = 5;

async fn make(fs: &Fs, name: &[u8], bytes: Vec<u8>) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, name, mode).await.unwrap();
    let ino = made.attr.ino;
    let mut at = 0;
    for part in bytes.chunks(1 << 20) {
        let data = Bytes::copy_from_slice(part);
        let written = fs.write(&ROOT_USER, ino, at, data, Stability::Stable);
        written.await.unwrap();
        at += part.len() as u64;
    }
    fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
    ino
}

async fn share(fs: &Fs, snapshot: &Snapshot, from: Ino, name: &[u8]) -> Ino {
    let shown = fs.in_view(snapshot.view()).unwrap();
    let mut file = fs.make_unnamed(&ROOT_USER).unwrap();
    file.share(&shown, from, 0..u64::from(LEN_BYTES))
        .await
        .unwrap();
    let placing = Placing {
        dir: ROOT_INO,
        name,
        expected: Expected::Nothing,
        set: SetAttr::default(),
        xattrs: &[],
    };
    file.place(&ROOT_USER, &placing).await.unwrap().ino
}

/// A collection copies records that many files share once, and they go on sharing them.
#[test]
fn what_is_shared_is_copied_once() {
    block_on(async {
        let world = World::new(5, 1).await;
        let fs = &world.fs;
        let bytes = pattern(LEN_BYTES, 3);
        let ino = make(fs, b"file", bytes.clone()).await;
        let snapshot = fs.take_snapshot(b"one", b"").await.unwrap();
        let written = fs.stats().written_bytes;
        let mut clones = Vec::new();
        for number in 0..CLONES {
            let name = format!("clone{number}");
            clones.push(share(fs, &snapshot, ino, name.as_bytes()).await);
        }
        assert_eq!(fs.stats().written_bytes, written, "nothing is copied");
        recount(fs).await;
        world.rewrite_all().await;
        recount(fs).await;
        assert_eq!(fs.stats().gc_rewritten_bytes, u64::from(LEN_BYTES));
        assert_eq!(fs.stats().rewrite_passes, 0, "it is known who shares");
        // The original is removed, the snapshot is deleted, one file is changed.
        fs.remove(&ROOT_USER, ROOT_INO, b"file").await.unwrap();
        fs.delete_snapshot(b"one").await.unwrap();
        let data = Bytes::from_static(b"new");
        let written = fs.write(&ROOT_USER, clones[0], 70_000, data, Stability::Stable);
        written.await.unwrap();
        world.run_for(30).await;
        fs.free_snapshots().await.unwrap();
        world.rewrite_all().await;
        recount(fs).await;
        assert_eq!(fs.stats().rewrite_passes, 0);
        let mut changed = bytes.clone();
        changed[70_000..70_003].copy_from_slice(b"new");
        assert!(read_all(fs, clones[0]).await == changed);
        for clone in &clones[1..] {
            assert!(read_all(fs, *clone).await == bytes);
        }
        for number in 0..CLONES {
            let name = format!("clone{number}");
            fs.remove(&ROOT_USER, ROOT_INO, name.as_bytes())
                .await
                .unwrap();
        }
        world.run_for(200).await;
        recount(fs).await;
        assert_eq!(fs.meta().counters().stored_bytes, 0);
    });
}

/// Sharing during moves of the shared records, and deletions of their segments.
#[test]
fn what_is_shared_may_move_meanwhile() {
    block_on(async {
        let world = World::new(6, 1).await;
        let fs = &world.fs;
        let bytes = pattern(LEN_BYTES, 9);
        let ino = make(fs, b"file", bytes.clone()).await;
        let snapshot = fs.take_snapshot(b"one", b"").await.unwrap();
        fs.remove(&ROOT_USER, ROOT_INO, b"file").await.unwrap();
        for number in 0..40 {
            let name = format!("clone{number}");
            let moves = async {
                for _ in 0..number % 5 {
                    tokio::task::yield_now().await;
                }
                world.rewrite_all().await;
            };
            let shares = async {
                for _ in 0..number % 7 {
                    tokio::task::yield_now().await;
                }
                share(fs, &snapshot, ino, name.as_bytes()).await
            };
            let (clone, ()) = tokio::join!(shares, moves);
            assert!(read_all(fs, clone).await == bytes, "{name}");
            fs.remove(&ROOT_USER, ROOT_INO, name.as_bytes())
                .await
                .unwrap();
            world.run_for(1).await;
        }
        recount(fs).await;
    });
}

/// A new sharer is told when its found record is being moved, and finds the new place.
#[test]
fn what_is_dead_is_not_shared() {
    block_on(async {
        let world = World::new(7, 1).await;
        let fs = &world.fs;
        make(fs, b"file", pattern(LEN_BYTES, 1)).await;
        let meta = fs.meta();
        let ids: Vec<SegmentId> = meta.segments().into_iter().map(|(id, _)| id).collect();
        assert!(meta.submit_sharing(Batch::new(), &ids).is_some());
        world.rewrite_all().await;
        let last = meta.last_ticket();
        for id in ids {
            assert!(meta.submit_sharing(Batch::new(), &[id]).is_none(), "{id}");
        }
        assert_eq!(meta.last_ticket(), last, "nothing is changed");
    });
}

/// A file that shares and never gets a name is gone: dropped, or left by a crash.
#[test]
fn what_is_shared_without_a_name_goes() {
    block_on(async {
        for crashes in [false, true] {
            let mut world = World::new(8, 1).await;
            let bytes = pattern(LEN_BYTES, 5);
            let ino = make(&world.fs, b"file", bytes.clone()).await;
            let snapshot = world.fs.take_snapshot(b"one", b"").await.unwrap();
            let stored_bytes = world.fs.meta().counters().stored_bytes;
            let shown = world.fs.in_view(snapshot.view()).unwrap();
            let mut file = world.fs.make_unnamed(&ROOT_USER).unwrap();
            let whole = 0..u64::from(LEN_BYTES);
            file.share(&shown, ino, whole).await.unwrap();
            let unnamed = file.ino();
            assert_eq!(world.fs.meta().counters().stored_bytes, 2 * stored_bytes);
            if crashes {
                // The file is not dropped, as in a killed process.
                std::mem::forget(file);
                drop(shown);
                world = world.crash(9, Crash::KeepUnsynced).await;
            } else {
                drop(file);
            }
            world.run_for(30).await;
            recount(&world.fs).await;
            assert_eq!(world.fs.meta().counters().stored_bytes, stored_bytes);
            assert_eq!(world.fs.attr(unnamed).await, Err(FsError::Stale));
            assert!(read_all(&world.fs, ino).await == bytes);
        }
    });
}

/// A file takes over the present bytes of others: those in memory, those in the journal, parts of records.
#[test]
fn what_is_there_now_is_shared() {
    block_on(async {
        let world = World::new(9, 1).await;
        let fs = &world.fs;
        let mut bytes = pattern(LEN_BYTES, 7);
        let ino = make(fs, b"file", bytes.clone()).await;
        for (at, stability) in [(5_000, Stability::Unstable), (2 << 20, Stability::Stable)] {
            let data = Bytes::from_static(b"changed");
            bytes[at as usize..at as usize + data.len()].copy_from_slice(&data);
            let written = fs.write(&ROOT_USER, ino, at, data, stability);
            written.await.unwrap();
        }
        let mut file = fs.make_unnamed(&ROOT_USER).unwrap();
        let mut want = Vec::new();
        for (start, end) in [(4_999_u32, 900_001), (1 << 20, LEN_BYTES), (0, 5_003)] {
            let range = u64::from(start)..u64::from(end);
            file.share(fs, ino, range).await.unwrap();
            want.extend_from_slice(&bytes[start as usize..end as usize]);
            let data = Bytes::from_static(b"between");
            want.extend_from_slice(&data);
            file.append(data).await.unwrap();
        }
        let placing = Placing {
            dir: ROOT_INO,
            name: b"parts",
            expected: Expected::Nothing,
            set: SetAttr::default(),
            xattrs: &[],
        };
        let parts = file.place(&ROOT_USER, &placing).await.unwrap().ino;
        assert!(read_all(fs, parts).await == want);
        recount(fs).await;
        // Each file changes on its own.
        let cut = SetAttr {
            size_bytes: Some(1_000),
            ..SetAttr::default()
        };
        fs.set_attr(&ROOT_USER, ino, cut, None).await.unwrap();
        world.rewrite_all().await;
        assert_eq!(fs.stats().rewrite_passes, 0);
        recount(fs).await;
        assert!(read_all(fs, parts).await == want);
        assert!(read_all(fs, ino).await == bytes[..1_000]);
        fs.remove(&ROOT_USER, ROOT_INO, b"file").await.unwrap();
        fs.remove(&ROOT_USER, ROOT_INO, b"parts").await.unwrap();
        world.run_for(200).await;
        recount(fs).await;
        assert_eq!(fs.meta().counters().stored_bytes, 0);
        let (from, to) = Key::everything();
        let left = fs.meta().live().scan(&from, &to, usize::MAX).unwrap();
        let is_sharer = |key: &Key| matches!(key.kind(), Ok(KeyKind::Sharer { .. }));
        assert!(!left.iter().any(|(key, _)| is_sharer(key)));
    });
}

/// A user that may not read a file cannot share it.
#[test]
fn what_may_not_be_read_is_not_shared() {
    block_on(async {
        let world = World::new(10, 1).await;
        let fs = &world.fs;
        let ino = make(fs, b"file", pattern(LEN_BYTES, 1)).await;
        let set = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        fs.set_attr(&ROOT_USER, ino, set, None).await.unwrap();
        let stranger = Credentials {
            uid: 77,
            gid: 77,
            ..ROOT_USER.clone()
        };
        let mut file = fs.make_unnamed(&stranger).unwrap();
        let got = file.share(fs, ino, 0..1).await;
        assert_eq!(got, Err(FsError::AccessDenied));
    });
}
