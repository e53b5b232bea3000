//! Reading the state in RocksDB, whose disk may never answer.
//!
//! Owns: reads from memory, and loading the rest. Must not know: the stored data.
//!
//! RocksDB reads uncached data from the disk, and the calling thread is stuck for as long as the disk hangs. The few
//! threads that serve clients would all be stuck after a moment, including those that open the volume on another disk.
//! So a read first tries the memory ([`ReadTier::BlockCache`]). Another thread reads the missing data, and the reader
//! waits for it only while the disk is in use.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::disk::Disk;
use rocksdb::{DB, DBRawIterator, Error, ErrorKind, ReadOptions, ReadTier, Snapshot};

use super::readers::{Readers, unless_forbidden};
use super::rocks::failed;
use super::{Pair, StateCursor};
use crate::error::MetaError;

/// Entries loaded into memory at a time for a cursor.
const AHEAD_COUNT: usize = 512;
const AHEAD_BYTES: usize = 64 << 10;
/// Bytes that a pass over very many entries reads and holds at a time.
const PASS_BYTES: usize = 1 << 20;
/// After this number of loads without a hit, other readers evict the data, or only older readers know its file. The
/// caller then reads it itself.
const BRING_COUNT_MAX: u32 = 3;

/// Reads from one state.
pub(super) struct RocksReader {
    db: Arc<DB>,
    disk: Arc<dyn Disk>,
    readers: Readers,
    in_memory: ReadOptions,
}

fn in_memory() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_read_tier(ReadTier::BlockCache);
    options
}

fn reading_failed(db: &DB, error: &dyn std::fmt::Display) -> MetaError {
    failed("reading the state at", db.path(), error)
}

fn is_missing(error: &Error) -> bool {
    error.kind() == ErrorKind::Incomplete
}

impl RocksReader {
    pub fn new(db: Arc<DB>, disk: Arc<dyn Disk>) -> Self {
        Self {
            db,
            disk,
            readers: Readers::default(),
            in_memory: in_memory(),
        }
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        match self.db.get_pinned_opt(key, &self.in_memory) {
            Ok(value) => Ok(value.map(|value| Bytes::copy_from_slice(&value))),
            Err(error) if is_missing(&error) => {
                let key = key.to_vec();
                self.read(move |db| Ok(db.get(key)?.map(Bytes::from)))
            }
            Err(error) => Err(reading_failed(&self.db, &error)),
        }
    }

    /// Entries with `from <= key < to`, as of now. The first read happens with the first entry, so this may be called
    /// under locks that others need.
    pub fn cursor<'a>(&'a self, from: &[u8], to: &[u8]) -> RocksCursor<'a> {
        let snapshot = self.db.snapshot();
        let iterator = self.iterator(in_memory(), &snapshot, to);
        RocksCursor {
            reader: self,
            iterator,
            snapshot,
            place: CursorPosition::Before,
            at: from.to_vec(),
            to: to.to_vec(),
        }
    }

    /// Entries with `from <= key < to`, for a pass over very many. Large sequential reads bypass the cache, which keeps
    /// the data of other readers. There is no snapshot: the pass may or may not see later changes.
    pub fn passing_cursor<'a>(&'a self, from: &[u8], to: &[u8]) -> PassingCursor<'a> {
        PassingCursor {
            reader: self,
            part: EntryBatch::default(),
            next: 0,
            at: from.to_vec(),
            to: to.to_vec(),
            is_end: false,
        }
    }

    fn iterator(&self, options: ReadOptions, snapshot: &Snapshot, to: &[u8]) -> DBRawIterator<'_> {
        let mut options = options;
        options.set_snapshot(snapshot);
        options.set_iterate_upper_bound(to);
        self.db.raw_iterator_opt(options)
    }

    /// Reads on another thread. Fails for a faulted disk.
    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&DB) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, MetaError> {
        let db = self.db.clone();
        let mut work = Some(move || work(&db));
        unless_forbidden(&self.readers, &self.disk, || {
            let work = work.take();
            move || work.is_some_and(|work| work().is_ok())
        })?;
        let Some(work) = work else {
            return Err(MetaError::NotInMemory);
        };
        let read = self.readers.read(&*self.disk, work);
        match read {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(reading_failed(&self.db, &error)),
            Err(MetaError::Disk(error)) => {
                let path = self.db.path().display();
                let why = format!("reading the state at {path}, which took very long: {error}");
                Err(MetaError::StateDamaged(why))
            }
            Err(error) => Err(error),
        }
    }

    /// Loads the next entries of a cursor into memory.
    fn bring(&self, from: &[u8], to: &[u8]) -> Result<(), MetaError> {
        let (from, to) = (from.to_vec(), to.to_vec());
        self.read(move |db| {
            let mut options = ReadOptions::default();
            options.set_iterate_upper_bound(to);
            let mut iterator = db.raw_iterator_opt(options);
            iterator.seek(from);
            let mut len_bytes = 0;
            for _ in 0..AHEAD_COUNT {
                let Some((key, value)) = iterator.item() else {
                    break;
                };
                len_bytes += key.len() + value.len();
                if len_bytes >= AHEAD_BYTES {
                    break;
                }
                iterator.next();
            }
            iterator.status()
        })
    }
}

