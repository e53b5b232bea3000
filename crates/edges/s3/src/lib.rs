//! S3 over HTTP (Amazon S3 API Reference, 2006-03-01).
//!
//! Owns: which request is which change of objects, the S3 codes of errors, connections and their limits, which node
//! of a cluster answers. Must not know: how objects are kept ([`cairn_objects`]), signatures and XML (the crate
//! `s3s`).

#![forbid(unsafe_code)]

mod account;
mod audit;
mod body;
mod buckets;
mod caller;
mod chunks;
mod contents;
mod cors;
mod documents;
mod errors;
mod forms;
mod heads;
mod hosts;
mod ids;
mod linger;
mod locks;
mod metrics;
mod needs;
mod operations;
mod pace;
mod pass;
mod places;
mod ranges;
mod refused;
mod server;
mod service;
mod stores;
mod values;
mod versions;
mod website;

pub use cairn_https::{Certificate, CertificateError};
pub use metrics::S3Collector;
pub use pass::is_used_elsewhere;
pub use server::{PeerServer, Running, ServerCore, Settings};
pub use stores::{Store, Stores};
