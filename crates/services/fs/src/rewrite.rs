//! Copying live records out of segments, so that those can go.
//!
//! Owns: finding the extents that point into chosen segments, reading, writing and pointing to the copies, and
//! the pace of it. Must not know: which segments are chosen, when they are deleted (`gc`). Invariant: an
//! extent is changed only where it still is what was copied.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, SegmentId};
use cairn_meta::{Batch, Key};
use cairn_segment::{ErrorKind, Pace, RecordPointer, SegmentError, Stream, encode_record};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::extents::{Ahead, Change, Extent, ExtentMap};
use crate::gc_policy::narrow;
use crate::types::FsError;
use crate::volume::{Fs, Shared, meta_error, parse_extent, segment_error};

/// While segments are rewritten it looks this often how things stand.
const SURVEY_INTERVAL: Duration = Duration::from_secs(1);
/// Extents looked at before others get their turn.
const SCAN_EXTENTS_MAX: usize = 4096;
/// Extents and bytes rewritten in one step, and steps at the same time when it is urgent.
const STEP_EXTENTS_MAX: usize = 4096;
const STEP_BYTES: u64 = 4 << 20;
const URGENT_STEPS_MAX: usize = 3;
/// Records of a step that are read at the same time.
const READS_MAX: usize = 32;
/// While it is not urgent at all, a step is followed by a pause of so many times its duration,
const PATIENT_PAUSES: f64 = 3.0;
/// but of no more than this: a step that a hanging disk held up is no reason to wait on.
const PATIENT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Segments that one call rewrites: one pass over all extents finds their records.
pub const REWRITE_SEGMENTS_MAX: usize = 64;

/// An extent to move, and whose it is.
struct Victim {
    ino: Ino,
    extent: Extent,
}

/// Extents that are moved together.
#[derive(Default)]
struct Step {
    victims: Vec<Victim>,
    len_bytes: u64,
}

impl Step {
    fn add(&mut self, victim: Victim) {
        self.len_bytes += victim.extent.len_bytes();
        self.victims.push(victim);
    }

    fn is_full(&self) -> bool {
        self.len_bytes >= STEP_BYTES || self.victims.len() >= STEP_EXTENTS_MAX
    }
}

impl Fs {
    /// Rewrites the live records of some segments into new ones, which are laid out for the disks that
    /// stay, and deletes the old ones. A segment stays if some of its records are damaged, or if it is
    /// being written to; at most [`REWRITE_SEGMENTS_MAX`] at a time.
    pub async fn rewrite_segments(
        &self,
        segments: &[SegmentId],
        pace: &Pace,
    ) -> Result<(), FsError> {
        let segments = segments.get(..REWRITE_SEGMENTS_MAX).unwrap_or(segments);
        self.0.rewrite_segments(segments, pace).await
    }
}

impl Shared {
    /// Copies the live records out of segments, whatever they hold, and deletes those that are empty
    /// then. New segments have the code that the disks allow now.
    pub(crate) async fn rewrite_segments(
        self: &Arc<Self>,
        chosen: &[SegmentId],
        pace: &Pace,
    ) -> Result<(), FsError> {
        let chosen: FxHashSet<SegmentId> = chosen
            .iter()
            .copied()
            .filter(|id| self.is_idle(*id))
            .collect();
        let chosen = self.rewrite(chosen, Some(pace)).await?;
        let dead: Vec<SegmentId> = chosen.into_iter().collect();
        if planted::is(Bug::RewritingDeletesEarly) {
            self.delete_segments(&dead).await?;
        }
        self.remove_dead(&dead).await
    }

