//! The present path of an inode, found from the inode and not from its names.

use cairn_base::Ino;
use cairn_fs::*;

use crate::world::*;

async fn path_of(fs: &Fs, ino: Ino) -> Option<String> {
    let path = fs.path_of(ino).await.unwrap();
    path.map(|path| String::from_utf8(path).unwrap())
}

async fn make_dir(fs: &Fs, dir: Ino, name: &str) -> Ino {
    let set = SetAttr::default();
    let made = fs.make_dir(&ROOT_USER, dir, name.as_bytes(), set).await;
    made.unwrap().attr.ino
}

async fn make_file(fs: &Fs, dir: Ino, name: &str) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, dir, name.as_bytes(), mode).await;
    made.unwrap().attr.ino
}

#[test]
fn an_inode_knows_where_it_is() {
    block_on(async {
        let world = World::new(1, 1).await;
        let fs = &world.fs;
        let top = make_dir(fs, ROOT_INO, "top").await;
        let below = make_dir(fs, top, "below").await;
        let file = make_file(fs, below, "file").await;
        let check = async |ino: Ino, want: Option<&str>| {
            assert_eq!(path_of(&world.fs, ino).await.as_deref(), want);
        };
        check(ROOT_INO, Some("")).await;
        check(below, Some("/top/below")).await;
        check(file, Some("/top/below/file")).await;

        // A directory above moves, and then the file itself, over another one.
        fs.rename(&ROOT_USER, top, b"below", ROOT_INO, b"moved")
            .await
            .unwrap();
        check(file, Some("/moved/file")).await;
        let other = make_file(fs, ROOT_INO, "other").await;
        fs.rename(&ROOT_USER, below, b"file", ROOT_INO, b"other")
            .await
            .unwrap();
        check(file, Some("/other")).await;
        check(other, None).await;

        // Of two names the inode records one.
        fs.link(&ROOT_USER, file, top, b"linked").await.unwrap();
        let known = path_of(fs, file).await;
        assert!(
            [Some("/other"), Some("/top/linked")].contains(&known.as_deref()),
            "{known:?}"
        );
        for (dir, name) in [(ROOT_INO, b"other".as_slice()), (top, b"linked")] {
            fs.remove(&ROOT_USER, dir, name).await.unwrap();
        }
        check(file, None).await;
        check(Ino(99_999), None).await;
        world.fs.close().await.unwrap();
    });
}
