//! The bytes of one simulated file: sparse, and cheap to copy.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;

type Page = [u8; PAGE_BYTES as usize];

/// Pages that were never written read as zeros and take no memory; clones share pages.
///
/// Invariant: no page starts at or after `len_bytes`, and the last page is zero after that offset.
#[derive(Clone, Default)]
pub struct Content {
    len_bytes: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Writes `bytes` at `offset`, extending the file if it ends before. The end must fit a u64.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (at % PAGE_BYTES) as usize;
            let count = rest.len().min(PAGE_BYTES as usize - within);
            let (now, later) = rest.split_at(count);
            let page = self
                .pages
                .entry(at / PAGE_BYTES)
                .or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(page)[within..within + count].copy_from_slice(now);
            at += count as u64;
            rest = later;
        }
        self.len_bytes = self.len_bytes.max(end);
    }

    /// Fills `out` from `offset`; bytes past the end read as zeros.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let within = (at % PAGE_BYTES) as usize;
            let count = rest.len().min(PAGE_BYTES as usize - within);
            let (now, later) = rest.split_at_mut(count);
            match self.pages.get(&(at / PAGE_BYTES)) {
                Some(page) => now.copy_from_slice(&page[within..within + count]),
                None => now.fill(0),
            }
            at += count as u64;
            rest = later;
        }
    }

    /// Start offsets of the written pages.
    pub fn page_offsets(&self) -> Vec<u64> {
        self.pages.keys().map(|index| index * PAGE_BYTES).collect()
    }

    pub fn set_len(&mut self, len_bytes: u64) {
        if len_bytes < self.len_bytes {
            self.pages.split_off(&len_bytes.div_ceil(PAGE_BYTES));
            let within = (len_bytes % PAGE_BYTES) as usize;
            if within != 0
                && let Some(page) = self.pages.get_mut(&(len_bytes / PAGE_BYTES))
            {
                Arc::make_mut(page)[within..].fill(0);
            }
        }
        self.len_bytes = len_bytes;
    }

    /// Shares with `other` those pages of `range` that hold equal bytes, to save memory.
    pub fn share_pages(&mut self, other: &Content, range: Range<u64>) {
        let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
        for (index, page) in self.pages.range_mut(pages) {
            if let Some(twin) = other.pages.get(index)
                && !Arc::ptr_eq(page, twin)
                && page == twin
            {
                *page = Arc::clone(twin);
            }
        }
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len_bytes as usize];
        self.read(0, &mut bytes);
        bytes
    }
}
