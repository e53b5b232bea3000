//! DNS, as far as a server needs it that has authority for a few names and knows nothing else.
//!
//! Owns: the bytes of questions and answers (RFC 1035, RFC 6891), which answer a question gets.
//! Must not know: sockets, clocks, why a name has which addresses.
//!
//! A question is refused or answered by [`answer`]. No reply is longer than its question, but for the addresses of a name that
//! this server has; [`Request::is_limited`] takes these back, too.

#![forbid(unsafe_code)]

mod message;
mod name;

pub use message::{
    ADDRESSES_MAX, Answer, Lookup, Outcome, Request, TTL_SECONDS, Transport, UDP_LEN_BYTES_MAX,
    answer,
};
pub use name::{NAME_LEN_BYTES_MAX, Name, NameError};
