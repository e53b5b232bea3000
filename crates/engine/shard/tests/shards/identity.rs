//! The identity of a disk: blank, ours, damaged, or refused.

use std::sync::Arc;

use cairn_base::PoolId;
use cairn_base::disk::{Disk, OpenMode};
use cairn_shard::{IDENTITY_NAME, ShardDisk, ShardError, ShardErrorKind, ShardSettings};
use cairn_testkit::{Fault, OpKind, Recorder};

use crate::common::{DISK, NOW, POOL, block_on, crashes, each, kind, mem_disk, open};

#[test]
fn a_disk_is_blank_ours_or_refused() {
    each(|disk| async move {
        assert_eq!(ShardDisk::identity(&disk).await, Ok(None));
        let blank = ShardDisk::open(disk.clone(), POOL, ShardSettings::default()).await;
        assert_eq!(kind(blank), Some(ShardErrorKind::Refused));
        ShardDisk::format(disk.clone(), POOL, DISK, NOW)
            .await
            .unwrap();
        let identity = ShardDisk::identity(&disk).await.unwrap().unwrap();
        assert_eq!(
            (identity.pool, identity.disk, identity.created),
            (POOL, DISK, NOW)
        );
        let again = ShardDisk::format(disk.clone(), PoolId(1), DISK, NOW).await;
        assert!(matches!(again, Err(ShardError::AlreadyFormatted { .. })));

        let other = ShardDisk::open(disk.clone(), PoolId(1), ShardSettings::default()).await;
        let text = other.map(|_| ()).unwrap_err().to_string();
        for part in [disk.label(), &POOL.to_string(), &PoolId(1).to_string()] {
            assert!(text.contains(part), "{text}");
        }
        let ours = ShardDisk::open(disk, POOL, ShardSettings::default())
            .await
            .unwrap();
        assert_eq!((ours.id(), ours.pool()), (DISK, POOL));
    });
}

/// Of one copy.
const COPY_LEN_BYTES: u64 = 4096;

#[test]
fn an_identity_with_two_damaged_copies_is_never_a_blank_disk() {
    block_on(async {
        let disk = mem_disk();
        open(disk.clone()).await;
        for copy in 0..2 {
            disk.flip_bit(IDENTITY_NAME, copy * COPY_LEN_BYTES + 20, 3);
        }
        let dynamic: Arc<dyn Disk> = disk.clone();
        let damaged = ShardDisk::identity(&dynamic).await;
        assert!(
            matches!(damaged, Err(ShardError::DamagedIdentity { .. })),
            "{damaged:?}"
        );
        assert!(
            ShardDisk::format(dynamic.clone(), POOL, DISK, NOW)
                .await
                .is_err()
        );
        let file = disk.open(IDENTITY_NAME, OpenMode::Existing).await.unwrap();
        for len_bytes in [10, COPY_LEN_BYTES, 4 * COPY_LEN_BYTES] {
            file.set_len(len_bytes).await.unwrap();
            assert_eq!(
                kind(ShardDisk::identity(&dynamic).await),
                Some(ShardErrorKind::Damaged)
            );
        }
    });
}

#[test]
fn a_flipped_bit_in_the_identity_is_repaired_at_the_next_start() {
    block_on(async {
        for copy in 0..2 {
            for offset in (0..COPY_LEN_BYTES).step_by(8) {
                let disk = mem_disk();
                open(disk.clone()).await;
                let good = disk.file_bytes(IDENTITY_NAME);
                disk.flip_bit(IDENTITY_NAME, copy * COPY_LEN_BYTES + offset, 5);
                let opened = ShardDisk::open(disk.clone(), POOL, ShardSettings::default());
                let opened = opened.await.expect("one copy is good");
                assert_eq!((opened.id(), opened.pool()), (DISK, POOL));
                assert_eq!(opened.health().checksum_errors, 1);
                assert_eq!(disk.file_bytes(IDENTITY_NAME), good, "byte {offset}");
            }
        }
    });
}

