//! Files that share their bytes with other files, or with files in a snapshot.
//!
//! Owns: a file refers to records of another without a copy, and each of those records exists. Must not know: the caller.
//!
//! A sharing extent counts in its segment as any other does, so a segment is deleted when no extent refers to it any
//! more, in whatever order the extents go. Only a segment that has a reference at that moment takes one more: a dead
//! segment stays dead. A key for each segment names the part of a file with such references, so that a collection
//! finds them.

use std::ops::Range;
use std::sync::Arc;

use cairn_base::{Ino, SegmentId, View};
use cairn_meta::{Batch, Key, Ticket};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::watch;

use crate::kernel::{
    Commit, Committed, Edit, Extent, ExtentChange, FlightResult, Inode, Locked, Record, Shown,
    State, UndoWhen, Why, fold_journal, has_bytes_in, meta_error,
};
use crate::perm::{READ, WRITE, require_data};
use crate::punch::{PUNCH_EXTENTS_MAX, require_regular};
use crate::room::METADATA_BYTES;
use crate::types::{Credentials, FILE_LEN_BYTES_MAX, FsError};
use crate::unnamed::Unnamed;
use crate::volume::{Fs, FsView, VolumeCore};

/// Extents that one batch takes over.
const SHARE_EXTENTS_MAX: usize = 1024;
/// Attempts to read extents again that were just moved, or to flush bytes while a client goes on writing.
const ATTEMPTS_MAX: u32 = 100;

/// The value of a key that names a sharer.
const SHARER_VERSION: u8 = 1;

/// The bytes to share, and the user that must be allowed to read them.
struct Source<'a> {
    view: View,
    inode: Arc<Inode>,
    who: &'a Credentials,
    /// The end of the range.
    end: u64,
}

/// The target of the bytes.
struct Destination<'a> {
    inode: &'a Arc<Inode>,
    /// The offset of the first byte.
    at: u64,
    /// The target is empty, and its size changes only when all bytes are there.
    is_new: bool,
}

/// The result of one step.
enum Step {
    /// All bytes up to here.
    Done(u64, Ticket),
    /// Nothing: a record was moved meanwhile.
    Moved,
    /// Nothing: some bytes are only in memory, and are being written into segments.
    Wait(Vec<watch::Receiver<FlightResult>>),
}

impl Unnamed {
    /// Appends the bytes that a regular file has in `range`, now or in a snapshot, without copying them. The user
    /// that fills this file must be allowed to read them.
    ///
    /// If clients write to the source meanwhile, the shared bytes may be from several moments. [`FsError::Invalid`]
    /// if the file ends before the range does, or has a reservation, [`FsError::TryLater`] if clients write to it all
    /// the time.
    pub async fn share(
        &mut self,
        from: &FsView,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<(), FsError> {
        if range.is_empty() {
            return Ok(());
        }
        let shared = self.shared().clone();
        let who = self.who().clone();
        let inode = shared.reading(|| shared.inode_in(from.view(), ino)).await?;
        let source = Source {
            // For a clone, this may be the snapshot that it began from.
            view: inode.view,
            inode,
            who: &who,
            end: range.end,
        };
        let into = self.note().await?;
        let begin = self.len_bytes();
        let destination = Destination {
            inode: &into,
            at: begin,
            is_new: true,
        };
        shared.share(&source, range.start, &destination).await?;
        let end = begin + (range.end - range.start);
        {
            let state = into.lock();
            state.require_live()?;
            let mut change = shared.begin_change(state);
            let mut edit = change.edit_quietly(into.ino);
            edit.record().size_bytes = end;
            edit.state.stable_size_bytes = end;
            change.commit();
        }
        self.set_len(end);
        Ok(())
    }
}

impl Fs {
    /// Gives a file, from `at` on, the bytes that a file of the volume has in `range`, without copying them; holes
    /// become holes. Durable on return.
    ///
    /// A long range is taken over in steps: after a crash, only its first part may be there. A concurrent write to
    /// either file may or may not be included. [`FsError::Invalid`] if either file ends before its range does, or the
    /// two ranges are of one file and overlap, or a file has a reservation; [`FsError::TryLater`] if clients write to
    /// one of them all the time.
    pub async fn share_over(
        &self,
        who: &Credentials,
        from: Ino,
        range: Range<u64>,
        into: Ino,
        at: u64,
    ) -> Result<(), FsError> {
        if range.is_empty() {
            return Ok(());
        }
        let end = at.saturating_add(range.end - range.start);
        if from == into && range.start < end && at < range.end {
            return Err(FsError::Invalid);
        }
        self.keep_before_change(who, into).await?;
        let shared = &self.shared;
        let source = Source {
            view: View::Live,
            inode: shared.reading(|| shared.inode(from)).await?,
            who,
            end: range.end,
        };
        let inode = shared.reading(|| shared.inode(into)).await?;
        let destination = Destination {
            inode: &inode,
            at,
            is_new: false,
        };
        shared.share(&source, range.start, &destination).await
    }
}

impl Source<'_> {
    /// Whether its bytes from `at` on are in segments; if not, their flush has begun when this returns.
    fn is_stored(
        &self,
        shared: &Arc<VolumeCore>,
        state: &mut State,
        at: u64,
    ) -> Result<Option<Step>, FsError> {
        require_regular(state)?;
        require_data(self.who, state.guarded(), READ)?;
        if self.end > state.record.size_bytes {
            return Err(FsError::Invalid);
        }
        if self.view != View::Live {
            return Ok(None);
        }
        let range = at..self.end;
        let is_dirty = has_bytes_in(state.dirty.runs(), &range);
        if is_dirty {
            shared.start_flights(&self.inode, state, true);
        }
        let flights = state.flights.iter();
        let flying: Vec<_> = flights
            .filter(|flight| is_dirty || has_bytes_in(&flight.runs, &range))
            .map(|flight| flight.done.clone())
            .collect();
        Ok((is_dirty || !flying.is_empty()).then_some(Step::Wait(flying)))
    }
}

