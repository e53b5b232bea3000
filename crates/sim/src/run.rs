//! Runs a scenario: life after life, and the judgement between them.
//!
//! Owns: the order of a life, when the power goes, what counts as a failure.
//! Must not know: how clients choose, what may survive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_segment::SegmentStore;
use cairn_testkit::{Crash, MemDisk, Rng};
use parking_lot::Mutex;

use crate::check;
use crate::client::{self, Client};
use crate::exec::{Executor, Stopped, Trace};
use crate::faults::{self, Fault, FaultKind, Fired};
use crate::model::{Judged, Model};
use crate::pool::{self, Disks, Job, PoolFile, SharedFile};
use crate::scenario::{End, Life, Scenario, Shape, Trouble, WorkKind};
use crate::tree::{Found, FoundKind};
use crate::work::{self, Worker};
use crate::world::{VOLUME, World, format_disks, read_everything};

/// Steps of one life; more is a loop without end.
const STEPS_MAX: u64 = 3_000_000;
/// Time that a life takes beside its pauses, at most.
const LIFE_TIME_MAX: Duration = Duration::from_secs(4 * 3600);

/// Scrubs until nothing was left unrepaired, and once more, at most.
const SCRUBS_MAX: u32 = 20;
/// Longer than the operations of disks take that a read makes, one after the other.
const READ_TIME_MAX: Duration = Duration::from_secs(400);
/// What the volume says of its space must be right in one of so many looks, so far apart.
const SPACE_LOOKS_MAX: u32 = 5;
const SPACE_LOOK_PAUSE: Duration = Duration::from_millis(300);
/// Sets of disks that are taken away after the last life, at most.
const SETS_MAX: usize = 15;
/// Work in the background is waited for so long, and looked at so often.
const WORK_WAIT_MAX: Duration = Duration::from_secs(600);
const WORK_LOOK_PAUSE: Duration = Duration::from_millis(200);
/// After so much time without clients everything that is garbage is gone.
const IDLE_SECONDS_ENOUGH: u64 = 130;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// Something acknowledged is lost, or something is wrong; the text says what, and in which life.
    Failed(String),
}

impl Verdict {
    pub fn is_failed(&self) -> bool {
        matches!(self, Verdict::Failed(_))
    }
}

/// What a run saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub steps: u64,
    pub ops: u64,
    pub ops_refused: u64,
    pub crashes: u64,
    /// Starts that were refused, where that is allowed.
    pub refused_starts: u64,
    /// Checks of everything after a start, with all disks and with some taken away.
    pub checks: u64,
    pub checks_without_disks: u64,
    /// Those of them that were of all sets of disks, one after the other.
    pub checks_of_all_sets: u64,
    pub verified_bytes: u64,
    /// Changes and writes that were not answered and did not survive.
    pub lost_changes: u64,
    pub lost_writes: u64,
    pub silent_faults: u64,
    /// Times that each kind of fault struck.
    pub faults_fired: BTreeMap<&'static str, u64>,
    pub gc_segments_removed: u64,
    pub gc_relocated_bytes: u64,
    pub repairs: u64,
    /// Work in the background: shards that got to another disk, segments written anew because theirs could not,
    /// disks that left the pool, segments scrubbed.
    pub shards_moved: u64,
    pub segments_rewritten: u64,
    pub disks_left: u64,
    pub segments_scrubbed: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.steps += other.steps;
        self.ops += other.ops;
        self.ops_refused += other.ops_refused;
        self.crashes += other.crashes;
        self.refused_starts += other.refused_starts;
        self.checks += other.checks;
        self.checks_without_disks += other.checks_without_disks;
        self.checks_of_all_sets += other.checks_of_all_sets;
        self.verified_bytes += other.verified_bytes;
        self.lost_changes += other.lost_changes;
        self.lost_writes += other.lost_writes;
        self.silent_faults += other.silent_faults;
        for (kind, count) in &other.faults_fired {
            *self.faults_fired.entry(kind).or_default() += count;
        }
        self.gc_segments_removed += other.gc_segments_removed;
        self.gc_relocated_bytes += other.gc_relocated_bytes;
        self.repairs += other.repairs;
        self.shards_moved += other.shards_moved;
        self.segments_rewritten += other.segments_rewritten;
        self.disks_left += other.disks_left;
        self.segments_scrubbed += other.segments_scrubbed;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub verdict: Verdict,
    /// Hash of every step and every operation of a disk, in order.
    pub trace: u64,
    pub counts: Counts,
}

