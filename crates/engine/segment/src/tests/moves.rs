//! Events during a move of a shard: sweeps, removals, missing disks, unverifiable bytes.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::DiskId;
use cairn_base::disk::{Disk, OpenMode};
use cairn_base::env::BoxFuture;
use cairn_testkit::{Fault, FaultRule, MemDisk, OpKind, Pace as DiskPace, Rng, TestWorld};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::world::*;
use crate::*;

pub(super) fn unpaced() -> Pace {
    Pace::new(TestWorld::new(1).env.clock, 0)
}

/// Operations on these names wait until their gate is opened.
#[derive(Default)]
struct Gates(Mutex<Vec<Gate>>);

struct Gate {
    kind: OpKind,
    name_end: &'static str,
    reached: Arc<Notify>,
    open: Arc<Notify>,
}

/// A test's handle of a gate.
struct Held {
    reached: Arc<Notify>,
    open: Arc<Notify>,
}

impl Gates {
    fn hold(&self, kind: OpKind, name_end: &'static str) -> Held {
        let held = Held {
            reached: Arc::default(),
            open: Arc::default(),
        };
        self.0.lock().push(Gate {
            kind,
            name_end,
            reached: held.reached.clone(),
            open: held.open.clone(),
        });
        held
    }
}

impl DiskPace for Gates {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let mut gates = self.0.lock();
        let at = gates
            .iter()
            .position(|gate| gate.kind == kind && name.ends_with(gate.name_end))?;
        let gate = gates.remove(at);
        Some(Box::pin(async move {
            gate.reached.notify_one();
            gate.open.notified().await;
        }))
    }
}

pub(super) fn at(info: &SegmentInfo, index: u8) -> ShardAt {
    ShardAt {
        volume: VOLUME,
        segment: info.id,
        index,
    }
}

async fn filled(disks: usize, seed: u64) -> (World, Vec<Written>, SegmentInfo) {
    let mut rng = Rng::new(seed);
    let world = World::new(disks, seed).await;
    let records = [1 << 20, 1 << 20, 300_000].map(|len| data(&mut rng, len, false, true));
    let written = world.append_ok(code(4, 2), records.to_vec()).await;
    let info = world.store.segments(VOLUME).remove(0);
    (world, written, info)
}

/// In a pool of seven, the disk without a shard of a segment of six.
fn spare_disk(info: &SegmentInfo) -> usize {
    (0..7)
        .find(|index| !info.disks.contains(&DiskId(*index as u128 + 1)))
        .expect("one is free")
}

async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// Such a disk would delay all later moves.
#[test]
fn no_move_begins_on_a_disk_that_does_not_answer_or_fails() {
    block_on(async {
        let (world, _, info) = filled(7, 21).await;
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[]).await;
        let id = DiskId(spare_disk(&info) as u128 + 1);
        let disk = cold.store.disk(id).expect("it is there");
        let info = cold.store.segments(VOLUME).remove(0);
        let refused = || async {
            let moves = [
                cold.store.move_shard(at(&info, 1), &unpaced()).await,
                cold.store
                    .move_shard_to(at(&info, 1), Some(id), &unpaced())
                    .await,
            ];
            moves
                .iter()
                .all(|moved| matches!(moved, Err(MoveError::NoTarget)))
        };
        disk.state().set_silent(true);
        assert!(refused().await && !cold.store.can_move(&info, 1));
        disk.state().set_silent(false);
        disk.state().set_failing(true);
        assert!(refused().await && !cold.store.can_move(&info, 1));
        disk.state().set_failing(false);
        assert!(cold.store.can_move(&info, 1));
        let moved = cold.store.move_shard(at(&info, 1), &unpaced()).await;
        moved.expect("moved").finish().await;
    });
}

