//! The seam between the server and the programs that it serves.
//!
//! Owns: what a program offers, what it is told about its client, and what a call looks like that has begun.
//! Must not know: any program, sockets, records.
//!
//! NFSv3, MOUNT and NLM plug in here; the port mapper is built in. NFSv4 will be one more program:
//!
//! - COMPOUND is one procedure, whose handler decodes and runs the operations. A large WRITE among them is
//!   received uncopied too: the operations behind it are the tail of the record.
//! - A [`Handler`] lives as long as its connection, so it can hold the sessions bound to that connection.
//! - The reply cache of a session belongs to the session. [`crate::Duplicates`] is a tool that a program may use;
//!   the server never looks into it.
//! - Callbacks over the client's connection (version 4.1) are the one addition: a handle with which a program puts
//!   a call into the connection's queue of replies, and the way of its answer, which today ends the
//!   connection because it is no call, to the handler.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use cairn_codec_rpc::{AcceptStatus, AuthStatus, CallHeader, Reader, Rejection};
use cairn_forward::Admission;
use tokio::sync::watch;

use crate::connection_metrics::{ConnectionMetrics, Events};
use crate::intake::Verdict;
use crate::reply::Reply;

pub type ReplyFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;
pub type DelayFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a call holds in memory besides its payload and the data that it asks for.
pub const REQUEST_LEN_BYTES: usize = 1024;

/// One ONC RPC program.
pub trait Program: Send + Sync + 'static {
    fn number(&self) -> u32;

    /// The versions that are served, in ascending order. The port mapper registers each.
    fn versions(&self) -> &[u32];

    /// Whether this client may use anything here. A client that no program lets in is *unauthorized*: it gets fewer
    /// connections and less memory.
    fn lets_in(&self, _client: SocketAddr) -> bool {
        false
    }

    /// Changes whenever [`Self::lets_in`] may answer differently.
    fn rights_version(&self) -> u64 {
        0
    }

    /// Tells when [`Self::rights_version`] changes; `None`: it never does.
    fn rights_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// The program as one client meets it over one connection, or in one datagram.
    fn connect(&self, peer: &Arc<Peer>) -> Box<dyn Handler>;

    /// Hears of each call that was answered and that named its procedure in [`StartedCall::procedure`].
    fn answered(&self, _answered: &Answered<'_>) {}

    /// What to call a procedure in the log.
    fn procedure_name(&self, _procedure: u32) -> &'static str {
        "call"
    }
}

/// A program at work for one connection.
pub trait Handler: Send {
    /// Begins to serve a call of a version that the program serves.
    fn begin(&mut self, call: &CallHeader<'_>, args: Reader<'_>) -> StartedCall;

    /// Looks at the head of a record that is long enough for its payload to be received in place: `args` is what
    /// has come of `args_len_bytes` of arguments.
    fn begin_large(
        &mut self,
        _call: &CallHeader<'_>,
        _args: &[u8],
        _args_len_bytes: usize,
    ) -> LargeRecord {
        Verdict::Ordinary
    }

    /// Lets go of what was in force before the rights changed: the client may not ask anything for hours.
    fn renew(&mut self) {}
}

/// What a handler says about a large record.
pub type LargeRecord = Verdict<Reply, BeginWithPayload>;

/// Begins a call whose payload has arrived; the second argument is what followed the payload in the record.
pub type BeginWithPayload = Box<dyn FnOnce(Bytes, &[u8]) -> StartedCall + Send>;

/// A call that has begun.
pub struct StartedCall {
    pub started: Started,
    /// Set if [`Program::answered`] is to hear of this call.
    pub procedure: Option<u32>,
    /// Bytes that the call holds until it is answered: its payload, or the data that it asked for.
    pub held_bytes: usize,
    /// Set if the call is to wait, and no other of the connection with it.
    pub delay: Option<Delay>,
    /// Who keeps account of it, if it is measured.
    pub account: Option<Account>,
}

