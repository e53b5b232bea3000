//! A change: some locked inodes, and the batch that stores what becomes of them. The only way to change what others
//! may read of an inode.
//!
//! Owns: that a change stores the record of every inode that it changed, that each of them gets the ticket of the
//! batch (no reader is shown what is not durable), and what must be true of a batch before it is submitted. Must not
//! know: why inodes change.
//!
//! A change has one of three ends:
//!
//! ```text
//!   begin_change ── touch, batch, extents ──┬── commit, commit_within ──> Committed: visible, with a ticket
//!                                           ├── commit_sharing, refused ─> as before the change
//!                                           └── dropped, nothing touched ─> as before the change
//! ```
//!
//! A caller that touched an inode must commit. What can fail comes before the first touch: a change that is dropped after
//! it would leave in memory what the metadata never gets. A drop asserts that in the builds of tests and of the
//! simulator, and logs an error in the product.

use std::sync::Arc;

use cairn_base::planted::{self, Bug};
use cairn_base::{Branch, Generation, Ino, SegmentId, Timestamp};
use cairn_meta::{Batch, InodeRecord, Key, KeyKind, MetaError, Owner, Ticket, UsageDelta};
use futures_util::FutureExt as _;
use smallvec::SmallVec;

use super::dirty::Run;
use super::extent_batch::{Why, put_extents};
use super::extents::ExtentChange;
use super::inode::{Inode, State};
use super::locked::{Guard, LOCKED_COUNT_MAX, Locked};
use super::usage::{owner_of, usage_of};
use super::{Kernel, journal_entry};
use crate::types::{Credentials, FsError, RequestId};

/// Who waits for the change of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shown {
    /// Nobody but a COMMIT: the change is of what clients do not see, such as the places of bytes.
    Quietly,
    /// All that read the attributes, or the entries of a directory: they wait until it is durable.
    ToAll,
}

/// What the batch does with the record of a touched inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The commit stores it.
    Stored,
    /// The commit stores it if the change of extents changed what the file uses.
    IfUsageChanged,
    /// The stored record stays as it is. Only for an orphan that is deleted in steps, for writes to the journal, whose
    /// entries have the attributes, and for planted bugs.
    Kept,
    /// The batch deletes it.
    Deleted,
}

/// What becomes of the bytes of an inode in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Journal {
    Untouched,
    /// The batch has bytes that a client wrote just now.
    Written,
    /// The batch has bytes that were in memory.
    Carried,
    /// Bytes that were in the journal became extents: it is not known any more which ones.
    Landed,
}

/// What a change does to one inode, and what the inode was before.
#[derive(Clone, Copy, Debug)]
struct Touch {
    shown: Shown,
    record: Record,
    journal: Journal,
    before: Before,
}

/// The state of an inode before a change, as far as a refused change has to bring it back.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// Whether the metadata has the inode.
    is_stored: bool,
    owner: Owner,
    used_bytes: u64,
    stored_bytes: u64,
    stable_size_bytes: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    attr_dirty: bool,
}

impl Before {
    fn of(state: &State) -> Self {
        Self {
            is_stored: true,
            owner: owner_of(&state.record),
            used_bytes: state.record.used_bytes,
            stored_bytes: state.record.stored_bytes,
            stable_size_bytes: state.stable_size_bytes,
            mtime: state.record.mtime,
            ctime: state.record.ctime,
            attr_dirty: state.attr_dirty,
        }
    }

    fn usage(&self) -> UsageDelta {
        UsageDelta {
            inodes: 1,
            file_bytes: self.used_bytes as i64,
            stored_bytes: self.stored_bytes as i64,
        }
    }
}

/// A touched inode, and the batch of its change. Only a change makes one.
pub(crate) struct Edit<'c> {
    pub state: &'c mut State,
    pub batch: &'c mut Batch,
    _of_change: (),
}

