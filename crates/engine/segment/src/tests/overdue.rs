//! Disks that do not answer a write: appends go on without them where others are enough, and late writes do no harm.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::BoxFuture;
use cairn_base::{DiskId, SegmentId};
use cairn_testkit::{Fault, FaultRule, MemDisk, OpKind, Pace as DiskPace, Rng};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::world::*;
use crate::*;

/// Holds up operations of one kind on shards until the gate is opened.
struct Gate {
    kind: OpKind,
    open: Arc<Semaphore>,
}

impl DiskPace for Gate {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let is_shard = name.starts_with("shards") || name.starts_with("free");
        let open = self.open.clone();
        (kind == self.kind && is_shard)
            .then(|| Box::pin(async move { drop(open.acquire().await) }) as BoxFuture<()>)
    }
}

fn hang(world: &World, disk: usize, kind: OpKind) -> Arc<Semaphore> {
    let open = Arc::new(Semaphore::new(0));
    let gate = Gate {
        kind,
        open: open.clone(),
    };
    world.disks[disk].pace_with(Arc::new(gate));
    open
}

async fn settle() {
    for _ in 0..2_000 {
        tokio::task::yield_now().await;
    }
}

type Running = JoinHandle<Result<Vec<Written>, SegmentError>>;

fn start(world: &Arc<World>, code: cairn_erasure::Code, seed: u64) -> Running {
    let world = world.clone();
    tokio::spawn(async move {
        let record = data(&mut Rng::new(seed), 50_000, false, true);
        let records = vec![(record, Compression::None)];
        world.append(code, Stream::Mixed, records).await
    })
}

fn segment_of(written: &[Written]) -> SegmentId {
    written[0].pointer.location.segment
}

fn disks_of(world: &World, written: &[Written]) -> Vec<DiskId> {
    let info = world.store.segment(VOLUME, segment_of(written));
    info.expect("known").disks
}

const KINDS: [OpKind; 4] = [
    OpKind::Write,
    OpKind::Sync,
    OpKind::SyncFolder,
    OpKind::Create,
];

#[test]
fn an_append_goes_on_without_a_disk_that_does_not_answer() {
    for kind in KINDS {
        for (n, m, disk_count) in [(4, 2, 6), (1, 1, 3), (2, 1, 3), (1, 0, 2)] {
            block_on(goes_on_without(kind, n, m, disk_count));
        }
    }
}

