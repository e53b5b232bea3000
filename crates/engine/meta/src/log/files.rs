//! The files of the log: making them on several disks, their headers, reading them, reusing them.
//!
//! Owns: the disks of a file, when a disk gets a header about the others, spares, names. Must not know: when the log
//! goes on in another file, which records are copied.

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

/// Limit of the spare files (without content, to be reused) on one disk.
const SPARE_FILE_COUNT_MAX: usize = 3;
/// Longest wait of the log for a failed disk to take a header-only file.
const FAILED_TELL_WAIT: Duration = Duration::from_secs(2);
/// Shortest log file, used where disks have no room for more.
const SHORTEST_FILE_BYTES: u64 = 16 << 10;
/// Free space that the shortest file leaves at least: its own length, for the next start and for the state.
const ROOM_LEFT_BYTES_MIN: u64 = 16 << 10;
/// Making a file may take this many times as long as a write: a new file is filled with zeros.
const MAKE_WAIT_FACTOR: u32 = 4;

/// Contents that all headers of a term share.
#[derive(Clone)]
pub(crate) struct TermInfo {
    pub log_file_bytes: u64,
    pub history: Vec<Term>,
    /// Set for files that only get copies of records of a finished term: they repeat the members that the term's own
    /// files name. Otherwise a start without the disks that are away now would count too few missing disks.
    pub members: Option<Members>,
}

/// Length of the smallest file that fits a record of `record_bytes`.
pub(in crate::log) fn least_file_bytes(record_bytes: u64) -> u64 {
    (record_bytes + BLOCK_BYTES as u64)
        .next_multiple_of(IO_ALIGN_BYTES as u64)
        .max(SHORTEST_FILE_BYTES)
}

/// The next shorter length to try, where disks have no room for `len_bytes`.
pub(in crate::log) fn shorter(len_bytes: u64, least: u64) -> u64 {
    const SHORTER_DIVISOR: u64 = 4;
    (len_bytes / SHORTER_DIVISOR)
        .next_multiple_of(IO_ALIGN_BYTES as u64)
        .max(least)
}

/// The file that records go to.
pub(super) struct OpenFile {
    pub sequence: u64,
    pub file_use: FileUse,
    pub len_bytes: u64,
    /// Offset of the next record.
    pub offset: u64,
    pub last: LogPosition,
    /// Number of copies wanted when the file was made.
    pub copies_wanted: usize,
    pub copies: Vec<(usize, Arc<dyn DiskFile>)>,
    /// Disks that had a copy and get no more writes.
    pub dropped: Vec<usize>,
    /// Disks that lack some earlier records, and have a header that says so.
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

/// Names of spare files, by disk.
#[derive(Default)]
pub(crate) struct Spares(Mutex<BTreeMap<usize, Vec<String>>>);

impl Spares {
    fn take(&self, disk: usize) -> Option<String> {
        self.0.lock().get_mut(&disk)?.pop()
    }

    /// Removes and returns all names, by disk.
    fn take_all(&self) -> BTreeMap<usize, Vec<String>> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Keeps a spare and returns true; on false the caller removes the file.
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

/// Removes an unneeded file. A failure is harmless: the next open finds the file again.
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
    // The next number must exist, too.
    u64::from_str_radix(digits, 16)
        .ok()
        .filter(|number| is_canonical && *number < u64::MAX / 2)
}

/// Takes a number for a file, and its two neighbours for header-only files. A disk outside the file's set gets a header
/// with the number before: if a start finds both, the file's header counts. A disk of the set that lacks earlier
/// records gets a header with the number after: if a start finds both, that header counts.
pub(super) fn take_sequence(next: &mut u64) -> u64 {
    let sequence = *next + 1;
    *next += 3;
    sequence
}

/// Makes log files, and reuses unneeded ones.
#[derive(Clone)]
pub(crate) struct FileMaker {
    pub env: Env,
    pub tasks: Tasks,
    pub disks: DiskSet,
    pub info: TermInfo,
    pub spares: Arc<Spares>,
    pub headers: Arc<Headers>,
    /// Disks that the log was on when fewer copies were wanted: it needs no others.
    pub stays_on: Vec<usize>,
    /// As of the last durable record.
    pub retained_from: LogPosition,
    /// Wait for late disks; see [`crate::MetaSettings::log_write_wait`].
    pub write_wait: Duration,
    /// Whether a file may be shorter than usual where disks have no room. False for the first file of a volume:
    /// creation fails where there is no room.
    pub may_shorten: bool,
    /// Whether files must leave the last room of a disk free: a disk that the log leaves later must still get a header.
    pub leaves_room: bool,
}

impl FileMaker {
    /// Longest wait for a prepared file, and for the disks of a new one.
    pub(super) fn make_wait(&self) -> Duration {
        self.write_wait * MAKE_WAIT_FACTOR
    }

