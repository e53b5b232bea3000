//! NFS version 3, MOUNT, and an NLM that refuses locks, as programs of an RPC server.
//!
//! Owns: what the calls of these programs ask of `fs`, and what their replies look like.
//! Must not know: connections and records (`cairn_rpc_server`), who may use which volume (`cairn_exports`), how
//! files are kept, configuration files, other protocols.
//!
//! An NFS call goes `nfs_program` (arguments, file handle, user, done once) → `procedures` or `pseudo`, and comes
//! back as a `Reply`.

#![forbid(unsafe_code)]

mod forward;
mod forward_metrics;
mod mount;
mod nfs_program;
mod nlm;
mod procedure_metrics;
mod procedures;
mod pseudo;
mod service;
mod session;
mod v3_values;

pub use service::{Nfs3, Nfs3Settings};
