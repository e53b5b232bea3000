//! A second cache behind the one in memory, on a disk that is faster than those of the pool.
//!
//! Owns: which reads use it, which bytes it keeps, and the check of their checksums. Must not know: how it stores bytes
//! ([`ReadCache`]).
//!
//! It holds records as they are stored (compressed, encrypted), in the pieces that have checksums. A place is written
//! once and segment ids are never reused, so no entry is ever stale, even after a restart. Bytes that it loses, lacks
//! or corrupts are read from the pool's disks: the pool does not depend on it.
//!
//! Many pieces are read only once. So a piece is kept when it is read from the pool's disks for the second time.

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use cairn_base::env::BoxFuture;
use cairn_base::planted::{self, Bug};
use cairn_base::{SegmentId, VolumeId};
use cairn_formats::pointer::RecordPointer;
use futures_util::future::join_all;
use rustc_hash::FxHasher;

use super::fetch::{Check, Reader};
use crate::cache::slice;
use crate::error::Result;
use crate::life::Segment;
use crate::record::checksum_of;
use crate::store::{SegmentStore, count};

/// Length of [`CachePlace::encode`].
pub const CACHE_PLACE_LEN_BYTES: usize = 20;
/// Remembered places for each place that the cache has room for.
const ASKED_PER_PLACE: u64 = 4;
const ASKED_COUNT_MIN: u64 = 1 << 12;
const ASKED_COUNT_MAX: u64 = 1 << 24;
/// Usual length of a piece: the part of a record that has a checksum.
const PIECE_BYTES_GUESS: u64 = 32 << 10;

/// Start of a piece of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CachePlace {
    pub volume: VolumeId,
    pub segment: SegmentId,
    pub stripe_block: u32,
    /// Offset in the stripe.
    pub offset_bytes: u32,
}

impl CachePlace {
    /// A stable encoding: a cache outlives its process.
    pub fn encode(&self) -> [u8; CACHE_PLACE_LEN_BYTES] {
        let mut bytes = [0; CACHE_PLACE_LEN_BYTES];
        let (volume, rest) = bytes.split_at_mut(4);
        let (segment, rest) = rest.split_at_mut(8);
        let (block, offset) = rest.split_at_mut(4);
        volume.copy_from_slice(&self.volume.0.to_le_bytes());
        segment.copy_from_slice(&self.segment.0.to_le_bytes());
        block.copy_from_slice(&self.stripe_block.to_le_bytes());
        offset.copy_from_slice(&self.offset_bytes.to_le_bytes());
        bytes
    }
}

/// A store that may keep bytes, and may lose them at any time.
pub trait ReadCache: Send + Sync + 'static {
    fn get(&self, place: CachePlace) -> BoxFuture<Option<Bytes>>;
    /// Does not wait: bytes that it cannot take now are dropped.
    fn put(&self, place: CachePlace, stored: Bytes);
    /// Drops an entry that was wrong.
    fn forget(&self, place: CachePlace);
    fn capacity_bytes(&self) -> u64;
}

pub(crate) struct Second {
    cache: Arc<dyn ReadCache>,
    asked: RecentReads,
}

impl Second {
    pub fn new(cache: Arc<dyn ReadCache>) -> Self {
        let places = cache.capacity_bytes() / PIECE_BYTES_GUESS;
        Self {
            cache,
            asked: RecentReads::new(places.saturating_mul(ASKED_PER_PLACE)),
        }
    }
}

/// Recently requested places, as far as there is room: a place replaces others with an equal hash.
struct RecentReads(Vec<AtomicU32>);

impl RecentReads {
    fn new(count: u64) -> Self {
        let count = count.clamp(ASKED_COUNT_MIN, ASKED_COUNT_MAX);
        let slots = (0..count.next_power_of_two()).map(|_| AtomicU32::new(0));
        Self(slots.collect())
    }

    /// Notes a place. Returns whether it was there already.
    fn again(&self, place: &CachePlace) -> bool {
        let mut hasher = FxHasher::default();
        place.hash(&mut hasher);
        let hash = hasher.finish();
        let at = (hash >> 32) as usize & (self.0.len() - 1);
        // 0 marks an empty slot.
        let tag = (hash as u32).max(1);
        self.0
            .get(at)
            .is_some_and(|slot| slot.swap(tag, Ordering::Relaxed) == tag)
    }
}

