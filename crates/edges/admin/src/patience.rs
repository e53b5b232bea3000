//! A connection that does not wait for ever for a peer that takes nothing.
//!
//! Owns: the time limit of writes. Must not know: HTTP. What a peer sends has its own limits, in
//! the server; without this one, clients that never read their answers would hold all connections.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use cairn_https::{Watch, Watched};
use tokio::time::{Sleep, sleep};

/// Fails a write with `TimedOut` once the peer has taken nothing for a while.
pub type Patient<S> = Watched<S, Patience>;

/// A stream whose peer has to take something within `timeout`.
pub fn patient<S>(stream: S, timeout: Duration) -> Patient<S> {
    let watch = Patience {
        timeout,
        waiting: None,
    };
    Watched::new(stream, watch)
}

/// Watches how long writes wait.
pub struct Patience {
    timeout: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    fn limited<T>(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.waiting = None;
            return progress;
        }
        let timeout = self.timeout;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if waiting.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.waiting = None;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Watch for Patience {
    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        self.limited(context, progress)
    }

    fn flushed(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.limited(context, progress)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(15);

    // The clock stands still and jumps to the next timer when all wait: nothing takes time here.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (near, mut far) = duplex(4);
        let mut patient = patient(near, TIMEOUT);
        patient.write_all(b"1234").await.unwrap();
        let error = patient.write_all(b"5").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        // One that takes a little within the time keeps the connection, however long it all takes.
        let writer = tokio::spawn(async move { patient.write_all(&[7; 100]).await });
        for _ in 0..104 {
            sleep(TIMEOUT - Duration::from_secs(1)).await;
            far.read_u8().await.unwrap();
        }
        writer.await.unwrap().unwrap();
    }
}
