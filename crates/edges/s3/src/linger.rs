//! The end of a connection whose client is still sending.
//!
//! Owns: a client whose request was refused early receives the response. The system resets a connection that is
//! closed with unread bytes in it, and a reset destroys the response that the client has not read yet (RFC 9112,
//! 9.6).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Maximum time for a client to stop sending, and to close the connection.
const LINGER_MAX: Duration = Duration::from_secs(30);
const STEP_LEN_BYTES: usize = 64 << 10;

/// Whether a body was left unread that its client may still be sending.
#[derive(Clone, Default)]
pub struct Unread(Arc<AtomicBool>);

impl Unread {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that first shuts down its own direction when it ends. If a body was left unread, it discards further
/// bytes, for at most [`LINGER_MAX`].
pub struct Lingering<S> {
    stream: S,
    unread: Unread,
    rest: Option<Rest>,
}

/// The buffer for discarded bytes.
struct Rest {
    space: Box<[u8]>,
    until: Pin<Box<Sleep>>,
}

impl<S> Lingering<S> {
    pub fn new(stream: S, unread: Unread) -> Self {
        Self {
            stream,
            unread,
            rest: None,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.rest.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            if !this.unread.is_set() {
                return Poll::Ready(Ok(()));
            }
        }
        let rest = this.rest.get_or_insert_with(|| Rest {
            space: vec![0; STEP_LEN_BYTES].into_boxed_slice(),
            until: Box::pin(tokio::time::sleep(LINGER_MAX)),
        });
        while rest.until.as_mut().poll(context).is_pending() {
            let mut space = ReadBuf::new(&mut rest.space);
            let read = ready!(Pin::new(&mut this.stream).poll_read(context, &mut space));
            // The client has closed it; after an error no client is left.
            if read.is_err() || space.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_still_comes_of_a_body_that_was_left_is_thrown_away() {
        let (here, mut client) = tokio::io::duplex(16);
        let unread = Unread::default();
        let mut stream = Lingering::new(here, unread.clone());
        unread.set();
        let ends = tokio::spawn(async move { stream.shutdown().await });
        // More than fits: without a reader this would wait for ever.
        client.write_all(&[1; 1000]).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        drop(client);
        ends.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_neither_sends_nor_closes_is_left_in_time() {
        let (here, client) = tokio::io::duplex(16);
        let unread = Unread::default();
        unread.set();
        let begun = tokio::time::Instant::now();
        Lingering::new(here, unread).shutdown().await.unwrap();
        assert!(begun.elapsed() >= LINGER_MAX);
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_waited_for_when_every_body_was_read() {
        let (here, client) = tokio::io::duplex(16);
        let begun = tokio::time::Instant::now();
        let mut stream = Lingering::new(here, Unread::default());
        stream.shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(client);
    }
}
