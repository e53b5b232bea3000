//! Plans work on the pool's disks and their data: a state machine without I/O.
//!
//! Owns: which shards move or are rebuilt and in which order, what is rewritten, what waits and for how long, whose
//! metadata leaves a disk, which disk nobody needs any more.
//! Must not know: how any of it is done (`rebuild` does it), a clock, a disk.
//!
//! [`Planner::step`] takes what was observed and gives actions, which are done in their order; [`Planner::note`] takes
//! what came of each. Nothing is written down: what has to be done follows from the pool's state and from the disks of
//! segments in the metadata, so a restart goes on where it stopped. A segment that has lost most comes first. A shard
//! moves to a disk that holds none of its segment, and that leaves it surviving as many nodes; where there is no such
//! disk, the live records of the segment are rewritten into new segments, which are laid out for the disks that stay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, SegmentId, VolumeId};
use cairn_erasure::Code;
use cairn_fs::REWRITE_SEGMENTS_MAX;
use cairn_segment::{MoveError, MoveRoom, Protection, SegmentInfo, Urgency};

pub mod capacity;
mod deferred;
#[cfg(test)]
mod tests;
pub mod work;

use capacity::{Reckoning, Rewriting, reckon};
use deferred::{DeferredSegments, Reason};
pub use deferred::{Prospect, RETRY_AFTER};
pub use work::Standing;
use work::{Work, order, work_of};

/// As long as all disks are fine all segments are looked at only so often.
const FINE_INTERVAL: Duration = Duration::from_secs(30);
/// Shards that are moved before it is looked again whether that is still wanted, and in which order.
pub const STEP_SHARDS_MAX: usize = 32;
/// Moves that are kept from one look at the segments for the steps that follow.
const QUEUE_SHARDS_MAX: usize = 4096;
/// Looks at the segments take at most this share of the time: one in so many parts.
const LOOK_PARTS: u32 = 50;
/// ... and come at least as often as this: metadata is moved off disks only after one.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Most problems that are told at a time.
const PROBLEMS_MAX: usize = 8;

/// A disk of the pool, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenDisk {
    pub id: DiskId,
    pub is_draining: bool,
    /// Another one took its place.
    pub is_replaced: bool,
    /// It is read and written.
    pub works: bool,
    /// The pool's state says that nothing on it is needed.
    pub holds_nothing: bool,
    /// Its node is meant to be away: it is waited for, however long the delay is.
    pub is_awaited: bool,
}

/// A volume, as it was seen.
#[derive(Clone, Debug)]
pub struct SeenVolume {
    pub id: VolumeId,
    pub name: String,
    /// `None` if it is not served here.
    pub content: Option<SeenContent>,
    /// Another node serves it, and sees to it.
    pub is_elsewhere: bool,
}

/// What a volume that is served has on the disks.
#[derive(Clone, Debug, Default)]
pub struct SeenContent {
    pub segments: Vec<SegmentInfo>,
    /// Live bytes of the segments that the metadata knows, and their disks according to it.
    pub records: BTreeMap<SegmentId, (u64, Vec<DiskId>)>,
    /// The code of segments that are written now, by the protection that they ask for, if not that of the volume. Those that
    /// there are too few disks for are not in it.
    pub codes: BTreeMap<Option<Protection>, Code>,
    /// Disks that its metadata may have something on that is needed.
    pub metadata_disks: BTreeSet<DiskId>,
    /// The disk of its state.
    pub primary: Option<DiskId>,
    /// There is a disk of a faster kind that its state could be on now.
    pub is_beside_faster: bool,
    /// Its metadata failed, or the disk of its state did: it is opened on other disks meanwhile.
    pub is_metadata_failing: bool,
    /// The metadata has fewer copies than it should.
    pub is_metadata_degraded: bool,
    /// How many copies of its metadata are kept, and how many should be.
    pub copies: usize,
    pub copies_wanted: usize,
    /// The new place of one of its shards is not durable yet, and nobody knows when it will be.
    pub is_commit_late: bool,
    /// Nothing of it can be changed, for its disks had no room for an opening.
    pub is_read_only: bool,
}

