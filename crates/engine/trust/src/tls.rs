//! Settings of TLS, and what its errors mean.
//!
//! Owns: which versions and ciphers, how the other end is checked, by which clock, how a connection begins.
//! Must not know: when certificates are renewed, who is let in.
//!
//! The only version is TLS 1.3. Sessions are not resumed: a resumed one would not look at certificates again, and
//! connections between nodes are few and long.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::NodeId;
use cairn_base::env::Clock;
use cairn_base::printable::one_line;
use futures_util::future::{Either, select};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError,
    RootCertStore, ServerConfig, SignatureScheme,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::address::check_address;
use crate::authorities::Authorities;
use crate::authority::{Authority, Fingerprint};
use crate::certificate::{NodeCertificate, Parsed};
use crate::error::TrustError;
use crate::protocol::Protocol;
use crate::stream::{NodeStream, carrier};

/// The first is what two nodes use: the fastest where the processor has AES, as all servers do.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..rustls::crypto::ring::default_provider()
    })
}

struct EnvTime(Arc<dyn Clock>);

impl fmt::Debug for EnvTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnvTime")
    }
}

impl TimeProvider for EnvTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(&*self.0))
    }
}

fn unix_time(clock: &dyn Clock) -> UnixTime {
    // Before 1970 no certificate is valid.
    let seconds = u64::try_from(clock.now().seconds).unwrap_or(0);
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// Whether what goes over connections between nodes is encrypted. Both ends have to agree to do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    #[default]
    On,
    /// Any host on the network can read it. Both ends prove who they are, and nobody can change it.
    Off,
}

/// What connections begin with; renewal replaces all of it at once.
pub(crate) struct Live {
    pub(crate) certificate: NodeCertificate,
    /// The CA that the certificate is of.
    pub(crate) issuer: Fingerprint,
    pub(crate) client: Arc<ClientConfig>,
    /// For all protocols that need a certificate.
    pub(crate) members: Arc<ServerConfig>,
    pub(crate) joining: Arc<ServerConfig>,
}

impl Live {
    pub(crate) fn new(
        clock: &Arc<dyn Clock>,
        authorities: &Authorities,
        certificate: NodeCertificate,
        encryption: Encryption,
    ) -> Result<Self, TrustError> {
        let time = || Arc::new(EnvTime(Arc::clone(clock)));
        let issuer = issuer_of(&**clock, authorities, &certificate)?;
        let trusted = authorities.all().map(|authority| authority.certificate());
        let roots = Arc::new(roots(trusted).map_err(TrustError::certificate)?);
        let chain = vec![certificate.chain()?];

        let mut client = ClientConfig::builder_with_details(provider(), time())
            .with_protocol_versions(&[&TLS13])
            .map_err(TrustError::certificate)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), certificate.private_key()?)
            .map_err(TrustError::certificate)?;
        client.resumption = Resumption::disabled();
        // The name would go over the network for all to read.
        client.enable_sni = false;

        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .clear_root_hint_subjects()
            .build()
            .map_err(TrustError::certificate)?;
        let members = ServerConfig::builder_with_details(provider(), time())
            .with_protocol_versions(&[&TLS13])
            .map_err(TrustError::certificate)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), certificate.private_key()?)
            .map_err(TrustError::certificate)?;
        // Who joins knows the CA by its fingerprint, and needs to see it.
        let with_authority = vec![certificate.chain()?, issuer.certificate().clone()];
        let joining = ServerConfig::builder_with_details(provider(), time())
            .with_protocol_versions(&[&TLS13])
            .map_err(TrustError::certificate)?
            .with_no_client_auth()
            .with_single_cert(with_authority, certificate.private_key()?)
            .map_err(TrustError::certificate)?;
        Ok(Self {
            certificate,
            issuer: issuer.fingerprint(),
            client: Arc::new(client),
            members: server_of(members, Protocol::needs_certificate, encryption),
            joining: server_of(
                joining,
                |protocol| !protocol.needs_certificate(),
                encryption,
            ),
        })
    }
}

fn server_of(
    mut config: ServerConfig,
    offers: impl Fn(Protocol) -> bool,
    encryption: Encryption,
) -> Arc<ServerConfig> {
    let offered = Protocol::ALL
        .into_iter()
        .filter(|protocol| offers(*protocol));
    config.alpn_protocols = offered
        .flat_map(|protocol| names(protocol, encryption))
        .collect();
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Arc::new(config)
}

/// What a node calls a protocol in the handshake, what it likes best first.
fn names(protocol: Protocol, encryption: Encryption) -> Vec<Vec<u8>> {
    let clear = match encryption {
        Encryption::On => None,
        Encryption::Off => protocol.clear_alpn(),
    };
    let names = clear.into_iter().chain([protocol.alpn()]);
    names.map(|name| name.as_bytes().to_vec()).collect()
}