async fn goes_on_without(kind: OpKind, n: u8, m: u8, disk_count: usize) {
    let world = Arc::new(World::new(disk_count, 3).await);
    let what = format!("{kind:?}, {n}+{m}");
    let silent = match kind {
        // Only the creation of a segment does these.
        OpKind::Create | OpKind::SyncFolder => None,
        _ => {
            let first = start(&world, code(n, m), 1).await.expect("no panic");
            Some(disks_of(&world, &first.expect("appended"))[0])
        }
    };
    let silent = silent.unwrap_or(DiskId(1));
    let gate = hang(&world, silent.0 as usize - 1, kind);
    let code = code(n, m);
    let seeds = 2..6;
    let mut all = Vec::new();
    for seed in seeds {
        let running = start(&world, code, seed);
        settle().await;
        if !running.is_finished() {
            world.clock.advance(Duration::from_millis(499));
            settle().await;
            assert!(
                !running.is_finished(),
                "{what}: it has not been silent for long"
            );
            world.clock.advance(Duration::from_millis(1));
            settle().await;
            assert!(
                running.is_finished(),
                "{what}: it is not waited for any longer"
            );
            assert_eq!(world.store.late.all(), [silent], "{what}");
        }
        let written = running.await.expect("no panic").expect("appended");
        let info = world
            .store
            .segment(VOLUME, segment_of(&written))
            .expect("known");
        assert_eq!(info.code.parity(), m, "{what}: no less protected");
        if !world.store.late.all().is_empty() {
            assert!(!info.disks.contains(&silent), "{what}");
        }
        all.extend(written);
    }
    let was_late = !world.store.late.all().is_empty();
    assert!(
        was_late || kind == OpKind::SyncFolder || kind == OpKind::Create,
        "{what}"
    );
    let retries = world.store.stats().append_retries;
    assert!(
        retries <= 1,
        "{what}: only the first had to be written again: {retries}"
    );
    // The held operations complete now, and the disk is as good as before.
    gate.add_permits(1 << 20);
    settle().await;
    assert_eq!(world.store.late.all(), [], "{what}");
    world.check(&all).await;
    world.store.seal_all(VOLUME).await;
    let pace = Pace::new(Arc::new(world.clock.clone()), 0);
    let mut completed_bytes = 0;
    for id in world.store.segment_ids(VOLUME).expect("open") {
        let scrub = world
            .store
            .scrub_segment(VOLUME, id, &pace)
            .await
            .expect("scrub");
        // Writes that a late disk missed are no corruption, and no fault of the disk.
        assert_eq!(scrub.wrong_bytes, 0, "{what}");
        assert_eq!(scrub.segments_inconsistent, 0, "{what}");
        completed_bytes += scrub.completed_bytes;
        let again = world.store.scrub_segment(VOLUME, id, &pace).await;
        let again = again.expect("scrub");
        assert_eq!(
            (again.completed_bytes, again.shards_sealed),
            (0, 0),
            "{what}"
        );
    }
    let health = world.store.disk(silent).expect("there").health();
    assert_eq!(health.checksum_errors, 0, "{what}");
    let is_partly_written = kind == OpKind::Write && m > 0;
    assert!(completed_bytes > 0 || !is_partly_written, "{what}");
    let away: Vec<usize> = (0..usize::from(m)).collect();
    world.cold(&away).await.check(&all).await;
}

/// Lower protection than wanted is no solution: the append waits for as long as it takes.
#[test]
fn a_disk_that_nothing_can_do_without_is_waited_for() {
    block_on(async {
        let world = Arc::new(World::new(3, 4).await);
        let first = start(&world, code(1, 2), 1).await.expect("no panic");
        first.expect("appended");
        let gate = hang(&world, 1, OpKind::Write);
        let running = start(&world, code(1, 2), 2);
        settle().await;
        for _ in 0..100 {
            world.clock.advance(Duration::from_millis(500));
            settle().await;
        }
        assert!(!running.is_finished());
        gate.add_permits(1 << 20);
        let written = running.await.expect("no panic").expect("appended");
        assert_eq!(disks_of(&world, &written).len(), 3);
        assert_eq!(world.store.stats().append_retries, 0);
        world.check(&written).await;
    });
}

/// A disk that answers other requests, but not yet this one, is busy, as all of them may be.
#[test]
fn a_disk_that_is_only_busy_is_waited_for_longer() {
    block_on(async {
        let world = Arc::new(World::new(3, 5).await);
        let first = start(&world, code(1, 1), 1).await.expect("no panic");
        let busy = disks_of(&world, &first.expect("appended"))[0];
        let _gate = hang(&world, busy.0 as usize - 1, OpKind::Write);
        let disk = world.store.disk(busy).expect("there");
        let running = start(&world, code(1, 1), 2);
        settle().await;
        for _ in 0..19 {
            disk.probe().await.expect("it answers that");
            world.clock.advance(Duration::from_millis(250));
            settle().await;
            assert!(!running.is_finished());
        }
        // But not for ever.
        disk.probe().await.expect("it answers that");
        world.clock.advance(Duration::from_millis(250));
        settle().await;
        running.await.expect("no panic").expect("appended");
        assert_eq!(world.store.late.all(), [busy]);
    });
}