/// Consecutive entries.
#[derive(Default)]
struct EntryBatch {
    bytes: Vec<u8>,
    /// Ends of each key and its value.
    ends: Vec<(usize, usize)>,
}

impl EntryBatch {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    fn get(&self, index: usize) -> Option<Pair<'_>> {
        let start = match index {
            0 => 0,
            _ => self.ends.get(index - 1)?.1,
        };
        let (key_end, end) = *self.ends.get(index)?;
        Some((
            self.bytes.get(start..key_end)?,
            self.bytes.get(key_end..end)?,
        ))
    }
}

/// See [`RocksReader::passing_cursor`].
pub(super) struct PassingCursor<'a> {
    reader: &'a RocksReader,
    part: EntryBatch,
    /// Index in the part.
    next: usize,
    /// Start of the next part.
    at: Vec<u8>,
    to: Vec<u8>,
    is_end: bool,
}

impl PassingCursor<'_> {
    fn read_part(&mut self) -> Result<(), MetaError> {
        let (from, to) = (self.at.clone(), self.to.clone());
        let read = self.reader.read(move |db| {
            let mut options = ReadOptions::default();
            options.set_iterate_upper_bound(to);
            options.fill_cache(false);
            options.set_readahead_size(PASS_BYTES);
            let mut iterator = db.raw_iterator_opt(options);
            iterator.seek(from);
            let mut part = EntryBatch::default();
            while let Some((key, value)) = iterator.item() {
                part.push(key, value);
                if part.bytes.len() >= PASS_BYTES {
                    return Ok((part, false));
                }
                iterator.next();
            }
            iterator.status().map(|()| (part, true))
        });
        (self.part, self.is_end) = read?;
        self.next = 0;
        if let Some((key, _)) = self
            .part
            .ends
            .len()
            .checked_sub(1)
            .and_then(|last| self.part.get(last))
        {
            self.at.clear();
            self.at.extend_from_slice(key);
            self.at.push(0);
        }
        Ok(())
    }
}

impl StateCursor for PassingCursor<'_> {
    fn next(&mut self) -> Result<Option<Pair<'_>>, MetaError> {
        if self.next == self.part.ends.len() {
            if self.is_end {
                return Ok(None);
            }
            self.read_part()?;
        }
        let index = self.next;
        self.next += usize::from(index < self.part.ends.len());
        Ok(self.part.get(index))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CursorPosition {
    Before,
    On,
    End,
}

pub(super) struct RocksCursor<'a> {
    reader: &'a RocksReader,
    // Declared before the snapshot that it reads, so it is dropped first.
    iterator: DBRawIterator<'a>,
    snapshot: Snapshot<'a>,
    place: CursorPosition,
    /// The next entry has this key or a later one; while the cursor is on an entry, the key of that entry.
    at: Vec<u8>,
    to: Vec<u8>,
}

