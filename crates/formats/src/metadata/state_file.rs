//! The file of a state that is kept in memory.
//!
//! Owns: its bytes. Must not know: disks.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_base::crc32c;

use super::fields::Fields;
use super::keys::Key;
use super::records::{AppliedRecord, RecordError};

const MAGIC: [u8; 8] = *b"CAIRNMEM";
const VERSION: u32 = 1;

pub type Map = BTreeMap<Vec<u8>, Bytes>;

/// What such a file holds.
#[derive(Default)]
pub struct StateFile {
    pub applied: AppliedRecord,
    pub map: Map,
}

pub fn encode(map: &Map) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&(map.len() as u64).to_be_bytes());
    for (key, value) in map {
        out.extend_from_slice(&(key.len() as u32).to_be_bytes());
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_be_bytes());
    out
}

pub fn decode(bytes: &[u8]) -> Result<StateFile, RecordError> {
    let mut fields = Fields::of_file("state file", bytes, MAGIC, VERSION)?;
    let count = fields.u64("count")?;
    let mut map = Map::new();
    for _ in 0..count {
        let key_len = fields.u32("key")? as usize;
        let value_len = fields.u32("value")? as usize;
        let key = fields.take(key_len, "key")?.to_vec();
        let value = Bytes::copy_from_slice(fields.take(value_len, "value")?);
        // They were written in order: a key that comes twice would be one of two values.
        if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
            return Err(fields.malformed("key"));
        }
        map.insert(key, value);
    }
    fields.end()?;
    let applied = match map.get(Key::applied().as_bytes()) {
        Some(value) => AppliedRecord::decode(value)?,
        None => AppliedRecord::default(),
    };
    Ok(StateFile { applied, map })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_files_are_read_back_or_refused() {
        let mut map = Map::new();
        map.insert(b"key".to_vec(), Bytes::from_static(b"value"));
        let applied = AppliedRecord {
            position: cairn_base::LogPosition(7),
            ..AppliedRecord::default()
        };
        let key = Key::applied().as_bytes().to_vec();
        map.insert(key, Bytes::from(applied.encode()));
        let bytes = encode(&map);
        let read = decode(&bytes).expect("decodes");
        assert_eq!((read.applied, read.map), (applied, map));
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 4;
            assert!(decode(&damaged).is_err(), "byte {index}");
            assert!(decode(&bytes[..index]).is_err(), "cut at {index}");
        }
        // One key twice, under a checksum that fits.
        let pair = b"\0\0\0\x01\0\0\0\x01kv";
        let mut twice = [
            &MAGIC[..],
            &VERSION.to_be_bytes(),
            &2u64.to_be_bytes(),
            pair,
            pair,
        ]
        .concat();
        let crc = crc32c(&twice);
        twice.extend_from_slice(&crc.to_be_bytes());
        assert!(decode(&twice).is_err());
    }
}
