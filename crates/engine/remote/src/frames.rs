//! Frames on a connection: each payload is received where it stays, and sent from where it lies.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cairn_base::AlignedBuf;
use cairn_base::buf::BufPool;
use cairn_base::env::Clock;
use cairn_wire::{HEADER_LEN_BYTES, Header, Message, PAYLOAD_LEN_BYTES_MAX, WireError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::transport::{ReadHalf, WriteHalf};

/// Bytes that are asked for at once where a frame begins. What of them belongs to a payload is copied.
const READ_AHEAD_BYTES: usize = 32 << 10;
/// Bytes to read at once behind a frame with a large payload, as the next frame is likely to have one as well.
const READ_AHEAD_LARGE_BYTES: usize = 256;
const LARGE_BYTES: usize = 128 << 10;
/// Most pieces that one write takes.
const SLICES_MAX: usize = 64;
/// So many bytes are taken from the queue for one write, or one frame.
const BATCH_LEN_BYTES: usize = 1 << 20;

/// Buffers for payloads that come back when nobody uses them any more.
pub(crate) struct Buffers(Vec<BufPool>);

impl Buffers {
    /// Most bytes that are kept in buffers of one size.
    const FREE_BYTES_MAX: usize = 4 << 20;
    /// From here on to zero a new one costs more than to keep it.
    const KEPT_FROM_BYTES: usize = 16 << 10;

    pub(crate) fn new() -> Self {
        let doubled = std::iter::successors(Some(Self::KEPT_FROM_BYTES), |size| Some(size * 2));
        let sizes = doubled.flat_map(|size| [size, size / 2 * 3]);
        let sizes = sizes.take_while(|size| *size <= PAYLOAD_LEN_BYTES_MAX);
        Self(
            sizes
                .map(|size| BufPool::new(size, Self::FREE_BYTES_MAX / size))
                .collect(),
        )
    }

    /// Small ones are made to measure, and zeroed for that.
    fn take(&self, len_bytes: usize) -> AlignedBuf {
        // A third of it is left unused at most.
        let fits = |pool: &&BufPool| {
            let slot_len_bytes = pool.slot_len_bytes();
            len_bytes <= slot_len_bytes && len_bytes >= slot_len_bytes / 3 * 2
        };
        match self.0.iter().find(fits) {
            Some(pool) => pool.take(len_bytes),
            None => AlignedBuf::zeroed(len_bytes),
        }
    }
}

/// When something was heard of a peer last.
pub(crate) struct Heard {
    clock: Arc<dyn Clock>,
    at_nanos: AtomicU64,
}

impl Heard {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let heard = Self {
            clock,
            at_nanos: AtomicU64::new(0),
        };
        heard.now();
        Arc::new(heard)
    }

    fn now(&self) {
        let nanos = u64::try_from(self.clock.monotonic().as_nanos()).unwrap_or(u64::MAX);
        self.at_nanos.store(nanos, Ordering::Relaxed);
    }

    /// How long ago that was.
    pub(crate) fn age(&self) -> Duration {
        let at = Duration::from_nanos(self.at_nanos.load(Ordering::Relaxed));
        self.clock.monotonic().saturating_sub(at)
    }
}

/// Why no frame came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the connection ended in the middle of a frame")]
    CutShort,
    #[error("an invalid message came: {0}")]
    Wire(#[from] WireError),
}

/// A frame that came. Nobody has looked at the payload's checksum yet: that is for those who take it, each on its own.
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) message: Message,
    pub(crate) payload: Bytes,
}

pub(crate) struct FrameReader {
    from: ReadHalf,
    ahead: BytesMut,
    ahead_bytes: usize,
    buffers: Arc<Buffers>,
    heard: Arc<Heard>,
}

impl FrameReader {
    pub(crate) fn new(from: ReadHalf, buffers: Arc<Buffers>, heard: Arc<Heard>) -> Self {
        Self {
            from,
            ahead: BytesMut::new(),
            ahead_bytes: READ_AHEAD_BYTES,
            buffers,
            heard,
        }
    }

