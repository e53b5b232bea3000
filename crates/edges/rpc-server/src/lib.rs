//! Serves ONC RPC programs over TCP, and a few short calls over UDP.
//!
//! Owns: threads, sockets, connections, records, the queue of replies, what one client may make the server
//! hold, the port mapper, the cache that keeps a repeated call from being done twice.
//! Must not know: what the programs do, volumes, who may use them.
//!
//! A call goes `server` (which thread) → `connection` (socket, limits) → `intake` (bytes to records) →
//! `dispatch` (header, program, version) → a [`Handler`], and comes back as a [`Reply`]. Programs plug in
//! behind [`Program`].

mod connection;
mod connection_metrics;
mod dispatch;
mod duplicate;
pub mod intake;
pub mod metric_families;
mod parked;
mod portmap;
mod program;
mod reply;
mod server;
mod server_settings;

pub use cairn_base::LogLimit;
pub use duplicate::{Admission, Duplicates, Guard, RequestKey};
pub use program::{
    Account, AccountKeeper, Answered, BeginWithPayload, Delay, Handler, LargeRecord, Peer, Program,
    REQUEST_LEN_BYTES, ReplyFuture, Started, StartedCall, Transport,
};
pub use reply::Reply;
pub use server::{
    ForwardedCalls, Listeners, MoreAddresses, OpenAddress, RpcServer, Running, ServeError,
};
pub use server_settings::ServerSettings;
