//! The log of a term: a group is acknowledged when all disks of the open ensemble have it.
//!
//! Owns: the choice of disks, the order of file, transaction and acknowledgement when the log moves to another file.
//! Must not know: the contents of a group, the callers that wait.
//!
//! A disk that fails or is late ends the ensemble before the first group that some disk lacks. That group and all later
//! ones go to a new file on other disks. One transaction seals the old range and opens the new one; then the group is
//! acknowledged. From the decision on, the old file gets no more writes, and nothing is acknowledged through it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::disk::DiskError;
use cairn_base::planted::{self, Bug};
use cairn_base::{AlignedBuf, Backoff, DiskId, Epoch, LogPosition, NodeId};
use cairn_formats::metadata::log::{
    BLOCK_BYTES, FileHeader, FileUse, MEMBER_COUNT_MAX, RecordBuf, TERM_COUNT_MAX, Term,
};
use cairn_formats::shard::footer::{SHARD_CAPACITY_BYTES_MAX, file_len_bytes};
use cairn_formats::shard::name::ShardName;
use cairn_shard::{ShardError, ShardErrorKind, ShardService, ShardWrite};
use tokio::sync::Notify;

use super::in_place::exact_bytes;
use super::list::AgreedList;
use super::recover::FoundEnsembles;
use super::{Ensemble, Seat};
use crate::error::MetaError;
use crate::log::fan_out::{Done, Work, all_or_late};
use crate::log::files::{least_file_bytes, shorter};
use crate::log::{History, LogFuture, LogStatus, LogWriter};
use crate::tasks::Tasks;

/// A disk that failed or was late is not chosen again within this time.
const REST: Duration = Duration::from_secs(10);
/// With too few disks, the pause before another search: the first one and the longest one.
const LOOK_AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(2));
/// Pause between two tries to begin a file: the first one and the longest one.
const TRY_AGAIN: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// A takeover that finds no room in this number of tries fails: another node may have room, and the waiting callers get
/// the reason.
const FULL_TRIES_MAX: u32 = 4;
/// A log that goes on leaves this part of each disk free beside its files: takeovers need files, too, and the next
/// owner needs room for its state.
const ROOM_KEPT_PART: u64 = 256;
/// The shortest files of a log that goes on leave this part of that reserve: without it nothing could be deleted.
const LAST_ROOM_PART: u64 = 4;
/// Interval at which an ensemble with too few disks looks for more.
pub(super) const GROW_AFTER: Duration = Duration::from_secs(2);
/// Bytes written at a time when records are copied into a new file.
pub(super) const CARRY_BYTES: usize = 4 << 20;

/// A stop signal, set once and seen by all clones.
#[derive(Clone, Default)]
pub(crate) struct Stopped(Arc<(AtomicBool, Notify)>);

impl Stopped {
    pub fn stop(&self) {
        self.0.0.store(true, Ordering::Release);
        self.0.1.notify_waiters();
    }

    fn is_stopped(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }
}

/// Bytes of a file that are available for records, without its footer.
pub(super) fn capacity_of(len_bytes: u64) -> u64 {
    let align = IO_ALIGN_BYTES as u64;
    let fits = |blocks: u64| file_len_bytes(blocks * align).is_some_and(|len| len <= len_bytes);
    let (mut low, mut high) = (0, SHARD_CAPACITY_BYTES_MAX / align);
    while low < high {
        let middle = (low + high).div_ceil(2);
        match fits(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low * align
}

/// Outcome of making a file on some disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Created {
    Made,
    /// A disk has no room for it.
    Full,
    /// A disk failed or did not answer in time.
    Failed,
}

/// Outcome of copying the retained log to some disks.
enum Carried {
    Done(Vec<Ensemble>),
    Full,
    Failed,
}

impl From<Created> for Carried {
    /// The outcome that a failure to make the file leads to.
    fn from(created: Created) -> Self {
        match created {
            Created::Full => Self::Full,
            Created::Made | Created::Failed => Self::Failed,
        }
    }
}

/// The purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// For a log that goes on.
    Term,
    /// For a takeover: without it nothing is served, and deletions free no space.
    Takeover,
}

/// The file that records go to.
struct Open {
    number: u64,
    /// Part of the checksum of each record.
    file_use: FileUse,
    from: LogPosition,
    /// `from - 1` before the first record.
    last: LogPosition,
    /// Offset of the next record.
    offset: u64,
    disks: Vec<Arc<dyn ShardService>>,
}

