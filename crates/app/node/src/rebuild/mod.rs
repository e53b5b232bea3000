//! Gets data off draining disks, and back onto disks that are there when one is lost.
//!
//! Owns: what has to move and in which order, its progress, moving the metadata with it.
//! Must not know: how a shard is moved (`segment`) or rewritten (`fs`).
//!
//! Nothing is written down about it: what has to move follows from the pool file and from the segments'
//! disks in the metadata, so a restart goes on where it stopped. A segment that has lost most comes
//! first. A shard moves to a disk that holds none of its segment; where there is no such disk, the live
//! records of the segment are rewritten into new segments, which are laid out for the disks that stay.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_admin::api::RebuildView;
use cairn_base::{DiskId, SegmentId, VolumeId};
use cairn_formats::pool_file::PoolVolume;
use cairn_fs::{Fs, MovedShard, Placed, REWRITE_SEGMENTS_MAX};
use cairn_segment::{DiskRoom, DiskState, MoveError, Moved, Pace, Urgency};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock};

use crate::metadata::CLOSE_MAX;
use crate::node::{Inner, VolumeService};

mod deferred;
mod room;
mod work;

use deferred::{DeferredSegments, Prospect, RETRY_AFTER};
use room::{Reckoning, Rewriting, reckon};
pub use work::Standing;
use work::{Work, order, work_of};

/// How often it is looked what there is to do.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// As long as all disks are fine all segments are looked at only so often.
const FINE_INTERVAL: Duration = Duration::from_secs(30);
/// Shards that are moved before it is looked again whether that is still wanted, and in which order.
const ROUND_SHARDS_MAX: usize = 32;
/// The speed is that of the last such time.
const SPEED_SPAN: Duration = Duration::from_secs(60);
/// Most problems that are told at a time.
const PROBLEMS_MAX: usize = 8;

/// Adds a segment to those that are written anew in this round.
fn add(segments: &mut Vec<SegmentId>, segment: SegmentId) {
    if segments.len() < REWRITE_SEGMENTS_MAX && !segments.contains(&segment) {
        segments.push(segment);
    }
}

/// Ends a move of which the log was told. Returns the bytes of the shard that could not be had from anywhere; `None` if
/// it is not at its new place.
async fn end_move(
    fs: &Fs,
    placed: Placed,
    shard_len_bytes: u64,
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
    progress.moved_bytes += shard_len_bytes;
    progress.shards_left = progress.shards_left.saturating_sub(1);
    progress.bytes_left = progress.bytes_left.saturating_sub(shard_len_bytes);
    progress.lost_bytes += lost_bytes;
    Some(lost_bytes)
}

#[derive(Default)]
struct Progress {
    running: bool,
    shards_left: u64,
    bytes_left: u64,
    shards_missing: u64,
    shards_moved: u64,
    segments_rewritten: u64,
    moved_bytes: u64,
    lost_bytes: u64,
    errors: u64,
    problems: BTreeSet<String>,
    /// What is known beforehand to find no room.
    lack: Option<String>,
    /// Time and bytes moved until then, for the speed.
    marks: Vec<(Duration, u64)>,
}

pub struct Rebuild {
    pace: Pace,
    wake: Notify,
    progress: Arc<Mutex<Progress>>,
    /// Volumes with a shard whose new place is not durable yet, because the log has no space or its disk does not
    /// answer: nothing more of them is moved until it is.
    late_commits: Arc<Mutex<BTreeSet<VolumeId>>>,
    /// Since when a disk cannot be read.
    away_since: Mutex<BTreeMap<DiskId, Duration>>,
    deferred: Mutex<DeferredSegments>,
    /// As they were in the last round: when they change, what failed may succeed.
    last_standings: Mutex<BTreeMap<DiskId, Standing>>,
    /// Disks that metadata could not be moved off, or that could not leave, why, and until when that is not tried
    /// again.
    disks_stay: Mutex<BTreeMap<DiskId, (Duration, String)>>,
    /// When all segments were looked at last, with all disks fine, and nothing was found.
    found_none_at: Mutex<Option<Duration>>,
    /// Held shared while the new place of a shard is made durable: whoever takes a disk out of the pool waits for that.
    pub commits: Arc<RwLock<()>>,
}

