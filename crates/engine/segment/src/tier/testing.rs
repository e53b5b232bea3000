//! For tests: a tier in memory with injected faults.

use std::collections::BTreeMap;
use std::future::{pending, ready};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::VolumeId;
use cairn_formats::tier_object::ObjectId;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::{TierError, TierStore, TierUpload};

/// Injected faults of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every request fails.
    Away,
    /// No request is answered.
    Silent,
    /// Reads are truncated.
    Truncates,
    /// Reads return a byte that was never written.
    Lies,
    /// Writes store a wrong byte.
    Garbles,
    /// Writes store nothing.
    Loses,
    /// Writes succeed, and their answer says that they failed.
    AnswersLost,
    /// Nothing is deleted.
    KeepsAll,
}

#[derive(Default)]
struct TierState {
    objects: BTreeMap<ObjectId, Bytes>,
    /// Number of writes of each key.
    written: BTreeMap<ObjectId, u32>,
    fault: Option<Fault>,
    /// Number of remaining requests with the fault; `None`: all.
    left: Option<u32>,
    gets: u64,
    /// Time source and history of a recording.
    time: Option<Time>,
    history: Vec<(usize, BTreeMap<ObjectId, Bytes>)>,
}

/// Returns the present time, in any unit.
type Time = Arc<dyn Fn() -> usize + Send + Sync>;

impl TierState {
    fn record(&mut self) {
        if let Some(time) = &self.time {
            self.history.push((time(), self.objects.clone()));
        }
    }

    fn fault(&mut self) -> Option<Fault> {
        let fault = self.fault?;
        if let Some(left) = &mut self.left {
            if *left == 0 {
                return None;
            }
            *left -= 1;
        }
        Some(fault)
    }
}

/// A tier in memory. Clones share it.
#[derive(Clone, Default)]
pub struct MemTier(Arc<Mutex<TierState>>);

impl MemTier {
    /// Sets the fault for this number of requests, or for all.
    pub fn set_fault(&self, fault: Option<Fault>, requests: Option<u32>) {
        let mut inner = self.0.lock();
        (inner.fault, inner.left) = (fault, requests);
    }

    /// Records the contents over time from now on.
    pub fn record_with(&self, time: Time) {
        let mut inner = self.0.lock();
        inner.time = Some(time);
        inner.record();
    }

    /// Copies of this tier as it may have been at a time: several if it changed at that time.
    pub fn as_of(&self, time: usize) -> Vec<MemTier> {
        let inner = self.0.lock();
        let earlier = inner.history.iter().rposition(|(at, _)| *at < time);
        let later = inner.history.iter().rposition(|(at, _)| *at <= time);
        let range = earlier.unwrap_or(0)..=later.unwrap_or(0);
        let states = inner.history.get(range).unwrap_or_default();
        let tier = |(_, objects): &(usize, BTreeMap<ObjectId, Bytes>)| {
            MemTier(Arc::new(Mutex::new(TierState {
                objects: objects.clone(),
                ..TierState::default()
            })))
        };
        states.iter().map(tier).collect()
    }

    pub fn objects(&self) -> Vec<ObjectId> {
        self.0.lock().objects.keys().copied().collect()
    }

    pub fn object(&self, id: &ObjectId) -> Option<Bytes> {
        self.0.lock().objects.get(id).cloned()
    }

    /// Replaces the bytes of an object, or removes it.
    pub fn replace(&self, id: &ObjectId, bytes: Option<Bytes>) {
        let mut inner = self.0.lock();
        match bytes {
            Some(bytes) => inner.objects.insert(*id, bytes),
            None => inner.objects.remove(id),
        };
    }

    /// The largest number of writes of one key.
    pub fn written_max(&self) -> u32 {
        self.0.lock().written.values().copied().max().unwrap_or(0)
    }

    pub fn gets(&self) -> u64 {
        self.0.lock().gets
    }
}

fn away<T: Send + 'static>() -> BoxFuture<'static, Result<T, TierError>> {
    let error = TierError::Failed("connection refused".to_owned());
    Box::pin(ready(Err(error)))
}