impl Edit<'_> {
    /// The attributes and other facts of the inode, to change them.
    pub fn record(&mut self) -> &mut InodeRecord {
        self.state.record.get_mut()
    }

    /// Sets the change time. It grows even when the clock stands still or steps back.
    pub fn touch_ctime(&mut self, now: Timestamp) {
        self.state.touch_ctime(now);
    }

    /// Sets modification and change time.
    pub fn touch_mtime(&mut self, now: Timestamp) {
        self.state.touch_mtime(now);
    }
}

/// The extents that a change gives to one of its inodes.
struct Extents {
    ino: Ino,
    why: Why,
    change: ExtentChange,
}

/// A change under way. See the module.
pub(crate) struct Change<'a> {
    kernel: &'a Kernel,
    locked: Locked<'a>,
    /// One for each locked inode; `None`: it is only read.
    touches: [Option<Touch>; LOCKED_COUNT_MAX],
    batch: Batch,
    /// The new inode, which the table gets just before the submission.
    made: Option<&'a Arc<Inode>>,
    request: Option<(RequestId, Ino)>,
    extents: Option<Extents>,
    is_over: bool,
}

/// A change that was submitted. Its inodes are still locked.
pub(crate) struct Committed<'a> {
    pub ticket: Ticket,
    pub locked: Locked<'a>,
    /// The extents that changed.
    pub extents: ExtentChange,
}

/// The end of a change that may be refused. Refused, nothing was stored, and the inodes are as they were, but for
/// their extents in memory, which are loaded again.
pub(crate) enum Commit<'a> {
    Done(Committed<'a>),
    /// A segment to share has no live records any more.
    Gone,
    /// The store took nothing, for this reason if it is known.
    Refused(Option<MetaError>),
}

/// When a change that the store does not take is undone. Each has the cases of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UndoWhen {
    /// Whenever the store takes nothing.
    Refused,
    /// When the batch is too large for the log. Otherwise the store has ended, and so does the volume: the bytes
    /// count as stored until then, and their waiters get the error with the ticket.
    TooLarge,
    /// When a segment to share is gone. Waiters get other errors with the ticket.
    Gone,
}

impl Kernel {
    /// Begins a change of locked inodes.
    pub fn begin_change<'a>(&'a self, locked: impl Into<Locked<'a>>) -> Change<'a> {
        let locked = locked.into();
        Change {
            kernel: self,
            locked,
            touches: [None; LOCKED_COUNT_MAX],
            batch: Batch::new(),
            made: None,
            request: None,
            extents: None,
            is_over: false,
        }
    }
}

impl<'a> Change<'a> {
    /// The state of a locked inode, to read it.
    pub fn of(&self, ino: Ino) -> &State {
        self.locked.of(ino)
    }

    pub fn batch(&mut self) -> &mut Batch {
        &mut self.batch
    }

