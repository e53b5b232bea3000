//! Scrub finds and repairs corrupt shards; moves leave no moment without a copy.

use cairn_base::DiskId;
use cairn_base::disk::{Disk, OpenMode};
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::{Fault, FaultRule, MemDisk, OpKind, Rng, TestWorld};
use futures_util::future::join;
use proptest::prelude::*;

use super::world::*;
use crate::*;

fn unpaced() -> Pace {
    Pace::new(TestWorld::new(1).env.clock, 0)
}

async fn fill(world: &World, n: u8, m: u8, rng: &mut Rng) -> Vec<Written> {
    let mut all = Vec::new();
    for batch in [&[1 << 20, 1 << 20, 70_000][..], &[300, 5_000, 200_000]] {
        let records = batch
            .iter()
            .map(|len| data(rng, *len, false, true))
            .collect();
        all.extend(world.append_ok(code(n, m), records).await);
    }
    all
}

/// Enough data that a footer takes less than the reserved room: only the footer shows where the data ends.
async fn fill_much(world: &World, rng: &mut Rng) -> Vec<Written> {
    let mut all = Vec::new();
    for _ in 0..5 {
        all.extend(fill(world, 4, 2, rng).await);
    }
    all
}

async fn scrub_all(world: &World) -> SegmentScrub {
    let mut all = SegmentScrub::default();
    for segment in world.store.segments(VOLUME) {
        all += world
            .store
            .scrub_segment(VOLUME, segment.id, &unpaced())
            .await
            .expect("scrubbed");
    }
    all
}

/// All files on the disks below `shards/`, by name.
fn shard_files(world: &World) -> Vec<(usize, String, Vec<u8>)> {
    let mut files = Vec::new();
    for (index, disk) in world.disks.iter().enumerate() {
        for name in disk.file_names() {
            if name.starts_with("shards/") {
                let bytes = disk.file_bytes(&name).expect("there");
                files.push((index, name, bytes));
            }
        }
    }
    files.sort();
    files
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Bits flipped anywhere in the shards of up to M disks, footers included; some files deleted.
    #[test]
    fn scrub_makes_shards_what_they_were(
        pick in 0..4_usize, seed in any::<u32>(), flips in 1..40_usize, gone in any::<bool>(),
    ) {
        block_on(async {
            let (n, m) = [(1, 1), (1, 2), (2, 2), (4, 2)][pick];
            let mut rng = Rng::new(u64::from(seed));
            let world = World::new(usize::from(n + m), u64::from(seed)).await;
            let written = fill(&world, n, m, &mut rng).await;
            world.store.seal_all(VOLUME).await;
            let before = shard_files(&world);
            let first = rng.below(u64::from(n + m)) as usize;
            let harmed: Vec<usize> = (0..usize::from(m)).map(|i| (first + i) % usize::from(n + m)).collect();
            for disk in &harmed {
                let files: Vec<_> = before.iter().filter(|(on, ..)| on == disk).collect();
                for _ in 0..flips {
                    let (_, name, bytes) = files[rng.below(files.len() as u64) as usize];
                    world.disks[*disk].flip_bit(name, rng.below(bytes.len() as u64), rng.below(8) as u8);
                }
                if gone && rng.coin() {
                    let (_, name, _) = files[rng.below(files.len() as u64) as usize];
                    world.disks[*disk].remove(name).await.expect("removed");
                }
            }
            let cold = world.cold(&[]).await;
            let scrub = scrub_all(&cold).await;
            assert_eq!(scrub.wrong_bytes, scrub.repaired_bytes);
            assert_eq!((scrub.shards_away, scrub.segments_unsealed), (0, 0));
            // Unused bytes of a footer are not checked, so only the others are compared.
            let again = scrub_all(&cold.cold(&[]).await).await;
            assert_eq!((again.wrong_bytes, again.shards_sealed, again.shards_rebuilt), (0, 0, 0));
            // Any M disks may be lost now: those that were not harmed.
            let others: Vec<usize> = (0..usize::from(n + m)).filter(|disk| !harmed.contains(disk)).take(usize::from(m)).collect();
            let cold = cold.cold(&others).await;
            cold.check(&written).await;
            assert_eq!(cold.store.stats().checksum_errors, 0);
        });
    }
}

