//! The other side: takes requests off a connection and does them on the disks of this node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_base::env::Env;
use cairn_base::{DiskId, Epoch, NodeId};
use cairn_shard::{Copied, HiddenId, ShardError, ShardService, ShardWrite};
use cairn_wire::{
    Fault, Hello, Limits, Message, PAYLOAD_LEN_BYTES_MAX, PROTOCOL_VERSION, Reply, Request,
    ShardRange, Welcome,
};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::breaker::Breaker;
use crate::convert;
use crate::frames::{
    Buffers, Frame, FrameReader, Guard, Heard, Outgoing, send_small, write_frames,
};
use crate::link::{CREDIT_BYTES, credits};
use crate::transport::Connection;
use crate::{HEARTBEAT, Identity, TICK};

/// Disks count hidden shards from 0 and never get there.
pub(crate) const NUMBER_OF_NONE: u64 = u64::MAX;
/// Most names in one reply.
const LIST_COUNT_MAX: usize = 1 << 16;
/// A peer that is cut off has so long to take the reason.
const GOODBYE_DEADLINE: Duration = Duration::from_secs(1);

/// The disks that a node serves; they may come and go.
pub trait Served: Send + Sync + 'static {
    fn disks(&self) -> Vec<Arc<dyn ShardService>>;

    fn disk(&self, id: DiskId) -> Option<Arc<dyn ShardService>> {
        self.disks().into_iter().find(|disk| disk.id() == id)
    }
}

impl Served for Vec<Arc<dyn ShardService>> {
    fn disks(&self) -> Vec<Arc<dyn ShardService>> {
        self.clone()
    }

    fn disk(&self, id: DiskId) -> Option<Arc<dyn ShardService>> {
        self.iter().find(|disk| disk.id() == id).cloned()
    }
}

/// The disks of other nodes, from which this one copies.
pub trait Peers: Send + Sync + 'static {
    fn disk(&self, node: NodeId, disk: DiskId) -> Option<Arc<dyn ShardService>>;
}

/// Knows nobody: a node that wants a copy brings the bytes.
impl Peers for () {
    fn disk(&self, _node: NodeId, _disk: DiskId) -> Option<Arc<dyn ShardService>> {
        None
    }
}

/// Settings of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeSettings {
    /// Of one connection, for one disk.
    pub requests_max: u32,
    /// Bytes under way of one connection, for one disk; at least one whole payload.
    pub bytes_max: u64,
    /// For the first message.
    pub hello_deadline: Duration,
    /// Heard nothing for so long: the connection is given up, and what it had begun is cleaned up.
    pub dead_after: Duration,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            requests_max: 256,
            bytes_max: 64 << 20,
            hello_deadline: Duration::from_secs(5),
            dead_after: Duration::from_secs(10),
        }
    }
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The node at the other end; `None`: it did not say.
    pub peer: Option<NodeId>,
    pub reason: String,
    /// The peer did what no peer does.
    pub is_misbehaviour: bool,
}

/// Serves the disks of this node to others.
pub struct Server {
    env: Env,
    own: Identity,
    settings: ServeSettings,
    served: Arc<dyn Served>,
    peers: Arc<dyn Peers>,
    buffers: Arc<Buffers>,
}

/// Why a connection ends.
enum End {
    /// It ended, or the peer did not answer.
    Gone(String),
    /// It must end: the peer is told why.
    CutOff(String),
    /// It is no peer of ours: it is told why.
    Refused(String),
}

impl Server {
    pub fn new(
        env: Env,
        own: Identity,
        settings: ServeSettings,
        served: Arc<dyn Served>,
        peers: Arc<dyn Peers>,
    ) -> Arc<Self> {
        let bytes_max = settings.bytes_max.max(PAYLOAD_LEN_BYTES_MAX as u64);
        let requests_max = settings.requests_max.max(1);
        Arc::new(Self {
            env,
            own,
            settings: ServeSettings {
                requests_max,
                bytes_max,
                ..settings
            },
            served,
            peers,
            buffers: Arc::new(Buffers::new()),
        })
    }

