//! Shards are made, written, sealed, found and removed; footers tell the truth or nothing.

use std::sync::Arc;

use cairn_base::env::BoxFuture;
use cairn_base::{Epoch, VolumeId};
use cairn_shard::{
    Shard, ShardError, ShardErrorKind, ShardFooter, ShardSettings, TRAILER_LEN_BYTES,
    file_len_bytes,
};
use cairn_testkit::{Fault, OpKind, Pace};
use tokio::sync::Semaphore;

use crate::common::{
    CAPACITY, block_on, each, fill, footer_of, kind, mem_disk, name, open, open_with, path_of,
};

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

/// Holds the removal of a volume's marker up until it is let go.
struct Forgetting(Arc<Semaphore>);

impl Pace for Forgetting {
    fn pause(&self, kind: OpKind, _name: &str) -> Option<BoxFuture<()>> {
        (kind == OpKind::Remove).then(|| {
            let gate = self.0.clone();
            Box::pin(async move { gate.acquire().await.unwrap().forget() }) as BoxFuture<()>
        })
    }
}

/// The next start looks for what nobody refers to in folders of volumes that have a marker.
#[test]
fn a_shard_that_is_made_while_its_volume_is_forgotten_has_its_marker() {
    block_on(async {
        let disk = mem_disk();
        let shards = open(disk.clone()).await;
        let shard_name = name(1, 7, 0);
        drop(shards.create(shard_name, CAPACITY).await.unwrap());
        shards.remove(shard_name).await.unwrap();
        let gate = Arc::new(Semaphore::new(0));
        disk.pace_with(Arc::new(Forgetting(gate.clone())));
        let forget = shards.forget_volume(shard_name.volume);
        let create = shards.create(shard_name, CAPACITY);
        let release = async {
            // Both have come as far as they can.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            gate.add_permits(10);
        };
        let (forgotten, created, ()) = futures_util::join!(forget, create, release);
        forgotten.unwrap();
        drop(created.unwrap());
        assert_eq!(shards.list(shard_name.volume).await.unwrap(), [shard_name]);
        drop(shards);
        let again = open(disk).await;
        assert_eq!(again.volumes().await.unwrap(), [shard_name.volume]);
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
                stripes: Vec::new(),
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

/// Its footer no longer tells where the data ends; the repairer knows.
#[test]
fn a_sealed_shard_takes_repairs_whatever_became_of_its_footer() {
    block_on(async {
        // Large enough for a footer that is smaller than its room.
        let capacity = 16 * CAPACITY;
        for len_bytes in [8192, capacity * 3 / 4, capacity] {
            let disk = mem_disk();
            let shard_name = name(1, 1, 1);
            let data = fill(len_bytes, 3);
            let footer = footer_of(shard_name, &data);
            let shards = open(disk.clone()).await;
            let shard = shards.create(shard_name, capacity).await.unwrap();
            shard.write_at(0, vec![data.clone()]).await.unwrap();
            shard.seal(footer.clone()).await.unwrap();
            let end = shard.file_len_bytes();
            drop((shard, shards));
            // The magic, what follows it, and a block that cannot be read.
            for harm in [Some(3), Some(10), None] {
                let trailer = end - TRAILER_LEN_BYTES as u64;
                let shards = open(disk.clone()).await;
                let shard = shards.open_shard(shard_name).await.unwrap();
                match harm {
                    Some(at) => disk.flip_bit(&path_of(shard_name), trailer + at, 6),
                    None => disk.fail_nth(OpKind::Read, 0, Fault::Io),
                }
                let last = len_bytes - 4096;
                let block = data.slice(len_bytes as usize - 4096..);
                shard.repair_at(last, vec![block.clone()]).await.unwrap();
                shard.sync().await.unwrap();
                if harm.is_some() {
                    let refused = shard.repair_at(trailer, vec![block]).await;
                    assert_eq!(kind(refused), Some(ShardErrorKind::Bug));
                }
                shard.seal(footer.clone()).await.unwrap();
                assert_eq!(shard.file_len_bytes(), end);
                assert_eq!(shard.read_footer().await, Ok(Some(footer.clone())));
                assert_eq!(shard.read_at(0, data.len()).await.unwrap(), data);
            }
        }
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

#[test]
fn what_more_is_open_than_may_be_from_now_on_is_closed() {
    const FILES: u64 = 200;
    const OPEN_MAX: usize = 100;
    /// The cache of open files divides its capacity among so many parts at most, and rounds up.
    const PARTS_MAX: usize = 32;
    each(|disk| async move {
        let shards = open_with(disk, ShardSettings::default()).await;
        let mut opened = Vec::new();
        for segment in 0..FILES {
            let shard = shards.create(name(1, segment, 0), 4096).await.unwrap();
            opened.push(Arc::downgrade(&shard));
        }
        let open_count = || {
            opened
                .iter()
                .filter(|shard| shard.strong_count() > 0)
                .count()
        };
        assert_eq!(open_count(), FILES as usize);
        shards.set_open_shards_max(OPEN_MAX);
        assert!(open_count() <= OPEN_MAX + PARTS_MAX, "{}", open_count());
        shards.open_shard(name(1, 0, 0)).await.unwrap();
        assert!(open_count() <= OPEN_MAX + PARTS_MAX + 1, "{}", open_count());
    });
}
