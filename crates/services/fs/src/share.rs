//! Files that share their bytes with what a snapshot shows.
//!
//! Owns: that a new file refers to the records of another without a copy, each of which is there. Must not know: who wants that.
//!
//! An extent of the new file counts in its segment as any other does, so a segment goes when nobody refers to it any more, in
//! whatever order that happens. Only a segment that something refers to at that moment takes one more reference: what is dead
//! stays dead.

use std::sync::Arc;

use cairn_base::{Ino, SegmentId, View};
use cairn_meta::{Batch, InodeKind, Key, Ticket};
use rustc_hash::FxHashSet;

use crate::extents::{Change, Extent, ExtentMap};
use crate::inode::Inode;
use crate::room::METADATA_BYTES;
use crate::types::FsError;
use crate::unnamed::Unnamed;
use crate::volume::{FsView, Shared};

/// Extents that one batch takes over.
const SHARE_EXTENTS_MAX: usize = 1024;
/// How often extents are read again that were moved just then.
const ATTEMPTS_MAX: u32 = 100;

/// What one step took over.
enum Step {
    /// All from here on.
    Last(Option<Ticket>),
    /// All up to here.
    Some(u64, Ticket),
    /// Nothing: a record was moved elsewhere meanwhile.
    Moved,
}

impl Unnamed {
    /// Gives it the bytes that a regular file has in a snapshot, without copying them. It must be empty.
    pub async fn share(&mut self, from: &FsView, ino: Ino) -> Result<(), FsError> {
        if from.view() == View::Live || self.len_bytes() > 0 {
            return Err(FsError::Invalid);
        }
        let shared = self.shared().clone();
        let size_bytes = shared
            .reading(|| {
                let inode = shared.inode_in(from.view(), ino)?;
                let state = inode.lock();
                match state.record.kind {
                    InodeKind::Regular => Ok(state.record.size_bytes),
                    _ => Err(FsError::Invalid),
                }
            })
            .await?;
        let inode = self.note().await?;
        let _room = shared.require_room(&inode, &(0..size_bytes)).await?;
        let mut at = 0;
        let mut attempts = 0;
        let mut last = None;
        loop {
            shared.require_pool_space(METADATA_BYTES)?;
            shared.meta.admit().await;
            let step = || shared.share_some(from.view(), ino, at, &inode);
            match shared.reading(step).await? {
                Step::Some(end, ticket) => {
                    // Ever more batches must not wait in memory.
                    if let Some(before) = last.replace(ticket) {
                        shared.outcome(before).await?;
                    }
                    at = end;
                }
                Step::Last(ticket) => {
                    last = ticket.or(last);
                    break;
                }
                // The snapshot shows where they are as soon as the state has the move.
                Step::Moved if attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    shared.require_applied().await?;
                }
                Step::Moved => return Err(FsError::TryLater),
            }
        }
        if let Some(last) = last {
            shared.outcome(last).await?;
        }
        let mut state = inode.lock();
        state.require_live()?;
        state.record.size_bytes = size_bytes;
        state.stable_size_bytes = size_bytes;
        let mut batch = Batch::new();
        batch.put(Key::inode(inode.ino), state.stored_record().encode());
        state.ticket = shared.meta.submit(batch);
        drop(state);
        self.set_len(size_bytes);
        Ok(())
    }
}

impl Shared {
    /// Takes over the extents of `ino` from `at` on, as many as one batch takes.
    fn share_some(
        &self,
        view: View,
        ino: Ino,
        at: u64,
        into: &Arc<Inode>,
    ) -> Result<Step, FsError> {
        let mut extents: Vec<Extent> = Vec::new();
        let (from, _) = Key::extents_past(ino, at);
        let to = Key::extent(ino, u64::MAX).successor();
        self.scan_extents(view, &from, &to, |extent| {
            extents.push(extent);
            extents.len() < SHARE_EXTENTS_MAX
        })?;
        let Some(end) = extents.last().map(|last| last.end) else {
            return Ok(Step::Last(None));
        };
        let is_last = extents.len() < SHARE_EXTENTS_MAX;
        let segments: FxHashSet<SegmentId> = extents
            .iter()
            .map(|extent| extent.record.location.segment)
            .collect();
        let segments: Vec<SegmentId> = segments.into_iter().collect();
        let mut change = Change::default();
        let mut map = ExtentMap::empty(&self.extent_count);
        for extent in extents {
            map.insert(extent, &mut change);
        }
        drop(map);
        let mut state = into.lock();
        state.require_live()?;
        self.require_serving()?;
        let before = (state.record.used_bytes, state.record.stored_bytes);
        let mut batch = Batch::new();
        self.change_extents(into.ino, &mut state, &change, &mut batch);
        batch.put(Key::inode(into.ino), state.stored_record().encode());
        let Some(ticket) = self.meta.submit_sharing(batch, &segments) else {
            (state.record.used_bytes, state.record.stored_bytes) = before;
            return Ok(Step::Moved);
        };
        // They are read from the metadata when they are needed. Nobody has looked at it yet.
        state.extents = ExtentMap::new(&self.extent_count);
        state.ticket = ticket;
        Ok(match is_last {
            true => Step::Last(Some(ticket)),
            false => Step::Some(end, ticket),
        })
    }
}
