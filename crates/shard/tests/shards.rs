//! Shards on simulated and on real disks.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::{Disk, OpenMode};
use cairn_base::{AlignedBuf, DiskId, Epoch, PoolId, SegmentId, Timestamp, VolumeId, crc32c};
use cairn_disk::{DiskSettings, RealDisk};
use cairn_shard::{
    CHECKSUM_UNIT_BYTES, FooterRow, IDENTITY_NAME, Shard, ShardDisk, ShardError, ShardErrorKind,
    ShardFooter, ShardName, ShardSettings, file_len_bytes,
};
use cairn_testkit::{Crash, Fault, FaultRule, MemDisk, OpKind, Recorder};
use futures_util::FutureExt;
use futures_util::future::join_all;
use proptest::prelude::*;

const POOL: PoolId = PoolId(0xabc);
const DISK: DiskId = DiskId(0xd15c);
const NOW: Timestamp = Timestamp::new(1_700_000_000, 5);
/// Large enough that a file with little data is cut by its seal.
const CAPACITY: u64 = 256 << 10;
const SEEDS: std::ops::Range<u64> = 0..4;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

fn name(volume: u32, segment: u64, index: u8) -> ShardName {
    ShardName {
        volume: VolumeId(volume),
        segment: SegmentId(segment),
        index,
    }
}

fn path_of(name: ShardName) -> String {
    format!(
        "shards/{:08x}/{:016x}.{:02}",
        name.volume.0, name.segment.0, name.index
    )
}

fn fill(len_bytes: u64, byte: u8) -> Bytes {
    let mut buf = AlignedBuf::zeroed(len_bytes as usize);
    buf.fill(byte);
    buf.freeze()
}

fn mem_disk() -> Arc<MemDisk> {
    MemDisk::new("mem", 64 << 20)
}

/// Formats a disk if it is blank, and opens it.
async fn open_with(disk: Arc<dyn Disk>, settings: ShardSettings) -> Arc<ShardDisk> {
    if ShardDisk::identity(&disk).await.unwrap().is_none() {
        ShardDisk::format(disk.clone(), POOL, DISK, NOW)
            .await
            .unwrap();
    }
    ShardDisk::open(disk, POOL, settings).await.unwrap()
}

async fn open(disk: Arc<dyn Disk>) -> Arc<ShardDisk> {
    open_with(disk, ShardSettings::default()).await
}

/// Runs `check` on a simulated disk, and on a real one.
fn each<F: Future<Output = ()>>(check: impl Fn(Arc<dyn Disk>) -> F) {
    block_on(check(mem_disk()));
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    block_on(check(
        RealDisk::open(dir.path(), DiskSettings::default()).unwrap(),
    ));
}

/// A true footer for a shard that begins with `data`, one row per 8 KiB.
fn footer_of(name: ShardName, data: &[u8]) -> ShardFooter {
    ShardFooter {
        name,
        data_shards: 4,
        parity_shards: 2,
        epoch: Epoch(3),
        data_len_bytes: data.len() as u64,
        rows: (0..data.len() as u32 / 8192)
            .map(|row| FooterRow {
                start_block: row * 2,
                unit_blocks: 2,
            })
            .collect(),
        checksums: data
            .chunks(CHECKSUM_UNIT_BYTES as usize)
            .map(crc32c)
            .collect(),
    }
}

fn kind<T>(result: Result<T, ShardError>) -> Option<ShardErrorKind> {
    result.err().map(|error| error.kind())
}

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

fn crashes() -> Vec<(Crash, u64)> {
    let with_seeds = |mode| SEEDS.map(move |seed| (mode, seed));
    Crash::ALL.into_iter().flat_map(with_seeds).collect()
}

