//! One connection: bytes in, calls begun, replies out, all in one task.
//!
//! Owns: the input buffer, the calls that wait for the file system, the replies not sent yet, and
//! the limits of all three.
//! Must not know: what calls mean, beyond recognising a WRITE so that its payload is received where
//! it shall stay.
//!
//! Each round reads once, begins every whole call that has come, polls each once where it stands
//! and puts those that are done into one batch of replies, sent by one `writev`. Only what must wait
//! goes into a set of futures, which this task drives too.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use cairn_base::buf::AlignedFill;
use cairn_codec_nfs::v3;
use cairn_codec_rpc::record::FRAGMENT_COUNT_MAX;
use cairn_codec_rpc::rpc::{CALL_HEADER_LEN_BYTES_MAX, decode_call};
use cairn_codec_rpc::{DecodeError, FragmentHeader, Incoming, Reader, xdr};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::metrics::Events;
use crate::reply::{Outbox, Reply, SLICE_COUNT_MAX};
use crate::service::{ReplyFuture, Service, Session, Started, Users};
use crate::settings::RECORD_LEN_BYTES_MAX;
use crate::vigil::Vigil;

/// Records that are not a WRITE must fit in here, and there is no longer legal one.
const INPUT_LEN_BYTES: usize = 64 << 10;
/// A WRITE of at least this size is received directly into its payload buffer.
const DIRECT_LEN_BYTES_MIN: usize = 32 << 10;
/// How much is read after a WRITE of that kind: enough for the head of the next one, and little of
/// its payload, which would have to be copied.
const PEEK_LEN_BYTES: usize = 512;
/// The head of a WRITE is in the first so many bytes of its record.
const WRITE_HEAD_LEN_BYTES_MAX: usize = CALL_HEADER_LEN_BYTES_MAX + v3::WRITE_PREFIX_LEN_BYTES_MAX;
/// After so many rounds other connections of the thread get their turn.
const ROUND_COUNT_MAX: usize = 16;
/// In each timeout a record that is begun must be whole or bring so much, and of replies that wait so much
/// must be taken: a byte now and then is no progress.
const PROGRESS_LEN_BYTES_MIN: u64 = 32 << 10;
/// Most bytes held for a client that no export lets in: its replies are small, and what it leaves unread must not
/// keep others waiting for memory.
const STRANGER_HELD_BYTES_MAX: usize = 64 << 10;
/// A stalled connection is noticed after this many looks at it, within the timeout.
const STALL_LOOK_COUNT: u32 = 4;

const _: () = assert!(DIRECT_LEN_BYTES_MIN < INPUT_LEN_BYTES);
const _: () = assert!(WRITE_HEAD_LEN_BYTES_MAX < DIRECT_LEN_BYTES_MIN);

/// Why a connection was closed by us.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] DecodeError),
}

/// Serves a connection until the client closes it, breaks the protocol or stalls, or until `stop`
/// says so: then what is running is finished and answered.
///
/// When the connection is gone the changes that it began go on, and this future with them.
pub async fn serve(
    stream: TcpStream,
    session: Session,
    vigil: Arc<Vigil>,
    mut stop: watch::Receiver<bool>,
) {
    let service = Arc::clone(&session.service);
    let peer = session.peer;
    let mut connection = Connection::new(stream, session, vigil);
    let mut look = tokio::time::interval(service.settings.stall_timeout / STALL_LOOK_COUNT);
    // After a pause of this process looks in a row would find nothing moved.
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    look.reset();
    let end = loop {
        tokio::select! {
            biased;
            end = poll_fn(|cx| {
                let end = connection.poll(cx);
                connection.settle();
                end
            }) => break end,
            _ = look.tick() => {
                if connection.is_stalled() {
                    Events::count(&service.metrics.events.connections_stalled);
                    if let Some(more) = service.connections_stalled.admitted() {
                        tracing::warn!(%peer, more, "connection closed: nothing moved for too long");
                    }
                    break Ok(());
                }
            }
            // An error means that the server is gone, which is a reason to stop too.
            _ = stop.changed(), if !connection.stopping => connection.stopping = true,
        }
    };
    match end {
        Ok(()) => {}
        Err(Broken::Io(error)) => tracing::debug!(%peer, "connection lost: {error}"),
        Err(Broken::Protocol(error)) => {
            Events::count(&service.metrics.events.connections_broken);
            if let Some(more) = service.connections_broken.admitted() {
                tracing::warn!(%peer, more, "connection closed: {error}");
            }
        }
    }
    connection.close().await;
}