impl Rebuild {
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            wake: Notify::new(),
            progress: Arc::default(),
            late_commits: Arc::default(),
            away_since: Mutex::default(),
            deferred: Mutex::default(),
            last_standings: Mutex::default(),
            disks_stay: Mutex::default(),
            found_none_at: Mutex::default(),
            commits: Arc::default(),
        }
    }

    pub fn wake(&self) {
        self.deferred.lock().clear();
        self.disks_stay.lock().clear();
        *self.found_none_at.lock() = None;
        self.wake.notify_one();
    }

    pub fn set_rate(&self, bytes_per_second: u64) {
        self.pace.set_bytes_per_second(bytes_per_second);
    }
}

/// Starts the task; it ends with the node.
pub fn tend(inner: &Arc<Inner>) {
    let env = inner.env.clone();
    let node = Arc::downgrade(inner);
    let task = async move {
        loop {
            let Some(inner) = node.upgrade() else { return };
            let more = inner.rebuild_round().await;
            if more {
                continue;
            }
            let wake = async {
                inner.rebuild.wake.notified().await;
            };
            select(pin!(wake), env.clock.sleep(ROUND_INTERVAL)).await;
        }
    };
    inner.env.spawner.spawn("rebuild", Box::pin(task));
    // In a task of its own: moving data may take for ever.
    inner.every("reopen", ROUND_INTERVAL, |inner| async move {
        inner.reopen_failed().await;
        inner.open_failed().await;
    });
}

impl Inner {
    /// One look and what follows from it; true if there is more to do at once.
    async fn rebuild_round(self: &Arc<Self>) -> bool {
        if self.is_stopping() {
            return false;
        }
        let draining: Vec<DiskId> = {
            let pool = self.pool.load();
            let draining = pool.disks.iter().filter(|disk| disk.draining);
            draining.map(|disk| disk.id).collect()
        };
        let mut problems = BTreeSet::new();
        if !draining.is_empty() {
            let pool = self.pool.load();
            let is_failed = |volume: &&PoolVolume| {
                matches!(self.service(volume.id), Some(VolumeService::Failed(_)))
            };
            problems.extend(pool.volumes.iter().filter(is_failed).map(|volume| {
                format!(
                    "volume {} is not served, so what it has on the draining disk stays there: `cairn volume show {}` \
                     says why",
                    volume.name, volume.name
                )
            }));
        }
        for disk in &draining {
            problems.extend(self.metadata_off_again(*disk).await);
        }
        let standings = self.standings();
        {
            let mut last = self.rebuild.last_standings.lock();
            if *last != standings {
                last.clone_from(&standings);
                self.rebuild.deferred.lock().clear();
            }
        }
        let now = self.env.clock.monotonic();
        let are_fine = standings
            .values()
            .all(|standing| *standing == Standing::Fine);
        {
            let found_none_at = *self.rebuild.found_none_at.lock();
            let is_recent = |at: Duration| now.saturating_sub(at) < FINE_INTERVAL;
            if are_fine && found_none_at.is_some_and(is_recent) {
                return false;
            }
        }
        let mut work = self.work(&standings, None);
        *self.rebuild.found_none_at.lock() = (are_fine && work.is_empty()).then_some(now);
        order(&mut work);
        let shards_left: u64 = work.iter().map(|work| work.shards.len() as u64).sum();
        {
            let now = self.env.clock.monotonic();
            let mut progress = self.rebuild.progress.lock();
            progress.shards_left = shards_left;
            progress.bytes_left = work
                .iter()
                .map(|work| work.shard_len_bytes * work.shards.len() as u64)
                .sum();
            progress.shards_missing = self.shards_missing(&standings);
            progress.running = !work.is_empty();
            if work.is_empty() {
                progress.marks.clear();
            } else {
                let moved_bytes = progress.moved_bytes;
                progress.marks.push((now, moved_bytes));
                let old = now.saturating_sub(SPEED_SPAN);
                progress.marks.retain(|(at, _)| *at >= old);
            }
        }
        if work.is_empty() {
            self.rebuild.deferred.lock().clear();
            for disk in draining {
                // Not each second: it takes the metadata's copies, and all other changes wait for it.
                if self.why_it_stays(disk).is_none() {
                    let why = self.finish_replaced(disk).await;
                    problems.extend(why.map(|why| self.let_stay(disk, why)));
                }
            }
            self.set_lack(None);
            self.set_problems(problems);
            return false;
        }
        self.set_lack(self.too_little_room(&work));
        let done = self.do_some(work, &mut problems).await;
        let now = self.env.clock.monotonic();
        let reasons = self.rebuild.deferred.lock().reasons(now);
        let mut reasons: Vec<String> = reasons.into_iter().collect();
        // What holds up many comes before what is told of one.
        reasons.sort_by_key(|why| why.starts_with("segment "));
        problems.extend(reasons.into_iter().take(PROBLEMS_MAX));
        self.set_problems(problems);
        done
    }

