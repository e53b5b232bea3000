//! The way of a read: cache, the bytes from their shards, checksums, redundancy.
//!
//! Owns: what is fetched together, when a read is degraded, which shards are to blame.
//! Invariant: no byte leaves here that did not pass its record's checksum (Rule 2).

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{AlignedBuf, DiskId, VolumeId};
use cairn_shard::ShardErrorKind;
use futures_util::future::{Either, join_all, select};

use crate::cache::{Guard, Key, Parts, granules, slice, within_granule};
use crate::error::{Result, SegmentError};
use crate::layout::{Piece, pieces};
use crate::pointer::{CHECKSUM_GRANULE_BYTES, Codec, Location, RecordPointer};
use crate::record::{checksum_of, decode_record};
use crate::repair::{Fix, REPAIRS_MAX};
use crate::row_cache::Units;
use crate::store::{SegmentStore, count};
use crate::volume::Segment;

/// A part shorter than this is copied before it is cached: the blocks around it, which were read
/// with it, would weigh as much as itself.
const SHARE_LEN_BYTES_MIN: usize = 16 << 10;

/// Why bytes of a shard could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// The disk or the file is away: writing there is no use.
    Away,
    /// The disk refused to read them; it may take them anew.
    Unreadable,
    /// The disk is fine, and has no such file: the whole shard has to be rebuilt.
    Missing,
}

/// What is known of who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// What comes behind it is wanted next.
    InOrder,
    Any,
}

/// Bytes of a record with the checksum that they have together.
struct Check {
    /// In the stored record.
    stored: Range<u32>,
    checksum: u32,
}

impl SegmentStore {
    /// Bytes `range` of the file bytes of a record, in parts, in order; from the cache or from disks,
    /// from redundancy where disks fail. Damage that is found is repaired in the background.
    ///
    /// Fails with `Gone` if the segment was removed meanwhile and with `Damaged` if redundancy is not enough.
    pub async fn read(
        self: &Arc<Self>,
        volume: VolumeId,
        pointer: &RecordPointer,
        range: Range<u32>,
    ) -> Result<Vec<Bytes>> {
        self.read_for(volume, pointer, range, Reader::Any).await
    }

    /// The same for a reader in order, who will want what comes behind it as well.
    pub async fn read_in_order(
        self: &Arc<Self>,
        volume: VolumeId,
        pointer: &RecordPointer,
        range: Range<u32>,
    ) -> Result<Vec<Bytes>> {
        self.read_for(volume, pointer, range, Reader::InOrder).await
    }

    async fn read_for(
        self: &Arc<Self>,
        volume: VolumeId,
        pointer: &RecordPointer,
        range: Range<u32>,
        reader: Reader,
    ) -> Result<Vec<Bytes>> {
        if let Some(found) = self.read_cached(volume, pointer, range.clone()) {
            return Ok(found);
        }
        check_range(pointer, &range)?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        count(&self.counters.cache_misses, 1);
        let segment = self.volume(volume)?.segment(pointer.location.segment)?;
        check_place(&segment, &pointer.location)?;
        let result = if is_read_whole(pointer, &range) {
            let whole = self.read_whole(&segment, pointer, reader).await;
            whole.map(|parts| slice(&parts, range))
        } else {
            self.read_granules(&segment, pointer, range, reader).await
        };
        match result {
            // Its shards are deleted or already hold another segment's bytes.
            Err(_) if segment.is_removed() => Err(SegmentError::Gone {
                volume,
                segment: segment.id,
            }),
            Err(error) => {
                count(&self.counters.damaged_reads, 1);
                Err(error)
            }
            read => read,
        }
    }

