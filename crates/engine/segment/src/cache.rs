//! The record cache: file bytes by the physical place they came from.
//!
//! Owns: what is kept, under which key, and at what weight. Must not know: how bytes are fetched.
//! Invariant: a place is written once and segment ids are never reused, so an entry never is stale.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::{SegmentId, VolumeId};
use cairn_formats::pointer::{CHECKSUM_GRANULE_BYTES, Codec, RecordPointer};
use quick_cache::sync::{Cache, PlaceholderGuard};
use quick_cache::{OptionsBuilder, Weighter};
use rustc_hash::FxBuildHasher;

/// What an entry costs beside its bytes: key, lists, counters.
const ENTRY_OVERHEAD_BYTES: u64 = 192;
/// The mean size of an entry, for sizing the table.
const ENTRY_BYTES_GUESS: u64 = CHECKSUM_GRANULE_BYTES as u64;
/// Parts of the cache with a lock of their own; each must have room for the largest records.
const LOCKS_MAX: usize = 16;
/// Least room per lock.
const LOCK_ROOM_BYTES_MIN: u64 = 8 << 20;

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

/// File bytes in parts, one after the other.
pub(crate) type Parts = Arc<[Bytes]>;

#[derive(Clone)]
pub(crate) struct ByBytes;

impl Weighter<Key, Parts> for ByBytes {
    fn weight(&self, _key: &Key, parts: &Parts) -> u64 {
        parts.iter().map(|part| part.len() as u64).sum::<u64>() + ENTRY_OVERHEAD_BYTES
    }
}

type Inner = Cache<Key, Parts, ByBytes, FxBuildHasher>;
pub(crate) type Guard<'a> = PlaceholderGuard<
    'a,
    Key,
    Parts,
    ByBytes,
    FxBuildHasher,
    quick_cache::sync::DefaultLifecycle<Key, Parts>,
>;

pub(crate) struct RecordCache {
    inner: Inner,
}

impl RecordCache {
    pub fn new(cache_bytes: u64) -> Self {
        let locks = (cache_bytes / LOCK_ROOM_BYTES_MIN).clamp(1, LOCKS_MAX as u64) as usize;
        let options = OptionsBuilder::new()
            .shards(locks)
            .weight_capacity(cache_bytes)
            .estimated_items_capacity((cache_bytes / ENTRY_BYTES_GUESS).max(64) as usize)
            .build()
            .expect("both capacities are set");
        Self {
            inner: Cache::with_options(
                options,
                ByBytes,
                FxBuildHasher,
                quick_cache::sync::DefaultLifecycle::default(),
            ),
        }
    }

    pub fn get(&self, key: &Key) -> Option<Parts> {
        self.inner.get(key)
    }

    /// The value, or the duty to fetch it: others that ask meanwhile wait for the guard.
    pub async fn get_or_guard(&self, key: &Key) -> Result<Parts, Guard<'_>> {
        self.inner.get_value_or_guard_async(key).await
    }

    pub fn insert(&self, key: Key, parts: Parts) {
        self.inner.insert(key, parts);
    }

    /// Drops a record that nothing refers to any more.
    pub fn forget(&self, volume: VolumeId, pointer: &RecordPointer) {
        if self.inner.remove(&Key::whole(volume, pointer)).is_none() && pointer.codec == Codec::Raw
        {
            for granule in granules(&(0..pointer.file_len_bytes)) {
                self.inner.remove(&Key::granule(volume, pointer, granule));
            }
        }
    }

    /// Bytes `range` of a record, if they are all here.
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

/// Bytes `range` of what `parts` hold, uncopied.
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
