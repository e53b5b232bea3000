//! Scrub of the shards of a segment: compares stored bytes with the checksums beside them.
//!
//! Owns: the comparisons of a shard, and its repair. Must not know: when and how often; which records are live: the
//! check of records covers those.
//!
//! A sealed shard is checked against its footer, piece by piece; wrong pieces are computed from right pieces of the
//! other shards. A shard without a readable footer is compared with the contents that follow from the others, and gets
//! a footer. A shard that never had a footer missed a write: its missing bytes are completed, and are no fault of its
//! disk. Pieces that all match their footers must also form one stripe: that finds parity that was computed from other
//! data.
//!
//! The scrub skips a segment without any footer after a crash: only the metadata knows which part of it counts.
//! [`SegmentStore::unsealed`] names such segments, so that a caller can rewrite their records.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairn_base::planted::{self, Bug};
use cairn_base::{SegmentId, VolumeId, crc32c};
use cairn_formats::pointer::BLOCK_BYTES;
use cairn_shard::{
    CHECKSUM_UNIT_BYTES, CheckedRead, ShardErrorKind, ShardFooter, ShardName, ShardService,
    ShardWrite, TRAILER_LEN_BYTES,
};
use futures_util::future::join_all;

use crate::error::{Result, SegmentError};
use crate::life::Segment;
use crate::pace::Pace;
use crate::read::decode;
use crate::store::{SegmentStore, count};

/// Bytes of each shard that are checked together.
const PART_BYTES: u64 = 1 << 20;

const _: () = assert!(PART_BYTES.is_multiple_of(CHECKSUM_UNIT_BYTES));

/// Results of a scrub of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentScrub {
    /// Shards that were read completely.
    pub shards: u64,
    pub read_bytes: u64,
    /// Bytes of shards that were wrong or unreadable.
    pub wrong_bytes: u64,
    /// The part of these that was rewritten.
    pub repaired_bytes: u64,
    /// Bytes that shards without a footer lacked, and have now: their disk refused a write, or was late with it.
    pub completed_bytes: u64,
    /// Shards whose file was missing or too short, and that were rebuilt.
    pub shards_rebuilt: u64,
    /// Shards that had no footer and got one.
    pub shards_sealed: u64,
    /// Shards that could not be checked: their disk is away, or their file is missing for good, or too short.
    pub shards_away: u64,
    /// The part of these whose disk works, and that could not be rebuilt from the others.
    pub shards_unmade: u64,
    /// Wrong pieces that could not be computed from the others although all their disks are present: right bytes around
    /// the corruption may have no other copy left.
    pub pieces_unmade: u64,
    /// Segments without any footer, or still being written: only their records can be checked.
    pub segments_unsealed: u64,
    /// Segments whose shards contradict one another although each matches its footer: their records must be rewritten.
    pub segments_inconsistent: u64,
}

impl std::ops::AddAssign for SegmentScrub {
    fn add_assign(&mut self, other: Self) {
        self.shards += other.shards;
        self.read_bytes += other.read_bytes;
        self.wrong_bytes += other.wrong_bytes;
        self.repaired_bytes += other.repaired_bytes;
        self.completed_bytes += other.completed_bytes;
        self.shards_rebuilt += other.shards_rebuilt;
        self.shards_sealed += other.shards_sealed;
        self.shards_away += other.shards_away;
        self.shards_unmade += other.shards_unmade;
        self.pieces_unmade += other.pieces_unmade;
        self.segments_unsealed += other.segments_unsealed;
        self.segments_inconsistent += other.segments_inconsistent;
    }
}

impl SegmentScrub {
    /// Whether the records of this segment must be rewritten. Either its shards contradict one another, or a shard or
    /// piece cannot be computed from the others although all their disks are present, for example because these have a
    /// bad piece, too.
    pub fn needs_rewrite(&self) -> bool {
        let is_unmade = self.shards_unmade > 0 && self.shards_unmade == self.shards_away;
        self.segments_inconsistent > 0 || is_unmade || self.pieces_unmade > 0
    }
}

/// A shard that is being checked.
struct Looked {
    index: u8,
    disk: Arc<dyn ShardService>,
    name: ShardName,
    file_len_bytes: u64,
    footer: Option<ShardFooter>,
    /// It never got a footer: a write to it failed, or a crash came first. Differing bytes are no corruption.
    is_unsealed: bool,
    /// Checksums for the footer that a shard without one gets.
    checksums: Vec<u32>,
    /// Some of its right contents are unknown, so it gets no footer.
    unknown: bool,
    /// Bytes to be rewritten.
    repairs: Vec<Repair>,
}

