//! The kernel of AArch64.

use std::arch::aarch64::*;

use super::Pass;
use crate::field::NIBBLES;

#[target_feature(enable = "neon")]
pub fn multiply<const ROWS: usize>(mut pass: Pass<'_, ROWS>) {
    const STEP: usize = 4;
    let tables = pass.coefficients.map(|rows| {
        rows.map(|value| {
            let (low, high) = NIBBLES[usize::from(value)].split_at(16);
            // SAFETY: both halves have 16 bytes.
            unsafe { (vld1q_u8(low.as_ptr()), vld1q_u8(high.as_ptr())) }
        })
    });
    let low_nibbles = vdupq_n_u8(15);
    let mut at = 0;
    while at + STEP * 16 <= pass.len_bytes {
        let mut sums = [[vdupq_n_u8(0); STEP]; ROWS];
        for (source, tables) in pass.sources.iter().zip(&tables) {
            // SAFETY: every source has `len_bytes` bytes, and STEP * 16 of them follow `at`.
            let vectors: [uint8x16_t; STEP] =
                std::array::from_fn(|i| unsafe { vld1q_u8(source.as_ptr().add(at + i * 16)) });
            let low = vectors.map(|vector| vandq_u8(vector, low_nibbles));
            let high = vectors.map(|vector| vshrq_n_u8::<4>(vector));
            for (sum, (table_low, table_high)) in sums.iter_mut().zip(tables) {
                for (i, sum) in sum.iter_mut().enumerate() {
                    let product = veorq_u8(
                        vqtbl1q_u8(*table_low, low[i]),
                        vqtbl1q_u8(*table_high, high[i]),
                    );
                    *sum = veorq_u8(*sum, product);
                }
            }
        }
        for (out, sum) in pass.outs.iter_mut().zip(sums) {
            for (i, vector) in sum.into_iter().enumerate() {
                // SAFETY: every output has `len_bytes` bytes, and STEP * 16 of them follow `at`.
                unsafe { vst1q_u8(out.as_mut_ptr().add(at + i * 16), vector) }
            }
        }
        at += STEP * 16;
    }
    pass.finish_bytewise(at);
}
