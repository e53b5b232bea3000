//! Tiering: offloading cold segments, promoting them, and all faults on the way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{Ino, SegmentId, TierId};
use cairn_fs::*;
use cairn_segment::ObjectId;
use cairn_segment::testing::{Fault, MemTier};
use cairn_testkit::{Crash, Recorder, Rng};

use crate::world::*;

const MIB: u64 = 1 << 20;
const TIER: TierId = TierId(1);
const ALL: TierPolicy = TierPolicy {
    tier: TIER,
    choice: TierChoice::All,
    filter: None,
};
const AUTO: TierPolicy = TierPolicy {
    tier: TIER,
    choice: TierChoice::Auto { cooling_days: 2 },
    filter: None,
};
const SNAPSHOT_ONLY: TierPolicy = TierPolicy {
    tier: TIER,
    choice: TierChoice::SnapshotOnly { cooling_days: 2 },
    filter: None,
};
/// The time until written data is sealed, and a round has offloaded it.
const SEALED_AND_SENT_SECONDS: u64 = 90;

async fn create(fs: &Fs, name: &str) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, name.as_bytes(), mode);
    made.await.unwrap().attr.ino
}

async fn write(fs: &Fs, ino: Ino, offset: u64, data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    let written = fs.write(&ROOT_USER, ino, offset, data, Stability::Unstable);
    written.await.unwrap();
    fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
}

/// A file of so many MiB that does not compress.
async fn fill(fs: &Fs, name: &str, mib: u64, seed: u64) -> (Ino, Vec<u8>) {
    let ino = create(fs, name).await;
    let mut rng = Rng::new(seed);
    let data: Vec<u8> = (0..mib * MIB / 8)
        .flat_map(|_| rng.u64().to_le_bytes())
        .collect();
    for (part, bytes) in data.chunks(MIB as usize).enumerate() {
        let bytes = Bytes::copy_from_slice(bytes);
        let written = fs.write(
            &ROOT_USER,
            ino,
            part as u64 * MIB,
            bytes,
            Stability::Unstable,
        );
        written.await.unwrap();
    }
    fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
    (ino, data)
}

async fn read(fs: &Fs, ino: Ino, offset: u64, len: u32) -> Result<Vec<u8>, FsError> {
    let data = fs.read(&ROOT_USER, ino, offset, len).await?;
    Ok(data.parts.concat())
}

async fn read_all(fs: &Fs, ino: Ino, len: usize) -> Result<Vec<u8>, FsError> {
    let mut all = Vec::new();
    while all.len() < len {
        let part = read(fs, ino, all.len() as u64, 1 << 20).await?;
        assert!(!part.is_empty(), "it ends at {}", all.len());
        all.extend(part);
    }
    Ok(all)
}

/// Advances the clock while a future waits for it.
async fn while_time_passes<T>(world: &World, waiting: impl Future<Output = T>) -> T {
    let mut waiting = std::pin::pin!(waiting);
    for _ in 0..2000 {
        let polled =
            std::future::poll_fn(|context| std::task::Poll::Ready(waiting.as_mut().poll(context)));
        if let std::task::Poll::Ready(done) = polled.await {
            return done;
        }
        world.run_for(1).await;
    }
    panic!("it does not end");
}

/// The objects that segments of the volume refer to.
fn referred(fs: &Fs) -> Vec<ObjectId> {
    let all = fs.meta().segments().into_iter();
    let mut objects: Vec<ObjectId> = all
        .filter_map(|(segment, record)| {
            Some(ObjectId {
                volume: VOLUME,
                segment,
                nonce: record.remote?.nonce,
            })
        })
        .collect();
    objects.sort_unstable();
    objects
}

/// Segments with a shard on some disk.
fn on_disks(world: &World) -> BTreeSet<SegmentId> {
    let names = world.disks.iter().flat_map(|disk| disk.file_names());
    names
        .filter_map(|name| {
            let digits = name.strip_prefix("shards/")?.split(['/', '.']).nth(1)?;
            Some(SegmentId(u64::from_str_radix(digits, 16).ok()?))
        })
        .collect()
}

