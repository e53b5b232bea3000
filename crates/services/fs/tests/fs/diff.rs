//! Differences between two snapshots, compared with complete walks over both of them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::planted::{self, Bug};
use cairn_fs::*;

use crate::world::*;

/// Everything that a view shows.
#[derive(Default)]
struct Shown {
    /// By directory and name.
    names: BTreeMap<(Ino, Vec<u8>), Ino>,
    paths: BTreeMap<(Ino, Vec<u8>), Vec<u8>>,
    files: BTreeMap<Ino, File>,
}

struct File {
    attr: Attr,
    data: Vec<u8>,
    xattrs: Vec<(Bytes, Bytes)>,
}

async fn file(view: &FsView, ino: Ino) -> File {
    let attr = view.attr(ino).await.unwrap();
    let data = match attr.kind {
        FileKind::Regular => read_all(view, ino).await,
        _ => Vec::new(),
    };
    let mut xattrs = Vec::new();
    for name in view.xattr_list(&ROOT_USER, ino).await.unwrap() {
        let value = view.xattr(&ROOT_USER, ino, &name).await.unwrap();
        xattrs.push((name, value));
    }
    File { attr, data, xattrs }
}

async fn shown(view: &FsView) -> Shown {
    let mut all = Shown::default();
    all.files.insert(ROOT_INO, file(view, ROOT_INO).await);
    let mut dirs = vec![(ROOT_INO, Vec::new())];
    while let Some((dir, path)) = dirs.pop() {
        let mut cookie = 0;
        loop {
            let page = view.read_dir(&ROOT_USER, dir, cookie, 100, false).await;
            let page = page.unwrap();
            for entry in page.entries {
                cookie = entry.cookie;
                if matches!(&entry.name[..], b"." | b"..") {
                    continue;
                }
                let path = [&path[..], b"/", &entry.name].concat();
                let at = (dir, entry.name.to_vec());
                all.names.insert(at.clone(), entry.ino);
                all.paths.insert(at, path.clone());
                let file = file(view, entry.ino).await;
                if file.attr.kind == FileKind::Directory {
                    dirs.push((entry.ino, path));
                }
                all.files.insert(entry.ino, file);
            }
            if page.eof {
                break;
            }
        }
    }
    all
}

async fn diff_of(fs: &Fs, earlier: &Snapshot, later: &Snapshot) -> (Vec<FileChange>, u64) {
    let mut diff = fs.diff(earlier.generation, later.generation).unwrap();
    let mut all = Vec::new();
    loop {
        let page = diff.page(3).await.unwrap();
        assert!(page.len() <= 3);
        if page.is_empty() {
            return (all, diff.looked_at());
        }
        all.extend(page);
    }
}

