//! Background work: disks that come and leave, moves between them, scrubs.
//!
//! Owns: the actions of an operator, when the pool does its next step, forbidden results. Must not know: the pool's
//! choice of steps, and how the engine moves a shard.
//!
//! A disk that is drained, or lost and given up, loses its shards one by one to disks with room; shards that cannot be
//! moved are rewritten. When nothing needs it any more, it leaves the pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::{DiskId, DiskRole, Media, SegmentId, VolumeId};
use cairn_fs::{ExtentAt, Fs};
use cairn_pool::disk_changes::{Force, Joining};
use cairn_pool::planner::{Action, Outcome, Standing};
use cairn_pool::{ChangeFailure, Pool};
use cairn_segment::{MoveError, Pace, SegmentInfo, SegmentScrub, SegmentStore};
use cairn_shard::{ShardDisk, ShardFooter, ShardName};
use cairn_testkit::MemDisk;
use parking_lot::Mutex;

use crate::client;
use crate::faults::AtWork;
use crate::judge::Judge;
use crate::pool::{Job, PoolFile};
use crate::scenario::{Trouble, WorkKind};
use crate::world::{VOLUME, World, open_alone, shard_settings};

/// Limit of the rounds of one life, and the pause after an idle one.
const ROUNDS_MAX: u32 = 300;
const ROUND_PAUSE: Duration = Duration::from_millis(400);

/// Results of the work.
#[derive(Default)]
pub struct Done {
    /// Steps of moves: a copy made, its place submitted, durable, the old one deleted; segments rewritten.
    pub steps: Arc<AtomicU64>,
    pub shards_moved: AtomicU64,
    /// The part of these that went to emptier disks.
    pub shards_spread: AtomicU64,
    pub segments_rewritten: AtomicU64,
    pub disks_left: AtomicU64,
    pub segments_scrubbed: AtomicU64,
    /// The work of this life, once it has begun.
    pub begun: Mutex<Option<&'static str>>,
    /// Number of starts and ends of moving a shard, or of rewriting segments: odd while one is in progress.
    pub begins_and_ends: AtomicU64,
    /// Whether the power goes just after a step of it.
    pub crashes: AtomicU64,
    /// At some moment all members were present and everything had its full protection.
    pub is_whole: AtomicBool,
    /// Disks that were removed by force: their shards must be rebuilt from the others.
    pub removed: Mutex<Vec<usize>>,
    /// Draining disks, and the newest segment when their drain began.
    pub drains: Mutex<BTreeMap<DiskId, u64>>,
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The work of one life.
pub(crate) struct Worker {
    pub env: Env,
    pub life: Arc<client::Life>,
    pub judge: Arc<Judge>,
    pub pool: Arc<Pool>,
    pub segments: Arc<SegmentStore>,
    pub job: Option<Job>,
    /// Another disk that is removed by force, if the pool allows it.
    pub forced: Option<usize>,
    /// A blank disk.
    pub spare: Option<Arc<MemDisk>>,
    /// Copies of the lost disks without trouble, for the judge only.
    pub had: Vec<Arc<MemDisk>>,
    /// No disk has faults once the work begins.
    pub is_quiet: bool,
    pub done: Arc<Done>,
}

impl Worker {
    pub fn new(env: &Env, judge: &Arc<Judge>, world: &World, done: &Arc<Done>) -> Self {
        Self {
            env: env.clone(),
            life: judge.shared.clone(),
            judge: judge.clone(),
            pool: world.pool.clone(),
            segments: world.segments.clone(),
            job: None,
            forced: None,
            spare: None,
            had: Vec::new(),
            is_quiet: false,
            done: done.clone(),
        }
    }

    pub async fn run(self) {
        if let Err(error) = self.work().await {
            self.life.fail(error);
        }
    }

