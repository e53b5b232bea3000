//! A node's certificate as it is now, and connections to other nodes.
//!
//! Owns: renewing the certificate while connections live on, connecting to a certain node.
//! Must not know: what is spoken, which nodes there are.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use cairn_base::env::Env;
use cairn_base::jobs::{Job, Next, StepResult, Wake};
use cairn_base::{Backoff, NodeId, PoolId, Timestamp};
use parking_lot::Mutex;
use rcgen::KeyPair;
use rustls::pki_types::ServerName;
use tokio::sync::watch;

use crate::address::host_of;
use crate::authorities::Authorities;
use crate::authority::{
    Authority, CertificateRequest, Fingerprint, VALID_FOR_MAX, hosts_with_own, request_for,
};
use crate::certificate::{NodeCertificate, Subject, key_of, node_name};
use crate::error::TrustError;
use crate::folder::ClusterFolder;
use crate::issue::{self, IssueAnswer, IssueAsk, Issuers};
use crate::protocol::Protocol;
use crate::stream::NodeStream;
use crate::tls::{Encryption, Live, NOT_LISTED, check_issued, check_own, dial, issuer_of};

/// The clock may step, so the certificate is looked at more often than it has to be renewed.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(3600);
const LOOK_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// After a renewal that failed, as on a full disk.
const RETRY_AFTER: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustSettings {
    /// How long a certificate is valid. It is renewed when less than a third is left.
    pub valid_for: Duration,
    /// For TCP, the handshake, and the other end's first byte.
    pub connect_deadline: Duration,
    /// Names and addresses of this node besides the host of its internal address, such as another address from which it
    /// connects to others.
    pub hosts: Vec<String>,
    /// A connection is without encryption if this is off at both ends.
    pub encryption: Encryption,
}

impl Default for TrustSettings {
    fn default() -> Self {
        Self {
            valid_for: VALID_FOR_MAX,
            connect_deadline: Duration::from_secs(5),
            hosts: Vec::new(),
            encryption: Encryption::On,
        }
    }
}

/// What a node needs to trust others and to be trusted.
pub struct Trust {
    env: Env,
    settings: TrustSettings,
    folder: Arc<ClusterFolder>,
    /// With the CA's key, where this node has that.
    authorities: ArcSwap<Authorities>,
    /// Held while these or the certificate change: connections begin with what follows from both.
    changing: Mutex<()>,
    subject: Subject,
    live: ArcSwap<Live>,
    /// Whom to ask for certificates, once that is known.
    issuers: OnceLock<Arc<dyn Issuers>>,
    /// Set off when that is known, and when another certificate is wanted now.
    look: Wake,
    /// When the certificate expires.
    expires: watch::Sender<Timestamp>,
    /// Why the last renewal failed. Its lock is held while one is made.
    problem: Mutex<Option<String>>,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust")
            .field("subject", &self.subject)
            .field("authorities", &self.authorities.load())
            .finish_non_exhaustive()
    }
}

impl Trust {
    /// Reads the folder of a member, makes a certificate if there is none that can be used, and renews it from then on.
    pub fn open(
        env: Env,
        folder: Arc<ClusterFolder>,
        settings: TrustSettings,
    ) -> Result<Arc<Self>, TrustError> {
        let membership = folder.membership()?;
        let authorities = folder.authorities()?;
        if authorities.cluster() != membership.cluster {
            let problem = format!(
                "it is of cluster {}, and this node is in cluster {}",
                authorities.cluster(),
                membership.cluster
            );
            return Err(TrustError::damaged(&folder.authority_path(), problem));
        }
        let mut hosts = vec![host_of(&membership.internal_address)?.to_owned()];
        hosts.extend(settings.hosts.iter().cloned());
        let subject = Subject {
            node: membership.node,
            hosts: hosts_with_own(&hosts),
        };
        // A crash may have left the key of a CA that is not trusted any more.
        folder.save_authorities(&authorities, &authorities)?;
        let certificate = usable(&env, &folder, &authorities, &subject, &settings)?;
        let live = Live::new(&env.clock, &authorities, certificate, settings.encryption)?;
        let trust = Arc::new(Self {
            expires: watch::Sender::new(live.certificate.expires),
            live: ArcSwap::from_pointee(live),
            problem: Mutex::default(),
            env,
            settings,
            folder,
            authorities: ArcSwap::from_pointee(authorities),
            changing: Mutex::default(),
            subject,
            issuers: OnceLock::new(),
            look: Wake::default(),
        });
        let renewing = Arc::downgrade(&trust);
        Job::every("node-certificate", LOOK_INTERVAL_MAX)
            .from_now()
            .retry(Backoff::new(RETRY_AFTER, RETRY_AFTER))
            .woken_by(&trust.look)
            .start_on(&trust.env, move || renewing.upgrade(), renew);
        Ok(trust)
    }

