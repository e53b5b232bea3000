//! Bytes that the files of a disk take, for disks that may use only a part of their file system.

use std::collections::HashSet;
use std::fs::{DirEntry, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::buf::IO_ALIGN_BYTES;

/// Files so many folders down come and go past the disk (the metadata's state in `volumes/ID/state`).
const OTHERS_DEPTH: usize = 3;
/// At the top of each ext4 file system, for root alone: where the disk has one to itself, that is no folder of ours.
const LOST_AND_FOUND: &str = "lost+found";

/// Counts lengths rounded up to blocks: an estimate from above for sparse files. What comes and goes through
/// the disk is counted as it does; what others keep there, when it is counted again.
pub(crate) struct Usage {
    limit_bytes: Option<u64>,
    used_bytes: AtomicU64,
    others_bytes: AtomicU64,
}

impl Usage {
    pub(crate) fn scan(root: &Path, limit_bytes: Option<u64>) -> io::Result<Self> {
        let (used_bytes, others_bytes) = match limit_bytes {
            Some(_) => scan_folder(root)?,
            None => (0, 0),
        };
        Ok(Self {
            limit_bytes,
            used_bytes: AtomicU64::new(used_bytes),
            others_bytes: AtomicU64::new(others_bytes),
        })
    }

    /// Counts again what others keep there.
    pub(crate) fn recount(&self, root: &Path) -> io::Result<()> {
        let mut others = OtherUsage::default();
        visit_files(root, 0, &mut |depth, entry| {
            // Of the many files of its own nothing is asked.
            if depth >= OTHERS_DEPTH {
                others.add(&entry.metadata()?);
            }
            Ok(())
        })?;
        self.others_bytes.store(others.bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Bytes left under the limit; everything if there is none.
    pub(crate) fn free_bytes(&self) -> u64 {
        let used_bytes = self.used_bytes.load(Ordering::Relaxed);
        let others_bytes = self.others_bytes.load(Ordering::Relaxed);
        let free = |limit: u64| limit.saturating_sub(used_bytes.saturating_add(others_bytes));
        self.limit_bytes.map_or(u64::MAX, free)
    }

    /// Counts the growth of a file; false if that would pass the limit.
    pub(crate) fn grow(&self, from_len_bytes: u64, to_len_bytes: u64) -> bool {
        let Some(limit_bytes) = self.limit_bytes else {
            return true;
        };
        let more = in_blocks(to_len_bytes).saturating_sub(in_blocks(from_len_bytes));
        let order = Ordering::Relaxed;
        let limit_bytes = limit_bytes.saturating_sub(self.others_bytes.load(order));
        let grown = |used: u64| used.checked_add(more).filter(|used| *used <= limit_bytes);
        more == 0 || self.used_bytes.fetch_update(order, order, grown).is_ok()
    }

    pub(crate) fn shrink(&self, from_len_bytes: u64, to_len_bytes: u64) {
        let less = in_blocks(from_len_bytes).saturating_sub(in_blocks(to_len_bytes));
        let shrunk = |used: u64| Some(used.saturating_sub(less));
        let order = Ordering::Relaxed;
        let _ = self.used_bytes.fetch_update(order, order, shrunk);
    }
}

fn in_blocks(len_bytes: u64) -> u64 {
    len_bytes
        .checked_next_multiple_of(IO_ALIGN_BYTES as u64)
        .unwrap_or(u64::MAX)
}

/// Bytes of the files below a folder: those that come and go through the disk, and those of others.
fn scan_folder(root: &Path) -> io::Result<(u64, u64)> {
    let mut own_bytes = 0u64;
    let mut others = OtherUsage::default();
    visit_files(root, 0, &mut |depth, entry| {
        let metadata = entry.metadata()?;
        if depth >= OTHERS_DEPTH {
            others.add(&metadata);
        } else {
            own_bytes = own_bytes.saturating_add(in_blocks(metadata.len()));
        }
        Ok(())
    })?;
    Ok((own_bytes, others.bytes))
}

/// Shows all files below a folder of a disk, each with how many folders down it is. What goes away meanwhile is left
/// out.
fn visit_files(
    folder: &Path,
    depth: usize,
    visit: &mut dyn FnMut(usize, &DirEntry) -> io::Result<()>,
) -> io::Result<()> {
    let Some(entries) = if_there(std::fs::read_dir(folder))? else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry?;
        if depth == 0 && entry.file_name() == LOST_AND_FOUND {
            continue;
        }
        if entry.file_type()?.is_dir() {
            visit_files(&entry.path(), depth + 1, visit)?;
        } else {
            if_there(visit(depth, &entry))?;
        }
    }
    Ok(())
}

fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[derive(Default)]
struct OtherUsage {
    bytes: u64,
    /// Files with several names take their space once.
    seen: HashSet<(u64, u64)>,
}

impl OtherUsage {
    fn add(&mut self, metadata: &Metadata) {
        if self.seen.insert((metadata.dev(), metadata.ino())) {
            let bytes = metadata.blocks().saturating_mul(512);
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Only root may look into that folder, and it is at the top of each ext4 file system.
    #[test]
    fn lost_and_found_is_passed_over_at_the_top() {
        let folder = tempfile::tempdir().expect("a folder");
        for place in ["lost+found", "volumes/lost+found"] {
            let place = folder.path().join(place);
            fs::create_dir_all(&place).expect("a folder");
            fs::write(place.join("a"), vec![1; 4096]).expect("writes");
        }
        let usage = Usage::scan(folder.path(), Some(1 << 20)).expect("counts");
        assert_eq!(usage.free_bytes(), (1 << 20) - 4096);
        usage.recount(folder.path()).expect("counts");
        assert_eq!(usage.free_bytes(), (1 << 20) - 4096);
    }

    #[test]
    fn files_of_others_count_as_they_are_now() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let state = root.join("volumes/1/state");
        fs::create_dir_all(&state).expect("a folder");
        fs::write(root.join("volumes/1/log"), vec![1; 5000]).expect("writes");
        fs::write(state.join("a"), vec![1; 1 << 20]).expect("writes");
        let usage = Usage::scan(root, Some(8 << 20)).expect("counts");
        assert_eq!(usage.free_bytes(), (7 << 20) - 8192);
        // Files of its own are counted as they come and go, not anew.
        fs::write(root.join("volumes/1/more"), vec![1; 5000]).expect("writes");
        fs::hard_link(state.join("a"), state.join("b")).expect("links");
        fs::write(state.join("c"), vec![1; 1 << 20]).expect("writes");
        usage.recount(root).expect("counts");
        assert_eq!(usage.free_bytes(), (6 << 20) - 8192);
        assert!(!usage.grow(0, 6 << 20));
        assert!(usage.grow(0, 5 << 20));
        fs::remove_dir_all(&state).expect("removes");
        usage.recount(root).expect("counts");
        assert_eq!(usage.free_bytes(), (3 << 20) - 8192);
    }
}
