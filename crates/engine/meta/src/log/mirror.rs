//! The log as files on several disks of one server, written in parallel.
//!
//! Owns: moving to other disks when one fails, copies of retained records. Must not know: the contents of a group, the
//! state, the callers that wait.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::LogPosition;
use cairn_base::buf::AlignedBuf;
use cairn_base::disk::{DiskError, DiskFile};
use cairn_base::planted::{self, Bug};
use cairn_formats::metadata::log::{BLOCK_BYTES, RecordBuf};
use futures_util::future::{Either, join_all, select};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::fan_out::{Done, Work, all_or_late};
use super::files::{FileMaker, OpenFile, take_sequence};
use super::{LogFuture, LogStatus, LogWriter};
use crate::error::MetaError;

/// A file that gets no more records and is still needed.
pub(crate) struct Retained {
    pub sequence: u64,
    /// The last position in the file; 0 if it is empty.
    pub last: LogPosition,
    pub disks: Vec<usize>,
    /// Disks that were dropped while the file was written. They have the records acknowledged until then. They do not
    /// count as copies, but records that no other disk has may be read from them.
    pub dropped: Vec<usize>,
    pub len_bytes: u64,
    /// Disks that have since got copies of the whole file, in other files.
    pub copied: Vec<usize>,
    /// The file is older than this start: the [`RecordRun`]s say which disks have which records.
    pub is_old: bool,
    /// The whole file is readable, so it may be reused.
    pub is_fit: bool,
}

/// Consecutive records from before the start, with the disks that have all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordRun {
    pub first: LogPosition,
    pub last: LogPosition,
    pub holders: Vec<usize>,
}

impl Retained {
    fn of(file: &OpenFile) -> Self {
        Self {
            sequence: file.sequence,
            last: file.last,
            disks: file.copies.iter().map(|(disk, _)| *disk).collect(),
            dropped: file.dropped.clone(),
            len_bytes: file.len_bytes,
            copied: Vec::new(),
            is_old: false,
            is_fit: true,
        }
    }

    /// The disks whose copies count.
    fn copies(&self) -> Vec<usize> {
        self.disks.iter().chain(&self.copied).copied().collect()
    }

    /// The disks that have the whole file, also those that failed since: a failed disk is either away or has it.
    fn holders(&self) -> Vec<usize> {
        let mut holders = self.copies();
        holders.extend(&self.dropped);
        holders
    }
}

/// A file that is made in the background; `None` if that fails.
type Prepared = oneshot::Receiver<Option<OpenFile>>;

/// Writer of the log.
pub(crate) struct MirrorWriter {
    files: FileMaker,
    current: OpenFile,
    next: Option<Prepared>,
    /// Prepared files that the log did not wait for.
    late_prepared: Vec<Prepared>,
    sequence_next: u64,
    retained: VecDeque<Retained>,
    /// Records from before the start that may still be needed.
    old: Vec<RecordRun>,
    syncs: u64,
    /// Up to this position some retained records may have fewer copies than wanted; 0 if none has.
    short_through: LogPosition,
    /// Number of files that are shorter than usual, for lack of room.
    short_file_count: u64,
}

impl MirrorWriter {
    /// Starts a term: a new file on `copies` disks. Nothing may be served before this returns. `old` names the records
    /// in existing files.
    pub async fn start(
        mut files: FileMaker,
        sequence_next: u64,
        mut retained: VecDeque<Retained>,
        old: Vec<RecordRun>,
    ) -> Result<Self, MetaError> {
        let mut sequence_next = sequence_next;
        let needed: Vec<Vec<usize>> = old.iter().map(|part| part.holders.clone()).collect();
        let current = files.until_done(&mut sequence_next, &needed, 0).await?;
        for file in &mut retained {
            file.is_old = true;
        }
        files.tell_left_behind(&current).await;
        files.may_shorten = true;
        Ok(Self {
            short_file_count: u64::from(current.len_bytes < files.info.log_file_bytes),
            files,
            current,
            next: None,
            late_prepared: Vec::new(),
            sequence_next,
            retained,
            old,
            syncs: 0,
            short_through: LogPosition(0),
        })
    }

    /// Updates the holders of older records, after more copies were made.
    pub fn set_old(&mut self, old: Vec<RecordRun>) {
        self.old = old;
    }

    /// The disks that the last record was written to.
    pub fn disks(&self) -> impl Iterator<Item = usize> {
        self.current.copies.iter().map(|(disk, _)| *disk)
    }

