//! What callers submit: changes that become visible, and durable, together.
//!
//! Owns: the shape and the size of a batch. Must not know: how it is logged or applied.

use bytes::Bytes;
use cairn_base::{DiskId, LogPosition, SegmentId};
use cairn_formats::metadata::{Fold, JOURNAL_DATA_BYTES_MAX, JournalEntry, Key, SegmentRecord};

/// Most bytes of one batch, by [`Batch::len_bytes`]; a larger one is refused.
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// What one operation is charged beside its bytes: framing, and the counters it may make the group carry.
const OPERATION_BYTES: usize = 64;
/// What a journal entry is charged beside its data.
pub const JOURNAL_ENTRY_BYTES: usize = 2 * OPERATION_BYTES;
const SEGMENT_OPERATION_BYTES: usize = 512;

/// Names a submitted batch: its place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub LogPosition);

impl Ticket {
    /// What a refused batch gets: it is too large, or the store has failed or is closed. `durable` says which.
    pub const REFUSED: Self = Self(LogPosition(u64::MAX));
    /// Before everything.
    pub const NONE: Self = Self(LogPosition(0));
}

/// Changes to the volume's space counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceDelta {
    pub inodes: i64,
    /// Bytes of files in extents.
    pub file_bytes: i64,
    /// Bytes those take in segments, before parity.
    pub stored_bytes: i64,
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
    Seal {
        id: SegmentId,
        shard_len_bytes: u64,
    },
    Place {
        id: SegmentId,
        disks: Vec<DiskId>,
    },
}

/// A set of changes that is visible and durable as a whole, or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// `None` deletes.
    pub(crate) puts: Vec<(Key, Option<Bytes>)>,
    pub(crate) segments: Vec<SegmentChange>,
    pub(crate) space: SpaceDelta,
    pub(crate) journal: Vec<JournalEntry>,
    pub(crate) folds: Vec<Fold>,
    len_bytes: usize,
}

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key`. Later changes of one key in a batch win.
    ///
    /// Panics on an empty value (values begin with their version) and on keys that only the store writes.
    pub fn put(&mut self, key: Key, value: impl Into<Bytes>) -> &mut Self {
        let value = value.into();
        assert!(!value.is_empty());
        assert!(!key.is_internal());
        self.len_bytes += key.as_bytes().len() + value.len() + OPERATION_BYTES;
        self.puts.push((key, Some(value)));
        self
    }

    /// Removes `key`, if it is there. Panics on keys that only the store writes.
    pub fn delete(&mut self, key: Key) -> &mut Self {
        assert!(!key.is_internal());
        self.len_bytes += key.as_bytes().len() + OPERATION_BYTES;
        self.puts.push((key, None));
        self
    }

    /// Changes the live counters of a segment; one that is not known is left alone.
    pub fn segment_delta(&mut self, id: SegmentId, bytes: i64, records: i64) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments
            .push(SegmentChange::Delta { id, bytes, records });
        self
    }

    /// Records a segment. One that is known keeps its live counters: deltas own those.
    pub fn put_segment(&mut self, id: SegmentId, record: SegmentRecord) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Put(id, record));
        self
    }

    /// Notes that a segment takes no more records, and how long its shards are since; one that is not
    /// known is left alone. The rest of its record stays, whoever changes that at the same time.
    pub fn seal_segment(&mut self, id: SegmentId, shard_len_bytes: u64) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Seal {
            id,
            shard_len_bytes,
        });
        self
    }

    /// Sets the disks of a segment; one that is not known is left alone. The rest of its record stays, whoever
    /// changes that, or removes it, at the same time.
    pub fn place_segment(&mut self, id: SegmentId, disks: Vec<DiskId>) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Place { id, disks });
        self
    }

    pub fn remove_segment(&mut self, id: SegmentId) -> &mut Self {
        self.len_bytes += SEGMENT_OPERATION_BYTES;
        self.segments.push(SegmentChange::Remove(id));
        self
    }

    /// Adds to the space counters; several add up.
    pub fn space(&mut self, delta: SpaceDelta) -> &mut Self {
        self.space.inodes = self.space.inodes.saturating_add(delta.inodes);
        self.space.file_bytes = self.space.file_bytes.saturating_add(delta.file_bytes);
        self.space.stored_bytes = self.space.stored_bytes.saturating_add(delta.stored_bytes);
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

    /// Bytes that this batch takes of [`BATCH_BYTES_MAX`], of the queue and of the log.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes + OPERATION_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.puts.is_empty()
            && self.segments.is_empty()
            && self.journal.is_empty()
            && self.folds.is_empty()
            && self.space == SpaceDelta::default()
    }
}
