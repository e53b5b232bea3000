//! Moves of shards, and the metadata that says where they are.
//!
//! Owns: the order of a move's steps. A pointer enters the metadata only after the bytes it names are durable, and
//! what it named before goes only after that is durable (Rule 3): copy, new place submitted, durable, old shard deleted.
//! Must not know: why a shard moves, and in which order (`node`); how it is copied (`segment`).

use std::sync::Arc;

use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, SegmentId};
use cairn_meta::{Batch, MetaError, MetaStore, Ticket};
use cairn_segment::{MoveError, Moved, Pace, ShardAt};

use crate::volume::Fs;

/// A shard whose new place the log was told of. Dropped before [`PlacedShard::finish`], nobody knows which place the
/// metadata has: both files stay until the volume is opened again, and a sweep removes the one that is too many.
pub struct PlacedShard {
    meta: Arc<MetaStore>,
    ticket: Ticket,
    moved: Moved,
}

/// A shard that is at its new place and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedShard {
    pub segment: SegmentId,
    /// Bytes that could not be had from anywhere.
    pub lost_bytes: u64,
}

impl Fs {
    /// Makes a copy of a shard on another disk, or on the disk `to`, where nobody looks for it yet; [`Fs::place_shard`]
    /// goes on from there. Errors as of [`cairn_segment::SegmentStore::move_shard_to`].
    pub async fn copy_shard(
        &self,
        segment: SegmentId,
        index: u8,
        to: Option<DiskId>,
        pace: &Pace,
    ) -> Result<Moved, MoveError> {
        let shared = &self.shared;
        // Of an append that is not committed, or never will be: collecting garbage decides over it.
        if shared.meta.segment(segment).is_none() {
            return Err(MoveError::NotNow);
        }
        let at = ShardAt {
            volume: shared.volume,
            segment,
            index,
        };
        shared.segments.move_shard_to(at, to, pace).await
    }

    /// Tells the metadata of the new place of a shard. `None` if it is not taken: the segment is gone, the disk takes
    /// no shards any more, or the metadata has ended; the copy is deleted then.
    ///
    /// Call with whatever keeps disks from leaving held, until the move has ended.
    pub async fn place_shard(&self, moved: Moved) -> Option<PlacedShard> {
        let meta = &self.shared.meta;
        let info = moved.info();
        if meta.segment(info.id).is_none() || !moved.is_welcome() {
            moved.abandon().await;
            return None;
        }
        let mut batch = Batch::new();
        batch.place_segment(info.id, info.disks);
        let ticket = meta.submit(batch);
        if ticket == Ticket::REFUSED {
            // The metadata has ended, or ends: the log never sees this.
            moved.abandon().await;
            return None;
        }
        Some(PlacedShard {
            meta: Arc::clone(meta),
            ticket,
            moved,
        })
    }
}

impl PlacedShard {
    /// Resolves when the new place is durable. An error is final.
    pub async fn durable(&self) -> Result<(), MetaError> {
        if planted::is(Bug::MovedShardDeletedEarly) {
            return Ok(());
        }
        self.meta.durable(self.ticket).await
    }

    /// Waits until the new place is durable; then readers go there, and the old shard is deleted. After an error
    /// nobody knows what the log has, and both copies stay.
    pub async fn finish(self) -> Result<MovedShard, MetaError> {
        self.durable().await?;
        let moved = MovedShard {
            segment: self.moved.info().id,
            lost_bytes: self.moved.lost_bytes,
        };
        self.moved.finish().await;
        Ok(moved)
    }
}
