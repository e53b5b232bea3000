//! Reads of several records at once: neighbours in a stripe share one read of each shard.
//!
//! Owns: which records are fetched together, the gap that is read along, the number of bytes unpacked at a time.
//! Invariant: as with a single read, every byte returned here has passed the checksum of its own record. A record that
//! fails the check, or is not read, is read alone: that read finds the cause, repairs it and reports it.
//!
//! A file that was overwritten in small pieces has neighbouring bytes in small records. One flush puts its records into
//! one stripe in the order of the file. So a reader in order needs many records of one stripe, with small gaps.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{SegmentId, VolumeId};
use cairn_formats::pointer::{Codec, Location, RecordPointer};
use futures_util::future::join_all;
use rustc_hash::FxHashMap;

use super::fetch::{Check, Lost, Reader, join, slice_known};
use super::{check_place, check_range, checks, is_read_whole, plain};
use crate::cache::{Key, Miss, Parts, granules, slice, within_granule};
use crate::error::Result;
use crate::layout::{Piece, pieces};
use crate::life::Segment;
use crate::record::{checksum_of, decode_record};
use crate::store::{SegmentStore, count};
use crate::volume::Volume;

/// Longest gap between two records that is read along: that costs less than another read.
const GAP_BYTES_MAX: u32 = 32 << 10;
/// Limit of the bytes of a stripe that one fetch reads.
const SPAN_BYTES_MAX: u32 = 1 << 20;
/// Limit of the unpacked size of the records in one fetch: a few bytes may be a whole record of zeros.
const SPAN_UNPACKED_BYTES_MAX: u32 = 1 << 20;
/// Limit of the parallel fetches of one read.
const SPANS_MAX: usize = 16;
/// Limit of the parallel reads of single records.
const READS_MAX: usize = 128;
/// Limit of the unpacked size of these, plus one record, for reads of clients and read-ahead: there are many at a time.
const READS_UNPACKED_BYTES_MAX: u64 = 8 << 20;
/// The limit for background work, which does one such read at a time.
const INTERNAL_UNPACKED_BYTES_MAX: u64 = 32 << 20;
/// A smaller part of an unpacked record is copied, because a slice would keep the whole record in memory.
const KEPT_PART: usize = 4;
/// A larger unit gains nothing from a shared read, and would be copied out of it.
const UNIT_BYTES_MAX: u32 = 64 << 10;

/// A wanted part of a record, in file bytes from its beginning.
pub type WantedPart = (Arc<RecordPointer>, Range<u32>);

/// A range of bytes of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StripeRange {
    segment: SegmentId,
    stripe_block: u32,
    unit_blocks: u16,
    start: u32,
    end: u32,
}

impl StripeRange {
    /// The range from the beginning of this place to the end of `last`, in one stripe.
    fn through(self, last: Self) -> Self {
        Self {
            end: last.end.max(self.end),
            ..self
        }
    }

    /// The [`Location`] of these bytes, as if they were one record.
    fn location(self) -> Location {
        Location {
            segment: self.segment,
            stripe_block: self.stripe_block,
            unit_blocks: self.unit_blocks,
            offset_bytes: self.start,
            len_bytes: self.end - self.start,
        }
    }
}

/// The unit of fetching and caching: a record, or a granule of it.
struct Unit<'a> {
    pointer: &'a RecordPointer,
    /// `None`: the whole record.
    granule: Option<u32>,
    /// Place of its stored bytes.
    place: StripeRange,
}

impl<'a> Unit<'a> {
    /// `None` if the record has no such granule.
    fn new(pointer: &'a RecordPointer, granule: Option<u32>) -> Option<Self> {
        let checks = checks_of(pointer, granule);
        let (first, last) = (checks.first()?, checks.last()?);
        let location = &pointer.location;
        let place = StripeRange {
            segment: location.segment,
            stripe_block: location.stripe_block,
            unit_blocks: location.unit_blocks,
            start: location.offset_bytes + first.stored.start,
            end: location.offset_bytes + last.stored.end,
        };
        Some(Self {
            pointer,
            granule,
            place,
        })
    }

