//! Acknowledged changes survive a crash: the smallest cases of bugs that the simulator found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::Ino;
use cairn_base::env::BoxFuture;
use cairn_fs::*;
use cairn_testkit::{Crash, Fault, FaultRule, OpKind, Pace};
use futures_util::FutureExt;
use futures_util::future::join;
use tokio::sync::Semaphore;

use crate::world::*;

/// The COMMIT put the bytes into the journal with the change time of the record that `set_attr` had stored since. So
/// the replay took the record's size, from before the write, for the later one.
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

/// The COMMIT put more into the journal than a batch may have. The log refused it, the bytes counted as stable all
/// the same, and the next COMMIT was acknowledged.
#[test]
fn a_commit_that_no_batch_takes_is_done_all_the_same() {
    for encrypted in 0..2 {
        block_on(async {
            let world = World::with_small_log(200 + encrypted, 3).await;
            let made = CreateMode::Guarded(SetAttr::default());
            let made = world.fs.create(&ROOT_USER, ROOT_INO, b"file", made).await;
            let ino = made.unwrap().attr.ino;
            let data = pattern(40_000, 7);
            let bytes = Bytes::from(data.clone());
            let written = world
                .fs
                .write(&ROOT_USER, ino, 0, bytes, Stability::Unstable);
            written.await.unwrap();
            for _ in 0..2 {
                world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
            }
            let world = world.crash(4, Crash::LoseUnsynced).await;
            assert!(read_all(&world.fs, ino).await == data);
        });
    }
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

/// Two COMMITs waited for one flight, which kept back the bytes of a later write. When it had landed, the first of
/// them took those bytes on a flight. The second found none left in the dirty map, and replied before that flight had
/// landed.
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

/// A write that was in no flight yet replaced the bytes that a COMMIT waited for. The COMMIT found them gone and
/// replied, and a crash took both.
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

/// While this exists, nothing reaches the log.
struct LogStands;

impl Pace for LogStands {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let writes = matches!(kind, OpKind::Write | OpKind::WriteDurable | OpKind::Sync);
        let waits = writes && name.contains("/log.");
        waits.then(|| Box::pin(std::future::pending()) as BoxFuture<()>)
    }
}

/// A segment may have no live records only by changes that the log does not have yet: a crash brings its records back.
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
        // The collector saw that it is dead: of the old and the new segment, the metadata knows one.
        assert_eq!(known(&world), 1);
        assert_eq!(world.segments.segments(VOLUME).len(), 2);
        let world = world.crash(10, Crash::KeepUnsynced).await;
        assert!(read_all(&world.fs, ino).await == old);
    });
}

async fn make_file(fs: &Fs, name: &[u8]) -> Ino {
    let made = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, name, made).await;
    made.unwrap().attr.ino
}

async fn write(fs: &Fs, ino: Ino, offset: u64, bytes: Vec<u8>) -> Result<Written, FsError> {
    fs.write(&ROOT_USER, ino, offset, bytes.into(), Stability::Unstable)
        .await
}

/// The metadata could not be read for a moment when a flush was to land. Its bytes were never flushed again: every
/// COMMIT failed from then on, or, when the inode had left memory, succeeded without them.
#[test]
fn what_could_not_land_is_flushed_again() {
    block_on(async {
        let world = World::new(11, 1).await;
        let ino = make_file(&world.fs, b"file").await;
        write(&world.fs, ino, 0, pattern(100_000, 1)).await.unwrap();
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let world = world.restart(12).await;
        let put = |value| put_extent(&world, ino, 100_000, value);
        let stored = put(Bytes::from_static(&[99]));
        let new = pattern(200_000, 2);
        write(&world.fs, ino, 0, new.clone()).await.unwrap();
        let refused = world.fs.commit(&ROOT_USER, ino, 0, 0).await;
        assert!(matches!(refused, Err(FsError::Io(_))), "{refused:?}");
        // More of it would fill the memory that the writers of other files need.
        let more = write(&world.fs, ino, 1 << 20, pattern(10, 3)).await;
        assert!(matches!(more, Err(FsError::Io(_))), "{more:?}");
        make_file(&world.fs, b"other").await;
        put(stored);
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        write(&world.fs, ino, 0, new[..10].to_vec()).await.unwrap();
        let world = world.crash(13, Crash::LoseUnsynced).await;
        assert!(read_all(&world.fs, ino).await == new);
    });
}