/// Bytes to be rewritten.
#[derive(Clone)]
struct Repair {
    write: ShardWrite,
    /// The shard never had these bytes.
    is_missed: bool,
}

/// A piece as read.
#[derive(Clone, PartialEq)]
struct ReadPiece {
    bytes: Bytes,
    /// It does not match the footer.
    is_damaged: bool,
}

impl Looked {
    /// Checksum in the footer for the piece that begins at `offset`.
    fn checksum_at(&self, offset: u64) -> Option<u32> {
        let index = usize::try_from(offset / CHECKSUM_UNIT_BYTES).ok()?;
        self.footer.as_ref()?.checksums.get(index).copied()
    }

    /// Checksums in the footer for the pieces from `offset` on; none without a footer.
    fn checksums_from(&self, offset: u64) -> &[u32] {
        let skipped = (offset / CHECKSUM_UNIT_BYTES) as usize;
        let known = self.footer.as_ref();
        known.map_or(&[], |footer| footer.checksums.get(skipped..).unwrap_or(&[]))
    }
}

impl SegmentStore {
    /// Checks all present shards of a segment, and repairs them. A segment that is removed meanwhile is no error. Fails
    /// with `VolumeClosed` for a volume that is open read-only: repairs are impossible.
    pub async fn scrub_segment(
        self: &Arc<Self>,
        volume: VolumeId,
        segment: SegmentId,
        pace: &Pace,
    ) -> Result<SegmentScrub> {
        let mut scrub = SegmentScrub::default();
        let opened = self.volume(volume)?;
        if opened.is_read_only {
            return Err(SegmentError::VolumeClosed { volume });
        }
        let Ok(segment) = opened.segment(segment) else {
            return Ok(scrub);
        };
        // It has no shards: [`SegmentStore::verify_object`] checks it.
        if segment.remote.is_some() {
            return Ok(scrub);
        }
        if segment.is_open() {
            scrub.segments_unsealed = 1;
            return Ok(scrub);
        }
        let mut looked = self.look(&segment, &mut scrub).await;
        // Its files are removed one by one: those that are gone already do not count as missing.
        if segment.is_removed() {
            return Ok(SegmentScrub::default());
        }
        let Some(pattern) = pattern_of(&looked) else {
            scrub.segments_unsealed = 1;
            return Ok(scrub);
        };
        self.rebuild_short(&segment, &mut looked, &pattern, &mut scrub)
            .await;
        // A footer that contradicts the others cannot be right; its checksums are of no use.
        for shard in &mut looked {
            let differs = |footer: &ShardFooter| {
                footer.data_len_bytes != pattern.data_len_bytes
                    || footer.stripes != pattern.stripes
                    || footer.summary != pattern.summary
            };
            if shard.footer.as_ref().is_some_and(differs) {
                shard.footer = None;
            }
        }
        let mut start = 0;
        while start < pattern.data_len_bytes {
            let end = (start + PART_BYTES).min(pattern.data_len_bytes);
            let bytes = (end - start) * looked.len() as u64;
            // A shard that moved meanwhile was checked when it was copied. Its handle is dropped at once: its disk may
            // be unmounted soon, and the next turn may come in weeks.
            let mut is_wanted = || {
                looked.retain(|shard| segment.disk_of(shard.index) == Some(shard.disk.id()));
                let opened_now = self.volume(volume);
                let is_current = opened_now.is_ok_and(|now| Arc::ptr_eq(&now, &opened));
                is_current && !segment.is_removed()
            };
            let turn = pace.spend_if(bytes, &mut is_wanted).await;
            // Not for the whole segment: its removal waits for this gate.
            let _writing = segment.gate.read().await;
            if turn.is_none() || !is_wanted() {
                if segment.is_removed() {
                    return Ok(scrub);
                }
                // The reopened volume repairs the segment now, and does not know of this scrub.
                return Err(SegmentError::VolumeClosed { volume });
            }
            self.scrub_part(&segment, &mut looked, start..end, &mut scrub)
                .await;
            start = end;
        }
        scrub.shards += looked.len() as u64;
        self.seal_unsealed(&segment, looked, &pattern, &mut scrub)
            .await;
        Ok(scrub)
    }

