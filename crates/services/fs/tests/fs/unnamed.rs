//! Files that get their name when they are complete: the view of other clients, and the state after a crash.

use std::ops::ControlFlow;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::env::BoxFuture;
use cairn_fs::*;
use cairn_meta::{Key, KeyKind};
use cairn_testkit::{Crash, OpKind, Pace};
use futures_util::FutureExt as _;

use crate::world::*;

const LENS: [u32; 5] = [0, 1, 64 << 10, (64 << 10) + 1, 3 << 20];

async fn filled(fs: &Fs, len: u32, byte: u8) -> Unnamed {
    let mut file = fs.make_unnamed(&ROOT_USER).unwrap();
    let mut data = Bytes::from(pattern(len, byte));
    while !data.is_empty() {
        let step = data.split_to(data.len().min(1 << 20));
        file.append(step).await.unwrap();
    }
    file
}

fn placing<'a>(name: &'a [u8], xattrs: &'a [(&'a [u8], Bytes)]) -> Placing<'a> {
    Placing {
        dir: ROOT_INO,
        name,
        expected: Expected::Anything,
        set: SetAttr::default(),
        xattrs,
    }
}

/// Inodes that the metadata has, and marks of orphans.
fn stored(fs: &Fs) -> (usize, usize) {
    let (mut inodes, mut orphans) = (0, 0);
    let (from, to) = Key::everything();
    let scanned = fs.meta().live().scan_with(&from, &to, |key, _, _| {
        match KeyKind::parse(key) {
            Ok(KeyKind::Inode(_)) => inodes += 1,
            Ok(KeyKind::Orphan(_)) => orphans += 1,
            _ => {}
        }
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    (inodes, orphans)
}

#[test]
fn a_file_is_there_whole_with_what_comes_with_it_after_any_crash() {
    for (index, mode) in Crash::ALL.into_iter().enumerate() {
        block_on(async {
            let mut world = World::new(31, 1).await;
            for (number, len) in LENS.into_iter().enumerate() {
                let value = Bytes::from_static(b"value");
                let xattrs = [(&b"user.a"[..], value.clone()), (b"user.b", value.clone())];
                for byte in [1, 2] {
                    let name = format!("file{number}");
                    let mut file = filled(&world.fs, len, byte).await;
                    let to = placing(name.as_bytes(), &xattrs);
                    let attr = file.place(&ROOT_USER, &to).await.unwrap();
                    assert_eq!((attr.size_bytes, attr.nlink), (u64::from(len), 1));
                }
            }
            world = world.crash(32 + index as u64, mode).await;
            let fs = &world.fs;
            for (number, len) in LENS.into_iter().enumerate() {
                let name = format!("file{number}");
                let found = fs.lookup(&ROOT_USER, ROOT_INO, name.as_bytes()).await;
                let ino = found.unwrap().0.ino;
                assert!(read_all(fs, ino).await == pattern(len, 2), "{len} {mode:?}");
                let names = fs.xattr_list(&ROOT_USER, ino).await.unwrap();
                assert_eq!(names, ["user.a", "user.b"]);
            }
            world.run_for(60).await;
            assert_eq!(stored(fs), (1 + LENS.len(), 0), "{mode:?}");
            recount(fs).await;
            world.fs.close().await.unwrap();
        });
    }
}

/// One batch each: the log takes it as one, and the caller waits once.
#[test]
fn a_small_file_is_one_batch() {
    block_on(async {
        let world = World::new(33, 1).await;
        let fs = &world.fs;
        let mut file = filled(fs, 4096, 1).await;
        let before = fs.meta().last_ticket().0.0;
        let xattrs = [(&b"user.a"[..], Bytes::from_static(b"1"))];
        file.place(&ROOT_USER, &placing(b"new", &xattrs))
            .await
            .unwrap();
        assert_eq!(fs.meta().last_ticket().0.0, before + 1);
        let mut other = filled(fs, 4096, 2).await;
        other
            .place(&ROOT_USER, &placing(b"new", &xattrs))
            .await
            .unwrap();
        assert_eq!(fs.meta().last_ticket().0.0, before + 2);
        assert_eq!(fs.attr(file.ino()).await.unwrap_err(), FsError::Stale);
    });
}

#[test]
fn what_never_got_a_name_is_gone() {
    for ends_in_crash in [false, true] {
        block_on(async {
            let mut world = World::new(34, 1).await;
            let files = [
                filled(&world.fs, 100, 1).await,
                filled(&world.fs, 100_000, 2).await,
                filled(&world.fs, 9 << 20, 3).await,
            ];
            // Some of it is in segments by now, and the reaper has passed.
            world.run_for(60).await;
            let (inodes, orphans) = stored(&world.fs);
            assert_eq!((inodes, orphans), (3, 2), "two are too large for memory");
            if ends_in_crash {
                std::mem::forget(files);
                world = world.crash(35, Crash::KeepUnsynced).await;
            } else {
                drop(files);
            }
            world.run_for(60).await;
            assert_eq!(stored(&world.fs), (1, 0), "{ends_in_crash}");
            assert_eq!(world.fs.meta().counters().file_bytes, 0);
            recount(&world.fs).await;
            world.fs.close().await.unwrap();
        });
    }
}

/// The reaper finds the mark of a file that is being filled, and leaves it alone.
#[test]
fn what_is_being_filled_stays() {
    block_on(async {
        let world = World::new(36, 1).await;
        let mut file = filled(&world.fs, 5 << 20, 1).await;
        world.run_for(120).await;
        // A removed file makes the reaper read all marks again.
        let mut other = filled(&world.fs, 1 << 20, 2).await;
        let placed = other.place(&ROOT_USER, &placing(b"other", &[])).await;
        placed.unwrap();
        let removed = world.fs.remove(&ROOT_USER, ROOT_INO, b"other").await;
        removed.unwrap();
        world.run_for(120).await;
        file.append(pattern(1000, 9).into()).await.unwrap();
        let placed = file.place(&ROOT_USER, &placing(b"file", &[])).await;
        assert_eq!(placed.unwrap().size_bytes, (5 << 20) + 1000);
        let world = world.crash(37, Crash::LoseUnsynced).await;
        let found = world.fs.lookup(&ROOT_USER, ROOT_INO, b"file").await;
        let data = read_all(&world.fs, found.unwrap().0.ino).await;
        assert!(data.len() == (5 << 20) + 1000 && data[..5 << 20] == pattern(5 << 20, 1));
        assert!(data[5 << 20..] == pattern(1000, 9));
    });
}

/// Of several callers that want a free name, one gets it; the others can choose another.
#[test]
fn one_of_many_gets_a_free_name() {
    block_on(async {
        let world = World::new(38, 1).await;
        let mut files = Vec::new();
        for byte in 0..8 {
            files.push(filled(&world.fs, 1000, byte).await);
        }
        let free = Placing {
            expected: Expected::Nothing,
            ..placing(b"name", &[])
        };
        let tries = files.iter_mut().map(|file| file.place(&ROOT_USER, &free));
        let results = futures_util::future::join_all(tries).await;
        let won: Vec<_> = results.iter().filter(|result| result.is_ok()).collect();
        assert_eq!(won.len(), 1);
        let lost = |result: &&Result<Attr, FsError>| **result == Err(FsError::Exists);
        assert_eq!(results.iter().filter(lost).count(), 7);
        let loser = results.iter().position(|result| result.is_err()).unwrap();
        let to = placing(b"other", &[]);
        let placed = files[loser].place(&ROOT_USER, &to).await;
        assert_eq!(placed.unwrap().size_bytes, 1000);
    });
}

/// It needs the rights of a rename to that name; owner and mode are those of a file that is made there.
#[test]
fn a_name_is_given_to_who_may_have_it() {
    block_on(async {
        let world = World::new(39, 1).await;
        let fs = &world.fs;
        let set = |mode, gid| SetAttr {
            mode: Some(mode),
            gid,
            ..SetAttr::default()
        };
        let make = async |name: &[u8], set| {
            let made = fs.make_dir(&ROOT_USER, ROOT_INO, name, set).await;
            made.unwrap().attr.ino
        };
        let closed = make(b"closed", set(0o755, None)).await;
        let sticky = make(b"sticky", set(0o1777, None)).await;
        let grouped = make(b"grouped", set(0o2777, Some(77))).await;
        let who = Credentials {
            uid: 5,
            gid: 6,
            groups: Vec::new(),
            request: None,
        };
        let place = async |dir: Ino, name: &[u8]| {
            let mut file = fs.make_unnamed(&who).unwrap();
            file.append(pattern(10, 1).into()).await.unwrap();
            let placing = Placing {
                dir,
                ..placing(name, &[])
            };
            file.place(&who, &placing).await
        };
        assert_eq!(place(closed, b"a").await, Err(FsError::AccessDenied));
        let mode = CreateMode::Guarded(SetAttr::default());
        fs.create(&ROOT_USER, sticky, b"a", mode).await.unwrap();
        assert_eq!(place(sticky, b"a").await, Err(FsError::NotOwner));
        let attr = place(sticky, b"b").await.unwrap();
        assert_eq!((attr.uid, attr.gid, attr.mode), (5, 6, 0o644));
        assert_eq!(place(grouped, b"a").await.unwrap().gid, 77);
        assert_eq!(place(ROOT_INO, b"sticky").await, Err(FsError::AccessDenied));
        assert_eq!(place(grouped, b"..").await, Err(FsError::IsDirectory));
        assert_eq!(place(grouped, b"a/b").await, Err(FsError::Invalid));
    });
}

/// While a snapshot is taken the journal is closed: a file that would be stored with it takes the other way, and is
/// complete.
#[test]
fn files_come_while_snapshots_are_taken() {
    block_on(async {
        let world = World::new(40, 1).await;
        let fs = world.fs.clone();
        let snapshots = async {
            for number in 0..20 {
                let name = format!("snapshot{number}");
                fs.take_snapshot(name.as_bytes(), b"").await.unwrap();
            }
        };
        let files = async {
            for number in 0..200_u32 {
                let name = format!("file{number}");
                let mut file = filled(&fs, 2000, number as u8).await;
                let to = placing(name.as_bytes(), &[]);
                file.place(&ROOT_USER, &to).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        futures_util::join!(snapshots, files);
        let world = world.crash(41, Crash::LoseUnsynced).await;
        for number in 0..200_u32 {
            let name = format!("file{number}");
            let found = world.fs.lookup(&ROOT_USER, ROOT_INO, name.as_bytes()).await;
            let data = read_all(&world.fs, found.unwrap().0.ino).await;
            assert!(data == pattern(2000, number as u8));
        }
        // A snapshot shows complete files only.
        for snapshot in world.fs.snapshots() {
            let shown = world.fs.in_view(snapshot.view()).unwrap();
            let page = shown.read_dir(&ROOT_USER, ROOT_INO, 0, 1000, true).await;
            for entry in page.unwrap().entries {
                if entry.name.starts_with(b"file") {
                    assert_eq!(read_all(&shown, entry.ino).await.len(), 2000);
                }
            }
        }
    });
}

/// While this exists, nothing reaches the log.
struct LogStands;

impl Pace for LogStands {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let writes = matches!(kind, OpKind::Write | OpKind::WriteDurable | OpKind::Sync);
        let waits = writes && name.contains("/log.");
        waits.then(|| Box::pin(std::future::pending()) as BoxFuture<()>)
    }
}

/// A client that makes names in a directory does not wait for others that do; a name that is not durable is invisible.
#[test]
fn a_child_is_found_while_its_directory_changes() {
    block_on(async {
        let world = World::new(44, 1).await;
        let (fs, who) = (&world.fs, &ROOT_USER);
        let set = SetAttr::default();
        let made = fs.make_dir(who, ROOT_INO, b"dir", set).await.unwrap();
        let dir = made.attr.ino;
        world.disks[0].pace_with(std::sync::Arc::new(LogStands));
        let mut file = filled(fs, 100, 1).await;
        let to = Placing {
            dir,
            ..placing(b"file", &[])
        };
        let mut placed = Box::pin(file.place(who, &to));
        for _ in 0..100 {
            assert!(futures_util::poll!(&mut placed).is_pending());
            tokio::task::yield_now().await;
        }
        let found = fs.child(who, ROOT_INO, b"dir").now_or_never();
        assert_eq!(found, Some(Ok(Some((dir, FileKind::Directory)))));
        assert!(fs.child(who, dir, b"file").now_or_never().is_none());
        assert_eq!(fs.child(who, dir, b"none").now_or_never(), Some(Ok(None)));
    });
}

#[test]
fn a_directory_comes_with_its_attributes() {
    block_on(async {
        let world = World::new(42, 1).await;
        let before = world.fs.meta().last_ticket().0.0;
        let xattrs = [(&b"user.made"[..], Bytes::from_static(b"1"))];
        let (who, set) = (&ROOT_USER, SetAttr::default());
        let made = world.fs.make_dir_with(who, ROOT_INO, b"dir", set, &xattrs);
        let ino = made.await.unwrap().attr.ino;
        assert_eq!(world.fs.meta().last_ticket().0.0, before + 1);
        let refused = world
            .fs
            .make_dir_with(who, ROOT_INO, b"bad", set, &[(b"made", Bytes::new())])
            .now_or_never();
        assert_eq!(
            refused.expect("at once").unwrap_err(),
            FsError::NotSupported
        );
        let world = world.crash(43, Crash::LoseUnsynced).await;
        let value = world.fs.xattr(who, ino, b"user.made").await.unwrap();
        assert_eq!(value, "1");
        world.fs.remove_xattr(who, ino, b"user.made").await.unwrap();
        assert!(world.fs.xattr_list(who, ino).await.unwrap().is_empty());
    });
}

/// A replaced file keeps its bytes under another name, whenever the server ends, and nobody can change it there.
#[test]
fn what_is_replaced_can_be_kept() {
    for (index, mode) in Crash::ALL.into_iter().enumerate() {
        block_on(async {
            let mut world = World::new(61, 1).await;
            let fs = &world.fs;
            let kept = fs.make_dir(&ROOT_USER, ROOT_INO, b"kept", SetAttr::default());
            let kept = kept.await.unwrap().attr.ino;
            for (number, len) in LENS.into_iter().enumerate() {
                let name = format!("file{number}");
                for byte in [1, 2] {
                    let mut file = filled(fs, len, byte).await;
                    let before = fs.meta().last_ticket().0.0;
                    let keeping = Keeping {
                        replaced: Some((kept, name.as_bytes())),
                        retained_until_seconds: 0,
                    };
                    let to = placing(name.as_bytes(), &[]);
                    file.place_keeping(&ROOT_USER, &to, &keeping).await.unwrap();
                    if len > 0 && len <= 4096 {
                        assert_eq!(fs.meta().last_ticket().0.0, before + 1);
                    }
                }
                // A file that has to be kept does not replace another one.
                let mut file = filled(fs, 1, 3).await;
                let keeping = Keeping {
                    replaced: Some((kept, name.as_bytes())),
                    retained_until_seconds: 0,
                };
                let to = placing(name.as_bytes(), &[]);
                let refused = file.place_keeping(&ROOT_USER, &to, &keeping).await;
                assert_eq!(refused.unwrap_err(), FsError::Exists);
            }
            world = world.crash(62 + index as u64, mode).await;
            let fs = &world.fs;
            for (number, len) in LENS.into_iter().enumerate() {
                let name = format!("file{number}");
                for (dir, byte) in [(ROOT_INO, 2), (kept, 1)] {
                    let found = fs.lookup(&ROOT_USER, dir, name.as_bytes()).await;
                    let ino = found.unwrap().0.ino;
                    assert!(
                        read_all(fs, ino).await == pattern(len, byte),
                        "{len} {mode:?}"
                    );
                }
                let ino = fs.lookup(&ROOT_USER, kept, name.as_bytes()).await;
                let ino = ino.unwrap().0.ino;
                refuses_changes(fs, ino).await;
            }
            // It can be brought back, and is then an ordinary file.
            let (from, to) = ((kept, &b"file2"[..]), (ROOT_INO, &b"file2"[..]));
            fs.move_version(&ROOT_USER, from, to, false).await.unwrap();
            let ino = fs
                .lookup(&ROOT_USER, ROOT_INO, b"file2")
                .await
                .unwrap()
                .0
                .ino;
            assert!(read_all(fs, ino).await == pattern(LENS[2], 1));
            let data = Bytes::from_static(b"new");
            fs.write(&ROOT_USER, ino, 0, data, Stability::Stable)
                .await
                .unwrap();
            world.run_for(60).await;
            recount(&world.fs).await;
            world.fs.close().await.unwrap();
        });
    }
}

/// A conditional removal removes nothing that was written, replaced or changed since the caller's check.
#[test]
fn only_a_file_as_it_was_seen_is_removed() {
    block_on(async {
        let world = World::new(53, 1).await;
        let fs = &world.fs;
        let made = fs.make_dir(&ROOT_USER, ROOT_INO, b"kept", SetAttr::default());
        let kept = made.await.unwrap().attr.ino;
        let name = &b"file"[..];
        for change in 0..4 {
            let mut file = filled(fs, 1000, 1).await;
            let attr = file.place(&ROOT_USER, &placing(name, &[])).await.unwrap();
            let seen = Unchanged::of(&attr);
            match change {
                0 => {
                    let data = Bytes::from_static(b"new");
                    let written = fs.write(&ROOT_USER, attr.ino, 0, data, Stability::Unstable);
                    written.await.unwrap();
                }
                1 => {
                    let set = SetAttr {
                        mode: Some(0o600),
                        ..SetAttr::default()
                    };
                    let set = fs.set_attr(&ROOT_USER, attr.ino, set, None);
                    set.await.unwrap();
                }
                2 => {
                    let mode = XattrMode::Any;
                    let set = fs.set_xattr(&ROOT_USER, attr.ino, b"user.a", b"1", mode);
                    set.await.unwrap();
                }
                _ => {
                    let mut other = filled(fs, 1000, 2).await;
                    let placing = placing(name, &[]);
                    other.place(&ROOT_USER, &placing).await.unwrap();
                }
            }
            let removed = fs.remove_unchanged(&ROOT_USER, ROOT_INO, name, seen).await;
            assert_eq!(removed.unwrap_err(), FsError::NotSync, "{change}");
            let (from, to) = ((ROOT_INO, name), (kept, name));
            let moved = fs.move_version_if(&ROOT_USER, from, to, true, Some(seen));
            assert_eq!(moved.await.unwrap_err(), FsError::NotSync, "{change}");
            let (attr, _) = fs.lookup(&ROOT_USER, ROOT_INO, name).await.unwrap();
            let seen = Unchanged::of(&attr);
            let removed = fs.remove_unchanged(&ROOT_USER, ROOT_INO, name, seen).await;
            removed.unwrap();
            let gone = fs.lookup(&ROOT_USER, ROOT_INO, name).await;
            assert_eq!(gone.unwrap_err(), FsError::NotFound);
        }
        world.fs.close().await.unwrap();
    });
}

async fn refuses_changes(fs: &Fs, ino: Ino) {
    let data = Bytes::from_static(b"late");
    let written = fs
        .write(&ROOT_USER, ino, 0, data, Stability::Unstable)
        .await;
    assert_eq!(written.unwrap_err(), FsError::NotOwner);
    let cut = SetAttr {
        size_bytes: Some(0),
        ..SetAttr::default()
    };
    let cut = fs.set_attr(&ROOT_USER, ino, cut, None).await;
    assert_eq!(cut.unwrap_err(), FsError::NotOwner);
    let punched = fs.punch(&ROOT_USER, ino, 0..4096).await;
    assert_eq!(punched.unwrap_err(), FsError::NotOwner);
}

/// Until its time nobody changes, renames, replaces or removes it, also after a crash.
#[test]
fn what_is_retained_stays_until_its_time() {
    block_on(async {
        let mut world = World::new(71, 1).await;
        let mut other = filled(&world.fs, 100, 2).await;
        let placed = other.place(&ROOT_USER, &placing(b"other", &[])).await;
        let until = placed.unwrap().mtime.seconds as u64 + 20;
        let mut file = filled(&world.fs, 100, 1).await;
        let keeping = Keeping {
            replaced: None,
            retained_until_seconds: until,
        };
        let to = placing(b"locked", &[]);
        let attr = file.place_keeping(&ROOT_USER, &to, &keeping).await.unwrap();
        world = world.crash(72, Crash::ALL[0]).await;
        let fs = &world.fs;
        let ino = fs
            .lookup(&ROOT_USER, ROOT_INO, b"locked")
            .await
            .unwrap()
            .0
            .ino;
        assert_eq!(ino, attr.ino);
        refuses_changes(fs, ino).await;
        let shared = fs.share_over(&ROOT_USER, ino, 0..10, ino, 50).await;
        assert_eq!(shared.unwrap_err(), FsError::NotOwner);
        let there = read_all(fs, ino).await;
        let data = Bytes::from_static(b"changed");
        let compared =
            fs.compare_and_write(&ROOT_USER, ino, 0, &there[..7], data, Stability::Stable);
        assert_eq!(compared.await.unwrap_err(), FsError::NotOwner);
        let name = |name: &'static [u8]| (ROOT_INO, name);
        for (from, to) in [
            (name(b"locked"), name(b"x")),
            (name(b"other"), name(b"locked")),
        ] {
            let renamed = fs.rename(&ROOT_USER, from.0, from.1, to.0, to.1).await;
            assert_eq!(renamed.unwrap_err(), FsError::NotOwner);
        }
        let removed = fs.remove(&ROOT_USER, ROOT_INO, b"locked").await;
        assert_eq!(removed.unwrap_err(), FsError::NotOwner);
        let mut new = filled(fs, 10, 3).await;
        let placed = new.place(&ROOT_USER, &placing(b"locked", &[])).await;
        assert_eq!(placed.unwrap_err(), FsError::NotOwner);
        assert!(read_all(fs, ino).await == pattern(100, 1));
        fs.retain(ino, until + 20).await.unwrap();
        world.run_for(30).await;
        let removed = world.fs.remove(&ROOT_USER, ROOT_INO, b"locked").await;
        assert_eq!(removed.unwrap_err(), FsError::NotOwner);
        world.run_for(20).await;
        world
            .fs
            .remove(&ROOT_USER, ROOT_INO, b"locked")
            .await
            .unwrap();
        world.run_for(60).await;
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}

/// Held directories, and those below them, keep their places: retained files in them stay at their paths. All other
/// changes work.
#[test]
fn directories_with_what_is_retained_keep_their_places() {
    block_on(async {
        let mut world = World::new(73, 1).await;
        let who = &ROOT_USER;
        let mut dirs = vec![ROOT_INO];
        for name in [&b"held"[..], b"year", b"month"] {
            let above = *dirs.last().unwrap();
            let made = world
                .fs
                .make_dir(who, above, name, SetAttr::default())
                .await;
            dirs.push(made.unwrap().attr.ino);
        }
        let [root, held, year, month] = dirs[..] else {
            panic!("four directories");
        };
        for name in [&b"free"[..], b"other"] {
            let made = world.fs.make_dir(who, root, name, SetAttr::default()).await;
            made.unwrap();
        }
        world.fs.hold_directories(held, true).await.unwrap();
        world = world.crash(74, Crash::ALL[0]).await;
        let fs = &world.fs;
        for (from, name, to, new) in [
            (root, &b"held"[..], root, &b"renamed"[..]),
            (held, b"year", held, b"renamed"),
            (held, b"year", root, b"moved"),
            (year, b"month", year, b"renamed"),
            (year, b"month", root, b"free"),
            (root, b"free", root, b"held"),
        ] {
            let renamed = fs.rename(who, from, name, to, new).await;
            assert!(renamed.is_err(), "{name:?} to {new:?}");
            assert!(fs.lookup(who, from, name).await.is_ok(), "{name:?}");
        }
        let renamed = fs.rename(who, year, b"month", root, b"moved").await;
        assert_eq!(renamed.unwrap_err(), FsError::NotOwner);
        let mode = SetAttr {
            mode: Some(0o700),
            ..SetAttr::default()
        };
        fs.set_attr(who, held, mode, None).await.unwrap();
        fs.rename(who, root, b"other", root, b"elsewhere")
            .await
            .unwrap();
        fs.rename(who, root, b"elsewhere", held, b"came")
            .await
            .unwrap();
        // An empty directory can be removed: nothing is retained in it.
        fs.remove_dir(who, year, b"month").await.unwrap();
        fs.remove_dir(who, held, b"year").await.unwrap();
        fs.remove_dir(who, held, b"came").await.unwrap();
        let removed = fs.remove_dir(who, root, b"held").await;
        assert_eq!(removed.unwrap_err(), FsError::NotOwner);
        let gone = fs.hold_directories(month, true).await;
        assert_eq!(gone.unwrap_err(), FsError::Stale);
        fs.hold_directories(held, false).await.unwrap();
        fs.remove_dir(who, root, b"held").await.unwrap();
        world.run_for(60).await;
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}
