//! The commit log of a volume: one ordered sequence of groups, durable on several disks.
//!
//! Owns: log files, their copies, rolling over to other disks when one fails, recycling.
//! Must not know: what is in a group, the state, who waits.

pub(crate) mod format;
pub(crate) mod group;
pub(crate) mod headers;
pub(crate) mod recover;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::buf::AlignedBuf;
use cairn_base::disk::{DiskError, DiskFile, OpenMode};
use cairn_base::env::Env;
use cairn_base::planted::{self, Bug};
use cairn_base::{DiskId, LogPosition};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::disks::DiskSet;
use crate::error::MetaError;
use crate::tasks::Tasks;
use format::{
    BLOCK_BYTES, FILE_LEN_BYTES_MAX, FileHeader, MEMBER_COUNT_MAX, RECORD_HEAD_BYTES, RecordBuf,
    RecordHead, SET_COUNT_MAX, Term, find_records, record_len_bytes,
};
use headers::{Headers, Members, NewestHeader};

/// Most files without content that are kept on one disk to be used again.
const SPARE_FILE_COUNT_MAX: usize = 3;
/// Length of a file that a disk gets for its header only, with one block that holds nothing.
const TOLD_FILE_BYTES: u64 = 2 * BLOCK_BYTES as u64;

pub(crate) type LogFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, MetaError>> + Send + 'a>>;

/// The seam between the committer and where groups become durable.
pub(crate) trait CommitLog: Send {
    /// Makes the record durable with full protection. With it, it is durable that positions below
    /// `retained_from` are not needed any more. An error is final. With `may_block`, the thread of
    /// the caller may be blocked for as long as the write takes.
    fn append(
        &mut self,
        record: RecordBuf,
        retained_from: LogPosition,
        may_block: bool,
    ) -> LogFuture<'_, ()>;
    /// Gives up what is below the `retained_from` of the last durable record.
    fn trim(&mut self);
    fn status(&self) -> LogStatus;
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LogStatus {
    /// Bytes kept, on one disk.
    pub retained_bytes: u64,
    pub syncs: u64,
    pub disks: Vec<DiskId>,
    pub start: LogPosition,
    /// Some of what is kept has fewer copies than were asked for.
    pub is_short: bool,
}

/// What every header of a term says.
#[derive(Clone)]
pub(crate) struct TermInfo {
    pub log_file_bytes: u64,
    pub history: Vec<Term>,
    /// Set for files that only get copies of records, for a term that is over: they say of its disks what
    /// its own files say. Else a start counts, without the disks that are away now, too few as missing.
    pub members: Option<Members>,
}

/// A file that is not written any more, but still needed.
pub(crate) struct Retained {
    pub sequence: u64,
    /// The last position in it; 0 if there is none.
    pub last: LogPosition,
    pub disks: Vec<usize>,
    /// Disks that were dropped from it while it was written, and have what was acknowledged in it. They do not count
    /// as copies, but what no other has may be read from them.
    pub dropped: Vec<usize>,
    pub len_bytes: u64,
    /// Disks that got copies of all that is in it since, into other files.
    pub copied: Vec<usize>,
    /// It was there before this start: who has what of it the [`Part`]s say.
    pub is_old: bool,
}

/// Records that follow each other and that the same disks have, of what was there before the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub first: LogPosition,
    pub last: LogPosition,
    pub holders: Vec<usize>,
}

impl Retained {
    fn of(file: &OpenFile, info: &TermInfo) -> Self {
        Self {
            sequence: file.sequence,
            last: file.last,
            disks: file.copies.iter().map(|(disk, _)| *disk).collect(),
            dropped: file.dropped.clone(),
            len_bytes: info.log_file_bytes,
            copied: Vec::new(),
            is_old: false,
        }
    }

    /// The disks that have all of it, be it that some failed since: those are away, or have it.
    fn holders(&self) -> Vec<usize> {
        let disks = self.disks.iter().chain(&self.dropped);
        disks.chain(&self.copied).copied().collect()
    }
}

