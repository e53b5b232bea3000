//! Batches: changes that a caller submits, and that become visible and durable together.
//!
//! Owns: the shape and the size of a batch. Must not know: how it is logged or applied.

use bytes::Bytes;
use cairn_base::{Branch, DiskId, Generation, LogPosition, SegmentId};
use cairn_formats::metadata::{
    Fold, JOURNAL_DATA_BYTES_MAX, JournalEntry, Key, Put, RemoteSegment, SegmentRecord, versions,
};

use smallvec::SmallVec;

use crate::snapshots::SnapshotChange;
use crate::state::versions::DeadVersion;
use crate::usage::{Owner, UsageDelta};

/// Limit of one batch, by [`Batch::len_bytes`]; the store refuses a larger one.
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// Bytes charged for one operation beside its own: framing, and counters that it may add to the group.
const OPERATION_BYTES: usize = 64;
/// Bytes charged for a journal entry beside its data.
pub const JOURNAL_ENTRY_BYTES: usize = 2 * OPERATION_BYTES;
const SEGMENT_OPERATION_BYTES: usize = 512;
/// Bytes charged for a charge: it may add three sums to the group.
const CHARGE_BYTES: usize = 3 * OPERATION_BYTES;

/// Names a submitted batch: its place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub LogPosition);

impl Ticket {
    /// Ticket of a refused batch: the batch is too large, or the store has failed or is closed. `durable` says which.
    pub const REFUSED: Self = Self(LogPosition(u64::MAX));
    /// Precedes every batch.
    pub const NONE: Self = Self(LogPosition(0));
}

/// Changes to the volume's space counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceDelta {
    pub inodes: i64,
    /// Bytes of files in extents.
    pub file_bytes: i64,
    /// Bytes that these take in segments, before parity, plus the bytes that the history takes.
    pub stored_bytes: i64,
    /// The part of `stored_bytes` that only the history refers to.
    pub history_bytes: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SegmentChange {
    Put(SegmentId, SegmentRecord),
    Remove(SegmentId),
    Delta {
        id: SegmentId,
        bytes: i64,
        records: i64,
    },
    /// An extent leaves the live view: its bytes are no longer live, or belong to the history if a snapshot sees them.
    Release {
        /// Segment of the extent, if it has one.
        id: Option<SegmentId>,
        birth: Generation,
        bytes: u64,
        records: u64,
        /// Branch of the file.
        branch: Branch,
    },
    Seal {
        id: SegmentId,
        shard_len_bytes: u64,
    },
    Place {
        id: SegmentId,
        disks: Vec<DiskId>,
    },
    /// The segment's bytes are in a tier, and on no disk.
    Remote {
        id: SegmentId,
        remote: RemoteSegment,
        shard_len_bytes: u64,
    },
    Used {
        id: SegmentId,
        day: u32,
    },
}

