//! A group: the batches of one log record, merged, and its bytes. Pure.
//!
//! Owns: the payload of a log record (docs/reference/formats/metadata.md). Must not know: files, waiting.

use bytes::Bytes;
use cairn_base::{AlignedBuf, Branch, Epoch, Generation, Ino, LogPosition, Timestamp};
use rustc_hash::FxHashMap;

use super::fields::Fields;
use super::keys::{Key, branch_of};
use super::log::{RECORD_HEAD_BYTES, RecordBuf, record_len_bytes};
use super::records::RecordError;
use crate::encryption::{Encryption, Salt, Tag};

/// Most bytes of data in one journal entry: larger writes are better off as records of a segment.
pub const JOURNAL_DATA_BYTES_MAX: usize = 1 << 20;

/// The length that says "deleted".
const DELETED: u32 = u32::MAX;
/// Set in the length of a key whose value keeps the birth that follows.
const KEEPS_BIRTH: u16 = 1 << 15;
/// Set in the length of a journal entry's data that is encrypted: salt and tag come before it.
const ENCRYPTED: u32 = 1 << 31;
const _: () = assert!(JOURNAL_DATA_BYTES_MAX < ENCRYPTED as usize);
const JOURNAL_FIXED_BYTES: usize = 8 + 8 + 8 + 8 + 12 + 12 + 4 + 4;
const FOLD_BYTES: usize = 8 + 8 + 8 + 8;
const NEWEST_BYTES: usize = 2 + 8;

/// The data of one small synchronous write. It rides in the log with the metadata, one sync for
/// both, and is not in the state: only a replay returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Filled on replay; the value of a submitted entry is ignored.
    pub position: LogPosition,
    pub ino: Ino,
    pub offset: u64,
    /// At most [`JOURNAL_DATA_BYTES_MAX`] bytes.
    pub data: Bytes,
    /// If `data` is encrypted as a whole, as it is in the log of an encrypted volume: with one tag.
    pub encryption: Option<Box<Encryption>>,
    /// Of the file, after this write.
    pub size_bytes: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Of the file, after this write (a write clears set-uid and set-gid).
    pub mode: u32,
}

/// The bytes `start..end` of `ino` in journal entries up to and including `through` are in extents
/// (or gone) as of this batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    pub ino: Ino,
    pub start: u64,
    pub end: u64,
    pub through: LogPosition,
}

/// What a change leaves of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub key: Key,
    /// `None` deletes.
    pub value: Option<Bytes>,
    /// The former value is at another place now, and all readers see the same: it keeps its generation of birth, and
    /// leaves no history here. Else the value is born in the generation of its group.
    pub kept_birth: Option<Generation>,
}

impl Put {
    pub fn new(key: Key, value: Option<Bytes>) -> Self {
        Self {
            key,
            value,
            kept_birth: None,
        }
    }
}

/// The merged changes of some batches, in log order.
#[derive(Debug, Default)]
pub struct Group {
    /// That all of it was made in.
    pub generation: Generation,
    /// The newest snapshot at that time: a value that was born up to then, and is changed here, becomes history.
    pub newest_snapshot: Generation,
    /// The newest snapshot of each branch that has snapshots: a branch sees its own keys alone.
    pub newest_of_branches: Vec<(Branch, Generation)>,
    pub first: LogPosition,
    pub last: LogPosition,
    /// Each key once, with its last value.
    pub puts: Vec<Put>,
    /// With their positions.
    pub journal: Vec<JournalEntry>,
    pub folds: Vec<Fold>,
    /// What its batches were charged.
    pub len_bytes: usize,
    index: FxHashMap<Key, usize>,
}

impl Group {
    pub fn new(generation: Generation, first: LogPosition, last: LogPosition) -> Self {
        Self {
            generation,
            first,
            last,
            ..Self::default()
        }
    }

    /// The newest snapshot that sees a key.
    pub fn newest_that_sees(&self, key: &Key) -> Generation {
        let branch = branch_of(key.as_bytes());
        if branch.is_main() {
            return self.newest_snapshot;
        }
        let mut newest = self.newest_of_branches.iter();
        let found = newest.find(|(of, _)| *of == branch);
        found.map_or(Generation(0), |(_, newest)| *newest)
    }

    /// Sets a key; the last change of a key in a group is the one that counts.
    pub fn put(&mut self, put: Put) {
        match self.index.get(&put.key) {
            Some(index) => self.puts[*index] = put,
            None => {
                self.index.insert(put.key.clone(), self.puts.len());
                self.puts.push(put);
            }
        }
    }

