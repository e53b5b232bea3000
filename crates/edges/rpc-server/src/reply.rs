//! Replies on their way out.
//!
//! Owns: the form of a reply between a handler and the socket, the queue of a connection's replies.
//! Must not know: procedures, sockets.
//!
//! Small replies are put together in one buffer. Larger data stays in the `Bytes` it came in: the
//! queue is a list of slices for one `writev`.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
use cairn_codec_rpc::{AcceptStatus, Encode, FragmentHeader, Rejection, ReplyHeader, Writer, xdr};

/// Data up to this size is copied next to its header: cheaper than one more piece of a `writev`.
const COPY_LEN_BYTES_MAX: usize = 4096;
/// Data shorter than this does not wait for the socket in the buffer that it came in, which is a record of up to
/// 1 MiB or the payload of a WRITE. So replies that wait keep at most four times their length in memory.
const DETACH_LEN_BYTES_MAX: usize = 256 << 10;
/// Most slices of one `writev`; the kernel takes 1024.
pub const SLICE_COUNT_MAX: usize = 64;
/// So many bytes of small replies may stay in memory after they were sent, before those that wait behind them.
const SENT_LEN_BYTES_MAX: usize = 64 << 10;
/// The buffer for small replies that a connection keeps, however large it once was.
const TAIL_LEN_BYTES_KEPT: usize = 256 << 10;
/// What a head buffer starts with: most replies fit.
const HEAD_LEN_BYTES: usize = 256;

/// One RPC reply with its record mark.
#[derive(Debug, Default)]
pub struct Reply {
    /// The record up to the data; the whole record if there is none. Empty: nothing is answered.
    pub head: Vec<u8>,
    /// The data of a READ, in order; padding follows.
    pub parts: Vec<Bytes>,
    pub parts_len_bytes: usize,
    /// For metrics: the error that the program answered with, in its own numbers.
    pub failure: Option<u32>,
    /// It says "not now", or nothing: a call that is sent again is to be done, and not answered with this.
    pub is_not_now: bool,
}

impl Reply {
    /// No reply: the client will ask again.
    pub fn none() -> Self {
        Self::default().not_now()
    }

    /// Marks the reply as temporary: it is never kept for a call that is sent again.
    pub fn not_now(mut self) -> Self {
        self.is_not_now = true;
        self
    }

    /// A reply as it was sent before.
    pub fn again(head: &[u8]) -> Self {
        Self {
            head: head.to_vec(),
            ..Self::default()
        }
    }

    /// The call succeeded as far as RPC goes; `results` follow.
    pub fn success<T: Encode + ?Sized>(xid: u32, results: &T) -> Self {
        Self::with_data(xid, results, Vec::new(), 0)
    }

    /// As [`Self::success`], followed by `parts`, `parts_len_bytes` together, as the body of an
    /// opaque whose length `results` end with.
    pub fn with_data<T: Encode + ?Sized>(
        xid: u32,
        results: &T,
        parts: Vec<Bytes>,
        parts_len_bytes: usize,
    ) -> Self {
        let mut head = Vec::with_capacity(HEAD_LEN_BYTES);
        let mut to = Writer::new(&mut head);
        let record = to.begin_record();
        to.put(&ReplyHeader::accepted(xid, AcceptStatus::Success));
        to.put(results);
        to.finish_record(record, xdr::padded_len(parts_len_bytes));
        Self {
            head,
            parts,
            parts_len_bytes,
            failure: None,
            is_not_now: false,
        }
    }

    /// A reply that somebody else made: `record` without its mark.
    pub fn relayed(record: Bytes) -> Self {
        let len_bytes = record.len();
        let mark = FragmentHeader {
            last: true,
            // A record has at most about a megabyte.
            len_bytes: len_bytes as u32,
        };
        Self {
            head: mark.to_bytes().to_vec(),
            parts_len_bytes: len_bytes,
            parts: vec![record],
            failure: None,
            is_not_now: false,
        }
    }

