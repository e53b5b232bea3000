//! A state without writes, for disks that lack the room that opening needs.
//!
//! Owns: the records beyond that state, in memory, over the stored entries. Must not know: how the stored state is
//! read.
//!
//! Replaying the log changes the memory alone. Any attempt to make something durable fails with [`MetaError::Full`].

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use cairn_formats::metadata::AppliedRecord;
use parking_lot::RwLock;

use super::exported::Exported;
use super::{Pair, ShipResult, StateCursor, StateFuture, StateKey, StateStore, Turn};
use crate::error::MetaError;

/// Approximate memory of an entry beside its key and its value.
const ENTRY_MEMORY_BYTES: u64 = 96;

/// Keys that the log changed, each with its value; `None` is a deletion.
type Over = BTreeMap<Vec<u8>, Option<Bytes>>;

pub(super) struct ReadOnlyState {
    base: Arc<dyn StateStore>,
    /// Shared with cursors, which see the map as of their creation.
    over: RwLock<Arc<Over>>,
}

impl ReadOnlyState {
    pub fn new(base: Arc<dyn StateStore>) -> Self {
        Self {
            base,
            over: RwLock::default(),
        }
    }

    fn merged<'a>(
        &'a self,
        from: &[u8],
        to: &[u8],
        base: impl FnOnce() -> Box<dyn StateCursor + 'a>,
    ) -> Box<dyn StateCursor + 'a> {
        // First: neither part then shows a later change.
        let over = self.over.read().clone();
        Box::new(OverCursor {
            base: base(),
            ahead: Ahead::Unknown,
            over,
            from: Bound::Included(from.to_vec()),
            to: to.to_vec(),
            entry: (Vec::new(), Bytes::new()),
        })
    }
}

fn no_room() -> MetaError {
    MetaError::Full("the state was opened to be read alone".to_owned())
}

impl StateStore for ReadOnlyState {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        if let Some(changed) = self.over.read().get(key) {
            return Ok(changed.clone());
        }
        self.base.get(key)
    }

    fn cursor<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn StateCursor + 'a> {
        self.merged(from, to, || self.base.cursor(from, to))
    }

    fn passing_cursor<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn StateCursor + 'a> {
        self.merged(from, to, || self.base.passing_cursor(from, to))
    }

    fn apply(
        &self,
        writes: &mut dyn Iterator<Item = (StateKey, Option<Bytes>)>,
    ) -> Result<(), MetaError> {
        let mut over = self.over.write();
        let over = Arc::make_mut(&mut over);
        for (key, value) in writes {
            // A copy: the value may be a slice of a whole log file.
            let value = value.map(|value| Bytes::copy_from_slice(&value));
            over.insert(key.to_vec(), value);
        }
        Ok(())
    }

    fn flush(&self) -> StateFuture<'_, Result<(), MetaError>> {
        Box::pin(async { Err(no_room()) })
    }

    fn ship(
        &self,
        _disks: Vec<usize>,
        _applied: AppliedRecord,
        _turn: Turn,
    ) -> StateFuture<'_, Result<Vec<ShipResult>, MetaError>> {
        Box::pin(async { Err(no_room()) })
    }

    fn export(
        &self,
        _applied: AppliedRecord,
        _turn: Turn,
    ) -> StateFuture<'_, Result<Exported, MetaError>> {
        Box::pin(async { Err(no_room()) })
    }

    fn memory_bytes(&self) -> u64 {
        let over = self.over.read().clone();
        let entries = over.iter().map(|(key, value)| {
            let value_len = value.as_ref().map_or(0, Bytes::len);
            (key.len() + value_len) as u64 + ENTRY_MEMORY_BYTES
        });
        entries.sum()
    }

    fn disk(&self) -> usize {
        self.base.disk()
    }

    fn leave(&self) {
        self.base.leave();
    }
}

/// Position of the cursor over the stored state.
enum Ahead {
    /// The next entry was not read yet.
    Unknown,
    /// The next entry was read and not returned yet.
    Entry(Vec<u8>, Bytes),
    End,
}

/// Walks over the stored entries and those in memory in parallel; for a key in both, memory counts.
struct OverCursor<'a> {
    base: Box<dyn StateCursor + 'a>,
    ahead: Ahead,
    over: Arc<Over>,
    /// Start of the rest of `over`.
    from: Bound<Vec<u8>>,
    to: Vec<u8>,
    /// The entry returned last.
    entry: (Vec<u8>, Bytes),
}

impl OverCursor<'_> {
    /// The next key in memory, with its value.
    fn changed(&self) -> Option<(&Vec<u8>, &Option<Bytes>)> {
        let starts_past_end = match &self.from {
            Bound::Included(key) | Bound::Excluded(key) => *key >= self.to,
            Bound::Unbounded => false,
        };
        if starts_past_end {
            return None;
        }
        let range = (self.from.clone(), Bound::Excluded(self.to.clone()));
        self.over.range::<Vec<u8>, _>(range).next()
    }
}

