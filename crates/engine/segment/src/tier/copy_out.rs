//! Offload: the copy of a segment into a tier.
//!
//! Owns: the contents of the copy, its verification, the step from shards to object. Must not know: which segments go
//! and when; how the metadata stores the place of a segment. Invariant: local shards are deleted only after the caller
//! has made durable that the segment is in the tier. The caller can do that only for an object that was read back and
//! matches the shards' footers.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cairn_base::planted::{self, Bug};
use cairn_base::{PoolId, SegmentId, TierId, VolumeId, crc32c_append};
use cairn_formats::metadata::RemoteSegment;
use cairn_formats::pointer::BLOCK_BYTES;
use cairn_formats::tier_object::{
    OBJECT_CHECKSUM_UNIT_BYTES, ObjectId, ObjectTrailer, encode_trailer,
};
use cairn_shard::{CHECKSUM_UNIT_BYTES, ShardFooter, ShardName, ShardService};

use super::read::Compare;
use super::{PART_DEADLINE, PART_LEN_BYTES, REQUEST_DEADLINE, Tier, TierError, TierUpload};
use crate::error::SegmentError;
use crate::life::Segment;
use crate::pace::Pace;
use crate::store::{SegmentStore, count};
use crate::types::SegmentInfo;
use crate::volume::Volume;

/// Bytes of each shard that are read together.
const WINDOW_BYTES: u64 = 1 << 20;

/// Approximate number of bytes read from the disks before the copy yields to other work.
const TURN_BYTES: u64 = 4 << 20;

const _: () = assert!(WINDOW_BYTES.is_multiple_of(CHECKSUM_UNIT_BYTES));

/// Reasons why a segment was not copied to a tier.
#[derive(Debug, thiserror::Error)]
pub enum CopyOutError {
    /// The segment is open, being moved, in a tier already, or gone: nothing can be done now.
    #[error("the segment is in use, in a tier, or gone")]
    NotNow,
    /// Some data shard is missing, or has no footer that covers all of it. A scrub or a rebuild comes first.
    #[error("its shards are not all as they should be: {0}")]
    NotWhole(String),
    /// A crash left the segment without footers, so only its records' own checksums can verify it: the records must be
    /// rewritten.
    #[error("a crash left it without footers")]
    Unsealed,
    /// The tier failed before anything was written there.
    #[error("{0}")]
    NotBegun(TierError),
    /// The tier failed. The object may or may not exist later.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The tier returned other bytes than were written.
    #[error("what was read back differs from byte {0} on")]
    Differs(u64),
}

/// A segment whose complete and verified copy is in a tier, while all readers still use its shards.
///
/// If it is dropped, the metadata may or may not say that the segment is in the tier. Its shards stay, and it is
/// neither moved nor copied until the volume is reopened.
pub struct CopiedOut {
    store: Arc<SegmentStore>,
    volume: Arc<Volume>,
    segment: Arc<Segment>,
    /// The place of the object, for the metadata.
    pub remote: RemoteSegment,
    /// The share of each data shard in the object, for the metadata.
    pub shard_len_bytes: u64,
}

impl CopiedOut {
    /// Finishes the copy after the metadata durably says that the segment is in the tier: readers use the tier, and the
    /// shards are deleted. Shards on missing disks are deleted by the sweep after the next start.
    pub async fn finish(self) {
        let known = SegmentInfo {
            id: self.segment.id,
            code: self.segment.code,
            disks: Vec::new(),
            shard_len_bytes: self.shard_len_bytes,
            sealed: true,
            remote: Some(self.remote),
            media: self.segment.media,
            protection: self.segment.protection,
        };
        let remote = Segment::known(self.segment.volume, self.segment.epoch, known);
        let is_current = {
            let mut segments = self.volume.segments.write();
            let now = segments.get(&self.segment.id);
            let is_current = now.is_some_and(|now| Arc::ptr_eq(now, &self.segment));
            if is_current {
                segments.insert(Arc::new(remote));
            }
            is_current
        };
        // Otherwise it was removed meanwhile, with its shards.
        if is_current {
            self.store.remove_segment(&self.segment).await;
        }
    }

    /// Undoes the copy: the metadata does not say that the segment is in the tier, and never will.
    pub fn abandon(self) {
        self.segment.end_leaving();
    }
}

/// Undoes [`Segment::begin_leaving`] when it is dropped, unless that duty was handed on.
struct Leaving(Option<Arc<Segment>>);

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(segment) = &self.0 {
            segment.end_leaving();
        }
    }
}

