//! The cluster's own CA.
//!
//! Owns: making it, issuing certificates of nodes, its fingerprint.
//! Must not know: where it is kept, who may have a certificate.
//!
//! Some nodes have the CA's key, and the others only its certificate: they ask one of those for certificates of their own.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use cairn_base::{NodeId, PoolId, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams,
    CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKey, PublicKeyData, RevocationReason,
    RevokedCertParams, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::BACKDATED;
use crate::address::check_host;
use crate::certificate::{
    NodeCertificate, Parsed, Subject, authority_name, certificate_of, key_of, member_name,
    node_name,
};
use crate::error::TrustError;

/// A CA outlives its cluster.
const AUTHORITY_VALID_FOR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// More names are in no certificate.
const HOSTS_MAX: usize = 32;
/// Always in a certificate: etcd's own tools, and the node itself.
const HOSTS_OF_ALL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const SERIAL_LEN_BYTES: usize = 16;
const FINGERPRINT_LEN_BYTES: usize = 32;
const DAY_SECONDS: i64 = 24 * 3600;
/// A node's certificate is valid for so long at most.
pub const VALID_FOR_MAX: Duration = Duration::from_secs(90 * DAY_SECONDS as u64);
/// Clocks of who issues certificates and of who revokes them differ by less.
const REVOKED_MARGIN_DAYS: i64 = 2;
/// After so long all certificates of a revoked node have expired, and the list says nothing of it any more.
pub const REVOKED_FOR: Duration = Duration::from_secs(
    VALID_FOR_MAX.as_secs() + 2 * REVOKED_MARGIN_DAYS as u64 * DAY_SECONDS as u64,
);

/// SHA-256 of a CA's certificate (DER). Names the CA where nothing else is known of it; no secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; FINGERPRINT_LEN_BYTES]);

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

impl FromStr for Fingerprint {
    type Err = TrustError;