    pub fn env(&self) -> &Env {
        &self.env
    }

    pub fn cluster(&self) -> PoolId {
        self.authorities.load().cluster()
    }

    pub fn node(&self) -> NodeId {
        self.subject.node
    }

    /// The CA that this node's certificates are to be of, with its key if this node has that now.
    pub fn authority(&self) -> Arc<Authority> {
        Arc::clone(self.authorities.load().issuing())
    }

    /// The CAs that this node trusts.
    pub fn authorities(&self) -> Arc<Authorities> {
        self.authorities.load_full()
    }

    /// The CA that this node's certificate is of: the one that others see.
    pub fn issuer(&self) -> Fingerprint {
        self.live.load().issuer
    }

    /// Trusts a second CA from now on, in place of another second one. Blocks while it writes files, as all changes of CAs do.
    pub fn trust_also(&self, authority: Authority) -> Result<(), TrustError> {
        let fingerprint = authority.fingerprint();
        self.change(|before| match before.of(fingerprint) {
            Some(_) => Ok(before.clone()),
            None => before.and(authority),
        })?;
        tracing::info!(%fingerprint, "this node trusts a second CA of the cluster");
        Ok(())
    }

    /// Makes a CA that is to take the place of the present one, and trusts it also. Its key is on this node alone so far.
    pub fn make_another(&self) -> Result<Arc<Authority>, TrustError> {
        let made = Authority::create(self.cluster(), self.env.clock.now())?;
        let fingerprint = made.fingerprint();
        self.trust_also(made)?;
        let authorities = self.authorities();
        let made = authorities.of(fingerprint).cloned();
        made.ok_or_else(|| TrustError::certificate("the CA that was made is gone"))
    }

    /// Has this node's certificates be of one of the CAs that it trusts. The present one stays until there is another
    /// ([`Self::renew_soon`]).
    pub fn prefer(&self, fingerprint: Fingerprint) -> Result<(), TrustError> {
        self.change(|before| before.preferring(fingerprint))?;
        tracing::info!(%fingerprint, "certificates of this node are of this CA from now on");
        Ok(())
    }

    /// Trusts a CA no more, and lets its key go. An error if this node's certificate is of that one. Connections that are there
    /// go on.
    pub fn distrust(&self, fingerprint: Fingerprint) -> Result<(), TrustError> {
        self.change(|before| before.without(fingerprint))?;
        tracing::info!(%fingerprint, "this node does not trust this CA any more");
        Ok(())
    }

    /// Has it looked at once whether the certificate is due, as it is if it is not of the CA that it should be of.
    pub fn renew_soon(&self) {
        self.look.wake();
    }

    /// Makes the CAs that are trusted others, in the folder and for connections from now on.
    fn change(
        &self,
        change: impl FnOnce(&Authorities) -> Result<Authorities, TrustError>,
    ) -> Result<(), TrustError> {
        let _one = self.changing.lock();
        let before = self.authorities();
        let next = change(&before)?;
        let certificate = self.certificate();
        // First: what cannot be used is not kept.
        let live = Live::new(
            &self.env.clock,
            &next,
            certificate,
            self.settings.encryption,
        )?;
        self.folder.save_authorities(&before, &next)?;
        self.authorities.store(Arc::new(next));
        self.live.store(Arc::new(live));
        // Clients of etcd have the CAs together with the certificate.
        self.expires.send_modify(|_| ());
        Ok(())
    }

    /// Says whom to ask for certificates while this node does not have the CA's key.
    pub fn ask(&self, issuers: Arc<dyn Issuers>) {
        // Only here.
        let _ = self.issuers.set(issuers);
        self.look.wake();
    }

    /// A certificate for the key of a request, of a CA whose key this node has.
    pub(crate) fn issue(
        &self,
        authority: &Authority,
        request: &CertificateRequest,
        subject: &Subject,
    ) -> Result<String, TrustError> {
        let now = self.env.clock.now();
        authority.answer(request, subject, now, self.settings.valid_for)
    }

    /// What the first node says that answers, of those that should have the CA's key.
    async fn asked(&self, what: &IssueAsk) -> Result<IssueAnswer, TrustError> {
        let issuers = self.issuers.get().map(|issuers| issuers.issuers());
        let own = self.node();
        let mut problems = Vec::new();
        for issuer in issuers.unwrap_or_default() {
            if issuer.0 == own {
                continue;
            }
            match issue::ask(self, &issuer, what).await {
                Ok(answer) => return Ok(answer),
                Err(problem) => problems.push(problem),
            }
        }
        Err(TrustError::NoIssuer(match problems.is_empty() {
            true => "none is known".to_owned(),
            false => problems.join("; "),
        }))
    }