struct OpenFile {
    sequence: u64,
    nonce: u64,
    /// Where the next record goes.
    offset: u64,
    last: LogPosition,
    /// Copies wanted when it was made.
    copies_wanted: usize,
    copies: Vec<(usize, Arc<dyn DiskFile>)>,
    /// Disks that had a copy and are not written to any more.
    dropped: Vec<usize>,
    /// Disks that lack some of what was before it, and were told so.
    behind: Vec<usize>,
}

impl OpenFile {
    fn drop_unhealthy(&mut self, disks: &DiskSet) {
        let dropped = &mut self.dropped;
        self.copies.retain(|(disk, _)| {
            let is_healthy = disks.is_healthy(*disk);
            if !is_healthy {
                dropped.push(*disk);
            }
            is_healthy
        });
    }
}

/// The log as files on several disks, written in parallel.
pub(crate) struct MirroredLog {
    files: FileMaker,
    current: OpenFile,
    next: Option<oneshot::Receiver<Option<OpenFile>>>,
    sequence_next: u64,
    retained: VecDeque<Retained>,
    /// What was there before the start, as far as it may still be needed.
    old: Vec<Part>,
    syncs: u64,
    /// Up to here some of what is kept may have fewer copies than were asked for; 0 if all has.
    short_through: LogPosition,
}

/// Names of files that can be used again, by disk.
#[derive(Default)]
pub(crate) struct Spares(Mutex<BTreeMap<usize, Vec<String>>>);

