//! Converts existing data to the form that a new write would have.
//!
//! Owns: which extents differ from the form that their file's policy gives such bytes, and the records that replace
//! them. Must not know: which files are visited, at which pace (`apply`). Invariant: as in garbage collection, an
//! extent is changed only where it still is the one that was read, under the lock of its file, and it keeps its
//! birth. So no concurrent write of a client is lost, and snapshots follow the move: they have the same bytes, once.
//!
//! A record may be cut into several, which all have the birth of the former extent. Records are never joined: a
//! snapshot may see some of them and not the rest.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{Ino, SegmentId};
use cairn_meta::{Key, Ticket};
use cairn_segment::{
    Codec, Compression, EncodedRecord, Encoder, ErrorKind, RecordOwner, RecordPointer, SegmentInfo,
    Stream,
};
use futures_util::future::join_all;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dedupe::{DEDUPE_LEN_BYTES_MIN, Dedupe, Hash, KnownRecord};
use crate::flight::Source;
use crate::kernel::{
    Ahead, Commit, ExtentChange, ExtentMap, Guard, Record, RecordExtent, Shown, UndoWhen, Why,
    meta_error, parse_extent, segment_error,
};
use crate::share::Sharers;
use crate::storing::{Records, StorageRequirement, Stored};
use crate::types::FsError;
use crate::volume::{Policy, VolumeCore};

/// Limits on the extents and bytes that are converted together.
const STEP_EXTENTS_MAX: usize = 2048;
pub(super) const STEP_BYTES: u64 = 4 << 20;
/// Concurrent reads of records.
const READS_MAX: usize = 32;

/// An extent that may differ from the form that its file's policy gives.
pub(super) struct Victim {
    pub ino: Ino,
    pub policy: Arc<Policy>,
    pub extent: RecordExtent,
}

/// Extents that are converted together.
#[derive(Default)]
pub(super) struct Step {
    pub victims: Vec<Victim>,
    pub len_bytes: u64,
}

impl Step {
    pub fn add(&mut self, victim: Victim) {
        self.len_bytes += victim.extent.len_bytes();
        self.victims.push(victim);
    }

    pub fn is_full(&self) -> bool {
        self.len_bytes >= STEP_BYTES || self.victims.len() >= STEP_EXTENTS_MAX
    }
}

/// The result for some extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Converted {
    pub rewritten_bytes: u64,
    pub shared_bytes: u64,
    pub stored_bytes_before: u64,
    pub stored_bytes_after: u64,
    /// Extents that could not be read, or had changed by then.
    pub left: u64,
}

impl std::ops::AddAssign for Converted {
    fn add_assign(&mut self, other: Self) {
        self.rewritten_bytes += other.rewritten_bytes;
        self.shared_bytes += other.shared_bytes;
        self.stored_bytes_before += other.stored_bytes_before;
        self.stored_bytes_after += other.stored_bytes_after;
        self.left += other.left;
    }
}

/// Bytes of a victim that become one record.
struct Piece {
    range: Range<u64>,
    hash: Option<Hash>,
    source: Source,
}

/// A victim, and the pieces that replace it.
struct Plan {
    victim: Victim,
    pieces: Vec<Piece>,
}

/// The records that a step makes.
#[derive(Default)]
struct Made {
    records: Records,
    by_hash: FxHashMap<Hash, (usize, Vec<Bytes>)>,
}

impl Made {
    fn add(
        &mut self,
        record: EncodedRecord,
        asked: StorageRequirement,
        hash: Option<Hash>,
        parts: Vec<Bytes>,
    ) -> Source {
        let index = self.records.add(record, asked);
        if let Some(hash) = hash {
            self.by_hash.insert(hash, (index, parts));
        }
        Source::New(index)
    }
}

/// A piece, and the record that has its bytes.
struct StoredPiece {
    range: Range<u64>,
    hash: Option<Hash>,
    source: Source,
    record: Arc<RecordPointer>,
}

/// A victim, and the new places of its bytes.
struct Pointed {
    victim: Victim,
    placed: Vec<StoredPiece>,
}

/// Whether a record with this codec fits a policy, as far as that can be told without its bytes.
fn has_codec(policy: &Policy, codec: Codec) -> bool {
    match policy.compression {
        Compression::None => codec == Codec::Raw,
        Compression::Lz4 => codec == Codec::Lz4,
        // The level of an existing record is unknown. The record is left alone.
        Compression::Zstd(_) => codec == Codec::Zstd,
        Compression::Auto => false,
    }
}

