//! The record cache: file bytes by their physical place.
//!
//! Owns: the cached entries, their keys and their weights. Must not know: how bytes are fetched. Invariant: a place is
//! written once and segment ids are never reused, so no entry is ever stale.

use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{SegmentId, VolumeId};
use cairn_formats::pointer::{CHECKSUM_GRANULE_BYTES, Codec, RecordPointer};
use parking_lot::Mutex;
use quick_cache::sync::{Cache, PlaceholderGuard};
use quick_cache::{OptionsBuilder, Weighter};
use rustc_hash::FxBuildHasher;

/// Bytes charged for an entry beside its data: key, lists, counters.
const ENTRY_OVERHEAD_BYTES: u64 = 192;
/// The mean size of an entry, for sizing the table.
const ENTRY_BYTES_GUESS: u64 = CHECKSUM_GRANULE_BYTES as u64;
/// Number of parts with a lock of their own; each must have room for the largest records.
const LOCKS_MAX: usize = 16;
/// Minimum room per lock.
const LOCK_ROOM_BYTES_MIN: u64 = 8 << 20;
/// Growth of the cache per second, if it is full of entries that were read once.
const GROWTH_BYTES_PER_SECOND: u64 = 64 << 20;
/// Minimum of one growth step.
const GROWTH_BYTES_MIN: u64 = 4 << 20;
/// Part of the cache for entries that were requested twice. All others pass through the rest in order of arrival, in
/// any amount. The rest is a quarter, so that a file of that size can be read from memory right after it was written.
const TWICE_PART: f64 = 0.75;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    volume: VolumeId,
    segment: SegmentId,
    stripe_block: u32,
    offset_bytes: u32,
    /// Index of the granule in the record, or [`WHOLE`].
    granule: u32,
}

const WHOLE: u32 = u32::MAX;

impl Key {
    pub fn whole(volume: VolumeId, pointer: &RecordPointer) -> Self {
        Self::granule(volume, pointer, WHOLE)
    }

    pub fn granule(volume: VolumeId, pointer: &RecordPointer, granule: u32) -> Self {
        Self {
            volume,
            segment: pointer.location.segment,
            stripe_block: pointer.location.stripe_block,
            offset_bytes: pointer.location.offset_bytes,
            granule,
        }
    }
}

/// File bytes in consecutive parts.
pub(crate) type Parts = Arc<[Bytes]>;

#[derive(Clone)]
pub(crate) struct ByBytes;

impl Weighter<Key, Parts> for ByBytes {
    fn weight(&self, _key: &Key, parts: &Parts) -> u64 {
        weight_bytes(parts)
    }
}

type Inner = Cache<Key, Parts, ByBytes, FxBuildHasher>;
type Guard<'a> = PlaceholderGuard<
    'a,
    Key,
    Parts,
    ByBytes,
    FxBuildHasher,
    quick_cache::sync::DefaultLifecycle<Key, Parts>,
>;

pub(crate) struct RecordCache {
    inner: Inner,
    growth: Growth,
    /// Recent requests that missed.
    missed: Missed,
}

/// Reason for caching an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It was not requested recently.
    ReadOnce,
    /// It was requested recently, and was evicted since.
    AskedAgain,
    /// It was just written.
    Written,
}

/// Growth of the cache to its full size.
///
/// Memory that a process touches for the first time costs far more than reused memory. In virtual machines that return
/// free memory to their host it costs 1 to 2 ns per byte, more than the rest of a read or a write. A stream that is
/// read once would use new memory until the cache is full. So such reads grow the cache slowly, and evicted entries
/// give their buffers to the next ones.
///
/// An entry that was requested twice would have been in a larger cache, and makes it larger at once. So does a write:
/// its bytes are in memory, and the writer of a file is likely to read it. So only the first writes of a process pay
/// for the memory, until the cache has its full size.
struct Growth {
    capacity_bytes: AtomicU64,
    /// May change while the cache is in use.
    full_bytes: AtomicU64,
    /// Bytes that may be added, as of a time of the monotonic clock.
    allowed: Mutex<(u64, Duration)>,
}

