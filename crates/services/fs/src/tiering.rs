//! Cold segments in a tier.
//!
//! Owns: which segments go to the tier and which come back, and the order of steps on both ways. Must not know: how a
//! segment is copied and read there (`segment`), what a tier is, how records are moved (`rewrite`).
//!
//! The order on the way out: it is noted durably that there may be an object; the segment is copied and read back; one
//! batch says that the segment is that object, and takes the note away; when that is durable, readers go there, and
//! the local shards are deleted. On the way back records are written anew, as a collection does, and the batch that
//! removes the empty segment notes its object. So at every moment an object is a segment's or it is noted, and what is
//! noted is nobody's: the one task of this module, which does all of this, deletes it.
//!
//! Segments go as a whole. Where the policy is for certain files, a segment of which others have little is freed of that
//! before; of another one, what these files have is copied into segments of cold data alone, which go when they are sealed.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, PoolId, SegmentId, TierId, Timestamp, View};
use cairn_meta::volume_settings::TierFilter;
use cairn_meta::{Batch, CookieRecord, Key, KeyKind, RemoteSegment, SegmentUsage, Ticket};
use cairn_segment::{CopyOutError, Location, ObjectId, Pace, SegmentError};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::Notify;

use crate::inode::{Inode, State};
use crate::rewrite::{To, Victim};
use crate::tasks::let_others_run;
use crate::types::FsError;
use crate::volume::{Fs, VolumeCore, meta_error};

/// The value of a note of an object that is there whole, or not at all,
pub(crate) const UNUSED_OBJECT: &[u8] = &[1];
/// and of one that is being written.
const COMING_OBJECT: &[u8] = &[2];
/// A write of which nobody knows how it ended may still do so within this time. Such an object is deleted again then.
const LATE_MAX: Duration = Duration::from_secs(180);
/// Segments looked at before others get their turn.
const LOOK_SEGMENTS_MAX: usize = 1024;
/// Segments that one look sends; the next finds more.
const SEND_MAX: usize = 256;
/// Segments that are brought back, or whose records are written anew, together.
const BACK_MAX: usize = 4;
/// Objects that one look deletes.
const DELETE_MAX: usize = 256;
/// What could not be sent or brought back is let alone for so long, at most so many of them.
const REST: Duration = Duration::from_secs(300);
const RESTING_MAX: usize = 4096;
/// A segment in a tier is written anew when less than this is alive of what was when it was sent. Of its bytes little may be
/// alive for good, because of how stripes are filled.
const COMPACT_LIVE_PERCENT: u64 = 50;
/// A segment of whose bytes less than this are alive is left to garbage collection.
const SEND_LIVE_PERCENT: u64 = 25;
/// Parts of files that wait to be brought back because they are read again and again; what is too much is forgotten.
const HOT_PARTS_MAX: usize = 1024;
/// Of a segment that is to go, files of which nothing is to go may have so much: that is written anew.
const STAYING_PERCENT_MAX: u64 = 25;
/// Segments of which a look finds out whose they are: each costs a summary.
const WHOSE_LOOKS_MAX: usize = 32;
/// One that stays is looked at again after so many looks, at most so many of them are remembered.
const STAYING_INTERVALS: u32 = 360;
const STAYING_MAX: usize = 1 << 20;
/// Places of records that were read from the tier lately.
const READ_PLACES: usize = 1 << 16;
const DAY_SECONDS: i64 = 24 * 3600;

/// What of a volume goes to a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierChoice {
    /// Nothing, and what is there comes back.
    None,
    /// What no file has any more and snapshots have, and nobody used for so many days.
    SnapshotOnly { cooling_days: u16 },
    /// What nobody used for so many days.
    Auto { cooling_days: u16 },
    /// Everything that takes no more writes.
    All,
}

/// Where what of a volume goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierPolicy {
    pub tier: TierId,
    pub choice: TierChoice,
    /// Of which files alone. What only snapshots have counts as its file does now, and stays if that is gone.
    pub filter: Option<Arc<TierFilter>>,
}

/// What a volume knows of tiers when it is opened.
#[derive(Clone)]
pub struct TieringSettings {
    /// A part of the keys of objects.
    pub pool: PoolId,
    pub policy: Option<TierPolicy>,
    /// How fast segments are read on their way out and back; `None`: as fast as possible.
    pub pace: Option<Arc<Pace>>,
    /// It looks this often.
    pub interval: Duration,
    /// A tier that failed is let alone for so long.
    pub trouble_pause: Duration,
}

impl Default for TieringSettings {
    fn default() -> Self {
        Self {
            pool: PoolId(0),
            policy: None,
            pace: None,
            interval: Duration::from_secs(10),
            trouble_pause: Duration::from_secs(20),
        }
    }
}

