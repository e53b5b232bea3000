//! Appended records are read back: warm, cold, in part, after a crash.

use std::collections::BTreeSet;

use cairn_base::crc32c;
use cairn_shard::{CHECKSUM_UNIT_BYTES, ShardDisk, ShardFooter};
use cairn_testkit::{Crash, Recorder, Rng};
use futures_util::future::join_all;
use proptest::prelude::*;

use super::world::*;
use crate::*;

const CODES: [(u8, u8); 7] = [(1, 0), (1, 1), (1, 2), (2, 2), (3, 2), (4, 2), (16, 2)];

/// Lengths around every limit.
fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        Just(0),
        1..20_usize,
        4090..4100_usize,
        Just(32 << 10),
        32_000..70_000_usize,
        Just(1 << 20),
        1_000_000..=1_048_576_usize,
    ]
}

type Batch = Vec<(usize, bool, bool, u8)>;

fn batches() -> impl Strategy<Value = Vec<(u8, Batch)>> {
    let record = (len(), any::<bool>(), any::<bool>(), 0..3_u8);
    prop::collection::vec((0..3_u8, prop::collection::vec(record, 1..6)), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_was_appended_is_read(pick in 0..CODES.len(), batches in batches(), seed in any::<u32>()) {
        block_on(async {
            let (n, m) = CODES[pick];
            let world = World::new(usize::from(n + m), u64::from(seed)).await;
            let mut rng = Rng::new(u64::from(seed));
            let mut all = Vec::new();
            for (stream, batch) in batches {
                let records = batch.into_iter().map(|(len, text, aligned, compression)| {
                    let compression = [Compression::None, Compression::Lz4, Compression::Zstd(1)][usize::from(compression)];
                    (data(&mut rng, len, text, aligned), compression)
                }).collect();
                let stream = [Stream::Mixed, Stream::File(1), Stream::Rewrite][usize::from(stream)];
                let written = world.append(code(n, m), stream, records).await.expect("appended");
                for each in &written {
                    let mut bytes = Vec::new();
                    encode_pointer(&each.pointer, &mut bytes);
                    assert_eq!(decode_pointer(&bytes), Ok((each.pointer.clone(), &[][..])));
                }
                all.extend(written);
            }
            world.check(&all).await;
            let cold = world.cold(&[]).await;
            for each in &all {
                let len = each.data.len() as u64;
                for _ in 0..4 {
                    let start = rng.below(len + 1);
                    let end = start + rng.below(len - start + 1).min(rng.below(80_000) + 1);
                    let end = end.min(len);
                    let got = cold.read(each, start as u32..end as u32).await.expect("read");
                    assert!(got == each.data[start as usize..end as usize]);
                    let again = cold.store.read_cached(VOLUME, &each.pointer, start as u32..end as u32);
                    assert!(start == end || again.is_some_and(|parts| parts.concat() == got));
                }
            }
            cold.check(&all).await;
            assert_eq!(cold.store.stats().degraded_reads, 0);
            check_footers(&world, n + m).await;
        });
    }
}

/// After sealing, every shard's footer matches its bytes.
async fn check_footers(world: &World, shards: u8) {
    world.store.seal_all(VOLUME).await;
    for info in world.store.segments(VOLUME) {
        assert!(info.sealed);
        for index in 0..shards {
            let (disk, name) = world.shard_file(info.id, index);
            let footer = footer(world, disk, &info, index).await;
            let bytes = world.disks[disk].file_bytes(&name).expect("file");
            let data = &bytes[..footer.data_len_bytes as usize];
            let checksums: Vec<u32> = data
                .chunks(CHECKSUM_UNIT_BYTES as usize)
                .map(crc32c)
                .collect();
            assert_eq!(footer.checksums, checksums, "{name}");
            assert!(!footer.stripes.is_empty());
            assert_eq!(
                (footer.data_shards, footer.parity_shards),
                (info.code.data(), info.code.parity())
            );
        }
    }
}

async fn footer(world: &World, disk: usize, info: &SegmentInfo, index: u8) -> ShardFooter {
    let pool = cairn_base::PoolId(99);
    let disk = ShardDisk::open(world.disks[disk].clone(), pool, Default::default())
        .await
        .expect("disk");
    let name = cairn_shard::ShardName {
        volume: VOLUME,
        segment: info.id,
        index,
    };
    let shard = disk.open_shard(name).await.expect("shard");
    shard.read_footer().await.expect("footer").expect("sealed")
}

#[test]
fn acknowledged_records_survive_a_crash_at_any_moment() {
    block_on(async {
        for (n, m) in [(1, 0), (2, 2)] {
            let world = World::with_capacity(usize::from(n + m), 64 << 20, 5).await;
            let recorder = Recorder::new(&world.disks);
            let mut rng = Rng::new(11);
            // Of each acknowledged append: the number of operations by then, its records, and the known segments.
            let mut acknowledged: Vec<(usize, Vec<Written>, Vec<SegmentInfo>)> = Vec::new();
            for round in 0..4 {
                let records = (0..3)
                    .map(|i| {
                        (
                            data(&mut rng, 3_000 * (i + 1) + round, false, i == 1),
                            Compression::None,
                        )
                    })
                    .collect();
                let stream = if round % 2 == 0 {
                    Stream::Mixed
                } else {
                    Stream::File(3)
                };
                let written = world
                    .append(code(n, m), stream, records)
                    .await
                    .expect("appended");
                acknowledged.push((recorder.op_count(), written, world.store.segments(VOLUME)));
            }
            world.store.seal_all(VOLUME).await;
            for at in 0..=recorder.op_count() {
                let Some(known) = acknowledged.iter().rposition(|(done, ..)| *done <= at) else {
                    continue;
                };
                for mode in Crash::ALL {
                    let disks = recorder.crash_at(at, mode, at as u64);
                    let after = world
                        .restart(disks, &[], acknowledged[known].2.clone())
                        .await;
                    for (_, written, _) in &acknowledged[..=known] {
                        after.check(written).await;
                    }
                    let stats = after.store.stats();
                    assert_eq!(
                        stats.degraded_reads,
                        0,
                        "before {} {mode:?}",
                        recorder.describe(at)
                    );
                    after.store.sweep(VOLUME).await.expect("swept");
                    for (_, written, _) in &acknowledged[..=known] {
                        after.check(written).await;
                    }
                }
            }
        }
    });
}

#[test]
fn a_file_lies_contiguously_beside_others() {
    block_on(async {
        let world = World::new(6, 3).await;
        let mut rng = Rng::new(1);
        let (mut file, mut mixed) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let records = (0..4)
                .map(|_| (data(&mut rng, 1 << 20, false, true), Compression::None))
                .collect();
            file.extend(
                world
                    .append(code(4, 2), Stream::File(9), records)
                    .await
                    .expect("file"),
            );
            mixed.extend(
                world
                    .append_ok(code(4, 2), vec![data(&mut rng, 5000, false, false)])
                    .await,
            );
        }
        let places: Vec<_> = file
            .iter()
            .map(|each| {
                (
                    each.pointer.location.segment,
                    each.pointer.location.stripe_block,
                )
            })
            .collect();
        let first = places[0].0;
        // 16 MiB of each disk for a shard: the first four stripes of 1 MiB units follow each other.
        let stripes: BTreeSet<u32> = places
            .iter()
            .filter(|place| place.0 == first)
            .map(|place| place.1)
            .collect();
        assert_eq!(
            stripes.into_iter().collect::<Vec<_>>(),
            (0..5).map(|stripe| stripe * 256).collect::<Vec<_>>()
        );
        assert!(
            mixed
                .iter()
                .all(|each| each.pointer.location.segment != first)
        );
        world.check(&file).await;
        let stats = world.store.stats();
        assert_eq!(stats.open_segments, 2);
        assert_eq!(stats.appended_bytes, (20 << 20) + 5 * 5000);
        assert!(stats.padding_bytes <= 5 * 4 * 4096);
    });
}

