//! Inodes in memory: the state of each, and the table that finds them.
//!
//! Owns: the state of an inode that has not reached the metadata yet, and when an inode may be forgotten. Must not
//! know: what operations do with it.
//!
//! Invariant: an inode that differs from the metadata is referenced from elsewhere (the flush queue), so the table
//! never drops it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, LogPosition, Timestamp, View};
use cairn_meta::{InodeKind, InodeRecord, MetaError, Ticket};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use crate::dirty::{DirtyMap, Run};
use crate::extents::ExtentMap;
use crate::perm::Guarded;
use crate::policy::CachedPolicy;
use crate::quota::Charged;
use crate::ranges::RangeSet;
use crate::reserve::Reserved;
use crate::types::{Attr, FileKind, FsError, LINK_COUNT_MAX, PreAttr, Wcc};

/// The kind in the types of the file service.
pub(crate) fn kind_of(kind: InodeKind) -> FileKind {
    match kind {
        InodeKind::Regular => FileKind::Regular,
        InodeKind::Directory => FileKind::Directory,
        InodeKind::Symlink => FileKind::Symlink,
        InodeKind::Fifo => FileKind::Fifo,
        InodeKind::Socket => FileKind::Socket,
        InodeKind::BlockDevice => FileKind::BlockDevice,
        InodeKind::CharDevice => FileKind::CharDevice,
    }
}

/// The size that a directory shows: the blocks that its entries would take. POSIX leaves it open; programs take a
/// size of zero for an empty or special directory.
fn dir_len_bytes(entry_count: u64) -> u64 {
    const BLOCK_BYTES: u64 = 4096;
    const ENTRY_BYTES: u64 = 32;
    entry_count
        .saturating_mul(ENTRY_BYTES)
        .max(1)
        .next_multiple_of(BLOCK_BYTES)
}

/// One inode. Operations take its lock, and never hold it across a wait.
pub(crate) struct Inode {
    pub ino: Ino,
    /// The view in which its record and its extents are read.
    pub view: View,
    /// Its weight in the limit of [`InodeTable`].
    weight: usize,
    state: Mutex<State>,
}

pub(crate) type Guard<'a> = MutexGuard<'a, State>;

/// The state of an inode.
pub(crate) struct State {
    /// The attributes as clients see them, unstable writes included.
    pub record: InodeRecord,
    /// The size without unstable writes: the size after a crash.
    pub stable_size_bytes: u64,
    /// `record` has values (times, for example) that the metadata does not have yet.
    pub attr_dirty: bool,
    /// The last name is gone; the data is deleted when no task holds the inode.
    pub removed: bool,
    /// The last submission that touched this inode.
    pub ticket: Ticket,
    /// The last submission that changed its names, its attributes, or its size. No client sees that change before it
    /// is durable.
    pub changed: Ticket,
    /// The last submission of bytes that went to the journal at once. Unstable writes and their times are visible
    /// before they are durable: the client that wrote them keeps them until COMMIT.
    pub journaled: Ticket,
    pub dirty: DirtyMap,
    /// The bytes in memory and in flights that do not replace bytes of extents, as far as known. Unknown are only
    /// writes inside of a file whose extents are not in memory; these count as replacing until they are extents.
    pub fresh: RangeSet,
    /// The part of `fresh` that the volume counts.
    pub fresh_counted_bytes: u64,
    /// The reservation of the file.
    pub reserved: Option<Arc<Reserved>>,
    /// The part of the bytes in memory that quotas count.
    pub charged: Option<Box<Charged>>,
    /// The last journal entry of this inode.
    pub journal_last: LogPosition,
    /// Number of the last change of bytes.
    pub sequence: u64,
    /// Dirty bytes that are being written into segments.
    pub flights: Vec<Flight>,
    pub flight_next: u64,
    /// The metadata could not take the written bytes: further writes are refused until all of those bytes are stored,
    /// or gone.
    pub landing_error: Option<FsError>,
    pub extents: ExtentMap,
    /// Whether the inode is in the flush queue.
    pub queued: bool,
    /// The time when the oldest dirty byte came, on the monotonic clock.
    pub dirty_since: Duration,
    /// End of the last read: a read from here on is sequential.
    pub read_end: u64,
    /// Sequential reads up to there.
    pub read_run_count: u32,
    /// Read-ahead was started up to here.
    pub read_ahead_end: u64,
    /// End of the last write.
    pub write_end: u64,
    /// Bytes written sequentially up to `write_end`.
    pub write_run_bytes: u64,
    /// The directory in which a file without a name will get one.
    pub near: Ino,
    /// The policies of directories for its data, as last resolved.
    pub policy_found: CachedPolicy,
    /// Changes up to this time, on the monotonic clock, belong to one whose former content was kept, or that made the
    /// file.
    pub change_until: Duration,
}