    /// Exact bytes of the payload.
    fn payload_len_bytes(&self) -> usize {
        let puts = self.puts.iter().map(|put| {
            let value_len = put.value.as_ref().map_or(0, |value| value.len());
            let birth_len = put.kept_birth.map_or(0, |_| 8);
            2 + 4 + birth_len + put.key.as_bytes().len() + value_len
        });
        let journal = self
            .journal
            .iter()
            .map(|entry| JOURNAL_FIXED_BYTES + encryption_len_bytes(entry) + entry.data.len());
        8 + 8
            + 2
            + self.newest_of_branches.len() * NEWEST_BYTES
            + 4
            + 4
            + 4
            + puts.sum::<usize>()
            + journal.sum::<usize>()
            + self.folds.len() * FOLD_BYTES
    }

    pub fn encode(&self, epoch: Epoch, term: u64) -> RecordBuf {
        let len = self.payload_len_bytes();
        let mut bytes = AlignedBuf::zeroed(record_len_bytes(len));
        let mut out = Writer {
            rest: &mut bytes[RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + len],
        };
        out.u64(self.generation.0);
        out.u64(self.newest_snapshot.0);
        out.bytes(&(self.newest_of_branches.len() as u16).to_be_bytes());
        for (branch, newest) in &self.newest_of_branches {
            out.bytes(&branch.0.to_be_bytes());
            out.u64(newest.0);
        }
        out.u32(self.puts.len() as u32);
        out.u32(self.journal.len() as u32);
        out.u32(self.folds.len() as u32);
        for put in &self.puts {
            let (key, value) = (&put.key, &put.value);
            let keeps_birth = put.kept_birth.map_or(0, |_| KEEPS_BIRTH);
            out.bytes(&(key.as_bytes().len() as u16 | keeps_birth).to_be_bytes());
            out.u32(value.as_ref().map_or(DELETED, |value| value.len() as u32));
            if let Some(birth) = put.kept_birth {
                out.u64(birth.0);
            }
            out.bytes(key.as_bytes());
            out.bytes(value.as_deref().unwrap_or_default());
        }
        for entry in &self.journal {
            out.u64(entry.position.0);
            out.u64(entry.ino.0);
            out.u64(entry.offset);
            out.u64(entry.size_bytes);
            for time in [entry.mtime, entry.ctime] {
                out.bytes(&time.seconds.to_be_bytes());
                out.u32(time.nanos);
            }
            out.u32(entry.mode);
            let len = entry.data.len() as u32;
            match &entry.encryption {
                None => out.u32(len),
                Some(encryption) => {
                    let [tag] = encryption.tags[..] else {
                        panic!("a journal entry has one tag");
                    };
                    out.u32(len | ENCRYPTED);
                    out.bytes(&encryption.salt);
                    out.bytes(&tag);
                }
            }
            out.bytes(&entry.data);
        }
        for fold in &self.folds {
            out.u64(fold.ino.0);
            out.u64(fold.start);
            out.u64(fold.end);
            out.u64(fold.through.0);
        }
        assert!(out.rest.is_empty());
        RecordBuf::new(bytes, len, (self.first, self.last), epoch, term)
    }

    /// Reads a payload; values and data share its memory.
    pub fn decode(
        payload: &Bytes,
        first: LogPosition,
        last: LogPosition,
    ) -> Result<Self, RecordError> {
        let mut fields = Fields::unversioned("log record", payload);
        let mut group = Self::new(Generation(fields.u64("generation")?), first, last);
        group.newest_snapshot = Generation(fields.u64("newest snapshot")?);
        for _ in 0..fields.u16("count")? {
            let branch = Branch(fields.u16("branch")?);
            let newest = Generation(fields.u64("newest snapshot")?);
            group.newest_of_branches.push((branch, newest));
        }
        let put_count = fields.u32("count")?;
        let journal_count = fields.u32("count")?;
        let fold_count = fields.u32("count")?;
        for _ in 0..put_count {
            let key_len = fields.u16("key")?;
            let value_len = fields.u32("value")?;
            let kept_birth = match key_len & KEEPS_BIRTH {
                0 => None,
                _ => Some(Generation(fields.u64("birth")?)),
            };
            let key_len = usize::from(key_len & !KEEPS_BIRTH);
            let key = Key::parse(fields.take(key_len, "key")?)?;
            let value = match value_len {
                DELETED => None,
                0 => return Err(fields.malformed("value")),
                len => Some(payload.slice_ref(fields.take(len as usize, "value")?)),
            };
            if kept_birth.is_some() && (value.is_none() || !key.is_versioned()) {
                return Err(fields.malformed("birth"));
            }
            group.puts.push(Put {
                key,
                value,
                kept_birth,
            });
        }
        for _ in 0..journal_count {
            let entry = decode_journal(&mut fields, payload)?;
            group.journal.push(entry);
        }
        for _ in 0..fold_count {
            group.folds.push(Fold {
                ino: Ino(fields.u64("fold")?),
                start: fields.u64("fold")?,
                end: fields.u64("fold")?,
                through: LogPosition(fields.u64("fold")?),
            });
        }
        fields.end()?;
        Ok(group)
    }
}