/// Takes one change out of a list, and panics if there is none like it.
fn take(
    changes: &mut Vec<FileChange>,
    what: &str,
    is_it: impl Fn(&FileChange) -> bool,
) -> FileChange {
    let at = changes.iter().position(is_it);
    changes.swap_remove(at.unwrap_or_else(|| panic!("{what} is not told of; left: {changes:?}")))
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Checks that the reported differences of two snapshots are the real ones.
pub async fn check_diff(fs: &Fs, earlier: &Snapshot, later: &Snapshot) {
    let (mut changes, _) = diff_of(fs, earlier, later).await;
    let before = shown(&fs.in_view(earlier.view()).unwrap()).await;
    let after = shown(&fs.in_view(later.view()).unwrap()).await;
    let went = before
        .names
        .iter()
        .filter(|(at, ino)| after.names.get(at) != Some(ino));
    let came = after
        .names
        .iter()
        .filter(|(at, ino)| before.names.get(at) != Some(ino));
    let mut gone: BTreeMap<Ino, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for (at, ino) in went {
        let path = before.paths[at].clone();
        let is_replaced = after
            .names
            .get(at)
            .is_some_and(|new| !before.files.contains_key(new));
        match after.files.contains_key(ino) {
            true => drop(gone.entry(*ino).or_default().insert(path)),
            false if is_replaced => {}
            false => {
                let what = format!("deleted {}", text(&path));
                let told = take(&mut changes, &what, |change| {
                    change.change == ChangeKind::Deleted && change.path.as_ref() == Some(&path)
                });
                assert_eq!(told.ino, *ino);
                if told.kind != FileKind::Directory {
                    assert_eq!(told.size_bytes, before.files[ino].attr.size_bytes);
                }
            }
        }
    }
    let mut grown = BTreeSet::new();
    for (at, ino) in came {
        let path = &after.paths[at];
        let what = format!("a new name {}", text(path));
        let told = take(&mut changes, &what, |change| {
            change.ino == *ino
                && change.path.as_ref() == Some(path)
                && !matches!(
                    change.change,
                    ChangeKind::Deleted
                        | ChangeKind::Modified {
                            replaced: false,
                            ..
                        }
                )
        });
        let file = &after.files[ino];
        assert_eq!(told.kind, file.attr.kind);
        if told.kind != FileKind::Directory {
            assert_eq!(told.size_bytes, file.attr.size_bytes);
        }
        let replaced = before
            .names
            .get(at)
            .filter(|old| !after.files.contains_key(old));
        match (before.files.contains_key(ino), &told.change) {
            (false, ChangeKind::Modified { .. }) => assert!(replaced.is_some(), "{what}"),
            (false, _) => {
                assert_eq!(told.change, ChangeKind::Created);
                assert!(replaced.is_none(), "{what}");
            }
            (true, ChangeKind::Renamed { from }) => {
                let names = gone.get_mut(ino).expect("it has names that went");
                assert!(names.remove(from), "{what} from {}", text(from));
            }
            (true, other) => {
                assert_eq!(*other, ChangeKind::Created);
                grown.insert(*ino);
            }
        }
    }
    for ino in grown {
        // It got more names than it lost.
        assert!(gone.get(&ino).is_none_or(BTreeSet::is_empty), "{ino}");
    }
    for path in gone.into_values().flatten() {
        let what = format!("{}, a name that went", text(&path));
        take(&mut changes, &what, |change| {
            change.change == ChangeKind::Deleted && change.path.as_ref() == Some(&path)
        });
    }
    for (ino, after) in &after.files {
        let Some(before) = before.files.get(ino) else {
            continue;
        };
        let of = |file: &File| {
            let attr = &file.attr;
            let is_dir = attr.kind == FileKind::Directory;
            let mtime = (!is_dir).then_some(attr.mtime);
            (attr.mode, attr.uid, attr.gid, mtime, file.xattrs.clone())
        };
        let told = changes.iter().position(|change| {
            change.ino == *ino && matches!(change.change, ChangeKind::Modified { .. })
        });
        let (has_data, has_attributes) = match told.map(|at| changes.swap_remove(at).change) {
            Some(ChangeKind::Modified {
                data, attributes, ..
            }) => (data, attributes),
            _ => (false, false),
        };
        assert!(has_data || before.data == after.data, "bytes of {ino}");
        assert!(
            has_attributes || of(before) == of(after),
            "attributes of {ino}: {:?}, then {:?}",
            of(before),
            of(after)
        );
        // A rollback of the volume sets times back, and the clock stands still here: an equal time may come again.
        let is_same = before.attr.ctime == after.attr.ctime
            && before.data == after.data
            && of(before) == of(after);
        assert!(!has_attributes || !is_same, "nothing changed of {ino}");
    }
    assert_eq!(changes, [], "nothing like that happened");
}

async fn make_file(fs: &Fs, dir: Ino, name: &str) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, dir, name.as_bytes(), mode).await;
    made.unwrap().attr.ino
}

async fn make_dir(fs: &Fs, dir: Ino, name: &str) -> Ino {
    let made = fs.make_dir(&ROOT_USER, dir, name.as_bytes(), SetAttr::default());
    made.await.unwrap().attr.ino
}

async fn write(fs: &Fs, ino: Ino, data: &'static [u8]) {
    let data = Bytes::from_static(data);
    let written = fs.write(&ROOT_USER, ino, 0, data, Stability::Stable);
    written.await.unwrap();
}

async fn rename(fs: &Fs, from: (Ino, &str), to: (Ino, &str)) {
    let (from_name, to_name) = (from.1.as_bytes(), to.1.as_bytes());
    let renamed = fs.rename(&ROOT_USER, from.0, from_name, to.0, to_name);
    renamed.await.unwrap();
}

async fn snapshot(fs: &Fs, name: &str) -> Snapshot {
    fs.take_snapshot(name.as_bytes(), b"").await.unwrap()
}

