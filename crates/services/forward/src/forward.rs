//! Streams to the owners of volumes, and those that come from other nodes.
//!
//! Owns: opening a stream under the admission of a client's connection, admitting those of others, links with their beats.
//! Must not know: the protocols on streams, who owns what.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_base::env::{BoxFuture, Env};
use cairn_base::planted::{self, Bug};
use cairn_base::{NodeId, VolumeId};
use parking_lot::{Mutex, RwLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use crate::admission::{Admission, MapTerms, Refused, Registry};
use crate::framed::{Framed, Sender};
use crate::link::{Beats, Link, Serving, send_beats};
use crate::metrics::ForwardedStreams;
use crate::preamble::{PREAMBLE_LEN_BYTES, Preamble, Service, Stamp, Term};
use crate::pulse::Pulse;
use crate::{BEAT_INTERVAL, FRESH_MAX, Stream};

/// To open a stream, the other node's admission included.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// For the first bytes of a stream.
const PREAMBLE_MAX: Duration = Duration::from_secs(5);
/// An owner that was not reached is tried again after so long.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Of a stream from this node to itself.
const OWN_STREAM_LEN_BYTES: usize = 256 << 10;

const ADMITTED: u8 = 1;
const TERM_ENDED: u8 = 2;
const BEHIND: u8 = 3;
const NOT_SERVED: u8 = 4;

/// The cluster as this node knows it.
pub trait Nodes: Send + Sync + 'static {
    fn own(&self) -> NodeId;
    /// All other nodes.
    fn others(&self) -> Vec<NodeId>;
    /// What users call a node.
    fn name(&self, node: NodeId) -> String;
    fn is_alive(&self, node: NodeId) -> bool;
    /// All volumes, and who owns each.
    fn owners(&self) -> Vec<(VolumeId, Option<NodeId>)>;
    fn volume_name(&self, volume: VolumeId) -> String;
    /// Ready when the node owns the volume no more.
    fn lost(&self, volume: VolumeId, owner: NodeId) -> BoxFuture<()>;
    /// A stream whose other end [`Forward::serve`] of that node gets.
    fn dial(&self, node: NodeId) -> BoxFuture<io::Result<Box<dyn Stream>>>;
}

/// A stream that another node opened for a client, or this node for one of its own.
pub struct Incoming {
    pub stream: Box<dyn Stream>,
    /// To be held until all that began over the stream has ended.
    pub admission: Arc<Admission>,
}

/// What serves the streams of a [`Service`].
pub trait Serve: Send + Sync + 'static {
    /// Serves a stream to its end. Begins nothing any more once its admission has ended.
    fn serve(self: Arc<Self>, incoming: Incoming) -> BoxFuture<()>;
}

/// What serves requests that change nothing.
pub trait ServeReads: Send + Sync + 'static {
    fn serve(self: Arc<Self>, stream: Box<dyn Stream>) -> BoxFuture<()>;
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the client's connection has to end: {0}")]
    Ended(Refused),
    #[error("the node does not serve this protocol yet")]
    NotServed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Io(error) => error,
            other => Self::new(io::ErrorKind::ConnectionRefused, other),
        }
    }
}

/// This node's part in asking owners and in being asked.
pub struct Forward {
    env: Env,
    nodes: Arc<dyn Nodes>,
    registry: Arc<Registry>,
    beats: Beats,
    links: Mutex<BTreeMap<NodeId, Arc<tokio::sync::Mutex<Slot>>>>,
    services: RwLock<[Option<Arc<dyn Serve>>; Service::ALL.len()]>,
    reads: RwLock<Option<Arc<dyn ServeReads>>>,
    serving: watch::Sender<Serving>,
    pub metrics: ForwardedStreams,
}

#[derive(Default)]
struct Slot {
    link: Option<Arc<Link>>,
    failed_at: Option<Duration>,
}

