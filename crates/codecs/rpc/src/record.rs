//! Record marking: how RPC messages are told apart on a byte stream (RFC 5531, section 11).
//!
//! Owns: fragment headers, putting fragments together, the limit of a record.
//! Must not know: what a record says, where its bytes come from.
//!
//! ```text
//! 0        1        2        3        4
//! +--------+--------+--------+--------+----------------
//! |L   length of the fragment, 31 bit | length bytes ...     L = 1: last fragment of the record
//! +--------+--------+--------+--------+----------------
//! ```
//!
//! Nearly all records have one fragment; they leave the input buffer uncopied.

use bytes::{Buf, Bytes, BytesMut};

use crate::{DecodeError, Writer};

/// Most fragments of one record. The smallest buffer of a known client is some kilobytes, so a
/// record of 1 MiB has some hundred.
pub const FRAGMENT_COUNT_MAX: u32 = 4096;
/// Longest fragment that the header can express.
pub const FRAGMENT_LEN_BYTES_MAX: u32 = LAST - 1;

const LAST: u32 = 1 << 31;

/// The four bytes before each fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Ends the record.
    pub last: bool,
    /// Bytes that follow, at most [`FRAGMENT_LEN_BYTES_MAX`].
    pub len_bytes: u32,
}

impl FragmentHeader {
    pub const LEN_BYTES: usize = 4;

    /// The header and what follows it, or `None` while `input` is too short.
    #[inline]
    pub fn split(input: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = input.split_first_chunk::<{ Self::LEN_BYTES }>()?;
        Some((Self::from_bytes(*head), rest))
    }

    #[inline]
    pub fn from_bytes(bytes: [u8; Self::LEN_BYTES]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Self {
            last: word & LAST != 0,
            len_bytes: word & !LAST,
        }
    }

    /// Panics if `len_bytes` does not fit; what we send is far below that.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::LEN_BYTES] {
        assert!(self.len_bytes <= FRAGMENT_LEN_BYTES_MAX);
        (self.len_bytes | if self.last { LAST } else { 0 }).to_be_bytes()
    }
}

/// The beginning of a record of one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialRecord<'a> {
    /// Bytes of the whole record.
    pub len_bytes: u32,
    /// Those of them that are there, without the fragment header.
    pub bytes: &'a [u8],
}

/// Puts the fragments of one stream together. Holds at most one record.
#[derive(Debug)]
pub struct RecordAssembler {
    len_bytes_max: u32,
    /// Fragments of the record whose last one has not come.
    pending: BytesMut,
    fragment_count: u32,
}

impl RecordAssembler {
    /// `len_bytes_max` limits a record, without fragment headers.
    pub fn new(len_bytes_max: u32) -> Self {
        Self {
            len_bytes_max,
            pending: BytesMut::new(),
            fragment_count: 0,
        }
    }

    /// Takes the next whole record from the front of `input`; `None` until more bytes have come.
    ///
    /// An error means that the stream is lost: the caller must close it and call no more.
    pub fn next_record(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, DecodeError> {
        while let Some((header, rest)) = FragmentHeader::split(input) {
            self.check(header)?;
            if rest.len() < header.len_bytes as usize {
                break;
            }
            input.advance(FragmentHeader::LEN_BYTES);
            let fragment = input.split_to(header.len_bytes as usize);
            if header.last && self.fragment_count == 0 {
                return Ok(Some(fragment.freeze()));
            }
            self.pending.extend_from_slice(&fragment);
            self.fragment_count += 1;
            if header.last {
                self.fragment_count = 0;
                return Ok(Some(self.pending.split().freeze()));
            }
        }
        Ok(None)
    }

    /// The record that is coming in at the front of `input`, for those who want to look at it
    /// before it is whole. `None` if there is no header yet or the record has several fragments.
    pub fn peek<'i>(&self, input: &'i [u8]) -> Result<Option<PartialRecord<'i>>, DecodeError> {
        let Some((header, rest)) = FragmentHeader::split(input) else {
            return Ok(None);
        };
        self.check(header)?;
        if !header.last || self.fragment_count > 0 {
            return Ok(None);
        }
        let bytes = rest.get(..header.len_bytes as usize).unwrap_or(rest);
        Ok(Some(PartialRecord {
            len_bytes: header.len_bytes,
            bytes,
        }))
    }

    /// How many more bytes than those in `input` the next step needs at least; what to reserve.
    pub fn missing_len_bytes(&self, input: &[u8]) -> usize {
        match FragmentHeader::split(input) {
            None => FragmentHeader::LEN_BYTES - input.len(),
            Some((header, rest)) => (header.len_bytes as usize).saturating_sub(rest.len()),
        }
    }

    fn check(&self, header: FragmentHeader) -> Result<(), DecodeError> {
        let len_bytes = self.pending.len() as u64 + u64::from(header.len_bytes);
        if len_bytes > u64::from(self.len_bytes_max) {
            return Err(DecodeError::RecordTooLong {
                len_bytes,
                len_bytes_max: self.len_bytes_max,
            });
        }
        if self.fragment_count >= FRAGMENT_COUNT_MAX {
            return Err(DecodeError::TooManyFragments {
                count_max: FRAGMENT_COUNT_MAX,
            });
        }
        Ok(())
    }
}

/// Where in its buffer a record was begun.
#[derive(Debug)]
#[must_use = "a record that was begun must be finished"]
pub struct RecordStart {
    offset: usize,
}

impl Writer<'_> {
    /// Begins a record of one fragment: leaves room for its header.
    #[inline]
    pub fn begin_record(&mut self) -> RecordStart {
        let offset = self.len_bytes();
        self.u32(0);
        RecordStart { offset }
    }

    /// Ends it: everything written since `start`, and `more_len_bytes` that the caller will send
    /// right after this buffer (a payload and its padding, not copied into it), are the record.
    #[inline]
    pub fn finish_record(&mut self, start: RecordStart, more_len_bytes: usize) {
        let written = self.len_bytes() - start.offset - FragmentHeader::LEN_BYTES;
        let len_bytes =
            u32::try_from(written + more_len_bytes).expect("a record that we send fits 31 bits");
        let header = FragmentHeader {
            last: true,
            len_bytes,
        };
        self.patch_u32(start.offset, u32::from_be_bytes(header.to_bytes()));
    }
}

#[cfg(test)]
mod tests;
