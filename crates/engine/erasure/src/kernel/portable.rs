//! Multiplication eight bytes at a time in a word. Safe code, and the reference for the others.

use super::{COLUMN_COUNT_MAX, Pass};
use crate::field;

/// Words handled together; enough for a compiler to use vectors.
const WORD_COUNT: usize = 4;
const BLOCK_BYTES: usize = WORD_COUNT * 8;

type Block = [u64; WORD_COUNT];

pub fn multiply<const ROWS: usize>(mut pass: Pass<'_, ROWS>) {
    let masks = masks(&pass.coefficients);
    let mut at = 0;
    while at + BLOCK_BYTES <= pass.len_bytes {
        let mut sums = [[0; WORD_COUNT]; ROWS];
        for (source, masks) in pass.sources.iter().zip(&masks) {
            let mut power = load(&source[at..at + BLOCK_BYTES]);
            for masks in masks {
                for (sum, mask) in sums.iter_mut().zip(masks) {
                    for (word, power) in sum.iter_mut().zip(power) {
                        *word ^= power & mask;
                    }
                }
                power = power.map(double);
            }
        }
        for (out, sum) in pass.outs.iter_mut().zip(sums) {
            let block = &mut out[at..at + BLOCK_BYTES];
            for (bytes, word) in block.chunks_exact_mut(8).zip(sum) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        at += BLOCK_BYTES;
    }
    pass.finish_bytewise(at);
}

/// By source, bit of the coefficient and output: all ones if the bit is set.
fn masks<const ROWS: usize>(
    coefficients: &[[u8; ROWS]; COLUMN_COUNT_MAX],
) -> [[[u64; ROWS]; 8]; COLUMN_COUNT_MAX] {
    coefficients.map(|rows| {
        std::array::from_fn(|bit| rows.map(|value| u64::from(value >> bit & 1).wrapping_neg()))
    })
}

fn load(bytes: &[u8]) -> Block {
    let mut block = [0; WORD_COUNT];
    for (word, bytes) in block.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut array = [0; 8];
        array.copy_from_slice(bytes);
        *word = u64::from_le_bytes(array);
    }
    block
}

/// Each byte times 2: shifted, and 0x1d added where a bit fell out.
fn double(word: u64) -> u64 {
    let carries = word >> 7 & 0x0101_0101_0101_0101;
    let shifted = word << 1 & 0xfefe_fefe_fefe_fefe;
    // Shifts instead of a multiplication by 0x1d: SSE2 has none for 64-bit lanes.
    shifted ^ carries ^ carries << 2 ^ carries << 3 ^ carries << 4
}

pub fn multiply_bytewise<const ROWS: usize>(pass: &mut Pass<'_, ROWS>, from: usize) {
    for at in from..pass.len_bytes {
        let mut sums = [0; ROWS];
        for (source, coefficients) in pass.sources.iter().zip(&pass.coefficients) {
            for (sum, coefficient) in sums.iter_mut().zip(coefficients) {
                *sum ^= field::multiply(*coefficient, source[at]);
            }
        }
        for (out, sum) in pass.outs.iter_mut().zip(sums) {
            out[at] = sum;
        }
    }
}