/// The result of one flush of this inode.
pub(crate) type FlightResult = Option<Result<(), FsError>>;

/// Bytes that a flush took from the dirty map. Readers find them here until they are in extents.
pub(crate) struct Flight {
    pub id: u64,
    pub runs: Arc<BTreeMap<u64, Run>>,
    /// From the first to past the last byte.
    pub span: Range<u64>,
    /// The file was cut here after the flush began: bytes beyond must not become extents.
    pub limit: u64,
    /// Bytes up to `limit`.
    pub len_bytes: u64,
    pub done: watch::Receiver<FlightResult>,
}

impl Flight {
    /// The file is cut at `size_bytes`.
    pub fn cut(&mut self, size_bytes: u64) {
        if size_bytes >= self.limit.min(self.span.end) {
            return;
        }
        self.limit = size_bytes;
        let below = self.runs.range(..size_bytes);
        let lens = below.map(|(start, run)| (run.data.len() as u64).min(size_bytes - start));
        self.len_bytes = lens.sum();
    }
}

impl Inode {
    /// Makes an inode of the live view.
    pub fn new(ino: Ino, state: State) -> Arc<Self> {
        Self::in_view(View::Live, ino, state)
    }

    pub fn in_view(view: View, ino: Ino, state: State) -> Arc<Self> {
        Arc::new(Self {
            ino,
            view,
            weight: 1 + state.record.symlink_target.len() / INODE_BYTES,
            state: Mutex::new(state),
        })
    }

    pub fn lock(&self) -> Guard<'_> {
        self.state.lock()
    }
}

impl State {
    pub fn new(record: InodeRecord, extents: ExtentMap) -> Self {
        Self {
            stable_size_bytes: record.size_bytes,
            removed: record.nlink == 0,
            record,
            attr_dirty: false,
            ticket: Ticket::NONE,
            changed: Ticket::NONE,
            journaled: Ticket::NONE,
            dirty: DirtyMap::default(),
            fresh: RangeSet::default(),
            fresh_counted_bytes: 0,
            reserved: None,
            charged: None,
            journal_last: LogPosition(0),
            sequence: 0,
            flights: Vec::new(),
            flight_next: 0,
            landing_error: None,
            extents,
            queued: false,
            dirty_since: Duration::ZERO,
            read_end: 0,
            read_run_count: 0,
            read_ahead_end: 0,
            write_end: 0,
            write_run_bytes: 0,
            near: Ino(0),
            policy_found: CachedPolicy::default(),
            change_until: Duration::ZERO,
        }
    }

    /// The directory from which this inode inherits its policy; 0 if there is none.
    pub fn policy_parent(&self) -> Ino {
        match self.record.parent {
            Ino(0) => self.near,
            parent => parent,
        }
    }

    /// Notes the ticket with which a visible change was submitted.
    pub fn note_change(&mut self, ticket: Ticket) {
        self.ticket = ticket;
        self.changed = ticket;
    }

    /// The ticket that must be durable before a client sees the attributes, or the entries of a directory.
    pub fn shown(&self) -> Ticket {
        self.changed.max(self.journaled)
    }

    /// The ticket that must be durable before a client gets the bytes of `range`.
    pub fn shown_in(&self, range: &Range<u64>, is_durable: impl Fn(Ticket) -> bool) -> Ticket {
        if is_durable(self.journaled) {
            return self.changed;
        }
        let flying = self.flights.iter().map(|flight| &*flight.runs);
        let maps = flying.chain(std::iter::once(self.dirty.runs()));
        let last = maps.filter_map(|runs| crate::dirty::last_journaled(runs, range));
        last.fold(self.changed, |last, position| last.max(Ticket(position)))
    }

    /// Refuses more bytes of a file whose bytes cannot become extents: they would fill the memory that all writers share.
    pub fn require_landing(&mut self) -> Result<(), FsError> {
        if self.dirty.is_empty() && self.flights.is_empty() {
            self.landing_error = None;
        }
        self.landing_error.clone().map_or(Ok(()), Err)
    }