    /// Touches an inode: clients see the change, and its record is stored.
    pub fn edit(&mut self, ino: Ino) -> Edit<'_> {
        self.touch(ino, Shown::ToAll, Record::Stored)
    }

    /// Touches an inode whose record is stored, without a change that clients see.
    pub fn edit_quietly(&mut self, ino: Ino) -> Edit<'_> {
        self.touch(ino, Shown::Quietly, Record::Stored)
    }

    /// Touches an inode. Touched again, it keeps the stronger of both: a record that is stored for one reason is
    /// stored, and a deleted one is deleted.
    pub fn touch(&mut self, ino: Ino, shown: Shown, record: Record) -> Edit<'_> {
        assert!(!self.is_over);
        let index = self.locked.index(ino);
        let (_, state) = self.locked.at_mut(index);
        let touch = self.touches[index].get_or_insert_with(|| Touch {
            shown,
            record,
            journal: Journal::Untouched,
            before: Before::of(state),
        });
        touch.shown = touch.shown.max(shown);
        touch.record = match (touch.record, record) {
            (Record::Deleted, _) | (_, Record::Deleted) => Record::Deleted,
            (Record::Stored, _) | (_, Record::Stored) => Record::Stored,
            (Record::IfUsageChanged, _) | (_, Record::IfUsageChanged) => Record::IfUsageChanged,
            (Record::Kept, Record::Kept) => Record::Kept,
        };
        Edit {
            state,
            batch: &mut self.batch,
            _of_change: (),
        }
    }

    /// Stores a touched inode that is in memory and not in the metadata yet: it had no name so far.
    pub fn store_first(&mut self, ino: Ino) {
        let index = self.locked.index(ino);
        let touch = self.touches[index].as_mut().expect("the inode was touched");
        touch.before.is_stored = false;
    }

    /// Adds a new inode. From the submission on the table has it: a reader that finds its name gets this one.
    pub fn make(&mut self, inode: &'a Arc<Inode>) -> Edit<'_> {
        assert!(self.made.is_none(), "one inode at a time");
        self.locked.add_new(inode);
        self.made = Some(inode);
        self.touch(inode.ino, Shown::ToAll, Record::Stored);
        self.store_first(inode.ino);
        self.edit(inode.ino)
    }

    /// Deletes the record of an inode that has no extents left. The caller uncounts it.
    pub fn delete_inode(&mut self, ino: Ino, shown: Shown) {
        let state = self.touch(ino, shown, Record::Deleted).state;
        assert!(state.removed);
        self.batch.delete(Key::inode(ino));
        if let Some(mark) = self.kernel.branches.mark_of_gone(ino) {
            self.batch.put(Key::gone(ino), mark);
        }
    }

    /// Stores a client's request with the change that fulfils it, and the inode that it is about.
    pub fn answer(&mut self, who: &Credentials, ino: Ino) {
        assert!(self.request.is_none());
        self.request = who.request.map(|request| (request, ino));
    }

    /// Gives a touched inode other extents: puts them into the batch, with what they change of counters and charges.
    pub fn put_extents(&mut self, why: Why, ino: Ino, change: ExtentChange) {
        assert!(self.extents.is_none(), "one file at a time");
        assert_in_tests!(change.is_in_order(), "extents of {ino}");
        let index = self.locked.index(ino);
        assert!(self.touches[index].is_some());
        let (_, state) = self.locked.at_mut(index);
        let record = state.record.get_mut();
        put_extents(why, ino, record, &change, &mut self.batch);
        self.extents = Some(Extents { ino, why, change });
    }

    /// Puts bytes that a client just wrote to a file into the journal. With `extends`, they moved its end.
    pub fn journal_written(&mut self, ino: Ino, offset: u64, data: bytes::Bytes, extends: bool) {
        assert!(!data.is_empty());
        let shown = match extends {
            // A reader of other bytes sees the new end of the file, too.
            true => Shown::ToAll,
            false => Shown::Quietly,
        };
        let Edit { state, batch, .. } = self.touch(ino, shown, Record::Kept);
        // The entry tells the size after a crash: it covers its own bytes.
        assert!(state.stable_size_bytes >= offset + data.len() as u64);
        batch.journal(journal_entry(state, ino, offset, data));
        self.note_journal(ino, Journal::Written);
    }

    /// Puts the runs in memory that are `wanted` into the journal: at least all that are in memory alone. Returns how
    /// many.
    pub fn journal_runs(&mut self, ino: Ino, wanted: impl Fn(&Run) -> bool) -> u64 {
        let Edit { state, batch, .. } = self.touch(ino, Shown::Quietly, Record::Kept);
        let mut count = 0;
        for (start, run) in state.dirty.runs() {
            if wanted(run) {
                // A slice may keep a large receive buffer in memory; the log copies its bytes anyway.
                batch.journal(journal_entry(state, ino, *start, run.data.clone()));
                count += 1;
            } else {
                // It would count as stable with the others.
                assert!(run.journal.is_some());
            }
        }
        self.note_journal(ino, Journal::Carried);
        count
    }

    /// Bytes that may have been in the journal become extents of a touched inode.
    pub fn note_landed(&mut self, ino: Ino) {
        self.note_journal(ino, Journal::Landed);
    }

    fn note_journal(&mut self, ino: Ino, journal: Journal) {
        let index = self.locked.index(ino);
        let touch = self.touches[index].as_mut().expect("the inode was touched");
        assert!(touch.journal == Journal::Untouched || touch.journal == journal);
        touch.journal = journal;
    }
}

