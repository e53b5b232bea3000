//! Read repair: bytes found wrong or unreadable are rewritten in place.
//!
//! Owns: writing a repair, and the number of parallel repairs. Must not know: how the corruption was found. A repair
//! that is lost costs nothing: the next read finds the corruption again.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_base::planted::{self, Bug};
use cairn_formats::pointer::{BLOCK_BYTES, Location};
use cairn_shard::{ShardError, ShardService, ShardWrite};

use crate::layout::Piece;
use crate::life::Segment;
use crate::store::{SegmentStore, count};

/// Stripes repaired at a time; further corruption waits to be found again.
pub(crate) const REPAIRS_MAX: usize = 16;

/// Bytes that passed their checksum, and their place in a stripe.
pub(crate) struct Fix {
    pub piece: Piece,
    pub data: Bytes,
}

impl SegmentStore {
    /// Repairs one stripe in the background, unless enough repairs are in progress.
    pub(crate) fn start_repair(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        fixes: Vec<Fix>,
    ) {
        if fixes.is_empty() || self.is_read_only(segment.volume) {
            return;
        }
        let Some(turn) = self.repairs.begin() else {
            count(&self.counters.repairs_skipped, fixes.len() as u64);
            return;
        };
        let (store, segment, location) = (self.clone(), segment.clone(), *location);
        let task = async move {
            for fix in fixes {
                match store.repair(&segment, &location, &fix).await {
                    Ok(true) => count(&store.counters.repairs, 1),
                    Ok(false) => {}
                    Err(error) => {
                        store.note_fenced(&error);
                        count(&store.counters.repairs_failed, 1);
                        tracing::warn!(segment = %segment.id, shard = fix.piece.shard, %error, "a repair failed");
                    }
                }
            }
            drop(turn);
        };
        self.env.spawner.spawn("read repair", Box::pin(task));
    }

    /// Waits until the repairs and the rebuild in progress have ended.
    pub async fn repairs_done(&self) {
        self.repairs.ended().await;
        self.rebuilds.ended().await;
    }

    /// False if the disk or the segment is not available for a repair.
    async fn repair(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        fix: &Fix,
    ) -> Result<bool, ShardError> {
        let Fix { piece, data } = fix;
        let _writing = segment.gate.read().await;
        let _alone = segment.repair.lock().await;
        let disk = segment.disk_of(piece.shard);
        let Some(disk) = disk.and_then(|disk| self.healthy_disk(disk)) else {
            return Ok(false);
        };
        if segment.is_removed() {
            return Ok(false);
        }
        let columns = piece.columns();
        let start = columns.start - columns.start % BLOCK_BYTES;
        let end = columns.end.next_multiple_of(BLOCK_BYTES);
        let blocks = if (start..end) == columns {
            data.clone()
        } else {
            let around = self
                .around(segment, location, &*disk, piece.shard, start..end)
                .await?;
            let mut blocks = AlignedBuf::copy_of(&around);
            let at = (columns.start - start) as usize;
            blocks[at..at + data.len()].copy_from_slice(data);
            blocks.freeze()
        };
        let mut offset = location.stripe_offset_bytes() + u64::from(start);
        if planted::is(Bug::RepairAtWrongPlace) {
            offset = offset.saturating_sub(u64::from(BLOCK_BYTES));
        }
        let write = ShardWrite {
            offset,
            parts: vec![blocks],
        };
        let name = segment.shard_name(piece.shard);
        disk.repair(segment.epoch, name, vec![write]).await?;
        Ok(true)
    }

    /// The bytes in the blocks around the repaired ones, which belong to other records. The disk has just returned
    /// wrong bytes, so the other shards decide, if there are more of them than decoding needs and all agree. Otherwise
    /// the disk's bytes are kept, or computed where the disk cannot read them.
    async fn around(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        disk: &dyn ShardService,
        index: u8,
        columns: std::ops::Range<u32>,
    ) -> Result<Bytes, ShardError> {
        if let Some(agreed) = self.agreed(segment, location, index, columns.clone()).await {
            return Ok(agreed);
        }
        let offset = location.stripe_offset_bytes() + u64::from(columns.start);
        let name = segment.shard_name(index);
        match disk.read(name, offset, columns.len()).await {
            Ok(bytes) => Ok(bytes),
            Err(error) => {
                let decoded = self
                    .decode_units(segment, location, columns, &[index])
                    .await;
                decoded.and_then(|mut units| units.pop()).ok_or(error)
            }
        }
    }
}