/// What outlives a life.
struct Pool {
    shape: Shape,
    /// All that ever were, by number.
    disks: Vec<Arc<MemDisk>>,
    file: SharedFile,
    /// Members that are gone.
    lost: BTreeSet<usize>,
    /// Those that were, or had the trouble, since everything was known to have its full protection.
    burdened: BTreeSet<usize>,
    /// Whether any life had work in the background.
    has_worked: bool,
    model: Arc<Mutex<Model>>,
    trace: Trace,
    verifiers: Arc<Mutex<Vec<[u8; 8]>>>,
    counts: Counts,
    fired: Fired,
    rng: Rng,
}

/// Runs a scenario to its end or to the first failure.
pub fn run(scenario: &Scenario) -> Report {
    let shape = scenario.shape.clone();
    let disks = (0..shape.disk_count)
        .map(|index| MemDisk::new(format!("disk{index}"), shape.disk_mib << 20))
        .collect();
    let mut pool = Pool {
        file: Arc::new(Mutex::new(PoolFile::new(shape.disk_count))),
        lost: BTreeSet::new(),
        burdened: match shape.trouble {
            Trouble::Beyond => BTreeSet::new(),
            _ => shape.bad_disks.iter().copied().collect(),
        },
        has_worked: false,
        shape,
        disks,
        model: Arc::new(Mutex::new(Model::new())),
        trace: Trace::default(),
        verifiers: Arc::default(),
        counts: Counts::default(),
        fired: Fired::default(),
        rng: Rng::new(scenario.seed),
    };
    let mut verdict = Verdict::Passed;
    let mut was_made = true;
    let last = Life {
        op_count: 0,
        pause_ms_max: 0,
        faults: Vec::new(),
        idle_seconds: 0,
        end: End::Close,
        without: Vec::new(),
        work: None,
    };
    let lives = scenario.lives.iter().chain(std::iter::once(&last));
    for (index, life) in lives.enumerate() {
        let is_last = index == scenario.lives.len();
        match pool.live(index, life, is_last) {
            // The volume could not be made: there is nothing to lose.
            Ok(Start::Refused) if index == 0 => {
                was_made = false;
                break;
            }
            Ok(_) => {}
            Err(error) => {
                verdict = Verdict::Failed(format!("life {index}: {error}"));
                break;
            }
        }
    }
    if was_made
        && scenario.has_all_sets()
        && verdict == Verdict::Passed
        && let Err(error) = pool.check_all_sets()
    {
        verdict = Verdict::Failed(format!("after the last life: {error}"));
    }
    pool.counts.faults_fired = pool.fired.counts();
    Report {
        verdict,
        trace: pool.trace.hash(),
        counts: pool.counts,
    }
}

/// How a life began.
enum Start {
    Served,
    Refused,
}

/// How far the task that drives a life has come.
#[derive(Default)]
struct Progress {
    has_started: AtomicBool,
    is_done: AtomicBool,
    was_closed: AtomicBool,
    refused_start: Mutex<Option<String>>,
    verified_bytes: AtomicU64,
    lost_changes: AtomicU64,
    lost_writes: AtomicU64,
    checks: AtomicU64,
    fs: Mutex<Option<World>>,
    work: Arc<work::Done>,
    is_work_done: AtomicBool,
}

impl Progress {
    /// Whether the metadata has changes that a crash could take away.
    fn has_undurable_changes(&self) -> bool {
        let world = self.fs.lock();
        world.as_ref().is_some_and(|world| {
            let meta = world.fs.meta();
            !meta.is_durable(meta.last_ticket())
        })
    }
}