impl VolumeCore {
    /// Takes over all bytes of the source from `start` on. Durable on return.
    async fn share(
        self: &Arc<Self>,
        source: &Source<'_>,
        start: u64,
        into: &Destination<'_>,
    ) -> Result<(), FsError> {
        // A record that another file shares stays when it is overwritten; no reservation covers that.
        if self.is_reserved(source.inode.ino) || self.is_reserved(into.inode.ino) {
            return Err(FsError::Invalid);
        }
        let end = into
            .at
            .checked_add(source.end - start)
            .filter(|end| *end <= FILE_LEN_BYTES_MAX)
            .ok_or(FsError::FileTooLarge)?;
        let _room = self.require_room(into.inode, &(into.at..end)).await?;
        let mut at = start;
        let mut attempts = 0;
        let mut last = Ticket::NONE;
        while at < source.end {
            self.require_pool_space(METADATA_BYTES)?;
            self.meta.admit().await;
            let to = into.at + (at - start);
            match self
                .reading(|| self.share_some(source, at, into, to))
                .await?
            {
                Step::Done(end, ticket) => {
                    // The number of batches that wait in memory must stay bounded.
                    if last != Ticket::NONE {
                        self.outcome(last).await?;
                    }
                    last = ticket;
                    at = end;
                    continue;
                }
                _ if attempts == ATTEMPTS_MAX => return Err(FsError::TryLater),
                // The snapshot shows the new places as soon as the state has the move.
                Step::Moved => self.require_applied().await?,
                Step::Wait(flights) => {
                    for mut done in flights {
                        match done.wait_for(Option::is_some).await {
                            Ok(result) => result.clone().unwrap_or(Ok(()))?,
                            Err(_) => return Err(FsError::Fenced),
                        }
                    }
                }
            }
            attempts += 1;
        }
        if last != Ticket::NONE {
            self.outcome(last).await?;
        }
        Ok(())
    }

    /// Takes over the extents of a file from `at` on, as many as one batch takes, to the offset `to`.
    fn share_some(
        self: &Arc<Self>,
        source: &Source<'_>,
        at: u64,
        into: &Destination<'_>,
        to: u64,
    ) -> Result<Step, FsError> {
        // A file of a snapshot is never locked for long, and never changed.
        let mut locked = match source.view {
            View::Live => Locked::all(&[&source.inode, into.inode]),
            View::Snapshot(_) => Locked::all(&[into.inode]),
        };
        let waits = match source.view {
            View::Live => source.is_stored(self, locked.memory(source.inode.ino), at)?,
            View::Snapshot(_) => source.is_stored(self, &mut source.inode.lock(), at)?,
        };
        if let Some(wait) = waits {
            return Ok(wait);
        }
        let ino = into.inode.ino;
        let (mut extents, mut end) = self.extents_to_share(source, at)?;
        let mut replaced = Vec::new();
        if !into.is_new {
            let state = locked.of(ino);
            require_regular(state)?;
            require_data(source.who, state.guarded(), WRITE)?;
            state.require_changeable(self.now())?;
            let mut range = to..to + (end - at);
            if to + (source.end - at) > state.record.size_bytes {
                return Err(FsError::Invalid);
            }
            let touching = state.flights_in(&range);
            if !touching.is_empty() {
                return Ok(Step::Wait(touching));
            }
            replaced = self.extents_in(ino, state, &mut range)?;
            end = at + (range.end - range.start);
            extents.retain(|extent| extent.start < end);
            if let Some(last) = extents.last_mut() {
                *last = last.part(last.start, last.end.min(end));
            }
        }
        let range = to..to + (end - at);
        let mut change = ExtentChange::default();
        let mut map = self.extent_map();
        map.load(0..u64::MAX, replaced);
        map.clear(range.clone(), &mut change);
        let mut sharers = Sharers::default();
        for extent in extents {
            let moved = Extent {
                start: extent.start - at + to,
                end: extent.end - at + to,
                ..extent
            };
            sharers.add(ino, &moved);
            map.insert(moved, &mut change);
        }
        drop(map);
        let state = locked.of(ino);
        state.require_live()?;
        self.require_serving()?;
        let is_dirty = has_bytes_in(state.dirty.runs(), &range);
        if change.is_empty() && !is_dirty && state.journal_last().0 == 0 {
            // It is a hole already.
            return Ok(Step::Done(end, state.shown()));
        }
        let shown = match into.is_new {
            true => Shown::Quietly,
            false => Shown::ToAll,
        };
        let extents = change;
        let mut change = self.begin_change(locked);
        change.touch(ino, shown, Record::Stored);
        change.put_extents(Why::Changed, ino, extents);
        let mut edit = change.touch(ino, shown, Record::Stored);
        if !into.is_new {
            edit.touch_mtime(self.now());
            let Edit { state, batch, .. } = &mut edit;
            fold_journal(ino, state, &range, batch);
            // Unstable bytes may have set the end of the file.
            state.stable_size_bytes = state.stable_size_bytes.max(range.end);
            state.sequence += 1;
        }
        sharers.put(edit.batch);
        let segments = sharers.segments();
        let done = match change.commit_sharing(&segments, UndoWhen::Gone) {
            Commit::Done(done) => done,
            Commit::Gone | Commit::Refused(_) => return Ok(Step::Moved),
        };
        for record in done.extents.records_gone() {
            self.segments.cache_forget(self.volume, record);
        }
        let Committed {
            ticket, mut locked, ..
        } = done;
        let state = locked.memory(ino);
        // They are loaded from the metadata at the next use.
        state.extents.forget_all();
        let cleared = state.dirty.clear(range.clone());
        state.fresh.remove(range);
        self.sync_pending(state);
        self.dirty.add(cleared);
        Ok(Step::Done(end, ticket))
    }

