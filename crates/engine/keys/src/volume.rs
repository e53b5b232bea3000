//! The key of a volume, and encryption with keys that are derived from it.

use std::fmt;

use cairn_base::env::Entropy;
use cairn_base::{Ino, VolumeId};
use cairn_formats::encryption::{Encryption, SECRET_MORE_BYTES, Salt, Tag};
use cairn_formats::pointer::Codec;
use ring::aead::{Aad, LessSafeKey, Nonce};

use crate::{KEY_LEN_BYTES, Secret, derive};

const RECORD_PURPOSE: &[u8] = b"cairn record 1";
const ENTRY_PURPOSE: &[u8] = b"cairn journal entry 1";
const ATTRIBUTE_PURPOSE: &[u8] = b"cairn extended attribute 1";

/// Encrypted bytes, their salt or their tag differ from the written ones, or the key is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "they were not encrypted with this volume's key, or were altered together with their checksum"
)]
pub struct NotAuthentic;

/// What the tags of a record vouch for beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordForm {
    pub codec: Codec,
    pub file_len_bytes: u32,
    pub stored_len_bytes: u32,
}

/// What the tag of a journal entry vouches for beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryForm {
    pub ino: Ino,
    pub offset: u64,
}

/// The key of one volume: random, and never written anywhere but wrapped with a master key.
pub struct VolumeKey {
    volume: VolumeId,
    secret: Secret,
}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeKey(of volume {})", self.volume)
    }
}

/// Encrypts and decrypts one record.
pub struct RecordCipher {
    key: LessSafeKey,
    vouches_for: [u8; 13],
}

impl VolumeKey {
    pub(crate) fn new(volume: VolumeId, secret: Secret) -> Self {
        Self { volume, secret }
    }

    pub fn random(volume: VolumeId, entropy: &dyn Entropy) -> Self {
        let mut secret = Secret::default();
        entropy.fill(&mut *secret);
        Self { volume, secret }
    }

    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    pub(crate) fn secret(&self) -> &[u8; KEY_LEN_BYTES] {
        &self.secret
    }

    /// For the one record that has this salt.
    pub fn record_cipher(&self, salt: &Salt, form: RecordForm) -> RecordCipher {
        let mut vouches_for = [0; 13];
        vouches_for[..4].copy_from_slice(&self.volume.0.to_le_bytes());
        vouches_for[4] = form.codec as u8;
        vouches_for[5..9].copy_from_slice(&form.file_len_bytes.to_le_bytes());
        vouches_for[9..].copy_from_slice(&form.stored_len_bytes.to_le_bytes());
        RecordCipher {
            key: derive(&self.secret, &[RECORD_PURPOSE, salt]),
            vouches_for,
        }
    }

    /// Encrypts the bytes of a journal entry where they are.
    pub fn encrypt_entry(&self, salt: Salt, form: EntryForm, bytes: &mut [u8]) -> Encryption {
        let key = derive(&self.secret, &[ENTRY_PURPOSE, &salt]);
        let tag = encrypt(&key, 0, &self.entry_vouches_for(form), bytes);
        Encryption {
            salt,
            tags: vec![tag],
        }
    }

    /// Decrypts the bytes of a journal entry where they are. After an error they mean nothing.
    pub fn decrypt_entry(
        &self,
        encryption: &Encryption,
        form: EntryForm,
        bytes: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        let [tag] = &encryption.tags[..] else {
            return Err(NotAuthentic);
        };
        let key = derive(&self.secret, &[ENTRY_PURPOSE, &encryption.salt]);
        decrypt(&key, 0, &self.entry_vouches_for(form), bytes, tag)
    }

    /// The value of an extended attribute as it is stored: salt, encrypted bytes, tag. It is that of this attribute of this
    /// inode, and of no other.
    pub fn encrypt_attribute(&self, salt: Salt, ino: Ino, name: &[u8], value: &[u8]) -> Vec<u8> {
        let key = derive(&self.secret, &[ATTRIBUTE_PURPOSE, &salt]);
        let mut stored = Vec::with_capacity(SECRET_MORE_BYTES + value.len());
        stored.extend_from_slice(&salt);
        stored.extend_from_slice(value);
        let vouches_for = self.attribute_vouches_for(ino, name);
        let tag = encrypt(&key, 0, &vouches_for, &mut stored[salt.len()..]);
        stored.extend_from_slice(&tag);
        stored
    }

    /// The value that was stored so.
    pub fn decrypt_attribute(
        &self,
        ino: Ino,
        name: &[u8],
        stored: &[u8],
    ) -> Result<Vec<u8>, NotAuthentic> {
        let (salt, rest) = stored.split_first_chunk().ok_or(NotAuthentic)?;
        let (bytes, tag) = rest.split_last_chunk().ok_or(NotAuthentic)?;
        let salt: &Salt = salt;
        let tag: &Tag = tag;
        let key = derive(&self.secret, &[ATTRIBUTE_PURPOSE, salt]);
        let mut value = bytes.to_vec();
        let vouches_for = self.attribute_vouches_for(ino, name);
        decrypt(&key, 0, &vouches_for, &mut value, tag)?;
        Ok(value)
    }

