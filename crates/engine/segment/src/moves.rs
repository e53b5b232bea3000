//! Moves of shards to other disks: from a draining disk, or rebuilt from the other shards when it is lost.
//!
//! Owns: moving a shard to another disk without a moment in which it is missing, and the allowed targets. Must not
//! know: why it moves; how the metadata stores the segment's disks. Invariant: the old shard is deleted only after the
//! caller has made the new place durable.

use std::sync::Arc;

use cairn_base::disk::DiskSpace;
use cairn_base::{DiskId, DomainPath, SegmentId, VolumeId};
use cairn_shard::{ShardError, ShardService};
use tokio::sync::OwnedRwLockReadGuard;

use crate::life::Segment;
use crate::move_targets::{self, DiskRoom, MoveRoom, MovingShard};
use crate::pace::Pace;
use crate::rebuild::{Fill, RebuildError};
use crate::spread::{DiskFill, Spread};
use crate::store::{SegmentStore, disk_space};
use crate::types::SegmentInfo;
use crate::volume::Volume;

/// Segments of a volume on one disk that are examined at a time for shards that should move.
const SPREAD_LOOKED_AT_MAX: usize = 4096;

/// Names one shard of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardAt {
    pub volume: VolumeId,
    pub segment: SegmentId,
    pub index: u8,
}

/// Reasons why a shard was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The segment is open, being moved already, or gone: nothing can be done now.
    #[error("the segment is in use or gone")]
    NotNow,
    /// No disk without a shard of the segment has room for one more.
    #[error("no disk can take the shard")]
    NoTarget,
    /// Too few of the other shards can be read to compute it. With missing disks, a later try may succeed.
    #[error("it cannot be computed: {0}")]
    TooFew(String),
    /// A crash left the segment without footers, so nothing verifies the bytes that the shard would be computed from.
    /// Or its disk is faulted or missing, and some of its bytes are nowhere else. The records have their own checksums,
    /// can be read from faulted disks, too, and can be rewritten.
    #[error("the shard cannot be made from the others; its records have to be rewritten")]
    Unsealed,
    #[error(transparent)]
    Disk(#[from] ShardError),
}

impl From<RebuildError> for MoveError {
    fn from(error: RebuildError) -> Self {
        match error {
            RebuildError::Shard(error) => Self::Disk(error),
            error @ RebuildError::TooFew { .. } => Self::TooFew(error.to_string()),
            RebuildError::Unsealed => Self::Unsealed,
            RebuildError::Removed => Self::NotNow,
        }
    }
}

/// A shard at its new place, which readers do not use yet.
///
/// If it is dropped, the metadata may or may not name the new place: both files stay, and the segment is not moved
/// again until the volume is reopened.
pub struct Moved {
    store: Arc<SegmentStore>,
    /// Bytes that could not be recovered from any disk.
    pub lost_bytes: u64,
    /// Keeps the segment from being removed until its disks are known.
    _gate: OwnedRwLockReadGuard<()>,
    place: MoveTarget,
}

/// The target of a move. Dropping it ends the move with the known outcome.
struct MoveTarget {
    volume: Arc<Volume>,
    segment: Arc<Segment>,
    index: u8,
    to: DiskId,
    outcome: Outcome,
}

/// Outcome of a move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The metadata has the old place, and never had another one.
    Nothing,
    /// The metadata has one or the other.
    Unknown,
    /// The metadata has the new place.
    Done,
}

impl Drop for MoveTarget {
    fn drop(&mut self) {
        // Otherwise the next move would begin by deleting a file that the metadata may name, and the next sweep would
        // delete it.
        if self.outcome != Outcome::Unknown {
            match self.outcome == Outcome::Done {
                true => {
                    let mut segments = self.volume.segments.write();
                    segments.place(&self.segment, self.index, self.to);
                }
                false => self.segment.end_move(self.index, self.to, false),
            }
        }
    }
}

impl Moved {
    /// The segment with its new disks, for the metadata.
    pub fn info(&self) -> SegmentInfo {
        let place = &self.place;
        let mut info = place.segment.info();
        if let Some(disk) = info.disks.get_mut(usize::from(place.index)) {
            *disk = place.to;
        }
        info
    }

    /// Whether the disk still accepts shards. Call this before the metadata is told, while holding a lock that keeps
    /// disks from leaving.
    pub fn is_welcome(&self) -> bool {
        self.store.takes_shards(self.place.to)
    }

