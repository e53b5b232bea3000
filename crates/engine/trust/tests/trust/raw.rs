//! Clients of TLS that do what no node does.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use cairn_trust::NodeCertificate;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Takes any server for the right one.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl From<NodeCertificate> for Pair {
    fn from(of: NodeCertificate) -> Self {
        Self {
            certificate: of.certificate_pem,
            key: of.key_pem,
        }
    }
}

pub async fn connect(
    address: SocketAddr,
    certificate: Option<&Pair>,
    speaks: &[&str],
) -> io::Result<TlsStream<TcpStream>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody));
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(Pair { certificate, key }) => {
            let chain = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
            builder
                .with_client_auth_cert(vec![chain], key)
                .expect("a pair")
        }
    };
    config.alpn_protocols = speaks.iter().map(|name| (*name).into()).collect();
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
}

/// What becomes of a connection: `welcome`, what the listener says, or how it ends.
pub async fn outcome(address: SocketAddr, certificate: Option<&Pair>, speaks: &[&str]) -> String {
    let talking = async {
        let mut stream = connect(address, certificate, speaks).await?;
        match stream.read_u8().await? {
            0 => Ok("welcome".to_owned()),
            len => {
                let mut text = vec![0; usize::from(len)];
                stream.read_exact(&mut text).await?;
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
        }
    };
    talking
        .await
        .unwrap_or_else(|error: io::Error| error.to_string())
}