    /// As [`Self::success`] with results that `write` writes, which may give up: then `None`.
    pub fn listing(xid: u32, write: impl FnOnce(&mut Writer<'_>) -> Option<()>) -> Option<Self> {
        let mut head = Vec::with_capacity(HEAD_LEN_BYTES);
        let mut to = Writer::new(&mut head);
        let record = to.begin_record();
        to.put(&ReplyHeader::accepted(xid, AcceptStatus::Success));
        let written = write(&mut to);
        to.finish_record(record, 0);
        written.map(|()| Self {
            head,
            ..Self::default()
        })
    }

    /// The call could not be made.
    pub fn failure(xid: u32, status: AcceptStatus) -> Self {
        Self::header(&ReplyHeader::accepted(xid, status))
    }

    pub fn rejection(xid: u32, rejection: Rejection) -> Self {
        Self::header(&ReplyHeader::denied(xid, rejection))
    }

    fn header(header: &ReplyHeader<'_>) -> Self {
        let mut head = Vec::with_capacity(64);
        let mut to = Writer::new(&mut head);
        let record = to.begin_record();
        to.put(header);
        to.finish_record(record, 0);
        Self {
            head,
            ..Self::default()
        }
    }

    /// Marks the reply, for metrics, as one with this error of its program.
    pub fn failed(mut self, status: u32) -> Self {
        self.failure = Some(status);
        self
    }

    /// All of it, as it is sent.
    pub fn to_bytes(&self) -> Bytes {
        if self.parts.is_empty() {
            return Bytes::copy_from_slice(&self.head);
        }
        let mut all = Vec::with_capacity(self.len_bytes());
        all.extend_from_slice(&self.head);
        for part in &self.parts {
            all.extend_from_slice(part);
        }
        all.extend_from_slice(xdr::padding(self.parts_len_bytes));
        all.into()
    }

    pub fn len_bytes(&self) -> usize {
        self.head.len() + xdr::padded_len(self.parts_len_bytes)
    }
}

/// The replies of one connection that the socket has not taken yet.
#[derive(Default)]
pub struct Outbox {
    full: VecDeque<Bytes>,
    /// How many at the front of `full` keep little more in memory than themselves.
    detached_count: usize,
    /// Comes after `full`.
    tail: Vec<u8>,
    /// Bytes at the front that have been sent.
    sent_bytes: usize,
    len_bytes: usize,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Bytes not sent yet.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub fn push(&mut self, reply: Reply) {
        self.len_bytes += reply.len_bytes();
        self.tail.extend_from_slice(&reply.head);
        for part in reply.parts {
            if part.len() <= COPY_LEN_BYTES_MAX {
                self.tail.extend_from_slice(&part);
                continue;
            }
            if !self.tail.is_empty() {
                // A READ's head is small; do not let it carry the capacity of a large batch away.
                let head = if self.tail.len() * 2 < self.tail.capacity() {
                    let head = Bytes::copy_from_slice(&self.tail);
                    self.tail.clear();
                    head
                } else {
                    Bytes::from(std::mem::take(&mut self.tail))
                };
                self.full.push_back(head);
            }
            self.full.push_back(part);
        }
        self.tail
            .extend_from_slice(xdr::padding(reply.parts_len_bytes));
    }

