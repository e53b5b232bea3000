//! The provider's keys (RFC 7517) and what they vouch for (RFC 7518).
//!
//! Owns: which algorithms there are, which key may have made a signature. Must not know: what is signed.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;

/// Most keys of a provider; those beyond are not looked at.
const KEYS_MAX: usize = 64;

/// One key as the provider publishes it. What it is for and has, as far as we can use it.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Key {
    #[serde(default)]
    kty: String,
    #[serde(default, rename = "use")]
    used_for: Option<String>,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    e: Option<String>,
    #[serde(default)]
    x: Option<String>,
    #[serde(default)]
    y: Option<String>,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

/// The keys in a set. One that cannot be read is left out: providers add kinds that we do not know.
pub fn read(set: &[u8]) -> Result<Vec<Key>, serde_json::Error> {
    let set: KeySet = serde_json::from_slice(set)?;
    let keys = set.keys.into_iter().take(KEYS_MAX);
    Ok(keys
        .filter_map(|key| serde_json::from_value(key).ok())
        .collect())
}

/// How a signature is made. Neither `none` nor those with a shared secret: anybody who knows the client's secret could sign.
#[derive(Clone, Copy)]
pub enum Algorithm {
    Rsa(&'static RsaParameters),
    Ec(
        &'static signature::EcdsaVerificationAlgorithm,
        &'static str,
        usize,
    ),
    Ed25519,
}

impl Algorithm {
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            "RS384" => Self::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            "RS512" => Self::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            "PS256" => Self::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
            "PS384" => Self::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
            "PS512" => Self::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
            "ES256" => Self::Ec(&signature::ECDSA_P256_SHA256_FIXED, "P-256", 32),
            "ES384" => Self::Ec(&signature::ECDSA_P384_SHA384_FIXED, "P-384", 48),
            "EdDSA" | "Ed25519" => Self::Ed25519,
            _ => return None,
        })
    }
}

fn bytes(text: Option<&String>) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text?).ok()
}

impl Key {
    /// Whether this key may have made a signature by `alg` that names `kid`.
    pub fn may_be(&self, alg: &str, kid: Option<&str>) -> bool {
        let is_it = kid.is_none() || self.kid.as_deref() == kid;
        let is_for_signing = self.used_for.as_deref().is_none_or(|it| it == "sig");
        let has_alg = self.alg.as_deref().is_none_or(|it| it == alg);
        is_it && is_for_signing && has_alg
    }

    /// Whether this key made the signature.
    pub fn vouches(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        self.verified(algorithm, message, signature).is_some()
    }

    fn verified(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> Option<()> {
        match algorithm {
            Algorithm::Rsa(parameters) if self.kty == "RSA" => {
                let (n, e) = (bytes(self.n.as_ref())?, bytes(self.e.as_ref())?);
                // `ring` takes no zeros in front, which some providers send.
                let first = n.iter().position(|byte| *byte != 0)?;
                let n = n.get(first..)?;
                RsaPublicKeyComponents { n, e: &e[..] }
                    .verify(parameters, message, signature)
                    .ok()
            }
            Algorithm::Ec(algorithm, curve, len)
                if self.kty == "EC" && self.crv.as_deref() == Some(curve) =>
            {
                let (x, y) = (bytes(self.x.as_ref())?, bytes(self.y.as_ref())?);
                if x.len() != len || y.len() != len {
                    return None;
                }
                let point = [&[4][..], &x, &y].concat();
                UnparsedPublicKey::new(algorithm, point)
                    .verify(message, signature)
                    .ok()
            }
            Algorithm::Ed25519 if self.kty == "OKP" && self.crv.as_deref() == Some("Ed25519") => {
                UnparsedPublicKey::new(&signature::ED25519, bytes(self.x.as_ref())?)
                    .verify(message, signature)
                    .ok()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
impl Key {
    /// An Ed25519 key for tests.
    pub fn of_test(kid: &str, public: &[u8]) -> Self {
        Self {
            kty: "OKP".to_owned(),
            kid: Some(kid.to_owned()),
            crv: Some("Ed25519".to_owned()),
            x: Some(BASE64_URL_SAFE_NO_PAD.encode(public)),
            ..Self::default()
        }
    }

    pub fn with(mut self, used_for: Option<&str>, alg: Option<&str>) -> Self {
        self.used_for = used_for.map(str::to_owned);
        self.alg = alg.map(str::to_owned);
        self
    }
}
