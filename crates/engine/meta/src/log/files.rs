//! The files of the log: making them on several disks, what their headers say, reading them, using them again.
//!
//! Owns: which disks a file is on, which disks are told what of the others and when, spares, names.
//! Must not know: when the log goes on in another file, which records are copied.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::disk::{Disk, DiskError, DiskFile, OpenMode};
use cairn_base::env::Env;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, LogPosition};
use cairn_formats::metadata::log::{
    BLOCK_BYTES, FILE_LEN_BYTES_MAX, FileHeader, FileUse, MEMBER_COUNT_MAX, RECORD_HEAD_BYTES,
    RecordHead, SET_COUNT_MAX, TOLD_FILE_BYTES, Term, find_records, record_len_bytes,
};
use futures_util::future::{join_all, select};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::fan_out::{Done, Work, all_or_late, in_time};
use super::headers::{Headers, Members, NewestHeader};
use super::mirror::Retained;
use super::read::{READ_ERROR_COUNT_MAX, read_body};
use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::tasks::Tasks;

/// Most files without content that are kept on one disk to be used again.
const SPARE_FILE_COUNT_MAX: usize = 3;
/// How long the log waits for a disk that failed to take such a file.
const FAILED_TELL_WAIT: Duration = Duration::from_secs(2);
/// A log file where disks have no room for more.
const SHORTEST_FILE_BYTES: u64 = 16 << 10;
/// What such a file leaves at least: as much as it takes, for the next start and for the state.
const ROOM_LEFT_BYTES_MIN: u64 = 16 << 10;
/// How much longer than a write making a file may take: a new one is filled with zeros.
const MAKE_WAIT_FACTOR: u32 = 4;

/// What every header of a term says.
#[derive(Clone)]
pub(crate) struct TermInfo {
    pub log_file_bytes: u64,
    pub history: Vec<Term>,
    /// Set for files that only get copies of records, for a term that is over: they say of its disks what
    /// its own files say. Else a start counts, without the disks that are away now, too few as missing.
    pub members: Option<Members>,
}

/// Of a file that disks have room for, and a record of so many bytes.
pub(in crate::log) fn least_file_bytes(record_bytes: u64) -> u64 {
    (record_bytes + BLOCK_BYTES as u64)
        .next_multiple_of(IO_ALIGN_BYTES as u64)
        .max(SHORTEST_FILE_BYTES)
}

/// What to try where disks have no room for a file of so many bytes.
pub(in crate::log) fn shorter(len_bytes: u64, least: u64) -> u64 {
    const SHORTER_DIVISOR: u64 = 4;
    (len_bytes / SHORTER_DIVISOR)
        .next_multiple_of(IO_ALIGN_BYTES as u64)
        .max(least)
}

/// A file that is written to.
pub(super) struct OpenFile {
    pub sequence: u64,
    pub file_use: FileUse,
    pub len_bytes: u64,
    /// Where the next record goes.
    pub offset: u64,
    pub last: LogPosition,
    /// Copies wanted when it was made.
    pub copies_wanted: usize,
    pub copies: Vec<(usize, Arc<dyn DiskFile>)>,
    /// Disks that had a copy and are not written to any more.
    pub dropped: Vec<usize>,
    /// Disks that lack some of what was before it, and were told so.
    pub behind: Vec<usize>,
}

impl OpenFile {
    pub fn drop_unhealthy(&mut self, disks: &DiskSet) {
        let dropped = &mut self.dropped;
        self.copies.retain(|(disk, _)| {
            let goes_on = disks.takes_log(*disk);
            if !goes_on {
                dropped.push(*disk);
            }
            goes_on
        });
    }
}

/// Names of files that can be used again, by disk.
#[derive(Default)]
pub(crate) struct Spares(Mutex<BTreeMap<usize, Vec<String>>>);

impl Spares {
    fn take(&self, disk: usize) -> Option<String> {
        self.0.lock().get_mut(&disk)?.pop()
    }

