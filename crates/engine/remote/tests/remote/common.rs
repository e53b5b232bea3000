//! What the tests share: nodes with a disk each, and wires between them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use cairn_base::disk::Disk;
use cairn_base::env::{BoxFuture, Env};
use cairn_base::{AlignedBuf, DiskId, Epoch, NodeId, PoolId, SegmentId, Timestamp, VolumeId};
use cairn_remote::{
    Connection, Dial, Ended, Identity, Peer, PeerSettings, Peers, RemoteDisk, ServeSettings, Server,
};
use cairn_shard::{ShardDisk, ShardName, ShardService, ShardSettings, ShardWrite};
use cairn_testkit::{MemDisk, TestWorld};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;

pub const POOL: PoolId = PoolId(0xabc);
pub const CLIENT: NodeId = NodeId(1);
pub const SERVER: NodeId = NodeId(2);
pub const CAPACITY: u64 = 256 << 10;
pub const EPOCH: Epoch = Epoch(3);
pub const VOLUME: VolumeId = VolumeId(1);

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

/// Lets all tasks run until each waits for something: there are few hops between any two of them.
pub async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

pub fn name(segment: u64) -> ShardName {
    ShardName {
        volume: VOLUME,
        segment: SegmentId(segment),
        index: 0,
    }
}

pub fn fill(len_bytes: usize, byte: u8) -> Bytes {
    let mut buf = AlignedBuf::zeroed(len_bytes);
    buf.fill(byte);
    buf.freeze()
}

pub fn write(offset: u64, len_bytes: usize, byte: u8) -> Vec<ShardWrite> {
    vec![ShardWrite {
        offset,
        parts: vec![fill(len_bytes, byte)],
    }]
}

pub async fn shard_disk(disk: Arc<MemDisk>, id: u128) -> Arc<ShardDisk> {
    let disk: Arc<dyn Disk> = disk;
    if ShardDisk::identity(&disk).await.unwrap().is_none() {
        let now = Timestamp::new(1_700_000_000, 5);
        let formatted = ShardDisk::format(disk.clone(), POOL, DiskId(id), now).await;
        formatted.unwrap();
    }
    let opened = ShardDisk::open(disk, POOL, ShardSettings::default()).await;
    opened.unwrap()
}

/// Passes so many more bytes in either direction, and then ends.
pub struct Cut {
    inner: DuplexStream,
    /// Nothing passes any more, and nobody is told.
    is_held: Arc<AtomicBool>,
    left_bytes: Arc<AtomicUsize>,
}

impl Cut {
    fn allowed(&self) -> usize {
        self.left_bytes.load(Ordering::SeqCst)
    }

    fn used(&self, bytes: usize) {
        self.left_bytes.fetch_sub(bytes, Ordering::SeqCst);
    }
}

fn broken() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl AsyncRead for Cut {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.allowed() == 0 {
            return Poll::Ready(Err(broken()));
        }
        if self.is_held.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        let mut part = vec![0; into.remaining().min(self.allowed())];
        let mut limited = ReadBuf::new(&mut part);
        let polled = Pin::new(&mut self.inner).poll_read(context, &mut limited);
        self.used(limited.filled().len());
        into.put_slice(limited.filled());
        polled
    }
}

impl AsyncWrite for Cut {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let allowed = self.allowed();
        if allowed == 0 {
            return Poll::Ready(Err(broken()));
        }
        let part = &bytes[..bytes.len().min(allowed)];
        let polled = Pin::new(&mut self.inner).poll_write(context, part);
        if let Poll::Ready(Ok(written)) = &polled {
            self.used(*written);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// A wire to a server. Each connection may pass as many bytes as it says at that moment.
pub struct Wire {
    pub server: Arc<Server>,
    env: Env,
    pub bytes_max: AtomicUsize,
    /// What the newest connection may still pass.
    pub newest: Mutex<Arc<AtomicUsize>>,
    is_held: Arc<AtomicBool>,
    ended: mpsc::UnboundedSender<Ended>,
}

impl Wire {
    /// Lets nothing through to the client any more.
    pub fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }
}

impl Dial for Wire {
    fn dial(&self) -> BoxFuture<io::Result<Connection>> {
        let (near, far) = tokio::io::duplex(64 << 10);
        let left_bytes = Arc::new(AtomicUsize::new(self.bytes_max.load(Ordering::SeqCst)));
        *self.newest.lock() = left_bytes.clone();
        let server = self.server.clone();
        let ended = self.ended.clone();
        let serving = async move {
            let _ = ended.send(server.serve(Connection::new(far)).await);
        };
        self.env.spawner.spawn("server", Box::pin(serving));
        let near = Cut {
            inner: near,
            is_held: self.is_held.clone(),
            left_bytes,
        };
        Box::pin(std::future::ready(Ok(Connection::new(near))))
    }
}

/// A node with one disk, and another that uses it.
pub struct Pair {
    pub world: TestWorld,
    pub disk: Arc<MemDisk>,
    pub local: Arc<ShardDisk>,
    pub wire: Arc<Wire>,
    pub peer: Peer,
    pub ended: mpsc::UnboundedReceiver<Ended>,
}

pub fn identity(node: NodeId) -> Identity {
    Identity {
        cluster: POOL,
        node,
    }
}

impl Pair {
    pub async fn new() -> Self {
        Self::with(ServeSettings::default(), Arc::new(())).await
    }

    pub async fn with(settings: ServeSettings, peers: Arc<dyn Peers>) -> Self {
        Self::of(SERVER, settings, peers).await
    }

    pub async fn of(node: NodeId, settings: ServeSettings, peers: Arc<dyn Peers>) -> Self {
        let world = TestWorld::new(1);
        let disk = MemDisk::new("mem", 64 << 20);
        let local = shard_disk(disk.clone(), 9).await;
        let served: Vec<Arc<dyn ShardService>> = vec![local.clone()];
        let env = world.env.clone();
        let server = Server::new(
            env.clone(),
            identity(node),
            settings,
            Arc::new(served),
            peers,
        );
        let (ended, endings) = mpsc::unbounded_channel();
        let wire = Arc::new(Wire {
            server,
            env: env.clone(),
            bytes_max: AtomicUsize::new(usize::MAX),
            newest: Mutex::default(),
            is_held: Arc::default(),
            ended,
        });
        let peer = Self::dial(&env, &wire, CLIENT, node);
        peer.connected().await;
        Self {
            world,
            disk,
            local,
            wire,
            peer,
            ended: endings,
        }
    }

    /// One more client of the same server.
    pub fn another(env: &Env, wire: &Arc<Wire>, own: NodeId) -> Peer {
        Self::dial(env, wire, own, SERVER)
    }

    fn dial(env: &Env, wire: &Arc<Wire>, own: NodeId, node: NodeId) -> Peer {
        let dial = wire.clone();
        let settings = PeerSettings::default();
        Peer::start(env.clone(), identity(own), node, "two", dial, settings)
    }

    pub fn remote(&self) -> Arc<RemoteDisk> {
        self.peer.disks().remove(0)
    }

    /// Cuts the connection, and lets the next ones pass as many bytes.
    pub fn cut(&self) {
        self.wire.newest.lock().store(0, Ordering::SeqCst);
    }
}
