//! The read path: cache, bytes from their shards, checksums, redundancy.
//!
//! Owns: which parts of a record are fetched and cached together. Invariant: every byte returned here has passed its
//! record's checksum (Rule 2).

mod damaged_places;
mod fetch;
mod redundancy;
mod second;
mod together;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_base::VolumeId;
use cairn_formats::pointer::{CHECKSUM_GRANULE_BYTES, Codec, Location, RecordPointer};

pub(crate) use self::damaged_places::DamagedPlaces;
pub(crate) use self::redundancy::decode;
pub(crate) use self::second::Second;
pub use self::second::{CACHE_PLACE_LEN_BYTES, CachePlace, ReadCache};
pub use self::together::WantedPart;

pub(crate) use self::fetch::{Check, is_no_answer};
use self::fetch::{Reader, damaged, join};
use crate::cache::{Key, Miss, Parts, granules, slice, within_granule};
use crate::error::{ErrorKind, Result, SegmentError};
use crate::life::Segment;
use crate::record::{decode_record, decrypt_granules};
use crate::store::{SegmentStore, count};
use crate::volume::Volume;

/// A shorter part is copied before it is cached: otherwise the blocks around it, which were read with it, would weigh
/// as much as the part itself.
const SHARE_LEN_BYTES_MIN: usize = 16 << 10;

impl SegmentStore {
    /// File bytes `range` of a record, in parts, in order; from the cache or from disks, and from redundancy where
    /// disks fail. Corruption found on the way is repaired in the background.
    ///
    /// Fails with `Gone` if the segment was removed meanwhile, with `Unreachable` if too few disks answer now, and with
    /// `Damaged` if no disk can provide the bytes.
    pub async fn read(
        self: &Arc<Self>,
        volume: VolumeId,
        pointer: &RecordPointer,
        range: Range<u32>,
    ) -> Result<Vec<Bytes>> {
        self.read_for(volume, pointer, range, Reader::Any).await
    }

    /// As [`Self::read`], for a segment's summary: corruption is not counted.
    pub(crate) async fn read_summary(
        self: &Arc<Self>,
        volume: VolumeId,
        pointer: &RecordPointer,
    ) -> Result<Vec<Bytes>> {
        self.read_for(volume, pointer, 0..pointer.file_len_bytes, Reader::Summary)
            .await
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
        let volume = self.volume(volume)?;
        if pointer.encryption.is_some() && volume.key.is_none() {
            return Err(SegmentError::NoKey { volume: volume.id });
        }
        loop {
            let segment = volume.segment(pointer.location.segment)?;
            check_place(&segment, &pointer.location)?;
            let result = self
                .read_of(&volume, &segment, pointer, range.clone(), reader)
                .await;
            match result {
                // Its shards are deleted or already hold another segment's bytes; its bytes may be in a tier now.
                Err(_) if segment.is_removed() => {
                    let now = volume.segment(segment.id)?;
                    if Arc::ptr_eq(&now, &segment) {
                        return Err(gone(&segment));
                    }
                }
                Err(error) => {
                    match error.kind() {
                        _ if reader == Reader::Summary => {}
                        ErrorKind::Damaged => {
                            let before = &self.counters.damaged_reads;
                            let nth = before.fetch_add(1, Ordering::Relaxed) + 1;
                            self.damaged_places.note(volume.id, pointer, nth);
                        }
                        ErrorKind::Unreachable => count(&self.counters.unreachable_reads, 1),
                        _ => {}
                    }
                    return Err(error);
                }
                read => {
                    if !matches!(reader, Reader::Internal | Reader::Summary) {
                        segment.note_used();
                    }
                    return read;
                }
            }
        }
    }

