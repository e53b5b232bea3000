//! No client sees a change that a power cut could undo.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_base::Ino;
use cairn_base::env::BoxFuture;
use cairn_fs::*;
use cairn_testkit::{OpKind, Pace};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::world::*;

/// Log writes wait until they are released.
#[derive(Default)]
struct HeldLog {
    is_held: AtomicBool,
    go: Notify,
}

impl HeldLog {
    fn let_go(&self) {
        self.is_held.store(false, Ordering::Relaxed);
        self.go.notify_waiters();
    }
}

struct Holds(Arc<HeldLog>);

impl Pace for Holds {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let held = self.0.clone();
        let is_log = kind == OpKind::WriteDurable && name.contains("log.");
        if !is_log || !held.is_held.load(Ordering::Relaxed) {
            return None;
        }
        Some(Box::pin(async move {
            while held.is_held.load(Ordering::Relaxed) {
                held.go.notified().await;
            }
        }))
    }
}

async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

struct Files {
    world: World,
    held: Arc<HeldLog>,
    dir: Ino,
    file: Ino,
    /// Not touched by any test.
    other: Ino,
}

async fn files() -> Files {
    files_in(World::new(31, 1).await).await
}

async fn files_in(world: World) -> Files {
    let fs = &world.fs;
    let set = SetAttr::default();
    let dir = fs.make_dir(&ROOT_USER, ROOT_INO, b"dir", set).await;
    let dir = dir.unwrap().attr.ino;
    let make = async |dir, name| {
        let mode = CreateMode::Guarded(set);
        let made = fs.create(&ROOT_USER, dir, name, mode).await;
        made.unwrap().attr.ino
    };
    let file = make(dir, b"file").await;
    let other = make(ROOT_INO, b"other").await;
    for ino in [file, other] {
        let data = pattern(8192, 1).into();
        let stored = fs.write(&ROOT_USER, ino, 0, data, Stability::Stable);
        stored.await.unwrap();
    }
    let held = Arc::new(HeldLog::default());
    world.disks[0].pace_with(Arc::new(Holds(held.clone())));
    Files {
        world,
        held,
        dir,
        file,
        other,
    }
}

type Reading = Pin<Box<dyn Future<Output = String> + Send>>;

/// A change in progress, the calls that must wait for it, and those that must not.
async fn check(
    change: impl FnOnce(Fs, &Files) -> BoxFuture<()>,
    waiting: impl FnOnce(&dyn Fn() -> Fs, &Files) -> Vec<Reading>,
    not_waiting: impl FnOnce(&dyn Fn() -> Fs, &Files) -> Vec<Reading>,
) {
    let files = files().await;
    files.held.is_held.store(true, Ordering::Relaxed);
    let fs = || files.world.fs.clone();
    let change = tokio::spawn(change(fs(), &files));
    settle().await;
    assert!(!change.is_finished(), "nothing is durable");
    let start = |all: Vec<Reading>| -> Vec<JoinHandle<String>> {
        all.into_iter().map(tokio::spawn).collect()
    };
    let waiting = start(waiting(&fs, &files));
    let not_waiting = start(not_waiting(&fs, &files));
    settle().await;
    for (index, reading) in not_waiting.into_iter().enumerate() {
        assert!(reading.is_finished(), "number {index} waits for nothing");
    }
    for (index, reading) in waiting.iter().enumerate() {
        assert!(!reading.is_finished(), "number {index} was told too early");
    }
    assert!(!change.is_finished(), "nothing is durable still");
    files.held.let_go();
    change.await.unwrap();
    for reading in waiting {
        reading.await.unwrap();
    }
}

macro_rules! reading {
    ($fs:expr, $name:ident ( $($argument:expr),* )) => {{
        let fs = $fs();
        Box::pin(async move { format!("{:?}", fs.$name($($argument),*).await) }) as Reading
    }};
}

