//! What a crash leaves of shards.

use std::collections::BTreeMap;

use cairn_shard::ShardErrorKind;
use cairn_testkit::Recorder;

use crate::common::{CAPACITY, block_on, crashes, fill, footer_of, mem_disk, name, open};

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