/// What a volume has in its tier, and what is being done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TieringStatus {
    /// Segments in the tier, one object each, and the bytes of data in them.
    pub objects: u64,
    pub remote_bytes: u64,
    /// What live records take of them.
    pub remote_live_bytes: u64,
    /// What they would take on disks, parity and copies included.
    pub saved_bytes: u64,
    /// Objects that nothing refers to and that are not deleted yet, as far as was looked (at most 256).
    pub unused_objects: u64,
    /// Segments and bytes that went out since the volume was opened, and bytes of records that came back.
    pub sent_segments: u64,
    pub sent_bytes: u64,
    pub promoted_parts: u64,
    /// Bytes of records that were copied into segments of cold data, because their files are to go and others are not.
    pub gathered_bytes: u64,
    /// Segments that could not be sent or brought back lately.
    pub resting_segments: u64,
    /// Why nothing goes on, if nothing does.
    pub trouble: Option<String>,
}

/// What tiering of a volume has before it.
pub(crate) struct TierWork {
    pool: PoolId,
    interval: Duration,
    trouble_pause: Duration,
    pace: Arc<Pace>,
    policy: Mutex<Option<TierPolicy>>,
    pub wake: Notify,
    /// Whether records that are read again and again come back.
    is_promoting: AtomicBool,
    read_places: Vec<AtomicU32>,
    hot: Mutex<VecDeque<(SegmentId, Ino, Range<u64>)>>,
    /// Segments that are let alone, and until when.
    resting: Mutex<FxHashMap<SegmentId, Duration>>,
    /// Segments that stay because of whose they are, and until when that is not looked at again.
    staying: Mutex<FxHashMap<SegmentId, Duration>>,
    /// Whether the last look did not come to all that may go. Until then none of `staying` is looked at again: else those
    /// at the front would have all looks.
    is_behind: AtomicBool,
    trouble: Mutex<Option<String>>,
    /// Held over a look with all that it does.
    round: tokio::sync::Mutex<()>,
    /// Objects that were being written, as far as this process knows of them.
    fates: Mutex<FxHashMap<(SegmentId, u128), Fate>>,
    unused_objects: AtomicU64,
    sent_segments: AtomicU64,
    sent_bytes: AtomicU64,
    promoted_parts: AtomicU64,
    gathered_bytes: AtomicU64,
}

/// How the writing of an object ended that is nobody's.
#[derive(Clone, Copy)]
enum Fate {
    /// It is there or not, and that stays so.
    Settled,
    /// It may come late; when it was deleted first.
    Late(Option<Duration>),
}

impl TierWork {
    pub fn new(settings: TieringSettings, env: &Env) -> Self {
        let pace = settings.pace;
        let policy = settings.policy;
        Self {
            pool: settings.pool,
            interval: settings.interval,
            trouble_pause: settings.trouble_pause,
            pace: pace.unwrap_or_else(|| Arc::new(Pace::new(env.clock.clone(), 0))),
            is_promoting: AtomicBool::new(is_promoting(policy.as_ref())),
            policy: Mutex::new(policy),
            wake: Notify::new(),
            read_places: (0..READ_PLACES).map(|_| AtomicU32::new(0)).collect(),
            hot: Mutex::default(),
            resting: Mutex::default(),
            staying: Mutex::default(),
            is_behind: AtomicBool::new(false),
            trouble: Mutex::default(),
            round: tokio::sync::Mutex::default(),
            fates: Mutex::default(),
            unused_objects: AtomicU64::new(0),
            sent_segments: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            promoted_parts: AtomicU64::new(0),
            gathered_bytes: AtomicU64::new(0),
        }
    }

    /// Whether a place was read from the tier before, as far as that is remembered.
    fn is_read_again(&self, segment: SegmentId, ino: Ino, start: u64) -> bool {
        let mut hash = segment.0 ^ ino.0.rotate_left(21) ^ start.rotate_left(42);
        hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
        let at = (hash >> 32) as usize % READ_PLACES;
        // 0 is nothing.
        let tag = (hash as u32).max(1);
        let slot = self.read_places.get(at);
        slot.is_some_and(|slot| slot.swap(tag, Ordering::Relaxed) == tag)
    }

    fn rest(&self, id: SegmentId, now: Duration) {
        let mut resting = self.resting.lock();
        if resting.len() < RESTING_MAX {
            resting.insert(id, now + REST);
        }
    }

    fn is_resting(&self, id: SegmentId) -> bool {
        self.resting.lock().contains_key(&id)
    }
}

fn is_promoting(policy: Option<&TierPolicy>) -> bool {
    policy.is_some_and(|policy| {
        matches!(
            policy.choice,
            TierChoice::Auto { .. } | TierChoice::SnapshotOnly { .. }
        )
    })
}

/// The note that an object is nobody's.
pub(crate) fn unused_object(segment: SegmentId, remote: &RemoteSegment) -> Key {
    Key::unused_object(remote.tier, segment, remote.nonce)
}

fn is_of_snapshots(choice: TierChoice) -> bool {
    matches!(choice, TierChoice::SnapshotOnly { .. })
}

/// What is in a segment, by where it is to be.
struct Sorted {
    going: Vec<Victim>,
    staying: Vec<Victim>,
}

/// How sending a segment ended.
enum Sent {
    Done,
    /// Not now; others may be sent.
    NotNow,
    /// Not as it is: its records are to be written anew first.
    Unsealed,
    /// The tier fails: the others would, too.
    TierFails(String),
}

