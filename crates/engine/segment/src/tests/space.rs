//! Full pools, removal, sweeping, and the set of open segments.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::SegmentId;
use cairn_base::disk::{Disk, OpenMode};
use cairn_testkit::{Rng, TestWorld};

use super::world::*;
use crate::layout::RecordShape;
use crate::life::Segment;
use crate::*;

#[test]
fn a_full_pool_reads_removes_and_rewrites() {
    block_on(async {
        for (n, m) in [(1, 0), (2, 2)] {
            let world = World::with_capacity(usize::from(n + m), 128 << 20, 4).await;
            let mut rng = Rng::new(1);
            let free_at_start = world.store.usable(code(n, m)).free_bytes;
            let mut all = Vec::new();
            let mut bytes = 0;
            let error = loop {
                let records: Vec<_> = (0..2)
                    .map(|_| (data(&mut rng, 1 << 20, false, true), Compression::None))
                    .collect();
                match world.append(code(n, m), Stream::Mixed, records).await {
                    Ok(written) => all.extend(written),
                    Err(error) => break error,
                }
                bytes += 2 << 20;
                assert!(bytes < 1 << 30);
            };
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            assert!(
                bytes as f64 > free_at_start as f64 * 0.9,
                "{bytes} of {free_at_start} were usable"
            );
            assert!(bytes <= free_at_start);
            let space = world.store.space();
            assert!(space.free_bytes >= space.reserve_bytes && space.reserve_bytes > 0);
            // Garbage collection may go on, from the reserve.
            let moved = world
                .append(
                    code(n, m),
                    Stream::Rewrite,
                    vec![(data(&mut rng, 1 << 20, false, true), Compression::None)],
                )
                .await;
            all.extend(moved.expect("the reserve is for this"));
            // The rest of the segment that it made belongs to the reserve: no other stream gets it.
            let record = || {
                (
                    data(&mut Rng::new(2), 1 << 20, false, true),
                    Compression::None,
                )
            };
            let refused = world
                .append(code(n, m), Stream::Mixed, vec![record(), record()])
                .await;
            let refused = refused.map(drop).map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::NoSpace));
            let usable = world.store.usable(code(n, m));
            assert!(usable.free_bytes < 2 << 20, "{usable:?}");
            assert!(usable.rewrite_bytes > 0, "{usable:?}");
            world.check(&all).await;
            // Removing a segment makes room again.
            world.store.seal_all(VOLUME).await;
            let victim = all[0].pointer.location.segment;
            world.store.remove(VOLUME, victim).await.expect("removed");
            let gone = world.store.read(VOLUME, &all[0].pointer, 0..10).await;
            assert!(gone.is_ok() || gone.map_err(|error| error.kind()) == Err(ErrorKind::Gone));
            all.retain(|each| each.pointer.location.segment != victim);
            all.extend(
                world
                    .append_ok(code(n, m), vec![data(&mut rng, 1 << 20, false, true)])
                    .await,
            );
            world.cold(&[]).await.check(&all).await;
        }
    });
}

