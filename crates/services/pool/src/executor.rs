//! Does what the plan says: moves shards, has records rewritten, lets disks go.
//!
//! Owns: what the plan is made from, the doing of each action, progress and speed.
//! Must not know: what should be done ([`crate::planner`]); how a shard is moved (`segment`) or rewritten (`fs`).

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::jobs::{Job, Next, Wake};
use cairn_base::{DiskId, SegmentId, VolumeId};
use cairn_fs::{Fs, MovedShard, PlacedShard, REWRITE_SEGMENTS_MAX};
use cairn_segment::{DiskRoom, Moved, Pace, Protection};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::RwLock;

use crate::ballast;
use crate::disk_changes::Force;
use crate::metadata::CLOSE_MAX;
use crate::planner::capacity::Reckoning;
use crate::planner::work::{Work, order};
use crate::planner::{
    self, Action, Observed, Outcome, Planner, Prospect, SeenContent, SeenDisk, SeenVolume,
    Standing, room_for, work_at_hand,
};
use crate::pool::{Pool, VolumeService};
use cairn_formats::pool_file::PoolVolume;

/// How often it is looked what there is to do.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// The speed is that of the last such time.
const SPEED_SPAN: Duration = Duration::from_secs(60);

/// Counts since the start.
#[derive(Default)]
struct Progress {
    is_running: bool,
    /// Moved since the last plan was made.
    shards_done: u64,
    bytes_done: u64,
    shards_moved: u64,
    segments_rewritten: u64,
    moved_bytes: u64,
    lost_bytes: u64,
    errors: u64,
    problems: BTreeSet<String>,
    /// Time and bytes moved until then, for the speed.
    marks: Vec<(Duration, u64)>,
}

/// How far the moving of data is.
#[derive(Clone, Debug, Default)]
pub struct RebuildStatus {
    pub is_running: bool,
    pub bytes_per_second_max: u64,
    pub shards_left: u64,
    pub bytes_left: u64,
    pub shards_moved: u64,
    pub segments_rewritten: u64,
    pub moved_bytes: u64,
    pub worked_bytes: u64,
    pub lost_bytes: u64,
    pub errors: u64,
    pub seconds_left: Option<u64>,
    /// Of the last minute; 0 if nothing was moved.
    pub bytes_per_second: u64,
    pub shards_missing: u64,
    pub problems: Vec<String>,
}

pub struct Rebuild {
    pub(crate) pace: Pace,
    wake: Wake,
    pub(crate) planner: Mutex<Planner>,
    progress: Arc<Mutex<Progress>>,
    /// Volumes with a shard whose new place is not durable yet, because the log has no space or its disk does not
    /// answer: nothing more of them is moved until it is.
    late_commits: Arc<Mutex<BTreeSet<VolumeId>>>,
    /// Held shared while the new place of a shard is made durable: the removal of a disk from the pool waits for that.
    pub commits: Arc<RwLock<()>>,
}

impl Rebuild {
    pub(crate) fn new(pace: Pace, planner: Planner) -> Self {
        Self {
            pace,
            wake: Wake::default(),
            planner: Mutex::new(planner),
            progress: Arc::default(),
            late_commits: Arc::default(),
            commits: Arc::default(),
        }
    }

    pub fn wake(&self) {
        self.planner.lock().wake();
        self.wake.wake();
    }

    pub fn set_rate(&self, bytes_per_second: u64) {
        self.pace.set_bytes_per_second(bytes_per_second);
    }
}

/// How often it is looked whether directories still ask for what they did.
const DIRECTORIES_INTERVAL: Duration = Duration::from_secs(10);

/// Starts the jobs; they end with the pool.
pub fn tend(pool: &Arc<Pool>) {
    let rebuild = Job::every("rebuild", ROUND_INTERVAL)
        .from_now()
        .woken_by(&pool.rebuild.wake);
    pool.start_job(rebuild, |pool| async move {
        match pool.round().await {
            true => Next::AtOnce,
            false => Next::Period,
        }
    });
    // A job of its own: moving data may take for ever.
    pool.every("reopen-volumes", ROUND_INTERVAL, |pool| async move {
        pool.reopen_failed().await;
        pool.open_failed().await;
    });
    pool.every("disk-room", ballast::LOOK_INTERVAL, |pool| async move {
        pool.tend_room().await;
    });
    pool.every(
        "metadata-copies",
        ballast::LOOK_INTERVAL,
        |pool| async move {
            pool.copy_where_room_came().await;
        },
    );
    pool.every(
        "directory-protections",
        DIRECTORIES_INTERVAL,
        |pool| async move {
            pool.forget_directory_protections().await;
        },
    );
}

