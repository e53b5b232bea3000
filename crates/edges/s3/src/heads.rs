//! Time limits for the head of a request, and for a response that a client takes too slowly.
//!
//! Owns: the time from the first byte of a head to its last, and from the connection to the first request; the
//! minimum progress of a response while the server waits for the client. Must not know: HTTP. The server reports when
//! a head is complete, and when its request was answered. The server also limits the rest between two requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use cairn_https::{Watch, Watched};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::pace::Pace;

/// Whether a request is running: then the read bytes are its body. The number grows with each begin and each end. So
/// it is odd during a request, and shows a request without any read bytes as well.
#[derive(Clone, Default)]
pub struct RequestPhase(Arc<AtomicU64>);

impl RequestPhase {
    /// The head of a request is complete.
    pub fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// The response is complete, but for bytes that are still to be sent.
    pub fn end(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// A stream that fails with `TimedOut` when a head takes too long.
pub type Heads<S> = Watched<S, HeadTime>;

/// A stream whose heads must be complete within `timeout` after they began.
pub fn timed<S>(stream: S, timeout: Duration, under_way: RequestPhase) -> Heads<S> {
    let watch = HeadTime {
        timeout,
        under_way,
        seen: 0,
        has_begun: true,
        ends: None,
        pace: Pace::default(),
        blocked: None,
    };
    Watched::new(stream, watch)
}

/// Watches the time of heads.
pub struct HeadTime {
    timeout: Duration,
    under_way: RequestPhase,
    /// The number at the last read.
    seen: u64,
    /// Whether a part of a head was read. At first the whole connection counts.
    has_begun: bool,
    /// The deadline of the head.
    ends: Option<Pin<Box<Sleep>>>,
    /// The progress of the client's reads.
    pace: Pace,
    /// Since when the client takes nothing, and the time of the next check.
    blocked: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl HeadTime {
    /// Fails when the present head is too late.
    fn poll_late(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let deadline = Instant::now() + self.timeout;
        let ends = self
            .ends
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        match ends.as_mut().poll(context) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the head of a request took too long",
            )),
        }
    }
}

impl HeadTime {
    /// Fails when the client takes a response too slowly: it occupies memory meanwhile.
    fn paced(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let too_slow = || {
            let why = "the client takes the answer too slowly";
            Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
        };
        if let Poll::Ready(wrote) = progress {
            let blocked = self.blocked.take();
            let waited = blocked.map_or(Duration::ZERO, |(since, _)| since.elapsed());
            return match wrote {
                Ok(len) if !self.pace.note(waited, len as u64) => too_slow(),
                wrote => Poll::Ready(wrote),
            };
        }
        loop {
            let left = self.pace.left();
            let begin = || (Instant::now(), Box::pin(sleep(left)));
            let (since, ends) = self.blocked.get_or_insert_with(begin);
            if ends.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let waited = since.elapsed();
            self.blocked = None;
            if !self.pace.note(waited, 0) {
                return too_slow();
            }
        }
    }
}

