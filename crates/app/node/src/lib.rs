//! One server, wired from one config: the only crate that knows all the others.
//!
//! Owns: folders and their locks, the admin token, starting and stopping, exports, the answers of the admin API, the
//! engine's metrics.
//! Must not know: messages of protocols, how files or segments are kept, what becomes of disks (`cairn_pool`).

#![forbid(unsafe_code)]

mod announce;
mod control;
mod convert;
mod deleted_volumes;
mod disks;
mod error;
mod folder;
mod lock_wait;
mod members;
mod metrics;
mod node;
pub mod ready;
mod running;
mod scrub;
mod spares;
pub mod token;

pub use cairn_pool::AssembleError;
pub use error::{NodeError, NodeErrorKind};
pub use running::Node;
