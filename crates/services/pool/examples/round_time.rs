//! How long a round of the rebuild takes before it does anything, by the number of segments.
//!
//! `cargo run --release -p cairn-pool --example round_time -- 10000 100000 1000000`
//!
//! 24 disks, of which one is draining; segments of 10+2 on disks in turn. `all`: all segments are listed, as rounds did
//! once. `at stake`: those on the disk are. `go on`: a step from what the last look found.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_base::disk::Disk;
use cairn_base::{DiskId, Epoch, PoolId, SegmentId, Timestamp, VolumeId};
use cairn_erasure::Code;
use cairn_pool::planner::{Observed, Planner, SeenContent, SeenDisk, SeenVolume};
use cairn_segment::{SegmentInfo, SegmentSettings, SegmentStore};
use cairn_shard::{ShardDisk, ShardSettings};
use cairn_testkit::{MemDisk, TestWorld};

const VOLUME: VolumeId = VolumeId(1);
const DISK_COUNT: u128 = 24;
const LEAVING: DiskId = DiskId(DISK_COUNT);
const ROUNDS: u32 = 5;

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    println!("segments  on_the_disk  all_ms  at_stake_ms  go_on_ms");
    for count in std::env::args().skip(1) {
        let count: u64 = count.parse()?;
        measure(count, 100.min(count)).await?;
        measure(count, count / 2).await?;
    }
    Ok(())
}

/// As many segments, of which so many have a shard on the disk that leaves.
fn segments(count: u64, on_it: u64, code: Code) -> Vec<SegmentInfo> {
    let width = u128::from(code.total());
    let info = |id: u64| {
        let first = u128::from(id) % (DISK_COUNT - width);
        let mut disks: Vec<DiskId> = (1..=width).map(|index| DiskId(first + index)).collect();
        if id < on_it {
            disks[0] = LEAVING;
        } else if disks.contains(&LEAVING) {
            disks.retain(|disk| *disk != LEAVING);
            disks.push(DiskId(1));
        }
        SegmentInfo {
            id: SegmentId(id),
            code,
            disks,
            shard_len_bytes: 8 << 20,
            sealed: true,
            remote: None,
            media: None,
            protection: None,
        }
    };
    (0..count).map(info).collect()
}

async fn measure(count: u64, on_it: u64) -> Result<(), Failure> {
    let code = Code::new(10, 2)?;
    let world = TestWorld::new(1);
    let mut disks = Vec::new();
    for id in 1..=DISK_COUNT {
        let disk: Arc<dyn Disk> = MemDisk::new(format!("disk{id}"), 1 << 30);
        let made = ShardDisk::format(
            Arc::clone(&disk),
            PoolId(7),
            DiskId(id),
            Timestamp::default(),
        );
        made.await?;
        disks.push(ShardDisk::open(disk, PoolId(7), ShardSettings::default()).await?);
    }
    let store = SegmentStore::new(
        world.env.clone(),
        SegmentSettings::default(),
        disks,
        Vec::new(),
    );
    let allocate = Arc::new(|| SegmentId(u64::MAX));
    let opening = store.open_volume(VOLUME, Epoch(1), allocate, segments(count, on_it, code));
    opening.await?;

    let mut planner = Planner::new(Duration::ZERO);
    let all = timed(|| {
        let segments = store.segments(VOLUME);
        planner.step(&observed(&store, segments, code)).len()
    });
    let at_stake = timed(|| {
        let segments = store.segments_at_stake(VOLUME, |disk| disk != LEAVING, |_| code.parity());
        planner
            .step(&observed(&store, segments.unwrap_or_default(), code))
            .len()
    });
    planner.note_look(Duration::ZERO, Duration::from_secs(1));
    let go_on = timed(|| {
        let actions = planner.go_on(&seen_disks(), Duration::ZERO);
        actions.map_or(0, |actions| actions.len())
    });
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    println!(
        "{count:8}  {on_it:11}  {:6.2}  {:11.2}  {:8.3}",
        ms(all),
        ms(at_stake),
        ms(go_on)
    );
    Ok(())
}

/// The mean of some rounds.
fn timed(mut round: impl FnMut() -> usize) -> Duration {
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        std::hint::black_box(round());
    }
    begun.elapsed() / ROUNDS
}

fn seen_disks() -> Vec<SeenDisk> {
    let seen = |id| SeenDisk {
        is_awaited: false,
        id: DiskId(id),
        is_draining: DiskId(id) == LEAVING,
        is_replaced: false,
        works: true,
        holds_nothing: false,
    };
    (1..=DISK_COUNT).map(seen).collect()
}

fn observed(store: &SegmentStore, segments: Vec<SegmentInfo>, code: Code) -> Observed {
    let record = |info: &SegmentInfo| (info.id, (1 << 20, info.disks.clone()));
    let records: BTreeMap<_, _> = segments.iter().map(record).collect();
    Observed {
        now: Duration::ZERO,
        disks: seen_disks(),
        volumes: vec![SeenVolume {
            is_elsewhere: false,
            id: VOLUME,
            name: "main".to_owned(),
            content: Some(SeenContent {
                segments,
                records,
                codes: BTreeMap::from([(None, code)]),
                copies: 3,
                copies_wanted: 3,
                ..SeenContent::default()
            }),
        }],
        room: store.move_room(),
        free_bytes: 1 << 40,
        default_code: code,
    }
}
