//! The bytes of a log file: its header block and the records in it. Pure.
//!
//! Owns: layouts and checks (docs/reference/formats/metadata.md). Must not know: disks, which records count.
//!
//! ```text
//! file    | header block 4096 | record | record | ... | whatever the recycled file held |
//! record  | head 64 | payload | zeros up to a multiple of 4096 |
//! ```
//!
//! A file is recycled with its old bytes in it, which may be records of another volume with the same numbers. So each use
//! of a file begins with a header that has a random number, and that number is in the checksum of every record of that use.

use cairn_base::buf::IO_ALIGN_BYTES;
use cairn_base::planted::{self, Bug};
use cairn_base::{AlignedBuf, DiskId, Epoch, LogPosition, VolumeId, crc32c, crc32c_append};

use super::fields::Fields;
use super::records::RecordError;

/// Bytes of the header block, and the unit that records are padded to.
pub const BLOCK_BYTES: usize = IO_ALIGN_BYTES;
/// Bytes of a record before its payload.
pub const RECORD_HEAD_BYTES: usize = 64;
/// Length of a file that a disk gets for its header only, with one block that holds nothing.
pub const TOLD_FILE_BYTES: u64 = 2 * BLOCK_BYTES as u64;
/// Most copies of one log file.
pub const SET_COUNT_MAX: usize = 8;
/// Most disks that a header names as members.
pub const MEMBER_COUNT_MAX: usize = 64;
/// Most terms that a header names.
pub const TERM_COUNT_MAX: usize = 100;

/// Larger positions and epochs are never written, so there is always one after those that are read.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// Largest log file that is read, in bytes; none was ever made that is much longer than the settings allow.
pub const FILE_LEN_BYTES_MAX: u64 = 256 << 20;

const FILE_MAGIC: [u8; 8] = *b"CAIRNLOG";
const FILE_VERSION: u32 = 2;
const RECORD_MAGIC: u32 = 0x4352_4543;
const HEADER_FIXED_BYTES: usize = 68;
const CRC_OFFSET: usize = BLOCK_BYTES - 4;

const _: () = assert!(
    HEADER_FIXED_BYTES + SET_COUNT_MAX * 16 + MEMBER_COUNT_MAX * 16 + TERM_COUNT_MAX * 24
        <= CRC_OFFSET
);

/// One time that a store was open for writing. A term is told from another of the same epoch (made
/// by disks that were used apart) by a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub epoch: Epoch,
    pub nonce: u64,
    /// The first position of this term; records of older terms at or beyond it do not count.
    pub start: LogPosition,
}

/// One use of a file: a random number, drawn each time that a file gets a header. Two uses never share it, whatever their
/// volumes, names and epochs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileUse(pub u128);

impl FileUse {
    /// What a record shows of it. The rest is in its checksum alone.
    fn shown(self) -> u64 {
        self.0 as u64
    }
}

/// The header block of a log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    pub volume: VolumeId,
    /// Orders the files of a volume; part of the name.
    pub sequence: u64,
    /// Records of another use are none of this file.
    pub file_use: FileUse,
    /// The sequence that it has when it is compared with headers on other disks: its own, or that of an older header of its
    /// disk which it repeats.
    pub speaks_as: u64,
    pub file_len_bytes: u64,
    /// Log positions below it were not needed any more when the header was written.
    pub retained_from: LogPosition,
    /// Copies wanted.
    pub copies: u8,
    /// The disks that have this file.
    pub set: Vec<DiskId>,
    /// The disks that were there when the term began.
    pub members: Vec<DiskId>,
    /// The terms whose records may still be needed, oldest first; the last is this file's.
    pub history: Vec<Term>,
}

impl FileHeader {
    pub fn term(&self) -> Option<&Term> {
        self.history.last()
    }

    pub fn encode(&self) -> AlignedBuf {
        assert!(self.set.len() <= SET_COUNT_MAX);
        assert!(self.members.len() <= MEMBER_COUNT_MAX);
        assert!(self.history.len() <= TERM_COUNT_MAX);
        assert!(self.speaks_as <= self.sequence);
        let mut out = Vec::with_capacity(BLOCK_BYTES);
        out.extend_from_slice(&FILE_MAGIC);
        out.extend_from_slice(&FILE_VERSION.to_be_bytes());
        out.extend_from_slice(&self.volume.0.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.file_use.0.to_be_bytes());
        out.extend_from_slice(&self.speaks_as.to_be_bytes());
        out.extend_from_slice(&self.file_len_bytes.to_be_bytes());
        out.extend_from_slice(&self.retained_from.0.to_be_bytes());
        out.push(self.copies);
        out.push(self.set.len() as u8);
        out.push(self.members.len() as u8);
        out.push(self.history.len() as u8);
        for disk in self.set.iter().chain(&self.members) {
            out.extend_from_slice(&disk.0.to_be_bytes());
        }
        for term in &self.history {
            out.extend_from_slice(&term.epoch.0.to_be_bytes());
            out.extend_from_slice(&term.nonce.to_be_bytes());
            out.extend_from_slice(&term.start.0.to_be_bytes());
        }
        out.resize(CRC_OFFSET, 0);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        AlignedBuf::copy_of(&out)
    }

