//! Stripes that were decoded because a disk is gone.
//!
//! Owns: a small cache of whole stripes. Reading one record of a stripe with a lost unit takes N units from other
//! disks. These contain the other records of the stripe, which a sequential reader needs next. The stripes here are not
//! verified: records are, when they are cut out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{SegmentId, VolumeId};
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{OptionsBuilder, Weighter};
use rustc_hash::FxBuildHasher;

/// Memory for decoded stripes: this part of the memory for records, between these limits. The largest stripe, 16 units
/// of 1 MiB, fits into the minimum.
const PART_OF_RECORDS: u64 = 4;
const STRIPE_CACHE_BYTES_MIN: u64 = 16 << 20;
const STRIPE_CACHE_BYTES_MAX: u64 = 48 << 20;
/// A usual stripe: four units of 1 MiB.
const STRIPE_BYTES_GUESS: u64 = 4 << 20;

/// The volume, the segment, and the start of the stripe.
pub(crate) type StripeKey = (VolumeId, SegmentId, u32);
/// The N data units of a stripe.
pub(crate) type Units = Arc<[Bytes]>;

#[derive(Clone)]
struct ByBytes;

impl Weighter<StripeKey, Units> for ByBytes {
    fn weight(&self, _key: &StripeKey, units: &Units) -> u64 {
        units.iter().map(|unit| unit.len() as u64).sum()
    }
}

pub(crate) struct StripeCache {
    inner: Cache<StripeKey, Units, ByBytes, FxBuildHasher>,
}

fn capacity_bytes(records_bytes: u64) -> u64 {
    (records_bytes / PART_OF_RECORDS).clamp(STRIPE_CACHE_BYTES_MIN, STRIPE_CACHE_BYTES_MAX)
}

impl StripeCache {
    /// A cache beside a cache of records of this size.
    pub fn new(records_bytes: u64) -> Self {
        let capacity_bytes = capacity_bytes(records_bytes);
        // One lock: stripes are few and large, and each part must hold the largest.
        let options = OptionsBuilder::new()
            .shards(1)
            .weight_capacity(capacity_bytes)
            .estimated_items_capacity((STRIPE_CACHE_BYTES_MAX / STRIPE_BYTES_GUESS) as usize)
            // Stripes are read once, in order: newest first, without a long memory of old ones.
            .hot_allocation(0.5)
            .build()
            .expect("both capacities are set");
        Self {
            inner: Cache::with_options(
                options,
                ByBytes,
                FxBuildHasher,
                DefaultLifecycle::default(),
            ),
        }
    }

    /// Adapts its size to a cache of records of this size.
    pub fn resize(&self, records_bytes: u64) {
        let capacity_bytes = capacity_bytes(records_bytes);
        if self.inner.capacity() != capacity_bytes {
            self.inner.set_capacity(capacity_bytes);
        }
    }

    /// The stripe, decoded by `decode` unless it is cached; concurrent callers wait for it.
    pub async fn get_or_decode<E>(
        &self,
        key: &StripeKey,
        decode: impl Future<Output = Result<Units, E>>,
    ) -> Result<Units, E> {
        self.inner.get_or_insert_async(key, decode).await
    }

    /// Whether the stripe is cached or being decoded.
    pub fn is_near(&self, key: &StripeKey) -> bool {
        // A guard means that no task decodes it; dropped at once, it lets others do so.
        let found = self.inner.get_value_or_guard(key, Some(Duration::ZERO));
        !matches!(found, GuardResult::Guard(_))
    }

    pub fn weight_bytes(&self) -> u64 {
        self.inner.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_a_part_of_what_records_have() {
        const MIB: u64 = 1 << 20;
        let cache = StripeCache::new(1024 * MIB);
        assert_eq!(cache.inner.capacity(), 48 * MIB);
        for (records, want) in [(100, 25), (0, 16), (64, 16), (4096, 48)] {
            cache.resize(records * MIB);
            assert_eq!(cache.inner.capacity(), want * MIB, "{records}");
        }
    }
}
