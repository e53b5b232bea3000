//! Calls on volumes that another node of the cluster owns.
//!
//! Owns: one stream for each owner that a client's connection has calls for, which reply belongs to which call, calls that
//! wait for an owner. Must not know: how nodes reach one another ([`Forward`]), what calls mean.
//!
//! A call whose stream breaks, or whose owner does not own the volume any more, is sent again to the next owner with its
//! number, as the client itself would send it again. So is one that this node was doing itself when it lost the volume.
//! A change goes to an owner only for a second after it was read: its client may have turned to another node by then. Later
//! the client's connection is closed, and the client, if it is there, sends the change again. Until an owner serves the
//! volume the connection stays: closing it would only make the client wait longer.
//! What nobody answers in time is told to come later: clients wait, and see no error.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cairn_base::{NodeId, VolumeId};
use cairn_codec_nfs::v3;
use cairn_codec_rpc::rpc::CALL_HEADER_LEN_BYTES_MAX;
use cairn_codec_rpc::{CallHeader, FragmentHeader, Writer};
use cairn_exports::{Exports, VolumeLocation};
use cairn_forward::{Admission, ConnectError, Forward, Service, Stream};
use cairn_rpc_server::intake::RECORD_LEN_BYTES_MAX;
use cairn_rpc_server::{Peer, Reply, ReplyFuture};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::forward_metrics::{ForwardMetrics, PassedCounts, WaitingCall};

/// A call is held for so long for an owner that answers it.
const HOLD_MAX: Duration = Duration::from_secs(30);
/// An owner that does not answer, or says that it is none, is asked again after so long, unless the table changes.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// A reply has at most as many bytes as a request, and the attributes before its data.
const REPLY_LEN_BYTES_MAX: u32 = RECORD_LEN_BYTES_MAX + 4096;
/// Calls that wait are sent together up to so many bytes.
const BATCH_LEN_BYTES: usize = 256 << 10;
const SMALL_PART_BYTES_MAX: usize = 2048;
/// Pieces of one write: what a stream to an owner takes for one frame.
const SLICE_COUNT_MAX: usize = 15;
/// Where a reply says whether it was accepted (RFC 5531, section 9): transaction id, REPLY, MSG_ACCEPTED, verifier, status.
const ACCEPTED_WORDS: [u32; 2] = [1, 0];
const SYSTEM_ERROR: u32 = 5;

/// A call as it came, without its record mark.
pub struct ForwardedCall {
    xid: u32,
    parts: Vec<Bytes>,
    /// When it had been read, by the clock that counts suspended time.
    read_at: Duration,
    /// An owner may have made it.
    was_sent: AtomicBool,
}

impl ForwardedCall {
    /// `args`: all that followed the header, in order. `read_at`: [`Routes::now`] when these were there.
    pub fn new(
        call: &CallHeader<'_>,
        args: impl IntoIterator<Item = Bytes>,
        read_at: Duration,
    ) -> Self {
        let mut head = Vec::with_capacity(CALL_HEADER_LEN_BYTES_MAX);
        Writer::new(&mut head).put(call);
        let parts = [Bytes::from(head)].into_iter().chain(args);
        Self {
            xid: call.xid,
            parts: parts.filter(|part| !part.is_empty()).collect(),
            read_at,
            was_sent: AtomicBool::new(false),
        }
    }

    /// Appends arguments that came later.
    pub fn and(mut self, args: impl IntoIterator<Item = Bytes>, read_at: Duration) -> Self {
        let args = args.into_iter().filter(|part| !part.is_empty());
        self.parts.extend(args);
        self.read_at = read_at;
        self
    }

    /// Notes that this node, as an owner, may have begun the call.
    pub fn begun(self) -> Self {
        self.was_sent.store(true, Ordering::Release);
        self
    }

    fn len_bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }
}