    /// The next frame; `None` when the connection ended behind the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if !self.has_ahead(HEADER_LEN_BYTES).await? {
            return match self.ahead.is_empty() {
                true => Ok(None),
                false => Err(FrameError::CutShort),
            };
        }
        let head = self.ahead.split_to(HEADER_LEN_BYTES);
        let head = head.first_chunk().ok_or(WireError::Truncated)?;
        let header = Header::decode(head)?;
        let body_len_bytes = header.body_len_bytes as usize;
        if !self.has_ahead(body_len_bytes).await? {
            return Err(FrameError::CutShort);
        }
        let message = header.message(&self.ahead.split_to(body_len_bytes))?;
        let payload_len_bytes = header.payload_len_bytes as usize;
        self.ahead_bytes = match payload_len_bytes >= LARGE_BYTES {
            true => READ_AHEAD_LARGE_BYTES,
            false => READ_AHEAD_BYTES,
        };
        let payload = match payload_len_bytes {
            0 => Bytes::new(),
            len_bytes => self.payload(len_bytes).await?,
        };
        Ok(Some(Frame {
            header,
            message,
            payload,
        }))
    }

    async fn payload(&mut self, len_bytes: usize) -> Result<Bytes, FrameError> {
        let mut payload = self.buffers.take(len_bytes);
        let mut filled = self.ahead.len().min(len_bytes);
        payload[..filled].copy_from_slice(&self.ahead.split_to(filled));
        while filled < len_bytes {
            match self.from.read(&mut payload[filled..]).await? {
                0 => return Err(FrameError::CutShort),
                read => filled += read,
            }
            self.heard.now();
        }
        Ok(payload.freeze())
    }

    /// Reads until that many bytes are ahead; false when the connection ended before.
    async fn has_ahead(&mut self, len_bytes: usize) -> Result<bool, FrameError> {
        while self.ahead.len() < len_bytes {
            let missing = len_bytes - self.ahead.len();
            let asked = missing.max(self.ahead_bytes);
            // The peer has to send before it gets more room than a read-ahead.
            self.ahead.reserve(asked.min(READ_AHEAD_BYTES));
            let mut limited = (&mut self.from).take(asked as u64);
            if limited.read_buf(&mut self.ahead).await? == 0 {
                return Ok(false);
            }
            self.heard.now();
        }
        Ok(true)
    }
}

/// Something to be released when a frame is about to be written.
pub(crate) type Guard = Box<dyn Send + Sync>;

pub(crate) struct Outgoing {
    pub(crate) head: Bytes,
    pub(crate) payload: Vec<Bytes>,
    pub(crate) guard: Option<Guard>,
}

/// Puts a message without payload into the queue. Nobody waits for those: who is gone needs none.
pub(crate) fn send_small(
    queue: &UnboundedSender<Outgoing>,
    message: &Message,
    guard: Option<Guard>,
) {
    match cairn_wire::encode(0, message, &[]) {
        Ok(head) => {
            let _ = queue.send(Outgoing {
                head: head.into(),
                payload: Vec::new(),
                guard,
            });
        }
        Err(error) => tracing::error!(%error, "a message for a peer is not sent"),
    }
}

/// Writes what comes until nobody can send any more, and then closes that direction.
pub(crate) async fn write_frames(
    mut to: WriteHalf,
    mut queue: UnboundedReceiver<Outgoing>,
) -> io::Result<()> {
    let mut pieces = VecDeque::new();
    while let Some(first) = queue.recv().await {
        let mut batch_len_bytes = put(&mut pieces, first);
        while batch_len_bytes < BATCH_LEN_BYTES
            && pieces.len() < SLICES_MAX
            && let Ok(next) = queue.try_recv()
        {
            batch_len_bytes += put(&mut pieces, next);
        }
        write_pieces(&mut to, &mut pieces).await?;
        to.flush().await?;
    }
    to.shutdown().await
}

fn put(pieces: &mut VecDeque<Bytes>, frame: Outgoing) -> usize {
    drop(frame.guard);
    let parts = std::iter::once(frame.head).chain(frame.payload);
    let mut len_bytes = 0;
    for part in parts.filter(|part| !part.is_empty()) {
        len_bytes += part.len();
        pieces.push_back(part);
    }
    len_bytes
}

async fn write_pieces(to: &mut WriteHalf, pieces: &mut VecDeque<Bytes>) -> io::Result<()> {
    while !pieces.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces.iter()) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        let mut written = to.write_vectored(&slices[..count]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while let Some(piece) = pieces.front_mut()
            && written >= piece.len()
        {
            written -= piece.len();
            pieces.pop_front();
        }
        if let Some(piece) = pieces.front_mut() {
            piece.advance(written);
        }
    }
    Ok(())
}