impl Watch for HeadTime {
    fn read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let number = self.under_way.0.load(Ordering::Acquire);
        if number != self.seen {
            (self.seen, self.has_begun, self.ends) = (number, false, None);
        }
        let before = to.filled().len();
        let progress = Pin::new(stream).poll_read(context, to);
        if number % 2 == 1 {
            return progress;
        }
        let has_more = progress.is_ready() && to.filled().len() > before;
        self.has_begun |= has_more;
        // The end of the connection, or an error, is passed through.
        if self.has_begun && (progress.is_pending() || has_more) {
            self.poll_late(context)?;
        }
        progress
    }

    /// While a response is being sent, no head is expected, though a part of the next one may have come already.
    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if progress.is_ready() {
            self.ends = None;
        }
        self.paced(context, progress)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);
    const ALMOST: Duration = Duration::from_secs(4);
    const HOUR: Duration = Duration::from_secs(3600);

    fn heads() -> (Heads<DuplexStream>, RequestPhase, DuplexStream) {
        let (near, far) = duplex(64);
        let under_way = RequestPhase::default();
        (timed(near, TIMEOUT, under_way.clone()), under_way, far)
    }

    async fn read(heads: &mut Heads<DuplexStream>) -> Result<u8, io::ErrorKind> {
        heads.read_u8().await.map_err(|error| error.kind())
    }

    // The clock stands still and jumps to the next timer when all tasks wait: nothing takes time here.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_or_a_byte_now_and_then_is_given_up() {
        let (mut silent, _, _far) = heads();
        let begun = Instant::now();
        assert_eq!(read(&mut silent).await, Err(io::ErrorKind::TimedOut));
        assert_eq!(begun.elapsed(), TIMEOUT);

        let (mut slow, _, mut far) = heads();
        let sending = tokio::spawn(async move {
            while far.write_u8(7).await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        let mut count = 0;
        let ended = loop {
            match read(&mut slow).await {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(ended, io::ErrorKind::TimedOut);
        assert!((4..=6).contains(&count), "{count}");
        sending.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_and_a_rest_between_requests_may_take_long() {
        let (mut heads, under_way, mut far) = heads();
        sleep(ALMOST).await;
        far.write_all(b"h").await.unwrap();
        assert_eq!(read(&mut heads).await, Ok(b'h'));
        under_way.begin();
        let sending = tokio::spawn(async move {
            sleep(HOUR).await;
            far.write_all(b"b").await.unwrap();
            far
        });
        assert_eq!(read(&mut heads).await, Ok(b'b'));
        let mut far = sending.await.unwrap();
        under_way.end();
        heads.write_all(b"answer").await.unwrap();
        let sending = tokio::spawn(async move {
            sleep(HOUR).await;
            far.write_all(b"h").await.unwrap();
            far
        });
        assert_eq!(read(&mut heads).await, Ok(b'h'), "it rested");
        // The next head has begun, and does not end.
        let _far = sending.await.unwrap();
        assert_eq!(read(&mut heads).await, Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_an_answer_too_slowly_is_given_up() {
        // Nothing at all, and a byte now and then: the pipe between holds less than the response.
        for is_silent in [true, false] {
            let (mut heads, _, mut far) = heads();
            let begun = Instant::now();
            let taking = tokio::spawn(async move {
                loop {
                    sleep(Duration::from_secs(10)).await;
                    if !is_silent && far.read_u8().await.is_err() {
                        return;
                    }
                }
            });
            let wrote = heads.write_all(&[7; 4096]).await;
            assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::TimedOut);
            let waited = begun.elapsed();
            assert!(waited >= Duration::from_secs(50) && waited <= Duration::from_secs(130));
            taking.abort();
        }
        // A client that takes all of it at once may have any amount.
        let (mut heads, _, mut far) = heads();
        let taking = tokio::spawn(async move {
            let mut space = vec![0; 1 << 20];
            far.read_exact(&mut space).await.map(drop)
        });
        heads.write_all(&vec![7; 1 << 20]).await.unwrap();
        taking.await.unwrap().unwrap();
    }

    /// A client may send the next head before it has the response.
    #[tokio::test(start_paused = true)]
    async fn a_head_that_comes_early_has_its_time_after_the_answer() {
        let (mut heads, under_way, mut far) = heads();
        far.write_all(b"h").await.unwrap();
        assert_eq!(read(&mut heads).await, Ok(b'h'));
        under_way.begin();
        under_way.end();
        far.write_all(b"n").await.unwrap();
        assert_eq!(read(&mut heads).await, Ok(b'n'));
        for _ in 0..10 {
            sleep(ALMOST).await;
            heads.write_all(b"answer").await.unwrap();
            far.read_exact(&mut [0; 6]).await.unwrap();
        }
        far.write_all(b"e").await.unwrap();
        assert_eq!(read(&mut heads).await, Ok(b'e'));
        let begun = Instant::now();
        assert_eq!(read(&mut heads).await, Err(io::ErrorKind::TimedOut));
        assert!(begun.elapsed() <= TIMEOUT);
    }
}