impl Pool {
    /// One look and what follows from it; true if there is more to do at once.
    async fn round(&self) -> bool {
        if self.is_stopping() {
            return false;
        }
        let mut is_any_done = false;
        for action in self.plan() {
            if self.is_stopping() {
                return false;
            }
            is_any_done |= self.perform(&action).await.is_done();
        }
        self.tell_problems();
        let has_more = self.rebuild.planner.lock().has_more();
        is_any_done || has_more
    }

    /// The actions to take now.
    pub fn plan(&self) -> Vec<Action> {
        let (disks, now) = (self.seen_disks(), self.env.clock.monotonic());
        if !self.rebuild.planner.lock().is_due(&disks, now) {
            return Vec::new();
        }
        if let Some(actions) = self.rebuild.planner.lock().go_on(&disks, now) {
            return actions;
        }
        let seen = self.observe(&[]);
        let mut planner = self.rebuild.planner.lock();
        let mut actions = planner.step(&seen);
        let took = self.env.clock.monotonic().saturating_sub(now);
        planner.note_look(now + took, took);
        let left = planner.left();
        let is_at_rest = actions.is_empty() && planner.is_at_rest();
        drop(planner);
        let mut progress = self.rebuild.progress.lock();
        (progress.shards_done, progress.bytes_done) = (0, 0);
        progress.is_running = left.shards > 0;
        if left.shards == 0 {
            progress.marks.clear();
        } else {
            let moved_bytes = progress.moved_bytes;
            progress.marks.push((now, moved_bytes));
            let old = now.saturating_sub(SPEED_SPAN);
            progress.marks.retain(|(at, _)| *at >= old);
        }
        drop(progress);
        if is_at_rest {
            let work = self.work_to_spread();
            actions = self.rebuild.planner.lock().spread(work);
        }
        // At once: what is done next may take very long.
        self.tell_problems();
        actions
    }

    fn tell_problems(&self) {
        let now = self.env.clock.monotonic();
        let problems = self.rebuild.planner.lock().problems(now);
        let problems: BTreeSet<String> = problems.into_iter().collect();
        let mut progress = self.rebuild.progress.lock();
        for problem in problems.difference(&progress.problems) {
            tracing::warn!(problem, "moving data between disks");
        }
        progress.problems = problems;
    }

    fn seen_disks(&self) -> Vec<SeenDisk> {
        let table = self.table();
        let members = table.state.disks.iter();
        let seen = members.map(|member| SeenDisk {
            id: member.id,
            is_draining: member.draining,
            is_replaced: member.replaced,
            works: table.works(member.id),
            holds_nothing: member.holds_nothing,
            is_awaited: table.is_awaited(member.node),
        });
        seen.collect()
    }

    /// Everything that the plan depends on, as it is now. Of segments only those for which something may have to be done,
    /// and those on the disks `leaving`, which may be good ones.
    pub(crate) fn observe(&self, leaving: &[DiskId]) -> Observed {
        let table = self.table();
        let (disks, now) = (self.seen_disks(), self.env.clock.monotonic());
        let standings = self.rebuild.planner.lock().standings(&disks, now);
        let seen = |volume: &PoolVolume| SeenVolume {
            is_elsewhere: self.seats.is_some() && self.service(volume.id).is_none(),
            id: volume.id,
            name: table.state.head_of(volume).name.to_string(),
            content: match self.service(volume.id) {
                Some(VolumeService::Serving(fs)) => {
                    self.seen_content(&fs, volume, &standings, leaving)
                }
                _ => None,
            },
        };
        let space = self.store.space().disks.into_iter();
        let free_bytes = space.map(|disk| disk.free_bytes.saturating_sub(disk.reserve_bytes));
        Observed {
            now,
            disks,
            volumes: table.state.volumes.iter().map(seen).collect(),
            room: self.store.move_room(),
            free_bytes: free_bytes.sum(),
            default_code: self.store.default_code(),
        }
    }