    pub fn require_live(&self) -> Result<(), FsError> {
        if self.removed {
            Err(FsError::Stale)
        } else {
            Ok(())
        }
    }

    /// Refuses to remove a retained file.
    pub fn require_unretained(&self, now: Timestamp) -> Result<(), FsError> {
        let until = self.record.retained_until_seconds;
        let is_over = until == 0 || u64::try_from(now.seconds).is_ok_and(|now| now >= until);
        match is_over {
            true => Ok(()),
            false => Err(FsError::NotOwner),
        }
    }

    /// Refuses to change a retained file or a previous version. A held directory only keeps its place.
    pub fn require_changeable(&self, now: Timestamp) -> Result<(), FsError> {
        match self.record.is_frozen {
            true => Err(FsError::NotOwner),
            false if self.record.kind == InodeKind::Directory => Ok(()),
            false => self.require_unretained(now),
        }
    }

    pub fn require_dir(&self) -> Result<(), FsError> {
        self.require_live()?;
        if self.record.kind == InodeKind::Directory {
            Ok(())
        } else {
            Err(FsError::NotDirectory)
        }
    }

    /// Refuses another link: to a file at its maximum of links, to a directory whose count would not fit its field.
    pub fn require_room_for_link(&self) -> Result<(), FsError> {
        let most = match self.record.kind {
            InodeKind::Directory => u32::MAX,
            _ => LINK_COUNT_MAX,
        };
        match self.record.nlink < most {
            true => Ok(()),
            false => Err(FsError::TooManyLinks),
        }
    }

    /// The links that clients see. The record keeps the true count, so the shown count is right again when
    /// directories are removed.
    fn shown_link_count(&self) -> u32 {
        match self.record.kind {
            InodeKind::Directory if self.record.nlink > LINK_COUNT_MAX => 1,
            _ => self.record.nlink,
        }
    }

    pub fn guarded(&self) -> Guarded {
        Guarded {
            kind: kind_of(self.record.kind),
            mode: self.record.mode,
            uid: self.record.uid,
            gid: self.record.gid,
        }
    }

    pub fn attr(&self, ino: Ino) -> Attr {
        let record = &self.record;
        Attr {
            ino,
            kind: kind_of(record.kind),
            mode: record.mode,
            nlink: self.shown_link_count(),
            uid: record.uid,
            gid: record.gid,
            size_bytes: if record.kind == InodeKind::Directory {
                dir_len_bytes(record.entry_count)
            } else {
                record.size_bytes
            },
            used_bytes: record.used_bytes + self.fresh.len_bytes(),
            device_major: record.device_major,
            device_minor: record.device_minor,
            atime: record.atime,
            mtime: record.mtime,
            ctime: record.ctime,
        }
    }

    /// Notes which bytes of a write do not replace stored bytes. `size_before`: the size of the file before the
    /// write; nothing is stored from there on.
    pub fn note_fresh(&mut self, range: Range<u64>, size_before: u64) {
        if self.record.used_bytes == 0 {
            self.fresh.add(range);
            return;
        }
        let inside = range.start..range.end.min(size_before);
        self.fresh.add(range.start.max(size_before)..range.end);
        if inside.start >= inside.end || !self.extents.is_loaded(&inside) {
            return;
        }
        let mut at = inside.start;
        for extent in self.extents.touching(inside.clone()) {
            self.fresh.add(at..extent.start.max(at));
            at = at.max(extent.end);
        }
        self.fresh.add(at..inside.end);
    }

    /// Receivers of the results of the flights that have bytes of a range.
    pub fn flights_in(&self, range: &Range<u64>) -> Vec<watch::Receiver<FlightResult>> {
        let flights = self.flights.iter();
        let touching = flights.filter(|flight| crate::punch::has_bytes_in(&flight.runs, range));
        touching.map(|flight| flight.done.clone()).collect()
    }

    /// Bytes that are being written into segments.
    pub fn flying_bytes(&self) -> u64 {
        self.flights.iter().map(|flight| flight.len_bytes).sum()
    }

    pub fn pre_attr(&self) -> PreAttr {
        let size_bytes = if self.record.kind == InodeKind::Directory {
            dir_len_bytes(self.record.entry_count)
        } else {
            self.record.size_bytes
        };
        PreAttr {
            size_bytes,
            mtime: self.record.mtime,
            ctime: self.record.ctime,
        }
    }

