//! Files whose bytes are in the metadata.

use bytes::Bytes;
use cairn_base::{Ino, View};
use cairn_fs::*;
use cairn_meta::{ExtentPlace, ExtentRecord, INLINE_LEN_BYTES_MAX, Key};
use cairn_testkit::Crash;

use crate::world::*;

const MAX: usize = INLINE_LEN_BYTES_MAX;

async fn create(fs: &Fs, name: &str) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, name.as_bytes(), mode).await;
    made.unwrap().attr.ino
}

async fn write(world: &World, ino: Ino, offset: usize, bytes: &[u8]) {
    let data = Bytes::copy_from_slice(bytes);
    let fs = &world.fs;
    let written = fs.write(&ROOT_USER, ino, offset as u64, data, Stability::Unstable);
    written.await.unwrap();
    // Long enough for a flush by age.
    world.run_for(5).await;
}

async fn truncate(fs: &Fs, ino: Ino, size_bytes: u64) {
    let set = SetAttr {
        size_bytes: Some(size_bytes),
        ..SetAttr::default()
    };
    fs.set_attr(&ROOT_USER, ino, set, None).await.unwrap();
}

/// Start and end of each extent of a file, and whether its bytes are in it.
fn extents(fs: &Fs, ino: Ino) -> Vec<(u64, u64, bool)> {
    let (from, to) = Key::extents_past(ino, 0);
    let found = fs.meta().live().scan(&from, &to, usize::MAX).unwrap();
    let found = found.iter().map(|(key, value)| {
        let extent = ExtentRecord::decode(value).unwrap();
        let Ok(cairn_meta::KeyKind::Extent { end_offset, .. }) = key.kind() else {
            panic!("{key:?} is no extent");
        };
        let is_inline = matches!(extent.place, ExtentPlace::Inline(_));
        (extent.start, end_offset, is_inline)
    });
    found.collect()
}

#[test]
fn only_tiny_files_that_may_be_plain_are_in_the_metadata() {
    let cases = [
        ("a byte", 1, false, true),
        ("the most", MAX, false, true),
        ("one more", MAX + 1, false, false),
        ("a byte, encrypted", 1, true, false),
        ("the most, encrypted", MAX, true, false),
    ];
    for (name, len, is_encrypted, is_inline) in cases {
        block_on(async {
            let mut world = World::encrypted(3, is_encrypted).await;
            let ino = create(&world.fs, "file").await;
            let bytes = pattern(len as u32, 7);
            write(&world, ino, 0, &bytes).await;
            assert_eq!(
                extents(&world.fs, ino),
                [(0, len as u64, is_inline)],
                "{name}"
            );
            let segments = world.fs.meta().segments().len();
            assert_eq!(segments == 0, is_inline, "{name}");
            assert_eq!(stored(&world.fs, ino).used_bytes, len as u64, "{name}");
            recount(&world.fs).await;
            world = world.crash(9, Crash::LoseUnsynced).await;
            assert!(read_all(&world.fs, ino).await == bytes, "{name}");
            recount(&world.fs).await;
        });
    }
}

/// After each change of such a file, it has its bytes, snapshots have theirs, and counters agree.
#[test]
fn files_in_the_metadata_change_as_others_do() {
    block_on(async {
        let world = World::encrypted(3, false).await;
        let fs = &world.fs;
        let ino = create(fs, "file").await;
        let mut want = pattern(100, 1);
        write(&world, ino, 0, &want).await;
        let first = fs.take_snapshot(b"first", b"").await.unwrap();
        let at_first = want.clone();
        // The middle is overwritten: the rest keeps its own bytes, not the first ones.
        write(&world, ino, 40, &[0xee; 20]).await;
        want[40..60].fill(0xee);
        let parts = [(0, 40, true), (40, 60, true), (60, 100, true)];
        assert_eq!(extents(fs, ino), parts);
        assert!(read_all(fs, ino).await == want);
        recount(fs).await;
        fs.punch(&ROOT_USER, ino, 10..15).await.unwrap();
        want[10..15].fill(0);
        assert!(read_all(fs, ino).await == want);
        recount(fs).await;
        // The file grows beyond the limit, and is cut to less.
        let more = pattern(5000, 3);
        write(&world, ino, 100, &more).await;
        want.extend(&more);
        let last = *extents(fs, ino).last().unwrap();
        assert_eq!(last, (100, 5100, false));
        assert!(read_all(fs, ino).await == want);
        recount(fs).await;
        truncate(fs, ino, 70).await;
        want.truncate(70);
        assert!(read_all(fs, ino).await == want);
        recount(fs).await;
        // A part of it is in a larger file, with records around it.
        let large = create(fs, "large").await;
        let mut around = pattern(20_000, 5);
        write(&world, large, 0, &around).await;
        let shared = fs.share_over(&ROOT_USER, ino, 5..65, large, 9000);
        shared.await.unwrap();
        around[9000..9060].copy_from_slice(&want[5..65]);
        assert!(read_all(fs, large).await == around);
        recount(fs).await;
        // The file is removed, and the snapshot has its former bytes.
        let removed = fs.remove(&ROOT_USER, ROOT_INO, b"file").await;
        removed.unwrap();
        world.run_for(130).await;
        recount(fs).await;
        let view = View::Snapshot(first.generation);
        let shown = fs.in_view(view).unwrap();
        assert!(read_all(&shown, ino).await == at_first);
        assert!(fs.meta().counters().history_bytes >= 100);
        drop(shown);
        let world = world.crash(21, Crash::LoseUnsynced).await;
        let fs = &world.fs;
        assert!(read_all(fs, large).await == around);
        recount(fs).await;
        // A rollback of the whole volume puts it back.
        let mut world = world;
        world = world.restore(31, first.generation, None, &[]).await;
        let fs = &world.fs;
        assert!(read_all(fs, ino).await == at_first);
        recount(fs).await;
        let pace = cairn_segment::Pace::new(world.env.clock.clone(), 0);
        let scrub = fs.scrub_records(None, &pace).await.unwrap();
        assert_eq!((scrub.records, scrub.damaged.len()), (0, 0));
        fs.delete_snapshot(b"first").await.unwrap();
        fs.free_snapshots().await.unwrap();
        recount(fs).await;
        assert_eq!(fs.meta().counters().history_bytes, 0);
        assert_eq!(fs.meta().counters().stored_bytes, 100);
    });
}

/// Bytes that differ from the stored ones are an error, and no other file has one.
#[test]
fn damaged_bytes_in_the_metadata_are_not_read() {
    block_on(async {
        let world = World::encrypted(1, false).await;
        let (bad, good) = (
            create(&world.fs, "bad").await,
            create(&world.fs, "good").await,
        );
        write(&world, bad, 0, b"cairn").await;
        write(&world, good, 0, b"stone").await;
        let mut stored = ExtentRecord {
            start: 0,
            place: ExtentPlace::Inline(Bytes::from_static(b"cairn")),
        }
        .encode();
        *stored.last_mut().unwrap() ^= 1;
        put_extent(&world, bad, 5, stored.into());
        let world = world.restart(5).await;
        let read = world.fs.read(&ROOT_USER, bad, 0, 100).await;
        assert!(matches!(read, Err(FsError::Io(_))), "{read:?}");
        assert!(read_all(&world.fs, good).await == b"stone");
    });
}
