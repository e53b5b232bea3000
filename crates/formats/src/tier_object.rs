//! The end of an object that a segment's bytes are in, in a tier. Layout: docs/reference/formats/tier.md.
//!
//! Owns: what the trailer says, its limits, its encoding; the key of an object.
//! Must not know: how objects are written and read, what records are in one.
//!
//! An object is its payload, then this trailer. The payload has the bytes of all data shards, stripe by stripe, without
//! parity: a stripe at block `b` of each of `n` data shards begins at byte `b * 4096 * n`, and its units follow one
//! another. So a record, which lies in the units of one stripe, is one range of the object.

use cairn_base::{PoolId, SegmentId, VolumeId, crc32c};

use crate::FormatError;
use crate::fields::Fields;
use crate::shard::footer::{SHARD_CAPACITY_BYTES_MAX, SUMMARY_LEN_BYTES_MAX};

/// The trailer has one CRC32C per so many bytes of the payload.
pub const OBJECT_CHECKSUM_UNIT_BYTES: u64 = 1 << 20;
/// Most data shards of a segment.
const DATA_SHARDS_MAX: u8 = 16;
pub const OBJECT_PAYLOAD_LEN_BYTES_MAX: u64 = SHARD_CAPACITY_BYTES_MAX * DATA_SHARDS_MAX as u64;
/// Of the format.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"CAIRNTOB";
const HEAD_LEN_BYTES: usize = 76;
const CRC_LEN_BYTES: usize = 4;
/// No trailer is longer.
pub const OBJECT_TRAILER_LEN_BYTES_MAX: u64 = (HEAD_LEN_BYTES + CRC_LEN_BYTES) as u64
    + SUMMARY_LEN_BYTES_MAX as u64
    + OBJECT_PAYLOAD_LEN_BYTES_MAX.div_ceil(OBJECT_CHECKSUM_UNIT_BYTES) * 4;

/// Names one object of a tier for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    pub volume: VolumeId,
    pub segment: SegmentId,
    /// Random: no key is ever written twice.
    pub nonce: u128,
}

/// What the keys of all objects of a pool begin with, behind the tier's own prefix. Ends without a slash.
pub fn pool_prefix(pool: PoolId) -> String {
    format!("{pool}")
}

/// What the keys of all objects of a volume begin with, behind the tier's own prefix. Ends without a slash.
pub fn volume_prefix(pool: PoolId, volume: VolumeId) -> String {
    format!("{}/{:08x}", pool_prefix(pool), volume.0)
}

/// The key of an object, behind the tier's own prefix.
pub fn object_key(pool: PoolId, object: &ObjectId) -> String {
    format!(
        "{}/{:016x}-{:032x}",
        volume_prefix(pool, object.volume),
        object.segment.0,
        object.nonce
    )
}

/// What an object says of itself, behind its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectTrailer {
    pub pool: PoolId,
    pub object: ObjectId,
    /// Of the code that the segment had.
    pub data_shards: u8,
    pub parity_shards: u8,
    pub payload_len_bytes: u64,
    /// Where in the segment its summary is, as the shards' footers said.
    pub summary: Vec<u8>,
    /// CRC32C of each [`OBJECT_CHECKSUM_UNIT_BYTES`] of the payload; the last may be of fewer bytes.
    pub checksums: Vec<u32>,
}

impl ObjectTrailer {
    fn check(&self) -> Result<(), FormatError> {
        if !(1..=DATA_SHARDS_MAX).contains(&self.data_shards) {
            return Err(FormatError::Field("code"));
        }
        let units = self.payload_len_bytes.div_ceil(OBJECT_CHECKSUM_UNIT_BYTES);
        if self.payload_len_bytes > OBJECT_PAYLOAD_LEN_BYTES_MAX
            || self.checksums.len() as u64 != units
        {
            return Err(FormatError::Field("payload length"));
        }
        if self.summary.len() > SUMMARY_LEN_BYTES_MAX {
            return Err(FormatError::Field("summary length"));
        }
        Ok(())
    }
}

/// The bytes of a trailer. Fails with `Field` when it contradicts itself.
pub fn encode_trailer(trailer: &ObjectTrailer) -> Result<Vec<u8>, FormatError> {
    trailer.check()?;
    let mut out = Vec::with_capacity(
        HEAD_LEN_BYTES + trailer.summary.len() + 4 * trailer.checksums.len() + CRC_LEN_BYTES,
    );
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[trailer.data_shards, trailer.parity_shards, 0, 0]);
    out.extend_from_slice(&trailer.pool.0.to_le_bytes());
    out.extend_from_slice(&trailer.object.nonce.to_le_bytes());
    out.extend_from_slice(&trailer.object.segment.0.to_le_bytes());
    out.extend_from_slice(&trailer.payload_len_bytes.to_le_bytes());
    out.extend_from_slice(&trailer.object.volume.0.to_le_bytes());
    // Both fit: `check` bounds them.
    out.extend_from_slice(&(trailer.summary.len() as u32).to_le_bytes());
    out.extend_from_slice(&(trailer.checksums.len() as u32).to_le_bytes());
    out.extend_from_slice(&trailer.summary);
    for checksum in &trailer.checksums {
        out.extend_from_slice(&checksum.to_le_bytes());
    }
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(out)
}

