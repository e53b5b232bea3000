//! Master keys, which the keys of volumes are wrapped with.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use cairn_base::env::Entropy;
use cairn_base::{PoolId, VolumeId};
use cairn_formats::encryption::{MasterKeyId, WRAPPED_LEN_BYTES, WrappedKey};
use ring::aead::{Aad, Nonce};
use zeroize::Zeroizing;

use crate::secrets::SecretsKey;
use crate::volume::VolumeKey;
use crate::{KEY_LEN_BYTES, Secret, derive};

/// Most master keys that are given at a time: the one in use, and those before it.
pub const KEYS_MAX: usize = 64;

const ID_PURPOSE: &[u8] = b"cairn master key id 1";
const WRAP_PURPOSE: &[u8] = b"cairn wrapping of volume keys 1";
const WRAP_DOMAIN: &[u8; 19] = b"cairn volume key 1\0";
/// Of the key of a pool's secrets. Its own key and domain: none of both is ever taken for one of the other.
const SECRETS_PURPOSE: &[u8] = b"cairn wrapping of secrets keys 1";
const SECRETS_DOMAIN: &[u8; 20] = b"cairn secrets key 1\0";
const NONCE_LEN_BYTES: usize = 12;
const TAG_LEN_BYTES: usize = 16;
const _: () = assert!(NONCE_LEN_BYTES + KEY_LEN_BYTES + TAG_LEN_BYTES == WRAPPED_LEN_BYTES);

/// Why there is no key. No message has anything of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error(
        "line {line} is not a key: a key is 32 bytes as 64 hexadecimal digits or as base64, alone on its line; `cairn key generate` makes one"
    )]
    Form { line: usize },
    #[error("line {line} is one byte 32 times, which is not a random key")]
    Weak { line: usize },
    #[error("it has no key")]
    Empty,
    #[error("it has more than {KEYS_MAX} keys")]
    TooMany,
    #[error("master key {id} is needed, and the server does not have it")]
    Missing { id: MasterKeyId },
    #[error(
        "the volume's key cannot be unwrapped with master key {id}: the stored key is damaged, or belongs to another volume"
    )]
    NotAuthentic { id: MasterKeyId },
    #[error(
        "the key of the pool's secrets cannot be unwrapped with master key {id}: the stored key is damaged, or belongs to \
         another pool"
    )]
    SecretsKeyNotAuthentic { id: MasterKeyId },
    #[error(
        "a wrapped secret cannot be unwrapped: it is damaged, or was copied from another place"
    )]
    SecretNotAuthentic,
    #[error(
        "secrets cannot be set or created until they can be wrapped with the server's master key: {why}"
    )]
    Unwrapped { why: String },
    #[error("a secret is wrapped, and the key of the pool's secrets is missing")]
    NoSecretsKey,
}

/// A key that keys of volumes are wrapped with.
pub struct MasterKey {
    id: MasterKeyId,
    secret: Secret,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.id)
    }
}

