//! Disks that are full or fail, and syncs that fail.

use cairn_base::VolumeId;
use cairn_shard::{ShardError, ShardErrorKind, ShardSettings};
use cairn_testkit::{Fault, FaultRule, MemDisk, OpKind, Recorder};
use futures_util::FutureExt;
use futures_util::future::join_all;

use crate::common::{
    CAPACITY, block_on, crashes, fill, footer_of, kind, mem_disk, name, open, open_with,
};

#[test]
fn a_full_disk_is_reported_and_recovers() {
    block_on(async {
        let disk = MemDisk::new("small", 2 << 20);
        let shards = open(disk).await;
        let mut made = Vec::new();
        let error = loop {
            match shards.create(name(1, made.len() as u64, 0), CAPACITY).await {
                Ok(shard) => made.push(shard),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ShardErrorKind::Full);
        assert!(made.len() > 3);
        let health = shards.health();
        assert!(health.full_errors > 0 && !health.failed && health.write_errors == 0);
        made[0].write_at(0, vec![fill(4096, 1)]).await.unwrap();
        made[0].sync().await.unwrap();
        assert_eq!(made[0].read_at(0, 4096).await.unwrap(), fill(4096, 1));
        // Space comes back when nobody holds the shard any more.
        let last = made.pop().unwrap().name();
        shards.remove(last).await.unwrap();
        shards.release_recycled().await.unwrap();
        shards.create(name(1, 100, 0), CAPACITY).await.unwrap();
    });
}

#[test]
fn errors_are_counted_and_many_in_a_row_make_a_disk_suspect() {
    block_on(async {
        let disk = mem_disk();
        let settings = ShardSettings {
            errors_in_a_row_max: 3,
            ..ShardSettings::default()
        };
        let shards = open_with(disk.clone(), settings).await;
        let shard = shards.create(name(1, 1, 0), CAPACITY).await.unwrap();
        for _ in 0..2 {
            disk.fail_all();
            assert_eq!(kind(shard.read_at(0, 4096).await), Some(ShardErrorKind::Io));
            let write = shard.write_at(0, vec![fill(4096, 1)]).await;
            assert_eq!(kind(write), Some(ShardErrorKind::Io));
            disk.clear_faults();
            shard.read_at(0, 4096).await.unwrap();
        }
        shards.note_checksum_error();
        let health = shards.health();
        assert_eq!((health.read_errors, health.write_errors), (2, 2));
        assert_eq!((health.checksum_errors, health.failed), (1, false));
        disk.fail_all();
        for _ in 0..3 {
            assert!(shard.read_at(0, 4096).await.is_err());
        }
        disk.clear_faults();
        shard.read_at(0, 4096).await.unwrap();
        assert!(shards.health().suspect);
    });
}

#[test]
fn a_probe_finds_out_whether_a_disk_works() {
    block_on(async {
        let disk = mem_disk();
        let shards = open(disk.clone()).await;
        for _ in 0..3 {
            assert_eq!(shards.probe().await, Ok(()));
        }
        assert_eq!(shards.list(VolumeId(1)).await, Ok(Vec::new()));
        disk.inject(FaultRule {
            kind: Some(OpKind::WriteDurable),
            name_part: "watch".to_owned(),
            skip: 0,
            times: 1,
            fault: Fault::Full,
        });
        assert_eq!(shards.probe().await, Ok(()), "full is no failure");
        disk.fail_all();
        for _ in 0..ShardSettings::default().errors_in_a_row_max {
            assert!(!shards.health().suspect);
            assert!(shards.probe().await.is_err());
        }
        assert!(shards.health().suspect);
    });
}

/// What only reaches the page cache goes well, and what the folders hold.
#[test]
fn a_disk_that_makes_nothing_durable_is_suspect() {
    block_on(async {
        for kind in [OpKind::Sync, OpKind::SyncFolder] {
            let disk = mem_disk();
            let shards = open(disk.clone()).await;
            disk.inject(FaultRule {
                kind: Some(kind),
                name_part: "shards".to_owned(),
                skip: 0,
                times: u64::MAX,
                fault: Fault::Io,
            });
            for segment in 0..u64::from(ShardSettings::default().errors_in_a_row_max) {
                assert!(!shards.health().suspect, "{kind:?}");
                let shard = shards.create(name(1, segment, 0), CAPACITY).await.unwrap();
                shard.write_at(0, vec![fill(4096, 1)]).await.unwrap();
                assert!(shard.sync().await.is_err());
            }
            assert!(shards.health().suspect, "{kind:?}");
        }
    });
}

#[test]
fn waiting_callers_share_one_sync() {
    block_on(async {
        let disk = mem_disk();
        let shards = open(disk.clone()).await;
        let shard = shards.create(name(1, 1, 0), CAPACITY).await.unwrap();
        shard.sync().await.unwrap();
        assert_eq!(disk.stats().syncs, 2, "of the identity, and this one");
        disk.yield_at_random(3, 8);
        let before = disk.stats();
        let callers = (0..64u64).map(|block| {
            let shard = &shard;
            async move {
                let block = block % 60;
                shard
                    .write_at(block * 4096, vec![fill(4096, 1)])
                    .await
                    .unwrap();
                shard.sync().await.unwrap();
            }
        });
        join_all(callers).await;
        let after = disk.stats();
        assert_eq!(after.writes - before.writes, 64);
        assert!(
            after.syncs - before.syncs < 16,
            "{}",
            after.syncs - before.syncs
        );
        assert_eq!(
            after.folder_syncs, before.folder_syncs,
            "the name is durable already"
        );
    });
}

#[test]
fn after_a_failed_or_abandoned_sync_nothing_is_claimed() {
    block_on(async {
        let disk = mem_disk();
        let shards = open(disk.clone()).await;
        let failed = shards.create(name(1, 1, 0), CAPACITY).await.unwrap();
        failed.write_at(0, vec![fill(4096, 1)]).await.unwrap();
        disk.fail_nth(OpKind::Sync, 0, Fault::Io);
        assert_eq!(kind(failed.sync().await), Some(ShardErrorKind::Io));
        for _ in 0..2 {
            assert!(matches!(
                failed.sync().await,
                Err(ShardError::SyncLost { .. })
            ));
        }
        let data = fill(4096, 1);
        assert!(failed.seal(footer_of(failed.name(), &data)).await.is_err());

        let abandoned = shards.create(name(1, 2, 0), CAPACITY).await.unwrap();
        disk.yield_at_random(1, 1 << 20);
        assert!(abandoned.sync().now_or_never().is_none());
        disk.yield_at_random(1, 0);
        assert!(matches!(
            abandoned.sync().await,
            Err(ShardError::SyncLost { .. })
        ));

        // A folder that fails is tried again: names are not dropped by a failure.
        let unnamed = shards.create(name(1, 3, 0), CAPACITY).await.unwrap();
        disk.fail_nth(OpKind::SyncFolder, 0, Fault::Io);
        assert_eq!(kind(unnamed.sync().await), Some(ShardErrorKind::Io));
        let before = disk.stats().folder_syncs;
        unnamed.sync().await.unwrap();
        assert!(disk.stats().folder_syncs > before);
    });
}

/// A repair that comes later writes anew what was lost, and that is durable.
#[test]
fn a_shard_whose_sync_failed_is_opened_anew_when_nobody_has_it_open() {
    block_on(async {
        let disk = mem_disk();
        let shards = open(disk.clone()).await;
        let recorder = Recorder::new(std::slice::from_ref(&disk));
        let name = name(1, 1, 0);
        let failed = shards.create(name, CAPACITY).await.unwrap();
        failed.write_at(0, vec![fill(4096, 1)]).await.unwrap();
        disk.fail_nth(OpKind::Sync, 0, Fault::Io);
        assert_eq!(kind(failed.sync().await), Some(ShardErrorKind::Io));
        let other = shards.open_shard(name).await.unwrap();
        let lost = other.sync().await;
        assert!(matches!(lost, Err(ShardError::SyncLost { .. })));
        drop((failed, other));

        let again = shards.open_shard(name).await.unwrap();
        again.write_at(0, vec![fill(4096, 1)]).await.unwrap();
        assert_eq!(again.sync().await, Ok(()));
        for (mode, seed) in crashes() {
            let disk = recorder.crash_at(recorder.op_count(), mode, seed);
            let shards = open(disk.into_iter().next().unwrap()).await;
            let shard = shards.open_shard(name).await.unwrap();
            let read = shard.read_at(0, 4096).await.unwrap();
            assert_eq!(read, fill(4096, 1), "{mode:?} {seed}");
        }
    });
}
