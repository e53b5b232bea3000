//! What one connection has to say, what it has heard, and who waits for which answer.
//!
//! Owns: the output queue, the table of calls in flight, taking records apart, receiving READ data
//! in place. No sockets and no clock in here.
//! Must not know: when to give up or to reconnect.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cairn_base::AlignedBuf;
use cairn_codec_nfs::v3;
use cairn_codec_rpc::{
    AcceptStatus, DecodeError, FragmentHeader, Reader, RecordAssembler, ReplyBody, ReplyHeader, xdr,
};
use rustc_hash::FxHashMap;

use super::{Call, Reply, ReplyBuffer};
use crate::error::{Error, Rejected};

/// Longest reply: READ data and room for what is around it, or a page of a directory.
pub(super) const RECORD_LEN_BYTES_MAX: u32 = v3::DATA_LEN_BYTES_MAX + (64 << 10);
/// Buffers from this length on are worth receiving into directly; below it one copy out of a large
/// read is cheaper than the system calls.
const IN_PLACE_LEN_BYTES_MIN: usize = 32 << 10;
/// Reads ask for so much when nothing says otherwise.
const INPUT_LEN_BYTES: usize = 64 << 10;
/// With large READs in flight the next reply is looked at before its data is taken in. Enough for
/// every header of such a reply with the usual empty verifier.
const PEEK_LEN_BYTES: usize = 256;
/// Slices of one `writev`.
pub(super) const SLICE_COUNT_MAX: usize = 64;

/// Bytes to be sent, in order.
#[derive(Default)]
pub(super) struct Outgoing {
    queue: VecDeque<Bytes>,
}

impl Outgoing {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next bytes; only the first `count` slices are set.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICE_COUNT_MAX]) -> usize {
        let mut count = 0;
        for (slice, bytes) in slices.iter_mut().zip(&self.queue) {
            *slice = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    /// The first `len_bytes` were sent.
    pub fn sent(&mut self, mut len_bytes: usize) {
        while let Some(front) = self.queue.front_mut() {
            if front.len() > len_bytes {
                front.advance(len_bytes);
                return;
            }
            len_bytes -= front.len();
            self.queue.pop_front();
        }
        assert!(len_bytes == 0, "no more was sent than was there");
    }

    fn push(&mut self, call: &Call) {
        let padding = xdr::padding(call.payload.len());
        let parts = [
            call.head.clone(),
            call.payload.clone(),
            Bytes::from_static(padding),
        ];
        self.queue
            .extend(parts.into_iter().filter(|part| !part.is_empty()));
    }
}

/// A call that was given to the socket.
struct InFlight {
    call: Call,
    transmissions: u32,
    sent_at: Duration,
}

/// READ data on its way into the buffer of its caller.
struct InPlace {
    xid: u32,
    /// What came before the data, without the RPC header.
    results: Bytes,
    buffer: AlignedBuf,
    filled_len_bytes: usize,
    /// At most the length of the buffer.
    data_len_bytes: usize,
}

/// The state of one connection between the callers and the socket.
pub(super) struct Wire {
    pub outgoing: Outgoing,
    in_flight: FxHashMap<u32, InFlight>,
    /// Calls in flight whose reply may be received in place.
    in_place_count: usize,
    pub incoming: Incoming,
}

/// Bytes that arrived and are not understood yet.
pub(super) struct Incoming {
    input: BytesMut,
    records: RecordAssembler,
    in_place: Option<InPlace>,
    /// Bytes to drop before the next record.
    skip_len_bytes: usize,
    peek: bool,
}

/// Where the next bytes from the socket go.
pub(super) enum Space<'a> {
    Input {
        input: &'a mut BytesMut,
        len_bytes_max: usize,
    },
    InPlace {
        rest: &'a mut [u8],
    },
}

impl Incoming {
    fn new() -> Self {
        Self {
            input: BytesMut::new(),
            records: RecordAssembler::new(RECORD_LEN_BYTES_MAX),
            in_place: None,
            skip_len_bytes: 0,
            peek: false,
        }
    }

