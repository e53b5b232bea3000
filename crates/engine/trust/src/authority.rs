//! The cluster's own CA.
//!
//! Owns: making it, issuing certificates of nodes, its fingerprint.
//! Must not know: where it is kept, who may have a certificate.
//!
//! Every node has the CA's key. So any node can admit others, and each renews its own certificate by itself, also while
//! all others are away. A node could read and change all data of the cluster anyway, so the key tells it nothing new; but
//! a node that was removed keeps it.

use std::fmt;
use std::time::Duration;

use cairn_base::{PoolId, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::BACKDATED;
use crate::address::check_host;
use crate::certificate::{
    NodeCertificate, Parsed, Subject, authority_name, certificate_of, key_of, node_name,
};
use crate::error::TrustError;

/// A CA outlives its cluster.
const AUTHORITY_VALID_FOR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// More names are in no certificate.
const HOSTS_MAX: usize = 32;
/// Always in a certificate: etcd's own tools, and the node itself.
const HOSTS_OF_ALL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const SERIAL_LEN_BYTES: usize = 16;

/// SHA-256 of a CA's certificate (DER). Names the CA where nothing else is known of it; no secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// The CA of one cluster. `Debug` hides its key.
pub struct Authority {
    cluster: PoolId,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("cluster", &self.cluster)
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes the CA of a new cluster. Its certificate has the cluster's id and not its name: strangers see it.
    pub fn create(cluster: PoolId, now: Timestamp) -> Result<Self, TrustError> {
        let key = KeyPair::generate().map_err(TrustError::certificate)?;
        let mut params =
            CertificateParams::new([authority_name(cluster)]).map_err(TrustError::certificate)?;
        params.distinguished_name = common_name(format!("Cairn cluster {cluster}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_before = date(now.seconds, -(BACKDATED.as_secs() as i64))?;
        params.not_after = date(now.seconds, AUTHORITY_VALID_FOR.as_secs() as i64)?;
        let certificate = params.self_signed(&key).map_err(TrustError::certificate)?;
        Self::load(&certificate.pem(), &key.serialize_pem())
    }

    pub fn load(certificate_pem: &str, key_pem: &str) -> Result<Self, TrustError> {
        let certificate = certificate_of(certificate_pem)?;
        let parsed = Parsed::of(&certificate)?;
        let key = key_of(key_pem)?;
        parsed.check_key(&key)?;
        let cluster = parsed
            .authority()
            .ok_or_else(|| TrustError::certificate("it is not of the CA of a cluster"))?;
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(TrustError::certificate)?;
        Ok(Self {
            cluster,
            certificate,
            certificate_pem: certificate_pem.to_owned(),
            key_pem: key_pem.to_owned(),
            issuer,
        })
    }

    pub fn cluster(&self) -> PoolId {
        self.cluster
    }

    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The cluster's greatest secret.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A certificate with a new key.
    pub fn issue(
        &self,
        subject: &Subject,
        now: Timestamp,
        valid_for: Duration,
    ) -> Result<NodeCertificate, TrustError> {
        let key = KeyPair::generate().map_err(TrustError::certificate)?;
        self.issue_for(&key, subject, now, valid_for)
    }

    /// A certificate with the key of an earlier one. So only one file changes when a certificate is renewed, and no
    /// reader finds two that do not belong together. A new key would protect nothing: who could read the old one could
    /// read the CA's beside it.
    pub fn renew(
        &self,
        earlier: &NodeCertificate,
        subject: &Subject,
        now: Timestamp,
        valid_for: Duration,
    ) -> Result<NodeCertificate, TrustError> {
        self.issue_for(&key_of(&earlier.key_pem)?, subject, now, valid_for)
    }

    fn issue_for(
        &self,
        key: &KeyPair,
        subject: &Subject,
        now: Timestamp,
        valid_for: Duration,
    ) -> Result<NodeCertificate, TrustError> {
        let names = self.names(subject)?;
        let mut params = CertificateParams::new(names).map_err(TrustError::certificate)?;
        params.distinguished_name = common_name(format!("Cairn node {}", subject.node));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial(subject, now, key));
        let valid_seconds = i64::try_from(valid_for.as_secs()).unwrap_or(i64::MAX);
        params.not_before = date(now.seconds, -(BACKDATED.as_secs() as i64))?;
        params.not_after = date(now.seconds, valid_seconds)?;
        let certificate = params
            .signed_by(key, &self.issuer)
            .map_err(TrustError::certificate)?;
        NodeCertificate::load(&certificate.pem(), &key.serialize_pem())
    }

    fn names(&self, subject: &Subject) -> Result<Vec<String>, TrustError> {
        let mut names = vec![node_name(subject.node, self.cluster)];
        names.extend(hosts_with_own(&subject.hosts));
        if names.len() > HOSTS_MAX {
            return Err(TrustError::Invalid {
                what: "the hosts of node",
                value: subject.node.to_string(),
                problem: "they are too many for a certificate",
            });
        }
        for host in &names {
            check_host(host).map_err(|problem| TrustError::Invalid {
                what: "the host",
                value: host.clone(),
                problem,
            })?;
        }
        Ok(names)
    }
}

/// The hosts of a certificate: those given, and those that all have; each once, as certificates write them.
pub(crate) fn hosts_with_own(given: &[String]) -> Vec<String> {
    let own = HOSTS_OF_ALL.iter().map(|host| (*host).to_owned());
    let mut hosts: Vec<String> = Vec::new();
    for host in own.chain(given.iter().cloned()) {
        let host = match host.parse::<std::net::IpAddr>() {
            Ok(ip) => ip.to_string(),
            Err(_) => host.to_ascii_lowercase(),
        };
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}

fn common_name(name: String) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// Unlike that of any other certificate, of this node or of others.
fn serial(subject: &Subject, now: Timestamp, key: &KeyPair) -> SerialNumber {
    let mut hash = Sha256::new();
    hash.update(subject.node.0.to_be_bytes());
    hash.update(now.seconds.to_be_bytes());
    hash.update(now.nanos.to_be_bytes());
    hash.update(key.der_bytes());
    let mut bytes: [u8; 32] = hash.finalize().into();
    // A positive number of this length.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&bytes[..SERIAL_LEN_BYTES])
}

/// Certificates have years of four digits.
fn date(seconds: i64, offset_seconds: i64) -> Result<OffsetDateTime, TrustError> {
    let seconds = seconds.saturating_add(offset_seconds);
    OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .filter(|date| (1950..=9999).contains(&date.year()))
        .ok_or_else(|| {
            TrustError::Certificate(format!(
                "it would begin or end {seconds} s after 1970, which is no date; check the clock"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_base::NodeId;

    const NOW: Timestamp = Timestamp::new(1_767_225_600, 5);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn subject(hosts: &[&str]) -> Subject {
        Subject {
            node: NodeId(0xabc),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        }
    }

    #[test]
    fn an_authority_is_what_it_was_after_it_was_stored() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let again = Authority::load(authority.certificate_pem(), authority.key_pem()).unwrap();
        assert_eq!(again.cluster(), PoolId(9));
        assert_eq!(again.fingerprint(), authority.fingerprint());
        let other = Authority::create(PoolId(9), NOW).unwrap();
        assert_ne!(other.fingerprint(), authority.fingerprint());
        for secret in authority.key_pem().lines() {
            assert!(!format!("{authority:?}").contains(secret));
        }
    }

    #[test]
    fn what_is_no_authority_is_refused() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let other = Authority::create(PoolId(9), NOW).unwrap();
        let node = authority.issue(&subject(&[]), NOW, DAY).unwrap();
        let (pem, key) = (authority.certificate_pem(), authority.key_pem());
        let two = format!("{pem}{pem}");
        let cut = &pem[..pem.len() / 2];
        let cases = [
            ("a key of another one", pem, other.key_pem()),
            ("a node's", &node.certificate_pem, &node.key_pem),
            ("two", &two, key),
            ("a cut one", cut, key),
            ("nothing", "", key),
            ("no key", pem, ""),
            ("a certificate for a key", pem, pem),
        ];
        for (name, certificate, key) in cases {
            let refused = Authority::load(certificate, key).map(|_| ());
            assert!(
                matches!(refused, Err(TrustError::Certificate(_))),
                "{name}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_certificate_says_who_and_until_when() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let hosts = ["10.1.2.3", "Node1.example", "fd00::1", "127.0.0.1"];
        let issued = authority.issue(&subject(&hosts), NOW, DAY).unwrap();
        assert_eq!(issued.cluster, PoolId(9));
        assert_eq!(issued.subject.node, NodeId(0xabc));
        assert_eq!(
            issued.subject.hosts,
            [
                "localhost",
                "127.0.0.1",
                "::1",
                "10.1.2.3",
                "node1.example",
                "fd00::1"
            ]
        );
        assert_eq!(issued.begins.seconds, NOW.seconds - 86_400);
        assert_eq!(issued.expires.seconds, NOW.seconds + 86_400);
        let again = NodeCertificate::load(&issued.certificate_pem, &issued.key_pem).unwrap();
        assert_eq!(again, issued);
        for secret in issued.key_pem.lines() {
            assert!(!format!("{issued:?}").contains(secret));
        }
    }

    #[test]
    fn a_renewed_certificate_has_the_same_key_and_another_number() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let first = authority.issue(&subject(&[]), NOW, DAY).unwrap();
        let later = Timestamp::new(NOW.seconds, NOW.nanos + 1);
        let second = authority.renew(&first, &subject(&[]), later, DAY).unwrap();
        assert_eq!(first.key_pem, second.key_pem);
        let serial = |certificate: &NodeCertificate| {
            let der = certificate.chain().unwrap();
            let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
            parsed.raw_serial().to_vec()
        };
        assert_ne!(serial(&first), serial(&second));
        assert_eq!(serial(&first).len(), SERIAL_LEN_BYTES);
    }

    #[test]
    fn what_cannot_be_in_a_certificate_is_refused() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let many: Vec<String> = (0..HOSTS_MAX).map(|i| format!("n{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let cases: [&[&str]; 5] = [&["0.0.0.0"], &["a b"], &["*.example"], &[""], &many];
        for hosts in cases {
            let refused = authority.issue(&subject(hosts), NOW, DAY);
            assert!(
                matches!(refused, Err(TrustError::Invalid { .. })),
                "{hosts:?}"
            );
        }
        for seconds in [i64::MIN, -5_000_000_000, 300_000_000_000, i64::MAX] {
            let now = Timestamp::new(seconds, 0);
            let refused = authority.issue(&subject(&[]), now, DAY);
            assert!(
                matches!(refused, Err(TrustError::Certificate(_))),
                "{seconds}"
            );
            assert!(Authority::create(PoolId(1), now).is_err());
        }
    }
}
