//! Several volumes with logs on shared disks: one volume reuses files of another, with equal numbers in them.

use cairn_base::planted::{Bug, plant};

use super::ensembles::Cluster;
use super::*;

const OTHER: VolumeId = VolumeId(8);
/// Distance between the inode numbers of two volumes: they have none in common.
const INO_STEP: u64 = 1000;
const RANDOM_VOLUME_COUNT: usize = 3;

/// A group of its own, with one inode.
async fn write<L: CommitLog>(store: &MetaStore<L>, ino: u64) {
    let mut batch = Batch::new();
    batch.put(Key::inode(Ino(ino)), vec![ino as u8; 100]);
    let ticket = store.submit(batch);
    store.durable(ticket).await.expect("durable");
}

fn inodes<L: CommitLog>(store: &MetaStore<L>) -> Vec<u64> {
    let from = Key::inode(Ino(0));
    let to = Key::inode(Ino(u64::MAX));
    let keys = visible(store, &from, &to).into_keys();
    let number = |key: Key| match key.kind() {
        Ok(cairn_formats::metadata::KeyKind::Inode(ino)) => Some(ino.0),
        _ => None,
    };
    keys.filter_map(number).collect()
}

/// Waits until a volume has only files that its list names: those of earlier owners can be reused.
async fn await_recycled(cluster: &Cluster) {
    for _ in 0..10_000 {
        if cluster.shards_not_named().await == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("files of earlier owners stay");
}

/// A volume is created and changes its owner, then a second volume does. `closed`: it is released, and not lost.
async fn one_after_the_other(closed: bool) {
    let first = Cluster::new(1, 2, 2).await;
    let work = async {
        let mut expected = Vec::new();
        let (store, _) = first.take_over(0).await.expect("takes over");
        for ino in 1..=10 {
            write(&store, ino).await;
            expected.push(ino);
        }
        match closed {
            true => store.close().await.expect("closes"),
            false => store.abort().await,
        }
        let (store, _) = first.take_over(1).await.expect("takes over");
        assert_eq!(inodes(&store), expected);
        await_recycled(&first).await;

        let second = first.beside(OTHER);
        let (other, _) = second.take_over(0).await.expect("takes over");
        for ino in 1..=3 {
            write(&other, INO_STEP + ino).await;
        }
        match closed {
            true => other.close().await.expect("closes"),
            false => other.abort().await,
        }
        let (other, _) = second.take_over(1).await.expect("takes over");
        assert_eq!(inodes(&other), [1, 2, 3].map(|ino| INO_STEP + ino));
        // It goes on.
        write(&other, INO_STEP + 4).await;
        other.abort().await;
        store.abort().await;
    };
    first.while_time_passes(work).await;
}

/// Volumes are created, written, shipped, lost and released in any order. Each keeps its own changes.
async fn any_order(seed: u64) {
    let first = Cluster::new(seed, 3, 2).await;
    let work = async {
        let mut rng = Rng::new(seed);
        let number = |index: usize| VolumeId(VOLUME.0 + index as u32);
        let mut volumes = Vec::new();
        for _ in 0..60 {
            let index = rng.below(RANDOM_VOLUME_COUNT as u64) as usize;
            if index >= volumes.len() {
                let cluster = first.beside(number(volumes.len()));
                let (store, _) = cluster.take_over(0).await.expect("takes over");
                volumes.push((cluster, store, Model::new(rng.below(1 << 40))));
                continue;
            }
            let (cluster, store, model) = &mut volumes[index];
            let what = rng.below(6);
            match what {
                0..=2 => {
                    for _ in 0..rng.below(12) {
                        assert!(model.submit(store));
                        assert!(model.wait(store).await, "seed {seed}");
                    }
                }
                3 => store.ship().await.expect("ships"),
                _ => {
                    match what {
                        4 => store.close().await.expect("closes"),
                        _ => store.abort().await,
                    }
                    let node = rng.below(3) as usize;
                    let taken = cluster.take_over(node).await;
                    let (next, recovered) = taken.unwrap_or_else(|error| {
                        panic!("seed {seed}: volume {}: {error}", cluster.volume)
                    });
                    model.recovered(&next, &recovered);
                    *store = next;
                    // The files of the earlier owner are removed meanwhile, or later.
                    for _ in 0..rng.below(100) {
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
        for (_, store, model) in &mut volumes {
            model.compare(store);
            store.abort().await;
        }
    };
    first.while_time_passes(work).await;
}

#[test]
fn records_of_another_volume_in_a_file_that_is_used_again_do_not_count() {
    for closed in [false, true] {
        block_on(one_after_the_other(closed));
    }
}

#[test]
fn volumes_that_share_disks_have_their_own_records_alone() {
    for seed in 0..50 {
        block_on(any_order(seed));
    }
}

/// The number of a file is epoch and counter, which several volumes may have in common.
#[test]
fn a_use_that_is_told_by_the_number_of_its_file_is_found_out() {
    let fails = |work: &dyn Fn()| {
        plant(Some(Bug::LogFileUseIsItsNumber));
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
        plant(None);
        failed
    };
    for closed in [false, true] {
        assert!(fails(&|| block_on(one_after_the_other(closed))), "{closed}");
    }
    assert!((0..20).any(|seed| fails(&|| block_on(any_order(seed)))));
}