/// The file of a late shard never becomes another shard.
#[test]
fn what_is_written_late_lands_in_no_other_shard() {
    block_on(async {
        let world = Arc::new(World::new(2, 6).await);
        let gate = hang(&world, 0, OpKind::Write);
        let mut all = Vec::new();
        // The disk of the first segment is chosen at random.
        for seed in 0..20 {
            let running = start(&world, code(1, 0), seed);
            settle().await;
            world.clock.advance(Duration::from_millis(500));
            settle().await;
            all.extend(running.await.expect("no panic").expect("appended"));
            if !world.store.late.all().is_empty() {
                break;
            }
            world.store.seal_all(VOLUME).await;
        }
        assert_eq!(world.store.late.all(), [DiskId(1)]);
        // Its file belongs to a segment without acknowledged records, and is deleted.
        world.store.seal_all(VOLUME).await;
        // This does not wait for the late disk.
        settle().await;
        let names = world.disks[0].file_names();
        let files = names.iter().filter(|name| name.starts_with("shards/"));
        assert_eq!(files.count(), 0, "{names:?}");
        assert!(
            !names.iter().any(|name| name.starts_with("free/")),
            "{names:?}"
        );
        gate.add_permits(1 << 20);
        settle().await;
        for seed in 30..40 {
            let running = start(&world, code(1, 0), seed).await.expect("no panic");
            all.extend(running.expect("appended"));
            world.store.seal_all(VOLUME).await;
        }
        world.cold(&[]).await.check(&all).await;
    });
}

/// Sealing and removal do not wait either: garbage collection and the end of the process wait for them.
#[test]
fn segments_are_sealed_and_removed_without_a_disk_that_does_not_answer() {
    for kind in [
        OpKind::Write,
        OpKind::Sync,
        OpKind::WriteDurable,
        OpKind::SetLen,
    ] {
        block_on(async {
            let world = Arc::new(World::new(3, 7).await);
            let written = start(&world, code(2, 1), 1)
                .await
                .expect("no panic")
                .expect("appended");
            let gate = hang(&world, 1, kind);
            let sealing = world.clone();
            let sealing = tokio::spawn(async move { sealing.store.seal_all(VOLUME).await });
            // The summary first, then footers.
            for _ in 0..2 {
                settle().await;
                assert!(
                    kind == OpKind::SetLen
                        || !world.store.late.all().is_empty()
                        || !sealing.is_finished()
                );
                world.clock.advance(Duration::from_millis(500));
            }
            settle().await;
            assert!(sealing.is_finished(), "{kind:?}");
            let id = segment_of(&written);
            assert!(
                world.store.segment(VOLUME, id).expect("known").sealed,
                "{kind:?}"
            );
            let summary = world.store.summary(VOLUME, id).await.expect("there");
            assert_eq!(summary.map(|entries| entries.len()), Some(1), "{kind:?}");
            gate.add_permits(1 << 20);
            settle().await;
            world.cold(&[2]).await.check(&written).await;

            let gate = hang(&world, 1, OpKind::Remove);
            let removing = world.clone();
            let removing = tokio::spawn(async move { removing.store.remove(VOLUME, id).await });
            settle().await;
            world.clock.advance(Duration::from_millis(500));
            settle().await;
            assert!(removing.is_finished(), "{kind:?}");
            gate.add_permits(1 << 20);
            settle().await;
            let names = world.disks[1].file_names();
            assert!(
                !names.iter().any(|name| name.starts_with("shards/")),
                "{names:?}"
            );
        });
    }
}