impl Forward {
    /// `own_term` tells this node's term as long as its lease is valid.
    pub fn new(
        env: Env,
        nodes: Arc<dyn Nodes>,
        own_term: impl Fn() -> Option<Term> + Send + Sync + 'static,
    ) -> prometheus::Result<Arc<Self>> {
        let clock = Arc::clone(&env.clock);
        let pulse = Arc::new(Pulse::new(Arc::clone(&clock)));
        let process = env.entropy.u64() as u16;
        let forward = Arc::new(Self {
            registry: Registry::new(nodes.own(), Arc::clone(&pulse), own_term),
            beats: Beats::new(Arc::clone(&clock), process),
            nodes,
            links: Mutex::default(),
            services: RwLock::default(),
            reads: RwLock::default(),
            serving: watch::Sender::default(),
            metrics: ForwardedStreams::new()?,
            env,
        });
        let alive = Arc::downgrade(&forward);
        let beating = async move {
            while alive.strong_count() > 0 {
                pulse.generation();
                clock.sleep(BEAT_INTERVAL).await;
            }
        };
        let spawner = &forward.env.spawner;
        // A thread of its own: those of the runtime may all wait for disks, and this process runs all the same.
        spawner.spawn_thread("pulse", Box::pin(beating));
        Ok(forward)
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    pub fn pulse(&self) -> &Arc<Pulse> {
        self.registry.pulse()
    }

    /// By the clock that counts suspended time.
    pub fn now(&self) -> Duration {
        self.env.clock.boottime()
    }

    pub fn own(&self) -> NodeId {
        self.nodes.own()
    }

    pub fn nodes(&self) -> &Arc<dyn Nodes> {
        &self.nodes
    }

    /// Takes in a newer map; see [`Registry::learn`].
    pub async fn learn(&self, terms: MapTerms) {
        self.registry.learn(terms).await;
    }

    /// Learns each newer map. One that comes while what an older one ended is not finished yet is taken in all the same: a client
    /// may have come here for what it says, and brings that to owners.
    pub async fn follow<V>(
        forward: Weak<Self>,
        mut views: watch::Receiver<V>,
        terms_of: fn(&V) -> MapTerms,
    ) {
        loop {
            let terms = terms_of(&views.borrow_and_update());
            let Some(learning) = forward.upgrade() else {
                return;
            };
            let changed = tokio::select! {
                biased;
                () = learning.learn(terms) => None,
                changed = views.changed(), if !planted::is(Bug::NewsWaitForOlderOnes) => Some(changed),
            };
            drop(learning);
            let changed = match changed {
                Some(changed) => changed,
                None => views.changed().await,
            };
            // The member is gone.
            if changed.is_err() {
                return;
            }
        }
    }

    /// Sets which volumes this node serves.
    pub fn serve_volumes(&self, volumes: impl IntoIterator<Item = VolumeId>) {
        let volumes: Serving = Arc::new(volumes.into_iter().collect());
        self.serving.send_if_modified(|serving| {
            let is_new = *serving != volumes;
            *serving = volumes;
            is_new
        });
    }

    /// Sets what serves streams of a service.
    pub fn handle(&self, service: Service, serve: Arc<dyn Serve>) {
        self.services.write()[service.index()] = Some(serve);
    }

    /// Sets what serves requests that change nothing.
    pub fn handle_reads(&self, serve: Arc<dyn ServeReads>) {
        *self.reads.write() = Some(serve);
    }

    fn handler(&self, service: Service) -> Option<Arc<dyn Serve>> {
        self.services.read()[service.index()].clone()
    }

    /// Opens a stream to a node, which may be this one.
    pub async fn connect(
        self: &Arc<Self>,
        node: NodeId,
        service: Service,
        admission: &Arc<Admission>,
    ) -> Result<Box<dyn Stream>, ConnectError> {
        if !admission.is_live() {
            return Err(ConnectError::Ended(Refused::TermEnded));
        }
        if node == self.own() {
            return self.connect_here(service, admission);
        }
        let connecting = async {
            let link = self.link(node, admission).await?;
            let stream = self.open(node, service, admission).await?;
            Ok(Box::new(Sender::new(stream, link)) as Box<dyn Stream>)
        };
        tokio::select! {
            biased;
            connected = connecting => connected,
            () = self.env.clock.sleep(CONNECT_MAX) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }

    /// Opens a stream for requests that change nothing. It is under no term, and nothing in it can be too old.
    pub async fn connect_for_reads(&self, node: NodeId) -> Result<Box<dyn Stream>, ConnectError> {
        let nobody = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let preamble = Preamble {
            service: Service::AdminReads,
            term: Term(0),
            revision: 0,
            client: nobody,
        };
        tokio::select! {
            biased;
            opened = self.open_with(node, preamble) => opened,
            () = self.env.clock.sleep(CONNECT_MAX) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }

    fn connect_here(
        &self,
        service: Service,
        admission: &Arc<Admission>,
    ) -> Result<Box<dyn Stream>, ConnectError> {
        let serve = self.handler(service).ok_or(ConnectError::NotServed)?;
        let (near, far) = tokio::io::duplex(OWN_STREAM_LEN_BYTES);
        let incoming = Incoming {
            stream: Box::new(far),
            admission: Arc::clone(admission),
        };
        self.env.spawner.spawn("own stream", serve.serve(incoming));
        Ok(Box::new(near))
    }

    /// Opens a stream without frames.
    async fn open(
        &self,
        node: NodeId,
        service: Service,
        admission: &Admission,
    ) -> Result<Box<dyn Stream>, ConnectError> {
        let now = planted::is(Bug::ForwardTermOfNow).then(|| self.registry.own_stamp());
        let stamp = now.flatten().unwrap_or(admission.stamp());
        let preamble = Preamble {
            service,
            term: stamp.term,
            revision: match planted::is(Bug::ForwardStreamBringsNoNews) {
                true => 0,
                false => stamp.revision,
            },
            client: admission.client(),
        };
        self.open_with(node, preamble).await
    }

    async fn open_with(
        &self,
        node: NodeId,
        preamble: Preamble,
    ) -> Result<Box<dyn Stream>, ConnectError> {
        let mut stream = self.nodes.dial(node).await?;
        stream.write_all(&preamble.encode()).await?;
        stream.flush().await?;
        match stream.read_u8().await? {
            ADMITTED => Ok(stream),
            TERM_ENDED => Err(ConnectError::Ended(Refused::TermEnded)),
            BEHIND => Err(ConnectError::Io(io::ErrorKind::TimedOut.into())),
            _ => Err(ConnectError::NotServed),
        }
    }

    /// The link to a node; makes one if there is none that lives. One call makes it for all that wait.
    pub async fn link(
        self: &Arc<Self>,
        node: NodeId,
        admission: &Arc<Admission>,
    ) -> Result<Arc<Link>, ConnectError> {
        let slot = Arc::clone(self.links.lock().entry(node).or_default());
        let mut slot = slot.lock().await;
        if let Some(link) = slot.link.as_ref().filter(|link| link.beat().is_some()) {
            return Ok(Arc::clone(link));
        }
        slot.link = None;
        let is_recent = |at: Duration| self.now().saturating_sub(at) < AGAIN_AFTER;
        if slot.failed_at.is_some_and(is_recent) {
            return Err(io::Error::from(io::ErrorKind::NotConnected).into());
        }
        match self.make_link(node, admission).await {
            Ok(link) => {
                (slot.link, slot.failed_at) = (Some(Arc::clone(&link)), None);
                Ok(link)
            }
            Err(error) => {
                slot.failed_at = Some(self.now());
                Err(error)
            }
        }
    }

    async fn make_link(
        &self,
        node: NodeId,
        admission: &Admission,
    ) -> Result<Arc<Link>, ConnectError> {
        let link = Link::new(Arc::clone(&self.env.clock));
        let stream = self.open(node, Service::Beats, admission).await?;
        let following = Arc::clone(&link);
        let follow = async move { following.follow(stream).await };
        self.env
            .spawner
            .spawn("beats of an owner", Box::pin(follow));
        let mut serving = link.serving();
        let begun = async {
            // The sender is in `link`.
            let _ = serving.wait_for(Option::is_some).await;
        };
        tokio::select! {
            biased;
            () = begun => Ok(link),
            () = link.over() => Err(io::Error::from(io::ErrorKind::NotConnected).into()),
            () = self.env.clock.sleep(FRESH_MAX) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }

    /// Ready when the node serves the volume; an error if it is not reached.
    pub async fn until_served(
        self: &Arc<Self>,
        volume: VolumeId,
        node: NodeId,
        admission: &Arc<Admission>,
    ) -> Result<(), ConnectError> {
        let serves = |serving: &Serving| serving.contains(&volume);
        if node == self.own() {
            let mut serving = self.serving.subscribe();
            // The sender is in `self`.
            let _ = serving.wait_for(serves).await;
            return Ok(());
        }
        let link = self.link(node, admission).await?;
        let mut serving = link.serving();
        let served = async {
            // The sender is in `link`.
            let _ = serving
                .wait_for(|now| now.as_ref().is_some_and(serves))
                .await;
        };
        tokio::select! {
            biased;
            () = link.over() => Err(io::Error::from(io::ErrorKind::NotConnected).into()),
            () = served => Ok(()),
        }
    }

    /// Serves a stream that another node opened, to its end.
    pub async fn serve(self: &Arc<Self>, node: NodeId, mut stream: Box<dyn Stream>) {
        let mut bytes = [0; PREAMBLE_LEN_BYTES];
        let read = tokio::select! {
            biased;
            read = stream.read_exact(&mut bytes) => read.map(drop),
            () = self.env.clock.sleep(PREAMBLE_MAX) => Err(io::ErrorKind::TimedOut.into()),
        };
        let preamble = match read.map(|()| Preamble::decode(&bytes)) {
            Ok(Ok(preamble)) => preamble,
            Ok(Err(error)) => {
                tracing::warn!(%node, %error, "refused a stream of another node");
                return;
            }
            Err(error) => {
                tracing::debug!(%node, %error, "a stream of another node did not begin");
                return;
            }
        };
        if preamble.service == Service::AdminReads {
            let serve = self.reads.read().clone();
            let answer = if serve.is_some() {
                ADMITTED
            } else {
                NOT_SERVED
            };
            let answered = async {
                stream.write_u8(answer).await?;
                stream.flush().await
            };
            if let (Ok(()), Some(serve)) = (answered.await, serve) {
                serve.serve(stream).await;
            }
            return;
        }
        let stamp = Stamp {
            node,
            term: preamble.term,
            revision: preamble.revision,
        };
        let admitted = self.registry.admit(stamp, preamble.client).await;
        let answer = match &admitted {
            Ok(_) if preamble.service == Service::Beats => ADMITTED,
            Ok(_) if self.handler(preamble.service).is_none() => NOT_SERVED,
            Ok(_) => ADMITTED,
            Err(Refused::TermEnded) => TERM_ENDED,
            Err(Refused::Behind | Refused::Late) => BEHIND,
        };
        if let Err(why) = &admitted {
            self.metrics.refused(*why);
            tracing::info!(%node, client = %preamble.client, %why, "refused a stream of another node");
        }
        let answered = async {
            stream.write_u8(answer).await?;
            stream.flush().await
        };
        if let Err(error) = answered.await {
            tracing::debug!(%node, %error, "a stream of another node ended");
            return;
        }
        let (Ok(admission), ADMITTED) = (admitted, answer) else {
            return;
        };
        self.metrics.opened(preamble.service);
        if preamble.service == Service::Beats {
            return self.serve_beats(stream, &admission).await;
        }
        let Some(serve) = self.handler(preamble.service) else {
            return;
        };
        let clock = Arc::clone(&self.env.clock);
        let stream = Framed::new(stream, self.beats.clone(), clock);
        let incoming = Incoming {
            stream: Box::new(stream),
            admission,
        };
        serve.serve(incoming).await;
    }

    async fn serve_beats(&self, stream: Box<dyn Stream>, admission: &Admission) {
        let serving = self.serving.subscribe();
        let ended = tokio::select! {
            biased;
            end = admission.ended() => Err(io::Error::other(format!("{end:?}"))),
            ended = send_beats(stream, &self.beats, self.pulse(), serving) => ended,
        };
        let Stamp { node, term, .. } = admission.stamp();
        if let Err(error) = ended {
            tracing::debug!(%node, %error, "signs of life to a node ended; its streams are closed");
        }
        if !planted::is(Bug::ForwardSilentNodeKeepsStreams) {
            self.registry.end_streams(node, term);
        }
    }
}