/// As a scrub does it.
#[test]
fn an_open_disk_repairs_its_identity() {
    block_on(async {
        let disk = mem_disk();
        let opened = open(disk.clone()).await;
        let good = disk.file_bytes(IDENTITY_NAME);
        assert_eq!(opened.check_identity().await, Ok(false));
        disk.flip_bit(IDENTITY_NAME, COPY_LEN_BYTES + 7, 0);
        assert_eq!(opened.check_identity().await, Ok(true));
        assert_eq!(disk.file_bytes(IDENTITY_NAME), good);
        // Both: this process still knows what was in them.
        disk.flip_bit(IDENTITY_NAME, 7, 0);
        disk.flip_bit(IDENTITY_NAME, COPY_LEN_BYTES + 7, 0);
        assert_eq!(opened.check_identity().await, Ok(true));
        assert_eq!(disk.file_bytes(IDENTITY_NAME), good);
        assert_eq!(opened.check_identity().await, Ok(false));
        assert_eq!(opened.health().checksum_errors, 2);

        let dynamic: Arc<dyn Disk> = disk.clone();
        dynamic.remove(IDENTITY_NAME).await.unwrap();
        assert!(opened.check_identity().await.is_err(), "gone");
        let other = PoolId(1);
        ShardDisk::format(dynamic.clone(), other, DISK, NOW)
            .await
            .unwrap();
        assert!(opened.check_identity().await.is_err(), "of another pool");
        let there = ShardDisk::identity(&dynamic).await.unwrap().unwrap();
        assert_eq!(there.pool, other, "left alone");
    });
}

#[test]
fn a_block_of_the_identity_that_cannot_be_read_costs_one_copy() {
    block_on(async {
        for copy in 0..2 {
            let disk = mem_disk();
            open(disk.clone()).await;
            disk.fail_nth(OpKind::Read, copy, Fault::Io);
            let opened = ShardDisk::open(disk.clone(), POOL, ShardSettings::default());
            let opened = opened.await.expect("one copy can be read");
            assert_eq!(opened.id(), DISK, "copy {copy}");
            assert_eq!(opened.health().checksum_errors, 1, "it is written again");
        }
        let disk = mem_disk();
        open(disk.clone()).await;
        disk.fail_nth(OpKind::Read, 0, Fault::Io);
        disk.fail_nth(OpKind::Read, 0, Fault::Io);
        let neither = ShardDisk::open(disk, POOL, ShardSettings::default()).await;
        assert_eq!(kind(neither), Some(ShardErrorKind::Io));
    });
}

#[test]
fn a_crash_during_the_repair_leaves_an_identity() {
    block_on(async {
        let disk = mem_disk();
        open(disk.clone()).await;
        disk.flip_bit(IDENTITY_NAME, 20, 3);
        let recorder = Recorder::new(std::slice::from_ref(&disk));
        ShardDisk::open(disk, POOL, ShardSettings::default())
            .await
            .unwrap();
        for index in 0..=recorder.op_count() {
            for (mode, seed) in crashes() {
                let disk: Arc<dyn Disk> = recorder.crash_at(index, mode, seed).remove(0);
                let identity = ShardDisk::identity(&disk).await.unwrap().unwrap();
                assert_eq!((identity.pool, identity.disk), (POOL, DISK), "{mode:?}");
            }
        }
    });
}

#[test]
fn a_crash_leaves_an_identity_or_none() {
    block_on(async {
        let disk = mem_disk();
        let recorder = Recorder::new(std::slice::from_ref(&disk));
        ShardDisk::format(disk, POOL, DISK, NOW).await.unwrap();
        for index in 0..=recorder.op_count() {
            for (mode, seed) in crashes() {
                let disk: Arc<dyn Disk> = recorder.crash_at(index, mode, seed).remove(0);
                let identity = ShardDisk::identity(&disk).await.unwrap();
                if index == recorder.op_count() {
                    assert!(identity.is_some(), "{mode:?}");
                }
                if identity.is_none() {
                    ShardDisk::format(disk.clone(), POOL, DISK, NOW)
                        .await
                        .unwrap();
                }
                assert!(ShardDisk::identity(&disk).await.unwrap().is_some());
            }
        }
    });
}
