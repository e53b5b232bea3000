//! This node as a member of a cluster: the disks of other nodes, and the volumes that it owns.
//!
//! Owns: the node's lease, which volumes it takes and leaves, the takeover of a volume in the cluster's map and the list of
//! its log and state there, the pool's state as the map has it, connections to other nodes.
//! Must not know: what is in log and state, how connections are made and secured, sockets, files.

#![forbid(unsafe_code)]

mod addresses;
mod agreement;
mod balance;
mod member;
mod ownership;
mod peers;
mod reach;
mod reserved;
mod state;
mod takeover;
mod truth;
mod usage;
mod work;

pub use addresses::{AddressDesk, AddressStep, STEADY_AFTER, address_holder, address_homes};
pub use agreement::MapAgreement;
pub use balance::{Loads, Move, Reason, Share, Tolerance};
pub use member::{ClusterMember, Ended, Farewell, MemberSettings, Meter};
pub use peers::{Dials, PeerStatus, PeerTable};
pub use reserved::{ClaimError, Elsewhere, elsewhere};
pub use state::disk_record;
pub use takeover::{Node, Protection, TakeoverError};
pub use truth::MapTruth;