    /// Gets the key of a CA that this node trusts from a node that has it, and keeps it.
    pub async fn fetch_key(&self, of: Fingerprint) -> Result<(), TrustError> {
        let asked = self.asked(&IssueAsk::Key { authority: of }).await?;
        let IssueAnswer::Key { authority_key_pem } = asked else {
            return Err(TrustError::certificate("the answer is no key of a CA"));
        };
        self.change(|before| match before.of(of) {
            Some(known) => before.with(known.with_key(&authority_key_pem)?),
            None => Ok(before.clone()),
        })?;
        tracing::info!(fingerprint = %of, "this node has the key of the cluster's CA now");
        Ok(())
    }

    /// Lets the key of a CA go, once another node says that it has it.
    pub async fn drop_key(&self, of: Fingerprint) -> Result<(), TrustError> {
        let asked = self.asked(&IssueAsk::HasKey { authority: of }).await?;
        let IssueAnswer::HasKey = asked else {
            return Err(TrustError::certificate("the answer is another one"));
        };
        self.change(|before| match before.of(of) {
            Some(known) => before.with(known.without_key()),
            None => Ok(before.clone()),
        })?;
        tracing::info!(fingerprint = %of, "this node does not have the key of the cluster's CA any more");
        Ok(())
    }

    pub fn folder(&self) -> &Arc<ClusterFolder> {
        &self.folder
    }

    /// The certificate as it is now.
    pub fn certificate(&self) -> NodeCertificate {
        self.live.load().certificate.clone()
    }

    /// When the certificate expires; changes with each renewal.
    pub fn expires(&self) -> watch::Receiver<Timestamp> {
        self.expires.subscribe()
    }

    /// Why the last renewal failed, if it did.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    /// Connects to this very node; any other is an error, also of this cluster.
    pub async fn connect(
        &self,
        address: &str,
        node: NodeId,
        protocol: Protocol,
    ) -> io::Result<NodeStream> {
        let config = Arc::clone(&self.live.load().client);
        let name = ServerName::try_from(node_name(node, self.cluster()))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let deadline = self.settings.connect_deadline;
        let spoken = (protocol, self.settings.encryption);
        dial(&*self.env.clock, config, address, name, spoken, deadline)
            .await
            .map_err(|error| {
                let text = format!("connecting to node {node} at {address}: {error}");
                io::Error::new(error.kind(), text)
            })
    }

    /// Whether a node, which proves who it is, takes this one for one of the cluster; `None`: it does not say.
    pub async fn is_known_to(&self, address: &str, node: NodeId) -> Option<bool> {
        match self.connect(address, node, Protocol::Shards).await {
            Ok(_) => Some(true),
            Err(error) => error.to_string().ends_with(NOT_LISTED).then_some(false),
        }
    }

    /// Whether it is time for another certificate: the present one is near its end, or not of the CA that it should be of.
    fn is_due(&self, current: &Live) -> bool {
        let wanted = self.authorities.load().issuing().fingerprint();
        current.certificate.is_due(self.env.clock.now()) || current.issuer != wanted
    }

    /// Whether members of etcd take this node for one of them. A node that has got the CA's key gives itself another certificate
    /// for that: see [`Self::renew_soon`].
    pub fn has_member_name(&self) -> bool {
        let name = self.authority().member_name();
        self.live().certificate.subject.hosts.contains(&name)
    }

    /// Has another node renew the certificate if it is time; whether it was.
    async fn renew_by_asking(&self) -> Result<bool, TrustError> {
        let current = self.live();
        let is_fine = current.certificate.subject == self.subject;
        if is_fine && !self.is_due(&current) {
            return Ok(false);
        }
        let renewed = self.ask_for_another(&current.certificate).await;
        *self.problem.lock() = renewed.as_ref().err().map(ToString::to_string);
        renewed.map(|()| true)
    }

    async fn ask_for_another(&self, current: &NodeCertificate) -> Result<(), TrustError> {
        let authority = self.authority();
        let key_pem = match self.issuer() == authority.fingerprint() {
            true => current.key_pem.clone(),
            // A holder of a former key could get the certificate that would go with it: this node shows that to everybody.
            false => KeyPair::generate()
                .map_err(TrustError::certificate)?
                .serialize_pem(),
        };
        let request = request_for(&key_of(&key_pem)?)?;
        let ask = IssueAsk::Certificate {
            request,
            authority: authority.fingerprint(),
        };
        let asked = self.asked(&ask).await?;
        let IssueAnswer::Certificate { certificate_pem } = asked else {
            return Err(TrustError::certificate("the answer is none"));
        };
        let next = NodeCertificate::load(&certificate_pem, &key_pem)?;
        let next = check_issued(&*self.env.clock, &authority, next, self.node())?;
        self.take(next)
    }