#[test]
fn shards_are_made_written_found_and_removed() {
    each(|disk| async move {
        let shards = open(disk.clone()).await;
        let (first, second) = (name(1, 7, 0), name(0xffff_ffff, u64::MAX, 255));
        assert_eq!(
            kind(shards.open_shard(first).await),
            Some(ShardErrorKind::NotFound)
        );
        for shard_name in [first, second] {
            let shard = shards.create(shard_name, CAPACITY).await.unwrap();
            assert_eq!(shard.name(), shard_name);
            shard
                .write_at(8192, vec![fill(4096, 1), fill(8192, 2)])
                .await
                .unwrap();
            shard.sync().await.unwrap();
        }
        let again = shards.create(first, CAPACITY).await;
        assert!(matches!(again, Err(ShardError::Exists { .. })));
        drop(shards);

        let shards = open(disk).await;
        assert_eq!(
            shards.volumes().await.unwrap(),
            [first.volume, second.volume]
        );
        assert_eq!(shards.list(first.volume).await.unwrap(), [first]);
        assert_eq!(shards.list(second.volume).await.unwrap(), [second]);
        assert_eq!(shards.list(VolumeId(5)).await.unwrap(), []);
        let shard = shards.open_shard(first).await.unwrap();
        assert_eq!(shard.read_at(12288, 8192).await.unwrap(), fill(8192, 2));
        assert_eq!(shard.read_footer().await, Ok(None));
        shards.remove(first).await.unwrap();
        shards.remove(first).await.unwrap();
        shards.remove(name(9, 9, 9)).await.unwrap();
        assert_eq!(
            kind(shard.read_at(0, 1).await),
            Some(ShardErrorKind::NotFound)
        );
        assert_eq!(
            kind(shard.write_at(0, vec![]).await),
            Some(ShardErrorKind::NotFound)
        );
        assert_eq!(
            kind(shards.open_shard(first).await),
            Some(ShardErrorKind::NotFound)
        );
        shards.forget_volume(first.volume).await.unwrap();
        shards.forget_volume(second.volume).await.unwrap();
        assert_eq!(shards.volumes().await.unwrap(), [second.volume]);
    });
}

#[test]
fn writes_keep_to_the_capacity_and_spare_the_footer() {
    each(|disk| async move {
        let shards = open(disk).await;
        for bad in [0, 1, 4097, u64::MAX] {
            assert_eq!(
                kind(shards.create(name(1, 0, 0), bad).await),
                Some(ShardErrorKind::Bug)
            );
        }
        let shard_name = name(1, 1, 0);
        let shard = shards.create(shard_name, CAPACITY).await.unwrap();
        let cases = [
            (0, 4096, true),
            (CAPACITY - 4096, 4096, true),
            (CAPACITY, 0, true),
            (CAPACITY - 4096, 4097, false),
            (CAPACITY, 4096, false),
            (1, 1, false),
            (u64::MAX - 4095, 4096, false),
        ];
        let check = async |shard: &Shard, cases: &[(u64, u64, bool)]| {
            for (offset, len_bytes, allowed) in cases {
                let result = shard.write_at(*offset, vec![fill(*len_bytes, 7)]).await;
                let want = (!allowed).then_some(ShardErrorKind::Bug);
                assert_eq!(kind(result), want, "{offset} {len_bytes}");
            }
        };
        check(&shard, &cases).await;
        drop(shard);

        // Opened again: the file's length tells the capacity.
        let data = fill(12288, 7);
        let footer = footer_of(shard_name, &data);
        let shard = shards.open_shard(shard_name).await.unwrap();
        shard.write_at(0, vec![data]).await.unwrap();
        shard.seal(footer.clone()).await.unwrap();
        // Cut: data, one block of body, the trailer.
        assert_eq!(shard.file_len_bytes(), 12288 + 8192);
        let cases = [
            (8192, 4096, true),
            (8192, 8192, false),
            (CAPACITY - 4096, 4096, false),
        ];
        check(&shard, &cases).await;
        let disk = shards.disk().clone();
        drop((shard, shards));
        let shards = open(disk).await;
        let shard = shards.open_shard(shard_name).await.unwrap();
        check(&shard, &cases).await;
        assert_eq!(shard.read_footer().await, Ok(Some(footer)));
    });
}

