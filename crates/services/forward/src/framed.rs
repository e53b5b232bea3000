//! Bytes to an owner, stamped with when they were sent.
//!
//! Owns: frames and the check of their age. Must not know: what the bytes are.
//!
//! Only the way to the owner is framed; answers come back as they are.
//!
//! ```text
//!  0..4 length of the bytes that follow   4..12 the beat that the sender had last   12.. the bytes
//! ```
//! Numbers are big-endian.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use cairn_base::env::Clock;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::link::{Beat, Beats, Link};
use crate::{FRESH_MAX, Stream};

const HEAD_LEN_BYTES: usize = 12;
pub const FRAME_LEN_BYTES_MAX: usize = 1 << 20;
/// Slices of one write, beside the head.
const SLICE_COUNT_MAX: usize = 15;

/// Why a stream ends: its bytes are too old, or a frame is too long.
#[derive(Debug, thiserror::Error)]
enum Stale {
    #[error("the owner of the volume gives no sign of life")]
    NoBeat,
    #[error("bytes of a client were delayed so long that it may have sent them to another node")]
    Old,
    #[error("a frame of {0} bytes")]
    Len(u32),
}

fn stale(why: Stale) -> io::Error {
    let kind = match why {
        Stale::Len(_) => io::ErrorKind::InvalidData,
        Stale::NoBeat | Stale::Old => io::ErrorKind::ConnectionAborted,
    };
    io::Error::new(kind, why)
}

/// The sending end of a stream.
pub struct Sender<S> {
    stream: S,
    link: Arc<Link>,
    head: [u8; HEAD_LEN_BYTES],
    /// How much of the head is sent; all of it between two frames.
    head_sent: usize,
    /// What of the frame is to be sent yet.
    rest_len_bytes: usize,
}

impl<S: Stream> Sender<S> {
    pub fn new(stream: S, link: Arc<Link>) -> Self {
        Self {
            stream,
            link,
            head: [0; HEAD_LEN_BYTES],
            head_sent: HEAD_LEN_BYTES,
            rest_len_bytes: 0,
        }
    }

    fn begin(&mut self, len_bytes: usize) -> io::Result<()> {
        let len_bytes = len_bytes.min(FRAME_LEN_BYTES_MAX);
        let beat = self.link.beat().ok_or_else(|| stale(Stale::NoBeat))?;
        self.head[..4].copy_from_slice(&(len_bytes as u32).to_be_bytes());
        self.head[4..].copy_from_slice(&beat.0.to_be_bytes());
        (self.head_sent, self.rest_len_bytes) = (0, len_bytes);
        Ok(())
    }
}

impl<S: Stream> AsyncRead for Sender<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl<S: Stream> AsyncWrite for Sender<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let slices = &slices[..slices.len().min(SLICE_COUNT_MAX)];
        let len_bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        if len_bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        if this.rest_len_bytes == 0 && this.head_sent == HEAD_LEN_BYTES {
            this.begin(len_bytes)?;
        }
        loop {
            let head = this.head;
            let mut all = [IoSlice::new(&[]); SLICE_COUNT_MAX + 1];
            let mut count = 0;
            if this.head_sent < HEAD_LEN_BYTES {
                all[0] = IoSlice::new(&head[this.head_sent..]);
                count = 1;
            }
            let mut room = this.rest_len_bytes;
            for slice in slices {
                let len = slice.len().min(room);
                if len > 0 {
                    all[count] = IoSlice::new(&slice[..len]);
                    count += 1;
                    room -= len;
                }
            }
            let written =
                ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, &all[..count]))?;
            if written == 0 {
                return Poll::Ready(Ok(0));
            }
            let of_head = written.min(HEAD_LEN_BYTES - this.head_sent);
            this.head_sent += of_head;
            let of_bytes = written - of_head;
            this.rest_len_bytes -= of_bytes;
            if of_bytes > 0 {
                return Poll::Ready(Ok(of_bytes));
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The owner's end of a stream.
pub struct Framed<S> {
    stream: S,
    beats: Beats,
    clock: Arc<dyn Clock>,
    head: [u8; HEAD_LEN_BYTES],
    head_len_bytes: usize,
    rest_len_bytes: usize,
    /// Of the frame that is being read.
    beat: Beat,
    /// When this end had last read all that was there: bytes that it reads now came later.
    drained_at: Duration,
    /// Since when this end waits for bytes; `None` while it has some to read.
    waits_since: Option<Duration>,
    /// The bytes that came last to this end while it waited.
    arrival: Option<Arrival>,
    bell: Arc<Bell>,
    /// Rings the bell.
    ringing: Waker,
}

/// Bytes that this end had waited for.
#[derive(Clone, Copy)]
struct Arrival {
    waited: Duration,
    at: Duration,
}

/// Wakes the reader of a stream, and notes when: the reader may have no time to read for long.
struct Bell {
    clock: Arc<dyn Clock>,
    reader: AtomicWaker,
    /// When the bell rang first since the reader looked.
    rang_at: Mutex<Option<Duration>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let now = self.clock.boottime();
        self.rang_at.lock().get_or_insert(now);
        self.reader.wake();
    }
}

