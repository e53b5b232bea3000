//! One connection to an RPC server: calls go out pipelined, replies come back in any order.
//!
//! Owns: the socket, reconnecting, retransmission with the same xid, the limits of both.
//! Must not know: NFS, except how a READ reply begins (so that its data can be received in place).
//!
//! A caller encodes its call and hands it to the connection's one task over a bounded channel; the
//! task gathers whatever waits into one `writev`. There is no task, timer or thread per call.

mod driver;
mod socket;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::AlignedBuf;
use cairn_codec_rpc::rpc::OpaqueAuth;
use cairn_codec_rpc::{CallHeader, Encode, Writer, xdr};
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;

/// Calls that wait in the channel of one connection before their callers do.
const QUEUED_CALLS_MAX: usize = 64;

/// Numbers of a connection that people tune.
#[derive(Clone, Debug)]
pub struct ConnectionSettings {
    /// Calls on the wire at one time; more wait.
    pub in_flight_max: usize,
    /// How long to wait for a TCP connection.
    pub connect_timeout: Duration,
    /// A call without a reply for so long makes the connection suspect: it is closed, and what is
    /// in flight is sent again on a new one.
    pub reply_timeout: Duration,
    /// How often one call is sent before its caller gets an error.
    pub transmissions_max: u32,
    /// How long to try to reach a server that was there before.
    pub reconnect_for: Duration,
    /// The pause between such tries, doubled each time up to `reconnect_pause_max`.
    pub reconnect_pause: Duration,
    pub reconnect_pause_max: Duration,
    /// Try a source port below 1024 first: servers may take root's word only from there.
    pub reserved_port: bool,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            in_flight_max: 128,
            connect_timeout: Duration::from_secs(10),
            reply_timeout: Duration::from_secs(60),
            transmissions_max: 5,
            reconnect_for: Duration::from_secs(60),
            reconnect_pause: Duration::from_millis(50),
            reconnect_pause_max: Duration::from_secs(2),
            reserved_port: rustix::process::geteuid().is_root(),
        }
    }
}

/// Which procedure a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    /// For messages.
    pub name: &'static str,
}

/// What came back for a call that the server let in and answered.
pub(crate) struct Reply {
    /// The results, or what is in front of the data if `data` holds it.
    pub results: Bytes,
    /// The caller's buffer. `Received`: the READ data is in it and not in `results`.
    pub buffer: Option<ReplyBuffer>,
}

pub(crate) enum ReplyBuffer {
    Received(AlignedBuf),
    Untouched(AlignedBuf),
}

type ReplySender = oneshot::Sender<Result<Reply, Error>>;

/// A call as it goes to the task. Kept until the reply is there, to be sent again if need be.
pub(crate) struct Call {
    xid: u32,
    name: &'static str,
    /// Fragment header, RPC header, arguments up to the payload.
    head: Bytes,
    /// Sent behind the head, with padding; often empty.
    payload: Bytes,
    buffer: Option<AlignedBuf>,
    reply_to: ReplySender,
}

/// A handle to one connection; when all are gone the connection closes.
#[derive(Clone)]
pub(crate) struct Connection {
    calls: mpsc::Sender<Call>,
    shared: Arc<ConnectionCore>,
}

struct ConnectionCore {
    /// The machine's credential, encoded; empty for AUTH_NONE.
    auth_body: Vec<u8>,
    xid_next: AtomicU32,
    waiting_count: AtomicUsize,
}

/// Counts a waiting call for as long as it lives, however the wait ends.
struct WaitingGuard<'a>(&'a AtomicUsize);

impl<'a> WaitingGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Connects now, so that an unreachable server is told at once, and starts the task.
    pub async fn open(
        address: std::net::SocketAddr,
        auth_body: Vec<u8>,
        settings: ConnectionSettings,
    ) -> Result<Self, Error> {
        let stream = socket::connect(address, &settings).await?;
        let (calls, queue) = mpsc::channel(QUEUED_CALLS_MAX);
        tokio::spawn(driver::run(address, stream, queue, settings));
        Ok(Self {
            calls,
            shared: Arc::new(ConnectionCore {
                auth_body,
                xid_next: AtomicU32::new(socket::random_u32()),
                waiting_count: AtomicUsize::new(0),
            }),
        })
    }

    /// Calls that have no reply yet, those that wait for their turn included.
    pub fn waiting_count(&self) -> usize {
        self.shared.waiting_count.load(Ordering::Relaxed)
    }

    /// One call: `arguments`, then `payload` as the body of an opaque whose length is already in
    /// the arguments. READ data goes into `buffer` if there is one.
    pub async fn call(
        &self,
        target: Target,
        arguments: &impl Encode,
        payload: Bytes,
        buffer: Option<AlignedBuf>,
    ) -> Result<Reply, Error> {
        let _waiting = WaitingGuard::new(&self.shared.waiting_count);
        let (reply_to, reply) = oneshot::channel();
        let xid = self.shared.xid_next.fetch_add(1, Ordering::Relaxed);
        let call = Call {
            xid,
            name: target.name,
            head: self.encode(xid, target, arguments, payload.len()),
            payload,
            buffer,
            reply_to,
        };
        let gone = |()| Error::Closed;
        self.calls.send(call).await.map_err(|_| gone(()))?;
        reply.await.map_err(|_| gone(()))?
    }

    fn encode(
        &self,
        xid: u32,
        target: Target,
        arguments: &impl Encode,
        payload_len_bytes: usize,
    ) -> Bytes {
        let auth_body = &self.shared.auth_body;
        let header = CallHeader {
            xid,
            program: target.program,
            version: target.version,
            procedure: target.procedure,
            credential: if auth_body.is_empty() {
                OpaqueAuth::NONE
            } else {
                OpaqueAuth::sys(auth_body)
            },
            verifier: OpaqueAuth::NONE,
        };
        let mut head = Vec::with_capacity(256 + auth_body.len());
        let mut to = Writer::new(&mut head);
        let start = to.begin_record();
        to.put(&header);
        to.put(arguments);
        to.finish_record(start, xdr::padded_len(payload_len_bytes));
        head.into()
    }
}