    /// `Ok(None)` when these are not the bytes of a header, whole and undamaged; an error only for
    /// a header of a version that this program does not know.
    pub fn decode(block: &[u8]) -> Result<Option<Self>, RecordError> {
        let Some((body, crc)) = block.split_last_chunk::<4>() else {
            return Ok(None);
        };
        if block.len() != BLOCK_BYTES
            || !body.starts_with(&FILE_MAGIC)
            || crc32c(body) != u32::from_be_bytes(*crc)
        {
            return Ok(None);
        }
        let mut fields = Fields::unversioned("log file", body);
        fields.take(FILE_MAGIC.len(), "magic")?;
        let version = fields.u32("version")?;
        if version != FILE_VERSION {
            return Err(RecordError::Version {
                record: "log file",
                version: version.min(255) as u8,
            });
        }
        let volume = VolumeId(fields.u32("volume")?);
        let sequence = fields.u64("sequence")?;
        let file_use = FileUse(u128::from_be_bytes(fields.array("use")?));
        let speaks_as = fields.u64("speaks as")?;
        if speaks_as > sequence {
            return Err(fields.malformed("speaks as"));
        }
        let file_len_bytes = fields.u64("length")?;
        if file_len_bytes > FILE_LEN_BYTES_MAX {
            return Err(fields.malformed("length"));
        }
        let retained_from = LogPosition(fields.u64("retained from")?);
        let copies = fields.u8("copies")?;
        let set_count = fields.u8("set")? as usize;
        let member_count = fields.u8("members")? as usize;
        let term_count = fields.u8("history")? as usize;
        if set_count > SET_COUNT_MAX
            || member_count > MEMBER_COUNT_MAX
            || term_count > TERM_COUNT_MAX
            || term_count == 0
        {
            return Err(fields.malformed("counts"));
        }
        let mut disks = |count: usize| -> Result<Vec<DiskId>, RecordError> {
            (0..count)
                .map(|_| Ok(DiskId(u128::from_be_bytes(fields.array("disk")?))))
                .collect()
        };
        let set = disks(set_count)?;
        let members = disks(member_count)?;
        let mut history = Vec::with_capacity(term_count);
        for _ in 0..term_count {
            history.push(Term {
                epoch: Epoch(fields.u64("epoch")?),
                nonce: fields.u64("term")?,
                start: LogPosition(fields.u64("start")?),
            });
        }
        if history
            .iter()
            .any(|term| term.epoch.0 > NUMBER_MAX || term.start.0 > NUMBER_MAX)
            || retained_from.0 > NUMBER_MAX
        {
            return Err(fields.malformed("numbers"));
        }
        Ok(Some(Self {
            volume,
            sequence,
            file_use,
            speaks_as,
            file_len_bytes,
            retained_from,
            copies,
            set,
            members,
            history,
        }))
    }
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// The positions of the batches in it.
    pub first: LogPosition,
    pub last: LogPosition,
    /// The term that the batches were submitted in; a later term may have copied the record.
    pub epoch: Epoch,
    pub term: u64,
    /// When this record is durable, positions below are not needed any more.
    pub retained_from: LogPosition,
    pub payload_len_bytes: u32,
    pub payload_crc: u32,
}

impl RecordHead {
    fn encode(&self, file_use: FileUse) -> [u8; RECORD_HEAD_BYTES] {
        let mut out = Vec::with_capacity(RECORD_HEAD_BYTES);
        out.extend_from_slice(&RECORD_MAGIC.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&file_use.shown().to_be_bytes());
        out.extend_from_slice(&self.first.0.to_be_bytes());
        out.extend_from_slice(&self.last.0.to_be_bytes());
        out.extend_from_slice(&self.epoch.0.to_be_bytes());
        out.extend_from_slice(&self.term.to_be_bytes());
        out.extend_from_slice(&self.retained_from.0.to_be_bytes());
        out.extend_from_slice(&self.payload_len_bytes.to_be_bytes());
        out.extend_from_slice(&self.payload_crc.to_be_bytes());
        let mut head = [0; RECORD_HEAD_BYTES];
        head.copy_from_slice(&out);
        let crc = head_crc(file_use, &head[8..]);
        head[4..8].copy_from_slice(&crc.to_be_bytes());
        head
    }