/// Makes changes of all kinds; returns the snapshots before and after them, and the reported changes.
async fn change_some(fs: &Fs, names: [&str; 2]) -> (Snapshot, Snapshot) {
    let dir = make_dir(fs, ROOT_INO, &format!("dir of {}", names[0])).await;
    let mut files = Vec::new();
    for name in [
        "kept", "gone", "moved", "saved", "written", "linked", "swapped",
    ] {
        let ino = make_file(fs, dir, name).await;
        write(fs, ino, b"before").await;
        files.push(ino);
    }
    let old = make_dir(fs, dir, "old").await;
    make_file(fs, old, "inside").await;
    let before = snapshot(fs, names[0]).await;
    fs.remove(&ROOT_USER, dir, b"gone").await.unwrap();
    let new = make_dir(fs, dir, "new").await;
    rename(fs, (dir, "moved"), (new, "moved here")).await;
    rename(fs, (dir, "old"), (new, "old")).await;
    let saved = make_file(fs, dir, "saved~").await;
    write(fs, saved, b"after").await;
    rename(fs, (dir, "saved~"), (dir, "saved")).await;
    write(fs, files[4], b"after!").await;
    fs.link(&ROOT_USER, files[5], new, b"link").await.unwrap();
    rename(fs, (dir, "swapped"), (dir, "tmp")).await;
    rename(fs, (dir, "kept"), (dir, "swapped")).await;
    rename(fs, (dir, "tmp"), (dir, "kept")).await;
    make_file(fs, new, "created").await;
    (before, snapshot(fs, names[1]).await)
}

#[test]
fn each_kind_of_change_is_told() {
    block_on(async {
        let world = World::new(2, 1).await;
        let fs = &world.fs;
        let (before, after) = change_some(fs, ["a", "b"]).await;
        let (changes, _) = diff_of(fs, &before, &after).await;
        let mut told: Vec<String> = Vec::new();
        for change in changes {
            let path = text(&change.path.unwrap()).replace("/dir of a", "");
            told.push(match change.change {
                ChangeKind::Created => format!("+ {path}"),
                ChangeKind::Deleted => format!("- {path}"),
                ChangeKind::Renamed { from } => {
                    format!("{} > {path}", text(&from).replace("/dir of a", ""))
                }
                ChangeKind::Modified { data, replaced, .. } => {
                    format!("M {path} {data} {replaced} {}", change.size_bytes)
                }
            });
        }
        told.sort_unstable();
        let want = [
            "+ /new",
            "+ /new/created",
            "+ /new/link",
            "- /gone",
            "/kept > /swapped",
            "/moved > /new/moved here",
            "/old > /new/old",
            "/swapped > /kept",
            "M /saved true true 5",
            "M /written true false 6",
        ];
        assert_eq!(told, want);
        check_diff(fs, &before, &after).await;
        let refused = fs.diff(after.generation, before.generation);
        assert_eq!(refused.map(drop).unwrap_err(), FsError::Invalid);
        // A diff reports nothing incomplete of a snapshot that is deleted meanwhile.
        let mut diff = fs.diff(before.generation, after.generation).unwrap();
        assert_eq!(diff.page(1).await.unwrap().len(), 1);
        fs.delete_snapshot(b"a").await.unwrap();
        assert_eq!(diff.page(1).await.unwrap_err(), FsError::Stale);
    });
}

/// Counts the visited keys: they are as many in a volume that has twenty times as many files, in the same directories
/// and in others, and with snapshots and changes before and after.
#[test]
fn the_cost_follows_the_change_and_not_the_volume() {
    block_on(async {
        let world = World::new(4, 1).await;
        let fs = &world.fs;
        let (before, after) = change_some(fs, ["a", "b"]).await;
        let (changes, few) = diff_of(fs, &before, &after).await;
        let mut dirs = vec![ROOT_INO];
        for number in 0..20 {
            dirs.push(make_dir(fs, ROOT_INO, &format!("dir{number}")).await);
        }
        for dir in &dirs {
            for number in 0..100 {
                make_file(fs, *dir, &format!("file{number}")).await;
            }
        }
        snapshot(fs, "between").await;
        for dir in &dirs[1..] {
            for number in 0..50 {
                fs.remove(&ROOT_USER, *dir, format!("file{number}").as_bytes())
                    .await
                    .unwrap();
            }
        }
        // Equal changes again, in a directory beside all these.
        let (third, fourth) = change_some(fs, ["c", "d"]).await;
        let (same, many) = diff_of(fs, &third, &fourth).await;
        assert_eq!(same.len(), changes.len());
        assert!(few > 20 && many < few + few / 5, "{few} and {many} keys");
        // Later changes cost nothing, either.
        let (again, later) = diff_of(fs, &before, &after).await;
        assert_eq!(again.len(), changes.len());
        assert!(later < few + few / 5, "{few} and {later} keys");
        check_diff(fs, &before, &fourth).await;
    });
}

#[test]
#[should_panic(expected = "is not told of")]
fn a_planted_mistake_is_found() {
    block_on(async {
        let world = World::new(6, 1).await;
        planted::plant(Some(Bug::DiffMissesNewNames));
        let (before, after) = change_some(&world.fs, ["a", "b"]).await;
        check_diff(&world.fs, &before, &after).await;
    });
}
