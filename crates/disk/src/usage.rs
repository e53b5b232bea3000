//! Bytes that the files of a disk take, for disks that may use only a part of their file system.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_base::buf::IO_ALIGN_BYTES;

/// Counts lengths rounded up to blocks: an estimate from above for sparse files. Only files that
/// come and go through the disk are counted after the start.
pub(crate) struct Usage {
    limit_bytes: Option<u64>,
    used_bytes: AtomicU64,
}

impl Usage {
    pub(crate) fn scan(root: &Path, limit_bytes: Option<u64>) -> io::Result<Self> {
        let used_bytes = match limit_bytes {
            Some(_) => scan_folder(root)?,
            None => 0,
        };
        Ok(Self {
            limit_bytes,
            used_bytes: AtomicU64::new(used_bytes),
        })
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Bytes left under the limit; everything if there is none.
    pub(crate) fn free_bytes(&self) -> u64 {
        let used_bytes = self.used_bytes.load(Ordering::Relaxed);
        self.limit_bytes
            .map_or(u64::MAX, |limit| limit.saturating_sub(used_bytes))
    }

    /// Counts the growth of a file; false if that would pass the limit.
    pub(crate) fn grow(&self, from_len_bytes: u64, to_len_bytes: u64) -> bool {
        let Some(limit_bytes) = self.limit_bytes else {
            return true;
        };
        let more = in_blocks(to_len_bytes).saturating_sub(in_blocks(from_len_bytes));
        let grown = |used: u64| used.checked_add(more).filter(|used| *used <= limit_bytes);
        let order = Ordering::Relaxed;
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

fn scan_folder(folder: &Path) -> io::Result<u64> {
    let mut used_bytes = 0u64;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                used_bytes = used_bytes.saturating_add(in_blocks(metadata.len()));
            }
        }
    }
    Ok(used_bytes)
}