#[test]
fn a_name_that_moves_is_seen_when_that_is_durable() {
    block_on(check(
        |fs, files| {
            let dir = files.dir;
            Box::pin(async move {
                let renamed = fs.rename(&ROOT_USER, dir, b"file", ROOT_INO, b"new");
                renamed.await.unwrap();
            })
        },
        |fs, files| {
            let (dir, file) = (files.dir, files.file);
            vec![
                reading!(fs, lookup(&ROOT_USER, ROOT_INO, b"new")),
                reading!(fs, lookup(&ROOT_USER, dir, b"file")),
                reading!(fs, attr(dir)),
                reading!(fs, attr(ROOT_INO)),
                reading!(fs, attr(file)),
                reading!(fs, access(&ROOT_USER, dir, 0x3f)),
                reading!(fs, read_dir(&ROOT_USER, dir, 0, 10, false)),
                reading!(fs, read_dir(&ROOT_USER, ROOT_INO, 0, 10, true)),
            ]
        },
        |fs, files| {
            let other = files.other;
            vec![
                reading!(fs, lookup(&ROOT_USER, ROOT_INO, b"other")),
                reading!(fs, lookup(&ROOT_USER, ROOT_INO, b"none")),
                reading!(fs, attr(other)),
                reading!(fs, read(&ROOT_USER, other, 0, 100)),
            ]
        },
    ));
}

#[test]
fn attributes_are_seen_when_they_are_durable() {
    block_on(check(
        |fs, files| {
            let file = files.file;
            Box::pin(async move {
                let set = SetAttr {
                    mode: Some(0o600),
                    size_bytes: Some(10),
                    ..SetAttr::default()
                };
                fs.set_attr(&ROOT_USER, file, set, None).await.unwrap();
            })
        },
        |fs, files| {
            let (dir, file) = (files.dir, files.file);
            let write = |len| {
                let (fs, data) = (fs(), pattern(len, 1).into());
                Box::pin(async move {
                    let written = fs.write(&ROOT_USER, file, 0, data, Stability::Unstable);
                    format!("{:?}", written.await)
                }) as Reading
            };
            let open = |dir, mode| {
                let fs = fs();
                Box::pin(async move {
                    let opened = fs.create(&ROOT_USER, dir, b"file", mode).await;
                    format!("{opened:?}")
                }) as Reading
            };
            vec![
                reading!(fs, attr(file)),
                reading!(fs, access(&ROOT_USER, file, 0x3f)),
                reading!(fs, lookup(&ROOT_USER, dir, b"file")),
                reading!(fs, read(&ROOT_USER, file, 0, 100)),
                reading!(fs, read_dir(&ROOT_USER, dir, 0, 10, true)),
                reading!(fs, commit(&ROOT_USER, file, 0, 0)),
                reading!(fs, set_attr(&ROOT_USER, file, SetAttr::default(), None)),
                write(10),
                write(0),
                open(dir, CreateMode::Unchecked(SetAttr::default())),
                // A refusal may rest on any change.
                open(dir, CreateMode::Guarded(SetAttr::default())),
            ]
        },
        |fs, files| {
            let (dir, other) = (files.dir, files.other);
            vec![
                reading!(fs, attr(dir)),
                reading!(fs, attr(other)),
                reading!(fs, read_dir(&ROOT_USER, dir, 0, 10, false)),
            ]
        },
    ));
}

#[test]
fn journaled_bytes_are_seen_when_they_are_durable() {
    block_on(check(
        |fs, files| {
            let file = files.file;
            Box::pin(async move {
                let data = pattern(100, 9).into();
                let written = fs.write(&ROOT_USER, file, 4096, data, Stability::Stable);
                written.await.unwrap();
            })
        },
        |fs, files| {
            let (dir, file) = (files.dir, files.file);
            vec![
                reading!(fs, read(&ROOT_USER, file, 0, 4097)),
                reading!(fs, read(&ROOT_USER, file, 4195, 1)),
                reading!(fs, attr(file)),
                reading!(fs, lookup(&ROOT_USER, dir, b"file")),
            ]
        },
        // Users of other bytes of the file do not wait.
        |fs, files| {
            let (file, other) = (files.file, files.other);
            vec![
                reading!(fs, read(&ROOT_USER, file, 0, 4096)),
                reading!(fs, read(&ROOT_USER, file, 4196, 100)),
                reading!(fs, read(&ROOT_USER, other, 0, 100)),
            ]
        },
    ));
}

