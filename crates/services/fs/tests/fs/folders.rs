//! Listing and changing directories while other clients change them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::Ino;
use cairn_fs::*;
use cairn_meta::Key;

use crate::world::*;

async fn make_file(fs: &Fs, name: &str) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, name.as_bytes(), mode).await;
    made.unwrap().attr.ino
}

/// Each renamed entry came again at the end, so a client that renamed all listed entries went on for ever.
#[test]
fn who_renames_what_is_listed_comes_to_the_end() {
    const COUNT: usize = 100;
    block_on(async {
        let world = World::new(1, 1).await;
        let fs = &world.fs;
        for index in 0..COUNT {
            make_file(fs, &format!("file-{index}")).await;
        }
        let mut cookie = 0;
        let mut seen = Vec::new();
        loop {
            let page = fs.read_dir(&ROOT_USER, ROOT_INO, cookie, 10, false).await;
            let page = page.unwrap();
            cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
            let names = page.entries.iter().map(|entry| entry.name.clone());
            for name in names.filter(|name| name.starts_with(b"file")) {
                let new = [&name[..], b".new"].concat();
                let renamed = fs.rename(&ROOT_USER, ROOT_INO, &name, ROOT_INO, &new);
                renamed.await.unwrap();
                seen.push(name);
            }
            assert!(seen.len() <= 2 * COUNT, "without an end");
            if page.eof {
                break;
            }
        }
        assert_eq!(seen.len(), COUNT);
        let world = world.restart(2).await;
        let page = world.fs.read_dir(&ROOT_USER, ROOT_INO, 0, 1000, false);
        let page = page.await.unwrap();
        let is_new = |entry: &&DirEntry| entry.name.ends_with(b".new");
        assert_eq!(page.entries.iter().filter(is_new).count(), COUNT);
        assert_eq!(page.entries.len(), COUNT + 2);
    });
}

/// Such an entry would hide the snapshots of its directory.
#[test]
fn nothing_gets_the_name_of_the_snapshots() {
    block_on(async {
        let world = World::new(1, 1).await;
        let fs = &world.fs;
        let file = make_file(fs, "file").await;
        let (who, name, set) = (&ROOT_USER, SNAPSHOTS_NAME, SetAttr::default());
        for mode in [
            CreateMode::Unchecked(set),
            CreateMode::Guarded(set),
            CreateMode::Exclusive(*b"verifier"),
        ] {
            let made = fs.create(who, ROOT_INO, name, mode).await;
            assert_eq!(made.map(drop), Err(FsError::Exists));
        }
        let made = fs.make_dir(who, ROOT_INO, name, set).await;
        assert_eq!(made.map(drop), Err(FsError::Exists));
        let made = fs.make_symlink(who, ROOT_INO, name, b"file", set).await;
        assert_eq!(made.map(drop), Err(FsError::Exists));
        let made = fs.make_node(who, ROOT_INO, name, NodeKind::Fifo, set).await;
        assert_eq!(made.map(drop), Err(FsError::Exists));
        let linked = fs.link(who, file, ROOT_INO, name).await;
        assert_eq!(linked.map(drop), Err(FsError::Exists));
        let renamed = fs.rename(who, ROOT_INO, b"file", ROOT_INO, name).await;
        assert_eq!(renamed.map(drop), Err(FsError::Exists));
        let (from, to) = ((ROOT_INO, b"file".as_slice()), (ROOT_INO, name));
        let moved = fs.move_version(who, from, to, false).await;
        assert_eq!(moved, Err(FsError::Exists));
        for expected in [Expected::Anything, Expected::Nothing] {
            let mut unnamed = fs.make_unnamed(who).unwrap();
            unnamed.append(b"data".as_slice().into()).await.unwrap();
            let dir = ROOT_INO;
            let placing = Placing {
                dir,
                name,
                expected,
                set,
                xattrs: &[],
            };
            let placed = unnamed.place(who, &placing).await;
            assert_eq!(placed.map(drop), Err(FsError::IsDirectory));
        }
        let page = fs.read_dir(who, ROOT_INO, 0, 100, false).await.unwrap();
        let names: Vec<&[u8]> = page.entries.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, [b".".as_slice(), b"..", b"file"]);
    });
}

