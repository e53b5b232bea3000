//! Inodes in memory: the state of each.
//!
//! Owns: the state of an inode that has not reached the metadata yet, and what of it clients may see when. Must not
//! know: what operations do with it.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, LogPosition, Timestamp, View};
use cairn_meta::{InodeKind, InodeRecord, JournalEntry, Ticket};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::accounts::{CachedPolicy, Charged, Reserved};
use super::dirty::{DirtyMap, Run, fill, has_bytes_in, last_journaled};
use super::extents::ExtentMap;
use super::locked::Guard;
use super::ranges::RangeSet;
use crate::perm::{Guarded, without_privilege_bits};
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

/// Approximate memory of an inode; one with a long symlink target counts for several.
const INODE_BYTES: usize = 1 << 10;

/// One inode. Operations take its lock, and never hold it across a wait.
pub(crate) struct Inode {
    pub ino: Ino,
    /// The view in which its record and its extents are read.
    pub view: View,
    /// Its weight in the limit of [`super::table::InodeTable`].
    pub(super) weight: usize,
    state: Mutex<State>,
}

/// A value that the kernel changes, and all others only read.
#[derive(Debug)]
pub(crate) struct ReadOnly<T>(T);

impl<T> ReadOnly<T> {
    pub(super) fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Deref for ReadOnly<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The state of an inode.
pub(crate) struct State {
    /// The attributes as clients see them, unstable writes included. A change writes them ([`super::Edit::record`]), and
    /// what is not durable before a COMMIT: writes and reads.
    pub record: ReadOnly<InodeRecord>,
    /// The size without unstable writes: the size after a crash.
    pub stable_size_bytes: u64,
    /// `record` has values (times, for example) that the metadata does not have yet.
    pub attr_dirty: bool,
    /// The last name is gone; the data is deleted when no task holds the inode.
    pub removed: bool,
    /// The last submission that touched this inode.
    pub(super) ticket: Ticket,
    /// The last submission that changed its names, its attributes, or its size. No client sees that change before it
    /// is durable.
    pub(super) changed: Ticket,
    /// The last submission of bytes that went to the journal at once. Unstable writes and their times are visible
    /// before they are durable: the client that wrote them keeps them until COMMIT.
    pub(super) journaled: Ticket,
    pub dirty: DirtyMap,
    /// The bytes in memory and in flights that do not replace bytes of extents, as far as known. Unknown are only
    /// writes inside of a file whose extents are not in memory; these count as replacing until they are extents.
    pub fresh: RangeSet,
    /// The part of `fresh` that the volume counts.
    pub(super) fresh_counted_bytes: u64,
    /// The reservation of the file.
    pub reserved: Option<Arc<Reserved>>,
    /// The part of the bytes in memory that quotas count.
    pub charged: Option<Box<Charged>>,
    /// The last journal entry of this inode.
    pub(super) journal_last: LogPosition,
    /// Number of the last change of bytes.
    pub sequence: u64,
    /// Dirty bytes that are being written into segments.
    pub flights: Vec<Flight>,
    flight_next: u64,
    /// The metadata could not take the written bytes: further writes are refused until all of those bytes are stored,
    /// or gone.
    pub landing_error: Option<FsError>,
    pub extents: ExtentMap,
    /// Whether the inode is in the flush queue.
    pub(super) queued: bool,
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
        Guard::new(self.ino, self.state.lock())
    }
}