impl MasterKey {
    fn new(secret: Secret) -> Self {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &*secret);
        let digest = ring::hmac::sign(&key, ID_PURPOSE);
        let mut id = [0; 8];
        id.copy_from_slice(&digest.as_ref()[..8]);
        Self {
            id: MasterKeyId(id),
            secret,
        }
    }

    /// Makes one, as the text that [`MasterKey::parse_all`] reads.
    pub fn generate(entropy: &dyn Entropy) -> Zeroizing<String> {
        let mut secret = Secret::default();
        entropy.fill(&mut *secret);
        Zeroizing::new(STANDARD.encode(secret.as_slice()))
    }

    /// The keys in a text, one on each line: 32 bytes, hexadecimal or in base64. Empty lines and those that begin with `#`
    /// are skipped.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, KeyError> {
        let mut keys: Vec<Self> = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let secret = secret_of(text).ok_or(KeyError::Form { line })?;
            if secret.iter().all(|byte| *byte == secret[0]) {
                return Err(KeyError::Weak { line });
            }
            if keys.len() == KEYS_MAX {
                return Err(KeyError::TooMany);
            }
            keys.push(Self::new(secret));
        }
        match keys.is_empty() {
            true => Err(KeyError::Empty),
            false => Ok(keys),
        }
    }

    pub fn id(&self) -> MasterKeyId {
        self.id
    }

    fn wrap(&self, key: &VolumeKey, entropy: &dyn Entropy) -> WrappedKey {
        let vouches_for = self.vouches_for(key.volume());
        self.wrap_bytes(WRAP_PURPOSE, &vouches_for, key.secret(), entropy)
    }

    fn unwrap(&self, volume: VolumeId, wrapped: &WrappedKey) -> Result<VolumeKey, KeyError> {
        let secret = self.unwrap_bytes(WRAP_PURPOSE, &self.vouches_for(volume), wrapped);
        let secret = secret.ok_or(KeyError::NotAuthentic { id: self.id })?;
        Ok(VolumeKey::new(volume, secret))
    }

    fn wrap_secrets(&self, pool: PoolId, key: &SecretsKey, entropy: &dyn Entropy) -> WrappedKey {
        let vouches_for = self.vouches_for_secrets(pool);
        self.wrap_bytes(SECRETS_PURPOSE, &vouches_for, key.secret(), entropy)
    }

    fn unwrap_secrets(&self, pool: PoolId, wrapped: &WrappedKey) -> Result<SecretsKey, KeyError> {
        let vouches_for = self.vouches_for_secrets(pool);
        let secret = self.unwrap_bytes(SECRETS_PURPOSE, &vouches_for, wrapped);
        let secret = secret.ok_or(KeyError::SecretsKeyNotAuthentic { id: self.id })?;
        Ok(SecretsKey::new(secret))
    }

    fn wrap_bytes(
        &self,
        purpose: &[u8],
        vouches_for: &[u8],
        secret: &[u8; KEY_LEN_BYTES],
        entropy: &dyn Entropy,
    ) -> WrappedKey {
        let mut wrapped = [0; WRAPPED_LEN_BYTES];
        let (nonce, rest) = wrapped.split_at_mut(NONCE_LEN_BYTES);
        let (body, tag_at) = rest.split_at_mut(KEY_LEN_BYTES);
        entropy.fill(nonce);
        body.copy_from_slice(secret);
        let mut used = [0; NONCE_LEN_BYTES];
        used.copy_from_slice(nonce);
        let sealed = derive(&self.secret, &[purpose]).seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(used),
            Aad::from(vouches_for),
            body,
        );
        let tag = sealed.expect("32 bytes are not too long for GCM");
        tag_at.copy_from_slice(tag.as_ref());
        WrappedKey {
            master_key: self.id,
            wrapped,
        }
    }

    fn unwrap_bytes(
        &self,
        purpose: &[u8],
        vouches_for: &[u8],
        wrapped: &WrappedKey,
    ) -> Option<Secret> {
        let mut bytes = Zeroizing::new(wrapped.wrapped);
        let (nonce, rest) = bytes.split_at_mut(NONCE_LEN_BYTES);
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let key = derive(&self.secret, &[purpose]);
        let opened = key.open_in_place(nonce, Aad::from(vouches_for), rest);
        let opened = opened.ok()?;
        let mut secret = Secret::default();
        if opened.len() != secret.len() {
            return None;
        }
        secret.copy_from_slice(opened);
        Some(secret)
    }

    /// A wrapped key is that of one volume, by one master key.
    fn vouches_for(&self, volume: VolumeId) -> [u8; 31] {
        let mut bytes = [0; 31];
        let (domain, rest) = bytes.split_at_mut(WRAP_DOMAIN.len());
        domain.copy_from_slice(WRAP_DOMAIN);
        let (of_volume, of_key) = rest.split_at_mut(4);
        of_volume.copy_from_slice(&volume.0.to_le_bytes());
        of_key.copy_from_slice(&self.id.0);
        bytes
    }

    /// The key of secrets is that of one pool, by one master key.
    fn vouches_for_secrets(&self, pool: PoolId) -> [u8; 44] {
        let mut bytes = [0; 44];
        let (domain, rest) = bytes.split_at_mut(SECRETS_DOMAIN.len());
        domain.copy_from_slice(SECRETS_DOMAIN);
        let (of_pool, of_key) = rest.split_at_mut(16);
        of_pool.copy_from_slice(&pool.0.to_le_bytes());
        of_key.copy_from_slice(&self.id.0);
        bytes
    }
}

