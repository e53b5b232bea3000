//! Volumes of a cluster that this node owns.
//!
//! Owns: the takeover of a volume in the cluster's map, and the list of its log and state there, as the metadata of the
//! owner changes it.
//! Must not know: what is in log and state, how disks of other nodes are reached, files.

#![forbid(unsafe_code)]

mod agreement;
mod takeover;

pub use agreement::MapAgreement;
pub use takeover::{Node, Protection, TakeoverError};
