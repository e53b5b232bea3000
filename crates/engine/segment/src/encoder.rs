//! Makes records of a volume's bytes, in the form that the volume stores.
//!
//! Owns: the rule that an encrypted volume gets encrypted records only. Must not know: the cipher.

use std::sync::Arc;

use bytes::Bytes;
use cairn_base::VolumeId;
use cairn_base::env::Entropy;
use cairn_keys::VolumeKey;

use crate::error::Result;
use crate::record::{Compression, EncodedRecord, encode_encrypted_record, encode_record};
use crate::store::SegmentStore;

/// Makes records for one volume.
pub struct Encoder {
    key: Option<Arc<VolumeKey>>,
    entropy: Arc<dyn Entropy>,
}

impl SegmentStore {
    /// The encoder of an open volume.
    pub fn encoder(&self, volume: VolumeId) -> Result<Encoder> {
        Ok(Encoder {
            key: self.volume(volume)?.key.clone(),
            entropy: Arc::clone(&self.env.entropy),
        })
    }
}

impl Encoder {
    /// Whether the volume is encrypted: file bytes may be stored only in such records, and in the journal.
    pub fn is_encrypting(&self) -> bool {
        self.key.is_some()
    }

    /// A record of file bytes given in parts, as [`encode_record`] makes it; encrypted if the volume is.
    pub fn encode(&self, data: Vec<Bytes>, compression: Compression) -> EncodedRecord {
        match &self.key {
            None => encode_record(data, compression),
            Some(key) => {
                let mut salt = [0; 16];
                self.entropy.fill(&mut salt);
                encode_encrypted_record(data, compression, key, salt)
            }
        }
    }
}
