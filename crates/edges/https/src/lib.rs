//! What HTTPS is served with, and what the servers of HTTP have in common.
//!
//! Owns: a certificate that can be replaced while connections live ([`Certificate`]), how one is made that nobody but
//! itself vouches for ([`self_signed`]), how long a head is ([`head_len_bytes`]), streams that are watched ([`Watched`]).
//! Must not know: who serves what with it, where it is kept, when it is looked for.

#![forbid(unsafe_code)]

mod certificate;
mod head;
mod self_signed;
mod watched;

pub use certificate::{Certificate, CertificateError};
pub use head::head_len_bytes;
pub use self_signed::{SelfSigned, self_signed};
pub use watched::{Watch, Watched};