    /// Ends writing. Returns the files, which are needed as before, and the next sequence number.
    pub fn into_retained(mut self) -> (VecDeque<Retained>, u64) {
        let last = Retained::of(&self.current);
        self.retained.push_back(last);
        (self.retained, self.sequence_next)
    }

    /// The disks that have each needed part.
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

    /// Prepares the next file in the background, so that a switch to it costs nothing. Skipped while a disk lacks
    /// records: the file's header would not be true yet.
    fn prepare_next(&mut self) {
        let files = self.files.clone();
        let set = files.choose(&[]);
        let needed = self.needed();
        if !files.behind(&set, &needed).is_empty() {
            return;
        }
        // One attempt here; the foreground retries when it needs the file.
        let sequence = take_sequence(&mut self.sequence_next);
        let (sender, receiver) = oneshot::channel();
        self.next = Some(receiver);
        self.files.tasks.spawn("log-prepare", async move {
            let made = files.run(sequence, set, &needed).await.ok();
            // The log may be gone by now: the next open finds the file and reuses it.
            let _ = sender.send(made);
        });
    }

    /// The prepared file, unless a disk does not answer.
    async fn take_prepared(&mut self) -> Option<OpenFile> {
        let prepared = self.next.take()?;
        let wait = self.files.env.clock.sleep(self.files.make_wait());
        match select(prepared, wait).await {
            Either::Left((made, _)) => made.ok().flatten(),
            Either::Right((_, prepared)) => {
                self.late_prepared.push(prepared);
                None
            }
        }
    }

    /// Gives up the prepared file: its header names the previous members.
    async fn drop_prepared(&mut self) {
        if let Some(file) = self.take_prepared().await {
            self.retain(&file);
        }
    }

    /// Takes late prepared files that are done by now: they are of no use, but take space.
    fn retain_late_prepared(&mut self) {
        for mut prepared in std::mem::take(&mut self.late_prepared) {
            match prepared.try_recv() {
                Ok(Some(file)) => self.retain(&file),
                Ok(None) | Err(TryRecvError::Closed) => {}
                Err(TryRecvError::Empty) => self.late_prepared.push(prepared),
            }
        }
    }

