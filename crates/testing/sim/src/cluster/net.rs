//! The network between nodes: TCP-like streams in simulated time.
//!
//! Owns: when bytes arrive, which paths are cut or slow, the fate of connections when a node dies. Must not know: the
//! contents. The engine's own connections (`cairn-remote`) run on it, with frames and deadlines.
//!
//! A stream keeps the order of its bytes, as TCP does. So messages are late, held back, or lost with their connection,
//! and arrive after their sender has given up. Messages of one connection do not overtake one another on the way, but
//! the disks serve them in parallel. No message arrives twice: nothing below a stream repeats bytes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cairn_base::NodeId;
use cairn_base::env::{BoxFuture, Clock};
use cairn_cluster::map::NodeRecord;
use cairn_owner::Dials;
use cairn_remote::{Connection, Dial};
use cairn_testkit::{ManualClock, Rng};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::exec::Trace;

/// Interval at which a dial to a node that does not answer is retried.
const DIAL_LOOK: Duration = Duration::from_millis(50);

/// Numbers from here on are clients, not nodes. Paths to them are never cut or slow.
pub const CLIENT_FIRST: NodeId = NodeId(1 << 64);

/// Purpose of a connection to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    Disks,
    Forward,
    Clients,
}

/// Accepts the connections to a port of a node.
pub type Listener = Arc<dyn Fn((NodeId, SocketAddr), Stream) + Send + Sync>;

/// Cheap to clone.
#[derive(Clone)]
pub struct Net {
    clock: ManualClock,
    trace: Trace,
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    /// Nodes whose machine is on, with their listeners.
    machines: BTreeMap<NodeId, BTreeMap<Port, Listener>>,
    /// Bytes from the first node to the second do not arrive before the path is restored.
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Additional delay of everything from or to a node.
    slow: BTreeMap<NodeId, Duration>,
    pipes: Vec<Weak<Pipe>>,
    sent_bytes: u64,
}

/// One direction of a connection.
struct Pipe {
    from: NodeId,
    to: NodeId,
    port: Port,
    net: Net,
    state: Mutex<PipeState>,
}

#[derive(Default)]
struct PipeState {
    /// Chunks with their arrival times.
    chunks: VecDeque<(Duration, Bytes)>,
    last_at: Duration,
    /// The stream ends after the last chunk.
    has_ended: bool,
    is_reader_gone: bool,
    /// One end lost its power: the other hears nothing of that.
    is_mute: bool,
    is_broken: bool,
    waiting: Option<Waker>,
}

impl PipeState {
    fn wake(&mut self) {
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}

impl Net {
    pub fn new(clock: ManualClock, trace: Trace, seed: u64) -> Self {
        Self {
            clock,
            trace,
            state: Arc::new(Mutex::new(State {
                rng: Rng::new(seed),
                machines: BTreeMap::new(),
                cut: BTreeSet::new(),
                slow: BTreeMap::new(),
                pipes: Vec::new(),
                sent_bytes: 0,
            })),
        }
    }

    /// The dialler of one node.
    pub fn dials(&self, from: NodeId) -> Arc<dyn Dials> {
        Arc::new(NodeDials {
            net: self.clone(),
            from,
        })
    }

    pub fn sent_bytes(&self) -> u64 {
        self.state.lock().sent_bytes
    }

    /// Turns a machine on: it answers data on old connections with a reset.
    pub fn power_on(&self, node: NodeId) {
        self.state.lock().machines.insert(node, BTreeMap::new());
        for pipe in self.pipes() {
            let mut state = pipe.state.lock();
            if pipe.is_of(node) && state.is_mute {
                state.is_broken = true;
                state.wake();
            }
        }
    }

    pub fn listen(&self, node: NodeId, port: Port, listener: Listener) {
        let mut state = self.state.lock();
        let ports = state.machines.entry(node).or_default();
        ports.insert(port, listener);
    }

    /// Closes a port: new connections are refused, and the present ones end.
    pub fn close(&self, port: Port) {
        let closed: Vec<Listener> = {
            let mut state = self.state.lock();
            let ports = state.machines.values_mut();
            ports.filter_map(|ports| ports.remove(&port)).collect()
        };
        drop(closed);
        for pipe in self.pipes() {
            if pipe.port == port {
                let mut state = pipe.state.lock();
                state.is_broken = true;
                state.wake();
            }
        }
    }

