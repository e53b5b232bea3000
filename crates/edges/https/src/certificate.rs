//! The certificate that HTTPS is served with.
//!
//! Owns: that a connection begins with the newest certificate. Must not know: where it is kept, when it is looked for.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

/// Why a certificate cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateError(String);

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CertificateError {}

impl CertificateError {
    pub(crate) fn new(why: String) -> Self {
        Self(why)
    }
}

/// What the server shows: a chain of certificates and the key of the first. It can be replaced while connections live.
pub struct Certificate {
    current: RwLock<Arc<CertifiedKey>>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

impl Certificate {
    /// From PEM, as files of them are: the server's own certificate first.
    pub fn new(chain_pem: &[u8], key_pem: &[u8]) -> Result<Arc<Self>, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let current = RwLock::new(parsed(&provider, chain_pem, key_pem)?);
        Ok(Arc::new(Self { current, provider }))
    }

    /// Connections that begin from now on see this one; after an error still the one before.
    pub fn replace(&self, chain_pem: &[u8], key_pem: &[u8]) -> Result<(), CertificateError> {
        *self.current.write() = parsed(&self.provider, chain_pem, key_pem)?;
        Ok(())
    }

    /// What begins connections; all of one see the newest certificate.
    pub fn acceptor(self: &Arc<Self>) -> std::io::Result<TlsAcceptor> {
        let config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(std::io::Error::other)?;
        let mut config = config
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Newest(Arc::clone(self))));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn parsed(
    provider: &CryptoProvider,
    chain_pem: &[u8],
    key_pem: &[u8],
) -> Result<Arc<CertifiedKey>, CertificateError> {
    let wrong = |what: &str, why: &dyn fmt::Display| CertificateError(format!("{what}: {why}"));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain_pem).collect();
    let chain = chain.map_err(|error| wrong("the certificate is no PEM", &error))?;
    if chain.is_empty() {
        return Err(wrong("the certificate", &"there is none in it"));
    }
    let key = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|error| wrong("the private key is no PEM", &error))?;
    let certified = CertifiedKey::from_der(chain, key, provider)
        .map_err(|error| wrong("the certificate and its key", &error))?;
    Ok(Arc::new(certified))
}

#[derive(Debug)]
struct Newest(Arc<Certificate>);

impl ResolvesServerCert for Newest {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.current.read()))
    }
}