    /// All of them, by disk.
    fn take_all(&self) -> BTreeMap<usize, Vec<String>> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Whether it was kept; else the caller removes the file.
    pub fn offer(&self, disk: usize, name: String) -> bool {
        let mut names = self.0.lock();
        let names = names.entry(disk).or_default();
        let keep = names.len() < SPARE_FILE_COUNT_MAX;
        if keep {
            names.push(name);
        }
        keep
    }
}

/// Removes a file that nobody needs. A failure is harmless: the next open finds the file again.
pub(crate) fn remove_later(tasks: &Tasks, disks: &DiskSet, disk: usize, name: String) {
    let disk = disks.get(disk).disk.clone();
    tasks.spawn("log-remove", async move {
        if let Err(error) = disk.remove(&name).await {
            tracing::debug!("removing an old log file: {error}");
        }
    });
}

/// The name of a log file on its disk.
pub(crate) fn file_name(folder: &str, sequence: u64) -> String {
    format!("{folder}/log.{sequence:016x}")
}

/// The sequence number in the last part of a log file's name.
pub(crate) fn file_sequence(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("log.")?;
    let is_canonical = digits.len() == 16 && !digits.contains(|c: char| c.is_ascii_uppercase());
    // There must be one after it.
    u64::from_str_radix(digits, 16)
        .ok()
        .filter(|number| is_canonical && *number < u64::MAX / 2)
}

/// Takes a number for a file; the one before it for headers that disks get which the file is not on: whoever finds both
/// goes by the file's; and the one after it for headers that disks get which it is on, and which lack what was before
/// it: whoever finds both goes by these.
pub(super) fn take_sequence(next: &mut u64) -> u64 {
    let sequence = *next + 1;
    *next += 3;
    sequence
}

/// Makes log files and takes back those that are not needed any more.
#[derive(Clone)]
pub(crate) struct FileMaker {
    pub env: Env,
    pub tasks: Tasks,
    pub disks: DiskSet,
    pub info: TermInfo,
    pub spares: Arc<Spares>,
    pub headers: Arc<Headers>,
    /// Disks that the log was on when fewer copies were asked for: it needs no others.
    pub stays_on: Vec<usize>,
    /// As of the last durable record.
    pub retained_from: LogPosition,
    /// See [`crate::MetaSettings::log_write_wait`].
    pub write_wait: Duration,
    /// Where disks have no room for a file of the usual length it may be a shorter one. Not the first of a volume: one that is
    /// made where there is no room is refused.
    pub may_shorten: bool,
    /// A file may not take the last room of a disk: one that the log leaves later must still be told.
    pub leaves_room: bool,
}

impl FileMaker {
    /// How long the file that was prepared is waited for, and those who are asked to make one.
    pub(super) fn make_wait(&self) -> Duration {
        self.write_wait * MAKE_WAIT_FACTOR
    }