impl Growth {
    fn new(start_bytes: u64, full_bytes: u64) -> Self {
        Self {
            capacity_bytes: AtomicU64::new(start_bytes.min(full_bytes)),
            full_bytes: AtomicU64::new(full_bytes),
            allowed: Mutex::new((0, Duration::ZERO)),
        }
    }

    fn is_full_size(&self) -> bool {
        self.capacity_bytes.load(Ordering::Relaxed) >= self.full_bytes()
    }

    fn full_bytes(&self) -> u64 {
        self.full_bytes.load(Ordering::Relaxed)
    }

    /// The new capacity, if it changes: the cache holds `held_bytes`, and `more_bytes` are added.
    fn grow(&self, held_bytes: u64, more_bytes: u64, why: Why, now: Duration) -> Option<u64> {
        let mut allowed = self.allowed.lock();
        let capacity_bytes = self.capacity_bytes.load(Ordering::Relaxed);
        let (mut bytes, at) = *allowed;
        let earned = now.saturating_sub(at).as_micros() * u128::from(GROWTH_BYTES_PER_SECOND);
        let earned = u64::try_from(earned / 1_000_000).unwrap_or(u64::MAX);
        bytes += earned.min(GROWTH_BYTES_PER_SECOND.saturating_sub(bytes));
        // The parts of the cache fill unevenly. With few records per part, some overflow when half of the total is in
        // use.
        let full_bytes = match why {
            Why::ReadOnce | Why::AskedAgain => capacity_bytes / 8 * 7,
            Why::Written => capacity_bytes / 2,
        };
        let is_full = held_bytes + more_bytes >= full_bytes;
        match why {
            Why::AskedAgain if is_full => bytes += more_bytes,
            // Half of the capacity stays free, until the maximum is reached.
            Why::Written if is_full => bytes += 2 * more_bytes,
            Why::ReadOnce | Why::AskedAgain | Why::Written => {}
        }
        if !is_full || bytes < GROWTH_BYTES_MIN {
            *allowed = (bytes, now);
            return None;
        }
        *allowed = (0, now);
        let capacity_bytes = (capacity_bytes + bytes).min(self.full_bytes());
        self.capacity_bytes.store(capacity_bytes, Ordering::Relaxed);
        Some(capacity_bytes)
    }
}

/// Keys of requests that missed, about as many as the cache has room for; a later key may replace an earlier one.
struct Missed(Box<[AtomicU32]>);

impl Missed {
    fn new(entry_count: u64) -> Self {
        let slots = (2 * entry_count).next_power_of_two() as usize;
        Self((0..slots).map(|_| AtomicU32::new(0)).collect())
    }

    /// Notes a key. Returns whether it was there already.
    fn note(&self, key: &Key) -> bool {
        let hash = FxBuildHasher.hash_one(key);
        let mark = (hash >> 32) as u32 | 1;
        let slot = &self.0[hash as usize & (self.0.len() - 1)];
        slot.swap(mark, Ordering::Relaxed) == mark
    }
}

/// The duty to fetch a missing entry. Other requests for it wait until this is dropped.
pub(crate) struct Miss<'a> {
    cache: &'a RecordCache,
    guard: Guard<'a>,
    is_asked_again: bool,
}

impl Miss<'_> {
    pub fn insert(self, parts: Parts, now: impl FnOnce() -> Duration) {
        let why = match self.is_asked_again {
            true => Why::AskedAgain,
            false => Why::ReadOnce,
        };
        self.cache.grow(weight_bytes(&parts), why, now);
        // An error means that the entry was removed meanwhile.
        let _ = self.guard.insert(parts);
    }
}

fn weight_bytes(parts: &Parts) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum::<u64>() + ENTRY_OVERHEAD_BYTES
}

