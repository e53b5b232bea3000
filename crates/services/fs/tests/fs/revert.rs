//! Rollback of a whole volume: it equals the snapshot, to the last key, and all counters are right.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Generation, Ino, View};
use cairn_fs::*;
use cairn_meta::{CookieRecord, DirentRecord, InodeRecord, Key, KeyKind};
use cairn_testkit::Crash;

use crate::world::*;

type Keys = BTreeMap<Key, Bytes>;

const HIDDEN: u64 = u64::MAX - 1;

/// The keys of named inodes in a view, without the values that a rollback sets itself.
fn keys(fs: &Fs, view: View) -> Keys {
    let meta = fs.meta().view(view).unwrap();
    let (from, to) = (Key::inodes().0, Key::orphans().0);
    let mut all = Keys::new();
    let mut nameless = BTreeSet::new();
    let scanned = meta.scan_with(&from, &to, |key, value, _| {
        let key = Key::parse(key).unwrap();
        let mut value = Bytes::copy_from_slice(value);
        if let Ok(KeyKind::Inode(ino)) = key.kind() {
            let mut record = InodeRecord::decode(&value).unwrap();
            if record.nlink == 0 {
                nameless.insert(ino);
            }
            (record.ctime, record.atime) = Default::default();
            (record.cookie_next, record.tree, record.stored_bytes) = (0, Ino(0), 0);
            value = record.encode().into();
        }
        all.insert(key, value);
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    // Names that came back have other sequence numbers; each entry and its number name one another.
    let mut named = Keys::new();
    for (key, value) in &mut all {
        match key.kind().unwrap() {
            KeyKind::Dirent { dir, .. } => {
                let mut record = DirentRecord::decode(value).unwrap();
                let place = Key::cookie(dir, record.cookie);
                record.cookie = 0;
                *value = record.encode().into();
                assert!(
                    named
                        .insert(place, key.as_bytes().to_vec().into())
                        .is_none()
                );
            }
            KeyKind::Inode(_) => {
                let mut record = InodeRecord::decode(value).unwrap();
                record.cookie = 0;
                *value = record.encode().into();
            }
            _ => {}
        }
    }
    all.retain(|key, value| match key.kind().unwrap() {
        KeyKind::Cookie { dir, .. } => {
            let entry = CookieRecord::decode(value).unwrap();
            let name = Key::dirent(dir, &entry.name);
            assert_eq!(named.remove(key), Some(name.as_bytes().to_vec().into()));
            false
        }
        // Attributes there stay.
        KeyKind::Xattr { ino, .. } if ino.0 == HIDDEN => false,
        KeyKind::Inode(ino) | KeyKind::Extent { ino, .. } | KeyKind::Xattr { ino, .. } => {
            !nameless.contains(&ino)
        }
        _ => true,
    });
    assert_eq!(named, Keys::new(), "names without a place");
    all
}

/// Checks that the volume has the contents of the snapshot, and nothing else.
pub fn check_same(fs: &Fs, generation: Generation) {
    let (live, shown) = (keys(fs, View::Live), keys(fs, View::Snapshot(generation)));
    for (key, value) in &shown {
        assert_eq!(live.get(key), Some(value), "{key:?}");
    }
    for key in live.keys() {
        assert!(shown.contains_key(key), "{key:?} is new");
    }
}

async fn make_file(fs: &Fs, dir: Ino, name: &str, data: &[u8]) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, dir, name.as_bytes(), mode).await;
    let ino = made.unwrap().attr.ino;
    write(fs, ino, data).await;
    ino
}

async fn write(fs: &Fs, ino: Ino, data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    let written = fs.write(&ROOT_USER, ino, 0, data, Stability::Stable);
    written.await.unwrap();
}

async fn make_dir(fs: &Fs, dir: Ino, name: &str) -> Ino {
    let made = fs.make_dir(&ROOT_USER, dir, name.as_bytes(), SetAttr::default());
    made.await.unwrap().attr.ino
}

