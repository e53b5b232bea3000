//! Files of removed shards that are kept for new ones.

use cairn_base::disk::{Disk, OpenMode};
use cairn_shard::{IDENTITY_NAME, ShardSettings, file_len_bytes};
use cairn_testkit::{Fault, FaultRule, MemDisk, OpKind};
use futures_util::FutureExt;

use crate::common::{CAPACITY, block_on, fill, footer_of, mem_disk, name, open, open_with};

/// Nobody makes shards, and what waits for new ones is used space for everybody else.
#[test]
fn files_above_a_limit_are_given_back_one_by_one() {
    block_on(async {
        let settings = ShardSettings {
            recycled_files_max: 4,
            ..ShardSettings::default()
        };
        let disk = mem_disk();
        let shards = open_with(disk.clone(), settings).await;
        shards.prepare_recycled(4, CAPACITY).await.unwrap();
        let len_bytes = file_len_bytes(CAPACITY).unwrap();
        let (free_before, uses) = (shards.space().unwrap().free_bytes, shards.recycled_uses());
        let mut given_back = 0;
        while shards.release_recycled_above(2 * len_bytes).await.unwrap() {
            given_back += 1;
            assert_eq!(shards.recycled_bytes(), (4 - given_back) * len_bytes);
        }
        assert_eq!(given_back, 2, "no more than is above it");
        assert_eq!(shards.recycled_count(CAPACITY), 2);
        let on_disk = disk.file_names();
        let waiting = on_disk.iter().filter(|name| name.starts_with("free/"));
        assert_eq!(waiting.count(), 2);
        // They counted as free before.
        assert_eq!(shards.space().unwrap().free_bytes, free_before);
        assert_eq!(shards.recycled_uses(), uses, "that is no use of them");
        shards.create(name(1, 1, 0), CAPACITY).await.unwrap();
        assert_ne!(shards.recycled_uses(), uses);
    });
}

#[test]
fn full_files_are_recycled_and_others_deleted() {
    block_on(async {
        let disk = mem_disk();
        let settings = ShardSettings {
            recycled_files_max: 2,
            ..ShardSettings::default()
        };
        let shards = open_with(disk.clone(), settings.clone()).await;
        let full_len_bytes = file_len_bytes(CAPACITY).unwrap();
        for segment in 0..4 {
            shards.create(name(1, segment, 0), CAPACITY).await.unwrap();
        }
        let small = shards.create(name(1, 4, 0), CAPACITY).await.unwrap();
        small.seal(footer_of(small.name(), &[])).await.unwrap();
        assert_eq!(small.file_len_bytes(), 2 * 4096);
        drop(small);
        let free_before = shards.space().unwrap().free_bytes;
        for segment in (0..5).rev() {
            shards.remove(name(1, segment, 0)).await.unwrap();
        }
        assert_eq!(shards.recycled_bytes(), 2 * full_len_bytes);
        // Kept files count as free, because they can be had at once.
        let free_after = shards.space().unwrap().free_bytes;
        assert_eq!(free_after, free_before + 4 * full_len_bytes + 2 * 4096);

        let creates = disk.stats().creates;
        shards.create(name(1, 10, 0), CAPACITY).await.unwrap();
        assert_eq!(disk.stats().creates, creates, "a recycled one");
        assert_eq!(shards.recycled_bytes(), full_len_bytes);
        // The rest is found again after a restart, up to the limit, then released.
        shards.prepare_recycled(99, CAPACITY).await.unwrap();
        assert_eq!(shards.recycled_bytes(), 2 * full_len_bytes);
        drop(shards);
        let shards = open_with(disk.clone(), settings).await;
        assert_eq!(shards.recycled_bytes(), 2 * full_len_bytes);
        shards.release_recycled().await.unwrap();
        assert_eq!(shards.recycled_bytes(), 0);
        assert!(
            !disk
                .file_names()
                .iter()
                .any(|name| name.starts_with("free/"))
        );
        drop(shards);
        let none = ShardSettings {
            recycled_files_max: 0,
            ..ShardSettings::default()
        };
        let shards = open_with(disk.clone(), none).await;
        shards.remove(name(1, 10, 0)).await.unwrap();
        shards.prepare_recycled(1, CAPACITY).await.unwrap();
        assert_eq!(disk.file_names(), [IDENTITY_NAME, "shard-volumes/00000001"]);
    });
}

