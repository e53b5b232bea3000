//! Files with reserved space.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::env::BoxFuture;
use cairn_base::{Ino, VolumeId};
use cairn_fs::*;
use cairn_testkit::Rng;
use futures_util::FutureExt;
use parking_lot::Mutex;

use crate::world::*;

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 512 * MIB;
const LEN_BYTES: u64 = 32 * MIB;
/// Number of attempts of a write that has to wait for a collection, one each second.
const PATIENCE: u32 = 300;

async fn make(fs: &Fs, name: &str, size_bytes: u64) -> Ino {
    let set = SetAttr {
        size_bytes: Some(size_bytes),
        ..SetAttr::default()
    };
    let mode = CreateMode::Guarded(set);
    let made = fs.create(&ROOT_USER, ROOT_INO, name.as_bytes(), mode).await;
    made.unwrap().attr.ino
}

/// Writes incompressible bytes. Time goes on while the write waits.
async fn write(world: &World, ino: Ino, mib: u64, rng: &mut Rng) -> Result<(), FsError> {
    let data = Bytes::from(rng.bytes(MIB as usize));
    let fs = &world.fs;
    let mut writing = pin!(fs.write(&ROOT_USER, ino, mib * MIB, data, Stability::Unstable));
    for _ in 0..PATIENCE {
        if let Some(written) = writing.as_mut().now_or_never() {
            return written.map(|_| ());
        }
        world.run_for(1).await;
    }
    panic!("MiB {mib} is not written");
}

/// Writes as an initiator does: repeats the write on "try later", and fails on an error.
async fn write_patiently(world: &World, ino: Ino, mib: u64, rng: &mut Rng) {
    for _ in 0..PATIENCE {
        match write(world, ino, mib, rng).await {
            Err(FsError::TryLater) => world.run_for(1).await,
            written => return written.unwrap(),
        }
    }
    panic!("MiB {mib} still has to wait");
}

