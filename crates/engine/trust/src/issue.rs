//! How a node without the CA's key gets certificates, and how one that is to have the key gets that: one question and one answer over
//! `cairn-issue/1`.
//!
//! Owns: what is asked and answered, both ends. Must not know: which nodes there are, which of them have the key (see [`Grants`],
//! [`Issuers`]).
//!
//! A node proves who it is by the certificate that it has. It gets another one for its own id and for the addresses that the map
//! has of it, whatever it asks for: else it could take the place of another node, or of a member of etcd.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::NodeId;
use cairn_base::env::BoxFuture;
use cairn_base::printable::one_line;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use crate::authority::{CertificateRequest, Fingerprint, hosts_with_own};
use crate::certificate::Subject;
use crate::join::frame::{self, Message};
use crate::listener::Handler;
use crate::stream::{NodeStream, PeerIdentity};
use crate::tls::in_time;
use crate::trust::Trust;

/// For a question or an answer to be sent.
const FRAME_DEADLINE: Duration = Duration::from_secs(10);

/// What a node asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IssueAsk {
    /// A certificate of a CA for a key (PKCS #10, PEM).
    Certificate {
        request: String,
        authority: Fingerprint,
    },
    /// A CA's key.
    Key { authority: Fingerprint },
    /// Whether the other node has it.
    HasKey { authority: Fingerprint },
}

/// What it is answered. `Debug` hides the key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IssueAnswer {
    Certificate { certificate_pem: String },
    Key { authority_key_pem: String },
    HasKey,
    Refused { reason: String },
}

impl fmt::Debug for IssueAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate { .. } => f.write_str("Certificate"),
            Self::Key { .. } => f.write_str("Key"),
            Self::HasKey => f.write_str("HasKey"),
            Self::Refused { reason } => f.debug_tuple("Refused").field(reason).finish(),
        }
    }
}

impl Message for IssueAsk {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Message for IssueAnswer {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Says what nodes may have.
pub trait Grants: Send + Sync + 'static {
    /// The hosts that the map has of a node; `None`: it is not there.
    fn hosts(&self, node: NodeId) -> Option<Vec<String>>;

    /// Whether a node is to have the CA's key.
    fn may_have_key(&self, node: NodeId) -> bool;
}

/// Says whom to ask.
pub trait Issuers: Send + Sync + 'static {
    /// Nodes that should have the CA's key, with their internal addresses; those to ask first come first.
    fn issuers(&self) -> Vec<(NodeId, String)>;
}

/// Answers nodes of the cluster.
pub struct IssueServer {
    trust: Arc<Trust>,
    grants: Arc<dyn Grants>,
}

impl IssueServer {
    pub fn new(trust: Arc<Trust>, grants: Arc<dyn Grants>) -> Arc<Self> {
        Arc::new(Self { trust, grants })
    }

    async fn exchange(&self, node: NodeId, mut stream: NodeStream) -> Result<(), String> {
        let clock = &*self.trust.env().clock;
        let ask = in_time(clock, FRAME_DEADLINE, frame::read::<IssueAsk>(&mut stream))
            .await
            .ok_or("its question took too long")?
            .map_err(|error| format!("its question: {error}"))?;
        let answer = self.answer(node, &ask).unwrap_or_else(|reason| {
            tracing::warn!(%node, reason, "a node gets neither certificate nor key");
            IssueAnswer::Refused { reason }
        });
        if let IssueAnswer::Key { .. } = answer {
            tracing::info!(%node, "a node gets the key of the cluster's CA");
        }
        let sending = async {
            frame::write(&mut stream, &answer)
                .await
                .map_err(|error| error.to_string())?;
            stream.shutdown().await.map_err(|error| error.to_string())
        };
        in_time(clock, FRAME_DEADLINE, sending)
            .await
            .ok_or("it did not take its answer")?
    }

    fn answer(&self, node: NodeId, ask: &IssueAsk) -> Result<IssueAnswer, String> {
        let (IssueAsk::Certificate { authority, .. }
        | IssueAsk::Key { authority }
        | IssueAsk::HasKey { authority }) = ask;
        let authorities = self.trust.authorities();
        let authority = authorities
            .of(*authority)
            .ok_or("this node does not trust the CA that is asked for")?;
        let key = authority
            .key_pem()
            .ok_or("this node does not have the key of the cluster's CA")?;
        match ask {
            IssueAsk::HasKey { .. } => Ok(IssueAnswer::HasKey),
            IssueAsk::Key { .. } => match self.grants.may_have_key(node) {
                true => Ok(IssueAnswer::Key {
                    authority_key_pem: key.to_owned(),
                }),
                false => Err("the requesting node may not have the CA's key".to_owned()),
            },
            IssueAsk::Certificate { request, .. } => {
                let hosts = self.grants.hosts(node);
                let hosts = hosts.ok_or("the node that asks is not in the cluster's map")?;
                let hosts = hosts_with_own(&hosts);
                let request: CertificateRequest = request
                    .parse()
                    .map_err(|_| "that is no request for a certificate")?;
                let subject = Subject { node, hosts };
                let issued = self.trust.issue(authority, &request, &subject);
                let certificate_pem = issued.map_err(|error| error.to_string())?;
                Ok(IssueAnswer::Certificate { certificate_pem })
            }
        }
    }
}

impl Handler for IssueServer {
    fn serve(self: Arc<Self>, peer: PeerIdentity, stream: NodeStream) -> BoxFuture<()> {
        Box::pin(async move {
            let Some(node) = peer.node else {
                return;
            };
            if let Err(problem) = self.exchange(node, stream).await {
                tracing::debug!(%node, problem, "a node that asked for a certificate");
            }
        })
    }
}

/// Asks one node.
pub(crate) async fn ask(
    trust: &Trust,
    (node, address): &(NodeId, String),
    ask: &IssueAsk,
) -> Result<IssueAnswer, String> {
    let connected = trust.connect(address, *node, crate::Protocol::Issue).await;
    let mut stream = connected.map_err(|error| error.to_string())?;
    let asking = async {
        frame::write(&mut stream, ask)
            .await
            .map_err(|error| error.to_string())?;
        frame::read::<IssueAnswer>(&mut stream)
            .await
            .map_err(|error| error.to_string())
    };
    let answer = in_time(&*trust.env().clock, 3 * FRAME_DEADLINE, asking).await;
    let answer = answer.unwrap_or_else(|| Err("it does not answer in time".to_owned()));
    match answer {
        Ok(IssueAnswer::Refused { reason }) => Err(one_line(&reason).into_owned()),
        other => other,
    }
    .map_err(|why| format!("node {node} at {address}: {why}"))
}
