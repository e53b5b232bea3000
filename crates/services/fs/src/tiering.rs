//! Tiering: offloads cold segments to a tier and promotes them again.
//!
//! Owns: which segments go to the tier and which come back, and the order of steps on both ways. Must not know: how a
//! segment is copied and read there (`segment`), the kind of tier, how records are moved (`rewrite`).
//!
//! To offload a segment, first a durable note says that there may be an object. Then the segment is copied and read
//! back. One batch records that the segment is that object, and deletes the note. When that is durable, readers go to
//! the tier, and the local shards are deleted. To promote, records are rewritten as in garbage collection, and the
//! batch that removes the empty segment notes its object. So at every moment an object belongs to a segment or has a
//! note, and an object with a note is unused: the one task of this module, which does all of this, deletes it.
//!
//! Segments are offloaded as a whole. If the policy selects certain files, a segment with little data of other files
//! is freed of that data first. From other segments, the data of the selected files is copied into segments of cold
//! data alone, which are offloaded when they are sealed.

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

use crate::kernel::{Bare, Inode, State, meta_error};
use crate::rewrite::{To, Victim};
use crate::tasks::let_others_run;
use crate::types::FsError;
use crate::volume::{Fs, VolumeCore};

/// The value of a note of an object that is complete, or absent,
pub(crate) const UNUSED_OBJECT: &[u8] = &[1];
/// and of one that is being written.
const COMING_OBJECT: &[u8] = &[2];
/// A write with an unknown result may still complete within this time. Such an object is then deleted again.
const LATE_MAX: Duration = Duration::from_secs(180);
/// Segments that are visited before other tasks get their turn.
const LOOK_SEGMENTS_MAX: usize = 1024;
/// Segments that one round offloads; the next round finds more.
const SEND_MAX: usize = 256;
/// Segments that are promoted, or rewritten, together.
const BACK_MAX: usize = 4;
/// Objects that one round deletes.
const DELETE_MAX: usize = 256;
/// A segment that could not be offloaded or promoted is skipped for so long; so many of them are remembered at most.
const REST: Duration = Duration::from_secs(300);
const RESTING_MAX: usize = 4096;
/// A segment in a tier is rewritten when less than this share of its live bytes at the offload is still live. A share
/// of all its bytes would not do: because of how stripes are filled, it may be low for good.
const COMPACT_LIVE_PERCENT: u64 = 50;
/// A segment with less than this share of live bytes is left to garbage collection.
const SEND_LIVE_PERCENT: u64 = 25;
/// Frequently read parts of files that wait for promotion; the excess is forgotten.
const HOT_PARTS_MAX: usize = 1024;
/// In a segment to offload, files that stay may have so much data: that data is rewritten.
const STAYING_PERCENT_MAX: u64 = 25;
/// Segments whose files one round looks up: each lookup reads a summary.
const WHOSE_LOOKS_MAX: usize = 32;
/// A segment that stays is looked up again after so many intervals; so many of them are remembered at most.
const STAYING_INTERVALS: u32 = 360;
const STAYING_MAX: usize = 1 << 20;
/// Remembered places of records that were recently read from the tier.
const READ_PLACES: usize = 1 << 16;
const DAY_SECONDS: i64 = 24 * 3600;

/// The part of a volume that goes to a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierChoice {
    /// Nothing; data in the tier is promoted.
    None,
    /// Data that only snapshots have, and that was unused for so many days.
    SnapshotOnly { cooling_days: u16 },
    /// Data that was unused for so many days.
    Auto { cooling_days: u16 },
    /// All sealed segments.
    All,
}

/// The tier of a volume, and the data that goes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierPolicy {
    pub tier: TierId,
    pub choice: TierChoice,
    /// Only files that this selects. Data that only snapshots have follows its file as it is now, and stays if the
    /// file is gone.
    pub filter: Option<Arc<TierFilter>>,
}

/// The tier settings of a volume when it is opened.
#[derive(Clone)]
pub struct TieringSettings {
    /// A part of the keys of objects.
    pub pool: PoolId,
    pub policy: Option<TierPolicy>,
    /// The pace of reading segments for offload and promotion; `None`: as fast as possible.
    pub pace: Option<Arc<Pace>>,
    /// Interval between two rounds.
    pub interval: Duration,
    /// A tier that failed is not used for so long.
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

/// The data that a volume has in its tier, and the progress of tiering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TieringStatus {
    /// Segments in the tier, one object each, and the bytes of data in them.
    pub objects: u64,
    pub remote_bytes: u64,
    /// Bytes of live records in them.
    pub remote_live_bytes: u64,
    /// The bytes that they would take on disks, with parity and copies.
    pub saved_bytes: u64,
    /// Unused objects that are not deleted yet, as far as known (at most 256).
    pub unused_objects: u64,
    /// Segments and bytes that were offloaded since the volume was opened, and bytes of records that were promoted.
    pub sent_segments: u64,
    pub sent_bytes: u64,
    pub promoted_parts: u64,
    /// Bytes of records that were copied into segments of cold data, because the policy selects their files and not
    /// others.
    pub gathered_bytes: u64,
    /// Segments that recently could not be offloaded or promoted.
    pub resting_segments: u64,
    /// The reason why tiering makes no progress, if it does not.
    pub trouble: Option<String>,
}