impl Pool {
    /// Fails with what is wrong. The last one has no clients: after it everything is looked at once more.
    fn live(&mut self, index: usize, life: &Life, is_last: bool) -> Result<Start, String> {
        let is_first = index == 0;
        let seed = self.rng.u64();
        // After the last crash, too.
        let is_wanted = !life.without.is_empty() || (is_last && self.shape.promises_losses());
        if !is_first
            && is_wanted
            && let Some(gone) = self.gone_set(&life.without, seed)
        {
            self.check_without(&gone, seed)?;
        }
        let job = self.begin_job(life, is_first);
        let mut exec = Executor::new(
            seed,
            self.shape.picking,
            self.shape.has_threads,
            self.trace.clone(),
        );
        if is_first {
            self.format(&mut exec)?;
        }
        let shared = Arc::new(client::Life {
            model: self.model.clone(),
            shape: self.shape.clone(),
            failure: Mutex::default(),
            ops_begun: AtomicU32::new(0),
            ops_refused: AtomicU64::new(0),
            clients_left: AtomicU32::new(self.shape.client_count as u32),
            waiting: Mutex::default(),
        });
        let progress = Arc::new(Progress::default());
        let removals = self.arm(life, &exec);
        let disks = Disks::new(&self.file.lock(), &self.disks, &self.lost);
        let spare_index = self.disks.len() - 1;
        self.has_worked |= job.is_some();
        let life_has_work = self.has_worked;
        let driver = Driver {
            env: exec.env.clone(),
            disks,
            file: self.file.clone(),
            lost: self.lost.clone(),
            is_burdened: !self.burdened.is_empty() && life_has_work,
            job,
            // The newest one is blank, if there is one that is no member yet.
            spare: job
                .filter(|_| !self.file.lock().has(spare_index))
                .map(|_| (spare_index, self.disks[spare_index].clone())),
            had: self.had(),
            at_work: faults::at_work(&self.disks, &life.faults, &self.fired),
            life: life.clone(),
            shared: shared.clone(),
            progress: progress.clone(),
            verifiers: self.verifiers.clone(),
            is_first,
            rng: Rng::new(self.rng.u64()),
        };
        exec.env.spawner.spawn("driver", Box::pin(driver.run()));
        let at = PowerOff {
            end: life.end,
            is_first,
            removals,
            // A scrub moves nothing.
            after_move_steps: job
                .filter(|job| job.kind != WorkKind::Scrub)
                .and_then(|_| life.work?.power_off_after),
        };
        let stopped = run_to_end(&mut exec, &at, &shared, &progress);
        let failure = shared.failure.lock().clone();
        self.note(&exec, &shared, &progress);
        let was_closed = progress.was_closed.load(Ordering::Relaxed);
        // First the power, then the tasks: nothing that runs when they are dropped reaches a disk.
        let mode = match life.end {
            End::Crash { keep, .. } => keep.mode(),
            End::Close => Crash::LoseUnsynced,
        };
        self.counts.crashes += u64::from(!was_closed);
        let seed = self.rng.u64();
        let disks = self.disks.iter().zip(0..);
        self.disks = disks
            .map(|(disk, index)| disk.crash(mode, seed ^ index))
            .collect();
        drop(progress.fs.lock().take());
        drop(exec);
        if let Some(Job {
            kind: WorkKind::Rebuild {
                comes_back: true, ..
            },
            disk: Some(disk),
        }) = job
        {
            self.lost.remove(&disk);
        }
        let file = self.file.lock().clone();
        self.lost.retain(|index| file.has(*index));
        if progress.work.is_whole.load(Ordering::Relaxed) {
            self.burdened.clear();
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        match stopped {
            Stopped::Done => {}
            Stopped::Stuck => return Err("nothing goes on: it waits for ever".to_owned()),
            Stopped::StepLimit => return Err("steps without end".to_owned()),
            Stopped::Panicked(text) => return Err(format!("a panic in {text}")),
        }
        if let Some(why) = progress.refused_start.lock().take() {
            self.allow_refused_start(&why, life)?;
            return Ok(Start::Refused);
        }
        if was_closed {
            self.model.lock().everything_is_durable();
        }
        Ok(Start::Served)
    }

    /// Copies of the disks that are lost and had no trouble.
    fn had(&self) -> Vec<Arc<MemDisk>> {
        let sound = |index: &&usize| !self.shape.bad_disks.contains(index);
        let lost = self.lost.iter().filter(sound);
        lost.map(|index| MemDisk::from_snapshot(&self.disks[*index].snapshot()))
            .collect()
    }

    /// M disks that may be taken away now.
    fn gone_set(&self, wanted: &[usize], seed: u64) -> Option<BTreeSet<usize>> {
        let file = self.file.lock();
        let mut rng = Rng::new(seed);
        let (lost, burdened) = (&self.lost, &self.burdened);
        pool::gone_set(&self.shape, &file, lost, burdened, wanted, &mut rng)
    }

    /// What is to be done beside the clients of a life: a disk may be gone for it, another one be new.
    fn begin_job(&mut self, life: &Life, is_first: bool) -> Option<Job> {
        let work = life.work.as_ref()?;
        // The pool is made with all its disks.
        if is_first && matches!(work.kind, WorkKind::Rebuild { .. }) {
            return None;
        }
        let file = self.file.lock().clone();
        let job = pool::job_of(work, &self.shape, &file, &self.lost, &self.burdened)?;
        let has_spare = match job.kind {
            WorkKind::Drain { has_spare } | WorkKind::Rebuild { has_spare, .. } => has_spare,
            WorkKind::Scrub => false,
        };
        match (job.kind, job.disk) {
            (WorkKind::Rebuild { .. }, Some(disk)) => {
                self.lost.insert(disk);
                self.burdened.insert(disk);
            }
            // What was written while others were missing may move from it to one of those.
            (WorkKind::Drain { .. }, Some(disk)) if !self.burdened.is_empty() => {
                self.burdened.insert(disk);
            }
            _ => {}
        }
        if has_spare {
            let label = format!("disk{}", self.disks.len());
            self.disks
                .push(MemDisk::new(label, self.shape.disk_mib << 20));
        }
        Some(job)
    }

    fn format(&self, exec: &mut Executor) -> Result<(), String> {
        let done = Arc::new(Mutex::new(None));
        let result = done.clone();
        let disks = self.disks[..self.shape.disk_count].to_vec();
        let task = async move {
            let formatted = format_disks(&disks).await;
            *result.lock() = Some(formatted);
        };
        exec.env.spawner.spawn("format", Box::pin(task));
        exec.run(STEPS_MAX, LIFE_TIME_MAX, |_| done.lock().is_some());
        let result = done.lock().take();
        result.unwrap_or_else(|| Err("formatting does not end".to_owned()))
    }

    /// Returns the count of shards that are deleted.
    fn arm(&mut self, life: &Life, exec: &Executor) -> Arc<AtomicU64> {
        let only_data = self.shape.trouble == Trouble::Beyond;
        let removals = Arc::new(AtomicU64::new(0));
        for (index, disk) in self.disks.iter().enumerate() {
            let arming = faults::Arming {
                index,
                only_data,
                is_paced: self.shape.is_paced,
                is_uneven: self.shape.is_uneven,
                removals: removals.clone(),
                fired: self.fired.clone(),
                seed: self.rng.u64(),
                clock: exec.clock.clone(),
                trace: self.trace.clone(),
            };
            faults::arm(disk, &life.faults, arming);
        }
        removals
    }

    fn note(&mut self, exec: &Executor, shared: &client::Life, progress: &Progress) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.counts.steps += exec.steps;
        self.counts.ops += u64::from(shared.ops_begun.load(Ordering::Relaxed));
        self.counts.ops_refused += get(&shared.ops_refused);
        self.counts.verified_bytes += get(&progress.verified_bytes);
        self.counts.lost_changes += get(&progress.lost_changes);
        self.counts.lost_writes += get(&progress.lost_writes);
        self.counts.checks += get(&progress.checks);
        self.counts.shards_moved += get(&progress.work.shards_moved);
        self.counts.segments_rewritten += get(&progress.work.segments_rewritten);
        self.counts.disks_left += get(&progress.work.disks_left);
        self.counts.segments_scrubbed += get(&progress.work.segments_scrubbed);
        self.counts.silent_faults += self
            .disks
            .iter()
            .map(|disk| disk.silent_faults())
            .sum::<u64>();
        if let Some(world) = &*progress.fs.lock() {
            let stats = world.fs.stats();
            self.counts.gc_segments_removed += stats.gc_segments_removed;
            self.counts.gc_relocated_bytes += stats.gc_relocated_bytes;
            self.counts.repairs += world.segments.stats().repairs;
        }
    }

