//! One flight: the data that one flush takes from a file and writes into segments.
//!
//! Owns: how data is cut into records, which data goes into the metadata itself, the order "bytes durable, then
//! extents" (Rule 3), the handling of a failed flight. Must not know: when a flush is due (`flush`), how stripes are
//! written.
//!
//! Flights of a file never overlap, so they may finish in any order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Generation, Ino, LogPosition, SegmentId};
use cairn_meta::{Batch, Fold, INLINE_LEN_BYTES_MAX, Ticket};
use cairn_segment::{Location, RecordOwner, RecordPointer, SegmentInfo, Stream};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::watch;

use crate::dedupe::{Dedupe, Hash, KnownRecord, are_same_bytes};
use crate::kernel::{
    Ahead, Commit, Edit, Extent, ExtentChange, ExtentContent, FlightResult, Inode, Load,
    NO_SPACE_PATIENCE, Run, State, UndoWhen, Why, segment_error,
};
use crate::share::Sharers;
use crate::storing::{Records, Stored};
use crate::types::FsError;
use crate::volume::{Policy, VolumeCore};

/// Limits of one flight.
pub(crate) const FLIGHT_BYTES_MAX: u64 = 4 << 20;
pub(crate) const FLIGHT_RUNS_MAX: usize = 1024;
/// Flights that encode and write at the same time.
pub(crate) const FLIGHTS_MAX: usize = 16;
/// A file that is written sequentially is flushed when it has so many dirty bytes.
pub(crate) const STREAM_FLUSH_BYTES: u64 = 4 << 20;
/// After so many sequential bytes, a file gets its own segments.
const STREAM_RUN_BYTES: u64 = 16 << 20;
/// Extents that one batch replaces when a flight lands.
const LAND_EXTENTS_MAX: usize = 8192;
/// After a failed flush the file waits this long.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const _: () = assert!(RETRY_PAUSE.as_millis() >= NO_SPACE_PATIENCE.as_millis());

/// One flight on its way.
pub(crate) struct Job {
    pub inode: Arc<Inode>,
    flight: u64,
    runs: Arc<BTreeMap<u64, Run>>,
    pub len_bytes: u64,
    /// The file's last journal entry when the flight began.
    journal_through: LogPosition,
    pub stream: Stream,
    /// Bytes that were found in existing records.
    deduplicated_bytes: u64,
    done: watch::Sender<FlightResult>,
}

impl Job {
    /// The load that the flight is charged with.
    pub fn load(&self) -> Load {
        Load::of(self.len_bytes, self.runs.len())
    }
}

/// Bytes of a file that become one record.
struct Cut {
    start: u64,
    parts: Vec<Bytes>,
    len_bytes: u64,
    /// Length of the buffers that the parts are slices of; the slices keep them in memory.
    held_bytes: u64,
}

/// The place for the bytes of a cut.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// In the new record with this index.
    New(usize),
    /// In the new record of another cut that has equal bytes.
    Again(usize),
    /// In an existing record.
    There(KnownRecord),
}

/// The result of a landing.
enum Landed {
    /// All bytes of the flight are extents of the file, with this ticket.
    All(Ticket),
    /// A record to share is gone: the flight is unchanged.
    RecordIsGone,
}

/// The result of one batch of a landing.
enum Landing {
    /// All bytes of the flight are extents of the file, with this ticket.
    Done(Ticket),
    More,
    /// A record to share is gone, and nothing of the batch was submitted.
    Gone,
}

/// A cut, and the known facts about its bytes.
struct Piece {
    cut: Cut,
    /// Present if the bytes may be shared.
    hash: Option<Hash>,
    /// `None`: the bytes go into the metadata.
    source: Option<Source>,
}

/// A cut, and the place of its bytes.
struct PlacedCut<'a> {
    cut: &'a Cut,
    place: ExtentContent,
    source: Option<Source>,
}