/// A listing with attributes during the making of a file put the inode into the table first, and the maker panicked.
#[test]
fn a_directory_is_listed_while_files_are_made() {
    const COUNT: usize = 5000;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(1, 1).await;
        let has_ended = Arc::new(AtomicBool::new(false));
        let lister = tokio::spawn({
            let (fs, has_ended) = (world.fs.clone(), has_ended.clone());
            async move {
                let (mut cookie, mut count) = (0, 0);
                loop {
                    // Nothing else here yields: a task that was woken on this thread would wait for ever.
                    tokio::task::yield_now().await;
                    let is_last = has_ended.load(Ordering::Acquire);
                    let page = fs.read_dir(&ROOT_USER, ROOT_INO, cookie, 100, true).await;
                    let page = page.unwrap();
                    cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
                    count += page.entries.len();
                    if is_last && page.eof {
                        return count;
                    }
                }
            }
        });
        let fs = world.fs.clone();
        let maker = tokio::spawn(async move {
            for index in 0..COUNT {
                make_file(&fs, &format!("file-{index}")).await;
            }
        });
        let made = maker.await;
        has_ended.store(true, Ordering::Release);
        made.unwrap();
        assert_eq!(lister.await.unwrap(), COUNT + 2);
    });
}

/// A removal looks its name up before it has the locks: others may put another file there meanwhile, and the found
/// one is gone then.
#[test]
fn a_name_that_others_change_is_removed_with_the_file_that_it_names() {
    const ROUNDS: usize = 1000;
    const TASKS: usize = 4;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(TASKS)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(1, 1).await;
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let fs = world.fs.clone();
            tasks.push(tokio::spawn(async move {
                let (who, dir) = (&ROOT_USER, ROOT_INO);
                for round in 0..ROUNDS {
                    tokio::task::yield_now().await;
                    let done = match (task + round) % TASKS {
                        0 => {
                            let mode = CreateMode::Guarded(SetAttr::default());
                            fs.create(who, dir, b"a", mode).await.map(drop)
                        }
                        1 => fs.rename(who, dir, b"a", dir, b"b").await.map(drop),
                        2 => fs.remove(who, dir, b"b").await.map(drop),
                        _ => fs.remove(who, dir, b"a").await.map(drop),
                    };
                    let is_expected = matches!(
                        done,
                        Ok(()) | Err(FsError::Exists | FsError::NotFound | FsError::TryLater)
                    );
                    assert!(is_expected, "{done:?}");
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let fs = &world.fs;
        let page = fs.read_dir(&ROOT_USER, ROOT_INO, 0, 100, false).await;
        let named: BTreeSet<Ino> = page.unwrap().entries.iter().map(|it| it.ino).collect();
        let (from, to) = Key::inodes();
        let stored = fs.meta().live().scan(&from, &to, usize::MAX).unwrap();
        // No file is left without a name, and none with a name is gone.
        assert_eq!(stored.len(), named.len(), "{named:?}");
        recount(fs).await;
    });
}

/// A client that asked for one entry at a time was told after "." that an empty directory has no more.
#[test]
fn a_directory_is_listed_one_by_one() {
    block_on(async {
        let world = World::new(3, 1).await;
        for want in [vec![".", ".."], vec![".", "..", "file"]] {
            if want.len() > 2 {
                make_file(&world.fs, "file").await;
            }
            let mut seen = Vec::new();
            let mut cookie = 0;
            loop {
                let page = world.fs.read_dir(&ROOT_USER, ROOT_INO, cookie, 1, false);
                let page = page.await.unwrap();
                let [entry] = &page.entries[..] else {
                    panic!("{page:?} after {seen:?}");
                };
                cookie = entry.cookie;
                seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
                if page.eof {
                    break;
                }
            }
            assert_eq!(seen, want);
        }
    });
}