#[test]
fn scrub_says_what_it_cannot_repair() {
    block_on(async {
        let mut rng = Rng::new(5);
        let world = World::new(6, 5).await;
        let written = fill(&world, 4, 2, &mut rng).await;
        world.store.seal_all(VOLUME).await;
        let segment = written[0].pointer.location.segment;
        for shard in 0..3 {
            let (disk, file) = world.shard_file(segment, shard);
            world.disks[disk].flip_bit(&file, 4096, 1);
        }
        let cold = world.cold(&[]).await;
        let scrub = scrub_all(&cold).await;
        assert_eq!(
            (scrub.wrong_bytes, scrub.repaired_bytes),
            ((3 * 64) << 10, 0)
        );
        let (bad, good): (Vec<_>, Vec<_>) = {
            let mut results = Vec::new();
            for each in &written {
                results.push((cold.store.verify(VOLUME, &each.pointer).await, each));
            }
            results.into_iter().partition(|(result, _)| result.is_err())
        };
        assert!(!bad.is_empty() && !good.is_empty());
        for (result, each) in bad {
            assert_eq!(result.expect_err("bad").kind(), ErrorKind::Damaged);
            let read = cold.read_all(each).await;
            assert_eq!(read.expect_err("bad").kind(), ErrorKind::Damaged);
        }
    });
}

#[test]
fn a_record_is_verified_on_the_disk_and_repaired() {
    block_on(async {
        let mut rng = Rng::new(6);
        let world = World::new(6, 6).await;
        let written = fill(&world, 4, 2, &mut rng).await;
        // Not sealed, so that only the pointers can verify it; and cached, which must not help.
        world.check(&written).await;
        let (disk, file) = world.shard_file(written[0].pointer.location.segment, 0);
        world.disks[disk].flip_bit(&file, 10, 1);
        for each in &written {
            world
                .store
                .verify(VOLUME, &each.pointer)
                .await
                .expect("repaired");
        }
        assert_eq!(world.store.stats().repairs, 1);
        let scrub = scrub_all(&world).await;
        assert_eq!((scrub.shards, scrub.segments_unsealed), (0, 1));
    });
}

#[test]
fn parity_that_was_computed_from_something_else_is_found() {
    block_on(async {
        let mut rng = Rng::new(11);
        let world = World::new(6, 11).await;
        let written = fill(&world, 4, 2, &mut rng).await;
        world.store.seal_all(VOLUME).await;
        let info = world.store.segments(VOLUME).remove(0);
        let cold = world.cold(&[]).await;
        let disk = cold.store.disk(info.disks[5]).expect("there");
        let name = cairn_shard::ShardName {
            volume: VOLUME,
            segment: info.id,
            index: 5,
        };
        let stat = disk.stat(name).await.expect("there");
        let mut footer = stat.footer.expect("read").expect("sealed");
        let piece = data(&mut rng, 64 << 10, false, true);
        footer.checksums[1] = cairn_base::crc32c(&piece);
        let write = cairn_shard::ShardWrite {
            offset: 64 << 10,
            parts: vec![piece],
        };
        let repaired = disk.repair(EPOCH, name, vec![write]).await;
        repaired.expect("written");
        disk.seal(EPOCH, footer).await.expect("sealed");
        let scrub = scrub_all(&cold).await;
        assert_eq!((scrub.segments_inconsistent, scrub.repaired_bytes), (1, 0));
        assert_eq!(scrub.wrong_bytes, 64 << 10);
        cold.check(&written).await;
    });
}

