//! A takeover where disks have no room for the log once more: what is retained stays where it is.
//!
//! Owns: which parts can stay, the copies that they lack, and the file that the log goes on in.
//! Must not know: how the parts were read, what is in records.
//!
//! A takeover copies what is retained into new files, which needs as much room again on all disks of the log. A full pool has
//! that not, and must be served all the same: only what is deleted makes room. So the parts are sealed where the history ends and
//! the list goes on naming them, each with the disks that have all of it. One that has fewer than the volume's least number gets
//! the missing copies first, in files as long as their records: from disks that the list did not name for it, so that no copy is
//! given up for another before the list names that.

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

/// Bytes of a file that records fit, and nothing else.
pub(super) fn exact_bytes(records: &[LogRecord]) -> u64 {
    let lens = records
        .iter()
        .map(|record| record_len_bytes(record.payload.len()) as u64);
    (BLOCK_BYTES as u64 + lens.sum::<u64>()).next_multiple_of(IO_ALIGN_BYTES as u64)
}

impl EnsembleWriter {
    /// The list of ensembles with what is retained where it is, and a short file that is open; `None` if there is no room even
    /// for that, or too few disks have what is retained.
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

    /// What was read of the part that was open may be of an append whose sync failed: only disks that sync it now have it.
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
                // Its first block once more, as it is: with it all is synced that was written before.
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

    /// Sees to it that a part has as many copies as there must be at least; false if they cannot be made. What was made counts in
    /// the next try, too.
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
        // A part may begin before the history does: what is not needed any more is in no other copy.
        let is_within = |record: &&LogRecord| record.first >= part.from && record.last <= to;
        let records: Vec<LogRecord> = history.records.iter().filter(is_within).cloned().collect();
        let from = records.first().map_or(part.from, |record| record.first);
        let is_enough = planted::is(Bug::KeptWithTooFewCopies);
        while self.reachable_nodes(&part.disks).len() < least && !is_enough {
            let Some(disk) = self.other_disk(&part) else {
                return Ok(false);
            };
            // Should this not become the log, the file is in the way.
            self.list.note_unswept(disk.id());
            // The list says of each of its disks that it has all of a range.
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

    /// The nodes of those disks that can be asked now.
    fn reachable_nodes(&self, disks: &[DiskId]) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        for (node, disk) in self.seat.disks.choices() {
            if disks.contains(&disk.id()) && !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }

    /// A disk for one more copy of a part: on a node that has none, and none that the list names for it.
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