/// Reads a trailer, which all of `bytes` must be.
pub fn decode_trailer(bytes: &[u8]) -> Result<ObjectTrailer, FormatError> {
    let (body, crc) = bytes
        .split_last_chunk::<CRC_LEN_BYTES>()
        .ok_or(FormatError::Truncated)?;
    let mut fields = Fields(body);
    if fields.take::<8>()? != MAGIC {
        return Err(FormatError::Magic);
    }
    if crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(FormatError::Checksum);
    }
    let version = fields.u32()?;
    if version != VERSION {
        return Err(FormatError::Version {
            found: version,
            newest: VERSION,
        });
    }
    let [data_shards, parity_shards, zero, zeros] = fields.take::<4>()?;
    if (zero, zeros) != (0, 0) {
        return Err(FormatError::Field("padding"));
    }
    let pool = PoolId(u128::from_le_bytes(fields.take()?));
    let nonce = u128::from_le_bytes(fields.take()?);
    let segment = SegmentId(fields.u64()?);
    let payload_len_bytes = fields.u64()?;
    let volume = VolumeId(fields.u32()?);
    let summary_len = fields.u32()? as usize;
    let checksum_count = fields.u32()? as usize;
    let (summary, checksums) = fields
        .0
        .split_at_checked(summary_len)
        .ok_or(FormatError::Truncated)?;
    let (checksums, rest) = checksums.as_chunks::<4>();
    if !rest.is_empty() || checksums.len() != checksum_count {
        return Err(FormatError::Field("checksum count"));
    }
    let trailer = ObjectTrailer {
        pool,
        object: ObjectId {
            volume,
            segment,
            nonce,
        },
        data_shards,
        parity_shards,
        payload_len_bytes,
        summary: summary.to_vec(),
        checksums: checksums.iter().copied().map(u32::from_le_bytes).collect(),
    };
    trailer.check()?;
    Ok(trailer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trailer(payload_len_bytes: u64, summary: Vec<u8>) -> ObjectTrailer {
        let units = payload_len_bytes.div_ceil(OBJECT_CHECKSUM_UNIT_BYTES);
        ObjectTrailer {
            pool: PoolId(1 << 100),
            object: ObjectId {
                volume: VolumeId(3),
                segment: SegmentId(4),
                nonce: 5,
            },
            data_shards: 4,
            parity_shards: 2,
            payload_len_bytes,
            summary,
            checksums: (0..units as u32).collect(),
        }
    }

    #[test]
    fn trailers_come_back_or_are_refused() {
        let most = OBJECT_PAYLOAD_LEN_BYTES_MAX;
        let good = [
            trailer(0, Vec::new()),
            trailer(1, vec![1]),
            trailer(OBJECT_CHECKSUM_UNIT_BYTES + 1, vec![7; 100]),
            trailer(most, vec![0; SUMMARY_LEN_BYTES_MAX]),
        ];
        for trailer in &good {
            let bytes = encode_trailer(trailer).unwrap();
            assert!(bytes.len() as u64 <= OBJECT_TRAILER_LEN_BYTES_MAX);
            assert_eq!(decode_trailer(&bytes).as_ref(), Ok(trailer));
        }
        let bytes = encode_trailer(&good[2]).unwrap();
        for len in 0..bytes.len() {
            assert!(decode_trailer(&bytes[..len]).is_err(), "cut at {len}");
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(decode_trailer(&flipped).is_err(), "flipped at {at}");
        }
        let bad = [
            trailer(most + 1, Vec::new()),
            trailer(5, vec![0; SUMMARY_LEN_BYTES_MAX + 1]),
            ObjectTrailer {
                data_shards: 0,
                ..trailer(5, Vec::new())
            },
            ObjectTrailer {
                data_shards: 17,
                ..trailer(5, Vec::new())
            },
            ObjectTrailer {
                checksums: Vec::new(),
                ..trailer(5, Vec::new())
            },
        ];
        for trailer in &bad {
            assert!(matches!(
                encode_trailer(trailer),
                Err(FormatError::Field(_))
            ));
        }
    }

    #[test]
    fn keys_are_told_apart_by_all_that_is_in_them() {
        let object = trailer(0, Vec::new()).object;
        assert_eq!(
            object_key(PoolId(0xab), &object),
            "000000000000000000000000000000ab/00000003/0000000000000004-00000000000000000000000000000005"
        );
        assert!(object_key(PoolId(9), &object).starts_with(&volume_prefix(PoolId(9), VolumeId(3))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_trailer(&bytes);
        }
    }
}
