//! The inner loop of coding, once for each kind of processor: outputs = matrix times sources.
//!
//! A kernel makes up to four outputs in one pass, so that each byte of a source is loaded once.
//! All give the same bytes; which one runs is decided by what the processor can do. The loads and
//! stores need no alignment.
//!
//! Why there is `unsafe` here: of 4+2, in the L2 cache of one EPYC core, the safe portable code makes
//! 1.7 GB/s, AVX2 33, AVX-512 with GFNI 75 (`examples/encode_rate`). Stores go through the cache on
//! purpose: parity is checksummed right after it is made.

mod portable;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::sync::OnceLock;

use crate::code::{DATA_COUNT_MAX, PARITY_COUNT_MAX};

const COLUMN_COUNT_MAX: usize = DATA_COUNT_MAX as usize;
const ROW_COUNT_MAX: usize = PARITY_COUNT_MAX as usize;

/// A way to compute, in order of preference from first to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// x86-64: 64 bytes at once, one instruction multiplies by any constant.
    Avx512Gfni,
    /// x86-64: as the first, 32 bytes at once.
    Avx2Gfni,
    /// x86-64: 32 bytes at once by table lookups of nibbles.
    Avx2,
    /// AArch64: 16 bytes at once by table lookups of nibbles.
    Neon,
    /// Any processor: 8 bytes at once in a word, which compilers turn into vectors.
    Portable,
}

impl Kernel {
    pub const ALL: [Kernel; 5] = [
        Kernel::Avx512Gfni,
        Kernel::Avx2Gfni,
        Kernel::Avx2,
        Kernel::Neon,
        Kernel::Portable,
    ];

    /// Whether this processor can run it.
    pub fn is_available(self) -> bool {
        match self {
            Kernel::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512Gfni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("gfni")
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2Gfni => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni")
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[allow(unreachable_patterns, reason = "which are left depends on the target")]
            _ => false,
        }
    }

    /// The kernels that this processor can run, the best first.
    pub fn available() -> impl Iterator<Item = Kernel> {
        Self::ALL.into_iter().filter(|kernel| kernel.is_available())
    }

    /// The best kernel that this processor can run.
    pub fn best() -> Kernel {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().next().unwrap_or(Kernel::Portable))
    }

    /// Sets each of `outs` to the sum of the sources times its row of coefficients.
    ///
    /// Panics if the kernel is not available, or counts or lengths do not match.
    pub(crate) fn multiply(self, rows: &Coefficients, sources: &[&[u8]], outs: &mut [&mut [u8]]) {
        assert!(self.is_available(), "{self} runs on this processor");
        assert_eq!(sources.len(), rows.column_count);
        assert_eq!(outs.len(), rows.row_count);
        let len_bytes = sources.first().map_or(0, |source| source.len());
        assert!(sources.iter().all(|source| source.len() == len_bytes));
        assert!(outs.iter().all(|out| out.len() == len_bytes));
        match outs {
            [] => {}
            [a] => self.multiply_rows(rows, sources, [a]),
            [a, b] => self.multiply_rows(rows, sources, [a, b]),
            [a, b, c] => self.multiply_rows(rows, sources, [a, b, c]),
            [a, b, c, d] => self.multiply_rows(rows, sources, [a, b, c, d]),
            _ => unreachable!("there are at most four rows"),
        }
    }

    fn multiply_rows<const ROWS: usize>(
        self,
        rows: &Coefficients,
        sources: &[&[u8]],
        outs: [&mut [u8]; ROWS],
    ) {
        let pass = Pass::new(rows, sources, outs);
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `multiply` asserted that the processor has AVX-512 F and BW and GFNI.
            Kernel::Avx512Gfni => unsafe { x86::multiply_avx512_gfni(pass) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `multiply` asserted that the processor has AVX2 and GFNI.
            Kernel::Avx2Gfni => unsafe { x86::multiply_avx2_gfni(pass) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `multiply` asserted that the processor has AVX2.
            Kernel::Avx2 => unsafe { x86::multiply_avx2(pass) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: `multiply` asserted that the processor has NEON.
            Kernel::Neon => unsafe { neon::multiply(pass) },
            Kernel::Portable => portable::multiply(pass),
            #[allow(unreachable_patterns, reason = "which are left depends on the target")]
            _ => unreachable!("not available on this target"),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kernel::Avx512Gfni => "avx512-gfni",
            Kernel::Avx2Gfni => "avx2-gfni",
            Kernel::Avx2 => "avx2",
            Kernel::Neon => "neon",
            Kernel::Portable => "portable",
        })
    }
}

