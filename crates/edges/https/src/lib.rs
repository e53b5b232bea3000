//! What HTTPS is served with.
//!
//! Owns: a certificate that can be replaced while connections live ([`Certificate`]), and how one is made that nobody but
//! itself vouches for ([`self_signed`]).
//! Must not know: who serves what with it, where it is kept, when it is looked for.

#![forbid(unsafe_code)]

mod certificate;
mod self_signed;

pub use certificate::{Certificate, CertificateError};
pub use self_signed::{SelfSigned, self_signed};