    pub fn space(&mut self) -> Space<'_> {
        if let Some(in_place) = &mut self.in_place {
            return Space::InPlace {
                rest: &mut in_place.buffer[in_place.filled_len_bytes..in_place.data_len_bytes],
            };
        }
        let len_bytes_max = if self.peek && self.input.is_empty() {
            PEEK_LEN_BYTES + self.skip_len_bytes
        } else {
            INPUT_LEN_BYTES.max(self.records.missing_len_bytes(&self.input))
        };
        // Reserving what is read keeps small peeks from allocating each time.
        if self.input.capacity() - self.input.len() < len_bytes_max {
            self.input.reserve(INPUT_LEN_BYTES.max(len_bytes_max));
        }
        Space::Input {
            input: &mut self.input,
            len_bytes_max,
        }
    }

    /// So many bytes went to the space for data; those for the input are in it already.
    pub fn received(&mut self, len_bytes: usize) {
        if let Some(in_place) = &mut self.in_place {
            in_place.filled_len_bytes += len_bytes;
        }
    }

    /// Drops padding. `false`: more of it has to come.
    fn skip(&mut self) -> bool {
        let len_bytes = self.skip_len_bytes.min(self.input.len());
        self.input.advance(len_bytes);
        self.skip_len_bytes -= len_bytes;
        self.skip_len_bytes == 0
    }
}

impl Wire {
    pub fn new() -> Self {
        Self {
            outgoing: Outgoing::default(),
            in_flight: FxHashMap::default(),
            in_place_count: 0,
            incoming: Incoming::new(),
        }
    }

    pub fn in_flight_count(&self) -> usize {
        self.in_flight.len()
    }

    /// Queues a call for sending.
    pub fn submit(&mut self, call: Call, now: Duration) {
        self.send(InFlight {
            call,
            transmissions: 1,
            sent_at: now,
        });
    }

    /// Takes a call while there is no connection; `retransmit` will send it.
    pub fn submit_unsent(&mut self, call: Call, now: Duration) {
        let in_flight = InFlight {
            call,
            transmissions: 0,
            sent_at: now,
        };
        self.in_flight.insert(in_flight.call.xid, in_flight);
    }

    fn send(&mut self, in_flight: InFlight) {
        self.outgoing.push(&in_flight.call);
        self.in_place_count += usize::from(wants_in_place(&in_flight.call));
        self.incoming.peek = self.in_place_count > 0;
        self.in_flight.insert(in_flight.call.xid, in_flight);
    }

    /// Handles received bytes and gives each reply to its caller.
    ///
    /// An error means that the stream makes no sense any more.
    pub fn process(&mut self) -> Result<(), DecodeError> {
        loop {
            if let Some(in_place) = &self.incoming.in_place {
                if in_place.filled_len_bytes < in_place.data_len_bytes {
                    return Ok(());
                }
                self.finish_in_place();
            }
            if !self.incoming.skip() {
                return Ok(());
            }
            let incoming = &mut self.incoming;
            match incoming.records.next_record(&mut incoming.input)? {
                Some(record) => self.deliver(record)?,
                None if self.begin_in_place()? => {}
                None => return Ok(()),
            }
        }
    }

    /// Whether a call was sent before `sent_before` and has no reply.
    pub fn is_overdue(&self, sent_before: Duration) -> bool {
        self.in_flight
            .values()
            .any(|it| it.sent_at < sent_before && !it.call.reply_to.is_closed())
    }

    /// Forgets what was half sent or received, and calls that nobody waits for any more.
    pub fn disconnect(&mut self) {
        if let Some(in_place) = self.incoming.in_place.take()
            && let Some(in_flight) = self.in_flight.get_mut(&in_place.xid)
        {
            in_flight.call.buffer = Some(in_place.buffer);
        }
        self.outgoing = Outgoing::default();
        self.incoming = Incoming::new();
        self.in_flight.retain(|_, it| !it.call.reply_to.is_closed());
        // Counted again as calls are sent again.
        self.in_place_count = 0;
    }