/// What of a record is being received.
enum Receiving {
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
    Skip { left_bytes: usize, reply: Reply },
    /// A record of several fragments.
    Fragments {
        assembled: Vec<u8>,
        /// Of the present fragment.
        left_bytes: usize,
        last: bool,
        count: u32,
    },
}

impl Receiving {
    fn held_bytes(&self) -> usize {
        match self {
            Self::Next | Self::Skip { .. } => 0,
            Self::Payload { payload, .. } => payload.len_bytes(),
            Self::Fragments { assembled, .. } => assembled.capacity(),
        }
    }
}

/// What came of looking at the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// More bytes are needed.
    Starved,
    /// A limit is reached: nothing is read until something was answered.
    Blocked,
}

/// A call that waits.
struct Running {
    future: ReplyFuture,
    is_change: bool,
    procedure: Option<v3::Procedure>,
    begun: Instant,
    held_bytes: usize,
}

struct Done {
    reply: Reply,
    procedure: Option<v3::Procedure>,
    begun: Instant,
    held_bytes: usize,
}

impl Future for Running {
    type Output = Done;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        let reply = ready!(self.future.as_mut().poll(cx));
        Poll::Ready(Done {
            reply,
            procedure: self.procedure,
            begun: self.begun,
            held_bytes: self.held_bytes,
        })
    }
}

/// This connection's part of the bytes held by all; given back when dropped.
struct HeldBytes {
    service: Arc<Service>,
    held_bytes: usize,
}

