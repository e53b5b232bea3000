//! CRC32C (Castagnoli, RFC 3720 appendix B.4), the checksum of everything that is stored.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Continues a CRC32C: `crc32c_append(crc32c(a), b) == crc32c(a ++ b)`.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // The state of a CRC32C is its value with all bits inverted.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// Joins two CRC32Cs: `crc32c_combine(crc32c(a), crc32c(b), b.len()) == crc32c(a ++ b)`.
///
/// It takes about as long as computing the CRC32C of 300 KiB does.
pub fn crc32c_combine(first: u32, second: u32, second_len_bytes: u64) -> u32 {
    crc_fast::checksum_combine(
        CrcAlgorithm::Crc32Iscsi,
        u64::from(first),
        u64::from(second),
        second_len_bytes,
    ) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One bit at a time, from the definition.
    fn reference(bytes: &[u8]) -> u32 {
        let mut crc = !0u32;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            }
        }
        !crc
    }

    #[test]
    fn agrees_with_the_definition() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..70_000u32).map(|at| ((at * 31) >> 3) as u8).collect();
        for len in [0, 1, 2, 7, 8, 15, 63, 64, 255, 1023, 4096, 32_768, 65_537] {
            let (first, second) = bytes[..len].split_at(len / 3);
            assert_eq!(crc32c(&bytes[..len]), reference(&bytes[..len]), "{len}");
            let first_crc = crc32c(first);
            assert_eq!(
                crc32c_append(first_crc, second),
                crc32c(&bytes[..len]),
                "{len}"
            );
            let joined = crc32c_combine(first_crc, crc32c(second), second.len() as u64);
            assert_eq!(joined, crc32c(&bytes[..len]), "{len}");
        }
    }
}
