//! What was answered is there after a crash: the smallest cases of bugs that the simulator found.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::env::BoxFuture;
use cairn_fs::*;
use cairn_testkit::{Crash, OpKind, Pace};
use tokio::sync::Semaphore;

use world::*;

mod world;

/// The COMMIT put the bytes into the journal with the change time of the record that `set_attr` had
/// stored since, so that the replay took the record's size, of before the write, for the later one.
#[test]
fn a_commit_after_a_change_of_mode_keeps_the_size() {
    block_on(async {
        let world = World::new(3, 1).await;
        let made = CreateMode::Guarded(SetAttr::default());
        let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", made).await;
        let ino = made.unwrap().attr.ino;
        let data = pattern(5000, 9);
        let bytes = Bytes::from(data.clone());
        let written = world
            .fs
            .write(&ROOT_USER, ino, 0, bytes, Stability::Unstable);
        written.await.unwrap();
        let mode = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        world
            .fs
            .set_attr(&ROOT_USER, ino, mode, None)
            .await
            .unwrap();
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let world = world.crash(4, Crash::LoseUnsynced).await;
        assert!(read_all(&world.fs, ino).await == data);
    });
}

/// Lets as many syncs of shards pass as it has permits: two for each, one before and one after.
struct SyncGate(Arc<Semaphore>);

impl Pace for SyncGate {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let gate = self.0.clone();
        let waits = kind == OpKind::Sync && name.contains("shards/");
        waits.then(|| {
            let pass = async move { gate.acquire().await.unwrap().forget() };
            Box::pin(pass) as BoxFuture<()>
        })
    }
}

async fn let_others_run() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}

/// Two COMMITs waited for one flight, which kept back the bytes of a later write. When it had landed
/// the first of them took those bytes on a flight, and the second, which found none left in the dirty
/// map, answered before that had landed.
#[test]
fn a_commit_waits_for_flights_that_others_start() {
    block_on(async {
        let world = World::new(5, 1).await;
        let made = CreateMode::Guarded(SetAttr::default());
        let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", made).await;
        let ino = made.unwrap().attr.ino;
        let gate = Arc::new(Semaphore::new(0));
        world.disks[0].pace_with(Arc::new(SyncGate(gate.clone())));
        let write = |offset, bytes: Vec<u8>| {
            let data = Bytes::from(bytes);
            world
                .fs
                .write(&ROOT_USER, ino, offset, data, Stability::Unstable)
        };
        let commit = || {
            let fs = world.fs.clone();
            tokio::spawn(async move { fs.commit(&ROOT_USER, ino, 0, 0).await })
        };
        let (first, second) = (pattern(100_000, 1), pattern(200_000, 2));
        write(0, first.clone()).await.unwrap();
        let commit_first = commit();
        let_others_run().await;
        write(50_000, second.clone()).await.unwrap();
        let commits = [commit(), commit()];
        let_others_run().await;
        gate.add_permits(2);
        let_others_run().await;
        assert!(commit_first.is_finished());
        assert!(commits.iter().all(|commit| !commit.is_finished()));
        gate.add_permits(100);
        for commit in commits {
            commit.await.unwrap().unwrap();
        }
        let world = world.crash(6, Crash::LoseUnsynced).await;
        let read = read_all(&world.fs, ino).await;
        assert!(read[..50_000] == first[..50_000] && read[50_000..] == second);
    });
}

/// A write that was on its way to nobody's flight yet replaced the bytes that a COMMIT waited for; the
/// COMMIT found them gone and answered, and a crash took both.
#[test]
fn a_commit_waits_for_what_replaces_its_bytes() {
    block_on(async {
        let world = World::new(7, 1).await;
        let made = CreateMode::Guarded(SetAttr::default());
        let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", made).await;
        let ino = made.unwrap().attr.ino;
        let gate = Arc::new(Semaphore::new(0));
        world.disks[0].pace_with(Arc::new(SyncGate(gate.clone())));
        let write = |offset, len, byte| {
            let data = Bytes::from(pattern(len, byte));
            world
                .fs
                .write(&ROOT_USER, ino, offset, data, Stability::Unstable)
        };
        let commit = || {
            let fs = world.fs.clone();
            tokio::spawn(async move { fs.commit(&ROOT_USER, ino, 0, 0).await })
        };
        write(0, 100_000, 1).await.unwrap();
        let commit_first = commit();
        let_others_run().await;
        write(50_000, 30_000, 2).await.unwrap();
        let commit_second = commit();
        let_others_run().await;
        write(50_000, 30_000, 3).await.unwrap();
        gate.add_permits(2);
        commit_first.await.unwrap().unwrap();
        commit_second.await.unwrap().unwrap();
        let world = world.crash(8, Crash::LoseUnsynced).await;
        let read = read_all(&world.fs, ino).await;
        assert!(read[50_000..80_000] == pattern(30_000, 3));
    });
}

/// Nothing reaches the log while this is there.
struct LogStands;

impl Pace for LogStands {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let writes = matches!(kind, OpKind::Write | OpKind::WriteDurable | OpKind::Sync);
        let waits = writes && name.contains("/log.");
        waits.then(|| Box::pin(std::future::pending()) as BoxFuture<()>)
    }
}

/// A segment without live records, if one believes what the log does not have yet, holds what a crash brings
/// back.
#[test]
fn what_is_dead_stays_until_that_is_durable() {
    block_on(async {
        let world = World::new(9, 1).await;
        let made = CreateMode::Guarded(SetAttr::default());
        let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", made).await;
        let ino = made.unwrap().attr.ino;
        let old = pattern(300_000, 1);
        let write = |bytes: Vec<u8>| {
            let data = Bytes::from(bytes);
            world
                .fs
                .write(&ROOT_USER, ino, 0, data, Stability::Unstable)
        };
        write(old.clone()).await.unwrap();
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        // Until its segment takes no more appends.
        world.run_for(130).await;
        let known = |world: &World| world.fs.meta().counters().segments;
        assert_eq!(known(&world), 1);
        world.disks[0].pace_with(Arc::new(LogStands));
        write(pattern(300_000, 2)).await.unwrap();
        let fs = world.fs.clone();
        let commit = tokio::spawn(async move { fs.commit(&ROOT_USER, ino, 0, 0).await });
        world.run_for(10).await;
        assert!(!commit.is_finished());
        // The collector saw that it is dead: of the old one and the new one, the metadata knows one.
        assert_eq!(known(&world), 1);
        assert_eq!(world.segments.segments(VOLUME).len(), 2);
        let world = world.crash(10, Crash::KeepUnsynced).await;
        assert!(read_all(&world.fs, ino).await == old);
    });
}
