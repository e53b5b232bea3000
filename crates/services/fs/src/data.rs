//! File data: read, write, commit.
//!
//! Owns: where the bytes of a read come from, when a write is acknowledged, read-ahead. Must not know: how bytes get
//! into segments (`flush`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, Timestamp, View};
use cairn_meta::{Fold, InodeKind, JOURNAL_ENTRY_BYTES};
use cairn_segment::{CHECKSUM_GRANULE_BYTES, Codec, ErrorKind, RecordPointer, WantedPart};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::kernel::{Ahead, ExtentContent, Guard, Inode, Run, State, segment_error};
use crate::perm::{READ, WRITE, require_data};
use crate::types::*;
use crate::volume::{Fs, FsView, VolumeCore};

/// Largest stable write, and largest file tail at COMMIT, that goes to the journal. For more bytes, records of a
/// segment are cheaper than bytes that are written twice.
pub(crate) const JOURNAL_WRITE_BYTES_MAX: u64 = 64 << 10;
/// Most runs that a COMMIT puts into the journal.
const JOURNAL_COMMIT_RUNS_MAX: usize = 32;
/// Attempts of a read whose records garbage collection moves concurrently.
const READ_ATTEMPTS_MAX: usize = 16;
/// A read of bytes that no disk gives now waits for so long; then its client has to try again. Initiators abort
/// commands after 30 s.
const UNREACHABLE_HOLD: Duration = Duration::from_secs(10);
/// When no waiting read has succeeded for so long, the disks are taken to be away for longer:
const UNREACHABLE_LONG: Duration = Duration::from_secs(60);
/// then each read waits only for so long, which keeps clients from asking all the time.
const UNREACHABLE_HOLD_LATER: Duration = Duration::from_secs(1);
/// A waiting read asks the disks again after so long, and after twice as long each time, up to the maximum.
const UNREACHABLE_PAUSE_MIN: Duration = Duration::from_millis(50);
const UNREACHABLE_PAUSE_MAX: Duration = Duration::from_secs(1);
const _: () = assert!(UNREACHABLE_PAUSE_MAX.as_millis() <= UNREACHABLE_HOLD_LATER.as_millis());
/// How far ahead of a sequential reader data is fetched.
const READ_AHEAD_BYTES: u64 = 4 << 20;
/// A reader is sequential after so many reads in a row that are each near the one before; the first may also be at
/// the file's start.
const READ_RUN_COUNT_MIN: u32 = 3;
const READ_AHEAD_TASKS_MAX: usize = 16;
/// Small extents are fetched ahead together: so many bytes and extents at a time.
const READ_AHEAD_BATCH_BYTES: u64 = 1 << 20;
const READ_AHEAD_BATCH_EXTENTS_MAX: usize = 512;
/// The size of a small extent, at most.
const SMALL_EXTENT_BYTES: u64 = 64 << 10;
/// A read renews access times older than this.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

/// Bytes of records that one read of several records brings into memory, at most: it may need one byte of each, and a
/// compressed record is in memory as a whole. The read leaves out the bytes beyond.
const READ_HELD_BYTES_MAX: u64 = 16 << 20;
/// Parts that one read consists of, at most.
const READ_PARTS_MAX: usize = 4096;
/// The budget of all reads together for record bytes beyond the requested ones, in units. Each read has one unit
/// without asking.
const WIDE_READS_UNIT_BYTES: u64 = 64 << 10;
const WIDE_READS_UNITS: usize = 1024;
/// Two whole records: a read of 1 MiB that begins in the middle of a record needs two.
const USUAL_READ_BYTES_MAX: u64 = 2 << 20;
const _: () = assert!(READ_HELD_BYTES_MAX <= WIDE_READS_UNITS as u64 * WIDE_READS_UNIT_BYTES);

