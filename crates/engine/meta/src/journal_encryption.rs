//! The journal of an encrypted volume: its bytes are encrypted from where they are submitted to where the log is replayed.
//!
//! Owns: that no byte of a file gets into the log of such a volume as it is. Must not know: how bytes are encrypted, what
//! they are.
//!
//! An entry is encrypted as a whole, and folds leave parts of one. So a replay decrypts each before the folds that come
//! behind it are applied, and what is carried to the end of the log is encrypted anew.

use cairn_base::VolumeId;
use cairn_base::env::Entropy;
use cairn_formats::metadata::JournalEntry;
use cairn_keys::{EntryForm, VolumeKey};

use crate::batch::Batch;
use crate::error::MetaError;

/// Encrypts what a batch has of files' bytes.
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

/// An entry of the log with its plain bytes.
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
