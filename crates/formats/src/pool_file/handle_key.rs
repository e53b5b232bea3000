//! The key that signs the handles of files.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::encryption::KeptSecret;

/// Signs the handles of files. `Debug` hides it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HandleKey(pub u128);

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleKey(..)")
    }
}

impl HandleKey {
    /// As it is kept as a secret.
    pub fn to_text(self) -> String {
        format!("{:032x}", self.0)
    }

    /// What [`Self::to_text`] made.
    pub fn from_text(text: &str) -> Option<Self> {
        let is_whole = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_whole.then(|| u128::from_str_radix(text, 16));
        number?.ok().map(Self)
    }

    /// As the pool file has it where there is no master key.
    pub fn readable(self) -> KeptSecret {
        KeptSecret::Readable(self.to_text())
    }
}

impl Serialize for HandleKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for HandleKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let key = Self::from_text(&text);
        key.ok_or_else(|| serde::de::Error::custom("a handle key has 32 hexadecimal digits"))
    }
}
