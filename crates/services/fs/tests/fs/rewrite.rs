//! Segments are emptied by their summaries: no live record is missed, and no pass visits all extents.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_base::{Ino, SegmentId};
use cairn_fs::*;
use cairn_meta::Batch;
use cairn_segment::Pace;
use cairn_testkit::{Crash, Rng};

use crate::world::*;

const FILES: u64 = 6;

/// Files as they should be.
#[derive(Clone, Default)]
struct Model(BTreeMap<Ino, Vec<u8>>);

async fn create(fs: &Fs, name: &str) -> Ino {
    let mode = CreateMode::Guarded(SetAttr::default());
    let made = fs.create(&ROOT_USER, ROOT_INO, name.as_bytes(), mode);
    made.await.unwrap().attr.ino
}

impl Model {
    async fn write(&mut self, fs: &Fs, ino: Ino, offset: u64, data: Vec<u8>, stable: Stability) {
        let written = Bytes::from(data.clone());
        fs.write(&ROOT_USER, ino, offset, written, stable)
            .await
            .unwrap();
        let file = self.0.entry(ino).or_default();
        let end = offset as usize + data.len();
        file.resize(file.len().max(end), 0);
        file[offset as usize..end].copy_from_slice(&data);
    }

    async fn truncate(&mut self, fs: &Fs, ino: Ino, size_bytes: u64) {
        let set = SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        };
        fs.set_attr(&ROOT_USER, ino, set, None).await.unwrap();
        let file = self.0.entry(ino).or_default();
        file.resize(size_bytes as usize, 0);
    }

    /// One change of one file: anywhere, of any size, flushed at once or some time later.
    async fn change(&mut self, fs: &Fs, rng: &mut Rng) {
        let inos: Vec<Ino> = self.0.keys().copied().collect();
        let ino = inos[rng.below(inos.len() as u64) as usize];
        let size = self.0[&ino].len() as u64;
        match rng.below(10) {
            0 => self.truncate(fs, ino, rng.below(size + 10_000)).await,
            1 => {
                let len = 1 + rng.below(8000);
                let data = rng.bytes(len as usize);
                let offset = rng.below(size + 1);
                self.write(fs, ino, offset, data, Stability::Stable).await;
            }
            _ => {
                let len_max = if rng.coin() { 300_000 } else { 5000 };
                let len = 1 + rng.below(len_max);
                // Some of it compresses.
                let data = match rng.coin() {
                    true => rng.bytes(len as usize),
                    false => pattern(len as u32, rng.below(256) as u8),
                };
                let offset = rng.below(size + 1);
                self.write(fs, ino, offset, data, Stability::Unstable).await;
                if rng.coin() {
                    fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
                }
            }
        }
    }

    async fn check(&self, fs: &Fs) {
        for (ino, want) in &self.0 {
            assert!(read_all(fs, *ino).await == *want, "{ino}");
        }
    }
}

fn ids(world: &World) -> Vec<SegmentId> {
    let segments = world.fs.meta().segments();
    segments.into_iter().map(|(id, _)| id).collect()
}

async fn rewrite_all(world: &World, ids: &[SegmentId]) {
    let pace = Pace::new(world.env.clock.clone(), 0);
    for some in ids.chunks(REWRITE_SEGMENTS_MAX) {
        world.fs.rewrite_segments(some, &pace).await.unwrap();
    }
}

async fn world_with_files(seed: u64, rng: &mut Rng, changes: u64) -> (World, Model) {
    let world = World::new(seed, 3).await;
    let mut model = Model::default();
    for file in 0..FILES {
        let ino = create(&world.fs, &format!("file{file}")).await;
        model.0.insert(ino, Vec::new());
    }
    for _ in 0..changes {
        model.change(&world.fs, rng).await;
    }
    (world, model)
}

#[test]
fn sealed_segments_are_emptied_without_a_look_at_all_extents() {
    for seed in 0..8 {
        block_on(async {
            let mut rng = Rng::new(seed);
            let (world, mut model) = world_with_files(seed, &mut rng, 60).await;
            // All is sealed.
            let world = world.restart(seed + 100).await;
            let before = ids(&world);
            assert!(!before.is_empty());
            // Files change after their records were summarised, and while those move.
            for _ in 0..20 {
                model.change(&world.fs, &mut rng).await;
            }
            let changes = async {
                for _ in 0..20 {
                    model.change(&world.fs, &mut rng).await;
                    tokio::task::yield_now().await;
                }
            };
            futures_util::future::join(rewrite_all(&world, &before), changes).await;
            assert_eq!(world.fs.stats().rewrite_passes, 0, "seed {seed}");
            let left: Vec<SegmentId> = ids(&world);
            assert!(!before.iter().any(|id| left.contains(id)), "seed {seed}");
            model.check(&world.fs).await;
            // The copies have a summary, too.
            let world = world.restart(seed + 200).await;
            model.check(&world.fs).await;
            let copies = ids(&world);
            rewrite_all(&world, &copies).await;
            assert_eq!(world.fs.stats().rewrite_passes, 0, "seed {seed}");
            assert!(!copies.iter().any(|id| ids(&world).contains(id)));
            model.check(&world.fs).await;
        });
    }
}

#[test]
fn segments_that_a_crash_left_are_emptied_by_a_pass() {
    block_on(async {
        let mut rng = Rng::new(1);
        let (world, model) = world_with_files(1, &mut rng, 40).await;
        for ino in model.0.keys() {
            world.fs.commit(&ROOT_USER, *ino, 0, 0).await.unwrap();
        }
        let world = world.crash(7, Crash::ALL[0]).await;
        let before = ids(&world);
        rewrite_all(&world, &before).await;
        assert_eq!(world.fs.stats().rewrite_passes, 1);
        assert!(!before.iter().any(|id| ids(&world).contains(id)));
        model.check(&world.fs).await;
    });
}

/// The metadata counts one more live record than the summary leads to: a pass visits all extents, and the segment stays.
#[test]
fn a_summary_that_does_not_account_for_all_records_is_not_trusted() {
    block_on(async {
        let mut rng = Rng::new(3);
        let (world, model) = world_with_files(3, &mut rng, 20).await;
        let world = world.restart(103).await;
        let before = ids(&world);
        let mut batch = Batch::new();
        batch.segment_delta(before[0], 0, 1);
        let meta = world.fs.meta();
        meta.durable(meta.submit(batch)).await.unwrap();
        rewrite_all(&world, &before).await;
        assert_eq!(world.fs.stats().rewrite_passes, 1);
        assert!(ids(&world).contains(&before[0]), "something is left in it");
        model.check(&world.fs).await;
    });
}

/// More extents than are visited before other tasks get their turn.
#[test]
fn a_long_pass_goes_on_where_it_left_off() {
    const EXTENTS: u64 = 5000;
    block_on(async {
        let world = World::new(5, 1).await;
        let ino = create(&world.fs, "sparse").await;
        let mut model = Model::default();
        for number in 0..EXTENTS {
            let data = pattern(100, number as u8);
            let at = number * 8192;
            model
                .write(&world.fs, ino, at, data, Stability::Unstable)
                .await;
        }
        world.fs.commit(&ROOT_USER, ino, 0, 0).await.unwrap();
        let world = world.crash(7, Crash::ALL[0]).await;
        let before = ids(&world);
        rewrite_all(&world, &before).await;
        assert_eq!(world.fs.stats().rewrite_passes, 1);
        assert!(!before.iter().any(|id| ids(&world).contains(id)));
        model.check(&world.fs).await;
    });
}