    /// All but the name have a fixed length, so that no two are alike.
    fn attribute_vouches_for(&self, ino: Ino, name: &[u8]) -> Vec<u8> {
        let mut vouches_for = Vec::with_capacity(12 + name.len());
        vouches_for.extend_from_slice(&self.volume.0.to_le_bytes());
        vouches_for.extend_from_slice(&ino.0.to_le_bytes());
        vouches_for.extend_from_slice(name);
        vouches_for
    }

    fn entry_vouches_for(&self, form: EntryForm) -> [u8; 20] {
        let mut vouches_for = [0; 20];
        vouches_for[..4].copy_from_slice(&self.volume.0.to_le_bytes());
        vouches_for[4..12].copy_from_slice(&form.ino.0.to_le_bytes());
        vouches_for[12..].copy_from_slice(&form.offset.to_le_bytes());
        vouches_for
    }
}

impl RecordCipher {
    /// Encrypts a granule of the record where it is. Each only once: with the same number two would give each other away.
    pub fn encrypt(&self, granule: u32, bytes: &mut [u8]) -> Tag {
        encrypt(&self.key, granule, &self.vouches_for, bytes)
    }

    /// Decrypts a granule of the record where it is. After an error its bytes mean nothing.
    pub fn decrypt(&self, granule: u32, bytes: &mut [u8], tag: &Tag) -> Result<(), NotAuthentic> {
        decrypt(&self.key, granule, &self.vouches_for, bytes, tag)
    }
}

/// The key is that of one salt, so the numbers of the pieces encrypted with it can be the nonces.
fn nonce(number: u32) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

fn encrypt(key: &LessSafeKey, number: u32, vouches_for: &[u8], bytes: &mut [u8]) -> Tag {
    let sealed = key.seal_in_place_separate_tag(nonce(number), Aad::from(vouches_for), bytes);
    // It takes 64 GiB; a record has 1 MiB at most.
    let tag = sealed.expect("nothing so long is encrypted");
    let mut bytes = Tag::default();
    bytes.copy_from_slice(tag.as_ref());
    bytes
}

