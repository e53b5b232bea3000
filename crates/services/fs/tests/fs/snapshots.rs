//! Snapshots beside writers.

use bytes::Bytes;
use cairn_fs::*;

use crate::world::*;

const WRITES: u64 = 400;

/// A writer makes a small write stable, and then a name. Whatever names a snapshot has, it has the bytes before them.
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
