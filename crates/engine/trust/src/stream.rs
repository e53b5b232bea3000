//! A connection between two nodes, with the other end known: encrypted, or in clear with keyed checksums.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use cairn_base::NodeId;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;

use crate::clear::{Clear, KEY_LEN_BYTES, Keys};

/// The TLS library asks for 4 KiB at a time, a quarter of a record; the kernel is asked for several records.
const READ_AHEAD_LEN_BYTES: usize = 128 * 1024;
/// A peer whose host is gone is noticed after so long without a sign of it, also when nothing is to be sent.
const DEAD_AFTER: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;
/// Names what keys are derived for (RFC 8446, section 7.5).
const KEYS_LABEL: &[u8] = b"EXPORTER-cairn-clear";

/// What carries the bytes of TLS.
pub(crate) type Carrier = BufReader<TcpStream>;

/// Small messages are not held back, and a peer that is gone is noticed.
pub(crate) fn carrier(tcp: TcpStream) -> io::Result<Carrier> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(&tcp);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_INTERVAL)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_COUNT);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    Ok(BufReader::with_capacity(READ_AHEAD_LEN_BYTES, tcp))
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The node that its certificate names; none for who has none, which only joins.
    pub node: Option<NodeId>,
    pub address: SocketAddr,
}

/// A connection. Written bytes may wait for a flush.
pub struct NodeStream(Kind);

enum Kind {
    Encrypted(Box<tokio_rustls::TlsStream<Carrier>>),
    Clear(Clear<TcpStream>),
}

impl NodeStream {
    pub(crate) fn encrypted(stream: impl Into<tokio_rustls::TlsStream<Carrier>>) -> Self {
        Self(Kind::Encrypted(Box::new(stream.into())))
    }

    /// Goes on without encryption, with keys that both ends have from their handshake. The other end has to be silent
    /// meanwhile.
    ///
    /// Fails if it is not.
    pub(crate) fn into_clear(self) -> io::Result<Self> {
        let Kind::Encrypted(stream) = self.0 else {
            return Ok(self);
        };
        let mut keys = [0; 2 * KEY_LEN_BYTES];
        let exported = match &*stream {
            tokio_rustls::TlsStream::Client(stream) => {
                let connection = stream.get_ref().1;
                connection.export_keying_material(&mut keys, KEYS_LABEL, None)
            }
            tokio_rustls::TlsStream::Server(stream) => {
                let connection = stream.get_ref().1;
                connection.export_keying_material(&mut keys, KEYS_LABEL, None)
            }
        };
        exported.map_err(io::Error::other)?;
        let (client, server) = keys.split_at(KEY_LEN_BYTES);
        let key = |bytes: &[u8]| {
            let mut key = [0; KEY_LEN_BYTES];
            key.copy_from_slice(bytes);
            key
        };
        let (carrier, keys) = match *stream {
            tokio_rustls::TlsStream::Client(stream) => (
                stream.into_inner().0,
                Keys {
                    sent: key(client),
                    received: key(server),
                },
            ),
            tokio_rustls::TlsStream::Server(stream) => (
                stream.into_inner().0,
                Keys {
                    sent: key(server),
                    received: key(client),
                },
            ),
        };
        if !carrier.buffer().is_empty() {
            let early = "it said something before both ends had agreed";
            return Err(io::Error::new(io::ErrorKind::InvalidData, early));
        }
        Ok(Self(Kind::Clear(Clear::new(carrier.into_inner(), keys))))
    }

    pub fn is_encrypted(&self) -> bool {
        matches!(self.0, Kind::Encrypted(_))
    }
}

impl std::fmt::Debug for NodeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeStream")
            .field("is_encrypted", &self.is_encrypted())
            .finish_non_exhaustive()
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Encrypted(stream) => Pin::new(stream).poll_read(context, into),
            Kind::Clear(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Kind::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
            Kind::Clear(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Kind::Encrypted(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Kind::Clear(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.0 {
            Kind::Encrypted(stream) => stream.is_write_vectored(),
            Kind::Clear(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Encrypted(stream) => Pin::new(stream).poll_flush(context),
            Kind::Clear(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
            Kind::Clear(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