    /// `None` while the volume is opened on other disks: the store has none of its segments then.
    fn seen_content(
        &self,
        fs: &Fs,
        volume: &PoolVolume,
        standings: &BTreeMap<DiskId, Standing>,
        leaving: &[DiskId],
    ) -> Option<SeenContent> {
        let (meta, table) = (fs.meta(), self.table());
        let is_sound = |id| standings.get(&id) == Some(&Standing::Fine) && !leaving.contains(&id);
        let parity_of = |own| self.parity_wanted(fs, own);
        let segments = self
            .store
            .segments_at_stake(fs.volume(), is_sound, parity_of)?;
        let asked = segments.iter().map(|info| info.protection);
        let asked: BTreeSet<Option<Protection>> = asked.chain([None]).collect();
        let of_volume = fs.policy().protection;
        let codes = asked.into_iter().filter_map(|own| {
            let code = self.store.code_wanted(of_volume, own);
            Some((own, code.ok()?))
        });
        let codes = codes.collect();
        let record = |id| {
            let record = meta.segment(id)?;
            Some((id, (record.live_bytes, record.disks)))
        };
        let mut records: BTreeMap<SegmentId, (u64, Vec<DiskId>)> =
            segments.iter().filter_map(|info| record(info.id)).collect();
        // The metadata may name a disk that the store does not, or not yet: that is looked for only where it matters,
        // for it takes a look at all segments.
        let counts = self.store.shard_counts(fs.volume())?;
        let about_to_be_noted = |member: &&SeenDisk| {
            let standing = standings.get(&member.id);
            matches!(standing, Some(Standing::GivenUp | Standing::Gone))
                && !member.holds_nothing
                && !counts.iter().any(|(id, _)| *id == member.id)
        };
        let disks = self.seen_disks();
        for member in disks.iter().filter(about_to_be_noted) {
            let found = meta.segments_on(member.id).into_iter();
            records.extend(found.map(|(id, record)| (id, (record.live_bytes, record.disks))));
        }
        let stats = meta.stats();
        let members = table.state.disks.iter().map(|member| member.id);
        Some(SeenContent {
            segments,
            records,
            codes,
            metadata_disks: members.filter(|id| meta.log().uses_disk(*id)).collect(),
            primary: Some(meta.log().primary_disk()),
            is_beside_faster: self.is_beside_faster(fs),
            is_metadata_failing: self.metadata_trouble(fs).is_some(),
            is_metadata_degraded: stats.is_degraded(),
            copies: stats.copies_wanted,
            copies_wanted: self.copies_to_keep(fs, &volume.settings),
            is_commit_late: self.is_commit_late(fs.volume()),
            is_read_only: fs.read_only().is_some(),
        })
    }

    /// Does one thing of the plan, and notes what came of it.
    pub async fn perform(&self, action: &Action) -> Outcome {
        let outcome = self.outcome_of(action).await;
        let now = self.env.clock.monotonic();
        self.rebuild.planner.lock().note(now, action, &outcome);
        outcome
    }