impl Fs {
    /// What goes to a tier from now on. What is there stays readable; where nothing is to be there it comes back.
    pub fn set_tiering(&self, policy: Option<TierPolicy>) {
        let work = &self.shared.tiering;
        work.is_promoting
            .store(is_promoting(policy.as_ref()), Ordering::Relaxed);
        let mut now = work.policy.lock();
        let is_other = *now != policy;
        *now = policy;
        drop(now);
        if is_other {
            work.resting.lock().clear();
            work.staying.lock().clear();
            work.wake.notify_one();
        }
    }

    pub fn tiering_status(&self) -> TieringStatus {
        let work = &self.shared.tiering;
        let totals = self.shared.meta.segment_totals();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TieringStatus {
            objects: totals.remote_segments,
            remote_bytes: totals.remote_bytes,
            remote_live_bytes: totals.remote_live_bytes,
            saved_bytes: totals.remote_saved_bytes,
            unused_objects: of(&work.unused_objects),
            sent_segments: of(&work.sent_segments),
            sent_bytes: of(&work.sent_bytes),
            promoted_parts: of(&work.promoted_parts),
            gathered_bytes: of(&work.gathered_bytes),
            resting_segments: work.resting.lock().len() as u64,
            trouble: work.trouble.lock().clone(),
        }
    }

    /// Whether no segment is in a tier, no object of the volume is left there that it knows of, and its policy is to have nothing
    /// there: then it is durable, and stays so as long as the policy does. Not so while something is on its way.
    pub async fn has_nothing_in_tiers(&self) -> Result<bool, FsError> {
        let shared = &self.shared;
        // What goes out just now is nowhere to be seen yet.
        let Ok(_round) = shared.tiering.round.try_lock() else {
            return Ok(false);
        };
        // What is listed of the volume may say so already, and here it is not known yet.
        let policy = shared.tiering.policy.lock().clone();
        if policy.is_some_and(|policy| policy.choice != TierChoice::None) {
            return Ok(false);
        }
        shared.durable(shared.meta.last_ticket()).await?;
        let notes = shared.reading(|| shared.unused_objects(1)).await?;
        Ok(shared.meta.segment_totals().remote_segments == 0 && notes.is_empty())
    }

    /// Reads all of the object of the first segment from number `from` on that is in a tier, and compares it with its
    /// checksums. Returns how many bytes were read, what is wrong, and where to go on.
    pub async fn verify_tier(
        &self,
        from: SegmentId,
        pace: &Pace,
    ) -> Result<(u64, Option<SegmentError>, Option<SegmentId>), FsError> {
        let shared = &self.shared;
        let found = shared.meta.remote_segments(from, 2);
        let Some((id, _)) = found.first() else {
            return Ok((0, None, None));
        };
        let verifying = shared.segments.verify_object(shared.volume, *id, pace);
        let (bytes, wrong) = match select(pin!(verifying), pin!(shared.tasks.stopped())).await {
            Either::Left((Ok(bytes), _)) => (bytes, None),
            Either::Left((Err(error), _)) => (0, Some(error)),
            Either::Right(_) => return Err(FsError::Fenced),
        };
        Ok((bytes, wrong, found.get(1).map(|(next, _)| *next)))
    }
}

impl VolumeCore {
    pub(crate) async fn run_tiering(self: Arc<Self>) {
        let interval = self.tiering.interval;
        let trouble_pause = self.tiering.trouble_pause;
        while self
            .tasks
            .pause(interval, self.tiering.wake.notified())
            .await
        {
            match self.tier_once().await {
                Ok(None) => *self.tiering.trouble.lock() = None,
                Ok(Some(trouble)) => {
                    let before = self.tiering.trouble.lock().replace(trouble.clone());
                    if before.as_ref() != Some(&trouble) {
                        tracing::warn!(volume = %self.volume, trouble, "a tier does not take or give what it should; it is tried again");
                    }
                    if !self
                        .tasks
                        .pause(trouble_pause, std::future::pending())
                        .await
                    {
                        return;
                    }
                }
                Err(_) if self.tasks.is_stopping() => return,
                Err(error) => {
                    let trouble = error.to_string();
                    let before = self.tiering.trouble.lock().replace(trouble.clone());
                    if before.as_ref() != Some(&trouble) {
                        tracing::warn!(volume = %self.volume, %error, "tiering failed; it is tried again");
                    }
                    if !self
                        .tasks
                        .pause(trouble_pause, std::future::pending())
                        .await
                    {
                        return;
                    }
                }
            }
        }
    }