    /// Serves one connection until it ends, and cleans up behind it: when this returns, nothing that was asked for on
    /// it is under way any more, and what it had not published is gone.
    pub async fn serve(self: Arc<Self>, connection: Connection) -> Ended {
        let clock = Arc::clone(&self.env.clock);
        let heard = Heard::new(Arc::clone(&clock));
        let buffers = Arc::clone(&self.buffers);
        let proved = connection.node;
        let mut reader = FrameReader::new(connection.from, buffers, Arc::clone(&heard));
        let (queue, queued) = mpsc::unbounded_channel();
        let breaker = Arc::new(Breaker::default());
        let (written, all_written) = tokio::sync::oneshot::channel::<()>();
        let writer = {
            let breaker = Arc::clone(&breaker);
            async move {
                let writing = Box::pin(write_frames(connection.to, queued));
                let broken = Box::pin(breaker.broken());
                if let Either::Left((Err(error), _)) = select(writing, broken).await {
                    breaker.break_off(format!("sending: {error}"));
                }
                drop(written);
            }
        };
        self.env.spawner.spawn("serving writer", Box::pin(writer));

        let hello = {
            let deadline = clock.sleep(self.settings.hello_deadline);
            match select(Box::pin(self.hello(&mut reader, proved)), deadline).await {
                Either::Left((hello, _)) => hello,
                Either::Right(_) => Err(End::Gone("it did not say hello".to_owned())),
            }
        };
        let (peer, end, session) = match hello {
            Ok(hello) => {
                let session = Arc::new(Session::new(queue.clone()));
                self.welcome(&queue);
                let end = self.work(&session, &mut reader, &heard, &breaker).await;
                (Some(hello.from), end, Some(session))
            }
            Err(end) => (None, end, None),
        };
        let (mut reason, goodbye, mut is_misbehaviour) = match end {
            End::Gone(reason) => (reason, None, false),
            End::Refused(reason) => (reason.clone(), Some(reason), false),
            End::CutOff(reason) => (reason.clone(), Some(reason), true),
        };
        match goodbye {
            Some(reason) => {
                // Behind it nothing is sent, so that the writer ends with it.
                send_small(&queue, &Message::Goodbye { reason }, None);
                drop(queue);
                if let Some(session) = &session {
                    session.close();
                }
                let deadline = clock.sleep(GOODBYE_DEADLINE);
                select(all_written, deadline).await;
            }
            None => drop(queue),
        }
        breaker.break_off(reason.clone());
        drop(reader);
        if let Some(session) = session {
            session.close();
            self.clean_up(&session).await;
            if let Some(shown) = session.cut_off.lock().take() {
                (reason, is_misbehaviour) = (shown, true);
            }
        }
        if is_misbehaviour {
            tracing::warn!(?peer, reason, "a peer is cut off");
        } else {
            tracing::info!(?peer, reason, "the connection of a peer ended");
        }
        Ended {
            peer,
            reason,
            is_misbehaviour,
        }
    }

    /// `proved`: the node that the peer is, where its connection says so.
    async fn hello(&self, reader: &mut FrameReader, proved: Option<NodeId>) -> Result<Hello, End> {
        let frame = next(reader).await?;
        let Message::Hello(hello) = frame.message else {
            return Err(End::CutOff("it did not begin with a hello".to_owned()));
        };
        if !(hello.version_min..=hello.version_max).contains(&PROTOCOL_VERSION) {
            return Err(End::Refused(format!(
                "this node speaks version {PROTOCOL_VERSION}, not {} to {}; use the same version",
                hello.version_min, hello.version_max
            )));
        }
        if (hello.cluster, hello.to) != (self.own.cluster, self.own.node) {
            return Err(End::Refused(format!(
                "this is node {} of cluster {}, not node {} of cluster {}; check the addresses of nodes",
                self.own.node, self.own.cluster, hello.to, hello.cluster
            )));
        }
        if let Some(node) = proved
            && node != hello.from
        {
            return Err(End::Refused(format!(
                "its certificate is that of node {node}, and it says that it is node {}",
                hello.from
            )));
        }
        Ok(hello)
    }

    fn reports(&self) -> Vec<cairn_wire::DiskReport> {
        let disks = self.served.disks();
        disks.iter().map(|disk| convert::report(&**disk)).collect()
    }

