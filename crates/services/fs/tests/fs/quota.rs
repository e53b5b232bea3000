//! Quotas: refusals, and that the counted usage is the real one, whatever happens meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::planted::{self, Bug};
use cairn_fs::*;
use cairn_testkit::Crash;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::world::*;

const MIB: u64 = 1 << 20;
const WEEK_SECONDS: u64 = 7 * 24 * 60 * 60;

fn user(uid: u32) -> Credentials {
    Credentials {
        uid,
        gid: 100 + uid,
        ..Credentials::ROOT
    }
}

fn hard(bytes: u64) -> QuotaLimits {
    QuotaLimits {
        bytes: QuotaLimit {
            hard: Some(bytes),
            ..QuotaLimit::default()
        },
        ..QuotaLimits::default()
    }
}

fn hard_files(files: u64) -> QuotaLimits {
    QuotaLimits {
        files: QuotaLimit {
            hard: Some(files),
            ..QuotaLimit::default()
        },
        ..QuotaLimits::default()
    }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

async fn dir_in(fs: &Fs, dir: Ino, name: &[u8]) -> Ino {
    let made = fs.make_dir(&ROOT_USER, dir, name, mode(0o777)).await;
    made.unwrap().attr.ino
}

async fn file_of(fs: &Fs, who: &Credentials, dir: Ino, name: &[u8]) -> Result<Ino, FsError> {
    let made = fs.create(who, dir, name, CreateMode::Guarded(mode(0o666)));
    made.await.map(|made| made.attr.ino)
}

async fn file_in(fs: &Fs, dir: Ino, name: &[u8]) -> Ino {
    file_of(fs, &ROOT_USER, dir, name).await.unwrap()
}

async fn write(fs: &Fs, ino: Ino, offset: u64, len: u64) -> Result<(), FsError> {
    let data = Bytes::from(pattern(len as u32, offset as u8));
    let written = fs.write(&ROOT_USER, ino, offset, data, Stability::Unstable);
    written.await.map(drop)
}

async fn set_tree(fs: &Fs, dir: Ino, limits: QuotaLimits) -> QuotaView {
    let set = fs.set_quota(dir, QuotaKind::Tree, 0, limits, b"");
    set.await.unwrap()
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

fn used(fs: &Fs, dir: Ino, kind: QuotaKind, id: u32) -> UsageRecord {
    fs.quota(dir, kind, id).expect("is counted").used
}

#[test]
fn a_directory_takes_what_its_quota_says() {
    block_on(async {
        let world = World::new(1, 1).await;
        let fs = &world.fs;
        let outer = dir_in(fs, ROOT_INO, b"outer").await;
        let inner = dir_in(fs, outer, b"inner").await;
        set_tree(fs, outer, hard(6 * MIB)).await;
        set_tree(fs, inner, hard(4 * MIB)).await;
        settle(&world).await;
        let file = file_in(fs, inner, b"file").await;
        write(fs, file, 0, 4 * MIB).await.unwrap();
        assert_eq!(
            write(fs, file, 4 * MIB, 1).await,
            Err(FsError::QuotaExceeded)
        );
        // Overwrites add nothing, in memory or in segments.
        write(fs, file, MIB, 2 * MIB).await.unwrap();
        fs.commit(&ROOT_USER, file, 0, 0).await.unwrap();
        write(fs, file, MIB, 2 * MIB).await.unwrap();
        let other = file_in(fs, outer, b"other").await;
        write(fs, other, 0, 2 * MIB).await.unwrap();
        let more = write(fs, other, 2 * MIB, 1).await;
        assert_eq!(more, Err(FsError::QuotaExceeded), "the outer one");
        // Beside these directories there is room.
        let free = file_in(fs, ROOT_INO, b"free").await;
        write(fs, free, 0, 8 * MIB).await.unwrap();
        // A removed file gives back its space.
        fs.remove(&ROOT_USER, inner, b"file").await.unwrap();
        world.run_for(3).await;
        write(fs, other, 2 * MIB, 3 * MIB).await.unwrap();
        fs.commit(&ROOT_USER, other, 0, 0).await.unwrap();
        assert_eq!(
            used(fs, outer, QuotaKind::Tree, 0).file_bytes,
            5 * MIB,
            "with what is in the inner one"
        );
        let space = fs.space_at(other).await.unwrap();
        assert_eq!((space.total_bytes, space.free_bytes), (6 * MIB, MIB));
        assert!(fs.space_at(ROOT_INO).await.unwrap().total_bytes > 6 * MIB);
        recount(fs).await;
    });
}

#[test]
fn files_are_counted_too() {
    block_on(async {
        let world = World::new(2, 1).await;
        let fs = &world.fs;
        let dir = dir_in(fs, ROOT_INO, b"dir").await;
        // The directory itself is one.
        let view = set_tree(fs, dir, hard_files(3)).await;
        assert_eq!(view.used.inodes, 1);
        file_in(fs, dir, b"a").await;
        dir_in(fs, dir, b"b").await;
        let more = file_of(fs, &ROOT_USER, dir, b"c").await;
        assert_eq!(more, Err(FsError::QuotaExceeded));
        let link = fs.make_symlink(&ROOT_USER, dir, b"c", b"a", mode(0o777));
        assert_eq!(link.await.map(drop), Err(FsError::QuotaExceeded));
        let space = fs.space_at(dir).await.unwrap();
        assert_eq!((space.total_inodes, space.free_inodes), (3, 0));
        // Moving a file in is refused as making one is; moving it out is not.
        file_in(fs, ROOT_INO, b"d").await;
        let moved = fs.rename(&ROOT_USER, ROOT_INO, b"d", dir, b"d").await;
        assert_eq!(moved.map(drop), Err(FsError::QuotaExceeded));
        fs.rename(&ROOT_USER, dir, b"a", ROOT_INO, b"a")
            .await
            .unwrap();
        file_in(fs, dir, b"c").await;
        recount(fs).await;
    });
}

#[test]
fn users_and_groups_have_quotas_in_the_volume_and_in_directories() {
    block_on(async {
        let world = World::new(3, 1).await;
        let fs = &world.fs;
        let set = SetAttr {
            mode: Some(0o777),
            ..SetAttr::default()
        };
        fs.set_attr(&ROOT_USER, ROOT_INO, set, None).await.unwrap();
        let dir = dir_in(fs, ROOT_INO, b"dir").await;
        // Present files count at once: users are counted always.
        let early = file_of(fs, &user(7), dir, b"early").await.unwrap();
        write(fs, early, 0, MIB).await.unwrap();
        fs.commit(&ROOT_USER, early, 0, 0).await.unwrap();
        let set = fs.set_quota(ROOT_INO, QuotaKind::User, 7, hard(2 * MIB), b"");
        assert_eq!(set.await.unwrap().used.file_bytes, MIB);
        let set = fs.set_quota(dir, QuotaKind::DefaultUser, 0, hard_files(2), b"dir");
        set.await.unwrap();
        settle(&world).await;
        write(fs, early, MIB, MIB).await.unwrap();
        assert_eq!(
            write(fs, early, 2 * MIB, 1).await,
            Err(FsError::QuotaExceeded)
        );
        file_of(fs, &user(7), dir, b"second").await.unwrap();
        let third = file_of(fs, &user(7), dir, b"third").await;
        assert_eq!(third, Err(FsError::QuotaExceeded));
        file_of(fs, &user(8), dir, b"of another").await.unwrap();
        // Default quotas do not apply to root.
        for number in 0..5u8 {
            file_in(fs, dir, &[b'r', number + b'0']).await;
        }
        // A user's own quota overrides the default.
        let set = fs.set_quota(dir, QuotaKind::User, 7, hard_files(3), b"dir");
        set.await.unwrap();
        file_of(fs, &user(7), dir, b"third").await.unwrap();
        // Giving a file away moves its usage along.
        let set = SetAttr {
            uid: Some(9),
            ..SetAttr::default()
        };
        fs.set_attr(&ROOT_USER, early, set, None).await.unwrap();
        fs.commit(&ROOT_USER, early, 0, 0).await.unwrap();
        assert_eq!(used(fs, ROOT_INO, QuotaKind::User, 7).file_bytes, 0);
        assert_eq!(used(fs, ROOT_INO, QuotaKind::User, 9).file_bytes, 2 * MIB);
        assert_eq!(used(fs, dir, QuotaKind::User, 7).inodes, 2);
        // A user other than root cannot fill up a group with it.
        let set = fs.set_quota(ROOT_INO, QuotaKind::Group, 50, hard_files(0), b"");
        set.await.unwrap();
        let member = Credentials {
            groups: vec![50],
            ..user(8)
        };
        let own = file_of(fs, &member, ROOT_INO, b"own").await.unwrap();
        let set = SetAttr {
            gid: Some(50),
            ..SetAttr::default()
        };
        let refused = fs.set_attr(&member, own, set, None).await;
        assert_eq!(refused.map(drop), Err(FsError::QuotaExceeded));
        fs.set_attr(&ROOT_USER, own, set, None).await.unwrap();
        recount(fs).await;
    });
}

#[test]
fn a_soft_limit_is_hard_when_its_grace_is_over_also_after_a_restart() {
    block_on(async {
        let mut world = World::new(4, 1).await;
        let dir = dir_in(&world.fs, ROOT_INO, b"dir").await;
        let limits = QuotaLimits {
            bytes: QuotaLimit {
                soft: Some(MIB),
                ..QuotaLimit::default()
            },
            grace_seconds: WEEK_SECONDS,
            ..QuotaLimits::default()
        };
        set_tree(&world.fs, dir, limits).await;
        let file = file_in(&world.fs, dir, b"file").await;
        write(&world.fs, file, 0, MIB + 1).await.unwrap();
        world.run_for(10).await;
        let since = |world: &World| {
            let view = world.fs.quota(dir, QuotaKind::Tree, 0).unwrap();
            view.since.bytes_since
        };
        let first = since(&world).expect("it is passed");
        world = world.restart(5).await;
        assert_eq!(since(&world), Some(first));
        write(&world.fs, file, MIB + 1, 1).await.unwrap();
        // The clock began again at this start, a few seconds ago.
        let grace = std::time::Duration::from_secs(WEEK_SECONDS + 60);
        world.clock.advance(grace);
        let refused = write(&world.fs, file, 2 * MIB, 1).await;
        assert_eq!(refused, Err(FsError::QuotaExceeded));
        let refused = file_of(&world.fs, &ROOT_USER, dir, b"more").await;
        assert_eq!(refused, Err(FsError::QuotaExceeded));
        assert_eq!(world.fs.quota_counts().over_soft, 1);
        // Below the limit, all is well again.
        let cut = SetAttr {
            size_bytes: Some(MIB / 2),
            ..SetAttr::default()
        };
        world
            .fs
            .set_attr(&ROOT_USER, file, cut, None)
            .await
            .unwrap();
        world.run_for(10).await;
        assert_eq!(since(&world), None);
        write(&world.fs, file, 0, MIB + 5).await.unwrap();
    });
}

#[test]
fn a_quota_below_what_is_used_is_set_and_takes_nothing_more() {
    block_on(async {
        let world = World::new(6, 1).await;
        let fs = &world.fs;
        let dir = dir_in(fs, ROOT_INO, b"dir").await;
        let file = file_in(fs, dir, b"file").await;
        write(fs, file, 0, 3 * MIB).await.unwrap();
        fs.commit(&ROOT_USER, file, 0, 0).await.unwrap();
        set_tree(fs, dir, hard(MIB)).await;
        settle(&world).await;
        let view = fs.quota(dir, QuotaKind::Tree, 0).unwrap();
        assert!(view.used_bytes() > view.limits.bytes.hard.unwrap());
        let refused = write(fs, file, 3 * MIB, 1).await;
        assert_eq!(refused, Err(FsError::QuotaExceeded));
        write(fs, file, 0, MIB).await.unwrap();
        fs.remove(&ROOT_USER, dir, b"file").await.unwrap();
        world.run_for(3).await;
        let file = file_in(fs, dir, b"file").await;
        write(fs, file, 0, MIB).await.unwrap();
    });
}

#[test]
fn directories_stay_in_their_tree_and_files_take_their_usage_along() {
    block_on(async {
        let world = World::new(7, 1).await;
        let fs = &world.fs;
        let (a, b) = (
            dir_in(fs, ROOT_INO, b"a").await,
            dir_in(fs, ROOT_INO, b"b").await,
        );
        set_tree(fs, a, hard(8 * MIB)).await;
        set_tree(fs, b, hard(2 * MIB)).await;
        settle(&world).await;
        let sub = dir_in(fs, a, b"sub").await;
        let file = file_in(fs, sub, b"file").await;
        write(fs, file, 0, 3 * MIB).await.unwrap();
        fs.commit(&ROOT_USER, file, 0, 0).await.unwrap();
        let small = file_in(fs, sub, b"small").await;
        write(fs, small, 0, MIB).await.unwrap();
        for (to, name) in [(b, &b"sub"[..]), (ROOT_INO, b"sub")] {
            let moved = fs.rename(&ROOT_USER, a, b"sub", to, name).await;
            assert_eq!(moved.map(drop), Err(FsError::CrossTree));
        }
        let linked = fs.link(&ROOT_USER, file, b, b"file").await;
        assert_eq!(linked.map(drop), Err(FsError::CrossTree));
        let moved = fs.rename(&ROOT_USER, sub, b"file", b, b"file").await;
        assert_eq!(moved.map(drop), Err(FsError::QuotaExceeded));
        fs.rename(&ROOT_USER, sub, b"small", b, b"small")
            .await
            .unwrap();
        // Its dirty bytes moved along.
        let more = write(fs, small, MIB, MIB + 1).await;
        assert_eq!(more, Err(FsError::QuotaExceeded));
        write(fs, small, MIB, MIB).await.unwrap();
        // With names in one tree it has to stay there.
        fs.link(&ROOT_USER, file, a, b"again").await.unwrap();
        let moved = fs.rename(&ROOT_USER, a, b"again", ROOT_INO, b"x").await;
        assert_eq!(moved.map(drop), Err(FsError::CrossTree));
        // Within a tree, and a whole tree within the tree around it, everything can move.
        let other = dir_in(fs, a, b"other").await;
        fs.rename(&ROOT_USER, a, b"sub", other, b"sub")
            .await
            .unwrap();
        let place = dir_in(fs, ROOT_INO, b"place").await;
        fs.rename(&ROOT_USER, ROOT_INO, b"a", place, b"a")
            .await
            .unwrap();
        assert_eq!(fs.quota_path(a).await.unwrap(), b"/place/a");
        fs.commit(&ROOT_USER, small, 0, 0).await.unwrap();
        assert_eq!(used(fs, a, QuotaKind::Tree, 0).file_bytes, 3 * MIB);
        assert_eq!(used(fs, b, QuotaKind::Tree, 0).file_bytes, 2 * MIB);
        check_trees(fs, &BTreeSet::new()).await;
        recount(fs).await;
    });
}

#[test]
fn what_is_there_is_counted_while_clients_work() {
    block_on(count_beside_work(8));
}

async fn count_beside_work(seed: u64) {
    let mut world = World::new(seed, 1).await;
    let top = dir_in(&world.fs, ROOT_INO, b"top").await;
    let mut dirs = vec![top];
    for number in 0..20u32 {
        let parent = dirs[(number as usize * 7) % dirs.len()];
        let dir = dir_in(&world.fs, parent, format!("d{number}").as_bytes()).await;
        dirs.push(dir);
        for file in 0..30u32 {
            let file = file_in(&world.fs, dir, format!("f{file}").as_bytes()).await;
            write(&world.fs, file, 0, 100).await.unwrap();
        }
    }
    let view = set_tree(&world.fs, top, hard(1 << 40)).await;
    assert!(view.is_counting);
    // During the counting, files and directories come, go and move.
    for round in 0..40usize {
        let fs = &world.fs;
        let (from, to) = (dirs[1 + round * 3 % 20], dirs[1 + (round * 11 + 5) % 20]);
        file_in(fs, to, format!("n{round}").as_bytes()).await;
        let (name, new) = (format!("f{}", round % 30), format!("m{round}"));
        let _ = fs
            .rename(&ROOT_USER, from, name.as_bytes(), to, new.as_bytes())
            .await;
        let dir = format!("d{}", round % 20);
        let _ = fs
            .rename(&ROOT_USER, from, dir.as_bytes(), to, dir.as_bytes())
            .await;
        if round == 20 {
            world = world.restart(seed + 1).await;
        }
        tokio::task::yield_now().await;
    }
    settle(&world).await;
    check_trees(&world.fs, &BTreeSet::new()).await;
    recount(&world.fs).await;
    let inodes = used(&world.fs, top, QuotaKind::Tree, 0).inodes;
    assert_eq!(inodes, 1 + 20 + 20 * 30 + 40);
    // And the other way round.
    let removed = world.fs.remove_quota(top, QuotaKind::Tree, 0).await;
    removed.unwrap();
    assert_eq!(world.fs.quota(top, QuotaKind::Tree, 0), None);
    settle(&world).await;
    check_trees(&world.fs, &BTreeSet::new()).await;
    recount(&world.fs).await;
    let removed = world.fs.remove_quota(top, QuotaKind::Tree, 0).await;
    assert_eq!(removed, Err(FsError::NotFound));
}

#[test]
fn a_directory_takes_its_quota_along_when_it_is_removed() {
    block_on(async {
        let world = World::new(10, 1).await;
        let fs = &world.fs;
        let outer = dir_in(fs, ROOT_INO, b"outer").await;
        let inner = dir_in(fs, outer, b"inner").await;
        set_tree(fs, inner, hard(MIB)).await;
        // Around an existing tree.
        set_tree(fs, outer, hard(MIB)).await;
        let set = fs.set_quota(inner, QuotaKind::User, 5, hard(MIB), b"");
        set.await.unwrap();
        settle(&world).await;
        assert_eq!(fs.quotas().len(), 3);
        let file = file_in(fs, inner, b"file").await;
        write(fs, file, 0, MIB).await.unwrap();
        let other = file_in(fs, outer, b"other").await;
        assert_eq!(write(fs, other, 0, 1).await, Err(FsError::QuotaExceeded));
        fs.remove(&ROOT_USER, inner, b"file").await.unwrap();
        fs.remove_dir(&ROOT_USER, outer, b"inner").await.unwrap();
        settle(&world).await;
        let left = fs.quotas();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0].key.tree, outer);
        write(fs, other, 0, MIB).await.unwrap();
        recount(fs).await;
    });
}

