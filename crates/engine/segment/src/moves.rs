//! Moves of shards to other disks: off a draining disk, or from the others when it is lost.
//!
//! Owns: how a shard gets to another disk without a moment in which it is missed, and where it may go.
//! Must not know: why it moves; how the metadata keeps the segment's disks.
//! Invariant: the old shard is deleted only after the caller has made the new place durable.

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

/// Segments of a volume on one disk that are looked at at a time for shards that should be elsewhere.
const SPREAD_LOOKED_AT_MAX: usize = 4096;

/// Names one shard of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardAt {
    pub volume: VolumeId,
    pub segment: SegmentId,
    pub index: u8,
}

/// Why a shard was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// It is open, being moved already, or gone: there is nothing to do now.
    #[error("the segment is in use or gone")]
    NotNow,
    /// No disk that does not hold a shard of the segment has room for one more.
    #[error("no disk can take the shard")]
    NoTarget,
    /// Too few of the others can be read to compute it; with disks that are away it may be later.
    #[error("it cannot be computed: {0}")]
    TooFew(String),
    /// A crash left it without footers, so that nothing vouches for the bytes that it would be computed
    /// from; or its disk has failed or is missing, and some of it is nowhere else. Its records have checksums of their own, are
    /// read from failed disks, too, and can be written anew.
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

/// A shard that is at its new place, for which nobody looks there yet.
///
/// Dropped, nobody knows whether the metadata names the new place: both files stay, and the segment is moved no more,
/// until the volume is opened again.
pub struct Moved {
    store: Arc<SegmentStore>,
    /// Bytes that could not be had from anywhere.
    pub lost_bytes: u64,
    /// Keeps the segment from being removed until its disks are known.
    _gate: OwnedRwLockReadGuard<()>,
    place: MoveTarget,
}

/// The place that a shard is being moved to. Dropped, the move is over as far as that is known.
struct MoveTarget {
    volume: Arc<Volume>,
    segment: Arc<Segment>,
    index: u8,
    to: DiskId,
    outcome: Outcome,
}

/// What has become of a move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The metadata has the old place, and never heard of another one.
    Nothing,
    /// The metadata has one or the other.
    Unknown,
    /// The metadata has the new place.
    Done,
}

impl Drop for MoveTarget {
    fn drop(&mut self) {
        // The next move would begin by deleting what the metadata may name, and the next sweep would end it.
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

    /// Whether the disk still is one that shards may be put on. Ask with whatever keeps disks from leaving
    /// held, before the metadata is told.
    pub fn is_welcome(&self) -> bool {
        self.store.takes_shards(self.place.to)
    }

    /// The new place is durable in the metadata: readers go there, and the old shard is deleted. On a disk that has
    /// failed it is left to a sweep after the next start: the disk may take long for each error, and many shards leave it.
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

    /// The metadata does not have the new place, and never will: what was made there is deleted. Where that
    /// is not known the value is dropped instead, and a sweep of the volume, opened again, decides.
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
    /// Makes a shard on another disk, which [`MoveRoom::target`] chooses; the caller makes that durable and calls [`Moved::finish`].
    ///
    /// The bytes come from the shard itself where it can be read, else from the others. Bytes that
    /// cannot be had although every other shard's disk is there, and its own works or is gone, are given up, and
    /// counted: they were lost before, and the rest of the shard must not stay unprotected because of them. On a
    /// disk that has failed or is missing, and is still one of the pool's, they may be found yet: that is `Unsealed`.
    pub async fn move_shard(
        self: &Arc<Self>,
        at: ShardAt,
        pace: &Pace,
    ) -> Result<Moved, MoveError> {
        self.move_shard_to(at, None, pace).await
    }

    /// The same, to the disk `to` if one is named: a shard that could stay where it is. `NoTarget` if it may not go there.
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
        // While it is being sealed it is not open any more, and its files lose their ends.
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
        // Left by a move that a crash broke off.
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
        // Not before: a removal should not wait for a whole shard, at the pace of this.
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

    /// The disk with most room of those that hold none of the segment's shards and leave it surviving most nodes.
    fn target_for(&self, info: &SegmentInfo, index: u8) -> Option<DiskId> {
        self.move_targets().target(moving(info, index))
    }

    /// Where a move may begin now. A disk that does not answer would hold up all moves that come after it.
    fn move_targets(&self) -> MoveRoom {
        let is_well = |id| {
            let disk = self.disk(id);
            disk.is_some_and(|disk| !disk.is_silent() && !disk.state().is_failing())
        };
        self.move_room().with_only(is_well)
    }

    /// How full the disks are that shards may be on, for who makes them even.
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

    /// Shards of a volume that should go to emptier disks, at most so many, with the disk of each; reckons with them.
    ///
    /// Not all segments are looked at each time, where there are many; `turn` is another number each time, so that all of
    /// them are in the end.
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
                // One at a time of each segment: the next is decided when this one is where it goes.
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

    /// What the disks have free that shards may be moved to.
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

    /// What a disk with so much space has free, also one that is not in the pool yet.
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
