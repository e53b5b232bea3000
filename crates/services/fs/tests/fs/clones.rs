//! Clones of volumes: cases beyond the model's small files, and refusals.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use cairn_base::VolumeId;
use cairn_fs::*;
use cairn_testkit::Crash;

use crate::world::*;

/// More extents than one batch takes over.
const PIECES: u64 = 2600;
const PIECE_BYTES: u64 = 4096;
/// More names than are read at a time.
const NAMES: u64 = 2500;
const CLONE: VolumeId = VolumeId(7);
/// The volume that the store of a world was made for.
const OWN: VolumeId = VolumeId(1);

fn guarded() -> CreateMode {
    CreateMode::Guarded(SetAttr::default())
}

async fn make(fs: &Fs, dir: cairn_base::Ino, name: &[u8]) -> cairn_base::Ino {
    let made = fs.create(&ROOT_USER, dir, name, guarded()).await;
    made.unwrap().attr.ino
}

async fn find(fs: &FsView, dir: cairn_base::Ino, name: &[u8]) -> cairn_base::Ino {
    fs.lookup(&ROOT_USER, dir, name).await.unwrap().0.ino
}

/// Makes a file of many extents, and a directory of many names.
async fn fill(fs: &Fs) {
    let file = make(fs, ROOT_INO, b"pieces").await;
    for piece in 0..PIECES {
        let data = Bytes::from(vec![piece as u8 | 1; PIECE_BYTES as usize]);
        let at = 2 * piece * PIECE_BYTES;
        let written = fs.write(&ROOT_USER, file, at, data, Stability::Unstable);
        written.await.unwrap();
        if piece % 100 == 99 {
            fs.commit(&ROOT_USER, file, 0, 0).await.unwrap();
        }
    }
    fs.commit(&ROOT_USER, file, 0, 0).await.unwrap();
    let made = fs.make_dir(&ROOT_USER, ROOT_INO, b"names", SetAttr::default());
    let dir = made.await.unwrap().attr.ino;
    for name in 0..NAMES {
        make(fs, dir, format!("{name}").as_bytes()).await;
    }
}

async fn names_of(fs: &FsView, dir: cairn_base::Ino) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let page = fs.read_dir(&ROOT_USER, dir, cookie, 300, false).await;
        let page = page.unwrap();
        for entry in page.entries {
            cookie = entry.cookie;
            names.push(entry.name.to_vec());
        }
        if page.eof {
            names.sort();
            return names;
        }
    }
}

/// Polls a future so often, and then drops it.
async fn for_a_while<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut count = 0;
    poll_fn(|context| {
        if let Poll::Ready(done) = future.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        count += 1;
        match count < polls {
            true => Poll::Pending,
            false => Poll::Ready(None),
        }
    })
    .await
}

/// A large inode is taken over in several steps. At each of them every reader sees it complete, also after a crash
/// there. A partly taken over inode goes with the clone.
#[test]
fn what_is_large_is_taken_over_in_steps() {
    block_on(async {
        for (round, polls) in [1usize, 3, 6, 12, 1 << 20].into_iter().enumerate() {
            let mut world = World::new(80 + round as u64, 2).await;
            fill(&world.fs).await;
            let source = find(&world.fs, ROOT_INO, b"pieces").await;
            let want = read_all(&world.fs, source).await;
            let clone = world.fs.clone_volume(None, CLONE).await.unwrap();
            assert_eq!(world.fs.counts(), clone.snapshot.counts);
            let fs = world.fs.open_clone(CLONE, "clone").unwrap();
            let file = find(&fs, fs.root(), b"pieces").await;
            let dir = find(&fs, fs.root(), b"names").await;
            let data = Bytes::from_static(b"changed");
            let write = fs.write(&ROOT_USER, file, 10, data.clone(), Stability::Stable);
            let written = for_a_while(write, polls).await;
            let made = for_a_while(fs.create(&ROOT_USER, dir, b"new", guarded()), polls).await;
            drop(fs);
            if round % 2 == 0 {
                let mode = Crash::ALL[round % Crash::ALL.len()];
                world = world.crash(90 + round as u64, mode).await;
            }
            let fs = world.fs.open_clone(CLONE, "clone").unwrap();
            // An unacknowledged change may be there or not; everything else is.
            let mut changed = want.clone();
            changed[10..17].copy_from_slice(&data);
            let found = read_all(&fs, file).await;
            assert!(found == changed || written.is_none() && found == want);
            let mut names = names_of(&world.fs, find(&world.fs, ROOT_INO, b"names").await).await;
            let found = names_of(&fs, dir).await;
            assert!(made.is_none() || found.contains(&b"new".to_vec()));
            if found.contains(&b"new".to_vec()) {
                names.push(b"new".to_vec());
                names.sort();
            }
            assert_eq!(found, names);
            assert!(read_all(&world.fs, source).await == want);
            recount(&world.fs).await;
            if round < 3 {
                // To the end.
                let written = fs.write(&ROOT_USER, file, 10, data, Stability::Stable);
                written.await.unwrap();
                assert!(read_all(&fs, file).await == changed);
                let gone = fs.remove(&ROOT_USER, dir, b"17").await;
                gone.unwrap();
                recount(&world.fs).await;
            }
            drop(fs);
            world.fs.delete_clone(CLONE).await.unwrap();
            world.fs.free_snapshots().await.unwrap();
            recount(&world.fs).await;
            check_nothing_is_left(&world.fs);
            assert!(read_all(&world.fs, source).await == want);
            world.fs.close().await.unwrap();
        }
    });
}

