//! Bytes that their own shards cannot provide, from the other shards of their stripes.
//!
//! Owns: which shards are at fault for bytes that fail their checksum.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_formats::pointer::Location;
use futures_util::future::join_all;

use super::fetch::{Check, Lost, damaged_at, data_count, is_streaming, join, unreachable_at};
use crate::error::{Result, SegmentError};
use crate::layout::{Piece, pieces};
use crate::life::Segment;
use crate::record::checksum_of;
use crate::repair::Fix;
use crate::store::{SegmentStore, count};
use crate::stripe_cache::Units;

/// Bytes that pass their checksum.
enum Good {
    /// As read from their own shards.
    Direct(Bytes),
    Computed(Bytes),
}

impl SegmentStore {
    /// Fills in unreadable pieces from other shards; skips those that it cannot.
    pub(super) async fn decode_lost(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        pieces: &[Piece],
        parts: &mut [Option<Bytes>],
    ) {
        if is_streaming(segment, location, pieces) {
            if let Ok(units) = self.decoded_stripe(segment, location).await {
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

    /// All data units of a stripe with lost ones, from the cache of stripes.
    async fn decoded_stripe(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
    ) -> std::result::Result<Units, ()> {
        let key = (segment.volume, segment.id, location.stripe_block);
        let decode = async {
            let data: Vec<u8> = (0..segment.code.data()).collect();
            let all = 0..location.unit_len_bytes();
            let units = self.decode_units(segment, location, all, &data).await;
            units.map(Units::from).ok_or(())
        };
        self.stripes.get_or_decode(&key, decode).await
    }

    /// The bytes `columns` of the `wanted` units of a stripe, read where possible and otherwise computed from any other
    /// shards. Not verified. None: fewer than N shards could be read.
    pub(crate) async fn decode_units(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        columns: Range<u32>,
        wanted: &[u8],
    ) -> Option<Vec<Bytes>> {
        let data = data_count(segment);
        // Without shards known to be lost: each would cost another round of reads.
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

    /// The bytes of a unit that all other shards agree on; `None` if they disagree, or if there are no more of them
    /// than decoding needs.
    pub(crate) async fn agreed(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        index: u8,
        columns: Range<u32>,
    ) -> Option<Bytes> {
        let others: Vec<u8> = self
            .answering(segment)
            .filter(|shard| *shard != index)
            .collect();
        let reads = others
            .iter()
            .map(|shard| self.read_shard(segment, location, *shard, columns.clone(), false));
        let reads = join_all(reads).await.into_iter().zip(&others);
        let mut present: Vec<(u8, Bytes)> = reads
            .filter_map(|(read, shard)| Some((*shard, read.ok()?)))
            .collect();
        let checks = present.split_off(data_count(segment).min(present.len()));
        if checks.is_empty() {
            return None;
        }
        let wanted: Vec<u8> = checks
            .iter()
            .map(|(shard, _)| *shard)
            .chain([index])
            .collect();
        let mut units = decode(segment, &present, &wanted, columns.len())?;
        let unit = units.pop()?;
        let agree = checks
            .iter()
            .zip(&units)
            .all(|((_, read), computed)| read == computed);
        agree.then_some(unit)
    }

    /// Recovers bytes that fail their checksum or could not be read: tries every set of N shards until the checksum
    /// passes. Then it knows which shards are wrong, and adds their right bytes to `fixes`.
    pub(super) async fn recover(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        check: &Check,
        fixes: &mut Vec<Fix>,
    ) -> Result<Bytes> {
        let pieces = pieces(location, check.stored.clone());
        let columns = columns_of(&pieces);
        let reads = (0..segment.code.total())
            .map(|shard| self.read_shard(segment, location, shard, columns.clone(), false));
        let mut reads = join_all(reads).await;
        let mut found = self.find_good(segment, &pieces, &columns, &reads, check.checksum);
        if found.is_none() {
            // Faulted or unresponsive disks may have the missing bytes. They are asked last, because that waits for
            // them.
            let again = (0..).zip(reads).map(|(shard, read)| {
                let columns = columns.clone();
                async move {
                    match read {
                        Err(Lost::Away) => {
                            self.read_shard(segment, location, shard, columns, true)
                                .await
                        }
                        read => read,
                    }
                }
            });
            reads = join_all(again).await;
            found = self.find_good(segment, &pieces, &columns, &reads, check.checksum);
        }
        let recovered = match found {
            Some(Good::Direct(bytes)) => return Ok(bytes),
            Some(Good::Computed(bytes)) => bytes,
            None => return Err(self.not_found(segment, location, &check.stored, &reads)),
        };
        count(&self.counters.degraded_reads, 1);
        let mut at = 0;
        for piece in pieces {
            let data = recovered.slice(at..at + piece.len_bytes as usize);
            at += piece.len_bytes as usize;
            let is_wanted = match reads.get(usize::from(piece.shard)) {
                Some(Ok(bytes)) => {
                    let is_wrong = cut(bytes, within(&piece, &columns)) != data;
                    if is_wrong && !self.has_missed(segment, piece.shard).await {
                        self.note_wrong_bytes(segment, piece.shard);
                    }
                    is_wrong
                }
                Some(Err(Lost::Unreadable)) => true,
                Some(Err(Lost::Away | Lost::Forgotten | Lost::Missing)) | None => false,
            };
            if is_wanted {
                fixes.push(Fix { piece, data });
            }
        }
        Ok(recovered)
    }

    /// The reason why no N of the shards, as far as they were `read`, give bytes that pass their checksum. The bytes
    /// are corrupt only if no disk that has not answered can change that.
    fn not_found(
        &self,
        segment: &Segment,
        location: &Location,
        stored: &Range<u32>,
        reads: &[std::result::Result<Bytes, Lost>],
    ) -> SegmentError {
        let read_count = reads.iter().flatten().count();
        let (needed, total) = (data_count(segment), segment.code.total());
        let away = (0..).zip(reads);
        let away = away.filter(|(_, read)| matches!(read, Err(Lost::Away)));
        let away: Vec<String> = away
            .map(|(shard, _)| self.label_of(segment, shard))
            .collect();
        if !away.is_empty() && read_count + away.len() >= needed {
            let detail = format!(
                "{read_count} of {total} shards could be read, {needed} are needed, and others are on disks that do not \
                 answer: {}",
                away.join(", ")
            );
            return unreachable_at(segment, location, stored, detail);
        }
        count(&self.counters.checksum_errors, 1);
        let detail = format!(
            "{read_count} of {total} shards could be read, and no {needed} of them give the bytes that were written"
        );
        damaged_at(segment, location, stored, detail)
    }

    /// Name of a shard's disk for an operator: its label, or its number if it is missing.
    fn label_of(&self, segment: &Segment, shard: u8) -> String {
        let Some(id) = segment.disk_of(shard) else {
            return format!("shard {shard}");
        };
        let disk = self.disk(id);
        disk.map_or_else(|| format!("disk {id}"), |disk| disk.label().to_owned())
    }

    /// The bytes of the `pieces` that pass `checksum`, from the bytes read of each shard.
    fn find_good(
        &self,
        segment: &Segment,
        pieces: &[Piece],
        columns: &Range<u32>,
        reads: &[std::result::Result<Bytes, Lost>],
        checksum: u32,
    ) -> Option<Good> {
        let direct = pieces.iter().map(|piece| {
            let read = reads.get(usize::from(piece.shard))?.as_ref().ok()?;
            Some(cut(read, within(piece, columns)))
        });
        // All pieces may be present, although they were not read by themselves before.
        if let Some(parts) = direct.collect::<Option<Vec<Bytes>>>()
            && checksum_of(&parts) == checksum
        {
            return Some(Good::Direct(join(parts)));
        }
        let read = (0..).zip(reads);
        let mut present: Vec<(u8, Bytes)> = read
            .filter_map(|(shard, read)| Some((shard, read.as_ref().ok()?.clone())))
            .collect();
        // Suspects first: they are the first to be left out.
        present.sort_by_key(|(shard, _)| !pieces.iter().any(|piece| piece.shard == *shard));
        self.try_all_sets(segment, pieces, columns.clone(), &present, checksum)
            .map(Good::Computed)
    }

    /// Whether a shard missed writes because its disk was unresponsive or failing: its other bytes are then no
    /// corruption, and no fault of the disk. Such a shard has no footer.
    async fn has_missed(&self, segment: &Segment, shard: u8) -> bool {
        if segment.settled_len_bytes().is_none() {
            return segment.has_failed(shard);
        }
        if self.is_unsealed(segment, shard).await != Some(true) {
            return false;
        }
        // If the segment was never sealed, no shard has a footer.
        for other in (0..).take_while(|other| segment.disk_of(*other).is_some()) {
            if other != shard && self.is_unsealed(segment, other).await == Some(false) {
                return true;
            }
        }
        false
    }

    /// Whether a shard exists without a footer; `None` if its disk does not answer.
    async fn is_unsealed(&self, segment: &Segment, shard: u8) -> Option<bool> {
        let disk = segment.disk_of(shard).and_then(|disk| self.disk(disk))?;
        let (asked, name) = (Arc::clone(&disk), segment.shard_name(shard));
        let stat = Box::pin(async move { asked.stat(name).await });
        let stat = self.unless_silent(&disk, stat).await;
        match stat {
            Some(Ok(stat)) => Some(stat.is_unsealed),
            _ => None,
        }
    }

    fn note_wrong_bytes(&self, segment: &Segment, shard: u8) {
        count(&self.counters.checksum_errors, 1);
        let disk = segment.disk_of(shard).and_then(|disk| self.disk(disk));
        if let Some(disk) = disk {
            disk.note_checksum_error();
            tracing::warn!(volume = %segment.volume, segment = %segment.id, shard, disk = disk.label(), "wrong bytes on a disk; repairing them from redundancy");
        }
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
                .map(|(unit, piece)| cut(unit, within(piece, &columns)))
                .collect();
            if checksum_of(&parts) == checksum {
                return Some(join(parts));
            }
            if !next_combination(&mut left_out, present.len()) {
                return None;
            }
        }
    }
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

fn cut(unit: &Bytes, columns: Range<u32>) -> Bytes {
    unit.slice(columns.start as usize..columns.end as usize)
}

/// The columns of a unit that pieces of one stripe take from first to last.
fn columns_of(pieces: &[Piece]) -> Range<u32> {
    let start = pieces.iter().map(|piece| piece.unit_offset).min();
    let end = pieces.iter().map(|piece| piece.columns().end).max();
    start.unwrap_or(0)..end.unwrap_or(0)
}

/// Range of a piece within `columns`.
fn within(piece: &Piece, columns: &Range<u32>) -> Range<u32> {
    piece.unit_offset - columns.start..piece.columns().end - columns.start
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
