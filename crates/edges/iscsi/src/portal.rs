//! The server: threads, the listening sockets, limits of connections, stopping.
//!
//! Owns: accepting, which thread serves which connection, what all connections share. Must not know: what comes over them.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_base::LogLimit;
use cairn_base::busy_poll::BusyPoll;
use cairn_forward::{Crowd, CrowdRules, Door, Entry as Accepting, Seat, Settled};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::connection;
use crate::link::{Entry, FreeLink};
use crate::pass::PeerServer;
use crate::target::{PORT_GROUP, Targets};

/// Pause after `accept` failed, which it does when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Lines in the log about sessions that break, in an interval.
const BROKEN_LINES_MAX: u32 = 10;
/// Sessions that discovery and hosts' multipath make, several times over.
const CONNECTION_COUNT_MAX: usize = 1024;
const CONNECTION_COUNT_PER_CLIENT_MAX: usize = 512;
/// Addresses that are remembered from which somebody has logged in. As many initiators come at once when a server starts again.
const KNOWN_COUNT_MAX: usize = 1024;
const SOCKET_BUFFER_LEN_BYTES: usize = 1 << 20;

#[derive(Clone, Debug)]
pub struct Settings {
    pub threads: usize,
    pub connection_count_max: usize,
    pub connection_count_per_client_max: usize,
    /// Data of commands under way, of all connections together.
    pub held_bytes_max: usize,
    /// Answers that initiators have not taken yet, of all connections together, in bytes. With more only those connections
    /// go on that have little of it.
    pub unsent_bytes_max: usize,
    /// What discovery says instead of the address at which it was asked. One for all addresses of the machine, `0.0.0.0`,
    /// stands for the one at which it was asked. In a cluster the map says.
    pub portals: Vec<SocketAddr>,
    /// A thread looks for the next command, and for the end of one, for a moment before it sleeps. Good for initiators that send
    /// one command after the other, if there is more than one processor.
    pub looks_before_sleep: bool,
}

impl Settings {
    fn crowd(&self) -> CrowdRules {
        CrowdRules {
            count_max: self.connection_count_max,
            per_network_max: self.connection_count_per_client_max,
            known_count_max: KNOWN_COUNT_MAX,
            known_for: None,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            threads: 2,
            connection_count_max: CONNECTION_COUNT_MAX,
            connection_count_per_client_max: CONNECTION_COUNT_PER_CLIENT_MAX,
            held_bytes_max: 256 << 20,
            unsent_bytes_max: 64 << 20,
            portals: Vec::new(),
            looks_before_sleep: cairn_base::looking::is_sensible(),
        }
    }
}

/// What all connections share.
pub struct PortalCore {
    pub targets: Arc<Targets>,
    pub settings: Settings,
    /// Whether this node may still answer for the volumes that it serves: its lease says so. Looked at before each answer.
    pub may_answer: Box<dyn Fn() -> bool + Send + Sync>,
    pub held_bytes: AtomicUsize,
    pub unsent_bytes: AtomicUsize,
    /// Connections that are forwarded to other nodes.
    pub passed_count: AtomicUsize,
    pub accepted_count: AtomicU64,
    /// Commands that were begun.
    pub command_count: AtomicU64,
    /// Connections over the limits.
    pub turned_away_count: AtomicU64,
    /// Logins that were refused.
    pub refused_count: AtomicU64,
    /// Connections closed for what came over them.
    pub broken_count: AtomicU64,
    crowd: Arc<Crowd>,
    /// Connections that are closed before they have logged in: unauthorized clients cause as many as they like.
    pub(crate) strangers_logged: LogLimit,
    /// Logins of names for which nothing is set.
    pub(crate) unknown_logged: LogLimit,
    /// Connections of sessions that are closed for what came over them.
    pub(crate) broken_logged: LogLimit,
}

impl PortalCore {
    pub fn new(
        targets: Arc<Targets>,
        settings: Settings,
        may_answer: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        let crowd = Crowd::new(settings.crowd(), Arc::clone(&targets.env().clock));
        Arc::new(Self {
            targets,
            settings,
            may_answer: Box::new(may_answer),
            held_bytes: AtomicUsize::new(0),
            unsent_bytes: AtomicUsize::new(0),
            passed_count: AtomicUsize::new(0),
            accepted_count: AtomicU64::new(0),
            command_count: AtomicU64::new(0),
            turned_away_count: AtomicU64::new(0),
            refused_count: AtomicU64::new(0),
            broken_count: AtomicU64::new(0),
            crowd,
            strangers_logged: LogLimit::default(),
            unknown_logged: LogLimit::default(),
            broken_logged: LogLimit::new(BROKEN_LINES_MAX),
        })
    }