impl SegmentStore {
    /// Copies a sealed segment to a tier, as the object of `nonce`, which must be unused, and reads it back. The caller
    /// has durably noted that the object may exist. After this it makes durable that the segment is there, and calls
    /// [`CopiedOut::finish`].
    pub async fn copy_out(
        self: &Arc<Self>,
        (pool, volume, segment): (PoolId, VolumeId, SegmentId),
        (tier, nonce): (TierId, u128),
        pace: &Pace,
    ) -> Result<CopiedOut, CopyOutError> {
        let not_now = |_: SegmentError| CopyOutError::NotNow;
        let volume = self.volume(volume).map_err(not_now)?;
        volume.require_owned().map_err(not_now)?;
        let segment = volume.segment(segment).map_err(not_now)?;
        let to = self.tier(tier).map_err(CopyOutError::NotBegun)?;
        if segment.is_pinned() || !segment.begin_leaving() {
            return Err(CopyOutError::NotNow);
        }
        let mut leaving = Leaving(Some(segment.clone()));
        let _turn = self.tier_copies.acquire().await;
        let shards = self.whole_shards(&segment).await?;
        let object = ObjectId {
            volume: segment.volume,
            segment: segment.id,
            nonce,
        };
        let copy = Copy {
            tier: &to,
            object,
            pool,
            segment: &segment,
            pace,
        };
        let (trailer, object_len_bytes) = copy.write(shards).await?;
        let payload = trailer.payload_len_bytes;
        let verified = copy.verify(&trailer, object_len_bytes).await;
        if !planted::is(Bug::TierCopyNotCompared) {
            verified?;
        }
        // Removed, or in a reopened volume: the copy cannot be used.
        let is_current = self
            .volume(volume.id)
            .is_ok_and(|now| Arc::ptr_eq(&now, &volume));
        if segment.is_removed() || !is_current {
            return Err(CopyOutError::NotNow);
        }
        leaving.0 = None;
        count(&self.counters.copied_out, 1);
        Ok(CopiedOut {
            store: self.clone(),
            volume,
            shard_len_bytes: payload / u64::from(segment.code.data()),
            segment,
            remote: RemoteSegment {
                tier,
                nonce,
                object_len_bytes,
                // The caller fills this in: live bytes are not known here.
                sent_live_bytes: 0,
            },
        })
    }

    /// The data shards of a segment, if all are present, with footers that agree.
    async fn whole_shards(&self, segment: &Segment) -> Result<Vec<ShardReader>, CopyOutError> {
        let mut shards: Vec<ShardReader> = Vec::new();
        for index in 0..segment.code.data() {
            let lacks = |what: &str| CopyOutError::NotWhole(format!("shard {index} {what}"));
            let disk = segment.disk_of(index);
            let disk = disk.and_then(|disk| self.healthy_disk(disk));
            let disk = disk.ok_or_else(|| lacks("is on a disk that is away"))?;
            let name = segment.shard_name(index);
            let stat = disk.stat(name).await;
            let stat = stat.map_err(|error| lacks(&error.to_string()))?;
            let footer = match stat.footer {
                Ok(Some(footer)) => footer,
                Ok(None) => return Err(CopyOutError::Unsealed),
                Err(error) => return Err(lacks(&error.to_string())),
            };
            let agrees = |first: &ShardReader| {
                first.footer.data_len_bytes == footer.data_len_bytes
                    && first.footer.stripes == footer.stripes
                    && first.footer.summary == footer.summary
            };
            if !shards.first().is_none_or(agrees) {
                return Err(lacks("contradicts another one"));
            }
            shards.push(ShardReader {
                disk,
                name,
                footer,
                windows: VecDeque::new(),
            });
        }
        Ok(shards)
    }
}

/// A data shard that is read from beginning to end.
struct ShardReader {
    disk: Arc<dyn ShardService>,
    name: ShardName,
    footer: ShardFooter,
    /// The last windows that were read, with their start. A unit of a stripe is in at most two.
    windows: VecDeque<(u64, Bytes)>,
}

impl ShardReader {
    /// Appends bytes that match the shard's footer to `out`.
    async fn read(&mut self, range: Range<u64>, out: &mut BytesMut) -> Result<(), CopyOutError> {
        let mut at = range.start;
        while at < range.end {
            let start = at - at % WINDOW_BYTES;
            let window = self.window(start).await?;
            let end = range.end.min(start + window.len() as u64);
            let part = window.get((at - start) as usize..(end.max(at) - start) as usize);
            match part {
                Some(part) if !part.is_empty() => out.extend_from_slice(part),
                _ => {
                    return Err(CopyOutError::NotWhole(
                        "its stripes lie behind its data".to_owned(),
                    ));
                }
            }
            at = end;
        }
        Ok(())
    }