#[test]
fn a_sweep_spares_what_a_move_publishes_meanwhile() {
    block_on(async {
        let (world, written, info) = filled(7, 20).await;
        world.store.seal_all(VOLUME).await;
        let target = spare_disk(&info);
        let cold = world.cold(&[]).await;
        let disk = cold.disks[target].clone();
        // Leftovers of crashes: two rounds of a sweep, and the shard itself from an interrupted move.
        let moved_name = format!("shards/{:08x}/{:016x}.01", VOLUME.0, info.id.0);
        let mut names: Vec<String> = (0..32)
            .map(|index| format!("shards/{:08x}/{:016x}.{index:02}", VOLUME.0, 0))
            .collect();
        names.push(moved_name.clone());
        for name in &names {
            let mode = OpenMode::CreateNew { len_bytes: 4096 };
            disk.open(name, mode).await.expect("made");
        }
        let gates = Arc::new(Gates::default());
        let first = gates.hold(OpKind::Open, "0000000000000000.00");
        let second = gates.hold(OpKind::Open, "0000000000000000.16");
        disk.pace_with(gates);
        let local = tokio::task::LocalSet::new();
        let store = cold.store.clone();
        let sweep = local.spawn_local(async move { store.sweep(VOLUME).await.expect("swept") });
        let store = cold.store.clone();
        let place = at(&info, 1);
        local
            .run_until(async move {
                first.reached.notified().await;
                // The sweep has its list of deletions; the move begins.
                let moving = tokio::task::spawn_local(async move {
                    store.move_shard(place, &unpaced()).await.expect("moved")
                });
                settle().await;
                first.open.notify_one();
                second.reached.notified().await;
                settle().await;
                second.open.notify_one();
                let moved = moving.await.expect("ended");
                sweep.await.expect("ended");
                moved.finish().await;
            })
            .await;
        assert!(disk.file_names().contains(&moved_name), "the moved shard");
        // With all six shards present, nothing must be computed.
        let again = cold.cold(&[]).await;
        again.check(&written).await;
        assert_eq!(again.store.stats().degraded_reads, 0);
    });
}

/// A hanging disk delays a sweep, and meanwhile the volume is reopened on other disks.
#[test]
fn a_sweep_spares_what_is_written_after_the_volume_was_opened_again() {
    block_on(async {
        let (world, written, _) = filled(6, 24).await;
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[]).await;
        let disk = cold.disks[3].clone();
        let gates = Arc::new(Gates::default());
        let listing = gates.hold(OpKind::List, "");
        disk.pace_with(gates);
        let local = tokio::task::LocalSet::new();
        let store = cold.store.clone();
        let sweep = local.spawn_local(async move { store.sweep(VOLUME).await.expect("swept") });
        let (swept, fresh) = local
            .run_until(async {
                listing.reached.notified().await;
                cold.store.close_volume(VOLUME);
                cold.open_again(world.store.segments(VOLUME)).await;
                let mut rng = Rng::new(25);
                let record = data(&mut rng, 1 << 20, false, true);
                let fresh = cold.append_ok(code(4, 2), vec![record]).await;
                listing.open.notify_one();
                (sweep.await.expect("ended"), fresh)
            })
            .await;
        assert_eq!(swept.shards_removed, 0);
        cold.store.seal_all(VOLUME).await;
        let again = cold.cold(&[]).await;
        again.check(&written).await;
        again.check(&fresh).await;
        assert_eq!(again.store.stats().degraded_reads, 0);
    });
}

#[test]
fn a_move_that_fails_leaves_no_file() {
    block_on(async {
        let (world, _, info) = filled(7, 21).await;
        world.store.seal_all(VOLUME).await;
        // Three of six shards are away: computing one takes four.
        let away = [0, 1, 2].map(|shard: usize| info.disks[shard].0 as usize - 1);
        let cold = world.cold(&away).await;
        let free_before = cold.store.space().free_bytes;
        let failed = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        assert!(matches!(failed.map(drop), Err(MoveError::TooFew(_))));
        let target = &cold.disks[spare_disk(&info)];
        let left: Vec<String> = target.file_names();
        assert!(
            !left.iter().any(|name| name.starts_with("rebuild/")),
            "{left:?}"
        );
        assert_eq!(cold.store.space().free_bytes, free_before);
    });
}

