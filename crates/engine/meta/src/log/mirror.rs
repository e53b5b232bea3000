//! The log as files on several disks of one server, written in parallel.
//!
//! Owns: rolling over to other disks when one fails, copies of what is still needed.
//! Must not know: what is in a group, the state, who waits.

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
    /// It was there before this start: who has what of it the [`RecordRun`]s say.
    pub is_old: bool,
    /// All of it can be read, so that it can be used again.
    pub is_fit: bool,
}

/// Records that follow each other and that the same disks have, of what was there before the start.
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

    /// The disks that have all of it, be it that some failed since: those are away, or have it.
    fn holders(&self) -> Vec<usize> {
        let mut holders = self.copies();
        holders.extend(&self.dropped);
        holders
    }
}

/// A file that is made in the background; none if that fails.
type Prepared = oneshot::Receiver<Option<OpenFile>>;

/// Writes the log.
pub(crate) struct MirrorWriter {
    files: FileMaker,
    current: OpenFile,
    next: Option<Prepared>,
    /// Files that were prepared and not waited for.
    late_prepared: Vec<Prepared>,
    sequence_next: u64,
    retained: VecDeque<Retained>,
    /// What was there before the start, as far as it may still be needed.
    old: Vec<RecordRun>,
    syncs: u64,
    /// Up to here some of what is kept may have fewer copies than were asked for; 0 if all has.
    short_through: LogPosition,
    /// Files that are shorter than usual, because disks had no room.
    short_file_count: u64,
}

impl MirrorWriter {
    /// Starts a term: a new file on `copies` disks. Nothing may be served before this has returned.
    /// What is in the files that are there is in `old`.
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

    /// More copies were made of what was there before the start.
    pub fn set_old(&mut self, old: Vec<RecordRun>) {
        self.old = old;
    }

    /// The disks that the last record was written to.
    pub fn disks(&self) -> impl Iterator<Item = usize> {
        self.current.copies.iter().map(|(disk, _)| *disk)
    }

    /// Writes nothing more. Returns the files, which are needed as before, and the next sequence number.
    pub fn into_retained(mut self) -> (VecDeque<Retained>, u64) {
        let last = Retained::of(&self.current);
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

    /// The file that was prepared, unless a disk does not answer.
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

    /// Gives up the file that was prepared: its header says who the members were.
    async fn drop_prepared(&mut self) {
        if let Some(file) = self.take_prepared().await {
            self.retain(&file);
        }
    }

    /// Takes what was not waited for and is there by now: it is of no use any more, but takes space.
    fn retain_late_prepared(&mut self) {
        for mut prepared in std::mem::take(&mut self.late_prepared) {
            match prepared.try_recv() {
                Ok(Some(file)) => self.retain(&file),
                Ok(None) | Err(TryRecvError::Closed) => {}
                Err(TryRecvError::Empty) => self.late_prepared.push(prepared),
            }
        }
    }

    /// Goes on in another file that a record of so many bytes fits, on healthy disks only.
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
        self.retained.push_back(Retained::of(file));
    }

    /// Writes to all copies of the current file; false when there are none, and when some failed or are late, which are
    /// dropped then.
    ///
    /// A late write may land at any time after. It goes to a file that the disk was dropped from, which is written and
    /// used for nothing else before the store is closed; and the record is the same that the others get in the next file.
    async fn write(&mut self, bytes: &Bytes, may_block: bool) -> bool {
        let offset = self.current.offset;
        let last = self.current.copies.len().saturating_sub(1);
        let write = |(index, (_, file)): (usize, &(usize, Arc<dyn DiskFile>))| -> Work<()> {
            let file = file.clone();
            let bytes = bytes.clone();
            Box::pin(async move {
                // All are begun in this order: the others are on their way when this thread blocks.
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
                    // No space is no sign of a bad disk; another file finds out whether there is some.
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
        // A disk may have failed in other hands since: the copy there does not count any more.
        let disks = self.files.disks.clone();
        let is_healthy = |(disk, _): &(usize, Arc<dyn DiskFile>)| disks.takes_log(*disk);
        disks.take_back_rested(|| self.files.env.clock.monotonic());
        if disks.take_changed() {
            // A start counts the members that are missing, so no header may name one that left.
            self.drop_prepared().await;
            self.roll_for_copies().await;
        }
        // First: also a file that is full, or lost a disk, has what is to be copied.
        if self.current.copies_wanted != disks.copies_wanted() {
            self.roll_for_copies().await;
        }
        // What was copied into a new file, which may be a short one, may have left less room than the record takes.
        let file_len = self.current.len_bytes;
        if self.current.offset + len > file_len || !self.current.copies.iter().all(is_healthy) {
            // Nothing goes to what is left of this file any more, also if there is no space for another now.
            self.current.offset = file_len;
            self.current.drop_unhealthy(&disks);
            self.roll(len).await?;
        }
        loop {
            record.seal(self.current.file_use, retained_from);
            let RecordBuf { bytes, head } = record;
            let bytes = bytes.freeze();
            if self.write(&bytes, may_block).await {
                // Copies of older records may come after newer ones, where files to be copied overlap.
                self.current.last = self.current.last.max(head.last);
                break;
            }
            // The group goes to other disks as a whole before anyone is told that it is durable.
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