    async fn outcome_of(&self, action: &Action) -> Outcome {
        match action {
            Action::MoveState { volume, off } | Action::RetireMetadata { volume, disk: off } => {
                self.metadata_leaves(*volume, *off).await
            }
            Action::StateToFaster { volume } => self.state_outcome(*volume).await,
            Action::SetCopies { volume } => self.copies_outcome(*volume).await,
            Action::MoveShard {
                volume,
                segment,
                index,
                len_bytes,
                urgency,
                to,
            } => {
                self.rebuild.pace.set_urgency(*urgency);
                let is_wanted = to.is_none() || self.may_spread();
                let Some(fs) = self.movable(*volume).filter(|_| is_wanted) else {
                    return Outcome::NotNow;
                };
                let outcome = self
                    .move_shard(&fs, (*segment, *index), *to, *len_bytes)
                    .await;
                if to.is_some() && matches!(outcome, Outcome::Moved { .. }) {
                    self.spreading.note_moved(*len_bytes);
                }
                outcome
            }
            Action::Rewrite {
                volume,
                segments,
                urgency,
            } => {
                self.rebuild.pace.set_urgency(*urgency);
                let Some(fs) = self.movable(*volume) else {
                    return Outcome::NotNow;
                };
                self.rewrite(&fs, segments).await
            }
            // Other owners may need it; an operator removes it.
            Action::Forget { .. } | Action::NoteEmpty { .. } if self.seats.is_some() => {
                Outcome::NotNow
            }
            Action::Forget { disk } => match self.leave(&disk.to_string(), Force::No).await {
                Ok(gone) => {
                    self.host.disk_left(gone);
                    self.after_a_change().await;
                    Outcome::Done
                }
                Err(error) => Outcome::Stays(format!("the replaced disk {disk} stays: {error}")),
            },
            Action::NoteEmpty { disk } => match self.note_empty(*disk).await {
                Ok(()) => Outcome::Done,
                Err(why) => Outcome::Stays(format!("the lost disk {disk} counts on: {why}")),
            },
        }
    }

    /// A volume whose shards may be moved now.
    fn movable(&self, id: VolumeId) -> Option<Fs> {
        match self.service(id) {
            Some(VolumeService::Serving(fs))
                if !self.is_commit_late(id) && fs.read_only().is_none() =>
            {
                Some(fs)
            }
            _ => None,
        }
    }

    /// Has a volume's metadata moved off a disk, unless that is not to leave any more.
    async fn metadata_leaves(&self, volume: VolumeId, disk: DiskId) -> Outcome {
        // Volumes are not opened and closed by two at a time.
        let Ok(_changes) = self.begin_change().await else {
            return Outcome::NotNow;
        };
        let table = self.table();
        let leaves = table.is_draining(disk) || !table.works(disk);
        let Some(VolumeService::Serving(fs)) = self.service(volume) else {
            return Outcome::NotNow;
        };
        if !leaves {
            // The draining was cancelled while this waited.
            return Outcome::NotNow;
        }
        match self.metadata_of_volume_off(&fs, disk).await {
            Ok(()) => Outcome::Done,
            Err(why) => Outcome::Stays(why),
        }
    }

    /// Moving it costs clients a pause, which waits for the maintenance window.
    fn is_beside_faster(&self, fs: &Fs) -> bool {
        let is_open = self.state().maintenance.is_open(self.env.clock.now());
        is_open && !self.better_for_state(fs).is_empty()
    }

    async fn state_outcome(&self, id: VolumeId) -> Outcome {
        let Ok(_changes) = self.begin_change().await else {
            return Outcome::NotNow;
        };
        let Some(VolumeService::Serving(fs)) = self.service(id) else {
            return Outcome::NotNow;
        };
        match self.state_to_faster(&fs).await {
            Ok(()) => Outcome::Done,
            Err(why) => Outcome::Stays(why),
        }
    }

    async fn copies_outcome(&self, id: VolumeId) -> Outcome {
        let Ok(_changes) = self.begin_change().await else {
            return Outcome::NotNow;
        };
        let state = self.state();
        let volume = state.volumes.iter().find(|volume| volume.id == id);
        let (Some(volume), Some(VolumeService::Serving(fs))) = (volume, self.service(id)) else {
            return Outcome::NotNow;
        };
        match self.try_to_set_copies(&fs, &volume.settings).await {
            Ok(()) => Outcome::Done,
            Err(why) => Outcome::Stays(why),
        }
    }

    async fn move_shard(
        &self,
        fs: &Fs,
        (segment, index): (SegmentId, u8),
        to: Option<DiskId>,
        len_bytes: u64,
    ) -> Outcome {
        let copied = fs.copy_shard(segment, index, to, &self.rebuild.pace);
        let moved = match copied.await {
            Ok(moved) => moved,
            Err(error) => {
                use cairn_segment::MoveError::{NoTarget, NotNow, Unsealed};
                if !matches!(error, NoTarget | NotNow | Unsealed) {
                    self.rebuild.progress.lock().errors += 1;
                }
                return Outcome::MoveFailed(error);
            }
        };
        self.host.move_step();
        match self.commit_move(fs, moved, len_bytes).await {
            Some(lost_bytes) => Outcome::Moved { lost_bytes },
            None => Outcome::NotPlaced,
        }
    }