/// The ways of one client's connection to the owners of volumes.
pub struct Routes {
    forward: Arc<Forward>,
    exports: Arc<Exports>,
    metrics: Arc<ForwardMetrics>,
    peer: Arc<Peer>,
    /// At most one for each node of the cluster.
    ways: Mutex<BTreeMap<NodeId, Arc<Way>>>,
}

/// The way to one owner. Locked while a stream is made, so that of all calls that wait for one a single one makes it.
type Way = tokio::sync::Mutex<WayState>;

#[derive(Default)]
struct WayState {
    stream: Option<Arc<Owner>>,
    /// When the owner was not reached.
    failed: Option<Instant>,
}

/// A stream to an owner.
struct Owner {
    queue: mpsc::UnboundedSender<Vec<Bytes>>,
    waiting: Arc<Mutex<Waiting>>,
}

/// Calls that have no reply yet; `None` once the stream has ended.
type Waiting = Option<HashMap<u32, Vec<oneshot::Sender<Bytes>>>>;

impl Routes {
    pub fn new(
        forward: Arc<Forward>,
        exports: Arc<Exports>,
        metrics: Arc<ForwardMetrics>,
        peer: Arc<Peer>,
    ) -> Arc<Self> {
        Arc::new(Self {
            forward,
            exports,
            metrics,
            peer,
            ways: Mutex::default(),
        })
    }

    /// When a call that is decoded now was read.
    pub fn now(&self) -> Duration {
        self.forward.now()
    }

    /// Passes a call on and waits for its reply. `later` is the reply that tells the client to come later. A change that an
    /// owner may have is not answered so: the client would send it under a new number, and the one that was sent could
    /// still be made after what is acknowledged meanwhile. Its connection is closed instead, and it sends the same again.
    pub fn pass(
        self: &Arc<Self>,
        volume: VolumeId,
        call: ForwardedCall,
        is_change: bool,
        later: Reply,
    ) -> ReplyFuture {
        let routes = Arc::clone(self);
        Box::pin(async move {
            // It is gone only with the connection.
            let Some(admission) = routes.peer.admission.as_ref().and_then(Weak::upgrade) else {
                return Reply::none();
            };
            let deadline = Instant::now() + HOLD_MAX;
            let counts = routes.metrics.of(volume);
            let asked = routes.ask_until_answered(&admission, volume, &call, is_change, &counts);
            let answered = tokio::select! {
                biased;
                // Nobody hears the reply, and what is held up by this call must not wait for an owner.
                _ = admission.ended() => Answer::ConnectAgain,
                answered = timeout_at(deadline, asked) => answered.unwrap_or(Answer::Later),
            };
            if !matches!(answered, Answer::Record(_)) {
                counts.note_unanswered();
            }
            match answered {
                Answer::Record(record) => match says_later(&record) {
                    true => Reply::relayed(record).not_now(),
                    false => Reply::relayed(record),
                },
                Answer::Later if !is_change || !call.was_sent.load(Ordering::Acquire) => {
                    later.not_now()
                }
                Answer::Later | Answer::ConnectAgain => {
                    admission.end_late();
                    Reply::none()
                }
            }
        })
    }

