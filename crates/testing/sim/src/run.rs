//! Runs a scenario: life after life, and the judgement between them.
//!
//! Owns: the disks of a life, when the power goes, what counts as a failure. Must not know: events in a life, how
//! clients choose, which data may survive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::DiskId;
use cairn_testkit::{Crash, MemDisk, Rng};
use parking_lot::Mutex;

use crate::client;
use crate::driver::{Driver, Progress};
use crate::exec::{Executor, Stopped, Trace};
use crate::faults::{self, Fired};
use crate::judge::Judge;
use crate::model::Model;
use crate::object_store::{LifeStore, SimStore};
use crate::pool::{self, Disks, Job, Member, PoolFile, label_of};
use crate::scenario::{End, Life, Scenario, Shape, TierTrouble, Trouble, Work, WorkKind};
use crate::serving::Serving;
use crate::snapshots::{Read, Snapshots};
use crate::tree::FoundTree;
use crate::world::{SimHost, World};

/// Limit of the steps of one life; more is an endless loop.
pub(crate) const STEPS_MAX: u64 = 3_000_000;
/// Longest time of a life beside its pauses.
pub(crate) const LIFE_TIME_MAX: Duration = Duration::from_secs(4 * 3600);
/// Limit of the sets of disks that are taken away after the last life.
const SETS_MAX: usize = 15;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// Acknowledged data is lost, or something is wrong; the text says what, and in which life.
    Failed(String),
}

impl Verdict {
    pub fn is_failed(&self) -> bool {
        matches!(self, Verdict::Failed(_))
    }
}

/// Counters of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub steps: u64,
    pub ops: u64,
    pub ops_refused: u64,
    pub crashes: u64,
    /// Refused starts, where that is allowed.
    pub refused_starts: u64,
    /// Checks of everything after a start, with all disks and with some taken away.
    pub checks: u64,
    pub checks_without_disks: u64,
    /// The part of these that covered all sets of disks, one after the other.
    pub checks_of_all_sets: u64,
    /// Checks with a corrupt record in all present copies of the log, and how many of those starts were refused.
    pub checks_with_holes: u64,
    pub holes_refused: u64,
    pub verified_bytes: u64,
    /// Changes and writes that were not acknowledged and did not survive.
    pub lost_changes: u64,
    pub lost_writes: u64,
    pub silent_faults: u64,
    /// Number of strikes of each kind of fault.
    pub faults_fired: BTreeMap<&'static str, u64>,
    pub gc_segments_removed: u64,
    pub gc_rewritten_bytes: u64,
    pub deduplicated_bytes: u64,
    pub repairs: u64,
    /// Background work: shards moved to another disk, segments rewritten because theirs could not be moved, disks that
    /// left the pool, segments scrubbed.
    pub shards_moved: u64,
    pub shards_spread: u64,
    pub segments_rewritten: u64,
    pub disks_left: u64,
    pub segments_scrubbed: u64,
    /// Work that began, and crashes just after a step of it.
    pub work_begun: BTreeMap<&'static str, u64>,
    pub crashes_at_work: u64,
    /// Times that the volume was reopened while clients worked, and changes that it refused meanwhile.
    pub reopened: u64,
    pub refused_changes: u64,
    /// Snapshots whose contents were judged, and comparisons of one with its earlier contents.
    pub snapshots_judged: u64,
    pub snapshots_compared: u64,
    /// Segments that went to the object store.
    pub segments_sent: u64,
    /// Bytes that were separated from others to go there, because they belong to certain files.
    pub gathered_bytes: u64,
    /// Objects that were missing when the volume was checked without them.
    pub objects_missed: u64,
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
        self.checks_with_holes += other.checks_with_holes;
        self.holes_refused += other.holes_refused;
        self.verified_bytes += other.verified_bytes;
        self.lost_changes += other.lost_changes;
        self.lost_writes += other.lost_writes;
        self.silent_faults += other.silent_faults;
        for (kind, count) in &other.faults_fired {
            *self.faults_fired.entry(kind).or_default() += count;
        }
        self.gc_segments_removed += other.gc_segments_removed;
        self.gc_rewritten_bytes += other.gc_rewritten_bytes;
        self.deduplicated_bytes += other.deduplicated_bytes;
        self.repairs += other.repairs;
        self.shards_moved += other.shards_moved;
        self.shards_spread += other.shards_spread;
        self.segments_rewritten += other.segments_rewritten;
        self.disks_left += other.disks_left;
        self.segments_scrubbed += other.segments_scrubbed;
        for (kind, count) in &other.work_begun {
            *self.work_begun.entry(kind).or_default() += count;
        }
        self.crashes_at_work += other.crashes_at_work;
        self.reopened += other.reopened;
        self.refused_changes += other.refused_changes;
        self.snapshots_judged += other.snapshots_judged;
        self.snapshots_compared += other.snapshots_compared;
        self.segments_sent += other.segments_sent;
        self.gathered_bytes += other.gathered_bytes;
        self.objects_missed += other.objects_missed;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub verdict: Verdict,
    /// Hash of every step and every disk operation, in order.
    pub trace: u64,
    pub counts: Counts,
}

