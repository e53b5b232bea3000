//! Owners that look at the space of a disk at the same time do not fill it together.

use std::sync::Arc;

use cairn_base::Epoch;
use cairn_base::env::BoxFuture;
use cairn_base::planted::{self, Bug};
use cairn_shard::{ShardDisk, ShardErrorKind, ShardService};
use cairn_testkit::{MemDisk, OpKind, Pace, Rng};
use futures_util::future::join_all;

use crate::common::{block_on, name, open};

const EPOCH: Epoch = Epoch(1);
const DISK_BYTES: u64 = 16 << 20;
const CASES: u64 = 60;

/// Each operation lets others go first.
struct Yields;

impl Pace for Yields {
    fn pause(&self, _kind: OpKind, _name: &str) -> Option<BoxFuture<()>> {
        Some(Box::pin(tokio::task::yield_now()))
    }
}

/// One owner: looks at the space, and makes shards as long as that says there is room beside what it keeps. The least that
/// was ever free of what was to be kept, if that was too little.
async fn owner(
    shards: Arc<ShardDisk>,
    volume: u32,
    kept_bytes: u64,
    seed: u64,
) -> Result<u64, String> {
    let mut rng = Rng::new(seed);
    let mut made = 0;
    for segment in 1..200 {
        let capacity_bytes = 4096 * (1 + rng.below(64));
        let shard = name(volume, segment, 0);
        let before = shards.space().unwrap().free_bytes;
        if before < kept_bytes + capacity_bytes {
            break;
        }
        let created = match rng.coin() {
            true => {
                let created = shards.clone();
                ShardService::create(created, EPOCH, shard, capacity_bytes, kept_bytes).await
            }
            false => {
                let hidden =
                    ShardService::create_hidden(&*shards, EPOCH, shard, capacity_bytes, kept_bytes)
                        .await;
                hidden.map(drop)
            }
        };
        match created {
            Ok(()) => made += 1,
            Err(error) if error.kind() == ShardErrorKind::Full => continue,
            Err(error) => return Err(error.to_string()),
        }
        let free = shards.space().unwrap().free_bytes;
        if free < kept_bytes {
            return Err(format!(
                "{free} bytes are free, and {kept_bytes} were to be kept"
            ));
        }
    }
    Ok(made)
}

/// Several owners, which keep the same, as owners do; what the first of them complains of.
fn fill_together(seed: u64) -> Result<u64, String> {
    block_on(async {
        let mut rng = Rng::new(seed);
        let disk = MemDisk::new("mem", DISK_BYTES);
        let shards = open(disk.clone()).await;
        disk.pace_with(Arc::new(Yields));
        let kept_bytes = 4096 * (1 + rng.below(1024));
        let owners = (1..=2 + rng.below(5) as u32).map(|volume| {
            let seed = rng.u64();
            owner(shards.clone(), volume, kept_bytes, seed)
        });
        let mut made = 0;
        for done in join_all(owners.collect::<Vec<_>>()).await {
            made += done?;
        }
        Ok(made)
    })
}

#[test]
fn owners_together_leave_what_each_keeps() {
    for seed in 1..=CASES {
        let made = fill_together(seed);
        assert!(
            made.as_ref().is_ok_and(|made| *made > 10),
            "seed {seed}: {made:?}"
        );
    }
}

#[test]
fn it_is_noticed_if_they_do_not() {
    planted::plant(Some(Bug::SpaceClaimedTogether));
    let failed = (1..=CASES)
        .filter(|seed| fill_together(*seed).is_err())
        .count();
    planted::plant(None);
    assert!(failed > 0);
}

#[test]
fn space_that_is_kept_is_kept_to_the_byte_and_the_log_takes_it_all() {
    block_on(async {
        let shards = open(MemDisk::new("mem", DISK_BYTES)).await;
        // Promises and names take their space first.
        let first = ShardService::create(shards.clone(), EPOCH, name(1, 1, 0), 4096, 0).await;
        first.unwrap();
        let free = shards.space().unwrap().free_bytes;
        let len = cairn_shard::file_len_bytes(64 << 10).unwrap();
        for (segment, kept_bytes, fits) in [
            (2, free - len + 1, false),
            (2, u64::MAX, false),
            (2, free - len, true),
        ] {
            let made = ShardService::create(
                shards.clone(),
                EPOCH,
                name(1, segment, 0),
                64 << 10,
                kept_bytes,
            )
            .await;
            let kind = made.err().map(|error| error.kind());
            assert_eq!(
                kind,
                (!fits).then_some(ShardErrorKind::Full),
                "{kept_bytes}"
            );
        }
        let rest = ShardService::create(shards.clone(), EPOCH, name(1, 3, 0), 64 << 10, 0).await;
        rest.unwrap();
        // It is the disk that has no room, and no sign of a bad disk.
        assert!(!shards.health().failed);
        assert_eq!(shards.health().full_errors, 0);
    });
}