/// What reads of a volume share.
pub(crate) struct ReadLimits {
    ahead_permits: Arc<Semaphore>,
    /// The time since when all waiting reads have failed; `None` after a successful one.
    unreachable_since: Mutex<Option<Duration>>,
    /// Limits reads that bring much more into memory than they return.
    wide: Semaphore,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            ahead_permits: Arc::new(Semaphore::new(READ_AHEAD_TASKS_MAX)),
            unreachable_since: Mutex::default(),
            wide: Semaphore::new(WIDE_READS_UNITS),
        }
    }
}

static ZEROS: [u8; TRANSFER_LEN_BYTES_MAX as usize] = [0; TRANSFER_LEN_BYTES_MAX as usize];

/// Where a part of a read comes from.
enum Source {
    Memory(Bytes),
    Zeros(u64),
    Record(Arc<RecordPointer>, Range<u32>),
}

impl Source {
    fn len_bytes(&self) -> u64 {
        match self {
            Source::Memory(bytes) => bytes.len() as u64,
            Source::Zeros(len_bytes) => *len_bytes,
            Source::Record(_, range) => range.len() as u64,
        }
    }
}

/// A read that waits for disks that do not answer.
struct StalledRead {
    until: Duration,
    pause: Duration,
}

impl StalledRead {
    fn new(shared: &VolumeCore) -> Self {
        let now = shared.env.clock.monotonic();
        let since = *shared.reads.unreachable_since.lock().get_or_insert(now);
        let hold = match now.saturating_sub(since) >= UNREACHABLE_LONG {
            true => UNREACHABLE_HOLD_LATER,
            false => UNREACHABLE_HOLD,
        };
        Self {
            until: now + hold,
            pause: UNREACHABLE_PAUSE_MIN,
        }
    }

    /// Waits before the disks are asked again; false if the read has waited for long enough.
    async fn pause(&mut self, shared: &VolumeCore) -> bool {
        let now = shared.env.clock.monotonic();
        if now >= self.until {
            return false;
        }
        let pause = self.pause.min(self.until - now);
        self.pause = (self.pause * 2).min(UNREACHABLE_PAUSE_MAX);
        shared.env.clock.sleep(pause).await;
        true
    }
}

