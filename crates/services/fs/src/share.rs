//! Files that share their bytes with other files, or with what a snapshot shows of them.
//!
//! Owns: that a new file refers to the records of another without a copy, each of which is there. Must not know: who wants that.
//!
//! An extent of the new file counts in its segment as any other does, so a segment goes when nobody refers to it any more, in
//! whatever order that happens. Only a segment that something refers to at that moment takes one more reference: what is dead
//! stays dead. A key for each segment says in which part of which file such references are, so that a collection finds them.

use std::ops::Range;
use std::sync::Arc;

use cairn_base::{Ino, SegmentId, View};
use cairn_meta::{Batch, Key, Ticket};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::watch;

use crate::extents::{Change, Extent, ExtentMap};
use crate::inode::{FlightResult, Inode, Locked, State};
use crate::perm::{READ, require_data};
use crate::punch::{has_bytes_in, require_regular};
use crate::room::METADATA_BYTES;
use crate::types::{Credentials, FILE_LEN_BYTES_MAX, FsError};
use crate::unnamed::Unnamed;
use crate::volume::{FsView, Shared, meta_error};

/// Extents that one batch takes over.
const SHARE_EXTENTS_MAX: usize = 1024;
/// How often extents are read again that were moved just then, or bytes are flushed that somebody goes on writing.
const ATTEMPTS_MAX: u32 = 100;

/// The value of a key that says who shares.
const SHARER_VERSION: u8 = 1;

/// The bytes that are to be shared, and who may read them.
struct Source<'a> {
    view: View,
    inode: Arc<Inode>,
    who: &'a Credentials,
    /// The end of the range.
    end: u64,
}

/// What one step took over.
enum Step {
    /// All from here on.
    Last(Option<Ticket>),
    /// All up to here.
    Some(u64, Ticket),
    /// Nothing: a record was moved elsewhere meanwhile.
    Moved,
    /// Nothing: bytes are in memory only, and on their way into segments.
    Wait(Vec<watch::Receiver<FlightResult>>),
}