/// The ends of a change.
impl<'a> Change<'a> {
    /// Submits the change.
    pub fn commit(mut self) -> Committed<'a> {
        let batch = self.finished_batch();
        let (ticket, generation) = self.kernel.meta.submit_in(batch);
        self.done(ticket, generation)
    }

    /// Submits the change unless the branch is deleted. Then the metadata gets nothing, and the inodes of the branch
    /// are of no use any more.
    pub fn commit_within(mut self, branch: Branch) -> Result<Committed<'a>, FsError> {
        let batch = self.finished_batch();
        let submit = || self.kernel.meta.submit_in(batch);
        match self.kernel.branches.within(branch, submit) {
            Ok((ticket, generation)) => Ok(self.done(ticket, generation)),
            Err(error) => {
                self.undo();
                Err(error)
            }
        }
    }

    /// Submits the change if each of these segments has a live record at that moment: it refers to records of others
    /// there.
    pub fn commit_sharing(mut self, segments: &[SegmentId], undo: UndoWhen) -> Commit<'a> {
        let batch = self.finished_batch();
        let is_sharing = !segments.is_empty();
        let submitted = match is_sharing {
            true => self.kernel.meta.submit_sharing_in(batch, segments),
            false => Some(self.kernel.meta.submit_in(batch)),
        };
        let Some((ticket, generation)) = submitted else {
            self.undo();
            return Commit::Gone;
        };
        if ticket != Ticket::REFUSED || undo == UndoWhen::Gone {
            return Commit::Done(self.done(ticket, generation));
        }
        let why = self.kernel.meta.durable(ticket).now_or_never();
        let why = why.and_then(|known| known.err());
        let is_too_large = matches!(why, Some(MetaError::BatchTooLarge { .. }));
        match undo == UndoWhen::Refused || is_too_large {
            true => {
                self.undo();
                Commit::Refused(why)
            }
            false => Commit::Done(self.done(ticket, generation)),
        }
    }

    /// For a planted bug: submits the batch so far, as if it were whole.
    pub fn commit_first_half(&mut self) -> Ticket {
        assert!(planted::is(Bug::RenameInTwoSteps));
        let half = std::mem::take(&mut self.batch);
        self.kernel.meta.submit_in(half).0
    }

    /// For a planted bug: ends as if the batch that was submitted before were whole. Returns the rest.
    pub fn commit_second_half(mut self, ticket: Ticket) -> (Committed<'a>, Batch) {
        assert!(planted::is(Bug::RenameInTwoSteps));
        let rest = self.finished_batch();
        (self.done(ticket, Generation::FIRST), rest)
    }

    /// Adds what every change has to its batch: the records of the touched inodes, and the request. The table gets the
    /// new inodes.
    fn finished_batch(&mut self) -> Batch {
        assert!(!self.is_over);
        assert_in_tests!(
            self.has_only_touched_keys(),
            "keys of inodes that are not touched"
        );
        for (index, touch) in self.touches.iter().enumerate() {
            let Some(touch) = touch else {
                continue;
            };
            let (ino, state) = self.locked.at_mut(index);
            let is_stored = match touch.record {
                Record::Stored => true,
                Record::IfUsageChanged => state.record.stored_bytes != touch.before.stored_bytes,
                Record::Kept | Record::Deleted => false,
            };
            if is_stored {
                self.batch
                    .put(Key::inode(ino), state.stored_record().encode());
            }
        }
        assert_in_tests!(
            self.are_charges_right(),
            "charges differ from what records say"
        );
        if let Some((request, ino)) = self.request {
            self.kernel.requests.note(&mut self.batch, request, ino);
        }
        if let Some(inode) = self.made {
            // Before any lookup can find it: a listing of the directory would otherwise add it, too.
            self.kernel.inodes.insert(Arc::clone(inode));
        }
        std::mem::take(&mut self.batch)
    }

    /// The batch is submitted: each touched inode gets its ticket, and the extents their birth.
    fn done(mut self, ticket: Ticket, generation: Generation) -> Committed<'a> {
        // It would count as durable at once.
        assert!(ticket > Ticket::NONE);
        for (index, touch) in self.touches.iter().enumerate() {
            if let Some(touch) = touch {
                let (_, state) = self.locked.at_mut(index);
                touch.stamp(state, ticket);
            }
        }
        let mut extents = ExtentChange::default();
        if let Some(of) = self.extents.take() {
            // Bytes that only moved keep their birth: snapshots see the same extent at another place.
            if of.why == Why::Changed && !planted::is(Bug::BirthNotSettled) {
                let index = self.locked.index(of.ino);
                let (_, state) = self.locked.at_mut(index);
                state.extents.settle(&of.change, generation);
            }
            extents = of.change;
        }
        self.is_over = true;
        Committed {
            ticket,
            locked: std::mem::take(&mut self.locked),
            extents,
        }
    }

    /// Nothing was stored: the touched inodes use what they used before, and load their extents again.
    fn undo(mut self) {
        assert!(!self.is_over);
        // The table has it, and others may know it by now.
        assert!(self.made.is_none());
        for (index, touch) in self.touches.iter().enumerate() {
            let Some(Touch { before, .. }) = touch else {
                continue;
            };
            let (ino, state) = self.locked.at_mut(index);
            state.stable_size_bytes = before.stable_size_bytes;
            let record = state.record.get_mut();
            (record.used_bytes, record.stored_bytes) = (before.used_bytes, before.stored_bytes);
            (record.mtime, record.ctime) = (before.mtime, before.ctime);
            state.attr_dirty |= before.attr_dirty;
            if self.extents.as_ref().is_some_and(|of| of.ino == ino) {
                state.extents.forget_all();
            }
        }
        self.is_over = true;
    }
}

