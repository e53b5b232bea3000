//! Several records at once: the bytes and errors of single reads, with fewer reads.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_erasure::Code;
use cairn_testkit::Rng;
use proptest::prelude::*;

use super::world::*;
use crate::*;

/// A part of a record, and the expected bytes.
fn part(written: &Written, range: Range<u32>) -> (WantedPart, Vec<u8>) {
    let bytes = written.data[range.start as usize..range.end as usize].to_vec();
    ((Arc::new(written.pointer.clone()), range), bytes)
}

/// Appends small records, as a flush of many small writes does.
async fn append_small(world: &World, code: Code, lens: &[usize], rng: &mut Rng) -> Vec<Written> {
    let compressions = [
        Compression::None,
        Compression::None,
        Compression::Lz4,
        Compression::Zstd(1),
    ];
    let records = lens.iter().map(|len| {
        let compression = compressions[rng.below(4) as usize];
        let is_text = compression != Compression::None;
        let is_aligned = rng.below(2) == 0;
        (data(rng, *len, is_text, is_aligned), compression)
    });
    let records: Vec<_> = records.collect();
    let written = world.append(code, Stream::Mixed, records).await;
    written.expect("appended")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn parts_of_many_records_are_what_each_gives(
        pick in 0..4_usize,
        lens in prop::collection::vec(prop_oneof![1..20_usize, Just(4096), 4000..9000_usize, 60_000..140_000_usize], 2..40),
        wants in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>()), 1..60),
        away in any::<bool>(),
        seed in any::<u32>(),
    ) {
        block_on(async {
            let (n, m) = [(1, 0), (1, 1), (2, 2), (4, 2)][pick];
            let world = World::new(usize::from(n + m), u64::from(seed)).await;
            let mut rng = Rng::new(u64::from(seed));
            let all = append_small(&world, code(n, m), &lens, &mut rng).await;
            let mut parts = Vec::new();
            for (record, start, len) in wants {
                let written = &all[record as usize % all.len()];
                let whole = written.data.len() as u32;
                let start = start % (whole + 1);
                let end = start + len % (whole - start + 1);
                parts.push(part(written, start..end));
            }
            let away: &[usize] = if away && m > 0 { &[0] } else { &[] };
            let cold = world.cold(away).await;
            let wanted: Vec<WantedPart> = parts.iter().map(|(wanted, _)| wanted.clone()).collect();
            // Several readers in parallel, in different orders: none waits for another for ever.
            let backwards: Vec<WantedPart> = wanted.iter().rev().cloned().collect();
            let (found, other) = futures_util::join!(
                cold.store.read_many(VOLUME, &wanted),
                cold.store.read_many_in_order(VOLUME, &backwards),
            );
            prop_assert_eq!(found.len(), parts.len());
            for (found, (_, want)) in found.into_iter().zip(&parts) {
                prop_assert_eq!(&found.expect("read").concat(), want);
            }
            for (found, (_, want)) in other.into_iter().zip(parts.iter().rev()) {
                prop_assert_eq!(&found.expect("read").concat(), want);
            }
            Ok(())
        })?;
    }
}

#[test]
fn neighbours_come_with_one_read_of_each_shard() {
    block_on(async {
        let world = World::new(6, 2).await;
        let mut rng = Rng::new(1);
        let records = (0..256).map(|_| data(&mut rng, 4096, false, true));
        let all = world.append_ok(code(4, 2), records.collect()).await;
        let cold = world.cold(&[]).await;
        // Every other record: the gaps are read along.
        let parts = all.iter().step_by(2).map(|written| part(written, 0..4096));
        let (wanted, want): (Vec<WantedPart>, Vec<Vec<u8>>) = parts.unzip();
        let found = cold.store.read_many(VOLUME, &wanted).await;
        let found: Vec<Vec<u8>> = found
            .into_iter()
            .map(|found| found.expect("read").concat())
            .collect();
        assert!(found == want);
        let stats = cold.store.stats();
        assert_eq!(stats.merged_reads, 128);
        assert!(
            stats.disk_reads <= 8,
            "{} of four data shards",
            stats.disk_reads
        );
        // They are cached one by one, and nothing else is.
        assert!(
            cold.store
                .read_cached(VOLUME, &all[2].pointer, 0..4096)
                .is_some()
        );
        assert!(
            cold.store
                .read_cached(VOLUME, &all[1].pointer, 0..4096)
                .is_none()
        );
    });
}