    /// A start that failed: only where a disk fails just then, or more is wrong than the engine promises
    /// to survive.
    fn allow_refused_start(&mut self, why: &str, life: &Life) -> Result<(), String> {
        self.counts.refused_starts += 1;
        match self.shape.trouble {
            Trouble::Beyond => Ok(()),
            Trouble::Errors | Trouble::BadDisks if !life.faults.is_empty() => Ok(()),
            Trouble::Full if why.contains("no space") => Ok(()),
            _ => Err(format!("the start was refused: {why}")),
        }
    }

    /// What is there without any M of the disks that may be lost.
    fn check_all_sets(&mut self) -> Result<(), String> {
        let sets = {
            let file = self.file.lock();
            pool::all_gone_sets(&self.shape, &file, &self.lost, &self.burdened, SETS_MAX)
        };
        for set in sets {
            let seed = self.rng.u64();
            self.check_without(&set, seed)?;
            self.counts.checks_of_all_sets += 1;
        }
        Ok(())
    }

    /// What is there without some of the disks, on copies of the others.
    fn check_without(&mut self, without: &BTreeSet<usize>, seed: u64) -> Result<(), String> {
        let mut disks = Disks::new(&self.file.lock(), &self.disks, without);
        for (_, disk) in &mut disks.there {
            *disk = MemDisk::from_snapshot(&disk.snapshot());
        }
        let mut exec = Executor::new(
            seed,
            self.shape.picking,
            self.shape.has_threads,
            self.trace.clone(),
        );
        let result = Arc::new(Mutex::new(None));
        let (env, shape, slot) = (exec.env.clone(), self.shape.clone(), result.clone());
        let task = async move {
            let read = async {
                let world = World::start(&env, &shape, &disks, false).await?;
                let found = read_everything(&world.fs, false).await?;
                check::recount(world.fs.meta())?;
                Ok::<_, String>(found)
            };
            let read = read.await;
            *slot.lock() = Some(read);
        };
        exec.env.spawner.spawn("check", Box::pin(task));
        let stopped = exec.run(STEPS_MAX, LIFE_TIME_MAX, |_| result.lock().is_some());
        self.counts.steps += exec.steps;
        drop(exec);
        let read = result.lock().take();
        let read = read.unwrap_or_else(|| Err(format!("{stopped:?}")));
        let at = |error| format!("without disks {without:?}: {error}");
        let found = read.map_err(at)?;
        self.model.lock().judge(&found).map_err(at)?;
        self.counts.checks_without_disks += 1;
        self.counts.verified_bytes += bytes_in(&found);
        Ok(())
    }
}

