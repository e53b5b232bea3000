//! The segments of a volume in memory, with sums that follow each change.
//!
//! Owns: totals over all segments, the segments without live records, the unsealed segments. Must not know: batches,
//! garbage collection.
//!
//! Callers ask for the totals every second or two, and must not wait for a walk over all segments: a volume of 100 TB
//! has hundreds of thousands.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use cairn_base::SegmentId;
use cairn_formats::metadata::SegmentRecord;

use crate::store::SegmentUsage;

/// Sums over all segments of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentTotals {
    /// Bytes that live records take, in open segments too.
    pub live_bytes: u64,
    /// Room that sealed segments have beside their live records; segments without live records are excluded.
    pub sparse_bytes: u64,
    /// Segments in tiers, their room for data, and the part that live records take. The sums above exclude these
    /// segments.
    pub remote_segments: u64,
    pub remote_bytes: u64,
    pub remote_live_bytes: u64,
    /// Bytes that these would take on disks.
    pub remote_saved_bytes: u64,
    /// Segments without a live record, sealed or not, and their room for data.
    pub dead_segments: u64,
    pub dead_bytes: u64,
    /// The number of the newest segment.
    pub newest: SegmentId,
}

/// All segments by number.
#[derive(Clone, Default)]
pub(crate) struct Segments {
    all: BTreeMap<SegmentId, SegmentRecord>,
    totals: SegmentTotals,
    dead: BTreeSet<SegmentId>,
    unsealed: BTreeSet<SegmentId>,
    remote: BTreeSet<SegmentId>,
}