impl RecordCache {
    pub fn new(cache_bytes: u64) -> Self {
        let locks = (cache_bytes / LOCK_ROOM_BYTES_MIN).clamp(1, LOCKS_MAX as u64);
        let growth = Growth::new(locks * LOCK_ROOM_BYTES_MIN, cache_bytes);
        let entry_count = (cache_bytes / ENTRY_BYTES_GUESS).max(64);
        let options = OptionsBuilder::new()
            .shards(locks as usize)
            .weight_capacity(growth.capacity_bytes.load(Ordering::Relaxed))
            .estimated_items_capacity(entry_count as usize)
            .hot_allocation(TWICE_PART)
            .build()
            .expect("both capacities are set");
        Self {
            inner: Cache::with_options(
                options,
                ByBytes,
                FxBuildHasher,
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            growth,
            missed: Missed::new(entry_count),
        }
    }

    /// Changes the full size; the cache grows to it over time, or shrinks to it at once.
    pub fn set_full(&self, full_bytes: u64) {
        let _growing = self.growth.allowed.lock();
        self.growth.full_bytes.store(full_bytes, Ordering::Relaxed);
        if self.growth.capacity_bytes.load(Ordering::Relaxed) > full_bytes {
            self.growth
                .capacity_bytes
                .store(full_bytes, Ordering::Relaxed);
            self.inner.set_capacity(full_bytes);
        }
    }

    pub fn get(&self, key: &Key) -> Option<Parts> {
        self.inner.get(key)
    }

    /// The value, or the duty to fetch it: concurrent requests wait.
    pub async fn get_or_miss(&self, key: &Key) -> Result<Parts, Miss<'_>> {
        let guard = match self.inner.get_value_or_guard_async(key).await {
            Ok(parts) => return Ok(parts),
            Err(guard) => guard,
        };
        let is_growing = !self.growth.is_full_size();
        Err(Miss {
            cache: self,
            guard,
            is_asked_again: is_growing && self.missed.note(key),
        })
    }

    /// Caches written bytes, as far as that evicts no entry that was requested twice.
    pub fn insert_written(&self, key: Key, parts: Parts, now: impl FnOnce() -> Duration) {
        self.grow(weight_bytes(&parts), Why::Written, now);
        self.inner.insert(key, parts);
    }

    fn grow(&self, more_bytes: u64, why: Why, now: impl FnOnce() -> Duration) {
        // Reading the weight takes all locks of the cache.
        if self.growth.is_full_size() {
            return;
        }
        let held_bytes = self.inner.weight();
        let larger = self.growth.grow(held_bytes, more_bytes, why, now());
        if larger.is_some() {
            // Under the lock, with the present weight: of two concurrent calls the smaller size must not be set last.
            let _growing = self.growth.allowed.lock();
            let capacity_bytes = self.growth.capacity_bytes.load(Ordering::Relaxed);
            self.inner.set_capacity(capacity_bytes);
        }
    }

    /// Drops a record without references.
    pub fn forget(&self, volume: VolumeId, pointer: &RecordPointer) {
        if self.inner.remove(&Key::whole(volume, pointer)).is_none() && pointer.codec == Codec::Raw
        {
            for granule in granules(&(0..pointer.file_len_bytes)) {
                self.inner.remove(&Key::granule(volume, pointer, granule));
            }
        }
    }

    /// Bytes `range` of a record, if the cache has all of them.
    pub fn lookup(
        &self,
        volume: VolumeId,
        pointer: &RecordPointer,
        range: &Range<u32>,
    ) -> Option<Vec<Bytes>> {
        if let Some(parts) = self.get(&Key::whole(volume, pointer)) {
            return Some(slice(&parts, range.clone()));
        }
        if pointer.codec != Codec::Raw {
            return None;
        }
        let mut found = Vec::new();
        for granule in granules(range) {
            let parts = self.get(&Key::granule(volume, pointer, granule))?;
            found.extend(slice(&parts, within_granule(granule, range)));
        }
        Some(found)
    }