impl Spares {
    fn take(&self, disk: usize) -> Option<String> {
        self.0.lock().get_mut(&disk)?.pop()
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

impl MirroredLog {
    /// Starts a term: a new file on `copies` disks. Nothing may be served before this has returned.
    /// What is in the files that are there is in `old`.
    pub async fn start(
        files: FileMaker,
        sequence_next: u64,
        mut retained: VecDeque<Retained>,
        old: Vec<Part>,
    ) -> Result<Self, MetaError> {
        let mut sequence_next = sequence_next;
        let needed: Vec<Vec<usize>> = old.iter().map(|part| part.holders.clone()).collect();
        let current = files.until_done(&mut sequence_next, &needed).await?;
        for file in &mut retained {
            file.is_old = true;
        }
        files.tell_left_behind(&current).await;
        Ok(Self {
            files,
            current,
            next: None,
            sequence_next,
            retained,
            old,
            syncs: 0,
            short_through: LogPosition(0),
        })
    }

    /// More copies were made of what was there before the start.
    pub fn set_old(&mut self, old: Vec<Part>) {
        self.old = old;
    }

    /// The disks that the last record was written to.
    pub fn disks(&self) -> impl Iterator<Item = usize> {
        self.current.copies.iter().map(|(disk, _)| *disk)
    }

    /// Writes nothing more. Returns the files, which are needed as before, and the next sequence number.
    pub fn into_retained(mut self) -> (VecDeque<Retained>, u64) {
        let last = Retained::of(&self.current, &self.files.info);
        self.retained.push_back(last);
        (self.retained, self.sequence_next)
    }

    /// The disks that have each part of what is still needed.
    fn needed(&self) -> Vec<Vec<usize>> {
        let from = self.files.retained_from;
        let old = self.old.iter().filter(|part| part.last >= from);
        let retained = self.retained.iter();
        let retained = retained.filter(|file| !file.is_old && file.last >= from);
        let mut needed: Vec<Vec<usize>> = old
            .map(|part| part.holders.clone())
            .chain(retained.map(Retained::holders))
            .collect();
        if self.current.last >= from {
            needed.push(self.disks().chain(self.current.dropped.clone()).collect());
        }
        needed
    }

    /// Prepares the next file in the background, so that rolling over costs nothing. Not on a disk that lacks
    /// anything: what its header says is not true before the file is used.
    fn prepare_next(&mut self) {
        let files = self.files.clone();
        let set = files.choose(&[]);
        let needed = self.needed();
        if !files.behind(&set, &needed).is_empty() {
            return;
        }
        // One attempt here; retries happen in the foreground, when the file is needed.
        let sequence = take_sequence(&mut self.sequence_next);
        let (sender, receiver) = oneshot::channel();
        self.next = Some(receiver);
        self.files.tasks.spawn("log-prepare", async move {
            let made = files.run(sequence, set, &needed).await.ok();
            // The log may be gone meanwhile: the next open finds the file and uses it again.
            let _ = sender.send(made);
        });
    }

    /// Gives up the file that was prepared: its header says who the members were.
    async fn drop_prepared(&mut self) {
        let prepared = match self.next.take() {
            Some(receiver) => receiver.await.ok().flatten(),
            None => None,
        };
        if let Some(file) = prepared {
            self.retain(&file);
        }
    }

    /// Goes on in another file, on healthy disks only.
    async fn roll(&mut self) -> Result<(), MetaError> {
        let prepared = match self.next.take() {
            Some(receiver) => receiver.await.ok().flatten(),
            None => None,
        };
        let wanted = self.files.choose(&[]).len();
        let disks = self.files.disks.clone();
        let is_whole = |file: &OpenFile| {
            let healthy = file.copies.iter().all(|(disk, _)| disks.is_healthy(*disk));
            let is_as_asked = file.copies_wanted == disks.copies_wanted();
            healthy && is_as_asked && !file.copies.is_empty() && file.copies.len() == wanted
        };
        let file = match prepared {
            Some(file) if is_whole(&file) => file,
            unfit => {
                if let Some(file) = unfit {
                    self.retain(&file);
                }
                let needed = self.needed();
                let files = &self.files;
                files.until_done(&mut self.sequence_next, &needed).await?
            }
        };
        self.files.tell_left_behind(&file).await;
        let old = std::mem::replace(&mut self.current, file);
        self.retain(&old);
        Ok(())
    }

    /// Goes on in a file with as many copies as are wanted now, and copies into it what is still needed
    /// of older ones: the journal is nowhere else. Without space for that the log goes on with the
    /// copies that it has, which shows in the status.
    ///
    /// What comes next is not durable yet, so the copies say that all is needed that was before it: what
    /// folds a journal entry may be lost, and the entry must be there then.
    async fn roll_for_copies(&mut self) {
        let wanted = self.files.disks.copies_wanted();
        let last = self.last();
        if wanted < self.current.copies.len() {
            self.files.stays_on = self.disks().collect();
        }
        let mut done = self.roll().await;
        if done.is_ok() {
            done = self.copy_retained(self.files.retained_from).await;
        }
        self.short_through = match self.has_all_copies() && done.is_ok() {
            true => LogPosition(0),
            false => last,
        };
        self.tell_caught_up().await;
        if let Err(error) = done {
            self.current.copies_wanted = wanted;
            tracing::warn!(
                volume = self.files.disks.volume.0,
                %error,
                "not all of the log has as many copies as are wanted"
            );
        }
    }

    /// Tells disks that lacked something when the file was begun, and have all by now, or do without, what the others'
    /// headers say. Until then they do not start without those that had it all.
    async fn tell_caught_up(&mut self) {
        if self.current.behind.is_empty() {
            return;
        }
        let set: Vec<usize> = self.disks().collect();
        let still = self.files.behind(&set, &self.needed());
        let behind = std::mem::take(&mut self.current.behind);
        let (behind, done): (Vec<usize>, Vec<usize>) =
            behind.into_iter().partition(|disk| still.contains(disk));
        self.current.behind = behind;
        let done: Vec<usize> = done.into_iter().filter(|disk| set.contains(disk)).collect();
        if done.is_empty() {
            return;
        }
        let sequence = take_sequence(&mut self.sequence_next);
        let members = self.files.members_for(&set);
        let tell = done
            .into_iter()
            .map(|disk| self.files.tell(disk, sequence, &members));
        if join_all(tell).await.contains(&false) {
            // As long as it does not know that it has all, nothing starts with it alone.
            self.short_through = self.last();
        }
    }

    async fn copy_retained(&mut self, retained_from: LogPosition) -> Result<(), MetaError> {
        let disks = self.files.disks.clone();
        let possible = disks.copies_possible();
        // What is on all disks that the log goes on with would only be there twice, and once more each time that
        // copies are asked for while a disk has no space for them.
        let set: Vec<usize> = self.disks().collect();
        let is_short = |holders: &[usize]| {
            let healthy = holders.iter().filter(|disk| disks.is_healthy(**disk));
            healthy.count() < possible && !set.iter().all(|disk| holders.contains(disk))
        };
        let is_short_part =
            |part: &&mut Part| part.last >= retained_from && is_short(&part.holders);
        let short_from = self.old.iter_mut().filter(is_short_part);
        let short_from = short_from.map(|part| part.first).min();
        let is_needed = |file: &&Retained| {
            let is_short = match file.is_old {
                true => short_from.is_some_and(|first| file.last >= first),
                false => is_short(&file.holders()),
            };
            file.last >= retained_from && is_short
        };
        let copied: Vec<(u64, LogPosition, Vec<usize>)> = self
            .retained
            .iter()
            .filter(is_needed)
            .map(|file| {
                let disks = file.disks.iter().chain(&file.dropped);
                (file.sequence, file.last, disks.copied().collect())
            })
            .collect();
        let mut on = set.clone();
        for (sequence, last, disks) in &copied {
            for (head, payload) in self.files.read_records(*sequence, *last, disks).await? {
                if head.last < retained_from {
                    continue;
                }
                let positions = (head.first, head.last);
                let copy = RecordBuf::copy_of(&payload, positions, head.epoch, head.term);
                self.append(copy, retained_from, false).await?;
                on.retain(|disk| self.current.copies.iter().any(|(has, _)| has == disk));
            }
        }
        for part in self.old.iter_mut().filter(is_short_part) {
            part.holders.extend(&on);
        }
        for file in &mut self.retained {
            if copied
                .iter()
                .any(|(sequence, ..)| *sequence == file.sequence)
            {
                file.copied.extend(&on);
            }
        }
        Ok(())
    }

    /// Whether the file that is written is on as many disks as it could be.
    fn has_all_copies(&self) -> bool {
        let disks = &self.files.disks;
        let count = self.current.copies.len();
        count >= disks.copies_wanted() || count >= disks.copies_possible()
    }

    /// The last position written.
    fn last(&self) -> LogPosition {
        let retained = self.retained.iter().map(|file| file.last);
        retained.max().unwrap_or_default().max(self.current.last)
    }

    fn retain(&mut self, file: &OpenFile) {
        self.retained
            .push_back(Retained::of(file, &self.files.info));
    }

    /// Writes to all copies of the current file; false when there are none, and when some failed, which are
    /// dropped then.
    async fn write(&mut self, bytes: &Bytes, may_block: bool) -> bool {
        let offset = self.current.offset;
        let last = self.current.copies.len().saturating_sub(1);
        let write = |(index, (_, file)): (usize, &(usize, Arc<dyn DiskFile>))| {
            let file = file.clone();
            let bytes = bytes.clone();
            async move {
                // All are begun in this order: the others are on their way when this thread blocks.
                if planted::is(Bug::LogWithoutSync) {
                    return file.write_at(offset, vec![bytes]).await;
                }
                match may_block && index == last {
                    true => file.write_durable_here(offset, bytes).await,
                    false => file.write_durable_at(offset, vec![bytes]).await,
                }
            }
        };
        let results = match self.current.copies.as_slice() {
            [only] => vec![write((0, only)).await],
            copies => join_all(copies.iter().enumerate().map(write)).await,
        };
        self.syncs += results.len() as u64;
        let mut is_whole = !results.is_empty();
        for ((disk, _), result) in self.current.copies.iter().zip(results) {
            if let Err(error) = result {
                // No space is no sign of a bad disk; another file finds out whether there is some.
                if !matches!(error, DiskError::Full { .. }) {
                    self.files.disks.mark_failed(*disk, &error);
                }
                is_whole = false;
            }
        }
        self.current.drop_unhealthy(&self.files.disks);
        is_whole
    }

    async fn append_record(
        &mut self,
        mut record: RecordBuf,
        retained_from: LogPosition,
        may_block: bool,
    ) -> Result<(), MetaError> {
        let len = record.len_bytes();
        let file_len = self.files.info.log_file_bytes;
        assert!(len <= file_len - BLOCK_BYTES as u64);
        // A disk may have failed in other hands since: the copy there does not count any more.
        let disks = self.files.disks.clone();
        let is_healthy = |(disk, _): &(usize, Arc<dyn DiskFile>)| disks.is_healthy(*disk);
        if disks.take_changed() {
            // A start counts the members that are missing, so no header may name one that left.
            self.drop_prepared().await;
            self.roll_for_copies().await;
        }
        if self.current.offset + len > file_len || !self.current.copies.iter().all(is_healthy) {
            // Nothing goes to what is left of this file any more, also if there is no space for another now.
            self.current.offset = file_len;
            self.current.drop_unhealthy(&disks);
            self.roll().await?;
        } else if self.current.copies_wanted != disks.copies_wanted() {
            self.roll_for_copies().await;
        }
        loop {
            record.seal(self.current.nonce, retained_from);
            let RecordBuf { bytes, head } = record;
            let bytes = bytes.freeze();
            if self.write(&bytes, may_block).await {
                // Copies of older records may come after newer ones, where files to be copied overlap.
                self.current.last = self.current.last.max(head.last);
                break;
            }
            // The group goes to other disks as a whole before anyone is told that it is durable.
            self.current.offset = file_len;
            self.roll().await?;
            record = RecordBuf {
                bytes: AlignedBuf::copy_of(&bytes),
                head,
            };
        }
        self.current.offset += len;
        if !self.has_all_copies() {
            self.short_through = self.last();
        }
        self.files.retained_from = self.files.retained_from.max(retained_from);
        self.tell_caught_up().await;
        let goes_on = self.files.info.members.is_none();
        if goes_on && self.next.is_none() && self.current.offset > file_len / 4 {
            self.prepare_next();
        }
        Ok(())
    }
}

impl CommitLog for MirroredLog {
    fn append(
        &mut self,
        record: RecordBuf,
        retained_from: LogPosition,
        may_block: bool,
    ) -> LogFuture<'_, ()> {
        Box::pin(self.append_record(record, retained_from, may_block))
    }

    fn trim(&mut self) {
        let needed = self.files.retained_from;
        self.old.retain(|part| part.last >= needed);
        if self.retained.iter().all(|file| file.last >= needed) {
            return;
        }
        let retained = std::mem::take(&mut self.retained).into_iter();
        let (kept, old): (VecDeque<_>, VecDeque<_>) =
            retained.partition(|file| file.last >= needed);
        self.retained = kept;
        for file in &old {
            self.files.release(file);
        }
    }

    fn status(&self) -> LogStatus {
        let retained: u64 = self.retained.iter().map(|file| file.len_bytes).sum();
        let disk_id = |(disk, _): &(usize, Arc<dyn DiskFile>)| self.files.disks.get(*disk).id;
        LogStatus {
            retained_bytes: retained + self.current.offset,
            syncs: self.syncs,
            disks: self.current.copies.iter().map(disk_id).collect(),
            start: self.files.retained_from,
            is_short: self.short_through >= self.files.retained_from,
        }
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
fn take_sequence(next: &mut u64) -> u64 {
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
}

impl FileMaker {
    /// Keeps the copies of a file that is not needed any more as spares, or removes them.
    fn release(&self, file: &Retained) {
        // One of another length, as copies of records are in, would only be removed later.
        let is_fit = file.len_bytes == self.info.log_file_bytes;
        for disk in &file.disks {
            if self.disks.is_healthy(*disk) && !self.headers.keep(*disk, file.sequence) {
                self.recycle(*disk, file.sequence, is_fit);
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
    /// cannot be told, because it fails or has no space, is left as it is: the log must go on.
    async fn tell_left_behind(&self, file: &OpenFile) {
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
            .filter(|disk| self.disks.is_usable(*disk))
            .filter(|disk| file.copies.iter().all(|(has, _)| has != disk))
            .map(|disk| self.tell(disk, file.sequence - 1, &members));
        join_all(tell).await;
    }

    /// Gives a disk a file with nothing but a header.
    async fn make_told(
        &self,
        disk: usize,
        sequence: u64,
        members: &Members,
    ) -> Result<(), DiskError> {
        // Where there is no space for a log file there may be for a short one.
        let mut files = self.clone();
        files.info.log_file_bytes = TOLD_FILE_BYTES;
        let header = files.header(sequence, &[self.disks.get(disk).id], members);
        files
            .make(disk, sequence, &header.encode().freeze())
            .await?;
        let newest = NewestHeader {
            sequence,
            members: members.clone(),
            is_all: true,
        };
        self.note_header(disk, newest);
        Ok(())
    }

    /// Whether the disk has been told.
    async fn tell(&self, disk: usize, sequence: u64, members: &Members) -> bool {
        let told = self.make_told(disk, sequence, members).await;
        match &told {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(
                    volume = self.disks.volume.0,
                    disk = self.disks.get(disk).disk.label(),
                    %error,
                    "this disk does not know that the metadata's log goes on without it"
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
    fn behind(&self, set: &[usize], needed: &[Vec<usize>]) -> Vec<usize> {
        let members = self.members_for(set);
        let is_member = |disk: &&usize| members.disks.contains(&self.disks.get(**disk).id);
        let holders = |part: &Vec<usize>| part.iter().filter(is_member).count();
        let short = |part: &&Vec<usize>| holders(part) < members.copies();
        let short: Vec<&Vec<usize>> = needed.iter().filter(short).collect();
        let lacks = |disk: &&usize| short.iter().any(|part| !part.contains(disk));
        set.iter().filter(lacks).copied().collect()
    }

    /// What a disk is told that is behind.
    fn members_before(&self, disk: usize, set: &[usize], needed: &[Vec<usize>]) -> Members {
        // At a start there may be copies on disks that are away. What it was told before it was so is as true as then.
        if self.info.members.is_some()
            && let Some(members) = self.headers.newest(disk)
        {
            return members;
        }
        // Those that have everything, of whom one is enough, must not all be missing.
        let has_all = |disk: &&usize| needed.iter().all(|part| part.contains(disk));
        let whole = set.iter().filter(has_all);
        let whole: Vec<DiskId> = whole.map(|disk| self.disks.get(*disk).id).collect();
        match whole.len() {
            // Where there is none, nobody may be missing: any may be the only one to have something.
            0 => Members {
                copies: 1,
                ..self.members_for(set)
            },
            count => Members {
                disks: whole,
                copies: count as u8,
            },
        }
    }

    /// What the header of a file on a set of disks says.
    fn members_for(&self, set: &[usize]) -> Members {
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
            nonce: self.env.entropy.u64(),
            file_len_bytes: self.info.log_file_bytes,
            retained_from: self.retained_from,
            copies: members.copies,
            set: set.to_vec(),
            members: members.disks.clone(),
            history: self.info.history.clone(),
        }
    }

    /// The first healthy disks, as many as copies are wanted; before them those that the log stays on.
    fn choose(&self, full: &[usize]) -> Vec<usize> {
        let mut set = self.disks.healthy();
        set.retain(|disk| !full.contains(disk));
        set.sort_by_key(|disk| !self.stays_on.contains(disk));
        set.truncate(self.disks.copies_wanted().min(SET_COUNT_MAX));
        set
    }

    /// Tries again without the disks that fail, until there is a file on all disks of a set.
    async fn until_done(
        &self,
        sequence_next: &mut u64,
        needed: &[Vec<usize>],
    ) -> Result<OpenFile, MetaError> {
        let mut full = Vec::new();
        let mut full_error = None;
        loop {
            let set = self.choose(&full);
            if set.is_empty() {
                return Err(full_error.map_or(
                    MetaError::NoDisk {
                        volume: self.disks.volume,
                    },
                    MetaError::Disk,
                ));
            }
            let sequence = take_sequence(sequence_next);
            // Each failure takes a disk away, so this ends.
            match self.run(sequence, set, needed).await {
                Ok(file) => return Ok(file),
                Err(failures) => {
                    for (disk, error) in failures {
                        full.push(disk);
                        full_error = Some(error);
                    }
                }
            }
        }
    }

    /// Makes one file on all disks of `set`. Disks that fail are marked; full ones only reported,
    /// because they still can be overwritten and freed.
    async fn run(
        &self,
        sequence: u64,
        set: Vec<usize>,
        needed: &[Vec<usize>],
    ) -> Result<OpenFile, Vec<(usize, DiskError)>> {
        let copies_wanted = self.disks.copies_wanted();
        let ids: Vec<DiskId> = set.iter().map(|disk| self.disks.get(*disk).id).collect();
        let behind = self.behind(&set, needed);
        if !behind.is_empty() {
            // Before the file is there, whose header promises what is not kept yet.
            let tell = behind.iter().map(|disk| {
                let members = self.members_before(*disk, &set, needed);
                async move { self.make_told(*disk, sequence + 1, &members).await }
            });
            let told = behind.iter().copied().zip(join_all(tell).await);
            let failures: Vec<_> = told
                .filter_map(|(disk, told)| Some((disk, told.err()?)))
                .collect();
            if !failures.is_empty() {
                return Err(self.note_failures(failures));
            }
        }
        let members = self.members_for(&set);
        let header = self.header(sequence, &ids, &members);
        let block = header.encode().freeze();
        let makes = set.iter().map(|disk| self.make(*disk, sequence, &block));
        let results = join_all(makes).await;
        let mut copies = Vec::with_capacity(set.len());
        let mut failures = Vec::new();
        for (disk, result) in set.into_iter().zip(results) {
            match result {
                Ok(file) => {
                    let newest = NewestHeader {
                        sequence,
                        members: members.clone(),
                        is_all: false,
                    };
                    self.note_header(disk, newest);
                    copies.push((disk, file));
                }
                Err(error) => failures.push((disk, error)),
            }
        }
        let failures = self.note_failures(failures);
        if failures.is_empty() {
            return Ok(OpenFile {
                sequence,
                nonce: header.nonce,
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
    async fn read_records(
        &self,
        sequence: u64,
        last: LogPosition,
        disks: &[usize],
    ) -> Result<Vec<(RecordHead, Bytes)>, MetaError> {
        let mut order = disks.to_vec();
        order.sort_by_key(|disk| !self.disks.is_healthy(*disk));
        let mut all = BTreeMap::new();
        let mut last_error = None;
        for disk in order {
            let (nonce, body) = match self.read(disk, sequence).await {
                Ok(content) => content,
                Err(error) => {
                    last_error = Some(error);
                    continue;
                }
            };
            let mut end = 0;
            let mut is_whole = true;
            let mut reaches = false;
            for found in find_records(&body, nonce) {
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

    async fn read(&self, disk: usize, sequence: u64) -> Result<(u64, Bytes), MetaError> {
        let name = file_name(&self.disks.folder(), sequence);
        let member = self.disks.get(disk);
        let file = member.disk.open(&name, OpenMode::Existing).await?;
        let header = FileHeader::decode(&file.read_at(0, BLOCK_BYTES).await?)?;
        let header = header.filter(|header| header.sequence == sequence);
        let Some(nonce) = header.map(|header| header.nonce) else {
            let (disk, what) = (member.disk.label().to_owned(), format!("reading {name}"));
            let detail = "its header is damaged".to_owned();
            return Err(DiskError::Io { disk, what, detail }.into());
        };
        let len_bytes = file.len_bytes().min(FILE_LEN_BYTES_MAX);
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let body = file.read_at(BLOCK_BYTES as u64, len.saturating_sub(BLOCK_BYTES));
        Ok((nonce, body.await?))
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