/// The maximum number of bytes in one record of a file.
fn record_bytes(policy: &Policy) -> u64 {
    policy.record_bytes(u64::MAX)
}

/// Whether an extent may differ from the form that its file's policy gives such bytes.
pub(super) fn may_differ(policy: &Policy, extent: &RecordExtent) -> bool {
    let size = record_bytes(policy);
    let is_cut = extent.start / size != extent.end.saturating_sub(1) / size;
    let may_be_shared = policy.dedupe != Dedupe::Off && extent.len_bytes() >= DEDUPE_LEN_BYTES_MIN;
    is_cut || may_be_shared || !has_codec(policy, extent.record.codec)
}

/// The bytes of an extent from `start` on, cut at record boundaries of files.
fn cut(start: u64, parts: Vec<Bytes>, size: u64) -> Vec<(Range<u64>, Vec<Bytes>)> {
    let mut cuts: Vec<(Range<u64>, Vec<Bytes>)> = Vec::new();
    let mut at = start;
    for mut part in parts {
        while !part.is_empty() {
            let end = (at / size + 1).saturating_mul(size);
            let take = part
                .len()
                .min(usize::try_from(end - at).unwrap_or(usize::MAX));
            let now = part.split_to(take);
            let is_new = at.is_multiple_of(size) || cuts.is_empty();
            match cuts.last_mut() {
                Some((range, parts)) if !is_new => {
                    range.end += take as u64;
                    parts.push(now);
                }
                _ => cuts.push((at..at + take as u64, vec![now])),
            }
            at += take as u64;
        }
    }
    cuts
}

impl VolumeCore {
    /// Converts some extents to the policies of their files, and waits until that is durable.
    pub(super) async fn convert(self: &Arc<Self>, step: Step) -> Result<Converted, FsError> {
        let mut done = Converted::default();
        let refused = self.convert_some(step.victims, true, &mut done).await?;
        if !refused.is_empty() {
            // The records to share are gone.
            let refused = self.convert_some(refused, false, &mut done).await?;
            done.left += refused.len() as u64;
        }
        Ok(done)
    }

    /// Returns the victims that found records to share, and could no longer share them: nothing was changed for these.
    async fn convert_some(
        self: &Arc<Self>,
        victims: Vec<Victim>,
        may_share: bool,
        done: &mut Converted,
    ) -> Result<Vec<Victim>, FsError> {
        let encoder = self.segments.encoder(self.volume).map_err(segment_error)?;
        let mut made = Made::default();
        let mut plans = Vec::new();
        let mut victims = victims.into_iter().peekable();
        while victims.peek().is_some() {
            let some: Vec<Victim> = victims.by_ref().take(READS_MAX).collect();
            let reads = join_all(some.iter().map(|victim| self.read_extent(&victim.extent))).await;
            for (victim, read) in some.into_iter().zip(reads) {
                match read {
                    Ok(parts) => {
                        let plan = self
                            .plan(&encoder, victim, parts, may_share, &mut made)
                            .await;
                        plans.extend(plan);
                    }
                    Err(error) if error.kind() == ErrorKind::Gone => done.left += 1,
                    Err(error) => {
                        let error = segment_error(error);
                        if error == FsError::Fenced {
                            return Err(error);
                        }
                        done.left += 1;
                        tracing::warn!(volume = %self.volume, ino = %victim.ino, %error, "bytes of a file cannot be read, and stay as they are");
                    }
                }
            }
        }
        if plans.is_empty() {
            return Ok(Vec::new());
        }
        let Stored {
            locations,
            segments,
            pins,
        } = self.store_records(Stream::Rewrite, &made.records).await?;
        let written: Vec<Arc<RecordPointer>> = made
            .records
            .all
            .iter()
            .zip(&locations)
            .map(|(record, location)| Arc::new(record.pointer(*location)))
            .collect();
        let mut refused = Vec::new();
        let mut by_ino: FxHashMap<Ino, Vec<Pointed>> = FxHashMap::default();
        for plan in plans {
            match self.place_pieces_of(plan, &written).await {
                Ok(pointed) => by_ino.entry(pointed.victim.ino).or_default().push(pointed),
                Err(victim) => refused.push(victim),
            }
        }
        let mut ticket = Ticket::NONE;
        for (ino, pointed) in by_ino {
            match self.point(ino, &pointed, &segments, done)? {
                Some(submitted) => ticket = ticket.max(submitted),
                None => refused.extend(pointed.into_iter().map(|pointed| pointed.victim)),
            }
        }
        drop(pins);
        self.durable(ticket).await?;
        Ok(refused)
    }

