//! The scrub of the pool: everything that is stored, read and compared with its checksums.
//!
//! Owns: when it runs and how fast, where it stands (kept over restarts), what it found.
//! Must not know: how shards and records are checked (`segment` and `fs` do that), how what is kept looks
//! in its file (`scrub_file`), what follows from what was found (`state`), when one begins by itself and when it rests
//! (`timer`).
//!
//! ```text
//!   never, done --start or the timer--> running --------> done
//!                                       |     ^
//!                                     pause  start
//!                                       v     |
//!                                       paused
//! ```
//!
//! A run that the timer began is held while the maintenance window is closed. It is `running` then, and "rests".

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::disk::{Disk, DiskError};
use cairn_base::jobs::{Job, Next, Wake};
use cairn_base::{Ino, SegmentId, VolumeId};
use cairn_formats::scrub_file::{
    Cursor, Damage, SCRUB_FILE_LEN_BYTES_MAX, ScrubStage, ScrubState, decode_scrub_copy,
    encode_scrub,
};
use cairn_formats::text_file;
use cairn_fs::{ExtentAt, Fs, FsError};
use cairn_segment::Pace;
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::pool::{Pool, VolumeService};
use crate::truth::{self, Loaded};

mod report;
mod small_files;
mod state;
mod timer;

pub use report::{DamagedPlace, DamagedPlaces, ScrubProgress};
use state::{Progress, extent_of};

pub const SCRUB_NAME: &str = "scrub";
pub const SCRUB_NAME_NEW: &str = "scrub.new";
/// How often a running scrub writes down where it stands: so much a restart does again.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);
/// A task with nothing to do looks this often whether the pool is still there.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// How often it is looked whether damaged places are still there.
const PRUNE_INTERVAL: Duration = Duration::from_secs(30);
/// How often it is looked whether a scrub is due, and whether the maintenance window is open.
const TIMER_INTERVAL: Duration = Duration::from_secs(1);
/// A volume that cannot be read just now, because it is opened again on other disks for example, is tried
/// again so often before it is left out.
const ATTEMPTS_MAX: u32 = 60;

/// Why a step of the scrub could not be done; it is tried again.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("volume {} is not served", .0.0)]
    NotServed(VolumeId),
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// The scrub of a pool.
pub struct Scrub {
    pace: Pace,
    rate_default: u64,
    state: Mutex<ScrubState>,
    /// Since when it runs, and what was done then: for the speed.
    since: Mutex<Option<(Duration, u64)>>,
    wake: Wake,
    /// Held while it is written down: two at a time would rename each other's half-written files.
    saving: tokio::sync::Mutex<()>,
    /// What the pace had let through when the last step ended: what it did since is of the step under way.
    spent_before: AtomicU64,
    /// Bytes that rebuilds had given up when it began: it finds the files.
    lost_bytes_before: AtomicU64,
    /// Bytes that rebuilds had given up when the last whole scrub began: their files are known.
    lost_bytes_known: AtomicU64,
    /// Reads that had met data damaged beyond repair when the last whole scrub began.
    damaged_reads_before: AtomicU64,
    /// Grows with every scrub that is begun: what is found for an earlier one is of no use.
    run: AtomicU64,
    /// Segments of a volume that a run has still to look at, the next one last.
    todo: Mutex<Todo>,
    /// The volumes that are served here, and since when it is these, by the monotonic clock.
    served: Mutex<(BTreeSet<VolumeId>, Duration)>,
    /// The maintenance window is closed for the run that goes on; changed under the lock of `state`.
    is_resting: AtomicBool,
    /// The pool ends: a run is not held any more. Set under the lock of `state`.
    is_ending: AtomicBool,
}

#[derive(Default)]
struct Todo {
    run: u64,
    volume: VolumeId,
    segments: Vec<SegmentId>,
}