fn secret_of(text: &str) -> Option<Secret> {
    let mut secret = Secret::default();
    if text.len() == 2 * KEY_LEN_BYTES {
        for (byte, pair) in secret.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        return Some(secret);
    }
    let bare = text.trim_end_matches('=');
    // Room for what 44 characters may be decoded to, so that nothing of it is left elsewhere.
    let mut bytes = Zeroizing::new([0; 3 * 11]);
    if bare.len() != 43 || text.len() - bare.len() > 1 {
        return None;
    }
    let len = STANDARD_NO_PAD.decode_slice(bare, &mut *bytes).ok()?;
    secret.copy_from_slice(bytes.get(..KEY_LEN_BYTES)?);
    (len == KEY_LEN_BYTES).then_some(secret)
}

/// The master keys that there are; the first wraps new keys.
#[derive(Clone, Debug, Default)]
pub struct MasterKeys(Vec<Arc<MasterKey>>);

impl MasterKeys {
    /// Those of `text`, and then those of before that are not in it: a volume that is served needs its own again when it is
    /// reopened.
    pub fn with(&self, newest: Vec<MasterKey>) -> Self {
        let mut keys: Vec<Arc<MasterKey>> = Vec::new();
        let newest = newest.into_iter().map(Arc::new);
        for key in newest.chain(self.0.iter().cloned()) {
            if !keys.iter().any(|there| there.id == key.id) {
                keys.push(key);
            }
        }
        Self(keys)
    }

    /// What new keys are wrapped with.
    pub fn current(&self) -> Option<MasterKeyId> {
        self.0.first().map(|key| key.id)
    }

    pub fn ids(&self) -> impl Iterator<Item = MasterKeyId> {
        self.0.iter().map(|key| key.id)
    }

    pub fn has(&self, id: MasterKeyId) -> bool {
        self.ids().any(|there| there == id)
    }

    /// The key of a new volume.
    pub fn make(&self, volume: VolumeId, entropy: &dyn Entropy) -> Result<WrappedKey, KeyError> {
        self.wrap(&VolumeKey::random(volume, entropy), entropy)
    }

    pub fn unwrap(&self, volume: VolumeId, wrapped: &WrappedKey) -> Result<VolumeKey, KeyError> {
        self.of(wrapped)?.unwrap(volume, wrapped)
    }

    /// The one that a key is wrapped with.
    fn of(&self, wrapped: &WrappedKey) -> Result<&MasterKey, KeyError> {
        let id = wrapped.master_key;
        let key = self.0.iter().find(|key| key.id == id);
        key.map(|key| &**key).ok_or(KeyError::Missing { id })
    }

    /// A new key for the secrets of a pool.
    pub fn make_secrets_key(
        &self,
        pool: PoolId,
        entropy: &dyn Entropy,
    ) -> Result<WrappedKey, KeyError> {
        let current = self.0.first().ok_or(KeyError::Empty)?;
        Ok(current.wrap_secrets(pool, &SecretsKey::random(entropy), entropy))
    }

    pub fn unwrap_secrets_key(
        &self,
        pool: PoolId,
        wrapped: &WrappedKey,
    ) -> Result<SecretsKey, KeyError> {
        self.of(wrapped)?.unwrap_secrets(pool, wrapped)
    }