/// Removing or sealing many segments in a row, as garbage collection does, waits once: writers wait for it.
#[test]
fn of_many_segments_only_the_first_waits_for_a_disk_that_does_not_answer() {
    block_on(async {
        let world = Arc::new(World::new(3, 11).await);
        let mut ids = Vec::new();
        for seed in 0..8 {
            let written = start(&world, code(2, 1), seed).await.expect("no panic");
            ids.push(segment_of(&written.expect("appended")));
            world.store.seal_all(VOLUME).await;
        }
        let gate = hang(&world, 1, OpKind::Remove);
        let removing = world.clone();
        let removing = tokio::spawn(async move {
            for id in ids {
                removing.store.remove(VOLUME, id).await.expect("removed");
            }
        });
        settle().await;
        assert!(!removing.is_finished(), "it may yet answer");
        world.clock.advance(Duration::from_millis(500));
        settle().await;
        assert!(removing.is_finished(), "each waited for it in turn");
        assert_eq!(world.store.late.all(), [DiskId(2)]);
        gate.add_permits(1 << 20);
        settle().await;
        assert_eq!(world.store.late.all(), []);
        for disk in &world.disks {
            let names = disk.file_names();
            let is_shard = |name: &&String| name.starts_with("shards/");
            assert_eq!(names.iter().find(is_shard), None);
        }
    });
}

/// A disk that was found unresponsive or failing gets nothing new until it is found well, at once and with full
/// protection. Data that needs this disk for its protection still uses it.
#[test]
fn nothing_new_is_put_on_a_disk_that_has_not_proven_itself() {
    block_on(async {
        let world = Arc::new(World::new(4, 12).await);
        let doubted = world.store.disk(DiskId(1)).expect("there");
        for is_silent in [true, false] {
            match is_silent {
                true => doubted.state().set_silent(true),
                false => doubted.state().set_failing(true),
            }
            let first = start(&world, code(2, 1), 1).await.expect("no panic");
            let first = first.expect("appended");
            assert!(!disks_of(&world, &first).contains(&DiskId(1)));
            let all = start(&world, code(2, 2), 2).await.expect("no panic");
            let all = all.expect("appended");
            let info = world.store.segment(VOLUME, segment_of(&all));
            assert_eq!(info.expect("known").code.parity(), 2);
            doubted.state().set_silent(false);
            doubted.state().set_failing(false);
            world.store.seal_all(VOLUME).await;
            world.check(&first).await;
            world.check(&all).await;
        }
        assert_eq!(doubted.health().checksum_errors, 0);
    });
}

/// A read of bytes that a disk missed is decoded from others, and is no fault of the disk.
#[test]
fn what_a_disk_never_took_is_not_wrong_bytes() {
    block_on(async {
        let mut decoded = 0;
        for disk in 0..3 {
            let world = World::new(3, 13).await;
            let record = data(&mut Rng::new(1), 50_000, false, true);
            let records = vec![(record, Compression::None)];
            let written = world.append(code(2, 1), Stream::Mixed, records).await;
            let written = written.expect("appended");
            // A segment gets its summary when it is sealed.
            world.disks[disk].inject(FaultRule {
                kind: Some(OpKind::Write),
                name_part: "shards".to_owned(),
                skip: 0,
                times: 1,
                fault: Fault::Io,
            });
            world.store.seal_all(VOLUME).await;
            let cold = world.cold(&[]).await;
            let id = segment_of(&written);
            let summary = cold.store.summary(VOLUME, id).await.expect("there");
            assert_eq!(summary.map(|entries| entries.len()), Some(1), "{disk}");
            let stats = cold.store.stats();
            decoded += stats.degraded_reads;
            assert_eq!(stats.checksum_errors, 0, "{disk}");
            let id = DiskId(disk as u128 + 1);
            let health = cold.store.disk(id).expect("there").health();
            assert_eq!(health.checksum_errors, 0, "{disk}");
            cold.check(&written).await;
        }
        assert!(decoded > 0, "no read met what was missed");
    });
}

