//! Stored parts of encryption: those beside encrypted bytes, and the wrapped key of a volume.
//!
//! Owns: its form. Must not know: how anything is encrypted, any key.

use std::fmt;
use std::str::FromStr;

use cairn_base::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Makes the key of one record, or of one journal entry, out of that of its volume: random, and never used twice.
pub type Salt = [u8; 16];
/// What GCM adds to encrypted bytes; only who has the key can make it.
pub type Tag = [u8; 16];

/// The salt and tags of encrypted bytes, kept apart from them. Encrypted bytes are as long as the plain ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    pub salt: Salt,
    /// One for each checksum of a record; one for a journal entry.
    pub tags: Vec<Tag>,
}

/// Names a master key, and tells nothing of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasterKeyId(pub [u8; 8]);

impl fmt::Display for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex(&self.0))
    }
}

impl fmt::Debug for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKeyId({self})")
    }
}

/// It is not the hexadecimal form of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not {digits} hexadecimal digits")]
pub struct DigitsError {
    digits: usize,
}

impl FromStr for MasterKeyId {
    type Err = DigitsError;

    fn from_str(text: &str) -> Result<Self, DigitsError> {
        from_hex(text).map(Self)
    }
}

impl Serialize for MasterKeyId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MasterKeyId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Nonce (12 bytes), encrypted key (32) and tag (16).
pub const WRAPPED_LEN_BYTES: usize = 12 + 32 + 16;

/// The key of a volume, encrypted with a master key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    pub master_key: MasterKeyId,
    pub wrapped: [u8; WRAPPED_LEN_BYTES],
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrappedFields {
    master_key: MasterKeyId,
    wrapped: String,
}

impl Serialize for WrappedKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let fields = WrappedFields {
            master_key: self.master_key,
            wrapped: hex(&self.wrapped),
        };
        fields.serialize(to)
    }
}

impl<'de> Deserialize<'de> for WrappedKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let fields = WrappedFields::deserialize(from)?;
        Ok(Self {
            master_key: fields.master_key,
            wrapped: from_hex(&fields.wrapped).map_err(serde::de::Error::custom)?,
        })
    }
}

/// Salt (16 bytes) and tag (16): what a wrapped secret is longer than the secret.
pub const SECRET_MORE_BYTES: usize = 32;
/// Longest secret that is kept, wrapped or not, in bytes.
pub const SECRET_LEN_BYTES_MAX: usize = 1024;

/// A secret, encrypted for the one place where it lies: salt, encrypted bytes, tag.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrappedSecret {
    wrapped: HexBytes,
}

impl WrappedSecret {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            wrapped: HexBytes(bytes),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.wrapped.0
    }
}

#[derive(Clone, PartialEq, Eq)]
struct HexBytes(Vec<u8>);

impl Serialize for HexBytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let text = String::deserialize(from)?;
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let len = SECRET_MORE_BYTES..=SECRET_MORE_BYTES + SECRET_LEN_BYTES_MAX;
        if !rest.is_empty() || !len.contains(&pairs.len()) {
            return Err(D::Error::custom("a wrapped secret is of another length"));
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let byte = |pair: &[u8; 2]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let bytes = bytes.ok_or_else(|| D::Error::custom("a wrapped secret is hexadecimal"))?;
        Ok(Self(bytes))
    }
}

/// A secret as it is kept: wrapped where there is a master key, readable where there was none. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeptSecret {
    Readable(String),
    Wrapped(WrappedSecret),
}

impl KeptSecret {
    pub fn is_wrapped(&self) -> bool {
        matches!(self, Self::Wrapped(_))
    }
}

impl fmt::Debug for KeptSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Readable(_) => "Readable(..)",
            Self::Wrapped(_) => "Wrapped(..)",
        })
    }
}

/// That a volume is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeEncryption {
    /// With this key.
    Key(WrappedKey),
    /// With a key that was erased then: nobody can read it any more.
    Erased(Timestamp),
}

impl VolumeEncryption {
    pub fn key(&self) -> Option<&WrappedKey> {
        match self {
            Self::Key(key) => Some(key),
            Self::Erased(_) => None,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex<const N: usize>(text: &str) -> Result<[u8; N], DigitsError> {
    let refused = DigitsError { digits: 2 * N };
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(refused);
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return Err(refused);
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
        let [high, low] = *pair;
        *byte = (digit(high)? << 4 | digit(low)?) as u8;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_secrets_are_read_or_refused() {
        let kept = [
            KeptSecret::Readable("hidden".to_owned()),
            KeptSecret::Wrapped(WrappedSecret::new((0..38).collect())),
        ];
        for secret in kept {
            let json = serde_json::to_string(&secret).unwrap();
            assert_eq!(serde_json::from_str::<KeptSecret>(&json).unwrap(), secret);
            let shown = format!("{secret:?}");
            assert!(shown.ends_with("(..)"), "{shown}");
        }
        let long = "00".repeat(SECRET_MORE_BYTES + SECRET_LEN_BYTES_MAX + 1);
        let short = "00".repeat(SECRET_MORE_BYTES - 1);
        let odd = "0".repeat(2 * SECRET_MORE_BYTES + 1);
        let digits = "0g".repeat(SECRET_MORE_BYTES);
        let good = "00".repeat(SECRET_MORE_BYTES);
        let refused = [
            "7".to_owned(),
            "null".to_owned(),
            "{}".to_owned(),
            format!(r#"{{"wrapped": "{long}"}}"#),
            format!(r#"{{"wrapped": "{short}"}}"#),
            format!(r#"{{"wrapped": "{odd}"}}"#),
            format!(r#"{{"wrapped": "{digits}"}}"#),
            format!(r#"{{"wrapped": "{good}", "more": 1}}"#),
        ];
        for json in refused {
            assert!(serde_json::from_str::<KeptSecret>(&json).is_err(), "{json}");
        }
    }

    #[test]
    fn keys_of_volumes_are_read_or_refused() {
        let key = VolumeEncryption::Key(WrappedKey {
            master_key: MasterKeyId([1, 2, 3, 4, 5, 6, 7, 0xf8]),
            wrapped: [0xab; WRAPPED_LEN_BYTES],
        });
        let digits = "ab".repeat(WRAPPED_LEN_BYTES);
        let json = format!(r#"{{"key":{{"master_key":"01020304050607f8","wrapped":"{digits}"}}}}"#);
        assert_eq!(serde_json::to_string(&key).unwrap(), json);
        assert_eq!(
            serde_json::from_str::<VolumeEncryption>(&json).unwrap(),
            key
        );
        let erased = VolumeEncryption::Erased(Timestamp::new(5, 6));
        let json = serde_json::to_string(&erased).unwrap();
        assert_eq!(
            serde_json::from_str::<VolumeEncryption>(&json).unwrap(),
            erased
        );
        let bad = [
            format!(r#"{{"key":{{"master_key":"01020304050607f","wrapped":"{digits}"}}}}"#),
            format!(r#"{{"key":{{"master_key":"01020304050607fg","wrapped":"{digits}"}}}}"#),
            format!(r#"{{"key":{{"master_key":"01020304050607f8","wrapped":"{digits}ab"}}}}"#),
            format!(r#"{{"key":{{"master_key":"é1020304050607f","wrapped":"{digits}"}}}}"#),
            r#"{"key":{"master_key":"01020304050607f8"}}"#.to_owned(),
            r#""other""#.to_owned(),
        ];
        for json in bad {
            assert!(
                serde_json::from_str::<VolumeEncryption>(&json).is_err(),
                "{json}"
            );
        }
    }
}
