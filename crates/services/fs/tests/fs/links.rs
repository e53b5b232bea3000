//! The maximum number of links of a file or directory; names whose inode cannot be read.
//!
//! Making 65,000 links takes too long for a test, so the count is written into the record, and the volume opened again.

use cairn_base::Ino;
use cairn_fs::*;
use cairn_meta::{Batch, InodeRecord, Key};

use crate::world::*;

async fn make_dir(fs: &Fs, dir: Ino, name: &str) -> Result<Ino, FsError> {
    let set = SetAttr::default();
    let made = fs.make_dir(&ROOT_USER, dir, name.as_bytes(), set).await?;
    Ok(made.attr.ino)
}

async fn make_file(fs: &Fs, dir: Ino, name: &str) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, dir, name.as_bytes(), mode).await;
    made.unwrap().attr.ino
}

async fn link_count(fs: &Fs, ino: Ino) -> u32 {
    fs.attr(ino).await.unwrap().nlink
}

/// The stored count, which is not always the shown one.
fn stored_link_count(fs: &Fs, ino: Ino) -> u32 {
    let stored = fs.meta().live().get(&Key::inode(ino)).unwrap().unwrap();
    InodeRecord::decode(&stored).unwrap().nlink
}

/// The volume after a restart in which each of `inos` came to have `count` links.
async fn with_link_count(world: World, inos: &[Ino], count: u32) -> World {
    let meta = world.fs.meta();
    let mut batch = Batch::new();
    for ino in inos {
        let stored = meta.live().get(&Key::inode(*ino)).unwrap().unwrap();
        let mut record = InodeRecord::decode(&stored).unwrap();
        record.nlink = count;
        batch.put(Key::inode(*ino), record.encode());
    }
    let ticket = meta.submit(batch);
    meta.durable(ticket).await.unwrap();
    world.restart(2).await
}

#[test]
fn a_file_has_a_last_name() {
    block_on(async {
        let world = World::new(1, 1).await;
        let file = make_file(&world.fs, ROOT_INO, "file").await;
        let world = with_link_count(world, &[file], LINK_COUNT_MAX - 1).await;
        let fs = &world.fs;
        let (attr, _) = fs.link(&ROOT_USER, file, ROOT_INO, b"last").await.unwrap();
        assert_eq!(attr.nlink, LINK_COUNT_MAX);
        let refused = fs.link(&ROOT_USER, file, ROOT_INO, b"more").await;
        assert_eq!(refused.unwrap_err(), FsError::TooManyLinks);
        let missing = fs.lookup(&ROOT_USER, ROOT_INO, b"more").await;
        assert_eq!(missing.unwrap_err(), FsError::NotFound);
        assert_eq!(link_count(fs, file).await, LINK_COUNT_MAX);

        // Removing a name makes room for another, over a restart as well.
        fs.remove(&ROOT_USER, ROOT_INO, b"last").await.unwrap();
        fs.link(&ROOT_USER, file, ROOT_INO, b"again").await.unwrap();
        let world = world.restart(3).await;
        let refused = world.fs.link(&ROOT_USER, file, ROOT_INO, b"more").await;
        assert_eq!(refused.unwrap_err(), FsError::TooManyLinks);
        world.fs.close().await.unwrap();
    });
}

