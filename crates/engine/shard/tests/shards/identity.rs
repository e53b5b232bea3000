//! The identity of a disk: blank, ours, damaged, or refused.

use std::sync::Arc;

use cairn_base::PoolId;
use cairn_base::disk::{Disk, OpenMode};
use cairn_shard::{IDENTITY_NAME, ShardDisk, ShardError, ShardErrorKind, ShardSettings};
use cairn_testkit::Recorder;

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

#[test]
fn a_damaged_identity_is_never_a_blank_disk() {
    block_on(async {
        let disk = mem_disk();
        open(disk.clone()).await;
        disk.flip_bit(IDENTITY_NAME, 20, 3);
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
        file.set_len(10).await.unwrap();
        assert_eq!(
            kind(ShardDisk::identity(&dynamic).await),
            Some(ShardErrorKind::Damaged)
        );
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