    fn is_commit_late(&self, volume: VolumeId) -> bool {
        self.rebuild.late_commits.lock().contains(&volume)
    }

    /// Makes the new place of a shard durable. Returns what [`end_move`] does, `None` also if that is not over yet.
    async fn commit_move(&self, fs: &Fs, moved: Moved, len_bytes: u64) -> Option<u64> {
        let commit = self.rebuild.commits.clone().read_owned().await;
        let placed = fs.place_shard(moved).await?;
        self.host.move_step();
        let waiting = self.while_it_works(fs, placed.durable()).await;
        self.host.move_step();
        if waiting.is_some() {
            let ended = end_move(fs, placed, len_bytes, &self.rebuild.progress).await;
            self.host.move_step();
            return ended;
        }
        // The log has no space, or its disk does not answer. Shards of other volumes move meanwhile.
        let late = Arc::clone(&self.rebuild.late_commits);
        late.lock().insert(fs.volume());
        let (fs, progress) = (fs.clone(), Arc::clone(&self.rebuild.progress));
        let task = async move {
            end_move(&fs, placed, len_bytes, &progress).await;
            late.lock().remove(&fs.volume());
            drop(commit);
        };
        self.env.spawner.spawn("commit move", Box::pin(task));
        None
    }

    /// Waits until no new place of a shard is being made durable, but not for ever where a log has no space, or its
    /// disk does not answer: false then.
    pub(crate) async fn commits_done(&self) -> bool {
        let alone = pin!(self.rebuild.commits.write());
        let waited = select(alone, self.env.clock.sleep(CLOSE_MAX)).await;
        matches!(waited, Either::Left(_))
    }

    async fn rewrite(&self, fs: &Fs, segments: &[SegmentId]) -> Outcome {
        let (mut gone, mut all_left) = (0, Vec::new());
        for some in segments.chunks(REWRITE_SEGMENTS_MAX) {
            let before = live_bytes(fs, some);
            let result = fs.rewrite_segments(some, &self.rebuild.pace).await;
            let after = live_bytes(fs, some);
            let is_left = |segment: &&SegmentId| fs.meta().segment(**segment).is_some();
            let left: Vec<SegmentId> = some.iter().filter(is_left).copied().collect();
            let rewritten = some.len() - left.len();
            gone += rewritten;
            {
                let mut progress = self.rebuild.progress.lock();
                progress.segments_rewritten += rewritten as u64;
                progress.moved_bytes += before.saturating_sub(after);
                progress.errors += u64::from(result.is_err());
            }
            self.host.move_step();
            for segment in left {
                let (prospect, what) = match &result {
                    Err(error) => (Prospect::Open, error.to_string()),
                    Ok(()) if live_bytes(fs, &[segment]) > 0 => (
                        Prospect::Poor,
                        "they are in use, or hold data that cannot be read; `cairn scrub start` finds the files of such"
                            .to_owned(),
                    ),
                    Ok(()) => (Prospect::Open, "they are not deleted yet".to_owned()),
                };
                let why = format!("volume {}: some segments stay: {what}", fs.name());
                all_left.push((segment, prospect, why));
            }
        }
        Outcome::Rewritten {
            gone,
            left: all_left,
        }
    }

    /// How every member stands; one that is none of them is gone.
    pub fn standings(&self) -> BTreeMap<DiskId, Standing> {
        let (disks, now) = (self.seen_disks(), self.env.clock.monotonic());
        self.rebuild.planner.lock().standings(&disks, now)
    }

    /// How many shards data of a volume that asks for `own`, or for what the volume does, is to be able to lose.
    fn parity_wanted(&self, fs: &Fs, own: Option<Protection>) -> u8 {
        let code = self.store.code_wanted(fs.policy().protection, own);
        code.map_or(0, |code| code.parity())
    }