/// A repeated attempt covered everything between its first byte and its last: for a file of this size that takes for
/// ever, and for a large one very much memory.
#[test]
fn what_is_far_apart_is_tried_again_without_what_is_between() {
    const FAR: u64 = 1 << 60;
    block_on(async {
        let world = World::new(23, 1).await;
        let ino = make_file(&world.fs, b"file").await;
        write(&world.fs, ino, 0, pattern(100_000, 1)).await.unwrap();
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let world = world.restart(24).await;
        let put = |value| put_extent(&world, ino, 100_000, value);
        let stored = put(Bytes::from_static(&[99]));
        let new = pattern(200_000, 2);
        write(&world.fs, ino, 0, new.clone()).await.unwrap();
        write(&world.fs, ino, FAR, new.clone()).await.unwrap();
        let refused = world.fs.commit(&ROOT_USER, ino, 0, 0).await;
        assert!(matches!(refused, Err(FsError::Io(_))), "{refused:?}");
        put(stored);
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let world = world.crash(25, Crash::LoseUnsynced).await;
        for at in [0, FAR] {
            let read = world.fs.read(&ROOT_USER, ino, at, 200_000).await.unwrap();
            assert!(read.parts.concat() == new, "{at}");
        }
    });
}

/// The findings of a scrub were lost when the volume was closed meanwhile, to be opened on other disks.
#[test]
fn writing_anew_is_not_done_when_the_volume_closes() {
    block_on(async {
        let world = World::new(26, 1).await;
        let ino = make_file(&world.fs, b"file").await;
        write(&world.fs, ino, 0, pattern(1_000_000, 1))
            .await
            .unwrap();
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let world = world.restart(27).await;
        let found: Vec<_> = world.fs.meta().segments().into_iter().collect();
        let found: Vec<_> = found.into_iter().map(|(id, _)| id).collect();
        assert!(!found.is_empty());
        // Enough for surveys, and too little to rewrite a segment.
        let pace = cairn_segment::Pace::new(world.env.clock.clone(), 100_000);
        let closing = async {
            world.run_for(1).await;
            let closed = world.fs.close().await;
            world.run_for(60).await;
            closed
        };
        let (written, closed) = futures_util::join!(world.fs.write_anew(found, &pace), closing);
        closed.unwrap();
        assert!(matches!(written, Err(FsError::Fenced)));
    });
}

/// A flush of bytes that a COMMIT waits for failed after others had replaced them: the COMMIT found nothing left to
/// wait for, and a crash took both.
#[test]
fn a_commit_waits_for_what_replaced_the_bytes_of_a_failed_flush() {
    block_on(async {
        let world = World::new(14, 1).await;
        let fs = &world.fs;
        let ino = make_file(fs, b"file").await;
        let gate = Arc::new(Semaphore::new(0));
        world.disks[0].pace_with(Arc::new(SyncGate(gate.clone())));
        let commit = || {
            let fs = world.fs.clone();
            tokio::spawn(async move { fs.commit(&ROOT_USER, ino, 0, 0).await })
        };
        write(fs, ino, 0, pattern(100_000, 1)).await.unwrap();
        drop(commit());
        let_others_run().await;
        write(fs, ino, 10 << 20, pattern(100_000, 2)).await.unwrap();
        drop(commit());
        let_others_run().await;
        write(fs, ino, 50_000, pattern(200_000, 3)).await.unwrap();
        let waiting = commit();
        let_others_run().await;
        // The first lands; the bytes that it held back are flushed now, and that fails.
        gate.add_permits(2);
        let_others_run().await;
        world.disks[0].inject(FaultRule {
            kind: Some(OpKind::Write),
            name_part: "shards/".into(),
            skip: 0,
            times: 1000,
            fault: Fault::Io,
        });
        let flushing = fs.commit(&ROOT_USER, ino, 0, 0).now_or_never();
        assert!(flushing.is_none());
        let last = pattern(200_000, 4);
        let written = write(fs, ino, 50_000, last.clone()).now_or_never();
        written.expect("at once").unwrap();
        let_others_run().await;
        world.disks[0].clear_faults();
        gate.add_permits(100);
        waiting.await.unwrap().unwrap();
        let world = world.crash(15, Crash::LoseUnsynced).await;
        let read = read_all(&world.fs, ino).await;
        assert!(read[50_000..250_000] == last);
    });
}