#[test]
fn bytes_are_given_up_only_when_every_other_disk_is_there() {
    block_on(async {
        let (world, written, info) = filled(7, 22).await;
        world.store.seal_all(VOLUME).await;
        // Wrong on the draining disk, and at present too few others to compute them.
        let (disk, file) = world.shard_file(info.id, 0);
        world.disks[disk].flip_bit(&file, 4096, 1);
        let away = [1, 2, 3].map(|shard: usize| info.disks[shard].0 as usize - 1);
        let cold = world.cold(&away).await;
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        assert!(matches!(moved.map(drop), Err(MoveError::TooFew(_))));
        // They are back: nothing was lost.
        let cold = world.cold(&[]).await;
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let moved = moved.expect("moved");
        assert_eq!(moved.lost_bytes, 0);
        moved.finish().await;
        cold.cold(&away[..2]).await.check(&written).await;
    });
}

/// The one shard of a segment without redundancy.
async fn single_copy(world: &World, len_bytes: usize) -> (Vec<Written>, SegmentInfo) {
    let mut rng = Rng::new(30);
    let lens = (0..len_bytes.div_ceil(1 << 20)).map(|at| (len_bytes - (at << 20)).min(1 << 20));
    let records = lens.map(|len| data(&mut rng, len, false, true)).collect();
    let written = world.append_ok(code(1, 0), records).await;
    (written, world.store.segments(VOLUME).remove(0))
}

/// A crash lost the length of a file: acknowledged bytes are before its end, so nothing is lost.
#[test]
fn a_single_copy_that_a_crash_cut_short_is_moved_as_it_is() {
    block_on(async {
        let world = World::new(3, 38).await;
        let (written, info) = single_copy(&world, 100 << 10).await;
        let (disk, file) = world.shard_file(info.id, 0);
        let bytes = world.disks[disk].file_bytes(&file).expect("there");
        assert!(bytes.len() as u64 > info.shard_len_bytes);
        let opened = world.disks[disk].open(&file, OpenMode::Existing).await;
        let cut = opened.expect("opened").set_len(128 << 10).await;
        cut.expect("cut short");
        let cold = world.cold(&[]).await;
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let moved = moved.expect("moved");
        assert_eq!(moved.lost_bytes, 0);
        moved.finish().await;
        cold.cold(&[]).await.check(&written).await;
    });
}

/// Its disk may have missed writes that other disks have: the copy would look complete.
#[test]
fn one_of_several_copies_that_is_cut_short_is_not_moved_as_it_is() {
    block_on(async {
        let world = World::new(4, 39).await;
        let record = data(&mut Rng::new(31), 100 << 10, false, true);
        let written = world.append_ok(code(1, 2), vec![record]).await;
        let info = world.store.segments(VOLUME).remove(0);
        let (disk, file) = world.shard_file(info.id, 0);
        let opened = world.disks[disk].open(&file, OpenMode::Existing).await;
        let cut = opened.expect("opened").set_len(32 << 10).await;
        cut.expect("cut short");
        let cold = world.cold(&[]).await;
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let moved = moved.map(drop);
        assert!(matches!(moved, Err(MoveError::Unsealed)), "{moved:?}");
        cold.cold(&[]).await.check(&written).await;
    });
}

/// A segment that is just being sealed has neither a footer nor its earlier length.
#[test]
fn a_shard_is_not_moved_while_it_is_sealed() {
    block_on(async {
        let world = World::new(3, 30).await;
        let (written, info) = single_copy(&world, 100_000).await;
        let gates = Arc::new(Gates::default());
        let cut = gates.hold(OpKind::SetLen, ".00");
        // On any disk that gets the copy.
        let made = gates.hold(OpKind::Create, ".00.0");
        for disk in &world.disks {
            disk.pace_with(gates.clone());
        }
        let place = at(&info, 0);
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let store = world.store.clone();
                let sealing = tokio::task::spawn_local(async move { store.seal_all(VOLUME).await });
                cut.reached.notified().await;
                let store = world.store.clone();
                let moving =
                    tokio::task::spawn_local(
                        async move { store.move_shard(place, &unpaced()).await },
                    );
                settle().await;
                cut.open.notify_one();
                sealing.await.expect("ended");
                made.open.notify_one();
                match moving.await.expect("ended") {
                    Ok(moved) => moved.finish().await,
                    Err(error) => assert!(matches!(error, MoveError::NotNow), "{error}"),
                }
            })
            .await;
        world.cold(&[]).await.check(&written).await;
        let moved = world.store.move_shard(place, &unpaced()).await;
        let moved = moved.expect("moved");
        assert_eq!(moved.lost_bytes, 0);
        moved.finish().await;
        world.cold(&[]).await.check(&written).await;
    });
}

