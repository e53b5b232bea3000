//! The admin REST API, both ends of it.
//!
//! Owns: the JSON types, the paths, who may do what (the bearer token, users, roles, sessions), the OpenAPI document (made from the same
//! code that answers), and the blocking client that the command line uses.
//! Must not know: how a node does what is asked; it calls a [`Control`], which the node is.

#![forbid(unsafe_code)]

mod across;
pub mod activity;
pub mod address_pools;
pub mod api;
mod attempts;
pub mod audit;
pub mod benchmarks;
pub mod classes;
mod client;
mod control;
mod document;
pub mod entries;
pub mod events;
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
pub mod s3;
pub mod san;
mod server;
#[doc(hidden)]
pub mod session;
pub mod snapshots;
pub mod tiers;
#[doc(hidden)]
pub mod token;
pub mod users;
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