/// The reservation of a refused append is given back: the segment is sealed like any other.
#[test]
fn a_refused_append_keeps_no_segment_from_being_sealed() {
    block_on(async {
        for (n, m) in [(1, 0), (2, 2)] {
            let world = World::with_capacity(usize::from(n + m), 128 << 20, 5).await;
            let mut rng = Rng::new(5);
            let mut all = Vec::new();
            let refused = loop {
                // The second record does not fit any more where the first one does.
                let records = [1 << 13, 1 << 20]
                    .map(|len| (data(&mut rng, len, false, true), Compression::None));
                match world
                    .append(code(n, m), Stream::Mixed, records.to_vec())
                    .await
                {
                    Ok(written) => all.extend(written),
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
            world.store.seal_all(VOLUME).await;
            let pace = Pace::new(TestWorld::new(1).env.clock, 0);
            let unsealed = world.store.unsealed(VOLUME, &pace).await;
            assert_eq!(unsealed.expect("named"), []);
            world.cold(&[]).await.check(&all).await;
        }
    });
}

/// Stripes with later reservations behind them cannot be given back.
#[test]
fn only_the_last_stripes_are_given_back() {
    let info = SegmentInfo {
        id: SegmentId(1),
        code: code(1, 0),
        disks: Vec::new(),
        shard_len_bytes: 1 << 20,
        sealed: false,
        remote: None,
        media: None,
        protection: None,
    };
    let segment = Segment::created(VOLUME, EPOCH, info);
    segment.open_with(Vec::new(), 256, Duration::ZERO);
    let shape = RecordShape {
        len_bytes: 4096,
        block_aligned: true,
        has_owner: true,
    };
    let reserve = || segment.reserve(&[shape], Duration::ZERO);
    let (first, second) = (reserve(), reserve());
    assert!(!segment.release(&first));
    assert!(segment.release(&second));
    assert!(segment.release(&first));
    assert_eq!(reserve()[0].stripe_block, 0);
}

#[test]
fn segments_are_removed_when_nobody_needs_them() {
    block_on(async {
        let world = World::new(4, 4).await;
        let mut rng = Rng::new(1);
        let record = world.encode(vec![data(&mut rng, 9_000, false, true)], Compression::None);
        let appended = world
            .store
            .append(VOLUME, code(2, 2), Stream::Mixed, vec![record.clone()])
            .await
            .expect("appended");
        let pointer = record.pointer(appended.locations[0]);
        let segment = pointer.location.segment;
        let in_use =
            |result: Result<(), SegmentError>| matches!(result, Err(SegmentError::InUse { .. }));
        assert!(world.store.is_open(VOLUME, segment));
        assert!(in_use(world.store.remove(VOLUME, segment).await));
        world.store.seal_all(VOLUME).await;
        assert!(!world.store.is_open(VOLUME, segment) && world.store.is_pinned(VOLUME, segment));
        assert!(in_use(world.store.remove(VOLUME, segment).await));
        drop(appended.pin);
        assert!(!world.store.is_pinned(VOLUME, segment));
        for _ in 0..2 {
            world
                .store
                .remove(VOLUME, segment)
                .await
                .expect("removed, again and again");
        }
        let gone = world.store.read(VOLUME, &pointer, 0..9_000).await;
        assert_eq!(
            gone,
            Err(SegmentError::Gone {
                volume: VOLUME,
                segment
            })
        );
        for disk in &world.disks {
            assert!(
                !disk
                    .file_names()
                    .iter()
                    .any(|name| name.starts_with("shards/"))
            );
        }
    });
}

#[test]
fn a_sweep_takes_only_what_nobody_knows() {
    block_on(async {
        let world = World::new(4, 4).await;
        let mut rng = Rng::new(1);
        let kept = world
            .append_ok(code(2, 2), vec![data(&mut rng, 9_000, false, true)])
            .await;
        world.store.seal_all(VOLUME).await;
        let known = world.store.segments(VOLUME);
        // An append without a transaction after it.
        world
            .append_ok(code(2, 2), vec![data(&mut rng, 9_000, false, true)])
            .await;
        let after = world.restart(world.disks.clone(), &[], known).await;
        let fresh = after
            .append_ok(code(2, 2), vec![data(&mut rng, 9_000, false, true)])
            .await;
        let swept = after.store.sweep(VOLUME).await.expect("swept");
        assert_eq!(
            swept,
            Swept {
                shards_removed: 4,
                errors: 0
            }
        );
        after.check(&kept).await;
        after.check(&fresh).await;
        let pace = Arc::new(Pace::new(Arc::new(after.clock.clone()), 0));
        after.store.remove_volume(VOLUME, &pace).await;
        for disk in &world.disks {
            assert!(
                !disk
                    .file_names()
                    .iter()
                    .any(|name| name.starts_with("shards/"))
            );
        }
    });
}

#[test]
fn a_disk_that_was_away_is_swept_when_it_is_back() {
    block_on(async {
        let world = World::new(4, 4).await;
        let mut rng = Rng::new(1);
        let written = world
            .append_ok(code(2, 2), vec![data(&mut rng, 9_000, false, true)])
            .await;
        world.store.seal_all(VOLUME).await;
        let without = world.cold(&[2]).await;
        without
            .store
            .remove(VOLUME, written[0].pointer.location.segment)
            .await
            .expect("removed");
        let back = without.cold(&[]).await;
        assert_eq!(
            back.store.sweep(VOLUME).await,
            Ok(Swept {
                shards_removed: 1,
                errors: 0
            })
        );
    });
}

#[test]
fn streams_are_bounded_and_idle_segments_are_used_again() {
    block_on(async {
        let mut world = World::new(2, 4).await;
        world.settings.streams_max = 2;
        world.settings.open_segments_max = 4;
        let world = world.cold(&[]).await;
        let mut rng = Rng::new(1);
        let mut all = Vec::new();
        for file in 0..20 {
            let record = (data(&mut rng, 40_000, false, true), Compression::None);
            all.extend(
                world
                    .append(code(1, 1), Stream::File(file), vec![record])
                    .await
                    .expect("appended"),
            );
            assert!(world.store.stats().open_segments <= 4);
        }
        assert!(
            world.store.stats().segments_created <= 4,
            "later files go where earlier ones were"
        );
        world.store.seal_idle(VOLUME, Duration::from_secs(1)).await;
        assert!(world.store.stats().open_segments > 0, "used a moment ago");
        world.store.seal_idle(VOLUME, Duration::ZERO).await;
        assert_eq!(world.store.stats().open_segments, 0);
        world.check(&all).await;
    });
}

#[test]
fn a_full_segment_is_sealed_and_the_next_begun() {
    block_on(async {
        // Shards of 4 MiB.
        let world = World::with_capacity(2, 256 << 20, 4).await;
        let mut rng = Rng::new(1);
        let records: Vec<_> = (0..11)
            .map(|_| data(&mut rng, 1 << 20, false, true))
            .collect();
        let written = world.append_ok(code(1, 1), records).await;
        let mut segments: Vec<SegmentId> = written
            .iter()
            .map(|each| each.pointer.location.segment)
            .collect();
        segments.dedup();
        assert_eq!(segments.len(), 3);
        world.check(&written).await;
        world.store.seal_all(VOLUME).await;
        assert!(world.store.segments(VOLUME).iter().all(|info| info.sealed));
        world.cold(&[1]).await.check(&written).await;
    });
}

#[test]
fn spares_are_made_evenly_used_and_given_back() {
    block_on(async {
        let world = World::with_capacity(3, 1 << 30, 4).await;
        let spares = |world: &World| -> Vec<usize> {
            let count = |disk: &std::sync::Arc<cairn_testkit::MemDisk>| {
                let names = disk.file_names();
                names
                    .iter()
                    .filter(|name| name.starts_with("free/"))
                    .count()
            };
            world.disks.iter().map(count).collect()
        };
        let free_bytes = world.store.space().free_bytes;
        let wanted_bytes = 40 << 20;
        assert!(world.store.tend_spares(wanted_bytes).await);
        assert_eq!(spares(&world).iter().sum::<usize>(), 1, "one at a time");
        while world.store.tend_spares(wanted_bytes).await {}
        assert_eq!(spares(&world), [2, 2, 2], "shards are of 16 MiB here");
        assert_eq!(
            world.store.space().free_bytes,
            free_bytes,
            "they count as free"
        );
        let written = world
            .append_ok(code(2, 1), vec![data(&mut Rng::new(1), 5000, false, true)])
            .await;
        assert_eq!(spares(&world), [1, 1, 1], "a new segment takes them");
        // Kept across a restart.
        let world = world.cold(&[]).await;
        assert_eq!(spares(&world), [1, 1, 1]);
        while world.store.tend_spares(wanted_bytes).await {}
        assert_eq!(spares(&world), [2, 2, 2]);
        // Other data fills a disk: first there is no more room, then none.
        let room = |world: &World| world.disks[0].space().expect("space").free_bytes;
        let fill = |len_bytes| OpenMode::CreateNew { len_bytes };
        world.disks[0]
            .open("other", fill(room(&world) - (100 << 20)))
            .await
            .expect("fits");
        while world.store.tend_spares(wanted_bytes * 2).await {}
        assert_eq!(spares(&world), [2, 4, 4], "no more where room is not ample");
        world.disks[0]
            .open("another", fill(room(&world) - (1 << 20)))
            .await
            .expect("fits");
        while world.store.tend_spares(wanted_bytes * 2).await {}
        assert_eq!(spares(&world), [0, 4, 4], "room for the metadata");
        world.check(&written).await;
    });
}

/// Not even an empty segment has room for it, so waiting would not help.
#[test]
fn a_record_that_no_segment_has_room_for_is_refused() {
    block_on(async {
        let mut world = World::new(1, 6).await;
        world.settings.shard_len_bytes = 64 << 10;
        world.settings.shard_len_bytes_min = 64 << 10;
        let world = world.cold(&[]).await;
        let mut rng = Rng::new(6);
        let records = [4096, 1 << 20]
            .map(|len| (data(&mut rng, len, false, true), Compression::None))
            .to_vec();
        let refused = world.append(code(1, 0), Stream::Mixed, records).await;
        let refused = refused.map(drop).expect_err("it has no room");
        assert!(refused.to_string().contains("no room"), "{refused}");
        let small = vec![data(&mut rng, 4096, false, true)];
        let written = world.append_ok(code(1, 0), small).await;
        world.check(&written).await;
        world.store.seal_all(VOLUME).await;
    });
}
