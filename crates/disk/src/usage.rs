//! Bytes that the files of a disk take, for disks that may use only a part of their file system.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::buf::IO_ALIGN_BYTES;

/// Files so many folders down come and go past the disk (the metadata's state in `volumes/ID/state`).
const OTHERS_DEPTH: usize = 3;

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
        let mut others = Others::default();
        scan_others(root, 0, &mut others)?;
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
    let mut others = Others::default();
    let mut folders = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push((entry.path(), depth + 1));
            } else if depth >= OTHERS_DEPTH {
                others.add(&entry.metadata()?);
            } else {
                own_bytes = own_bytes.saturating_add(in_blocks(entry.metadata()?.len()));
            }
        }
    }
    Ok((own_bytes, others.bytes))
}

/// Bytes of the files of others, which come and go meanwhile.
fn scan_others(folder: &Path, depth: usize, others: &mut Others) -> io::Result<()> {
    let if_there = |error: &io::Error| error.kind() != io::ErrorKind::NotFound;
    let entries = match std::fs::read_dir(folder) {
        Err(error) if if_there(&error) => return Err(error),
        entries => entries.into_iter().flatten(),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            scan_others(&entry.path(), depth + 1, others)?;
        } else if depth >= OTHERS_DEPTH {
            match entry.metadata() {
                Ok(metadata) => others.add(&metadata),
                Err(error) if if_there(&error) => return Err(error),
                Err(_) => {}
            }
        }
    }
    Ok(())
}

#[derive(Default)]
struct Others {
    bytes: u64,
    /// Files with several names take their space once.
    seen: HashSet<(u64, u64)>,
}

impl Others {
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
