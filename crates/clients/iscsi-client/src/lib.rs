//! An iSCSI initiator in user space (RFC 7143).
//!
//! Owns: URLs of LUNs, login with CHAP, one session over one connection with many commands under way, reads into the
//! caller's buffers, writes from where the data lies.
//! Must not know: what is on a LUN, multipath, when to try again.

#![forbid(unsafe_code)]

mod error;
mod login;
mod session;
mod url;
mod wire;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use session::{Limits, Session, SessionSettings};
pub use url::{IscsiUrl, SESSIONS_COUNT_MAX, UrlError};
