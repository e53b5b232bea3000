//! The volume's counters and its segments, in memory.
//!
//! Owns: what a batch does to them. Must not know: when batches become durable.
//!
//! There are two of these in a store: one counts what was submitted, which is what callers see; one
//! counts what is in the log, whose values go into it. So the state's counters are always those of
//! its log position.

use std::collections::BTreeSet;

use bytes::Bytes;
use cairn_base::SegmentId;
use cairn_base::planted::{self, Bug};
use cairn_formats::metadata::{CountersRecord, Group, Key};

use crate::batch::{Batch, SegmentChange};
use crate::segments::Segments;

#[derive(Clone)]
pub(crate) struct Counters {
    pub record: CountersRecord,
    pub segments: Segments,
    /// Changes that made no sense; see `MetaStats`.
    pub errors: u64,
}

/// What changed since it was last written down.
#[derive(Default)]
pub(crate) struct Changed {
    pub counters: bool,
    pub segments: BTreeSet<SegmentId>,
}

impl Counters {
    pub fn apply(&mut self, batch: &Batch, changed: &mut Changed) {
        for change in &batch.segments {
            self.apply_segment(change, changed);
        }
        let space = &batch.space;
        if *space != Default::default() {
            changed.counters = true;
            let record = &mut self.record;
            let errors = &mut self.errors;
            add(&mut record.inodes, space.inodes, errors);
            add(&mut record.file_bytes, space.file_bytes, errors);
            if planted::is(Bug::SpaceCountedTwice) {
                add(&mut record.file_bytes, space.file_bytes, errors);
            }
            add(&mut record.stored_bytes, space.stored_bytes, errors);
        }
    }

    fn apply_segment(&mut self, change: &SegmentChange, changed: &mut Changed) {
        match change {
            SegmentChange::Put(id, record) => {
                let mut record = record.clone();
                if let Some(known) = self.segments.get(id) {
                    record.live_bytes = known.live_bytes;
                    record.live_records = known.live_records;
                }
                self.segments.insert(*id, record);
                changed.segments.insert(*id);
            }
            SegmentChange::Remove(id) => {
                if self.segments.remove(id) {
                    changed.segments.insert(*id);
                }
            }
            SegmentChange::Seal {
                id,
                shard_len_bytes,
            } => {
                let sealed = self.segments.change(id, |segment| {
                    segment.sealed = true;
                    segment.shard_len_bytes = *shard_len_bytes;
                });
                if sealed {
                    changed.segments.insert(*id);
                }
            }
            SegmentChange::Place { id, disks } => {
                let placed = self
                    .segments
                    .change(id, |segment| segment.disks.clone_from(disks));
                if placed {
                    changed.segments.insert(*id);
                }
            }
            SegmentChange::Delta { id, bytes, records } => {
                let errors = &mut self.errors;
                let counted = self.segments.change(id, |segment| {
                    if !planted::is(Bug::SegmentDeltaLost) || *records >= 0 {
                        add(&mut segment.live_bytes, *bytes, errors);
                        add(&mut segment.live_records, *records, errors);
                    }
                });
                match counted {
                    true => {
                        changed.segments.insert(*id);
                    }
                    false => self.errors += 1,
                }
            }
        }
    }

    /// Writes the values of what changed into a group.
    pub fn write(&self, changed: Changed, group: &mut Group) {
        for id in changed.segments {
            let value = self.segments.get(&id);
            let value = value.map(|record| Bytes::from(record.encode()));
            group.put(Key::segment(id), value);
        }
        if changed.counters {
            let value = Bytes::from(self.record.encode());
            group.put(Key::counters(), Some(value));
        }
    }
}

/// Adds within 0..=u64::MAX; what would leave that is a caller's bug, counted and clamped.
fn add(value: &mut u64, delta: i64, errors: &mut u64) {
    *value = value.checked_add_signed(delta).unwrap_or_else(|| {
        *errors += 1;
        if delta < 0 { 0 } else { u64::MAX }
    });
}
