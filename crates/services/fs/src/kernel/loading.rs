//! Extents in memory: which are loaded when they are needed, and which are forgotten.
//!
//! Owns: that a map in memory is the stored one, however loads and changes interleave. Must not know: why extents are
//! needed.

use std::ops::Range;
use std::sync::atomic::Ordering;

use cairn_base::{Generation, Ino, View};
use cairn_meta::{Key, MetaError, decode_extent};

use super::Kernel;
use super::errors::meta_error;
use super::extents::{Ahead, Extent, ExtentMap, LOAD_EXTENTS_MAX};
use super::inode::{Inode, State};
use crate::types::FsError;

/// Extents that a file may always have in memory while it is in use: several times the need of one batch of a flush
/// or of garbage collection.
const FILE_EXTENTS_MIN: usize = 32 << 10;

impl Kernel {
    /// An empty map of extents, of which none is loaded.
    pub fn extent_map(&self) -> ExtentMap {
        ExtentMap::new(&self.extent_count)
    }

    /// The map of a file without extents.
    pub fn no_extents(&self) -> ExtentMap {
        ExtentMap::empty(&self.extent_count)
    }

    /// Loads the extents of `range` into memory; returns how many.
    pub fn load_extents(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        ahead: Ahead,
    ) -> Result<usize, FsError> {
        self.load_extents_too(inode, range, range, ahead)
    }

    /// As [`Self::load_extents`], and forgets nothing in `needed` meanwhile. A caller that needs several ranges at
    /// once names all of them: otherwise the last could evict the first, for ever.
    pub fn load_extents_too(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        needed: &Range<u64>,
        mut ahead: Ahead,
    ) -> Result<usize, FsError> {
        let next = |state: &State, ahead: Ahead| {
            let missing = state.extents.missing(range)?;
            Some(match ahead {
                Ahead::Some => missing,
                Ahead::None => missing.start..missing.end.min(range.end),
            })
        };
        let mut count = 0;
        loop {
            let (missing, version) = {
                let state = inode.lock();
                match next(&state, ahead) {
                    None => return Ok(count),
                    Some(missing) => (missing, state.extents.version()),
                }
            };
            let (extents, end) = match self.stored_extents(inode, &missing) {
                // Perhaps only the extents beyond the range are corrupt, or out of reach.
                Err(FsError::Io(_) | FsError::Unreachable(_)) if missing.end > range.end => {
                    ahead = Ahead::None;
                    continue;
                }
                stored => stored?,
            };
            let mut state = inode.lock();
            // Read without the lock: the result may lack later changes, and another task may have loaded the same
            // range, so this checks again.
            let is_current = state.extents.version() == version;
            if is_current && next(&state, ahead) == Some(missing.clone()) {
                self.trim_extents(&mut state, needed);
                count += extents.len();
                state.extents.load(missing.start..end, extents);
            }
        }
    }

    /// The stored extents that touch `range` or the first part of it, and the end of that part.
    fn stored_extents(
        &self,
        inode: &Inode,
        range: &Range<u64>,
    ) -> Result<(Vec<Extent>, u64), FsError> {
        let (from, to) = Key::extents_past(inode.ino, range.start);
        let mut extents: Vec<Extent> = Vec::new();
        let mut end = range.end;
        self.scan_extents(inode.view, &from, &to, |extent| {
            let is_last = extent.end >= range.end;
            if extent.start < range.end {
                extents.push(extent);
            }
            if extents.len() == LOAD_EXTENTS_MAX {
                end = extents.last().map_or(end, |extent| extent.end.min(end));
                return false;
            }
            // An extent that begins behind the range ends behind it, too; the next one may be corrupt.
            !is_last
        })?;
        Ok((extents, end))
    }

    /// Forgets extents of this file if it, or all files together, have too many in memory, but none of those in `needed`.
    pub fn trim_extents(&self, state: &mut State, needed: &Range<u64>) {
        let extents_max = self.extents_max.load(Ordering::Relaxed);
        let keep = if self.extent_count.get() > extents_max {
            FILE_EXTENTS_MIN
        } else {
            FILE_EXTENTS_MIN.max(extents_max / 2)
        };
        if state.extents.len() > keep {
            state.extents.trim(keep / 4 * 3, needed);
        }
    }

    /// Forgets extents of files that are not being read, if all files together have too many in memory.
    pub fn trim_idle_extents(&self) {
        if self.extent_count.get() <= self.extents_max.load(Ordering::Relaxed) {
            return;
        }
        // They are in no list that could be walked here, and are cheap to read again.
        self.snapshot_inodes.clear();
        self.inodes.visit(|inode| {
            let mut state = inode.lock();
            let keep = state.extents.len() / 2;
            state.extents.trim(keep, &(0..0));
        });
    }

    /// Visits extents of one file in key order until `visit` returns false.
    pub fn scan_extents(
        &self,
        view: View,
        from: &Key,
        to: &Key,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> Result<(), FsError> {
        let mut failed = None;
        self.meta
            .view(view)
            .and_then(|meta| {
                meta.scan_with(from, to, |key, value, birth| {
                    match parse_extent(key, value, birth) {
                        Ok((_, extent)) => {
                            if visit(extent) {
                                std::ops::ControlFlow::Continue(())
                            } else {
                                std::ops::ControlFlow::Break(())
                            }
                        }
                        Err(error) => {
                            failed = Some(error);
                            std::ops::ControlFlow::Break(())
                        }
                    }
                })
            })
            .map_err(meta_error)?;
        failed.map_or(Ok(()), |error| Err(meta_error(error)))
    }
}

pub(crate) fn parse_extent(
    key: &[u8],
    value: &[u8],
    birth: Generation,
) -> Result<(Ino, Extent), MetaError> {
    let (ino, end, stored) = decode_extent(key, value)?;
    Ok((ino, Extent::of_stored(stored, end, birth)))
}