    /// Segments that can lose fewer shards than is asked for.
    pub fn narrow_segments(&self) -> u64 {
        let narrow = self.serving_all().into_iter().map(|fs| {
            let parity_of = |own| self.parity_wanted(&fs, own);
            self.store.narrow_count(fs.volume(), parity_of)
        });
        narrow.sum()
    }

    /// Those that survive no loss at all, though that is asked for: written while one disk alone worked.
    pub fn single_segments(&self) -> u64 {
        let single = self.serving_all().into_iter().map(|fs| {
            let parity_of = |own| self.parity_wanted(&fs, own).min(1);
            self.store.narrow_count(fs.volume(), parity_of)
        });
        single.sum()
    }

    /// Segments with shards that cannot be read where they should be, and how many more the worst of them may lose.
    pub fn segments_short(&self) -> Option<(u64, i16)> {
        let standings = self.standings();
        let mut short: Option<(u64, i16)> = None;
        for fs in self.serving_all() {
            let is_read = |id| !planner::is_missing(&standings, id);
            let at_stake = self.store.segments_at_stake(fs.volume(), is_read, |_| 0);
            for info in at_stake.into_iter().flatten() {
                let is_missing = |id: &&DiskId| planner::is_missing(&standings, **id);
                let missing = info.disks.iter().filter(is_missing).count();
                if missing > 0 {
                    let spare = i16::from(info.code.parity()) - missing as i16;
                    let (count, worst) = short.unwrap_or((0, spare));
                    short = Some((count + 1, worst.min(spare)));
                }
            }
        }
        short
    }

    /// Bytes that moves and rebuilds could not have from anywhere, since the start.
    pub fn rebuild_lost_bytes(&self) -> u64 {
        self.rebuild.progress.lock().lost_bytes
    }

    /// Shards that volumes have on each disk.
    pub fn shards_by_disk(&self) -> BTreeMap<DiskId, u64> {
        let mut counts = BTreeMap::new();
        for fs in self.serving_all() {
            let known = self.store.shard_counts(fs.volume()).unwrap_or_else(|| {
                // It is opened on other disks: only the metadata knows.
                let segments = fs.meta().segments().into_iter();
                let disks = segments.flat_map(|(_, record)| record.disks);
                disks.map(|disk| (disk, 1)).collect()
            });
            for (disk, count) in known {
                *counts.entry(disk).or_default() += count;
            }
        }
        counts
    }

    /// Shards that volumes have on a disk according to the store or to their metadata, which may know of different
    /// places while a shard moves.
    pub(crate) fn shards_on(&self, id: DiskId) -> u64 {
        let on_it = |fs: &Fs| {
            let counts = self.store.shard_counts(fs.volume()).unwrap_or_default();
            let mut counts = counts.into_iter();
            match counts.find(|(disk, _)| *disk == id) {
                Some((_, count)) => count,
                None => fs.meta().segments_on(id).len() as u64,
            }
        };
        self.serving_all().iter().map(on_it).sum()
    }

    /// Whether nothing of any volume is on a disk: no shard, and no metadata. Not known while a volume is not served.
    pub fn is_let_go(&self, id: DiskId) -> bool {
        let has_shards = self.shards_on(id) > 0;
        // Afterwards: of volumes that were closed meanwhile no shards were counted.
        let serving = self.serving_all();
        serving.len() == self.state().volumes.len()
            && !serving.iter().any(|fs| fs.meta().log().uses_disk(id))
            && !has_shards
    }

    /// How many of some disks have shards still; all of them while a volume is not served, whose segments nobody knows.
    pub fn needed_count(&self, disks: &[DiskId]) -> usize {
        if disks.is_empty() {
            return 0;
        }
        let needed = disks
            .iter()
            .filter(|disk| self.shards_on(**disk) > 0)
            .count();
        // Afterwards: of volumes that were closed meanwhile no shards were counted.
        if self.serving_all().len() < self.state().volumes.len() {
            return disks.len();
        }
        needed
    }

