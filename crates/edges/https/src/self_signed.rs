//! A certificate that vouches for itself: a client with a copy of it knows the server by it.

use std::time::Duration;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use time::OffsetDateTime;

use crate::certificate::CertificateError;

/// It is valid from so long before it is made: clocks differ.
const BACKDATED: Duration = Duration::from_secs(24 * 3600);
/// How long it is valid. It is known by its copy, and there is nobody who would renew it.
const VALID: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A certificate and its key, as PEM. `Debug` hides the key.
pub struct SelfSigned {
    pub certificate_pem: String,
    pub key_pem: String,
}

impl std::fmt::Debug for SelfSigned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SelfSigned(..)")
    }
}

/// Makes one for these names and addresses, valid for ten years from `now_seconds` (since 1970 UTC).
///
/// It signs nothing but itself: who trusts it trusts no other certificate for it.
pub fn self_signed(names: &[String], now_seconds: i64) -> Result<SelfSigned, CertificateError> {
    let wrong = |error: &dyn std::fmt::Display| {
        CertificateError::new(format!("a certificate for {}: {error}", names.join(", ")))
    };
    let mut params = CertificateParams::new(names.to_vec()).map_err(|error| wrong(&error))?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, "Cairn");
    params.distinguished_name = name;
    let now = OffsetDateTime::from_unix_timestamp(now_seconds).map_err(|error| wrong(&error))?;
    params.not_before =
        now.saturating_add(-time::Duration::try_from(BACKDATED).unwrap_or_default());
    params.not_after = now.saturating_add(time::Duration::try_from(VALID).unwrap_or_default());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().map_err(|error| wrong(&error))?;
    let certificate = params.self_signed(&key).map_err(|error| wrong(&error))?;
    Ok(SelfSigned {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Certificate;

    #[test]
    fn one_that_was_made_can_be_served() {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let made = self_signed(&names, 1_800_000_000).unwrap();
        let served = Certificate::new(made.certificate_pem.as_bytes(), made.key_pem.as_bytes());
        assert!(served.unwrap().acceptor().is_ok());
        assert!(!format!("{made:?}").contains("KEY"));
        // Another one has another key.
        let other = self_signed(&names, 1_800_000_000).unwrap();
        assert_ne!(other.key_pem, made.key_pem);
        let mixed = Certificate::new(made.certificate_pem.as_bytes(), other.key_pem.as_bytes());
        assert!(mixed.is_err());
        assert!(self_signed(&["nö name".to_owned()], 0).is_err());
        assert!(self_signed(&names, i64::MAX).is_err());
    }
}