    pub fn wcc(&self, ino: Ino, before: PreAttr) -> Wcc {
        Wcc {
            before,
            after: self.attr(ino),
        }
    }

    /// Sets the change time. It grows even when the clock stands still or steps back, because clients compare change
    /// times to find changes.
    pub fn touch_ctime(&mut self, now: Timestamp) -> Timestamp {
        let ctime = if now > self.record.ctime {
            now
        } else {
            self.record.ctime.successor()
        };
        self.record.ctime = ctime;
        ctime
    }

    /// Sets modification and change time.
    pub fn touch_mtime(&mut self, now: Timestamp) {
        self.record.mtime = self.touch_ctime(now);
    }

    /// The record to store, with the size that the stored data has. Marks the attributes as stored.
    pub fn stored_record(&mut self) -> InodeRecord {
        self.attr_dirty = false;
        self.record_to_store()
    }

    /// As [`Self::stored_record`], for a batch that may be refused: marks nothing.
    pub fn record_to_store(&self) -> InodeRecord {
        let mut record = self.record.clone();
        if record.kind == InodeKind::Regular && !planted::is(Bug::SizeBeforeData) {
            record.size_bytes = self.stable_size_bytes;
        }
        record
    }

    /// Whether bytes of a write up to `sequence` are only in memory: dirty, or in a flight that another task started
    /// meanwhile.
    pub fn has_unstable_up_to(&self, sequence: u64) -> bool {
        let flying = |flight: &Flight| {
            let mut runs = flight.runs.values();
            runs.any(|run| run.journal.is_none() && run.sequence <= sequence)
        };
        self.dirty.has_unstable_up_to(sequence) || self.flights.iter().any(flying)
    }

    /// Collects the bytes of `range` in dirty maps and flights into `pieces`, and the other ranges into `gaps`.
    pub fn read_dirty(
        &self,
        range: Range<u64>,
        pieces: &mut Vec<(u64, Bytes)>,
        gaps: &mut Vec<Range<u64>>,
    ) {
        crate::dirty::fill(self.dirty.runs(), u64::MAX, range, pieces, gaps);
        for flight in self.flights.iter().rev() {
            if gaps.is_empty() {
                return;
            }
            let older: Vec<_> = std::mem::take(gaps);
            for gap in older {
                if gap.end <= flight.span.start || flight.span.end <= gap.start {
                    gaps.push(gap);
                } else {
                    crate::dirty::fill(&flight.runs, flight.limit, gap, pieces, gaps);
                }
            }
        }
    }
}

/// Approximate memory of an inode; one with a long symlink target counts for several.
const INODE_BYTES: usize = 1 << 10;
const SHARD_COUNT: usize = 64;
/// Entries that a full shard checks to find an inode to forget.
const EVICT_LOOK_COUNT: usize = 32;

/// The inodes in memory; at most about `inodes_max` of them are unused.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<TableShard>>,
    /// The limit of one shard; it may change while the table is in use.
    shard_count_max: AtomicUsize,
    evicted: AtomicU64,
}

fn shard_count_max(inodes_max: usize) -> usize {
    inodes_max.div_ceil(SHARD_COUNT).max(16)
}

#[derive(Default)]
struct TableShard {
    inodes: FxHashMap<Ino, Arc<Inode>>,
    weight: usize,
    /// The order in which inodes are checked for eviction.
    clock: std::collections::VecDeque<Ino>,
    /// Grows with each evicted inode: a record that was read before may be old.
    evictions: u64,
}

impl InodeTable {
    pub fn new(inodes_max: usize) -> Self {
        Self {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            shard_count_max: AtomicUsize::new(shard_count_max(inodes_max)),
            evicted: AtomicU64::new(0),
        }
    }

    /// Sets the limit. Later insertions evict the excess.
    pub fn set_inodes_max(&self, inodes_max: usize) {
        let most = shard_count_max(inodes_max);
        self.shard_count_max.store(most, Ordering::Relaxed);
    }

    fn shard_count_max(&self) -> usize {
        self.shard_count_max.load(Ordering::Relaxed)
    }

