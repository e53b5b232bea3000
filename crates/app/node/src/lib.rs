//! One server, wired from one config: the only crate that knows all the others.
//!
//! Owns: folders and their locks, the admin token, starting and stopping, exports, the replies of the admin API, the
//! engine's metrics. Must not know: messages of protocols, how files or segments are kept, the handling of disks
//! (`cairn_pool`).

#![forbid(unsafe_code)]

mod activity;
mod address_pools;
mod addresses;
mod audit;
mod autogrow;
mod balance;
mod benchmarks;
mod certificate;
mod classes;
pub mod cluster;
mod cluster_view;
mod control;
mod convert;
mod disk_folders;
mod disks;
mod ending;
mod entry_log;
mod error;
mod events;
mod extras;
#[cfg(test)]
mod flipped_bits;
mod folder;
mod history;
mod jobs;
mod keys;
mod lock_wait;
mod memory;
mod metadata_folders;
mod metrics;
mod node;
mod paths;
mod policies;
mod quotas;
mod read_cache;
pub mod ready;
mod remembered;
mod reserved;
mod running;
mod s3;
mod san;
mod snapshot_changes;
mod snapshot_groups;
mod snapshots;
pub mod state_folder;
mod tiers;
pub mod token;
mod users;
mod volume_clones;
mod warnings;

pub use cairn_owner::Ended;
pub use cairn_pool::AssembleError;
pub use error::{NodeError, NodeErrorKind};
pub use extras::NodeExtras;
pub use running::Node;
