//! Files that wait to be used again: overwriting a file is about twice as fast as a first write.
//!
//! They are called `free/<capacity %016x>.<number %016x>`. They hold old data of other
//! shards; it is never read, because nothing points to it.

use std::collections::{BTreeMap, BTreeSet};

use cairn_formats::shard::footer::file_len_bytes;
use parking_lot::Mutex;

pub(crate) const FREE_FOLDER: &str = "free";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeFile {
    pub(crate) capacity_bytes: u64,
    number: u64,
    /// The folder that it came from by a rename which may not be durable yet. Until it is, a crash
    /// could bring the old name back, to the file of another shard.
    pub(crate) unsynced_folder: Option<String>,
}

impl FreeFile {
    pub(crate) fn path(&self) -> String {
        let Self {
            capacity_bytes,
            number,
            ..
        } = self;
        format!("{FREE_FOLDER}/{capacity_bytes:016x}.{number:016x}")
    }

    pub(crate) fn file_len_bytes(&self) -> u64 {
        file_len_bytes(self.capacity_bytes).unwrap_or(0)
    }

    fn parse(file_name: &str) -> Option<Self> {
        let (capacity, number) = file_name.split_once('.')?;
        let file = Self {
            capacity_bytes: u64::from_str_radix(capacity, 16).ok()?,
            number: u64::from_str_radix(number, 16).ok()?,
            unsynced_folder: None,
        };
        let known = file_len_bytes(file.capacity_bytes).is_some()
            && file.path().rsplit('/').next() == Some(file_name);
        known.then_some(file)
    }
}

#[derive(Default)]
struct State {
    files: Vec<FreeFile>,
    /// Given out a place here, but not there yet.
    reserved_count: usize,
    number_next: u64,
    /// How often a file came, or one was asked for.
    uses: u64,
    /// Capacities in use: a file of another one would lie here for ever.
    capacities: BTreeSet<u64>,
}

/// Most capacities that one disk is used with at a time (a setting, and what it was before).
const CAPACITY_COUNT_MAX: usize = 16;

pub(crate) struct FreeFiles {
    count_max: usize,
    state: Mutex<State>,
}

impl FreeFiles {
    /// Starts with the files found in the folder; also returns the names that have to go.
    pub(crate) fn adopt(count_max: usize, file_names: Vec<String>) -> (Self, Vec<String>) {
        let mut state = State::default();
        let mut surplus = Vec::new();
        for file_name in file_names {
            match FreeFile::parse(&file_name) {
                Some(file) if state.files.len() < count_max => {
                    state.number_next = state.number_next.max(file.number.saturating_add(1));
                    state.capacities.insert(file.capacity_bytes);
                    state.files.push(file);
                }
                _ => surplus.push(format!("{FREE_FOLDER}/{file_name}")),
            }
        }
        let state = Mutex::new(state);
        (Self { count_max, state }, surplus)
    }

    /// Remembers that shards of this capacity are made here.
    pub(crate) fn note_capacity(&self, capacity_bytes: u64) {
        let mut state = self.state.lock();
        if state.capacities.len() < CAPACITY_COUNT_MAX {
            state.capacities.insert(capacity_bytes);
        }
    }

    /// A name for one more file, if there is room for it and shards of its size are made here.
    pub(crate) fn reserve(
        &self,
        capacity_bytes: u64,
        unsynced_folder: Option<String>,
    ) -> Option<FreeFile> {
        let mut state = self.state.lock();
        if !state.capacities.contains(&capacity_bytes)
            || state.files.len() + state.reserved_count >= self.count_max
        {
            return None;
        }
        let number = state.number_next;
        state.number_next = number.checked_add(1)?;
        state.reserved_count += 1;
        Some(FreeFile {
            capacity_bytes,
            number,
            unsynced_folder,
        })
    }

    /// The reserved file is there.
    pub(crate) fn add(&self, file: FreeFile) {
        let mut state = self.state.lock();
        state.reserved_count = state.reserved_count.saturating_sub(1);
        state.uses = state.uses.wrapping_add(1);
        state.files.push(file);
    }