/// A matrix of at most 4 rows (outputs) and 16 columns (sources).
pub(crate) struct Coefficients {
    row_count: usize,
    column_count: usize,
    values: [[u8; ROW_COUNT_MAX]; COLUMN_COUNT_MAX],
}

impl Coefficients {
    /// All zeros.
    pub fn new(row_count: usize, column_count: usize) -> Self {
        assert!(row_count <= ROW_COUNT_MAX);
        assert!(column_count <= COLUMN_COUNT_MAX);
        Self {
            row_count,
            column_count,
            values: [[0; ROW_COUNT_MAX]; COLUMN_COUNT_MAX],
        }
    }

    pub fn set(&mut self, row: usize, column: usize, value: u8) {
        assert!(row < self.row_count && column < self.column_count);
        self.values[column][row] = value;
    }
}

/// The work of one call: what `Kernel::multiply` has checked.
///
/// Invariant: `sources` has at most 16 slices; all slices have `len_bytes` bytes.
struct Pass<'a, const ROWS: usize> {
    /// By source, then by output.
    coefficients: [[u8; ROWS]; COLUMN_COUNT_MAX],
    sources: &'a [&'a [u8]],
    outs: [&'a mut [u8]; ROWS],
    len_bytes: usize,
}

impl<'a, const ROWS: usize> Pass<'a, ROWS> {
    fn new(rows: &Coefficients, sources: &'a [&'a [u8]], outs: [&'a mut [u8]; ROWS]) -> Self {
        let len_bytes = outs.first().map_or(0, |out| out.len());
        assert!(sources.len() <= COLUMN_COUNT_MAX);
        assert!(sources.iter().all(|source| source.len() == len_bytes));
        assert!(outs.iter().all(|out| out.len() == len_bytes));
        let mut coefficients = [[0; ROWS]; COLUMN_COUNT_MAX];
        for (to, from) in coefficients.iter_mut().zip(&rows.values) {
            to.copy_from_slice(&from[..ROWS]);
        }
        Self {
            coefficients,
            sources,
            outs,
            len_bytes,
        }
    }

    /// The last bytes, from `from`, one by one.
    fn finish_bytewise(&mut self, from: usize) {
        portable::multiply_bytewise(self, from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::multiply_slow;

    /// Every kernel, every length about its step sizes, every alignment of buffers that differs.
    #[test]
    fn all_kernels_agree_with_the_definition() {
        let mut noise = 1u64;
        let mut byte = move || {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (noise >> 56) as u8
        };
        let lengths = (0..=300).chain([511, 512, 513, 767, 1023, 1025, 4096, 4099]);
        for (len_bytes, (row_count, column_count)) in lengths.zip(
            [(1, 1), (2, 4), (3, 5), (4, 16), (4, 3), (1, 16), (2, 2)]
                .into_iter()
                .cycle(),
        ) {
            let mut rows = Coefficients::new(row_count, column_count);
            for row in 0..row_count {
                for column in 0..column_count {
                    rows.set(row, column, byte());
                }
            }
            let sources: Vec<Vec<u8>> = (0..column_count)
                .map(|column| (0..len_bytes + column).map(|_| byte()).collect())
                .collect();
            // Each source starts at another offset of its buffer.
            let sources: Vec<&[u8]> = sources
                .iter()
                .enumerate()
                .map(|(column, source)| &source[column..])
                .collect();
            let want = |row: usize, at: usize| {
                (0..column_count).fold(0, |sum, column| {
                    sum ^ multiply_slow(rows.values[column][row], sources[column][at])
                })
            };
            for kernel in Kernel::available() {
                let mut outs = vec![vec![0xee; len_bytes + 2]; row_count];
                let mut slices: Vec<&mut [u8]> =
                    outs.iter_mut().map(|out| &mut out[1..=len_bytes]).collect();
                kernel.multiply(&rows, &sources, &mut slices);
                for (row, out) in outs.iter().enumerate() {
                    assert_eq!(
                        (out[0], out[len_bytes + 1]),
                        (0xee, 0xee),
                        "{kernel} overran"
                    );
                    for at in 0..len_bytes {
                        let what = (kernel, len_bytes, row_count, column_count, row, at);
                        assert_eq!(out[1 + at], want(row, at), "{what:?}");
                    }
                }
            }
        }
    }
}
