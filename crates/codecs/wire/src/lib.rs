//! What nodes say to one another about their disks: frames, and the messages in them.
//!
//! Owns: the bytes, in both directions, and the limits of their fields. Layout: docs/reference/wire.md.
//! Must not know: sockets, clocks, who may say what and when.
//! Invariant: no input makes a decoder panic, or allocate more than a small multiple of the input.

#![forbid(unsafe_code)]

mod error;
mod fault;
mod fields;
mod frame;
mod message;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use error::WireError;
pub use fault::{Fault, FormatFault};
pub use fields::TEXT_LEN_BYTES_MAX;
pub use frame::{
    BODY_LEN_BYTES_MAX, FRAME_VERSION, HEADER_LEN_BYTES, Header, PAYLOAD_LEN_BYTES_MAX, encode,
    payload_crc,
};
pub use message::{
    Copied, DiskReport, Hello, Hidden, Limits, Message, PROTOCOL_VERSION, RecycledCount, Reply,
    Request, ShardRange, Welcome,
};
