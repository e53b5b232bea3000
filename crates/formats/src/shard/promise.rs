//! The promise of a disk to a volume's owner: owners of lower epochs change nothing here any more.
//! Layout: docs/reference/formats/shard.md.
//!
//! The file is two copies of one block (see `copies`). It is made under another name and renamed. From then on its
//! copies are overwritten one after the other, because that needs no space: a full disk must be able to promise, or
//! nothing could be deleted there. A crash in between costs at most the copy that was being written; the other one has
//! the old promise, or the new one.

use cairn_base::{AlignedBuf, Epoch, VolumeId, crc32c};

use crate::FormatError;
use crate::copies::{self, COPY_ALIGN_BYTES, Picked};
use crate::fields::Fields;

pub const PROMISE_FILE_LEN_BYTES: usize = 2 * PROMISE_LEN_BYTES;
/// Of one copy.
pub const PROMISE_LEN_BYTES: usize = COPY_ALIGN_BYTES;

const MAGIC: [u8; 8] = *b"CAIRNPRM";
const VERSION: u32 = 1;
const CRC_OFFSET: usize = PROMISE_LEN_BYTES - 4;

/// Whatever has a lower epoch than this is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    pub volume: VolumeId,
    pub epoch: Epoch,
}

/// The promises of a disk; beside the folders of shards, in which there is nothing else.
pub const PROMISES_FOLDER: &str = "shard-promises";

pub fn promise_path(volume: VolumeId) -> String {
    format!("{PROMISES_FOLDER}/{:08x}", volume.0)
}

/// Where it is made the first time.
pub fn promise_path_new(volume: VolumeId) -> String {
    format!("{PROMISES_FOLDER}/{:08x}.new", volume.0)
}

/// The bytes of a whole file: either half is a copy.
pub fn encode_promise(promise: &Promise) -> AlignedBuf {
    AlignedBuf::copy_of(&copies::twice(encode_copy(promise)))
}

fn encode_copy(promise: &Promise) -> Vec<u8> {
    let mut fields = Vec::with_capacity(PROMISE_LEN_BYTES);
    fields.extend_from_slice(&MAGIC);
    fields.extend_from_slice(&VERSION.to_le_bytes());
    fields.extend_from_slice(&promise.volume.0.to_le_bytes());
    fields.extend_from_slice(&promise.epoch.0.to_le_bytes());
    fields.resize(CRC_OFFSET, 0);
    let crc = crc32c(&fields);
    fields.extend_from_slice(&crc.to_le_bytes());
    fields
}

/// Reads a whole file.
pub fn decode_promise(file: &[u8]) -> Result<Picked<Promise, FormatError>, FormatError> {
    let copies = copies::split(file).ok_or(FormatError::Truncated)?;
    pick_promise(copies.map(decode_promise_copy), |why| {
        matches!(why, FormatError::Version { .. })
    })
}

/// Which of the two copies counts: the higher epoch. One of another version decides: a newer program wrote the file.
pub fn pick_promise<E: From<FormatError> + std::fmt::Display>(
    copies: [Result<Promise, E>; 2],
    is_version: impl Fn(&E) -> bool,
) -> Result<Picked<Promise, E>, E> {
    let differ = || FormatError::Field("second copy").into();
    copies::pick(copies, |promise| promise.epoch.0, is_version, differ)
}

/// Reads one of the two copies. Magic, version and checksum have the same place in every version.
pub fn decode_promise_copy(copy: &[u8]) -> Result<Promise, FormatError> {
    let bytes: &[u8; PROMISE_LEN_BYTES] = copy.try_into().map_err(|_| FormatError::Truncated)?;
    let (fields, crc) = bytes
        .split_last_chunk::<4>()
        .ok_or(FormatError::Truncated)?;
    let mut left = Fields(fields);
    if left.take::<8>()? != MAGIC {
        return Err(FormatError::Magic);
    }
    if u32::from_le_bytes(*crc) != crc32c(fields) {
        return Err(FormatError::Checksum);
    }
    let version = left.u32()?;
    if version != VERSION {
        return Err(FormatError::Version {
            found: version,
            newest: VERSION,
        });
    }
    let volume = VolumeId(left.u32()?);
    let epoch = Epoch(u64::from_le_bytes(left.take()?));
    Ok(Promise { volume, epoch })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: Promise = Promise {
        volume: VolumeId(10),
        epoch: Epoch(u64::MAX),
    };

    #[test]
    fn a_flipped_bit_costs_one_copy_and_is_noticed() {
        let file = encode_promise(&PROMISE);
        assert_eq!(file.len(), PROMISE_FILE_LEN_BYTES);
        let good = decode_promise(&file).unwrap();
        assert_eq!((good.value, good.bad), (PROMISE, None));
        for bit in 0..file.len() * 8 {
            let mut bad = file.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let picked = decode_promise(&bad).unwrap();
            let number = if bit / 8 < PROMISE_LEN_BYTES { 1 } else { 2 };
            assert_eq!(picked.value, PROMISE, "bit {bit}");
            assert_eq!(picked.bad.map(|bad| bad.number), Some(number), "bit {bit}");
        }
    }

    #[test]
    fn between_the_two_writes_the_higher_epoch_counts() {
        let at = |epoch| {
            let epoch = Epoch(epoch);
            encode_promise(&Promise { epoch, ..PROMISE })
        };
        let (old, new) = (at(3), at(4));
        let half = PROMISE_LEN_BYTES;
        for (name, first, second) in [("first", &new, &old), ("second", &old, &new)] {
            let file = [&first[..half], &second[half..]].concat();
            let picked = decode_promise(&file).unwrap();
            assert_eq!(picked.value.epoch, Epoch(4), "{name}");
            // The one that is being written is torn.
            for torn_at in [8, 512, half - 4] {
                let mut torn = [&old[..], &[]].concat();
                let start = if name == "first" { 0 } else { half };
                torn[start..start + torn_at].copy_from_slice(&new[start..start + torn_at]);
                torn[start + half - 1] ^= 1;
                let picked = decode_promise(&torn).unwrap();
                assert_eq!(picked.value.epoch, Epoch(3), "{name} torn at {torn_at}");
            }
        }
    }

    #[test]
    fn what_is_no_promise_is_refused() {
        let file = encode_promise(&PROMISE);
        for len in [0, 8, 4096, 8191] {
            assert_eq!(decode_promise(&file[..len]), Err(FormatError::Truncated));
        }
        let zeros = vec![0; PROMISE_FILE_LEN_BYTES];
        assert_eq!(decode_promise(&zeros), Err(FormatError::Magic));
        let mut newer = encode_copy(&PROMISE);
        newer[8] = 2;
        let crc = crc32c(&newer[..CRC_OFFSET]);
        newer[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        let want = FormatError::Version {
            found: 2,
            newest: 1,
        };
        assert_eq!(decode_promise(&copies::twice(newer)), Err(want));
    }
}
