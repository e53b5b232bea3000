//! Work in the background: disks that come and leave, what moves between them, scrubs.
//!
//! Owns: what of it is done in which order, which is a server's; what must not come of it.
//! Must not know: how a shard is moved, which is the engine's.
//!
//! A disk that leaves, or that is lost and given up, loses its shards one by one to disks that have room; what cannot
//! be moved is written anew. When nothing needs it any more it is no member.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::{DiskId, SegmentId};
use cairn_fs::{ExtentAt, Fs, REWRITE_SEGMENTS_MAX};
use cairn_segment::{DiskState, MoveError, Pace, SegmentInfo, SegmentScrub, SegmentStore};
use cairn_shard::{ShardDisk, ShardFooter, ShardName};
use cairn_testkit::MemDisk;
use parking_lot::Mutex;

use crate::client;
use crate::pool::{Job, Member, SharedFile};
use crate::scenario::{Trouble, WorkKind};
use crate::world::{VOLUME, World, disk_id, format_disk, open_disk};

/// Looks at what there is to do in one life, at most, and between two of which nothing was done.
const ROUNDS_MAX: u32 = 300;
const ROUND_PAUSE: Duration = Duration::from_millis(400);

/// What came of it.
#[derive(Default)]
pub struct Done {
    /// Steps of moves: a copy made, its place submitted, durable, the old one deleted; segments written anew.
    pub steps: AtomicU64,
    pub shards_moved: AtomicU64,
    pub segments_rewritten: AtomicU64,
    pub disks_left: AtomicU64,
    pub segments_scrubbed: AtomicU64,
    /// At some moment all members were there and everything had its full protection.
    pub is_whole: AtomicBool,
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// One life's work.
pub struct Worker {
    pub env: Env,
    pub life: Arc<client::Life>,
    pub fs: Fs,
    pub segments: Arc<SegmentStore>,
    pub file: SharedFile,
    pub job: Option<Job>,
    /// A blank disk, with its number.
    pub spare: Option<(usize, Arc<MemDisk>)>,
    /// Members that are not there.
    pub lost: BTreeSet<usize>,
    /// What those of them had that had no trouble, for nobody but the judge.
    pub had: Vec<Arc<MemDisk>>,
    pub done: Arc<Done>,
    /// What was to be written anew once. As on a server, it is moved then if it stayed.
    pub tried: Mutex<BTreeSet<SegmentId>>,
    /// The disks that are open.
    pub shard_disks: Mutex<Vec<Arc<ShardDisk>>>,
}

/// A shard that has to go, and what is known of its segment.
struct Misplaced {
    segment: SegmentId,
    index: u8,
    /// How many more shards the segment may lose.
    spare: i16,
    /// It has lost some.
    is_short: bool,
    /// A disk leaves for good, so that no other one is waited for.
    may_rewrite: bool,
}

impl Worker {
    pub fn new(
        env: &Env,
        life: &Arc<client::Life>,
        world: &World,
        file: &SharedFile,
        done: &Arc<Done>,
    ) -> Self {
        Self {
            env: env.clone(),
            life: life.clone(),
            fs: world.fs.clone(),
            segments: world.segments.clone(),
            file: file.clone(),
            job: None,
            spare: None,
            lost: BTreeSet::new(),
            had: Vec::new(),
            done: done.clone(),
            tried: Mutex::default(),
            shard_disks: Mutex::new(world.shard_disks.clone()),
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
        for _ in 0..ROUNDS_MAX {
            if self.is_over() || !self.round().await? {
                return Ok(());
            }
            self.env.clock.sleep(ROUND_PAUSE).await;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.life.has_failed() || self.fs.meta().failure().is_some()
    }

    fn pace(&self) -> Pace {
        Pace::new(self.env.clock.clone(), 0)
    }

    /// Changes the pool: as a server, first its file.
    async fn begin(&self, job: Job) -> Result<(), String> {
        let (has_spare, leaves) = match job.kind {
            WorkKind::Drain { has_spare } => (has_spare, true),
            WorkKind::Rebuild {
                has_spare,
                comes_back,
            } => (has_spare, !comes_back),
            WorkKind::Scrub => return Ok(()),
        };
        let spare = self.spare.as_ref().filter(|_| has_spare);
        let mut joined = None;
        if let Some((index, disk)) = spare {
            let opened = async {
                format_disk(*index, disk).await?;
                open_disk(&self.life.shape, disk).await
            };
            let opened = opened.await;
            joined = Some(opened.map_err(|error| format!("a new disk does not open: {error}"))?);
        }
        {
            let mut file = self.file.lock();
            if let Some((index, _)) = spare {
                file.join(*index);
            }
            if let Some(disk) = job.disk.filter(|_| leaves) {
                file.leave(disk);
            }
        }
        if let (Some(opened), Some((index, disk))) = (joined, spare) {
            self.shard_disks.lock().push(opened.clone());
            self.segments.disk_join(opened);
            self.fs.meta().add_disk(disk_id(*index), disk.clone());
        }
        if let Some(disk) = job.disk.filter(|_| leaves) {
            self.segments.disk_draining(disk_id(disk), true);
        }
        self.set_copies().await;
        self.segments.seal_all(VOLUME).await;
        Ok(())
    }

    /// As many copies of the metadata as are wanted on disks that stay.
    async fn set_copies(&self) {
        let copies = {
            let file = self.file.lock();
            let meta = self.fs.meta();
            let draining = file.draining().filter(|it| meta.keeps_on_disk(it.id()));
            self.life.shape.metadata_copies(file.staying_count()) + draining.count()
        };
        if let Err(error) = self.fs.meta().set_copies(copies).await {
            tracing::debug!(%error, "the metadata does not have its copies yet");
        }
    }

    /// Does what there is to do now; false if nothing is left.
    async fn round(&self) -> Result<bool, String> {
        let draining: Vec<Member> = self.file.lock().draining().copied().collect();
        for member in &draining {
            let meta = self.fs.meta();
            if meta.uses_disk(member.id()) && meta.primary_disk() != member.id() {
                match meta.retire_disk(member.id()).await {
                    Ok(()) => self.set_copies().await,
                    Err(error) => tracing::debug!(%error, "metadata stays on a disk"),
                }
            }
        }
        let misplaced = self.misplaced();
        let mut rewrites = BTreeSet::new();
        // With fewer disks they would be as narrow again.
        let narrow = match self.fine_count() > self.life.shape.tolerated() {
            true => self.narrow(true),
            false => Vec::new(),
        };
        for one in &misplaced {
            if self.is_over() {
                return Ok(false);
            }
            // It must not depend on the next disk as it did on the one that leaves.
            if narrow.contains(&one.segment) && !one.is_short && !self.has_tried(one.segment) {
                rewrites.insert(one.segment);
                continue;
            }
            match self.move_one(one).await {
                Ok(()) => {}
                Err(error) if is_rewritten_after(one, &error) => {
                    rewrites.insert(one.segment);
                }
                Err(error @ (MoveError::NotNow | MoveError::NoTarget)) => {
                    tracing::debug!(segment = %one.segment, index = one.index, %error, "a shard stays");
                }
                Err(error) => self.excuse(&format!("moving a shard of {}", one.segment), &error)?,
            }
        }
        if misplaced.is_empty() {
            rewrites.extend(&narrow);
        }
        self.tried.lock().extend(&rewrites);
        let rewrites: Vec<SegmentId> = rewrites.into_iter().collect();
        for some in rewrites.chunks(REWRITE_SEGMENTS_MAX) {
            let rewritten = self.fs.rewrite_segments(some, &self.pace()).await;
            add(&self.done.steps, 1);
            if let Err(error) = rewritten {
                tracing::debug!(%error, "writing segments anew");
            }
            let gone = |id: &&SegmentId| self.fs.meta().segment(**id).is_none();
            let gone = some.iter().filter(gone).count();
            add(&self.done.segments_rewritten, gone as u64);
        }
        for member in draining {
            self.take_out(member).await;
        }
        let is_more = self.file.lock().draining().next().is_some();
        if is_more || !self.misplaced().is_empty() || !self.narrow(false).is_empty() {
            return Ok(true);
        }
        let is_whole = self.is_whole().await;
        self.done.is_whole.fetch_or(is_whole, Ordering::Relaxed);
        Ok(false)
    }

    fn has_tried(&self, segment: SegmentId) -> bool {
        self.tried.lock().contains(&segment)
    }

    /// Members that stay and work.
    fn fine_count(&self) -> usize {
        let file = self.file.lock();
        let members = file.members.iter();
        let staying = members.filter(|it| !it.is_draining);
        staying.filter(|it| self.is_there(it.id())).count()
    }

    fn is_there(&self, id: DiskId) -> bool {
        let status = self.segments.disk_status();
        let mut all = status.iter();
        all.any(|disk| disk.id == id && disk.state == DiskState::Healthy)
    }

    /// Segments that can lose fewer shards than is promised: written while disks were missing.
    fn narrow(&self, is_sealed: bool) -> Vec<SegmentId> {
        let all = self.segments.segments(VOLUME).into_iter();
        let narrow = all.filter(|info| {
            usize::from(info.code.parity()) < self.life.shape.tolerated()
                && (info.sealed || !is_sealed)
        });
        narrow.map(|info| info.id).collect()
    }

    /// Whether all members are there, and nothing has less protection than is promised.
    async fn is_whole(&self) -> bool {
        let members: Vec<DiskId> = {
            let file = self.file.lock();
            file.members.iter().map(Member::id).collect()
        };
        if !members.iter().all(|id| self.is_there(*id)) || self.fs.meta().stats().is_degraded() {
            return false;
        }
        // A shard whose segment a crash left without footers was copied as it was, silent damage included.
        if self.life.shape.trouble != Trouble::BadDisks {
            return true;
        }
        let unsealed = self.segments.unsealed(VOLUME, &self.pace()).await;
        unsealed.is_ok_and(|segments| segments.is_empty())
    }

    /// An error of a disk that nothing is wrong with.
    fn excuse(&self, what: &str, error: &MoveError) -> Result<(), String> {
        let is_full = error.to_string().contains("no space");
        let is_sound = self.life.shape.trouble == Trouble::Crashes;
        if is_sound && !is_full && !self.is_closing() {
            return Err(format!("{what}: {error}"));
        }
        Ok(())
    }

    fn is_closing(&self) -> bool {
        self.segments.segment_ids(VOLUME).is_err()
    }

    /// Shards on draining disks, or are not waited for any longer; least redundancy first.
    fn misplaced(&self) -> Vec<Misplaced> {
        let draining: BTreeSet<DiskId> = self.file.lock().draining().map(Member::id).collect();
        let lost: BTreeSet<DiskId> = self.lost.iter().map(|index| disk_id(*index)).collect();
        let mut all = Vec::new();
        for info in self.segments.segments(VOLUME) {
            let missing = info.disks.iter().filter(|disk| lost.contains(disk)).count();
            let may_rewrite = info.disks.iter().any(|disk| draining.contains(disk));
            for (index, disk) in (0..).zip(&info.disks) {
                if draining.contains(disk) || lost.contains(disk) {
                    all.push(Misplaced {
                        segment: info.id,
                        index,
                        spare: i16::from(info.code.parity()) - missing as i16,
                        is_short: missing > 0,
                        may_rewrite,
                    });
                }
            }
        }
        all.sort_by_key(|one| (one.spare, one.segment, one.index));
        all
    }

    async fn move_one(&self, one: &Misplaced) -> Result<(), MoveError> {
        let pace = self.pace();
        let info = self.segments.segment(VOLUME, one.segment);
        let was_on = info.and_then(|info| info.disks.get(usize::from(one.index)).copied());
        let moved = self.fs.copy_shard(one.segment, one.index, &pace).await?;
        add(&self.done.steps, 1);
        let Some(placed) = self.fs.place_shard(moved).await else {
            return Err(MoveError::NotNow);
        };
        add(&self.done.steps, 1);
        let durable = placed.durable().await;
        add(&self.done.steps, 1);
        let finished = placed.finish().await;
        let (Ok(()), Ok(moved)) = (durable, finished) else {
            return Err(MoveError::NotNow);
        };
        add(&self.done.steps, 1);
        add(&self.done.shards_moved, 1);
        let trouble = self.life.shape.trouble;
        if moved.lost_bytes > 0 && trouble != Trouble::Beyond {
            self.life.fail(format!(
                "moving shard {} of {} gave up {} bytes",
                one.index, one.segment, moved.lost_bytes
            ));
        }
        if trouble == Trouble::Crashes {
            self.check_footer(one).await;
        }
        if trouble != Trouble::Beyond {
            self.check_rebuilt(one, was_on).await;
        }
        Ok(())
    }

    /// A shard that was made anew is what it was on the disk that is lost.
    async fn check_rebuilt(&self, one: &Misplaced, was_on: Option<DiskId>) {
        let mut old = None;
        for disk in &self.had {
            let opened = open_disk(&self.life.shape, disk).await.ok();
            old = old.or(opened.filter(|disk| Some(disk.id()) == was_on));
        }
        let Some(old) = old else { return };
        let info = self.segments.segment(VOLUME, one.segment);
        let new = info.and_then(|info| self.shard_disk(*info.disks.get(usize::from(one.index))?));
        let Some(new) = new else { return };
        let name = ShardName {
            volume: VOLUME,
            segment: one.segment,
            index: one.index,
        };
        let (Some(old), Some(new)) = (footer(&old, name).await, footer(&new, name).await) else {
            return;
        };
        if (old.data_len_bytes, &old.checksums) != (new.data_len_bytes, &new.checksums) {
            self.life.fail(format!(
                "shard {} of {} is not what it was on the disk that is lost",
                one.index, one.segment
            ));
        }
    }

    fn shard_disk(&self, id: DiskId) -> Option<Arc<ShardDisk>> {
        let disks = self.shard_disks.lock();
        disks.iter().find(|disk| disk.id() == id).cloned()
    }

    /// A shard that was moved is sealed if others of its segment are: without its footer it cannot be repaired.
    async fn check_footer(&self, one: &Misplaced) {
        let Some(info) = self.segments.segment(VOLUME, one.segment) else {
            return;
        };
        let moved = self.is_sealed(&info, one.index).await;
        if moved != Some(false) {
            return;
        }
        for other in (0..info.code.total()).filter(|other| *other != one.index) {
            if self.is_sealed(&info, other).await == Some(true) {
                self.life.fail(format!(
                    "shard {} of {} lost its footer when it moved",
                    one.index, one.segment
                ));
                return;
            }
        }
    }

    /// Whether a shard has its footer; `None` if it is not there, as when its segment is gone meanwhile.
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

    /// Takes a draining disk out of the pool, if nothing is on it that is nowhere else.
    async fn take_out(&self, member: Member) {
        self.segments.placements_done().await;
        let id = member.id();
        if self.is_closing() || self.is_over() {
            return;
        }
        let of_store = self.segments.segments(VOLUME).into_iter();
        let of_store = of_store.map(|info| info.disks);
        let of_metadata = self.fs.meta().segments().into_iter();
        let mut all = of_store.chain(of_metadata.map(|(_, record)| record.disks));
        let is_used = all.any(|disks| disks.contains(&id)) || self.fs.meta().uses_disk(id);
        // What the status would say: not all of it is on enough disks yet.
        let stats = self.fs.meta().stats();
        if is_used || stats.is_degraded() {
            let members = &self.file.lock().members;
            tracing::debug!(?member, is_used, lost = ?self.lost, ?members, ?stats, "stays in the pool");
            return;
        }
        self.file.lock().forget(member.index);
        self.segments.disk_forget(id);
        add(&self.done.disks_left, 1);
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
            if scrubbed.needs_rewrite() {
                found.push(id);
            }
        }
        match self.fs.write_anew(found, &pace).await {
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
        // Of files that are made meanwhile there may be no end.
        let ino_last = self.fs.meta().ino_last();
        let mut after: Option<ExtentAt> = None;
        loop {
            let Ok(step) = self.fs.scrub_records(after, pace).await else {
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

/// Whether the records are written anew, because a shard cannot be moved; as a server decides it.
fn is_rewritten_after(one: &Misplaced, error: &MoveError) -> bool {
    match error {
        MoveError::Unsealed => true,
        MoveError::NoTarget => one.may_rewrite,
        MoveError::TooFew(_) => one.spare >= 0,
        MoveError::NotNow | MoveError::Disk(_) => false,
    }
}

/// Resolves when the work is done; `done` is called then.
pub async fn in_background(worker: Worker, done: impl FnOnce() + Send + 'static) {
    worker.run().await;
    done();
}