#[test]
fn footers_are_kept_in_cut_and_in_full_files() {
    each(|disk| async move {
        let shards = open(disk).await;
        let lens = [0, 1, 4096, 100_000, CAPACITY - 8192, CAPACITY];
        for (segment, len_bytes) in lens.into_iter().enumerate() {
            let shard_name = name(1, segment as u64, 2);
            let shard = shards.create(shard_name, CAPACITY).await.unwrap();
            let data = fill(len_bytes, 9);
            shard.write_at(0, vec![data.clone()]).await.unwrap();
            let footer = footer_of(shard_name, &data);
            let stranger = ShardFooter {
                name: name(1, 99, 2),
                ..footer.clone()
            };
            assert_eq!(kind(shard.seal(stranger).await), Some(ShardErrorKind::Bug));
            shard.seal(footer.clone()).await.unwrap();
            assert_eq!(shard.read_footer().await, Ok(Some(footer.clone())));
            assert_eq!(shard.read_at(0, data.len()).await.unwrap(), data);
            let is_full = Some(shard.file_len_bytes()) == file_len_bytes(CAPACITY);
            assert_eq!(is_full, len_bytes > CAPACITY * 15 / 16, "{len_bytes}");
            // Sealed again, as a repair does.
            let newer = ShardFooter {
                epoch: Epoch(4),
                rows: Vec::new(),
                ..footer
            };
            shard.seal(newer.clone()).await.unwrap();
            assert_eq!(shard.read_footer().await, Ok(Some(newer)));
        }
    });
}

#[test]
fn a_damaged_footer_is_never_believed() {
    block_on(async {
        for len_bytes in [8192, CAPACITY] {
            let disk = mem_disk();
            let shard_name = name(1, 1, 1);
            let data = fill(len_bytes, 3);
            let footer = footer_of(shard_name, &data);
            let shards = open(disk.clone()).await;
            let shard = shards.create(shard_name, CAPACITY).await.unwrap();
            shard.write_at(0, vec![data]).await.unwrap();
            shard.seal(footer.clone()).await.unwrap();
            let end = shard.file_len_bytes();
            for offset in end - 8192..end {
                disk.flip_bit(&path_of(shard_name), offset, 6);
                match shard.read_footer().await {
                    Ok(None) => {}
                    // Padding says nothing.
                    Ok(Some(found)) => assert_eq!(found, footer),
                    Err(error) => assert_eq!(error.kind(), ShardErrorKind::Damaged),
                }
                disk.flip_bit(&path_of(shard_name), offset, 6);
            }
            assert_eq!(shard.read_footer().await, Ok(Some(footer)));
        }
    });
}