impl SegmentStore {
    /// Uses this cache for all reads from now on, before the pool's disks.
    pub fn use_read_cache(&self, cache: Arc<dyn ReadCache>) {
        let second = Arc::new(Second::new(cache));
        self.second.store(Some(second));
    }

    pub fn use_no_read_cache(&self) {
        self.second.store(None);
    }

    /// The verified stored bytes that adjacent `checks` cover; from the second cache if that has all of them.
    pub(super) async fn fetch_through(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        pointer: &RecordPointer,
        checks: Vec<Check>,
        reader: Reader,
    ) -> Result<Vec<Bytes>> {
        let Some(second) = self.second.load_full() else {
            return self.fetch(segment, pointer, checks, reader).await;
        };
        if let Some(found) = self
            .look_in_second(&second, segment, pointer, &checks)
            .await
        {
            return Ok(found);
        }
        let ranges: Vec<Range<u32>> = checks.iter().map(|check| check.stored.clone()).collect();
        let stored = self.fetch(segment, pointer, checks, reader).await?;
        self.keep_in_second(&second, segment, pointer, &ranges, &stored);
        Ok(stored)
    }

    /// The verified stored bytes that adjacent `checks` cover, if the second cache has all of them.
    pub(super) async fn look_in_second(
        &self,
        second: &Second,
        segment: &Segment,
        pointer: &RecordPointer,
        checks: &[Check],
    ) -> Option<Vec<Bytes>> {
        let places: Vec<CachePlace> = checks
            .iter()
            .map(|check| place_of(segment, pointer, check.stored.start))
            .collect();
        let found = join_all(places.iter().map(|place| second.cache.get(*place))).await;
        // If one is missing, all are read from the pool's disks.
        let found = match found.iter().all(Option::is_some) {
            true => found,
            false => Vec::new(),
        };
        let mut good = Vec::with_capacity(found.len());
        for ((check, place), found) in checks.iter().zip(&places).zip(found) {
            let Some(bytes) = found else { continue };
            let is_right = bytes.len() == check.stored.len()
                && checksum_of(std::slice::from_ref(&bytes)) == check.checksum;
            if is_right || planted::is(Bug::ReadCacheChecksumIgnored) {
                good.push(bytes);
            } else {
                count(&self.counters.second_wrong, 1);
                tracing::warn!(volume = %segment.volume, segment = %segment.id, "wrong bytes in the read cache; they are read from the pool's disks");
                second.cache.forget(*place);
            }
        }
        if good.len() == checks.len() {
            let bytes: usize = good.iter().map(Bytes::len).sum();
            count(&self.counters.second_hits, 1);
            count(&self.counters.second_hit_bytes, bytes as u64);
            return Some(good);
        }
        count(&self.counters.second_misses, 1);
        None
    }

    /// Offers these verified bytes to the second cache. They belong to adjacent `ranges` of a stored record.
    pub(super) fn keep_in_second(
        &self,
        second: &Second,
        segment: &Segment,
        pointer: &RecordPointer,
        ranges: &[Range<u32>],
        stored: &[Bytes],
    ) {
        let start = ranges.first().map_or(0, |range| range.start);
        for range in ranges {
            let place = place_of(segment, pointer, range.start);
            if second.asked.again(&place) {
                let kept_range = range.start - start..range.end - start;
                let parts = slice(stored, kept_range);
                count(&self.counters.second_kept_bytes, range.len() as u64);
                second.cache.put(place, parts.concat().into());
            }
        }
    }
}

/// Place of the piece that begins at `start` of a stored record.
fn place_of(segment: &Segment, pointer: &RecordPointer, start: u32) -> CachePlace {
    CachePlace {
        volume: segment.volume,
        segment: segment.id,
        stripe_block: pointer.location.stripe_block,
        offset_bytes: pointer.location.offset_bytes + start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_remembered_until_others_take_its_room() {
        let asked = RecentReads::new(0);
        let place = |number: u32| CachePlace {
            volume: VolumeId(1),
            segment: SegmentId(u64::from(number) * 77),
            stripe_block: number,
            offset_bytes: 64,
        };
        assert!(!asked.again(&place(1)));
        assert!(asked.again(&place(1)));
        for number in 2..100_000 {
            asked.again(&place(number));
        }
        assert!(!asked.again(&place(1)));
    }
}