    /// Has metadata moved off a disk, unless that failed a moment ago. Says what is in the way.
    async fn metadata_off_again(&self, disk: DiskId) -> Option<String> {
        if let Some(why) = self.why_it_stays(disk) {
            return Some(why);
        }
        // Volumes are not opened and closed by two at a time.
        let moved = {
            let Ok(_changes) = self.begin_change().await else {
                return None;
            };
            let pool = self.pool.load_full();
            if !pool.disks.iter().any(|one| one.id == disk && one.draining) {
                // The draining was cancelled while this waited.
                return None;
            }
            self.metadata_off(disk).await
        };
        match moved {
            Ok(()) => {
                self.rebuild.disks_stay.lock().remove(&disk);
                None
            }
            Err(why) => Some(self.let_stay(disk, why)),
        }
    }

    /// Why a disk stays for now, if it was tried a moment ago.
    fn why_it_stays(&self, disk: DiskId) -> Option<String> {
        let now = self.env.clock.monotonic();
        let stays = self.rebuild.disks_stay.lock();
        let (until, why) = stays.get(&disk)?;
        (*until > now).then(|| why.clone())
    }

    fn let_stay(&self, disk: DiskId, why: String) -> String {
        let until = self.env.clock.monotonic() + RETRY_AFTER;
        let mut stays = self.rebuild.disks_stay.lock();
        stays.insert(disk, (until, why.clone()));
        why
    }

    /// Says before the disks are full that not all of it finds room.
    fn too_little_room(&self, work: &[Work]) -> Option<String> {
        let mut room = self.store.move_room();
        let lack = reckon(&mut room, work, |work| self.rewriting(work, None)).lack()?;
        Some(format!(
            "{lack}: add a disk or delete data; what has lost most redundancy comes first"
        ))
    }

    /// What it takes to write the live records of a segment anew, as if a disk left.
    fn rewriting(&self, work: &Work, without: Option<DiskId>) -> Rewriting {
        let Some(VolumeService::Serving(fs)) = self.service(work.volume) else {
            let code = self.store.default_code();
            return Rewriting {
                live_bytes: 0,
                code,
            };
        };
        let protection = fs.policy().protection;
        let code = self.store.code_for_without(protection, without);
        Rewriting {
            live_bytes: self.live_bytes(&fs, &[work.segment]),
            code: code.unwrap_or_else(|_| self.store.default_code()),
        }
    }

    /// At once: what is done next may take very long.
    fn set_lack(&self, lack: Option<String>) {
        let mut progress = self.rebuild.progress.lock();
        if let (Some(problem), None) = (&lack, &progress.lack) {
            tracing::warn!(problem, "moving data between disks");
        }
        progress.lack = lack;
    }

    fn set_problems(&self, problems: BTreeSet<String>) {
        let mut progress = self.rebuild.progress.lock();
        for problem in problems.difference(&progress.problems) {
            tracing::warn!(problem, "moving data between disks");
        }
        progress.problems = problems;
    }

