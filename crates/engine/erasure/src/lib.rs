//! Reed-Solomon erasure coding over GF(2^8), systematic: N data units and M parity units, of which
//! any N give back all.
//!
//! Owns: the field, the coding matrix, the kernels for each kind of processor.
//! Must not know: disks, rows, units' sizes, checksums. No I/O, no allocation that grows with data.
//! Invariant: for one [`Code`] the bytes are the same on every machine and for ever; they are on disk.
//!
//! # The code
//!
//! The field is GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d). Units are coded
//! bytewise: byte b of parity unit i is the sum over j of `c(i, j)` times byte b of data unit j, where
//!
//! ```text
//! c(i, j) = 1 / ((N + i) xor j)    N > 1: the Cauchy matrix of ISA-L's gf_gen_cauchy1_matrix
//! c(i, 0) = 1                      N = 1: every parity unit is a copy, a mirror
//! ```
//!
//! So shards with N > 1 are byte for byte those of ISA-L. Every square part of a Cauchy matrix has
//! an inverse, which is what makes any M losses recoverable; a test inverts all of them.

mod code;
mod field;
pub mod kernel;
mod reconstruct;

pub use code::{Code, CodeError, DATA_COUNT_MAX, PARITY_COUNT_MAX, encode, encode_with};
pub use kernel::Kernel;
pub use reconstruct::{reconstruct, reconstruct_with};