async fn limit(fs: &Fs, dir: Ino, bytes: u64) {
    let limits = QuotaLimits {
        bytes: QuotaLimit {
            hard: Some(bytes),
            ..QuotaLimit::default()
        },
        ..QuotaLimits::default()
    };
    let set = fs.set_quota(dir, QuotaKind::Tree, 0, limits, b"");
    set.await.unwrap();
}

async fn settle(world: &World) {
    for _ in 0..200 {
        if world.fs.quotas_are_settled() {
            return;
        }
        world.run_for(1).await;
    }
    panic!("what is in directories with quotas is not counted");
}

fn used(fs: &Fs, dir: Ino) -> Option<u64> {
    let quota = fs.quota(dir, QuotaKind::Tree, 0);
    quota.map(|quota| quota.used.file_bytes)
}

const MIB: usize = 1 << 20;

/// Three directories with quotas, one each that existed before, that was made since and that was removed since;
/// schedules in the hidden folder; a partly overwritten file, a removed one, a new one, and one that was moved to
/// another tree.
async fn restore_some(seed: u64, keep: Option<&str>) {
    let world = World::new(seed, 4).await;
    let fs = world.fs.clone();
    let [stays, goes, free] = [
        make_dir(&fs, ROOT_INO, "stays").await,
        make_dir(&fs, ROOT_INO, "goes").await,
        make_dir(&fs, ROOT_INO, "free").await,
    ];
    limit(&fs, stays, 1 << 30).await;
    limit(&fs, goes, 1 << 30).await;
    settle(&world).await;
    let long = pattern(2 * MIB as u32, 7);
    let written = make_file(&fs, stays, "written", &long).await;
    let removed = make_file(&fs, goes, "removed", &long).await;
    make_file(&fs, free, "moved", &long[..MIB]).await;
    let hidden = fs.make_hidden_folder().await.unwrap();
    let set =
        |value: &'static [u8]| fs.set_xattr(&ROOT_USER, hidden, b"user.set", value, XattrMode::Any);
    set(b"then").await.unwrap();
    let taken = fs.take_snapshot(b"good", b"").await.unwrap();

    set(b"as it is now").await.unwrap();
    write(&fs, written, &pattern(MIB as u32, 9)).await;
    fs.remove(&ROOT_USER, goes, b"removed").await.unwrap();
    fs.rename(&ROOT_USER, free, b"moved", stays, b"moved")
        .await
        .unwrap();
    fs.remove_quota(goes, QuotaKind::Tree, 0).await.unwrap();
    settle(&world).await;
    let new = make_dir(&fs, ROOT_INO, "new").await;
    limit(&fs, new, 1 << 30).await;
    let deep = make_dir(&fs, new, "deep").await;
    let made = make_file(&fs, deep, "made", &long).await;
    let link = fs.link(&ROOT_USER, made, new, b"link").await;
    link.unwrap();
    limit(&fs, free, 1 << 30).await;
    settle(&world).await;
    let ctime = fs.attr(written).await.unwrap().ctime;
    drop(fs);

    let world = world.restore(seed + 1, taken.generation, keep, &[]).await;
    let fs = &world.fs;
    let kept: Vec<_> = fs
        .snapshots()
        .into_iter()
        .map(|snapshot| snapshot.name)
        .collect();
    match keep {
        Some(name) => assert_eq!(kept, ["good", name]),
        None => assert_eq!(kept, ["good"]),
    }
    assert!(read_all(fs, written).await == long);
    assert!(read_all(fs, removed).await == long);
    for gone in [new, deep, made] {
        assert_eq!(fs.attr(gone).await.unwrap_err(), FsError::Stale);
    }
    assert!(
        fs.attr(written).await.unwrap().ctime > ctime,
        "clients look again"
    );
    let hidden = fs.hidden_folder().await.unwrap().unwrap();
    let set = fs.xattr(&ROOT_USER, hidden, b"user.set").await.unwrap();
    assert_eq!(set, &b"as it is now"[..], "settings do not go back");
    settle(&world).await;
    assert_eq!(used(fs, stays), Some(2 * MIB as u64));
    assert_eq!(used(fs, free), Some(MIB as u64), "it was limited since");
    assert_eq!(used(fs, goes), None, "its limit went since");
    assert_eq!(used(fs, new), None, "it is not there");
    recount(fs).await;
    if let Some(name) = keep {
        let kept = fs.snapshot(name.as_bytes()).unwrap();
        let shown = fs.in_view(kept.view()).unwrap();
        assert!(read_all(&shown, made).await == long);
        assert_eq!(shown.attr(removed).await.unwrap_err(), FsError::Stale);
    }
    // The volume goes on as any other: another rollback works, forward, too.
    let last = fs.snapshots().pop().unwrap();
    write(fs, written, b"more").await;
    let world = world.restore(seed + 2, last.generation, None, &[]).await;
    check_same(&world.fs, last.generation);
    for snapshot in world.fs.snapshots() {
        world.fs.delete_snapshot(&snapshot.name).await.unwrap();
    }
    world.fs.free_snapshots().await.unwrap();
    recount(&world.fs).await;
    assert_eq!(world.fs.meta().counters().history_bytes, 0);
    world.fs.close().await.unwrap();
}