    /// The bytes to send next, as slices in order; returns how many slices were set.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICE_COUNT_MAX]) -> usize {
        let mut count = 0;
        let mut skip = self.sent_bytes;
        let all = self.full.iter().map(|bytes| &bytes[..]);
        for bytes in all.chain([&self.tail[..]]) {
            let bytes = &bytes[skip..];
            skip = 0;
            if bytes.is_empty() {
                continue;
            }
            if count == SLICE_COUNT_MAX {
                break;
            }
            slices[count] = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    /// Call this when the socket takes no more for now. A small piece of a large buffer keeps all of it in memory, so
    /// such pieces are copied, each once: the bytes that are counted then bound those that are held. A client that
    /// takes its replies as they come costs nothing here.
    pub fn detach(&mut self) {
        for bytes in self.full.range_mut(self.detached_count..) {
            // `push` has copied what is smaller.
            if (COPY_LEN_BYTES_MAX + 1..DETACH_LEN_BYTES_MAX).contains(&bytes.len()) {
                *bytes = Bytes::copy_from_slice(bytes);
            }
        }
        self.detached_count = self.full.len();
    }

    /// Counts bytes that the socket took.
    pub fn advance(&mut self, sent_bytes: usize) {
        assert!(sent_bytes <= self.len_bytes);
        self.len_bytes -= sent_bytes;
        self.sent_bytes += sent_bytes;
        while let Some(front) = self.full.front()
            && front.len() <= self.sent_bytes
        {
            self.sent_bytes -= front.len();
            self.full.pop_front();
            self.detached_count = self.detached_count.saturating_sub(1);
        }
        if self.full.is_empty() {
            self.forget_sent();
        }
    }

    /// Frees what was sent of `tail`. What waits behind it is moved to the front, once it is no more than what was
    /// sent: so each byte moves about once, and what is held stays near what is counted.
    fn forget_sent(&mut self) {
        let is_all = self.sent_bytes == self.tail.len();
        if is_all || self.sent_bytes >= SENT_LEN_BYTES_MAX.max(self.tail.len() / 2) {
            self.tail.drain(..self.sent_bytes);
            self.tail
                .shrink_to(TAIL_LEN_BYTES_KEPT.max(2 * self.tail.len()));
            self.sent_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn reply(head: &[u8], parts: &[&'static [u8]]) -> Reply {
        Reply {
            head: head.to_vec(),
            parts: parts.iter().map(|part| Bytes::from_static(part)).collect(),
            parts_len_bytes: parts.iter().map(|part| part.len()).sum(),
            failure: None,
            is_not_now: false,
        }
    }

    #[test]
    fn bytes_leave_in_order_whatever_the_socket_takes() {
        static LARGE: [u8; COPY_LEN_BYTES_MAX + 1] = [7; COPY_LEN_BYTES_MAX + 1];
        for step in [1, 3, 100, 4096, usize::MAX] {
            let mut outbox = Outbox::default();
            let mut want = Vec::new();
            for reply in [
                reply(b"null", &[]),
                reply(b"small", &[b"abc", b"de"]),
                reply(b"large", &[&LARGE, b"x", &LARGE]),
                reply(b"end", &[]),
                reply(b"more", &[&LARGE]),
            ] {
                want.extend_from_slice(&reply.head);
                for part in &reply.parts {
                    want.extend_from_slice(part);
                }
                want.extend_from_slice(xdr::padding(reply.parts_len_bytes));
                outbox.push(reply);
            }
            assert_eq!(outbox.len_bytes(), want.len());
            let mut got = Vec::new();
            while !outbox.is_empty() {
                let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
                let count = outbox.slices(&mut slices);
                let mut taken = 0;
                for slice in &slices[..count] {
                    let take = slice.len().min(step - taken);
                    got.extend_from_slice(&slice[..take]);
                    taken += take;
                }
                assert!(taken > 0);
                outbox.advance(taken);
            }
            assert_eq!(got, want, "step {step}");
        }
    }

    /// A buffer of 1 MiB, as the record cache has them; the test counts clones of its content.
    struct Record(#[expect(dead_code, reason = "counted, not read")] Arc<()>);

    const RECORD_LEN_BYTES: usize = 1 << 20;
    static RECORD: [u8; RECORD_LEN_BYTES] = [5; RECORD_LEN_BYTES];

    impl AsRef<[u8]> for Record {
        fn as_ref(&self) -> &[u8] {
            &RECORD
        }
    }

    /// What the limits of a connection count must bound what it keeps in memory.
    #[test]
    fn replies_that_wait_do_not_keep_the_buffers_that_they_are_slices_of() {
        let alive = Arc::new(());
        let mut outbox = Outbox::default();
        let mut want = 0;
        let mut push = |outbox: &mut Outbox, len_bytes: usize| {
            let part = Bytes::from_owner(Record(Arc::clone(&alive))).slice(..len_bytes);
            outbox.push(Reply {
                head: b"head".to_vec(),
                parts_len_bytes: part.len(),
                parts: vec![part],
                failure: None,
                is_not_now: false,
            });
            want += 4 + xdr::padded_len(len_bytes);
        };
        let held_bytes = || (Arc::strong_count(&alive) - 1) * RECORD_LEN_BYTES;
        let mut sent_bytes = 0;
        // Of a few sizes, the second time onto what waits already, in part sent.
        for len_bytes in [5000, 4097, (256 << 10) - 1, 256 << 10, RECORD_LEN_BYTES] {
            for _ in 0..if len_bytes > 5000 { 20 } else { 1000 } {
                push(&mut outbox, len_bytes);
            }
            outbox.advance(7000);
            sent_bytes += 7000;
            outbox.detach();
            let (held, counted) = (held_bytes(), outbox.len_bytes());
            assert!(held <= 4 * counted, "{len_bytes}: {held} for {counted}");
        }
        // The bytes are the same, and nothing of them is left behind.
        assert_eq!(outbox.len_bytes(), want - sent_bytes);
        while !outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
            let count = outbox.slices(&mut slices);
            let sent = slices[..count].iter().map(|slice| slice.len()).sum();
            outbox.advance(sent);
            sent_bytes += sent;
        }
        assert_eq!((sent_bytes, held_bytes()), (want, 0));
    }

    /// A client that takes its replies a little slower than they are made leaves no moment without any.
    #[test]
    fn what_was_sent_is_forgotten_while_more_waits() {
        let mut outbox = Outbox::default();
        let small = || reply(&[1; 28], &[]);
        let is_small = |outbox: &Outbox| outbox.tail.capacity() <= TAIL_LEN_BYTES_KEPT;
        outbox.push(small());
        for _ in 0..1_000_000 {
            outbox.push(small());
            outbox.advance(28);
        }
        assert!(is_small(&outbox), "{}", outbox.tail.capacity());
        // Nor is what a burst needed kept: if all of it is sent, or all but what came last.
        for is_all in [true, false] {
            for _ in 0..(32 << 20) / 4096 {
                outbox.push(reply(&[2; 4096], &[]));
            }
            outbox.push(small());
            let rest = if is_all { 0 } else { 28 };
            outbox.advance(outbox.len_bytes() - rest);
            assert_eq!(outbox.len_bytes(), rest);
            assert!(is_small(&outbox), "{}", outbox.tail.capacity());
        }
        let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
        assert_eq!(outbox.slices(&mut slices), 1);
        assert_eq!(*slices[0], [1; 28]);
    }
}