    /// One look: what is nobody's goes, and what the policy says is done. Returns why not all of it, if that is so.
    async fn tier_once(self: &Arc<Self>) -> Result<Option<String>, FsError> {
        let _round = self.tiering.round.lock().await;
        let mut trouble = self.delete_unused_objects().await?;
        let now = self.env.clock.monotonic();
        self.tiering.resting.lock().retain(|_, until| *until > now);
        if !self.tiering.is_behind.load(Ordering::Relaxed) {
            self.tiering.staying.lock().retain(|_, until| *until > now);
        }
        let policy = self.tiering.policy.lock().clone();
        let choice = policy
            .as_ref()
            .map_or(TierChoice::None, |policy| policy.choice);
        let has_remote = self.meta.segment_totals().remote_segments > 0;
        if choice == TierChoice::None {
            if has_remote {
                trouble = trouble.or(self.bring_back(None).await?);
            }
            return Ok(trouble);
        }
        let Some(policy) = policy else {
            return Ok(trouble);
        };
        if has_remote {
            self.promote().await?;
        }
        let needs_look = policy.filter.is_some() || is_of_snapshots(choice);
        let mut looks = 0;
        // Before anything is written anew: where there is no room, this makes it.
        for id in self.cold_segments(&policy).await? {
            if self.tiering.policy.lock().as_ref() != Some(&policy) {
                break;
            }
            if needs_look {
                if looks == WHOSE_LOOKS_MAX {
                    looks += 1;
                    break;
                }
                looks += 1;
                let (goes, why_not) = match &policy.filter {
                    Some(filter) => self.leave_to_chosen(id, filter).await?,
                    None => (self.leave_to_snapshots(id).await?, None),
                };
                trouble = trouble.or(why_not);
                if !goes {
                    self.note_staying(id);
                    continue;
                }
            }
            match self.send_out(id, policy.tier).await? {
                Sent::Done => {}
                Sent::NotNow => self.tiering.rest(id, self.env.clock.monotonic()),
                Sent::Unsealed => {
                    trouble = trouble.or(self.write_anew(id).await?);
                }
                Sent::TierFails(why) => return Ok(Some(why)),
            }
        }
        let is_behind = looks > WHOSE_LOOKS_MAX;
        self.tiering.is_behind.store(is_behind, Ordering::Relaxed);
        if has_remote {
            trouble = trouble.or(self.bring_back(Some(COMPACT_LIVE_PERCENT)).await?);
        }
        Ok(trouble)
    }

    /// Writes what is left of a segment into one that is sealed in its time, and goes then.
    async fn write_anew(self: &Arc<Self>, id: SegmentId) -> Result<Option<String>, FsError> {
        let record = self.meta.segment(id);
        let live_bytes = record.map_or(0, |record| record.live_bytes);
        self.bring_some_back(&[(id, live_bytes)]).await
    }

    /// Segments to send now. Notes in the metadata which were used, for that.
    async fn cold_segments(&self, policy: &TierPolicy) -> Result<Vec<SegmentId>, FsError> {
        let has_history = self.meta.counters().history_bytes > 0;
        let today = (self.now().seconds.max(0) / DAY_SECONDS) as u32;
        let mut cold = Vec::new();
        let mut from = SegmentId(0);
        loop {
            let some = self.meta.segment_usage(from, LOOK_SEGMENTS_MAX);
            let mut batch = Batch::new();
            for usage in &some {
                if usage.is_remote || !usage.sealed {
                    continue;
                }
                let is_used = self.segments.take_used(self.volume, usage.id);
                if (is_used || usage.used_day == 0) && usage.used_day != today {
                    batch.segment_used(usage.id, today);
                }
                let is_cold = match policy.choice {
                    TierChoice::None => false,
                    TierChoice::SnapshotOnly { .. } if !has_history => false,
                    TierChoice::All => true,
                    TierChoice::Auto { cooling_days }
                    | TierChoice::SnapshotOnly { cooling_days } => {
                        let is_noted = usage.used_day != 0 && !is_used;
                        is_noted && today.saturating_sub(usage.used_day) >= u32::from(cooling_days)
                    }
                };
                if is_cold && self.is_worth_sending(usage) && cold.len() < SEND_MAX {
                    cold.push(usage.id);
                }
            }
            if !batch.is_empty() && !self.meta.is_full() {
                // Nothing waits for it: after a crash it cools a little longer.
                self.meta.submit(batch);
            }
            match some.last() {
                Some(last) if some.len() == LOOK_SEGMENTS_MAX => from = SegmentId(last.id.0 + 1),
                _ => return Ok(cold),
            }
            let_others_run().await;
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
        }
    }

    fn is_worth_sending(&self, usage: &SegmentUsage) -> bool {
        let live_percent = usage.live_bytes.saturating_mul(100) / usage.data_bytes.max(1);
        usage.live_records > 0
            && live_percent >= SEND_LIVE_PERCENT
            && !self.tiering.is_resting(usage.id)
            && !self.tiering.staying.lock().contains_key(&usage.id)
            && self.is_idle(usage.id)
    }