impl<S: Stream> Framed<S> {
    pub fn new(stream: S, beats: Beats, clock: Arc<dyn Clock>) -> Self {
        let bell = Arc::new(Bell {
            clock: Arc::clone(&clock),
            reader: AtomicWaker::new(),
            rang_at: Mutex::new(None),
        });
        Self {
            stream,
            beats,
            drained_at: clock.boottime(),
            clock,
            head: [0; HEAD_LEN_BYTES],
            head_len_bytes: 0,
            rest_len_bytes: 0,
            beat: Beat(0),
            waits_since: None,
            arrival: None,
            ringing: Waker::from(Arc::clone(&bell)),
            bell,
        }
    }

    fn poll_inner(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let before = to.filled().len();
        self.bell.reader.register(cx.waker());
        let rang_at = self.bell.rang_at.lock().take();
        let mut ringing = Context::from_waker(&self.ringing);
        match Pin::new(&mut self.stream).poll_read(&mut ringing, to) {
            Poll::Pending => {
                let now = self.clock.boottime();
                self.drained_at = now;
                self.waits_since.get_or_insert(now);
                Poll::Pending
            }
            Poll::Ready(read) => {
                if let Some(since) = self.waits_since.take() {
                    let at = rang_at.unwrap_or_else(|| self.clock.boottime());
                    let waited = at.saturating_sub(since);
                    // A head may come in pieces, before its beat is known.
                    let earlier = self.arrival.map_or(Duration::ZERO, |piece| piece.waited);
                    let waited = waited.max(earlier);
                    self.arrival = Some(Arrival { waited, at });
                }
                Poll::Ready(read.map(|()| to.filled().len() - before))
            }
        }
    }

    /// Whether bytes of the frame came too late. Bytes that this end waited for came at a known time. They may have waited
    /// themselves at the other end as long as this end read nothing, and are late only if this end was waiting all the time.
    fn is_late(&mut self) -> bool {
        self.arrival.take().is_some_and(|arrival| {
            arrival.waited > FRESH_MAX && !self.beats.is_fresh(self.beat, arrival.at)
        })
    }

    /// Reads the head of the next frame; false at the end of the stream.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.head_len_bytes < HEAD_LEN_BYTES {
            let mut head = self.head;
            let mut to = ReadBuf::new(&mut head[self.head_len_bytes..]);
            let read = ready!(self.poll_inner(cx, &mut to))?;
            self.head = head;
            match (read, self.head_len_bytes) {
                (0, 0) => return Poll::Ready(Ok(false)),
                (0, _) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                _ => self.head_len_bytes += read,
            }
        }
        self.head_len_bytes = 0;
        let (len, beat) = self.head.split_at(4);
        let len = u32::from_be_bytes(len.try_into().unwrap_or_default());
        let beat = Beat(u64::from_be_bytes(beat.try_into().unwrap_or_default()));
        if len == 0 || len as usize > FRAME_LEN_BYTES_MAX {
            return Poll::Ready(Err(stale(Stale::Len(len))));
        }
        self.beat = beat;
        if !self.beats.is_fresh(beat, self.drained_at) || self.is_late() {
            return Poll::Ready(Err(stale(Stale::Old)));
        }
        self.rest_len_bytes = len as usize;
        Poll::Ready(Ok(true))
    }
}