    async fn window(&mut self, start: u64) -> Result<Bytes, CopyOutError> {
        if let Some((_, bytes)) = self.windows.iter().find(|(at, _)| *at == start) {
            return Ok(bytes.clone());
        }
        let end = (start + WINDOW_BYTES).min(self.footer.data_len_bytes);
        if start >= end {
            return Ok(Bytes::new());
        }
        let skipped = (start / CHECKSUM_UNIT_BYTES) as usize;
        let checksums = self.footer.checksums.get(skipped..).unwrap_or(&[]);
        let lacks = |what: String| CopyOutError::NotWhole(format!("{}: {what}", self.name));
        let units = (end - start).div_ceil(CHECKSUM_UNIT_BYTES);
        if (checksums.len() as u64) < units {
            return Err(lacks("its footer does not vouch for all of it".to_owned()));
        }
        let read = self.disk.read_checked(self.name, start..end, checksums);
        let read = read.await.map_err(|error| lacks(error.to_string()))?;
        if let Some(damaged) = read.damaged.first() {
            return Err(lacks(format!("byte {} is wrong", damaged.start)));
        }
        if read.bytes.len() as u64 != end - start {
            return Err(lacks("it ends too soon".to_owned()));
        }
        if self.windows.len() == 2 {
            self.windows.pop_front();
        }
        self.windows.push_back((start, read.bytes.clone()));
        Ok(read.bytes)
    }
}

/// One copy of a segment.
struct Copy<'a> {
    tier: &'a Tier,
    object: ObjectId,
    pool: PoolId,
    segment: &'a Segment,
    pace: &'a Pace,
}

/// The part of the copy that is being sent to the tier.
struct Sending<'a> {
    tier: &'a Tier,
    object: ObjectId,
    upload: Box<dyn TierUpload>,
    part: BytesMut,
    sent_bytes: u64,
}

impl Sending<'_> {
    /// Sends the complete parts of the added bytes.
    async fn send_full(&mut self) -> Result<(), TierError> {
        while self.part.len() >= PART_LEN_BYTES {
            let part = self.part.split_to(PART_LEN_BYTES).freeze();
            self.send(part).await?;
        }
        Ok(())
    }

    async fn send(&mut self, part: Bytes) -> Result<(), TierError> {
        let len_bytes = part.len() as u64;
        let writes = &self.tier.counters.writes;
        let request = self.upload.part(part);
        self.tier
            .ask(self.object, PART_DEADLINE, writes, request)
            .await?;
        let written = &self.tier.counters.written_bytes;
        count(written, len_bytes);
        self.sent_bytes += len_bytes;
        Ok(())
    }
}

