//! The identity file of a disk: which disk of which pool it is. Layout: docs/reference/formats/shard.md.

use cairn_base::{AlignedBuf, DiskId, PoolId, Timestamp, crc32c};

use crate::FormatError;
use crate::fields::Fields;

/// The identity file, at the top of a disk.
pub const IDENTITY_NAME: &str = "cairn-disk";
/// Where it is written before it is renamed: a crash leaves all of it or none.
pub const IDENTITY_NAME_NEW: &str = "cairn-disk.new";
pub const IDENTITY_LEN_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"CAIRNDSK";
const VERSION: u32 = 1;
const CRC_OFFSET: usize = IDENTITY_LEN_BYTES - 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskIdentity {
    pub pool: PoolId,
    pub disk: DiskId,
    pub created: Timestamp,
}

pub fn encode_identity(identity: &DiskIdentity) -> AlignedBuf {
    let mut fields = Vec::with_capacity(IDENTITY_LEN_BYTES);
    fields.extend_from_slice(&MAGIC);
    fields.extend_from_slice(&VERSION.to_le_bytes());
    fields.extend_from_slice(&[0; 4]);
    fields.extend_from_slice(&identity.pool.0.to_le_bytes());
    fields.extend_from_slice(&identity.disk.0.to_le_bytes());
    fields.extend_from_slice(&identity.created.seconds.to_le_bytes());
    fields.extend_from_slice(&identity.created.nanos.to_le_bytes());
    fields.resize(CRC_OFFSET, 0);
    let crc = crc32c(&fields);
    fields.extend_from_slice(&crc.to_le_bytes());
    AlignedBuf::copy_of(&fields)
}

/// Reads an identity. Magic, version and checksum have the same place in every version.
pub fn decode_identity(bytes: &[u8]) -> Result<DiskIdentity, FormatError> {
    let bytes: &[u8; IDENTITY_LEN_BYTES] = bytes
        .get(..IDENTITY_LEN_BYTES)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(FormatError::Truncated)?;
    let (fields, crc) = bytes
        .split_last_chunk::<4>()
        .ok_or(FormatError::Truncated)?;
    let mut fields_left = Fields(fields);
    if fields_left.take::<8>()? != MAGIC {
        return Err(FormatError::Magic);
    }
    if u32::from_le_bytes(*crc) != crc32c(fields) {
        return Err(FormatError::Checksum);
    }
    let version = fields_left.u32()?;
    if version != VERSION {
        return Err(FormatError::Version {
            found: version,
            newest: VERSION,
        });
    }
    fields_left.take::<4>()?;
    let pool = PoolId(u128::from_le_bytes(fields_left.take()?));
    let disk = DiskId(u128::from_le_bytes(fields_left.take()?));
    let seconds = i64::from_le_bytes(fields_left.take()?);
    let nanos = fields_left.u32()?;
    if nanos >= 1_000_000_000 {
        return Err(FormatError::Field("time"));
    }
    Ok(DiskIdentity {
        pool,
        disk,
        created: Timestamp::new(seconds, nanos),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_damaged_byte_is_noticed() {
        let identity = DiskIdentity {
            pool: PoolId(7),
            disk: DiskId(u128::MAX),
            created: Timestamp::new(-1, 999_999_999),
        };
        let good = encode_identity(&identity);
        assert_eq!(decode_identity(&good), Ok(identity));
        for offset in 0..good.len() {
            let mut bad = good.to_vec();
            bad[offset] ^= 0x10;
            assert!(decode_identity(&bad).is_err(), "byte {offset}");
        }
        for len in [0, 7, 8, 4095] {
            assert_eq!(decode_identity(&good[..len]), Err(FormatError::Truncated));
        }
    }

    /// Version 1 for ever: if this fails, old disks can no longer be read.
    #[test]
    fn bytes_of_version_1_do_not_change() {
        let identity = DiskIdentity {
            pool: PoolId(7),
            disk: DiskId(8),
            created: Timestamp::new(9, 10),
        };
        let bytes = encode_identity(&identity);
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        assert_eq!(
            hex(&bytes[..60]),
            "434149524e44534b0100000000000000070000000000000000000000000000000800000000000000000000000000000009000000000000000a000000"
        );
        assert_eq!(hex(&bytes[CRC_OFFSET..]), "91a4454f");
    }

    #[test]
    fn another_version_is_named() {
        let identity = DiskIdentity {
            pool: PoolId(1),
            disk: DiskId(2),
            created: Timestamp::new(3, 4),
        };
        let mut bytes = encode_identity(&identity).to_vec();
        bytes[8] = 2;
        let crc = crc32c(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        let want = FormatError::Version {
            found: 2,
            newest: 1,
        };
        assert_eq!(decode_identity(&bytes), Err(want));
    }
}
