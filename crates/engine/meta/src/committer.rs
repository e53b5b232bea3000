//! The committer: the one task that turns submitted batches into durable groups.
//!
//! Owns: the order "log, wake, apply", and the decision when to cut the log and to ship a checkpoint. Must not know:
//! why callers submit batches.
//!
//! While the disks write a large group, the committer applies the previous one to the state. It applies a small group
//! before it cuts the next one: that is faster than handing the write to another thread, and batches that arrive
//! meanwhile share the next group. A group holds the batches submitted while the previous group was written and
//! applied. It also waits for a few clients that were just answered, if they are known to submit again at once
//! ([`Gathering`]). A single client never waits.
//!
//! A full disk (Rule 5): groups that do not fit into the state stay in the log and in the overlay, where readers find
//! them. The committer applies them when there is space again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::disk::DiskError;
use cairn_base::env::Clock;
use cairn_base::inline_call::look_for;
use cairn_base::planted::{self, Bug};
use cairn_base::{Branch, Generation, LogPosition};
use cairn_formats::metadata::{AppliedRecord, Group, Key};
use futures_util::future::join;
use rustc_hash::FxHashSet;

use crate::batch::Batch;
use crate::counters::{Changed, Counters};
use crate::error::MetaError;
use crate::gathering::Gathering;
use crate::log::LogWriter;
use crate::shared::{Queued, Stop, StoreCore};
use crate::state::{StateKey, StateStore, versions};

/// Limit of the batches in one group. The first batch of a group may exceed it.
pub(crate) const GROUP_BYTES_MAX: usize = 4 << 20;

/// Limit of the groups that wait in memory while the state has no space. Above it the committer takes no more batches
/// from the queue.
const BACKLOG_BYTES_MAX: usize = 64 << 20;
/// Pause between two checks for free space.
pub(crate) const FULL_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Longest wait of a group for clients that were answered when the last group became durable.
const GATHER_TIME_MAX: Duration = Duration::from_micros(100);

/// Largest backlog, in keys, that is applied before the next group is cut.
const SMALL_BACKLOG_KEYS_MAX: usize = 48;

/// Groups that are durable and not applied: at most one, unless the state has no space.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Each group with its end and the term that it was submitted in: a start may have left some of an older term.
    groups: VecDeque<(Group, AppliedRecord)>,
    len_bytes: usize,
    key_count: usize,
}

