//! Bytes of the files, as pure functions. The layout: docs/reference/formats/history.md.
//!
//! A file is a header with the table of its series, and frames of rows. A frame that is short or does not match its
//! checksum ends the file: it was being written when the machine stopped.

use std::sync::Arc;

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// Series of a table.
pub const SERIES_MAX: usize = 1024;
/// Longest name of a series, in bytes.
pub const NAME_LEN_BYTES_MAX: usize = 255;
/// Rows of a frame.
pub const FRAME_ROWS_MAX: usize = 64;
/// Longest payload of a frame, in bytes.
pub const PAYLOAD_LEN_BYTES_MAX: usize = 1 << 20;
/// Longest table, in bytes.
pub const TABLE_LEN_BYTES_MAX: usize = 2 + SERIES_MAX * (3 + NAME_LEN_BYTES_MAX);
/// Digits after the point that a series may have.
pub const DECIMALS_MAX: u8 = 9;

const MAGIC: &[u8; 8] = b"CAIRNHIS";
const VERSION: u16 = 1;
/// Magic, version, length of the table.
const HEAD_LEN_BYTES: usize = 8 + 2 + 4;
/// Length and checksum.
const FRAME_HEAD_LEN_BYTES: usize = 4 + 4;
/// Longest number of variable length, in bytes.
const VARINT_LEN_BYTES_MAX: usize = 10;
// A full frame always fits.
const _: () = assert!(
    (FRAME_ROWS_MAX * (SERIES_MAX + 1) + 3) * VARINT_LEN_BYTES_MAX <= PAYLOAD_LEN_BYTES_MAX
);

/// How several values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Mean,
    Max,
    Last,
}

/// One number that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Series {
    pub name: String,
    pub kind: Kind,
    /// Values are whole numbers of this many digits after the point.
    pub decimals: u8,
}

/// The series of rows, in their order.
pub type Table = Arc<[Series]>;

/// Values of all series of a table at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Since 1970.
    pub seconds: i64,
    /// `None` where nothing is known. [`u64::MAX`] is kept as one less.
    pub values: Vec<Option<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It was being written, or is damaged.
    #[error("it ends too early")]
    Truncated,
    #[error("its checksum does not match")]
    Checksum,
    #[error("it is not a history file")]
    Magic,
    #[error("it has version {0}, which a newer program wrote")]
    Version(u16),
    #[error("its content is invalid")]
    Content,
}

fn crc(bytes: &[u8]) -> u32 {
    // A CRC-32 in the low half.
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

/// Whether a table can be written.
pub fn is_table(series: &[Series]) -> bool {
    series.len() <= SERIES_MAX
        && series.iter().all(|series| {
            (1..=NAME_LEN_BYTES_MAX).contains(&series.name.len()) && series.decimals <= DECIMALS_MAX
        })
}

/// The header of a file. The table must be one that [`is_table`] takes.
pub fn encode_header(table: &[Series]) -> Vec<u8> {
    assert!(is_table(table));
    let mut packed = Vec::new();
    packed.extend((table.len() as u16).to_le_bytes());
    for series in table {
        packed.push(match series.kind {
            Kind::Mean => 0,
            Kind::Max => 1,
            Kind::Last => 2,
        });
        packed.push(series.decimals);
        packed.push(series.name.len() as u8);
        packed.extend(series.name.as_bytes());
    }
    let mut out = Vec::with_capacity(HEAD_LEN_BYTES + packed.len() + 4);
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((packed.len() as u32).to_le_bytes());
    out.extend(packed);
    out.extend(crc(&out).to_le_bytes());
    out
}

/// The table of a file, and what follows its header.
pub fn decode_header(input: &[u8]) -> Result<(Table, &[u8]), DecodeError> {
    let (magic, rest) = input
        .split_first_chunk::<8>()
        .ok_or(DecodeError::Truncated)?;
    if magic != MAGIC {
        return Err(DecodeError::Magic);
    }
    let (version, rest) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
    let version = u16::from_le_bytes(*version);
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let (len_bytes, rest) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
    let len_bytes = u32::from_le_bytes(*len_bytes) as usize;
    if len_bytes > TABLE_LEN_BYTES_MAX {
        return Err(DecodeError::Content);
    }
    let (packed, rest) = rest
        .split_at_checked(len_bytes)
        .ok_or(DecodeError::Truncated)?;
    let (sum, rest) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
    let covered = input
        .get(..HEAD_LEN_BYTES + len_bytes)
        .ok_or(DecodeError::Truncated)?;
    if u32::from_le_bytes(*sum) != crc(covered) {
        return Err(DecodeError::Checksum);
    }
    let table = decode_table(packed).ok_or(DecodeError::Content)?;
    Ok((table, rest))
}

fn decode_table(packed: &[u8]) -> Option<Table> {
    let (count, mut rest) = packed.split_first_chunk()?;
    let count = usize::from(u16::from_le_bytes(*count));
    if count > SERIES_MAX {
        return None;
    }
    let mut table = Vec::with_capacity(count);
    for _ in 0..count {
        let ([kind, decimals, len_bytes], after) = rest.split_first_chunk()?;
        let kind = match kind {
            0 => Kind::Mean,
            1 => Kind::Max,
            2 => Kind::Last,
            _ => return None,
        };
        let (name, after) = after.split_at_checked(usize::from(*len_bytes))?;
        rest = after;
        table.push(Series {
            name: String::from_utf8(name.to_vec()).ok()?,
            kind,
            decimals: *decimals,
        });
    }
    (rest.is_empty() && is_table(&table)).then(|| table.into())
}

/// One frame. Every row has a value, or none, for each of the `series_count` series.
pub fn encode_frame(rows: &[Row], series_count: usize) -> Vec<u8> {
    assert!((1..=FRAME_ROWS_MAX).contains(&rows.len()));
    assert!(series_count <= SERIES_MAX);
    let mut payload = Vec::with_capacity(rows.len() * (series_count + 4) * 2);
    let times = || rows.iter().map(|row| row.seconds);
    let first = times().min().unwrap_or(0);
    let last = times().max().unwrap_or(0);
    put(&mut payload, rows.len() as u64);
    put(&mut payload, zigzag(first));
    put(&mut payload, zigzag(last));
    let mut before = first;
    let mut values_before = vec![0_u64; series_count];
    for row in rows {
        assert!(row.values.len() == series_count);
        put(&mut payload, zigzag(row.seconds.wrapping_sub(before)));
        before = row.seconds;
        for (value, before) in row.values.iter().zip(&mut values_before) {
            let value = value.map_or(0, |value| value.saturating_add(1));
            put(&mut payload, zigzag(value.wrapping_sub(*before) as i64));
            *before = value;
        }
    }
    assert!(payload.len() <= PAYLOAD_LEN_BYTES_MAX);
    let mut out = Vec::with_capacity(FRAME_HEAD_LEN_BYTES + payload.len());
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend(crc(&payload).to_le_bytes());
    out.extend(payload);
    out
}

/// A frame whose checksum matches.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub rows_count: usize,
    /// The least and the greatest time of its rows.
    pub first_seconds: i64,
    pub last_seconds: i64,
    rows: &'a [u8],
}