/// More attributes than are read at a time.
#[test]
fn all_attributes_of_a_file_are_taken_over() {
    const ATTRIBUTES: usize = 2100;
    block_on(async {
        let world = World::new(21, 3).await;
        let source = make(&world.fs, ROOT_INO, b"file").await;
        for number in 0..ATTRIBUTES {
            let name = format!("user.{number}");
            let set = world.fs.set_xattr(
                &ROOT_USER,
                source,
                name.as_bytes(),
                b"value",
                XattrMode::Create,
            );
            set.await.unwrap();
        }
        let want = world.fs.xattr_list(&ROOT_USER, source).await.unwrap();
        assert_eq!(want.len(), ATTRIBUTES);
        world.fs.clone_volume(None, CLONE).await.unwrap();
        let fs = world.fs.open_clone(CLONE, "clone").unwrap();
        let file = find(&fs, fs.root(), b"file").await;
        let gone = fs.remove_xattr(&ROOT_USER, file, b"user.7").await;
        gone.unwrap();
        let found = fs.xattr_list(&ROOT_USER, file).await.unwrap();
        assert_eq!(found.len(), ATTRIBUTES - 1);
        let of_source = world.fs.xattr_list(&ROOT_USER, source).await.unwrap();
        assert!(of_source == want);
        drop(fs);
        world.fs.close().await.unwrap();
    });
}

/// A clone does not count files that were removed just before.
#[test]
fn a_clone_counts_no_file_without_a_name() {
    block_on(async {
        let world = World::new(61, 1).await;
        let fs = &world.fs;
        let file = make(fs, ROOT_INO, b"a").await;
        let data = Bytes::from(vec![7; 1 << 20]);
        let written = fs.write(&ROOT_USER, file, 0, data, Stability::Stable);
        written.await.unwrap();
        fs.commit(&ROOT_USER, file, 0, 0).await.unwrap();
        fs.remove(&ROOT_USER, ROOT_INO, b"a").await.unwrap();
        fs.clone_volume(None, CLONE).await.unwrap();
        let clone = fs.open_clone(CLONE, "clone").unwrap();
        let want = VolumeCounts {
            inodes: 1,
            file_bytes: 0,
        };
        assert_eq!(clone.counts(), want);
    });
}

#[test]
fn what_a_clone_has_not_is_refused() {
    block_on(async {
        let world = World::new(62, 1).await;
        let fs = &world.fs;
        fs.take_snapshot(b"a", b"").await.unwrap();
        fs.take_snapshot(b"b", b"").await.unwrap();
        fs.clone_volume(Some(b"a"), CLONE).await.unwrap();
        let clone = fs.open_clone(CLONE, "clone").unwrap();
        let has_clones: SnapshotFailure = SnapshotError::HasClones.into();
        assert_eq!(fs.delete_snapshot(b"a").await, Err(has_clones));
        let taken = take_snapshots(&[fs, &clone], b"both", b"").await;
        let same: SnapshotFailure = SnapshotError::SameStore.into();
        assert_eq!(taken.unwrap_err().1, same);
        // With an equal name: each volume has its own snapshots.
        let own = clone.take_snapshot(b"a", b"").await.unwrap();
        assert_eq!(clone.snapshots(), std::slice::from_ref(&own));
        assert_eq!(fs.in_view(own.view()).map(drop), Err(FsError::Stale));
        let seen = fs.snapshot(b"b").unwrap();
        assert_eq!(clone.in_view(seen.view()).map(drop), Err(FsError::Stale));
        let diff = clone.diff(own.generation, own.generation);
        assert_eq!(diff.map(drop).unwrap_err(), FsError::NotSupported);
        let limits = QuotaLimits::default();
        let set = clone.set_quota(clone.root(), QuotaKind::Tree, 0, limits, b"");
        assert_eq!(set.await.map(drop), Err(FsError::NotSupported));
        assert!(fs.open_clone(VolumeId(99), "none").is_err());
        let gone: SnapshotFailure = SnapshotError::NotFound.into();
        assert_eq!(fs.delete_clone(VolumeId(99)).await, Err(gone));
        clone.lock_snapshot(b"a", true).await.unwrap();
        let locked: SnapshotFailure = SnapshotError::Locked.into();
        assert_eq!(fs.delete_clone(CLONE).await, Err(locked));
        clone.lock_snapshot(b"a", false).await.unwrap();
        fs.delete_clone(CLONE).await.unwrap();
        fs.free_snapshots().await.unwrap();
        fs.delete_snapshot(b"a").await.unwrap();
        check_nothing_is_left(fs);
    });
}