    /// True if anything was done.
    async fn do_some(&self, work: Vec<Work>, problems: &mut BTreeSet<String>) -> bool {
        let now = self.env.clock.monotonic();
        let mut moved = 0;
        let mut rewrites: BTreeMap<VolumeId, Vec<SegmentId>> = BTreeMap::new();
        let mut urgencies: BTreeMap<VolumeId, Urgency> = BTreeMap::new();
        let disks = self.store.space().disks.into_iter();
        let mut room_bytes: u64 = disks
            .map(|disk| disk.free_bytes.saturating_sub(disk.reserve_bytes))
            .sum();
        let wanted = work.iter().map(|work| (work.volume, work.segment));
        self.rebuild.deferred.lock().keep(&wanted.collect());
        for work in work {
            if moved >= ROUND_SHARDS_MAX || self.is_stopping() {
                break;
            }
            let deferred = &self.rebuild.deferred;
            if deferred.lock().has(work.volume, work.segment, now) {
                continue;
            }
            let Some(VolumeService::Serving(fs)) = self.service(work.volume) else {
                problems.insert(format!("volume {} is not served", work.volume));
                continue;
            };
            if self.metadata_trouble(&fs).is_some() {
                // It takes no new places. It is opened again meanwhile.
                problems.insert(format!("volume {} waits for its metadata", fs.name()));
                continue;
            }
            if self.is_commit_late(work.volume) {
                problems.insert(format!(
                    "volume {}: the new place of a shard is not durable yet, for its log has no space or its disk does \
                     not answer; its other data stays where it is until then",
                    fs.name()
                ));
                continue;
            }
            let segments = rewrites.entry(work.volume).or_default();
            // Of an append that is not committed, or never will be.
            let is_open = fs.meta().segment(work.segment).is_none();
            // At most twice what it takes now is written, and not into the reserve.
            let needed_bytes = 2 * work.shard_len_bytes * work.disks.len() as u64;
            let has_room = room_bytes >= needed_bytes;
            let has_failed = deferred.lock().has_failed(work.volume, work.segment);
            // What cannot have its protection gets off a draining disk as it is.
            let is_only_moved = work.may_rewrite && (is_open || !has_room || has_failed);
            if work.is_narrow && !is_only_moved {
                if is_open {
                    continue;
                }
                if !has_room {
                    problems.insert(format!(
                        "volume {}: there is no room to write data anew that has less protection than it asks for: add a disk or delete data",
                        fs.name()
                    ));
                } else if segments.len() < REWRITE_SEGMENTS_MAX {
                    // The rest in the next round, when it is known what else there is to do.
                    room_bytes -= needed_bytes;
                    segments.push(work.segment);
                }
                continue;
            }
            self.rebuild.pace.set_urgency(work.urgency());
            for index in &work.shards {
                if self.is_commit_late(work.volume) {
                    break;
                }
                let mut rewritten = None;
                match self.move_one(&fs, &work, *index).await {
                    Ok(lost_bytes) => {
                        moved += 1;
                        // What else is in those stripes could not lose one more shard.
                        rewritten = (lost_bytes > 0).then_some(Urgency::Bare);
                    }
                    // Those beyond what fits in the next round.
                    Err(error) if work.is_rewritten_after(&error) => {
                        rewritten = Some(work.urgency());
                    }
                    Err(MoveError::NotNow) => {}
                    Err(error) => {
                        if !matches!(error, MoveError::NoTarget) {
                            self.rebuild.progress.lock().errors += 1;
                        }
                        let why = match error {
                            MoveError::NoTarget => {
                                "there is no disk to rebuild onto: add one, or replace the lost one"
                                    .to_owned()
                            }
                            error => format!(
                                "segment {} of volume {}: {error}",
                                work.segment, work.volume
                            ),
                        };
                        self.defer((work.volume, work.segment), Prospect::Open, why);
                    }
                }
                if let Some(urgent) = rewritten {
                    add(segments, work.segment);
                    let urgency = urgencies.entry(work.volume).or_default();
                    *urgency = urgent.max(*urgency);
                }
            }
        }
        for (volume, segments) in rewrites {
            if let Some(VolumeService::Serving(fs)) = self.service(volume)
                && !self.is_commit_late(volume)
            {
                let urgency = urgencies.get(&volume).copied().unwrap_or_default();
                self.rebuild.pace.set_urgency(urgency);
                moved += self.rewrite(&fs, &segments).await;
            }
        }
        moved > 0
    }