/// The state of a volume's tiering.
pub(crate) struct TierWork {
    pool: PoolId,
    interval: Duration,
    trouble_pause: Duration,
    pace: Arc<Pace>,
    policy: Mutex<Option<TierPolicy>>,
    pub wake: Notify,
    /// Whether frequently read records are promoted.
    is_promoting: AtomicBool,
    read_places: Vec<AtomicU32>,
    hot: Mutex<VecDeque<(SegmentId, Ino, Range<u64>)>>,
    /// Segments that are skipped, each until a time.
    resting: Mutex<FxHashMap<SegmentId, Duration>>,
    /// Segments that stay because of their files, each with the time of the next lookup.
    staying: Mutex<FxHashMap<SegmentId, Duration>>,
    /// Whether the last round left candidates unvisited. While it is set, no segment in `staying` is looked up again:
    /// otherwise the first segments would use up all lookups.
    is_behind: AtomicBool,
    trouble: Mutex<Option<String>>,
    /// Held during a round.
    round: tokio::sync::Mutex<()>,
    /// Objects that were being written, as far as this process knows.
    fates: Mutex<FxHashMap<(SegmentId, u128), Fate>>,
    unused_objects: AtomicU64,
    sent_segments: AtomicU64,
    sent_bytes: AtomicU64,
    promoted_parts: AtomicU64,
    gathered_bytes: AtomicU64,
}

/// The result of the writing of an unused object.
#[derive(Clone, Copy)]
enum Fate {
    /// The object exists or not, and that does not change any more.
    Settled,
    /// The object may appear late; with the time of the first deletion.
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
        // 0 means an empty slot.
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

/// The note of an unused object.
pub(crate) fn unused_object(segment: SegmentId, remote: &RemoteSegment) -> Key {
    Key::unused_object(remote.tier, segment, remote.nonce)
}

fn is_of_snapshots(choice: TierChoice) -> bool {
    matches!(choice, TierChoice::SnapshotOnly { .. })
}

/// The extents in a segment, by their target.
struct Sorted {
    going: Vec<Victim>,
    staying: Vec<Victim>,
}

/// The result of offloading a segment.
enum Sent {
    Done,
    /// Not now; others may be offloaded.
    NotNow,
    /// Not in this form: its records have to be rewritten first.
    Unsealed,
    /// The tier fails, so it would fail for the others, too.
    TierFails(String),
}

impl Fs {
    /// Sets the tier policy from now on. Data in the tier stays readable; it is promoted if the policy is to have
    /// none there.
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

    /// Whether no segment is in a tier, no known object of the volume is left there, and the policy is to have
    /// nothing there. If so, that is durable, and stays so as long as the policy does. False during an offload.
    pub async fn has_nothing_in_tiers(&self) -> Result<bool, FsError> {
        let shared = &self.shared;
        // A segment that is being offloaded right now is not visible yet.
        let Ok(_round) = shared.tiering.round.try_lock() else {
            return Ok(false);
        };
        // The listed policy of the volume may be newer than the one that is known here.
        let policy = shared.tiering.policy.lock().clone();
        if policy.is_some_and(|policy| policy.choice != TierChoice::None) {
            return Ok(false);
        }
        shared.durable(shared.meta.last_ticket()).await?;
        let notes = shared.reading(|| shared.unused_objects(1)).await?;
        Ok(shared.meta.segment_totals().remote_segments == 0 && notes.is_empty())
    }

    /// Reads the whole object of the first segment in a tier from number `from` on, and compares it with its
    /// checksums. Returns the number of bytes read, the fault, and the number to continue at.
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

    /// One round: deletes unused objects, and follows the policy. Returns the reason if a part of that was not possible.
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
        // Before any rewriting: this makes room where there is none.
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

    /// Rewrites the remaining data of a segment into one that is sealed in its time, and is offloaded then.
    async fn write_anew(self: &Arc<Self>, id: SegmentId) -> Result<Option<String>, FsError> {
        let record = self.meta.segment(id);
        let live_bytes = record.map_or(0, |record| record.live_bytes);
        self.bring_some_back(&[(id, live_bytes)]).await
    }

    /// The segments to offload now. Notes in the metadata which segments were used, as a basis for that.
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
                // No caller waits: after a crash the segment cools a little longer.
                self.commit_bare(Bare::Segments, batch);
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