/// When a volume is deleted, its clones, and theirs, see no change, wherever a crash comes in between. In the end the
/// store is empty, whichever volume is deleted last.
#[test]
fn volumes_of_a_store_go_in_any_order() {
    block_on(async {
        let second = VolumeId(8);
        let orders: [[VolumeId; 3]; 6] = [
            [OWN, CLONE, second],
            [OWN, second, CLONE],
            [CLONE, OWN, second],
            [CLONE, second, OWN],
            [second, OWN, CLONE],
            [second, CLONE, OWN],
        ];
        for (round, order) in orders.into_iter().enumerate() {
            let mut world = World::new(300 + round as u64, 2).await;
            fill(&world.fs).await;
            let source = find(&world.fs, ROOT_INO, b"pieces").await;
            let want = read_all(&world.fs, source).await;
            world.fs.take_snapshot(b"then", b"").await.unwrap();
            world.fs.clone_volume(Some(b"then"), CLONE).await.unwrap();
            let clone = world.fs.open_clone(CLONE, "clone").unwrap();
            let file = find(&clone, clone.root(), b"pieces").await;
            let data = Bytes::from_static(b"changed");
            let write = clone.write(&ROOT_USER, file, 10, data.clone(), Stability::Stable);
            write.await.unwrap();
            let mut changed = want.clone();
            changed[10..17].copy_from_slice(&data);
            clone.clone_volume(None, second).await.unwrap();
            clone
                .remove(&ROOT_USER, clone.root(), b"pieces")
                .await
                .unwrap();
            drop(clone);
            let mut left = order.to_vec();
            for (step, id) in order.into_iter().enumerate() {
                left.retain(|there| *there != id);
                match id {
                    OWN => world.fs.delete_own_volume().await.unwrap(),
                    id => world.fs.delete_clone(id).await.unwrap(),
                }
                // At some moment in the middle.
                let polls = [3, 30, 300][step];
                for_a_while(world.fs.free_snapshots(), polls).await;
                let mode = Crash::ALL[(round + step) % Crash::ALL.len()];
                world = world
                    .crash(400 + 3 * round as u64 + step as u64, mode)
                    .await;
                assert_eq!(world.fs.is_own_volume_deleted(), !left.contains(&OWN));
                for there in &left {
                    let fs = match *there {
                        OWN => world.fs.clone(),
                        id => world.fs.open_clone(id, "clone").unwrap(),
                    };
                    let names = find(&fs, fs.root(), b"names").await;
                    // With '.' and '..'.
                    assert_eq!(names_of(&fs, names).await.len(), NAMES as usize + 2);
                    if *there == CLONE {
                        let gone = fs.lookup(&ROOT_USER, fs.root(), b"pieces").await;
                        assert_eq!(gone.map(drop), Err(FsError::NotFound));
                        continue;
                    }
                    let file = find(&fs, fs.root(), b"pieces").await;
                    let want = if *there == OWN { &want } else { &changed };
                    assert!(read_all(&fs, file).await == *want);
                }
                world.fs.free_snapshots().await.unwrap();
                assert_eq!(world.fs.volumes_freeing(), 0);
                recount(&world.fs).await;
            }
            check_nothing_is_left(&world.fs);
            world.fs.close().await.unwrap();
        }
    });
}

#[test]
fn a_locked_snapshot_keeps_its_volume() {
    block_on(async {
        let mut world = World::new(63, 1).await;
        world.fs.take_snapshot(b"a", b"").await.unwrap();
        world.fs.clone_volume(Some(b"a"), CLONE).await.unwrap();
        world.fs.lock_snapshot(b"a", true).await.unwrap();
        let locked: SnapshotFailure = SnapshotError::Locked.into();
        assert_eq!(world.fs.delete_own_volume().await, Err(locked));
        make(&world.fs, ROOT_INO, b"there").await;
        world.fs.lock_snapshot(b"a", false).await.unwrap();
        world.fs.delete_own_volume().await.unwrap();
        // Again, as after a crash before the first call returned.
        world.fs.delete_own_volume().await.unwrap();
        let stale: SnapshotFailure = FsError::Stale.into();
        let lock = world.fs.lock_snapshot(b"a", true).await;
        assert_eq!(lock, Err(stale.clone()));
        let cloned = world.fs.clone_volume(Some(b"a"), VolumeId(9)).await;
        assert_eq!(cloned, Err(stale));
        world = world.restart(64).await;
        assert!(world.fs.is_own_volume_deleted() && world.fs.is_deleted());
        assert!(!Fs::is_unmade(world.fs.meta()));
        let clone = world.fs.open_clone(CLONE, "clone").unwrap();
        assert!(!clone.is_deleted());
        // A clone tells which snapshot it began from, though that volume is deleted.
        let all = world.fs.clones();
        assert_eq!((all[0].from, &all[0].snapshot.name[..]), (None, &b"a"[..]));
    });
}