#[test]
fn a_shard_whose_footer_is_damaged_is_repaired_and_sealed_again() {
    block_on(async {
        // In the trailer: its magic, the bytes after that, all of it unreadable; the body before it.
        for harm in ["magic", "field", "unreadable", "body"] {
            let mut rng = Rng::new(13);
            let world = World::new(6, 13).await;
            let written = fill_much(&world, &mut rng).await;
            world.store.seal_all(VOLUME).await;
            let before = shard_files(&world);
            let segment = written[0].pointer.location.segment;
            let (disk, file) = world.shard_file(segment, 0);
            let len = world.disks[disk].file_bytes(&file).expect("there").len() as u64;
            let cold = world.cold(&[]).await;
            let disk = &cold.disks[disk];
            match harm {
                "magic" => disk.flip_bit(&file, len - 4096 + 3, 1),
                "field" => disk.flip_bit(&file, len - 4096 + 10, 1),
                "body" => disk.flip_bit(&file, len - 8192 + 10, 1),
                _ => {
                    // For the footer; and after the three parts, to find the end of the data.
                    for skip in [0, 3] {
                        disk.inject(FaultRule {
                            kind: Some(OpKind::Read),
                            name_part: file.clone(),
                            skip,
                            times: 1,
                            fault: Fault::Io,
                        });
                    }
                }
            }
            // The data's last block: only the footer showed its place.
            disk.flip_bit(&file, len - 8192 - 100, 1);
            let scrub = scrub_all(&cold).await;
            // The last piece is a short one.
            let wrong = (len - 8192) % (64 << 10);
            assert_eq!(
                (scrub.wrong_bytes, scrub.repaired_bytes),
                (wrong, wrong),
                "{harm}"
            );
            assert_eq!(scrub.shards_sealed, 1, "{harm}");
            assert!(shard_files(&cold) == before, "{harm}");
            let again = scrub_all(&cold.cold(&[]).await).await;
            assert_eq!((again.wrong_bytes, again.shards_sealed), (0, 0), "{harm}");
        }
    });
}

#[test]
fn a_read_repairs_a_shard_whose_footer_is_damaged() {
    block_on(async {
        let mut rng = Rng::new(14);
        let world = World::new(6, 14).await;
        let written = fill_much(&world, &mut rng).await;
        world.store.seal_all(VOLUME).await;
        let (disk, file) = world.shard_file(written[0].pointer.location.segment, 0);
        let len = world.disks[disk].file_bytes(&file).expect("there").len() as u64;
        world.disks[disk].flip_bit(&file, len - 4096 + 10, 1);
        // Behind the data are a block of the summary, the body of the footer and its trailer.
        world.disks[disk].flip_bit(&file, len - 3 * 4096 - 100, 1);
        let cold = world.cold(&[]).await;
        cold.check(&written).await;
        cold.store.repairs_done().await;
        let stats = cold.store.stats();
        assert_eq!((stats.repairs, stats.repairs_failed), (1, 0));
    });
}

