//! A real disk: one folder on a local file system.
//!
//! Owns: direct I/O, its alignment, the way to the kernel (io_uring or threads), the lock that keeps
//! a second process out, the space that a folder may take, and on which drives it is.
//! Must not know: what is in the files, shards, segments, which disks a pool has.
//! Invariant: a buffer that the kernel may still touch is owned by the request, never by a future,
//! so that a future can be dropped at any time.

mod align;
mod buf_pool;
pub mod device;
mod engine;
mod file;
mod folder;
mod op;
mod ring;
mod usage;
mod workers;

pub use buf_pool::ReadBuffers;
pub use file::READ_LEN_BYTES_MAX;
pub use folder::{DiskSettings, EngineChoice, LOCK_NAME, RealDisk};