    fn key(&self, volume: VolumeId) -> Key {
        match self.granule {
            Some(granule) => Key::granule(volume, self.pointer, granule),
            None => Key::whole(volume, self.pointer),
        }
    }

    fn checks(&self) -> Vec<Check> {
        checks_of(self.pointer, self.granule)
    }

    /// Its place, and its size in memory in bytes.
    fn weighed(&self) -> (StripeRange, u32) {
        let unpacked_bytes = match self.granule {
            None => self.pointer.file_len_bytes,
            Some(_) => self.place.end - self.place.start,
        };
        (self.place, unpacked_bytes)
    }
}

/// Bytes of a stripe as read, not verified.
struct Span {
    place: StripeRange,
    pieces: Vec<Piece>,
    /// `None`: could not be read.
    parts: Vec<Option<Bytes>>,
}

impl Span {
    /// The stored bytes of a unit in the span, if they pass their checksums.
    fn verified(&self, unit: &Unit<'_>) -> Option<Vec<Bytes>> {
        let offset = unit.pointer.location.offset_bytes;
        let mut verified = Vec::new();
        for check in unit.checks() {
            let from = (offset + check.stored.start).checked_sub(self.place.start)?;
            let to = (offset + check.stored.end).checked_sub(self.place.start)?;
            let parts = slice_known(&self.parts, &self.pieces, from..to)?;
            let is_good = checksum_of(&parts) == check.checksum;
            if !is_good && !planted::is(Bug::RecordChecksumIgnored) {
                return None;
            }
            verified.extend(parts);
        }
        Some(verified)
    }
}

impl SegmentStore {
    /// As [`Self::read`] for several parts of records, with its errors, in the order of the parts. Neighbouring records
    /// are fetched together.
    pub async fn read_many(
        self: &Arc<Self>,
        volume: VolumeId,
        wanted: &[WantedPart],
    ) -> Vec<Result<Vec<Bytes>>> {
        self.read_many_for(volume, wanted, Reader::Any).await
    }

    /// As [`Self::read_many`], for a reader in order, which will read the next bytes soon.
    pub async fn read_many_in_order(
        self: &Arc<Self>,
        volume: VolumeId,
        wanted: &[WantedPart],
    ) -> Vec<Result<Vec<Bytes>>> {
        self.read_many_for(volume, wanted, Reader::InOrder).await
    }

    /// As [`Self::read_many`], for background work: it does not count as a use of the data.
    pub async fn read_many_internally(
        self: &Arc<Self>,
        volume: VolumeId,
        wanted: &[WantedPart],
    ) -> Vec<Result<Vec<Bytes>>> {
        self.read_many_for(volume, wanted, Reader::Internal).await
    }

    async fn read_many_for(
        self: &Arc<Self>,
        volume: VolumeId,
        wanted: &[WantedPart],
        reader: Reader,
    ) -> Vec<Result<Vec<Bytes>>> {
        let mut found: Vec<Option<Vec<Bytes>>> = wanted
            .iter()
            .map(|(pointer, range)| {
                let found = self.read_cached(volume, pointer, range.clone())?;
                Some(unshared(found, pointer))
            })
            .collect();
        let missing_count = found.iter().filter(|found| found.is_none()).count();
        if missing_count > 1
            && let Ok(of) = self.volume(volume)
        {
            self.fetch_together(&of, wanted, &mut found, reader).await;
        }
        let unpacked_bytes_max = match reader {
            Reader::Internal | Reader::Summary => INTERNAL_UNPACKED_BYTES_MAX,
            Reader::InOrder | Reader::Any => READS_UNPACKED_BYTES_MAX,
        };
        let mut all = Vec::with_capacity(wanted.len());
        let mut parts = wanted.iter().zip(found);
        loop {
            let mut some = Vec::new();
            let mut unpacked_bytes = 0;
            while some.len() < READS_MAX
                && unpacked_bytes < unpacked_bytes_max
                && let Some(((pointer, range), found)) = parts.next()
            {
                if found.is_none() {
                    unpacked_bytes += u64::from(pointer.file_len_bytes);
                }
                some.push((pointer, range, found));
            }
            if some.is_empty() {
                return all;
            }
            let reads = some.into_iter().map(|(pointer, range, found)| async move {
                match found {
                    Some(found) => Ok(found),
                    None => {
                        let read = self.read_for(volume, pointer, range.clone(), reader);
                        read.await.map(|parts| unshared(parts, pointer))
                    }
                }
            });
            all.extend(join_all(reads).await);
        }
    }

