//! NFS versions 4.1 and 4.2: program 100003, version 4 (RFC 8881 with the XDR of RFC 5662; RFC 7862 and 7863; RFC
//! 8276 for extended attributes; RFC 8178 for what a minor version may add).
//!
//! Owns: the procedure COMPOUND and its callback, every operation with its arguments and results, attributes, and
//! which errors the RFCs permit for which operation.
//! Must not know: sessions, files, which attributes a server has, what a state id names.
//! Invariant: decoding arguments allocates nothing. Arrays stay in the message ([`seq`]); memory is the caller's,
//! who reads one operation after the other.
//!
//! A server reads [`Compound`] and its [`Ops`], and writes with [`ReplyWriter`]. A client writes with
//! [`encode_compound`] and reads [`CompoundReply`]. WRITE and READ have a form in which the payload is not copied:
//! [`decode_write_prefix`], [`ReplyWriter::push_read_head`], [`decode_read_prefix`].
//!
//! Absent: version 4.0, whose operations are decoded but belong to no version that is spoken.

/// The procedures of the program; the rest are operations.
pub const PROCEDURE_NULL: u32 = 0;
pub const PROCEDURE_COMPOUND: u32 = 1;
pub const VERSION: u32 = 4;
pub use crate::v3::{PORT, PROGRAM};

mod attr;
mod attr_types;
mod bitmap;
mod callback;
mod compound;
mod errors;
mod file;
mod layout;
mod op;
mod open;
pub mod readdir;
mod reply;
pub mod seq;
mod session;
mod status;
#[cfg(test)]
mod tests;
mod types;
mod v42;

pub use attr::*;
pub use attr_types::*;
pub use bitmap::{BITMAP_WORD_COUNT_MAX, Bitmap};
pub use callback::*;
pub use compound::*;
pub use errors::*;
pub use file::*;
pub use layout::*;
pub use op::{Need, Op};
pub use open::*;
pub use readdir::DirWriter;
pub use reply::{Outcome, Reply, ReplyOr};
pub use seq::{Chain, Items};
pub use session::*;
pub use status::{ErrorStatus, Status};
pub use types::*;
pub use v42::*;
