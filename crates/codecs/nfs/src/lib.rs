//! NFS version 3 (RFC 1813), versions 4.1 and 4.2 (RFC 8881 and 7862), MOUNT versions 3 and 1, and NLM versions 1,
//! 3 and 4 on the wire.
//!
//! Owns: the bytes of these protocols, in both directions, and the limits of their fields.
//! Must not know: sockets, files, what a file handle means, who may do what.
//! Invariant: no input makes a decoder panic or allocate more than a small multiple of the input;
//! decoding the arguments of a call allocates nothing.

#![forbid(unsafe_code)]

pub mod mount;
pub mod nlm;
#[cfg(any(test, feature = "testing"))]
pub mod source;
pub mod v3;
pub mod v4;

pub use cairn_codec_rpc::{Decode, DecodeError, Encode, List, Opaque, Reader, Writer};