fn decrypt(
    key: &LessSafeKey,
    number: u32,
    vouches_for: &[u8],
    bytes: &mut [u8],
    tag: &Tag,
) -> Result<(), NotAuthentic> {
    let vouches_for = Aad::from(vouches_for);
    let opened =
        key.open_in_place_separate_tag(nonce(number), vouches_for, (*tag).into(), bytes, 0..);
    opened.map(drop).map_err(|_| NotAuthentic)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORM: RecordForm = RecordForm {
        codec: Codec::Raw,
        file_len_bytes: 40,
        stored_len_bytes: 40,
    };
    const ENTRY: EntryForm = EntryForm {
        ino: Ino(5),
        offset: 100,
    };

    fn key(volume: u32, byte: u8) -> VolumeKey {
        VolumeKey::new(VolumeId(volume), Secret::new([byte; 32]))
    }

    /// Bytes that are the same for ever: another program must come to them, too.
    #[test]
    fn a_record_is_encrypted_as_it_always_was() {
        let mut bytes = *b"the same bytes for ever";
        let cipher = key(3, 9).record_cipher(&[7; 16], FORM);
        let tag = cipher.encrypt(2, &mut bytes);
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        assert_eq!(
            (hex(&bytes).as_str(), hex(&tag).as_str()),
            (RECORD_BYTES, RECORD_TAG)
        );
    }
    /// From OpenSSL, through Python's `cryptography`: `HKDFExpand(SHA256, 32, b"cairn record 1" + salt)` makes the key of
    /// `AESGCM`, with `struct.pack("<IBII", 3, 0, 40, 40)` to vouch for.
    const RECORD_BYTES: &str = "ca5cecd27359524a0251d693f78bc8bf3df3d51d60ecee";
    const RECORD_TAG: &str = "e7828fe3ba74f4c581b99994ca93e526";

    #[test]
    fn nothing_but_the_very_same_is_decrypted() {
        let plain = *b"a granule of a record, of 40 bytes......";
        let mut stored = plain;
        let tag = key(1, 2)
            .record_cipher(&[3; 16], FORM)
            .encrypt(1, &mut stored);
        assert_ne!(stored, plain);
        let open = |key: VolumeKey, salt: Salt, form, granule, mut bytes: [u8; 40], tag: Tag| {
            let cipher = key.record_cipher(&salt, form);
            cipher.decrypt(granule, &mut bytes, &tag).map(|()| bytes)
        };
        assert_eq!(open(key(1, 2), [3; 16], FORM, 1, stored, tag), Ok(plain));
        let refused = Err(NotAuthentic);
        let cases = [
            ("key", open(key(1, 3), [3; 16], FORM, 1, stored, tag)),
            ("volume", open(key(2, 2), [3; 16], FORM, 1, stored, tag)),
            ("salt", open(key(1, 2), [4; 16], FORM, 1, stored, tag)),
            ("granule", open(key(1, 2), [3; 16], FORM, 0, stored, tag)),
        ];
        for (what, opened) in cases {
            assert_eq!(opened, refused, "another {what}");
        }
        let forms = [
            RecordForm {
                codec: Codec::Lz4,
                ..FORM
            },
            RecordForm {
                file_len_bytes: 41,
                ..FORM
            },
            RecordForm {
                stored_len_bytes: 41,
                ..FORM
            },
        ];
        for form in forms {
            assert_eq!(
                open(key(1, 2), [3; 16], form, 1, stored, tag),
                refused,
                "{form:?}"
            );
        }
        for bit in 0..40 * 8 {
            let mut bad = stored;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                open(key(1, 2), [3; 16], FORM, 1, bad, tag),
                refused,
                "{bit}"
            );
        }
        for bit in 0..16 * 8 {
            let mut bad = tag;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                open(key(1, 2), [3; 16], FORM, 1, stored, bad),
                refused,
                "{bit}"
            );
            let mut salt = [3; 16];
            salt[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                open(key(1, 2), salt, FORM, 1, stored, tag),
                refused,
                "{bit}"
            );
        }
    }

    #[test]
    fn an_entry_is_no_record_and_no_other_entry() {
        let plain = *b"forty bytes of a small write that is so.";
        let mut stored = plain;
        let encryption = key(1, 2).encrypt_entry([3; 16], ENTRY, &mut stored);
        let open = |key: VolumeKey, encryption: &Encryption, form| {
            let mut bytes = stored;
            key.decrypt_entry(encryption, form, &mut bytes)
                .map(|()| bytes)
        };
        assert_eq!(open(key(1, 2), &encryption, ENTRY), Ok(plain));
        assert!(open(key(1, 1), &encryption, ENTRY).is_err());
        assert!(open(key(2, 2), &encryption, ENTRY).is_err());
        assert!(
            open(
                key(1, 2),
                &encryption,
                EntryForm {
                    ino: Ino(6),
                    ..ENTRY
                }
            )
            .is_err()
        );
        assert!(
            open(
                key(1, 2),
                &encryption,
                EntryForm {
                    offset: 99,
                    ..ENTRY
                }
            )
            .is_err()
        );
        let none = Encryption {
            tags: Vec::new(),
            ..encryption.clone()
        };
        assert!(open(key(1, 2), &none, ENTRY).is_err());
        let cipher = key(1, 2).record_cipher(&[3; 16], FORM);
        assert!(
            cipher
                .decrypt(0, &mut stored.clone(), &encryption.tags[0])
                .is_err()
        );
    }

    #[test]
    fn an_attribute_is_read_where_it_was_put() {
        let (name, value) = (&b"user.name"[..], &b"a value of twenty-six bytes"[..]);
        let stored = key(1, 2).encrypt_attribute([3; 16], Ino(5), name, value);
        assert_eq!(stored.len(), value.len() + SECRET_MORE_BYTES);
        let open = |key: VolumeKey, ino, name: &[u8], stored: &[u8]| {
            key.decrypt_attribute(Ino(ino), name, stored)
        };
        assert_eq!(open(key(1, 2), 5, name, &stored), Ok(value.to_vec()));
        let refused = Err(NotAuthentic);
        let cases = [
            ("key", open(key(1, 3), 5, name, &stored)),
            ("volume", open(key(2, 2), 5, name, &stored)),
            ("inode", open(key(1, 2), 6, name, &stored)),
            ("name", open(key(1, 2), 5, b"user.other", &stored)),
            ("short", open(key(1, 2), 5, name, &stored[..31])),
            ("cut", open(key(1, 2), 5, name, &stored[..stored.len() - 1])),
            ("empty", open(key(1, 2), 5, name, b"")),
        ];
        for (what, opened) in cases {
            assert_eq!(opened, refused, "{what}");
        }
        for bit in 0..stored.len() * 8 {
            let mut bad = stored.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(key(1, 2), 5, name, &bad), refused, "{bit}");
        }
        let empty = key(1, 2).encrypt_attribute([4; 16], Ino(5), name, b"");
        assert_eq!(open(key(1, 2), 5, name, &empty), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..3000), salt: [u8; 16], granule in 0_u32..32, offset: u64) {
            let mut stored = bytes.clone();
            let cipher = key(1, 2).record_cipher(&salt, FORM);
            let tag = cipher.encrypt(granule, &mut stored);
            prop_assert!(bytes.len() < 16 || stored != bytes);
            prop_assert_eq!(cipher.decrypt(granule, &mut stored, &tag), Ok(()));
            prop_assert_eq!(&stored, &bytes);
            let form = EntryForm { offset, ..ENTRY };
            let encryption = key(1, 2).encrypt_entry(salt, form, &mut stored);
            prop_assert_eq!(key(1, 2).decrypt_entry(&encryption, form, &mut stored), Ok(()));
            prop_assert_eq!(&stored, &bytes);
        }
    }
}