    pub fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().inodes.len())
            .sum()
    }

    /// Whether an inode is in memory.
    pub fn has(&self, ino: Ino) -> bool {
        self.shard(ino).lock().inodes.contains_key(&ino)
    }

    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Calls `visit` with each inode in memory, without a lock of the table.
    pub fn visit(&self, mut visit: impl FnMut(&Arc<Inode>)) {
        for shard in &self.shards {
            let inodes: Vec<Arc<Inode>> = shard.lock().inodes.values().cloned().collect();
            for inode in inodes {
                visit(&inode);
            }
        }
    }

    /// Finds an inode, or makes it from the result of `load`. `load` runs without a lock, and again if an inode was
    /// evicted meanwhile, since its result may then be old.
    pub fn find_or_load(
        &self,
        ino: Ino,
        load: impl Fn() -> Result<Option<State>, MetaError>,
    ) -> Result<Option<Arc<Inode>>, MetaError> {
        loop {
            let evictions = {
                let shard = self.shard(ino).lock();
                if let Some(inode) = shard.inodes.get(&ino) {
                    return Ok(Some(inode.clone()));
                }
                shard.evictions
            };
            let Some(state) = load()? else {
                return Ok(None);
            };
            let mut shard = self.shard(ino).lock();
            if let Some(inode) = shard.inodes.get(&ino) {
                return Ok(Some(inode.clone()));
            }
            if shard.evictions != evictions {
                continue;
            }
            let inode = Inode::new(ino, state);
            self.add(&mut shard, inode.clone());
            return Ok(Some(inode));
        }
    }

    /// Adds a newly created inode.
    pub fn insert(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        self.add(&mut shard, inode);
    }

    fn add(&self, shard: &mut TableShard, inode: Arc<Inode>) {
        if shard.weight >= self.shard_count_max() {
            self.evict(shard);
        }
        shard.clock.push_back(inode.ino);
        shard.weight += inode.weight;
        let old = shard.inodes.insert(inode.ino, inode);
        assert!(old.is_none());
    }

    /// Evicts the first inodes in clock order that only the table refers to. While the shard is locked, no task can
    /// take a new reference, and an inode that differs from the metadata is in the flush queue.
    fn evict(&self, shard: &mut TableShard) {
        for _ in 0..EVICT_LOOK_COUNT.min(shard.clock.len()) {
            if shard.weight < self.shard_count_max() {
                break;
            }
            let Some(ino) = shard.clock.pop_front() else {
                break;
            };
            match shard.inodes.get(&ino) {
                Some(inode) if Arc::strong_count(inode) > 1 => shard.clock.push_back(ino),
                Some(inode) => {
                    shard.weight -= inode.weight;
                    shard.inodes.remove(&ino);
                    shard.evictions += 1;
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                None => {}
            }
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<TableShard> {
        &self.shards[(ino.0 % SHARD_COUNT as u64) as usize]
    }
}

/// The locks of a few inodes, taken in the order of their numbers.
pub(crate) struct Locked<'a> {
    guards: Vec<(Ino, Guard<'a>)>,
}

impl<'a> Locked<'a> {
    pub fn all(inodes: &[&'a Arc<Inode>]) -> Self {
        let mut sorted: Vec<&'a Arc<Inode>> = inodes.to_vec();
        sorted.sort_by_key(|inode| inode.ino);
        sorted.dedup_by_key(|inode| inode.ino);
        Self {
            guards: sorted
                .into_iter()
                .map(|inode| (inode.ino, inode.lock()))
                .collect(),
        }
    }

    /// The state of one of the locked inodes.
    pub fn of(&mut self, ino: Ino) -> &mut State {
        self.guards
            .iter_mut()
            .find(|(held, _)| *held == ino)
            .map(|(_, guard)| &mut **guard)
            .expect("the inode was locked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without weights, the table held as many of these as of others, in four times the memory.
    #[test]
    fn long_symlinks_count_for_what_they_are() {
        const COUNT: u64 = 64 * SHARD_COUNT as u64;
        let in_memory = |target_len: usize| {
            let table = InodeTable::new(32 * SHARD_COUNT);
            for ino in 1..=COUNT {
                let mut record = InodeRecord::new(InodeKind::Symlink);
                record.symlink_target = vec![b'x'; target_len].into();
                let state = State::new(record, ExtentMap::default());
                table.insert(Inode::new(Ino(ino), state));
            }
            table.len()
        };
        assert_eq!(in_memory(10), 4 * in_memory(4095));
    }
}