    fn defer(&self, segment: (VolumeId, SegmentId), prospect: Prospect, why: String) {
        let now = self.env.clock.monotonic();
        let mut deferred = self.rebuild.deferred.lock();
        deferred.add(segment, now, prospect, why);
    }

    /// Returns the bytes of the shard that could not be had from anywhere.
    async fn move_one(&self, fs: &Fs, work: &Work, index: u8) -> Result<u64, MoveError> {
        let copied = fs.copy_shard(work.segment, index, &self.rebuild.pace);
        let moved = copied.await?;
        if let Some(lost_bytes) = self.commit_move(fs, moved, work.shard_len_bytes).await {
            return Ok(lost_bytes);
        }
        // Else all of it is copied again at once, perhaps for nothing again.
        let why = format!(
            "segment {} of volume {}: the new place of a shard was not taken, or is not durable yet",
            work.segment, work.volume
        );
        self.defer((work.volume, work.segment), Prospect::Open, why);
        Err(MoveError::NotNow)
    }

    fn is_commit_late(&self, volume: VolumeId) -> bool {
        self.rebuild.late_commits.lock().contains(&volume)
    }

    /// Makes the new place of a shard durable. Returns what [`end_move`] does, `None` also if that is not over yet.
    async fn commit_move(&self, fs: &Fs, moved: Moved, shard_len_bytes: u64) -> Option<u64> {
        let commit = self.rebuild.commits.clone().read_owned().await;
        let placed = fs.place_shard(moved).await?;
        let waiting = self.while_it_works(fs, placed.durable()).await;
        if waiting.is_some() {
            return end_move(fs, placed, shard_len_bytes, &self.rebuild.progress).await;
        }
        // The log has no space, or its disk does not answer. Shards of other volumes move meanwhile.
        let late = Arc::clone(&self.rebuild.late_commits);
        late.lock().insert(fs.volume());
        let (fs, progress) = (fs.clone(), Arc::clone(&self.rebuild.progress));
        let task = async move {
            end_move(&fs, placed, shard_len_bytes, &progress).await;
            late.lock().remove(&fs.volume());
            drop(commit);
        };
        self.env.spawner.spawn("commit move", Box::pin(task));
        None
    }

    /// Waits until no new place of a shard is being made durable, but not for ever where a log has no space, or its
    /// disk does not answer: false then.
    pub async fn commits_done(&self) -> bool {
        let alone = pin!(self.rebuild.commits.write());
        let waited = select(alone, self.env.clock.sleep(CLOSE_MAX)).await;
        matches!(waited, Either::Left(_))
    }

    /// Rewrites some segments; returns how many are gone.
    async fn rewrite(&self, fs: &Fs, segments: &[SegmentId]) -> usize {
        let mut gone = 0;
        for some in segments.chunks(REWRITE_SEGMENTS_MAX) {
            let before = self.live_bytes(fs, some);
            let result = fs.rewrite_segments(some, &self.rebuild.pace).await;
            let after = self.live_bytes(fs, some);
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
            for segment in left {
                let (prospect, what) = match &result {
                    Err(error) => (Prospect::Open, error.to_string()),
                    Ok(()) if self.live_bytes(fs, &[segment]) > 0 => (
                        Prospect::Poor,
                        "they are in use, or hold data that cannot be read; `cairn scrub start` finds the files of such"
                            .to_owned(),
                    ),
                    Ok(()) => (Prospect::Open, "they are not deleted yet".to_owned()),
                };
                let why = format!("volume {}: some segments stay: {what}", fs.name());
                self.defer((fs.volume(), segment), prospect, why);
            }
        }
        gone
    }

