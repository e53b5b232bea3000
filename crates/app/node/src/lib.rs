//! One server, wired from one config: the only crate that knows all the others.
//!
//! Owns: which disks make the pool, the pool file, which volumes there are, starting and stopping,
//! the answers of the admin API, the engine's metrics.
//! Must not know: messages of protocols, how files or segments are kept.

#![forbid(unsafe_code)]

mod announce;
mod assemble;
mod control;
mod convert;
mod deleted_volumes;
mod disks;
mod error;
mod folder;
mod health;
mod lock_wait;
mod members;
mod metadata;
mod metrics;
mod node;
mod pool_store;
pub mod ready;
mod rebuild;
mod running;
mod scrub;
mod spares;
pub mod token;
mod totals;
mod watch;

pub use assemble::AssembleError;
pub use error::{NodeError, NodeErrorKind};
pub use running::Node;