    /// Reads a whole record from the disks, past the cache, and checks it against its pointer. Damage
    /// is repaired from redundancy before this returns, where there is enough of it.
    ///
    /// Fails with `Gone` if the segment was removed meanwhile and with `Damaged` if redundancy is not enough.
    pub async fn verify(self: &Arc<Self>, volume: VolumeId, pointer: &RecordPointer) -> Result<()> {
        check_range(pointer, &(0..0))?;
        let segment = self.volume(volume)?.segment(pointer.location.segment)?;
        check_place(&segment, &pointer.location)?;
        let fetched = self
            .fetch(&segment, pointer, checks(pointer), Reader::Any)
            .await;
        let checked = fetched.and_then(|stored| {
            if pointer.codec == Codec::Raw {
                return Ok(());
            }
            decode_record(pointer.codec, &join(stored), pointer.file_len_bytes)
                .map(drop)
                .map_err(|error| damaged(&segment, &pointer.location, error.to_string()))
        });
        if self.repairs.available_permits() < REPAIRS_MAX {
            self.repairs_done().await;
        }
        match checked {
            Err(_) if segment.is_removed() => Err(SegmentError::Gone {
                volume,
                segment: segment.id,
            }),
            checked => checked,
        }
    }

    async fn read_whole(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        pointer: &RecordPointer,
        reader: Reader,
    ) -> Result<Parts> {
        let key = Key::whole(segment.volume, pointer);
        let guard = match self.cache.get_or_guard(&key).await {
            Ok(parts) => return Ok(parts),
            Err(guard) => guard,
        };
        let stored = self
            .fetch(segment, pointer, checks(pointer), reader)
            .await?;
        let parts: Parts = if pointer.codec == Codec::Raw {
            stored.into_iter().map(unshare_small).collect()
        } else {
            let stored = join(stored);
            let data = decode_record(pointer.codec, &stored, pointer.file_len_bytes)
                .map_err(|error| damaged(segment, &pointer.location, error.to_string()))?;
            [data].into()
        };
        let _ = guard.insert(parts.clone());
        Ok(parts)
    }