/// Writer of the log.
pub(crate) struct EnsembleWriter {
    pub(super) env: cairn_base::env::Env,
    tasks: Tasks,
    pub(super) seat: Seat,
    pub(super) list: Arc<AgreedList>,
    stopped: Stopped,
    /// Usual length of a file, where disks have room.
    pub(super) file_bytes: u64,
    /// Number of files that are shorter, for lack of room.
    short_file_count: u64,
    /// Capacity of the open file, or of the one that is tried next.
    pub(super) capacity_bytes: u64,
    made_for: For,
    /// The parts that the history was read from, until the term has begun.
    pub(super) parts: Vec<Ensemble>,
    pub(super) write_wait: Duration,
    terms: Vec<Term>,
    /// Sealed ensembles that may still be needed, oldest first.
    pub(super) sealed: Vec<Ensemble>,
    open: Open,
    /// The ensemble to be sealed, from the decision to move on until the transaction succeeds. It gets no more writes,
    /// and nothing is acknowledged through it.
    ended: Option<Ensemble>,
    counter: u64,
    /// Files begun since the last change of the list, and those that it named before. The next list will not name all
    /// of them.
    pub(super) begun: Vec<Ensemble>,
    pub(super) retained_from: LogPosition,
    /// Time of the next check whether sealed ranges could have more copies.
    pub(super) widen_at: Duration,
    /// Resting disks, with the end of each rest.
    resting: BTreeMap<DiskId, Duration>,
    /// The resting disks that had no room in the last try.
    pub(super) full: BTreeSet<DiskId>,
    /// Time of the next check for more disks.
    grow_at: Duration,
    /// Room that the next owner finds on as many nodes as there are copies, as of the last check. `room_at` is the time
    /// of the next check.
    room_bytes: Option<u64>,
    room_at: Duration,
    syncs: u64,
}

/// Bytes that a log that goes on leaves free on a disk beside its files.
fn room_kept_bytes(disk: &dyn ShardService) -> u64 {
    let space = disk.space().ok();
    space.map_or(0, |space| space.total_bytes / ROOM_KEPT_PART)
}

/// The part of that reserve that an owner leaves free at all times once it serves the volume.
pub(crate) fn last_room_bytes(disk: &dyn ShardService) -> u64 {
    room_kept_bytes(disk) / LAST_ROOM_PART
}

/// Writes the header of a new use to a file. Until this returns, the file may hold records of its last use, in this
/// volume or another, below the header of that use. So no record is written before.
pub(super) async fn begin_use(
    disk: &Arc<dyn ShardService>,
    epoch: Epoch,
    name: ShardName,
    header: Bytes,
) -> Result<(), ShardError> {
    let write = ShardWrite {
        offset: 0,
        parts: vec![header],
    };
    disk.clone().append(epoch, name, vec![write]).await
}

/// Begins a term: puts the retained log on as many disks as are wanted, and makes that the log with one transaction.
/// Nothing may be served before this returns.
pub(super) async fn begin(
    found: FoundEnsembles,
    term: Term,
) -> Result<(EnsembleWriter, History), MetaError> {
    let FoundEnsembles {
        env,
        tasks,
        settings,
        seat,
        list,
        mut history,
        parts,
        stopped,
    } = found;
    if history.terms.len() + 1 > TERM_COUNT_MAX {
        return Err(MetaError::TooManyTerms {
            volume: seat.volume,
            count: history.terms.len(),
        });
    }
    history.terms.push(term);
    let file_bytes = settings.log_file_bytes.max(largest_record(&history));
    let file_bytes = file_bytes.next_multiple_of(IO_ALIGN_BYTES as u64);
    let next = LogPosition(history.end.0 + 1);
    let mut writer = EnsembleWriter {
        file_bytes,
        short_file_count: 0,
        capacity_bytes: file_bytes,
        made_for: For::Takeover,
        parts,
        write_wait: settings.log_write_wait,
        terms: history.terms.clone(),
        sealed: Vec::new(),
        open: Open {
            number: 0,
            file_use: FileUse(0),
            from: next,
            last: history.end,
            offset: u64::MAX,
            disks: Vec::new(),
        },
        ended: None,
        counter: 0,
        begun: Vec::new(),
        retained_from: history.retained_from,
        widen_at: Duration::ZERO,
        resting: BTreeMap::new(),
        full: BTreeSet::new(),
        grow_at: Duration::ZERO,
        room_bytes: None,
        room_at: Duration::ZERO,
        syncs: 0,
        env,
        tasks,
        seat,
        list,
        stopped,
    };
    writer.carry(&history).await?;
    writer.made_for = For::Term;
    writer.parts = Vec::new();
    Ok((writer, history))
}