/// Bytes of a single copy are lost only if their disk works and cannot read them.
#[test]
fn a_single_copy_on_a_disk_that_fails_for_now_is_not_given_up() {
    block_on(async {
        for how in ["fails", "is given up", "fails once"] {
            let world = World::new(3, 31).await;
            let (written, info) = single_copy(&world, 3 << 20).await;
            world.store.seal_all(VOLUME).await;
            let cold = world.cold(&[]).await;
            let (disk, _) = cold.shard_file(info.id, 0);
            let gates = Arc::new(Gates::default());
            // Only its footer is read by then.
            let made = gates.hold(OpKind::Create, ".00.0");
            for disk in &cold.disks {
                disk.pace_with(gates.clone());
            }
            let place = at(&info, 0);
            let local = tokio::task::LocalSet::new();
            let moved = local
                .run_until(async {
                    let store = cold.store.clone();
                    let moving = tokio::task::spawn_local(async move {
                        store.move_shard(place, &unpaced()).await
                    });
                    made.reached.notified().await;
                    let mut rule = FaultRule {
                        kind: Some(OpKind::Read),
                        name_part: "shards/".to_owned(),
                        skip: 1,
                        times: u64::MAX,
                        fault: Fault::Io,
                    };
                    match how {
                        "fails" => rule.name_part = String::new(),
                        "is given up" => cold
                            .store
                            .disk(info.disks[0])
                            .expect("there")
                            .state()
                            .fail(),
                        // The part, and its first piece.
                        _ => rule.times = 2,
                    }
                    cold.disks[disk].inject(rule);
                    made.open.notify_one();
                    moving.await.expect("ended")
                })
                .await;
            match moved {
                Ok(moved) => {
                    assert_eq!((how, moved.lost_bytes), ("fails once", 0));
                    moved.finish().await;
                }
                Err(error) => {
                    assert_ne!(how, "fails once");
                    assert!(matches!(error, MoveError::Disk(_)), "{how}: {error}");
                }
            }
            cold.disks[disk].clear_faults();
            cold.cold(&[]).await.check(&written).await;
        }
    });
}

/// Bytes that only this shard still has are not lost by one failure to open it, or to read its footer.
#[test]
fn a_shard_that_cannot_be_opened_for_now_is_not_given_up() {
    block_on(async {
        // Its footer is read in two reads.
        let cases = [(OpKind::Open, 0), (OpKind::Read, 0), (OpKind::Read, 1)];
        for ((kind, skip), times) in cases.into_iter().flat_map(|case| [(case, 1), (case, 9)]) {
            let (world, _, info) = filled(7, 38).await;
            world.store.seal_all(VOLUME).await;
            for shard in [1, 2, 3] {
                let (disk, file) = world.shard_file(info.id, shard);
                world.disks[disk].flip_bit(&file, 4096, 1);
            }
            let cold = world.cold(&[]).await;
            let (disk, file) = cold.shard_file(info.id, 0);
            let name_part = if times == 1 { file } else { String::new() };
            cold.disks[disk].inject(FaultRule {
                kind: Some(kind),
                name_part,
                skip,
                times,
                fault: Fault::Io,
            });
            let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
            match moved {
                Ok(moved) => {
                    assert_eq!(moved.lost_bytes, 0, "{kind:?} {skip} {times}");
                    moved.finish().await;
                }
                Err(error) => {
                    assert!(matches!(error, MoveError::Disk(_)), "{error}");
                    assert_eq!(times, 9, "{kind:?} {skip}");
                }
            }
            cold.disks[disk].clear_faults();
            let cold = cold.cold(&[]).await;
            let scrub = cold.store.scrub_segment(VOLUME, info.id, &unpaced()).await;
            assert_eq!(scrub.expect("scrubbed").wrong_bytes, (3 * 64) << 10);
        }
    });
}