    /// Fills in missing parts in `found` that lie near other missing parts.
    async fn fetch_together(
        self: &Arc<Self>,
        volume: &Volume,
        wanted: &[WantedPart],
        found: &mut [Option<Vec<Bytes>>],
        reader: Reader,
    ) {
        // Several parts may belong to one record: it is fetched once, so that no fetch waits for itself.
        let mut by_record: FxHashMap<Key, Vec<(usize, &WantedPart)>> = FxHashMap::default();
        for (index, (part, found)) in wanted.iter().zip(found.iter()).enumerate() {
            let (pointer, range) = part;
            let has_key = pointer.encryption.is_none() || volume.key.is_some();
            let is_usable = !range.is_empty() && check_range(pointer, range).is_ok() && has_key;
            if found.is_some() || !is_usable {
                continue;
            }
            let of_record = by_record.entry(Key::whole(volume.id, pointer)).or_default();
            // Only corrupt metadata has two records that begin in one place. Fetched together they would wait for each
            // other.
            if of_record
                .first()
                .is_none_or(|(_, (first, _))| first == pointer)
            {
                of_record.push((index, part));
            }
        }
        let is_small = |unit: &Unit<'_>| unit.place.end - unit.place.start <= UNIT_BYTES_MAX;
        let units = by_record.values().flat_map(|of| units_of(of));
        let mut units: Vec<Unit<'_>> = units.filter(is_small).collect();
        units.sort_unstable_by_key(|unit| unit.place);
        let places: Vec<(StripeRange, u32)> = units.iter().map(Unit::weighed).collect();
        let runs: Vec<&[Unit<'_>]> = runs(&places)
            .into_iter()
            .filter(|run| run.len() > 1)
            .filter_map(|run| units.get(run))
            .collect();
        let mut of_granules: FxHashMap<Key, Parts> = FxHashMap::default();
        for some in runs.chunks(SPANS_MAX) {
            let reads = some.iter().map(|run| self.fetch_run(volume, run, reader));
            let reads = join_all(reads).await;
            for (unit, parts) in some
                .iter()
                .copied()
                .flatten()
                .zip(reads.into_iter().flatten())
            {
                let Some(parts) = parts else { continue };
                if unit.granule.is_some() {
                    of_granules.insert(unit.key(volume.id), parts);
                    continue;
                }
                // At once, so that the unpacked bytes never exceed those of these spans.
                let of_record = by_record.get(&unit.key(volume.id));
                for (index, (pointer, range)) in of_record.into_iter().flatten() {
                    if let Some(slot) = found.get_mut(*index) {
                        *slot = Some(unshared(slice(&parts, range.clone()), pointer));
                        count(&self.counters.cache_misses, 1);
                    }
                }
            }
        }
        for (index, (pointer, range)) in by_record.values().flatten() {
            if let Some(slot) = found.get_mut(*index).filter(|slot| slot.is_none()) {
                *slot = cut_from(&of_granules, volume.id, pointer, range);
                if slot.is_some() {
                    count(&self.counters.cache_misses, 1);
                }
            }
        }
    }

    /// Neighbouring units of one stripe, from the cache, or from the disks and into the cache. The result has one entry
    /// for each unit; `None` means that this way could not provide it.
    async fn fetch_run(
        self: &Arc<Self>,
        volume: &Volume,
        units: &[Unit<'_>],
        reader: Reader,
    ) -> Vec<Option<Parts>> {
        let mut found: Vec<Option<Parts>> = units.iter().map(|_| None).collect();
        let Some(id) = units.first().map(|unit| unit.place.segment) else {
            return found;
        };
        let Ok(segment) = volume.segment(id) else {
            return found;
        };
        let has_place = |unit: &Unit<'_>| check_place(&segment, &unit.pointer.location).is_ok();
        if segment.remote.is_some() || !units.iter().all(has_place) {
            return found;
        }
        // All readers use ascending order, so that no two wait for each other.
        let mut missing: Vec<(&Unit<'_>, Miss<'_>, &mut Option<Parts>)> = Vec::new();
        for (unit, slot) in units.iter().zip(&mut found) {
            match self.cache.get_or_miss(&unit.key(volume.id)).await {
                Ok(parts) => *slot = Some(parts),
                Err(miss) => missing.push((unit, miss, slot)),
            }
        }
        let wanted: Vec<&Unit<'_>> = missing.iter().map(|(unit, ..)| *unit).collect();
        let stored = self.fetch_units(&segment, &wanted).await;
        for ((unit, miss, slot), stored) in missing.into_iter().zip(stored) {
            let Some(parts) = stored.and_then(|stored| parts_of(volume, &segment, unit, stored))
            else {
                continue;
            };
            miss.insert(parts.clone(), || self.env.clock.monotonic());
            *slot = Some(parts);
        }
        if !matches!(reader, Reader::Internal | Reader::Summary) {
            segment.note_used();
        }
        found
    }

    /// The verified stored bytes of units, in order: from the second cache, or from the disks, together.
    async fn fetch_units(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        units: &[&Unit<'_>],
    ) -> Vec<Option<Vec<Bytes>>> {
        let second = self.second.load_full();
        let mut stored: Vec<Option<Vec<Bytes>>> = Vec::with_capacity(units.len());
        for unit in units {
            let found = match &second {
                Some(second) => {
                    let checks = unit.checks();
                    let found = self.look_in_second(second, segment, unit.pointer, &checks);
                    found.await
                }
                None => None,
            };
            stored.push(found);
        }
        let mut left: Vec<(&Unit<'_>, &mut Option<Vec<Bytes>>)> = units
            .iter()
            .copied()
            .zip(&mut stored)
            .filter(|(_, stored)| stored.is_none())
            .collect();
        let places: Vec<(StripeRange, u32)> = left.iter().map(|(unit, _)| unit.weighed()).collect();
        let spans: Vec<StripeRange> = runs(&places)
            .into_iter()
            .filter_map(|run| {
                let places = places.get(run)?;
                let ((first, _), (last, _)) = (places.first()?, places.last()?);
                Some(first.through(*last))
            })
            .collect();
        let spans = join_all(spans.iter().map(|place| self.fetch_span(segment, *place))).await;
        for (unit, stored) in &mut left {
            let of_unit = spans.iter().find(|span| {
                span.place.start <= unit.place.start && unit.place.end <= span.place.end
            });
            **stored = of_unit.and_then(|span| span.verified(unit));
            let Some(stored) = &**stored else { continue };
            count(&self.counters.merged_reads, 1);
            if let Some(second) = &second {
                let checks = unit.checks().into_iter();
                let ranges: Vec<Range<u32>> = checks.map(|check| check.stored).collect();
                self.keep_in_second(second, segment, unit.pointer, &ranges, stored);
            }
        }
        stored
    }

    /// Bytes of a stripe, from its shards, or decoded where disks are away.
    async fn fetch_span(self: &Arc<Self>, segment: &Arc<Segment>, place: StripeRange) -> Span {
        let location = place.location();
        let pieces = pieces(&location, 0..location.len_bytes);
        let reads = pieces
            .iter()
            .map(|piece| self.read_shard(segment, &location, piece.shard, piece.columns(), false));
        let reads = join_all(reads).await;
        // Unreadable or lost bytes need a repair: reads of single records do that.
        let is_damaged = reads
            .iter()
            .any(|read| matches!(read, Err(Lost::Unreadable | Lost::Missing)));
        let mut parts: Vec<Option<Bytes>> = reads.into_iter().map(|read| read.ok()).collect();
        if !is_damaged && parts.iter().any(Option::is_none) {
            count(&self.counters.degraded_reads, 1);
            self.decode_lost(segment, &location, &pieces, &mut parts)
                .await;
        }
        Span {
            place,
            pieces,
            parts,
        }
    }
}

fn checks_of(pointer: &RecordPointer, granule: Option<u32>) -> Vec<Check> {
    let all = checks(pointer);
    match granule {
        None => all,
        Some(granule) => all.into_iter().skip(granule as usize).take(1).collect(),
    }
}

/// The units to fetch for these parts of one record.
fn units_of<'a>(parts: &[(usize, &'a WantedPart)]) -> Vec<Unit<'a>> {
    let Some((_, (pointer, _))) = parts.first() else {
        return Vec::new();
    };
    let pointer: &'a RecordPointer = pointer;
    let wanted_bytes: u64 = parts.iter().map(|(_, (_, range))| range.len() as u64).sum();
    let is_whole = wanted_bytes >= u64::from(pointer.file_len_bytes) / 2
        || parts
            .iter()
            .any(|(_, (_, range))| is_read_whole(pointer, range));
    if is_whole {
        return Unit::new(pointer, None).into_iter().collect();
    }
    let wanted: BTreeSet<u32> = parts
        .iter()
        .flat_map(|(_, (_, range))| granules(range))
        .collect();
    wanted
        .into_iter()
        .filter_map(|granule| Unit::new(pointer, Some(granule)))
        .collect()
}