/// A set of changes that is visible and durable as a whole, or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) puts: Vec<Put>,
    pub(crate) segments: Vec<SegmentChange>,
    pub(crate) space: SpaceDelta,
    pub(crate) charges: SmallVec<[(Owner, UsageDelta); 2]>,
    pub(crate) journal: Vec<JournalEntry>,
    pub(crate) folds: Vec<Fold>,
    pub(crate) snapshot: Option<SnapshotChange>,
    len_bytes: usize,
}

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key`. If a batch changes a key several times, the last change wins.
    ///
    /// Panics on an empty value (values begin with their version) and on keys that only the store writes.
    pub fn put(&mut self, key: Key, value: impl Into<Bytes>) -> &mut Self {
        let value = value.into();
        assert!(!value.is_empty());
        assert!(!key.is_internal());
        self.len_bytes += key.as_bytes().len() + value.len() + OPERATION_BYTES;
        self.puts.push(Put::new(key, Some(value)));
        self
    }

    /// Moves the value that `key` has held since `birth`, and still holds: all views that show it, snapshots included,
    /// show `value` instead. Panics as [`Self::put`] does, and on a key that has no versions.
    pub fn put_moved(&mut self, key: Key, birth: Generation, value: impl Into<Bytes>) -> &mut Self {
        assert!(key.is_versioned());
        self.put(key, value);
        if let Some(put) = self.puts.last_mut() {
            put.kept_birth = Some(birth);
        }
        self
    }

    /// Moves the value of a version in the history, as [`Self::put_moved`] does for a live one.
    pub fn put_moved_dead(&mut self, version: &DeadVersion, value: &[u8]) -> &mut Self {
        let stored = versions::join(version.birth, value);
        let key = Key::history(&version.key, version.death);
        self.put_internal(key, Some(stored))
    }

    /// Removes a version from the history.
    pub fn forget(&mut self, version: &DeadVersion) -> &mut Self {
        let key = &version.key;
        self.put_internal(Key::history(key, version.death), None);
        self.put_internal(Key::dead(key, version.death, version.birth), None)
    }

    fn put_internal(&mut self, key: Key, value: Option<Bytes>) -> &mut Self {
        let value_len = value.as_ref().map_or(0, |value| value.len());
        self.len_bytes += key.as_bytes().len() + value_len + OPERATION_BYTES;
        self.puts.push(Put::new(key, value));
        self
    }

    /// Removes `key`, if it exists. Panics on keys that only the store writes.
    pub fn delete(&mut self, key: Key) -> &mut Self {
        assert!(!key.is_internal());
        self.len_bytes += key.as_bytes().len() + OPERATION_BYTES;
        self.puts.push(Put::new(key, None));
        self
    }

    /// Changes the live counters of a segment. Ignored for an unknown segment.
    pub fn segment_delta(&mut self, id: SegmentId, bytes: i64, records: i64) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments
            .push(SegmentChange::Delta { id, bytes, records });
        self
    }

    /// Uncounts an extent that leaves the live view: `bytes` of its segment, if it has one, and of the stored space
    /// stop being live. If a snapshot of the file's branch sees the extent, which was born in `birth`, they become the
    /// history's.
    pub fn release(
        &mut self,
        branch: Branch,
        id: Option<SegmentId>,
        birth: Generation,
        bytes: u64,
        records: u64,
    ) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Release {
            id,
            birth,
            bytes,
            records,
            branch,
        });
        self
    }

    /// Records a segment. A known segment keeps its live counters: only deltas change those.
    pub fn put_segment(&mut self, id: SegmentId, record: SegmentRecord) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Put(id, record));
        self
    }

    /// Marks a segment as sealed and sets the length that its shards have since. Ignored for an unknown segment.
    /// Concurrent changes of the other fields of its record are kept.
    pub fn seal_segment(&mut self, id: SegmentId, shard_len_bytes: u64) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Seal {
            id,
            shard_len_bytes,
        });
        self
    }

    /// Sets the disks of a segment. Ignored for an unknown segment. Concurrent changes of the other fields of its
    /// record are kept, and so is a concurrent removal.
    pub fn place_segment(&mut self, id: SegmentId, disks: Vec<DiskId>) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Place { id, disks });
        self
    }

    /// Moves a segment from disks to a tier. Ignored for a segment that is unknown or already in a tier.
    /// `shard_len_bytes` is the share of each data shard in the object.
    pub fn remote_segment(
        &mut self,
        id: SegmentId,
        remote: RemoteSegment,
        shard_len_bytes: u64,
    ) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Remote {
            id,
            remote,
            shard_len_bytes,
        });
        self
    }

    /// Notes the day (since 1970) on which clients used a segment. Ignored for an unknown segment.
    pub fn segment_used(&mut self, id: SegmentId, day: u32) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Used { id, day });
        self
    }

    pub fn remove_segment(&mut self, id: SegmentId) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Remove(id));
        self
    }

    /// Changes the space counters; several deltas add up.
    pub fn space(&mut self, delta: SpaceDelta) -> &mut Self {
        self.space.inodes = self.space.inodes.saturating_add(delta.inodes);
        self.space.file_bytes = self.space.file_bytes.saturating_add(delta.file_bytes);
        self.space.stored_bytes = self.space.stored_bytes.saturating_add(delta.stored_bytes);
        self.space.history_bytes = self.space.history_bytes.saturating_add(delta.history_bytes);
        self
    }

    /// Charges `owner`; several charges add up.
    pub fn charge(&mut self, owner: Owner, delta: UsageDelta) -> &mut Self {
        if !delta.is_zero() {
            self.len_bytes += CHARGE_BYTES;
            self.charges.push((owner, delta));
        }
        self
    }

    /// Adds the data of a small synchronous write. Panics above [`JOURNAL_DATA_BYTES_MAX`].
    pub fn journal(&mut self, entry: JournalEntry) -> &mut Self {
        assert!(entry.data.len() <= JOURNAL_DATA_BYTES_MAX);
        self.len_bytes += entry.data.len() + JOURNAL_ENTRY_BYTES;
        self.journal.push(entry);
        self
    }

    pub fn fold(&mut self, fold: Fold) -> &mut Self {
        self.len_bytes += OPERATION_BYTES;
        self.folds.push(fold);
        self
    }

    /// The keys that it sets or deletes, in the order of the calls.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.puts.iter().map(|put| &put.key)
    }

    /// The charges, in the order of the calls. Those of one owner add up.
    pub fn charges(&self) -> &[(Owner, UsageDelta)] {
        &self.charges
    }

    /// A batch that holds one change of snapshots, and nothing else.
    pub(crate) fn of_snapshot(change: SnapshotChange) -> Self {
        Self {
            snapshot: Some(change),
            len_bytes: SEGMENT_OPERATION_BYTES,
            ..Self::default()
        }
    }

    /// Whether the next batch must start a new group. A moved value that the next batch replaces goes into the history
    /// with its moved value, and batches after a change of snapshots make history for other snapshots.
    pub(crate) fn ends_group(&self) -> bool {
        self.snapshot.is_some() || self.puts.iter().any(|put| put.kept_birth.is_some())
    }

    /// Bytes that this batch takes of [`BATCH_BYTES_MAX`], of the queue and of the log.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes + OPERATION_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.puts.is_empty()
            && self.segments.is_empty()
            && self.journal.is_empty()
            && self.folds.is_empty()
            && self.snapshot.is_none()
            && self.space == SpaceDelta::default()
            && self.charges.is_empty()
    }
}
