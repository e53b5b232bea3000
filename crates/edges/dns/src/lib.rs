//! Answers DNS questions for the few names that a server has.
//!
//! Owns: the sockets, how often one network is answered at length, turns of addresses, the counters.
//! Must not know: bytes of messages (`cairn_codec_dns`), why a name has which addresses.

#![forbid(unsafe_code)]

mod limit;
mod server;

pub use cairn_codec_dns::{Lookup, Name, NameError};
pub use server::{CONNECTIONS_MAX, CONNECTIONS_PER_CLIENT_MAX, DnsServer, Names, bind};
