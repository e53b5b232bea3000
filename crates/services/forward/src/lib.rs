//! Asks the owner of a volume on behalf of clients of this node.
//!
//! Owns: terms of nodes, admission of clients' connections and of streams between nodes, which connections make way where there are too
//! many, streams to owners, how old a call may be when it is executed.
//! Must not know: any protocol, how nodes trust one another, how the map is kept.
//!
//! Invariant: a call that a client sent and then repeated through another node is not executed after that repetition was
//! acknowledged. Four rules make that true (design/architecture, section 8; `docs/design/forwarding.md`):
//!
//! - *Terms.* A client's connection belongs to the term in which it was accepted ([`Admission`]). The owner executes no call
//!   of a term that it knows to have ended ([`Registry`]).
//! - *News.* A stream carries the map revision of its sender. The owner learns the map up to it, and finishes what it began
//!   for ended terms, before it executes a call of that stream.
//! - *Freshness.* Bytes that wait between two nodes for more than [`FRESH_MAX`] are refused ([`framed`], [`link`]).
//! - *Pulse.* A process that stood still for [`FRESH_MAX`] closes its clients' connections before it reads from them
//!   ([`Pulse`]).

#![forbid(unsafe_code)]

mod admission;
mod crowd;
mod door;
mod forward;
mod framed;
mod link;
mod locate;
mod metrics;
mod preamble;
mod pulse;

use std::time::Duration;

pub use admission::{Admission, End, MapTerms, Refused, Registry};
pub use crowd::{Crowd, CrowdRules, Entered, Mark, Seat, Settled};
pub use door::{Accepts, Door, Entry, network_of, reset};
pub use forward::{ConnectError, Forward, Incoming, Nodes, Serve, ServeReads};

pub use framed::Framed;
pub use link::{Beat, Beats, Link, read_beat};
pub use locate::{LocateAnswer, Located, Remembered, Search, locate};
pub use metrics::ForwardedStreams;
pub use preamble::{BadPreamble, PREAMBLE_LEN_BYTES, Preamble, Service, Stamp, Term};
pub use pulse::Pulse;

use tokio::io::{AsyncRead, AsyncWrite};

/// A change is executed at most so long after the node that the client talks to has read it, as far as it waits in that
/// node, and at most so long after that as it waits between the nodes.
pub const FRESH_MAX: Duration = Duration::from_secs(1);
/// Between two signs of life, of a process to itself and of an owner to a node that forwards calls to it.
pub const BEAT_INTERVAL: Duration = Duration::from_millis(100);

/// A stream of bytes between two nodes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}