    fn welcome(&self, queue: &mpsc::UnboundedSender<Outgoing>) {
        let welcome = Message::Welcome(Welcome {
            version: PROTOCOL_VERSION,
            cluster: self.own.cluster,
            node: self.own.node,
            limits: Limits {
                requests_max: self.settings.requests_max,
                bytes_max: self.settings.bytes_max,
            },
            disks: self.reports(),
        });
        send_small(queue, &welcome, None);
    }

    async fn work(
        self: &Arc<Self>,
        session: &Arc<Session>,
        reader: &mut FrameReader,
        heard: &Heard,
        breaker: &Arc<Breaker>,
    ) -> End {
        let work = select(
            Box::pin(self.receive(session, reader, breaker)),
            Box::pin(self.watch(session, heard)),
        );
        match select(work, Box::pin(breaker.broken())).await {
            Either::Left((Either::Left((end, _)) | Either::Right((end, _)), _)) => end,
            Either::Right((reason, _)) => End::Gone(reason),
        }
    }

    async fn receive(
        self: &Arc<Self>,
        session: &Arc<Session>,
        reader: &mut FrameReader,
        breaker: &Arc<Breaker>,
    ) -> End {
        loop {
            let frame = match next(reader).await {
                Ok(frame) => frame,
                Err(end) => return end,
            };
            match frame.message {
                Message::Request { disk, request } => {
                    let asked = ReceivedRequest {
                        header: frame.header,
                        payload: frame.payload,
                        disk,
                        request,
                    };
                    if let Err(end) = self.begin(session, asked, breaker) {
                        return end;
                    }
                }
                Message::Note {
                    disk,
                    checksum_errors,
                } => {
                    if let Some(disk) = self.served.disk(disk)
                        && checksum_errors > 0
                    {
                        disk.note_checksum_error();
                    }
                }
                Message::Ping {} => {}
                Message::Goodbye { reason } => return End::Gone(reason),
                _ => return End::CutOff("only who serves says that".to_owned()),
            }
        }
    }

    /// Says how the disks are, at once when that changes and as a sign of life, and looks whether the peer is there.
    async fn watch(&self, session: &Session, heard: &Heard) -> End {
        let clock = &self.env.clock;
        let mut said = Vec::new();
        let mut said_at = clock.monotonic();
        loop {
            clock.sleep(TICK).await;
            if heard.age() >= self.settings.dead_after {
                let seconds = heard.age().as_secs();
                return End::Gone(format!("nothing was heard of it for {seconds} s"));
            }
            let is_due = clock.monotonic().saturating_sub(said_at) >= HEARTBEAT;
            let disks = self.reports();
            if (disks != said || is_due) && !session.is_saying.swap(true, Ordering::AcqRel) {
                said_at = clock.monotonic();
                said.clone_from(&disks);
                let guard = Saying(Arc::clone(&session.is_saying));
                session.say(&Message::State { disks }, Box::new(guard));
            }
        }
    }

    /// Begins what was asked for, if the peer keeps within its limits.
    fn begin(
        self: &Arc<Self>,
        session: &Arc<Session>,
        asked: ReceivedRequest,
        breaker: &Arc<Breaker>,
    ) -> Result<(), End> {
        let Some(disk) = self.served.disk(asked.disk) else {
            let fault = Fault::Unreachable {
                disk: asked.disk.to_string(),
                what: "a request".to_owned(),
                reason: "this node does not serve it any more".to_owned(),
            };
            session.reply(asked.header.id, Reply::Failed { fault }, Bytes::new(), None);
            return Ok(());
        };
        if asked.request.reply_len_bytes() > PAYLOAD_LEN_BYTES_MAX as u64 {
            return Err(End::CutOff("it asked for more than a reply has".to_owned()));
        }
        let Some(usage) = session.count(asked.disk, &asked.request, &self.settings) else {
            return Err(End::CutOff("it asked for more than it may".to_owned()));
        };
        let server = Arc::clone(self);
        let session = Arc::clone(session);
        let breaker = Arc::clone(breaker);
        let task = async move {
            let id = asked.header.id;
            if let Err(error) = asked.header.check_payload(&asked.payload) {
                session.cut_off.lock().get_or_insert(error.to_string());
                breaker.break_off(error.to_string());
                return;
            }
            let (reply, payload) = match server.perform(&session, disk, asked).await {
                Ok(done) => done,
                Err(error) => {
                    let fault = convert::fault(error);
                    (Reply::Failed { fault }, Bytes::new())
                }
            };
            session.reply(id, reply, payload, Some(Box::new(usage)));
        };
        self.env.spawner.spawn("serving a peer", Box::pin(task));
        Ok(())
    }

