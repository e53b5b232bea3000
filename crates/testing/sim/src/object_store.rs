//! An untrusted object store, which outlives the machine.
//!
//! Owns: the existing objects, faults of requests, late results. Must not know: the contents of an object, when it is
//! read, who needs it.
//!
//! An object that a request loses or corrupts on its way to the store stays wrong. An object that is lost later, after
//! the store had accepted and returned it, is put aside: so the judge can check the missing objects, and then all the
//! others.

use std::collections::BTreeMap;
use std::future::ready;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_base::VolumeId;
use cairn_base::env::{Clock, Env};
use cairn_pool::HostTier;
use cairn_segment::{ObjectId, TierError, TierStore, TierUpload};
use cairn_testkit::Rng;
use futures_util::future::{BoxFuture, select};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::exec::Trace;
use crate::scenario::TierTrouble;

/// A request in flight that its sender gave up takes effect within this time, or never. A server takes three minutes at
/// most.
const LATE_MAX: Duration = Duration::from_secs(150);
/// A request that was given up longer before a power cut never takes effect.
const GIVEN_UP_MAX: Duration = Duration::from_secs(60);
/// A list may lack objects that are newer than this.
const LIST_LAG: Duration = Duration::from_secs(100);
/// Longest outage.
const OUTAGE_MAX: Duration = Duration::from_secs(40);
/// Longest duration of a slow request, which exceeds all timeouts.
const SLOW_MAX: Duration = Duration::from_secs(45);
/// Longest duration of a slower request without a fault.
const SLOWER: Duration = Duration::from_secs(8);

/// Its faults in any thousand seeds, by name. Losses of an object that is just being written are rare.
pub const FAULTS: [&str; 6] = [
    "tier_outage",
    "tier_fails",
    "tier_silent",
    "tier_garbles",
    "tier_truncates",
    "tier_loses_object",
];

#[derive(Default)]
struct StoreState {
    objects: BTreeMap<ObjectId, (Bytes, Option<Duration>)>,
    /// Objects that were lost after they had been accepted and returned.
    lost: BTreeMap<ObjectId, Bytes>,
    /// Objects that will appear although no sender waits any more.
    late: BTreeMap<ObjectId, (Bytes, Duration)>,
    /// Number of writes that began, by object.
    written: BTreeMap<ObjectId, u32>,
    away_until: Option<Duration>,
    /// Whether it cannot be opened.
    is_shut: bool,
    is_armed: bool,
    fired: BTreeMap<&'static str, u64>,
}

/// All contents of the store. Clones share them.
#[derive(Clone)]
pub struct SimStore {
    pub trouble: TierTrouble,
    inner: Arc<Mutex<StoreState>>,
}

/// Faults of one request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The request is not done, and fails.
    Away,
    /// The request is not done, and gets no answer.
    Silent,
    /// The request is done, and its answer says that it failed.
    AnswerLost,
    /// The request fails, and is done some time later.
    Late,
    /// A byte changes in transit.
    Garbles,
    /// Less data comes than was sent.
    Truncates,
    /// The request is answered as done, and is not.
    Loses,
}

impl SimStore {
    pub fn new(trouble: TierTrouble) -> Self {
        Self {
            trouble,
            inner: Arc::default(),
        }
    }

    /// A copy for another machine that starts now with these disks; its changes do not count.
    pub fn copy(&self) -> Self {
        let inner = self.inner.lock();
        let there = inner.objects.iter().map(|(id, (bytes, _))| (id, bytes));
        let all = there.chain(&inner.lost);
        let copy = Self::new(TierTrouble::None);
        copy.inner.lock().objects = all
            .map(|(id, bytes)| (*id, (bytes.clone(), None)))
            .collect();
        copy
    }

    /// Ends the machine: the requests in flight take effect later or never.
    pub fn power_off(&self, now: Duration, rng: &mut Rng) {
        let mut inner = self.inner.lock();
        inner.is_armed = false;
        inner.away_until = None;
        inner.late.retain(|_, (_, since)| {
            let is_given_up = now.saturating_sub(*since) > GIVEN_UP_MAX;
            *since = Duration::ZERO;
            rng.coin() && !is_given_up
        });
        for (_, since) in inner.objects.values_mut() {
            *since = None;
        }
    }

    /// The store as a machine sees it that starts now.
    pub fn power_on(&self, env: &Env, trace: &Trace, seed: u64) -> Arc<LifeStore> {
        let seen = self.seen(env, env.clock.clone(), trace, seed);
        let late: Vec<ObjectId> = self.inner.lock().late.keys().copied().collect();
        for id in late {
            seen.come_later(id);
        }
        self.put_back();
        seen
    }