/// A disk that missed writes does not count before it has them.
#[test]
fn a_disk_that_is_well_again_is_given_what_it_missed() {
    block_on(async {
        for missing in 0..3 {
            let world = Arc::new(World::new(3, 14).await);
            let id = DiskId(missing as u128 + 1);
            let state = || {
                let all = world.store.disk_status();
                let disk = all.into_iter().find(|disk| disk.id == id);
                disk.map(|disk| disk.state)
            };
            let written = start(&world, code(2, 1), 1).await.expect("no panic");
            let written = written.expect("appended");
            world.disks[missing].inject(FaultRule {
                kind: Some(OpKind::Write),
                name_part: "shards".to_owned(),
                skip: 0,
                times: 1,
                fault: Fault::Io,
            });
            assert_eq!(state(), Some(DiskState::Healthy));
            world.store.seal_all(VOLUME).await;
            assert_eq!(
                state(),
                Some(DiskState::Returning),
                "it has no footer there"
            );
            let pace = Pace::new(Arc::new(world.clock.clone()), 0);
            assert_eq!(world.store.make_good(id, &pace).await, 0);
            assert_eq!(state(), Some(DiskState::Healthy));
            // Now any other disk may be lost.
            let gone = (missing + 1) % 3;
            let cold = world.cold(&[gone]).await;
            cold.check(&written).await;
            let summary = cold.store.summary(VOLUME, segment_of(&written)).await;
            assert_eq!(
                summary.expect("there").map(|entries| entries.len()),
                Some(1)
            );
        }
    });
}

/// After a restart, or with another owner, few suspects are known; incomplete shards are found at once.
#[test]
fn what_a_disk_missed_before_a_start_is_found_again() {
    block_on(async {
        for missing in 0..3 {
            let world = Arc::new(World::new(3, 17).await);
            let id = DiskId(missing as u128 + 1);
            let pace = Pace::new(Arc::new(world.clock.clone()), 0);
            let whole = start(&world, code(2, 1), 1).await.expect("no panic");
            let whole = segment_of(&whole.expect("appended"));
            world.store.seal_all(VOLUME).await;
            let written = start(&world, code(2, 1), 2).await.expect("no panic");
            let written = written.expect("appended");
            let lacking = segment_of(&written);
            world.disks[missing].inject(FaultRule {
                kind: Some(OpKind::Write),
                name_part: "shards".to_owned(),
                skip: 0,
                times: 1,
                fault: Fault::Io,
            });
            world.store.seal_all(VOLUME).await;
            assert!(!world.store.may_lack(VOLUME, lacking), "nobody tends it");
            world.store.look_for_missed(&pace).await;
            assert!(world.store.may_lack(VOLUME, lacking));
            assert!(!world.store.may_lack(VOLUME, whole));

            let cold = world.cold(&[]).await;
            let pace = Pace::new(Arc::new(cold.clock.clone()), 0);
            cold.store.suspect(VOLUME, [whole, lacking]);
            assert!(!cold.store.lacks_some(id), "it is not known yet");
            cold.store.look_for_missed(&pace).await;
            assert!(cold.store.may_lack(VOLUME, lacking));
            assert!(!cold.store.may_lack(VOLUME, whole), "it lacks nothing");
            for disk in 0..3 {
                let of = DiskId(disk as u128 + 1);
                assert_eq!(cold.store.lacks_some(of), disk == missing, "disk {disk}");
            }
            assert_eq!(cold.store.make_good(id, &pace).await, 0);
            assert!(!cold.store.may_lack(VOLUME, lacking));
            // Now any other disk may be lost.
            let gone = (missing + 1) % 3;
            cold.cold(&[gone]).await.check(&written).await;
        }
    });
}