impl Deref for Segments {
    type Target = BTreeMap<SegmentId, SegmentRecord>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Segments {
    pub fn insert(&mut self, id: SegmentId, record: SegmentRecord) {
        self.remove(&id);
        self.add(usage(id, &record));
        self.all.insert(id, record);
    }

    /// Removes a segment. Returns whether it existed.
    pub fn remove(&mut self, id: &SegmentId) -> bool {
        let Some(record) = self.all.remove(id) else {
            return false;
        };
        self.subtract(usage(*id, &record));
        true
    }

    /// Changes a segment. Returns whether it exists.
    pub fn change(&mut self, id: &SegmentId, change: impl FnOnce(&mut SegmentRecord)) -> bool {
        let Some(record) = self.all.get_mut(id) else {
            return false;
        };
        let before = usage(*id, record);
        change(record);
        let after = usage(*id, record);
        if before != after {
            self.subtract(before);
            self.add(after);
        }
        true
    }

    pub fn totals(&self) -> SegmentTotals {
        SegmentTotals {
            newest: self
                .all
                .last_key_value()
                .map_or(SegmentId(0), |(id, _)| *id),
            ..self.totals
        }
    }

    pub fn dead(&self) -> &BTreeSet<SegmentId> {
        &self.dead
    }

    pub fn unsealed(&self) -> &BTreeSet<SegmentId> {
        &self.unsealed
    }

    /// Segments in tiers.
    pub fn remote(&self) -> &BTreeSet<SegmentId> {
        &self.remote
    }

    fn add(&mut self, usage: SegmentUsage) {
        let totals = &mut self.totals;
        if usage.is_remote {
            totals.remote_segments += 1;
            totals.remote_bytes = totals.remote_bytes.saturating_add(usage.data_bytes);
            totals.remote_live_bytes = totals.remote_live_bytes.saturating_add(usage.live_bytes);
            totals.remote_saved_bytes = totals
                .remote_saved_bytes
                .saturating_add(usage.protected_bytes);
            self.remote.insert(usage.id);
        } else {
            totals.live_bytes = totals.live_bytes.saturating_add(usage.live_bytes);
            totals.sparse_bytes = totals.sparse_bytes.saturating_add(usage.sparse_bytes());
        }
        if usage.live_records == 0 {
            totals.dead_segments += 1;
            totals.dead_bytes = totals.dead_bytes.saturating_add(usage.disk_bytes());
            self.dead.insert(usage.id);
        }
        if !usage.sealed {
            self.unsealed.insert(usage.id);
        }
    }

    fn subtract(&mut self, usage: SegmentUsage) {
        let totals = &mut self.totals;
        if self.remote.remove(&usage.id) {
            totals.remote_segments -= 1;
            totals.remote_bytes = totals.remote_bytes.saturating_sub(usage.data_bytes);
            totals.remote_live_bytes = totals.remote_live_bytes.saturating_sub(usage.live_bytes);
            totals.remote_saved_bytes = totals
                .remote_saved_bytes
                .saturating_sub(usage.protected_bytes);
        } else {
            totals.live_bytes = totals.live_bytes.saturating_sub(usage.live_bytes);
            totals.sparse_bytes = totals.sparse_bytes.saturating_sub(usage.sparse_bytes());
        }
        if self.dead.remove(&usage.id) {
            totals.dead_segments -= 1;
            totals.dead_bytes = totals.dead_bytes.saturating_sub(usage.disk_bytes());
        }
        self.unsealed.remove(&usage.id);
    }
}

/// Space use of a segment.
pub(crate) fn usage(id: SegmentId, record: &SegmentRecord) -> SegmentUsage {
    let data_bytes = record
        .shard_len_bytes
        .saturating_mul(u64::from(record.data));
    SegmentUsage {
        id,
        data_bytes,
        protected_bytes: record
            .shard_len_bytes
            .saturating_mul(u64::from(record.data) + u64::from(record.parity)),
        // A shared record counts once for each reference, and takes its room once.
        live_bytes: record.live_bytes.min(data_bytes),
        live_records: record.live_records,
        sealed: record.sealed,
        is_remote: record.remote.is_some(),
        used_day: record.used_day,
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::{Epoch, TierId};
    use cairn_formats::metadata::RemoteSegment;
    use proptest::prelude::*;

    use super::*;

    fn recomputed(segments: &Segments) -> SegmentTotals {
        let mut totals = SegmentTotals::default();
        for (id, record) in segments.iter() {
            let usage = usage(*id, record);
            totals.newest = *id;
            if usage.is_remote {
                totals.remote_segments += 1;
                totals.remote_bytes += usage.data_bytes;
                totals.remote_live_bytes += usage.live_bytes;
                totals.remote_saved_bytes += usage.protected_bytes;
            } else {
                totals.live_bytes += usage.live_bytes;
            }
            if usage.live_records == 0 {
                totals.dead_segments += 1;
                totals.dead_bytes += usage.disk_bytes();
            } else if usage.sealed && !usage.is_remote {
                totals.sparse_bytes += usage.data_bytes.saturating_sub(usage.live_bytes);
            }
        }
        totals
    }

    proptest! {
        #[test]
        fn totals_are_those_of_a_look_at_all(
            steps in prop::collection::vec((0..8u64, 0..4u8, 0..3u64, any::<bool>()), 1..60),
        ) {
            let mut segments = Segments::default();
            for (id, what, live, sealed) in steps {
                let id = SegmentId(id);
                match what {
                    0 => {
                        segments.remove(&id);
                    }
                    1 => segments.insert(id, SegmentRecord {
                        data: 2,
                        parity: 1,
                        disks: Vec::new(),
                        shard_len_bytes: 1000,
                        sealed,
                        epoch: Epoch(1),
                        live_bytes: live * 1100,
                        live_records: live,
                        ..SegmentRecord::default()
                    }),
                    2 if sealed => {
                        segments.change(&id, |record| {
                            record.sealed = true;
                            record.remote = Some(RemoteSegment {
                                tier: TierId(1),
                                nonce: 1,
                                object_len_bytes: 1,
                                sent_live_bytes: 1,
                            });
                        });
                    }
                    _ => {
                        segments.change(&id, |record| {
                            (record.live_bytes, record.live_records) = (live * 500, live);
                            record.sealed |= sealed;
                            record.shard_len_bytes = 900;
                        });
                    }
                }
                prop_assert_eq!(segments.totals(), recomputed(&segments));
                let of = |wanted: fn(&SegmentRecord) -> bool| -> Vec<SegmentId> {
                    let found = segments.iter().filter(|(_, record)| wanted(record));
                    found.map(|(id, _)| *id).collect()
                };
                let dead: Vec<SegmentId> = segments.dead().iter().copied().collect();
                prop_assert_eq!(dead, of(|record| record.live_records == 0));
                let remote: Vec<SegmentId> = segments.remote().iter().copied().collect();
                prop_assert_eq!(remote, of(|record| record.remote.is_some()));
                let unsealed: Vec<SegmentId> = segments.unsealed().iter().copied().collect();
                prop_assert_eq!(unsealed, of(|record| !record.sealed));
            }
        }
    }
}
