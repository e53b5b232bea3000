//! Certificates of nodes: which node one is of, and how long it is valid.
//!
//! Owns: the names in a certificate, by which a node is known; reading them back.
//! Must not know: who issues it, where it is kept.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use cairn_base::{NodeId, PoolId, Timestamp};
use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::BACKDATED;
use crate::error::TrustError;

/// Nobody can own it on the Internet, so that no other CA gives certificates for it.
pub(crate) const DOMAIN: &str = "cairn.internal";

/// The name of a node in its certificate.
pub(crate) fn node_name(node: NodeId, cluster: PoolId) -> String {
    format!("{node}.node.{cluster}.{DOMAIN}")
}

/// The name that nodes with the CA's key have in their certificates beside their own: by it members of etcd take one another.
pub(crate) fn member_name(cluster: PoolId) -> String {
    format!("member.{cluster}.{DOMAIN}")
}

/// The name of the CA in its certificate.
pub(crate) fn authority_name(cluster: PoolId) -> String {
    format!("ca.{cluster}.{DOMAIN}")
}

/// An id as it is written in a name; nothing else is one.
fn id_of(text: &str) -> Option<u128> {
    let fine = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == 32 && text.bytes().all(fine))
        .then(|| u128::from_str_radix(text, 16).ok())
        .flatten()
}

fn parse_node_name(name: &str) -> Option<(NodeId, PoolId)> {
    let rest = name.strip_suffix(DOMAIN)?.strip_suffix('.')?;
    let (node, cluster) = rest.split_once(".node.")?;
    Some((NodeId(id_of(node)?), PoolId(id_of(cluster)?)))
}

fn parse_authority_name(name: &str) -> Option<PoolId> {
    let rest = name.strip_suffix(DOMAIN)?.strip_suffix('.')?;
    id_of(rest.strip_prefix("ca.")?).map(PoolId)
}

/// Whom a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub node: NodeId,
    /// Names and addresses under which others reach the node. Those from which it connects to others belong to them, too:
    /// etcd compares the address of a peer with its certificate. `localhost`, 127.0.0.1 and ::1 are always added.
    pub hosts: Vec<String>,
}

/// A node's certificate with its key, for both ends of a connection. `Debug` hides the key.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeCertificate {
    pub certificate_pem: String,
    pub key_pem: String,
    pub cluster: PoolId,
    pub subject: Subject,
    pub begins: Timestamp,
    pub expires: Timestamp,
}

impl fmt::Debug for NodeCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCertificate")
            .field("cluster", &self.cluster)
            .field("subject", &self.subject)
            .field("begins", &self.begins)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl NodeCertificate {
    /// Reads a pair. That they belong together is checked, and who issued it is not.
    pub fn load(certificate_pem: &str, key_pem: &str) -> Result<Self, TrustError> {
        let der = certificate_of(certificate_pem)?;
        let parsed = Parsed::of(&der)?;
        parsed.check_key(&key_of(key_pem)?)?;
        let (node, cluster) = parsed
            .node()
            .ok_or_else(|| TrustError::certificate("it names no node"))?;
        Ok(Self {
            certificate_pem: certificate_pem.to_owned(),
            key_pem: key_pem.to_owned(),
            cluster,
            subject: Subject {
                node,
                hosts: parsed.hosts(),
            },
            begins: parsed.begins(),
            expires: parsed.expires(),
        })
    }

    /// Whether it is time for another one: less than a third of its life is left, or the clock says that it has not
    /// begun.
    pub fn is_due(&self, now: Timestamp) -> bool {
        let life = self.expires.seconds.saturating_sub(self.issued_seconds());
        let left = self.expires.seconds.saturating_sub(now.seconds);
        now.seconds < self.begins.seconds || left < life / 3
    }

    /// When [`Self::is_due`] becomes true, counted from now.
    pub(crate) fn due_in(&self, now: Timestamp) -> Duration {
        let life = self.expires.seconds.saturating_sub(self.issued_seconds());
        let due = self.expires.seconds.saturating_sub(life / 3);
        // A second more: a whole third may be left.
        let seconds = due.saturating_sub(now.seconds).saturating_add(1);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    }

    fn issued_seconds(&self) -> i64 {
        self.begins
            .seconds
            .saturating_add(BACKDATED.as_secs() as i64)
            .min(self.expires.seconds)
    }

    pub(crate) fn chain(&self) -> Result<CertificateDer<'static>, TrustError> {
        certificate_of(&self.certificate_pem)
    }

    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>, TrustError> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).map_err(TrustError::certificate)
    }
}