impl StateCursor for OverCursor<'_> {
    fn next(&mut self) -> Result<Option<Pair<'_>>, MetaError> {
        loop {
            if let Ahead::Unknown = self.ahead {
                self.ahead = match self.base.next()? {
                    Some((key, value)) => Ahead::Entry(key.to_vec(), Bytes::copy_from_slice(value)),
                    None => Ahead::End,
                };
            }
            let changed = self
                .changed()
                .map(|(key, value)| (key.clone(), value.clone()));
            let is_stored_first = match (&self.ahead, &changed) {
                (Ahead::Entry(stored, _), Some((key, _))) => stored < key,
                (Ahead::Entry(..), None) => true,
                (Ahead::Unknown | Ahead::End, _) => false,
            };
            if is_stored_first {
                if let Ahead::Entry(key, value) = std::mem::replace(&mut self.ahead, Ahead::Unknown)
                {
                    self.entry = (key, value);
                }
                return Ok(Some((&self.entry.0, &self.entry.1)));
            }
            let Some((key, value)) = changed else {
                return Ok(None);
            };
            // Memory replaces the stored entry of this key.
            if matches!(&self.ahead, Ahead::Entry(stored, _) if *stored == key) {
                self.ahead = Ahead::Unknown;
            }
            self.from = Bound::Excluded(key.clone());
            if let Some(value) = value {
                self.entry = (key, value);
                return Ok(Some((&self.entry.0, &self.entry.1)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_testkit::Rng;

    use super::*;
    use crate::state::memory;

    fn key(number: u64) -> Vec<u8> {
        format!("{number:02}").into_bytes()
    }

    fn write(state: &dyn StateStore, number: u64, value: Option<Bytes>) {
        let write = (StateKey::from_slice(&key(number)), value);
        state.apply(&mut std::iter::once(write)).expect("applies");
    }

    fn listed(mut cursor: Box<dyn StateCursor + '_>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some((key, value)) = cursor.next().expect("reads") {
            found.push((key.to_vec(), value.to_vec()));
        }
        found
    }

    #[test]
    fn what_is_in_memory_alone_is_counted() {
        let base = memory::empty();
        write(&base, 1, Some(Bytes::from(vec![0; 5000])));
        let state = ReadOnlyState::new(Arc::new(base));
        assert_eq!(state.memory_bytes(), 0);
        write(&state, 2, Some(Bytes::from(vec![0; 1000])));
        write(&state, 1, None);
        // Two keys of two bytes.
        let want = 1000 + 2 * 2 + 2 * ENTRY_MEMORY_BYTES;
        assert_eq!(state.memory_bytes(), want);
        // A later value of a key replaces the earlier one.
        write(&state, 2, Some(Bytes::from(vec![0; 10])));
        assert_eq!(state.memory_bytes(), want - 990);
    }

    /// Stored entries and later changes read as one map, for any of both, and nothing is made durable.
    #[test]
    fn what_came_since_is_read_over_what_is_stored() {
        const KEYS: u64 = 40;
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut model = BTreeMap::new();
            let base = memory::empty();
            for _ in 0..rng.below(KEYS) {
                let (number, value) = (rng.below(KEYS), Bytes::from(rng.bytes(4)));
                write(&base, number, Some(value.clone()));
                model.insert(key(number), value);
            }
            let state = ReadOnlyState::new(Arc::new(base));
            for _ in 0..rng.below(KEYS) {
                let number = rng.below(KEYS);
                if rng.coin() {
                    write(&state, number, None);
                    model.remove(&key(number));
                } else {
                    let value = Bytes::from(rng.bytes(4));
                    write(&state, number, Some(value.clone()));
                    model.insert(key(number), value);
                }
            }
            for number in 0..KEYS {
                let found = state.get(&key(number)).expect("reads");
                assert_eq!(found.as_ref(), model.get(&key(number)), "seed {seed}");
            }
            for _ in 0..20 {
                let (from, to) = (key(rng.below(KEYS)), key(rng.below(KEYS)));
                let want: Vec<(Vec<u8>, Vec<u8>)> = model
                    .iter()
                    .filter(|(key, _)| **key >= from && **key < to)
                    .map(|(key, value)| (key.clone(), value.to_vec()))
                    .collect();
                assert_eq!(listed(state.cursor(&from, &to)), want, "seed {seed}");
                assert_eq!(
                    listed(state.passing_cursor(&from, &to)),
                    want,
                    "seed {seed}"
                );
            }
            let flushed = futures_util::FutureExt::now_or_never(state.flush());
            assert!(matches!(flushed, Some(Err(MetaError::Full(_)))));
        }
    }
}
