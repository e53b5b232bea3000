//! Summaries: they name exactly the appended records, have the protection of the data, and may be missing but never
//! wrong.

use std::collections::BTreeMap;

use cairn_base::SegmentId;
use cairn_erasure::Code;
use cairn_testkit::Rng;
use proptest::prelude::*;

use super::world::*;
use crate::*;

/// Appends records with owners; returns the expected summaries of their segments, sorted.
async fn append_owned(
    world: &World,
    code: Code,
    stream: Stream,
    lens: &[(u64, u64, usize)],
) -> BTreeMap<SegmentId, Vec<SummaryEntry>> {
    let mut rng = Rng::new(lens.len() as u64);
    let records: Vec<EncodedRecord> = lens
        .iter()
        .map(|(object, offset, len)| {
            let owner = RecordOwner {
                object: *object,
                offset: *offset,
            };
            let data = data(&mut rng, *len, len % 2 == 0, len % 3 == 0);
            world.encode(vec![data], Compression::Lz4).owned_by(owner)
        })
        .collect();
    let appended = world
        .store
        .append(VOLUME, code, stream, records.clone())
        .await
        .expect("appended");
    let mut of_segments: BTreeMap<SegmentId, Vec<SummaryEntry>> = BTreeMap::new();
    for (record, location) in records.iter().zip(&appended.locations) {
        let entries = of_segments.entry(location.segment).or_default();
        entries.push(SummaryEntry {
            owner: record.owner().expect("owner"),
            len_bytes: record.file_len_bytes(),
        });
    }
    of_segments
}

async fn summary(world: &World, segment: SegmentId) -> Option<Vec<SummaryEntry>> {
    let summary = world.store.summary(VOLUME, segment).await;
    summary.expect("the segment is there")
}

type Lens = Vec<(u64, u64, usize)>;

fn lens() -> impl Strategy<Value = Lens> {
    prop::collection::vec((0..5u64, any::<u64>(), 1..200_000usize), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_summary_names_exactly_what_was_appended(
        appends in prop::collection::vec(lens(), 1..4),
        (n, m) in prop::sample::select(vec![(1u8, 0u8), (1, 2), (2, 1), (4, 2)]),
        away in 0..6usize,
    ) {
        block_on(async {
            let mut world = World::new(6, 1).await;
            world.settings.shard_len_bytes = 1 << 20;
            world.settings.shard_len_bytes_min = 1 << 20;
            let world = world.cold(&[]).await;
            let mut want: BTreeMap<SegmentId, Vec<SummaryEntry>> = BTreeMap::new();
            for lens in &appends {
                for (id, entries) in append_owned(&world, code(n, m), Stream::Mixed, lens).await {
                    want.entry(id).or_default().extend(entries);
                }
            }
            for id in want.keys().filter(|id| world.store.is_open(VOLUME, **id)) {
                assert_eq!(summary(&world, *id).await, None, "not sealed");
            }
            world.store.seal_all(VOLUME).await;
            // Any disk may be missing, if there is redundancy.
            let away: &[usize] = if m > 0 { &[away] } else { &[] };
            let world = world.cold(away).await;
            for (id, mut entries) in want {
                entries.sort_unstable();
                assert_eq!(summary(&world, id).await, Some(entries));
            }
        });
    }
}

#[test]
fn a_segment_is_full_when_its_summary_is() {
    block_on(async {
        let world = World::new(1, 2).await;
        // Small records: the room for data would fit many more.
        let count = cairn_formats::summary::SUMMARY_ENTRIES_MAX as u64 + 100;
        let mut found = BTreeMap::new();
        for first in (0..count).step_by(4096) {
            let lens: Lens = (first..count.min(first + 4096))
                .map(|at| (1, at, 16))
                .collect();
            for (id, entries) in append_owned(&world, code(1, 0), Stream::Mixed, &lens).await {
                found.entry(id).or_insert_with(Vec::new).extend(entries);
            }
        }
        world.store.seal_all(VOLUME).await;
        let counts: Vec<usize> = found.values().map(Vec::len).collect();
        assert_eq!(counts.len(), 2, "{counts:?}");
        assert!(counts[0] <= cairn_formats::summary::SUMMARY_ENTRIES_MAX);
        for (id, entries) in found {
            assert_eq!(summary(&world, id).await, Some(entries));
        }
    });
}

#[test]
fn what_has_no_owner_leaves_its_segment_without_a_summary() {
    block_on(async {
        let world = World::new(4, 3).await;
        let of_segments = append_owned(&world, code(2, 2), Stream::Mixed, &[(1, 0, 5000)]).await;
        let id = *of_segments.keys().next().unwrap();
        let mut rng = Rng::new(4);
        let record = world.encode(vec![data(&mut rng, 5000, true, true)], Compression::None);
        let appended = world
            .store
            .append(VOLUME, code(2, 2), Stream::Mixed, vec![record])
            .await;
        assert_eq!(appended.unwrap().locations[0].segment, id);
        world.store.seal_all(VOLUME).await;
        assert_eq!(summary(&world, id).await, None);
    });
}

#[test]
fn a_summary_that_is_damaged_or_was_never_written_is_none() {
    for (damaged_shards, is_there) in [(0..1, true), (0..2, false)] {
        block_on(check_damaged(damaged_shards, is_there));
    }
}

async fn check_damaged(damaged_shards: std::ops::Range<u8>, is_there: bool) {
    let world = World::new(3, 4).await;
    let lens: Lens = (0..10).map(|at| (1, at << 20, 3000)).collect();
    let of_segments = append_owned(&world, code(2, 1), Stream::Mixed, &lens).await;
    let (id, entries) = of_segments.into_iter().next().unwrap();
    // A crash.
    let crashed = world.cold(&[]).await;
    assert_eq!(summary(&crashed, id).await, None);

    world.store.seal_all(VOLUME).await;
    assert_eq!(summary(&world, id).await, Some(entries.clone()));
    // It is the last stripe; one shard more than the code survives is corrupt there.
    let info = world.store.segment(VOLUME, id).unwrap();
    for shard in damaged_shards.clone() {
        let (disk, file) = world.shard_file(id, shard);
        world.disks[disk].flip_bit(&file, info.shard_len_bytes - 4096, 1);
    }
    let damaged = world.cold(&[]).await;
    let want = is_there.then_some(entries);
    assert_eq!(summary(&damaged, id).await, want, "{damaged_shards:?}");
    // No data is lost.
    let stats = damaged.store.stats();
    assert_eq!((stats.damaged_reads, stats.unreachable_reads), (0, 0));
}