    /// Makes a segment one that snapshots alone have, if files have little of it. False if they have more, or nobody can tell.
    async fn leave_to_snapshots(self: &Arc<Self>, id: SegmentId) -> Result<bool, FsError> {
        let Some(record) = self.meta.segment(id) else {
            return Ok(false);
        };
        let bytes_max = record.live_bytes.saturating_mul(STAYING_PERCENT_MAX) / 100;
        let Some(of_files) = self.of_files(id, bytes_max).await? else {
            return Ok(false);
        };
        if of_files.is_empty() {
            return Ok(true);
        }
        // It can stay as it is.
        let code = self.code()?;
        if self.usable(code).free_bytes < bytes_max.saturating_mul(4) {
            return Ok(false);
        }
        let moving = self.move_victims(id, of_files, To::Disks);
        match select(pin!(moving), pin!(self.tasks.stopped())).await {
            Either::Left((moved, _)) => moved?,
            Either::Right(_) => return Err(FsError::Fenced),
        }
        let left = self.of_files(id, bytes_max).await?;
        Ok(left.is_some_and(|left| left.is_empty()))
    }

    /// Makes a segment one of which only files have something that the filter takes, if others have little of it; else
    /// copies what those files have of it to segments of cold data. Says whether it is to go now, and what is in the way.
    async fn leave_to_chosen(
        self: &Arc<Self>,
        id: SegmentId,
        filter: &TierFilter,
    ) -> Result<(bool, Option<String>), FsError> {
        let Some(Sorted { going, staying }) = self.sorted(id, filter).await? else {
            // Nothing says whose it is. In segments of collections something does.
            return Ok((false, self.write_anew(id).await?));
        };
        if going.is_empty() || staying.is_empty() {
            return Ok((!going.is_empty(), None));
        }
        let bytes_of = |victims: &[Victim]| victims.iter().map(Victim::live_bytes).sum::<u64>();
        let (going_bytes, staying_bytes) = (bytes_of(&going), bytes_of(&staying));
        let percent = staying_bytes.saturating_mul(100) / (going_bytes + staying_bytes).max(1);
        let is_freed = percent <= STAYING_PERCENT_MAX;
        let used_day = self.meta.segment(id).map_or(0, |record| record.used_day);
        let (moved, moved_bytes, to) = match is_freed {
            true => (staying, staying_bytes, To::Disks),
            false => (going, going_bytes, To::Tier { used_day }),
        };
        // It can stay as it is, and what garbage collection and deletions need is theirs.
        let code = self.code()?;
        let free_bytes = self.usable(code).free_bytes;
        if free_bytes < moved_bytes.saturating_mul(4) {
            let why = format!(
                "no room to part files that go to the tier from others: {moved_bytes} bytes are to be rewritten, and {free_bytes} are free; delete data or add a disk"
            );
            return Ok((false, Some(why)));
        }
        let moving = self.move_victims(id, moved, to);
        match select(pin!(moving), pin!(self.tasks.stopped())).await {
            Either::Left((moved, _)) => moved?,
            Either::Right(_) => return Err(FsError::Fenced),
        }
        if !is_freed {
            let gathered = &self.tiering.gathered_bytes;
            gathered.fetch_add(going_bytes, Ordering::Relaxed);
            return Ok((false, None));
        }
        let left = self.sorted(id, filter).await?;
        let goes = left.is_some_and(|left| left.staying.is_empty() && !left.going.is_empty());
        Ok((goes, None))
    }

    /// The extents in a segment by whether they are of files that the filter takes; `None`: nobody can tell. A record that
    /// is of others, too, stays with them.
    async fn sorted(
        self: &Arc<Self>,
        id: SegmentId,
        filter: &TierFilter,
    ) -> Result<Option<Sorted>, FsError> {
        let Some(all) = self.all_in(id).await? else {
            return Ok(None);
        };
        let now = self.now();
        let mut taken: FxHashMap<Ino, bool> = FxHashMap::default();
        for victim in &all {
            if let Entry::Vacant(place) = taken.entry(victim.ino()) {
                let find = || self.is_taken(victim.ino(), filter, now);
                place.insert(self.reading(find).await?);
            }
        }
        let is_taken = |victim: &Victim| taken.get(&victim.ino()) == Some(&true);
        let others = all.iter().filter(|victim| !is_taken(victim));
        let shared: FxHashSet<Location> = others.map(Victim::location).collect();
        let (going, staying) = all
            .into_iter()
            .partition(|victim| is_taken(victim) && !shared.contains(&victim.location()));
        Ok(Some(Sorted { going, staying }))
    }

    /// Whether a filter takes a file. One that is gone, or has no name where it had one last, stays.
    fn is_taken(&self, ino: Ino, filter: &TierFilter, now: Timestamp) -> Result<bool, FsError> {
        let inode = match self.own_inode(ino) {
            Ok(inode) => inode,
            Err(FsError::Stale) => return Ok(false),
            Err(error) => return Err(error),
        };
        let (size_bytes, mtime, parent, cookie) = {
            let state = inode.lock();
            if state.removed {
                return Ok(false);
            }
            let record = &state.record;
            (
                record.size_bytes,
                record.mtime,
                record.parent,
                record.cookie,
            )
        };
        let age_seconds = now.seconds.saturating_sub(mtime.seconds);
        filter.takes(size_bytes, age_seconds, || {
            let name = self.noted_name(ino, parent, cookie)?;
            Ok(name.is_some_and(|entry| filter.files.matches(&entry.name)))
        })
    }