/// Checks that each object belongs to a segment, and no segment is in two places or in none.
fn check_places(world: &World, tier: &MemTier) {
    assert_eq!(tier.objects(), referred(&world.fs), "objects");
    assert!(tier.written_max() <= 1, "a key was written twice");
    let on_disks = on_disks(world);
    for (id, record) in world.fs.meta().segments() {
        assert_eq!(
            on_disks.contains(&id),
            record.remote.is_none(),
            "segment {id}"
        );
    }
}

async fn world_with(seed: u64, disks: usize, tier: &MemTier, policy: TierPolicy) -> World {
    let world = World::new(seed, disks).await;
    world.segments.use_tier(TIER, Arc::new(tier.clone()));
    world.fs.set_tiering(Some(policy));
    world
}

async fn restarted(world: World, seed: u64, tier: &MemTier, policy: TierPolicy) -> World {
    let world = world.restart(seed).await;
    world.segments.use_tier(TIER, Arc::new(tier.clone()));
    world.fs.set_tiering(Some(policy));
    world
}

#[test]
fn data_goes_out_frees_disks_and_comes_back() {
    block_on(async {
        for (seed, disks) in [(1, 1), (2, 4), (3, 6)] {
            let tier = MemTier::default();
            let world = world_with(seed, disks, &tier, ALL).await;
            let (ino, data) = fill(&world.fs, "a", 24, seed).await;
            let full = world.segments.space().free_bytes;
            world.run_for(SEALED_AND_SENT_SECONDS).await;
            let status = world.fs.tiering_status();
            assert!(status.objects > 0 && status.trouble.is_none(), "{status:?}");
            assert!(status.remote_bytes >= data.len() as u64, "{status:?}");
            check_places(&world, &tier);
            assert!(world.segments.space().free_bytes >= full + data.len() as u64);
            assert_eq!(world.fs.meta().segment_totals().live_bytes, 0);
            // Nothing of it is in memory, so only stored state knows of it.
            let world = restarted(world, seed + 10, &tier, ALL).await;
            assert_eq!(read_all(&world.fs, ino, data.len()).await.unwrap(), data);
            assert!(world.segments.stats().remote_reads > 0);
            let small = read(&world.fs, ino, 5 * MIB + 12_345, 777).await.unwrap();
            assert_eq!(small, data[5 * MIB as usize + 12_345..][..777]);
            recount(&world.fs).await;
            assert!(!world.fs.has_nothing_in_tiers().await.unwrap());
            // Promotion.
            world.fs.set_tiering(None);
            world.run_for(60).await;
            assert_eq!(world.fs.tiering_status().objects, 0);
            assert_eq!(tier.objects(), []);
            assert!(world.fs.has_nothing_in_tiers().await.unwrap());
            world.segments.forget_tier(TIER);
            let world = world.restart(seed + 20).await;
            assert_eq!(read_all(&world.fs, ino, data.len()).await.unwrap(), data);
            recount(&world.fs).await;
            world.fs.close().await.unwrap();
        }
    });
}

/// However little fills its stripes: offloaded data stays in the tier, and data that is not worth an object stays
/// here. It was offloaded and promoted in turns, for ever.
#[test]
fn what_is_small_does_not_go_to_and_fro() {
    block_on(async {
        for kib in [1, 4, 6, 8, 12, 20, 33] {
            let tier = MemTier::default();
            let world = world_with(kib, 6, &tier, ALL).await;
            let ino = create(&world.fs, "a").await;
            let data: Vec<u8> = (0..kib * 1024).map(|at| (at * 7 % 251) as u8).collect();
            write(&world.fs, ino, 0, &data).await;
            world.run_for(2 * SEALED_AND_SENT_SECONDS).await;
            let before = world.fs.tiering_status();
            world.run_for(20 * SEALED_AND_SENT_SECONDS).await;
            let status = world.fs.tiering_status();
            assert_eq!(status.sent_segments, before.sent_segments, "{kib} KiB");
            assert_eq!(status.gathered_bytes, before.gathered_bytes, "{kib} KiB");
            check_places(&world, &tier);
            assert_eq!(read_all(&world.fs, ino, data.len()).await.unwrap(), data);
            world.fs.close().await.unwrap();
        }
    });
}

