//! One connection: bytes in, calls begun, replies out, all in one task.
//!
//! Owns: the socket, the calls that wait for their program, the replies not sent yet, and the limits
//! of what is held for them and for what comes in.
//! Must not know: what calls mean, how records are found in what comes in (`intake`).
//!
//! Each round reads once, begins every whole call that has come, polls each once in place
//! and puts the replies of those that are done into one batch, sent by one `writev`. Only calls that must wait
//! go into a set of futures, which this task drives too.
//!
//! Calls that are delayed lie beside all others until they may begin (`parked`), so that those behind them go on.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use cairn_base::busy_poll::{BusyPoll, ConnectionRequests};
use cairn_codec_rpc::{CallHeader, DecodeError};
use cairn_forward::{Admission, Stream};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::connection_metrics::Events;
use crate::dispatch::{Dispatched, Dispatcher, LargeCall, Measured};
use crate::intake::{Gate, Intake, Space, Step, Verdict};
use crate::parked::{DueCall, Late, Parked, Parking};
use crate::program::{Answered, Delay, ReplyFuture, Started};
use crate::reply::{Outbox, Reply, SLICE_COUNT_MAX};
use crate::server::ServerCore;

/// After so many rounds other connections of the thread get their turn.
const ROUND_COUNT_MAX: usize = 16;
/// In each timeout a record that has begun must become whole or bring so many bytes, and a client must take so many
/// bytes of the replies that wait for it. A byte now and then is no progress.
const PROGRESS_LEN_BYTES_MIN: u64 = 32 << 10;
/// Most bytes held for an unauthorized client. Its replies are small, and those that it leaves unread must not keep others
/// waiting for memory.
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
    /// What lies in it may be old.
    #[error("the connection's admission has ended")]
    Ended,
}

/// Serves a connection until the client closes it, breaks the protocol or stalls, or until `stop`
/// says so: then running calls are finished and answered.
///
/// When the connection is gone, the changes that it began go on, and this future with them. In a cluster it has an
/// `admission`; when that ends no call begins any more.
pub async fn serve(
    stream: Carrier,
    admission: Option<Arc<Admission>>,
    shared: Arc<ServerCore>,
    dispatcher: Dispatcher,
    busy_poll: Arc<BusyPoll>,
    mut stop: watch::Receiver<bool>,
) {
    let peer = dispatcher.peer.address;
    let calls = Calls::new(Arc::clone(&shared), dispatcher);
    let mut changes = calls.dispatcher.table().rights_changes();
    let ended = admission.as_ref().map(|admission| admission.ended());
    let mut ended = std::pin::pin!(ended.map_or_else(
        || futures_util::future::pending().left_future(),
        |ended| ended.right_future(),
    ));
    let mut connection = Connection::new(stream, admission, calls, busy_poll);
    let mut look = tokio::time::interval(shared.settings.stall_timeout / STALL_LOOK_COUNT);
    // After this process was paused, several looks in a row would find that nothing moved.
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
            _ = &mut ended => break Err(Broken::Ended),
            _ = look.tick() => {
                if connection.is_stalled() {
                    Events::count(&shared.metrics.events.connections_stalled);
                    if let Some(more) = shared.stalled_logged.admitted() {
                        tracing::warn!(%peer, more, "connection closed: nothing moved for too long");
                    }
                    break Ok(());
                }
            }
            () = one_changes(&mut changes) => connection.calls.dispatcher.renew(),
            // An error means that the server is gone, which is a reason to stop too.
            _ = stop.changed(), if !connection.stopping => connection.stopping = true,
        }
    };
    match end {
        Ok(()) => {}
        Err(Broken::Io(error)) => tracing::debug!(%peer, "connection lost: {error}"),
        Err(Broken::Ended) => {
            Events::count(&shared.metrics.events.connections_ended);
            connection.stream.reset();
            tracing::debug!(%peer, "connection closed: its client has to send again what it still wants");
        }
        Err(Broken::Protocol(error)) => {
            Events::count(&shared.metrics.events.connections_broken);
            if let Some(more) = shared.broken_logged.admitted() {
                tracing::warn!(%peer, more, "connection closed: {error}");
            }
        }
    }
    connection.close().await;
}