    async fn read_extent(
        &self,
        extent: &RecordExtent,
    ) -> Result<Vec<Bytes>, cairn_segment::SegmentError> {
        let from = extent.offset_in_record;
        let len_bytes = u32::try_from(extent.len_bytes()).unwrap_or(u32::MAX);
        let range = from..from.saturating_add(len_bytes);
        self.segments.read(self.volume, &extent.record, range).await
    }

    /// The plan for an extent with these bytes; `None`: it stays.
    async fn plan(
        &self,
        encoder: &Encoder,
        victim: Victim,
        parts: Vec<Bytes>,
        may_share: bool,
        made: &mut Made,
    ) -> Option<Plan> {
        let (policy, extent) = (victim.policy.clone(), &victim.extent);
        let cuts = cut(extent.start, parts, record_bytes(&policy));
        let is_one = cuts.len() == 1;
        let is_placed = self.is_placed_for(extent.record.location.segment, policy.asked());
        let is_whole = is_one
            && extent.offset_in_record == 0
            && extent.len_bytes() == u64::from(extent.record.file_len_bytes);
        let mut pieces = Vec::with_capacity(cuts.len());
        for (range, parts) in cuts {
            let hash = match may_share {
                true => self.hash_of(range.start, &parts, &policy),
                false => None,
            };
            let found = match &hash {
                Some(hash) => self.find_same(hash, &parts, &victim, made).await,
                None => None,
            };
            let source = match found {
                Some((source, codec)) if has_codec(&policy, codec) => source,
                found => {
                    let is_right = is_one && is_placed && has_codec(&policy, extent.record.codec);
                    let encoded =
                        (!is_right).then(|| encoder.encode(parts.clone(), policy.compression));
                    match (found, encoded) {
                        // For example, bytes that do not compress.
                        (Some((source, codec)), Some(encoded)) if encoded.codec() == codec => {
                            source
                        }
                        (_, Some(encoded))
                            if !is_one || !is_placed || encoded.codec() != extent.record.codec =>
                        {
                            let owner = RecordOwner {
                                object: victim.ino.0,
                                offset: range.start,
                            };
                            made.add(encoded.owned_by(owner), policy.asked(), hash, parts)
                        }
                        _ => {
                            self.remember_whole(&victim, is_whole, hash);
                            return None;
                        }
                    }
                }
            };
            pieces.push(Piece {
                range,
                hash,
                source,
            });
        }
        Some(Plan { victim, pieces })
    }

    /// A record with equal bytes that is not the victim's own, and its compression.
    async fn find_same(
        &self,
        hash: &Hash,
        parts: &[Bytes],
        victim: &Victim,
        made: &Made,
    ) -> Option<(Source, Codec)> {
        let found = self.find_record(hash, parts, &victim.policy, &made.by_hash, &made.records);
        let found = found.await?;
        let codec = match found {
            Source::New(index) | Source::Again(index) => made.records.all.get(index)?.codec(),
            Source::There(known) if known.location == victim.extent.record.location => return None,
            Source::There(known) => {
                let there = self.reading(|| self.record_there(&known)).await;
                there.ok().flatten()?.codec
            }
        };
        Some((found, codec))
    }

    /// Remembers a whole record, so that the next write of equal bytes finds it.
    fn remember_whole(&self, victim: &Victim, is_whole: bool, hash: Option<Hash>) {
        let record = &victim.extent.record;
        if let Some(hash) = hash.filter(|_| is_whole) {
            let known = KnownRecord {
                location: record.location,
                ino: victim.ino,
                start: victim.extent.start,
                len_bytes: record.file_len_bytes,
            };
            self.dedupe.put(&hash, known, record);
        }
    }