impl FsView {
    /// Reads up to `len` bytes at `offset`; past the end there are none. Waits up to [`UNREACHABLE_HOLD`] for bytes
    /// that no disk gives now.
    pub async fn read(
        &self,
        who: &Credentials,
        ino: Ino,
        offset: u64,
        len: u32,
    ) -> Result<ReadData, FsError> {
        let shared = &self.shared;
        let inode = shared.reading(|| shared.inode_in(self.view, ino)).await?;
        let mut attempt = 0;
        let mut held: Option<StalledRead> = None;
        let mut extents_of: Option<Range<u64>> = None;
        loop {
            if let Some(range) = extents_of.take() {
                let load = || shared.load_extents(&inode, &range, Ahead::Some);
                shared.reading(load).await?;
            }
            let (attr, range, wanted, ticket) = {
                let mut state = inode.lock();
                require_file(&state)?;
                require_data(who, state.guarded(), READ)?;
                let end = offset
                    .saturating_add(u64::from(len.min(TRANSFER_LEN_BYTES_MAX)))
                    .min(state.record.size_bytes);
                let range = offset..end.max(offset);
                match sources(&state, &range) {
                    Some(sources) => {
                        let wanted = within_limits(sources);
                        let range = range.start..range.start + wanted.len_bytes;
                        shared.note_read(&inode, &mut state, &range);
                        let is_durable = |ticket| shared.meta.is_durable(ticket);
                        let ticket = state.shown_in(&range, is_durable);
                        shared.note_remote_read(&inode, &state, &range);
                        (state.attr(ino), range, wanted, ticket)
                    }
                    None => {
                        drop(state);
                        extents_of = Some(range);
                        continue;
                    }
                }
            };
            let turn = shared.wide_read_turn(wanted.held_bytes).await;
            match shared.collect(wanted.sources).await {
                Ok(mut parts) => {
                    if held.is_some() {
                        *shared.reads.unreachable_since.lock() = None;
                    }
                    if turn.is_some() {
                        // The parts would keep all those records in memory until the client has its bytes.
                        parts = vec![parts.concat().into()];
                    }
                    let count_bytes = (range.end - range.start) as u32;
                    shared.outcome(ticket).await?;
                    return Ok(ReadData {
                        eof: range.end >= attr.size_bytes,
                        attr,
                        parts,
                        count_bytes,
                    });
                }
                // Garbage collection moved the record: by now the extents say where to.
                Err(error) if error.kind() == ErrorKind::Gone && attempt < READ_ATTEMPTS_MAX => {
                    attempt += 1;
                    if let View::Snapshot(_) = inode.view {
                        shared.await_moves().await;
                        inode.lock().extents.unload();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    drop(turn);
                    shared.require_open()?;
                    let held = held.get_or_insert_with(|| StalledRead::new(shared));
                    if !held.pause(shared).await {
                        tracing::debug!(volume = %shared.volume, %ino, offset, len, %error, "read is put off");
                        return Err(segment_error(error));
                    }
                }
                Err(error) => {
                    // The volume was reopened elsewhere meanwhile, and its segments are no longer the ones known here.
                    shared.require_open()?;
                    // The caller reports the error, less often than a client asks again.
                    tracing::debug!(volume = %shared.volume, %ino, offset, len, %error, "read failed");
                    return Err(segment_error(error));
                }
            }
        }
    }
}

impl Fs {
    /// Writes `data` at `offset`.
    pub async fn write(
        &self,
        who: &Credentials,
        ino: Ino,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written, FsError> {
        if !data.is_empty() {
            self.keep_before_change(who, ino).await?;
        }
        let written = self.write_unless_changed(who, ino, offset, data, stability, None);
        // Without a condition there is always a result.
        written.await?.ok_or(FsError::TryLater)
    }

    /// Writes as [`Self::write`] does, but only if nobody has changed the file's bytes since they had this sequence
    /// number; otherwise returns `None`.
    pub(crate) async fn write_unless_changed(
        &self,
        who: &Credentials,
        ino: Ino,
        offset: u64,
        data: Bytes,
        stability: Stability,
        since: Option<u64>,
    ) -> Result<Option<Written>, FsError> {
        let shared = &self.shared;
        let inode = shared.reading(|| shared.inode(ino)).await?;
        let count_bytes = u32::try_from(data.len()).map_err(|_| FsError::Invalid)?;
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|end| *end <= FILE_LEN_BYTES_MAX)
            .ok_or(FsError::FileTooLarge)?;
        let nothing = {
            let mut state = inode.lock();
            require_file(&state)?;
            require_data(who, state.guarded(), WRITE)?;
            state.require_changeable(shared.now())?;
            state.require_landing()?;
            let before = state.pre_attr();
            let written = || Written {
                wcc: state.wcc(ino, before),
                count_bytes: 0,
                stable: true,
            };
            data.is_empty().then(|| (written(), state.shown()))
        };
        if let Some(written) = nothing {
            return shared.settle(Ok(written)).await.map(Some);
        }
        let room = shared.admit_write(&inode, &(offset..end)).await?;
        let mut journal =
            stability == Stability::Stable && data.len() as u64 <= JOURNAL_WRITE_BYTES_MAX;
        if journal {
            shared.meta.admit().await;
        }

        let (wcc, ticket) = {
            let mut state = inode.lock();
            require_file(&state)?;
            state.require_changeable(shared.now())?;
            let is_changed = since.is_some_and(|since| since != state.sequence);
            if is_changed && !planted::is(Bug::CompareNotRepeated) {
                return Ok(None);
            }
            let gate = shared.snapshots.journal_gate();
            journal &= gate.is_open();
            let extends = end > state.record.size_bytes;
            let before = state.pre_attr();
            let now = shared.now();
            let sequence = state.note_written(end, now, !who.is_root());
            note_write(&mut state, offset, end);
            let mut position = None;
            if journal {
                state.stable_size_bytes = state.stable_size_bytes.max(end);
                let mut change = shared.begin_change(state);
                change.journal_written(ino, offset, data.clone(), extends);
                let done = change.commit();
                shared.note_journal(1);
                position = Some(done.ticket.0);
                state = done.into_one();
            }
            let run = Run {
                data,
                journal: position,
                sequence,
                buffer_len_bytes: u64::from(count_bytes),
            };
            state.note_fresh(offset..end, before.size_bytes);
            let added = state.dirty.insert(offset, run);
            shared.dirty.add(added);
            shared.sync_pending(&mut state);
            shared
                .counters
                .written_bytes
                .fetch_add(u64::from(count_bytes), Ordering::Relaxed);
            shared.after_write(&inode, &mut state);
            let ticket = match stability {
                // These bytes may be lost, but not the attributes that others changed.
                Stability::Unstable => state.changed(),
                Stability::Stable => state.ticket(),
            };
            (state.wcc(ino, before), ticket)
        };
        drop(room);
        match stability {
            Stability::Unstable => {
                shared.outcome(ticket).await?;
                Ok(Some(Written {
                    wcc,
                    count_bytes,
                    stable: false,
                }))
            }
            Stability::Stable => {
                if journal {
                    if !planted::is(Bug::StableWriteNotAwaited) {
                        shared.outcome(ticket).await?;
                    }
                } else {
                    shared.commit(&inode).await?;
                }
                Ok(Some(Written {
                    wcc,
                    count_bytes,
                    stable: true,
                }))
            }
        }
    }

