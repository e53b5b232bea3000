//! How the nodes of a cluster trust one another.
//!
//! Owns: the cluster's own CA ([`Authority`]), the one that takes its place ([`Authorities`]) and the certificates of nodes; the folder in which a node keeps them
//! ([`ClusterFolder`]); connections between nodes, both ends ([`Trust`], [`Listener`]); what an operator gives to
//! a node that is to join ([`Ticket`]), and the exchange by which it joins ([`join()`]); how nodes without the CA's key get
//! certificates ([`IssueServer`]).
//! Must not know: what is in the cluster's map, whether a token is valid (see [`Admit`]), what goes over a connection.
//! Invariants: every connection but one that joins is between two certificates of this cluster's CA, or of the one that takes
//! its place; who connects to a
//! node gets that very node or an error; what goes over a connection is encrypted with TLS, or, where both ends are told so,
//! only protected from change; whatever an unauthorized client sends, the worst that becomes of it is the end of its
//! connection; nothing but ids and addresses is shown to one whose token is not accepted yet.

#![forbid(unsafe_code)]

mod address;
mod authorities;
mod authority;
mod certificate;
mod clear;
mod dial;
mod error;
mod folder;
mod issue;
mod join;
mod listener;
mod log_limit;
mod membership;
mod protocol;
mod stream;
mod ticket;
mod tls;
mod trust;

pub use address::{check_address, host_of};
pub use authorities::Authorities;
pub use authority::{
    Authority, CertificateRequest, Fingerprint, REVOKED_FOR, Revoked, VALID_FOR_MAX,
};
pub use certificate::{NodeCertificate, Subject};
pub use dial::TrustDial;
pub use error::TrustError;
pub use folder::ClusterFolder;
pub use issue::{Grants, IssueAnswer, IssueAsk, IssueServer, Issuers};
pub use join::frame;
pub use join::{
    Admission, Admit, Admitted, JoinError, JoinRequest, JoinServer, JoinSettings, VersionRange,
    join,
};
pub use listener::{Handler, Listener, ListenerSettings};
pub use membership::{EtcdMemberEntry, EtcdSource, Membership, Stage, check_name};
pub use protocol::Protocol;
pub use stream::{NodeStream, PeerIdentity};
pub use ticket::{Ticket, TicketError};
pub use tls::Encryption;
pub use trust::{Trust, TrustSettings};

pub use cairn_formats::pool_file::HandleKey;

/// Certificates are valid from so long before they are made: clocks differ.
pub const BACKDATED: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// Clocks of nodes may differ by so much. A node whose clock is further off cannot join.
pub const CLOCK_SKEW_MAX: std::time::Duration = std::time::Duration::from_secs(3600);
