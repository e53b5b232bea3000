//! What volumes did since the process started, also those that were opened again or deleted since.
//!
//! Owns: counters that go on when a volume is opened again, although all of its engine begins at 0 then.
//! Must not know: under which names they are shown, why volumes come and go.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use cairn_base::VolumeId;
use cairn_fs::FsStats;
use cairn_meta::MetaStats;

/// Counters of one volume, or of several together. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeTotals {
    pub inodes_evicted: u64,
    pub written_bytes: u64,
    pub flushed_bytes: u64,
    pub deduplicated_bytes: u64,
    pub flush_errors: u64,
    pub journaled_writes: u64,
    pub gc_segments_removed: u64,
    pub gc_rewritten_bytes: u64,
    pub joined_bytes: u64,
    pub gc_surveys: u64,
    pub rewrite_passes: u64,
    pub gc_errors: u64,
    pub orphans_reaped: u64,
    pub log_groups: u64,
    pub log_batches: u64,
    /// Bytes of log records, on one disk,
    pub log_bytes: u64,
    /// and on all disks that the log is on.
    pub log_copies_bytes: u64,
    pub log_syncs: u64,
    pub log_ships: u64,
    pub log_ship_errors: u64,
}

impl VolumeTotals {
    /// What a volume did since it was opened.
    pub fn new(fs: &FsStats, meta: &MetaStats) -> Self {
        Self {
            inodes_evicted: fs.inodes_evicted,
            written_bytes: fs.written_bytes,
            flushed_bytes: fs.flushed_bytes,
            deduplicated_bytes: fs.deduplicated_bytes,
            flush_errors: fs.flush_errors,
            journaled_writes: fs.journaled_writes,
            gc_segments_removed: fs.gc_segments_removed,
            gc_rewritten_bytes: fs.gc_rewritten_bytes,
            joined_bytes: fs.joined_bytes,
            gc_surveys: fs.gc_surveys,
            rewrite_passes: fs.rewrite_passes,
            gc_errors: fs.gc_errors,
            orphans_reaped: fs.orphans_reaped,
            log_groups: meta.groups,
            log_batches: meta.batches,
            log_bytes: meta.group_bytes,
            log_copies_bytes: meta.group_copies_bytes,
            log_syncs: meta.syncs,
            log_ships: meta.ships,
            log_ship_errors: meta.ship_errors,
        }
    }
}

impl AddAssign for VolumeTotals {
    fn add_assign(&mut self, more: Self) {
        self.inodes_evicted += more.inodes_evicted;
        self.written_bytes += more.written_bytes;
        self.flushed_bytes += more.flushed_bytes;
        self.deduplicated_bytes += more.deduplicated_bytes;
        self.flush_errors += more.flush_errors;
        self.journaled_writes += more.journaled_writes;
        self.gc_segments_removed += more.gc_segments_removed;
        self.gc_rewritten_bytes += more.gc_rewritten_bytes;
        self.joined_bytes += more.joined_bytes;
        self.gc_surveys += more.gc_surveys;
        self.rewrite_passes += more.rewrite_passes;
        self.gc_errors += more.gc_errors;
        self.orphans_reaped += more.orphans_reaped;
        self.log_groups += more.log_groups;
        self.log_batches += more.log_batches;
        self.log_bytes += more.log_bytes;
        self.log_copies_bytes += more.log_copies_bytes;
        self.log_syncs += more.log_syncs;
        self.log_ships += more.log_ships;
        self.log_ship_errors += more.log_ship_errors;
    }
}

/// What volumes did until they were closed or left behind.
#[derive(Clone, Debug, Default)]
pub struct PastTotals {
    volumes: BTreeMap<VolumeId, VolumeTotals>,
    /// Of deleted volumes together.
    deleted: VolumeTotals,
}

impl PastTotals {
    /// What a volume did that is not open any more, since it was opened.
    pub fn note_closed(&mut self, id: VolumeId, totals: VolumeTotals) {
        *self.volumes.entry(id).or_default() += totals;
    }

    /// Nobody asks for this one alone any more.
    pub fn note_deleted(&mut self, id: VolumeId) {
        self.deleted += self.volumes.remove(&id).unwrap_or_default();
    }

    pub fn of(&self, id: VolumeId) -> VolumeTotals {
        self.volumes.get(&id).copied().unwrap_or_default()
    }

    /// Of all volumes together, also of those that were deleted.
    pub fn all(&self) -> VolumeTotals {
        let mut all = self.deleted;
        for totals in self.volumes.values() {
            all += *totals;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(bytes: u64) -> VolumeTotals {
        let fs = FsStats {
            written_bytes: bytes,
            ..FsStats::default()
        };
        let meta = MetaStats {
            group_bytes: bytes,
            group_copies_bytes: 2 * bytes,
            ..MetaStats::default()
        };
        VolumeTotals::new(&fs, &meta)
    }

    #[test]
    fn what_a_volume_did_is_counted_once_whatever_becomes_of_it() {
        let (kept, deleted, failed) = (VolumeId(1), VolumeId(2), VolumeId(3));
        let mut past = PastTotals::default();
        past.note_closed(kept, totals(100));
        past.note_closed(kept, totals(20));
        past.note_closed(deleted, totals(3000));
        past.note_deleted(deleted);
        // It was not open.
        past.note_deleted(failed);
        assert_eq!(past.of(kept), totals(120));
        assert_eq!(past.of(deleted), VolumeTotals::default());
        assert_eq!(past.all(), totals(3120));
        assert_eq!(past.all().log_copies_bytes, 2 * 3120);
    }
}