    async fn perform(
        &self,
        session: &Session,
        disk: Arc<dyn ShardService>,
        asked: ReceivedRequest,
    ) -> Result<(Reply, Bytes), ShardError> {
        let payload = asked.payload;
        let own = |hidden: cairn_wire::Hidden| session.own(asked.disk, hidden);
        let reply = match asked.request {
            Request::Probe {} => done(disk.probe().await?),
            Request::PrepareRecycled {
                count,
                capacity_bytes,
            } => done(
                disk.prepare_recycled(count as usize, capacity_bytes)
                    .await?,
            ),
            Request::ReleaseRecycled {} => done(disk.release_recycled().await?),
            Request::Fence { volume, epoch } => done(disk.fence(volume, epoch).await?),
            Request::Create {
                epoch,
                name,
                capacity_bytes,
                kept_bytes,
            } => done(disk.create(epoch, name, capacity_bytes, kept_bytes).await?),
            Request::Append {
                epoch,
                name,
                places,
            } => done(disk.append(epoch, name, writes(&places, payload)).await?),
            Request::Seal { epoch, footer } => Reply::Sealed {
                file_len_bytes: disk.seal(epoch, footer).await?,
            },
            Request::Stat { name } => {
                let stat = disk.stat(name).await?;
                Reply::Stat {
                    file_len_bytes: stat.file_len_bytes,
                    footer: stat.footer.map_err(convert::fault),
                    is_unsealed: stat.is_unsealed,
                }
            }
            Request::Read { name, place } => {
                let range = range(&*disk, name, place)?;
                let len_bytes = place.len_bytes as usize;
                let bytes = disk.read(name, range.start, len_bytes).await?;
                let len_bytes = bytes.len() as u32;
                return Ok((Reply::Bytes { len_bytes }, bytes));
            }
            Request::ReadChecked {
                name,
                place,
                checksums,
            } => {
                let range = range(&*disk, name, place)?;
                let read = disk.read_checked(name, range, &checksums).await?;
                let reply = Reply::Checked {
                    len_bytes: read.bytes.len() as u32,
                    damaged: read.damaged,
                };
                return Ok((reply, read.bytes));
            }
            Request::Repair {
                epoch,
                name,
                places,
            } => done(disk.repair(epoch, name, writes(&places, payload)).await?),
            Request::CreateHidden {
                epoch,
                name,
                capacity_bytes,
                kept_bytes,
            } => {
                let making = disk.create_hidden(epoch, name, capacity_bytes, kept_bytes);
                let hidden = making.await?;
                session.begun(disk.id(), hidden, epoch);
                Reply::Made {
                    hidden: convert::hidden(hidden),
                }
            }
            Request::Fill {
                epoch,
                hidden,
                place,
            } => {
                let write = ShardWrite {
                    offset: place.offset,
                    parts: vec![payload],
                };
                done(disk.fill(epoch, own(hidden), write).await?)
            }
            Request::CopyFrom {
                epoch,
                hidden,
                node,
                disk: from,
                place,
                checksums,
            } => {
                let range = range(&*disk, hidden.name, place)?;
                let hidden = own(hidden);
                let from = match node == self.own.node {
                    true => self.served.disk(from),
                    false => self.peers.disk(node, from),
                };
                let copied = match from {
                    None => cairn_wire::Copied::NoWay {},
                    Some(from) => {
                        let copy = disk.copy_from(epoch, hidden, &*from, range, &checksums);
                        match copy.await? {
                            Copied::Whole(checksums) => cairn_wire::Copied::Whole { checksums },
                            Copied::Damaged(ranges) => cairn_wire::Copied::Damaged { ranges },
                            Copied::Unread(error) => cairn_wire::Copied::Unread {
                                fault: convert::fault(error),
                            },
                        }
                    }
                };
                Reply::Copied { copied }
            }
            Request::SealHidden {
                epoch,
                hidden,
                footer,
            } => done(disk.seal_hidden(epoch, own(hidden), footer).await?),
            Request::Publish { epoch, hidden } => {
                let hidden = own(hidden);
                disk.publish(epoch, hidden).await?;
                session.ended(disk.id(), hidden);
                Reply::Done {}
            }
            Request::Discard { epoch, hidden } => {
                let hidden = own(hidden);
                disk.discard(epoch, hidden).await?;
                session.ended(disk.id(), hidden);
                Reply::Done {}
            }
            Request::Remove { epoch, name } => done(disk.remove(epoch, name).await?),
            Request::List { volume, after } => {
                let mut list = disk.list(volume).await?;
                list.names.sort_unstable();
                let start = list.names.partition_point(|name| Some(*name) <= after);
                let rest = list.names.get(start..).unwrap_or_default();
                Reply::Listed {
                    names: rest.iter().take(LIST_COUNT_MAX).copied().collect(),
                    mark: list.mark,
                    promised: list.promised,
                    has_more: rest.len() > LIST_COUNT_MAX,
                }
            }
            Request::Sweep {
                epoch,
                volume,
                names,
                mark,
            } => {
                let swept = disk.sweep(epoch, volume, names, mark).await?;
                Reply::Swept {
                    removed: swept.removed,
                    kept: swept.kept,
                    errors: swept.errors,
                }
            }
        };
        Ok((reply, Bytes::new()))
    }

