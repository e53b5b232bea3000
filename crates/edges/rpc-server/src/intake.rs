//! What a connection receives: bytes in, in pieces of any size; calls out, in order.
//!
//! Owns: the input buffer, record marks, the limits of records, receiving a large payload where it will stay.
//! Must not know: sockets, the runtime, what calls mean, who may do what. The [`Gate`] knows the last two.
//! Invariant: where the stream was cut into reads changes no call, no answer and no error.
//!
//! The caller asks [`Intake::next`] until it is starved, then reads once into [`Intake::space`], and again.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use cairn_base::buf::AlignedFill;
use cairn_codec_rpc::record::FRAGMENT_COUNT_MAX;
use cairn_codec_rpc::rpc::{CALL_HEADER_LEN_BYTES_MAX, decode_call};
use cairn_codec_rpc::{CallHeader, DecodeError, FragmentHeader, Incoming, Reader, xdr};

/// Longest record that is accepted: a payload of 1 MiB with the longest header, and room to spare.
pub const RECORD_LEN_BYTES_MAX: u32 = (1 << 20) + 4096;
/// A record whose payload is not received in place must fit in here.
pub const INPUT_LEN_BYTES: usize = 64 << 10;
/// The payload of a record of at least this size is received in place.
pub const LARGE_LEN_BYTES_MIN: usize = 32 << 10;
/// How much is read after a large payload: enough for the head of the next one, and little of its
/// payload, which would have to be copied.
const PEEK_LEN_BYTES: usize = 512;
/// What comes before the payload of a large record must end within its first so many bytes.
pub const HEAD_LEN_BYTES_MAX: usize = 4096;
/// What comes after it, its padding included, must be no more than this.
pub const TAIL_LEN_BYTES_MAX: usize = 4096;

const _: () = assert!(LARGE_LEN_BYTES_MIN < INPUT_LEN_BYTES);
const _: () = assert!(HEAD_LEN_BYTES_MAX < LARGE_LEN_BYTES_MIN);
const _: () = assert!(CALL_HEADER_LEN_BYTES_MAX < HEAD_LEN_BYTES_MAX);
const _: () = assert!(TAIL_LEN_BYTES_MAX < INPUT_LEN_BYTES);

/// What the rest of the server says about a record before it is whole.
pub trait Gate {
    /// What goes to the client instead of a result.
    type Answer;
    /// A call whose payload is being received.
    type Large;

    /// Whether this client may use anything here. An unauthorized client gets no room for a large record.
    fn is_let_in(&self) -> bool;

    /// What becomes of a large record: `args` is what has come of the `args_len_bytes` that follow its header.
    fn begin_large(
        &mut self,
        call: &CallHeader<'_>,
        args: &[u8],
        args_len_bytes: usize,
    ) -> Verdict<Self::Answer, Self::Large>;

    /// The answer to a call that cannot be read.
    fn garbage(&self, xid: u32) -> Self::Answer;
}

/// What becomes of a large record.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<A, L> {
    /// That cannot be said yet. Counts as [`Self::Ordinary`] once [`HEAD_LEN_BYTES_MAX`] bytes of the record are there.
    NeedsMore,
    /// It has no payload to receive in place. It is taken as a whole, or is garbage if it does not fit in the
    /// input buffer.
    Ordinary,
    /// The payload is received in place, and then goes to `call`.
    Payload {
        call: L,
        /// From the first byte of the arguments; must lie in those that have come.
        payload_start: usize,
        /// Without padding.
        payload_len_bytes: usize,
    },
    /// The rest of it is skipped as it comes.
    Refused(A),
}

/// What came of the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a, A, L> {
    /// More bytes are needed.
    Starved,
    /// A whole record.
    Call(Cow<'a, [u8]>),
    /// A large record: its call, its payload, and what followed the payload and its padding.
    Large {
        call: L,
        payload: Bytes,
        tail: &'a [u8],
    },
    /// A record that was not kept is over; this is the answer to it.
    Skipped(A),
}

