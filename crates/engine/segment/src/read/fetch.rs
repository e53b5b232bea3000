//! The stored bytes of a record, verified: from their shards, or from redundancy where needed.
//!
//! Owns: when a read is degraded, which disks it waits for, what is repaired afterwards.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::DiskId;
use cairn_base::disk::DiskError;
use cairn_base::planted::{self, Bug};
use cairn_formats::pointer::{Location, RecordPointer};
use cairn_shard::{ShardError, ShardErrorKind, TRAILER_LEN_BYTES};
use futures_util::future::{Either, join_all, select};

use crate::error::{Result, SegmentError};
use crate::layout::{Piece, pieces};
use crate::life::Segment;
use crate::record::checksum_of;
use crate::repair::Fix;
use crate::store::{SegmentStore, count};

/// Reasons why bytes of a shard could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The disk was not asked, did not answer, or is missing: it may have the bytes.
    Away,
    /// The disk is no member of the pool any more: it will not come back.
    Forgotten,
    /// The disk failed to read them; a rewrite may succeed.
    Unreadable,
    /// The disk works, and the file is missing or too short: the whole shard must be rebuilt.
    Missing,
}

/// The kind of reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// It reads in order, and will read the next bytes soon.
    InOrder,
    Any,
    /// Background work.
    Internal,
    /// Background work that can do without the bytes: a corrupt summary of a segment damages no file.
    Summary,
}

/// Bytes of a record that share a checksum.
pub(crate) struct Check {
    /// Range in the stored record.
    pub stored: Range<u32>,
    pub checksum: u32,
}