    /// The store as one of several machines sees it. All share `clock`.
    pub fn seen(
        &self,
        env: &Env,
        clock: Arc<dyn Clock>,
        trace: &Trace,
        seed: u64,
    ) -> Arc<LifeStore> {
        Arc::new(LifeStore {
            store: self.clone(),
            env: env.clone(),
            clock,
            trace: trace.clone(),
            rng: Mutex::new(Rng::new(seed)),
            honest: Notify::new(),
        })
    }

    /// Restores the lost objects. False if there were none.
    pub fn put_back(&self) -> bool {
        let mut inner = self.inner.lock();
        let lost = std::mem::take(&mut inner.lost);
        let is_any = !lost.is_empty();
        let lost = lost.into_iter().map(|(id, bytes)| (id, (bytes, None)));
        inner.objects.extend(lost);
        is_any
    }

    pub fn is_lost(&self, id: &ObjectId) -> bool {
        self.inner.lock().lost.contains_key(id)
    }

    pub fn has_lost(&self) -> bool {
        !self.inner.lock().lost.is_empty()
    }

    pub fn is_armed(&self) -> bool {
        self.inner.lock().is_armed
    }

    /// All present objects, without late ones.
    pub fn objects(&self) -> Vec<ObjectId> {
        let inner = self.inner.lock();
        let all = inner.objects.keys().chain(inner.lost.keys());
        all.copied().collect()
    }

    /// The largest number of writes of one key.
    pub fn written_max(&self) -> u32 {
        let inner = self.inner.lock();
        inner.written.values().copied().max().unwrap_or(0)
    }

    pub fn fired(&self) -> BTreeMap<&'static str, u64> {
        self.inner.lock().fired.clone()
    }
}

/// The store in one life.
pub struct LifeStore {
    pub store: SimStore,
    env: Env,
    /// The clock for the times of requests.
    clock: Arc<dyn Clock>,
    trace: Trace,
    rng: Mutex<Rng>,
    /// Notified when faults end: hanging requests have then failed.
    honest: Notify,
}

impl LifeStore {
    /// Enables faults from now on.
    pub fn arm(&self) {
        self.store.inner.lock().is_armed = self.store.trouble.misbehaves();
    }

    /// Disables faults; lost objects stay lost.
    pub fn disarm(&self) {
        let mut inner = self.store.inner.lock();
        inner.is_armed = false;
        inner.is_shut = false;
        inner.away_until = None;
        drop(inner);
        self.honest.notify_waiters();
    }

    /// Keeps it from being opened until faults are disabled.
    pub fn shut(&self) {
        self.store.inner.lock().is_shut = true;
    }