    pub fn rebuild_status(&self) -> RebuildStatus {
        let now = self.env.clock.monotonic();
        let (left, problems) = {
            let planner = self.rebuild.planner.lock();
            (planner.left(), planner.problems(now))
        };
        let progress = self.rebuild.progress.lock();
        let bytes_left = left.bytes.saturating_sub(progress.bytes_done);
        let speed = progress.marks.first().and_then(|(since, before)| {
            let span = now.checked_sub(*since)?;
            let moved = progress.moved_bytes.saturating_sub(*before);
            let speed = moved as f64 / span.as_secs_f64();
            speed.is_normal().then_some(speed)
        });
        RebuildStatus {
            is_running: progress.is_running,
            bytes_per_second_max: self.rebuild.pace.bytes_per_second(),
            shards_left: left.shards.saturating_sub(progress.shards_done),
            bytes_left,
            shards_moved: progress.shards_moved,
            segments_rewritten: progress.segments_rewritten,
            moved_bytes: progress.moved_bytes,
            worked_bytes: self.rebuild.pace.spent_bytes(),
            lost_bytes: progress.lost_bytes,
            errors: progress.errors,
            seconds_left: speed.map(|speed| (bytes_left as f64 / speed) as u64),
            bytes_per_second: speed.map_or(0, |speed| speed as u64),
            shards_missing: left.shards_missing,
            problems,
        }
    }

    /// What finds room of everything on some disks when they leave, beside the reserve and after what is to be done
    /// already. `joining`: what the disk has free that comes in their place.
    pub(crate) fn room_to_leave(&self, ids: &[DiskId], joining: Option<DiskRoom>) -> Reckoning {
        let mut standings = self.standings();
        for id in ids {
            let standing = standings.entry(*id).or_insert(Standing::Gone);
            *standing = match standing {
                Standing::Fine | Standing::Draining => Standing::Draining,
                Standing::Away | Standing::GivenUp | Standing::Gone => Standing::Gone,
            };
        }
        // Another one comes in their place.
        let without = if joining.is_none() { ids } else { &[] };
        let state = self.state();
        let code_of = |volume: VolumeId, own: Option<Protection>| {
            let volume = state.volumes.iter().find(|it| it.id == volume)?;
            let of_volume = volume.settings.protection;
            let code = self.store.code_wanted_without(of_volume, own, without);
            code.ok()
        };
        let seen = self.observe(ids);
        let parity_of = |volume, own| code_of(volume, own).map_or(0, |code| code.parity());
        let mut work = work_at_hand(&seen, &standings, Some(&parity_of));
        order(&mut work);
        let (own, others): (Vec<Work>, Vec<Work>) = work
            .into_iter()
            .partition(|work| work.disks.iter().any(|disk| ids.contains(disk)));
        let mut room = seen.room.clone().with_only(|disk| !ids.contains(&disk));
        if let Some(joining) = joining {
            room = room.with(joining);
        }
        let mut room = room.beside_reserve();
        room_for(&seen, &mut room, &others, &code_of);
        room_for(&seen, &mut room, &own, &code_of)
    }
}

fn live_bytes(fs: &Fs, segments: &[SegmentId]) -> u64 {
    let records = segments.iter().filter_map(|id| fs.meta().segment(*id));
    records.map(|record| record.live_bytes).sum()
}

/// Ends a move of which the log was told. Returns the bytes of the shard that could not be had from anywhere; `None` if
/// it is not at its new place.
async fn end_move(
    fs: &Fs,
    placed: PlacedShard,
    len_bytes: u64,
    progress: &Mutex<Progress>,
) -> Option<u64> {
    let MovedShard {
        segment,
        lost_bytes,
    } = match placed.finish().await {
        Ok(moved) => moved,
        Err(error) => {
            tracing::warn!(volume = fs.name(), %error, "the new place of a shard is not durable");
            return None;
        }
    };
    if lost_bytes > 0 {
        tracing::error!(volume = fs.name(), %segment, lost_bytes, "some bytes of a shard could not be had from anywhere; a scrub finds the files");
    }
    let mut progress = progress.lock();
    progress.shards_moved += 1;
    progress.shards_done += 1;
    progress.bytes_done += len_bytes;
    progress.moved_bytes += len_bytes;
    progress.lost_bytes += lost_bytes;
    Some(lost_bytes)
}