/// Holds the first sync of a shard after it is armed.
struct HoldsOne {
    is_armed: AtomicBool,
    gate: Arc<Semaphore>,
}

impl Pace for HoldsOne {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let is_wanted = kind == OpKind::Sync && name.contains("shards/");
        let gate = self.gate.clone();
        (is_wanted && self.is_armed.swap(false, Ordering::AcqRel)).then(|| {
            let pass = async move { gate.acquire().await.unwrap().forget() };
            Box::pin(pass) as BoxFuture<()>
        })
    }
}

/// The collector of an abandoned volume came back from a disk that had kept it waiting. It deleted the segments of
/// the volume that was opened in its place, because its metadata did not know them.
#[test]
fn a_volume_that_was_left_behind_deletes_nothing() {
    // In one of these cases its last round is one that looks for unreferenced segments.
    for seal_idle in 1..=8 {
        block_on(async {
            let gc = GcSettings {
                interval: Duration::from_secs(1),
                seal_idle: Duration::from_secs(seal_idle),
                ..GcSettings::default()
            };
            let world = World::with_gc(16, 1, 1 << 30, gc).await;
            let first = make_file(&world.fs, b"first").await;
            let gate = Arc::new(Semaphore::new(0));
            write(&world.fs, first, 0, pattern(300_000, 1))
                .await
                .unwrap();
            world.fs.commit(&ROOT_USER, first, 0, 0).await.unwrap();
            let holds = Arc::new(HoldsOne {
                is_armed: AtomicBool::new(true),
                gate: gate.clone(),
            });
            world.disks[0].pace_with(holds.clone());
            world.run_for(20).await;
            assert!(!holds.is_armed.load(Ordering::Acquire), "it seals");
            world.fs.abandon();
            // The disk does not promise to refuse the old volume while it is busy with it, so the new volume goes on
            // without the disk.
            let (fs, ()) = join(world.open_again(), world.run_for(2)).await;
            gate.add_permits(1);
            world.run_for(3).await;
            let second = make_file(&fs, b"second").await;
            write(&fs, second, 0, pattern(300_000, 2)).await.unwrap();
            fs.commit(&ROOT_USER, second, 0, 0).await.unwrap();
            world.segments.seal_all(VOLUME).await;
            world.run_for(10).await;
            fs.close().await.unwrap();
            let disks = world.disks.clone();
            drop((world, fs));
            let world = World::open(19, disks).await;
            assert!(read_all(&world.fs, second).await == pattern(300_000, 2));
            assert!(read_all(&world.fs, first).await == pattern(300_000, 1));
        });
    }
}

