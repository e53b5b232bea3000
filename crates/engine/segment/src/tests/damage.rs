//! Lost disks and corrupt bytes: a read returns the written bytes and repairs them, or fails; it never returns others.

use std::sync::Arc;

use cairn_base::DiskId;
use cairn_base::disk::{Disk, OpenMode};
use cairn_base::env::BoxFuture;
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::{Fault, FaultRule, OpKind, Pace as DiskPace, Rng, TestWorld};
use futures_util::future::join_all;
use proptest::prelude::*;
use tokio::sync::Semaphore;

use super::world::*;
use crate::*;

fn unpaced() -> Pace {
    Pace::new(TestWorld::new(1).env.clock, 0)
}

/// Records of many sizes, including 1 MiB.
async fn fill(world: &World, n: u8, m: u8, rng: &mut Rng) -> Vec<Written> {
    let mut all = Vec::new();
    for batch in [
        &[1 << 20, 1 << 20, 1 << 20, 1 << 20][..],
        &[300, 70_000, 5_000],
        &[200_000],
    ] {
        for compression in [Compression::None, Compression::Lz4] {
            let records = batch
                .iter()
                .map(|len| {
                    (
                        data(rng, *len, compression != Compression::None, true),
                        compression,
                    )
                })
                .collect();
            all.extend(
                world
                    .append(code(n, m), Stream::Mixed, records)
                    .await
                    .expect("appended"),
            );
        }
    }
    all
}

fn fail_reads(times: u64) -> FaultRule {
    FaultRule {
        kind: Some(OpKind::Read),
        name_part: "shards/".to_owned(),
        skip: 0,
        times,
        fault: Fault::Io,
    }
}

#[derive(Clone, Copy, Debug)]
enum Harm {
    Away,
    Failing,
    Flipped,
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![Just(Harm::Away), Just(Harm::Failing), Just(Harm::Flipped)]
}

