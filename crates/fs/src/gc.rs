//! Garbage: inodes without a name, segments without live records, segments with few.
//!
//! Owns: what may be deleted and when. Invariant: a segment goes only after its removal from the
//! metadata is durable, and never while an append to it is not committed (it is pinned).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_base::{Ino, SegmentId};
use cairn_meta::{Batch, Key, SegmentRecord, SpaceDelta};
use cairn_segment::{ErrorKind, Pace, RecordPointer, Stream, encode_record};
use rustc_hash::FxHashMap;

use crate::extents::{Ahead, Change, Extent, ExtentMap};
use crate::types::FsError;
use crate::volume::{Fs, Shared, meta_error, parse_extent, segment_error};

/// The collector looks this often, and when space is short.
const GC_INTERVAL: Duration = Duration::from_secs(2);
const REAP_INTERVAL: Duration = Duration::from_secs(30);
/// Extents that one step removes.
const REAP_EXTENTS_MAX: usize = 1024;
/// A segment with a smaller share of live bytes than this is sparse.
const SPARSE_PERCENT: u64 = 50;
/// Sparse segments are rewritten when they could give back this share of the pool, or when the
/// pool is this full.
const SPARSE_WASTE_PERCENT: u64 = 10;
const PRESSED_FREE_PERCENT: u64 = 15;
/// Segments, and live bytes, that one round rewrites.
const ROUND_SEGMENTS_MAX: usize = 64;
const ROUND_LIVE_BYTES_MAX: u64 = 256 << 20;
const ROUND_EXTENTS_MAX: usize = 1 << 18;
/// Extents and bytes relocated in one step, and how fast steps may follow each other while space is plenty.
const STEP_EXTENTS_MAX: usize = 4096;
const STEP_BYTES: u64 = 4 << 20;
const RELOCATE_BYTES_PER_SECOND: u64 = 200 << 20;
/// Segments that one batch removes from the metadata.
const REMOVE_SEGMENTS_MAX: usize = 256;
/// Open segments without an append for so long are sealed.
const SEAL_IDLE: Duration = Duration::from_secs(60);

/// Segments that one call rewrites: one pass over all extents finds their records.
pub const EVACUATE_SEGMENTS_MAX: usize = 64;

/// What garbage collection has before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcBacklog {
    /// Removed files whose extents are still there.
    pub orphans: u64,
    /// Segments without a live record, and their room for data.
    pub dead_segments: u64,
    pub dead_bytes: u64,
    /// Room in segments with live records that those do not take; what is open counts, too.
    pub sparse_bytes: u64,
}

/// An extent to move, and whose it is.
struct Victim {
    ino: Ino,
    extent: Extent,
}

/// What is to become of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Keep,
    /// The metadata has it, and no live records in it.
    Dead,
    /// The metadata does not have it: the flush that made it failed, or its file was removed first.
    Unreferenced,
}

/// Decides over a segment: whether nothing is being added to it, then how many live records the
/// metadata counts in it, `None` if it has no such segment.
///
/// The order matters: an append may commit its records and let go of the segment between the two
/// looks. What is idle stays so, and from then on nothing becomes live in it.
fn fate(is_idle: impl FnOnce() -> bool, live_records: impl FnOnce() -> Option<u64>) -> Fate {
    if !is_idle() {
        return Fate::Keep;
    }
    match live_records() {
        Some(0) => Fate::Dead,
        Some(_) => Fate::Keep,
        None => Fate::Unreferenced,
    }
}

impl Fs {
    /// Rewrites the live records of some segments into new ones, which are laid out for the disks that
    /// stay, and deletes the old ones. A segment stays if some of its records are damaged, or if it is
    /// being written to; at most [`EVACUATE_SEGMENTS_MAX`] at a time.
    pub async fn evacuate(&self, segments: &[SegmentId], pace: &Pace) -> Result<(), FsError> {
        let segments = segments.get(..EVACUATE_SEGMENTS_MAX).unwrap_or(segments);
        self.0.evacuate(segments, pace).await
    }

    /// How much there is to collect.
    pub fn gc_backlog(&self) -> GcBacklog {
        let mut backlog = GcBacklog {
            orphans: self.0.orphans.lock().len() as u64,
            ..GcBacklog::default()
        };
        for (_, record) in self.0.meta.segments() {
            let data_bytes = record.shard_len_bytes * u64::from(record.data);
            let dead_bytes = data_bytes.saturating_sub(record.live_bytes);
            if record.live_records == 0 {
                backlog.dead_segments += 1;
                backlog.dead_bytes += data_bytes;
            } else {
                backlog.sparse_bytes += dead_bytes;
            }
        }
        backlog
    }
}

impl Shared {
    pub(crate) fn add_orphan(&self, ino: Ino) {
        self.orphans.lock().push(ino);
        self.orphan_wake.notify_one();
    }