/// A COMMIT reported a change that another client had made meanwhile as its own client's: that client kept its cache.
#[test]
fn a_commit_does_not_take_the_changes_of_others_for_its_own() {
    block_on(async {
        let world = World::new(17, 1).await;
        let ino = make_file(&world.fs, b"file").await;
        let gate = Arc::new(Semaphore::new(0));
        world.disks[0].pace_with(Arc::new(SyncGate(gate.clone())));
        write(&world.fs, ino, 0, pattern(100_000, 1)).await.unwrap();
        let fs = world.fs.clone();
        let commit = tokio::spawn(async move { fs.commit(&ROOT_USER, ino, 0, 0).await });
        let_others_run().await;
        world.clock.advance(Duration::from_secs(1));
        let written = write(&world.fs, ino, 1 << 20, pattern(10, 2))
            .await
            .unwrap();
        gate.add_permits(100);
        let wcc = commit.await.unwrap().unwrap();
        assert_eq!(wcc.before.ctime, wcc.after.ctime);
        assert_eq!(wcc.after.ctime, written.wcc.after.ctime);
    });
}

/// Writers that waited for memory when the volume was abandoned waited for ever.
#[test]
fn who_waits_for_memory_is_sent_away_when_the_volume_ends() {
    block_on(async {
        let world = World::with_dirty(18, DirtyBudget::new(1 << 20)).await;
        let ino = make_file(&world.fs, b"file").await;
        let gate = Arc::new(Semaphore::new(0));
        world.disks[0].pace_with(Arc::new(SyncGate(gate)));
        let writers: Vec<_> = (0..16)
            .map(|index| {
                let fs = world.fs.clone();
                let data = pattern(200_000, 1);
                tokio::spawn(async move { write(&fs, ino, index * 200_000, data).await })
            })
            .collect();
        let_others_run().await;
        let waiting: Vec<_> = writers
            .into_iter()
            .filter(|writer| !writer.is_finished())
            .collect();
        assert!(!waiting.is_empty());
        world.fs.abandon();
        let_others_run().await;
        assert!(waiting.iter().all(|writer| writer.is_finished()));
        for writer in waiting {
            let written = writer.await.unwrap();
            assert!(matches!(written, Err(FsError::Fenced)), "{written:?}");
        }
    });
}

/// A refused change stayed in memory, and other clients saw it until the volume was opened again.
#[test]
fn nothing_is_changed_while_the_volume_closes() {
    block_on(async {
        let world = World::new(21, 1).await;
        let fs = &world.fs;
        let ino = make_file(fs, b"file").await;
        let other = make_file(fs, b"other").await;
        let gate = Arc::new(Semaphore::new(0));
        world.disks[0].pace_with(Arc::new(SyncGate(gate.clone())));
        write(fs, ino, 0, pattern(100_000, 1)).await.unwrap();
        let closing = tokio::spawn({
            let fs = fs.clone();
            async move { fs.close().await }
        });
        let_others_run().await;
        assert!(!closing.is_finished());
        let cut = SetAttr {
            size_bytes: Some(0),
            ..SetAttr::default()
        };
        let guarded = CreateMode::Guarded(SetAttr::default());
        let (who, root) = (&ROOT_USER, ROOT_INO);
        let refusals = [
            fs.set_attr(who, ino, cut, None).await.err(),
            fs.create(who, root, b"new", guarded).await.err(),
            fs.make_dir(who, root, b"dir", SetAttr::default())
                .await
                .err(),
            fs.remove(who, root, b"file").await.err(),
            fs.link(who, ino, root, b"link").await.err(),
            fs.rename(who, root, b"other", root, b"file").await.err(),
            fs.set_xattr(who, ino, b"user.name", b"value", XattrMode::Any)
                .await
                .err(),
        ];
        assert_eq!(refusals, [const { Some(FsError::Fenced) }; 7]);
        let attrs = [fs.attr(ino).await.unwrap(), fs.attr(other).await.unwrap()];
        assert_eq!(
            attrs.map(|attr| (attr.size_bytes, attr.nlink)),
            [(100_000, 1), (0, 1)]
        );
        gate.add_permits(1000);
        closing.await.unwrap().unwrap();
    });
}