    /// What discovery tells who reached `local`: addresses with their target port groups.
    pub fn portals(&self, local: SocketAddr) -> Vec<(SocketAddr, u16)> {
        if let Some(cluster) = self.targets.cluster() {
            let all = cluster.portals().into_iter();
            // Those of nodes that are away, too: hosts that look for paths only now must know them.
            return all
                .flat_map(|node| node.addresses.into_iter().map(move |at| (at, node.group)))
                .collect();
        }
        let here = SocketAddr::new(local.ip().to_canonical(), local.port());
        let resolved = |portal: &SocketAddr| match portal.ip().is_unspecified() {
            true => SocketAddr::new(here.ip(), portal.port()),
            false => *portal,
        };
        let all: Vec<SocketAddr> = match self.settings.portals.is_empty() {
            true => vec![here],
            false => self.settings.portals.iter().map(resolved).collect(),
        };
        all.into_iter().map(|portal| (portal, PORT_GROUP)).collect()
    }

    /// Connections that are there now.
    pub fn connection_count(&self) -> usize {
        self.crowd.count()
    }

    pub(crate) fn permit(self: &Arc<Self>, client: IpAddr) -> Option<Permit> {
        let entered = self.crowd.enter(client);
        // Those that made way for it were over the limits, too.
        let away = entered.closed_count + usize::from(entered.seat.is_none());
        self.turned_away_count
            .fetch_add(away as u64, Ordering::Relaxed);
        let seat = entered.seat?;
        self.accepted_count.fetch_add(1, Ordering::Relaxed);
        Some(Permit {
            shared: Arc::clone(self),
            seat,
        })
    }
}

/// The right to be one of the connections that the limits allow.
pub(crate) struct Permit {
    shared: Arc<PortalCore>,
    seat: Seat,
}

impl Permit {
    pub(crate) fn shared(&self) -> &Arc<PortalCore> {
        &self.shared
    }

    /// Ready when the connection has to make way for another one, which happens only before [`Self::settle`].
    pub(crate) async fn makes_way(&self) {
        self.seat.makes_way().await;
    }

    /// Whether the connection may stay: from now on it makes way for nobody. `initiator`: who has logged in. One initiator has no
    /// more connections than it leaves to others, from however many addresses.
    pub(crate) fn settle(&self, initiator: Option<&str>) -> bool {
        match self.seat.settle(initiator) {
            Settled::Stays => true,
            Settled::MadeWay => false,
            Settled::TooMany => {
                self.shared
                    .turned_away_count
                    .fetch_add(1, Ordering::Relaxed);
                tracing::debug!(
                    initiator,
                    "iSCSI connection refused: too many of one initiator"
                );
                false
            }
        }
    }
}

pub(crate) struct Accepted {
    pub link: FreeLink,
    pub peer: SocketAddr,
    pub permit: Permit,
    pub entry: Entry,
    /// Of a connection that this node accepted itself.
    pub accepting: Option<Accepting>,
}

/// A server that serves. Dropped without [`Self::stop`], it stops at once.
pub struct Running {
    stop: watch::Sender<bool>,
    passed: PeerServer,
    threads: Vec<(JoinHandle<()>, oneshot::Receiver<()>)>,
}

impl Running {
    /// Starts the threads. Without a listener only what other nodes pass on is served.
    pub fn start(shared: Arc<PortalCore>, listeners: Vec<TcpListener>) -> std::io::Result<Self> {
        for listener in &listeners {
            listener.set_nonblocking(true)?;
            let socket = socket2::SockRef::from(listener);
            socket.set_recv_buffer_size(SOCKET_BUFFER_LEN_BYTES)?;
            socket.set_send_buffer_size(SOCKET_BUFFER_LEN_BYTES)?;
        }
        let (stop, stopped) = watch::channel(false);
        let mut lanes = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..shared.settings.threads.max(1) {
            let (sender, receiver) = mpsc::unbounded_channel::<Accepted>();
            lanes.push(sender);
            receivers.push(receiver);
        }
        let passed = PeerServer {
            shared: Arc::clone(&shared),
            lanes: lanes.clone(),
            next: Arc::default(),
        };
        let mut accepting = Some((listeners, lanes));
        let mut threads = Vec::new();
        for (index, receiver) in receivers.into_iter().enumerate() {
            let (ended, wait) = oneshot::channel();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let (shared, stopped, accepting) =
                (Arc::clone(&shared), stopped.clone(), accepting.take());
            let thread = std::thread::Builder::new()
                .name(format!("iscsi-{index}"))
                .spawn(move || {
                    runtime.block_on(run(shared, receiver, accepting, stopped));
                    // Nobody waits if the server was dropped instead of stopped.
                    let _ = ended.send(());
                })?;
            threads.push((thread, wait));
        }
        Ok(Self {
            stop,
            passed,
            threads,
        })
    }