    async fn ask_until_answered(
        self: &Arc<Self>,
        admission: &Arc<Admission>,
        volume: VolumeId,
        call: &ForwardedCall,
        is_change: bool,
        counts: &Arc<PassedCounts>,
    ) -> Answer {
        let mut changed = self.exports.subscribe();
        let begun = Instant::now();
        // There from the moment on when it turns out that it has to wait.
        let mut held = None;
        loop {
            changed.borrow_and_update();
            let place = self.exports.current().place(volume);
            let owner = match place {
                VolumeLocation::On(owner) => owner,
                // It came here meanwhile: the server of this node answers as the owner.
                VolumeLocation::Here => self.forward.own(),
                // The client asks another node sooner if this one does not keep it.
                VolumeLocation::Nowhere if self.exports.is_ending() => return Answer::Later,
                VolumeLocation::Nowhere => {
                    held.get_or_insert_with(|| WaitingCall::new(counts, begun));
                    // An error means that the server ends.
                    if changed.changed().await.is_err() {
                        return Answer::Later;
                    }
                    continue;
                }
                VolumeLocation::Gone => return Answer::Later,
            };
            let mut asked_at = Instant::now();
            let asked = async {
                let served = self.forward.until_served(volume, owner, admission).await;
                if let Err(ConnectError::Ended(_)) = served {
                    return OwnerReply::TooLate;
                }
                if served.is_err() {
                    return OwnerReply::NoAnswer;
                }
                let stream = match self.stream(owner, admission).await {
                    Ok(stream) => stream,
                    Err(ConnectError::Ended(_)) => return OwnerReply::TooLate,
                    Err(_) => return OwnerReply::NoAnswer,
                };
                // Last: from here on it is on its way, and its bytes bear the time.
                if is_change && !admission.is_fresh(call.read_at) {
                    return OwnerReply::TooLate;
                }
                asked_at = Instant::now();
                match stream.ask(call).await {
                    Some(record) => OwnerReply::Answered(record),
                    None => OwnerReply::NoAnswer,
                }
            };
            let mut asked = Box::pin(asked);
            let reply = loop {
                tokio::select! {
                    biased;
                    reply = &mut asked => break reply,
                    // One that hangs is not waited for once another owns the volume.
                    Ok(()) = changed.changed() => {
                        if self.exports.current().place(volume) != place {
                            break OwnerReply::NoAnswer;
                        }
                    }
                }
            };
            drop(asked);
            match reply {
                OwnerReply::Answered(record) if !is_from_none(&record) => {
                    // It did not wait while the owner that answers did its work.
                    if let Some(held) = held {
                        held.end_at(asked_at);
                    }
                    counts.note_answered(asked_at.elapsed());
                    return Answer::Record(record);
                }
                OwnerReply::TooLate => return Answer::ConnectAgain,
                OwnerReply::Answered(_) | OwnerReply::NoAnswer => {}
            }
            held.get_or_insert_with(|| WaitingCall::new(counts, begun));
            if self.exports.is_ending() {
                return Answer::Later;
            }
            if self.exports.current().place(volume) == place {
                // A new table may come, or the owner may have been about to serve.
                let _ = timeout(ASK_AGAIN, changed.changed()).await;
            }
        }
    }

    async fn stream(
        &self,
        owner: NodeId,
        admission: &Arc<Admission>,
    ) -> Result<Arc<Owner>, ConnectError> {
        let way = Arc::clone(self.ways.lock().entry(owner).or_default());
        let mut way = way.lock().await;
        if let Some(stream) = &way.stream
            && stream.waiting.lock().is_some()
        {
            return Ok(Arc::clone(stream));
        }
        way.stream = None;
        // What the call before this one found out holds for this one, too.
        if way.failed.is_some_and(|at| at.elapsed() < ASK_AGAIN) {
            return Err(io::Error::from(io::ErrorKind::NotConnected).into());
        }
        // A call that is given up meanwhile is none that found out anything.
        match self.forward.connect(owner, Service::Rpc, admission).await {
            Ok(stream) => {
                let stream = Owner::start(stream);
                (way.stream, way.failed) = (Some(Arc::clone(&stream)), None);
                Ok(stream)
            }
            Err(error) => {
                tracing::debug!(%owner, %error, "the owner of a volume is not reached");
                way.failed = Some(Instant::now());
                Err(error)
            }
        }
    }
}

/// What came of asking one owner.
enum OwnerReply {
    Answered(Bytes),
    /// It does not answer, or not in time.
    NoAnswer,
    /// The call is too old to be done, or the client's connection has ended.
    TooLate,
}

/// What came of a call.
enum Answer {
    Record(Bytes),
    /// The volume is gone, or nobody serves it for long.
    Later,
    /// The client has to connect again, and to send again what it still wants.
    ConnectAgain,
}