/// Waits until the rights of one of the programs change.
async fn one_changes(changes: &mut [watch::Receiver<u64>]) {
    let changed = changes
        .iter_mut()
        .map(|changes| Box::pin(changes.changed()));
    let mut changed: FuturesUnordered<_> = changed.collect();
    // An error means that the program is gone: nothing changes any more.
    while let Some(result) = changed.next().await {
        if result.is_ok() {
            return;
        }
    }
    std::future::pending().await
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
    measured: Option<Measured>,
    begun: Instant,
    held_bytes: usize,
    /// What its reply waits for.
    delay: Option<Delay>,
}

pub struct Done {
    reply: Reply,
    measured: Option<Measured>,
    begun: Instant,
    held_bytes: usize,
    delay: Option<Delay>,
}

impl Future for Running {
    type Output = Done;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        let reply = ready!(self.future.as_mut().poll(cx));
        Poll::Ready(Done {
            reply,
            measured: self.measured.take(),
            begun: self.begun,
            held_bytes: self.held_bytes,
            delay: self.delay.take(),
        })
    }
}

/// This connection's part of the bytes held by all; given back when dropped.
struct HeldBytes {
    shared: Arc<ServerCore>,
    held_bytes: usize,
}

impl HeldBytes {
    fn set(&mut self, held_bytes: usize) {
        let total = &self.shared.held_bytes;
        if held_bytes > self.held_bytes {
            total.fetch_add(held_bytes - self.held_bytes, Ordering::Relaxed);
        } else if held_bytes < self.held_bytes {
            let given_back = self.held_bytes - held_bytes;
            let before = total.fetch_sub(given_back, Ordering::AcqRel);
            let limit = self.shared.settings.held_bytes_max;
            if before >= limit && before - given_back < limit {
                self.shared.freed.notify_waiters();
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
    shared: Arc<ServerCore>,
    dispatcher: Dispatcher,
    rights: Rights,
    /// Calls begun since the busy poll was told.
    begun_count: u64,
    /// Calls that came whole; it only grows.
    whole_count: u64,
    running: FuturesUnordered<Running>,
    /// Calls that are delayed.
    parked: FuturesUnordered<Parked>,
    /// Those of them whose time has come, and that the limits do not let begin yet.
    ready: VecDeque<DueCall>,
    /// Replies that are delayed, of changes for which there was no room to wait.
    late: FuturesUnordered<Late>,
    parking: Parking,
    running_bytes: usize,
    outbox: Outbox,
}

/// Whether the client may use anything here, as of one version of the rights.
struct Rights {
    version: u64,
    is_let_in: bool,
}

impl Rights {
    fn of(dispatcher: &Dispatcher) -> Self {
        // The version comes first: if it changes in between, the next look renews the rights.
        let version = dispatcher.table().rights_version();
        Self {
            version,
            is_let_in: dispatcher.table().lets_in(dispatcher.peer.address),
        }
    }
}

/// What carries a connection's bytes.
pub enum Carrier {
    Tcp(TcpStream),
    /// From another node, for one of its clients.
    Forwarded(Box<dyn Stream>),
}

impl Carrier {
    /// Has the client of a connection that is about to be dropped connect again at once.
    fn reset(&self) {
        match self {
            Self::Tcp(stream) => cairn_forward::reset(stream),
            Self::Forwarded(_) => {}
        }
    }

    /// Writes as much as is taken now.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => loop {
                ready!(stream.poll_write_ready(cx))?;
                match stream.try_write_vectored(slices) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => return Poll::Ready(written),
                }
            },
            Self::Forwarded(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    /// Sends what was written and lies in a buffer.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) => Poll::Ready(Ok(())),
            Self::Forwarded(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, to),
            Self::Forwarded(stream) => Pin::new(stream).poll_read(cx, to),
        }
    }
}

struct Connection {
    stream: Carrier,
    /// Held until all that began over the connection has ended.
    admission: Option<Arc<Admission>>,
    intake: Intake<Reply, LargeCall>,
    calls: Calls,
    told: ConnectionRequests,
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

impl Gate for Calls {
    type Answer = Reply;
    type Large = LargeCall;