impl Cut {
    /// A copy of its bytes, for parts of much larger buffers.
    fn copied(&self) -> Bytes {
        self.parts.concat().into()
    }

    /// Whether all of it is among the first bytes of a file that may be in the metadata.
    fn may_be_inline(&self) -> bool {
        self.start + self.len_bytes <= INLINE_LEN_BYTES_MAX as u64
    }
}

impl PlacedCut<'_> {
    fn record(&self) -> Option<&Arc<RecordPointer>> {
        match &self.place {
            ExtentContent::Record(record, _) => Some(record),
            ExtentContent::Inline(_) => None,
        }
    }

    /// The record, if it was made for other data.
    fn shared(&self) -> Option<&Arc<RecordPointer>> {
        match self.source? {
            Source::New(_) => None,
            Source::Again(_) | Source::There(_) => self.record(),
        }
    }
}

impl VolumeCore {
    /// Takes a flight from the dirty data of a file; `None` if there is nothing to take, or, without `all`, too little.
    pub(crate) fn take_flight(
        &self,
        inode: &Arc<Inode>,
        state: &mut State,
        all: bool,
    ) -> Option<Job> {
        if !all && state.dirty.len_bytes() < STREAM_FLUSH_BYTES {
            return None;
        }
        let blocked: Vec<Range<u64>> = state
            .flights
            .iter()
            .map(|flight| flight.span.clone())
            .collect();
        let runs = state
            .dirty
            .take(FLIGHT_BYTES_MAX, FLIGHT_RUNS_MAX, &blocked);
        let len_bytes = runs.values().map(|run| run.data.len() as u64).sum();
        let runs = Arc::new(runs);
        let (id, done) = state.begin_flight(Arc::clone(&runs))?;
        let stream = if state.write_run_bytes >= STREAM_RUN_BYTES {
            Stream::File(inode.ino.0)
        } else {
            Stream::Mixed
        };
        Some(Job {
            inode: inode.clone(),
            flight: id,
            runs,
            len_bytes,
            journal_through: state.journal_last(),
            stream,
            deduplicated_bytes: 0,
            done,
        })
    }

    /// Runs flights to their end, together in one append.
    pub(crate) async fn fly(self: Arc<Self>, jobs: Vec<Job>) {
        let Ok(_permit) = self.flight_permits.acquire().await else {
            return;
        };
        let jobs = self.without_unlandable(jobs);
        if jobs.is_empty() {
            return;
        }
        let len_bytes = jobs.iter().map(|job| job.len_bytes).sum();
        let _turn = self.writer_turn(len_bytes).await;
        let mut left = self.write_out(jobs, true).await;
        if !left.is_empty() {
            // The records to share are gone.
            left = self.write_out(left, false).await;
        }
        for job in left {
            self.turn_back(job, FsError::TryLater);
        }
    }

