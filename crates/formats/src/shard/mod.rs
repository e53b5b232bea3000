//! What lies on one disk: its identity, the names of shards and their files, the footer of a sealed
//! shard, what it promised to the owner of a volume.
//!
//! Owns: these layouts (docs/reference/formats/shard.md).
//! Must not know: when files are made, synced or recycled; what the shards hold.

pub mod footer;
pub mod identity;
pub mod name;
pub mod promise;

pub use footer::{ShardFooter, Trailer};
pub use identity::DiskIdentity;
pub use name::ShardName;
pub use promise::Promise;