impl State {
    pub fn new(record: InodeRecord, extents: ExtentMap) -> Self {
        Self {
            stable_size_bytes: record.size_bytes,
            removed: record.nlink == 0,
            record: ReadOnly(record),
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

    /// The last submission that touched this inode.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The last submission that changed its names, its attributes, or its size.
    pub fn changed(&self) -> Ticket {
        self.changed
    }

    /// The last journal entry of this inode; 0: it has none.
    pub fn journal_last(&self) -> LogPosition {
        self.journal_last
    }

    /// All bytes of the inode are extents: no entry of the journal is needed any more.
    pub fn forget_journal(&mut self) {
        assert!(self.dirty.is_empty() && self.flights.is_empty());
        self.journal_last = LogPosition(0);
    }

    /// It was taken out of the flush queue.
    pub fn note_unqueued(&mut self) {
        self.queued = false;
    }

    /// Makes a flight of bytes that were taken from the dirty map; returns its number, and where its result goes.
    pub fn begin_flight(
        &mut self,
        runs: Arc<BTreeMap<u64, Run>>,
    ) -> Option<(u64, watch::Sender<FlightResult>)> {
        let (first, last) = (runs.iter().next()?, runs.iter().next_back()?);
        let span = *first.0..last.0 + last.1.data.len() as u64;
        // Flights of one file may land in any order: no byte is in two of them.
        assert_in_tests!(
            runs.iter().all(|(start, run)| {
                let range = *start..start + run.data.len() as u64;
                let mut flights = self.flights.iter();
                flights.all(|flight| !has_bytes_in(&flight.runs, &range))
            }),
            "a byte is in two flights"
        );
        let len_bytes = runs.values().map(|run| run.data.len() as u64).sum();
        let (sender, done) = watch::channel(None);
        let id = self.flight_next;
        self.flight_next += 1;
        self.flights.push(Flight {
            id,
            runs,
            span,
            limit: u64::MAX,
            len_bytes,
            done,
        });
        Some((id, sender))
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
        let last = maps.filter_map(|runs| last_journaled(runs, range));
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
        let touching = flights.filter(|flight| has_bytes_in(&flight.runs, range));
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
    pub(super) fn touch_ctime(&mut self, now: Timestamp) -> Timestamp {
        let ctime = if now > self.record.ctime {
            now
        } else {
            self.record.ctime.successor()
        };
        self.record.0.ctime = ctime;
        ctime
    }

    /// Sets modification and change time.
    pub(super) fn touch_mtime(&mut self, now: Timestamp) {
        self.record.0.mtime = self.touch_ctime(now);
    }

    /// Follows a write of bytes up to `end`, which are only in memory yet. The attributes are stored with the bytes, or
    /// by the flusher. Returns the number of the write.
    pub fn note_written(&mut self, end: u64, now: Timestamp, clears_privileges: bool) -> u64 {
        assert!(self.record.kind == InodeKind::Regular);
        self.record.0.size_bytes = self.record.size_bytes.max(end);
        self.touch_mtime(now);
        if clears_privileges {
            self.record.0.mode = without_privilege_bits(self.record.mode);
        }
        self.attr_dirty = true;
        self.sequence += 1;
        self.sequence
    }

    /// Follows a read. The flusher stores the time.
    pub fn note_atime(&mut self, now: Timestamp) {
        self.record.0.atime = now;
        self.attr_dirty = true;
    }

    /// Follows an entry of the journal that was found when the volume was opened: its attributes, if they are newer.
    ///
    /// An inode record that was stored after an entry has an equal or newer change time (change times of an inode
    /// only grow), and a newer one includes the entry's size and times. With equal change times either may be the
    /// later: a COMMIT changes no time, so its entries have the time of a record that may have been stored since
    /// their bytes came. Then the larger size is the later, because every cut of a file changes its change time.
    pub fn note_replayed(&mut self, entry: &JournalEntry) {
        assert!(!self.removed);
        self.journal_last = self.journal_last.max(entry.position);
        let record = &mut self.record.0;
        if entry.ctime > record.ctime {
            record.ctime = entry.ctime;
            record.mtime = entry.mtime;
            record.mode = entry.mode;
            record.size_bytes = entry.size_bytes;
        } else if entry.ctime == record.ctime && !planted::is(Bug::JournalSizeIgnored) {
            record.size_bytes = record.size_bytes.max(entry.size_bytes);
        }
        self.stable_size_bytes = self.record.size_bytes;
    }

    /// The record to store, with the size that the stored data has. Marks the attributes as stored.
    pub(super) fn stored_record(&mut self) -> InodeRecord {
        self.attr_dirty = false;
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
        fill(self.dirty.runs(), u64::MAX, range, pieces, gaps);
        for flight in self.flights.iter().rev() {
            if gaps.is_empty() {
                return;
            }
            let older: Vec<_> = std::mem::take(gaps);
            for gap in older {
                if gap.end <= flight.span.start || flight.span.end <= gap.start {
                    gaps.push(gap);
                } else {
                    fill(&flight.runs, flight.limit, gap, pieces, gaps);
                }
            }
        }
    }
}