    /// Makes records of the data of some flights, but for data that existing records hold, and ends the flights.
    /// Returns the flights that found such records and could no longer share them: nothing was changed for these.
    async fn write_out(&self, mut jobs: Vec<Job>, may_share: bool) -> Vec<Job> {
        let encoder = match self.segments.encoder(self.volume) {
            Ok(encoder) => encoder,
            Err(error) => {
                for job in jobs {
                    self.turn_back(job, segment_error(error.clone()));
                }
                return Vec::new();
            }
        };
        let mut pieces: Vec<Vec<Piece>> = Vec::with_capacity(jobs.len());
        let mut records = Records::default();
        let mut made = FxHashMap::default();
        for job in &jobs {
            let mut of_job: Vec<Piece> = Vec::new();
            let mut policy = self.policy_of(&job.inode).await;
            // A reserved file shares its records with no other.
            if !may_share || self.is_reserved(job.inode.ino) {
                policy.dedupe = Dedupe::Off;
            }
            let is_tiny = is_tiny(job) && !encoder.is_encrypting();
            for cut in cut(&job.runs, &policy) {
                if is_tiny && cut.may_be_inline() {
                    of_job.push(Piece {
                        cut,
                        hash: None,
                        source: None,
                    });
                    continue;
                }
                let hash = self.hash_of(cut.start, &cut.parts, &policy);
                let source = match &hash {
                    Some(hash) => {
                        let found = self.find_record(hash, &cut.parts, &policy, &made, &records);
                        found.await
                    }
                    None => None,
                };
                let source = source.unwrap_or(Source::New(records.all.len()));
                if let Source::New(index) = source {
                    let owner = RecordOwner {
                        object: job.inode.ino.0,
                        offset: cut.start,
                    };
                    let record = encoder.encode(cut.parts.clone(), policy.compression);
                    records.add(record.owned_by(owner), policy.asked());
                    if let Some(hash) = hash {
                        made.insert(hash, (index, cut.parts.clone()));
                    }
                }
                let source = Some(source);
                of_job.push(Piece { cut, hash, source });
            }
            pieces.push(of_job);
        }
        drop(made);
        let stored = match self.store_records(jobs[0].stream, &records).await {
            Ok(stored) => stored,
            Err(error) => {
                for job in jobs {
                    self.turn_back(job, error.clone());
                }
                return Vec::new();
            }
        };
        if !stored.locations.is_empty() {
            self.dirty.note_space();
        }
        let Stored {
            locations,
            segments,
            pins,
        } = stored;
        let written: Vec<Arc<RecordPointer>> = records
            .all
            .iter()
            .zip(&locations)
            .map(|(record, location)| Arc::new(record.pointer(*location)))
            .collect();
        let mut tickets = Vec::with_capacity(jobs.len());
        for (job, pieces) in jobs.iter_mut().zip(&pieces) {
            let Some(placed) = self.place_pieces(pieces, &written).await else {
                tickets.push(Ok(Landed::RecordIsGone));
                continue;
            };
            let landed = self.land(job, &placed, &segments);
            if let Ok(Landed::All(_)) = landed {
                self.remember(job, pieces, &placed);
                if self.collector.note_flushed(job.len_bytes) {
                    self.gc_wake.notify_one();
                }
            }
            tickets.push(landed);
        }
        drop(pins);
        let mut left = Vec::new();
        let mut landed = Vec::with_capacity(jobs.len());
        for (job, ticket) in jobs.into_iter().zip(tickets) {
            match ticket {
                Ok(Landed::All(ticket)) => landed.push((job, ticket)),
                Ok(Landed::RecordIsGone) => left.push(job),
                Err(error) => {
                    if matches!(error, FsError::Io(_)) {
                        job.inode.lock().landing_error = Some(error.clone());
                    }
                    self.turn_back(job, error);
                }
            }
        }
        for (job, ticket) in landed {
            let result = self.durable(ticket).await;
            self.finish(job, result);
        }
        left
    }

    /// A record with the bytes of a cut: a new one, or an existing one.
    pub(crate) async fn find_record(
        &self,
        hash: &Hash,
        parts: &[Bytes],
        policy: &Policy,
        made: &FxHashMap<Hash, (usize, Vec<Bytes>)>,
        records: &Records,
    ) -> Option<Source> {
        let dedupe = policy.dedupe;
        let len_of = |parts: &[Bytes]| parts.iter().map(|part| part.len() as u64).sum::<u64>();
        if let Some((index, others)) = made.get(hash) {
            let is_same = match dedupe {
                Dedupe::Verify => are_same_bytes(others, parts),
                Dedupe::On | Dedupe::Off => len_of(others) == len_of(parts),
            };
            let is_placed = records.asked(*index) == policy.asked();
            return (is_same && is_placed).then_some(Source::Again(*index));
        }
        let known = self.dedupe.find(hash, len_of(parts))?;
        if !self.is_placed_for(known.location.segment, policy.asked()) {
            return None;
        }
        // Data whose lookup fails is written.
        let there = self.reading(|| self.record_there(&known)).await;
        let Some(record) = there.ok().flatten() else {
            self.dedupe.forget(hash, &known);
            return None;
        };
        if dedupe == Dedupe::Verify {
            let read = self
                .segments
                .read(self.volume, &record, 0..known.len_bytes)
                .await;
            if !read.is_ok_and(|read| are_same_bytes(&read, parts)) {
                return None;
            }
        }
        Some(Source::There(known))
    }