/// Bytes of the largest record, with its framing.
fn largest_record(history: &History) -> u64 {
    let records = history.records.iter().map(|record| record.payload.len());
    records.max().unwrap_or(0) as u64 + 2 * BLOCK_BYTES as u64
}

impl EnsembleWriter {
    /// Copies the retained log to new disks, or keeps it in place where they have no room, and makes the result the
    /// log.
    async fn carry(&mut self, history: &History) -> Result<(), MetaError> {
        self.begun = self.list.get().ensembles;
        let before = self.begun.len();
        let least = least_file_bytes(largest_record(history));
        let mut pauses = TRY_AGAIN;
        let mut full_count = 0;
        let ensembles = loop {
            let disks = self.choose().await?;
            let capacity = self.capacity_bytes;
            match self.carry_to(history, &disks).await? {
                Carried::Done(ensembles) => break ensembles,
                Carried::Failed => {}
                // A smaller file is tried next.
                Carried::Full if self.capacity_bytes == capacity && capacity > least => {}
                Carried::Full => {
                    // This try has taken room that the retained log may need to stay in place.
                    self.give_room_back(before).await;
                    let shorter = self.capacity_bytes;
                    if let Some(ensembles) = self.keep_in_place(history).await? {
                        tracing::warn!(volume = %self.seat.volume, "the disks have no room for another copy of the log: it stays where it is, with the copies that there are");
                        break ensembles;
                    }
                    self.capacity_bytes = shorter;
                    full_count += u32::from(capacity <= least);
                    if full_count >= FULL_TRIES_MAX {
                        self.leave_made(before);
                        return Err(self.no_room(history));
                    }
                }
            }
            self.leave_try(before, &mut pauses).await;
        };
        let open = ensembles.last().cloned();
        match planted::is(Bug::ServedBeforeTakeoverIsAgreed) {
            true => self.agree_later(ensembles.clone()),
            false => self.agree(ensembles.clone()).await?,
        }
        self.sealed = ensembles;
        self.sealed.pop();
        if let Some(open) = open {
            self.open.from = open.from;
        }
        Ok(())
    }

    fn no_room(&self, history: &History) -> MetaError {
        let disks = self.seat.disks.choices().into_iter();
        let disks: Vec<String> = disks.map(|(_, disk)| disk.label().to_owned()).collect();
        MetaError::LogFull {
            volume: self.seat.volume,
            needed_bytes: exact_bytes(&history.records),
            disks: disks.join(", "),
        }
    }

    /// If a disk fails, the caller tries others.
    async fn carry_to(
        &mut self,
        history: &History,
        disks: &[Arc<dyn ShardService>],
    ) -> Result<Carried, MetaError> {
        let next = LogPosition(history.end.0 + 1);
        let first = history.records.first().map_or(next, |record| record.first);
        let ids: Vec<DiskId> = disks.iter().map(|disk| disk.id()).collect();
        let largest = largest_record(history);
        let mut ensembles = Vec::new();
        match self.create(disks, first, largest).await? {
            Created::Made => {}
            not_made => return Ok(not_made.into()),
        }
        let mut buffered: Vec<Bytes> = Vec::new();
        let mut buffered_bytes = 0;
        for record in &history.records {
            let positions = (record.first, record.last);
            let mut copy =
                RecordBuf::copy_of(&record.payload, positions, record.epoch, record.term);
            let len_bytes = copy.len_bytes();
            let end = self.open.offset + buffered_bytes as u64;
            let is_full = end + len_bytes > self.capacity_bytes;
            if is_full || buffered_bytes >= CARRY_BYTES {
                if !self.write(std::mem::take(&mut buffered)).await? {
                    return Ok(Carried::Failed);
                }
                buffered_bytes = 0;
            }
            if is_full {
                ensembles.push(Ensemble {
                    number: self.open.number,
                    from: self.open.from,
                    to: Some(self.open.last),
                    disks: ids.clone(),
                });
                match self.create(disks, record.first, largest).await? {
                    Created::Made => {}
                    not_made => return Ok(not_made.into()),
                }
            }
            copy.seal(self.open.file_use, history.retained_from);
            self.open.last = record.last;
            if planted::is(Bug::TakeoverCopiesNothing) {
                continue;
            }
            buffered_bytes += copy.bytes.len();
            buffered.push(copy.bytes.freeze());
        }
        if !buffered.is_empty() && !self.write(buffered).await? {
            return Ok(Carried::Failed);
        }
        ensembles.push(self.open_ensemble());
        Ok(Carried::Done(ensembles))
    }

