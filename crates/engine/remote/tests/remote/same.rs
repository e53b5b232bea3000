//! A remote disk does what a local one does.

use std::sync::Arc;

use cairn_base::Epoch;
use cairn_base::crc32c;
use cairn_shard::{
    CHECKSUM_UNIT_BYTES, Copied, HiddenId, ShardDisk, ShardFooter, ShardService, ShardWrite,
};
use cairn_testkit::MemDisk;
use proptest::prelude::*;

use crate::common::{CAPACITY, Pair, VOLUME, block_on, fill, name, shard_disk, write};

#[derive(Clone, Debug)]
enum Verb {
    Probe,
    Spare(usize),
    Release,
    Fence,
    Create,
    Append(u64, usize),
    Seal(u64),
    Stat,
    Read(u64, usize),
    Checked(u64, usize),
    Repair(u64),
    Begin,
    Fill(u64),
    Copy,
    SealHidden,
    Publish,
    Discard,
    Remove,
    List,
    Sweep,
}

fn verb() -> impl Strategy<Value = Verb> {
    let offset = || (0u64..70).prop_map(|block| block * 2048);
    let len = || 0usize..140_000;
    prop_oneof![
        1 => Just(Verb::Probe),
        1 => (0usize..3).prop_map(Verb::Spare),
        1 => Just(Verb::Release),
        1 => Just(Verb::Fence),
        3 => Just(Verb::Create),
        4 => (offset(), len()).prop_map(|(offset, len)| Verb::Append(offset, len)),
        2 => (0u64..3).prop_map(Verb::Seal),
        1 => Just(Verb::Stat),
        3 => (offset(), len()).prop_map(|(offset, len)| Verb::Read(offset, len)),
        3 => (0u64..4, len()).prop_map(|(unit, len)| Verb::Checked(unit * CHECKSUM_UNIT_BYTES, len)),
        1 => offset().prop_map(Verb::Repair),
        2 => Just(Verb::Begin),
        2 => offset().prop_map(Verb::Fill),
        2 => Just(Verb::Copy),
        1 => Just(Verb::SealHidden),
        2 => Just(Verb::Publish),
        1 => Just(Verb::Discard),
        1 => Just(Verb::Remove),
        1 => Just(Verb::List),
        1 => Just(Verb::Sweep),
    ]
}

fn footer(segment: u64, blocks: u64) -> ShardFooter {
    let data = fill(blocks as usize * 4096, 7);
    ShardFooter {
        name: name(segment),
        // The last of them contradicts itself.
        data_shards: u8::from(blocks < 2),
        parity_shards: 1,
        epoch: Epoch(1),
        data_len_bytes: data.len() as u64,
        stripes: Vec::new(),
        checksums: data
            .chunks(CHECKSUM_UNIT_BYTES as usize)
            .map(crc32c)
            .collect(),
        summary: vec![1, 2],
    }
}

/// One of the two, with what it has begun.
struct Side {
    disk: Arc<dyn ShardService>,
    source: Arc<ShardDisk>,
    hidden: HiddenId,
    list: (Vec<cairn_shard::ShardName>, u64),
}

impl Side {
    async fn new(disk: Arc<dyn ShardService>) -> Self {
        let source = shard_disk(MemDisk::new("source", 64 << 20), 77).await;
        for segment in 0..3 {
            let shard = name(segment);
            let made = ShardService::create(source.clone(), Epoch(1), shard, CAPACITY, 0).await;
            made.unwrap();
            let writes = write(0, 65536, 5);
            let written = ShardService::append(source.clone(), Epoch(1), shard, writes).await;
            written.unwrap();
        }
        let list = disk.list(VOLUME).await.unwrap();
        let hidden = HiddenId {
            name: name(0),
            number: 999,
        };
        Self {
            disk,
            source,
            hidden,
            list: (list.names, list.mark),
        }
    }

