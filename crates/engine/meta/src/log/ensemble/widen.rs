//! More copies of sealed ranges, once more disks are available.
//!
//! Owns: which sealed ranges have too few copies, and making the missing ones. Must not know: why there were too few.
//!
//! A range that was sealed while nodes were away is on too few disks, and an idle volume may need that range for long.
//! So it is copied from a disk that has all of it, and one transaction names the new disks beside the earlier ones. A
//! disk that the list names always has the whole range.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::NodeId;
use cairn_base::planted::{self, Bug};
use cairn_formats::metadata::log::{BLOCK_BYTES, FileHeader, RecordBuf};
use cairn_shard::{ShardError, ShardService, ShardWrite};
use futures_util::future::{Either, select};

use super::Ensemble;
use super::in_place::exact_bytes;
use super::recover::read_sealed;
use super::writer::{CARRY_BYTES, EnsembleWriter, GROW_AFTER, begin_use};
use crate::error::MetaError;
use crate::log::LogRecord;

impl EnsembleWriter {
    /// Whether a sealed range that is needed could be on more nodes. Rate-limited.
    pub(super) fn may_widen(&mut self) -> bool {
        let now = self.env.clock.monotonic();
        if now < self.widen_at {
            return false;
        }
        self.widen_at = now.saturating_add(GROW_AFTER);
        let needed = self.needed();
        needed.iter().any(|part| !self.more_disks(part).is_empty())
    }

    fn needed(&self) -> Vec<Ensemble> {
        let is_needed = |part: &&Ensemble| part.to.is_some_and(|to| to >= self.retained_from);
        self.sealed.iter().filter(is_needed).cloned().collect()
    }

    /// Disks for the missing copies of a range, on nodes that have none.
    fn more_disks(&self, part: &Ensemble) -> Vec<Arc<dyn ShardService>> {
        let there = self.seat.disks.choices();
        let has_part = |disk: &Arc<dyn ShardService>| part.disks.contains(&disk.id());
        let holders = there.iter().filter(|(_, disk)| has_part(disk));
        let mut nodes: Vec<NodeId> = holders.map(|(node, _)| *node).collect();
        // A disk that is away for a moment counts: it has the range that the list promises.
        let missing = self.seat.copies.wanted().saturating_sub(part.disks.len());
        let mut more = Vec::new();
        for (node, disk) in there {
            let is_heard = !disk.is_avoided() && !disk.is_silent();
            let is_fit = is_heard && !self.is_resting_disk(disk.id());
            let is_other = !nodes.contains(&node) || planted::is(Bug::WidenedOnOneNode);
            if is_fit && !has_part(&disk) && is_other && more.len() < missing {
                nodes.push(node);
                more.push(disk);
            }
        }
        more
    }

    /// Copies sealed ranges to more disks, and has the list name these. A disk that fails is tried again later.
    pub(super) async fn widen_sealed(&mut self) -> Result<(), MetaError> {
        let mut widened: Vec<Ensemble> = Vec::new();
        for part in self.needed() {
            let disks = self.more_disks(&part);
            if disks.is_empty() {
                continue;
            }
            let Some((header, records)) = read_sealed(&self.env, &self.seat, &part).await else {
                continue;
            };
            let mut wider = part.clone();
            for disk in disks {
                let capacity_bytes = exact_bytes(&records).max(self.capacity_bytes);
                let copied = self.copy_part(&disk, &part, &header, &records, capacity_bytes);
                match copied.await {
                    Ok(()) => wider.disks.push(disk.id()),
                    Err(ShardError::Fenced { promised, .. }) => return Err(self.fenced(promised)),
                    Err(_) if planted::is(Bug::WidenedBeforeItIsCopied) => {
                        wider.disks.push(disk.id());
                    }
                    Err(error) => self.rest(&*disk, &error),
                }
            }
            if wider != part {
                widened.push(wider);
            }
        }
        if widened.is_empty() {
            return Ok(());
        }
        let wider = |part: &mut Ensemble| {
            let found = widened.iter().find(|wider| wider.number == part.number);
            if let Some(found) = found {
                part.disks.clone_from(&found.disks);
            }
        };
        self.list
            .change(|list| list.ensembles.iter_mut().for_each(wider))
            .await?;
        self.sealed.iter_mut().for_each(wider);
        tracing::info!(volume = %self.seat.volume, ranges = widened.len(), "parts of the log have more copies again");
        Ok(())
    }

    /// Makes the file of a sealed range on one more disk. An existing file there does not count as a copy: the list
    /// would name the disk.
    pub(super) async fn copy_part(
        &self,
        disk: &Arc<dyn ShardService>,
        part: &Ensemble,
        header: &FileHeader,
        records: &[LogRecord],
        capacity_bytes: u64,
    ) -> Result<(), ShardError> {
        let (epoch, name) = (self.seat.epoch, self.seat.name(part.number));
        let making = async {
            match disk.clone().create(epoch, name, capacity_bytes, 0).await {
                Err(ShardError::Exists { .. }) => {
                    disk.remove(epoch, name).await?;
                    disk.clone().create(epoch, name, capacity_bytes, 0).await
                }
                made => made,
            }
        };
        self.in_time(disk, making).await?;
        let read_from = header.file_use;
        let header = FileHeader {
            file_use: self.new_use(part.number),
            ..header.clone()
        };
        let file_use = match planted::is(Bug::SealedCopyOfOldUse) {
            true => read_from,
            false => header.file_use,
        };
        let block = header.encode().freeze();
        self.in_time(disk, begin_use(disk, epoch, name, block))
            .await?;
        let mut offset = BLOCK_BYTES as u64;
        let mut parts = Vec::new();
        let mut parts_bytes = 0;
        for record in records {
            let positions = (record.first, record.last);
            let mut copy =
                RecordBuf::copy_of(&record.payload, positions, record.epoch, record.term);
            copy.seal(file_use, self.retained_from);
            if parts_bytes >= CARRY_BYTES {
                self.append_at(disk, part, offset, std::mem::take(&mut parts))
                    .await?;
                offset += std::mem::take(&mut parts_bytes) as u64;
            }
            parts_bytes += copy.bytes.len();
            parts.push(copy.bytes.freeze());
        }
        self.append_at(disk, part, offset, parts).await
    }

    async fn append_at(
        &self,
        disk: &Arc<dyn ShardService>,
        part: &Ensemble,
        offset: u64,
        parts: Vec<Bytes>,
    ) -> Result<(), ShardError> {
        let (epoch, name) = (self.seat.epoch, self.seat.name(part.number));
        let writes = vec![ShardWrite { offset, parts }];
        self.in_time(disk, disk.clone().append(epoch, name, writes))
            .await
    }

    /// Bounds the time of an operation: groups wait for it, and an unresponsive disk must not hold them up for long.
    pub(super) async fn in_time<T>(
        &self,
        disk: &Arc<dyn ShardService>,
        work: impl Future<Output = Result<T, ShardError>>,
    ) -> Result<T, ShardError> {
        let late = self.env.clock.sleep(self.write_wait);
        match select(Box::pin(work), late).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Err(ShardError::Late {
                disk: disk.label().to_owned(),
                what: "copying a part of the log".to_owned(),
            }),
        }
    }
}
