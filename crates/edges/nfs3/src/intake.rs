//! What a connection receives: bytes in, in pieces of any size; calls out, in order.
//!
//! Owns: the input buffer, record marks, the limits of records, receiving the payload of a large WRITE
//! where it shall stay.
//! Must not know: sockets, the runtime, what calls mean beyond recognising a WRITE, who may do what.
//! Invariant: where the stream was cut into reads changes no call, no answer and no error.
//!
//! The caller asks [`Intake::next`] until it is starved, then reads once into [`Intake::space`], and again.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use cairn_base::buf::AlignedFill;
use cairn_codec_nfs::v3;
use cairn_codec_rpc::record::FRAGMENT_COUNT_MAX;
use cairn_codec_rpc::rpc::{CALL_HEADER_LEN_BYTES_MAX, decode_call};
use cairn_codec_rpc::{DecodeError, FragmentHeader, Incoming, Reader, xdr};

/// Longest record that is taken: a WRITE of 1 MiB with the longest header, and room to spare.
pub const RECORD_LEN_BYTES_MAX: u32 = (1 << 20) + 4096;
/// Records that are not a WRITE must fit in here, and there is no longer legal one.
pub const INPUT_LEN_BYTES: usize = 64 << 10;
/// A WRITE of at least this size is received directly into its payload buffer.
pub const DIRECT_LEN_BYTES_MIN: usize = 32 << 10;
/// How much is read after a WRITE of that kind: enough for the head of the next one, and little of
/// its payload, which would have to be copied.
const PEEK_LEN_BYTES: usize = 512;
/// The head of a WRITE is in the first so many bytes of its record.
const WRITE_HEAD_LEN_BYTES_MAX: usize = CALL_HEADER_LEN_BYTES_MAX + v3::WRITE_PREFIX_LEN_BYTES_MAX;

const _: () = assert!(DIRECT_LEN_BYTES_MIN < INPUT_LEN_BYTES);
const _: () = assert!(WRITE_HEAD_LEN_BYTES_MAX < DIRECT_LEN_BYTES_MIN);

/// What the rest of the server has to say about a record before it is whole.
pub trait Gate {
    /// What goes to the client instead of a result.
    type Answer;

    /// Whether any export lets this client in. Those that none does get no room for a large record.
    fn is_let_in(&self) -> bool;

    /// The answer to a WRITE to what this client may not use: its payload need not be kept.
    fn refuse_write(&self, xid: u32, file: &v3::FileHandle) -> Option<Self::Answer>;

    /// The answer to a call that cannot be read.
    fn garbage(&self, xid: u32) -> Self::Answer;
}

/// What came of the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a, A> {
    /// More bytes are needed.
    Starved,
    /// A record that is whole. If it is a WRITE whose payload was received apart, `payload` is that, and
    /// `record` ends where it would begin.
    Call {
        record: Cow<'a, [u8]>,
        payload: Option<Bytes>,
    },
    /// A record that was not kept is over; this is the answer to it.
    Skipped(A),
}