    /// What serves the connections that other nodes pass on.
    pub fn passed(&self) -> PeerServer {
        self.passed.clone()
    }

    /// Takes no more connections and ends those that there are, when what was begun is done, for at most `grace` each.
    pub async fn stop(mut self, grace: Duration) {
        self.stop.send_replace(true);
        for (thread, ended) in self.threads.drain(..) {
            if tokio::time::timeout(grace, ended).await.is_err() {
                tracing::warn!("iSCSI connections closed before their commands were finished");
                continue;
            }
            if thread.join().is_err() {
                tracing::error!("a thread of the iSCSI server panicked");
            }
        }
    }
}

async fn run(
    shared: Arc<PortalCore>,
    mut accepted: mpsc::UnboundedReceiver<Accepted>,
    accepting: Option<(Vec<TcpListener>, Vec<mpsc::UnboundedSender<Accepted>>)>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut listening = JoinSet::new();
    if let Some((listeners, lanes)) = accepting {
        for listener in listeners {
            listening.spawn(accept(Arc::clone(&shared), listener, lanes.clone()));
        }
    }
    let busy_poll = Arc::new(BusyPoll::new(shared.settings.looks_before_sleep));
    let keeper = Arc::clone(&busy_poll);
    listening.spawn(async move { keeper.keep().await });
    let mut connections = JoinSet::new();
    let stop = stopped.clone();
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stops| *stops) => break,
            Some(Accepted { link, peer, permit, mut entry, accepting }) = accepted.recv() => {
                let (shared, mut stop) = (Arc::clone(&shared), stop.clone());
                let busy_poll = Arc::clone(&busy_poll);
                connections.spawn(async move {
                    if let Some(accepting) = accepting {
                        let admitted = tokio::select! {
                            biased;
                            _ = stop.wait_for(|stops| *stops) => return,
                            () = permit.makes_way() => return,
                            admitted = accepting.admit(peer) => admitted,
                        };
                        match admitted {
                            Ok(admission) => entry.admission = admission,
                            Err(why) => {
                                link.reset();
                                tracing::debug!(%peer, %why, "iSCSI connection closed");
                                return;
                            }
                        }
                    }
                    match link.attach() {
                        Ok(link) => {
                            connection::serve(shared, link, peer, entry, permit, busy_poll, stop).await;
                        }
                        Err(error) => tracing::debug!(%peer, "connection lost: {error}"),
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    listening.shutdown().await;
    while connections.join_next().await.is_some() {}
}

/// Deals connections to the threads in turn.
async fn accept(
    shared: Arc<PortalCore>,
    listener: TcpListener,
    lanes: Vec<mpsc::UnboundedSender<Accepted>>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("cannot listen for iSCSI: {error}");
            return;
        }
    };
    let mut next = 0;
    // A client that takes all file descriptors causes as many as it likes.
    let errors = LogLimit::default();
    let cluster = shared.targets.cluster();
    let mut door = Door::new(cluster.map(|cluster| Arc::clone(&cluster.forward)));
    loop {
        let (stream, peer, accepting) = match door.accept(&listener).await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(more) = errors.admitted() {
                    tracing::warn!(more, "cannot accept iSCSI connections: {error}");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(permit) = shared.permit(peer.ip().to_canonical()) else {
            tracing::debug!(%peer, "iSCSI connection refused: too many connections");
            continue;
        };
        let Ok(local) = stream.local_addr() else {
            continue;
        };
        let Ok(stream) = stream.into_std() else {
            continue;
        };
        next = (next + 1) % lanes.len().max(1);
        if let Some(lane) = lanes.get(next) {
            // An error means that the server stops.
            let _ = lane.send(Accepted {
                link: FreeLink::Tcp(stream),
                peer,
                permit,
                entry: Entry::of_listener(local),
                accepting: Some(accepting),
            });
        }
    }
}