/// Splits places into runs. The places are in order, each with its unpacked size. A run lies in one stripe, has at most
/// [`SPAN_BYTES_MAX`] and, unpacked, [`SPAN_UNPACKED_BYTES_MAX`], and has gaps of at most [`GAP_BYTES_MAX`].
fn runs(places: &[(StripeRange, u32)]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    // Place of the last run, and its unpacked size.
    let mut open: Option<(StripeRange, u32)> = None;
    for (index, (place, place_unpacked_bytes)) in places.iter().enumerate() {
        let joined = open.map(|(open, unpacked_bytes)| {
            let unpacked_bytes = unpacked_bytes.saturating_add(*place_unpacked_bytes);
            (open.through(*place), unpacked_bytes)
        });
        let joined = joined.filter(|(joined, unpacked_bytes)| {
            let end = open.map_or(0, |(open, _)| open.end);
            let is_same_stripe = joined.segment == place.segment
                && joined.stripe_block == place.stripe_block
                && joined.unit_blocks == place.unit_blocks;
            is_same_stripe
                && place.start.saturating_sub(end) <= GAP_BYTES_MAX
                && joined.end - joined.start <= SPAN_BYTES_MAX
                && *unpacked_bytes <= SPAN_UNPACKED_BYTES_MAX
        });
        match (joined, runs.last_mut()) {
            (Some(joined), Some(run)) => {
                run.end = index + 1;
                open = Some(joined);
            }
            _ => {
                runs.push(index..index + 1);
                open = Some((*place, *place_unpacked_bytes));
            }
        }
    }
    runs
}