    /// Finds inodes whose removal a crash interrupted.
    pub(crate) fn find_orphans(&self) -> Result<(), FsError> {
        let (from, to) = Key::orphans();
        let found = self.meta.scan(&from, &to, usize::MAX).map_err(meta_error)?;
        for (key, _) in found {
            if let Ok(cairn_meta::KeyKind::Orphan(ino)) = key.kind() {
                self.add_orphan(ino);
            }
        }
        Ok(())
    }

    pub(crate) async fn run_reaper(self: Arc<Self>) {
        loop {
            loop {
                if self.tasks.is_stopping() {
                    return;
                }
                let Some(ino) = self.orphans.lock().pop() else {
                    break;
                };
                if let Err(error) = self.reap(ino).await {
                    tracing::error!(volume = %self.volume, %ino, %error, "deleting a removed file failed; it is tried again");
                    self.orphans.lock().push(ino);
                    break;
                }
            }
            if !self
                .tasks
                .pause(REAP_INTERVAL, self.orphan_wake.notified())
                .await
            {
                return;
            }
        }
    }

    /// Deletes a removed inode: its extents in steps, then itself.
    async fn reap(self: &Arc<Self>, ino: Ino) -> Result<(), FsError> {
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(FsError::Stale) => {
                let mut batch = Batch::new();
                batch.delete(Key::orphan(ino));
                return self.durable(self.meta.submit(batch)).await;
            }
            Err(error) => return Err(error),
        };
        let mut at = 0;
        loop {
            // On from where the last step ended: what it deleted is still to be stepped over there.
            let (from, to) = Key::extents_past(ino, at);
            let mut extents: Vec<Extent> = Vec::new();
            self.scan_extents(&from, &to, |extent| {
                extents.push(extent);
                extents.len() < REAP_EXTENTS_MAX
            })?;
            let last = extents.len() < REAP_EXTENTS_MAX;
            at = extents.last().map_or(at, |extent| extent.end);
            let mut map = ExtentMap::new(&self.extent_count);
            map.load(0..u64::MAX, extents);
            let mut change = Change::default();
            map.clear(0..u64::MAX, &mut change);
            let mut batch = Batch::new();
            let ticket = {
                let mut state = inode.lock();
                if last {
                    self.drop_xattrs(ino, &state, &mut batch)?;
                }
                self.change_extents(ino, &mut state, &change, &mut batch);
                if last {
                    batch.delete(Key::inode(ino));
                    batch.delete(Key::orphan(ino));
                    batch.space(SpaceDelta {
                        inodes: -1,
                        ..SpaceDelta::default()
                    });
                }
                state.extents.forget_from(0);
                state.ticket = self.meta.submit(batch);
                state.ticket
            };
            self.durable(ticket).await?;
            if last {
                self.counters.orphans_reaped.fetch_add(1, Ordering::Relaxed);
                self.gc_wake.notify_one();
                return Ok(());
            }
        }
    }

    pub(crate) async fn run_gc(self: Arc<Self>) {
        while self.tasks.pause(GC_INTERVAL, self.gc_wake.notified()).await {
            self.segments.seal_idle(self.volume, SEAL_IDLE).await;
            self.trim_idle_extents();
            let round = async {
                self.remove_dead().await?;
                self.remove_unreferenced().await?;
                if self.relocate_sparse().await? > 0 {
                    self.remove_dead().await?;
                }
                Ok::<_, FsError>(())
            };
            if let Err(error) = round.await {
                self.counters.gc_errors.fetch_add(1, Ordering::Relaxed);
                tracing::error!(volume = %self.volume, %error, "garbage collection failed; it is tried again");
            }
        }
    }

    /// Deletes segments without live records.
    async fn remove_dead(self: &Arc<Self>) -> Result<(), FsError> {
        let segments = self.meta.segments();
        let candidates = segments
            .iter()
            .filter(|(_, record)| record.live_records == 0);
        let dead: Vec<SegmentId> = candidates
            .map(|(id, _)| *id)
            .filter(|id| self.fate(*id) == Fate::Dead)
            .collect();
        for dead in dead.chunks(REMOVE_SEGMENTS_MAX) {
            // What made them dead is durable before they go, and so is that they are gone.
            let mut batch = Batch::new();
            for id in dead {
                batch.remove_segment(*id);
            }
            let ticket = self.meta.submit(batch);
            self.durable(ticket).await?;
            self.delete_segments(dead).await?;
        }
        Ok(())
    }

    /// Deletes segments that the metadata does not know. Those that a crash left were swept at the
    /// start; here go those of flushes that failed, or whose file was removed before they landed.
    async fn remove_unreferenced(self: &Arc<Self>) -> Result<(), FsError> {
        let found: Vec<SegmentId> = self
            .segments
            .segments(self.volume)
            .into_iter()
            .map(|info| info.id)
            .filter(|id| self.fate(*id) == Fate::Unreferenced)
            .collect();
        if found.is_empty() {
            return Ok(());
        }
        // A segment whose removal was submitted and is not durable would come back in a crash.
        self.durable(self.meta.last_ticket()).await?;
        tracing::info!(volume = %self.volume, segments = found.len(), "deleting segments that nothing refers to");
        self.delete_segments(&found).await
    }

    async fn delete_segments(&self, ids: &[SegmentId]) -> Result<(), FsError> {
        for id in ids {
            self.segments
                .remove(self.volume, *id)
                .await
                .map_err(segment_error)?;
            self.counters
                .gc_segments_removed
                .fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn fate(&self, id: SegmentId) -> Fate {
        let live_records = || self.meta.segment(id).map(|record| record.live_records);
        fate(|| self.is_idle(id), live_records)
    }

    /// Whether nothing is being added to a segment. The order matters here, too: rows are added only
    /// while it is open, and until they are committed it is pinned.
    fn is_idle(&self, id: SegmentId) -> bool {
        !self.segments.is_open(self.volume, id) && !self.segments.is_pinned(self.volume, id)
    }

    /// Copies the live records out of sparse segments, when that is worth it.
    /// Returns how many segments it emptied.
    async fn relocate_sparse(self: &Arc<Self>) -> Result<usize, FsError> {
        let space = self.segments.space();
        let pressed = space.free_bytes.saturating_sub(space.reserve_bytes)
            < space.total_bytes / 100 * PRESSED_FREE_PERCENT;
        let data_bytes = |record: &SegmentRecord| record.shard_len_bytes * u64::from(record.data);
        let mut sparse: Vec<(SegmentId, SegmentRecord)> = self
            .meta
            .segments()
            .into_iter()
            .filter(|(id, record)| {
                record.live_records > 0
                    && record.live_bytes < data_bytes(record) / 100 * SPARSE_PERCENT
                    && self.is_idle(*id)
            })
            .collect();
        let waste: u64 = sparse
            .iter()
            .map(|(_, record)| data_bytes(record) - record.live_bytes)
            .sum();
        if !pressed && waste < space.total_bytes / 100 * SPARSE_WASTE_PERCENT {
            return Ok(0);
        }
        sparse.sort_by_key(|(_, record)| record.live_bytes * 100 / data_bytes(record).max(1));
        let mut live = 0;
        let chosen: Vec<SegmentId> = sparse
            .into_iter()
            .take(ROUND_SEGMENTS_MAX)
            .take_while(|(_, record)| {
                live += record.live_bytes;
                live <= ROUND_LIVE_BYTES_MAX
            })
            .map(|(id, _)| id)
            .collect();
        // One segment gives nothing back that its copy does not take.
        if chosen.len() < 2 {
            return Ok(0);
        }
        let victims = self.find_victims(&chosen)?;
        let mut step = Vec::new();
        let mut step_bytes = 0;
        for victim in victims {
            step_bytes += victim.extent.len_bytes();
            step.push(victim);
            if step_bytes >= STEP_BYTES || step.len() >= STEP_EXTENTS_MAX {
                self.relocate(std::mem::take(&mut step)).await?;
                if !pressed {
                    let pause = step_bytes as f64 / RELOCATE_BYTES_PER_SECOND as f64;
                    self.env.clock.sleep(Duration::from_secs_f64(pause)).await;
                }
                step_bytes = 0;
            }
            if self.tasks.is_stopping() {
                return Ok(0);
            }
        }
        if !step.is_empty() {
            self.relocate(step).await?;
        }
        Ok(chosen.len())
    }

    /// Copies the live records out of segments, whatever they hold, and deletes those that are empty
    /// then. New segments have the code that the disks allow now.
    pub(crate) async fn evacuate(
        self: &Arc<Self>,
        chosen: &[SegmentId],
        pace: &Pace,
    ) -> Result<(), FsError> {
        let chosen: Vec<SegmentId> = chosen
            .iter()
            .copied()
            .filter(|id| self.is_idle(*id))
            .collect();
        let mut step = Vec::new();
        let mut step_bytes = 0;
        let mut victims = self.find_victims(&chosen)?.into_iter().peekable();
        while let Some(victim) = victims.next() {
            step_bytes += victim.extent.len_bytes();
            step.push(victim);
            if step_bytes >= STEP_BYTES
                || step.len() >= STEP_EXTENTS_MAX
                || victims.peek().is_none()
            {
                pace.spend(step_bytes).await;
                self.relocate(std::mem::take(&mut step)).await?;
                step_bytes = 0;
            }
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
        }
        self.remove_dead().await
    }

    /// All extents in the `chosen` segments: one pass over the extents of the volume, which needs
    /// no index from records back to files.
    fn find_victims(&self, chosen: &[SegmentId]) -> Result<Vec<Victim>, FsError> {
        let mut victims = Vec::new();
        let mut failed = None;
        let (from, to) = Key::all_extents();
        self.meta
            .scan_with(&from, &to, |key, value| match parse_extent(key, value) {
                Ok((ino, extent)) => {
                    if chosen.contains(&extent.record.location.segment) {
                        victims.push(Victim { ino, extent });
                    }
                    if victims.len() < ROUND_EXTENTS_MAX {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                }
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            })
            .map_err(meta_error)?;
        failed.map_or(Ok(victims), |error| Err(meta_error(error)))
    }

    /// Copies the bytes of some extents into new records, and points to those where the extents
    /// are still the same.
    async fn relocate(self: &Arc<Self>, victims: Vec<Victim>) -> Result<(), FsError> {
        let compression = self.policy.read().compression;
        let mut moved = Vec::new();
        let mut records = Vec::new();
        for victim in victims {
            let extent = &victim.extent;
            let from = extent.offset_in_record;
            let range = from..from + extent.len_bytes() as u32;
            match self.segments.read(self.volume, &extent.record, range).await {
                Ok(parts) => {
                    records.push(encode_record(parts, compression));
                    moved.push(victim);
                }
                // Gone: it was overwritten. Damaged: it stays where it is, and its readers are told.
                Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::Damaged) => {}
                Err(error) => return Err(segment_error(error)),
            }
        }
        if moved.is_empty() {
            return Ok(());
        }
        let code = self.code()?;
        let appended = self
            .segments
            .append(self.volume, code, Stream::Relocate, records.clone())
            .await
            .map_err(segment_error)?;
        let mut by_ino: FxHashMap<Ino, Vec<(Extent, Arc<RecordPointer>)>> = FxHashMap::default();
        for ((victim, record), location) in moved.into_iter().zip(&records).zip(&appended.locations)
        {
            self.counters
                .gc_relocated_bytes
                .fetch_add(victim.extent.len_bytes(), Ordering::Relaxed);
            by_ino
                .entry(victim.ino)
                .or_default()
                .push((victim.extent, Arc::new(record.pointer(*location))));
        }
        let mut ticket = self.meta.last_ticket();
        for (ino, extents) in by_ino {
            let inode = match self.inode(ino) {
                Ok(inode) => inode,
                Err(FsError::Stale) => continue,
                Err(error) => return Err(error),
            };
            for (extent, _) in &extents {
                self.load_extents(&inode, &(extent.start..extent.end), Ahead::None)?;
            }
            let mut state = inode.lock();
            if state.removed {
                continue;
            }
            let mut change = Change::default();
            for (old, pointer) in extents {
                let range = old.start..old.end;
                let same = state.extents.is_loaded(&range)
                    && state.extents.touching(range).next() == Some(&old);
                if same {
                    let new = Extent {
                        record: pointer,
                        offset_in_record: 0,
                        ..old
                    };
                    state.extents.insert(new, &mut change);
                }
            }
            if change.is_empty() {
                continue;
            }
            let mut batch = Batch::new();
            self.put_segments(&appended.segments, &mut batch);
            self.change_extents(ino, &mut state, &change, &mut batch);
            batch.put(Key::inode(ino), state.stored_record().encode());
            ticket = self.meta.submit(batch);
            state.ticket = ticket;
        }
        drop(appended.pin);
        self.durable(ticket).await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// An append that ends (commits a live record, then lets go) at every point between the looks.
    #[test]
    fn a_segment_is_not_taken_for_dead_while_an_append_ends() {
        for known in [true, false] {
            for ends_after_looks in 0..3 {
                let looks = Cell::new(0);
                let has_ended = || {
                    let ended = looks.get() >= ends_after_looks;
                    looks.set(looks.get() + 1);
                    ended
                };
                let before = known.then_some(0);
                let got = fate(has_ended, || if has_ended() { Some(1) } else { before });
                assert_eq!(
                    got,
                    Fate::Keep,
                    "known: {known}, after {ends_after_looks} looks"
                );
            }
        }
    }

    #[test]
    fn only_idle_segments_without_live_records_go() {
        let cases = [
            (true, Some(0), Fate::Dead),
            (true, None, Fate::Unreferenced),
            (true, Some(1), Fate::Keep),
            (false, Some(0), Fate::Keep),
            (false, None, Fate::Keep),
        ];
        for (is_idle, live_records, want) in cases {
            assert_eq!(
                fate(|| is_idle, || live_records),
                want,
                "{is_idle} {live_records:?}"
            );
        }
    }
}