#[test]
fn a_volume_is_what_the_snapshot_shows_and_its_quotas_are_right() {
    for (seed, keep) in [(10, Some("before-restore")), (21, None)] {
        block_on(restore_some(seed, keep));
    }
}

/// The server ends again and again during the rollback: no client sees a part of it.
#[test]
fn a_crash_goes_on_with_it() {
    block_on(async {
        let mut world = World::new(30, 4).await;
        let data = pattern(100_000, 3);
        for number in 0..30 {
            let dir = make_dir(&world.fs, ROOT_INO, &format!("dir{number}")).await;
            make_file(&world.fs, dir, "file", &data).await;
        }
        let taken = world.fs.take_snapshot(b"good", b"").await.unwrap();
        for (round, mode) in Crash::ALL.iter().enumerate() {
            let fs = world.fs.clone();
            for number in 0..30 {
                let name = format!("dir{number}");
                let dir = fs
                    .lookup(&ROOT_USER, ROOT_INO, name.as_bytes())
                    .await
                    .unwrap()
                    .0;
                match number % 3 {
                    0 => drop(make_file(&fs, dir.ino, "new", &data).await),
                    1 => drop(fs.remove(&ROOT_USER, dir.ino, b"file").await.unwrap()),
                    _ => {
                        let other = format!("other{number}");
                        let renamed = fs.rename(
                            &ROOT_USER,
                            ROOT_INO,
                            name.as_bytes(),
                            ROOT_INO,
                            other.as_bytes(),
                        );
                        renamed.await.unwrap();
                    }
                }
            }
            drop(fs);
            let keep = format!("before{round}");
            let cuts: Vec<(usize, Crash)> = (0..6).map(|cut| (cut * 7 + round, *mode)).collect();
            let seed = 100 * (round as u64 + 1);
            world = world
                .restore(seed, taken.generation, Some(&keep), &cuts)
                .await;
            check_same(&world.fs, taken.generation);
            recount(&world.fs).await;
        }
        let refused = world.fs.delete_snapshot(b"good").await;
        refused.unwrap();
    });
}