impl Owner {
    fn start(stream: Box<dyn Stream>) -> Arc<Self> {
        let (from, to) = tokio::io::split(stream);
        let (queue, queued) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (written, read) = (Arc::clone(&waiting), Arc::clone(&waiting));
        tokio::spawn(async move {
            let writing = write_all(to, queued);
            let reading = read_all(from, &read);
            let error = tokio::select! {
                ended = writing => ended,
                ended = reading => ended,
            };
            if let Err(error) = error {
                tracing::debug!(%error, "a stream of forwarded calls ended");
            }
            // Who waits asks elsewhere.
            *written.lock() = None;
        });
        Arc::new(Self { queue, waiting })
    }

    /// `None`: the stream ended before the reply came.
    async fn ask(&self, call: &ForwardedCall) -> Option<Bytes> {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting.lock();
            let those = waiting.as_mut()?.entry(call.xid).or_default();
            those.push(answer);
            those.len() == 1
        };
        call.was_sent.store(true, Ordering::Release);
        // The client sent it twice: one reply serves both.
        if is_first {
            let mark = FragmentHeader {
                last: true,
                // At most one record of a client.
                len_bytes: call.len_bytes() as u32,
            };
            let mark = Bytes::copy_from_slice(&mark.to_bytes());
            let parts = [mark].into_iter().chain(call.parts.iter().cloned());
            self.queue.send(parts.collect()).ok()?;
        }
        answered.await.ok()
    }
}

/// Calls that are sent at once. Small ones are copied together: pieces cost more than bytes there.
#[derive(Default)]
struct Batch {
    pieces: VecDeque<Bytes>,
    /// Small parts behind the last piece.
    small: BytesMut,
    len_bytes: usize,
}

impl Batch {
    fn put(&mut self, part: Bytes) {
        self.len_bytes += part.len();
        if part.len() <= SMALL_PART_BYTES_MAX {
            return self.small.extend_from_slice(&part);
        }
        self.end_small();
        self.pieces.push_back(part);
    }

    fn end_small(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push_back(self.small.split().freeze());
        }
    }

    async fn send(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        self.end_small();
        while !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            let mut written = to.write_vectored(&slices[..count]).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            while let Some(piece) = self.pieces.front_mut() {
                let taken = written.min(piece.len());
                piece.advance(taken);
                written -= taken;
                if !piece.is_empty() {
                    break;
                }
                self.pieces.pop_front();
            }
        }
        self.len_bytes = 0;
        to.flush().await
    }
}

async fn write_all(
    mut to: impl AsyncWrite + Unpin,
    mut queued: mpsc::UnboundedReceiver<Vec<Bytes>>,
) -> io::Result<()> {
    let mut batch = Batch::default();
    while let Some(first) = queued.recv().await {
        first.into_iter().for_each(|part| batch.put(part));
        while batch.len_bytes < BATCH_LEN_BYTES
            && let Ok(next) = queued.try_recv()
        {
            next.into_iter().for_each(|part| batch.put(part));
        }
        batch.send(&mut to).await?;
    }
    to.shutdown().await
}

async fn read_all(mut from: ReadHalf<Box<dyn Stream>>, waiting: &Mutex<Waiting>) -> io::Result<()>
where
    ReadHalf<Box<dyn Stream>>: AsyncRead,
{
    let bad = |problem: &'static str| io::Error::new(io::ErrorKind::InvalidData, problem);
    loop {
        let mut mark = [0; FragmentHeader::LEN_BYTES];
        from.read_exact(&mut mark).await?;
        let mark = FragmentHeader::from_bytes(mark);
        if !mark.last || mark.len_bytes > REPLY_LEN_BYTES_MAX || mark.len_bytes < 4 {
            return Err(bad("the owner's reply is no record"));
        }
        let len_bytes = mark.len_bytes as usize;
        let mut record = BytesMut::with_capacity(len_bytes);
        let mut rest = (&mut from).take(len_bytes as u64);
        while record.len() < len_bytes {
            if rest.read_buf(&mut record).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let xid = word(&record, 0).ok_or_else(|| bad("the owner's reply is empty"))?;
        let record = record.freeze();
        let asked = waiting
            .lock()
            .as_mut()
            .and_then(|waiting| waiting.remove(&xid));
        for answer in asked.into_iter().flatten() {
            // The caller may have gone.
            let _ = answer.send(record.clone());
        }
    }
}

fn word(record: &[u8], index: usize) -> Option<u32> {
    let bytes = record.get(index * 4..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*bytes))
}

