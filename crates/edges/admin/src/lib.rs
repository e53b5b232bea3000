//! The admin REST API, both ends of it.
//!
//! Owns: one module for each feature, with its JSON types and the declarations of its routes; who may do what (the bearer token, users,
//! roles, sessions); the OpenAPI document and the blocking client that the command line uses, both made of the declarations.
//! Must not know: how a node does what is asked; it calls a [`Control`], which the node is.

#![forbid(unsafe_code)]

mod across;
pub mod activity;
pub mod address_pools;
pub mod api;
mod attempts;
pub mod audit;
pub mod balance;
pub mod benchmarks;
pub mod caches;
pub mod classes;
mod client;
pub mod cluster;
mod control;
pub mod disks;
mod document;
pub mod endpoint;
pub mod entries;
pub mod events;
pub mod exports;
mod failures;
pub mod groups;
pub mod jobs;
pub mod joined;
pub mod keys;
pub mod list_query;
pub mod live;
mod lobby;
mod pages;
mod pass;
mod passwords;
mod patience;
mod places;
pub mod plans;
pub mod policies;
#[doc(hidden)]
pub mod query;
pub mod quotas;
pub mod rebuild;
pub mod s3;
pub mod san;
pub mod scrub;
mod server;
#[doc(hidden)]
pub mod session;
pub mod snapshots;
pub mod spread;
pub mod tiers;
#[doc(hidden)]
pub mod token;
pub mod users;
pub mod volumes;
pub mod warnings;

pub use cairn_https::{Certificate, CertificateError, SelfSigned, self_signed};
pub use client::{Client, ClientError, Identity, tls_trusting};
pub use control::{Answer, Control, ControlError};
pub use lobby::CONNECTIONS_MAX;
pub use pass::{PeerServer, ask_group};
#[doc(hidden)]
pub use server::caller::basic;
pub use server::{AdminServer, AdminSettings, BODY_LEN_BYTES_MAX, openapi_json};
pub use token::{TOKEN_LEN_BYTES_MAX, Token, TokenError};