/// Hears of calls of one client that were answered, beside [`Program::answered`].
pub trait AccountKeeper: Send + Sync {
    /// `what` is what the program has said of the call.
    fn answered(&self, what: [u64; 3], answered: &Answered<'_>);
}

/// What a program wants to hear again of a call, without memory of its own for each.
pub struct Account {
    pub keeper: Arc<dyn AccountKeeper>,
    pub what: [u64; 3],
}

/// What a call waits for before it begins. Where there is no memory left for calls that wait, a change begins at once, and
/// its reply waits instead.
pub struct Delay {
    pub until: DelayFuture,
    /// Bytes that the call holds meanwhile: its payload.
    pub held_bytes: usize,
}

impl StartedCall {
    pub fn new(started: Started) -> Self {
        Self {
            started,
            procedure: None,
            held_bytes: REQUEST_LEN_BYTES,
            delay: None,
            account: None,
        }
    }

    pub fn ready(reply: Reply) -> Self {
        Self::new(Started::Ready(reply))
    }

    /// Has the call reported to [`Program::answered`].
    pub fn measured(self, procedure: u32) -> Self {
        Self {
            procedure: Some(procedure),
            ..self
        }
    }
}

/// How far a call got.
pub enum Started {
    Ready(Reply),
    /// Changes nothing, so it may be dropped when nobody is left to hear the reply.
    Running(ReplyFuture),
    /// A change. Once begun it runs to its end, whether anybody hears of it or not.
    Changing(ReplyFuture),
}

/// A call that was answered.
pub struct Answered<'a> {
    pub peer: &'a Peer,
    pub procedure: u32,
    /// From the decoded call to its reply.
    pub elapsed: Duration,
    /// What the reply said of itself with [`Reply::failed`].
    pub failure: Option<u32>,
    /// Of a READ.
    pub data_len_bytes: usize,
}

/// How a call came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

/// A client, as one connection or datagram shows it.
pub struct Peer {
    pub transport: Transport,
    /// A client that came over IPv4 to an IPv6 socket has its IPv4 address.
    pub address: SocketAddr,
    /// Our address as the client sees it.
    pub local: SocketAddr,
    /// The number of the thread that serves it, for counters that only this thread writes.
    pub thread: usize,
    /// Another node of the cluster passes its calls on.
    pub is_forwarded: bool,
    /// In a cluster: what its calls are admitted under, for as long as its connection is there.
    pub admission: Option<Weak<Admission>>,
    metrics: Arc<ConnectionMetrics>,
}

impl Peer {
    pub(crate) fn new(
        transport: Transport,
        address: SocketAddr,
        local: SocketAddr,
        thread: usize,
        metrics: Arc<ConnectionMetrics>,
    ) -> Self {
        Self {
            transport,
            address: canonical(address),
            local: canonical(local),
            thread,
            is_forwarded: false,
            admission: None,
            metrics,
        }
    }

    /// The reply to a call of what is not served. Counted.
    pub fn unknown(&self, xid: u32, status: AcceptStatus) -> Reply {
        Events::count(&self.metrics.events.requests_unknown);
        Reply::failure(xid, status)
    }

    /// The reply to a call whose arguments cannot be read. Counted.
    pub fn garbage(&self, xid: u32) -> Reply {
        Events::count(&self.metrics.events.requests_garbage);
        Reply::failure(xid, AcceptStatus::GarbageArgs)
    }

    /// The reply to a call whose credential is not accepted. Counted.
    pub fn denied(&self, xid: u32, status: AuthStatus) -> Reply {
        self.rejected(xid, Rejection::Auth(status))
    }

    pub(crate) fn rejected(&self, xid: u32, rejection: Rejection) -> Reply {
        self.count_denied();
        Reply::rejection(xid, rejection)
    }

    /// Counts a call that asked for what this client may not use.
    pub fn count_denied(&self) {
        Events::count(&self.metrics.events.requests_denied);
    }

    /// Counts a call of a program that does not measure its procedures.
    pub fn count_other(&self) {
        Events::count(&self.metrics.events.requests_other);
    }
}

pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
