//! Versions of keys: reading at a generation.
//!
//! Owns: which version a reader sees, how a deletion is kept. Must not know: who takes snapshots.
//!
//! While a volume never had a snapshot there is one version of each key, in the first generation:
//! a read is a point get, and a deletion removes the key. Later a deletion is an empty value, which
//! hides older versions.

use bytes::Bytes;
use cairn_base::Generation;
use cairn_formats::metadata::Key;
use cairn_formats::metadata::keys::GENERATION_LEN_BYTES;

use super::{StateCursor, StateKey, StateStore};
use crate::error::MetaError;

/// What is written for a change made in `generation`.
pub(crate) fn write_of(
    key: &Key,
    value: Option<Bytes>,
    generation: Generation,
) -> (StateKey, Option<Bytes>) {
    let hides_older = generation > Generation::FIRST && key.is_versioned();
    let value = if hides_older {
        Some(value.unwrap_or_default())
    } else {
        value
    };
    (key.at(generation), value)
}

/// The newest version of `key` that is not newer than `generation`.
pub(crate) fn get(
    state: &dyn StateStore,
    key: &Key,
    generation: Generation,
) -> Result<Option<Bytes>, MetaError> {
    if generation <= Generation::FIRST || !key.is_versioned() {
        return state.get(&key.at(generation));
    }
    get_by_seek(state, key, generation)
}

fn get_by_seek(
    state: &dyn StateStore,
    key: &Key,
    generation: Generation,
) -> Result<Option<Bytes>, MetaError> {
    let from = key.at(generation);
    let mut to = key.at(Generation(0));
    to.push(0);
    let mut cursor = state.cursor(&from, &to);
    Ok(cursor
        .next()?
        .filter(|(_, value)| !value.is_empty())
        .map(|(_, value)| Bytes::copy_from_slice(value)))
}

/// Walks over keys, each with the version that a reader at `generation` sees.
pub(crate) struct VersionCursor<'a> {
    cursor: Box<dyn StateCursor + 'a>,
    generation: Generation,
    is_single: bool,
    /// Keys below are skipped: their versions may lie past it in the state.
    from: Vec<u8>,
    /// The key whose visible version was met, when there can be several.
    seen: Vec<u8>,
}

impl<'a> VersionCursor<'a> {
    /// Keys with `from <= key < to`.
    pub fn new(state: &'a dyn StateStore, from: &[u8], to: &[u8], generation: Generation) -> Self {
        Self::over(state.cursor(from, &state_end(to)), from, generation)
    }

    /// As `new`, for a pass over so much that it must not take the place of what others read in memory.
    pub fn passing(
        state: &'a dyn StateStore,
        from: &[u8],
        to: &[u8],
        generation: Generation,
    ) -> Self {
        Self::over(state.passing_cursor(from, &state_end(to)), from, generation)
    }

    fn over(cursor: Box<dyn StateCursor + 'a>, from: &[u8], generation: Generation) -> Self {
        Self {
            cursor,
            generation,
            is_single: generation <= Generation::FIRST,
            from: from.to_vec(),
            seen: Vec::new(),
        }
    }

    pub fn next(&mut self, out: &mut Entry) -> Result<bool, MetaError> {
        while let Some((bytes, value)) = self.cursor.next()? {
            let (key, generation) = Key::split(bytes)?;
            if !self.from.is_empty() {
                if key < self.from.as_slice() {
                    continue;
                }
                self.from.clear();
            }
            if !self.is_single {
                if generation > self.generation || self.seen == key {
                    continue;
                }
                self.seen.clear();
                self.seen.extend_from_slice(key);
                if value.is_empty() {
                    continue;
                }
            }
            out.key.clear();
            out.key.extend_from_slice(key);
            out.value.clear();
            out.value.extend_from_slice(value);
            return Ok(true);
        }
        Ok(false)
    }
}

/// Where versions of keys below `to` end in the state. For a key's successor (the key and a NUL) that
/// is past all versions of the key, which begin with the key and any eight bytes.
fn state_end(to: &[u8]) -> Vec<u8> {
    match to.split_last() {
        Some((0, key)) if Key::parse(key).is_ok() => {
            let mut end = key.to_vec();
            end.extend_from_slice(&[0xff; GENERATION_LEN_BYTES]);
            end.push(0);
            end
        }
        _ => to.to_vec(),
    }
}

/// A key and its value, in buffers that are used again.
#[derive(Default)]
pub(crate) struct Entry {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::memory;
    use cairn_base::Ino;
    use proptest::prelude::*;

    fn scan(
        state: &dyn StateStore,
        generation: Generation,
        single: bool,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (from, to) = Key::everything();
        let mut cursor = VersionCursor::new(state, from.as_bytes(), to.as_bytes(), generation);
        cursor.is_single = single;
        let mut entry = Entry::default();
        let mut all = Vec::new();
        while cursor.next(&mut entry).expect("reads") {
            all.push((entry.key.clone(), entry.value.clone()));
        }
        all
    }

    proptest! {
        /// Several generations against one map for each; and in the first, both ways of reading.
        #[test]
        fn reads_see_the_newest_version_of_their_generation(
            ops in proptest::collection::vec((0u64..6, 0u64..8, any::<Option<u8>>()), 1..80)
        ) {
            let state = memory::empty();
            let mut generation = Generation::FIRST;
            let mut model = std::collections::BTreeMap::new();
            let mut past = Vec::new();
            for (op, ino, value) in ops {
                if op == 0 {
                    past.push((generation, model.clone()));
                    generation.0 += 1;
                    continue;
                }
                let key = Key::inode(Ino(ino));
                let value = value.map(|byte| Bytes::from(vec![1, byte]));
                match &value {
                    Some(value) => model.insert(key.clone(), value.clone()),
                    None => model.remove(&key),
                };
                state.apply(&mut std::iter::once(write_of(&key, value, generation))).expect("applies");
            }
            past.push((generation, model));
            for (generation, model) in &past {
                for ino in 0..8 {
                    let key = Key::inode(Ino(ino));
                    let want = model.get(&key).cloned();
                    prop_assert_eq!(get(&state, &key, *generation).expect("reads"), want.clone());
                    prop_assert_eq!(get_by_seek(&state, &key, *generation).expect("reads"), want);
                }
                let want: Vec<_> = model.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.to_vec())).collect();
                prop_assert_eq!(scan(&state, *generation, false), want.clone());
                if past.len() == 1 {
                    prop_assert_eq!(scan(&state, *generation, true), want);
                }
            }
        }
    }
}