/// Writes to a file until there is no space for it; returns its size in MiB.
async fn fill(world: &World, ino: Ino, rng: &mut Rng) -> u64 {
    let mut count = 0;
    loop {
        match write(world, ino, count, rng).await {
            Ok(()) => count += 1,
            Err(FsError::NoSpace) => {
                // Bytes in flights, or garbage, may leave some.
                world.run_for(5).await;
                if write(world, ino, count, rng).await == Err(FsError::NoSpace) {
                    return count;
                }
                count += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_reserved_file_finds_space_in_a_full_pool() {
    block_on(async {
        let mut rng = Rng::new(1);
        let world = World::with_capacity(1, 1, DISK_BYTES).await;
        let reserved = make(&world.fs, "reserved", LEN_BYTES).await;
        world.fs.reserve(reserved, LEN_BYTES).await.unwrap();
        let other = make(&world.fs, "other", 0).await;
        let filled = fill(&world, other, &mut rng).await;
        assert!(filled > 0);
        for mib in 0..LEN_BYTES / MIB {
            write_patiently(&world, reserved, mib, &mut rng).await;
        }
        // Over a restart, and over present bytes.
        let world = world.restart(2).await;
        assert_eq!(world.fs.reserved_bytes(reserved), LEN_BYTES);
        for mib in 0..LEN_BYTES / MIB {
            write_patiently(&world, reserved, mib, &mut rng).await;
        }
        world.fs.commit(&ROOT_USER, reserved, 0, 0).await.unwrap();
        // Released space is free for all files.
        world.fs.unreserve(reserved).await.unwrap();
        assert_eq!(world.fs.reserved_bytes(reserved), 0);
        world.fs.close().await.unwrap();
    });
}

#[test]
fn what_does_not_fit_is_not_set_aside() {
    block_on(async {
        let world = World::with_capacity(3, 1, DISK_BYTES).await;
        let fs = &world.fs;
        let free = fs.space().await.unwrap().free_bytes;
        let file = make(fs, "file", 2 * DISK_BYTES).await;
        assert_eq!(fs.reserve(file, free).await, Err(FsError::NoSpace));
        assert_eq!(fs.reserved_bytes(file), 0);
        // Metadata takes a little meanwhile.
        assert!(fs.space().await.unwrap().free_bytes + 4 * MIB >= free);
        fs.reserve(file, LEN_BYTES).await.unwrap();
        let left = fs.space().await.unwrap().free_bytes;
        assert!(left <= free - LEN_BYTES);
        // More for the same file is a change; another file finds the rest.
        assert_eq!(fs.reserve(file, free).await, Err(FsError::NoSpace));
        assert_eq!(fs.reserved_bytes(file), LEN_BYTES);
        let second = make(fs, "second", LEN_BYTES).await;
        assert_eq!(fs.reserve(second, left + MIB).await, Err(FsError::NoSpace));
        fs.reserve(second, MIB).await.unwrap();
        assert_eq!(fs.reserve(ROOT_INO, MIB).await, Err(FsError::NotSupported));
        fs.unreserve(file).await.unwrap();
        fs.unreserve(second).await.unwrap();
        fs.unreserve(second).await.unwrap();
        assert!(fs.space().await.unwrap().free_bytes + 8 * MIB >= free);
        fs.close().await.unwrap();
    });
}

/// A quota counts reservations: other files are refused if they would leave too little, and the file itself is not.
#[test]
fn what_is_set_aside_counts_for_quotas() {
    block_on(async {
        let mut rng = Rng::new(4);
        let world = World::with_capacity(4, 1, DISK_BYTES).await;
        let fs = &world.fs;
        let policy = Policy {
            size_limit_bytes: Some(16 * MIB),
            ..fs.policy()
        };
        fs.set_policy(policy).unwrap();
        let file = make(fs, "file", 12 * MIB).await;
        assert_eq!(
            fs.reserve(file, 17 * MIB).await,
            Err(FsError::QuotaExceeded)
        );
        fs.reserve(file, 12 * MIB).await.unwrap();
        let free = async || fs.space().await.unwrap().free_bytes;
        assert_eq!(free().await, 4 * MIB);
        let other = make(fs, "other", 0).await;
        for mib in 0..4 {
            write(&world, other, mib, &mut rng).await.unwrap();
        }
        assert_eq!(
            write(&world, other, 4, &mut rng).await,
            Err(FsError::QuotaExceeded)
        );
        for mib in 0..12 {
            write(&world, file, mib, &mut rng).await.unwrap();
            assert_eq!(free().await, 0);
        }
        // Over present bytes.
        write(&world, file, 3, &mut rng).await.unwrap();
        world.run_for(10).await;
        assert_eq!(free().await, 0);
        fs.close().await.unwrap();
    });
}

/// The whole file would have to be overwritten beside the bytes that the snapshot keeps, and there is no room for that.
#[test]
fn a_snapshot_that_leaves_too_little_is_refused() {
    block_on(async {
        let mut rng = Rng::new(5);
        let world = World::with_capacity(5, 1, DISK_BYTES).await;
        let fs = &world.fs;
        let file = make(fs, "file", LEN_BYTES).await;
        fs.reserve(file, LEN_BYTES).await.unwrap();
        for mib in 0..LEN_BYTES / MIB {
            write_patiently(&world, file, mib, &mut rng).await;
        }
        fs.commit(&ROOT_USER, file, 0, 0).await.unwrap();
        fs.take_snapshot(b"fits", b"").await.unwrap();
        let other = make(fs, "other", 0).await;
        fill(&world, other, &mut rng).await;
        // All of the file can be overwritten once more, as it is then; after that there is no room for another snapshot.
        for mib in 0..LEN_BYTES / MIB {
            write_patiently(&world, file, mib, &mut rng).await;
        }
        fs.commit(&ROOT_USER, file, 0, 0).await.unwrap();
        let refused = fs.take_snapshot(b"too-much", b"").await;
        assert_eq!(refused.unwrap_err(), SnapshotFailure::Fs(FsError::NoSpace));
        fs.close().await.unwrap();
    });
}

/// Shared records would stay when they are overwritten.
#[test]
fn a_reserved_file_shares_nothing() {
    block_on(async {
        let mut rng = Rng::new(6);
        let world = World::with_capacity(6, 1, DISK_BYTES).await;
        let fs = &world.fs;
        let file = make(fs, "file", 4 * MIB).await;
        let other = make(fs, "other", 4 * MIB).await;
        fs.reserve(file, 4 * MIB).await.unwrap();
        for ino in [file, other] {
            write(&world, ino, 0, &mut rng).await.unwrap();
            fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        }
        for (from, into) in [(file, other), (other, file)] {
            let shared = fs.share_over(&ROOT_USER, from, 0..MIB, into, 0).await;
            assert_eq!(shared, Err(FsError::Invalid));
        }
        fs.unreserve(file).await.unwrap();
        fs.share_over(&ROOT_USER, file, 0..MIB, other, 0)
            .await
            .unwrap();
        fs.close().await.unwrap();
    });
}

/// Other nodes that fill the same disks: the last amounts they were told, and why they cannot be told more.
#[derive(Default)]
struct Others {
    told_bytes: Mutex<Vec<u64>>,
    away: Mutex<Option<FsError>>,
}

impl Claims for Others {
    fn claim(&self, _: VolumeId, bytes: u64) -> BoxFuture<Result<(), FsError>> {
        let answer = match self.away.lock().clone() {
            Some(error) => Err(error),
            None => {
                self.told_bytes.lock().push(bytes);
                Ok(())
            }
        };
        Box::pin(async move { answer })
    }
}

/// A reservation is granted only if other nodes leave its space free, and their reservations are not free here.
#[test]
fn others_who_fill_the_same_disks_are_told_first() {
    block_on(async {
        let mut rng = Rng::new(7);
        let (others, dirty) = (Arc::new(Others::default()), DirtyBudget::new(8 * MIB));
        dirty.set_claims(others.clone());
        let world = World::with_dirty(7, dirty.clone()).await;
        let fs = &world.fs;
        let file = make(fs, "file", LEN_BYTES).await;
        let away = FsError::Unreachable("away".to_owned());
        *others.away.lock() = Some(away.clone());
        assert_eq!(fs.reserve(file, LEN_BYTES).await, Err(away.clone()));
        assert_eq!((fs.reserved_bytes(file), fs.reserved_on_disks()), (0, 0));

        *others.away.lock() = None;
        // Other nodes do not hear of an impossible reservation: they would leave its space free.
        let too_much = 2 * fs.space().await.unwrap().total_bytes;
        assert_eq!(fs.reserve(file, too_much).await, Err(FsError::NoSpace));
        assert!(others.told_bytes.lock().is_empty());
        fs.reserve(file, LEN_BYTES).await.unwrap();
        let claimed = others.told_bytes.lock().clone();
        assert_eq!(claimed.len(), 1);
        assert!(claimed[0] >= LEN_BYTES);
        assert!((LEN_BYTES..=claimed[0]).contains(&fs.reserved_on_disks()));

        // Bytes on disks, and bytes in the memory of other nodes, which are seen late.
        for (reserved_bytes, unflushed_bytes) in [(64 * MIB, 0), (0, 32 * MIB)] {
            world.run_for(1).await;
            let free = fs.space().await.unwrap().free_bytes;
            dirty.set_elsewhere(reserved_bytes, unflushed_bytes);
            world.run_for(1).await;
            let left = fs.space().await.unwrap().free_bytes;
            // Metadata gives back or takes a little meanwhile.
            assert!(left + 48 * MIB <= free, "{left} {free}");
            dirty.set_elsewhere(0, 0);
        }

        // A snapshot keeps overwritten bytes, so more space is needed.
        write_patiently(&world, file, 0, &mut rng).await;
        fs.commit(&ROOT_USER, file, 0, 0).await.unwrap();
        *others.away.lock() = Some(away.clone());
        let refused = fs.take_snapshot(b"first", b"").await;
        assert_eq!(refused.unwrap_err(), SnapshotFailure::Fs(away));
        *others.away.lock() = None;
        fs.take_snapshot(b"first", b"").await.unwrap();
        let claimed = others.told_bytes.lock().clone();
        assert_eq!(claimed.len(), 2);
        // The whole file once more, however much of it exists.
        assert!(claimed[1] >= LEN_BYTES);
        fs.close().await.unwrap();
    });
}