    async fn read_granules(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        pointer: &RecordPointer,
        range: Range<u32>,
        reader: Reader,
    ) -> Result<Vec<Bytes>> {
        // In ascending order by everyone, so that two readers never wait for each other.
        let mut missing: Vec<(u32, Guard<'_>)> = Vec::new();
        let mut found: Vec<(u32, Parts)> = Vec::new();
        for granule in granules(&range) {
            let key = Key::granule(segment.volume, pointer, granule);
            match self.cache.get_or_guard(&key).await {
                Ok(parts) => found.push((granule, parts)),
                Err(guard) => missing.push((granule, guard)),
            }
        }
        let mut checks_of_all = checks(pointer).into_iter().zip(0..);
        let mut missing = missing.into_iter().peekable();
        while let Some((first, guard)) = missing.next() {
            let mut guards = vec![guard];
            while let Some((_, guard)) =
                missing.next_if(|(next, _)| *next == first + guards.len() as u32)
            {
                guards.push(guard);
            }
            let run = first..first + guards.len() as u32;
            let checks = checks_of_all
                .by_ref()
                .skip_while(|(_, granule)| *granule < run.start)
                .take(guards.len())
                .map(|(check, _)| check)
                .collect();
            let stored = self.fetch(segment, pointer, checks, reader).await?;
            let run_len = guards.len();
            for (index, guard) in (0..).zip(guards) {
                let start = index * CHECKSUM_GRANULE_BYTES;
                let parts = slice(&stored, start..start + CHECKSUM_GRANULE_BYTES);
                // Alone it is what was read; as part of a run it would keep the whole run alive.
                let parts: Parts = if run_len == 1 {
                    parts.into_iter().map(unshare_small).collect()
                } else {
                    [parts.concat().into()].into()
                };
                let _ = guard.insert(parts.clone());
                found.push((run.start + index, parts));
            }
        }
        found.sort_unstable_by_key(|(granule, _)| *granule);
        let parts = found
            .iter()
            .flat_map(|(granule, parts)| slice(parts, within_granule(*granule, &range)));
        Ok(parts.collect())
    }

    /// The stored bytes that adjacent `checks` cover, every one of them verified.
    async fn fetch(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        pointer: &RecordPointer,
        checks: Vec<Check>,
        reader: Reader,
    ) -> Result<Vec<Bytes>> {
        let location = &pointer.location;
        let (Some(first), Some(last)) = (checks.first(), checks.last()) else {
            return Ok(Vec::new());
        };
        let stored = first.stored.start..last.stored.end;
        let pieces = pieces(location, stored.clone());
        let whole_row = self.is_row_wanted(segment, location, &pieces, reader);
        let reads = pieces.iter().map(|piece| async {
            if whole_row {
                return Err(Lost::Away);
            }
            self.read_shard(segment, location, piece.shard, piece.columns(), false)
                .await
        });
        let reads = join_all(reads).await;
        let mut unreadable = Vec::new();
        let mut parts: Vec<Option<Bytes>> = Vec::with_capacity(reads.len());
        for (at, read) in reads.into_iter().enumerate() {
            if read == Err(Lost::Unreadable) {
                unreadable.push(at);
            }
            parts.push(read.ok());
        }
        let degraded = parts.iter().any(Option::is_none);
        if degraded {
            count(&self.counters.degraded_reads, 1);
            self.decode_lost(segment, location, &pieces, &mut parts)
                .await;
        }
        let verified: Vec<Option<Vec<Bytes>>> = checks
            .iter()
            .map(|check| {
                let range = check.stored.start - stored.start..check.stored.end - stored.start;
                let parts = slice_known(&parts, &pieces, range)?;
                let is_good = checksum_of(&parts) == check.checksum;
                (is_good || planted::is(Bug::RecordChecksumIgnored)).then_some(parts)
            })
            .collect();
        if verified.iter().all(Option::is_some) {
            let parts: Vec<Bytes> = parts.into_iter().flatten().collect();
            let fixes = unreadable.into_iter().filter_map(|at| {
                Some(Fix {
                    piece: *pieces.get(at)?,
                    data: parts.get(at)?.clone(),
                })
            });
            self.start_repair(segment, location, fixes.collect());
            return Ok(parts);
        }
        let mut all = Vec::new();
        let mut fixes = Vec::new();
        for (check, verified) in checks.iter().zip(verified) {
            match verified {
                Some(parts) => all.extend(parts),
                None => all.push(self.recover(segment, location, check, &mut fixes).await?),
            }
        }
        self.start_repair(segment, location, join_adjacent(fixes));
        Ok(all)
    }

    /// Whether these pieces should be cut from the decoded row although they may all be there: a disk
    /// of the row is away, and a reader in order is at its start, or its decoding is under way.
    fn is_row_wanted(
        &self,
        segment: &Segment,
        location: &Location,
        pieces: &[Piece],
        reader: Reader,
    ) -> bool {
        let disks = segment.disks();
        let data_disks = disks.iter().take(usize::from(segment.code.data()));
        let is_away = |disk: DiskId| self.healthy_disk(disk).is_none();
        let at_start = |piece: &Piece| piece.shard == 0 && piece.unit_offset == 0;
        is_streaming(segment, location, pieces)
            && data_disks.copied().any(is_away)
            && (reader == Reader::InOrder && pieces.first().is_some_and(at_start)
                || self
                    .rows
                    .is_near(&(segment.volume, segment.id, location.row_block)))
    }

    /// Fills in pieces that could not be read, from other shards; leaves those it cannot.
    async fn decode_lost(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        pieces: &[Piece],
        parts: &mut [Option<Bytes>],
    ) {
        if is_streaming(segment, location, pieces) {
            if let Ok(units) = self.decoded_row(segment, location).await {
                for (piece, part) in pieces.iter().zip(parts) {
                    if let (None, Some(unit)) = (&part, units.get(usize::from(piece.shard))) {
                        *part = Some(cut(unit, piece.columns()));
                    }
                }
            }
            return;
        }
        for (piece, part) in pieces.iter().zip(parts) {
            if part.is_none() {
                let lost = [piece.shard];
                let decoded = self
                    .decode_units(segment, location, piece.columns(), &lost)
                    .await;
                *part = decoded.and_then(|mut units| units.pop());
            }
        }
    }

    /// All data units of a row with lost ones, from the cache of rows.
    async fn decoded_row(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
    ) -> std::result::Result<Units, ()> {
        let key = (segment.volume, segment.id, location.row_block);
        let decode = async {
            let data: Vec<u8> = (0..segment.code.data()).collect();
            let all = 0..location.unit_len_bytes();
            let units = self.decode_units(segment, location, all, &data).await;
            units.map(Units::from).ok_or(())
        };
        self.rows.get_or_decode(&key, decode).await
    }

    /// The bytes `columns` of the `wanted` units of a row, read where possible and computed from any
    /// other shards where not. They are not verified. None: fewer than N shards could be read.
    pub(crate) async fn decode_units(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        columns: Range<u32>,
        wanted: &[u8],
    ) -> Option<Vec<Bytes>> {
        let data = data_count(segment);
        // Not those that are known to be lost: each would cost another round of reads.
        let mut candidates = self.answering(segment);
        let mut present: Vec<(u8, Bytes)> = Vec::with_capacity(data);
        while present.len() < data {
            let next: Vec<u8> = candidates.by_ref().take(data - present.len()).collect();
            if next.is_empty() {
                return None;
            }
            let reads = next
                .iter()
                .map(|shard| self.read_shard(segment, location, *shard, columns.clone(), false));
            let reads = join_all(reads).await.into_iter().zip(&next);
            present.extend(reads.filter_map(|(read, shard)| Some((*shard, read.ok()?))));
        }
        decode(segment, &present, wanted, columns.len())
    }

    /// The shards of a segment whose disks answer.
    fn answering<'a>(&'a self, segment: &'a Segment) -> impl Iterator<Item = u8> + 'a {
        (0..segment.code.total()).filter(|shard| {
            let disk = segment.disk_of(*shard);
            let disk = disk.and_then(|disk| self.healthy_disk(disk));
            disk.is_some_and(|disk| !disk.is_silent())
        })
    }

    /// Bytes that fail their checksum, or could not be had: tries every set of N shards until the
    /// checksum passes, then knows which shards were wrong and adds to `fixes` what they should have.
    async fn recover(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        check: &Check,
        fixes: &mut Vec<Fix>,
    ) -> Result<Bytes> {
        let pieces = pieces(location, check.stored.clone());
        let start = pieces
            .iter()
            .map(|piece| piece.unit_offset)
            .min()
            .unwrap_or(0);
        let end = pieces
            .iter()
            .map(|piece| piece.columns().end)
            .max()
            .unwrap_or(0);
        let reads = (0..segment.code.total())
            .map(|shard| self.read_shard(segment, location, shard, start..end, true));
        let reads = join_all(reads).await;
        let direct = pieces.iter().map(|piece| {
            let read = reads.get(usize::from(piece.shard))?.as_ref().ok()?;
            Some(cut(
                read,
                piece.unit_offset - start..piece.columns().end - start,
            ))
        });
        // They may be all there, and only were not read by themselves before.
        if let Some(parts) = direct.collect::<Option<Vec<Bytes>>>()
            && checksum_of(&parts) == check.checksum
        {
            return Ok(join(parts));
        }
        // Suspects first: they are the first to be left out.
        let mut present: Vec<(u8, Bytes)> = Vec::new();
        for (shard, read) in (0..).zip(&reads) {
            if let Ok(bytes) = read {
                present.push((shard, bytes.clone()));
            }
        }
        present.sort_by_key(|(shard, _)| !pieces.iter().any(|piece| piece.shard == *shard));
        let recovered = self.try_all_sets(segment, &pieces, start..end, &present, check.checksum);
        let Some(recovered) = recovered else {
            count(&self.counters.checksum_errors, 1);
            let detail = format!(
                "{} of {} shards could be read, and no {} of them give the bytes that were written",
                present.len(),
                segment.code.total(),
                segment.code.data(),
            );
            return Err(damaged_at(segment, location, &check.stored, detail));
        };
        count(&self.counters.degraded_reads, 1);
        let mut at = 0;
        for piece in &pieces {
            let good = recovered.slice(at..at + piece.len_bytes as usize);
            at += piece.len_bytes as usize;
            let columns = piece.unit_offset - start..piece.columns().end - start;
            match reads.get(usize::from(piece.shard)) {
                Some(Ok(bytes)) if cut_ref(bytes, &columns) == &good[..] => continue,
                Some(Ok(_)) => {
                    count(&self.counters.checksum_errors, 1);
                    if let Some(disk) = segment
                        .disk_of(piece.shard)
                        .and_then(|disk| self.disk(disk))
                    {
                        disk.note_checksum_error();
                        tracing::warn!(volume = %segment.volume, segment = %segment.id, shard = piece.shard, disk = disk.label(), "wrong bytes on a disk; repairing them from redundancy");
                    }
                }
                Some(Err(Lost::Unreadable)) => {}
                Some(Err(Lost::Away | Lost::Missing)) | None => continue,
            }
            fixes.push(Fix {
                piece: *piece,
                data: good,
            });
        }
        Ok(recovered)
    }

    /// Decodes `pieces` from sets of N of the `present` shards' `columns` until the checksum passes.
    fn try_all_sets(
        &self,
        segment: &Segment,
        pieces: &[Piece],
        columns: Range<u32>,
        present: &[(u8, Bytes)],
        checksum: u32,
    ) -> Option<Bytes> {
        let data = usize::from(segment.code.data());
        let left_out_count = present.len().checked_sub(data)?;
        let wanted: Vec<u8> = pieces.iter().map(|piece| piece.shard).collect();
        let mut left_out: Vec<usize> = (0..left_out_count).collect();
        loop {
            let used: Vec<(u8, Bytes)> = present
                .iter()
                .enumerate()
                .filter(|(index, _)| !left_out.contains(index))
                .map(|(_, unit)| unit.clone())
                .collect();
            let units = decode(segment, &used, &wanted, columns.len())?;
            let parts: Vec<Bytes> = units
                .iter()
                .zip(pieces)
                .map(|(unit, piece)| {
                    cut(
                        unit,
                        piece.unit_offset - columns.start..piece.columns().end - columns.start,
                    )
                })
                .collect();
            if checksum_of(&parts) == checksum {
                return Some(join(parts));
            }
            if !next_combination(&mut left_out, present.len()) {
                return None;
            }
        }
    }

    /// Reads bytes `columns` of one unit of a row. A disk that has failed is asked only as a last resort, and one that
    /// answers nothing is waited for only then, or where those that do are not enough.
    async fn read_shard(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        shard: u8,
        columns: Range<u32>,
        last_resort: bool,
    ) -> std::result::Result<Bytes, Lost> {
        let disk = segment.disk_of(shard).ok_or(Lost::Away)?;
        let disk = self.disk(disk).ok_or(Lost::Away)?;
        if disk.health().failed && !last_resort {
            return Err(Lost::Away);
        }
        let offset = location.row_offset_bytes() + u64::from(columns.start);
        let read = async {
            let handle = match segment.open_shard(shard) {
                Some(handle) => handle,
                None => disk.open_shard(segment.shard_name(shard)).await?,
            };
            handle.read_at(offset, columns.len()).await
        };
        let read = if last_resort {
            read.await
        } else {
            match select(pin!(read), pin!(disk.silence())).await {
                Either::Left((read, _)) => read,
                Either::Right(_) if self.answering(segment).count() >= data_count(segment) => {
                    return Err(Lost::Away);
                }
                Either::Right((_, read)) => read.await,
            }
        };
        match read {
            Ok(bytes) => {
                count(&self.counters.disk_reads, 1);
                count(&self.counters.disk_read_bytes, columns.len() as u64);
                Ok(bytes)
            }
            Err(error) => {
                tracing::debug!(volume = %segment.volume, segment = %segment.id, shard, %error, "a shard could not be read");
                Err(match error.kind() {
                    ShardErrorKind::Io => Lost::Unreadable,
                    ShardErrorKind::NotFound => {
                        self.start_rebuild(segment, shard);
                        Lost::Missing
                    }
                    _ => Lost::Away,
                })
            }
        }
    }
}

fn data_count(segment: &Segment) -> usize {
    usize::from(segment.code.data())
}

/// The `wanted` units from at least N `present` ones, all `len` bytes long.
pub(crate) fn decode(
    segment: &Segment,
    present: &[(u8, Bytes)],
    wanted: &[u8],
    len: usize,
) -> Option<Vec<Bytes>> {
    let find = |shard: u8| present.iter().find(|(other, _)| *other == shard);
    let mut lost: Vec<(u8, AlignedBuf)> = wanted
        .iter()
        .filter(|shard| find(**shard).is_none())
        .map(|shard| (*shard, AlignedBuf::zeroed(len)))
        .collect();
    if !lost.is_empty() {
        let sources: Vec<(u8, &[u8])> = present
            .iter()
            .map(|(shard, bytes)| (*shard, &bytes[..]))
            .collect();
        let mut targets: Vec<(u8, &mut [u8])> = lost
            .iter_mut()
            .map(|(shard, buf)| (*shard, &mut buf[..]))
            .collect();
        cairn_erasure::reconstruct(segment.code, &sources, &mut targets).ok()?;
    }
    let mut lost = lost.into_iter();
    wanted
        .iter()
        .map(|shard| match find(*shard) {
            Some((_, bytes)) => Some(bytes.clone()),
            None => lost.next().map(|(_, buf)| buf.freeze()),
        })
        .collect()
}

/// The next set of indexes below `count`, in lexicographic order; false when that was the last.
fn next_combination(indexes: &mut [usize], count: usize) -> bool {
    let len = indexes.len();
    let Some(at) = (0..len).rev().find(|at| indexes[*at] < count - len + at) else {
        return false;
    };
    indexes[at] += 1;
    for later in at + 1..len {
        indexes[later] = indexes[later - 1] + 1;
    }
    true
}

/// What is checked in a whole record.
fn checks(pointer: &RecordPointer) -> Vec<Check> {
    let len_bytes = pointer.location.len_bytes;
    if pointer.codec != Codec::Raw {
        let checksum = pointer.checksums.first().copied();
        return checksum
            .map(|checksum| Check {
                stored: 0..len_bytes,
                checksum,
            })
            .into_iter()
            .collect();
    }
    (0..)
        .zip(&pointer.checksums)
        .map(|(granule, checksum)| {
            let start = granule * CHECKSUM_GRANULE_BYTES;
            Check {
                stored: start..len_bytes.min(start + CHECKSUM_GRANULE_BYTES),
                checksum: *checksum,
            }
        })
        .collect()
}

/// Whether a read of `range` fetches and caches the record as one.
fn is_read_whole(pointer: &RecordPointer, range: &Range<u32>) -> bool {
    let len_bytes = pointer.file_len_bytes;
    pointer.codec != Codec::Raw
        || len_bytes <= CHECKSUM_GRANULE_BYTES
        || range.len() as u32 >= len_bytes / 2
}

/// Whether pieces are so large a part of their row that its other records are likely wanted next.
fn is_streaming(segment: &Segment, location: &Location, pieces: &[Piece]) -> bool {
    let wanted: u32 = pieces.iter().map(|piece| piece.len_bytes).sum();
    segment.code.data() > 1 && wanted >= location.unit_len_bytes() / 2
}

fn check_range(pointer: &RecordPointer, range: &Range<u32>) -> Result<()> {
    pointer.check().map_err(|error| SegmentError::BadPointer {
        detail: error.to_string(),
    })?;
    if range.start > range.end || range.end > pointer.file_len_bytes {
        return Err(SegmentError::BadPointer {
            detail: format!(
                "bytes {}..{} of a record of {} were asked for",
                range.start, range.end, pointer.file_len_bytes
            ),
        });
    }
    Ok(())
}

/// Refuses places outside of the segment, which only damaged metadata can name.
fn check_place(segment: &Segment, location: &Location) -> Result<()> {
    let unit_len_bytes = u64::from(location.unit_len_bytes());
    let row_end = location.row_offset_bytes() + unit_len_bytes;
    let end = u64::from(location.offset_bytes) + u64::from(location.len_bytes);
    let data = u64::from(segment.code.data());
    if row_end > segment.shard_len_bytes || end > unit_len_bytes * data {
        return Err(SegmentError::BadPointer {
            detail: format!(
                "segment {} has no such place: row at block {}, bytes up to {end}",
                segment.id, location.row_block
            ),
        });
    }
    Ok(())
}

/// The part of the pieces at `range` (counted from the first piece), if all of it is known.
fn slice_known(parts: &[Option<Bytes>], pieces: &[Piece], range: Range<u32>) -> Option<Vec<Bytes>> {
    let mut known = Vec::new();
    let mut start = 0;
    for (part, piece) in parts.iter().zip(pieces) {
        let end = start + piece.len_bytes;
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            let part = part.as_ref()?;
            known.push(part.slice((from - start) as usize..(to - start) as usize));
        }
        start = end;
    }
    Some(known)
}