    async fn read_of(
        self: &Arc<Self>,
        volume: &Volume,
        segment: &Arc<Segment>,
        pointer: &RecordPointer,
        range: Range<u32>,
        reader: Reader,
    ) -> Result<Vec<Bytes>> {
        if !is_read_whole(pointer, &range) {
            return self
                .read_granules(volume, segment, pointer, range, reader)
                .await;
        }
        match self.read_whole(volume, segment, pointer, reader).await {
            Ok(parts) => Ok(slice(&parts, range)),
            // Only bytes that were read along may be corrupt, or unreachable.
            Err(error)
                if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Unreachable)
                    && has_parts_beside(pointer, &range) =>
            {
                self.read_granules(volume, segment, pointer, range, reader)
                    .await
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a whole record from the disks, bypassing the cache, and checks it against its pointer. Corruption is
    /// repaired from redundancy, where possible, before this returns. Needs no key: checksums cover the stored bytes.
    ///
    /// Fails with `Gone` if the segment was removed meanwhile, with `Unreachable` if too few disks answer now, and with
    /// `Damaged` if no disk can provide the bytes.
    pub async fn verify(self: &Arc<Self>, volume: VolumeId, pointer: &RecordPointer) -> Result<()> {
        check_range(pointer, &(0..0))?;
        let segment = self.volume(volume)?.segment(pointer.location.segment)?;
        check_place(&segment, &pointer.location)?;
        let fetched = self
            .fetch(&segment, pointer, checks(pointer), Reader::Any)
            .await;
        let checked = fetched.and_then(|stored| {
            if pointer.codec == Codec::Raw || pointer.encryption.is_some() {
                return Ok(());
            }
            decode_record(pointer.codec, &join(stored), pointer.file_len_bytes)
                .map(drop)
                .map_err(|error| damaged(&segment, &pointer.location, error.to_string()))
        });
        // This includes the repairs of this call.
        self.repairs_done().await;
        match checked {
            // Or its bytes went to a tier meanwhile, and were right at that time.
            Err(_) if segment.is_removed() => Err(gone(&segment)),
            checked => checked,
        }
    }

    async fn read_whole(
        self: &Arc<Self>,
        volume: &Volume,
        segment: &Arc<Segment>,
        pointer: &RecordPointer,
        reader: Reader,
    ) -> Result<Parts> {
        let key = Key::whole(segment.volume, pointer);
        let miss = match self.cache.get_or_miss(&key).await {
            Ok(parts) => return Ok(parts),
            Err(miss) => miss,
        };
        let stored = self
            .fetch_through(segment, pointer, checks(pointer), reader)
            .await?;
        let stored = plain(volume, segment, pointer, 0, stored)?;
        let parts: Parts = if pointer.codec == Codec::Raw {
            stored.into_iter().map(unshare_small).collect()
        } else {
            let stored = join(stored);
            let data = decode_record(pointer.codec, &stored, pointer.file_len_bytes)
                .map_err(|error| damaged(segment, &pointer.location, error.to_string()))?;
            [data].into()
        };
        miss.insert(parts.clone(), || self.env.clock.monotonic());
        Ok(parts)
    }

    async fn read_granules(
        self: &Arc<Self>,
        volume: &Volume,
        segment: &Arc<Segment>,
        pointer: &RecordPointer,
        range: Range<u32>,
        reader: Reader,
    ) -> Result<Vec<Bytes>> {
        // All readers use ascending order, so that no two wait for each other.
        let mut missing: Vec<(u32, Miss<'_>)> = Vec::new();
        let mut found: Vec<(u32, Parts)> = Vec::new();
        for granule in granules(&range) {
            let key = Key::granule(segment.volume, pointer, granule);
            match self.cache.get_or_miss(&key).await {
                Ok(parts) => found.push((granule, parts)),
                Err(miss) => missing.push((granule, miss)),
            }
        }
        let mut checks_of_all = checks(pointer).into_iter().zip(0..);
        let mut missing = missing.into_iter().peekable();
        while let Some((first, miss)) = missing.next() {
            let mut misses = vec![miss];
            while let Some((_, miss)) =
                missing.next_if(|(next, _)| *next == first + misses.len() as u32)
            {
                misses.push(miss);
            }
            let run = first..first + misses.len() as u32;
            let checks = checks_of_all
                .by_ref()
                .skip_while(|(_, granule)| *granule < run.start)
                .take(misses.len())
                .map(|(check, _)| check)
                .collect();
            let stored = self.fetch_through(segment, pointer, checks, reader).await?;
            let stored = plain(volume, segment, pointer, run.start, stored)?;
            let run_len = misses.len();
            for (index, miss) in (0..).zip(misses) {
                let start = index * CHECKSUM_GRANULE_BYTES;
                let parts = slice(&stored, start..start + CHECKSUM_GRANULE_BYTES);
                // A single part is the buffer that was read; as a slice of a run it would keep the whole run alive.
                let parts: Parts = if run_len == 1 {
                    parts.into_iter().map(unshare_small).collect()
                } else {
                    [parts.concat().into()].into()
                };
                miss.insert(parts.clone(), || self.env.clock.monotonic());
                found.push((run.start + index, parts));
            }
        }
        found.sort_unstable_by_key(|(granule, _)| *granule);
        let parts = found
            .iter()
            .flat_map(|(granule, parts)| slice(parts, within_granule(*granule, &range)));
        Ok(parts.collect())
    }
}

fn gone(segment: &Segment) -> SegmentError {
    SegmentError::Gone {
        volume: segment.volume,
        segment: segment.id,
    }
}

/// Decrypted stored bytes of a record, from granule `first` on. `stored` is verified.
fn plain(
    volume: &Volume,
    segment: &Segment,
    pointer: &RecordPointer,
    first: u32,
    stored: Vec<Bytes>,
) -> Result<Vec<Bytes>> {
    let Some(encryption) = &pointer.encryption else {
        return Ok(stored);
    };
    let no_key = SegmentError::NoKey { volume: volume.id };
    let key = volume.key.as_ref().ok_or(no_key)?;
    let plain = decrypt_granules(pointer, encryption, key, first, &stored);
    let plain = plain.map_err(|error| damaged(segment, &pointer.location, error.to_string()))?;
    Ok(vec![plain])
}

/// The checks of a whole record.
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

/// Whether a read of `range` fetches and caches the whole record.
fn is_read_whole(pointer: &RecordPointer, range: &Range<u32>) -> bool {
    let len_bytes = pointer.file_len_bytes;
    pointer.codec != Codec::Raw
        || len_bytes <= CHECKSUM_GRANULE_BYTES
        || range.len() as u32 >= len_bytes / 2
}

/// Whether a record has parts with their own checksums outside of `range`.
fn has_parts_beside(pointer: &RecordPointer, range: &Range<u32>) -> bool {
    let wanted = granules(range).count();
    pointer.codec == Codec::Raw && wanted < pointer.checksums.len()
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

/// Refuses places outside of the segment, which only corrupt metadata can name.
fn check_place(segment: &Segment, location: &Location) -> Result<()> {
    let unit_len_bytes = u64::from(location.unit_len_bytes());
    let stripe_end = location.stripe_offset_bytes() + unit_len_bytes;
    let end = u64::from(location.offset_bytes) + u64::from(location.len_bytes);
    let data = u64::from(segment.code.data());
    if stripe_end > segment.shard_len_bytes || end > unit_len_bytes * data {
        return Err(SegmentError::BadPointer {
            detail: format!(
                "segment {} has no such place: stripe at block {}, bytes up to {end}",
                segment.id, location.stripe_block
            ),
        });
    }
    Ok(())
}

fn unshare_small(part: Bytes) -> Bytes {
    if part.len() < SHARE_LEN_BYTES_MIN {
        Bytes::copy_from_slice(&part)
    } else {
        part
    }
}
