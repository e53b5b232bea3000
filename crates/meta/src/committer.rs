//! The committer: the one task that turns what was submitted into durable groups.
//!
//! Owns: the order log, wake, apply; when the log is cut and a checkpoint shipped.
//! Must not know: what callers submit batches for.
//!
//! While a group is on its way to the disks, the one before is applied to the state. Nothing here
//! waits for a timer: a group is whatever was submitted while the last one was written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_base::{Generation, LogPosition};
use futures_util::future::join;

use crate::counters::{Changed, Counters};
use crate::error::MetaError;
use crate::keys::Key;
use crate::log::CommitLog;
use crate::log::group::Group;
use crate::records::AppliedRecord;
use crate::shared::{Queued, Shared, Stop};
use crate::state::versions;

/// Most bytes of batches in one group, beside the first batch.
pub(crate) const GROUP_BYTES_MAX: usize = 4 << 20;

pub(crate) struct Committer {
    pub shared: Arc<Shared>,
    pub log: Box<dyn CommitLog>,
    /// As of the last group that was cut.
    pub counters: Counters,
    /// Whether none was cut yet: the first carries the reserved ids.
    pub is_first: bool,
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
        let mut unapplied: Option<Group> = None;
        loop {
            if self.shared.stop() == Stop::Now {
                return Ok(());
            }
            if let Some(group) = self.cut() {
                self.commit(&group, unapplied.take()).await?;
                unapplied = Some(group);
                // Those who were woken on this thread go first: what they submit next shares a group.
                tokio::task::yield_now().await;
            } else if let Some(group) = unapplied.take() {
                self.shared.apply(&group)?;
            } else if self.shared.stop() == Stop::Drained {
                return self.finish().await;
            } else {
                self.shared.work.notified().await;
            }
        }
    }

    /// Takes what was submitted, up to a limit, and merges it.
    fn cut(&mut self) -> Option<Group> {
        let shared = self.shared.clone();
        let (taken, mut changed) = {
            let mut pending = shared.pending.lock();
            let mut taken: Vec<Queued> = Vec::with_capacity(pending.queue.len());
            let mut len_bytes = 0;
            while let Some(next) = pending.queue.front() {
                len_bytes += next.batch.len_bytes();
                if !taken.is_empty() && len_bytes > shared.group_bytes_max {
                    break;
                }
                taken.extend(pending.queue.pop_front());
            }
            if taken.is_empty() {
                return None;
            }
            // Marks only grow: a later value than that of these batches is as good.
            let marks = &pending.counters.record;
            let changed = Changed {
                counters: self.is_first
                    || self.counters.record.ino_reserved != marks.ino_reserved
                    || self.counters.record.segment_reserved != marks.segment_reserved,
                ..Changed::default()
            };
            self.counters.record.ino_reserved = marks.ino_reserved;
            self.counters.record.segment_reserved = marks.segment_reserved;
            (taken, changed)
        };
        self.is_first = false;
        let mut group = self.merge(taken, &mut changed)?;
        self.counters.write(changed, &mut group);
        Some(group)
    }

    fn merge(&mut self, taken: Vec<Queued>, changed: &mut Changed) -> Option<Group> {
        let first = taken.first()?.position;
        let last = taken.last()?.position;
        let mut group = Group::new(self.shared.generation(), first, last);
        let mut journal = self.shared.journal.lock();
        self.shared
            .groups
            .batches
            .fetch_add(taken.len() as u64, Ordering::Relaxed);
        for Queued { position, batch } in taken {
            group.len_bytes += batch.len_bytes();
            self.counters.apply(&batch, changed);
            for (key, value) in batch.puts {
                group.put(key, value);
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

    /// Makes a group durable, and applies the one before meanwhile.
    async fn commit(&mut self, group: &Group, before: Option<Group>) -> Result<(), MetaError> {
        let shared = self.shared.clone();
        let term = shared.term;
        let record = group.encode(term.epoch, term.nonce);
        let record_bytes = record.len_bytes();
        let retained_from = shared.log_needed_from(group.first);
        let write = self.log.append(record, retained_from);
        let apply = async {
            match before {
                Some(before) => shared.apply(&before),
                None => Ok(()),
            }
        };
        let (written, applied) = join(write, apply).await;
        written?;
        shared.committed(group);
        applied?;
        let groups = &shared.groups;
        groups.count.fetch_add(1, Ordering::Relaxed);
        groups.bytes.fetch_add(record_bytes, Ordering::Relaxed);
        self.log.trim();
        *shared.log_status.lock() = self.log.status();
        shared.logged(record_bytes);
        Ok(())
    }

    /// Leaves everything so that the next start has nothing to replay.
    async fn finish(&mut self) -> Result<(), MetaError> {
        let shared = self.shared.clone();
        shared.ship_now().await?;
        // An empty group, so that the log says that nothing before it is needed.
        let position = shared.reserve_position();
        let group = Group::new(Generation::FIRST, position, position);
        let record = group.encode(shared.term.epoch, shared.term.nonce);
        let retained_from = shared.log_needed_from(position);
        self.log.append(record, retained_from).await?;
        self.log.trim();
        *shared.log_status.lock() = self.log.status();
        shared.progress.advance(position);
        Ok(())
    }
}

/// Tells all who wait when the task ends by a panic: nobody else would.
struct PanicGuard(Option<Arc<Shared>>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            let what = "the committer of the metadata store ended unexpectedly";
            shared.fail(MetaError::State(what.to_owned()));
        }
    }
}

/// The writes that bring the state to the end of a group.
pub(crate) fn writes_of(
    group: &Group,
    applied: AppliedRecord,
) -> impl Iterator<Item = (crate::state::StateKey, Option<Bytes>)> {
    let generation = group.generation;
    let puts = group
        .puts
        .iter()
        .map(move |(key, value)| versions::write_of(key, value.clone(), generation));
    let applied = (
        Key::applied().at(Generation(0)),
        Some(Bytes::from(applied.encode())),
    );
    puts.chain(std::iter::once(applied))
}

/// The smaller of two positions that the log is needed from.
pub(crate) fn needed_from(states: LogPosition, journal: Option<LogPosition>) -> LogPosition {
    let after_states = LogPosition(states.0.saturating_add(1));
    journal.map_or(after_states, |oldest| oldest.min(after_states))
}