    /// Goes on in another file, on healthy disks only, large enough for a record of the given size.
    async fn roll(&mut self, record_bytes: u64) -> Result<(), MetaError> {
        let prepared = self.take_prepared().await;
        let wanted = self.files.choose(&[]).len();
        let disks = self.files.disks.clone();
        let is_whole = |file: &OpenFile| {
            let healthy = file.copies.iter().all(|(disk, _)| disks.takes_log(*disk));
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
                files
                    .until_done(&mut self.sequence_next, &needed, record_bytes)
                    .await?
            }
        };
        self.files.tell_left_behind(&file).await;
        self.short_file_count += u64::from(file.len_bytes < self.files.info.log_file_bytes);
        let old = std::mem::replace(&mut self.current, file);
        self.retain(&old);
        Ok(())
    }

    /// Goes on in a file with as many copies as are wanted now, and copies the retained records into it: the journal is
    /// nowhere else. Without space for that, the log keeps its present copies, and the status says so.
    ///
    /// The next group is not durable yet, so the copies retain everything before it: if a fold in that group is lost,
    /// its journal entry must still exist.
    async fn roll_for_copies(&mut self) {
        let wanted = self.files.disks.copies_wanted();
        let last = self.last();
        if wanted < self.current.copies.len() {
            self.files.stays_on = self.disks().collect();
        }
        let mut done = self.roll(0).await;
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

    /// Writes the members of the other headers to disks that lacked records when the file was begun and have all needed
    /// ones by now. Until then those disks refuse to start without the disks that had all records.
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
            // Until the disk has the new header, it does not start alone.
            self.short_through = self.last();
        }
    }

    async fn copy_retained(&mut self, retained_from: LogPosition) -> Result<(), MetaError> {
        let disks = self.files.disks.clone();
        let possible = disks.copies_possible();
        // Records on all current disks are not copied. A copy would only be a second one there, and one more for each
        // request for copies while another disk has no space.
        let set: Vec<usize> = self.disks().collect();
        let is_short = |holders: &[usize]| {
            let healthy = holders.iter().filter(|disk| disks.is_healthy(**disk));
            healthy.count() < possible && !set.iter().all(|disk| holders.contains(disk))
        };
        let is_short_part =
            |part: &&mut RecordRun| part.last >= retained_from && is_short(&part.holders);
        let short_from = self.old.iter_mut().filter(is_short_part);
        let short_from = short_from.map(|part| part.first).min();
        let is_needed = |file: &&Retained| {
            let is_short = match file.is_old {
                true => short_from.is_some_and(|first| file.last >= first),
                false => is_short(&file.copies()),
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

    /// Whether the open file is on as many disks as it could be.
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
        self.retained.push_back(Retained::of(file));
    }

    /// Writes to all copies of the open file. False when some failed or are late, which are dropped, and when no copy
    /// is left.
    ///
    /// A late write may land at any later time. It goes to a file that the disk was dropped from, which is not reused
    /// before the store is closed. Its record is the one that the other disks get in the next file.
    async fn write(&mut self, bytes: &Bytes, may_block: bool) -> bool {
        let offset = self.current.offset;
        let last = self.current.copies.len().saturating_sub(1);
        let write = |(index, (_, file)): (usize, &(usize, Arc<dyn DiskFile>))| -> Work<()> {
            let file = file.clone();
            let bytes = bytes.clone();
            Box::pin(async move {
                // The disks start in this order: the other writes are on their way when this thread blocks.
                if planted::is(Bug::LogWithoutSync) {
                    return file.write_at(offset, vec![bytes]).await;
                }
                match may_block && index == last {
                    true => file.write_durable_here(offset, bytes).await,
                    false => file.write_durable_at(offset, vec![bytes]).await,
                }
            })
        };
        let writes: Vec<Work<()>> = self.current.copies.iter().enumerate().map(write).collect();
        self.syncs += writes.len() as u64;
        let clock = self.files.env.clock.clone();
        let results = all_or_late(&*clock, self.files.write_wait, writes).await;
        let mut is_whole = !results.is_empty();
        for ((disk, _), result) in self.current.copies.iter().zip(results) {
            match result {
                Done::Answered(Ok(())) => continue,
                Done::Answered(Err(error)) => {
                    // Lack of space is no fault of the disk; the next file finds out whether there is some.
                    if !matches!(error, DiskError::Full { .. }) {
                        self.files.disks.mark_failed(*disk, &error);
                    }
                }
                Done::Late(work) => self.files.leave_late(*disk, work, |_, ()| {}),
            }
            is_whole = false;
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
        assert!(len <= self.files.info.log_file_bytes - BLOCK_BYTES as u64);
        // A disk may have failed elsewhere since: its copy does not count any more.
        let disks = self.files.disks.clone();
        let is_healthy = |(disk, _): &(usize, Arc<dyn DiskFile>)| disks.takes_log(*disk);
        disks.take_back_rested(|| self.files.env.clock.monotonic());
        if disks.take_changed() {
            // A start counts missing members, so no header may name a disk that left.
            self.drop_prepared().await;
            self.roll_for_copies().await;
        }
        // First: the records to copy include those of a file that is full or lost a disk.
        if self.current.copies_wanted != disks.copies_wanted() {
            self.roll_for_copies().await;
        }
        // The copies in the new file, which may be a short one, may have left less room than the record takes.
        let file_len = self.current.len_bytes;
        if self.current.offset + len > file_len || !self.current.copies.iter().all(is_healthy) {
            // The rest of this file gets no more records, even if there is no space for another file now.
            self.current.offset = file_len;
            self.current.drop_unhealthy(&disks);
            self.roll(len).await?;
        }
        loop {
            record.seal(self.current.file_use, retained_from);
            let RecordBuf { bytes, head } = record;
            let bytes = bytes.freeze();
            if self.write(&bytes, may_block).await {
                // Copies of older records may follow newer ones, where copied files overlap.
                self.current.last = self.current.last.max(head.last);
                break;
            }
            // The whole group goes to other disks before any caller hears that it is durable.
            self.current.offset = self.current.len_bytes;
            self.roll(len).await?;
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
        if goes_on && self.next.is_none() && self.current.offset > self.current.len_bytes / 4 {
            self.prepare_next();
        }
        Ok(())
    }
}

impl LogWriter for MirrorWriter {
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
        self.retain_late_prepared();
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

    fn give_back_spares(&mut self) {
        self.files.remove_spares();
    }

    fn is_resting(&self) -> bool {
        self.files.disks.is_any_late()
    }

    fn wants_group(&self) -> bool {
        let now = self.files.env.clock.monotonic();
        self.files.disks.has_rested(now)
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
            short_file_count: self.short_file_count,
            room_bytes: None,
        }
    }
}