    /// Segments that accept no more records and have enough shards to be read, but too few with footers to compute the
    /// others: a crash came before sealing, or during it.
    pub async fn unsealed(&self, volume: VolumeId, pace: &Pace) -> Result<Vec<SegmentId>> {
        let segments: Vec<Arc<Segment>> = {
            let volume = self.volume(volume)?;
            let segments = volume.segments.read();
            segments.values().cloned().collect()
        };
        let mut unsealed = Vec::new();
        for segment in segments {
            if segment.is_open() || segment.is_removed() || segment.remote.is_some() {
                continue;
            }
            let _turn = pace.spend(u64::from(BLOCK_BYTES)).await;
            let needed = segment.code.data();
            let (mut readable, mut sealed) = (0, 0);
            for index in 0..segment.code.total() {
                if sealed == needed {
                    break;
                }
                // A shard that is unreadable now may have its footer.
                let Ok(Some(source)) = self.rebuild_source(&segment, index).await else {
                    continue;
                };
                readable += 1;
                sealed += u8::from(source.has_footer());
            }
            if sealed < needed && readable >= needed {
                unsealed.push(segment.id);
            }
        }
        unsealed.sort_unstable();
        Ok(unsealed)
    }

    /// Opens the present shards; those whose file is missing are rebuilt first.
    async fn look(&self, segment: &Arc<Segment>, scrub: &mut SegmentScrub) -> Vec<Looked> {
        let mut looked = Vec::new();
        for index in 0..segment.code.total() {
            let disk_now = || {
                let disk = segment.disk_of(index);
                disk.and_then(|disk| self.healthy_disk(disk))
            };
            let Some(mut disk) = disk_now() else {
                scrub.shards_away += 1;
                continue;
            };
            let name = segment.shard_name(index);
            let mut opened = disk.stat(name).await;
            // The shard may have moved in between.
            while opened.is_err()
                && let Some(other) = disk_now().filter(|other| other.id() != disk.id())
            {
                disk = other;
                opened = disk.stat(name).await;
            }
            if matches!(&opened, Err(error) if error.kind() == ShardErrorKind::NotFound) {
                if self.rebuild_now(segment, index, 0).await {
                    scrub.shards_rebuilt += 1;
                    opened = disk.stat(name).await;
                } else {
                    scrub.shards_unmade += 1;
                }
            }
            let Ok(stat) = opened else {
                scrub.shards_away += 1;
                continue;
            };
            looked.push(Looked {
                index,
                disk,
                name,
                file_len_bytes: stat.file_len_bytes,
                // A corrupt footer is rewritten like a missing one.
                footer: stat.footer.ok().flatten(),
                is_unsealed: stat.is_unsealed,
                checksums: Vec::new(),
                unknown: false,
                repairs: Vec::new(),
            });
        }
        looked
    }

    /// Rebuilds shards that are too short for their stripes, as a check of the file system may leave them.
    async fn rebuild_short(
        &self,
        segment: &Segment,
        looked: &mut Vec<Looked>,
        pattern: &ShardFooter,
        scrub: &mut SegmentScrub,
    ) {
        let data_end = pattern
            .data_len_bytes
            .next_multiple_of(u64::from(BLOCK_BYTES));
        let len_bytes_min = data_end + TRAILER_LEN_BYTES as u64;
        let mut at = 0;
        while let Some(shard) = looked.get_mut(at) {
            if shard.file_len_bytes >= len_bytes_min {
                at += 1;
                continue;
            }
            let rebuilt = self.rebuild_now(segment, shard.index, len_bytes_min).await;
            let opened = match rebuilt {
                true => shard.disk.stat(shard.name).await.ok(),
                false => None,
            };
            let Some(opened) = opened else {
                scrub.shards_away += 1;
                scrub.shards_unmade += 1;
                looked.remove(at);
                continue;
            };
            scrub.shards_rebuilt += 1;
            shard.file_len_bytes = opened.file_len_bytes;
            shard.footer = opened.footer.ok().flatten();
            shard.is_unsealed = false;
            at += 1;
        }
    }

