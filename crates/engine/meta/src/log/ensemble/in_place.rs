//! A takeover on full disks: the retained log stays in place.
//!
//! Owns: which parts can stay, the copies that they lack, and the file that the log goes on in. Must not know: how the
//! parts were read, the contents of records.
//!
//! A takeover copies the retained log into new files, which needs its size again on all disks of the log. A full pool
//! has no room for that, but must be served: only deletions free space. So the parts are sealed where the history ends,
//! and the list goes on naming them, each with the disks that have all of it. A part with fewer copies than the
//! volume's minimum gets the missing ones first, in files as long as their records. They go to disks that the list did
//! not name for the part, so that no copy is given up for another before the list names that one.

use std::sync::Arc;

use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, LogPosition, NodeId};
use cairn_formats::metadata::log::{BLOCK_BYTES, record_len_bytes};
use cairn_shard::{ShardError, ShardService};

use super::Ensemble;
use super::writer::{Created, EnsembleWriter, begin_use};
use crate::error::MetaError;
use crate::log::{History, LogRecord};

/// Length of a file that fits exactly these records.
pub(super) fn exact_bytes(records: &[LogRecord]) -> u64 {
    let lens = records
        .iter()
        .map(|record| record_len_bytes(record.payload.len()) as u64);
    (BLOCK_BYTES as u64 + lens.sum::<u64>()).next_multiple_of(IO_ALIGN_BYTES as u64)
}

impl EnsembleWriter {
    /// The list of ensembles with the retained log in place, and a short open file. `None` if the disks lack room even
    /// for that file, or if too few disks have the retained log.
    pub(super) async fn keep_in_place(
        &mut self,
        history: &History,
    ) -> Result<Option<Vec<Ensemble>>, MetaError> {
        if self.parts.is_empty() && !history.records.is_empty() {
            return Ok(None);
        }
        self.sync_open_part().await?;
        self.try_full_ones();
        for index in 0..self.parts.len() {
            if !self.has_least_copies(history, index).await? {
                return Ok(None);
            }
        }
        let mut ensembles = self.parts.clone();
        let next = LogPosition(history.end.0 + 1);
        self.capacity_bytes = self.file_bytes;
        let before = self.begun.len();
        loop {
            let disks = self.choose().await?;
            let capacity = self.capacity_bytes;
            match self.create(&disks, next, 0).await? {
                Created::Made => break,
                Created::Full if self.capacity_bytes < capacity => {
                    self.give_room_back(before).await;
                }
                Created::Full | Created::Failed => return Ok(None),
            }
        }
        ensembles.push(self.open_ensemble());
        Ok(Some(ensembles))
    }

    /// The last records read of the open part may come from an append whose sync failed: only disks that sync the part
    /// now have them.
    async fn sync_open_part(&mut self) -> Result<(), MetaError> {
        let open = self.list.get().ensembles.last().map(|open| open.number);
        let Some(mut part) = self.parts.pop() else {
            return Ok(());
        };
        if Some(part.number) == open && !planted::is(Bug::KeptPartNotSynced) {
            let (epoch, name) = (self.seat.epoch, self.seat.name(part.number));
            for id in std::mem::take(&mut part.disks) {
                let Some(disk) = self.seat.disks.disk(id) else {
                    continue;
                };
                // Writes the first block again, unchanged: its sync covers everything written before.
                let syncing = async {
                    let block = disk.read(name, 0, BLOCK_BYTES).await?;
                    begin_use(&disk, epoch, name, block).await
                };
                match self.in_time(&disk, syncing).await {
                    Ok(()) => part.disks.push(id),
                    Err(ShardError::Fenced { promised, .. }) => return Err(self.fenced(promised)),
                    Err(error) => self.rest(&*disk, &error),
                }
            }
        }
        self.parts.push(part);
        Ok(())
    }

    /// Brings a part to the minimum number of copies; false if that fails. Copies made here count in the next try.
    async fn has_least_copies(
        &mut self,
        history: &History,
        index: usize,
    ) -> Result<bool, MetaError> {
        let least = self.seat.copies.least();
        let mut part = self.parts[index].clone();
        let Some(to) = part.to else {
            return Ok(false);
        };
        // A part may begin before the history does: the other copies lack the records that are not needed any more.
        let is_within = |record: &&LogRecord| record.first >= part.from && record.last <= to;
        let records: Vec<LogRecord> = history.records.iter().filter(is_within).cloned().collect();
        let from = records.first().map_or(part.from, |record| record.first);
        let is_enough = planted::is(Bug::KeptWithTooFewCopies);
        while self.reachable_nodes(&part.disks).len() < least && !is_enough {
            let Some(disk) = self.other_disk(&part) else {
                return Ok(false);
            };
            // If this file does not become part of the log, a sweep has to remove it.
            self.list.note_unswept(disk.id());
            // The list promises that each disk named has the whole range.
            part.from = from;
            let header = self.header(part.number, part.disks.clone());
            let capacity_bytes = exact_bytes(&records);
            let copied = self.copy_part(&disk, &part, &header, &records, capacity_bytes);
            match copied.await {
                Ok(()) => {
                    part.disks.push(disk.id());
                    self.parts[index] = part.clone();
                }
                Err(ShardError::Fenced { promised, .. }) => return Err(self.fenced(promised)),
                Err(error) => {
                    self.rest(&*disk, &error);
                    let made = Ensemble {
                        disks: vec![disk.id()],
                        ..part.clone()
                    };
                    self.remove(&[made]);
                }
            }
        }
        Ok(true)
    }

    /// The nodes of those disks that are reachable now.
    fn reachable_nodes(&self, disks: &[DiskId]) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        for (node, disk) in self.seat.disks.choices() {
            if disks.contains(&disk.id()) && !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }

    /// A disk for one more copy of a part: on a node without a copy, and not named for it in the list.
    fn other_disk(&self, part: &Ensemble) -> Option<Arc<dyn ShardService>> {
        let nodes = self.reachable_nodes(&part.disks);
        let listed = self.list.get().ensembles.into_iter();
        let listed: Vec<DiskId> = listed
            .filter(|listed| listed.number == part.number)
            .flat_map(|listed| listed.disks)
            .collect();
        let is_fit = |node: &NodeId, disk: &Arc<dyn ShardService>| {
            let is_new = !part.disks.contains(&disk.id()) && !listed.contains(&disk.id());
            is_new
                && !nodes.contains(node)
                && !disk.is_avoided()
                && !self.is_resting_disk(disk.id())
        };
        let mut choices = self.seat.disks.choices().into_iter();
        choices
            .find(|(node, disk)| is_fit(node, disk))
            .map(|(_, disk)| disk)
    }
}
