//! The key of a pool's secrets, and secrets that are wrapped with it: those of access keys, of initiators, of file handles.
//!
//! A master key wraps one key for each pool, and that key wraps the secrets. So another master key is one change of the pool's
//! state: secrets lie in volumes, in their snapshots, in copies of their logs, which nobody could wrap anew.

use std::fmt;
use std::sync::Arc;

use cairn_base::env::Entropy;
use cairn_formats::encryption::{KeptSecret, SECRET_MORE_BYTES, Salt, WrappedSecret};
use ring::aead::{Aad, Nonce};
use zeroize::Zeroizing;

use crate::master::KeyError;
use crate::{KEY_LEN_BYTES, Secret, derive};

const PURPOSE: &[u8] = b"cairn secret 1";
const TAG_LEN_BYTES: usize = 16;
const _: () = assert!(size_of::<Salt>() + TAG_LEN_BYTES == SECRET_MORE_BYTES);

/// Wraps the secrets of one pool. Random, and never written anywhere but wrapped with a master key.
pub struct SecretsKey {
    secret: Secret,
}

impl fmt::Debug for SecretsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretsKey(..)")
    }
}

impl SecretsKey {
    pub(crate) fn new(secret: Secret) -> Self {
        Self { secret }
    }

    pub fn random(entropy: &dyn Entropy) -> Self {
        let mut secret = Secret::default();
        entropy.fill(&mut *secret);
        Self { secret }
    }

    pub(crate) fn secret(&self) -> &[u8; KEY_LEN_BYTES] {
        &self.secret
    }

    /// Wraps a secret for one place. `place` says what it is and where it lies; no two places are called the same.
    pub fn wrap(&self, place: &str, secret: &str, entropy: &dyn Entropy) -> WrappedSecret {
        let mut salt = Salt::default();
        entropy.fill(&mut salt);
        let mut bytes = Vec::with_capacity(SECRET_MORE_BYTES + secret.len());
        bytes.extend_from_slice(&salt);
        bytes.extend_from_slice(secret.as_bytes());
        let sealed = derive(&self.secret, &[PURPOSE, &salt]).seal_in_place_separate_tag(
            nonce(),
            Aad::from(place.as_bytes()),
            &mut bytes[salt.len()..],
        );
        let tag = sealed.expect("no secret is too long for GCM");
        bytes.extend_from_slice(tag.as_ref());
        WrappedSecret::new(bytes)
    }

    /// The secret that was wrapped for this very place.
    pub fn unwrap(
        &self,
        place: &str,
        wrapped: &WrappedSecret,
    ) -> Result<Zeroizing<String>, KeyError> {
        let refused = KeyError::SecretNotAuthentic;
        let salt_and_rest = wrapped.bytes().split_first_chunk();
        let (salt, rest) = salt_and_rest.ok_or_else(|| refused.clone())?;
        let salt: &Salt = salt;
        let mut bytes = Zeroizing::new(rest.to_vec());
        let opened = derive(&self.secret, &[PURPOSE, salt]).open_in_place(
            nonce(),
            Aad::from(place.as_bytes()),
            &mut bytes,
        );
        let opened = opened.map_err(|_| refused.clone())?;
        let text = std::str::from_utf8(opened).map_err(|_| refused)?;
        Ok(Zeroizing::new(text.to_owned()))
    }
}

/// The key is that of one salt, and encrypts once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// Tells the key of the pool's secrets, as it is known now.
pub trait Secrets: Send + Sync + 'static {
    /// `None`: there never was a master key, so that secrets are kept as they are. An error: there was one, and it is not
    /// here.
    fn key(&self) -> Result<Option<Arc<SecretsKey>>, KeyError>;
}

/// Of a pool without master keys.
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn key(&self) -> Result<Option<Arc<SecretsKey>>, KeyError> {
        Ok(None)
    }
}

/// A secret in the form in which it is to be kept at a place.
pub fn keep(
    secrets: &dyn Secrets,
    place: &str,
    secret: &str,
    entropy: &dyn Entropy,
) -> Result<KeptSecret, KeyError> {
    Ok(match secrets.key()? {
        Some(key) => KeptSecret::Wrapped(key.wrap(place, secret, entropy)),
        None => KeptSecret::Readable(secret.to_owned()),
    })
}

