//! Reads of segments that are in a tier.
//!
//! Owns: the place of a record in an object, the checks of a read, its retries.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_base::{VolumeId, crc32c};
use cairn_formats::metadata::RemoteSegment;
use cairn_formats::pointer::{Location, RecordPointer};
use cairn_formats::summary::decode_summary_place;
use cairn_formats::tier_object::{
    OBJECT_CHECKSUM_UNIT_BYTES, OBJECT_TRAILER_LEN_BYTES_MAX, ObjectId, ObjectTrailer,
    decode_trailer,
};

use super::{PART_DEADLINE, PART_LEN_BYTES, READ_ATTEMPTS_MAX, REQUEST_DEADLINE, RETRY_PAUSE};
use super::{Tier, TierError};
use crate::error::{Result, SegmentError};
use crate::life::Segment;
use crate::pace::Pace;
use crate::read::Check;
use crate::store::{SegmentStore, count};

impl Segment {
    pub(crate) fn object_id(&self, remote: &RemoteSegment) -> ObjectId {
        ObjectId {
            volume: self.volume,
            segment: self.id,
            nonce: remote.nonce,
        }
    }

    /// Bytes of the object before its trailer.
    pub(crate) fn payload_len_bytes(&self) -> u64 {
        self.shard_len_bytes
            .saturating_mul(u64::from(self.code.data()))
    }
}

/// Range in the object of the `stored` bytes of a record: the units of a stripe follow one another.
fn object_range(segment: &Segment, location: &Location, stored: &Range<u32>) -> Range<u64> {
    let stripe = location
        .stripe_offset_bytes()
        .saturating_mul(u64::from(segment.code.data()));
    let start = stripe.saturating_add(u64::from(location.offset_bytes));
    let at = |offset: u32| start.saturating_add(u64::from(offset));
    at(stored.start)..at(stored.end)
}

impl SegmentStore {
    /// The verified stored bytes that adjacent `checks` cover, from the object of a segment.
    pub(crate) async fn fetch_remote(
        &self,
        segment: &Segment,
        remote: &RemoteSegment,
        pointer: &RecordPointer,
        checks: &[Check],
    ) -> Result<Vec<Bytes>> {
        let (Some(first), Some(last)) = (checks.first(), checks.last()) else {
            return Ok(Vec::new());
        };
        let stored = first.stored.start..last.stored.end;
        let range = object_range(segment, &pointer.location, &stored);
        if range.end > segment.payload_len_bytes() {
            return Err(SegmentError::BadPointer {
                detail: format!("object of segment {} has no such place", segment.id),
            });
        }
        let is_good = |bytes: &Bytes| {
            checks.iter().all(|check| {
                let start = (check.stored.start - stored.start) as usize;
                let part = bytes.get(start..start + check.stored.len());
                part.is_some_and(|part| crc32c(part) == check.checksum)
            })
        };
        let bytes = self.get_checked(segment, remote, range, is_good).await?;
        Ok(vec![bytes])
    }

    /// Bytes of an object that are `is_good`, with retries.
    async fn get_checked(
        &self,
        segment: &Segment,
        remote: &RemoteSegment,
        range: Range<u64>,
        is_good: impl Fn(&Bytes) -> bool,
    ) -> Result<Bytes> {
        let fail = |is_lost: bool, detail: String| SegmentError::Tier {
            volume: segment.volume,
            segment: segment.id,
            tier: remote.tier,
            is_lost,
            detail,
        };
        let tier = self
            .tier(remote.tier)
            .map_err(|error| fail(false, error.to_string()))?;
        let object = segment.object_id(remote);
        let mut pause = RETRY_PAUSE;
        for attempt in 1..=READ_ATTEMPTS_MAX {
            let got = match tier.require_there() {
                Ok(()) => tier.get(object, range.clone(), REQUEST_DEADLINE).await,
                Err(error) => return Err(fail(false, error.to_string())),
            };
            let error = match got {
                Ok(bytes) if is_good(&bytes) => {
                    count(&self.counters.remote_reads, 1);
                    count(&self.counters.remote_read_bytes, bytes.len() as u64);
                    return Ok(bytes);
                }
                Ok(_) => {
                    tier.counters.wrong.fetch_add(1, Ordering::Relaxed);
                    fail(true, "what came is not what was written there".to_owned())
                }
                Err(error) => {
                    let is_lost = matches!(error, TierError::NotFound(_));
                    fail(is_lost, error.to_string())
                }
            };
            // The object may be gone because its segment is.
            if attempt == READ_ATTEMPTS_MAX || segment.is_removed() {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "a read from a tier is tried again");
            self.env.clock.sleep(pause).await;
            pause *= 2;
        }
        Err(fail(false, "it was not tried".to_owned()))
    }