/// As a check of the file system leaves it: the file exists, and ends before its stripes do.
#[test]
fn a_shard_that_was_cut_short_is_made_anew() {
    block_on(async {
        for with_others in [true, false] {
            let mut rng = Rng::new(15);
            let world = World::new(6, 15).await;
            let written = fill_much(&world, &mut rng).await;
            world.store.seal_all(VOLUME).await;
            let before = shard_files(&world);
            let segment = written[0].pointer.location.segment;
            let (disk, file) = world.shard_file(segment, 0);
            let short = world.disks[disk].open(&file, OpenMode::Existing).await;
            let short = short.expect("there");
            short.set_len(100 << 10).await.expect("cut");
            let away: Vec<usize> = match with_others {
                true => Vec::new(),
                // The rest of it may be the only copy.
                false => (1..4)
                    .map(|shard| world.shard_file(segment, shard).0)
                    .collect(),
            };
            let cold = world.cold(&away).await;
            let scrub = scrub_all(&cold).await;
            if !with_others {
                assert_eq!(scrub.shards_rebuilt, 0);
                let left = cold.disks[disk].file_bytes(&file).expect("kept");
                let (.., whole) = before
                    .iter()
                    .find(|(_, name, _)| *name == file)
                    .expect("it");
                assert!(left[..64 << 10] == whole[..64 << 10]);
                continue;
            }
            assert_eq!((scrub.wrong_bytes, scrub.shards_rebuilt), (0, 1));
            // It may have more room before its footer than the previous one.
            for ((_, name, bytes), (_, _, was)) in shard_files(&cold).iter().zip(&before) {
                let footer = cairn_shard::decode_footer(bytes).expect("a footer");
                assert_eq!(
                    Ok(&footer),
                    cairn_shard::decode_footer(was).as_ref(),
                    "{name}"
                );
                let data = ..footer.data_len_bytes as usize;
                assert!(bytes[data] == was[data], "{name}");
            }
            let again = scrub_all(&cold.cold(&[]).await).await;
            assert_eq!((again.wrong_bytes, again.shards_rebuilt), (0, 0));
        }
    });
}

#[test]
fn segments_without_footers_are_named() {
    block_on(async {
        let mut rng = Rng::new(12);
        let world = World::new(6, 12).await;
        fill(&world, 4, 2, &mut rng).await;
        let open = world.store.segments(VOLUME);
        let named = world.store.unsealed(VOLUME, &unpaced()).await;
        assert_eq!(named, Ok(Vec::new()), "open segments are no concern");
        let cold = world.cold(&[]).await;
        let named = cold
            .store
            .unsealed(VOLUME, &unpaced())
            .await
            .expect("named");
        assert_eq!(named.len(), open.len());
        world.store.seal_all(VOLUME).await;
        let cold = world.cold(&[]).await;
        assert_eq!(
            cold.store.unsealed(VOLUME, &unpaced()).await,
            Ok(Vec::new())
        );
    });
}

/// Moves every shard on `from`; returns the number of lost bytes.
async fn move_off(world: &World, from: DiskId) -> Result<u64, MoveError> {
    let mut lost_bytes = 0;
    for info in world.store.segments(VOLUME) {
        let Some(index) = info.disks.iter().position(|disk| *disk == from) else {
            continue;
        };
        let at = ShardAt {
            volume: VOLUME,
            segment: info.id,
            index: index as u8,
        };
        let moved = world.store.move_shard(at, &unpaced()).await?;
        lost_bytes += moved.lost_bytes;
        assert!(!moved.info().disks.contains(&from));
        moved.finish().await;
    }
    Ok(lost_bytes)
}

#[test]
fn shards_move_off_a_disk_that_leaves() {
    block_on(async {
        // Present and readable; failing every read; missing since the start.
        for how in ["draining", "failing", "away"] {
            for sealed in [true, false] {
                let mut rng = Rng::new(7);
                let world = World::new(8, 7).await;
                let mut written = fill(&world, 4, 2, &mut rng).await;
                if sealed {
                    world.store.seal_all(VOLUME).await;
                }
                let from = world.store.segments(VOLUME)[0].disks[1];
                let index = from.0 as usize - 1;
                let away: &[usize] = if how == "away" { &[index] } else { &[] };
                let cold = world.cold(away).await;
                if how == "failing" {
                    cold.disks[index].inject(FaultRule {
                        kind: Some(OpKind::Read),
                        name_part: "shards/".to_owned(),
                        skip: 0,
                        times: u64::MAX,
                        fault: Fault::Io,
                    });
                }
                cold.store.disk_draining(from, true);
                if how != "draining" && !sealed {
                    // Nothing verifies the bytes that it would be computed from.
                    let moved = move_off(&cold, from).await;
                    assert!(
                        matches!(moved, Err(MoveError::Unsealed)),
                        "{how}: {moved:?}"
                    );
                    cold.check(&written).await;
                    continue;
                }
                assert_eq!(move_off(&cold, from).await.expect("moved"), 0, "{how}");
                cold.store.disk_forget(from);
                cold.check(&written).await;
                let new = cold
                    .append_ok(code(4, 2), vec![data(&mut rng, 50_000, false, true)])
                    .await;
                written.extend(new);
                let segments = cold.store.segments(VOLUME);
                assert!(segments.iter().all(|info| !info.disks.contains(&from)));
                cold.store.seal_all(VOLUME).await;
                assert_eq!(scrub_all(&cold).await.wrong_bytes, 0);
                // Without it and any two others.
                let others: Vec<usize> = [index, (index + 1) % 8, (index + 4) % 8].into();
                cold.cold(&others).await.check(&written).await;
            }
        }
    });
}