    async fn scrub_part(
        &self,
        segment: &Segment,
        looked: &mut [Looked],
        range: Range<u64>,
        scrub: &mut SegmentScrub,
    ) {
        // A read repair writes whole blocks, and keeps the bytes around its record as it read them: it would undo a
        // repair made here in between. The lock comes after the gate, as there.
        let _alone = segment.repair.lock().await;
        let reads = looked.iter().map(|shard| {
            let known = shard.checksums_from(range.start);
            shard.disk.read_checked(shard.name, range.clone(), known)
        });
        let reads: Vec<Option<CheckedRead>> = join_all(reads)
            .await
            .into_iter()
            .map(std::result::Result::ok)
            .collect();
        scrub.read_bytes += reads
            .iter()
            .flatten()
            .map(|read| read.bytes.len() as u64)
            .sum::<u64>();
        let mut start = range.start;
        while start < range.end {
            let end = (start + CHECKSUM_UNIT_BYTES).min(range.end);
            let cut = (start - range.start) as usize..(end - range.start) as usize;
            let pieces: Vec<Option<ReadPiece>> = reads
                .iter()
                .map(|read| {
                    let read = read.as_ref()?;
                    Some(ReadPiece {
                        bytes: read.bytes.slice(cut.clone()),
                        is_damaged: read.damaged.iter().any(|range| range.start == start),
                    })
                })
                .collect();
            self.scrub_pieces(segment, looked, start, cut.len(), &pieces, scrub);
            start = end;
        }
        for shard in looked {
            self.write_repairs(segment, shard, scrub).await;
        }
    }

    /// Writes the repairs of a part of a shard with one sync; one by one if that fails, so that a bad place does not
    /// prevent the other repairs.
    async fn write_repairs(&self, segment: &Segment, shard: &mut Looked, scrub: &mut SegmentScrub) {
        let repairs = std::mem::take(&mut shard.repairs);
        if repairs.is_empty() {
            return;
        }
        let repair = |writes| shard.disk.repair(segment.epoch, shard.name, writes);
        let all = || repairs.iter().map(|repair| repair.write.clone()).collect();
        let together = match repairs.len() {
            1 => None,
            _ => repair(all()).await.ok(),
        };
        let mut is_unknown = false;
        for Repair { write, is_missed } in repairs {
            let (offset, lens) = (write.offset, write.parts.iter().map(Bytes::len));
            let len_bytes = lens.sum::<usize>() as u64;
            let repaired = match together {
                Some(()) => Ok(()),
                None => repair(vec![write]).await,
            };
            match repaired {
                Ok(()) if is_missed => {
                    scrub.completed_bytes += len_bytes;
                    tracing::info!(volume = %segment.volume, segment = %segment.id, shard = shard.index, offset, disk = shard.disk.label(), "scrub wrote what a shard had missed");
                }
                Ok(()) => {
                    scrub.repaired_bytes += len_bytes;
                    count(&self.counters.repairs, 1);
                    tracing::warn!(volume = %segment.volume, segment = %segment.id, shard = shard.index, offset, disk = shard.disk.label(), "scrub found wrong bytes and wrote them anew");
                }
                Err(error) => {
                    self.note_fenced(&error);
                    is_unknown = true;
                    count(&self.counters.repairs_failed, 1);
                    tracing::warn!(volume = %segment.volume, segment = %segment.id, shard = shard.index, offset, %error, "a repair failed");
                }
            }
        }
        shard.unknown |= is_unknown;
    }