impl Unnamed {
    /// Adds to its end the bytes that a regular file has in `range`, now or in a snapshot, without copying them. Whoever fills
    /// it must be allowed to read them.
    ///
    /// A file that is written to meanwhile may be found at several moments. [`FsError::Invalid`] if the file ends before the
    /// range does, [`FsError::TryLater`] if it is written to all the time.
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
        let source = Source {
            view: from.view(),
            inode: shared.reading(|| shared.inode_in(from.view(), ino)).await?,
            who: &who,
            end: range.end,
        };
        let into = self.note().await?;
        let begin = self.len_bytes();
        let end = begin
            .checked_add(range.end - range.start)
            .filter(|end| *end <= FILE_LEN_BYTES_MAX)
            .ok_or(FsError::FileTooLarge)?;
        let _room = shared.require_room(&into, &(begin..end)).await?;
        let mut at = range.start;
        let mut attempts = 0;
        let mut last = None;
        loop {
            shared.require_pool_space(METADATA_BYTES)?;
            shared.meta.admit().await;
            let to = begin + (at - range.start);
            match shared
                .reading(|| shared.share_some(&source, at, &into, to))
                .await?
            {
                Step::Some(end, ticket) => {
                    // Ever more batches must not wait in memory.
                    if let Some(before) = last.replace(ticket) {
                        shared.outcome(before).await?;
                    }
                    at = end;
                    continue;
                }
                Step::Last(ticket) => {
                    last = ticket.or(last);
                    break;
                }
                _ if attempts == ATTEMPTS_MAX => return Err(FsError::TryLater),
                // The snapshot shows where they are as soon as the state has the move.
                Step::Moved => shared.require_applied().await?,
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
        if let Some(last) = last {
            shared.outcome(last).await?;
        }
        let mut state = into.lock();
        state.require_live()?;
        state.record.size_bytes = end;
        state.stable_size_bytes = end;
        let mut batch = Batch::new();
        batch.put(Key::inode(into.ino), state.stored_record().encode());
        state.ticket = shared.meta.submit(batch);
        drop(state);
        self.set_len(end);
        Ok(())
    }
}

impl Source<'_> {
    /// Whether its bytes from `at` on are in segments; if not, they are on their way there when this returns.
    fn is_stored(
        &self,
        shared: &Arc<Shared>,
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

impl Shared {
    /// Takes over the extents of a file from `at` on, as many as one batch takes, so that they begin at `to`.
    fn share_some(
        self: &Arc<Self>,
        source: &Source<'_>,
        at: u64,
        into: &Arc<Inode>,
        to: u64,
    ) -> Result<Step, FsError> {
        // Nobody else has a file of a snapshot locked for long, and nobody changes it.
        let mut locked = match source.view {
            View::Live => Locked::all(&[&source.inode, into]),
            View::Snapshot(_) => Locked::all(&[into]),
        };
        let waits = match source.view {
            View::Live => source.is_stored(self, locked.of(source.inode.ino), at)?,
            View::Snapshot(_) => source.is_stored(self, &mut source.inode.lock(), at)?,
        };
        if let Some(wait) = waits {
            return Ok(wait);
        }
        let mut extents: Vec<Extent> = Vec::new();
        let (from, _) = Key::extents_past(source.inode.ino, at);
        let past = Key::extent(source.inode.ino, u64::MAX).successor();
        let mut is_last = true;
        self.scan_extents(source.view, &from, &past, |extent| {
            if extent.start >= source.end {
                return false;
            }
            if extents.len() == SHARE_EXTENTS_MAX {
                is_last = false;
                return false;
            }
            extents.push(extent.part(extent.start.max(at), extent.end.min(source.end)));
            true
        })?;
        let Some(end) = extents.last().map(|last| last.end) else {
            return Ok(Step::Last(None));
        };
        let mut change = Change::default();
        let mut map = ExtentMap::empty(&self.extent_count);
        let mut sharers = Sharers::default();
        for extent in extents {
            let moved = Extent {
                start: extent.start - at + to,
                end: extent.end - at + to,
                ..extent
            };
            sharers.add(into.ino, &moved);
            map.insert(moved, &mut change);
        }
        drop(map);
        let state = locked.of(into.ino);
        state.require_live()?;
        self.require_serving()?;
        let before = (state.record.used_bytes, state.record.stored_bytes);
        let mut batch = Batch::new();
        self.change_extents(into.ino, state, &change, &mut batch);
        batch.put(Key::inode(into.ino), state.stored_record().encode());
        sharers.put(&mut batch);
        let Some(ticket) = self.meta.submit_sharing(batch, &sharers.segments()) else {
            (state.record.used_bytes, state.record.stored_bytes) = before;
            return Ok(Step::Moved);
        };
        // They are read from the metadata when they are needed.
        state.extents.forget_all();
        state.ticket = ticket;
        Ok(match is_last {
            true => Step::Last(Some(ticket)),
            false => Step::Some(end, ticket),
        })
    }
}

impl Shared {
    /// Who shares records of a segment, or did.
    pub fn sharer_keys(&self, segment: SegmentId) -> Result<Vec<Key>, FsError> {
        let (from, to) = Key::sharers(segment);
        let found = self.meta.live().scan(&from, &to, usize::MAX);
        let keys = found.map_err(meta_error)?.into_iter().map(|(key, _)| key);
        Ok(keys.collect())
    }
}

/// Parts of files that refer to records which were written for others, by the segment that these are in.
#[derive(Default)]
pub(crate) struct Sharers(FxHashMap<(SegmentId, Ino), Range<u64>>);

impl Sharers {
    pub fn add(&mut self, ino: Ino, extent: &Extent) {
        let range = extent.start..extent.end;
        let part = self
            .0
            .entry((extent.record.location.segment, ino))
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
        // The same calls give the same bytes.
        keys.sort_unstable();
        for key in keys {
            batch.put(key, vec![SHARER_VERSION]);
        }
    }

    fn segments(&self) -> Vec<SegmentId> {
        let segments: FxHashSet<SegmentId> = self.0.keys().map(|(segment, _)| *segment).collect();
        segments.into_iter().collect()
    }
}