    fn is_let_in(&self) -> bool {
        self.rights.is_let_in
    }

    fn begin_large(
        &mut self,
        call: &CallHeader<'_>,
        args: &[u8],
        args_len_bytes: usize,
    ) -> Verdict<Reply, LargeCall> {
        self.dispatcher.begin_large(call, args, args_len_bytes)
    }

    fn garbage(&self, xid: u32) -> Reply {
        self.dispatcher.peer.garbage(xid)
    }
}

impl Connection {
    fn new(
        stream: Carrier,
        admission: Option<Arc<Admission>>,
        calls: Calls,
        busy_poll: Arc<BusyPoll>,
    ) -> Self {
        let held = HeldBytes {
            shared: Arc::clone(&calls.shared),
            held_bytes: 0,
        };
        Self {
            stream,
            admission,
            intake: Intake::default(),
            calls,
            told: ConnectionRequests::new(busy_poll),
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
            // Between reading calls and beginning them: the process may have stood still before it read.
            if self.admission.as_ref().is_some_and(|it| !it.is_live()) {
                return Poll::Ready(Err(Broken::Ended));
            }
            self.calls.collect(cx);
            let taken = match self.stopping {
                true => Taken::Starved,
                false => self.take_input(cx)?,
            };
            self.calls.collect_delayed(cx);
            let flushed = self.flush(cx)?;
            self.account();
            if taken == Taken::Starved && !self.stopping && !self.calls.ready.is_empty() {
                continue;
            }
            self.blocked = taken == Taken::Blocked;
            if self.blocked {
                if self.may_go_on() {
                    continue;
                }
                // Something runs or is unsent here, and both will wake us. `freed` tells what others gave back.
                let freed = Arc::clone(&self.calls.shared.freed);
                let waiting = self
                    .freed
                    .get_or_insert_with(|| Box::pin(freed.notified_owned()));
                if waiting.as_mut().poll(cx).is_ready() {
                    self.freed = None;
                    continue;
                }
                // It may have been told just before.
                if self.may_go_on() {
                    continue;
                }
                return Poll::Pending;
            }
            self.freed = None;
            if self.stopping || self.ended {
                let is_done = self.calls.running.is_empty() && flushed.is_ready();
                // The client sends a delayed call again to the next server.
                return match is_done && (self.stopping || self.calls.parking.is_empty()) {
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

    /// Tells the thread's busy poll what was done.
    fn settle(&mut self) {
        let running = self.calls.running.len();
        let begun_count = std::mem::take(&mut self.calls.begun_count);
        self.told.settled(begun_count, running);
    }

    fn held_bytes(&self) -> usize {
        self.calls.held_bytes() + self.intake.held_bytes()
    }

    fn account(&mut self) {
        self.held.set(self.held_bytes());
    }

    /// Whether another call may be read: it may begin, or wait for its time.
    fn may_begin(&self) -> bool {
        self.calls.parking.has_room() && self.may_run()
    }

    /// Whether the limits let another call begin. One is always let in, so nothing waits for ever.
    fn may_run(&self) -> bool {
        let shared = &self.calls.shared;
        let settings = &shared.settings;
        let held_bytes = self.held_bytes();
        let running_count = self.calls.running.len();
        if held_bytes == 0 && running_count == 0 {
            return true;
        }
        running_count < settings.in_flight_count_max
            && held_bytes < self.held_bytes_max()
            && shared.held_bytes.load(Ordering::Relaxed) < settings.held_bytes_max
    }

    /// Whether what was blocked is not any more.
    fn may_go_on(&self) -> bool {
        match self.calls.ready.is_empty() {
            true => self.may_begin(),
            false => self.may_run(),
        }
    }

    /// Most bytes held for this client.
    fn held_bytes_max(&self) -> usize {
        let held_bytes_max = self.calls.shared.settings.held_bytes_per_connection_max;
        match self.calls.rights.is_let_in {
            true => held_bytes_max,
            false => held_bytes_max.min(STRANGER_HELD_BYTES_MAX),
        }
    }

    /// Begins every call that is there.
    fn take_input(&mut self, cx: &mut Context<'_>) -> Result<Taken, Broken> {
        while let Some(waiting) = self.calls.ready.pop_front() {
            if !self.may_run() {
                self.calls.ready.push_front(waiting);
                return Ok(Taken::Blocked);
            }
            self.calls.unpark(waiting, cx);
        }
        loop {
            if self.intake.is_at_record() && !self.may_begin() {
                return Ok(Taken::Blocked);
            }
            match self.intake.next(&mut self.calls)? {
                Step::Starved => return Ok(Taken::Starved),
                Step::Call(record) => {
                    let begun = Instant::now();
                    let call = self.calls.dispatcher.begin(&record)?;
                    self.calls.go_on(call, begun, cx);
                }
                Step::Large {
                    call,
                    payload,
                    tail,
                } => {
                    let begun = Instant::now();
                    let call = call.begin(payload, tail);
                    self.calls.go_on(call, begun, cx);
                }
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
            let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
            let count = self.calls.outbox.slices(&mut slices);
            match self.stream.poll_write(cx, &slices[..count]) {
                Poll::Ready(written) => {
                    let sent_bytes = written?;
                    if sent_bytes == 0 {
                        return Err(io::Error::from(io::ErrorKind::WriteZero).into());
                    }
                    self.calls.outbox.advance(sent_bytes);
                    self.sent_bytes += sent_bytes as u64;
                }
                Poll::Pending => {
                    self.calls.outbox.detach();
                    return Ok(Poll::Pending);
                }
            }
        }
        match self.stream.poll_flush(cx) {
            Poll::Ready(flushed) => flushed?,
            Poll::Pending => return Ok(Poll::Pending),
        }
        self.sent_all = true;
        Ok(Poll::Ready(()))
    }

    /// Reads once, where the intake wants it.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let stream = &mut self.stream;
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

    /// Whether for a whole timeout the client left half a record or its replies where they are, or is unauthorized
    /// and asked nothing. Ask this [`STALL_LOOK_COUNT`] times in each timeout.
    fn is_stalled(&mut self) -> bool {
        let (calls, read_bytes, sent_bytes) = self.seen;
        let no_call = self.calls.whole_count == calls;
        // While a limit keeps us from reading, half a record is not the client's fault.
        let record_stalls = self.intake.is_in_record()
            && !self.blocked
            && no_call
            && self.read_bytes - read_bytes < PROGRESS_LEN_BYTES_MIN;
        let replies_stall = !self.calls.outbox.is_empty()
            && !self.sent_all
            && self.sent_bytes - sent_bytes < PROGRESS_LEN_BYTES_MIN;
        let idle_stranger = no_call && !self.calls.rights.is_let_in;
        if !(record_stalls || replies_stall || idle_stranger) {
            self.seen = (self.calls.whole_count, self.read_bytes, self.sent_bytes);
            self.sent_all = false;
            self.looks_without_progress = 0;
            return false;
        }
        self.looks_without_progress += 1;
        self.looks_without_progress >= STALL_LOOK_COUNT
    }

    /// Ends the connection; the future is ready when what it began has ended. Changes go on with nobody
    /// to answer, so that the reply is there when the client asks again. Other calls are dropped, because the
    /// client has to ask again anyway.
    fn close(self) -> impl Future<Output = ()> {
        drop(self.told);
        let mut held = self.held;
        let admission = self.admission;
        let running = self.calls.running.into_iter();
        let mut changes: FuturesUnordered<_> = running.filter(|call| call.is_change).collect();
        held.set(changes.iter().map(|call| call.held_bytes).sum());
        async move {
            while let Some(done) = changes.next().await {
                held.set(held.held_bytes - done.held_bytes);
            }
            drop(admission);
        }
    }
}

impl Calls {
    fn new(shared: Arc<ServerCore>, dispatcher: Dispatcher) -> Self {
        let parking = Parking::new(&shared);
        Self {
            shared,
            rights: Rights::of(&dispatcher),
            dispatcher,
            begun_count: 0,
            whole_count: 0,
            running: FuturesUnordered::new(),
            parked: FuturesUnordered::new(),
            ready: VecDeque::new(),
            late: FuturesUnordered::new(),
            parking,
            running_bytes: 0,
            outbox: Outbox::default(),
        }
    }

    /// Looks again whether the client may use anything, if that may have changed.
    fn renew(&mut self) {
        if self.rights.version != self.dispatcher.table().rights_version() {
            self.rights = Rights::of(&self.dispatcher);
        }
    }

    fn held_bytes(&self) -> usize {
        self.running_bytes + self.outbox.len_bytes()
    }

    /// Polls a call that has begun once, and keeps it if it must wait.
    fn go_on(&mut self, mut call: Dispatched, begun: Instant, cx: &mut Context<'_>) {
        self.begun_count += 1;
        self.whole_count += 1;
        if let Some(delay) = call.delay.take() {
            let is_change = matches!(call.started, Started::Changing(_));
            if is_change && !self.parking.has_room_for(delay.held_bytes) {
                call.delay = Some(delay);
            } else if !matches!(call.started, Started::Ready(_)) {
                self.parking.add(delay.held_bytes);
                self.parked.push(Parked::new(call, begun, delay));
                return;
            }
        }
        self.run(call, begun, cx);
    }

    /// Begins a call whose time has come.
    fn unpark(&mut self, waiting: DueCall, cx: &mut Context<'_>) {
        self.parking.take(waiting.held_bytes);
        self.run(waiting.call, waiting.begun, cx);
    }

    fn run(&mut self, call: Dispatched, begun: Instant, cx: &mut Context<'_>) {
        let (mut delay, mut measured) = (call.delay, call.measured);
        let mut done = |reply| Done {
            reply,
            measured: measured.take(),
            begun,
            held_bytes: call.held_bytes,
            delay: delay.take(),
        };
        let (mut future, is_change) = match call.started {
            Started::Ready(reply) => return self.answer(done(reply)),
            Started::Running(future) => (future, false),
            Started::Changing(future) => (future, true),
        };
        match future.as_mut().poll(cx) {
            Poll::Ready(reply) => {
                let done = done(reply);
                self.answer(done);
            }
            Poll::Pending => {
                self.running_bytes += call.held_bytes;
                self.running.push(Running {
                    future,
                    is_change,
                    measured,
                    begun,
                    held_bytes: call.held_bytes,
                    delay,
                });
            }
        }
    }

    /// Puts the replies of calls that are done into the outbox.
    fn collect(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(done)) = self.running.poll_next_unpin(cx) {
            self.running_bytes -= done.held_bytes;
            self.answer(done);
        }
        self.collect_delayed(cx);
    }

    /// Takes what was delayed and is not any more; the rest wakes the connection.
    fn collect_delayed(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(done)) = self.late.poll_next_unpin(cx) {
            self.parking.take(0);
            self.finish(done);
        }
        while let Poll::Ready(Some(waiting)) = self.parked.poll_next_unpin(cx) {
            self.ready.push_back(waiting);
        }
    }

    /// Sends the reply of a call that is done, now or when its time comes.
    fn answer(&mut self, mut done: Done) {
        match done.delay.take() {
            None => self.finish(done),
            Some(delay) => {
                self.parking.add(0);
                self.late.push(Late::new(done, delay));
            }
        }
    }

    fn finish(&mut self, done: Done) {
        if let Some(Measured {
            program,
            procedure,
            account,
        }) = done.measured
        {
            let program = self.dispatcher.table().program(program);
            let elapsed = done.begun.elapsed();
            let peer = &self.dispatcher.peer;
            let answered = Answered {
                peer,
                procedure,
                elapsed,
                failure: done.reply.failure,
                data_len_bytes: done.reply.parts_len_bytes,
            };
            program.answered(&answered);
            if let Some(account) = account {
                account.keeper.answered(account.what, &answered);
            }
            if elapsed >= self.shared.settings.slow_request {
                let (peer, elapsed_ms) = (peer.address, elapsed.as_millis() as u64);
                let name = program.procedure_name(procedure);
                tracing::debug!(%peer, elapsed_ms, "slow request: {name}");
            }
        }
        self.outbox.push(done.reply);
    }
}