/// The secret that is kept at a place.
pub fn reveal(
    secrets: &dyn Secrets,
    place: &str,
    kept: &KeptSecret,
) -> Result<Zeroizing<String>, KeyError> {
    match kept {
        // From before there was a master key.
        KeptSecret::Readable(secret) => Ok(Zeroizing::new(secret.clone())),
        KeptSecret::Wrapped(wrapped) => {
            let key = secrets.key()?.ok_or(KeyError::NoSecretsKey)?;
            key.unwrap(place, wrapped)
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_testkit::test_env;

    use super::*;

    /// Tells one key, or that its master key is missing.
    struct Of(Option<Arc<SecretsKey>>);

    impl Secrets for Of {
        fn key(&self) -> Result<Option<Arc<SecretsKey>>, KeyError> {
            let id = cairn_formats::encryption::MasterKeyId([7; 8]);
            match &self.0 {
                Some(key) => Ok(Some(Arc::clone(key))),
                None => Err(KeyError::Missing { id }),
            }
        }
    }

    fn key(byte: u8) -> Arc<SecretsKey> {
        Arc::new(SecretsKey::new(Secret::new([byte; 32])))
    }

    #[test]
    fn a_secret_is_unwrapped_at_its_place_by_its_key() {
        let env = test_env();
        let (place, secret) = ("volume 3 access key AKIA", "a secret of some length");
        let wrapped = key(1).wrap(place, secret, &*env.entropy);
        let shown = |opened: Result<Zeroizing<String>, KeyError>| opened.map(|it| it.to_string());
        assert_eq!(shown(key(1).unwrap(place, &wrapped)), Ok(secret.to_owned()));
        let refused = Err(KeyError::SecretNotAuthentic);
        assert_eq!(
            shown(key(2).unwrap(place, &wrapped)),
            refused,
            "another key"
        );
        for other in ["volume 4 access key AKIA", "volume 3 access key AKIB", ""] {
            assert_eq!(shown(key(1).unwrap(other, &wrapped)), refused, "{other:?}");
        }
        for bit in 0..wrapped.bytes().len() * 8 {
            let mut bytes = wrapped.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let bad = WrappedSecret::new(bytes);
            assert_eq!(shown(key(1).unwrap(place, &bad)), refused, "{bit}");
        }
        for len in [0, 15, 16, SECRET_MORE_BYTES - 1] {
            let bad = WrappedSecret::new(wrapped.bytes()[..len].to_vec());
            assert_eq!(shown(key(1).unwrap(place, &bad)), refused, "{len} bytes");
        }
        let again = key(1).wrap(place, secret, &*env.entropy);
        assert_ne!(again.bytes(), wrapped.bytes(), "no two are alike");
        let needle = secret.as_bytes();
        let mut windows = wrapped.bytes().windows(needle.len());
        assert!(!windows.any(|window| window == needle));
    }

    #[test]
    fn secrets_are_kept_readable_only_where_there_never_was_a_master_key() {
        let env = test_env();
        let (with, locked) = (Of(Some(key(1))), Of(None));
        let shown = |opened: Result<Zeroizing<String>, KeyError>| opened.map(|it| it.to_string());
        let readable = keep(&NoSecrets, "here", "hidden", &*env.entropy).unwrap();
        assert_eq!(readable, KeptSecret::Readable("hidden".to_owned()));
        let wrapped = keep(&with, "here", "hidden", &*env.entropy).unwrap();
        assert!(wrapped.is_wrapped());
        // From before there was one: read by everybody, as it lies there.
        for secrets in [&NoSecrets as &dyn Secrets, &with, &locked] {
            assert_eq!(
                shown(reveal(secrets, "here", &readable)),
                Ok("hidden".to_owned())
            );
        }
        assert_eq!(
            shown(reveal(&with, "here", &wrapped)),
            Ok("hidden".to_owned())
        );
        let missing = shown(reveal(&locked, "here", &wrapped));
        assert!(
            matches!(missing, Err(KeyError::Missing { .. })),
            "{missing:?}"
        );
        let none = shown(reveal(&NoSecrets, "here", &wrapped));
        assert_eq!(none, Err(KeyError::NoSecretsKey));
        assert!(keep(&locked, "here", "hidden", &*env.entropy).is_err());
        assert_eq!(format!("{:?}", key(1)), "SecretsKey(..)");
    }
}