/// Everything that a step depends on.
#[derive(Clone, Debug)]
pub struct Observed {
    pub now: Duration,
    pub disks: Vec<SeenDisk>,
    pub volumes: Vec<SeenVolume>,
    /// Free space where shards may move to.
    pub room: MoveRoom,
    /// Free space beside the reserve, of all disks together.
    pub free_bytes: u64,
    /// The code of volumes that ask for nothing else.
    pub default_code: Code,
}

/// Something that is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a volume with its state on another disk than this one, which leaves.
    MoveState { volume: VolumeId, off: DiskId },
    /// Open a volume with its state on a disk of a faster kind.
    StateToFaster { volume: VolumeId },
    /// Keep nothing of a volume's metadata on a disk any more.
    RetireMetadata { volume: VolumeId, disk: DiskId },
    /// Keep so many copies of a volume's metadata as are wanted now.
    SetCopies { volume: VolumeId },
    /// Get a shard to another disk: copied, or made from the others.
    MoveShard {
        volume: VolumeId,
        segment: SegmentId,
        index: u8,
        len_bytes: u64,
        urgency: Urgency,
        /// It could stay where it is, and goes to this disk, which is emptier.
        to: Option<DiskId>,
    },
    /// Rewrite the live records of some segments.
    Rewrite {
        volume: VolumeId,
        segments: Vec<SegmentId>,
        urgency: Urgency,
    },
    /// Take a disk out of the pool.
    Forget { disk: DiskId },
    /// Write down that nothing on a lost disk is needed.
    NoteEmpty { disk: DiskId },
}

/// What came of an action.
#[derive(Debug)]
pub enum Outcome {
    Done,
    /// It was not tried: something else is under way.
    NotNow,
    /// It could not be done, and is left alone for a while.
    Stays(String),
    /// A shard is at its new place; so many of its bytes could not be had from anywhere.
    Moved {
        lost_bytes: u64,
    },
    /// The new place of a shard was not taken, or is not durable yet.
    NotPlaced,
    MoveFailed(MoveError),
    /// What stays of the segments that were to be rewritten, and why.
    Rewritten {
        gone: usize,
        left: Vec<(SegmentId, Prospect, String)>,
    },
}

impl Outcome {
    /// Whether data is somewhere else now, so that it is worth looking at once what is next.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Moved { .. } => true,
            Self::Rewritten { gone, .. } => *gone > 0,
            _ => false,
        }
    }
}

/// How much there is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    pub shards: u64,
    pub bytes: u64,
    /// Shards that cannot be read where they should be.
    pub shards_missing: u64,
}

/// Results of moves that another step follows.
struct Pending {
    work: Work,
}

pub struct Planner {
    /// A lost disk is waited for so long before its data is rebuilt.
    rebuild_delay: Duration,
    /// Since when a disk cannot be read.
    away_since: BTreeMap<DiskId, Duration>,
    deferred: DeferredSegments,
    /// As they were in the last step: when they change, what failed may succeed.
    last_standings: BTreeMap<DiskId, Standing>,
    /// Disks of which something could not be done, why, and until when it is not tried again.
    disks_stay: BTreeMap<DiskId, (Duration, String)>,
    /// Volumes whose copies were to be made, and until when that is not tried again.
    copies_wait: BTreeMap<VolumeId, Duration>,
    /// Volumes whose state did not get to a faster disk, until when that is not tried again, and why.
    states_stay: BTreeMap<VolumeId, (Duration, String)>,
    /// When all segments were looked at last, with all disks fine, and nothing was found.
    found_none_at: Option<Duration>,
    /// The last step moved shards to emptier disks, so that it is worth looking for more.
    is_spreading: bool,
    /// The segments whose shards the last step moves.
    under_way: BTreeMap<(VolumeId, SegmentId), Pending>,
    /// What the last look found to move beyond one step, in its order. It is gone through without another look while
    /// looks are dear, and nothing changes.
    queue: VecDeque<Work>,
    /// When the segments may be looked at again while there are moves in the queue.
    look_at: Duration,
    /// Segments that are rewritten next, because a shard could not be moved, or lost bytes.
    rewrites: BTreeMap<VolumeId, (Vec<SegmentId>, Urgency)>,
    problems: BTreeSet<String>,
    /// Work that is known beforehand to find no room.
    lack: Option<String>,
    left: Left,
}