/// An owner that is cut off during sealing leaves footers on some disks. Disks without one count as returning only if
/// the others can provide the missing bytes.
#[test]
fn disks_that_the_others_cannot_give_what_they_lack_do_not_return() {
    let cases = [
        ("as many as a parity of one", code(2, 1), 1, true),
        ("one more than a parity of one", code(2, 1), 2, false),
        ("as many as a parity of two", code(4, 2), 2, true),
        ("one more than a parity of two", code(4, 2), 3, false),
        ("footers on two of six disks", code(4, 2), 4, false),
        ("a footer on one disk alone", code(4, 2), 5, false),
        ("never sealed", code(4, 2), 6, false),
    ];
    for (name, code, lacking, returns) in cases {
        block_on(async {
            let total = usize::from(code.total());
            let world = Arc::new(World::new(total, 19).await);
            let written = start(&world, code, 1).await.expect("no panic");
            let written = written.expect("appended");
            let id = segment_of(&written);
            // As in the metadata: it never noted the segment as sealed, and the next owner appends nothing.
            let mut known = world.store.segments(VOLUME);
            for info in &mut known {
                info.sealed = true;
            }
            let unsealed: Vec<_> = world.disks[..lacking]
                .iter()
                .map(|disk| disk.snapshot())
                .collect();
            world.store.seal_all(VOLUME).await;
            let mut disks = world.disks.clone();
            for (disk, unsealed) in disks.iter_mut().zip(&unsealed) {
                *disk = MemDisk::from_snapshot(unsealed);
            }
            let cold = Arc::new(world.restart(disks, &[], known).await);
            let pace = Pace::new(Arc::new(cold.clock.clone()), 0);
            cold.store.suspect(VOLUME, [id]);
            cold.store.look_for_missed(&pace).await;
            let returning = || {
                let disks = cold.store.disk_status().into_iter();
                disks
                    .filter(|disk| disk.state == DiskState::Returning)
                    .count()
            };
            for disk in 0..total {
                let of = DiskId(disk as u128 + 1);
                let is_lacking = returns && disk < lacking;
                let found = cold.store.lacks_some(of);
                assert_eq!(found, is_lacking, "{name}: disk {disk}");
            }
            let want = if returns { lacking } else { 0 };
            assert_eq!(returning(), want, "{name}");
            assert_eq!(cold.store.may_lack(VOLUME, id), returns, "{name}");
            for disk in 0..lacking {
                let of = DiskId(disk as u128 + 1);
                assert_eq!(cold.store.make_good(of, &pace).await, 0, "{name}");
            }
            assert_eq!(returning(), 0, "{name}");
            cold.check(&written).await;
        });
    }
}

/// A disk that is missing at the start may lack something until it has answered.
#[test]
fn a_suspect_stays_one_until_all_its_disks_have_answered() {
    block_on(async {
        let world = Arc::new(World::new(3, 18).await);
        let written = start(&world, code(2, 1), 1).await.expect("no panic");
        let id = segment_of(&written.expect("appended"));
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[1]).await;
        let pace = Pace::new(Arc::new(cold.clock.clone()), 0);
        cold.store.suspect(VOLUME, [id]);
        cold.store.look_for_missed(&pace).await;
        assert!(cold.store.may_lack(VOLUME, id));
        assert!((1..=3).all(|disk| !cold.store.lacks_some(DiskId(disk))));
        // A removed segment is no suspect.
        cold.store.remove(VOLUME, id).await.expect("removed");
        cold.clock.advance(Duration::from_secs(30));
        cold.store.look_for_missed(&pace).await;
        assert!(!cold.store.may_lack(VOLUME, id));
    });
}

/// If all disks are doubtful, as after a pause of all of them, appends share segments as before.
#[test]
fn a_doubt_of_all_disks_makes_no_more_segments() {
    block_on(async {
        let world = Arc::new(World::new(3, 16).await);
        let first = start(&world, code(2, 1), 1).await.expect("no panic");
        let mut all = first.expect("appended");
        for id in 1..=3 {
            let disk = world.store.disk(DiskId(id)).expect("there");
            disk.state().set_silent(true);
            disk.state().set_failing(true);
        }
        for seed in 2..10 {
            let next = start(&world, code(2, 1), seed).await.expect("no panic");
            all.extend(next.expect("appended"));
        }
        assert_eq!(world.store.stats().segments_created, 1);
        world.check(&all).await;
    });
}