#[test]
fn extended_attributes_are_seen_when_they_are_durable() {
    block_on(check(
        |fs, files| {
            let file = files.file;
            Box::pin(async move {
                let set = fs.set_xattr(&ROOT_USER, file, b"user.a", b"value", XattrMode::Any);
                set.await.unwrap();
            })
        },
        |fs, files| {
            let file = files.file;
            vec![
                reading!(fs, xattr(&ROOT_USER, file, b"user.a")),
                reading!(fs, xattr_list(&ROOT_USER, file)),
                reading!(fs, attr(file)),
            ]
        },
        |fs, files| {
            let other = files.other;
            vec![reading!(fs, xattr_list(&ROOT_USER, other))]
        },
    ));
}

#[test]
fn a_symlink_and_what_is_beside_it_are_seen_when_it_is_durable() {
    block_on(check(
        |fs, files| {
            let dir = files.dir;
            Box::pin(async move {
                let set = SetAttr::default();
                let made = fs.make_symlink(&ROOT_USER, dir, b"link", b"target", set);
                made.await.unwrap();
            })
        },
        |fs, files| {
            let dir = files.dir;
            let key = cairn_meta::Key::dirent(dir, b"link");
            let stored = fs().meta().live().get(&key).unwrap().unwrap();
            let link = cairn_meta::DirentRecord::decode(&stored).unwrap().ino;
            let open = fs();
            let open = async move {
                // The file is unchanged, but the reply shows the directory with it.
                let mode = CreateMode::Unchecked(SetAttr::default());
                let opened = open.create(&ROOT_USER, dir, b"file", mode).await;
                format!("{opened:?}")
            };
            vec![
                reading!(fs, read_link(&ROOT_USER, link)),
                reading!(fs, make_dir(&ROOT_USER, dir, b"link", SetAttr::default())),
                reading!(fs, remove(&ROOT_USER, dir, b"none")),
                Box::pin(open),
            ]
        },
        |fs, files| {
            let dir = files.dir;
            let fs = fs();
            // The directory's own attributes are left out while they change.
            vec![Box::pin(async move {
                let (_, shown) = fs.lookup(&ROOT_USER, dir, b"file").await.unwrap();
                assert_eq!(shown, None);
                String::new()
            })]
        },
    ));
}

/// A reader behind the end of a file learns where it ends.
#[test]
fn the_end_of_a_file_is_seen_when_it_is_durable() {
    block_on(check(
        |fs, files| {
            let file = files.file;
            Box::pin(async move {
                let data = pattern(100, 9).into();
                let written = fs.write(&ROOT_USER, file, 100_000, data, Stability::Stable);
                written.await.unwrap();
            })
        },
        |fs, files| {
            let file = files.file;
            vec![reading!(fs, read(&ROOT_USER, file, 50_000, 10))]
        },
        |_, _| Vec::new(),
    ));
}