    /// Goes on without a disk that does not answer; `work` is what it has not answered. What it does then is passed to
    /// `then`.
    pub(super) fn leave_late<T: Send + 'static>(
        &self,
        disk: usize,
        work: Work<T>,
        then: impl FnOnce(&Self, T) + Send + 'static,
    ) {
        self.disks.note_late(disk);
        let files = self.clone();
        // Counted, so that a store that is closed waits for it, and what is opened in its place meets no late write.
        self.tasks.spawn("log-late", async move {
            match work.await {
                Ok(done) => then(&files, done),
                Err(DiskError::Full { .. }) => {}
                Err(error) => files.disks.mark_failed(disk, &error),
            }
            files.disks.note_answer(disk, files.env.clock.monotonic());
        });
    }

    /// As [`Self::leave_late`], where a header may be there or not: nobody knows what the disk says.
    fn leave_unknown<T: Send + 'static>(
        &self,
        disk: usize,
        sequence: u64,
        work: Work<T>,
        then: impl FnOnce(&Self, T) + Send + 'static,
    ) {
        let unknown = NewestHeader {
            sequence,
            ..NewestHeader::unknown()
        };
        self.note_header(disk, unknown);
        self.leave_late(disk, work, then);
    }

    /// Keeps the copies of a file that is not needed any more as spares, or removes them.
    pub(super) fn release(&self, file: &Retained) {
        // One of another length, as copies of records are in, would only be removed later.
        let is_fit = file.is_fit && file.len_bytes == self.info.log_file_bytes;
        for disk in &file.disks {
            if self.disks.is_healthy(*disk) && !self.headers.keep(*disk, file.sequence) {
                self.recycle(*disk, file.sequence, is_fit);
            }
        }
    }

    /// Removes the files that wait to be used again.
    pub(super) fn remove_spares(&self) {
        for (disk, names) in self.spares.take_all() {
            for name in names {
                if self.disks.is_usable(disk) {
                    remove_later(&self.tasks, &self.disks, disk, name);
                }
            }
        }
    }

    fn recycle(&self, disk: usize, sequence: u64, is_fit: bool) {
        let name = file_name(&self.disks.folder(), sequence);
        if !is_fit || !self.spares.offer(disk, name.clone()) {
            remove_later(&self.tasks, &self.disks, disk, name);
        }
    }

    /// A header was written to a disk, so what was there for an older one may go.
    fn note_header(&self, disk: usize, newest: NewestHeader) {
        if let Some(old) = self.headers.note(disk, newest) {
            self.recycle(disk, old, false);
        }
    }

    /// Tells disks that a file is not on, and whose headers say that it is on more, by a newer header. Nothing
    /// may be acknowledged in the file before, or they take themselves for enough without it. One that
    /// cannot be told, because it fails or has no space, is left as it is until the next file: the log must go on.
    pub(super) async fn tell_left_behind(&self, file: &OpenFile) {
        if self.info.members.is_some() {
            // It only has copies of what is there.
            return;
        }
        let disks = file.copies.iter().map(|(disk, _)| *disk);
        let set: Vec<DiskId> = disks.map(|disk| self.disks.get(disk).id).collect();
        let members = Members {
            disks: self.member_ids(&set),
            copies: set.len() as u8,
        };
        let untrue = self.headers.untrue(&set).into_iter();
        let tell = untrue
            .filter(|_| !self.disks.is_given_up())
            .filter(|disk| file.copies.iter().all(|(has, _)| has != disk))
            .map(|disk| self.tell_in_time(disk, file.sequence - 1, &members));
        join_all(tell).await;
    }

    /// As [`Self::tell`]. A disk that failed or is late is told as well: one error says little, and later it may be the
    /// only one that is there. But it may also hang, and the log needs it for nothing, so it is not waited for without
    /// end.
    async fn tell_in_time(&self, disk: usize, sequence: u64, members: &Members) {
        let is_late = self.disks.is_late(disk);
        if self.disks.is_usable(disk) && !is_late {
            self.tell(disk, sequence, members).await;
            return;
        }
        if !self.headers.begin_telling(disk) {
            // It still has to answer to the last time.
            return;
        }
        let (sender, told) = oneshot::channel();
        let (files, members) = (self.clone(), members.clone());
        self.tasks.spawn("log-tell", async move {
            files.tell(disk, sequence, &members).await;
            files.headers.end_telling(disk);
            // Nobody may be waiting any more.
            let _ = sender.send(());
        });
        let wait = match is_late {
            true => self.write_wait,
            false => FAILED_TELL_WAIT,
        };
        let wait = pin!(self.env.clock.sleep(wait));
        select(told, wait).await;
    }

    /// Gives a disk a file with nothing but a header, which may be one that it had before.
    async fn make_told(
        &self,
        disk: usize,
        sequence: u64,
        members: &Members,
        repeats: Option<u64>,
    ) -> Result<(), DiskError> {
        // Where there is no space for a log file there may be for a short one.
        let mut files = self.clone();
        files.info.log_file_bytes = TOLD_FILE_BYTES;
        files.leaves_room = false;
        let mut header = files.header(sequence, &[self.disks.get(disk).id], members);
        if let Some(repeats) = repeats {
            header.speaks_as = repeats;
        }
        files
            .make(disk, sequence, &header.encode().freeze())
            .await?;
        let newest = NewestHeader {
            sequence,
            speaks_as: repeats.unwrap_or(sequence),
            members: members.clone(),
            is_all: true,
        };
        self.note_header(disk, newest);
        Ok(())
    }

    /// Whether the disk has been told.
    pub(super) async fn tell(&self, disk: usize, sequence: u64, members: &Members) -> bool {
        let told = self.make_told(disk, sequence, members, None).await;
        match &told {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(
                    volume = self.disks.volume.0,
                    disk = self.disks.get(disk).disk.label(),
                    %error,
                    "this disk does not know how the metadata's log goes on"
                );
                if self.disks.is_retired(disk) {
                    self.headers.forget(disk);
                } else if !matches!(error, DiskError::Full { .. }) {
                    self.disks.mark_failed(disk, error);
                }
            }
        }
        told.is_ok()
    }

    /// Those of a set that lack some of what is needed, of which fewer members than a header promises have a copy: such
    /// a disk, with as many members missing as the header allows, would take itself for enough without it.
    pub(super) fn behind(&self, set: &[usize], needed: &[Vec<usize>]) -> Vec<usize> {
        let members = self.members_for(set);
        let is_member = |disk: &&usize| members.disks.contains(&self.disks.get(**disk).id);
        let holders = |part: &Vec<usize>| part.iter().filter(is_member).count();
        let short = |part: &&Vec<usize>| holders(part) < members.copies();
        let short: Vec<&Vec<usize>> = needed.iter().filter(short).collect();
        let lacks = |disk: &&usize| short.iter().any(|part| !part.contains(disk));
        set.iter().filter(lacks).copied().collect()
    }

    /// What a disk is told that is behind, and the sequence of the header that this repeats.
    fn members_before(
        &self,
        disk: usize,
        set: &[usize],
        needed: &[Vec<usize>],
    ) -> (Members, Option<u64>) {
        // At a start there may be copies on disks that are away. What it was told before it was so is as true as then.
        // It is no news for others: a start that finds those, too, goes by what they say.
        if self.info.members.is_some()
            && let Some(newest) = self.headers.newest(disk)
        {
            return (newest.members, Some(newest.speaks_as));
        }
        // Those that have everything, of whom one is enough, must not all be missing.
        let has_all = |disk: &&usize| needed.iter().all(|part| part.contains(disk));
        let whole = set.iter().filter(has_all);
        let whole: Vec<DiskId> = whole.map(|disk| self.disks.get(*disk).id).collect();
        let members = match whole.len() {
            // Where there is none, nobody may be missing: any may be the only one to have something.
            0 => Members {
                copies: 1,
                ..self.members_for(set)
            },
            count => Members {
                disks: whole,
                copies: count as u8,
            },
        };
        (members, None)
    }

    /// What the header of a file on a set of disks says.
    pub(super) fn members_for(&self, set: &[usize]) -> Members {
        let ids: Vec<DiskId> = set.iter().map(|disk| self.disks.get(*disk).id).collect();
        self.info.members.clone().unwrap_or_else(|| Members {
            disks: self.member_ids(&ids),
            // Not only those that it is on now: where others have no space, a start without one of those
            // must go on.
            copies: self.disks.copies_wanted().min(SET_COUNT_MAX) as u8,
        })
    }

    /// The disks that a header names as members.
    fn member_ids(&self, set: &[DiskId]) -> Vec<DiskId> {
        let mut ids = self.disks.ids();
        if ids.len() > MEMBER_COUNT_MAX {
            // Those that have the file must be among them.
            ids.sort_by_key(|id| !set.contains(id));
            ids.truncate(MEMBER_COUNT_MAX);
        }
        ids
    }

    fn header(&self, sequence: u64, set: &[DiskId], members: &Members) -> FileHeader {
        FileHeader {
            volume: self.disks.volume,
            sequence,
            file_use: FileUse(self.env.entropy.u128()),
            speaks_as: sequence,
            file_len_bytes: self.info.log_file_bytes,
            retained_from: self.retained_from,
            copies: members.copies,
            set: set.to_vec(),
            members: members.disks.clone(),
            history: self.info.history.clone(),
        }
    }

    /// The first healthy disks, as many as copies are wanted; before them those that the log stays on, unless others were
    /// added to be preferred to them.
    pub(super) fn choose(&self, full: &[usize]) -> Vec<usize> {
        let mut set = self.disks.log_disks();
        set.retain(|disk| !full.contains(disk));
        set.sort_by_key(|disk| (!self.disks.is_first(*disk), !self.stays_on.contains(disk)));
        set.truncate(self.disks.copies_wanted().min(SET_COUNT_MAX));
        set
    }

    /// Tries again without the disks that fail, until there is a file on all disks of a set, that a record of so many bytes fits.
    /// Where disks have no room, a shorter one: a full pool must be able to start, and to take deletes, and each volume of
    /// it needs a file.
    pub(super) async fn until_done(
        &self,
        sequence_next: &mut u64,
        needed: &[Vec<usize>],
        record_bytes: u64,
    ) -> Result<OpenFile, MetaError> {
        let least = least_file_bytes(record_bytes);
        let (usual, any_full) = self.with_room(sequence_next, needed).await;
        if !any_full || !self.may_shorten || self.info.log_file_bytes <= least {
            return usual;
        }
        let usual_count = usual.as_ref().map_or(0, |file| file.copies.len());
        self.give_back(usual.as_ref().ok());
        let mut files = self.clone();
        files.leaves_room = true;
        while files.info.log_file_bytes > least {
            files.info.log_file_bytes = shorter(files.info.log_file_bytes, least);
            let (made, any_full) = files.with_room(sequence_next, needed).await;
            let has_more = made
                .as_ref()
                .is_ok_and(|file| file.copies.len() > usual_count);
            let is_last = files.info.log_file_bytes <= least;
            if has_more && (!any_full || is_last) || is_last && usual_count == 0 {
                return made;
            }
            files.give_back(made.as_ref().ok());
        }
        // No shorter one has more copies.
        self.with_room(sequence_next, needed).await.0
    }

    /// Does without a file that nothing is in.
    fn give_back(&self, file: Option<&OpenFile>) {
        let Some(file) = file else { return };
        for (disk, _) in &file.copies {
            self.recycle(*disk, file.sequence, true);
        }
    }

    /// As [`Self::until_done`], with files of one length; and whether a disk had no room for it.
    async fn with_room(
        &self,
        sequence_next: &mut u64,
        needed: &[Vec<usize>],
    ) -> (Result<OpenFile, MetaError>, bool) {
        let mut left_out = Vec::new();
        let mut last_error = None;
        let mut any_full = false;
        loop {
            let set = self.choose(&left_out);
            if set.is_empty() {
                let volume = self.disks.volume;
                let error = last_error.map_or(MetaError::NoDisk { volume }, MetaError::Disk);
                return (Err(error), any_full);
            }
            let sequence = take_sequence(sequence_next);
            // Each failure takes a disk away, so this ends.
            match self.run(sequence, set, needed).await {
                Ok(file) => return (Ok(file), any_full),
                Err(failures) => {
                    for (disk, error) in failures {
                        any_full |= matches!(error, DiskError::Full { .. });
                        left_out.push(disk);
                        last_error = Some(error);
                    }
                }
            }
        }
    }

    /// Makes one file on all disks of `set`. Disks that fail are marked; full ones only reported,
    /// because they still can be overwritten and freed.
    pub(super) async fn run(
        &self,
        sequence: u64,
        set: Vec<usize>,
        needed: &[Vec<usize>],
    ) -> Result<OpenFile, Vec<(usize, DiskError)>> {
        let copies_wanted = self.disks.copies_wanted();
        let ids: Vec<DiskId> = set.iter().map(|disk| self.disks.get(*disk).id).collect();
        let behind = self.behind(&set, needed);
        if !behind.is_empty() {
            // Before the file is there, whose header promises what is not kept yet. One that does not answer is not waited
            // for where the log can do without it.
            let wait = (behind.len() < set.len()).then(|| self.make_wait());
            let tell = behind.iter().map(|disk| {
                let (members, repeats) = self.members_before(*disk, &set, needed);
                let (files, disk) = (self.clone(), *disk);
                let tell: Work<()> = Box::pin(async move {
                    let sequence = sequence + 1;
                    files.make_told(disk, sequence, &members, repeats).await
                });
                in_time(&*self.env.clock, wait, tell)
            });
            let told = behind.iter().copied().zip(join_all(tell).await);
            let mut failures = Vec::new();
            let mut late = Vec::new();
            for (disk, told) in told {
                match told {
                    Done::Answered(Ok(())) => {}
                    Done::Answered(Err(error)) => failures.push((disk, error)),
                    Done::Late(work) => {
                        self.leave_unknown(disk, sequence + 1, work, |_, ()| {});
                        late.push((disk, self.too_late(disk, sequence)));
                    }
                }
            }
            let mut failures = self.note_failures(failures);
            failures.extend(late);
            if !failures.is_empty() {
                return Err(failures);
            }
        }
        let members = self.members_for(&set);
        let header = self.header(sequence, &ids, &members);
        let block = header.encode().freeze();
        let make = |disk: &usize| -> Work<Arc<dyn DiskFile>> {
            let (files, disk, block) = (self.clone(), *disk, block.clone());
            Box::pin(async move { files.make(disk, sequence, &block).await })
        };
        let makes = set.iter().map(make).collect();
        let results = all_or_late(&*self.env.clock, self.make_wait(), makes).await;
        let mut copies = Vec::with_capacity(set.len());
        let mut failures = Vec::new();
        let mut late = Vec::new();
        for (disk, result) in set.into_iter().zip(results) {
            let result = match result {
                Done::Answered(result) => result,
                Done::Late(work) => {
                    self.leave_unknown(disk, sequence, work, move |files, _| {
                        files.recycle(disk, sequence, true);
                    });
                    late.push((disk, self.too_late(disk, sequence)));
                    continue;
                }
            };
            match result {
                Ok(file) => {
                    let newest = NewestHeader {
                        sequence,
                        speaks_as: sequence,
                        members: members.clone(),
                        is_all: false,
                    };
                    self.note_header(disk, newest);
                    copies.push((disk, file));
                }
                Err(error) => failures.push((disk, error)),
            }
        }
        let mut failures = self.note_failures(failures);
        failures.extend(late);
        if failures.is_empty() {
            return Ok(OpenFile {
                sequence,
                file_use: header.file_use,
                len_bytes: header.file_len_bytes,
                offset: BLOCK_BYTES as u64,
                last: LogPosition(0),
                copies_wanted,
                copies,
                dropped: Vec::new(),
                behind,
            });
        }
        // The header names disks that do not have it: this file must not hold anything.
        for (disk, _) in copies {
            self.recycle(disk, sequence, true);
        }
        Err(failures)
    }

    fn too_late(&self, disk: usize, sequence: u64) -> DiskError {
        DiskError::Io {
            disk: self.disks.get(disk).disk.label().to_owned(),
            what: format!("making {}", file_name(&self.disks.folder(), sequence)),
            detail: "it does not answer".to_owned(),
        }
    }

    fn note_failures(&self, failures: Vec<(usize, DiskError)>) -> Vec<(usize, DiskError)> {
        for (disk, error) in &failures {
            if !matches!(error, DiskError::Full { .. }) {
                self.disks.mark_failed(*disk, error);
            }
        }
        failures
    }

    /// The records of a file whose last is `last`, put together from its copies if none is whole. A disk
    /// that leaves, or takes no more writes, may still be the one that has it.
    pub(super) async fn read_records(
        &self,
        sequence: u64,
        last: LogPosition,
        disks: &[usize],
    ) -> Result<Vec<(RecordHead, Bytes)>, MetaError> {
        let mut order = disks.to_vec();
        // Whoever does not answer now is asked last: an append may wait for this.
        order.sort_by_key(|disk| (self.disks.is_late(*disk), !self.disks.is_healthy(*disk)));
        let mut all = BTreeMap::new();
        let mut last_error = None;
        for disk in order {
            let (file_use, body) = match self.read(disk, sequence).await {
                Ok(content) => content,
                Err(error) => {
                    last_error = Some(error);
                    continue;
                }
            };
            let mut end = 0;
            let mut is_whole = true;
            let mut reaches = false;
            for found in find_records(&body, file_use) {
                is_whole &= found.payload.start == end + RECORD_HEAD_BYTES;
                end += record_len_bytes(found.payload.len());
                reaches |= found.head.last >= last;
                let payload = body.slice(found.payload);
                all.entry((found.head.first, found.head.last))
                    .or_insert((found.head, payload));
            }
            if is_whole && reaches {
                return Ok(all.into_values().collect());
            }
        }
        // Each copy has lost something: what they have together must be without a hole.
        let mut end = None;
        for (first, to) in all.keys() {
            if end.is_some_and(|end| *first > LogPosition(end)) {
                break;
            }
            end = Some(to.0.saturating_add(1));
        }
        match (end, last_error) {
            (Some(end), _) if end > last.0 => Ok(all.into_values().collect()),
            (None, Some(error)) => Err(error),
            (end, _) => Err(MetaError::LogDamaged {
                volume: self.disks.volume,
                position: LogPosition(end.unwrap_or_default()),
            }),
        }
    }

    async fn read(&self, disk: usize, sequence: u64) -> Result<(FileUse, Bytes), MetaError> {
        let name = file_name(&self.disks.folder(), sequence);
        let member = self.disks.get(disk);
        let file = member.disk.open(&name, OpenMode::Existing).await?;
        let header = FileHeader::decode(&file.read_at(0, BLOCK_BYTES).await?)?;
        let header = header.filter(|header| header.sequence == sequence);
        let Some(file_use) = header.map(|header| header.file_use) else {
            let (disk, what) = (member.disk.label().to_owned(), format!("reading {name}"));
            let detail = "its header is damaged".to_owned();
            return Err(DiskError::Io { disk, what, detail }.into());
        };
        let len_bytes = file.len_bytes().min(FILE_LEN_BYTES_MAX);
        let mut errors_left = READ_ERROR_COUNT_MAX;
        let body = read_body(&*file, len_bytes, &mut errors_left).await?;
        Ok((file_use, body.bytes))
    }

    /// Refuses a file that would take the last room, if it is to leave some.
    fn require_room_left(
        &self,
        disk: &dyn Disk,
        name: &str,
        len_bytes: u64,
    ) -> Result<(), DiskError> {
        let wanted_bytes = len_bytes + len_bytes.max(ROOM_LEFT_BYTES_MIN);
        if self.leaves_room && disk.space()?.free_bytes < wanted_bytes {
            let (disk, what) = (disk.label().to_owned(), format!("creating {name}"));
            return Err(DiskError::Full { disk, what });
        }
        Ok(())
    }

    async fn make(
        &self,
        index: usize,
        sequence: u64,
        header: &Bytes,
    ) -> Result<Arc<dyn DiskFile>, DiskError> {
        let disk = &self.disks.get(index).disk.clone();
        let folder = self.disks.folder();
        let name = file_name(&folder, sequence);
        let len_bytes = self.info.log_file_bytes;
        let mut file = None;
        if let Some(spare) = self.spares.take(index) {
            disk.rename(&spare, &name).await?;
            let recycled = disk.open(&name, OpenMode::Existing).await?;
            if recycled.len_bytes() == len_bytes {
                file = Some(recycled);
            } else {
                disk.remove(&name).await?;
            }
        }
        let file = match file {
            Some(file) => file,
            None => {
                self.require_room_left(&**disk, &name, len_bytes)?;
                disk.open(&name, OpenMode::CreateZeroed { len_bytes })
                    .await?
            }
        };
        file.write_durable_at(0, vec![header.clone()]).await?;
        if planted::is(Bug::LogFolderWithoutSync) {
            return Ok(file);
        }
        disk.sync_folder(&folder).await?;
        Ok(file)
    }
}
