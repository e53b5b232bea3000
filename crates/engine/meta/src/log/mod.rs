//! The commit log of a volume: one ordered sequence of groups.
//!
//! Owns: what a store needs of its log, whatever that is made of: it is found, a term begins, groups become durable in
//! order, what is not needed any more goes.
//! Must not know: what is in a group, the state, who waits.
//!
//! There are two: on the disks of one server ([`mirror`]), and on ensembles of disks of several nodes ([`ensemble`]).
//! Nothing outside of this module and of what is only for one of them depends on which it is.

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

/// The log of an open store, as those see it who reach it with [`crate::MetaStore::log`]. Each kind of log adds what is
/// only its own: the disks, or the nodes, that it is kept on.
pub trait CommitLog: Send + Sync + 'static {
    /// From now on nothing is written to the log any more, whoever is still about to.
    fn stop(&self);
}

/// A log that was found, and that belongs to no term yet. Nothing is written to it.
pub(crate) trait FoundLog: Send {
    fn history(&self) -> &History;
    /// Begins a term, which ends every other: all that was found has its full protection when this is done, and nobody
    /// else adds anything. The history that is returned ends with the new term.
    fn begin(self: Box<Self>, term: Term) -> LogFuture<'static, (Box<dyn LogWriter>, History)>;
}

/// The seam between the committer and where groups become durable. It writes in one term.
pub(crate) trait LogWriter: Send {
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
    /// Does without the files that it keeps to use them again, if it does keep some.
    fn give_back_spares(&mut self) {}
    /// Whether it will want a group some time though nobody submits any.
    fn is_resting(&self) -> bool {
        false
    }
    /// Whether what it keeps could have more copies now.
    fn may_widen(&mut self) -> bool {
        false
    }
    /// Makes those copies.
    fn widen(&mut self) -> LogFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Whether it wants a group now, be it an empty one, to go back to where it was kept before.
    fn wants_group(&self) -> bool {
        false
    }
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
    /// Files that it made and that are shorter than usual, because disks had no room.
    pub short_file_count: u64,
    /// Bytes that whoever goes on with this log finds room for at most, if that is known.
    pub room_bytes: Option<u64>,
}

/// Memory of a record of a [`History`] beside its payload, about.
const RECORD_MEMORY_BYTES: u64 = 128;

/// What a log holds.
#[derive(Clone)]
pub(crate) struct History {
    /// Those whose records may still be needed, oldest first.
    pub terms: Vec<Term>,
    /// The highest epoch seen anywhere, also where it does not count.
    pub epoch_max: Epoch,
    /// The log must be there from here on.
    pub retained_from: LogPosition,
    /// The last position; 0 for an empty log.
    pub end: LogPosition,
    /// From `retained_from` on, in order, without holes.
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
    /// That of a new volume.
    pub fn empty() -> Self {
        Self {
            terms: Vec::new(),
            epoch_max: Epoch(0),
            retained_from: LogPosition(1),
            end: LogPosition(0),
            records: Vec::new(),
        }
    }

    /// Bytes of memory that its records have.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes_after(LogPosition(0))
    }

    /// Bytes of memory that its records have which end after a position.
    pub fn memory_bytes_after(&self, position: LogPosition) -> u64 {
        let after = self.records.iter().filter(|record| record.last > position);
        let each = after.map(|record| record.payload.len() as u64 + RECORD_MEMORY_BYTES);
        each.sum()
    }

    /// Whether a state that came so far is part of this history, and the log goes on from it.
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
