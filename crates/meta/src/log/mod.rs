//! The commit log of a volume: one ordered sequence of groups, durable on several disks.
//!
//! Owns: log files, their copies, rolling over to other disks when one fails, recycling.
//! Must not know: what is in a group, the state, who waits.

pub(crate) mod format;
pub(crate) mod group;
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
    BLOCK_BYTES, FileHeader, MEMBER_COUNT_MAX, RecordBuf, SET_COUNT_MAX, Term, find_records,
};

/// Most files without content that are kept on one disk to be used again.
const SPARE_FILE_COUNT_MAX: usize = 3;
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
}

/// A file that is not written any more, but still needed.
pub(crate) struct Retained {
    pub sequence: u64,
    /// The last position in it; 0 if there is none.
    pub last: LogPosition,
    pub disks: Vec<usize>,
    pub len_bytes: u64,
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
}

/// The log as files on several disks, written in parallel.
pub(crate) struct MirroredLog {
    files: FileMaker,
    current: OpenFile,
    next: Option<oneshot::Receiver<Option<OpenFile>>>,
    sequence_next: u64,
    retained: VecDeque<Retained>,
    syncs: u64,
    /// Some of what is kept has fewer copies than were asked for.
    is_short: bool,
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
    pub async fn start(
        files: FileMaker,
        sequence_next: u64,
        retained: VecDeque<Retained>,
    ) -> Result<Self, MetaError> {
        let mut sequence_next = sequence_next;
        let current = files.until_done(&mut sequence_next).await?;
        Ok(Self {
            files,
            current,
            next: None,
            sequence_next,
            retained,
            syncs: 0,
            is_short: false,
        })
    }

    /// Prepares the next file in the background, so that rolling over costs nothing.
    fn prepare_next(&mut self) {
        let files = self.files.clone();
        // One attempt here; retries happen in the foreground, when the file is needed.
        let sequence = self.sequence_next;
        self.sequence_next += 1;
        let (sender, receiver) = oneshot::channel();
        self.next = Some(receiver);
        self.files.tasks.spawn("log-prepare", async move {
            let set = files.choose(&[]);
            let made = files.run(sequence, set).await.ok();
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
            healthy && !file.copies.is_empty() && file.copies.len() == wanted
        };
        let file = match prepared {
            Some(file) if is_whole(&file) => file,
            unfit => {
                if let Some(file) = unfit {
                    self.retain(&file);
                }
                self.files.until_done(&mut self.sequence_next).await?
            }
        };
        let old = std::mem::replace(&mut self.current, file);
        self.retain(&old);
        Ok(())
    }

    /// Goes on in a file with as many copies as are wanted now, and copies into it what is still needed
    /// of older ones: the journal is nowhere else. Without space for that the log goes on with the
    /// copies that it has, which shows in the status.
    async fn roll_for_copies(&mut self, retained_from: LogPosition) {
        let wanted = self.files.disks.copies_wanted();
        let mut done = self.roll().await;
        if done.is_ok() {
            done = self.copy_retained(retained_from).await;
        }
        self.is_short = done.is_err();
        if let Err(error) = done {
            self.current.copies_wanted = wanted;
            tracing::warn!(
                volume = self.files.disks.volume.0,
                %error,
                "not all of the log has as many copies as are wanted"
            );
        }
    }

    async fn copy_retained(&mut self, retained_from: LogPosition) -> Result<(), MetaError> {
        let disks = self.files.disks.clone();
        let possible = disks.copies_possible();
        let is_short = |file: &Retained| {
            let healthy = file.disks.iter().filter(|disk| disks.is_healthy(**disk));
            healthy.count() < possible
        };
        let needed = |file: &&Retained| file.last >= retained_from && is_short(file);
        let old: Vec<(u64, Vec<usize>)> = self
            .retained
            .iter()
            .filter(needed)
            .map(|file| (file.sequence, file.disks.clone()))
            .collect();
        for (sequence, disks) in old {
            let (nonce, body) = self.files.read_any(sequence, &disks).await?;
            for found in find_records(&body, nonce) {
                let head = found.head;
                if head.last < retained_from {
                    continue;
                }
                let payload = body.get(found.payload).unwrap_or_default();
                let positions = (head.first, head.last);
                let copy = RecordBuf::copy_of(payload, positions, head.epoch, head.term);
                self.append(copy, retained_from, false).await?;
            }
        }
        Ok(())
    }

    fn retain(&mut self, file: &OpenFile) {
        self.retained.push_back(Retained {
            sequence: file.sequence,
            last: file.last,
            disks: file.copies.iter().map(|(disk, _)| *disk).collect(),
            len_bytes: self.files.info.log_file_bytes,
        });
    }

    /// Writes to all copies of the current file; false when some failed, which are dropped then.
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
                let here = may_block && index == last;
                match here
                    .then(|| file.write_durable_now(offset, &bytes))
                    .flatten()
                {
                    Some(result) => result,
                    None => file.write_durable_at(offset, vec![bytes]).await,
                }
            }
        };
        let results = match self.current.copies.as_slice() {
            [only] => vec![write((0, only)).await],
            copies => join_all(copies.iter().enumerate().map(write)).await,
        };
        self.syncs += results.len() as u64;
        let mut is_whole = true;
        for ((disk, _), result) in self.current.copies.iter().zip(results) {
            if let Err(error) = result {
                self.files.disks.mark_failed(*disk, &error);
                is_whole = false;
            }
        }
        let disks = &self.files.disks;
        let copies = &mut self.current.copies;
        copies.retain(|(disk, _)| disks.is_healthy(*disk));
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
            self.roll_for_copies(retained_from).await;
        }
        if self.current.offset + len > file_len || !self.current.copies.iter().all(is_healthy) {
            self.current.copies.retain(is_healthy);
            self.roll().await?;
        } else if self.current.copies_wanted != disks.copies_wanted() {
            self.roll_for_copies(retained_from).await;
        }
        loop {
            record.seal(self.current.nonce, retained_from);
            let RecordBuf { bytes, head } = record;
            let bytes = bytes.freeze();
            if self.write(&bytes, may_block).await {
                self.current.last = head.last;
                break;
            }
            // The group goes to other disks as a whole before anyone is told that it is durable. Nothing
            // goes to what is left of this file any more, also if there is no space for another now.
            self.current.offset = file_len;
            self.roll().await?;
            record = RecordBuf {
                bytes: AlignedBuf::copy_of(&bytes),
                head,
            };
        }
        self.current.offset += len;
        self.files.retained_from = self.files.retained_from.max(retained_from);
        if self.next.is_none() && self.current.offset > file_len / 4 {
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
            is_short: self.is_short,
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
    u64::from_str_radix(digits, 16)
        .ok()
        .filter(|_| is_canonical)
}