    /// Waits until nothing of a connection is under way, and discards what it had not published.
    async fn clean_up(&self, session: &Session) {
        session.idle().await;
        let left = std::mem::take(&mut *session.hidden.lock());
        for ((disk, hidden), epoch) in left {
            if let Some(disk) = self.served.disk(disk)
                && let Err(error) = disk.discard(epoch, hidden).await
            {
                // A newer owner has done it, or the next start will.
                tracing::debug!(shard = %hidden.name, %error, "a shard that was begun is not discarded");
            }
        }
    }
}

struct ReceivedRequest {
    header: cairn_wire::Header,
    payload: Bytes,
    disk: DiskId,
    request: Request,
}

async fn next(reader: &mut FrameReader) -> Result<Frame, End> {
    use crate::frames::FrameError;
    match reader.next().await {
        Ok(Some(frame)) => Ok(frame),
        Ok(None) => Err(End::Gone("it closed the connection".to_owned())),
        Err(error @ (FrameError::Io(_) | FrameError::CutShort)) => {
            Err(End::Gone(error.to_string()))
        }
        Err(error @ FrameError::Wire(_)) => Err(End::CutOff(error.to_string())),
    }
}

fn done((): ()) -> Reply {
    Reply::Done {}
}

/// The parts of a payload at their places. The message was refused if they were not of its length.
fn writes(places: &[ShardRange], mut payload: Bytes) -> Vec<ShardWrite> {
    let take = |place: &ShardRange| {
        let len_bytes = (place.len_bytes as usize).min(payload.len());
        ShardWrite {
            offset: place.offset,
            parts: vec![payload.split_to(len_bytes)],
        }
    };
    places.iter().map(take).collect()
}

fn range(
    disk: &dyn ShardService,
    shard: cairn_shard::ShardName,
    place: ShardRange,
) -> Result<std::ops::Range<u64>, ShardError> {
    convert::range(place).ok_or_else(|| ShardError::BadRange {
        disk: disk.label().to_owned(),
        shard,
        what: "a range past the end of all numbers",
        offset: place.offset,
        len_bytes: place.len_bytes.into(),
    })
}

/// Requests and bytes under way for one disk.
#[derive(Clone, Copy, Default)]
struct DiskLoad {
    requests: u32,
    credits: u64,
}