    /// Finishes the move after the new place is durable in the metadata: readers use it, and the old shard is deleted.
    /// On a faulted disk it is left to the sweep of the next start: each error of that disk may take long, and many
    /// shards leave it.
    pub async fn finish(mut self) {
        let epoch = self.place.segment.epoch;
        let name = self.place.segment.shard_name(self.place.index);
        let from = self.place.segment.disk_of(self.place.index);
        self.place.outcome = Outcome::Done;
        let Self { store, place, .. } = self;
        drop(place);
        if let Some(disk) = from.and_then(|from| store.healthy_disk(from))
            && let Err(error) = disk.remove(epoch, name).await
        {
            tracing::debug!(%error, "the old copy of a moved shard stays until a sweep");
        }
    }

    /// Undoes the move if the metadata does not have the new place and never will: the new shard is deleted. If that is
    /// unknown, drop the value instead: a sweep decides after the volume is reopened.
    pub async fn abandon(mut self) {
        self.place.outcome = Outcome::Nothing;
        let epoch = self.place.segment.epoch;
        let name = self.place.segment.shard_name(self.place.index);
        if let Some(disk) = self.store.healthy_disk(self.place.to)
            && let Err(error) = disk.remove(epoch, name).await
        {
            tracing::debug!(%error, "a shard that was moved in vain stays until a sweep");
        }
    }
}

fn moving(info: &SegmentInfo, index: u8) -> MovingShard<'_> {
    MovingShard {
        held: &info.disks,
        code: info.code,
        index,
        len_bytes: info.shard_len_bytes,
        media: info.media,
    }
}

impl SegmentStore {
    /// Makes a shard on another disk, which [`MoveRoom::target`] chooses. The caller makes that durable and calls
    /// [`Moved::finish`].
    ///
    /// The bytes come from the shard itself if it can be read, and otherwise from the other shards. Some bytes may be
    /// unrecoverable although the disks of all other shards are present and its own works or is gone. Such bytes are
    /// given up and counted: they were lost before, and the rest of the shard must not stay unprotected because of
    /// them. If its disk is faulted or missing and still belongs to the pool, the bytes may be found yet: then this
    /// fails with `Unsealed`.
    pub async fn move_shard(
        self: &Arc<Self>,
        at: ShardAt,
        pace: &Pace,
    ) -> Result<Moved, MoveError> {
        self.move_shard_to(at, None, pace).await
    }

    /// As [`Self::move_shard`], to the disk `to` if one is named, for a shard that could stay. `NoTarget` if it may not
    /// go there.
    pub async fn move_shard_to(
        self: &Arc<Self>,
        at: ShardAt,
        to: Option<DiskId>,
        pace: &Pace,
    ) -> Result<Moved, MoveError> {
        let volume = self.volume(at.volume).map_err(|_| MoveError::NotNow)?;
        let segment = volume.require_owned();
        let segment = segment.and_then(|()| volume.segment(at.segment));
        let segment = segment.map_err(|_| MoveError::NotNow)?;
        let moved = self.move_segment(volume, &segment, at.index, to, pace);
        let moved = moved.await;
        if let Err(MoveError::Disk(error)) = &moved {
            self.note_fenced(error);
        }
        moved
    }

    async fn move_segment(
        self: &Arc<Self>,
        volume: Arc<Volume>,
        segment: &Arc<Segment>,
        index: u8,
        to: Option<DiskId>,
        pace: &Pace,
    ) -> Result<Moved, MoveError> {
        // During sealing a segment is not open any more, but its files are truncated.
        let is_settled = || segment.settled_len_bytes().is_some();
        let is_remote = segment.remote.is_some();
        let is_busy = || is_remote || segment.is_removed() || !is_settled() || segment.is_pinned();
        if is_busy() {
            return Err(MoveError::NotNow);
        }
        let info = segment.info();
        let target = match to {
            None => self.target_for(&info, index),
            Some(to) => Some(to).filter(|to| self.move_targets().may_go(moving(&info, index), *to)),
        };
        let target = target.ok_or(MoveError::NoTarget)?;
        let disk = self.healthy_disk(target).ok_or(MoveError::NoTarget)?;
        if !segment.begin_move(index, target) {
            return Err(MoveError::NotNow);
        }
        let mut place = MoveTarget {
            volume,
            segment: segment.clone(),
            index,
            to: target,
            outcome: Outcome::Nothing,
        };
        // A file left by a move that a crash interrupted.
        disk.remove(segment.epoch, segment.shard_name(index))
            .await?;
        let sources = self.rebuild_sources(segment, index).await;
        let own = self.own_source(segment, index).await?;
        let others_there = sources.len() + 1 >= usize::from(segment.code.total());
        let fill = Fill {
            index,
            sources: &sources,
            own: own.as_ref(),
            keep_what_is_left: others_there && (segment.code.parity() > 0 || own.is_some()),
        };
        let made = self.rebuild_on(segment, &fill, &*disk, Some(pace)).await;
        let (hidden, lost_bytes) = made?;
        // Not earlier: a removal should not wait for a whole shard at the pace of this move.
        let gate = segment.gate.clone().read_owned().await;
        if is_busy() {
            let _ = disk.discard(segment.epoch, hidden).await;
            return Err(MoveError::NotNow);
        }
        disk.publish(segment.epoch, hidden).await?;
        place.outcome = Outcome::Unknown;
        Ok(Moved {
            store: self.clone(),
            lost_bytes,
            _gate: gate,
            place,
        })
    }