/// Where the next bytes go.
pub enum Space<'a> {
    /// A large payload: what is read into its spare part is counted there.
    Payload(&'a mut AlignedFill),
    /// The input buffer, of which at least one byte is free; [`Intake::received`] must be told.
    Input(&'a mut [u8]),
}

/// The part of a record that is being received.
enum Receiving<A, L> {
    /// The next bytes in the input buffer are a fragment header.
    Next,
    /// A large payload.
    Payload {
        call: L,
        payload: AlignedFill,
        padding_bytes: usize,
        tail_bytes: usize,
    },
    /// A record that is refused, or does not fit anywhere; answered when it is over.
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

/// What came of asking the gate about a large record.
enum Large {
    /// The rest of it is received in another way.
    Receiving,
    NeedsMore,
    /// An ordinary record; its number, if its header could be read.
    Ordinary(Result<u32, DecodeError>),
}

/// The bytes of one connection that have come and were not taken. `A` answers records that are not kept, `L` is a
/// call that waits for its payload.
pub struct Intake<A, L> {
    input: Box<[u8]>,
    /// The bytes of `input` that are there and not taken.
    start: usize,
    end: usize,
    receiving: Receiving<A, L>,
    /// The last record had a large payload.
    peek: bool,
}

impl<A, L> Default for Intake<A, L> {
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

impl<A, L> Intake<A, L> {
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

    /// Whether [`Self::next`] would begin a record. A caller at its limit does not call it then.
    #[inline]
    pub fn is_at_record(&self) -> bool {
        matches!(self.receiving, Receiving::Next)
            && self.end - self.start >= FragmentHeader::LEN_BYTES
    }

    /// Takes the next record from the bytes that are there.
    ///
    /// An error means that the stream is lost: the caller must close it and call no more.
    #[inline]
    pub fn next<G: Gate<Answer = A, Large = L>>(
        &mut self,
        gate: &mut G,
    ) -> Result<Step<'_, A, L>, DecodeError> {
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
                            return Ok(Step::Call(Cow::Borrowed(&self.input[record])));
                        }
                    }
                }
                Receiving::Payload {
                    payload,
                    padding_bytes,
                    tail_bytes,
                    ..
                } => {
                    self.start += payload.fill_from(&self.input[self.start..self.end]);
                    let behind_bytes = *padding_bytes + *tail_bytes;
                    if payload.missing_bytes() > 0 || self.end - self.start < behind_bytes {
                        return Ok(Step::Starved);
                    }
                    let tail = self.start + *padding_bytes..self.start + behind_bytes;
                    self.start += behind_bytes;
                    self.peek = true;
                    let whole = std::mem::replace(&mut self.receiving, Receiving::Next);
                    if let Receiving::Payload { call, payload, .. } = whole {
                        return Ok(Step::Large {
                            call,
                            payload: payload.finish().freeze(),
                            tail: &self.input[tail],
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
                        return Ok(Step::Call(Cow::Owned(assembled)));
                    }
                }
            }
        }
    }

    /// Where the next read goes: into the payload if one is being received. Ask this when [`Self::next`] is
    /// starved.
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

    /// Counts bytes that were read to the front of the free part of the input buffer.
    #[inline]
    pub fn received(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.input.len() - self.end);
        self.end += len_bytes;
    }

    /// Looks at the record whose first fragment has `header`.
    fn begin_record<G: Gate<Answer = A, Large = L>>(
        &mut self,
        header: FragmentHeader,
        gate: &mut G,
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
        let mut header = None;
        if len_bytes >= LARGE_LEN_BYTES_MIN {
            match self.begin_large(record_start, len_bytes, gate) {
                Large::Receiving => return Ok(Begun::Receiving),
                Large::NeedsMore => return Ok(Begun::NeedsMore),
                Large::Ordinary(xid) => header = Some(xid),
            }
        }
        if there >= len_bytes {
            let record_end = record_start + len_bytes;
            self.start = record_end;
            self.peek = false;
            return Ok(Begun::Whole(record_start..record_end));
        }
        if FragmentHeader::LEN_BYTES + len_bytes > self.input.len()
            && let Some(xid) = header
        {
            self.start = record_start;
            self.receiving = Receiving::Skip {
                left_bytes: len_bytes,
                answer: gate.garbage(xid?),
            };
            return Ok(Begun::Receiving);
        }
        Ok(Begun::NeedsMore)
    }

    /// Asks the gate about a large record.
    fn begin_large<G: Gate<Answer = A, Large = L>>(
        &mut self,
        record_start: usize,
        len_bytes: usize,
        gate: &mut G,
    ) -> Large {
        let there = &self.input[record_start..self.end];
        let there = there.get(..len_bytes).unwrap_or(there);
        let may_need_more = there.len() < HEAD_LEN_BYTES_MAX;
        let mut from = Reader::new(there);
        let call = match decode_call(&mut from) {
            Ok(Incoming::Call(call)) => call,
            Ok(Incoming::Refused { xid, .. }) => return Large::Ordinary(Ok(xid)),
            Err(DecodeError::Truncated) if may_need_more => return Large::NeedsMore,
            Err(error) => return Large::Ordinary(Err(error)),
        };
        let args = from.rest();
        let args_start = there.len() - args.len();
        let args_len_bytes = len_bytes - args_start;
        match gate.begin_large(&call, args, args_len_bytes) {
            Verdict::NeedsMore if may_need_more => Large::NeedsMore,
            Verdict::NeedsMore | Verdict::Ordinary => Large::Ordinary(Ok(call.xid)),
            Verdict::Refused(answer) => {
                self.start = record_start;
                self.receiving = Receiving::Skip {
                    left_bytes: len_bytes,
                    answer,
                };
                Large::Receiving
            }
            Verdict::Payload {
                call: large,
                payload_start,
                payload_len_bytes,
            } => {
                assert!(payload_start <= args.len());
                let behind_bytes = (args_len_bytes - payload_start).checked_sub(payload_len_bytes);
                let padding_bytes = xdr::padding(payload_len_bytes).len();
                let tail_bytes = behind_bytes.and_then(|bytes| bytes.checked_sub(padding_bytes));
                // The tail waits in the input buffer until it is whole.
                let Some(tail_bytes) =
                    tail_bytes.filter(|bytes| padding_bytes + bytes <= TAIL_LEN_BYTES_MAX)
                else {
                    return Large::Ordinary(Ok(call.xid));
                };
                self.receiving = Receiving::Payload {
                    call: large,
                    payload: AlignedFill::new(payload_len_bytes),
                    padding_bytes,
                    tail_bytes,
                };
                self.start = record_start + args_start + payload_start;
                Large::Receiving
            }
        }
    }

    /// Moves input into a record of several fragments; `false` when there is none left.
    fn take_fragments<G: Gate<Answer = A, Large = L>>(
        &mut self,
        gate: &G,
    ) -> Result<bool, DecodeError> {
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

/// A record of several fragments is held while it comes, so an unauthorized client gets no room for a large one.
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

#[cfg(test)]
mod tests;
