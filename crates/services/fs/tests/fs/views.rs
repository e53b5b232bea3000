//! Files are read in a view of their volume.

use cairn_base::{Generation, View};
use cairn_fs::*;

use super::world::*;

#[test]
fn the_live_view_shows_what_the_volume_has() {
    block_on(async {
        let world = World::new(41, 1).await;
        let live = world.fs.in_view(View::Live).expect("is always there");
        let mode = CreateMode::Guarded(SetAttr::default());
        let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", mode).await;
        let ino = made.unwrap().attr.ino;
        let data = pattern(100, 1);
        let written = world
            .fs
            .write(&ROOT_USER, ino, 0, data.clone().into(), Stability::Stable);
        written.await.unwrap();
        let (found, _) = live.lookup(&ROOT_USER, ROOT_INO, b"file").await.unwrap();
        assert_eq!(found.ino, ino);
        let read = live.read(&ROOT_USER, ino, 0, 1000).await.unwrap();
        assert_eq!(read.parts.concat(), data);
        assert_eq!(live.view(), View::Live);
    });
}

/// A client may use the handle of a snapshot that was deleted.
#[test]
fn a_view_that_is_not_there_is_stale() {
    block_on(async {
        let world = World::new(41, 1).await;
        for generation in [1, 2, u64::MAX] {
            let view = View::Snapshot(Generation(generation));
            assert_eq!(world.fs.in_view(view).map(drop), Err(FsError::Stale));
            assert!(world.fs.meta().view(view).is_err());
        }
    });
}
