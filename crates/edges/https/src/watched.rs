//! A stream around another, with something that watches what goes through.
//!
//! Owns: that all bytes go through unchanged. Must not know: the purpose of the watching.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Sees how reads and writes of a stream go on, and may let them fail.
pub trait Watch: Unpin {
    /// Reads from the stream.
    fn read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(stream).poll_read(context, to)
    }

    /// Sees how a write went.
    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>>;

    /// Sees how a flush or a shutdown went, which is asked for also when there is nothing to send.
    fn flushed(
        &mut self,
        _context: &mut Context<'_>,
        progress: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        progress
    }
}

/// A stream that is watched.
pub struct Watched<S, W> {
    stream: S,
    watch: W,
}

impl<S, W> Watched<S, W> {
    pub fn new(stream: S, watch: W) -> Self {
        Self { stream, watch }
    }
}

impl<S: AsyncRead + Unpin, W: Watch> AsyncRead for Watched<S, W> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.watch.read(&mut this.stream, context, to)
    }
}

impl<S: AsyncWrite + Unpin, W: Watch> AsyncWrite for Watched<S, W> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let progress = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.watch.wrote(context, progress)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let progress = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.watch.wrote(context, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let progress = Pin::new(&mut this.stream).poll_flush(context);
        this.watch.flushed(context, progress)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let progress = Pin::new(&mut this.stream).poll_shutdown(context);
        this.watch.flushed(context, progress)
    }
}