    /// Goes on without a late disk, whose open request is `work`. When the disk answers, `then` gets the result.
    pub(super) fn leave_late<T: Send + 'static>(
        &self,
        disk: usize,
        work: Work<T>,
        then: impl FnOnce(&Self, T) + Send + 'static,
    ) {
        self.disks.note_late(disk);
        let files = self.clone();
        // Counted, so that closing the store waits for it: a store opened in its place meets no late write.
        self.tasks.spawn("log-late", async move {
            match work.await {
                Ok(done) => then(&files, done),
                Err(DiskError::Full { .. }) => {}
                Err(error) => files.disks.mark_failed(disk, &error),
            }
            files.disks.note_answer(disk, files.env.clock.monotonic());
        });
    }

    /// As [`Self::leave_late`], for a write of a header: the disk's newest header is unknown from now on.
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

    /// Keeps the copies of an unneeded file as spares, or removes them.
    pub(super) fn release(&self, file: &Retained) {
        // A file of another length, as copies of records have, would only be removed later.
        let is_fit = file.is_fit && file.len_bytes == self.info.log_file_bytes;
        for disk in &file.disks {
            if self.disks.is_healthy(*disk) && !self.headers.keep(*disk, file.sequence) {
                self.recycle(*disk, file.sequence, is_fit);
            }
        }
    }

    /// Removes all spare files.
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

    /// Notes a header that was written to a disk, and recycles the file that was there for the older header alone.
    fn note_header(&self, disk: usize, newest: NewestHeader) {
        if let Some(old) = self.headers.note(disk, newest) {
            self.recycle(disk, old, false);
        }
    }