    pub fn weight_bytes(&self) -> u64 {
        self.inner.weight()
    }
}

/// The granules that `range` of a raw record touches.
pub(crate) fn granules(range: &Range<u32>) -> Range<u32> {
    range.start / CHECKSUM_GRANULE_BYTES..range.end.div_ceil(CHECKSUM_GRANULE_BYTES)
}

/// The part of `range` in a granule, counted from the granule's start.
pub(crate) fn within_granule(granule: u32, range: &Range<u32>) -> Range<u32> {
    let start = granule * CHECKSUM_GRANULE_BYTES;
    let end = start + CHECKSUM_GRANULE_BYTES;
    range.start.max(start) - start..range.end.min(end) - start
}

/// Bytes `range` of `parts`, without a copy.
pub(crate) fn slice(parts: &[Bytes], range: Range<u32>) -> Vec<Bytes> {
    let (from, to) = (range.start as usize, range.end as usize);
    let mut found = Vec::with_capacity(1);
    let mut start = 0;
    for part in parts {
        let end = start + part.len();
        if from < end && start < to {
            found.push(part.slice(from.max(start) - start..to.min(end) - start));
        }
        start = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn parts_are_cut_where_pieces_begin() {
        let parts = [&b"abc"[..], b"", b"defg", b"h"].map(Bytes::from_static);
        for range in [0..8, 0..3, 2..5, 3..7, 7..8, 4..4] {
            let want = &b"abcdefgh"[range.start as usize..range.end as usize];
            assert_eq!(slice(&parts, range).concat(), want);
        }
    }

    fn key(stripe_block: u32) -> Key {
        Key {
            volume: VolumeId(1),
            segment: SegmentId(1),
            stripe_block,
            offset_bytes: 0,
            granule: WHOLE,
        }
    }

    #[test]
    fn a_cache_that_has_to_be_smaller_drops_what_it_has_no_room_for() {
        let cache = RecordCache::new(8 * MIB);
        let parts = || -> Parts { Arc::from([Bytes::from(vec![0; 64 << 10])]) };
        let fill = || {
            for block in 0..200 {
                cache.insert_written(key(block), parts(), || Duration::from_secs(1));
            }
        };
        fill();
        assert!(cache.weight_bytes() > 6 * MIB, "{}", cache.weight_bytes());
        cache.set_full(2 * MIB);
        fill();
        assert!(cache.weight_bytes() <= 2 * MIB, "{}", cache.weight_bytes());
        // It grows again, as at first.
        cache.set_full(8 * MIB);
        assert!(!cache.growth.is_full_size());
        fill();
        assert!(cache.weight_bytes() > 6 * MIB, "{}", cache.weight_bytes());
    }

    #[test]
    fn a_full_cache_grows_slowly() {
        let growth = Growth::new(128 * MIB, 300 * MIB);
        let after = Duration::from_millis;
        let grow = |held: u64, ms| growth.grow(held * MIB, MIB, Why::ReadOnce, after(ms));
        assert_eq!(grow(10, 1_000_000), None, "it is not full");
        assert_eq!(grow(120, 1_000_000), Some(192 * MIB), "a second's at most");
        assert_eq!(grow(190, 1_000_000), None, "that was all for now");
        assert_eq!(grow(190, 1_000_125), Some(200 * MIB));
        assert_eq!(grow(190, 1_001_125), Some(264 * MIB));
        assert!(!growth.is_full_size());
        assert_eq!(grow(250, 1_010_000), Some(300 * MIB));
        assert!(growth.is_full_size());
    }

    #[test]
    fn what_is_asked_for_again_makes_it_grow_at_once() {
        let growth = Growth::new(128 * MIB, 300 * MIB);
        let grow = |why| growth.grow(128 * MIB, MIB, why, Duration::ZERO);
        for _ in 0..3 {
            assert_eq!(grow(Why::AskedAgain), None);
        }
        assert_eq!(grow(Why::ReadOnce), None);
        assert_eq!(grow(Why::AskedAgain), Some(132 * MIB));
    }

    #[test]
    fn what_is_written_makes_it_grow_before_it_is_full() {
        let growth = Growth::new(128 * MIB, 300 * MIB);
        let grow = |held: u64| growth.grow(held * MIB, MIB, Why::Written, Duration::ZERO);
        assert_eq!(grow(60), None, "half of it is free");
        assert_eq!(grow(63), None, "too little for a step");
        assert_eq!(grow(64), Some(132 * MIB));
        assert_eq!(grow(64), None, "half of it is free again");
    }

    #[test]
    fn what_is_written_at_once_is_there_when_it_is_read() {
        let cache = RecordCache::new(1 << 30);
        let record: Parts = [Bytes::from(vec![0; MIB as usize])].into();
        // At one instant.
        for block in 0..512 {
            cache.insert_written(key(block), record.clone(), || Duration::ZERO);
        }
        let is_there = |block: &u32| cache.get(&key(*block)).is_some();
        let there = (0..512).filter(is_there).count();
        assert!(there > 480, "{there}");
    }

    #[test]
    fn what_is_written_once_leaves_what_is_read_again_where_it_is() {
        const SIZE: u64 = 128 * MIB;
        let cache = RecordCache::new(SIZE);
        let now = || Duration::from_secs(1);
        let record: Parts = [Bytes::from(vec![0; 64 << 10])].into();
        let often = 0..512;
        // Requested twice while the cache is full of other entries.
        for block in 10_000..14_000 {
            cache.insert_written(key(block), record.clone(), now);
        }
        for block in often.clone() {
            cache.insert_written(key(block), record.clone(), now);
            for _ in 0..2 {
                assert!(cache.get(&key(block)).is_some());
            }
        }
        // Four times the capacity.
        for block in 20_000..28_192 {
            cache.insert_written(key(block), record.clone(), now);
        }
        let left = often.filter(|block| cache.get(&key(*block)).is_some());
        let left = left.count();
        assert!(left > 480, "{left}");
        // The most recent writes are cached, too.
        let newest = (28_000..28_192).filter(|block| cache.get(&key(*block)).is_some());
        let newest = newest.count();
        assert!(newest > 150, "{newest}");
    }

    /// Streams through the records of `pass` once. Returns the number of misses.
    fn stream(cache: &RecordCache, pass: Range<u32>, now: Duration) -> usize {
        let record: Parts = [Bytes::from(vec![0; MIB as usize])].into();
        let read = |block| match cache.get_or_miss(&key(block)).now_or_never() {
            Some(Err(miss)) => {
                miss.insert(record.clone(), || now);
                true
            }
            Some(Ok(_)) => false,
            None => panic!("nobody else asks"),
        };
        pass.filter(|block| read(*block)).count()
    }

    #[test]
    fn a_stream_that_is_read_once_keeps_the_cache_small_and_one_read_twice_does_not() {
        let cache = RecordCache::new(1 << 30);
        let now = Duration::from_secs(1);
        assert_eq!(stream(&cache, 0..512, now), 512);
        assert!(
            cache.weight_bytes() <= 192 * MIB,
            "{}",
            cache.weight_bytes()
        );
        assert!(stream(&cache, 0..512, now) > 300);
        assert!(cache.weight_bytes() > 400 * MIB, "{}", cache.weight_bytes());
        // Records of 1 MiB do not fill the parts evenly.
        assert!(stream(&cache, 0..512, now) < 128);
    }

    #[test]
    fn a_small_cache_has_its_full_size_from_the_start() {
        let cache = RecordCache::new(4 * MIB);
        assert!(cache.growth.is_full_size());
        stream(&cache, 0..16, Duration::ZERO);
        assert!(cache.weight_bytes() > 2 * MIB && cache.weight_bytes() <= 4 * MIB);
    }
}