    /// Checks the pieces of all shards at one place, and notes the right contents of wrong ones.
    fn scrub_pieces(
        &self,
        segment: &Segment,
        looked: &mut [Looked],
        start: u64,
        len: usize,
        pieces: &[Option<ReadPiece>],
        scrub: &mut SegmentScrub,
    ) {
        let are_all_there =
            segment.code.parity() > 0 && looked.len() == usize::from(segment.code.total());
        let mut good: Vec<(u8, Bytes)> = Vec::with_capacity(looked.len());
        let mut wrong: Vec<usize> = Vec::new();
        for (place, (shard, piece)) in looked.iter().zip(pieces).enumerate() {
            match (piece, shard.checksum_at(start)) {
                (Some(piece), Some(_)) if !piece.is_damaged => {
                    good.push((shard.index, piece.bytes.clone()));
                }
                _ => wrong.push(place),
            }
        }
        if wrong.is_empty() {
            if scrub.segments_inconsistent == 0 && !is_one_stripe(segment, &good, len) {
                scrub.segments_inconsistent = 1;
                scrub.wrong_bytes += len as u64;
                tracing::error!(volume = %segment.volume, segment = %segment.id, offset = start, "the shards of a segment contradict one another; its records are rewritten");
            }
            return;
        }
        let wanted: Vec<u8> = wrong
            .iter()
            .filter_map(|place| Some(looked.get(*place)?.index))
            .collect();
        let enough = good.len() >= usize::from(segment.code.data());
        good.truncate(usize::from(segment.code.data()));
        let units = enough
            .then(|| decode(segment, &good, &wanted, len))
            .flatten();
        for (at, place) in wrong.into_iter().enumerate() {
            let (Some(shard), Some(piece)) = (looked.get_mut(place), pieces.get(place)) else {
                continue;
            };
            let unit = units.as_ref().and_then(|units| units.get(at)).cloned();
            // The shard moved while its disk was asked, and was checked when it was copied.
            if piece.is_none() && segment.disk_of(shard.index) != Some(shard.disk.id()) {
                shard.unknown = true;
                continue;
            }
            let known = shard.checksum_at(start);
            let unit = unit.filter(|unit| known.is_none_or(|known| crc32c(unit) == known));
            let unit = match planted::is(Bug::ScrubRepairsFromDamage) {
                true => good.first().map(|(_, piece)| piece.clone()),
                false => unit,
            };
            let Some(unit) = unit else {
                // Without a footer it is not known to be wrong; its records will show it.
                if known.is_some() {
                    scrub.wrong_bytes += len as u64;
                    scrub.pieces_unmade += u64::from(are_all_there);
                }
                shard.unknown = true;
                continue;
            };
            shard.checksums.push(crc32c(&unit));
            if piece.as_ref().is_some_and(|piece| piece.bytes == unit) {
                continue;
            }
            let is_missed = shard.is_unsealed && piece.is_some();
            if !is_missed {
                scrub.wrong_bytes += len as u64;
                if piece.is_some() {
                    shard.disk.note_checksum_error();
                    count(&self.counters.checksum_errors, 1);
                }
            }
            let write = ShardWrite {
                offset: start,
                parts: vec![unit],
            };
            shard.repairs.push(Repair { write, is_missed });
        }
    }

    /// Writes footers for shards without one.
    async fn seal_unsealed(
        &self,
        segment: &Segment,
        looked: Vec<Looked>,
        pattern: &ShardFooter,
        scrub: &mut SegmentScrub,
    ) {
        let _writing = segment.gate.read().await;
        if segment.is_removed() {
            return;
        }
        for shard in looked {
            let has_moved = segment.disk_of(shard.index) != Some(shard.disk.id());
            if shard.footer.is_some() || shard.unknown || has_moved {
                continue;
            }
            let footer = ShardFooter {
                name: segment.shard_name(shard.index),
                checksums: shard.checksums,
                ..pattern.clone()
            };
            match shard.disk.seal(segment.epoch, footer).await {
                Ok(_) => scrub.shards_sealed += 1,
                Err(error) => {
                    self.note_fenced(&error);
                    tracing::warn!(volume = %segment.volume, segment = %segment.id, shard = shard.index, %error, "a shard got no footer");
                }
            }
        }
    }
}

/// The majority of the footers on length, stripes and summary; `None` without any footer, or on a tie.
fn pattern_of(looked: &[Looked]) -> Option<ShardFooter> {
    let footers = || looked.iter().filter_map(|shard| shard.footer.as_ref());
    let agrees = |one: &ShardFooter, other: &ShardFooter| {
        one.data_len_bytes == other.data_len_bytes
            && one.stripes == other.stripes
            && one.summary == other.summary
    };
    let votes = |footer: &ShardFooter| footers().filter(|other| agrees(footer, other)).count();
    let best = footers().max_by_key(|footer| votes(footer))?;
    let is_tied = footers().any(|other| !agrees(best, other) && votes(other) == votes(best));
    (!is_tied).then(|| best.clone())
}

/// Whether units form one stripe: those beyond the first N follow from these.
fn is_one_stripe(segment: &Segment, units: &[(u8, Bytes)], len: usize) -> bool {
    let data = usize::from(segment.code.data());
    let Some((sources, rest)) = units.split_at_checked(data) else {
        return true;
    };
    let wanted: Vec<u8> = rest.iter().map(|(index, _)| *index).collect();
    if wanted.is_empty() {
        return true;
    }
    let computed = decode(segment, sources, &wanted, len);
    computed.is_some_and(|computed| computed.iter().eq(rest.iter().map(|(_, unit)| unit)))
}