impl HeldBytes {
    fn set(&mut self, held_bytes: usize) {
        let total = &self.service.held_bytes;
        if held_bytes > self.held_bytes {
            total.fetch_add(held_bytes - self.held_bytes, Ordering::Relaxed);
        } else if held_bytes < self.held_bytes {
            let given_back = self.held_bytes - held_bytes;
            let before = total.fetch_sub(given_back, Ordering::AcqRel);
            let limit = self.service.settings.held_bytes_max;
            if before >= limit && before - given_back < limit {
                self.service.freed.notify_waiters();
            }
        }
        self.held_bytes = held_bytes;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

struct Connection {
    stream: TcpStream,
    session: Arc<Session>,
    users: Users,
    vigil: Arc<Vigil>,
    /// Calls begun since the vigil was told.
    begun_count: u64,
    /// Calls that wait, as the vigil was told.
    settled_running: usize,
    input: Box<[u8]>,
    /// The bytes of `input` that are there and not taken.
    start: usize,
    end: usize,
    receiving: Receiving,
    /// The last record was a WRITE with a large payload.
    peek: bool,
    running: FuturesUnordered<Running>,
    running_bytes: usize,
    outbox: Outbox,
    held: HeldBytes,
    /// The client sends no more.
    ended: bool,
    stopping: bool,
    /// Calls that came as a whole, and bytes that came and went: each only grows.
    calls: u64,
    read_bytes: u64,
    sent_bytes: u64,
    /// There was a moment with nothing to send.
    sent_all: bool,
    /// The three counts when the client last did what it should.
    seen: (u64, u64, u64),
    looks_without_progress: u32,
    blocked: bool,
    /// Waits until all clients together hold less than they may.
    freed: Option<Pin<Box<OwnedNotified>>>,
}

impl Connection {
    fn new(stream: TcpStream, session: Session, vigil: Arc<Vigil>) -> Self {
        let held = HeldBytes {
            service: Arc::clone(&session.service),
            held_bytes: 0,
        };
        Self {
            stream,
            session: Arc::new(session),
            users: Users::default(),
            vigil,
            begun_count: 0,
            settled_running: 0,
            input: vec![0; INPUT_LEN_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            receiving: Receiving::Next,
            peek: false,
            running: FuturesUnordered::new(),
            running_bytes: 0,
            outbox: Outbox::default(),
            held,
            ended: false,
            stopping: false,
            calls: 0,
            read_bytes: 0,
            sent_bytes: 0,
            sent_all: false,
            seen: (0, 0, 0),
            looks_without_progress: 0,
            blocked: false,
            freed: None,
        }
    }

    /// Does what can be done now. Ready when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        if let Some(session) = self.session.renewed() {
            self.session = Arc::new(session);
            self.users.forget();
        }
        for _ in 0..ROUND_COUNT_MAX {
            self.collect(cx);
            let taken = match self.stopping {
                true => Taken::Starved,
                false => self.take_input(cx)?,
            };
            let flushed = self.flush(cx)?;
            self.account();
            self.blocked = taken == Taken::Blocked;
            if self.blocked {
                if self.may_begin() {
                    continue;
                }
                // Something runs or is unsent here, and both will wake us. What others hold is told.
                let freed = Arc::clone(&self.session.service.freed);
                let waiting = self
                    .freed
                    .get_or_insert_with(|| Box::pin(freed.notified_owned()));
                if waiting.as_mut().poll(cx).is_ready() {
                    self.freed = None;
                    continue;
                }
                // It may have been told just before.
                if self.may_begin() {
                    continue;
                }
                return Poll::Pending;
            }
            self.freed = None;
            if self.stopping || self.ended {
                return match self.running.is_empty() && flushed.is_ready() {
                    true => Poll::Ready(Ok(())),
                    false => Poll::Pending,
                };
            }
            let read_bytes = ready!(self.fill(cx))?;
            self.read_bytes += read_bytes as u64;
            self.ended = read_bytes == 0;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Tells the thread's vigil what was done.
    fn settle(&mut self) {
        let running = self.running.len();
        let begun_count = std::mem::take(&mut self.begun_count);
        self.vigil
            .settled(begun_count, self.settled_running, running);
        self.settled_running = running;
    }

    /// Puts the replies of calls that are done into the outbox.
    fn collect(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(done)) = self.running.poll_next_unpin(cx) {
            self.running_bytes -= done.held_bytes;
            self.finish(done);
        }
    }

    fn finish(&mut self, done: Done) {
        if let Some(procedure) = done.procedure {
            let session = &self.session;
            let elapsed = done.begun.elapsed();
            let metrics = &session.service.metrics;
            metrics.request(session.thread, procedure, elapsed, done.reply.status);
            if elapsed >= session.service.settings.slow_request {
                let (peer, elapsed_ms) = (session.peer, elapsed.as_millis() as u64);
                tracing::debug!(%peer, elapsed_ms, "slow request: {}", procedure.name());
            }
        }
        self.outbox.push(done.reply);
    }

    fn held_bytes(&self) -> usize {
        self.running_bytes + self.outbox.len_bytes() + self.receiving.held_bytes()
    }

    fn account(&mut self) {
        self.held.set(self.held_bytes());
    }

    /// Whether the limits let another call in. One is always let in, so nothing waits for ever.
    fn may_begin(&self) -> bool {
        let service = &self.session.service;
        let settings = &service.settings;
        let held_bytes = self.held_bytes();
        if held_bytes == 0 && self.running.is_empty() {
            return true;
        }
        self.running.len() < settings.in_flight_count_max
            && held_bytes < self.held_bytes_max()
            && service.held_bytes.load(Ordering::Relaxed) < settings.held_bytes_max
    }

    /// Most bytes held for this client.
    fn held_bytes_max(&self) -> usize {
        let held_bytes_max = self.session.service.settings.held_bytes_per_connection_max;
        match self.session.view.is_let_in() {
            true => held_bytes_max,
            false => held_bytes_max.min(STRANGER_HELD_BYTES_MAX),
        }
    }

    /// Begins every call that is there.
    fn take_input(&mut self, cx: &mut Context<'_>) -> Result<Taken, Broken> {
        loop {
            match &mut self.receiving {
                Receiving::Next => {
                    let Some((header, _)) =
                        FragmentHeader::split(&self.input[self.start..self.end])
                    else {
                        return Ok(Taken::Starved);
                    };
                    if !self.may_begin() {
                        return Ok(Taken::Blocked);
                    }
                    if !self.take_record(header, cx)? {
                        return Ok(Taken::Starved);
                    }
                }
                Receiving::Payload {
                    payload,
                    padding_bytes,
                    ..
                } => {
                    self.start += payload.fill_from(&self.input[self.start..self.end]);
                    if payload.missing_bytes() > 0 || self.end - self.start < *padding_bytes {
                        return Ok(Taken::Starved);
                    }
                    self.start += *padding_bytes;
                    self.peek = true;
                    let whole = std::mem::replace(&mut self.receiving, Receiving::Next);
                    if let Receiving::Payload { head, payload, .. } = whole {
                        self.begin(&head, Some(payload.finish().freeze()), cx)?;
                    }
                }
                Receiving::Skip { left_bytes, .. } => {
                    let take = (self.end - self.start).min(*left_bytes);
                    self.start += take;
                    *left_bytes -= take;
                    if *left_bytes > 0 {
                        return Ok(Taken::Starved);
                    }
                    let skipped = std::mem::replace(&mut self.receiving, Receiving::Next);
                    if let Receiving::Skip { reply, .. } = skipped {
                        self.calls += 1;
                        self.outbox.push(reply);
                    }
                }
                Receiving::Fragments { .. } => {
                    if !self.take_fragments(cx)? {
                        return Ok(Taken::Starved);
                    }
                }
            }
        }
    }

    /// Takes the record whose first fragment has `header`, if that is possible with the bytes that
    /// are there; else `false`.
    fn take_record(
        &mut self,
        header: FragmentHeader,
        cx: &mut Context<'_>,
    ) -> Result<bool, Broken> {
        check_len(u64::from(header.len_bytes), RECORD_LEN_BYTES_MAX)?;
        let record_start = self.start + FragmentHeader::LEN_BYTES;
        if !header.last {
            self.check_fragments_len(u64::from(header.len_bytes))?;
            self.start = record_start;
            self.receiving = Receiving::Fragments {
                assembled: Vec::new(),
                left_bytes: header.len_bytes as usize,
                last: false,
                count: 1,
            };
            return Ok(true);
        }
        let len_bytes = header.len_bytes as usize;
        let there = self.end - record_start;
        if len_bytes >= DIRECT_LEN_BYTES_MIN {
            match self.begin_payload(record_start, len_bytes) {
                Direct::Begun => return Ok(true),
                Direct::NeedsMore => return Ok(false),
                Direct::NotWrite => {}
            }
        }
        if there >= len_bytes {
            let record_end = record_start + len_bytes;
            self.start = record_end;
            self.peek = false;
            // The call borrows the buffer while it is begun, and beginning changes the rest of us.
            let input = std::mem::take(&mut self.input);
            let begun = self.begin(&input[record_start..record_end], None, cx);
            self.input = input;
            begun?;
            return Ok(true);
        }
        if FragmentHeader::LEN_BYTES + len_bytes > self.input.len() {
            let mut from = Reader::new(&self.input[record_start..self.end]);
            let xid = match decode_call(&mut from) {
                Ok(Incoming::Call(call)) => call.xid,
                Ok(Incoming::Refused { xid, .. }) => xid,
                Err(DecodeError::Truncated) if there < CALL_HEADER_LEN_BYTES_MAX => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            };
            self.start = record_start;
            self.receiving = Receiving::Skip {
                left_bytes: len_bytes,
                reply: self.session.garbage(xid),
            };
            return Ok(true);
        }
        Ok(false)
    }

    /// If the record is a WRITE, prepares to receive its payload apart.
    fn begin_payload(&mut self, record_start: usize, len_bytes: usize) -> Direct {
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
        if let Some(reply) = self.session.refuse_write(xid, &prefix.head.file) {
            self.start = record_start;
            self.receiving = Receiving::Skip {
                left_bytes: len_bytes,
                reply,
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
    fn take_fragments(&mut self, cx: &mut Context<'_>) -> Result<bool, Broken> {
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
            let assembled = std::mem::take(assembled);
            self.receiving = Receiving::Next;
            self.begin(&assembled, None, cx)?;
            return Ok(true);
        }
        let Some((header, _)) = FragmentHeader::split(input) else {
            return Ok(false);
        };
        let len_bytes = assembled.len() as u64 + u64::from(header.len_bytes);
        if *count >= FRAGMENT_COUNT_MAX {
            return Err(Broken::Protocol(DecodeError::TooManyFragments {
                count_max: FRAGMENT_COUNT_MAX,
            }));
        }
        *count += 1;
        *left_bytes = header.len_bytes as usize;
        *last = header.last;
        self.start += FragmentHeader::LEN_BYTES;
        self.check_fragments_len(len_bytes)?;
        Ok(true)
    }

    /// A record of several fragments is held while it comes: whom no export lets in gets no room for a
    /// large one.
    fn check_fragments_len(&self, len_bytes: u64) -> Result<(), DecodeError> {
        match self.session.view.is_let_in() {
            true => check_len(len_bytes, RECORD_LEN_BYTES_MAX),
            false => check_len(len_bytes, INPUT_LEN_BYTES as u32),
        }
    }

    /// Begins one call and polls it once.
    fn begin(
        &mut self,
        record: &[u8],
        payload: Option<Bytes>,
        cx: &mut Context<'_>,
    ) -> Result<(), Broken> {
        let begun = Instant::now();
        self.begun_count += 1;
        self.calls += 1;
        let call = self.session.start(&mut self.users, record, payload)?;
        let done = |reply| Done {
            reply,
            procedure: call.procedure,
            begun,
            held_bytes: call.held_bytes,
        };
        let (mut future, is_change) = match call.started {
            Started::Ready(reply) => {
                self.finish(done(reply));
                return Ok(());
            }
            Started::Running(future) => (future, false),
            Started::Changing(future) => (future, true),
        };
        match future.as_mut().poll(cx) {
            Poll::Ready(reply) => self.finish(done(reply)),
            Poll::Pending => {
                self.running_bytes += call.held_bytes;
                self.running.push(Running {
                    future,
                    is_change,
                    procedure: call.procedure,
                    begun,
                    held_bytes: call.held_bytes,
                });
            }
        }
        Ok(())
    }

    /// Sends what is in the outbox; ready when it is empty.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Broken> {
        while !self.outbox.is_empty() {
            match self.stream.poll_write_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => {
                    self.outbox.detach();
                    return Ok(Poll::Pending);
                }
            }
            let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
            let count = self.outbox.slices(&mut slices);
            match self.stream.try_write_vectored(&slices[..count]) {
                Ok(sent_bytes) => {
                    self.outbox.advance(sent_bytes);
                    self.sent_bytes += sent_bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.sent_all = true;
        Ok(Poll::Ready(()))
    }

    /// Reads once, into the payload if one is being received and nothing comes before it.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Receiving::Payload { payload, .. } = &mut self.receiving
            && payload.missing_bytes() > 0
        {
            assert!(self.start == self.end);
            let mut to = ReadBuf::uninit(payload.spare());
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut to))?;
            let read_bytes = to.filled().len();
            // SAFETY: `ReadBuf` counts as filled what was written to the front of the spare part.
            unsafe { payload.advance(read_bytes) };
            return Poll::Ready(Ok(read_bytes));
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
        let mut to = ReadBuf::new(&mut self.input[self.end..limit]);
        assert!(to.remaining() > 0);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut to))?;
        let read_bytes = to.filled().len();
        self.end += read_bytes;
        Poll::Ready(Ok(read_bytes))
    }

    /// Whether for a whole timeout the client left half a record or its replies where they are, or is
    /// one that no export lets in and asked nothing. To be asked [`STALL_LOOK_COUNT`] times in that.
    fn is_stalled(&mut self) -> bool {
        let (calls, read_bytes, sent_bytes) = self.seen;
        let no_call = self.calls == calls;
        let half_record = !matches!(self.receiving, Receiving::Next) || self.start < self.end;
        // While a limit keeps us from reading, the half record is not the client's fault.
        let record_stalls = half_record
            && !self.blocked
            && no_call
            && self.read_bytes - read_bytes < PROGRESS_LEN_BYTES_MIN;
        let replies_stall = !self.outbox.is_empty()
            && !self.sent_all
            && self.sent_bytes - sent_bytes < PROGRESS_LEN_BYTES_MIN;
        let idle_stranger = no_call && !self.session.view.is_let_in();
        if !(record_stalls || replies_stall || idle_stranger) {
            self.seen = (self.calls, self.read_bytes, self.sent_bytes);
            self.sent_all = false;
            self.looks_without_progress = 0;
            return false;
        }
        self.looks_without_progress += 1;
        self.looks_without_progress >= STALL_LOOK_COUNT
    }

    /// Ends the connection; the future is ready when what it began has ended. Changes go on without anybody
    /// to answer: one that was begun should be done to its end, and its reply be there when the client asks
    /// again. The rest is dropped, because the client would have to ask again anyway.
    fn close(self) -> impl Future<Output = ()> {
        self.vigil.settled(0, self.settled_running, 0);
        let mut held = self.held;
        let running = self.running.into_iter();
        let mut changes: FuturesUnordered<_> = running.filter(|call| call.is_change).collect();
        held.set(changes.iter().map(|call| call.held_bytes).sum());
        async move {
            while let Some(done) = changes.next().await {
                held.set(held.held_bytes - done.held_bytes);
            }
        }
    }
}

/// Whether the payload of a record can be received apart.
enum Direct {
    Begun,
    NeedsMore,
    NotWrite,
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
