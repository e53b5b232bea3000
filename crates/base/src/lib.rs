//! What every crate of Cairn stands on.
//!
//! Owns: ids, failure domains, byte units, aligned buffers, timestamps, and the seams through which time,
//! randomness, tasks and disks come in, so that the engine can run on simulated ones, when threads look before they sleep, text that
//! commands no terminal, a limit of the lines that clients can cause in the log, background jobs and the list of them.
//! Must not know: files, segments, protocols, configuration.

pub mod backoff;
pub mod buf;
pub mod busy_poll;
pub mod disk;
pub mod domain;
pub mod env;
pub mod ids;
pub mod inline_call;
pub mod jobs;
pub mod log_limit;
pub mod looking;
pub mod planted;
pub mod printable;
pub mod real;
pub mod time;
pub mod units;
pub mod view;
pub mod words;

pub use backoff::Backoff;
pub use buf::AlignedBuf;
pub use domain::{DiskRole, DomainPath, Media};
pub use ids::{
    Branch, DiskId, Epoch, Generation, Ino, LogPosition, NodeId, PoolId, SegmentId, TierId,
    VolumeId,
};
pub use log_limit::LogLimit;
pub use time::Timestamp;
pub use view::View;

mod checksum;
pub use checksum::{crc32c, crc32c_append, crc32c_combine};