impl Touch {
    fn stamp(&self, state: &mut State, ticket: Ticket) {
        // Tickets grow with each submission, and the lock of the inode was held over this one.
        assert!(state.ticket <= ticket || state.ticket == Ticket::REFUSED);
        state.ticket = ticket;
        if self.shown == Shown::ToAll {
            state.changed = ticket;
        }
        match self.journal {
            Journal::Untouched => {}
            Journal::Written => {
                state.journaled = ticket;
                state.journal_last = ticket.0;
            }
            Journal::Carried => {
                state.journal_last = ticket.0;
                state.dirty.mark_journaled(ticket.0);
            }
            Journal::Landed => state.changed = state.changed.max(state.journaled),
        }
    }
}

/// What must be true of a batch.
impl Change<'_> {
    /// Whether the batch changes records, extents and entries of touched inodes alone, and leaves the records that it
    /// stores to the commit. A walk over all keys.
    fn has_only_touched_keys(&self) -> bool {
        self.batch.keys().all(|key| {
            let Ok(kind) = key.kind() else {
                return false;
            };
            let touch = |ino| self.locked.find(ino).and_then(|index| self.touches[index]);
            match kind {
                KeyKind::Inode(ino) => touch(ino).is_some_and(|it| it.record == Record::Deleted),
                KeyKind::Extent { ino, .. } | KeyKind::Xattr { ino, .. } => touch(ino).is_some(),
                KeyKind::Dirent { dir, .. } | KeyKind::Cookie { dir, .. } => touch(dir).is_some(),
                _ => true,
            }
        })
    }

    /// Whether each owner is charged with what the records say: as much more as its inodes use more.
    fn are_charges_right(&self) -> bool {
        // They do just that, or take a part of the batch away.
        let are_wrong = [
            Bug::ChownNotCharged,
            Bug::CutNotGivenBack,
            Bug::RenameInTwoSteps,
            Bug::RenameNotCharged,
        ];
        if are_wrong.into_iter().any(planted::is) {
            return true;
        }
        let mut sums: SmallVec<[(Owner, UsageDelta); 4]> = SmallVec::new();
        let mut add =
            |owner: Owner, delta: UsageDelta| match sums.iter_mut().find(|(of, _)| *of == owner) {
                Some((_, sum)) => {
                    sum.inodes += delta.inodes;
                    sum.file_bytes += delta.file_bytes;
                    sum.stored_bytes += delta.stored_bytes;
                }
                None => sums.push((owner, delta)),
            };
        for (owner, delta) in self.batch.charges() {
            add(*owner, *delta);
        }
        for (index, touch) in self.touches.iter().enumerate() {
            let Some(touch) = touch else {
                continue;
            };
            let (_, state) = self.locked.at(index);
            if touch.before.is_stored {
                add(touch.before.owner, touch.before.usage());
            }
            let mut after = usage_of(&state.record);
            if touch.record == Record::Deleted {
                // A crash while an orphan was deleted in steps leaves bytes in its record that it no longer has.
                after.inodes = 0;
            }
            add(owner_of(&state.record), -after);
        }
        sums.iter().all(|(_, sum)| sum.is_zero())
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.is_over || self.touches.iter().all(Option::is_none) || std::thread::panicking() {
            return;
        }
        assert_in_tests!(false, "a change that touched inodes was not committed");
        tracing::error!(
            volume = %self.kernel.volume,
            "a change was dropped: memory has what the metadata never gets. This is a bug; reopen the volume"
        );
    }
}