#[test]
fn files_kept_for_shards_of_one_size_give_way_to_another() {
    block_on(async {
        let disk = MemDisk::new("small", 2 << 20);
        let settings = ShardSettings {
            recycled_files_max: 6,
            ..ShardSettings::default()
        };
        let shards = open_with(disk, settings).await;
        shards.prepare_recycled(6, CAPACITY).await.unwrap();
        assert_eq!(shards.recycled_count(CAPACITY), 6);
        shards.prepare_recycled(4, CAPACITY / 2).await.unwrap();
        let counts = [CAPACITY, CAPACITY / 2].map(|capacity| shards.recycled_count(capacity));
        assert_eq!(counts, [2, 4]);
        // The disk is full but for what is kept, which is of no use for a shard of this size.
        let (large, free_bytes) = (1 << 20, shards.space().unwrap().free_bytes);
        assert!(free_bytes > large && free_bytes - shards.recycled_bytes() < large);
        shards.create(name(1, 1, 0), large).await.unwrap();
        assert_eq!(shards.recycled_bytes(), 0);
    });
}

#[test]
fn a_free_file_that_does_not_work_is_replaced() {
    block_on(async {
        let kinds = [
            OpKind::Open,
            OpKind::Read,
            OpKind::WriteDurable,
            OpKind::Rename,
        ];
        for fault_kind in kinds {
            let disk = mem_disk();
            let shards = open(disk.clone()).await;
            let old = shards.create(name(1, 1, 0), CAPACITY).await.unwrap();
            old.write_at(0, vec![fill(CAPACITY, 1)]).await.unwrap();
            old.seal(footer_of(old.name(), &fill(CAPACITY, 1)))
                .await
                .unwrap();
            shards.remove(old.name()).await.unwrap();
            disk.inject(FaultRule {
                kind: Some(fault_kind),
                name_part: "free/".into(),
                skip: 0,
                times: 1,
                fault: Fault::Io,
            });
            let shard = shards.create(name(1, 2, 0), CAPACITY).await.unwrap();
            assert_eq!(shard.read_footer().await, Ok(None), "{fault_kind:?}");
            assert_eq!(shards.recycled_bytes(), 0);
            assert!(
                !disk
                    .file_names()
                    .iter()
                    .any(|name| name.starts_with("free/"))
            );
        }
    });
}

/// A crash may keep the name of a waiting file and lose its length: then it has no space to give back.
#[test]
fn a_free_file_that_a_crash_cut_short_is_no_space() {
    block_on(async {
        let disk = mem_disk();
        open(disk.clone()).await;
        let whole_bytes = file_len_bytes(CAPACITY).unwrap();
        for (number, len_bytes) in [0, 4096, whole_bytes].into_iter().enumerate() {
            let path = format!("free/{CAPACITY:016x}.{number:016x}");
            let made = disk.open(&path, OpenMode::CreateNew { len_bytes });
            drop(made.await.unwrap());
        }
        let shards = open(disk.clone()).await;
        assert_eq!(shards.recycled_count(CAPACITY), 1);
        assert_eq!(shards.recycled_bytes(), whole_bytes);
        let names = disk.file_names();
        let waiting = names.iter().filter(|name| name.starts_with("free/"));
        assert_eq!(waiting.count(), 1);
    });
}

#[test]
fn a_file_that_may_still_be_written_is_not_recycled() {
    block_on(async {
        for hold_handle in [true, false] {
            let disk = mem_disk();
            let settings = ShardSettings {
                open_shards_max: 1,
                ..ShardSettings::default()
            };
            let shards = open_with(disk.clone(), settings).await;
            let shard_name = name(1, 1, 0);
            let shard = shards.create(shard_name, CAPACITY).await.unwrap();
            disk.yield_at_random(1, 1 << 20);
            // The caller goes away with the write under way.
            let write = shard.write_at(0, vec![fill(4096, 1)]).now_or_never();
            assert!(write.is_none());
            disk.yield_at_random(1, 0);
            let held = hold_handle.then(|| shard.clone());
            drop(shard);
            if !hold_handle {
                // Pushes the handle out, so that only its name is remembered.
                for segment in 2..40 {
                    shards.create(name(1, segment, 0), 4096).await.unwrap();
                }
            }
            shards.remove(shard_name).await.unwrap();
            assert_eq!(shards.recycled_bytes(), 0);
            drop(held);
            // Its successor of that name is a shard like any other.
            shards.create(shard_name, CAPACITY).await.unwrap();
            shards.remove(shard_name).await.unwrap();
            assert_eq!(shards.recycled_bytes(), file_len_bytes(CAPACITY).unwrap());
        }
    });
}