/// When the power goes.
struct PowerOff {
    end: End,
    is_first: bool,
    /// Shards deleted so far.
    removals: Arc<AtomicU64>,
    /// After so many steps of moves and deletions of shards, whatever clients do.
    after_move_steps: Option<u32>,
}

/// Steps after the deletion of a shard within which the power goes, where it is to go then.
const REMOVAL_STEPS: u64 = 6;

/// Runs until the driver is done, the power goes, or something is wrong.
fn run_to_end(
    exec: &mut Executor,
    at: &PowerOff,
    shared: &client::Life,
    progress: &Progress,
) -> Stopped {
    let mut power_off_at = None;
    let mut removals_seen = 0;
    let (steps_max, time_max) = (exec.steps + STEPS_MAX, LIFE_TIME_MAX);
    exec.run(steps_max, time_max, |steps| {
        if shared.has_failed() || progress.is_done.load(Ordering::Relaxed) {
            return true;
        }
        let End::Crash {
            after_ops,
            then_steps,
            at_removal,
            ..
        } = at.end
        else {
            return false;
        };
        // A volume that is not made yet has nothing to lose: the first life begins when it is.
        let may_crash = !at.is_first || progress.has_started.load(Ordering::Relaxed);
        let begun = shared.ops_begun.load(Ordering::Relaxed);
        if let Some(wanted) = at.after_move_steps {
            let move_steps =
                progress.work.steps.load(Ordering::Relaxed) + at.removals.load(Ordering::Relaxed);
            if power_off_at.is_none() && move_steps >= u64::from(wanted) {
                power_off_at = Some(steps + then_steps % REMOVAL_STEPS);
            }
        } else if power_off_at.is_none() && may_crash && begun >= after_ops {
            if !at_removal {
                power_off_at = Some(steps + then_steps);
            } else {
                let removals = at.removals.load(Ordering::Relaxed);
                let is_new = std::mem::replace(&mut removals_seen, removals) != removals;
                if is_new && progress.has_undurable_changes() {
                    power_off_at = Some(steps + then_steps % REMOVAL_STEPS);
                }
            }
        }
        power_off_at.is_some_and(|at| steps >= at)
    })
}

