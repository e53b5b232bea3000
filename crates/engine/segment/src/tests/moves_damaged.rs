//! Moves of shards with unrecoverable bytes: no readable byte is lost with them.

use cairn_testkit::{Fault, FaultRule, OpKind, Rng};

use super::moves::{at, unpaced};
use super::world::*;
use crate::*;

/// Records of a block each, sixteen to a piece, in stripes of their own.
async fn one_piece(world: &World, code: cairn_erasure::Code) -> (Vec<Written>, SegmentInfo) {
    let mut rng = Rng::new(40);
    let records = (0..16).map(|_| data(&mut rng, 4096, false, true)).collect();
    let written = world.append_ok(code, records).await;
    world.store.seal_all(VOLUME).await;
    (written, world.store.segments(VOLUME).remove(0))
}

/// Whether each record can be read.
async fn readable(world: &World, written: &[Written]) -> Vec<bool> {
    let mut readable = Vec::new();
    for each in written {
        readable.push(match world.read_all(each).await {
            Ok(bytes) => {
                assert!(bytes == each.data);
                true
            }
            Err(SegmentError::Damaged { .. }) => false,
            Err(error) => panic!("{error}"),
        });
    }
    readable
}

/// All but the first of the sixteen.
fn all_but_first() -> Vec<bool> {
    (0..16).map(|index| index > 0).collect()
}

#[test]
fn a_single_copy_is_moved_with_what_is_wrong_in_it() {
    block_on(async {
        let world = World::new(3, 23).await;
        let (written, info) = one_piece(&world, code(1, 0)).await;
        let (disk, file) = world.shard_file(info.id, 0);
        world.disks[disk].flip_bit(&file, 100, 1);
        let cold = world.cold(&[]).await;
        assert_eq!(readable(&cold, &written).await, all_but_first());
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let moved = moved.expect("moved");
        assert_eq!(moved.lost_bytes, 64 << 10);
        moved.finish().await;
        let cold = cold.cold(&[]).await;
        assert_eq!(readable(&cold, &written).await, all_but_first());
        // The piece does not count as verified.
        let scrub = cold.store.scrub_segment(VOLUME, info.id, &unpaced()).await;
        assert_eq!(scrub.expect("scrubbed").wrong_bytes, 64 << 10);
    });
}

/// The disk works, and some of its bytes are unreadable: the rest must neither wait for them nor be lost with them.
#[test]
fn a_piece_that_cannot_be_read_on_a_disk_that_works_is_given_up_by_blocks() {
    block_on(async {
        // The part, its piece, the piece again, and then block by block.
        let cases = [
            (2, 0, vec![true; 16]),
            (3, 0, vec![true; 16]),
            (4, 64 << 10, all_but_first()),
            (19, 64 << 10, vec![false; 16]),
        ];
        for (times, lost_bytes, want) in cases {
            let world = World::new(3, 32).await;
            let (written, info) = one_piece(&world, code(1, 0)).await;
            let cold = world.cold(&[]).await;
            let (disk, _) = cold.shard_file(info.id, 0);
            cold.disks[disk].inject(FaultRule {
                kind: Some(OpKind::Read),
                name_part: "shards/".to_owned(),
                // After the two reads of the footer.
                skip: 2,
                times,
                fault: Fault::Io,
            });
            let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
            let moved = moved.expect("moved");
            assert_eq!(moved.lost_bytes, lost_bytes, "{times}");
            moved.finish().await;
            let cold = cold.cold(&[]).await;
            assert_eq!(readable(&cold, &written).await, want, "{times}");
        }
    });
}

/// Both copies are wrong in one piece, each in another record: all records can be read.
#[test]
fn copies_that_are_wrong_in_different_records_lose_none() {
    block_on(async {
        let world = World::new(3, 33).await;
        let (written, info) = one_piece(&world, code(1, 1)).await;
        for (shard, offset) in [(0, 100), (1, 5000)] {
            let (disk, file) = world.shard_file(info.id, shard);
            world.disks[disk].flip_bit(&file, offset, 1);
        }
        let cold = world.cold(&[]).await;
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        moved.expect("moved").finish().await;
        cold.cold(&[]).await.check(&written).await;
    });
}