#[test]
fn what_was_synced_survives_a_crash() {
    block_on(async {
        // With and without a recycled file, whose earlier life must not show.
        for recycled in [false, true] {
            let disk = mem_disk();
            let shards = open(disk.clone()).await;
            let (old, new) = (name(1, 1, 0), name(2, 2, 0));
            if recycled {
                let shard = shards.create(old, CAPACITY).await.unwrap();
                shard.write_at(0, vec![fill(CAPACITY, 1)]).await.unwrap();
                shard
                    .seal(footer_of(old, &fill(CAPACITY, 1)))
                    .await
                    .unwrap();
            }
            let recorder = Recorder::new(std::slice::from_ref(&disk));
            shards.remove(old).await.unwrap();
            let shard = shards.create(new, CAPACITY).await.unwrap();
            assert_eq!(shards.recycled_bytes(), 0);
            let mut synced_at = Vec::new();
            for (block, byte) in [(0u64, 5u8), (3, 6), (0, 7)] {
                shard
                    .write_at(block * 4096, vec![fill(4096, byte)])
                    .await
                    .unwrap();
                shard.sync().await.unwrap();
                synced_at.push((recorder.op_count(), block, byte));
            }
            for index in 0..=recorder.op_count() {
                for (mode, seed) in crashes() {
                    let disk = recorder.crash_at(index, mode, seed).remove(0);
                    let shards = open(disk).await;
                    let shard = shards.open_shard(new).await;
                    let mut want = BTreeMap::new();
                    for (at, block, byte) in &synced_at {
                        if *at <= index {
                            want.insert(*block, vec![*byte]);
                        } else {
                            // May be there, in part.
                            want.entry(*block).and_modify(|bytes| bytes.push(*byte));
                        }
                    }
                    for (block, bytes) in want {
                        let got = shard
                            .as_ref()
                            .unwrap()
                            .read_at(block * 4096, 4096)
                            .await
                            .unwrap();
                        assert!(
                            got.iter().all(|byte| bytes.contains(byte)),
                            "{index} {mode:?}"
                        );
                    }
                    let Ok(shard) = shard else { continue };
                    assert_eq!(
                        shard.read_footer().await,
                        Ok(None),
                        "{index} {mode:?} {seed}"
                    );
                    // The shard that had the file before is another file, or gone.
                    if let Ok(old) = shards.open_shard(old).await {
                        old.write_at(0, vec![fill(8192, 0xee)]).await.unwrap();
                        let got = shard.read_at(0, 8192).await.unwrap();
                        assert!(!got.contains(&0xee), "{index} {mode:?} {seed}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_crash_in_a_seal_leaves_a_true_footer_or_none() {
    block_on(async {
        for (recycled, len_bytes) in [
            (false, 8192),
            (true, 8192),
            (false, CAPACITY),
            (true, CAPACITY),
        ] {
            let disk = mem_disk();
            let shards = open(disk.clone()).await;
            let (old, new) = (name(1, 1, 0), name(1, 2, 0));
            if recycled {
                let shard = shards.create(old, CAPACITY).await.unwrap();
                shard.write_at(0, vec![fill(CAPACITY, 1)]).await.unwrap();
                shard
                    .seal(footer_of(old, &fill(CAPACITY, 1)))
                    .await
                    .unwrap();
                shards.remove(old).await.unwrap();
            }
            let data = fill(len_bytes, 8);
            let footer = footer_of(new, &data);
            let shard = shards.create(new, CAPACITY).await.unwrap();
            shard.write_at(0, vec![data.clone()]).await.unwrap();
            let recorder = Recorder::new(std::slice::from_ref(&disk));
            shard.seal(footer.clone()).await.unwrap();
            let end = recorder.op_count();
            for index in 0..=end {
                for (mode, seed) in crashes() {
                    let disk = recorder.crash_at(index, mode, seed).remove(0);
                    let shards = open(disk).await;
                    let Ok(shard) = shards.open_shard(new).await else {
                        assert!(index < end, "{mode:?}");
                        continue;
                    };
                    match shard.read_footer().await.unwrap() {
                        Some(found) => {
                            assert_eq!(found, footer);
                            assert_eq!(shard.read_at(0, data.len()).await.unwrap(), data);
                        }
                        None => assert!(index < end, "{index} of {end} {mode:?} {seed}"),
                    }
                }
            }
        }
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
        assert_eq!(small.file_len_bytes(), 4096);
        drop(small);
        let free_before = shards.space().unwrap().free_bytes;
        for segment in (0..5).rev() {
            shards.remove(name(1, segment, 0)).await.unwrap();
        }
        assert_eq!(shards.recycled_bytes(), 2 * full_len_bytes);
        // Kept files count as free, because they can be had at once.
        let free_after = shards.space().unwrap().free_bytes;
        assert_eq!(free_after, free_before + 4 * full_len_bytes + 4096);

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
fn a_hidden_shard_is_found_when_it_is_published() {
    each(|disk| async move {
        let shards = open(disk.clone()).await;
        let (one, two) = (name(1, 1, 0), name(1, 2, 0));
        let data = fill(CAPACITY, 7);
        for shard_name in [one, two] {
            let hidden = shards.create_hidden(shard_name, CAPACITY).await.unwrap();
            let found = shards.open_shard(shard_name).await.map(|_| ());
            assert_eq!(kind(found), Some(ShardErrorKind::NotFound));
            hidden
                .shard()
                .write_at(0, vec![data.clone()])
                .await
                .unwrap();
            let footer = footer_of(shard_name, &data);
            hidden.shard().seal(footer.clone()).await.unwrap();
            if shard_name == two {
                // Broken off; begun anew below.
                continue;
            }
            let shard = shards.publish(hidden).await.unwrap();
            assert!(Arc::ptr_eq(&shard, &shards.open_shard(one).await.unwrap()));
            assert_eq!(shard.read_footer().await, Ok(Some(footer)));
            assert_eq!(shard.read_at(0, data.len()).await.unwrap(), data);
        }
        let hidden = shards.create_hidden(two, CAPACITY).await.unwrap();
        shards.create(two, CAPACITY).await.unwrap();
        let published = shards.publish(hidden).await.map(|_| ());
        assert!(matches!(published, Err(ShardError::Exists { .. })));
        shards.create_hidden(name(1, 3, 0), CAPACITY).await.unwrap();
        drop(shards);
        let shards = open(disk.clone()).await;
        assert_eq!(shards.list(VolumeId(1)).await.unwrap(), [one, two]);
        assert_eq!(disk.list("rebuild").await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn two_who_make_the_same_shard_do_not_mix() {
    each(|disk| async move {
        let shards = open(disk.clone()).await;
        let shard_name = name(1, 1, 0);
        let slow = shards.create_hidden(shard_name, CAPACITY).await.unwrap();
        let quick = shards.create_hidden(shard_name, CAPACITY).await.unwrap();
        let data = fill(CAPACITY, 7);
        slow.shard().write_at(0, vec![data.clone()]).await.unwrap();
        // The other has written nothing yet.
        let shard = shards.publish(slow).await.unwrap();
        assert_eq!(shard.read_at(0, data.len()).await.unwrap(), data);
        let published = shards.publish(quick).await.map(|_| ());
        assert!(matches!(published, Err(ShardError::Exists { .. })));
        let hidden = shards.create_hidden(name(1, 2, 0), CAPACITY).await.unwrap();
        shards.discard(hidden).await;
        assert_eq!(disk.list("rebuild").await.unwrap(), Vec::<String>::new());
        drop(shards);
        let shards = open(disk).await;
        let shard = shards.open_shard(shard_name).await.unwrap();
        assert_eq!(shard.read_at(0, data.len()).await.unwrap(), data);
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
            assert!(!shards.health().failed);
            assert!(shards.probe().await.is_err());
        }
        assert!(shards.health().failed);
    });
}

#[test]
fn a_shard_that_is_wanted_after_all_is_not_removed() {
    each(|disk| async move {
        let shards = open(disk).await;
        let shard_name = name(1, 1, 0);
        shards.create(shard_name, CAPACITY).await.unwrap();
        let removed = shards.remove_unless(shard_name, || true).await;
        assert_eq!(removed, Ok(false));
        assert!(shards.open_shard(shard_name).await.is_ok());
        let removed = shards.remove_unless(shard_name, || false).await;
        assert_eq!(removed, Ok(true));
        let found = shards.open_shard(shard_name).await.map(|_| ());
        assert_eq!(kind(found), Some(ShardErrorKind::NotFound));
    });
}

#[test]
fn a_crash_leaves_a_published_shard_whole_or_missing() {
    block_on(async {
        let disk = mem_disk();
        let shards = open(disk.clone()).await;
        shards
            .create(name(1, 9, 0), 4096)
            .await
            .unwrap()
            .sync()
            .await
            .unwrap();
        let recorder = Recorder::new(&[disk]);
        let (shard_name, data) = (name(1, 1, 0), fill(CAPACITY, 7));
        let hidden = shards.create_hidden(shard_name, CAPACITY).await.unwrap();
        hidden
            .shard()
            .write_at(0, vec![data.clone()])
            .await
            .unwrap();
        shards.publish(hidden).await.unwrap();
        for index in 0..=recorder.op_count() {
            for (mode, seed) in crashes() {
                let crashed = recorder.crash_at(index, mode, seed).swap_remove(0);
                let shards = open(crashed).await;
                match shards.open_shard(shard_name).await {
                    Ok(shard) => assert_eq!(shard.read_at(0, data.len()).await.unwrap(), data),
                    Err(error) => {
                        assert_eq!(error.kind(), ShardErrorKind::NotFound);
                        assert!(index < recorder.op_count(), "published and gone");
                    }
                }
            }
        }
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
fn errors_are_counted_and_many_in_a_row_are_a_failed_disk() {
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
        assert!(shards.health().failed);
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

#[test]
fn there_is_one_handle_per_shard() {
    each(|disk| async move {
        let settings = ShardSettings {
            open_shards_max: 1,
            ..ShardSettings::default()
        };
        let shards = open_with(disk, settings).await;
        let mut held = Vec::new();
        for segment in 0..20 {
            held.push(shards.create(name(1, segment, 0), 4096).await.unwrap());
        }
        for shard in &held {
            let again = shards.open_shard(shard.name()).await.unwrap();
            assert!(Arc::ptr_eq(shard, &again));
        }
        drop(held);
        let (first, second) = futures_util::join!(
            shards.open_shard(name(1, 3, 0)),
            shards.open_shard(name(1, 3, 0))
        );
        assert!(Arc::ptr_eq(&first.unwrap(), &second.unwrap()));
    });
}

#[derive(Clone, Debug)]
enum Step {
    Create(u64),
    Write {
        segment: u64,
        block: u64,
        blocks: u64,
        fill: u8,
    },
    Read(u64),
    Seal(u64),
    Remove(u64),
    Prepare(usize),
    Release,
    Restart,
    /// Everything is synced first, so that the model stays simple.
    SyncAllAndCrash(u64),
}

const CAPACITY_BLOCKS: u64 = 16;

fn step() -> impl Strategy<Value = Step> {
    let segment = 0u64..6;
    prop_oneof![
        4 => segment.clone().prop_map(Step::Create),
        6 => (segment.clone(), 0..CAPACITY_BLOCKS, 1..CAPACITY_BLOCKS, 1u8..)
            .prop_map(|(segment, block, blocks, fill)| Step::Write { segment, block, blocks, fill }),
        4 => segment.clone().prop_map(Step::Read),
        2 => segment.clone().prop_map(Step::Seal),
        3 => segment.prop_map(Step::Remove),
        1 => (0usize..4).prop_map(Step::Prepare),
        1 => Just(Step::Release),
        1 => Just(Step::Restart),
        1 => any::<u64>().prop_map(Step::SyncAllAndCrash),
    ]
}

#[derive(Default)]
struct Model {
    /// Blocks written of each shard.
    shards: BTreeMap<u64, BTreeMap<u64, u8>>,
    sealed: BTreeMap<u64, ShardFooter>,
    /// A crash can bring these back.
    removed_before: BTreeSet<u64>,
}

async fn compare_with_model(first_disk: Arc<dyn Disk>, mem: Option<Arc<MemDisk>>, steps: &[Step]) {
    let settings = ShardSettings {
        open_shards_max: 2,
        recycled_files_max: 3,
        ..ShardSettings::default()
    };
    let mut mem = mem;
    let mut shards = open_with(first_disk, settings.clone()).await;
    let mut model = Model::default();
    let capacity_bytes = CAPACITY_BLOCKS * 4096;
    let shard_name = |segment| name(1, segment, 0);
    for step in steps {
        match step {
            Step::Create(segment) => {
                let created = shards.create(shard_name(*segment), capacity_bytes).await;
                if model.shards.contains_key(segment) {
                    assert_eq!(kind(created), Some(ShardErrorKind::Bug));
                } else {
                    assert_eq!(created.unwrap().read_footer().await, Ok(None));
                    model.shards.insert(*segment, BTreeMap::new());
                }
            }
            Step::Write {
                segment,
                block,
                blocks,
                fill: byte,
            } => {
                let Ok(shard) = shards.open_shard(shard_name(*segment)).await else {
                    assert!(!model.shards.contains_key(segment));
                    continue;
                };
                let written = shard
                    .write_at(block * 4096, vec![fill(blocks * 4096, *byte)])
                    .await;
                let limit_blocks = match model.sealed.get(segment) {
                    Some(footer) => footer.data_len_bytes / 4096,
                    None => CAPACITY_BLOCKS,
                };
                if block + blocks <= limit_blocks {
                    written.unwrap();
                    let content = model.shards.get_mut(segment).unwrap();
                    content.extend((*block..block + blocks).map(|block| (block, *byte)));
                } else if !model.sealed.contains_key(segment) {
                    assert_eq!(kind(written), Some(ShardErrorKind::Bug));
                } else {
                    // A file that kept its size has room before its footer that nobody looks at; what of
                    // the write comes before that room is written.
                    match kind(written) {
                        None => {
                            let content = model.shards.get_mut(segment).unwrap();
                            content.extend((*block..limit_blocks).map(|block| (block, *byte)));
                        }
                        refused => assert_eq!(refused, Some(ShardErrorKind::Bug)),
                    }
                }
            }
            Step::Read(segment) => {
                let Ok(shard) = shards.open_shard(shard_name(*segment)).await else {
                    assert!(!model.shards.contains_key(segment));
                    continue;
                };
                for (block, byte) in &model.shards[segment] {
                    assert_eq!(
                        shard.read_at(block * 4096, 4096).await.unwrap(),
                        fill(4096, *byte)
                    );
                }
                assert_eq!(
                    shard.read_footer().await.unwrap().as_ref(),
                    model.sealed.get(segment)
                );
            }
            Step::Seal(segment) => {
                let Some(content) = model.shards.get(segment) else {
                    continue;
                };
                let blocks = content.last_key_value().map_or(0, |(block, _)| block + 1);
                let shard = shards.open_shard(shard_name(*segment)).await.unwrap();
                let data = shard.read_at(0, blocks as usize * 4096).await.unwrap();
                let footer = footer_of(shard_name(*segment), &data);
                shard.seal(footer.clone()).await.unwrap();
                model.sealed.insert(*segment, footer);
            }
            Step::Remove(segment) => {
                shards.remove(shard_name(*segment)).await.unwrap();
                model.shards.remove(segment);
                model.sealed.remove(segment);
                model.removed_before.insert(*segment);
            }
            Step::Prepare(count) => shards
                .prepare_recycled(*count, capacity_bytes)
                .await
                .unwrap(),
            Step::Release => shards.release_recycled().await.unwrap(),
            Step::Restart => {
                let disk = shards.disk().clone();
                shards = open_with(disk, settings.clone()).await;
            }
            Step::SyncAllAndCrash(seed) => {
                let Some(old) = mem.take() else { continue };
                for segment in model.shards.keys() {
                    shards
                        .open_shard(shard_name(*segment))
                        .await
                        .unwrap()
                        .sync()
                        .await
                        .unwrap();
                }
                let new = old.crash(Crash::Random, *seed);
                shards = open_with(new.clone(), settings.clone()).await;
                mem = Some(new);
                // The owner's garbage collection removes what it does not know.
                for found in shards.list(VolumeId(1)).await.unwrap() {
                    if !model.shards.contains_key(&found.segment.0) {
                        assert!(model.removed_before.contains(&found.segment.0));
                        shards.remove(found).await.unwrap();
                    }
                }
            }
        }
        let listed = shards.list(VolumeId(1)).await.unwrap();
        let want: Vec<ShardName> = model
            .shards
            .keys()
            .map(|segment| shard_name(*segment))
            .collect();
        assert_eq!(listed, want);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn shards_on_memory_behave_as_the_model(steps in prop::collection::vec(step(), 0..60)) {
        let disk = mem_disk();
        block_on(compare_with_model(disk.clone(), Some(disk), &steps));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn shards_on_a_real_disk_behave_as_the_model(steps in prop::collection::vec(step(), 0..60)) {
        let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let disk = RealDisk::open(dir.path(), DiskSettings::default()).unwrap();
        block_on(compare_with_model(disk, None, &steps));
    }
}