/// The frame that `input` begins with, and what follows it.
pub fn decode_frame(input: &[u8]) -> Result<(Frame<'_>, &[u8]), DecodeError> {
    let (len_bytes, rest) = input.split_first_chunk().ok_or(DecodeError::Truncated)?;
    let (sum, rest) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
    let len_bytes = u32::from_le_bytes(*len_bytes) as usize;
    if len_bytes > PAYLOAD_LEN_BYTES_MAX {
        return Err(DecodeError::Content);
    }
    let (payload, rest) = rest
        .split_at_checked(len_bytes)
        .ok_or(DecodeError::Truncated)?;
    if u32::from_le_bytes(*sum) != crc(payload) {
        return Err(DecodeError::Checksum);
    }
    let mut rows = payload;
    let mut head = || Some((take(&mut rows)?, take(&mut rows)?, take(&mut rows)?));
    let (count, first, last) = head().ok_or(DecodeError::Content)?;
    let rows_count = usize::try_from(count).map_err(|_| DecodeError::Content)?;
    let frame = Frame {
        rows_count,
        first_seconds: unzigzag(first),
        last_seconds: unzigzag(last),
        rows,
    };
    let makes_sense =
        (1..=FRAME_ROWS_MAX).contains(&rows_count) && frame.first_seconds <= frame.last_seconds;
    makes_sense
        .then_some((frame, rest))
        .ok_or(DecodeError::Content)
}

impl Frame<'_> {
    /// Its rows, of a table of so many series.
    pub fn rows(&self, series_count: usize) -> Result<Vec<Row>, DecodeError> {
        let mut input = self.rows;
        let rows = self.take_rows(&mut input, series_count);
        rows.filter(|_| input.is_empty())
            .ok_or(DecodeError::Content)
    }

    fn take_rows(&self, input: &mut &[u8], series_count: usize) -> Option<Vec<Row>> {
        // Each takes a byte at least: no more is kept than has arrived.
        if input.len() / (series_count + 1) < self.rows_count {
            return None;
        }
        let mut rows = Vec::with_capacity(self.rows_count);
        let mut seconds = self.first_seconds;
        let mut before = vec![0_u64; series_count];
        for _ in 0..self.rows_count {
            seconds = seconds.wrapping_add(unzigzag(take(input)?));
            if !(self.first_seconds..=self.last_seconds).contains(&seconds) {
                return None;
            }
            let mut values = Vec::with_capacity(series_count);
            for before in &mut before {
                *before = before.wrapping_add(unzigzag(take(input)?) as u64);
                values.push(before.checked_sub(1));
            }
            rows.push(Row { seconds, values });
        }
        Some(rows)
    }
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for index in 0..VARINT_LEN_BYTES_MAX {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        let bits = u64::from(byte & 0x7f);
        if index == VARINT_LEN_BYTES_MAX - 1 && bits > 1 {
            return None;
        }
        value |= bits << (7 * index);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Small numbers of either sign become small ones.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
