//! Moves of shards, and the metadata that records their places.
//!
//! Owns: the order of a move's steps. A pointer enters the metadata only after the bytes it names are durable, and
//! the old bytes are deleted only after the pointer is durable (Rule 3): copy, new place submitted, durable, old
//! shard deleted. Must not know: why a shard moves, and in which order (`node`); how it is copied (`segment`).

use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, SegmentId};
use cairn_meta::{Batch, MetaError, Ticket};
use cairn_segment::{MoveError, Moved, Pace, ShardAt};

use crate::kernel::{Bare, Metadata};
use crate::volume::Fs;

/// A shard whose new place was submitted to the log. If this is dropped before [`PlacedShard::finish`], it is unknown
/// which place the metadata has: both files stay until the volume is reopened, and a sweep removes the superfluous
/// one.
pub struct PlacedShard {
    meta: Metadata,
    ticket: Ticket,
    moved: Moved,
}

/// A shard that is only at its new place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedShard {
    pub segment: SegmentId,
    /// Bytes that no disk or redundancy could provide.
    pub lost_bytes: u64,
}

impl Fs {
    /// Makes a copy of a shard on another disk, or on the disk `to`, where no reader looks for it yet;
    /// [`Fs::place_shard`] continues from there. Errors as of [`cairn_segment::SegmentStore::move_shard_to`].
    pub async fn copy_shard(
        &self,
        segment: SegmentId,
        index: u8,
        to: Option<DiskId>,
        pace: &Pace,
    ) -> Result<Moved, MoveError> {
        let shared = &self.shared;
        // The shard belongs to an append that is not committed, or never will be: garbage collection decides on it.
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

    /// Submits the new place of a shard to the metadata. Returns `None`, and deletes the copy, if the place is
    /// refused: the segment is gone, the disk takes no shards any more, or the metadata has ended.
    ///
    /// The caller holds the lock that keeps disks from leaving, until the move has ended.
    pub async fn place_shard(&self, moved: Moved) -> Option<PlacedShard> {
        let meta = &self.shared.meta;
        let info = moved.info();
        if meta.segment(info.id).is_none() || !moved.is_welcome() {
            moved.abandon().await;
            return None;
        }
        let mut batch = Batch::new();
        batch.place_segment(info.id, info.disks);
        let ticket = self.shared.commit_bare(Bare::Segments, batch);
        if ticket == Ticket::REFUSED {
            // The metadata has ended, or is ending: the log never has this place.
            moved.abandon().await;
            return None;
        }
        Some(PlacedShard {
            meta: meta.clone(),
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

    /// Waits until the new place is durable. Then readers go there, and the old shard is deleted. After an error the
    /// state of the log is unknown, and both copies stay.
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