impl Commit<'_> {
    /// The ticket, if the change was submitted.
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Done(committed) => Some(committed.ticket),
            Self::Gone | Self::Refused(_) => None,
        }
    }
}

impl<'a> Committed<'a> {
    /// The state of an inode of the change.
    pub fn of(&self, ino: Ino) -> &State {
        self.locked.of(ino)
    }

    /// The lock of the only inode of the change.
    pub fn into_one(self) -> Guard<'a> {
        self.locked.into_one()
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::LogPosition;
    use cairn_meta::InodeKind;

    use super::*;
    use crate::kernel::ExtentMap;

    #[test]
    fn inodes_get_the_tickets_that_their_readers_wait_for() {
        let ticket = |position| Ticket(LogPosition(position));
        // Then the change gets ticket 9: changed, journaled, and the last entry of the journal after it.
        let cases = [
            (
                "places moved",
                Shown::Quietly,
                Journal::Untouched,
                [5, 7, 3],
            ),
            ("attributes", Shown::ToAll, Journal::Untouched, [9, 7, 3]),
            ("an overwrite", Shown::Quietly, Journal::Written, [5, 9, 9]),
            ("an append", Shown::ToAll, Journal::Written, [9, 9, 9]),
            ("a commit", Shown::Quietly, Journal::Carried, [5, 7, 9]),
            ("a landing", Shown::Quietly, Journal::Landed, [7, 7, 3]),
        ];
        for (name, shown, journal, [changed, journaled, last]) in cases {
            let record = InodeRecord::new(InodeKind::Regular);
            let mut state = State::new(record, ExtentMap::default());
            (state.ticket, state.changed) = (ticket(7), ticket(5));
            (state.journaled, state.journal_last) = (ticket(7), LogPosition(3));
            let touch = Touch {
                shown,
                record: Record::Stored,
                journal,
                before: Before::of(&state),
            };
            touch.stamp(&mut state, ticket(9));
            assert_eq!(state.ticket(), ticket(9), "{name}");
            assert_eq!(state.changed(), ticket(changed), "{name}");
            assert_eq!(state.journaled, ticket(journaled), "{name}");
            assert_eq!(state.journal_last(), LogPosition(last), "{name}");
        }
    }

    #[test]
    #[should_panic(expected = "state.ticket <= ticket")]
    fn tickets_only_grow() {
        let mut state = State::new(InodeRecord::new(InodeKind::Regular), ExtentMap::default());
        state.ticket = Ticket(LogPosition(9));
        let touch = Touch {
            shown: Shown::Quietly,
            record: Record::Stored,
            journal: Journal::Untouched,
            before: Before::of(&state),
        };
        touch.stamp(&mut state, Ticket(LogPosition(8)));
    }
}