#[test]
fn concurrent_misses_are_fetched_once() {
    block_on(async {
        let world = World::new(1, 3).await;
        let mut rng = Rng::new(1);
        let written = world
            .append_ok(code(1, 0), vec![data(&mut rng, 1 << 20, false, true)])
            .await;
        let cases: &[(std::ops::Range<u32>, u64)] =
            &[(0..1 << 20, 1), (100_000..100_100, 1), (60_000..140_000, 1)];
        for (range, want) in cases {
            let cold = world.cold(&[]).await;
            cold.disks[0].yield_at_random(1, 5);
            let reads = (0..8).map(|_| cold.read(&written[0], range.clone()));
            for got in join_all(reads).await {
                assert!(
                    got.expect("read") == written[0].data[range.start as usize..range.end as usize]
                );
            }
            assert_eq!(cold.store.stats().disk_reads, *want, "{range:?}");
            cold.disks[0].yield_at_random(1, 0);
        }
    });
}

#[test]
fn a_small_read_fetches_its_granules_only() {
    block_on(async {
        let world = World::new(6, 3).await;
        let mut rng = Rng::new(1);
        let written = world
            .append_ok(code(4, 2), vec![data(&mut rng, 1 << 20, false, true)])
            .await;
        let granule = u64::from(CHECKSUM_GRANULE_BYTES);
        let cases = [
            (0..1, granule),
            (32_767..32_769, 2 * granule),
            (1_048_575..1_048_576, granule),
            (5..600_000, 1 << 20),
        ];
        for (range, want) in cases {
            let cold = world.cold(&[]).await;
            cold.read(&written[0], range.clone()).await.expect("read");
            assert_eq!(cold.store.stats().disk_read_bytes, want, "{range:?}");
        }
        // A record that was just written needs no disk if the writer caches it.
        world
            .store
            .cache_insert(VOLUME, &written[0].pointer, written[0].data.clone());
        world.check(&written).await;
        assert_eq!(world.store.stats().disk_reads, 0);
    });
}