    /// The open ensemble, as the list names it.
    pub(super) fn open_ensemble(&self) -> Ensemble {
        Ensemble {
            number: self.open.number,
            from: self.open.from,
            to: None,
            disks: self.open.disks.iter().map(|disk| disk.id()).collect(),
        }
    }

    /// Chooses disks for a file, on distinct nodes, and waits until there are enough. A silent disk is chosen only
    /// where the others are too few: each change would wait for it first. [`Self::widen_sealed`] adds it when it
    /// answers again.
    pub(super) async fn choose(&mut self) -> Result<Vec<Arc<dyn ShardService>>, MetaError> {
        let mut is_told = false;
        let mut pauses = LOOK_AGAIN;
        loop {
            if self.stopped.is_stopped() {
                return Err(MetaError::Closed);
            }
            let mut chosen = self.choices();
            if chosen.len() < self.seat.copies.least() {
                chosen = self.choices_among(|_| true);
            }
            if chosen.len() >= self.seat.copies.least() {
                return Ok(chosen);
            }
            if !is_told {
                is_told = true;
                tracing::error!(volume = %self.seat.volume, disks = chosen.len(), needed = self.seat.copies.least(), "too few nodes have a disk that works: the volume takes no changes until more are back");
            }
            // Resting disks are better than none.
            self.resting.clear();
            let stopped = self.stopped.clone();
            let notified = stopped.0.1.notified();
            let wait = self.env.clock.sleep(pauses.pause());
            futures_util::future::select(Box::pin(notified), wait).await;
        }
    }

    /// Disks that are not silent, up to the number wanted.
    fn choices(&self) -> Vec<Arc<dyn ShardService>> {
        self.choices_among(|disk| !disk.is_silent())
    }

    fn choices_among(&self, fit: impl Fn(&dyn ShardService) -> bool) -> Vec<Arc<dyn ShardService>> {
        let is_one_enough = planted::is(Bug::LogCopiesOnOneNode);
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut chosen = Vec::new();
        for (node, disk) in self.seat.disks.choices() {
            let is_fit = fit(&*disk) && !disk.is_avoided() && !self.is_resting_disk(disk.id());
            let is_other = is_one_enough || !nodes.contains(&node);
            if is_fit && is_other && chosen.len() < self.seat.copies.wanted() {
                nodes.push(node);
                chosen.push(disk);
            }
        }
        chosen
    }

    /// Lets full disks be chosen again: they may have room for a smaller file.
    pub(super) fn try_full_ones(&mut self) {
        for disk in std::mem::take(&mut self.full) {
            self.resting.remove(&disk);
        }
    }

    pub(super) fn is_resting_disk(&self, disk: DiskId) -> bool {
        let now = self.env.clock.monotonic();
        self.resting.get(&disk).is_some_and(|until| *until > now)
    }

    pub(super) fn rest(&mut self, disk: &dyn ShardService, why: &dyn std::fmt::Display) {
        tracing::warn!(volume = %self.seat.volume, disk = disk.label(), "the log goes on without this disk: {why}");
        let until = self.env.clock.monotonic().saturating_add(REST);
        self.resting.insert(disk.id(), until);
        self.list.note_unswept(disk.id());
    }

    /// The header of a file of this term.
    pub(super) fn header(&self, number: u64, set: Vec<DiskId>) -> FileHeader {
        FileHeader {
            volume: self.seat.volume,
            sequence: number,
            file_use: self.new_use(number),
            speaks_as: number,
            file_len_bytes: 0,
            retained_from: self.retained_from,
            copies: self.seat.copies.wanted() as u8,
            members: set.iter().copied().take(MEMBER_COUNT_MAX).collect(),
            set,
            history: self.terms.clone(),
        }
    }