#[test]
fn a_move_that_is_not_finished_changes_nothing() {
    block_on(async {
        let mut rng = Rng::new(8);
        let world = World::new(7, 8).await;
        let written = fill(&world, 4, 2, &mut rng).await;
        world.store.seal_all(VOLUME).await;
        let before = shard_files(&world);
        let info = world.store.segments(VOLUME).remove(0);
        let at = ShardAt {
            volume: VOLUME,
            segment: info.id,
            index: 0,
        };
        let moved = world.store.move_shard(at, &unpaced()).await.expect("made");
        let again = world.store.move_shard(at, &unpaced()).await;
        assert!(matches!(again.map(drop), Err(MoveError::NotNow)));
        assert_eq!(shard_files(&world).len(), before.len() + 1);
        // A sweep meanwhile keeps the new file. After the move was dropped, a sweep keeps it until the metadata is
        // known.
        let swept = world.store.sweep(VOLUME).await.expect("swept");
        assert_eq!(swept.shards_removed, 0);
        drop(moved);
        let swept = world.store.sweep(VOLUME).await.expect("swept");
        assert_eq!(swept.shards_removed, 0);
        world.open_again(world.store.segments(VOLUME)).await;
        let swept = world.store.sweep(VOLUME).await.expect("swept");
        assert_eq!(swept.shards_removed, 1);
        assert!(shard_files(&world) == before);
        // A move that is known to have failed needs no sweep.
        let moved = world.store.move_shard(at, &unpaced()).await.expect("made");
        moved.abandon().await;
        assert!(shard_files(&world) == before);
        world.cold(&[]).await.check(&written).await;
    });
}

#[test]
fn there_may_be_nowhere_to_move_to() {
    block_on(async {
        let world = World::new(6, 9).await;
        let written = fill(&world, 4, 2, &mut Rng::new(9)).await;
        world.store.seal_all(VOLUME).await;
        let info = world.store.segments(VOLUME).remove(0);
        assert!(!world.store.can_move(&info, 0));
        let at = ShardAt {
            volume: VOLUME,
            segment: info.id,
            index: 0,
        };
        let refused = world.store.move_shard(at, &unpaced()).await;
        assert!(matches!(refused.map(drop), Err(MoveError::NoTarget)));
        // A disk that joins can take it.
        let disk = MemDisk::new("disk6", 1 << 30);
        let id = DiskId(7);
        ShardDisk::format(disk.clone(), POOL, id, Default::default())
            .await
            .expect("formatted");
        let joined = ShardDisk::open(disk, POOL, ShardSettings::default()).await;
        world.store.disk_join(joined.expect("opened"));
        assert!(world.store.can_move(&info, 0));
        assert_eq!(world.store.default_code(), code(5, 2));
        let from = info.disks[0];
        world.store.disk_draining(from, true);
        assert_eq!(world.store.default_code(), code(4, 2));
        assert_eq!(move_off(&world, from).await.expect("moved"), 0);
        world.check(&written).await;
        let infos = world.store.segments(VOLUME);
        assert!(infos.iter().all(|info| info.disks.contains(&id)));
    });
}