/// Makes log files and takes back those that are not needed any more.
#[derive(Clone)]
pub(crate) struct FileMaker {
    pub env: Env,
    pub tasks: Tasks,
    pub disks: DiskSet,
    pub info: TermInfo,
    pub spares: Arc<Spares>,
    /// As of the last durable record.
    pub retained_from: LogPosition,
}

impl FileMaker {
    /// Keeps the copies of a file that is not needed any more as spares, or removes them.
    fn release(&self, file: &Retained) {
        let folder = self.disks.folder();
        for disk in &file.disks {
            let name = file_name(&folder, file.sequence);
            if self.disks.is_healthy(*disk) && !self.spares.offer(*disk, name.clone()) {
                remove_later(&self.tasks, &self.disks, *disk, name);
            }
        }
    }

    /// The first healthy disks, as many as copies are wanted.
    fn choose(&self, full: &[usize]) -> Vec<usize> {
        let mut set = self.disks.healthy();
        set.retain(|disk| !full.contains(disk));
        set.truncate(self.disks.copies_wanted().min(SET_COUNT_MAX));
        set
    }

    /// Tries again without the disks that fail, until there is a file on all disks of a set.
    async fn until_done(&self, sequence_next: &mut u64) -> Result<OpenFile, MetaError> {
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
            let sequence = *sequence_next;
            *sequence_next += 1;
            // Each failure takes a disk away, so this ends.
            match self.run(sequence, set).await {
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
    ) -> Result<OpenFile, Vec<(usize, DiskError)>> {
        let copies_wanted = self.disks.copies_wanted();
        let members = self.disks.ids().into_iter().take(MEMBER_COUNT_MAX);
        let header = FileHeader {
            volume: self.disks.volume,
            sequence,
            nonce: self.env.entropy.u64(),
            file_len_bytes: self.info.log_file_bytes,
            retained_from: self.retained_from,
            copies: copies_wanted.min(SET_COUNT_MAX) as u8,
            set: set.iter().map(|disk| self.disks.get(*disk).id).collect(),
            members: members.collect(),
            history: self.info.history.clone(),
        };
        let block = header.encode().freeze();
        let makes = set.iter().map(|disk| self.make(*disk, sequence, &block));
        let results = join_all(makes).await;
        let mut copies = Vec::with_capacity(set.len());
        let mut failures = Vec::new();
        for (disk, result) in set.into_iter().zip(results) {
            match result {
                Ok(file) => copies.push((disk, file)),
                Err(error) => {
                    if !matches!(error, DiskError::Full { .. }) {
                        self.disks.mark_failed(disk, &error);
                    }
                    failures.push((disk, error));
                }
            }
        }
        if failures.is_empty() {
            return Ok(OpenFile {
                sequence,
                nonce: header.nonce,
                offset: BLOCK_BYTES as u64,
                last: LogPosition(0),
                copies_wanted,
                copies,
            });
        }
        // The header names disks that do not have it: this file must not hold anything.
        self.release(&Retained {
            sequence,
            last: LogPosition(0),
            disks: copies.iter().map(|(disk, _)| *disk).collect(),
            len_bytes: self.info.log_file_bytes,
        });
        Err(failures)
    }

    /// The nonce and what follows the header of a file, from the first of `disks` that gives it.
    async fn read_any(&self, sequence: u64, disks: &[usize]) -> Result<(u64, Bytes), MetaError> {
        let mut last_error = MetaError::NoDisk {
            volume: self.disks.volume,
        };
        for disk in disks.iter().filter(|disk| self.disks.is_healthy(**disk)) {
            match self.read(*disk, sequence).await {
                Ok(content) => return Ok(content),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    async fn read(&self, disk: usize, sequence: u64) -> Result<(u64, Bytes), MetaError> {
        let name = file_name(&self.disks.folder(), sequence);
        let member = self.disks.get(disk);
        let file = member.disk.open(&name, OpenMode::Existing).await?;
        let header = FileHeader::decode(&file.read_at(0, BLOCK_BYTES).await?)?;
        let nonce = header.map(|header| header.nonce).unwrap_or_default();
        let len = usize::try_from(file.len_bytes()).unwrap_or(usize::MAX);
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