    /// The entry that an inode notes as its own, if it is still that.
    fn noted_name(
        &self,
        ino: Ino,
        parent: Ino,
        cookie: u64,
    ) -> Result<Option<CookieRecord>, FsError> {
        let (view, dir) = match self.stored_at(View::Live, parent) {
            Ok(found) => found,
            Err(FsError::Stale) => return Ok(None),
            Err(error) => return Err(error),
        };
        let stored = self.meta.view(view);
        let stored = stored.and_then(|meta| meta.get(&Key::cookie(dir, cookie)));
        let stored = stored.map_err(meta_error)?;
        let entry = stored.map(|bytes| CookieRecord::decode(&bytes)).transpose();
        let entry = entry.map_err(|error| meta_error(error.into()))?;
        Ok(entry.filter(|entry| entry.ino.in_branch(ino.branch()) == ino))
    }

    fn note_staying(&self, id: SegmentId) {
        let pause = self.tiering.interval.saturating_mul(STAYING_INTERVALS);
        let until = self.env.clock.monotonic() + pause;
        let mut staying = self.tiering.staying.lock();
        if staying.len() < STAYING_MAX {
            staying.insert(id, until);
        }
    }

    /// Sends one segment to the tier.
    async fn send_out(self: &Arc<Self>, id: SegmentId, tier: TierId) -> Result<Sent, FsError> {
        let nonce = self.env.entropy.u128();
        // Whatever becomes of the rest, somebody knows of the object.
        let mut batch = Batch::new();
        let note = Key::unused_object(tier, id, nonce);
        if !planted::is(Bug::TierObjectNotNoted) {
            batch.put(note.clone(), COMING_OBJECT);
        }
        self.durable(self.meta.submit(batch)).await?;
        let names = (self.tiering.pool, self.volume, id);
        let copied = {
            let copying = self
                .segments
                .copy_out(names, (tier, nonce), &self.tiering.pace);
            match select(pin!(copying), pin!(self.tasks.stopped())).await {
                Either::Left((copied, _)) => copied,
                Either::Right(_) => return Err(FsError::Fenced),
            }
        };
        let mut copied = match copied {
            Ok(copied) => copied,
            Err(error) => {
                // What there is of the object is nobody's, and is deleted by the next look.
                let fate = match error {
                    CopyOutError::NotNow
                    | CopyOutError::Unsealed
                    | CopyOutError::NotWhole(_)
                    | CopyOutError::NotBegun(_) => Fate::Settled,
                    CopyOutError::Differs(_) | CopyOutError::Tier(_) => Fate::Late(None),
                };
                self.tiering.fates.lock().insert((id, nonce), fate);
                let sent = match error {
                    CopyOutError::NotNow => Sent::NotNow,
                    CopyOutError::Unsealed => Sent::Unsealed,
                    CopyOutError::NotWhole(_) => {
                        tracing::info!(volume = %self.volume, segment = %id, %error, "a segment does not go to its tier now");
                        Sent::NotNow
                    }
                    CopyOutError::Differs(_)
                    | CopyOutError::NotBegun(_)
                    | CopyOutError::Tier(_) => {
                        Sent::TierFails(format!("segment {id} was not copied: {error}"))
                    }
                };
                self.tiering.wake.notify_one();
                return Ok(sent);
            }
        };
        let record = self.meta.segment(id);
        copied.remote.sent_live_bytes = record.map_or(0, |record| record.live_bytes);
        let mut batch = Batch::new();
        batch.remote_segment(id, copied.remote, copied.shard_len_bytes);
        batch.delete(note);
        // Only if something lives in it: what is dead may be being deleted, and stays as whoever does that found it.
        match self.meta.submit_sharing(batch, &[id]) {
            None => {
                copied.abandon();
                let mut fates = self.tiering.fates.lock();
                fates.insert((id, nonce), Fate::Settled);
                drop(fates);
                self.tiering.wake.notify_one();
                return Ok(Sent::NotNow);
            }
            // The log never sees this.
            Some(Ticket::REFUSED) => {
                copied.abandon();
                return Err(FsError::Fenced);
            }
            // After an error nobody knows what the log has: the shards stay, and the next opening decides.
            Some(ticket) => self.durable(ticket).await?,
        }
        let work = &self.tiering;
        work.sent_segments.fetch_add(1, Ordering::Relaxed);
        let sent_bytes = copied.remote.object_len_bytes;
        work.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
        copied.finish().await;
        Ok(Sent::Done)
    }