fn encryption_len_bytes(entry: &JournalEntry) -> usize {
    let len_bytes = size_of::<Salt>() + size_of::<Tag>();
    entry.encryption.as_ref().map_or(0, |_| len_bytes)
}

fn decode_journal(fields: &mut Fields<'_>, payload: &Bytes) -> Result<JournalEntry, RecordError> {
    let mut entry = JournalEntry {
        position: LogPosition(fields.u64("position")?),
        ino: Ino(fields.u64("ino")?),
        offset: fields.u64("offset")?,
        size_bytes: fields.u64("size")?,
        mtime: fields.time("mtime")?,
        ctime: fields.time("ctime")?,
        mode: fields.u32("mode")?,
        data: Bytes::new(),
        encryption: None,
    };
    let len = fields.u32("data")?;
    if len & ENCRYPTED != 0 {
        entry.encryption = Some(Box::new(Encryption {
            salt: fields.array("salt")?,
            tags: vec![fields.array("tag")?],
        }));
    }
    let len = (len & !ENCRYPTED) as usize;
    if len > JOURNAL_DATA_BYTES_MAX {
        return Err(fields.malformed("data"));
    }
    entry.data = payload.slice_ref(fields.take(len, "data")?);
    if entry.offset.checked_add(entry.data.len() as u64).is_none() {
        return Err(fields.malformed("offset"));
    }
    Ok(entry)
}

/// Fills a buffer of exactly the right size.
struct Writer<'a> {
    rest: &'a mut [u8],
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        let rest = std::mem::take(&mut self.rest);
        let (to, rest) = rest.split_at_mut(bytes.len());
        to.copy_from_slice(bytes);
        self.rest = rest;
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Group {
        let mut group = Group::new(Generation::FIRST, LogPosition(4), LogPosition(6));
        group.newest_snapshot = Generation(7);
        group.newest_of_branches = vec![(Branch(3), Generation(6))];
        let put = |key, value: &'static [u8]| Put::new(key, Some(Bytes::from_static(value)));
        group.put(put(Key::inode(Ino(1)), b"old"));
        group.put(Put::new(Key::dirent(Ino(1), b"name"), None));
        group.put(put(Key::inode(Ino(1)), b"new"));
        group.put(Put {
            kept_birth: Some(Generation(5)),
            ..put(Key::extent(Ino(1), 3), b"moved")
        });
        group.journal.push(JournalEntry {
            position: LogPosition(5),
            ino: Ino(1),
            offset: 100,
            data: Bytes::from_static(b"data"),
            encryption: None,
            size_bytes: 104,
            mtime: Timestamp::new(-5, 6),
            ctime: Timestamp::new(7, 8),
            mode: 0o644,
        });
        group.journal.push(JournalEntry {
            encryption: Some(Box::new(Encryption {
                salt: [1; 16],
                tags: vec![[2; 16]],
            })),
            ..group.journal[0].clone()
        });
        group.folds.push(Fold {
            ino: Ino(1),
            start: 0,
            end: u64::MAX,
            through: LogPosition(3),
        });
        group
    }

    fn payload_of(record: &RecordBuf) -> Bytes {
        let len = record.head.payload_len_bytes as usize;
        Bytes::copy_from_slice(&record.bytes[RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + len])
    }

    #[test]
    fn a_group_is_merged_and_read_back() {
        let group = group();
        assert_eq!(group.puts.len(), 3);
        let payload = payload_of(&group.encode(Epoch(1), 2));
        let read = Group::decode(&payload, group.first, group.last).expect("decodes");
        assert_eq!(read.puts, group.puts);
        assert_eq!(read.newest_snapshot, group.newest_snapshot);
        assert_eq!(read.newest_of_branches, group.newest_of_branches);
        let seen_by = |branch| read.newest_that_sees(&Key::inode(Ino(1).in_branch(Branch(branch))));
        assert_eq!([0, 3, 4].map(|branch| seen_by(branch).0), [7, 6, 0]);
        assert_eq!(read.puts[0].value.as_deref(), Some(&b"new"[..]));
        assert_eq!(read.journal, group.journal);
        assert_eq!(read.folds, group.folds);
        for len in 0..payload.len() {
            assert!(Group::decode(&payload.slice(..len), group.first, group.last).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(0u8..4, 0..200)) {
            let _ = Group::decode(&Bytes::from(bytes), LogPosition(1), LogPosition(1));
        }
    }
}