impl SegmentStore {
    /// The verified stored bytes that adjacent `checks` cover.
    pub(super) async fn fetch(
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
        if let Some(remote) = &segment.remote {
            return self.fetch_remote(segment, remote, pointer, &checks).await;
        }
        let stored = first.stored.start..last.stored.end;
        let pieces = pieces(location, stored.clone());
        let whole_stripe = self.is_stripe_wanted(segment, location, &pieces, reader);
        let reads = pieces.iter().map(|piece| async {
            if whole_stripe {
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

    /// Whether these pieces should be cut from the decoded stripe even if all of them may be readable: a disk of the
    /// stripe is away, and either a reader in order is at its start, or it is being decoded.
    fn is_stripe_wanted(
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
                    .stripes
                    .is_near(&(segment.volume, segment.id, location.stripe_block)))
    }

    /// The shards of a segment whose disks answer.
    pub(super) fn answering<'a>(&'a self, segment: &'a Segment) -> impl Iterator<Item = u8> + 'a {
        (0..segment.code.total()).filter(|shard| {
            let disk = segment.disk_of(*shard);
            let disk = disk.and_then(|disk| self.healthy_disk(disk));
            disk.is_some_and(|disk| !disk.is_silent())
        })
    }

    /// Reads bytes `columns` of one unit of a stripe. A faulted disk is asked only as a last resort. An unresponsive
    /// disk is waited for only then, or if the answering ones are not enough.
    pub(super) async fn read_shard(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        location: &Location,
        shard: u8,
        columns: Range<u32>,
        last_resort: bool,
    ) -> std::result::Result<Bytes, Lost> {
        let id = segment.disk_of(shard).ok_or(Lost::Forgotten)?;
        let Some(disk) = self.disk(id) else {
            return Err(match self.members().missing().contains(&id) {
                true => Lost::Away,
                false => Lost::Forgotten,
            });
        };
        if disk.is_avoided() && !last_resort {
            return Err(Lost::Away);
        }
        let offset = location.stripe_offset_bytes() + u64::from(columns.start);
        let read = disk.read(segment.shard_name(shard), offset, columns.len());
        let read = if last_resort {
            read.await
        } else {
            match select(read, pin!(disk.state().silence())).await {
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
                    // This includes a lack of file descriptors: the bytes are unaffected.
                    _ if is_no_answer(&error) => Lost::Away,
                    ShardErrorKind::Io => Lost::Unreadable,
                    ShardErrorKind::NotFound => {
                        self.start_rebuild(segment, shard, 0);
                        Lost::Missing
                    }
                    // While it is written and sealed, its length is still changing.
                    _ if is_short(&error) && segment.settled_len_bytes().is_some() => {
                        let stripe_end =
                            location.stripe_offset_bytes() + u64::from(location.unit_len_bytes());
                        self.start_rebuild(segment, shard, stripe_end + TRAILER_LEN_BYTES as u64);
                        Lost::Missing
                    }
                    _ if is_short(&error) && last_resort => Lost::Missing,
                    _ => Lost::Away,
                })
            }
        }
    }
}

/// Whether the file ends before the requested range.
fn is_short(error: &ShardError) -> bool {
    matches!(error, ShardError::Disk(DiskError::Short { .. }))
}

/// Whether an error tells nothing about the contents of the disk: the disk was not asked, or did not answer.
pub(crate) fn is_no_answer(error: &ShardError) -> bool {
    matches!(
        error,
        ShardError::Unreachable { .. }
            | ShardError::Late { .. }
            | ShardError::Disk(DiskError::NoDescriptor { .. })
    )
}

pub(super) fn data_count(segment: &Segment) -> usize {
    usize::from(segment.code.data())
}

/// Whether the pieces cover so much of their stripe that its other records are probably needed next.
pub(super) fn is_streaming(segment: &Segment, location: &Location, pieces: &[Piece]) -> bool {
    let wanted: u32 = pieces.iter().map(|piece| piece.len_bytes).sum();
    segment.code.data() > 1 && wanted >= location.unit_len_bytes() / 2
}

/// The part of the pieces at `range` (counted from the first piece), if all of it is known.
pub(super) fn slice_known(
    parts: &[Option<Bytes>],
    pieces: &[Piece],
    range: Range<u32>,
) -> Option<Vec<Bytes>> {
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

/// Joins fixes of adjacent bytes of one shard: one per granule would need a sync each.
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

pub(super) fn join(mut parts: Vec<Bytes>) -> Bytes {
    match (parts.pop(), parts.is_empty()) {
        (None, _) => Bytes::new(),
        (Some(only), true) => only,
        (Some(last), false) => {
            parts.push(last);
            parts.concat().into()
        }
    }
}

pub(super) fn damaged(segment: &Segment, location: &Location, detail: String) -> SegmentError {
    damaged_at(segment, location, &(0..location.len_bytes), detail)
}

pub(super) fn damaged_at(
    segment: &Segment,
    location: &Location,
    stored: &Range<u32>,
    detail: String,
) -> SegmentError {
    SegmentError::Damaged {
        volume: segment.volume,
        segment: segment.id,
        stripe_block: location.stripe_block,
        offset_bytes: location.offset_bytes + stored.start,
        len_bytes: stored.len() as u32,
        detail,
    }
}

pub(super) fn unreachable_at(
    segment: &Segment,
    location: &Location,
    stored: &Range<u32>,
    detail: String,
) -> SegmentError {
    SegmentError::Unreachable {
        volume: segment.volume,
        segment: segment.id,
        stripe_block: location.stripe_block,
        offset_bytes: location.offset_bytes + stored.start,
        len_bytes: stored.len() as u32,
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_not_answer_is_told_from_who_has_failed() {
        let disk = || "disk".to_owned();
        let what = || "reading".to_owned();
        let cases = [
            (
                ShardError::Unreachable {
                    disk: disk(),
                    what: what(),
                    reason: "the connection broke".to_owned(),
                },
                true,
            ),
            (
                ShardError::Late {
                    disk: disk(),
                    what: what(),
                },
                true,
            ),
            (
                ShardError::Disk(DiskError::NoDescriptor {
                    disk: disk(),
                    what: what(),
                }),
                true,
            ),
            (
                ShardError::Disk(DiskError::Io {
                    disk: disk(),
                    what: what(),
                    detail: "for a test".to_owned(),
                }),
                false,
            ),
            (
                ShardError::Disk(DiskError::NotFound {
                    disk: disk(),
                    name: "shards/1".to_owned(),
                }),
                false,
            ),
        ];
        for (error, want) in cases {
            assert_eq!(is_no_answer(&error), want, "{error}");
        }
    }
}