/// Two copies, sealed. The second is wrong in its first piece: only the first one has that.
async fn one_good_copy(seed: u64) -> (World, Vec<Written>, SegmentInfo) {
    let mut rng = Rng::new(seed);
    let world = World::new(3, seed).await;
    let record = data(&mut rng, 300_000, false, true);
    let written = world.append_ok(code(1, 1), vec![record]).await;
    world.store.seal_all(VOLUME).await;
    let info = world.store.segments(VOLUME).remove(0);
    let (disk, file) = world.shard_file(info.id, 1);
    world.disks[disk].flip_bit(&file, 4096, 1);
    let cold = world.cold(&[]).await;
    (cold, written, info)
}

/// A bad sector under the footer does not affect the bytes before it.
#[test]
fn a_shard_whose_footer_alone_cannot_be_read_is_kept() {
    block_on(async {
        let (cold, written, info) = one_good_copy(39).await;
        let (disk, file) = cold.shard_file(info.id, 0);
        cold.disks[disk].inject(FaultRule {
            kind: Some(OpKind::Read),
            name_part: file,
            skip: 0,
            // Its trailer, at the first request and at the retry.
            times: 2,
            fault: Fault::Io,
        });
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        moved.expect("moved").finish().await;
        cold.disks[disk].clear_faults();
        cold.check(&written).await;
        cold.cold(&[]).await.check(&written).await;
    });
}

/// Readers get the readable bytes of such a disk; a move would delete them.
#[test]
fn what_only_a_failed_disk_may_have_is_left_to_the_records() {
    block_on(async {
        let (cold, written, info) = one_good_copy(40).await;
        let disk = cold.store.disk(info.disks[0]).expect("there");
        disk.state().fail();
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let moved = moved.map(|moved| moved.lost_bytes);
        assert!(matches!(moved, Err(MoveError::Unsealed)), "{moved:?}");
        cold.check(&written).await;
        // After its removal from the pool it is of no use to any reader.
        cold.store.disk_forget(disk.id());
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        assert_eq!(moved.expect("moved").lost_bytes, 64 << 10);
    });
}

#[test]
fn what_was_given_up_can_be_repaired_when_it_is_found() {
    block_on(async {
        let (world, written, info) = filled(7, 24).await;
        world.store.seal_all(VOLUME).await;
        // Three pieces at one place are wrong; then one of them turns out right after all (a cable).
        for shard in 0..3 {
            let (disk, file) = world.shard_file(info.id, shard);
            world.disks[disk].flip_bit(&file, 4096, 1);
        }
        let cold = world.cold(&[]).await;
        let moved = cold.store.move_shard(at(&info, 1), &unpaced()).await;
        let moved = moved.expect("moved");
        assert_eq!(moved.lost_bytes, 64 << 10);
        moved.finish().await;
        let (disk, file) = cold.shard_file(info.id, 0);
        cold.disks[disk].flip_bit(&file, 4096, 1);
        let cold = cold.cold(&[]).await;
        let scrub = cold.store.scrub_segment(VOLUME, info.id, &unpaced()).await;
        let scrub = scrub.expect("scrubbed");
        assert_eq!(
            (scrub.wrong_bytes, scrub.repaired_bytes),
            (128 << 10, 128 << 10)
        );
        let away = [0, 3].map(|shard: usize| info.disks[shard].0 as usize - 1);
        cold.cold(&away).await.check(&written).await;
    });
}