    /// The records of the pieces of a plan; `Err` if an existing one is gone.
    async fn place_pieces_of(
        &self,
        plan: Plan,
        written: &[Arc<RecordPointer>],
    ) -> Result<Pointed, Victim> {
        let Plan { victim, pieces } = plan;
        let mut placed = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let record = match piece.source {
                Source::New(index) | Source::Again(index) => written.get(index).cloned(),
                Source::There(known) => {
                    let there = self.reading(|| self.record_there(&known)).await;
                    let there = there.ok().flatten();
                    if let (None, Some(hash)) = (&there, &piece.hash) {
                        self.dedupe.forget(hash, &known);
                    }
                    there
                }
            };
            let Some(record) = record else {
                return Err(victim);
            };
            placed.push(StoredPiece {
                range: piece.range,
                hash: piece.hash,
                source: piece.source,
                record,
            });
        }
        Ok(Pointed { victim, placed })
    }

    /// Points a file to the new places of its extents, where they are still the ones that were read. Returns `None`,
    /// without any change, if a record to share is gone.
    fn point(
        &self,
        ino: Ino,
        pointed: &[Pointed],
        segments: &[SegmentInfo],
        done: &mut Converted,
    ) -> Result<Option<Ticket>, FsError> {
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(FsError::Stale) => return Ok(Some(Ticket::NONE)),
            Err(error) => return Err(error),
        };
        let starts = pointed.iter().map(|pointed| pointed.victim.extent.start);
        let start = starts.min().unwrap_or(0);
        let ends = pointed.iter().map(|pointed| pointed.victim.extent.end);
        let end = ends.max().unwrap_or(0);
        for Pointed { victim, .. } in pointed {
            let range = victim.extent.start..victim.extent.end;
            self.load_extents_too(&inode, &range, &(start..end), Ahead::None)?;
        }
        let mut state = inode.lock();
        if state.removed {
            return Ok(Some(Ticket::NONE));
        }
        self.require_serving()?;
        let mut change = ExtentChange::default();
        let mut now = Converted::default();
        for of in pointed {
            now += point_to_pieces(&mut state.extents, of, &mut change);
        }
        if change.is_empty() {
            *done += now;
            return Ok(Some(Ticket::NONE));
        }
        let Some(ticket) = self.commit_moved(state, change, pointed, segments) else {
            return Ok(None);
        };
        self.remember_placed(ino, pointed);
        *done += now;
        Ok(Some(ticket))
    }

    fn commit_moved(
        &self,
        state: Guard<'_>,
        moved: ExtentChange,
        pointed: &[Pointed],
        segments: &[SegmentInfo],
    ) -> Option<Ticket> {
        let ino = state.ino();
        let placed = pointed.iter().flat_map(|pointed| &pointed.placed);
        let shared: FxHashSet<_> = placed
            .clone()
            .filter(|placed| !matches!(placed.source, Source::New(_)))
            .map(|placed| placed.record.location)
            .collect();
        let mut sharers = Sharers::default();
        for (_, replaced) in moved.keys() {
            if let Some(extent) = &replaced.after
                && let Some(record) = extent.record()
                && shared.contains(&record.location)
            {
                sharers.add(ino, extent);
            }
        }
        let there: FxHashSet<SegmentId> = placed
            .filter(|placed| matches!(placed.source, Source::There(_)))
            .map(|placed| placed.record.location.segment)
            .collect();
        let there: Vec<SegmentId> = there.into_iter().collect();
        let mut change = self.begin_change(state);
        let batch = change
            .touch(ino, Shown::Quietly, Record::IfUsageChanged)
            .batch;
        self.put_segments(segments, batch);
        sharers.put(batch);
        change.put_extents(Why::Moved, ino, moved);
        match change.commit_sharing(&there, UndoWhen::Refused) {
            Commit::Done(done) => {
                for record in done.extents.records_gone() {
                    self.segments.cache_forget(self.volume, record);
                }
                Some(done.ticket)
            }
            Commit::Gone => None,
            // Its waiters get the error.
            Commit::Refused(_) => Some(Ticket::REFUSED),
        }
    }

    /// Remembers the new places, so that the next write of equal bytes finds them.
    fn remember_placed(&self, ino: Ino, pointed: &[Pointed]) {
        for placed in pointed.iter().flat_map(|pointed| &pointed.placed) {
            if let Some(hash) = &placed.hash {
                let known = KnownRecord {
                    location: placed.record.location,
                    ino,
                    start: placed.range.start,
                    len_bytes: placed.record.file_len_bytes,
                };
                self.dedupe.put(hash, known, &placed.record);
            }
        }
    }

    /// Finds the extents of a file that may differ, from `from` on, until a step is full. Returns where to continue,
    /// if that is before the end of the file, and the number of visited bytes.
    pub(super) fn find_differing(
        &self,
        ino: Ino,
        policy: &Arc<Policy>,
        from: u64,
        step: &mut Step,
    ) -> Result<(Option<u64>, u64), FsError> {
        let mut seen_bytes = 0;
        let mut at = from;
        let mut next = None;
        let (first, _) = Key::extents_past(ino, from);
        let past = Key::extent(ino, u64::MAX).successor();
        let live = self.meta.live();
        let mut failed = None;
        let visit = |key: &[u8], value: &[u8], birth| {
            use std::ops::ControlFlow::{Break, Continue};
            match parse_extent(key, value, birth) {
                Ok((_, extent)) => {
                    seen_bytes += extent.len_bytes();
                    at = extent.end;
                    // Inline bytes have no form that a policy could change, and no disk of their own.
                    if let Some(extent) = extent.in_record()
                        && (!self.is_placed_for(extent.record.location.segment, policy.asked())
                            || may_differ(policy, &extent))
                    {
                        step.add(Victim {
                            ino,
                            policy: policy.clone(),
                            extent,
                        });
                    }
                }
                Err(error) => {
                    failed = Some(error);
                    return Break(());
                }
            }
            if step.is_full() {
                next = Some(at);
                return Break(());
            }
            Continue(())
        };
        live.scan_with(&first, &past, visit).map_err(meta_error)?;
        match failed {
            Some(error) => Err(meta_error(error)),
            None => Ok((next, seen_bytes)),
        }
    }
}

