//! The end that joins.

use cairn_base::env::Env;
use cairn_base::printable::one_line;
use rcgen::KeyPair;
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt;

use super::frame::{self, Answer, Ask};
use super::{Admitted, JoinRequest, JoinSettings};
use crate::address::host_of;
use crate::authorities::Authorities;
use crate::authority::{Authority, request_for};
use crate::certificate::NodeCertificate;
use crate::error::TrustError;
use crate::folder::ClusterFolder;
use crate::membership::{Membership, Stage};
use crate::protocol::Protocol;
use crate::stream::NodeStream;
use crate::ticket::Ticket;
use crate::tls::{Encryption, check_issued, dial, in_time, joining_client};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error("this node cannot join: {0}")]
    Invalid(#[from] TrustError),
    #[error(
        "no node in the ticket could be used ({0}); check that these nodes run, and that this node reaches them"
    )]
    Unreachable(String),
    #[error("the cluster refuses this node: {0}")]
    Refused(String),
    #[error("{0}; the ticket may be used up: if it is refused now, create another")]
    Lost(String),
}

/// What a node knows once it is admitted.
#[derive(Debug)]
pub struct Admission {
    pub authorities: Authorities,
    pub certificate: NodeCertificate,
    pub admitted: Admitted,
}

impl Admission {
    /// Makes a folder that of the node.
    pub fn establish(
        &self,
        folder: &ClusterFolder,
        request: &JoinRequest,
    ) -> Result<Membership, TrustError> {
        let membership = self.membership(request);
        folder.save_certificate(&self.certificate)?;
        folder.establish_with(&membership, &self.authorities)?;
        Ok(membership)
    }

    /// What the node keeps.
    pub fn membership(&self, request: &JoinRequest) -> Membership {
        Membership {
            format: crate::membership::FORMAT,
            cluster: self.authorities.cluster(),
            cluster_name: self.admitted.cluster_name.clone(),
            node: self.admitted.node,
            node_name: request.node_name.clone(),
            internal_address: request.internal_address.clone(),
            external_address: request.external_address.clone(),
            handle_key: self.admitted.handle_key,
            etcd: self.admitted.etcd.clone(),
            stage: Stage::Joining,
        }
    }
}

/// Asks the cluster of a ticket to take this node in. The token is shown to a node of that cluster and to nobody else, and
/// sent once: no other address is tried after it.
pub async fn join(
    env: &Env,
    ticket: &Ticket,
    request: &JoinRequest,
    settings: &JoinSettings,
) -> Result<Admission, JoinError> {
    request.check()?;
    let key = KeyPair::generate().map_err(TrustError::certificate)?;
    let ask = Ask {
        token: ticket.token().to_owned(),
        now: env.clock.now(),
        request: request.clone(),
        certificate_request: request_for(&key)?,
    };
    let mut stream = connect(env, ticket, settings).await?;
    let asking = async {
        frame::write(&mut stream, &ask)
            .await
            .map_err(|error| format!("sending the question: {error}"))?;
        frame::read::<Answer>(&mut stream)
            .await
            .map_err(|error| format!("the answer: {error}"))
    };
    let answer = match in_time(&*env.clock, settings.answer_deadline(), asking).await {
        Some(answer) => answer.map_err(JoinError::Lost)?,
        None => {
            let seconds = settings.answer_deadline().as_secs_f32();
            return Err(JoinError::Lost(format!(
                "there was no answer within {seconds} s"
            )));
        }
    };
    // All has been said; who does not hear it finds the connection closed.
    let _ = in_time(&*env.clock, settings.frame_deadline, stream.shutdown()).await;
    match answer {
        Answer::Refused { reason } => Err(JoinError::Refused(one_line(&reason).into_owned())),
        Answer::Admitted {
            authority_pem,
            second_authority_pem,
            certificate_pem,
            admitted,
        } => {
            let wrong = |problem: &dyn std::fmt::Display| {
                JoinError::Lost(format!("what the cluster sent is wrong: {problem}"))
            };
            let authority =
                Authority::load_certificate(&authority_pem).map_err(|error| wrong(&error))?;
            let second = second_authority_pem.map(|pem| Authority::load_certificate(&pem));
            let second = second.transpose().map_err(|error| wrong(&error))?;
            let authorities = Authorities::new(authority, second).map_err(|error| wrong(&error))?;
            // The node that answers may have begun with the next CA since it showed that of the ticket.
            if authorities.of(ticket.fingerprint()).is_none() {
                return Err(wrong(&"its CA is not that of the ticket"));
            }
            let authority = authorities.issuing();
            let certificate = NodeCertificate::load(&certificate_pem, &key.serialize_pem())
                .and_then(|found| check_issued(&*env.clock, authority, found, admitted.node))
                .map_err(|error| wrong(&error))?;
            Ok(Admission {
                authorities,
                certificate,
                admitted: *admitted,
            })
        }
    }
}

/// It carries the cluster's secrets.
const JOINING: (Protocol, Encryption) = (Protocol::Join, Encryption::On);

/// A connection to the first node of the ticket that can be used.
async fn connect(
    env: &Env,
    ticket: &Ticket,
    settings: &JoinSettings,
) -> Result<NodeStream, JoinError> {
    let config = joining_client(&env.clock, ticket.fingerprint())?;
    let mut problems = Vec::new();
    for address in ticket.addresses() {
        // It is not looked at: any node of the cluster will do.
        let name = ServerName::try_from(host_of(address)?.to_owned());
        let name = name.map_err(TrustError::certificate)?;
        let deadline = settings.connect_deadline;
        let config = config.clone();
        match dial(&*env.clock, config, address, name, JOINING, deadline).await {
            Ok(stream) => return Ok(stream),
            Err(error) => problems.push(format!("{address}: {error}")),
        }
    }
    Err(JoinError::Unreachable(problems.join("; ")))
}
