//! An NFSv3 client in user space: no mount, no root, no kernel.
//!
//! Owns: URLs, mounting (MOUNT and PORTMAP), pipelined connections that outlive a server restart,
//! the 22 procedures as typed calls, and what is usually wanted on top of them.
//! Must not know: local files, terminals, what its callers use it for.
//!
//! Layers, from below: [`connection`](ConnectionSettings) moves RPCs, `mount` finds the server's
//! ports and the root handle, [`Client`] has one method per procedure, `ops` and [`dir`] walk paths,
//! list directories and write data until it is stable.

#![forbid(unsafe_code)]

mod client;
mod connection;
pub mod dir;
mod error;
mod mount;
mod ops;
mod stable;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod url;

#[cfg(test)]
mod tests;

pub use cairn_codec_nfs::v3;
pub use client::{Client, ClientSettings, Identity, Limits, Made, ReadData, Written};
pub use connection::ConnectionSettings;
pub use dir::{DirEntry, DirPages};
pub use error::{Error, ErrorKind, PathProblem, Rejected};
pub use ops::{Node, ReadRange};
pub use stable::{Round, Uncommitted};
pub use url::{NfsUrl, UrlError};