    /// Rewraps the key of a pool's secrets with the current master key.
    pub fn wrap_secrets_key_anew(
        &self,
        pool: PoolId,
        wrapped: &WrappedKey,
        entropy: &dyn Entropy,
    ) -> Result<WrappedKey, KeyError> {
        let key = self.unwrap_secrets_key(pool, wrapped)?;
        let current = self.0.first().ok_or(KeyError::Empty)?;
        Ok(current.wrap_secrets(pool, &key, entropy))
    }

    /// Rewraps the key of a volume with the current master key.
    pub fn wrap_anew(
        &self,
        volume: VolumeId,
        wrapped: &WrappedKey,
        entropy: &dyn Entropy,
    ) -> Result<WrappedKey, KeyError> {
        self.wrap(&self.unwrap(volume, wrapped)?, entropy)
    }

    /// Rewraps the key of secrets, with its current master key, for another pool or for a cluster.
    pub fn move_secrets_key(
        &self,
        from: PoolId,
        to: PoolId,
        wrapped: &WrappedKey,
        entropy: &dyn Entropy,
    ) -> Result<WrappedKey, KeyError> {
        let key = self.unwrap_secrets_key(from, wrapped)?;
        Ok(self.of(wrapped)?.wrap_secrets(to, &key, entropy))
    }

    fn wrap(&self, key: &VolumeKey, entropy: &dyn Entropy) -> Result<WrappedKey, KeyError> {
        let current = self.0.first().ok_or(KeyError::Empty)?;
        Ok(current.wrap(key, entropy))
    }
}

#[cfg(test)]
mod tests {
    use cairn_testkit::test_env;

    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const OTHER: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn ids(text: &str) -> Result<Vec<MasterKeyId>, KeyError> {
        let keys = MasterKey::parse_all(text)?;
        Ok(keys.iter().map(MasterKey::id).collect())
    }

    #[test]
    fn keys_are_read_or_refused() {
        let one = ids(HEX).unwrap();
        assert_eq!(one.len(), 1);
        let other = ids(OTHER).unwrap();
        assert_ne!(one, other);
        let both = [one.clone(), other].concat();
        let good = [
            (BASE64.to_owned(), &one),
            (BASE64.trim_end_matches('=').to_owned(), &one),
            (HEX.to_uppercase(), &one),
            (format!("# the key\n\n  {HEX}\t\r\n"), &one),
            (format!("{HEX}\n{OTHER}\n"), &both),
        ];
        for (text, want) in good {
            assert_eq!(ids(&text).as_ref(), Ok(want), "{text:?}");
        }
        let bad = [
            (String::new(), KeyError::Empty),
            ("# nothing\n".to_owned(), KeyError::Empty),
            (HEX[1..].to_owned(), KeyError::Form { line: 1 }),
            (format!("{HEX}\n{HEX}00"), KeyError::Form { line: 2 }),
            (format!("{BASE64}="), KeyError::Form { line: 1 }),
            (BASE64.replace('A', "?"), KeyError::Form { line: 1 }),
            ("é".repeat(32), KeyError::Form { line: 1 }),
            ("00".repeat(32), KeyError::Weak { line: 1 }),
            (
                (0..=KEYS_MAX as u8)
                    .map(|at| format!("{at:02x}{}\n", &HEX[2..]))
                    .collect(),
                KeyError::TooMany,
            ),
        ];
        for (text, want) in bad {
            assert_eq!(ids(&text), Err(want), "{text:?}");
        }
    }

    #[test]
    fn a_generated_key_is_read() {
        let env = test_env();
        let made = MasterKey::generate(&*env.entropy);
        assert_eq!(ids(&made).map(|ids| ids.len()), Ok(1));
        assert_ne!(ids(&made), ids(&MasterKey::generate(&*env.entropy)));
    }