/// The `..` of each directory in it is a link to a directory. Above the most that a file may have the directory shows one, and
/// the true count once there are fewer again.
#[test]
fn a_directory_takes_more_directories_than_it_shows_links() {
    block_on(async {
        let world = World::new(1, 1).await;
        let full = make_dir(&world.fs, ROOT_INO, "full").await.unwrap();
        make_dir(&world.fs, ROOT_INO, "other").await.unwrap();
        let world = with_link_count(world, &[full], LINK_COUNT_MAX - 1).await;
        let fs = &world.fs;
        make_dir(fs, full, "last-shown").await.unwrap();
        assert_eq!(link_count(fs, full).await, LINK_COUNT_MAX);
        make_dir(fs, full, "above").await.unwrap();
        assert_eq!(link_count(fs, full).await, 1);
        fs.rename(&ROOT_USER, ROOT_INO, b"other", full, b"moved")
            .await
            .unwrap();
        assert_eq!(link_count(fs, full).await, 1);
        assert_eq!(stored_link_count(fs, full), LINK_COUNT_MAX + 2);

        // The count stays true over a restart, and when directories leave: by a removal, a move, a replacement.
        let world = world.restart(3).await;
        let fs = &world.fs;
        assert_eq!(link_count(fs, full).await, 1);
        fs.rename(&ROOT_USER, full, b"moved", full, b"above")
            .await
            .unwrap();
        assert_eq!(stored_link_count(fs, full), LINK_COUNT_MAX + 1);
        assert_eq!(link_count(fs, full).await, 1);
        fs.rename(&ROOT_USER, full, b"above", ROOT_INO, b"out")
            .await
            .unwrap();
        assert_eq!(link_count(fs, full).await, LINK_COUNT_MAX);
        fs.remove_dir(&ROOT_USER, full, b"last-shown")
            .await
            .unwrap();
        assert_eq!(link_count(fs, full).await, LINK_COUNT_MAX - 1);
        world.fs.close().await.unwrap();
    });
}

/// The edge of the field that the count is stored in.
#[test]
fn a_directory_whose_count_of_links_is_full_refuses_one_more() {
    block_on(async {
        let world = World::new(1, 1).await;
        let full = make_dir(&world.fs, ROOT_INO, "full").await.unwrap();
        make_dir(&world.fs, ROOT_INO, "other").await.unwrap();
        let world = with_link_count(world, &[full], u32::MAX - 1).await;
        let fs = &world.fs;
        make_dir(fs, full, "last").await.unwrap();
        let refused = make_dir(fs, full, "more").await;
        assert_eq!(refused.unwrap_err(), FsError::TooManyLinks);
        let refused = fs
            .rename(&ROOT_USER, ROOT_INO, b"other", full, b"more")
            .await;
        assert_eq!(refused.unwrap_err(), FsError::TooManyLinks);

        // Changes that add no directory are admitted: files, new names, one in the place of another.
        make_file(fs, full, "file").await;
        fs.rename(&ROOT_USER, full, b"last", full, b"renamed")
            .await
            .unwrap();
        fs.rename(&ROOT_USER, ROOT_INO, b"other", full, b"renamed")
            .await
            .unwrap();
        fs.remove_dir(&ROOT_USER, full, b"renamed").await.unwrap();
        make_dir(fs, full, "more").await.unwrap();
        world.fs.close().await.unwrap();
    });
}

/// Its directory can be listed and its other names removed; a client that asks for this name gets an error, and not a
/// request to try later.
#[test]
fn a_name_whose_inode_is_damaged_is_listed_and_told() {
    block_on(async {
        let world = World::new(1, 1).await;
        let damaged = make_file(&world.fs, ROOT_INO, "damaged").await;
        make_file(&world.fs, ROOT_INO, "other").await;
        let meta = world.fs.meta();
        let mut batch = Batch::new();
        batch.put(Key::inode(damaged), vec![99]);
        meta.durable(meta.submit(batch)).await.unwrap();
        let world = world.restart(2).await;
        let fs = &world.fs;

        let page = fs.read_dir(&ROOT_USER, ROOT_INO, 0, 100, true).await;
        let entries = page.unwrap().entries;
        let attr_of = |name: &[u8]| {
            let entry = entries.iter().find(|entry| &entry.name[..] == name);
            entry.expect("listed").attr.is_some()
        };
        assert!(!attr_of(b"damaged") && attr_of(b"other"));

        let removed = fs.remove(&ROOT_USER, ROOT_INO, b"damaged").await;
        assert!(matches!(removed, Err(FsError::Io(_))), "{removed:?}");
        for (from, to) in [("damaged", "renamed"), ("other", "damaged")] {
            let (from, to) = (from.as_bytes(), to.as_bytes());
            let renamed = fs.rename(&ROOT_USER, ROOT_INO, from, ROOT_INO, to).await;
            assert!(matches!(renamed, Err(FsError::Io(_))), "{renamed:?}");
        }
        fs.remove(&ROOT_USER, ROOT_INO, b"other").await.unwrap();
    });
}