    /// Writes a newer header to disks outside of a file whose headers name more copies than the file has. Nothing may
    /// be acknowledged in the file before, or such a disk would start without the file's disks. A disk that fails or
    /// has no space for the header is skipped until the next file: the log must go on.
    pub(super) async fn tell_left_behind(&self, file: &OpenFile) {
        if self.info.members.is_some() {
            // The file only has copies of existing records.
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

    /// As [`Self::tell`], with a bounded wait for a failed or late disk. Such a disk gets the header, too: one error
    /// says little, and the disk may be the only one present later. But it may hang, and the log does not need it.
    async fn tell_in_time(&self, disk: usize, sequence: u64, members: &Members) {
        let is_late = self.disks.is_late(disk);
        if self.disks.is_usable(disk) && !is_late {
            self.tell(disk, sequence, members).await;
            return;
        }
        if !self.headers.begin_telling(disk) {
            // The disk has not answered the last header yet.
            return;
        }
        let (sender, told) = oneshot::channel();
        let (files, members) = (self.clone(), members.clone());
        self.tasks.spawn("log-tell", async move {
            files.tell(disk, sequence, &members).await;
            files.headers.end_telling(disk);
            // The receiver may be gone.
            let _ = sender.send(());
        });
        let wait = match is_late {
            true => self.write_wait,
            false => FAILED_TELL_WAIT,
        };
        let wait = pin!(self.env.clock.sleep(wait));
        select(told, wait).await;
    }

    /// Writes a header-only file to a disk, which may repeat an earlier header of the disk.
    async fn make_told(
        &self,
        disk: usize,
        sequence: u64,
        members: &Members,
        repeats: Option<u64>,
    ) -> Result<(), DiskError> {
        // A disk without space for a log file may have space for a short one.
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

    /// Writes a header to a disk, and returns whether the disk has it.
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

    /// Disks of a set that lack some needed records of which fewer members have a copy than a header promises. Such a
    /// disk would start without the disks that have those records, with as many members missing as the header allows.
    pub(super) fn behind(&self, set: &[usize], needed: &[Vec<usize>]) -> Vec<usize> {
        let members = self.members_for(set);
        let is_member = |disk: &&usize| members.disks.contains(&self.disks.get(**disk).id);
        let holders = |part: &Vec<usize>| part.iter().filter(is_member).count();
        let short = |part: &&Vec<usize>| holders(part) < members.copies();
        let short: Vec<&Vec<usize>> = needed.iter().filter(short).collect();
        let lacks = |disk: &&usize| short.iter().any(|part| !part.contains(disk));
        set.iter().filter(lacks).copied().collect()
    }

    /// The members that a header tells a disk of `behind`, and the sequence of the header that it repeats.
    fn members_before(
        &self,
        disk: usize,
        set: &[usize],
        needed: &[Vec<usize>],
    ) -> (Members, Option<u64>) {
        // At a start, disks that are away may have copies. The earlier header of the disk is as true as before. It is
        // no news about the others: a start that finds those, too, uses their headers.
        if self.info.members.is_some()
            && let Some(newest) = self.headers.newest(disk)
        {
            return (newest.members, Some(newest.speaks_as));
        }
        // The disks that have everything, one of which is enough, must not all be missing.
        let has_all = |disk: &&usize| needed.iter().all(|part| part.contains(disk));
        let whole = set.iter().filter(has_all);
        let whole: Vec<DiskId> = whole.map(|disk| self.disks.get(*disk).id).collect();
        let members = match whole.len() {
            // If no disk has everything, none may be missing: each may be the only one with some record.
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

    /// The members in the header of a file on a set of disks.
    pub(super) fn members_for(&self, set: &[usize]) -> Members {
        let ids: Vec<DiskId> = set.iter().map(|disk| self.disks.get(*disk).id).collect();
        self.info.members.clone().unwrap_or_else(|| Members {
            disks: self.member_ids(&ids),
            // All copies wanted, not only the current ones: where other disks have no space, a start without one of
            // those must succeed.
            copies: self.disks.copies_wanted().min(SET_COUNT_MAX) as u8,
        })
    }

    /// The disks that a header names as members.
    fn member_ids(&self, set: &[DiskId]) -> Vec<DiskId> {
        let mut ids = self.disks.ids();
        if ids.len() > MEMBER_COUNT_MAX {
            // The disks of the file must be among them.
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

    /// The first healthy disks, as many as copies are wanted. Disks that the log stays on come first, after added disks
    /// with preference.
    pub(super) fn choose(&self, full: &[usize]) -> Vec<usize> {
        let mut set = self.disks.log_disks();
        set.retain(|disk| !full.contains(disk));
        set.sort_by_key(|disk| (!self.disks.is_first(*disk), !self.stays_on.contains(disk)));
        set.truncate(self.disks.copies_wanted().min(SET_COUNT_MAX));
        set
    }

    /// Makes a file on all disks of a set, large enough for a record of the given size. Disks that fail are left out of
    /// the next try. Where disks have no room, the file is shorter: a full pool must be able to start and to accept
    /// deletions, and each of its volumes needs a file.
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
        // A shorter file has no more copies.
        self.with_room(sequence_next, needed).await.0
    }

    /// Recycles an empty file.
    fn give_back(&self, file: Option<&OpenFile>) {
        let Some(file) = file else { return };
        for (disk, _) in &file.copies {
            self.recycle(*disk, file.sequence, true);
        }
    }

    /// As [`Self::until_done`], with files of one length. Also returns whether a disk had no room for it.
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
            // Each failure excludes a disk, so this ends.
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

    /// Makes one file on all disks of `set`. Disks that fail are faulted. Full disks are only reported, because their
    /// files can still be overwritten and freed.
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
            // Before the file exists, whose header promises copies that are not made yet. The log waits for a late disk
            // only where it cannot do without it.
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
        // The header names disks that do not have the file: the file must not get any record.
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

    /// The records of a file up to its last position `last`, merged from several copies if none is complete. A draining
    /// or faulted disk may still be the one that has a record.
    pub(super) async fn read_records(
        &self,
        sequence: u64,
        last: LogPosition,
        disks: &[usize],
    ) -> Result<Vec<(RecordHead, Bytes)>, MetaError> {
        let mut order = disks.to_vec();
        // Late disks come last: an append may wait for this.
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
        // Every copy has lost something: together they must have no gap.
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

    /// Fails if a file that must leave room would take the last of it.
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