    /// Makes the file of a new ensemble on all of `disks`, large enough for a record of the given size. From here on it
    /// is the file that records go to, whether making it succeeds or not.
    pub(super) async fn create(
        &mut self,
        disks: &[Arc<dyn ShardService>],
        from: LogPosition,
        record_bytes: u64,
    ) -> Result<Created, MetaError> {
        self.counter += 1;
        let number = self.seat.number(self.counter)?;
        let header = self.header(number, disks.iter().map(|disk| disk.id()).collect());
        self.open = Open {
            number,
            file_use: header.file_use,
            from,
            last: LogPosition(from.0.saturating_sub(1)),
            offset: 0,
            disks: disks.to_vec(),
        };
        self.begun.push(self.open_ensemble());
        let header = header.encode().freeze();
        let least = least_file_bytes(record_bytes);
        let (epoch, name, capacity) = (self.seat.epoch, self.name(), self.capacity_bytes);
        let (made_for, is_short) = (self.made_for, capacity < self.file_bytes);
        let (is_made, full) = self
            .on_each(move |disk| {
                let header = header.clone();
                let kept_bytes = match (made_for, capacity <= least) {
                    (For::Takeover, true) => 0,
                    (For::Term, _) if planted::is(Bug::LogTakesTheLastRoom) => 0,
                    (For::Term, true) => last_room_bytes(&*disk),
                    // While disks have some room, no file takes the last of it.
                    (_, false) if is_short => room_kept_bytes(&*disk).max(capacity),
                    (_, false) => room_kept_bytes(&*disk),
                };
                Box::pin(async move {
                    disk.clone()
                        .create(epoch, name, capacity, kept_bytes)
                        .await?;
                    begin_use(&disk, epoch, name, header).await
                })
            })
            .await?;
        self.open.offset = BLOCK_BYTES as u64;
        // Where no other disks have room, the same disks take a shorter file: a full pool must be able to start, and to
        // accept deletions.
        if capacity > least && !full.is_empty() && self.choices().len() < disks.len() {
            for disk in &full {
                self.resting.remove(disk);
            }
            self.capacity_bytes = shorter(capacity, least);
        }
        self.short_file_count += u64::from(is_made && capacity < self.file_bytes);
        Ok(match (is_made, full.is_empty()) {
            (true, _) => Created::Made,
            (false, false) => Created::Full,
            (false, true) => Created::Failed,
        })
    }

    fn name(&self) -> ShardName {
        self.seat.name(self.open.number)
    }

    /// A new use of a file, shared by its copies on all disks.
    pub(super) fn new_use(&self, number: u64) -> FileUse {
        match planted::is(Bug::LogFileUseIsItsNumber) {
            true => FileUse(number.into()),
            false => FileUse(self.env.entropy.u128()),
        }
    }

    /// Appends to the open file; false if some disk lacks the record.
    async fn write(&mut self, parts: Vec<Bytes>) -> Result<bool, MetaError> {
        let (epoch, name, offset) = (self.seat.epoch, self.name(), self.open.offset);
        self.open.offset += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        self.on_all(move |disk| {
            let write = ShardWrite {
                offset,
                parts: parts.clone(),
            };
            disk.append(epoch, name, vec![write])
        })
        .await
    }

    /// Runs a step on all disks of the open file. False if one failed or is late; such disks rest.
    async fn on_all(
        &mut self,
        step: impl Fn(Arc<dyn ShardService>) -> Work<(), ShardError>,
    ) -> Result<bool, MetaError> {
        let (is_whole, _) = self.on_each(step).await?;
        Ok(is_whole)
    }

    /// As [`Self::on_all`]; also returns the disks that have no room.
    async fn on_each(
        &mut self,
        step: impl Fn(Arc<dyn ShardService>) -> Work<(), ShardError>,
    ) -> Result<(bool, Vec<DiskId>), MetaError> {
        let disks = self.open.disks.clone();
        self.syncs += disks.len() as u64;
        let work = disks.iter().map(|disk| step(disk.clone())).collect();
        let clock = self.env.clock.clone();
        let results = all_or_late(&*clock, self.write_wait, work).await;
        let mut is_whole = true;
        let mut full = Vec::new();
        for (disk, result) in disks.iter().zip(results) {
            match result {
                Done::Answered(Ok(())) => continue,
                Done::Answered(Err(error)) => match error {
                    ShardError::Fenced { promised, .. } => return Err(self.fenced(promised)),
                    error => {
                        if error.kind() == ShardErrorKind::Full {
                            full.push(disk.id());
                            self.full.insert(disk.id());
                        }
                        self.rest(&**disk, &error);
                    }
                },
                Done::Late(work) if planted::is(Bug::LateDiskCountsAsWritten) => {
                    self.tasks.spawn("log-late", async move {
                        drop(work.await);
                    });
                    continue;
                }
                Done::Late(work) => {
                    self.rest(&**disk, &"it does not answer");
                    // The late write goes to a file that does not count any more.
                    self.tasks.spawn("log-late", async move {
                        drop(work.await);
                    });
                }
            }
            is_whole = false;
        }
        Ok((is_whole, full))
    }