impl Planner {
    pub fn new(rebuild_delay: Duration) -> Self {
        Self {
            rebuild_delay,
            away_since: BTreeMap::new(),
            deferred: DeferredSegments::default(),
            last_standings: BTreeMap::new(),
            disks_stay: BTreeMap::new(),
            copies_wait: BTreeMap::new(),
            states_stay: BTreeMap::new(),
            found_none_at: None,
            is_spreading: false,
            under_way: BTreeMap::new(),
            queue: VecDeque::new(),
            look_at: Duration::ZERO,
            rewrites: BTreeMap::new(),
            problems: BTreeSet::new(),
            lack: None,
            left: Left::default(),
        }
    }

    /// Something changed: what failed before is tried again.
    pub fn wake(&mut self) {
        self.deferred.clear();
        self.disks_stay.clear();
        self.copies_wait.clear();
        self.states_stay.clear();
        self.found_none_at = None;
        self.queue.clear();
    }

    /// Why it does not go on, if it does not.
    pub fn problems(&self, now: Duration) -> Vec<String> {
        let reasons = self.deferred.reasons(now).into_iter();
        let reasons = reasons.map(Reason::into_text);
        let mut problems = self.problems.clone();
        problems.extend(reasons.take(PROBLEMS_MAX));
        self.lack.iter().cloned().chain(problems).collect()
    }

    pub fn left(&self) -> Left {
        self.left
    }

    /// How every member stands.
    pub fn standings(&mut self, disks: &[SeenDisk], now: Duration) -> BTreeMap<DiskId, Standing> {
        let stand = |disk: &SeenDisk| {
            if disk.works {
                self.away_since.remove(&disk.id);
            }
            let standing = match (disk.works, disk.is_draining) {
                (true, false) => Standing::Fine,
                (true, true) => Standing::Draining,
                (false, true) => Standing::Gone,
                // It is given up by the delay from the end of that on.
                (false, false) if disk.is_awaited => {
                    self.away_since.insert(disk.id, now);
                    Standing::Away
                }
                (false, false) => {
                    let since = *self.away_since.entry(disk.id).or_insert(now);
                    match now.saturating_sub(since) >= self.rebuild_delay {
                        true => Standing::GivenUp,
                        false => Standing::Away,
                    }
                }
            };
            (disk.id, standing)
        };
        disks.iter().map(stand).collect()
    }

    /// Whether it is worth looking at all segments.
    pub fn is_due(&mut self, disks: &[SeenDisk], now: Duration) -> bool {
        let standings = self.standings(disks, now);
        let found_none_recently = self
            .found_none_at
            .is_some_and(|at| now.saturating_sub(at) < FINE_INTERVAL);
        self.is_spreading || !(are_fine(&standings) && found_none_recently)
    }

    /// Whether the last look found nothing that has to be done, so that shards may move only to be spread evenly.
    pub fn is_at_rest(&self) -> bool {
        self.found_none_at.is_some()
    }

    /// Shards that move to emptier disks, instead of what [`Self::step`] returned, which is nothing.
    pub fn spread(&mut self, work: Vec<Work>) -> Vec<Action> {
        self.is_spreading = false;
        let mut moves = Vec::new();
        for work in work {
            self.add_moves(&mut moves, work);
        }
        moves
    }

    /// Notes that a look at the segments ended, and what it took: the next one waits so that looks take a small share of
    /// the time, however many segments there are.
    pub fn note_look(&mut self, now: Duration, took: Duration) {
        self.look_at = now + (took * LOOK_PARTS).min(LOOK_PAUSE_MAX);
    }

