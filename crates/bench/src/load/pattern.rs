//! Data that no server can compress or deduplicate, and that anyone can make again.
//!
//! Owns: the pseudo-random sequence, which is that of `nfsload`.
//! Must not know: files, requests.

/// Data is made unique once in so many bytes, the smallest unit any server deduplicates by.
const STAMP_EVERY_BYTES: usize = 4096;
const STAMP_LEN_BYTES: usize = 16;
/// 2^64 divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// xorshift64*.
pub fn mix(mut word: u64) -> u64 {
    word ^= word >> 12;
    word ^= word << 25;
    word ^= word >> 27;
    word.wrapping_mul(0x2545_F491_4F6C_DD1D)
}

/// Fills whole words of `buffer` with what follows from `seed`; up to 7 bytes at the end stay.
pub fn fill(buffer: &mut [u8], seed: u64) {
    let mut state = seed | 1;
    for word in buffer.chunks_exact_mut(8) {
        state = mix(state.wrapping_add(STEP));
        word.copy_from_slice(&state.to_le_bytes());
    }
}

/// Whether `buffer` is what [`fill`] makes of `seed`.
pub fn is_filled(buffer: &[u8], seed: u64) -> bool {
    let mut state = seed | 1;
    buffer.chunks_exact(8).all(|word| {
        state = mix(state.wrapping_add(STEP));
        word == state.to_le_bytes()
    })
}

/// Makes a block unlike all others by a few bytes here and there, so that the load spends its time
/// sending.
pub fn stamp(buffer: &mut [u8], place: u64, turn: u64) {
    for (chunk, index) in buffer.chunks_mut(STAMP_EVERY_BYTES).zip(0u64..) {
        let Some(stamp) = chunk.get_mut(..STAMP_LEN_BYTES) else {
            return;
        };
        let offset = index * STAMP_EVERY_BYTES as u64;
        let (first, second) = stamp.split_at_mut(STAMP_LEN_BYTES / 2);
        first.copy_from_slice(&mix(place.wrapping_add(offset + 1)).to_le_bytes());
        second.copy_from_slice(&mix(turn.wrapping_add(1)).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with `nfsload`'s `fill`.
    #[test]
    fn is_the_sequence_of_nfsload() {
        let mut buffer = [0; 24];
        let seed = 3 << 40 | 1 << 20;
        fill(&mut buffer, seed);
        let words: Vec<u64> = buffer
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        let want = [
            0xf95c_f861_3b52_8a3f,
            0x1aea_8628_0312_693e,
            0xaa92_d644_2bb5_0141,
        ];
        assert_eq!(words, want);
        assert!(is_filled(&buffer, seed));
        assert!(!is_filled(&buffer, seed + 2));
        buffer[23] ^= 1;
        assert!(!is_filled(&buffer, seed));
    }

    #[test]
    fn stamps_differ_by_place_and_turn() {
        let stamped = |place, turn| {
            let mut block = vec![0u8; 8192];
            stamp(&mut block, place, turn);
            block
        };
        assert_ne!(stamped(0, 0), stamped(1, 0));
        assert_ne!(stamped(0, 0), stamped(0, 1));
        let block = stamped(0, 0);
        assert_ne!(block[..4096], block[4096..]);
        // Too short for one: left alone.
        stamp(&mut [0; 15], 0, 0);
    }
}
