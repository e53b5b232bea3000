//! Secrets that services keep in a volume, in its extended attributes: of access keys, of initiators.
//!
//! Owns: the name of the place that a secret is wrapped for. Must not know: what a secret is for, where keys come from.
//!
//! They are wrapped with the key of the pool's secrets, be the volume encrypted or not. What encrypts an encrypted volume
//! encrypts the attribute beside that.

pub use cairn_keys::{KeptSecret, KeyError as SecretError};

use crate::volume::Fs;

impl Fs {
    /// A secret in the form in which it is to be kept. `what` names it within the volume: kept under another name it is
    /// refused.
    pub fn keep_secret(&self, what: &str, secret: &str) -> Result<KeptSecret, SecretError> {
        let (shared, place) = (&self.shared, self.place_of(what));
        cairn_keys::keep(&*shared.secrets, &place, secret, &*shared.env.entropy)
    }

    /// The secret that is kept so. An error: its master key is not here, or it was put here from another place.
    pub fn secret(&self, what: &str, kept: &KeptSecret) -> Result<String, SecretError> {
        let place = self.place_of(what);
        let secret = cairn_keys::reveal(&*self.shared.secrets, &place, kept)?;
        Ok(secret.as_str().to_owned())
    }

    /// Whether secrets are to be wrapped that are kept readable, from before there was a master key.
    pub fn wraps_secrets(&self) -> bool {
        matches!(self.shared.secrets.key(), Ok(Some(_)))
    }

    fn place_of(&self, what: &str) -> String {
        format!("volume {} {what}", self.volume())
    }
}
