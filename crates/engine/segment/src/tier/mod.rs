//! Tiers: object stores that whole segments are kept in.
//!
//! Owns: which tiers there are, how long one is waited for, how often it is asked again, what is counted of it.
//! Must not know: protocols and addresses of object stores, which segments are cold, the metadata.
//! Invariant: no byte of an object counts before a checksum that is kept apart from it vouches for it (Rule 2), and no
//! answer takes more memory than what was asked for.

mod copy_out;
mod read;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::env::Clock;
use cairn_base::{TierId, VolumeId};
use cairn_formats::tier_object::ObjectId;
use futures_util::future::{BoxFuture, Either, FutureExt as _, select};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub use copy_out::{CopiedOut, CopyOutError};

use crate::store::SegmentStore;

/// An answer to a request is waited for so long, whatever the tier's own client does meanwhile,
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// and the answer to one that moves a part of a whole segment so long.
const PART_DEADLINE: Duration = Duration::from_secs(120);
/// A read is tried so often,
const READ_ATTEMPTS_MAX: u32 = 3;
/// with pauses between that begin with this and double.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// After so many requests in a row that failed, of different objects or for want of an answer, a tier is taken for away: whoever reads is told at once,
const AWAY_AFTER: u32 = 3;
/// until this time is over and one of them tries again.
const AWAY_PAUSE: Duration = Duration::from_secs(5);
/// Reads of one tier that are under way at a time: of at most a record, so of so many MiB.
const READS_MAX: usize = 64;
/// Segments of all volumes that are copied to tiers, or checked there, at a time: of a few ten MiB of memory each.
pub(crate) const COPIES_MAX: usize = 2;

/// Why a tier did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// It has no such object.
    #[error("the object is not there: {0}")]
    NotFound(String),
    /// Later may be better: no connection, no answer, an error of the store, no right.
    #[error("{0}")]
    Failed(String),
}

/// An object store. Keys follow from object ids; each is written once at most. An object is there whole, or not at all.
pub trait TierStore: Send + Sync + 'static {
    /// Whether the place is there, and the tier that it should be. Writes nothing.
    fn check(&self) -> BoxFuture<'_, Result<(), TierError>>;
    /// Begins to write an object.
    fn begin(&self, object: ObjectId) -> BoxFuture<'_, Result<Box<dyn TierUpload>, TierError>>;
    /// Bytes of an object. What comes may be anything: the caller checks it. `NotFound` is said of a place that is there alone:
    /// a drive that is not mounted has lost nothing.
    fn get(&self, object: ObjectId, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, TierError>>;
    /// Deletes an object, and what an unfinished upload of it left where the store shows that; one that is not there is
    /// no error.
    fn delete(&self, object: ObjectId) -> BoxFuture<'_, Result<(), TierError>>;
    /// Whether an object may come after whoever wrote it has ended, or gave up waiting.
    fn may_be_late(&self) -> bool;
    /// Deletes all objects of a volume, and returns how many there were.
    fn delete_volume(&self, volume: VolumeId) -> BoxFuture<'_, Result<u64, TierError>>;
}

/// An object that is being written. Dropped, it is as if it was never begun, but for what the store keeps of it.
pub trait TierUpload: Send {
    /// All parts but the last have [`PART_LEN_BYTES`].
    fn part(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), TierError>>;
    /// Answers when the object is there, durably.
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<(), TierError>>;
    /// Lets the store forget what it has so far.
    fn abort(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// Bytes that are written and read together when a whole segment is.
pub const PART_LEN_BYTES: usize = 8 << 20;

/// What was done with a tier since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Requests that read, write (a part each) and delete, and those of them that failed.
    pub reads: u64,
    pub writes: u64,
    pub deletes: u64,
    pub errors: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Answers that were not what was written.
    pub wrong: u64,
    /// It is taken for away.
    pub is_away: bool,
}

#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    deletes: AtomicU64,
    errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    wrong: AtomicU64,
}

/// How a tier answered lately.
#[derive(Default)]
struct Health {
    failed_in_a_row: u32,
    /// What the last of these was about.
    failed: Option<ObjectId>,
    /// Nobody who reads asks it before.
    away_until: Option<Duration>,
    last_error: Option<String>,
}

