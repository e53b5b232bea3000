//! The end that admits.

use std::sync::Arc;

use cairn_base::Timestamp;
use cairn_base::env::BoxFuture;
use cairn_base::printable::one_line;
use tokio::io::AsyncWriteExt;

use super::frame::{self, Answer, Ask};
use super::{Admit, JoinSettings};
use crate::CLOCK_SKEW_MAX;
use crate::address::host_of;
use crate::authority::{CertificateRequest, hosts_with_own};
use crate::certificate::Subject;
use crate::listener::Handler;
use crate::log_limit::LogLimit;
use crate::stream::{NodeStream, PeerIdentity};
use crate::tls::in_time;
use crate::trust::Trust;

/// Answers nodes that want to join.
pub struct JoinServer {
    trust: Arc<Trust>,
    admit: Arc<dyn Admit>,
    settings: JoinSettings,
    refusals: LogLimit,
}

impl JoinServer {
    pub fn new(trust: Arc<Trust>, admit: Arc<dyn Admit>, settings: JoinSettings) -> Arc<Self> {
        Arc::new(Self {
            refusals: LogLimit::new(Arc::clone(&trust.env().clock)),
            trust,
            admit,
            settings,
        })
    }

    async fn exchange(&self, peer: PeerIdentity, mut stream: NodeStream) -> Result<(), String> {
        let clock = &*self.trust.env().clock;
        let deadline = self.settings.frame_deadline;
        let ask = in_time(clock, deadline, frame::read::<Ask>(&mut stream))
            .await
            .ok_or("its question took too long")?
            .map_err(|error| format!("its question: {error}"))?;
        let name = ask.request.node_name.clone();
        let answer = self.answer(ask).await;
        let problem = match &answer {
            Answer::Refused { reason } => Some(reason.clone()),
            Answer::Admitted { admitted, .. } => {
                let node = admitted.node;
                tracing::info!(peer = %peer.address, name, %node, "a node joins the cluster");
                None
            }
        };
        let sending = async {
            frame::write(&mut stream, &answer)
                .await
                .map_err(|error| error.to_string())?;
            stream.shutdown().await.map_err(|error| error.to_string())
        };
        in_time(clock, deadline, sending)
            .await
            .ok_or("it did not take its answer")?
            .map_err(|error| format!("sending the answer: {error}"))?;
        problem.map_or(Ok(()), Err)
    }

    async fn answer(&self, ask: Ask) -> Answer {
        let clock = &*self.trust.env().clock;
        if differ(clock.now(), ask.now) {
            // Before the token: it is not used up by a clock. That this clock is another one tells an unauthorized client nothing.
            return Answer::refused(
                "the clock of this node and that of the cluster differ by more than an hour; set it, and try again",
            );
        }
        // As with the clock: what could not be answered uses nothing up.
        let request: CertificateRequest = match ask.certificate_request.parse() {
            Ok(request) => request,
            Err(_) => return Answer::refused("the request for a certificate is none"),
        };
        if !self.trust.authority().has_key() {
            return Answer::refused("this node takes no nodes in; make another ticket");
        }
        let host = host_of(&ask.request.internal_address).map(str::to_owned);
        let deciding = self.admit.admit(ask.token, ask.request);
        let admitted = match in_time(clock, self.settings.admit_deadline, deciding).await {
            Some(Ok(admitted)) => admitted,
            Some(Err(reason)) => return Answer::refused(&reason),
            None => return Answer::refused("the cluster took too long to decide; try again later"),
        };
        if let Err(error) = admitted.check() {
            tracing::error!("a node that was admitted cannot be told so: {error}");
            return Answer::refused("the cluster could not answer; its log says why");
        }
        // After the node is in the map: whatever is done to CAs from then on waits for it, so that it needs no others than these.
        let authorities = self.trust.authorities();
        let authority = authorities.issuing();
        let issued = host.and_then(|host| {
            let hosts = hosts_with_own(&[host]);
            let node = admitted.node;
            let subject = Subject { node, hosts };
            self.trust.issue(authority, &request, &subject)
        });
        match issued {
            Ok(certificate_pem) => Answer::Admitted {
                authority_pem: authority.certificate_pem().to_owned(),
                second_authority_pem: authorities
                    .other()
                    .map(|other| other.certificate_pem().to_owned()),
                certificate_pem,
                admitted: Box::new(admitted),
            },
            Err(error) => {
                tracing::error!("a node that was admitted gets no certificate: {error}");
                Answer::refused("the cluster could not answer; its log says why")
            }
        }
    }
}

impl Handler for JoinServer {
    fn serve(self: Arc<Self>, peer: PeerIdentity, stream: NodeStream) -> BoxFuture<()> {
        Box::pin(async move {
            if let Err(problem) = self.exchange(peer, stream).await {
                // The reasons may have words of an unauthorized client.
                let problem = one_line(&problem);
                self.refusals.refused(peer.address, "joining", &problem);
            }
        })
    }
}

/// Whether two clocks are too far from one another.
fn differ(one: Timestamp, other: Timestamp) -> bool {
    one.seconds.abs_diff(other.seconds) > CLOCK_SKEW_MAX.as_secs()
}
