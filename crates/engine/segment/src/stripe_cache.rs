//! Stripes that were decoded because a disk is gone.
//!
//! Owns: a small cache of whole stripes. Reading one record of a stripe with a lost unit takes N units from
//! other disks; the other records of the stripe, which a sequential reader wants next, are in those.
//! What is here was not verified: records are, when they are cut from it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::{SegmentId, VolumeId};
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{OptionsBuilder, Weighter};
use rustc_hash::FxBuildHasher;

/// Memory for decoded stripes; the largest stripe, 16 units of 1 MiB, fits.
const STRIPE_CACHE_BYTES: u64 = 48 << 20;
/// A usual stripe: four units of 1 MiB.
const STRIPE_BYTES_GUESS: u64 = 4 << 20;

/// The volume, the segment, and where the stripe starts.
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

impl StripeCache {
    pub fn new() -> Self {
        // One lock: stripes are few and large, and each part must hold the largest.
        let options = OptionsBuilder::new()
            .shards(1)
            .weight_capacity(STRIPE_CACHE_BYTES)
            .estimated_items_capacity((STRIPE_CACHE_BYTES / STRIPE_BYTES_GUESS) as usize)
            // Stripes are read once, in order: newest first, no long memory of old ones.
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

    /// The stripe, decoded by `decode` unless it is here; those who ask meanwhile wait for it.
    pub async fn get_or_decode<E>(
        &self,
        key: &StripeKey,
        decode: impl Future<Output = Result<Units, E>>,
    ) -> Result<Units, E> {
        self.inner.get_or_insert_async(key, decode).await
    }

    /// Whether the stripe is here or being decoded right now.
    pub fn is_near(&self, key: &StripeKey) -> bool {
        // A guard means that nobody decodes it; dropped at once, it lets others do so.
        let found = self.inner.get_value_or_guard(key, Some(Duration::ZERO));
        !matches!(found, GuardResult::Guard(_))
    }

    pub fn weight_bytes(&self) -> u64 {
        self.inner.weight()
    }
}
