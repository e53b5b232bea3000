//! Drives one life from within: start, check the surviving data, let clients work, check again, stop.
//!
//! Owns: the order of a life, and its checks. Must not know: when the power goes, other lives.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::disk::Disk;
use cairn_base::env::Env;
use cairn_fs::Fs;
use cairn_segment::SegmentStore;
use cairn_shard::ShardName;
use cairn_testkit::{ManualClock, MemDisk, Rng};
use parking_lot::Mutex;

use crate::check;
use crate::client::{self, Client};
use crate::faults::{self, FaultKind};
use crate::judge::Judge;
use crate::policies::Policer;
use crate::pool::{Disks, Job, PoolFile, label_of};
use crate::quotas::Quoter;
use crate::scenario::{End, Life, Trouble};
use crate::snapshots::{Snapshotter, delete_all, there_and_back};
use crate::tiers::{self, Tierer};
use crate::work::{self, Worker};
use crate::world::{SimHost, VOLUME, World};

/// Limit of the scrubs until nothing is left unrepaired, plus one.
const SCRUBS_MAX: u32 = 20;
/// Longer than the consecutive disk operations of a read take.
const READ_TIME_MAX: Duration = Duration::from_secs(400);
/// The volume's space must be right in one of this many checks, at this interval.
const SPACE_LOOKS_MAX: u32 = 5;
const SPACE_LOOK_PAUSE: Duration = Duration::from_millis(300);
/// Longest wait for background work, and the interval of its checks.
const WORK_WAIT_MAX: Duration = Duration::from_secs(600);
const WORK_LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Interval of the check whether the metadata failed.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// After this time without clients all garbage is gone.
const IDLE_SECONDS_ENOUGH: u64 = 130;

/// Progress of the task that drives a life.
#[derive(Default)]
pub(crate) struct Progress {
    pub has_started: AtomicBool,
    pub is_done: AtomicBool,
    pub was_closed: AtomicBool,
    pub refused_start: Mutex<Option<String>>,
    pub verified_bytes: AtomicU64,
    pub lost_changes: AtomicU64,
    pub lost_writes: AtomicU64,
    pub checks: AtomicU64,
    pub fs: Mutex<Option<World>>,
    pub work: Arc<work::Done>,
    pub is_work_done: AtomicBool,
    /// Times that the volume was reopened while clients worked.
    pub reopened: AtomicU64,
    pub objects_missed: AtomicU64,
}

impl Progress {
    /// Whether the metadata has changes that a crash could lose.
    pub fn has_undurable_changes(&self) -> bool {
        let world = self.fs.lock();
        world.as_ref().is_some_and(|world| {
            let meta = world.fs.meta();
            !meta.is_durable(meta.last_ticket())
        })
    }
}

/// The task that drives one life.
pub(crate) struct Driver {
    pub env: Env,
    pub disks: Disks,
    pub lost: BTreeSet<usize>,
    pub is_burdened: bool,
    pub job: Option<Job>,
    /// Another disk that will be removed by force.
    pub forced: Option<usize>,
    pub spare: Option<Arc<MemDisk>>,
    pub had: Vec<Arc<MemDisk>>,
    pub at_work: Vec<faults::AtWork>,
    pub life: Life,
    pub shared: Arc<client::Life>,
    pub progress: Arc<Progress>,
    pub judge: Arc<Judge>,
    pub is_first: bool,
    /// Whether this life or an earlier one had background work.
    pub has_worked: bool,
    pub rng: Rng,
    pub clock: ManualClock,
    /// No other life follows.
    pub is_last: bool,
    /// The volume is deleted at the end.
    pub ends_volume: bool,
    /// Seed for additions, so that seeds keep their other behaviour.
    pub seed: u64,
}

impl Driver {
    pub async fn run(mut self) {
        if let Err(error) = self.lead().await {
            self.shared.fail(error);
        }
        self.progress.is_done.store(true, Ordering::Relaxed);
    }