/// The one certificate of a text.
pub(crate) fn certificate_of(pem: &str) -> Result<CertificateDer<'static>, TrustError> {
    let mut found = CertificateDer::pem_slice_iter(pem.as_bytes());
    let first = found
        .next()
        .ok_or_else(|| TrustError::certificate("this is none, as PEM"))?
        .map_err(TrustError::certificate)?;
    match found.next() {
        None => Ok(first),
        Some(_) => Err(TrustError::certificate("there is more than one")),
    }
}

pub(crate) fn key_of(pem: &str) -> Result<KeyPair, TrustError> {
    KeyPair::from_pem(pem).map_err(|error| TrustError::Certificate(format!("its key: {error}")))
}

/// A certificate whose structure is right.
pub(crate) struct Parsed<'a>(X509Certificate<'a>);

impl<'a> Parsed<'a> {
    pub(crate) fn of(der: &'a [u8]) -> Result<Self, TrustError> {
        match X509Certificate::from_der(der) {
            Ok(([], parsed)) => Ok(Self(parsed)),
            Ok(_) => Err(TrustError::certificate("bytes follow it")),
            Err(error) => Err(TrustError::certificate(error)),
        }
    }

    fn names(&self) -> impl Iterator<Item = &GeneralName<'a>> {
        let names = self.0.subject_alternative_name().ok().flatten();
        names
            .into_iter()
            .flat_map(|names| &names.value.general_names)
    }

    fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.names().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        })
    }

    /// The node and the cluster that it names, if it is one of each.
    pub(crate) fn node(&self) -> Option<(NodeId, PoolId)> {
        let mut nodes = self.dns_names().filter_map(parse_node_name);
        let first = nodes.next()?;
        nodes.next().is_none().then_some(first)
    }

    /// The cluster whose CA this is.
    pub(crate) fn authority(&self) -> Option<PoolId> {
        let mut clusters = self.dns_names().filter_map(parse_authority_name);
        let first = clusters.next()?;
        (self.0.is_ca() && clusters.next().is_none()).then_some(first)
    }

    /// All names and addresses but that of the node itself.
    fn hosts(&self) -> Vec<String> {
        self.names()
            .filter_map(|name| match name {
                GeneralName::DNSName(name) if parse_node_name(name).is_none() => {
                    Some((*name).to_owned())
                }
                GeneralName::IPAddress(bytes) => ip_of(bytes).map(|ip| ip.to_string()),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn begins(&self) -> Timestamp {
        Timestamp::new(self.0.validity().not_before.timestamp(), 0)
    }

    fn expires(&self) -> Timestamp {
        Timestamp::new(self.0.validity().not_after.timestamp(), 0)
    }

    pub(crate) fn check_key(&self, key: &KeyPair) -> Result<(), TrustError> {
        match self.0.public_key().raw == key.subject_public_key_info() {
            true => Ok(()),
            false => Err(TrustError::certificate("its key is of another one")),
        }
    }
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_a_node_or_of_none() {
        let name = node_name(NodeId(7), PoolId(u128::MAX));
        assert_eq!(parse_node_name(&name), Some((NodeId(7), PoolId(u128::MAX))));
        assert!(name.split('.').all(|label| label.len() <= 63));
        assert_eq!(parse_authority_name(&name), None);
        assert_eq!(
            parse_authority_name(&authority_name(PoolId(3))),
            Some(PoolId(3))
        );
        let others = [
            "",
            "localhost",
            "7.node.8.cairn.internal",
            &name[1..],
            &name.to_uppercase(),
            &name.replace(".node.", ".disk."),
            &format!("{name}."),
            &format!("x.{name}"),
            &name.replace("internal", "example"),
        ];
        for other in others {
            assert_eq!(parse_node_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_certificate_is_due_when_less_than_a_third_of_its_life_is_left() {
        let day = BACKDATED.as_secs() as i64;
        let certificate = NodeCertificate {
            certificate_pem: String::new(),
            key_pem: String::new(),
            cluster: PoolId(1),
            subject: Subject {
                node: NodeId(1),
                hosts: Vec::new(),
            },
            begins: Timestamp::new(10_000, 0),
            expires: Timestamp::new(10_000 + day + 900, 0),
        };
        // Issued at 10_000 + day.
        let cases = [
            (9_999, true),
            (10_000, false),
            (10_000 + day, false),
            (10_000 + day + 600, false),
            (10_000 + day + 601, true),
            (i64::MAX, true),
            (i64::MIN, true),
        ];
        for (seconds, want) in cases {
            let now = Timestamp::new(seconds, 0);
            assert_eq!(certificate.is_due(now), want, "{seconds}");
        }
        let now = Timestamp::new(10_000 + day, 0);
        assert_eq!(certificate.due_in(now), Duration::from_secs(601));
    }
}