/// Where the next bytes go.
pub enum Space<'a> {
    /// The payload of a WRITE: what is read into its spare part is to be counted there.
    Payload(&'a mut AlignedFill),
    /// The input buffer, of which at least one byte is free; [`Intake::received`] is to be told.
    Input(&'a mut [u8]),
}

/// What of a record is being received.
enum Receiving<A> {
    /// The next bytes in the input buffer are a fragment header.
    Next,
    /// The payload of a WRITE.
    Payload {
        /// The record up to the payload.
        head: Vec<u8>,
        payload: AlignedFill,
        padding_bytes: usize,
    },
    /// A record too long for anything but a WRITE that is none, or is refused; answered when it is over.
    Skip { left_bytes: usize, answer: A },
    /// A record of several fragments.
    Fragments {
        assembled: Vec<u8>,
        /// Of the present fragment.
        left_bytes: usize,
        last: bool,
        count: u32,
    },
}

/// What came of looking at the beginning of a record.
enum Begun {
    NeedsMore,
    /// All of it is in the input buffer, at this place.
    Whole(Range<usize>),
    /// The rest of it is received in another way.
    Receiving,
}

/// Whether the payload of a record can be received apart.
enum Direct {
    Begun,
    NeedsMore,
    NotWrite,
}

/// The bytes of one connection that came and are not taken. `A` is what records that are not kept are
/// answered with.
pub struct Intake<A> {
    input: Box<[u8]>,
    /// The bytes of `input` that are there and not taken.
    start: usize,
    end: usize,
    receiving: Receiving<A>,
    /// The last record was a WRITE with a large payload.
    peek: bool,
}

impl<A> Default for Intake<A> {
    fn default() -> Self {
        Self {
            input: vec![0; INPUT_LEN_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            receiving: Receiving::Next,
            peek: false,
        }
    }
}

impl<A> Intake<A> {
    /// Bytes held for a record that is not whole, besides the input buffer.
    pub fn held_bytes(&self) -> usize {
        match &self.receiving {
            Receiving::Next | Receiving::Skip { .. } => 0,
            Receiving::Payload { payload, .. } => payload.len_bytes(),
            Receiving::Fragments { assembled, .. } => assembled.capacity(),
        }
    }

    /// Whether there is a part of a record.
    pub fn is_in_record(&self) -> bool {
        !matches!(self.receiving, Receiving::Next) || self.start < self.end
    }

    /// Whether [`Self::next`] would begin a record. Whoever is at a limit does not ask it then.
    #[inline]
    pub fn is_at_record(&self) -> bool {
        matches!(self.receiving, Receiving::Next)
            && self.end - self.start >= FragmentHeader::LEN_BYTES
    }

    /// Takes the next record from the bytes that are there.
    ///
    /// An error means that the stream is lost: the caller must close it and call no more.
    #[inline]
    pub fn next<G: Gate<Answer = A>>(&mut self, gate: &G) -> Result<Step<'_, A>, DecodeError> {
        loop {
            match &mut self.receiving {
                Receiving::Next => {
                    let there = &self.input[self.start..self.end];
                    let Some((header, _)) = FragmentHeader::split(there) else {
                        return Ok(Step::Starved);
                    };
                    match self.begin_record(header, gate)? {
                        Begun::NeedsMore => return Ok(Step::Starved),
                        Begun::Receiving => {}
                        Begun::Whole(record) => {
                            return Ok(Step::Call {
                                record: Cow::Borrowed(&self.input[record]),
                                payload: None,
                            });
                        }
                    }
                }
                Receiving::Payload {
                    payload,
                    padding_bytes,
                    ..
                } => {
                    self.start += payload.fill_from(&self.input[self.start..self.end]);
                    if payload.missing_bytes() > 0 || self.end - self.start < *padding_bytes {
                        return Ok(Step::Starved);
                    }
                    self.start += *padding_bytes;
                    self.peek = true;
                    let whole = std::mem::replace(&mut self.receiving, Receiving::Next);
                    if let Receiving::Payload { head, payload, .. } = whole {
                        return Ok(Step::Call {
                            record: Cow::Owned(head),
                            payload: Some(payload.finish().freeze()),
                        });
                    }
                }
                Receiving::Skip { left_bytes, .. } => {
                    let take = (self.end - self.start).min(*left_bytes);
                    self.start += take;
                    *left_bytes -= take;
                    if *left_bytes > 0 {
                        return Ok(Step::Starved);
                    }
                    let skipped = std::mem::replace(&mut self.receiving, Receiving::Next);
                    if let Receiving::Skip { answer, .. } = skipped {
                        return Ok(Step::Skipped(answer));
                    }
                }
                Receiving::Fragments { .. } => {
                    if !self.take_fragments(gate)? {
                        return Ok(Step::Starved);
                    }
                    if let Some(assembled) = self.take_assembled() {
                        return Ok(Step::Call {
                            record: Cow::Owned(assembled),
                            payload: None,
                        });
                    }
                }
            }
        }
    }

    /// Where the next read goes: into the payload if one is being received. To be asked when
    /// [`Self::next`] is starved.
    #[inline]
    pub fn space(&mut self) -> Space<'_> {
        if let Receiving::Payload { payload, .. } = &mut self.receiving
            && payload.missing_bytes() > 0
        {
            assert!(self.start == self.end);
            return Space::Payload(payload);
        }
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let limit = match self.peek && self.end < PEEK_LEN_BYTES {
            true => PEEK_LEN_BYTES,
            false => self.input.len(),
        };
        let free = &mut self.input[self.end..limit];
        assert!(!free.is_empty());
        Space::Input(free)
    }

    /// So many bytes were read to the front of the free part of the input buffer.
    #[inline]
    pub fn received(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.input.len() - self.end);
        self.end += len_bytes;
    }

    /// Looks at the record whose first fragment has `header`.
    fn begin_record<G: Gate<Answer = A>>(
        &mut self,
        header: FragmentHeader,
        gate: &G,
    ) -> Result<Begun, DecodeError> {
        check_len(u64::from(header.len_bytes), RECORD_LEN_BYTES_MAX)?;
        let record_start = self.start + FragmentHeader::LEN_BYTES;
        if !header.last {
            check_fragments_len(u64::from(header.len_bytes), gate)?;
            self.start = record_start;
            self.receiving = Receiving::Fragments {
                assembled: Vec::new(),
                left_bytes: header.len_bytes as usize,
                last: false,
                count: 1,
            };
            return Ok(Begun::Receiving);
        }
        let len_bytes = header.len_bytes as usize;
        let there = self.end - record_start;
        if len_bytes >= DIRECT_LEN_BYTES_MIN {
            match self.begin_payload(record_start, len_bytes, gate) {
                Direct::Begun => return Ok(Begun::Receiving),
                Direct::NeedsMore => return Ok(Begun::NeedsMore),
                Direct::NotWrite => {}
            }
        }
        if there >= len_bytes {
            let record_end = record_start + len_bytes;
            self.start = record_end;
            self.peek = false;
            return Ok(Begun::Whole(record_start..record_end));
        }
        if FragmentHeader::LEN_BYTES + len_bytes > self.input.len() {
            let mut from = Reader::new(&self.input[record_start..self.end]);
            let xid = match decode_call(&mut from) {
                Ok(Incoming::Call(call)) => call.xid,
                Ok(Incoming::Refused { xid, .. }) => xid,
                Err(DecodeError::Truncated) if there < CALL_HEADER_LEN_BYTES_MAX => {
                    return Ok(Begun::NeedsMore);
                }
                Err(error) => return Err(error),
            };
            self.start = record_start;
            self.receiving = Receiving::Skip {
                left_bytes: len_bytes,
                answer: gate.garbage(xid),
            };
            return Ok(Begun::Receiving);
        }
        Ok(Begun::NeedsMore)
    }

    /// If the record is a WRITE, prepares to receive its payload apart.
    fn begin_payload<G: Gate<Answer = A>>(
        &mut self,
        record_start: usize,
        len_bytes: usize,
        gate: &G,
    ) -> Direct {
        let there = &self.input[record_start..self.end];
        let there = there.get(..len_bytes).unwrap_or(there);
        let needs_more = match there.len() < WRITE_HEAD_LEN_BYTES_MAX {
            true => Direct::NeedsMore,
            false => Direct::NotWrite,
        };
        let mut from = Reader::new(there);
        let xid = match decode_call(&mut from) {
            Ok(Incoming::Call(call)) => {
                let what = (call.program, call.version, call.procedure);
                if what != (v3::PROGRAM, v3::VERSION, v3::Procedure::Write.number()) {
                    return Direct::NotWrite;
                }
                call.xid
            }
            Err(DecodeError::Truncated) => return needs_more,
            Ok(Incoming::Refused { .. }) | Err(_) => return Direct::NotWrite,
        };
        let prefix = match v3::decode_write_prefix(from.rest()) {
            Ok(Some(prefix)) => prefix,
            Ok(None) => return needs_more,
            Err(_) => return Direct::NotWrite,
        };
        let payload_len = prefix.data_len_bytes as usize;
        let payload_start = there.len() - from.rest().len() + prefix.data_offset;
        if payload_start + xdr::padded_len(payload_len) != len_bytes {
            return Direct::NotWrite;
        }
        if let Some(answer) = gate.refuse_write(xid, &prefix.head.file) {
            self.start = record_start;
            self.receiving = Receiving::Skip {
                left_bytes: len_bytes,
                answer,
            };
            return Direct::Begun;
        }
        self.receiving = Receiving::Payload {
            head: there[..payload_start].to_vec(),
            payload: AlignedFill::new(payload_len),
            padding_bytes: xdr::padding(payload_len).len(),
        };
        self.start = record_start + payload_start;
        Direct::Begun
    }

    /// Moves input into a record of several fragments; `false` when there is none left.
    fn take_fragments<G: Gate<Answer = A>>(&mut self, gate: &G) -> Result<bool, DecodeError> {
        let Receiving::Fragments {
            assembled,
            left_bytes,
            last,
            count,
        } = &mut self.receiving
        else {
            return Ok(true);
        };
        let input = &self.input[self.start..self.end];
        if *left_bytes > 0 {
            let take = input.len().min(*left_bytes);
            assembled.extend_from_slice(&input[..take]);
            *left_bytes -= take;
            self.start += take;
            return Ok(take > 0);
        }
        if *last {
            return Ok(true);
        }
        let Some((header, _)) = FragmentHeader::split(input) else {
            return Ok(false);
        };
        let len_bytes = assembled.len() as u64 + u64::from(header.len_bytes);
        if *count >= FRAGMENT_COUNT_MAX {
            return Err(DecodeError::TooManyFragments {
                count_max: FRAGMENT_COUNT_MAX,
            });
        }
        *count += 1;
        *left_bytes = header.len_bytes as usize;
        *last = header.last;
        self.start += FragmentHeader::LEN_BYTES;
        check_fragments_len(len_bytes, gate)?;
        Ok(true)
    }

    /// The record of several fragments, if it is whole.
    fn take_assembled(&mut self) -> Option<Vec<u8>> {
        let Receiving::Fragments {
            assembled,
            left_bytes: 0,
            last: true,
            ..
        } = &mut self.receiving
        else {
            return None;
        };
        let assembled = std::mem::take(assembled);
        self.receiving = Receiving::Next;
        Some(assembled)
    }
}

/// A record of several fragments is held while it comes: whom no export lets in gets no room for a
/// large one.
fn check_fragments_len<G: Gate>(len_bytes: u64, gate: &G) -> Result<(), DecodeError> {
    match gate.is_let_in() {
        true => check_len(len_bytes, RECORD_LEN_BYTES_MAX),
        false => check_len(len_bytes, INPUT_LEN_BYTES as u32),
    }
}

fn check_len(len_bytes: u64, len_bytes_max: u32) -> Result<(), DecodeError> {
    if len_bytes > u64::from(len_bytes_max) {
        return Err(DecodeError::RecordTooLong {
            len_bytes,
            len_bytes_max,
        });
    }
    Ok(())
}

// By path, so that rustfmt finds it too from the fuzzers, which compile this file in.
#[cfg(test)]
#[path = "intake/tests.rs"]
mod tests;