/// Flips bits in every 4 KiB block of every shard of a disk: every read there is wrong.
fn flip_everywhere(world: &World, disk: usize, rng: &mut Rng) {
    for name in world.disks[disk].file_names() {
        if !name.starts_with("shards/") {
            continue;
        }
        // The data of these tests is within the first 20 MiB.
        for block in 0..(4 << 20) / 4096 {
            world.disks[disk].flip_bit(&name, block * 4096 + rng.below(4096), rng.below(8) as u8);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn any_losses_within_the_code_are_served_and_repaired(
        pick in 0..6_usize, seed in any::<u32>(), harms in prop::collection::vec(harm(), 2), fewer in any::<bool>(),
    ) {
        block_on(async {
            let (n, m) = [(1, 1), (1, 2), (2, 2), (3, 2), (4, 2), (16, 2)][pick];
            let mut rng = Rng::new(u64::from(seed));
            let disks = usize::from(n + m);
            let world = World::with_capacity(disks, 512 << 20, u64::from(seed)).await;
            let written = fill(&world, n, m, &mut rng).await;
            let lost_count = usize::from(m) - usize::from(fewer && m > 1);
            let mut lost: Vec<usize> = (0..disks).collect();
            while lost.len() > lost_count {
                lost.swap_remove(rng.below(lost.len() as u64) as usize);
            }
            let harmed: Vec<(usize, Harm)> = lost.into_iter().zip(harms).collect();
            let away: Vec<usize> = harmed.iter().filter(|(_, harm)| matches!(harm, Harm::Away)).map(|(disk, _)| *disk).collect();
            let cold = world.cold(&away).await;
            for (disk, harm) in &harmed {
                match harm {
                    Harm::Away => {}
                    Harm::Failing => cold.disks[*disk].inject(fail_reads(u64::MAX)),
                    Harm::Flipped => flip_everywhere(&cold, *disk, &mut rng),
                }
            }
            for each in &written {
                let len = each.data.len() as u64;
                let start = rng.below(len);
                let end = (start + 1 + rng.below(50_000)).min(len);
                let got = cold.read(each, start as u32..end as u32).await.expect("small read");
                assert!(got == each.data[start as usize..end as usize]);
                cold.store.repairs_done().await;
            }
            cold.check(&written).await;
            cold.store.repairs_done().await;
            assert_eq!(cold.store.stats().damaged_reads, 0);

            // Read once more from the disks, one record at a time so that no repair is skipped...
            for (disk, _) in &harmed {
                cold.disks[*disk].clear_faults();
            }
            let healing = world.cold(&away).await;
            for each in &written {
                healing.check(std::slice::from_ref(each)).await;
                healing.store.repairs_done().await;
            }
            // ... and now everything on the present disks is right.
            let healed = world.cold(&away).await;
            healed.check(&written).await;
            assert_eq!(healed.store.stats().checksum_errors, 0);
            if away.is_empty() {
                assert_eq!(healed.store.stats().degraded_reads, 0);
            }
        });
    }

    #[test]
    fn more_losses_give_an_error_and_never_other_bytes(
        pick in 0..5_usize, seed in any::<u32>(), harms in prop::collection::vec(harm(), 3),
    ) {
        block_on(async {
            let (n, m) = [(1, 0), (1, 1), (2, 2), (4, 2), (16, 2)][pick];
            let mut rng = Rng::new(u64::from(seed));
            let disks = usize::from(n + m);
            let world = World::with_capacity(disks, 512 << 20, u64::from(seed)).await;
            let written = fill(&world, n, m, &mut rng).await;
            let mut lost: Vec<usize> = (0..disks).collect();
            while lost.len() > usize::from(m) + 1 {
                lost.swap_remove(rng.below(lost.len() as u64) as usize);
            }
            let harmed: Vec<(usize, Harm)> = lost.into_iter().zip(harms).collect();
            let away: Vec<usize> = harmed.iter().filter(|(_, harm)| matches!(harm, Harm::Away)).map(|(disk, _)| *disk).collect();
            let cold = world.cold(&away).await;
            for (disk, harm) in &harmed {
                match harm {
                    Harm::Away => {}
                    Harm::Failing => cold.disks[*disk].inject(fail_reads(u64::MAX)),
                    Harm::Flipped => flip_everywhere(&cold, *disk, &mut rng),
                }
            }
            // One more than the code survives is lost: the disks that may come back decide.
            let want = match away.is_empty() {
                true => ErrorKind::Damaged,
                false => ErrorKind::Unreachable,
            };
            let mut failed = 0;
            for each in &written {
                let location = &each.pointer.location;
                let disks = &cold.store.segment(VOLUME, location.segment).expect("known").disks;
                let intact = crate::layout::pieces(location, 0..location.len_bytes).iter().all(|piece| {
                    let disk = disks[usize::from(piece.shard)].0 as usize - 1;
                    harmed.iter().all(|(other, _)| *other != disk)
                });
                match cold.read_all(each).await {
                    // All shards of a record may be present.
                    Ok(bytes) => assert!(bytes == each.data),
                    Err(error) => {
                        assert!(!intact, "what lies on good disks is served");
                        assert_eq!(error.kind(), want, "{error}");
                        failed += 1;
                    }
                }
            }
            assert!(failed > 0);
            let stats = cold.store.stats();
            let counted = (stats.damaged_reads, stats.unreachable_reads);
            match want {
                ErrorKind::Damaged => assert_eq!(counted, (failed, 0)),
                _ => assert_eq!(counted, (0, failed)),
            }
        });
    }

    #[test]
    fn one_bit_anywhere_is_repaired(pick in 0..5_usize, seed in any::<u32>()) {
        block_on(async {
            let (n, m) = [(1, 1), (1, 2), (2, 2), (3, 2), (4, 2)][pick];
            let mut rng = Rng::new(u64::from(seed));
            let world = World::new(usize::from(n + m), u64::from(seed)).await;
            let written = fill(&world, n, m, &mut rng).await;
            let victim = &written[rng.below(written.len() as u64) as usize].pointer.location;
            let at = victim.offset_bytes + rng.below(u64::from(victim.len_bytes)) as u32;
            let shard = (at / victim.unit_len_bytes()) as u8;
            let (disk, file) = world.shard_file(victim.segment, shard);
            let offset = victim.stripe_offset_bytes() + u64::from(at % victim.unit_len_bytes());
            let before = world.disks[disk].file_bytes(&file).expect("file");
            world.disks[disk].flip_bit(&file, offset, rng.below(8) as u8);
            let cold = world.cold(&[]).await;
            cold.check(&written).await;
            cold.store.repairs_done().await;
            let stats = cold.store.stats();
            assert_eq!((stats.checksum_errors, stats.repairs, stats.repairs_failed), (1, 1, 0));
            assert!(world.disks[disk].file_bytes(&file).expect("file") == before, "as it was");
            let errors: Vec<u64> = cold.store.disk_status().iter().map(|disk| disk.checksum_errors).collect();
            assert_eq!(errors.iter().sum::<u64>(), 1);
            assert_eq!(errors[disk], 1, "the right disk is blamed");
        });
    }
}

/// Corruption counts until the place is readable again, or gone.
#[test]
fn places_that_can_be_read_again_are_not_damaged_any_more() {
    block_on(async {
        let world = World::new(3, 5).await;
        let mut rng = Rng::new(5);
        let records = (0..3)
            .map(|_| data(&mut rng, 1 << 16, false, true))
            .collect();
        let written = world.append_ok(code(1, 2), records).await;
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[]).await;
        let places = || cold.store.damaged_places();
        for disk in &cold.disks {
            disk.inject(fail_reads(u64::MAX));
        }
        for _ in 0..2 {
            for each in &written {
                let error = cold.read_all(each).await.expect_err("no disk reads");
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            }
        }
        assert_eq!((places(), cold.store.stats().damaged_reads), (3, 6));
        cold.store.check_damaged_places().await;
        assert_eq!(places(), 3, "they still cannot be read");
        cold.disks.iter().for_each(|disk| disk.clear_faults());
        cold.store.check_damaged_places().await;
        assert_eq!(places(), 0);
        assert_eq!(
            cold.store.stats().damaged_reads,
            6,
            "that they were counts on"
        );
    });
}

/// `Damaged` is the error only if no disk of the pool, present or absent, can provide the bytes.
#[test]
fn what_absent_disks_may_have_is_not_damaged() {
    #[derive(Clone, Copy, PartialEq)]
    enum Gone {
        Missing,
        Forgotten,
        Unreadable,
    }
    use Gone::*;
    let cases: &[(&[Gone], ErrorKind)] = &[
        (&[Missing, Missing, Missing], ErrorKind::Unreachable),
        (&[Unreadable, Unreadable, Missing], ErrorKind::Unreachable),
        (&[Forgotten, Forgotten, Missing], ErrorKind::Unreachable),
        (&[Forgotten, Unreadable, Missing], ErrorKind::Unreachable),
        // Even with all of them back there would be too few.
        (
            &[Forgotten, Forgotten, Unreadable, Missing],
            ErrorKind::Damaged,
        ),
        (
            &[Unreadable, Unreadable, Unreadable, Missing],
            ErrorKind::Damaged,
        ),
        (&[Forgotten, Forgotten, Forgotten], ErrorKind::Damaged),
        (&[Unreadable, Unreadable, Unreadable], ErrorKind::Damaged),
    ];
    for (gone, want) in cases {
        block_on(async {
            let world = World::new(6, 3).await;
            let mut rng = Rng::new(1);
            let records = vec![data(&mut rng, 1 << 20, false, true)];
            let written = world.append_ok(code(4, 2), records).await;
            world.store.seal_all(VOLUME).await;
            let missing: Vec<usize> = (0..gone.len())
                .filter(|disk| matches!(gone[*disk], Missing | Forgotten))
                .collect();
            let cold = world.cold(&missing).await;
            for (disk, how) in gone.iter().enumerate() {
                let id = DiskId(disk as u128 + 1);
                match how {
                    Missing => {}
                    Forgotten => cold.store.disk_forget(id),
                    Unreadable => cold.disks[disk].inject(fail_reads(u64::MAX)),
                }
            }
            let error = cold.read_all(&written[0]).await.expect_err("too few");
            assert_eq!(error.kind(), *want, "{error}");
            let stats = cold.store.stats();
            let is_damaged = *want == ErrorKind::Damaged;
            assert_eq!(
                (stats.damaged_reads, stats.unreachable_reads),
                (u64::from(is_damaged), u64::from(!is_damaged)),
            );
            // With all disks back, everything can be read.
            world.disks.iter().for_each(|disk| disk.clear_faults());
            world.cold(&[]).await.check(&written).await;
        });
    }
}

/// A read of half a record fetches the whole record at once, and returns its intact part even if the rest is corrupt.
#[test]
fn damage_costs_no_more_than_the_part_that_it_is_in() {
    block_on(async {
        const PART: u32 = CHECKSUM_GRANULE_BYTES;
        let world = World::new(1, 7).await;
        let record = data(&mut Rng::new(7), 4 * PART as usize, false, true);
        let [written] = &world.append_ok(code(1, 0), vec![record]).await[..] else {
            panic!("one record")
        };
        let location = &written.pointer.location;
        let (disk, file) = world.shard_file(location.segment, 0);
        let offset = location.stripe_offset_bytes() + u64::from(location.offset_bytes);
        world.disks[disk].flip_bit(&file, offset + u64::from(PART) + 100, 3);
        let cases = [
            (0..4, false),
            (0..2, false),
            (1..2, false),
            (2..4, true),
            (0..1, true),
            (3..4, true),
        ];
        for (parts, is_well) in cases {
            let range = parts.start * PART..parts.end * PART;
            // The caches are empty.
            let got = world.cold(&[]).await.read(written, range.clone()).await;
            match got {
                Ok(bytes) => {
                    assert!(is_well, "{parts:?}");
                    assert!(bytes == written.data[range.start as usize..range.end as usize]);
                }
                Err(error) => {
                    assert!(!is_well, "{parts:?}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Damaged, "{parts:?}");
                }
            }
        }
    });
}

#[test]
fn a_stripe_without_two_disks_is_read_once() {
    block_on(async {
        let world = World::new(6, 3).await;
        let mut rng = Rng::new(1);
        let records = (0..8)
            .map(|_| data(&mut rng, 1 << 20, false, true))
            .collect();
        let written = world.append_ok(code(4, 2), records).await;
        let (first, _) = world.shard_file(written[0].pointer.location.segment, 0);
        let (second, _) = world.shard_file(written[0].pointer.location.segment, 1);
        let cold = world.cold(&[first, second]).await;
        let reads = join_all(written.iter().map(|each| cold.read_all(each))).await;
        for (got, each) in reads.into_iter().zip(&written) {
            assert!(got.expect("read") == each.data);
        }
        let stats = cold.store.stats();
        // Each stripe once: any four units.
        assert_eq!(stats.disk_read_bytes, 8 << 20);
        assert_eq!(stats.degraded_reads, 8);
    });
}

/// Two records share a block and are repaired in parallel. Each repair reads the block, replaces its record and writes
/// the block, so one could undo the other.
#[test]
fn repairs_of_one_block_do_not_undo_each_other() {
    for seed in 0..40 {
        block_on(async {
            let mut rng = Rng::new(seed);
            let world = World::new(2, seed).await;
            let records = [300, 300].map(|len| data(&mut rng, len, false, false));
            let written = world.append_ok(code(1, 1), records.to_vec()).await;
            let cold = world.cold(&[]).await;
            let segment = written[0].pointer.location.segment;
            let (bad, name) = cold.shard_file(segment, 0);
            for each in &written {
                let location = &each.pointer.location;
                let at = location.stripe_offset_bytes() + u64::from(location.offset_bytes);
                cold.disks[bad].flip_bit(&name, at + 7, 3);
            }
            cold.disks[bad].yield_at_random(seed, 4);
            let reads = written.iter().map(|each| cold.read_all(each));
            for (each, read) in written.iter().zip(join_all(reads).await) {
                assert!(read.expect("read") == each.data);
            }
            cold.store.repairs_done().await;
            assert_eq!(cold.store.stats().repairs, 2, "seed {seed}");
            let alone = cold.cold(&[1 - bad]).await;
            for each in &written {
                let read = alone.read_all(each).await;
                assert!(read.expect("repaired") == each.data, "seed {seed}");
            }
        });
    }
}

/// A disk returns wrong bytes now and then. A repair reads the neighbouring record to write the block: that record must
/// not become wrong for good.
#[test]
fn a_repair_does_not_write_what_the_disk_gives_of_the_record_beside() {
    block_on(async {
        let mut rng = Rng::new(1);
        let world = World::new(3, 1).await;
        let records = [300, 300].map(|len| data(&mut rng, len, false, false));
        let written = world.append_ok(code(1, 2), records.to_vec()).await;
        let cold = world.cold(&[]).await;
        let segment = written[0].pointer.location.segment;
        let (bad, name) = cold.shard_file(segment, 0);
        let flip = |record: usize, times| FaultRule {
            kind: Some(OpKind::Read),
            name_part: name.clone(),
            skip: 0,
            times,
            fault: Fault::FlipRead {
                bit: u64::from(written[record].pointer.location.offset_bytes + 7) * 8,
            },
        };
        // The wanted bytes, by themselves and with all shards; then the bytes around them.
        cold.disks[bad].inject(flip(0, 2));
        cold.disks[bad].inject(flip(1, 2));
        let read = cold.read_all(&written[0]).await;
        assert!(read.expect("read") == written[0].data);
        cold.store.repairs_done().await;
        assert_eq!(cold.store.stats().repairs, 1);
        cold.disks[bad].clear_faults();
        let others: Vec<usize> = (0..3).filter(|disk| *disk != bad).collect();
        let alone = cold.cold(&others).await;
        for each in &written {
            let read = alone.read_all(each).await;
            assert!(read.expect("as it was") == each.data);
        }
    });
}

/// As above, with a scrub instead of the second repair.
#[test]
fn a_repair_and_a_scrub_of_one_block_do_not_undo_each_other() {
    for seed in 0..100 {
        block_on(async {
            let mut rng = Rng::new(seed);
            let world = World::new(2, seed).await;
            let records = [300, 300].map(|len| data(&mut rng, len, false, false));
            let written = world.append_ok(code(1, 1), records.to_vec()).await;
            world.store.seal_all(VOLUME).await;
            let cold = world.cold(&[]).await;
            let segment = written[0].pointer.location.segment;
            let (bad, name) = cold.shard_file(segment, 0);
            for each in &written {
                let location = &each.pointer.location;
                let at = location.stripe_offset_bytes() + u64::from(location.offset_bytes);
                cold.disks[bad].flip_bit(&name, at + 7, 3);
            }
            cold.disks[bad].yield_at_random(seed, 4);
            // Each is a task of its own, like the repair: otherwise the repair would run between two turns of the
            // scrub.
            let store = cold.store.clone();
            let scrub = tokio::spawn(async move {
                let pace = unpaced();
                store.scrub_segment(VOLUME, segment, &pace).await
            });
            let (store, pointer) = (cold.store.clone(), written[0].pointer.clone());
            let read = tokio::spawn(async move { store.read(VOLUME, &pointer, 0..300).await });
            let read = read.await.expect("no panic").expect("read");
            assert!(read.concat() == written[0].data);
            scrub.await.expect("no panic").expect("scrubbed");
            cold.store.repairs_done().await;
            let alone = cold.cold(&[1 - bad]).await;
            for each in &written {
                let read = alone.read_all(each).await;
                assert!(read.expect("repaired") == each.data, "seed {seed}");
            }
        });
    }
}

/// Reads of a shard wait until the gate opens.
struct ReadGate(Arc<Semaphore>);

impl DiskPace for ReadGate {
    fn pause(&self, kind: OpKind, name: &str) -> Option<BoxFuture<()>> {
        let gate = self.0.clone();
        let waits = kind == OpKind::Read && name.starts_with("shards/");
        waits.then(|| {
            let pass = async move { drop(gate.acquire().await) };
            Box::pin(pass) as BoxFuture<()>
        })
    }
}

/// Reads wait for an unresponsive disk only if there is no other way.
#[test]
fn reads_do_not_wait_for_a_silent_disk() {
    block_on(async {
        for (n, m) in [(4, 2), (1, 1), (1, 0)] {
            let mut rng = Rng::new(8);
            let world = World::new(usize::from(n + m), 8).await;
            let all = fill(&world, n, m, &mut rng).await;
            let cold = world.cold(&[]).await;
            let gate = Arc::new(Semaphore::new(0));
            cold.disks[0].pace_with(Arc::new(ReadGate(gate.clone())));
            let disk = cold.store.disk(DiskId(1)).expect("a disk");
            let (store, known) = (cold.store.clone(), all.clone());
            let reader = tokio::spawn(async move {
                for each in known {
                    let whole = 0..each.data.len() as u32;
                    let read = store.read(VOLUME, &each.pointer, whole).await;
                    assert!(read.expect("read").concat() == each.data);
                }
            });
            let has_ended = async || {
                for _ in 0..10_000 {
                    tokio::task::yield_now().await;
                }
                reader.is_finished()
            };
            assert!(
                !has_ended().await,
                "{n}+{m}: it has not been silent for long"
            );
            disk.state().set_silent(true);
            assert_eq!(has_ended().await, m > 0, "{n}+{m}");
            gate.add_permits(1);
            disk.state().set_silent(false);
            reader.await.expect("no panic");
            assert_eq!(cold.store.stats().damaged_reads, 0);
        }
    });
}

/// This also holds if another shard is wrong, as long as the others are enough.
#[test]
fn wrong_bytes_are_recovered_without_a_silent_disk() {
    block_on(async {
        for silent in [1, 5] {
            let world = World::new(6, 9).await;
            let record = data(&mut Rng::new(9), 1 << 20, false, true);
            let written = world.append_ok(code(4, 2), vec![record]).await.remove(0);
            world.store.seal_all(VOLUME).await;
            let info = world.store.segments(VOLUME).remove(0);
            let (disk, file) = world.shard_file(info.id, 0);
            world.disks[disk].flip_bit(&file, 4096, 1);
            let cold = world.cold(&[]).await;
            let gate = Arc::new(Semaphore::new(0));
            let (disk, _) = cold.shard_file(info.id, silent);
            cold.disks[disk].pace_with(Arc::new(ReadGate(gate)));
            let disk = info.disks[usize::from(silent)];
            cold.store
                .disk(disk)
                .expect("there")
                .state()
                .set_silent(true);
            let store = cold.store.clone();
            let reader = tokio::spawn(async move {
                let read = store.read(VOLUME, &written.pointer, 0..1 << 20).await;
                assert!(read.expect("read").concat() == written.data);
            });
            for _ in 0..10_000 {
                tokio::task::yield_now().await;
            }
            assert!(reader.is_finished(), "{silent}");
            reader.await.expect("no panic");
        }
    });
}

#[test]
fn writes_go_around_failing_disks() {
    block_on(async {
        let kinds = [
            OpKind::Create,
            OpKind::Write,
            OpKind::Sync,
            OpKind::SyncFolder,
        ];
        for kind in kinds {
            for fault in [Fault::Io, Fault::Full] {
                for failing in 1..=2 {
                    let world = World::new(6, 3).await;
                    let mut rng = Rng::new(1);
                    let mut written = world
                        .append_ok(code(4, 2), vec![data(&mut rng, 50_000, false, true)])
                        .await;
                    for disk in &world.disks[..failing] {
                        disk.inject(FaultRule {
                            kind: Some(kind),
                            name_part: "shards".to_owned(),
                            skip: 0,
                            times: u64::MAX,
                            fault,
                        });
                    }
                    for _ in 0..3 {
                        // A new stream each time, so that segments are created, too.
                        let records =
                            vec![(data(&mut rng, 50_000, false, true), Compression::None)];
                        let stream = Stream::File(written.len() as u64);
                        written.extend(
                            world
                                .append(code(4, 2), stream, records)
                                .await
                                .expect("goes around"),
                        );
                    }
                    for disk in &world.disks[..failing] {
                        disk.clear_faults();
                    }
                    world.store.seal_all(VOLUME).await;
                    let last = world
                        .store
                        .segment(VOLUME, written[3].pointer.location.segment)
                        .expect("known");
                    assert_eq!(
                        (last.code.data(), last.code.parity()),
                        (4 - failing as u8, 2),
                        "{kind:?} {fault:?}"
                    );
                    let cold = world.cold(&[0, 1]).await;
                    cold.check(&written).await;
                }
            }
        }
    });
}

#[test]
fn all_disks_failing_is_an_error_and_passes() {
    block_on(async {
        let world = World::new(3, 3).await;
        let mut rng = Rng::new(1);
        let mut written = world
            .append_ok(code(1, 2), vec![data(&mut rng, 5_000, false, true)])
            .await;
        for disk in &world.disks {
            disk.inject(FaultRule {
                kind: Some(OpKind::Write),
                // Includes shards that were recycled meanwhile.
                name_part: String::new(),
                skip: 0,
                times: u64::MAX,
                fault: Fault::Io,
            });
        }
        let records = vec![(data(&mut rng, 5_000, false, true), Compression::None)];
        let got = world.append(code(1, 2), Stream::Mixed, records).await;
        assert!(got.is_err());
        world.check(&written).await;
        for disk in &world.disks {
            disk.clear_faults();
        }
        written.extend(
            world
                .append_ok(code(1, 2), vec![data(&mut rng, 5_000, false, true)])
                .await,
        );
        world.check(&written).await;
        // Segments without acknowledged records are not left behind.
        world.store.seal_all(VOLUME).await;
        assert_eq!(world.store.segments(VOLUME).len(), 2);
    });
}

#[test]
fn a_pool_without_a_disk_that_works_is_not_full() {
    block_on(async {
        for how in ["fail", "leave"] {
            let world = World::new(3, 3).await;
            for disk in [1, 2, 3].map(DiskId) {
                match how {
                    "fail" => world.store.disk(disk).expect("there").state().fail(),
                    _ => world.store.disk_draining(disk, true),
                }
            }
            let record = vec![(vec![7; 10_000].into(), Compression::None)];
            let refused = world.append(code(1, 2), Stream::Mixed, record).await;
            let kind = refused.err().map(|error| error.kind());
            let want = match how {
                "fail" => ErrorKind::Io,
                _ => ErrorKind::NoSpace,
            };
            assert_eq!(kind, Some(want), "{how}");
        }
    });
}

#[test]
fn a_pool_started_without_disks_writes_narrower() {
    block_on(async {
        let world = World::new(6, 3).await;
        let mut rng = Rng::new(1);
        let cases: &[(&[usize], (u8, u8))] = &[
            (&[], (4, 2)),
            (&[0, 5], (2, 2)),
            (&[0, 1, 2], (1, 2)),
            (&[0, 1, 2, 3], (1, 1)),
            (&[0, 1, 2, 3, 4], (1, 0)),
        ];
        for (away, want) in cases {
            let cold = world.cold(away).await;
            assert_eq!(
                cold.store.default_code(),
                code(4, 2),
                "the code of the pool does not change"
            );
            let written = cold
                .append_ok(code(4, 2), vec![data(&mut rng, 50_000, false, true)])
                .await;
            let info = cold
                .store
                .segment(VOLUME, written[0].pointer.location.segment)
                .expect("known");
            assert_eq!((info.code.data(), info.code.parity()), *want, "{away:?}");
            cold.check(&written).await;
        }
    });
}

#[test]
fn a_shard_whose_file_is_gone_is_rebuilt() {
    block_on(async {
        let mut rng = Rng::new(11);
        // Sealed, and cut off by a crash before that. A lost parity shard is noticed when a data shard is away, and is
        // then rebuilt from the rest.
        let cases = [true, false].map(|sealed| (0..5_u8).map(move |index| (sealed, index)));
        for (sealed, index) in cases.into_iter().flatten() {
            let world = World::new(6, u64::from(index)).await;
            let written = fill(&world, 4, 2, &mut rng).await;
            let segment = written[0].pointer.location.segment;
            if sealed {
                world.store.seal_all(VOLUME).await;
            }
            let disk_of = |shard| world.shard_file(segment, shard).0;
            let (disk, file) = world.shard_file(segment, index);
            let before = world.disks[disk].file_bytes(&file).expect("there");
            let away = if index < 4 { vec![] } else { vec![disk_of(0)] };
            let cold = world.cold(&away).await;
            cold.disks[disk].remove(&file).await.expect("removed");
            cold.check(&written).await;
            cold.store.repairs_done().await;
            let stats = cold.store.stats();
            assert_eq!((stats.checksum_errors, stats.repairs), (0, 0));
            if !sealed {
                // The others cannot be verified: a scrub has the records rewritten.
                assert_eq!((stats.rebuilds, stats.rebuilds_failed), (0, 1), "{index}");
                let unsealed = cold.store.unsealed(VOLUME, &unpaced()).await;
                assert!(unsealed.expect("named").contains(&segment));
                continue;
            }
            assert_eq!((stats.rebuilds, stats.rebuilds_failed), (1, 0), "{index}");
            let rebuilt = cold.disks[disk].file_bytes(&file).expect("there again");
            assert!(rebuilt == before, "shard {index}, sealed {sealed}");
            // It is as good as the previous one: two others may be lost now.
            let lost = [(index + 1) % 4, (index + 2) % 4].map(disk_of);
            cold.cold(&lost).await.check(&written).await;
        }
    });
}

/// A check of the file system may leave such a file. It used to fault the disk, which is not at fault.
#[test]
fn a_shard_that_is_cut_short_is_rebuilt_and_its_disk_is_fine() {
    block_on(async {
        // Sealed, and cut off by a crash before that.
        let cases = [true, false].map(|sealed| (0..3_u8).map(move |index| (sealed, index)));
        for (sealed, index) in cases.into_iter().flatten() {
            let mut rng = Rng::new(12);
            let world = World::new(3, u64::from(index)).await;
            let records = (0..64).map(|_| data(&mut rng, 64 << 10, false, true));
            let written = world.append_ok(code(2, 1), records.collect()).await;
            let segment = written[0].pointer.location.segment;
            if sealed {
                world.store.seal_all(VOLUME).await;
            }
            let (disk, file) = world.shard_file(segment, index);
            let before = world.disks[disk].file_bytes(&file).expect("there");
            // Lost parity is noticed when a disk with data is away, and then too little is left to rebuild it.
            let first = world.shard_file(segment, 0).0;
            let away = if index < 2 { vec![] } else { vec![first] };
            let cold = world.cold(&away).await;
            let opened = cold.disks[disk].open(&file, OpenMode::Existing).await;
            opened.expect("there").set_len(100_000).await.expect("cut");
            let mut refused = 0;
            for each in &written {
                match cold.read_all(each).await {
                    Ok(bytes) => assert!(bytes == each.data),
                    Err(_) => refused += 1,
                }
            }
            cold.store.repairs_done().await;
            assert_eq!(refused > 0, index == 2, "{refused}");
            let status = cold.store.disk_status();
            assert!(status.iter().all(|disk| disk.read_errors == 0));
            let blamed: Vec<bool> = status.iter().map(|disk| disk.checksum_errors > 0).collect();
            let want = (0..3).map(|other| other == disk);
            assert_eq!(blamed, want.collect::<Vec<bool>>());
            let after = cold.disks[disk].file_bytes(&file).expect("there");
            let is_rebuilt = sealed && index < 2;
            assert_eq!(cold.store.stats().rebuilds, u64::from(is_rebuilt));
            // The others cannot be verified, or they are too few.
            assert!(is_rebuilt || after.len() == 100_000, "shard {index}");
            if is_rebuilt {
                let footer_of = |bytes: &[u8]| cairn_shard::decode_footer(bytes).expect("sealed");
                let footer = footer_of(&before);
                assert_eq!(footer_of(&after), footer);
                let len = footer.data_len_bytes as usize;
                assert!(after[..len] == before[..len], "shard {index}");
                let again = cold.cold(&[]).await;
                again.check(&written).await;
                assert_eq!(again.store.stats().degraded_reads, 0);
            }
        }
    });
}

/// A pointer may be wrong. A shard with the length that the others imply is left alone.
#[test]
fn a_shard_that_is_asked_for_what_is_behind_its_end_is_not_rebuilt() {
    block_on(async {
        let mut rng = Rng::new(13);
        let world = World::new(3, 1).await;
        let record = data(&mut rng, 64 << 10, false, true);
        let mut written = world.append_ok(code(2, 1), vec![record]).await;
        world.store.seal_all(VOLUME).await;
        // According to the metadata, not all of its shards could be cut behind their footers.
        let mut known = world.store.segments(VOLUME);
        known[0].shard_len_bytes = 8 << 20;
        let cold = world.restart(world.disks.clone(), &[], known).await;
        written[0].pointer.location.stripe_block += 1000;
        for _ in 0..3 {
            assert!(cold.read_all(&written[0]).await.is_err());
            cold.store.repairs_done().await;
        }
        assert_eq!(cold.store.stats().rebuilds, 0);
    });
}

#[test]
fn footers_name_the_term_that_wrote_them() {
    block_on(async {
        let world = World::new(3, 1).await;
        let written = fill(&world, 2, 1, &mut Rng::new(1)).await;
        world.store.seal_all(VOLUME).await;
        let (disk, file) = world.shard_file(written[0].pointer.location.segment, 2);
        let bytes = world.disks[disk].file_bytes(&file).expect("there");
        let footer = cairn_shard::decode_footer(&bytes).expect("a footer");
        assert_eq!(footer.epoch, EPOCH);
    });
}

/// A disk without space for a shard works. Data written without it would silently have less protection than wanted.
#[test]
fn a_full_disk_is_no_reason_for_fewer_copies() {
    block_on(async {
        let world = World::new(3, 1).await;
        world.disks[0].inject(FaultRule {
            kind: Some(OpKind::Create),
            name_part: "shards/".to_owned(),
            skip: 0,
            times: u64::MAX,
            fault: Fault::Full,
        });
        let record = || vec![(vec![7; 10_000].into(), Compression::None)];
        let refused = world.append(code(1, 2), Stream::Mixed, record()).await;
        assert!(matches!(refused, Err(SegmentError::NoSpace { .. })));
        world.disks[0].clear_faults();
        let written = world
            .append_ok(code(1, 2), vec![vec![7; 10_000].into()])
            .await;
        let segment = written[0].pointer.location.segment;
        let info = world.store.segment(VOLUME, segment).expect("known");
        assert_eq!((info.code.data(), info.code.parity()), (1, 2));
    });
}

/// One failed write does not fault a disk. With two disks, or three and two parities, no other disk can replace it, and
/// data written without it would have less protection than wanted.
#[test]
fn one_error_is_no_reason_for_fewer_copies() {
    block_on(async {
        let kinds = [
            OpKind::Create,
            OpKind::Write,
            OpKind::Sync,
            OpKind::SyncFolder,
        ];
        for (n, m) in [(1, 2), (1, 1), (2, 1)] {
            for kind in kinds {
                let mut rng = Rng::new(1);
                let world = World::new(usize::from(n + m), 1).await;
                world.disks[0].inject(FaultRule {
                    kind: Some(kind),
                    name_part: "shards".to_owned(),
                    skip: 0,
                    times: 1,
                    fault: Fault::Io,
                });
                let record = data(&mut rng, 50_000, false, true);
                let written = world.append_ok(code(n, m), vec![record]).await;
                let segment = written[0].pointer.location.segment;
                let info = world.store.segment(VOLUME, segment).expect("known");
                assert_eq!(info.code.parity(), m, "{n}+{m}, {kind:?}");
                let away: Vec<usize> = (0..usize::from(m)).collect();
                world.cold(&away).await.check(&written).await;
            }
        }
    });
}

/// Lack of room during a write counts like lack of room when the file is created.
#[test]
fn a_disk_that_is_full_when_it_is_written_to_is_no_reason_for_fewer_copies() {
    block_on(async {
        for kind in [OpKind::Write, OpKind::Sync, OpKind::SyncFolder] {
            let world = World::new(3, 1).await;
            world.disks[0].inject(FaultRule {
                kind: Some(kind),
                name_part: "shards".to_owned(),
                skip: 0,
                times: u64::MAX,
                fault: Fault::Full,
            });
            let record = vec![(vec![7; 10_000].into(), Compression::None)];
            let refused = world.append(code(1, 2), Stream::Mixed, record).await;
            assert!(
                matches!(refused, Err(SegmentError::NoSpace { .. })),
                "{kind:?}"
            );
        }
    });
}

/// A disk of a world at `index` as a restart, or an operator, brings it back: it is faulted after as few consecutive
/// errors as real ones.
async fn join_again(world: &World, index: usize) -> Arc<ShardDisk> {
    let disk: Arc<dyn Disk> = world.disks[index].clone();
    let joined = ShardDisk::open(disk, POOL, ShardSettings::default()).await;
    let joined = joined.expect("opened");
    world.store.disk_join(joined.clone());
    joined
}

#[test]
fn a_disk_that_is_back_is_used_by_the_next_append() {
    block_on(async {
        let mut rng = Rng::new(1);
        let world = World::new(3, 1).await;
        let mut parity_of_next = async |stream| {
            let records = vec![(data(&mut rng, 5_000, false, true), Compression::None)];
            let written = world.append(code(1, 2), stream, records).await;
            let segment = written.expect("appended")[0].pointer.location.segment;
            let info = world.store.segment(VOLUME, segment).expect("known");
            info.code.parity()
        };
        world.store.disk(DiskId(1)).expect("a disk").state().fail();
        assert_eq!(parity_of_next(Stream::Mixed).await, 1);
        assert_eq!(parity_of_next(Stream::File(1)).await, 1);
        join_again(&world, 0).await;
        assert_eq!(parity_of_next(Stream::Mixed).await, 2);
        assert_eq!(parity_of_next(Stream::File(1)).await, 2);
        // A segment with sufficient protection stays in use.
        assert_eq!(parity_of_next(Stream::Mixed).await, 2);
        assert_eq!(world.store.stats().segments_created, 4);
    });
}

#[test]
fn a_disk_that_fails_again_and_again_is_left_out_once_it_counts_as_failed() {
    block_on(async {
        let mut rng = Rng::new(1);
        let world = World::new(3, 1).await;
        let failing = join_again(&world, 0).await;
        let mut written = world
            .append_ok(code(1, 2), vec![data(&mut rng, 5_000, false, true)])
            .await;
        world.disks[0].fail_all();
        for _ in 0..2 {
            let record = data(&mut rng, 5_000, false, true);
            written.extend(world.append_ok(code(1, 2), vec![record]).await);
        }
        assert!(failing.is_avoided());
        let parities: Vec<u8> = written
            .iter()
            .map(|each| world.store.segment(VOLUME, each.pointer.location.segment))
            .map(|info| info.expect("known").code.parity())
            .collect();
        assert_eq!(parities, [2, 1, 1]);
        world.cold(&[0, 1]).await.check(&written).await;
    });
}

#[test]
fn a_rebuild_that_fails_is_not_tried_at_every_read() {
    block_on(async {
        let mut rng = Rng::new(12);
        let world = World::new(6, 1).await;
        let written = fill(&world, 4, 2, &mut rng).await;
        world.store.seal_all(VOLUME).await;
        let segment = written[0].pointer.location.segment;
        let (disk, file) = world.shard_file(segment, 0);
        let cold = world.cold(&[]).await;
        cold.disks[disk].remove(&file).await.expect("removed");
        cold.disks[disk].inject(FaultRule {
            kind: Some(OpKind::Write),
            name_part: "rebuild/".to_owned(),
            skip: 0,
            times: u64::MAX,
            fault: Fault::Full,
        });
        for _ in 0..3 {
            cold.check(&written).await;
            cold.store.repairs_done().await;
        }
        let stats = cold.store.stats();
        assert_eq!((stats.rebuilds, stats.rebuilds_failed), (0, 1));
        assert!(cold.disks[disk].file_bytes(&file).is_none());
    });
}

/// The disks have no room: reads of a read-only volume work around corruption, and nothing on the disks changes.
#[test]
fn what_is_opened_to_be_read_is_not_repaired() {
    block_on(async {
        let mut rng = Rng::new(1);
        let world = World::new(3, 2).await;
        let records = (0..8).map(|_| data(&mut rng, 4096, false, true));
        let written = world.append_ok(code(1, 2), records.collect()).await;
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[]).await;
        let bad = &written[3].pointer.location;
        let (flipped, name) = cold.shard_file(bad.segment, 0);
        let at = bad.stripe_offset_bytes() + u64::from(bad.offset_bytes);
        cold.disks[flipped].flip_bit(&name, at + 100, 3);
        let (disk, file) = cold.shard_file(bad.segment, 1);
        cold.disks[disk].remove(&file).await.expect("removed");
        let segments = cold.store.segments(VOLUME);
        cold.store.close_volume(VOLUME);
        let allocate = || -> cairn_base::SegmentId { panic!("nothing is written") };
        cold.store
            .open_volume_to_read(VOLUME, EPOCH, None, Arc::new(allocate), segments);
        let files = || -> Vec<(String, Option<Vec<u8>>)> {
            let disks = cold.disks.iter();
            let of_disk = |disk: &Arc<cairn_testkit::MemDisk>| {
                let names = disk.file_names().into_iter();
                let files = names.map(|name| {
                    let bytes = disk.file_bytes(&name);
                    (name, bytes)
                });
                files.collect::<Vec<_>>()
            };
            disks.flat_map(of_disk).collect()
        };
        let before = files();
        for _ in 0..2 {
            cold.check(&written).await;
            cold.store.repairs_done().await;
        }
        let scrubbed = cold
            .store
            .scrub_segment(VOLUME, bad.segment, &unpaced())
            .await;
        assert!(matches!(scrubbed, Err(SegmentError::VolumeClosed { .. })));
        assert!(files() == before);
        let stats = cold.store.stats();
        assert_eq!((stats.repairs, stats.rebuilds), (0, 0));
    });
}
