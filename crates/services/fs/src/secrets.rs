//! Secrets that services keep in the extended attributes of a volume: of access keys, of initiators.
//!
//! Owns: the name of the place that a secret is wrapped for. Must not know: the purpose of a secret, where keys come
//! from.
//!
//! They are wrapped with the key of the pool's secrets, whether or not the volume is encrypted. An encrypted volume
//! also encrypts the attribute.

pub use cairn_keys::{KeptSecret, KeyError as SecretError};

use crate::volume::Fs;

impl Fs {
    /// Wraps a secret for storage. `what` names it within the volume: a secret that is stored under another name is
    /// refused.
    pub fn keep_secret(&self, what: &str, secret: &str) -> Result<KeptSecret, SecretError> {
        let (shared, place) = (&self.shared, self.place_of(what));
        cairn_keys::keep(&*shared.secrets, &place, secret, &*shared.env.entropy)
    }

    /// Unwraps a stored secret. Fails if its master key is not here, or if the secret was copied here from another place.
    pub fn secret(&self, what: &str, kept: &KeptSecret) -> Result<String, SecretError> {
        let place = self.place_of(what);
        let secret = cairn_keys::reveal(&*self.shared.secrets, &place, kept)?;
        Ok(secret.as_str().to_owned())
    }

    /// Whether secrets that are stored in clear text, from before there was a master key, are to be wrapped.
    pub fn wraps_secrets(&self) -> bool {
        matches!(self.shared.secrets.key(), Ok(Some(_)))
    }

    fn place_of(&self, what: &str) -> String {
        format!("volume {} {what}", self.volume())
    }
}
