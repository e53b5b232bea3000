//! The commit log of a volume: one ordered sequence of groups.
//!
//! Owns: the interface between a store and any kind of log: finding it, beginning a term, making groups durable in
//! order, dropping unneeded records. Must not know: the contents of a group, the state, the callers that wait.
//!
//! There are two kinds: on the disks of one server ([`mirror`]), and on ensembles of disks of several nodes
//! ([`ensemble`]). Only this module and the parts made for one kind depend on the kind.

pub(crate) mod begin;
pub(crate) mod ensemble;
mod fan_out;
pub(crate) mod files;
pub(crate) mod headers;
pub(crate) mod mirror;
mod read;
pub(crate) mod recover;

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use cairn_base::{DiskId, Epoch, LogPosition};
use cairn_formats::metadata::AppliedRecord;
use cairn_formats::metadata::log::{RecordBuf, Term};

use crate::error::MetaError;

pub(crate) type LogFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, MetaError>> + Send + 'a>>;

/// The log of an open store, as callers reach it with [`crate::MetaStore::log`]. Each kind of log adds its own methods,
/// for its disks or its nodes.
pub trait CommitLog: Send + Sync + 'static {
    /// Refuses all further writes to the log, also those whose task is already running.
    fn stop(&self);
}

/// A log that was found and belongs to no term yet. It is not written to.
pub(crate) trait FoundLog: Send {
    fn history(&self) -> &History;
    /// Begins a term, which ends every other. When this is done, all found records have full protection, and no other
    /// owner can add any. The returned history ends with the new term.
    fn begin(self: Box<Self>, term: Term) -> LogFuture<'static, (Box<dyn LogWriter>, History)>;
}

/// The seam between the committer and the durable log. It writes in one term.
pub(crate) trait LogWriter: Send {
    /// Makes the record durable with full protection, and with it the fact that positions below `retained_from` are
    /// unneeded. An error is final. With `may_block`, the call may block the caller's thread for the duration of the
    /// write.
    fn append(
        &mut self,
        record: RecordBuf,
        retained_from: LogPosition,
        may_block: bool,
    ) -> LogFuture<'_, ()>;
    /// Drops records below the `retained_from` of the last durable record.
    fn trim(&mut self);
    fn status(&self) -> LogStatus;
    /// Removes the spare files, if the log keeps any.
    fn give_back_spares(&mut self) {}
    /// Whether the log will want a group at some time although no caller submits one.
    fn is_resting(&self) -> bool {
        false
    }
    /// Whether retained records could have more copies now.
    fn may_widen(&mut self) -> bool {
        false
    }
    /// Makes those copies.
    fn widen(&mut self) -> LogFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Whether the log wants a group now, even an empty one, to return to its earlier disks.
    fn wants_group(&self) -> bool {
        false
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LogStatus {
    /// Bytes retained, on one disk.
    pub retained_bytes: u64,
    pub syncs: u64,
    pub disks: Vec<DiskId>,
    pub start: LogPosition,
    /// Some retained records have fewer copies than wanted.
    pub is_short: bool,
    /// Number of log files that are shorter than usual, for lack of room.
    pub short_file_count: u64,
    /// Room that the next owner of this log finds at most, if that is known.
    pub room_bytes: Option<u64>,
}

/// Approximate memory of a record of a [`History`] beside its payload.
const RECORD_MEMORY_BYTES: u64 = 128;

/// The contents of a log.
#[derive(Clone)]
pub(crate) struct History {
    /// The terms whose records may still be needed, oldest first.
    pub terms: Vec<Term>,
    /// The highest epoch seen on any disk, even where it does not count.
    pub epoch_max: Epoch,
    /// The log must be complete from here on.
    pub retained_from: LogPosition,
    /// The last position; 0 for an empty log.
    pub end: LogPosition,
    /// Records from `retained_from` on, in order, without gaps.
    pub records: Vec<LogRecord>,
}

/// One record of the history.
#[derive(Clone)]
pub(crate) struct LogRecord {
    pub first: LogPosition,
    pub last: LogPosition,
    pub epoch: Epoch,
    pub term: u64,
    pub payload: Bytes,
}

impl History {
    /// The history of a new volume.
    pub fn empty() -> Self {
        Self {
            terms: Vec::new(),
            epoch_max: Epoch(0),
            retained_from: LogPosition(1),
            end: LogPosition(0),
            records: Vec::new(),
        }
    }

    /// Memory that the records take, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes_after(LogPosition(0))
    }

    /// Bytes of memory that its records have which end after a position.
    pub fn memory_bytes_after(&self, position: LogPosition) -> u64 {
        let after = self.records.iter().filter(|record| record.last > position);
        let each = after.map(|record| record.payload.len() as u64 + RECORD_MEMORY_BYTES);
        each.sum()
    }

    /// Whether a state at this position is part of this history, and the log goes on from it.
    pub fn continues(&self, applied: &AppliedRecord) -> bool {
        let position = applied.position;
        if position > self.end || position.0 + 1 < self.retained_from.0 {
            return false;
        }
        let is_older = self
            .terms
            .first()
            .is_none_or(|oldest| applied.epoch < oldest.epoch);
        position.0 == 0
            || is_older
            || is_in_history(&self.terms, applied.epoch, applied.term, position, position)
    }
}

/// Whether records of a term with these positions count.
fn is_in_history(
    history: &[Term],
    epoch: Epoch,
    term: u64,
    first: LogPosition,
    last: LogPosition,
) -> bool {
    history.iter().enumerate().any(|(index, entry)| {
        entry.epoch == epoch
            && entry.nonce == term
            && first >= entry.start
            && history.get(index + 1).is_none_or(|next| last < next.start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_fits_if_it_is_of_the_history_and_the_log_goes_on_from_it() {
        let term = |epoch, nonce, start| Term {
            epoch: Epoch(epoch),
            nonce,
            start: LogPosition(start),
        };
        let log = History {
            terms: vec![term(3, 30, 10), term(5, 50, 20)],
            epoch_max: Epoch(5),
            retained_from: LogPosition(15),
            end: LogPosition(25),
            records: Vec::new(),
        };
        let cases = [
            ("at the end", 25, 5, 50, true),
            ("past the end", 26, 5, 50, false),
            ("just before what is kept", 14, 3, 30, true),
            ("too old", 13, 3, 30, false),
            ("last of its term", 19, 3, 30, true),
            ("cut off by the next term", 20, 3, 30, false),
            ("another branch of the same epoch", 16, 3, 31, false),
            ("another branch in between", 16, 4, 40, false),
            ("older than all terms that are known", 14, 2, 99, true),
            ("empty, but the log does not begin at 1", 0, 0, 0, false),
        ];
        for (name, position, epoch, term, fits) in cases {
            let applied = AppliedRecord {
                position: LogPosition(position),
                epoch: Epoch(epoch),
                term,
            };
            assert_eq!(log.continues(&applied), fits, "{name}");
        }
    }
}