#[test]
fn what_is_lost_does_not_keep_the_rest_unprotected() {
    block_on(async {
        let mut rng = Rng::new(10);
        let world = World::new(7, 10).await;
        let written = fill(&world, 4, 2, &mut rng).await;
        world.store.seal_all(VOLUME).await;
        let info = world.store.segments(VOLUME).remove(0);
        // Three pieces at one place: more than the code survives.
        for shard in 0..3 {
            let (disk, file) = world.shard_file(info.id, shard);
            world.disks[disk].flip_bit(&file, 4096, 1);
        }
        let from = info.disks[1];
        let cold = world.cold(&[]).await;
        cold.store.disk_draining(from, true);
        assert_eq!(move_off(&cold, from).await.expect("moved"), 64 << 10);
        let mut damaged = 0;
        for each in &written {
            match cold.read_all(each).await {
                Ok(bytes) => assert!(bytes == each.data),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Damaged);
                    damaged += 1;
                }
            }
        }
        assert!(damaged > 0 && damaged < written.len());
        assert_eq!(
            scrub_all(&cold).await.repaired_bytes,
            0,
            "it is known to be wrong"
        );
    });
}

/// A shard is gone, and the others have a bad piece: the rest of its bytes comes back with the records only, unless a
/// missing disk has the bytes.
#[test]
fn a_shard_that_cannot_be_made_anew_is_told() {
    block_on(async {
        // Whether a piece is bad, whether a disk is missing; shards away, and those that could not be rebuilt; whether
        // the segment is rewritten.
        let cases = [
            (false, false, 0, 0, false),
            (true, false, 1, 1, true),
            (true, true, 2, 1, false),
        ];
        for (is_bad, is_away, away, unmade, want) in cases {
            let world = World::new(4, 41).await;
            let mut rng = Rng::new(41);
            let records = vec![data(&mut rng, 300_000, false, true)];
            let parity = 1 + u8::from(is_away);
            world.append_ok(code(1, parity), records).await;
            world.store.seal_all(VOLUME).await;
            let info = world.store.segments(VOLUME).remove(0);
            let (disk, file) = world.shard_file(info.id, 0);
            world.disks[disk].remove(&file).await.expect("removed");
            if is_bad {
                let (disk, file) = world.shard_file(info.id, 1);
                world.disks[disk].flip_bit(&file, 4096, 1);
            }
            let last = world.shard_file(info.id, parity).0;
            let away_disks: &[usize] = if is_away { &[last] } else { &[] };
            let cold = world.cold(away_disks).await;
            let scrub = scrub_all(&cold).await;
            let got = (
                scrub.shards_away,
                scrub.shards_unmade,
                scrub.needs_rewrite(),
            );
            assert_eq!(got, (away, unmade, want));
        }
    });
}

#[test]
fn a_segment_that_is_removed_meanwhile_has_no_shard_away() {
    block_on(async {
        for seed in 0..40 {
            let world = World::new(4, seed).await;
            fill(&world, 2, 2, &mut Rng::new(seed)).await;
            world.store.seal_all(VOLUME).await;
            let cold = world.cold(&[]).await;
            for (index, disk) in (0..).zip(&cold.disks) {
                disk.yield_at_random(seed * 4 + index, 6);
            }
            let segment = cold.store.segments(VOLUME).remove(0).id;
            let pace = unpaced();
            let scrub = cold.store.scrub_segment(VOLUME, segment, &pace);
            let (scrub, removed) = join(scrub, cold.store.remove(VOLUME, segment)).await;
            removed.expect("removed");
            let scrub = scrub.expect("scrubbed");
            assert_eq!((scrub.shards_away, scrub.shards_unmade), (0, 0), "{seed}");
        }
    });
}