    /// Copies the live records out of the `chosen` segments in one pass over all extents of the volume,
    /// which needs no index from records back to files. Memory for one step is all it takes, however
    /// many segments there are. At `pace`, or as fast as is needed. Returns the segments that it was
    /// about to the end.
    pub(crate) async fn rewrite(
        self: &Arc<Self>,
        mut chosen: FxHashSet<SegmentId>,
        pace: Option<&Pace>,
    ) -> Result<FxHashSet<SegmentId>, FsError> {
        let (mut from, to) = Key::all_extents();
        let mut step = Step::default();
        let mut steps = FuturesUnordered::new();
        let mut urgency = 0.0;
        let mut looked_at: Option<Duration> = None;
        loop {
            let begun = self.env.clock.monotonic();
            let is_old = |at: Duration| begun.saturating_sub(at) >= SURVEY_INTERVAL;
            let is_due = looked_at.is_none_or(is_old) || self.collector.is_look_due();
            if pace.is_none() && is_due {
                // None is left half done meanwhile: a reader may wait for what a step is reading.
                while let Some(done) = steps.next().await {
                    done?;
                }
                urgency = self.look_around(&mut chosen).await?;
                looked_at = Some(self.env.clock.monotonic());
            }
            let next = self.find_victims(&from, &to, &chosen, &mut step)?;
            if step.is_full() || next.is_none() {
                let begun = self.env.clock.monotonic();
                let done = std::mem::take(&mut step);
                // Held until the step is done: at a pace there is one at a time.
                let is_wanted = || !self.tasks.is_stopping();
                let _turn = match pace {
                    Some(pace) => match pace.spend_if(done.len_bytes, is_wanted).await {
                        Some(turn) => Some(turn),
                        None => return Err(FsError::Fenced),
                    },
                    None => None,
                };
                steps.push(self.rewrite_records(done.victims));
                let steps_max = if urgency < 1.0 { 1 } else { URGENT_STEPS_MAX };
                while steps.len() >= steps_max {
                    steps.next().await.unwrap_or(Ok(()))?;
                }
                let took = self.env.clock.monotonic().saturating_sub(begun);
                let pause = took.mul_f64(PATIENT_PAUSES * (1.0 - urgency));
                let pause = pause.min(PATIENT_PAUSE_MAX);
                let wake = self.gc_wake.notified();
                if pace.is_none() && !pause.is_zero() && !self.tasks.pause(pause, wake).await {
                    return Err(FsError::Fenced);
                }
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
            let_others_run().await;
            if self.tasks.is_stopping() {
                return Err(FsError::Fenced);
            }
        }
        while let Some(done) = steps.next().await {
            done?;
        }
        Ok(chosen)
    }

    /// In the middle of a pass: deletes what is dead by now, leaves out segments that there is no room
    /// for any more, and says how urgent it is.
    async fn look_around(
        self: &Arc<Self>,
        chosen: &mut FxHashSet<SegmentId>,
    ) -> Result<f64, FsError> {
        let survey = self.tend().await?;
        let (limits, room) = self.limits(survey.live_bytes);
        let urgency = limits.urgency(survey.garbage_bytes);
        let live_bytes = |id| self.meta.segment(id).map_or(0, |record| record.live_bytes);
        let left = chosen.iter().map(|id| (*id, live_bytes(*id))).collect();
        for id in narrow(left, room.rewrite_bytes) {
            chosen.remove(&id);
        }
        Ok(urgency)
    }

    /// Adds extents in `chosen` segments to a step until that is full or very many were looked at;
    /// returns where to go on.
    fn find_victims(
        &self,
        from: &Key,
        to: &Key,
        chosen: &FxHashSet<SegmentId>,
        step: &mut Step,
    ) -> Result<Option<Key>, FsError> {
        let mut failed = None;
        let mut seen = 0;
        let mut last = None;
        self.meta
            .pass_over(from, to, |key, value| {
                seen += 1;
                match parse_extent(key, value) {
                    Ok((ino, extent)) if chosen.contains(&extent.record.location.segment) => {
                        step.add(Victim { ino, extent });
                    }
                    Ok(_) => {}
                    // What it refers to stays; it is no reason not to collect the rest.
                    Err(error) => {
                        tracing::error!(volume = %self.volume, %error, "an extent makes no sense");
                    }
                }
                if seen < SCAN_EXTENTS_MAX && !step.is_full() {
                    return ControlFlow::Continue(());
                }
                match Key::parse(key) {
                    Ok(key) => last = Some(key),
                    Err(error) => failed = Some(error),
                }
                ControlFlow::Break(())
            })
            .map_err(meta_error)?;
        match failed {
            Some(error) => Err(meta_error(error.into())),
            None => Ok(last.map(|key| key.successor())),
        }
    }

    /// Copies the bytes of some extents into new records, and points to those wherever the extents, or
    /// what overwrites have left of them, are still there.
    async fn rewrite_records(self: &Arc<Self>, victims: Vec<Victim>) -> Result<(), FsError> {
        let compression = self.policy.read().compression;
        let mut moved = Vec::new();
        let mut records = Vec::new();
        let mut victims = victims.into_iter().peekable();
        while victims.peek().is_some() {
            let some: Vec<Victim> = victims.by_ref().take(READS_MAX).collect();
            let reads = join_all(some.iter().map(|victim| self.read_victim(victim))).await;
            for (victim, read) in some.into_iter().zip(reads) {
                match read {
                    Ok(parts) => {
                        records.push(encode_record(parts, compression));
                        moved.push(victim);
                    }
                    Err(error @ SegmentError::VolumeClosed { .. }) => {
                        return Err(segment_error(error));
                    }
                    // It was overwritten.
                    Err(error) if error.kind() == ErrorKind::Gone => {}
                    // It stays where it is, and its readers are told: no reason not to move the rest.
                    Err(error) => {
                        let ino = victim.ino;
                        tracing::warn!(volume = %self.volume, %ino, %error, "a record cannot be moved");
                    }
                }
            }
        }
        if moved.is_empty() {
            return Ok(());
        }
        let code = self.code()?;
        let appended = self
            .segments
            .append(self.volume, code, Stream::Rewrite, records.clone())
            .await
            .map_err(segment_error)?;
        let mut by_ino: FxHashMap<Ino, Vec<(Extent, Arc<RecordPointer>)>> = FxHashMap::default();
        for ((victim, record), location) in moved.into_iter().zip(&records).zip(&appended.locations)
        {
            self.counters
                .gc_rewritten_bytes
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
            let start = extents.first().map_or(0, |(extent, _)| extent.start);
            for (extent, _) in &extents {
                let range = extent.start..extent.end;
                let needed = start..extent.end;
                self.load_extents_too(&inode, &range, &needed, Ahead::None)?;
            }
            let mut state = inode.lock();
            if state.removed {
                continue;
            }
            let mut change = Change::default();
            for (old, pointer) in &extents {
                point_to_copy(&mut state.extents, old, pointer, &mut change);
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
        if planted::is(Bug::RewritingDeletesEarly) {
            return Ok(());
        }
        self.durable(ticket).await
    }

    async fn read_victim(&self, victim: &Victim) -> Result<Vec<bytes::Bytes>, SegmentError> {
        let extent = &victim.extent;
        let from = extent.offset_in_record;
        let len_bytes = u32::try_from(extent.len_bytes()).unwrap_or(u32::MAX);
        let range = from..from.saturating_add(len_bytes);
        self.segments.read(self.volume, &extent.record, range).await
    }
}

/// Lets whatever else is ready have its turn.
async fn let_others_run() {
    let mut was_here = false;
    poll_fn(|context| {
        if std::mem::replace(&mut was_here, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Points to `copy`, which holds the bytes of extent `old`, instead of what is left of that extent.
fn point_to_copy(
    extents: &mut ExtentMap,
    old: &Extent,
    copy: &Arc<RecordPointer>,
    change: &mut Change,
) {
    let range = old.start..old.end;
    if !extents.is_loaded(&range) {
        return;
    }
    let is_left = |extent: &&Extent| {
        old.start <= extent.start
            && extent.end <= old.end
            && extent.record == old.record
            && u64::from(
                extent.offset_in_record - old.offset_in_record.min(extent.offset_in_record),
            ) == extent.start - old.start
    };
    let mut left: Vec<Extent> = extents.touching(range).filter(is_left).cloned().collect();
    if planted::is(Bug::RewriteIgnoresOverwrites) {
        left = vec![old.clone()];
    }
    for extent in left {
        let new = Extent {
            record: copy.clone(),
            offset_in_record: (extent.start - old.start) as u32,
            ..extent
        };
        extents.insert(new, change);
    }
}