    fn live_bytes(&self, fs: &Fs, segments: &[SegmentId]) -> u64 {
        let records = segments.iter().filter_map(|id| fs.meta().segment(*id));
        records.map(|record| record.live_bytes).sum()
    }

    /// How every disk that is not fine stands; one that is in no list is gone.
    pub fn standings(&self) -> BTreeMap<DiskId, Standing> {
        let pool = self.pool.load();
        let now = self.env.clock.monotonic();
        let delay = Duration::from_secs(self.config.rebuild_delay_seconds);
        let mut away_since = self.rebuild.away_since.lock();
        let statuses = self.store.disk_status();
        let mut standings = BTreeMap::new();
        for member in &pool.disks {
            let status = statuses.iter().find(|status| status.id == member.id);
            let is_there = status.is_some_and(|status| status.state == DiskState::Healthy);
            if is_there {
                away_since.remove(&member.id);
            }
            let standing = match (is_there, member.draining) {
                (true, false) => Standing::Fine,
                (true, true) => Standing::Draining,
                (false, true) => Standing::Gone,
                (false, false) => {
                    let since = *away_since.entry(member.id).or_insert(now);
                    if now.saturating_sub(since) >= delay {
                        Standing::GivenUp
                    } else {
                        Standing::Away
                    }
                }
            };
            standings.insert(member.id, standing);
        }
        standings
    }

    fn work(&self, standings: &BTreeMap<DiskId, Standing>, without: Option<DiskId>) -> Vec<Work> {
        let standing = |id| standings.get(&id).copied().unwrap_or(Standing::Gone);
        let is_fine = |standing: &&Standing| **standing == Standing::Fine;
        let fine_count = standings.values().filter(is_fine).count();
        let mut work = Vec::new();
        for fs in self.serving_all() {
            let segments = self.store.segments(fs.volume());
            // With fewer disks it would be as narrow again.
            let parity = self.parity_wanted(&fs, without);
            let parity_now = if fine_count > usize::from(parity) {
                parity
            } else {
                0
            };
            work.extend(work_of(fs.volume(), &segments, parity_now, standing));
        }
        work
    }

    /// Shards of each segment that a volume is to lose without a loss, as if a disk left.
    fn parity_wanted(&self, fs: &Fs, without: Option<DiskId>) -> u8 {
        let protection = fs.policy().protection;
        let code = self.store.code_for_without(protection, without);
        code.map_or(0, |code| code.parity())
    }

    /// Segments that can lose fewer shards than their volumes ask for.
    pub fn narrow_segments(&self) -> u64 {
        let narrow = self.serving_all().into_iter().map(|fs| {
            let parity = self.parity_wanted(&fs, None);
            let segments = self.store.segments(fs.volume()).into_iter();
            segments.filter(|info| info.code.parity() < parity).count() as u64
        });
        narrow.sum()
    }

