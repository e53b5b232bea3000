//! Tiers: object stores that hold whole segments.
//!
//! Owns: the known tiers, timeouts, retries, statistics. Must not know: protocols and addresses of object stores, which
//! segments are cold, the metadata. Invariant: no byte of an object counts before a separately stored checksum vouches
//! for it (Rule 2), and no answer takes more memory than the request asked for.

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

/// Timeout of a request, independent of the tier's own client.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// Timeout of a request that moves a part of a whole segment.
const PART_DEADLINE: Duration = Duration::from_secs(120);
/// Number of tries of a read.
const READ_ATTEMPTS_MAX: u32 = 3;
/// First pause between tries; each further one doubles.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// After this number of consecutive failures, of different objects or for lack of an answer, a tier counts as away:
/// readers fail at once until `AWAY_PAUSE` is over.
const AWAY_AFTER: u32 = 3;
/// Time after which one reader tries a tier that counts as away.
const AWAY_PAUSE: Duration = Duration::from_secs(5);
/// Parallel reads of one tier: each of at most a record, so this is also a number of MiB.
const READS_MAX: usize = 64;
/// Parallel copies to tiers, or checks there, over all volumes: each takes a few ten MiB of memory.
pub(crate) const COPIES_MAX: usize = 2;

/// Failures of a request to a tier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// The tier has no such object.
    #[error("the object is not there: {0}")]
    NotFound(String),
    /// A retry may succeed: no connection, no answer, an error of the store, no permission.
    #[error("{0}")]
    Failed(String),
}

/// An object store. Keys follow from object ids; each is written at most once. An object is complete or does not exist.
pub trait TierStore: Send + Sync + 'static {
    /// Checks that the place exists and is the expected tier. Writes nothing.
    fn check(&self) -> BoxFuture<'_, Result<(), TierError>>;
    /// Begins to write an object.
    fn begin(&self, object: ObjectId) -> BoxFuture<'_, Result<Box<dyn TierUpload>, TierError>>;
    /// Bytes of an object. The answer is untrusted: the caller checks it. `NotFound` requires that the place exists: a
    /// drive that is not mounted has lost nothing.
    fn get(&self, object: ObjectId, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, TierError>>;
    /// Deletes an object, and the rest of an unfinished upload of it where the store lists that. A missing object is no
    /// error.
    fn delete(&self, object: ObjectId) -> BoxFuture<'_, Result<(), TierError>>;
    /// Whether an object may appear after its writer has ended, or timed out.
    fn may_be_late(&self) -> bool;
    /// Deletes all objects of a volume, and returns their number.
    fn delete_volume(&self, volume: VolumeId) -> BoxFuture<'_, Result<u64, TierError>>;
}

/// An object that is being written. Dropped, it is as if never begun, except for parts that the store keeps.
pub trait TierUpload: Send {
    /// All parts but the last have [`PART_LEN_BYTES`].
    fn part(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), TierError>>;
    /// Returns when the object exists durably.
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<(), TierError>>;
    /// Lets the store drop the parts so far.
    fn abort(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// Bytes written and read together when a whole segment is.
pub const PART_LEN_BYTES: usize = 8 << 20;

/// Statistics of a tier since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Requests that read, write (a part each) and delete, and the failed ones among them.
    pub reads: u64,
    pub writes: u64,
    pub deletes: u64,
    pub errors: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Answers with other bytes than were written.
    pub wrong: u64,
    /// The tier counts as away.
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

/// Recent answers of a tier.
#[derive(Default)]
struct Health {
    failed_in_a_row: u32,
    /// Object of the last failure.
    failed: Option<ObjectId>,
    /// Readers skip the tier until then.
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

    /// The answer to a request about an object, or an error after `deadline`; updates the health.
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
            // Any answer shows that the tier is present: a lost object is no reason to skip the others.
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

    /// Fails while the tier counts as away. After that time one reader may try, and the others after it.
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
            // The timeout includes the wait for the turn.
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
    /// Registers a tier; it replaces another store with this id.
    pub fn use_tier(&self, id: TierId, store: Arc<dyn TierStore>) {
        let tier = Arc::new(Tier::new(store, self.env.clock.clone()));
        self.tiers.write().insert(id, tier);
    }

    /// Unregisters a tier: its segments cannot be read any more.
    pub fn forget_tier(&self, id: TierId) {
        self.tiers.write().remove(&id);
    }

    pub(crate) fn tier(&self, id: TierId) -> Result<Arc<Tier>, TierError> {
        let found = self.tiers.read().get(&id).cloned();
        found.ok_or_else(|| TierError::Failed(format!("the pool has no tier {id} open")))
    }

    /// Statistics of a tier since the start; `None` if it is not registered.
    pub fn tier_stats(&self, id: TierId) -> Option<TierStats> {
        Some(self.tier(id).ok()?.stats())
    }

    /// The last answer of a tier, if that was an error.
    pub fn tier_error(&self, id: TierId) -> Option<String> {
        self.tier(id).ok()?.health.lock().last_error.clone()
    }

    /// Checks a tier whose last answer was an error. Otherwise the error would be shown until the next read, which may
    /// be far away.
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

    /// Whether an object may appear in a tier after its writer has ended.
    pub fn may_be_late(&self, id: TierId) -> bool {
        self.tier(id).is_ok_and(|tier| tier.store.may_be_late())
    }

    /// Deletes an object that no segment refers to, after that is durable.
    pub async fn delete_object(&self, tier: TierId, object: ObjectId) -> Result<(), TierError> {
        let tier = self.tier(tier)?;
        let deletes = &tier.counters.deletes;
        let request = tier.store.delete(object);
        tier.ask(object, REQUEST_DEADLINE, deletes, request).await
    }

    /// Deletes all objects of a deleted volume.
    pub async fn delete_volume_objects(
        &self,
        tier: TierId,
        volume: VolumeId,
    ) -> Result<u64, TierError> {
        let tier = self.tier(tier)?;
        tier.counters.deletes.fetch_add(1, Ordering::Relaxed);
        // The time depends on the number of objects; the store's own client bounds each request.
        sound(tier.store.delete_volume(volume)).await
    }
}

/// The answer to a request. If an answer of the store makes its client panic, that is a failure of the store, and the
/// caller goes on.
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

    /// After a tier was away, the first request may be for an object that it lost. "Not found" is an answer, and the
    /// next request for another object succeeds.
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