impl Backlog {
    pub fn push(&mut self, group: Group, applied: AppliedRecord) {
        self.len_bytes += group.len_bytes;
        self.key_count += group.puts.len();
        self.groups.push_back((group, applied));
    }

    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(|(group, _)| group)
    }

    #[cfg(test)]
    pub fn applied(&self) -> impl Iterator<Item = AppliedRecord> {
        self.groups.iter().map(|(_, applied)| *applied)
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether applying the backlog takes less time than handing a write to another thread.
    fn is_small(&self) -> bool {
        self.key_count <= SMALL_BACKLOG_KEYS_MAX
    }

    fn is_long(&self) -> bool {
        self.len_bytes > BACKLOG_BYTES_MAX
    }

    /// Applies as many groups as the state has space for. Lack of space is no error.
    fn apply(&mut self, shared: &Arc<StoreCore>) -> Result<(), MetaError> {
        while let Some((group, applied)) = self.groups.front() {
            match shared.apply(group, *applied) {
                Ok(()) => {}
                Err(MetaError::Full(why)) => {
                    shared.note_full(&why);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            self.len_bytes -= group.len_bytes;
            self.key_count -= group.puts.len();
            self.groups.pop_front();
        }
        shared.note_space();
        Ok(())
    }
}

pub(crate) struct Committer {
    pub shared: Arc<StoreCore>,
    pub clock: Arc<dyn Clock>,
    pub backlog: Backlog,
    pub log: Box<dyn LogWriter>,
    /// Counters as of the last group that was cut.
    pub counters: Counters,
    /// Whether no group was cut yet: the first one carries the reserved ids.
    pub is_first: bool,
    pub gathering: Gathering,
}

impl Committer {
    pub async fn run(mut self) {
        let mut guard = PanicGuard(Some(self.shared.clone()));
        if let Err(error) = self.work().await {
            self.shared.fail(error);
        }
        guard.0 = None;
    }

    async fn work(&mut self) -> Result<(), MetaError> {
        loop {
            if self.shared.stop() == Stop::Now {
                return Ok(());
            }
            if self
                .shared
                .are_spares_unwanted
                .swap(false, Ordering::AcqRel)
            {
                self.log.give_back_spares();
            }
            if !self.backlog.is_empty() && self.backlog.is_small() {
                self.backlog.apply(&self.shared)?;
            }
            let group = if self.backlog.is_long() {
                None
            } else {
                self.gather();
                self.cut()
            };
            if let Some(group) = group {
                self.commit(&group).await?;
                self.note_group(&group);
                let term = &self.shared.term;
                let applied = AppliedRecord {
                    position: group.last,
                    epoch: term.epoch,
                    term: term.nonce,
                };
                self.backlog.push(group, applied);
                // Tasks that were woken on this thread run first: the batches that they submit next share a group.
                tokio::task::yield_now().await;
            } else if !self.backlog.is_empty() {
                self.backlog.apply(&self.shared)?;
                if !self.backlog.is_empty() {
                    if self.shared.stop() == Stop::Drained {
                        self.warn_not_shipped();
                        return Ok(());
                    }
                    self.shared.pause(&*self.clock).await;
                }
            } else if self.shared.stop() == Stop::Drained {
                return self.finish().await;
            } else if self.log.is_resting() {
                self.shared.pause(&*self.clock).await;
                // These checks also run while nobody writes.
                self.shared.look_at_copies();
                if self.log.wants_group() {
                    // The waiting batches become a group when nobody holds the store. Another request would only wake
                    // this loop.
                    if self.shared.pending.lock().queue.is_empty() {
                        self.shared.submit(Batch::new());
                    }
                } else if self.log.may_widen() {
                    self.log.widen().await?;
                    *self.shared.log_status.lock() = self.log.status();
                }
            } else {
                self.shared.work.notified().await;
            }
        }
    }

    /// Waits a moment for clients that were just answered, if that pays and this thread belongs to this task.
    fn gather(&mut self) {
        let shared = self.shared.clone();
        let waiting_count = || shared.pending.lock().queue.len();
        let Some(wanted) = self.gathering.wanted(waiting_count()) else {
            return;
        };
        let is_over = || waiting_count() >= wanted || shared.stop() != Stop::No;
        if let Some(is_complete) = look_for(GATHER_TIME_MAX, is_over) {
            self.gathering.note(is_complete);
        }
    }

    fn note_group(&mut self, group: &Group) {
        let count = group.last.0.saturating_sub(group.first.0) + 1;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let waiting_count = self.shared.pending.lock().queue.len();
        self.gathering.note_group(count, waiting_count);
    }

    /// Warns at the end that the state has no space. The log holds everything.
    fn warn_not_shipped(&self) {
        tracing::warn!(
            volume = self.shared.disks.volume.0,
            "no space to write the metadata's state; the next start replays the log"
        );
    }

    /// Takes submitted batches, up to a limit, and merges them into a group.
    fn cut(&mut self) -> Option<Group> {
        let shared = self.shared.clone();
        let (taken, mut changed) = {
            let mut pending = shared.pending.lock();
            if shared.held_count.load(Ordering::Acquire) > 0 && shared.stop() == Stop::No {
                return None;
            }
            let mut taken: Vec<Queued> = Vec::with_capacity(pending.queue.len());
            let mut len_bytes = 0;
            while let Some(next) = pending.queue.front() {
                len_bytes += next.batch.len_bytes();
                if !taken.is_empty() && len_bytes > shared.group_bytes_max {
                    break;
                }
                let is_last = next.batch.ends_group();
                taken.extend(pending.queue.pop_front());
                if is_last && !planted::is(Bug::GroupGoesOnAfterMove) {
                    break;
                }
            }
            if taken.is_empty() {
                return None;
            }
            // Marks only grow, so a later value than that of these batches is as good.
            let marks = &pending.counters.record;
            let changed = Changed {
                counters: self.is_first
                    || self.counters.record.ino_reserved != marks.ino_reserved
                    || self.counters.record.segment_reserved != marks.segment_reserved,
                usages: Some(FxHashSet::default()),
                ..Changed::default()
            };
            self.counters.record.ino_reserved = marks.ino_reserved;
            self.counters.record.segment_reserved = marks.segment_reserved;
            (taken, changed)
        };
        let mut taken = taken;
        if planted::is(Bug::SwapCommits)
            && let [first, second, ..] = taken.as_mut_slice()
        {
            std::mem::swap(&mut first.batch, &mut second.batch);
        }
        self.is_first = false;
        let mut group = self.merge(taken, &mut changed)?;
        self.counters.write(changed, &mut group);
        Some(group)
    }

    fn merge(&mut self, taken: Vec<Queued>, changed: &mut Changed) -> Option<Group> {
        let first = taken.first()?.position;
        let last = taken.last()?.position;
        // Counters from before the merge: a change of snapshots is the last of its group.
        let mut group = Group::new(self.counters.record.generation, first, last);
        let snapshots = &self.counters.snapshots;
        group.newest_snapshot = snapshots.newest(Branch::MAIN);
        group.newest_of_branches = snapshots.newest_of_branches();
        let mut journal = self.shared.journal.lock();
        self.shared
            .groups
            .batches
            .fetch_add(taken.len() as u64, Ordering::Relaxed);
        for Queued { position, batch } in taken {
            group.len_bytes += batch.len_bytes();
            self.counters.apply(&batch, changed);
            for put in batch.puts {
                group.put(put);
            }
            for mut entry in batch.journal {
                entry.position = position;
                journal.insert(&entry);
                group.journal.push(entry);
            }
            for fold in batch.folds {
                journal.fold(&fold);
                group.folds.push(fold);
            }
        }
        Some(group)
    }

    /// Makes a group durable. Meanwhile it applies the groups that are durable already.
    async fn commit(&mut self, group: &Group) -> Result<(), MetaError> {
        let shared = self.shared.clone();
        let (log, backlog) = (&mut *self.log, &mut self.backlog);
        // With nothing to apply meanwhile, the write stays on this thread: that saves the caller of a lone request two
        // wake-ups.
        let may_block = backlog.is_empty() && shared.tasks.has_threads();
        let write = async {
            if planted::is(Bug::AnswerBeforeLog) {
                shared.progress.advance(group.last);
            }
            let written = append(log, &shared, &*self.clock, group, may_block).await;
            // Before the wake-up: a caller that waits for the group may ask how many copies the log has.
            *shared.log_status.lock() = log.status();
            if written.is_ok() {
                shared.committed(group);
            }
            written
        };
        let apply = async { backlog.apply(&shared) };
        let (written, applied) = join(write, apply).await;
        let record_bytes = written?;
        applied?;
        let groups = &shared.groups;
        groups.count.fetch_add(1, Ordering::Relaxed);
        groups.bytes.fetch_add(record_bytes, Ordering::Relaxed);
        let copies = shared.log_status.lock().disks.len() as u64;
        groups
            .copies_bytes
            .fetch_add(record_bytes * copies, Ordering::Relaxed);
        self.log.trim();
        *shared.log_status.lock() = self.log.status();
        shared.logged(record_bytes);
        Ok(())
    }

    /// Flushes and ships everything, so that the next start replays nothing.
    async fn finish(&mut self) -> Result<(), MetaError> {
        let shared = self.shared.clone();
        match shared.ship_now().await {
            Err(MetaError::Full(_)) => {
                self.warn_not_shipped();
                return Ok(());
            }
            shipped => shipped?,
        }
        // An empty group: it tells the log that no earlier position is needed.
        let position = shared.reserve_position();
        let group = Group::new(Generation::FIRST, position, position);
        let record = group.encode(shared.term.epoch, shared.term.nonce);
        let retained_from = shared.log_needed_from(position);
        self.log.append(record, retained_from, false).await?;
        self.log.trim();
        *shared.log_status.lock() = self.log.status();
        shared.progress.advance(position);
        Ok(())
    }
}

/// Appends a group to the log, and returns the number of bytes written. If no disk has space for another log file, it
/// waits for space; callers that wait for the group wait longer and lose nothing.
async fn append(
    log: &mut dyn LogWriter,
    shared: &Arc<StoreCore>,
    clock: &dyn Clock,
    group: &Group,
    may_block: bool,
) -> Result<u64, MetaError> {
    loop {
        let record = group.encode(shared.term.epoch, shared.term.nonce);
        let record_bytes = record.len_bytes();
        let retained_from = shared.log_needed_from(group.first);
        match log.append(record, retained_from, may_block).await {
            Ok(()) => return Ok(record_bytes),
            Err(MetaError::Disk(error @ DiskError::Full { .. })) if shared.stop() == Stop::No => {
                shared.note_full(&error.to_string());
                shared.pause(clock).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Wakes all waiting callers when the task ends by a panic: nothing else would.
struct PanicGuard(Option<Arc<StoreCore>>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            let what = "the committer of the metadata store ended unexpectedly";
            shared.fail(MetaError::State(what.to_owned()));
        }
    }
}

/// Brings the state to the end of a group.
pub(crate) fn apply(
    state: &dyn StateStore,
    group: &Group,
    applied: AppliedRecord,
) -> Result<(), MetaError> {
    let mut writes = versions::writes_of(state, group)?;
    let applied_key = StateKey::from_slice(Key::applied().as_bytes());
    writes.push((applied_key, Some(applied.encode().into())));
    state.apply(&mut writes.into_iter())
}

/// The smaller of two positions that the log is needed from.
pub(crate) fn needed_from(states: LogPosition, journal: Option<LogPosition>) -> LogPosition {
    let after_states = LogPosition(states.0.saturating_add(1));
    journal.map_or(after_states, |oldest| oldest.min(after_states))
}