    #[test]
    fn what_is_wrapped_is_unwrapped_by_its_master_key_for_its_volume() {
        let env = test_env();
        let keys = |text: &str| MasterKeys::default().with(MasterKey::parse_all(text).unwrap());
        let (first, second) = (keys(HEX), keys(OTHER));
        let wrapped = first.make(VolumeId(7), &*env.entropy).unwrap();
        let key = first.unwrap(VolumeId(7), &wrapped).unwrap();
        let id = wrapped.master_key;
        let missing = second.unwrap(VolumeId(7), &wrapped).unwrap_err();
        assert_eq!(missing, KeyError::Missing { id });
        assert!(missing.to_string().contains(&id.to_string()));
        let refused = Some(KeyError::NotAuthentic { id });
        assert_eq!(first.unwrap(VolumeId(8), &wrapped).err(), refused);
        for bit in 0..8 * WRAPPED_LEN_BYTES {
            let mut bad = wrapped;
            bad.wrapped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(first.unwrap(VolumeId(7), &bad).err(), refused, "{bit}");
        }

        let both = first.with(MasterKey::parse_all(OTHER).unwrap());
        assert_eq!(both.current(), second.current());
        let again = both
            .wrap_anew(VolumeId(7), &wrapped, &*env.entropy)
            .unwrap();
        let same = second.unwrap(VolumeId(7), &again).unwrap();
        assert_eq!(same.secret(), key.secret());
        assert_eq!(
            first.unwrap(VolumeId(7), &again).err(),
            Some(KeyError::Missing {
                id: again.master_key
            })
        );
    }

    #[test]
    fn the_key_of_secrets_is_of_one_pool_and_no_key_of_a_volume() {
        let env = test_env();
        let keys = |text: &str| MasterKeys::default().with(MasterKey::parse_all(text).unwrap());
        let (first, second) = (keys(HEX), keys(OTHER));
        let pool = PoolId(7);
        let wrapped = first.make_secrets_key(pool, &*env.entropy).unwrap();
        let id = wrapped.master_key;
        let key = first.unwrap_secrets_key(pool, &wrapped).unwrap();
        let open = |keys: &MasterKeys, pool, wrapped: &WrappedKey| {
            keys.unwrap_secrets_key(pool, wrapped).err()
        };
        let missing = Some(KeyError::Missing { id });
        assert_eq!(open(&second, pool, &wrapped), missing);
        let refused = Some(KeyError::SecretsKeyNotAuthentic { id });
        assert_eq!(open(&first, PoolId(8), &wrapped), refused);
        for bit in 0..8 * WRAPPED_LEN_BYTES {
            let mut bad = wrapped;
            bad.wrapped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&first, pool, &bad), refused, "{bit}");
        }
        assert!(first.unwrap(VolumeId(7), &wrapped).is_err());
        let of_volume = first.make(VolumeId(7), &*env.entropy).unwrap();
        assert_eq!(open(&first, pool, &of_volume), refused);

        let both = first.with(MasterKey::parse_all(OTHER).unwrap());
        let again = both
            .wrap_secrets_key_anew(pool, &wrapped, &*env.entropy)
            .unwrap();
        assert_eq!(Some(again.master_key), second.current());
        let same = second.unwrap_secrets_key(pool, &again).unwrap();
        assert_eq!(same.secret(), key.secret());
        assert_eq!(
            MasterKeys::default()
                .make_secrets_key(pool, &*env.entropy)
                .err(),
            Some(KeyError::Empty)
        );
    }

    #[test]
    fn nothing_shows_a_key() {
        let keys = MasterKeys::default().with(MasterKey::parse_all(HEX).unwrap());
        let shown = format!("{keys:?}");
        assert!(
            !shown.contains("0001") && !shown.contains("0, 1, 2"),
            "{shown}"
        );
        let env = test_env();
        let key = VolumeKey::random(VolumeId(1), &*env.entropy);
        assert_eq!(format!("{key:?}"), "VolumeKey(of volume 1)");
    }
}