/// Two copies of one piece, of which one is wrong in its first record.
async fn wrong_in_one(seed: u64, wrong: u8) -> (World, Vec<Written>, SegmentInfo) {
    let world = World::new(3, seed).await;
    let (written, info) = one_piece(&world, code(1, 1)).await;
    let (disk, file) = world.shard_file(info.id, wrong);
    world.disks[disk].flip_bit(&file, 100, 1);
    (world, written, info)
}

/// The right bytes around a piece that was given up are on one disk only: a scrub has them rewritten.
#[test]
fn what_is_right_beside_a_lost_piece_is_written_anew() {
    block_on(async {
        let (world, _, info) = wrong_in_one(36, 0).await;
        let cold = world.cold(&[]).await;
        let sound = cold.store.scrub_segment(VOLUME, info.id, &unpaced()).await;
        assert!(!sound.expect("scrubbed").needs_rewrite(), "it was repaired");
        let (world, _, info) = wrong_in_one(36, 0).await;
        let cold = world.cold(&[]).await;
        let (lost, _) = cold.shard_file(info.id, 1);
        cold.store.disk_forget(info.disks[1]);
        let moved = cold.store.move_shard(at(&info, 1), &unpaced()).await;
        let moved = moved.expect("moved");
        assert_eq!(moved.lost_bytes, 64 << 10, "{lost}");
        moved.finish().await;
        let scrub = cold.store.scrub_segment(VOLUME, info.id, &unpaced()).await;
        let scrub = scrub.expect("scrubbed");
        assert!(scrub.needs_rewrite(), "{scrub:?}");
    });
}

/// The disk may come back with the only good copy.
#[test]
fn what_only_a_missing_disk_has_is_not_given_up() {
    block_on(async {
        let (world, written, info) = wrong_in_one(34, 1).await;
        let (missing, _) = world.shard_file(info.id, 0);
        let cold = world.cold(&[missing]).await;
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        let moved = moved.map(|moved| moved.lost_bytes);
        assert!(matches!(moved, Err(MoveError::Unsealed)), "{moved:?}");
        world.cold(&[]).await.check(&written).await;
        // After its removal from the pool it is of no use to any reader.
        cold.store.disk_forget(info.disks[0]);
        let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
        assert_eq!(moved.expect("moved").lost_bytes, 64 << 10);
    });
}

/// An error tells nothing about the bytes on the disk of the other copy: it is asked again before anything is given up.
#[test]
fn what_another_disk_does_not_give_at_once_is_not_given_up() {
    block_on(async {
        // The part, its piece, the piece once more, and after a probe of the disk.
        for (times, lost_bytes) in [(2, 0), (3, 0), (4, 64 << 10)] {
            let world = World::new(3, 35).await;
            let (written, info) = one_piece(&world, code(1, 1)).await;
            let cold = world.cold(&[]).await;
            cold.store.disk_forget(info.disks[0]);
            let (disk, _) = cold.shard_file(info.id, 1);
            let fail = |name_part: &str, times| FaultRule {
                kind: Some(OpKind::Read),
                name_part: name_part.to_owned(),
                // After the two reads of the footer.
                skip: 2,
                times,
                fault: Fault::Io,
            };
            cold.disks[disk].inject(fail("shards/", times));
            let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
            let moved = moved.expect("moved");
            assert_eq!(moved.lost_bytes, lost_bytes, "{times}");
            moved.abandon().await;
            // A disk that reads nothing at all has lost nothing.
            cold.disks[disk].clear_faults();
            cold.disks[disk].inject(fail("", u64::MAX));
            let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
            let moved = moved.map(|moved| moved.lost_bytes);
            assert!(matches!(moved, Err(MoveError::Disk(_))), "{moved:?}");
            cold.disks[disk].clear_faults();
            let moved = cold.store.move_shard(at(&info, 0), &unpaced()).await;
            let moved = moved.expect("moved");
            assert_eq!(moved.lost_bytes, 0);
            moved.finish().await;
            cold.check(&written).await;
        }
    });
}