/// State that outlives a life.
pub(crate) struct Pool {
    pub(crate) shape: Shape,
    /// All disks that ever existed, by number.
    pub(crate) disks: Vec<Arc<MemDisk>>,
    /// The members, as of the last life.
    file: PoolFile,
    /// Members that are gone.
    pub(crate) lost: BTreeSet<usize>,
    /// Members that were gone, or had the trouble, since everything was known to have its full protection.
    burdened: BTreeSet<usize>,
    /// Whether any life had background work.
    has_worked: bool,
    pub(crate) model: Arc<Mutex<Model>>,
    pub(crate) snapshots: Arc<Mutex<Snapshots>>,
    /// The object store that cold data goes to.
    store: Option<SimStore>,
    /// The last life ends with the volume deleted.
    ends_volume: bool,
    pub(crate) trace: Trace,
    verifiers: Arc<Mutex<Vec<[u8; 8]>>>,
    pub(crate) counts: Counts,
    fired: Fired,
    rng: Rng,
}

/// Runs a scenario to its end or to the first failure.
pub fn run(scenario: &Scenario) -> Report {
    let shape = scenario.shape.clone();
    let disks = (0..shape.disk_count)
        .map(|index| MemDisk::new(label_of(index), shape.disk_mib << 20))
        .collect();
    let mut pool = Pool {
        file: PoolFile::default(),
        lost: BTreeSet::new(),
        burdened: match shape.trouble {
            Trouble::Beyond => BTreeSet::new(),
            _ => shape.bad_disks.iter().copied().collect(),
        },
        has_worked: false,
        shape,
        disks,
        model: Arc::new(Mutex::new(Model::new())),
        snapshots: Arc::default(),
        store: match scenario.shape.tiers.trouble {
            TierTrouble::None => None,
            trouble => Some(SimStore::new(trouble)),
        },
        ends_volume: !scenario.has_all_sets() && Rng::new(scenario.seed ^ 0x656e_6473).coin(),
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
    if let Some(store) = &pool.store {
        pool.counts.faults_fired.extend(store.fired());
    }
    {
        let snapshots = pool.snapshots.lock();
        pool.counts.snapshots_judged = snapshots.judged;
        pool.counts.snapshots_compared = snapshots.compared;
    }
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

impl Pool {
    /// Runs one life. Fails with a description of the first error. The last life has no clients: after it everything is
    /// checked once more.
    fn live(&mut self, index: usize, life: &Life, is_last: bool) -> Result<Start, String> {
        let is_first = index == 0;
        let seed = self.rng.u64();
        // Also after the last crash.
        let is_wanted = !life.without.is_empty() || (is_last && self.shape.promises_losses());
        if !is_first
            && is_wanted
            && let Some(gone) = self.gone_set(&life.without, seed)
        {
            self.check_without(&gone, seed)?;
        }
        if !is_first {
            self.check_hole(seed)?;
        }
        let job = self.begin_job(life, is_first);
        let mut exec = Executor::new(
            seed,
            self.shape.picking,
            self.shape.has_threads,
            self.trace.clone(),
        );
        let store = self.store.as_ref();
        let store = store.map(|store| store.power_on(&exec.env, &self.trace, seed ^ 0x5707));
        let shared = Arc::new(client::Life {
            model: self.model.clone(),
            serving: Serving::default(),
            shape: self.shape.clone(),
            failure: Mutex::default(),
            ops_begun: AtomicU32::new(0),
            ops_refused: AtomicU64::new(0),
            changes_refused: AtomicU64::new(0),
            clients_left: AtomicU32::new(
                self.shape.client_count as u32
                    + u32::from(self.shape.takes_snapshots)
                    + u32::from(self.shape.sets_quotas)
                    + u32::from(self.shape.sets_policies)
                    + u32::from(store.is_some()),
            ),
            snapshots: self.snapshots.clone(),
            waiting: Mutex::default(),
            op_waiting: Mutex::default(),
            store: store.clone(),
            term: None,
        });
        let progress = Arc::new(Progress::default());
        let removals = self.arm(life, &exec);
        // The pool is made without the disk that joins later.
        let named = match is_first {
            true => self.shape.disk_count,
            false => self.disks.len(),
        };
        let disks = Disks::new(&self.disks[..named], &self.lost);
        let spare_index = self.disks.len() - 1;
        let has_spare = !self.file.has(spare_index) && spare_index >= self.shape.disk_count;
        let forced = self.forced(job, life);
        self.has_worked |= job.is_some();
        let life_has_work = self.has_worked;
        let judge = Arc::new(Judge {
            life: life.clone(),
            env: exec.env.clone(),
            shared: shared.clone(),
            progress: progress.clone(),
            verifiers: self.verifiers.clone(),
        });
        let driver = Driver {
            env: exec.env.clone(),
            disks,
            lost: self.lost.clone(),
            is_burdened: !self.burdened.is_empty() && life_has_work,
            job,
            // The newest disk is blank, if there is one that is no member yet.
            forced,
            spare: job
                .filter(|_| has_spare)
                .map(|_| self.disks[spare_index].clone()),
            had: self.had(),
            at_work: faults::at_work(&self.disks, &life.faults, &self.fired),
            life: life.clone(),
            shared: shared.clone(),
            progress: progress.clone(),
            judge,
            is_first,
            has_worked: life_has_work,
            rng: Rng::new(self.rng.u64()),
            clock: exec.clock.clone(),
            is_last,
            ends_volume: self.ends_volume,
            seed,
        };
        exec.env.spawner.spawn("driver", Box::pin(driver.run()));
        // A scrub moves nothing; work of earlier lives goes on.
        let moves = match job {
            Some(job) => !matches!(job.kind, WorkKind::Scrub | WorkKind::Journal),
            None => self.file.draining().next().is_some() || !self.lost.is_empty(),
        };
        let at = PowerOff {
            end: life.end,
            is_first,
            removals,
            moves,
            after_move_steps: life
                .work
                .filter(|_| moves)
                .and_then(|work| work.power_off_after),
        };
        let stopped = run_to_end(&mut exec, &at, &shared, &progress);
        let failure = shared.failure.lock().clone();
        self.note(&exec, &shared, &progress);
        let was_closed = progress.was_closed.load(Ordering::Relaxed);
        // The power first, then the tasks: code that runs when they are dropped must not reach a disk.
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
        if let Some(store) = &self.store {
            store.power_off(exec.env.clock.monotonic(), &mut Rng::new(seed));
        }
        let world = progress.fs.lock().take();
        if let Some(world) = &world {
            self.file = world.file();
        }
        drop(world);
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
        let file = self.file.clone();
        self.lost.retain(|index| file.has(*index));
        let removed = progress.work.removed.lock().clone();
        self.burdened.extend(removed);
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

    /// The object store for another machine on copies of the disks: its changes do not count.
    pub(crate) fn store_of_another(&self, exec: &Executor, seed: u64) -> Option<Arc<LifeStore>> {
        let copy = self.store.as_ref()?.copy();
        Some(copy.power_on(&exec.env, &self.trace, seed))
    }

    /// Copies of the lost disks without trouble.
    fn had(&self) -> Vec<Arc<MemDisk>> {
        let sound = |index: &&usize| !self.shape.bad_disks.contains(index);
        let lost = self.lost.iter().filter(sound);
        lost.map(|index| MemDisk::from_snapshot(&self.disks[*index].snapshot()))
            .collect()
    }

    /// M disks that may be taken away now.
    pub(crate) fn gone_set(&self, wanted: &[usize], seed: u64) -> Option<BTreeSet<usize>> {
        let mut rng = Rng::new(seed);
        let (lost, burdened) = (&self.lost, &self.burdened);
        pool::gone_set(&self.shape, &self.file, lost, burdened, wanted, &mut rng)
    }

    /// Work beside the clients of a life: it may take a disk away, and add a new one.
    fn begin_job(&mut self, life: &Life, is_first: bool) -> Option<Job> {
        let work = life.work.as_ref()?;
        // The pool is made with all its disks.
        if is_first && matches!(work.kind, WorkKind::Rebuild { .. }) {
            return None;
        }
        let job = self.job_of(work, is_first)?;
        let has_spare = match job.kind {
            WorkKind::Drain { has_spare } | WorkKind::Rebuild { has_spare, .. } => has_spare,
            WorkKind::Scrub => false,
            WorkKind::Journal => true,
        };
        match (job.kind, job.disk) {
            (WorkKind::Rebuild { .. }, Some(disk)) => {
                self.lost.insert(disk);
                self.burdened.insert(disk);
            }
            // Data that was written while other disks were missing may move from it to one of those.
            (WorkKind::Drain { .. }, Some(disk)) if !self.burdened.is_empty() => {
                self.burdened.insert(disk);
            }
            _ => {}
        }
        if has_spare {
            let label = label_of(self.disks.len());
            self.disks
                .push(MemDisk::new(label, self.shape.disk_mib << 20));
        }
        Some(job)
    }

    /// The work as it applies to this pool; in the first life all its disks are members.
    fn job_of(&self, work: &Work, is_first: bool) -> Option<Job> {
        let first: Vec<Member> = (0..self.shape.disk_count)
            .map(|index| Member {
                index,
                id: DiskId::default(),
                is_draining: false,
                is_journal: false,
            })
            .collect();
        let file = match is_first {
            true => &PoolFile { members: first },
            false => &self.file,
        };
        pool::job_of(work, &self.shape, file, &self.lost, &self.burdened)
    }

    /// While a disk is lost, an operator sometimes removes another one at once.
    fn forced(&self, job: Option<Job>, life: &Life) -> Option<usize> {
        let (job, work) = (job?, life.work?);
        let is_lost = matches!(job.kind, WorkKind::Rebuild { .. });
        let may_be_lost = self.shape.trouble == Trouble::Crashes && self.shape.tolerated() > 0;
        let comes_back = matches!(
            job.kind,
            WorkKind::Rebuild {
                comes_back: true,
                ..
            }
        );
        // More often while the disk may come back: it must not count as present.
        let one_in = if comes_back { 2 } else { 4 };
        if !is_lost || !may_be_lost || (work.pick >> 59) % one_in != 0 {
            return None;
        }
        let others = self.file.members.iter();
        let others = others.filter(|it| !it.is_draining && !self.lost.contains(&it.index));
        let others: Vec<usize> = others.map(|member| member.index).collect();
        let place = (work.pick >> 8) % others.len().max(1) as u64;
        others.get(place as usize).copied()
    }

    /// Returns the counter of deleted shards.
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
        self.counts.shards_spread += get(&progress.work.shards_spread);
        self.counts.segments_rewritten += get(&progress.work.segments_rewritten);
        self.counts.disks_left += get(&progress.work.disks_left);
        self.counts.segments_scrubbed += get(&progress.work.segments_scrubbed);
        self.counts.reopened += get(&progress.reopened);
        self.counts.refused_changes += get(&shared.changes_refused);
        self.counts.objects_missed += get(&progress.objects_missed);
        self.counts.crashes_at_work += get(&progress.work.crashes);
        if let Some(kind) = *progress.work.begun.lock() {
            *self.counts.work_begun.entry(kind).or_default() += 1;
        }
        self.counts.silent_faults += self
            .disks
            .iter()
            .map(|disk| disk.silent_faults())
            .sum::<u64>();
        if let Some(world) = &*progress.fs.lock() {
            let stats = world.fs.stats();
            self.counts.gc_segments_removed += stats.gc_segments_removed;
            self.counts.gc_rewritten_bytes += stats.gc_rewritten_bytes;
            self.counts.deduplicated_bytes += stats.deduplicated_bytes;
            self.counts.repairs += world.segments.stats().repairs;
            let tiering = world.fs.tiering_status();
            self.counts.segments_sent += tiering.sent_segments;
            self.counts.gathered_bytes += tiering.gathered_bytes;
        }
    }

    /// Allows a failed start only if a disk fails just then, or if there is more trouble than the engine promises to
    /// survive.
    fn allow_refused_start(&mut self, why: &str, life: &Life) -> Result<(), String> {
        self.counts.refused_starts += 1;
        match self.shape.trouble {
            Trouble::Beyond => Ok(()),
            Trouble::Errors | Trouble::BadDisks if !life.faults.is_empty() => Ok(()),
            // Full disks keep no pool from starting; disks that falsely report to be full may.
            Trouble::Full if !life.faults.is_empty() && why.contains("no space") => Ok(()),
            _ => Err(format!("the start was refused: {why}")),
        }
    }

    /// Checks the data without any M of the disks that may be lost.
    fn check_all_sets(&mut self) -> Result<(), String> {
        let (lost, burdened) = (&self.lost, &self.burdened);
        let sets = pool::all_gone_sets(&self.shape, &self.file, lost, burdened, SETS_MAX);
        for set in sets {
            let seed = self.rng.u64();
            self.check_without(&set, seed)?;
            self.counts.checks_of_all_sets += 1;
        }
        Ok(())
    }

    /// Checks the data without some of the disks, on copies of the others.
    fn check_without(&mut self, without: &BTreeSet<usize>, seed: u64) -> Result<(), String> {
        let without_all = without.union(&self.lost).copied().collect();
        let mut disks = Disks::new(&self.disks, &without_all);
        for disk in &mut disks.there {
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
        let store = self.store_of_another(&exec, seed);
        let task = async move {
            let read = async {
                let host = Arc::new(SimHost {
                    env: env.clone(),
                    shape,
                    move_steps: Arc::default(),
                    store,
                });
                let world = World::start(host, &disks, false).await?;
                world.read_and_count(&env).await
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
        let (found, of_snapshots) = read.map_err(at)?;
        self.judge(&found, &of_snapshots).map_err(at)?;
        self.counts.checks_without_disks += 1;
        self.counts.verified_bytes += found.file_bytes();
        Ok(())
    }
}

impl Pool {
    /// Whether a start may find this.
    pub(crate) fn judge(&self, found: &FoundTree, of_snapshots: &Read) -> Result<(), String> {
        let model = self.model.lock();
        model.judge(found)?;
        self.snapshots.lock().judge(&model, of_snapshots).map(drop)
    }
}

/// The time of the power cut.
struct PowerOff {
    end: End,
    is_first: bool,
    /// Shards deleted so far.
    removals: Arc<AtomicU64>,
    /// The work of this life moves shards.
    moves: bool,
    /// After this many steps of moves and deletions of shards since work began, independent of clients.
    after_move_steps: Option<u32>,
}

/// Number of steps from the deletion of a shard to the power cut that follows it: while a file is renamed, or when
/// other shards of its segment are gone, too.
fn steps_later(then_steps: u64) -> u64 {
    [0, 0, 1, 3, 8, 24][(then_steps % 6) as usize]
}

/// Runs until the driver is done, the power goes, or a check fails.
fn run_to_end(
    exec: &mut Executor,
    at: &PowerOff,
    shared: &client::Life,
    progress: &Progress,
) -> Stopped {
    let mut power_off_at = None;
    let mut removals_seen = 0;
    let mut removals = 0;
    let mut acts_seen = 0;
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
        let is_at_work = at.moves && (at.after_move_steps.is_some() || at_removal);
        let may_crash = is_at_work || (may_crash && begun >= after_ops);
        let removals_now = at.removals.load(Ordering::Relaxed);
        let is_removal = std::mem::replace(&mut removals_seen, removals_now) != removals_now;
        // Other deletions belong to garbage collection.
        let acts_now = progress.work.begins_and_ends.load(Ordering::Relaxed);
        let was_acting =
            acts_now % 2 == 1 || std::mem::replace(&mut acts_seen, acts_now) != acts_now;
        let is_removal = is_removal && (!at.moves || was_acting);
        removals += u64::from(is_removal);
        let is_open = power_off_at.is_none() && may_crash;
        if !is_open {
            // The moment is known, or not yet reached.
        } else if let Some(wanted) = at.after_move_steps {
            let move_steps = progress.work.steps.load(Ordering::Relaxed) + removals;
            if move_steps >= u64::from(wanted) {
                power_off_at = Some(steps + steps_later(then_steps));
                progress.work.crashes.store(1, Ordering::Relaxed);
            }
        } else if at_removal {
            if is_removal && progress.has_undurable_changes() {
                power_off_at = Some(steps + steps_later(then_steps));
                progress
                    .work
                    .crashes
                    .store(u64::from(at.moves), Ordering::Relaxed);
            }
        } else {
            power_off_at = Some(steps + then_steps);
        }
        power_off_at.is_some_and(|at| steps >= at)
    })
}