    pub(super) fn fenced(&self, promised: Epoch) -> MetaError {
        MetaError::Fenced {
            volume: self.seat.volume,
            epoch: self.seat.epoch,
            promised,
        }
    }

    async fn agree(&mut self, ensembles: Vec<Ensemble>) -> Result<(), MetaError> {
        let agreed = ensembles.clone();
        let mut before = self.list.get().ensembles;
        if planted::is(Bug::LogFileRemovedBeforeItIsAgreed) {
            let mut gone = before.clone();
            gone.retain(|part| agreed.iter().all(|named| named.number != part.number));
            self.remove(&gone);
        }
        self.list.change(|list| list.ensembles = ensembles).await?;
        before.append(&mut self.begun);
        for part in &mut before {
            // A range that stays in place may have other disks from now on.
            let named = agreed.iter().find(|named| named.number == part.number);
            let is_named = |disk: &DiskId| named.is_some_and(|named| named.disks.contains(disk));
            part.disks.retain(|disk| !is_named(disk));
        }
        self.remove(&before);
        self.begun = agreed;
        Ok(())
    }

    /// Takes unneeded files off the list and removes them. Returns whether there were any.
    async fn drop_unneeded(&mut self) -> Result<bool, MetaError> {
        let retained_from = self.retained_from;
        let is_needed = |part: &Ensemble| part.to.is_none_or(|to| to >= retained_from);
        let mut gone = self.list.get().ensembles;
        gone.retain(|part| !is_needed(part));
        if gone.is_empty() {
            return Ok(false);
        }
        self.list
            .change(|list| list.ensembles.retain(is_needed))
            .await?;
        self.sealed.retain(is_needed);
        let is_gone = |begun: &Ensemble| gone.iter().any(|part| part.number == begun.number);
        self.begun.retain(|begun| !is_gone(begun));
        self.remove(&gone);
        Ok(true)
    }

    /// A planted bug: nobody waits for the transaction.
    fn agree_later(&self, ensembles: Vec<Ensemble>) {
        let list = self.list.clone();
        self.tasks.spawn("agree", async move {
            let _ = list.change(|list| list.ensembles = ensembles).await;
        });
    }

    /// Goes on in a new file with `record` as its first record, which is durable when this returns. Fails where no disk
    /// has room for a file: then the caller tries again, with this record.
    async fn reform(
        &mut self,
        record: &mut RecordBuf,
        retained_from: LogPosition,
    ) -> Result<(), MetaError> {
        let is_sealed_behind = planted::is(Bug::SealedBehindWhatAllHave);
        let from = match is_sealed_behind {
            true => LogPosition(record.head.last.0 + 1),
            false => record.head.first,
        };
        let ended = self.ended.take().unwrap_or_else(|| Ensemble {
            to: Some(LogPosition(from.0 - 1)),
            ..self.open_ensemble()
        });
        self.ended = Some(ended.clone());
        let mut before = self.begun.len();
        let least = least_file_bytes(record.len_bytes());
        let mut pauses = TRY_AGAIN;
        let mut full_count = 0;
        self.capacity_bytes = self.file_bytes;
        loop {
            let disks = self.choose().await?;
            let capacity = self.capacity_bytes;
            match self.create(&disks, from, record.len_bytes()).await? {
                Created::Made => {
                    if is_sealed_behind {
                        break;
                    }
                    record.seal(self.open.file_use, retained_from);
                    let bytes = Bytes::copy_from_slice(&record.bytes);
                    if self.write(vec![bytes]).await? {
                        break;
                    }
                }
                Created::Failed => {}
                Created::Full if self.capacity_bytes < capacity => {
                    self.give_room_back(before).await;
                    continue;
                }
                Created::Full => {
                    full_count += u32::from(capacity <= least);
                    self.leave_made(before);
                    self.drop_unneeded().await?;
                    before = self.begun.len();
                    if full_count >= FULL_TRIES_MAX {
                        return Err(self.no_room_now(&disks));
                    }
                }
            }
            self.leave_try(before, &mut pauses).await;
        }
        // An ensemble without acknowledged records has no range.
        let has_range = ended.to >= Some(ended.from);
        let mut ensembles = self.sealed.clone();
        ensembles.extend(has_range.then_some(ended));
        ensembles.retain(|part| part.to.is_some_and(|to| to >= retained_from));
        self.sealed = ensembles.clone();
        ensembles.push(Ensemble {
            from,
            ..self.open_ensemble()
        });
        match planted::is(Bug::AnsweredBeforeSealIsAgreed) {
            true => self.agree_later(ensembles),
            false => self.agree(ensembles).await?,
        }
        self.ended = None;
        Ok(())
    }

