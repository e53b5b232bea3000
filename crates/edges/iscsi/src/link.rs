//! What the bytes of a connection go over.
//!
//! Owns: sockets, of initiators and of nodes that pass connections on. Must not know: PDUs.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use cairn_forward::Admission;
use tokio::net::{TcpStream, UnixStream};

/// How a connection came here.
pub(crate) struct Entry {
    /// Where the initiator came in.
    pub local: SocketAddr,
    /// The target port group of that place, if another node says so.
    pub group: Option<u16>,
    /// Of the first answer.
    pub status_number: u32,
    /// By another node.
    pub is_passed: bool,
    /// In a cluster: what its commands are admitted under.
    pub admission: Option<Arc<Admission>>,
}

impl Entry {
    pub fn of_listener(local: SocketAddr) -> Self {
        Self {
            local,
            group: None,
            status_number: 1,
            is_passed: false,
            admission: None,
        }
    }
}

/// Of no runtime: it can go to another thread.
pub(crate) enum FreeLink {
    Tcp(std::net::TcpStream),
    /// Leads to a stream of another node.
    Passed(std::os::unix::net::UnixStream),
}

impl FreeLink {
    /// Has the initiator connect again at once, when this is dropped.
    pub fn reset(&self) {
        match self {
            Self::Tcp(stream) => cairn_forward::reset(stream),
            Self::Passed(_) => {}
        }
    }

    /// Makes it one of the runtime that this is called in.
    pub fn attach(self) -> io::Result<Link> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                TcpStream::from_std(stream).map(Link::Tcp)
            }
            Self::Passed(stream) => {
                stream.set_nonblocking(true)?;
                UnixStream::from_std(stream).map(Link::Passed)
            }
        }
    }
}

pub(crate) enum Link {
    Tcp(TcpStream),
    /// Its other end is the stream of another node.
    Passed(UnixStream),
}

impl Link {
    pub fn detach(self) -> io::Result<FreeLink> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(FreeLink::Tcp),
            Self::Passed(stream) => stream.into_std().map(FreeLink::Passed),
        }
    }

    /// Has the initiator connect again at once, when this is dropped.
    pub fn reset(&self) {
        match self {
            Self::Tcp(stream) => cairn_forward::reset(stream),
            Self::Passed(_) => {}
        }
    }

    /// Who asked last is woken.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(context),
            Self::Passed(stream) => stream.poll_read_ready(context),
        }
    }

    /// Who asked last is woken.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(context),
            Self::Passed(stream) => stream.poll_write_ready(context),
        }
    }

    pub fn try_read_buf(&self, to: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(to),
            Self::Passed(stream) => stream.try_read_buf(to),
        }
    }

    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(slices),
            Self::Passed(stream) => stream.try_write_vectored(slices),
        }
    }
}