    /// The next actions for the findings of the last look, without another one. `None` if one is due: when all of it
    /// is done, disks are not as they were, something has to be rewritten, or the next look may be afforded.
    pub fn go_on(&mut self, disks: &[SeenDisk], now: Duration) -> Option<Vec<Action>> {
        if now >= self.look_at || self.queue.is_empty() || !self.rewrites.is_empty() {
            return None;
        }
        if self.standings(disks, now) != self.last_standings {
            return None;
        }
        self.under_way.clear();
        let mut moves = Vec::new();
        while moves.len() < STEP_SHARDS_MAX
            && let Some(work) = self.queue.pop_front()
        {
            if !self.deferred.has(work.volume, work.segment, now) {
                self.add_moves(&mut moves, work);
            }
        }
        Some(moves)
    }

    fn add_moves(&mut self, moves: &mut Vec<Action>, work: Work) {
        moves.extend(work.shards.iter().map(|index| Action::MoveShard {
            volume: work.volume,
            segment: work.segment,
            index: *index,
            len_bytes: work.shard_len_bytes,
            urgency: work.urgency(),
            to: work.to,
        }));
        let key = (work.volume, work.segment);
        self.under_way.insert(key, Pending { work });
    }

    /// The actions to take now, in their order.
    pub fn step(&mut self, seen: &Observed) -> Vec<Action> {
        self.problems.clear();
        let standings = self.standings(&seen.disks, seen.now);
        if self.last_standings != standings {
            self.last_standings.clone_from(&standings);
            self.deferred.clear();
        }
        self.is_spreading = false;
        let mut actions = self.metadata_actions(seen, &standings);
        let mut work = work_at_hand(seen, &standings, None);
        order(&mut work);
        let is_all_fine = are_fine(&standings) && work.is_empty() && actions.is_empty();
        self.found_none_at = is_all_fine.then_some(seen.now);
        self.left = Left {
            shards: work.iter().map(|work| work.shards.len() as u64).sum(),
            bytes: work
                .iter()
                .map(|work| work.shard_len_bytes * work.shards.len() as u64)
                .sum(),
            shards_missing: shards_missing(seen, &standings),
        };
        self.lack = too_little_room(seen, &work);
        self.under_way.clear();
        let rewrites = std::mem::take(&mut self.rewrites);
        if work.is_empty() {
            self.deferred.clear();
        }
        // Work that only asks for another device class holds no disk back.
        let is_all_done = work.iter().all(|work| work.is_misplaced);
        actions.extend(self.forget_actions(seen, &standings, is_all_done));
        actions.extend(self.data_actions(seen, work, rewrites));
        actions
    }

    /// Takes what came of an action.
    pub fn note(&mut self, now: Duration, action: &Action, outcome: &Outcome) {
        match (action, outcome) {
            (_, Outcome::NotNow) => {}
            (
                Action::MoveState { off: disk, .. }
                | Action::RetireMetadata { disk, .. }
                | Action::Forget { disk }
                | Action::NoteEmpty { disk },
                Outcome::Stays(why),
            ) => {
                self.disks_stay
                    .insert(*disk, (now + RETRY_AFTER, why.clone()));
                self.problems.insert(why.clone());
            }
            (Action::StateToFaster { volume }, Outcome::Stays(why)) => {
                let until = now + RETRY_AFTER;
                self.states_stay.insert(*volume, (until, why.clone()));
                self.problems.insert(why.clone());
            }
            // Also where that helped: more than a log can name are never kept.
            (Action::SetCopies { volume }, _) => {
                self.copies_wait.insert(*volume, now + RETRY_AFTER);
            }
            (
                Action::MoveShard {
                    volume, segment, ..
                },
                outcome,
            ) => {
                self.note_move(now, (*volume, *segment), outcome);
            }
            (Action::Rewrite { volume, .. }, Outcome::Rewritten { left, .. }) => {
                for (segment, prospect, why) in left {
                    let key = (*volume, *segment);
                    self.deferred
                        .add(key, now, *prospect, Reason::Many(why.clone()));
                }
            }
            _ => {}
        }
    }