#[test]
fn a_removal_does_not_wait_for_a_slow_move() {
    block_on(async {
        let (world, _, info) = filled(7, 25).await;
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[]).await;
        let clock = TestWorld::new(2);
        clock.clock.advance(Duration::from_secs(10));
        let slow = Pace::new(clock.env.clock.clone(), 1);
        let local = tokio::task::LocalSet::new();
        let store = cold.store.clone();
        let place = at(&info, 0);
        let moving =
            local.spawn_local(async move { store.move_shard(place, &slow).await.map(drop) });
        let store = cold.store.clone();
        let id = info.id;
        let removing = local.spawn_local(async move { store.remove(VOLUME, id).await });
        local
            .run_until(async move {
                for _ in 0..100_000 {
                    if removing.is_finished() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                assert!(removing.is_finished(), "the removal waits");
                removing.await.expect("ended").expect("removed");
                clock.clock.advance(Duration::from_secs(1 << 24));
                for _ in 0..100_000 {
                    if moving.is_finished() {
                        break;
                    }
                    clock.clock.advance(Duration::from_secs(1));
                    tokio::task::yield_now().await;
                }
                let moved = moving.await.expect("ended");
                assert!(matches!(moved, Err(MoveError::NotNow)));
            })
            .await;
        let left: Vec<String> = cold
            .disks
            .iter()
            .flat_map(|disk| disk.file_names())
            .collect();
        let is_data = |name: &&String| name.starts_with("shards/") || name.starts_with("rebuild/");
        assert_eq!(left.iter().filter(is_data).count(), 0, "{left:?}");
    });
}

#[test]
fn nothing_is_computed_from_bytes_that_nobody_vouches_for() {
    block_on(async {
        // Not sealed, as a crash leaves it, with a wrong bit that no footer shows.
        let (world, written, info) = filled(7, 26).await;
        let (disk, file) = world.shard_file(info.id, 0);
        world.disks[disk].flip_bit(&file, 4096, 1);
        let lost = info.disks[4].0 as usize - 1;
        let cold = world.cold(&[lost]).await;
        let moved = cold.store.move_shard(at(&info, 4), &unpaced()).await;
        assert!(moved.is_err(), "parity was computed from a wrong bit");
        cold.check(&written).await;
        // The shard exists, and can be copied unchanged.
        let cold = world.cold(&[]).await;
        let moved = cold.store.move_shard(at(&info, 4), &unpaced()).await;
        moved.expect("moved").finish().await;
    });
}

/// The shard's own footer is unreadable, so nothing verifies its bytes.
#[test]
fn a_shard_whose_footer_is_damaged_is_computed_from_those_that_are_vouched_for() {
    block_on(async {
        let (world, written, info) = filled(7, 33).await;
        world.store.seal_all(VOLUME).await;
        let (disk, file) = world.shard_file(info.id, 0);
        let before = world.disks[disk].file_bytes(&file).expect("there");
        let trailer = before.len() as u64 - 4096;
        world.disks[disk].flip_bit(&file, trailer + 10, 1);
        world.disks[disk].flip_bit(&file, 4096, 1);
        let cold = world.cold(&[]).await;
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let moved = moved.expect("moved");
        assert_eq!(moved.lost_bytes, 0);
        moved.finish().await;
        let (disk, file) = cold.shard_file(info.id, 0);
        let after = cold.disks[disk].file_bytes(&file).expect("there");
        assert!(after == before, "as it was before the damage");
        let scrub = cold.store.scrub_segment(VOLUME, info.id, &unpaced()).await;
        let scrub = scrub.expect("scrubbed");
        assert_eq!((scrub.segments_inconsistent, scrub.wrong_bytes), (0, 0));
        cold.check(&written).await;
    });
}

/// As before, and three of the others are wrong at that place: the shard's bytes may be right, but must not count as
/// verified.
#[test]
fn bytes_that_nobody_vouches_for_are_kept_and_not_taken_for_good() {
    block_on(async {
        let (world, written, info) = filled(7, 34).await;
        world.store.seal_all(VOLUME).await;
        for shard in 1..4 {
            let (disk, file) = world.shard_file(info.id, shard);
            world.disks[disk].flip_bit(&file, 4096, 1);
        }
        let (disk, file) = world.shard_file(info.id, 0);
        let before = world.disks[disk].file_bytes(&file).expect("there");
        world.disks[disk].flip_bit(&file, before.len() as u64 - 4096 + 10, 1);
        let cold = world.cold(&[]).await;
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let moved = moved.expect("moved");
        assert_eq!(moved.lost_bytes, 64 << 10);
        moved.finish().await;
        let (disk, file) = cold.shard_file(info.id, 0);
        let after = cold.disks[disk].file_bytes(&file).expect("there");
        let data = 0..64 << 10;
        assert!(after[data.clone()] == before[data], "kept");
        let scrub = cold.store.scrub_segment(VOLUME, info.id, &unpaced()).await;
        let scrub = scrub.expect("scrubbed");
        assert_eq!(
            (scrub.wrong_bytes, scrub.repaired_bytes),
            ((4 * 64) << 10, 0)
        );
        // The records show it: those on this shard alone are read.
        let results = written.iter().map(|each| cold.read_all(each));
        let results = futures_util::future::join_all(results).await;
        assert!(results.iter().any(Result::is_ok));
    });
}

