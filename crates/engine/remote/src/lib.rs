//! Shards of disks on other nodes: what `cairn-shard` offers of a disk, over a connection.
//!
//! Owns: connections between nodes, which request a reply belongs to, deadlines, how much may be under way, what
//! becomes of requests when a connection breaks, and who cleans up behind a caller that is gone.
//! Must not know: what is in a shard, stripes, which node owns what; how a connection comes to be (see [`Dial`]).
//! Invariants: nothing is sent twice; a request whose end is not known has failed for its caller; whatever a peer
//! sends, the worst that becomes of it is the end of its connection.

#![forbid(unsafe_code)]

mod breaker;
mod convert;
mod disk;
mod frames;
mod link;
mod peer;
mod serve;
mod transport;

pub use disk::RemoteDisk;
pub use peer::{Peer, PeerSettings};
pub use serve::{Ended, Peers, ServeSettings, Served, Server};
pub use transport::{Connection, Dial, TcpDial};

use cairn_base::{NodeId, PoolId};

/// What a node says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: PoolId,
    pub node: NodeId,
}

/// How often each side says that it is there. It looks after what is overdue as often as [`TICK`] says.
const HEARTBEAT: std::time::Duration = std::time::Duration::from_millis(500);
const TICK: std::time::Duration = std::time::Duration::from_millis(100);
