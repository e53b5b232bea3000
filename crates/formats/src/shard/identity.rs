//! The identity file of a disk: which disk of which pool it is. Layout: docs/reference/formats/shard.md.
//!
//! It is two copies of one block (see `copies`): without it the disk's data cannot be used.

use cairn_base::{AlignedBuf, DiskId, PoolId, Timestamp, crc32c};

use crate::FormatError;
use crate::copies::{self, COPY_ALIGN_BYTES, Picked};
use crate::fields::Fields;

/// The identity file, at the top of a disk.
pub const IDENTITY_NAME: &str = "cairn-disk";
/// Where it is written before it is renamed: a crash leaves all of it or none.
pub const IDENTITY_NAME_NEW: &str = "cairn-disk.new";
pub const IDENTITY_FILE_LEN_BYTES: usize = 2 * IDENTITY_LEN_BYTES;
/// Of one copy.
const IDENTITY_LEN_BYTES: usize = COPY_ALIGN_BYTES;

const MAGIC: [u8; 8] = *b"CAIRNDSK";
const VERSION: u32 = 1;
const CRC_OFFSET: usize = IDENTITY_LEN_BYTES - 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskIdentity {
    pub pool: PoolId,
    pub disk: DiskId,
    pub created: Timestamp,
}

/// The bytes of an identity file.
pub fn encode_identity(identity: &DiskIdentity) -> AlignedBuf {
    AlignedBuf::copy_of(&copies::twice(encode_copy(identity)))
}

fn encode_copy(identity: &DiskIdentity) -> Vec<u8> {
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
    fields
}

/// Reads a whole identity file.
pub fn decode_identity(file: &[u8]) -> Result<Picked<DiskIdentity, FormatError>, FormatError> {
    let copies = copies::split(file).ok_or(FormatError::Truncated)?;
    pick_identity(copies.map(decode_identity_copy), |why| {
        matches!(why, FormatError::Version { .. })
    })
}

/// Which of the two copies counts. One of another version decides: a newer program wrote the file. An identity never
/// changes, so two good copies that differ are none.
pub fn pick_identity<E: From<FormatError> + std::fmt::Display>(
    copies: [Result<DiskIdentity, E>; 2],
    is_version: impl Fn(&E) -> bool,
) -> Result<Picked<DiskIdentity, E>, E> {
    let differ = || FormatError::Field("second copy").into();
    copies::pick(copies, |_| 0, is_version, differ)
}

/// Reads one of the two copies. Magic, version and checksum have the same place in every version.
pub fn decode_identity_copy(copy: &[u8]) -> Result<DiskIdentity, FormatError> {
    let bytes: &[u8; IDENTITY_LEN_BYTES] = copy.try_into().map_err(|_| FormatError::Truncated)?;
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

    const IDENTITY: DiskIdentity = DiskIdentity {
        pool: PoolId(7),
        disk: DiskId(u128::MAX),
        created: Timestamp {
            seconds: -1,
            nanos: 999_999_999,
        },
    };

    #[test]
    fn a_flipped_bit_costs_one_copy_and_is_noticed() {
        let file = encode_identity(&IDENTITY);
        assert_eq!(file.len(), IDENTITY_FILE_LEN_BYTES);
        let good = decode_identity(&file).unwrap();
        assert_eq!((good.value, good.bad), (IDENTITY, None));
        for bit in 0..file.len() * 8 {
            let mut bad = file.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let picked = decode_identity(&bad).unwrap();
            assert_eq!(picked.value, IDENTITY, "bit {bit}");
            let number = if bit / 8 < IDENTITY_LEN_BYTES { 1 } else { 2 };
            assert_eq!(picked.bad.map(|bad| bad.number), Some(number), "bit {bit}");
        }
    }

    #[test]
    fn two_damaged_copies_are_no_identity() {
        let file = encode_identity(&IDENTITY);
        for offset in 0..IDENTITY_LEN_BYTES {
            let mut bad = file.to_vec();
            bad[offset] ^= 0x10;
            bad[file.len() - 1 - offset] ^= 0x10;
            assert!(decode_identity(&bad).is_err(), "byte {offset}");
        }
        for len in [0, 7, 8, 4095, 4096, 8191] {
            assert_eq!(decode_identity(&file[..len]), Err(FormatError::Truncated));
        }
        let other = encode_identity(&DiskIdentity {
            disk: DiskId(1),
            ..IDENTITY
        });
        let mixed = [&file[..IDENTITY_LEN_BYTES], &other[IDENTITY_LEN_BYTES..]].concat();
        let want = FormatError::Field("second copy");
        assert_eq!(decode_identity(&mixed), Err(want));
    }

    #[test]
    fn another_version_is_named() {
        let mut copy = encode_copy(&IDENTITY);
        copy[8] = 2;
        let crc = crc32c(&copy[..CRC_OFFSET]);
        copy[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        let want = FormatError::Version {
            found: 2,
            newest: 1,
        };
        assert_eq!(decode_identity_copy(&copy), Err(want.clone()));
        // Beside a damaged copy, too.
        let mut file = copies::twice(copy);
        file[100] ^= 1;
        assert_eq!(decode_identity(&file), Err(want));
    }
}