#[test]
fn the_cache_takes_what_was_written_uncopied_unless_that_keeps_much_more_in_memory() {
    block_on(async {
        const KIB: usize = 1 << 10;
        let world = World::new(1, 3).await;
        let mut rng = Rng::new(1);
        // Length of the record, number of parts, length of their buffers, and whether it is copied.
        let cases = [
            (4 * KIB, 1, 4 * KIB, false),
            (128 * KIB, 1, 128 * KIB, false),
            (128 * KIB, 1, 160 * KIB, false),
            (128 * KIB, 1, 160 * KIB + 1, true),
            (4 * KIB, 1, 1024 * KIB, true),
            (128 * KIB, 8, 128 * KIB, false),
            (128 * KIB, 9, 128 * KIB, true),
            // Slices of neighbours that are kept, too.
            (128 * KIB + 1, 1, 1024 * KIB, false),
            (1024 * KIB, 256, 1024 * KIB, false),
        ];
        for (len, part_count, held, is_copied) in cases {
            let written = world
                .append_ok(code(1, 0), vec![data(&mut rng, len, false, true)])
                .await;
            let Written { pointer, data } = &written[0];
            let part_len = len.div_ceil(part_count);
            let starts = (0..len).step_by(part_len);
            let parts = starts.map(|start| data.slice(start..(start + part_len).min(len)));
            world
                .store
                .cache_insert_parts(VOLUME, pointer, parts.collect(), held as u64);
            let found = world.store.read_cached(VOLUME, pointer, 0..len as u32);
            let found = found.expect("it is there");
            assert!(found.concat() == data[..], "{len} {part_count} {held}");
            let is_same = found[0].as_ptr() == data.as_ptr();
            assert_eq!(is_same, !is_copied, "{len} {part_count} {held}");
        }
    });
}