fn bytes_in(found: &Found) -> u64 {
    let sizes = found.nodes.values().map(|node| match &node.kind {
        FoundKind::File { bytes, .. } => bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
        _ => 0,
    });
    sizes.sum()
}

/// The task that leads through one life.
struct Driver {
    env: Env,
    disks: Disks,
    file: SharedFile,
    lost: BTreeSet<usize>,
    is_burdened: bool,
    job: Option<Job>,
    spare: Option<(usize, Arc<MemDisk>)>,
    had: Vec<Arc<MemDisk>>,
    at_work: Vec<faults::AtWork>,
    life: Life,
    shared: Arc<client::Life>,
    progress: Arc<Progress>,
    verifiers: Arc<Mutex<Vec<[u8; 8]>>>,
    is_first: bool,
    rng: Rng,
}

impl Driver {
    async fn run(mut self) {
        if let Err(error) = self.lead().await {
            self.shared.fail(error);
        }
        self.progress.is_done.store(true, Ordering::Relaxed);
    }

    async fn lead(&mut self) -> Result<(), String> {
        let shape = &self.shared.shape;
        let world = match World::start(&self.env, shape, &self.disks, self.is_first).await {
            Ok(world) => world,
            Err(why) => {
                *self.progress.refused_start.lock() = Some(why);
                return Ok(());
            }
        };
        let fs = world.fs.clone();
        *self.progress.fs.lock() = Some(world);
        if !self.is_first {
            self.verify(&fs).await?;
        }
        self.progress.has_started.store(true, Ordering::Relaxed);
        let Some(fs) = self.move_state(fs).await else {
            return Ok(());
        };
        self.check_verifier(&fs)?;
        if let Some(world) = &*self.progress.fs.lock() {
            world.sweep(&self.env);
        }
        let had_work = self.has_work();
        self.start_work();
        for _ in 0..shape.client_count {
            let seed = self.rng.u64();
            let client = Client {
                life: self.shared.clone(),
                fs: fs.clone(),
                env: self.env.clone(),
                rng: Rng::new(seed),
                more: Rng::new(seed ^ 0x3c9b_11f7),
            };
            let work = client.run(self.life.op_count, self.life.pause_ms_max);
            self.env.spawner.spawn("client", Box::pin(work));
        }
        self.shared.clients_done().await;
        self.env
            .clock
            .sleep(Duration::from_secs(self.life.idle_seconds))
            .await;
        self.work_done().await;
        if self.shared.has_failed() {
            return Ok(());
        }
        match check::recount(fs.meta()) {
            Err(error) if !self.has_stopped(&fs) => return Err(error),
            _ => {}
        }
        // While disks come and leave their room is not what counts.
        if !self.is_trouble_excused() && !had_work {
            self.check_space(&fs).await?;
        }
        if self.life.op_count == 0 {
            self.check_repairs(&fs).await?;
        }
        self.check_work()?;
        if self.life.end == End::Close {
            match fs.close().await {
                Ok(()) => self.progress.was_closed.store(true, Ordering::Relaxed),
                Err(error) if shape.trouble == Trouble::Crashes => {
                    return Err(format!("closing: {error}"));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn has_work(&self) -> bool {
        let file = self.file.lock();
        self.job.is_some()
            || self.is_burdened
            || !self.lost.is_empty()
            || file.leaving().next().is_some()
    }

    /// Has the state moved off a disk that leaves; `None` if nothing is served any more, which the trouble excuses.
    async fn move_state(&self, fs: cairn_fs::Fs) -> Option<cairn_fs::Fs> {
        let world = self.progress.fs.lock().clone();
        let (Some(mut world), Some(_)) = (world, self.disks.file.leaving().next()) else {
            return Some(fs);
        };
        drop(fs);
        let moved = world.move_state(&self.env, &self.shared.shape, &self.disks);
        if let Err(why) = moved.await {
            *self.progress.refused_start.lock() = Some(why);
            return None;
        }
        let fs = world.fs.clone();
        *self.progress.fs.lock() = Some(world);
        Some(fs)
    }

    /// Starts what this life brings, and goes on with what earlier ones left.
    fn start_work(&self) {
        self.progress
            .is_work_done
            .store(!self.has_work(), Ordering::Relaxed);
        let world = self.progress.fs.lock().clone();
        let (Some(world), true) = (world, self.has_work()) else {
            return;
        };
        self.at_work.iter().for_each(faults::AtWork::arm);
        let worker = Worker {
            job: self.job,
            spare: self.spare.clone(),
            lost: self.lost.clone(),
            had: self.had.clone(),
            ..Worker::new(
                &self.env,
                &self.shared,
                &world,
                &self.file,
                &self.progress.work,
            )
        };
        let progress = self.progress.clone();
        let done = move || progress.is_work_done.store(true, Ordering::Relaxed);
        let task = work::in_background(worker, done);
        self.env.spawner.spawn("work", Box::pin(task));
    }

    /// Waits for the work, but not for ever: on disks that hang, or have no space, it may not end.
    async fn work_done(&self) {
        let since = self.env.clock.monotonic();
        let is_done = || self.progress.is_work_done.load(Ordering::Relaxed);
        while !is_done() && self.env.clock.monotonic().saturating_sub(since) < WORK_WAIT_MAX {
            self.env.clock.sleep(WORK_LOOK_PAUSE).await;
        }
    }

    /// In the last life what can be moved is, and a disk that leaves has left: unless so many others are lost that what
    /// it had cannot have all its copies.
    fn check_work(&self) -> Result<(), String> {
        let shape = &self.shared.shape;
        let is_due = self.life.op_count == 0 && shape.trouble == Trouble::Crashes;
        let file = self.file.lock();
        let members = file.members.iter();
        let staying = members.filter(|it| !it.is_leaving && !self.lost.contains(&it.index));
        let has_room = staying.count() >= shape.metadata_copies(file.staying_count());
        match file.leaving().next() {
            Some(member) if is_due && has_room && shape.disk_mib >= 512 => {
                Err(format!("{member:?} does not leave the pool"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the volume may have stopped serving.
    fn is_trouble_excused(&self) -> bool {
        matches!(
            self.shared.shape.trouble,
            Trouble::Errors | Trouble::Beyond | Trouble::BadDisks
        )
    }

    /// Reads everything, judges it, and makes it what the model knows.
    async fn verify(&self, fs: &cairn_fs::Fs) -> Result<(), String> {
        let reads_fail = |fault: &Fault| {
            matches!(
                fault.kind,
                FaultKind::ReadFails { .. } | FaultKind::WorkReadFails { .. }
            )
        };
        let is_unreadable_allowed = match self.shared.shape.trouble {
            Trouble::Beyond => true,
            Trouble::Errors => self.life.faults.iter().any(reads_fail),
            _ => false,
        };
        let found = match read_everything(fs, is_unreadable_allowed).await {
            Ok(found) => found,
            Err(_) if self.has_stopped(fs) => {
                // As a start that was refused: nothing is served.
                *self.progress.refused_start.lock() = None;
                self.progress.is_done.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let judged: Judged = self.shared.model.lock().judge(&found)?;
        match check::recount(fs.meta()) {
            Err(_) if self.has_stopped(fs) => return Ok(()),
            counted => counted?,
        }
        let add = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
        add(&self.progress.checks, 1);
        add(&self.progress.verified_bytes, bytes_in(&found));
        add(&self.progress.lost_changes, judged.lost_changes as u64);
        add(&self.progress.lost_writes, judged.lost_writes as u64);
        self.shared.model.lock().rebase(judged);
        Ok(())
    }

    /// What the volume says of its space is what its disks say, and nothing is left lying around.
    async fn check_space(&self, fs: &cairn_fs::Fs) -> Result<(), String> {
        let (segments, code) = match &*self.progress.fs.lock() {
            Some(world) => (world.segments.clone(), world.code()),
            None => return Ok(()),
        };
        let disks: Vec<&MemDisk> = self.disks.there.iter().map(|(_, disk)| &**disk).collect();
        for look in 1..=SPACE_LOOKS_MAX {
            let space = fs.space().await;
            let space = space.map_err(|error| format!("space: {error}"))?;
            let dirty_bytes = fs.stats().dirty_bytes;
            match check::space(&disks, &segments, code, space, dirty_bytes) {
                Err(error) if look == SPACE_LOOKS_MAX => return Err(error),
                // A shard that is deleted just now has another name already, and is not known to be free.
                Err(_) => self.env.clock.sleep(SPACE_LOOK_PAUSE).await,
                Ok(()) => break,
            }
        }
        // Long enough for whatever was open to be sealed, and collected.
        let is_quiet = self.life.idle_seconds >= IDLE_SECONDS_ENOUGH;
        if is_quiet && self.shared.shape.trouble == Trouble::Crashes {
            check::garbage(&disks, &segments, fs.gc_backlog())?;
        }
        Ok(())
    }

    /// What damage the records have is repaired by reading them, and stays repaired.
    async fn check_repairs(&self, fs: &cairn_fs::Fs) -> Result<(), String> {
        if self.shared.shape.trouble != Trouble::BadDisks || self.has_stopped(fs) {
            return Ok(());
        }
        let Some(segments) = self
            .progress
            .fs
            .lock()
            .as_ref()
            .map(|it| it.segments.clone())
        else {
            return Ok(());
        };
        let pace = cairn_segment::Pace::new(self.env.clock.clone(), 0);
        // A pass that finds too much at once leaves some of it for the next.
        let mut is_all_repaired = false;
        for _ in 0..SCRUBS_MAX {
            if segments.stats().checksum_errors > 0 {
                // A reader or garbage collection may have read before the repair, and tell of it late.
                self.env.clock.sleep(READ_TIME_MAX).await;
            }
            let before = segments.stats();
            let mut after = None;
            loop {
                let step = fs.scrub_records(after, &pace).await;
                let step = step.map_err(|error| format!("the scrub failed: {error}"))?;
                if let Some(damaged) = step.damaged.first() {
                    return Err(format!("a scrub finds damage: {damaged:?}"));
                }
                after = step.next;
                if after.is_none() {
                    break;
                }
            }
            segments.repairs_done().await;
            let stats = segments.stats();
            let found = stats.checksum_errors - before.checksum_errors;
            if is_all_repaired && found > 0 {
                return Err(format!("{found} places are damaged after their repair"));
            }
            if is_all_repaired {
                break;
            }
            is_all_repaired = stats.repairs_skipped == before.repairs_skipped;
        }
        self.check_shards(&segments).await
    }

    /// What a scrub of shards has repaired is right when it is looked at again.
    async fn check_shards(&self, segments: &Arc<SegmentStore>) -> Result<(), String> {
        let pace = cairn_segment::Pace::new(self.env.clock.clone(), 0);
        let mut ids = segments.segment_ids(VOLUME).unwrap_or_default();
        ids.sort_unstable();
        for id in ids {
            let scrub = || segments.scrub_segment(VOLUME, id, &pace);
            let (Ok(first), Ok(again)) = (scrub().await, scrub().await) else {
                return Ok(());
            };
            if first.repaired_bytes == first.wrong_bytes && again.wrong_bytes > 0 {
                return Err(format!(
                    "a scrub of {id} repaired {first:?}, and another finds {again:?}"
                ));
            }
        }
        Ok(())
    }

    /// The metadata gave up, and that is allowed.
    fn has_stopped(&self, fs: &cairn_fs::Fs) -> bool {
        let key = cairn_meta::Key::inode(crate::world::ROOT_INO);
        self.is_trouble_excused() && fs.meta().get(&key).is_err()
    }

    fn check_verifier(&self, fs: &cairn_fs::Fs) -> Result<(), String> {
        let verifier = fs.write_verifier();
        let mut verifiers = self.verifiers.lock();
        if verifiers.contains(&verifier) {
            return Err("the write verifier is that of an earlier life".to_owned());
        }
        verifiers.push(verifier);
        Ok(())
    }
}