    /// Whether something was noted that the next step follows at once.
    pub fn has_more(&self) -> bool {
        !self.rewrites.is_empty()
    }

    fn note_move(&mut self, now: Duration, key: (VolumeId, SegmentId), outcome: &Outcome) {
        let (volume, segment) = key;
        let Some(Pending { work }) = self.under_way.get(&key) else {
            return;
        };
        self.is_spreading |= work.to.is_some() && matches!(outcome, Outcome::Moved { .. });
        let urgency = match outcome {
            // What else is in those stripes could not lose one more shard.
            Outcome::Moved { lost_bytes: 1.. } => Urgency::Bare,
            Outcome::MoveFailed(error) if work.is_rewritten_after(error) => work.urgency(),
            Outcome::MoveFailed(MoveError::NotNow) => return,
            // It lacks nothing where it is.
            Outcome::MoveFailed(_) | Outcome::NotPlaced if work.to.is_some() => return,
            Outcome::MoveFailed(error) => {
                let why = match error {
                    MoveError::NoTarget if work.is_misplaced => {
                        Reason::Many("data waits for space on disks of its device class".to_owned())
                    }
                    MoveError::NoTarget => Reason::Many(
                        "there is no disk to rebuild onto: add a disk, or replace the lost disk"
                            .to_owned(),
                    ),
                    error => {
                        Reason::Segment(format!("segment {segment} of volume {volume}: {error}"))
                    }
                };
                self.deferred.add(key, now, Prospect::Open, why);
                return;
            }
            Outcome::NotPlaced => {
                // Else all of it is copied again at once, perhaps for nothing again.
                let why = format!(
                    "segment {segment} of volume {volume}: the new place of a shard could not be used, or is not durable yet"
                );
                self.deferred
                    .add(key, now, Prospect::Open, Reason::Segment(why));
                return;
            }
            _ => return,
        };
        let (segments, most) = self.rewrites.entry(volume).or_default();
        // Those beyond what fits are found again.
        if segments.len() < REWRITE_SEGMENTS_MAX && !segments.contains(&segment) {
            segments.push(segment);
        }
        *most = urgency.max(*most);
    }

    /// Why something is not tried with a disk for now.
    fn why_it_stays(&self, disk: DiskId, now: Duration) -> Option<String> {
        let (until, why) = self.disks_stay.get(&disk)?;
        (*until > now).then(|| why.clone())
    }

    /// Gets metadata off disks that leave, or are lost for good; makes copies that are missing.
    fn metadata_actions(
        &mut self,
        seen: &Observed,
        standings: &BTreeMap<DiskId, Standing>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let leaving: Vec<DiskId> = seen
            .disks
            .iter()
            .filter(|disk| disk.is_draining)
            .map(|disk| disk.id)
            .collect();
        if !leaving.is_empty() {
            let is_failed = |it: &&SeenVolume| it.content.is_none() && !it.is_elsewhere;
            let failed = seen.volumes.iter().filter(is_failed);
            self.problems.extend(failed.map(|volume| {
                let name = &volume.name;
                format!(
                    "volume {name} is not served, so what it has on the draining disk stays there: `cairn volume show \
                     {name}` says why"
                )
            }));
        }
        for disk in &seen.disks {
            let is_lost = standings.get(&disk.id) == Some(&Standing::GivenUp);
            if !disk.is_draining && !is_lost {
                continue;
            }
            if let Some(why) = self.why_it_stays(disk.id, seen.now) {
                if disk.is_draining {
                    self.problems.insert(why);
                }
                continue;
            }
            for (volume, content) in served(seen) {
                if !content.metadata_disks.contains(&disk.id) {
                    continue;
                }
                // Trying would keep that of other volumes on the disk for a while, too.
                if content.is_read_only {
                    self.problems.insert(only_read(volume));
                    continue;
                }
                if content.primary != Some(disk.id) {
                    let (volume, disk) = (volume.id, disk.id);
                    actions.push(Action::RetireMetadata { volume, disk });
                } else if disk.is_draining {
                    let (volume, off) = (volume.id, disk.id);
                    actions.push(Action::MoveState { volume, off });
                }
            }
        }
        for (volume, content) in served(seen) {
            if !content.is_beside_faster || content.is_metadata_failing || content.is_read_only {
                continue;
            }
            match self.states_stay.get(&volume.id) {
                Some((until, why)) if *until > seen.now => drop(self.problems.insert(why.clone())),
                _ => actions.push(Action::StateToFaster { volume: volume.id }),
            }
        }
        for (volume, content) in served(seen) {
            let waits = self.copies_wait.get(&volume.id);
            let waits = waits.is_some_and(|until| *until > seen.now);
            let is_usable = !content.is_metadata_failing && !content.is_read_only;
            if content.copies != content.copies_wanted && is_usable && !waits {
                actions.push(Action::SetCopies { volume: volume.id });
            }
        }
        actions
    }