/// The file bytes of a unit, from its verified stored bytes; `None` if they are invalid.
fn parts_of(
    volume: &Volume,
    segment: &Arc<Segment>,
    unit: &Unit<'_>,
    stored: Vec<Bytes>,
) -> Option<Parts> {
    let pointer = unit.pointer;
    let first = unit.granule.unwrap_or(0);
    let plain = plain(volume, segment, pointer, first, stored).ok()?;
    let bytes: Bytes = match pointer.codec {
        // A slice of the span would keep all of it in memory.
        Codec::Raw if pointer.encryption.is_none() => plain.concat().into(),
        Codec::Raw => join(plain),
        Codec::Lz4 | Codec::Zstd => {
            decode_record(pointer.codec, &join(plain), pointer.file_len_bytes).ok()?
        }
    };
    Some([bytes].into())
}

/// Bytes `range` of a record, if all granules of the range were fetched.
fn cut_from(
    fetched: &FxHashMap<Key, Parts>,
    volume: VolumeId,
    pointer: &RecordPointer,
    range: &Range<u32>,
) -> Option<Vec<Bytes>> {
    let mut found = Vec::new();
    for granule in granules(range) {
        let parts = fetched.get(&Key::granule(volume, pointer, granule))?;
        found.extend(slice(parts, within_granule(granule, range)));
    }
    Some(found)
}

