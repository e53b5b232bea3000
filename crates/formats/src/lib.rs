//! Every format that Cairn keeps on disk, or that clients keep for it: bytes to values, and back.
//!
//! Owns: layouts, versions, checksums, limits, and the values that are stored.
//! Must not know: I/O, RocksDB, async, clocks; when something is written, or which of several copies counts.
//! Invariant: any bytes decode or are refused. Nothing panics, and nothing is allocated by an unchecked length.
//!
//! The pages in `docs/reference/formats/` describe the bytes; page and code change together.

#![forbid(unsafe_code)]

pub mod copies;
pub mod encryption;
mod error;
mod fields;
pub mod file_handle;
#[cfg(test)]
mod golden;
pub mod metadata;
pub mod pointer;
pub mod pool_file;
pub mod scrub_file;
pub mod settings;
pub mod shard;
pub mod summary;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text_file;
pub mod tier_object;

pub use error::FormatError;
pub use text_file::TextFileError;