    /// Ends the process. `with_power`: the machine, too, and no peer hears that connections ended.
    pub fn down(&self, node: NodeId, with_power: bool) {
        // The listeners may hold connections, which end when they are dropped: not under this lock.
        let taken = {
            let mut state = self.state.lock();
            match with_power {
                true => state.machines.remove(&node),
                false => state.machines.insert(node, BTreeMap::new()),
            }
        };
        drop(taken);
        if with_power {
            let of_node = |pipe: &Arc<Pipe>| pipe.is_of(node);
            for pipe in self.pipes().into_iter().filter(of_node) {
                pipe.state.lock().is_mute = true;
            }
        }
    }

    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.state.lock().cut.insert((from, to));
    }

    pub fn mend(&self, from: NodeId, to: NodeId) {
        if self.state.lock().cut.remove(&(from, to)) {
            self.wake_all();
        }
    }

    pub fn slow(&self, node: NodeId, by: Option<Duration>) {
        let mut state = self.state.lock();
        match by {
            Some(by) => state.slow.insert(node, by),
            None => state.slow.remove(&node),
        };
    }

    /// Resets all connections between two nodes; bytes in flight are lost.
    pub fn break_all(&self, one: NodeId, other: NodeId) {
        for pipe in self.pipes() {
            if pipe.is_of(one) && pipe.is_of(other) {
                let mut state = pipe.state.lock();
                state.is_broken = true;
                state.wake();
            }
        }
    }

    /// Loses packets of some of the connections that a node has made: data sent over these arrives at `until` at the
    /// earliest. All other connections go on.
    pub fn stall(&self, from: NodeId, port: Port, until: Duration) {
        for pipe in self.pipes() {
            if pipe.from != from || pipe.port != port || !self.state.lock().rng.coin() {
                continue;
            }
            let mut state = pipe.state.lock();
            state.last_at = state.last_at.max(until);
            for (at, _) in &mut state.chunks {
                *at = (*at).max(until);
            }
        }
    }

    pub fn mend_all(&self) {
        {
            let mut state = self.state.lock();
            state.cut.clear();
            state.slow.clear();
        }
        self.wake_all();
    }

    fn wake_all(&self) {
        for pipe in self.pipes() {
            pipe.state.lock().wake();
        }
    }

    fn pipes(&self) -> Vec<Arc<Pipe>> {
        let mut state = self.state.lock();
        state.pipes.retain(|pipe| pipe.strong_count() > 0);
        state.pipes.iter().filter_map(Weak::upgrade).collect()
    }

    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.state.lock().cut.contains(&(from, to))
    }

    /// Delay of data that is sent now.
    fn delay(&self, from: NodeId, to: NodeId) -> Duration {
        let mut state = self.state.lock();
        let own = match state.rng.below(64) {
            0 => 1000 + state.rng.below(30_000),
            1..8 => 200 + state.rng.below(2000),
            _ => 20 + state.rng.below(180),
        };
        let is_of_client = from >= CLIENT_FIRST || to >= CLIENT_FIRST;
        let slow = [from, to]
            .iter()
            .filter_map(|node| state.slow.get(node).filter(|_| !is_of_client))
            .max();
        let slow = slow.copied().unwrap_or_default();
        // Different delays, or all data would arrive together.
        let jitter = slow.mul_f64(state.rng.below(1000) as f64 / 1000.0);
        Duration::from_micros(own) + slow + jitter
    }

    /// Number of bytes out of `len` that arrive together.
    fn segment_len(&self, len: usize) -> usize {
        let mut state = self.state.lock();
        match state.rng.below(3) {
            0 => 1 + state.rng.below(len as u64) as usize,
            _ => len,
        }
    }

    fn pipe(&self, from: NodeId, to: NodeId, port: Port) -> Arc<Pipe> {
        let pipe = Arc::new(Pipe {
            from,
            to,
            port,
            net: self.clone(),
            state: Mutex::default(),
        });
        self.state.lock().pipes.push(Arc::downgrade(&pipe));
        pipe
    }

    /// `from`: the dialling node, and the address that the other end sees.
    pub async fn dial(
        self,
        from: (NodeId, SocketAddr),
        to: NodeId,
        port: Port,
    ) -> io::Result<Stream> {
        let (node, _) = from;
        self.clock.sleep(self.delay(node, to)).await;
        loop {
            let listener = {
                let state = self.state.lock();
                let ports = state.machines.get(&to);
                ports.map(|ports| ports.get(&port).cloned())
            };
            let is_open = !self.is_cut(node, to) && !self.is_cut(to, node);
            match listener {
                // The dialler gives up by itself.
                None => {}
                Some(_) if !is_open => {}
                Some(None) => return Err(io::ErrorKind::ConnectionRefused.into()),
                Some(Some(listener)) => {
                    let (there, back) = (self.pipe(node, to, port), self.pipe(to, node, port));
                    let stream = |reads: &Arc<Pipe>, writes: &Arc<Pipe>| Stream {
                        reads: reads.clone(),
                        writes: writes.clone(),
                        timer: None,
                        unsent: BytesMut::new(),
                    };
                    listener(from, stream(&there, &back));
                    return Ok(stream(&back, &there));
                }
            }
            self.clock.sleep(DIAL_LOOK).await;
        }
    }

    /// As [`Self::dial`] between two nodes.
    pub async fn dial_node(self, from: NodeId, to: NodeId, port: Port) -> io::Result<Stream> {
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        self.dial((from, nowhere), to, port).await
    }
}