/// Fixes of adjacent bytes of one shard as one: granule by granule they would each be synced.
fn join_adjacent(fixes: Vec<Fix>) -> Vec<Fix> {
    let mut joined: Vec<(Piece, Vec<Bytes>)> = Vec::new();
    for Fix { piece, data } in fixes {
        match joined.last_mut() {
            Some((last, parts))
                if last.shard == piece.shard && last.columns().end == piece.unit_offset =>
            {
                last.len_bytes += piece.len_bytes;
                parts.push(data);
            }
            _ => joined.push((piece, vec![data])),
        }
    }
    let whole = |(piece, parts)| Fix {
        piece,
        data: join(parts),
    };
    joined.into_iter().map(whole).collect()
}

fn cut(unit: &Bytes, columns: Range<u32>) -> Bytes {
    unit.slice(columns.start as usize..columns.end as usize)
}

fn cut_ref<'a>(unit: &'a Bytes, columns: &Range<u32>) -> &'a [u8] {
    &unit[columns.start as usize..columns.end as usize]
}

fn join(mut parts: Vec<Bytes>) -> Bytes {
    match (parts.pop(), parts.is_empty()) {
        (None, _) => Bytes::new(),
        (Some(only), true) => only,
        (Some(last), false) => {
            parts.push(last);
            parts.concat().into()
        }
    }
}

