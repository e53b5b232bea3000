//! Snapshots beside writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use cairn_base::{Ino, Timestamp};
use cairn_fs::*;

use crate::world::*;

const WRITES: u64 = 400;

/// A writer makes a small write stable, and then a name. A snapshot with any of the names has the bytes before it.
#[test]
fn a_snapshot_has_what_was_answered_before_anything_in_it() {
    block_on(async {
        let world = World::new(71, 1).await;
        let fs = world.fs.clone();
        let mode = || CreateMode::Guarded(SetAttr::default());
        let made = fs.create(&ROOT_USER, ROOT_INO, b"log", mode()).await;
        let log = made.unwrap().attr.ino;
        let writer = tokio::spawn({
            let fs = fs.clone();
            async move {
                for number in 1..=WRITES {
                    let data = Bytes::copy_from_slice(&number.to_le_bytes());
                    let written = fs.write(&ROOT_USER, log, 0, data, Stability::Stable);
                    written.await.unwrap();
                    let name = format!("{number}");
                    let made = fs.create(&ROOT_USER, ROOT_INO, name.as_bytes(), mode());
                    made.await.unwrap();
                }
            }
        });
        let mut count = 0;
        while !writer.is_finished() {
            let name = format!("snapshot{count}");
            let taken = fs.take_snapshot(name.as_bytes(), b"").await.unwrap();
            count += 1;
            for _ in 0..count % 7 {
                tokio::task::yield_now().await;
            }
            let shown = fs.in_view(taken.view()).unwrap();
            let bytes = read_all(&shown, log).await;
            let wrote = bytes.try_into().map_or(0, u64::from_le_bytes);
            for number in wrote + 1..=WRITES {
                let name = format!("{number}");
                let found = shown.lookup(&ROOT_USER, ROOT_INO, name.as_bytes()).await;
                assert_eq!(found.map(drop), Err(FsError::NotFound), "{wrote}");
            }
        }
        writer.await.unwrap();
        assert!(count > 5, "{count} snapshots beside the writer");
        for snapshot in fs.snapshots() {
            fs.delete_snapshot(&snapshot.name).await.unwrap();
        }
        fs.free_snapshots().await.unwrap();
        recount(&fs).await;
        assert_eq!(fs.meta().counters().history_bytes, 0);
    });
}

async fn make_log(fs: &Fs) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, b"log", mode).await;
    made.unwrap().attr.ino
}

async fn write_number(fs: &Fs, log: Ino, number: u64) {
    let data = Bytes::copy_from_slice(&number.to_le_bytes());
    let written = fs.write(&ROOT_USER, log, 0, data, Stability::Stable);
    written.await.unwrap();
}

async fn number_in(fs: &Fs, snapshot: &Snapshot, log: Ino) -> u64 {
    let shown = fs.in_view(snapshot.view()).unwrap();
    let bytes = read_all(&shown, log).await;
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// A client counts: in the first volume, and after each reply in the other one. Each is on its own node. Returns how
/// often their snapshots do not fit together.
async fn misfits(holds: bool) -> usize {
    let worlds = [World::new(81, 1).await, World::new(82, 1).await];
    let all = worlds.each_ref().map(|world| world.fs.clone());
    let logs = [make_log(&all[0]).await, make_log(&all[1]).await];
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (all, stop) = (all.clone(), stop.clone());
        async move {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                for (fs, log) in all.iter().zip(logs) {
                    write_number(fs, log, number).await;
                }
            }
        }
    });
    let mut misfits = 0;
    for round in 0..40_usize {
        let name = format!("round{round}");
        let mut parts = Vec::new();
        for fs in &all {
            let begun = JointSnapshots::begin(&[fs], name.as_bytes(), b"").await;
            parts.push(begun.unwrap());
        }
        for part in &mut parts {
            part.close().await.unwrap();
            if holds {
                part.hold();
            }
        }
        let group = round as u64 + 1;
        for at in [round % 2, 1 - round % 2] {
            parts[at].take(Timestamp::new(1, 0), group).unwrap();
            for _ in 0..round * 5 {
                tokio::task::yield_now().await;
            }
        }
        let mut numbers = Vec::new();
        for ((part, fs), log) in parts.into_iter().zip(&all).zip(logs) {
            let taken = part.end().await.unwrap();
            assert_eq!(fs.snapshot(name.as_bytes()), None, "nobody sees it yet");
            assert_eq!(fs.undecided_groups(), [group]);
            let decided = fs.decide_group(group, true).await.unwrap();
            assert_eq!(decided, Some(taken[0].generation));
            assert_eq!(fs.decide_group(group, true).await.unwrap(), None);
            let seen = fs.snapshot(name.as_bytes()).unwrap();
            numbers.push(number_in(fs, &seen, log).await);
            fs.delete_snapshot(name.as_bytes()).await.unwrap();
        }
        let (first, second) = (numbers[0], numbers[1]);
        misfits += usize::from(first != second && first != second + 1);
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    misfits
}

#[test]
fn snapshots_of_nodes_that_hold_their_answers_fit_together() {
    block_on(async {
        assert_eq!(misfits(true).await, 0);
        // Without holding, the misfits show.
        assert_ne!(misfits(false).await, 0);
    });
}

/// The remains of a failed group are invisible, keep their name, and are deleted when that is decided; also after a
/// start.
#[test]
fn a_group_that_breaks_off_leaves_nothing() {
    block_on(async {
        let world = World::new(83, 1).await;
        let fs = world.fs.clone();
        let log = make_log(&fs).await;
        write_number(&fs, log, 1).await;
        let mut part = JointSnapshots::begin(&[&fs], b"before", b"").await.unwrap();
        part.close().await.unwrap();
        part.hold();
        // Acknowledged when the part is dropped, and not before.
        let held = tokio::spawn({
            let fs = fs.clone();
            async move { write_number(&fs, log, 2).await }
        });
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert!(!held.is_finished());
        drop(part);
        held.await.unwrap();
        assert!(fs.snapshots().is_empty() && fs.undecided_groups().is_empty());
        let mut part = JointSnapshots::begin(&[&fs], b"before", b"").await.unwrap();
        part.close().await.unwrap();
        part.hold();
        part.take(Timestamp::new(1, 0), 7).unwrap();
        part.end().await.unwrap();
        drop(fs);
        let world = world.restart(84).await;
        let fs = world.fs.clone();
        assert!(fs.snapshots().is_empty());
        assert_eq!(fs.undecided_groups(), [7]);
        let exists: SnapshotFailure = SnapshotError::Exists.into();
        assert_eq!(fs.take_snapshot(b"before", b"").await, Err(exists));
        assert!(fs.decide_group(7, false).await.unwrap().is_some());
        assert!(fs.undecided_groups().is_empty());
        fs.take_snapshot(b"before", b"").await.unwrap();
        fs.delete_snapshot(b"before").await.unwrap();
        fs.free_snapshots().await.unwrap();
        recount(&fs).await;
    });
}