#[test]
fn objects_count_where_they_come_to() {
    block_on(async {
        let world = World::new(11, 1).await;
        let fs = &world.fs;
        let dir = dir_in(fs, ROOT_INO, b"bucket").await;
        set_tree(fs, dir, hard(3 * MIB)).await;
        let placing = |name: &'static [u8]| Placing {
            dir,
            name,
            expected: Expected::Anything,
            set: mode(0o644),
            xattrs: &[],
        };
        for (name, len) in [(&b"small"[..], 1000u32), (b"large", MIB as u32)] {
            let mut file = fs.make_unnamed(&ROOT_USER).unwrap();
            file.append(pattern(len, 1).into()).await.unwrap();
            file.place(&user(7), &placing(name)).await.unwrap();
        }
        // One file that is refused on its way, and one that is refused when it gets its place.
        let mut near = fs.make_unnamed_near(&ROOT_USER, dir).await.unwrap();
        near.append(pattern(MIB as u32, 2).into()).await.unwrap();
        let refused = near.append(pattern(MIB as u32, 2).into()).await;
        assert_eq!(refused, Err(FsError::QuotaExceeded));
        drop(near);
        let mut file = fs.make_unnamed(&ROOT_USER).unwrap();
        for _ in 0..3 {
            file.append(pattern(MIB as u32, 3).into()).await.unwrap();
        }
        let refused = file.place(&user(7), &placing(b"third")).await;
        assert_eq!(refused.map(drop), Err(FsError::QuotaExceeded));
        drop(file);
        let small = fs.lookup(&ROOT_USER, dir, b"small").await.unwrap().0.ino;
        fs.commit(&ROOT_USER, small, 0, 0).await.unwrap();
        world.run_for(10).await;
        assert_eq!(used(fs, dir, QuotaKind::User, 7).file_bytes, MIB + 1000);
        recount(fs).await;
    });
}