/// A crash came between the footers. Too few are left to compute a shard, although nothing is lost.
#[test]
fn a_segment_that_is_half_sealed_is_left_to_its_records() {
    block_on(async {
        for away in [&[][..], &[0], &[0, 5]] {
            let (world, written, info) = filled(7, 35).await;
            world.store.seal_all(VOLUME).await;
            for shard in 0..3 {
                let (disk, file) = world.shard_file(info.id, shard);
                let len = world.disks[disk].file_bytes(&file).expect("there").len();
                world.disks[disk].flip_bit(&file, len as u64 - 4096 + 10, 1);
            }
            let away: Vec<usize> = away
                .iter()
                .map(|shard: &usize| info.disks[*shard].0 as usize - 1)
                .collect();
            let cold = world.cold(&away).await;
            let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
            let moved = moved.map(drop);
            assert!(matches!(moved, Err(MoveError::Unsealed)), "{away:?}");
            let named = cold.store.unsealed(VOLUME, &unpaced()).await;
            assert_eq!(named.expect("named"), [info.id], "{away:?}");
            cold.check(&written).await;
        }
    });
}

/// The metadata may name the new file or the old one: both stay until it is asked.
#[test]
fn a_move_whose_end_is_not_known_keeps_both_files() {
    block_on(async {
        for is_committed in [true, false] {
            let world = World::new(2, 36).await;
            let (written, before) = single_copy(&world, 100_000).await;
            world.store.seal_all(VOLUME).await;
            let place = at(&before, 0);
            let moved = world.store.move_shard(place, &unpaced()).await;
            let moved = moved.expect("moved");
            let after = moved.info();
            drop(moved);
            let again = world.store.move_shard(place, &unpaced()).await;
            assert!(matches!(again.map(drop), Err(MoveError::NotNow)));
            let swept = world.store.sweep(VOLUME).await.expect("swept");
            assert_eq!(swept.shards_removed, 0);
            let known = world.store.segments(VOLUME).remove(0);
            let known = if is_committed { after } else { known };
            let again = world.restart(world.disks.clone(), &[], vec![known]).await;
            let swept = again.store.sweep(VOLUME).await.expect("swept");
            assert_eq!(swept.shards_removed, 1);
            again.check(&written).await;
            // The shard can be moved again.
            let moved = again.store.move_shard(place, &unpaced()).await;
            moved.expect("moved").finish().await;
            again.cold(&[]).await.check(&written).await;
        }
    });
}

/// Operations never end.
struct Never;

impl DiskPace for Never {
    fn pause(&self, _kind: OpKind, _name: &str) -> Option<BoxFuture<()>> {
        Some(Box::pin(std::future::pending()))
    }
}

/// Its files are deleted after the next start, even those of unknown segments.
#[test]
fn nothing_is_deleted_on_a_disk_that_has_failed() {
    block_on(async {
        let (world, _, info) = filled(7, 40).await;
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[]).await;
        let fail = |disk: DiskId| {
            cold.store.disk(disk).expect("there").state().fail();
            cold.disks[disk.0 as usize - 1].pace_with(Arc::new(Never));
        };
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let moved = moved.expect("moved");
        let after = moved.info();
        fail(info.disks[0]);
        moved.finish().now_or_never().expect("does not wait");
        assert_eq!(cold.store.segment(VOLUME, info.id), Some(after));
        fail(info.disks[1]);
        let removed = cold.store.remove(VOLUME, info.id).now_or_never();
        removed.expect("does not wait").expect("removed");
        let swept = cold
            .store
            .remove_volume(VOLUME, &Arc::new(unpaced()))
            .now_or_never();
        assert_eq!(swept.expect("does not wait").errors, 2);

        let again = cold.disks.iter().map(|disk| disk.snapshot());
        let again = again.map(|disk| MemDisk::from_snapshot(&disk)).collect();
        let again = world.restart(again, &[], Vec::new()).await;
        let swept = again.store.sweep(VOLUME).await.expect("swept");
        assert_eq!((swept.shards_removed, swept.errors), (2, 0));
    });
}