    /// Writes the records anew of segments in tiers, of all or of those of which less than so many percent are alive of what was
    /// when they were sent, and so gets rid of their objects. Returns why not, if something is in the way.
    async fn bring_back(
        self: &Arc<Self>,
        below_percent: Option<u64>,
    ) -> Result<Option<String>, FsError> {
        let mut from = SegmentId(0);
        let mut trouble = None;
        loop {
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
            let some = self.meta.remote_segments(from, LOOK_SEGMENTS_MAX);
            let sparse = some.iter().filter(|(id, record)| {
                let sent_bytes = record.remote.map_or(0, |remote| remote.sent_live_bytes);
                let percent = record.live_bytes.saturating_mul(100) / sent_bytes.max(1);
                below_percent.is_none_or(|below| percent < below)
                    && record.live_records > 0
                    && !self.tiering.is_resting(*id)
            });
            let wanted: Vec<(SegmentId, u64)> = sparse
                .map(|(id, record)| (*id, record.live_bytes))
                .collect();
            for chosen in wanted.chunks(BACK_MAX) {
                // One that cannot be read keeps no other from coming back.
                trouble = trouble.or(self.bring_some_back(chosen).await?);
                if trouble.is_some() && self.is_tier_away(chosen) {
                    return Ok(trouble);
                }
                // Somebody may have thought otherwise meanwhile.
                let is_none = {
                    let policy = self.tiering.policy.lock();
                    let choice = policy.as_ref().map(|policy| policy.choice);
                    choice.is_none_or(|choice| choice == TierChoice::None)
                };
                if is_none != below_percent.is_none() {
                    return Ok(trouble);
                }
            }
            match some.last() {
                Some((last, _)) if some.len() == LOOK_SEGMENTS_MAX => from = SegmentId(last.0 + 1),
                _ => return Ok(trouble),
            }
        }
    }

    /// Whether a tier does not answer that one of these segments is in.
    fn is_tier_away(&self, of: &[(SegmentId, u64)]) -> bool {
        of.iter().any(|(id, _)| {
            let remote = self.meta.segment(*id).and_then(|record| record.remote);
            let stats = remote.and_then(|remote| self.segments.tier_stats(remote.tier));
            stats.is_some_and(|stats| stats.is_away)
        })
    }

    async fn bring_some_back(
        self: &Arc<Self>,
        chosen: &[(SegmentId, u64)],
    ) -> Result<Option<String>, FsError> {
        let needed: u64 = chosen.iter().map(|(_, live_bytes)| live_bytes).sum();
        let code = self.code()?;
        // Not of what garbage collection and deletions need: the copies are made as theirs are.
        let free_bytes = self.usable(code).free_bytes;
        if free_bytes < needed.saturating_mul(2) {
            return Ok(Some(format!(
                "no room to write data anew: {needed} bytes at a time, and {free_bytes} are free; delete data or add a disk"
            )));
        }
        let ids: Vec<SegmentId> = chosen.iter().map(|(id, _)| *id).collect();
        let pace = self.tiering.pace.clone();
        let rewriting = self.rewrite_segments(&ids, &pace);
        match select(pin!(rewriting), pin!(self.tasks.stopped())).await {
            Either::Left((Ok(()), _)) => {}
            Either::Left((Err(FsError::Fenced), _)) | Either::Right(_) => {
                return Err(FsError::Fenced);
            }
            Either::Left((Err(error), _)) => {
                let now = self.env.clock.monotonic();
                if !self.is_tier_away(chosen) {
                    for (id, _) in chosen {
                        self.tiering.rest(*id, now);
                    }
                }
                return Ok(Some(format!(
                    "data could not be read and rewritten: {error}"
                )));
            }
        }
        if planted::is(Bug::TierBackWithoutSnapshots) {
            self.remove_segments(&ids).await?;
        }
        let now = self.env.clock.monotonic();
        let is_away = self.is_tier_away(chosen);
        let mut left = 0;
        for id in ids {
            let record = self.meta.segment(id);
            if record.is_some_and(|record| record.live_records > 0) {
                if !is_away {
                    self.tiering.rest(id, now);
                }
                left += 1;
            }
        }
        Ok((left > 0).then(|| {
            format!("{left} segments could not all be read and rewritten; they are tried again")
        }))
    }

    /// Up to `max` objects that are nobody's, and whether each was being written when that was noted.
    pub(crate) fn unused_objects(&self, max: usize) -> Result<Vec<(Key, bool)>, FsError> {
        let (from, to) = Key::unused_objects();
        let mut found = Vec::new();
        let visit = |key: &[u8], value: &[u8], _| {
            found.extend(Key::parse(key).map(|key| (key, value == COMING_OBJECT)));
            match found.len() < max {
                true => std::ops::ControlFlow::Continue(()),
                false => std::ops::ControlFlow::Break(()),
            }
        };
        self.meta
            .live()
            .scan_with(&from, &to, visit)
            .map_err(meta_error)?;
        Ok(found)
    }