    /// Segments with shards that cannot be read where they should be, and how many more the worst of them may lose.
    pub fn segments_short(&self) -> Option<(u64, i16)> {
        let standings = self.standings();
        let is_missing =
            |id: &&DiskId| !matches!(standings.get(id), Some(Standing::Fine | Standing::Draining));
        let mut short: Option<(u64, i16)> = None;
        for fs in self.serving_all() {
            for info in self.store.segments(fs.volume()) {
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

    fn shards_missing(&self, standings: &BTreeMap<DiskId, Standing>) -> u64 {
        let is_missing =
            |id: &&DiskId| !matches!(standings.get(id), Some(Standing::Fine | Standing::Draining));
        let segments = self.serving_all().into_iter();
        let segments = segments.flat_map(|fs| self.store.segments(fs.volume()));
        segments
            .map(|info| info.disks.iter().filter(is_missing).count() as u64)
            .sum()
    }

    /// Shards that volumes have on each disk.
    pub fn shards_by_disk(&self) -> BTreeMap<DiskId, u64> {
        let mut counts = BTreeMap::new();
        for fs in self.serving_all() {
            // The metadata's segments first: while a volume is opened on other disks the store has none.
            let known = fs.meta().segments().into_iter();
            let mut segments: BTreeMap<SegmentId, Vec<DiskId>> =
                known.map(|(id, record)| (id, record.disks)).collect();
            let open = self.store.segments(fs.volume()).into_iter();
            segments.extend(open.map(|info| (info.id, info.disks)));
            for disk in segments.into_values().flatten() {
                *counts.entry(disk).or_default() += 1;
            }
        }
        counts
    }

    /// Whether nothing of any volume is on a disk: no shard, and no metadata. Not known while a volume is not served.
    pub fn is_let_go(&self, id: DiskId) -> bool {
        let has_shards = self.shards_by_disk().contains_key(&id);
        // Afterwards: of volumes that were closed meanwhile no shards were counted.
        let serving = self.serving_all();
        serving.len() == self.pool.load().volumes.len()
            && !serving.iter().any(|fs| fs.meta().uses_disk(id))
            && !has_shards
    }

    /// How many of some disks have shards still; all of them while a volume is not served, whose segments nobody knows.
    pub fn needed_count(&self, disks: &[DiskId]) -> usize {
        if disks.is_empty() {
            return 0;
        }
        let shards = self.shards_by_disk();
        // Afterwards: of volumes that were closed meanwhile no shards were counted.
        if self.serving_all().len() < self.pool.load().volumes.len() {
            return disks.len();
        }
        let is_needed = |disk: &&DiskId| shards.get(disk).is_some_and(|count| *count > 0);
        disks.iter().filter(is_needed).count()
    }

    pub fn rebuild_view(&self) -> RebuildView {
        let progress = self.rebuild.progress.lock();
        let speed = progress.marks.first().and_then(|(since, before)| {
            let span = self.env.clock.monotonic().checked_sub(*since)?;
            let moved = progress.moved_bytes.saturating_sub(*before);
            let speed = moved as f64 / span.as_secs_f64();
            speed.is_normal().then_some(speed)
        });
        RebuildView {
            running: progress.running,
            rate_bytes_per_second: self.rebuild.pace.bytes_per_second(),
            shards_left: progress.shards_left,
            bytes_left: progress.bytes_left,
            shards_moved: progress.shards_moved,
            segments_rewritten: progress.segments_rewritten,
            moved_bytes: progress.moved_bytes,
            worked_bytes: self.rebuild.pace.spent_bytes(),
            lost_bytes: progress.lost_bytes,
            errors: progress.errors,
            seconds_left: speed.map(|speed| (progress.bytes_left as f64 / speed) as u64),
            shards_missing: progress.shards_missing,
            problems: progress
                .lack
                .iter()
                .chain(&progress.problems)
                .cloned()
                .collect(),
        }
    }

    /// What finds room of everything on a disk when it leaves, beside the reserve and after what is to be done
    /// already. `joining`: what the disk has free that comes in its place.
    pub fn room_to_leave(&self, id: DiskId, joining: Option<DiskRoom>) -> Reckoning {
        let mut standings = self.standings();
        let standing = standings.entry(id).or_insert(Standing::Gone);
        *standing = match standing {
            Standing::Fine | Standing::Draining => Standing::Draining,
            Standing::Away | Standing::GivenUp | Standing::Gone => Standing::Gone,
        };
        // Another one comes in its place.
        let without = joining.is_none().then_some(id);
        let mut work = self.work(&standings, without);
        order(&mut work);
        let (own, others): (Vec<Work>, Vec<Work>) =
            work.into_iter().partition(|work| work.disks.contains(&id));
        let mut room = self.store.move_room().with_only(|disk| disk != id);
        if let Some(joining) = joining {
            room = room.with(joining);
        }
        let mut room = room.beside_reserve();
        reckon(&mut room, &others, |work| self.rewriting(work, without));
        reckon(&mut room, &own, |work| self.rewriting(work, without))
    }
}
