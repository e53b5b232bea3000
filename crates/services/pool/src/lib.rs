//! The pool: which disks there are, what lies on them, what has to move, and what becomes of a disk that fails.
//!
//! Owns: the pool's state and which disks have it, what a start makes of the disks it finds, the one table of disks,
//! the plan of what has to be done ([`planner`], without I/O) and the doing of it, where volumes keep their metadata,
//! the judgement of disks and of the whole.
//! Must not know: folders and paths of the host, locks, sockets, the configuration file, how metrics are shown; how a
//! shard is copied (`segment`) or how records are rewritten (`fs`).
//!
//! All of it runs on [`cairn_base::env::Env`] and [`cairn_base::disk::Disk`], so that the simulator runs it in one
//! thread on simulated disks and a simulated clock. What only the host can do it asks of a [`Host`].

#![forbid(unsafe_code)]

pub mod assemble;
mod ballast;
mod caches;
mod clones;
mod deleted_volumes;
mod directories;
pub mod disk_changes;
mod encryption;
pub mod executor;
pub mod health;
pub mod idle_spares;
pub mod joining;
mod judge;
mod metadata;
mod nodes;
pub mod open;
pub mod planner;
mod pool;
mod restore;
pub mod scrub;
mod seats;
pub mod spread;
mod state_places;
mod table;
mod tiers;
mod totals;
pub mod truth;
mod volumes;
pub mod warning;
pub mod watch;

pub use assemble::AssembleError;
pub use ballast::{BALLAST_FOLDER, has_room_to_spare};
pub use cairn_formats::pool_file::PoolState;
pub use clones::{CloneOrigin, CloneVolumeFailure};
pub use encryption::{
    Rotation, give_secrets_to_cluster, handle_key_of, secrets_key_of, wrapped_keys,
};
pub use nodes::OnNode;
pub use pool::{ChangeFailure, Host, MetaDisks, Pool, PoolSettings, VolumeService};
pub use restore::RestoreVolumeFailure;
pub use seats::{Leave, PoolLogDisks, SeatFuture, Seats};
pub use table::{Condition, Table};
pub use tiers::{HostTier, TierStatus, TierVolume};
pub use totals::{PastTotals, VolumeTotals};