impl Scrub {
    pub fn new(pace: Pace) -> Self {
        Self {
            rate_default: pace.bytes_per_second(),
            pace,
            state: Mutex::default(),
            since: Mutex::default(),
            wake: Wake::default(),
            saving: tokio::sync::Mutex::default(),
            spent_before: AtomicU64::new(0),
            lost_bytes_before: AtomicU64::new(0),
            lost_bytes_known: AtomicU64::new(0),
            damaged_reads_before: AtomicU64::new(0),
            run: AtomicU64::new(0),
            todo: Mutex::default(),
            served: Mutex::default(),
            is_resting: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Begins from the start.
    fn begin(&self, state: &mut ScrubState, rate_bytes_per_second: Option<u64>, now_seconds: i64) {
        state.begin(rate_bytes_per_second, now_seconds);
        self.pace
            .set_bytes_per_second(state.rate_bytes_per_second.unwrap_or(self.rate_default));
        self.run.fetch_add(1, Ordering::AcqRel);
        self.end_step();
        *self.since.lock() = None;
    }

    /// Adds what a step of a scrub found, unless another scrub was begun since: where that stands must not
    /// be taken from the one before.
    fn note(&self, run: u64, change: impl FnOnce(&mut ScrubState)) {
        let mut state = self.state.lock();
        self.end_step();
        if self.run.load(Ordering::Acquire) == run {
            change(&mut state);
        }
    }

    /// What the step under way has done so far.
    fn step_bytes(&self) -> u64 {
        let before = self.spent_before.load(Ordering::Acquire);
        self.pace.spent_bytes().saturating_sub(before)
    }

    /// What the pace lets through from now on is of the next step.
    fn end_step(&self) {
        self.spent_before
            .store(self.pace.spent_bytes(), Ordering::Release);
    }

    fn next_todo(&self, run: u64, volume: VolumeId) -> Option<SegmentId> {
        let todo = self.todo.lock();
        let is_its = (todo.run, todo.volume) == (run, volume);
        is_its.then(|| todo.segments.last().copied()).flatten()
    }

    fn done_todo(&self, run: u64, volume: VolumeId, segment: SegmentId) {
        let mut todo = self.todo.lock();
        let is_its = (todo.run, todo.volume) == (run, volume);
        if is_its && todo.segments.last() == Some(&segment) {
            todo.segments.pop();
        }
    }

    /// Bytes that rebuilds had given up when the last scrub began that read all.
    pub fn lost_bytes_known(&self) -> u64 {
        self.lost_bytes_known.load(Ordering::Acquire)
    }

    /// Places of files that are known to be damaged.
    pub fn damaged(&self) -> u64 {
        let state = self.state.lock();
        state.damages.len() as u64 + state.damages_more
    }

    fn is_running(&self) -> bool {
        self.state.lock().stage == ScrubStage::Running
    }

    fn is_resting(&self) -> bool {
        self.is_resting.load(Ordering::Acquire)
    }

    /// Holds a run, or lets it go on. `state` is locked by the caller.
    fn set_resting(&self, state: &ScrubState, rests: bool) {
        assert!(!rests || state.stage == ScrubStage::Running);
        self.is_resting.store(rests, Ordering::Release);
        // A segment takes a while: it stops in the middle of it.
        self.pace.hold(rests || state.stage == ScrubStage::Paused);
    }

    /// Writes down where it stands; an error for each disk that did not take it.
    async fn write_down(&self, disks: &[Arc<dyn Disk>]) -> Vec<DiskError> {
        let _saving = self.saving.lock().await;
        let bytes = {
            let mut state = self.state.lock();
            state.version += 1;
            Bytes::from(encode_scrub(&state))
        };
        let writes = disks
            .iter()
            .map(|disk| truth::write_file(disk, SCRUB_NAME, SCRUB_NAME_NEW, bytes.clone()));
        let written = join_all(writes).await;
        written.into_iter().filter_map(Result::err).collect()
    }
}

/// Takes up what an earlier run of the program left, and starts the jobs; they end with the pool.
pub async fn tend(pool: &Arc<Pool>) {
    load(pool).await;
    // Before anything is read of one that is to rest.
    timer::look(pool).await;
    let scrub = Job::every("scrub", IDLE_INTERVAL)
        .from_now()
        .woken_by(&pool.scrub.wake);
    pool.start_job(scrub, |pool| async move {
        if !pool.scrub.is_running() {
            return Next::Held("no scrub is under way");
        }
        let weak = Arc::downgrade(&pool);
        drop(pool);
        run(&weak).await;
        Next::AtOnce
    });
    pool.every("scrub-timer", TIMER_INTERVAL, |pool| async move {
        timer::look(&pool).await;
    });
    // Whatever the scrub does meanwhile: it may take weeks, or be paused.
    let has_looked = Arc::new(AtomicBool::new(false));
    pool.every("scrub-damage-list", PRUNE_INTERVAL, move |pool| {
        let has_looked = Arc::clone(&has_looked);
        async move {
            if pool.scrub.damaged() == 0 {
                return;
            }
            let mut is_changed = prune_on_thread(&pool).await;
            let is_served = pool.serving_all().len() == pool.state().volumes.len();
            // A disk that was away when they were found may be back, which takes a start.
            if is_served && !pool.scrub.is_running() && !has_looked.swap(true, Ordering::AcqRel) {
                is_changed |= look_again(&pool).await;
            }
            // A scrub writes down where it stands itself.
            if is_changed && !pool.scrub.is_running() {
                save(&pool).await;
            }
        }
    });
}

/// As [`prune`], which reads metadata, perhaps for long.
async fn prune_on_thread(pool: &Arc<Pool>) -> bool {
    let (tell, told) = tokio::sync::oneshot::channel();
    let pruned = Arc::clone(pool);
    let work = async move {
        // Nobody listens any more where the pool ends.
        let _ = tell.send(prune(&pruned));
    };
    pool.env
        .spawner
        .spawn_thread("damaged places", Box::pin(work));
    told.await.unwrap_or(false)
}

/// Forgets damaged places that are not damaged any more. True if there were some.
async fn look_again(pool: &Pool) -> bool {
    let damages = pool.scrub.state.lock().damages.clone();
    let mut healed = BTreeSet::new();
    for damage in &damages {
        if pool.is_stopping() || pool.scrub.is_running() {
            break;
        }
        if let Some(VolumeService::Serving(fs)) = pool.service(damage.volume)
            && matches!(fs.is_still_damaged(&extent_of(damage)).await, Ok(false))
        {
            healed.insert(place_of(damage));
        }
    }
    if !healed.is_empty() {
        tracing::info!(
            places = healed.len(),
            "places that the last scrub could not read can be read again"
        );
    }
    forget(pool, &healed)
}

/// What tells one damaged place from others: volume, inode, bytes, segment.
type PlaceKey = (VolumeId, u64, (u64, u64), u64);

fn place_of(damage: &Damage) -> PlaceKey {
    let bytes = (damage.start, damage.end);
    (damage.volume, damage.inode, bytes, damage.segment)
}

/// True if there was anything to forget.
fn forget(pool: &Pool, gone: &BTreeSet<PlaceKey>) -> bool {
    let mut state = pool.scrub.state.lock();
    let before = state.damages.len();
    state
        .damages
        .retain(|damage| !gone.contains(&place_of(damage)));
    state.damages.len() < before
}

/// Forgets damaged places that are gone: their file was deleted, or the bytes were overwritten. True if there were some.
fn prune(pool: &Pool) -> bool {
    let damages = pool.scrub.state.lock().damages.clone();
    let services = pool.services();
    if pool.is_stopping() {
        // The volumes are gone, not what is damaged in them.
        return false;
    }
    let is_gone = |damage: &Damage| match services.get(&damage.volume) {
        // What cannot be asked now may be there still.
        Some(VolumeService::Serving(fs)) => !fs.is_still_there(&extent_of(damage)).unwrap_or(true),
        Some(VolumeService::Failed(_)) => false,
        None => true,
    };
    let gone = damages.iter().filter(|damage| is_gone(damage));
    forget(pool, &gone.map(place_of).collect())
}

/// The scrub file of a disk, if there is one.
async fn read_state(disk: &Arc<dyn Disk>) -> Result<Option<Loaded<ScrubState>>, DiskError> {
    let copies = truth::read_copies(disk, SCRUB_NAME, SCRUB_FILE_LEN_BYTES_MAX).await?;
    Ok(copies.map(|copies| {
        let copies = copies?.map(|copy| copy.and_then(|bytes| decode_scrub_copy(&bytes)));
        text_file::pick(copies, |state| state.version)
    }))
}

async fn load(pool: &Pool) {
    let pool_id = pool.state().pool;
    let mut newest: Option<ScrubState> = None;
    for disk in pool.disks() {
        let Ok(Some(read)) = read_state(disk.disk()).await else {
            continue;
        };
        match read.map(|read| read.value) {
            Ok(state) if state.pool == pool_id => {
                if newest
                    .as_ref()
                    .is_none_or(|newest| newest.version < state.version)
                {
                    newest = Some(state);
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(disk = disk.label(), %error, "where the last scrub stood is not known from this disk");
            }
        }
    }
    let mut state = newest.unwrap_or_default();
    state.pool = pool_id;
    let rate = state
        .rate_bytes_per_second
        .unwrap_or(pool.scrub.rate_default);
    pool.scrub.pace.set_bytes_per_second(rate);
    *pool.scrub.state.lock() = state;
}

/// Writes down where the scrub stands, on all disks that take it.
async fn save(pool: &Pool) {
    let disks: Vec<Arc<dyn Disk>> = pool
        .disks()
        .iter()
        .filter(|disk| !disk.health().failed)
        .map(|disk| Arc::clone(disk.disk()))
        .collect();
    for error in pool.scrub.write_down(&disks).await {
        tracing::warn!(%error, "where the scrub stands is not written down");
    }
}

/// One run, until it is done, paused, or the pool is gone.
async fn run(weak: &Weak<Pool>) {
    let mut saved_at = Duration::ZERO;
    let mut attempts = 0;
    let mut small_files_of = None;
    loop {
        // Not held over the waiting of a slow scrub: the pool would not end before it.
        let Some(pool) = weak.upgrade() else { return };
        if pool.is_stopping() || !pool.scrub.is_running() {
            return;
        }
        if pool.scrub.is_resting() {
            let clock = Arc::clone(&pool.env.clock);
            drop(pool);
            clock.sleep(TIMER_INTERVAL).await;
            continue;
        }
        let now = pool.env.clock.monotonic();
        {
            let done_bytes = pool.scrub.state.lock().done_bytes;
            pool.scrub.since.lock().get_or_insert((now, done_bytes));
        }
        let this_run = pool.scrub.run.load(Ordering::Acquire);
        if small_files_of.replace(this_run) != Some(this_run) {
            small_files::check(&pool).await;
        }
        let step = step(&pool).await;
        match step {
            Ok(Step::Done) => attempts = 0,
            Ok(Step::End(run)) => {
                finish(&pool, run).await;
                return;
            }
            Err(error) => {
                attempts += 1;
                pool.scrub.end_step();
                pool.scrub.state.lock().errors += 1;
                tracing::warn!(%error, "a step of the scrub failed");
                if attempts >= ATTEMPTS_MAX {
                    leave_volume(&pool);
                    attempts = 0;
                }
                pool.env.clock.sleep(IDLE_INTERVAL).await;
            }
        }
        if !pool.scrub.is_running() {
            *pool.scrub.since.lock() = None;
            save(&pool).await;
            return;
        }
        let now = pool.env.clock.monotonic();
        if now.saturating_sub(saved_at) >= SAVE_INTERVAL {
            saved_at = now;
            save(&pool).await;
        }
    }
}

async fn finish(pool: &Pool, run: u64) {
    // A pool that stops has no volumes any more; that is not the end of the scrub.
    if pool.is_stopping() {
        return;
    }
    {
        let mut state = pool.scrub.state.lock();
        // Paused in the last moment: the next start finds nothing left to do. Or begun anew: that is not the end.
        let is_its = pool.scrub.run.load(Ordering::Acquire) == run;
        if state.stage == ScrubStage::Running && is_its {
            state.stage = ScrubStage::Done;
            pool.scrub.set_resting(&state, false);
            state.finished_seconds = pool.env.clock.now().seconds;
            if state.errors == 0 {
                let lost_bytes = pool.scrub.lost_bytes_before.load(Ordering::Acquire);
                pool.scrub
                    .lost_bytes_known
                    .store(lost_bytes, Ordering::Release);
                let damaged_reads = pool.scrub.damaged_reads_before.load(Ordering::Acquire);
                pool.store.forget_damaged_places(damaged_reads);
            }
            tracing::info!(
                shards = state.shards,
                records = state.records,
                repaired_bytes = state.repaired_bytes,
                damaged = state.damages.len() as u64 + state.damages_more,
                "scrub done"
            );
        }
    }
    *pool.scrub.since.lock() = None;
    save(pool).await;
}

fn leave_volume(pool: &Pool) {
    let mut state = pool.scrub.state.lock();
    if let Some(cursor) = state.cursor.take() {
        state.volumes_done.push(cursor.volume);
        state.rewrites.clear();
    }
}

enum Step {
    Done,
    /// Nothing is left of this run.
    End(u64),
}

/// One segment, or a few hundred records.
async fn step(pool: &Pool) -> Result<Step, StepError> {
    let scrub = &pool.scrub;
    let (run, placed) = place(pool)?;
    let Some((mut cursor, fs)) = placed else {
        return Ok(Step::End(run));
    };
    let volume = cursor.volume;
    if let Some(after) = cursor.records {
        let at = ExtentAt {
            ino: Ino(after.0),
            end: after.1,
        };
        let after_place = after;
        let after = (at != ExtentAt::default()).then_some(at);
        // Of files that are made meanwhile there may be no end.
        let inode_last = *cursor
            .inode_last
            .get_or_insert_with(|| fs.meta().ino_last().0);
        let found = fs.scrub_records(after, &scrub.pace).await?;
        if found.unreachable > 0 {
            tracing::warn!(
                volume = fs.name(),
                extents = found.unreachable,
                "scrub cannot check data on disks that do not answer; bring them back, then `cairn scrub start` checks it"
            );
        }
        let next = found.next.filter(|next| next.ino.0 <= inode_last);
        scrub.note(run, |state| {
            state.forget_damages(volume, after_place, next.map(|next| (next.ino.0, next.end)));
            state.records += found.records;
            state.done_bytes += found.record_bytes;
            // Not damage: a scrub with errors has not read all, and says so.
            state.errors += found.unreachable;
            for damaged in found.damaged {
                tracing::error!(
                    volume = fs.name(),
                    inode = damaged.at.ino.0,
                    start = damaged.start,
                    end = damaged.at.end,
                    detail = damaged.detail,
                    "scrub found data that cannot be repaired"
                );
                state.add_damage(volume, damaged);
            }
            match next {
                Some(next) => {
                    cursor.records = Some((next.ino.0, next.end));
                    state.cursor = Some(cursor);
                }
                None => {
                    state.cursor = None;
                    state.volumes_done.push(volume);
                }
            }
        });
        return Ok(Step::Done);
    }
    // A volume that is closing has no segments to look at; it is tried again.
    let closing = |_| FsError::Fenced;
    if scrub.next_todo(run, volume).is_none() {
        let mut segments = pool.store.segment_ids(volume).map_err(closing)?;
        segments.sort_unstable_by(|left, right| right.cmp(left));
        let newest = segments.first().map_or(0, |id| id.0);
        let last = *cursor.segment_last.get_or_insert(newest);
        segments.retain(|id| id.0 > cursor.segment && id.0 <= last);
        *scrub.todo.lock() = Todo {
            run,
            volume,
            segments,
        };
    }
    let Some(segment) = scrub.next_todo(run, volume) else {
        write_anew(pool, &fs, run).await?;
        cursor.records = Some((0, 0));
        scrub.note(run, |state| {
            state.rewrites.clear();
            state.cursor = Some(cursor);
        });
        return Ok(Step::Done);
    };
    let info = pool.store.segment(volume, segment);
    let scrubbed = pool.store.scrub_segment(volume, segment, &scrub.pace);
    let scrubbed = scrubbed.await.map_err(closing)?;
    scrub.done_todo(run, volume, segment);
    scrub.note(run, |state| {
        if scrubbed.needs_rewrite() {
            state.add_rewrite(segment);
        }
        state.add_segment(scrubbed);
        let bytes = info.map_or(0, |info| {
            info.shard_len_bytes * u64::from(info.code.total())
        });
        state.done_bytes += bytes;
        cursor.segment = segment.0;
        state.cursor = Some(cursor);
    });
    Ok(Step::Done)
}

/// Writes the records anew of segments that this run could not repair otherwise.
async fn write_anew(pool: &Pool, fs: &Fs, run: u64) -> Result<(), FsError> {
    let mut found = Vec::new();
    pool.scrub.note(run, |state| {
        found.extend(state.rewrites.iter().map(|segment| SegmentId(*segment)));
    });
    let written = fs.write_anew(found, &pool.scrub.pace).await?;
    pool.scrub.state.lock().errors += written.errors;
    if written.segments > 0 {
        tracing::info!(
            volume = fs.name(),
            segments = written.segments,
            left = written.left,
            "segments that could not be repaired were rewritten"
        );
    }
    Ok(())
}

/// Where to go on: in the volume that was begun, else in the next one that is served. One that is only read counts as one that
/// is not served: nothing of it can be repaired.
fn place(pool: &Pool) -> Result<(u64, Option<(Cursor, Fs)>), StepError> {
    let services = pool.services();
    let is_served = |service: &VolumeService| match service {
        VolumeService::Serving(fs) => fs.read_only().is_none(),
        VolumeService::Failed(_) => false,
    };
    let volumes = services
        .iter()
        .map(|(id, service)| (*id, is_served(service)))
        .collect();
    let mut state = pool.scrub.state.lock();
    let run = pool.scrub.run.load(Ordering::Acquire);
    let Some(cursor) = state.go_on(&volumes) else {
        return Ok((run, None));
    };
    match services.get(&cursor.volume) {
        Some(service @ VolumeService::Serving(fs)) if is_served(service) => {
            Ok((run, Some((cursor, fs.clone()))))
        }
        _ => Err(StepError::NotServed(cursor.volume)),
    }
}

impl Pool {
    /// Starts a scrub, or goes on with one.
    pub async fn scrub_start(&self, rate_bytes_per_second: Option<u64>, restart: bool) {
        {
            let now = self.env.clock.now().seconds;
            let mut state = self.scrub.state.lock();
            if let Some(rate) = rate_bytes_per_second {
                state.rate_bytes_per_second = Some(rate);
                self.scrub.pace.set_bytes_per_second(rate);
            }
            // By hand, whatever began it: the window does not count any more.
            state.by_schedule = false;
            match state.stage {
                ScrubStage::Running if !restart => {}
                ScrubStage::Paused if !restart => {
                    state.stage = ScrubStage::Running;
                    // It goes on in the middle of a step.
                    let done_bytes = state.done_bytes + self.scrub.step_bytes();
                    *self.scrub.since.lock() = Some((self.env.clock.monotonic(), done_bytes));
                }
                _ => self.scrub_begin(&mut state, rate_bytes_per_second, now),
            }
            self.scrub.set_resting(&state, false);
        }
        save(self).await;
        self.scrub.wake.wake();
    }

    /// Begins from the start, with what is known to be damaged by now counted apart.
    fn scrub_begin(&self, state: &mut ScrubState, rate_bytes_per_second: Option<u64>, now: i64) {
        self.scrub.begin(state, rate_bytes_per_second, now);
        let lost_bytes = self.rebuild_lost_bytes();
        self.scrub
            .lost_bytes_before
            .store(lost_bytes, Ordering::Release);
        let damaged_reads = self.store.stats().damaged_reads;
        self.scrub
            .damaged_reads_before
            .store(damaged_reads, Ordering::Release);
    }

    /// Checks and repairs the identity and the pool file of each disk, as a scrub does when it begins.
    pub async fn check_small_files(&self) {
        small_files::check(self).await;
    }

    /// Whether there was one to pause.
    pub async fn scrub_pause(&self) -> bool {
        {
            let mut state = self.scrub.state.lock();
            match state.stage {
                ScrubStage::Running => state.stage = ScrubStage::Paused,
                ScrubStage::Paused => return true,
                ScrubStage::Never | ScrubStage::Done => return false,
            }
            self.scrub.set_resting(&state, false);
        }
        *self.scrub.since.lock() = None;
        save(self).await;
        true
    }

    /// Writes down where a running scrub stands, at the end of the pool.
    pub async fn scrub_stop(&self) {
        if self.scrub.is_running() {
            save(self).await;
        }
        let _state = self.scrub.state.lock();
        self.scrub.is_ending.store(true, Ordering::Release);
        // The pool does not end before the step that is held.
        self.scrub.pace.hold(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_scrub_before_moves_nothing() {
        let clock = cairn_testkit::TestWorld::new(1).env.clock;
        let scrub = Scrub::new(Pace::new(clock, 0));
        scrub.begin(&mut scrub.state.lock(), None, 100);
        let run = scrub.run.load(Ordering::Acquire);
        scrub.note(run, |state| state.shards = 3);
        assert_eq!(scrub.state.lock().shards, 3);
        scrub.begin(&mut scrub.state.lock(), None, 200);
        scrub.note(run, |state| {
            state.cursor = Some(Cursor {
                volume: VolumeId(1),
                segment: 9,
                ..Cursor::default()
            });
        });
        assert_eq!(
            scrub.state.lock().cursor,
            None,
            "it would skip nine segments"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_is_written_down_by_one_at_a_time() {
        const WRITINGS: u64 = 100;
        let memory = cairn_testkit::MemDisk::new("disk", 64 << 20);
        memory.yield_at_random(7, 8);
        let disk: Arc<dyn Disk> = memory;
        let clock = cairn_testkit::TestWorld::new(1).env.clock;
        let scrub = Arc::new(Scrub::new(Pace::new(clock, 0)));
        let writers = [(); 2].map(|()| {
            let (scrub, disks) = (Arc::clone(&scrub), [Arc::clone(&disk)]);
            tokio::spawn(async move {
                for _ in 0..WRITINGS {
                    assert_eq!(scrub.write_down(&disks).await, []);
                }
            })
        });
        for writer in writers {
            writer.await.unwrap();
        }
        let read = read_state(&disk).await.unwrap().unwrap().unwrap();
        assert_eq!((read.value.version, read.bad), (2 * WRITINGS, None));
    }

    /// A list that was made for the run before is not gone on with.
    #[test]
    fn what_is_to_be_looked_at_is_of_one_run() {
        let clock = cairn_testkit::TestWorld::new(1).env.clock;
        let scrub = Scrub::new(Pace::new(clock, 0));
        *scrub.todo.lock() = Todo {
            run: 1,
            volume: VolumeId(4),
            segments: vec![SegmentId(8), SegmentId(7)],
        };
        assert_eq!(scrub.next_todo(2, VolumeId(4)), None);
        assert_eq!(scrub.next_todo(1, VolumeId(5)), None);
        assert_eq!(scrub.next_todo(1, VolumeId(4)), Some(SegmentId(7)));
        scrub.done_todo(2, VolumeId(4), SegmentId(7));
        assert_eq!(scrub.next_todo(1, VolumeId(4)), Some(SegmentId(7)));
        scrub.done_todo(1, VolumeId(4), SegmentId(7));
        assert_eq!(scrub.next_todo(1, VolumeId(4)), Some(SegmentId(8)));
    }
}