    /// Makes every write to the file that was acknowledged before this call stable. Commits the whole file, whatever
    /// the range: the protocol allows it, and clients ask for all of it.
    pub async fn commit(
        &self,
        _who: &Credentials,
        ino: Ino,
        _offset: u64,
        _len: u32,
    ) -> Result<Wcc, FsError> {
        let inode = self.shared.reading(|| self.shared.inode(ino)).await?;
        require_file(&inode.lock())?;
        if self.read_only().is_none() {
            self.shared.commit(&inode).await?;
        }
        // COMMIT changes no attribute. Other callers may have changed some meanwhile; a client that took that change
        // for its own would keep trusting its cache.
        let (wcc, ticket) = {
            let state = inode.lock();
            (state.wcc(ino, state.pre_attr()), state.shown())
        };
        self.shared.settle(Ok((wcc, ticket))).await
    }
}

pub(crate) fn require_file(state: &State) -> Result<(), FsError> {
    state.require_live()?;
    match state.record.kind {
        InodeKind::Regular => Ok(()),
        InodeKind::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid),
    }
}

/// The sources of `range` of the file, in order; `None` if extents have to be loaded first.
fn sources(state: &State, range: &Range<u64>) -> Option<Vec<Source>> {
    let mut memory = Vec::new();
    let mut gaps = Vec::new();
    if state.dirty.is_empty() && state.flights.is_empty() {
        if !range.is_empty() {
            gaps.push(range.clone());
        }
    } else {
        state.read_dirty(range.clone(), &mut memory, &mut gaps);
    }
    if !gaps.iter().all(|gap| state.extents.is_loaded(gap)) {
        return None;
    }
    let mut parts: Vec<(u64, Source)> = memory
        .into_iter()
        .map(|(at, bytes)| (at, Source::Memory(bytes)))
        .collect();
    for gap in gaps {
        let mut at = gap.start;
        for extent in state.extents.touching(gap.clone()) {
            let start = extent.start.max(at);
            let end = extent.end.min(gap.end);
            if start > at {
                parts.push((at, Source::Zeros(start - at)));
            }
            let source = match extent.part(start, end).place {
                ExtentContent::Record(record, from) => {
                    Source::Record(record, from..from + (end - start) as u32)
                }
                ExtentContent::Inline(bytes) => Source::Memory(bytes),
            };
            parts.push((start, source));
            at = end;
        }
        if at < gap.end {
            parts.push((at, Source::Zeros(gap.end - at)));
        }
    }
    parts.sort_by_key(|(at, _)| *at);
    Some(parts.into_iter().map(|(_, source)| source).collect())
}