#[test]
fn what_was_moved_in_vain_stays_on_a_disk_that_has_failed() {
    block_on(async {
        let (world, written, info) = filled(7, 41).await;
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[]).await;
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let target = spare_disk(&info);
        let failed = cold.store.disk(DiskId(target as u128 + 1)).expect("there");
        failed.state().fail();
        cold.disks[target].pace_with(Arc::new(Never));
        let abandoned = moved.expect("moved").abandon().now_or_never();
        abandoned.expect("does not wait");
        cold.check(&written).await;

        let again = cold.disks.iter().map(|disk| disk.snapshot());
        let again = again.map(|disk| MemDisk::from_snapshot(&disk)).collect();
        let again = world.restart(again, &[], vec![info]).await;
        let swept = again.store.sweep(VOLUME).await.expect("swept");
        assert_eq!((swept.shards_removed, swept.errors), (1, 0));
        again.check(&written).await;
    });
}

#[test]
fn a_disk_that_leaves_waits_for_segments_being_made() {
    block_on(async {
        let world = World::new(3, 27).await;
        let gates = Arc::new(Gates::default());
        // The first file of the first segment, on any disk.
        let held = gates.hold(OpKind::Create, "0000000000000001.00");
        for disk in &world.disks {
            disk.pace_with(gates.clone());
        }
        let mut rng = Rng::new(27);
        let record = world.encode(vec![data(&mut rng, 5000, false, true)], Compression::None);
        let local = tokio::task::LocalSet::new();
        let store = world.store.clone();
        let appending = local.spawn_local(async move {
            let done = store.append(VOLUME, code(1, 0), Stream::Mixed, vec![record]);
            done.await.expect("appended")
        });
        let store = world.store.clone();
        local
            .run_until(async move {
                held.reached.notified().await;
                let on = store.segments(VOLUME).remove(0).disks[0];
                store.disk_draining(on, true);
                let waiting = store.clone();
                let done = tokio::task::spawn_local(async move { waiting.placements_done().await });
                settle().await;
                assert!(!done.is_finished());
                held.open.notify_one();
                done.await.expect("ended");
                let appended = appending.await.expect("ended");
                // Its disks are known now; the removal of the disk sees it.
                let known = store.segments(VOLUME);
                assert!(known.iter().any(|info| info.disks.contains(&on)));
                assert_eq!(appended.segments.len(), 1);
            })
            .await;
    });
}

/// A scrub was about to read a shard that then moved: it used to count the shard as lost.
#[test]
fn a_shard_that_moves_beside_a_scrub_is_not_wrong() {
    block_on(async {
        let (world, written, info) = filled(7, 60).await;
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[]).await;
        let volume = cold.store.volume(VOLUME).expect("open");
        let segment = volume.segment(info.id).expect("there");
        let alone = segment.repair.lock().await;
        let pace = unpaced();
        let mut scrub = Box::pin(cold.store.scrub_segment(VOLUME, info.id, &pace));
        for _ in 0..100 {
            assert!(futures_util::poll!(&mut scrub).is_pending());
            tokio::task::yield_now().await;
        }
        let moved = cold.store.move_shard(at(&info, 1), &unpaced()).await;
        moved.expect("moved").finish().await;
        drop(alone);
        let scrub = scrub.await.expect("scrubbed");
        assert_eq!((scrub.wrong_bytes, scrub.repaired_bytes), (0, 0));
        assert!(!scrub.needs_rewrite());
        assert_eq!(cold.store.stats().repairs_failed, 0);
        cold.check(&written).await;
    });
}