/// Whether a reply says that the node does not own the volume (see [`not_owner`]).
fn is_from_none(record: &[u8]) -> bool {
    let verifier_words = word(record, 4).map_or(0, |len_bytes| len_bytes.div_ceil(4) as usize);
    let is_accepted = [word(record, 1), word(record, 2)] == ACCEPTED_WORDS.map(Some);
    is_accepted && word(record, 5 + verifier_words) == Some(SYSTEM_ERROR)
}

/// Whether a reply of an NFS procedure says NFS3ERR_JUKEBOX (RFC 1813, section 2.6). Such a reply is kept for nobody.
fn says_later(record: &[u8]) -> bool {
    let verifier_words = word(record, 4).map_or(0, |len_bytes| len_bytes.div_ceil(4) as usize);
    let is_accepted = [word(record, 1), word(record, 2)] == ACCEPTED_WORDS.map(Some);
    let is_done = word(record, 5 + verifier_words) == Some(0);
    let status = word(record, 6 + verifier_words);
    is_accepted && is_done && status == Some(v3::ErrorStatus::JukeBox.number())
}

/// What a node answers to a forwarded call on a volume that it does not own. No procedure answers so otherwise.
pub fn not_owner(xid: u32) -> Reply {
    Reply::failure(xid, cairn_codec_rpc::AcceptStatus::SystemError).not_now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_no_owner_says_so_and_nobody_else() {
        let record = |reply: Reply| reply.head[FragmentHeader::LEN_BYTES..].to_vec();
        assert!(is_from_none(&record(not_owner(7))));
        assert!(!is_from_none(&record(Reply::success(7, &()))));
        let garbage = Reply::failure(7, cairn_codec_rpc::AcceptStatus::GarbageArgs);
        assert!(!is_from_none(&record(garbage)));
        for len_bytes in 0..24 {
            assert!(
                !is_from_none(&record(not_owner(7))[..len_bytes]),
                "{len_bytes}"
            );
        }
    }

    proptest::proptest! {
        /// Whatever calls are cut into, and however much of them is taken at once, they come as they were put.
        #[test]
        fn calls_are_sent_as_they_are_queued(
            calls in proptest::collection::vec(proptest::collection::vec(0usize..6000, 1..5), 1..30),
            room in 1usize..20_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut number = 0u8;
            let parts = |call: &Vec<usize>| -> Vec<Bytes> {
                call.iter().map(|len| { number = number.wrapping_add(1); Bytes::from(vec![number; *len]) }).collect()
            };
            let calls: Vec<Vec<Bytes>> = calls.iter().map(parts).collect();
            let want: Vec<u8> = calls.iter().flatten().flatten().copied().collect();
            let (queue, queued) = mpsc::unbounded_channel();
            for call in calls {
                queue.send(call).unwrap();
            }
            drop(queue);
            let got = runtime.block_on(async {
                let (near, mut far) = tokio::io::duplex(room);
                let mut got = Vec::new();
                let (sent, read) = tokio::join!(write_all(near, queued), far.read_to_end(&mut got));
                sent.unwrap();
                read.unwrap();
                got
            });
            proptest::prop_assert!(got == want);
        }
    }
}