/// The parts of a request that one read delivers.
struct BoundedRead {
    sources: Vec<Source>,
    len_bytes: u64,
    /// Bytes of records that the read brings into memory; 0 if it has one part.
    held_bytes: u64,
}

/// The first parts of a read, as many as may be in memory at once.
fn within_limits(mut sources: Vec<Source>) -> BoundedRead {
    if let [source] = sources.as_slice() {
        let len_bytes = source.len_bytes();
        return BoundedRead {
            sources,
            len_bytes,
            held_bytes: 0,
        };
    }
    let mut unpacked = FxHashSet::default();
    let (mut held_bytes, mut len_bytes) = (0, 0);
    let mut count = 0;
    for source in &sources {
        let brings_bytes = match source {
            Source::Memory(_) | Source::Zeros(_) => 0,
            Source::Record(pointer, range) => {
                let record_bytes = u64::from(pointer.file_len_bytes);
                match pointer.codec {
                    Codec::Raw => {
                        let first = range.start / CHECKSUM_GRANULE_BYTES;
                        let count = range.end.div_ceil(CHECKSUM_GRANULE_BYTES) - first;
                        record_bytes.min(u64::from(count) * u64::from(CHECKSUM_GRANULE_BYTES))
                    }
                    Codec::Lz4 | Codec::Zstd if unpacked.insert(pointer.location) => record_bytes,
                    Codec::Lz4 | Codec::Zstd => 0,
                }
            }
        };
        if count > 0 && held_bytes + brings_bytes > READ_HELD_BYTES_MAX || count == READ_PARTS_MAX {
            break;
        }
        held_bytes += brings_bytes;
        len_bytes += source.len_bytes();
        count += 1;
    }
    sources.truncate(count);
    BoundedRead {
        sources,
        len_bytes,
        held_bytes,
    }
}

/// Tracks whether a file is written sequentially.
fn note_write(state: &mut State, offset: u64, end: u64) {
    // Pipelined writes of one stream arrive a little out of order.
    let near = offset.abs_diff(state.write_end) <= 16 << 20;
    state.write_run_bytes = if near {
        state.write_run_bytes.saturating_add(end - offset)
    } else {
        end - offset
    };
    state.write_end = end;
}