impl RocksCursor<'_> {
    /// Moves the iterator to an entry or the end, with all necessary reads.
    fn find(&mut self) -> Result<(), MetaError> {
        for _ in 0..BRING_COUNT_MAX {
            if self.is_found()? {
                return Ok(());
            }
            self.reader.bring(&self.at, &self.to)?;
            self.iterator.seek(&self.at);
        }
        if self.is_found()? {
            return Ok(());
        }
        let options = ReadOptions::default();
        self.iterator = self.reader.iterator(options, &self.snapshot, &self.to);
        self.iterator.seek(&self.at);
        self.is_found().map(drop)
    }

    /// False if the next entry is not in memory.
    fn is_found(&self) -> Result<bool, MetaError> {
        if self.iterator.valid() {
            return Ok(true);
        }
        match self.iterator.status() {
            Ok(()) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(reading_failed(&self.reader.db, &error)),
        }
    }
}

impl StateCursor for RocksCursor<'_> {
    fn next(&mut self) -> Result<Option<Pair<'_>>, MetaError> {
        match self.place {
            CursorPosition::Before => self.iterator.seek(&self.at),
            CursorPosition::On => {
                // From here on, the keys after it.
                self.at.push(0);
                self.iterator.next();
            }
            CursorPosition::End => return Ok(None),
        }
        // If this fails, the next call looks there again.
        self.place = CursorPosition::Before;
        self.find()?;
        match self.iterator.item() {
            Some((key, value)) => {
                self.place = CursorPosition::On;
                self.at.clear();
                self.at.extend_from_slice(key);
                Ok(Some((key, value)))
            }
            None => {
                self.place = CursorPosition::End;
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cairn_testkit::{MemDisk, Rng};
    use rocksdb::{BlockBasedOptions, Cache, Options};

    use super::*;
    use crate::state::without_waiting;

    const COUNT: u64 = 4000;

    fn open(path: &std::path::Path, cache_bytes: usize) -> RocksReader {
        open_with(path, &Cache::new_lru_cache(cache_bytes))
    }

    fn open_with(path: &std::path::Path, cache: &Cache) -> RocksReader {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(cache);
        table.set_cache_index_and_filter_blocks(true);
        table.set_bloom_filter(10.0, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        let db = DB::open(&options, path).expect("opens");
        RocksReader::new(Arc::new(db), MemDisk::new("disk", 1 << 20))
    }

    fn listed(cursor: &mut RocksCursor, count_max: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        while found.len() < count_max
            && let Some((key, value)) = cursor.next().expect("reads")
        {
            found.push((key.to_vec(), value.to_vec()));
        }
        found
    }

    /// A pass over all entries evicted the data that others read again and again.
    #[test]
    fn a_pass_leaves_what_others_use_in_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut rng = Rng::new(4);
        let mut model = BTreeMap::new();
        {
            let reader = open(folder.path(), 1 << 20);
            for number in 0..4 * COUNT {
                let key = format!("{number:05}").into_bytes();
                // Incompressible values, of several times the cache.
                let value = rng.bytes(400);
                reader.db.put(&key, &value).expect("puts");
                model.insert(key, value);
            }
            reader.db.flush().expect("flushes");
        }
        let cache = Cache::new_lru_cache(1 << 20);
        let reader = open_with(folder.path(), &cache);
        let used: Vec<Vec<u8>> = (0..100)
            .map(|number| format!("{number:05}").into_bytes())
            .collect();
        let in_memory = || {
            let found = used
                .iter()
                .filter(|key| reader.db.get_pinned_opt(key, &reader.in_memory).is_ok());
            found.count()
        };
        for key in &used {
            reader.get(key).expect("reads");
        }
        assert_eq!(in_memory(), used.len());
        let (usage, mut passed) = (cache.get_usage(), BTreeMap::new());
        let mut cursor = reader.passing_cursor(b"", b"~");
        while let Some((key, value)) = cursor.next().expect("reads") {
            passed.insert(key.to_vec(), value.to_vec());
        }
        assert!(cursor.next().expect("reads").is_none());
        assert!(passed == model);
        assert_eq!(in_memory(), used.len());
        assert!(
            cache.get_usage() <= usage + (64 << 10),
            "{usage} {}",
            cache.get_usage()
        );
        // A pass would not do this.
        let mut cursor = reader.cursor(b"", b"~");
        while cursor.next().expect("reads").is_some() {}
        assert!(in_memory() < used.len());
    }

    /// A thread that serves connections waited for the disk with each uncached read.
    #[test]
    fn a_read_that_must_not_wait_says_what_it_wants() {
        let folder = tempfile::tempdir().expect("a folder");
        {
            let reader = open(folder.path(), 1 << 20);
            reader.db.put(b"key", b"value").expect("puts");
            reader.db.flush().expect("flushes");
        }
        let reader = open(folder.path(), 1 << 20);
        let clock = cairn_testkit::ManualClock::default();
        let mut count = 0;
        loop {
            let (found, wanted) = without_waiting(|| reader.get(b"key"));
            let Some(wanted) = wanted else {
                assert_eq!(found.expect("reads").as_deref(), Some(b"value".as_slice()));
                break;
            };
            assert!(matches!(found, Err(MetaError::NotInMemory)));
            count += 1;
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let brought = runtime.expect("a runtime").block_on(wanted.bring(&clock));
            assert!(brought);
        }
        assert_eq!(count, 1);
        let (listed, wanted) = without_waiting(|| listed(&mut reader.cursor(b"", b"~"), 10));
        assert_eq!((listed.len(), wanted.is_some()), (1, false));
        // A reader that may wait does wait.
        assert!(reader.get(b"other").expect("reads").is_none());
    }

    /// A cursor shows the entries as of its creation, for any cached part and any later change.
    #[test]
    fn what_is_in_memory_or_not_is_read_as_it_was() {
        for (seed, cache_bytes) in [(1, 0), (2, 32 << 10), (3, 8 << 20)] {
            let mut rng = Rng::new(seed);
            let folder = tempfile::tempdir().expect("a folder");
            let mut model = BTreeMap::new();
            {
                let reader = open(folder.path(), cache_bytes);
                for _ in 0..COUNT {
                    let key = format!("{:05}", rng.below(100_000)).into_bytes();
                    let value = rng.bytes(40);
                    reader.db.put(&key, &value).expect("puts");
                    model.insert(key, value);
                }
                reader.db.flush().expect("flushes");
            }
            let reader = open(folder.path(), cache_bytes);
            let (from, to) = (b"1".to_vec(), b"7".to_vec());
            let want = |model: &BTreeMap<Vec<u8>, Vec<u8>>| -> Vec<(Vec<u8>, Vec<u8>)> {
                let part = model.range(from.clone()..to.clone());
                part.map(|(key, value)| (key.clone(), value.clone()))
                    .collect()
            };
            let before = want(&model);
            let mut old = reader.cursor(&from, &to);
            let first = listed(&mut old, 100);
            // Half of the entries are deleted, the rest change, and all files are rewritten.
            for key in model.keys().cloned().collect::<Vec<_>>() {
                if rng.coin() {
                    reader.db.delete(&key).expect("deletes");
                    model.remove(&key);
                } else {
                    let value = rng.bytes(20);
                    reader.db.put(&key, &value).expect("puts");
                    model.insert(key, value);
                }
            }
            reader.db.flush().expect("flushes");
            reader.db.compact_range(None::<&[u8]>, None::<&[u8]>);
            let rest = listed(&mut old, usize::MAX);
            assert!([first, rest].concat() == before, "{cache_bytes}");
            assert!(old.next().expect("reads").is_none());
            let mut new = reader.cursor(&from, &to);
            assert!(
                listed(&mut new, usize::MAX) == want(&model),
                "{cache_bytes}"
            );
            for number in (0..100_000).step_by(7) {
                let key = format!("{number:05}").into_bytes();
                let found = reader.get(&key).expect("reads");
                assert_eq!(found.as_deref(), model.get(&key).map(Vec::as_slice));
            }
        }
    }
}
