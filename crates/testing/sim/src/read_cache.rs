//! A read cache that loses and corrupts its entries.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use cairn_base::env::BoxFuture;
use cairn_segment::{CachePlace, ReadCache};
use cairn_testkit::Rng;
use parking_lot::Mutex;

const CAPACITY_BYTES: u64 = 64 << 20;

pub struct FlakyCache {
    state: Mutex<(BTreeMap<CachePlace, Bytes>, Rng)>,
}

impl FlakyCache {
    pub fn new(seed: u64) -> Self {
        Self {
            state: Mutex::new((BTreeMap::new(), Rng::new(seed))),
        }
    }
}

impl ReadCache for FlakyCache {
    fn get(&self, place: CachePlace) -> BoxFuture<Option<Bytes>> {
        let (known, rng) = &mut *self.state.lock();
        let found = match rng.below(8) {
            0 => known.remove(&place).and(None),
            1 => known.get(&place).map(|bytes| {
                let mut wrong = BytesMut::from(&bytes[..]);
                let at = rng.below(wrong.len().max(1) as u64) as usize;
                if let Some(byte) = wrong.get_mut(at) {
                    *byte ^= 1 << rng.below(8);
                }
                wrong.freeze()
            }),
            // The bytes of another piece.
            2 => known.values().next().cloned(),
            _ => known.get(&place).cloned(),
        };
        Box::pin(async move { found })
    }

    fn put(&self, place: CachePlace, stored: Bytes) {
        let (known, rng) = &mut *self.state.lock();
        if rng.below(8) != 0 {
            known.insert(place, stored);
        }
    }

    fn forget(&self, place: CachePlace) {
        self.state.lock().0.remove(&place);
    }

    fn capacity_bytes(&self) -> u64 {
        CAPACITY_BYTES
    }
}