fn flipped(bytes: &[u8]) -> Bytes {
    let mut wrong = bytes.to_vec();
    let middle = wrong.len() / 2;
    if let Some(byte) = wrong.get_mut(middle) {
        *byte ^= 0x40;
    }
    wrong.into()
}

struct Upload {
    tier: MemTier,
    id: ObjectId,
    parts: Vec<Bytes>,
}

impl TierUpload for Upload {
    fn part(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), TierError>> {
        match self.tier.0.lock().fault() {
            Some(Fault::Away) => return away(),
            Some(Fault::Silent) => return Box::pin(pending()),
            _ => {}
        }
        self.parts.push(bytes);
        Box::pin(ready(Ok(())))
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<(), TierError>> {
        let mut inner = self.tier.0.lock();
        let bytes = Bytes::from(self.parts.concat());
        let bytes = match inner.fault() {
            Some(Fault::Away) => return away(),
            Some(Fault::Silent) => return Box::pin(pending()),
            Some(Fault::Garbles) => flipped(&bytes),
            Some(Fault::Loses) => return Box::pin(ready(Ok(()))),
            Some(Fault::AnswersLost) => {
                inner.objects.insert(self.id, bytes);
                inner.record();
                return away();
            }
            _ => bytes,
        };
        *inner.written.entry(self.id).or_default() += 1;
        inner.objects.insert(self.id, bytes);
        inner.record();
        Box::pin(ready(Ok(())))
    }

    fn abort(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }
}

impl TierStore for MemTier {
    fn check(&self) -> BoxFuture<'_, Result<(), TierError>> {
        match self.0.lock().fault() {
            Some(Fault::Away) => away(),
            Some(Fault::Silent) => Box::pin(pending()),
            _ => Box::pin(ready(Ok(()))),
        }
    }

    fn begin(&self, object: ObjectId) -> BoxFuture<'_, Result<Box<dyn TierUpload>, TierError>> {
        match self.0.lock().fault() {
            Some(Fault::Away) => return away(),
            Some(Fault::Silent) => return Box::pin(pending()),
            _ => {}
        }
        let upload = Upload {
            tier: self.clone(),
            id: object,
            parts: Vec::new(),
        };
        Box::pin(ready(Ok(Box::new(upload) as Box<dyn TierUpload>)))
    }

    fn get(&self, object: ObjectId, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, TierError>> {
        let mut inner = self.0.lock();
        inner.gets += 1;
        let fault = inner.fault();
        match fault {
            Some(Fault::Away) => return away(),
            Some(Fault::Silent) => return Box::pin(pending()),
            _ => {}
        }
        let Some(bytes) = inner.objects.get(&object) else {
            return Box::pin(ready(Err(TierError::NotFound(format!("{object:?}")))));
        };
        let end = (range.end as usize).min(bytes.len());
        let bytes = bytes.slice((range.start as usize).min(end)..end);
        let bytes = match fault {
            Some(Fault::Truncates) => bytes.slice(..bytes.len() / 2),
            Some(Fault::Lies) => flipped(&bytes),
            _ => bytes,
        };
        Box::pin(ready(Ok(bytes)))
    }

    fn delete(&self, object: ObjectId) -> BoxFuture<'_, Result<(), TierError>> {
        let mut inner = self.0.lock();
        match inner.fault() {
            Some(Fault::Away | Fault::KeepsAll) => return away(),
            Some(Fault::Silent) => return Box::pin(pending()),
            _ => {}
        }
        inner.objects.remove(&object);
        inner.record();
        Box::pin(ready(Ok(())))
    }

    fn may_be_late(&self) -> bool {
        false
    }

    fn delete_volume(&self, volume: VolumeId) -> BoxFuture<'_, Result<u64, TierError>> {
        let mut inner = self.0.lock();
        match inner.fault() {
            Some(Fault::Away | Fault::KeepsAll) => return away(),
            Some(Fault::Silent) => return Box::pin(pending()),
            _ => {}
        }
        let before = inner.objects.len();
        inner.objects.retain(|id, _| id.volume != volume);
        let gone = before - inner.objects.len();
        Box::pin(ready(Ok(gone as u64)))
    }
}