fn roots<'a>(
    authorities: impl IntoIterator<Item = &'a CertificateDer<'static>>,
) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    Ok(roots)
}

/// Whether a certificate is of this CA, for a server, and valid now.
fn check_chain(
    certificate: &CertificateDer<'_>,
    authority: &CertificateDer<'_>,
    now: UnixTime,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<(), TlsError> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let roots = roots([&authority.clone().into_owned()])?;
    verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], now, algorithms.all)
}

/// Whether others will accept this certificate, as far as this node's clock is right.
pub(crate) fn check_own(
    clock: &dyn Clock,
    authority: &Authority,
    certificate: &NodeCertificate,
) -> Result<(), TrustError> {
    let algorithms = provider().signature_verification_algorithms;
    let now = unix_time(clock);
    check_chain(
        &certificate.chain()?,
        authority.certificate(),
        now,
        &algorithms,
    )
    .map_err(TrustError::certificate)
}

/// Which of the CAs that this node trusts a certificate is of; others accept it, as far as this node's clock is right.
pub(crate) fn issuer_of<'a>(
    clock: &dyn Clock,
    authorities: &'a Authorities,
    certificate: &NodeCertificate,
) -> Result<&'a Authority, TrustError> {
    let mut problem = None;
    for authority in authorities.all() {
        match check_own(clock, authority, certificate) {
            Ok(()) => return Ok(authority),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    Err(problem.unwrap_or_else(|| TrustError::certificate("no CA is trusted")))
}

/// A certificate that this node was given, if it is one for this very node, of its CA, and others accept it.
pub(crate) fn check_issued(
    clock: &dyn Clock,
    authority: &Authority,
    certificate: NodeCertificate,
    node: NodeId,
) -> Result<NodeCertificate, TrustError> {
    if certificate.cluster != authority.cluster() || certificate.subject.node != node {
        return Err(TrustError::certificate("it is for another node"));
    }
    check_own(clock, authority, &certificate)?;
    Ok(certificate)
}

/// For a node that joins: it knows the CA by its fingerprint, and has no certificate yet.
pub(crate) fn joining_client(
    clock: &Arc<dyn Clock>,
    fingerprint: Fingerprint,
) -> Result<Arc<ClientConfig>, TrustError> {
    let provider = provider();
    let verifier = OfAuthority {
        fingerprint,
        algorithms: provider.signature_verification_algorithms,
    };
    let time = Arc::new(EnvTime(Arc::clone(clock)));
    let mut config = ClientConfig::builder_with_details(provider, time)
        .with_protocol_versions(&[&TLS13])
        .map_err(TrustError::certificate)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// What a node that joins finds where another CA is shown than that of its ticket. Nothing else here has this error.
const ANOTHER_AUTHORITY: CertificateError = CertificateError::ApplicationVerificationFailure;

/// Accepts any node of the CA that has this fingerprint. Which node it is does not matter: all may admit.
#[derive(Debug)]
struct OfAuthority {
    fingerprint: Fingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for OfAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let authority = intermediates
            .iter()
            .find(|certificate| Fingerprint::of(certificate) == self.fingerprint);
        let Some(authority) = authority else {
            let is_authority = |certificate: &CertificateDer<'_>| {
                Parsed::of(certificate).is_ok_and(|parsed| parsed.authority().is_some())
            };
            return Err(TlsError::InvalidCertificate(
                match intermediates.iter().any(is_authority) {
                    true => ANOTHER_AUTHORITY,
                    false => CertificateError::UnknownIssuer,
                },
            ));
        };
        check_chain(end_entity, authority, now, &self.algorithms)?;
        let names_a_node = Parsed::of(end_entity).is_ok_and(|parsed| parsed.node().is_some());
        match names_a_node {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(TlsError::InvalidCertificate(
                CertificateError::NotValidForName,
            )),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// What a listener says first: in TLS 1.3 a client takes the handshake for done before the server has looked at its
/// certificate, so without it a refusal would come with the first reply, or never.
const WELCOME: u8 = 0;

/// Why a node is refused whose certificate is good: the map does not list it.
pub(crate) const NOT_LISTED: &str =
    "the node that connects is not in the cluster: it was removed, or is not known yet";

/// Says that the connection is accepted.
pub(crate) async fn welcome(stream: &mut NodeStream) -> io::Result<()> {
    stream.write_all(&[WELCOME]).await?;
    stream.flush().await
}

/// Goes on without encryption once the other end has done so, too.
pub(crate) async fn clear_listener(stream: NodeStream) -> io::Result<NodeStream> {
    let mut stream = stream.into_clear()?;
    match stream.read_u8().await? {
        WELCOME => Ok(stream),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// The dialler's side, after the welcome: it speaks first, because the listener waits for its byte.
async fn clear_dialler(stream: NodeStream) -> io::Result<NodeStream> {
    let mut stream = stream.into_clear()?;
    stream.write_all(&[WELCOME]).await?;
    stream.flush().await?;
    Ok(stream)
}

/// Says why it is not, and ends it.
pub(crate) async fn refuse(stream: &mut NodeStream, reason: &'static str) -> io::Result<()> {
    let reason = &reason.as_bytes()[..reason.len().min(usize::from(u8::MAX))];
    let mut message = vec![reason.len() as u8];
    message.extend_from_slice(reason);
    stream.write_all(&message).await?;
    stream.shutdown().await
}

async fn await_welcome(stream: &mut NodeStream) -> io::Result<()> {
    let len = stream.read_u8().await?;
    if len == WELCOME {
        return Ok(());
    }
    let mut reason = vec![0; usize::from(len)];
    stream.read_exact(&mut reason).await?;
    let reason = String::from_utf8_lossy(&reason);
    let reason = one_line(&reason).into_owned();
    Err(io::Error::new(io::ErrorKind::ConnectionRefused, reason))
}

/// Connects, and waits until the other end has accepted. Errors say what is wrong in words.
pub(crate) async fn dial(
    clock: &dyn Clock,
    config: Arc<ClientConfig>,
    address: &str,
    name: ServerName<'static>,
    (protocol, encryption): (Protocol, Encryption),
    deadline: Duration,
) -> io::Result<NodeStream> {
    check_address(address).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let attempt = async {
        let tcp = TcpStream::connect(address).await?;
        let connector = TlsConnector::from(config);
        let connecting = connector
            .with_alpn(names(protocol, encryption))
            .connect(name, carrier(tcp)?);
        let stream = connecting.await?;
        let agreed = stream.get_ref().1.alpn_protocol();
        let is_clear = match agreed.and_then(Protocol::agreed) {
            Some((agreed, is_clear)) if agreed == protocol => is_clear,
            _ => {
                let reason = format!("it does not speak {protocol}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
            }
        };
        let mut stream = NodeStream::encrypted(stream);
        await_welcome(&mut stream).await?;
        match is_clear {
            true => clear_dialler(stream).await,
            false => Ok(stream),
        }
    };
    match in_time(clock, deadline, attempt).await {
        Some(Ok(stream)) => Ok(stream),
        Some(Err(error)) => Err(io::Error::new(
            error.kind(),
            explain(&error, Some(protocol)),
        )),
        None => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("it did not answer within {} s", deadline.as_secs_f32()),
        )),
    }
}

/// What a future gives, if it does within a while.
pub(crate) async fn in_time<T>(
    clock: &dyn Clock,
    deadline: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    match select(pin!(future), clock.sleep(deadline)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

/// What an error of a handshake or of a connection means, said of the other end.
pub(crate) fn explain(error: &io::Error, protocol: Option<Protocol>) -> String {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<TlsError>());
    match tls {
        Some(TlsError::InvalidCertificate(problem)) => explain_certificate(problem),
        Some(TlsError::NoCertificatesPresented) => "it has no certificate".to_owned(),
        Some(TlsError::AlertReceived(alert)) => explain_alert(*alert, protocol),
        Some(TlsError::InvalidMessage(_)) => "it does not speak TLS".to_owned(),
        Some(other) => other.to_string(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection".to_owned()
        }
        None => error.to_string(),
    }
}

fn explain_certificate(problem: &CertificateError) -> String {
    match problem {
        CertificateError::ExpiredContext { time, not_after } => {
            let seconds = time.as_secs().saturating_sub(not_after.as_secs());
            format!(
                "its certificate expired {seconds} s ago by the clock of this node; check the clocks of both"
            )
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let seconds = not_before.as_secs().saturating_sub(time.as_secs());
            format!(
                "its certificate begins in {seconds} s by the clock of this node; check the clocks of both"
            )
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is not of this cluster".to_owned()
        }
        CertificateError::ApplicationVerificationFailure => {
            "the ticket is from before a rotation of the CA, or from another cluster: create a new ticket there (`cairn cluster \
             token`)"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is another node; check the addresses of nodes".to_owned()
        }
        other => format!("its certificate is wrong: {other}"),
    }
}

fn explain_alert(alert: AlertDescription, protocol: Option<Protocol>) -> String {
    match (alert, protocol) {
        (AlertDescription::NoApplicationProtocol, Some(protocol)) => {
            format!("it does not speak {protocol}; use the same version of Cairn on all nodes")
        }
        (AlertDescription::CertificateExpired, _) => {
            "it takes the certificate of this node for expired or not begun; check the clocks of both".to_owned()
        }
        (AlertDescription::UnknownCA | AlertDescription::DecryptError, _) => {
            "it takes this node for one of another cluster".to_owned()
        }
        (AlertDescription::CertificateRequired, _) => {
            "it wants a certificate of its cluster".to_owned()
        }
        (other, _) => format!("it ended the handshake: {other:?}"),
    }
}
