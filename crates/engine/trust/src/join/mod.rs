//! How a node becomes one of the cluster: one question and one answer over `cairn-join/1`.
//!
//! Owns: what is asked and answered, both ends, deadlines.
//! Must not know: which tokens are valid, what is done with a new node (see [`Admit`]).
//!
//! The node that joins makes a key, which never leaves it, and gets a certificate for that.

mod client;
pub mod frame;
mod server;

use std::time::Duration;

use cairn_base::NodeId;
use cairn_base::env::BoxFuture;
use cairn_formats::pool_file::HandleKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::address::check_address;
use crate::error::TrustError;
use crate::membership::{EtcdSource, check_external, check_name};

pub use client::{Admission, JoinError, join};
pub use server::JoinServer;

/// Of the name of a version of Cairn.
const PROGRAM_LEN_BYTES_MAX: usize = 64;

/// The versions of the internal protocol that a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRange {
    pub oldest: u32,
    pub newest: u32,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    pub node_name: String,
    /// `HOST:PORT` for other nodes.
    pub internal_address: String,
    /// `HOST:PORT` or `HOST` for clients.
    pub external_address: String,
    pub versions: VersionRange,
    /// The version of Cairn, for people.
    pub program: String,
    /// Whatever else both ends know to use.
    #[serde(default)]
    pub extra: Value,
}

impl JoinRequest {
    pub fn check(&self) -> Result<(), TrustError> {
        check_name("the node's name", &self.node_name)?;
        check_address(&self.internal_address)?;
        check_external(&self.external_address)?;
        let invalid = |what, value: String, problem| TrustError::Invalid {
            what,
            value,
            problem,
        };
        let VersionRange { oldest, newest } = self.versions;
        if oldest > newest {
            let versions = format!("{oldest} to {newest}");
            return Err(invalid("the versions", versions, "the oldest comes first"));
        }
        let is_fine = self.program.len() <= PROGRAM_LEN_BYTES_MAX
            && self
                .program
                .bytes()
                .all(|byte| (b' '..=b'~').contains(&byte));
        if !is_fine {
            let program = self.program.chars().take(PROGRAM_LEN_BYTES_MAX).collect();
            let problem = "it is at most 64 characters of ASCII";
            return Err(invalid("the version of Cairn", program, problem));
        }
        Ok(())
    }
}

/// What a node that is admitted gets to know. `handle_key` is a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    pub node: NodeId,
    pub cluster_name: String,
    pub handle_key: HandleKey,
    /// As the new node will have it in its own [`crate::Membership`].
    pub etcd: EtcdSource,
    /// Whatever else both ends know to use.
    #[serde(default)]
    pub extra: Value,
}

impl Admitted {
    fn check(&self) -> Result<(), TrustError> {
        check_name("the cluster's name", &self.cluster_name)?;
        self.etcd.check()
    }
}

/// Decides who may join.
pub trait Admit: Send + Sync + 'static {
    /// Checks the token, uses it up, and takes the node in. The reason of a refusal is sent to the node as it is, which may
    /// be anybody: until the token is found to be valid it must tell nothing but that it is not. Dropped after
    /// [`JoinSettings::admit_deadline`].
    fn admit(&self, token: String, request: JoinRequest) -> BoxFuture<Result<Admitted, String>>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinSettings {
    /// For a connection to one address of a ticket.
    pub connect_deadline: Duration,
    /// For a question or an answer to be sent.
    pub frame_deadline: Duration,
    /// For the decision.
    pub admit_deadline: Duration,
}

impl Default for JoinSettings {
    fn default() -> Self {
        Self {
            connect_deadline: Duration::from_secs(5),
            frame_deadline: Duration::from_secs(10),
            admit_deadline: Duration::from_secs(60),
        }
    }
}

impl JoinSettings {
    /// How long the node that joins waits: a little longer than the other end takes at most.
    fn answer_deadline(&self) -> Duration {
        self.frame_deadline * 3 + self.admit_deadline
    }
}