    /// Lets go of disks that nobody needs any more.
    fn forget_actions(
        &mut self,
        seen: &Observed,
        standings: &BTreeMap<DiskId, Standing>,
        is_all_done: bool,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        for disk in &seen.disks {
            let standing = standings.get(&disk.id);
            let is_empty = is_empty(seen, disk.id);
            let action = if disk.is_draining && disk.is_replaced && is_all_done {
                Action::Forget { disk: disk.id }
            } else if matches!(standing, Some(Standing::GivenUp | Standing::Gone))
                && !disk.holds_nothing
                && is_empty
            {
                Action::NoteEmpty { disk: disk.id }
            } else {
                continue;
            };
            // Not each second: it takes the metadata's copies, and all other changes wait for it.
            match self.why_it_stays(disk.id, seen.now) {
                Some(why) => drop(self.problems.insert(why)),
                None => actions.push(action),
            }
        }
        actions
    }

    /// Moves shards and rewrites segments.
    fn data_actions(
        &mut self,
        seen: &Observed,
        work: Vec<Work>,
        mut rewrites: BTreeMap<VolumeId, (Vec<SegmentId>, Urgency)>,
    ) -> Vec<Action> {
        let mut moves = Vec::new();
        self.queue.clear();
        let mut queued_shards = 0;
        let mut free_bytes = seen.free_bytes;
        let wanted = work.iter().map(|work| (work.volume, work.segment));
        self.deferred.keep(&wanted.collect());
        // What the last moves led to comes before more of them.
        let is_rewriting = !rewrites.is_empty();
        for work in work {
            if self.deferred.has(work.volume, work.segment, seen.now) {
                continue;
            }
            let Some((volume, content)) = served(seen).find(|(it, _)| it.id == work.volume) else {
                continue;
            };
            if let Some(why) = why_it_waits(volume, content) {
                self.problems.insert(why);
                continue;
            }
            // Only what just moves: all else is decided with a look at the whole.
            if moves.len() >= STEP_SHARDS_MAX {
                if work.is_narrow || queued_shards >= QUEUE_SHARDS_MAX {
                    break;
                }
                queued_shards += work.shards.len();
                self.queue.push_back(work);
                continue;
            }
            match self.way_of(&work, content, &mut free_bytes) {
                Way::Move if is_rewriting => {}
                Way::Move => self.add_moves(&mut moves, work),
                Way::Rewrite => {
                    let (segments, _) = rewrites.entry(work.volume).or_default();
                    // The rest in the next step, when it is known what else there is to do.
                    if segments.len() < REWRITE_SEGMENTS_MAX && !segments.contains(&work.segment) {
                        free_bytes = free_bytes.saturating_sub(work.rewrite_bytes_max());
                        segments.push(work.segment);
                    }
                }
                Way::NoRoom => {
                    self.problems.insert(format!(
                        "volume {}: there is no room to rewrite data that has less protection than it asks for: add a \
                         disk or delete data",
                        volume.name
                    ));
                }
                Way::Wait => {}
            }
        }
        let rewrites = rewrites.into_iter().filter(|(id, (segments, _))| {
            let is_free = served(seen)
                .any(|(it, content)| it.id == *id && why_it_waits(it, content).is_none());
            is_free && !segments.is_empty()
        });
        let rewrites = rewrites.map(|(volume, (segments, urgency))| Action::Rewrite {
            volume,
            segments,
            urgency,
        });
        moves.extend(rewrites);
        moves
    }

