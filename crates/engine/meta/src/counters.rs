//! The volume's counters, its segments and its snapshots, in memory.
//!
//! Owns: the effect of a batch on them. Must not know: when batches become durable.
//!
//! A store has two instances. One counts submitted batches, for callers. The other counts logged batches, and its
//! values go into the log; so the counters in the state are always those of its log position.

use std::collections::BTreeSet;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Branch, Generation, SegmentId};
use cairn_formats::metadata::{CountersRecord, Group, Key, Put, QuotaKey, QuotaKind};
use rustc_hash::FxHashSet;

use crate::batch::{Batch, SegmentChange};
use crate::segments::Segments;
use crate::snapshots::{SnapshotChange, Snapshots};
use crate::usage::{Usages, root_tree, taken_over_tree};

#[derive(Clone)]
pub(crate) struct Counters {
    pub record: CountersRecord,
    pub segments: Segments,
    pub snapshots: Snapshots,
    pub usages: Usages,
    /// Number of inconsistent changes; see `MetaStats`.
    pub errors: u64,
}

/// The counters that changed since they were last written.
#[derive(Default)]
pub(crate) struct Changed {
    pub counters: bool,
    pub segments: BTreeSet<SegmentId>,
    pub snapshots: BTreeSet<Generation>,
    /// `None`: no caller asks.
    pub usages: Option<FxHashSet<QuotaKey>>,
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
            add(&mut record.history_bytes, space.history_bytes, errors);
        }
        for (owner, delta) in &batch.charges {
            let errors = &mut self.errors;
            self.usages.charge(owner, delta, errors, |key| {
                if let Some(usages) = &mut changed.usages {
                    usages.insert(key);
                }
            });
        }
        if let Some(change) = &batch.snapshot {
            self.apply_snapshot(change, changed);
        }
    }

    /// Inodes and bytes of files that a branch has.
    pub fn counts_of(&self, branch: Branch) -> (u64, u64) {
        if branch.is_main() {
            return (self.record.inodes, self.record.file_bytes);
        }
        let Some((_, base)) = self.snapshots.base_of(branch) else {
            return (0, 0);
        };
        let tree = |tree| QuotaKey {
            tree,
            kind: QuotaKind::Tree,
            id: 0,
        };
        let own = self.usages.total(&tree(root_tree(branch)));
        let taken_over = self.usages.own(&tree(taken_over_tree(branch)));
        let mut clones = base.clones.iter();
        let clone = clones.find(|clone| clone.branch == branch);
        let nameless = clone.map_or((0, 0), |clone| {
            (clone.nameless_inodes, clone.nameless_bytes)
        });
        let count = |base: u64, own: u64, without: [u64; 2]| {
            let without = without[0].saturating_add(without[1]);
            base.saturating_add(own).saturating_sub(without)
        };
        (
            count(base.inodes, own.inodes, [taken_over.inodes, nameless.0]),
            count(
                base.file_bytes,
                own.file_bytes,
                [taken_over.file_bytes, nameless.1],
            ),
        )
    }

    fn apply_snapshot(&mut self, change: &SnapshotChange, changed: &mut Changed) {
        if let SnapshotChange::Put(_, record) = change {
            let last = record.clones.iter().map(|clone| clone.branch.0).max();
            let next = last.map_or(0, |last| last.saturating_add(1));
            if next > self.record.branch_next {
                self.record.branch_next = next;
                changed.counters = true;
            }
        }
        let generation = match change {
            SnapshotChange::Take(record) => {
                let taken = self.record.generation;
                self.snapshots.insert(taken, record.clone());
                self.record.generation.0 += 1;
                changed.counters = true;
                taken
            }
            SnapshotChange::Put(generation, record) => {
                self.snapshots.insert(*generation, record.clone());
                *generation
            }
            SnapshotChange::Remove(generation) => {
                self.snapshots.remove(*generation);
                *generation
            }
        };
        changed.snapshots.insert(generation);
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
                    // A segment in a tier keeps its record.
                    if segment.remote.is_none() {
                        segment.shard_len_bytes = *shard_len_bytes;
                    }
                });
                if sealed {
                    changed.segments.insert(*id);
                }
            }
            SegmentChange::Place { id, disks } => {
                let known = self.segments.get(id);
                if known.is_some_and(|segment| segment.remote.is_some()) {
                    // A segment that is on no disk cannot be moved.
                    self.errors += 1;
                    return;
                }
                let placed = self
                    .segments
                    .change(id, |segment| segment.disks.clone_from(disks));
                if placed {
                    changed.segments.insert(*id);
                }
            }
            SegmentChange::Remote {
                id,
                remote,
                shard_len_bytes,
            } => {
                let known = self.segments.get(id);
                if known.is_none_or(|segment| segment.remote.is_some()) {
                    self.errors += 1;
                    return;
                }
                self.segments.change(id, |segment| {
                    segment.disks = Vec::new();
                    segment.sealed = true;
                    segment.shard_len_bytes = *shard_len_bytes;
                    segment.remote = Some(*remote);
                });
                changed.segments.insert(*id);
            }
            SegmentChange::Used { id, day } => {
                if self.segments.change(id, |segment| segment.used_day = *day) {
                    changed.segments.insert(*id);
                }
            }
            SegmentChange::Release {
                id,
                birth,
                bytes,
                records,
                branch,
            } => {
                changed.counters = true;
                let errors = &mut self.errors;
                let is_forgotten = id.is_none() && planted::is(Bug::InlineHistoryForgotten);
                let is_seen = *birth <= self.snapshots.newest(*branch) && !is_forgotten;
                if is_seen && !planted::is(Bug::HistoryNotCounted) {
                    add(&mut self.record.history_bytes, *bytes as i64, errors);
                    return;
                }
                add(&mut self.record.stored_bytes, -(*bytes as i64), errors);
                if let Some(id) = *id {
                    let delta = SegmentChange::Delta {
                        id,
                        bytes: -(*bytes as i64),
                        records: -(*records as i64),
                    };
                    self.apply_segment(&delta, changed);
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

    /// Writes the new values of the changed counters into a group.
    pub fn write(&self, changed: Changed, group: &mut Group) {
        for id in changed.segments {
            let value = self.segments.get(&id);
            let value = value.map(|record| Bytes::from(record.encode()));
            group.put(Put::new(Key::segment(id), value));
        }
        for generation in changed.snapshots {
            let value = self.snapshots.get(&generation);
            let value = value.map(|record| Bytes::from(record.encode()));
            group.put(Put::new(Key::snapshot(generation), value));
        }
        for key in changed.usages.into_iter().flatten() {
            let usage = self.usages.own(&key);
            let value = (!usage.is_zero()).then(|| Bytes::from(usage.encode()));
            group.put(Put::new(Key::usage(key), value));
        }
        if changed.counters {
            let value = Bytes::from(self.record.encode());
            group.put(Put::new(Key::counters(), Some(value)));
        }
    }
}

/// Adds within 0..=u64::MAX. A result outside of that is a bug of the caller: it is counted and clamped.
fn add(value: &mut u64, delta: i64, errors: &mut u64) {
    *value = value.checked_add_signed(delta).unwrap_or_else(|| {
        *errors += 1;
        if delta < 0 { 0 } else { u64::MAX }
    });
}
