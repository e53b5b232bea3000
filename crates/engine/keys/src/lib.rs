//! Keys of encrypted volumes, and encryption with them.
//!
//! Owns: which cipher, how a key is made out of another, nonces, what a tag vouches for beside the bytes.
//! Must not know: where master keys come from, where anything is stored, when something is encrypted.
//! Invariant: no two pieces of plain bytes are ever encrypted under one key with one nonce.
//!
//! Why it is as it is: `docs/design/encryption.md`.

#![forbid(unsafe_code)]

mod master;
mod secrets;
mod volume;

pub use cairn_formats::encryption::KeptSecret;
pub use master::{KEYS_MAX, KeyError, MasterKey, MasterKeys};
pub use secrets::{NoSecrets, Secrets, SecretsKey, keep, reveal};
pub use volume::{EntryForm, NotAuthentic, RecordCipher, RecordForm, VolumeKey};

/// Of AES-256 and of HKDF with SHA-256.
pub const KEY_LEN_BYTES: usize = 32;

/// Bytes of a key, which are overwritten when they are dropped.
type Secret = zeroize::Zeroizing<[u8; KEY_LEN_BYTES]>;

/// The AES-256-GCM key that follows from a secret and what it is for (HKDF-Expand, RFC 5869, section 2.3: the secret is
/// uniformly random, so that there is nothing to extract).
fn derive(secret: &Secret, purpose: &[&[u8]]) -> ring::aead::LessSafeKey {
    let secret = ring::hkdf::Prk::new_less_safe(ring::hkdf::HKDF_SHA256, &**secret);
    let key = secret.expand(purpose, &ring::aead::AES_256_GCM);
    // HKDF gives up to 255 times 32 bytes; this asks for 32.
    let key = key.expect("a key is no longer than HKDF's output");
    ring::aead::LessSafeKey::new(ring::aead::UnboundKey::from(key))
}