/// A tier as the store uses it.
pub(crate) struct Tier {
    store: Arc<dyn TierStore>,
    clock: Arc<dyn Clock>,
    reads: Semaphore,
    counters: Counters,
    health: Mutex<Health>,
}

impl Tier {
    fn new(store: Arc<dyn TierStore>, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            reads: Semaphore::new(READS_MAX),
            counters: Counters::default(),
            health: Mutex::default(),
        }
    }

    /// What a request about an object answers, unless that takes longer than `deadline`; noted.
    async fn ask<T>(
        &self,
        object: ObjectId,
        deadline: Duration,
        counter: &AtomicU64,
        request: impl Future<Output = Result<T, TierError>>,
    ) -> Result<T, TierError> {
        counter.fetch_add(1, Ordering::Relaxed);
        let request = std::pin::pin!(sound(request));
        let asked = select(request, self.clock.sleep(deadline)).await;
        let is_silent = matches!(asked, Either::Right(_));
        let answer = match asked {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(TierError::Failed(format!(
                "no answer for {} seconds",
                deadline.as_secs()
            ))),
        };
        let mut health = self.health.lock();
        if let Err(error) = &answer {
            self.counters.errors.fetch_add(1, Ordering::Relaxed);
            health.last_error = Some(error.to_string());
        }
        match &answer {
            Ok(_) => *health = Health::default(),
            // An answer is an answer: what it has lost is no reason not to ask for the rest.
            Err(TierError::NotFound(_)) => {
                let last_error = health.last_error.take();
                *health = Health {
                    last_error,
                    ..Health::default()
                };
            }
            // One bad object does not make a bad tier.
            Err(TierError::Failed(_)) => {
                let is_other = is_silent || health.failed != Some(object);
                if is_other {
                    health.failed = Some(object);
                    health.failed_in_a_row = health.failed_in_a_row.saturating_add(1);
                    if health.failed_in_a_row >= AWAY_AFTER {
                        health.away_until = Some(self.clock.monotonic() + AWAY_PAUSE);
                    }
                }
            }
        }
        answer
    }

    /// Fails while it is taken for away. When that time is over one reader is let through, and the others after him.
    fn require_there(&self) -> Result<(), TierError> {
        let mut health = self.health.lock();
        let now = self.clock.monotonic();
        match health.away_until {
            Some(until) if now < until => {
                let last = health.last_error.clone().unwrap_or_default();
                Err(TierError::Failed(format!(
                    "it does not answer, and is asked again in a few seconds: {last}"
                )))
            }
            Some(_) => {
                health.away_until = Some(now + AWAY_PAUSE);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Exactly the bytes of `range`, or an error. Not checked.
    async fn get(
        &self,
        object: ObjectId,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Bytes, TierError> {
        let wanted = range.end.saturating_sub(range.start);
        let request = async {
            // Waiting for the turn is waiting, too.
            let _turn = self.reads.acquire().await;
            self.store.get(object, range.clone()).await
        };
        let reads = &self.counters.reads;
        let bytes = self.ask(object, deadline, reads, request).await?;
        self.counters
            .read_bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        match bytes.len() as u64 == wanted {
            true => Ok(bytes),
            false => {
                self.counters.wrong.fetch_add(1, Ordering::Relaxed);
                Err(TierError::Failed(format!(
                    "{} bytes came, and {wanted} were asked for",
                    bytes.len()
                )))
            }
        }
    }

    fn stats(&self) -> TierStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let is_away = self.health.lock().away_until.is_some();
        TierStats {
            reads: of(&counters.reads),
            writes: of(&counters.writes),
            deletes: of(&counters.deletes),
            errors: of(&counters.errors),
            read_bytes: of(&counters.read_bytes),
            written_bytes: of(&counters.written_bytes),
            wrong: of(&counters.wrong),
            is_away,
        }
    }
}

impl SegmentStore {
    /// Makes a tier known; another store of the same id takes its place.
    pub fn use_tier(&self, id: TierId, store: Arc<dyn TierStore>) {
        let tier = Arc::new(Tier::new(store, self.env.clock.clone()));
        self.tiers.write().insert(id, tier);
    }

    /// What is in it cannot be read any more.
    pub fn forget_tier(&self, id: TierId) {
        self.tiers.write().remove(&id);
    }

    pub(crate) fn tier(&self, id: TierId) -> Result<Arc<Tier>, TierError> {
        let found = self.tiers.read().get(&id).cloned();
        found.ok_or_else(|| TierError::Failed(format!("the pool has no tier {id} open")))
    }

    /// Counters of a tier since the start; `None` if it is not known.
    pub fn tier_stats(&self, id: TierId) -> Option<TierStats> {
        Some(self.tier(id).ok()?.stats())
    }

    /// What a tier answered last, if that was an error.
    pub fn tier_error(&self, id: TierId) -> Option<String> {
        self.tier(id).ok()?.health.lock().last_error.clone()
    }

    /// Asks a tier whose last answer was an error whether it is there again. Nobody may read from it for long, and until then the
    /// error would stand.
    pub async fn check_tier(&self, id: TierId) {
        let Ok(tier) = self.tier(id) else { return };
        let has_failed = tier.health.lock().last_error.is_some();
        if !has_failed {
            return;
        }
        let asked = std::pin::pin!(sound(tier.store.check()));
        let asked = select(asked, self.env.clock.sleep(REQUEST_DEADLINE)).await;
        if let Either::Left((Ok(()), _)) = asked {
            *tier.health.lock() = Health::default();
        }
    }

    /// Whether an object may come to a tier after whoever wrote it has ended.
    pub fn may_be_late(&self, id: TierId) -> bool {
        self.tier(id).is_ok_and(|tier| tier.store.may_be_late())
    }

    /// Deletes an object that no segment refers to, durably so.
    pub async fn delete_object(&self, tier: TierId, object: ObjectId) -> Result<(), TierError> {
        let tier = self.tier(tier)?;
        let deletes = &tier.counters.deletes;
        let request = tier.store.delete(object);
        tier.ask(object, REQUEST_DEADLINE, deletes, request).await
    }

    /// Deletes all objects of a volume that was deleted.
    pub async fn delete_volume_objects(
        &self,
        tier: TierId,
        volume: VolumeId,
    ) -> Result<u64, TierError> {
        let tier = self.tier(tier)?;
        tier.counters.deletes.fetch_add(1, Ordering::Relaxed);
        // It takes as long as there are objects; the store's own client gives up on each request.
        sound(tier.store.delete_volume(volume)).await
    }
}

/// What a request answers. A client that an answer of the store makes panic is a store that failed, and no reason for
/// whoever asked to end.
async fn sound<T>(request: impl Future<Output = Result<T, TierError>>) -> Result<T, TierError> {
    let answer = AssertUnwindSafe(request).catch_unwind().await;
    answer.unwrap_or_else(|_| {
        let problem = "its answer made no sense to the client of the store; see the log";
        Err(TierError::Failed(problem.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use cairn_base::SegmentId;
    use cairn_testkit::TestWorld;
    use futures_util::future::ready;

    use super::testing::MemTier;
    use super::*;

    /// After a tier was away, the first who asks may ask for what it has lost. That it says so is an answer, and the next
    /// who asks for something else gets that.
    #[test]
    fn a_tier_that_says_what_it_lost_is_there() {
        let world = TestWorld::new(1);
        let tier = Tier::new(Arc::new(MemTier::default()), world.env.clock.clone());
        let object = |segment| ObjectId {
            volume: VolumeId(1),
            segment: SegmentId(segment),
            nonce: 1,
        };
        let ask = |segment, error| {
            let (deadline, counter) = (Duration::from_secs(60), AtomicU64::new(0));
            let answer = ready(Err::<(), _>(error));
            let asked = tier.ask(object(segment), deadline, &counter, answer);
            let answered = asked.now_or_never();
            assert!(answered.is_some_and(|answer| answer.is_err()));
        };
        for segment in 0..u64::from(AWAY_AFTER) {
            ask(segment, TierError::Failed("no route".to_owned()));
        }
        assert!(tier.require_there().is_err(), "it is taken for away");
        world.clock.advance(AWAY_PAUSE);
        assert!(tier.require_there().is_ok(), "one is let through");
        assert!(tier.require_there().is_err(), "the others wait for him");
        ask(9, TierError::NotFound("gone".to_owned()));
        assert!(tier.require_there().is_ok(), "it answered");
    }
}