    /// The reserved file will not come.
    pub(crate) fn give_up(&self) {
        let mut state = self.state.lock();
        state.reserved_count = state.reserved_count.saturating_sub(1);
    }

    /// A file to use, taken off the list; those whose names are durable first.
    pub(crate) fn take(&self, capacity_bytes: u64) -> Option<FreeFile> {
        let mut state = self.state.lock();
        state.uses = state.uses.wrapping_add(1);
        let fits = |file: &FreeFile| file.capacity_bytes == capacity_bytes;
        let durable = |file: &FreeFile| fits(file) && file.unsynced_folder.is_none();
        let index = state
            .files
            .iter()
            .position(durable)
            .or_else(|| state.files.iter().position(fits))?;
        Some(state.files.swap_remove(index))
    }

    /// A file that shards of this capacity have no use for, taken off the list.
    pub(crate) fn take_other(&self, capacity_bytes: u64) -> Option<FreeFile> {
        let mut state = self.state.lock();
        let index = state
            .files
            .iter()
            .position(|file| file.capacity_bytes != capacity_bytes)?;
        Some(state.files.swap_remove(index))
    }

    pub(crate) fn all(&self) -> Vec<FreeFile> {
        self.state.lock().files.clone()
    }

    /// Takes one off the list.
    pub(crate) fn forget(&self, file: &FreeFile) {
        self.state.lock().files.retain(|known| known != file);
    }

    pub(crate) fn take_any(&self) -> Option<FreeFile> {
        self.state.lock().files.pop()
    }

    /// A file, taken off the list, if all of them take more than this.
    pub(crate) fn take_above(&self, len_bytes_max: u64) -> Option<FreeFile> {
        let mut state = self.state.lock();
        let len_bytes: u64 = state.files.iter().map(FreeFile::file_len_bytes).sum();
        match len_bytes > len_bytes_max {
            true => state.files.pop(),
            false => None,
        }
    }

    /// How often a file came, or one was asked for; only differences mean something.
    pub(crate) fn uses(&self) -> u64 {
        self.state.lock().uses
    }

    pub(crate) fn count(&self, capacity_bytes: u64) -> usize {
        let state = self.state.lock();
        state
            .files
            .iter()
            .filter(|file| file.capacity_bytes == capacity_bytes)
            .count()
    }

    /// Capacities of which there are files, and how many.
    pub(crate) fn counts(&self) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for file in &self.state.lock().files {
            *counts.entry(file.capacity_bytes).or_default() += 1;
        }
        counts
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.files.iter().map(FreeFile::file_len_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_adopted_up_to_the_limit() {
        let names = [
            "0000000000001000.0000000000000005",
            "0000000000001000.0000000000000007",
            "0000000000001000.0000000000000009",
            "0000000000001001.0000000000000001",
            "1000.1",
            "junk",
        ];
        let (free, surplus) = FreeFiles::adopt(2, names.map(str::to_owned).to_vec());
        assert_eq!(free.count(4096), 2);
        assert_eq!(surplus.len(), 4);
        assert!(free.reserve(4096, None).is_none(), "full");
        let taken = free.take(4096).unwrap();
        assert_eq!(taken.path(), "free/0000000000001000.0000000000000005");
        assert!(free.reserve(8192, None).is_none(), "nobody makes this size");
        let reserved = free.reserve(4096, None).unwrap();
        assert_eq!(reserved.path(), "free/0000000000001000.0000000000000008");
        assert!(
            free.reserve(4096, None).is_none(),
            "the reserved one counts"
        );
    }

    #[test]
    fn files_with_durable_names_go_first() {
        let (free, _) = FreeFiles::adopt(2, Vec::new());
        free.note_capacity(4096);
        for folder in [Some("shards/00000001".to_owned()), None] {
            let file = free.reserve(4096, folder).unwrap();
            free.add(file);
        }
        assert_eq!(free.take(4096).unwrap().unsynced_folder, None);
        assert!(free.take(4096).unwrap().unsynced_folder.is_some());
        assert!(free.take(4096).is_none());
    }
}