    /// The extents that the source has from `at` on, as many as one batch takes over, and their end.
    fn extents_to_share(
        &self,
        source: &Source<'_>,
        at: u64,
    ) -> Result<(Vec<Extent>, u64), FsError> {
        let mut extents: Vec<Extent> = Vec::new();
        let (from, _) = Key::extents_past(source.inode.ino, at);
        let past = Key::extent(source.inode.ino, u64::MAX).successor();
        let mut end = source.end;
        self.scan_extents(source.view, &from, &past, |extent| {
            if extent.start >= source.end {
                return false;
            }
            if extents.len() == SHARE_EXTENTS_MAX {
                end = extent.start;
                return false;
            }
            extents.push(extent.part(extent.start.max(at), extent.end.min(source.end)));
            true
        })?;
        Ok((extents, end))
    }

    /// The stored extents that touch `range` of a file; if they are too many for one batch, the range is shortened.
    pub(crate) fn extents_in(
        &self,
        ino: Ino,
        state: &State,
        range: &mut Range<u64>,
    ) -> Result<Vec<Extent>, FsError> {
        let mut stored: Vec<Extent> = Vec::new();
        if state.record.used_bytes == 0 {
            return Ok(stored);
        }
        let (from, _) = Key::extents_past(ino, range.start);
        let to = Key::extent(ino, u64::MAX).successor();
        self.scan_extents(View::Live, &from, &to, |extent| {
            if extent.start >= range.end {
                return false;
            }
            if stored.len() == PUNCH_EXTENTS_MAX {
                range.end = extent.start;
                return false;
            }
            let is_last = extent.end >= range.end;
            stored.push(extent);
            !is_last
        })?;
        Ok(stored)
    }
}

impl VolumeCore {
    /// The files that share, or shared, records of a segment.
    pub fn sharer_keys(&self, segment: SegmentId) -> Result<Vec<Key>, FsError> {
        let (from, to) = Key::sharers(segment);
        let found = self.meta.live().scan(&from, &to, usize::MAX);
        let keys = found.map_err(meta_error)?.into_iter().map(|(key, _)| key);
        Ok(keys.collect())
    }
}

/// Parts of files that refer to records which were written for others, by the segment of these records.
#[derive(Default)]
pub(crate) struct Sharers(FxHashMap<(SegmentId, Ino), Range<u64>>);

impl Sharers {
    /// An inline extent shares no record.
    pub fn add(&mut self, ino: Ino, extent: &Extent) {
        let Some(segment) = extent.segment() else {
            return;
        };
        let range = extent.start..extent.end;
        let part = self
            .0
            .entry((segment, ino))
            .or_insert_with(|| range.clone());
        part.start = part.start.min(range.start);
        part.end = part.end.max(range.end);
    }

    pub fn put(&self, batch: &mut Batch) {
        let mut keys: Vec<Key> = self
            .0
            .iter()
            .map(|((segment, ino), part)| Key::sharer(*segment, *ino, part.start, part.end))
            .collect();
        // Sorted, so that equal calls give equal bytes.
        keys.sort_unstable();
        for key in keys {
            batch.put(key, vec![SHARER_VERSION]);
        }
    }

    pub fn segments(&self) -> Vec<SegmentId> {
        let segments: FxHashSet<SegmentId> = self.0.keys().map(|(segment, _)| *segment).collect();
        segments.into_iter().collect()
    }
}
