//! One connection: bytes in, calls begun, replies out, all in one task.
//!
//! Owns: the socket, the calls that wait for the file system, the replies not sent yet, and the limits
//! of what is held for them and for what comes in.
//! Must not know: what calls mean, how records are found in what comes in (`intake`).
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
use cairn_codec_nfs::v3;
use cairn_codec_rpc::DecodeError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::busy_poll::BusyPoll;
use crate::intake::{Gate, Intake, Space, Step};
use crate::metrics::Events;
use crate::reply::{Outbox, Reply, SLICE_COUNT_MAX};
use crate::service::{ReplyFuture, Service, Session, Started, Users};

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
    busy_poll: Arc<BusyPoll>,
    mut stop: watch::Receiver<bool>,
) {
    let service = Arc::clone(&session.service);
    let peer = session.peer;
    let mut connection = Connection::new(stream, session, busy_poll);
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

/// The calls of a connection that were begun, and their replies up to the socket.
struct Calls {
    session: Arc<Session>,
    users: Users,
    /// Calls begun since the busy_poll was told.
    begun_count: u64,
    /// Calls that came as a whole; it only grows.
    whole_count: u64,
    running: FuturesUnordered<Running>,
    running_bytes: usize,
    outbox: Outbox,
}

struct Connection {
    stream: TcpStream,
    intake: Intake<Reply>,
    calls: Calls,
    busy_poll: Arc<BusyPoll>,
    /// Calls that wait, as the busy_poll was told.
    settled_running: usize,
    held: HeldBytes,
    /// The client sends no more.
    ended: bool,
    stopping: bool,
    /// Bytes that came and went: each only grows.
    read_bytes: u64,
    sent_bytes: u64,
    /// There was a moment with nothing to send.
    sent_all: bool,
    /// The counts of calls, and of bytes that came and went, when the client last did what it should.
    seen: (u64, u64, u64),
    looks_without_progress: u32,
    blocked: bool,
    /// Waits until all clients together hold less than they may.
    freed: Option<Pin<Box<OwnedNotified>>>,
}

impl Gate for Session {
    type Answer = Reply;

    fn is_let_in(&self) -> bool {
        self.view.is_let_in()
    }

    fn refuse_write(&self, xid: u32, file: &v3::FileHandle) -> Option<Reply> {
        self.refuse_write(xid, file)
    }

    fn garbage(&self, xid: u32) -> Reply {
        self.garbage(xid)
    }
}

impl Connection {
    fn new(stream: TcpStream, session: Session, busy_poll: Arc<BusyPoll>) -> Self {
        let held = HeldBytes {
            service: Arc::clone(&session.service),
            held_bytes: 0,
        };
        Self {
            stream,
            intake: Intake::default(),
            calls: Calls::new(session),
            busy_poll,
            settled_running: 0,
            held,
            ended: false,
            stopping: false,
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
        self.calls.renew();
        for _ in 0..ROUND_COUNT_MAX {
            self.calls.collect(cx);
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
                let freed = Arc::clone(&self.calls.session.service.freed);
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
                return match self.calls.running.is_empty() && flushed.is_ready() {
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

    /// Tells the thread's busy_poll what was done.
    fn settle(&mut self) {
        let running = self.calls.running.len();
        let begun_count = std::mem::take(&mut self.calls.begun_count);
        self.busy_poll
            .settled(begun_count, self.settled_running, running);
        self.settled_running = running;
    }

    fn held_bytes(&self) -> usize {
        self.calls.held_bytes() + self.intake.held_bytes()
    }

    fn account(&mut self) {
        self.held.set(self.held_bytes());
    }

    /// Whether the limits let another call in. One is always let in, so nothing waits for ever.
    fn may_begin(&self) -> bool {
        let service = &self.calls.session.service;
        let settings = &service.settings;
        let held_bytes = self.held_bytes();
        let running_count = self.calls.running.len();
        if held_bytes == 0 && running_count == 0 {
            return true;
        }
        running_count < settings.in_flight_count_max
            && held_bytes < self.held_bytes_max()
            && service.held_bytes.load(Ordering::Relaxed) < settings.held_bytes_max
    }

    /// Most bytes held for this client.
    fn held_bytes_max(&self) -> usize {
        let session = &self.calls.session;
        let held_bytes_max = session.service.settings.held_bytes_per_connection_max;
        match session.view.is_let_in() {
            true => held_bytes_max,
            false => held_bytes_max.min(STRANGER_HELD_BYTES_MAX),
        }
    }

    /// Begins every call that is there.
    fn take_input(&mut self, cx: &mut Context<'_>) -> Result<Taken, Broken> {
        loop {
            if self.intake.is_at_record() && !self.may_begin() {
                return Ok(Taken::Blocked);
            }
            match self.intake.next(&*self.calls.session)? {
                Step::Starved => return Ok(Taken::Starved),
                Step::Call { record, payload } => self.calls.begin(&record, payload, cx)?,
                Step::Skipped(reply) => {
                    self.calls.whole_count += 1;
                    self.calls.outbox.push(reply);
                }
            }
        }
    }

    /// Sends what is in the outbox; ready when it is empty.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Broken> {
        while !self.calls.outbox.is_empty() {
            match self.stream.poll_write_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => {
                    self.calls.outbox.detach();
                    return Ok(Poll::Pending);
                }
            }
            let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
            let count = self.calls.outbox.slices(&mut slices);
            match self.stream.try_write_vectored(&slices[..count]) {
                Ok(sent_bytes) => {
                    self.calls.outbox.advance(sent_bytes);
                    self.sent_bytes += sent_bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.sent_all = true;
        Ok(Poll::Ready(()))
    }

    /// Reads once, where the intake wants it.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.stream);
        match self.intake.space() {
            Space::Payload(payload) => {
                let mut to = ReadBuf::uninit(payload.spare());
                ready!(stream.poll_read(cx, &mut to))?;
                let read_bytes = to.filled().len();
                // SAFETY: `ReadBuf` counts as filled what was written to the front of the spare part.
                unsafe { payload.advance(read_bytes) };
                Poll::Ready(Ok(read_bytes))
            }
            Space::Input(free) => {
                let mut to = ReadBuf::new(free);
                ready!(stream.poll_read(cx, &mut to))?;
                let read_bytes = to.filled().len();
                self.intake.received(read_bytes);
                Poll::Ready(Ok(read_bytes))
            }
        }
    }

    /// Whether for a whole timeout the client left half a record or its replies where they are, or is
    /// one that no export lets in and asked nothing. To be asked [`STALL_LOOK_COUNT`] times in that.
    fn is_stalled(&mut self) -> bool {
        let (calls, read_bytes, sent_bytes) = self.seen;
        let no_call = self.calls.whole_count == calls;
        // While a limit keeps us from reading, the half record is not the client's fault.
        let record_stalls = self.intake.is_in_record()
            && !self.blocked
            && no_call
            && self.read_bytes - read_bytes < PROGRESS_LEN_BYTES_MIN;
        let replies_stall = !self.calls.outbox.is_empty()
            && !self.sent_all
            && self.sent_bytes - sent_bytes < PROGRESS_LEN_BYTES_MIN;
        let idle_stranger = no_call && !self.calls.session.view.is_let_in();
        if !(record_stalls || replies_stall || idle_stranger) {
            self.seen = (self.calls.whole_count, self.read_bytes, self.sent_bytes);
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
        self.busy_poll.settled(0, self.settled_running, 0);
        let mut held = self.held;
        let running = self.calls.running.into_iter();
        let mut changes: FuturesUnordered<_> = running.filter(|call| call.is_change).collect();
        held.set(changes.iter().map(|call| call.held_bytes).sum());
        async move {
            while let Some(done) = changes.next().await {
                held.set(held.held_bytes - done.held_bytes);
            }
        }
    }
}

impl Calls {
    fn new(session: Session) -> Self {
        Self {
            session: Arc::new(session),
            users: Users::default(),
            begun_count: 0,
            whole_count: 0,
            running: FuturesUnordered::new(),
            running_bytes: 0,
            outbox: Outbox::default(),
        }
    }

    /// Takes the exports that are in force now.
    fn renew(&mut self) {
        if let Some(session) = self.session.renewed() {
            self.session = Arc::new(session);
            self.users.forget();
        }
    }

    fn held_bytes(&self) -> usize {
        self.running_bytes + self.outbox.len_bytes()
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
        self.whole_count += 1;
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
}
