//! The journal of an encrypted volume: its bytes are encrypted from submission to replay.
//!
//! Owns: the rule that file bytes of such a volume reach the log only in encrypted form. Must not know: the cipher, the
//! meaning of the bytes.
//!
//! An entry is encrypted as a whole, and a fold may leave a part of it. So a replay decrypts each entry before it
//! applies the folds that follow, and a rewrite of the journal encrypts its entries again.

use cairn_base::VolumeId;
use cairn_base::env::Entropy;
use cairn_formats::metadata::JournalEntry;
use cairn_keys::{EntryForm, VolumeKey};

use crate::batch::Batch;
use crate::error::MetaError;

/// Encrypts the file bytes in a batch.
pub(crate) fn encrypt_journal(key: &VolumeKey, entropy: &dyn Entropy, batch: &mut Batch) {
    for entry in &mut batch.journal {
        let mut bytes = entry.data.to_vec();
        let mut salt = [0; 16];
        entropy.fill(&mut salt);
        let encryption = key.encrypt_entry(salt, form_of(entry), &mut bytes);
        entry.data = bytes.into();
        entry.encryption = Some(Box::new(encryption));
    }
}

/// Decrypts an entry of the log.
pub(crate) fn decrypted(
    key: Option<&VolumeKey>,
    volume: VolumeId,
    entry: JournalEntry,
) -> Result<JournalEntry, MetaError> {
    let Some(encryption) = &entry.encryption else {
        return Ok(entry);
    };
    let key = key.ok_or(MetaError::NoKey { volume })?;
    let mut bytes = entry.data.to_vec();
    let decrypted = key.decrypt_entry(encryption, form_of(&entry), &mut bytes);
    decrypted.map_err(|error| MetaError::NotAuthentic {
        volume,
        position: entry.position,
        error,
    })?;
    Ok(JournalEntry {
        data: bytes.into(),
        encryption: None,
        ..entry
    })
}

fn form_of(entry: &JournalEntry) -> EntryForm {
    EntryForm {
        ino: entry.ino,
        offset: entry.offset,
    }
}