/// Each waited for the log by itself: where a sync takes long, clients that remove files got ever further ahead.
#[test]
fn removed_files_are_deleted_many_at_a_time() {
    const COUNT: u64 = 40;
    block_on(async {
        let world = World::new(22, 1).await;
        let fs = &world.fs;
        let names: Vec<String> = (0..COUNT).map(|index| format!("file-{index}")).collect();
        for name in &names {
            let ino = make_file(fs, name.as_bytes()).await;
            write(fs, ino, 0, pattern(5000, 1)).await.unwrap();
            fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        }
        // Out of the log, to segments: otherwise there is nothing to delete later.
        world.run_for(70).await;
        let before = fs.meta().stats().syncs;
        let removals = names
            .iter()
            .map(|name| fs.remove(&ROOT_USER, ROOT_INO, name.as_bytes()));
        for removed in futures_util::future::join_all(removals).await {
            removed.unwrap();
        }
        world.run_for(2).await;
        assert_eq!(fs.stats().orphans_reaped, COUNT);
        let syncs = fs.meta().stats().syncs - before;
        assert!(syncs < COUNT / 2, "{syncs}");
    });
}

/// The deletion of each removed file had its own group of the log, which the next removal waited for.
#[test]
fn who_removes_one_file_after_the_other_waits_for_no_deletion() {
    const COUNT: u64 = 40;
    block_on(async {
        let world = World::new(23, 1).await;
        let fs = &world.fs;
        let names: Vec<String> = (0..COUNT).map(|index| format!("file-{index}")).collect();
        for name in &names {
            let ino = make_file(fs, name.as_bytes()).await;
            write(fs, ino, 0, pattern(5000, 1)).await.unwrap();
            fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        }
        // Out of the log, to segments.
        world.run_for(70).await;
        let before = fs.meta().stats().groups;
        for name in &names {
            let removed = fs.remove(&ROOT_USER, ROOT_INO, name.as_bytes());
            removed.await.unwrap();
            let_others_run().await;
        }
        let groups = fs.meta().stats().groups - before;
        assert!(groups < COUNT * 5 / 4, "{groups}");
        world.run_for(2).await;
        assert_eq!(fs.stats().orphans_reaped, COUNT);
    });
}

/// Bytes in flights counted as used nowhere: a file with all its data in flights showed no blocks, which `tar
/// --sparse` takes for one hole that it need not read.
#[test]
fn bytes_on_their_way_to_segments_count_as_used() {
    const LEN: u32 = 1 << 20;
    block_on(async {
        let world = World::new(20, 1).await;
        let fs = &world.fs;
        let ino = make_file(fs, b"file").await;
        let gate = Arc::new(Semaphore::new(0));
        world.disks[0].pace_with(Arc::new(SyncGate(gate.clone())));
        for part in 0..4 {
            write(fs, ino, part * u64::from(LEN), pattern(LEN, 1))
                .await
                .unwrap();
        }
        let_others_run().await;
        let sizes = async || {
            let attr = fs.attr(ino).await.unwrap();
            (attr.size_bytes, attr.used_bytes)
        };
        assert_eq!(sizes().await, (4 << 20, 4 << 20));
        // Bytes that are cut off meanwhile will never be used.
        let set = SetAttr {
            size_bytes: Some(5000),
            ..SetAttr::default()
        };
        let cut = tokio::spawn({
            let fs = fs.clone();
            async move { fs.set_attr(&ROOT_USER, ino, set, None).await }
        });
        let_others_run().await;
        assert_eq!(sizes().await, (5000, 5000));
        gate.add_permits(100);
        cut.await.unwrap().unwrap();
        fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        assert_eq!(sizes().await, (5000, 5000));
    });
}

/// Makes every write of a segment fail.
fn refuse_shards(world: &World) {
    // The folders of shards, and of the files that new shards are made of.
    for folder in ["shards/", "free/"] {
        world.disks[0].inject(FaultRule {
            kind: Some(OpKind::Write),
            name_part: folder.into(),
            skip: 0,
            times: 1_000_000,
            fault: Fault::Io,
        });
    }
}