    /// The action for a segment.
    fn way_of(&self, work: &Work, content: &SeenContent, free_bytes: &mut u64) -> Way {
        if !work.is_narrow {
            return Way::Move;
        }
        // Of an append that is not committed, or never will be.
        let is_open = !content.records.contains_key(&work.segment);
        // Not into the reserve.
        let has_room = *free_bytes >= work.rewrite_bytes_max();
        let has_failed = self.deferred.has_failed(work.volume, work.segment);
        // What cannot have its protection gets off a draining disk as it is.
        match work.may_rewrite && (is_open || !has_room || has_failed) {
            true => Way::Move,
            false if is_open => Way::Wait,
            false if !has_room => Way::NoRoom,
            false => Way::Rewrite,
        }
    }
}

enum Way {
    Move,
    Rewrite,
    NoRoom,
    Wait,
}

fn are_fine(standings: &BTreeMap<DiskId, Standing>) -> bool {
    let mut all = standings.values();
    all.all(|standing| *standing == Standing::Fine)
}

/// Volumes that are served, with what they have.
fn served(seen: &Observed) -> impl Iterator<Item = (&SeenVolume, &SeenContent)> {
    let volumes = seen.volumes.iter();
    volumes.filter_map(|volume| Some((volume, volume.content.as_ref()?)))
}

/// Why nothing of a volume is moved just now.
fn why_it_waits(volume: &SeenVolume, content: &SeenContent) -> Option<String> {
    let name = &volume.name;
    if content.is_metadata_failing {
        // It takes no new places. It is opened again meanwhile.
        return Some(format!("volume {name} waits for its metadata"));
    }
    if content.is_read_only {
        return Some(only_read(volume));
    }
    content.is_commit_late.then(|| {
        format!(
            "volume {name}: the new place of a shard is not durable yet, for its log has no space or its disk does not \
             answer; its other data stays where it is until then"
        )
    })
}

fn only_read(volume: &SeenVolume) -> String {
    let name = &volume.name;
    format!(
        "volume {name} is read-only, so what it has on disks stays where it is: free some MiB in the file systems of the disks"
    )
}

/// Whether nothing of any volume is needed from a disk: no shard, and no metadata. Not known while a volume is not
/// served, or has not all its copies elsewhere.
pub fn is_empty(seen: &Observed, id: DiskId) -> bool {
    let is_free = |content: &SeenContent| {
        let is_here = |disks: &Vec<DiskId>| disks.contains(&id);
        let has_shards = content.segments.iter().any(|info| is_here(&info.disks))
            || content.records.values().any(|(_, disks)| is_here(disks));
        let has_shards = has_shards && !planted::is(Bug::LostDiskNotedEmptyEarly);
        !has_shards
            && !content.metadata_disks.contains(&id)
            && !content.is_metadata_degraded
            && !content.is_metadata_failing
            && !content.is_commit_late
            && !content.is_read_only
    };
    let mut volumes = seen.volumes.iter();
    volumes.all(|volume| volume.content.as_ref().is_some_and(is_free))
}