#[test]
fn impossible_reads_are_refused() {
    block_on(async {
        let world = World::new(2, 3).await;
        let mut rng = Rng::new(1);
        let written = world
            .append_ok(code(1, 1), vec![data(&mut rng, 10_000, false, true)])
            .await;
        let good = &written[0].pointer;
        type Change = fn(&mut RecordPointer);
        let cases: &[(&str, Change, std::ops::Range<u32>, ErrorKind)] = &[
            ("past the end", |_| (), 0..10_001, ErrorKind::Refused),
            (
                "unknown segment",
                |pointer| pointer.location.segment.0 = 77,
                0..1,
                ErrorKind::Gone,
            ),
            (
                "outside of the shard",
                |pointer| pointer.location.stripe_block = u32::MAX,
                0..1,
                ErrorKind::Refused,
            ),
            (
                "outside of the stripe",
                |pointer| pointer.location.offset_bytes = 4096,
                0..1,
                ErrorKind::Refused,
            ),
            (
                "no unit",
                |pointer| pointer.location.unit_blocks = 0,
                0..1,
                ErrorKind::Refused,
            ),
            (
                "a checksum too few",
                |pointer| pointer.checksums.clear(),
                0..1,
                ErrorKind::Refused,
            ),
            (
                "another's checksum",
                |pointer| pointer.checksums[0] ^= 1,
                0..1,
                ErrorKind::Damaged,
            ),
            (
                "another's bytes",
                |pointer| {
                    pointer.codec = Codec::Zstd;
                    pointer.file_len_bytes = 20_000
                },
                0..1,
                ErrorKind::Damaged,
            ),
        ];
        for (name, change, range, want) in cases {
            let mut pointer = good.clone();
            change(&mut pointer);
            let got = world.store.read(VOLUME, &pointer, range.clone()).await;
            assert_eq!(got.map_err(|error| error.kind()), Err(*want), "{name}");
        }
        let other = cairn_base::VolumeId(8);
        let got = world.store.read(other, good, 0..1).await;
        assert_eq!(got.map_err(|error| error.kind()), Err(ErrorKind::Refused));
        world.check(&written).await;
    });
}

#[test]
fn appends_reads_sealing_and_damage_may_all_happen_at_once() {
    for seed in 0..8 {
        block_on(async {
            let world = World::with_capacity(6, 256 << 20, seed).await;
            for (index, disk) in world.disks.iter().enumerate() {
                disk.yield_at_random(seed + index as u64, 4);
            }
            let writer = |stream: u64| {
                let world = &world;
                async move {
                    let mut rng = Rng::new(seed * 100 + stream);
                    let mut all: Vec<Written> = Vec::new();
                    for round in 0..12 {
                        let count = 1 + rng.below(3);
                        let records = (0..count)
                            .map(|_| {
                                let len = rng.below(400_000) as usize;
                                (
                                    data(&mut rng, len, round % 3 == 0, round % 2 == 0),
                                    Compression::Lz4,
                                )
                            })
                            .collect();
                        let kind = if stream < 2 {
                            Stream::Mixed
                        } else {
                            Stream::File(stream)
                        };
                        let written = world
                            .append(code(4, 2), kind, records)
                            .await
                            .expect("appended");
                        world.check(&written).await;
                        all.extend(written);
                        match rng.below(6) {
                            0 => world.store.seal_all(VOLUME).await,
                            1 => {
                                // A caller that goes away in between leaves nothing incomplete.
                                let record = world.encode(
                                    vec![data(&mut rng, 90_000, false, true)],
                                    Compression::None,
                                );
                                let append =
                                    world.store.append(VOLUME, code(4, 2), kind, vec![record]);
                                let _ = futures_util::FutureExt::now_or_never(append);
                            }
                            _ => {}
                        }
                    }
                    all
                }
            };
            let all = join_all((0..5).map(writer)).await.concat();
            let cold = world.cold(&[0, 3]).await;
            cold.check(&all).await;
            assert_eq!(cold.store.stats().checksum_errors, 0);
            check_footers(&world, 6).await;
        });
    }
}
