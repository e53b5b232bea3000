//! The file `checkpoint` of a shipped copy of the state: which files it has, with their checksums. For a copy in shards,
//! also which these are.
//!
//! Owns: their bytes (docs/reference/formats/metadata.md).
//! Must not know: RocksDB, folders, how a copy is made or verified.

use cairn_base::{Epoch, LogPosition, VolumeId, crc32c};

use super::fields::Fields;
use super::records::{AppliedRecord, RecordError};
use crate::shard::name::FILE_NUMBER_END;

const DESCRIPTOR_MAGIC: [u8; 8] = *b"CAIRNCKP";
const DESCRIPTOR_VERSION: u32 = 1;
/// Most bytes of a descriptor, and files in it.
pub const DESCRIPTOR_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    pub name: String,
    pub len_bytes: u64,
    /// CRC32C of the whole file.
    pub crc: u32,
}

/// What a shipped copy consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub volume: VolumeId,
    /// The copy is at least so new.
    pub applied: AppliedRecord,
    pub lineage: u64,
    pub files: Vec<FileEntry>,
}

impl Descriptor {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&DESCRIPTOR_MAGIC);
        out.extend_from_slice(&DESCRIPTOR_VERSION.to_be_bytes());
        out.extend_from_slice(&self.volume.0.to_be_bytes());
        out.extend_from_slice(&self.applied.position.0.to_be_bytes());
        out.extend_from_slice(&self.applied.epoch.0.to_be_bytes());
        out.extend_from_slice(&self.applied.term.to_be_bytes());
        out.extend_from_slice(&self.lineage.to_be_bytes());
        out.extend_from_slice(&(self.files.len() as u32).to_be_bytes());
        for file in &self.files {
            out.extend_from_slice(&(file.name.len() as u16).to_be_bytes());
            out.extend_from_slice(file.name.as_bytes());
            out.extend_from_slice(&file.len_bytes.to_be_bytes());
            out.extend_from_slice(&file.crc.to_be_bytes());
        }
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    /// Names are those of plain files: they become paths.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields =
            Fields::of_file("checkpoint", bytes, DESCRIPTOR_MAGIC, DESCRIPTOR_VERSION)?;
        let volume = VolumeId(fields.u32("volume")?);
        let applied = AppliedRecord {
            position: LogPosition(fields.u64("position")?),
            epoch: Epoch(fields.u64("epoch")?),
            term: fields.u64("term")?,
        };
        let lineage = fields.u64("lineage")?;
        let count = fields.u32("files")?;
        let mut files = Vec::new();
        for _ in 0..count {
            let len = fields.u16("name")? as usize;
            let name = std::str::from_utf8(fields.take(len, "name")?)
                .map_err(|_| fields.malformed("name"))?;
            // It becomes a path.
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
                return Err(fields.malformed("name"));
            }
            files.push(FileEntry {
                name: name.to_owned(),
                len_bytes: fields.u64("length")?,
                crc: fields.u32("crc")?,
            });
        }
        fields.end()?;
        Ok(Self {
            volume,
            applied,
            lineage,
            files,
        })
    }
}

const REMOTE_MAGIC: [u8; 8] = *b"CAIRNCKR";
const REMOTE_VERSION: u32 = 1;
/// A file of a copy in shards is cut into parts of so many bytes, each in a shard of its own.
pub const STATE_PART_BYTES: u64 = 16 << 20;

/// What a copy consists of whose files are in shards, on disks of any node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteCopy {
    pub descriptor: Descriptor,
    /// For each file the number of its first part; the others have the numbers that follow.
    pub firsts: Vec<u64>,
}

impl RemoteCopy {
    pub fn encode(&self) -> Vec<u8> {
        let descriptor = self.descriptor.encode();
        let mut out = Vec::new();
        out.extend_from_slice(&REMOTE_MAGIC);
        out.extend_from_slice(&REMOTE_VERSION.to_be_bytes());
        out.extend_from_slice(&(descriptor.len() as u32).to_be_bytes());
        out.extend_from_slice(&descriptor);
        for first in &self.firsts {
            out.extend_from_slice(&first.to_be_bytes());
        }
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    /// There is a number for each file, and all of its parts have numbers below [`FILE_NUMBER_END`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::of_file("state copy", bytes, REMOTE_MAGIC, REMOTE_VERSION)?;
        let len = fields.u32("descriptor")? as usize;
        let descriptor = Descriptor::decode(fields.take(len, "descriptor")?)?;
        let mut firsts = Vec::new();
        for file in &descriptor.files {
            let first = fields.u64("number")?;
            let end = first.checked_add(part_count(file.len_bytes));
            if end.is_none_or(|end| end > FILE_NUMBER_END) {
                return Err(fields.malformed("number"));
            }
            firsts.push(first);
        }
        fields.end()?;
        Ok(Self { descriptor, firsts })
    }

    /// Its files, each with the number of its first part.
    pub fn files(&self) -> impl Iterator<Item = (&FileEntry, u64)> {
        self.descriptor
            .files
            .iter()
            .zip(self.firsts.iter().copied())
    }
}

/// Parts of a file of so many bytes.
pub fn part_count(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(STATE_PART_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(name: &str) -> Descriptor {
        Descriptor {
            volume: VolumeId(1),
            applied: AppliedRecord {
                position: LogPosition(5),
                epoch: Epoch(2),
                term: 3,
            },
            lineage: 4,
            files: vec![FileEntry {
                name: name.to_owned(),
                len_bytes: 10,
                crc: 11,
            }],
        }
    }

    #[test]
    fn descriptors_are_read_back_or_refused() {
        let good = descriptor("000012.sst");
        let bytes = good.encode();
        assert_eq!(Descriptor::decode(&bytes), Ok(good));
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1;
            assert!(Descriptor::decode(&damaged).is_err(), "byte {index}");
            assert!(Descriptor::decode(&bytes[..index]).is_err());
        }
        for name in ["", "..", "../x", "/etc/passwd", "a/b", ".hidden"] {
            assert!(
                Descriptor::decode(&descriptor(name).encode()).is_err(),
                "{name:?}"
            );
        }
    }

    #[test]
    fn copies_in_shards_are_read_back_or_refused() {
        let good = RemoteCopy {
            descriptor: descriptor("000012.sst"),
            firsts: vec![7],
        };
        let bytes = good.encode();
        assert_eq!(RemoteCopy::decode(&bytes), Ok(good.clone()));
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1;
            assert!(RemoteCopy::decode(&damaged).is_err(), "byte {index}");
            assert!(
                RemoteCopy::decode(&bytes[..index]).is_err(),
                "cut at {index}"
            );
        }
        for firsts in [vec![], vec![1, 2], vec![FILE_NUMBER_END], vec![u64::MAX]] {
            let wrong = RemoteCopy {
                firsts,
                ..good.clone()
            };
            assert!(RemoteCopy::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn parts_are_counted() {
        let cases = [
            (0, 0),
            (1, 1),
            (STATE_PART_BYTES, 1),
            (STATE_PART_BYTES + 1, 2),
            (u64::MAX, 1 << 40),
        ];
        for (len_bytes, count) in cases {
            assert_eq!(part_count(len_bytes), count, "{len_bytes}");
        }
    }
}