/// What there is to do, as if a disk left, in no order.
pub fn work_at_hand(
    seen: &Observed,
    standings: &BTreeMap<DiskId, Standing>,
    parity_of: Option<&dyn Fn(VolumeId, Option<Protection>) -> u8>,
) -> Vec<Work> {
    let standing = |id| standings.get(&id).copied().unwrap_or(Standing::Gone);
    let is_fine = |standing: &&Standing| **standing == Standing::Fine;
    let fine_count = standings.values().filter(is_fine).count();
    let mut work = Vec::new();
    for (volume, content) in served(seen) {
        let parity_now = |own| {
            let parity = match parity_of {
                Some(parity_of) => parity_of(volume.id, own),
                None => content.codes.get(&own).map_or(0, |code| code.parity()),
            };
            // With fewer disks it would be as narrow again.
            match fine_count > usize::from(parity) {
                true => parity,
                false => 0,
            }
        };
        let nodes_spare = |info: &SegmentInfo| seen.room.nodes_survived(&info.disks, info.code);
        let crowded = |info: &SegmentInfo| {
            let room = &seen.room;
            room.crowded_shard(&info.disks, info.code, info.shard_len_bytes, info.media)
        };
        let misplaced = |info: &SegmentInfo| {
            let room = &seen.room;
            room.misplaced_shards(&info.disks, info.code, info.shard_len_bytes, info.media)
        };
        let segments = &content.segments;
        work.extend(work_of(
            volume.id,
            segments,
            parity_now,
            standing,
            nodes_spare,
            crowded,
            misplaced,
        ));
    }
    work
}

/// What finds room of `work`; what is rewritten gets the code that `code_of` gives, or the default one.
pub fn room_for(
    seen: &Observed,
    room: &mut MoveRoom,
    work: &[Work],
    code_of: &dyn Fn(VolumeId, Option<Protection>) -> Option<Code>,
) -> Reckoning {
    let rewriting = |work: &Work| {
        let content = served(seen).find(|(it, _)| it.id == work.volume);
        let records = content.map(|(_, content)| &content.records);
        let record = records.and_then(|records| records.get(&work.segment));
        Rewriting {
            live_bytes: record.map_or(0, |(live_bytes, _)| *live_bytes),
            code: code_of(work.volume, work.protection).unwrap_or(seen.default_code),
        }
    };
    reckon(room, work, rewriting)
}

/// Says before the disks are full that not all of it finds room.
fn too_little_room(seen: &Observed, work: &[Work]) -> Option<String> {
    let code_of = |id, own| {
        let mut volumes = served(seen);
        let (_, content) = volumes.find(|(it, _)| it.id == id)?;
        content.codes.get(&own).copied()
    };
    // Data on another device class than it asks for may stay there.
    let must_move = work.iter().filter(|work| !work.is_misplaced);
    let must_move: Vec<Work> = must_move.cloned().collect();
    let lack = room_for(seen, &mut seen.room.clone(), &must_move, &code_of).lack()?;
    Some(format!(
        "{lack}: add a disk or delete data; what has lost most redundancy comes first"
    ))
}

fn shards_missing(seen: &Observed, standings: &BTreeMap<DiskId, Standing>) -> u64 {
    let segments = served(seen).flat_map(|(_, content)| &content.segments);
    let disks = segments.flat_map(|info| &info.disks);
    disks.filter(|id| is_missing(standings, **id)).count() as u64
}

/// Whether what is on a disk cannot be read.
pub fn is_missing(standings: &BTreeMap<DiskId, Standing>, id: DiskId) -> bool {
    !matches!(
        standings.get(&id),
        Some(Standing::Fine | Standing::Draining)
    )
}

/// So many copies of the metadata are kept: as many as are `wanted` on disks that stay, and one more for each disk
/// that leaves and has some, as long as nothing tells which disks have the copies.
pub fn copies_of_metadata(wanted: usize, on_leaving: usize) -> usize {
    wanted + on_leaving
}

/// Whether everything that is on a disk could be had from the others: of each segment enough shards are on disks that
/// can be read.
pub fn is_rebuildable(
    info: &SegmentInfo,
    without: DiskId,
    standings: &BTreeMap<DiskId, Standing>,
) -> bool {
    let is_there = |id: &&DiskId| {
        let standing = standings.get(*id);
        let is_read = matches!(standing, Some(Standing::Fine | Standing::Draining));
        let is_away = matches!(standing, Some(Standing::Away | Standing::GivenUp));
        **id != without && (is_read || (is_away && planted::is(Bug::AwayDiskCountsAsThere)))
    };
    let others = info.disks.iter().filter(is_there).count();
    !info.disks.contains(&without) || others >= usize::from(info.code.data())
}
