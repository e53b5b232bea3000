//! The decoded parts of S3: which parts of a request are signed, contents of documents, forms of browsers, and who may do what
//! by a policy (Amazon S3 API Reference; IAM User Guide).
//!
//! Owns: how they are read, and which of them are refused.
//! Must not know: whether a signature is right, how requests arrive, what objects are.

#![forbid(unsafe_code)]

mod actions;
pub mod document;
pub mod form;
mod policy;
pub mod signed;

pub use actions::Action;
pub use policy::{POLICY_LEN_BYTES_MAX, Policy, PolicyError, Verdict};