/// A file is written, and gets its old size and times back, as archivers do: in its record only the change time tells
/// that. Its extents began and ended elsewhere, and some stayed beside the restored ones.
#[test]
fn a_file_with_its_old_times_has_its_bytes_there_and_back() {
    block_on(async {
        let world = World::new(3, 4).await;
        let fs = world.fs.clone();
        let first = pattern(MIB as u32, 1);
        let ino = make_file(&fs, ROOT_INO, "file", &first).await;
        // A piece of its own in the middle.
        let data = Bytes::from(pattern(4096, 2));
        let written = fs.write(&ROOT_USER, ino, 64 << 10, data, Stability::Stable);
        written.await.unwrap();
        fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let mtime = fs.attr(ino).await.unwrap().mtime;
        let pieces = read_all(&fs, ino).await;
        let taken = fs.take_snapshot(b"pieces", b"").await.unwrap();
        let whole = pattern(MIB as u32, 3);
        write(&fs, ino, &whole).await;
        fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let times = SetAttr {
            mtime: SetTime::To(mtime),
            ..SetAttr::default()
        };
        fs.set_attr(&ROOT_USER, ino, times, None).await.unwrap();
        let changed_at = fs.attr(ino).await.unwrap().ctime;
        drop(fs);
        let world = world.restore(4, taken.generation, Some("whole"), &[]).await;
        check_same(&world.fs, taken.generation);
        assert!(read_all(&world.fs, ino).await == pieces);
        // Clients that have its bytes in memory learn of it, and so do programs that copy changes between snapshots.
        assert!(world.fs.attr(ino).await.unwrap().ctime > changed_at);
        let restored = world.fs.take_snapshot(b"restored", b"").await.unwrap();
        let whole_again = world.fs.snapshot(b"whole").unwrap();
        crate::diff::check_diff(&world.fs, &whole_again, &restored).await;
        let before = whole_again.generation;
        let world = world.restore(5, before, None, &[]).await;
        check_same(&world.fs, before);
        assert!(read_all(&world.fs, ino).await == whole);
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}

/// Secrets in the hidden folder, and access rules of its files, are as they are now, also when the snapshot is older
/// than all of them; nobody may use restored files.
#[test]
fn who_may_use_what_does_not_go_back() {
    const SECRET: &[u8] = b"user.initiator.a";
    const KIND: &[u8] = b"user.lun";
    const ACCESS: &[u8] = b"user.access.lun";
    async fn set(fs: &Fs, ino: Ino, name: &[u8], value: &'static [u8]) {
        let set = fs.set_xattr(&ROOT_USER, ino, name, value, XattrMode::Any);
        set.await.unwrap();
    }
    async fn get(fs: &Fs, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        fs.xattr(&ROOT_USER, ino, name).await
    }
    async fn folders(fs: &Fs) -> (Ino, Ino) {
        let hidden = fs.hidden_folder().await.unwrap().unwrap();
        let luns = fs.child(&ROOT_USER, hidden, b"luns").await.unwrap();
        (hidden, luns.unwrap().0)
    }
    /// The recorded size of the names of an inode's extended attributes, and the real one.
    async fn names_len(fs: &Fs, ino: Ino) -> (u32, u32) {
        let stored = fs.meta().live().get(&Key::inode(ino)).unwrap().unwrap();
        let said = InodeRecord::decode(&stored).unwrap().xattr_names_len_bytes;
        let names = fs.xattr_list(&ROOT_USER, ino).await.unwrap();
        (said, names.iter().map(|name| name.len() as u32 + 1).sum())
    }
    fn cuts(round: usize) -> Vec<(usize, Crash)> {
        let cuts = Crash::ALL.iter().enumerate();
        cuts.map(|(cut, mode)| (cut * 5 + round, *mode)).collect()
    }
    block_on(async {
        let world = World::new(60, 2).await;
        make_file(&world.fs, ROOT_INO, "file", b"before").await;
        let empty = world.fs.take_snapshot(b"empty", b"").await.unwrap();

        let hidden = world.fs.make_hidden_folder().await.unwrap();
        let luns = make_dir(&world.fs, hidden, "luns").await;
        set(&world.fs, luns, SECRET, b"first").await;
        let data = pattern(100_000, 5);
        let one = make_file(&world.fs, luns, "one", &data).await;
        let two = make_file(&world.fs, luns, "two", &data).await;
        for lun in [one, two] {
            set(&world.fs, lun, KIND, b"then").await;
            set(&world.fs, lun, ACCESS, b"everybody").await;
        }
        let some = world.fs.take_snapshot(b"some", b"").await.unwrap();

        set(&world.fs, luns, SECRET, b"second").await;
        set(&world.fs, one, KIND, b"now").await;
        set(&world.fs, one, ACCESS, b"few").await;
        set(&world.fs, one, b"user.access.reservations", b"held").await;
        world.fs.remove(&ROOT_USER, luns, b"two").await.unwrap();

        let generation = some.generation;
        let world = world.restore(61, generation, Some("now"), &cuts(0)).await;
        let fs = &world.fs;
        assert_eq!(folders(fs).await, (hidden, luns));
        assert_eq!(get(fs, luns, SECRET).await.unwrap(), &b"second"[..]);
        assert_eq!(get(fs, one, KIND).await.unwrap(), &b"then"[..]);
        assert_eq!(get(fs, one, ACCESS).await.unwrap(), &b"few"[..]);
        let held = get(fs, one, b"user.access.reservations").await;
        assert_eq!(held.unwrap(), &b"held"[..]);
        assert_eq!(get(fs, two, KIND).await.unwrap(), &b"then"[..]);
        assert_eq!(get(fs, two, ACCESS).await, Err(FsError::NoAttribute));
        for lun in [one, two] {
            assert!(read_all(fs, lun).await == data);
            let (said, is) = names_len(fs, lun).await;
            assert_eq!(said, is);
        }
        recount(fs).await;

        let generation = empty.generation;
        let world = world.restore(62, generation, None, &cuts(1)).await;
        let fs = &world.fs;
        assert_eq!(folders(fs).await, (hidden, luns));
        assert_eq!(get(fs, luns, SECRET).await.unwrap(), &b"second"[..]);
        assert!(fs.child(&ROOT_USER, luns, b"one").await.unwrap().is_none());
        for (dir, folders) in [(hidden, 1), (luns, 0)] {
            let stored = fs.meta().live().get(&Key::inode(dir)).unwrap().unwrap();
            let record = InodeRecord::decode(&stored).unwrap();
            assert_eq!(record.nlink, 2 + folders);
            assert_eq!(record.entry_count, u64::from(folders));
        }
        recount(fs).await;

        // Forward again: newer files come back, and nobody may use them.
        let now = fs.snapshot(b"now").unwrap().generation;
        let world = world.restore(63, now, None, &cuts(2)).await;
        let fs = &world.fs;
        assert_eq!(folders(fs).await, (hidden, luns));
        assert_eq!(get(fs, luns, SECRET).await.unwrap(), &b"second"[..]);
        assert_eq!(get(fs, one, KIND).await.unwrap(), &b"now"[..]);
        assert_eq!(get(fs, one, ACCESS).await, Err(FsError::NoAttribute));
        assert!(read_all(fs, one).await == data);
        let (said, is) = names_len(fs, one).await;
        assert_eq!(said, is);
        recount(fs).await;
        world.fs.close().await.unwrap();
    });
}

#[test]
fn what_cannot_be_restored_changes_nothing() {
    block_on(async {
        let world = World::new(40, 1).await;
        let ino = make_file(&world.fs, ROOT_INO, "file", b"before").await;
        let taken = world.fs.take_snapshot(b"good", b"").await.unwrap();
        write(&world.fs, ino, b"after!").await;
        // The name for the present contents is taken.
        let refused = world
            .fs
            .close_to_restore(taken.generation, Some(b"good"))
            .await;
        assert_eq!(refused, Err(SnapshotError::Exists.into()));
        let world = World::open(41, world.disks).await;
        assert_eq!(read_all(&world.fs, ino).await, b"after!");
        world.fs.delete_snapshot(b"good").await.unwrap();
        let refused = world.fs.close_to_restore(taken.generation, None).await;
        assert_eq!(refused, Err(SnapshotError::NotFound.into()));
        let world = World::open(42, world.disks).await;
        assert_eq!(read_all(&world.fs, ino).await, b"after!");
    });
}

#[test]
fn planted_mistakes_are_found() {
    for bug in [Bug::RestoreKeepsNewFiles, Bug::RestoreCountsNothing] {
        let found = catch_unwind(AssertUnwindSafe(|| {
            planted::plant(Some(bug));
            block_on(restore_some(50, Some("before")));
        }));
        planted::plant(None);
        assert!(found.is_err(), "{bug:?} is not found");
    }
}