    /// 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, TrustError> {
        let bad = || TrustError::Invalid {
            what: "the fingerprint of a CA",
            value: text.chars().take(2 * FINGERPRINT_LEN_BYTES).collect(),
            problem: "it has 64 hexadecimal digits",
        };
        let is_fine = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 2 * FINGERPRINT_LEN_BYTES || !text.bytes().all(is_fine) {
            return Err(bad());
        }
        let mut bytes = [0; FINGERPRINT_LEN_BYTES];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A node that is none of the cluster any more, and since when: none of its certificates is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revoked {
    pub node: NodeId,
    pub at: Timestamp,
}

/// The CA of one cluster, with its key or without. `Debug` hides the key.
pub struct Authority {
    cluster: PoolId,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key: Option<AuthorityKey>,
}

struct AuthorityKey {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("cluster", &self.cluster)
            .field("fingerprint", &self.fingerprint())
            .field("has_key", &self.has_key())
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes the CA of a new cluster. Its certificate has the cluster's id and not its name: unauthorized clients see it.
    pub fn create(cluster: PoolId, now: Timestamp) -> Result<Self, TrustError> {
        let key = KeyPair::generate().map_err(TrustError::certificate)?;
        let mut params =
            CertificateParams::new([authority_name(cluster)]).map_err(TrustError::certificate)?;
        params.distinguished_name = common_name(format!("Cairn cluster {cluster}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = date(now.seconds, -(BACKDATED.as_secs() as i64))?;
        params.not_after = date(now.seconds, AUTHORITY_VALID_FOR.as_secs() as i64)?;
        let certificate = params.self_signed(&key).map_err(TrustError::certificate)?;
        Self::load(&certificate.pem(), &key.serialize_pem())
    }

    pub fn load(certificate_pem: &str, key_pem: &str) -> Result<Self, TrustError> {
        Self::load_certificate(certificate_pem)?.with_key(key_pem)
    }

    /// The CA as a node has it that issues no certificates.
    pub fn load_certificate(certificate_pem: &str) -> Result<Self, TrustError> {
        let certificate = certificate_of(certificate_pem)?;
        let parsed = Parsed::of(&certificate)?;
        let cluster = parsed
            .authority()
            .ok_or_else(|| TrustError::certificate("it is not of the CA of a cluster"))?;
        Ok(Self {
            cluster,
            certificate,
            certificate_pem: certificate_pem.to_owned(),
            key: None,
        })
    }

    /// This CA with its key, which is compared with the certificate.
    pub fn with_key(&self, key_pem: &str) -> Result<Self, TrustError> {
        let key = key_of(key_pem)?;
        Parsed::of(&self.certificate)?.check_key(&key)?;
        let issuer =
            Issuer::from_ca_cert_der(&self.certificate, key).map_err(TrustError::certificate)?;
        Ok(Self {
            key: Some(AuthorityKey {
                pem: key_pem.to_owned(),
                issuer,
            }),
            ..self.without_key()
        })
    }

    pub fn without_key(&self) -> Self {
        Self {
            cluster: self.cluster,
            certificate: self.certificate.clone(),
            certificate_pem: self.certificate_pem.clone(),
            key: None,
        }
    }

    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    fn issuer(&self) -> Result<&Issuer<'static, KeyPair>, TrustError> {
        let key = self.key.as_ref().ok_or(TrustError::NoKey)?;
        Ok(&key.issuer)
    }

    pub fn cluster(&self) -> PoolId {
        self.cluster
    }

    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// The name that members of etcd have in their certificates beside those of their nodes: a node with the CA's key gives it to itself,
    /// and no node gives it to another one.
    pub fn member_name(&self) -> String {
        member_name(self.cluster)
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// From when on it is valid: a day before it was made.
    pub fn begins(&self) -> Result<Timestamp, TrustError> {
        Ok(Parsed::of(&self.certificate)?.begins())
    }

    /// The cluster's greatest secret, on nodes that have it.
    pub fn key_pem(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.pem.as_str())
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
    /// reader finds two that do not belong together.
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
        let pem = self.sign(key, subject, now, valid_for)?;
        NodeCertificate::load(&pem, &key.serialize_pem())
    }

    /// A certificate for who has a key, as PEM. Nothing but that key is taken from the request; whom the certificate is for says who
    /// calls this.
    pub fn answer(
        &self,
        request: &CertificateRequest,
        subject: &Subject,
        now: Timestamp,
        valid_for: Duration,
    ) -> Result<String, TrustError> {
        self.sign(&request.0, subject, now, valid_for)
    }

    fn sign(
        &self,
        key: &impl PublicKeyData,
        subject: &Subject,
        now: Timestamp,
        valid_for: Duration,
    ) -> Result<String, TrustError> {
        let issuer = self.issuer()?;
        let names = self.names(subject)?;
        let mut params = CertificateParams::new(names).map_err(TrustError::certificate)?;
        // etcd's name for the user.
        params.distinguished_name = common_name(subject.node.to_string());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial(subject.node, day_of(now)));
        let valid_for = valid_for.min(VALID_FOR_MAX);
        let valid_seconds = i64::try_from(valid_for.as_secs()).unwrap_or(i64::MAX);
        params.not_before = date(now.seconds, -(BACKDATED.as_secs() as i64))?;
        params.not_after = date(now.seconds, valid_seconds)?;
        let certificate = params
            .signed_by(key, issuer)
            .map_err(TrustError::certificate)?;
        Ok(certificate.pem())
    }