    /// Queues everything in flight again for a new connection, in the order of the xids. Calls that
    /// were sent `transmissions_max` times get `give_up` instead.
    pub fn retransmit(
        &mut self,
        now: Duration,
        transmissions_max: u32,
        give_up: impl Fn(&'static str) -> Error,
    ) {
        let mut in_flight: Vec<InFlight> = self.in_flight.drain().map(|(_, it)| it).collect();
        in_flight.sort_unstable_by_key(|it| it.call.xid);
        for mut it in in_flight {
            if it.transmissions >= transmissions_max {
                let error = give_up(it.call.name);
                let _ = it.call.reply_to.send(Err(error));
                continue;
            }
            it.transmissions += 1;
            it.sent_at = now;
            self.send(it);
        }
    }

    /// Answers everything in flight with an error.
    pub fn fail_all(&mut self, error: impl Fn(&'static str) -> Error) {
        self.disconnect();
        for (_, it) in self.in_flight.drain() {
            let error = error(it.call.name);
            // The caller may have gone; then nobody needs the error.
            let _ = it.call.reply_to.send(Err(error));
        }
    }

    fn take(&mut self, xid: u32) -> Option<Call> {
        let call = self.in_flight.remove(&xid)?.call;
        self.in_place_count -= usize::from(wants_in_place(&call));
        self.incoming.peek = self.in_place_count > 0;
        Some(call)
    }

    /// Hands a whole record to its caller. Records that answer nothing we asked are dropped: a
    /// server may answer a call of which it got two copies twice.
    fn deliver(&mut self, record: Bytes) -> Result<(), DecodeError> {
        let mut from = Reader::new(&record);
        let header: ReplyHeader<'_> = from.get()?;
        let results = record.slice_ref(from.rest());
        let Some(call) = self.take(header.xid) else {
            tracing::debug!(xid = header.xid, "a reply that nobody waits for");
            return Ok(());
        };
        let reason = match header.body {
            ReplyBody::Accepted {
                status: AcceptStatus::Success,
                ..
            } => {
                let reply = Reply {
                    results,
                    buffer: call.buffer.map(ReplyBuffer::Untouched),
                };
                let _ = call.reply_to.send(Ok(reply));
                return Ok(());
            }
            ReplyBody::Accepted { status, .. } => Rejected::Accept(status),
            ReplyBody::Denied(rejection) => Rejected::Denied(rejection),
        };
        let _ = call.reply_to.send(Err(Error::Rejected {
            procedure: call.name,
            reason,
        }));
        Ok(())
    }

    /// If the record that is coming in is READ data for a large buffer, lets the rest of it go
    /// there. Anything unusual is left to the slow way, which says what is wrong.
    fn begin_in_place(&mut self) -> Result<bool, DecodeError> {
        if self.in_place_count == 0 {
            return Ok(false);
        }
        let incoming = &mut self.incoming;
        let Some(partial) = incoming.records.peek(&incoming.input)? else {
            return Ok(false);
        };
        if (partial.len_bytes as usize) < IN_PLACE_LEN_BYTES_MIN {
            return Ok(false);
        }
        let mut from = Reader::new(partial.bytes);
        // A refusal may be followed by anything: only results can be data.
        let Ok(ReplyHeader {
            xid,
            body:
                ReplyBody::Accepted {
                    status: AcceptStatus::Success,
                    ..
                },
        }) = from.get()
        else {
            return Ok(false);
        };
        let results_offset = partial.bytes.len() - from.rest().len();
        let Ok(Some(Ok(prefix))) = v3::decode_read_prefix(from.rest()) else {
            return Ok(false);
        };
        let len_bytes = partial.len_bytes as usize;
        let data_offset = results_offset + prefix.data_offset;
        let data_len_bytes = prefix.data_len_bytes as usize;
        let Some(in_flight) = self.in_flight.get_mut(&xid) else {
            return Ok(false);
        };
        let buffer_len_bytes = in_flight.call.buffer.as_ref().map_or(0, |it| it.len());
        // A record can be large enough although the buffer, which decides what is counted, is not.
        let fits = wants_in_place(&in_flight.call)
            && data_len_bytes <= buffer_len_bytes
            && data_offset + xdr::padded_len(data_len_bytes) == len_bytes;
        if !fits {
            return Ok(false);
        }
        let Some(mut buffer) = in_flight.call.buffer.take() else {
            return Ok(false);
        };
        // The count in flight went with the buffer.
        self.in_place_count -= 1;
        incoming.input.advance(FragmentHeader::LEN_BYTES);
        let mut head = incoming.input.split_to(data_offset);
        head.advance(results_offset);
        let filled_len_bytes = incoming.input.len().min(data_len_bytes);
        buffer[..filled_len_bytes].copy_from_slice(&incoming.input[..filled_len_bytes]);
        incoming.input.advance(filled_len_bytes);
        incoming.in_place = Some(InPlace {
            xid,
            results: Bytes::copy_from_slice(&head),
            buffer,
            filled_len_bytes,
            data_len_bytes,
        });
        Ok(true)
    }

    fn finish_in_place(&mut self) {
        let Some(mut in_place) = self.incoming.in_place.take() else {
            return;
        };
        in_place.buffer.set_len(in_place.data_len_bytes);
        // The padding belongs to the record and to nobody.
        self.incoming.skip_len_bytes = xdr::padding(in_place.data_len_bytes).len();
        self.incoming.peek = self.in_place_count > 0;
        if let Some(in_flight) = self.in_flight.remove(&in_place.xid) {
            let _ = in_flight.call.reply_to.send(Ok(Reply {
                results: in_place.results,
                buffer: Some(ReplyBuffer::Received(in_place.buffer)),
            }));
        }
    }
}

fn wants_in_place(call: &Call) -> bool {
    call.buffer
        .as_ref()
        .is_some_and(|buffer| buffer.len() >= IN_PLACE_LEN_BYTES_MIN)
}

#[cfg(test)]
mod tests;