/// A bad record does not affect its neighbours: with parity it is recovered, and without it is the only one that fails.
#[test]
fn a_damaged_record_is_told_from_its_neighbours() {
    block_on(async {
        for parity in [0, 1] {
            let world = World::new(1 + usize::from(parity), 2).await;
            let mut rng = Rng::new(1);
            let records = (0..8).map(|_| data(&mut rng, 4096, false, true));
            let all = world.append_ok(code(1, parity), records.collect()).await;
            let cold = world.cold(&[]).await;
            let bad = &all[3].pointer.location;
            let (disk, name) = cold.shard_file(bad.segment, 0);
            let at = bad.stripe_offset_bytes() + u64::from(bad.offset_bytes);
            cold.disks[disk].flip_bit(&name, at + 100, 3);
            let wanted: Vec<WantedPart> =
                all.iter().map(|written| part(written, 0..4096).0).collect();
            let found = cold.store.read_many(VOLUME, &wanted).await;
            for (index, (found, written)) in found.into_iter().zip(&all).enumerate() {
                match found {
                    Ok(bytes) => assert!(bytes.concat() == written.data, "record {index}"),
                    Err(error) => {
                        assert_eq!((parity, index), (0, 3), "{error}");
                        assert_eq!(error.kind(), ErrorKind::Damaged);
                    }
                }
            }
            let stats = cold.store.stats();
            assert_eq!(stats.damaged_reads, u64::from(parity == 0));
            assert_eq!(stats.merged_reads, 7);
        }
    });
}

/// Corrupt metadata has two records that begin in one place: a fetch of one of them does not wait for its own fetch of
/// the other.
#[test]
fn records_that_begin_in_one_place_do_not_wait_for_each_other() {
    block_on(async {
        let world = World::new(2, 2).await;
        let mut rng = Rng::new(1);
        let records = (0..4).map(|_| data(&mut rng, 4096, false, true));
        let all = world.append_ok(code(1, 1), records.collect()).await;
        let mut shorter = all[1].pointer.clone();
        shorter.location.len_bytes = 2048;
        shorter.file_len_bytes = 2048;
        shorter.checksums = vec![crate::record::checksum_of(&[all[1].data.slice(..2048)])];
        let cold = world.cold(&[]).await;
        let mut wanted: Vec<WantedPart> =
            all.iter().map(|written| part(written, 0..4096).0).collect();
        wanted.push((Arc::new(shorter), 0..2048));
        let found = cold.store.read_many(VOLUME, &wanted).await;
        for (found, written) in found.into_iter().zip(all.iter().chain([&all[1]])) {
            let found = found.expect("read").concat();
            assert!(!found.is_empty() && written.data.starts_with(&found));
        }
    });
}

/// The returned part of a large record keeps no more memory than it needs.
#[test]
fn small_parts_of_unpacked_records_are_copies() {
    block_on(async {
        let world = World::new(2, 2).await;
        let records = (0..8).map(|_| (Bytes::from(vec![7; 1 << 20]), Compression::Lz4));
        let written = world
            .append(code(1, 1), Stream::Mixed, records.collect())
            .await;
        let all = written.expect("appended");
        assert!(
            all.iter()
                .all(|it| it.pointer.location.len_bytes < 64 << 10)
        );
        let cold = world.cold(&[]).await;
        for _ in 0..2 {
            let parts = all.iter().map(|written| part(written, 4096..8192).0);
            let found = cold
                .store
                .read_many(VOLUME, &parts.collect::<Vec<_>>())
                .await;
            for found in found {
                let found = found.expect("read");
                assert_eq!(found.concat(), [7_u8; 4096]);
                // A slice of the record would share its buffer with the cache.
                assert!(found.iter().all(Bytes::is_unique));
            }
        }
    });
}