/// What one connection has begun.
struct Session {
    /// `None`: nothing is sent any more.
    queue: Mutex<Option<mpsc::UnboundedSender<Outgoing>>>,
    under_way: Arc<Mutex<BTreeMap<DiskId, DiskLoad>>>,
    hidden: Mutex<BTreeMap<(DiskId, HiddenId), Epoch>>,
    /// A state is on its way; another one would only wait behind it.
    is_saying: Arc<AtomicBool>,
    /// Why the peer is cut off, if one of its requests showed that it must be.
    cut_off: Mutex<Option<String>>,
    idle: Arc<tokio::sync::Notify>,
}

struct Saying(Arc<AtomicBool>);

impl Drop for Saying {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Counts a request until its reply is about to be written.
struct Usage {
    under_way: Arc<Mutex<BTreeMap<DiskId, DiskLoad>>>,
    idle: Arc<tokio::sync::Notify>,
    disk: DiskId,
    credits: u64,
}

impl Drop for Usage {
    fn drop(&mut self) {
        let mut all = self.under_way.lock();
        if let Some(under_way) = all.get_mut(&self.disk) {
            under_way.requests = under_way.requests.saturating_sub(1);
            under_way.credits = under_way.credits.saturating_sub(self.credits);
            if under_way.requests == 0 {
                all.remove(&self.disk);
            }
        }
        if all.is_empty() {
            self.idle.notify_waiters();
        }
    }
}

impl Session {
    fn new(queue: mpsc::UnboundedSender<Outgoing>) -> Self {
        Self {
            queue: Mutex::new(Some(queue)),
            under_way: Arc::default(),
            hidden: Mutex::default(),
            is_saying: Arc::default(),
            cut_off: Mutex::default(),
            idle: Arc::default(),
        }
    }

    fn close(&self) {
        *self.queue.lock() = None;
    }

    fn say(&self, message: &Message, guard: Guard) {
        if let Some(queue) = &*self.queue.lock() {
            send_small(queue, message, Some(guard));
        }
    }

    fn reply(&self, id: u64, reply: Reply, payload: Bytes, guard: Option<Guard>) {
        let payload = match payload.is_empty() {
            true => Vec::new(),
            false => vec![payload],
        };
        let encoded = cairn_wire::encode(id, &Message::Reply(reply), &payload);
        let (head, payload) = match encoded {
            Ok(head) => (head, payload),
            Err(error) => {
                // No reply of ours is too long; if one is, its end is not known to the peer.
                tracing::error!(%error, "a reply to a peer is not sent");
                return;
            }
        };
        let frame = Outgoing {
            head: head.into(),
            payload,
            guard,
        };
        if let Some(queue) = &*self.queue.lock() {
            let _ = queue.send(frame);
        }
    }

    /// `None`: it is more than the peer may have under way.
    fn count(&self, disk: DiskId, request: &Request, settings: &ServeSettings) -> Option<Usage> {
        let credits = u64::from(credits(request));
        let mut all = self.under_way.lock();
        let under_way = all.entry(disk).or_default();
        under_way.requests += 1;
        under_way.credits += credits;
        let usage = Usage {
            under_way: Arc::clone(&self.under_way),
            idle: Arc::clone(&self.idle),
            disk,
            credits,
        };
        let is_too_much = under_way.requests > settings.requests_max
            || under_way.credits > settings.bytes_max / CREDIT_BYTES;
        drop(all);
        (!is_too_much).then_some(usage)
    }

    /// Resolves when nothing is under way.
    async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.under_way.lock().is_empty() {
                return;
            }
            idle.await;
        }
    }

    fn begun(&self, disk: DiskId, hidden: HiddenId, epoch: Epoch) {
        self.hidden.lock().insert((disk, hidden), epoch);
    }

    fn ended(&self, disk: DiskId, hidden: HiddenId) {
        self.hidden.lock().remove(&(disk, hidden));
    }

    /// A hidden shard that was made on this connection. Of any other the disk says that there is none, or that the
    /// owner is not one any more.
    fn own(&self, disk: DiskId, hidden: cairn_wire::Hidden) -> HiddenId {
        let id = convert::hidden_id(hidden);
        match self.hidden.lock().contains_key(&(disk, id)) {
            true => id,
            false => HiddenId {
                number: NUMBER_OF_NONE,
                ..id
            },
        }
    }
}
