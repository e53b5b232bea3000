//! Several caches as one: each place is of one of them.
//!
//! A cache that comes or goes takes or leaves its own share of the places; what the others have stays where it is (rendezvous
//! hashing with weights; Schindelhauer and Schomaker 2005).

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::DiskId;
use cairn_base::env::BoxFuture;
use cairn_segment::{CachePlace, ReadCache};

/// One or more caches; the larger one has more of the places.
pub struct CacheSet(Vec<(DiskId, Arc<dyn ReadCache>)>);

impl CacheSet {
    /// `None` of none.
    pub fn new(caches: Vec<(DiskId, Arc<dyn ReadCache>)>) -> Option<Self> {
        (!caches.is_empty()).then_some(Self(caches))
    }

    fn of(&self, place: &CachePlace) -> Option<&Arc<dyn ReadCache>> {
        if let [(_, only)] = self.0.as_slice() {
            return Some(only);
        }
        let scored = self.0.iter().map(|(id, cache)| {
            let score = score(*id, place, cache.capacity_bytes());
            (score, cache)
        });
        let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
        best.map(|(_, cache)| cache)
    }
}

/// The score of a disk's cache for a place. It never changes between versions, because a cache outlives its process.
fn score(id: DiskId, place: &CachePlace, weight: u64) -> f64 {
    let folded = (id.0 as u64) ^ ((id.0 >> 64) as u64);
    let words = place.encode();
    let hash = words.chunks(8).fold(mixed(folded), |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mixed(hash ^ u64::from_le_bytes(word))
    });
    // In (0, 1): neither end, whose logarithms are no weights.
    let uniform = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    weight as f64 / -uniform.ln()
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl ReadCache for CacheSet {
    fn get(&self, place: CachePlace) -> BoxFuture<Option<Bytes>> {
        match self.of(&place) {
            Some(cache) => cache.get(place),
            None => Box::pin(async { None }),
        }
    }

    fn put(&self, place: CachePlace, stored: Bytes) {
        if let Some(cache) = self.of(&place) {
            cache.put(place, stored);
        }
    }

    fn forget(&self, place: CachePlace) {
        if let Some(cache) = self.of(&place) {
            cache.forget(place);
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.iter().map(|(_, cache)| cache.capacity_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{SegmentId, VolumeId};

    use super::*;

    struct Sized(u64);

    impl ReadCache for Sized {
        fn get(&self, _: CachePlace) -> BoxFuture<Option<Bytes>> {
            Box::pin(async { None })
        }

        fn put(&self, _: CachePlace, _: Bytes) {}

        fn forget(&self, _: CachePlace) {}

        fn capacity_bytes(&self) -> u64 {
            self.0
        }
    }

    fn place(number: u32) -> CachePlace {
        CachePlace {
            volume: VolumeId(1),
            segment: SegmentId(u64::from(number / 64)),
            stripe_block: number % 64,
            offset_bytes: 4096,
        }
    }

    fn set(sizes: &[(u128, u64)]) -> CacheSet {
        let caches = sizes.iter().map(|(id, size)| {
            let cache: Arc<dyn ReadCache> = Arc::new(Sized(*size));
            (DiskId(*id), cache)
        });
        CacheSet::new(caches.collect()).expect("some")
    }

    #[test]
    fn each_has_its_share_and_keeps_it_when_another_comes() {
        const COUNT: u32 = 10_000;
        let sizes = |set: &CacheSet| -> Vec<u64> {
            let of = |number| set.of(&place(number)).expect("one").capacity_bytes();
            (0..COUNT).map(of).collect()
        };
        let two = sizes(&set(&[(1, 100), (2, 300)]));
        let large = two.iter().filter(|size| **size == 300).count();
        assert!((7_200..7_800).contains(&large), "{large} of {COUNT}");
        let three = sizes(&set(&[(1, 100), (2, 300), (3, 401)]));
        let moved = two.iter().zip(&three).filter(|(was, is)| was != is);
        let to_new = moved.clone().filter(|(_, is)| **is == 401).count();
        assert_eq!(moved.count(), to_new, "only the new one takes any");
        assert!((4_700..5_300).contains(&to_new), "{to_new} of {COUNT}");
    }
}
