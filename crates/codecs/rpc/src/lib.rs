//! Sun RPC on the wire: XDR, ONC RPC version 2, record marking, PORTMAP and rpcbind.
//!
//! Owns: the bytes of these protocols, in both directions, and the limits of their fields.
//! Must not know: sockets, clocks, which programs a server offers, what NFS is.
//! Invariant: no input makes a decoder panic or allocate more than a small multiple of the input.

#![forbid(unsafe_code)]

mod error;
pub mod portmap;
pub mod record;
pub mod rpc;
pub mod rpcbind;
pub mod xdr;

pub use error::DecodeError;
pub use record::{FragmentHeader, PartialRecord, RecordAssembler, RecordStart};
pub use rpc::{
    AcceptStatus, AuthFlavor, AuthStatus, AuthSys, CallHeader, Credential, Groups, Incoming,
    OpaqueAuth, Rejection, ReplyBody, ReplyHeader,
};
pub use xdr::{Array, Decode, Encode, List, Opaque, Reader, Writer};