/// Whatever the tier does during the copying of a segment: no shard is deleted here whose bytes are not there.
#[test]
fn nothing_goes_before_its_copy_is_right() {
    use Fault::*;
    block_on(async {
        let faults = [
            Away,
            Silent,
            Truncates,
            Lies,
            Garbles,
            Loses,
            AnswersLost,
            KeepsAll,
        ];
        for (seed, fault) in (30..).zip(faults) {
            let tier = MemTier::default();
            tier.set_fault(Some(fault), None);
            let world = world_with(seed, 3, &tier, ALL).await;
            let (ino, data) = fill(&world.fs, "a", 8, seed).await;
            world.run_for(400).await;
            let status = world.fs.tiering_status();
            if fault != KeepsAll {
                assert_eq!(status.objects, 0, "{fault:?}");
                assert!(status.trouble.is_some(), "{fault:?}: {status:?}");
                let here = on_disks(&world);
                assert!(!here.is_empty(), "{fault:?}");
                assert_eq!(read_all(&world.fs, ino, data.len()).await.unwrap(), data);
            }
            tier.set_fault(None, None);
            world.run_for(900).await;
            let status = world.fs.tiering_status();
            assert!(
                status.objects > 0 && status.trouble.is_none(),
                "{fault:?}: {status:?}"
            );
            check_places(&world, &tier);
            let world = restarted(world, seed + 100, &tier, ALL).await;
            assert_eq!(read_all(&world.fs, ino, data.len()).await.unwrap(), data);
            world.fs.close().await.unwrap();
        }
    });
}

/// Only reads of bytes in the tier fail, no others, and only as long as the tier does not give them.
#[test]
fn a_tier_that_fails_costs_its_own_bytes_alone() {
    use Fault::*;
    block_on(async {
        for (seed, fault) in (60..).zip([Away, Silent, Truncates, Lies]) {
            let tier = MemTier::default();
            let world = world_with(seed, 3, &tier, ALL).await;
            let (cold, data) = fill(&world.fs, "cold", 8, seed).await;
            world.run_for(SEALED_AND_SENT_SECONDS).await;
            let world = restarted(world, seed + 100, &tier, ALL).await;
            tier.set_fault(Some(fault), None);
            let (warm, other) = fill(&world.fs, "warm", 2, seed + 1).await;
            let failed = while_time_passes(&world, read(&world.fs, cold, 0, 4096)).await;
            // A tier that lies may have lost written data; for the others, the read waits.
            let is_as_wanted = match fault {
                Lies => matches!(failed, Err(FsError::Io(_))),
                _ => matches!(failed, Err(FsError::Unreachable(_))),
            };
            assert!(is_as_wanted, "{fault:?}: {failed:?}");
            assert_eq!(read_all(&world.fs, warm, other.len()).await.unwrap(), other);
            // Names, attributes, and overwrites do not need the tier.
            write(&world.fs, cold, 0, b"over it").await;
            assert_eq!(read(&world.fs, cold, 0, 7).await.unwrap(), b"over it");
            tier.set_fault(None, None);
            world.run_for(10).await;
            let mut want = data.clone();
            want[..7].copy_from_slice(b"over it");
            let got = while_time_passes(&world, read_all(&world.fs, cold, want.len())).await;
            assert!(got.unwrap() == want, "{fault:?}");
            // A single wrong or missing reply is requested again.
            let world = restarted(world, seed + 200, &tier, ALL).await;
            tier.set_fault(Some(fault), Some(1));
            let got = while_time_passes(&world, read(&world.fs, cold, 4 * MIB, 4096)).await;
            assert_eq!(got.unwrap(), want[4 * MIB as usize..][..4096], "{fault:?}");
            tier.set_fault(None, None);
            world.fs.close().await.unwrap();
        }
    });
}