    async fn lead(&mut self) -> Result<(), String> {
        let shape = self.shared.shape.clone();
        let host = Arc::new(SimHost {
            env: self.env.clone(),
            shape: shape.clone(),
            move_steps: self.progress.work.steps.clone(),
            store: self.shared.store.clone(),
        });
        self.shut_store();
        let world = match World::start(host, &self.disks, self.is_first).await {
            Ok(world) => world,
            Err(why) => {
                *self.progress.refused_start.lock() = Some(why);
                return Ok(());
            }
        };
        let fs = world.fs.clone();
        if let Some(store) = &self.shared.store
            && let Err(why) = tiers::begin(&world, store, self.is_first).await
        {
            *self.progress.refused_start.lock() = Some(why);
            return Ok(());
        }
        *self.progress.fs.lock() = Some(world.clone());
        if !self.is_first {
            // First: reads of missing shards cause rebuilds.
            self.check_shards_are_there(&fs).await?;
            self.judge.verify(&fs).await?;
        }
        self.progress.has_started.store(true, Ordering::Relaxed);
        self.judge.check_verifier(&fs)?;
        self.shared.serving.put(fs.clone());
        self.watch_metadata();
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
        if shape.takes_snapshots {
            let snapshotter = Snapshotter {
                life: self.shared.clone(),
                judge: self.judge.clone(),
                env: self.env.clone(),
                rng: Rng::new(self.seed ^ 0x54a9_5407),
            };
            let work = snapshotter.run(self.snapshot_steps());
            self.env.spawner.spawn("snapshots", Box::pin(work));
        }
        if shape.sets_quotas {
            let quoter = Quoter {
                life: self.shared.clone(),
                env: self.env.clone(),
                rng: Rng::new(self.seed ^ 0x90a7_5407),
            };
            let work = quoter.run(self.snapshot_steps());
            self.env.spawner.spawn("quotas", Box::pin(work));
        }
        if shape.sets_policies {
            let policer = Policer {
                life: self.shared.clone(),
                pool: world.pool.clone(),
                env: self.env.clone(),
                rng: Rng::new(self.seed ^ 0x706f_5407),
            };
            let work = policer.run(self.snapshot_steps());
            self.env.spawner.spawn("policies", Box::pin(work));
        }
        if let Some(store) = &self.shared.store {
            store.arm();
            let tierer = Tierer {
                life: self.shared.clone(),
                judge: self.judge.clone(),
                pool: world.pool.clone(),
                env: self.env.clone(),
                clock: self.clock.clone(),
                rng: Rng::new(self.seed ^ 0x7469_5407),
            };
            let work = tierer.run(self.snapshot_steps());
            self.env.spawner.spawn("tiers", Box::pin(work));
        }
        drop(world);
        self.shared.clients_done().await;
        self.env
            .clock
            .sleep(Duration::from_secs(self.life.idle_seconds))
            .await;
        self.work_done().await;
        if self.shared.has_failed() {
            return Ok(());
        }
        self.check_store().await?;
        let Some(mut fs) = self.judge.fs() else {
            return Ok(());
        };
        match check::recount(&self.env, fs.meta()).await {
            Err(error) if !self.judge.has_stopped(&fs) => return Err(error),
            _ => {}
        }
        // While disks come and leave, their room does not count.
        if !self.judge.is_trouble_excused() && !had_work {
            self.check_space(&fs).await?;
        }
        if self.life.op_count == 0 {
            self.check_repairs(&fs).await?;
            self.check_protection(&fs).await?;
            fs = self.end_snapshots(fs).await?;
        }
        self.check_work()?;
        self.check_directories(&fs)?;
        self.check_members()?;
        if self.end_store().await? {
            self.progress.was_closed.store(true, Ordering::Relaxed);
            return Ok(());
        }
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

    /// How often a snapshot is taken, deleted or read in this life, and how often a quota is changed: about as long as
    /// clients work.
    fn snapshot_steps(&self) -> u64 {
        u64::from(self.life.op_count) / 3
    }

    /// In the last life the volume is restored from a snapshot, and back, and all snapshots are deleted: their space is
    /// free.
    async fn end_snapshots(&self, fs: Fs) -> Result<Fs, String> {
        if self.shared.shape.trouble != Trouble::Crashes {
            return Ok(fs);
        }
        let world = self.progress.fs.lock().clone();
        let Some(world) = world else {
            return Ok(fs);
        };
        drop(fs);
        let snapshots = &self.shared.snapshots;
        let rng = Rng::new(self.seed ^ 0x7e57_5407);
        let world = there_and_back(&self.env, world, snapshots, rng).await?;
        *self.progress.fs.lock() = Some(world.clone());
        let rng = Rng::new(self.seed ^ 0x0e4d_5407);
        delete_all(&self.env, &world.fs, snapshots, rng).await?;
        check::recount(&self.env, world.fs.meta()).await?;
        Ok(world.fs)
    }

    /// Sometimes the object store is away when the machine starts.
    fn shut_store(&self) {
        if let Some(store) = &self.shared.store
            && !self.is_first
            && self.seed.is_multiple_of(4)
        {
            store.shut();
        }
    }

    /// Checks the contents of the object store when clients are done, and the missing objects.
    async fn check_store(&self) -> Result<(), String> {
        let world = self.progress.fs.lock().clone();
        let (Some(world), Some(store)) = (world, &self.shared.store) else {
            return Ok(());
        };
        let missed = tiers::check(&self.env, &world, store, &self.judge).await?;
        self.progress
            .objects_missed
            .fetch_add(missed, Ordering::Relaxed);
        Ok(())
    }

    /// In the last life all data comes back from the object store, or the volume is deleted: nothing is left there.
    /// Returns whether it was deleted.
    async fn end_store(&self) -> Result<bool, String> {
        let shape = &self.shared.shape;
        let world = self.progress.fs.lock().clone();
        let (Some(world), Some(store)) = (world, &self.shared.store) else {
            return Ok(false);
        };
        if !self.is_last || shape.trouble != Trouble::Crashes {
            return Ok(false);
        }
        tiers::end(&self.env, &world, store, self.ends_volume).await?;
        Ok(self.ends_volume)
    }

    fn has_work(&self) -> bool {
        self.job.is_some()
            || self.is_burdened
            || !self.lost.is_empty()
            || self.file().draining().next().is_some()
    }

    fn file(&self) -> PoolFile {
        let world = self.progress.fs.lock();
        world.as_ref().map(World::file).unwrap_or_default()
    }

    /// If disks fail, a volume whose metadata fails is reopened on other disks, as on a server.
    fn watch_metadata(&self) {
        let is_due = matches!(
            self.shared.shape.trouble,
            Trouble::Errors | Trouble::BadDisks
        );
        let world = self.progress.fs.lock().clone();
        let Some(world) = world.filter(|_| is_due) else {
            return;
        };
        let (env, judge) = (self.env.clone(), self.judge.clone());
        let task = async move {
            while !judge.is_over() {
                env.clock.sleep(REOPEN_PAUSE).await;
                let fs = judge.fs();
                if fs.is_some_and(|fs| world.pool.metadata_trouble(&fs).is_some()) {
                    judge.while_reopening(world.pool.reopen_failed()).await;
                }
            }
        };
        self.env.spawner.spawn("reopen", Box::pin(task));
    }

    /// Starts the work of this life, and continues that of earlier ones.
    fn start_work(&mut self) {
        self.progress
            .is_work_done
            .store(!self.has_work(), Ordering::Relaxed);
        let world = self.progress.fs.lock().clone();
        let (Some(world), true) = (world, self.has_work()) else {
            return;
        };
        let worker = Worker {
            job: self.job,
            spare: self.spare.clone(),
            forced: self.forced,
            had: self.had.clone(),
            is_quiet: self.life.faults.iter().all(|fault| {
                matches!(
                    fault.kind,
                    FaultKind::WorkFlipAtRest | FaultKind::ClockStep { .. }
                )
            }),
            ..Worker::new(&self.env, &self.judge, &world, &self.progress.work)
        };
        let progress = self.progress.clone();
        let done = move || progress.is_work_done.store(true, Ordering::Relaxed);
        let after_ops = self.life.work.map_or(0, |work| work.after_ops);
        let at_work = std::mem::take(&mut self.at_work);
        let task = work::in_background(worker, after_ops, at_work, done);
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

    /// In the last life every movable shard has moved, and a draining disk has left, unless so many other disks are
    /// lost that its shards cannot have all their copies.
    fn check_work(&self) -> Result<(), String> {
        let shape = &self.shared.shape;
        let is_due = self.life.op_count == 0 && shape.trouble == Trouble::Crashes;
        let file = self.file();
        let members = file.members.iter();
        let staying = members.filter(|it| !it.is_draining && !self.lost.contains(&it.index));
        let has_room = staying.count() >= shape.metadata_copies(file.staying_count());
        let is_due = is_due && has_room && shape.disk_mib >= 512;
        match file.draining().next() {
            Some(member) if is_due => Err(format!("{member:?} does not leave the pool")),
            None if shape.trouble == Trouble::Crashes && self.lost.is_empty() => {
                self.check_narrow(&file)
            }
            _ => Ok(()),
        }
    }

    /// The pool knows the protections of directories, and keeps the disks that they need.
    fn check_directories(&self, fs: &cairn_fs::Fs) -> Result<(), String> {
        let Some(world) = self.progress.fs.lock().clone() else {
            return Ok(());
        };
        let state = world.pool.state();
        let volume = state.volumes.iter().find(|volume| volume.id == VOLUME);
        let known = volume.map(|volume| volume.settings.directory_protections);
        let (Some(known), Some(asked)) = (known, fs.directory_protections()) else {
            return Ok(());
        };
        match asked.iter().find(|asked| !known.contains(*asked)) {
            Some(asked) => Err(format!(
                "a directory asks for {asked}, and the pool does not know it"
            )),
            None => Ok(()),
        }
    }

    /// Data that was written while disks were missing has its full protection when they are back.
    fn check_narrow(&self, file: &PoolFile) -> Result<(), String> {
        let tolerated = self.shared.shape.tolerated();
        let world = self.progress.fs.lock().clone();
        let members = file.members.iter();
        let of_data = members.filter(|member| !member.is_journal).count();
        let Some(world) = world.filter(|_| self.has_worked && of_data > tolerated) else {
            return Ok(());
        };
        let is_done = self.progress.is_work_done.load(Ordering::Relaxed);
        // For lack of room, or of time.
        if !is_done || !world.pool.rebuild_status().problems.is_empty() {
            return Ok(());
        }
        match work::narrow(&world.segments, VOLUME, tolerated, true).first() {
            Some(segment) => Err(format!("{segment} keeps less protection than is promised")),
            None => Ok(()),
        }
    }

    /// The pool's report of its disks is right.
    fn check_members(&self) -> Result<(), String> {
        let world = self.progress.fs.lock().clone();
        let Some(world) = world.filter(|world| !self.judge.has_stopped(&world.fs)) else {
            return Ok(());
        };
        let in_use = world.disks_in_use();
        let has = |disks: &Vec<cairn_base::DiskId>, id| disks.contains(&id);
        for (segment, disks) in &in_use {
            let distinct: BTreeSet<&cairn_base::DiskId> = disks.iter().collect();
            if distinct.len() < disks.len() {
                return Err(format!("segment {segment} has two shards on one disk"));
            }
        }
        for disk in world
            .pool
            .state()
            .disks
            .iter()
            .filter(|disk| disk.holds_nothing)
        {
            if let Some((segment, _)) = in_use.iter().find(|(_, disks)| has(disks, disk.id)) {
                return Err(format!(
                    "{} is said to hold nothing, and has a shard of segment {segment}",
                    disk.label
                ));
            }
        }
        let drains = self.progress.work.drains.lock();
        for member in world.file().draining() {
            let Some(newest) = drains.get(&member.id) else {
                continue;
            };
            let is_new = |(id, disks): &(&u64, &Vec<_>)| *id > newest && has(disks, member.id);
            if let Some((segment, _)) = in_use.iter().find(is_new) {
                return Err(format!(
                    "segment {segment} is put on {member:?}, which drains"
                ));
            }
        }
        Ok(())
    }

    /// The volume's report of its space matches its disks, and no garbage is left.
    async fn check_space(&self, fs: &cairn_fs::Fs) -> Result<(), String> {
        let (segments, code) = match &*self.progress.fs.lock() {
            Some(world) => (world.segments.clone(), world.code()),
            None => return Ok(()),
        };
        let file = self.file();
        let is_member = |disk: &&Arc<MemDisk>| {
            let mut members = file.members.iter();
            members.any(|member| label_of(member.index) == disk.label())
        };
        let disks = self.disks.there.iter().filter(is_member);
        let disks: Vec<&MemDisk> = disks.map(|disk| &**disk).collect();
        for look in 1..=SPACE_LOOKS_MAX {
            let space = fs.space().await;
            let space = space.map_err(|error| format!("space: {error}"))?;
            let dirty_bytes = fs.stats().dirty_bytes;
            match check::space(&disks, &segments, code, space, dirty_bytes) {
                Err(error) if look == SPACE_LOOKS_MAX => return Err(error),
                // A shard that is just being deleted has another name already, and does not count as free yet.
                Err(_) => self.env.clock.sleep(SPACE_LOOK_PAUSE).await,
                Ok(()) => break,
            }
        }
        // Long enough for open segments to be sealed, and collected.
        let is_quiet = self.life.idle_seconds >= IDLE_SECONDS_ENOUGH;
        if is_quiet && self.shared.shape.trouble == Trouble::Crashes {
            check::garbage(&disks, &segments, fs.gc_backlog())?;
        }
        Ok(())
    }

    /// Reading corrupt records repairs them, and they stay repaired.
    async fn check_repairs(&self, fs: &cairn_fs::Fs) -> Result<(), String> {
        if self.shared.shape.trouble != Trouble::BadDisks || self.judge.has_stopped(fs) {
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
                // A reader or garbage collection may have read before the repair, and report late.
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

    /// If only crashes happened, a start finds every needed shard where the metadata says.
    async fn check_shards_are_there(&self, fs: &cairn_fs::Fs) -> Result<(), String> {
        let world = self.progress.fs.lock().clone();
        let is_due = self.shared.shape.trouble == Trouble::Crashes;
        let Some(world) = world.filter(|_| is_due) else {
            return Ok(());
        };
        for (id, record) in fs.meta().segments() {
            for (index, disk) in (0..).zip(&record.disks) {
                // A lost disk still has its shards.
                let Some(disk) = world.pool.table().disk(*disk).cloned() else {
                    continue;
                };
                let name = ShardName {
                    volume: VOLUME,
                    segment: id,
                    index,
                };
                let opened = disk.open_shard(name).await;
                // Garbage may be collected meanwhile, and may have been when the power went.
                let now = fs.meta().segment(id);
                let is_needed = now.is_some_and(|now| now.live_bytes > 0 && now == record);
                if let Err(error) = opened
                    && is_needed
                {
                    return Err(format!(
                        "shard {index} of {id} is not on {}: {error}",
                        disk.label()
                    ));
                }
            }
        }
        Ok(())
    }

    /// If only crashes happened, every shard is in its place, with its right contents.
    async fn check_protection(&self, fs: &cairn_fs::Fs) -> Result<(), String> {
        if self.shared.shape.trouble != Trouble::Crashes || !self.lost.is_empty() {
            return Ok(());
        }
        let world = self.progress.fs.lock().clone();
        let Some(world) = world else { return Ok(()) };
        let pace = cairn_segment::Pace::new(self.env.clock.clone(), 0);
        for (id, record) in fs.meta().segments() {
            if record.live_bytes == 0 {
                continue;
            }
            let Ok(scrub) = world.segments.scrub_segment(VOLUME, id, &pace).await else {
                return Ok(());
            };
            let missing = scrub.shards_rebuilt + scrub.shards_unmade + scrub.shards_away;
            if missing > 0 || scrub.wrong_bytes > 0 || scrub.segments_inconsistent > 0 {
                return Err(format!("{id} is not whole after crashes: {scrub:?}"));
            }
        }
        Ok(())
    }

    /// Shards repaired by a scrub are right in the next one.
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
}