    fn no_room_now(&self, disks: &[Arc<dyn ShardService>]) -> MetaError {
        let labels: Vec<&str> = disks.iter().map(|disk| disk.label()).collect();
        MetaError::Disk(DiskError::Full {
            disk: labels.join(", "),
            what: format!("making a log file of volume {}", self.seat.volume),
        })
    }

    /// Removes the files of a failed try, which no list ever named, and waits a while. With too few disks, repeated
    /// tries would fill the working ones.
    async fn leave_try(&mut self, begun_before: usize, pauses: &mut Backoff) {
        self.leave_made(begun_before);
        self.env.clock.sleep(pauses.pause()).await;
    }

    fn leave_made(&mut self, begun_before: usize) {
        let made = self.begun.split_off(begun_before);
        self.remove(&made);
    }

    /// As [`Self::leave_made`], and waits until the disks have the room again: the next try may need it.
    pub(super) async fn give_room_back(&mut self, begun_before: usize) {
        let made = self.begun.split_off(begun_before);
        let files = made
            .iter()
            .flat_map(|part| part.disks.iter().map(|id| (part.number, *id)));
        let this = &*self;
        let removing = files.map(|(number, id)| async move {
            let Some(disk) = this.seat.disks.disk(id) else {
                return this.list.note_unswept(id);
            };
            let removing = disk.remove(this.seat.epoch, this.seat.name(number));
            if this.in_time(&disk, removing).await.is_err() {
                this.list.note_unswept(id);
            }
        });
        futures_util::future::join_all(removing).await;
    }

    /// Removes files that the list does not name any more. If a disk is away, its sweep removes the file later.
    pub(super) fn remove(&self, ensembles: &[Ensemble]) {
        for ensemble in ensembles {
            let name = self.seat.name(ensemble.number);
            for id in &ensemble.disks {
                let Some(disk) = self.seat.disks.disk(*id) else {
                    self.list.note_unswept(*id);
                    continue;
                };
                let (epoch, list) = (self.seat.epoch, self.list.clone());
                self.tasks.spawn("log-remove", async move {
                    if let Err(error) = disk.remove(epoch, name).await {
                        tracing::debug!(%error, "an old file of the log stays");
                        list.note_unswept(disk.id());
                    }
                });
            }
        }
    }

    /// Whether the next record should go to a new file, on other disks.
    fn wants_other_disks(&mut self, retained_from: LogPosition) -> bool {
        if self.open.disks.iter().any(|disk| disk.is_avoided()) {
            return true;
        }
        let now = self.env.clock.monotonic();
        if now < self.grow_at {
            return false;
        }
        self.grow_at = now.saturating_add(GROW_AFTER);
        let there = self.choices().len();
        let is_short = self.open.disks.len() < self.seat.copies.wanted();
        let is_short = is_short && there > self.open.disks.len();
        let has_left = self.has_left_disk() || self.has_left_behind(retained_from);
        is_short || has_left && self.is_enough(there)
    }

    /// Whether the list still names an unneeded file on a disk that leaves. Only a change of the list drops it. Without
    /// one, a disk would keep the file for as long as little is written.
    fn has_left_behind(&self, retained_from: LogPosition) -> bool {
        let is_unneeded = |part: &&Ensemble| part.to.is_some_and(|to| to < retained_from);
        let mut unneeded = self.sealed.iter().filter(is_unneeded).peekable();
        if unneeded.peek().is_none() {
            return false;
        }
        let choices = self.seat.disks.choices();
        let is_choice = |id: &DiskId| choices.iter().any(|(_, disk)| disk.id() == *id);
        unneeded.any(|part| !part.disks.iter().all(is_choice))
    }