    /// What came of it, in words without the numbers that differ and the name of the node.
    async fn run(&mut self, verb: &Verb, epoch: Epoch, segment: u64) -> String {
        let disk = self.disk.clone();
        let shard = name(segment);
        let hidden = self.hidden;
        let text = match verb.clone() {
            Verb::Probe => format!("{:?}", disk.probe().await),
            Verb::Spare(count) => format!("{:?}", disk.prepare_recycled(count, CAPACITY).await),
            Verb::Release => format!("{:?}", disk.release_recycled().await),
            Verb::Fence => format!("{:?}", disk.fence(VOLUME, epoch).await),
            Verb::Create => format!("{:?}", disk.create(epoch, shard, CAPACITY, 0).await),
            Verb::Append(offset, len) => {
                let mut writes = write(offset, len, segment as u8 + 1);
                writes.extend(write(0, 4096, 9));
                format!("{:?}", disk.append(epoch, shard, writes).await)
            }
            Verb::Seal(blocks) => {
                format!("{:?}", disk.seal(epoch, footer(segment, blocks)).await)
            }
            Verb::Stat => format!("{:?}", disk.stat(shard).await),
            Verb::Read(offset, len) => {
                let read = disk.read(shard, offset, len).await;
                format!("{:?}", read.map(|bytes| (bytes.len(), crc32c(&bytes))))
            }
            Verb::Checked(start, len) => {
                let sums = [crc32c(&fill(65536, 1)), 0];
                let range = start..start + len as u64;
                let read = disk.read_checked(shard, range, &sums).await;
                let read = read.map(|read| (crc32c(&read.bytes), read.damaged));
                format!("{read:?}")
            }
            Verb::Repair(offset) => {
                let writes = write(offset, 4096, 3);
                format!("{:?}", disk.repair(epoch, shard, writes).await)
            }
            Verb::Begin => {
                let begun = disk.create_hidden(epoch, shard, CAPACITY, 0).await;
                if let Ok(hidden) = begun {
                    self.hidden = hidden;
                }
                format!("{:?}", begun.map(|hidden| hidden.name))
            }
            Verb::Fill(offset) => {
                let write = ShardWrite {
                    offset,
                    parts: vec![fill(4096, 1), fill(8192, 2)],
                };
                format!("{:?}", disk.fill(epoch, hidden, write).await)
            }
            Verb::Copy => {
                let good = crc32c(&fill(65536, 5));
                let sums = [good ^ u32::from(segment == 2)];
                let copy = disk.copy_from(epoch, hidden, &*self.source, 0..65536, &sums);
                match copy.await {
                    Ok(Copied::Unread(error)) => format!("unread {error:?}"),
                    copied => format!("{copied:?}"),
                }
            }
            Verb::SealHidden => {
                let footer = footer(hidden.name.segment.0, 1);
                format!("{:?}", disk.seal_hidden(epoch, hidden, footer).await)
            }
            Verb::Publish => format!("{:?}", disk.publish(epoch, hidden).await),
            Verb::Discard => format!("{:?}", disk.discard(epoch, hidden).await),
            Verb::Remove => format!("{:?}", disk.remove(epoch, shard).await),
            Verb::List => {
                let list = disk.list(VOLUME).await.unwrap();
                self.list = (list.names.clone(), list.mark);
                format!("{:?} {:?}", list.names, list.promised)
            }
            Verb::Sweep => {
                let (names, mark) = self.list.clone();
                format!("{:?}", disk.sweep(epoch, VOLUME, names, mark).await)
            }
        };
        text.replace("two:", "")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_remote_disk_does_what_a_local_one_does(
        verbs in prop::collection::vec((verb(), 0u64..3, 0u64..3), 1..40),
    ) {
        block_on(async {
            let pair = Pair::new().await;
            let plain = shard_disk(MemDisk::new("mem", 64 << 20), 9).await;
            let mut local = Side::new(plain.clone()).await;
            let mut remote = Side::new(pair.remote()).await;
            for (verb, epoch, segment) in verbs {
                let epoch = Epoch(epoch / 2 + 1);
                let one = local.run(&verb, epoch, segment).await;
                let other = remote.run(&verb, epoch, segment).await;
                prop_assert_eq!(one, other, "{:?} of {} in epoch {}", verb, segment, epoch);
            }
            Ok(())
        })?;
    }
}

#[test]
fn what_is_longer_than_a_request_goes_in_several() {
    block_on(async {
        let pair = Pair::new().await;
        let disk: Arc<dyn ShardService> = pair.remote();
        let shard = name(1);
        let unit = CHECKSUM_UNIT_BYTES as usize;
        let len = (9 << 20) + unit;
        disk.clone()
            .create(Epoch(1), shard, 16 << 20, 0)
            .await
            .unwrap();
        let parts: Vec<_> = (0..len / unit)
            .map(|index| fill(unit, index as u8))
            .collect();
        let whole = parts.concat();
        let sums: Vec<u32> = parts.iter().map(|part| crc32c(part)).collect();
        let writes = vec![ShardWrite { offset: 0, parts }];
        disk.clone().append(Epoch(1), shard, writes).await.unwrap();
        assert_eq!(disk.read(shard, 0, len).await.unwrap(), whole);
        let mut wrong = sums.clone();
        wrong[140] ^= 1;
        let start = 140 * CHECKSUM_UNIT_BYTES;
        let damaged = std::ops::Range {
            start,
            end: start + CHECKSUM_UNIT_BYTES,
        };
        let read = disk
            .read_checked(shard, 0..len as u64, &wrong)
            .await
            .unwrap();
        assert_eq!((read.bytes, read.damaged), (whole.into(), vec![damaged]));
        let hidden = disk
            .create_hidden(Epoch(1), name(2), 16 << 20, 0)
            .await
            .unwrap();
        let write = ShardWrite {
            offset: 0,
            parts: vec![fill(10 << 20, 3)],
        };
        disk.fill(Epoch(1), hidden, write).await.unwrap();
        disk.publish(Epoch(1), hidden).await.unwrap();
        let read = disk.read(name(2), (10 << 20) - 4096, 4096).await.unwrap();
        assert_eq!(read, fill(4096, 3));
    });
}