/// A lost or corrupt object is an error for its bytes, which a verification finds, and delays nothing else.
#[test]
fn a_lost_or_damaged_object_is_an_error_for_its_bytes() {
    block_on(async {
        let tier = MemTier::default();
        let world = world_with(70, 3, &tier, ALL).await;
        let (first, _) = fill(&world.fs, "first", 4, 1).await;
        world.run_for(SEALED_AND_SENT_SECONDS).await;
        let lost = tier.objects();
        let (second, data) = fill(&world.fs, "second", 4, 2).await;
        world.run_for(SEALED_AND_SENT_SECONDS).await;
        let pace = cairn_segment::Pace::new(world.env.clock.clone(), 0);
        let (mut bytes, mut next) = (0, Some(SegmentId(0)));
        while let Some(from) = next {
            let verified = world.fs.verify_tier(from, &pace).await.unwrap();
            assert_eq!(verified.1, None);
            bytes += verified.0;
            next = verified.2;
        }
        assert!(bytes >= 8 * MIB);
        let world = restarted(world, 71, &tier, ALL).await;
        for object in &lost {
            let bytes = tier.object(object).unwrap();
            tier.replace(object, None);
            let failed = while_time_passes(&world, read_all(&world.fs, first, 4 << 20)).await;
            assert!(matches!(failed, Err(FsError::Io(_))), "{failed:?}");
            let mut wrong = bytes.to_vec();
            wrong[0] ^= 1;
            tier.replace(object, Some(wrong.into()));
            let pace = cairn_segment::Pace::new(world.env.clock.clone(), 0);
            let verified = world.fs.verify_tier(SegmentId(0), &pace).await.unwrap();
            assert!(verified.1.is_some(), "{verified:?}");
            tier.replace(object, None);
        }
        assert_eq!(read_all(&world.fs, second, data.len()).await.unwrap(), data);
        // Most of it is dead, and it cannot be rewritten; others are offloaded all the same.
        let before = world.fs.tiering_status().objects;
        for part in 0..3 {
            write(&world.fs, first, part * MIB, &pattern(MIB as u32, 3)).await;
        }
        fill(&world.fs, "third", 4, 3).await;
        world.run_for(2 * SEALED_AND_SENT_SECONDS).await;
        assert!(world.fs.tiering_status().objects > before);
        // An unreadable segment is not promoted, all others are, and its file can be deleted.
        world.fs.set_tiering(None);
        world.run_for(400).await;
        let status = world.fs.tiering_status();
        assert!(status.trouble.is_some() || status.resting_segments > 0);
        assert_eq!(status.objects, lost.len() as u64, "{status:?}");
        assert_eq!(read_all(&world.fs, second, data.len()).await.unwrap(), data);
        let removed = world.fs.remove(&ROOT_USER, ROOT_INO, b"first").await;
        removed.unwrap();
        world.run_for(600).await;
        assert_eq!(world.fs.tiering_status().objects, 0);
        assert_eq!(tier.objects(), []);
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}

#[test]
fn what_nobody_uses_goes_and_what_is_read_again_and_again_comes_back() {
    block_on(async {
        let tier = MemTier::default();
        let world = world_with(80, 3, &tier, AUTO).await;
        let (cold, data) = fill(&world.fs, "cold", 4, 1).await;
        world.run_for(SEALED_AND_SENT_SECONDS).await;
        assert_eq!(tier.objects(), [], "it was written today");
        let day = Duration::from_secs(24 * 3600);
        world.clock.advance(day);
        world.run_for(30).await;
        // A use on the second day, which memory does not serve.
        let world = restarted(world, 82, &tier, AUTO).await;
        world.clock.advance(day);
        world.run_for(30).await;
        read(&world.fs, cold, 0, 4096).await.unwrap();
        world.run_for(30).await;
        world.clock.advance(day);
        world.run_for(30).await;
        assert_eq!(tier.objects(), [], "it was read a day ago");
        world.clock.advance(day);
        world.run_for(60).await;
        assert_ne!(tier.objects(), [], "nobody used it for two days");
        check_places(&world, &tier);
        // A scan promotes nothing.
        let promoted = |world: &World| world.fs.tiering_status().promoted_parts;
        assert_eq!(read_all(&world.fs, cold, data.len()).await.unwrap(), data);
        world.run_for(30).await;
        assert_eq!(promoted(&world), 0);
        let world = restarted(world, 84, &tier, AUTO).await;
        for _ in 0..3 {
            // Past the cached part: another file takes its place there.
            read(&world.fs, cold, 3 * MIB + 5, 100).await.unwrap();
            fill(&world.fs, &format!("other{}", promoted(&world)), 4, 9).await;
            world.fs.remove(&ROOT_USER, ROOT_INO, b"other0").await.ok();
            world.run_for(15).await;
        }
        assert!(promoted(&world) > 0);
        assert_eq!(read_all(&world.fs, cold, data.len()).await.unwrap(), data);
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}

/// Mostly overwritten segments are rewritten, dead ones are deleted, and data of snapshots stays.
#[test]
fn objects_go_when_nothing_is_in_them() {
    block_on(async {
        let tier = MemTier::default();
        let world = world_with(90, 3, &tier, ALL).await;
        let (ino, mut data) = fill(&world.fs, "a", 12, 1).await;
        world.run_for(SEALED_AND_SENT_SECONDS).await;
        let before = tier.objects();
        assert_ne!(before, []);
        // Most of each of them.
        let (_, other) = fill(&world.fs, "b", 12, 2).await;
        for part in (0..12).filter(|part| part % 4 != 3) {
            let at = part * MIB;
            let bytes = &other[at as usize..][..MIB as usize];
            write(&world.fs, ino, at, bytes).await;
            data[at as usize..][..MIB as usize].copy_from_slice(bytes);
        }
        world.run_for(5 * SEALED_AND_SENT_SECONDS).await;
        check_places(&world, &tier);
        let status = world.fs.tiering_status();
        let usage = world.fs.meta().segment_usage(SegmentId(0), 100);
        let kept = before.iter().filter(|old| tier.objects().contains(old));
        assert_eq!(kept.count(), 0, "{status:?} {usage:?}");
        assert_eq!(read_all(&world.fs, ino, data.len()).await.unwrap(), data);
        recount(&world.fs).await;
        world.fs.take_snapshot(b"kept", b"").await.unwrap();
        for name in [b"a", b"b"] {
            let removed = world.fs.remove(&ROOT_USER, ROOT_INO, name).await;
            removed.unwrap();
        }
        world.run_for(30).await;
        assert_ne!(tier.objects(), [], "the snapshot sees them");
        recount(&world.fs).await;
        world.fs.delete_snapshot(b"kept").await.unwrap();
        world.run_for(120).await;
        assert_eq!(tier.objects(), []);
        assert_eq!(world.fs.meta().segment_totals().remote_segments, 0);
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}

/// Data of files stays on the disks, also if snapshots have it, too; former data of files is offloaded when it is cold.
#[test]
fn what_only_snapshots_have_goes() {
    block_on(async {
        let tier = MemTier::default();
        let world = world_with(70, 3, &tier, SNAPSHOT_ONLY).await;
        let cool = async |world: &World| {
            world.run_for(SEALED_AND_SENT_SECONDS).await;
            for _ in 0..3 {
                world.clock.advance(Duration::from_secs(24 * 3600));
                world.run_for(60).await;
            }
        };
        let (changed, old) = fill(&world.fs, "changed", 8, 1).await;
        // Otherwise both would share a segment, and files would have most of it.
        world.run_for(SEALED_AND_SENT_SECONDS).await;
        let (stays, kept) = fill(&world.fs, "stays", 8, 2).await;
        cool(&world).await;
        assert_eq!(tier.objects(), [], "there is no snapshot");
        world.fs.take_snapshot(b"first", b"").await.unwrap();
        cool(&world).await;
        assert_eq!(tier.objects(), [], "files have all that the snapshot has");
        // All of the one file but a little, beside the other, which stays unchanged.
        let mut new = old.clone();
        for part in 0..7 {
            let at = (part * MIB) as usize;
            let bytes = pattern(MIB as u32, 3 + part as u8);
            write(&world.fs, changed, part * MIB, &bytes).await;
            new[at..at + MIB as usize].copy_from_slice(&bytes);
        }
        cool(&world).await;
        assert_ne!(tier.objects(), []);
        check_places(&world, &tier);
        // No live file has anything in the tier.
        let world = restarted(world, 72, &tier, SNAPSHOT_ONLY).await;
        assert_eq!(read_all(&world.fs, changed, new.len()).await.unwrap(), new);
        assert_eq!(read_all(&world.fs, stays, kept.len()).await.unwrap(), kept);
        assert_eq!(world.segments.stats().remote_reads, 0);
        let snapshot = world.fs.snapshot(b"first").unwrap();
        let view = world.fs.in_view(snapshot.view()).unwrap();
        for (at, want) in old.chunks(MIB as usize).enumerate() {
            let read = view.read(&ROOT_USER, changed, at as u64 * MIB, MIB as u32);
            assert!(read.await.unwrap().parts.concat() == want, "MiB {at}");
        }
        assert!(world.segments.stats().remote_reads > 0);
        recount(&world.fs).await;
        world.fs.delete_snapshot(b"first").await.unwrap();
        world.run_for(120).await;
        assert_eq!(tier.objects(), []);
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}

/// A policy for files by name, least size and least age.
fn of_files(policy: TierPolicy, files: &str, min_size: &str, min_age: &str) -> TierPolicy {
    let filter = TierFilter {
        files: files.parse().unwrap(),
        min_size: min_size.parse().unwrap(),
        min_age: min_age.parse().unwrap(),
    };
    TierPolicy {
        filter: Some(Arc::new(filter)),
        ..policy
    }
}

/// Files of so many MiB with alternating parts, so that each segment has all of them.
async fn fill_mixed(fs: &Fs, files: &[(&str, u64)]) -> Vec<(Ino, Vec<u8>)> {
    let mut all = Vec::new();
    for (at, (name, mib)) in files.iter().enumerate() {
        let mut rng = Rng::new(at as u64 + 1);
        let data: Vec<u8> = (0..mib * MIB / 8)
            .flat_map(|_| rng.u64().to_le_bytes())
            .collect();
        all.push((create(fs, name).await, data));
    }
    let part_len = MIB as usize / 8;
    // From the end on: sequential writes get segments of their own.
    let mib_max = files.iter().map(|(_, mib)| *mib).max().unwrap() as usize;
    for part in (0..8 * mib_max).rev() {
        for (ino, data) in &all {
            if let Some(bytes) = data.chunks(part_len).nth(part) {
                write(fs, *ino, (part * part_len) as u64, bytes).await;
            }
        }
    }
    all
}

/// The bytes of a file in segments in a tier.
fn remote_bytes(fs: &Fs, ino: Ino) -> u64 {
    let mut bytes = 0;
    let (from, to) = cairn_meta::Key::all_extents();
    let visit = |key: &[u8], value: &[u8], _| {
        let key = cairn_meta::KeyKind::parse(key).unwrap();
        let extent = cairn_meta::ExtentRecord::decode(value).unwrap();
        if let cairn_meta::KeyKind::Extent {
            ino: of,
            end_offset,
        } = key
            && of == ino
            && let cairn_meta::ExtentPlace::Record { record, .. } = extent.place
            && let Some(segment) = fs.meta().segment(record.location.segment)
            && segment.remote.is_some()
        {
            bytes += end_offset - extent.start;
        }
        std::ops::ControlFlow::Continue(())
    };
    fs.meta().live().scan_with(&from, &to, visit).unwrap();
    bytes
}

/// The data of selected files is offloaded, in whatever segments it is, and no other data, whether others have most
/// or little of these segments.
#[test]
fn what_is_of_certain_files_goes_and_nothing_else() {
    block_on(async {
        let cases: [(&str, &str, &str, &[&str]); 5] = [
            ("*.mp4", "none", "none", &["large.mp4", "small.mp4"]),
            ("*.mp4", "2MiB", "none", &["large.mp4"]),
            (
                "*.mp4,*.txt",
                "none",
                "none",
                &["large.mp4", "small.mp4", "a.txt"],
            ),
            ("*.gone", "none", "none", &[]),
            ("any", "7MiB", "none", &["a.dat"]),
        ];
        let names = [
            ("large.mp4", 4),
            ("small.mp4", 1),
            ("a.txt", 1),
            ("a.dat", 8),
        ];
        for (seed, (files, min_size, min_age, want)) in (200..).zip(cases) {
            let tier = MemTier::default();
            let policy = of_files(ALL, files, min_size, min_age);
            let world = world_with(seed, 3, &tier, policy.clone()).await;
            let all = fill_mixed(&world.fs, &names).await;
            world.run_for(4 * SEALED_AND_SENT_SECONDS).await;
            check_places(&world, &tier);
            for ((name, _), (ino, data)) in names.iter().zip(&all) {
                let remote = remote_bytes(&world.fs, *ino);
                let wanted = if want.contains(name) {
                    data.len() as u64
                } else {
                    0
                };
                assert_eq!(remote, wanted, "{files} {min_size}: {name}");
            }
            let status = world.fs.tiering_status();
            assert!(status.trouble.is_none(), "{status:?}");
            let world = restarted(world, seed + 100, &tier, policy).await;
            for ((name, _), (ino, data)) in names.iter().zip(&all) {
                let before = world.segments.stats().remote_reads;
                assert!(read_all(&world.fs, *ino, data.len()).await.unwrap() == *data);
                let is_read_there = world.segments.stats().remote_reads > before;
                assert_eq!(is_read_there, want.contains(name), "{name}");
            }
            recount(&world.fs).await;
            // Data in the tier stays until the policy is to have none there.
            world
                .fs
                .set_tiering(Some(of_files(ALL, "*.other", "none", "none")));
            world.run_for(120).await;
            assert_eq!(world.fs.tiering_status().objects > 0, !want.is_empty());
            world.fs.set_tiering(None);
            world.run_for(120).await;
            assert_eq!(tier.objects(), []);
            for (ino, data) in &all {
                assert!(read_all(&world.fs, *ino, data.len()).await.unwrap() == *data);
            }
            recount(&world.fs).await;
            world.fs.close().await.unwrap();
        }
    });
}

/// Gathered data keeps its age: it does not cool for a second time. A change makes its file young again.
#[test]
fn certain_files_go_when_they_are_cold_and_old() {
    block_on(async {
        let tier = MemTier::default();
        let policy = of_files(AUTO, "*.mp4", "none", "4d");
        let world = world_with(210, 3, &tier, policy).await;
        let names = [("old.mp4", 2), ("changed.mp4", 2), ("a.dat", 8)];
        let all = fill_mixed(&world.fs, &names).await;
        let day = async |world: &World| {
            world.clock.advance(Duration::from_secs(24 * 3600));
            world.run_for(4 * SEALED_AND_SENT_SECONDS).await;
        };
        world.run_for(SEALED_AND_SENT_SECONDS).await;
        for _ in 0..3 {
            day(&world).await;
        }
        assert_eq!(tier.objects(), [], "cold, and not old");
        let (changed, _) = all[1];
        write(&world.fs, changed, 0, b"new").await;
        day(&world).await;
        // Looked up again an hour after the round that found it young.
        world.run_for(3700).await;
        world.run_for(2 * SEALED_AND_SENT_SECONDS).await;
        let remote: Vec<u64> = all
            .iter()
            .map(|(ino, _)| remote_bytes(&world.fs, *ino))
            .collect();
        assert_eq!(remote, [2 * MIB, 0, 0], "on the day on which it is old");
        check_places(&world, &tier);
        for _ in 0..4 {
            day(&world).await;
        }
        assert!(remote_bytes(&world.fs, changed) >= MIB, "it is old by now");
        assert_eq!(remote_bytes(&world.fs, all[2].0), 0);
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}

/// A name is the present name of a file. Data that other files share stays with them, and a snapshot's data of a file
/// is offloaded with it.
#[test]
fn names_snapshots_and_sharers_count_as_they_are_now() {
    block_on(async {
        let tier = MemTier::default();
        let world = world_with(220, 3, &tier, of_files(ALL, "*.mp4", "none", "none")).await;
        let names = [("a.dat", 2), ("renamed.dat", 2), ("gone.mp4", 2)];
        let all = fill_mixed(&world.fs, &names).await;
        world.fs.take_snapshot(b"first", b"").await.unwrap();
        let fs = &world.fs;
        let renaming = fs.rename(
            &ROOT_USER,
            ROOT_INO,
            b"renamed.dat",
            ROOT_INO,
            b"renamed.mp4",
        );
        renaming.await.unwrap();
        fs.remove(&ROOT_USER, ROOT_INO, b"gone.mp4").await.unwrap();
        // Half of it belongs to the snapshot alone.
        write(fs, all[1].0, 0, &pattern(MIB as u32, 9)).await;
        world.run_for(4 * SEALED_AND_SENT_SECONDS).await;
        check_places(&world, &tier);
        assert_eq!(remote_bytes(&world.fs, all[1].0), 2 * MIB);
        assert_eq!(remote_bytes(&world.fs, all[0].0), 0);
        let world = restarted(world, 221, &tier, of_files(ALL, "*.mp4", "none", "none")).await;
        let view = world.fs.snapshot(b"first").unwrap().view();
        let view = world.fs.in_view(view).unwrap();
        for (at, ((ino, data), is_remote)) in all.iter().zip([false, true, false]).enumerate() {
            let before = world.segments.stats().remote_reads;
            for (part, want) in data.chunks(MIB as usize).enumerate() {
                let read = view.read(&ROOT_USER, *ino, part as u64 * MIB, MIB as u32);
                assert!(read.await.unwrap().parts.concat() == want, "file {at}");
            }
            let is_read_there = world.segments.stats().remote_reads > before;
            assert_eq!(is_read_there, is_remote, "file {at}");
        }
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}

/// Segments that a crash left without footers are rewritten, and then offloaded.
#[test]
fn what_a_crash_left_unsealed_goes_too() {
    block_on(async {
        let tier = MemTier::default();
        let world = World::new(100, 3).await;
        let (ino, data) = fill(&world.fs, "a", 4, 1).await;
        let world = world.crash(101, Crash::KeepUnsynced).await;
        world.segments.use_tier(TIER, Arc::new(tier.clone()));
        world.fs.set_tiering(Some(ALL));
        world.run_for(3 * SEALED_AND_SENT_SECONDS).await;
        let status = world.fs.tiering_status();
        assert!(status.objects > 0 && status.trouble.is_none(), "{status:?}");
        check_places(&world, &tier);
        assert_eq!(read_all(&world.fs, ino, data.len()).await.unwrap(), data);
        recount(&world.fs).await;
        world.fs.close().await.unwrap();
    });
}

/// The process ends at every write, during offload, promotion and deletion of segments: every byte is there, and
/// after a while each object belongs to a segment and each segment is in one place.
#[test]
fn a_crash_anywhere_loses_nothing() {
    block_on(async {
        for (seed, mode) in [
            (110, Crash::KeepUnsynced),
            (111, Crash::LoseUnsynced),
            (112, Crash::Random),
        ] {
            let tier = MemTier::default();
            let world = World::new(seed, 2).await;
            world.segments.use_tier(TIER, Arc::new(tier.clone()));
            let (ino, data) = fill(&world.fs, "a", 1, seed).await;
            world.run_for(70).await;
            let recorder = Recorder::new(&world.disks);
            let counted = recorder.clone();
            tier.record_with(Arc::new(move || counted.op_count()));
            // Offload,
            world.fs.set_tiering(Some(ALL));
            world.run_for(15).await;
            assert!(world.fs.tiering_status().objects > 0);
            // and promotion.
            world.fs.set_tiering(None);
            world.run_for(15).await;
            assert_eq!(tier.objects(), []);
            let mut remote_count = 0;
            let count = recorder.op_count();
            assert!(count > 10, "{count} writes");
            for index in 0..=count {
                let mut tiers = tier.as_of(index);
                if mode == Crash::Random {
                    // The write at `index` may be there in part, and all changes of the tier were before it.
                    tiers = tiers.split_off(tiers.len() - 1);
                }
                for tier in tiers {
                    let disks = recorder.crash_at(index, mode, index as u64);
                    let world = World::open(seed + 1, disks).await;
                    world.segments.use_tier(TIER, Arc::new(tier.clone()));
                    world.segments.sweep(VOLUME).await.unwrap();
                    remote_count += referred(&world.fs).len();
                    let reading = read_all(&world.fs, ino, data.len());
                    let got = while_time_passes(&world, reading).await;
                    let places = (referred(&world.fs), tier.objects(), on_disks(&world));
                    assert!(
                        got.as_ref() == Ok(&data),
                        "crash at {index} of {count}, {mode:?}: {:?}, {places:?}",
                        got.err()
                    );
                    // Some go on.
                    if index % 4 == 0 {
                        world.fs.set_tiering(Some(ALL));
                        world.run_for(100).await;
                        check_places(&world, &tier);
                        let got = read_all(&world.fs, ino, data.len()).await;
                        assert!(got.unwrap() == data, "after a crash at {index}");
                        recount(&world.fs).await;
                    }
                    world.fs.abandon();
                }
            }
            assert!(remote_count > 0, "no crash came while something was out");
        }
    });
}