    /// Deletes objects that are nobody's. Returns why not, if the tier does not do it.
    async fn delete_unused_objects(&self) -> Result<Option<String>, FsError> {
        let notes = self.reading(|| self.unused_objects(DELETE_MAX)).await?;
        let unused = &self.tiering.unused_objects;
        unused.store(notes.len() as u64, Ordering::Relaxed);
        if notes.is_empty() {
            return Ok(None);
        }
        // What made them nobody's may not be durable: after a crash a segment would refer to what is gone.
        self.durable(self.meta.last_ticket()).await?;
        for (note, is_coming) in notes {
            let Ok(KeyKind::UnusedObject {
                tier,
                segment,
                nonce,
            }) = note.kind()
            else {
                continue;
            };
            // A bug would lose data here, and a look costs nothing.
            let is_used = self
                .meta
                .segment(segment)
                .and_then(|record| record.remote)
                .is_some_and(|remote| remote.nonce == nonce);
            if is_used {
                let error = format!("segment {segment} is noted as unused and is used");
                return Err(FsError::Io(error));
            }
            let fate = self.fate_of(tier, (segment, nonce), is_coming);
            let now = self.env.clock.monotonic();
            if let Fate::Late(Some(at)) = fate
                && now.saturating_sub(at) < LATE_MAX
            {
                continue;
            }
            let object = ObjectId {
                volume: self.volume,
                segment,
                nonce,
            };
            let deleting = self.segments.delete_object(tier, object);
            match select(pin!(deleting), pin!(self.tasks.stopped())).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(error), _)) => {
                    return Ok(Some(format!("an object was not deleted: {error}")));
                }
                Either::Right(_) => return Err(FsError::Fenced),
            }
            if let Fate::Late(None) = fate {
                let late = Fate::Late(Some(now));
                self.tiering.fates.lock().insert((segment, nonce), late);
                continue;
            }
            self.tiering.fates.lock().remove(&(segment, nonce));
            let mut batch = Batch::new();
            batch.delete(note);
            // Nothing waits for it: it may be deleted again.
            self.meta.submit(batch);
            unused.fetch_sub(1, Ordering::Relaxed);
        }
        if unused.load(Ordering::Relaxed) == 0 {
            self.tiering.wake.notify_one();
        }
        Ok(None)
    }

    /// Whether an object that was noted may still come.
    fn fate_of(&self, tier: TierId, object: (SegmentId, u128), is_coming: bool) -> Fate {
        if !is_coming || planted::is(Bug::TierLateObjectForgotten) {
            return Fate::Settled;
        }
        let mut fates = self.tiering.fates.lock();
        // Of what an earlier process wrote, a store that is far away may have more than that process heard of.
        *fates
            .entry(object)
            .or_insert_with(|| match self.segments.may_be_late(tier) {
                true => Fate::Late(None),
                false => Fate::Settled,
            })
    }

    /// Notes which parts of a file are read from the tier, and not for the first time.
    pub(crate) fn note_remote_read(&self, inode: &Inode, state: &State, range: &Range<u64>) {
        let work = &self.tiering;
        if !work.is_promoting.load(Ordering::Relaxed) || !inode.view.is_live() {
            return;
        }
        let touching = state.extents.touching(range.clone());
        for extent in touching.filter_map(|extent| extent.in_record()) {
            let segment = extent.segment();
            let from = extent.offset_in_record;
            let to = from.saturating_add(extent.len_bytes() as u32);
            // What is in memory costs nothing.
            let is_near = || {
                let cached = self
                    .segments
                    .read_cached(self.volume, &extent.record, from..to);
                cached.is_some()
            };
            if self.segments.is_remote(self.volume, segment)
                && !is_near()
                && work.is_read_again(segment, inode.ino, extent.start)
            {
                let mut hot = work.hot.lock();
                if hot.len() < HOT_PARTS_MAX {
                    hot.push_back((segment, inode.ino, extent.start..extent.end));
                    work.wake.notify_one();
                }
            }
        }
    }

    /// Writes what is read again and again to the disks.
    async fn promote(self: &Arc<Self>) -> Result<(), FsError> {
        let hot: Vec<_> = self.tiering.hot.lock().drain(..).collect();
        if hot.is_empty() {
            return Ok(());
        }
        let wanted: FxHashSet<SegmentId> = hot.iter().map(|(segment, ..)| *segment).collect();
        let bytes: u64 = hot
            .iter()
            .map(|(_, _, range)| range.end - range.start)
            .sum();
        let code = self.code()?;
        // There is no need for it: the data can be read where it is.
        if self.usable(code).free_bytes < bytes.saturating_mul(4) {
            return Ok(());
        }
        let count = hot.len() as u64;
        let parts: Vec<(Ino, Range<u64>)> = hot
            .into_iter()
            .map(|(_, ino, range)| (ino, range))
            .collect();
        let rewriting = self.rewrite_parts(parts, &wanted);
        match select(pin!(rewriting), pin!(self.tasks.stopped())).await {
            Either::Left((done, _)) => done?,
            Either::Right(_) => return Err(FsError::Fenced),
        }
        let promoted = &self.tiering.promoted_parts;
        promoted.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_not_read_again() {
        let env = cairn_testkit::TestWorld::new(1).env;
        let work = TierWork::new(TieringSettings::default(), &env);
        let again = (0..10_000).filter(|at| work.is_read_again(SegmentId(1), Ino(2), at << 17));
        assert_eq!(again.count(), 0);
        assert!(work.is_read_again(SegmentId(1), Ino(2), 9_999 << 17));
        assert!(!work.is_read_again(SegmentId(2), Ino(2), 9_999 << 17));
    }
}