    /// Renews the certificate if it is time; whether it was. Blocks while it writes the file. For nodes that have the CA's key.
    pub fn renew_if_due(&self) -> Result<bool, TrustError> {
        // One at a time.
        let mut problem = self.problem.lock();
        let now = self.env.clock.now();
        let current = self.live();
        if !self.is_due(&current) && self.has_member_name() {
            return Ok(false);
        }
        let renewed = self.renew(&current.certificate, now);
        *problem = renewed.as_ref().err().map(ToString::to_string);
        renewed.map(|()| true)
    }

    fn renew(&self, current: &NodeCertificate, now: Timestamp) -> Result<(), TrustError> {
        let valid_for = self.settings.valid_for;
        let authority = self.authority();
        let subject = with_member_name(&self.subject, &authority);
        let next = match self.issuer() == authority.fingerprint() {
            true => authority.renew(current, &subject, now, valid_for)?,
            // With another key: see `ask_for_another`.
            false => authority.issue(&subject, now, valid_for)?,
        };
        self.take(next)
    }

    fn take(&self, next: NodeCertificate) -> Result<(), TrustError> {
        let expires = next.expires;
        let encryption = self.settings.encryption;
        let _one = self.changing.lock();
        let live = Live::new(&self.env.clock, &self.authorities(), next, encryption)?;
        self.folder.save_certificate(&live.certificate)?;
        self.live.store(Arc::new(live));
        self.expires.send_replace(expires);
        tracing::info!(
            expires_seconds = expires.seconds,
            "renewed the certificate of this node"
        );
        Ok(())
    }
}

/// Whom the certificate of a node is for that issues it itself: it may run a member of etcd.
fn with_member_name(subject: &Subject, authority: &Authority) -> Subject {
    let mut subject = subject.clone();
    subject.hosts.push(authority.member_name());
    subject
}

/// The certificate in the folder, or another one if it cannot be used.
fn usable(
    env: &Env,
    folder: &ClusterFolder,
    authorities: &Authorities,
    subject: &Subject,
    settings: &TrustSettings,
) -> Result<NodeCertificate, TrustError> {
    let now = env.clock.now();
    let authority = authorities.issuing();
    if !authority.has_key() {
        // It is renewed by another node, which takes it for this one's as long as it is valid.
        let checked = folder.certificate().and_then(|found| {
            let issuer = issuer_of(&*env.clock, authorities, &found)?;
            check_issued(&*env.clock, issuer, found, subject.node)
        });
        return checked.map_err(|error| TrustError::Rejoin {
            path: folder.certificate_path(),
            problem: error.to_string(),
        });
    }
    let subject = &with_member_name(subject, authority);
    let certificate = match folder.certificate() {
        Ok(found) => {
            let is_fine = found.cluster == authority.cluster()
                && found.subject == *subject
                && !found.is_due(now)
                && check_own(&*env.clock, authority, &found).is_ok();
            if is_fine {
                return Ok(found);
            }
            let other = authorities.other();
            match other.is_some_and(|other| check_own(&*env.clock, other, &found).is_ok()) {
                // With another key: see `Trust::ask_for_another`.
                true => authority.issue(subject, now, settings.valid_for)?,
                false => authority.renew(&found, subject, now, settings.valid_for)?,
            }
        }
        Err(TrustError::Missing { .. }) => authority.issue(subject, now, settings.valid_for)?,
        Err(error @ TrustError::Damaged { .. }) => {
            tracing::warn!("{error}; making another one");
            authority.issue(subject, now, settings.valid_for)?
        }
        Err(error) => return Err(error),
    };
    folder.save_certificate(&certificate)?;
    Ok(certificate)
}

/// Renews the certificate of this node if it is due, and says when it is next.
async fn renew(trust: Arc<Trust>) -> StepResult {
    let has_key = trust.authority().has_key();
    let done = match has_key {
        // It writes and syncs a file.
        true => {
            let renewing = Arc::clone(&trust);
            let done = tokio::task::spawn_blocking(move || renewing.renew_if_due()).await;
            done.map_err(|error| format!("the renewal broke off: {error}"))?
        }
        false => trust.renew_by_asking().await,
    };
    done.map_err(|error| error.to_string())?;
    let due = trust.live().certificate.due_in(trust.env.clock.now());
    Ok(Next::After(due.clamp(LOOK_INTERVAL_MIN, LOOK_INTERVAL_MAX)))
}