/// An incomplete shard that cannot be completed is tried again, and a removed segment counts as complete.
#[test]
fn a_disk_lacks_what_cannot_be_made_for_it_until_it_can() {
    block_on(async {
        let world = Arc::new(World::new(3, 15).await);
        let written = start(&world, code(2, 1), 1).await.expect("no panic");
        let written = written.expect("appended");
        world.disks[0].inject(FaultRule {
            kind: Some(OpKind::Write),
            name_part: "shards".to_owned(),
            skip: 0,
            times: 1,
            fault: Fault::Io,
        });
        world.store.seal_all(VOLUME).await;
        let (id, pace) = (DiskId(1), Pace::new(Arc::new(world.clock.clone()), 0));
        world.disks[0].fail_all();
        assert_eq!(world.store.make_good(id, &pace).await, 1);
        assert!(world.store.lacks_some(id));
        world
            .store
            .remove(VOLUME, segment_of(&written))
            .await
            .expect("removed");
        world.clock.advance(Duration::from_secs(30));
        assert_eq!(world.store.make_good(id, &pace).await, 0);
        assert!(!world.store.lacks_some(id));
    });
}

/// A sweep does not wait either: the volume is served meanwhile, and the shards on that disk are deleted when it
/// answers.
#[test]
fn a_sweep_passes_a_silent_disk_and_comes_back_to_it() {
    block_on(async {
        let world = Arc::new(World::new(3, 8).await);
        let written = start(&world, code(2, 1), 1).await.expect("no panic");
        drop(written.expect("appended"));
        world.store.seal_all(VOLUME).await;
        // The segments are unknown now: all shards are orphans.
        world.open_again(Vec::new()).await;
        let gate = hang(&world, 1, OpKind::Remove);
        let sweeping = world.clone();
        let sweeping = tokio::spawn(async move { sweeping.store.sweep(VOLUME).await });
        settle().await;
        assert!(!sweeping.is_finished(), "it may yet answer");
        let disk = world.store.disk(DiskId(2)).expect("there");
        disk.state().set_silent(true);
        settle().await;
        assert!(sweeping.is_finished());
        let swept = sweeping.await.expect("no panic").expect("open");
        assert_eq!((swept.shards_removed, swept.errors), (2, 1));
        gate.add_permits(1 << 20);
        disk.state().set_silent(false);
        settle().await;
        for disk in &world.disks {
            let names = disk.file_names();
            let is_shard = |name: &&String| name.starts_with("shards/");
            assert_eq!(names.iter().find(is_shard), None);
        }
    });
}

/// A volume of a million files is deleted beside clients, at the given pace. That includes files that only a listing of
/// the disks finds.
#[test]
fn a_volume_is_deleted_at_the_pace_that_it_is_given() {
    for is_known in [true, false] {
        block_on(async {
            let world = Arc::new(World::new(3, 10).await);
            let written = start(&world, code(2, 1), 1).await.expect("no panic");
            drop(written.expect("appended"));
            world.store.seal_all(VOLUME).await;
            if !is_known {
                world.store.close_volume(VOLUME);
            }
            let shards = || {
                let names = world.disks.iter().flat_map(|disk| disk.file_names());
                names.filter(|name| name.starts_with("shards/")).count()
            };
            let pace = Arc::new(Pace::new(Arc::new(world.clock.clone()), 0));
            pace.hold(true);
            let (deleting, at) = (world.clone(), pace.clone());
            let deleting =
                tokio::spawn(async move { deleting.store.remove_volume(VOLUME, &at).await });
            settle().await;
            assert_eq!(shards(), 3, "{is_known}");
            pace.hold(false);
            while !deleting.is_finished() {
                world.clock.advance(Duration::from_millis(200));
                settle().await;
            }
            assert_eq!(deleting.await.expect("no panic").errors, 0);
            assert_eq!(shards(), 0, "{is_known}");
        });
    }
}
