//! The kernels of x86-64.

use std::arch::x86_64::*;

use super::{COLUMN_COUNT_MAX, Pass};
use crate::field::{AFFINE, NIBBLES};

/// Multiplication by each coefficient as a bit matrix.
fn matrices<const ROWS: usize>(pass: &Pass<'_, ROWS>) -> [[i64; ROWS]; COLUMN_COUNT_MAX] {
    pass.coefficients
        .map(|rows| rows.map(|value| AFFINE[usize::from(value)].cast_signed()))
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub fn multiply_avx512_gfni<const ROWS: usize>(mut pass: Pass<'_, ROWS>) {
    const STEP: usize = 4;
    let matrices = matrices(&pass);
    let mut at = 0;
    while at + STEP * 64 <= pass.len_bytes {
        let mut sums = [[_mm512_setzero_si512(); STEP]; ROWS];
        for (source, matrices) in pass.sources.iter().zip(&matrices) {
            // SAFETY: every source has `len_bytes` bytes, and STEP * 64 of them follow `at`.
            let vectors: [__m512i; STEP] = std::array::from_fn(|i| unsafe {
                _mm512_loadu_si512(source.as_ptr().add(at + i * 64).cast())
            });
            for (sum, matrix) in sums.iter_mut().zip(matrices) {
                let matrix = _mm512_set1_epi64(*matrix);
                for (sum, vector) in sum.iter_mut().zip(vectors) {
                    let product = _mm512_gf2p8affine_epi64_epi8::<0>(vector, matrix);
                    *sum = _mm512_xor_si512(*sum, product);
                }
            }
        }
        for (out, sum) in pass.outs.iter_mut().zip(sums) {
            for (i, vector) in sum.into_iter().enumerate() {
                // SAFETY: every output has `len_bytes` bytes, and STEP * 64 of them follow `at`.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(at + i * 64).cast(), vector) }
            }
        }
        at += STEP * 64;
    }
    while at < pass.len_bytes {
        let count = (pass.len_bytes - at).min(64);
        let mask = u64::MAX >> (64 - count);
        let mut sums = [_mm512_setzero_si512(); ROWS];
        for (source, matrices) in pass.sources.iter().zip(&matrices) {
            // SAFETY: the mask has the `count` bytes that are left; others are not touched.
            let vector = unsafe { _mm512_maskz_loadu_epi8(mask, source.as_ptr().add(at).cast()) };
            for (sum, matrix) in sums.iter_mut().zip(matrices) {
                let matrix = _mm512_set1_epi64(*matrix);
                let product = _mm512_gf2p8affine_epi64_epi8::<0>(vector, matrix);
                *sum = _mm512_xor_si512(*sum, product);
            }
        }
        for (out, sum) in pass.outs.iter_mut().zip(sums) {
            // SAFETY: as for the loads.
            unsafe { _mm512_mask_storeu_epi8(out.as_mut_ptr().add(at).cast(), mask, sum) }
        }
        at += count;
    }
}

#[target_feature(enable = "avx2,gfni")]
pub fn multiply_avx2_gfni<const ROWS: usize>(mut pass: Pass<'_, ROWS>) {
    const STEP: usize = 2;
    let matrices = matrices(&pass);
    let mut at = 0;
    while at + STEP * 32 <= pass.len_bytes {
        let mut sums = [[_mm256_setzero_si256(); STEP]; ROWS];
        for (source, matrices) in pass.sources.iter().zip(&matrices) {
            // SAFETY: every source has `len_bytes` bytes, and STEP * 32 of them follow `at`.
            let vectors: [__m256i; STEP] = std::array::from_fn(|i| unsafe {
                _mm256_loadu_si256(source.as_ptr().add(at + i * 32).cast())
            });
            for (sum, matrix) in sums.iter_mut().zip(matrices) {
                let matrix = _mm256_set1_epi64x(*matrix);
                for (sum, vector) in sum.iter_mut().zip(vectors) {
                    let product = _mm256_gf2p8affine_epi64_epi8::<0>(vector, matrix);
                    *sum = _mm256_xor_si256(*sum, product);
                }
            }
        }
        for (out, sum) in pass.outs.iter_mut().zip(sums) {
            for (i, vector) in sum.into_iter().enumerate() {
                // SAFETY: every output has `len_bytes` bytes, and STEP * 32 of them follow `at`.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at + i * 32).cast(), vector) }
            }
        }
        at += STEP * 32;
    }
    pass.finish_bytewise(at);
}

#[target_feature(enable = "avx2")]
pub fn multiply_avx2<const ROWS: usize>(mut pass: Pass<'_, ROWS>) {
    const STEP: usize = 2;
    let tables = pass.coefficients.map(|rows| {
        rows.map(|value| {
            let table = &NIBBLES[usize::from(value)];
            let (low, high) = table.split_at(16);
            // SAFETY: both halves have 16 bytes.
            let (low, high) = unsafe {
                (
                    _mm_loadu_si128(low.as_ptr().cast()),
                    _mm_loadu_si128(high.as_ptr().cast()),
                )
            };
            (
                _mm256_broadcastsi128_si256(low),
                _mm256_broadcastsi128_si256(high),
            )
        })
    });
    let low_nibbles = _mm256_set1_epi8(15);
    let mut at = 0;
    while at + STEP * 32 <= pass.len_bytes {
        let mut sums = [[_mm256_setzero_si256(); STEP]; ROWS];
        for (source, tables) in pass.sources.iter().zip(&tables) {
            // SAFETY: every source has `len_bytes` bytes, and STEP * 32 of them follow `at`.
            let vectors: [__m256i; STEP] = std::array::from_fn(|i| unsafe {
                _mm256_loadu_si256(source.as_ptr().add(at + i * 32).cast())
            });
            let low = vectors.map(|vector| _mm256_and_si256(vector, low_nibbles));
            let high =
                vectors.map(|vector| _mm256_and_si256(_mm256_srli_epi64::<4>(vector), low_nibbles));
            for (sum, (table_low, table_high)) in sums.iter_mut().zip(tables) {
                for (i, sum) in sum.iter_mut().enumerate() {
                    let product = _mm256_xor_si256(
                        _mm256_shuffle_epi8(*table_low, low[i]),
                        _mm256_shuffle_epi8(*table_high, high[i]),
                    );
                    *sum = _mm256_xor_si256(*sum, product);
                }
            }
        }
        for (out, sum) in pass.outs.iter_mut().zip(sums) {
            for (i, vector) in sum.into_iter().enumerate() {
                // SAFETY: every output has `len_bytes` bytes, and STEP * 32 of them follow `at`.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at + i * 32).cast(), vector) }
            }
        }
        at += STEP * 32;
    }
    pass.finish_bytewise(at);
}