    /// The places of the pieces of a flight; `None` if an existing record is gone.
    async fn place_pieces<'a>(
        &self,
        pieces: &'a [Piece],
        written: &[Arc<RecordPointer>],
    ) -> Option<Vec<PlacedCut<'a>>> {
        let mut placed = Vec::with_capacity(pieces.len());
        for Piece { cut, hash, source } in pieces {
            let source = *source;
            let record = match source {
                None => {
                    let place = ExtentContent::Inline(cut.copied());
                    placed.push(PlacedCut { cut, place, source });
                    continue;
                }
                Some(Source::New(index) | Source::Again(index)) => written.get(index)?.clone(),
                Some(Source::There(known)) => {
                    let there = self.reading(|| self.record_there(&known)).await;
                    let there = there.ok().flatten();
                    if let (None, Some(hash)) = (&there, hash) {
                        self.dedupe.forget(hash, &known);
                    }
                    there?
                }
            };
            let place = ExtentContent::Record(record, 0);
            placed.push(PlacedCut { cut, place, source });
        }
        Some(placed)
    }

    /// A flight has landed: the next write of equal bytes finds its records.
    fn remember(&self, job: &mut Job, pieces: &[Piece], placed: &[PlacedCut<'_>]) {
        job.deduplicated_bytes = 0;
        for (piece, placed) in pieces.iter().zip(placed) {
            if placed.shared().is_some() {
                job.deduplicated_bytes += piece.cut.len_bytes;
            }
            if let (Some(hash), Some(record)) = (&piece.hash, placed.record()) {
                let known = KnownRecord {
                    location: record.location,
                    ino: job.inode.ino,
                    start: piece.cut.start,
                    len_bytes: record.file_len_bytes,
                };
                self.dedupe.put(hash, known, record);
            }
        }
    }

    /// Turns back the flights that could not become extents last time, and cannot now: the bytes they put into
    /// segments would be garbage at each attempt.
    fn without_unlandable(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut others = Vec::with_capacity(jobs.len());
        for job in jobs {
            let is_doubtful = job.inode.lock().landing_error.is_some();
            let tried = match is_doubtful {
                true => self.try_landing(&job),
                false => Ok(()),
            };
            match tried {
                Ok(()) => others.push(job),
                Err(error) => self.turn_back(job, error),
            }
        }
        others
    }

    /// Whether the extents that a flight replaces can be read, as many as one batch takes. Skips the ranges between
    /// its runs: these may be the first and the last bytes of a file of any size.
    fn try_landing(&self, job: &Job) -> Result<(), FsError> {
        let mut loaded = 0;
        for (start, run) in job.runs.iter() {
            let range = *start..start + run.data.len() as u64;
            loaded += self.load_extents(&job.inode, &range, Ahead::None)?;
            if loaded > LAND_EXTENTS_MAX {
                break;
            }
        }
        Ok(())
    }

    /// The bytes of a flight are durable: makes them the file's extents, and ends the flight. If they replace very
    /// many extents, that takes several batches; readers find the bytes in the flight until the last batch.
    fn land(
        &self,
        job: &Job,
        placed: &[PlacedCut<'_>],
        segments: &[SegmentInfo],
    ) -> Result<Landed, FsError> {
        // Before the landing, so that a reader right behind the flight finds the bytes in the cache.
        for (cut, record) in new_records(placed) {
            self.segments.cache_insert_parts(
                self.volume,
                record,
                cut.parts.clone(),
                cut.held_bytes,
            );
        }
        let landed = self.land_all(job, placed, segments);
        if !matches!(landed, Ok(Landed::All(_))) {
            // The flight makes other records of these bytes.
            for (_, record) in new_records(placed) {
                self.segments.cache_forget(self.volume, record);
            }
        }
        landed
    }

    /// All batches of [`Self::land`].
    fn land_all(
        &self,
        job: &Job,
        placed: &[PlacedCut<'_>],
        segments: &[SegmentInfo],
    ) -> Result<Landed, FsError> {
        let mut at = 0;
        loop {
            match self.land_from(job, placed, segments, &mut at)? {
                Landing::Done(ticket) => return Ok(Landed::All(ticket)),
                Landing::More => {}
                Landing::Gone => return Ok(Landed::RecordIsGone),
            }
        }
    }

    /// One batch of [`Self::land`]: from offset `at` of the file on; advances `at`.
    fn land_from(
        &self,
        job: &Job,
        placed: &[PlacedCut<'_>],
        segments: &[SegmentInfo],
        at: &mut u64,
    ) -> Result<Landing, FsError> {
        let inode = &job.inode;
        let mut loaded = 0;
        let mut needed: Option<Range<u64>> = None;
        for PlacedCut { cut, .. } in placed {
            let range = cut.start.max(*at)..cut.start + cut.len_bytes;
            if range.is_empty() {
                continue;
            }
            let needed = needed.get_or_insert(range.clone());
            needed.end = range.end;
            loaded += self.load_extents_too(inode, &range, needed, Ahead::Some)?;
            if loaded > LAND_EXTENTS_MAX {
                break;
            }
        }
        let mut state = inode.lock();
        let index = state
            .flights
            .iter()
            .position(|flight| flight.id == job.flight);
        let Some(index) = index else {
            return Err(FsError::Io(format!(
                "flight {} of inode {} is gone",
                job.flight, inode.ino
            )));
        };
        if state.removed {
            state.flights.remove(index);
            self.sync_pending(&mut state);
            return Ok(Landing::Done(state.ticket()));
        }
        let limit = state.flights[index].limit;
        let mut extents = ExtentChange::default();
        let from = *at;
        let end_max = insert_extents(&mut state, placed, limit, at, &mut extents);
        let is_last = *at == u64::MAX;
        if !is_last && extents.is_empty() {
            // Other tasks needed memory and the loaded extents were forgotten: load them again.
            return Ok(Landing::More);
        }
        for record in extents.records_gone() {
            self.segments.cache_forget(self.volume, record);
        }
        let ino = inode.ino;
        let mut change = self.begin_change(state);
        let Edit { state, batch, .. } = change.edit_quietly(ino);
        self.put_segments(segments, batch);
        put_sharers(ino, placed, &extents, batch);
        state.stable_size_bytes = state
            .stable_size_bytes
            .max(end_max.min(state.record.size_bytes));
        // The landed bytes are newer than any journal entry up to then, also where an entry's bytes were overwritten
        // in memory and are not in `runs`.
        if is_last && job.journal_through.0 > 0 {
            for range in ranges(&job.runs) {
                batch.fold(Fold {
                    ino,
                    start: range.start,
                    end: range.end,
                    through: job.journal_through,
                });
            }
        }
        change.put_extents(Why::Changed, ino, extents);
        let state = change.edit_quietly(ino).state;
        // Before they count as stored, so that the bytes count once at every moment. Dirty bytes there replace these
        // later.
        for PlacedCut { cut, .. } in placed {
            let end = (cut.start + cut.len_bytes).min(*at);
            state.fresh.remove(cut.start.max(from)..end);
        }
        if is_last {
            // Ranges that became holes, too.
            let runs = Arc::clone(&state.flights[index].runs);
            for (start, run) in runs.iter() {
                state.fresh.remove(*start..*start + run.data.len() as u64);
            }
        }
        self.sync_pending(state);
        change.note_landed(ino);
        let shared = match planted::is(Bug::DedupeTakesDead) {
            true => Vec::new(),
            false => shared_segments(placed),
        };
        // If nothing was stored, the bytes stay dirty.
        let done = match change.commit_sharing(&shared, UndoWhen::TooLarge) {
            Commit::Done(done) => done,
            Commit::Gone => return Ok(Landing::Gone),
            Commit::Refused(Some(error)) => return Err(FsError::Io(error.to_string())),
            Commit::Refused(None) => return Err(FsError::Fenced),
        };
        let ticket = done.ticket;
        let mut state = done.into_one();
        if is_last {
            state.flights.remove(index);
            if state.dirty.is_empty() && state.flights.is_empty() {
                state.forget_journal();
            }
            self.sync_pending(&mut state);
        }
        self.trim_extents(&mut state, &(0..0));
        Ok(match is_last {
            true => Landing::Done(ticket),
            false => Landing::More,
        })
    }

    fn finish(&self, job: Job, result: Result<(), FsError>) {
        let count = |counter: &AtomicU64, more| counter.fetch_add(more, Ordering::Relaxed);
        let counters = &self.counters;
        match &result {
            Ok(()) => {
                let written_bytes = job.len_bytes.saturating_sub(job.deduplicated_bytes);
                count(&counters.flushed_bytes, written_bytes);
                count(&counters.deduplicated_bytes, job.deduplicated_bytes);
            }
            Err(_) => {
                count(&counters.flush_errors, 1);
            }
        }
        // Tasks that wait for less dirty data look at the counters after this.
        self.dirty.add(-job.load());
        if let Err(error) = &result {
            tracing::error!(volume = %self.volume, ino = %job.inode.ino, %error, "flush failed");
        }
        job.done.send_replace(Some(result));
    }

    /// A flush failed before all its bytes became extents: they are dirty again. The next flush replaces those that
    /// are extents already.
    fn turn_back(&self, job: Job, error: FsError) {
        let mut state = job.inode.lock();
        let mut kept = Load::default();
        if let Some(index) = state
            .flights
            .iter()
            .position(|flight| flight.id == job.flight)
        {
            let flight = state.flights.remove(index);
            for (start, run) in flight.runs.iter() {
                let len = run.data.len() as u64;
                let end = (start + len).min(flight.limit);
                if !state.removed && *start < end && !planted::is(Bug::FailedFlushDropped) {
                    let part = Run {
                        data: run.data.slice(..(end - start) as usize),
                        ..run.clone()
                    };
                    kept += state.dirty.insert_under(*start, part);
                }
            }
        }
        self.sync_pending(&mut state);
        self.enqueue(&job.inode, &mut state);
        // After the turn back, which puts the inode into the queue as fresh.
        state.dirty_since = self.env.clock.monotonic() + RETRY_PAUSE;
        drop(state);
        // First: a woken waiter reads this counter.
        self.counters.flush_errors.fetch_add(1, Ordering::Relaxed);
        self.dirty.add(kept - job.load());
        self.forget_space();
        if error == FsError::NoSpace {
            self.dirty.note_no_space(self.env.clock.monotonic());
        }
        self.dirty.note_failure();
        tracing::warn!(volume = %self.volume, ino = %job.inode.ino, %error, "flush failed; the data stays in memory and is tried again");
        job.done.send_replace(Some(Err(error)));
    }
}

/// The cuts that got a new record, with that record.
fn new_records<'a>(
    placed: &'a [PlacedCut<'_>],
) -> impl Iterator<Item = (&'a Cut, &'a Arc<RecordPointer>)> {
    let is_new = |placed: &&PlacedCut<'_>| matches!(placed.source, Some(Source::New(_)));
    let new = placed.iter().filter(is_new);
    new.filter_map(|placed| Some((placed.cut, placed.record()?)))
}

/// Makes extents of the placed cuts, from offset `at` of the file on and up to `limit`. Stops after
/// [`LAND_EXTENTS_MAX`] replaced extents, or at a range that is not loaded. Moves `at` to where it stopped, or to
/// `u64::MAX`; returns the end of the last extent.
fn insert_extents(
    state: &mut State,
    placed: &[PlacedCut<'_>],
    limit: u64,
    at: &mut u64,
    change: &mut ExtentChange,
) -> u64 {
    let mut end_max = 0;
    let mut room = LAND_EXTENTS_MAX;
    for PlacedCut { cut, place, .. } in placed {
        let start = cut.start.max(*at);
        let mut end = (cut.start + cut.len_bytes).min(limit);
        if start >= end {
            continue;
        }
        if room == 0 || !state.extents.is_loaded(&(start..end)) {
            *at = start;
            return end_max;
        }
        // The first extent beyond the limit; at least one is replaced.
        let stop = state.extents.touching(start..end).nth(room);
        let is_whole = stop.is_none();
        end = stop.map_or(end, |extent| extent.start);
        room -= state.extents.touching(start..end).count().min(room);
        end_max = end;
        let extent = Extent {
            start,
            end,
            place: place.part((start - cut.start) as u32, (end - start) as u32),
            birth: Generation::FIRST,
        };
        state.extents.insert(extent, change);
        if !is_whole {
            *at = end;
            return end_max;
        }
    }
    *at = u64::MAX;
    end_max
}

/// Stores which part of the file refers to records that were made for others, so that a collection finds it.
fn put_sharers(ino: Ino, placed: &[PlacedCut<'_>], change: &ExtentChange, batch: &mut Batch) {
    let shared: FxHashSet<Location> = placed
        .iter()
        .filter_map(|placed| placed.shared())
        .map(|record| record.location)
        .collect();
    if shared.is_empty() {
        return;
    }
    let mut sharers = Sharers::default();
    for (_, replaced) in change.keys() {
        if let Some(extent) = &replaced.after
            && let Some(record) = extent.record()
            && shared.contains(&record.location)
        {
            sharers.add(ino, extent);
        }
    }
    sharers.put(batch);
}

/// Segments with existing records that nothing else keeps there.
fn shared_segments(placed: &[PlacedCut<'_>]) -> Vec<SegmentId> {
    let there = placed
        .iter()
        .filter(|placed| matches!(placed.source, Some(Source::There(_))))
        .filter_map(|placed| placed.record());
    let segments: FxHashSet<SegmentId> = there.map(|record| record.location.segment).collect();
    segments.into_iter().collect()
}

/// The ranges that `runs` cover.
fn ranges(runs: &BTreeMap<u64, Run>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (start, run) in runs {
        let end = start + run.data.len() as u64;
        match ranges.last_mut() {
            Some(last) if last.end == *start => last.end = end,
            _ => ranges.push(*start..end),
        }
    }
    ranges
}

/// Whether all of a file is small enough for the metadata. When the file grows, the new bytes go to records, behind
/// these bytes.
fn is_tiny(job: &Job) -> bool {
    job.inode.lock().record.size_bytes <= INLINE_LEN_BYTES_MAX as u64
}

/// Cuts runs into records: contiguous bytes up to the record size, at multiples of it in the file, so that a file
/// that is rewritten often keeps aligned extents.
fn cut(runs: &BTreeMap<u64, Run>, policy: &Policy) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = Vec::new();
    let mut runs = runs.iter().peekable();
    while let Some((start, run)) = runs.next() {
        let of_run = |run: &Run| (run.data.clone(), run.buffer_len_bytes);
        let mut stretch = vec![of_run(run)];
        let mut end = start + run.data.len() as u64;
        while let Some((next, run)) = runs.peek() {
            if **next != end {
                break;
            }
            end += run.data.len() as u64;
            stretch.push(of_run(run));
            runs.next();
        }
        let record_bytes = policy.record_bytes(end - start);
        let mut at = *start;
        let mut parts = stretch.into_iter();
        let (mut rest, mut buffer_len_bytes) = parts.next().unwrap_or_default();
        while at < end {
            let cut_end = ((at / record_bytes + 1) * record_bytes).min(end);
            let mut record = Cut {
                start: at,
                parts: Vec::new(),
                len_bytes: cut_end - at,
                held_bytes: 0,
            };
            while at < cut_end {
                if rest.is_empty() {
                    (rest, buffer_len_bytes) = parts.next().unwrap_or_default();
                }
                let take = rest.len().min((cut_end - at) as usize);
                record.parts.push(rest.split_to(take));
                record.held_bytes += buffer_len_bytes;
                at += take as u64;
            }
            cuts.push(record);
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{AccessPattern, record_bytes};

    fn runs(list: &[(u64, usize)]) -> BTreeMap<u64, Run> {
        list.iter()
            .map(|(start, len)| {
                let run = Run {
                    data: Bytes::from(vec![*start as u8; *len]),
                    journal: None,
                    sequence: 0,
                    buffer_len_bytes: *len as u64,
                };
                (*start, run)
            })
            .collect()
    }

    #[test]
    fn runs_are_cut_into_aligned_records() {
        const KIB: usize = 1 << 10;
        type Case<'a> = (&'a str, AccessPattern, &'a [(u64, usize)], &'a [(u64, u64)]);
        let cases: &[Case] = &[
            (
                "one small",
                AccessPattern::Concurrent,
                &[(5, 10)],
                &[(5, 10)],
            ),
            (
                "neighbours join",
                AccessPattern::Concurrent,
                &[(0, 10), (10, 20)],
                &[(0, 30)],
            ),
            (
                "a gap parts",
                AccessPattern::Concurrent,
                &[(0, 10), (11, 20)],
                &[(0, 10), (11, 20)],
            ),
            (
                "at multiples of the record",
                AccessPattern::Random,
                &[(8 << 10, 24 * KIB)],
                &[(8 << 10, 8 << 10), (16 << 10, 16 << 10)],
            ),
            (
                "long stretches get large records",
                AccessPattern::Concurrent,
                &[(0, 1024 * KIB), (1 << 20, 512 * KIB)],
                &[(0, 1 << 20), (1 << 20, 512 << 10)],
            ),
        ];
        for (name, access_pattern, list, want) in cases {
            let policy = Policy {
                access_pattern: *access_pattern,
                ..Policy::default()
            };
            let cuts = cut(&runs(list), &policy);
            let got: Vec<_> = cuts.iter().map(|cut| (cut.start, cut.len_bytes)).collect();
            assert_eq!(got, *want, "{name}");
            let shared = Policy {
                dedupe: Dedupe::On,
                ..policy
            };
            let record_bytes = record_bytes(*access_pattern, 0);
            for cut in super::cut(&runs(list), &shared) {
                let next = (cut.start / record_bytes + 1) * record_bytes;
                assert!(cut.start + cut.len_bytes <= next, "{name}: one size");
            }
            for cut in &cuts {
                let len: usize = cut.parts.iter().map(Bytes::len).sum();
                assert_eq!(len as u64, cut.len_bytes, "{name}");
            }
        }
    }

    #[test]
    fn a_cut_says_how_much_its_buffers_take() {
        const KIB: u64 = 1 << 10;
        let policy = Policy::default();
        let held = |runs: &BTreeMap<u64, Run>| -> Vec<u64> {
            let cuts = cut(runs, &policy);
            cuts.iter().map(|cut| cut.held_bytes).collect()
        };
        let small = runs(&[(0, 4096), (4096, 4096)]);
        assert_eq!(held(&small), [8192], "both buffers");
        let large = runs(&[(0, 256 << 10)]);
        assert_eq!(held(&large), [256 * KIB; 2], "each keeps all of one");
        let mut rest = small;
        if let Some(run) = rest.get_mut(&4096) {
            run.buffer_len_bytes = 10_000;
        }
        assert_eq!(held(&rest), [14_096], "what was left of a larger one");
    }
}