impl VolumeCore {
    /// Waits until the record bytes that a read needs beyond the usual fit beside those of other reads.
    async fn wide_read_turn(&self, held_bytes: u64) -> Option<SemaphorePermit<'_>> {
        let wide_bytes = held_bytes.saturating_sub(USUAL_READ_BYTES_MAX);
        if wide_bytes == 0 {
            return None;
        }
        let units = wide_bytes.div_ceil(WIDE_READS_UNIT_BYTES) as u32;
        // The semaphore is never closed.
        self.reads.wide.acquire_many(units).await.ok()
    }

    async fn collect(
        self: &Arc<Self>,
        sources: Vec<Source>,
    ) -> Result<Vec<Bytes>, cairn_segment::SegmentError> {
        let mut parts: Vec<Vec<Bytes>> = Vec::with_capacity(sources.len());
        let mut fetches: Vec<(usize, WantedPart)> = Vec::new();
        for source in sources {
            match source {
                Source::Memory(bytes) => parts.push(vec![bytes]),
                Source::Zeros(len_bytes) => {
                    parts.push(vec![Bytes::from_static(&ZEROS[..len_bytes as usize])]);
                }
                Source::Record(pointer, range) => {
                    match self
                        .segments
                        .read_cached(self.volume, &pointer, range.clone())
                    {
                        Some(found) => parts.push(found),
                        None => {
                            fetches.push((parts.len(), (pointer, range)));
                            parts.push(Vec::new());
                        }
                    }
                }
            }
        }
        if let [(slot, (pointer, range))] = fetches.as_slice() {
            parts[*slot] = self
                .segments
                .read(self.volume, pointer, range.clone())
                .await?;
        } else if !fetches.is_empty() {
            let (slots, wanted): (Vec<usize>, Vec<WantedPart>) = fetches.into_iter().unzip();
            // Boxed, as few reads need several records: otherwise the future of each read would have the room for it.
            let found = Box::pin(self.segments.read_many(self.volume, &wanted)).await;
            for (slot, found) in slots.into_iter().zip(found) {
                parts[slot] = found?;
            }
        }
        Ok(parts.into_iter().flatten().collect())
    }

    /// Updates the access time (relatime) and starts read-ahead.
    fn note_read(self: &Arc<Self>, inode: &Arc<Inode>, state: &mut State, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let now = self.now();
        // Without space for metadata, each of these updates would take space that deletions need.
        let is_live = inode.view.is_live();
        if is_live
            && is_atime_due(state, now)
            && self.policy.read().relatime
            && !self.meta.is_full()
        {
            state.note_atime(now);
            self.enqueue(inode, state);
        }
        // Pipelined reads of one stream arrive a little out of order, too.
        let near = range.start.abs_diff(state.read_end) <= READ_AHEAD_BYTES;
        state.read_run_count = match (range.start, near) {
            (0, _) => READ_RUN_COUNT_MIN,
            (_, true) => state.read_run_count.saturating_add(1),
            (_, false) => 0,
        };
        state.read_end = range.end;
        // Random reads are sometimes near one another; if they were taken for a stream, each would cost as much as a
        // hundred others.
        if state.read_run_count < READ_RUN_COUNT_MIN || range.end - range.start < 4096 {
            state.read_ahead_end = 0;
            return;
        }
        let have = state.read_ahead_end.max(range.end);
        let want = (range.end + READ_AHEAD_BYTES).min(state.record.size_bytes);
        // At least half a step at once, instead of one record for each read.
        if want < have + READ_AHEAD_BYTES / 2 {
            return;
        }
        // Readers go on while the volume closes, so there would always be a task to wait for.
        if self.tasks.is_stopping() {
            return;
        }
        let Ok(permit) = self.reads.ahead_permits.clone().try_acquire_owned() else {
            return;
        };
        state.read_ahead_end = want;
        // Of a file in small extents, memory may hold only a part of one step.
        let is_loaded = state.extents.is_loaded(&(have..want));
        if is_loaded && self.cold_parts(state, &(have..want)).is_empty() {
            return;
        }
        let (shared, inode) = (self.clone(), inode.clone());
        self.tasks.spawn("read-ahead", async move {
            shared.read_ahead(&inode, &(have..want)).await;
            drop(permit);
        });
    }

    /// The record parts of `range`, which must be loaded, that are not in the cache.
    fn cold_parts(&self, state: &State, range: &Range<u64>) -> Vec<WantedPart> {
        let in_records = state
            .extents
            .touching(range.clone())
            .filter_map(|extent| extent.in_record());
        let parts = in_records.map(|extent| extent.wanted());
        let is_cold = |(record, part): &WantedPart| {
            let found = self.segments.read_cached(self.volume, record, part.clone());
            found.is_none()
        };
        parts.filter(is_cold).collect()
    }

    /// Brings a part of a file into the cache. Errors are ignored: the read itself reports them.
    async fn read_ahead(self: &Arc<Self>, inode: &Arc<Inode>, range: &Range<u64>) {
        let load = || self.load_extents(inode, range, Ahead::None);
        if self.reading(load).await.is_err() {
            return;
        }
        let cold = {
            let state = inode.lock();
            if !state.extents.is_loaded(range) {
                return;
            }
            self.cold_parts(&state, range)
        };
        self.note_small_extents(inode, range);
        let mut batch: Vec<WantedPart> = Vec::new();
        let mut batch_bytes = 0;
        let mut cold = cold.into_iter().peekable();
        while let Some(part) = cold.next() {
            let part_bytes = part.1.len() as u64;
            batch_bytes += part_bytes;
            batch.push(part);
            let is_full = batch_bytes >= READ_AHEAD_BATCH_BYTES
                || batch.len() >= READ_AHEAD_BATCH_EXTENTS_MAX
                || part_bytes > SMALL_EXTENT_BYTES;
            if is_full || cold.peek().is_none() {
                let batch = std::mem::take(&mut batch);
                let _ = self.segments.read_many_in_order(self.volume, &batch).await;
                batch_bytes = 0;
            }
        }
    }

    /// Makes the file's data stable: small amounts go to the journal, the rest into segments.
    pub(crate) async fn commit(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<(), FsError> {
        let mut sequence = None;
        loop {
            let (waits, ticket) = {
                let mut state = inode.lock();
                let gate = self.snapshots.journal_gate();
                let sequence = *sequence.get_or_insert(state.sequence);
                // Bytes in the log are stable, whether or not their flight into segments succeeds.
                let is_stable = !state.has_unstable_up_to(sequence);
                let dirty = state.dirty.has_unstable_up_to(sequence);
                if dirty
                    && gate.is_open()
                    && state.flights.is_empty()
                    && state.dirty.unstable_bytes() <= JOURNAL_WRITE_BYTES_MAX
                    && state.dirty.run_count() <= JOURNAL_COMMIT_RUNS_MAX
                    // Otherwise data that the log refuses would count as stable with the next commit.
                    && self.fits_in_batch(&state)
                {
                    let is_unstable = |run: &Run| run.journal.is_none();
                    state = self.journal_runs(state, None, is_unstable);
                } else if dirty {
                    self.start_flights(inode, &mut state, true);
                }
                let flights = state.flights.iter().filter(|_| !is_stable);
                let waits: Vec<_> = flights.map(|flight| flight.done.clone()).collect();
                (waits, state.ticket())
            };
            if waits.is_empty() || planted::is(Bug::CommitSkipsFlights) {
                return self.durable(ticket).await;
            }
            for mut done in waits {
                match done.wait_for(Option::is_some).await {
                    Ok(result) => result.clone().unwrap_or(Ok(()))?,
                    Err(_) => return Err(FsError::Fenced),
                }
            }
            let ticket = {
                let state = inode.lock();
                let left = match planted::is(Bug::CommitForgetsNewFlights) {
                    true => state.dirty.has_unstable_up_to(sequence.unwrap_or(0)),
                    false => state.has_unstable_up_to(sequence.unwrap_or(0)),
                };
                (!left).then_some(state.ticket())
            };
            if let Some(ticket) = ticket {
                return self.durable(ticket).await;
            }
        }
    }

    /// Whether one batch of the log has room for all data that is only in memory.
    fn fits_in_batch(&self, state: &State) -> bool {
        let entries = (state.dirty.run_count() * JOURNAL_ENTRY_BYTES) as u64;
        state.dirty.unstable_bytes() + entries <= self.meta.batch_bytes_max() as u64
    }

    /// Puts the runs that are `wanted` into the journal, in one batch with `fold`. All runs that are only in memory must
    /// be among them.
    pub(crate) fn journal_runs<'a>(
        &'a self,
        mut state: Guard<'a>,
        fold: Option<Fold>,
        wanted: impl Fn(&Run) -> bool,
    ) -> Guard<'a> {
        let ino = state.ino();
        let end = state.dirty.runs().iter().next_back();
        let end = end.map_or(0, |(start, run)| start + run.data.len() as u64);
        state.stable_size_bytes = state
            .stable_size_bytes
            .max(end.min(state.record.size_bytes));
        let mut change = self.begin_change(state);
        if let Some(fold) = fold {
            change.batch().fold(fold);
        }
        let count = change.journal_runs(ino, wanted);
        let done = change.commit();
        self.note_journal(count);
        done.into_one()
    }

    pub(crate) fn note_journal(&self, count: u64) {
        self.counters
            .journaled_writes
            .fetch_add(count, Ordering::Relaxed);
    }
}

/// Relative access times: renewed when the file changed since, or once a day.
fn is_atime_due(state: &State, now: Timestamp) -> bool {
    let record = &state.record;
    record.atime <= record.mtime
        || record.atime <= record.ctime
        || now.seconds.saturating_sub(record.atime.seconds) >= RELATIME_SECONDS
}