struct NodeDials {
    net: Net,
    from: NodeId,
}

impl Dials for NodeDials {
    fn to(&self, node: &NodeRecord) -> Arc<dyn Dial> {
        Arc::new(NodeDial {
            net: self.net.clone(),
            from: self.from,
            to: node.id,
        })
    }
}

struct NodeDial {
    net: Net,
    from: NodeId,
    to: NodeId,
}

impl Dial for NodeDial {
    fn dial(&self) -> BoxFuture<io::Result<Connection>> {
        let dialing = self.net.clone();
        let dialing = dialing.dial_node(self.from, self.to, Port::Disks);
        Box::pin(async move { dialing.await.map(Connection::new) })
    }
}

impl Pipe {
    fn is_of(&self, node: NodeId) -> bool {
        self.from == node || self.to == node
    }
}

/// One end of a connection.
pub struct Stream {
    reads: Arc<Pipe>,
    writes: Arc<Pipe>,
    timer: Option<BoxFuture<()>>,
    /// The cuts are drawn at the flush: the number of buffers depends on their addresses in memory.
    unsent: BytesMut,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let pipe = &this.reads;
        let net = &pipe.net;
        let mut state = pipe.state.lock();
        if state.is_broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        state.waiting = Some(context.waker().clone());
        if net.is_cut(pipe.from, pipe.to) {
            return Poll::Pending;
        }
        let now = net.clock.monotonic();
        let due = match state.chunks.front() {
            Some((at, _)) => Some(*at),
            None if state.has_ended && !state.is_mute => Some(state.last_at),
            None => None,
        };
        let Some(due) = due else {
            return Poll::Pending;
        };
        if due > now {
            let mut timer = net.clock.sleep(due - now);
            // Not over before the clock moves.
            let _ = timer.as_mut().poll(context);
            this.timer = Some(timer);
            return Poll::Pending;
        }
        // Nothing is left: the end.
        let Some((_, chunk)) = state.chunks.front_mut() else {
            return Poll::Ready(Ok(()));
        };
        let len = chunk.len().min(buf.remaining());
        buf.put_slice(&chunk[..len]);
        chunk.advance(len);
        if chunk.is_empty() {
            state.chunks.pop_front();
        }
        net.trace
            .note(&[pipe.from.0 as u64, pipe.to.0 as u64, len as u64]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let pipe = &this.writes;
        let state = pipe.state.lock();
        let is_refused = state.is_broken || state.is_reader_gone && !state.is_mute;
        if is_refused && !pipe.net.is_cut(pipe.from, pipe.to) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        this.unsent.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let pipe = &this.writes;
        while !this.unsent.is_empty() {
            let len = pipe.net.segment_len(this.unsent.len());
            let delay = pipe.net.delay(pipe.from, pipe.to);
            let mut state = pipe.state.lock();
            let at = (pipe.net.clock.monotonic() + delay).max(state.last_at);
            state.last_at = at;
            state
                .chunks
                .push_back((at, this.unsent.split_to(len).freeze()));
            state.wake();
            pipe.net.state.lock().sent_bytes += len as u64;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.writes.state.lock();
        state.has_ended = true;
        state.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        {
            let mut state = self.writes.state.lock();
            state.has_ended = true;
            state.wake();
        }
        let mut state = self.reads.state.lock();
        state.is_reader_gone = true;
        state.chunks.clear();
    }
}