    /// Moves the data of files out of a segment that snapshots mostly have, if it is little. False if it is more, or
    /// unknown.
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
        // The segment can stay as it is.
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

    /// Moves the data of files that the filter does not select out of a segment, if it is little; otherwise copies
    /// the data of the selected files into segments of cold data. Returns whether to offload the segment now, and a
    /// fault, if any.
    async fn leave_to_chosen(
        self: &Arc<Self>,
        id: SegmentId,
        filter: &TierFilter,
    ) -> Result<(bool, Option<String>), FsError> {
        let Some(Sorted { going, staying }) = self.sorted(id, filter).await? else {
            // The segment has no readable summary. The segments of its copies have one.
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
        // The segment can stay as it is; garbage collection and deletions need the rest of the space.
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

    /// The extents in a segment, by whether the filter selects their files; `None`: unknown. A record that other
    /// files have, too, stays.
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

    /// Whether a filter selects a file. A file that is gone, or lost the name that it records, stays.
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

    /// The entry that an inode records as its own, if it still is.
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

    /// Offloads one segment to the tier.
    async fn send_out(self: &Arc<Self>, id: SegmentId, tier: TierId) -> Result<Sent, FsError> {
        let nonce = self.env.entropy.u128();
        // Whatever happens later, there is a note of the object.
        let mut batch = Batch::new();
        let note = Key::unused_object(tier, id, nonce);
        if !planted::is(Bug::TierObjectNotNoted) {
            batch.put(note.clone(), COMING_OBJECT);
        }
        self.durable(self.commit_bare(Bare::Segments, batch))
            .await?;
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
                // Any remains of the object are unused, and the next round deletes them.
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
        // Only if the segment has live records: a dead one may be being deleted, and must stay as that task found it.
        match self.commit_bare_sharing(Bare::Segments, batch, &[id]) {
            None => {
                copied.abandon();
                let mut fates = self.tiering.fates.lock();
                fates.insert((id, nonce), Fate::Settled);
                drop(fates);
                self.tiering.wake.notify_one();
                return Ok(Sent::NotNow);
            }
            // The log never has this.
            Some(Ticket::REFUSED) => {
                copied.abandon();
                return Err(FsError::Fenced);
            }
            // After an error the state of the log is unknown: the shards stay, and the next opening decides.
            Some(ticket) => self.durable(ticket).await?,
        }
        let work = &self.tiering;
        work.sent_segments.fetch_add(1, Ordering::Relaxed);
        let sent_bytes = copied.remote.object_len_bytes;
        work.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
        copied.finish().await;
        Ok(Sent::Done)
    }

    /// Rewrites the records of segments in tiers, and so gets rid of their objects: of all segments, or of those with
    /// less than so many percent of their live bytes at the offload. Returns the reason if that was not possible.
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
                // An unreadable segment does not keep others from being promoted.
                trouble = trouble.or(self.bring_some_back(chosen).await?);
                if trouble.is_some() && self.is_tier_away(chosen) {
                    return Ok(trouble);
                }
                // An operator may have changed the policy meanwhile.
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

    /// Whether a tier with one of these segments does not answer.
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
        // Without the reserve of garbage collection and deletions: the copies are made like theirs.
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

    /// Up to `max` unused objects, and whether each was being written when it was noted.
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

    /// Deletes unused objects. Returns the reason if the tier does not delete them.
    async fn delete_unused_objects(&self) -> Result<Option<String>, FsError> {
        let notes = self.reading(|| self.unused_objects(DELETE_MAX)).await?;
        let unused = &self.tiering.unused_objects;
        unused.store(notes.len() as u64, Ordering::Relaxed);
        if notes.is_empty() {
            return Ok(None);
        }
        // The change that made them unused may not be durable: after a crash a segment would refer to a deleted object.
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
            // A bug would lose data here, and a check costs nothing.
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
            // No caller waits: the object may be deleted again.
            self.commit_bare(Bare::Segments, batch);
            unused.fetch_sub(1, Ordering::Relaxed);
        }
        if unused.load(Ordering::Relaxed) == 0 {
            self.tiering.wake.notify_one();
        }
        Ok(None)
    }

    /// Whether a noted object may still appear.
    fn fate_of(&self, tier: TierId, object: (SegmentId, u128), is_coming: bool) -> Fate {
        if !is_coming || planted::is(Bug::TierLateObjectForgotten) {
            return Fate::Settled;
        }
        let mut fates = self.tiering.fates.lock();
        // A distant store may have received more of an earlier process's writes than that process was told.
        *fates
            .entry(object)
            .or_insert_with(|| match self.segments.may_be_late(tier) {
                true => Fate::Late(None),
                false => Fate::Settled,
            })
    }

    /// Notes the parts of a file that are read from the tier repeatedly.
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
            // Data in memory costs nothing.
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

    /// Writes frequently read data to the disks.
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
        // Promotion is optional: the data can be read from the tier.
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