impl Copy<'_> {
    /// Writes the object; returns its trailer and its length.
    async fn write(&self, shards: Vec<ShardReader>) -> Result<(ObjectTrailer, u64), CopyOutError> {
        let writes = &self.tier.counters.writes;
        let begin = self.tier.store.begin(self.object);
        let upload = self
            .tier
            .ask(self.object, REQUEST_DEADLINE, writes, begin)
            .await
            .map_err(CopyOutError::NotBegun)?;
        let mut sending = Sending {
            tier: self.tier,
            object: self.object,
            upload,
            part: BytesMut::with_capacity(2 * PART_LEN_BYTES),
            sent_bytes: 0,
        };
        let written = self.write_parts(shards, &mut sending).await;
        match written {
            Ok(trailer) => {
                let len_bytes = sending.sent_bytes;
                let finish = sending.upload.finish();
                self.tier
                    .ask(self.object, PART_DEADLINE, writes, finish)
                    .await?;
                Ok((trailer, len_bytes))
            }
            Err(error) => {
                let abort = async {
                    sending.upload.abort().await;
                    Ok(())
                };
                let _ = self
                    .tier
                    .ask(self.object, REQUEST_DEADLINE, writes, abort)
                    .await;
                Err(error)
            }
        }
    }

    async fn write_parts(
        &self,
        mut shards: Vec<ShardReader>,
        sending: &mut Sending<'_>,
    ) -> Result<ObjectTrailer, CopyOutError> {
        let Some(footer) = shards.first().map(|shard| shard.footer.clone()) else {
            return Err(CopyOutError::NotNow);
        };
        let mut units = Units::default();
        let block = u64::from(BLOCK_BYTES);
        let data = u64::from(self.segment.code.data());
        let mut next = 0;
        let mut stripes = footer.stripes.iter().peekable();
        while stripes.peek().is_some() {
            let is_wanted = || !self.segment.is_removed();
            let turn = self.pace.spend_if(TURN_BYTES, is_wanted).await;
            if turn.is_none() || !is_wanted() {
                return Err(CopyOutError::NotNow);
            }
            let from = sending.part.len();
            while sending.part.len() - from < TURN_BYTES as usize
                && let Some(stripe) = stripes.next()
            {
                let start = u64::from(stripe.start_block) * block;
                let end = start + u64::from(stripe.unit_blocks) * block;
                // A record is found at its stripe's place times the number of shards.
                if start != next {
                    let what = "there is a gap between its stripes".to_owned();
                    return Err(CopyOutError::NotWhole(what));
                }
                next = end;
                for shard in &mut shards {
                    shard.read(start..end, &mut sending.part).await?;
                }
            }
            // Not held while waiting for the tier: other work yields to clients through these turns, too.
            drop(turn);
            units.add(sending.part.get(from..).unwrap_or_default());
            sending.send_full().await?;
        }
        let data_len = footer.data_len_bytes.next_multiple_of(block);
        if next != data_len || next == 0 {
            let what = "its stripes are not all of its data".to_owned();
            return Err(CopyOutError::NotWhole(what));
        }
        let trailer = ObjectTrailer {
            pool: self.pool,
            object: self.object,
            data_shards: self.segment.code.data(),
            parity_shards: self.segment.code.parity(),
            payload_len_bytes: next * data,
            summary: footer.summary,
            checksums: units.end(),
        };
        let encoded = self.encoded(&trailer)?;
        sending.part.extend_from_slice(&encoded);
        sending.send_full().await?;
        if !sending.part.is_empty() {
            let last = sending.part.split().freeze();
            sending.send(last).await?;
        }
        Ok(trailer)
    }

    fn encoded(&self, trailer: &ObjectTrailer) -> Result<Vec<u8>, CopyOutError> {
        let encoded = encode_trailer(trailer);
        encoded.map_err(|error| CopyOutError::NotWhole(error.to_string()))
    }

    /// Reads all of the object back, and compares it with checksums computed from the shards in memory.
    async fn verify(
        &self,
        trailer: &ObjectTrailer,
        object_len_bytes: u64,
    ) -> Result<(), CopyOutError> {
        let payload = trailer.payload_len_bytes;
        let compared = self
            .tier
            .compare(self.object, payload, &trailer.checksums, Some(self.pace))
            .await;
        match compared {
            Ok(()) => {}
            Err(Compare::Asked(error)) => return Err(error.into()),
            Err(Compare::Differs(at)) => return Err(CopyOutError::Differs(at)),
        }
        let end = self
            .tier
            .get(self.object, payload..object_len_bytes, PART_DEADLINE)
            .await?;
        match end == self.encoded(trailer)? {
            true => Ok(()),
            false => Err(CopyOutError::Differs(payload)),
        }
    }
}

/// The checksums of the units of a payload that arrives piece by piece.
#[derive(Default)]
struct Units {
    done: Vec<u32>,
    crc: u32,
    filled: usize,
}

impl Units {
    fn add(&mut self, mut bytes: &[u8]) {
        const UNIT: usize = OBJECT_CHECKSUM_UNIT_BYTES as usize;
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(UNIT - self.filled));
            self.crc = crc32c_append(self.crc, part);
            self.filled += part.len();
            if self.filled == UNIT {
                self.done.push(self.crc);
                (self.crc, self.filled) = (0, 0);
            }
            bytes = rest;
        }
    }

    fn end(mut self) -> Vec<u32> {
        if self.filled > 0 {
            self.done.push(self.crc);
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::crc32c;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn units_are_those_of_the_whole(cuts in prop::collection::vec(0_usize..1_500_000, 0..6)) {
            let len: usize = cuts.iter().sum();
            let all: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let mut units = Units::default();
            let mut rest = &all[..];
            for cut in cuts {
                let (part, after) = rest.split_at(cut);
                units.add(part);
                rest = after;
            }
            let want: Vec<u32> = all
                .chunks(OBJECT_CHECKSUM_UNIT_BYTES as usize)
                .map(crc32c)
                .collect();
            prop_assert_eq!(units.end(), want);
        }
    }
}