async fn require_few_tries(world: &World) {
    const SECONDS: u64 = 20;
    let before = world.fs.stats().flush_errors;
    for _ in 0..SECONDS * 5 {
        world.clock.advance(Duration::from_millis(200));
        let_others_run().await;
    }
    let errors = world.fs.stats().flush_errors - before;
    assert!((2..=SECONDS).contains(&errors), "{errors}");
}

/// The pause after a failed flush was forgotten at once. So where memory ran high, the next attempt came with the
/// next round of the flusher.
#[test]
fn a_flush_that_fails_is_tried_once_a_second() {
    block_on(async {
        let world = World::with_dirty(21, DirtyBudget::new(1 << 20)).await;
        let fs = &world.fs;
        let ino = make_file(fs, b"file").await;
        refuse_shards(&world);
        write(fs, ino, 0, pattern(700_000, 1)).await.unwrap();
        require_few_tries(&world).await;
    });
}

/// Otherwise a user that is told that there is no space deletes files, in vain.
#[test]
fn a_pool_of_which_no_disk_works_is_not_full() {
    block_on(async {
        let world = World::new(28, 1).await;
        let fs = &world.fs;
        let ino = make_file(fs, b"file").await;
        world.disks[0].inject(FaultRule {
            kind: None,
            name_part: "shards/".into(),
            skip: 0,
            times: 1_000_000,
            fault: Fault::Io,
        });
        write(fs, ino, 0, pattern(700_000, 1)).await.unwrap();
        // Each attempt ends with an error, until the disk is not used any more.
        world.run_for(60).await;
        let refused = write(fs, ino, 1 << 20, pattern(700_000, 1)).await;
        assert!(matches!(refused, Err(FsError::Io(_))), "{refused:?}");
    });
}

/// As often when folding would release the log, which is long.
#[test]
fn a_fold_that_fails_is_tried_once_a_second() {
    block_on(async {
        let world = World::with_dirty(22, DirtyBudget::new(1 << 20)).await;
        refuse_shards(&world);
        let ino = make_file(&world.fs, b"file").await;
        let data = Bytes::from(pattern(64 << 10, 1));
        while world.fs.meta().journal_pressure().fold_through.is_none() {
            let stable = Stability::Stable;
            let written = world.fs.write(&ROOT_USER, ino, 0, data.clone(), stable);
            written.await.unwrap();
        }
        require_few_tries(&world).await;
    });
}

/// A volume that moves is abandoned once all writes are durable: also those in flights at that time, and those that
/// replaced them.
#[test]
fn what_is_on_its_way_when_writing_ends_is_not_left_behind() {
    for overwrites in [false, true] {
        block_on(async {
            let world = World::new(21, 1).await;
            let ino = make_file(&world.fs, b"file").await;
            let gate = Arc::new(Semaphore::new(0));
            world.disks[0].pace_with(Arc::new(SyncGate(gate.clone())));
            let mut want = pattern(300_000, 1);
            write(&world.fs, ino, 0, want.clone()).await.unwrap();
            // Long enough for a flush by age.
            world.run_for(5).await;
            if overwrites {
                let over = pattern(100_000, 2);
                want[100_000..200_000].copy_from_slice(&over);
                write(&world.fs, ino, 100_000, over).await.unwrap();
            }
            let fs = world.fs.clone();
            let ending = tokio::spawn(async move { fs.end_writing().await });
            let_others_run().await;
            assert!(!ending.is_finished(), "it is on its way still");
            gate.add_permits(1000);
            ending.await.unwrap().unwrap();
            world.fs.abandon();
            let world = world.crash(22, Crash::LoseUnsynced).await;
            assert!(read_all(&world.fs, ino).await == want);
        });
    }
}
