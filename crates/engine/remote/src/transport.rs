//! Connections: two streams of bytes, whatever carries them.

use std::io;
use std::net::SocketAddr;

use cairn_base::NodeId;
use cairn_base::env::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

pub(crate) type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection to a peer: what it sends, and what is sent to it.
pub struct Connection {
    pub(crate) from: ReadHalf,
    pub(crate) to: WriteHalf,
    pub(crate) node: Option<NodeId>,
}

impl Connection {
    /// Of any stream; TCP has [`Self::of_tcp`].
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (from, to) = tokio::io::split(stream);
        Self {
            from: Box::new(from),
            to: Box::new(to),
            node: None,
        }
    }

    /// The peer has proved that it is this node. Who serves the connection refuses it if it says that it is another one.
    #[must_use]
    pub fn of_node(mut self, node: NodeId) -> Self {
        self.node = Some(node);
        self
    }

    /// Of a TCP connection: small requests are not held back.
    pub fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (from, to) = stream.into_split();
        Ok(Self {
            from: Box::new(from),
            to: Box::new(to),
            node: None,
        })
    }
}

/// Makes connections to one peer.
pub trait Dial: Send + Sync + 'static {
    fn dial(&self) -> BoxFuture<io::Result<Connection>>;
}

/// Plain TCP.
pub struct TcpDial(pub SocketAddr);

impl Dial for TcpDial {
    fn dial(&self) -> BoxFuture<io::Result<Connection>> {
        let address = self.0;
        Box::pin(async move { Connection::of_tcp(TcpStream::connect(address).await?) })
    }
}