    /// A machine is gone: some of its requests in flight take effect later, and the rest never. Requests of other
    /// machines are not affected.
    pub fn machine_is_gone(self: &Arc<Self>) {
        let now = self.clock.monotonic();
        let late: Vec<(ObjectId, Duration)> = {
            let inner = self.store.inner.lock();
            let late = inner.late.iter().map(|(id, (_, since))| (*id, *since));
            late.collect()
        };
        for (id, since) in late {
            let is_given_up = now.saturating_sub(since) > GIVEN_UP_MAX;
            match is_given_up || self.below(2) == 0 {
                true => drop(self.store.inner.lock().late.remove(&id)),
                false => self.come_later(id),
            }
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.rng.lock().below(bound)
    }

    fn fire(&self, name: &'static str) {
        *self.store.inner.lock().fired.entry(name).or_default() += 1;
    }

    /// Sometimes loses one of the accepted objects.
    fn lose_some(&self) {
        if self.store.trouble != TierTrouble::Loses || self.below(12) != 0 {
            return;
        }
        let mut inner = self.store.inner.lock();
        if inner.objects.is_empty() || !inner.is_armed {
            return;
        }
        let nth = self.below(inner.objects.len() as u64) as usize;
        let id = inner.objects.keys().nth(nth).copied();
        if let Some(id) = id
            && let Some((bytes, _)) = inner.objects.remove(&id)
        {
            inner.lost.insert(id, bytes);
            drop(inner);
            self.fire("tier_loses_object");
        }
    }

    /// The fault of a request, drawn from the possible ones.
    fn fault(&self, choices: &[Fault]) -> Option<Fault> {
        let now = self.clock.monotonic();
        {
            let inner = self.store.inner.lock();
            if !inner.is_armed {
                return None;
            }
            if inner.away_until.is_some_and(|until| now < until) {
                return Some(Fault::Away);
            }
        }
        self.lose_some();
        if self.below(self.store.trouble.one_in()) != 0 {
            return None;
        }
        if self.below(6) == 0 {
            let outage = Duration::from_millis(self.below(OUTAGE_MAX.as_millis() as u64));
            self.store.inner.lock().away_until = Some(now + outage);
            self.fire("tier_outage");
            return Some(Fault::Away);
        }
        let fault = choices[self.below(choices.len() as u64) as usize];
        self.fire(match fault {
            Fault::Away => "tier_fails",
            Fault::Silent => "tier_silent",
            Fault::AnswerLost => "tier_answer_lost",
            Fault::Late => "tier_late",
            Fault::Garbles => "tier_garbles",
            Fault::Truncates => "tier_truncates",
            Fault::Loses => "tier_loses_write",
        });
        Some(fault)
    }

    /// Waits for the duration of a request.
    async fn takes(&self) {
        let is_slow = self.below(24) == 0;
        let micros = match is_slow {
            true if self.store.is_armed() => self.below(SLOW_MAX.as_micros() as u64),
            true => self.below(SLOWER.as_micros() as u64),
            false => self.below(30_000),
        };
        let sleep = self.env.clock.sleep(Duration::from_micros(micros));
        select(sleep, pin!(self.honest.notified())).await;
    }

    /// Never answers; waiters fail when faults end.
    async fn hang(&self) {
        self.honest.notified().await;
    }

    fn note(&self, what: u64, id: &ObjectId) {
        let at_ms = self.clock.monotonic().as_millis();
        tracing::debug!(what, segment = %id.segment, nonce = id.nonce, at_ms, "OBJECT");
        self.trace.note(&[what, id.segment.0, id.nonce as u64]);
    }

    fn insert(&self, id: ObjectId, bytes: Bytes) {
        let now = self.clock.monotonic();
        self.note(1, &id);
        let mut inner = self.store.inner.lock();
        inner.late.remove(&id);
        inner.objects.insert(id, (bytes, Some(now)));
    }

    /// A request that was sent and given up takes effect at some time.
    fn come_later(self: &Arc<Self>, id: ObjectId) {
        let after = Duration::from_micros(self.below(LATE_MAX.as_micros() as u64));
        let seen = Arc::clone(self);
        let task = async move {
            seen.env.clock.sleep(after).await;
            let late = seen.store.inner.lock().late.remove(&id);
            if let Some((bytes, _)) = late {
                seen.insert(id, bytes);
            }
        };
        self.env.spawner.spawn("late object", Box::pin(task));
    }

    fn flipped(&self, bytes: &Bytes) -> Bytes {
        let mut wrong = BytesMut::from(&bytes[..]);
        let at = self.below(wrong.len().max(1) as u64) as usize;
        if let Some(byte) = wrong.get_mut(at) {
            *byte ^= 1 << self.below(8);
        }
        wrong.freeze()
    }

    fn cut(&self, bytes: &Bytes) -> Bytes {
        bytes.slice(..self.below(bytes.len().max(1) as u64) as usize)
    }
}

fn away<T>() -> Result<T, TierError> {
    Err(TierError::Failed("connection refused".to_owned()))
}

/// The store as the engine uses it.
pub struct Tier(pub Arc<LifeStore>);

impl HostTier for Tier {
    fn store(&self) -> Arc<dyn TierStore> {
        Arc::new(Tier(self.0.clone()))
    }

    fn claim(&self) -> cairn_base::env::BoxFuture<Result<(), String>> {
        Box::pin(ready(Ok(())))
    }