/// Each inode counts in the innermost directory with a quota that it is in. An inode with several names is in any of
/// their trees, and stays in it when that name is removed; so `linked` inodes are left out.
async fn check_trees(fs: &Fs, linked: &BTreeSet<Ino>) {
    let trees: BTreeSet<Ino> = fs.quotas().iter().map(|quota| quota.key.tree).collect();
    let mut todo = vec![(ROOT_INO, Ino(0))];
    let mut seen: BTreeMap<Ino, BTreeSet<Ino>> = BTreeMap::new();
    while let Some((dir, tree)) = todo.pop() {
        let tree = if trees.contains(&dir) { dir } else { tree };
        assert_eq!(stored(fs, dir).tree, tree, "directory {dir}");
        let mut cookie = 0;
        loop {
            let page = fs.read_dir(&ROOT_USER, dir, cookie, 100, true).await;
            let page = page.unwrap();
            for entry in &page.entries {
                cookie = entry.cookie;
                match (&entry.name[..], entry.attr.unwrap().kind) {
                    (b"." | b"..", _) => {}
                    (_, FileKind::Directory) => todo.push((entry.ino, tree)),
                    _ => drop(seen.entry(entry.ino).or_default().insert(tree)),
                }
            }
            if page.eof {
                break;
            }
        }
    }
    for (ino, trees) in seen {
        let tree = stored(fs, ino).tree;
        assert!(
            trees.contains(&tree) || linked.contains(&ino),
            "inode {ino} in {tree}, not {trees:?}"
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8, u8, u8),
    MakeDir(u8, u8),
    Write(u8, u32, u32, bool),
    Truncate(u8, u32),
    Punch(u8, u32, u32),
    Commit(u8),
    Remove(u8, u8),
    RemoveDir(u8, u8),
    Rename(u8, u8, u8, u8),
    Link(u8, u8, u8),
    Chown(u8, u8, bool),
    Place(u8, u8, u32),
    SetQuota(u8),
    SetUserQuota(u8, u8),
    RemoveQuota(u8),
    Snapshot(u8),
    DropSnapshot(u8),
    Rewrite,
    Run(u8),
    Count,
    Restart,
    Crash(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (dir, name, file) = (any::<u8>(), 0..5u8, any::<u8>());
    let len = prop_oneof![0..5000u32, Just(4096), 60_000..300_000u32];
    let offset = prop_oneof![0..10_000u32, 0..400_000u32, Just(0)];
    prop_oneof![
        5 => (dir, name.clone(), 0..3u8).prop_map(|(d, n, u)| Step::Create(d, n, u)),
        4 => (dir, name.clone()).prop_map(|(d, n)| Step::MakeDir(d, n)),
        6 => (file, offset.clone(), len.clone(), any::<bool>()).prop_map(|(f, o, l, s)| Step::Write(f, o, l, s)),
        2 => (file, offset.clone()).prop_map(|(f, s)| Step::Truncate(f, s)),
        1 => (file, offset, len.clone()).prop_map(|(f, o, l)| Step::Punch(f, o, l)),
        2 => file.prop_map(Step::Commit),
        2 => (dir, name.clone()).prop_map(|(d, n)| Step::Remove(d, n)),
        1 => (dir, name.clone()).prop_map(|(d, n)| Step::RemoveDir(d, n)),
        5 => (dir, name.clone(), dir, name.clone()).prop_map(|(a, b, c, d)| Step::Rename(a, b, c, d)),
        2 => (file, dir, name.clone()).prop_map(|(f, d, n)| Step::Link(f, d, n)),
        2 => (file, 0..3u8, any::<bool>()).prop_map(|(f, u, g)| Step::Chown(f, u, g)),
        2 => (dir, name, len).prop_map(|(d, n, l)| Step::Place(d, n, l)),
        3 => dir.prop_map(Step::SetQuota),
        1 => (dir, 0..3u8).prop_map(|(d, u)| Step::SetUserQuota(d, u)),
        2 => dir.prop_map(Step::RemoveQuota),
        1 => (0..3u8).prop_map(Step::Snapshot),
        1 => (0..3u8).prop_map(Step::DropSnapshot),
        1 => Just(Step::Rewrite),
        2 => (0..3u8).prop_map(Step::Run),
        1 => Just(Step::Count),
        1 => Just(Step::Restart),
        1 => any::<u8>().prop_map(Step::Crash),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..80)
}

fn label(number: u8) -> Vec<u8> {
    format!("n{number}").into_bytes()
}

fn picked(list: &[Ino], number: u8) -> Option<Ino> {
    list.get(usize::from(number) % list.len().max(1)).copied()
}

/// The directories and files that names lead to.
async fn found(fs: &Fs) -> (Vec<Ino>, Vec<Ino>) {
    let (mut dirs, mut files) = (vec![ROOT_INO], Vec::new());
    let mut at = 0;
    while let Some(dir) = dirs.get(at).copied() {
        at += 1;
        let page = fs.read_dir(&ROOT_USER, dir, 0, 1000, true).await.unwrap();
        for entry in page.entries {
            match (&entry.name[..], entry.attr.unwrap().kind) {
                (b"." | b"..", _) => {}
                (_, FileKind::Directory) => dirs.push(entry.ino),
                _ => files.push(entry.ino),
            }
        }
    }
    (dirs, files)
}

/// The quotas are so large that nothing is refused for them.
const PLENTY: QuotaLimits = QuotaLimits {
    bytes: QuotaLimit {
        hard: Some(1 << 50),
        soft: None,
        advisory: Some(1),
    },
    files: QuotaLimit {
        hard: None,
        soft: Some(5),
        advisory: None,
    },
    is_physical: false,
    grace_seconds: 1 << 40,
};

/// An operation may be impossible; then nothing has changed.
fn tried<T>(done: Result<T, FsError>) {
    match done.map(drop) {
        Ok(())
        | Err(
            FsError::NotFound
            | FsError::Exists
            | FsError::NotDirectory
            | FsError::IsDirectory
            | FsError::NotEmpty
            | FsError::Invalid
            | FsError::Stale
            | FsError::CrossTree,
        ) => {}
        Err(error) => panic!("{error}"),
    }
}

async fn run(seed: u64, steps: Vec<Step>) {
    let mut world = World::new(seed, 2).await;
    let who = &ROOT_USER;
    let mut linked = BTreeSet::new();
    for (index, step) in steps.into_iter().enumerate() {
        let fs = world.fs.clone();
        let (dirs, files) = found(&fs).await;
        let dir_at = |number: u8| picked(&dirs, number).unwrap_or(ROOT_INO);
        let file_at = |number: u8| picked(&files, number).unwrap_or(Ino(1 << 40));
        match step {
            Step::Create(dir, number, uid) => {
                let who = Credentials {
                    uid: 0,
                    gid: u32::from(uid),
                    ..Credentials::ROOT
                };
                let set = SetAttr {
                    uid: Some(u32::from(uid)),
                    ..mode(0o666)
                };
                let (name, mode) = (label(number), CreateMode::Guarded(set));
                tried(fs.create(&who, dir_at(dir), &name, mode).await);
            }
            Step::MakeDir(dir, number) => {
                tried(
                    fs.make_dir(who, dir_at(dir), &label(number), mode(0o777))
                        .await,
                );
            }
            Step::Write(file, offset, len, stable) => {
                let data = Bytes::from(pattern(len, offset as u8));
                let stability = match stable {
                    true => Stability::Stable,
                    false => Stability::Unstable,
                };
                let written = fs.write(who, file_at(file), u64::from(offset), data, stability);
                tried(written.await);
            }
            Step::Truncate(file, size) => {
                let set = SetAttr {
                    size_bytes: Some(u64::from(size)),
                    ..SetAttr::default()
                };
                tried(fs.set_attr(who, file_at(file), set, None).await);
            }
            Step::Punch(file, offset, len) => {
                let range = u64::from(offset)..u64::from(offset) + u64::from(len);
                tried(fs.punch(who, file_at(file), range).await);
            }
            Step::Commit(file) => tried(fs.commit(who, file_at(file), 0, 0).await),
            Step::Remove(dir, number) => {
                tried(fs.remove(who, dir_at(dir), &label(number)).await);
            }
            Step::RemoveDir(dir, number) => {
                tried(fs.remove_dir(who, dir_at(dir), &label(number)).await);
            }
            Step::Rename(a, b, c, d) => {
                let (from, to) = (label(b), label(d));
                tried(fs.rename(who, dir_at(a), &from, dir_at(c), &to).await);
            }
            Step::Link(file, dir, number) => {
                let (ino, name) = (file_at(file), label(number));
                linked.insert(ino);
                tried(fs.link(who, ino, dir_at(dir), &name).await);
            }
            Step::Chown(file, id, is_group) => {
                let id = Some(u32::from(id));
                let set = match is_group {
                    true => SetAttr {
                        gid: id,
                        ..SetAttr::default()
                    },
                    false => SetAttr {
                        uid: id,
                        ..SetAttr::default()
                    },
                };
                tried(fs.set_attr(who, file_at(file), set, None).await);
            }
            Step::Place(dir, number, len) => {
                let mut file = match number % 2 {
                    0 => fs.make_unnamed(who).unwrap(),
                    _ => fs.make_unnamed_near(who, dir_at(dir)).await.unwrap(),
                };
                file.append(pattern(len, 1).into()).await.unwrap();
                let placing = Placing {
                    dir: dir_at(dir),
                    name: &label(number),
                    expected: Expected::Anything,
                    set: SetAttr {
                        uid: Some(u32::from(number)),
                        ..mode(0o644)
                    },
                    xattrs: &[],
                };
                tried(file.place(who, &placing).await);
            }
            Step::SetQuota(dir) => {
                let set = fs.set_quota(dir_at(dir), QuotaKind::Tree, 0, PLENTY, b"/p");
                set.await.map(drop).unwrap();
            }
            Step::SetUserQuota(dir, uid) => {
                let uid = u32::from(uid);
                let set = fs.set_quota(dir_at(dir), QuotaKind::User, uid, PLENTY, b"/p");
                set.await.map(drop).unwrap();
            }
            Step::RemoveQuota(number) => {
                let quotas = fs.quotas();
                if !quotas.is_empty() {
                    let key = quotas[usize::from(number) % quotas.len()].key;
                    let dir = if key.tree == Ino(0) {
                        ROOT_INO
                    } else {
                        key.tree
                    };
                    fs.remove_quota(dir, key.kind, key.id).await.unwrap();
                }
            }
            Step::Snapshot(number) => drop(fs.take_snapshot(&label(number), b"").await),
            Step::DropSnapshot(number) => drop(fs.delete_snapshot(&label(number)).await),
            Step::Rewrite => {
                let ids: Vec<_> = fs.meta().segments().into_iter().map(|(id, _)| id).collect();
                let pace = cairn_segment::Pace::new(world.env.clock.clone(), 0);
                fs.rewrite_segments(&ids, &pace).await.unwrap();
            }
            Step::Run(seconds) => world.run_for(u64::from(seconds)).await,
            Step::Count => {
                fs.free_snapshots().await.unwrap();
                settle(&world).await;
                check_trees(&fs, &linked).await;
                recount(&fs).await;
            }
            Step::Restart => {
                drop(fs);
                world = world.restart(seed + index as u64).await;
            }
            Step::Crash(mode) => {
                drop(fs);
                let mode = Crash::ALL[usize::from(mode) % Crash::ALL.len()];
                world = world.crash(seed + index as u64, mode).await;
            }
        }
    }
    settle(&world).await;
    check_trees(&world.fs, &linked).await;
    world.fs.free_snapshots().await.unwrap();
    recount(&world.fs).await;
    // Nothing is left of removed quotas.
    for quota in world.fs.quotas() {
        let tree = quota.key.tree;
        let dir = if tree == Ino(0) { ROOT_INO } else { tree };
        let removed = world.fs.remove_quota(dir, quota.key.kind, quota.key.id);
        removed.await.unwrap();
    }
    settle(&world).await;
    let world = world.restart(seed + 1000).await;
    recount(&world.fs).await;
    let keys = world.fs.meta().own_usages();
    assert!(keys.iter().all(|(key, _)| key.tree == Ino(0)), "{keys:?}");
    world.fs.close().await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_is_counted_is_what_is_there(seed: u64, steps in steps()) {
        block_on(run(seed >> 1, steps));
    }
}

/// Checks that the tests find planted bugs.
#[test]
fn planted_bugs_are_found() {
    const TRIES_MAX: u64 = 400;
    let bugs = [
        Bug::UsageCountedAgainAtReplay,
        Bug::ChownNotCharged,
        Bug::CutNotGivenBack,
        Bug::RenameNotCharged,
    ];
    let hook = std::panic::take_hook();
    // The panics would fill the screen; a failing test reports after this.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in bugs {
        let mut runner = TestRunner::deterministic();
        let fails = |seed, steps: &[Step], bug| {
            planted::plant(bug);
            let run = || block_on(run(seed, steps.to_vec()));
            let ended = catch_unwind(AssertUnwindSafe(run));
            planted::plant(None);
            ended.is_err()
        };
        let is_found = (0..TRIES_MAX).any(|seed| {
            let steps = steps().new_tree(&mut runner).unwrap().current();
            // For that reason and no other.
            fails(seed, &steps, Some(bug)) && !fails(seed, &steps, None)
        });
        if !is_found {
            missed.push(bug);
        }
    }
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "{missed:?}");
}