impl<S: Stream> AsyncRead for Framed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.rest_len_bytes == 0 && !ready!(this.poll_head(cx))? {
            return Poll::Ready(Ok(()));
        }
        let room = to.remaining().min(this.rest_len_bytes);
        let unfilled = to.initialize_unfilled_to(room);
        let mut part = ReadBuf::new(unfilled);
        let read = ready!(this.poll_inner(cx, &mut part))?;
        if read == 0 && room > 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        if this.is_late() {
            return Poll::Ready(Err(stale(Stale::Old)));
        }
        to.advance(read);
        this.rest_len_bytes -= read;
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Framed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use cairn_base::planted::{self, Bug};
    use cairn_testkit::ManualClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn frame(len: u32, beat: Beat, bytes: &[u8]) -> Vec<u8> {
        [&len.to_be_bytes()[..], &beat.0.to_be_bytes(), bytes].concat()
    }

    #[tokio::test]
    async fn frames_are_read_whatever_they_are_cut_into_or_refused() {
        let clock = ManualClock::default();
        clock.advance(Duration::from_secs(100));
        let beats = Beats::new(Arc::new(clock.clone()), 3);
        let beat = beats.now();
        type Case = (&'static str, Vec<u8>, Result<&'static [u8], io::ErrorKind>);
        let cases: &[Case] = &[
            ("one", frame(3, beat, b"abc"), Ok(b"abc")),
            (
                "two",
                [frame(1, beat, b"a"), frame(2, beat, b"bc")].concat(),
                Ok(b"abc"),
            ),
            ("none", Vec::new(), Ok(b"")),
            (
                "empty",
                frame(0, beat, b""),
                Err(io::ErrorKind::InvalidData),
            ),
            (
                "too long",
                frame(FRAME_LEN_BYTES_MAX as u32 + 1, beat, b""),
                Err(io::ErrorKind::InvalidData),
            ),
            (
                "cut off",
                frame(3, beat, b"ab"),
                Err(io::ErrorKind::UnexpectedEof),
            ),
            (
                "head cut off",
                frame(3, beat, b"")[..7].to_vec(),
                Err(io::ErrorKind::UnexpectedEof),
            ),
            (
                "of another process",
                frame(3, Beats::new(Arc::new(clock.clone()), 4).now(), b"abc"),
                Err(io::ErrorKind::ConnectionAborted),
            ),
        ];
        for (name, bytes, want) in cases {
            for piece in [1, 5, 64] {
                let (mut near, far) = tokio::io::duplex(piece);
                let bytes = bytes.clone();
                let writing = tokio::spawn(async move {
                    // The reader may refuse it in the middle.
                    let _ = near.write_all(&bytes).await;
                });
                let mut framed = Framed::new(far, beats.clone(), Arc::new(clock.clone()));
                let mut read = Vec::new();
                let got = framed.read_to_end(&mut read).await;
                let got = got.map(|_| &read[..]).map_err(|error| error.kind());
                assert_eq!(got, *want, "{name} in pieces of {piece}");
                drop(framed);
                writing.await.unwrap();
            }
        }
    }

    /// Bytes that lie here because this node is busy are not old; those that come late are.
    #[tokio::test]
    async fn what_came_late_is_refused_and_what_was_left_lying_is_not() {
        for (is_waited_for, want) in [(true, false), (false, true)] {
            let clock = ManualClock::default();
            clock.advance(Duration::from_secs(100));
            let beats = Beats::new(Arc::new(clock.clone()), 3);
            let (mut near, far) = tokio::io::duplex(64);
            let mut framed = Framed::new(far, beats.clone(), Arc::new(clock.clone()));
            let bytes = frame(1, beats.now(), b"a");
            if !is_waited_for {
                near.write_all(&bytes).await.unwrap();
            }
            clock.advance(FRESH_MAX * 2);
            if is_waited_for {
                let mut byte = [0];
                let mut reading = Box::pin(framed.read(&mut byte));
                let polled = std::future::poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx)));
                assert!(polled.await.is_pending());
                drop(reading);
                near.write_all(&bytes).await.unwrap();
            }
            assert_eq!(framed.read_u8().await.is_ok(), want);
        }
    }

    fn poll_once<T>(reading: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        reading.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// The reader waits all the time, and looks only when it is woken. What stood still is the way of the bytes.
    #[tokio::test]
    async fn bytes_that_stood_still_on_their_way_are_refused_at_each_place() {
        let clock = ManualClock::default();
        clock.advance(Duration::from_secs(100));
        let beats = Beats::new(Arc::new(clock.clone()), 3);
        let len = HEAD_LEN_BYTES + 3;
        for (in_time, wait, want) in (0..len).flat_map(|in_time| {
            [
                (in_time, FRESH_MAX * 2, false),
                (in_time, FRESH_MAX / 2, true),
            ]
        }) {
            let (mut near, far) = tokio::io::duplex(64);
            let mut framed = Framed::new(far, beats.clone(), Arc::new(clock.clone()));
            let mut read = [0; 3];
            let mut reading = Box::pin(framed.read_exact(&mut read));
            // It may wait for its client for as long as it likes before.
            assert!(poll_once(reading.as_mut()).is_pending());
            clock.advance(Duration::from_secs(3600));
            let bytes = frame(3, beats.now(), b"abc");
            near.write_all(&bytes[..in_time]).await.unwrap();
            assert!(poll_once(reading.as_mut()).is_pending());
            clock.advance(wait);
            near.write_all(&bytes[in_time..]).await.unwrap();
            assert_eq!(reading.await.is_ok(), want, "{in_time} {wait:?}");
        }
    }

    #[tokio::test]
    async fn bytes_that_came_in_time_are_read_late_by_a_reader_that_is_busy() {
        let clock = ManualClock::default();
        clock.advance(Duration::from_secs(100));
        let beats = Beats::new(Arc::new(clock.clone()), 3);
        let (mut near, far) = tokio::io::duplex(64);
        let mut framed = Framed::new(far, beats.clone(), Arc::new(clock.clone()));
        let mut byte = [0];
        let mut reading = Box::pin(framed.read(&mut byte));
        assert!(poll_once(reading.as_mut()).is_pending());
        clock.advance(FRESH_MAX * 2);
        near.write_all(&frame(1, beats.now(), b"a")).await.unwrap();
        // The reader is woken, and has no time.
        clock.advance(FRESH_MAX * 2);
        assert!(reading.await.is_ok());
        // The other end can send the rest of a frame only when this end reads again.
        let rest = frame(2, beats.now(), b"bc");
        near.write_all(&rest[..HEAD_LEN_BYTES]).await.unwrap();
        clock.advance(FRESH_MAX * 2);
        let mut two = [0; 2];
        let mut reading = Box::pin(framed.read_exact(&mut two));
        assert!(poll_once(reading.as_mut()).is_pending());
        near.write_all(&rest[HEAD_LEN_BYTES..]).await.unwrap();
        assert!(reading.await.is_ok());
    }

    #[test]
    fn old_bytes_that_are_taken_are_noticed() {
        let test: fn() = bytes_that_stood_still_on_their_way_are_refused_at_each_place;
        assert!(planted::is_noticed_by(Bug::ForwardOldBytesTaken, test));
    }
}