/// A part of a record for the caller of a read of many: copied if it is a slice of a much larger unpacked record.
fn unshared(part: Vec<Bytes>, pointer: &RecordPointer) -> Vec<Bytes> {
    let len: usize = part.iter().map(Bytes::len).sum();
    let is_small = len < pointer.file_len_bytes as usize / KEPT_PART;
    match pointer.codec != Codec::Raw && is_small {
        true => vec![part.concat().into()],
        false => part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u64, stripe_block: u32, start: u32, len_bytes: u32) -> StripeRange {
        StripeRange {
            segment: SegmentId(segment),
            stripe_block,
            unit_blocks: 256,
            start,
            end: start + len_bytes,
        }
    }

    #[test]
    fn neighbours_are_fetched_together_within_limits() {
        const KIB: u32 = 1 << 10;
        type Case<'a> = (&'a str, Vec<StripeRange>, &'a [(usize, usize)]);
        let cases: Vec<Case<'_>> = vec![
            ("nothing", vec![], &[]),
            ("one", vec![place(1, 0, 0, 10)], &[(0, 1)]),
            (
                "side by side",
                vec![place(1, 0, 0, 10), place(1, 0, 10, 10)],
                &[(0, 2)],
            ),
            (
                "the largest gap",
                vec![place(1, 0, 0, KIB), place(1, 0, 33 * KIB, KIB)],
                &[(0, 2)],
            ),
            (
                "a gap too large",
                vec![place(1, 0, 0, KIB), place(1, 0, 33 * KIB + 1, KIB)],
                &[(0, 1), (1, 2)],
            ),
            (
                "another stripe",
                vec![place(1, 0, 0, KIB), place(1, 8, KIB, KIB)],
                &[(0, 1), (1, 2)],
            ),
            (
                "another segment",
                vec![place(1, 0, 0, KIB), place(2, 0, KIB, KIB)],
                &[(0, 1), (1, 2)],
            ),
            (
                "the largest span",
                vec![
                    place(1, 0, 5, 512 * KIB),
                    place(1, 0, 512 * KIB + 5, 512 * KIB),
                ],
                &[(0, 2)],
            ),
            (
                "one byte more",
                vec![
                    place(1, 0, 5, 512 * KIB),
                    place(1, 0, 512 * KIB + 5, 512 * KIB + 1),
                    place(1, 0, 1024 * KIB + 6, 1),
                ],
                &[(0, 1), (1, 3)],
            ),
        ];
        for (name, places, want) in cases {
            let raw = places.iter().map(|place| (*place, place.end - place.start));
            let got = runs(&raw.collect::<Vec<_>>());
            let got = got.into_iter().map(|run| (run.start, run.end));
            assert_eq!(got.collect::<Vec<_>>(), want, "{name}");
        }
    }

    /// A client can have thousands of records of zeros in one stripe.
    #[test]
    fn no_more_is_unpacked_together_than_may_be() {
        const LEN_BYTES: u32 = 64;
        for (unpacked_bytes, want) in [
            (SPAN_UNPACKED_BYTES_MAX, 1),
            (SPAN_UNPACKED_BYTES_MAX / 2 + 1, 1),
            (SPAN_UNPACKED_BYTES_MAX / 2, 2),
            (SPAN_UNPACKED_BYTES_MAX / 100, 100),
        ] {
            let places = (0..1000).map(|at| {
                let place = place(1, 0, at * LEN_BYTES, LEN_BYTES);
                (place, unpacked_bytes)
            });
            let longest = runs(&places.collect::<Vec<_>>())
                .iter()
                .map(|run| run.len())
                .max();
            assert_eq!(longest, Some(want), "{unpacked_bytes}");
        }
    }
}