/// Points to the pieces of a victim instead of its remaining part.
fn point_to_pieces(extents: &mut ExtentMap, of: &Pointed, change: &mut ExtentChange) -> Converted {
    let old = &of.victim.extent;
    let range = old.start..old.end;
    let mut done = Converted::default();
    if !extents.is_loaded(&range) {
        done.left = 1;
        return done;
    }
    // As in garbage collection: the parts that overwrites and cuts left of the extent that was read.
    let is_left = |extent: &RecordExtent| {
        let is_same = old.start <= extent.start && extent.end <= old.end;
        let offset = u64::from(extent.offset_in_record);
        is_same
            && extent.record == old.record
            && offset.checked_sub(u64::from(old.offset_in_record)) == Some(extent.start - old.start)
    };
    let in_records = extents
        .touching(range)
        .filter_map(|extent| extent.in_record());
    let mut left: Vec<RecordExtent> = in_records.filter(is_left).collect();
    if planted::is(Bug::ConversionIgnoresOverwrites) {
        left = vec![old.clone()];
    }
    if left.is_empty() {
        done.left = 1;
    }
    for extent in left {
        done.stored_bytes_before += extent.live_bytes().unsigned_abs();
        for piece in &of.placed {
            let start = extent.start.max(piece.range.start);
            let end = extent.end.min(piece.range.end);
            if start >= end {
                continue;
            }
            let new = RecordExtent {
                start,
                end,
                record: piece.record.clone(),
                offset_in_record: (start - piece.range.start) as u32,
                birth: extent.birth,
            };
            match piece.source {
                Source::New(_) => {
                    done.rewritten_bytes += new.len_bytes();
                    done.stored_bytes_after += new.live_bytes().unsigned_abs();
                }
                Source::Again(_) | Source::There(_) => done.shared_bytes += new.len_bytes(),
            }
            extents.insert(new.into(), change);
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_cut_where_records_end() {
        type Case<'a> = (&'a str, u64, &'a [usize], u64, &'a [(u64, u64)]);
        let cases: &[Case] = &[
            ("one piece", 0, &[10], 16, &[(0, 10)]),
            ("in parts", 3, &[5, 5], 16, &[(3, 13)]),
            ("at a boundary", 0, &[16, 16], 16, &[(0, 16), (16, 32)]),
            ("across one", 10, &[20], 16, &[(10, 16), (16, 30)]),
            (
                "parts across",
                10,
                &[4, 4, 30],
                16,
                &[(10, 16), (16, 32), (32, 48)],
            ),
        ];
        for (name, start, lens, size, want) in cases {
            let parts = lens.iter().map(|len| Bytes::from(vec![1; *len])).collect();
            let cuts = cut(*start, parts, *size);
            let got: Vec<(u64, u64)> = cuts
                .iter()
                .map(|(range, _)| (range.start, range.end))
                .collect();
            assert_eq!(got, *want, "{name}");
            for (range, parts) in cuts {
                let len: usize = parts.iter().map(Bytes::len).sum();
                assert_eq!(len as u64, range.end - range.start, "{name}");
            }
        }
    }
}
