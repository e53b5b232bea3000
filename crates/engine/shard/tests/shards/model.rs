//! Any steps, compared with a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_base::VolumeId;
use cairn_base::disk::Disk;
use cairn_disk::{DiskSettings, RealDisk};
use cairn_shard::{Shard, ShardDisk, ShardErrorKind, ShardFooter, ShardName, ShardSettings};
use cairn_testkit::{Crash, MemDisk};
use proptest::prelude::*;

use crate::common::{block_on, fill, footer_of, kind, mem_disk, name, open_with};

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
const CAPACITY_BYTES: u64 = CAPACITY_BLOCKS * 4096;

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

/// A disk, and what should be on it.
struct World {
    shards: Arc<ShardDisk>,
    /// What crashes, if it can.
    mem: Option<Arc<MemDisk>>,
    /// Blocks written of each shard.
    written: BTreeMap<u64, BTreeMap<u64, u8>>,
    sealed: BTreeMap<u64, ShardFooter>,
    /// A crash can bring these back.
    removed_before: BTreeSet<u64>,
}

fn shard_name(segment: u64) -> ShardName {
    name(1, segment, 0)
}

/// Few of everything, so that limits are met.
async fn start(disk: Arc<dyn Disk>) -> Arc<ShardDisk> {
    let settings = ShardSettings {
        open_shards_max: 2,
        recycled_files_max: 3,
        ..ShardSettings::default()
    };
    open_with(disk, settings).await
}

impl World {
    async fn new(disk: Arc<dyn Disk>, mem: Option<Arc<MemDisk>>) -> Self {
        Self {
            shards: start(disk).await,
            mem,
            written: BTreeMap::new(),
            sealed: BTreeMap::new(),
            removed_before: BTreeSet::new(),
        }
    }

    async fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Create(segment) => self.create(*segment).await,
                Step::Write {
                    segment,
                    block,
                    blocks,
                    fill,
                } => self.write(*segment, *block, *blocks, *fill).await,
                Step::Read(segment) => self.read(*segment).await,
                Step::Seal(segment) => self.seal(*segment).await,
                Step::Remove(segment) => self.remove(*segment).await,
                Step::Prepare(count) => {
                    let prepared = self.shards.prepare_recycled(*count, CAPACITY_BYTES);
                    prepared.await.unwrap();
                }
                Step::Release => self.shards.release_recycled().await.unwrap(),
                Step::Restart => self.shards = start(self.shards.disk().clone()).await,
                Step::SyncAllAndCrash(seed) => self.sync_all_and_crash(*seed).await,
            }
            let listed = self.shards.list(VolumeId(1)).await.unwrap();
            let want: Vec<ShardName> = self.written.keys().copied().map(shard_name).collect();
            assert_eq!(listed, want);
        }
    }

    async fn open(&self, segment: u64) -> Arc<Shard> {
        self.shards.open_shard(shard_name(segment)).await.unwrap()
    }

    /// A shard, unless neither the disk nor the model has it.
    async fn open_if_there(&self, segment: u64) -> Option<Arc<Shard>> {
        let opened = self.shards.open_shard(shard_name(segment)).await.ok();
        assert_eq!(opened.is_some(), self.written.contains_key(&segment));
        opened
    }

    async fn create(&mut self, segment: u64) {
        let created = self
            .shards
            .create(shard_name(segment), CAPACITY_BYTES)
            .await;
        let is_there = self.written.contains_key(&segment);
        if is_there {
            assert_eq!(kind(created), Some(ShardErrorKind::Bug));
            return;
        }
        assert_eq!(created.unwrap().read_footer().await, Ok(None));
        self.written.insert(segment, BTreeMap::new());
    }

    async fn write(&mut self, segment: u64, block: u64, blocks: u64, byte: u8) {
        let Some(shard) = self.open_if_there(segment).await else {
            return;
        };
        let data = vec![fill(blocks * 4096, byte)];
        let written = shard.write_at(block * 4096, data).await;
        let sealed_blocks = self
            .sealed
            .get(&segment)
            .map(|footer| footer.data_len_bytes / 4096);
        let limit_blocks = sealed_blocks.unwrap_or(CAPACITY_BLOCKS);
        let end = block + blocks;
        let kept_end = match (end <= limit_blocks, sealed_blocks) {
            (true, _) => {
                written.unwrap();
                end
            }
            (false, None) => {
                assert_eq!(kind(written), Some(ShardErrorKind::Bug));
                return;
            }
            // A file that kept its size has room before its footer that nobody looks at; what of
            // the write comes before that room is written.
            (false, Some(_)) => match kind(written) {
                None => limit_blocks,
                refused => {
                    assert_eq!(refused, Some(ShardErrorKind::Bug));
                    return;
                }
            },
        };
        let content = self.written.get_mut(&segment).unwrap();
        content.extend((block..kept_end).map(|block| (block, byte)));
    }

    async fn read(&self, segment: u64) {
        let Some(shard) = self.open_if_there(segment).await else {
            return;
        };
        for (block, byte) in &self.written[&segment] {
            let got = shard.read_at(block * 4096, 4096).await.unwrap();
            assert_eq!(got, fill(4096, *byte));
        }
        let footer = shard.read_footer().await.unwrap();
        assert_eq!(footer.as_ref(), self.sealed.get(&segment));
    }

    async fn seal(&mut self, segment: u64) {
        let Some(content) = self.written.get(&segment) else {
            return;
        };
        let blocks = content.last_key_value().map_or(0, |(block, _)| block + 1);
        let shard = self.open(segment).await;
        let data = shard.read_at(0, blocks as usize * 4096).await.unwrap();
        let footer = footer_of(shard_name(segment), &data);
        shard.seal(footer.clone()).await.unwrap();
        self.sealed.insert(segment, footer);
    }

    async fn remove(&mut self, segment: u64) {
        self.shards.remove(shard_name(segment)).await.unwrap();
        self.written.remove(&segment);
        self.sealed.remove(&segment);
        self.removed_before.insert(segment);
    }

    async fn sync_all_and_crash(&mut self, seed: u64) {
        let Some(old) = self.mem.take() else { return };
        for segment in self.written.keys() {
            self.open(*segment).await.sync().await.unwrap();
        }
        let new = old.crash(Crash::Random, seed);
        self.shards = start(new.clone()).await;
        self.mem = Some(new);
        // The owner's garbage collection removes what it does not know.
        for found in self.shards.list(VolumeId(1)).await.unwrap() {
            if !self.written.contains_key(&found.segment.0) {
                assert!(self.removed_before.contains(&found.segment.0));
                self.shards.remove(found).await.unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn shards_on_memory_behave_as_the_model(steps in prop::collection::vec(step(), 0..60)) {
        let disk = mem_disk();
        block_on(async { World::new(disk.clone(), Some(disk)).await.run(&steps).await });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn shards_on_a_real_disk_behave_as_the_model(steps in prop::collection::vec(step(), 0..60)) {
        let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let disk = RealDisk::open(dir.path(), DiskSettings::default()).unwrap();
        block_on(async { World::new(disk, None).await.run(&steps).await });
    }
}