    /// The head at the start of `bytes`, if it was written in this use of the file.
    pub fn decode(bytes: &[u8], file_use: FileUse) -> Option<Self> {
        let head = bytes.first_chunk::<RECORD_HEAD_BYTES>()?;
        let mut fields = Fields::unversioned("log record", head);
        let magic = fields.u32("magic").ok()?;
        let crc = fields.u32("crc").ok()?;
        if magic != RECORD_MAGIC || head_crc(file_use, fields.rest) != crc {
            return None;
        }
        let shown = fields.u64("use").ok()?;
        let head = Self {
            first: LogPosition(fields.u64("first").ok()?),
            last: LogPosition(fields.u64("last").ok()?),
            epoch: Epoch(fields.u64("epoch").ok()?),
            term: fields.u64("term").ok()?,
            retained_from: LogPosition(fields.u64("retained from").ok()?),
            payload_len_bytes: fields.u32("length").ok()?,
            payload_crc: fields.u32("payload crc").ok()?,
        };
        let is_possible = head.first.0 >= 1
            && head.first <= head.last
            && head.last.0 <= NUMBER_MAX
            && head.retained_from.0 <= NUMBER_MAX;
        (shown == file_use.shown() && is_possible).then_some(head)
    }
}

/// The checksum of a record's head, which begins behind it.
fn head_crc(file_use: FileUse, rest: &[u8]) -> u32 {
    crc32c_append(crc32c(&file_use.0.to_be_bytes()), rest)
}

/// Bytes that a record with such a payload takes in a file.
pub fn record_len_bytes(payload_len_bytes: usize) -> usize {
    (RECORD_HEAD_BYTES + payload_len_bytes).next_multiple_of(BLOCK_BYTES)
}

/// A record in memory: aligned, padded; its head is filled for each file that it is written to.
pub struct RecordBuf {
    pub bytes: AlignedBuf,
    pub head: RecordHead,
}

impl RecordBuf {
    /// Takes a buffer whose payload starts at [`RECORD_HEAD_BYTES`].
    pub fn new(
        bytes: AlignedBuf,
        payload_len_bytes: usize,
        positions: (LogPosition, LogPosition),
        epoch: Epoch,
        term: u64,
    ) -> Self {
        assert_eq!(bytes.len(), record_len_bytes(payload_len_bytes));
        let payload = &bytes[RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + payload_len_bytes];
        let head = RecordHead {
            first: positions.0,
            last: positions.1,
            epoch,
            term,
            retained_from: LogPosition(0),
            payload_len_bytes: payload_len_bytes as u32,
            payload_crc: crc32c(payload),
        };
        Self { bytes, head }
    }

    /// A record with these payload bytes, for copying one from an old file.
    pub fn copy_of(
        payload: &[u8],
        positions: (LogPosition, LogPosition),
        epoch: Epoch,
        term: u64,
    ) -> Self {
        let mut bytes = AlignedBuf::zeroed(record_len_bytes(payload.len()));
        bytes[RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + payload.len()].copy_from_slice(payload);
        Self::new(bytes, payload.len(), positions, epoch, term)
    }

    pub fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Fills the head for one use of a file.
    pub fn seal(&mut self, file_use: FileUse, retained_from: LogPosition) {
        self.head.retained_from = retained_from;
        let head = self.head.encode(file_use);
        self.bytes[..RECORD_HEAD_BYTES].copy_from_slice(&head);
    }
}

/// A whole record found in a file.
pub struct FoundRecord {
    pub head: RecordHead,
    pub payload: std::ops::Range<usize>,
}