fn unshare_small(part: Bytes) -> Bytes {
    if part.len() < SHARE_LEN_BYTES_MIN {
        Bytes::copy_from_slice(&part)
    } else {
        part
    }
}

fn damaged(segment: &Segment, location: &Location, detail: String) -> SegmentError {
    damaged_at(segment, location, &(0..location.len_bytes), detail)
}

fn damaged_at(
    segment: &Segment,
    location: &Location,
    stored: &Range<u32>,
    detail: String,
) -> SegmentError {
    SegmentError::Damaged {
        volume: segment.volume,
        segment: segment.id,
        row_block: location.row_block,
        offset_bytes: location.offset_bytes + stored.start,
        len_bytes: stored.len() as u32,
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_all_there_once() {
        let cases: &[(usize, usize, usize)] = &[
            (0, 0, 1),
            (0, 4, 1),
            (1, 3, 3),
            (2, 6, 15),
            (2, 18, 153),
            (4, 20, 4845),
            (3, 3, 1),
        ];
        for (len, count, want) in cases {
            let mut indexes: Vec<usize> = (0..*len).collect();
            let mut seen = std::collections::BTreeSet::new();
            loop {
                assert!(seen.insert(indexes.clone()));
                if !next_combination(&mut indexes, *count) {
                    break;
                }
            }
            assert_eq!(seen.len(), *want, "{len} of {count}");
        }
    }
}