    /// The list of certificates that are not to be taken though they are valid (RFC 5280, section 5; DER): all that these nodes
    /// can have.
    pub fn revocation_list(
        &self,
        revoked: &[Revoked],
        now: Timestamp,
    ) -> Result<Vec<u8>, TrustError> {
        let mut certificates = Vec::new();
        for Revoked { node, at } in revoked {
            let revocation_time = date(at.seconds, 0)?;
            certificates.extend(revoked_days(*at).map(|day| RevokedCertParams {
                serial_number: serial(*node, day),
                revocation_time,
                reason_code: Some(RevocationReason::CessationOfOperation),
                invalidity_date: None,
            }));
        }
        let list = CertificateRevocationListParams {
            this_update: date(now.seconds, -(BACKDATED.as_secs() as i64))?,
            next_update: date(now.seconds, AUTHORITY_VALID_FOR.as_secs() as i64)?,
            crl_number: SerialNumber::from(u64::try_from(now.seconds).unwrap_or(0)),
            issuing_distribution_point: None,
            revoked_certs: certificates,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let signed = list
            .signed_by(self.issuer()?)
            .map_err(TrustError::certificate)?;
        Ok(signed.der().to_vec())
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

/// The key that somebody wants a certificate for, and has: the request is signed with it (PKCS #10, RFC 2986).
#[derive(Clone, Debug)]
pub struct CertificateRequest(PublicKey);

impl FromStr for CertificateRequest {
    type Err = TrustError;

    fn from_str(pem: &str) -> Result<Self, TrustError> {
        let parsed = CertificateSigningRequestParams::from_pem(pem)
            .map_err(|error| TrustError::Certificate(format!("a request for one: {error}")))?;
        Ok(Self(parsed.public_key))
    }
}

/// The request of who has a key, as PEM.
pub(crate) fn request_for(key: &KeyPair) -> Result<String, TrustError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params
        .serialize_request(key)
        .map_err(TrustError::certificate)?;
    request.pem().map_err(TrustError::certificate)
}

/// The numbers of the certificates in a list of revoked ones.
pub(crate) fn revoked_numbers(list: &[u8]) -> Result<BTreeSet<Vec<u8>>, TrustError> {
    let (_, parsed) = CertificateRevocationList::from_der(list)
        .map_err(|error| TrustError::Certificate(format!("a list of revoked ones: {error}")))?;
    let revoked = parsed.iter_revoked_certificates();
    Ok(revoked.map(|it| it.raw_serial().to_vec()).collect())
}

fn day_of(now: Timestamp) -> i64 {
    now.seconds.div_euclid(DAY_SECONDS)
}

/// The days on which a certificate was made that a node may have when it is revoked.
fn revoked_days(at: Timestamp) -> std::ops::RangeInclusive<i64> {
    let day = day_of(at);
    let valid_days = VALID_FOR_MAX.as_secs() as i64 / DAY_SECONDS;
    let first = day.saturating_sub(valid_days + REVOKED_MARGIN_DAYS);
    first..=day.saturating_add(REVOKED_MARGIN_DAYS)
}

/// The number of a certificate follows from the node and the day: so all numbers of a node are known without a list of what was
/// issued, by whichever node, also in a map that was restored. Those that are made on one day share it, though RFC 5280
/// (section 4.1.2.2) wants each to have its own. They are revoked together anyway, and nothing here asks for one by its number.
fn serial(node: NodeId, day: i64) -> SerialNumber {
    let mut hash = Sha256::new();
    hash.update(node.0.to_be_bytes());
    hash.update(day.to_be_bytes());
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
        let key = authority.key_pem().unwrap();
        let again = Authority::load(authority.certificate_pem(), key).unwrap();
        assert_eq!(again.cluster(), PoolId(9));
        assert_eq!(again.fingerprint(), authority.fingerprint());
        let other = Authority::create(PoolId(9), NOW).unwrap();
        assert_ne!(other.fingerprint(), authority.fingerprint());
        for secret in key.lines() {
            assert!(!format!("{authority:?}").contains(secret));
        }
    }

    #[test]
    fn a_fingerprint_is_read_as_it_is_written() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        assert_eq!(
            authority.begins().unwrap().seconds,
            NOW.seconds - DAY_SECONDS
        );
        let print = authority.fingerprint();
        let text = print.to_string();
        assert_eq!(text.parse(), Ok(print));
        let json = serde_json::to_string(&print).unwrap();
        assert_eq!(json, format!("\"{text}\""));
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), print);
        let upper = text.to_uppercase();
        let long = format!("{text}0");
        for bad in ["", &text[1..], &long, &upper, &"é".repeat(32)] {
            // One of digits alone is the same in upper case.
            assert!(bad.parse::<Fingerprint>().is_err() || bad == text, "{bad}");
        }
    }

    #[test]
    fn what_is_no_authority_is_refused() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let other = Authority::create(PoolId(9), NOW).unwrap();
        let node = authority.issue(&subject(&[]), NOW, DAY).unwrap();
        let (pem, key) = (authority.certificate_pem(), authority.key_pem().unwrap());
        let two = format!("{pem}{pem}");
        let cut = &pem[..pem.len() / 2];
        let cases = [
            ("a key of another one", pem, other.key_pem().unwrap()),
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
    fn without_its_key_an_authority_issues_nothing() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let without = authority.without_key();
        assert_eq!(without.fingerprint(), authority.fingerprint());
        assert_eq!((without.has_key(), without.key_pem()), (false, None));
        let issued = without.issue(&subject(&[]), NOW, DAY);
        assert!(matches!(issued, Err(TrustError::NoKey)), "{issued:?}");
        assert!(without.revocation_list(&[], NOW).is_err());
        let other = Authority::create(PoolId(9), NOW).unwrap();
        assert!(without.with_key(other.key_pem().unwrap()).is_err());
        let again = without.with_key(authority.key_pem().unwrap()).unwrap();
        assert!(again.issue(&subject(&[]), NOW, DAY).is_ok());
    }

    #[test]
    fn a_request_gives_a_key_and_no_name() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut wishes = CertificateParams::new(["another.example".to_owned()]).unwrap();
        wishes.distinguished_name = common_name("root".to_owned());
        let request = wishes.serialize_request(&key).unwrap().pem().unwrap();
        for text in [request, request_for(&key).unwrap()] {
            let request: CertificateRequest = text.parse().unwrap();
            let pem = authority.answer(&request, &subject(&["a.example"]), NOW, DAY);
            let got = NodeCertificate::load(&pem.unwrap(), &key.serialize_pem()).unwrap();
            let own = authority.issue(&subject(&["a.example"]), NOW, DAY).unwrap();
            assert_eq!(got.subject, own.subject);
            assert_eq!(number(&got), number(&own));
        }
        let request = request_for(&key).unwrap();
        let cut = &request[..request.len() / 2];
        for text in ["", "x", cut, authority.certificate_pem()] {
            assert!(text.parse::<CertificateRequest>().is_err(), "{text}");
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
        let later = Timestamp::new(NOW.seconds + DAY_SECONDS, 0);
        let second = authority.renew(&first, &subject(&[]), later, DAY).unwrap();
        assert_eq!(first.key_pem, second.key_pem);
        assert_ne!(number(&first), number(&second));
        assert_eq!(number(&first).len(), SERIAL_LEN_BYTES);
    }

    fn number(certificate: &NodeCertificate) -> Vec<u8> {
        let der = certificate.chain().unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
        parsed.raw_serial().to_vec()
    }

    /// etcd compares the whole common name with its users.
    #[test]
    fn the_common_name_of_a_node_is_its_id() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let issued = authority.issue(&subject(&["a.example"]), NOW, DAY).unwrap();
        let der = issued.chain().unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
        let names: Vec<&str> = parsed
            .subject()
            .iter_common_name()
            .map(|name| name.as_str().unwrap())
            .collect();
        assert_eq!(names, [NodeId(0xabc).to_string()]);
    }

    #[test]
    fn all_certificates_that_a_removed_node_can_have_are_revoked_and_no_others() {
        let authority = Authority::create(PoolId(9), NOW).unwrap();
        let at = |days: i64| Timestamp::new(NOW.seconds + days * DAY_SECONDS, 0);
        let made = |node: u128, days: i64| {
            let subject = Subject {
                node: NodeId(node),
                hosts: Vec::new(),
            };
            let issued = authority.issue(&subject, at(days), 1000 * DAY).unwrap();
            assert!(issued.expires.seconds <= at(days + 90).seconds);
            number(&issued)
        };
        let gone = Revoked {
            node: NodeId(1),
            at: at(0),
        };
        let list = authority.revocation_list(&[gone], at(1)).unwrap();
        let revoked = revoked_numbers(&list).unwrap();
        for (node, days, want) in [
            (1, 0, true),
            (1, -90, true),
            // By a clock that is late, or fast.
            (1, -92, true),
            (1, 2, true),
            // It expired before.
            (1, -93, false),
            (2, 0, false),
            (2, -10, false),
        ] {
            assert_eq!(revoked.contains(&made(node, days)), want, "{node}, {days}");
        }
        let none = authority.revocation_list(&[], at(1)).unwrap();
        assert!(revoked_numbers(&none).unwrap().is_empty());
        for damaged in [&b""[..], b"x", &list[..list.len() / 2]] {
            assert!(revoked_numbers(damaged).is_err());
        }
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