/// Finds all whole records of one use of a file in its bytes after the header. Where one is damaged or torn,
/// the search goes on block by block, so that later ones show that bytes are missing.
pub fn find_records(bytes: &[u8], file_use: FileUse) -> Vec<FoundRecord> {
    let mut found = Vec::new();
    let mut offset = 0;
    while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
        let whole = RecordHead::decode(rest, file_use).and_then(|head| {
            let len = usize::try_from(head.payload_len_bytes).ok()?;
            let end = RECORD_HEAD_BYTES.checked_add(len)?;
            let payload = rest.get(RECORD_HEAD_BYTES..end)?;
            let is_whole = crc32c(payload) == head.payload_crc;
            (is_whole || planted::is(Bug::LogChecksumIgnored)).then_some((head, len))
        });
        match whole {
            Some((head, len)) => {
                let start = offset + RECORD_HEAD_BYTES;
                found.push(FoundRecord {
                    head,
                    payload: start..start + len,
                });
                offset += record_len_bytes(len);
            }
            None => offset += BLOCK_BYTES,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FileHeader {
        FileHeader {
            volume: VolumeId(3),
            sequence: 4,
            file_use: FileUse(5),
            speaks_as: 4,
            file_len_bytes: 1 << 20,
            retained_from: LogPosition(7),
            copies: 3,
            set: vec![DiskId(1); SET_COUNT_MAX],
            members: vec![DiskId(2); MEMBER_COUNT_MAX],
            history: vec![
                Term {
                    epoch: Epoch(1),
                    nonce: 9,
                    start: LogPosition(1),
                };
                TERM_COUNT_MAX
            ],
        }
    }

    fn record(payload: &[u8], first: u64, file_use: u128) -> Vec<u8> {
        let positions = (LogPosition(first), LogPosition(first + 1));
        let mut record = RecordBuf::copy_of(payload, positions, Epoch(1), 9);
        record.seal(FileUse(file_use), LogPosition(1));
        record.bytes.to_vec()
    }

    #[test]
    fn header_is_read_back_and_damage_is_no_header() {
        let block = header().encode();
        assert_eq!(FileHeader::decode(&block), Ok(Some(header())));
        for index in (0..BLOCK_BYTES).step_by(7) {
            let mut damaged = block.to_vec();
            damaged[index] ^= 1;
            assert_eq!(FileHeader::decode(&damaged), Ok(None), "byte {index}");
        }
        assert_eq!(FileHeader::decode(&block[..100]), Ok(None));
        let mut newer = block.to_vec();
        newer[11] = 3;
        let crc = crc32c(&newer[..CRC_OFFSET]);
        newer[CRC_OFFSET..].copy_from_slice(&crc.to_be_bytes());
        assert!(matches!(
            FileHeader::decode(&newer),
            Err(RecordError::Version { version: 3, .. })
        ));
    }

    #[test]
    fn a_header_speaks_for_itself_or_for_an_older_one() {
        let read = |speaks_as: u64| {
            let mut block = header().encode().to_vec();
            block[40..48].copy_from_slice(&speaks_as.to_be_bytes());
            let crc = crc32c(&block[..CRC_OFFSET]);
            block[CRC_OFFSET..].copy_from_slice(&crc.to_be_bytes());
            FileHeader::decode(&block).map(|header| header.map(|header| header.speaks_as))
        };
        for speaks_as in [0, 3, 4] {
            assert_eq!(read(speaks_as), Ok(Some(speaks_as)));
        }
        assert!(read(5).is_err(), "no header repeats a newer one");
    }

    #[test]
    fn a_length_is_read_or_refused() {
        let read = |file_len_bytes| {
            let header = FileHeader {
                file_len_bytes,
                ..header()
            };
            FileHeader::decode(&header.encode()).map(|read| read == Some(header))
        };
        for len in [0, FILE_LEN_BYTES_MAX / 2, FILE_LEN_BYTES_MAX] {
            assert_eq!(read(len), Ok(true), "{len}");
        }
        for len in [FILE_LEN_BYTES_MAX + 1, u64::MAX] {
            assert!(read(len).is_err(), "{len}");
        }
    }

    #[test]
    fn records_are_found_past_damage_and_never_those_of_another_use_of_the_file() {
        let mut bytes = record(b"first", 1, 5);
        bytes.extend(record(&[7; 9000], 3, 5));
        bytes.extend(record(b"old", 4, 4));
        // What a record shows of it is the same.
        bytes.extend(record(b"older", 4, 5 | 1 << 64));
        bytes.extend(record(b"third", 5, 5));
        let firsts = |bytes: &[u8]| -> Vec<u64> {
            find_records(bytes, FileUse(5))
                .iter()
                .map(|found| found.head.first.0)
                .collect()
        };
        assert_eq!(firsts(&bytes), [1, 3, 5]);
        let mut damaged = bytes.clone();
        damaged[BLOCK_BYTES + 5000] ^= 1;
        assert_eq!(firsts(&damaged), [1, 5]);
        let mut torn = bytes.clone();
        torn.truncate(BLOCK_BYTES + 8192);
        assert_eq!(firsts(&torn), [1]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(mut bytes in proptest::collection::vec(0u8.., 0..5000)) {
            let _ = FileHeader::decode(&bytes);
            let _ = find_records(&bytes, FileUse(0));
            bytes.resize(BLOCK_BYTES, 0);
            bytes[..8].copy_from_slice(&FILE_MAGIC);
            bytes[8..12].copy_from_slice(&FILE_VERSION.to_be_bytes());
            let crc = crc32c(&bytes[..CRC_OFFSET]);
            bytes[CRC_OFFSET..].copy_from_slice(&crc.to_be_bytes());
            let _ = FileHeader::decode(&bytes);
        }
    }
}