/// An inode that was evicted and is loaded again shows no more than one that stayed in memory.
#[test]
fn what_is_read_anew_is_seen_when_it_is_durable() {
    block_on(async {
        let files = files().await;
        let fs = files.world.fs.clone();
        files.held.is_held.store(true, Ordering::Relaxed);
        let mut changes = Vec::new();
        for number in 0..20 {
            let (fs, dir) = (fs.clone(), files.dir);
            changes.push(tokio::spawn(async move {
                let name = format!("{number}").into_bytes();
                let set = SetAttr::default();
                let made = fs.make_dir(&ROOT_USER, dir, &name, set).await;
                made.unwrap().attr.ino
            }));
        }
        settle().await;
        let meta = fs.meta();
        let key = cairn_meta::Key::inode(files.dir);
        let (stored, ticket) = meta.live().get_with_ticket(&key).unwrap();
        assert!(stored.is_some() && !meta.is_durable(ticket));
        let key = cairn_meta::Key::inode(files.other);
        let (stored, ticket) = meta.live().get_with_ticket(&key).unwrap();
        assert!(stored.is_some() && meta.is_durable(ticket));
        files.held.let_go();
        for change in changes {
            change.await.unwrap();
        }
    });
}

#[test]
fn an_inode_that_was_forgotten_is_seen_when_its_change_is_durable() {
    block_on(async {
        const COUNT: u32 = 3000;
        let files = files_in(World::with_few_inodes(31).await).await;
        let (fs, dir, file) = (files.world.fs.clone(), files.dir, files.file);
        let mut others = Vec::new();
        for number in 0..COUNT {
            let mode = CreateMode::Guarded(SetAttr::default());
            let name = number.to_string().into_bytes();
            let made = fs.create(&ROOT_USER, ROOT_INO, &name, mode).await;
            others.push(made.unwrap().attr.ino);
        }
        files.held.is_held.store(true, Ordering::Relaxed);
        let rename = tokio::spawn({
            let fs = fs.clone();
            async move {
                let renamed = fs.rename(&ROOT_USER, dir, b"file", dir, b"new");
                renamed.await.map(drop)
            }
        });
        settle().await;
        let evicted = fs.stats().inodes_evicted;
        for other in others {
            fs.attr(other).await.unwrap();
        }
        assert!(fs.stats().inodes_evicted >= evicted + u64::from(COUNT) / 2);
        let fs = || fs.clone();
        let waiting = [
            tokio::spawn(reading!(fs, attr(file))),
            tokio::spawn(reading!(
                fs,
                set_attr(&ROOT_USER, file, SetAttr::default(), None)
            )),
        ];
        settle().await;
        for (index, reading) in waiting.iter().enumerate() {
            assert!(!reading.is_finished(), "number {index} was told too early");
        }
        files.held.let_go();
        rename.await.unwrap().unwrap();
        for reading in waiting {
            reading.await.unwrap();
        }
    });
}

/// The client was told "not now", repeated the call under a new number, and its program saw that the name was gone.
#[test]
fn a_change_that_takes_effect_is_answered_so_though_the_volume_is_opened_again() {
    block_on(async {
        let files = files().await;
        let (fs, dir) = (files.world.fs.clone(), files.dir);
        files.held.is_held.store(true, Ordering::Relaxed);
        let rename = tokio::spawn({
            let fs = fs.clone();
            async move {
                let renamed = fs.rename(&ROOT_USER, dir, b"file", ROOT_INO, b"new");
                renamed.await.map(drop)
            }
        });
        settle().await;
        // Behind the group that is being written.
        let create = tokio::spawn({
            let fs = fs.clone();
            async move {
                let mode = CreateMode::Guarded(SetAttr::default());
                let made = fs.create(&ROOT_USER, dir, b"late", mode).await;
                made.map(drop)
            }
        });
        settle().await;
        fs.abandon();
        files.held.let_go();
        settle().await;
        let again = files.world.open_again().await;
        settle().await;
        assert!(rename.is_finished() && create.is_finished());
        assert_eq!(rename.await.unwrap(), Ok(()));
        assert_eq!(create.await.unwrap(), Err(FsError::Fenced));
        assert!(again.lookup(&ROOT_USER, ROOT_INO, b"new").await.is_ok());
        let late = again.lookup(&ROOT_USER, dir, b"late").await;
        assert_eq!(late.map(drop), Err(FsError::NotFound));
        again.close().await.unwrap();
    });
}