    /// Whether a shard of a segment could be moved now.
    pub fn can_move(&self, info: &SegmentInfo, index: u8) -> bool {
        self.target_for(info, index).is_some()
    }

    /// The disk with most room of those that hold none of the segment's shards and let it survive the loss of most
    /// nodes.
    fn target_for(&self, info: &SegmentInfo, index: u8) -> Option<DiskId> {
        self.move_targets().target(moving(info, index))
    }

    /// Possible targets now. A disk that does not answer would delay all later moves.
    fn move_targets(&self) -> MoveRoom {
        let is_well = |id| {
            let disk = self.disk(id);
            disk.is_some_and(|disk| !disk.is_silent() && !disk.state().is_failing())
        };
        self.move_room().with_only(is_well)
    }

    /// Fill levels of the disks that hold shards, for balancing.
    pub fn spread(&self) -> Spread {
        let disks = self.roomy_disks().into_iter();
        let members = self.members();
        let fill = |disk: Arc<dyn ShardService>| {
            let space = disk_space(&*disk);
            DiskFill {
                disk: disk.id(),
                media: members.media(disk.id()),
                total_bytes: space.total_bytes,
                free_bytes: space.free_bytes,
            }
        };
        Spread::new(disks.map(fill), self.move_room())
    }

    /// Up to `count_max` shards of a volume that should move to emptier disks, with the target of each; plans these
    /// moves.
    ///
    /// With many segments, each call examines some of them. `turn` changes with each call, so that all are examined in
    /// the end.
    pub fn shards_to_spread(
        &self,
        volume: VolumeId,
        spread: &mut Spread,
        count_max: usize,
        turn: usize,
    ) -> Vec<(SegmentInfo, u8, DiskId)> {
        let mut found = Vec::new();
        let Ok(opened) = self.volume(volume) else {
            return found;
        };
        for disk in spread.fuller() {
            let some = {
                let segments = opened.segments.read();
                segments.some_on(disk, SPREAD_LOOKED_AT_MAX, turn)
            };
            for segment in some {
                if found.len() >= count_max || spread.is_done() {
                    return found;
                }
                let info = segment.info();
                let index = info.disks.iter().position(|at| *at == disk);
                let index = index.and_then(|index| u8::try_from(index).ok());
                let Some(index) = index.filter(|_| info.sealed && info.remote.is_none()) else {
                    continue;
                };
                // One shard of a segment at a time: the next is decided when this one has moved.
                if found.iter().any(|(known, ..)| known.id == info.id) {
                    continue;
                }
                if let Some(to) = spread.place(moving(&info, index)) {
                    found.push((info, index, to));
                }
            }
        }
        found
    }

    /// Free space of the disks that shards may move to.
    pub fn move_room(&self) -> MoveRoom {
        let disks = self.roomy_disks().into_iter();
        let room = MoveRoom::new(disks.map(|disk| self.disk_room(disk.id(), disk_space(&*disk))));
        let members = self.members();
        let place = |at: DomainPath| {
            let place = move_targets::TargetDisk {
                node: at.node,
                is_there: self.healthy_disk(at.disk).is_some(),
                stays: members.takes_shards(at.disk),
                media: members.media(at.disk),
            };
            (at.disk, place)
        };
        room.among(members.domains().map(place))
    }

    /// Room of a disk with this space; the disk need not be in the pool yet.
    pub fn disk_room(&self, disk: DiskId, space: DiskSpace) -> DiskRoom {
        let members = self.members();
        DiskRoom {
            disk,
            node: members.domain(disk).node,
            media: members.media(disk),
            free_bytes: space.free_bytes,
            reserve_bytes: self.reserve_bytes(space.total_bytes),
        }
    }
}