    fn release(&self) -> cairn_base::env::BoxFuture<Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
}

impl LifeStore {
    pub fn open(self: &Arc<Self>) -> Result<Arc<dyn HostTier>, String> {
        match self.store.inner.lock().is_shut {
            true => Err("no route to host".to_owned()),
            false => Ok(Arc::new(Tier(self.clone()))),
        }
    }
}

struct Upload {
    seen: Arc<LifeStore>,
    id: ObjectId,
    parts: Vec<Bytes>,
}

impl TierUpload for Upload {
    fn part(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), TierError>> {
        Box::pin(async move {
            self.seen.takes().await;
            match self
                .seen
                .fault(&[Fault::Away, Fault::Silent, Fault::Garbles])
            {
                None => self.parts.push(bytes),
                Some(Fault::Garbles) => self.parts.push(self.seen.flipped(&bytes)),
                Some(Fault::Silent) => {
                    self.seen.hang().await;
                    return away();
                }
                Some(_) => return away(),
            }
            Ok(())
        })
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<(), TierError>> {
        use Fault::{AnswerLost, Garbles, Late, Loses, Silent, Truncates};
        Box::pin(async move {
            let Upload { seen, id, parts } = *self;
            let bytes = Bytes::from(parts.concat());
            // From here on the store has the object: a sender that gave up may find it later.
            let now = seen.clock.monotonic();
            let late = (bytes.clone(), now);
            seen.store.inner.lock().late.insert(id, late);
            *seen.store.inner.lock().written.entry(id).or_default() += 1;
            seen.takes().await;
            let choices = [
                Fault::Away,
                Silent,
                AnswerLost,
                AnswerLost,
                Late,
                Late,
                Garbles,
                Truncates,
                Loses,
            ];
            let fault = seen.fault(&choices);
            match fault {
                Some(Fault::Away | Loses) => {
                    seen.store.inner.lock().late.remove(&id);
                }
                Some(Silent | Late) => seen.come_later(id),
                Some(Garbles) => seen.insert(id, seen.flipped(&bytes)),
                Some(Truncates) => seen.insert(id, seen.cut(&bytes)),
                Some(AnswerLost) | None => seen.insert(id, bytes),
            }
            match fault {
                None | Some(Garbles | Truncates | Loses) => Ok(()),
                Some(Silent) => {
                    seen.hang().await;
                    away()
                }
                Some(Fault::Away | AnswerLost | Late) => away(),
            }
        })
    }

    fn abort(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }
}

impl TierStore for Tier {
    /// The place is always right: outages are drawn with the requests that matter.
    fn check(&self) -> BoxFuture<'_, Result<(), TierError>> {
        Box::pin(ready(Ok(())))
    }

    fn begin(&self, object: ObjectId) -> BoxFuture<'_, Result<Box<dyn TierUpload>, TierError>> {
        Box::pin(async move {
            let seen = &self.0;
            seen.takes().await;
            match seen.fault(&[Fault::Away, Fault::Silent]) {
                None => Ok(Box::new(Upload {
                    seen: seen.clone(),
                    id: object,
                    parts: Vec::new(),
                }) as Box<dyn TierUpload>),
                Some(Fault::Silent) => {
                    seen.hang().await;
                    away()
                }
                Some(_) => away(),
            }
        })
    }

    fn get(&self, object: ObjectId, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, TierError>> {
        use Fault::{Garbles, Silent, Truncates};
        Box::pin(async move {
            let seen = &self.0;
            seen.takes().await;
            let fault = seen.fault(&[Fault::Away, Silent, Garbles, Garbles, Truncates]);
            match fault {
                Some(Silent) => {
                    seen.hang().await;
                    return away();
                }
                Some(Fault::Away) => return away(),
                _ => {}
            }
            seen.note(2, &object);
            let bytes = {
                let inner = seen.store.inner.lock();
                let found = inner.objects.get(&object).map(|(bytes, _)| bytes.clone());
                found.ok_or_else(|| TierError::NotFound(format!("{object:?}")))?
            };
            let end = (range.end as usize).min(bytes.len());
            let bytes = bytes.slice((range.start as usize).min(end)..end);
            Ok(match fault {
                Some(Garbles) => seen.flipped(&bytes),
                Some(Truncates) => seen.cut(&bytes),
                _ => bytes,
            })
        })
    }

    fn delete(&self, object: ObjectId) -> BoxFuture<'_, Result<(), TierError>> {
        Box::pin(async move {
            let seen = &self.0;
            seen.takes().await;
            let fault = seen.fault(&[Fault::Away, Fault::Silent, Fault::AnswerLost]);
            if matches!(fault, None | Some(Fault::AnswerLost)) {
                seen.note(3, &object);
                let mut inner = seen.store.inner.lock();
                inner.objects.remove(&object);
                inner.lost.remove(&object);
            }
            match fault {
                None => Ok(()),
                Some(Fault::Silent) => {
                    seen.hang().await;
                    away()
                }
                Some(_) => away(),
            }
        })
    }

    fn may_be_late(&self) -> bool {
        true
    }

    fn delete_volume(&self, volume: VolumeId) -> BoxFuture<'_, Result<u64, TierError>> {
        Box::pin(async move {
            let seen = &self.0;
            seen.takes().await;
            if seen.fault(&[Fault::Away]).is_some() {
                return away();
            }
            let now = seen.clock.monotonic();
            // Even a store without other faults may list late.
            let is_lagging = seen.store.trouble.misbehaves() && seen.below(2) == 0;
            let mut inner = seen.store.inner.lock();
            let before = inner.objects.len();
            inner.objects.retain(|id, (_, since)| {
                let is_listed = since.is_none_or(|since| now.saturating_sub(since) > LIST_LAG);
                id.volume != volume || (is_lagging && !is_listed)
            });
            inner.lost.retain(|id, _| id.volume != volume);
            Ok((before - inner.objects.len()) as u64)
        })
    }
}