    /// Whether a disk of the open file is leaving.
    fn has_left_disk(&self) -> bool {
        let choices = self.seat.disks.choices();
        let is_choice = |id| choices.iter().any(|(_, disk)| disk.id() == id);
        self.open.disks.iter().any(|disk| !is_choice(disk.id()))
    }

    /// Checks the room of the next owner, which may have to copy the whole retained log to one disk on each of as many
    /// nodes as there are copies.
    fn look_at_room(&mut self) {
        let now = self.env.clock.monotonic();
        if now < self.room_at {
            return;
        }
        self.room_at = now.saturating_add(GROW_AFTER);
        let mut most: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (node, disk) in self.seat.disks.choices() {
            let free_bytes = disk.space().map_or(0, |space| space.free_bytes);
            let of_node = most.entry(node).or_default();
            *of_node = free_bytes.max(*of_node);
        }
        let mut free: Vec<u64> = most.into_values().collect();
        free.sort_unstable_by_key(|free| std::cmp::Reverse(*free));
        free.truncate(self.seat.copies.wanted());
        self.room_bytes = free.last().copied();
    }

    /// Whether a file on this number of disks is no worse than the open one.
    fn is_enough(&self, disk_count: usize) -> bool {
        let wanted = self.open.disks.len().min(self.seat.copies.wanted());
        disk_count >= wanted.max(self.seat.copies.least())
    }

    async fn append_record(
        &mut self,
        mut record: RecordBuf,
        retained_from: LogPosition,
    ) -> Result<(), MetaError> {
        if self.stopped.is_stopped() {
            return Err(MetaError::Closed);
        }
        let last = record.head.last;
        self.look_at_room();
        let is_full = self.open.offset + record.len_bytes() > self.capacity_bytes;
        let retained_from = self.retained_from.max(retained_from);
        if self.ended.is_some() || is_full || self.wants_other_disks(retained_from) {
            self.reform(&mut record, retained_from).await?;
        } else {
            record.seal(self.open.file_use, retained_from);
            let RecordBuf { bytes, head } = record;
            let bytes = bytes.freeze();
            if !self.write(vec![bytes.clone()]).await? {
                record = RecordBuf {
                    bytes: AlignedBuf::copy_of(&bytes),
                    head,
                };
                self.reform(&mut record, retained_from).await?;
            }
        }
        self.open.last = last;
        self.retained_from = retained_from;
        Ok(())
    }
}

impl LogWriter for EnsembleWriter {
    fn append(
        &mut self,
        record: RecordBuf,
        retained_from: LogPosition,
        _may_block: bool,
    ) -> LogFuture<'_, ()> {
        Box::pin(self.append_record(record, retained_from))
    }

    /// The next change of the list drops unneeded files.
    fn trim(&mut self) {}

    /// A disk of the open file may fail, or another disk may come, at any time.
    fn is_resting(&self) -> bool {
        true
    }

    fn may_widen(&mut self) -> bool {
        EnsembleWriter::may_widen(self)
    }

    fn widen(&mut self) -> LogFuture<'_, ()> {
        Box::pin(self.widen_sealed())
    }

    fn wants_group(&self) -> bool {
        let open = &self.open.disks;
        let has_bad = open.iter().any(|disk| disk.is_avoided());
        let is_short = open.len() < self.seat.copies.wanted();
        let there = self.choices().len();
        has_bad && there >= self.seat.copies.least()
            || is_short && there > open.len()
            || self.has_left_disk() && self.is_enough(there)
    }

    fn status(&self) -> LogStatus {
        let needed = self.sealed.iter();
        let needed = needed.filter(|part| part.to.is_some_and(|to| to >= self.retained_from));
        let is_short = |part: &Ensemble| part.disks.len() < self.seat.copies.wanted();
        LogStatus {
            retained_bytes: needed.clone().count() as u64 * self.capacity_bytes + self.open.offset,
            syncs: self.syncs,
            disks: self.open.disks.iter().map(|disk| disk.id()).collect(),
            start: self.retained_from,
            is_short: self.open.disks.len() < self.seat.copies.wanted()
                || needed.clone().any(is_short),
            short_file_count: self.short_file_count,
            room_bytes: self.room_bytes,
        }
    }
}