    async fn work(&self) -> Result<(), String> {
        if self.job.is_some_and(|job| job.kind == WorkKind::Scrub) {
            self.scrub().await?;
        } else if let Some(job) = self.job {
            self.begin(job).await?;
        }
        if self.life.shape.sets_policies {
            self.name_media().await?;
        }
        self.note_drains().await;
        for _ in 0..ROUNDS_MAX {
            if self.is_over() || !self.round().await? {
                return Ok(());
            }
            self.env.clock.sleep(ROUND_PAUSE).await;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.life.has_failed() || self.fs().is_none_or(|fs| fs.meta().failure().is_some())
    }

    /// The volume as it is served now.
    fn fs(&self) -> Option<Fs> {
        self.judge.fs()
    }

    fn pace(&self) -> Pace {
        Pace::new(self.env.clock.clone(), 0)
    }

    fn file(&self) -> PoolFile {
        PoolFile::of(&self.pool.state())
    }

    fn some_media(&self) -> Option<Media> {
        let kinds = [None, Some(Media::Hdd), Some(Media::Ssd), Some(Media::Nvme)];
        match self.life.shape.sets_policies {
            true => kinds[(self.env.entropy.u64() % 4) as usize],
            false => None,
        }
    }

    /// Sets the device class of some disks, which may change it.
    async fn name_media(&self) -> Result<(), String> {
        let members: Vec<DiskId> = self.file().members.iter().map(|it| it.id).collect();
        for id in members {
            if self.env.entropy.u64().is_multiple_of(3) {
                continue;
            }
            let words = id.to_string();
            let named = self.pool.set_media(&words, self.some_media());
            if let Err(error) = named.await {
                self.excuse("saying what kind of device a disk is", &error)?;
            }
        }
        Ok(())
    }

    /// The action of an operator: a disk is added, replaced, drained, or removed by force.
    async fn begin(&self, job: Job) -> Result<(), String> {
        let (has_spare, leaves) = match job.kind {
            WorkKind::Drain { has_spare } => (has_spare, true),
            WorkKind::Rebuild {
                has_spare,
                comes_back,
            } => (has_spare, !comes_back),
            WorkKind::Scrub => return Ok(()),
            WorkKind::Journal => (true, false),
        };
        let leaving = job.disk.filter(|_| leaves);
        let leaving = leaving.and_then(|index| self.file().id(index));
        let spare = self.spare.as_ref().filter(|_| has_spare);
        let begun = match (spare, leaving) {
            (Some(disk), leaving) => {
                let settings = shard_settings(&self.life.shape);
                let place = match leaving {
                    Some(old) => Joining::Replacing(old),
                    None if job.kind == WorkKind::Journal => Joining::New(DiskRole::Journal, None),
                    None => Joining::New(DiskRole::Data, self.some_media()),
                };
                let joined = self.pool.join(disk.clone(), settings, place);
                joined.await.map(drop)
            }
            (None, Some(leaving)) => {
                let id = leaving.to_string();
                self.pool.drain(&id, true).await.map(drop)
            }
            (None, None) => Ok(()),
        };
        if let Err(error) = begun {
            self.excuse("a change of the pool", &error)?;
        }
        if let Some(index) = self.forced {
            self.remove_by_force(index).await;
        }
        Ok(())
    }

    async fn remove_by_force(&self, index: usize) {
        let Some(id) = self.file().id(index) else {
            return;
        };
        // First: a power cut leaves it open whether the pool has saved this.
        self.done.removed.lock().push(index);
        let id = id.to_string();
        let left = self.pool.leave(&id, Force::Yes);
        match self.judge.while_reopening(left).await {
            Ok(_) => {
                self.check_readable();
                self.pool.after_a_change().await;
            }
            Err(error) => tracing::debug!(%error, index, "a disk is not removed by force"),
        }
    }

    /// Every segment has enough shards on working disks: the pool checked that before it let a disk go.
    fn check_readable(&self) {
        let table = self.pool.table();
        for info in self.segments.segments(VOLUME) {
            let there = info.disks.iter().filter(|id| table.works(**id)).count();
            if info.remote.is_none() && there < usize::from(info.code.data()) {
                self.life.fail(format!(
                    "segment {} cannot be read without a disk that was removed by force",
                    info.id
                ));
            }
        }
    }

    /// No data is on a disk for logs and metadata only.
    fn check_journals(&self) {
        let table = self.pool.table();
        for info in self.segments.segments(VOLUME) {
            if let Some(disk) = info.disks.iter().find(|id| table.is_journal(**id)) {
                self.life.fail(format!(
                    "segment {} has a shard on {disk}, a journal disk",
                    info.id
                ));
            }
        }
    }

    /// Notes the segments that draining disks may have shards of.
    async fn note_drains(&self) {
        self.segments.placements_done().await;
        let newest = self.judge.disks_in_use().into_keys().max();
        let mut drains = self.done.drains.lock();
        for member in self.file().draining() {
            drains.entry(member.id).or_insert(newest.unwrap_or(0));
        }
    }

    /// Does the work that can be done now; false if nothing is left.
    async fn round(&self) -> Result<bool, String> {
        let planned = self.pool.plan();
        for action in &planned {
            if self.is_over() {
                return Ok(false);
            }
            self.perform(action).await?;
        }
        for member in self.file().draining() {
            self.take_out(member.id).await;
        }
        self.check_journals();
        let file = self.file();
        let is_left = self.pool.rebuild_status().shards_left > 0;
        if file.draining().next().is_some() || is_left || !self.narrow(false).is_empty() {
            return Ok(true);
        }
        let is_whole = self.is_whole(&file).await;
        self.done.is_whole.fetch_or(is_whole, Ordering::Relaxed);
        // A missing disk may still be given up.
        let mut standings = self.pool.standings().into_values();
        let waits = standings.any(|standing| standing == Standing::Away);
        Ok(waits || !planned.is_empty())
    }

    /// Whether a volume may be reopened for this.
    fn may_reopen(action: &Action) -> bool {
        matches!(
            action,
            Action::MoveState { .. }
                | Action::StateToFaster { .. }
                | Action::RetireMetadata { .. }
                | Action::Forget { .. }
        )
    }

    async fn perform(&self, action: &Action) -> Result<(), String> {
        let was_on = match action {
            Action::MoveShard { segment, index, .. } => self.disk_of(*segment, *index),
            _ => None,
        };
        let disks_before = self.pool.state().disks.len();
        let performed = self.pool.perform(action);
        let outcome = match Self::may_reopen(action) {
            true => self.judge.while_reopening(performed).await,
            false => {
                add(&self.done.begins_and_ends, 1);
                let outcome = performed.await;
                add(&self.done.begins_and_ends, 1);
                outcome
            }
        };
        let disks_after = self.pool.state().disks.len();
        add(
            &self.done.disks_left,
            disks_before.saturating_sub(disks_after) as u64,
        );
        match (action, &outcome) {
            (Action::MoveShard { segment, index, .. }, Outcome::Moved { lost_bytes }) => {
                add(&self.done.shards_moved, 1);
                let is_spread = matches!(action, Action::MoveShard { to: Some(_), .. });
                add(&self.done.shards_spread, u64::from(is_spread));
                self.check_moved(*segment, *index, *lost_bytes, was_on)
                    .await;
            }
            (Action::MoveShard { segment, .. }, Outcome::MoveFailed(error)) => {
                let is_expected = matches!(
                    error,
                    MoveError::NotNow
                        | MoveError::NoTarget
                        | MoveError::Unsealed
                        | MoveError::TooFew(_)
                );
                if !is_expected {
                    self.excuse(&format!("moving a shard of {segment}"), error)?;
                }
            }
            (Action::NoteEmpty { disk }, Outcome::Done) => {
                let is_member = self.pool.table().member(*disk).is_some();
                let in_use = self.judge.disks_in_use();
                let has_shard = in_use.values().any(|disks| disks.contains(disk));
                if is_member && has_shard {
                    return Err(format!("{disk} is noted empty, and has a shard"));
                }
            }
            (_, Outcome::Rewritten { gone, .. }) => {
                add(&self.done.segments_rewritten, *gone as u64);
            }
            _ => tracing::debug!(?action, ?outcome, "a step of the pool"),
        }
        Ok(())
    }

    /// Segments that survive fewer losses than promised: written while disks were missing.
    fn narrow(&self, is_sealed: bool) -> Vec<SegmentId> {
        narrow(
            &self.segments,
            VOLUME,
            self.life.shape.tolerated(),
            is_sealed,
        )
    }

    /// Whether all members are present, and nothing has less protection than promised.
    async fn is_whole(&self, file: &PoolFile) -> bool {
        // With so few disks no more is promised: the next one that joins has nothing yet, and would count.
        let shape = &self.life.shape;
        if shape.tolerated_of(file.data_count()) < shape.tolerated() {
            return false;
        }
        let table = self.pool.table();
        let are_there = file.members.iter().all(|member| table.works(member.id));
        if !are_there || self.fs().is_none_or(|fs| fs.meta().stats().is_degraded()) {
            return false;
        }
        let in_use = self.judge.disks_in_use();
        if in_use.values().flatten().any(|id| !table.works(*id)) {
            return false;
        }
        // A shard of a segment that a crash left without footers was copied unchanged, with silent corruption.
        if self.life.shape.trouble != Trouble::BadDisks {
            return true;
        }
        let unsealed = self.segments.unsealed(VOLUME, &self.pace()).await;
        unsealed.is_ok_and(|segments| segments.is_empty())
    }

    /// An error is allowed only if some disk has trouble.
    fn excuse(&self, what: &str, error: &dyn std::fmt::Display) -> Result<(), String> {
        let text = error.to_string();
        let is_full = text.contains("no space") || text.contains("no room");
        // Disks that a directory's protection needs stay.
        let is_needed = self.life.shape.sets_policies && text.contains("directories of volume");
        let is_sound = self.life.shape.trouble == Trouble::Crashes;
        if is_sound && !is_full && !is_needed && !self.is_closing() {
            return Err(format!("{what}: {text}"));
        }
        Ok(())
    }

    fn is_closing(&self) -> bool {
        self.segments.segment_ids(VOLUME).is_err()
    }

    fn disk_of(&self, segment: SegmentId, index: u8) -> Option<DiskId> {
        let info = self.segments.segment(VOLUME, segment)?;
        info.disks.get(usize::from(index)).copied()
    }

    async fn check_moved(
        &self,
        segment: SegmentId,
        index: u8,
        lost_bytes: u64,
        was_on: Option<DiskId>,
    ) {
        let trouble = self.life.shape.trouble;
        if lost_bytes > 0 && trouble != Trouble::Beyond {
            self.life.fail(format!(
                "moving shard {index} of {segment} gave up {lost_bytes} bytes"
            ));
        }
        if trouble == Trouble::Crashes {
            self.check_footer(segment, index).await;
        }
        if trouble != Trouble::Beyond {
            self.check_rebuilt(segment, index, was_on).await;
        }
    }

    /// A rebuilt shard equals the one on the lost disk.
    async fn check_rebuilt(&self, segment: SegmentId, index: u8, was_on: Option<DiskId>) {
        let state = self.pool.state();
        let mut old = None;
        for disk in &self.had {
            let opened = open_alone(&self.life.shape, disk, &state).await;
            old = old.or(opened.filter(|disk| Some(disk.id()) == was_on));
        }
        let Some(old) = old else { return };
        let new = self.disk_of(segment, index);
        let Some(new) = new.and_then(|id| self.shard_disk(id)) else {
            return;
        };
        let name = ShardName {
            volume: VOLUME,
            segment,
            index,
        };
        let (Some(old), Some(new)) = (footer(&old, name).await, footer(&new, name).await) else {
            return;
        };
        if (old.data_len_bytes, &old.checksums) != (new.data_len_bytes, &new.checksums) {
            self.life.fail(format!(
                "shard {index} of {segment} is not what it was on the disk that is lost"
            ));
        }
    }

    fn shard_disk(&self, id: DiskId) -> Option<Arc<ShardDisk>> {
        self.pool.table().disk(id).cloned()
    }

    /// A moved shard is sealed if others of its segment are: without its footer it cannot be repaired.
    async fn check_footer(&self, segment: SegmentId, index: u8) {
        let Some(info) = self.segments.segment(VOLUME, segment) else {
            return;
        };
        let moved = self.is_sealed(&info, index).await;
        if moved != Some(false) {
            return;
        }
        for other in (0..info.code.total()).filter(|other| *other != index) {
            if self.is_sealed(&info, other).await == Some(true) {
                self.life.fail(format!(
                    "shard {index} of {segment} lost its footer when it moved"
                ));
                return;
            }
        }
    }

    /// Whether a shard has its footer; `None` if it does not exist, for example because its segment was removed.
    async fn is_sealed(&self, info: &SegmentInfo, index: u8) -> Option<bool> {
        let disk = self.shard_disk(*info.disks.get(usize::from(index))?)?;
        let name = ShardName {
            volume: VOLUME,
            segment: info.id,
            index,
        };
        let shard = disk.open_shard(name).await.ok()?;
        Some(shard.read_footer().await.ok()?.is_some())
    }

    /// An operator removes a drained disk, as soon as the pool allows it.
    async fn take_out(&self, id: DiskId) {
        if self.is_over() || self.is_closing() {
            return;
        }
        let id = id.to_string();
        let left = self.pool.leave(&id, Force::No);
        let left: Result<_, ChangeFailure> = self.judge.while_reopening(left).await;
        match left {
            Ok(_) => {
                add(&self.done.disks_left, 1);
                self.pool.after_a_change().await;
            }
            Err(error) => tracing::debug!(%error, "a disk stays in the pool"),
        }
    }

    /// One whole scrub, as a server does it.
    async fn scrub(&self) -> Result<(), String> {
        let pace = self.pace();
        let Ok(mut ids) = self.segments.segment_ids(VOLUME) else {
            return Ok(());
        };
        ids.sort_unstable();
        let mut found = Vec::new();
        for id in ids {
            if self.is_over() {
                return Ok(());
            }
            let scrubbed = self.segments.scrub_segment(VOLUME, id, &pace).await;
            let Ok(scrubbed) = scrubbed else {
                return Ok(());
            };
            add(&self.done.segments_scrubbed, 1);
            self.check_scrubbed(id, &scrubbed)?;
            if self.is_quiet && scrubbed.repaired_bytes == scrubbed.wrong_bytes {
                let again = self.segments.scrub_segment(VOLUME, id, &pace).await;
                if again.as_ref().is_ok_and(|again| again.wrong_bytes > 0) {
                    return Err(format!(
                        "a scrub of {id} repaired {scrubbed:?}, and another finds {again:?}"
                    ));
                }
            }
            if scrubbed.needs_rewrite() {
                found.push(id);
            }
        }
        let Some(fs) = self.fs() else { return Ok(()) };
        match fs.write_anew(found, &pace).await {
            Ok(written) => add(
                &self.done.segments_rewritten,
                written.segments - written.left,
            ),
            Err(_) => return Ok(()),
        }
        self.scrub_records(&pace).await
    }

    fn check_scrubbed(&self, id: SegmentId, scrubbed: &SegmentScrub) -> Result<(), String> {
        let is_wrong = scrubbed.wrong_bytes > 0 || scrubbed.segments_inconsistent > 0;
        if is_wrong && self.life.shape.trouble == Trouble::Crashes {
            return Err(format!("a scrub of {id} finds damage: {scrubbed:?}"));
        }
        Ok(())
    }

    async fn scrub_records(&self, pace: &Pace) -> Result<(), String> {
        let trouble = self.life.shape.trouble;
        // There may be no end of files that are made meanwhile.
        let Some(fs) = self.fs() else { return Ok(()) };
        let ino_last = fs.meta().ino_last();
        let mut after: Option<ExtentAt> = None;
        loop {
            let Ok(step) = fs.scrub_records(after, pace).await else {
                return Ok(());
            };
            let is_sound = !matches!(trouble, Trouble::Errors | Trouble::Beyond);
            if let Some(damaged) = step.damaged.first().filter(|_| is_sound && !self.is_over()) {
                return Err(format!("a scrub finds damage: {damaged:?}"));
            }
            after = step.next.filter(|next| next.ino <= ino_last);
            if after.is_none() || self.is_over() {
                return Ok(());
            }
        }
    }
}

async fn footer(disk: &Arc<ShardDisk>, name: ShardName) -> Option<ShardFooter> {
    let shard = disk.open_shard(name).await.ok()?;
    shard.read_footer().await.ok()?
}

/// Segments that survive fewer losses than `tolerated`, or than their directories ask for if there are enough disks for
/// that.
pub fn narrow(
    segments: &SegmentStore,
    volume: VolumeId,
    tolerated: usize,
    is_sealed: bool,
) -> Vec<SegmentId> {
    let all = segments.segments(volume).into_iter();
    // The object store protects its own contents.
    let narrow = all.filter(|info| {
        let asked = info.protection.and_then(|own| segments.code_for(own).ok());
        let asked = asked.map_or(0, |code| usize::from(code.parity()));
        let is_narrow = usize::from(info.code.parity()) < tolerated.max(asked);
        is_narrow && info.remote.is_none() && (info.sealed || !is_sealed)
    });
    narrow.map(|info| info.id).collect()
}

/// Resolves when the work is done; then calls `done`. The work begins after a number of client operations, with
/// `at_work`.
pub(crate) async fn in_background(
    worker: Worker,
    after_ops: u32,
    at_work: Vec<AtWork>,
    done: impl FnOnce() + Send + 'static,
) {
    worker.life.ops_begun(after_ops).await;
    at_work.iter().for_each(AtWork::arm);
    *worker.done.begun.lock() = Some(match worker.job.map(|job| job.kind) {
        Some(WorkKind::Drain { .. }) => "drain",
        Some(WorkKind::Rebuild { .. }) => "rebuild",
        Some(WorkKind::Scrub) => "scrub",
        Some(WorkKind::Journal) => "journal",
        None => "rest",
    });
    worker.run().await;
    done();
}