    /// The trailer of a segment's object.
    async fn trailer(&self, segment: &Segment, remote: &RemoteSegment) -> Result<ObjectTrailer> {
        let payload_len_bytes = segment.payload_len_bytes();
        let range = payload_len_bytes..remote.object_len_bytes;
        let fail = |detail: &str| SegmentError::Tier {
            volume: segment.volume,
            segment: segment.id,
            tier: remote.tier,
            is_lost: true,
            detail: detail.to_owned(),
        };
        if range.is_empty() || range.end - range.start > OBJECT_TRAILER_LEN_BYTES_MAX {
            return Err(fail("its length makes no sense"));
        }
        let object = segment.object_id(remote);
        let of_this = |bytes: &Bytes| {
            decode_trailer(bytes).is_ok_and(|trailer| {
                trailer.object == object && trailer.payload_len_bytes == payload_len_bytes
            })
        };
        let bytes = self.get_checked(segment, remote, range, of_this).await?;
        decode_trailer(&bytes).map_err(|error| fail(&error.to_string()))
    }

    /// Place of the summary of a segment in a tier. `None`: it has none.
    pub(crate) async fn remote_summary_place(
        &self,
        segment: &Segment,
        remote: &RemoteSegment,
    ) -> Result<Option<Vec<RecordPointer>>> {
        let trailer = self.trailer(segment, remote).await?;
        Ok(decode_summary_place(segment.id, &trailer.summary))
    }

    /// Reads the whole object of a segment, compares it with its checksums, and returns its length. A segment that is
    /// in no tier, or gone, has none. Fails with `Tier` if something is wrong, missing or away.
    pub async fn verify_object(
        self: &Arc<Self>,
        volume: VolumeId,
        segment: cairn_base::SegmentId,
        pace: &Pace,
    ) -> Result<u64> {
        let opened = self.volume(volume)?;
        let Ok(segment) = opened.segment(segment) else {
            return Ok(0);
        };
        let Some(remote) = segment.remote else {
            return Ok(0);
        };
        let _turn = self.tier_copies.acquire().await;
        let checked = async {
            let trailer = self.trailer(&segment, &remote).await?;
            let tier = self.tier(remote.tier);
            let object = segment.object_id(&remote);
            let fail = |error: TierError| SegmentError::Tier {
                volume: segment.volume,
                segment: segment.id,
                tier: remote.tier,
                is_lost: !matches!(error, TierError::Failed(_)),
                detail: error.to_string(),
            };
            let tier = tier.map_err(fail)?;
            let payload = trailer.payload_len_bytes;
            tier.compare(object, payload, &trailer.checksums, Some(pace))
                .await
                .map_err(|error| match error {
                    Compare::Asked(error) => fail(error),
                    Compare::Differs(at) => SegmentError::Tier {
                        volume: segment.volume,
                        segment: segment.id,
                        tier: remote.tier,
                        is_lost: true,
                        detail: format!(
                            "from byte {at} of the object on it is not what was written"
                        ),
                    },
                })?;
            Ok(remote.object_len_bytes)
        };
        match checked.await {
            Err(_) if segment.is_removed() => Ok(0),
            checked => checked,
        }
    }
}

/// Reasons why an object does not match the written bytes.
#[derive(Debug)]
pub(super) enum Compare {
    Asked(TierError),
    /// Offset of the first differing byte.
    Differs(u64),
}

impl Tier {
    /// Reads the payload of an object and compares it with the checksums of its units.
    pub(super) async fn compare(
        &self,
        object: ObjectId,
        payload_len_bytes: u64,
        checksums: &[u32],
        pace: Option<&Pace>,
    ) -> std::result::Result<(), Compare> {
        const _: () = assert!((PART_LEN_BYTES as u64).is_multiple_of(OBJECT_CHECKSUM_UNIT_BYTES));
        let mut units = checksums.iter();
        let mut start = 0;
        while start < payload_len_bytes {
            let end = (start + PART_LEN_BYTES as u64).min(payload_len_bytes);
            if let Some(pace) = pace {
                // Not held while waiting for the tier: other work yields to clients through these turns, too.
                drop(pace.spend(end - start).await);
            }
            let bytes = self
                .get(object, start..end, PART_DEADLINE)
                .await
                .map_err(Compare::Asked)?;
            let mut at = start;
            for unit in bytes.chunks(OBJECT_CHECKSUM_UNIT_BYTES as usize) {
                if units.next() != Some(&crc32c(unit)) {
                    self.counters.wrong.fetch_add(1, Ordering::Relaxed);
                    return Err(Compare::Differs(at));
                }
                at += unit.len() as u64;
            }
            start = end;
        }
        Ok(())
    }
}
